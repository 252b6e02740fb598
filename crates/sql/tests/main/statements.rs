//! Executes texts of statements as the simple protocol does: one after another, up to the first error.

use std::sync::Arc;

use quorate_sql::{
    cache::Cache,
    error::{Result, SqlError},
    local::LocalBackend,
    session::{Session, StatementOutcome, Status},
    statement::parse::parse,
};
use quorate_table::value::{Row, Value};
use sqlparser::ast;

use crate::behind::Behind;

/// A session, its tables, and the cache that it shares with the other sessions of its gateway.
pub(crate) struct Client(Session, Arc<LocalBackend>, Arc<Cache>);

/// The result of a statement.
#[derive(Debug)]
pub(crate) enum Done {
    /// The rows, and their number of columns.
    Rows(Vec<Row>, usize),
    /// The number of rows in the tag of a statement that returns no rows.
    Count(u64),
}

impl Client {
    /// Creates a session on tables that no other session uses.
    pub(crate) fn new() -> Client {
        Client::of(Arc::new(LocalBackend::new()), Arc::default())
    }

    /// Creates another session on the same tables, at another gateway.
    pub(crate) fn another(&self) -> Client {
        Client::of(self.1.clone(), Arc::default())
    }

    /// Creates another session at the same gateway.
    pub(crate) fn at_same_gateway(&self) -> Client {
        Client::of(self.1.clone(), self.2.clone())
    }

    /// Creates another session on the same tables, at a gateway that has not heard of later definitions until
    /// a table that it knows has ended.
    pub(crate) fn behind(&self) -> Client {
        let (gateway, cache) = (Arc::new(Behind::new(self.1.clone())), Arc::<Cache>::default());
        let session = Session::new(gateway, cache.clone(), "test".to_owned(), "test".to_owned(), 1);
        Client(session, self.1.clone(), cache)
    }

    fn of(tables: Arc<LocalBackend>, cache: Arc<Cache>) -> Client {
        let session = Session::new(tables.clone(), cache.clone(), "test".to_owned(), "test".to_owned(), 1);
        Client(session, tables, cache)
    }

    /// Executes a statement with values for its parameters. Returns the first column of its rows, as text.
    pub(crate) async fn with(&mut self, text: &str, values: &[Value]) -> Result<Vec<Option<String>>> {
        let prepared = self.0.prepare(text, Vec::new())?;
        let rows = match self.0.execute(&prepared, values).await.map_err(|error| self.0.failed(error))? {
            StatementOutcome::Rows(rows, _) => rows.all().await?,
            StatementOutcome::Buffered(rows, ..) => rows,
            _ => Vec::new(),
        };
        Ok(rows.iter().map(|row| row[0].text()).collect())
    }

    /// Returns the first column of the rows of the last statement of a text, as text.
    pub(crate) async fn column(&mut self, text: &str) -> Vec<String> {
        let first = |row: Vec<Option<String>>| row[0].clone().unwrap_or_default();
        self.rows(text).await.into_iter().map(first).collect()
    }

    /// Returns the state of the session's block.
    pub(crate) fn status(&self) -> Status {
        self.0.status()
    }

    /// Executes a COPY FROM with this data.
    pub(crate) async fn copy(&mut self, text: &str, data: &str) -> Result<String> {
        let prepared = self.0.prepare(text, Vec::new())?;
        let StatementOutcome::CopyIn(mut copy) = self.0.execute(&prepared, &[]).await? else {
            panic!("{text} is no COPY FROM")
        };
        self.0.copy_data(&mut copy, data.as_bytes()).await?;
        self.0.copy_done(copy).await.map_err(|error| self.0.failed(error))
    }

    /// Executes the statements of a text. Returns the result of each.
    pub(crate) async fn run(&mut self, text: &str) -> Result<Vec<Done>> {
        let statements = parse(text).map_err(|error| self.0.failed(error))?;
        let are_several = statements.len() > 1;
        self.0.defer(are_several);
        let mut results = Vec::new();
        for statement in statements {
            if are_several {
                self.0.begin_implicit();
            }
            let executed = self.statement(text, statement).await;
            self.fill(&mut results);
            match executed {
                Ok(done) => results.push(done),
                Err(error) => return Err(self.end(error).await),
            }
        }
        if let Err(error) = self.0.end_implicit().await {
            return Err(self.end(error).await);
        }
        self.fill(&mut results);
        Ok(results.into_iter().map(|done| done.expect("each statement has a result")).collect())
    }

    /// Ends a text that failed. If a deferred write of an earlier statement fails, too, its error is the
    /// result.
    async fn end(&mut self, error: SqlError) -> SqlError {
        let first = self.0.settle().await.err();
        self.0.results();
        let error = self.0.failed(first.unwrap_or(error));
        self.0.roll_back_implicit();
        error
    }

    /// Enters the results of deferred writes that have become known.
    fn fill(&mut self, results: &mut [Option<Done>]) {
        for (later, result) in results.iter_mut().filter(|done| done.is_none()).zip(self.0.results()) {
            let width = result.rows.first().map(Vec::len);
            *later = Some(width.map_or(Done::Count(result.changed), |width| Done::Rows(result.rows, width)));
        }
    }

    /// Executes a statement. Returns `None` if its result is not known yet.
    async fn statement(&mut self, text: &str, statement: ast::Statement) -> Result<Option<Done>> {
        let prepared = self.0.prepare_once(text, statement)?;
        let width = prepared.fields.as_ref().map_or(0, |fields| fields.len());
        let tag = match self.0.execute(&prepared, &[]).await? {
            StatementOutcome::Rows(rows, _) => return Ok(Some(Done::Rows(rows.all().await?, width))),
            StatementOutcome::Buffered(rows, _, _hold) => return Ok(Some(Done::Rows(rows, width))),
            StatementOutcome::Done(tag) => tag,
            StatementOutcome::Empty => String::new(),
            StatementOutcome::Deferred => return Ok(None),
            StatementOutcome::CopyIn(_) | StatementOutcome::CopyOut(..) => panic!("{text} copies"),
        };
        Ok(Some(Done::Count(tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0))))
    }

    /// Returns the rows of the last statement of a text, as text.
    pub(crate) async fn rows(&mut self, text: &str) -> Vec<Vec<Option<String>>> {
        let results = self.run(text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        let Some(Done::Rows(rows, _)) = results.into_iter().last() else { panic!("{text} returns no rows") };
        rows.iter().map(|row| row.iter().map(|value| value.text()).collect()).collect()
    }

    /// Returns the SQLSTATE of the error with which a text of statements ends.
    pub(crate) async fn code(&mut self, text: &str) -> String {
        match self.run(text).await {
            Ok(_) => "00000".to_owned(),
            Err(error) => error.code.to_string(),
        }
    }
}
