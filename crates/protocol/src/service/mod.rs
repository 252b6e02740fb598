//! Replicated services that need not be deterministic: the leader executes, and the log carries the results.
//!
//! **Promise.** A service that uses clock, chance or threads behaves towards its clients like one that never
//! fails: calls are linearizable, and each takes effect exactly once as long as its session lasts. Calls are
//! answered while a majority of the replicas lives and is linked, and wait otherwise. All replicas have the
//! same state after the same instance, though only one of them computed it.
//!
//! **Source.** Zhang, *Fault-tolerant Grid Services* (003), chapter VI: primary-backup Paxos (§VI.A.2),
//! X-Paxos for reads (§VI.A.3), T-Paxos for transactions (§VI.A.4; `transactions`) and their proof (§VI.B).
//!
//! **Roles.** *Replicas* are the acceptors of a log of their own ([`paxos`]), without any router. One replica
//! is the *leader* (the primary): it executes. The others, its *backups*, apply changes. *Clients*
//! ([`Client`]) call the leader. A *host* runs the user's code for a replica, on any thread: this module
//! gives it orders ([`Event`]) and takes the results back ([`Command`]), in the same turn or later.
//!
//! ```text
//!  client            leader                 backups
//!    ├── Calls ────────▶│                       │
//!    │                  │ Execute, Executed     │  the host executes and applies, before any proposal
//!    │                  ├── Accept [batch] ────▶│  instances ⟨call, reply, change⟩, bound to the reign
//!    │                  │◀─────────── Accepted ─┤
//!    │                  │ chosen                │
//!    │◀────── Answers ──┤── Chosen ────────────▶│ Apply
//!    │
//!    ├── Calls (read) ─▶│                       │
//!    ├── Reads ────────────────────────────────▶│  announced: the client announces the read
//!    │                  │◀───── ReadsConfirmed ─┤  while the host executes
//!    │                  ├── Confirm ───────────▶│  asked: the leader asks them, once for many reads
//!    │                  │◀────────── Confirmed ─┤
//!    │◀────── Answers ──┤                       │  once all that the read saw is chosen, too
//! ```
//!
//! **Invariants.** Asserted where they could first break.
//!
//! - *One line of primaries* (lemma 1): ballots never fall from one batch of the log to the next.
//! - *A change rests on the state that it was computed in* (lemma 3): the first number in a batch that a
//!   replica learns is the number after the last instance that it learned. A change of a lost reign would
//!   carry a number that instances of another reign have used.
//! - *No result of a lost reign is proposed*: proposals are bound to the ballot in which they were executed.
//! - *A call takes effect once*: while a call's session lasts, no instance names a call that an earlier
//!   instance named.
//! - *Answers are chosen*: a write is answered when its instance is chosen. A read or a refusal is answered
//!   when every change that it saw is chosen, and a majority followed the ballot after the call (rule S16;
//!   `reads`).
//! - *A new leader executes nothing before it is settled* (§VI.B, *New leader*).
//! - *A checkpoint holds chosen changes only*: the leader takes a checkpoint only when all changes that it
//!   applied are chosen and none belongs to an open transaction.
//!
//! **Speculation.** The source proposes one instance at a time: if instance *i* were chosen and *i − 1* not,
//! the state of *i* would make no sense. Here a new leader takes a log over from its beginning and without
//! gaps, so only a prefix of a reign's proposals can survive. So the leader executes on everything that it
//! has applied, chosen or not, and proposes the results in batches. When a reign ends, the host reverts every
//! change that was not chosen, the latest first, before it gets any order of the next reign.
//! [`Pipelining::OneAtATime`] is the source's way, for comparison.
//!
//! **Content of an instance.** The call's id, the reply and the change. The source has the request and the
//! state. Here the instance has the reply, because no other replica can compute the reply, and a call that is
//! repeated at the next leader must get the same reply. The change is opaque here: a *delta*, a whole
//! *state*, or a *witness* (the request, with the clock and the random bits of its execution) that backups
//! execute again.
//!
//! **Whole states** ([`Settings::whole_states`]). Of a batch's states only the last is carried and applied. A
//! chosen state is a checkpoint: a replica keeps the latest chosen state, and gives it to replicas that lag,
//! without waiting for its host or for unchosen changes. So the replica keeps little of the log behind the
//! state. With one proposal at a time, a candidate gets at most one state that it may lack (003 §VI.A.2). A
//! state would also hold the changes of open transactions. So transactions lock everything, whatever the keys
//! of their calls: no state is proposed while a transaction other than the committing transaction has changed
//! anything.
//!
//! **Waits for room.** Each bound makes something wait. No wait is for ever: each wait in this list ends when
//! waits further down end. Point 4 names the one exception, and how the leader ends it.
//!
//! 1. *A call waits for room in flight* ([`Settings::in_flight_bytes_max`]). Room comes when the host has
//!    executed requests (2), when results are chosen (4), and when replies to reads are given (3).
//! 2. *The host waits while the replica holds too many results* ([`Settings::results_held_max`]): replies to
//!    reads (3), and results that are not in the log (4). The host waits only before it executes a request of
//!    the reign. Without a reign a replica holds no results.
//! 3. *A reply to a read waits* until a majority has confirmed the reign, which takes no room, and until the
//!    changes that it saw are chosen. All of these were executed before the reply was made (4).
//! 4. *A result waits for room in the log*, behind earlier results. An empty log takes any batch. A batch in
//!    the log is chosen as soon as a majority holds it. A replica accepts without its host, unless it lacks a
//!    checkpoint. Then the leader's host has to give parts of a checkpoint, and that host may itself be
//!    waiting (2). So if nothing was chosen for ten ticks, the leader *stands back*: it reverts unchosen
//!    changes, executes nothing, and holds no results until its proposals are chosen. Without a majority the
//!    reign ends, and with it all of these waits.
//! 5. *A checkpoint waits until all results are chosen* (4), and is taken after ten seconds anyway.
//!
//! A call that waits for locks waits for transactions to end. The requests and commits of these transactions
//! wait as in 1. A silent client loses its transaction ([`Settings::transaction_idle`]). Calls that wait for
//! locks delay no other calls: they do not count as in flight, and take at most half of the memory for
//! waiting calls. A call that finds no such memory is refused ([`CallOutcome::Full`]).
//!
//! A replica looks again for room at each result, at each message, when records are durable, and at each
//! tick.
//!
//! **Attacks considered.**
//!
//! - *A leader deposed with a full pipeline.* The leader first learns that it is deposed. Then it reverts the
//!   changes that were not chosen, even those that the host is still executing: the host handles orders in
//!   their sequence. Later results belong to no reign and are dropped. A prefix of the deposed leader's
//!   proposals may come back as a part of the next leader's log. The replica applies it like any other batch.
//! - *A reply is lost and the call repeated at the next leader.* The instance carries the reply into every
//!   replica's table of sessions. The new leader looks there only once it is settled, and by then it has
//!   every instance that may be chosen.
//! - *The same call twice at one leader.* While the first attempt is under way, the second has no effect. The
//!   leader answers once, over whatever link the client has then.
//! - *Another client repeats a call, because the first client died.* The call may bear a key of the user's
//!   choice. Such calls belong to one session, which all clients share and which never ends. A hash of the
//!   key names the call. The instance also carries a hash of the request: a key that comes again with another
//!   request is refused. The latest [`Settings::keyed_max`] calls are remembered.
//! - *A call whose session ended while it was executed.* It takes effect and is answered. A repetition is
//!   answered *expired*: the client must know whether it had sent the call before.
//! - *An opening that is repeated.* Each attempt opens a session of its own, named by its instance, and
//!   unused sessions are forgotten. So a stale opening can never bring back a session that has ended.
//! - *A read that saw an unchosen change.* The read waits for that change. If the reign ends first, the read
//!   is not answered.
//! - *Two leaders.* Once the newer leader has something chosen, no proposal of the older leader can be chosen
//!   any longer, and no later round confirms its ballot. The older leader redirects its clients when it hears
//!   of the newer leader.
//! - *A call at a replica that does not lead.* The replica redirects the client, and forwards nothing. A
//!   proposal that another replica forwards is counted and dropped.
//! - *A joiner dies while it receives a checkpoint.* The remaining parts are dropped, and the log behind the
//!   checkpoint is kept only as long as some checkpoint is under way.
//! - *A slow host gives a part of a checkpoint while the replica already gives the next checkpoint.*
//!   Checkpoints are numbered, and parts of another checkpoint are dropped. Otherwise such a part would make
//!   the joiner's state differ from the state of the other replicas (a random schedule found that).
//! - *A snapshot is wanted from a busy leader.* The leader stops executing until all changes that it has
//!   applied are chosen, which takes one round. Then it takes a checkpoint and goes on, and the parts are
//!   read while it works.
//! - *A snapshot is wanted while calls wait at a host that executes in any order* ([`Settings::any_order`]).
//!   These calls may wait for long, and be executed at any moment. So the leader orders the host to rest. The
//!   host answers after all its earlier results. When these results are chosen the checkpoint is taken, and
//!   the calls wait on.
//! - *Replies that are large together.* One message of answers ends at 256 KiB, however many a turn brings,
//!   unless one reply is longer.
//! - *The replicas whose acceptance is missing need a snapshot.* Without their acceptance the leader's
//!   results would never be chosen, and so these replicas would never get a checkpoint. If nothing was chosen
//!   for ten ticks the leader stands back. It reverts unchosen changes, takes the checkpoint, learns its own
//!   proposals like a backup, and executes again when all of them are chosen (random schedules found that).
//! - *A checkpoint is wanted while a slow host has much to execute.* As long as results are chosen the leader
//!   waits for the host, for ten seconds at most, and reverts nothing.
//! - *Results are longer than their requests, and come faster than the log takes them.* The log must not
//!   refuse a result while the reign goes on: later results rest on it. So the leader keeps back a batch for
//!   which the log has no room ([`Settings::in_flight_bytes_max`]), and all batches behind it. The host
//!   should execute nothing more while too much is kept back ([`Settings::results_held_max`]). If the log
//!   nevertheless refuses a batch, the leader reverts unchosen changes, as at the end of a reign, before it
//!   executes again.
//! - *The replicas whose acceptance is missing need a part of a checkpoint, from a host that may execute
//!   nothing more.* The host would give the part only after earlier requests. These requests wait for room,
//!   and there is no room before these replicas accept. If nothing was chosen for ten ticks the leader stands
//!   back. Then it holds no results, and the host goes on (a script shows it). The checkpoint itself stays
//!   valid, because its content was chosen.
//! - *A deposed leader gets a call in a session that began at the next leader.* The deposed leader does not
//!   know the session. It must not answer at once that the session has ended, because that answer depends on
//!   the state. So the deposed leader would answer only after a confirmation of its reign, as for a read.
//! - *A client acknowledges nothing, and its replies are long.* Its oldest replies are forgotten first
//!   ([`Settings::session_bytes_max`]), and repetitions of these calls are answered *expired*. Other clients'
//!   sessions go on.
//! - *A joiner of an older set of the same name.* Every message names its set by the random number drawn at
//!   founding.
//!
//! - *A change cannot be applied at the leader.* The change is never proposed. Its request is refused, and
//!   the refusal depends on the state like a read. So the leader goes on leading for a moment without
//!   executing ([`Command::Resign`]): until its results are chosen and the refusal is confirmed, or ten ticks
//!   have passed. Then, without a disk, it leaves the set, so that the other replicas elect a leader at once
//!   and a spare takes its place. With a disk it only ends: its records give the next process a whole state.
//!
//! **Where we differ, and why.** Batches, speculation and the reply in the instance (above). Only the leader
//! has a call's request, unless changes are witnesses, which contain the request: backups need the result of
//! a call, not the call. The accept phase of a new leader needs no instance of its own: a log counts as
//! accepted in a ballot only as a whole. So a majority that accepted it, empty or not, ends the phase
//! ([`paxos::Event::Settled`]). Clients send writes to the leader alone, because the other replicas would
//! only drop them.
//!
//! **Disk.** A set whose replicas have disks survives a power cut of all: its log is durable at a majority
//! before a call is answered, and a replica continues its records ([`Replica::recover`]). From time to time
//! each replica, leader or not, has its host take a checkpoint, and gathers its parts while the log goes on.
//! The checkpoint, in one record, replaces the log before it. Changes that a leader's host had applied, and
//! that were not chosen, end with the process, as at the end of a reign. A confirmation waits until the
//! promise of its replica is durable.
//!
//! **Speed.** Requests share the memory of the message in which they came, and replies share the memory of
//! the batch. Each batch of inputs leads to one proposal, one round of confirming, and one message of answers
//! for each session. A write alone takes four hops: call, accept, accepted, answer.

