//! A cell: replica and coordinator in one process, and what both need to know of the others.

mod durable;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use self::durable::Wait;
use super::{
    arrival::Arrival,
    clock::Clock,
    coordinator::{Coordinator, Operation, Patience},
    hints::{HintCounts, HintLimits},
    horizon::{Horizon, Horizons},
    journal::{Journal, Record},
    layout::{CellNumber, Layout, LayoutVersion, MapId, Member},
    message::{Answer, Message, Refusal, Request, Round},
    operation::{Outcome, Rejection},
    repair::{Grounds, Repair, RepairCounts, RepairSettings},
    replica::{Limits, Refused, Replica},
    ring::Ring,
    scan::{Scan, Scanned, Scans},
};
use crate::{
    detector::{self, Detector},
    id::ProcessId,
    seam::{Context, Destination, Input, Protocol, Sink},
    time::{Duration, Time},
};

/// How a cell behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The patience with silent cells. A suspected cell is not asked, and nothing else follows.
    pub detector: detector::Settings,
    /// How the cell coordinates.
    pub patience: Patience,
    /// How much it keeps.
    pub limits: Limits,
    /// How far a stamp may be ahead of the wall clock.
    pub skew_max: Duration,
    /// How it and the other cells bring each other up to date.
    pub repair: RepairSettings,
    /// The process has a disk, and writes down all that it keeps once it has written so many bytes of changes, or as many as it
    /// keeps. None: it lives in memory.
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
                hints: HintLimits {
                    bytes_max: 64 << 20,
                    age_max: Duration::from_secs(3 * 3600),
                    in_flight_max: 64,
                },
                hints_every: Duration::from_millis(100),
            },
            limits: Limits { entry_bytes_max: 8 << 20, store_bytes_max: 1 << 30 },
            skew_max: Duration::from_millis(500),
            repair: RepairSettings::default(),
            checkpoint_bytes: None,
        }
    }
}

/// A request to a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Coordinate this. Ends in exactly one [`Event::Ended`].
    Operate(Operation),
    /// Tell some keys of a map. Ends in exactly one [`Event::Scanned`].
    Scan(Scan),
    /// The layout as the order has it from here on. One of an earlier version is passed over. Ends in [`Event::Laid`].
    Lay(Layout),
    /// The wall clock less the boot-time clock, in nanoseconds, as it is from now on.
    Adjust(i64),
}

/// A cell's word to its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation ended.
    Ended {
        /// The name that the user gave it.
        id: u64,
        /// How.
        outcome: Outcome,
    },
    /// A scan ended.
    Scanned {
        /// The name that the user gave it.
        id: u64,
        /// How.
        outcome: Scanned,
    },
    /// Hints for this cell were given up: it lacks writes that this one coordinated. Told once of each cell.
    Lacks(CellNumber),
    /// The layout has this version now.
    Laid(LayoutVersion),
    /// This cell was arriving, and has what it should have: the order is to tell all cells. Told again as long as it does not.
    Complete(CellNumber),
}

/// A cell as it looks from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its number, once it is a cell.
    pub number: Option<CellNumber>,
    /// The version of its layout.
    pub layout: LayoutVersion,
    /// The cells that it would ask now, itself included.
    pub reachable: Vec<CellNumber>,
    /// Operations under way.
    pub running: usize,
    /// Bytes of keys and entries, about.
    pub bytes: usize,
    /// Requests that it refused.
    pub refused: Refused,
    /// Messages of processes that are no cells.
    pub strays: u64,
    /// Hints that it keeps for others.
    pub hints: HintCounts,
    /// Reads that it coordinated and that brought replicas up to date, or tried to.
    pub repairs: u64,
    /// What comparing its keys with those of other cells has come to.
    pub compared: RepairCounts,
    /// It has all writes that this covers.
    pub horizon: Horizon,
    /// The keys that it has an entry of, deleted ones too.
    pub keys: usize,
    /// A print of these and of their stamps.
    pub print: u64,
    /// Deleted and expired values that it has forgotten.
    pub forgotten: u64,
    /// Cells of which it gave hints up.
    pub lacking: Vec<CellNumber>,
    /// While it is arriving: how many cells have not given it everything yet.
    pub arriving: Option<usize>,
    /// It came back from its disk. The hints that it kept before are gone.
    pub resumed: bool,
}

