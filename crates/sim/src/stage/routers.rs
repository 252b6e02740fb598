//! The routers of a system, as they are known from outside.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{
    Peer, ProcessId, Protocol, Time,
    paxos::{self, Paxos},
    quorum::majority,
    wire::Wire,
};
use quorate_world::{Chance, Violation, World};

/// The members that changes under way would make. Whoever holds a change acts on it; one of a reign that was followed by
/// another is dead.
pub fn open_changes<'a>(logs: impl Iterator<Item = &'a Paxos>) -> Vec<Vec<Peer>> {
    let statuses: Vec<paxos::Status> = logs.map(Paxos::status).collect();
    let newest = statuses.iter().map(|status| status.accepted).max();
    let current = statuses.into_iter().filter(|status| Some(status.accepted) == newest);
    current.filter_map(|status| status.members_open).collect()
}

/// Whether a log goes on from what its recovery came to. Records that do not follow from each other lack what had rotted and looked like
/// a torn tail: a new router begins then, as real processes have it.
pub fn log_goes_on<P: Protocol, T>(
    world: &mut World<P>,
    machine: usize,
    recovered: Result<T, paxos::Corrupt>,
) -> bool
where
    P::Message: Wire,
{
    if let Err(why) = &recovered {
        let is_rot = matches!(why, paxos::Corrupt::Disconnected(_)) && world.may_lack_records(machine);
        assert!(is_rot, "what was durable follows from itself: {why}");
        world.count("lacked what had rotted");
    }
    recovered.is_ok()
}

/// The router set as the world at large sees it.
#[derive(Debug, Default)]
pub struct RouterSet {
    /// The machines that run routers, or wait to.
    pub machines: Vec<usize>,
    /// How many routers there should be.
    wanted: usize,
    /// Whether the domain was founded: only the first router ever does.
    founded: bool,
    /// The newest members that anybody has learned of.
    pub members: Vec<ProcessId>,
    /// How far who told of them had learned.
    told_at: u64,
    leader: Option<ProcessId>,
    /// Until when machines are out of an operator's sight, though they may live.
    silent: BTreeMap<usize, Time>,
}

impl RouterSet {
    /// The router set of these machines, of which so many should be routers.
    pub fn new(machines: Vec<usize>, wanted: usize) -> Self {
        RouterSet { machines, wanted, ..RouterSet::default() }
    }

    /// Whether the domain was founded.
    pub fn founded(&self) -> bool {
        self.founded
    }

    /// The next router founds the domain once more: a mutation.
    pub fn found_again(&mut self) {
        self.founded = false;
    }

    /// Whether the process that starts now founds the domain: the first one does, and no other ever.
    pub fn founds(&mut self) -> bool {
        !std::mem::replace(&mut self.founded, true)
    }

    /// The log of the router `id` that starts on `machine`: the first founds the domain, any other joins.
    pub fn start<P: Protocol>(
        &mut self,
        world: &World<P>,
        machine: usize,
        id: ProcessId,
        settings: paxos::Settings,
    ) -> Paxos
    where
        P::Message: Wire,
    {
        let me = Peer { id, address: World::<P>::address(machine) };
        if self.founds() {
            Paxos::found(me, settings, world.clock(machine))
        } else {
            Paxos::join(me, self.living(world), settings, world.clock(machine))
        }
    }

    /// With this probability an operator takes out a router that is well; it comes back as a new process. Tells which
    /// machine is asked and whom it is about. An operator asks nothing of a set that lacks members already.
    pub fn operate<P: Protocol>(
        &self,
        world: &World<P>,
        chance: &mut Chance,
        probability: f64,
    ) -> Option<(usize, ProcessId)>
    where
        P::Message: Wire,
    {
        let whole = !self.members.is_empty() && self.members.iter().all(|&id| world.alive(id));
        (chance.happens(probability) && whole).then(|| {
            let asked = self.machines[chance.index(self.machines.len())];
            (asked, self.members[chance.index(self.members.len())])
        })
    }

    /// Whom the nemesis strikes: any router, and as often the one that leads.
    pub fn targets(&self) -> [Vec<usize>; 2] {
        let leader = self.leader.map(|leader| vec![leader.node as usize]);
        [self.machines.clone(), leader.unwrap_or_else(|| self.machines.clone())]
    }

    /// The routers that live, for those who look for one.
    pub fn living<P: Protocol>(&self, world: &World<P>) -> Vec<Peer>
    where
        P::Message: Wire,
    {
        let living = self.machines.iter().filter_map(|&machine| Some((world.id(machine)?, machine)));
        living.map(|(id, machine)| Peer { id, address: World::<P>::address(machine) }).collect()
    }

