//! From what the ranges answer to the rows of a statement, as a stream.
//!
//! Plain rows are merged as they come: each range sends its own in the statement's order, so that the gateway holds
//! one chunk per range, however long the result (a DISTINCT is sorted by all columns, so that equal rows meet). Only
//! groups are gathered, because the last range may still add to the first group. A reader that stops reading stops
//! the ranges through their bounded channels; one that has enough drops them. Rows that nothing is done to but passing
//! them on stay in the bytes they came in ([`Batch::Encoded`]).

use std::vec;

use quorate_table::{
    engine::{Answer, Failure},
    merge::{Finish, Input, Merge},
    operation::Order,
    value::Row,
};
use quorate_tables::rows::{EncodedRows, Malformed};

use crate::{
    backend::{AnswerStream, Part, Piece, next_of},
    error::{Result, SqlError},
    fault,
};

/// Rows handed out at a time.
const BATCH: usize = 512;

/// Some rows of a result.
pub enum Batch {
    /// As values.
    Rows(vec::IntoIter<Row>),
    /// As they came; the client sees so many columns of them.
    Encoded(EncodedRows, usize),
}

impl Default for Batch {
    fn default() -> Self {
        Batch::Rows(Vec::new().into_iter())
    }
}

impl Batch {
    /// How many are left.
    pub fn len(&self) -> usize {
        match self {
            Batch::Rows(rows) => rows.len(),
            Batch::Encoded(rows, _) => rows.len(),
        }
    }

    /// Whether none are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rest, as values.
    fn into_rows(self) -> Result<Vec<Row>> {
        let (mut encoded, visible) = match self {
            Batch::Rows(rows) => return Ok(rows.collect()),
            Batch::Encoded(encoded, visible) => (encoded, visible),
        };
        let mut rows = Vec::with_capacity(encoded.len().min(BATCH));
        while !encoded.is_empty() {
            let mut row = Row::new();
            let seen = encoded.next(|column, cell| {
                if column < visible {
                    row.push(cell.value());
                }
            });
            seen.map_err(malformed)?;
            rows.push(row);
        }
        Ok(rows)
    }
}

/// An answer that does not decode.
pub fn malformed(_: Malformed) -> SqlError {
    Failure::malformed("an answer does not decode").into()
}

/// The rows of a result.
pub struct Rows {
    source: Source,
    /// Rows that were asked for and not taken.
    rest: vec::IntoIter<Row>,
    distinct: bool,
    last: Option<Row>,
    offset: u64,
    limit: Option<u64>,
    visible: usize,
}

enum Source {
    /// Everything is here.
    Ready(vec::IntoIter<Row>),
    /// Ranges in any order.
    Parts(Vec<Part>),
    /// Ranges in the statement's order.
    Sorted { parts: Vec<Sorted>, order: Vec<Order> },
    /// Groups of all ranges.
    Groups { parts: Vec<Part>, merge: Option<Box<Merge>> },
}

struct Sorted {
    part: Part,
    chunk: vec::IntoIter<Row>,
    next: Option<Row>,
    begun: bool,
}

/// Which rows of a result the client sees.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Equal rows once; they must follow each other.
    pub distinct: bool,
    /// The first so many are left out.
    pub offset: u64,
    /// At most so many.
    pub limit: Option<u64>,
    /// Only so many of the columns.
    pub visible: usize,
}

impl Rows {
    fn new(source: Source, window: Window) -> Self {
        let Window { distinct, offset, limit, visible } = window;
        Rows { source, rest: Vec::new().into_iter(), distinct, last: None, offset, limit, visible }
    }

    /// Rows that are all here, to be sorted.
    pub fn ready(mut rows: Vec<Row>, order: &[Order], window: Window) -> Self {
        if !order.is_empty() {
            rows.sort_by(|a, b| Order::compare(order, a, b));
        }
        Rows::new(Source::Ready(rows.into_iter()), window)
    }

