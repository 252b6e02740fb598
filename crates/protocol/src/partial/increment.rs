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

    /// The tally with this increment. None: its sum would leave 64 bits, and another one is to be begun.
    fn added_to(&self, continued: Continued) -> Option<Continued> {
        let sum = continued.tally.sum.checked_add(self.added()?)?;
        Some(Continued { tally: Tally { sum, ..continued.tally }, ..continued })
    }

    /// The name of the coordinator's tally of an increment.
    pub(super) fn whose(&self) -> Whose {
        (self.map, self.key.clone(), self.level.is_quorum())
    }

    /// An increment has read what is there: it goes into its coordinator's tally, or begins one.
    pub(super) fn count(&mut self, found: Entry, around: &mut Surroundings<'_>) -> Step {
        let added = self.added().expect("an increment");
        let clocks = (around.wall, around.through, self.past);
        let mut continued = around.memory.continued(&self.whose(), &found, around.me, clocks);
        let mut known = found.clone();
        if let Some(continued) = &mut continued {
            known.merge(&Entry::of_tally(continued.begun, continued.tally));
            continued.take_in(&known, self.past);
        }
        let continued = continued.and_then(|continued| self.added_to(continued));
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
            return self.add(newest, continued, around);
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

    /// Writes an increment that begins a tally above `floor`, unless another increment has begun one while this one asked. What was read
    /// before does not say the last state of any other.
    pub(super) fn begin_tally(&mut self, floor: Stamp, around: &mut Surroundings<'_>) -> Step {
        let found = &self.adding.as_ref().expect("it has read").found;
        let kept = around.memory.kept(&self.whose(), found, (around.wall, around.through));
        let continued = kept.and_then(|kept| self.added_to(kept));
        self.add(floor, continued, around)
    }

    /// Writes an increment, in a tally that is gone on with or begins above `floor`.
    fn add(&mut self, floor: Stamp, continued: Option<Continued>, around: &mut Surroundings<'_>) -> Step {
        let Ok(stamp) = (around.issue)(floor) else {
            return Step::End(Outcome::Rejected(Rejection::Skewed));
        };
        let found = std::mem::take(&mut self.adding.as_mut().expect("it has read").found);
        let firm = self.level.is_quorum();
        let (begun, tally, seen) = match continued {
            Some(Continued { begun, tally, seen }) => (begun, Tally { stamp, ..tally }, seen),
            None => {
                let sum = self.added().expect("an increment");
                (stamp, Tally { stamp, sum, firm, sole: false }, false)
            }
        };
        around.memory.sends(self.whose(), begun, tally);
        let own = Entry::of_tally(begun, tally);
        let mut entry = own.clone();
        if self.blocking && firm {
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
