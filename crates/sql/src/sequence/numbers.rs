//! The numbers that a gateway has drawn from sequences and not given yet.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use quorate_table::{
    engine::Answer,
    expr::{Binary, Expr, Unary},
    operation::{Conflict, Operation},
    schema::TableId,
    value::{Row, Type, Value},
};
use tokio::sync;

use super::definition::{Sequence, SequenceDefinition, column};
use crate::{
    backend::{Backend, OperationError, Table, WriteName},
    error::{Result, SqlError, code},
    fault,
};

/// Maximum size of a draw, unless a statement needs more numbers.
const DRAW_MAX: u64 = 1_024;

/// Time after which a sequence counts as quiet. The next draw then takes only the numbers that are needed.
const QUIET: Duration = Duration::from_secs(1);

/// Number of sequences beyond which the numbers of idle sequences are dropped.
const SEQUENCES_MAX: usize = 4_096;

/// The numbers that one gateway has drawn. Each sequence has a lock of its own, which a draw holds.
#[derive(Debug, Default)]
pub struct Numbers {
    sequences: Mutex<BTreeMap<TableId, Arc<sync::Mutex<Stock>>>>,
}

/// Numbers of a sequence that are not given yet.
#[derive(Debug, Default)]
struct Stock {
    next: i64,
    /// Count of the numbers that are left.
    left: u64,
    /// Size of the latest draw that took more than was needed.
    size: u64,
    drawn_at: Option<Instant>,
}

impl Numbers {
    /// Takes numbers of a sequence, and draws a block if there are too few.
    pub async fn take(
        &self,
        backend: &Arc<dyn Backend>,
        sequence: &Sequence,
        count: usize,
    ) -> Result<Vec<i64>> {
        let stock = self.stock(sequence.table.id);
        let mut stock = stock.lock().await;
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            if stock.left == 0 {
                let needed = (count - taken.len()) as u64;
                stock.draw(backend, sequence, needed).await?;
            }
            stock.give(sequence.definition.increment, count, &mut taken);
        }
        Ok(taken)
    }

    /// Sets a sequence: its last number, and whether that number counts as given.
    pub async fn set(
        &self,
        backend: &Arc<dyn Backend>,
        sequence: &Sequence,
        value: i64,
        is_called: bool,
    ) -> Result<()> {
        let Sequence { table, definition: SequenceDefinition { name, min, max, .. } } = sequence;
        if !(*min..=*max).contains(&value) {
            return Err(SqlError::new(
                "22003",
                format!("setval: value {value} is out of bounds for sequence \"{name}\" ({min}..{max})"),
            ));
        }
        let stock = self.stock(sequence.table.id);
        let mut stock = stock.lock().await;
        stock.left = 0;
        let constant = |value: Value, ty| Expr::Constant(value, ty);
        let assignments = vec![
            (column::LAST, constant(Value::Int8(value), Type::Int8)),
            (column::CALLED, constant(Value::Bool(is_called), Type::Bool)),
            (column::FIRST, constant(Value::Int8(value), Type::Int8)),
        ];
        let operation = Operation::Upsert {
            table: table.id,
            rows: vec![row(table, value, value, is_called)?],
            conflict: Conflict::Update { assignments, filter: None },
            returning: Vec::new(),
        };
        write(backend, operation).await.map(drop).map_err(|fault| match fault {
            fault if fault.is_open() => SqlError::new(
                code::STATEMENT_COMPLETION_UNKNOWN,
                format!("sequence \"{name}\" may have been set"),
            )
            .hint("Send the statement again: setval has the same effect when it is repeated."),
            fault => fault::unnamed_error(fault),
        })
    }

    fn stock(&self, table: TableId) -> Arc<sync::Mutex<Stock>> {
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        if sequences.len() >= SEQUENCES_MAX && !sequences.contains_key(&table) {
            sequences.retain(|_, stock| Arc::strong_count(stock) > 1);
        }
        sequences.entry(table).or_default().clone()
    }
}

impl Stock {
    /// Moves numbers to `taken` until it has `count`, or none are left.
    fn give(&mut self, increment: i64, count: usize, taken: &mut Vec<i64>) {
        while taken.len() < count && self.left > 0 {
            taken.push(self.next);
            self.left -= 1;
            // After the last number of the stock, `next` may lie outside the range of the type. Nobody gets
            // that number, because `left` is 0.
            self.next = self.next.wrapping_add(increment);
        }
    }

    /// Draws numbers with one ordered write: those that are needed, and more if the sequence is busy.
    async fn draw(&mut self, backend: &Arc<dyn Backend>, sequence: &Sequence, needed: u64) -> Result<()> {
        let Sequence { table, definition } = sequence;
        let is_busy = self.drawn_at.is_some_and(|at| at.elapsed() < QUIET);
        let cache = definition.cache.clamp(1, DRAW_MAX as i64) as u64;
        self.size = if is_busy { (2 * self.size).clamp(cache, DRAW_MAX) } else { cache };
        let count = draw_size(self.size.max(needed), definition);
        let operation = draw(table, definition, count)?;
        let returned = write(backend, operation).await.map_err(|fault| match fault {
            // Nothing of the statement was sent. Numbers that were drawn and not received are lost.
            fault if fault.is_open() => fault::unnamed_error(OperationError::not_sent(format!(
                "sequence \"{}\" gave no number in time",
                definition.name
            ))),
            fault => fault::unnamed_error(fault),
        })?;
        let Some([first, last]) = returned.first().and_then(|row| row.get(..2)) else {
            return Err(exhausted(definition));
        };
        let (Some(first), Some(last)) = (first.as_integer(), last.as_integer()) else {
            return Err(SqlError::new(code::INTERNAL_ERROR, "a sequence returned a value that is no number"));
        };
        self.next = first;
        self.left = ((i128::from(last) - i128::from(first)) / i128::from(definition.increment)) as u64 + 1;
        self.drawn_at = Some(Instant::now());
        Ok(())
    }
}