    /// Rows that are all here, as they are.
    pub fn plain(rows: Vec<Row>) -> Self {
        Rows::ready(rows, &[], Window { visible: usize::MAX, ..Window::default() })
    }

    /// Rows of ranges, each in `order`.
    pub fn merged(answers: AnswerStream, order: Vec<Order>, window: Window) -> Self {
        let source = if order.is_empty() {
            Source::Parts(answers.parts)
        } else {
            let parts = answers
                .parts
                .into_iter()
                .map(|part| Sorted { part, chunk: Vec::new().into_iter(), next: None, begun: false })
                .collect();
            Source::Sorted { parts, order }
        };
        Rows::new(source, window)
    }

    /// Groups of ranges; `finish` does all there is to do.
    pub fn grouped(answers: AnswerStream, finish: Finish) -> Self {
        assert!(matches!(finish.input, Input::Groups { .. }), "rows are merged, not gathered");
        let source = Source::Groups { parts: answers.parts, merge: Some(Box::new(Merge::new(finish))) };
        Rows::new(source, Window { visible: usize::MAX, ..Window::default() })
    }

    /// The next rows, at most so many; none when there are no more.
    pub async fn take(&mut self, most: usize) -> Result<Vec<Row>> {
        let mut rows = self.next().await?;
        if rows.len() > most {
            self.rest = rows.split_off(most).into_iter();
        }
        Ok(rows)
    }

    /// The next rows; none when there are no more.
    pub async fn next(&mut self) -> Result<Vec<Row>> {
        self.next_batch().await?.into_rows()
    }

    /// The next rows; none when there are no more.
    pub async fn next_batch(&mut self) -> Result<Batch> {
        if self.rest.len() > 0 {
            return Ok(Batch::Rows(std::mem::take(&mut self.rest)));
        }
        if let Some((parts, visible)) = self.passed_on() {
            return next_encoded(parts, visible).await;
        }
        self.next_rows().await.map(|rows| Batch::Rows(rows.into_iter()))
    }

    /// The next rows, if that takes no waiting and nothing but passing them on: those of a short answer. None when there are
    /// no more.
    pub fn ready_batch(&mut self) -> Option<Batch> {
        if self.rest.len() > 0 {
            return None;
        }
        let (parts, visible) = self.passed_on()?;
        while let Some(part) = parts.last_mut() {
            let Part::Whole(pieces) = part else { return None };
            // What is no rows is told by whoever waits for it.
            match pieces.as_slice().first().map(EncodedRows::of) {
                None => drop(parts.pop()),
                Some(rows) => {
                    let rows = rows?;
                    pieces.next();
                    if !rows.is_empty() {
                        return Some(Batch::Encoded(rows, visible));
                    }
                }
            }
        }
        Some(Batch::default())
    }

    /// The ranges whose rows are passed on as they are, and how many of their columns.
    fn passed_on(&mut self) -> Option<(&mut Vec<Part>, usize)> {
        match &mut self.source {
            Source::Parts(parts) if !self.distinct && self.offset == 0 && self.limit.is_none() => {
                Some((parts, self.visible))
            }
            _ => None,
        }
    }

    async fn next_rows(&mut self) -> Result<Vec<Row>> {
        loop {
            if self.limit == Some(0) {
                self.source = Source::Ready(Vec::new().into_iter());
                return Ok(Vec::new());
            }
            let mut batch = self.source.next().await?;
            if batch.is_empty() {
                return Ok(batch);
            }
            if self.distinct {
                let last = &mut self.last;
                let visible = self.visible;
                batch.retain(|row| {
                    let seen = last.as_ref().is_some_and(|last| same(&row[..visible], last));
                    if !seen {
                        *last = Some(row[..visible].to_vec());
                    }
                    !seen
                });
            }
            if self.offset > 0 {
                let skipped = self.offset.min(batch.len() as u64);
                batch.drain(..skipped as usize);
                self.offset -= skipped;
            }
            if let Some(limit) = &mut self.limit {
                batch.truncate(usize::try_from(*limit).unwrap_or(usize::MAX));
                *limit -= batch.len() as u64;
            }
            for row in &mut batch {
                row.truncate(self.visible);
            }
            if !batch.is_empty() {
                return Ok(batch);
            }
        }
    }

