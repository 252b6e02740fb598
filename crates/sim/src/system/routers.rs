//! What all systems know about their routers from outside.

use std::collections::BTreeSet;

use quorate_protocol::{
    Peer, ProcessId, Protocol,
    paxos::{self, Paxos},
    quorum::majority,
    wire::Wire,
};

use crate::world::{Violation, World};

/// What the living routers believe that the members are, or will be: those that have learned most, and changes under way.
/// A leader that alone knows of a change may die with that knowledge; then the others need a majority of the old members
/// to go on.
pub(crate) fn beliefs<'a>(logs: impl Iterator<Item = &'a Paxos>) -> Vec<Vec<Peer>> {
    let statuses: Vec<paxos::Status> = logs.map(Paxos::status).collect();
    let most = |besides: Option<usize>| {
        let others = statuses.iter().enumerate().filter(|&(index, _)| Some(index) != besides);
        others.map(|(_, status)| status.chosen).max()
    };
    let first = (0..statuses.len()).max_by_key(|&index| statuses[index].chosen);
    let second = most(first);
    let mut believed: Vec<Vec<Peer>> =
        statuses.iter().filter_map(|status| status.members_open.clone()).collect();
    for (index, status) in statuses.iter().enumerate() {
        if !status.members.is_empty() && (Some(index) == first || Some(status.chosen) == second) {
            believed.push(status.members.clone());
        }
    }
    believed
}

/// The router set as the world at large sees it.
#[derive(Debug, Default)]
pub(crate) struct RouterSet {
    /// The machines that run routers, or wait to.
    pub(crate) machines: Vec<usize>,
    /// Whether the domain was founded: only the first router ever does.
    pub(crate) founded: bool,
    /// The newest members that anybody has learned of.
    pub(crate) members: Vec<ProcessId>,
    /// How far who told of them had learned.
    told_at: u64,
    leader: Option<ProcessId>,
}

impl RouterSet {
    pub(crate) fn new(machines: Vec<usize>) -> Self {
        RouterSet { machines, ..RouterSet::default() }
    }

    /// Whom the nemesis strikes: any router, and as often the one that leads.
    pub(crate) fn targets(&self) -> [Vec<usize>; 2] {
        let leader = self.leader.map(|leader| vec![leader.node as usize]);
        [self.machines.clone(), leader.unwrap_or_else(|| self.machines.clone())]
    }

    /// The routers that live, for those who look for one.
    pub(crate) fn living<P: Protocol>(&self, world: &World<P>) -> Vec<Peer>
    where
        P::Message: Wire,
    {
        let living = self.machines.iter().filter_map(|&machine| Some((world.id(machine)?, machine)));
        living.map(|(id, machine)| Peer { id, address: World::<P>::address(machine) }).collect()
    }

    /// Whether the members would still have a majority without the process on `machine`; and so would all that are
    /// `believed` to be.
    pub(crate) fn may_crash<P: Protocol>(
        &self,
        world: &World<P>,
        machine: usize,
        believed: &[Vec<Peer>],
    ) -> bool
    where
        P::Message: Wire,
    {
        self.founded && self.have_majorities(world, believed, world.id(machine))
    }

    /// Whether a majority of the members lives, and of all that are `believed` to be. If not, the domain has
    /// stopped for good (rule S1).
    pub(crate) fn has_majority<P: Protocol>(&self, world: &World<P>, believed: &[Vec<Peer>]) -> bool
    where
        P::Message: Wire,
    {
        self.have_majorities(world, believed, None)
    }

    fn have_majorities<P: Protocol>(
        &self,
        world: &World<P>,
        believed: &[Vec<Peer>],
        without: Option<ProcessId>,
    ) -> bool
    where
        P::Message: Wire,
    {
        let lives = |id: &ProcessId| world.alive(*id) && Some(*id) != without;
        let believed = believed.iter().map(|peers| peers.iter().map(|peer| peer.id).collect::<Vec<_>>());
        believed
            .chain([self.members.clone()])
            .all(|members| members.iter().filter(|id| lives(id)).count() >= majority(members.len()))
    }

    /// A router that had learned `position` told of the members behind it; `one_by_one`: and tells of each such change.
    pub(crate) fn told_members<P: Protocol>(
        &mut self,
        world: &mut World<P>,
        position: u64,
        members: &[Peer],
        one_by_one: bool,
    ) -> Result<(), Violation>
    where
        P::Message: Wire,
    {
        if position < self.told_at {
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
        world.count(if new_set.len() > old_set.len() { "router added" } else { "router removed" });
        (self.members, self.told_at) = (new, position);
        Ok(())
    }

    /// A router told who leads.
    pub(crate) fn told_leader<P: Protocol>(&mut self, world: &mut World<P>, leader: Option<ProcessId>)
    where
        P::Message: Wire,
    {
        if leader.is_some() && leader != self.leader {
            world.count("election");
            self.leader = leader;
        }
    }
}
