//! What a connection has set, prepared and begun, and how it executes statements.
//!
//! A [`Session`] takes a bound statement and hands back an [`Outcome`]; it knows nothing of the protocol. Here is what
//! every statement goes through; what each kind does has a room of its own: `block` (transactions), `read`, `write`
//! (rows and tables), `bulk` (COPY), `cursor`, `explain`, and `setting`.
//!
//! **Ids.** Every write goes out under an id of the session. When its outcome is unknown the error names the id, and
//! `SET quorate.request_id` sends the next write under it once more.

mod block;
mod bulk;
pub mod carry;
mod cursor;
mod explain;
mod read;
pub mod request;
mod setting;
mod write;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use quorate_table::value::{Row, Value};

use crate::{
    backend::Backend,
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
use block::Block;
use cursor::Cursor;
use request::{Executing, InFlight};
use setting::Settings;

/// Seconds from 1970 to 2000, where PostgreSQL's time begins.
const EPOCH_2000: u64 = 946_684_800;

/// One connection's state.
pub struct Session {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    user: String,
    database: String,
    pid: i32,
    settings: Settings,
    block: Block,
    prepared: BTreeMap<String, Arc<Prepared>>,
    cursors: BTreeMap<String, Cursor>,
    /// The write that is under way and whose outcome the client has not been told.
    in_flight: Option<InFlight>,
    /// The statement that is being executed, if it writes.
    executing: Option<Executing>,
    notices: Vec<SqlError>,
    reported: Vec<(String, String)>,
    statement_began: i64,
}

/// What the protocol says of the block after every statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No block.
    Idle,
    /// In a block.
    Block,
    /// In a block that failed.
    Failed,
}

/// What came of a statement.
pub enum Outcome {
    /// The empty statement.
    Empty,
    /// Rows, and the word of the tag that ends them.
    Rows(Rows, &'static str),
    /// Rows that are all here, as a write returns them, and the whole tag.
    Gathered(Vec<Row>, String),
    /// Done.
    Done(String),
    /// Data is awaited.
    CopyIn(Box<CopyIn>),
    /// Data comes.
    CopyOut(Rows, copy::Form, Vec<Field>),
}

impl Session {
    /// A session of `user`.
    pub fn new(
        backend: Arc<dyn Backend>,
        cache: Arc<Cache>,
        user: String,
        database: String,
        pid: i32,
    ) -> Self {
        Session {
            backend,
            cache,
            user,
            database,
            pid,
            settings: Settings::default(),
            block: Block::None,
            prepared: BTreeMap::new(),
            cursors: BTreeMap::new(),
            in_flight: None,
            executing: None,
            notices: Vec::new(),
            reported: Vec::new(),
            statement_began: now(),
        }
    }

    /// Where it stands towards a block.
    pub fn status(&self) -> Status {
        match self.block {
            Block::None => Status::Idle,
            Block::Open(_) => Status::Block,
            Block::Failed(_) => Status::Failed,
        }
    }

    /// Tells the session that its statement failed or was interrupted. A write that was under way may have been
    /// applied, which then is the error to tell.
    pub fn failed(&mut self, error: SqlError) -> SqlError {
        let interrupted = self.in_flight.take();
        self.block = match std::mem::replace(&mut self.block, Block::None) {
            Block::Open(mut open) => {
                if interrupted.is_some() || error.code == code::STATEMENT_COMPLETION_UNKNOWN {
                    open.written = Some("A write that may have been applied".to_owned());
                }
                Block::Failed(open)
            }
            other => other,
        };
        match interrupted {
            Some(InFlight::Write(request)) if error.code == code::QUERY_CANCELED => {
                fault::maybe_applied(request.name)
            }
            Some(InFlight::Definition) if error.code == code::QUERY_CANCELED => fault::maybe_defined(),
            _ => error,
        }
    }

    /// Warnings since this was asked last.
    pub fn notices(&mut self) -> Vec<SqlError> {
        std::mem::take(&mut self.notices)
    }

    /// Settings that the client is to be told of, since this was asked last.
    pub fn reported(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.reported)
    }

    /// Binds the statement of a text. In a failed block only what ends it can be prepared.
    pub fn prepare(&self, text: &str, declared: Vec<Option<crate::types::PgType>>) -> Result<Arc<Prepared>> {
        let prepared = self.cache.prepare(text, declared, &self.backend.catalog())?;
        self.check_block(&prepared)?;
        Ok(prepared)
    }

    /// Binds a statement that is parsed already and will not be met again.
    pub fn prepare_once(&self, text: &str, syntax: sqlparser::ast::Statement) -> Result<Arc<Prepared>> {
        let prepared =
            Prepared::bind(text.into(), Some(Arc::new(syntax)), Vec::new(), &self.backend.catalog())?;
        self.check_block(&prepared)?;
        Ok(prepared)
    }

