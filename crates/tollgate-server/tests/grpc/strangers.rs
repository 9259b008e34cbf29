use super::*;

/// HTTP/2's preface with empty settings.
pub(super) const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn silent_and_invalid_connections_are_closed_without_effect_on_others() {
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
        // The read ends only when the server closes the connection.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 1_000, "{words:?}: {answer:?}");
    }
    assert!(envoy.allows("edge", &client("a")));
    assert_eq!(server.get("/check/a").json()["remaining"], 7, "and none of that cost anything");
}

/// A frame of HTTP/2: type, flags, stream, content.
pub(super) fn frame(kind: u8, flags: u8, stream: u8, content: &[u8]) -> Vec<u8> {
    let [.., a, b, c] = content.len().to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, stream], content].concat()
}

/// Reads frames up to the first of this type, and returns its flags.
fn flags_of_next(stream: &mut TcpStream, wanted: u8) -> u8 {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let [a, b, c, kind, flags, ..] = head;
        let mut content = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut content).unwrap();
        if kind == wanted {
            return flags;
        }
    }
}

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// `END_STREAM`, or `ACK` of a ping or settings.
pub(super) const LAST: u8 = 1;
pub(super) const WHOLE: u8 = 4;

/// The header fields of a call.
pub(super) fn call_headers() -> Vec<u8> {
    let literal = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // HPACK: method POST, scheme http, then a path, a host and a content type.
    [
        &[0x83, 0x86, 0x04][..],
        &literal(&format!("/{SERVICE}/ShouldRateLimit")),
        &[0x01],
        &literal("tollgate"),
        &[0x0f, 0x10],
        &literal("application/grpc"),
    ]
    .concat()
}

/// A connection with a call whose message is still to come.
fn calling(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.listens("grpc")).unwrap();
    stream.write_all(&[HELLO, &frame(HEADERS, WHOLE, 1, &call_headers())].concat()).unwrap();
    stream
}

#[test]
fn a_message_in_frames_of_one_byte_costs_no_extra_memory() {
    /// Nearly the largest message.
    const BYTES: usize = 1_000_000;
    let (server, envoy) = bare();
    assert!(envoy.allows("edge", &client("a")));
    let before = server.peak_bytes();
    // An uncompressed message with its length.
    let message = [&[0][..], &u32::try_from(BYTES).unwrap().to_be_bytes(), &vec![0; BYTES]].concat();
    let frames: Vec<u8> = message.iter().flat_map(|byte| frame(DATA, 0, 1, &[*byte])).collect();
    let mut stream = calling(&server);
    // Once the settings are acknowledged, the window is open.
    flags_of_next(&mut stream, WINDOW_UPDATE);
    stream.write_all(&frame(SETTINGS, LAST, 0, &[])).unwrap();
    // The server may close earlier, because of so many small frames.
    let _ = stream.write_all(&[frames, frame(DATA, LAST, 1, &[])].concat());
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < 12 << 20, "by {grown} bytes");
    assert!(envoy.allows("edge", &client("a")));
}

#[test]
fn a_call_without_its_message_times_out_and_the_connection_stays_open() {
    let (server, _) = server("never", "[server]\ntimeout = \"100ms\"");
    let mut stream = calling(&server);
    assert_eq!(flags_of_next(&mut stream, HEADERS) & LAST, LAST, "nothing but how it ended");
    stream.write_all(&frame(PING, 0, 0, b"are you?")).unwrap();
    assert_eq!(flags_of_next(&mut stream, PING), LAST);
}

#[test]
fn an_unknown_service_is_unimplemented() {
    let (_server, envoy) = bare();
    let mut other = AuthorizationClient::new(envoy.channel.clone());
    let refused = envoy.wait(other.check(CheckRequest::default())).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
}
