//! Anti-entropy: cells compare their keys with each other, and take what they lack (Dynamo §4.7).
//!
//! **Promise.** Cells that can talk have, some rounds after the last write, the same entries of the keys that they share, whatever
//! hints were lost and whatever was never read. A cell that has been through a round with all others reaches the
//! [horizon](super::horizon) that stood at its beginning.
//!
//! ```text
//!   cell                              another owner
//!     ├── Compare (arcs) ───────────────▶ │
//!     │◀── of each: prints of its parts ─ │   parts that differ are asked about next
//!     │    or, of a few keys, each key ── │   keys that differ are fetched
//!     ├── Fetch (tokens) ───────────────▶ │
//!     │◀────────────────────── Copied ── │   merged here
//!     ├── Write ────────────────────────▶ │   what the other one lacks, as far as it was met on the way
//! ```
//!
//! An arc is one whose keys both own, by the layout that both have, or a part of one. The asking cell goes depth first, with a
//! bounded number of arcs and tokens in a message, one message at a time. The other cell remembers nothing of it.
//!
//! **Pace.** One round follows another after a pause, and the messages of a round are as far apart as their bytes allow. A cell compares
//! with one other at a time, either as the one that asks or as the one that is asked by a cell that has found much: that would else
//! be found, and sent, from both ends at once. Few differences hold nobody up, because there always are some: writes on their way, and
//! deletions that one cell has forgotten and the next one has not.
//!
//! **What it costs.** Of cells that are equal, one message each way for each map. For a key that differs, its entry once, and
//! about 160 bytes of prints on the way to it.
//!
//! **Bounds.** A question has 64 arcs or 256 tokens: about 2 KB. An answer has four prints or four keys for each arc, about 7 KB; or
//! entries, 256 KiB and those of one token. Those have the limit of one entry. In one turn a cell gives half a mebibyte and one
//! entry at most. It remembers open arcs: three for each step from an arc of the ring down to a token, so
//! a few thousand at most; and twice 256 tokens.
//!
//! **Attacks considered.**
//!
//! - *Writes go on while two cells compare.* Prints differ for what is on its way. It is fetched, and finds itself there already: bytes, and
//!   nothing else. A round ends all the same, because parts become smaller. Prints that agree say that this cell has, now, what the
//!   other one had when it answered; a horizon needs no more than that.
//! - *Two cells ask each other at once.* Both refuse, and ask again after pauses by chance. A cell that has tried fifty times in a round
//!   passes the other one over, and the round leads to no horizon.
//! - *A gift or a fetched entry that is lost with its link.* The other cell is passed over in this round, or the next one finds the difference.
//! - *A gift that is on its way while its key is deleted, and the deletion forgotten.* The horizon of the cell that takes it covers it: passed over.
//! - *An entry that a cell has no room for.* The round leads to no horizon, and so does the next one. Nothing is forgotten until there is room.
//! - *A place that is given away.* The other cell refuses what belongs to another layout. A round ends when this cell's layout changes.
//! - *An arriving cell* refuses to compare, so there is no horizon before it has arrived.
//! - *Many keys made to share a token.* They travel together, and have together the limit of one entry; what is beyond is refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};

use super::{
    clock::Clock,
    compare::{ARCS_MAX, Item, Pace, Part, TOKENS_MAX},
    entry::Entry,
    horizon::{Horizon, Horizons},
    layout::{CellNumber, Layout, LayoutVersion, MapId},
    message::{Answer, Demand, Message, Refusal, Request, Round},
    replica::Replica,
    ring::{Ring, Token},
    tree::{Arc, print},
};
use crate::{
    time::{Duration, Time},
    wire::Wire,
};

/// How cells bring each other up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairSettings {
    /// The pause between two rounds, about.
    pub every: Duration,
    /// A round takes no more bytes a second, in both directions together.
    pub bytes_per_second: u64,
}

impl Default for RepairSettings {
    fn default() -> Self {
        RepairSettings { every: Duration::from_secs(1), bytes_per_second: 32 << 20 }
    }
}

/// What comparing has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RepairCounts {
    /// Rounds with all other cells that came to an end.
    pub rounds: u64,
    /// Rounds that could not be had with all of them.
    pub broken: u64,
    /// Entries that were taken.
    pub taken: u64,
    /// Entries that were given.
    pub given: u64,
    /// Bytes that questions, answers and gifts took.
    pub bytes: u64,
}

