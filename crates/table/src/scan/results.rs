//! Results: the rows that queries are given, gathered by column.
//!
//! Queries that want the same columns share a [`Shape`]. What a block has for them is copied column by column, as
//! numbers, into one list for all; values are made of them query by query, so that a row is allocated once, where it
//! stays.

use crate::{value::Row, versions::Spot};

use super::{Columns, kernel, query::Harvest};

/// The most columns of a shape: each has a bit that says that its value is NULL.
const WIDTH_MAX: usize = 64;
/// How many rows ahead of their use the parts of a value are asked for, one after another.
const AHEAD: usize = 4;
/// So many numbers are gathered before values are made of them: 8 MiB.
const NUMBERS_MAX: usize = 1 << 20;

/// The shapes of a pass.
pub(super) struct Shapes {
    all: Vec<Shape>,
    /// Whether queries remember what they are given.
    followed: bool,
}

/// Rows of certain columns, for all queries that want these.
#[derive(Default)]
struct Shape {
    columns: Vec<usize>,
    /// Rows of the block at hand.
    rows: Vec<u32>,
    /// Where every row gathered lies, if queries remember it.
    spots: Vec<Spot>,
    /// The query of every row gathered, those of the block at hand included.
    queries: Vec<u32>,
    /// So many for each row as there are columns.
    numbers: Vec<u64>,
    /// A bit for each column.
    nulls: Vec<u64>,
}

impl Shapes {
    pub(super) fn new(followed: bool) -> Shapes {
        Shapes { all: Vec::new(), followed }
    }

    /// The same shapes, without rows.
    pub(super) fn alike(&self) -> Shapes {
        let alike = |shape: &Shape| Shape { columns: shape.columns.clone(), ..Shape::default() };
        Shapes { all: self.all.iter().map(alike).collect(), followed: self.followed }
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

    /// Takes note of a row of the block at hand.
    #[inline]
    pub(super) fn note(&mut self, shape: usize, query: u32, row: u32) {
        let shape = &mut self.all[shape];
        shape.rows.push(row);
        shape.queries.push(query);
    }

    /// Copies what was noted, behind a block.
    pub(super) fn gather(&mut self, columns: &Columns, block: usize, harvests: &mut [Harvest<'_>]) {
        for shape in &mut self.all {
            if self.followed {
                let spot = |&row: &u32| Spot { block: block as u32, row };
                shape.spots.extend(shape.rows.iter().map(spot));
            }
            shape.gather(columns, block);
            if shape.numbers.len() >= NUMBERS_MAX {
                shape.give_out(columns, harvests);
            }
        }
    }

    /// Gives everything to the queries, at the end.
    pub(super) fn give_out(&mut self, columns: &Columns, harvests: &mut [Harvest<'_>]) {
        self.all.iter_mut().for_each(|shape| shape.give_out(columns, harvests));
    }
}

impl Shape {
    fn gather(&mut self, columns: &Columns, block: usize) {
        let block = &columns.blocks[block];
        let width = self.columns.len();
        let start = self.numbers.len();
        self.numbers.resize(start + self.rows.len() * width, 0);
        self.nulls.resize(self.queries.len(), 0);
        let first = self.queries.len() - self.rows.len();
        for (position, &column) in self.columns.iter().enumerate() {
            let chunk = &block.columns[column];
            chunk.gather(&self.rows, self.numbers[start..].iter_mut().skip(position).step_by(width));
            if chunk.nulls().is_some() {
                for (nulls, &row) in self.nulls[first..].iter_mut().zip(&self.rows) {
                    *nulls |= u64::from(chunk.is_null(row as usize)) << position;
                }
            }
        }
        self.rows.clear();
    }

    fn give_out(&mut self, columns: &Columns, harvests: &mut [Harvest<'_>]) {
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
        let (mut start, mut made) = (0, Vec::new());
        while let Some(&first) = order.get(start) {
            let query = self.queries[first as usize] as usize;
            let end = ends[query] as usize;
            if !self.spots.is_empty() {
                harvests[query].remember(order[start..end].iter().map(|&row| self.spots[row as usize]));
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
            harvests[query].take(made.drain(..));
            start = end;
        }
        self.queries.clear();
        self.spots.clear();
        self.numbers.clear();
        self.nulls.clear();
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
