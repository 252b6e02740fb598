//! A cell: replica and coordinator in one process, and their knowledge of the other cells.

mod durable;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use super::{
    arrival::Arrival,
    clock::Clock,
    coordinator::{Coordinator, Patience},
    hints::{HintCounts, HintLimits},
    horizon::{Horizon, Horizons},
    id::{CellNumber, LayoutVersion, MapId},
    journal::{CellJournal, Record},
    layout::{Layout, LayoutMember},
    message::{Answer, Message, Request, Round},
    operation::{Operation, OperationOutcome, Rejection},
    repair::{Repair, RepairContext, RepairCounts, RepairSettings},
    replica::{Limits, MapsReplica, RefusalCounters},
    ring::Ring,
    scan::{Scan, Scanned, Scans},
};
use crate::{
    detector::{self, Detector},
    id::ProcessId,
    seam::{Context, Destination, Input, Protocol, Sink},
    time::{Duration, Time},
};

/// The settings of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings of the detector, which decide how long another cell may be silent before it is suspected.
    /// This cell asks no suspected cell. Suspicion has no other effect.
    pub detector: detector::Settings,
    /// The limits and times of the coordinator.
    pub patience: Patience,
    /// The limits of the replica's memory.
    pub limits: Limits,
    /// Maximum time by which a stamp may be ahead of the wall clock.
    pub skew_max: Duration,
    /// The pace at which cells compare their keys.
    pub repair: RepairSettings,
    /// Number of bytes of changes after which a checkpoint begins. If the cell keeps more bytes than that,
    /// the checkpoint begins after as many bytes as the cell keeps. `None` if the process has no disk.
    pub checkpoint_bytes: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            detector: detector::Settings::default(),
            patience: Patience {
                timeout: Duration::from_secs(2),
                speculate_after: Duration::from_millis(10),
                key_bytes_max: 64 << 10,
                value_bytes_max: 4 << 20,
                in_flight_bytes_max: 64 << 20,
                read_bytes: 4 << 10,
                hints: HintLimits {
                    bytes_max: 64 << 20,
                    age_max: Duration::from_secs(3 * 3600),
                    in_flight_max: 64,
                },
                hints_every: Duration::from_millis(100),
            },
            limits: Limits::default(),
            skew_max: Duration::from_millis(500),
            repair: RepairSettings::default(),
            checkpoint_bytes: None,
        }
    }
}

/// A request to a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Coordinates this operation. Ends in exactly one [`Event::Ended`].
    Operate(Operation),
    /// Lists some keys of a map. Ends in exactly one [`Event::Scanned`].
    Scan(Scan),
    /// Sets the clock's offset: the wall clock less the boot-time clock, in nanoseconds.
    Adjust(i64),
}

/// A message of a cell to its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation ended.
    Ended {
        /// The id that the user gave the request.
        id: u64,
        /// The outcome.
        outcome: OperationOutcome,
    },
    /// A scan ended.
    Scanned {
        /// The id that the user gave the request.
        id: u64,
        /// The outcome.
        outcome: Scanned,
    },
    /// This coordinator gave up hints for this cell, which therefore lacks writes. Emitted once for each
    /// cell.
    Lacks(CellNumber),
}

