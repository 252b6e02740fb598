//! Who is taken into a domain, and who is told why not.
//!
//! Two things keep a process out. Its *node* may be in use: another process with the same number is a member, or a router, and
//! nobody suspects it. A process that was started again waits until its former life has been removed, which takes no longer than
//! noticing that its link broke; one that was started beside a living process ends. And its *terms* may differ: how many routers
//! and storage processes the domain keeps, and how many replicas a row has, is decided by the configuration that founded it.

use serde::{Deserialize, Serialize};

use crate::id::Peer;

/// What the founder decided for the whole domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// How many replicas each range has, the ring permitting.
    pub replicas: u8,
    /// How many storage processes the ring is founded with.
    pub wanted_storage: u32,
    /// How many routers the domain keeps.
    pub wanted_routers: u32,
}

impl Default for Terms {
    fn default() -> Self {
        Terms { replicas: 3, wanted_storage: 4, wanted_routers: 3 }
    }
}

/// Why a process is not taken in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotAdmitted {
    /// Another process of its node belongs to the domain.
    NodeInUse(Peer),
    /// The domain was founded with other terms.
    Terms(Terms),
}
