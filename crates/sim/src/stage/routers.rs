//! The routers of a system, as known from outside.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{
    Peer, ProcessId, Protocol, Time,
    paxos::{self, Paxos},
    quorum::majority,
    wire::Wire,
};
use quorate_world::{Chance, Violation, World};

/// Returns the sets of members to which unfinished changes of the members would lead. Only changes of the
/// newest accepted reign count, because each reign ends the changes of all earlier reigns.
pub fn open_changes<'a>(logs: impl Iterator<Item = &'a Paxos>) -> Vec<Vec<Peer>> {
    let statuses: Vec<paxos::Status> = logs.map(Paxos::status).collect();
    let newest = statuses.iter().map(|status| status.accepted).max();
    let current = statuses.into_iter().filter(|status| Some(status.accepted) == newest);
    current.filter_map(|status| status.members_open).collect()
}

/// Whether a router continues from its recovered log. Recovered records may not follow from each other,
/// because rot looked like a torn tail and was cut off. Then a new router begins, as in production.
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
        assert!(
            is_rot,
            "the durable records of a log follow from each other, unless rot destroyed some: {why}"
        );
        world.count("lacked what had rotted");
    }
    recovered.is_ok()
}

/// The router set as seen from outside.
#[derive(Debug, Default)]
pub struct RouterSet {
    /// The machines that run routers, or wait to run them.
    pub machines: Vec<usize>,
    /// The wanted number of routers.
    wanted: usize,
    /// Whether the domain was founded. Only the first router founds it.
    founded: bool,
    /// The newest members that any router has reported.
    pub members: Vec<ProcessId>,
    /// The position up to which the reporting router had learned.
    told_at: u64,
    leader: Option<ProcessId>,
    /// The time until which each machine is hidden from an operator, though its process may live.
    silent: BTreeMap<usize, Time>,
}

impl RouterSet {
    /// Creates the router set of these machines, of which `wanted` should be routers.
    pub fn new(machines: Vec<usize>, wanted: usize) -> Self {
        RouterSet { machines, wanted, ..RouterSet::default() }
    }

    /// Whether the domain was founded.
    pub fn founded(&self) -> bool {
        self.founded
    }

    /// Lets the next router found the domain again: the founder lost its records, or a mutation founds twice.
    pub fn found_again(&mut self) {
        self.founded = false;
    }

    /// Whether the process that starts now founds the domain: the first one does, and no other.
    pub fn founds(&mut self) -> bool {
        !std::mem::replace(&mut self.founded, true)
    }

    /// Creates the log of the router `id` that starts on `machine`: the first router founds the domain, any
    /// other joins.
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

    /// With this probability, chooses a healthy router for an operator to remove; it comes back as a new
    /// process. Returns the machine that gets the command, and the router. An operator removes nothing from a
    /// set that already lacks members.
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

    /// Returns the targets of faults, in two equally likely groups: all routers, and the leader alone.
    pub fn targets(&self) -> [Vec<usize>; 2] {
        let leader = self.leader.map(|leader| vec![leader.node as usize]);
        [self.machines.clone(), leader.unwrap_or_else(|| self.machines.clone())]
    }

    /// Returns the living routers, for processes that look for one.
    pub fn living<P: Protocol>(&self, world: &World<P>) -> Vec<Peer>
    where
        P::Message: Wire,
    {
        let living = self.machines.iter().filter_map(|&machine| Some((world.id(machine)?, machine)));
        living.map(|(id, machine)| Peer { id, address: World::<P>::address(machine) }).collect()
    }

    /// Whether the set has the wanted number of members, and all live.
    pub fn are_whole<P: Protocol>(&self, world: &World<P>) -> bool
    where
        P::Message: Wire,
    {
        self.members.len() == self.wanted && self.members.iter().all(|&id| world.alive(id))
    }

    /// Whether any router has reported members.
    pub fn begun(&self) -> bool {
        !self.members.is_empty()
    }

    /// Whether a majority of the members, and of each set of members to which an `open` change would lead,
    /// would remain without the process on `machine`.
    pub fn may_crash<P: Protocol>(&self, world: &World<P>, machine: usize, open: &[Vec<Peer>]) -> bool
    where
        P::Message: Wire,
    {
        self.founded && self.have_majorities(open, |id| world.remains(id) && Some(id) != world.id(machine))
    }

    /// Hides `machine` from an operator until that time.
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

    /// Whether an operator can believe that a majority of the routers is lost, or a majority of the routers
    /// after an unfinished change, because too few routers answer.
    pub fn seem_lost<P: Protocol>(&self, world: &World<P>, open: &[Vec<Peer>]) -> bool
    where
        P::Message: Wire,
    {
        self.founded && !self.members.is_empty() && !self.have_majorities(open, |id| self.answers(world, id))
    }

    /// Begins a generation: `survivor` is the only member, and has learned up to `position`.
    pub fn begin(&mut self, survivor: ProcessId, position: u64) {
        (self.members, self.told_at) = (vec![survivor], position);
    }

    /// Returns the loss that has stopped the domain for good (rule S1): no majority of the members lives, or
    /// no majority of the members after an unfinished change lives.
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

    /// Takes the members reported by a router that had learned up to `position`. `one_by_one`: the router
    /// reports every single change.
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
            let what = format!(
                "routers report both {old_set:?} and {new_set:?} as the set of routers at position \
                 {position}"
            );
            return Err(Violation::new("agreement", what));
        }
        if one_by_one && old_set.symmetric_difference(&new_set).count() > 1 {
            let what = format!(
                "the set of routers changed from {old_set:?} to {new_set:?} in one step at position \
                 {position}"
            );
            return Err(Violation::new("one router at a time", what));
        }
        if new_set.len() < old_set.len() && new_set.len() < majority(self.wanted) {
            let what = format!(
                "the set of routers shrank to {new_set:?} at position {position}, fewer than a majority of \
                 the {} wanted routers",
                self.wanted
            );
            return Err(Violation::new("S2", what));
        }
        world.count(if new_set.len() > old_set.len() { "router added" } else { "router removed" });
        (self.members, self.told_at) = (new, position);
        Ok(())
    }

    /// Takes the leader that a router reported.
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
