//! The operator acts: accidents take routers away, and a command lets the domain continue.

use std::time::Duration;

use quorate_protocol::{
    Generation, Peer, ProcessId,
    ecast::{Reformed, Router, RouterCommand},
    paxos::ReformRefusal,
    quorum::majority,
};
use quorate_world::{Crash, Violation};

use super::OperatorCommand;
use crate::{
    stage::{changes, command_id},
    system::{
        ecast::{
            process::{EcastCommand, Kind},
            workload::EcastWorkload,
            world::{EcastStage, EcastWorld, generation, kind},
        },
        rooms::Rooms,
    },
};

impl EcastWorkload {
    /// Makes the accidents happen that are due, and lets the operator act if a majority of the routers seems
    /// lost.
    pub(in super::super) fn operate(&mut self, stage: &mut EcastStage, world: &mut EcastWorld) {
        let now = world.now();
        if self.operator.open_command.is_some_and(|open_command| {
            world.process(open_command.machine).is_none()
                || world.life(open_command.machine) != open_command.life
        }) {
            self.operator.open_command = None;
            self.operator.founder_died = true;
        }
        if self.operator.extinctions.pop_if(|at| *at <= now).is_some() && !stage.is_healed() {
            self.extinguish(stage, world);
        }
        if self.operator.doomed_founder.take_if(|at| *at <= now).is_some()
            && let Some(open_command) = self.operator.open_command
        {
            world.count("founder lost");
            world.crash(open_command.machine, Crash::Killed);
            world.restart_after(open_command.machine, Duration::ZERO);
        }
        if let Some((_, next_loss)) = self.operator.next_loss.take_if(|(at, _)| *at <= now) {
            self.lose(stage, world, next_loss);
        }
        let open = changes(self, world);
        if !stage.routers.seem_lost(world, &open) {
            self.operator.acts_at = None;
            let due = self.operator.losses.last().is_some_and(|&at| at <= now);
            let idle = self.operator.open_command.is_none() && self.operator.next_loss.is_none();
            if due && idle && !stage.is_healed() && self.doom(stage, world) {
                self.operator.losses.pop();
            }
            return;
        }
        let chance = &mut self.operator.chance;
        let acts_at =
            *self.operator.acts_at.get_or_insert_with(|| now + chance.between(Duration::ZERO, DISBELIEF_MAX));
        if acts_at <= now && self.operator.open_command.is_none() {
            let survivors = self.survivors(stage, world);
            if let Some(machine) = self.operator.chance.pick(&survivors) {
                let patience = self.operator.chance.between(PATIENCE_MIN, PATIENCE_MAX);
                let (life, before) = (world.life(machine), self.orders.current());
                self.operator.open_command =
                    Some(OperatorCommand { machine, life, before, at: now, patience });
                world.command(
                    machine,
                    EcastCommand::Router(RouterCommand::Reform { id: command_id(world), patience }),
                );
            } else if self.settings.extinctions > 0 {
                self.refound(world);
            }
        }
    }

    /// Kills all routers at once, and some members with them.
    fn extinguish(&mut self, stage: &mut EcastStage, world: &mut EcastWorld) {
        let chance = &mut self.operator.chance;
        // If the routers vanish without closing links, members believe them alive for a while.
        let vanish = chance.happens(0.2);
        for &machine in &stage.routers.machines {
            world.crash(machine, if vanish { Crash::Vanished } else { Crash::Killed });
            world.restart_after(machine, chance.between(Duration::ZERO, DOWN_MAX));
        }
        for &machine in &self.members {
            if chance.happens(0.1) {
                world.crash(machine, Crash::Killed);
                world.restart_after(machine, chance.between(Duration::ZERO, DOWN_MAX));
            }
        }
        world.count("all routers lost");
    }

    /// Commands a fresh router to continue from the living members. The router may die before it has begun
    /// the generation.
    fn refound(&mut self, world: &mut EcastWorld) {
        let fresh = (0..world.machines()).filter(|&machine| match kind(world, machine) {
            Some(Kind::Router(router)) => router.log().can_found(),
            _ => false,
        });
        let fresh: Vec<usize> = fresh.collect();
        let now = world.now();
        let chance = &mut self.operator.chance;
        let Some(machine) = chance.pick(&fresh) else { return };
        let patience = chance.between(PATIENCE_MIN, PATIENCE_MAX);
        if chance.happens(0.3) {
            self.operator.doomed_founder = Some(now + chance.between(Duration::ZERO, patience));
        }
        let living = self.members.iter().filter_map(|&machine| Some((machine, world.id(machine)?)));
        let living: Vec<(usize, ProcessId)> = living.collect();
        let before = living.iter().map(|&(machine, _)| generation(world, machine)).max().unwrap_or_default();
        let address = |machine| EcastWorld::address(machine);
        let members = living.iter().map(|&(machine, id)| Peer { id, address: address(machine) }).collect();
        let (life, current) = (world.life(machine), self.orders.current());
        self.operator.open_command =
            Some(OperatorCommand { machine, life, before: current, at: now, patience });
        let id = command_id(world);
        world
            .command(machine, EcastCommand::Router(RouterCommand::Refound { id, before, members, patience }));
    }

    /// Returns the machines of routers that answer and with which a generation could begin.
    pub(in super::super) fn survivors(&self, stage: &EcastStage, world: &EcastWorld) -> Vec<usize> {
        let votes = routers(world, self.orders.current())
            .filter(|router| router.log().can_reform() != Err(ReformRefusal::NotMember));
        let ids = votes.map(|router| router.log().me());
        ids.filter(|id| stage.routers.answers(world, *id)).map(|id| id.node as usize).collect()
    }

