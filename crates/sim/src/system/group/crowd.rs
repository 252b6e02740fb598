//! The crowd: what members are asked, and what they tell.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, ProcessId,
    ecast::{Position, RouterEvent},
    group::{
        self, Command, Event, Failure, GroupId, Mark, Offer, Outcome, PackWriter, Phi, SeatId, Sending,
        Strength,
    },
};
use quorate_world::{Chance, Violation};

use super::{Ask, EXODUS, Kind, Settings, Stage, Timer, Told, World, kind};
use crate::{
    check::views::{ViewCheck, Word},
    mutation::Mutation,
};

/// The people behind the members.
pub(crate) struct Crowd {
    pub(super) settings: Settings,
    pub(super) members: Vec<usize>,
    pub(super) check: ViewCheck,
    /// What each process was asked and has not answered.
    pub(super) pending: BTreeMap<(ProcessId, u64), Asked>,
    /// Where each process stands in each group it has to do with.
    places: BTreeMap<(ProcessId, u64), Place>,
    /// The checkpoint files of machines, by group.
    files: BTreeMap<(usize, u64), (Mark, Bytes)>,
    /// The number of casts of other groups that each process heard.
    pub(super) unwanted: BTreeMap<ProcessId, u64>,
    asked: u64,
    pub(super) words: u64,
    pub(super) pace: Duration,
}

/// Something that a process was asked.
#[derive(Debug)]
pub(super) enum Asked {
    Join(u64),
    Leave(u64),
    /// With the group, and the words' numbers.
    Send(u64, RangeInclusive<u64>),
    /// With the group, the view, and what was delivered when it was asked.
    Flush(u64, Option<u64>, BTreeMap<ProcessId, u64>),
    /// With the group, whether it leaves then, and what was delivered when it was asked.
    Save(u64, bool, BTreeMap<ProcessId, u64>),
    Kept(u64, Mark),
}

/// Where a process stands in a group.
#[derive(Default)]
struct Place {
    inside: bool,
    /// It was asked to join, or to leave.
    moving: bool,
    /// It leaves once its last checkpoint is kept.
    closing: bool,
    /// How many words it was given to send, and how many of them before it joined.
    words: u64,
    since: u64,
    /// The place in the order that its words follow.
    follows: Position,
    /// Its members, and the last seat that it gave to one.
    seats: Vec<SeatId>,
    last: u32,
}

impl Place {
    /// Somebody more is a member here, or somebody less.
    fn stack(&mut self, chance: &mut Chance) {
        if self.seats.len() > 1 && (self.seats.len() == 4 || chance.below(2) == 0) {
            self.seats.remove(chance.index(self.seats.len()));
        } else {
            self.last += 1;
            self.seats.push(SeatId(self.last));
        }
    }
}

impl Crowd {
    pub(super) fn new(stage: &mut Stage, world: &mut World, settings: Settings) -> Crowd {
        stage.add_routers(world, settings.routers, 1);
        let members = stage.add_machines(world, settings.members);
        stage.after(world, Duration::from_millis(50), Timer::Talk);
        stage.after(world, Duration::from_millis(100), Timer::Watch);
        stage.after(world, EXODUS, Timer::Exodus);
        Crowd {
            members,
            check: ViewCheck::default(),
            pending: BTreeMap::new(),
            places: BTreeMap::new(),
            files: BTreeMap::new(),
            unwanted: BTreeMap::new(),
            asked: 0,
            words: 0,
            pace: stage.safety().mul_f64(1.6 / settings.words as f64),
            settings,
        }
    }

    fn ask(&mut self, world: &mut World, machine: usize, me: ProcessId, what: Asked, command: Command) {
        self.pending.insert((me, self.asked), what);
        world.command(machine, Ask::Member(command));
    }

    fn id(&mut self) -> CommandId {
        self.asked += 1;
        CommandId(self.asked)
    }

