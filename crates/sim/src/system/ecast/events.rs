//! Events of routers and members, and the checks on them.

use std::time::Duration;

use quorate_protocol::{
    ecast::{
        MemberCommand, MemberEvent, MessageId, Ordered, Outcome, Position, RefoundRefusal, RouterEvent,
        RouterRefusal,
    },
    wire::decode_body,
};
use quorate_world::Violation;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    EcastCommand, EcastEvent, EcastStage, EcastTimer, EcastWorkload, EcastWorld, Kind, PendingSubmission,
    generation, kind,
};
use crate::{
    check,
    system::rooms::{Floor, Say},
};

impl EcastWorkload {
    /// Handles an event that a process reported to its user.
    pub(super) fn on_event(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
        event: EcastEvent,
    ) -> Result<(), Violation> {
        match event {
            EcastEvent::Learned(position, learned) => self.learned(world, machine, position, learned)?,
            EcastEvent::Router(RouterEvent::Leader(leader)) => {
                if generation(world, machine) == self.orders.current() {
                    stage.routers.told_leader(world, leader);
                }
            }
            EcastEvent::Router(RouterEvent::Removed) => {
                world.count("removed process starts anew");
                world.wipe_at_end(machine);
                world.stop_after(machine, Duration::from_millis(1));
            }
            EcastEvent::Router(RouterEvent::Corrupt(why)) => {
                return Err(Violation::new(
                    "snapshot",
                    format!("the router on machine {machine} received a snapshot that it cannot read: {why}"),
                ));
            }
            EcastEvent::Router(RouterEvent::Routers(_) | RouterEvent::Config(..)) => {}
            EcastEvent::Router(RouterEvent::Reformed(reformed)) => {
                self.begin(stage, world, machine, &reformed)?
            }
            EcastEvent::Router(RouterEvent::Ended { result: Ok(()), .. }) => {}
            EcastEvent::Router(RouterEvent::Ended { result: Err(RouterRefusal::Refound(why)), .. }) => {
                world.count(match why {
                    RefoundRefusal::LeaderLives(_) => "refound refused: a leader is heard",
                    RefoundRefusal::Unfollowed { .. } => "refound refused: no majority",
                    _ => "refound refused",
                });
                self.operator.refused();
            }
            EcastEvent::Router(RouterEvent::Ended { result: Err(RouterRefusal::Reform(_)), .. }) => {
                world.count("reform refused");
                self.operator.refused();
            }
            EcastEvent::Router(RouterEvent::Ended { result: Err(_), .. }) => world.count("change refused"),
            EcastEvent::Submitted(content) => {
                if let Some(me) = world.id(machine) {
                    self.submissions.sent(me, content)?;
                    self.orders.submitted(me, content);
                }
            }
            EcastEvent::Member(event) => self.member_event(stage, world, machine, event)?,
        }
        Ok(())
    }

    /// Looks at a process between two batches.
    pub(super) fn watch_process(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        match kind(world, machine) {
            Some(Kind::Router(router)) => {
                let again = ("delivered again", router.resends());
                self.resend_counters.note(world, machine, again, false);
                self.look(stage, world, machine)?;
            }
            Some(Kind::Member(member)) => {
                let (again, starved) = (("submitted again", member.resends()), member.starved());
                self.resend_counters.note(world, machine, again, starved);
            }
            None => {}
        }
        Ok(())
    }

    /// Checks the position that a router calls stable, and notes the routers that this router reports.
    pub(super) fn look(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        let Some(Kind::Router(router)) = kind(world, machine) else { return Ok(()) };
        let (told_at, routers) = (router.log().applied().0, router.log().members().to_vec());
        let generation = router.generation();
        // The check of the new generation's order begins with the survivor's next report.
        let Some(order) = self.orders.of(generation) else { return Ok(()) };
        order.is_stable_through(world.life(machine), router.base())?;
        if generation == self.orders.current() {
            stage.routers.told_members(world, told_at, &routers, false)?;
        }
        Ok(())
    }

