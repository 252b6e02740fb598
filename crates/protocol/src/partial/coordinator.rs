//! The coordinator: operations that are under way, their timers, and the memory that they may take.
//!
//! **Entries that reads request** count against the coordinator's limit before other cells send them. A read
//! asks another cell for an entry of a few KiB at most. If the cell's entry is larger, the cell answers with
//! the entry's size. The coordinator asks again if it has room for the entry, and else ends the read as busy.
//! So the entries under way to a coordinator never have more bytes than it may hold, and no link carries more
//! bytes of entries than that. The price is one more round trip for an entry that is large and that the
//! coordinator's own cell does not have.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    clock::Clock,
    delays::{Delayed, Delays},
    entry::Entry,
    hints::{HintLimits, Hints},
    id::{CellNumber, MapId, Site},
    layout::{Layout, Map, ReadRepair},
    message::{Answer, Demand, Message, Request, Round},
    operation::{Action, Operation, OperationOutcome, Rejection},
    owner::{Owner, Owners, Share},
    ring::Ring,
    running::{Draft, OperationContext, OperationStage, OperationStep, RunningOperation},
    stamp::Stamp,
    tallies::OwnTallies,
    token::Token,
};
use crate::time::{Duration, Time};

/// The limits and times of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time after which an operation that has not met its level ends.
    pub timeout: Duration,
    /// The pause before the coordinator asks a further replica, and before it asks replicas whose link broke
    /// again. The pause doubles each time.
    pub speculate_after: Duration,
    /// Maximum size of a key, in bytes.
    pub key_bytes_max: usize,
    /// Maximum size of the values and names in a write, in bytes.
    pub value_bytes_max: usize,
    /// Maximum size of all operations under way, in bytes, including the entries that reads wait for. An
    /// operation that needs more is refused.
    pub in_flight_bytes_max: usize,
    /// The largest entry, in bytes, that another cell sends without first reporting the entry's size.
    pub read_bytes: u32,
    /// The limits of hints.
    pub hints: HintLimits,
    /// The pause between two attempts to send hints.
    pub hints_every: Duration,
}

/// The approximate memory of an operation in addition to its key and value, in bytes.
const OPERATION_BYTES: usize = 512;

/// The parts of the cell that a coordinator works with during a turn.
pub(super) struct CoordinatorContext<'a> {
    pub(super) now: Time,
    pub(super) me: CellNumber,
    pub(super) site: Site,
    pub(super) layout: &'a Layout,
    pub(super) rings: &'a BTreeMap<MapId, Ring>,
    pub(super) clock: &'a mut Clock,
    /// The time up to which this cell has announced that its own writes have ended, in nanoseconds.
    pub(super) through: u64,
    /// The time up to which all owners have all writes, in nanoseconds.
    pub(super) past: u64,
    /// The cells that can be asked, including this one.
    pub(super) reachable: &'a BTreeSet<CellNumber>,
    pub(super) random: &'a mut dyn FnMut() -> u64,
    /// Messages to cells, including this one.
    pub(super) out: &'a mut Vec<(CellNumber, Message)>,
    /// Operations that ended, with their outcomes.
    pub(super) ended: &'a mut Vec<(u64, OperationOutcome)>,
    /// Owners for which hints were given up for the first time.
    pub(super) lacking: &'a mut Vec<CellNumber>,
}

