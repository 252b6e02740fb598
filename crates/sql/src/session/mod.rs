//! The state of a connection (settings, prepared statements, the open block), and the execution of
//! statements.
//!
//! A [`Session`] takes a bound statement and returns a [`StatementOutcome`]. It knows nothing of the
//! protocol. This file has the steps that every statement takes. Each kind of statement has its own file:
//! `transaction`, `read`, `write` (rows and tables), `sequence`, `bulk` (COPY), `cursor`, `explain`, and
//! `set`. `attempt` tries the statements of a block, `settle` puts their trial off, and `batch` executes
//! several writes as one message. `upkeep` adds to a write what the table's constraints need. The parts of a
//! session's state are in `setting`, `block`, `steps`, `deferred`, `numbers` and `in_flight`.
//!
//! **Ids.** Every write, and the COMMIT of every block that wrote, is sent under an id of the session. If its
//! outcome is unknown, the error names the id, and `SET quorate.request_id` sends the next write under the
//! same id.

mod alter_table;
mod attempt;
mod batch;
mod block;
mod bulk;
mod cursor;
mod deferred;
mod explain;
pub mod handover;
mod in_flight;
mod index;
mod key_condition;
mod locking;
mod numbers;
mod read;
mod reference;
mod reference_check;
mod reference_ddl;
pub mod request;
mod sequence;
mod set;
mod setting;
mod settle;
mod steps;
pub mod time_limit;
mod transaction;
mod upkeep;
mod upsert;
mod write;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use quorate_table::value::{Row, Value};

use crate::{
    backend::{Backend, Catalog},
    budget::{Account, MemoryReservation},
    cache::{Cache, Prepared},
    copy::CopyIn,
    encode,
    error::{Result, SqlError, code},
    fault,
    finish::Rows,
    statement::{
        Field, Statement, copy,
        expr::Binder,
        fold,
        parameters::{Arguments, Parameters, SessionValue},
        scope::Scope,
    },
};
use block::{Cursor, TransactionBlock};
pub use deferred::WriteResult;
use in_flight::{CurrentStatement, InFlight};
use numbers::SessionNumbers;
use setting::{REQUEST_ID, Settings};

pub use crate::statement::parameters::ambiguous_time_error;

/// Seconds from 1970 to 2000, the origin of PostgreSQL's time.
const EPOCH_2000: u64 = 946_684_800;

/// Longest time during which a statement is bound again and again, because its table keeps changing.
const DEFINITION_WAIT_MAX: Duration = Duration::from_secs(10);

/// Time between two checks for a later catalog, and the maximum number of such checks.
const DEFINITION_CHECK_EVERY: Duration = Duration::from_millis(2);
const DEFINITION_CHECKS: u32 = 25;

/// The state of one connection.
pub struct Session {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    /// The account that counts the memory of this session.
    account: Account,
    user: String,
    database: String,
    pid: i32,
    settings: Settings,
    /// The time zone that the client asked for when it connected, if the session uses another zone.
    refused_zone: Option<String>,
    block: TransactionBlock,
    /// Whether the writes of a block are deferred, because more statements follow.
    defers: bool,
    /// Whether the latest error was that another transaction changed a result of the block, and the block can
    /// be sent again.
    conflicted: bool,
    /// The results of deferred writes that were not taken yet; bounded by the steps of a block.
    results: Vec<WriteResult>,
    prepared: BTreeMap<String, PreparedEntry>,
    cursors: BTreeMap<String, Cursor>,
    /// The write that is under way, and whose outcome the client does not know.
    in_flight: Option<InFlight>,
    /// The statement that is being executed, if it writes.
    current_statement: Option<CurrentStatement>,
    notices: Vec<SqlError>,
    reported: Vec<(String, String)>,
    statement_began: i64,
    numbers: SessionNumbers,
}

