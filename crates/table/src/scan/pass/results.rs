//! Results: the rows that queries receive, gathered by column.
//!
//! Queries that want the same columns share a [`OutputShape`]. The rows that they want of a block are copied
//! column by column, as numbers, into one list. Later the shape turns the numbers into values, query by
//! query, so that a row is allocated once, where it stays.

use crate::{
    scan::{
        Columns,
        code::hint,
        query::{
            received::ReceivedRows,
            scan_query::{QueryResult, ScanQuery},
            shape::{OutputShape, OutputShapes},
        },
    },
    value::Row,
};

/// The number of rows between two steps of prefetching a value.
const AHEAD: usize = 4;
/// The number of gathered numbers at which a shape makes values of them: 8 MiB.
const NUMBERS_MAX: usize = 1 << 20;

impl OutputShapes {
    /// Gathers the noted rows, at the end of a block.
    pub(super) fn gather<'a>(
        &mut self,
        columns: &Columns,
        block: usize,
        queries: &[ScanQuery<'a>],
        query_results: &mut [QueryResult<'a>],
    ) {
        for shape in &mut self.all {
            shape.gather(columns, block, self.corrected_later);
            if shape.numbers.len() >= NUMBERS_MAX {
                self.received.extend(shape.give_out(columns, queries, query_results));
            }
        }
    }

    /// Gives all rows to the queries, at the end of a pass. Returns the rows that each query received, in
    /// order, if the shapes remember them.
    pub(super) fn give_out<'a>(
        mut self,
        columns: &Columns,
        queries: &[ScanQuery<'a>],
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
        asking: &[ScanQuery<'a>],
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
                    hint::prefetch(first);
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

    /// Returns the values of the last of these rows. A text that equals the text of the row before is shared
    /// if the dictionary would copy it.
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
