//! Replicated services that need not be deterministic: the leader executes, the log carries what came of it.
//!
//! **Promise.** A service that uses clock, chance or threads behaves towards its clients as one that never fails: calls are
//! linearizable, and each takes effect exactly once as long as its session lasts. That holds while a majority of the replicas lives and is linked;
//! while it does not, calls wait. All replicas have the same state behind the same instance, though only one of them computed it.
//!
//! **Source.** Zhang, *Fault-tolerant Grid Services* (003), chapter VI: primary-backup Paxos (§VI.A.2), X-Paxos for reads
//! (§VI.A.3), T-Paxos for transactions (§VI.A.4; `transactions`) and their proof (§VI.B).
//!
//! **Roles.** *Replicas* are the acceptors of a log of their own ([`paxos`]); no router stands in the way. One
//! is the *leader* (the primary): it executes. The others, its *backups*, apply changes. *Clients* ([`Client`]) call the leader. A *host* runs the
//! user's code for a replica, on whatever thread: this module tells it what to do ([`Event`]) and takes the results back
//! ([`Command`]), in the same turn or later.
//!
//! ```text
//!  client            leader                 backups
//!    ├── Calls ────────▶│                       │
//!    │                  │ Execute, Executed     │  the host executes and applies, before anything is proposed
//!    │                  ├── Accept [batch] ────▶│  instances ⟨call, reply, change⟩, bound to the reign
//!    │                  │◀─────────── Accepted ─┤
//!    │                  │ chosen                │
//!    │◀────── Answers ──┤── Chosen ────────────▶│ Apply
//!    │
//!    ├── Calls (read) ─▶│                       │
//!    ├── Reads ────────────────────────────────▶│  told: the client tells the backups
//!    │                  │◀─────────────── Told ─┤  while the host executes
//!    │                  ├── Confirm ───────────▶│  asked: the leader asks them, once for many reads
//!    │                  │◀────────── Confirmed ─┤
//!    │◀────── Answers ──┤                       │  once all that the read saw is chosen, too
//! ```
//!
//! **Invariants.** Asserted where they could first break.
//!
//! - *One line of primaries* (lemma 1): ballots never fall from one batch of the log to the next.
//! - *A change rests on the state that it was computed in* (lemma 3): the batch that a replica learns begins with the number
//!   behind the last instance it learned. A change of a lost reign would carry a number that others have used.
//! - *Nothing of a lost reign is proposed*: proposals are bound to the ballot in which they were executed.
//! - *A call takes effect once*: no instance names a call that an earlier one named, while its session lasts.
//! - *Answers are chosen*: a write is answered when its instance is chosen; a read, and a refusal, when every change that
//!   it saw is chosen and a majority followed the ballot after it was called for (rule S16; `reads`).
//! - *A new leader executes nothing before it is settled* (§VI.B, *New leader*).
//! - *A checkpoint holds what is chosen*: the leader takes one only when nothing that it applied is unchosen, or of an open transaction.
//!
//! **Speculation.** The source proposes one instance at a time: should instance *i* be chosen and *i − 1* not, the state of *i*
//! makes no sense. Here a log is taken over from its beginning and without gaps, so of what a reign proposed only a prefix can survive.
//! So the leader goes on executing on what it has applied, chosen or not, and proposes what came of it in batches. A reign that
//! ends takes the rest back: the host reverts every change that was not chosen, the latest first, before it is told anything of
//! the next reign. [`Pipelining::OneAtATime`] is the source's way, to be compared with.
//!
//! **What an instance carries.** The call's id, the reply and the change. The source has the request and the state; the reply is there
//! because nobody can compute it again, and a call that is repeated at the next leader must get the same one. The change is opaque here: a
//! *delta*, a whole *state*, or a *witness* (the request, with the clock and the random bits that it was given) that
//! backups execute again.
//!
//! **Whole states** ([`Settings::whole_states`]). Of a batch's states the last alone is carried, and applied. A chosen state is a
//! checkpoint: a replica keeps the latest, and gives that to those that lag, without waiting for its host or for what is not
//! chosen. So little of the log behind it is kept, and with one proposal at a time what a candidate is told holds one state that it may
//! lack (003 §VI.A.2). A state holds what open transactions have changed. So they lock everything, whatever the keys of calls: then no
//! state is proposed while another transaction than the one that commits has changed anything.
//!
//! **Attacks considered.**
//!
//! - *A leader deposed with a full pipeline.* It is told before it learns anything else. It reverts what was not chosen, also what the
//!   host is still executing: the host takes everything in the order in which it is told. Results that come afterwards belong to
//!   no reign and are dropped. A prefix of what it proposed may come back as the next leader's log, and is applied like anybody's.
//! - *A reply is lost and the call repeated at the next leader.* The instance carries the reply into every replica's table of
//!   sessions. The new leader has all that may be chosen before it looks there, for it looks only once it is settled.
//! - *The same call twice at one leader.* While the first one is under way the second adds nothing; it is answered once, over
//!   whatever link the client has then.
//! - *A call is repeated by another client, because the first one died.* It may bear a key of the user's choice. Such calls are of one
//!   session, which is everybody's and never ends, and are named by a print of the key. The instance carries a print of the request, too: a key
//!   that comes again with another request is refused. So many are remembered as [`Settings::keyed_max`] says, the latest.
//! - *A call whose session ended while it was executed.* It takes effect and is answered. A repetition is told that the session is over: it
//!   is for the client to know whether it had sent the call before.
//! - *An opening that is repeated.* Each opens a session of its own, named by its instance; what nobody uses is forgotten. So a stale
//!   opening can never bring a session back that is over.
//! - *A read that saw an unchosen change.* It waits for that change. If the reign ends first, it is not answered.
//! - *Two leaders.* The older one cannot have anything chosen, nor a ballot confirmed in a round that began after the newer one had something
//!   chosen. Its clients are sent away when it hears of the other.
//! - *A change that is forwarded.* Nothing is: what a replica does not lead for it refuses. A forwarded proposal from another replica
//!   is counted and dropped.
//! - *A joiner that dies in its checkpoint.* Parts are dropped with it; the log behind is kept only as long as one is under way.
//! - *A slow host gives a part of a checkpoint when the next one is being given.* Checkpoints are numbered, and parts of another one
//!   are dropped: a part in the place of another would make the joiner differ (a random schedule found that).
//! - *A snapshot is wanted of a busy leader.* It stops executing until what it has applied is chosen, which takes one round,
//!   takes a checkpoint and goes on; the parts are read while it works.
//! - *A snapshot is wanted while calls wait at a host that executes in any order* ([`Settings::any_order`]). They may wait for long, and be
//!   executed at any moment. So the host is told to rest. Its answer stands behind all results of before; when these are chosen the checkpoint is
//!   taken, and the calls wait on.
//! - *Replies that are large together.* One message of answers ends at 256 KiB, however many come of a turn, unless one reply is longer.
//! - *A snapshot is wanted by those whose acceptance is missing.* What the leader has applied would never be chosen without them, and they
//!   would never get a checkpoint. After some ticks the leader stands back: it reverts what is not chosen, takes the checkpoint, learns what it
//!   had proposed like a backup, and executes again when all of that is chosen (random schedules found that).
//! - *A joiner of an older set of the same name.* Every message names its set by the random number drawn at founding.
//!
//! - *A change cannot be applied at the leader.* It is never proposed. Its request is refused, which tells of the state like a read. So
//!   the leader goes on for a moment without executing ([`Command::Resign`]): until what it had executed is chosen and the refusal is
//!   confirmed, or ten ticks have passed. Then it leaves the set, without a disk, so that the others elect at once and a spare takes
//!   its place. With a disk it only ends: made again from its records it has a whole state.
//!
//! **Where we differ, and why.** Batches, speculation and the reply in the instance (above). Only the leader has a call's
//! bytes unless the log mode carries them: backups need what came of a call, not the call. The accept phase of a new
//! leader needs no instance of its own: a log counts as accepted in a ballot only as a whole, so a majority that accepted it, empty or
//! not, ends the phase ([`paxos::Event::Settled`]). Clients send writes to the leader alone; the
//! others would only drop them.
//!
//! **Disk.** A set whose replicas have disks outlives the loss of power of all: its log is durable at a majority before a call is
//! answered, and a replica goes on from its records ([`Replica::recover`]). Each replica, whether it leads or not, has its host
//! take a checkpoint now and then, and gathers its parts while the log goes on; written in one record, it takes the place of the
//! log before. What the host of a leader had applied, and was not chosen, is gone with the process, as it is when a reign ends. A
//! confirmation waits for the promise of the replica that gives it.
//!
//! **Speed.** Requests share the memory of the message that they came in, and replies that of the batch. All that one batch of
//! inputs brings is one proposal, one round of confirming, and one message of answers for each session. A write alone takes four hops: call,
//! accept, accepted, answer.

