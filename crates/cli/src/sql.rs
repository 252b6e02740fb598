//! `quorate sql`: runs statements on machines without psql.

use std::{
    borrow::Cow,
    fs,
    io::{self, IsTerminal, Read, Write},
    path::PathBuf,
    pin::pin,
};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, ContentLineStyle, LineStyle, Table, TableStyle};
use futures_util::StreamExt;
use quorate_command::{Usage, report_line};
use serde::de::IgnoredAny;
use tokio_postgres::{
    Client, NoTls, SimpleQueryMessage,
    error::{DbError, ErrorPosition},
    types::Type,
};

use crate::directory::DirectoryArgs;

/// Runs SQL statements on the local cluster and prints their results.
///
/// Statements come from the command line, from a file, or by default from standard input. They run one after
/// another until one fails. The results of the earlier statements are printed, and their writes stay.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One statement, or several separated by semicolons.
    #[arg(conflicts_with = "file")]
    statements: Option<String>,
    /// Reads the statements from this file. `-` is standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Address of a gateway, host:port, instead of the local cluster's.
    #[arg(long)]
    address: Option<String>,
    /// Prints one JSON object for each row, each on a line.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Prints comma-separated values with a header.
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
    let statements = statements(&args)?;
    runtime()?.block_on(async {
        let client = connect(&address).await?;
        let types = if args.json { column_types(&client, &statements).await } else { Vec::new() };
        let (messages, failure) = performed(&client, &statements).await;
        let counts = split(&statements).into_iter().map(touches_rows);
        // If rows cannot be printed, the command fails, because the user asked for them. A change whose
        // report cannot be printed has succeeded nevertheless.
        let mut printed = Ok(());
        for (answer, counts) in
            StatementResult::of(&messages).into_iter().zip(counts.chain(std::iter::repeat(true)))
        {
            let mut text = Vec::new();
            match (args.json, args.csv) {
                (true, _) => answer.write_json(&types, &mut text)?,
                (_, true) => answer.write_csv(&mut text)?,
                _ if answer.columns.is_empty() => {
                    report_line(format_args!("{}", answer.done(counts)));
                }
                _ => answer.write_table(&mut text)?,
            }
            printed = printed.and_then(|()| io::stdout().write_all(&text));
        }
        match failure {
            Some(error) => Err(match error.as_db_error() {
                Some(error) => anyhow::Error::msg(explained(error, &statements)),
                None => error.into(),
            }),
            None => Ok(printed.and_then(|()| io::stdout().flush())?),
        }
    })
}

/// Returns the statements to run.
fn statements(args: &Args) -> Result<String> {
    let from_input = || -> Result<String> {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        Ok(text)
    };
    match (&args.statements, &args.file) {
        (Some(statements), _) => Ok(statements.clone()),
        (None, Some(file)) if file.as_os_str() == "-" => from_input(),
        (None, Some(file)) => {
            let read = fs::read_to_string(file);
            Ok(read.map_err(|error| Usage(format!("cannot read {}: {error}", file.display())))?)
        }
        (None, None) if io::stdin().is_terminal() => Err(Usage(String::from(
            "no statement: give it as an argument, in a file with -f FILE, or on standard input",
        ))
        .into()),
        (None, None) => from_input(),
    }
}

/// Runs statements until one fails. Returns the messages received, and the failure.
async fn performed(
    client: &Client,
    statements: &str,
) -> (Vec<SimpleQueryMessage>, Option<tokio_postgres::Error>) {
    let mut messages = Vec::new();
    let stream = match client.simple_query_raw(statements).await {
        Ok(stream) => stream,
        Err(error) => return (messages, Some(error)),
    };
    let mut stream = pin!(stream);
    while let Some(message) = stream.next().await {
        match message {
            Ok(message) => messages.push(message),
            Err(error) => return (messages, Some(error)),
        }
    }
    (messages, None)
}

/// Splits a text into its statements, without empty ones. Semicolons inside texts, names and comments do not
/// separate statements.
fn split(text: &str) -> Vec<&str> {
    let mut statements = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = length(rest);
        statements.push(&rest[..end]);
        rest = rest[end..].strip_prefix(';').unwrap_or_default();
    }
    statements.retain(|statement| !keyword(statement).is_empty());
    statements
}

/// Returns the length in bytes of the first statement of a text.
fn length(text: &str) -> usize {
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        at += match c {
            ';' => return at,
            '\'' | '"' => quoted_length(rest, c, at > 0 && matches!(text.as_bytes()[at - 1], b'e' | b'E')),
            '-' | '/' if comment_length(rest) > 0 => comment_length(rest),
            '$' => match rest[1..].find('$').map(|end| &rest[..end + 2]) {
                Some(tag) if tag[1..tag.len() - 1].chars().all(|c| c.is_alphanumeric() || c == '_') => {
                    let behind = &rest[tag.len()..];
                    behind.find(tag).map_or(rest.len(), |end| tag.len() + end + tag.len())
                }
                _ => 1,
            },
            c => c.len_utf8(),
        };
    }
    text.len()
}

