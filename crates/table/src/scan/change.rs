//! Changes: how rows come, go and change in the blocks, and how that is taken back.
//!
//! A value that changes is written over where it is, rows that come or go move those behind them in their block, and a
//! block with many changes is written anew. What another version shares is copied first, a chunk at a time.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    value::Value,
    versions::{Change, Found, Place, Rows},
};

use super::{
    Columns,
    block::{BLOCK_ROWS, Block, STEPS},
    chunk::Chunk,
    dictionary::Dictionary,
};

/// With more changes than these in one block it is written anew, which takes about as long as some two hundred of them one by one.
const FEW: usize = 128;

/// What a change overwrote.
pub enum Undo {
    /// A number.
    Cell {
        /// Of which row.
        place: Place,
        /// In which column.
        column: u32,
        /// None for NULL.
        number: Option<u64>,
    },
    /// Nothing: a row came.
    Came(Place),
    /// A row.
    Left(Place, Box<[Option<u64>]>),
}

impl Undo {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Undo>()
            + match self {
                Undo::Left(_, numbers) => std::mem::size_of_val(&numbers[..]),
                Undo::Cell { .. } | Undo::Came(_) => 0,
            }
    }
}

/// A block that some rows belong in.
enum Home {
    /// They are put among its own one by one: where, and which each is.
    Few { block: usize, rows: Vec<(usize, u32)> },
    /// It is written anew in these pieces. Beside each its rows: first those of the block by their old places, then those that come.
    Many { block: usize, pieces: Vec<(Block, Vec<u32>)> },
}

