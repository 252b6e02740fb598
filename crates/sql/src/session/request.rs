//! The names of writes, as clients see them.
//!
//! **Promise.** A write that is sent again under its name is done once, and no other write is taken for it. A
//! name in an error 40003 carries a print of the statement and its parameters, and refuses any other
//! statement (22023). A client may also make up a name before it sends a write, in case it loses its
//! connection: 32 hexadecimal digits, a dash and a number. A made-up name belongs to the statement that first
//! uses it, on any gateway.
//!
//! A name that a client has chosen stays chosen until the outcome of its write is known. So a driver's
//! automatic retry repeats the same write, and does not become a second write under a new name.
//!
//! **Blocks.** A block has one name. Its print covers all its writes with their parameters, in order. A
//! repetition of a block whose COMMIT was applied is not applied again: its COMMIT is answered from memory.
//! Its statements are tried as those of any other block, so they see the effects of the first COMMIT.
//!
//! The ranges remember the print and compare it themselves. The print that they get is mixed with a random
//! number, the nonce, which only the name contains. So another client that knows the statement and guesses
//! the id cannot learn what the write returned.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use super::{Session, in_flight::CurrentStatement, setting::REQUEST_ID};
use crate::{
    backend::{ClientError, OperationError, RequestId, WriteName},
    error::{Result, SqlError, code},
    name::{RequestName, StatementFingerprint},
};

pub use super::in_flight::WriteRequest;

impl Session {
    /// Returns the names of the current statement's write.
    pub(super) fn request(&self) -> Result<WriteRequest> {
        self.request_of(self.current_statement.as_ref().map_or(0, CurrentStatement::print))
    }

    /// Returns the names of the next write or transaction, whose print is `own`. A name that the client chose
    /// stays until [`Session::conclude_request`].
    pub(super) fn request_of(&self, own: u64) -> Result<WriteRequest> {
        let chosen = self.settings.get(REQUEST_ID).and_then(|name| name.parse().ok());
        let Some(name @ RequestName { id, print }) = chosen else {
            let (id, nonce) = (self.backend.request_id(), rand::random());
            let name = RequestName { id, print: Some(StatementFingerprint { nonce, statement: own as u32 }) };
            return Ok(WriteRequest {
                sent: WriteName { request: id, print: salted_fingerprint(own, nonce), repeated: false },
                name,
            });
        };
        let (id, nonce) = match print {
            None => (self.backend.made_up(digest(id)), 0),
            Some(print) if print.statement != own as u32 => {
                return Err(refused(name, "the request id belongs to another statement").hint(
                    "Send the statement that failed, with the same parameters, or RESET quorate.request_id.",
                ));
            }
            Some(_) if !self.backend.may_have_issued(id) => {
                return Err(refused(name, "no gateway has issued the request id yet"));
            }
            Some(print) => (id, print.nonce),
        };
        Ok(WriteRequest {
            sent: WriteName { request: id, print: salted_fingerprint(own, nonce), repeated: true },
            name,
        })
    }
}

impl Session {
    /// Concludes an answered write. If the answer settles the outcome, a name that the client chose is
    /// removed; otherwise the next write uses it, too.
    pub(super) fn conclude_request<T>(&mut self, answered: &std::result::Result<T, OperationError>) {
        if is_definite(answered) {
            self.settings.remove(REQUEST_ID);
        }
    }
}

/// Whether an answer settles the outcome of a write.
pub(super) fn is_definite<T>(answered: &std::result::Result<T, OperationError>) -> bool {
    match answered {
        Ok(_) | Err(OperationError::Failed(_)) => true,
        Err(OperationError::Unanswered { error, .. }) => matches!(error, ClientError::Forgotten { .. }),
    }
}

/// Returns the print that the ranges compare.
fn salted_fingerprint(print: u64, nonce: u32) -> u64 {
    xxh3_64_with_seed(&print.to_le_bytes(), u64::from(nonce))
}

fn refused(name: RequestName, why: &str) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER_VALUE, why).detail(format!("Nothing was sent. Request id: {name}."))
}

/// Returns the digest by which the cluster knows a made-up name.
fn digest(id: RequestId) -> u128 {
    let mut name = [0; 24];
    name[..16].copy_from_slice(&id.session.to_le_bytes());
    name[16..].copy_from_slice(&id.number.to_le_bytes());
    xxh3_128(&name)
}
