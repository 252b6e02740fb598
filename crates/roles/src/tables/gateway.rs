//! The gateway's translation: an operation becomes a request with ranges, and a part of a reply becomes an
//! answer.

use bytes::Bytes;
use quorate_protocol::{
    ecast::Position,
    rubberband::{DataHeader, Range},
    wire::FRAME_BYTES_MAX,
};
use quorate_table::{
    alter::ColumnSource,
    engine::Answer,
    expr::{Binary, Expr, Unary},
    failure::Failure,
    operation::{Conflict, Operation, Output, Select, TableTransaction, TransactionStatement, Trial},
    schema::{KeyRange, Schema, TEXT_BYTES_SHORT, TableId},
    value::Value,
};
use smallvec::{SmallVec, smallvec};

/// Number of distinct ring keys above which an insert goes to the whole ring. Routers read the ranges of
/// every message, so the list must be short.
const POINTS_MAX: usize = 16;

/// Number of ring ranges above which a transaction goes to the whole ring.
const TRANSACTION_RANGES_MAX: usize = 64;

/// Length of the longest operation, in bytes. A frame carries several operations and their headers.
pub const OPERATION_BYTES_MAX: usize = FRAME_BYTES_MAX / 4;

/// A request to the cluster, made from an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRequest {
    /// The table's number.
    pub table: u32,
    /// The ring ranges that the operation concerns, disjoint. Empty if no row can match.
    pub ranges: SmallVec<[Range; 2]>,
    /// Whether the operation can fail at run time.
    pub fallible: bool,
    /// The operation's byte form.
    pub operation: Bytes,
}

/// Makes the request of an operation on a table with this definition.
pub fn request(operation: &Operation, schema: &Schema) -> TableRequest {
    TableRequest {
        table: operation.table().0,
        ranges: ring_ranges(operation, schema),
        fallible: can_fail(operation, schema),
        operation: encoded_operation(operation),
    }
}

/// Returns the ring ranges that an operation concerns, disjoint and in order.
pub fn ranges_of(operation: &Operation, schema: &Schema) -> Vec<KeyRange> {
    ring_ranges(operation, schema)
        .into_iter()
        .map(|range| KeyRange { low: range.low, high: range.high })
        .collect()
}

fn ring_ranges(operation: &Operation, schema: &Schema) -> SmallVec<[Range; 2]> {
    match operation {
        Operation::Insert { rows, .. } | Operation::Upsert { rows, .. } | Operation::Stage { rows, .. } => {
            let mut points: Vec<u64> = Vec::with_capacity(rows.len().min(POINTS_MAX + 1));
            for row in rows {
                let key = schema.partition.key(row);
                if !points.contains(&key) {
                    points.push(key);
                }
                if points.len() > POINTS_MAX {
                    break;
                }
            }
            points.sort_unstable();
            match points.len() {
                0..=POINTS_MAX => points.into_iter().map(|key| Range { low: key, high: key }).collect(),
                _ => SmallVec::from_slice(&[Range::ALL]),
            }
        }
        other => ranges(other.filter(), schema),
    }
}

/// Makes the request of a transaction. `schema` returns the definition of a table. Fails with the id of a
/// table that has no definition.
pub fn transaction<'s>(
    transaction: TableTransaction,
    schema: impl Fn(TableId) -> Option<&'s Schema>,
) -> Result<TableRequest, TableId> {
    let mut concerned = Vec::new();
    for statement in transaction.statements() {
        concern(statement, &schema, &mut concerned)?;
    }
    Ok(TableRequest {
        table: DataHeader::NO_TABLE,
        ranges: few(concerned),
        fallible: true,
        operation: encoded_operation(&Operation::Transaction(transaction)),
    })
}

/// Makes the request of a trial. `schema` returns the definition of a table. Fails with the id of a table
/// that has no definition.
pub fn trial<'s>(
    trial: Trial,
    schema: impl Fn(TableId) -> Option<&'s Schema>,
) -> Result<TableRequest, TableId> {
    let mut concerned = Vec::new();
    concern(&trial.statement, &schema, &mut concerned)?;
    if trial.compares_all {
        for statement in trial.statements() {
            concern(statement, &schema, &mut concerned)?;
        }
    }
    Ok(TableRequest {
        table: DataHeader::NO_TABLE,
        ranges: few(concerned),
        fallible: false,
        operation: encoded_operation(&Operation::Trial(Box::new(trial))),
    })
}

