//! Partial quorums: maps whose every read and write chooses how many replicas it waits for.
//!
//! **Promise.** A map has N copies of each key, at cells that the [`Layout`] assigns. Any cell coordinates an
//! operation, at a [`Level`] that the operation chooses, and answers every operation exactly once. With R and
//! W for the replicas that a read and a write wait for:
//!
//! | levels | read repair | promise, for each key |
//! |---|---|---|
//! | R + W ≤ N | any | a read returns a written value, or none; replicas with the same writes are equal |
//! | any of [`Quorum`], [`All`], [`EachQuorum`] | none, background | *regular* |
//! | reads [`LocalQuorum`], writes [`EachQuorum`] | any | *regular* |
//! | any of [`Quorum`], [`All`], [`EachQuorum`] | blocking | *atomic* (linearizable) |
//!
//! *Regular* means that a read returns no value that another write had replaced before the read began.
//! *Atomic* holds even for writes that timed out and for copies that arrive late.
//!
//! A write whose level was not reached in time ends in `MaybeApplied`: it may take effect at any time from
//! then on, or never. Here a field of a hash counts as a key of its own. An operation on several fields
//! promises no more than separate operations on each field would. Increments of one key add up, through any
//! cells: [`counter`] states their promise. A value expires by the coordinator's wall clock, and counts as
//! deleted from then on. Reads near that moment may differ by the skew of clocks.
//!
//! [`Quorum`]: Level::Quorum
//! [`All`]: Level::All
//! [`EachQuorum`]: Level::EachQuorum
//! [`LocalQuorum`]: Level::LocalQuorum
//!
//! **Source.** 004 §I (partial quorums), §II.C (coordinator, direct and digest requests, timestamps, read
//! repair), §IV (timeouts, and another try at a smaller quorum). It builds on DeCandia and others, *Dynamo*
//! (2007), §4.2 ring, §4.5 coordinator; Lakshman and Malik, *Cassandra* (2010). Atomic registers: Attiya,
//! Bar-Noy and Dolev (1995); with several writers, Lynch and Shvartsman (1997).
//!
//! **Roles.** A *cell* is a process that keeps keys. It is a *replica* of the keys that it owns, and the
//! *coordinator* of the operations that its users request, on any key.
//!
//! ```text
//!   write at a quorum, blocking repair            read
//!   coordinator             replicas              coordinator             replicas
//!       ├── Ask ──────────────▶ │                     ├── Read ─────────────▶ │  one: the entry
//!       │◀──── HighestStamp ─── │                     ├── Read (digest) ────▶ │  the others
//!       │  stamp above them     │                     │◀── Entry, Digest ─── │
//!       ├── Write ────────────▶ │                     │  do they differ?      │
//!       │◀───────── Written ─── │                     ├── Read ─────────────▶ │  entries that differ
//!       ▼ done                  │                     │◀──────────── Entry ─ │
//!                                                     ├── Write (merged) ───▶ │  blocking: a quorum holds it
//!   other writes begin at Write; a replica that       │◀─────────── Written ─ │
//!   holds a newer stamp says so (Written, newer)      ▼ answer                │
//! ```
//!
//! **Invariants.**
//!
//! - *A stamp belongs to one write*: a clock never issues a stamp twice, and each life of a cell has its own
//!   number.
//! - *A replica never goes back*: its content only grows, in the order of [merging](Entry::merge). Merging
//!   keeps the write with the highest stamp for each field. It keeps the latest state of each tally of a
//!   counter, or the tally that has taken it in. An acknowledgement means: from now on the replica holds this
//!   write, or a newer one.
//! - *A replica counts once*, by its place among the key's owners, and never for another life of its node.
//! - *All of a write's replicas are owners* in the layout that coordinator and replica have in common: a
//!   replica refuses a request of another layout version.
//! - *Quorums meet*: any two sets that satisfy [`Level::is_quorum`] levels share a replica.
//! - *In a map with blocking repair a write at a quorum level has one stamp*. That stamp is above the stamps
//!   of all writes that ended before the write began, and of all values that reads returned before the write
//!   began.
//!
//! **Why R + W > N is regular.** Let write w at a quorum level end before read r begins. A quorum holds w's
//! last stamp, or a newer one. The quorum of r shares a replica with that quorum. So r sees that stamp or a
//! higher one, and returns a value v with a stamp at least as high. Could v have been replaced before r
//! began, by a write w' that began after v's write ended? Such a w' would have a higher stamp than v, because
//! w' sent its stamp to a quorum, of which one replica held v's stamp or a newer one. If w' had the lower
//! stamp, this replica reported the higher one, and the coordinator wrote w' again with a higher stamp. One
//! such second round is enough: the quorum answered after w' began, so it covers all writes that ended
//! before. A still newer stamp in the second round belongs to a concurrent write. So the quorum of w' would
//! have shown r a higher stamp than v's, and r returns the highest.
//!
//! **Why writing again with a higher stamp is not atomic.** A write that is repeated with a higher stamp has
//! two stamps for one value. Say w1 has stamp 100 and has reached replica x only; w2's first stamp is 50 and
//! has reached y and z. A read of y and z returns w2. A read of x and y returns w1. Then w2 learns of stamp
//! 100 and writes itself again with 101. A third read returns w2, so w2 took effect twice. Blocking repair,
//! equal digests, or more acknowledgements do not prevent it: both stamps were visible. To withdraw the first
//! stamp, replicas would have to keep the earlier value until the coordinator allowed them to drop it.
//!
//! **Why blocking repair is atomic.** Here a write at a quorum level first asks a quorum for the highest
//! stamp, and then writes once, above it. That costs one round trip more than a write at a lower level, as in
//! Lynch and Shvartsman. So each write has one stamp, however late copies of it arrive. A copy that is sent
//! again, or comes from a hint or from any repair, carries the stamp and value of the only write that has it.
//! Order all writes of a key by their stamps, and each read right behind the write that it returned. This
//! order is right if it never contradicts time:
//!
//! 1. *A write w after a write v that ended.* A quorum holds v's stamp or a newer one before w begins. w asks
//!    a quorum that shares a replica with that quorum, and takes a higher stamp.
//! 2. *A read r after a write v that ended.* r's quorum meets v's, and r returns the highest stamp that it
//!    saw, or a newer one.
//! 3. *A write w after a read r that returned v.* Before r answered, a quorum held v or a newer value. Either
//!    the replicas that answered agreed on that value and are a quorum, or r wrote v to the outdated replicas
//!    until a quorum acknowledged. The rest is as in 1.
//! 4. *A read after a read.* As in 3, and then as in 2.
//!
//! The argument does not assume that v's write ended well. A write of unknown outcome that no read ever
//! returns is left out of the order. If a read returns such a write, the write's stamp gives it a place. All
//! operations that ended before the write began are below it, by 1 and 3: the write asked before it took a
//! stamp. All operations that begin after the read that returned the write are above it, by 3 and 4. Between
//! these operations the write may take effect at any time, as `MaybeApplied` says. The arrival time of its
//! last copy plays no part: a replica that holds a newer value keeps it, and a replica that takes the copy
//! shows a value that has its place in the order already. A hint or a repair is no read and ends no write, so
//! it adds nothing to the order. If a coordinator dies half way, its operation has an unknown outcome, which
//! the argument covers.
//!
//! The argument needs three more facts. Replicas do not forget: a cell that comes back without its memory is
//! another cell, and takes the former cell's place only as an arriving cell (`arrival`). A cell that comes
//! back from its disk has all writes that it acknowledged and showed (`journal`). The owners of a key do not
//! change during an operation: if they do, the operation ends. No deletion is forgotten while any cell holds
//! an older write of the key or such a write is under way (`horizon`).
//!
//! **Hints.** A coordinator sends a write to all owners. Once the level is met, it goes on waiting for the
//! reachable owners. When the operation's time is over, it keeps a hint for each owner that has not
//! acknowledged (Dynamo §4.6). A hint is a copy of a write, never an acknowledgement: a level counts owners
//! only. Hints have limits of bytes and of age. When the coordinator gives a hint up, it reports this
//! ([`Event::Lacks`]). A cell that takes another's place gets a hint of every write that any owner of the key
//! has not received: the owners that it copies from may lack that write. Hints end with their coordinator,
//! and are not on disk.
//!
//! **Repair.** Cells compare their keys with each other all the time, by hash trees, and take the entries
//! that they lack (`repair`). So replicas become equal even if hints were lost and no key was read. Once all
//! cells have all writes up to some stamp, they forget values that were deleted or had expired up to that
//! stamp (`horizon`).
//!
//! **Attacks considered.**
//!
//! - *A replica with the stamp of a fast clock.* A completed write holds stamp 100, and the next
//!   coordinator's clock says 50. The replica that both quorums share answers `newer`, or reported 100 when
//!   it was asked, so the second write goes above. At levels that do not meet, the second write is lost
//!   without notice: that is the first row of the table.
//! - *A clock ahead by more than is allowed.* Replicas refuse its cell's stamps and count the refusals, and
//!   its writes end in an error. A stamp that a replica took while its own clock was right is at most the
//!   allowed skew ahead, so later writes can go above it.
//! - *A clock that jumps back.* The cell goes on above the stamps that it issued before, and refuses to issue
//!   once they are too far ahead.
//! - *A digest mismatch while a write is under way.* The read asks the owners that differ for their entries.
//!   Meanwhile they may differ again, which does no harm. Each entry that comes is as new as the digest, or
//!   newer, and the read merges the entries. With blocking repair the merged entry is written back and
//!   acknowledged, whatever the replicas hold by then.
//! - *Digests that agree though entries differ.* A digest has the highest stamp and 64 bits of the content.
//!   Two entries with one highest stamp differ only in writes below it. No attacker chooses stamps, so the
//!   only risk is chance: 2⁻⁶⁴ for each pair of entries.
//! - *A timed-out write that one read sees and the next read does not.* With blocking repair the first read
//!   leaves the write at a quorum. Without blocking repair, regular reads allow this.
//! - *A copy of an old write that arrives after a delete.* If the replica still has the delete, the delete
//!   has the higher stamp and wins. If the replica has forgotten the delete, it ignores the copy.
//! - *A hint replayed after a delete.* The replica treats the hint like a copy of an old write. A hint of a
//!   delete that comes after a later write loses to that write's stamp.
//! - *A hint that is acknowledged while more is merged into it.* The hint stays, because the owner has
//!   acknowledged only the content that was sent.
//! - *A replica that counts twice* because it answered two requests, or a repeated request. Answers are a set
//!   of owners, by index; a digest and an entry of one replica are one answer.
//! - *A cell that restarts without a disk.* Its next life is another process, and is refused until the order
//!   gives it a place. There it takes writes, but counts for no level and answers no read, until it has
//!   copied the entries that all other cells have of its keys.
//! - *A power cut of all cells.* With disks each comes back as itself, and every write that was acknowledged
//!   or shown is still there (`journal`).
//! - *A cell that lives although its place was given away.* Until one more former owner learns the new
//!   layout, that owner and this cell may be a majority of the earlier layout, and may acknowledge or answer
//!   an operation. Meanwhile former owners alone meet levels of the new layout, and their majorities meet.
//!   When the arriving cell counts, each former owner has answered it under the new layout.
//! - *An answer to an operation that ended.* Operations have numbers that are not used again, so the answer
//!   finds no operation.
//! - *A link that breaks.* The coordinator sends requests that may have been lost again on the next link,
//!   under the same number. Writes can be repeated at will: merging is idempotent.
//!
//! **Where we differ, and why.** Cassandra acknowledges a write whose stamp lost against a faster clock. Here
//! a quorum write gets a stamp above the stamps of all writes that were acknowledged before. Cassandra's
//! blocking read repair does not make quorum reads and writes atomic (004 §III.C remarks that quorums do not
//! guarantee it), for the two reasons above: clocks, and writes that time out. Silence never removes a cell:
//! suspicion only chooses which cells to ask.