/// A statement that PREPARE named.
struct PreparedEntry {
    prepared: Arc<Prepared>,
    /// Memory of the statement, freed together with the entry.
    _hold: MemoryReservation,
}

/// The state of the block, which the protocol reports after every statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The session is in no block.
    Idle,
    /// The session is in a block.
    Block,
    /// The session is in a block that failed.
    Failed,
}

/// The outcome of a statement.
pub enum StatementOutcome {
    /// The statement was empty.
    Empty,
    /// A stream of rows, and the word with which the tag after the rows begins.
    Rows(Rows, &'static str),
    /// The rows that a write returns, all in memory. The tag and the memory of the rows follow.
    Buffered(Vec<Row>, String, MemoryReservation),
    /// The statement succeeded, with this tag.
    Done(String),
    /// A write whose result is not known yet ([`Session::results`]).
    Deferred,
    /// COPY FROM: the client has to send the data.
    CopyIn(Box<CopyIn>),
    /// COPY TO: the rows are the data.
    CopyOut(Rows, copy::CopyForm, Vec<Field>),
}

impl Session {
    /// Creates a session of `user`.
    pub fn new(
        backend: Arc<dyn Backend>,
        cache: Arc<Cache>,
        user: String,
        database: String,
        pid: i32,
    ) -> Self {
        Session {
            backend,
            account: cache.budget().account(),
            cache,
            user,
            database,
            pid,
            settings: Settings::default(),
            refused_zone: None,
            block: TransactionBlock::None,
            defers: false,
            conflicted: false,
            results: Vec::new(),
            prepared: BTreeMap::new(),
            cursors: BTreeMap::new(),
            in_flight: None,
            current_statement: None,
            notices: Vec::new(),
            reported: Vec::new(),
            statement_began: now(),
            numbers: SessionNumbers::default(),
        }
    }

    /// Returns the memory account of this session.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Starts counting the memory of a new request.
    pub fn hold(&self) -> MemoryReservation {
        self.account.hold()
    }

    /// Returns the state of the block.
    pub fn status(&self) -> Status {
        match self.block {
            TransactionBlock::None => Status::Idle,
            TransactionBlock::Open(_) => Status::Block,
            TransactionBlock::Failed(_) => Status::Failed,
        }
    }

    /// Concludes a statement that failed or was interrupted, and returns the error for the client. If a write
    /// was under way, the write may have been applied, and the returned error says so.
    pub fn failed(&mut self, error: SqlError) -> SqlError {
        let error = error.bounded();
        let interrupted = self.in_flight.take();
        self.block = match std::mem::replace(&mut self.block, TransactionBlock::None) {
            TransactionBlock::Open(mut open) => {
                if interrupted.is_some() || error.code == code::STATEMENT_COMPLETION_UNKNOWN {
                    open.defined = Some("A definition may have been applied".to_owned());
                }
                open.forget_deferred();
                TransactionBlock::Failed(open)
            }
            other => other,
        };
        let was_given_up = matches!(&*error.code, code::QUERY_CANCELED | code::TRANSACTION_TIMEOUT);
        match interrupted.filter(|_| was_given_up) {
            Some(InFlight::Write(request)) => fault::maybe_applied(request.name),
            Some(InFlight::Transaction(request)) => fault::maybe_committed(request.name),
            Some(InFlight::Definition) => fault::maybe_defined(),
            None => error,
        }
    }

    /// Returns the warnings since the last call.
    pub fn notices(&mut self) -> Vec<SqlError> {
        std::mem::take(&mut self.notices)
    }

    /// Returns the settings that changed since the last call and that the protocol reports to clients.
    pub fn reported(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.reported)
    }

    /// Binds the only statement of a text. In a failed block, only statements that end the block, or roll it
    /// back to a savepoint, can be prepared.
    pub fn prepare(&self, text: &str, declared: Vec<Option<crate::types::PgType>>) -> Result<Arc<Prepared>> {
        let prepared = self.cache.prepare(text, declared, &self.backend.catalog());
        let prepared = prepared.map_err(|error| self.unbound(error))?;
        self.check_block(&prepared)?;
        Ok(prepared)
    }

