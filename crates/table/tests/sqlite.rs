//! SQLite as a second twin: the same statements, one at a time there and in batches here, must have the same
//! outcome.
//!
//! The scan engine runs every statement twice: in batches, and one operation at a time, which must make no
//! difference. The test does not generate statements that SQLite treats differently. These are integers
//! that overflow (SQLite continues with floats), division, NaN (SQLite stores NULL) and minus zero,
//! numerics (SQLite has none), and functions of letters outside ASCII. For a table with a primary key,
//! which SQLite checks row by row, the test generates upserts only. SQLite's `LIKE` is set to respect case;
//! booleans and dates are integers in SQLite.

use quorate_table::{
    engine::{Answer, Engine, Epoch, Holder, Job},
    expr::{Aggregate, AggregateFunction, Binary, Expr, Function, Unary},
    merge::{Finish, Input, Merge},
    operation::{Conflict, Operation, Order, Output, Select},
    scan::ScanEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};
use rusqlite::{Connection, types::ValueRef};

use crate::twin::Maker;

const TABLE: TableId = TableId(5);
/// The name and type of each column. The first is the partition column; `n` stays small enough for additions.
const COLUMNS: [(&str, Type); 9] = [
    ("k", Type::Int4),
    ("a", Type::Int4),
    ("b", Type::Int8),
    ("n", Type::Int4),
    ("t", Type::Text),
    ("u", Type::Text),
    ("f", Type::Float8),
    ("d", Type::Date),
    ("g", Type::Bool),
];
const A: usize = 1;
const N: usize = 3;
const T: usize = 4;
const U: usize = 5;

fn value(maker: &mut Maker, column: usize) -> Value {
    if column > 0 && maker.below(8) == 0 {
        return Value::Null;
    }
    match COLUMNS[column].0 {
        "k" => Value::Int4(maker.below(12) as i32),
        "a" => Value::Int4([0, 1, 2, 2, 7, -1, i32::MAX, i32::MIN][maker.below(8)]),
        "b" => Value::Int8([0, 1, -5, 5_000_000_000, i64::MAX, i64::MIN][maker.below(6)]),
        "n" => Value::Int4(maker.below(200) as i32 - 100),
        "t" => {
            let words =
                ["", "a", "A", "ab", "abc", "a%c", "a_c", "it's", "Größe", "\u{1F600}", "\u{FFFF}", "zz"];
            Value::text_of(words[maker.below(words.len())])
        }
        "u" => Value::text_of(format!("name {}", maker.below(40))),
        "f" => {
            let floats = [0.0, 1.0, -1.5, 0.1, 1e300, 5e-324, f64::INFINITY, f64::NEG_INFINITY, 1e15];
            Value::Float8(floats[maker.below(floats.len())])
        }
        "d" => Value::Date([0, 1, 400, -400, i32::MAX - 1][maker.below(5)]),
        _ => Value::Bool(maker.below(2) == 0),
    }
}

fn column(column: usize) -> Expr {
    Expr::Column(column, COLUMNS[column].1)
}

fn integer(value: i32) -> Expr {
    Expr::constant(Value::Int4(value), Type::Int4)
}

