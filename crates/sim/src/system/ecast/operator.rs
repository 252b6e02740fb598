//! An operator who has the domain go on when a majority of its routers is lost (rule S1), and what that promises.
//!
//! Or all routers die at once; then the operator asks a fresh one to go on from the members, and another if that one dies too.
//!
//! Once or several times a run a majority of the routers is lost at once: some die for good and come back as fresh processes,
//! some are only silent, cut off together with some members, and may go on by themselves with a majority that nobody else sees.
//! After a while the operator asks one of those that vote and answer to begin another generation: any of them, not the
//! one that knows most, as the tool would; so more is lost than need be. Fresh routers join it, as supervisors start them.
//!
//! **What is promised afterwards**, and judged for each generation by itself ([`Generations`](crate::check::order::Generations)):
//!
//! - *What the survivor had learned stays* where it was: the generation's order is the earlier one up to there.
//! - *Facts keep their positions.* Whatever a member has delivered that is a member still, and was not cut off, is at its
//!   position in the new order, whole; nothing else is between the survivor's end and the last of these, and what is there
//!   was there before. An acknowledged message is delivered by all its destinations that had not departed, so it is kept
//!   if one of them stays.
//! - *Who is well is not cut off.* A member that nothing was wrong with, as nothing was with the survivor and its links, stays.
//! - *Who is cut off learns of it,* and so does a router that the domain went on without.
//! - *Nothing comes twice.* A submission has one position in each order. Its number may be left out, if its submitter was told
//!   of it before, or one behind it was recovered; it is never told then that it is stable.
//! - *The rest holds as ever,* from there on: the seven predicates, one outcome for each submission, stability. The earlier order
//!   is judged too, by those that have not followed, as long as they go on in it.
//! - *It answers again.* When faults end, the domain has all its routers and members, and all that was submitted is ordered.
//!
//! What may be lost, and is: what only cut-off members had delivered, or nobody. Not judged here: credits (S7), which speak of
//! one order.

use std::time::Duration;

use quorate_protocol::{
    Generation, Peer, ProcessId, Time,
    ecast::{Ordered, Position, Reformed, Router, RouterCommand},
    paxos::ReformRefusal,
    quorum::majority,
};

use quorate_world::{Chance, Crash, Violation};

use super::{Ask, Kind, People, Stage, World, generation, kind};
use crate::{
    stage::{changes, command_id},
    system::rooms::Rooms,
};

/// The operator, and the accidents that call for one.
pub(super) struct Operator {
    /// When majorities are lost, the next one last.
    losses: Vec<Time>,
    /// When all routers die, the next time last.
    extinctions: Vec<Time>,
    /// When the founder that was asked dies too.
    doomed_founder: Option<Time>,
    /// Who is lost next, and when: whoever is not hears nothing of the rest until then.
    doomed: Option<(Time, Vec<usize>)>,
    /// When the operator, who sees a majority lost, will believe it.
    believes_at: Option<Time>,
    asked: Option<Asked>,
    /// A router died that had been asked, before its generation began: those who followed it turn everybody else away.
    bereft: bool,
    /// What the survivor has learned since.
    pub(super) learned: (Position, Vec<(Position, Ordered)>),
    chance: Chance,
}

/// A router was asked to begin a generation.
#[derive(Clone, Copy)]
struct Asked {
    machine: usize,
    life: u64,
    /// The generation that it belonged to.
    before: Generation,
    at: Time,
    /// How long members may take to answer.
    patience: Duration,
}

impl Operator {
    /// So many accidents in a time of faults that is so long: a majority of the routers is lost, or all die.
    pub(super) fn new(seed: u64, (losses, extinctions): (u32, u32), safety: Duration) -> Self {
        let mut chance = Chance::new(seed, "operator");
        let (first, last) = (Duration::from_secs(1), safety.saturating_sub(Duration::from_secs(1)));
        let mut losses: Vec<Time> = (0..losses).map(|_| Time::ZERO + chance.between(first, last)).collect();
        losses.sort_unstable_by(|one, other| other.cmp(one));
        // Not all at once, so that a domain goes on more than once.
        let each = last.saturating_sub(first) / extinctions.max(1);
        let mut extinctions: Vec<Time> = (0..extinctions)
            .map(|number| Time::ZERO + first + each * number + chance.between(Duration::ZERO, each / 2))
            .collect();
        extinctions.reverse();
        Operator {
            losses,
            extinctions,
            doomed_founder: None,
            doomed: None,
            believes_at: None,
            asked: None,
            bereft: false,
            learned: Default::default(),
            chance,
        }
    }

    /// What is lost where nobody is left to go on from.
    pub(super) fn lost(&self) -> &'static str {
        if self.bereft { "lost: a survivor before its generation began" } else { "lost: all routers" }
    }

    /// The router that was asked cannot; another may be asked, or the same again.
    pub(super) fn refused(&mut self) {
        self.asked = None;
    }
}

