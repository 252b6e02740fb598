//! Counters: increments through any cells at once, each counted once.
//!
//! **Promise.** An increment that was acknowledged is counted in the end by every replica, once, and at most once while replicas differ,
//! unless a write of the whole key takes its place. With N copies, of which an increment waits for W and a read for R:
//!
//! | levels | promise, for each key |
//! |---|---|
//! | R + W ≤ N | a read counts some of the increments that began before it ended, each at most once |
//! | both at quorum levels | it counts every increment that was acknowledged before it began, besides |
//! | both at quorum levels, blocking repair | and every increment that a read or an increment counted which ended before it began |
//!
//! An increment answers the count that its coordinator knew: what it read at the level, with its own. So it includes all that is
//! promised to a read, and two increments at the same time may answer the same number. *Nothing here is linearizable*: of two increments
//! at the same time each may be answered as if it were the first, and of two reads at the same time each may count one that the other
//! does not. Numbers that must not come twice are the matter of a service or a table.
//!
//! An increment whose level was not reached in time is `MaybeApplied`: it is counted from some time on, or never, and one that is asked
//! for again may be counted twice. It has no id by which a second one would be known.
//!
//! **Source.** The counters of Shapiro and others, *A comprehensive study of convergent and commutative replicated data types*
//! (2011), §3.1: for each replica a number that only it writes, merged by the later state, read as a sum. Replicas there are our
//! coordinators. Answers and errors are those of Redis.
//!
//! **How.** A counter is an entry with a base (a string of digits, or nothing) and *tallies*. A tally is the sum of increments of one
//! coordinator, which alone writes it: it is named by the stamp of its first increment, and carries the stamp of its last. Of two
//! states of one tally the one with the later stamp holds. The count is the base and the sum of all tallies.
//!
//! ```text
//!   coordinator             replicas
//!       ├── Read ─────────────▶ │  as a read at the level: base and tallies
//!       │◀── Entry, Digest ──── │  is it a number? does it overflow? does its own tally count still?
//!       │     (Ask, Told)       │  at a quorum level, if it begins a tally: above all horizons
//!       ├── Write (tally) ─────▶ │  its own tally, with all of its increments so far
//!       │◀───────── Written ─── │
//!       ▼ the count
//! ```
//!
//! **A write of the whole key** ends all tallies that *began* below its stamp, those that go on above it too: they hold increments from
//! before. So a coordinator that reads a base above its tally begins another one. `SET` of a counter makes its string the base;
//! `DEL` makes it nothing; an increment of a string of digits counts from there. Of an increment and a `SET` at the same time the increment
//! may come first, and is overwritten, or second. A string that is no number hides tallies that were written at the same time, and live
//! fields hide all. A base that expires ends the tallies that began before its end.
//!
//! **Own tallies.** A coordinator goes on with a tally only if it knows the tally's last state: else it would write a state that
//! lacks increments, under a later stamp. It knows
//!
//! - from memory, where it keeps every tally of which not all owners have acknowledged the last state (`Memory`);
//! - from what it read, of a tally that is not in memory, for then every owner has its last state, or something that ended it.
//!
//! When the memory is full it is emptied, and tallies that began before are not gone on with at once: some owner may have a later state
//! than the one that is read. Neither are they after a restart. A cell without a disk is another life then, with another number. One
//! that comes back from its disk has its number still, and an empty memory. Its first tally begins above every stamp that it had reserved
//! (`journal`), and so above all tallies of before. Nothing about tallies has to be durable at the coordinator.
//!
//! **Tallies of before** are gone on with, or taken in, once their last states are known. They have no state above the time up to which the
//! coordinator had reserved stamps, or had sent states when it emptied its memory; and it reads all owners' last states of them as soon
//! as all horizons have come to that time (`Horizons::past`), for then every owner has them, or what
//! ended them.
//!
//! - One is *gone on with* if the coordinator has begun none since.
//! - Else the present one *takes them in*: its next state has their sums too, and is *sole*. Whoever merges a sole state drops all
//!   tallies of the same cell, as firm, that began before; and takes none of them any more. So both travel in one write, and no name has
//!   to be kept. The present tally's beginning, too, must be covered by all horizons.
//!
//! ```text
//!   tallies of cell 1           first run   power cut   second run        all horizons above 50
//!   begun 10                    ├── 10: 1 ── 20: 3 ┤
//!   begun 50                                         ├── 50: 1 ── 60: 2 ── 900: 6, sole  (3 of before, 2, and 1)
//! ```
//!
//! **Forgetting.** The name of a tally is the stamp of a write that some replica took before any later state was sent: a later state is
//! written only if the tally was seen at a replica, or if its beginning is above all that this cell has said to have ended (then the write
//! counts as one of the beginning's time, and horizons wait for it). So a replica whose horizon (`horizon`) covers
//! the beginning of a tally has had it. If it has it no more, the tally was ended, by a deletion that may be forgotten, and what comes
//! of it late is passed over, and stands in no record of a replica with a disk. An entry that a replica fetches from another one by
//! comparing is taken: a tally that was ended everywhere is held nowhere. A tally that begins at a quorum level begins above the
//! horizons of a quorum, as writes do with blocking repair, because a deletion that one replica has forgotten may still lie at another.
//!
//! **Invariants.**
//!
//! - *One writer*: a tally's states are written by one run of a cell, from its start to its end, and by the next one only when all owners
//!   have the last state of the one before. Each has a stamp of its own, and they hold all of its increments.
//! - *A tally is whole or gone*: a write of the whole key is above its beginning and ends it, or below and concerns none of it.
//! - *An increment is in one tally*, or in that which has taken it in.
//! - *Tallies of a run follow each other*: of one key, as firm, no state of one is sent once a later one has begun.
//! - *A sole state has the last states of all that it drops*, and all their ends: whatever replaces one of those replaces it as well.
//!
//! **Why it holds.** *Counted once*: an increment is in one tally; states of a tally replace each other. *Acknowledged, then counted*:
//! let an increment at a quorum level end before a read at one begins. They share a replica. It holds the increment's state or a later
//! one, which includes the increment; or a write w of the whole key above the tally's beginning. If w had ended before the increment
//! began, the increment would have read w, and gone into a tally above. So w was at the same time or later, and the increment comes
//! before w. *Seen, then seen*: with blocking repair a read leaves what it counted at a quorum, and an increment writes what it read
//! together with its tally.
//!
//! *Taken in, then counted once.* Let a coordinator begin an increment when all horizons of the layout, of all its lives, cover the
//! beginning b of its present tally. Whatever it reads was told later, by owners that have every write up to b. The last states of its
//! earlier tallies are among these: those of this run, because tallies follow each other, and those of before, which are below all
//! stamps of this run. So it reads them, however small the level is. Neither is a write of the whole key missing that is above the
//! beginning of one of them and below b, and would end the earlier one and not the present one: no owner will ever take one that it has
//! not, but from a life that begins later, whose writes at a quorum with blocking repair go above the horizons that it is told, and else
//! are raised or lost as any that are stamped by a slow clock. The sum is left alone if the base expires between the two beginnings. So
//! a sole state counts in every copy what the tallies counted before, and the rule by which copies are merged depends on no order: a
//! sole tally stays sole, and what it drops is below it. A state of before that comes late is dropped where the sole one is, and where
//! that was ended or forgotten, it was ended by the same write, for it began earlier. *Acknowledged, then counted*: a read's quorum
//! shares a replica with that of every increment that was taken in. This replica has its state still, or the sole one in its place.
//!
//! *On disks.* All this rests on what replicas acknowledge and show, and neither can be lost: a state is on an owner's disk before the
//! owner acknowledges it, and before the owner shows it. So *all owners have it* and *it was seen at a replica* hold after any power
//! cut. An owner that loses a state has not acknowledged it. The coordinator still has it in memory, and the next state holds it. If the
//! coordinator loses power too, its user was not told.
//!
//! **Bounds.** A tally takes 29 bytes. A key has one, or two where both quorum levels and smaller ones are used, of each cell through
//! which it is incremented, and of each life of a cell in memory. A start of a cell from its disk adds one, until the first increment
//! behind the time at which all horizons have passed it; as long as one cell is away they do not. `SET` makes one base of all. No
//! entry has more than 128 tallies: a coordinator that would begin one beyond is refused
//! ([`Rejection::Tallies`](super::Rejection::Tallies)). The memory of own tallies has 65,536 keys. A sum that leaves 64 bits goes on in
//! another tally. The count itself may leave 64 bits by increments at the same time, each of which was right alone: reads tell the
//! digits all the same, and further increments are refused.
//!
//! **Attacks considered.**
//!
//! - *Two coordinators increment a key that nobody has written.* Two tallies without a base; both count.
//! - *A coordinator dies with an increment half way.* Some replica has it and repair brings it to all, or none has. Its next life has
//!   another number, and begins another tally.
//! - *A cell comes back from its disk, and reads its own tally of before.* Another owner may have a later state, which was acknowledged.
//!   A state that went on from the earlier one, with a still later stamp, would take its place, and lose increments. So it begins
//!   another tally.
//! - *An answer that is older than the horizons that its coordinator has heard of since.* What is past is noted when the increment
//!   begins, before anybody is asked.
//! - *A sole state that nobody took, or one owner alone.* The next state of the tally is sole as well, and holds the same. If the
//!   coordinator dies, its next run reads earlier tallies at some owners and the sole one at another. It touches none of them before all
//!   owners have the sole one.
//! - *An increment that began a tally meanwhile.* What was read before says nothing of it, so only the memory is asked.
//! - *A cell that takes a place, and copies from owners of which one has the sole state.* It merges both, and drops the earlier ones. Its
//!   layout has a life that no horizon covers yet, so nothing is taken in before it is through.
//! - *Disks that lost what all horizons covered*, where the operator says that what is gone is gone. A horizon counts again once cells
//!   have compared.
//! - *The first stamps after a power cut.* They are above all that left the cell before, told horizons included. So no state takes
//!   the name or the stamp of another one, and no horizon covers the beginning of a tally that has only begun.
//! - *A state of before the power cut arrives after it.* It came from another owner, by comparing or a read's repair. It is a state like
//!   any other: later ones of its tally are merged with it, and nobody writes any more.
//! - *A read's repair brings a tally that ended and one that goes on.* The record of a replica has only the second: when the record is
//!   executed again there is no horizon to stop the first.
//! - *Many increments through one cell at once.* Each writes the sum so far with a later stamp; they go into one tally, also while the
//!   first is still on its way. The first holds all of them back from the horizon, as the others do.
//! - *An increment that all replicas refused.* It is taken back in memory, if no later one was sent. Else the later one holds it, and it
//!   is `MaybeApplied`.
//! - *Level one, and the replica that is read has not heard of the coordinator's tally.* Another tally is begun.
//! - *An acknowledged increment at level one, a second at another replica.* The coordinator has the first in memory until all owners have
//!   it, so the second holds both.
//! - *A tally that comes late, after its key was deleted and that was forgotten.* Its beginning is covered, and it is not held: passed
//!   over.
//! - *A counter that expired at one replica and not yet at another.* Both end the tallies that began before. One that has forgotten the
//!   base passes over what it fetches of those tallies, for they come together with the base.
//! - *A `DEL` at level one by a slow clock.* Tallies that began above its stamp go on counting, as a newer `SET` would.
//! - *Forged tallies.* A tally's stamps are of one life and do not go back, and are above the base; all else is refused as bytes. A cell
//!   that lies about its sums is not guarded against, as nowhere here.

