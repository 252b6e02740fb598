//! A cell with a disk: its records, the messages that wait for them, and how the cell comes back
//! ([journal](crate::partial::journal)).

use super::Cell;
use crate::{
    ecast::{Position, Submissions},
    id::ProcessId,
    partial::{
        cell::Settings,
        horizon::Horizons,
        id::CellNumber,
        journal::{Began, CellJournal, Past},
        message::{Answer, Demand, Message, Request, Round},
        routing::Roster,
    },
    seam::{Context, Sink, Ticket},
    time::Time,
};

/// The event for which an answer waits before it leaves.
pub(super) enum Wait {
    /// The answer leaves after everything that was sent earlier.
    Nothing,
    /// The answer leaves at once: it may overtake messages that wait for the disk.
    Aside,
    /// The answer leaves once this record is durable.
    Record(Ticket),
}

/// Whether a message is a question that shows no write to another process. It may overtake messages that wait
/// for the disk, because its answer counts only for a read, and no promise depends on the order of the
/// question and earlier messages.
pub(super) fn shows_no_write(message: &Message) -> bool {
    let Message::Request(Request { demand, .. }) = message else { return false };
    matches!(demand, Demand::Ask | Demand::Read(_) | Demand::Digest)
}

impl Cell {
    /// Returns the cell that continues from this past. It has no layout until its user gives it one.
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
        cell.clock.continue_above(reserved);
        cell.coordinator.continue_above(reserved);
        cell.horizons = Horizons::resumed(horizon);
        if let Some(journal) = &mut cell.journal {
            journal.resume(reserved, bytes);
        }
        cell
    }

    /// Returns the record that covers the stamps that this cell issued. `None` if that record is durable or
    /// the cell has no disk.
    pub(super) fn cover(&self) -> Option<Ticket> {
        self.journal.as_ref()?.cover(self.clock.issued())
    }

    /// Reserves further stamps on the disk before they are needed.
    pub(super) fn reserve(&mut self, out: &mut dyn Sink<Cell>) {
        if let Some(journal) = &mut self.journal {
            journal.reserve(self.clock.issued(), out);
        }
    }

    /// Writes records of the replica's changes to the journal.
    pub(super) fn write_down(&mut self, out: &mut dyn Sink<Cell>) {
        if let Some(journal) = &mut self.journal {
            for change in self.replica.take_changes() {
                journal.write(change, out);
            }
        }
    }

    /// Whether enough bytes have been written for a checkpoint to begin.
    pub(in crate::partial) fn is_checkpoint_due(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_due(self.replica.bytes()))
    }

    /// Begins a checkpoint. Its first record holds everything that the process knows except its entries.
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

    /// Releases the answers that waited for records up to `through`, which are durable now. Continues a
    /// checkpoint.
    pub(super) fn persisted(&mut self, cx: &mut Context<'_>, through: Ticket, out: &mut dyn Sink<Cell>) {
        let me = self.number().filter(|_| self.arrival.is_some());
        let Some(journal) = &mut self.journal else { return };
        let answers = journal.persisted(through);
        journal.proceed(&self.replica, out);
        if let (Some(me), true) = (me, journal.has_arrived()) {
            self.complete = Some(me);
        }
        let is_scan = |(round, _): &(Round, Answer)| self.scans.has(*round);
        let (listed, answers): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_scan);
        if let (Some(me), false) = (self.number(), listed.is_empty()) {
            self.scan(cx.now, out, |scans, _, context| {
                for (round, answer) in listed {
                    scans.answer(me, round, answer, context);
                }
            });
        }
        if !answers.is_empty() {
            self.coordinate(cx, out, |coordinator, turn| {
                for (round, answer) in answers {
                    coordinator.answer(turn.me, round, answer, turn);
                }
            });
        }
    }

    /// Returns the answer to a request, and when the answer may leave.
    pub(super) fn serve(
        &mut self,
        request: Request,
        from: CellNumber,
        now: Time,
        out: &mut dyn Sink<Cell>,
    ) -> (Message, Wait) {
        let Some(journal) = &self.journal else { return (self.answer(request, from, now), Wait::Nothing) };
        let wait = match request.demand {
            Demand::Read(_) | Demand::Digest => {
                journal.record_of(request.map, &request.key).map_or(Wait::Aside, Wait::Record)
            }
            Demand::Ask => Wait::Aside,
            Demand::Write(_) | Demand::Repair(_) => {
                let answer = self.answer(request, from, now);
                self.write_down(out);
                let last = self.journal.as_ref().and_then(CellJournal::unsynced);
                return (answer, last.map_or(Wait::Nothing, Wait::Record));
            }
            // A user sees these keys, so a power cut must not take them away.
            Demand::List { .. } => journal.unsynced().map_or(Wait::Nothing, Wait::Record),
            Demand::Copy { .. } | Demand::Compare { .. } | Demand::Fetch(_) => {
                journal.cover(self.clock.issued()).map_or(Wait::Nothing, Wait::Record)
            }
        };
        (self.answer(request, from, now), wait)
    }
}