/// Returns a condition that never fails.
fn condition(maker: &mut Maker, depth: usize) -> Expr {
    use Binary::*;
    if depth > 0 && maker.below(2) == 0 {
        let first = condition(maker, depth - 1);
        return match maker.below(4) {
            0 => Expr::Unary(Unary::Not, Box::new(first)),
            1 => Expr::binary(Or, first, condition(maker, depth - 1)),
            _ => Expr::binary(And, first, condition(maker, depth - 1)),
        };
    }
    let operators = [Equal, Equal, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, Distinct];
    let operator = operators[maker.below(operators.len())];
    let at = maker.below(COLUMNS.len());
    let ty = COLUMNS[at].1;
    let constant = |maker: &mut Maker| Expr::constant(value(maker, at), ty);
    match maker.below(12) {
        0 => Expr::IsNull(Box::new(column(at))),
        1 => {
            let most = [4, 4, 40][maker.below(3)];
            Expr::In(Box::new(column(at)), (0..1 + maker.below(most)).map(|_| constant(maker)).collect())
        }
        2 => Expr::binary(operator, column(T), column(U)),
        3 => Expr::binary(operator, column(1), column(N)),
        4 | 5 => {
            let patterns = ["a%", "%", "", "a\\%c", "a_c", "%\\_%", "name 1%", "Gr%", "%e", "\u{1F600}%"];
            Expr::Like {
                text: Box::new(column([T, U][maker.below(2)])),
                pattern: Box::new(Expr::constant(
                    Value::text_of(patterns[maker.below(patterns.len())]),
                    Type::Text,
                )),
                escape: Some('\\'),
                case_insensitive: false,
            }
        }
        6 => {
            let sum = Expr::binary(Add, column(N), integer(maker.below(9) as i32));
            Expr::binary(operator, sum, integer(maker.below(100) as i32))
        }
        7 => {
            let length = Expr::Call(Function::Length, vec![column(T)]);
            Expr::binary(operator, length, integer(maker.below(4) as i32))
        }
        8 => Expr::binary(operator, constant(maker), column(at)),
        _ => Expr::binary(operator, column(at), constant(maker)),
    }
}

fn filter(maker: &mut Maker) -> Option<Expr> {
    if maker.below(12) == 0 {
        return None;
    }
    // Often the filter is by key, and often by the same two columns, so that queries form groups.
    let mut terms = Vec::new();
    let equal = |maker: &mut Maker, at: usize| {
        Expr::binary(Binary::Equal, column(at), Expr::constant(value(maker, at), COLUMNS[at].1))
    };
    match maker.below(4) {
        0 => terms.push(equal(maker, 0)),
        1 | 2 => terms.extend([equal(maker, U), equal(maker, 1)].into_iter().take(1 + maker.below(2))),
        _ => {}
    }
    if terms.is_empty() || maker.below(3) == 0 {
        terms.push(condition(maker, 2));
    }
    Some(Expr::all(terms))
}

fn read(maker: &mut Maker) -> Select {
    let columns: Vec<Expr> = (0..1 + maker.below(4)).map(|_| column(maker.below(COLUMNS.len()))).collect();
    let output = match maker.below(6) {
        0 => {
            let aggregate = |function, argument, distinct| Aggregate { function, argument, distinct };
            let aggregates = vec![
                aggregate(AggregateFunction::Count, None, false),
                aggregate(AggregateFunction::Sum, Some(column(N)), false),
                aggregate(AggregateFunction::Count, Some(column(U)), true),
                aggregate(AggregateFunction::Min, Some(column(T)), false),
                aggregate(AggregateFunction::Max, Some(column(2)), false),
            ];
            Output::Groups { keys: columns.into_iter().skip(1).take(2).collect(), aggregates }
        }
        1 => Output::Rows { columns, order: Vec::new(), limit: None, distinct: true },
        2 => {
            // The order is by all columns, so that there is only one right answer.
            let order = (0..columns.len()).map(|column| Order {
                column,
                descending: maker.below(2) == 0,
                nulls_first: maker.below(2) == 0,
            });
            let order = order.collect();
            Output::Rows { columns, order, limit: Some(maker.below(9) as u64), distinct: false }
        }
        _ => Output::Rows { columns, order: Vec::new(), limit: None, distinct: false },
    };
    Select { table: TABLE, filter: filter(maker), output }
}

fn row(maker: &mut Maker) -> Row {
    (0..COLUMNS.len()).map(|column| value(maker, column)).collect()
}