mod arrival;
mod cell;
mod clock;
mod compare;
mod coordinator;
pub mod counter;
mod delays;
mod entry;
mod hints;
mod horizon;
mod id;
mod increment;
mod journal;
mod layout;
mod level;
mod message;
mod operation;
mod owner;
mod repair;
mod replica;
pub mod resident;
mod ring;
mod routing;
mod running;
mod scan;
mod stamp;
mod store;
mod tallies;
#[cfg(test)]
mod tests;
mod token;
mod tree;

pub use self::{
    cell::{Cell, Command, Event, Settings, Status},
    clock::{Clock, Skewed},
    compare::{ArcContent, DifferenceCount, Item},
    coordinator::Patience,
    counter::Tally,
    entry::{Digest, Entry, Kind, Register, Value},
    hints::{HintCounts, HintLimits},
    horizon::{Horizon, HorizonReport},
    id::{CellNumber, LayoutVersion, MapId, Site},
    journal::{Began, Record, Unrecoverable},
    layout::{
        Copies, Layout, LayoutMember, LayoutOrder, LayoutRefusal, MAPS_MAX, Map, ReadRepair, Strategy,
        TOKENS_MAX,
    },
    message::{Answer, Demand, Listed, Message, ReplicaRefusal, Request, Round},
    operation::{Action, Operation, OperationOutcome, Rejection},
    owner::{Owner, Owners, Share},
    repair::{RepairCounts, RepairSettings},
    replica::{Limits, MapsReplica, RefusalCounters},
    resident::{JoinOptions, Resident},
    ring::Ring,
    routing::{Change, ChangeRefusal, Maps, MemberEntry, NAME_BYTES_MAX, Roster, tokens_of},
    scan::{Scan, Scanned},
    stamp::Stamp,
    token::{Arc, Token},
};
pub use crate::strength::Level;
