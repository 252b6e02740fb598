//! Hinted handoff: the coordinator keeps a write for an owner that did not acknowledge it, and sends the
//! write when the owner can be reached again (Dynamo §4.6).
//!
//! A hint never counts for a level: it only shortens the time until replicas are equal. The coordinator keeps
//! it in memory, within limits of bytes and of age. If a limit makes the coordinator give a hint up, it lists
//! the owner among the owners that *lack* writes. The owner stays in that list, because the coordinator no
//! longer knows which writes the owner lacks.
//!
//! Hints of one key for one owner are merged into one, as a replica would merge them. Hints leave in the
//! order of their keys, a few at a time. A hint stays until its owner has acknowledged exactly the content
//! that the hint has at that moment. If an owner has no room and refuses a hint, the coordinator gives the
//! hint up. A hint that waited for room would keep all horizons below its write. Then no deletion could be
//! forgotten, so the owner would never get room.
//!
//! A cell that takes another's place gets a hint of each write that any owner of the key has not received
//! yet. The arriving cell copies from these owners, and they may receive the write only after it has copied.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    entry::{Digest, Entry},
    id::{CellNumber, MapId},
    layout::Layout,
    message::{Answer, Demand, Message, ReplicaRefusal, Request, Round},
};
use crate::time::{Duration, Time};

/// The limits of hints for owners that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintLimits {
    /// Maximum size of all hints together, in bytes.
    pub bytes_max: usize,
    /// The longest time that a hint is kept.
    pub age_max: Duration,
    /// Maximum number of hints that are sent to one cell and not yet acknowledged.
    pub in_flight_max: usize,
}

/// Counters of hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HintCounts {
    /// The number of hints that are kept now.
    pub kept: usize,
    /// The approximate memory of the kept hints, in bytes.
    pub bytes: usize,
    /// The number of hints that their owners acknowledged.
    pub delivered: u64,
    /// The number of hints that were given up because they had no room, because they were too old, or because
    /// the owner refused them for good.
    pub lost: u64,
}

#[derive(Debug)]
struct Hint {
    entry: Entry,
    /// The time at which the first of the writes in this hint was kept.
    since: Time,
    /// The time of the oldest write in this hint that may not have arrived at its owner, in nanoseconds.
    oldest: u64,
    bytes: usize,
}

/// The hints of one coordinator.
#[derive(Debug)]
pub(super) struct Hints {
    limits: HintLimits,
    kept: BTreeMap<CellNumber, BTreeMap<(MapId, Bytes), Hint>>,
    /// Hints under way, with the digest of the content that was sent.
    sent: BTreeMap<Round, (CellNumber, (MapId, Bytes), Digest)>,
    /// Owners for which hints were given up.
    lacking: BTreeSet<CellNumber>,
    counts: HintCounts,
}

const HINT_BYTES: usize = size_of::<Hint>() + size_of::<(MapId, Bytes)>();

impl Hints {
    pub(super) fn new(limits: HintLimits) -> Hints {
        Hints {
            limits,
            kept: BTreeMap::new(),
            sent: BTreeMap::new(),
            lacking: BTreeSet::new(),
            counts: HintCounts::default(),
        }
    }

    pub(super) fn counts(&self) -> HintCounts {
        self.counts
    }