fn write(maker: &mut Maker, rows: usize) -> Operation {
    let returning = match maker.below(3) {
        0 => vec![column(0), column(T), column(N)],
        _ => Vec::new(),
    };
    // Deletes become possible once the table is long, so its length stays about the same.
    match maker.below(if rows > 150 { 6 } else { 4 }) {
        0 => {
            let rows = (0..1 + maker.below(12)).map(|_| row(maker)).collect();
            Operation::Insert { table: TABLE, rows, returning }
        }
        4 | 5 => Operation::Delete { table: TABLE, filter: filter(maker), returning },
        _ => {
            let assignments = (0..1 + maker.below(2)).map(|_| match maker.below(6) {
                0 => (U, Expr::binary(Binary::Concat, column(T), column(U))),
                1 => {
                    let below = Expr::binary(Binary::Less, column(N), integer(1000));
                    let one = Expr::binary(Binary::Add, column(N), integer(1));
                    (N, Expr::Case { branches: vec![(below, one)], otherwise: None, ty: Type::Int4 })
                }
                _ => {
                    let at = 1 + maker.below(COLUMNS.len() - 1);
                    (at, Expr::constant(value(maker, at), COLUMNS[at].1))
                }
            });
            // Like us, SQLite uses the last of two assignments of a column, but it does not promise that. So
            // each column is assigned once.
            let mut assignments: Vec<(usize, Expr)> = assignments.collect();
            assignments.dedup_by_key(|(column, _)| *column);
            Operation::Update { table: TABLE, assignments, filter: filter(maker), returning }
        }
    }
}

/// Returns a write to a table whose primary key is its first two columns, mostly an upsert.
fn upsert(maker: &mut Maker, rows: usize) -> Operation {
    if rows > 60 && maker.below(3) == 0 {
        return Operation::Delete { table: TABLE, filter: filter(maker), returning: Vec::new() };
    }
    let update = maker.below(2) == 0;
    let mut rows: Vec<Row> = (0..1 + maker.below(8)).map(|_| row(maker)).collect();
    rows.iter_mut().filter(|row| row[A].is_null()).for_each(|row| row[A] = Value::Int4(4));
    let excluded = |at: usize| Expr::Column(at + COLUMNS.len(), COLUMNS[at].1);
    let conflict = if update {
        // SQLite changes a row any number of times; PostgreSQL and we refuse the second change.
        let mut keys: Vec<(Value, Value)> = Vec::new();
        rows.retain(|row| {
            let key = (row[0].clone(), row[A].clone());
            let new = !keys.contains(&key);
            keys.push(key);
            new
        });
        let assignments = match maker.below(3) {
            0 => vec![(U, Expr::binary(Binary::Concat, column(T), excluded(U))), (N, excluded(N))],
            1 => vec![(N, Expr::constant(value(maker, N), COLUMNS[N].1))],
            _ => vec![(T, excluded(T)), (2, excluded(2)), (COLUMNS.len() - 2, column(COLUMNS.len() - 2))],
        };
        let filter = match maker.below(3) {
            0 => None,
            1 => Some(condition(maker, 1)),
            _ => Some(Expr::binary(Binary::Less, column(N), excluded(N))),
        };
        Conflict::Update { assignments, filter }
    } else {
        Conflict::Skip
    };
    let returning =
        if maker.below(3) == 0 { Vec::new() } else { vec![column(0), column(A), column(T), column(N)] };
    Operation::Upsert { table: TABLE, rows, conflict, returning }
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => i32::from(*b).to_string(),
        Value::Date(days) => days.to_string(),
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Float8(f) if f.is_infinite() => format!("{}9e999", if *f < 0.0 { "-" } else { "" }),
        Value::Float8(f) => format!("{f:?}"),
        integer => integer.as_integer().expect("no other type is generated").to_string(),
    }
}

