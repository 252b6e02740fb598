//! The replica of a service at its host: the orders of the protocol, carried out on the user's object.
//!
//! A replica ([`quorate_protocol::service::Replica`]) gives orders: execute, commit, abort, revert, apply,
//! take a checkpoint. An [`Executor`] carries them out on an [`Object`], which is the user's code and state.
//! The executor keeps the books: which changes are not chosen, to which work and which transaction each
//! belongs, how many changes the state holds, which checkpoints and copies are on their way. The object only
//! executes, applies and reverts.
//!
//! ```text
//!   replica ── Execute, Chosen, Commit, Abort, Revert, Apply, Checkpoint … ──▶ Executor ──▶ Object
//!           ◀── Executed, CheckpointPart, Rests ────────────────────────────── (undo list)
//! ```
//!
//! The driver of an executor passes the object with each order. It is a thread of the host, or the turn of
//! the replica's endpoint ([`Inline`]). A service that completes its requests in any order has [`Tasks`] in
//! front of the executor.
//!
//! The replica itself lives in a [`ServiceEndpoint`]: at first a seeker of its [`Set`], then a replica or a
//! client, and at the former place of a replica a redirect. A host brings along what an endpoint cannot be
//! pure about ([`EndpointHost`]).
//!
//! **Invariants.**
//!
//! - *The state is the chosen changes, followed by those in the undo list*, oldest first.
//! - *A change leaves the undo list once*: it is chosen, or reverted.
//! - *Nothing but chosen changes leaves the replica*: an apply, a restore and a checkpoint find the undo list
//!   empty, and a copy waits until the changes in it are chosen.
//! - *An unknown state is not used*: an object that failed in the middle of a change ends its replica
//!   ([`Broken`]).
//!
//! **Bytes.** A state on its way to another replica is the object's clock, the number of changes, and the
//! object's bytes. A change begins with the clock, too. The clock of all ones marks a state that is still
//! being restored ([`StatePart`]).

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
pub use results::{ResultBatch, result_bytes};
pub use set::{ReplicaOptions, Set, SetRecord, Terms};
pub use state_bytes::{join_state, split_clock, split_state};
pub use tasks::{PendingTask, Tasks};
