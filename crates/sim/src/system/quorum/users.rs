//! The requests of users to cells, and the answers.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    partial::{self, Action, CellNumber, Level, Operation, OperationOutcome, Rejection, resident::Event},
};
use quorate_world::Violation;

use super::{
    MapsWorkload, QuorumStage, QuorumTimer, QuorumWorld, counters, keys,
    settings::{LOOSE, MAPS, MapKind},
    world::{ask, cell},
};
use crate::check::quorum::{OperationKind, PendingOperation, number};

impl MapsWorkload {
    /// Makes users ask, one after another, until all operations have begun.
    pub(super) fn go_on_asking(&mut self, stage: &mut QuorumStage, world: &mut QuorumWorld) {
        if self.request_log.asked < self.settings.operations {
            self.ask(stage, world);
            self.ask_more(world);
            let pause = stage.chance.between(Duration::from_micros(100), self.pace);
            stage.after(world, pause, QuorumTimer::Ask);
        }
    }

    /// Makes an idle user ask some cell for an operation.
    fn ask(&mut self, stage: &mut QuorumStage, world: &mut QuorumWorld) {
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
        if self.request_log.busy.contains(&user) || world.process(machine).is_none() {
            return;
        }
        self.request_log.asked += 1;
        let deed = match draw {
            0..5 => OperationKind::Read,
            // Half of the keys are never deleted, because their histories prove more.
            _ if draw < 5 + self.settings.deletes && key % 2 == 1 => OperationKind::Write(None),
            _ => OperationKind::Write(Some(self.request_log.asked)),
        };
        self.request_log.busy.insert(user);
        self.begin(world, (machine, user), kind, format!("{}-{key}", kind.name), deed, level);
    }

    pub(super) fn begin(
        &mut self,
        world: &mut QuorumWorld,
        (machine, user): (usize, u64),
        kind: &MapKind,
        key: String,
        deed: OperationKind,
        level: Level,
    ) {
        let Some(map) = self.roster.as_ref().and_then(|roster| roster.map(kind.name)) else {
            self.request_log.busy.remove(&user);
            return;
        };
        let coordinator = world.id(machine).expect("it was found running");
        self.request_log.numbers += 1;
        let id = self.request_log.numbers;
        let (place, field) = keys::key_of(&key);
        // In seeds with small limits, zeros in front make values so long that users reach the limits. A
        // counter takes no zeros.
        let pads = self.padded && !self.is_counter(&key);
        let digits = |value: u64| Bytes::from(if pads { format!("{value:060}") } else { value.to_string() });
        let action = match (deed, field) {
            (OperationKind::Read, _) => Action::Read,
            (OperationKind::Add(added), _) => Action::Add(added),
            (OperationKind::Write(value), Some(field)) => Action::PutFields(vec![(field, value.map(digits))]),
            (OperationKind::Write(None), None) => Action::Delete,
            (OperationKind::Write(Some(value)), None) => {
                Action::Put { value: digits(value), lifetime: keys::expires(&key).then_some(keys::LIFE) }
            }
        };
        let operation = Operation {
            id,
            map,
            key: Bytes::from(place),
            level,
            fallback: kind.fallback,
            // Each user has its own pace.
            delay: Duration::from_millis(user % 4),
            action,
        };
        let at = world.now().0 as i64;
        let known = cell(world, machine).and_then(|it| it.cell().layout().cells().last());
        let latest = known.map_or(CellNumber::default(), |(number, _)| number);
        let asked = PendingOperation {
            user,
            map: kind.name,
            promise: kind.promise,
            key,
            deed,
            at,
            coordinator,
            latest,
        };
        self.request_log.under_way.insert(id, (machine, level, kind.fallback, asked));
        world.command(machine, ask(partial::Command::Operate(operation).into()));
    }

    /// Begins a new life of a machine: the open operations of the former life have unknown outcomes, and its
    /// hints are lost.
    pub(super) fn forget(&mut self, machine: usize) {
        let MapsWorkload { request_log, check, counters: counted, .. } = self;
        let ended = request_log.under_way.extract_if(.., |_, (at, ..)| *at == machine);
        request_log.scans.retain(|_, scan| scan.machine != machine);
        for (_, (.., asked)) in ended {
            request_log.busy.remove(&asked.user);
            if keys::expires(&asked.key) {
                continue;
            }
            if !counters::unknown(counted, &asked) {
                check.unknown(&asked);
            }
        }
    }