/// The state of a cell, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The cell's number. `None` while the process is no cell.
    pub number: Option<CellNumber>,
    /// The version of the cell's layout.
    pub layout: LayoutVersion,
    /// The cells that can be asked now, including this one.
    pub reachable: Vec<CellNumber>,
    /// The number of operations and scans under way.
    pub running: usize,
    /// The approximate memory of keys and entries, in bytes.
    pub bytes: usize,
    /// The requests that the replica refused.
    pub refused: RefusalCounters,
    /// The number of messages from processes that are no cells.
    pub strays: u64,
    /// The hints that the coordinator keeps for other cells.
    pub hints: HintCounts,
    /// The number of coordinated reads that brought replicas up to date, or tried to.
    pub repairs: u64,
    /// Counters of the comparison of keys with other cells.
    pub compared: RepairCounts,
    /// The cell's horizon. The cell has all writes that this horizon covers.
    pub horizon: Horizon,
    /// The number of keys that have an entry, including deleted keys.
    pub keys: usize,
    /// A hash of the keys that have an entry, and of the entries' stamps.
    pub print: u64,
    /// The number of deleted and expired values that the replica has forgotten.
    pub forgotten: u64,
    /// The cells for which the coordinator gave up hints.
    pub lacking: Vec<CellNumber>,
    /// The number of cells that have not sent all their entries yet. `None` unless the cell is arriving.
    pub arriving: Option<usize>,
    /// Whether the cell came back from its disk, and therefore lost the hints that it had kept.
    pub resumed: bool,
}

/// The longest time between two reports of a cell's progress.
const WORD_EVERY_MAX: Duration = Duration::from_secs(1);

/// A process that keeps keys of maps, and coordinates operations on all of them.
#[derive(Debug)]
pub struct Cell {
    me: ProcessId,
    settings: Settings,
    layout: Layout,
    numbers: BTreeMap<ProcessId, CellNumber>,
    rings: BTreeMap<MapId, Ring>,
    clock: Clock,
    replica: MapsReplica,
    coordinator: Coordinator,
    scans: Scans,
    detector: Detector,
    /// The processes with a link to this one: cells, and processes that the order may make cells later.
    linked: BTreeSet<ProcessId>,
    /// The cells that can be asked.
    reachable: BTreeSet<CellNumber>,
    arrival: Option<Arrival>,
    /// The number of this cell, if its arrival has ended and the order should announce this to all cells.
    complete: Option<CellNumber>,
    horizons: Horizons,
    repair: Repair,
    beat_at: Time,
    /// The time at which this cell next reports its progress to the other cells.
    word_at: Time,
    strays: u64,
    /// The write side of the journal. `None` without a disk.
    journal: Option<CellJournal>,
    resumed: bool,
}

impl Cell {
    /// Returns a process that becomes a cell once the layout contains it. `offset` is the wall clock less the
    /// boot-time clock, in nanoseconds. The process starts without entries, so no process may have used its
    /// incarnation before.
    pub fn new(me: ProcessId, settings: Settings, offset: i64, now: Time) -> Cell {
        let ahead = u64::try_from(settings.skew_max.as_nanos()).unwrap_or(u64::MAX);
        let journal = settings.checkpoint_bytes.map(|bytes| CellJournal::new(ahead, bytes));
        let mut replica = MapsReplica::new(settings.limits);
        if journal.is_some() {
            replica.persist();
        }
        Cell {
            me,
            settings,
            layout: Layout::default(),
            numbers: BTreeMap::new(),
            rings: BTreeMap::new(),
            clock: Clock::new(offset, settings.skew_max),
            replica,
            coordinator: Coordinator::new(settings.patience),
            scans: Scans::default(),
            detector: Detector::new(settings.detector),
            linked: BTreeSet::new(),
            reachable: BTreeSet::new(),
            arrival: None,
            complete: None,
            horizons: Horizons::default(),
            repair: Repair::new(settings.repair, now),
            beat_at: now,
            word_at: now,
            strays: 0,
            journal,
            resumed: false,
        }
    }

    /// Returns the layout of this cell.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the entries that the cell keeps.
    pub fn replica(&self) -> &MapsReplica {
        &self.replica
    }

    /// Returns the cell's state.
    pub fn status(&self) -> Status {
        Status {
            number: self.number(),
            layout: self.layout.version(),
            reachable: self.reachable.iter().copied().collect(),
            running: self.coordinator.count() + self.scans.len(),
            bytes: self.replica.bytes(),
            refused: self.replica.refused(),
            strays: self.strays,
            hints: self.coordinator.hints().counts(),
            repairs: self.coordinator.repairs(),
            compared: self.repair.counts(),
            horizon: self.horizons.own(),
            keys: self.replica.keys(),
            print: self.replica.print(),
            forgotten: self.replica.forgotten(),
            lacking: self.coordinator.hints().lacking().collect(),
            arriving: self.arrival.as_ref().map(Arrival::left),
            resumed: self.resumed,
        }
    }

