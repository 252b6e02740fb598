//! Rubberband: elastic, replicated tables on E-Cast.
//!
//! **Promise.** Rows live on a ring of keys. Each range of the ring is replicated at `f` storage processes
//! that follow each other. A write takes effect at one position of the total order at every replica of
//! every range it touches, or nowhere; one replica per range answers it, once. A `snapshot` read happens
//! between two positions. So does a `sequential` read, after all writes that were acknowledged before it
//! began. For a `basic` read, each replica answers with the rows that it has. Standbys replace storage
//! processes that die, while reads and writes go on.
//!
//! **Source.** 002 §6: ring and successor replication (§6.2), routing (§6.3, algorithm 3), asynchronous
//! reconfiguration by instructions (§6.4), isolation of reads (§6.7).
//!
//! **Roles.** [`Storage`] holds ranges and executes; [`Client`] (a gateway) submits and collects answers;
//! [`Super`] watches all members, announces failures and changes the placement. All three are members of
//! E-Cast and keep a copy of the [`Config`], which only [`Control`] messages in the total order change.
//!
//! ```text
//!  client            routers            replica A        replica B        standby E
//!    │ write [k], offset │                 │                │                │
//!    ├──────────────────▶│── Deliver @7 ──▶│── Deliver @7 ─▶│                │
//!    │◀── Reply @7 (A answers for k) ──────┤  execute       │ execute        │
//!    │◀── Notice: stable ┤                 │                │                │
//!    │        super: Replace{D → E, copy from B} @9 ───────▶│ pin @9         │
//!    │                   │                 │                │◀── Fetch @9 ───┤
//!    │                   │── Deliver @10 ─▶│ ─ ─ ─ ─ ─ ─ ─ ▶│ ─ ─ ─ ─ ─ ─ ─ ▶│ queued after the import
//!    │                   │                 │                ├── Chunk ──────▶│
//!    │                   │◀──────────── Complete ───────────┼────────────────┤ reads may go to E
//! ```
//!
//! **Invariants.**
//! - *One configuration.* All members apply the same control messages at the same positions. So a storage
//!   process computes, for each message, the same assignment of ranges as the routers did.
//! - *S14.* A process is removed in two ordered steps; between them it may [refute](crate::suspicion) the
//!   first. If a range would keep no complete, unsuspected replica, the process is not removed but becomes
//!   unreachable. Its ranges then refuse writes until it returns or an operator declares it lost. A removed
//!   process [keeps](keeping) its rows until other processes have them.
//! - *S15.* A write that can fail and spans ranges is evaluated by each replica at its position. The replicas
//!   exchange verdicts. They publish the write if all verdicts are favourable and void it everywhere
//!   otherwise. Answers with different stamps are never combined.
//! - *Migration.* Every replica of a moving range pins the version at the position of the change until the
//!   receiver is complete. So any of them can send, and the death of a sender costs one retry.
//! - *S6.* A write carries a request id and the hash of its statement. Its ranges remember the answer until
//!   an ordered message lets them forget it. They answer a repetition from memory and refuse another
//!   statement under the same id. This memory moves with the range, in sections, and is bounded in bytes.
//!   If the ranges of a repetition exchange verdicts, a range that remembers the write sends the verdict
//!   that it remembers. The first write under a made-up id opens the id; an ordered message expires it
//!   (`made_up`). After a repetition, an error is definite only if it concerns the id: that *this* attempt
//!   was not sent, or was refused, says nothing about an earlier attempt ([`ClientError::of_repetition`]).
//! - *Reads end.* A read ends in one answer, however long it takes. The client never sends it to a second
//!   replica merely because it is slow. After a while without news it asks the processes that should answer
//!   whether they still execute the read. A process that executes the read replies at once, because the
//!   engine works on another thread than the protocol, and the client goes on waiting. The client replaces a
//!   process only if it is gone, has no link, refuses, does not know the read, or does not reply (a stopped
//!   process). Then the client starts the read again elsewhere and cancels it at the processes that it had
//!   asked. The client holds the answer back until every part of it has begun. A read whose beginning the
//!   user has seen is not started again but fails ([`ClientError::Broken`]).
//! - *No read takes the last replica.* If a process dies while it executes a read, the client sends the read
//!   to one more replica of each range. It sends the read only if a further complete replica would remain. At
//!   the second death the read fails (`client::read`).
//! - *S8.* The placement has a version of its own. Only changes of storage processes and of the keyspace
//!   raise it. Basic reads and plans compare it.
//!
//! **Where we differ, and why.**
//! - All replicas execute a write, and one per range answers. The message's offset chooses that replica, as
//!   for reads. If it dies before its answer arrives, the client asks the other replicas, which remember the
//!   answer.
//! - The paper's storage engine cannot go back in time, so a migration whose sender dies fails there. Ours
//!   pins the position.
//! - A dead process stays on the ring until it is replaced, but leaves the membership, as in the paper. An
//!   *unreachable* process stays in both.
//! - Expand, contract and rebalance are not here yet; `Place` founds a ring once.
//!
//! | file | subject |
//! |---|---|
//! | `config`, `control`, `placement` | configuration, messages that change it, ranges of each process |
//! | [`away`] | a process that stops of its own will and comes back from its disk |
//! | [`keeping`] | a process that was removed keeps its rows until others have them |
//! | `made_up` | ids that applications make up: one statement each, until they expire |
//! | `message` | the messages in the order and outside it |
//! | `membership` | the common part of all members: join, apply control messages, give signs of life |
//! | `client` | a gateway's end: reads, writes, and how each request ends |
//! | `storage` | a storage process: steps, batches, verdicts, memory of replies, moving ranges |
//! | [`suspicion`](crate::suspicion) | from one process's guess to a removal |
//! | `super_process` | a super: watching, and replacement |
//!
//! **The ids of one write.** A write travels under eight names. Each layer needs a name with its own
//! lifetime:
//!
//! | id | made by | compared by | lives until |
//! |---|---|---|---|
//! | `RequestName` (SQL) | SQL session or application | SQL session (statement) | the application drops it |
//! | `session::Request` (SQL) | SQL session, per sending | nobody | the write is answered |
//! | [`WriteName`] | SQL session | ranges (statement) | ranges forget the `RequestId` |
//! | `RequestId` | [`Client`], or a digest | routers, ranges | `Forget` or `Expire` is ordered |
//! | token | user of the [`Client`] | [`Client`] | `Done` or `Failed` |
//! | attempt | [`Client`], per sending | [`Client`] | the next attempt, or the end |
//! | `MessageId` | `Member` of E-Cast | routers, members | its outcome is known |
//! | `Position` | lead router | everybody | for ever; never used twice |
//!
//! - A SQL client repeats its write under its `RequestName`. A `session::Request` pairs that name with the
//!   `WriteName` that is sent.
//! - A `WriteName` adds a hash of the statement to the `RequestId`, so that ranges refuse another statement.
//! - A token tells a user's requests apart. An attempt tells answers apart: the client drops answers to old
//!   attempts.
//! - A `MessageId` lets routers drop a copy of a message that was sent again; a repeated write has a new
//!   `MessageId`.
//!
//! The `token` of a [`DataHeader`] and of a [`Reply`] is the client's attempt.

