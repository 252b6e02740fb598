//! What users ask of cells, and what they are told.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    partial::{
        Action, CellNumber, Level, Operation, Outcome, Rejection,
        resident::{Command, Event},
    },
};
use quorate_world::Violation;

use super::{
    Ask, Readers, Stage, Timer, World,
    cells::cell,
    counters,
    settings::{Kind, LOOSE, MAPS},
};
use crate::check::quorum::{Asked, Deed, number};

/// Operations that have not ended.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) asked: u64,
    numbers: u64,
    under_way: BTreeMap<u64, (usize, Level, Option<Level>, Asked)>,
    pub(super) busy: BTreeSet<u64>,
}

impl Book {
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way.is_empty()
    }
}

impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} asked, {} have not ended", self.asked, self.under_way.len())
    }
}

impl Readers {
    /// Users ask, one after another, until all has been asked.
    pub(super) fn go_on_asking(&mut self, stage: &mut Stage, world: &mut World) {
        if self.book.asked < self.settings.operations {
            self.ask(stage, world);
            let pause = stage.chance.between(Duration::from_micros(100), self.pace);
            stage.after(world, pause, Timer::Ask);
        }
    }

    /// A user who waits for nothing asks some cell for something.
    fn ask(&mut self, stage: &mut Stage, world: &mut World) {
        let machine = self.machines[stage.chance.index(self.machines.len())];
        let user = stage.chance.below(self.settings.users);
        let kind = &MAPS[stage.chance.index(MAPS.len())];
        if self.settings.counters > 0 && stage.chance.happens(0.5) {
            return self.ask_counter(stage, world, (machine, user), kind);
        }
        let key = stage.chance.below(self.settings.keys);
        let draw = stage.chance.below(10);
        let levels = if draw < 5 { kind.reads } else { kind.writes };
        let level = levels[stage.chance.index(levels.len())];
        if self.book.busy.contains(&user) || world.process(machine).is_none() {
            return;
        }
        self.book.asked += 1;
        let deed = match draw {
            0..5 => Deed::Read,
            // Half of the keys are never deleted: their histories say more.
            5 if key % 2 == 1 => Deed::Write(None),
            _ => Deed::Write(Some(self.book.asked)),
        };
        self.book.busy.insert(user);
        self.begin(world, (machine, user), kind, format!("{}-{key}", kind.name), deed, level);
    }

    pub(super) fn begin(
        &mut self,
        world: &mut World,
        (machine, user): (usize, u64),
        kind: &Kind,
        key: String,
        deed: Deed,
        level: Level,
    ) {
        let Some(map) = self.roster.as_ref().and_then(|roster| roster.map(kind.name)) else {
            self.book.busy.remove(&user);
            return;
        };
        let coordinator = world.id(machine).expect("it was found running");
        self.book.numbers += 1;
        let id = self.book.numbers;
        let action = match deed {
            Deed::Read => Action::Read,
            Deed::Add(added) => Action::Add(added),
            Deed::Write(None) => Action::Delete,
            Deed::Write(Some(value)) => Action::Put { value: Bytes::from(value.to_string()), lifetime: None },
        };
        let operation = Operation {
            id,
            map,
            key: Bytes::from(key.clone()),
            level,
            fallback: kind.fallback,
            // Every user has an own pace.
            delay: Duration::from_millis(user % 4),
            action,
        };
        let at = world.now().0 as i64;
        let known = cell(world, machine).and_then(|it| it.cell().layout().cells().last());
        let latest = known.map_or(CellNumber::default(), |(number, _)| number);
        let asked = Asked { user, map: kind.name, promise: kind.promise, key, deed, at, coordinator, latest };
        self.book.under_way.insert(id, (machine, level, kind.fallback, asked));
        world.command(machine, Ask::Cell(Command::Operate(operation)));
    }

    /// A machine begins a new life: nobody hears any more of what the one before had under way, and its hints are gone.
    pub(super) fn forget(&mut self, machine: usize) {
        let Readers { book, check, counters: counted, .. } = self;
        let ended = book.under_way.extract_if(.., |_, (at, ..)| *at == machine);
        for (_, (.., asked)) in ended {
            book.busy.remove(&asked.user);
            if !counters::unknown(counted, &asked) {
                check.unknown(&asked);
            }
        }
    }