fn sql(expr: &Expr) -> String {
    match expr {
        Expr::Column(column, _) => match column.checked_sub(COLUMNS.len()) {
            Some(excluded) => format!("excluded.{}", COLUMNS[excluded].0),
            None => COLUMNS[*column].0.to_owned(),
        },
        Expr::Constant(value, _) => literal(value),
        Expr::Unary(Unary::Not, inner) => format!("(not {})", sql(inner)),
        Expr::IsNull(inner) => format!("({} is null)", sql(inner)),
        Expr::In(probe, list) => format!("({} in ({}))", sql(probe), listed(list)),
        Expr::Like { text, pattern, .. } => format!("({} like {} escape '\\')", sql(text), sql(pattern)),
        Expr::Call(Function::Length, arguments) => format!("length({})", sql(&arguments[0])),
        Expr::Case { branches, .. } => {
            format!("(case when {} then {} end)", sql(&branches[0].0), sql(&branches[0].1))
        }
        Expr::Binary(operator, left, right) => {
            let symbol = match operator {
                Binary::And => "and",
                Binary::Or => "or",
                Binary::Equal => "=",
                Binary::NotEqual => "<>",
                Binary::Less => "<",
                Binary::LessEqual => "<=",
                Binary::Greater => ">",
                Binary::GreaterEqual => ">=",
                Binary::Add => "+",
                Binary::Concat => "||",
                Binary::Distinct => "is not",
                other => unreachable!("{other:?} is not generated"),
            };
            format!("({} {symbol} {})", sql(left), sql(right))
        }
        other => unreachable!("{other:?} is not generated"),
    }
}

fn listed(exprs: &[Expr]) -> String {
    exprs.iter().map(sql).collect::<Vec<_>>().join(", ")
}

/// Returns the SQL statement of an operation.
fn statement(operation: &Operation) -> String {
    let condition =
        |filter: &Option<Expr>| filter.as_ref().map_or(String::new(), |f| format!(" where {}", sql(f)));
    let clause = |returning: &[Expr]| match returning {
        [] => String::new(),
        exprs => format!(" returning {}", listed(exprs)),
    };
    let listing = |rows: &[Row]| {
        let row = |row: &Row| format!("({})", row.iter().map(literal).collect::<Vec<_>>().join(", "));
        rows.iter().map(row).collect::<Vec<_>>().join(", ")
    };
    let set = |assignments: &[(usize, Expr)]| {
        let set = assignments.iter().map(|(column, expr)| format!("{} = {}", COLUMNS[*column].0, sql(expr)));
        set.collect::<Vec<_>>().join(", ")
    };
    match operation {
        Operation::Insert { rows, returning, .. } => {
            format!("insert into t values {}{}", listing(rows), clause(returning))
        }
        Operation::Upsert { rows, conflict, returning, .. } => {
            let action = match conflict {
                Conflict::Skip => "nothing".to_owned(),
                Conflict::Update { assignments, filter } => {
                    format!("update set {}{}", set(assignments), condition(filter))
                }
            };
            let rows = listing(rows);
            format!("insert into t values {rows} on conflict (k, a) do {action}{}", clause(returning))
        }
        Operation::Update { assignments, filter, returning, .. } => {
            format!("update t set {}{}{}", set(assignments), condition(filter), clause(returning))
        }
        Operation::Delete { filter, returning, .. } => {
            format!("delete from t{}{}", condition(filter), clause(returning))
        }
        Operation::Select(Select { filter, output, .. }) => match output {
            Output::Rows { columns, order, limit, distinct } => {
                let key = |key: &Order| {
                    let direction = if key.descending { "desc" } else { "asc" };
                    let nulls = if key.nulls_first { "first" } else { "last" };
                    format!("{} {direction} nulls {nulls}", key.column + 1)
                };
                let keys: Vec<String> = order.iter().map(key).collect();
                let order =
                    if keys.is_empty() { String::new() } else { format!(" order by {}", keys.join(", ")) };
                let limit = limit.map_or(String::new(), |limit| format!(" limit {limit}"));
                let distinct = if *distinct { "distinct " } else { "" };
                format!("select {distinct}{} from t{}{order}{limit}", listed(columns), condition(filter))
            }
            Output::Groups { keys, .. } => {
                let aggregates = "count(*), sum(n), count(distinct u), min(t), max(b)";
                let separator = if keys.is_empty() { "" } else { ", " };
                let group =
                    if keys.is_empty() { String::new() } else { format!(" group by {}", listed(keys)) };
                format!("select {}{separator}{aggregates} from t{}{group}", listed(keys), condition(filter))
            }
        },
        other => unreachable!("{other:?} is not generated"),
    }
}

