//! Process groups: routers that order, and members that join, send at every strength, flush, leave, and are killed.

mod crowd;
pub(crate) mod process;

use std::{collections::BTreeSet, time::Duration};

use quorate_protocol::{
    CommandId, Peer, ProcessId,
    ecast::{MemberSettings, Router, RouterCommand, RouterSettings},
    group::{self, GroupId, Roster},
    paxos::{self, Change, Paxos},
};
use quorate_world::Violation;
use serde::Deserialize;

use crate::stage::{self, Workload};
pub(crate) use crowd::Crowd;
use process::{Ask, Kind, Process, Told};

type Stage = stage::Stage<Timer>;
type World = quorate_world::World<Process>;

/// How large, and how busy.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many routers there should be.
    pub routers: usize,
    /// How many members.
    pub members: usize,
    /// How many groups each joins.
    pub groups: u64,
    /// How many words all of them send.
    pub words: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { routers: 3, members: 5, groups: 2, words: 2_000 }
    }
}

pub(crate) enum Timer {
    Talk,
    Watch,
    Exodus,
}

impl Workload for Crowd {
    const NAME: &'static str = "group";
    const SCENARIOS: &'static [(&'static str, &'static str)] =
        &[("group", include_str!("../../../../scenarios/group.toml"))];

    type Settings = Settings;
    type Process = Process;
    type Timer = Timer;

    fn new(stage: &mut Stage, world: &mut World, settings: Settings) -> Crowd {
        Crowd::new(stage, world, settings)
    }

    fn start(&mut self, stage: &mut Stage, world: &mut World, machine: usize, id: ProcessId) -> Process {
        if self.members.contains(&machine) {
            let me = Peer { id, address: World::address(machine) };
            // Views are large for every other seed.
            let receipts_at_once = if stage.seed.is_multiple_of(2) { 2 } else { 8 };
            // Every third seed casts nothing, every third little.
            let settings = group::Settings {
                receipts_at_once,
                window_bytes: 4 << 10,
                rate_interval: Duration::from_millis(250),
                cast_window_bytes: [4 << 10, 1 << 10, 0][(stage.seed % 3) as usize],
                ahead_bytes: 512,
                piece_bytes: 300,
                // Every fourth seed has states come piece by piece, with time between them.
                state_bytes_per_second: if stage.seed.is_multiple_of(4) { 20_000 } else { 96 << 20 },
                ..Default::default()
            };
            let member = group::Process::new(me, settings, MemberSettings::default());
            return Process::new(Kind::Member(Box::new(member)), stage.mutation);
        }
        let log = paxos::Settings {
            wanted: self.settings.routers,
            log_bytes_kept: 64 << 10,
            ..paxos::Settings::default()
        };
        let paxos = stage.routers.start(world, machine, id, log.clone());
        let settings = RouterSettings { paxos: log, ..RouterSettings::default() };
        let router = Router::new(paxos, Roster::default(), settings);
        Process::new(Kind::Router(Box::new(router)), stage.mutation)
    }

    fn act(&mut self, stage: &mut Stage, world: &mut World, timer: Timer) -> Result<(), Violation> {
        match timer {
            Timer::Talk if self.words < self.settings.words => {
                self.talk(stage, world);
                let pause = stage.chance.between(Duration::from_micros(100), self.pace);
                stage.after(world, pause, Timer::Talk);
            }
            Timer::Talk => {}
            Timer::Watch => {
                self.watch(stage, world);
                stage.after(world, Duration::from_millis(100), Timer::Watch);
            }
            Timer::Exodus if self.words < self.settings.words => {
                self.exodus(stage, world);
                stage.after(world, EXODUS, Timer::Exodus);
            }
            Timer::Exodus => {}
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        on: usize,
        told: Told,
    ) -> Result<(), Violation> {
        self.told(stage, world, on, told)
    }

    fn stepped(&mut self, stage: &mut Stage, world: &mut World, machine: usize) -> Result<(), Violation> {
        if let Some(Kind::Router(router)) = kind(world, machine) {
            let (told_at, routers) = (router.log().applied().0, router.log().members().to_vec());
            stage.routers.told_members(world, told_at, &routers, false)?;
        }
        if let (Some(me), Some(Kind::Member(member))) = (world.id(machine), kind(world, machine)) {
            let unwanted = member.unwanted();
            if std::mem::replace(self.unwanted.entry(me).or_default(), unwanted) < unwanted {
                world.count("heard what is for another group");
            }
        }
        Ok(())
    }

    fn settled(&mut self, _: &mut Stage, world: &mut World) -> bool {
        let all: BTreeSet<ProcessId> = self.members.iter().filter_map(|it| world.id(*it)).collect();
        let waits = self.pending.keys().any(|(process, _)| world.alive(*process));
        let together = |group: u64| {
            let states: Vec<_> = all.iter().filter_map(|id| self.check.history(*id, group)).collect();
            states.len() == self.members.len() && states.windows(2).all(|pair| pair[0] == pair[1])
        };
        let quiet = |machine: &usize, group: u64| match kind(world, *machine) {
            Some(Kind::Member(member)) => {
                let view = member.view(GroupId(group));
                view.map(|view| view.ids().collect::<BTreeSet<_>>()).as_ref() == Some(&all)
                    && view.zip(world.id(*machine)).is_some_and(|(view, me)| self.is_stacked(me, group, view))
                    && !member.is_changing(GroupId(group))
                    && member.held(GroupId(group)) == (0, 0)
            }
            _ => false,
        };
        self.words >= self.settings.words
            && !waits
            && (0..self.settings.groups)
                .all(|group| together(group) && self.members.iter().all(|machine| quiet(machine, group)))
    }

    fn report(&self, _: &Stage, world: &World) -> String {
        let of = |machine: &usize| match kind(world, *machine) {
            Some(Kind::Member(member)) => {
                let group = |group: u64| {
                    let view = member.view(GroupId(group)).map(|view| view.number);
                    let changing = member.is_changing(GroupId(group));
                    format!("{view:?} changing {changing} held {:?}", member.held(GroupId(group)))
                };
                let groups: Vec<String> = (0..self.settings.groups).map(group).collect();
                format!("{machine}: wedged {}, {}", member.is_wedged(), groups.join(", "))
            }
            _ => format!("{machine}: down"),
        };
        let members: Vec<String> = self.members.iter().map(of).collect();
        let waits = self.pending.iter().filter(|((process, _), _)| world.alive(*process)).take(9);
        format!("{} words; {}; waits {:?}", self.words, members.join("; "), waits.collect::<Vec<_>>())
    }

    fn log<'a>(&self, process: &'a Process) -> Option<&'a Paxos> {
        if let Kind::Router(router) = &process.kind { Some(router.log()) } else { None }
    }

    fn removal(id: CommandId, router: ProcessId) -> Option<Ask> {
        Some(Ask::Router(RouterCommand::Change { id, change: Change::Remove(router) }))
    }
}

/// How often all members leave a group, or die.
const EXODUS: Duration = Duration::from_millis(1_900);

/// What the process on `machine` is, while one runs.
pub(crate) fn kind(world: &World, machine: usize) -> Option<&Kind> {
    world.process(machine).map(|process| &process.kind)
}
