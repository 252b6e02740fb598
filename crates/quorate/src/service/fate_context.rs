//! The outcome of a call, as an application learns it.

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use quorate_protocol::service::{Abort, Fate};

use crate::error::{Error, Name};

use super::{CallId, encoder::decode};

/// Decodes the reply of a call that took effect.
pub(super) fn decode_reply<T: DeserializeOwned>(reply: &[u8]) -> Result<T, Error> {
    decode(reply).map_err(|error| Error::mismatch("the reply", format!("the call took effect, and {error}")))
}

/// The context for the error of a call whose fate is known.
pub(super) struct FateContext<'a> {
    pub(super) name: &'a str,
    /// Whether the replicas were found.
    pub(super) found: bool,
    pub(super) wait: Duration,
    pub(super) addresses: &'a [String],
}

impl FateContext<'_> {
    /// The bytes of the reply.
    pub(super) fn reply(&self, fate: Fate) -> Result<Bytes, Error> {
        match fate {
            Fate::Done(reply) => Ok(reply),
            Fate::Rejected(reason) => Err(Error::rejected(String::from_utf8_lossy(&reason))),
            Fate::Aborted(why) => {
                let why = match why {
                    Abort::Gone => {
                        "its leader was replaced, or it was idle for too long, or a new replica was taken in"
                    }
                    Abort::Deadlock => "it and others would have waited for each other",
                    Abort::TooLarge => "its changes are too many bytes",
                    Abort::Misused => "it was called while a call of it was under way",
                };
                Err(Error::Aborted { why: String::from(why) })
            }
            Fate::Reused => Err(Error::Reused),
            Fate::NotSent => Err(Error::NotSent { why: self.unsent() }),
            Fate::MaybeApplied { id } => {
                let why = format!("no answer within {:?}", self.wait);
                Err(Error::MaybeApplied { id: Some(Name::Call(CallId(id))), why })
            }
            Fate::Expired => {
                Err(Error::Expired { why: String::from("the replicas, or this client, remember it no more") })
            }
        }
    }

    pub(super) fn unsent(&self) -> String {
        let FateContext { name, found, wait, addresses } = self;
        match found {
            true => format!("no replica of `{name}` took it within {wait:?}"),
            false => {
                let at = addresses.join(", ");
                format!("nobody who serves `{name}` was found within {wait:?} at {at}")
            }
        }
    }
}