/// Runs a statement on SQLite. Returns a line for each row of its result, and the number of rows that it
/// changed.
fn theirs(connection: &Connection, statement: &str) -> (Vec<String>, u64) {
    let mut prepared = connection.prepare(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    let width = prepared.column_count();
    let mut lines = Vec::new();
    let mut rows = prepared.raw_query();
    while let Some(row) = rows.next().unwrap_or_else(|error| panic!("{statement}: {error}")) {
        let shown = |column: usize| match row.get_ref(column).expect("a column") {
            ValueRef::Null => "null".to_owned(),
            ValueRef::Integer(integer) => integer.to_string(),
            ValueRef::Real(float) => literal(&Value::Float8(float)),
            ValueRef::Text(text) => literal(&Value::text_of(std::str::from_utf8(text).expect("UTF-8"))),
            ValueRef::Blob(_) => unreachable!("no blobs are stored"),
        };
        lines.push((0..width).map(shown).collect::<Vec<_>>().join("|"));
    }
    drop(rows);
    (lines, connection.changes())
}

fn lines(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.iter().map(literal).collect::<Vec<_>>().join("|")).collect()
}

/// Returns groups as the gateway finishes them.
fn finished(select: &Select, answer: &Answer) -> Vec<Row> {
    let Output::Groups { keys, aggregates } = &select.output else { unreachable!("a read of groups") };
    let types = keys.iter().map(Expr::ty).chain(aggregates.iter().map(Aggregate::ty));
    let columns: Vec<Expr> = types.enumerate().map(|(column, ty)| Expr::Column(column, ty)).collect();
    let visible = columns.len();
    let input = Input::Groups { keys: keys.len(), aggregates: aggregates.clone(), having: None, columns };
    let finish = Finish { input, distinct: false, order: Vec::new(), offset: 0, limit: None, visible };
    let mut merge = Merge::new(finish);
    let mut rows = merge.push(answer.clone()).expect("no failure");
    rows.extend(merge.finish().expect("no failure"));
    rows
}

fn check(connection: &Connection, operation: &Operation, answer: &Answer) {
    let statement = statement(operation);
    let (mut expected, changed) = theirs(connection, &statement);
    let mut actual = match (operation, answer) {
        (_, Answer::Written(written)) => {
            assert_eq!(written.iter().map(|one| one.rows).sum::<u64>(), changed, "{statement}");
            lines(&written.iter().flat_map(|one| one.returning.clone()).collect::<Vec<_>>())
        }
        (Operation::Select(select), Answer::Groups(_)) => lines(&finished(select, answer)),
        (_, Answer::Rows(rows)) => lines(rows),
        (_, answer) => panic!("{statement} is answered {answer:?}"),
    };
    let ordered = matches!(operation,
        Operation::Select(Select { output: Output::Rows { order, .. }, .. }) if !order.is_empty());
    if !ordered {
        expected.sort_unstable();
        actual.sort_unstable();
    }
    assert_eq!(actual, expected, "{statement}");
}

