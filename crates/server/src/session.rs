//! What a connection has set, prepared and begun, and how it executes statements.
//!
//! **Blocks.** Writes are applied, in the total order, when they are executed; nothing is held back until COMMIT. So a
//! block may hold reads and one write: a second write is refused, and so is a ROLLBACK behind an applied write, each
//! saying what stands. That is enough for drivers that begin a block around everything. A statement that fails
//! changes nothing and fails its block as in PostgreSQL.
//!
//! **Ids.** Every write goes out under an id of the session. When its outcome is unknown the error names the id, and
//! `SET quorate.request_id` sends the next write under it once more.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use quorate_table::{
    engine::Answer,
    eval::eval,
    expr::{Aggregate, Expr},
    merge,
    operation::{LoadId, Operation, Output, Select},
    value::{Row, Value},
};

use crate::{
    backend::{Backend, Fault, ReadStrength, RequestId},
    cache::{Cache, Prepared},
    copy::CopyIn,
    error::{Result, SqlError, code},
    fault,
    finish::{Rows, Window},
    sql::{
        Field, Modes, Statement, copy, ddl,
        expr::Binder,
        fold,
        parameters::{Arguments, Parameters, SessionValue},
        scope::Scope,
        select::{Finish, Query, Source},
        settings,
        write::{self, Action, Write},
    },
};

/// How often a read is begun again when the cluster changes under it.
const READ_ATTEMPTS: usize = 8;

/// Seconds from 1970 to 2000, where PostgreSQL's time begins.
const EPOCH_2000: u64 = 946_684_800;

/// One connection's state.
pub struct Session {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    user: String,
    database: String,
    pid: i32,
    settings: BTreeMap<String, String>,
    block: Block,
    prepared: BTreeMap<String, Arc<Prepared>>,
    /// The write that is under way and whose outcome the client has not been told.
    in_flight: Option<RequestId>,
    notices: Vec<SqlError>,
    reported: Vec<(String, String)>,
    statement_began: i64,
}

/// Where the session stands towards its block.
enum Block {
    None,
    Open(Open),
    Failed(Open),
}

struct Open {
    read_only: bool,
    /// What was applied, in words.
    written: Option<String>,
    /// Settings as they were before.
    saved: BTreeMap<String, String>,
    /// Settings that SET LOCAL changed, as they were before.
    local: BTreeMap<String, Option<String>>,
    began: i64,
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
    /// Rows that a write returned, and its whole tag.
    Written(Vec<Row>, String),
    /// Done.
    Done(String),
    /// Data is awaited.
    CopyIn(Box<CopyIn>),
    /// Data comes.
    CopyOut(Rows, copy::Format, Vec<Field>),
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
            settings: BTreeMap::new(),
            block: Block::None,
            prepared: BTreeMap::new(),
            in_flight: None,
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
            Some(id) if error.code == code::QUERY_CANCELED => fault::maybe_applied(id),
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

    /// A setting's value.
    pub fn setting(&self, name: &str) -> String {
        match name {
            "session_authorization" => return self.user.clone(),
            "transaction_read_only" if let Block::Open(open) | Block::Failed(open) = &self.block => {
                return if open.read_only { "on" } else { "off" }.to_owned();
            }
            _ => {}
        }
        match self.settings.get(name) {
            Some(value) => value.clone(),
            None => settings::find(name).map_or_else(String::new, |setting| setting.default.to_owned()),
        }
    }

    /// The settings that a client is told when it connects.
    pub fn parameters(&self) -> Vec<(String, String)> {
        settings::REPORTED.iter().map(|name| ((*name).to_owned(), self.setting(name))).collect()
    }

    /// Assigns a setting at start-up. What it does not take there is a warning, not the end of the connection.
    pub fn start_with(&mut self, name: &str, value: &str) {
        let Some(setting) = settings::find(name) else {
            self.notices.push(SqlError::new(
                "01000",
                format!("unrecognized configuration parameter \"{name}\" is ignored"),
            ));
            return;
        };
        match setting.check(value) {
            Ok(value) => {
                self.settings.insert(setting.name.to_owned(), value);
            }
            Err(mut error) => {
                error.code = "01000".into();
                self.notices.push(error);
            }
        }
    }

