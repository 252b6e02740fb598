//! Positions of values in a list, by the hash of the value.
//!
//! A slot holds the hash and the position, not the value. So it takes 8 bytes for any value, and the table
//! grows without reading the values.

/// The largest fraction of the slots that is occupied.
const LOAD: (usize, usize) = (3, 4);
const SLOTS_MIN: usize = 4;
const FREE: u64 = u64::MAX;

#[derive(Clone, Default)]
pub(super) struct Positions {
    /// The slots, whose number is zero or a power of two. Each has the hash in the upper half and the
    /// position in the lower.
    slots: Vec<u64>,
    taken: usize,
}

impl Positions {
    /// Creates a table with room for `count` positions.
    pub(super) fn with_capacity(count: usize) -> Positions {
        match count {
            0 => Positions::default(),
            _ => Positions { slots: vec![FREE; slots_for(count)], taken: 0 },
        }
    }

    /// Returns the position of this hash at which `is_there` finds the value.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_there: impl Fn(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.home(hash);
        loop {
            let taken = self.slots[slot];
            if taken == FREE {
                return None;
            }
            if (taken >> 32) as u32 == hash && is_there(taken as u32) {
                return Some(taken as u32);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Adds the position of a value that is not in the table.
    pub(super) fn add(&mut self, hash: u32, position: u32) {
        assert!(position < u32::MAX, "a position that is not free");
        if self.slots.len() < slots_for(self.taken + 1) {
            let slots = vec![FREE; slots_for(self.taken + 1)];
            let before = std::mem::replace(&mut self.slots, slots);
            before.into_iter().filter(|taken| *taken != FREE).for_each(|taken| self.put(taken));
        }
        self.put(u64::from(hash) << 32 | u64::from(position));
        self.taken += 1;
    }

    fn put(&mut self, taken: u64) {
        let mut slot = self.home((taken >> 32) as u32);
        while self.slots[slot] != FREE {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = taken;
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }
}

fn slots_for(count: usize) -> usize {
    (count * LOAD.1).div_ceil(LOAD.0).next_power_of_two().max(SLOTS_MIN)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_equal_a_map(
            hashes in prop::collection::vec(prop_oneof![0u32..20, any::<u32>(), Just(u32::MAX)], 0..200),
            room in 0usize..100,
        ) {
            let mut positions = Positions::with_capacity(room);
            let mut model: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for (&hash, position) in hashes.iter().zip(0..) {
                prop_assert_eq!(positions.find(hash, |other| other == position), None);
                positions.add(hash, position);
                model.entry(hash).or_default().push(position);
                for (&hash, there) in &model {
                    for &one in there {
                        prop_assert_eq!(positions.find(hash, |other| other == one), Some(one));
                    }
                    prop_assert_eq!(positions.find(hash, |other| !there.contains(&other)), None);
                }
            }
        }
    }
}
