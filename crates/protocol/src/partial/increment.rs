//! An increment at its coordinator. It first reads the key like a read, and then writes its coordinator's
//! tally ([`counter`](super::counter)).

use super::{
    counter::{TALLIES_MAX, Tally},
    entry::{Entry, Value},
    operation::{OperationOutcome, Rejection},
    owner::Share,
    running::{Draft, OperationContext, OperationStage, OperationStep, PendingIncrement, RunningOperation},
    stamp::Stamp,
    tallies::{Continued, TallyKey},
};
use crate::strength::Level;

impl RunningOperation {
    /// Returns the number that an increment adds. `None` for any other operation.
    pub(super) fn added(&self) -> Option<i64> {
        if let Some(Draft::Add(added)) = self.draft { Some(added) } else { None }
    }

    /// Returns the stamp of this operation's write, if the write was sent, and whether all owners have the
    /// write.
    pub(super) fn sent_stamp(&self) -> Option<(Stamp, bool)> {
        let OperationStage::Writing { stamp, held, .. } = &self.stage else { return None };
        Some((*stamp, *held == self.owners.all()))
    }

    /// Adds this increment to a tally. Returns `None` if the sum would leave 64 bits: then the increment
    /// begins another tally.
    fn added_to(&self, continued: Continued) -> Option<Continued> {
        let sum = continued.tally.sum.checked_add(self.added()?)?;
        Some(Continued { tally: Tally { sum, ..continued.tally }, ..continued })
    }

    /// Returns the name of the coordinator's tally that this increment goes into.
    pub(super) fn tally_key(&self) -> TallyKey {
        (self.map, self.key.clone(), self.level.is_quorum())
    }

    /// Continues an increment that has read its key: adds to the coordinator's tally, or begins a tally.
    pub(super) fn count(&mut self, found: Entry, context: &mut OperationContext<'_>) -> OperationStep {
        let added = self.added().expect("only an increment is counted");
        let clocks = (context.wall, context.through, self.past);
        let mut continued = context.memory.continued(&self.tally_key(), &found, context.me, clocks);
        let mut known = found.clone();
        if let Some(continued) = &mut continued {
            known.merge(&Entry::of_tally(continued.begun, continued.tally));
            continued.take_in(&known, self.past);
        }
        let continued = continued.and_then(|continued| self.added_to(continued));
        let count = match (known.value(context.wall), known.count(context.wall)) {
            (Value::Hash(_), _) => Err(Rejection::Hash),
            (_, None) => Err(Rejection::NoNumber),
            (_, Some(count)) => i64::try_from(count + i128::from(added)).map_err(|_| Rejection::Overflow),
        };
        let tallies = found.tallies().count();
        let count = count.and_then(|count| match continued {
            None if tallies >= TALLIES_MAX => Err(Rejection::Tallies),
            _ => Ok(count),
        });
        let count = match count {
            Ok(count) => count,
            Err(rejection) => return OperationStep::End(OperationOutcome::Rejected(rejection)),
        };
        let newest = found.newest();
        self.adding = Some(Box::new(PendingIncrement { found, count, own: Entry::nothing(), oldest: 0 }));
        if continued.is_some() || !self.level.is_quorum() {
            return self.add(newest, continued, context);
        }
        let answered = Share::NONE;
        self.stage = OperationStage::Asking { answered, newest };
        let candidates = context.reachable.and(context.settled);
        match Level::Quorum.choose(&self.owners, candidates, &self.preferred, context.site) {
            Some(asked) => OperationStep::Round(asked),
            // When the increment began, enough owners for a quorum could be asked. So the increment waits for
            // a quorum until its own time is over.
            None => OperationStep::Round(candidates),
        }
    }

    /// Writes an increment that begins a tally above `floor`. If another increment has begun a tally while
    /// this increment waited for answers, adds to that tally instead. The state of that tally is taken from
    /// this cell's memory of tallies, because the entry that was read earlier does not have the last state of
    /// the tally.
    pub(super) fn begin_tally(&mut self, floor: Stamp, context: &mut OperationContext<'_>) -> OperationStep {
        let found = &self.adding.as_ref().expect("it has read").found;
        let kept = context.memory.kept(&self.tally_key(), found, (context.wall, context.through));
        let continued = kept.and_then(|kept| self.added_to(kept));
        self.add(floor, continued, context)
    }

    /// Writes an increment, with a stamp above `floor`. Adds it to the tally `continued` if there is one, and
    /// begins a tally otherwise.
    fn add(
        &mut self,
        floor: Stamp,
        continued: Option<Continued>,
        context: &mut OperationContext<'_>,
    ) -> OperationStep {
        let Ok(stamp) = (context.issue)(floor) else {
            return OperationStep::End(OperationOutcome::Rejected(Rejection::Skewed));
        };
        let found = std::mem::take(&mut self.adding.as_mut().expect("it has read").found);
        let firm = self.level.is_quorum();
        let (begun, tally, seen) = match continued {
            Some(Continued { begun, tally, seen }) => (begun, Tally { stamp, ..tally }, seen),
            None => {
                let sum = self.added().expect("only an increment is counted");
                (stamp, Tally { stamp, sum, firm, sole: false }, false)
            }
        };
        context.memory.sends(self.tally_key(), begun, tally);
        let own = Entry::of_tally(begun, tally);
        let mut entry = own.clone();
        if self.blocking && firm {
            entry.merge(&found);
        }
        let adding = self.adding.as_mut().expect("it has read");
        adding.own = own;
        adding.oldest = if seen { stamp.time } else { begun.time };
        let (held, newer) = (Share::NONE, Stamp::ZERO);
        self.stage = OperationStage::Writing { stamp, entry, held, newer, last: true, answered: false };
        OperationStep::Round(context.reachable)
    }
}
