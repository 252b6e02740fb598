//! The eight ticket templates as SQL with parameters, and questions by the example of existing rows.
//!
//! For other systems, and for a later run, the same table and questions are files in a folder: `schema.sql`,
//! `tickets.tsv` (in PostgreSQL's text form), `indexes.sql`, `templates.json` and `questions.jsonl`.

use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use quorate_table::{
    engine::{Answer, Engine, Epoch, Job},
    expr::Expr,
    operation::Operation,
    scan::ScanEngine,
    schema::KeyRange,
    text::parse_text,
    value::{Row, Type, Value},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::tickets::{self, TABLE, Tickets};

/// For each template, its conditions in SQL, and the types of its parameters.
const TEMPLATES: [(&str, &[Type]); 8] = [
    ("airline = $1 and flight_no = $2 and dep_date = $3", &[Type::Text, Type::Int4, Type::Date]),
    ("last_name = $1 and dep_date >= $2 and dep_date <= $3", &[Type::Text, Type::Date, Type::Date]),
    ("board_point = $1 and off_point = $2 and dep_date = $3", &[Type::Text, Type::Text, Type::Date]),
    (
        "office_id = $1 and status = $2 and creation_date >= $3 and creation_date <= $4",
        &[Type::Text, Type::Text, Type::Date, Type::Date],
    ),
    ("last_name like $1 and first_name = $2", &[Type::Text, Type::Text]),
    (
        "airline in ($1, $2, $3) and meal = $4 and dep_date >= $5 and dep_date <= $6",
        &[Type::Text, Type::Text, Type::Text, Type::Text, Type::Date, Type::Date],
    ),
    ("dep_date = $1 and cabin = $2 and fare_cents >= $3", &[Type::Date, Type::Text, Type::Int8]),
    ("agent_sign = $1 and booking_class = $2", &[Type::Text, Type::Text]),
];

/// An index for each template, as a user who knows the questions would create it.
const INDEXES: [&str; 8] = [
    "airline, flight_no, dep_date",
    "last_name, dep_date",
    "board_point, off_point, dep_date",
    "office_id, status, creation_date",
    "first_name, last_name text_pattern_ops",
    "meal, airline, dep_date",
    "dep_date, cabin, fare_cents",
    "agent_sign, booking_class",
];

/// Number of rows in a lot. Rows go to the engine, and to the cluster, in lots, because unpublished rows take
/// several times their size in the table.
const LOT: usize = 1 << 18;

/// Returns the statement of each template.
pub(super) fn statements() -> [String; 8] {
    TEMPLATES.map(|(condition, _)| {
        format!("select rloc, last_name, first_name, seat from tickets where {condition}")
    })
}

/// A question, and the number of rows that answer it.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) template: usize,
    pub(super) parameters: Vec<Value>,
    pub(super) rows: u64,
}

/// A query, as one line of the file that `--emit` writes.
#[derive(Deserialize, Serialize)]
struct QueryLine {
    template: usize,
    parameters: Vec<String>,
    rows: u64,
}

/// Returns the definition of the table in portable SQL.
pub(super) fn schema() -> String {
    let columns = tickets::schema(false).columns;
    let columns: Vec<String> =
        columns.iter().map(|column| format!("{} {} not null", column.name, column.ty.name())).collect();
    format!("create table tickets (\n    {}\n)", columns.join(",\n    "))
}

