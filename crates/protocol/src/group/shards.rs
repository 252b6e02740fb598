//! The groups of a domain, in shards that copies share.
//!
//! Routers keep a configuration for each of the last positions, so one is copied at each change. A copy is a pointer for each
//! shard, and a change copies its shard's pointers and its group: what other groups there are hardly matters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Group, GroupId};
use crate::domain::Shared;

/// Groups by the last byte of their number, which is a hash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Shards(BTreeMap<u8, Shared<Shard>>);

type Shard = BTreeMap<GroupId, Shared<Group>>;

fn place(group: GroupId) -> u8 {
    group.0 as u8
}

impl Shards {
    pub(super) fn get(&self, group: GroupId) -> Option<&Group> {
        self.0.get(&place(group))?.get(&group).map(|group| &**group)
    }

    /// A group to be changed: a copy, if others have it.
    pub(super) fn get_mut(&mut self, group: GroupId) -> Option<&mut Group> {
        self.get(group)?;
        Some(self.0.get_mut(&place(group))?.to_mut().get_mut(&group)?.to_mut())
    }

    /// The same of one that comes to be now, if there is none.
    pub(super) fn entry(&mut self, group: GroupId) -> &mut Group {
        let shard = self.0.entry(place(group)).or_insert_with(|| Shared::new(Shard::new()));
        shard.to_mut().entry(group).or_insert_with(|| Shared::new(Group::default())).to_mut()
    }

    pub(super) fn remove(&mut self, group: GroupId) {
        if let Some(shard) = self.0.get_mut(&place(group)) {
            shard.to_mut().remove(&group);
            if shard.is_empty() {
                self.0.remove(&place(group));
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.0.values().flat_map(|shard| shard.iter()).map(|(id, group)| (*id, &**group))
    }
}