/// The comparing of one cell.
#[derive(Debug)]
pub(super) struct Repair {
    settings: RepairSettings,
    /// The next round, or the next message of the present one.
    next_at: Time,
    round: Option<Comparing>,
    /// The cell that asks this one and has found much, and until when others are refused.
    serving: Option<(CellNumber, Time)>,
    counts: RepairCounts,
}

/// A round.
#[derive(Debug)]
struct Comparing {
    layout: LayoutVersion,
    /// The horizon that it leads to.
    target: Option<Horizon>,
    /// The cells that are left, the present one first.
    left: VecDeque<CellNumber>,
    /// How often any of them may still be asked for another time.
    tries: u32,
    /// Whether everything of everybody was seen and taken.
    whole: bool,
    with: Option<Talk>,
}

/// The comparison with one cell.
#[derive(Debug)]
struct Talk {
    maps: VecDeque<(MapId, Vec<Arc>)>,
    map: Option<MapId>,
    /// Whether anything was asked: from then on the other cell does not refuse.
    begun: bool,
    /// Arcs to be asked about, the last one next.
    open: Vec<Arc>,
    /// How many of them nothing is known of yet. The others differ.
    untouched: usize,
    /// Tokens whose entries are wanted.
    wanted: BTreeSet<Token>,
    asked: Option<(Round, Time, Question)>,
}

#[derive(Debug)]
enum Question {
    Compare(Vec<Arc>),
    Fetch(Vec<Token>),
}