    /// Has each process join the groups that it is not in, and tells those of routers that know none.
    pub(super) fn watch(&mut self, stage: &Stage, world: &mut World) {
        for machine in self.members.clone() {
            let (Some(me), Some(Kind::Member(process))) = (world.id(machine), kind(world, machine)) else {
                continue;
            };
            let lost = process.order().leader().is_none_or(|leader| !world.alive(leader));
            if process.is_wedged() {
                continue;
            }
            if lost {
                world.command(machine, Ask::Member(Command::Seeds(stage.routers.living(world))));
            }
            for group in 0..self.settings.groups {
                let place = self.places.entry((me, group)).or_default();
                if !place.inside && !place.moving {
                    place.moving = true;
                    let id = self.id();
                    let checkpoint = self.files.get(&(machine, group)).map(|(mark, _)| *mark);
                    let offer =
                        Offer { checkpoint, forced: stage.mutation == Some(Mutation::StaleCheckpoint) };
                    let name = format!("group {group}");
                    let join = Command::Join { id, group: GroupId(group), name, offer };
                    self.ask(world, machine, me, Asked::Join(group), join);
                }
            }
        }
    }

    /// Whether a process has the members in a group that it said it has.
    pub(super) fn is_stacked(&self, me: ProcessId, group: u64, view: &group::View) -> bool {
        self.places.get(&(me, group)).is_some_and(|place| view.seats.of(me) == place.seats)
    }

    /// Somebody does something.
    pub(super) fn talk(&mut self, stage: &mut Stage, world: &mut World) {
        let machine = self.members[stage.chance.index(self.members.len())];
        let group = stage.chance.below(self.settings.groups);
        let Some(me) = world.id(machine) else { return };
        let inside = self.places.get(&(me, group)).is_some_and(|place| place.inside && !place.moving);
        if !inside {
            return;
        }
        match stage.chance.below(100) {
            0..2 => {
                let id = self.id();
                self.places.entry((me, group)).or_default().moving = true;
                let leave = Command::Leave { id, group: GroupId(group) };
                self.ask(world, machine, me, Asked::Leave(group), leave);
            }
            2..10 => {
                let id = self.id();
                let delivered = self.check.history(me, group).map(|it| it.last.clone()).unwrap_or_default();
                let flushes = Asked::Flush(group, self.check.view(me, group), delivered);
                self.ask(world, machine, me, flushes, Command::Flush { id, group: GroupId(group) });
            }
            10..12 => {
                let id = self.id();
                let delivered = self.check.history(me, group).map(|it| it.last.clone()).unwrap_or_default();
                let save = Command::Save { id, group: GroupId(group), last: false };
                self.ask(world, machine, me, Asked::Save(group, false, delivered), save);
            }
            12..14 => {
                let place = self.places.entry((me, group)).or_default();
                place.stack(&mut stage.chance);
                let seats = Command::Seats { group: GroupId(group), seats: place.seats.clone() };
                world.command(machine, Ask::Member(seats));
            }
            14..18 => {
                let at = self.check.safe_at(me, group);
                self.places.entry((me, group)).or_default().follows = at;
                if stage.mutation != Some(Mutation::FollowsNothing) {
                    world.command(machine, Ask::Member(Command::Follow { group: GroupId(group), at }));
                }
            }
            _ => {
                for _ in 0..=stage.chance.below(4) {
                    let strength = match stage.chance.below(20) {
                        0..12 => Strength::Soft,
                        12..16 => Strength::Ordered,
                        16..18 => Strength::Safe(Phi::All),
                        18 => Strength::Safe(Phi::Majority),
                        _ => Strength::Safe(Phi::Count(1)),
                    };
                    let safe = matches!(strength, Strength::Safe(_));
                    let place = self.places.entry((me, group)).or_default();
                    let (since, follows, first) = (place.since, place.follows, place.words + 1);
                    let mut pack = PackWriter::default();
                    for _ in 0..=stage.chance.below(3) {
                        place.words += 1;
                        let number = place.words;
                        pack.push(&Word { sender: me, number, since, safe, follows }.encode());
                    }
                    let numbers = first..=place.words;
                    self.words += u64::from(pack.count());
                    let (id, pack) = (self.id(), pack.finish().expect("it has a word"));
                    let send = Command::Send(vec![Sending { id, group: GroupId(group), strength, pack }]);
                    self.ask(world, machine, me, Asked::Send(group, numbers), send);
                }
            }
        }
    }

