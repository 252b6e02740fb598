//! Replicated services: a trait in plain Rust, a host for its replicas, a stub for its callers.
//!
//! **Promise.** A [`Service`] may use the clock, chance and threads. While a majority of its replicas lives,
//! the service appears to its callers as one process that never fails: calls are linearizable, and each takes
//! effect exactly once. Every call ends in a reply or in one [`Error`](crate::Error), which says what may
//! have happened.
//!
//! **Source.** Zhang, *Fault-tolerant Grid Services* (003), chapter VI. The protocol, its invariants and its
//! attacks are in [`quorate_protocol::service`]. This module hosts the protocol.
//!
//! **Roles.** A hosting [node](crate::Node) has a process with replicas of any number of services, one
//! [channel](quorate_node::Channel) each, on one protocol thread. Each service has an *executor*: a thread
//! that runs the user's code. A calling node has a process with clients, through which [`Stub`]s call.
//! Hosting and calling nodes need no tables and no routers.
//!
//! ```text
//!   caller ── call ──▶ stub ─▶ protocol thread ═══ links ═══▶ protocol thread ── Execute … ──▶ executor
//!      ◀── wakes ───────────── Client                         Replica         ◀─ Executed … ─ apply, revert
//! ```
//!
//! **Names.** The builder of a node sets the name of the domain of its services. Within a domain, the channel
//! of a service is a hash of the service's name. Each set of replicas has an id of 64 random bits, drawn when
//! the set is founded. A replica shows this id, a print of the first state and the wanted number of replicas
//! to every process that opens a session at the channel. Sessions exist only within a set
//! (`service_endpoint`).
//!
//! **Invariants.**
//!
//! - *The executor executes orders in the order in which the replica gave them*: there is one channel and one
//!   thread, and results leave in order.
//! - *All replicas of a set began in the same state*: if a joiner's first state has another print, the joiner
//!   ends before it becomes a replica.
//! - *The state changes in `apply` and `revert` alone*, at the leader and at its backups: `execute` only
//!   borrows the state.
//! - *An unknown state is not used*: a panic in `apply` or `revert` ends the replica.
//! - *User code runs on the protocol thread only if the service declares itself short*, and only while it is
//!   short (`inline`). Otherwise that thread passes orders on without waiting, and a replica whose executor
//!   falls 256 MiB behind ends.
//! - *A process that ended a replica never begins another replica of that set*, because its promises in the
//!   set are lost. The replica comes back as another process of the same program (`slot`).
//!
//! **Attacks considered.**
//!
//! - *A service is founded twice.* The second founder asks its seeds first, and founding fails if a seed
//!   shows a set. If the founder reaches no seed, there are two sets. No replica or client of one set has a
//!   session with the other set, and both log that they have met.
//! - *A host founds a set, is killed, and is started again with the same command line.* The founder asks its
//!   seeds again. They show the set, which goes on without the killed host, so founding fails.
//! - *A request makes the leader's `apply` panic.* The leader has not proposed the request's change. Its
//!   replica resigns: it rejects the request before it ends. Otherwise the next leader would try the request,
//!   and end in the same way.
//! - *A caller sends a write as a read.* The executor checks the result, and rejects a read that would change
//!   something.
//! - *A clock jumps back, or a new leader's clock is behind.* Changes and checkpoints carry the clock, and
//!   [`Cx::clock`] never returns an earlier time than a time that it has seen.
//! - *A caller no longer waits.* The call goes on, and its answer is dropped on arrival.
//!
//! **Where we differ, and why.** In the sketch of the source, `execute` returns `(Reply, Option<Delta>)`.
//! Here it returns [`Executed`], because a service must be able to refuse a request. There are no methods
//! `checkpoint` and `restore`, because `serde` encodes and decodes the state. A state with another form in
//! bytes implements `Serialize` itself. The name of a call is its number in the session, not a digest.

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
    /// The data with which [`Service::revert`] takes a change back.
    type Undo: Send;

    /// The form in which an instance of the log carries the change of a request, in addition to the reply.
    const CARRIES: Carries = Carries::Delta;

    /// Whether executing or applying a request takes only some microseconds. If so, the thread that serves
    /// the links executes and applies the requests, which saves two wake-ups of threads for each call. While
    /// it does so, that thread does nothing else. So a service whose requests repeatedly take longer than 50
    /// µs gets a thread of its own after all, and its host logs that.
    const SHORT: bool = false;

    /// Finds the result of a request in the present state. Only the leader calls this method, once for a
    /// request. After a failure the next leader may call it again, in a state without any effect of the first
    /// call. The method may use the clock, random numbers and threads. The reply and the delta must contain
    /// whatever depends on these. A panic rejects the request.
    fn execute(&self, request: &Self::Request, cx: &mut Cx<'_>) -> Executed<Self>;

    /// Changes the state. Every replica calls this method. It must have the same effect at each replica, so
    /// it must use neither clock nor chance. Returns the data that [`Service::revert`] needs to take the
    /// change back. A panic ends the replica.
    fn apply(&mut self, delta: &Self::Delta) -> Self::Undo;

    /// Takes back the latest applied change that was not taken back yet. Changes that touch other
    /// [`keys`](Service::keys) do not count here.
    fn revert(&mut self, undo: Self::Undo);

    /// Returns names of the data that a request touches, such as hashes of keys. Requests without a common
    /// name may be executed in any order, and their changes may be reverted in any order. The default is no
    /// names, and means that a request touches all data. A transaction locks the data that its requests
    /// touch; other transactions may read the data that it only reads.
    fn keys(request: &Self::Request) -> Vec<u64> {
        let _ = request;
        Vec::new()
    }

    /// Returns whether a request may change the state. Reads need no agreement of the replicas, and are
    /// cheaper.
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
    /// request again. This form pays if a request is shorter than its change. [`Service::execute`] must
    /// depend only on the state, the request and [`Cx`]. A replica that gets another result ends.
    Witness,
    /// The whole new state, 4 MiB at most. This form is for small states whose changes are hard to express.
    /// The replicas need only the latest state. Transactions and plain calls exclude each other, whatever
    /// their keys.
    State,
}

/// Whether a request may change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request may change the state.
    Write,
    /// The request changes nothing. The executor rejects a read that would change something.
    Read,
}

/// The result of a request.
pub enum Executed<S: Service> {
    /// A reply without a change.
    Unchanged(S::Reply),
    /// A reply and a change, which is not applied yet.
    Changed(S::Reply, S::Delta),
    /// A refusal for this reason, without a change.
    Rejected(String),
}

/// Upper bound of the state after a change, unless a host sets another bound, in bytes.
pub(crate) const STATE_BYTES_MAX: usize = encoder::STATE_BYTES_MAX;

/// The name of the default domain of services.
pub(crate) const DOMAIN: &str = "quorate services";

/// Returns the domain of this name.
pub(crate) fn domain(name: &str) -> DomainId {
    DomainId(xxhash_rust::xxh3::xxh3_128(name.as_bytes()))
}