/// The operations that a cell coordinates.
#[derive(Debug)]
pub(super) struct Coordinator {
    patience: Patience,
    /// Operations under way. Boxed because they are large and the map moves them often.
    running: BTreeMap<Round, Box<RunningOperation>>,
    timers: BTreeSet<(Time, Round)>,
    rounds: u64,
    bytes: usize,
    delays: Delays,
    hints: Hints,
    memory: OwnTallies,
    /// Reads that brought replicas up to date, or tried to.
    repairs: u64,
    /// The next time at which hints are sent, while there are any.
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
            memory: OwnTallies::new(),
            repairs: 0,
            hints_at: Time::ZERO,
        }
    }

    /// Continues after an earlier life of the process. `time` is above the numbers of all requests of that
    /// life, because that life used less than one number a nanosecond. Tallies of that life have states up to
    /// `time`.
    pub(super) fn continue_above(&mut self, time: u64) {
        self.rounds = time;
        self.memory.continue_above(time);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let hints = (self.hints.counts().kept > 0).then_some(self.hints_at);
        let timer = self.timers.first().map(|(time, _)| *time);
        [timer, self.delays.deadline(), hints].into_iter().flatten().min()
    }

    /// Returns the hints that the coordinator keeps.
    pub(super) fn hints(&self) -> &Hints {
        &self.hints
    }

    /// Adopts a changed layout, in which the cells `fresh` are new. Ends the operations on keys of a cell
    /// that is gone, because the owners of a key must not change during an operation.
    pub(super) fn adopt(&mut self, fresh: &BTreeSet<CellNumber>, turn: &mut CoordinatorContext<'_>) {
        let (layout, rings) = (turn.layout, turn.rings);
        let successors = |map: MapId, key: &Bytes| {
            let owners = rings.get(&map).into_iter().flat_map(|ring| ring.owners(Token::of(map, key)).iter());
            owners.map(|owner| owner.cell).filter(|cell| fresh.contains(cell)).collect()
        };
        turn.lacking.extend(self.hints.adopt(layout, successors));
        let is_orphan =
            |running: &RunningOperation| running.owners.iter().any(|owner| layout.cell(owner.cell).is_none());
        let orphans: Vec<Round> =
            self.running.iter().filter(|(_, running)| is_orphan(running)).map(|(round, _)| *round).collect();
        for round in orphans {
            let mut running = self.remove(round);
            let step =
                with_surroundings(&mut running, &mut self.memory, turn, |it, context| it.expire(context));
            self.perform(round, running, step, turn);
        }
    }

    /// Returns the time of the oldest write of this cell that the cell may still send to some owner.
    pub(super) fn oldest(&self) -> Option<u64> {
        let running = self.running.values().filter_map(|running| running.oldest());
        running.chain(self.hints.oldest()).min()
    }

    /// Returns how many reads brought replicas up to date, or tried to.
    pub(super) fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Returns how many operations are under way.
    pub(super) fn count(&self) -> usize {
        self.running.len() + self.delays.len()
    }

    /// Begins an operation, at once or after the delay that it asks for.
    pub(super) fn begin(&mut self, operation: Operation, turn: &mut CoordinatorContext<'_>) {
        if self.bytes + self.delays.bytes() + operation.key.len() > self.patience.in_flight_bytes_max {
            turn.ended.push((operation.id, OperationOutcome::Rejected(Rejection::Busy)));
        } else if let Some(operation) = self.delays.keep(operation, turn.now) {
            self.begin_now(operation, turn);
        }
    }

    fn begin_now(&mut self, operation: Operation, turn: &mut CoordinatorContext<'_>) {
        let id = operation.id;
        match self.prepare(operation, turn) {
            Err(outcome) => turn.ended.push((id, outcome)),
            Ok(mut running) => {
                let round = self.next_round();
                self.bytes += running.bytes;
                let repairs_all = self.is_thorough(&running, turn);
                let step =
                    with_surroundings(&mut running, &mut self.memory, turn, |it, context| match it.draft {
                        None | Some(Draft::Add(_)) => it.begin_read(repairs_all, context),
                        Some(_) => it.begin_write(context),
                    });
                self.perform(round, running, step, turn);
            }
        }
    }

    /// Handles a replica's answer.
    pub(super) fn answer(
        &mut self,
        from: CellNumber,
        round: Round,
        answer: Answer,
        turn: &mut CoordinatorContext<'_>,
    ) {
        let refused = matches!(answer, Answer::Refused(_));
        if let Some(lacks) = self.hints.answer(from, round, &answer) {
            turn.lacking.extend(lacks.then_some(from));
            // A refused hint is sent again at the next regular attempt, because an owner would refuse it
            // again if it were sent at once.
            if !refused {
                self.replay(turn);
            }
            return;
        }
        let Some(running) = self.running.get_mut(&round) else { return };
        let Some(index) = running.owners.index(from) else { return };
        if let Answer::Large(bytes) = answer {
            if running.awaits_entry(index) {
                running.announce(index, bytes);
                self.fetch(round, Share::NONE.with(index), turn);
            }
            return;
        }
        // The entry of another cell was counted when it was requested.
        let own_bytes = match &answer {
            Answer::Entry(entry) if from == turn.me => entry.wire_bytes(),
            _ => 0,
        };
        if !running.take(index, answer) {
            return;
        }
        running.bytes += own_bytes;
        self.bytes += own_bytes;
        match with_surroundings(running, &mut self.memory, turn, |it, context| it.advance(context)) {
            // After most answers there is nothing to send.
            OperationStep::Wait(share) if share.is_empty() => {}
            OperationStep::Wait(share) => self.fetch(round, share, turn),
            OperationStep::Linger(outcome) => {
                let (id, delay) = (running.id, running.delay);
                self.report((id, delay), outcome, turn);
            }
            step => {
                let running = self.remove(round);
                self.perform(round, running, step, turn);
            }
        }
    }

    /// Sends the requests of an operation's present round to the owners in `share`. A read asks for their
    /// entries. If there is no room for these entries, the operation ends.
    fn fetch(&mut self, round: Round, share: Share, turn: &mut CoordinatorContext<'_>) {
        let Some(running) = self.running.get_mut(&round) else { return };
        let awaited = running.awaited_bytes(share, turn.me);
        if awaited == 0 || self.bytes + awaited <= self.patience.in_flight_bytes_max {
            running.bytes += awaited;
            self.bytes += awaited;
            return transmit(running, round, share, turn);
        }
        let running = self.remove(round);
        if running.is_answered() {
            // The user has the answer, and only the repair of outdated replicas is left. Comparing repairs
            // them later.
            self.bytes -= running.bytes;
        } else {
            self.perform(
                round,
                running,
                OperationStep::End(OperationOutcome::Rejected(Rejection::Busy)),
                turn,
            );
        }
    }

    /// Handles a broken link to a cell: requests that were sent to the cell may be lost, so they are sent
    /// again.
    pub(super) fn unlinked(&mut self, cell: CellNumber) {
        self.hints.unlinked(cell);
        for running in self.running.values_mut() {
            if let Some(index) = running.owners.index(cell).filter(|index| running.sent.has(*index)) {
                running.sent = running.sent.without(index);
                running.repeated = true;
            }
        }
    }

    /// Handles timers that are due.
    pub(super) fn tick(&mut self, turn: &mut CoordinatorContext<'_>) {
        while let Some((_, round)) = self.timers.first().copied().filter(|(time, _)| *time <= turn.now) {
            let mut running = self.remove(round);
            let step = with_surroundings(&mut running, &mut self.memory, turn, |it, context| {
                if it.deadline <= context.now {
                    return it.expire(context);
                }
                OperationStep::Wait(it.press(context))
            });
            let step = match step {
                OperationStep::Wait(share) => {
                    let awaited = running.awaited_bytes(share, turn.me);
                    if self.bytes + awaited <= self.patience.in_flight_bytes_max {
                        running.bytes += awaited;
                        self.bytes += awaited;
                        OperationStep::Wait(share)
                    } else {
                        // There is no room for one more entry, so the coordinator asks no further replica for
                        // now.
                        OperationStep::Wait(Share::NONE)
                    }
                }
                step => step,
            };
            running.pause *= 2;
            running.timer = (turn.now + running.pause).min(running.deadline);
            self.perform(round, running, step, turn);
        }
        while let Some(delayed) = self.delays.take_due(turn.now) {
            match delayed {
                Delayed::Begin(operation) => self.begin_now(operation, turn),
                Delayed::Report { id, outcome } => turn.ended.push((id, outcome)),
            }
        }
        if self.hints.counts().kept > 0 && self.hints_at <= turn.now {
            self.hints_at = turn.now + self.patience.hints_every;
            turn.lacking.extend(self.hints.expire(turn.now));
            self.replay(turn);
        }
    }

    fn replay(&mut self, turn: &mut CoordinatorContext<'_>) {
        let rounds = &mut self.rounds;
        let next = || {
            *rounds += 1;
            Round(*rounds)
        };
        self.hints.replay(turn.layout, turn.reachable, next, turn.out);
    }

    /// Performs the next step of an operation, and keeps the operation if it has not ended.
    fn perform(
        &mut self,
        round: Round,
        mut running: Box<RunningOperation>,
        step: OperationStep,
        turn: &mut CoordinatorContext<'_>,
    ) {
        match step {
            OperationStep::Wait(share) => {
                transmit(&mut running, round, share, turn);
                self.keep(round, running);
            }
            OperationStep::Round(share) => {
                self.repairs += u64::from(matches!(running.stage, OperationStage::Returning { .. }));
                // The operation begins a new round. Answers to the earlier round say nothing about it.
                let round = self.next_round();
                (running.sent, running.refused) = (Share::NONE, Share::NONE);
                (running.repeated, running.reason) = (false, None);
                transmit(&mut running, round, share, turn);
                self.keep(round, running);
            }
            OperationStep::End(outcome) => {
                self.bytes -= running.bytes;
                let outcome = self.taken_back(&running, outcome);
                self.report((running.id, running.delay), outcome, turn);
            }
            OperationStep::Linger(outcome) => {
                self.report((running.id, running.delay), outcome, turn);
                self.keep(round, running);
            }
            OperationStep::Hint { outcome, entry, lacking, no_room } => {
                self.bytes -= running.bytes;
                if let Some(outcome) = outcome {
                    self.report((running.id, running.delay), outcome, turn);
                }
                if running.added().is_some()
                    && let Some((stamp, true)) = running.sent_stamp()
                {
                    self.memory.settled(&running.tally_key(), stamp);
                }
                // No cell would take a hint for a map that was dropped meanwhile.
                if turn.layout.map(running.map).is_none() {
                    return;
                }
                // The coordinator keeps no hints for owners without room. Perhaps only one owner holds the
                // write, and if that owner fails, the write is lost. So the coordinator lists the owners
                // without room as lacking writes.
                for owner in no_room.iter().map(|index| running.owners.cell(index)) {
                    turn.lacking.extend(self.hints.give_up(owner).then_some(owner));
                }
                let oldest = running.oldest().expect("only a write has an oldest stamp to wait for");
                for owner in missing(&running, lacking, turn) {
                    if self.hints.keep(owner, running.map, &running.key, (&entry, oldest), turn.now) {
                        turn.lacking.push(owner);
                    }
                }
            }
            OperationStep::Sweep(outcome, entry, behind) => {
                self.repairs += u64::from(!behind.is_empty());
                self.bytes -= running.bytes;
                turn.ended.extend(outcome.map(|outcome| (running.id, outcome)));
                let round = self.next_round();
                let layout = turn.layout;
                let is_there = |index: &usize| layout.cell(running.owners.cell(*index)).is_some();
                for index in behind.iter().filter(is_there) {
                    let (map, key, layout) = (running.map, running.key.clone(), turn.layout.version());
                    let demand = Demand::Repair(Entry::clone(&entry));
                    let request = Request { round, layout, map, key, demand };
                    turn.out.push((running.owners.cell(index), Message::Request(request)));
                }
            }
        }
    }

    /// Returns the outcome of an operation that ends without hints. If no replica took an increment, removes
    /// the increment from the coordinator's memory. If a later state of the tally holds the increment, it may
    /// still be counted.
    fn taken_back(&mut self, running: &RunningOperation, outcome: OperationOutcome) -> OperationOutcome {
        match (running.added(), running.sent_stamp()) {
            (Some(added), Some((stamp, _))) if !self.memory.take_back(&running.tally_key(), stamp, added) => {
                OperationOutcome::MaybeApplied
            }
            _ => outcome,
        }
    }

    /// Reports the outcome to the user, either at once or after the delay that the user asked for with the
    /// write.
    fn report(
        &mut self,
        (id, delay): (u64, Duration),
        outcome: OperationOutcome,
        turn: &mut CoordinatorContext<'_>,
    ) {
        if matches!(outcome, OperationOutcome::Done { .. } | OperationOutcome::Counted { .. })
            && !delay.is_zero()
        {
            self.delays.report_later(id, outcome, delay, turn.now);
        } else {
            turn.ended.push((id, outcome));
        }
    }

    fn keep(&mut self, round: Round, running: Box<RunningOperation>) {
        self.timers.insert((running.timer, round));
        let before = self.running.insert(round, running);
        assert!(before.is_none(), "a round's number is used once");
    }

    fn remove(&mut self, round: Round) -> Box<RunningOperation> {
        let running = self.running.remove(&round).expect("an operation with a timer is running");
        self.timers.remove(&(running.timer, round));
        running
    }

    /// Returns a number for a request, never used before.
    pub(super) fn next_round(&mut self) -> Round {
        self.rounds += 1;
        Round(self.rounds)
    }

    /// Whether this read asks every owner, to bring outdated replicas up to date.
    fn is_thorough(&self, running: &RunningOperation, turn: &mut CoordinatorContext<'_>) -> bool {
        match turn.layout.map(running.map).and_then(Map::read_repair) {
            Some(ReadRepair::Background { per_million }) if running.draft.is_none() => {
                (turn.random)() % 1_000_000 < u64::from(per_million)
            }
            _ => false,
        }
    }

    /// Returns an operation that is ready for its first request, or the outcome that refuses it.
    fn prepare(
        &mut self,
        operation: Operation,
        turn: &mut CoordinatorContext<'_>,
    ) -> Result<Box<RunningOperation>, OperationOutcome> {
        let Operation { id, map, key, level, fallback, delay, action } = operation;
        let reject = |rejection| Err(OperationOutcome::Rejected(rejection));
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
        let owners = ring.owners(Token::of(map, &key)).clone();
        let is_own = |owner: Owner| owner.cell == turn.me && is_settled(turn.layout, owner);
        let reads = matches!(draft, None | Some(Draft::Add(_)));
        let awaited = if reads && !owners.iter().any(is_own) { self.patience.read_bytes as usize } else { 0 };
        let bytes = OPERATION_BYTES + key.len() + written + awaited;
        if self.bytes + self.delays.bytes() + bytes > self.patience.in_flight_bytes_max {
            return reject(Rejection::Busy);
        }
        // An arriving cell counts for no level, not even of writes.
        let counts = |owner: Owner| turn.reachable.contains(&owner.cell) && is_settled(turn.layout, owner);
        let reachable = owners.share(counts);
        // A fallback must not promise more than the level that the user asked for.
        let fallback = fallback.filter(|smaller| level.is_quorum() || !smaller.is_quorum());
        let mut levels = [Some(level), fallback].into_iter().flatten();
        let Some(level) = levels.find(|level| level.is_met(&owners, reachable, turn.site)) else {
            return Err(OperationOutcome::Unavailable);
        };
        let deadline = turn.now + self.patience.timeout;
        Ok(Box::new(RunningOperation {
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
            read_bytes: self.patience.read_bytes,
            large: SmallVec::new(),
            sent: Share::NONE,
            repeated: false,
            refused: Share::NONE,
            reason: None,
            stage: OperationStage::Asking { answered: Share::NONE, newest: Stamp::ZERO },
        }))
    }
}

