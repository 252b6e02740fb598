//! Operations that an operator may order from a process. Processes never decide on these operations
//! themselves.
//!
//! Each operation goes to the role that can do it. It leads to one
//! [`Event::Operated`](super::Event::Operated) when it is done or has failed. An impossible operation is
//! refused at once, in words for the operator.

use serde::{Deserialize, Serialize};

/// An operation on which only an operator decides. A process is named by its id as in a status
/// (`3.1f2e3d4c`). A member may also be named by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminOperation {
    /// Asks a router to make a router of this process, which runs and tries to join. The number of routers
    /// may exceed the wanted number.
    AddRouter {
        /// The node and incarnation of the process.
        process: (u64, u128),
        /// The address of the process.
        address: String,
    },
    /// Asks a router to remove the given router.
    RemoveRouter {
        /// The router.
        process: String,
    },
    /// Asks a router to let the domain continue without a majority of its routers, as the next generation.
    Reform {
        /// Time that members have to report which messages they know, in milliseconds.
        patience_ms: u64,
    },
    /// Asks a router that has just started to let the domain continue from the members alone, as the next
    /// generation, because no other router is left.
    Refound {
        /// Time that members have to report which messages they know, in milliseconds.
        patience_ms: u64,
        /// The latest generation to which any of the members belongs: its number, and the incarnation of the
        /// router that began it.
        before: (u32, u128),
        /// All members except those that are gone for good: node, incarnation and address.
        members: Vec<(u64, u128, String)>,
    },
    /// Informs a super that this unreachable storage process will not return.
    DeclareLost {
        /// The storage process.
        process: String,
    },
    /// Asks a super to let a standby take the place of this storage process.
    Replace {
        /// The storage process.
        process: String,
    },
}
