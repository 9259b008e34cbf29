use super::*;

/// What is sent at the beginning of HTTP/2, with settings that say nothing.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn what_is_silent_or_not_grpc_is_closed_and_others_notice_nothing() {
    let (server, envoy) = server("strangers", "[server]\ntimeout = \"100ms\"");
    let open = |words: &[u8]| {
        let mut stream = TcpStream::connect(server.listens("grpc")).unwrap();
        let _ = stream.write_all(words);
        stream
    };
    let too_long_a_frame = [HELLO, b"\xff\xff\xff\0\0\0\0\0\x01"].concat();
    let headers_of_stream_0 = [HELLO, b"\0\0\x01\x01\x05\0\0\0\0\x82"].concat();
    let not_compressed_headers = [HELLO, b"\0\0\x04\x01\x05\0\0\0\x01\xff\xff\xff\xff"].concat();
    let words: [&[u8]; 11] = [
        b"",
        HELLO,
        &HELLO[..10],
        b"GET /check/a HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit HTTP/1.1\r\nhost: x\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        &[0xff; 4_096],
        &too_long_a_frame,
        &headers_of_stream_0,
        &not_compressed_headers,
    ];
    let streams = words.map(open);
    assert!(envoy.allows("edge", &client("a")));
    for (mut stream, words) in streams.into_iter().zip(words) {
        // Each ends only because the server hangs up.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 1_000, "{words:?}: {answer:?}");
    }
    assert!(envoy.allows("edge", &client("a")));
    assert_eq!(server.get("/check/a").json()["remaining"], 7, "and none of that cost anything");
}

#[test]
fn a_service_that_is_not_here_is_unimplemented() {
    let (_server, envoy) = bare();
    let mut other = AuthorizationClient::new(envoy.channel.clone());
    let refused = envoy.wait(other.check(CheckRequest::default())).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
}
