//! Identities: domains, generations, processes, requests.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A domain: one set of routers and everything it orders. The id is drawn at random at the founding. Every
/// hello carries it, so that processes of two clusters never mistake each other (rule S1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainId(pub u128);

/// A life of a domain. The first life begins with the founding. A new life begins whenever an operator
/// continues the domain without a majority of its routers (rule S1, [`ecast`](crate::ecast::Reformed)).
///
/// An operator may order two survivors that cannot see each other to continue, and both then begin a
/// generation of the same number. So a generation also carries the name of its survivor, and no two
/// generations are the same. Generations are ordered by number. The order of two generations with one number
/// only serves to choose the same one everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Generation {
    /// Number of earlier generations that the survivor knew.
    pub number: u32,
    /// The incarnation of the router with which the generation began: a survivor or, if no router was left, a
    /// fresh router. 0 for the first generation.
    pub survivor: Incarnation,
}

/// 128 random bits drawn when a process starts. Compared for equality only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

/// A process. A process that restarts without its memory is a *new* process: same node, other incarnation.
/// The promises of the old process end with it: they do not bind the new process, and nobody counts them as
/// its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Number of the process's place in the cluster. The configuration chooses it, and it is the same after a
    /// restart.
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

/// The name of a write. A write that is sent several times with one id takes effect once (S6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId {
    /// The session: a gateway's incarnation.
    pub session: u128,
    /// Number of the write within its session.
    pub number: u64,
}

impl RequestId {
    /// Makes the id of an application's own name, from a digest of that name.
    pub fn made_up(digest: u128) -> RequestId {
        RequestId { session: MADE_UP | digest >> 64, number: digest as u64 }
    }

    /// Whether an application, and not a gateway, chose this id.
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

    /// Whether this generation may continue `other`, because it has a higher number.
    pub fn is_later(self, other: Generation) -> bool {
        self.number > other.number
    }

    /// Whether two survivors began the two generations without knowing of each other. Two such generations
    /// are separate domains: neither continues the other.
    pub fn is_beside(self, other: Generation) -> bool {
        self.number == other.number && self != other
    }
}

/// The upper half of the session of every made-up id. A gateway's session is random, so its upper half
/// differs.
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
        // The first eight digits distinguish the lives of one node in a log line; equality always uses all
        // digits.
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