    /// How long a statement may take.
    pub fn timeout(&self) -> Option<Duration> {
        settings::milliseconds(&self.setting("statement_timeout"))
            .filter(|milliseconds| *milliseconds > 0)
            .map(Duration::from_millis)
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

    fn check_block(&self, prepared: &Prepared) -> Result<()> {
        let ends = matches!(
            prepared.bound.as_ref().map(|bound| &bound.statement),
            None | Some(Statement::Commit | Statement::Rollback)
        );
        if matches!(self.block, Block::Failed(_)) && !ends {
            return Err(SqlError::new(
                code::IN_FAILED_SQL_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        Ok(())
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
                for name in std::mem::take(&mut self.settings).into_keys() {
                    self.report(&name);
                }
                Ok(Outcome::Done("RESET".to_owned()))
            }
            Statement::Show(name) => Ok(Outcome::Rows(Rows::plain(self.show(name.as_deref())), "SHOW")),
            Statement::Begin(modes) => Ok(self.begin(*modes)),
            Statement::SetTransaction { modes, session } => Ok(self.set_transaction(*modes, *session)),
            Statement::Commit => self.commit(),
            Statement::Rollback => self.rollback(),
            Statement::Explain(inner) => {
                let lines = self.explain(inner, values)?;
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
                for name in std::mem::take(&mut self.settings).into_keys() {
                    self.report(&name);
                }
                Ok(Outcome::Done("DISCARD ALL".to_owned()))
            }
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
            values.push(fold::value(&bound, &open)?);
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

    fn strength(&self) -> ReadStrength {
        ReadStrength::named(&self.setting("quorate.read")).unwrap_or_default()
    }

    // Reading.

    async fn query(&mut self, query: &Query, values: &[Value]) -> Result<Rows> {
        let session = |value| self.session_value(value);
        let arguments = Arguments { values, session: &session };
        let window = window(&query.finish, &arguments)?;
        match &query.source {
            Source::Constants { rows, filter } => {
                let mut computed = Vec::with_capacity(rows.len());
                if match filter {
                    None => true,
                    Some(filter) => fold::value(filter, &arguments)? == Value::Bool(true),
                } {
                    for row in rows {
                        computed.push(
                            row.iter().map(|expr| fold::value(expr, &arguments)).collect::<Result<Row>>()?,
                        );
                    }
                }
                Ok(Rows::ready(computed, &query.finish.order, window))
            }
            Source::Catalog(plan) => {
                let world = crate::catalog::World {
                    catalog: self.backend.catalog(),
                    user: &self.user,
                    database: &self.database,
                    setting: &|name| settings::find(name).map(|setting| self.setting(setting.name)),
                    arguments: &arguments,
                };
                Ok(Rows::plain(plan.rows(&world)?))
            }
            Source::Table { select, .. } => {
                let select = instantiate(select, &window, &query.finish, &arguments);
                let finish = query.finish.groups.as_ref().map(|groups| merge::Finish {
                    input: merge::Input::Groups {
                        keys: groups.keys,
                        aggregates: groups
                            .aggregates
                            .iter()
                            .map(|aggregate| instantiate_aggregate(aggregate, &arguments))
                            .collect(),
                        having: groups.having.as_ref().map(|having| fold::substitute(having, &arguments)),
                        columns: groups
                            .columns
                            .iter()
                            .map(|column| fold::substitute(column, &arguments))
                            .collect(),
                    },
                    distinct: window.distinct,
                    order: query.finish.order.clone(),
                    offset: window.offset,
                    limit: window.limit,
                    visible: window.visible,
                });
                let strength = self.strength();
                let answers = self.read(strength, select).await?;
                Ok(match finish {
                    Some(finish) => Rows::grouped(answers, finish),
                    None => Rows::merged(answers, query.finish.order.clone(), window),
                })
            }
        }
    }

    /// Begins a read, again when the cluster changed under its beginning.
    async fn read(&self, strength: ReadStrength, select: Select) -> Result<crate::backend::AnswerStream> {
        for _ in 1..READ_ATTEMPTS {
            match self.backend.read(strength, select.clone()).await {
                Err(Fault::Retry { .. }) => tokio::task::yield_now().await,
                answered => return answered.map_err(fault::of_read),
            }
        }
        self.backend.read(strength, select).await.map_err(fault::of_read)
    }

    // Writing.

    fn check_write(&self, verb: &str) -> Result<()> {
        let read_only = || {
            SqlError::new(
                code::READ_ONLY_SQL_TRANSACTION,
                format!("cannot execute {verb} in a read-only transaction"),
            )
        };
        let Block::Open(open) = &self.block else {
            if self.setting("default_transaction_read_only") == "on" {
                return Err(read_only());
            }
            return Ok(());
        };
        if open.read_only {
            return Err(read_only());
        }
        match &open.written {
            None => Ok(()),
            Some(written) => Err(SqlError::unsupported("a second write in one transaction block")
                .detail(format!("{written} and stands."))
                .hint("Commit after each write, or put the rows into one statement.")),
        }
    }

    /// Notes in the block what was applied.
    fn wrote(&mut self, what: &str) {
        self.in_flight = None;
        if let Block::Open(open) = &mut self.block {
            open.written = Some(format!("{what} was applied"));
        }
    }

    /// The id for the next write, and whether the client chose it.
    fn request(&mut self) -> (RequestId, bool) {
        let chosen = self.settings.remove("quorate.request_id").and_then(|id| id.parse().ok());
        match chosen {
            Some(id) => (id, true),
            None => (self.fresh_request(), false),
        }
    }

    fn fresh_request(&mut self) -> RequestId {
        self.backend.request_id()
    }

    async fn write(&mut self, write: &Write, values: &[Value]) -> Result<Outcome> {
        let schema = &write.table.schema;
        let session = |value| self.session_value(value);
        let arguments = Arguments { values, session: &session };
        let returning: Vec<Expr> =
            write.returning.iter().map(|expr| fold::substitute(expr, &arguments)).collect();
        let filtered = |filter: &Option<Expr>| filter.as_ref().map(|f| fold::substitute(f, &arguments));
        let table = write.table.id;
        let mut returned = Vec::new();
        let operation = match &write.action {
            Action::Insert(rows) => {
                let mut computed = Vec::with_capacity(rows.len());
                for row in rows {
                    let row: Row =
                        row.iter().map(|expr| fold::value(expr, &arguments)).collect::<Result<_>>()?;
                    write::check_not_null(schema, &row)?;
                    computed.push(row);
                }
                // The rows are known here, so RETURNING is computed here, in their order.
                if !returning.is_empty() {
                    for row in &computed {
                        returned.push(
                            returning
                                .iter()
                                .map(|expr| eval(expr, row))
                                .collect::<std::result::Result<Row, _>>()?,
                        );
                    }
                }
                Operation::Insert { table, rows: computed, returning: Vec::new() }
            }
            Action::Update { assignments, filter } => Operation::Update {
                table,
                assignments: assignments
                    .iter()
                    .map(|(column, expr)| (*column, fold::substitute(expr, &arguments)))
                    .collect(),
                filter: filtered(filter),
                returning,
            },
            Action::Delete { filter } => Operation::Delete { table, filter: filtered(filter), returning },
        };
        let (id, retried) = self.request();
        self.in_flight = Some(id);
        let answered = self.backend.write(id, operation).await;
        let (rows, more) = self.written(answered, id, retried)?;
        returned.extend(more);
        let tag = format!("{} {rows}", write.action.tag());
        self.wrote(&tag);
        if write.fields.is_empty() { Ok(Outcome::Done(tag)) } else { Ok(Outcome::Written(returned, tag)) }
    }

    /// Adds up the answers of a write. Whatever they are, its outcome is known now.
    fn written(
        &mut self,
        answered: std::result::Result<Vec<Answer>, Fault>,
        id: RequestId,
        retried: bool,
    ) -> Result<(u64, Vec<Row>)> {
        self.in_flight = None;
        let answers = answered.map_err(|fault| fault::of_write(fault, id, retried))?;
        let mut total = 0;
        let mut returned = Vec::new();
        for answer in answers {
            match answer {
                Answer::Written(ranges) => {
                    for range in ranges {
                        total += range.rows;
                        returned.extend(range.returning);
                    }
                }
                Answer::Failed(failure) => return Err(failure.into()),
                Answer::Rows(_) | Answer::Groups(_) => {
                    return Err(SqlError::new(code::INTERNAL_ERROR, "a range answered a write with rows"));
                }
            }
        }
        Ok((total, returned))
    }

    async fn create_table(&mut self, create: &ddl::CreateTable) -> Result<Outcome> {
        let name = &create.schema.name;
        let exists = || SqlError::new(code::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"));
        if self.backend.catalog().table(name).is_some() {
            return self.exists_already(create, exists());
        }
        let (id, retried) = self.request();
        self.in_flight = Some(id);
        let done = self.backend.create_table(id, create.schema.clone(), create.replicas).await;
        self.in_flight = None;
        match done {
            Ok(()) => {
                self.wrote("CREATE TABLE");
                Ok(Outcome::Done("CREATE TABLE".to_owned()))
            }
            // Another gateway may have been first.
            Err(Fault::Failed(failure)) if failure.sqlstate == code::DUPLICATE_TABLE => {
                self.exists_already(create, failure.into())
            }
            Err(fault) => Err(fault::of_write(fault, id, retried)),
        }
    }

    fn exists_already(&mut self, create: &ddl::CreateTable, error: SqlError) -> Result<Outcome> {
        if !create.if_not_exists {
            return Err(error);
        }
        let notice = format!("relation \"{}\" already exists, skipping", create.schema.name);
        self.notices.push(SqlError::new(code::DUPLICATE_TABLE, notice));
        Ok(Outcome::Done("CREATE TABLE".to_owned()))
    }

    async fn drop_table(&mut self, drop: &ddl::DropTable) -> Result<Outcome> {
        let catalog = self.backend.catalog();
        let mut tables = Vec::with_capacity(drop.names.len());
        for name in &drop.names {
            match catalog.table(name) {
                Some(table) => tables.push(table.id),
                None if drop.if_exists => {
                    let notice = format!("table \"{name}\" does not exist, skipping");
                    self.notices.push(SqlError::new("00000", notice));
                }
                None if crate::catalog::is_relation(name) => {
                    return Err(SqlError::new("42809", format!("\"{name}\" is part of the catalog")));
                }
                None => {
                    return Err(SqlError::new(
                        code::UNDEFINED_TABLE,
                        format!("table \"{name}\" does not exist"),
                    ));
                }
            }
        }
        if tables.len() > 1 {
            return Err(SqlError::unsupported("DROP TABLE of several tables at once")
                .hint("Drop them one by one; each DROP is atomic."));
        }
        for table in tables {
            let (id, retried) = self.request();
            self.in_flight = Some(id);
            let done = self.backend.drop_table(id, table).await;
            self.in_flight = None;
            done.map_err(|fault| fault::of_write(fault, id, retried))?;
            self.wrote("DROP TABLE");
        }
        Ok(Outcome::Done("DROP TABLE".to_owned()))
    }

    async fn copy(&mut self, copy: &copy::Copy, values: &[Value]) -> Result<Outcome> {
        match &copy.direction {
            copy::Direction::Out(query) => {
                let rows = self.query(query, values).await?;
                Ok(Outcome::CopyOut(rows, copy.format.clone(), copy.fields()))
            }
            copy::Direction::In { table, columns } => {
                let id = self.fresh_request();
                let load = LoadId(id.session, id.number);
                let rows = CopyIn::new(
                    self.backend.clone(),
                    table.clone(),
                    columns.clone(),
                    copy.format.clone(),
                    load,
                )?;
                Ok(Outcome::CopyIn(Box::new(rows)))
            }
        }
    }

    /// Takes in data of a COPY.
    pub async fn copy_data(&mut self, copy: &mut CopyIn, data: &[u8]) -> Result<()> {
        copy.data(data, &mut || self.fresh_request()).await
    }

    /// Makes the rows of a COPY visible, all at once.
    pub async fn copy_done(&mut self, mut copy: Box<CopyIn>) -> Result<String> {
        copy.end(&mut || self.fresh_request()).await?;
        let (id, retried) = self.request();
        self.in_flight = Some(id);
        let answered = self.backend.write(id, copy.publication()).await;
        if !matches!(answered, Err(Fault::MaybeApplied { .. })) {
            self.in_flight = None;
        }
        let (rows, _) = self.written(answered, id, retried)?;
        copy.published();
        let tag = format!("COPY {rows}");
        self.wrote(&tag);
        Ok(tag)
    }

    // Settings and blocks.

    fn set(&mut self, name: &str, value: Option<String>, local: bool) -> Result<Outcome> {
        if name == "transaction_read_only" {
            let modes = Modes { read_only: Some(value.as_deref() == Some("on")) };
            return Ok(self.set_transaction(modes, false));
        }
        let tag = if value.is_some() { "SET" } else { "RESET" };
        if local {
            match &mut self.block {
                Block::Open(open) => {
                    open.local.entry(name.to_owned()).or_insert_with(|| self.settings.get(name).cloned());
                }
                _ => {
                    self.notices
                        .push(SqlError::new("25P01", "SET LOCAL can only be used in transaction blocks"));
                    return Ok(Outcome::Done(tag.to_owned()));
                }
            }
        }
        match value {
            Some(value) => self.settings.insert(name.to_owned(), value),
            None => self.settings.remove(name),
        };
        self.report(name);
        Ok(Outcome::Done(tag.to_owned()))
    }

    fn report(&mut self, name: &str) {
        if settings::REPORTED.contains(&name) {
            self.reported.push((name.to_owned(), self.setting(name)));
        }
    }

    fn show(&self, name: Option<&str>) -> Vec<Row> {
        match name {
            Some(name) => vec![vec![Value::text_of(self.setting(name))]],
            None => settings::SETTINGS
                .iter()
                .map(|setting| {
                    [setting.name, &self.setting(setting.name), setting.description]
                        .map(Value::text_of)
                        .to_vec()
                })
                .collect(),
        }
    }

    fn begin(&mut self, modes: Modes) -> Outcome {
        if let Block::None = self.block {
            let read_only =
                modes.read_only.unwrap_or_else(|| self.setting("default_transaction_read_only") == "on");
            self.block = Block::Open(Open {
                read_only,
                written: None,
                saved: self.settings.clone(),
                local: BTreeMap::new(),
                began: self.statement_began,
            });
        } else {
            self.notices.push(SqlError::new(
                code::ACTIVE_SQL_TRANSACTION,
                "there is already a transaction in progress",
            ));
        }
        Outcome::Done("BEGIN".to_owned())
    }

    fn set_transaction(&mut self, modes: Modes, session: bool) -> Outcome {
        if session {
            if let Some(read_only) = modes.read_only {
                let value = if read_only { "on" } else { "off" };
                self.settings.insert("default_transaction_read_only".to_owned(), value.to_owned());
            }
        } else if let Block::Open(open) = &mut self.block {
            open.read_only = modes.read_only.unwrap_or(open.read_only);
        } else {
            self.notices.push(SqlError::new(
                code::NO_ACTIVE_SQL_TRANSACTION,
                "SET TRANSACTION can only be used in transaction blocks",
            ));
        }
        Outcome::Done("SET".to_owned())
    }

    fn commit(&mut self) -> Result<Outcome> {
        match std::mem::replace(&mut self.block, Block::None) {
            Block::None => {
                self.no_block();
                Ok(Outcome::Done("COMMIT".to_owned()))
            }
            Block::Open(open) => {
                self.end_local(open.local);
                Ok(Outcome::Done("COMMIT".to_owned()))
            }
            Block::Failed(open) => self.roll_back(open),
        }
    }

    fn rollback(&mut self) -> Result<Outcome> {
        match std::mem::replace(&mut self.block, Block::None) {
            Block::None => {
                self.no_block();
                Ok(Outcome::Done("ROLLBACK".to_owned()))
            }
            Block::Open(open) | Block::Failed(open) => self.roll_back(open),
        }
    }

    fn roll_back(&mut self, open: Open) -> Result<Outcome> {
        let changed: Vec<String> = self
            .settings
            .keys()
            .chain(open.saved.keys())
            .filter(|name| self.settings.get(*name) != open.saved.get(*name))
            .cloned()
            .collect();
        self.settings = open.saved;
        for name in changed {
            self.report(&name);
        }
        match open.written {
            None => Ok(Outcome::Done("ROLLBACK".to_owned())),
            Some(written) => Err(SqlError::new(
                code::INVALID_TRANSACTION_TERMINATION,
                "the block cannot be rolled back: a write takes effect when it is executed",
            )
            .detail(format!("{written} and stands."))
            .hint("The block has ended. Undo the write with another one.")),
        }
    }

    fn end_local(&mut self, local: BTreeMap<String, Option<String>>) {
        for (name, value) in local {
            match value {
                Some(value) => self.settings.insert(name.clone(), value),
                None => self.settings.remove(&name),
            };
            self.report(&name);
        }
    }

    fn no_block(&mut self) {
        self.notices
            .push(SqlError::new(code::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress"));
    }

    // Explaining.

    fn explain(&self, statement: &Statement, values: &[Value]) -> Result<Vec<String>> {
        let session = |value| self.session_value(value);
        let arguments = Arguments { values, session: &session };
        let strength = self.strength();
        let mut lines = Vec::new();
        match statement {
            Statement::Query(query) => match &query.source {
                Source::Constants { .. } => lines.push("Result of constants, at the gateway".to_owned()),
                Source::Catalog(_) => lines.push("Catalog, at the gateway".to_owned()),
                Source::Table { table, select } => {
                    let window = window(&query.finish, &arguments)?;
                    let select = instantiate(select, &window, &query.finish, &arguments);
                    lines.push(format!("Scan of {}", table.schema.name));
                    lines.push(format!("  Strength: {}", strength.name()));
                    lines.push(match &select.output {
                        Output::Rows { columns, order, limit, .. } => {
                            let sorted = if order.is_empty() { "" } else { ", sorted" };
                            let limited =
                                limit.map(|n| format!(", at most {n} per range")).unwrap_or_default();
                            format!("  Ranges send: rows of {} columns{sorted}{limited}", columns.len())
                        }
                        Output::Groups { keys, aggregates } => format!(
                            "  Ranges send: groups of {} keys, {} aggregates",
                            keys.len(),
                            aggregates.len()
                        ),
                    });
                    let gathers = match (&query.finish.groups, query.finish.order.is_empty()) {
                        (Some(_), _) => "merges groups",
                        (None, false) => "merges sorted rows",
                        (None, true) => "passes rows on",
                    };
                    lines.push(format!("  Gateway: {gathers}"));
                    lines.extend(
                        self.backend
                            .explain(&Operation::Select(select), strength)
                            .into_iter()
                            .map(|line| format!("  {line}")),
                    );
                }
            },
            Statement::Write(write) => {
                let filtered =
                    |filter: &Option<Expr>| filter.as_ref().map(|f| fold::substitute(f, &arguments));
                let table = write.table.id;
                let (word, operation) = match &write.action {
                    Action::Insert(rows) => {
                        let mut computed = Vec::with_capacity(rows.len());
                        for row in rows {
                            computed.push(
                                row.iter()
                                    .map(|expr| fold::value(expr, &arguments))
                                    .collect::<Result<Row>>()?,
                            );
                        }
                        ("Insert into", Operation::Insert { table, rows: computed, returning: Vec::new() })
                    }
                    Action::Update { assignments, filter } => (
                        "Update of",
                        Operation::Update {
                            table,
                            assignments: assignments.clone(),
                            filter: filtered(filter),
                            returning: Vec::new(),
                        },
                    ),
                    Action::Delete { filter } => (
                        "Delete from",
                        Operation::Delete { table, filter: filtered(filter), returning: Vec::new() },
                    ),
                };
                lines.push(format!("{word} {}", write.table.schema.name));
                lines.push("  Strength: safe, in the total order".to_owned());
                lines.extend(
                    self.backend.explain(&operation, strength).into_iter().map(|line| format!("  {line}")),
                );
            }
            _ => unreachable!("the binder lets nothing else be explained"),
        }
        Ok(lines)
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

fn window(finish: &Finish, arguments: &Arguments<'_>) -> Result<Window> {
    let count = |expr: &Option<Expr>, state: &'static str, clause: &str| -> Result<Option<u64>> {
        let Some(expr) = expr else { return Ok(None) };
        match fold::value(expr, arguments)? {
            Value::Int8(n) => match u64::try_from(n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(SqlError::new(state, format!("{clause} must not be negative"))),
            },
            _ => Ok(None),
        }
    };
    Ok(Window {
        distinct: finish.distinct,
        offset: count(&finish.offset, code::INVALID_ROW_COUNT_IN_OFFSET, "OFFSET")?.unwrap_or(0),
        limit: count(&finish.limit, code::INVALID_ROW_COUNT_IN_LIMIT, "LIMIT")?,
        visible: finish.visible,
    })
}

fn instantiate_aggregate(aggregate: &Aggregate, arguments: &Arguments<'_>) -> Aggregate {
    Aggregate {
        function: aggregate.function,
        argument: aggregate.argument.as_ref().map(|argument| fold::substitute(argument, arguments)),
        distinct: aggregate.distinct,
    }
}

/// The select that travels: arguments put in, and as much of the limit as a range can keep.
fn instantiate(select: &Select, window: &Window, finish: &Finish, arguments: &Arguments<'_>) -> Select {
    let many = |exprs: &[Expr]| exprs.iter().map(|expr| fold::substitute(expr, arguments)).collect();
    let output = match &select.output {
        Output::Rows { columns, distinct, .. } => Output::Rows {
            columns: many(columns),
            order: finish.order.clone(),
            limit: window.limit.map(|limit| limit.saturating_add(window.offset)),
            distinct: *distinct,
        },
        Output::Groups { keys, aggregates } => Output::Groups {
            keys: many(keys),
            aggregates: aggregates
                .iter()
                .map(|aggregate| instantiate_aggregate(aggregate, arguments))
                .collect(),
        },
    };
    let filter = select.filter.as_ref().map(|filter| fold::substitute(filter, arguments));
    Select { table: select.table, filter, output }
}