    /// All of them.
    pub async fn all(mut self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        loop {
            let batch = self.next().await?;
            if batch.is_empty() {
                return Ok(rows);
            }
            rows.extend(batch);
        }
    }
}

fn same(a: &[quorate_table::value::Value], b: &[quorate_table::value::Value]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.order(b).is_eq())
}

impl Source {
    /// The next rows, at least one unless there are no more.
    async fn next(&mut self) -> Result<Vec<Row>> {
        match self {
            Source::Ready(rows) => Ok(rows.take(BATCH).collect()),
            Source::Parts(parts) => {
                while let Some(piece) = next_of(parts).await {
                    let rows = rows_of(piece.and_then(Piece::answer).map_err(fault::of_read)?)?;
                    if !rows.is_empty() {
                        return Ok(rows);
                    }
                }
                Ok(Vec::new())
            }
            Source::Sorted { parts, order } => {
                for part in parts.iter_mut().filter(|part| !part.begun) {
                    part.begun = true;
                    part.advance().await?;
                }
                parts.retain(|part| part.next.is_some());
                let mut batch = Vec::new();
                while batch.len() < BATCH {
                    let least = parts.iter().enumerate().min_by(|(_, a), (_, b)| {
                        Order::compare(
                            order,
                            a.next.as_deref().unwrap_or(&[]),
                            b.next.as_deref().unwrap_or(&[]),
                        )
                    });
                    let Some((index, _)) = least else { break };
                    batch.extend(parts[index].next.take());
                    parts[index].advance().await?;
                    if parts[index].next.is_none() {
                        parts.swap_remove(index);
                    }
                }
                Ok(batch)
            }
            Source::Groups { parts, merge } => {
                let Some(mut merge) = merge.take() else { return Ok(Vec::new()) };
                while let Some(piece) = next_of(parts).await {
                    merge.push(piece.and_then(Piece::answer).map_err(fault::of_read)?)?;
                }
                let mut rows = merge.finish()?.into_iter();
                let batch = rows.by_ref().take(BATCH).collect();
                *self = Source::Ready(rows);
                Ok(batch)
            }
        }
    }
}

impl Sorted {
    async fn advance(&mut self) -> Result<()> {
        loop {
            if let Some(row) = self.chunk.next() {
                self.next = Some(row);
                return Ok(());
            }
            match self.part.next().await {
                Some(answer) => self.chunk = rows_of(answer.map_err(fault::of_read)?)?.into_iter(),
                None => return Ok(()),
            }
        }
    }
}

fn rows_of(answer: Answer) -> Result<Vec<Row>> {
    match answer {
        Answer::Rows(rows) => Ok(rows),
        Answer::Failed(failure) => Err(failure.into()),
        Answer::Groups(_) | Answer::Written(_) | Answer::Explained(_) | Answer::Backup { .. } => {
            Err(SqlError::new("XX000", "a range answered a read of rows with something else"))
        }
    }
}

/// The next rows of whichever range has some, left as they came if they can be.
async fn next_encoded(parts: &mut Vec<Part>, visible: usize) -> Result<Batch> {
    while let Some(piece) = next_of(parts).await {
        let batch = match piece.map_err(fault::of_read)? {
            Piece::Encoded(bytes) if let Some(rows) = EncodedRows::of(&bytes) => {
                Batch::Encoded(rows, visible)
            }
            piece => {
                let mut rows = rows_of(piece.answer().map_err(fault::of_read)?)?;
                rows.iter_mut().for_each(|row| row.truncate(visible));
                Batch::Rows(rows.into_iter())
            }
        };
        if !batch.is_empty() {
            return Ok(batch);
        }
    }
    Ok(Batch::default())
}