mod batch;
mod checkpoint;
mod client;
mod idle;
mod locks;
mod message;
mod reads;
mod reign;
mod replica;
mod sessions;
mod transactions;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use self::{
    batch::{Batch, Instance},
    client::{Client, ClientCommand, ClientEvent, ClientSettings, Fate},
    message::{Abort, Body, Call, Kind, Message, Outcome, Part, Scope},
    replica::Replica,
};
use crate::{
    id::{Peer, ProcessId},
    paxos::{self, Change, ChangeRefusal},
    time::Duration,
};

/// A replica set: random bits drawn when it is founded, so that a set which is founded anew is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// A client's session, named by the instance that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

impl SessionId {
    /// Calls that bear keys of their users' choice. It is always open, and every client's.
    pub const KEYED: SessionId = SessionId(0);
}

/// The name of a call: sent again it keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    /// The session.
    pub session: SessionId,
    /// The client's count; of a call with a key, the print of the key.
    pub number: u64,
}

/// The name of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId {
    /// The session.
    pub session: SessionId,
    /// The client's count.
    pub number: u64,
}

/// How a replica set behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Of its log; with a disk, too. Either all replicas of a set have disks or none has.
    pub log: paxos::Settings,
    /// How writes follow each other.
    pub pipelining: Pipelining,
    /// Whether each change is the whole state that it comes to, in the bytes of a checkpoint: the latest takes the place of all before
    /// it. The same at all replicas.
    pub whole_states: bool,
    /// Whether the host executes requests in any order: then they may wait at it for long, and it is told to [rest](Event::Rest) when a
    /// checkpoint is wanted. The same at all replicas.
    pub any_order: bool,
    /// Requests, and what came of them until it is chosen, beyond which calls wait, in bytes.
    pub in_flight_bytes_max: usize,
    /// Calls that wait beyond this are refused, in bytes.
    pub waiting_bytes_max: usize,
    /// Sessions beyond which the one used least recently ends.
    pub sessions_max: usize,
    /// A session ends when the leader has heard nothing of it for so long.
    pub session_idle: Duration,
    /// Remembered replies beyond which the session used least recently ends, in bytes.
    pub replies_bytes_max: usize,
    /// Calls with keys beyond which the oldest is forgotten.
    pub keyed_max: usize,
    /// Their replies beyond which the oldest is forgotten, in bytes.
    pub keyed_bytes_max: usize,
    /// Open transactions; those that would begin beyond wait.
    pub transactions_max: usize,
    /// A transaction ends when its client has said nothing for so long.
    pub transaction_idle: Duration,
    /// Changes of a transaction, in bytes.
    pub transaction_bytes_max: usize,
}