/// Adds to `concerned` the ranges of a statement and of its results.
fn concern<'s>(
    statement: &TransactionStatement,
    schema: impl Fn(TableId) -> Option<&'s Schema>,
    concerned: &mut Vec<KeyRange>,
) -> Result<(), TableId> {
    let table = statement.operation.table();
    concerned.extend(ranges_of(&statement.operation, schema(table).ok_or(table)?));
    concerned.extend(statement.received.iter().map(|(range, _)| *range));
    Ok(())
}

/// Merges these ranges into disjoint ranges. Returns the whole ring if there are too many of them.
fn few(concerned: Vec<KeyRange>) -> SmallVec<[Range; 2]> {
    let disjoint = KeyRange::union(concerned);
    match disjoint.len() {
        0..=TRANSACTION_RANGES_MAX => {
            disjoint.into_iter().map(|range| Range { low: range.low, high: range.high }).collect()
        }
        _ => smallvec![Range::ALL],
    }
}

fn encoded_operation(operation: &Operation) -> Bytes {
    postcard::to_stdvec(operation).expect("our own types always serialise").into()
}

impl TableRequest {
    /// Fails if the operation is too long to be sent to the cluster.
    pub fn fits(&self) -> Result<(), Failure> {
        let (bytes, limit) = (self.operation.len(), OPERATION_BYTES_MAX);
        if bytes <= limit {
            return Ok(());
        }
        Err(Failure::new("54000", format!("the statement takes {bytes} bytes, over the limit of {limit}"))
            .with_detail(
                "Nothing was sent. Use several statements, or COPY; a single row is never that long.",
            ))
    }
}

/// The variant number of a select in `Operation`. `EXPLAIN` is the variant number of an explain.
const SELECT: u32 = 8;
const EXPLAIN: u32 = 9;

/// The variant number of a piece of a backup in `Answer`.
const BACKUP: u32 = 5;

/// The variant number of a failure in `Answer`.
const FAILED: u32 = 3;

/// Memory reserved for an encoded read, in bytes. It suffices for nearly every read.
const READ_BYTES: usize = 256;

/// Makes the request of a read.
pub fn read(select: &Select, schema: &Schema) -> TableRequest {
    reading(SELECT, select, schema)
}

/// Makes the request of a read whose answer reports how the read was executed.
pub fn explain(select: &Select, schema: &Schema) -> TableRequest {
    reading(EXPLAIN, select, schema)
}

/// Encodes an operation from its variant number and `select`, without copying `select` into an `Operation`.
fn reading(variant: u32, select: &Select, schema: &Schema) -> TableRequest {
    let ranges = ranges(select.filter.as_ref(), schema);
    TableRequest { table: select.table.0, ranges, fallible: false, operation: encode(variant, select).into() }
}

fn encode(variant: u32, select: &Select) -> Vec<u8> {
    let room = Vec::with_capacity(READ_BYTES);
    postcard::to_extend(&(variant, select), room).expect("our own types always serialise")
}

/// Makes the request of a read of a whole table that is already encoded ([`encoded`]).
pub fn everywhere(table: TableId, operation: Bytes) -> TableRequest {
    TableRequest { table: table.0, ranges: smallvec![Range::ALL], fallible: false, operation }
}

/// Makes the request of a backup: all rows of these tables, as of one position. Returns `None` if `tables` is
/// empty.
pub fn backup(tables: &[(TableId, &Schema)]) -> Option<TableRequest> {
    let all = |&(table, schema): &(TableId, &Schema)| {
        let columns = schema.columns.iter().enumerate();
        let columns = columns.map(|(index, column)| Expr::Column(index, column.ty)).collect();
        let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
        Select { table, filter: None, output }
    };
    let operation = Operation::Backup(tables.iter().map(all).collect());
    let operation = postcard::to_stdvec(&operation).expect("our own types always serialise").into();
    let ranges = smallvec![Range::ALL];
    (!tables.is_empty()).then_some(TableRequest {
        table: DataHeader::NO_TABLE,
        ranges,
        fallible: false,
        operation,
    })
}

