//! Counters: increments through any cells at once, each counted once.
//!
//! **Promise.** In the end every replica counts each acknowledged increment exactly once, and until then at
//! most once, unless a write of the whole key replaces it. With N copies, of which an increment waits for W
//! and a read for R:
//!
//! | levels | promise, for each key |
//! |---|---|
//! | R + W ≤ N | a read counts some of the increments that began before it ended, each at most once |
//! | both at quorum levels | it also counts every increment that was acknowledged before it began |
//! | both at quorum levels, blocking repair | and every increment that an earlier read or increment counted |
//!
//! An increment is answered with the count that its coordinator knew: the count that was read at the level,
//! plus the increment. So the answer includes all increments that a read is promised, and two concurrent
//! increments may answer the same number. *Nothing here is linearizable*: each of two concurrent increments
//! may be answered as if it were the first, and each of two concurrent reads may count an increment that the
//! other does not. Numbers that must not come twice need a service or a table.
//!
//! An increment whose level was not reached in time is `MaybeApplied`: it may be counted from some time on,
//! or never. If the user repeats it, it may be counted twice, because it has no id by which a replica could
//! recognize the repetition.
//!
//! **Source.** The counters of Shapiro and others, *A comprehensive study of convergent and commutative
//! replicated data types* (2011), §3.1. Each replica there has a number that only it writes. Copies are
//! merged by the later state, and a read returns the sum. Replicas there are our coordinators. Answers and
//! errors are those of Redis.
//!
//! **How.** A counter is an entry with a base (a string of digits, or nothing) and *tallies*. A tally is the
//! sum of increments of one coordinator, and only this coordinator writes it. The stamp of its first
//! increment names the tally, and the tally carries the stamp of its last increment. Of two states of one
//! tally, the state with the later stamp is valid. The count is the base and the sum of all tallies.
//!
//! ```text
//!   coordinator             replicas
//!       ├── Read ─────────────▶ │  as a read at the level: base and tallies
//!       │◀── Entry, Digest ──── │  is it a number? does it overflow? does its own tally count still?
//!       │  (Ask, HighestStamp)  │  at a quorum level, if it begins a tally: above all horizons
//!       ├── Write (tally) ─────▶ │  its own tally, with all of its increments so far
//!       │◀───────── Written ─── │
//!       ▼ the count
//! ```
//!
//! **A write of the whole key** ends all tallies that *began* below its stamp, even tallies with later
//! increments above the stamp, because these tallies hold earlier increments as well. So a coordinator that
//! reads a base above its tally begins another tally. `SET` of a counter makes its string the base, and `DEL`
//! makes the base empty. An increment of a string of digits counts from that number. Of a concurrent
//! increment and `SET`, either may count as the first. If the increment counts as the first, the `SET`
//! overwrites it. A string that is no number hides tallies that were written at the same time, and live
//! fields hide all tallies. A base that expires ends the tallies that began before its end.
//!
//! **Own tallies.** A coordinator continues a tally only if it knows the tally's last state. Otherwise it
//! would write a state that lacks increments, under a later stamp. It knows the last state
//!
//! - from memory, where it keeps every tally until all owners have acknowledged the last state
//!   (`OwnTallies`);
//! - from reading, for a tally that is not in memory: then every owner has its last state, or a write that
//!   ended it.
//!
//! When the memory is full the coordinator empties it, and does not at once continue tallies that began
//! earlier: some owner may have a later state than the state that the coordinator reads. Nor does it continue
//! them after a restart. A cell without a disk restarts as another life, with another number. A cell that
//! comes back from its disk still has its number, and an empty memory. Its first tally begins above every
//! stamp that it had reserved (`journal`), and so above all earlier tallies. The coordinator needs nothing
//! durable about tallies.
//!
//! **Earlier tallies** (tallies of earlier runs of the cell, or from before it emptied its memory) are
//! continued, or taken in, once their last states are known. Earlier tallies have no state above a certain
//! time: the time up to which the coordinator had reserved stamps, or had sent states when it emptied its
//! memory. Once all horizons have reached that time (`Horizons::past`), every owner has their last states, or
//! the writes that ended them. So the coordinator reads the last states.
//!
//! - An earlier tally is *continued* if the coordinator has begun no tally since.
//! - Else the present tally *takes it in*: its next state has the earlier sums too, and is *sole*. A replica
//!   that merges a sole state drops all earlier tallies of the same cell that are as firm (`Tally::firm`),
//!   and never takes them again. So both changes travel in one write, and no replica has to keep the names of
//!   the dropped tallies. All horizons must also cover the present tally's beginning.
//!
//! ```text
//!   tallies of cell 1           first run   power cut   second run        all horizons above 50
//!   begun 10                    ├── 10: 1 ── 20: 3 ┤
//!   begun 50                                         ├── 50: 1 ── 60: 2 ── 900: 6, sole  (3 + 2 + 1)
//! ```
//!
//! **Forgetting.** No horizon passes the beginning of a tally before some replica has the tally. The reason
//! is that the coordinator writes a later state only in two cases. Either it saw the tally at a replica. Or
//! the tally's beginning is above all writes that this cell has announced to have ended. Then the write
//! counts as if its stamp were the tally's beginning, so no horizon passes that beginning while the write is
//! under way. So a replica whose horizon (`horizon`) covers the beginning of a tally once had the tally. If
//! the replica no longer has the tally, a deletion ended it, which the replica may have forgotten. The
//! replica then ignores late states of the tally, and leaves them out of its records. The replica does take
//! an entry that it fetches by comparing: a tally that ended everywhere is held nowhere. A tally that begins
//! at a quorum level begins above the horizons of a quorum, as writes with blocking repair do, because a
//! deletion that one replica has forgotten may still lie at another replica.
//!
//! **Invariants.**
//!
//! - *One writer*: one run of a cell writes a tally's states, from its start to its end. The next run writes
//!   them only when all owners have the last state of the former run. Each state has its own stamp, and holds
//!   all of the tally's increments so far.
//! - *A tally is whole or gone*: a write of the whole key is above the tally's beginning and ends the tally,
//!   or is below and leaves it untouched.
//! - *An increment is in one tally*, or in the tally that has taken in the former tally.
//! - *Tallies of a run follow each other*: a coordinator sends no state of a tally once it has begun a later
//!   tally of the same key that is as firm.
//! - *A sole state has the last states of all tallies that it drops*, and shares their ends: a write that
//!   would replace one of these tallies replaces the sole tally as well.
//!
//! **Why it holds.** *Counted once*: an increment is in one tally, and states of a tally replace each other.
//! *Acknowledged, then counted*: let an increment at a quorum level end before a read at a quorum level
//! begins. The increment and the read share a replica. That replica holds the increment's state or a later
//! one, which includes the increment, or a write w of the whole key above the tally's beginning. If w had
//! ended before the increment began, the increment would have read w, and gone into a tally that begins above
//! w. So w was concurrent or later, and the increment comes before w. *Seen, then seen*: with blocking repair
//! a read leaves at a quorum what it counted, and an increment writes the entry that it read together with
//! its tally.
//!
//! *Taken in, then counted once.* Let a coordinator begin an increment when all horizons of the layout, over
//! all its lives, cover the beginning b of its present tally. The owners whose answers it reads answered
//! later, and have every write up to b. The last states of its earlier tallies are among these writes. For
//! tallies of this run this holds because tallies follow each other. The last states of former runs are below
//! all stamps of this run. So the increment reads the last states, however small the level is. A write of the
//! whole key above the beginning of an earlier tally and below b would end the earlier tally and not the
//! present tally. The owners lack no such write. An owner takes such a write later only from a life of a cell
//! that begins later. With blocking repair, that life's writes at a quorum go above the horizons that owners
//! report. Its other writes are raised or lost, like any write with the stamp of a slow clock. The
//! coordinator takes nothing in if the base expires between the two beginnings. So a sole state counts in
//! every copy what the separate tallies counted before. The rule by which copies are merged depends on no
//! order: a sole tally stays sole, and the tallies that it drops are below it. A replica that has the sole
//! tally drops an earlier state that comes late. At a replica where the sole tally has ended or is forgotten,
//! the write that ended it also ended the earlier tally, which began before it. *Acknowledged, then counted*:
//! a read's quorum shares a replica with the quorum of every increment that was taken in. This replica still
//! has the increment's state, or the sole state in its place.
//!
//! *On disks.* All this rests on the states that replicas acknowledge and show, and these survive: a state is
//! on an owner's disk before the owner acknowledges or shows it. So *all owners have it* and *it was seen at
//! a replica* hold after any power cut. An owner that loses a state has not acknowledged it. The coordinator
//! still has it in memory, and the next state includes it. If the coordinator loses power too, its user got
//! no answer.
//!
//! **Bounds.** A tally takes 29 bytes. A key has one tally of each cell through which it is incremented, and
//! of each life if the cell has no disk. Where users mix quorum levels and smaller levels, a key has two
//! tallies of each cell. A start of a cell from its disk adds one tally, until the first increment after all
//! horizons have passed the time of that start. While one cell is away, no horizon passes that time. `SET`
//! replaces the base and all tallies by one base. No entry has more than 128 tallies: a coordinator refuses
//! an increment that would begin another tally ([`Rejection::Tallies`](super::Rejection::Tallies)). The
//! memory of own tallies has 16 MiB. An increment that would make a sum leave 64 bits goes into another
//! tally. The count itself may leave 64 bits by concurrent increments, each of which was right alone. Reads
//! nevertheless return the digits of that count, and the coordinator refuses further increments.
//!
//! **Attacks considered.**
//!
//! - *Two coordinators increment a key that no user has written.* Two tallies without a base; both count.
//! - *A coordinator dies with an increment half way.* Some replica has it and repair brings it to all, or no
//!   replica has it. The coordinator's next life has another number, and begins another tally.
//! - *A cell comes back from its disk, and reads its own earlier tally.* Another owner may have a later
//!   state, which was acknowledged. If the cell continued its earlier state under a still later stamp, the
//!   new state would replace the acknowledged state, and lose increments. So the cell begins another tally.
//! - *An owner's answer that is older than horizons that the coordinator has received since.* The coordinator
//!   notes `past` when the increment begins, before it asks any owner, so later horizons do not count.
//! - *A sole state that no owner took, or that only one owner took.* The next state of the tally is sole as
//!   well, and holds the same increments. If the coordinator dies, its next run reads earlier tallies at some
//!   owners and the sole tally at another. The next run touches none of these tallies before all owners have
//!   the sole tally.
//! - *Another increment began a tally meanwhile.* The earlier read says nothing of that tally, so only the
//!   memory is consulted.
//! - *A cell that takes a place, and copies from owners of which one has the sole state.* The cell merges the
//!   copies of all these owners, and drops the earlier tallies. Its layout has a life that no horizon covers
//!   yet, so nothing is taken in before the arrival has ended.
//! - *Disks that lost writes which all horizons covered*, where the operator accepts the loss. A horizon
//!   counts again once cells have compared.
//! - *The first stamps after a power cut.* They are above all stamps and horizons that left the cell before.
//!   So no state takes the name or the stamp of another state, and no horizon covers the beginning of a new
//!   tally.
//! - *A state from before the power cut arrives after it.* It came from another owner, by comparing or a
//!   read's repair. It is a state like any other: later states of its tally replace it, and no cell writes
//!   further states of it.
//! - *A read's repair brings a tally that ended and a tally that goes on.* The replica records only the tally
//!   that goes on. If the record had the ended tally, too, no horizon would stop that tally when a restart
//!   executes the record again.
//! - *Many increments through one cell at once.* Each increment writes the sum so far with a later stamp. All
//!   increments go into one tally, even while the first increment is still on its way. No horizon passes the
//!   tally's beginning while any of them is under way.
//! - *An increment that all replicas refused.* The coordinator removes it from its memory, if no later state
//!   was sent. Otherwise the later state holds the increment, and it is `MaybeApplied`.
//! - *Level one, and the replica that is read does not have the coordinator's tally.* Another tally is begun.
//! - *An increment is acknowledged at level one, and the next increment goes to another replica.* The
//!   coordinator keeps the first increment in memory until all owners have it, so the second state holds
//!   both.
//! - *A tally that comes late, after its key was deleted and the deletion forgotten.* The horizon covers the
//!   tally's beginning, and the replica does not hold the tally, so it ignores the tally.
//! - *A counter that expired at one replica and not yet at another.* Both end the tallies that began before
//!   the end. A replica that has forgotten the base ignores those tallies when it fetches them, because they
//!   come together with the base.
//! - *A `DEL` at level one by a slow clock.* Tallies that began above the stamp of the `DEL` go on counting,
//!   just as a `SET` with a higher stamp stays.
//! - *Forged tallies.* A tally's stamps belong to one life, do not go back, and are above the base. Any other
//!   tallies are refused as malformed bytes. As everywhere here, there is no defence against a cell that lies
//!   about its sums.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::stamp::{Stamp, put_stamp, take_stamp};
use crate::wire::{WireError, need};

