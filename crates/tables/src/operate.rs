//! Operations that an operator may ask of a process. Processes do not decide these themselves.
//!
//! Each operation goes to the role that can do it. It leads to one
//! [`Event::Operated`](crate::Event::Operated) when it is done or has failed. An impossible operation is
//! refused at once, in words for the operator.

use serde::{Deserialize, Serialize};

/// An operation that only an operator decides. A process is named as in a status (`3.1f2e3d4c`), a member
/// also by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminOperation {
    /// Asks a router to make this process, which runs and joins, a router. The number of routers may exceed
    /// the wanted one.
    AddRouter {
        /// The node and incarnation of the process.
        process: (u64, u128),
        /// The address of the process.
        address: String,
    },
    /// Asks a router to remove this router.
    RemoveRouter {
        /// The router.
        process: String,
    },
    /// Asks a router to go on without a majority, as the next generation.
    Reform {
        /// Time for members to report what they have, in milliseconds.
        patience_ms: u64,
    },
    /// Asks a router that has just started, when no other router is left, to go on from the members, as the
    /// next generation.
    Refound {
        /// Time for members to report what they have, in milliseconds.
        patience_ms: u64,
        /// The latest generation of any of the members: its number, and the incarnation of the router that
        /// began it.
        before: (u32, u128),
        /// All members that are not gone for good: node, incarnation and address.
        members: Vec<(u64, u128, String)>,
    },
    /// Tells a super that this unreachable storage process will not return.
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
