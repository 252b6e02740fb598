//! The workload of groups: the requests to members, and their reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, ProcessId,
    ecast::RouterEvent,
    group::{
        self, Command, CommandOutcome, Event, Failure, GroupId, Mark, Offer, PackWriter, Phi, SendStrength,
        Sending,
    },
};
use quorate_world::Violation;

use super::{
    Settings,
    status::{GroupStatus, PendingRequest},
    world::{GroupEvent, GroupStage, GroupTimer, GroupWorld, ask, member},
};
use crate::{
    check::views::{GroupMessage, ViewCheck},
    mutation::Mutation,
};

/// The users behind the members.
pub(crate) struct GroupWorkload {
    pub(super) settings: Settings,
    pub(in crate::system) members: Vec<usize>,
    pub(super) check: ViewCheck,
    /// The unanswered requests, by process and id.
    pub(super) pending: BTreeMap<(ProcessId, u64), PendingRequest>,
    /// Requests that were open when the workload commanded their process to quit the group.
    pub(super) quitting: BTreeSet<(ProcessId, u64)>,
    /// The status of each process in each group that it uses.
    pub(super) places: BTreeMap<(ProcessId, u64), GroupStatus>,
    /// The checkpoint files of machines, by group.
    files: BTreeMap<(usize, u64), (Mark, Bytes)>,
    /// The number of casts that each process received of groups to which it does not belong.
    pub(super) unwanted: BTreeMap<ProcessId, u64>,
    asked: u64,
    pub(super) words: u64,
    pub(super) pace: Duration,
}

impl GroupWorkload {
    pub(super) fn new(stage: &mut GroupStage, world: &mut GroupWorld, settings: Settings) -> GroupWorkload {
        stage.add_routers(world, settings.routers, 1);
        let members = stage.add_machines(world, settings.members);
        stage.after(world, Duration::from_millis(50), GroupTimer::Talk);
        stage.after(world, Duration::from_millis(100), GroupTimer::Watch);
        stage.after(world, EXODUS, GroupTimer::Exodus);
        GroupWorkload {
            members,
            check: ViewCheck::new(stage.mutation),
            pending: BTreeMap::new(),
            quitting: BTreeSet::new(),
            places: BTreeMap::new(),
            files: BTreeMap::new(),
            unwanted: BTreeMap::new(),
            asked: 0,
            words: 0,
            pace: stage.safety().mul_f64(1.6 / settings.words as f64),
            settings,
        }
    }

    fn ask(
        &mut self,
        world: &mut GroupWorld,
        machine: usize,
        me: ProcessId,
        what: PendingRequest,
        command: Command,
    ) {
        self.pending.insert((me, self.asked), what);
        world.command(machine, ask(command));
    }

    fn id(&mut self) -> CommandId {
        self.asked += 1;
        CommandId(self.asked)
    }

    /// Makes each process join the groups that it is not in, and gives routers to processes that know none.
    pub(super) fn watch(&mut self, stage: &GroupStage, world: &mut GroupWorld) {
        for machine in self.members.clone() {
            let (Some(me), Some(process)) = (world.id(machine), member(world, machine)) else {
                continue;
            };
            let lost = process.order().leader().is_none_or(|leader| !world.alive(leader));
            if process.is_wedged() {
                continue;
            }
            if lost {
                world.command(machine, ask(Command::Seeds(stage.routers.living(world))));
            }
            for group in 0..self.settings.groups {
                let place = self.places.entry((me, group)).or_default();
                // By this step, the host has applied its inbox.
                place.inbox = 0;
                if place.may_join() {
                    self.join(stage, world, (machine, me), group);
                }
            }
        }
    }

    pub(super) fn join(
        &mut self,
        stage: &GroupStage,
        world: &mut GroupWorld,
        (machine, me): (usize, ProcessId),
        group: u64,
    ) {
        self.places.entry((me, group)).or_default().moving = true;
        let id = self.id();
        let checkpoint = self.files.get(&(machine, group)).map(|(mark, _)| *mark);
        let offer = Offer { checkpoint, forced: stage.mutation == Some(Mutation::StaleCheckpoint) };
        let name = format!("group {group}");
        let join = Command::Join { id, group: GroupId(group), name, offer };
        self.ask(world, machine, me, PendingRequest::Join(group), join);
    }

    /// Whether a process has exactly the requested members in a group.
    pub(super) fn is_stacked(&self, me: ProcessId, group: u64, view: &group::View) -> bool {
        self.places.get(&(me, group)).is_some_and(|place| view.seats.of(me) == place.seats)
    }

