//! Changes: inserts, deletes and updates of rows in the blocks, and their undo.
//!
//! An update overwrites the value in its place. An insert or delete moves the rows behind it in the block. A
//! block with many changes is rebuilt. A chunk that another version shares is copied before it is written.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    scan::{
        Columns,
        code::{chunk::Chunk, dictionary::Dictionary},
    },
    value::Value,
    versions::{FoundRow, RowPlace, RowUpdate, Rows},
};

use super::{BLOCK_ROWS, Block, STEPS};

/// Maximum number of changes of a block that are made one by one. A rebuild takes about as long as two
/// hundred single changes.
const IN_PLACE_MAX: usize = 128;

/// The reverse of one change.
pub enum Undo {
    /// An update: the number that it overwrote.
    Update {
        /// The row that changed.
        place: RowPlace,
        /// The index of the column that changed.
        column: u32,
        /// The old number; `None` for NULL.
        number: Option<u64>,
    },
    /// An insert: the place of the row.
    Insert(RowPlace),
    /// A delete: the place of the row and its numbers, by column.
    Delete(RowPlace, Box<[Option<u64>]>),
}

impl Undo {
    pub(in crate::scan) fn bytes(&self) -> usize {
        size_of::<Undo>()
            + match self {
                Undo::Delete(_, numbers) => std::mem::size_of_val(&numbers[..]),
                Undo::Update { .. } | Undo::Insert(_) => 0,
            }
    }
}

/// A block, and the new rows that belong in it.
enum BlockInsert {
    /// Few rows: each has the index in the block at which it is inserted, and its number among the new rows.
    InPlace { block: usize, rows: Vec<(usize, u32)> },
    /// Many rows: these pieces replace the block. Each piece lists its rows: the kept rows by old index, then
    /// the new rows.
    Rebuild { block: usize, pieces: Vec<(Block, Vec<u32>)> },
}

impl Columns {
    /// Updates rows where they are.
    pub(in crate::scan) fn change(&mut self, change: &RowUpdate, mut log: Option<&mut Vec<Undo>>) {
        // Prefetches the memory of all rows, one step of indirection for all rows before the next step. This
        // must precede the changes: copying a shared chunk checks a reference count, which waits for all
        // earlier reads.
        for step in 0..STEPS {
            for FoundRow { spot, .. } in &change.rows {
                let columns = change.columns.iter().copied();
                self.blocks[spot.block as usize].prefetch_step(step, spot.row as usize, columns);
            }
        }
        let found: Vec<Option<u64>>;
        let uniform = match (&change.numbers, change.uniform()) {
            (Some(numbers), _) => Some(numbers),
            (None, Some(values)) => {
                found = self.numbers(&change.columns, values);
                Some(&found)
            }
            (None, None) => None,
        };
        if let Some(numbers) = uniform {
            for FoundRow { spot, .. } in &change.rows {
                let block = &self.blocks[spot.block as usize];
                let numbers = change.columns.iter().zip(numbers);
                numbers.for_each(|(&column, number)| block.columns[column].prefetch_mark(*number));
            }
        }
        for (FoundRow { place, spot }, values) in change.rows() {
            let index = spot.row as usize;
            let own: Vec<Option<u64>>;
            let numbers = match uniform {
                Some(numbers) => numbers,
                None => {
                    own = self.numbers(&change.columns, values);
                    &own
                }
            };
            let block = Arc::make_mut(&mut self.blocks[spot.block as usize]);
            assert!(block.place(index) == *place, "the block has no row {place:?} to change");
            for (&column, &number) in change.columns.iter().zip(numbers) {
                let chunk = Arc::make_mut(&mut block.columns[column]);
                if let Some(log) = &mut log {
                    let (column, number) = (column as u32, chunk.value(index));
                    log.push(Undo::Update { place: *place, column, number });
                }
                chunk.set(index, number);
            }
        }
        change.columns.iter().for_each(|&column| self.order_tail(column));
    }

    /// Returns for each column the number that stands for the value in it. A value that the column's
    /// dictionary does not have yet gets a code.
    fn numbers(&mut self, columns: &[usize], values: &[Value]) -> Vec<Option<u64>> {
        columns.iter().zip(values).map(|(&column, value)| self.number(column, value)).collect()
    }

    /// Reverses the changes of a log, the last change first.
    pub(in crate::scan) fn undo(&mut self, log: &[Undo]) {
        for undo in log.iter().rev() {
            match undo {
                Undo::Update { place, column, number } => {
                    let spot = self.spot(place).expect("a row that has changed is in a block");
                    let block = Arc::make_mut(&mut self.blocks[spot.block as usize]);
                    Arc::make_mut(&mut block.columns[*column as usize]).set(spot.row as usize, *number);
                }
                Undo::Insert(place) => self.take(&[*place]),
                Undo::Delete(place, row) => {
                    self.put(vec![(*place, 0)], |_, column, numbers| numbers.push(row[column]))
                }
            }
        }
    }

