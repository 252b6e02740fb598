//! Who is who.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A domain: one set of routers and everything it orders. Drawn at random when the domain is founded and carried in
/// every hello, so that processes of two clusters never mistake each other (rule S1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainId(pub u128);

/// Which life of a domain: the first as founded, another whenever an operator has it go on without a majority of its
/// routers (rule S1, [`ecast`](crate::ecast::Reformed)).
///
/// Two survivors that cannot see each other may both be told to go on, and count alike. So a generation is also named
/// after its survivor, and no two are the same. In order by number; between two of one number the order only serves to
/// choose the same one everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Generation {
    /// How many its survivor had known before it.
    pub number: u32,
    /// Which life of the router that it began with, a survivor or, where none was left, a fresh one; of the first, 0.
    pub survivor: Incarnation,
}

/// 128 random bits drawn when a process starts. Compared for equality only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

/// A process. One that restarts without its memory is a *new* process: same node, other incarnation. Promises made by
/// the old one are gone, and nobody counts the new one for them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// The place in the cluster: stable over restarts, chosen by configuration.
    pub node: u64,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// A process and where it listens (`host:port`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    /// Who.
    pub id: ProcessId,
    /// Where, as `host:port`; opaque to protocols.
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
    /// An id that an application made up, by a digest of what the application calls it.
    pub fn made_up(digest: u128) -> RequestId {
        RequestId { session: MADE_UP | digest >> 64, number: digest as u64 }
    }

    /// Whether an application made it up; else a gateway gave it out.
    pub fn is_made_up(self) -> bool {
        self.session >> 64 == MADE_UP >> 64
    }
}

impl Generation {
    /// As the domain was founded.
    pub const FIRST: Generation = Generation { number: 0, survivor: Incarnation(0) };

    /// The one that `survivor` begins.
    pub fn next(self, survivor: ProcessId) -> Generation {
        let number = self.number.checked_add(1).expect("operators do not begin 2^32 generations");
        Generation { number, survivor: survivor.incarnation }
    }

    /// Whether it may go on from `other`: it is another, and not one that began beside it.
    pub fn is_later(self, other: Generation) -> bool {
        self.number > other.number
    }

    /// Whether two survivors began them without knowing of each other: two domains by now, of which neither goes on
    /// from the other.
    pub fn is_beside(self, other: Generation) -> bool {
        self.number == other.number && self != other
    }
}

/// The upper half of the session of every made-up id. A gateway's session is random; none has it.
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
        // Eight digits tell lives of one node apart in a log line; equality always uses all of them.
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
