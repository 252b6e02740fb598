//! The names of writes, as clients see them.
//!
//! Promise: a write that is sent again under its name is done once, and no other write is taken for it. A name that a
//! client was told (40003) carries a print of its statement and parameters, and refuses any other (22023). A client may
//! also make up a name before it sends a write, so that it has one should it lose its connection: 32 hexadecimal digits,
//! a dash and a number. The print is then mixed into the name, so that another statement under it is another write.

use std::{fmt, str::FromStr, sync::Arc};

use quorate_table::value::{Value, key_of};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::Session;
use crate::{
    backend::RequestId,
    cache::Prepared,
    error::{Result, SqlError, code},
};

/// A write's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestName {
    id: RequestId,
    /// Of which statement; `None` in a name that the client made up.
    print: Option<u64>,
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
    /// What it is sent under.
    pub id: RequestId,
    /// What the client knows it by.
    pub name: RequestName,
    /// Whether the client chose the name, so that it may have been used before.
    pub retried: bool,
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
        let text = self.prepared.syntax.as_ref().map_or_else(String::new, |syntax| syntax.to_string());
        let given = self.given.as_ref().map_or(0, |given| given.digest());
        xxh3_64(text.as_bytes()) ^ given.rotate_left(1)
    }
}

impl Session {
    /// The next write's request. A chosen name is used up.
    pub(super) fn request(&mut self) -> Result<Request> {
        let chosen = self.settings.remove("quorate.request_id").and_then(|name| name.parse().ok());
        let Some(name @ RequestName { id, print }) = chosen else { return Ok(self.fresh_request()) };
        let own = self.executing.as_ref().map_or(0, Executing::print);
        let id = match print {
            None => RequestId { session: mixed(id.session, own), number: id.number },
            Some(print) if print != own => {
                return Err(refused(name, "the request id is that of another statement")
                    .hint("Send the statement that failed, with the same parameters, or set no id."));
            }
            Some(_) if !self.backend.may_have_given(id) => {
                return Err(refused(name, "the request id was not given out yet"));
            }
            Some(_) => id,
        };
        Ok(Request { id, name, retried: true })
    }

    /// A request under a new name.
    pub(super) fn fresh_request(&self) -> Request {
        let id = self.backend.request_id();
        Request { id, name: RequestName { id, print: None }, retried: false }
    }

    /// A request with the name that it can be sent again under.
    pub(super) fn name_of(&self, request: Request) -> RequestName {
        match (&self.executing, request.retried) {
            (Some(executing), false) => RequestName { print: Some(executing.print()), ..request.name },
            _ => request.name,
        }
    }
}

fn refused(name: RequestName, why: &str) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER_VALUE, why).detail(format!("Nothing was sent. Request id: {name}."))
}

/// A made-up session, told apart by what it is used for.
fn mixed(session: u128, print: u64) -> u128 {
    session ^ (u128::from(print) << 64 | u128::from(print.rotate_left(32)))
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", self.id.session, self.id.number)?;
        self.print.map_or(Ok(()), |print| write!(f, "-{print:016x}"))
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
        Ok(RequestName {
            id,
            print: print.map(|print| hex(print, 16)).transpose()?.map(|print| print as u64),
        })
    }
}
