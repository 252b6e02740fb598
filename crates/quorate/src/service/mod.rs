//! Replicated services: a trait in plain Rust, a host for its replicas, a stub for its callers.
//!
//! **Promise.** A [`Service`] that uses clock, chance or threads appears to its callers as one that never
//! fails, while a majority of its replicas lives: calls are linearizable, and each takes effect exactly once.
//! Every call ends in a reply or in one [`Error`](crate::Error), which says what may have happened.
//!
//! **Source.** Zhang, *Fault-tolerant Grid Services* (003), chapter VI. The protocol, its invariants and its
//! attacks are in [`quorate_protocol::service`]. This module hosts the protocol.
//!
//! **Roles.** A hosting [node](crate::Node) has a process with replicas of any number of services, one
//! [channel](quorate_node::Channel) each, on one protocol thread. Each service has an *executor*: a thread
//! that runs the user's code. A calling node has a process with clients, from which [`Stub`]s call. Both
//! stand alone: they need no tables and no routers.
//!
//! ```text
//!   caller ── call ──▶ stub ─▶ protocol thread ═══ links ═══▶ protocol thread ── Execute … ──▶ executor
//!      ◀── wakes ───────────── Client                         Replica         ◀─ Executed … ─ apply, revert
//! ```
//!
//! **Names.** The builder of a node names the domain of its processes. Within a domain, the channel of a
//! service is a hash of the service's name. Each set of replicas has an id of 64 random bits, drawn when the
//! set is founded. A replica shows this id, a print of the first state and the wanted number of replicas to
//! every process that opens a session at the channel. Sessions exist only within a set (`service_endpoint`).
//!
//! **Invariants.**
//!
//! - *Orders are executed in the order in which the replica gave them*: one channel, one thread, and results
//!   leave in order.
//! - *All replicas of a set began in the same state*: a joiner whose first state has another print ends
//!   before it becomes a replica.
//! - *The state changes in `apply` and `revert` alone*, at the leader as at its backups: `execute` only
//!   borrows it.
//! - *An unknown state is not used*: a panic in `apply` or `revert` ends the replica.
//! - *User code blocks the protocol thread only if it declares itself short*, and only while it is
//!   (`inline`). Otherwise that thread passes orders on without waiting, and a replica whose executor falls
//!   256 MiB behind ends.
//! - *A process that ended a replica does not begin another of that set*: its promises are gone with it. The
//!   replica comes back as another process of the same program (`slot`).
//!
//! **Attacks considered.**
//!
//! - *A service is founded twice.* The second founder asks its seeds first, and is refused if one shows a
//!   set. If it could reach none, there are two sets; no replica or client of one has a link to the other,
//!   and each logs the meeting.
//! - *A host founds, is killed, and is started with the same command line.* The same rule holds: its seeds
//!   show the set, which goes on without it.
//! - *A request makes the leader's `apply` panic.* Its change was not proposed. The replica resigns: it
//!   rejects the request before it ends. So the next leader does not try the request, which would end that
//!   leader, too.
//! - *A caller sends a write as a read.* The executor looks at the result, and rejects a read that would
//!   change something.
//! - *A clock jumps back, or a new leader's clock is behind.* Changes and checkpoints carry the clock, and
//!   [`Cx::clock`] never shows less than the time that it has seen.
//! - *The caller loses interest.* The call goes on; its answer is dropped on arrival.
//!
//! **Where we differ, and why.** In the sketch, `execute` returns `(Reply, Option<Delta>)`. Here it returns
//! [`Executed`], because a service must be able to refuse. `checkpoint` and `restore` are no methods: a state
//! is `serde`, and a state with another form in bytes implements `Serialize` itself. A call is named by the
//! session's count, not by a digest.

mod caller;
mod cx;
mod directory;
mod encoder;
mod executor;
mod export;
pub(crate) mod fate_context;
mod gate;
pub(crate) mod host;
mod http;
mod inline;
mod looped;
mod object;
mod process;
pub mod ready;
pub(crate) mod replica_status;
mod service_endpoint;
mod slot;
pub(crate) mod stub;
mod transaction;

use quorate_protocol::DomainId;
use serde::{Serialize, de::DeserializeOwned};

pub use self::{
    caller::Caller,
    cx::Cx,
    export::Export,
    host::Begin,
    looped::{ServiceLoop, Task, TaskQueue},
    stub::Stub,
    transaction::Transaction,
};
pub use crate::error::CallId;
pub use replica_status::ReplicaStatus;

