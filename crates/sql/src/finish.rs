//! Turns the answers of the ranges into the rows of a statement, as a stream.
//!
//! Plain rows are merged as they arrive. Each range sends its rows in the statement's order, so the gateway
//! holds one chunk per range for a result of any length. A DISTINCT is sorted by all columns, so that equal
//! rows are adjacent. Only groups are gathered, because the last range may still add to the first group. The
//! memory of chunks and groups is counted ([`crate::budget`]). A reader that stops reading stops the ranges
//! through their bounded channels. A reader that has enough rows drops the channels. Rows that need no work
//! stay encoded ([`RowBatch::Encoded`]).

use std::{future::poll_fn, vec};

use quorate_roles::tables::rows::{EncodedRows, Malformed};
use quorate_table::{
    engine::{Answer, Failure},
    merge::{Finish, Input, Merge},
    operation::Order,
    value::Row,
};

use crate::{
    backend::{AnswerStream, Piece, RangeAnswers, next_of},
    budget::{self, MemoryReservation, weight},
    error::{Result, SqlError},
    fault,
};

/// Maximum number of decoded rows that are handed out at a time.
const BATCH: usize = 512;

/// Some rows of a result.
pub enum RowBatch {
    /// Decoded rows.
    Rows(vec::IntoIter<Row>),
    /// Encoded rows, and the number of columns that the client sees.
    Encoded(EncodedRows, usize),
}

impl Default for RowBatch {
    fn default() -> Self {
        RowBatch::Rows(Vec::new().into_iter())
    }
}

impl RowBatch {
    /// Returns the number of rows that are left.
    pub fn len(&self) -> usize {
        match self {
            RowBatch::Rows(rows) => rows.len(),
            RowBatch::Encoded(rows, _) => rows.len(),
        }
    }

