//! `quorate sql`: statements for machines without psql.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, ContentLineStyle, LineStyle, Table, TableStyle};
use serde::de::IgnoredAny;
use tokio_postgres::{
    Client, NoTls, SimpleQueryMessage,
    error::{DbError, ErrorPosition},
    types::Type,
};

use crate::cluster::DirectoryArgs;

/// Runs SQL statements on the local cluster and prints what they answer.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One statement, or several with semicolons between.
    statements: String,
    /// Ask the gateway at this address, host:port, instead of the local cluster's.
    #[arg(long)]
    address: Option<String>,
    /// One JSON object a line for each row.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Comma-separated values, with a header.
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let address = match &args.address {
        Some(address) => address.clone(),
        None => args.directory.directory()?.running()?.sql()?.to_string(),
    };
    runtime()?.block_on(async {
        let client = connect(&address).await?;
        let types = if args.json { column_types(&client, &args.statements).await } else { Vec::new() };
        let messages = client.simple_query(&args.statements).await;
        let messages = messages.map_err(|error| match error.as_db_error() {
            Some(error) => anyhow::Error::msg(explained(error, &args.statements)),
            None => error.into(),
        })?;
        let mut out = io::stdout().lock();
        for answer in Answer::of(&messages) {
            match (args.json, args.csv) {
                (true, _) => answer.write_json(&types, &mut out)?,
                (_, true) => answer.write_csv(&mut out)?,
                _ => answer.write_table(&mut out)?,
            }
        }
        Ok(out.flush()?)
    })
}

/// A small runtime for a client.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Connects to a gateway. Errors of the connection come back to the statements that it carries.
pub(crate) async fn connect(address: &str) -> Result<Client> {
    let (host, port) = address.rsplit_once(':').with_context(|| format!("{address} is not host:port"))?;
    let mut config = tokio_postgres::Config::new();
    config.host(host.trim_matches(['[', ']'])).port(port.parse().with_context(|| address.to_string())?);
    config.user("quorate").dbname("quorate").connect_timeout(std::time::Duration::from_secs(5));
    let (client, connection) =
        config.connect(NoTls).await.with_context(|| format!("no gateway answers at {address}"))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("the connection ended: {error}");
        }
    });
    Ok(client)
}

/// What the columns of a single statement are; empty where the server does not say, as for several at once.
async fn column_types(client: &Client, statement: &str) -> Vec<Type> {
    match client.prepare(statement).await {
        Ok(statement) => statement.columns().iter().map(|column| column.type_().clone()).collect(),
        Err(_) => Vec::new(),
    }
}

/// An error as a person reads it: what, where in the statement, what to do.
fn explained(error: &DbError, statement: &str) -> String {
    let mut text = format!("{} (SQLSTATE {})", error.message(), error.code().code());
    if let Some(ErrorPosition::Original(position)) = error.position() {
        // Positions count characters from 1.
        let position = (*position as usize).saturating_sub(1);
        let before: String = statement.chars().take(position).collect();
        let line = statement.lines().nth(before.matches('\n').count()).unwrap_or("");
        let column = before.chars().rev().take_while(|c| *c != '\n').count();
        text += &format!("\n  {line}\n  {}^", " ".repeat(column));
    }
    for (label, more) in [("detail", error.detail()), ("hint", error.hint())] {
        if let Some(more) = more {
            text += &format!("\n{label}: {more}");
        }
    }
    text
}

/// Lines as psql draws them.
const PSQL: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction('|'))
    .header_separator(LineStyle::none().fill('-').junction('+'))
    .content_lines(ContentLineStyle::none().junction('|'));

/// What one statement answered.
struct Answer<'a> {
    columns: Vec<&'a str>,
    rows: Vec<Vec<Option<&'a str>>>,
    /// Rows that a statement without columns touched.
    touched: u64,
}