    /// Inserts rows, given as values, at their places.
    pub(in crate::scan) fn insert_values<'a>(&mut self, rows: impl Iterator<Item = (RowPlace, &'a [Value])>) {
        let (mut coming, mut values) = (Vec::new(), Vec::new());
        for (source, (place, row)) in (0..).zip(rows) {
            coming.push((place, source));
            values.push(row);
        }
        self.put(coming, |columns, column, numbers| {
            numbers.extend(values.iter().map(|row| columns.number(column, &row[column])));
        });
    }

    /// Inserts all rows of other parts of the same table.
    pub(in crate::scan) fn join(&mut self, others: &[Arc<Columns>]) {
        let places = others.iter().flat_map(|other| other.places());
        let coming = places.zip(0..).collect();
        self.put(coming, |columns, column, numbers| {
            // Each part has its own codes, which become codes of this table.
            let codes = columns.merge_codes(column, others);
            for (number, other) in others.iter().enumerate() {
                let values = other.blocks.iter().flat_map(|block| block.columns[column].values());
                match &codes {
                    Some(codes) => {
                        numbers.extend(values.map(|code| Some(codes[number][code? as usize].into())))
                    }
                    None => numbers.extend(values),
                }
            }
        });
    }

    /// Returns this table's codes for all values of the parts' dictionaries of a column, indexed by part and
    /// by the part's code. Returns `None` for a column without a dictionary.
    fn merge_codes(&mut self, column: usize, others: &[Arc<Columns>]) -> Option<Vec<Vec<u32>>> {
        let dictionary = self.dictionaries[column].as_mut()?;
        let others: Vec<&Dictionary> =
            others.iter().filter_map(|other| other.dictionaries[column].as_deref()).collect();
        let codes = Dictionary::merge_codes(dictionary, &others);
        self.merge_due |= dictionary.wants_merge();
        Some(codes)
    }

    /// Inserts rows at unoccupied places. Each row comes with its number, from 0 on. `column_of` returns the
    /// numbers of one column in the order of those row numbers. The work goes column by column, so that the
    /// memory of a column is read and written together.
    fn put(
        &mut self,
        mut coming: Vec<(RowPlace, u32)>,
        mut column_of: impl FnMut(&mut Columns, usize, &mut Vec<Option<u64>>),
    ) {
        coming.sort_unstable_by_key(|(place, _)| *place);
        self.rows += coming.len();
        let mut block_inserts = self.block_inserts(&coming);
        let mut numbers = Vec::with_capacity(coming.len());
        // Begins at the last column, so that a block that is being rebuilt can pop each old chunk and free it
        // after reading.
        for column in (0..self.width()).rev() {
            numbers.clear();
            column_of(self, column, &mut numbers);
            for home in &mut block_inserts {
                match home {
                    BlockInsert::InPlace { block, rows } => {
                        let block = Arc::make_mut(&mut self.blocks[*block]);
                        let chunk = Arc::make_mut(&mut block.columns[column]);
                        rows.iter()
                            .for_each(|&(index, source)| chunk.insert(index, numbers[source as usize]));
                    }
                    BlockInsert::Rebuild { block, pieces } => {
                        let before =
                            self.blocks.get_mut(*block).and_then(|block| Arc::make_mut(block).columns.pop());
                        let before = before.map_or(Vec::new(), |chunk| chunk.values());
                        for (piece, sources) in pieces {
                            let value = |&source: &u32| match (source as usize).checked_sub(before.len()) {
                                None => before[source as usize],
                                Some(coming) => numbers[coming],
                            };
                            let values: Vec<Option<u64>> = sources.iter().map(value).collect();
                            piece.columns.push(Arc::new(Chunk::new(&values)));
                        }
                    }
                }
            }
        }
        // Begins at the last block, so that the indexes of the blocks before stay valid.
        for home in block_inserts.into_iter().rev() {
            let BlockInsert::Rebuild { block, pieces } = home else { continue };
            let pieces = pieces.into_iter().map(|(mut piece, _)| {
                piece.columns.reverse();
                Arc::new(piece)
            });
            let replaced = usize::from(block < self.blocks.len());
            self.blocks.splice(block..block + replaced, pieces);
        }
    }

    /// Assigns sorted rows to blocks. If few rows join a block, they receive their indexes in it at once.
    fn block_inserts(&mut self, coming: &[(RowPlace, u32)]) -> Vec<BlockInsert> {
        let mut block_inserts = Vec::new();
        let mut rest = coming;
        while let Some((place, _)) = rest.first() {
            // Rows behind the last block belong at its end.
            let home = self.block_of(place).min(self.blocks.len().saturating_sub(1));
            let many = match self.blocks.get(home) {
                Some(block) if home + 1 < self.blocks.len() => {
                    rest.partition_point(|(place, _)| *place <= block.last)
                }
                _ => rest.len(),
            };
            let (now, later) = rest.split_at(many);
            rest = later;
            let room = self.blocks.get(home).map_or(0, |block| BLOCK_ROWS - block.len());
            block_inserts.push(match now.len() <= IN_PLACE_MAX.min(room) {
                true => {
                    let block = Arc::make_mut(&mut self.blocks[home]);
                    let rows = now.iter().map(|&(place, source)| (block.admit(place), source)).collect();
                    BlockInsert::InPlace { block: home, rows }
                }
                false => BlockInsert::Rebuild { block: home, pieces: self.pieces(home, now) },
            });
        }
        block_inserts
    }

    /// Returns the pieces, still without columns, that replace a block when these rows join it; several
    /// pieces if one block cannot hold them.
    fn pieces(&self, block: usize, coming: &[(RowPlace, u32)]) -> Vec<(Block, Vec<u32>)> {
        let places = self.blocks.get(block).map_or(Vec::new(), |block| block.places());
        let appended = places.last().is_none_or(|last| coming.first().is_none_or(|(first, _)| last < first));
        // The source of each row in the new order: the old rows first, then the new ones.
        let first = places.len() as u32;
        let mut order: Vec<(RowPlace, u32)> = places.into_iter().zip(0..).collect();
        order.extend(coming.iter().map(|&(place, source)| (place, first + source)));
        // The list is two sorted runs, which this sort merges in linear time.
        order.sort_by_key(|(place, _)| *place);
        let twice = order.windows(2).find(|pair| pair[0].0 == pair[1].0);
        assert!(twice.is_none(), "two rows have one number: {twice:?}");
        // Appended rows fill whole blocks. Otherwise blocks keep room for further inserts.
        let pieces = order.len().div_ceil(if appended { BLOCK_ROWS } else { BLOCK_ROWS * 3 / 4 });
        let size =
            if appended || order.len() <= BLOCK_ROWS { BLOCK_ROWS } else { order.len().div_ceil(pieces) };
        let pieces = order.chunks(size).map(|piece| {
            let (places, sources): (Vec<RowPlace>, Vec<u32>) = piece.iter().copied().unzip();
            (Block::bare(&places), sources)
        });
        pieces.collect()
    }

    /// Removes rows, all of which must exist.
    pub(in crate::scan) fn take(&mut self, places: &[RowPlace]) {
        let mut places = places.to_vec();
        places.sort_unstable();
        // Begins at the last block, so that the indexes of the blocks before stay valid.
        while let Some(last) = places.last() {
            let number = self.block_of(last);
            let block = self.blocks.get(number).expect("a row that is removed is in a block");
            let first = block.place(0);
            let here = places.split_off(places.partition_point(|place| *place < first));
            let leaving: BTreeSet<usize> = here
                .iter()
                .map(|place| {
                    let index = block.before(place);
                    assert!(block.place(index) == *place, "the block has no row {place:?} to remove");
                    index
                })
                .collect();
            assert_eq!(leaving.len(), here.len(), "a row is removed twice");
            self.rows -= here.len();
            self.remove_from_block(number, &leaving);
        }
    }

    /// Removes rows of a block, and joins the block with a neighbour if both are small.
    fn remove_from_block(&mut self, number: usize, leaving: &BTreeSet<usize>) {
        let block = &mut self.blocks[number];
        if leaving.len() == block.len() {
            self.blocks.remove(number);
            return;
        }
        if leaving.len() <= IN_PLACE_MAX {
            let block = Arc::make_mut(block);
            leaving.iter().rev().for_each(|&index| block.remove(index));
        } else {
            let staying: Vec<usize> = (0..block.len()).filter(|index| !leaving.contains(index)).collect();
            *block = Arc::new(retained(block, &staying));
        }
        // Neighbouring blocks that together fill at most half a block are joined.
        let size = |number: usize| self.blocks.get(number).map_or(BLOCK_ROWS, |block| block.len());
        let first = if size(number) + size(number + 1) <= BLOCK_ROWS / 2 {
            number
        } else if number > 0 && size(number - 1) + size(number) <= BLOCK_ROWS / 2 {
            number - 1
        } else {
            return;
        };
        let second = self.blocks.remove(first + 1);
        let first = &mut self.blocks[first];
        let places = [first.places(), second.places()].concat();
        let chunks = first.columns.iter().zip(&second.columns);
        *first = Arc::new(Block::new(&places, chunks.map(|(a, b)| [a.values(), b.values()].concat())));
    }

    /// Merges the dictionary tails that are long enough, and renumbers the columns that use them.
    pub(in crate::scan) fn merge_tails(&mut self) {
        for column in 0..self.width() {
            let Some(dictionary) = self.dictionaries[column].as_ref().filter(|one| one.wants_merge()) else {
                continue;
            };
            let mut used = vec![false; dictionary.len()];
            for block in &self.blocks {
                let codes = block.columns[column].values();
                codes.into_iter().flatten().for_each(|code| used[code as usize] = true);
            }
            let (merged, codes) = dictionary.merged(&used, self.rows);
            for block in &mut self.blocks {
                let chunk = block.columns[column].renumbered(&codes);
                Arc::make_mut(block).columns[column] = Arc::new(chunk);
            }
            self.dictionaries[column] = Some(Arc::new(merged));
        }
        self.merge_due = false;
    }
}

