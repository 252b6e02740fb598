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
//! | `texts`, `positions` | the texts of a dictionary, and where they are |
//! | `packed`, `chunk`, `block` | numbers as narrow codes; a column of a block; a block |
//! | `change` | how rows come, go and change, and are put back |
//! | `compile` | filters as terms over numbers |
//! | `costs` | what the ways of finding rows take on a machine |
//! | `query`, `group`, `cover` | one query under way; queries that are found by one hash; the blocks at which they look |
//! | `pass`, `kernel` | one walk over the blocks for all reads, and its inner loops |
//! | `find`, `marks` | the rows of one block that one query wants; rows of a block as bits |
//! | `ahead`, `points` | memory asked for ahead: of the blocks to come, and of single keys |
//! | `segment` | the parts of a table that several threads look at at once |
//! | `foresight` | what the pass has found, brought up to date by the writes that stood between |
//! | `results` | the rows that queries are given, gathered by column |
//!
//! Rows lie in blocks of up to 4,096 in the order of their places, so that the ring is the cluster key: an arc is a
//! slice, a point of the ring is found by halving, and a table partitioned by range of a column is pruned by it.
//! A block holds a chunk for each column; versions share chunks, and an update copies those it writes.
//!
//! Differs: 002 indexes one attribute of the queries; here all attributes that a query binds by equality, and the upper
//! bits of one that it binds by a range, are hashed together, so that few candidates are left but those that match.
//! Crescando keeps free slots where rows were deleted; here rows close up, because their order is what export, paging and
//! uniqueness rest on. Crescando probes a record again after each update; here a pass over the version before the batch answers for all of it, and each
//! write then notes the rows it has touched at the queries they concern (`foresight`).

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use rustc_hash::FxHashSet;

use crate::{
    engine::{Answer, Failure},
    explain::Explained,
    expr::Expr,
    host::Host,
    saved::{self, Line, Records, Saver},
    schema::{KeyRange, Schema},
    value::{Row, Type, Value},
    versions::{Change, Foreseen, Found, Place, Rows, Seen, Spot, Stored, Task, Versions},
};

mod ahead;
mod block;
mod change;
mod chunk;
mod compile;
mod costs;
mod cover;
mod dictionary;
mod find;
mod foresight;
mod group;
pub mod kernel;
mod marks;
mod ordinal;
mod packed;
mod pass;
mod points;
mod positions;
mod query;
mod results;
mod segment;
mod texts;

pub use costs::Costs;

use block::Block;
use change::Undo;
use dictionary::Dictionary;
use foresight::Foresight;

/// The scan engine.
pub type ScanEngine = Versions<Columns>;

/// The rows of a table, column by column.
#[derive(Clone)]
pub struct Columns {
    schema: Arc<Schema>,
    /// For the columns whose values are coded.
    dictionaries: Vec<Option<Arc<Dictionary>>>,
    /// None is empty; the last place of each lies before the first of the next.
    blocks: Vec<Arc<Block>>,
    rows: usize,
    /// Whether the tail of a dictionary has grown so long that it is to be merged.
    untidy: bool,
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

    fn spot(&self, place: &Place) -> Option<Spot> {
        let number = self.block_of(place);
        let block = self.blocks.get(number)?;
        let index = block.before(place);
        let there = index < block.len() && block.place(index) == *place;
        there.then_some(Spot { block: number as u32, row: index as u32 })
    }

    /// Where a row is that was found: mostly still there.
    fn spot_of(&self, Found { place, spot }: &Found) -> Option<Spot> {
        let (block, row) = (self.blocks.get(spot.block as usize), spot.row as usize);
        match block.is_some_and(|block| row < block.len() && block.place(row) == *place) {
            true => Some(*spot),
            false => self.spot(place),
        }
    }

    /// The row at a place.
    fn find(&self, place: &Place) -> Option<(&Block, usize)> {
        let Spot { block, row } = self.spot(place)?;
        Some((&self.blocks[block as usize], row as usize))
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

    /// Some columns of a row; the others are NULL.
    fn seen(&self, block: &Block, index: usize, columns: &[usize]) -> Seen<'_> {
        if columns.is_empty() {
            return Cow::Borrowed(&[]);
        }
        let mut row = vec![Value::Null; self.width()];
        for &column in columns.iter().filter(|column| **column < self.width()) {
            row[column] = self.value(block, column, index);
        }
        Cow::Owned(row)
    }