use std::collections::BTreeMap;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::{
    clock::Stamp,
    entry::{Entry, put_stamp, take_stamp},
    layout::{CellNumber, MapId},
};
use crate::wire::{WireError, need};

/// The state of one coordinator's tally of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tally {
    /// The stamp of the last increment in it. Of two states of a tally the one with the later stamp holds.
    pub stamp: Stamp,
    /// The sum of all increments in it.
    pub sum: i64,
    /// Whether it is of increments at quorum levels, and began above the horizons of a quorum.
    pub firm: bool,
    /// Whether all earlier tallies of its cell that are as firm are taken in, and count no more.
    pub sole: bool,
}

/// The byte form of a tally: the stamp of its first increment, the time of its last, the sum, and whether it is
/// firm and sole.
pub(super) const TALLY_BYTES: usize = 29;

const FIRM: u8 = 1;
const SOLE: u8 = 2;

/// No entry has more tallies.
pub(super) const TALLIES_MAX: usize = 128;

/// A coordinator remembers the tallies of so many keys.
const KEYS_MAX: usize = 65_536;

/// Whether one tally, named first, is taken in by another one.
pub(super) fn is_taken_in((begun, tally): (Stamp, Tally), (by, other): (Stamp, Tally)) -> bool {
    other.sole && begun.cell == by.cell && begun < by && tally.firm == other.firm
}

