//! A replicated service that is not deterministic, and clients that call it.
//!
//! Replicas are killed and come back as new ones that ask to be admitted; clients die, too. The service is a set of registers, which
//! show what call wrote them. Calls take effect once, are linearizable, and leave replicas in the same states.

mod calls;
pub(crate) mod party;
mod settings;
pub(crate) mod store;
mod tamper;

pub use settings::Settings;

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Peer, ProcessId, Time,
    paxos::{Corrupt, Paxos},
    service::{self, Client, GroupId, Replica},
};
use quorate_world::Violation;

use crate::{
    check::service::ServiceCheck,
    mutation::Mutation,
    stage::{self, Workload},
};
use calls::Book;
use party::{Ask, Hosted, Party, Told};
use store::{Effect, Host};
use tamper::Tamper;

type Stage = stage::Stage<Timer>;
type World = quorate_world::World<Party>;

/// The clients, and what they are told.
pub(crate) struct Callers {
    settings: Settings,
    service: service::Settings,
    clients: Vec<usize>,
    /// Which machine founded the set.
    founder: Option<usize>,
    book: Book,
    check: ServiceCheck,
    /// The longest pause between calls, so that they last as long as the faults.
    pace: Duration,
}

pub(crate) enum Timer {
    Call,
    LookForReplicas,
}

impl Workload for Callers {
    const NAME: &'static str = "service";
    const SCENARIOS: &'static [(&'static str, &'static str)] = settings::SCENARIOS;

    type Settings = Settings;
    type Process = Party;
    type Timer = Timer;

    fn new(stage: &mut Stage, world: &mut World, settings: Settings) -> Self {
        if let Some(disk) = settings.disk {
            world.with_disks(disk, stage.mutation.and_then(Mutation::breach));
        }
        stage.add_routers(world, settings.replicas, settings.spares);
        stage.after(world, Duration::from_millis(50), Timer::Call);
        stage.after(world, LOOK, Timer::LookForReplicas);
        Callers {
            service: settings.service(stage.seed),
            clients: stage.add_machines(world, settings.clients),
            founder: None,
            book: Book::default(),
            check: ServiceCheck::default(),
            pace: stage.safety().mul_f64(5.0 / settings.calls as f64),
            settings,
        }
    }

    fn log_recovery(&self, me: Peer, records: Vec<Bytes>, now: Time) -> Result<(), Corrupt> {
        Replica::recover(GROUP, me, self.service.clone(), records, now).map(drop)
    }

    fn start(&mut self, stage: &mut Stage, world: &mut World, machine: usize, id: ProcessId) -> Party {
        let tamper = stage.mutation.map(Tamper::new);
        if self.clients.contains(&machine) {
            self.forget(machine);
            let client = Client::new(GROUP, stage.routers.living(world), self.settings.client(stage.seed));
            return Party::client(client, tamper);
        }
        let host = Host::new(self.settings.manner(stage.seed), stage.mutation);
        Party::replica(self.replica(stage, world, machine, id), host, tamper)
    }

    fn act(&mut self, stage: &mut Stage, world: &mut World, timer: Timer) -> Result<(), Violation> {
        match timer {
            Timer::Call if self.book.made < self.settings.calls => {
                self.call(stage, world);
                let pause = stage.chance.between(Duration::from_micros(100), self.pace);
                stage.after(world, pause, Timer::Call);
            }
            Timer::Call => {}
            Timer::LookForReplicas => {
                party::look_for_replicas(stage, world);
                self.adopt(stage, world);
                stage.after(world, LOOK, Timer::LookForReplicas);
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        event: Told,
    ) -> Result<(), Violation> {
        match event {
            _ if world.id(machine).is_none() => {}
            Told::Client(event) => self.told(stage, world, event)?,
            Told::Members { slot, members } => stage.routers.told_members(world, slot, &members, false)?,
            Told::Leader(leader) => stage.routers.told_leader(world, leader),
            Told::Removed => {
                world.count("removed process starts anew");
                world.wipe_at_end(machine);
                world.stop_after(machine, Duration::from_millis(1));
            }
            Told::Corrupt(error) => return Err(Violation::new("bytes", error)),
            Told::News(what) => world.count(what),
        }
        Ok(())
    }

    fn stepped(&mut self, _: &mut Stage, world: &mut World, machine: usize) -> Result<(), Violation> {
        let Some(Hosted { replica, host, .. }) = hosted(world, machine) else { return Ok(()) };
        let instance = replica.chosen();
        if instance.is_multiple_of(STATES_APART) && host.is_quiet() {
            let digest = host.store.digest();
            self.check.state(world.life(machine), instance, digest)?;
        }
        Ok(())
    }

    fn settled(&mut self, stage: &mut Stage, world: &mut World) -> bool {
        let members = stage.routers.members.iter().map(|id| hosted(world, id.node as usize));
        let members: Vec<&Hosted> = members.flatten().collect();
        let done = self.book.made >= self.settings.calls && self.book.under_way() == 0;
        done && Hosted::are_at_rest(&members)
    }

    fn judge(&mut self, stage: &Stage, world: &mut World) -> Result<(), Violation> {
        for id in &stage.routers.members {
            if let Some(Hosted { replica, host, .. }) = hosted(world, id.node as usize) {
                self.check.state(world.life(id.node as usize), replica.chosen(), host.store.digest())?;
            }
        }
        let member = stage.routers.members.first().and_then(|id| hosted(world, id.node as usize));
        let effects = member.into_iter().flat_map(|member| &member.host.store.effects);
        self.check.judge(effects.map(|(call, them)| (*call, them.iter().map(Effect::execution).collect())))
    }

    fn report(&self, _: &Stage, world: &World) -> String {
        let state = |machine| match world.process(machine) {
            Some(Party::Replica(it)) => format!("{machine}: {:?}", it.replica.status()),
            Some(Party::Client(it)) => format!("client {machine}: {:?}", it.client),
            None => format!("machine {machine}: down"),
        };
        let states: Vec<String> = (0..world.machines()).map(state).collect();
        format!("{} calls are not answered; {}", self.book.under_way(), states.join("; "))
    }

    fn log<'a>(&self, party: &'a Party) -> Option<&'a Paxos> {
        match party {
            Party::Replica(hosted) => Some(hosted.replica.log()),
            Party::Client(_) => None,
        }
    }

    fn removal(_: CommandId, replica: ProcessId) -> Option<Ask> {
        Some(Ask::Replica(service::Command::RemoveReplica(replica)))
    }
}

fn hosted(world: &World, machine: usize) -> Option<&Hosted> {
    match world.process(machine)? {
        Party::Replica(hosted) => Some(hosted),
        Party::Client(_) => None,
    }
}

pub(crate) const GROUP: GroupId = GroupId(7);
/// How often clients look for replicas.
const LOOK: Duration = Duration::from_millis(500);
/// States are compared every so many instances.
const STATES_APART: u64 = 4;