    fn number(&mut self, column: usize, value: &Value) -> Option<u64> {
        match &mut self.dictionaries[column] {
            _ if value.is_null() => None,
            Some(dictionary) => Some(dictionary.find(value).unwrap_or_else(|| {
                let dictionary = Arc::make_mut(dictionary);
                let code = dictionary.add(value);
                self.untidy |= dictionary.wants_merge();
                code
            })),
            None => ordinal::ordinal(value),
        }
    }

    /// The number of a value, or of NULL none, unless it is yet to be given one.
    fn known_number(&self, column: usize, value: &Value) -> Option<Option<u64>> {
        match &self.dictionaries[column] {
            _ if value.is_null() => Some(None),
            Some(dictionary) => dictionary.find(value).map(Some),
            None => Some(ordinal::ordinal(value)),
        }
    }

    /// Puts a dictionary's new values in order if they are many; whoever has given numbers to values does so.
    fn order_tail(&mut self, column: usize) {
        if let Some(dictionary) =
            self.dictionaries[column].as_mut().filter(|dictionary| dictionary.is_loose())
        {
            Arc::make_mut(dictionary).order_tail();
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
}

impl Rows for Columns {
    fn new(schema: &Arc<Schema>) -> Columns {
        let mut columns = Columns {
            schema: schema.clone(),
            dictionaries: Vec::new(),
            blocks: Vec::new(),
            rows: 0,
            untidy: false,
        };
        columns.dictionaries = columns.types().map(|ty| ordinal::is_coded(ty).then(Arc::default)).collect();
        columns
    }

    fn gathered<'a>(schema: &Arc<Schema>, rows: impl Iterator<Item = (Place, &'a [Value])>) -> Columns {
        let mut columns = Columns::new(schema);
        columns.bring(rows);
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

    fn bytes_apart(&self, newer: &Columns) -> usize {
        let shared: FxHashSet<*const Block> = newer.blocks.iter().map(Arc::as_ptr).collect();
        let blocks = self.blocks.iter().filter(|block| !shared.contains(&Arc::as_ptr(block)));
        // A block that was changed lies where it lay, and has most of its chunks still.
        let blocks = blocks.map(|block| {
            block.bytes_apart(newer.blocks.get(newer.block_of(&block.last)).map(|newer| &**newer))
        });
        let dictionaries = self.dictionaries.iter().zip(&newer.dictionaries);
        let dictionaries = dictionaries.filter_map(|(own, newer)| own.as_ref().zip(newer.as_ref()));
        let dictionaries = dictionaries.filter(|(own, newer)| !Arc::ptr_eq(own, newer));
        let dictionaries = dictionaries.map(|(own, newer)| own.bytes_apart(newer));
        blocks.sum::<usize>() + dictionaries.sum::<usize>()
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        self.blocks.iter().flat_map(|block| (0..block.len()).map(|index| block.place(index)))
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
                rows.push((place, self.seen(block, index, &self.schema.primary_key)));
            }
        }
        rows
    }

    fn candidates<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        filter: Option<&Expr>,
        columns: &'a [usize],
    ) -> impl Iterator<Item = (Found, Seen<'a>)> {
        let mut plan = compile::compile(&self.schema, &self.dictionaries, filter);
        self.arrange(&mut plan.terms);
        let ranges = if plan.is_empty() { &[] } else { ranges };
        self.slices(ranges).flat_map(move |(number, slice)| {
            let mut matches = Vec::new();
            let block = &*self.blocks[number];
            find::find(block, &plan.terms, slice, &Costs::default(), &mut matches);
            matches.into_iter().map(move |row| {
                let spot = Spot { block: number as u32, row };
                let found = Found { place: block.place(row as usize), spot };
                (found, self.seen(block, row as usize, columns))
            })
        })
    }

    fn at(&self, found: &Found, columns: &[usize]) -> Option<(Found, Seen<'_>)> {
        let spot = self.spot_of(found)?;
        let block = &self.blocks[spot.block as usize];
        Some((Found { spot, ..*found }, self.seen(block, spot.row as usize, columns)))
    }

    type Undo = Undo;

    fn undo_bytes(undo: &Undo) -> usize {
        undo.bytes()
    }

    fn insert(&mut self, rows: Vec<(Place, Stored)>, log: Option<&mut Vec<Undo>>) {
        if let Some(log) = log {
            log.extend(rows.iter().map(|(place, _)| Undo::Came(*place)));
        }
        self.bring(rows.iter().map(|(place, row)| (*place, &row[..])));
        (0..self.width()).for_each(|column| self.order_tail(column));
    }

    fn join(&mut self, others: Vec<Arc<Columns>>) {
        Columns::join(self, &others);
        (0..self.width()).for_each(|column| self.order_tail(column));
    }

    fn remove(&mut self, places: &[Place], log: Option<&mut Vec<Undo>>) {
        if let Some(log) = log {
            log.extend(places.iter().map(|place| {
                let (block, index) = self.find(place).expect("a row to remove");
                let numbers = block.columns.iter().map(|chunk| chunk.value(index));
                Undo::Left(*place, numbers.collect())
            }));
        }
        self.take(places);
    }

    fn prepare(&self, change: &mut Change) {
        change.numbers = change.uniform().and_then(|values| {
            let values = change.columns.iter().zip(values);
            values.map(|(&column, value)| self.known_number(column, value)).collect()
        });
    }

    fn change(&mut self, change: &Change, log: Option<&mut Vec<Undo>>) {
        Columns::change(self, change, log);
    }

    fn undo(&mut self, log: &[Undo]) {
        Columns::undo(self, log);
    }

    fn knows(&self, column: usize, value: &Value) -> bool {
        let dictionary = self.dictionaries.get(column).and_then(Option::as_ref);
        dictionary.is_none_or(|dictionary| value.is_null() || dictionary.find(value).is_some())
    }

    fn expect(&mut self, column: usize, value: &Value) {
        if value.fits(self.schema.columns[column].ty) {
            self.number(column, value);
            self.order_tail(column);
        }
    }

    fn save(&self, (first, mut run): (usize, usize), saver: &mut Saver<'_>) -> Option<(usize, usize)> {
        let width = self.width();
        for at in first..width + self.blocks.len() {
            if saver.is_full() {
                return Some((at, run));
            }
            match at.checked_sub(width) {
                None => {
                    if let Some(dictionary) = &self.dictionaries[at]
                        && let Some(run) = dictionary.save(at, run, saver)
                    {
                        return Some((at, run));
                    }
                }
                Some(block) => self.blocks[block].save(saver),
            }
            run = 0;
        }
        None
    }

    fn restore(&mut self, line: Line, records: &Records) -> Result<(), Failure> {
        match line {
            Line::Dictionary { column, heaps, sorted, tail } => {
                let there = self.dictionaries.get_mut(column as usize).and_then(Option::as_mut);
                let restored = Dictionary::restored(heaps, sorted, tail, records)?;
                *there.ok_or_else(saved::malformed)? = Arc::new(restored);
            }
            Line::Block { crowded, places, columns } => {
                let block = Block::restored(crowded, places, &columns, records)?;
                let known = |(chunk, dictionary): (&Arc<chunk::Chunk>, &Option<Arc<Dictionary>>)| {
                    dictionary.as_ref().is_none_or(|dictionary| chunk.high < dictionary.len().max(1) as u64)
                };
                let first = block.place(0);
                let behind = self.blocks.last().is_none_or(|before| before.last < first);
                let all_known = block.columns.iter().zip(&self.dictionaries).all(known);
                if block.columns.len() != self.width() || !behind || !all_known {
                    return Err(saved::malformed());
                }
                self.rows += block.len();
                self.blocks.push(Arc::new(block));
            }
            Line::Table(..) | Line::Staged(..) | Line::Rows(_) => return Err(saved::malformed()),
        }
        Ok(())
    }

    fn is_tidy(&self) -> bool {
        !self.untidy
    }

    fn tidy(&mut self) {
        self.merge_tails();
    }

    const SHARED: bool = true;

    type Foresight<'a> = Foresight<'a>;

    type Costs = Costs;

    fn foresee<'a>(
        &self,
        schema: &Schema,
        tasks: &[Task<'a>],
        followed: bool,
        costs: &Costs,
        host: &dyn Host,
    ) -> Foresight<'a> {
        Columns::foresee(self, schema, tasks, followed, costs, host)
    }

    fn answer(&self, foresight: &mut Foresight<'_>, task: usize) -> Option<Result<Answer, Failure>> {
        foresight.answer(self, task)
    }

    fn explain(&self, foresight: &Foresight<'_>, task: usize) -> Explained {
        foresight.explain(self, task)
    }

    fn foreseen(&self, foresight: &mut Foresight<'_>, task: usize) -> Option<Foreseen> {
        foresight.rows(self, task)
    }

    fn note(&self, foresight: &mut Foresight<'_>, rows: &[Found], changing: Option<&[usize]>, again: bool) {
        Columns::note(self, foresight, rows, changing, again);
    }
}