    /// All members leave a group, or die.
    pub(super) fn exodus(&mut self, stage: &mut Stage, world: &mut World) {
        if stage.chance.happens(0.5) {
            world.count("all die");
            for machine in &self.members {
                let delay = stage.chance.between(Duration::ZERO, Duration::from_millis(20));
                world.stop_after(*machine, delay);
            }
            return;
        }
        world.count("all leave");
        let group = stage.chance.below(self.settings.groups);
        for machine in self.members.clone() {
            let Some(me) = world.id(machine) else { continue };
            let place = self.places.entry((me, group)).or_default();
            if place.inside && !place.moving {
                place.moving = true;
                let id = self.id();
                let delivered = self.check.history(me, group).map(|it| it.last.clone()).unwrap_or_default();
                let save = Command::Save { id, group: GroupId(group), last: true };
                self.ask(world, machine, me, Asked::Save(group, true, delivered), save);
            }
        }
    }

    fn leave(&mut self, world: &mut World, machine: usize, me: ProcessId, group: u64) {
        let id = self.id();
        self.ask(world, machine, me, Asked::Leave(group), Command::Leave { id, group: GroupId(group) });
    }

    /// A process was refused because a newer checkpoint is known.
    fn refused(
        &mut self,
        world: &mut World,
        (machine, me): (usize, ProcessId),
        asked: &Asked,
        newest: Mark,
    ) -> Result<(), Violation> {
        world.count("stale checkpoint refused");
        let Asked::Join(group) = *asked else {
            return Err(Violation::new("one outcome", format!("{me}: {asked:?} was refused as stale")));
        };
        let own = self.files.get(&(machine, group)).map(|(mark, _)| *mark);
        if own >= Some(newest) {
            let what = format!("{me} with {own:?} was refused: {newest} is known");
            return Err(Violation::new("checkpoints", what));
        }
        self.places.entry((me, group)).or_default().moving = false;
        Ok(())
    }

    /// A process told its user something.
    pub(super) fn told(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        told: Told,
    ) -> Result<(), Violation> {
        match told {
            Told::Router(RouterEvent::Leader(leader)) => stage.routers.told_leader(world, leader),
            Told::Router(RouterEvent::Removed) => {
                world.count("removed process starts anew");
                world.stop_after(machine, Duration::from_millis(1));
            }
            Told::Router(RouterEvent::Corrupt(why)) => {
                return Err(Violation::new("snapshot", format!("machine {machine}: {why}")));
            }
            Told::Router(_) => {}
            Told::Member(event) => {
                if let Some(me) = world.id(machine) {
                    self.member_told(stage, world, (machine, me), event)?;
                }
            }
        }
        Ok(())
    }

