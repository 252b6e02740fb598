//! The names of replica sets, sessions, calls and transactions.

use serde::{Deserialize, Serialize};

/// The id of a replica set: random bits, drawn at its founding, so that a set which is founded again has
/// another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// A client's session, named by the instance that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

impl SessionId {
    /// The session of calls with keys of their users' choice. It is always open, and all clients share it.
    pub const KEYED: SessionId = SessionId(0);
}

/// The name of a call. Each repetition has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    /// The session.
    pub session: SessionId,
    /// The client's count of calls. For a call with a key, the hash of the key.
    pub number: u64,
}

/// The name of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId {
    /// The session.
    pub session: SessionId,
    /// The client's count of transactions.
    pub number: u64,
}