pub(super) fn put_tally(out: &mut BytesMut, begun: Stamp, tally: Tally) {
    put_stamp(out, begun);
    out.put_u64_le(tally.stamp.time);
    out.put_i64_le(tally.sum);
    out.put_u8(if tally.firm { FIRM } else { 0 } | if tally.sole { SOLE } else { 0 });
}

/// Takes a tally; one that ends before it began is refused.
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

/// The number that these digits are, as Redis has it: in the one form in which a number is written.
pub fn integer(digits: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.len() <= LONGEST)?;
    let number: i64 = text.parse().ok()?;
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    let canonical = !text.starts_with('+') && (text == "0" || !magnitude.starts_with('0'));
    canonical.then_some(number)
}

/// Digits of the lowest number.
const LONGEST: usize = 20;

/// The name of a coordinator's tally among its own: the map, the key, and whether it is [firm](Tally::firm).
pub(super) type Whose = (MapId, Bytes, bool);

/// The tallies that a coordinator has begun, as far as some owner may not have their last states.
#[derive(Debug)]
pub(super) struct Memory {
    kept: BTreeMap<Whose, Kept>,
    max: usize,
    /// Tallies of which this memory knows nothing, though some owner may not have their last states, have no state above this time.
    left: u64,
    /// The last state that was sent.
    sent: u64,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    begun: Stamp,
    tally: Tally,
}