    /// Binds a parsed statement without caching it.
    pub fn prepare_once(&self, text: &str, syntax: sqlparser::ast::Statement) -> Result<Arc<Prepared>> {
        let prepared =
            Prepared::bind(text.into(), Some(Arc::new(syntax)), Vec::new(), &self.backend.catalog());
        let prepared = prepared.map_err(|error| self.unbound(error))?;
        self.check_block(&prepared)?;
        Ok(prepared)
    }

    /// Executes a statement with values for its parameters.
    pub async fn execute(&mut self, prepared: &Arc<Prepared>, values: &[Value]) -> Result<StatementOutcome> {
        self.check_block(prepared)?;
        self.statement_began = match &self.block {
            TransactionBlock::None => now(),
            TransactionBlock::Open(open) | TransactionBlock::Failed(open) => open.began,
        };
        let mut began: Option<Instant> = None;
        loop {
            let catalog = self.backend.catalog();
            let is_write = prepared.bound.as_ref().is_some_and(|bound| bound.statement.writes().is_some());
            let chosen = is_write.then(|| self.settings.get(REQUEST_ID).cloned()).flatten();
            let outcome = self.execute_by(prepared, values, &catalog).await;
            match outcome {
                Err(error)
                    if self.is_outdated(prepared, &error)
                        && began.get_or_insert_with(Instant::now).elapsed() < DEFINITION_WAIT_MAX =>
                {
                    // Nothing was executed, so the statement keeps the name that the client chose for it.
                    if let Some(chosen) = chosen {
                        self.settings.insert(REQUEST_ID.to_owned(), chosen);
                    }
                    self.await_definitions(catalog.version).await;
                }
                Err(error) if self.is_in_block() => return Err(fault::in_block(error)),
                outcome => return outcome,
            }
        }
    }

    /// Whether the session may bind a statement again, because its table ended after it was bound. This is
    /// false in a block, because there the client has to repeat the whole block.
    fn is_outdated(&self, prepared: &Prepared, error: &SqlError) -> bool {
        let statement = prepared.bound.as_ref().map(|bound| &bound.statement);
        fault::is_outdated(error)
            && !self.is_in_block()
            && matches!(
                statement,
                Some(
                    Statement::Query(_)
                        | Statement::Write(_)
                        | Statement::CreateTable(_)
                        | Statement::AlterTable(_)
                        | Statement::DropTable(_)
                )
            )
    }

    /// Waits until the catalog has another version than `known`, but not for long.
    async fn await_definitions(&self, known: u64) {
        for _ in 0..DEFINITION_CHECKS {
            if self.backend.catalog().version != known {
                return;
            }
            self.backend.sleep(DEFINITION_CHECK_EVERY).await;
        }
    }

    /// Executes a statement, bound by this catalog.
    async fn execute_by(
        &mut self,
        prepared: &Arc<Prepared>,
        values: &[Value],
        catalog: &Arc<Catalog>,
    ) -> Result<StatementOutcome> {
        let prepared = prepared.current(catalog)?;
        let Some(bound) = &prepared.bound else { return Ok(StatementOutcome::Empty) };
        self.check_depends(bound.depends)?;
        if bound.statement.writes().is_some() {
            self.current_statement = Some(CurrentStatement::new(&prepared, values));
        }
        match &bound.statement {
            _ if bound.calls.is_empty() => {}
            Statement::Explain { .. } => self.pretend_sequences(&bound.calls),
            _ => self.call_sequences(&bound.calls, values).await?,
        }
        let outcome = self.perform(&bound.statement, values).await;
        // Drops the numbers that this statement's calls returned, because no other statement may take them.
        self.numbers.results.clear();
        outcome
    }