    /// Lets a random member act.
    pub(super) fn talk(&mut self, stage: &mut GroupStage, world: &mut GroupWorld) {
        let machine = self.members[stage.chance.index(self.members.len())];
        let group = stage.chance.below(self.settings.groups);
        let Some(me) = world.id(machine) else { return };
        let Some(place) = self.places.get(&(me, group)) else { return };
        // Steps find a joining member many times before it is inside, so a joining member quits with a
        // smaller probability at each step.
        let one_of = if place.inside { 50 } else { 200 };
        if place.may_quit() && stage.chance.below(one_of) == 0 {
            return self.quit(world, (machine, me), group);
        }
        if !place.is_settled() {
            return;
        }
        match stage.chance.below(100) {
            0..2 => {
                let id = self.id();
                self.places.entry((me, group)).or_default().moving = true;
                let leave = Command::Leave { id, group: GroupId(group) };
                self.ask(world, machine, me, PendingRequest::Leave(group), leave);
            }
            2..10 => {
                let id = self.id();
                let delivered = self.check.history(me, group).map(|it| it.last.clone()).unwrap_or_default();
                let flushes = PendingRequest::Flush(group, self.check.view(me, group), delivered);
                self.ask(world, machine, me, flushes, Command::Flush { id, group: GroupId(group) });
            }
            10..12 => {
                let id = self.id();
                let delivered = self.check.history(me, group).map(|it| it.last.clone()).unwrap_or_default();
                let save = Command::Save { id, group: GroupId(group), last: false };
                self.ask(world, machine, me, PendingRequest::Save(group, false, delivered), save);
            }
            12..14 => {
                let place = self.places.entry((me, group)).or_default();
                place.stack(&mut stage.chance);
                let seats = Command::Seats { group: GroupId(group), seats: place.seats.clone() };
                world.command(machine, ask(seats));
            }
            14..18 => {
                let at = self.check.safe_at(me, group);
                self.places.entry((me, group)).or_default().follows = at;
                if stage.mutation != Some(Mutation::FollowsNothing) {
                    world.command(machine, ask(Command::Follow { group: GroupId(group), at }));
                }
            }
            _ => {
                for _ in 0..=stage.chance.below(4) {
                    let strength = match stage.chance.below(20) {
                        0..12 => SendStrength::Soft,
                        12..16 => SendStrength::Ordered,
                        16..18 => SendStrength::Safe(Phi::All),
                        18 => SendStrength::Safe(Phi::Majority),
                        _ => SendStrength::Safe(Phi::Count(1)),
                    };
                    let safe = if let SendStrength::Safe(phi) = strength { Some(phi) } else { None };
                    let place = self.places.entry((me, group)).or_default();
                    let (since, follows, first) = (place.since, place.follows, place.words + 1);
                    let mut pack = PackWriter::default();
                    for _ in 0..=stage.chance.below(3) {
                        place.words += 1;
                        let number = place.words;
                        let takes_turn = strength != SendStrength::Soft && stage.chance.happens(0.3);
                        let lock_change = takes_turn.then(|| place.lock_change(&mut stage.chance));
                        let padding = " ".repeat(stage.chance.index(self.settings.padding() + 1));
                        let word =
                            GroupMessage { sender: me, number, since, safe, lock_change, follows, padding };
                        pack.push(&word.encode());
                    }
                    let numbers = first..=place.words;
                    self.words += u64::from(pack.count());
                    let (id, pack) = (self.id(), pack.finish().expect("a pack has at least one message"));
                    let send = Command::Send(vec![Sending { id, group: GroupId(group), strength, pack }]);
                    self.ask(world, machine, me, PendingRequest::Send(group, numbers), send);
                }
            }
        }
    }