/// A tally that is gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continued {
    pub(super) begun: Stamp,
    pub(super) tally: Tally,
    /// Whether it was seen at a replica.
    pub(super) seen: bool,
}

impl Continued {
    /// Takes in the earlier tallies of the cell that are as firm, of which the last states are `known`: the owners had all writes up to
    /// `past` when they were read. Not if some of them would end when this one does not, or if the sum is beyond 64 bits.
    pub(super) fn take_in(&mut self, known: &Entry, past: u64) {
        let expires = known.base().expires.is_some_and(|expires| expires <= self.begun.time);
        if expires || self.begun.time > past {
            return;
        }
        let sole = Tally { sole: true, ..self.tally };
        let earlier = known.tallies().filter(|earlier| is_taken_in(*earlier, (self.begun, sole)));
        let mut sums = earlier.map(|(_, tally)| tally.sum).peekable();
        if sums.peek().is_some()
            && let Some(sum) = sums.try_fold(self.tally.sum, i64::checked_add)
        {
            self.tally = Tally { sum, ..sole };
        }
    }
}

impl Memory {
    pub(super) fn new() -> Memory {
        Memory { kept: BTreeMap::new(), max: KEYS_MAX, left: 0, sent: 0 }
    }

    /// An earlier run of the cell issued stamps up to this time.
    pub(super) fn go_on_behind(&mut self, time: u64) {
        self.left = time;
    }

    /// The tally of the life `me` that an increment goes into. `found` was read at the wall clock `wall`; writes up to `through` were said
    /// to have ended, and owners had those up to `past`. None: another one is to be begun.
    pub(super) fn continued(
        &self,
        at: &Whose,
        found: &Entry,
        me: CellNumber,
        (wall, through, past): (u64, u64, u64),
    ) -> Option<Continued> {
        if self.kept.contains_key(at) {
            return self.kept(at, found, (wall, through));
        }
        let (begun, tally) =
            found.tallies().rfind(|(begun, tally)| begun.cell == me && tally.firm == at.2)?;
        let is_last = begun.time > self.left || past >= self.left;
        (is_last && found.counts(begun, wall)).then_some(Continued { begun, tally, seen: true })
    }

    /// The same, if it is in memory.
    pub(super) fn kept(&self, at: &Whose, found: &Entry, (wall, through): (u64, u64)) -> Option<Continued> {
        let Kept { begun, tally } = self.kept.get(at).copied()?;
        let seen = found.tally(begun).is_some();
        let counts = found.counts(begun, wall) && (seen || begun.time > through);
        counts.then_some(Continued { begun, tally, seen })
    }

    /// A state of a tally is about to be sent.
    pub(super) fn sends(&mut self, at: Whose, begun: Stamp, tally: Tally) {
        if self.kept.len() >= self.max && !self.kept.contains_key(&at) {
            self.kept.clear();
            self.left = self.sent;
        }
        self.sent = tally.stamp.time;
        self.kept.insert(at, Kept { begun, tally });
    }

