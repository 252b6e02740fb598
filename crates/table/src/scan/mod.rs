//! The scan engine: columns of narrow codes, and one pass for all reads that wait.
//!
//! Promise: the answers, digests and cursors of the plain engine ([`crate::plain`]), which is its twin; and a cost that
//! hardly depends on which predicates are asked, with thousands of them in one pass.
//! Source: 002 §3.1 (Crescando: scans shared by all operations that wait, short-lived indexes over the predicates
//! instead of the data).
//!
//! | file | what |
//! |---|---|
//! | `ordinal`, `dictionary` | values as numbers of the same order |
//! | `packed`, `chunk`, `block` | numbers as narrow codes; a column of a block; a block |
//! | `compile` | filters as terms over numbers |
//! | `query`, `group` | one query under way; queries that are found by one hash |
//! | `pass`, `kernel` | one walk over the blocks for all reads, and its inner loops |
//! | `foresight` | what the pass has found, brought up to date by the writes that stood between |
//! | `results` | the rows that queries are given, gathered by column |
//!
//! Rows lie in blocks of up to 4,096 in the order of their places, so that the ring is the cluster key: an arc is a
//! slice, a point of the ring is found by halving, and a table partitioned by range of a column is pruned by it.
//! A block holds a chunk for each column; versions share chunks, and an update copies those it writes.
//!
//! Differs: 002 indexes one attribute of the queries; here all attributes that a query binds by equality are hashed
//! together, which leaves a tenth of the candidates at four thousand queries. Crescando keeps free slots where rows were
//! deleted; here rows close up, because their order is what export, paging and uniqueness rest on. Crescando
//! probes a record again after each update; here a pass over the version before the batch answers for all of it, and each
//! write then notes the rows it has touched at the queries they concern (`foresight`).

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use crate::{
    engine::{Answer, Failure},
    expr::Expr,
    schema::{KeyRange, Schema},
    value::{Row, Type, Value},
    versions::{Place, Rows, Seen, Stored, Task, Versions},
};

mod block;
mod chunk;
mod compile;
mod dictionary;
mod foresight;
mod group;
mod kernel;
mod ordinal;
mod packed;
mod pass;
mod query;
mod results;

use block::{BLOCK_ROWS, Block};
use chunk::Chunk;
use dictionary::Dictionary;
use foresight::Foresight;

/// The scan engine.
pub type ScanEngine = Versions<Columns>;

/// With more changes than these in one block it is written anew.
const FEW: usize = 16;

/// The rows of a table, column by column.
#[derive(Clone)]
pub struct Columns {
    schema: Arc<Schema>,
    /// For the columns whose values are coded.
    dictionaries: Vec<Option<Arc<Dictionary>>>,
    /// None is empty; the last place of each lies before the first of the next.
    blocks: Vec<Arc<Block>>,
    rows: usize,
}

impl Columns {
    fn types(&self) -> impl Iterator<Item = Type> {
        self.schema.columns.iter().map(|column| column.ty)
    }

    fn width(&self) -> usize {
        self.schema.columns.len()
    }

    /// The block that a place belongs in.
    fn block_of(&self, place: &Place) -> usize {
        self.blocks.partition_point(|block| block.last < *place)
    }

    /// The row at a place.
    fn find(&self, place: &Place) -> Option<(&Block, usize)> {
        let block = self.blocks.get(self.block_of(place))?;
        let index = block.before(place);
        (index < block.len() && block.place(index) == *place).then_some((block, index))
    }

    #[inline]
    fn value(&self, block: &Block, column: usize, index: usize) -> Value {
        self.value_of(column, block.columns[column].value(index))
    }

    #[inline]
    fn value_of(&self, column: usize, number: Option<u64>) -> Value {
        match (number, &self.dictionaries[column]) {
            (None, _) => Value::Null,
            (Some(code), Some(dictionary)) => dictionary.value(code),
            (Some(number), None) => ordinal::value(self.schema.columns[column].ty, number),
        }
    }

    fn row(&self, block: &Block, index: usize) -> Row {
        (0..self.width()).map(|column| self.value(block, column, index)).collect()
    }

    fn number(&mut self, column: usize, value: &Value) -> Option<u64> {
        match &mut self.dictionaries[column] {
            _ if value.is_null() => None,
            Some(dictionary) => {
                Some(dictionary.find(value).unwrap_or_else(|| Arc::make_mut(dictionary).add(value)))
            }
            None => ordinal::ordinal(value),
        }
    }