/// The longest pause between two words of how far a cell is.
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
    replica: Replica,
    coordinator: Coordinator,
    scans: Scans,
    detector: Detector,
    /// The processes that there is a link to: cells, or such that the order has not made cells here yet.
    linked: BTreeSet<ProcessId>,
    /// The cells that can be asked.
    reachable: BTreeSet<CellNumber>,
    arrival: Option<Arrival>,
    horizons: Horizons,
    repair: Repair,
    beat_at: Time,
    /// The next word to the others of how far this cell is.
    word_at: Time,
    strays: u64,
    /// With a disk: what of its records is durable, and what waits for them.
    journal: Option<Journal>,
    resumed: bool,
}

impl Cell {
    /// A process that will be a cell once the layout says so. `offset` is the wall clock less the boot-time clock, in
    /// nanoseconds. It keeps nothing, so it must never have been one under this incarnation.
    pub fn new(me: ProcessId, settings: Settings, offset: i64, now: Time) -> Cell {
        let ahead = u64::try_from(settings.skew_max.as_nanos()).unwrap_or(u64::MAX);
        let journal = settings.checkpoint_bytes.map(|bytes| Journal::new(ahead, bytes));
        let mut replica = Replica::new(settings.limits);
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
            horizons: Horizons::default(),
            repair: Repair::new(settings.repair, now),
            beat_at: now,
            word_at: now,
            strays: 0,
            journal,
            resumed: false,
        }
    }

    /// The layout as this cell has it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The entries that it keeps.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// How it is.
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

    fn lay(&mut self, cx: &mut Context<'_>, layout: Layout, out: &mut dyn Sink<Cell>) {
        let now = cx.now;
        if layout.version() <= self.layout.version() {
            return out.emit(Event::Laid(self.layout.version()));
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
        self.scan(now, out, |scans, _, around| scans.adopt(around));
        self.arrive(now, out);
        out.emit(Event::Laid(self.layout.version()));
    }

    /// The cells are others than before.
    fn meet(&mut self, now: Time, out: &mut dyn Sink<Cell>) {
        let numbers = self.layout.cells().map(|(number, member)| (member.peer.id, number)).collect();
        let before = std::mem::replace(&mut self.numbers, numbers);
        for (_, Member { peer, .. }) in self.layout.cells() {
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

    /// Asks for copies, if that is due.
    fn arrive(&mut self, now: Time, out: &mut dyn Sink<Cell>) {
        let (Some(me), Some(arrival)) = (self.number(), &mut self.arrival) else { return };
        let mut requests = Vec::new();
        let (coordinator, layout) = (&mut self.coordinator, &self.layout);
        let ends = arrival.tick(now, layout, || coordinator.next_round(), &mut requests);
        self.ask(requests, out);
        if ends && self.journal.as_mut().is_none_or(Journal::arrive) {
            out.emit(Event::Complete(me));
        }
    }

    /// A question to a process for a copy may be lost.
    fn ask_again(&mut self, peer: ProcessId) {
        if let (Some(arrival), Some(number)) = (&mut self.arrival, self.numbers.get(&peer)) {
            arrival.lost(*number);
        }
    }

    fn ask(&self, requests: Vec<(CellNumber, Request)>, out: &mut dyn Sink<Cell>) {
        let after = self.cover();
        for (to, request) in requests {
            let peer = self.layout.cell(to).expect("cells of the layout are asked").peer.id;
            out.send(Destination::One(peer), Message::Request(request), after);
        }
    }

    /// Takes the answer to a request for a copy. Gives it back if it is none.
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
        // Refused, it is asked again soon.
        let Answer::Copied { entries, next } = answer else { return None };
        for copy in entries {
            if self.replica.take(map, copy, &mut self.clock, now).is_err() {
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

    /// Finds the cells that can be asked: those with a link, of which something was heard lately, and this one.
    fn survey(&mut self, now: Time) {
        let fit = |process: &ProcessId| {
            *process == self.me || self.linked.contains(process) && !self.detector.suspects(*process, now)
        };
        let reachable = self.numbers.iter().filter(|(process, _)| fit(process));
        self.reachable = reachable.map(|(_, number)| *number).collect();
    }

    /// Signs of life, and a look at those of others.
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
            // A cell that seldom compares holds up none that does.
            let pause = self.settings.repair.every / if self.journal.is_some() { 1 } else { 4 };
            self.word_at = now + pause.min(WORD_EVERY_MAX);
            self.tell_how_far(now, out);
        }
    }

    /// Tells the others how far this cell is, and forgets what all of them have seen deleted.
    fn tell_how_far(&mut self, now: Time, out: &mut dyn Sink<Cell>) {
        let Some(me) = self.number() else { return };
        let through = self.horizons.settle(self.clock.wall(now), self.coordinator.oldest());
        self.clock.raise(through);
        self.reserve(out);
        let word = self.horizons.word(&self.layout, me);
        let others = self.numbers.keys().filter(|process| self.linked.contains(process));
        let others: Vec<_> = others.copied().collect();
        if !others.is_empty() {
            // It rests on what was reserved, taken and reached.
            let after = self.journal.as_ref().and_then(Journal::unsynced);
            out.send(Destination::Many(others), Message::Word(word), after);
        }
        self.replica.sweep(self.horizons.look(&self.layout, me));
        self.write_down(out);
    }

    /// Lets the comparison with other cells work. A cell that is arriving copies everything instead.
    fn compare(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut dyn Sink<Cell>,
        work: impl FnOnce(&mut Repair, &Horizons, &mut Grounds<'_>) -> Option<Horizon>,
    ) {
        let Some(me) = self.number().filter(|_| self.arrival.is_none()) else { return };
        let (mut requests, coordinator) = (Vec::new(), &mut self.coordinator);
        let mut grounds = Grounds {
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

    fn receive(&mut self, cx: &mut Context<'_>, from: ProcessId, message: Message, out: &mut dyn Sink<Cell>) {
        let Some(number) = self.numbers.get(&from).copied() else {
            self.strays += 1;
            // It may be a cell that the order has not told of here yet: it asks again later.
            if let Message::Request(Request { round, .. }) = message {
                let answer = Answer::Refused(Refusal::Layout);
                out.send(Destination::One(from), Message::Answer { round, answer }, None);
            }
            return;
        };
        self.detector.heard(from, cx.now);
        match message {
            Message::Alive => {}
            Message::Word(word) => self.horizons.hear(number, word),
            Message::Request(request) => {
                let (answer, wait) = self.serve(request, number, cx.now, out);
                match wait {
                    Wait::Nothing => out.send(Destination::One(from), answer, None),
                    Wait::Aside => out.send_aside(Destination::One(from), answer),
                    Wait::Record(ticket) => out.send(Destination::One(from), answer, Some(ticket)),
                }
            }
            Message::Answer { round, answer } => {
                let Some(answer) = self.take_copy((number, round), answer, cx.now, out) else { return };
                let mut answer = Some(answer);
                self.compare(cx, out, |repair, _, grounds| {
                    let given = answer.take().expect("it is there");
                    repair.answer(number, round, given, grounds).unwrap_or_else(|given| {
                        answer = Some(given);
                        None
                    })
                });
                let Some(answer) = answer else { return };
                if self.scans.has(round) {
                    return self.scan(cx.now, out, |scans, _, around| {
                        scans.answer(number, round, answer, around);
                    });
                }
                self.coordinate(cx, out, |coordinator, turn| coordinator.answer(number, round, answer, turn));
            }
        }
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
                    let outcome = Outcome::Rejected(Rejection::NoCell);
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
                self.scan(cx.now, out, |scans, round, around| scans.begin(scan, round, patience, around));
            }
            Input::Command(Command::Lay(layout)) => self.lay(cx, layout, out),
            Input::Command(Command::Adjust(offset)) => self.clock.adjust(offset),
            Input::Deadline => {
                self.beat(cx.now, out);
                self.arrive(cx.now, out);
                self.compare(cx, out, |repair, horizons, grounds| repair.tick(horizons, grounds));
                self.coordinate(cx, out, |coordinator, turn| coordinator.tick(turn));
                if self.scans.deadline().is_some_and(|due| due <= cx.now) {
                    self.scan(cx.now, out, |scans, _, around| scans.tick(around));
                }
            }
            Input::Linked { peer, .. } => {
                self.linked.insert(peer);
                self.detector.linked(peer, cx.now);
                self.survey(cx.now);
                // Questions from before there was a link were not sent.
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
            // Nobody casts here, and nothing waits for the end of a batch.
            Input::Cast { .. } | Input::Drained => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        let beat = (!self.numbers.is_empty()).then_some(self.beat_at);
        let arrival = self.arrival.as_ref().map(Arrival::deadline);
        // Without a number nothing is coordinated: what is due stays so.
        let repair = Some(self.repair.deadline()).filter(|_| self.arrival.is_none());
        let work = self.number().map(|_| [self.coordinator.deadline(), self.scans.deadline(), repair]);
        work.unwrap_or_default().into_iter().chain([beat, arrival]).flatten().min()
    }
}
