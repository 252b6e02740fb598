//! Admission: the conditions under which a process joins a domain, and the reasons for a refusal.
//!
//! Two facts keep a process out. First, its *node* may be in use: another process with the same number is a
//! member, or a router, and nobody suspects it. A restarted process waits until its former life has been
//! removed, which takes no longer than noticing that its link broke. If the other process still lives, the
//! process that was started later ends. Second, its *terms* may differ: the configuration that founded the
//! domain decides the numbers of routers, of storage processes, and of replicas of each row.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::Peer;

/// The founder's decisions for the whole domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Number of replicas of each range, if the ring is large enough.
    pub replicas: u8,
    /// Number of storage processes with which the ring is founded.
    pub wanted_storage: u32,
    /// Number of routers that the domain keeps.
    pub wanted_routers: u32,
}

impl Default for Terms {
    fn default() -> Self {
        Terms { replicas: 3, wanted_storage: 4, wanted_routers: 3 }
    }
}

/// The reason why a process is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum NotAdmitted {
    /// Another process with the same node number belongs to the domain. The value names that process.
    #[error("another process with the same node number, {} at {}, belongs to the domain", .0.id, .0.address)]
    NodeInUse(Peer),
    /// The domain was founded with other terms.
    #[error("the domain was founded with the settings {0:?}, and this process has others")]
    Terms(Terms),
    /// The domain was founded by a build whose domains do not have the part to which the process belongs.
    #[error(
        "the domain was founded by an earlier build of quorate, whose domains have no maps: found a new cluster for cells"
    )]
    NoPart,
}