    /// Compares the messages that a router has learned with the order of its generation.
    pub(super) fn learned(
        &mut self,
        world: &mut EcastWorld,
        machine: usize,
        position: Position,
        learned: Vec<(Position, Ordered)>,
    ) -> Result<(), Violation> {
        let Some(order) = self.orders.of(generation(world, machine)) else {
            // The check of the new generation's order begins with the survivor's next report.
            self.operator.learned = (position, learned);
            return Ok(());
        };
        let learned = learned.iter().map(|(at, ordered)| (*at, ordered));
        for what in order.learned(world.life(machine), position, learned)? {
            world.count(what);
        }
        Ok(())
    }

    pub(super) fn member_event(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
        event: MemberEvent,
    ) -> Result<(), Violation> {
        let Some(me) = world.id(machine) else { return Ok(()) };
        let generation = generation(world, machine);
        let unknown = || {
            Violation::new(
                "silence before the cut",
                format!("process {me} received a message of {generation:?}, which has not begun"),
            )
        };
        match event {
            MemberEvent::Deliver { at, id, body, attachment, .. } => {
                let order = self.orders.of(generation).ok_or_else(unknown)?;
                order.check.delivered(me, at.0, (id.sender, id.number - 1), xxh3_64(&body))?;
                if let Some(mut attachment) = attachment {
                    let floor: Floor = decode_body(&mut attachment)
                        .map_err(|error| Violation::new("attachment", error.to_string()))?;
                    if id.sender != me || !floor.has(me) {
                        return Err(Violation::new(
                            "attachment",
                            format!(
                                "process {me} received a snapshot for its join that does not contain this \
                                 process"
                            ),
                        ));
                    }
                }
                let slower = if self.members[0] == machine { self.settings.sloth } else { 1 };
                let now = world.now();
                let busy = self.busy.entry(world.life(machine)).or_insert(now);
                *busy = now.max(*busy) + Duration::from_micros(self.settings.execute_micros) * slower;
                let executed = MemberCommand::Executed { through: at };
                world.command_after(machine, busy.since(now), EcastCommand::Member(executed));
                stage.after(world, busy.since(now), EcastTimer::Executed { who: me, through: at.0 });
            }
            MemberEvent::Injected { at, fits, .. } => {
                if fits {
                    world.count("injected");
                    self.orders.of(generation).ok_or_else(unknown)?.check.stamped(me, at.0)?;
                }
            }
            MemberEvent::Outcome { token, id, outcome } => {
                let pending = self.pending.remove(&(world.life(machine), token)).ok_or_else(|| {
                    Violation::new(
                        "one outcome",
                        format!(
                            "process {me} received the outcome {outcome:?} for message {id:?}, which \
                             already had an outcome"
                        ),
                    )
                })?;
                self.outcome(stage, world, pending, id, outcome)?;
                self.orders.outcome_heard(me, id.number - 1);
            }
            MemberEvent::NotSent { token } => {
                self.pending.remove(&(world.life(machine), token)).ok_or_else(|| {
                    Violation::new(
                        "one outcome",
                        format!(
                            "process {me} was told that its message {token} was not sent, but this message \
                             already had an outcome"
                        ),
                    )
                })?;
            }
            MemberEvent::NotInjected { .. } => world.count("not injected"),
            MemberEvent::Latest { .. }
            | MemberEvent::Rerouted
            | MemberEvent::Lead { .. }
            | MemberEvent::Adrift(_)
            | MemberEvent::WitnessWanted { .. } => {}
            MemberEvent::Wedged => {
                if !self.orders.is_out(self.orders.judge_of(generation), me) {
                    return Err(Violation::new(
                        "wedged",
                        format!("process {me} stopped as if it had been removed, but it is a member"),
                    ));
                }
                world.count("member wedged");
                world.stop_after(machine, Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn outcome(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        pending: PendingSubmission,
        id: MessageId,
        outcome: Outcome,
    ) -> Result<(), Violation> {
        let PendingSubmission { say, machine } = pending;
        world.count(match outcome {
            Outcome::Stable => "stable",
            Outcome::MaybeApplied => "maybe applied",
            Outcome::Rejected(_) => "rejected",
            Outcome::Wedged => "told to be wedged",
        });
        let generation = generation(world, machine);
        check::outcome(&mut self.orders, generation, id, say.class(), outcome)?;
        if outcome == Outcome::Stable && say == Say::Join {
            for room in 0..self.settings.rooms {
                if stage.chance.happens(0.5) {
                    self.say(world, machine, Say::Enter { room });
                }
            }
        }
        Ok(())
    }
}
