//! Counters beside the keys of each map: users add to them and read them, and some are written as a whole, too.

use quorate_protocol::partial::{Level, Outcome, Rejection};
use quorate_world::Violation;

use super::{Readers, Stage, World, settings::Kind};
use crate::check::{
    counters::{self, CounterCheck},
    quorum::{Asked, Deed, Promise},
};

/// Stands in the names of counters.
const MARK: char = '+';

impl Readers {
    /// A user asks a cell for something on a counter. The first of three only grow, the second are added to and taken from, and the third,
    /// where levels meet, are also written as a whole.
    pub(super) fn ask_counter(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        (machine, user): (usize, u64),
        kind: &'static Kind,
    ) {
        let number = stage.chance.below(self.settings.counters);
        let draw = stage.chance.below(10);
        let added = stage.chance.below(1_000) as i64 + 1;
        let levels = if draw < 4 { kind.reads } else { kind.writes };
        let level = levels[stage.chance.index(levels.len())];
        if self.book.busy.contains(&user) || world.process(machine).is_none() {
            return;
        }
        self.book.asked += 1;
        let is_written = number % 3 == 2 && kind.promise != Promise::Written;
        let deed = match (draw, number % 3) {
            (0..4, _) => Deed::Read,
            (4, _) if is_written && added % 2 == 0 => Deed::Write(None),
            (4, _) if is_written => Deed::Write(Some(added as u64 * 10_000)),
            (5..7, 1..) => Deed::Add(-added),
            _ => Deed::Add(added),
        };
        self.book.busy.insert(user);
        self.begin(world, (machine, user), kind, format!("{}{MARK}{number}", kind.name), deed, level);
    }

    pub(super) fn is_counter(&self, key: &str) -> bool {
        key.contains(MARK)
    }

    /// An operation on a counter ended. Says whether that says something about its count; else nothing was done.
    pub(super) fn counted(
        &mut self,
        world: &mut World,
        asked: &Asked,
        outcome: &Outcome,
    ) -> Result<bool, Violation> {
        let now = world.now().0 as i64;
        let of = (&asked.key[..], asked.map, asked.promise);
        if let Outcome::Counted { stamp, .. } | Outcome::Done { stamp, .. } = outcome {
            self.check.stamped(asked, *stamp)?;
        }
        match (outcome, asked.deed) {
            (Outcome::Counted { count, level, .. }, Deed::Add(added)) => {
                world.count("added");
                let deed = ended(asked, added, Some((now, *level)));
                self.counters.added(of, deed, Some(*count));
            }
            (Outcome::Done { level, .. }, Deed::Write(value)) => {
                world.count("counter written");
                let deed = ended(asked, number(value), Some((now, *level)));
                self.counters.written(of, deed);
            }
            (Outcome::Found { value, .. }, Deed::Read) => {
                world.count("counter read");
                self.counters.read(of, (asked.at, now), value)?;
            }
            (Outcome::MaybeApplied, Deed::Add(_) | Deed::Write(_)) => {
                world.count("maybe added");
                unknown(&mut self.counters, asked);
            }
            (Outcome::NotApplied, Deed::Add(_)) => world.count("not added"),
            (Outcome::Rejected(Rejection::Skewed), Deed::Add(_)) => world.count("skewed"),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Nobody knows what becomes of a deed on a counter. Says whether it is one.
pub(super) fn unknown(check: &mut CounterCheck, asked: &Asked) -> bool {
    if !asked.key.contains(MARK) {
        return false;
    }
    let of = (&asked.key[..], asked.map, asked.promise);
    match asked.deed {
        Deed::Add(added) => check.added(of, ended(asked, added, None), None),
        Deed::Write(value) => check.written(of, ended(asked, number(value), None)),
        Deed::Read => {}
    }
    true
}

fn ended(asked: &Asked, number: i64, end: Option<(i64, Level)>) -> counters::Deed {
    counters::Deed {
        start: asked.at,
        end: end.map(|(end, _)| end),
        number,
        quorum: end.is_some_and(|(_, level)| level.is_quorum()),
        latest: asked.latest,
    }
}

/// A deletion leaves nothing, which is zero.
fn number(value: Option<u64>) -> i64 {
    value.map_or(0, |value| value as i64)
}
