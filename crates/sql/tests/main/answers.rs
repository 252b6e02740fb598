//! Compares the answers of sessions with PostgreSQL's: the files in `slt/` hold the answers of PostgreSQL 15,
//! statement by statement.
//!
//! The format is sqllogictest's. Values are text, NULL is `NULL`, and the empty string is `(empty)`.
//! `rowsort` sorts the rows before the comparison. An SQLSTATE stands for an error. If `QUORATE_TEST_SERVER`
//! holds a connection string, the second test runs the same files against that server. The server may be a
//! live PostgreSQL (time zone UTC, C collation) or the gateway of a cluster.

use std::path::PathBuf;

use quorate_sql::error::SqlError;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};
use tokio_postgres::SimpleQueryMessage;

use super::statements::{Client, Done};

/// A server that is reached over a socket.
struct Server(tokio_postgres::Client);

/// An error that a server returned, shown as its SQLSTATE.
#[derive(Debug)]
pub(crate) struct Refused(String);

impl From<SqlError> for Refused {
    fn from(error: SqlError) -> Refused {
        Refused(format!("{}: {}", error.code, error.message))
    }
}

impl From<tokio_postgres::Error> for Refused {
    fn from(error: tokio_postgres::Error) -> Refused {
        Refused(match error.as_db_error() {
            Some(error) => format!("{}: {}", error.code().code(), error.message()),
            None => error.to_string(),
        })
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Returns a value in the notation of the files.
fn shown(text: Option<&str>) -> String {
    match text {
        None => "NULL".to_owned(),
        Some("") => "(empty)".to_owned(),
        Some(text) => text.to_owned(),
    }
}

#[async_trait::async_trait]
impl AsyncDB for Client {
    type Error = Refused;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Refused> {
        Ok(match Client::run(self, sql).await?.into_iter().last() {
            Some(Done::Rows(rows, width)) => DBOutput::Rows {
                types: vec![DefaultColumnType::Text; width],
                rows: rows
                    .iter()
                    .map(|row| row.iter().map(|value| shown(value.text().as_deref())).collect())
                    .collect(),
            },
            Some(Done::Count(count)) => DBOutput::StatementComplete(count),
            None => DBOutput::StatementComplete(0),
        })
    }

    async fn shutdown(&mut self) {}
}

#[async_trait::async_trait]
impl AsyncDB for Server {
    type Error = Refused;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Refused> {
        let mut columns = None;
        let mut rows = Vec::new();
        let mut changed = 0;
        for message in self.0.simple_query(sql).await? {
            match message {
                SimpleQueryMessage::RowDescription(described) => columns = Some(described.len()),
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|index| shown(row.get(index))).collect());
                }
                SimpleQueryMessage::CommandComplete(count) => changed = count,
                _ => {}
            }
        }
        Ok(match columns {
            Some(columns) => DBOutput::Rows { types: vec![DefaultColumnType::Text; columns], rows },
            None => DBOutput::StatementComplete(changed),
        })
    }

    async fn shutdown(&mut self) {}
}

fn files() -> Vec<PathBuf> {
    let folder = PathBuf::from("tests/slt");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn answers_equal_the_recorded_answers_of_postgresql() {
    let mut statements = 0;
    for file in files() {
        let text = std::fs::read_to_string(&file).expect("it can be read");
        statements +=
            text.lines().filter(|line| line.starts_with("statement") || line.starts_with("query")).count();
        let mut runner = Runner::new(|| async { Ok(Client::new()) });
        runner.run_file_async(&file).await.unwrap_or_else(|error| panic!("{}", error.display(false)));
    }
    assert!(statements >= 500, "only {statements} statements are compared");
}

#[tokio::test]
async fn another_server_gives_the_recorded_answers() {
    let Ok(config) = std::env::var("QUORATE_TEST_SERVER") else {
        eprintln!("skipped: QUORATE_TEST_SERVER names no server");
        return;
    };
    for file in files() {
        let mut runner = Runner::new(|| async { Ok(Server(connect(&config).await)) });
        runner.run_file_async(&file).await.unwrap_or_else(|error| panic!("{}", error.display(false)));
    }
}

async fn connect(config: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(config, tokio_postgres::NoTls).await.expect("it answers");
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("a connection ended: {error}");
        }
    });
    client
}
