//! Counters in each map, in addition to its keys: users add to them and read them, and also write some as a
//! whole.

use quorate_protocol::partial::{Level, OperationOutcome, Rejection};
use quorate_world::Violation;

use super::{MapsWorkload, QuorumStage, QuorumWorld, settings::MapKind};
use crate::check::{
    counters::{self, CounterCheck},
    quorum::{OperationKind, PendingOperation, Promise},
};

/// The mark in the names of counters.
const MARK: char = '+';

impl MapsWorkload {
    /// Makes a user ask a cell for an operation on a counter. Of three counters, the first only grows, and
    /// the second grows and shrinks. The third is also written as a whole, in maps whose levels meet.
    pub(super) fn ask_counter(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        (machine, user): (usize, u64),
        kind: &'static MapKind,
    ) {
        let number = stage.chance.below(self.settings.counters);
        let draw = stage.chance.below(10);
        let added = stage.chance.below(1_000) as i64 + 1;
        let levels = if draw < 4 { kind.reads } else { kind.writes };
        let level = levels[stage.chance.index(levels.len())];
        if self.request_log.busy.contains(&user) || world.process(machine).is_none() {
            return;
        }
        self.request_log.asked += 1;
        let is_written = number % 3 == 2 && kind.promise != Promise::Written;
        let deed = match (draw, number % 3) {
            (0..4, _) => OperationKind::Read,
            (4, _) if is_written && added % 2 == 0 => OperationKind::Write(None),
            (4, _) if is_written => OperationKind::Write(Some(added as u64 * 10_000)),
            (5..7, 1..) => OperationKind::Add(-added),
            _ => OperationKind::Add(added),
        };
        self.request_log.busy.insert(user);
        self.begin(world, (machine, user), kind, format!("{}{MARK}{number}", kind.name), deed, level);
    }

    pub(super) fn is_counter(&self, key: &str) -> bool {
        key.contains(MARK)
    }

    /// Notes the end of an operation on a counter. Returns whether the operation may have been carried out,
    /// so that its outcome says something about the count.
    pub(super) fn counted(
        &mut self,
        world: &mut QuorumWorld,
        asked: &PendingOperation,
        outcome: &OperationOutcome,
    ) -> Result<bool, Violation> {
        let now = world.now().0 as i64;
        let of = (&asked.key[..], asked.map, asked.promise);
        if let OperationOutcome::Counted { stamp, .. } | OperationOutcome::Done { stamp, .. } = outcome {
            self.check.stamped(asked, *stamp)?;
        }
        match (outcome, asked.deed) {
            (OperationOutcome::Counted { count, level, .. }, OperationKind::Add(added)) => {
                world.count("added");
                let deed = ended(asked, added, Some((now, *level)));
                self.counters.added(of, deed, Some(*count));
            }
            (OperationOutcome::Done { level, .. }, OperationKind::Write(value)) => {
                world.count("counter written");
                let deed = ended(asked, number(value), Some((now, *level)));
                self.counters.written(of, deed);
            }
            (OperationOutcome::Found { value, .. }, OperationKind::Read) => {
                world.count("counter read");
                self.counters.read(of, (asked.at, now), value)?;
            }
            (OperationOutcome::MaybeApplied, OperationKind::Add(_) | OperationKind::Write(_)) => {
                world.count("maybe added");
                unknown(&mut self.counters, asked);
            }
            (OperationOutcome::NotApplied, OperationKind::Add(_)) => world.count("not added"),
            (OperationOutcome::Rejected(Rejection::Skewed), OperationKind::Add(_)) => world.count("skewed"),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Notes the unknown outcome of an operation. Returns whether it was on a counter.
pub(super) fn unknown(check: &mut CounterCheck, asked: &PendingOperation) -> bool {
    if !asked.key.contains(MARK) {
        return false;
    }
    let of = (&asked.key[..], asked.map, asked.promise);
    match asked.deed {
        OperationKind::Add(added) => check.added(of, ended(asked, added, None), None),
        OperationKind::Write(value) => check.written(of, ended(asked, number(value), None)),
        OperationKind::Read => {}
    }
    true
}

fn ended(asked: &PendingOperation, number: i64, end: Option<(i64, Level)>) -> counters::CounterOperation {
    counters::CounterOperation {
        start: asked.at,
        end: end.map(|(end, _)| end),
        number,
        quorum: end.is_some_and(|(_, level)| level.is_quorum()),
        latest: asked.latest,
    }
}

/// Returns the number that a write leaves: a deletion leaves zero.
fn number(value: Option<u64>) -> i64 {
    value.map_or(0, |value| value as i64)
}
