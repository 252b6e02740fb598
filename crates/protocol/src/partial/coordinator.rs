//! The coordinator: operations that are under way, their timers, and what they may take of memory.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    clock::{Clock, Stamp},
    counter::Memory,
    delays::{Delayed, Delays},
    entry::Entry,
    hints::{HintLimits, Hints},
    layout::{CellNumber, Layout, Map, MapId, ReadRepair},
    level::Level,
    message::{Answer, Demand, Message, Request, Round},
    operation::{Draft, Outcome, Rejection, Running, Stage, Step, Surroundings},
    ring::{Owner, Owners, Ring, Share, Site, Token},
};
use crate::time::{Duration, Time};

/// A user's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The user's name for it: its outcome carries it.
    pub id: u64,
    /// The map.
    pub map: MapId,
    /// The key.
    pub key: Bytes,
    /// How many replicas are waited for.
    pub level: Level,
    /// A smaller level that will do if the other one cannot be met, or not in time (004 §IV). The outcome says which one was.
    pub fallback: Option<Level>,
    /// How much later a read begins, or the outcome of a write that is done is told (004 §II.A). At most a minute.
    pub delay: Duration,
    /// The deed.
    pub action: Action,
}

/// A deed on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read it.
    Read,
    /// Give it a string, in place of all that is there.
    Put {
        /// The string.
        value: Bytes,
        /// After how long it is as good as deleted.
        lifetime: Option<Duration>,
    },
    /// Delete it.
    Delete,
    /// Write some fields; those without a value are deleted.
    PutFields(Vec<(Bytes, Option<Bytes>)>),
    /// Add so much to a counter ([`counter`](super::counter)).
    Add(i64),
}

/// How a coordinator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time after which an operation ends without having met its level.
    pub timeout: Duration,
    /// After how long another replica is asked too, and those that were cut off are asked again. Doubles each time.
    pub speculate_after: Duration,
    /// No key is longer.
    pub key_bytes_max: usize,
    /// No write has more bytes of values and names.
    pub value_bytes_max: usize,
    /// Operations that would need more bytes beside those under way are refused.
    pub in_flight_bytes_max: usize,
    /// The limits of hints.
    pub hints: HintLimits,
    /// How often it is tried to send hints.
    pub hints_every: Duration,
}

/// The memory of an operation beside key and value, about.
const OPERATION_BYTES: usize = 512;

/// The parts of its cell that a coordinator works with during a turn.
pub(super) struct Turn<'a> {
    pub(super) now: Time,
    pub(super) me: CellNumber,
    pub(super) site: Site,
    pub(super) layout: &'a Layout,
    pub(super) rings: &'a BTreeMap<MapId, Ring>,
    pub(super) clock: &'a mut Clock,
    /// Writes of this cell's own up to this time were said to have ended.
    pub(super) through: u64,
    /// All owners have all writes up to this time.
    pub(super) past: u64,
    /// The cells that can be asked, this one included.
    pub(super) reachable: &'a BTreeSet<CellNumber>,
    pub(super) random: &'a mut dyn FnMut() -> u64,
    /// Messages to cells, this one included.
    pub(super) out: &'a mut Vec<(CellNumber, Message)>,
    /// Operations that ended.
    pub(super) ended: &'a mut Vec<(u64, Outcome)>,
    /// Owners of which hints were given up for the first time.
    pub(super) lacking: &'a mut Vec<CellNumber>,
}

/// The operations that a cell coordinates.
#[derive(Debug)]
pub(super) struct Coordinator {
    patience: Patience,
    /// Boxed: an operation is large, and its place among the others changes often.
    running: BTreeMap<Round, Box<Running>>,
    timers: BTreeSet<(Time, Round)>,
    rounds: u64,
    bytes: usize,
    delays: Delays,
    hints: Hints,
    memory: Memory,
    /// Reads that brought replicas up to date.
    repairs: u64,
    /// The next look at hints, as long as there are any.
    hints_at: Time,
}