impl Columns {
    /// Changes rows where they are.
    pub(super) fn change(&mut self, change: &Change, mut log: Option<&mut Vec<Undo>>) {
        // What is about to be written is asked for all at once, step by step: to make sure that nobody shares a chunk waits
        // for all that was read before.
        for step in 0..STEPS {
            for Found { spot, .. } in &change.rows {
                let columns = change.columns.iter().copied();
                self.blocks[spot.block as usize].announce(step, spot.row as usize, columns);
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
            for Found { spot, .. } in &change.rows {
                let block = &self.blocks[spot.block as usize];
                let numbers = change.columns.iter().zip(numbers);
                numbers.for_each(|(&column, number)| block.columns[column].prefetch_mark(*number));
            }
        }
        for (Found { place, spot }, values) in change.rows() {
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
            assert!(block.place(index) == *place, "no row to change: {place:?}");
            for (&column, &number) in change.columns.iter().zip(numbers) {
                let chunk = Arc::make_mut(&mut block.columns[column]);
                if let Some(log) = &mut log {
                    let (column, number) = (column as u32, chunk.value(index));
                    log.push(Undo::Cell { place: *place, column, number });
                }
                chunk.set(index, number);
            }
        }
        change.columns.iter().for_each(|&column| self.order_tail(column));
    }

    /// The numbers of values of these columns.
    fn numbers(&mut self, columns: &[usize], values: &[Value]) -> Vec<Option<u64>> {
        columns.iter().zip(values).map(|(&column, value)| self.number(column, value)).collect()
    }

    /// Takes changes back, the last first.
    pub(super) fn undo(&mut self, log: &[Undo]) {
        for undo in log.iter().rev() {
            match undo {
                Undo::Cell { place, column, number } => {
                    let spot = self.spot(place).expect("a row that has changed");
                    let block = Arc::make_mut(&mut self.blocks[spot.block as usize]);
                    Arc::make_mut(&mut block.columns[*column as usize]).set(spot.row as usize, *number);
                }
                Undo::Came(place) => self.take(&[*place]),
                Undo::Left(place, row) => {
                    self.put(vec![(*place, 0)], |_, column, numbers| numbers.push(row[column]))
                }
            }
        }
    }

    /// Puts rows that come as values at their places.
    pub(super) fn bring<'a>(&mut self, rows: impl Iterator<Item = (Place, &'a [Value])>) {
        let (mut coming, mut values) = (Vec::new(), Vec::new());
        for (source, (place, row)) in (0..).zip(rows) {
            coming.push((place, source));
            values.push(row);
        }
        self.put(coming, |columns, column, numbers| {
            numbers.extend(values.iter().map(|row| columns.number(column, &row[column])));
        });
    }

    /// Takes in all rows of others of the same table.
    pub(super) fn join(&mut self, others: &[Arc<Columns>]) {
        let places = others.iter().flat_map(|other| other.places());
        let coming = places.zip(0..).collect();
        self.put(coming, |columns, column, numbers| {
            // Each has codes of its own.
            let codes = columns.take_in(column, others);
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

    /// The codes here of all values that others have in a column, by their own codes; nothing for a column whose values have none.
    fn take_in(&mut self, column: usize, others: &[Arc<Columns>]) -> Option<Vec<Vec<u32>>> {
        let dictionary = self.dictionaries[column].as_mut()?;
        let others: Vec<&Dictionary> =
            others.iter().filter_map(|other| other.dictionaries[column].as_deref()).collect();
        let codes = Dictionary::take_in(dictionary, &others);
        self.untidy |= dictionary.wants_merge();
        Some(codes)
    }

    /// Puts rows at their places, where there are none. Each comes with a number from 0 on. The numbers of one column are asked for
    /// at a time, in this order: so what is read and written of a column lies together.
    fn put(
        &mut self,
        mut coming: Vec<(Place, u32)>,
        mut column_of: impl FnMut(&mut Columns, usize, &mut Vec<Option<u64>>),
    ) {
        coming.sort_unstable_by_key(|(place, _)| *place);
        self.rows += coming.len();
        let mut homes = self.homes(&coming);
        let mut numbers = Vec::with_capacity(coming.len());
        // From the last column on, so that a block that is written anew gives each away as soon as it was read.
        for column in (0..self.width()).rev() {
            numbers.clear();
            column_of(self, column, &mut numbers);
            for home in &mut homes {
                match home {
                    Home::Few { block, rows } => {
                        let block = Arc::make_mut(&mut self.blocks[*block]);
                        let chunk = Arc::make_mut(&mut block.columns[column]);
                        rows.iter()
                            .for_each(|&(index, source)| chunk.insert(index, numbers[source as usize]));
                    }
                    Home::Many { block, pieces } => {
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
        // From the back, so that the numbers of the blocks before do not change.
        for home in homes.into_iter().rev() {
            let Home::Many { block, pieces } = home else { continue };
            let pieces = pieces.into_iter().map(|(mut piece, _)| {
                piece.columns.reverse();
                Arc::new(piece)
            });
            let replaced = usize::from(block < self.blocks.len());
            self.blocks.splice(block..block + replaced, pieces);
        }
    }

    /// Where sorted rows belong. Those that are few for a block have their places already.
    fn homes(&mut self, coming: &[(Place, u32)]) -> Vec<Home> {
        let mut homes = Vec::new();
        let mut rest = coming;
        while let Some((place, _)) = rest.first() {
            // Behind the last block there is only its end to go to.
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
            homes.push(match now.len() <= FEW.min(room) {
                true => {
                    let block = Arc::make_mut(&mut self.blocks[home]);
                    let rows = now.iter().map(|&(place, source)| (block.admit(place), source)).collect();
                    Home::Few { block: home, rows }
                }
                false => Home::Many { block: home, pieces: self.pieces(home, now) },
            });
        }
        homes
    }

    /// A block that is written anew with these rows, in several pieces if there are too many, and no columns yet.
    fn pieces(&self, block: usize, coming: &[(Place, u32)]) -> Vec<(Block, Vec<u32>)> {
        let places = self.blocks.get(block).map_or(Vec::new(), |block| block.places());
        let appended = places.last().is_none_or(|last| coming.first().is_none_or(|(first, _)| last < first));
        // Where each row of the new order comes from: the old rows, then the coming ones.
        let first = places.len() as u32;
        let mut order: Vec<(Place, u32)> = places.into_iter().zip(0..).collect();
        order.extend(coming.iter().map(|&(place, source)| (place, first + source)));
        // Two runs, each in order.
        order.sort_by_key(|(place, _)| *place);
        let twice = order.windows(2).find(|pair| pair[0].0 == pair[1].0);
        assert!(twice.is_none(), "two rows have one number: {twice:?}");
        // Rows that arrive in order leave full blocks behind; others leave room.
        let pieces = order.len().div_ceil(if appended { BLOCK_ROWS } else { BLOCK_ROWS * 3 / 4 });
        let size =
            if appended || order.len() <= BLOCK_ROWS { BLOCK_ROWS } else { order.len().div_ceil(pieces) };
        let pieces = order.chunks(size).map(|piece| {
            let (places, sources): (Vec<Place>, Vec<u32>) = piece.iter().copied().unzip();
            (Block::bare(&places), sources)
        });
        pieces.collect()
    }

    /// Takes away rows that are there.
    pub(super) fn take(&mut self, places: &[Place]) {
        let mut places = places.to_vec();
        places.sort_unstable();
        // From the back, so that the numbers of the blocks before do not change.
        while let Some(last) = places.last() {
            let number = self.block_of(last);
            let block = self.blocks.get(number).expect("a row to remove");
            let first = block.place(0);
            let here = places.split_off(places.partition_point(|place| *place < first));
            let leaving: BTreeSet<usize> = here
                .iter()
                .map(|place| {
                    let index = block.before(place);
                    assert!(block.place(index) == *place, "no row to remove: {place:?}");
                    index
                })
                .collect();
            assert_eq!(leaving.len(), here.len(), "a row is removed twice");
            self.rows -= here.len();
            self.close_up(number, &leaving);
        }
    }

    /// Takes rows of a block away.
    fn close_up(&mut self, number: usize, leaving: &BTreeSet<usize>) {
        let block = &mut self.blocks[number];
        if leaving.len() == block.len() {
            self.blocks.remove(number);
            return;
        }
        if leaving.len() <= FEW {
            let block = Arc::make_mut(block);
            leaving.iter().rev().for_each(|&index| block.remove(index));
        } else {
            let staying: Vec<usize> = (0..block.len()).filter(|index| !leaving.contains(index)).collect();
            *block = Arc::new(pick(block, &staying));
        }
        // Blocks that together fill less than half of one are joined.
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

    /// Merges the tails that have grown long.
    pub(super) fn merge_tails(&mut self) {
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
        self.untidy = false;
    }
}

/// Some rows of a block.
fn pick(block: &Block, indexes: &[usize]) -> Block {
    let places: Vec<Place> = indexes.iter().map(|&index| block.place(index)).collect();
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
    enum Step {
        Bring(usize),
        Join(Vec<usize>),
        /// One row of so many.
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
        })
    }

    /// Rows with keys spread over the ring: a number that is now and then missing, a text that many have, and one that hardly any
    /// other has.
    fn rows(count: usize, first: usize) -> Vec<(Place, Row)> {
        let row = |number: usize| {
            let key = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let id = RowId { epoch: Epoch(1), line: number as u32 };
            let n = if number.is_multiple_of(3) { Value::Null } else { Value::Int8(number as i64) };
            let texts = [format!("{}", number % 7), format!("{:x}", key >> 40)];
            (Place { key, tie: 0, id }, Row::from([vec![n], texts.map(Value::text_of).to_vec()].concat()))
        };
        (first..first + count).map(row).collect()
    }

    fn gathered(rows: &[(Place, Row)]) -> Columns {
        Columns::gathered(&schema(), rows.iter().map(|(place, row)| (*place, &row[..])))
    }

    fn count() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..4, 100usize..300, 2000usize..6000]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            count().prop_map(Step::Bring),
            prop::collection::vec(count(), 1..5).prop_map(Step::Join),
            (1usize..400).prop_map(Step::Take),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn columns_are_an_ordered_map(steps in prop::collection::vec(step(), 1..7)) {
            let mut columns = Columns::new(&schema());
            let (mut model, mut next) = (BTreeMap::new(), 0);
            for step in steps {
                match step {
                    Step::Bring(count) => {
                        let coming = rows(count, next);
                        next += count;
                        columns.bring(coming.iter().map(|(place, row)| (*place, &row[..])));
                        model.extend(coming);
                    }
                    Step::Join(counts) => {
                        let mut runs = Vec::new();
                        for count in counts {
                            let coming = rows(count, next);
                            next += count;
                            runs.push(Arc::new(gathered(&coming)));
                            model.extend(coming);
                        }
                        columns.join(&runs);
                        // Another order than that in which they came.
                        columns.merge_tails();
                    }
                    Step::Take(part) => {
                        let leaving: Vec<Place> = model.keys().step_by(part).copied().collect();
                        columns.take(&leaving);
                        leaving.iter().for_each(|place| drop(model.remove(place)));
                    }
                }
                let all = [KeyRange::ALL];
                let found = columns.within(&all, Place::first(0)).map(|(place, row)| (place, row.into_owned()));
                prop_assert!(found.eq(model.iter().map(|(place, row)| (*place, row.clone()))));
                prop_assert_eq!(columns.len(), model.len());
                prop_assert!(columns.blocks.iter().all(|block| block.len() <= BLOCK_ROWS));
                prop_assert!(columns.blocks.is_sorted_by_key(|block| block.last));
            }
        }
    }
}
