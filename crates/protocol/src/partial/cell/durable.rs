//! A cell with a disk: what it writes down, what waits for that, and how it comes back
//! ([journal](crate::partial::journal)).

use super::{Cell, Event};
use crate::{
    ecast::{Position, Submissions},
    id::ProcessId,
    partial::{
        cell::Settings,
        horizon::Horizons,
        journal::{Began, Journal, Past},
        layout::CellNumber,
        message::{Demand, Message, Request},
        routing::Roster,
    },
    seam::{Context, Sink, Ticket},
    time::Time,
};

/// The lane of an answer, or the record that it waits for.
pub(super) enum Wait {
    /// It leaves behind what was sent before.
    Nothing,
    /// It may overtake what waits for the disk.
    Aside,
    /// It leaves once this record is durable.
    Record(Ticket),
}

/// Whether a message is a question that shows no write, and may overtake what waits for the disk: its answer counts for a read, and
/// nothing rests on what came before it.
pub(super) fn shows_nothing(message: &Message) -> bool {
    let Message::Request(Request { demand, .. }) = message else { return false };
    matches!(demand, Demand::Ask | Demand::Read | Demand::Digest)
}

impl Cell {
    /// The cell that had this past goes on. The layout is still to come.
    pub(in crate::partial) fn recovered(
        me: ProcessId,
        settings: Settings,
        offset: i64,
        now: Time,
        past: Past,
    ) -> Cell {
        let Past { reserved, horizon, replica, bytes, .. } = past;
        let mut cell = Cell { replica, resumed: true, ..Cell::new(me, settings, offset, now) };
        cell.replica.persist();
        cell.clock.go_on_behind(reserved);
        cell.coordinator.go_on_behind(reserved);
        cell.horizons = Horizons::resumed(horizon);
        if let Some(journal) = &mut cell.journal {
            journal.resume(reserved, bytes);
        }
        cell
    }

    /// The record that covers the stamps that were issued, unless it is durable or there is no disk.
    pub(super) fn cover(&self) -> Option<Ticket> {
        self.journal.as_ref()?.cover(self.clock.issued())
    }

    /// Reserves stamps for those that may be issued next.
    pub(super) fn reserve(&mut self, out: &mut dyn Sink<Cell>) {
        if let Some(journal) = &mut self.journal {
            journal.reserve(self.clock.issued(), out);
        }
    }

    /// Writes down what has changed.
    pub(super) fn write_down(&mut self, out: &mut dyn Sink<Cell>) {
        if let Some(journal) = &mut self.journal {
            for change in self.replica.take_changes() {
                journal.write(change, out);
            }
        }
    }

    /// Whether so much has been written that a checkpoint should begin.
    pub(in crate::partial) fn is_checkpoint_due(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_due(self.replica.bytes()))
    }

    /// Begins a checkpoint. What the process knows beside its entries is in it.
    pub(in crate::partial) fn checkpoint(
        &mut self,
        (at, roster): (Position, Roster),
        submissions: Submissions,
        out: &mut dyn Sink<Cell>,
    ) {
        let Submissions { passed, messages: submitted } = submissions;
        let Some(journal) = &mut self.journal else { return };
        let (reserved, horizon) = (journal.reserved(), self.horizons.own());
        journal.begin(Began { at, roster, passed, submitted, reserved, horizon }, out);
    }

    /// Everything up to this record is durable.
    pub(super) fn persisted(&mut self, cx: &mut Context<'_>, through: Ticket, out: &mut dyn Sink<Cell>) {
        let me = self.number().filter(|_| self.arrival.is_some());
        let Some(journal) = &mut self.journal else { return };
        let answers = journal.persisted(through);
        journal.proceed(&self.replica, out);
        if let (Some(me), true) = (me, journal.has_arrived()) {
            out.emit(Event::Complete(me));
        }
        if !answers.is_empty() {
            self.coordinate(cx, out, |coordinator, turn| {
                for (round, answer) in answers {
                    coordinator.answer(turn.me, round, answer, turn);
                }
            });
        }
    }

    /// Answers a request, and tells what the answer waits for.
    pub(super) fn serve(
        &mut self,
        request: Request,
        from: CellNumber,
        now: Time,
        out: &mut dyn Sink<Cell>,
    ) -> (Message, Wait) {
        let Some(journal) = &self.journal else { return (self.answer(request, from, now), Wait::Nothing) };
        let wait = match request.demand {
            Demand::Read | Demand::Digest => {
                journal.record_of(request.map, &request.key).map_or(Wait::Aside, Wait::Record)
            }
            Demand::Ask => Wait::Aside,
            Demand::Write(_) => {
                let answer = self.answer(request, from, now);
                self.write_down(out);
                let last = self.journal.as_ref().and_then(Journal::unsynced);
                return (answer, last.map_or(Wait::Nothing, Wait::Record));
            }
            Demand::Copy { .. } | Demand::List { .. } | Demand::Compare { .. } | Demand::Fetch(_) => {
                journal.cover(self.clock.issued()).map_or(Wait::Nothing, Wait::Record)
            }
        };
        (self.answer(request, from, now), wait)
    }
}
