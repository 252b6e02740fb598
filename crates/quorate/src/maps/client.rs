//! A client of maps. It does one read or write at a time, each with its own strength.
//!
//! Experiments and tools use [`Store`]: a register for each key, and a level for each operation. [`Client`]
//! is such a store over a cell's Redis door.
//!
//! ```no_run
//! use quorate::maps::{Client, Level, Store};
//!
//! let mut client = Client::connect("127.0.0.1:24700", "main", std::time::Duration::from_secs(5))?;
//! client.write(b"greeting", b"hello", Level::Quorum)?;
//! assert_eq!(client.read(b"greeting", Level::One)?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use bytes::Bytes;
use thiserror::Error;

pub use quorate_protocol::partial::Level;

/// A store of registers that replicas keep. It does one operation at a time.
pub trait Store {
    /// Returns the value of a key, or `None` if there is none.
    fn read(&mut self, key: &[u8], level: Level) -> Result<Option<Bytes>, Failure>;

    /// Sets the value of a key.
    fn write(&mut self, key: &[u8], value: &[u8], level: Level) -> Result<(), Failure>;
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn read(&mut self, key: &[u8], level: Level) -> Result<Option<Bytes>, Failure> {
        (**self).read(key, level)
    }

    fn write(&mut self, key: &[u8], value: &[u8], level: Level) -> Result<(), Failure> {
        (**self).write(key, value, level)
    }
}

/// The reason why an operation did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// Nothing was read, and nothing was written, now or later.
    #[error("nothing was done: {0}")]
    NotDone(String),
    /// The write may take effect at any time from now on, or never.
    #[error("the write may take effect: {0}")]
    MaybeApplied(String),
}

/// A connection to a cell. If it breaks, the next operation connects again.
#[derive(Debug)]
pub struct Client {
    address: String,
    map: String,
    patience: Duration,
    connection: Option<CellConnection>,
}

#[derive(Debug)]
struct CellConnection {
    stream: BufReader<TcpStream>,
    /// The level that the cell has for this connection.
    level: Option<Level>,
}

/// An answer of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// No value.
    Nothing,
    /// A text: a value, or a word such as `OK`.
    Text(Bytes),
    /// A number.
    Number(i64),
    /// A list of answers.
    Many(Vec<Reply>),
    /// A refusal, or a failure. Its first word is its kind.
    Error(String),
}

impl Client {
    /// Connects to a cell's Redis door. Operations are on `map`; each may take as long as `patience`.
    pub fn connect(address: &str, map: &str, patience: Duration) -> io::Result<Client> {
        let mut client =
            Client { address: address.to_owned(), map: map.to_owned(), patience, connection: None };
        client.connection()?;
        Ok(client)
    }

    /// Executes a command that changes neither level nor map, and returns the answer.
    pub fn command(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        let mut request = Vec::new();
        put(&mut request, words);
        self.ask(&request, 1)
    }

    fn connection(&mut self) -> io::Result<&mut CellConnection> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(self.patience))?;
            stream.set_write_timeout(Some(self.patience))?;
            let mut connection = CellConnection { stream: BufReader::new(stream), level: None };
            let mut request = Vec::new();
            put(&mut request, &[b"QUORATE", b"MAP", self.map.as_bytes()]);
            match connection.ask(&request, 1)? {
                Reply::Error(why) => return Err(io::Error::new(io::ErrorKind::NotFound, why)),
                _ => self.connection = Some(connection),
            }
        }
        Ok(self.connection.as_mut().expect("made above"))
    }

    /// Sends requests, and returns the answer to the last of them. A failure closes the connection, because
    /// answers to these requests may still arrive.
    fn ask(&mut self, requests: &[u8], count: usize) -> io::Result<Reply> {
        let answer = self.connection()?.ask(requests, count);
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    fn operate(&mut self, words: &[&[u8]], level: Level) -> Result<Reply, Failure> {
        let connection = self.connection().map_err(|error| Failure::NotDone(error.to_string()))?;
        let (mut requests, mut count) = (Vec::new(), 1);
        if connection.level.replace(level) != Some(level) {
            put(&mut requests, &[b"QUORATE", b"LEVEL", level.name().as_bytes()]);
            count = 2;
        }
        put(&mut requests, words);
        match self.ask(&requests, count) {
            Ok(Reply::Error(why)) if why.starts_with("MAYBEAPPLIED") => Err(Failure::MaybeApplied(why)),
            Ok(Reply::Error(why)) => Err(Failure::NotDone(why)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(Failure::MaybeApplied(error.to_string())),
        }
    }
}

impl Store for Client {
    fn read(&mut self, key: &[u8], level: Level) -> Result<Option<Bytes>, Failure> {
        match self.operate(&[b"GET", key], level) {
            Ok(Reply::Text(value)) => Ok(Some(value)),
            Ok(Reply::Nothing) => Ok(None),
            Ok(other) => Err(Failure::NotDone(format!("GET was answered with {other:?}"))),
            // A read writes nothing.
            Err(Failure::MaybeApplied(why)) => Err(Failure::NotDone(why)),
            Err(failure) => Err(failure),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8], level: Level) -> Result<(), Failure> {
        match self.operate(&[b"SET", key, value], level)? {
            Reply::Text(word) if word == *"OK" => Ok(()),
            other => Err(Failure::MaybeApplied(format!("SET was answered with {other:?}"))),
        }
    }
}

impl CellConnection {
    fn ask(&mut self, requests: &[u8], count: usize) -> io::Result<Reply> {
        self.stream.get_mut().write_all(requests)?;
        for _ in 1..count {
            // If the cell refused the level, the operation would run at another level than requested.
            if let Reply::Error(why) = self.reply(0)? {
                return Err(malformed(&why));
            }
        }
        self.reply(0)
    }

    fn reply(&mut self, depth: usize) -> io::Result<Reply> {
        let mut line = Vec::new();
        let limited = &mut (&mut self.stream).take(LINE_BYTES_MAX);
        limited.read_until(b'\n', &mut line)?;
        let text = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok());
        let Some((tag, rest)) = text.and_then(|text| text.split_at_checked(1)) else {
            let ended = line.is_empty();
            return Err(if ended { io::ErrorKind::UnexpectedEof.into() } else { malformed("no line") });
        };
        let number = || rest.parse::<i64>().map_err(|_| malformed(rest));
        match tag {
            "+" => Ok(Reply::Text(Bytes::copy_from_slice(rest.as_bytes()))),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Number(number()?)),
            "$" | "*" if number()? == -1 => Ok(Reply::Nothing),
            "$" => {
                let length = usize::try_from(number()?).ok().filter(|it| *it <= VALUE_BYTES_MAX);
                let mut value = vec![0; length.ok_or_else(|| malformed(rest))? + 2];
                self.stream.read_exact(&mut value)?;
                value.truncate(value.len() - 2);
                Ok(Reply::Text(value.into()))
            }
            "*" if depth < DEPTH_MAX => {
                (0..number()?).map(|_| self.reply(depth + 1)).collect::<io::Result<_>>().map(Reply::Many)
            }
            _ => Err(malformed(tag)),
        }
    }
}