/// Returns a block with some rows of a given block.
fn retained(block: &Block, indexes: &[usize]) -> Block {
    let places: Vec<RowPlace> = indexes.iter().map(|&index| block.place(index)).collect();
    Block::new(
        &places,
        block.columns.iter().map(|chunk| indexes.iter().map(|&index| chunk.value(index)).collect()),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        engine::{Epoch, RowId},
        schema::{Column, KeyRange, Partition, Schema},
        value::{Row, Type},
    };

    #[derive(Clone, Debug)]
    enum TestStep {
        Bring(usize),
        Join(Vec<usize>),
        /// Removes every n-th row.
        Take(usize),
    }

    fn schema() -> Arc<Schema> {
        let column = |name: &str, ty| Column {
            name: name.to_owned(),
            ty,
            modifier: None,
            not_null: false,
            default: None,
        };
        Arc::new(Schema {
            name: String::from("t"),
            columns: vec![column("n", Type::Int8), column("s", Type::Text), column("r", Type::Text)],
            primary_key: Vec::new(),
            partition: Partition::Hash { column: 0 },
            constraints: Vec::new(),
        })
    }

    /// Makes rows with keys spread over the ring. Each has a number that is sometimes NULL, a text that many
    /// rows share, and a nearly unique text.
    fn rows(count: usize, first: usize) -> Vec<(RowPlace, Row)> {
        let row = |number: usize| {
            let key = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let id = RowId { epoch: Epoch(1), line: number as u32 };
            let n = if number.is_multiple_of(3) { Value::Null } else { Value::Int8(number as i64) };
            let texts = [format!("{}", number % 7), format!("{:x}", key >> 40)];
            (RowPlace { key, tie: 0, id }, Row::from([vec![n], texts.map(Value::text_of).to_vec()].concat()))
        };
        (first..first + count).map(row).collect()
    }

    fn gathered(rows: &[(RowPlace, Row)]) -> Columns {
        Columns::gathered(&schema(), rows.iter().map(|(place, row)| (*place, &row[..])))
    }

    fn count() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..4, 100usize..300, 2000usize..6000]
    }

    fn step() -> impl Strategy<Value = TestStep> {
        prop_oneof![
            count().prop_map(TestStep::Bring),
            prop::collection::vec(count(), 1..5).prop_map(TestStep::Join),
            (1usize..400).prop_map(TestStep::Take),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn columns_equal_an_ordered_map(steps in prop::collection::vec(step(), 1..7)) {
            let mut columns = Columns::new(&schema());
            let (mut model, mut next) = (BTreeMap::new(), 0);
            for step in steps {
                match step {
                    TestStep::Bring(count) => {
                        let coming = rows(count, next);
                        next += count;
                        columns.insert_values(coming.iter().map(|(place, row)| (*place, &row[..])));
                        model.extend(coming);
                    }
                    TestStep::Join(counts) => {
                        let mut runs = Vec::new();
                        for count in counts {
                            let coming = rows(count, next);
                            next += count;
                            runs.push(Arc::new(gathered(&coming)));
                            model.extend(coming);
                        }
                        columns.join(&runs);
                        // The merge changes the order of the codes. The values of the rows must stay the
                        // same.
                        columns.merge_tails();
                    }
                    TestStep::Take(part) => {
                        let leaving: Vec<RowPlace> = model.keys().step_by(part).copied().collect();
                        columns.take(&leaving);
                        leaving.iter().for_each(|place| drop(model.remove(place)));
                    }
                }
                let all = [KeyRange::ALL];
                let found = columns.within(&all, RowPlace::first(0));
                let found = found.map(|(place, row)| (place, row.into_owned()));
                prop_assert!(found.eq(model.iter().map(|(place, row)| (*place, row.clone()))));
                prop_assert_eq!(columns.len(), model.len());
                prop_assert!(columns.blocks.iter().all(|block| block.len() <= BLOCK_ROWS));
                prop_assert!(columns.blocks.is_sorted_by_key(|block| block.last));
            }
        }
    }
}
