//! Anti-entropy: cells compare their keys with each other, and take the entries that they lack (Dynamo §4.7).
//!
//! **Promise.** Some rounds after the last write, cells that can talk have the same entries of the keys that
//! they share, even if hints were lost and no key was read. A cell that has completed a round with all other
//! cells reaches the [horizon](super::horizon) that stood at the round's beginning.
//!
//! ```text
//!   cell                              another owner
//!     ├── Compare (arcs) ───────────────▶ │
//!     │◀── of each: prints of its parts ─ │   parts that differ are asked about next
//!     │    or, of a few keys, each key ── │   keys that differ are fetched
//!     ├── Fetch (tokens) ───────────────▶ │
//!     │◀────────────────────── Copied ── │   merged here
//!     ├── Repair ───────────────────────▶ │   entries that the other one is seen to lack
//! ```
//!
//! An arc here is a part of the ring whose keys both cells own, by their common layout. The asking cell goes
//! depth first, with a bounded number of arcs and tokens in a message, one message at a time. The other cell
//! keeps no state of the comparison.
//!
//! **Pace.** One round follows another after a pause, and the pauses between a round's messages grow with
//! their bytes. A cell compares with one other cell at a time: either as the asking cell, or as the cell that
//! answers a cell with many differences. Otherwise both ends would find and send the same differences at
//! once. A comparison with few differences makes no other cell wait, because there always are some
//! differences: writes on their way, and deletions that only one of the cells has forgotten.
//!
//! **Cost.** Cells that are equal exchange one message each way for each map. A key that differs costs its
//! entry once, and about 160 bytes of hashes on the way to it.
//!
//! **Bounds.** A question has 64 arcs or 256 tokens: about 2 KB. An answer to a comparison has four hashes or
//! four keys for each arc, about 7 KB. An answer to a fetch has 256 KiB of entries, plus the entries of one
//! token, which together are limited like one entry. In one turn a cell gives at most half a mebibyte and one
//! entry. It remembers arcs that it has yet to compare: three for each step from an arc of the ring down to a
//! token, so a few thousand at most. It also remembers up to 512 tokens.
//!
//! **Attacks considered.**
//!
//! - *Writes go on while two cells compare.* Hashes differ for writes on their way. The cell fetches these
//!   writes, and finds that they have arrived meanwhile, which costs only bytes. A round ends nevertheless,
//!   because parts become smaller. Hashes that agree say that this cell has, now, the entries that the other
//!   cell had when it answered. A horizon requires no more than that.
//! - *Two cells ask each other at once.* Both refuse, and ask again after random pauses. A cell that has
//!   tried fifty times in a round skips the other cell, and the round leads to no horizon.
//! - *A sent or fetched entry that is lost with its link.* The asking cell skips the other cell in this
//!   round, or the next round finds the difference.
//! - *An entry that is on its way while its key is deleted and the deletion forgotten.* The receiver's
//!   horizon covers it, so the receiver ignores it.
//! - *An entry that a cell has no room for.* No such entry exists: copies pass the limits of clients
//!   (`replica`).
//! - *A place that is given away.* The other cell refuses requests of another layout. A round ends when this
//!   cell's layout changes.
//! - *An arriving cell* refuses to compare, so there is no horizon before it has arrived.
//! - *Many keys made to share a token.* They travel together, and share the limit of one entry. Larger writes
//!   are refused.
//! - *A stamp that is far ahead of this cell's clock.* The cell does not take that entry. The stamp lies
//!   above the horizon to which the round leads, so that horizon does not cover it. If this cell's own clock
//!   was set back, it may refuse a stamp that its horizon would cover. Then the round leads to no horizon.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};

use super::{
    clock::Clock,
    compare::{ARCS_MAX, ArcContent, DifferenceCount, Item, TOKENS_MAX},
    entry::Entry,
    horizon::{Horizon, Horizons},
    id::{CellNumber, LayoutVersion, MapId},
    layout::Layout,
    message::{Answer, Demand, Message, ReplicaRefusal, Request, Round},
    replica::MapsReplica,
    ring::Ring,
    token::{Arc, Token},
    tree::print,
};
use crate::{
    time::{Duration, Time},
    wire::Wire,
};