    fn number(&self) -> Option<CellNumber> {
        self.numbers.get(&self.me).copied()
    }

    /// Returns this cell's number if its arrival has ended since the last call, so that the order should
    /// announce this to all cells. The cell reports this again until the order has announced it.
    pub fn take_complete(&mut self) -> Option<CellNumber> {
        self.complete.take()
    }

    /// Sets the layout that the order has decided. An earlier version is ignored.
    pub fn lay(&mut self, cx: &mut Context<'_>, layout: Layout, out: &mut dyn Sink<Cell>) {
        let now = cx.now;
        if layout.version() <= self.layout.version() {
            return;
        }
        let before = std::mem::replace(&mut self.layout, layout);
        let same_cells = self.layout.cells().eq(before.cells());
        if !same_cells {
            self.meet(now, out);
        }
        let layout = &self.layout;
        self.rings.retain(|id, _| same_cells && layout.map(*id).is_some());
        for (id, map) in layout.maps() {
            self.rings.entry(id).or_insert_with(|| Ring::new(layout, &map.copies));
        }
        if before.maps().any(|(id, _)| layout.map(id).is_none()) {
            self.replica.adopt(layout);
        }
        self.survey(now);
        let me = self.number().filter(|me| self.layout.cell(*me).is_some_and(|cell| cell.arriving));
        self.arrival = me.map(|me| match self.arrival.take() {
            None => Arrival::new(&self.layout, me, now),
            Some(mut arrival) => {
                arrival.adopt(&self.layout, me);
                arrival
            }
        });
        self.horizons.adopt(&self.layout);
        self.repair.adopt(now);
        let fresh =
            self.layout.cells().map(|(number, _)| number).filter(|it| before.cell(*it).is_none()).collect();
        self.coordinate(cx, out, |coordinator, turn| coordinator.adopt(&fresh, turn));
        self.scan(now, out, |scans, _, context| scans.adopt(context));
        self.arrive(now, out);
    }

    /// Adopts a changed set of cells: reaches and watches new cells, and forgets cells that are gone.
    fn meet(&mut self, now: Time, out: &mut dyn Sink<Cell>) {
        let numbers = self.layout.cells().map(|(number, member)| (member.peer.id, number)).collect();
        let before = std::mem::replace(&mut self.numbers, numbers);
        for (_, LayoutMember { peer, .. }) in self.layout.cells() {
            if peer.id == self.me || before.contains_key(&peer.id) {
                continue;
            }
            self.detector.watch(peer.id, now);
            if !self.linked.contains(&peer.id) {
                self.detector.unlinked(peer.id, now);
            }
            out.reach(peer.id, &peer.address);
        }
        for gone in before.into_keys().filter(|process| !self.numbers.contains_key(process)) {
            self.detector.unwatch(gone);
            out.forget(gone);
        }
    }

    /// Sends the requests for copies that are due. Announces the end of an arrival.
    fn arrive(&mut self, now: Time, out: &mut dyn Sink<Cell>) {
        let (Some(me), Some(arrival)) = (self.number(), &mut self.arrival) else { return };
        let mut requests = Vec::new();
        let (coordinator, layout) = (&mut self.coordinator, &self.layout);
        let ends = arrival.tick(now, layout, || coordinator.next_round(), &mut requests);
        self.ask(requests, out);
        if ends && self.journal.as_mut().is_none_or(CellJournal::arrive) {
            self.complete = Some(me);
        }
    }

    /// Sends the request for a copy to this process again, because the earlier request may be lost.
    fn ask_again(&mut self, peer: ProcessId) {
        if let (Some(arrival), Some(number)) = (&mut self.arrival, self.numbers.get(&peer)) {
            arrival.lost(*number);
        }
    }

