//! Addresses: which groups have an IP multicast address, and which of them share one.
//!
//! **Promise.** A domain uses at most [`ADDRESSES_MAX`] addresses. The groups with the most members × rate have one, and groups whose members
//! are nearly the same share it. Of what is delivered by an address no more than [`UNWANTED_PERCENT_MAX`] are meant for others than
//! those whom it reaches, as of the last assignment.
//!
//! **Source.** 000 §6, which has it from Dr. Multicast: addresses are scarce, since switches and network cards filter few of them and let
//! everything pass beyond that. "Allocate IPMC addresses to those groups with the largest membership and highest data rate, merging similar
//! groups if the software filtering cost of doing so will be small enough."
//!
//! **Who assigns, and when.** The routers, as part of the order: what is assigned is a function of the control messages before it, so it is
//! the same at all of them, and no router's death interrupts it.
//! 1. *Rates.* The member of a group that has rank 0 counts the soft messages that it delivers. It says how many there are a second
//!    ([`Control::Rates`](super::Control)), to the next power of two, when that has changed by two of them, began or ended: a group that goes on as
//!    before says nothing. Where another member gets rank 0, it says so anew.
//! 2. *Assignment.* The routers note rates, and what joins and leaves. Once a [sixteenth](DRIFT_SHARE) of all members × rates has changed, the next word of rates has
//!    them assign anew ([`allocator`]). So the cost is that of one pass over all groups for so many changes.
//!    Groups with an address keep it as long as it is fit.
//! 3. *Telling.* The word of rates goes to the members of all groups whose address changes by it, each with its own changes. Who joins is told
//!    with its admission.
//!
//! **Members.** A process listens to the addresses of its groups, as soon as it is told. It sends by one a little later, so that the others listen
//! by then. The views of a group have nothing to do with its address, which stays through them: messages bear the group and the view, and
//! those of an earlier view are ignored, and those of a later one wait, whichever way they come.
//!
//! **Who does not hear** is found out as it is with any cast, for each member by itself (`lanes`): what was multicast and had to be repaired
//! was lost. Such a member gets its copies alone, or over the link, and multicast is tried anew after a while. What it hears all the same are doubles, known by
//! their number. An address serves two members at least: with one, a copy to it alone costs the same.
//!
//! **Unwanted.** Who listens to an address hears all groups that share it, other domains whose addresses happen to be the same, and
//! itself. The host lets pass what is from a process to which a link stands; a process passes over messages of a group in which it is not. Both are counted.
//!
//! **Attacks considered.**
//! - *An address changes while messages are under way:* those to the former one are lost for those who stopped listening, and repaired. The new
//!   one is unproven: one message is under way by it until it was confirmed.
//! - *A member says that its group sends a million messages a second:* rates are counted up to [`LEVEL_MAX`], and its group takes one address.
//! - *A process that was dropped goes on listening:* it hears what is said behind its end, and passes over it. A group's key seals it.
//! - *A process that was dropped goes on sending:* no link to it stands, and the firewall is at the members.
//! - *Two say different rates:* the last word counts, of a member.
//! - *A group of two, or an idle one, had an address:* it loses it with the next assignment; one that nobody is in at once.
//!
//! **Where we differ.** Dr. Multicast clusters by k-means. Here groups are placed one by one, the most important first, at the address where that adds
//! the least unwanted, within its bound: it is a pass over all members of all groups, and what is placed stays.

mod allocator;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use self::allocator::Candidate;
use super::{GroupId, shards::Shards, view::Group};
use crate::{
    domain::Shared,
    ecast::Position,
    id::ProcessId,
    seam::{MULTICAST_ADDRESSES, MulticastAddress},
};

/// A domain uses no more addresses.
pub const ADDRESSES_MAX: usize = 256;
/// Of so many deliveries in a hundred an address may bring this many to processes that are not in the group.
pub(super) const UNWANTED_PERCENT_MAX: u64 = 5;
/// Groups of fewer processes have no address: a copy to each costs as little.
const MEMBERS_MIN: usize = 3;
/// Groups whose rate is below this level have none: fewer than eight messages a second.
const LEVEL_MIN: u8 = 4;
/// No rate is counted for more.
const LEVEL_MAX: u8 = 24;
/// Assigned anew once this part of all members × rates has changed.
const DRIFT_SHARE: u64 = 16;
/// Domains begin at one of so many places, by chance.
const BLOCKS: u32 = MULTICAST_ADDRESSES / ADDRESSES_MAX as u32;

/// Counts the soft messages of a group at one member.
#[derive(Debug, Default)]
pub(super) struct Meter {
    messages: u64,
    /// The level that this member told last; none if another one tells.
    told: Option<u8>,
}

impl Meter {
    pub(super) fn count(&mut self, messages: usize) {
        self.messages += messages as u64;
    }