/// Settings that limit how fast a cell compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairSettings {
    /// The approximate pause between two rounds.
    pub every: Duration,
    /// Maximum number of bytes a second in a round, in both directions together.
    pub bytes_per_second: u64,
}

impl Default for RepairSettings {
    fn default() -> Self {
        RepairSettings { every: Duration::from_secs(1), bytes_per_second: 32 << 20 }
    }
}

/// Counters of the comparison with other cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RepairCounts {
    /// Rounds that were completed with all other cells.
    pub rounds: u64,
    /// Rounds that skipped a cell or an entry.
    pub broken: u64,
    /// Entries that this cell took.
    pub taken: u64,
    /// Entries that this cell sent although the other cell had not requested them.
    pub given: u64,
    /// Bytes of questions, answers and sent entries.
    pub bytes: u64,
}

/// The state of one cell's comparing.
#[derive(Debug)]
pub(super) struct Repair {
    settings: RepairSettings,
    /// The time of the next round, or of the next message of the present round.
    next_at: Time,
    round: Option<RepairRound>,
    /// The asking cell that has found many differences, and the time until which other cells are refused.
    serving: Option<(CellNumber, Time)>,
    counts: RepairCounts,
}

/// A round of comparing.
#[derive(Debug)]
struct RepairRound {
    layout: LayoutVersion,
    /// The horizon that a complete round reaches.
    target: Option<Horizon>,
    /// The cells with which this round still has to compare, the present cell first.
    left: VecDeque<CellNumber>,
    /// The number of further requests to cells that refused.
    tries: u32,
    /// Whether the round has so far skipped no cell and no entry.
    whole: bool,
    with: Option<CellComparison>,
}

/// The comparison with one other cell.
#[derive(Debug)]
struct CellComparison {
    maps: VecDeque<(MapId, Vec<Arc>)>,
    map: Option<MapId>,
    /// Whether a question of this comparison was sent. The other cell may refuse only the first question.
    begun: bool,
    /// Arcs that are to be compared. The last arc is compared next.
    open: Vec<Arc>,
    /// The number of open arcs that were not compared at all. The other open arcs are known to differ.
    unexplored: usize,
    /// Tokens whose entries are to be fetched.
    wanted: BTreeSet<Token>,
    asked: Option<(Round, Time, CompareQuestion)>,
}

#[derive(Debug)]
enum CompareQuestion {
    Compare(Vec<Arc>),
    Fetch(Vec<Token>),
}

/// The parts of the cell that repair works with during a turn.
pub(super) struct RepairContext<'a> {
    pub(super) now: Time,
    pub(super) me: CellNumber,
    pub(super) layout: &'a Layout,
    pub(super) rings: &'a BTreeMap<MapId, Ring>,
    pub(super) reachable: &'a BTreeSet<CellNumber>,
    pub(super) replica: &'a mut MapsReplica,
    pub(super) clock: &'a mut Clock,
    pub(super) random: &'a mut dyn FnMut() -> u64,
    /// Returns the number of a new request.
    pub(super) next_round: &'a mut dyn FnMut() -> Round,
    pub(super) out: &'a mut Vec<(CellNumber, Request)>,
}

/// The time after which the asking cell gives up a cell that has not answered its question.
const PATIENCE: Duration = Duration::from_secs(2);
/// The approximate pause before this cell asks a cell that refused again.
const LATER: Duration = Duration::from_millis(40);
/// The time for which an asking cell with many differences keeps other cells waiting after its last question.
const SERVING: Duration = Duration::from_millis(100);
/// Number of differing arcs and tokens from which on a comparison counts as having many differences
/// ([`DifferenceCount::Many`]).
const MUCH: usize = 256;
/// Maximum number of repeated requests, in one round, to cells that refused.
const TRIES: u32 = 50;
/// Maximum number of this cell's entries in an arc for which this cell sends the entries that the other cell
/// lacks. If the arc has more entries, the other cell's own round fetches them.
const GIFTS_MAX: u32 = 64;