/// Returns the greatest size of a draw, at most `wanted`, whose arithmetic cannot overflow.
fn draw_size(wanted: u64, sequence: &SequenceDefinition) -> u64 {
    wanted.min(1 + (1 << 62) / sequence.increment.unsigned_abs())
}

/// Returns the write that draws `count` numbers, or as many as are left. It changes nothing and returns no
/// row if none are left.
fn draw(table: &Table, sequence: &SequenceDefinition, count: u64) -> Result<Operation> {
    let SequenceDefinition { increment, start, .. } = *sequence;
    let is_rising = increment > 0;
    let end = if is_rising { sequence.max } else { sequence.min };
    let span = increment * (count - 1) as i64;
    let number = |number: i64| Expr::Constant(Value::Int8(number), Type::Int8);
    let boolean = |value: bool| Expr::Constant(Value::Bool(value), Type::Bool);
    let [last, is_called] =
        [(column::LAST, Type::Int8), (column::CALLED, Type::Bool)].map(|(at, ty)| Expr::Column(at, ty));
    // Whether at least `distance` lies between a number and the end of the sequence.
    let reaches = |value: Expr, distance: i64| match end.checked_sub(distance) {
        Some(most) if is_rising => Expr::binary(Binary::LessEqual, value, number(most)),
        Some(least) => Expr::binary(Binary::GreaterEqual, value, number(least)),
        None => boolean(false),
    };
    let case = |condition: Expr, then: Expr, otherwise: Expr| Expr::Case {
        branches: vec![(condition, then)],
        otherwise: Some(Box::new(otherwise)),
        ty: Type::Int8,
    };
    let next = Expr::binary(Binary::Add, last.clone(), number(increment));
    let first = case(is_called.clone(), next, last.clone());
    let rest = Expr::binary(Binary::Subtract, number(end), first.clone());
    let steps = Expr::binary(Binary::Divide, rest, number(increment));
    let rest = Expr::binary(Binary::Multiply, steps, number(increment));
    let new_last = case(
        reaches(first.clone(), span),
        Expr::binary(Binary::Add, first.clone(), number(span)),
        Expr::binary(Binary::Add, first.clone(), rest),
    );
    let unused = Expr::Unary(Unary::Not, Box::new(is_called));
    let filter = Expr::binary(Binary::Or, unused, reaches(last, increment));
    let assignments = vec![(column::LAST, new_last), (column::CALLED, boolean(true)), (column::FIRST, first)];
    let steps = (i128::from(end) - i128::from(start)) / i128::from(increment);
    let initial_last = start + increment * steps.min(i128::from(count - 1)) as i64;
    Ok(Operation::Upsert {
        table: table.id,
        rows: vec![row(table, start, initial_last, true)?],
        conflict: Conflict::Update { assignments, filter: Some(filter) },
        returning: vec![Expr::Column(column::FIRST, Type::Int8), Expr::Column(column::LAST, Type::Int8)],
    })
}

/// Returns a sequence's row.
fn row(table: &Table, first: i64, last: i64, is_called: bool) -> Result<Row> {
    let default = |default: Option<&Expr>| match default {
        Some(Expr::Constant(value, _)) => Ok(value.clone()),
        _ => Err(SqlError::new(code::INTERNAL_ERROR, "a column of a sequence has no constant default")),
    };
    let columns = table.schema.columns.iter().map(|column| default(column.default.as_ref()));
    let mut row: Row = columns.collect::<Result<_>>()?;
    row[column::LAST] = Value::Int8(last);
    row[column::LOG] = Value::Int8(0);
    row[column::CALLED] = Value::Bool(is_called);
    row[column::FIRST] = Value::Int8(first);
    Ok(row)
}

/// Sends a write of a sequence's row. Returns the row's columns, if it was added or changed.
async fn write(backend: &Arc<dyn Backend>, operation: Operation) -> Result<Vec<Row>, OperationError> {
    let mut returned = Vec::new();
    for answer in backend.write(WriteName::nameless(backend.request_id()), operation).await? {
        match answer {
            Answer::Written(ranges) => returned.extend(ranges.into_iter().flat_map(|range| range.returning)),
            Answer::Failed(failure) => return Err(OperationError::Failed(failure)),
            _ => {}
        }
    }
    Ok(returned)
}

/// Returns the error about a sequence that has no number left.
fn exhausted(sequence: &SequenceDefinition) -> SqlError {
    let SequenceDefinition { name, min, max, increment, .. } = sequence;
    let (which, end) = if *increment > 0 { ("maximum", max) } else { ("minimum", min) };
    SqlError::new("2200H", format!("nextval: reached {which} value of sequence \"{name}\" ({end})"))
}