    /// The level to be told, if that is news, as of so many seconds. `members` has none where another member tells.
    pub(super) fn read(&mut self, seconds: f64, members: Option<usize>, has_address: bool) -> Option<u8> {
        let rate = (std::mem::take(&mut self.messages) as f64 / seconds) as u64;
        let Some(members) = members else {
            self.told = None;
            return None;
        };
        let level = (u64::BITS - rate.leading_zeros()).min(LEVEL_MAX.into()) as u8;
        let is_fit = level >= LEVEL_MIN && members >= MEMBERS_MIN;
        let is_news = match self.told {
            // Another member told before, and it was busy then.
            None => is_fit || has_address,
            Some(0) => is_fit,
            Some(told) => told.abs_diff(level) >= 2 || members < MEMBERS_MIN,
        };
        is_news.then(|| *self.told.insert(if is_fit { level } else { 0 }))
    }
}

/// Rates and addresses as the routers know them. A function of the order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Addresses {
    groups: Shards<Assigned>,
    /// The first address of the domain; none before there is any.
    first: Option<u32>,
    /// Members × rates of all groups at the last assignment, and how much of it has changed since.
    weight: u64,
    drift: u64,
    /// The position of the last assignment, and the groups that have another address since.
    moved_at: Position,
    moved: Shared<BTreeSet<GroupId>>,
    statistics: AddressStatistics,
}

/// A group's rate and address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Assigned {
    level: u8,
    /// Its number among the domain's.
    address: Option<u16>,
}

/// The result of the last assignment, in messages a second as they were told, to the next power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressStatistics {
    /// Groups that are large and busy enough.
    pub candidates: u64,
    /// Those of them that have an address.
    pub served: u64,
    /// Addresses in use.
    pub addresses: u64,
    /// Deliveries by addresses to members of the group.
    pub wanted: u64,
    /// Deliveries to others who listen to the same address.
    pub unwanted: u64,
}

impl Addresses {
    /// The address of a group.
    pub(super) fn of(&self, group: GroupId) -> Option<MulticastAddress> {
        let number = self.groups.get(group)?.address?;
        Some(MulticastAddress(self.first? + u32::from(number)))
    }

    pub(super) fn statistics(&self) -> AddressStatistics {
        self.statistics
    }

    /// A member tells a group's rate. Says whether that is news.
    pub(super) fn rate(&mut self, id: GroupId, group: &Group, level: u8) -> bool {
        let level = level.min(LEVEL_MAX);
        let before = self.groups.get(id).map_or(0, |it| it.level);
        if before == level {
            return false;
        }
        self.groups.entry(id).level = level;
        let members = group.view.members.len();
        self.drift += weight(members, before).abs_diff(weight(members, level));
        true
    }

    /// A view of a group begins.
    pub(super) fn begins(&mut self, id: GroupId, group: &Group) {
        if let Some(Assigned { level, .. }) = self.groups.get(id) {
            let changed = group.view.joined.len() + group.view.left.len();
            self.drift += weight(changed, *level);
        }
    }

    /// Nobody is in a group.
    pub(super) fn forget(&mut self, id: GroupId) {
        if self.groups.get(id).is_some() {
            self.groups.remove(id);
        }
    }

    /// Assigns anew, at this position, if enough has changed.
    pub(super) fn settle<'a>(
        &mut self,
        at: Position,
        sender: ProcessId,
        group: impl Fn(GroupId) -> Option<&'a Group>,
    ) {
        if self.drift * DRIFT_SHARE < self.weight || self.drift == 0 {
            return;
        }
        let known = self.groups.iter().filter_map(|(id, assigned)| Some((id, *assigned, group(id)?)));
        let fit = known.filter(|(_, assigned, group)| {
            assigned.level >= LEVEL_MIN && group.view.members.len() >= MEMBERS_MIN
        });
        let candidates: Vec<Candidate> = fit
            .map(|(id, assigned, group)| {
                let mut members: Vec<ProcessId> = group.view.ids().collect();
                members.sort_unstable();
                Candidate { group: id, members, rate: 1 << assigned.level, before: assigned.address }
            })
            .collect();
        let (assigned, statistics) = allocator::assign(&candidates, ADDRESSES_MAX);
        let assigned: BTreeMap<GroupId, u16> = assigned;
        self.weight = self
            .groups
            .iter()
            .filter_map(|(id, it)| Some((it.level, group(id)?)))
            .fold(0, |all, (level, group)| all + weight(group.view.members.len(), level));
        let moved: BTreeSet<GroupId> = self
            .groups
            .iter()
            .filter(|(id, it)| it.address != assigned.get(id).copied())
            .map(|(id, _)| id)
            .collect();
        for id in &moved {
            self.groups.entry(*id).address = assigned.get(id).copied();
        }
        if !moved.is_empty() {
            let block = || (xxh3_64(&sender.incarnation.0.to_le_bytes()) % u64::from(BLOCKS)) as u32;
            self.first.get_or_insert_with(|| block() * ADDRESSES_MAX as u32);
        }
        (self.drift, self.statistics) = (0, statistics);
        (self.moved_at, self.moved) = (at, Shared::new(moved));
    }

    /// The groups that have another address since the message at this position.
    pub(super) fn moved(&self, at: Position) -> impl Iterator<Item = GroupId> + '_ {
        self.moved.iter().copied().filter(move |_| self.moved_at == at)
    }
}

/// Members × rate. A group that sends nothing weighs nothing.
fn weight(members: usize, level: u8) -> u64 {
    if level == 0 { 0 } else { (members as u64) << level }
}

#[cfg(test)]
mod tests;