    /// The slices of blocks that sorted, disjoint arcs are made of, in order.
    fn slices<'a>(
        &'a self,
        ranges: &'a [KeyRange],
    ) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> + 'a {
        ranges.iter().flat_map(move |range| {
            let first = self.block_of(&Place::first(range.low));
            let blocks = self.blocks.iter().enumerate().skip(first);
            blocks
                .map(move |(number, block)| (number, block.slice(range), block.len()))
                .scan(false, |over, (number, slice, len)| {
                    if *over {
                        return None;
                    }
                    *over = slice.end < len;
                    Some((number, slice))
                })
                .filter(|(_, slice)| !slice.is_empty())
        })
    }

    /// Puts sorted rows into a block, which is written anew, in several pieces if there are too many.
    fn rewrite(&mut self, number: usize, coming: &[(Place, Vec<Option<u64>>)]) {
        let old = self.blocks.get(number).cloned();
        let places = old.as_ref().map_or(Vec::new(), |block| block.places());
        let appended = places.last().is_none_or(|last| coming.first().is_none_or(|(first, _)| last < first));
        // Where each row of the new order comes from: the old rows, then the coming ones.
        let mut order: Vec<(Place, usize)> = places.iter().copied().zip(0..).collect();
        order.extend(coming.iter().map(|(place, _)| *place).zip(places.len()..));
        order.sort_unstable_by_key(|(place, _)| *place);
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
                        Some(new) => coming[new].1[column],
                    };
                    piece.iter().map(value).collect()
                });
                Arc::new(Block::new(&places, columns))
            })
            .collect();
        let replaced = usize::from(old.is_some());
        self.blocks.splice(number..number + replaced, blocks);
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
}

/// Some rows of a block.
fn pick(block: &Block, indexes: &[usize]) -> Block {
    let places: Vec<Place> = indexes.iter().map(|&index| block.place(index)).collect();
    Block::new(
        &places,
        block.columns.iter().map(|chunk| indexes.iter().map(|&index| chunk.value(index)).collect()),
    )
}

impl Rows for Columns {
    fn new(schema: &Schema) -> Columns {
        let mut columns = Columns {
            schema: Arc::new(schema.clone()),
            dictionaries: Vec::new(),
            blocks: Vec::new(),
            rows: 0,
        };
        columns.dictionaries = columns.types().map(|ty| ordinal::is_coded(ty).then(Arc::default)).collect();
        columns
    }

    fn len(&self) -> usize {
        self.rows
    }

    fn bytes_beside(&self, counted: &mut BTreeSet<usize>) -> usize {
        let dictionaries: usize = self
            .dictionaries
            .iter()
            .flatten()
            .map(|dictionary| match counted.insert(Arc::as_ptr(dictionary).addr()) {
                true => dictionary.bytes_beside(counted),
                false => 0,
            })
            .sum();
        let apart = self.blocks.iter().filter(|block| counted.insert(Arc::as_ptr(block).addr()));
        let apart: Vec<&Arc<Block>> = apart.collect();
        dictionaries + apart.into_iter().map(|block| block.bytes_beside(counted)).sum::<usize>()
    }

    fn has(&self, place: &Place) -> bool {
        self.find(place).is_some()
    }

