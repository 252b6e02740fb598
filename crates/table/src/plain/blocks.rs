//! Rows in the order of the ring, in blocks that versions share.
//!
//! A row's [`Place`] is its ring key, then a hash of its primary key, then its number. So the rows of an arc lie
//! together (migration and pruning are slices), rows that could have equal primary keys lie together (the order is the
//! unique index), and every replica holds and visits rows in the same order, whatever way they came.
//!
//! Blocks are copied when they are written while another version holds them, so that keeping a version costs a pointer
//! and writing after that costs one block for each block touched.

use std::sync::Arc;

use crate::{
    engine::{Epoch, RowId},
    schema::KeyRange,
    value::Value,
};

/// How many rows a block holds before it is split in two.
const BLOCK_ROWS: usize = 256;

/// Where a row lies among all rows of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) key: u64,
    pub(crate) tie: u64,
    pub(crate) id: RowId,
}

impl Place {
    /// Before every row of this ring key.
    pub(crate) fn first(key: u64) -> Place {
        Place { key, tie: 0, id: RowId { epoch: Epoch(0), line: 0 } }
    }
}

/// A row as it lies in a block.
pub(crate) type Stored = Arc<[Value]>;

/// Rows in order.
#[derive(Clone, Default)]
pub(crate) struct Blocks {
    /// None is empty; the last place of each lies before the first of the next.
    blocks: Vec<Arc<Block>>,
    rows: usize,
}

#[derive(Clone)]
struct Block {
    rows: Vec<(Place, Stored)>,
    bytes: usize,
}

impl Block {
    fn last(&self) -> Place {
        self.rows.last().expect("no block is empty").0
    }
}

impl Blocks {
    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Bytes of those blocks that no version in `others` shares.
    pub(crate) fn bytes_apart_from(&self, others: &[&Blocks]) -> usize {
        let mut shared: Vec<*const Block> =
            others.iter().flat_map(|other| other.blocks.iter().map(Arc::as_ptr)).collect();
        shared.sort_unstable();
        let apart = self.blocks.iter().filter(|block| shared.binary_search(&Arc::as_ptr(block)).is_err());
        apart.map(|block| block.bytes).sum()
    }

    /// The block that `place` belongs in, and where in it.
    fn find(&self, place: &Place) -> (usize, Result<usize, usize>) {
        let index =
            self.blocks.partition_point(|block| block.last() < *place).min(self.blocks.len().max(1) - 1);
        match self.blocks.get(index) {
            Some(block) => (index, block.rows.binary_search_by(|(other, _)| other.cmp(place))),
            None => (0, Err(0)),
        }
    }

    /// The row at a place.
    pub(crate) fn at(&self, place: &Place) -> Option<&Stored> {
        let (block, position) = self.find(place);
        Some(&self.blocks.get(block)?.rows[position.ok()?].1)
    }

    /// Puts a row at its place; returns the one that was there.
    pub(crate) fn insert(&mut self, place: Place, row: Stored) -> Option<Stored> {
        let size = bytes_of(&row);
        let (index, position) = self.find(&place);
        if self.blocks.is_empty() {
            self.blocks.push(Arc::new(Block { rows: Vec::with_capacity(BLOCK_ROWS), bytes: 0 }));
        }
        let block = Arc::make_mut(&mut self.blocks[index]);
        block.bytes += size;
        let replaced = match position {
            Ok(position) => Some(std::mem::replace(&mut block.rows[position].1, row)),
            Err(position) => {
                block.rows.insert(position, (place, row));
                None
            }
        };
        if let Some(replaced) = &replaced {
            let freed = bytes_of(replaced);
            block.bytes -= freed;
        } else {
            self.rows += 1;
        }
        if block.rows.len() > BLOCK_ROWS {
            // Rows that arrive in order leave full blocks behind; others are split in the middle.
            let appended = position == Err(BLOCK_ROWS);
            let rest = block.rows.split_off(if appended { BLOCK_ROWS } else { BLOCK_ROWS / 2 });
            let bytes = rest.iter().map(|(_, row)| bytes_of(row)).sum();
            block.bytes -= bytes;
            self.blocks.insert(index + 1, Arc::new(Block { rows: rest, bytes }));
        }
        replaced
    }