    /// Makes all members leave a group, or die.
    pub(super) fn empty_group(&mut self, stage: &mut GroupStage, world: &mut GroupWorld) {
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
            if place.is_settled() {
                place.moving = true;
                let id = self.id();
                let delivered = self.check.history(me, group).map(|it| it.last.clone()).unwrap_or_default();
                let save = Command::Save { id, group: GroupId(group), last: true };
                self.ask(world, machine, me, PendingRequest::Save(group, true, delivered), save);
            }
        }
    }

    fn leave(&mut self, world: &mut GroupWorld, machine: usize, me: ProcessId, group: u64) {
        if self.places.get(&(me, group)).is_some_and(|place| place.quits) {
            return;
        }
        let id = self.id();
        self.ask(
            world,
            machine,
            me,
            PendingRequest::Leave(group),
            Command::Leave { id, group: GroupId(group) },
        );
    }

    /// Handles the refusal of a join because a newer checkpoint is known.
    fn refused(
        &mut self,
        world: &mut GroupWorld,
        (machine, me): (usize, ProcessId),
        asked: &PendingRequest,
        newest: Mark,
    ) -> Result<(), Violation> {
        world.count("stale checkpoint refused");
        let PendingRequest::Join(group) = *asked else {
            return Err(Violation::new(
                "one outcome",
                format!(
                    "the request {asked:?} of process {me} was refused because of a stale checkpoint, but \
                     only a join may be refused so"
                ),
            ));
        };
        let own = self.files.get(&(machine, group)).map(|(mark, _)| *mark);
        if own >= Some(newest) {
            let what = format!(
                "the join of process {me} with its checkpoint {own:?} was refused as stale, although the \
                 newest known checkpoint, {newest}, is not newer"
            );
            return Err(Violation::new("checkpoints", what));
        }
        self.places.entry((me, group)).or_default().moving = false;
        Ok(())
    }

    /// Handles an event that a process reported to its user.
    pub(super) fn on_event(
        &mut self,
        stage: &mut GroupStage,
        world: &mut GroupWorld,
        machine: usize,
        told: GroupEvent,
    ) -> Result<(), Violation> {
        let before = self.check.grants;
        self.take(stage, world, machine, told)?;
        let (words, views) = self.check.grants;
        (before.0..words).for_each(|_| world.count("lock granted"));
        (before.1..views).for_each(|_| world.count("lock granted by a view"));
        Ok(())
    }

    fn take(
        &mut self,
        stage: &mut GroupStage,
        world: &mut GroupWorld,
        machine: usize,
        told: GroupEvent,
    ) -> Result<(), Violation> {
        match told {
            GroupEvent::Router(RouterEvent::Leader(leader)) => stage.routers.told_leader(world, leader),
            GroupEvent::Router(RouterEvent::Removed) => {
                world.count("removed process starts anew");
                world.stop_after(machine, Duration::from_millis(1));
            }
            GroupEvent::Router(RouterEvent::Corrupt(why)) => {
                return Err(Violation::new(
                    "snapshot",
                    format!("the router on machine {machine} received a snapshot that it cannot read: {why}"),
                ));
            }
            GroupEvent::Router(_) => {}
            GroupEvent::Member(event) => {
                if let Some(me) = world.id(machine) {
                    self.member_told(stage, world, (machine, me), event)?;
                }
            }
        }
        Ok(())
    }

    fn member_told(
        &mut self,
        stage: &mut GroupStage,
        world: &mut GroupWorld,
        (machine, me): (usize, ProcessId),
        event: Event,
    ) -> Result<(), Violation> {
        match event {
            Event::Done { id, result } => {
                let asked = self.pending.remove(&(me, id.0)).ok_or_else(|| {
                    Violation::new(
                        "one outcome",
                        format!(
                            "process {me} received the result {result:?} for request {id:?}, which already \
                             had a result"
                        ),
                    )
                })?;
                let quits = self.quitting.remove(&(me, id.0));
                match result {
                    Ok(outcome) => self.done(world, (machine, me), asked, outcome)?,
                    Err(Failure::Stale(newest)) => self.refused(world, (machine, me), &asked, newest)?,
                    // The process left, or routers dropped it; a later event reports which.
                    Err(Failure::NotMember) if matches!(asked, PendingRequest::Save(_, false, _)) => {}
                    Err(_) if matches!(asked, PendingRequest::Kept(..)) => {}
                    Err(Failure::OutOfTouch) => {
                        world.count("turned back out of touch");
                        self.unsent(me, &asked);
                    }
                    Err(Failure::Full(_)) if matches!(asked, PendingRequest::Send(..)) => {
                        world.count("too many sends");
                        self.unsent(me, &asked);
                    }
                    Err(Failure::Behind(_)) if matches!(asked, PendingRequest::Join(_)) => {
                        world.count("joiner falls behind");
                        self.check.left(me, asked.group());
                        self.places.entry((me, asked.group())).or_default().moving = false;
                    }
                    Err(failure) if quits => self.ended_by_quit(world, me, &asked, failure)?,
                    // Routers dropped the process, so it reports nothing more.
                    Err(Failure::Wedged | Failure::MaybeApplied | Failure::NotSent) => self.check.ended(me),
                    Err(failure) => {
                        let what = format!(
                            "the request {asked:?} of process {me} failed, and nothing explains this \
                             failure: {failure}"
                        );
                        return Err(Violation::new("one outcome", what));
                    }
                }
            }
            Event::Sent { id, first } => {
                let asked = self.pending.remove(&(me, id.0));
                self.quitting.remove(&(me, id.0));
                let Some(PendingRequest::Send(_, numbers)) = &asked else {
                    let what = format!(
                        "process {me} was told that request {id:?} was sent, but no open send has this id; \
                         the open request is {asked:?}"
                    );
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
                    // The host never reports this checkpoint to the process.
                    world.count("checkpoint untold");
                } else {
                    let id = self.id();
                    let kept = Command::Kept { id, group, checkpoint };
                    self.ask(world, machine, me, PendingRequest::Kept(group.0, checkpoint), kept);
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
                let joins = self.places.get(&(me, group.0)).is_none_or(|place| !place.inside);
                self.check.began(me, group.0, &view, (&arrived, &departed), &missing, joins)?;
            }
            Event::CheckpointWanted { group, view } => {
                let history = self.check.history(me, group.0).cloned().unwrap_or_default();
                let forgets = stage.mutation == Some(Mutation::StateBehind);
                let history = if forgets { Default::default() } else { history };
                // Padding behind the state makes it long enough for several pieces.
                let mut state = history.encode().to_vec();
                state.resize(state.len() + stage.chance.index(2_000), 0);
                let checkpoint = Command::Checkpoint { group, view, state: state.into() };
                let delay = match stage.chance.below(20) {
                    0..16 => Duration::from_millis(5),
                    16..19 => stage.chance.between(Duration::ZERO, Duration::from_millis(1_500)),
                    // The host hands over its state only after the faults have ended.
                    _ => {
                        let left = stage.safety().saturating_sub(Duration::from_nanos(world.now().0));
                        left + Duration::from_millis(100)
                    }
                };
                if delay > Duration::from_secs(1) {
                    world.count("slow giver");
                }
                world.command_after(machine, delay, ask(checkpoint));
            }
            Event::ProgressWanted { group } => {
                let most = Duration::from_millis(if stage.seed.is_multiple_of(3) { 300 } else { 5 });
                let delay = stage.chance.between(Duration::ZERO, most);
                world.command_after(machine, delay, ask(Command::Progress { group }));
            }
            Event::Deliver { group, sender, updates } => {
                let place = self.places.entry((me, group.0)).or_default();
                let joins = !place.inside;
                place.inbox += updates.bytes();
                if place.inbox > self.settings.inbox_bytes_max(stage.seed) && place.may_quit() {
                    world.count("inbox full");
                    self.quit(world, (machine, me), group.0);
                }
                for (place, body) in updates.iter() {
                    let body = Bytes::copy_from_slice(body);
                    self.check.delivered(me, group.0, (sender, place), body, joins)?;
                }
            }
            Event::Said { .. } => unreachable!("the simulated members send no messages outside of views"),
            Event::InTouch(in_touch) => {
                world.count(if in_touch { "in touch again" } else { "out of touch" });
                self.check.touched(me, in_touch);
            }
            Event::Figures { token, .. } => self.has_quit(stage, world, (machine, me), token)?,
            Event::Wedged => {
                world.count("member wedged");
                self.check.ended(me);
                world.stop_after(machine, Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Notes that a send was refused: nobody delivers it.
    pub(super) fn unsent(&mut self, me: ProcessId, asked: &PendingRequest) {
        if let PendingRequest::Send(group, numbers) = asked {
            numbers.clone().for_each(|number| self.check.unsent(me, *group, number));
        }
    }

    fn done(
        &mut self,
        world: &mut GroupWorld,
        (machine, me): (usize, ProcessId),
        asked: PendingRequest,
        outcome: CommandOutcome,
    ) -> Result<(), Violation> {
        match (asked, outcome) {
            (PendingRequest::Join(group), CommandOutcome::Joined) => {
                world.count("joined");
                self.places.entry((me, group)).or_default().enter();
            }
            (PendingRequest::Leave(group), CommandOutcome::Left) => {
                world.count("left");
                let place = self.places.entry((me, group)).or_default();
                (place.inside, place.moving) = (false, false);
                self.check.left(me, group);
            }
            (PendingRequest::Flush(group, view, delivered), CommandOutcome::Flushed) => {
                world.count("flushed");
                self.check.keep(group, view, delivered)?;
            }
            (PendingRequest::Save(group, leaves, delivered), CommandOutcome::Marked(mark)) => {
                self.check.covered(group, mark, &delivered)?;
                let waits = |asked: &PendingRequest| matches!(asked, PendingRequest::Kept(of, kept) if *of == group && *kept >= mark);
                if leaves && self.pending.range((me, 0)..=(me, u64::MAX)).any(|(_, asked)| waits(asked)) {
                    self.places.entry((me, group)).or_default().closing = true;
                } else if leaves {
                    self.leave(world, machine, me, group);
                }
            }
            (PendingRequest::Kept(group, mark), CommandOutcome::Kept) => {
                world.count("checkpoint kept");
                self.check.confirmed(group, mark);
                if std::mem::take(&mut self.places.entry((me, group)).or_default().closing) {
                    self.leave(world, machine, me, group);
                }
            }
            (asked, outcome) => {
                return Err(Violation::new(
                    "one outcome",
                    format!(
                        "the request {asked:?} of process {me} ended with the outcome of another kind of \
                         request: {outcome:?}"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Interval at which all members leave a group, or die.
pub(super) const EXODUS: Duration = Duration::from_millis(1_900);