/// Returns the indexes of the owners in the order in which the coordinator asks them: this cell, then the
/// cells of its site, then the cells of other sites. The starting point of each group is random, so that the
/// load spreads.
fn preferred(owners: &Owners, turn: &mut CoordinatorContext<'_>) -> SmallVec<[usize; 6]> {
    let (count, first) = (owners.count(), (turn.random)() as usize);
    let mut order: SmallVec<[usize; 6]> = (0..count).map(|index| (first % count + index) % count).collect();
    let sites: SmallVec<[Site; 6]> = owners.iter().map(|owner| owner.site).collect();
    order.sort_by_key(|index| (owners.cell(*index) != turn.me, sites[*index] != turn.site));
    order
}

fn transmit(running: &mut RunningOperation, round: Round, share: Share, turn: &mut CoordinatorContext<'_>) {
    for index in share.iter() {
        turn.out.push((running.owners.cell(index), running.request(round, turn.layout, index, turn.me)));
    }
    running.sent = running.sent.or(share);
}

fn with_surroundings<T>(
    running: &mut RunningOperation,
    memory: &mut OwnTallies,
    turn: &mut CoordinatorContext<'_>,
    work: impl FnOnce(&mut RunningOperation, &mut OperationContext<'_>) -> T,
) -> T {
    let owners = &running.owners;
    let (me, now) = (turn.me, turn.now);
    let wall = turn.clock.wall(now);
    let reachable = owners.share(|owner| turn.reachable.contains(&owner.cell));
    let settled = owners.share(|owner| is_settled(turn.layout, owner));
    let issue = &mut |floor: Stamp| turn.clock.issue(me, floor, now);
    let (site, through) = (turn.site, turn.through);
    work(running, &mut OperationContext { site, now, wall, reachable, settled, issue, me, through, memory })
}

/// Returns the cells for which hints of a write are kept: the owners that lack the write, and all cells that
/// took the place of owners that are gone.
fn missing(running: &RunningOperation, lacking: Share, turn: &CoordinatorContext<'_>) -> Vec<CellNumber> {
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
