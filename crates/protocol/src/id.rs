//! Identities: domains, generations, processes, requests.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A domain: one set of routers and everything it orders. The id is drawn at random at the founding. Every
/// hello carries it, so that processes of two clusters never mistake each other (rule S1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainId(pub u128);

/// A life of a domain: the first begins with its founding, another whenever an operator continues it without
/// a majority of its routers (rule S1, [`ecast`](crate::ecast::Reformed)).
///
/// Two survivors that cannot see each other may both be ordered to continue, and reach the same number. So a
/// generation also carries the name of its survivor, and no two are the same. They are ordered by number.
/// Between two of one number, the order only serves to choose the same one everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Generation {
    /// Number of generations before it that its survivor knew.
    pub number: u32,
    /// The incarnation of the router with which it began, a survivor or, if none was left, a fresh one; 0 for
    /// the first.
    pub survivor: Incarnation,
}

/// 128 random bits drawn when a process starts. Compared for equality only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

/// A process. A process that restarts without its memory is a *new* process: same node, other incarnation.
/// The old one's promises are gone, and nobody counts the new one for them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// The place in the cluster: stable over restarts, chosen by configuration.
    pub node: u64,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
}

/// A process and the address at which it listens (`host:port`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    /// The process.
    pub id: ProcessId,
    /// The address, as `host:port`; opaque to protocols.
    pub address: String,
}

/// The name of a write: repeated with the same id, it takes effect once (S6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId {
    /// The session: a gateway's incarnation.
    pub session: u128,
    /// The session's count.
    pub number: u64,
}

impl RequestId {
    /// Makes the id of an application's own name, from a digest of that name.
    pub fn made_up(digest: u128) -> RequestId {
        RequestId { session: MADE_UP | digest >> 64, number: digest as u64 }
    }

    /// Whether an application made it up, instead of a gateway.
    pub fn is_made_up(self) -> bool {
        self.session >> 64 == MADE_UP >> 64
    }
}

impl Generation {
    /// The generation in which the domain was founded.
    pub const FIRST: Generation = Generation { number: 0, survivor: Incarnation(0) };

    /// Returns the generation that `survivor` begins.
    pub fn next(self, survivor: ProcessId) -> Generation {
        let number = self.number.checked_add(1).expect("operators do not begin 2^32 generations");
        Generation { number, survivor: survivor.incarnation }
    }

    /// Whether the generation may continue `other`: it is another one, and does not have the same number.
    pub fn is_later(self, other: Generation) -> bool {
        self.number > other.number
    }

    /// Whether two survivors began them without knowing of each other. They are two domains by now, neither
    /// of which continues the other.
    pub fn is_beside(self, other: Generation) -> bool {
        self.number == other.number && self != other
    }
}

/// The upper half of the session of every made-up id. A gateway's session is random, and does not have it.
pub(crate) const MADE_UP: u128 = 0x6d61_6465_2075_7020 << 64;

impl fmt::Debug for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}.{:?}", self.number, self.survivor)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.number, f)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Eight digits distinguish lives of one node in a log line; equality always uses all of them.
        write!(f, "{:08x}", self.0 >> 96)
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:?}", self.node, self.incarnation)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
