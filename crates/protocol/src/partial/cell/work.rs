//! A cell's work: it runs its coordinator and its scans, and answers requests.

use super::{
    Cell, Event,
    durable::{Wait, shows_no_write},
};
use crate::{
    id::ProcessId,
    partial::{
        coordinator::{Coordinator, CoordinatorContext},
        id::{CellNumber, Site},
        journal::CellJournal,
        layout::ReadRepair,
        message::{Answer, Demand, Message, ReplicaRefusal, Request, Round},
        operation::{Action, Operation, OperationOutcome},
        scan::{ScanContext, Scans},
        token::Token,
    },
    seam::{Context, Destination, Sink},
    strength::Level,
    time::Time,
};

impl Cell {
    /// Performs the steps of scans that are due. Answers requests of scans to this cell at once, unless an
    /// answer waits for the disk. Does nothing while this process has no cell number.
    pub(super) fn scan(
        &mut self,
        now: Time,
        out: &mut dyn Sink<Cell>,
        work: impl FnOnce(&mut Scans, Round, &mut ScanContext<'_>),
    ) {
        let Some(me) = self.number() else { return };
        let site = self.layout.cell(me).map_or(Site::default(), |member| member.site);
        let round = self.coordinator.next_round();
        let (mut requests, mut ended) = (Vec::new(), Vec::new());
        let mut work = Some(work);
        let mut own: Vec<(Round, Answer)> = Vec::new();
        loop {
            let mut context = ScanContext {
                now,
                site,
                wall: self.clock.wall(now),
                layout: &self.layout,
                rings: &self.rings,
                reachable: &self.reachable,
                out: &mut requests,
                ended: &mut ended,
            };
            if let Some(work) = work.take() {
                work(&mut self.scans, round, &mut context);
            }
            for (round, answer) in own.drain(..) {
                self.scans.answer(me, round, answer, &mut context);
            }
            for (to, request) in requests.drain(..) {
                if to == me {
                    let (Message::Answer { round, answer }, wait) = self.serve(request, me, now, out) else {
                        unreachable!("every request to this cell itself is answered")
                    };
                    match (wait, &mut self.journal) {
                        (Wait::Record(ticket), Some(journal)) => journal.hold(ticket, round, answer),
                        _ => own.push((round, answer)),
                    }
                } else {
                    let peer = self.layout.cell(to).expect("only cells of the layout are asked").peer.id;
                    out.send(Destination::One(peer), Message::Request(request), None);
                }
            }
            if own.is_empty() {
                break;
            }
        }
        for (id, outcome) in ended {
            out.emit(Event::Scanned { id, outcome });
        }
    }

    pub(super) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        message: Message,
        out: &mut dyn Sink<Cell>,
    ) {
        let Some(number) = self.numbers.get(&from).copied() else {
            self.strays += 1;
            // The sender may be a cell of a layout that this cell does not have yet. The sender asks again
            // later.
            if let Message::Request(Request { round, .. }) = message {
                let answer = Answer::Refused(ReplicaRefusal::Layout);
                out.send(Destination::One(from), Message::Answer { round, answer }, None);
            }
            return;
        };
        self.detector.heard(from, cx.now);
        match message {
            Message::Alive => {}
            Message::HorizonReport(word) => self.horizons.hear(number, word),
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
                    return self.scan(cx.now, out, |scans, _, context| {
                        scans.answer(number, round, answer, context);
                    });
                }
                self.coordinate(cx, out, |coordinator, turn| coordinator.answer(number, round, answer, turn));
            }
        }
    }

    pub(super) fn answer(&mut self, request: Request, from: CellNumber, now: Time) -> Message {
        let round = request.round;
        if self.arrival.is_some() && !matches!(request.demand, Demand::Write(_) | Demand::Repair(_)) {
            return Message::Answer { round, answer: Answer::Refused(ReplicaRefusal::Arriving) };
        }
        if let Demand::Compare { pace, .. } = request.demand
            && !self.repair.admits(from, pace, now)
        {
            return Message::Answer { round, answer: Answer::Refused(ReplicaRefusal::Comparing) };
        }
        if let Demand::Copy { first } = request.demand
            && request.layout == self.layout.version()
            && let Some(ring) = self.rings.get(&request.map)
        {
            let behind = (!first).then_some(&request.key);
            let owns = |token| ring.owners(token).index(from).is_some();
            let (entries, next) = self.replica.copy(request.map, behind, owns);
            return Message::Answer { round, answer: Answer::Copied { entries, next } };
        }
        Message::Answer { round, answer: self.replica.answer(request, &self.layout, &mut self.clock, now) }
    }

    /// Answers a read that this cell can answer alone: a read at level one, without delay, of a key that it
    /// owns. Returns the outcome that the coordinator would get, without the coordinator's bookkeeping.
    /// Returns `None` for any other read.
    pub(super) fn read_here(&self, operation: &Operation, now: Time) -> Option<OperationOutcome> {
        let Operation { map, key, level, delay, action, .. } = operation;
        let is_plain_read = *action == Action::Read && *level == Level::One && delay.is_zero();
        if !is_plain_read || self.arrival.is_some() || key.len() > self.settings.patience.key_bytes_max {
            return None;
        }
        // A read in a map with background repair may, by chance, have to ask the other owners, too.
        if matches!(self.layout.map(*map)?.read_repair()?, ReadRepair::Background { .. }) {
            return None;
        }
        let me = self.number().filter(|me| self.layout.cell(*me).is_some_and(|member| !member.arriving))?;
        self.rings.get(map)?.owners(Token::of(*map, key)).index(me)?;
        let is_waited_for = |journal: &CellJournal| journal.record_of(*map, key).is_some();
        if self.journal.as_ref().is_some_and(is_waited_for) {
            return None;
        }
        let (entry, wall) = (self.replica.entry(*map, key).unwrap_or_default(), self.clock.wall(now));
        let (value, expires, newest) = (entry.value(wall), entry.expires(wall), entry.newest());
        Some(OperationOutcome::Found { value, expires, wall, newest, level: Level::One })
    }

    /// Performs the coordinator's steps that are due. Answers the coordinator's requests to this cell at
    /// once, unless an answer waits for the disk. Does nothing while this process has no cell number.
    pub(super) fn coordinate(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut dyn Sink<Cell>,
        work: impl FnOnce(&mut Coordinator, &mut CoordinatorContext<'_>),
    ) {
        let Some(me) = self.number() else { return };
        let site = self.layout.cell(me).map_or(Site::default(), |member| member.site);
        let (mut messages, mut ended, mut lacking) = (Vec::new(), Vec::new(), Vec::new());
        let mut own: Vec<Message> = Vec::new();
        let mut work = Some(work);
        loop {
            let mut turn = CoordinatorContext {
                now: cx.now,
                me,
                site,
                layout: &self.layout,
                rings: &self.rings,
                clock: &mut self.clock,
                through: self.horizons.through(),
                past: self.horizons.past(),
                reachable: &self.reachable,
                random: &mut *cx.random,
                out: &mut messages,
                ended: &mut ended,
                lacking: &mut lacking,
            };
            if let Some(work) = work.take() {
                work(&mut self.coordinator, &mut turn);
            }
            for answer in own.drain(..) {
                let Message::Answer { round, answer } = answer else {
                    unreachable!("only answers are kept for this cell itself")
                };
                self.coordinator.answer(me, round, answer, &mut turn);
            }
            self.reserve(out);
            let after = self.cover();
            for (to, message) in messages.drain(..) {
                match message {
                    Message::Request(request) if to == me => {
                        match (self.serve(request, me, cx.now, out), &mut self.journal) {
                            ((Message::Answer { round, answer }, Wait::Record(ticket)), Some(journal)) => {
                                journal.hold(ticket, round, answer);
                            }
                            ((answer, _), _) => own.push(answer),
                        }
                    }
                    message => {
                        let peer = self
                            .layout
                            .cell(to)
                            .expect("every owner of a key is a cell of the layout")
                            .peer
                            .id;
                        if self.journal.is_some() && shows_no_write(&message) {
                            out.send_aside(Destination::One(peer), message);
                        } else {
                            out.send(Destination::One(peer), message, after);
                        }
                    }
                }
            }
            if own.is_empty() {
                break;
            }
        }
        for (id, outcome) in ended {
            out.emit(Event::Ended { id, outcome });
        }
        for cell in lacking {
            out.emit(Event::Lacks(cell));
        }
    }
}
