//! Cells: the processes of a domain that keep maps.
//!
//! **Promise.** A [`Process`] is a cell, which keeps keys and coordinates operations on them
//! ([`quorate_protocol::partial`]). The routers of its domain, which also serve tables and groups, order the
//! changes of members, cells and maps. All of a cell runs on one protocol thread. Its clients enter through a
//! [`Front`] on the same thread.
//!
//! ```text
//!   clients ══ byte streams ══▶ Front ── Operate ──▶ cell ═══ links ═══ other cells
//!                                 ◀──── Ended ─────   │
//!                                                     └─ layout ◀── order ═══ routers of the domain
//! ```
//!
//! Each map of another [strategy] than partial quorums has processes of its own in addition to the cell's
//! process. The front sends requests to such a map through a thread for these strategies. The groups and
//! tables that keep such maps belong to the cell's own domain.
//!
//! **Differs from a [`Node`](crate::Node).** Links between cells are not relayed, because data never passes a
//! router. A cell that the others have removed does not come back by itself, because it keeps nothing that a
//! next life could use. So its process ends, and a supervisor starts it again.

mod client;
mod distances;
mod endpoint;
mod observe;
mod process;
mod recent;
mod status;
pub mod strategy;

pub use quorate_protocol::partial::{CellNumber, Stamp};

pub use self::{
    client::{Client, Failure, Level, Reply, Store},
    distances::{Between, Distance, Distances, Stall, Way},
    endpoint::{CellEndpoint, Command, Event},
    process::{Front, Process, Setup},
    recent::{EndedOperation, OperationEnd, OperationKind, Recent, RecentOperation, RecentOperations},
    status::{CellStatus, MapStatus, MemberStatus, Status},
    strategy::Strategies,
};
