//! Addresses: the groups that have an IP multicast address, and the groups that share one.
//!
//! **Promise.** A domain uses at most [`ADDRESSES_MAX`] addresses. The groups with the largest product
//! members × rate have an address, and groups with nearly the same members share one. Of the deliveries by an
//! address, at most [`UNWANTED_PERCENT_MAX`](allocator::UNWANTED_PERCENT_MAX) percent reach processes outside
//! the group, as of the last assignment.
//!
//! **Source.** 000 §6, which follows Dr. Multicast: addresses are scarce, because switches and network cards
//! filter only few addresses, and let all traffic pass above that number. "Allocate IPMC addresses to those
//! groups with the largest membership and highest data rate, merging similar groups if the software filtering
//! cost of doing so will be small enough."
//!
//! **Assignment.** The routers assign addresses, as part of the order: the assignment is a function of the
//! earlier control messages. So all routers compute the same assignment, and no router's death interrupts it.
//! 1. *Rates.* The member with rank 0 counts the soft messages that it delivers. It reports the number of
//!    messages a second, rounded up to a power of two ([`Control::Rates`](super::Control)). It sends a report
//!    when this rate has changed by two powers, or when the traffic has begun or ended. A steady group sends
//!    no reports. A member that gets rank 0 reports again.
//! 2. *Assignment.* The routers note rates, joins and leaves. Once a [sixteenth](DRIFT_SHARE) of all members
//!    × rates has changed, the next report makes them assign again ([`allocator`]). So the cost of one pass
//!    over all groups is shared by many changes. A group keeps its address as long as the address suits it.
//! 3. *Distribution.* The report that caused the assignment goes to the members of all groups whose address
//!    changes. Each receiver gets the new addresses of its own groups with it. A joining process gets the
//!    address with its admission.
//!
//! **Members.** A process listens to the addresses of its groups as soon as it knows them. It begins to send
//! by an address a little later, so that the other members listen by then. A group's views are independent of
//! its address, which stays when the view changes: messages carry the group and the view. Whichever way
//! messages come, the receiver ignores messages of an earlier view, and messages of a later view wait.
//!
//! **Members that multicast does not reach.** A sender finds each of them separately, as with any cast
//! (`lanes`): if it had to repair a multicast message for a member, multicast did not reach that member. Such
//! a member gets separate copies, by cast or over the link, and multicast is tried again after a while. If
//! multicast nevertheless brings the member such a message, the member recognizes the second copy by its
//! number. A multicast goes to at least two members: for one member, a separate copy costs the same.
//!
//! **Unwanted deliveries.** A listener of an address hears all groups that share the address, other domains
//! that happen to use the same address, and its own messages. The host passes on only messages of processes
//! with a standing link; a process ignores messages of a group in which it is not. Both kinds of ignored
//! messages are counted.
//!
//! **Attacks considered.**
//! - *An address changes while messages are on their way:* processes that stopped listening to the former
//!   address lose the messages, which are then repaired. The new address is unproven: one message at a time
//!   uses it until a message was confirmed.
//! - *A member claims that its group sends a million messages a second:* the routers cap rates at
//!   [`LEVEL_MAX`], and the group takes only one address.
//! - *A dropped process goes on listening:* it hears messages that follow its end, and ignores them. A
//!   group's key seals them.
//! - *A dropped process goes on sending:* no link to the process stands, and members refuse its messages
//!   (firewall).
//! - *Two members report different rates:* the last report of a member counts.
//! - *A group of two, or an idle group, has an address:* the group loses the address at the next assignment.
//!   An empty group loses its address at once.
//!
//! **Where we differ.** Dr. Multicast clusters by k-means. Here groups are placed one by one, the most
//! important first, at the address where they add the fewest unwanted deliveries, within the bound of that
//! address. This method makes one pass over all members of all groups, and moves no placed group.

mod allocator;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

pub use self::allocator::AddressStatistics;
use self::allocator::Candidate;
use super::{id::GroupId, shards::Shards, view::Group};
use crate::{
    domain::Shared,
    ecast::Position,
    id::ProcessId,
    seam::{MULTICAST_ADDRESSES, MulticastAddress},
};