mod batch;
mod checkpoint;
mod client;
mod id;
mod idle;
mod locks;
mod message;
mod reads;
mod reign;
mod replica;
mod request;
mod sessions;
mod transactions;

use bytes::Bytes;

pub use self::{
    batch::{Batch, Instance},
    client::{Client, ClientCommand, ClientEvent, ClientSettings, Fate},
    id::{CallId, GroupId, SessionId, TransactionId},
    message::{Abort, Body, Call, CallOutcome, Kind, Message, Part, Scope},
    replica::Replica,
};
use crate::{
    id::{Peer, ProcessId},
    paxos::{self, Change, ChangeRefusal},
    time::Duration,
};

/// The settings of a replica set.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The settings of the replica's log, including its disk. Either all replicas of a set have disks, or
    /// none of them has one.
    pub log: paxos::Settings,
    /// The way in which writes follow one another.
    pub pipelining: Pipelining,
    /// Whether each change is the whole state after it, in the byte form of a checkpoint. Then the latest
    /// change replaces all earlier changes. This setting must be the same at all replicas.
    pub whole_states: bool,
    /// Whether the host executes requests in any order. Then requests may wait at the host for long, and the
    /// host is ordered to [rest](Event::Rest) when a checkpoint is wanted. This setting must be the same at
    /// all replicas.
    pub any_order: bool,
    /// The maximum total size, in bytes, of requests at the host, of results until they are chosen, and of
    /// replies to reads until they are sent. Above it, calls wait, and results are kept back until the log
    /// has room.
    pub in_flight_bytes_max: usize,
    /// The maximum size, in bytes, of results that a replica holds outside its log. Above it, the host should
    /// execute nothing more ([`Replica::results_held`]).
    pub results_held_max: usize,
    /// The maximum size of waiting calls, in bytes. Further calls are refused.
    pub waiting_bytes_max: usize,
    /// The maximum number of sessions. Above it, the least recently used session ends.
    pub sessions_max: usize,
    /// The time after which a session ends if the leader has not heard from its client.
    pub session_idle: Duration,
    /// The maximum size of remembered replies of one session, in bytes. Above it, the session's oldest
    /// replies are forgotten.
    pub session_bytes_max: usize,
    /// The maximum size of remembered replies of all sessions, in bytes. Above it, the session with the most
    /// bytes of replies loses its oldest replies.
    pub replies_bytes_max: usize,
    /// The maximum number of remembered calls with keys. Above it, the oldest call is forgotten.
    pub keyed_max: usize,
    /// The maximum size of the replies of remembered calls with keys, in bytes. Above it, the oldest call is
    /// forgotten.
    pub keyed_bytes_max: usize,
    /// The maximum number of open transactions. Further transactions wait to begin.
    pub transactions_max: usize,
    /// The time after which a transaction whose client is silent is aborted.
    pub transaction_idle: Duration,
    /// The maximum size of a transaction's changes, in bytes. A transaction with larger changes is aborted.
    pub transaction_bytes_max: usize,
    /// The maximum size of the changes of all open transactions, in bytes. The transaction that exceeds it is
    /// aborted.
    pub transactions_bytes_max: usize,
}

