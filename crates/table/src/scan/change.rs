//! Changes: how rows come, go and change in the blocks, and how that is taken back.
//!
//! A value that changes is written over where it is, rows that come or go move those behind them in their block, and a
//! block with many changes is written anew. What another version shares is copied first, a chunk at a time.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    value::Value,
    versions::{Change, Found, Place},
};

use super::{
    Columns,
    block::{BLOCK_ROWS, Block, STEPS},
};

/// With more changes than these in one block it is written anew.
const FEW: usize = 16;

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

/// What the codes of another dictionary are here; nothing for a column whose values have no codes.
type Recoding = Option<Vec<Option<u64>>>;

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
                Undo::Left(place, numbers) => {
                    self.put(vec![(*place, numbers)], |numbers, column| numbers[column])
                }
            }
        }
    }

    /// Puts rows that come as values at their places.
    pub(super) fn bring<'a>(&mut self, rows: impl Iterator<Item = (Place, &'a [Value])>) {
        let mut numbers: Vec<Option<u64>> = Vec::with_capacity(rows.size_hint().0 * self.width());
        let coming = rows.map(|(place, row)| {
            let first = numbers.len();
            numbers.extend(row.iter().enumerate().map(|(column, value)| self.number(column, value)));
            (place, first)
        });
        let coming = coming.collect();
        self.put(coming, |first, column| numbers[first + column]);
    }

    /// Takes in all rows of others of the same table.
    pub(super) fn join(&mut self, others: &[Arc<Columns>]) {
        // Each has codes of its own.
        let codes: Vec<Vec<Recoding>> = others
            .iter()
            .map(|other| {
                let dictionaries = other.dictionaries.iter().enumerate();
                let recoded = dictionaries.map(|(column, dictionary)| {
                    let dictionary = dictionary.as_ref()?;
                    let codes = 0..dictionary.len() as u64;
                    Some(codes.map(|code| self.number(column, &dictionary.value(code))).collect())
                });
                recoded.collect()
            })
            .collect();
        let sources: Vec<(&Block, &[Recoding])> = others
            .iter()
            .zip(&codes)
            .flat_map(|(other, codes)| other.blocks.iter().map(move |block| (&**block, &codes[..])))
            .collect();
        let rows = sources.iter().zip(0u32..).flat_map(|((block, _), source)| {
            (0..block.len()).map(move |row| (block.place(row), (source, row as u32)))
        });
        let coming = rows.collect();
        self.put(coming, |(source, row), column| {
            let (block, codes) = sources[source as usize];
            let number = block.columns[column].value(row as usize)?;
            codes[column].as_ref().map_or(Some(number), |codes| codes[number as usize])
        });
    }

    /// Puts rows at their places, where there are none. What is told of a row finds the numbers of its columns.
    pub(super) fn put<T: Copy>(
        &mut self,
        mut coming: Vec<(Place, T)>,
        number: impl Fn(T, usize) -> Option<u64>,
    ) {
        coming.sort_unstable_by_key(|(place, _)| *place);
        self.rows += coming.len();
        let mut rest = &coming[..];
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
            if now.len() <= FEW.min(room) {
                let width = self.width();
                let block = Arc::make_mut(&mut self.blocks[home]);
                for &(place, row) in now {
                    let index = block.before(&place);
                    let there = index < block.len() && block.place(index) == place;
                    assert!(!there, "two rows have one number: {place:?}");
                    block.insert(place, (0..width).map(|column| number(row, column)));
                }
            } else {
                self.rewrite(home, now, &number);
            }
        }
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

    /// Puts sorted rows into a block, which is written anew, in several pieces if there are too many.
    fn rewrite<T: Copy>(
        &mut self,
        home: usize,
        coming: &[(Place, T)],
        number: &impl Fn(T, usize) -> Option<u64>,
    ) {
        let old = self.blocks.get(home).cloned();
        let places = old.as_ref().map_or(Vec::new(), |block| block.places());
        let appended = places.last().is_none_or(|last| coming.first().is_none_or(|(first, _)| last < first));
        // Where each row of the new order comes from: the old rows, then the coming ones.
        let mut order: Vec<(Place, usize)> = places.iter().copied().zip(0..).collect();
        order.extend(coming.iter().map(|(place, _)| *place).zip(places.len()..));
        // Two runs, each in order.
        order.sort_by_key(|(place, _)| *place);
        let twice = order.windows(2).find(|pair| pair[0].0 == pair[1].0);
        assert!(twice.is_none(), "two rows have one number: {twice:?}");
        // Rows that arrive in order leave full blocks behind; others leave room.
        let pieces = order.len().div_ceil(if appended { BLOCK_ROWS } else { BLOCK_ROWS * 3 / 4 });
        let size =
            if appended || order.len() <= BLOCK_ROWS { BLOCK_ROWS } else { order.len().div_ceil(pieces) };
        let before: Vec<Vec<Option<u64>>> = match &old {
            Some(block) => block.columns.iter().map(|chunk| chunk.values()).collect(),
            None => vec![Vec::new(); self.width()],
        };
        let blocks: Vec<Arc<Block>> = order
            .chunks(size)
            .map(|piece| {
                let places: Vec<Place> = piece.iter().map(|(place, _)| *place).collect();
                let columns = before.iter().enumerate().map(|(column, before)| {
                    let value = |&(_, source): &(Place, usize)| match source.checked_sub(before.len()) {
                        None => before[source],
                        Some(new) => number(coming[new].1, column),
                    };
                    piece.iter().map(value).collect()
                });
                Arc::new(Block::new(&places, columns))
            })
            .collect();
        let replaced = usize::from(old.is_some());
        self.blocks.splice(home..home + replaced, blocks);
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
                let chunk = &block.columns[column];
                (0..block.len())
                    .filter_map(|index| chunk.value(index))
                    .for_each(|code| used[code as usize] = true);
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
