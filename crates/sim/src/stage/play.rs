//! Plays a workload on its stage, through both phases of a run.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{ProcessId, Protocol, Ticket};
use quorate_world::{Environment, Violation, World};

use super::{Alarm, REMOVAL, Stage, StageOf, Workload, WorldOf, changes, part_of};
use crate::{failure::failure_of, mutation::Mutation, report::Report, scenario::Scenario};

/// Runs one seed.
pub(crate) fn simulate<W: Workload>(
    scenario: &Scenario,
    settings: W::Settings,
    seed: u64,
    mutation: Option<Mutation>,
) -> Report {
    let mut world = World::new(seed, scenario.network, scenario.machines);
    let mut stage = Stage::new(scenario, seed, mutation);
    let workload = W::new(&mut stage, &mut world, settings);
    stage.set(&mut world, W::CALM, Alarm::Strike);
    if !stage.routers.machines.is_empty() {
        stage.set(&mut world, W::REMOVALS.0, Alarm::Remove);
    }
    let mut play = Play { stage, workload };
    let failure = failure_of(|| play.perform(&mut world, scenario));
    Report {
        seed,
        failure,
        counts: world.counts().iter().map(|(&what, &count)| (what.to_owned(), count)).collect(),
        steps: world.steps(),
        span: Duration::from_nanos(world.now().0),
        trace: world.trace(),
    }
}

struct Play<W: Workload> {
    stage: StageOf<W>,
    workload: W,
}

impl<W: Workload> Play<W> {
    fn perform(&mut self, world: &mut WorldOf<W>, scenario: &Scenario) -> Result<(), Violation> {
        let end = world.now() + scenario.safety();
        world.run(self, end, |_, _| false)?;
        self.heal(world);
        let end = world.now() + scenario.liveness();
        while !self.settled(world) {
            if world.now() >= end {
                return self.unsettled(world);
            }
            let next = world.now() + GLANCE;
            world.run(self, next, |_, _| false)?;
        }
        world.count("came right");
        self.workload.owed(&self.stage, world)?;
        self.workload.judge(&self.stage, world)
    }

    /// Ends the faults: heals the network and the machines, and starts the machines that are down.
    fn heal(&mut self, world: &mut WorldOf<W>) {
        world.heal();
        (self.stage.nemesis, self.stage.healed) = (None, true);
        for machine in 0..world.machines() {
            world.restart_after(machine, Duration::ZERO);
        }
    }

    fn settled(&mut self, world: &mut WorldOf<W>) -> bool {
        self.stage.routers.are_whole(world)
            && self.workload.settled(&mut self.stage, world)
            && self.workload.owed(&self.stage, world).is_ok()
    }

    /// Explains a run that did not recover: the routers were lost for good, or a promise is broken.
    fn unsettled(&mut self, world: &mut WorldOf<W>) -> Result<(), Violation> {
        let Play { stage, workload } = self;
        let lost = stage.routers.lost(world, &changes(workload, world));
        if let Some(lost) = lost.and_then(|lost| workload.lost(stage, world, lost)) {
            world.count(lost);
            return workload.judge_lost();
        }
        let owed = workload.owed(stage, world).err();
        let (rule, detail) = owed.map_or(("liveness", String::new()), |it| (it.rule, it.detail + "; "));
        let members = &stage.routers.members;
        let report = workload.report(stage, world);
        Err(Violation::new(rule, format!("{detail}the routers are {members:?}; {report}")))
    }

    fn strike(&mut self, world: &mut WorldOf<W>) {
        let Play { stage, workload } = self;
        let Some(mut nemesis) = stage.nemesis.take() else { return };
        let targets = workload.targets(stage, world);
        let struck = nemesis.strike(world, &targets, |world, machine| {
            if stage.routers.machines.contains(&machine) {
                stage.routers.may_crash(world, machine, &changes(workload, world))
            } else {
                workload.may_crash(stage, world, machine)
            }
        });
        if let Some((fault, hit)) = struck {
            workload.struck(stage, world, fault, hit);
        }
        if let Some(pause) = nemesis.pause() {
            stage.set(world, pause, Alarm::Strike);
        }
        stage.nemesis = Some(nemesis);
    }
}

impl<W: Workload> Environment<W::Process> for Play<W> {
    fn start(&mut self, world: &mut WorldOf<W>, machine: usize, id: ProcessId) -> W::Process {
        self.workload.start(&mut self.stage, world, machine, id)
    }

    fn goes_on(
        &mut self,
        world: &mut WorldOf<W>,
        machine: usize,
        id: ProcessId,
        records: &[(Ticket, Bytes)],
    ) -> bool {
        self.workload.goes_on(&mut self.stage, world, machine, id, records)
    }

    fn event(
        &mut self,
        world: &mut WorldOf<W>,
        machine: usize,
        event: <W::Process as Protocol>::Event,
    ) -> Result<(), Violation> {
        self.workload.event(&mut self.stage, world, machine, event)
    }

    fn timer(&mut self, world: &mut WorldOf<W>, token: u64) -> Result<(), Violation> {
        if part_of(token) > 0 {
            return self.workload.part_act(&mut self.stage, world, token);
        }
        match self.stage.alarms.remove(&token).expect("each alarm is set once") {
            Alarm::Strike => self.strike(world),
            Alarm::Remove => {
                self.stage.remove_router::<W>(world);
                self.stage.set(world, REMOVAL, Alarm::Remove);
            }
            Alarm::Own(timer) => self.workload.act(&mut self.stage, world, timer)?,
        }
        Ok(())
    }

    fn adopted(&mut self, world: &mut WorldOf<W>, machine: usize) -> Result<(), Violation> {
        self.workload.adopted(world, machine);
        Ok(())
    }

    fn policy_mismatch(&mut self, world: &mut WorldOf<W>, machine: usize, theirs: &[u8]) {
        self.workload.policy_mismatch(world, machine, theirs);
    }

    fn stepped(&mut self, world: &mut WorldOf<W>, machine: usize) -> Result<(), Violation> {
        self.workload.stepped(&mut self.stage, world, machine)
    }
}

/// Interval at which the second phase looks whether everything has recovered.
const GLANCE: Duration = Duration::from_millis(20);
