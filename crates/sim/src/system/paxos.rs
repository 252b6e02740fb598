//! A router set and its log, without other layers.
//!
//! Each router has a user that appends numbered entries. A router proposes an entry again until it learns it.
//! The log appends an entry exactly if it is its proposer's next entry (rule S3). Routers are killed and come
//! back as new processes that ask to join. The log must continue, and all routers must learn the same log.

pub(crate) mod replica;
mod settings;
mod users;

pub use settings::Settings;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Peer, ProcessId, Time,
    paxos::{self, Corrupt, Paxos},
};
use quorate_world::Violation;

use crate::{
    check::LogCheck,
    mutation::{Mutation, Tamper},
    stage::{self, Workload},
};
use replica::{PaxosCommand, PaxosEvent, Replica};

type Stage = stage::Stage<Timer>;
type World = quorate_world::World<Replica>;

/// The users of the routers.
pub(crate) struct PaxosWorkload {
    settings: Settings,
    paxos: paxos::Settings,
    check: LogCheck,
    /// The author id under which the process on each machine numbers its entries.
    authors: BTreeMap<usize, ProcessId>,
    /// The machine that founded the domain.
    founder: Option<usize>,
    asked_total: u64,
    /// The longest pause between two appends, chosen so that the appends last as long as the faults.
    pace: Duration,
}

pub(crate) enum Timer {
    Append,
    LookForRouters,
}

impl Workload for PaxosWorkload {
    const NAME: &'static str = "paxos";
    const SCENARIOS: &'static [(&'static str, &'static str)] = &[
        ("paxos", include_str!("../../../../scenarios/paxos.toml")),
        ("paxos_disk", include_str!("../../../../scenarios/paxos_disk.toml")),
    ];

    type Settings = Settings;
    type Process = Replica;
    type Timer = Timer;

    fn new(stage: &mut Stage, world: &mut World, settings: Settings) -> Self {
        if let Some(disk) = settings.disk {
            world.with_disks(disk, stage.mutation.and_then(Mutation::breach));
            stage.after(world, Self::REMOVALS.0, Timer::LookForRouters);
        }
        stage.add_routers(world, settings.routers, settings.spares);
        stage.after(world, Duration::from_millis(50), Timer::Append);
        PaxosWorkload {
            paxos: paxos::Settings {
                wanted: settings.routers,
                log_bytes_kept: settings.log_bytes_kept,
                chunk_bytes: 2 << 10,
                batch_bytes_max: 2 << 10,
                window_max: 8,
                checkpoint_bytes: settings.disk.map(|_| CHECKPOINT_BYTES),
                chosen_after: paxos::Settings::CHOSEN_AFTER,
                ..paxos::Settings::default()
            },
            check: LogCheck::default(),
            authors: BTreeMap::new(),
            founder: None,
            asked_total: 0,
            pace: stage.safety().mul_f64(9.0 / settings.entries as f64),
            settings,
        }
    }

    fn log_recovery(&self, me: Peer, records: Vec<Bytes>, now: Time) -> Result<(), Corrupt> {
        Paxos::recover(me, self.paxos.clone(), records, now).map(drop)
    }

    fn start(&mut self, stage: &mut Stage, world: &mut World, machine: usize, id: ProcessId) -> Replica {
        let (paxos, author) = self.router(stage, world, Peer { id, address: World::address(machine) });
        self.authors.insert(machine, author);
        Replica::new(paxos, author, stage.mutation.map(Tamper::new))
    }

    fn act(&mut self, stage: &mut Stage, world: &mut World, timer: Timer) -> Result<(), Violation> {
        match timer {
            Timer::Append if self.asked_total < self.settings.entries => {
                self.append(stage, world);
                let pause = stage.chance.between(Duration::from_micros(100), self.pace);
                stage.after(world, pause, Timer::Append);
            }
            Timer::Append => {}
            // Processes that know no leader look for routers, as real processes do.
            Timer::LookForRouters => {
                for machine in 0..world.machines() {
                    if world.process(machine).is_some_and(|replica| replica.paxos.leader().is_none()) {
                        let mut others = stage.routers.living(world);
                        others.retain(|peer| Some(peer.id) != world.id(machine));
                        world.command(machine, PaxosCommand::Seeds(others));
                    }
                }
                stage.after(world, Duration::from_secs(1), Timer::LookForRouters);
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        event: PaxosEvent,
    ) -> Result<(), Violation> {
        let life = world.life(machine);
        match event {
            _ if world.id(machine).is_none() => {}
            PaxosEvent::Learned { slot, payloads, chain } => {
                self.check.learned(life, slot, &payloads, chain)?
            }
            PaxosEvent::Installed { slot, chain } => {
                world.count("snapshot catch-up");
                self.check.installed(life, slot, chain)?;
            }
            PaxosEvent::Members(members) => {
                stage.routers.told_members(world, self.check.learned_through(life), &members, true)?;
            }
            PaxosEvent::Leader(leader) => stage.routers.told_leader(world, leader),
            PaxosEvent::SnapshotMade => world.count("snapshot made"),
            PaxosEvent::Removed => {
                world.count("removed process starts anew");
                world.wipe_at_end(machine);
                world.stop_after(machine, Duration::from_millis(1));
            }
            PaxosEvent::ChangeRefused => world.count("change refused"),
            PaxosEvent::OutbidByLearner => world.count("learner promised above its leader"),
        }
        Ok(())
    }

    fn settled(&mut self, stage: &mut Stage, world: &mut World) -> bool {
        let members = &stage.routers.members;
        self.asked_total >= self.settings.entries
            && members.iter().filter_map(|id| world.process(id.node as usize)).all(|replica| {
                replica.own.is_empty()
                    && replica.state.slot == self.check.end()
                    && replica.paxos.leader().is_some_and(|leader| members.contains(&leader))
                    && replica.paxos.members().iter().map(|peer| peer.id).eq(members.iter().copied())
            })
    }

    /// Checks that the log contains every entry that was requested from a member.
    fn owed(&self, stage: &Stage, world: &World) -> Result<(), Violation> {
        let members =
            self.authors.iter().filter_map(|(&machine, author)| Some((world.id(machine)?, *author)));
        let mut members = members.filter(|(id, _)| stage.routers.members.contains(id));
        members.try_for_each(|(id, author)| self.check.terminated(id, author))
    }

    fn report(&self, _: &Stage, world: &World) -> String {
        let state = |machine| match (world.id(machine), world.process(machine)) {
            (Some(id), Some(it)) => {
                format!(
                    "router {id} has {} entries that are not in the log; its status is {:?}",
                    it.own.len(),
                    it.paxos.status()
                )
            }
            _ => format!("machine {machine} is down"),
        };
        let routers: Vec<String> = (0..world.machines()).map(state).collect();
        format!("the log ends at {}; {}", self.check.end(), routers.join("; "))
    }

    fn log<'a>(&self, replica: &'a Replica) -> Option<&'a Paxos> {
        Some(&replica.paxos)
    }

    fn removal(_: CommandId, router: ProcessId) -> Option<PaxosCommand> {
        Some(PaxosCommand::Remove(router))
    }
}

/// The size of a log after which a router writes a checkpoint, in bytes: small, so that every router writes
/// some.
const CHECKPOINT_BYTES: usize = 24 << 10;