/// The way in which writes follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipelining {
    /// The leader executes requests on its unchosen state, and proposes batches.
    Speculative,
    /// The leader executes a write when the previous write is chosen (003 §VI.A.2).
    OneAtATime,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            log: paxos::Settings::default(),
            pipelining: Pipelining::Speculative,
            whole_states: false,
            any_order: false,
            in_flight_bytes_max: 32 << 20,
            results_held_max: 32 << 20,
            waiting_bytes_max: 64 << 20,
            sessions_max: 65_536,
            session_idle: Duration::from_secs(600),
            session_bytes_max: 16 << 20,
            replies_bytes_max: 64 << 20,
            keyed_max: 65_536,
            keyed_bytes_max: 64 << 20,
            transactions_max: 1024,
            transaction_idle: Duration::from_secs(5),
            transaction_bytes_max: 1 << 20,
            transactions_bytes_max: 64 << 20,
        }
    }
}

/// Results from the host, and requests of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The answer to [`Event::Execute`] or [`Event::Commit`]. Instances get the order of these answers.
    Executed {
        /// The number of the work.
        work: u64,
        /// The result.
        result: Executed,
    },
    /// The answer to [`Event::Rest`], after all results of earlier works.
    Rests {
        /// The number of the order to rest (to complete no task until the checkpoint is taken) that the host
        /// carries out.
        rest: u64,
    },
    /// The answer to [`Event::CheckpointPartWanted`].
    CheckpointPart {
        /// The number of the checkpoint.
        checkpoint: u64,
        /// The bytes of the checkpoint that follow the parts given earlier.
        bytes: Bytes,
        /// Whether these bytes are the last bytes of the checkpoint.
        last: bool,
    },
    /// Makes this joining process a replica, even if the set already has the wanted number of replicas.
    AddReplica(Peer),
    /// Removes this replica, which may be this process.
    RemoveReplica(ProcessId),
    /// Names further processes that a joining process can ask for admission.
    Seeds(Vec<Peer>),
    /// Reports that the host can execute nothing more, because its state is unknown. The replica gives the
    /// host no further requests. For a short time the replica still gets the host's earlier results chosen,
    /// and sends the host's earlier refusals to the callers. Ends in [`Event::Resigned`].
    Resign,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executed {
    /// The request changed nothing.
    Unchanged {
        /// The reply.
        reply: Bytes,
    },
    /// The host has applied a change to its state. It must be able to revert the change until the change is
    /// chosen.
    Changed {
        /// The reply.
        reply: Bytes,
        /// The change, in the form that backups apply.
        change: Bytes,
    },
    /// The service refused the request, which changed nothing.
    Rejected {
        /// The reason, for the client.
        reason: Bytes,
    },
}

