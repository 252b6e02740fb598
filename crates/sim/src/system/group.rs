//! Process groups: routers that order, and members that join, send at all strengths, flush, leave and die.

mod bounds;
pub(crate) mod process;
mod quits;
mod settings;
mod status;
mod workload;
mod world;

pub use settings::Settings;

use std::{collections::BTreeSet, time::Duration};

use quorate_protocol::{
    CommandId, Peer, ProcessId, domain,
    ecast::{MemberSettings, Router, RouterSettings},
    group::{self, GroupId},
    paxos::{self, Paxos},
};
use quorate_world::Violation;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    endpoint::node_of,
    process::{AnyCommand, AnyEvent, AnyProcess},
    stage::Workload,
};
use process::TamperedMember;
use workload::EXODUS;
pub(crate) use workload::GroupWorkload;
use world::{GroupStage, GroupTimer, GroupWorld, member, told};

impl Workload for GroupWorkload {
    const NAME: &'static str = "group";
    const SCENARIOS: &'static [(&'static str, &'static str)] =
        &[("group", include_str!("../../../../scenarios/group.toml"))];

    type Settings = Settings;
    type Process = AnyProcess;
    type Timer = GroupTimer;

    fn new(stage: &mut GroupStage, world: &mut GroupWorld, settings: Settings) -> GroupWorkload {
        GroupWorkload::new(stage, world, settings)
    }

    fn start(
        &mut self,
        stage: &mut GroupStage,
        world: &mut GroupWorld,
        machine: usize,
        id: ProcessId,
    ) -> AnyProcess {
        if self.members.contains(&machine) {
            let me = Peer { id, address: GroupWorld::address(machine) };
            let settings = self.settings.group(stage.seed);
            let member = group::Process::new(me, settings, MemberSettings::default());
            return AnyProcess::Group(Box::new(node_of(TamperedMember::new(member, stage.mutation))));
        }
        let log = paxos::Settings {
            wanted: self.settings.routers,
            log_bytes_kept: 64 << 10,
            chosen_after: paxos::Settings::CHOSEN_AFTER,
            ..paxos::Settings::default()
        };
        let paxos = stage.routers.start(world, machine, id, log.clone());
        let settings = RouterSettings { paxos: log, ..RouterSettings::default() };
        AnyProcess::of_router(Router::new(paxos, domain::Config::vacant(), settings))
    }

    fn act(
        &mut self,
        stage: &mut GroupStage,
        world: &mut GroupWorld,
        timer: GroupTimer,
    ) -> Result<(), Violation> {
        match timer {
            GroupTimer::Talk if self.words < self.settings.words => {
                self.talk(stage, world);
                let pause = stage.chance.between(Duration::from_micros(100), self.pace);
                stage.after(world, pause, GroupTimer::Talk);
            }
            GroupTimer::Talk => {}
            GroupTimer::Watch => {
                self.watch(stage, world);
                stage.after(world, Duration::from_millis(100), GroupTimer::Watch);
            }
            GroupTimer::Exodus if self.words < self.settings.words => {
                self.empty_group(stage, world);
                stage.after(world, EXODUS, GroupTimer::Exodus);
            }
            GroupTimer::Exodus => {}
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut GroupStage,
        world: &mut GroupWorld,
        on: usize,
        event: AnyEvent,
    ) -> Result<(), Violation> {
        told(on, event)?.map_or(Ok(()), |event| self.on_event(stage, world, on, event))
    }

    fn stepped(
        &mut self,
        stage: &mut GroupStage,
        world: &mut GroupWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        if let Some(router) = world.process(machine).and_then(AnyProcess::router) {
            let (told_at, routers) = (router.log().applied().0, router.log().members().to_vec());
            stage.routers.told_members(world, told_at, &routers, false)?;
        }
        if let (Some(me), Some(member)) = (world.id(machine), member(world, machine)) {
            self.check.stepped(me, member.order().delivered());
            let unwanted = member.unwanted();
            if std::mem::replace(self.unwanted.entry(me).or_default(), unwanted) < unwanted {
                world.count("heard what is for another group");
            }
        }
        Ok(())
    }

    fn settled(&mut self, _: &mut GroupStage, world: &mut GroupWorld) -> bool {
        let all: BTreeSet<ProcessId> = self.members.iter().filter_map(|it| world.id(*it)).collect();
        let waits = self.pending.keys().any(|(process, _)| world.alive(*process));
        let together = |group: u64| {
            let states: Vec<_> = all.iter().filter_map(|id| self.check.history(*id, group)).collect();
            states.len() == self.members.len() && states.windows(2).all(|pair| pair[0] == pair[1])
        };
        let quiet = |machine: &usize, group: u64| match member(world, *machine) {
            Some(member) => {
                let view = member.view(GroupId(group));
                view.map(|view| view.ids().collect::<BTreeSet<_>>()).as_ref() == Some(&all)
                    && view.zip(world.id(*machine)).is_some_and(|(view, me)| self.is_stacked(me, group, view))
                    && !member.is_changing(GroupId(group))
                    && member.held(GroupId(group)) == (0, 0)
            }
            None => false,
        };
        self.words >= self.settings.words
            && !waits
            && (0..self.settings.groups)
                .all(|group| together(group) && self.members.iter().all(|machine| quiet(machine, group)))
    }

    fn report(&self, _: &GroupStage, world: &GroupWorld) -> String {
        let of = |machine: &usize| match member(world, *machine) {
            Some(member) => {
                let me = world.id(*machine).expect("it runs");
                let group = |group: u64| {
                    let view = member.view(GroupId(group));
                    let changing = member.is_changing(GroupId(group));
                    let held = member.held(GroupId(group));
                    let stacked = view.is_some_and(|view| self.is_stacked(me, group, view));
                    let state = self.check.history(me, group).map(|it| xxh3_64(&it.encode()));
                    let view = view.map(|view| view.number);
                    format!(
                        "view {view:?} changing {changing} held {held:?} seated {stacked} state {state:x?}"
                    )
                };
                let groups: Vec<String> = (0..self.settings.groups).map(group).collect();
                format!("machine {machine}: wedged: {}, {}", member.is_wedged(), groups.join(", "))
            }
            None => format!("machine {machine} is down"),
        };
        let members: Vec<String> = self.members.iter().map(of).collect();
        let waits = self.pending.iter().filter(|((process, _), _)| world.alive(*process)).take(9);
        format!("{} messages; {}; waiting {:?}", self.words, members.join("; "), waits.collect::<Vec<_>>())
    }

    fn log<'a>(&self, process: &'a AnyProcess) -> Option<&'a Paxos> {
        process.router().map(Router::log)
    }

    fn removal(id: CommandId, router: ProcessId) -> Option<AnyCommand> {
        Some(AnyCommand::removal(id, router))
    }
}
