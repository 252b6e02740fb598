//! The Redis door: maps of partial quorums over the Redis protocol, on the protocol thread of a cell.
//!
//! **Promise.** A client's answers come in the order of its requests, one for each. Requests of one client on one key take effect in
//! their order, pipelined or not. Every answer is a value, or an error whose first word says what may have happened. What a map
//! cannot do honestly is refused by name.
//!
//! **Source.** The Redis serialization protocol, versions 2 and 3. Requests are flat arrays of strings; [`parse`] takes nothing else.
//!
//! **Levels.** A connection begins in the map and at the level that its [`Settings`] say. `QUORATE LEVEL read [write]` sets the levels for
//! all that follows, and with `NEXT` behind it for the next command alone; `QUORATE MAP name` chooses the map. `QUORATE P` has chance
//! choose between two levels, and `QUORATE DELAY` makes operations longer (`dial`).
//!
//! **Strategies.** A map may be kept otherwise than by partial quorums ([`quorate::maps::strategy`]). Levels, delays and the dial say nothing
//! of it. Its commands are one request each (`strategies`).
//!
//! **Roles.** [`Front`] keeps what is known of each client. It is handed bytes, and hands operations to the cell of its own
//! process, which coordinates them. Nothing here waits, and no other thread takes part.
//!
//! ```text
//!   bytes ──▶ parse ──▶ command ──▶ operations ──▶ cell
//!   answer ◀── reply ◀── shape ◀─── outcomes ◀─────┘
//! ```
//!
//! **Attacks considered.**
//!
//! - *Huge counts, nested arrays, half frames.* Lengths are judged before anything is kept for them; a nested array is refused at its
//!   first byte; what is unfinished is bounded in bytes and in time ([`door`](quorate_runtime::door)).
//! - *A pipeline without end.* So many requests of a client are under way, and the rest waits unread.
//! - *A client that reads nothing.* Nothing more is taken from it, and in the end it is cut off.
//! - *A read behind a write of the same key, in one pipeline.* It waits until the write has ended: else, at levels that do not
//!   meet, or while the write still asks for the newest stamp, it could be answered without it.
//! - *A client that goes while its operations run.* They go on; nobody is told how they end.
//! - *A restart of the process in the middle of requests.* Clients are handed over between two of them, to the program that follows (`carry`).

mod carry;
mod command;
mod connection;
mod dial;
mod figures;
mod front;
pub mod parse;
mod reply;
mod scan;
mod strategies;

pub use self::{
    carry::{Carried, Handed, Latch},
    dial::level,
    front::{Front, Settings},
    reply::{Reply, Version},
};