/// How writes follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipelining {
    /// The leader executes on its unchosen state, and proposes batches.
    Speculative,
    /// The leader executes a write when the one before is chosen (003 §VI.A.2).
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
            waiting_bytes_max: 64 << 20,
            sessions_max: 65_536,
            session_idle: Duration::from_secs(600),
            replies_bytes_max: 64 << 20,
            keyed_max: 65_536,
            keyed_bytes_max: 64 << 20,
            transactions_max: 1024,
            transaction_idle: Duration::from_secs(5),
            transaction_bytes_max: 1 << 20,
        }
    }
}

/// Results from the host, and wishes of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The answer to [`Event::Execute`]: in any order, which becomes that of the instances.
    Executed {
        /// Which.
        work: u64,
        /// The result.
        result: Executed,
    },
    /// The answer to [`Event::Rest`], behind all results of before.
    Rests {
        /// Which.
        rest: u64,
    },
    /// The answer to [`Event::CheckpointPartWanted`].
    CheckpointPart {
        /// Of which.
        checkpoint: u64,
        /// The bytes behind those given before.
        bytes: Bytes,
        /// Whether these are the last.
        last: bool,
    },
    /// Make this process, which must be joining, a replica, beyond the wanted number too.
    AddReplica(Peer),
    /// Remove this replica, which may be this one.
    RemoveReplica(ProcessId),
    /// More processes to ask for admission, while joining: those that were found where replicas should be.
    Seeds(Vec<Peer>),
    /// The host can do nothing more: nobody knows what its state is. The replica executes nothing from now on. What it has
    /// executed is agreed on, and what it has refused is told to its client, if that comes soon. Ends in [`Event::Resigned`].
    Resign,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executed {
    /// Nothing was changed.
    Unchanged {
        /// The reply.
        reply: Bytes,
    },
    /// The host has applied a change to its state, and can revert it until it is chosen.
    Changed {
        /// The reply.
        reply: Bytes,
        /// The change, as backups apply it.
        change: Bytes,
    },
    /// The request was refused, and nothing was changed.
    Rejected {
        /// For the client.
        reason: Bytes,
    },
}

