//! Turns the fate of a call into the reply or the error that the application gets.

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use quorate_protocol::service::{Abort, Fate};

use crate::error::{Error, Name};

use super::{CallId, encoder::decode};

/// Decodes the reply of a call that took effect.
pub(super) fn decode_reply<T: DeserializeOwned>(reply: &[u8]) -> Result<T, Error> {
    decode(reply).map_err(|error| {
        Error::mismatch(
            "the reply",
            format!("the call took effect, and the reply cannot be decoded: {error}"),
        )
    })
}

/// The context for the error of a call whose fate is known.
pub(super) struct FateContext<'a> {
    pub(super) name: &'a str,
    /// Whether the client found the replicas.
    pub(super) found: bool,
    pub(super) wait: Duration,
    pub(super) addresses: &'a [String],
}

impl FateContext<'_> {
    /// Returns the encoded reply, or the error that describes the fate of the call.
    pub(super) fn reply(&self, fate: Fate) -> Result<Bytes, Error> {
        match fate {
            Fate::Done(reply) => Ok(reply),
            Fate::Rejected(reason) => Err(Error::rejected(String::from_utf8_lossy(&reason))),
            Fate::Aborted(why) => {
                let why = match why {
                    Abort::Gone => {
                        "the leader was replaced, a new replica was added, or the transaction was idle for \
                         too long"
                    }
                    Abort::Deadlock => "the transaction and others would have waited for each other",
                    Abort::TooLarge => "the changes of the transaction have too many bytes",
                    Abort::Misused => "a call was made while another call of the transaction was under way",
                };
                Err(Error::Aborted { why: String::from(why) })
            }
            Fate::Reused => Err(Error::Reused),
            Fate::NotSent => Err(Error::NotSent { why: self.unsent() }),
            Fate::MaybeApplied { id } => {
                let why = format!("no replica of the service answered within {:?}", self.wait);
                Err(Error::MaybeApplied { id: Some(Name::Call(CallId(id))), why })
            }
            Fate::Expired => Err(Error::Expired {
                why: String::from("the replicas, or this client, no longer remember the request"),
            }),
        }
    }

    pub(super) fn unsent(&self) -> String {
        let FateContext { name, found, wait, addresses } = self;
        match found {
            true => format!("no replica of the service `{name}` took the request within {wait:?}"),
            false => {
                let at = addresses.join(", ");
                format!("no process that serves `{name}` was found within {wait:?} at {at}")
            }
        }
    }
}
