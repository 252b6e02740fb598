//! An increment at its coordinator: it reads like a read, and then writes its coordinator's tally ([`counter`](super::counter)).

use super::{
    clock::Stamp,
    counter::{Continued, TALLIES_MAX, Tally, Whose},
    entry::{Entry, Value},
    level::Level,
    operation::{Draft, Outcome, Rejection, Running, Stage, Step, Surroundings},
    ring::Share,
};

/// An increment that has read its key.
#[derive(Debug)]
pub(super) struct Adding {
    /// The entry that was read.
    found: Entry,
    /// The count with this increment.
    pub(super) count: i64,
    /// The tally as it is written, alone.
    pub(super) own: Entry,
    /// The time of the first state of this tally of which no replica was seen to have it.
    pub(super) oldest: u64,
}

impl Running {
    /// The number that an increment adds.
    pub(super) fn added(&self) -> Option<i64> {
        if let Some(Draft::Add(added)) = self.draft { Some(added) } else { None }
    }

    /// The stamp of a write that is sent, and whether all owners have it.
    pub(super) fn sent_stamp(&self) -> Option<(Stamp, bool)> {
        let Stage::Writing { stamp, held, .. } = &self.stage else { return None };
        Some((*stamp, *held == self.owners.all()))
    }

    /// The coordinator's tally that an increment goes into, with the sum that it will have; none: it begins one.
    fn continued(&self, found: &Entry, around: &Surroundings<'_>) -> Option<(Continued, i64)> {
        let clocks = (around.wall, around.through);
        let continued = around.memory.continued(&self.whose(), found, around.me, clocks)?;
        // A sum that leaves 64 bits goes on in another tally.
        let sum = continued.tally.sum.checked_add(self.added()?)?;
        Some((continued, sum))
    }

    /// The name of the coordinator's tally of an increment.
    pub(super) fn whose(&self) -> Whose {
        (self.map, self.key.clone(), self.level.is_quorum())
    }

    /// An increment has read what is there: it goes into its coordinator's tally, or begins one.
    pub(super) fn count(&mut self, found: Entry, around: &mut Surroundings<'_>) -> Step {
        let added = self.added().expect("an increment");
        let continued = self.continued(&found, around);
        let mut known = found.clone();
        if let Some((Continued { begun, tally, .. }, _)) = continued {
            known.merge(&Entry::of_tally(begun, tally));
        }
        let count = match (known.value(around.wall), known.count(around.wall)) {
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
            Err(rejection) => return Step::End(Outcome::Rejected(rejection)),
        };
        let newest = found.newest();
        self.adding = Some(Box::new(Adding { found, count, own: Entry::nothing(), oldest: 0 }));
        if continued.is_some() || !self.level.is_quorum() {
            return self.add(newest, around);
        }
        let told = Share::NONE;
        self.stage = Stage::Asking { told, newest };
        let candidates = around.reachable.and(around.settled);
        match Level::Quorum.choose(&self.owners, candidates, &self.preferred, around.site) {
            Some(asked) => Step::Round(asked),
            // They could be asked when it began; it waits for them as long as its time lasts.
            None => Step::Round(candidates),
        }
    }

    /// Writes an increment, in a tally that is gone on with or begins above `floor`.
    pub(super) fn add(&mut self, floor: Stamp, around: &mut Surroundings<'_>) -> Step {
        let Ok(stamp) = (around.issue)(floor) else {
            return Step::End(Outcome::Rejected(Rejection::Skewed));
        };
        let found = std::mem::take(&mut self.adding.as_mut().expect("it has read").found);
        // Another increment may have begun a tally while this one asked.
        let (begun, sum, seen) = match self.continued(&found, around) {
            Some((Continued { begun, seen, .. }, sum)) => (begun, sum, seen),
            None => (stamp, self.added().expect("an increment"), false),
        };
        let tally = Tally { stamp, sum, firm: self.level.is_quorum() };
        around.memory.sends(self.whose(), begun, tally);
        let own = Entry::of_tally(begun, tally);
        let mut entry = own.clone();
        if self.blocking && self.level.is_quorum() {
            entry.merge(&found);
        }
        let adding = self.adding.as_mut().expect("it has read");
        adding.own = own;
        adding.oldest = if seen { stamp.time } else { begun.time };
        let (held, newer) = (Share::NONE, Stamp::ZERO);
        self.stage = Stage::Writing { stamp, entry, held, newer, last: true, answered: false };
        Step::Round(around.reachable)
    }
}
