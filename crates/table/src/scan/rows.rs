//! The rows of the scan engine, behind the interface that the common part of all engines uses.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use rustc_hash::FxHashSet;

use crate::{
    alter::Alteration,
    engine::{Answer, Failure},
    explain::Explanation,
    expr::Expr,
    host::Host,
    saved::{self, OutlineLine, Records, Saver},
    schema::{KeyRange, Schema},
    value::Value,
    versions::{FoundRow, FoundRows, OwnedRow, RowPlace, RowTask, RowUpdate, RowView, Rows, Spot},
};

use super::{
    Columns,
    batch_results::BatchResults,
    block::{Block, change::Undo},
    code::{chunk::Chunk, dictionary::Dictionary, ordinal},
    pass::find::find,
    query::{compile::compile, costs::Costs},
};

impl Rows for Columns {
    fn new(schema: &Arc<Schema>) -> Columns {
        let mut columns = Columns {
            schema: schema.clone(),
            dictionaries: Vec::new(),
            blocks: Vec::new(),
            rows: 0,
            merge_due: false,
        };
        columns.dictionaries =
            columns.types().map(|ty| ordinal::needs_dictionary(ty).then(Arc::default)).collect();
        columns
    }

    fn gathered<'a>(schema: &Arc<Schema>, rows: impl Iterator<Item = (RowPlace, &'a [Value])>) -> Columns {
        let mut columns = Columns::new(schema);
        columns.insert_values(rows);
        columns
    }

    fn altered(&self, schema: &Arc<Schema>, alteration: &Alteration) -> Columns {
        Columns::altered(self, schema, alteration)
    }

    fn len(&self) -> usize {
        self.rows
    }

    fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> usize {
        let dictionaries: usize = self
            .dictionaries
            .iter()
            .flatten()
            .map(|dictionary| match counted.insert(Arc::as_ptr(dictionary).addr()) {
                true => dictionary.bytes_uncounted(counted),
                false => 0,
            })
            .sum();
        let apart = self.blocks.iter().filter(|block| counted.insert(Arc::as_ptr(block).addr()));
        let apart: Vec<&Arc<Block>> = apart.collect();
        dictionaries + apart.into_iter().map(|block| block.bytes_uncounted(counted)).sum::<usize>()
    }

    fn bytes_unshared(&self, newer: &Columns) -> usize {
        let shared: FxHashSet<*const Block> = newer.blocks.iter().map(Arc::as_ptr).collect();
        let blocks = self.blocks.iter().filter(|block| !shared.contains(&Arc::as_ptr(block)));
        // The changed copy of a block in `newer` has the same last place, and the two share most of their
        // chunks.
        let blocks = blocks.map(|block| {
            block.bytes_unshared(newer.blocks.get(newer.block_of(&block.last)).map(|newer| &**newer))
        });
        let dictionaries = self.dictionaries.iter().zip(&newer.dictionaries);
        let dictionaries = dictionaries.filter_map(|(own, newer)| own.as_ref().zip(newer.as_ref()));
        let dictionaries = dictionaries.filter(|(own, newer)| !Arc::ptr_eq(own, newer));
        let dictionaries = dictionaries.map(|(own, newer)| own.bytes_unshared(newer));
        blocks.sum::<usize>() + dictionaries.sum::<usize>()
    }

    fn places(&self) -> impl Iterator<Item = RowPlace> {
        self.blocks.iter().flat_map(|block| (0..block.len()).map(|index| block.place(index)))
    }

    fn has(&self, place: &RowPlace) -> bool {
        self.find(place).is_some()
    }

    fn within<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        start: RowPlace,
    ) -> impl Iterator<Item = (RowPlace, RowView<'a>)> {
        let first = self.block_of(&start);
        self.slices(ranges).filter(move |(number, _)| *number >= first).flat_map(move |(number, slice)| {
            let block = &*self.blocks[number];
            let from = if number == first { block.before(&start) } else { 0 };
            (slice.start.max(from)..slice.end)
                .map(move |index| (block.place(index), Cow::Owned(self.row(block, index))))
        })
    }

    fn tied(&self, key: u64, tie: u64) -> Vec<(RowPlace, RowView<'_>)> {
        let first = RowPlace { tie, ..RowPlace::first(key) };
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
    ) -> impl Iterator<Item = (FoundRow, RowView<'a>)> {
        let mut plan = compile(&self.schema, &self.dictionaries, filter);
        self.arrange(&mut plan.terms);
        let ranges = if plan.is_empty() { &[] } else { ranges };
        self.slices(ranges).flat_map(move |(number, slice)| {
            let mut matches = Vec::new();
            let block = &*self.blocks[number];
            find(block, &plan.terms, slice, &Costs::default(), &mut matches);
            matches.into_iter().map(move |row| {
                let spot = Spot { block: number as u32, row };
                let found = FoundRow { place: block.place(row as usize), spot };
                (found, self.seen(block, row as usize, columns))
            })
        })
    }

    fn at(&self, found: &FoundRow, columns: &[usize]) -> Option<(FoundRow, RowView<'_>)> {
        let spot = self.spot_of(found)?;
        let block = &self.blocks[spot.block as usize];
        Some((FoundRow { spot, ..*found }, self.seen(block, spot.row as usize, columns)))
    }

    type Undo = Undo;

    fn undo_bytes(undo: &Undo) -> usize {
        undo.bytes()
    }

    fn insert(&mut self, rows: Vec<(RowPlace, OwnedRow)>, log: Option<&mut Vec<Undo>>) {
        if let Some(log) = log {
            log.extend(rows.iter().map(|(place, _)| Undo::Insert(*place)));
        }
        self.insert_values(rows.iter().map(|(place, row)| (*place, &row[..])));
        (0..self.width()).for_each(|column| self.order_tail(column));
    }

    fn join(&mut self, others: Vec<Arc<Columns>>) {
        Columns::join(self, &others);
        (0..self.width()).for_each(|column| self.order_tail(column));
    }

    fn remove(&mut self, places: &[RowPlace], log: Option<&mut Vec<Undo>>) {
        if let Some(log) = log {
            log.extend(places.iter().map(|place| {
                let (block, index) = self.find(place).expect("a row that is removed is in a block");
                let numbers = block.columns.iter().map(|chunk| chunk.value(index));
                Undo::Delete(*place, numbers.collect())
            }));
        }
        self.take(places);
    }

    fn prepare(&self, change: &mut RowUpdate) {
        change.numbers = change.uniform().and_then(|values| {
            let values = change.columns.iter().zip(values);
            values.map(|(&column, value)| self.known_number(column, value)).collect()
        });
    }

    fn change(&mut self, change: &RowUpdate, log: Option<&mut Vec<Undo>>) {
        Columns::change(self, change, log);
    }

    fn undo(&mut self, log: &[Undo]) {
        Columns::undo(self, log);
    }

    fn has_code(&self, column: usize, value: &Value) -> bool {
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

    fn restore(&mut self, line: OutlineLine, records: &Records) -> Result<(), Failure> {
        match line {
            OutlineLine::Dictionary { column, heaps, sorted, tail } => {
                let there = self.dictionaries.get_mut(column as usize).and_then(Option::as_mut);
                let restored = Dictionary::restored(heaps, sorted, tail, records)?;
                *there.ok_or_else(saved::malformed)? = Arc::new(restored);
            }
            OutlineLine::Block { crowded, places, columns } => {
                let block = Block::restored(crowded, places, &columns, records)?;
                let known = |(chunk, dictionary): (&Arc<Chunk>, &Option<Arc<Dictionary>>)| {
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
            OutlineLine::Table(..) | OutlineLine::Staged(..) | OutlineLine::Rows(_) => {
                return Err(saved::malformed());
            }
        }
        Ok(())
    }

    fn is_tidy(&self) -> bool {
        !self.merge_due
    }

    fn merge_due_tails(&mut self) {
        self.merge_tails();
    }

    const SHARED: bool = true;

    type BatchResults<'a> = BatchResults<'a>;

    type Costs = Costs;

    fn search_batch<'a>(
        &self,
        schema: &Schema,
        tasks: &[RowTask<'a>],
        corrected_later: bool,
        costs: &Costs,
        host: &dyn Host,
    ) -> BatchResults<'a> {
        Columns::search_batch(self, schema, tasks, corrected_later, costs, host)
    }

    fn answer(&self, batch_results: &mut BatchResults<'_>, task: usize) -> Option<Result<Answer, Failure>> {
        batch_results.answer(self, task)
    }

    fn explain(&self, batch_results: &BatchResults<'_>, task: usize) -> Explanation {
        batch_results.explain(self, task)
    }

    fn found_rows(&self, batch_results: &mut BatchResults<'_>, task: usize) -> Option<FoundRows> {
        batch_results.rows(self, task)
    }

    fn note(
        &self,
        batch_results: &mut BatchResults<'_>,
        rows: &[FoundRow],
        changing: Option<&[usize]>,
        again: bool,
    ) {
        Columns::note(self, batch_results, rows, changing, again);
    }
}
