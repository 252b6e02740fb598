//! The plain engine: it runs a row at a time, is obviously correct, and is the twin of every faster engine.
//!
//! `versions` is the common part of all engines. Here rows are stored whole, in blocks that versions share,
//! and a read evaluates its filter on every row of its arcs. A block that another version holds is copied
//! before a write. So keeping a version costs a pointer, and a later write copies each block that it touches.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use rustc_hash::FxHashSet;

use crate::{
    alter::Alteration,
    engine::{Answer, Epoch, Failure, RowId},
    explain::{self, Explanation},
    expr::Expr,
    host::Host,
    saved::{self, NameCell, OutlineLine, Records, Saver},
    schema::{KeyRange, Schema},
    value::Value,
    versions::{
        FoundRow, FoundRows, OwnedRow, ReadOutput, RowPlace, RowTask, RowUpdate, RowView, Rows, Spot,
        Versions,
    },
};

/// The plain engine.
pub type PlainEngine = Versions<Blocks>;

/// Maximum number of rows of a block; a block with more is split in two.
const BLOCK_ROWS: usize = 256;

/// The rows of a table, in order.
#[derive(Clone, Default)]
pub struct Blocks {
    /// The blocks in order: none is empty, and all places of a block precede those of the next.
    blocks: Vec<Arc<Block>>,
    rows: usize,
}

#[derive(Clone)]
struct Block {
    rows: Vec<(RowPlace, OwnedRow)>,
    bytes: usize,
    /// The name of the block's fragment on disk; a change clears it.
    mark: NameCell,
}

impl Block {
    fn new(rows: Vec<(RowPlace, OwnedRow)>) -> Block {
        let bytes = rows.iter().map(|(_, row)| bytes_of(row)).sum();
        Block { rows, bytes, mark: NameCell::default() }
    }

    fn last(&self) -> RowPlace {
        self.rows.last().expect("no block is empty").0
    }
}

impl Blocks {
    /// Returns the block that `place` belongs in, and its position there.
    fn find(&self, place: &RowPlace) -> (usize, Result<usize, usize>) {
        let index =
            self.blocks.partition_point(|block| block.last() < *place).min(self.blocks.len().max(1) - 1);
        match self.blocks.get(index) {
            Some(block) => (index, block.rows.binary_search_by(|(other, _)| other.cmp(place))),
            None => (0, Err(0)),
        }
    }

    /// Puts a row at its place, and returns the row that was there before.
    fn put(&mut self, place: RowPlace, row: OwnedRow) -> Option<OwnedRow> {
        let size = bytes_of(&row);
        let (index, position) = self.find(&place);
        if self.blocks.is_empty() {
            self.blocks.push(Arc::new(Block::new(Vec::with_capacity(BLOCK_ROWS))));
        }
        let block = Arc::make_mut(&mut self.blocks[index]);
        block.mark.clear();
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
            // Appended rows fill whole blocks. Other blocks are split in the middle.
            let appended = position == Err(BLOCK_ROWS);
            let rest = block.rows.split_off(if appended { BLOCK_ROWS } else { BLOCK_ROWS / 2 });
            let rest = Block::new(rest);
            block.bytes -= rest.bytes;
            self.blocks.insert(index + 1, Arc::new(rest));
        }
        replaced
    }

    /// Removes a row.
    fn take(&mut self, place: &RowPlace) -> Option<OwnedRow> {
        let (index, Ok(position)) = self.find(place) else { return None };
        let block = Arc::make_mut(&mut self.blocks[index]);
        block.mark.clear();
        let (_, row) = block.rows.remove(position);
        let freed = bytes_of(&row);
        block.bytes -= freed;
        self.rows -= 1;
        if block.rows.is_empty() {
            self.blocks.remove(index);
        }
        Some(row)
    }

    /// Returns a found row with its place. The spot is arbitrary, because this engine searches for the row
    /// by its place when the row changes.
    fn found(&self, place: RowPlace) -> FoundRow {
        FoundRow { place, spot: Spot { block: 0, row: 0 } }
    }

    /// Returns the rows from a place on.
    fn from(&self, start: RowPlace) -> impl Iterator<Item = (&RowPlace, &OwnedRow)> {
        let (block, position) = self.find(&start);
        let skipped = position.unwrap_or_else(|position| position);
        self.blocks[block.min(self.blocks.len())..]
            .iter()
            .flat_map(|block| &block.rows)
            .skip(skipped)
            .map(|(place, row)| (place, row))
    }
}

