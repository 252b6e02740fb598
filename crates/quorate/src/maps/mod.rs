//! Processes of a domain of maps: its routers and its cells.
//!
//! **Promise.** A [`Process`] is a router that orders changes of members, cells and maps, or a cell that keeps keys and coordinates
//! operations on them ([`quorate_protocol::partial`]). All of it runs on one protocol thread; a cell's clients come in by a
//! [`Front`] on the same thread.
//!
//! ```text
//!   clients ══ byte streams ══▶ Front ── Operate ──▶ cell ═══ links ═══ other cells
//!                                 ◀──── Ended ─────   │
//!                                                     └─ layout ◀── order ═══ routers
//! ```
//!
//! Maps of another [strategy] than partial quorums are kept by processes of their own beside the cell's; its front asks them by way of a thread of
//! theirs.
//!
//! **Differs from a [`Node`](crate::Node).** A domain of maps has routers of its own. Links are not relayed: the relays would be routers,
//! and data never passes one; a cell that cannot reach another asks the next, as when it is dead. A process that is out does not
//! come back by itself: it keeps nothing that the next life could use, so it ends, and whoever supervises it starts it again.

mod client;
mod distances;
mod kind;
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
    recent::{Deed, Ended, Ending, Lately, Recent, Told},
    status::{CellStatus, MapStatus, MemberStatus, Status},
    strategy::Strategies,
};
