//! Speaks the PostgreSQL protocol by hand, for messages that no driver sends.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Longest wait for the server in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection without a driver.
pub(crate) struct Raw {
    stream: TcpStream,
}

/// A message of the server: its letter and its body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) kind: char,
    pub(crate) body: Vec<u8>,
}

impl Said {
    /// Returns a field of an error or a notice.
    pub(crate) fn field(&self, which: u8) -> String {
        assert!(matches!(self.kind, 'E' | 'N'), "{self:?}");
        let mut fields = self.body.split(|byte| *byte == 0);
        let found = fields.find(|field| field.first() == Some(&which)).unwrap_or_default();
        String::from_utf8_lossy(found.get(1..).unwrap_or_default()).into_owned()
    }

    /// Returns the fields of a row.
    pub(crate) fn row(&self) -> Vec<Option<&[u8]>> {
        assert_eq!(self.kind, 'D');
        let (count, mut rest) = self.body.split_first_chunk::<2>().unwrap();
        let mut fields = Vec::new();
        for _ in 0..u16::from_be_bytes(*count) {
            let (length, after) = rest.split_first_chunk::<4>().unwrap();
            rest = after;
            fields.push(usize::try_from(i32::from_be_bytes(*length)).ok().map(|length| {
                let (field, after) = rest.split_at(length);
                rest = after;
                field
            }));
        }
        assert!(rest.is_empty(), "a row longer than its fields");
        fields
    }
}

/// Encodes a message of this kind.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((body.len() as i32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Encodes a start-up packet.
pub(crate) fn startup() -> Vec<u8> {
    let body = b"\0\x03\0\0user\0test\0database\0test\0\0";
    [&(body.len() as i32 + 4).to_be_bytes()[..], body].concat()
}

pub(crate) fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

pub(crate) fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat())
}

/// Encodes a Bind of the unnamed portal, without checking that formats and values fit together.
pub(crate) fn bind(name: &str, formats: &[i16], values: &[Option<&[u8]>], results: &[i16]) -> Vec<u8> {
    let mut body = [b"\0", name.as_bytes(), b"\0"].concat();
    let codes = |codes: &[i16], body: &mut Vec<u8>| {
        body.extend((codes.len() as i16).to_be_bytes());
        codes.iter().for_each(|code| body.extend(code.to_be_bytes()));
    };
    codes(formats, &mut body);
    body.extend((values.len() as i16).to_be_bytes());
    for value in values {
        body.extend(value.map_or(-1, |value| value.len() as i32).to_be_bytes());
        body.extend(value.unwrap_or_default());
    }
    codes(results, &mut body);
    message(b'B', &body)
}

pub(crate) fn execute(portal: &str, rows: i32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0", &rows.to_be_bytes()].concat())
}

pub(crate) fn sync() -> Vec<u8> {
    message(b'S', b"")
}

impl Raw {
    /// Connects and sends nothing.
    pub(crate) async fn silent(address: SocketAddr) -> Raw {
        Raw { stream: TcpStream::connect(address).await.expect("the door is open") }
    }

    /// Begins a session. Returns the connection with the packet that cancels its statements.
    pub(crate) async fn begin(address: SocketAddr) -> (Raw, Vec<u8>) {
        let mut raw = Raw::silent(address).await;
        raw.send(&startup()).await.unwrap();
        let greeting = raw.until_ready().await;
        let key = greeting.iter().find(|said| said.kind == 'K').expect("a key");
        let cancel = [&b"\0\0\0\x10\x04\xd2\x16\x2e"[..], &key.body].concat();
        (raw, cancel)
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("it is read")
    }

    /// Returns the next message, or `None` if the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<Said> {
        let mut head = [0; 5];
        let read = timeout(PATIENCE, self.stream.read_exact(&mut head)).await.expect("an answer comes");
        if read.is_err() {
            return None;
        }
        let length = i32::from_be_bytes(head[1..].try_into().unwrap());
        assert!((4..1 << 26).contains(&length), "a message of {length} bytes from the server");
        let mut body = vec![0; length as usize - 4];
        let read = timeout(PATIENCE, self.stream.read_exact(&mut body)).await.expect("the rest comes");
        read.is_ok().then_some(Said { kind: char::from(head[0]), body })
    }

    /// Returns all messages up to and including the message that the server is ready.
    pub(crate) async fn until_ready(&mut self) -> Vec<Said> {
        let mut all = Vec::new();
        loop {
            let said = self.next().await.unwrap_or_else(|| panic!("it ended behind {all:?}"));
            let ready = said.kind == 'Z';
            all.push(said);
            if ready {
                return all;
            }
        }
    }

    /// Closes the sending side, and reads until the server ends the connection. Returns `None` if the server
    /// cut the connection because some of the sent bytes were unread.
    pub(crate) async fn ended(mut self) -> Option<Vec<u8>> {
        // An error is no failure here: the server may have ended the connection already.
        let _ = self.stream.shutdown().await;
        let mut all = Vec::new();
        let read = timeout(PATIENCE, self.stream.read_to_end(&mut all)).await.expect("the server ends it");
        read.is_ok().then_some(all)
    }
}

/// Returns the kinds of the messages, in order, as a text.
pub(crate) fn kinds(said: &[Said]) -> String {
    said.iter().map(|said| said.kind).collect()
}
