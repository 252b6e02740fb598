//! The allocator of addresses: it takes groups and returns their addresses. It is pure: equal inputs have
//! equal results.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{group::id::GroupId, id::ProcessId};

/// Largest share of an address's deliveries that may reach processes outside the group, in percent.
pub(super) const UNWANTED_PERCENT_MAX: u64 = 5;

/// Statistics of the last assignment of addresses. Deliveries are computed from the reported rates of groups,
/// which are powers of two, in messages a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressStatistics {
    /// Number of groups that are large and busy enough for an address.
    pub candidates: u64,
    /// Number of candidates that have an address.
    pub served: u64,
    /// Number of addresses in use.
    pub addresses: u64,
    /// Deliveries by addresses to members of the message's group, in deliveries a second.
    pub wanted: u64,
    /// Deliveries by addresses to processes outside the message's group, in deliveries a second.
    pub unwanted: u64,
}

/// A group that may have an address.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) group: GroupId,
    /// The candidate's members, in order.
    pub(super) members: Vec<ProcessId>,
    /// The candidate's rate, in messages a second.
    pub(super) rate: u64,
    /// The candidate's present address, if it has one.
    pub(super) before: Option<u16>,
}

/// Groups that share an address.
#[derive(Default)]
struct MemberCluster {
    /// The listening processes, in order.
    members: Vec<u32>,
    /// Sum of the rates of all groups of the cluster, in messages a second.
    rate: u64,
    wanted: u64,
    unwanted: u64,
    groups: Vec<usize>,
}

/// An assignment in progress: the clusters, and for each process the clusters that it listens to.
struct Placement<'a> {
    candidates: &'a [Candidate],
    /// The former address of each candidate, if that address still exists.
    before: &'a [Option<u16>],
    /// The members of each candidate, as numbers.
    members: &'a [Vec<u32>],
    clusters: Vec<MemberCluster>,
    of_process: Vec<Vec<u32>>,
    /// For each list of listeners, the number of the cluster with exactly these listeners.
    same: BTreeMap<Vec<u32>, u32>,
    /// For each cluster, the number of members that it shares with the group that is being placed. The buffer
    /// is reused for each group.
    shared: Vec<u64>,
    /// The clusters that have members of the group that is being placed.
    touched: Vec<u32>,
    left: Vec<usize>,
}

/// Assigns at most `limit` addresses, numbered from 0. Returns each group's address, and statistics.
pub(super) fn assign(candidates: &[Candidate], limit: usize) -> (BTreeMap<GroupId, u16>, AddressStatistics) {
    let before = |it: &Candidate| it.before.filter(|address| usize::from(*address) < limit);
    let before: Vec<Option<u16>> = candidates.iter().map(before).collect();
    let mut processes: Vec<ProcessId> = candidates.iter().flat_map(|it| it.members.iter().copied()).collect();
    processes.sort_unstable();
    processes.dedup();
    let number = |id: &ProcessId| {
        processes.binary_search(id).expect("every member of a candidate is in the list") as u32
    };
    let members: Vec<Vec<u32>> =
        candidates.iter().map(|it| it.members.iter().map(number).collect()).collect();
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    let weight = |index: &usize| candidates[*index].rate * members[*index].len() as u64;
    order.sort_by_key(|index| (std::cmp::Reverse(weight(index)), candidates[*index].group));

    let place = |sticks: bool| {
        let mut placement = Placement {
            candidates,
            before: &before,
            members: &members,
            clusters: Vec::new(),
            of_process: vec![Vec::new(); processes.len()],
            same: BTreeMap::new(),
            shared: Vec::new(),
            touched: Vec::new(),
            left: Vec::new(),
        };
        placement.run(&order, limit, sticks);
        placement
    };
    let kept = place(true);
    // Groups keep their addresses, unless a fresh placement would serve over a tenth more deliveries than the
    // present one.
    let served = |placement: &Placement<'_>| placement.clusters.iter().map(|it| it.wanted).sum::<u64>();
    let all: u64 = order.iter().map(weight).sum();
    let placement = if served(&kept) == all {
        kept
    } else {
        let fresh = place(false);
        if served(&fresh) * 10 > served(&kept) * 11 { fresh } else { kept }
    };
    placement.number()
}

