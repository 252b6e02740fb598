//! Partial quorums: maps whose every read and write says how many replicas it waits for.
//!
//! **Promise.** A map has N copies of each key, at cells that the [`Layout`] gives it. Any cell coordinates an operation, at a
//! [`Level`] of the operation's own, and answers every operation exactly once. With R and W for the replicas that a read and a
//! write wait for:
//!
//! | levels | read repair | promise, for each key |
//! |---|---|---|
//! | R + W ≤ N | any | a read returns a value that somebody wrote, or none; replicas that have the same writes have the same value |
//! | reads and writes at [`Quorum`](Level::Quorum), [`All`](Level::All) or [`EachQuorum`](Level::EachQuorum), in any mixture | none, background | *regular*: a read returns no value that another write had replaced before the read began |
//! | reads [`LocalQuorum`](Level::LocalQuorum), writes [`EachQuorum`](Level::EachQuorum) | any | regular |
//! | as in the second row | blocking | *atomic* (linearizable), writes that timed out and copies that arrive late included |
//!
//! A write whose level was not reached in time ends in `MaybeApplied`: it may take effect at any time from then on, or never.
//! A field of a hash counts as a key of its own here. Operations on several fields are no more than operations on each. Increments of
//! one key add up, through whatever cells they go; what is promised of them stands in [`counter`]. A
//! value that expires does so by the coordinator's wall clock, and is as good as deleted from then on; reads near that
//! moment may differ by the skew of clocks.
//!
//! **Source.** 004 §I (partial quorums), §II.C (coordinator, direct and digest requests, timestamps, read repair), §IV
//! (timeouts, and another try at a smaller quorum). It stands on DeCandia and others, *Dynamo* (2007), §4.2 ring, §4.5
//! coordinator; Lakshman and Malik, *Cassandra* (2010). Atomic registers: Attiya, Bar-Noy and Dolev (1995); with several
//! writers, Lynch and Shvartsman (1997).
//!
//! **Roles.** A *cell* is a process that keeps keys. It is *replica* of the keys that it owns, and *coordinator* of the operations
//! that it is asked for, of any key.
//!
//! ```text
//!   write at a quorum, blocking repair            read
//!   coordinator             replicas              coordinator             replicas
//!       ├── Ask ──────────────▶ │                     ├── Read ─────────────▶ │  one: the entry
//!       │◀──── Told (newest) ── │                     ├── Read (digest) ────▶ │  the others
//!       │  stamp above them     │                     │◀── Entry, Digest ─── │
//!       ├── Write ────────────▶ │                     │  do they differ?      │
//!       │◀───────── Written ─── │                     ├── Read ─────────────▶ │  entries of those that differ
//!       ▼ done                  │                     │◀──────────── Entry ─ │
//!                                                     ├── Write (merged) ───▶ │  blocking repair: until a quorum holds it
//!   other writes begin at Write; a replica that       │◀─────────── Written ─ │
//!   holds a newer stamp says so (Written, newer)      ▼ answer                │
//! ```
//!
//! **Invariants.**
//!
//! - *A stamp belongs to one write*: a clock never issues one twice, and a life of a cell has a number that no other has.
//! - *A replica never goes back*: what it holds only grows, in the order of [merging](Entry::merge), and merging keeps for
//!   each field the write with the highest stamp, and of each tally of a counter its latest state, or what has taken it in. An acknowledgement says: the replica holds this, or newer, from now on.
//! - *A replica counts once*, by its place among the key's owners, and never for another life of its node.
//! - *All of a write's replicas are owners* in the layout that coordinator and replica have in common: a replica refuses a
//!   request of another layout's version.
//! - *Quorums meet*: any two sets that satisfy [`Level::is_quorum`] levels share a replica.
//! - *In a map with blocking repair a write at a quorum level has one stamp*, which is above that of every write that ended
//!   before it began and of every value that a read returned before it began.
//!
//! **Why R + W > N is regular.** Let w write at a quorum level and end before read r begins. A quorum holds w's last stamp, or
//! newer; r's quorum shares a replica with it. So r sees that stamp or a higher one, and returns a value v with a stamp at
//! least as high. Could v have been replaced before r began, by a write w' that began after v's write ended? That w' would have
//! a higher stamp than v. For w' sent its stamp to a quorum, of which one replica held v's stamp, or newer. If
//! w's stamp was lower, this replica said so and w' was written again, above. One such second round is enough: what
//! a quorum told was told after w' began, so it covers all that ended before. A still newer stamp in the second round belongs to a
//! write that runs at the same time. So w's quorum would have shown r a higher stamp than v's, and r returns the highest.
//!
//! **Why writing above is not atomic.** In a write that is raised one value has two stamps. Say w1 has stamp 100 and has
//! reached replica x only; w2's first stamp is 50 and has reached y and z. A read of y and z returns w2. A read of x and y
//! returns w1. Then w2 learns of stamp 100 and writes itself again with 101. A third read returns w2. It took effect twice, and
//! repairs that block, digests that agree, or any number of acknowledgements do not prevent it: both stamps were
//! visible. To take the first stamp back, replicas would have to keep what they had before, until they were told.
//!
//! **Why blocking repair is atomic.** So there a write at a quorum level asks first, at a quorum, for the highest stamp, and
//! then writes once, above it. That is a round trip more than a write at a lower level has, and the same as Lynch and
//! Shvartsman have. Each write has one stamp from then on, however late copies of it arrive: sent again, from a hint, or by a
//! repair of any kind, a copy carries the stamp and value of the only write that has it. Order all writes of a key by their
//! stamps, and each read right behind the write that it returned. This order is right if it never contradicts time:
//!
//! 1. *A write w after a write v that ended.* A quorum holds v's stamp or newer before w begins. w asks a quorum, meets it, and
//!    goes above.
//! 2. *A read r after a write v that ended.* r's quorum meets v's, and r returns the highest stamp that it saw, or newer.
//! 3. *A write w after a read r that returned v.* Before r answered, a quorum held v or newer: either those that answered agreed
//!    on it and are a quorum, or v was written to those that lacked it until a quorum acknowledged. As in 1.
//! 4. *A read after a read.* As in 3, and then as in 2.
//!
//! Nowhere did it matter whether v's write ended well. A write of unknown outcome that no read ever returns is left out of the
//! order. One that a read returns has a place, by its stamp. All that ended before it began is below it, by 1 and 3: it
//! asked before it had a stamp. All that begins after the read that returned it is above, by 3 and 4. Between these it may
//! take effect at any time, which is what `MaybeApplied` says. When its last copy arrives plays no part: a replica that
//! holds newer keeps newer, and one that takes it makes visible what has its place in the order already. A hint or a
//! repair is no read and ends no write, so it adds nothing to the order. Should a coordinator die half way, its operation
//! is of unknown outcome, and no other question arises.
//!
//! The argument needs three more things. Replicas do not forget: a cell that comes back without its memory is another cell, and
//! takes the place of the one before only as arriving (`arrival`); one that comes back from its disk has all that it acknowledged and
//! all that it showed (`journal`). The
//! owners of a key do not change in the middle of an operation: where they do, it ends. No deletion is forgotten while an older write of the
//! key is held anywhere or still under way (`horizon`).
//!
//! **Hints.** A write goes to all owners. The coordinator waits beyond the level for those that can be reached, and keeps a hint
//! for each owner that has not acknowledged when the operation's time is over (Dynamo §4.6). A hint is a copy of a write, never
//! an acknowledgement: a level counts owners only. Hints have limits of bytes and of age; where one is given up, the coordinator says
//! so ([`Event::Lacks`]). A cell that takes another's place gets a hint of all that any owner of the key is still to get: the
//! owners that it copies from may lack it. Hints die with their coordinator, and are on no disk.
//!
//! **Repair.** Cells compare their keys with each other all the time, by hash trees, and take what they lack (`repair`). So replicas
//! become equal though hints were lost and nothing was read. Once all cells have everything up to some stamp, what was deleted or
//! had expired up to there is forgotten (`horizon`).
//!
//! **Attacks considered.**
//!
//! - *A replica with the stamp of a fast clock.* A completed write holds stamp 100, and the next coordinator's clock says 50. The
//!   replica that both quorums share says `newer`, or told 100 when it was asked; the second write goes above. At levels that
//!   do not meet, the second write is lost without a word; that is the first row of the table.
//! - *A clock ahead by more than is allowed.* Its cell's stamps are refused by replicas, which count them, and its writes end
//!   in an error. A stamp that was taken while the replica's own clock was right stays writable above, for it is at most the
//!   allowed skew ahead.
//! - *A clock that jumps back.* The cell goes on above what it issued before, and refuses to issue once that is too far ahead.
//! - *A digest mismatch while a write is under way.* The read asks for the entries of those that differ. Meanwhile they may
//!   differ again. It does not matter: each entry that comes is as new as the digest, or newer; they are merged; and with
//!   blocking repair what was merged is written back and acknowledged, whatever the replicas hold by then.
//! - *Digests that agree though entries differ.* A digest has the highest stamp and 64 bits of the content. Two entries with
//!   one highest stamp differ only in what lies below. Nobody chooses stamps, so this is left to chance: 2⁻⁶⁴ each.
//! - *A timed-out write that one read sees and the next one does not.* Blocking repair: the first read leaves it at a quorum.
//!   Else that is what regular allows.
//! - *A copy of an old write that arrives after a delete.* The delete's entry is there and has the higher stamp, or it is forgotten,
//!   and the copy is passed over.
//! - *A hint replayed after a delete.* The same. And a hint of a delete after a later write loses to that write's stamp.
//! - *A hint that is acknowledged while more is merged into it.* It stays: only what was sent is done.
//! - *A replica that counts twice* because it answered two requests, or a request that was sent again. Answers are a set of
//!   owners, by index; a digest and an entry of one replica are one answer.
//! - *A cell that restarts without a disk.* Its next life is another process, and what it says is refused until the order gives it a place.
//!   There it takes writes, but counts for no level and answers no read, until it has copied what all other cells have of its keys.
//! - *A power cut of all cells.* With disks each comes back as itself, and nothing that was acknowledged or shown is gone (`journal`).
//! - *A cell whose place was given away, and that lives.* It and one more former owner might be a majority of the earlier layout, and
//!   acknowledge or answer something, until that owner learns the new layout. Meanwhile levels of the new layout are met by former
//!   owners alone, and their majorities meet. When the arriving cell counts, each former owner has answered it under the new layout.
//! - *An answer to an operation that ended.* Operations are numbered and numbers are not used again; it finds nothing.
//! - *A link that breaks.* Requests that may have been lost are sent again on the next link, under the same number. Writes can be
//!   repeated at will: merging is idempotent.
//!
//! **Where we differ, and why.** Cassandra acknowledges a write whose stamp lost against a faster clock; here a quorum
//! write is above all that was acknowledged before. Its blocking read repair does not make quorum reads and writes atomic (004
//! §III.C remarks that quorums do not guarantee it), because of the two reasons above: clocks, and writes that time out. A cell is
//! never removed for being silent: suspicion only chooses whom to ask.

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
mod increment;
mod journal;
mod layout;
mod level;
mod message;
mod operation;
mod repair;
mod replica;
pub mod resident;
mod ring;
mod routing;
mod scan;
mod store;
#[cfg(test)]
mod tests;
mod tree;

pub use self::{
    cell::{Cell, Command, Event, Settings, Status},
    clock::{Clock, Skewed, Stamp},
    compare::{Item, Pace, Part},
    coordinator::{Action, Operation, Patience},
    counter::Tally,
    entry::{Digest, Entry, Register, Value},
    hints::{HintCounts, HintLimits},
    horizon::{Horizon, Word},
    journal::{Began, Record, Unrecoverable},
    layout::{
        CellNumber, Copies, Layout, LayoutOrder, LayoutRefusal, LayoutVersion, Map, MapId, Member,
        ReadRepair, Strategy, TOKENS_MAX,
    },
    level::Level,
    message::{Answer, Demand, Message, Refusal, Request, Round},
    operation::{Outcome, Rejection},
    repair::{RepairCounts, RepairSettings},
    replica::{Limits, Refused, Replica},
    resident::{Place, Resident},
    ring::{Owner, Owners, Ring, Share, Site, Token},
    routing::{Change, ChangeRefusal, Maps, NAME_BYTES_MAX, Roster, Seat, tokens_of},
    scan::{Kind, Listed, Scan, Scanned},
    tree::Arc,
};
