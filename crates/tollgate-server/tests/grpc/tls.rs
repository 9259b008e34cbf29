use super::*;

/// A server with a certificate for `localhost`, and the certificate.
fn server(name: &str) -> (Server, CertificateDer<'static>, String) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let directory = directory(name);
    fs::write(directory.join("server.pem"), cert.pem()).unwrap();
    fs::write(directory.join("server.key"), signing_key.serialize_pem()).unwrap();
    let file = directory.join("tollgate.toml");
    fs::write(&file, "[server.tls]\ncert = \"server.pem\"\nkey = \"server.key\"").unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    (server, cert.der().clone(), cert.pem())
}

#[test]
fn grpc_is_served_over_tls_and_not_in_cleartext() {
    let (server, _, pem) = server("grpc-tls");
    let port = server.listens("grpc").rsplit(':').next().unwrap();
    let endpoint = Endpoint::from_shared(format!("https://localhost:{port}")).unwrap();
    let trusting = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    let envoy = Envoy::connect(endpoint.tls_config(trusting).unwrap()).unwrap();
    assert!(envoy.allows("edge", &client("a")));
    assert_eq!(envoy.left("edge", &client("a")), Some(9));
    let clear = Endpoint::from_shared(format!("http://localhost:{port}")).unwrap();
    if let Ok(clear) = Envoy::connect(clear) {
        assert!(clear.send(request("edge", &[client("a")])).is_err());
    }
    assert_eq!(envoy.left("edge", &client("a")), Some(9));
}

#[test]
fn alpn_negotiates_http_2_only() {
    let (server, certificate, _) = server("grpc-alpn");
    let handshake = |protocols: &[&[u8]]| {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = TcpStream::connect(server.listens("grpc")).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).ok()?;
        }
        connection.alpn_protocol().map(<[u8]>::to_vec)
    };
    assert_eq!(handshake(&[b"h2"]), Some(b"h2".to_vec()));
    assert_eq!(handshake(&[b"http/1.1", b"h2"]), Some(b"h2".to_vec()));
    assert_eq!(handshake(&[b"http/1.1"]), None);
}