impl People {
    /// Looks after the routers.
    pub(super) fn operate(&mut self, stage: &mut Stage, world: &mut World) {
        let now = world.now();
        if self.operator.asked.is_some_and(|asked| {
            world.process(asked.machine).is_none() || world.life(asked.machine) != asked.life
        }) {
            self.operator.asked = None;
            self.operator.bereft = true;
        }
        if self.operator.extinctions.pop_if(|at| *at <= now).is_some() && !stage.is_healed() {
            self.extinguish(stage, world);
        }
        if self.operator.doomed_founder.take_if(|at| *at <= now).is_some()
            && let Some(asked) = self.operator.asked
        {
            world.count("founder lost");
            world.crash(asked.machine, Crash::Killed);
            world.restart_after(asked.machine, Duration::ZERO);
        }
        if let Some((_, doomed)) = self.operator.doomed.take_if(|(at, _)| *at <= now) {
            self.lose(stage, world, doomed);
        }
        let open = changes(self, world);
        if !stage.routers.seem_lost(world, &open) {
            self.operator.believes_at = None;
            let due = self.operator.losses.last().is_some_and(|&at| at <= now);
            let idle = self.operator.asked.is_none() && self.operator.doomed.is_none();
            if due && idle && !stage.is_healed() && self.doom(stage, world) {
                self.operator.losses.pop();
            }
            return;
        }
        let chance = &mut self.operator.chance;
        let believes_at = *self
            .operator
            .believes_at
            .get_or_insert_with(|| now + chance.between(Duration::ZERO, DISBELIEF_MAX));
        if believes_at <= now && self.operator.asked.is_none() {
            let survivors = self.survivors(stage, world);
            if let Some(machine) = self.operator.chance.pick(&survivors) {
                let patience = self.operator.chance.between(PATIENCE_MIN, PATIENCE_MAX);
                let (life, before) = (world.life(machine), self.orders.current());
                self.operator.asked = Some(Asked { machine, life, before, at: now, patience });
                world
                    .command(machine, Ask::Router(RouterCommand::Reform { id: command_id(world), patience }));
            } else if self.settings.extinctions > 0 {
                self.refound(world);
            }
        }
    }

    /// All routers die at once, and some members with them.
    fn extinguish(&mut self, stage: &mut Stage, world: &mut World) {
        let chance = &mut self.operator.chance;
        // Members take those that vanish for alive for a while.
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

    /// Asks a router that knows nothing to go on from the members that live. It may die of it.
    fn refound(&mut self, world: &mut World) {
        let fresh = (0..world.machines()).filter(|&machine| match kind(world, machine) {
            Some(Kind::Router(router, _)) => router.log().can_found(),
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
        let address = |machine| World::address(machine);
        let members = living.iter().map(|&(machine, id)| Peer { id, address: address(machine) }).collect();
        let (life, current) = (world.life(machine), self.orders.current());
        self.operator.asked = Some(Asked { machine, life, before: current, at: now, patience });
        let id = command_id(world);
        world.command(machine, Ask::Router(RouterCommand::Refound { id, before, members, patience }));
    }

    /// Routers that answer and that a generation could begin with.
    pub(super) fn survivors(&self, stage: &Stage, world: &World) -> Vec<usize> {
        let votes = routers(world, self.orders.current())
            .filter(|router| router.log().can_reform() != Err(ReformRefusal::NotMember));
        let ids = votes.map(|router| router.log().me());
        ids.filter(|id| stage.routers.answers(world, *id)).map(|id| id.node as usize).collect()
    }

    /// A majority of the routers will be lost soon. What they agree on until then the others may not hear.
    fn doom(&mut self, stage: &mut Stage, world: &mut World) -> bool {
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
        self.operator.doomed = Some((world.now() + lag, lost));
        true
    }

    /// These are lost, most of the routers, and perhaps some members with them.
    fn lose(&mut self, stage: &mut Stage, world: &mut World, mut lost: Vec<usize>) {
        let chance = &mut self.operator.chance;
        // Whoever was to be left may have died since.
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

    /// A generation has begun.
    pub(super) fn begin(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        reformed: &Reformed,
    ) -> Result<(), Violation> {
        let Some(Kind::Router(router, _)) = kind(world, machine) else { return Ok(()) };
        let asked = self.operator.asked.take().filter(|asked| asked.life == world.life(machine));
        let Some(asked) = asked else {
            let what = format!("machine {machine} begins {:?}, and nobody asked it", reformed.generation);
            return Err(Violation::new("S1", what));
        };
        let (position, learned) = std::mem::take(&mut self.operator.learned);
        self.orders.begin(asked.before, asked.life, reformed, &learned)?;
        stage.routers.begin(router.log().me(), router.log().applied().0);
        self.learned(world, machine, position, learned)?;
        self.operator.believes_at = None;
        world.count(if asked.before == Generation::FIRST {
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
        let span = world.now().since(asked.at) + FOLLOWED;
        let well = |machine: usize| {
            world.untroubled(machine, span) && world.slept_until(machine) + span < world.now()
        };
        for who in &reformed.fenced {
            let before = self.orders.of(asked.before).is_some_and(|order| order.check.has_departed(*who));
            let member = who.node as usize;
            if !before && world.alive(*who) && well(member) && well(machine) && asked.patience > FOLLOWED {
                let what = format!("{who} is cut off from {:?}, and was well", reformed.generation);
                return Err(Violation::new("who is well stays", what));
            }
        }
        Ok(())
    }
}

/// The routers of a generation.
fn routers(world: &World, generation: Generation) -> impl Iterator<Item = &Router<Rooms>> {
    let processes = (0..world.machines()).filter_map(|machine| kind(world, machine));
    let routers = processes.filter_map(|process| match process {
        Kind::Router(router, _) => Some(router.as_ref()),
        Kind::Member(..) => None,
    });
    routers.filter(move |router| router.generation() == generation)
}

/// The operator waits no longer for those that are silent.
const DISBELIEF_MAX: Duration = Duration::from_millis(1_500);
const PATIENCE_MIN: Duration = Duration::from_millis(100);
const PATIENCE_MAX: Duration = Duration::from_millis(2_000);
const SILENCE_MIN: Duration = Duration::from_millis(500);
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Less than what routers are suspected and removed after.
const LAG_MAX: Duration = Duration::from_millis(400);
const DOWN_MAX: Duration = Duration::from_millis(2_500);
/// After so long without trouble everyone has a link to every router, and listens to the newest generation.
const FOLLOWED: Duration = Duration::from_secs(1);