    /// Chooses the majority of the routers that will be lost soon. Until the loss, the other routers may not
    /// learn what this majority agrees on.
    fn doom(&mut self, stage: &mut EcastStage, world: &mut EcastWorld) -> bool {
        let chance = &mut self.operator.chance;
        let members = &stage.routers.members;
        let living = members.iter().filter(|id| stage.routers.answers(world, **id));
        let mut lost: Vec<usize> = living.map(|id| id.node as usize).collect();
        if members.len() < 2 {
            return false;
        }
        let lag = if chance.happens(0.7) { chance.between(Duration::ZERO, LAG_MAX) } else { Duration::ZERO };
        for _ in 0..1 + chance.index(majority(members.len()) - 1) {
            let kept = lost.swap_remove(chance.index(lost.len()));
            for &other in &stage.routers.machines {
                if other != kept && !lag.is_zero() {
                    world.clog(other, kept, lag + LAG_MAX);
                }
            }
        }
        self.operator.next_loss = Some((world.now() + lag, lost));
        true
    }

    /// Loses these machines, most of the routers, and perhaps some members with them.
    fn lose(&mut self, stage: &mut EcastStage, world: &mut EcastWorld, mut lost: Vec<usize>) {
        let chance = &mut self.operator.chance;
        // The router that was to survive may have died since the operator chose it.
        let living = stage.routers.members.iter().filter(|id| stage.routers.answers(world, **id));
        let living: Vec<usize> = living.map(|id| id.node as usize).collect();
        if living.iter().all(|machine| lost.contains(machine))
            && let Some(left) = chance.pick(&living)
        {
            lost.retain(|machine| *machine != left);
        }
        let span = chance.between(SILENCE_MIN, SILENCE_MAX);
        let mut silent = Vec::new();
        for machine in lost {
            let crash = match chance.below(3) {
                0 => {
                    stage.routers.silent_until(machine, world.now() + span);
                    world.count("router silent");
                    silent.push(machine);
                    continue;
                }
                1 => Crash::Killed,
                _ => Crash::Vanished,
            };
            world.crash(machine, crash);
            world.restart_after(machine, chance.between(Duration::ZERO, DOWN_MAX));
        }
        if !silent.is_empty() || chance.happens(0.3) {
            silent.extend(self.members.iter().copied().filter(|_| chance.happens(0.3)));
        }
        for &one in &silent {
            for other in (0..world.machines()).filter(|other| !silent.contains(other)) {
                world.cut(one, other, span);
                world.cut(other, one, span);
            }
        }
        for &machine in &self.members {
            if chance.happens(0.1) {
                world.crash(machine, Crash::Killed);
                world.restart_after(machine, chance.between(Duration::ZERO, DOWN_MAX));
            }
        }
        world.count("majority lost");
    }

    /// Begins a generation.
    pub(in super::super) fn begin(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
        reformed: &Reformed,
    ) -> Result<(), Violation> {
        let Some(Kind::Router(router)) = kind(world, machine) else { return Ok(()) };
        let open_command =
            self.operator.open_command.take().filter(|open_command| open_command.life == world.life(machine));
        let Some(open_command) = open_command else {
            let what = format!(
                "machine {machine} begins {:?}, although no operator asked this machine",
                reformed.generation
            );
            return Err(Violation::new("S1", what));
        };
        let (position, learned) = std::mem::take(&mut self.operator.learned);
        self.orders.begin(open_command.before, open_command.life, reformed, &learned)?;
        stage.routers.begin(router.log().me(), router.log().applied().0);
        self.learned(world, machine, position, learned)?;
        self.operator.acts_at = None;
        world.count(if open_command.before == Generation::FIRST {
            "generation begun"
        } else {
            "generation begun again"
        });
        for (what, occurred) in [
            ("generation begun from members", reformed.from_members.is_some()),
            ("delivered positions recovered", reformed.recovered > 0),
            ("positions missing", reformed.missing > 0),
            ("member cut off", !reformed.fenced.is_empty()),
        ] {
            if occurred {
                world.count(what);
            }
        }
        let span = world.now().since(open_command.at) + FOLLOWED;
        let well = |machine: usize| {
            world.untroubled(machine, span) && world.slept_until(machine) + span < world.now()
        };
        for who in &reformed.fenced {
            let before =
                self.orders.of(open_command.before).is_some_and(|order| order.check.has_departed(*who));
            let member = who.node as usize;
            if !before
                && world.alive(*who)
                && well(member)
                && well(machine)
                && open_command.patience > FOLLOWED
            {
                let what =
                    format!("process {who} is cut off from {:?}, although it was well", reformed.generation);
                return Err(Violation::new("who is well stays", what));
            }
        }
        Ok(())
    }
}

/// Returns the routers of a generation.
fn routers(world: &EcastWorld, generation: Generation) -> impl Iterator<Item = &Router<Rooms>> {
    let processes = (0..world.machines()).filter_map(|machine| kind(world, machine));
    let routers = processes.filter_map(|process| match process {
        Kind::Router(router) => Some(router.as_ref()),
        Kind::Member(_) => None,
    });
    routers.filter(move |router| router.generation() == generation)
}

/// Longest wait of the operator for silent routers.
const DISBELIEF_MAX: Duration = Duration::from_millis(1_500);
const PATIENCE_MIN: Duration = Duration::from_millis(100);
const PATIENCE_MAX: Duration = Duration::from_millis(2_000);
const SILENCE_MIN: Duration = Duration::from_millis(500);
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Longest time for which the remaining routers miss messages before the loss. It is shorter than the time
/// after which routers are suspected and removed.
const LAG_MAX: Duration = Duration::from_millis(400);
const DOWN_MAX: Duration = Duration::from_millis(2_500);
/// Time without faults after which every process has a link to every router, and listens to the newest
/// generation.
const FOLLOWED: Duration = Duration::from_secs(1);