    fn ask(&self, requests: Vec<(CellNumber, Request)>, out: &mut dyn Sink<Cell>) {
        let after = self.cover();
        for (to, request) in requests {
            let peer = self.layout.cell(to).expect("only cells of the layout are asked").peer.id;
            out.send(Destination::One(peer), Message::Request(request), after);
        }
    }

    /// Handles the answer to a request for a copy. Returns an answer of any other kind unchanged.
    fn take_copy(
        &mut self,
        (from, round): (CellNumber, Round),
        answer: Answer,
        now: Time,
        out: &mut dyn Sink<Cell>,
    ) -> Option<Answer> {
        let Some(map) = self.arrival.as_mut().and_then(|arrival| arrival.take(from, round)) else {
            return Some(answer);
        };
        // If the other cell refused, this cell asks again soon.
        let Answer::Copied { entries, next } = answer else { return None };
        for copy in entries {
            if self.replica.take_all(map, copy, &mut self.clock, now).is_err() {
                self.write_down(out);
                return None;
            }
        }
        self.write_down(out);
        let mut requests = Vec::new();
        let (coordinator, layout) = (&mut self.coordinator, &self.layout);
        if let Some(arrival) = &mut self.arrival {
            arrival.proceed(from, next, layout, || coordinator.next_round(), &mut requests);
        }
        self.ask(requests, out);
        self.arrive(now, out);
        None
    }

    /// Finds the cells that can be asked: this one, and cells that are linked and not suspected.
    fn survey(&mut self, now: Time) {
        let fit = |process: &ProcessId| {
            *process == self.me || self.linked.contains(process) && !self.detector.suspects(*process, now)
        };
        let reachable = self.numbers.iter().filter(|(process, _)| fit(process));
        self.reachable = reachable.map(|(_, number)| *number).collect();
    }

    /// Sends heartbeats to the other cells, and suspects cells that have been silent too long.
    fn beat(&mut self, now: Time, out: &mut dyn Sink<Cell>) {
        if now < self.beat_at {
            return;
        }
        self.beat_at = now + self.settings.detector.interval;
        self.detector.tick(now);
        let others = self.numbers.keys().filter(|process| self.linked.contains(process));
        let others: Vec<_> = others.copied().collect();
        if !others.is_empty() {
            out.send_aside(Destination::Many(others), Message::Alive);
        }
        self.survey(now);
        if now >= self.word_at {
            // The horizons of other cells wait for this cell's reports. So this cell reports often, even if
            // it rarely compares its own keys.
            let pause = self.settings.repair.every / if self.journal.is_some() { 1 } else { 4 };
            self.word_at = now + pause.min(WORD_EVERY_MAX);
            self.report_progress(now, out);
        }
    }

    /// Reports this cell's progress to the other cells, and forgets the deletions that all of them have seen.
    fn report_progress(&mut self, now: Time, out: &mut dyn Sink<Cell>) {
        let Some(me) = self.number() else { return };
        let through = self.horizons.settle(self.clock.wall(now), self.coordinator.oldest());
        self.clock.raise(through);
        self.reserve(out);
        let word = self.horizons.word(&self.layout, me);
        let others = self.numbers.keys().filter(|process| self.linked.contains(process));
        let others: Vec<_> = others.copied().collect();
        if !others.is_empty() {
            // The report relies on all records about reserved stamps, taken writes and reached horizons, so
            // it leaves once these are durable.
            let after = self.journal.as_ref().and_then(CellJournal::unsynced);
            out.send(Destination::Many(others), Message::HorizonReport(word), after);
        }
        self.replica.sweep(self.horizons.look(&self.layout, me));
        self.write_down(out);
    }

