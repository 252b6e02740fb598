//! Answers to clients, and their encoding in RESP2 or RESP3.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The version of the protocol in which a client gets its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Version {
    /// RESP2, the version of a client that sends no `HELLO`.
    #[default]
    Two,
    /// RESP3.
    Three,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status word, such as `OK`.
    Simple(&'static str),
    /// An error: its code and its text on one line.
    Error(String),
    /// A number.
    Number(i64),
    /// A string.
    Bulk(Bytes),
    /// No value.
    Null,
    /// A list of answers.
    Array(Vec<Reply>),
    /// Pairs of keys and values. RESP2 encodes them as one array in which keys and values alternate.
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    /// The answer of a command that succeeded.
    pub const OK: Reply = Reply::Simple("OK");

    /// Creates a string from text.
    pub fn text(text: impl Into<String>) -> Reply {
        Reply::Bulk(Bytes::from(text.into()))
    }

    /// Returns the approximate size of the answer in memory and encoded, in bytes. A value that occurs twice
    /// counts twice.
    pub fn bytes(&self) -> usize {
        size_of::<Reply>()
            + match self {
                Reply::Simple(_) | Reply::Number(_) | Reply::Null => 0,
                Reply::Error(text) => text.len(),
                Reply::Bulk(bytes) => bytes.len(),
                Reply::Array(replies) => replies.iter().map(Reply::bytes).sum(),
                Reply::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
            }
    }

    /// Appends the encoded answer to `out`.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        match self {
            Reply::Simple(word) => line(out, b'+', word.as_bytes()),
            Reply::Error(text) => {
                // An error must fit on one line, even if it quotes line breaks from a client.
                out.put_u8(b'-');
                out.extend(text.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
                out.put_slice(b"\r\n");
            }
            Reply::Number(number) => {
                out.put_u8(b':');
                put_number(out, *number);
                out.put_slice(b"\r\n");
            }
            Reply::Bulk(bytes) => {
                head(out, b'$', bytes.len());
                out.put_slice(bytes);
                out.put_slice(b"\r\n");
            }
            Reply::Null if version == Version::Three => out.put_slice(b"_\r\n"),
            Reply::Null => out.put_slice(b"$-1\r\n"),
            Reply::Array(replies) => {
                head(out, b'*', replies.len());
                for reply in replies {
                    reply.encode(version, out);
                }
            }
            Reply::Map(pairs) => {
                match version {
                    Version::Three => head(out, b'%', pairs.len()),
                    Version::Two => head(out, b'*', 2 * pairs.len()),
                }
                for (key, value) in pairs {
                    key.encode(version, out);
                    value.encode(version, out);
                }
            }
        }
    }
}

fn line(out: &mut BytesMut, tag: u8, content: &[u8]) {
    out.put_u8(tag);
    out.put_slice(content);
    out.put_slice(b"\r\n");
}

fn head(out: &mut BytesMut, tag: u8, count: usize) {
    out.put_u8(tag);
    put_number(out, i64::try_from(count).expect("a length in memory fits into 63 bits"));
    out.put_slice(b"\r\n");
}

/// Writes decimal digits without an allocation, because almost every answer has a number.
fn put_number(out: &mut BytesMut, number: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.put_u8(b'-');
    }
    out.put_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: &Reply, two: &str, three: &str) {
        for (version, wanted) in [(Version::Two, two), (Version::Three, three)] {
            let mut out = BytesMut::new();
            reply.encode(version, &mut out);
            assert_eq!(out.escape_ascii().to_string(), wanted, "{reply:?}");
        }
    }

    #[test]
    fn replies_are_encoded_in_both_protocol_versions() {
        check(&Reply::OK, r"+OK\r\n", r"+OK\r\n");
        check(&Reply::Error("ERR a\r\nb".into()), r"-ERR a  b\r\n", r"-ERR a  b\r\n");
        check(&Reply::Null, r"$-1\r\n", r"_\r\n");
        check(&Reply::text("ab"), r"$2\r\nab\r\n", r"$2\r\nab\r\n");
        let pairs = Reply::Map(vec![(Reply::text("a"), Reply::Number(-10))]);
        check(&pairs, r"*2\r\n$1\r\na\r\n:-10\r\n", r"%1\r\n$1\r\na\r\n:-10\r\n");
        check(&Reply::Array(vec![Reply::Null]), r"*1\r\n$-1\r\n", r"*1\r\n_\r\n");
    }

    #[test]
    fn numbers_are_encoded_as_the_standard_library_prints_them() {
        for number in [0, 1, -1, 9, 10, 12_345, i64::MAX, i64::MIN] {
            let mut out = BytesMut::new();
            put_number(&mut out, number);
            assert_eq!(out, number.to_string().as_bytes());
        }
    }
}