impl<'a> Answer<'a> {
    fn of(messages: &'a [SimpleQueryMessage]) -> Vec<Answer<'a>> {
        let mut answers = Vec::new();
        let mut answer = Answer { columns: Vec::new(), rows: Vec::new(), touched: 0 };
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    answer.columns = columns.iter().map(|column| column.name()).collect();
                }
                SimpleQueryMessage::Row(row) => {
                    answer.rows.push((0..row.len()).map(|column| row.get(column)).collect());
                }
                SimpleQueryMessage::CommandComplete(touched) => {
                    answer.touched = *touched;
                    let empty = Answer { columns: Vec::new(), rows: Vec::new(), touched: 0 };
                    answers.push(std::mem::replace(&mut answer, empty));
                }
                _ => {}
            }
        }
        answers
    }

    fn write_table(&self, out: &mut impl Write) -> Result<()> {
        let rows = |count: u64| format!("{count} row{}", if count == 1 { "" } else { "s" });
        if self.columns.is_empty() {
            return Ok(writeln!(out, "done, {} touched", rows(self.touched))?);
        }
        let mut table = Table::new();
        table.load_style(PSQL).set_header(&self.columns);
        for row in &self.rows {
            table.add_row(row.iter().map(|value| value.unwrap_or("")));
        }
        for (index, column) in table.column_iter_mut().enumerate() {
            let mut values = self.rows.iter().filter_map(|row| row[index]);
            if values.all(|value| value.parse::<f64>().is_ok()) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(out, "{table}")?;
        Ok(writeln!(out, "({})", rows(self.rows.len() as u64))?)
    }

    fn write_csv(&self, out: &mut impl Write) -> Result<()> {
        let quoted = |value: &str| match value.contains(['"', ',', '\n', '\r']) || value.is_empty() {
            true => format!("\"{}\"", value.replace('"', "\"\"")),
            false => value.into(),
        };
        if self.columns.is_empty() {
            return Ok(());
        }
        writeln!(out, "{}", self.columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(","))?;
        for row in &self.rows {
            let values: Vec<String> = row.iter().map(|value| value.map(quoted).unwrap_or_default()).collect();
            writeln!(out, "{}", values.join(","))?;
        }
        Ok(())
    }

    fn write_json(&self, types: &[Type], out: &mut impl Write) -> Result<()> {
        for row in &self.rows {
            for (index, (name, value)) in self.columns.iter().zip(row).enumerate() {
                write!(out, "{}{}:", if index == 0 { "{" } else { "," }, quoted_json(name)?)?;
                write!(out, "{}", json(types.get(index), *value)?)?;
            }
            writeln!(out, "{}", if row.is_empty() { "{}" } else { "}" })?;
        }
        Ok(())
    }
}

/// A value in JSON: numbers and booleans as such where the column's type says so, anything else as text. A number is written
/// with the digits that the server sent: no type of a number of this program's holds every `numeric`.
fn json<'v>(kind: Option<&Type>, value: Option<&'v str>) -> Result<Cow<'v, str>> {
    const NUMBERS: [Type; 6] =
        [Type::INT2, Type::INT4, Type::INT8, Type::FLOAT4, Type::FLOAT8, Type::NUMERIC];
    Ok(match (kind, value) {
        (_, None) => "null".into(),
        (Some(&Type::BOOL), Some(value)) => if value == "t" { "true" } else { "false" }.into(),
        // NaN and the infinities have no number in JSON.
        (Some(kind), Some(value)) if NUMBERS.contains(kind) && is_number(value) => value.into(),
        (_, Some(value)) => quoted_json(value)?.into(),
    })
}

/// Whether a number's text is one in JSON.
fn is_number(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn quoted_json(text: &str) -> Result<String> {
    Ok(serde_json::to_string(text)?)
}

/// The one value that a statement answers, as text.
pub(crate) async fn single(client: &Client, statement: &str) -> Result<String> {
    for message in client.simple_query(statement).await? {
        if let SimpleQueryMessage::Row(row) = message {
            return Ok(row.get(0).unwrap_or("").to_string());
        }
    }
    bail!("{statement} answered nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_every_digit() {
        let numeric = |text| json(Some(&Type::NUMERIC), Some(text)).unwrap().into_owned();
        for text in ["12345678901234567890.12", "-0.10", "1e300", "100000000000000000000000000000000001"] {
            assert_eq!(numeric(text), text);
        }
        assert_eq!(numeric("NaN"), "\"NaN\"");
        assert_eq!(numeric("-Infinity"), "\"-Infinity\"");
        assert_eq!(json(Some(&Type::TEXT), Some("1")).unwrap(), "\"1\"");
        assert_eq!(json(Some(&Type::BOOL), Some("f")).unwrap(), "false");
        assert_eq!(json(Some(&Type::INT4), None).unwrap(), "null");
    }

    #[test]
    fn rows_are_objects_in_the_order_of_their_columns() {
        let answer = Answer {
            columns: vec!["n", "a \"b\""],
            rows: vec![vec![Some("12345678901234567890.12"), Some("x\ny")]],
            touched: 1,
        };
        let mut written = Vec::new();
        answer.write_json(&[Type::NUMERIC, Type::TEXT], &mut written).unwrap();
        assert_eq!(
            String::from_utf8(written).unwrap(),
            "{\"n\":12345678901234567890.12,\"a \\\"b\\\"\":\"x\\ny\"}\n"
        );
    }
}
