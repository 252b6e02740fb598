//! The names of writes, as clients see them.
//!
//! Promise: a write that is sent again under its name is done once, and no other write is taken for it. A name that a
//! client was told (40003) carries a print of its statement and parameters, and refuses any other (22023). A client may
//! also make up a name before it sends a write, so that it has one should it lose its connection: 32 hexadecimal digits,
//! a dash and a number. Such a name goes with the statement that it is first used for, whichever gateway sends that.
//!
//! A name that a client has chosen stays chosen until the outcome of its write is known: whatever a driver's retries
//! send is the same write, not another one under a fresh name.
//!
//! The ranges remember the print and compare it themselves. What they are sent is mixed with a number drawn for the write
//! alone, the nonce, which only its name tells: nobody else, who knows the statement and guesses the id, is told what it
//! returned.

use std::{fmt, str::FromStr, sync::Arc};

use quorate_table::value::{Value, key_of};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed, xxh3_128};

use super::Session;
use crate::{
    backend::{ClientError, Fault, RequestId, WriteName},
    cache::Prepared,
    error::{Result, SqlError, code},
};

/// A write's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestName {
    id: RequestId,
    /// Of which write; `None` in a name that the client made up.
    print: Option<Print>,
}

/// What tells a write from another under the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    /// Drawn for the write.
    nonce: u32,
    /// The lower half of its statement's print.
    statement: u32,
}

/// The statement that is being executed, as far as its print needs it.
pub(super) struct Executing {
    prepared: Arc<Prepared>,
    /// Hashes the parameters' values, and the data of a COPY; `None` if there is neither.
    given: Option<Box<Xxh3>>,
}

/// What is under way, and its outcome not told.
#[derive(Clone, Copy, Debug)]
pub(super) enum InFlight {
    Write(Request),
    /// Of a table, which has no name to be sent again under.
    Definition,
}

/// A write about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What it is sent under. It is a repetition if the client chose the id.
    pub sent: WriteName,
    /// What the client knows it by.
    pub name: RequestName,
}

impl Executing {
    pub(super) fn new(prepared: &Arc<Prepared>, values: &[Value]) -> Executing {
        let mut executing = Executing { prepared: prepared.clone(), given: None };
        if !values.is_empty() {
            executing.give(&key_of(values));
        }
        executing
    }

    /// Takes note of more that the statement is given.
    pub(super) fn give(&mut self, data: &[u8]) {
        self.given.get_or_insert_default().update(data);
    }

    fn print(&self) -> u64 {
        let given = self.given.as_ref().map_or(0, |given| given.digest());
        self.prepared.print() ^ given.rotate_left(1)
    }
}

impl Session {
    /// The next write's request. A chosen name stays until [`Session::settled`].
    pub(super) fn request(&self) -> Result<Request> {
        let own = self.executing.as_ref().map_or(0, Executing::print);
        let chosen = self.settings.get("quorate.request_id").and_then(|name| name.parse().ok());
        let Some(name @ RequestName { id, print }) = chosen else {
            let (id, nonce) = (self.backend.request_id(), rand::random());
            let name = RequestName { id, print: Some(Print { nonce, statement: own as u32 }) };
            return Ok(Request {
                sent: WriteName { request: id, print: salted(own, nonce), repeated: false },
                name,
            });
        };
        let (id, nonce) = match print {
            None => (self.backend.made_up(digest(id)), 0),
            Some(print) if print.statement != own as u32 => {
                return Err(refused(name, "the request id is that of another statement").hint(
                    "Send the statement that failed, with the same parameters, or RESET quorate.request_id.",
                ));
            }
            Some(_) if !self.backend.may_have_given(id) => {
                return Err(refused(name, "the request id was not given out yet"));
            }
            Some(print) => (id, print.nonce),
        };
        Ok(Request { sent: WriteName { request: id, print: salted(own, nonce), repeated: true }, name })
    }
}

impl Session {
    /// A write was answered. If that says what became of it, its name is used up; if not, it is the next write's as well.
    pub(super) fn settled<T>(&mut self, answered: &std::result::Result<T, Fault>) {
        let definite = match answered {
            Ok(_) | Err(Fault::Failed(_)) => true,
            Err(Fault::Unanswered { error, .. }) => matches!(error, ClientError::Forgotten { .. }),
        };
        if definite {
            self.settings.remove("quorate.request_id");
        }
    }
}

/// What the ranges compare.
fn salted(print: u64, nonce: u32) -> u64 {
    xxh3_64_with_seed(&print.to_le_bytes(), u64::from(nonce))
}

fn refused(name: RequestName, why: &str) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER_VALUE, why).detail(format!("Nothing was sent. Request id: {name}."))
}

/// What a made-up name is known by in the cluster.
fn digest(id: RequestId) -> u128 {
    let mut name = [0; 24];
    name[..16].copy_from_slice(&id.session.to_le_bytes());
    name[16..].copy_from_slice(&id.number.to_le_bytes());
    xxh3_128(&name)
}

impl RequestName {
    /// A name that the application makes up, before it sends a write. No other write has it.
    pub fn made_up() -> RequestName {
        RequestName { id: RequestId { session: rand::random(), number: 1 }, print: None }
    }

    /// The id in it.
    pub fn id(self) -> RequestId {
        self.id
    }
}

impl From<u128> for Print {
    fn from(digits: u128) -> Print {
        Print { nonce: (digits >> 32) as u32, statement: digits as u32 }
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", self.id.session, self.id.number)?;
        self.print.map_or(Ok(()), |print| write!(f, "-{:08x}{:08x}", print.nonce, print.statement))
    }
}

impl FromStr for RequestName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let malformed =
            || format!("\"{text}\" is not a request id: 32 hexadecimal digits, a dash and a number");
        let hex = |digits: &str, most: usize| {
            let fits = (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            if fits { u128::from_str_radix(digits, 16).map_err(|_| malformed()) } else { Err(malformed()) }
        };
        let mut parts = text.split('-');
        let (Some(session), Some(number), print, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed());
        };
        let id = RequestId { session: hex(session, 32)?, number: number.parse().map_err(|_| malformed())? };
        Ok(RequestName { id, print: print.map(|print| hex(print, 16)).transpose()?.map(Print::from) })
    }
}
