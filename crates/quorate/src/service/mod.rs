//! Replicated services: a trait in plain Rust, a host for its replicas, a stub for its callers.
//!
//! **Promise.** A [`Service`] that uses clock, chance or threads behaves towards its callers as one that never fails, while a
//! majority of its replicas lives: calls are linearizable, and each takes effect exactly once. Every call ends in a reply or in one
//! [`Error`](crate::Error), which says what may have happened.
//!
//! **Source.** Zhang, *Fault-tolerant Grid Services* (003), chapter VI; the protocol, its invariants and the attacks on it are
//! [`quorate_protocol::service`]'s. Here is only what hosts it.
//!
//! **Roles.** A [node](crate::Node) that hosts has a process with replicas of any number of services, one
//! [channel](quorate_node::Channel) each, on one protocol thread. Each service has an *executor*: a thread that runs the user's code. One that
//! calls has a process with clients, from which [`Stub`]s call. Both stand alone: they need no tables and no routers.
//!
//! ```text
//!   caller ── call ──▶ stub ─▶ protocol thread ═══ links ═══▶ protocol thread ── Execute, Apply … ──▶ executor
//!      ◀── wakes ───────────── Client                         Replica         ◀── Executed … ──────── execute, apply, revert
//! ```
//!
//! **Names.** A process belongs to one domain, by the name that its builder was given. In it, a service's channel is a hash of
//! its name. The set itself is 64 random bits, drawn when it is founded. Replicas show them to whoever reaches for the channel,
//! with a print of the first state and the wanted number of replicas, and sessions come about only within a set (`hosted`).
//!
//! **Invariants.**
//!
//! - *Orders are carried out in the order in which the replica gave them*: one channel, one thread, and results leave in order.
//! - *All replicas of a set began in the same state*: a joiner whose first state has another print ends before it is one.
//! - *The state changes in `apply` and `revert` alone*, at the leader as at its backups: `execute` is lent it.
//! - *A state of which nobody knows what it is is not used*: a panic in `apply` or `revert` ends the replica.
//! - *User code holds the protocol thread up only if it says that it is short*, and no longer than it is (`inline`). Otherwise that thread
//!   hands orders over without waiting, and a replica whose executor falls 256 MiB behind ends.
//! - *A process that ended a replica does not begin another of that set*: what it promised is gone with it. The replica comes back as
//!   another process of the same program (`tenant`).
//!
//! **Attacks considered.**
//!
//! - *A service is founded twice.* The second founder asks its seeds first, and is refused if one shows a set. If none
//!   could be reached there are two sets; no replica or client of one is linked with the other, and each logs that it met it.
//! - *A host founds, is killed, and is started with the same line.* The same: its seeds show the set, which goes on without it.
//! - *A request that panics the leader's `apply`.* It was not proposed. The replica resigns: it is rejected before the replica ends, and is
//!   not tried at the next leader, which would end, too.
//! - *A caller sends a write as a read.* The executor looks at what came of it, and rejects what would change something.
//! - *A clock that jumps back, or a new leader whose clock is behind.* Changes and checkpoints carry the clock, and
//!   [`Cx::clock`] never shows less than what it has seen.
//! - *The caller loses interest.* The call goes on; its answer is dropped where it arrives.
//!
//! **Where we differ, and why.** The sketch has `execute` return `(Reply, Option<Delta>)`; here it is [`Executed`], because a service
//! must be able to refuse. `checkpoint` and `restore` are no methods: a state is `serde`, and a state that wants another form in bytes
//! implements `Serialize` itself. The name of a call is the session's count rather than a digest.

mod caller;
mod cx;
mod directory;
mod executor;
mod export;
pub(crate) mod host;
mod hosted;
mod http;
mod inline;
mod looped;
mod press;
mod process;
pub mod ready;
pub(crate) mod stub;
mod tenant;
mod transaction;

use quorate_protocol::DomainId;
use serde::{Serialize, de::DeserializeOwned};

pub use self::{
    caller::Caller,
    cx::Cx,
    export::Export,
    host::{Begin, Standing},
    looped::{Desk, ServiceLoop, Task},
    stub::Stub,
    transaction::Transaction,
};
pub use crate::error::CallId;

/// A service in plain Rust. The value is its state, which `serde` turns into a checkpoint and back.
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
    /// What a caller asks.
    type Request: Serialize + DeserializeOwned;
    /// What it is answered.
    type Reply: Serialize + DeserializeOwned;
    /// A change of the state.
    type Delta: Serialize + DeserializeOwned;
    /// All that is needed to take a change back.
    type Undo: Send;

    /// What an instance of the log carries of a request, beside the reply.
    const CARRIES: Carries = Carries::Delta;

    /// Whether a request takes some microseconds, to be executed or applied. Then the thread that serves the links does it, which spares two
    /// wake-ups for each call. That thread does nothing else meanwhile. So a service whose requests take longer than 50 µs again and
    /// again is given a thread of its own after all, and its host logs that.
    const SHORT: bool = false;

    /// Finds out what a request comes to, in the present state. Called at the leader alone, once or, after a failure, again at
    /// another one, which then is in the state in which it should be. It may use clock, chance and threads; what it finds goes into the
    /// reply and the delta. A panic rejects the request.
    fn execute(&self, request: &Self::Request, cx: &mut Cx<'_>) -> Executed<Self>;

    /// Changes the state. Called at every replica, and must do the same at each: no clock, no chance. A panic ends
    /// the replica.
    fn apply(&mut self, delta: &Self::Delta) -> Self::Undo;

    /// Takes back the change that was applied last and not reverted, beside changes that touch other [`keys`](Service::keys).
    fn revert(&mut self, undo: Self::Undo);

    /// Names of what a request touches, such as hashes of keys: two requests that have none in common may be executed in any order, and their
    /// changes reverted in any order. No names, unless a service says otherwise: it touches everything. A transaction has what its
    /// requests touch to itself, or shares it if they are reads.
    fn keys(request: &Self::Request) -> Vec<u64> {
        let _ = request;
        Vec::new()
    }

    /// Whether a request changes nothing, whatever the state. Reads need not be agreed on, and are cheaper.
    fn kind(request: &Self::Request) -> Kind {
        let _ = request;
        Kind::Write
    }
}

/// What an instance of a service's log carries of a request that changed something (003 §VI.A.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// The change.
    Delta,
    /// The request, and what the leader drew from clock and chance: every replica executes it again. Worth while where a request is
    /// shorter than its change. [`Service::execute`] must depend on nothing but the state, the request and [`Cx`]; a replica at which it comes to
    /// something else ends.
    Witness,
    /// The whole state that it comes to, 4 MiB at most: for small states whose changes are hard to tell apart. A state takes the place of those
    /// before it. Transactions and plain calls exclude each other, whatever their keys.
    State,
}

/// Whether a request may change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It may change the state.
    Write,
    /// It changes nothing. One that would is rejected.
    Read,
}

/// The result of a request.
pub enum Executed<S: Service> {
    /// This reply, and nothing changes.
    Unchanged(S::Reply),
    /// This reply, and this change. The change was not applied yet.
    Changed(S::Reply, S::Delta),
    /// It is refused for this reason, and nothing changes.
    Rejected(String),
}

/// The domain of services of nodes that name none.
pub(crate) const DOMAIN: &str = "quorate services";

/// The domain of this name.
pub(crate) fn domain(name: &str) -> DomainId {
    DomainId(xxhash_rust::xxh3::xxh3_128(name.as_bytes()))
}