impl Rows for Blocks {
    fn new(_: &Arc<Schema>) -> Blocks {
        Blocks::default()
    }

    fn altered(&self, _: &Arc<Schema>, alteration: &Alteration) -> Blocks {
        let altered = |(place, row): &(RowPlace, OwnedRow)| (*place, alteration.row(row).into());
        let blocks = self.blocks.iter().map(|block| {
            let rows = block.rows.iter().map(altered).collect();
            Arc::new(Block::new(rows))
        });
        Blocks { blocks: blocks.collect(), rows: self.rows }
    }

    fn gathered<'a>(_: &Arc<Schema>, rows: impl Iterator<Item = (RowPlace, &'a [Value])>) -> Blocks {
        let mut blocks = Blocks::default();
        blocks.insert(rows.map(|(place, row)| (place, row.into())).collect(), None);
        blocks
    }

    fn len(&self) -> usize {
        self.rows
    }

    fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> usize {
        let apart = self.blocks.iter().filter(|block| counted.insert(Arc::as_ptr(block).addr()));
        apart.map(|block| block.bytes).sum()
    }

    fn bytes_unshared(&self, newer: &Blocks) -> usize {
        let shared: FxHashSet<*const Block> = newer.blocks.iter().map(Arc::as_ptr).collect();
        let apart = self.blocks.iter().filter(|block| !shared.contains(&Arc::as_ptr(block)));
        apart.map(|block| block.bytes).sum()
    }

    fn places(&self) -> impl Iterator<Item = RowPlace> {
        self.from(RowPlace::first(0)).map(|(place, _)| *place)
    }

    fn has(&self, place: &RowPlace) -> bool {
        self.find(place).1.is_ok()
    }

    fn within<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        start: RowPlace,
    ) -> impl Iterator<Item = (RowPlace, RowView<'a>)> {
        ranges.iter().filter(move |range| range.high >= start.key).flat_map(move |range| {
            self.from(start.max(RowPlace::first(range.low)))
                .take_while(move |(place, _)| place.key <= range.high)
                .map(|(place, row)| (*place, Cow::Borrowed(&row[..])))
        })
    }

    fn tied(&self, key: u64, tie: u64) -> Vec<(RowPlace, RowView<'_>)> {
        self.from(RowPlace { tie, ..RowPlace::first(key) })
            .take_while(|(place, _)| (place.key, place.tie) == (key, tie))
            .map(|(place, row)| (*place, Cow::Borrowed(&row[..])))
            .collect()
    }

    fn candidates<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        _: Option<&Expr>,
        _: &'a [usize],
    ) -> impl Iterator<Item = (FoundRow, RowView<'a>)> {
        let found = |(place, row)| (self.found(place), row);
        self.within(ranges, RowPlace::first(0)).map(found)
    }

    fn at(&self, found: &FoundRow, _: &[usize]) -> Option<(FoundRow, RowView<'_>)> {
        let (block, position) = self.find(&found.place);
        let row = &self.blocks[block].rows[position.ok()?].1;
        Some((self.found(found.place), Cow::Borrowed(row)))
    }

    /// A place, and the row that it held before the change.
    type Undo = (RowPlace, Option<OwnedRow>);

    fn undo_bytes((_, row): &(RowPlace, Option<OwnedRow>)) -> usize {
        size_of::<(RowPlace, Option<OwnedRow>)>() + row.as_ref().map_or(0, bytes_of)
    }

    fn insert(&mut self, rows: Vec<(RowPlace, OwnedRow)>, mut log: Option<&mut Vec<Self::Undo>>) {
        for (place, row) in rows {
            let other = self.put(place, row);
            assert!(other.is_none(), "two rows have one number: {place:?}");
            log.iter_mut().for_each(|log| log.push((place, None)));
        }
    }

    fn join(&mut self, others: Vec<Arc<Blocks>>) {
        for other in others {
            self.insert(
                other.from(RowPlace::first(0)).map(|(place, row)| (*place, row.clone())).collect(),
                None,
            );
        }
    }

    fn remove(&mut self, places: &[RowPlace], mut log: Option<&mut Vec<Self::Undo>>) {
        for place in places {
            let row = self.take(place);
            assert!(row.is_some(), "the table has no row {place:?} to remove");
            log.iter_mut().for_each(|log| log.push((*place, row.clone())));
        }
    }

    fn change(&mut self, change: &RowUpdate, mut log: Option<&mut Vec<Self::Undo>>) {
        for (FoundRow { place, .. }, values) in change.rows() {
            let (block, position) = self.find(place);
            let mut row =
                self.blocks[block].rows[position.expect("a row that is changed is in a block")].1.to_vec();
            change.columns.iter().zip(values).for_each(|(&column, value)| row[column] = value.clone());
            let other = self.put(*place, row.into());
            log.iter_mut().for_each(|log| log.push((*place, other.clone())));
        }
    }

    fn undo(&mut self, log: &[Self::Undo]) {
        for (place, row) in log.iter().rev() {
            match row {
                Some(row) => drop(self.put(*place, row.clone())),
                None => drop(self.take(place)),
            }
        }
    }

    fn save(&self, (first, _): (usize, usize), saver: &mut Saver<'_>) -> Option<(usize, usize)> {
        for (number, block) in self.blocks.iter().enumerate().skip(first) {
            if saver.is_full() {
                return Some((number, 0));
            }
            let rows = || block.rows.iter().map(|(place, row)| ((place.key, place.tie, place.id), &row[..]));
            let name = saver.marked(&block.mark, |out| saved::put_rest(out, &rows().collect::<Vec<_>>()));
            saver.line(&OutlineLine::Rows(name));
        }
        None
    }

    fn restore(&mut self, line: OutlineLine, records: &Records) -> Result<(), Failure> {
        let OutlineLine::Rows(name) = line else { return Err(saved::malformed()) };
        let rows: Vec<((u64, u64, RowId), Vec<Value>)> = saved::fragment(records, name)?.rest()?;
        let rows = rows.into_iter().map(|((key, tie, id), row)| (RowPlace { key, tie, id }, row.into()));
        let block = Block { mark: NameCell::of(name), ..Block::new(rows.collect()) };
        self.rows += block.rows.len();
        self.blocks.push(Arc::new(block));
        Ok(())
    }

    const SHARED: bool = false;

    /// The answers of reads; `None` for writes, whose rows are not searched in advance.
    type BatchResults<'a> = Vec<Option<Result<Answer, Failure>>>;

    type Costs = ();

    fn search_batch<'a>(
        &self,
        schema: &Schema,
        tasks: &[RowTask<'a>],
        _: bool,
        (): &(),
        host: &dyn Host,
    ) -> Self::BatchResults<'a> {
        let alone = |task: &RowTask<'_>| {
            let RowTask::Read(read) = task else { return None };
            if host.withdrawn(0).contains(&read.job) {
                return Some(Err(Failure::withdrawn()));
            }
            let ranges = read.reach(schema);
            let mut read_output = ReadOutput::new(read.select, read.memory_bounds);
            let mut rows = self.within(&ranges, RowPlace::first(0));
            while !read_output.is_complete()
                && let Some((_, row)) = rows.next()
            {
                read_output.offer(&row);
            }
            Some(read_output.finish())
        };
        tasks.iter().map(alone).collect()
    }

    fn answer(
        &self,
        batch_results: &mut Self::BatchResults<'_>,
        task: usize,
    ) -> Option<Result<Answer, Failure>> {
        batch_results[task].take()
    }

    fn explain(&self, batch_results: &Self::BatchResults<'_>, _: usize) -> Explanation {
        Explanation {
            epoch: Epoch::default(),
            batch: batch_results.len() as u64,
            strategy: explain::Strategy::RowByRow,
            conditions: 0,
            evaluated: true,
            blocks: self.blocks.len() as u64,
            visited: self.blocks.len() as u64,
            rows: 0,
        }
    }

    fn found_rows(&self, _: &mut Self::BatchResults<'_>, _: usize) -> Option<FoundRows> {
        None
    }

    fn note(&self, _: &mut Self::BatchResults<'_>, _: &[FoundRow], _: Option<&[usize]>, _: bool) {
        unreachable!("no rows are found past a write: each read sees for itself what the writes have done")
    }
}