/// The parts of its cell that repair works with during a turn.
pub(super) struct Grounds<'a> {
    pub(super) now: Time,
    pub(super) me: CellNumber,
    pub(super) layout: &'a Layout,
    pub(super) rings: &'a BTreeMap<MapId, Ring>,
    pub(super) reachable: &'a BTreeSet<CellNumber>,
    pub(super) replica: &'a mut Replica,
    pub(super) clock: &'a mut Clock,
    pub(super) random: &'a mut dyn FnMut() -> u64,
    /// Issues the number of a request.
    pub(super) next_round: &'a mut dyn FnMut() -> Round,
    pub(super) out: &'a mut Vec<(CellNumber, Request)>,
}

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause before a cell that compares with somebody else is asked for another time, about.
const LATER: Duration = Duration::from_millis(40);
/// How long a cell that has found much, and asked nothing more since, counts as one that compares.
const SERVING: Duration = Duration::from_millis(100);
/// So many arcs that differ, or tokens, are much.
const MUCH: usize = 256;
/// How often in one round cells are asked for another time.
const TRIES: u32 = 50;
/// Of an arc in which this cell has more entries, nothing is given: the other one asks for them itself.
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

    /// The layout changed, which ends a round: its comparisons are of another layout.
    pub(super) fn adopt(&mut self, now: Time) {
        if self.round.take().is_some() {
            self.next_at = now + self.settings.every;
        }
        self.serving = None;
    }

    /// Another cell asks to compare. Says whether it may. One that has begun goes on; once it has found much, others wait.
    pub(super) fn admits(&mut self, from: CellNumber, pace: Pace, now: Time) -> bool {
        if pace == Pace::Begins {
            let other = self.serving.is_some_and(|(cell, until)| cell != from && now < until);
            return !other && self.round.as_ref().is_none_or(|round| round.with.is_none());
        }
        if pace == Pace::Much {
            self.serving = Some((from, now + SERVING));
        }
        true
    }

    /// Time has passed. Returns the horizon that was reached.
    pub(super) fn tick(&mut self, horizons: &Horizons, grounds: &mut Grounds<'_>) -> Option<Horizon> {
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
            self.round = Some(Comparing { layout, target, left, tries: TRIES, whole: true, with: None });
        }
        self.proceed(grounds)
    }

    /// Takes an answer; gives it back if it is to none of its questions. Returns the horizon that was reached, too.
    pub(super) fn answer(
        &mut self,
        from: CellNumber,
        round: Round,
        answer: Answer,
        grounds: &mut Grounds<'_>,
    ) -> Result<Option<Horizon>, Answer> {
        let present = self.round.as_mut().filter(|it| it.left.front() == Some(&from));
        let Some(talk) = present.and_then(|it| it.with.as_mut()) else { return Err(answer) };
        if talk.asked.as_ref().is_none_or(|(asked, ..)| *asked != round) {
            return Err(answer);
        }
        let (_, _, question) = talk.asked.take().expect("it was looked at");
        let message = Message::Answer { round, answer };
        let mut bytes = wire_bytes(&message);
        let Message::Answer { answer, .. } = message else { unreachable!("it was made one") };
        let fits = match (question, answer) {
            (Question::Compare(arcs), Answer::Compared(parts)) if parts.len() == arcs.len() => {
                let map = talk.map.expect("a map is compared");
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
            (Question::Fetch(tokens), Answer::Copied { entries, next }) => {
                let map = talk.map.expect("a map is compared");
                let through = next.as_ref().map(|key| Token::of(map, key));
                let left = tokens.into_iter().filter(|token| through.is_some_and(|through| *token > through));
                talk.wanted.extend(left);
                let mut fits = true;
                for (key, entry) in entries {
                    let theirs = print(Token::of(map, &key), &entry);
                    fits &=
                        grounds.replica.take(map, (key.clone(), entry), grounds.clock, grounds.now).is_ok();
                    self.counts.taken += 1;
                    let mine = grounds.replica.entry(map, &key);
                    let mine = mine.filter(|mine| print(Token::of(map, &key), mine) != theirs);
                    if let Some(mine) = mine.filter(|_| bytes < TURN_BYTES) {
                        bytes += self.counts.give(from, (map, key, mine), grounds);
                    }
                }
                fits
            }
            (_, Answer::Refused(Refusal::Comparing)) => {
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
            // An entry that there is no room for, or a word that makes no sense: the others are compared all the same.
            round.whole &= fits;
        }
        let pause = bytes * 1_000_000_000 / self.settings.bytes_per_second.max(1);
        self.next_at = grounds.now + Duration::from_nanos(pause);
        if pause < TURN_NANOS { Ok(self.proceed(grounds)) } else { Ok(None) }
    }

    /// The link to a cell broke: a question to it may be lost.
    pub(super) fn unlinked(&mut self, cell: CellNumber, now: Time) {
        if let Some(round) = self.round.as_ref().filter(|round| round.left.front() == Some(&cell))
            && round.with.is_some()
        {
            self.give_up();
            self.next_at = now;
        }
    }

    /// The present cell is passed over in this round.
    fn give_up(&mut self) {
        if let Some(round) = &mut self.round {
            round.whole = false;
            round.with = None;
            round.left.pop_front();
        }
    }

    /// The present cell compares with somebody else: the others come first.
    fn ask_later(&mut self, grounds: &mut Grounds<'_>) {
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
    fn proceed(&mut self, grounds: &mut Grounds<'_>) -> Option<Horizon> {
        let serving = self.serving.is_some_and(|(_, until)| grounds.now < until);
        loop {
            let round = self.round.as_mut()?;
            assert_eq!(round.layout, grounds.layout.version(), "a round of another layout goes on");
            let Some(cell) = round.left.front().copied() else {
                let round = self.round.take().expect("it was looked at");
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
                round.with = Some(Talk::new(cell, grounds));
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
                Question::Compare(arcs) => Demand::Compare { pace, arcs: arcs.clone() },
                Question::Fetch(tokens) => Demand::Fetch(tokens.clone()),
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

/// Once a turn has come to so many bytes, nothing more is given: what is left out is found in the next round.
const TURN_BYTES: u64 = 512 << 10;
/// A pause that is shorter is none: the next question goes at once.
const TURN_NANOS: u64 = 200_000;

impl RepairCounts {
    /// Gives an entry to a cell that lacks it. Nobody waits for its word: a loss is found in the next round.
    fn give(
        &mut self,
        to: CellNumber,
        (map, key, entry): (MapId, Bytes, Entry),
        grounds: &mut Grounds<'_>,
    ) -> u64 {
        self.given += 1;
        let (round, layout) = ((grounds.next_round)(), grounds.layout.version());
        ask(to, Request { round, layout, map, key, demand: Demand::Write(entry) }, grounds)
    }
}

impl Talk {
    fn new(with: CellNumber, grounds: &Grounds<'_>) -> Talk {
        let shared = grounds.rings.iter().map(|(map, ring)| (*map, ring.shared(grounds.me, with)));
        let maps = shared.filter(|(_, arcs)| !arcs.is_empty()).collect();
        let (open, wanted) = (Vec::new(), BTreeSet::new());
        Talk { maps, map: None, begun: false, open, untouched: 0, wanted, asked: None }
    }

    /// How far it is, before the next question.
    fn pace(&self) -> Pace {
        match self.open.len() - self.untouched + self.wanted.len() {
            _ if !self.begun => Pace::Begins,
            0..MUCH => Pace::Little,
            _ => Pace::Much,
        }
    }

    /// The next question, and the map that it is about.
    fn next(&mut self) -> Option<(MapId, Question)> {
        while self.open.is_empty() && self.wanted.is_empty() {
            let (map, arcs) = self.maps.pop_front()?;
            (self.map, self.untouched, self.open) = (Some(map), arcs.len(), arcs);
        }
        let map = self.map.expect("its arcs are asked about");
        if self.open.is_empty() || self.wanted.len() >= TOKENS_MAX {
            let behind = self.wanted.iter().nth(TOKENS_MAX).copied();
            let rest = behind.map_or_else(BTreeSet::new, |behind| self.wanted.split_off(&behind));
            let tokens = std::mem::replace(&mut self.wanted, rest);
            return Some((map, Question::Fetch(tokens.into_iter().collect())));
        }
        let arcs = self.open.split_off(self.open.len().saturating_sub(ARCS_MAX));
        self.untouched = self.untouched.min(self.open.len());
        Some((map, Question::Compare(arcs)))
    }

    /// Finds what differs in an arc. Says whether the answer fits the question.
    fn compare(
        &mut self,
        map: MapId,
        arc: Arc,
        part: Part,
        replica: &Replica,
        gifts: &mut BTreeSet<Token>,
    ) -> bool {
        match part {
            Part::Prints(prints) => {
                let Some(parts) = arc.parts() else { return false };
                let differ = parts
                    .into_iter()
                    .zip(prints)
                    .filter_map(|(part, theirs)| part.filter(|part| replica.sum(map, *part).print != theirs));
                self.open.extend(differ);
            }
            Part::Items(theirs) => {
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

/// Sends a request, and returns its bytes.
fn ask(to: CellNumber, request: Request, grounds: &mut Grounds<'_>) -> u64 {
    let message = Message::Request(request);
    let bytes = wire_bytes(&message);
    let Message::Request(request) = message else { unreachable!("it was made one") };
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
    fn nobody_waits_for_a_cell_that_has_found_few_differences() {
        let mut repair = Repair::new(RepairSettings::default(), Time(0));
        let (one, other) = (CellNumber(1), CellNumber(2));
        let mut admits = |from, pace, now| repair.admits(from, pace, now);
        assert!(admits(one, Pace::Begins, Time(1)) && admits(other, Pace::Begins, Time(1)));
        assert!(admits(one, Pace::Little, Time(2)) && admits(other, Pace::Begins, Time(2)));
        assert!(admits(one, Pace::Much, Time(3)));
        assert!(!admits(other, Pace::Begins, Time(4)) && admits(one, Pace::Begins, Time(4)));
        assert!(admits(other, Pace::Begins, Time(3) + SERVING));
    }

    /// Arcs of the ring that nothing is known of are no differences, however many there are.
    #[test]
    fn what_has_not_been_asked_about_does_not_differ() {
        let arcs = (0..1_000).map(|at| Arc { first: Token(at << 32), last: Token((at << 32) + 9) }).collect();
        let (open, wanted) = (Vec::new(), BTreeSet::new());
        let maps = VecDeque::from([(MapId(1), arcs)]);
        let mut talk = Talk { maps, map: None, begun: false, open, untouched: 0, wanted, asked: None };
        assert_eq!(talk.pace(), Pace::Begins);
        talk.next();
        talk.begun = true;
        assert_eq!((talk.pace(), talk.untouched), (Pace::Little, 1_000 - ARCS_MAX));
        talk.open.extend([Arc::WHOLE; MUCH]);
        assert_eq!(talk.pace(), Pace::Much);
        while talk.open.len() > ARCS_MAX {
            talk.next();
        }
        assert_eq!(talk.pace(), Pace::Little);
    }
}
