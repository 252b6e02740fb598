//! Compares the door's answers with PostgreSQL's: the files in `slt/` hold the answers of PostgreSQL 15,
//! statement by statement.
//!
//! The format is sqllogictest's. Values are text, NULL is `NULL`, and the empty string is `(empty)`.
//! `rowsort` sorts the rows before the comparison. An SQLSTATE names an error. `QUORATE_TEST_SERVER` may hold
//! a connection string; then the test runs the same files against that server, too. It may be a live
//! PostgreSQL (time zone UTC, C collation) or the gateway of a cluster.

use std::path::PathBuf;

use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};
use tokio_postgres::SimpleQueryMessage;

struct Door(tokio_postgres::Client);

/// An error, shown as its SQLSTATE.
#[derive(Debug)]
struct Refused(tokio_postgres::Error);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_db_error() {
            Some(error) => write!(f, "{}: {}", error.code().code(), error.message()),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::error::Error for Refused {}

#[async_trait::async_trait]
impl AsyncDB for Door {
    type Error = Refused;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Refused> {
        let mut columns = None;
        let mut rows = Vec::new();
        let mut changed = 0;
        for message in self.0.simple_query(sql).await.map_err(Refused)? {
            match message {
                SimpleQueryMessage::RowDescription(described) => columns = Some(described.len()),
                SimpleQueryMessage::Row(row) => rows.push(
                    (0..row.len())
                        .map(|index| match row.get(index) {
                            None => "NULL".to_owned(),
                            Some("") => "(empty)".to_owned(),
                            Some(text) => text.to_owned(),
                        })
                        .collect(),
                ),
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
async fn answers_are_postgresqls() {
    let gateway = super::Gateway::start().await;
    let mut statements = 0;
    for file in files() {
        let text = std::fs::read_to_string(&file).expect("it can be read");
        statements +=
            text.lines().filter(|line| line.starts_with("statement") || line.starts_with("query")).count();
        let mut runner = Runner::new(|| async { Ok(Door(gateway.connect().await)) });
        runner.run_file_async(&file).await.unwrap_or_else(|error| panic!("{}", error.display(false)));
    }
    assert!(statements >= 500, "only {statements} statements are compared");
}

#[tokio::test]
async fn another_server_says_the_same() {
    let Ok(config) = std::env::var("QUORATE_TEST_SERVER") else {
        eprintln!("skipped: QUORATE_TEST_SERVER names no server");
        return;
    };
    for file in files() {
        let mut runner = Runner::new(|| async { Ok(Door(super::connect(&config).await)) });
        runner.run_file_async(&file).await.unwrap_or_else(|error| panic!("{}", error.display(false)));
    }
}
