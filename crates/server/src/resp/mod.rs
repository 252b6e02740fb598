//! The Redis door: maps of partial quorums over the Redis protocol, on the protocol thread of a cell.
//!
//! **Promise.** A client gets one answer for each request, in the order of its requests. Requests of one
//! client on one key take effect in their order, pipelined or not. Every answer is a value, or an error whose
//! first word says what may have happened. A command that a map cannot carry out faithfully is refused by
//! name.
//!
//! **Source.** The Redis serialization protocol, versions 2 and 3. [`parse`] accepts only flat arrays of
//! strings and single lines as requests.
//!
//! **Levels.** A connection begins with the map and the level of its [`Settings`]. `QUORATE LEVEL read
//! [write]` sets the levels of all later commands, or with `NEXT` at the end only the levels of the next
//! command. `QUORATE MAP name` chooses the map. `QUORATE P` lets chance choose between two levels, and
//! `QUORATE DELAY` makes operations take longer (`dial`).
//!
//! **Strategies.** A map may have a strategy other than partial quorums ([`quorate::maps::strategy`]).
//! Levels, delays and the dial do not apply to such a map. Each command on it is one request, and
//! `reply_form` makes the answer.
//!
//! **Roles.** [`RedisClients`] keeps the state of each client. It receives bytes, and passes operations to
//! the cell of its own process, which coordinates them. Nothing here waits, and everything runs on the
//! protocol thread.
//!
//! ```text
//!   bytes ──▶ parse ──▶ command ──▶ command_plan ──▶ operations ──▶ cell
//!   answer ◀── reply ◀───────────── command_plan ◀─── outcomes ◀─────┘
//! ```
//!
//! **Attacks considered.**
//!
//! - *Huge counts, nested arrays, unfinished frames.* Lengths are checked before memory is taken for them. A
//!   nested array is refused at its first byte. An unfinished request is bounded in bytes and in time
//!   ([`door`](quorate_runtime::door)).
//! - *A pipeline without end.* A bounded number of a client's requests is under way, and the rest waits
//!   unread.
//! - *A client that reads nothing.* The door takes no more requests from it, and in the end cuts it off.
//! - *A short request with a huge answer.* Answers are counted as their values come, for each request, for
//!   each client and for all of them. The door refuses an answer that is too large by name, before it has
//!   gathered the values ([`HeldLimits`]).
//! - *A browser that a web page makes send HTTP here.* The connection is cut at the first line.
//! - *A pipeline after a refused opening,* such as `MULTI`. The commands that it would have enclosed are
//!   refused too (`connection`).
//! - *A read after a write of the same key, in one pipeline.* The read waits until the write has ended.
//!   Otherwise it could miss the write, at levels that do not overlap, or while the write still asks for the
//!   newest stamp.
//! - *A client that leaves while its operations run.* They continue, and nobody gets their outcomes.
//! - *A restart of the process in the middle of requests.* Clients are handed over to the successor between
//!   two requests (`handover`).

mod arguments;
mod command;
mod command_plan;
mod connection;
mod counters;
mod dial;
mod expiry;
mod gate;
mod handover;
pub mod parse;
mod read_form;
mod redis_clients;
mod refusal;
mod reply;
mod reply_form;
mod scan;

pub use self::{
    dial::level,
    gate::{ClientState, HandedClient, HandoverHandle},
    redis_clients::{HeldLimits, RedisClients, Settings},
    reply::{Reply, Version},
};