/// A service in plain Rust. The value is the service's state, which `serde` turns into a checkpoint and back.
///
/// ```
/// use quorate::service::{Cx, Executed, Service};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Default, Serialize, Deserialize)]
/// struct Lottery(Vec<u64>);
///
/// impl Service for Lottery {
///     type Request = ();
///     type Reply = u64;
///     type Delta = u64;
///     type Undo = ();
///
///     fn execute(&self, _: &(), cx: &mut Cx<'_>) -> Executed<Self> {
///         let draw = cx.below(100);
///         Executed::Changed(draw, draw)
///     }
///     fn apply(&mut self, draw: &u64) {
///         self.0.push(*draw);
///     }
///     fn revert(&mut self, _: ()) {
///         self.0.pop();
///     }
/// }
/// ```
pub trait Service: Serialize + DeserializeOwned + Send + 'static {
    /// The type of a request.
    type Request: Serialize + DeserializeOwned;
    /// The type of a reply.
    type Reply: Serialize + DeserializeOwned;
    /// A change of the state.
    type Delta: Serialize + DeserializeOwned;
    /// The data that takes a change back.
    type Undo: Send;

    /// The part of a request that an instance of the log carries in addition to the reply.
    const CARRIES: Carries = Carries::Delta;

    /// Whether executing or applying a request takes some microseconds. Then the thread that serves the links
    /// executes and applies the requests, which saves two wake-ups of threads for each call. That thread does
    /// nothing else meanwhile. So a service whose requests repeatedly take longer than 50 µs gets a thread of
    /// its own after all, and its host logs that.
    const SHORT: bool = false;

    /// Finds the result of a request in the present state. Only the leader calls this method: once for a
    /// request or, after a failure, once more at the next leader, whose state then has no effect of the first
    /// call. The method may use the clock, random numbers and threads; what it learns from them goes into the
    /// reply and the delta. A panic rejects the request.
    fn execute(&self, request: &Self::Request, cx: &mut Cx<'_>) -> Executed<Self>;

    /// Changes the state. Every replica calls this method, and the method must have the same effect at each
    /// replica, so it must use neither clock nor chance. The returned value is what [`Service::revert`] needs
    /// to take the change back. A panic ends the replica.
    fn apply(&mut self, delta: &Self::Delta) -> Self::Undo;

    /// Takes back the last change that was applied and not reverted, apart from changes that touch other
    /// [`keys`](Service::keys).
    fn revert(&mut self, undo: Self::Undo);

    /// Returns names of the data that a request touches, such as hashes of keys. Requests without a common
    /// name may be executed in any order, and their changes reverted in any order. The default, no names,
    /// means that a request touches everything. A transaction has the data that its requests touch to itself,
    /// or shares the data if they are reads.
    fn keys(request: &Self::Request) -> Vec<u64> {
        let _ = request;
        Vec::new()
    }

    /// Says whether a request changes nothing, whatever the state. Reads need no agreement, and are cheaper.
    fn kind(request: &Self::Request) -> Kind {
        let _ = request;
        Kind::Write
    }
}

/// The form in which an instance of a service's log carries a change (003 §VI.A.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// The change.
    Delta,
    /// The request, and the values that the leader drew from clock and chance: every replica executes the
    /// request again. It pays if a request is shorter than its change. [`Service::execute`] must depend only
    /// on the state, the request and [`Cx`]; a replica that gets another result ends.
    Witness,
    /// The whole new state, 4 MiB at most: for small states whose changes are hard to express. A state
    /// replaces all earlier states. Transactions and plain calls exclude each other, whatever their keys.
    State,
}

/// Whether a request may change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request may change the state.
    Write,
    /// The request changes nothing. A read that would change something is rejected.
    Read,
}

/// The result of a request.
pub enum Executed<S: Service> {
    /// A reply without a change.
    Unchanged(S::Reply),
    /// A reply and a change, which was not applied yet.
    Changed(S::Reply, S::Delta),
    /// A refusal for this reason, without a change.
    Rejected(String),
}

/// Upper bound of the state after a change, unless a host sets another bound, in bytes.
pub(crate) const STATE_BYTES_MAX: usize = encoder::STATE_BYTES_MAX;

/// The domain of services of nodes that name none.
pub(crate) const DOMAIN: &str = "quorate services";

/// Returns the domain of this name.
pub(crate) fn domain(name: &str) -> DomainId {
    DomainId(xxhash_rust::xxh3::xxh3_128(name.as_bytes()))
}
