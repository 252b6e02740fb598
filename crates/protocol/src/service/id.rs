//! The names of replica sets, sessions, calls and transactions.

use serde::{Deserialize, Serialize};

use crate::wire::Wire;

/// The id of a replica set: random bits, drawn at its founding. A set that is founded a second time under the
/// same name gets a different id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Wire)]
pub struct GroupId(pub u64);

/// A client's session, named by the instance that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Wire)]
pub struct SessionId(pub u64);

impl SessionId {
    /// The session of calls with keys that users choose. It is always open, and all clients share it.
    pub const KEYED: SessionId = SessionId(0);
}

/// The name of a call. All attempts of the call have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Wire)]
pub struct CallId {
    /// The session.
    pub session: SessionId,
    /// The call's number, counted by the client. For a call with a key, the hash of the key.
    pub number: u64,
}

/// The name of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId {
    /// The session.
    pub session: SessionId,
    /// The transaction's number, counted by the client.
    pub number: u64,
}