impl Repair {
    pub(super) fn new(settings: RepairSettings, now: Time) -> Repair {
        Repair {
            settings,
            next_at: now + settings.every,
            round: None,
            serving: None,
            counts: RepairCounts::default(),
        }
    }

    pub(super) fn counts(&self) -> RepairCounts {
        self.counts
    }

    pub(super) fn deadline(&self) -> Time {
        let waits = self.round.as_ref().and_then(|round| round.with.as_ref()?.asked.as_ref());
        waits.map_or(self.next_at, |(_, since, _)| *since + PATIENCE)
    }

    /// Adopts a changed layout: ends the round, because its comparisons belong to the earlier layout.
    pub(super) fn adopt(&mut self, now: Time) {
        if self.round.take().is_some() {
            self.next_at = now + self.settings.every;
        }
        self.serving = None;
    }

    /// Whether another cell may compare now. A cell that has begun to compare may continue. Once it has found
    /// many differences, other cells wait.
    pub(super) fn admits(&mut self, from: CellNumber, pace: DifferenceCount, now: Time) -> bool {
        if pace == DifferenceCount::Unknown {
            let other = self.serving.is_some_and(|(cell, until)| cell != from && now < until);
            return !other && self.round.as_ref().is_none_or(|round| round.with.is_none());
        }
        if pace == DifferenceCount::Many {
            self.serving = Some((from, now + SERVING));
        }
        true
    }

    /// Performs the step that is due. Returns the horizon if a round reached one.
    pub(super) fn tick(&mut self, horizons: &Horizons, grounds: &mut RepairContext<'_>) -> Option<Horizon> {
        if grounds.now < self.deadline() {
            return None;
        }
        if self.round.as_ref().is_some_and(|round| round.with.as_ref().is_some_and(|it| it.asked.is_some())) {
            // No answer came in time.
            self.give_up();
        }
        if self.round.is_none() {
            let others = grounds.layout.cells().map(|(cell, _)| cell).filter(|cell| *cell != grounds.me);
            let mut left: VecDeque<CellNumber> = others.collect();
            let first = (grounds.random)() as usize % left.len().max(1);
            left.rotate_left(first);
            let layout = grounds.layout.version();
            let target = horizons.target(grounds.layout, grounds.me);
            self.round = Some(RepairRound { layout, target, left, tries: TRIES, whole: true, with: None });
        }
        self.proceed(grounds)
    }

