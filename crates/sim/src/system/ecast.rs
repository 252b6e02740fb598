//! E-Cast whole: routers that order and route, members that submit, deliver and confirm, and rooms in which
//! they talk.
//!
//! Members join, enter rooms, talk, and are killed; other members report the dead. Routers come and go as in
//! [`paxos`](super::paxos). The seven predicates of correct routing are judged against a naive twin of the
//! routing.

mod end;
mod events;
mod operator;
pub(crate) mod process;
mod settings;
mod talk;
mod workload;
pub(crate) mod world;

pub use settings::Settings;

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Peer, ProcessId, Time,
    ecast::{Fence, MemberCommand, RouterCommand},
    paxos::{Change, Corrupt, Paxos},
};
use quorate_world::Violation;

use crate::{stage::Workload, system::rooms::Say};
use process::{EcastCommand, EcastEvent, Kind, Process};
pub(crate) use workload::{EcastWorkload, PendingSubmission};
use world::{EcastStage, EcastTimer, EcastWorld, fence, generation, kind};

impl Workload for EcastWorkload {
    const NAME: &'static str = "ecast";
    const SCENARIOS: &'static [(&'static str, &'static str)] = &[
        ("ecast", include_str!("../../../../scenarios/ecast.toml")),
        ("ecast_disk", include_str!("../../../../scenarios/ecast_disk.toml")),
        ("refound", include_str!("../../../../scenarios/refound.toml")),
        ("reform", include_str!("../../../../scenarios/reform.toml")),
    ];

    type Settings = Settings;
    type Process = Process;
    type Timer = EcastTimer;

    fn new(stage: &mut EcastStage, world: &mut EcastWorld, settings: Settings) -> Self {
        EcastWorkload::gather(stage, world, settings)
    }

    fn log_recovery(&self, me: Peer, records: Vec<Bytes>, now: Time) -> Result<(), Corrupt> {
        Paxos::recover(me, self.router_settings.paxos.clone(), records, now).map(drop)
    }

    fn start(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
        id: ProcessId,
    ) -> Process {
        self.process(stage, world, machine, id)
    }

    fn act(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        timer: EcastTimer,
    ) -> Result<(), Violation> {
        match timer {
            EcastTimer::Talk if self.words < self.settings.words => {
                self.talk(stage, world);
                let pause = stage.chance.between(Duration::from_micros(100), self.pace);
                stage.after(world, pause, EcastTimer::Talk);
            }
            EcastTimer::Talk => {}
            EcastTimer::Watch => {
                self.watch(stage, world);
                stage.after(world, Duration::from_millis(100), EcastTimer::Watch);
            }
            EcastTimer::Operate => {
                self.operate(stage, world);
                stage.after(world, Duration::from_millis(100), EcastTimer::Operate);
            }
            EcastTimer::Join(machine) => {
                self.say(world, machine, Say::Join);
                world.command(
                    machine,
                    EcastCommand::Member(MemberCommand::Seeds(stage.routers.living(world))),
                );
            }
            EcastTimer::Executed { who, through } => {
                if let Some(credits) = &mut self.orders.last().credits {
                    credits.executed(who, through);
                }
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        on: usize,
        told: EcastEvent,
    ) -> Result<(), Violation> {
        self.on_event(stage, world, on, told)
    }

    fn stepped(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        self.watch_process(stage, world, machine)
    }

    fn settled(&mut self, stage: &mut EcastStage, world: &mut EcastWorld) -> bool {
        self.is_settled(stage, world)
    }

    fn report(&self, _: &EcastStage, world: &EcastWorld) -> String {
        self.describe(world)
    }

    fn owed(&self, _: &EcastStage, world: &EcastWorld) -> Result<(), Violation> {
        self.orders.newest().check.finish(|id| world.alive(id))?;
        self.all_told(world)
    }

    fn lost(&self, stage: &EcastStage, world: &EcastWorld, lost: &'static str) -> Option<&'static str> {
        self.lost_for_good(stage, world, lost)
    }

    fn targets(&self, stage: &EcastStage, _: &EcastWorld) -> Vec<Vec<usize>> {
        let [routers, leader] = stage.routers.targets();
        vec![routers, leader, self.members.clone(), self.members.clone()]
    }

    fn log<'a>(&self, process: &'a Process) -> Option<&'a Paxos> {
        match &process.kind {
            Kind::Router(router) if router.generation() == self.orders.current() => Some(router.log()),
            _ => None,
        }
    }

    fn removal(id: CommandId, router: ProcessId) -> Option<EcastCommand> {
        Some(EcastCommand::Router(RouterCommand::Change { id, change: Change::Remove(router) }))
    }

    fn adopted(&mut self, world: &mut EcastWorld, machine: usize) {
        if self.members.contains(&machine) {
            world.count("followed into a generation");
        }
    }

    fn policy_mismatch(&mut self, world: &mut EcastWorld, machine: usize, theirs: &[u8]) {
        if Fence::of_pass(theirs)
            .is_some_and(|theirs| fence(world, machine).is_some_and(|it| it.is_out(theirs)))
        {
            world.count("router of an earlier generation starts anew");
            world.wipe_at_end(machine);
            world.stop_after(machine, Duration::from_millis(1));
        }
    }
}
