//! Results: the rows that queries are given, gathered by column.
//!
//! Queries that want the same columns share a [`Shape`]. What a block has for them is copied column by column, as
//! numbers, into one list for all; values are made of them query by query, so that a row is allocated once, where it
//! stays.

use crate::{value::Row, versions::Spot};

use super::{
    Columns,
    block::{BLOCK_ROWS, Block},
    kernel,
    query::{Harvest, Query},
};

/// The most columns of a shape: each has a bit that says that its value is NULL.
const WIDTH_MAX: usize = 64;
/// How many rows ahead of their use the parts of a value are asked for, one after another.
const AHEAD: usize = 4;
/// So many numbers are gathered before values are made of them: 8 MiB.
const NUMBERS_MAX: usize = 1 << 20;

/// The shapes of a pass.
pub(super) struct Shapes {
    all: Vec<Shape>,
    /// Whether it is remembered what queries are given.
    followed: bool,
    given: Vec<Given>,
}

/// Rows of certain columns, for all queries that want these.
#[derive(Default)]
struct Shape {
    columns: Vec<usize>,
    /// Rows of the block at hand, behind those gathered if these are remembered.
    rows: Vec<u32>,
    /// How many of them have been gathered.
    gathered: usize,
    /// The blocks that they are of, each with its first of them.
    blocks: Vec<(u32, u32)>,
    /// The query of every row gathered, those of the block at hand included.
    queries: Vec<u32>,
    /// So many for each row as there are columns.
    numbers: Vec<u64>,
    /// A bit for each column.
    nulls: Vec<u64>,
}

/// Which rows queries were given together, as they were gathered: nothing is copied to remember them.
pub(super) struct Given {
    /// Rows in their blocks, as they were gathered.
    rows: Vec<u32>,
    /// The blocks, each with its first of these rows.
    blocks: Vec<(u32, u32)>,
    /// The rows' positions, query by query.
    order: Vec<u32>,
    /// The queries, each with the end of its positions.
    runs: Vec<(u32, u32)>,
    /// The query of each row.
    queries: Vec<u32>,
}

impl Given {
    /// Finds those among these rows, which are in order, that were given, and to whom.
    pub(super) fn among<'g>(&'g self, spots: &'g [Spot], mut found: impl FnMut(Spot, u32)) {
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
            let given = first as usize..end as usize;
            for (&row, &query) in self.rows[given.clone()].iter().zip(&self.queries[given]) {
                let (word, bit) = bit(row);
                if marks[word] & bit != 0 {
                    found(Spot { block, row }, query);
                }
            }
            here.iter().for_each(|spot| marks[bit(spot.row).0] = 0);
        }
    }

    /// Where the rows of a query lie, one after another.
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

impl Shapes {
    pub(super) fn new(followed: bool) -> Shapes {
        Shapes { all: Vec::new(), followed, given: Vec::new() }
    }

    /// The same shapes, without rows.
    pub(super) fn alike(&self) -> Shapes {
        let alike = |shape: &Shape| Shape { columns: shape.columns.clone(), ..Shape::default() };
        Shapes { all: self.all.iter().map(alike).collect(), followed: self.followed, given: Vec::new() }
    }

    /// The shape of these columns, unless one is none.
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
            self.all.push(Shape { columns: columns.flatten().collect(), ..Shape::default() });
            self.all.len() - 1
        }))
    }

    pub(super) fn columns(&self, shape: usize) -> &[usize] {
        &self.all[shape].columns
    }

    /// Asks for the values of a row of the block at hand, which will be noted.
    #[inline]
    pub(super) fn prefetch(&self, shape: usize, block: &Block, row: u32) {
        for &column in &self.all[shape].columns {
            block.columns[column].numbers.prefetch(row as usize);
        }
    }

    /// Takes note of a row of the block at hand.
    #[inline]
    pub(super) fn note(&mut self, shape: usize, query: u32, row: u32) {
        let shape = &mut self.all[shape];
        shape.rows.push(row);
        shape.queries.push(query);
    }

    /// Copies what was noted, behind a block.
    pub(super) fn gather<'a>(
        &mut self,
        columns: &Columns,
        block: usize,
        queries: &[Query<'a>],
        harvests: &mut [Harvest<'a>],
    ) {
        for shape in &mut self.all {
            shape.gather(columns, block, self.followed);
            if shape.numbers.len() >= NUMBERS_MAX {
                self.given.extend(shape.give_out(columns, queries, harvests));
            }
        }
    }

    /// Gives everything to the queries, at the end; what they were given, in the order in which they were, if that is
    /// remembered.
    pub(super) fn give_out<'a>(
        mut self,
        columns: &Columns,
        queries: &[Query<'a>],
        harvests: &mut [Harvest<'a>],
    ) -> Vec<Given> {
        for shape in &mut self.all {
            self.given.extend(shape.give_out(columns, queries, harvests));
        }
        self.given
    }
}

impl Shape {
    fn gather(&mut self, columns: &Columns, number: usize, followed: bool) {
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
        match followed {
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
        harvests: &mut [Harvest<'a>],
    ) -> Option<Given> {
        let width = self.columns.len();
        // By counting, and rows of one query stay in their order.
        let mut ends = vec![0u32; harvests.len() + 1];
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
            harvests[query].take(&asking[query], made.drain(..));
            start = end;
        }
        self.numbers.clear();
        self.nulls.clear();
        if std::mem::take(&mut self.gathered) == 0 {
            self.queries.clear();
            return None;
        }
        let (rows, blocks) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.blocks));
        Some(Given { rows, blocks, order, runs, queries: std::mem::take(&mut self.queries) })
    }

    /// The values of the last of these rows. One that the row before has as well, and that would be copied, is shared.
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