    async fn perform(&mut self, statement: &Statement, values: &[Value]) -> Result<StatementOutcome> {
        let stands_apart = statement.is_definition() || matches!(statement, Statement::DiscardAll);
        if stands_apart && self.is_implicit() {
            self.commit_block().await?;
        }
        if let Some(verb) = statement.writes() {
            self.check_write(verb)?;
        }
        if let TransactionBlock::Open(open) = &mut self.block {
            open.has_begun |= statement.writes().is_some()
                || matches!(
                    statement,
                    Statement::Query(_)
                        | Statement::Copy(_)
                        | Statement::Declare(_)
                        | Statement::Explain { .. }
                );
        }
        match statement {
            Statement::Query(query) => Ok(StatementOutcome::Rows(self.query(query, values).await?, "SELECT")),
            Statement::Write(write) => self.write(write, values).await,
            Statement::CreateTable(create) => self.create_table(create).await,
            Statement::DropTable(drop) => self.drop_table(drop).await,
            Statement::AlterTable(alter) => self.alter_table(alter).await,
            Statement::CreateSequence(create) => self.create_sequence(create).await,
            Statement::DropSequence(drop) => self.drop_sequence(drop).await,
            Statement::CreateIndex(create) => self.create_index(create).await,
            Statement::DropIndex(drop) => self.drop_index(drop).await,
            Statement::Copy(copy) => self.copy(copy, values).await,
            Statement::Set { name, value, local } => self.set(name, value.clone(), *local),
            Statement::ResetAll => {
                self.reset();
                Ok(StatementOutcome::Done("RESET".to_owned()))
            }
            Statement::Show(name) => {
                Ok(StatementOutcome::Rows(Rows::plain(self.show(name.as_deref())?), "SHOW"))
            }
            Statement::Begin(modes) => {
                if self.is_implicit() {
                    // If a statement before BEGIN fails, the client has begun no block.
                    self.settle().await?;
                }
                self.begin(*modes)
            }
            Statement::SetTransaction { modes, session } => self.set_transaction(*modes, *session),
            Statement::Commit => self.commit().await,
            Statement::Rollback => self.roll_back().await,
            Statement::Savepoint(name) => self.savepoint(name).await,
            Statement::RollbackTo(name) => self.roll_back_to(name).await,
            Statement::Release(name) => self.release(name),
            Statement::Explain { statement, analyze } => {
                let mut lines = self.explain(statement, values)?;
                if let (true, Statement::Query(query)) = (*analyze, &**statement) {
                    lines.extend(self.analyze(query, values).await?);
                }
                let rows = lines.into_iter().map(|line| vec![Value::text_of(line)]).collect();
                Ok(StatementOutcome::Rows(Rows::plain(rows), "EXPLAIN"))
            }
            Statement::Prepare { name, types, text } => {
                if self.prepared.contains_key(name) {
                    return Err(SqlError::new(
                        code::DUPLICATE_PREPARED_STATEMENT,
                        format!("prepared statement \"{name}\" already exists"),
                    ));
                }
                let declared = types.iter().map(|ty| Some(*ty)).collect();
                let prepared = self.prepare(text, declared)?;
                self.name(name.clone(), prepared)?;
                Ok(StatementOutcome::Done("PREPARE".to_owned()))
            }
            Statement::Execute { name, arguments } => {
                let prepared = self.named(name).cloned().ok_or_else(|| no_statement(name))?;
                let values = self.arguments(name, &prepared, arguments)?;
                Box::pin(self.execute(&prepared, &values)).await
            }
            Statement::Deallocate(Some(name)) => match self.prepared.remove(name) {
                Some(_) => Ok(StatementOutcome::Done("DEALLOCATE".to_owned())),
                None => Err(no_statement(name)),
            },
            Statement::Deallocate(None) => {
                self.prepared.clear();
                Ok(StatementOutcome::Done("DEALLOCATE ALL".to_owned()))
            }
            Statement::DiscardAll => {
                if !matches!(self.block, TransactionBlock::None) {
                    return Err(SqlError::new(
                        code::ACTIVE_SQL_TRANSACTION,
                        "DISCARD ALL cannot run inside a transaction block",
                    ));
                }
                self.prepared.clear();
                self.cursors.clear();
                self.numbers.discard();
                self.reset();
                Ok(StatementOutcome::Done("DISCARD ALL".to_owned()))
            }
            Statement::DiscardSequences => {
                self.numbers.discard();
                Ok(StatementOutcome::Done("DISCARD SEQUENCES".to_owned()))
            }
            Statement::Declare(declare) => self.declare(declare, values).await,
            Statement::Fetch { name, count } => self.fetch(name, *count).await,
            Statement::Close(name) => self.close(name.as_deref()),
            Statement::Nothing(tag) => Ok(StatementOutcome::Done((*tag).to_owned())),
        }
    }