/// The state of one coordinator's tally of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tally {
    /// The stamp of the last increment in the tally. Of two states of a tally, the state with the later stamp
    /// is valid.
    pub stamp: Stamp,
    /// The sum of all increments in the tally.
    pub sum: i64,
    /// Whether the tally's increments are at quorum levels, and the tally began above the horizons of a
    /// quorum.
    pub firm: bool,
    /// Whether the tally has taken in all earlier tallies of its cell that are as firm. These no longer
    /// count.
    pub sole: bool,
}

/// Size of a tally in bytes: the stamp of its first increment, the time of its last increment, the sum, and
/// two flags.
pub(super) const TALLY_BYTES: usize = 29;

const FIRM: u8 = 1;
const SOLE: u8 = 2;

/// Maximum number of tallies of an entry.
pub(super) const TALLIES_MAX: usize = 128;

/// Whether the first tally is taken in by the second.
pub(super) fn is_merged_into((begun, tally): (Stamp, Tally), (by, other): (Stamp, Tally)) -> bool {
    other.sole && begun.cell == by.cell && begun < by && tally.firm == other.firm
}

pub(super) fn put_tally(out: &mut BytesMut, begun: Stamp, tally: Tally) {
    put_stamp(out, begun);
    out.put_u64_le(tally.stamp.time);
    out.put_i64_le(tally.sum);
    out.put_u8(if tally.firm { FIRM } else { 0 } | if tally.sole { SOLE } else { 0 });
}