    /// Handles an event that a cell reported to its user.
    pub(super) fn on_event(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        (machine, me): (usize, ProcessId),
        event: Event,
    ) -> Result<(), Violation> {
        match event {
            Event::Cell(partial::Event::Ended { id, outcome }) => self.ended(world, id, outcome)?,
            Event::Cell(partial::Event::Lacks(_)) => {
                world.count("hints given up");
                self.check.forgets(me);
            }
            Event::Cell(partial::Event::Scanned { id, outcome }) => self.scanned(world, id, outcome)?,
            Event::Roster(roster) => self.learn(stage, world, machine, roster),
            Event::Changed { id, result } => self.operator.changed(world, id, result.is_ok()),
            // The cell's former life is still a member. The cell tries again until that life is removed.
            Event::NotAdmitted(_) => {}
            Event::Wedged => {
                world.count("cell out");
                world.wipe_at_end(machine);
                world.stop_after(machine, Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn ended(
        &mut self,
        world: &mut QuorumWorld,
        id: u64,
        outcome: OperationOutcome,
    ) -> Result<(), Violation> {
        let Some((_, level, fallback, asked)) = self.request_log.under_way.remove(&id) else {
            return Err(Violation::new(
                "one answer",
                format!("operation {id} ended a second time, with the outcome {outcome:?}"),
            ));
        };
        self.request_log.busy.remove(&asked.user);
        let now = world.now().0 as i64;
        let told = match (&outcome, asked.deed) {
            (
                OperationOutcome::Done { level, .. }
                | OperationOutcome::Found { level, .. }
                | OperationOutcome::Counted { level, .. },
                _,
            ) => Some(*level),
            _ => None,
        };
        if told.is_some_and(|told| told != level && Some(told) != fallback) {
            return Err(Violation::new(
                "level",
                format!(
                    "the operation {asked:?} was asked for at level {level:?}, but was done at another \
                     level: {outcome:?}"
                ),
            ));
        }
        if told.is_some_and(|told| told != level) {
            world.count("fell back");
        }
        // A read that fell back asked too few owners to repair all of them.
        if let OperationOutcome::Found { .. } = &outcome
            && told == Some(Level::All)
            && asked.user >= self.settings.users
            && let Some(unread) = &mut self.unread
        {
            unread.remove(&asked.key);
        }
        if self.is_counter(&asked.key) && self.counted(world, &asked, &outcome)? {
            return Ok(());
        }
        if keys::expires(&asked.key) {
            if let (OperationOutcome::Found { value, .. }, OperationKind::Read) = (&outcome, asked.deed)
                && let Some(value) = number(value)
            {
                world.count("found before its end");
                let life = keys::LIFE + self.operator.apart_max();
                return self.check.lives(&asked.key, value, asked.at, life.as_nanos() as i64);
            }
            return Ok(());
        }
        match (outcome, asked.deed) {
            (OperationOutcome::Done { stamp, level }, OperationKind::Write(value)) => {
                world.count(if value.is_some() { "written" } else { "deleted" });
                let latest = self.operator.latest_stamp(world, self.settings.skew_max());
                if level.is_quorum() && stamp.time > latest {
                    let what = format!(
                        "the write {asked:?} has the stamp {stamp:?}, but the latest time that a stamp may \
                         have is {latest}"
                    );
                    return Err(Violation::new("skew", what));
                }
                self.check.wrote(&asked, value, (stamp, level.is_quorum()), now)?;
            }
            (OperationOutcome::Found { value, .. }, OperationKind::Read) => {
                world.count("read");
                self.check.read(&asked, keys::number_of(&asked.key, &value), now);
            }
            (OperationOutcome::MaybeApplied, OperationKind::Write(_)) => {
                world.count("maybe applied");
                self.check.unknown(&asked);
            }
            (OperationOutcome::NotApplied, OperationKind::Write(_)) => world.count("not applied"),
            (OperationOutcome::Unanswered, OperationKind::Read) => world.count("unanswered"),
            (OperationOutcome::Unavailable, _) => world.count("unavailable"),
            (OperationOutcome::Rejected(Rejection::NoCell), _) => world.count("asked a spare"),
            (OperationOutcome::Rejected(Rejection::NoMap), _) => world.count("asked too early"),
            (OperationOutcome::Rejected(Rejection::Skewed), OperationKind::Write(_)) => world.count("skewed"),
            (
                OperationOutcome::Rejected(Rejection::TooLarge),
                OperationKind::Write(_) | OperationKind::Add(_),
            ) => world.count("too large"),
            (
                OperationOutcome::Rejected(Rejection::Full),
                OperationKind::Write(_) | OperationKind::Add(_),
            ) => world.count("no room"),
            (outcome, _) => {
                return Err(Violation::new(
                    "outcome",
                    format!("the operation {asked:?} ended with an outcome that it cannot have: {outcome:?}"),
                ));
            }
        }
        Ok(())
    }

    /// Reads each key of the map with background repair once. Returns whether that is done.
    pub(super) fn read_everything(&mut self, stage: &mut QuorumStage, world: &mut QuorumWorld) -> bool {
        let kind = MAPS
            .iter()
            .find(|kind| kind.name == LOOSE)
            .expect("the map with background repair is one of the maps");
        let all = || self.check.keys(LOOSE).chain(self.counters.names(LOOSE)).cloned().collect();
        let unread = self.unread.get_or_insert_with(all).clone();
        // Each of these reads is made by a user of its own, with a number above those of the workload's
        // users.
        for (user, key) in (self.settings.users..).zip(&unread) {
            let machine = self.machines[stage.chance.index(self.machines.len())];
            self.begin(world, (machine, user), kind, key.clone(), OperationKind::Read, Level::All);
        }
        unread.is_empty()
    }
}