    /// Lets `work` do a step of the comparison of keys with other cells, and sends the resulting questions.
    /// Does nothing while this cell arrives, because it then copies all keys.
    fn compare(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut dyn Sink<Cell>,
        work: impl FnOnce(&mut Repair, &Horizons, &mut RepairContext<'_>) -> Option<Horizon>,
    ) {
        let Some(me) = self.number().filter(|_| self.arrival.is_none()) else { return };
        let (mut requests, coordinator) = (Vec::new(), &mut self.coordinator);
        let mut grounds = RepairContext {
            now: cx.now,
            me,
            layout: &self.layout,
            rings: &self.rings,
            reachable: &self.reachable,
            replica: &mut self.replica,
            clock: &mut self.clock,
            random: &mut *cx.random,
            next_round: &mut || coordinator.next_round(),
            out: &mut requests,
        };
        let reached = work(&mut self.repair, &self.horizons, &mut grounds);
        self.write_down(out);
        if let Some(horizon) = reached {
            self.horizons.reach(horizon);
            self.replica.reach(horizon);
            if let Some(journal) = &mut self.journal {
                journal.write(Record::Reached(horizon), out);
            }
        }
        self.ask(requests, out);
    }
}

impl Protocol for Cell {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Cell>, out: &mut dyn Sink<Cell>) {
        match input {
            Input::Receive { from, message } => self.receive(cx, from, message, out),
            Input::Command(Command::Operate(operation)) => {
                if self.number().is_none() {
                    let outcome = OperationOutcome::Rejected(Rejection::NoCell);
                    out.emit(Event::Ended { id: operation.id, outcome });
                    return;
                }
                if let Some(outcome) = self.read_here(&operation, cx.now) {
                    return out.emit(Event::Ended { id: operation.id, outcome });
                }
                self.coordinate(cx, out, |coordinator, turn| coordinator.begin(operation, turn));
            }
            Input::Command(Command::Scan(scan)) => {
                if self.number().is_none() {
                    let outcome = Scanned::Rejected(Rejection::NoCell);
                    return out.emit(Event::Scanned { id: scan.id, outcome });
                }
                let patience = self.settings.patience.timeout;
                self.scan(cx.now, out, |scans, round, context| scans.begin(scan, round, patience, context));
            }
            Input::Command(Command::Adjust(offset)) => self.clock.adjust(offset),
            Input::Deadline => {
                self.beat(cx.now, out);
                self.arrive(cx.now, out);
                self.compare(cx, out, |repair, horizons, grounds| repair.tick(horizons, grounds));
                self.coordinate(cx, out, |coordinator, turn| coordinator.tick(turn));
                if self.scans.deadline().is_some_and(|due| due <= cx.now) {
                    self.scan(cx.now, out, |scans, _, context| scans.tick(context));
                }
            }
            Input::Linked { peer, .. } => {
                self.linked.insert(peer);
                self.detector.linked(peer, cx.now);
                self.survey(cx.now);
                // While there was no link, requests for copies to this peer were not sent.
                self.ask_again(peer);
            }
            Input::Unlinked { peer } => {
                self.linked.remove(&peer);
                self.detector.unlinked(peer, cx.now);
                self.survey(cx.now);
                if let Some(number) = self.numbers.get(&peer) {
                    self.coordinator.unlinked(*number);
                    self.scans.unlinked(*number);
                    self.repair.unlinked(*number, cx.now);
                }
                self.ask_again(peer);
            }
            Input::Progress { peer } => self.detector.heard(peer, cx.now),
            Input::Persisted(ticket) => self.persisted(cx, ticket, out),
            // No cell sends casts, and nothing waits for the end of a batch.
            Input::Cast { .. } | Input::Drained => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        let beat = (!self.numbers.is_empty()).then_some(self.beat_at);
        let arrival = self.arrival.as_ref().map(Arrival::deadline);
        // Without a number this process coordinates nothing, so its timers wait.
        let repair = Some(self.repair.deadline()).filter(|_| self.arrival.is_none());
        let work = self.number().map(|_| [self.coordinator.deadline(), self.scans.deadline(), repair]);
        work.unwrap_or_default().into_iter().chain([beat, arrival]).flatten().min()
    }
}