    /// Takes an answer to the open question, and returns the horizon if a round reached one. Returns any
    /// other answer as the error.
    pub(super) fn answer(
        &mut self,
        from: CellNumber,
        round: Round,
        answer: Answer,
        grounds: &mut RepairContext<'_>,
    ) -> Result<Option<Horizon>, Answer> {
        let present = self.round.as_mut().filter(|it| it.left.front() == Some(&from));
        let Some(present) = present else { return Err(answer) };
        let target = present.target;
        let Some(talk) = present.with.as_mut() else { return Err(answer) };
        if talk.asked.as_ref().is_none_or(|(asked, ..)| *asked != round) {
            return Err(answer);
        }
        let (_, _, question) = talk.asked.take().expect("the entry was just looked at");
        let message = Message::Answer { round, answer };
        let mut bytes = wire_bytes(&message);
        let Message::Answer { answer, .. } = message else {
            unreachable!("the message was made of this variant")
        };
        let fits = match (question, answer) {
            (CompareQuestion::Compare(arcs), Answer::Compared(parts)) if parts.len() == arcs.len() => {
                let map = talk.map.expect("a comparison has a map");
                let mut gifts = BTreeSet::new();
                let fits = arcs
                    .into_iter()
                    .zip(parts)
                    .all(|(arc, part)| talk.compare(map, arc, part, grounds.replica, &mut gifts));
                let tokens: Vec<Token> = gifts.into_iter().collect();
                for (key, entry) in grounds.replica.gather(map, &tokens).0 {
                    bytes += self.counts.give(from, (map, key, entry), grounds);
                }
                fits
            }
            (CompareQuestion::Fetch(tokens), Answer::Copied { entries, next }) => {
                let map = talk.map.expect("a comparison has a map");
                let through = next.as_ref().map(|key| Token::of(map, key));
                let left = tokens.into_iter().filter(|token| through.is_some_and(|through| *token > through));
                talk.wanted.extend(left);
                let mut fits = true;
                for (key, entry) in entries {
                    let theirs = print(Token::of(map, &key), &entry);
                    let copy = (key.clone(), entry);
                    fits &= match grounds.replica.take(map, copy, grounds.clock, grounds.now) {
                        Ok(None) => true,
                        Ok(Some(left_out)) => target.is_none_or(|target| left_out > target.time),
                        Err(_) => false,
                    };
                    self.counts.taken += 1;
                    let mine = grounds.replica.entry(map, &key);
                    let mine = mine.filter(|mine| print(Token::of(map, &key), mine) != theirs);
                    if let Some(mine) = mine.filter(|_| bytes < TURN_BYTES) {
                        bytes += self.counts.give(from, (map, key, mine), grounds);
                    }
                }
                fits
            }
            (_, Answer::Refused(ReplicaRefusal::Comparing)) => {
                self.ask_later(grounds);
                return Ok(None);
            }
            _ => {
                self.give_up();
                true
            }
        };
        self.counts.bytes += bytes;
        if let Some(round) = &mut self.round {
            // An entry was not taken, or the answer does not fit the question. The comparison continues
            // without that entry.
            round.whole &= fits;
        }
        let pause = bytes * 1_000_000_000 / self.settings.bytes_per_second.max(1);
        self.next_at = grounds.now + Duration::from_nanos(pause);
        if pause < TURN_NANOS { Ok(self.proceed(grounds)) } else { Ok(None) }
    }

    /// Handles a broken link to a cell: a question may be lost, so the cell is skipped.
    pub(super) fn unlinked(&mut self, cell: CellNumber, now: Time) {
        if let Some(round) = self.round.as_ref().filter(|round| round.left.front() == Some(&cell))
            && round.with.is_some()
        {
            self.give_up();
            self.next_at = now;
        }
    }

    /// Skips the present cell in this round.
    fn give_up(&mut self) {
        if let Some(round) = &mut self.round {
            round.whole = false;
            round.with = None;
            round.left.pop_front();
        }
    }

    /// Postpones the present cell, because that cell compares with another cell, and continues with the
    /// remaining cells.
    fn ask_later(&mut self, grounds: &mut RepairContext<'_>) {
        let Some(round) = &mut self.round else { return };
        round.with = None;
        match round.tries.checked_sub(1) {
            Some(tries) => {
                round.tries = tries;
                round.left.rotate_left(1);
            }
            None => {
                round.whole = false;
                round.left.pop_front();
            }
        }
        self.next_at = grounds.now + LATER / 2 + spread(LATER, grounds.random);
    }

