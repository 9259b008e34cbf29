//! A raw connection of the Redis protocol.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use super::common::Server;

/// A connection.
pub(crate) struct Wire(pub(crate) BufReader<TcpStream>);

impl Wire {
    pub(crate) fn connect(server: &Server) -> Self {
        Self::new(TcpStream::connect(server.listens("resp")).unwrap())
    }

    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends raw bytes. The server may close before all are sent.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.0.get_mut().write_all(bytes.as_ref());
    }

    /// The next line, without its line end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").unwrap_or_else(|| panic!("no whole line: {line:?}")).to_owned()
    }

    /// Sends an inline command, and reads a reply of one line.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n"));
        self.line()
    }

    /// The next reply, which is `CL.THROTTLE`'s.
    pub(crate) fn five(&mut self) -> [i64; 5] {
        assert_eq!(self.line(), "*5");
        [(); 5].map(|()| self.line().strip_prefix(':').unwrap().parse().unwrap())
    }

    /// The bytes until the server closes or resets the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// A command as client libraries encode it.
pub(crate) fn command<A: AsRef<[u8]>>(
    arguments: impl IntoIterator<Item = A, IntoIter: ExactSizeIterator>,
) -> Vec<u8> {
    let arguments = arguments.into_iter();
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