    /// Whether no rows are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Decodes the rows that are left.
    fn into_rows(self) -> Result<Vec<Row>> {
        let (mut encoded, visible) = match self {
            RowBatch::Rows(rows) => return Ok(rows.collect()),
            RowBatch::Encoded(encoded, visible) => (encoded, visible),
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

/// Returns the error about an answer that cannot be decoded.
pub fn malformed(_: Malformed) -> SqlError {
    Failure::malformed("the bytes of an answer cannot be decoded").into()
}

/// The rows of a result, as a stream.
pub struct Rows {
    source: RowSource,
    /// Rows that `next` returned in excess of the limit of a `take`.
    rest: vec::IntoIter<Row>,
    distinct: bool,
    last: Option<Row>,
    offset: u64,
    limit: Option<u64>,
    visible: usize,
    /// Memory of the gathered rows.
    hold: MemoryReservation,
}

enum RowSource {
    /// Rows that are all in memory.
    Ready(vec::IntoIter<Row>),
    /// Answers of ranges, in any order.
    Parts(Vec<RangeAnswers>),
    /// Answers of ranges, merged in the statement's order.
    Sorted { parts: Vec<SortedPart>, order: Vec<Order> },
    /// Groups, gathered from all ranges.
    Groups { parts: Vec<RangeAnswers>, merge: Option<Box<Merge>> },
}

struct SortedPart {
    part: RangeAnswers,
    chunk: vec::IntoIter<Row>,
    next: Option<Row>,
    /// Memory of the chunk that is being merged, in bytes.
    held: usize,
    begun: bool,
}

/// The part of a result that the client sees.
#[derive(Clone, Debug, Default)]
pub struct RowWindow {
    /// Whether equal rows count once. They must be adjacent.
    pub distinct: bool,
    /// Number of first rows that are left out.
    pub offset: u64,
    /// Maximum number of rows after `offset`; `None` is no limit.
    pub limit: Option<u64>,
    /// Number of columns that are visible.
    pub visible: usize,
}

impl Rows {
    fn new(source: RowSource, window: RowWindow, hold: MemoryReservation) -> Self {
        let RowWindow { distinct, offset, limit, visible } = window;
        Rows { source, rest: Vec::new().into_iter(), distinct, last: None, offset, limit, visible, hold }
    }

    /// Creates a result from rows that are all in memory, and sorts them.
    pub fn ready(mut rows: Vec<Row>, order: &[Order], window: RowWindow) -> Self {
        if !order.is_empty() {
            rows.sort_by(|a, b| Order::compare(order, a, b));
        }
        Rows::new(RowSource::Ready(rows.into_iter()), window, MemoryReservation::default())
    }

    /// Makes the result hold the memory that was counted for its rows.
    pub fn holding(self, hold: MemoryReservation) -> Self {
        Rows { hold, ..self }
    }

    /// Creates a result from rows that are all in memory, in their present order.
    pub fn plain(rows: Vec<Row>) -> Self {
        Rows::ready(rows, &[], RowWindow { visible: usize::MAX, ..RowWindow::default() })
    }

    /// Merges the answers of ranges, each sorted by `order`. `hold` counts the gathered rows.
    pub fn merged(
        answers: AnswerStream,
        order: Vec<Order>,
        window: RowWindow,
        hold: MemoryReservation,
    ) -> Self {
        let source = if order.is_empty() {
            RowSource::Parts(answers.parts)
        } else {
            let parts = answers
                .parts
                .into_iter()
                .map(|part| SortedPart {
                    part,
                    chunk: Vec::new().into_iter(),
                    next: None,
                    held: 0,
                    begun: false,
                })
                .collect();
            RowSource::Sorted { parts, order }
        };
        Rows::new(source, window, hold)
    }

    /// Creates a result that gathers the groups of all ranges before it returns any row. `finish` describes
    /// the steps after gathering. `hold` counts the memory of the groups.
    pub fn grouped(answers: AnswerStream, finish: Finish, hold: MemoryReservation) -> Self {
        assert!(matches!(finish.input, Input::Groups { .. }), "rows are merged, not gathered");
        let source = RowSource::Groups { parts: answers.parts, merge: Some(Box::new(Merge::new(finish))) };
        Rows::new(source, RowWindow { visible: usize::MAX, ..RowWindow::default() }, hold)
    }

    /// Returns the next rows, at most `most`. Returns no rows at the end.
    pub async fn take(&mut self, most: usize) -> Result<Vec<Row>> {
        let mut rows = self.next().await?;
        if rows.len() > most {
            self.rest = rows.split_off(most).into_iter();
        }
        Ok(rows)
    }

    /// Returns the next rows, or no rows at the end.
    pub async fn next(&mut self) -> Result<Vec<Row>> {
        self.next_batch().await?.into_rows()
    }

    /// Returns the next rows, or an empty batch at the end.
    pub async fn next_batch(&mut self) -> Result<RowBatch> {
        if self.rest.len() > 0 {
            return Ok(RowBatch::Rows(std::mem::take(&mut self.rest)));
        }
        if let Some((parts, visible)) = self.pass_through() {
            return next_encoded(parts, visible).await;
        }
        self.next_rows().await.map(|rows| RowBatch::Rows(rows.into_iter()))
    }

    /// Returns the next rows without waiting, if they belong to a short answer and need no work. Otherwise
    /// returns `None`. An empty batch means that the result has ended.
    pub fn ready_batch(&mut self) -> Option<RowBatch> {
        if self.rest.len() > 0 {
            return None;
        }
        let (parts, visible) = self.pass_through()?;
        while let Some(part) = parts.last_mut() {
            let RangeAnswers::Whole(pieces) = part else { return None };
            // An answer without rows, such as a failure, is left for `next_batch`, which reports it.
            match pieces.as_slice().first().map(EncodedRows::of) {
                None => drop(parts.pop()),
                Some(rows) => {
                    let rows = rows?;
                    pieces.next();
                    if !rows.is_empty() {
                        return Some(RowBatch::Encoded(rows, visible));
                    }
                }
            }
        }
        Some(RowBatch::default())
    }

    /// Returns the ranges whose rows need no work, and the number of visible columns. `None` if the rows need
    /// work.
    fn pass_through(&mut self) -> Option<(&mut Vec<RangeAnswers>, usize)> {
        match &mut self.source {
            RowSource::Parts(parts) if !self.distinct && self.offset == 0 && self.limit.is_none() => {
                Some((parts, self.visible))
            }
            _ => None,
        }
    }

    async fn next_rows(&mut self) -> Result<Vec<Row>> {
        loop {
            if self.limit == Some(0) {
                self.source = RowSource::Ready(Vec::new().into_iter());
                return Ok(Vec::new());
            }
            let mut batch = self.source.next(&mut self.hold).await?;
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

    /// Returns all rows. Fails with 53200 if the rows need more memory than a request may hold.
    pub async fn all(mut self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        loop {
            let batch = self.next().await?;
            if batch.is_empty() {
                return Ok(rows);
            }
            self.hold.grow(batch.iter().map(weight).sum())?;
            rows.extend(batch);
        }
    }
}

fn same(a: &[quorate_table::value::Value], b: &[quorate_table::value::Value]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.order(b).is_eq())
}

impl RowSource {
    /// Returns the next rows. No rows mean that the result has ended.
    async fn next(&mut self, hold: &mut MemoryReservation) -> Result<Vec<Row>> {
        match self {
            RowSource::Ready(rows) => Ok(rows.take(BATCH).collect()),
            RowSource::Parts(parts) => {
                while let Some(piece) = next_of(parts).await {
                    let rows = rows_of(piece.and_then(Piece::answer).map_err(fault::read_error)?)?;
                    if !rows.is_empty() {
                        return Ok(rows);
                    }
                }
                Ok(Vec::new())
            }
            RowSource::Sorted { parts, order } => {
                for part in parts.iter_mut().filter(|part| !part.begun) {
                    part.begun = true;
                    part.advance(hold).await?;
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
                    parts[index].advance(hold).await?;
                    if parts[index].next.is_none() {
                        parts.swap_remove(index);
                    }
                }
                Ok(batch)
            }
            RowSource::Groups { parts, merge } => {
                let Some(mut merge) = merge.take() else { return Ok(Vec::new()) };
                while let Some(piece) = next_of(parts).await {
                    if let Ok(piece) = &piece {
                        hold.grow(weight_of_piece(piece))?;
                    }
                    merge.push(piece.and_then(Piece::answer).map_err(fault::read_error)?)?;
                }
                let mut rows = merge.finish()?.into_iter();
                let batch = rows.by_ref().take(BATCH).collect();
                *self = RowSource::Ready(rows);
                Ok(batch)
            }
        }
    }
}

impl SortedPart {
    async fn advance(&mut self, hold: &mut MemoryReservation) -> Result<()> {
        loop {
            if let Some(row) = self.chunk.next() {
                self.next = Some(row);
                return Ok(());
            }
            hold.shrink(std::mem::take(&mut self.held));
            let Some(piece) = poll_fn(|cx| self.part.poll_next(cx)).await else { return Ok(()) };
            let piece = piece.map_err(fault::read_error)?;
            let held = weight_of_piece(&piece);
            hold.grow(held)?;
            self.held = held;
            self.chunk = rows_of(piece.answer().map_err(fault::read_error)?)?.into_iter();
        }
    }
}

/// Returns the memory of a piece once it is decoded, in bytes.
fn weight_of_piece(piece: &Piece) -> usize {
    match piece {
        Piece::Encoded(bytes) => budget::decoded_bytes_estimate(bytes.len()),
        Piece::Answer(Answer::Rows(rows)) => rows.iter().map(weight).sum(),
        Piece::Answer(Answer::Groups(groups)) => groups.iter().map(|group| weight(&group.keys)).sum(),
        Piece::Answer(_) => 0,
    }
}

fn rows_of(answer: Answer) -> Result<Vec<Row>> {
    match answer {
        Answer::Rows(rows) => Ok(rows),
        Answer::Failed(failure) => Err(failure.into()),
        Answer::Groups(_)
        | Answer::Written(_)
        | Answer::Explanation(_)
        | Answer::Backup { .. }
        | Answer::Transaction(_)
        | Answer::Tried { .. }
        | Answer::TrialFailed { .. } => {
            Err(SqlError::new("XX000", "a range answered a read of rows with an answer of another kind"))
        }
    }
}

/// Returns the next rows of any range that has rows ready, encoded if possible.
async fn next_encoded(parts: &mut Vec<RangeAnswers>, visible: usize) -> Result<RowBatch> {
    while let Some(piece) = next_of(parts).await {
        let batch = match piece.map_err(fault::read_error)? {
            Piece::Encoded(bytes) if let Some(rows) = EncodedRows::of(&bytes) => {
                RowBatch::Encoded(rows, visible)
            }
            piece => {
                let mut rows = rows_of(piece.answer().map_err(fault::read_error)?)?;
                rows.iter_mut().for_each(|row| row.truncate(visible));
                RowBatch::Rows(rows.into_iter())
            }
        };
        if !batch.is_empty() {
            return Ok(batch);
        }
    }
    Ok(RowBatch::default())
}