    /// All owners have acknowledged the state with this stamp.
    pub(super) fn settled(&mut self, at: &Whose, stamp: Stamp) {
        if self.kept.get(at).is_some_and(|kept| kept.tally.stamp == stamp) {
            self.kept.remove(at);
        }
    }

    /// No replica took the state with this stamp, which added so much. Says whether it could be taken back: only if no later one was sent.
    pub(super) fn take_back(&mut self, at: &Whose, stamp: Stamp, added: i64) -> bool {
        let Some(kept) = self.kept.get_mut(at).filter(|kept| kept.tally.stamp == stamp) else { return false };
        if kept.begun == stamp {
            self.kept.remove(at);
        } else {
            kept.tally.sum -= added;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: CellNumber = CellNumber(1);

    fn stamp(time: u64) -> Stamp {
        Stamp { time, cell: ME }
    }

    fn whose() -> Whose {
        (MapId(1), Bytes::from_static(b"k"), true)
    }

    fn tally(time: u64, sum: i64) -> Tally {
        Tally { stamp: stamp(time), sum, firm: true, sole: false }
    }

    #[test]
    fn numbers_have_one_form() {
        for number in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(integer(number.to_string().as_bytes()), Some(number));
        }
        for text in ["", "-", "-0", "+1", "01", "-01", " 1", "1 ", "1.0", "9223372036854775808", "x", "é"] {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
    }

    fn merged(found: &[Entry]) -> Entry {
        let mut entry = Entry::nothing();
        found.iter().for_each(|write| {
            entry.merge(write);
        });
        entry
    }

    /// The tally that is gone on with, after these writes were read.
    fn continued(memory: &Memory, found: &[Entry], through: u64) -> Option<(u64, i64, bool)> {
        continued_past(memory, found, through, 0)
    }

    /// The same where owners have all writes up to `past`.
    fn continued_past(memory: &Memory, found: &[Entry], through: u64, past: u64) -> Option<(u64, i64, bool)> {
        let continued = memory.continued(&whose(), &merged(found), ME, (1_000, through, past));
        continued.map(|Continued { begun, tally, seen }| (begun.time, tally.sum, seen))
    }

    fn entry(begun: u64, tally: Tally) -> Entry {
        Entry::of_tally(stamp(begun), tally)
    }

    #[test]
    fn a_tally_is_gone_on_with_as_long_as_its_last_state_is_known() {
        let mut memory = Memory::new();
        let first = entry(10, tally(10, 1));
        memory.sends(whose(), stamp(10), tally(10, 1));
        memory.sends(whose(), stamp(10), tally(12, 5));
        // The memory is right, whatever was read; unseen it must not be said to have ended.
        assert_eq!(continued(&memory, std::slice::from_ref(&first), 11), Some((10, 5, true)));
        assert_eq!(continued(&memory, &[], 9), Some((10, 5, false)));
        assert_eq!(continued(&memory, &[], 10), None);
        let string = Entry::whole(stamp(11), Some(Bytes::from_static(b"7")), None);
        assert_eq!(continued(&memory, &[first.clone(), string], 0), None, "a string took its place");
        memory.settled(&whose(), stamp(10));
        assert_eq!(
            continued(&memory, std::slice::from_ref(&first), 11),
            Some((10, 5, true)),
            "of an earlier state"
        );
        memory.settled(&whose(), stamp(12));
        let (whole, weak) = (entry(10, tally(12, 5)), entry(13, Tally { firm: false, ..tally(13, 9) }));
        assert_eq!(continued(&memory, &[whole.clone(), weak], 20), Some((10, 5, true)), "every owner has it");
        assert_eq!(continued(&memory, &[], 20), None);
        let expired = Entry::whole(stamp(9), Some(Bytes::from_static(b"7")), Some(500));
        assert_eq!(continued(&memory, &[whole, expired], 0), None);
    }

    #[test]
    fn a_full_memory_is_emptied_and_its_tallies_are_left() {
        let mut memory = Memory { max: 2, ..Memory::new() };
        let of = |key: &'static [u8]| (MapId(1), Bytes::from_static(key), true);
        memory.sends(whose(), stamp(10), tally(10, 1));
        memory.sends(of(b"l"), stamp(11), tally(11, 1));
        memory.sends(of(b"l"), stamp(11), tally(12, 2));
        memory.sends(of(b"m"), stamp(13), tally(13, 1));
        let found = Entry::of_tally(stamp(10), tally(10, 1));
        assert_eq!(continued(&memory, std::slice::from_ref(&found), 0), None);
        assert_eq!(memory.kept.len(), 1);
        // Once all owners have whatever was sent before, it is gone on with.
        assert_eq!(continued_past(&memory, std::slice::from_ref(&found), 0, 11), None);
        assert_eq!(continued_past(&memory, &[found], 0, 12), Some((10, 1, true)));
    }

    /// Its last state may have left the cell before, and be at no more than one owner.
    #[test]
    fn a_tally_of_an_earlier_run_is_gone_on_with_once_all_owners_have_its_last_state() {
        let mut memory = Memory::new();
        memory.go_on_behind(20);
        let found = [entry(5, tally(6, 100)), entry(10, tally(12, 5))];
        assert_eq!(continued_past(&memory, &found, 0, 19), None);
        assert_eq!(continued_past(&memory, &found, 0, 20), Some((10, 5, true)));
        memory.sends(whose(), stamp(21), tally(21, 1));
        assert_eq!(continued_past(&memory, &found, 0, 20), Some((21, 1, false)), "it has begun another one");
    }

    #[test]
    fn earlier_tallies_are_taken_in_by_one_that_all_owners_have() {
        let own = Continued { begun: stamp(30), tally: tally(40, 7), seen: true };
        let other = Stamp { time: 5, cell: CellNumber(2) };
        let weak = Tally { firm: false, ..tally(6, 1_000) };
        let found = [
            entry(5, weak),
            entry(8, tally(9, 1)),
            entry(10, tally(12, 5)),
            entry(30, tally(40, 7)),
            Entry::of_tally(other, Tally { stamp: other, ..weak }),
        ];
        let known = merged(&found);
        let taken_in = |known: &Entry, past| {
            let mut own = own;
            own.take_in(known, past);
            (own.tally.sum, own.tally.sole)
        };
        assert_eq!(taken_in(&known, 29), (7, false), "an owner may lack something");
        assert_eq!(taken_in(&known, 30), (13, true));
        // The count is what it was, and is so for whoever merges an earlier copy.
        let sole = entry(30, Tally { sum: 13, sole: true, ..tally(41, 0) });
        let mut after = known.clone();
        assert!(after.merge(&sole) && !after.merge(&known));
        assert_eq!((known.count(0), after.count(0)), (Some(2_013), Some(2_013)));
        assert_eq!(after.tallies().count(), 3);
        let mut again = Continued { tally: after.tally(stamp(30)).unwrap(), ..own };
        again.take_in(&after, 50);
        assert_eq!(again.tally.sum, 13, "nothing is taken in twice");
        // Tallies that would end alone are left alone, and so are sums that do not fit.
        let expiring = |expires| merged(&[known.clone(), Entry::whole(stamp(1), None, Some(expires))]);
        assert_eq!(taken_in(&expiring(30), 50), (7, false));
        assert_eq!(taken_in(&expiring(31), 50), (13, true));
        let large = merged(&[known.clone(), entry(20, tally(20, i64::MAX))]);
        assert_eq!(taken_in(&large, 50), (7, false));
        assert_eq!(taken_in(&merged(&[entry(30, tally(40, 7))]), 50), (7, false), "there is nothing");
    }

    #[test]
    fn what_nobody_took_is_taken_back_unless_a_later_state_holds_it() {
        let mut memory = Memory::new();
        memory.sends(whose(), stamp(10), tally(10, 1));
        memory.sends(whose(), stamp(10), tally(12, 5));
        assert!(!memory.take_back(&whose(), stamp(10), 1));
        assert!(memory.take_back(&whose(), stamp(12), 4));
        assert_eq!(continued(&memory, &[], 0), Some((10, 1, false)));
        assert!(memory.kept.remove(&whose()).is_some());
        memory.sends(whose(), stamp(20), tally(20, 3));
        assert!(memory.take_back(&whose(), stamp(20), 3));
        assert_eq!(continued(&memory, &[], 0), None, "it never began");
    }
}