/// Splits a piece of a [`backup`] into its position and its content. The content is the table's index in the
/// backup, followed by encoded rows. Returns `None` if the bytes are not a piece of a backup.
pub fn backed_up(piece: &Bytes) -> Option<(Position, Bytes)> {
    let ((variant, at), rest): ((u32, u64), &[u8]) = postcard::take_from_bytes(piece).ok()?;
    (variant == BACKUP).then(|| (Position(at), piece.slice_ref(rest)))
}

/// Whether an answer says that the operation's table was dropped or altered before it could be executed.
pub fn is_of_ended_table(piece: &Bytes) -> bool {
    let begins_as_failure =
        postcard::take_from_bytes::<u32>(piece).is_ok_and(|(variant, _)| variant == FAILED);
    begins_as_failure && answer(piece) == Some(Answer::Failed(Failure::table_ended()))
}

/// Returns a read's byte form.
pub fn encoded(select: &Select) -> Vec<u8> {
    encode(SELECT, select)
}

/// Appends a value's byte form.
pub fn append(value: &Value, bytes: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(value, bytes).expect("our own types always serialise")
}

/// Decodes an operation. Returns `None` if the bytes are malformed.
pub fn operation(encoded: &[u8]) -> Option<Operation> {
    postcard::from_bytes(encoded).ok()
}

/// Decodes the answer in a part of a reply. Returns `None` if the bytes are malformed.
pub fn answer(content: &[u8]) -> Option<Answer> {
    postcard::from_bytes(content).ok()
}

/// Encodes a table's definition for control messages.
pub fn definition(schema: &Schema) -> Bytes {
    postcard::to_stdvec(schema).expect("our own types always serialise").into()
}

/// Encodes the sources of an altered table's columns for control messages.
pub fn column_sources(columns: &[ColumnSource]) -> Bytes {
    postcard::to_stdvec(columns).expect("our own types always serialise").into()
}

/// Decodes a table's definition. Returns `None` if the bytes are malformed.
pub fn schema(definition: &[u8]) -> Option<Schema> {
    postcard::from_bytes(definition).ok()
}

fn ranges(filter: Option<&Expr>, schema: &Schema) -> SmallVec<[Range; 2]> {
    let found = filter.map_or_else(|| vec![KeyRange::ALL], |filter| schema.partition.ranges(filter));
    if found.len() > POINTS_MAX {
        return SmallVec::from_slice(&[Range::ALL]);
    }
    found.into_iter().map(|range| Range { low: range.low, high: range.high }).collect()
}

/// Whether a write may fail at run time. In doubt the answer is yes, which costs an exchange of verdicts
/// between the ranges.
fn can_fail(operation: &Operation, schema: &Schema) -> bool {
    let keyed = !schema.primary_key.is_empty();
    let checked = schema.checks().next().is_some();
    // A write with RETURNING may fail, because the returned rows may be too long for a message.
    let returns = |list: &[Expr]| !list.is_empty();
    match operation {
        Operation::Insert { returning, .. } => keyed || checked || returns(returning),
        Operation::Upsert { conflict: Conflict::Skip, returning, .. } => checked || returns(returning),
        // The write may fail, because two of its rows may have the same key, or because an update may give a
        // row a value that the table refuses.
        Operation::Upsert { conflict: Conflict::Update { .. }, .. } => true,
        // A row that a range refuses ends the load, and the other ranges then drop their staged rows.
        // Whether keys are unique is checked when the rows are published.
        Operation::Stage { .. } | Operation::Discard { .. } => false,
        Operation::Publish { .. } => keyed,
        Operation::Update { assignments, filter, returning, .. } => {
            let assigned = |(column, value): &(usize, Expr)| {
                let nulls = schema.columns[*column].not_null
                    && !matches!(value, Expr::Constant(value, _) if !value.is_null());
                // A text value may make its row too long.
                let grows = schema.columns[*column].ty.has_length()
                    && match value {
                        Expr::Constant(value, _) => value.text_bytes() > TEXT_BYTES_SHORT,
                        _ => true,
                    };
                can_fail_at(value) || nulls || grows || schema.primary_key.contains(column)
            };
            let columns: Vec<usize> = assignments.iter().map(|(column, _)| *column).collect();
            let is_checked = schema.checks().any(|check| check.condition.reads_any_of(&columns));
            is_checked
                || assignments.iter().any(assigned)
                || filter.as_ref().is_some_and(can_fail_at)
                || returns(returning)
        }
        Operation::Delete { filter, returning, .. } => {
            filter.as_ref().is_some_and(can_fail_at) || returns(returning)
        }
        Operation::CreateTable { .. }
        | Operation::DropTable { .. }
        | Operation::AlterTable { .. }
        | Operation::Select(_)
        | Operation::Explain(_)
        | Operation::Backup(_)
        | Operation::Trial(_) => false,
        Operation::Transaction(_) => true,
    }
}