impl Coordinator {
    pub(super) fn new(patience: Patience) -> Coordinator {
        Coordinator {
            patience,
            running: BTreeMap::new(),
            timers: BTreeSet::new(),
            rounds: 0,
            bytes: 0,
            delays: Delays::default(),
            hints: Hints::new(patience.hints),
            memory: Memory::new(),
            repairs: 0,
            hints_at: Time::ZERO,
        }
    }

    /// Numbers of requests go on behind those of an earlier life of the process: at one a nanosecond they are below its clock. Its
    /// tallies have states up to that time.
    pub(super) fn go_on_behind(&mut self, time: u64) {
        self.rounds = time;
        self.memory.go_on_behind(time);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let hints = (self.hints.counts().kept > 0).then_some(self.hints_at);
        let timer = self.timers.first().map(|(time, _)| *time);
        [timer, self.delays.deadline(), hints].into_iter().flatten().min()
    }

    /// The hints that it keeps.
    pub(super) fn hints(&self) -> &Hints {
        &self.hints
    }

    /// The layout changed, and these cells are new in it. Operations on keys of a cell that is gone end: the owners of a key
    /// do not change in the middle of one.
    pub(super) fn adopt(&mut self, fresh: &BTreeSet<CellNumber>, turn: &mut Turn<'_>) {
        let (layout, rings) = (turn.layout, turn.rings);
        let heirs = |map: MapId, key: &Bytes| {
            let owners = rings.get(&map).into_iter().flat_map(|ring| ring.owners(Token::of(map, key)).iter());
            owners.map(|owner| owner.cell).filter(|cell| fresh.contains(cell)).collect()
        };
        turn.lacking.extend(self.hints.adopt(layout, heirs));
        let is_orphan =
            |running: &Running| running.owners.iter().any(|owner| layout.cell(owner.cell).is_none());
        let orphans: Vec<Round> =
            self.running.iter().filter(|(_, running)| is_orphan(running)).map(|(round, _)| *round).collect();
        for round in orphans {
            let mut running = self.remove(round);
            let step =
                with_surroundings(&mut running, &mut self.memory, turn, |it, around| it.expire(around));
            self.perform(round, running, step, turn);
        }
    }

    /// The time of the oldest write of this cell's own that some owner may lack and still be sent.
    pub(super) fn oldest(&self) -> Option<u64> {
        let running = self.running.values().filter_map(|running| running.oldest());
        running.chain(self.hints.oldest()).min()
    }

    /// Reads that brought replicas up to date, or tried to.
    pub(super) fn repairs(&self) -> u64 {
        self.repairs
    }

    /// How many operations are under way.
    pub(super) fn count(&self) -> usize {
        self.running.len() + self.delays.len()
    }

    /// Begins an operation, at once or after the delay that it asks for.
    pub(super) fn begin(&mut self, operation: Operation, turn: &mut Turn<'_>) {
        if self.bytes + self.delays.bytes() + operation.key.len() > self.patience.in_flight_bytes_max {
            turn.ended.push((operation.id, Outcome::Rejected(Rejection::Busy)));
        } else if let Some(operation) = self.delays.keep(operation, turn.now) {
            self.begin_now(operation, turn);
        }
    }

    fn begin_now(&mut self, operation: Operation, turn: &mut Turn<'_>) {
        let id = operation.id;
        match self.prepare(operation, turn) {
            Err(outcome) => turn.ended.push((id, outcome)),
            Ok(mut running) => {
                let round = self.next_round();
                self.bytes += running.bytes;
                let thorough = self.is_thorough(&running, turn);
                let step =
                    with_surroundings(&mut running, &mut self.memory, turn, |it, around| match it.draft {
                        None | Some(Draft::Add(_)) => it.begin_read(thorough, around),
                        Some(_) => it.begin_write(around),
                    });
                self.perform(round, running, step, turn);
            }
        }
    }

