//! Who listens at an address, and how it is: how a process that knows only addresses finds the routers.
//!
//! The question is a hello that wants `NOBODY`. It is refused, and refusals say who refuses, and why.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{DomainId, Incarnation, ProcessId, journal::Told, wire::PROTOCOL_VERSIONS};
use thiserror::Error;

use crate::{
    frame::HEADER_BYTES,
    hello::{GREETING_BYTES_MAX, Greeting, Hello, Reason, Refusal},
};

/// Why nobody was found.
#[derive(Debug, Error)]
pub enum Undiscovered {
    /// Nobody listens there, or not in time.
    #[error(transparent)]
    Unreachable(#[from] io::Error),
    /// Whoever listens there is not one of us.
    #[error("{0}")]
    Other(String),
}

impl Undiscovered {
    /// Whether it is certain that no process of the domain listens there.
    pub fn is_certain(&self) -> bool {
        match self {
            Undiscovered::Unreachable(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            Undiscovered::Other(_) => true,
        }
    }
}

/// No process: a hello that wants it asks who listens.
pub(crate) const NOBODY: ProcessId = ProcessId { node: 0, incarnation: Incarnation(0) };

/// How a process stands in its domain, as it tells whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It belongs to no domain yet.
    Joining,
    /// It belongs to the domain, and knows no leader that has a majority of the routers.
    Leaderless,
    /// It does its work.
    Settled,
}

/// What a process tells those who ask about one of its domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it stands there.
    pub presence: Presence,
    /// What it shows there to whoever wants a link ([`Policy`](quorate_protocol::Policy)).
    pub pass: Bytes,
}

/// Who listens at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// The process.
    pub process: ProcessId,
    /// What it tells.
    pub answer: Answer,
}

/// Asks who listens at `address`, for at most `patience` per step. Blocks; not for the protocol thread.
pub fn discover(address: &str, domain: DomainId, patience: Duration) -> Result<Met, Undiscovered> {
    answer(ask(address, domain, patience)?, domain)
}

/// Asks of which domain the process is that listens at `address`, as [`discover`] does.
pub fn domain(address: &str, patience: Duration) -> Result<DomainId, Undiscovered> {
    // Whoever is asked as a member of another domain says which one it is of.
    let refusal = ask(address, DomainId(0), patience)?;
    match refusal.reason {
        Reason::Domain => Ok(refusal.domain),
        _ => Err(Undiscovered::Other(refusal.to_string())),
    }
}

/// Greets whoever listens at `address`, wanting nobody; what it says to that.
fn ask(address: &str, domain: DomainId, patience: Duration) -> Result<Refusal, Undiscovered> {
    let newest = *PROTOCOL_VERSIONS.end();
    let refusal = ask_in(newest, address, domain, patience)?;
    if refusal.reason == Reason::Version && PROTOCOL_VERSIONS.contains(&refusal.version) {
        return ask_in(refusal.version, address, domain, patience);
    }
    Ok(refusal)
}

fn ask_in(
    version: u16,
    address: &str,
    domain: DomainId,
    patience: Duration,
) -> Result<Refusal, Undiscovered> {
    let hello = Hello {
        version,
        domains: vec![domain],
        pass: Bytes::new(),
        process: NOBODY,
        wanted: NOBODY,
        number: 0,
        durable: Told::default(),
        known: Told::default(),
        address: String::new(),
        port: 0,
        token: 0,
        voice: 0,
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address"));
    for place in address.to_socket_addrs()? {
        let mut stream = match TcpStream::connect_timeout(&place, patience) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(&Greeting::Hello(hello).encode())?;
        return match Greeting::decode(read_frame(&mut stream)?, &PROTOCOL_VERSIONS) {
            Ok(Greeting::Refusal(refusal)) => Ok(refusal),
            Ok(_) => Err(Undiscovered::Other(String::from("an unexpected greeting"))),
            Err(error) => Err(Undiscovered::Other(error.to_string())),
        };
    }
    Err(last.into())
}

fn read_frame(stream: &mut TcpStream) -> Result<Bytes, Undiscovered> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let length = u32::from_le_bytes(header) as usize;
    if length > GREETING_BYTES_MAX {
        return Err(Undiscovered::Other(String::from("whoever listens there does not speak our protocol")));
    }
    let mut frame = BytesMut::zeroed(length);
    stream.read_exact(&mut frame)?;
    Ok(frame.freeze())
}

fn answer(refusal: Refusal, domain: DomainId) -> Result<Met, Undiscovered> {
    let presence = match refusal.reason {
        Reason::Joining => Presence::Joining,
        Reason::Leaderless => Presence::Leaderless,
        Reason::Settled => Presence::Settled,
        _ => return Err(Undiscovered::Other(refusal.to_string())),
    };
    if refusal.domain != domain {
        return Err(Undiscovered::Other(refusal.to_string()));
    }
    Ok(Met { process: refusal.process, answer: Answer { presence, pass: refusal.pass } })
}
