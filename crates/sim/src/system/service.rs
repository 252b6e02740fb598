//! A replicated service that is not deterministic, and clients that call it.
//!
//! Replicas are killed and come back as new processes that ask to join; clients die, too. The service is a
//! set of registers that name their writers. Calls take effect once, are linearizable, and leave equal
//! states.

mod calls;
mod events;
pub(crate) mod host;
mod host_tamper;
mod memory;
mod object;
pub(crate) mod process;
mod request_log;
mod settings;
pub(crate) mod store;
mod stranding;
mod tamper;
mod watch;
mod workload;
mod world;

pub(crate) use settings::GROUP;
pub use settings::Settings;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use quorate_protocol::{CommandId, Peer, ProcessId, Ticket, paxos::Paxos, service};
use quorate_roles::services::endpoint::Unrecovered;
use quorate_world::Violation;

use crate::{
    check::service::ServiceCheck,
    mutation::Mutation,
    process::{AnyCommand, AnyEvent, AnyProcess},
    stage::{Workload, log_goes_on},
};
use process::{
    HostedReplica, Resident, ServiceCommand, digest, process_of, records_of_endpoint, recovers, replica_of,
};
use request_log::RequestLog;
use store::Effect;
use tamper::Tamper;
use workload::MOMENT;
pub(crate) use workload::ServiceWorkload;
use world::{ServiceStage, ServiceTimer, ServiceWorld, Stranding, ask, hosted};

impl Workload for ServiceWorkload {
    const NAME: &'static str = "service";
    const SCENARIOS: &'static [(&'static str, &'static str)] = settings::SCENARIOS;

    type Settings = Settings;
    type Process = AnyProcess;
    type Timer = ServiceTimer;

    fn new(stage: &mut ServiceStage, world: &mut ServiceWorld, settings: Settings) -> Self {
        if let Some(disk) = settings.disk {
            world.with_disks(disk, stage.mutation.and_then(Mutation::breach));
        }
        stage.add_routers(world, settings.replicas, settings.spares);
        stage.after(world, Duration::from_millis(50), ServiceTimer::Call);
        stage.after(world, LOOK, ServiceTimer::LookForReplicas);
        if settings.strands(stage.seed) {
            for _ in 0..settings.strandings {
                let begin = stage.chance.between(Duration::from_millis(300), stage.safety().mul_f64(0.8));
                stage.after(world, begin, ServiceTimer::Strand(Stranding::Begins));
            }
        }
        ServiceWorkload {
            options: settings.options(stage.seed, stage.mutation),
            clients: stage.add_machines(world, settings.clients),
            founder: None,
            first_records: BTreeMap::new(),
            request_log: RequestLog::default(),
            check: ServiceCheck::default(),
            pace: stage.safety().mul_f64(5.0 / settings.calls as f64),
            settings,
        }
    }

    fn goes_on(
        &mut self,
        _: &mut ServiceStage,
        world: &mut ServiceWorld,
        machine: usize,
        id: ProcessId,
        records: &[(Ticket, Bytes)],
    ) -> bool {
        let me = Peer { id, address: ServiceWorld::address(machine) };
        let log = records_of_endpoint(records.to_vec()).into_iter().map(|(_, record)| record).collect();
        let recovery = match recovers(&me, log, self.options.clone(), world.clock(machine)) {
            Ok(()) => Ok(()),
            Err(Unrecovered::Log(why)) => Err(why),
            Err(why) => unreachable!("the records are those of one set at one address: {why:?}"),
        };
        self.first_records.insert(machine, records[0].0);
        log_goes_on(world, machine, recovery)
    }

    fn start(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        machine: usize,
        id: ProcessId,
    ) -> AnyProcess {
        if self.clients.contains(&machine) {
            self.forget(machine);
            stage.after(world, MOMENT, ServiceTimer::Begin { machine, id, founds: false });
            let (settings, tamper) = (self.settings.client(stage.seed), stage.mutation.map(Tamper::new));
            let client = process_of(Resident::client(settings, tamper));
            return AnyProcess::Service(Box::new(client));
        }
        AnyProcess::Service(Box::new(self.replica(stage, world, machine, id)))
    }

    fn act(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        timer: ServiceTimer,
    ) -> Result<(), Violation> {
        match timer {
            ServiceTimer::Call if self.request_log.made < self.settings.calls => {
                self.call(stage, world);
                let pause = stage.chance.between(Duration::from_micros(100), self.pace);
                stage.after(world, pause, ServiceTimer::Call);
            }
            ServiceTimer::Call => {}
            ServiceTimer::Begin { machine, id, founds } => self.begin(stage, world, (machine, id, founds)),
            ServiceTimer::LookForReplicas => {
                world::look_for_replicas(stage, world);
                self.adopt(stage, world);
                stage.after(world, LOOK, ServiceTimer::LookForReplicas);
            }
            ServiceTimer::Strand(stranding) => self.strand(stage, world, stranding),
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        machine: usize,
        event: AnyEvent,
    ) -> Result<(), Violation> {
        self.on_node_event(stage, world, machine, event)
    }

    fn stepped(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        self.check_step(stage, world, machine)
    }

    fn settled(&mut self, stage: &mut ServiceStage, world: &mut ServiceWorld) -> bool {
        let members = stage.routers.members.iter().map(|id| hosted(world, id.node as usize));
        let members: Vec<&HostedReplica> = members.flatten().collect();
        let done = self.request_log.made >= self.settings.calls && self.request_log.under_way() == 0;
        done && HostedReplica::are_at_rest(&members)
    }

    fn judge(&mut self, stage: &ServiceStage, world: &mut ServiceWorld) -> Result<(), Violation> {
        for id in &stage.routers.members {
            if let Some(member) = hosted(world, id.node as usize) {
                let (life, chosen) = (world.life(id.node as usize), member.replica().chosen());
                self.check.state(life, chosen, digest(member))?;
            }
        }
        let member = stage.routers.members.first().and_then(|id| hosted(world, id.node as usize));
        let effects = member.into_iter().flat_map(|member| &member.host().store.effects);
        self.check.judge(effects.map(|(call, them)| (*call, them.iter().map(Effect::execution).collect())))
    }

    fn report(&self, _: &ServiceStage, world: &ServiceWorld) -> String {
        format!("{} calls have no answer; {}", self.request_log.under_way(), world::states(world))
    }

    fn log<'a>(&self, process: &'a AnyProcess) -> Option<&'a Paxos> {
        let AnyProcess::Service(process) = process else { return None };
        replica_of(process).map(|hosted| hosted.replica().log())
    }

    fn removal(_: CommandId, replica: ProcessId) -> Option<AnyCommand> {
        Some(ask(ServiceCommand::Wish(service::Command::RemoveReplica(replica))))
    }
}

/// Interval at which clients look for replicas.
const LOOK: Duration = Duration::from_millis(500);