/// Whether evaluating an expression can fail.
fn can_fail_at(expression: &Expr) -> bool {
    match expression {
        Expr::Column(..) | Expr::Constant(..) => false,
        Expr::Unary(Unary::Not, operand) | Expr::IsNull(operand) => can_fail_at(operand),
        Expr::Binary(
            Binary::And
            | Binary::Or
            | Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessEqual
            | Binary::Greater
            | Binary::GreaterEqual,
            left,
            right,
        ) => can_fail_at(left) || can_fail_at(right),
        Expr::In(operand, list) => can_fail_at(operand) || list.iter().any(can_fail_at),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use quorate_table::{
        engine::Epoch,
        schema::{Column, Partition, TableId},
        value::Type,
    };

    use super::*;

    #[test]
    fn a_read_is_the_operation_it_stands_for() {
        let column = Column {
            name: String::from("n"),
            ty: Type::Int8,
            modifier: None,
            not_null: false,
            default: None,
        };
        let schema = Schema {
            name: String::from("t"),
            columns: vec![column],
            primary_key: Vec::new(),
            partition: Partition::Hash { column: 0 },
            constraints: Vec::new(),
        };
        let columns = vec![Expr::Column(0, Type::Int8)];
        let output = Output::Rows { columns, order: Vec::new(), limit: Some(3), distinct: false };
        let select = Select { table: TableId(7), filter: None, output };
        let decoded = |request: TableRequest| postcard::from_bytes::<Operation>(&request.operation).unwrap();
        assert_eq!(decoded(read(&select, &schema)), Operation::Select(select.clone()));
        assert_eq!(decoded(explain(&select, &schema)), Operation::Explain(select.clone()));
        let asked = backup(&[(TableId(7), &schema)]).unwrap();
        let Output::Rows { columns, .. } = select.output else { unreachable!() };
        let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
        assert_eq!(decoded(asked), Operation::Backup(vec![Select { output, ..select }]));
        assert_eq!(backup(&[]), None);
    }

    #[test]
    fn a_piece_of_a_backup_is_taken_as_it_lies() {
        let rows = vec![vec![Value::Int8(300)], vec![Value::Null]];
        let answer = |answer: &Answer| Bytes::from(postcard::to_stdvec(answer).unwrap());
        let piece = answer(&Answer::Backup { at: Epoch(1000), read: 2, rows: rows.clone() });
        let rest = postcard::to_stdvec(&(2u32, &rows)).unwrap();
        assert_eq!(backed_up(&piece), Some((Position(1000), rest.into())));
        assert_eq!(backed_up(&answer(&Answer::Rows(rows))), None);
        assert_eq!(backed_up(&Bytes::new()), None);
    }

    #[test]
    fn only_the_failure_about_a_table_that_ended_is_recognized() {
        let encoded = |answer: &Answer| Bytes::from(postcard::to_stdvec(answer).unwrap());
        assert!(is_of_ended_table(&encoded(&Answer::Failed(Failure::table_ended()))));
        assert!(!is_of_ended_table(&encoded(&Answer::Failed(Failure::division_by_zero()))));
        assert!(!is_of_ended_table(&encoded(&Answer::Rows(Vec::new()))));
        assert!(!is_of_ended_table(&Bytes::new()));
    }
}
