//! Who listens at an address: how a process that knows only addresses finds the routers.
//!
//! The question is a hello that wants nobody. It is refused, and refusals say who refuses.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{DomainId, Generation, Incarnation, ProcessId};
use thiserror::Error;

use crate::{
    config::Role,
    frame::HEADER_BYTES,
    hello::{GREETING_BYTES_MAX, Greeting, Hello, Reason, Refusal},
};

/// Why nobody was found.
#[derive(Debug, Error)]
pub enum Undiscovered {
    /// Nobody listens there, or not in time.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// Whoever listens there is not one of us.
    #[error("{0}")]
    Other(String),
}

/// Asks who listens at `address`, and in which generation of the domain, for at most `patience` per step. Blocks; not for
/// the protocol thread.
pub fn discover(
    address: &str,
    domain: DomainId,
    patience: Duration,
) -> Result<(ProcessId, Generation), Undiscovered> {
    let nobody = ProcessId { node: 0, incarnation: Incarnation(0) };
    let hello = Hello {
        domain,
        role: Role::Router,
        generation: Generation(0),
        process: nobody,
        wanted: nobody,
        number: 0,
        address: String::new(),
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
        return answer(read_frame(&mut stream)?, domain);
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

fn answer(frame: Bytes, domain: DomainId) -> Result<(ProcessId, Generation), Undiscovered> {
    match Greeting::decode(frame) {
        Ok(Greeting::Refusal(Refusal {
            reason: Reason::Stranger,
            domain: theirs,
            generation,
            process,
            ..
        })) if theirs == domain => Ok((process, generation)),
        Ok(Greeting::Refusal(refusal)) => Err(Undiscovered::Other(refusal.to_string())),
        Ok(_) => Err(Undiscovered::Other(String::from("an unexpected greeting"))),
        Err(error) => Err(Undiscovered::Other(error.to_string())),
    }
}