    /// Executes a statement with values for its parameters.
    pub async fn execute(&mut self, prepared: &Arc<Prepared>, values: &[Value]) -> Result<Outcome> {
        self.check_block(prepared)?;
        self.statement_began = match &self.block {
            Block::None => now(),
            Block::Open(open) | Block::Failed(open) => open.began,
        };
        let catalog = self.backend.catalog();
        let prepared = prepared.current(&catalog)?;
        let Some(bound) = &prepared.bound else { return Ok(Outcome::Empty) };
        if bound.statement.writes().is_some() {
            self.executing = Some(Executing::new(&prepared, values));
        }
        self.perform(&bound.statement, values).await
    }

    async fn perform(&mut self, statement: &Statement, values: &[Value]) -> Result<Outcome> {
        if let Some(verb) = statement.writes() {
            self.check_write(verb)?;
        }
        match statement {
            Statement::Query(query) => Ok(Outcome::Rows(self.query(query, values).await?, "SELECT")),
            Statement::Write(write) => self.write(write, values).await,
            Statement::CreateTable(create) => self.create_table(create).await,
            Statement::DropTable(drop) => self.drop_table(drop).await,
            Statement::Copy(copy) => self.copy(copy, values).await,
            Statement::Set { name, value, local } => self.set(name, value.clone(), *local),
            Statement::ResetAll => {
                self.reset();
                Ok(Outcome::Done("RESET".to_owned()))
            }
            Statement::Show(name) => Ok(Outcome::Rows(Rows::plain(self.show(name.as_deref())?), "SHOW")),
            Statement::Begin(modes) => Ok(self.begin(*modes)),
            Statement::SetTransaction { modes, session } => Ok(self.set_transaction(*modes, *session)),
            Statement::Commit => self.commit(),
            Statement::Rollback => self.rollback(),
            Statement::Savepoint(name) => self.savepoint(name),
            Statement::RollbackTo(name) => self.rollback_to(name),
            Statement::Release(name) => self.release(name),
            Statement::Explain { statement, analyze } => {
                let mut lines = self.explain(statement, values)?;
                if let (true, Statement::Query(query)) = (*analyze, &**statement) {
                    lines.extend(self.analyze(query, values).await?);
                }
                let rows = lines.into_iter().map(|line| vec![Value::text_of(line)]).collect();
                Ok(Outcome::Rows(Rows::plain(rows), "EXPLAIN"))
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
                self.prepared.insert(name.clone(), prepared);
                Ok(Outcome::Done("PREPARE".to_owned()))
            }
            Statement::Execute { name, arguments } => {
                let prepared = self.prepared.get(name).cloned().ok_or_else(|| no_statement(name))?;
                let values = self.arguments(name, &prepared, arguments)?;
                Box::pin(self.execute(&prepared, &values)).await
            }
            Statement::Deallocate(Some(name)) => match self.prepared.remove(name) {
                Some(_) => Ok(Outcome::Done("DEALLOCATE".to_owned())),
                None => Err(no_statement(name)),
            },
            Statement::Deallocate(None) => {
                self.prepared.clear();
                Ok(Outcome::Done("DEALLOCATE ALL".to_owned()))
            }
            Statement::DiscardAll => {
                if !matches!(self.block, Block::None) {
                    return Err(SqlError::new(
                        code::ACTIVE_SQL_TRANSACTION,
                        "DISCARD ALL cannot run inside a transaction block",
                    ));
                }
                self.prepared.clear();
                self.cursors.clear();
                self.reset();
                Ok(Outcome::Done("DISCARD ALL".to_owned()))
            }
            Statement::Declare(declare) => self.declare(declare, values).await,
            Statement::Fetch { name, count } => self.fetch(name, *count).await,
            Statement::Close(name) => self.close(name.as_deref()),
            Statement::Nothing(tag) => Ok(Outcome::Done((*tag).to_owned())),
        }
    }

    /// A statement that SQL's PREPARE named.
    pub fn named(&self, name: &str) -> Option<&Arc<Prepared>> {
        self.prepared.get(name)
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
            let operand =
                Binder { scope: &scope, parameters: &mut none, aggregates: Err("EXECUTE parameters") }
                    .operand(expr)?;
            let span = sqlparser::ast::Spanned::span(expr);
            let bound = operand.assigned(&format!("${}", index + 1), ty.plain(), span, &mut none)?;
            values.push(encode::checked(fold::value(&bound, &open)?, *ty)?);
        }
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
        }
    }
}

fn no_statement(name: &str) -> SqlError {
    SqlError::new(code::INVALID_SQL_STATEMENT_NAME, format!("prepared statement \"{name}\" does not exist"))
}

/// Microseconds since 2000.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = since.as_micros() as i64;
    micros - (EPOCH_2000 * 1_000_000) as i64
}