    /// Returns the statement that PREPARE stored under this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Prepared>> {
        self.prepared.get(name).map(|named| &named.prepared)
    }

    /// Keeps a statement under a name.
    fn name(&mut self, name: String, prepared: Arc<Prepared>) -> Result<()> {
        let mut hold = self.hold();
        hold.grow(name.len() + prepared.weight())?;
        self.prepared.insert(name, PreparedEntry { prepared, _hold: hold });
        Ok(())
    }

    fn arguments(
        &self,
        name: &str,
        prepared: &Prepared,
        arguments: &[sqlparser::ast::Expr],
    ) -> Result<Vec<Value>> {
        let wanted = prepared.parameters();
        if wanted.len() != arguments.len() {
            return Err(SqlError::new(
                code::SYNTAX_ERROR,
                format!("wrong number of parameters for prepared statement \"{name}\""),
            )
            .detail(format!("Expected {} parameters but got {}.", wanted.len(), arguments.len())));
        }
        let scope = Scope::empty();
        let mut none = Parameters::default();
        let session = |value| self.session_value(value);
        let open = Arguments { values: &[], session: &session };
        let mut values = Vec::with_capacity(arguments.len());
        for (index, (expr, ty)) in arguments.iter().zip(wanted).enumerate() {
            let operand = Binder::new(&scope, &mut none, Err("EXECUTE parameters")).operand(expr)?;
            let span = sqlparser::ast::Spanned::span(expr);
            let bound = operand.coerce_assignment(&format!("${}", index + 1), ty.plain(), span, &mut none)?;
            values.push(encode::checked(fold::value(&bound, &open)?, *ty)?);
        }
        self.check_depends(none.depends)?;
        Ok(values)
    }

    fn session_value(&self, value: SessionValue) -> Value {
        const DAY: i64 = 86_400_000_000;
        match value {
            SessionValue::Now => Value::Timestamptz(self.statement_began),
            SessionValue::LocalNow => Value::Timestamp(self.statement_began),
            SessionValue::Today => {
                Value::Date(i32::try_from(self.statement_began.div_euclid(DAY)).unwrap_or(i32::MAX))
            }
            SessionValue::User => Value::text_of(&self.user),
            SessionValue::Database => Value::text_of(&self.database),
            SessionValue::Schema => Value::text_of("public"),
            SessionValue::Pid => Value::Int4(self.pid),
            SessionValue::RandomUuid => SessionValue::random_uuid(),
            SessionValue::SequenceResult(call) => {
                self.numbers.results.get(call).cloned().unwrap_or(Value::Null)
            }
        }
    }
}

fn no_statement(name: &str) -> SqlError {
    SqlError::new(code::INVALID_SQL_STATEMENT_NAME, format!("prepared statement \"{name}\" does not exist"))
}

/// Returns the present time in microseconds since 2000.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = since.as_micros() as i64;
    micros - (EPOCH_2000 * 1_000_000) as i64
}