    /// Takes a row away.
    pub(crate) fn remove(&mut self, place: &Place) -> Option<Stored> {
        let (index, Ok(position)) = self.find(place) else { return None };
        let block = Arc::make_mut(&mut self.blocks[index]);
        let (_, row) = block.rows.remove(position);
        let freed = bytes_of(&row);
        block.bytes -= freed;
        self.rows -= 1;
        if block.rows.is_empty() {
            self.blocks.remove(index);
        }
        Some(row)
    }

    /// The rows from a place on.
    pub(crate) fn from(&self, start: Place) -> impl Iterator<Item = (&Place, &Stored)> {
        let (block, position) = self.find(&start);
        let skipped = position.unwrap_or_else(|position| position);
        self.blocks[block.min(self.blocks.len())..]
            .iter()
            .flat_map(|block| &block.rows)
            .skip(skipped)
            .map(|(place, row)| (place, row))
    }

    /// The rows of sorted, disjoint arcs, from a place on.
    pub(crate) fn within<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        start: Place,
    ) -> impl Iterator<Item = (&'a Place, &'a Stored)> {
        ranges.iter().filter(move |range| range.high >= start.key).flat_map(move |range| {
            self.from(start.max(Place::first(range.low)))
                .take_while(move |(place, _)| place.key <= range.high)
        })
    }
}

fn bytes_of(row: &Stored) -> usize {
    let entry = size_of::<(Place, Stored)>() + 2 * size_of::<usize>();
    entry + row.iter().map(Value::bytes).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u32),
        Remove(u64, u32),
        Keep,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0u64..40, 0u32..40).prop_map(|(key, line)| Step::Insert(key, line)),
            4 => (0u64..40, 0u32..40).prop_map(|(key, line)| Step::Remove(key, line)),
            1 => Just(Step::Keep),
        ]
    }

    fn place(key: u64, line: u32) -> Place {
        Place { key, tie: 0, id: RowId { epoch: Epoch(1), line } }
    }

    proptest! {
        #[test]
        fn blocks_are_an_ordered_map_with_versions(
            steps in prop::collection::vec(any_step(), 0..1500), low in 0u64..40, high in 0u64..40
        ) {
            let (mut blocks, mut model) = (Blocks::default(), BTreeMap::new());
            let mut kept = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(key, line) => {
                        let row: Stored = vec![Value::Int8(number as i64)].into();
                        prop_assert_eq!(
                            blocks.insert(place(key, line), row.clone()), model.insert(place(key, line), row)
                        );
                    }
                    Step::Remove(key, line) => {
                        prop_assert_eq!(blocks.remove(&place(key, line)), model.remove(&place(key, line)));
                    }
                    Step::Keep => kept.push((blocks.clone(), model.clone())),
                }
            }
            kept.push((blocks, model));
            for (blocks, model) in kept {
                prop_assert_eq!(blocks.len(), model.len());
                let bytes: usize = model.values().map(bytes_of).sum();
                prop_assert_eq!(blocks.bytes_apart_from(&[]), bytes);
                prop_assert_eq!(blocks.bytes_apart_from(&[&blocks.clone()]), 0);
                prop_assert!(blocks.from(Place::first(0)).eq(&model));
                let ranges = [KeyRange { low, high }];
                if low <= high {
                    let start = place(low + 1, 7);
                    let expected = model.iter().filter(|(place, _)| **place >= start && place.key <= high);
                    prop_assert!(blocks.within(&ranges, start).eq(expected));
                }
                for (place, row) in &model {
                    prop_assert_eq!(blocks.at(place), Some(row));
                }
            }
        }
    }
}