fn put(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the cell sent an invalid answer: {what:?}"))
}

/// Upper bounds of a line and of a value, in bytes, and of the nesting of an answer.
const LINE_BYTES_MAX: u64 = 64 << 10;
const VALUE_BYTES_MAX: usize = 512 << 20;
const DEPTH_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// Starts a server that, in each turn, expects the first text and answers with the second. It ends after
    /// the last turn.
    fn server(turns: &'static [(&'static str, &'static str)]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for (wanted, answer) in turns {
                let mut bytes = vec![0; wanted.len()];
                stream.read_exact(&mut bytes).unwrap();
                assert_eq!(String::from_utf8(bytes).unwrap(), *wanted);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    const MAP: &str = "*3\r\n$7\r\nQUORATE\r\n$3\r\nMAP\r\n$1\r\nm\r\n";
    const LEVEL_ONE: &str = "*3\r\n$7\r\nQUORATE\r\n$5\r\nLEVEL\r\n$3\r\none\r\n";
    const GET: &str = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    const SET: &str = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";

    fn connect(turns: &'static [(&'static str, &'static str)]) -> Client {
        Client::connect(&server(turns), "m", Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn a_level_is_sent_when_it_changes() {
        let mut client = connect(&[
            (MAP, "+OK\r\n"),
            (LEVEL_ONE, "+OK\r\n"),
            (SET, "+OK\r\n"),
            (GET, "$1\r\nv\r\n"),
            (GET, "$-1\r\n"),
        ]);
        client.write(b"k", b"v", Level::One).unwrap();
        assert_eq!(client.read(b"k", Level::One).unwrap().as_deref(), Some(&b"v"[..]));
        assert_eq!(client.read(b"k", Level::One).unwrap(), None);
    }

    #[test]
    fn a_failure_says_what_may_have_happened() {
        let mut client = connect(&[
            (MAP, "+OK\r\n"),
            (LEVEL_ONE, "+OK\r\n"),
            (SET, "-UNAVAILABLE x\r\n"),
            (SET, "-MAYBEAPPLIED x\r\n"),
            (GET, "-UNANSWERED x\r\n"),
            (SET, ""),
        ]);
        assert_eq!(client.write(b"k", b"v", Level::One), Err(Failure::NotDone("UNAVAILABLE x".into())));
        let maybe = Failure::MaybeApplied("MAYBEAPPLIED x".into());
        assert_eq!(client.write(b"k", b"v", Level::One), Err(maybe));
        assert!(matches!(client.read(b"k", Level::One), Err(Failure::NotDone(_))));
        // The connection breaks, and nobody listens after that.
        assert!(matches!(client.write(b"k", b"v", Level::One), Err(Failure::MaybeApplied(_))));
        assert!(matches!(client.write(b"k", b"v", Level::One), Err(Failure::NotDone(_))));
    }

    #[test]
    fn malformed_answers_are_refused() {
        for answer in
            ["?\r\n", "$999999999999\r\n", "$x\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "\n", "\u{e9}\r\n"]
        {
            let turns = Box::leak(Box::new([(MAP, "+OK\r\n"), ("*1\r\n$4\r\nPING\r\n", answer)]));
            let error = connect(turns).command(&[b"PING"]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{answer:?}: {error}");
        }
        let refused =
            Client::connect(&server(&[(MAP, "-ERR there is no map 'm'\r\n")]), "m", Duration::from_secs(5));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
