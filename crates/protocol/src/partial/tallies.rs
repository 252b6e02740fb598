//! A coordinator's memory of its own tallies: it keeps a tally while some owner may lack the tally's last
//! state ([`counter`](super::counter)).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    counter::{Tally, is_merged_into},
    entry::Entry,
    id::{CellNumber, MapId},
    stamp::Stamp,
};

/// The limit of a coordinator's memory of its own tallies, in bytes.
const MEMORY_BYTES_MAX: usize = 16 << 20;
/// The approximate memory of a kept tally in addition to its key, in bytes.
const KEPT_BYTES: usize = size_of::<TallyKey>() + size_of::<KeptTally>() + 32;

/// The name of one of a coordinator's own tallies: the map, the key, and whether it is [firm](Tally::firm).
pub(super) type TallyKey = (MapId, Bytes, bool);

/// The tallies that a coordinator has begun and whose last states some owner may lack.
#[derive(Debug)]
pub(super) struct OwnTallies {
    kept: BTreeMap<TallyKey, KeptTally>,
    bytes: usize,
    bytes_max: usize,
    /// Upper bound of the time, in nanoseconds, of any last state that some owner may lack and that belongs
    /// to a tally outside `kept`.
    left: u64,
    /// The time of the last tally state that was sent, in nanoseconds.
    sent: u64,
}

#[derive(Clone, Copy, Debug)]
struct KeptTally {
    begun: Stamp,
    tally: Tally,
}

/// A tally that an increment continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continued {
    pub(super) begun: Stamp,
    pub(super) tally: Tally,
    /// Whether some replica's answer contained the tally.
    pub(super) seen: bool,
}

impl Continued {
    /// Takes in the earlier tallies of the cell that are as firm. `known` has their last states, and the
    /// owners had all writes up to `past` when `known` was read. Takes nothing in if some of the earlier
    /// tallies could end while this tally goes on, or if the sum is beyond 64 bits.
    pub(super) fn take_in(&mut self, known: &Entry, past: u64) {
        let expires = known.base().expires.is_some_and(|expires| expires <= self.begun.time);
        if expires || self.begun.time > past {
            return;
        }
        let sole = Tally { sole: true, ..self.tally };
        let earlier = known.tallies().filter(|earlier| is_merged_into(*earlier, (self.begun, sole)));
        let mut sums = earlier.map(|(_, tally)| tally.sum).peekable();
        if sums.peek().is_some()
            && let Some(sum) = sums.try_fold(self.tally.sum, i64::checked_add)
        {
            self.tally = Tally { sum, ..sole };
        }
    }
}

impl OwnTallies {
    pub(super) fn new() -> OwnTallies {
        OwnTallies { kept: BTreeMap::new(), bytes: 0, bytes_max: MEMORY_BYTES_MAX, left: 0, sent: 0 }
    }

    /// Continues after an earlier run of the cell, which issued stamps up to `time`.
    pub(super) fn continue_above(&mut self, time: u64) {
        self.left = time;
    }

