//! The question to an address: which process listens there? A process that knows only addresses finds the
//! routers in this way.
//!
//! The question is a hello that wants `NO_PROCESS`. The listener always refuses this hello, and the refusal
//! states the listener's id and state.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    DomainId, Incarnation, ProcessId, journal::DurabilityReport, wire::PROTOCOL_VERSIONS,
};
use thiserror::Error;

use crate::{
    frame::HEADER_BYTES,
    hello::{GREETING_BYTES_MAX, Greeting, Hello, HelloRefusal, Reason},
};

/// The reason why no process was found.
#[derive(Debug, Error)]
pub enum DiscoverError {
    /// Nobody listens at the address, or the answer did not come in time.
    #[error(transparent)]
    Unreachable(#[from] io::Error),
    /// The listener at the address is not a process of this domain.
    #[error("{0}")]
    Other(String),
}

impl DiscoverError {
    /// Whether it is certain that no process of the domain listens at the address.
    pub fn is_certain(&self) -> bool {
        match self {
            DiscoverError::Unreachable(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            DiscoverError::Other(_) => true,
        }
    }
}

/// The id of no process. A hello that wants it asks which process listens.
pub(crate) const NO_PROCESS: ProcessId = ProcessId { node: 0, incarnation: Incarnation(0) };

/// The state of a process in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// The process belongs to no domain yet.
    Joining,
    /// The process belongs to the domain, but knows no leader with a majority of the routers.
    Leaderless,
    /// The process does its work.
    Settled,
}

/// The answer of a process to a question about one of its domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainAnswer {
    /// The state of the process in that domain.
    pub presence: DomainState,
    /// The pass that the process shows in that domain to peers that want a link
    /// ([`Policy`](quorate_protocol::Policy)).
    pub pass: Bytes,
}

/// The process that listens at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredProcess {
    /// The id of the process.
    pub process: ProcessId,
    /// The answer of the process.
    pub answer: DomainAnswer,
}

/// Asks which process of `domain` listens at `address`. Each step takes at most `patience`. Blocks, so the
/// protocol thread must not call it.
pub fn discover(
    address: &str,
    domain: DomainId,
    patience: Duration,
) -> Result<DiscoveredProcess, DiscoverError> {
    answer(ask(address, domain, patience)?, domain)
}

/// Asks for the domain of the process that listens at `address`, as [`discover`] does.
pub fn domain(address: &str, patience: Duration) -> Result<DomainId, DiscoverError> {
    // A process that is asked about a domain to which it does not belong names a domain of its own.
    let refusal = ask(address, DomainId(0), patience)?;
    match refusal.reason {
        Reason::Domain => Ok(refusal.domain),
        _ => Err(DiscoverError::Other(refusal.to_string())),
    }
}

/// Sends a hello that wants no process to `address`. Returns the refusal that answers it.
fn ask(address: &str, domain: DomainId, patience: Duration) -> Result<HelloRefusal, DiscoverError> {
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
) -> Result<HelloRefusal, DiscoverError> {
    let hello = Hello {
        version,
        domains: vec![domain],
        pass: Bytes::new(),
        process: NO_PROCESS,
        wanted: NO_PROCESS,
        number: 0,
        durable: DurabilityReport::default(),
        known: DurabilityReport::default(),
        address: String::new(),
        port: 0,
        token: 0,
        multicast_token: 0,
    };
    let mut last =
        io::Error::new(io::ErrorKind::NotFound, format!("the host name in {address} resolves to no address"));
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
            Ok(_) => Err(DiscoverError::Other(String::from(
                "the process at this address answered with an unexpected greeting",
            ))),
            Err(error) => Err(DiscoverError::Other(error.to_string())),
        };
    }
    Err(last.into())
}

fn read_frame(stream: &mut TcpStream) -> Result<Bytes, DiscoverError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let length = u32::from_le_bytes(header) as usize;
    if length > GREETING_BYTES_MAX {
        return Err(DiscoverError::Other(String::from(
            "the program at this address does not speak Quorate's protocol",
        )));
    }
    let mut frame = BytesMut::zeroed(length);
    stream.read_exact(&mut frame)?;
    Ok(frame.freeze())
}

fn answer(refusal: HelloRefusal, domain: DomainId) -> Result<DiscoveredProcess, DiscoverError> {
    let presence = match refusal.reason {
        Reason::Joining => DomainState::Joining,
        Reason::Leaderless => DomainState::Leaderless,
        Reason::Settled => DomainState::Settled,
        _ => return Err(DiscoverError::Other(refusal.to_string())),
    };
    if refusal.domain != domain {
        return Err(DiscoverError::Other(refusal.to_string()));
    }
    Ok(DiscoveredProcess { process: refusal.process, answer: DomainAnswer { presence, pass: refusal.pass } })
}
