//! A map with a value for each group, in shards that copies of the map share.
//!
//! Routers keep a configuration for each of the last positions, so each change copies a configuration. Such a
//! copy holds one pointer for each shard. A change copies the pointers of one shard and the value of one
//! group, so the number of other groups hardly matters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::id::GroupId;
use crate::domain::Shared;

/// A value for each group. The groups are sharded by the last byte of their numbers, which are hashes.
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
    /// Returns the value of a group for a change. Copies the value first if other copies of the map share it.
    pub(super) fn get_mut(&mut self, group: GroupId) -> Option<&mut T> {
        self.get(group)?;
        Some(self.0.get_mut(&place(group))?.to_mut().get_mut(&group)?.to_mut())
    }

    /// Returns the value of a group for a change, like `get_mut`. A group without a value gets the default
    /// value.
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