    /// A cell told its user something.
    pub(super) fn told(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        (machine, me): (usize, ProcessId),
        event: Event,
    ) -> Result<(), Violation> {
        match event {
            Event::Ended { id, outcome } => self.ended(world, id, outcome)?,
            Event::Lacks(_) => {
                world.count("hints given up");
                self.check.forgets(me);
            }
            Event::Scanned { id, outcome } => {
                return Err(Violation::new("outcome", format!("nobody asked for scan {id}: {outcome:?}")));
            }
            Event::Roster(roster) => self.learn(stage, world, machine, roster),
            Event::Changed { id, result } => self.operator.changed(world, id, result.is_ok()),
            Event::Wedged => {
                world.count("cell out");
                world.wipe_at_end(machine);
                world.stop_after(machine, Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn ended(&mut self, world: &mut World, id: u64, outcome: Outcome) -> Result<(), Violation> {
        let Some((_, level, fallback, asked)) = self.book.under_way.remove(&id) else {
            return Err(Violation::new("one answer", format!("operation {id} ends twice: {outcome:?}")));
        };
        self.book.busy.remove(&asked.user);
        let now = world.now().0 as i64;
        let told = match (&outcome, asked.deed) {
            (
                Outcome::Done { level, .. } | Outcome::Found { level, .. } | Outcome::Counted { level, .. },
                _,
            ) => Some(*level),
            _ => None,
        };
        if told.is_some_and(|told| told != level && Some(told) != fallback) {
            return Err(Violation::new("level", format!("{asked:?} at {level:?} ended in {outcome:?}")));
        }
        if told.is_some_and(|told| told != level) {
            world.count("fell back");
        }
        if let Outcome::Found { .. } = &outcome
            && asked.user >= self.settings.users
            && let Some(unread) = &mut self.unread
        {
            unread.remove(&asked.key);
        }
        if self.is_counter(&asked.key) && self.counted(world, &asked, &outcome)? {
            return Ok(());
        }
        match (outcome, asked.deed) {
            (Outcome::Done { stamp, level }, Deed::Write(value)) => {
                world.count(if value.is_some() { "written" } else { "deleted" });
                let latest = self.operator.latest_stamp(world, self.settings.skew_max());
                if level.is_quorum() && stamp.time > latest {
                    let what = format!("{asked:?} has {stamp:?}, and {latest} is the latest that may be");
                    return Err(Violation::new("skew", what));
                }
                self.check.wrote(&asked, value, (stamp, level.is_quorum()), now)?;
            }
            (Outcome::Found { value, .. }, Deed::Read) => {
                world.count("read");
                self.check.read(&asked, number(&value), now);
            }
            (Outcome::MaybeApplied, Deed::Write(_)) => {
                world.count("maybe applied");
                self.check.unknown(&asked);
            }
            (Outcome::NotApplied, Deed::Write(_)) => world.count("not applied"),
            (Outcome::Unanswered, Deed::Read) => world.count("unanswered"),
            (Outcome::Unavailable, _) => world.count("unavailable"),
            (Outcome::Rejected(Rejection::NoCell), _) => world.count("asked a spare"),
            (Outcome::Rejected(Rejection::NoMap), _) => world.count("asked too early"),
            (Outcome::Rejected(Rejection::Skewed), Deed::Write(_)) => world.count("skewed"),
            (outcome, _) => {
                return Err(Violation::new("outcome", format!("{asked:?} ended in {outcome:?}")));
            }
        }
        Ok(())
    }

    /// Has each key of the map with background repair read once, and says whether that is done.
    pub(super) fn read_everything(&mut self, stage: &mut Stage, world: &mut World) -> bool {
        let kind = MAPS.iter().find(|kind| kind.name == LOOSE).expect("it is one of them");
        let all = || self.check.keys(LOOSE).chain(self.counters.names(LOOSE)).cloned().collect();
        let unread = self.unread.get_or_insert_with(all).clone();
        // Each by a user of its own, beyond the usual ones.
        for (user, key) in (self.settings.users..).zip(&unread) {
            let machine = self.machines[stage.chance.index(self.machines.len())];
            self.begin(world, (machine, user), kind, key.clone(), Deed::Read, Level::All);
        }
        unread.is_empty()
    }
}
