//! Results: the rows that queries receive, gathered by column.
//!
//! Queries that want the same columns share a [`OutputShape`]. The rows that they want of a block are copied
//! column by column, as numbers, into one list. Later the shape turns the numbers into values, query by
//! query, so that a row is allocated once, where it stays.

use crate::{value::Row, versions::Spot};

use super::{
    Columns,
    block::{BLOCK_ROWS, Block},
    kernel,
    query::{Query, QueryResult},
};

/// The most columns of a shape, because the NULLs of a row are the bits of one word.
const WIDTH_MAX: usize = 64;
/// The number of rows between two steps of prefetching a value.
const AHEAD: usize = 4;
/// The number of gathered numbers at which a shape makes values of them: 8 MiB.
const NUMBERS_MAX: usize = 1 << 20;

/// The shapes of a pass.
pub(super) struct OutputShapes {
    all: Vec<OutputShape>,
    /// Whether the shapes remember the rows that queries receive.
    corrected_later: bool,
    received: Vec<ReceivedRows>,
}

/// Rows of certain columns, for all queries that want these columns.
#[derive(Default)]
struct OutputShape {
    columns: Vec<usize>,
    /// The rows of the present block, behind the gathered rows if these are remembered.
    rows: Vec<u32>,
    /// The number of remembered rows that have been gathered.
    gathered: usize,
    /// The blocks of the gathered rows, each as the index of its first row and the block's index.
    blocks: Vec<(u32, u32)>,
    /// The query of each row, those of the present block included.
    queries: Vec<u32>,
    /// The numbers of the gathered rows, one for each column, row by row.
    numbers: Vec<u64>,
    /// The NULLs of each gathered row, a bit for each column.
    nulls: Vec<u64>,
}

/// The rows that queries of a shape received. It takes over the lists of the shape without a copy.
pub(super) struct ReceivedRows {
    /// The rows' indexes in their blocks, in the order of gathering.
    rows: Vec<u32>,
    /// The blocks, each as the index of its first row in `rows` and the block's index.
    blocks: Vec<(u32, u32)>,
    /// The positions of the rows in `rows`, query by query.
    order: Vec<u32>,
    /// The queries, each with the end of its slice of `order`.
    runs: Vec<(u32, u32)>,
    /// The query of each row.
    queries: Vec<u32>,
}

impl ReceivedRows {
    /// Finds the sorted `spots` that some query received, and calls `found` for each such query.
    pub(super) fn receivers_of<'g>(&'g self, spots: &'g [Spot], mut found: impl FnMut(Spot, u32)) {
        let mut marks = [0u64; BLOCK_ROWS / 64];
        let ends = self.blocks[1..].iter().map(|(first, _)| *first).chain([self.rows.len() as u32]);
        for (&(first, block), end) in self.blocks.iter().zip(ends) {
            let here = spots.partition_point(|spot| spot.block < block);
            let here = &spots[here..][..spots[here..].partition_point(|spot| spot.block == block)];
            if here.is_empty() {
                continue;
            }
            let bit = |row: u32| (row as usize / 64, 1 << (row % 64));
            for (word, bit) in here.iter().map(|spot| bit(spot.row)) {
                marks[word] |= bit;
            }
            let received = first as usize..end as usize;
            for (&row, &query) in self.rows[received.clone()].iter().zip(&self.queries[received]) {
                let (word, bit) = bit(row);
                if marks[word] & bit != 0 {
                    found(Spot { block, row }, query);
                }
            }
            here.iter().for_each(|spot| marks[bit(spot.row).0] = 0);
        }
    }

    /// Returns the rows that a query received, in order.
    pub(super) fn to(&self, query: usize) -> impl Iterator<Item = Spot> + '_ {
        let positions = match self.runs.binary_search_by_key(&query, |(query, _)| *query as usize) {
            Ok(run) => {
                let start = run.checked_sub(1).map_or(0, |before| self.runs[before].1);
                start as usize..self.runs[run].1 as usize
            }
            Err(_) => 0..0,
        };
        self.order[positions].iter().map(|&position| {
            let block = self.blocks.partition_point(|(first, _)| *first <= position) - 1;
            Spot { block: self.blocks[block].1, row: self.rows[position as usize] }
        })
    }
}

impl OutputShapes {
    pub(super) fn new(corrected_later: bool) -> OutputShapes {
        OutputShapes { all: Vec::new(), corrected_later, received: Vec::new() }
    }

    /// Returns the same shapes, without rows.
    pub(super) fn alike(&self) -> OutputShapes {
        let alike =
            |shape: &OutputShape| OutputShape { columns: shape.columns.clone(), ..OutputShape::default() };
        OutputShapes {
            all: self.all.iter().map(alike).collect(),
            corrected_later: self.corrected_later,
            received: Vec::new(),
        }
    }

    /// Returns the index of the shape of these columns; `None` if one of them is computed or there are too
    /// many.
    pub(super) fn find(
        &mut self,
        columns: impl ExactSizeIterator<Item = Option<usize>> + Clone,
    ) -> Option<usize> {
        if columns.len() > WIDTH_MAX || columns.clone().any(|column| column.is_none()) {
            return None;
        }
        let found =
            self.all.iter().position(|shape| columns.clone().flatten().eq(shape.columns.iter().copied()));
        Some(found.unwrap_or_else(|| {
            self.all.push(OutputShape { columns: columns.flatten().collect(), ..OutputShape::default() });
            self.all.len() - 1
        }))
    }

    pub(super) fn columns(&self, shape: usize) -> &[usize] {
        &self.all[shape].columns
    }