fn bytes_of(row: &OwnedRow) -> usize {
    let entry = size_of::<(RowPlace, OwnedRow)>() + 2 * size_of::<usize>();
    entry + row.iter().map(Value::bytes).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use crate::engine::{Epoch, RowId};

    use super::*;

    #[derive(Clone, Debug)]
    enum TestStep {
        Insert(u64, u32),
        Remove(u64, u32),
        Keep,
    }

    fn any_step() -> impl Strategy<Value = TestStep> {
        prop_oneof![
            8 => (0u64..40, 0u32..40).prop_map(|(key, line)| TestStep::Insert(key, line)),
            4 => (0u64..40, 0u32..40).prop_map(|(key, line)| TestStep::Remove(key, line)),
            1 => Just(TestStep::Keep),
        ]
    }

    fn place(key: u64, line: u32) -> RowPlace {
        RowPlace { key, tie: 0, id: RowId { epoch: Epoch(1), line } }
    }

    proptest! {
        #[test]
        fn blocks_equal_an_ordered_map_with_versions(
            steps in prop::collection::vec(any_step(), 0..1500), low in 0u64..40, high in 0u64..40
        ) {
            let (mut blocks, mut model) = (Blocks::default(), BTreeMap::new());
            let mut kept = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    TestStep::Insert(key, line) => {
                        let row: OwnedRow = vec![Value::Int8(number as i64)].into();
                        prop_assert_eq!(
                            blocks.put(place(key, line), row.clone()), model.insert(place(key, line), row)
                        );
                    }
                    TestStep::Remove(key, line) => {
                        prop_assert_eq!(blocks.take(&place(key, line)), model.remove(&place(key, line)));
                    }
                    TestStep::Keep => kept.push((blocks.clone(), model.clone())),
                }
            }
            kept.push((blocks, model));
            for (blocks, model) in kept {
                prop_assert_eq!(blocks.len(), model.len());
                let bytes: usize = model.values().map(bytes_of).sum();
                let mut counted = BTreeSet::new();
                prop_assert_eq!(blocks.bytes_uncounted(&mut counted), bytes);
                prop_assert_eq!(blocks.clone().bytes_uncounted(&mut counted), 0);
                prop_assert!(blocks.from(RowPlace::first(0)).eq(&model));
                let ranges = [KeyRange { low, high }];
                if low <= high {
                    let start = place(low + 1, 7);
                    let expected = model.iter().filter(|(place, _)| **place >= start && place.key <= high);
                    let expected = expected.map(|(place, row)| (*place, Cow::Borrowed(&row[..])));
                    prop_assert!(blocks.within(&ranges, start).eq(expected));
                }
                prop_assert!(model.keys().all(|place| blocks.has(place)));
            }
        }
    }
}