    /// Asks the next question, or ends the round.
    fn proceed(&mut self, grounds: &mut RepairContext<'_>) -> Option<Horizon> {
        let serving = self.serving.is_some_and(|(_, until)| grounds.now < until);
        loop {
            let round = self.round.as_mut()?;
            assert_eq!(round.layout, grounds.layout.version(), "a round of comparisons ends with its layout");
            let Some(cell) = round.left.front().copied() else {
                let round = self.round.take().expect("the entry was just looked at");
                self.counts.rounds += u64::from(round.whole);
                self.counts.broken += u64::from(!round.whole);
                self.next_at =
                    grounds.now + self.settings.every / 2 + spread(self.settings.every, grounds.random);
                return round.target.filter(|_| round.whole);
            };
            if !grounds.reachable.contains(&cell) {
                self.give_up();
                continue;
            }
            let Some(talk) = &mut round.with else {
                if serving {
                    self.ask_later(grounds);
                    return None;
                }
                round.with = Some(CellComparison::new(cell, grounds));
                continue;
            };
            let pace = talk.pace();
            let Some((map, question)) = talk.next() else {
                round.with = None;
                round.left.pop_front();
                continue;
            };
            talk.begun = true;
            let demand = match &question {
                CompareQuestion::Compare(arcs) => Demand::Compare { pace, arcs: arcs.clone() },
                CompareQuestion::Fetch(tokens) => Demand::Fetch(tokens.clone()),
            };
            let number = (grounds.next_round)();
            talk.asked = Some((number, grounds.now, question));
            let (layout, key) = (round.layout, Bytes::new());
            let request = Request { round: number, layout, map, key, demand };
            self.counts.bytes += ask(cell, request, grounds);
            return None;
        }
    }
}

/// Number of bytes sent in a turn after which no further entry is sent. The next round finds the remaining
/// entries.
const TURN_BYTES: u64 = 512 << 10;
/// The shortest pause, in nanoseconds. Instead of a shorter pause, the next question is sent at once.
const TURN_NANOS: u64 = 200_000;

impl RepairCounts {
    /// Sends an entry to a cell that lacks it. This cell awaits no answer: if the entry is lost, the next
    /// round finds the difference again.
    fn give(
        &mut self,
        to: CellNumber,
        (map, key, entry): (MapId, Bytes, Entry),
        grounds: &mut RepairContext<'_>,
    ) -> u64 {
        self.given += 1;
        let (round, layout) = ((grounds.next_round)(), grounds.layout.version());
        ask(to, Request { round, layout, map, key, demand: Demand::Repair(entry) }, grounds)
    }
}

impl CellComparison {
    fn new(with: CellNumber, grounds: &RepairContext<'_>) -> CellComparison {
        let shared = grounds.rings.iter().map(|(map, ring)| (*map, ring.shared(grounds.me, with)));
        let maps = shared.filter(|(_, arcs)| !arcs.is_empty()).collect();
        let (open, wanted) = (Vec::new(), BTreeSet::new());
        CellComparison { maps, map: None, begun: false, open, unexplored: 0, wanted, asked: None }
    }

    /// Returns the rough number of differences that the next question states.
    fn pace(&self) -> DifferenceCount {
        match self.open.len() - self.unexplored + self.wanted.len() {
            _ if !self.begun => DifferenceCount::Unknown,
            0..MUCH => DifferenceCount::Few,
            _ => DifferenceCount::Many,
        }
    }

    /// Returns the next question, and the map that it concerns.
    fn next(&mut self) -> Option<(MapId, CompareQuestion)> {
        while self.open.is_empty() && self.wanted.is_empty() {
            let (map, arcs) = self.maps.pop_front()?;
            (self.map, self.unexplored, self.open) = (Some(map), arcs.len(), arcs);
        }
        let map = self.map.expect("a comparison that asks about arcs has a map");
        if self.open.is_empty() || self.wanted.len() >= TOKENS_MAX {
            let behind = self.wanted.iter().nth(TOKENS_MAX).copied();
            let rest = behind.map_or_else(BTreeSet::new, |behind| self.wanted.split_off(&behind));
            let tokens = std::mem::replace(&mut self.wanted, rest);
            return Some((map, CompareQuestion::Fetch(tokens.into_iter().collect())));
        }
        let arcs = self.open.split_off(self.open.len().saturating_sub(ARCS_MAX));
        self.unexplored = self.unexplored.min(self.open.len());
        Some((map, CompareQuestion::Compare(arcs)))
    }