/// An order to the host, or news for the host. The host carries out orders in their sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Execute a request on the present state, and apply its changes. Ends in [`Command::Executed`], whose
    /// result is ignored if the reign is over by then.
    Execute {
        /// The number of the work, ascending.
        work: u64,
        /// The request.
        request: Bytes,
        /// Whether the request must change nothing.
        read: bool,
        /// The transaction to which the change belongs. Until the transaction ends, [`Event::Chosen`] does
        /// not cover its changes. [`Event::Abort`] reverts them alone, and [`Event::Revert`] reverts them
        /// together with all other changes that are not chosen.
        transaction: Option<TransactionId>,
    },
    /// Make the changes of a transaction part of this work. Ends in [`Command::Executed`], unchanged and
    /// without a reply.
    Commit {
        /// The number of the work. Executions and commits share one ascending sequence.
        work: u64,
        /// The transaction.
        transaction: TransactionId,
    },
    /// Revert the changes of a transaction, the latest first.
    Abort {
        /// The transaction.
        transaction: TransactionId,
    },
    /// All changes up to this work are chosen and will not be reverted. These are the changes of the work
    /// itself, and of all works whose [`Command::Executed`] came earlier, except changes of open
    /// transactions.
    Chosen {
        /// The number of the last work whose changes are chosen.
        work: u64,
    },
    /// Revert every change of works that are not chosen, the latest first.
    Revert,
    /// Apply the changes of a batch that another leader executed.
    Apply {
        /// The number of the batch's last instance.
        through: u64,
        /// The changes, to be applied in this order.
        changes: Vec<Bytes>,
    },
    /// Execute nothing, and answer with [`Command::Rests`]. This order holds until a checkpoint was taken or
    /// changes are to be reverted. Only hosts that execute in any order get it.
    Rest {
        /// The number of this order to rest (to complete no task until the checkpoint is taken). Later orders
        /// have higher numbers.
        rest: u64,
    },
    /// Take a checkpoint of the present state, which has no changes except chosen changes, and drop the
    /// previous checkpoint. The replica then requests the parts one by one.
    Checkpoint {
        /// The number of the checkpoint, ascending.
        checkpoint: u64,
    },
    /// Give the next part of the checkpoint.
    CheckpointPartWanted {
        /// The number of the checkpoint.
        checkpoint: u64,
        /// The approximate length of the part, in bytes.
        bytes: usize,
    },
    /// Drop the checkpoint, which is no longer needed.
    CheckpointUnwanted,
    /// Keep a part of another replica's checkpoint. The state changes only at `Restore`.
    RestorePart {
        /// Whether this is the first part. Then earlier parts are void.
        first: bool,
        /// The bytes that the other replica's host gave in [`Command::CheckpointPart`].
        bytes: Bytes,
    },
    /// Replace the state by the parts that were kept.
    Restore {
        /// The number of the last instance that the new state contains.
        through: u64,
    },
    /// The leader that this replica knows, if it knows one.
    Leader(Option<ProcessId>),
    /// This replica executes calls from now on: it has applied all changes of earlier leaders that may have
    /// been chosen.
    Serving,
    /// The replicas from now on.
    Members(Vec<Peer>),
    /// This process was a replica until now, and was removed.
    Removed,
    /// A change of the replicas was refused.
    ChangeRefused {
        /// The change.
        change: Change,
        /// The reason.
        reason: ChangeRefusal,
    },
    /// The log or a checkpoint does not decode: this replica cannot go on.
    Corrupt(String),
    /// This replica has sent all the answers for which [`Command::Resign`] leaves time. Its user should
    /// remove it.
    Resigned,
}