    /// Whether there are as many members as there should be, and all live.
    pub fn are_whole<P: Protocol>(&self, world: &World<P>) -> bool
    where
        P::Message: Wire,
    {
        self.members.len() == self.wanted && self.members.iter().all(|&id| world.alive(id))
    }

    /// Whether the domain has members that anybody learned of.
    pub fn begun(&self) -> bool {
        !self.members.is_empty()
    }

    /// Whether the members would still have a majority without the process on `machine`, and so would those that `open`
    /// changes make.
    pub fn may_crash<P: Protocol>(&self, world: &World<P>, machine: usize, open: &[Vec<Peer>]) -> bool
    where
        P::Message: Wire,
    {
        self.founded && self.have_majorities(open, |id| world.remains(id) && Some(id) != world.id(machine))
    }

    /// An operator does not see `machine` until then.
    pub fn silent_until(&mut self, machine: usize, until: Time) {
        self.silent.insert(machine, until);
    }

    /// Whether the process `id` lives and an operator sees it.
    pub fn answers<P: Protocol>(&self, world: &World<P>, id: ProcessId) -> bool
    where
        P::Message: Wire,
    {
        let silent = self.silent.get(&(id.node as usize)).is_some_and(|&until| world.now() < until);
        world.alive(id) && !silent
    }

    /// Whether so few routers answer an operator that it can take a majority of them, or of those that an open change makes,
    /// for lost.
    pub fn seem_lost<P: Protocol>(&self, world: &World<P>, open: &[Vec<Peer>]) -> bool
    where
        P::Message: Wire,
    {
        self.founded && !self.members.is_empty() && !self.have_majorities(open, |id| self.answers(world, id))
    }

    /// A generation begins: `survivor` is the only member, and has learned up to `position`.
    pub fn begin(&mut self, survivor: ProcessId, position: u64) {
        (self.members, self.told_at) = (vec![survivor], position);
    }

    /// What is lost if no majority of the members lives, or of those that an open change makes: the domain has stopped for
    /// good then (rule S1).
    pub fn lost<P: Protocol>(&self, world: &World<P>, open: &[Vec<Peer>]) -> Option<&'static str>
    where
        P::Message: Wire,
    {
        if self.machines.is_empty() {
            None
        } else if !self.have_majorities(&[], |id| world.alive(id)) {
            Some("lost: a majority of the routers")
        } else if !self.have_majorities(open, |id| world.alive(id)) {
            Some("lost: a majority of the routers that a change makes")
        } else {
            None
        }
    }

    fn have_majorities(&self, open: &[Vec<Peer>], counts: impl Fn(ProcessId) -> bool) -> bool {
        let open = open.iter().map(|peers| peers.iter().map(|peer| peer.id).collect::<Vec<_>>());
        open.chain([self.members.clone()])
            .all(|members| members.iter().filter(|id| counts(**id)).count() >= majority(members.len()))
    }

    /// A router that had learned `position` told of the members behind it; `one_by_one`: and tells of each such change.
    pub fn told_members<P: Protocol>(
        &mut self,
        world: &mut World<P>,
        position: u64,
        members: &[Peer],
        one_by_one: bool,
    ) -> Result<(), Violation>
    where
        P::Message: Wire,
    {
        if position < self.told_at || members.is_empty() {
            return Ok(());
        }
        let new: Vec<ProcessId> = members.iter().map(|peer| peer.id).collect();
        if new == self.members {
            return Ok(());
        }
        let old_set: BTreeSet<_> = self.members.iter().copied().collect();
        let new_set: BTreeSet<_> = new.iter().copied().collect();
        if position == self.told_at {
            let what = format!("both {old_set:?} and {new_set:?} are the members at {position}");
            return Err(Violation::new("agreement", what));
        }
        if one_by_one && old_set.symmetric_difference(&new_set).count() > 1 {
            let what = format!("from {old_set:?} to {new_set:?} in one step at {position}");
            return Err(Violation::new("one router at a time", what));
        }
        if new_set.len() < old_set.len() && new_set.len() < majority(self.wanted) {
            let what = format!("only {new_set:?} are left at {position}, of {} wanted", self.wanted);
            return Err(Violation::new("S2", what));
        }
        world.count(if new_set.len() > old_set.len() { "router added" } else { "router removed" });
        (self.members, self.told_at) = (new, position);
        Ok(())
    }

    /// A router told who leads.
    pub fn told_leader<P: Protocol>(&mut self, world: &mut World<P>, leader: Option<ProcessId>)
    where
        P::Message: Wire,
    {
        if leader.is_some() && leader != self.leader {
            world.count("election");
            self.leader = leader;
        }
    }
}