/// Returns the length in bytes of a quoted text, including both quotes. A doubled quote does not end the
/// text.
fn quoted_length(text: &str, quote: char, escapes: bool) -> usize {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if escapes && quote == '\'' => {
                chars.next();
            }
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length in bytes of the comment at the beginning of a text, or 0 if there is none.
fn comment_length(text: &str) -> usize {
    if text.starts_with("--") {
        return text.find('\n').unwrap_or(text.len());
    }
    if !text.starts_with("/*") {
        return 0;
    }
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest.starts_with("*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Returns the first word of a statement, after comments.
fn keyword(statement: &str) -> &str {
    let mut rest = statement.trim_start();
    while comment_length(rest) > 0 {
        rest = rest[comment_length(rest)..].trim_start();
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    // A statement that does not begin with a word is wrong, but it is not empty. So the returned text is not
    // empty, either.
    if end == 0 { rest } else { &rest[..end] }
}

/// Whether the server reports a number of touched rows for this statement, provided that the statement
/// returns no columns.
fn touches_rows(statement: &str) -> bool {
    ["insert", "update", "delete", "copy", "merge"]
        .iter()
        .any(|it| it.eq_ignore_ascii_case(keyword(statement)))
}

/// Returns a small runtime for a client.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Connects to a gateway. An error of the connection is returned by the statements that use the connection.
pub(crate) async fn connect(address: &str) -> Result<Client> {
    let (host, port) =
        address.rsplit_once(':').with_context(|| format!("the address {address} must be host:port"))?;
    let mut config = tokio_postgres::Config::new();
    let port =
        port.parse::<u16>().with_context(|| format!("the port of the address {address} is not a number"))?;
    config.host(host.trim_matches(['[', ']'])).port(port);
    config.user("quorate").dbname("quorate").connect_timeout(std::time::Duration::from_secs(5));
    let (client, connection) =
        config.connect(NoTls).await.with_context(|| format!("no gateway answers at {address}"))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("the connection to the gateway ended: {error}");
        }
    });
    Ok(client)
}

/// Returns the types of a statement's columns. Returns none if the server does not send them, as for several
/// statements at once.
async fn column_types(client: &Client, statement: &str) -> Vec<Type> {
    match client.prepare(statement).await {
        Ok(statement) => statement.columns().iter().map(|column| column.type_().clone()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Formats an error for display: its message, its position in the statement, and hints.
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

/// Table lines in the style of psql.
const PSQL: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction('|'))
    .header_separator(LineStyle::none().fill('-').junction('+'))
    .content_lines(ContentLineStyle::none().junction('|'));

/// The result of one statement.
struct StatementResult<'a> {
    columns: Vec<&'a str>,
    rows: Vec<Vec<Option<&'a str>>>,
    /// Number of rows touched by a statement without columns.
    touched: u64,
}

impl<'a> StatementResult<'a> {
    fn of(messages: &'a [SimpleQueryMessage]) -> Vec<StatementResult<'a>> {
        let mut answers = Vec::new();
        let mut answer = StatementResult { columns: Vec::new(), rows: Vec::new(), touched: 0 };
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
                    let empty = StatementResult { columns: Vec::new(), rows: Vec::new(), touched: 0 };
                    answers.push(std::mem::replace(&mut answer, empty));
                }
                _ => {}
            }
        }
        answers
    }

    /// Returns the report of a finished statement without columns. `counts` says whether the statement
    /// touches rows.
    fn done(&self, counts: bool) -> String {
        if counts { format!("done, {} touched", rows(self.touched)) } else { String::from("done") }
    }

    fn write_table(&self, out: &mut impl Write) -> Result<()> {
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

/// Formats a number of rows.
fn rows(count: u64) -> String {
    format!("{count} row{}", if count == 1 { "" } else { "s" })
}

/// Converts a value to JSON. Numbers and booleans keep their type, and all other values become text. A number
/// keeps the server's digits, because no number type of this program can represent every `numeric`.
fn json<'v>(kind: Option<&Type>, value: Option<&'v str>) -> Result<Cow<'v, str>> {
    const NUMBERS: [Type; 6] =
        [Type::INT2, Type::INT4, Type::INT8, Type::FLOAT4, Type::FLOAT8, Type::NUMERIC];
    Ok(match (kind, value) {
        (_, None) => "null".into(),
        (Some(&Type::BOOL), Some(value)) => if value == "t" { "true" } else { "false" }.into(),
        // JSON has no numbers for NaN and the infinities.
        (Some(kind), Some(value)) if NUMBERS.contains(kind) && is_number(value) => value.into(),
        (_, Some(value)) => quoted_json(value)?.into(),
    })
}

/// Whether the text is a number in JSON.
fn is_number(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn quoted_json(text: &str) -> Result<String> {
    Ok(serde_json::to_string(text)?)
}

/// Runs a statement that returns one value, and returns the value as text.
pub(crate) async fn single(client: &Client, statement: &str) -> Result<String> {
    for message in client.simple_query(statement).await? {
        if let SimpleQueryMessage::Row(row) = message {
            return Ok(row.get(0).unwrap_or("").to_string());
        }
    }
    bail!("the statement returned no row: {statement}")
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
    fn statements_are_cut_where_they_end() {
        let text = "create table t (a text); -- one; two\n insert into t values ('x;y''z', \"q;r\"), (E'\\';'), ($a$;'$a$);; /* ; /* ; */ ; */ \
                    Select 1;update t set a = 'open;";
        let cut = split(text);
        let keywords: Vec<&str> = cut.iter().copied().map(keyword).collect();
        assert_eq!(keywords, ["create", "insert", "Select", "update"], "{cut:?}");
        let counts: Vec<bool> = cut.into_iter().map(touches_rows).collect();
        assert_eq!(counts, [false, true, false, true]);
        assert!(split(" ;; -- nothing\n").is_empty());
    }

    #[test]
    fn rows_are_objects_in_the_order_of_their_columns() {
        let answer = StatementResult {
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
