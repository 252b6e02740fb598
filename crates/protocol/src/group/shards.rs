//! What is known of the groups of a domain, in shards that copies share.
//!
//! Routers keep a configuration for each of the last positions, so one is copied at each change. A copy is a pointer for each
//! shard, and a change copies its shard's pointers and its group: what other groups there are hardly matters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::GroupId;
use crate::domain::Shared;

/// Something of each group, by the last byte of its number, which is a hash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Serialize", deserialize = "T: Deserialize<'de>"))]
pub(super) struct Shards<T>(BTreeMap<u8, Shared<Shard<T>>>);

type Shard<T> = BTreeMap<GroupId, Shared<T>>;

impl<T> Default for Shards<T> {
    fn default() -> Self {
        Shards(BTreeMap::new())
    }
}

fn place(group: GroupId) -> u8 {
    group.0 as u8
}

impl<T> Shards<T> {
    pub(super) fn get(&self, group: GroupId) -> Option<&T> {
        self.0.get(&place(group))?.get(&group).map(|group| &**group)
    }

    pub(super) fn len(&self) -> usize {
        self.0.values().map(|shard| shard.len()).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupId, &T)> {
        self.0.values().flat_map(|shard| shard.iter()).map(|(id, group)| (*id, &**group))
    }
}

impl<T: Clone> Shards<T> {
    /// That of a group, to be changed: a copy, if others have it.
    pub(super) fn get_mut(&mut self, group: GroupId) -> Option<&mut T> {
        self.get(group)?;
        Some(self.0.get_mut(&place(group))?.to_mut().get_mut(&group)?.to_mut())
    }

    /// The same of one that comes to be now, if there is none.
    pub(super) fn entry(&mut self, group: GroupId) -> &mut T
    where
        T: Default,
    {
        let shard = self.0.entry(place(group)).or_insert_with(|| Shared::new(Shard::new()));
        shard.to_mut().entry(group).or_insert_with(|| Shared::new(T::default())).to_mut()
    }

    pub(super) fn insert(&mut self, group: GroupId, value: T) {
        let shard = self.0.entry(place(group)).or_insert_with(|| Shared::new(Shard::new()));
        shard.to_mut().insert(group, Shared::new(value));
    }

    pub(super) fn remove(&mut self, group: GroupId) {
        if let Some(shard) = self.0.get_mut(&place(group)) {
            shard.to_mut().remove(&group);
            if shard.is_empty() {
                self.0.remove(&place(group));
            }
        }
    }
}