    /// A replica answered.
    pub(super) fn answer(&mut self, from: CellNumber, round: Round, answer: Answer, turn: &mut Turn<'_>) {
        let refused = matches!(answer, Answer::Refused(_));
        if let Some(lacks) = self.hints.answer(from, round, &answer) {
            turn.lacking.extend(lacks.then_some(from));
            // One that was refused is sent again at the next look: at once it would be refused at once.
            if !refused {
                self.replay(turn);
            }
            return;
        }
        let Some(running) = self.running.get_mut(&round) else { return };
        let Some(index) = running.owners.index(from) else { return };
        if !running.take(index, answer) {
            return;
        }
        match with_surroundings(running, &mut self.memory, turn, |it, around| it.advance(around)) {
            // Most answers leave it where it is.
            Step::Wait(share) => transmit(running, round, share, turn),
            Step::Linger(outcome) => {
                let (id, delay) = (running.id, running.delay);
                self.tell((id, delay), outcome, turn);
            }
            step => {
                let running = self.remove(round);
                self.perform(round, running, step, turn);
            }
        }
    }

    /// The link to a cell broke: requests sent to it may be lost.
    pub(super) fn unlinked(&mut self, cell: CellNumber) {
        self.hints.unlinked(cell);
        for running in self.running.values_mut() {
            if let Some(index) = running.owners.index(cell).filter(|index| running.sent.has(*index)) {
                running.sent = running.sent.without(index);
                running.repeated = true;
            }
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, turn: &mut Turn<'_>) {
        while let Some((_, round)) = self.timers.first().copied().filter(|(time, _)| *time <= turn.now) {
            let mut running = self.remove(round);
            let step = with_surroundings(&mut running, &mut self.memory, turn, |it, around| {
                if it.deadline <= around.now {
                    return it.expire(around);
                }
                Step::Wait(it.press(around))
            });
            running.pause *= 2;
            running.timer = (turn.now + running.pause).min(running.deadline);
            self.perform(round, running, step, turn);
        }
        while let Some(delayed) = self.delays.take_due(turn.now) {
            match delayed {
                Delayed::Begin(operation) => self.begin_now(operation, turn),
                Delayed::Tell { id, outcome } => turn.ended.push((id, outcome)),
            }
        }
        if self.hints.counts().kept > 0 && self.hints_at <= turn.now {
            self.hints_at = turn.now + self.patience.hints_every;
            turn.lacking.extend(self.hints.expire(turn.now));
            self.replay(turn);
        }
    }

    fn replay(&mut self, turn: &mut Turn<'_>) {
        let rounds = &mut self.rounds;
        let next = || {
            *rounds += 1;
            Round(*rounds)
        };
        self.hints.replay(turn.layout, turn.reachable, next, turn.out);
    }

    /// Does what an operation needs next, and keeps it if it has not ended.
    fn perform(&mut self, round: Round, mut running: Box<Running>, step: Step, turn: &mut Turn<'_>) {
        match step {
            Step::Wait(share) => {
                transmit(&mut running, round, share, turn);
                self.keep(round, running);
            }
            Step::Round(share) => {
                self.repairs += u64::from(matches!(running.stage, Stage::Returning { .. }));
                // Another number: answers of the round before say nothing about this one.
                let round = self.next_round();
                (running.sent, running.refused) = (Share::NONE, Share::NONE);
                (running.repeated, running.reason) = (false, None);
                transmit(&mut running, round, share, turn);
                self.keep(round, running);
            }
            Step::End(outcome) => {
                self.bytes -= running.bytes;
                let outcome = self.taken_back(&running, outcome);
                self.tell((running.id, running.delay), outcome, turn);
            }
            Step::Linger(outcome) => {
                self.tell((running.id, running.delay), outcome, turn);
                self.keep(round, running);
            }
            Step::Hint(outcome, entry, lacking) => {
                self.bytes -= running.bytes;
                if let Some(outcome) = outcome {
                    self.tell((running.id, running.delay), outcome, turn);
                }
                if running.added().is_some()
                    && let Some((stamp, true)) = running.sent_stamp()
                {
                    self.memory.settled(&running.whose(), stamp);
                }
                let oldest = running.oldest().expect("it is a write");
                for owner in missing(&running, lacking, turn) {
                    if self.hints.keep(owner, running.map, &running.key, (&entry, oldest), turn.now) {
                        turn.lacking.push(owner);
                    }
                }
            }
            Step::Sweep(outcome, entry, behind) => {
                self.repairs += u64::from(!behind.is_empty());
                self.bytes -= running.bytes;
                turn.ended.extend(outcome.map(|outcome| (running.id, outcome)));
                let round = self.next_round();
                let layout = turn.layout;
                let is_there = |index: &usize| layout.cell(running.owners.cell(*index)).is_some();
                for index in behind.iter().filter(is_there) {
                    let (map, key, layout) = (running.map, running.key.clone(), turn.layout.version());
                    let demand = Demand::Write(Entry::clone(&entry));
                    let request = Request { round, layout, map, key, demand };
                    turn.out.push((running.owners.cell(index), Message::Request(request)));
                }
            }
        }
    }

    /// The outcome of an operation that ends without hints: an increment that nobody took is taken back, if no later one holds it.
    fn taken_back(&mut self, running: &Running, outcome: Outcome) -> Outcome {
        match (running.added(), running.sent_stamp()) {
            (Some(added), Some((stamp, _))) if !self.memory.take_back(&running.whose(), stamp, added) => {
                Outcome::MaybeApplied
            }
            _ => outcome,
        }
    }

    /// The user is told, at once or after the delay that its write asked for.
    fn tell(&mut self, (id, delay): (u64, Duration), outcome: Outcome, turn: &mut Turn<'_>) {
        if matches!(outcome, Outcome::Done { .. } | Outcome::Counted { .. }) && !delay.is_zero() {
            self.delays.tell_later(id, outcome, delay, turn.now);
        } else {
            turn.ended.push((id, outcome));
        }
    }

    fn keep(&mut self, round: Round, running: Box<Running>) {
        self.timers.insert((running.timer, round));
        let before = self.running.insert(round, running);
        assert!(before.is_none(), "a round's number is used again");
    }

    fn remove(&mut self, round: Round) -> Box<Running> {
        let running = self.running.remove(&round).expect("what has a timer or was found is there");
        self.timers.remove(&(running.timer, round));
        running
    }

    /// A number for a request that is none of an operation's.
    pub(super) fn next_round(&mut self) -> Round {
        self.rounds += 1;
        Round(self.rounds)
    }

    /// Whether this read asks every owner, to bring those behind up to date.
    fn is_thorough(&self, running: &Running, turn: &mut Turn<'_>) -> bool {
        match turn.layout.map(running.map).and_then(Map::read_repair) {
            Some(ReadRepair::Background { per_million }) if running.draft.is_none() => {
                (turn.random)() % 1_000_000 < u64::from(per_million)
            }
            _ => false,
        }
    }

    /// An operation as it is before its first request, or why there is none.
    fn prepare(&mut self, operation: Operation, turn: &mut Turn<'_>) -> Result<Box<Running>, Outcome> {
        let Operation { id, map, key, level, fallback, delay, action } = operation;
        let reject = |rejection| Err(Outcome::Rejected(rejection));
        let (Some(settings), Some(ring)) = (turn.layout.map(map), turn.rings.get(&map)) else {
            return reject(Rejection::NoMap);
        };
        let Some(repair) = settings.read_repair() else { return reject(Rejection::NoMap) };
        let draft = match action {
            Action::Read => None,
            Action::Delete => Some(Draft::Whole { value: None, expires: None }),
            Action::PutFields(fields) => Some(Draft::Fields(fields)),
            Action::Add(added) => Some(Draft::Add(added)),
            Action::Put { value, lifetime } => {
                let wall = Time(turn.clock.wall(turn.now));
                Some(Draft::Whole {
                    value: Some(value),
                    expires: lifetime.map(|lifetime| (wall + lifetime).0),
                })
            }
        };
        let written = draft.as_ref().map_or(0, Draft::bytes);
        if key.len() > self.patience.key_bytes_max || written > self.patience.value_bytes_max {
            return reject(Rejection::TooLarge);
        }
        let bytes = OPERATION_BYTES + key.len() + written;
        if self.bytes + self.delays.bytes() + bytes > self.patience.in_flight_bytes_max {
            return reject(Rejection::Busy);
        }
        let owners = ring.owners(Token::of(map, &key)).clone();
        // A cell that is not settled counts for no level, of writes neither.
        let counts = |owner: Owner| turn.reachable.contains(&owner.cell) && is_settled(turn.layout, owner);
        let reachable = owners.share(counts);
        // A level that promises more than the one that was asked for is no smaller one.
        let fallback = fallback.filter(|smaller| level.is_quorum() || !smaller.is_quorum());
        let mut levels = [Some(level), fallback].into_iter().flatten();
        let Some(level) = levels.find(|level| level.is_met(&owners, reachable, turn.site)) else {
            return Err(Outcome::Unavailable);
        };
        let deadline = turn.now + self.patience.timeout;
        Ok(Box::new(Running {
            id,
            map,
            key,
            level,
            fallback: fallback.filter(|smaller| *smaller != level),
            blocking: repair == ReadRepair::Blocking,
            delay,
            draft,
            past: turn.past,
            adding: None,
            preferred: preferred(&owners, turn),
            owners,
            deadline,
            pause: self.patience.speculate_after,
            timer: (turn.now + self.patience.speculate_after).min(deadline),
            bytes,
            sent: Share::NONE,
            repeated: false,
            refused: Share::NONE,
            reason: None,
            stage: Stage::Asking { told: Share::NONE, newest: Stamp::ZERO },
        }))
    }
}

/// This cell first, then those of its site, each lot from a place on that chance gives, so that load spreads.
fn preferred(owners: &Owners, turn: &mut Turn<'_>) -> SmallVec<[usize; 6]> {
    let (count, first) = (owners.count(), (turn.random)() as usize);
    let mut order: SmallVec<[usize; 6]> = (0..count).map(|index| (first % count + index) % count).collect();
    let sites: SmallVec<[Site; 6]> = owners.iter().map(|owner| owner.site).collect();
    order.sort_by_key(|index| (owners.cell(*index) != turn.me, sites[*index] != turn.site));
    order
}

fn transmit(running: &mut Running, round: Round, share: Share, turn: &mut Turn<'_>) {
    for index in share.iter() {
        turn.out.push((running.owners.cell(index), running.request(round, turn.layout, index)));
    }
    running.sent = running.sent.or(share);
}

fn with_surroundings<T>(
    running: &mut Running,
    memory: &mut Memory,
    turn: &mut Turn<'_>,
    work: impl FnOnce(&mut Running, &mut Surroundings<'_>) -> T,
) -> T {
    let owners = &running.owners;
    let (me, now) = (turn.me, turn.now);
    let wall = turn.clock.wall(now);
    let reachable = owners.share(|owner| turn.reachable.contains(&owner.cell));
    let settled = owners.share(|owner| is_settled(turn.layout, owner));
    let issue = &mut |floor: Stamp| turn.clock.issue(me, floor, now);
    let (site, through) = (turn.site, turn.through);
    work(running, &mut Surroundings { site, now, wall, reachable, settled, issue, me, through, memory })
}

/// The cells that a write is to be kept for: those of its owners that lack it, and the cells that took the place of owners that
/// are gone, whether those had it or not.
fn missing(running: &Running, lacking: Share, turn: &Turn<'_>) -> Vec<CellNumber> {
    let is_there = |owner: &Owner| turn.layout.cell(owner.cell).is_some();
    let lacking = lacking.iter().map(|index| running.owners.cell(index));
    let mut missing: Vec<CellNumber> = lacking.filter(|cell| turn.layout.cell(*cell).is_some()).collect();
    if let Some(ring) =
        turn.rings.get(&running.map).filter(|_| !running.owners.iter().all(|it| is_there(&it)))
    {
        let present = ring.owners(Token::of(running.map, &running.key)).iter();
        missing.extend(present.map(|owner| owner.cell).filter(|cell| running.owners.index(*cell).is_none()));
    }
    missing
}

fn is_settled(layout: &Layout, owner: Owner) -> bool {
    layout.cell(owner.cell).is_some_and(|cell| !cell.arriving)
}