/// Runs a history of batches, and returns the number of its operations.
fn history(seed: u8, batches: usize, keyed: bool) -> usize {
    let mut maker = Maker::seeded(seed);
    let connection = Connection::open_in_memory().expect("SQLite");
    let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    let key = if keyed { ", primary key (k, a)" } else { "" };
    let create = format!("pragma case_sensitive_like = on; create table t ({}{key})", names.join(", "));
    connection.execute_batch(&create).expect("a table");
    let definition = |(name, ty): &(&str, Type)| Column {
        name: (*name).to_owned(),
        ty: *ty,
        modifier: None,
        not_null: false,
        default: None,
    };
    let partition = match maker.below(2) {
        0 => Partition::Hash { column: 0 },
        _ => Partition::Range { column: 0, low: Some(Value::Int4(0)), high: Some(Value::Int4(12)) },
    };
    let columns = COLUMNS.iter().map(definition).collect();
    let primary_key = if keyed { vec![0, A] } else { Vec::new() };
    let schema = Schema { name: "t".to_owned(), columns, primary_key, partition, constraints: Vec::new() };
    let job = |epoch: u64, operation: Operation| Job {
        epoch: Epoch(epoch),
        ranges: vec![KeyRange::ALL],
        operation,
        held: false,
    };
    let mut batched = ScanEngine::default().with_costs(crate::scan::odd_costs(seed));
    let mut alone = ScanEngine::default();
    for engine in [&mut batched, &mut alone] {
        engine.apply(&[job(1, Operation::CreateTable { table: TABLE, schema: schema.clone() })]);
    }
    let all = Select {
        table: TABLE,
        filter: None,
        output: Output::Rows {
            columns: (0..COLUMNS.len()).map(column).collect(),
            order: Vec::new(),
            limit: None,
            distinct: false,
        },
    };
    let (mut epoch, mut operations) = (1, 0);
    let mut pinned: Vec<(u64, Vec<String>)> = Vec::new();
    for _ in 0..batches {
        let mut rows = batched.usage()[0].rows as usize;
        let (count, writes) = (1 + maker.below(60), 2 + maker.below(8));
        let jobs: Vec<Job> = (0..count)
            .map(|_| {
                if rows == 0 || maker.below(writes) == 0 {
                    epoch += 1;
                    rows += 1;
                    let operation = if keyed { upsert(&mut maker, rows) } else { write(&mut maker, rows) };
                    job(epoch, operation)
                } else {
                    job(epoch, Operation::Select(read(&mut maker)))
                }
            })
            .collect();
        let answers = batched.apply(&jobs);
        assert_eq!(answers.len(), jobs.len());
        for (job, answer) in jobs.iter().zip(&answers) {
            assert_eq!(&alone.apply(std::slice::from_ref(job))[0], answer, "alone and in a batch: {job:?}");
            check(&connection, &job.operation, answer);
        }
        operations += jobs.len();
        if maker.below(4) == 0 && pinned.iter().all(|(pin, _)| *pin != epoch) {
            batched.pin(Epoch(epoch), Holder::Migration);
            pinned.push((epoch, theirs(&connection, "select * from t").0));
        }
        if pinned.len() > 3 {
            // Releases an arbitrary pin. An older pin may then need the data that the released pin kept.
            let (pin, mut expected) = pinned.remove(maker.below(pinned.len()));
            if maker.below(2) == 0 {
                let answer = batched.apply(&[job(pin, Operation::Select(all.clone()))]).remove(0);
                let Answer::Rows(rows) = answer else { panic!("a pinned read is answered {answer:?}") };
                let mut actual = lines(&rows);
                actual.sort_unstable();
                expected.sort_unstable();
                assert_eq!(actual, expected, "pinned at {pin}");
            }
            batched.release(Epoch(pin), Holder::Migration);
        }
        assert_eq!(batched.digest(None, &[KeyRange::ALL]), alone.digest(None, &[KeyRange::ALL]));
    }
    operations
}

#[test]
fn statements_have_the_outcome_that_they_have_in_sqlite() {
    let operations: usize = (0..24).map(|seed| history(seed, 40, false)).sum();
    assert!(operations > 20_000, "{operations} operations");
}

#[test]
fn upserts_have_the_outcome_that_they_have_in_sqlite() {
    let operations: usize = (100..108).map(|seed| history(seed, 40, true)).sum();
    assert!(operations > 5_000, "{operations} operations");
}
