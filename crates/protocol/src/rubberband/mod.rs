//! Rubberband: elastic, replicated tables on E-Cast.
//!
//! **Promise.** Data lives on a ring of keys, replicated at `f` storage processes that follow each other. A write takes
//! effect at one position of the total order at every replica of every range it touches, or at none; it is answered
//! once, per range, by a replica that executed it. A read at `sequential` strength happens at one position, a `snapshot`
//! read between two, a `basic` read per replica. Storage processes that die are replaced by standbys while reads and
//! writes go on.
//!
//! **Source.** 002 §6: ring and successor replication (§6.2), routing (§6.3, algorithm 3), asynchronous reconfiguration
//! by instructions (§6.4), isolation of reads (§6.7).
//!
//! **Roles.** [`Storage`] holds ranges and executes; [`Client`] (a gateway) submits and collects answers; [`Super`]
//! watches everyone, announces failures and changes the placement. All three are members of E-Cast and keep a replica of
//! the [`Config`], which changes only by [`Control`] messages in the total order.
//!
//! ```text
//!  client            routers            replica A        replica B        standby E
//!    │ write [k], offset │                 │                │                │
//!    ├──────────────────▶│── Deliver @7 ──▶│── Deliver @7 ─▶│                │
//!    │◀── Reply @7 (A answers for k) ──────┤  execute       │ execute        │
//!    │◀── Notice: stable ┤                 │                │                │
//!    │        super: Replace{D → E, copy from B} @9 ───────▶│ pin @9         │
//!    │                   │                 │                │◀── Fetch @9 ───┤
//!    │                   │── Deliver @10 ─▶│ ─ ─ ─ ─ ─ ─ ─ ▶│ ─ ─ ─ ─ ─ ─ ─ ▶│ queued behind the import
//!    │                   │                 │                ├── Chunk ──────▶│
//!    │                   │◀──────────── Complete ───────────┼────────────────┤ reads may go to E
//! ```
//!
//! **Invariants.**
//! - *One configuration.* Members apply the same control messages at the same positions, so a storage process computes
//!   for a message the very assignment of ranges that the routers used.
//! - *S14.* A process is removed in two ordered steps, between which it may [refute](crate::suspicion). It is not removed where
//!   a range would keep no complete replica that is unsuspected: it becomes unreachable, and the range refuses writes until
//!   it returns or is declared lost. A process that was removed [keeps](keeping) its rows until others have them.
//! - *S15.* A write that can fail and spans ranges is evaluated by each replica at its position; verdicts are exchanged;
//!   it is published where all are favourable and voided everywhere otherwise. Answers with different stamps are never
//!   combined.
//! - *Migration.* Every replica of a moving range pins the position of the change until the receiver is complete, so any
//!   of them can send, and a sender's death costs a retry.
//! - *S6.* A write carries a request id and the print of its statement. Its ranges remember the answer until an ordered
//!   message allows them to forget; a repetition is answered from memory, and another statement under the id is refused. The
//!   memory moves with the range, in sections, and is bounded in bytes. A range that remembers a write takes part in the
//!   exchange of verdicts on its repetition by what it remembers. A made-up id is opened by its first write, and
//!   expires by an ordered message (`made_up`). What a client is told of a repetition is definite only if it is about the
//!   id: that this attempt was not sent, or refused, says nothing of an earlier one ([`ClientError::of_repetition`]).
//! - *Reads end.* A read ends in one answer, however long it takes. It is never asked of a second replica because it is
//!   slow: after a while without news the client asks those it was sent to whether they are at it. They say so
//!   at once, since the engine works beside the protocol, and are waited for. Only who is gone, unlinked, refuses, knows
//!   nothing of it or is silent when asked (a process that is stopped) is replaced: the read begins anew, elsewhere, and
//!   those who were at it are told to give it up. The client gathers the answer until all of it has begun; a read of which its
//!   user has the beginning is not begun anew, but fails ([`ClientError::Broken`]).
//! - *No read takes the last replica.* A read at which a process died is asked of one more replica of each range, and only
//!   where a further complete one would remain; at the second death it fails (`client::read`).
//! - *S8.* Placement has a version of its own, bumped by storage and keyspace changes only; basic reads and plans compare
//!   it.
//!
//! **Where we differ, and why.**
//! - All replicas execute a write, one per range answers: chosen by the message's offset, as for reads. A client that
//!   misses an answer because its replica died asks the others, who remember it.
//! - The paper's storage engine can not go back in time, so a migration whose sender dies fails; ours pins the position.
//! - The dead stay on the ring until replaced, but not in the membership, as in the paper; who is *unreachable* stays in
//!   both.
//! - Expand, contract and rebalance are not here yet; `Place` founds a ring once.
//!
//! | file | subject |
//! |---|---|
//! | `config`, `control`, `placement` | the configuration, what changes it, and who holds which range by it |
//! | [`away`] | a process that stops of its own will, and comes back from its disk |
//! | [`keeping`] | a process that was removed keeps its rows until others have them |
//! | `made_up` | ids that applications make up: one statement each, until they expire |
//! | `message` | what travels in the order and beside it |
//! | `membership` | what all members do: join, apply control messages, give signs of life |
//! | `client` | a gateway's end: reads, writes, and how each request ends |
//! | `storage` | a storage process: steps, batches, verdicts, what is remembered, moving ranges |
//! | [`suspicion`](crate::suspicion) | from one process's guess to a removal |
//! | `superior` | a super: watching, and replacement |

pub mod away;
mod client;
mod config;
mod control;
mod journal;
pub mod keeping;
mod made_up;
mod membership;
mod message;
mod operator;
mod placement;
#[cfg(test)]
mod sample;
mod storage;
mod superior;

use crate::{id::RequestId, role::Role};

pub use self::{
    client::{Answered, Client, ClientCommand, ClientError, ClientEvent, ClientSettings},
    config::{Config, MemberInfo, RING_MAX, ROUTING_VERSION, Rubberband, StorageState, TableEntry, refusal},
    control::{Control, Removal},
    journal::{Began, Record, Unrecoverable},
    keeping::Keeps,
    made_up::MadeUpIds,
    membership::LeaveRefusal,
    message::{DataHeader, DataKind, Direct, Message, Reply, ReplyContent, Spent, TransferCursor, WriteName},
    operator::{SuperCommand, SuperEvent, SuperRefusal},
    placement::{Assignment, Range, Segment},
    storage::{
        PauseRefusal, Remains, Storage, StorageCommand, StorageEvent, StorageSettings, StorageStatus, Task,
        TaskKind, TaskResult,
    },
    superior::{Super, SuperSettings},
};