/// Generates tickets, passes each lot on as text, and then makes questions by the example of the tickets.
pub(super) fn make(
    seed: u64,
    rows: usize,
    count: usize,
    mut take: impl FnMut(Vec<u8>) -> Result<()>,
) -> Result<Vec<Question>> {
    let mut tickets = Tickets::new(seed, 6 * count.max(1000));
    let mut engine = ScanEngine::default();
    let mut epoch = 1;
    let create = Operation::CreateTable { table: TABLE, schema: tickets::schema(false) };
    apply(&mut engine, epoch, vec![create])?;
    let mut left = rows;
    while left > 0 {
        let lot: Vec<Row> = (0..left.min(LOT)).map(|_| tickets.row()).collect();
        left -= lot.len();
        let mut text = Vec::with_capacity(lot.len() * 400);
        lot.iter().for_each(|row| write_row(row, &mut text));
        take(text)?;
        epoch += 1;
        apply(
            &mut engine,
            epoch,
            vec![Operation::Insert { table: TABLE, rows: lot, returning: Vec::new() }],
        )?;
    }
    let mut questions = Vec::with_capacity(count);
    while questions.len() < count {
        let drawn: Vec<(usize, Expr)> = (0..count / 4 + 16).map(|_| tickets.filter()).collect();
        let selects =
            drawn.iter().map(|(_, filter)| Operation::Select(tickets::select(filter.clone(), false)));
        for ((template, filter), answer) in drawn.iter().zip(apply(&mut engine, epoch, selects.collect())?) {
            let Answer::Rows(found) = answer else {
                bail!("the engine answered a read with {answer:?} instead of rows")
            };
            if (1..=200).contains(&found.len()) && questions.len() < count {
                let mut parameters = Vec::new();
                constants(filter, &mut parameters);
                ensure!(
                    parameters.len() == TEMPLATES[*template].1.len(),
                    "a query of template {template} has another number of parameters than the template"
                );
                questions.push(Question { template: *template, parameters, rows: found.len() as u64 });
            }
        }
    }
    Ok(questions)
}

fn apply(engine: &mut ScanEngine, epoch: u64, operations: Vec<Operation>) -> Result<Vec<Answer>> {
    let job = |operation| Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
    let answers = engine.apply(&operations.into_iter().map(job).collect::<Vec<_>>());
    match answers.iter().find(|answer| matches!(answer, Answer::Failed(_))) {
        Some(failed) => bail!("{failed:?}"),
        None => Ok(answers),
    }
}

/// Writes a row in PostgreSQL's text form. No value of a ticket needs escaping.
fn write_row(row: &[Value], out: &mut Vec<u8>) {
    for (column, value) in row.iter().enumerate() {
        if column > 0 {
            out.push(b'\t');
        }
        out.extend_from_slice(value.text().as_deref().unwrap_or("\\N").as_bytes());
    }
    out.push(b'\n');
}

/// Collects the constants of a filter, in the order of its terms.
fn constants(filter: &Expr, found: &mut Vec<Value>) {
    match filter {
        Expr::Constant(value, _) => found.push(value.clone()),
        other => other.children().into_iter().for_each(|child| constants(child, found)),
    }
}

/// Writes the schema, the indexes, the templates and the questions into `folder`. The caller writes the rows.
pub(super) fn write(folder: &Path, questions: &[Question]) -> Result<()> {
    let indexes = INDEXES.map(|columns| format!("create index on tickets ({columns});\n"));
    std::fs::write(folder.join("schema.sql"), schema())?;
    std::fs::write(folder.join("indexes.sql"), indexes.concat())?;
    let templates: Vec<_> = statements()
        .into_iter()
        .zip(TEMPLATES)
        .map(|(sql, (_, types))| json!({ "sql": sql, "types": types.iter().map(|ty| ty.name()).collect::<Vec<_>>() }))
        .collect();
    std::fs::write(folder.join("templates.json"), serde_json::to_vec_pretty(&templates)?)?;
    write_questions(&folder.join("questions.jsonl"), questions)
}

/// Writes questions, one a line.
pub(super) fn write_questions(path: &Path, questions: &[Question]) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for question in questions {
        let parameters = question.parameters.iter().map(|value| value.text().unwrap_or_default()).collect();
        let line = QueryLine { template: question.template, parameters, rows: question.rows };
        writeln!(out, "{}", serde_json::to_string(&line)?)?;
    }
    Ok(out.flush()?)
}

/// Reads a file that [`write_questions`] wrote.
pub(super) fn read_questions(path: &Path) -> Result<Vec<Question>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut questions = Vec::new();
    for line in BufReader::new(file).lines() {
        let line: QueryLine = serde_json::from_str(&line?)?;
        let (_, types) = TEMPLATES
            .get(line.template)
            .context("a query of the file has a template number above 7, and the last template is 7")?;
        ensure!(
            types.len() == line.parameters.len(),
            "a query of the file has the wrong number of parameters for template {}",
            line.template
        );
        let parameters = line.parameters.iter().zip(*types).map(|(text, ty)| parse_text(*ty, text));
        let parameters = parameters.collect::<Result<_, _>>()?;
        questions.push(Question { template: line.template, parameters, rows: line.rows });
    }
    Ok(questions)
}