    /// Returns the time of the oldest write in any hint.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.kept.values().flat_map(BTreeMap::values).map(|hint| hint.oldest).min()
    }

    /// Returns the owners for which hints were given up.
    pub(super) fn lacking(&self) -> impl Iterator<Item = CellNumber> + '_ {
        self.lacking.iter().copied()
    }

    /// Keeps a write for an owner. A tally of a counter counts as a write of the time `oldest`. Returns
    /// whether the limit of bytes made the coordinator give up a hint for this owner for the first time.
    pub(super) fn keep(
        &mut self,
        owner: CellNumber,
        map: MapId,
        key: &Bytes,
        (entry, oldest): (&Entry, u64),
        now: Time,
    ) -> bool {
        // A write of no fields has no content, so no hint is kept.
        if *entry == Entry::nothing() {
            return false;
        }
        self.hold(owner, (map, key.clone()), (entry, oldest), now)
    }

    fn hold(
        &mut self,
        owner: CellNumber,
        at: (MapId, Bytes),
        (entry, oldest): (&Entry, u64),
        since: Time,
    ) -> bool {
        let hints = self.kept.entry(owner).or_default();
        let mut merged = hints.get(&at).map_or_else(Entry::nothing, |hint| hint.entry.clone());
        merged.merge(entry);
        let (since, before) =
            hints.get(&at).map_or((since, None), |hint| (since.min(hint.since), Some(hint.bytes)));
        let oldest = if merged.tallies().next().is_none() {
            merged.oldest().time
        } else {
            hints.get(&at).map_or(oldest, |hint| oldest.min(hint.oldest))
        };
        let bytes = HINT_BYTES + at.1.len() + merged.bytes();
        let total = self.counts.bytes - before.unwrap_or(0) + bytes;
        if total > self.limits.bytes_max {
            return self.give_up(owner);
        }
        self.counts.bytes = total;
        self.counts.kept += usize::from(before.is_none());
        hints.insert(at, Hint { entry: merged, since, oldest, bytes });
        false
    }

    /// Records that an owner lacks a write for which no hint is kept. Returns whether this is the first such
    /// write.
    pub(super) fn give_up(&mut self, owner: CellNumber) -> bool {
        self.counts.lost += 1;
        self.lacking.insert(owner)
    }

    /// Gives up hints that are too old. Returns the owners for which a hint was given up for the first time.
    pub(super) fn expire(&mut self, now: Time) -> Vec<CellNumber> {
        let mut fresh = Vec::new();
        for (owner, hints) in &mut self.kept {
            let before = hints.len();
            hints.retain(|_, hint| {
                let keep = now.since(hint.since) <= self.limits.age_max;
                self.counts.bytes -= if keep { 0 } else { hint.bytes };
                keep
            });
            let gone = before - hints.len();
            self.counts.kept -= gone;
            self.counts.lost += gone as u64;
            if gone > 0 && self.lacking.insert(*owner) {
                fresh.push(*owner);
            }
        }
        self.kept.retain(|_, hints| !hints.is_empty());
        fresh
    }

    /// Sends hints to the reachable cells, within the limit for each cell.
    pub(super) fn replay(
        &mut self,
        layout: &Layout,
        reachable: &BTreeSet<CellNumber>,
        mut round: impl FnMut() -> Round,
        out: &mut Vec<(CellNumber, Message)>,
    ) {
        for (owner, hints) in self.kept.iter().filter(|(owner, _)| reachable.contains(owner)) {
            let under_way: BTreeSet<&(MapId, Bytes)> =
                self.sent.values().filter(|(to, _, _)| to == owner).map(|(_, at, _)| at).collect();
            let room = self.limits.in_flight_max.saturating_sub(under_way.len());
            let waiting = hints.iter().filter(|(at, _)| !under_way.contains(at));
            let next: Vec<_> =
                waiting.take(room).map(|(at, hint)| (at.clone(), hint.entry.clone())).collect();
            for (at, entry) in next {
                let round = round();
                self.sent.insert(round, (*owner, at.clone(), entry.digest()));
                let (map, key) = at;
                let demand = Demand::Write(entry);
                let request = Request { round, layout: layout.version(), map, key, demand };
                out.push((*owner, Message::Request(request)));
            }
        }
    }

    /// Handles an owner's answer. Returns `None` if the answer belongs to no hint. Otherwise returns whether
    /// the coordinator gave up a hint for this owner for the first time.
    pub(super) fn answer(&mut self, from: CellNumber, round: Round, answer: &Answer) -> Option<bool> {
        let (_, at, sent) = self.sent.get(&round).filter(|(owner, _, _)| *owner == from)?.clone();
        self.sent.remove(&round);
        match answer {
            Answer::Written { .. } => {
                // If more was merged into the hint since it was sent, the hint stays.
                let done = self.forget(from, &at, Some(sent));
                self.counts.delivered += u64::from(done);
            }
            // The coordinator gives the hint up. If another owner took the write, comparing brings the write
            // to this owner, regardless of the limits of clients.
            Answer::Refused(ReplicaRefusal::TooLarge | ReplicaRefusal::Full) => {
                self.forget(from, &at, None);
                return Some(self.give_up(from));
            }
            // Clocks and layouts change, so the hint is sent again later.
            _ => {}
        }
        Some(false)
    }

    /// Handles a broken link to a cell: hints that were sent may be lost, so they are sent again.
    pub(super) fn unlinked(&mut self, cell: CellNumber) {
        self.sent.retain(|_, (owner, _, _)| *owner != cell);
    }

    /// Adopts a changed layout. Drops the hints for maps that were dropped and for cells that are gone.
    /// `successors` returns the cells that took a place among the owners of a key: they get all hints of the
    /// key. Returns the successors for which a hint was given up for the first time.
    pub(super) fn adopt(
        &mut self,
        layout: &Layout,
        successors: impl Fn(MapId, &Bytes) -> SmallVec<[CellNumber; 6]>,
    ) -> Vec<CellNumber> {
        let mut inherited = Vec::new();
        for (at, hint) in self.kept.values().flatten().filter(|((map, _), _)| layout.map(*map).is_some()) {
            let successors = successors(at.0, &at.1).into_iter();
            let of = |heir| (heir, at.clone(), (hint.entry.clone(), hint.oldest), hint.since);
            inherited.extend(successors.map(of));
        }
        self.sent.retain(|_, (owner, _, _)| layout.cell(*owner).is_some());
        for (owner, hints) in &mut self.kept {
            let is_there = layout.cell(*owner).is_some();
            hints.retain(|(map, _), hint| {
                let keep = is_there && layout.map(*map).is_some();
                self.counts.bytes -= if keep { 0 } else { hint.bytes };
                self.counts.kept -= usize::from(!keep);
                keep
            });
        }
        self.kept.retain(|_, hints| !hints.is_empty());
        type Inherited = (CellNumber, (MapId, Bytes), (Entry, u64), Time);
        let given_up = |(heir, at, (entry, oldest), since): Inherited| {
            self.hold(heir, at, (&entry, oldest), since).then_some(heir)
        };
        inherited.into_iter().filter_map(given_up).collect()
    }

    fn forget(&mut self, owner: CellNumber, at: &(MapId, Bytes), sent: Option<Digest>) -> bool {
        let Some(hints) = self.kept.get_mut(&owner) else { return false };
        let done = |hint: &Hint| sent.is_none_or(|sent| hint.entry.digest() == sent);
        if !hints.get(at).is_some_and(done) {
            return false;
        }
        let hint = hints.remove(at).expect("the hint was found at this place");
        self.counts.bytes -= hint.bytes;
        self.counts.kept -= 1;
        if hints.is_empty() {
            self.kept.remove(&owner);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{super::stamp::Stamp, *};

    const MAP: MapId = MapId(1);
    const OWNER: CellNumber = CellNumber(2);

    fn hints(bytes_max: usize, in_flight_max: usize) -> Hints {
        Hints::new(HintLimits { bytes_max, age_max: Duration::from_secs(10), in_flight_max })
    }

    fn put(time: u64, bytes: usize) -> Entry {
        Entry::whole(Stamp { time, cell: CellNumber(1) }, Some(Bytes::from(vec![b'x'; bytes])), None)
    }

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    /// Sends the hints that may be sent, and returns their rounds.
    fn replay(hints: &mut Hints, next: &mut u64) -> Vec<Round> {
        let (mut out, mut rounds) = (Vec::new(), Vec::new());
        let round = || {
            *next += 1;
            rounds.push(Round(*next));
            Round(*next)
        };
        hints.replay(&Layout::default(), &BTreeSet::from([OWNER]), round, &mut out);
        assert_eq!(out.len(), rounds.len());
        rounds
    }

    const TAKEN: Answer = Answer::Written { newer: Stamp::ZERO };

    #[test]
    fn a_hint_stays_until_it_is_acknowledged_completely() {
        let (mut hints, mut next) = (hints(10_000, 8), 0);
        hints.keep(OWNER, MAP, &key("k"), (&put(5, 1), 5), Time(0));
        let rounds = replay(&mut hints, &mut next);
        assert!(replay(&mut hints, &mut next).is_empty(), "one is under way");
        hints.keep(OWNER, MAP, &key("k"), (&put(6, 1), 6), Time(0));
        assert_eq!(hints.answer(OWNER, rounds[0], &TAKEN), Some(false));
        assert_eq!(hints.counts().kept, 1);
        let rounds = replay(&mut hints, &mut next);
        assert_eq!(hints.answer(CellNumber(9), rounds[0], &TAKEN), None, "somebody else's word");
        hints.unlinked(OWNER);
        assert_eq!(hints.answer(OWNER, rounds[0], &TAKEN), None, "of a link that broke");
        let rounds = replay(&mut hints, &mut next);
        assert_eq!(hints.answer(OWNER, rounds[0], &TAKEN), Some(false));
        assert_eq!(hints.counts(), HintCounts { delivered: 1, ..HintCounts::default() });
    }

    #[test]
    fn hints_in_flight_are_bounded() {
        let (mut hints, mut next) = (hints(10_000, 2), 0);
        for name in ["a", "b", "c"] {
            hints.keep(OWNER, MAP, &key(name), (&put(5, 1), 5), Time(0));
        }
        let rounds = replay(&mut hints, &mut next);
        assert_eq!(rounds.len(), 2);
        hints.answer(OWNER, rounds[1], &Answer::Refused(ReplicaRefusal::Skewed));
        hints.answer(OWNER, rounds[0], &TAKEN);
        assert_eq!(replay(&mut hints, &mut next).len(), 2);
        assert_eq!(hints.counts().kept, 2);
    }

    #[test]
    fn hints_that_are_given_up_are_reported_and_counted() {
        let mut hints = hints(500, 8);
        assert!(!hints.keep(OWNER, MAP, &key("k"), (&put(5, 1), 5), Time(0)));
        assert!(hints.keep(OWNER, MAP, &key("l"), (&put(5, 500), 5), Time(1)));
        assert!(!hints.keep(OWNER, MAP, &key("m"), (&put(5, 500), 5), Time(1)), "told once");
        assert!(hints.expire(Time(10_000_000_000)).is_empty());
        assert!(hints.expire(Time(10_000_000_001)).is_empty(), "told before");
        assert_eq!(hints.counts(), HintCounts { lost: 3, ..HintCounts::default() });
        assert_eq!(hints.lacking().collect::<Vec<_>>(), [OWNER]);
    }
}