pub mod altering;
pub mod away;
mod client;
mod config;
mod control;
mod journal;
pub mod keeping;
mod kept;
mod made_up;
mod membership;
mod message;
mod operator;
mod placement;
mod range;
pub mod refusal;
#[cfg(test)]
mod sample;
mod storage;
mod super_process;

use crate::{id::RequestId, role::Role};

pub use self::{
    client::{Client, ClientCommand, ClientError, ClientEvent, ClientSettings, ProcessAnswer},
    config::{
        Config, DEFINITIONS_SINCE, LATEST_SINCE, MemberInfo, RING_MAX, ROUTING_VERSION, Rubberband,
        StorageState, TRANSACTIONS_SINCE, TYPES_SINCE, TableEntry,
    },
    control::{Control, Removal, TableChange},
    journal::{Began, Record, Unrecoverable},
    kept::KeptRows,
    made_up::MadeUpIds,
    membership::LeaveRefusal,
    message::{
        DataHeader, DataKind, Direct, Message, ReadCost, Reply, ReplyContent, TransferCursor, WriteName,
    },
    operator::{SuperCommand, SuperEvent, SuperRefusal},
    placement::Assignment,
    range::{Range, Segment},
    storage::{
        Handover, PauseRefusal, Storage, StorageCommand, StorageEvent, StorageSettings, StorageStatus, Task,
        TaskKind, TaskResult,
    },
    super_process::{Super, SuperSettings},
};
