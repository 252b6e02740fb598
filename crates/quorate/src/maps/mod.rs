//! Processes of a domain of maps: its routers and its cells.
//!
//! **Promise.** A [`Process`] is a router, which orders changes of members, cells and maps, or a cell, which
//! keeps keys and coordinates operations on them ([`quorate_protocol::partial`]). All of it runs on one
//! protocol thread. A cell's clients enter through a [`Front`] on the same thread.
//!
//! ```text
//!   clients ══ byte streams ══▶ Front ── Operate ──▶ cell ═══ links ═══ other cells
//!                                 ◀──── Ended ─────   │
//!                                                     └─ layout ◀── order ═══ routers
//! ```
//!
//! Maps of another [strategy] than partial quorums have processes of their own in addition to the cell's. The
//! front asks them through a thread of theirs.
//!
//! **Differs from a [`Node`](crate::Node).** A domain of maps has its own routers. Links are not relayed: the
//! relays would be routers, and data never passes one. A cell that cannot reach another cell asks the next
//! one, as if that were dead. A process that is out does not come back by itself: it keeps nothing that the
//! next life could use. So it ends, and its supervisor starts it again.

mod client;
mod distances;
mod kind;
mod observe;
mod process;
mod recent;
mod status;
pub mod strategy;

pub use quorate_protocol::partial::{CellNumber, Stamp};

pub use self::{
    client::{Client, Failure, Level, Reply, Store},
    distances::{Between, Distance, Distances, Stall, Way},
    kind::{Command, Event, Kind},
    process::{Front, Process, Setup, Task},
    recent::{EndedOperation, OperationEnd, OperationKind, Recent, RecentOperation, RecentOperations},
    status::{CellStatus, MapStatus, MemberStatus, Status},
    strategy::Strategies,
};