/// Orders to the host, to be carried out in this order, and news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Execute a request on the present state, and apply what it changes. Ends in [`Command::Executed`], whose result is
    /// ignored if the reign is over by then.
    Execute {
        /// Counts up.
        work: u64,
        /// The request.
        request: Bytes,
        /// It must change nothing.
        read: bool,
        /// The transaction to which its change belongs: it is not chosen, and not reverted, with those of other works.
        transaction: Option<TransactionId>,
    },
    /// The changes of a transaction belong to this work from now on. Ends in [`Command::Executed`], unchanged and without a reply.
    Commit {
        /// Counts up with the others.
        work: u64,
        /// Which.
        transaction: TransactionId,
    },
    /// Revert the changes of a transaction, the latest first.
    Abort {
        /// Which.
        transaction: TransactionId,
    },
    /// The changes of the works that were executed up to this one, in the order in which [`Command::Executed`] came, are chosen, but for those of open
    /// transactions: they will not be reverted.
    Chosen {
        /// The last work.
        work: u64,
    },
    /// Revert every change of works that are not chosen, the latest first.
    Revert,
    /// Apply the changes of a batch, which another leader executed.
    Apply {
        /// The number of the batch's last instance.
        through: u64,
        /// In this order.
        changes: Vec<Bytes>,
    },
    /// Execute nothing, and answer with [`Command::Rests`], until a checkpoint was taken or changes are to be reverted. Told to hosts that execute in any order.
    Rest {
        /// Counts up.
        rest: u64,
    },
    /// Take a checkpoint of the present state, all of which is chosen, and drop an earlier one. Its parts are asked for one by one.
    Checkpoint {
        /// Counts up.
        checkpoint: u64,
    },
    /// The next part of the checkpoint is wanted, of about so many bytes.
    CheckpointPartWanted {
        /// Of which.
        checkpoint: u64,
        /// How many.
        bytes: usize,
    },
    /// The checkpoint is needed no more.
    CheckpointUnwanted,
    /// A part of another replica's checkpoint. Nothing is replaced yet.
    RestorePart {
        /// Parts that came before are void.
        first: bool,
        /// As [`Command::CheckpointPart`] gave it somewhere.
        bytes: Bytes,
    },
    /// The parts are the state from now on.
    Restore {
        /// The last instance that it holds.
        through: u64,
    },
    /// The leader, as far as this replica knows.
    Leader(Option<ProcessId>),
    /// This replica executes calls from now on: all that earlier leaders may have had chosen is chosen and applied.
    Serving,
    /// From now on these are the replicas.
    Members(Vec<Peer>),
    /// This process was a replica and is one no more.
    Removed,
    /// A change of the replicas will not be.
    ChangeRefused {
        /// What.
        change: Change,
        /// Why.
        reason: ChangeRefusal,
    },
    /// The log or a checkpoint does not decode: this replica cannot go on.
    Corrupt(String),
    /// This replica has told all that it could, as [`Command::Resign`] asks. It is to be taken away.
    Resigned,
}