    /// Finds the differences in an arc. Returns whether the answer fits the question.
    fn compare(
        &mut self,
        map: MapId,
        arc: Arc,
        part: ArcContent,
        replica: &MapsReplica,
        gifts: &mut BTreeSet<Token>,
    ) -> bool {
        match part {
            ArcContent::Prints(prints) => {
                let Some(parts) = arc.parts() else { return false };
                let differ = parts
                    .into_iter()
                    .zip(prints)
                    .filter_map(|(part, theirs)| part.filter(|part| replica.sum(map, *part).print != theirs));
                self.open.extend(differ);
            }
            ArcContent::Items(theirs) => {
                let ascend = theirs.windows(2).all(|pair| pair[0].token < pair[1].token);
                if !ascend || !theirs.iter().all(|item| arc.has(item.token)) {
                    return false;
                }
                for item in &theirs {
                    let mine = replica.items(map, Arc { first: item.token, last: item.token });
                    match mine.first() {
                        Some(mine) if mine == item => {}
                        Some(mine)
                            if mine.key == item.key && replica.is_above(map, mine.token, item.newest) =>
                        {
                            gifts.insert(item.token);
                        }
                        _ => {
                            self.wanted.insert(item.token);
                        }
                    }
                }
                if replica.sum(map, arc).count <= GIFTS_MAX {
                    let theirs = |token: Token| theirs.iter().any(|item: &Item| item.token == token);
                    let mine = replica.items(map, arc).into_iter().map(|item| item.token);
                    gifts.extend(mine.filter(|token| !theirs(*token)));
                }
            }
        }
        true
    }
}

/// Sends a request, and returns its length in bytes.
fn ask(to: CellNumber, request: Request, grounds: &mut RepairContext<'_>) -> u64 {
    let message = Message::Request(request);
    let bytes = wire_bytes(&message);
    let Message::Request(request) = message else { unreachable!("the message was made of this variant") };
    grounds.out.push((to, request));
    bytes
}

fn wire_bytes(message: &Message) -> u64 {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    bytes.len() as u64
}

fn spread(span: Duration, random: &mut dyn FnMut() -> u64) -> Duration {
    span.mul_f64((random() % 1_000) as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_with_few_differences_delays_no_other() {
        let mut repair = Repair::new(RepairSettings::default(), Time(0));
        let (one, other) = (CellNumber(1), CellNumber(2));
        let mut admits = |from, pace, now| repair.admits(from, pace, now);
        assert!(
            admits(one, DifferenceCount::Unknown, Time(1))
                && admits(other, DifferenceCount::Unknown, Time(1))
        );
        assert!(
            admits(one, DifferenceCount::Few, Time(2)) && admits(other, DifferenceCount::Unknown, Time(2))
        );
        assert!(admits(one, DifferenceCount::Many, Time(3)));
        assert!(
            !admits(other, DifferenceCount::Unknown, Time(4))
                && admits(one, DifferenceCount::Unknown, Time(4))
        );
        assert!(admits(other, DifferenceCount::Unknown, Time(3) + SERVING));
    }

    /// Arcs that were not compared do not count as differences, however many they are.
    #[test]
    fn arcs_not_yet_compared_do_not_count_as_different() {
        let arcs = (0..1_000).map(|at| Arc { first: Token(at << 32), last: Token((at << 32) + 9) }).collect();
        let (open, wanted) = (Vec::new(), BTreeSet::new());
        let maps = VecDeque::from([(MapId(1), arcs)]);
        let mut talk =
            CellComparison { maps, map: None, begun: false, open, unexplored: 0, wanted, asked: None };
        assert_eq!(talk.pace(), DifferenceCount::Unknown);
        talk.next();
        talk.begun = true;
        assert_eq!((talk.pace(), talk.unexplored), (DifferenceCount::Few, 1_000 - ARCS_MAX));
        talk.open.extend([Arc::WHOLE; MUCH]);
        assert_eq!(talk.pace(), DifferenceCount::Many);
        while talk.open.len() > ARCS_MAX {
            talk.next();
        }
        assert_eq!(talk.pace(), DifferenceCount::Few);
    }
}