    /// Prefetches the values of a row of the present block that will be noted.
    #[inline]
    pub(super) fn prefetch(&self, shape: usize, block: &Block, row: u32) {
        for &column in &self.all[shape].columns {
            block.columns[column].numbers.prefetch(row as usize);
        }
    }

    /// Notes that a query wants a row of the present block.
    #[inline]
    pub(super) fn note(&mut self, shape: usize, query: u32, row: u32) {
        let shape = &mut self.all[shape];
        shape.rows.push(row);
        shape.queries.push(query);
    }

    /// Gathers the noted rows, at the end of a block.
    pub(super) fn gather<'a>(
        &mut self,
        columns: &Columns,
        block: usize,
        queries: &[Query<'a>],
        query_results: &mut [QueryResult<'a>],
    ) {
        for shape in &mut self.all {
            shape.gather(columns, block, self.corrected_later);
            if shape.numbers.len() >= NUMBERS_MAX {
                self.received.extend(shape.give_out(columns, queries, query_results));
            }
        }
    }

    /// Gives all rows to the queries, at the end of a pass. Returns the rows that they received, in that
    /// order, if the shapes remember them.
    pub(super) fn give_out<'a>(
        mut self,
        columns: &Columns,
        queries: &[Query<'a>],
        query_results: &mut [QueryResult<'a>],
    ) -> Vec<ReceivedRows> {
        for shape in &mut self.all {
            self.received.extend(shape.give_out(columns, queries, query_results));
        }
        self.received
    }
}

impl OutputShape {
    fn gather(&mut self, columns: &Columns, number: usize, corrected_later: bool) {
        let block = &columns.blocks[number];
        let width = self.columns.len();
        let start = self.numbers.len();
        let rows = &self.rows[self.gathered..];
        self.numbers.resize(start + rows.len() * width, 0);
        self.nulls.resize(self.queries.len(), 0);
        let first = self.queries.len() - rows.len();
        for (position, &column) in self.columns.iter().enumerate() {
            let chunk = &block.columns[column];
            chunk.gather(rows, self.numbers[start..].iter_mut().skip(position).step_by(width));
            if chunk.nulls().is_some() {
                for (nulls, &row) in self.nulls[first..].iter_mut().zip(rows) {
                    *nulls |= u64::from(chunk.is_null(row as usize)) << position;
                }
            }
        }
        match corrected_later {
            false => self.rows.clear(),
            true if rows.is_empty() => {}
            true => {
                self.blocks.push((self.gathered as u32, number as u32));
                self.gathered = self.rows.len();
            }
        }
    }

    fn give_out<'a>(
        &mut self,
        columns: &Columns,
        asking: &[Query<'a>],
        query_results: &mut [QueryResult<'a>],
    ) -> Option<ReceivedRows> {
        let width = self.columns.len();
        // This counting sort keeps the rows of one query in their order.
        let mut ends = vec![0u32; query_results.len() + 1];
        self.queries.iter().for_each(|&query| ends[query as usize + 1] += 1);
        (1..ends.len()).for_each(|query| ends[query] += ends[query - 1]);
        let mut order = vec![0u32; self.queries.len()];
        for (row, &query) in self.queries.iter().enumerate() {
            let next = &mut ends[query as usize];
            order[*next as usize] = row as u32;
            *next += 1;
        }
        let (mut start, mut runs, mut made) = (0, Vec::new(), Vec::new());
        while let Some(&first) = order.get(start) {
            let query = self.queries[first as usize] as usize;
            let end = ends[query] as usize;
            if self.gathered > 0 {
                runs.push((query as u32, end as u32));
            }
            for next in start..end {
                let ahead = |distance: usize| {
                    let row = *order.get(next + distance)? as usize;
                    self.numbers.get(row * width..(row + 1) * width)
                };
                if let Some(first) = ahead(3 * AHEAD).and_then(|numbers| numbers.first()) {
                    kernel::prefetch(first);
                }
                for (distance, deep) in [(2 * AHEAD, false), (AHEAD, true)] {
                    let numbers = ahead(distance).unwrap_or_default();
                    self.columns.iter().zip(numbers).for_each(|(&column, &number)| {
                        if let Some(dictionary) = &columns.dictionaries[column] {
                            dictionary.prefetch(number, deep);
                        }
                    });
                }
                let row = self.row(columns, &order[start..=next], made.last());
                made.push(row);
            }
            query_results[query].take(&asking[query], made.drain(..));
            start = end;
        }
        self.numbers.clear();
        self.nulls.clear();
        if std::mem::take(&mut self.gathered) == 0 {
            self.queries.clear();
            return None;
        }
        let (rows, blocks) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.blocks));
        Some(ReceivedRows { rows, blocks, order, runs, queries: std::mem::take(&mut self.queries) })
    }

    /// Returns the values of the last of these rows. It shares a text with the row before if both are equal
    /// and the dictionary would copy it.
    fn row(&self, columns: &Columns, rows: &[u32], before: Option<&Row>) -> Row {
        let width = self.columns.len();
        let numbers = |row: u32| &self.numbers[row as usize * width..][..width];
        let &row = rows.last().expect("a row");
        let last = before.and_then(|before| Some((before, numbers(*rows.iter().nth_back(1)?))));
        let values = self.columns.iter().zip(numbers(row)).enumerate();
        values
            .map(|(position, (&column, &number))| {
                let number = (self.nulls[row as usize] >> position & 1 == 0).then_some(number);
                match (number, &columns.dictionaries[column], last) {
                    (Some(number), Some(dictionary), Some((values, numbers)))
                        if dictionary.copies(number)
                            && numbers[position] == number
                            && !values[position].is_null() =>
                    {
                        values[position].clone()
                    }
                    _ => columns.value_of(column, number),
                }
            })
            .collect()
    }
}