/// Decodes a tally. Refuses a tally that ends before it begins.
pub(super) fn take_tally(input: &mut Bytes) -> Result<(Stamp, Tally), WireError> {
    need(input, TALLY_BYTES)?;
    let begun = take_stamp(input)?;
    let stamp = Stamp { time: input.get_u64_le(), cell: begun.cell };
    let sum = input.get_i64_le();
    let flags = input.get_u8();
    if flags & !(FIRM | SOLE) != 0 {
        return Err(WireError::Tag(flags));
    }
    let tally = Tally { stamp, sum, firm: flags & FIRM != 0, sole: flags & SOLE != 0 };
    if stamp < begun { Err(WireError::Body) } else { Ok((begun, tally)) }
}

/// Returns the number that these digits form, or `None` if they form no number. As in Redis, a number has
/// only one form.
pub fn integer(digits: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.len() <= LONGEST)?;
    let number: i64 = text.parse().ok()?;
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    let canonical = !text.starts_with('+') && (text == "0" || !magnitude.starts_with('0'));
    canonical.then_some(number)
}

/// Length of the longest number in bytes. It is the lowest number, with its sign.
const LONGEST: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for number in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(integer(number.to_string().as_bytes()), Some(number));
        }
        for text in ["", "-", "-0", "+1", "01", "-01", " 1", "1 ", "1.0", "9223372036854775808", "x", "é"] {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
    }
}