/// Upper bound of the addresses of a domain.
pub const ADDRESSES_MAX: usize = 256;
/// Number of processes below which a group has no address, because separate copies cost as little.
const MEMBERS_MIN: usize = 3;
/// Rate level below which a group has no address: fewer than eight messages a second.
const LEVEL_MIN: u8 = 4;
/// Upper bound of a rate level.
const LEVEL_MAX: u8 = 24;
/// The share of the total weight (members × rate) that must have changed before addresses are assigned again,
/// as a divisor.
const DRIFT_SHARE: u64 = 16;
/// Number of blocks of multicast addresses. Each domain uses a random one of these blocks.
const BLOCKS: u32 = MULTICAST_ADDRESSES / ADDRESSES_MAX as u32;

/// Counts the soft messages of a group at one member.
#[derive(Debug, Default)]
pub(super) struct Meter {
    messages: u64,
    /// The level that this member reported last; `None` if another member of the group reports the rate.
    reported: Option<u8>,
}

impl Meter {
    pub(super) fn count(&mut self, messages: usize) {
        self.messages += messages as u64;
    }

    /// Returns the level to report for a span of `seconds`, if it differs enough from the last report.
    /// `members` is `None` if another member of the group reports.
    pub(super) fn read(&mut self, seconds: f64, members: Option<usize>, has_address: bool) -> Option<u8> {
        let rate = (std::mem::take(&mut self.messages) as f64 / seconds) as u64;
        let Some(members) = members else {
            self.reported = None;
            return None;
        };
        let level = (u64::BITS - rate.leading_zeros()).min(LEVEL_MAX.into()) as u8;
        let is_fit = level >= LEVEL_MIN && members >= MEMBERS_MIN;
        let is_news = match self.reported {
            // A member that begins to report also reports an idle group that has an address, because the
            // member before it reported a busy group.
            None => is_fit || has_address,
            Some(0) => is_fit,
            Some(reported) => reported.abs_diff(level) >= 2 || members < MEMBERS_MIN,
        };
        is_news.then(|| *self.reported.insert(if is_fit { level } else { 0 }))
    }
}

/// Rates and addresses of all groups, as routers know them: a function of the order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Addresses {
    groups: Shards<Assigned>,
    /// The first address of the domain; `None` before the first assignment.
    first: Option<u32>,
    /// Sum over all groups of members × rate, at the last assignment.
    weight: u64,
    /// The summed change of members × rate since the last assignment.
    drift: u64,
    /// The position of the last assignment.
    moved_at: Position,
    /// The groups whose addresses the last assignment changed.
    moved: Shared<BTreeSet<GroupId>>,
    statistics: AddressStatistics,
}

/// A group's rate and address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Assigned {
    level: u8,
    /// The index of the group's address among the domain's addresses.
    address: Option<u16>,
}

impl Addresses {
    /// Returns the address of a group.
    pub(super) fn of(&self, group: GroupId) -> Option<MulticastAddress> {
        let number = self.groups.get(group)?.address?;
        Some(MulticastAddress(self.first? + u32::from(number)))
    }

    pub(super) fn statistics(&self) -> AddressStatistics {
        self.statistics
    }

    /// Stores a member's report of a group's rate. Returns whether the rate is new.
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

    /// Updates the weights when a view of a group begins.
    pub(super) fn begins(&mut self, id: GroupId, group: &Group) {
        if let Some(Assigned { level, .. }) = self.groups.get(id) {
            let changed = group.view.joined.len() + group.view.left.len();
            self.drift += weight(changed, *level);
        }
    }

    /// Forgets a group without members.
    pub(super) fn forget(&mut self, id: GroupId) {
        if self.groups.get(id).is_some() {
            self.groups.remove(id);
        }
    }

    /// Assigns addresses again, at the position of this message, if enough has changed.
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

    /// Returns the groups whose addresses the message at this position changed.
    pub(super) fn moved(&self, at: Position) -> impl Iterator<Item = GroupId> + '_ {
        self.moved.iter().copied().filter(move |_| self.moved_at == at)
    }
}

/// Returns members × rate. A group that sends nothing has weight 0.
fn weight(members: usize, level: u8) -> u64 {
    if level == 0 { 0 } else { (members as u64) << level }
}

#[cfg(test)]
mod tests;
