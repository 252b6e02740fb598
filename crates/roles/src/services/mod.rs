//! The replica of a service at its host: carries out the orders of the protocol on the user's object.
//!
//! A replica ([`quorate_protocol::service::Replica`]) gives orders: execute, commit, abort, revert, apply,
//! take a checkpoint. An [`Executor`] carries the orders out on an [`Object`], which is the user's code and
//! state. The executor records which changes are not chosen, and to which work and transaction each change
//! belongs. It also records how many changes the state holds, and which checkpoints and copies are on their
//! way. The object only executes, applies and reverts.
//!
//! ```text
//!   replica ── Execute, Chosen, Commit, Abort, Revert, Apply, Checkpoint … ──▶ Executor ──▶ Object
//!           ◀── Executed, CheckpointPart, Rests ────────────────────────────── (undo list)
//! ```
//!
//! The driver of an executor passes the object with each order. The driver is a thread of the host, or the
//! turn of the replica's endpoint ([`Inline`]). If a service completes its requests in any order, [`Tasks`]
//! stands in front of the executor.
//!
//! The replica itself lives in a [`ServiceEndpoint`]. An endpoint is at first a seeker of its [`Set`], then a
//! replica or a client, and at the former place of a replica a redirect. The host supplies the parts of an
//! endpoint that cannot be pure ([`EndpointHost`]).
//!
//! **Invariants.**
//!
//! - *The state is the chosen changes, followed by the changes in the undo list*, oldest first.
//! - *A change leaves the undo list once*: it is chosen, or reverted.
//! - *Only chosen changes leave the replica*: the undo list is empty whenever the object applies a change,
//!   restores a state or gives a checkpoint. A copy waits until the changes in it are chosen.
//! - *An unknown state is not used*: an object that failed in the middle of a change ends its replica
//!   ([`Broken`]).
//!
//! **Bytes.** A state on its way to another replica consists of the object's clock, the number of changes,
//! and the object's bytes. A change begins with the clock, too. A clock whose bits are all ones marks a state
//! that is still being restored ([`StatePart`]).

mod copy;
pub mod endpoint;
mod endpoint_host;
mod executor;
mod inline;
mod object;
mod restoring;
mod results;
mod set;
mod state_bytes;
mod tasks;
mod turn;
mod undo;

pub use copy::Exported;
pub use endpoint::ServiceEndpoint;
pub use endpoint_host::{EndpointHost, InlineExecutor, ResultLatch, Successor};
pub use executor::{Broken, Executor, Work};
pub use inline::Inline;
pub use object::{Execution, ITEM_BYTES_MAX, Object, Refused};
pub use restoring::{Restoring, StatePart};
pub use results::{RESULT_BATCH_BYTES, ResultBatch, result_bytes};
pub use set::{ReplicaOptions, Set, SetRecord, Terms};
pub use state_bytes::{join_state, split_clock, split_state};
pub use tasks::{PendingTask, Tasks};