    /// Returns the tally into which an increment through the cell life `me` goes, or `None` if the increment
    /// must begin a tally. `found` was read at the wall clock `wall`. This cell has announced that its writes
    /// up to `through` have ended, and owners had all writes up to `past`.
    pub(super) fn continued(
        &self,
        at: &TallyKey,
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

    /// Returns the tally into which an increment goes, if that tally is in memory and still counts.
    pub(super) fn kept(
        &self,
        at: &TallyKey,
        found: &Entry,
        (wall, through): (u64, u64),
    ) -> Option<Continued> {
        let KeptTally { begun, tally } = self.kept.get(at).copied()?;
        let seen = found.tally(begun).is_some();
        let counts = found.counts(begun, wall) && (seen || begun.time > through);
        counts.then_some(Continued { begun, tally, seen })
    }

    /// Records a state of a tally that is about to be sent. A full memory is emptied first.
    pub(super) fn sends(&mut self, at: TallyKey, begun: Stamp, tally: Tally) {
        let more = KEPT_BYTES + at.1.len();
        if self.bytes + more > self.bytes_max && !self.kept.contains_key(&at) {
            self.kept.clear();
            (self.bytes, self.left) = (0, self.sent);
        }
        self.sent = tally.stamp.time;
        if self.kept.insert(at, KeptTally { begun, tally }).is_none() {
            self.bytes += more;
        }
    }

    fn remove(&mut self, at: &TallyKey) {
        if self.kept.remove(at).is_some() {
            self.bytes -= KEPT_BYTES + at.1.len();
        }
    }

    /// Forgets a tally if all owners have acknowledged its last state, which has this stamp.
    pub(super) fn settled(&mut self, at: &TallyKey, stamp: Stamp) {
        if self.kept.get(at).is_some_and(|kept| kept.tally.stamp == stamp) {
            self.remove(at);
        }
    }

    /// Takes back the state with this stamp, which added `added` and which no replica took. Returns whether
    /// that worked: it fails if a later state was sent.
    pub(super) fn take_back(&mut self, at: &TallyKey, stamp: Stamp, added: i64) -> bool {
        let Some(kept) = self.kept.get_mut(at).filter(|kept| kept.tally.stamp == stamp) else { return false };
        if kept.begun == stamp {
            self.remove(at);
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

    fn tally_key() -> TallyKey {
        (MapId(1), Bytes::from_static(b"k"), true)
    }

    fn tally(time: u64, sum: i64) -> Tally {
        Tally { stamp: stamp(time), sum, firm: true, sole: false }
    }

    fn merged(found: &[Entry]) -> Entry {
        let mut entry = Entry::nothing();
        found.iter().for_each(|write| {
            entry.merge(write);
        });
        entry
    }

    /// Returns the tally that an increment continues, after these writes were read.
    fn continued(memory: &OwnTallies, found: &[Entry], through: u64) -> Option<(u64, i64, bool)> {
        continued_past(memory, found, through, 0)
    }

    /// Returns the same as `continued` when owners have all writes up to `past`.
    fn continued_past(
        memory: &OwnTallies,
        found: &[Entry],
        through: u64,
        past: u64,
    ) -> Option<(u64, i64, bool)> {
        let continued = memory.continued(&tally_key(), &merged(found), ME, (1_000, through, past));
        continued.map(|Continued { begun, tally, seen }| (begun.time, tally.sum, seen))
    }

    fn entry(begun: u64, tally: Tally) -> Entry {
        Entry::of_tally(stamp(begun), tally)
    }

    #[test]
    fn a_tally_is_continued_while_its_last_state_is_known() {
        let mut memory = OwnTallies::new();
        let first = entry(10, tally(10, 1));
        memory.sends(tally_key(), stamp(10), tally(10, 1));
        memory.sends(tally_key(), stamp(10), tally(12, 5));
        // The tally continues from the memory, whether the read showed it or not. If no replica showed the
        // tally, its beginning must be above `through`.
        assert_eq!(continued(&memory, std::slice::from_ref(&first), 11), Some((10, 5, true)));
        assert_eq!(continued(&memory, &[], 9), Some((10, 5, false)));
        assert_eq!(continued(&memory, &[], 10), None);
        let string = Entry::whole(stamp(11), Some(Bytes::from_static(b"7")), None);
        assert_eq!(continued(&memory, &[first.clone(), string], 0), None, "a string took its place");
        memory.settled(&tally_key(), stamp(10));
        assert_eq!(
            continued(&memory, std::slice::from_ref(&first), 11),
            Some((10, 5, true)),
            "of an earlier state"
        );
        memory.settled(&tally_key(), stamp(12));
        let (whole, weak) = (entry(10, tally(12, 5)), entry(13, Tally { firm: false, ..tally(13, 9) }));
        assert_eq!(continued(&memory, &[whole.clone(), weak], 20), Some((10, 5, true)), "every owner has it");
        assert_eq!(continued(&memory, &[], 20), None);
        let expired = Entry::whole(stamp(9), Some(Bytes::from_static(b"7")), Some(500));
        assert_eq!(continued(&memory, &[whole, expired], 0), None);
    }

    #[test]
    fn a_full_memory_of_tallies_is_emptied() {
        let mut memory = OwnTallies { bytes_max: 2 * (KEPT_BYTES + 1), ..OwnTallies::new() };
        let of = |key: &'static [u8]| (MapId(1), Bytes::from_static(key), true);
        memory.sends(tally_key(), stamp(10), tally(10, 1));
        memory.sends(of(b"l"), stamp(11), tally(11, 1));
        memory.sends(of(b"l"), stamp(11), tally(12, 2));
        memory.sends(of(b"m"), stamp(13), tally(13, 1));
        let found = Entry::of_tally(stamp(10), tally(10, 1));
        assert_eq!(continued(&memory, std::slice::from_ref(&found), 0), None);
        assert_eq!(memory.kept.len(), 1);
        // Once all owners have all states that the earlier run sent, the tally is continued.
        assert_eq!(continued_past(&memory, std::slice::from_ref(&found), 0, 11), None);
        assert_eq!(continued_past(&memory, &[found], 0, 12), Some((10, 1, true)));
    }

    /// While a cell is away and a client increments keys with long names, the memory of tallies stays within
    /// its limit.
    #[test]
    fn the_memory_of_tallies_is_bounded_in_bytes() {
        let mut memory = OwnTallies::new();
        for time in 1..=2_000u64 {
            let mut key = vec![b'k'; 64 << 10];
            key[..8].copy_from_slice(&time.to_le_bytes());
            memory.sends((MapId(1), Bytes::from(key), true), stamp(time), tally(time, 1));
        }
        let bytes: usize = memory.kept.keys().map(|(_, key, _)| key.len()).sum();
        assert!(bytes <= 16 << 20, "{} tallies have names of {bytes} bytes", memory.kept.len());
        memory.kept.clear();
        memory.bytes = 0;
        memory.sends(tally_key(), stamp(3_000), tally(3_000, 1));
        assert!(memory.take_back(&tally_key(), stamp(3_000), 1));
        assert_eq!(memory.bytes, 0);
    }

    /// A coordinator that restarted must not add to an earlier tally too early. The tally's last state may
    /// have left before the restart and have reached only one owner.
    #[test]
    fn a_tally_of_an_earlier_run_is_continued_once_all_owners_have_its_last_state() {
        let mut memory = OwnTallies::new();
        memory.continue_above(20);
        let found = [entry(5, tally(6, 100)), entry(10, tally(12, 5))];
        assert_eq!(continued_past(&memory, &found, 0, 19), None);
        assert_eq!(continued_past(&memory, &found, 0, 20), Some((10, 5, true)));
        memory.sends(tally_key(), stamp(21), tally(21, 1));
        assert_eq!(continued_past(&memory, &found, 0, 20), Some((21, 1, false)), "it has begun another one");
    }

    #[test]
    fn earlier_tallies_merge_into_a_tally_that_all_owners_have() {
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
        // The count stays the same, also after an earlier copy is merged.
        let sole = entry(30, Tally { sum: 13, sole: true, ..tally(41, 0) });
        let mut after = known.clone();
        assert!(after.merge(&sole) && !after.merge(&known));
        assert_eq!((known.count(0), after.count(0)), (Some(2_013), Some(2_013)));
        assert_eq!(after.tallies().count(), 3);
        let mut again = Continued { tally: after.tally(stamp(30)).unwrap(), ..own };
        again.take_in(&after, 50);
        assert_eq!(again.tally.sum, 13, "nothing is taken in twice");
        // Tallies that the base would end separately are not taken in, and neither are sums beyond 64 bits.
        let expiring = |expires| merged(&[known.clone(), Entry::whole(stamp(1), None, Some(expires))]);
        assert_eq!(taken_in(&expiring(30), 50), (7, false));
        assert_eq!(taken_in(&expiring(31), 50), (13, true));
        let large = merged(&[known.clone(), entry(20, tally(20, i64::MAX))]);
        assert_eq!(taken_in(&large, 50), (7, false));
        assert_eq!(taken_in(&merged(&[entry(30, tally(40, 7))]), 50), (7, false), "there is nothing");
    }

    #[test]
    fn an_increment_that_no_owner_took_is_taken_back_unless_a_later_state_holds_it() {
        let mut memory = OwnTallies::new();
        memory.sends(tally_key(), stamp(10), tally(10, 1));
        memory.sends(tally_key(), stamp(10), tally(12, 5));
        assert!(!memory.take_back(&tally_key(), stamp(10), 1));
        assert!(memory.take_back(&tally_key(), stamp(12), 4));
        assert_eq!(continued(&memory, &[], 0), Some((10, 1, false)));
        assert!(memory.kept.remove(&tally_key()).is_some());
        memory.sends(tally_key(), stamp(20), tally(20, 3));
        assert!(memory.take_back(&tally_key(), stamp(20), 3));
        assert_eq!(continued(&memory, &[], 0), None, "it never began");
    }
}
