//! A workload that is a part of this system, with a stage of its own.

use std::ops::Range;

use quorate_protocol::ProcessId;
use quorate_world::{Fault, Violation, World};

use crate::{
    process::AnyProcess,
    stage::{RouterSet, Stage, StageOf, Workload},
};

/// The timers of this system itself.
pub(crate) enum EverythingTimer {
    /// An operator may remove a replica of the service.
    RemoveReplica,
}

pub(super) type EverythingStage = Stage<EverythingTimer>;
pub(super) type EverythingWorld = World<AnyProcess>;

/// A part of the system.
pub(super) struct Part<W: Workload> {
    pub(super) stage: StageOf<W>,
    pub(super) workload: W,
    /// The machines that the part added.
    pub(super) machines: Range<usize>,
    /// Whether the processes belong to the domain of the common routers.
    joins: bool,
}

impl<W: Workload<Process = AnyProcess>> Part<W> {
    /// Makes the part with this number.
    pub(super) fn new(
        stage: &EverythingStage,
        world: &mut EverythingWorld,
        (number, joins): (u64, bool),
        settings: W::Settings,
    ) -> Self {
        let mut own = stage.part(W::NAME, number);
        let first = world.machines();
        let workload = W::new(&mut own, world, settings);
        Part { stage: own, workload, machines: first..world.machines(), joins }
    }

    /// Calls `work` with the workload and its stage. If the part has no routers of its own, its stage has the
    /// common routers during the call.
    pub(super) fn with<T>(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        act: impl FnOnce(&mut W, &mut StageOf<W>, &mut EverythingWorld) -> T,
    ) -> T {
        stage.share(&mut self.stage);
        self.exchange(&mut stage.routers);
        let result = act(&mut self.workload, &mut self.stage, world);
        self.exchange(&mut stage.routers);
        result
    }

    /// Calls `ask` with the workload, its stage and the world, and returns what `ask` returns.
    pub(super) fn seen<T>(
        &self,
        world: &EverythingWorld,
        ask: impl FnOnce(&W, &StageOf<W>, &EverythingWorld) -> T,
    ) -> T {
        ask(&self.workload, &self.stage, world)
    }

    /// Whether the part has recovered completely.
    pub(super) fn settled(&mut self, stage: &mut EverythingStage, world: &mut EverythingWorld) -> bool {
        self.with(stage, world, |workload, stage, world| workload.settled(stage, world))
    }

    /// Judges the promises that can be judged only at the end.
    pub(super) fn judge(&mut self, world: &mut EverythingWorld) -> Result<(), Violation> {
        self.workload.judge(&self.stage, world)
    }

    fn exchange(&mut self, common: &mut RouterSet) {
        if self.joins {
            std::mem::swap(&mut self.stage.routers, common);
        }
    }

    /// Handles the end of one of the part's timers.
    pub(super) fn act(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        token: u64,
    ) -> Result<(), Violation> {
        self.with(stage, world, |workload, stage, world| {
            let timer = stage.ended(token);
            workload.act(stage, world, timer)
        })
    }

    /// Makes the process for a new life of one of the part's machines.
    pub(super) fn start(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        (machine, id): (usize, ProcessId),
    ) -> AnyProcess {
        self.with(stage, world, |workload, stage, world| workload.start(stage, world, machine, id))
    }

    /// Tells the part of the faults on its machines.
    pub(super) fn struck(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        fault: Fault,
        hit: &[usize],
    ) {
        let own: Vec<usize> = hit.iter().copied().filter(|machine| self.machines.contains(machine)).collect();
        if !own.is_empty() {
            self.with(stage, world, |workload, stage, world| workload.struck(stage, world, fault, own));
        }
    }
}