impl Placement<'_> {
    fn run(&mut self, order: &[usize], limit: usize, sticks: bool) {
        let (mut rest, mut by_address) = (Vec::new(), BTreeMap::new());
        for &index in order {
            match self.before[index].filter(|_| sticks) {
                Some(address) => {
                    let cluster = by_address.get(&address).copied();
                    match cluster {
                        Some(cluster) if self.fits(index, cluster) => self.put(index, cluster),
                        None if self.clusters.len() < limit => {
                            by_address.insert(address, self.open(index));
                        }
                        _ => rest.push(index),
                    }
                }
                None => rest.push(index),
            }
        }
        for index in rest {
            match self.cheapest(index) {
                Some(cluster) => self.put(index, cluster),
                None if self.clusters.len() < limit => {
                    self.open(index);
                }
                None => self.left.push(index),
            }
        }
        // The placed groups have made the addresses busier. A busier address may carry more unwanted traffic,
        // so the groups left over are tried again.
        for index in std::mem::take(&mut self.left) {
            if let Some(cluster) = self.cheapest(index) {
                self.put(index, cluster);
            }
        }
    }

    /// Returns the unwanted deliveries that a group would add to a cluster with `shared` of its members, if
    /// they are within the bound.
    fn added(&self, index: usize, cluster: u32, shared: u64) -> Option<u64> {
        let (it, members) = (&self.clusters[cluster as usize], self.members[index].len() as u64);
        let rate = self.candidates[index].rate;
        let added = it.rate * (members - shared) + rate * (it.members.len() as u64 - shared);
        let (wanted, unwanted) = (it.wanted + rate * members, it.unwanted + added);
        (unwanted * 100 <= UNWANTED_PERCENT_MAX * (wanted + unwanted)).then_some(added)
    }

    fn fits(&self, index: usize, cluster: u32) -> bool {
        let listens = &self.clusters[cluster as usize].members;
        let shared = self.members[index].iter().filter(|id| listens.binary_search(id).is_ok()).count();
        self.added(index, cluster, shared as u64).is_some()
    }

    /// Returns the cluster in which a group adds the fewest unwanted deliveries, if there is one within the
    /// bound.
    fn cheapest(&mut self, index: usize) -> Option<u32> {
        if let Some(cluster) = self.same.get(&self.members[index]) {
            return Some(*cluster);
        }
        self.shared.resize(self.clusters.len(), 0);
        for process in &self.members[index] {
            for &cluster in &self.of_process[*process as usize] {
                if self.shared[cluster as usize] == 0 {
                    self.touched.push(cluster);
                }
                self.shared[cluster as usize] += 1;
            }
        }
        let touched = std::mem::take(&mut self.touched);
        let costs = touched.iter().filter_map(|&cluster| {
            Some((self.added(index, cluster, self.shared[cluster as usize])?, cluster))
        });
        let cheapest = costs.min().map(|(_, cluster)| cluster);
        touched.iter().for_each(|cluster| self.shared[*cluster as usize] = 0);
        self.touched = touched;
        self.touched.clear();
        cheapest
    }

    fn open(&mut self, index: usize) -> u32 {
        let cluster = self.clusters.len() as u32;
        self.clusters.push(MemberCluster::default());
        self.put(index, cluster);
        cluster
    }

    fn put(&mut self, index: usize, cluster: u32) {
        let (members, rate) = (&self.members[index], self.candidates[index].rate);
        let it = &mut self.clusters[cluster as usize];
        let new: Vec<u32> =
            members.iter().copied().filter(|id| it.members.binary_search(id).is_err()).collect();
        let shared = members.len() - new.len();
        it.unwanted += it.rate * new.len() as u64 + rate * (it.members.len() - shared) as u64;
        it.wanted += rate * members.len() as u64;
        it.rate += rate;
        it.groups.push(index);
        if new.is_empty() {
            return;
        }
        if self.same.get(&it.members) == Some(&cluster) {
            self.same.remove(&it.members);
        }
        it.members.extend(&new);
        it.members.sort_unstable();
        // If two clusters have the same listeners, a new group may join either, so the map keeps the earlier
        // cluster.
        self.same.entry(it.members.clone()).or_insert(cluster);
        for process in new {
            self.of_process[process as usize].push(cluster);
        }
    }

    /// Gives each cluster an address: the address that most of its traffic had before, or else a free
    /// address. Returns each group's address, and statistics.
    fn number(self) -> (BTreeMap<GroupId, u16>, AddressStatistics) {
        let mut statistics =
            AddressStatistics { candidates: self.candidates.len() as u64, ..AddressStatistics::default() };
        let weight = |index: usize| self.candidates[index].rate * self.members[index].len() as u64;
        let mut wishes: Vec<(u64, usize, u16)> = Vec::new();
        for (cluster, it) in self.clusters.iter().enumerate() {
            statistics.served += it.groups.len() as u64;
            statistics.addresses += 1;
            statistics.wanted += it.wanted;
            statistics.unwanted += it.unwanted;
            let mut had: BTreeMap<u16, u64> = BTreeMap::new();
            for &index in &it.groups {
                if let Some(address) = self.before[index] {
                    *had.entry(address).or_default() += weight(index);
                }
            }
            wishes.extend(had.into_iter().map(|(address, weight)| (weight, cluster, address)));
        }
        wishes.sort_by_key(|&(weight, cluster, address)| (std::cmp::Reverse(weight), cluster, address));
        let mut of_cluster: Vec<Option<u16>> = vec![None; self.clusters.len()];
        let mut taken: BTreeMap<u16, usize> = BTreeMap::new();
        for (_, cluster, address) in wishes {
            if of_cluster[cluster].is_none() && !taken.contains_key(&address) {
                of_cluster[cluster] = Some(address);
                taken.insert(address, cluster);
            }
        }
        let mut free = (0..).filter(|address| !taken.contains_key(address));
        let mut assigned = BTreeMap::new();
        for (it, address) in self.clusters.iter().zip(of_cluster) {
            let address = address.or_else(|| free.next()).expect("there are more numbers than addresses");
            assigned.extend(it.groups.iter().map(|&index| (self.candidates[index].group, address)));
        }
        (assigned, statistics)
    }
}

#[cfg(test)]
mod tests;