    fn member_told(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        (machine, me): (usize, ProcessId),
        event: Event,
    ) -> Result<(), Violation> {
        match event {
            Event::Done { id, result } => {
                let asked = self.pending.remove(&(me, id.0)).ok_or_else(|| {
                    Violation::new("one outcome", format!("{me} was told {result:?} of {id:?} twice"))
                })?;
                match result {
                    Ok(outcome) => self.done(world, (machine, me), asked, outcome)?,
                    Err(Failure::Stale(newest)) => self.refused(world, (machine, me), &asked, newest)?,
                    // It left, or is dropped, of which more is heard.
                    Err(Failure::NotMember) if matches!(asked, Asked::Save(_, false, _)) => {}
                    Err(_) if matches!(asked, Asked::Kept(..)) => {}
                    Err(Failure::OutOfTouch) => {
                        world.count("turned back out of touch");
                        if let Asked::Send(group, numbers) = asked {
                            numbers.for_each(|number| self.check.turned_back(me, group, number));
                        }
                    }
                    // At a process that is dropped, of which no more is heard.
                    Err(Failure::Wedged | Failure::MaybeApplied | Failure::NotSent) => self.check.ended(me),
                    Err(failure) => {
                        let what = format!("{me}: {asked:?} failed: {failure}");
                        return Err(Violation::new("one outcome", what));
                    }
                }
            }
            Event::Sent { id, first } => {
                let asked = self.pending.remove(&(me, id.0));
                let Some(Asked::Send(_, numbers)) = &asked else {
                    let what = format!("{me} was told that {id:?} was sent, which is {asked:?}");
                    return Err(Violation::new("one outcome", what));
                };
                numbers.clone().for_each(|_| world.count("sent"));
                if numbers.clone().count() > 1 {
                    world.count(match first {
                        group::Place::Soft(_) => "soft in a pack",
                        group::Place::Ordered(..) => "ordered in a pack",
                    });
                }
            }
            Event::Restore { group, state } => {
                let file = self.files.get(&(machine, group.0)).filter(|_| state.is_none());
                world.count(match (&state, file) {
                    (Some(_), _) => "state arrived",
                    (None, Some(_)) => "began from a checkpoint",
                    (None, None) => "fresh state",
                });
                if state.is_none() {
                    self.check.begins(me, group.0, file.map(|(mark, _)| *mark));
                }
                self.check.restored(me, group.0, state.or(file.map(|(_, state)| state.clone())))?;
            }
            Event::Keep { group, checkpoint } => {
                let history = self.check.history(me, group.0).cloned().unwrap_or_default();
                self.check.written(group.0, checkpoint, &history)?;
                self.files.insert((machine, group.0), (checkpoint, history.encode()));
                if stage.chance.happens(0.2) {
                    // Its host never gets to say so.
                    world.count("checkpoint untold");
                } else {
                    let id = self.id();
                    let kept = Command::Kept { id, group, checkpoint };
                    self.ask(world, machine, me, Asked::Kept(group.0, checkpoint), kept);
                }
            }
            Event::View { group, view, arrived, departed, missing, .. } => {
                world.count("view");
                if !missing.is_empty() {
                    world.count("safe without its predecessors");
                }
                if arrived.len() > view.joined.len() {
                    world.count("a second member in a process");
                }
                if view.joined.len() > 1 {
                    world.count("several joined at once");
                }
                self.check.began(me, group.0, &view, (&arrived, &departed), &missing)?;
            }
            Event::CheckpointWanted { group, view } => {
                let history = self.check.history(me, group.0).cloned().unwrap_or_default();
                let forgets = stage.mutation == Some(Mutation::StateBehind);
                let history = if forgets { Default::default() } else { history };
                let checkpoint = Command::Checkpoint { group, view, state: history.encode() };
                world.command_after(machine, Duration::from_millis(5), Ask::Member(checkpoint));
            }
            Event::Deliver { group, sender, updates } => {
                for (place, body) in updates.iter() {
                    self.check.delivered(me, group.0, (sender, place), Bytes::copy_from_slice(body))?;
                }
            }
            Event::Said { .. } => unreachable!("nobody here says anything past the views"),
            Event::InTouch(in_touch) => {
                world.count(if in_touch { "in touch again" } else { "out of touch" });
                self.check.touched(me, in_touch);
            }
            Event::Figures { .. } => {}
            Event::Wedged => {
                world.count("member wedged");
                self.check.ended(me);
                world.stop_after(machine, Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn done(
        &mut self,
        world: &mut World,
        (machine, me): (usize, ProcessId),
        asked: Asked,
        outcome: Outcome,
    ) -> Result<(), Violation> {
        match (asked, outcome) {
            (Asked::Join(group), Outcome::Joined) => {
                world.count("joined");
                let place = self.places.entry((me, group)).or_default();
                (place.inside, place.moving, place.since) = (true, false, place.words);
                (place.seats, place.last) = (vec![SeatId(0)], 0);
            }
            (Asked::Leave(group), Outcome::Left) => {
                world.count("left");
                let place = self.places.entry((me, group)).or_default();
                (place.inside, place.moving) = (false, false);
                self.check.left(me, group);
            }
            (Asked::Flush(group, view, delivered), Outcome::Flushed) => {
                world.count("flushed");
                self.check.keep(group, view, delivered)?;
            }
            (Asked::Save(group, leaves, delivered), Outcome::Marked(mark)) => {
                self.check.covered(group, mark, &delivered)?;
                let waits =
                    |asked: &Asked| matches!(asked, Asked::Kept(of, kept) if *of == group && *kept >= mark);
                if leaves && self.pending.range((me, 0)..=(me, u64::MAX)).any(|(_, asked)| waits(asked)) {
                    self.places.entry((me, group)).or_default().closing = true;
                } else if leaves {
                    self.leave(world, machine, me, group);
                }
            }
            (Asked::Kept(group, mark), Outcome::Kept) => {
                world.count("checkpoint kept");
                self.check.confirmed(group, mark);
                if std::mem::take(&mut self.places.entry((me, group)).or_default().closing) {
                    self.leave(world, machine, me, group);
                }
            }
            (asked, outcome) => {
                return Err(Violation::new("one outcome", format!("{me}: {asked:?} ended in {outcome:?}")));
            }
        }
        Ok(())
    }
}
