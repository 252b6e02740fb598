//! Points: single keys of the ring, thousands of which are looked up one after another.
//!
//! What a look-up waits for is memory: the block, its keys, the columns of the row, the texts that their codes stand for,
//! each known only once the one before is there. So the way there is walked ahead for several points together, one step for
//! all of them before the next, and asks for what each comes upon; when their turn comes it is in the cache. Points come in
//! the order of the ring, and mostly several to a block. All of it is hints: what is found does not depend on them.
//!
//! Source: Chen, Ailamaki, Gibbons, Mowry, *Improving Hash Join Performance through Prefetching* (2004) §4, group
//! prefetching.

use super::{
    block::Block,
    kernel,
    pass::{Search, Stretch},
    query::Harvest,
};

/// So many points go together: what they ask for stays in the first cache.
pub(super) const TOGETHER: usize = 16;

impl Search<'_, '_> {
    /// Asks for what at most so many points among these will be looked for in.
    #[inline(never)] // So that the loop that calls it stays small.
    pub(super) fn announce_points(&self, stretches: &[Stretch], harvests: &[Harvest<'_>]) {
        let points = || stretches.iter().filter(|stretch| stretch.range.is_point());
        if points().nth(1).is_none() {
            return;
        }
        let block = |point: &Stretch| -> &Block { &self.columns.blocks[point.first] };
        let query = |point: &Stretch| &self.queries[point.query as usize];
        let given = |point: &Stretch| query(point).shape.map_or(&[][..], |shape| self.shapes.columns(shape));
        let read = |point: &Stretch| query(point).used.iter().chain(given(point)).copied();
        for point in points() {
            kernel::prefetch(query(point));
            kernel::prefetch(&harvests[point.query as usize]);
            block(point).prefetch();
        }
        for point in points() {
            block(point).prefetch_outlines(read(point));
        }
        for point in points() {
            let block = block(point);
            read(point).for_each(|column| kernel::prefetch(&block.columns[column].numbers));
            block.prefetch_key(block.guess(point.range.low));
        }
        for point in points() {
            let (block, key) = (block(point), point.range.low);
            block.prefetch_key(block.refined(block.guess(key), key));
        }
        let mut rows = [None; TOGETHER];
        for (point, row) in points().zip(&mut rows) {
            let block = block(point);
            *row = Some(block.slice(&point.range).start).filter(|row| *row < block.len());
            let found = row.iter().flat_map(|row| read(point).map(|column| (column, *row)));
            found.for_each(|(column, row)| block.columns[column].numbers.prefetch(row));
        }
        // What the filter looks at; what is given is asked for when values are made of it.
        for deep in [false, true] {
            for (point, row) in points().zip(&rows).filter_map(|(point, row)| Some((point, (*row)?))) {
                for &column in &query(point).used {
                    let number = block(point).columns[column].numbers.number(row);
                    self.columns.dictionaries[column].iter().for_each(|one| one.prefetch(number, deep));
                }
            }
        }
    }
}