    fn within<'a>(&'a self, ranges: &'a [KeyRange], start: Place) -> impl Iterator<Item = (Place, Seen<'a>)> {
        let first = self.block_of(&start);
        self.slices(ranges).filter(move |(number, _)| *number >= first).flat_map(move |(number, slice)| {
            let block = &*self.blocks[number];
            let from = if number == first { block.before(&start) } else { 0 };
            (slice.start.max(from)..slice.end)
                .map(move |index| (block.place(index), Cow::Owned(self.row(block, index))))
        })
    }

    fn tied(&self, key: u64, tie: u64) -> Vec<(Place, Seen<'_>)> {
        let first = Place { tie, ..Place::first(key) };
        let mut rows = Vec::new();
        for block in &self.blocks[self.block_of(&first)..] {
            for index in block.before(&first)..block.len() {
                let place = block.place(index);
                if (place.key, place.tie) != (key, tie) {
                    return rows;
                }
                rows.push((place, Cow::Owned(self.row(block, index))));
            }
        }
        rows
    }

    fn candidates<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        filter: Option<&Expr>,
    ) -> impl Iterator<Item = (Place, Seen<'a>)> {
        let mut plan = compile::compile(&self.schema, &self.dictionaries, filter);
        self.arrange(&mut plan.terms);
        let ranges = if plan.is_empty() { &[] } else { ranges };
        self.slices(ranges).flat_map(move |(number, slice)| {
            let mut matches = Vec::new();
            let block = &*self.blocks[number];
            pass::find(block, &plan.terms, slice, &mut matches);
            matches
                .into_iter()
                .map(move |index| (block.place(index as usize), Cow::Owned(self.row(block, index as usize))))
        })
    }

    fn at(&self, place: &Place) -> Option<Seen<'_>> {
        let (block, index) = self.find(place)?;
        Some(Cow::Owned(self.row(block, index)))
    }

    fn insert(&mut self, rows: Vec<(Place, Stored)>) {
        let mut coming: Vec<(Place, Vec<Option<u64>>)> = rows
            .into_iter()
            .map(|(place, row)| {
                let numbers = row.iter().enumerate().map(|(column, value)| self.number(column, value));
                (place, numbers.collect())
            })
            .collect();
        coming.sort_unstable_by_key(|(place, _)| *place);
        self.rows += coming.len();
        let mut rest = &coming[..];
        while let Some((place, _)) = rest.first() {
            // Behind the last block there is only its end to go to.
            let number = self.block_of(place).min(self.blocks.len().saturating_sub(1));
            let many = match self.blocks.get(number) {
                Some(block) if number + 1 < self.blocks.len() => {
                    rest.partition_point(|(place, _)| *place <= block.last)
                }
                _ => rest.len(),
            };
            let (now, later) = rest.split_at(many);
            rest = later;
            let room = self.blocks.get(number).map_or(0, |block| BLOCK_ROWS - block.len());
            if now.len() <= FEW.min(room) {
                let block = Arc::make_mut(&mut self.blocks[number]);
                for (place, numbers) in now {
                    let index = block.before(place);
                    let there = index < block.len() && block.place(index) == *place;
                    assert!(!there, "two rows have one number: {place:?}");
                    block.insert(*place, numbers.iter().copied());
                }
            } else {
                self.rewrite(number, now);
            }
        }
    }

    fn remove(&mut self, places: &[Place]) {
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

    fn replace(&mut self, columns: &[usize], rows: Vec<(Place, Stored)>) {
        for (place, row) in rows {
            let number = self.block_of(&place);
            let index = self.blocks[number].before(&place);
            assert!(self.blocks[number].place(index) == place, "no row to replace: {place:?}");
            for &column in columns {
                let value = self.number(column, &row[column]);
                let block = Arc::make_mut(&mut self.blocks[number]);
                Arc::make_mut(&mut block.columns[column]).set(index, value);
            }
        }
    }

    fn knows(&self, column: usize, value: &Value) -> bool {
        let dictionary = self.dictionaries.get(column).and_then(Option::as_ref);
        dictionary.is_none_or(|dictionary| value.is_null() || dictionary.find(value).is_some())
    }

    fn expect(&mut self, column: usize, value: &Value) {
        if value.fits(self.schema.columns[column].ty) {
            self.number(column, value);
        }
    }

    fn is_tidy(&self) -> bool {
        !self.dictionaries.iter().flatten().any(|dictionary| dictionary.wants_merge())
    }

    /// Merges the tails that have grown long.
    fn tidy(&mut self) {
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
            let (merged, codes) = dictionary.merged(&used);
            for block in &mut self.blocks {
                let values: Vec<Option<u64>> = block.columns[column]
                    .values()
                    .into_iter()
                    .map(|value| value.map(|code| u64::from(codes[code as usize])))
                    .collect();
                Arc::make_mut(block).columns[column] = Arc::new(Chunk::new(&values));
            }
            self.dictionaries[column] = Some(Arc::new(merged));
        }
    }

    const SHARED: bool = true;

    type Foresight<'a> = Foresight<'a>;

    fn foresee<'a>(&self, schema: &Schema, tasks: &[Task<'a>], followed: bool) -> Foresight<'a> {
        Columns::foresee(self, schema, tasks, followed)
    }

    fn answer(&self, foresight: &mut Foresight<'_>, task: usize) -> Option<Result<Answer, Failure>> {
        foresight.answer(self, task)
    }

    fn places(foresight: &mut Foresight<'_>, task: usize) -> Option<Vec<Place>> {
        foresight.places(task)
    }

    fn note(&self, foresight: &mut Foresight<'_>, places: &[Place]) {
        Columns::note(self, foresight, places);
    }
}
