//! A client: statements, sessions and transactions of tables, and stubs of services.
//!
//! A statement of [`Db`] stands alone, and many may be in progress at once. State that lasts over statements
//! (settings, blocks, cursors) needs a [`Session`], which executes one statement after another.
//!
//! **Dropped.** Dropping the future of a statement gives the statement up: a read ends everywhere, and a
//! write may have been applied. If the write has a name ([`Execute::request`]), the caller can send it again
//! under that name.

#[cfg(feature = "services")]
mod services;

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    process,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use quorate_protocol::{DomainId, Strength};
use quorate_sql::{
    cache::{Cache, Prepared},
    encode,
    error::{SqlError, code},
    finish,
    session::{self, StatementOutcome},
    statement::Statement,
};
use quorate_table::value::Value;

use crate::{
    cluster::ClusterBackend,
    error::{Error, RequestName},
    node::{Member, Node},
    param::{Column, Param, Row},
    pending::Pending,
    timer,
};

/// A client of a cluster's tables, and of services. Clones share one client.
#[derive(Clone)]
pub struct Db(Arc<DbShared>);

struct DbShared {
    node: Node,
    /// The access to tables; `None` if the processes that the client connects to host services alone.
    tables: Option<Tables>,
    cache: Arc<Cache>,
    /// The id of the operating-system process that has the client's threads.
    pid: u32,
    sessions: AtomicI32,
}

/// The client's process, and the access of SQL to tables.
struct Tables(Member, Arc<ClusterBackend>);

/// The setting that names the next write or transaction.
const REQUEST_ID: &str = "quorate.request_id";

/// Maximum number of attempts of [`Db::transaction`].
const ATTEMPTS_MAX: u32 = 8;

/// Longest pause after the first failed attempt of [`Db::transaction`]. The bound doubles with each attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The value of `current_user` and `current_database`.
const USER: &str = "quorate";

impl Db {
    pub(crate) fn of_tables(node: Node, member: Member, tables: Arc<ClusterBackend>) -> Db {
        Db::new(node, Some(Tables(member, tables)))
    }

    fn new(node: Node, tables: Option<Tables>) -> Db {
        let shared =
            DbShared { node, tables, cache: Arc::default(), pid: process::id(), sessions: AtomicI32::new(1) };
        Db(Arc::new(shared))
    }

    /// Returns a statement to execute: await it, or [`wait`](crate::Wait::wait) for it. It yields the number
    /// of rows that it changed or found.
    ///
    /// ```no_run
    /// # async fn run(db: &quorate::Db) -> Result<(), quorate::Error> {
    /// let changed = db.execute("update t set v = $1 where id = $2").bind("new").bind(7).await?;
    /// assert_eq!(changed, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn execute<'a>(&'a self, text: &'a str) -> Execute<'a> {
        Execute(StatementRequest::new(StatementTarget::Db(self), text))
    }

    /// Reads rows at the highest strength ([`Strength::Sequential`]): all acknowledged writes are visible.
    /// The rows are gathered in memory, and a result of more than 128 MiB fails (53200). [`Query::stream`]
    /// has no bound.
    ///
    /// ```no_run
    /// # async fn run(db: &quorate::Db) -> Result<(), quorate::Error> {
    /// for row in db.query("select id, v from t where id < $1").bind(10).await? {
    ///     println!("{} {}", row.get::<i32>("id")?, row.get::<&str>("v")?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn query<'a>(&'a self, text: &'a str) -> Query<'a> {
        Query(StatementRequest::new(StatementTarget::Db(self), text))
    }

    /// Returns a reader at this strength.
    pub fn read(&self, strength: Strength) -> Reader<'_> {
        Reader { db: self, strength }
    }

    /// Makes a session: settings, blocks and cursors last from one statement to the next.
    pub fn session(&self) -> Session {
        let inner = self.0.tables.as_ref().map(|Tables(_, tables)| {
            let number = self.0.sessions.fetch_add(1, Ordering::Relaxed);
            let (cache, user) = (self.0.cache.clone(), USER.to_owned());
            session::Session::new(tables.clone(), cache, user.clone(), user, number)
        });
        Session { db: self.clone(), inner, is_asking: false }
    }

    /// Begins a transaction at READ COMMITTED. Its statements take effect together at its commit, or not at
    /// all. Nothing is locked, and the cluster keeps nothing of an open transaction. The commit fails with
    /// SQLSTATE 40001 if another transaction has changed the result of a write of this transaction. It also
    /// fails if another transaction has changed the result of a read, and this transaction wrote or locked
    /// (`for update`) the rows of that read. [`Db::transaction`] repeats such a transaction.
    ///
    /// ```no_run
    /// # async fn run(db: &quorate::Db) -> Result<(), quorate::Error> {
    /// let mut transfer = db.begin().await?;
    /// transfer.execute("update acct set cents = cents - $1 where id = 1").bind(50).await?;
    /// transfer.execute("update acct set cents = cents + $1 where id = 2").bind(50).await?;
    /// transfer.commit().await
    /// # }
    /// ```
    pub async fn begin(&self) -> Result<Transaction, Error> {
        let mut session = self.session();
        session.execute("begin").await?;
        Ok(Transaction(session))
    }

    /// Runs `work` in a transaction and commits it. If a statement or the commit conflicts with another
    /// transaction (SQLSTATE 40001), or was not sent ([`Error::NotSent`]), the attempt has failed. After a
    /// short random pause this method begins a new transaction and calls `work` again, up to eight attempts
    /// in all. If `work` fails with another error, nothing takes effect and the error is returned. `work`
    /// should have no effect outside of its transaction.
    ///
    /// ```no_run
    /// # async fn run(db: &quorate::Db) -> Result<(), quorate::Error> {
    /// let left: i64 = db
    ///     .transaction(async |tx| {
    ///         tx.execute("update acct set cents = cents - 50 where id = 1").await?;
    ///         tx.execute("update acct set cents = cents + 50 where id = 2").await?;
    ///         let mut rows = tx.query("select cents from acct where id = 1").await?;
    ///         rows.next().map_or(Ok(0), |row| row.get(0))
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction<T>(
        &self,
        work: impl AsyncFn(&mut Transaction) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut attempt = 1;
        loop {
            let mut transaction = self.begin().await?;
            let outcome = match work(&mut transaction).await {
                Ok(value) => transaction.commit().await.map(|()| value),
                Err(error) => Err(error),
            };
            match outcome {
                Err(error) if is_conflict(&error) && attempt < ATTEMPTS_MAX => {
                    timer::sleep(retry_pause(attempt)).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    /// Executes several writes in order as one message, which needs one round trip. All of them take effect,
    /// or none does. A batch never fails because of other transactions. Yields the number of rows that each
    /// statement changed. If a statement has a name ([`Execute::request`]), the whole batch has that name.
    ///
    /// ```no_run
    /// # async fn run(db: &quorate::Db) -> Result<(), quorate::Error> {
    /// let changed = db
    ///     .batch([
    ///         db.execute("update acct set cents = cents - $1 where id = 1").bind(50),
    ///         db.execute("update acct set cents = cents + $1 where id = 2").bind(50),
    ///     ])
    ///     .await?;
    /// assert_eq!(changed, [1, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn batch<'a>(
        &self,
        statements: impl IntoIterator<Item = Execute<'a>>,
    ) -> Result<Vec<u64>, Error> {
        self.check()?;
        let mut session = self.session();
        let inner = session.inner()?;
        let mut bound = Vec::new();
        for Execute(StatementRequest { target, text, params, request, .. }) in statements {
            if matches!(target, StatementTarget::Session(_)) {
                return Err(Error::unsupported(
                    "a statement of `Session::execute` in `Db::batch`, which takes statements of `Db::execute`,",
                ));
            }
            if let Some(name) = request {
                inner.start_with(REQUEST_ID, &name.to_string())?;
            }
            let prepared = inner.prepare(text, Vec::new())?;
            let values = values(&prepared, params)?;
            bound.push((prepared, values));
        }
        let changed = inner.batch(&bound).await;
        changed.map_err(|error| self.judged(inner.failed(error)))
    }

    /// Leaves the cluster, once the last statement has ended. The future ends when the other processes have
    /// acknowledged that, or after a time limit.
    pub async fn close(self) {
        // An error means only that a group's state was not saved, and the error was logged. It does not
        // concern a client of tables.
        let _ = self.0.node.clone().leave().await;
    }

    /// Returns the client's node.
    pub fn node(&self) -> &Node {
        &self.0.node
    }

    fn check(&self) -> Result<(), Error> {
        if process::id() == self.0.pid { Ok(()) } else { Err(Error::Forked) }
    }

    /// Returns the tables, and their domain.
    pub(crate) fn tables(&self) -> Result<(DomainId, Arc<ClusterBackend>), Error> {
        self.check()?;
        let Tables(member, tables) = self.0.tables.as_ref().ok_or_else(no_tables)?;
        Ok((member.domain(), tables.clone()))
    }

    /// Converts an error of SQL. If the client's process has ended for good, repeating a request that was not
    /// sent is useless, so its error becomes [`Error::Wedged`].
    fn judged(&self, error: SqlError) -> Error {
        let over = self.0.tables.as_ref().and_then(|Tables(member, _)| member.over());
        match (Error::from(error), over) {
            (Error::NotSent { .. }, Some(why)) => Error::wedged(why),
            (error, _) => error,
        }
    }
}

/// Whether a transaction that failed with this error may succeed if it is repeated.
fn is_conflict(error: &Error) -> bool {
    error.sqlstate() == Some(code::SERIALIZATION_FAILURE) || matches!(error, Error::NotSent { .. })
}

/// Returns a random pause after a failed attempt, so that two transactions in conflict do not conflict again.
fn retry_pause(attempt: u32) -> Duration {
    let random = RandomState::new().build_hasher().finish() as u32;
    let longest = RETRY_PAUSE * 2u32.pow(attempt - 1);
    longest.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

fn no_tables() -> Error {
    Error::not_sent("this client is connected to hosts of services, which have no tables")
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Db").field(&self.0.node).finish()
    }
}

/// A reader at a strength ([`Db::read`]).
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    db: &'a Db,
    strength: Strength,
}

impl<'a> Reader<'a> {
    /// Reads rows.
    pub fn query(self, text: &'a str) -> Query<'a> {
        let mut asking = StatementRequest::new(StatementTarget::Db(self.db), text);
        asking.strength = Some(self.strength);
        Query(asking)
    }
}

/// A session, which executes one statement after another ([`Db::session`]).
pub struct Session {
    db: Db,
    inner: Option<session::Session>,
    /// Whether a statement has begun and its outcome was not seen. If a later statement finds this set, the
    /// caller has given the earlier statement up.
    is_asking: bool,
}

impl Session {
    /// Executes a statement. Yields the number of rows that it changed or found.
    pub fn execute<'a>(&'a mut self, text: &'a str) -> Execute<'a> {
        Execute(StatementRequest::new(StatementTarget::Session(self), text))
    }

    /// Reads rows.
    pub fn query<'a>(&'a mut self, text: &'a str) -> Query<'a> {
        Query(StatementRequest::new(StatementTarget::Session(self), text))
    }

    async fn ask(&mut self, statement: StatementArgs<'_>) -> Result<StatementResult, Error> {
        self.db.check()?;
        let given_up = self.is_asking;
        let inner = self.inner()?;
        if given_up {
            // The statement's write may have been applied, so its block fails and reports that.
            inner.failed(SqlError::new(
                code::QUERY_CANCELED,
                "the previous statement of this session was given up before its result was known",
            ));
        }
        self.is_asking = true;
        let answer = Session::perform(self.inner()?, statement).await;
        self.is_asking = false;
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let error = self.inner()?.failed(error);
                Err(self.db.judged(error))
            }
        }
    }

    fn inner(&mut self) -> Result<&mut session::Session, Error> {
        self.inner.as_mut().ok_or_else(no_tables)
    }

    async fn perform(
        inner: &mut session::Session,
        StatementArgs { text, params, request, .. }: StatementArgs<'_>,
    ) -> Result<StatementResult, SqlError> {
        let prepared = inner.prepare(text, Vec::new())?;
        if let Some(Statement::Copy(_)) = statement(&prepared) {
            return Err(SqlError::unsupported("COPY through the library"));
        }
        let values = values(&prepared, params)?;
        if let Some(name) = request {
            inner.start_with(REQUEST_ID, &name.to_string())?;
        }
        let outcome = inner.execute(&prepared, &values).await?;
        // If a definition came before the rollback, a client of the SQL door gets a warning. The library
        // shows no warnings, so its user gets an error.
        if matches!(statement(&prepared), Some(Statement::Rollback | Statement::RollbackTo(_)))
            && let Some(warning) = inner.notices().into_iter().find(|notice| notice.code == code::WARNING)
        {
            let message = "the transaction cannot be rolled back: a definition takes effect at once";
            return Err(
                SqlError::new(code::INVALID_TRANSACTION_TERMINATION, message).detail(warning.message.clone())
            );
        }
        let fields = match statement(&prepared) {
            Some(Statement::Execute { name, .. }) => {
                inner.named(name).and_then(|prepared| prepared.fields.clone())
            }
            Some(Statement::Fetch { name, .. }) => inner.cursor_fields(name),
            _ => prepared.fields.clone(),
        };
        let columns = fields.map_or_else(|| Arc::from([]), |fields| Column::of(&fields));
        Ok(match outcome {
            StatementOutcome::Rows(rows, _) => {
                StatementResult { columns, rows: Some(rows), changed: 0, rolled_back: false }
            }
            StatementOutcome::Buffered(rows, tag, hold) => {
                let rows = Some(finish::Rows::plain(rows).holding(hold));
                StatementResult { columns, rows, changed: changed(&tag), rolled_back: false }
            }
            StatementOutcome::Done(tag) => StatementResult {
                columns,
                rows: None,
                changed: changed(&tag),
                rolled_back: tag == "ROLLBACK",
            },
            StatementOutcome::Empty => {
                StatementResult { columns, rows: None, changed: 0, rolled_back: false }
            }
            StatementOutcome::Deferred => unreachable!("the library defers only in batches"),
            StatementOutcome::CopyIn(_) | StatementOutcome::CopyOut(..) => {
                return Err(SqlError::unsupported("COPY through the library"));
            }
        })
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("db", &self.db).finish_non_exhaustive()
    }
}

/// Statements that take effect together ([`Db::begin`]). If the transaction is dropped before its commit,
/// nothing takes effect.
#[derive(Debug)]
pub struct Transaction(Session);

impl Transaction {
    /// Executes a statement. Yields the number of rows that it changed or found.
    pub fn execute<'a>(&'a mut self, text: &'a str) -> Execute<'a> {
        self.0.execute(text)
    }

    /// Reads rows.
    pub fn query<'a>(&'a mut self, text: &'a str) -> Query<'a> {
        self.0.query(text)
    }

    /// Commits. Fails with SQLSTATE 40001 if another transaction has changed a result that this transaction
    /// depends on ([`Db::begin`]). Fails with [`Error::Aborted`] if a statement of the transaction failed, or
    /// was given up before its outcome was seen. In both cases nothing was applied. A commit whose future is
    /// dropped may have been applied.
    pub async fn commit(mut self) -> Result<(), Error> {
        let (answer, _) = self.0.execute("commit").0.ask().await?;
        match answer.rolled_back {
            true => Err(Error::Aborted {
                why: String::from("a statement of the transaction failed or was given up"),
            }),
            false => Ok(()),
        }
    }

    /// Drops all statements. Fails after CREATE TABLE and DROP TABLE, because they have taken effect already.
    pub async fn rollback(mut self) -> Result<(), Error> {
        self.0.execute("rollback").await.map(drop)
    }
}

/// A statement that was not sent yet: await it, or [`wait`](crate::Wait::wait) for it.
#[derive(Debug)]
#[must_use = "the statement is sent only when this future is awaited"]
pub struct Execute<'a>(StatementRequest<'a>);

/// A query that was not sent yet: await it for all its rows, or [`stream`](Query::stream) them.
#[derive(Debug)]
#[must_use = "the statement is sent only when this future is awaited"]
pub struct Query<'a>(StatementRequest<'a>);

#[derive(Debug)]
enum StatementTarget<'a> {
    Db(&'a Db),
    Session(&'a mut Session),
}

#[derive(Debug)]
struct StatementRequest<'a> {
    target: StatementTarget<'a>,
    text: &'a str,
    params: Vec<Param>,
    strength: Option<Strength>,
    request: Option<RequestName>,
}

/// A statement with its parameters and options.
struct StatementArgs<'a> {
    text: &'a str,
    params: Vec<Param>,
    strength: Option<Strength>,
    request: Option<RequestName>,
}

struct StatementResult {
    columns: Arc<[Column]>,
    rows: Option<finish::Rows>,
    changed: u64,
    /// Whether the statement ended a block without effect.
    rolled_back: bool,
}

impl<'a> StatementRequest<'a> {
    fn new(target: StatementTarget<'a>, text: &'a str) -> Self {
        StatementRequest { target, text, params: Vec::new(), strength: None, request: None }
    }

    async fn ask(self) -> Result<(StatementResult, Db), Error> {
        let StatementRequest { target, text, params, strength, request } = self;
        let args = StatementArgs { text, params, strength, request };
        match target {
            StatementTarget::Session(session) => {
                let answer = session.ask(args).await?;
                Ok((answer, session.db.clone()))
            }
            StatementTarget::Db(db) => {
                let mut session = db.session();
                let inner = session.inner()?;
                if let Some(strength) = args.strength {
                    inner.start_with("quorate.read", strength.name())?;
                }
                let prepared = inner.prepare(text, Vec::new())?;
                if let Some(what) = statement(&prepared).and_then(kept) {
                    let why = format!(
                        "{what} outside a session (use a session, which keeps {what} for later statements)"
                    );
                    return Err(Error::unsupported(&why));
                }
                let answer = session.ask(args).await?;
                Ok((answer, db.clone()))
            }
        }
    }
}

impl<'a> Execute<'a> {
    /// Sets the value of the next parameter: first `$1`, then `$2`.
    pub fn bind(mut self, value: impl Into<Param>) -> Self {
        self.0.params.push(value.into());
        self
    }

    /// Names the write, so that it is executed once however often it is sent under this name. The caller made
    /// the name up ([`RequestName::made_up`]), or has it from the error of an earlier attempt
    /// ([`Error::MaybeApplied`]).
    pub fn request(mut self, name: RequestName) -> Self {
        self.0.request = Some(name);
        self
    }
}

impl<'a> IntoFuture for Execute<'a> {
    type Output = Result<u64, Error>;
    type IntoFuture = Pending<'a, u64>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (answer, db) = self.0.ask().await?;
            let Some(mut rows) = answer.rows.filter(|_| answer.changed == 0) else {
                return Ok(answer.changed);
            };
            let mut found = 0;
            loop {
                match rows.next().await.map_err(|error| db.judged(error))?.len() {
                    0 => return Ok(found),
                    some => found += some as u64,
                }
            }
        })
    }
}

impl<'a> Query<'a> {
    /// Sets the value of the next parameter: first `$1`, then `$2`.
    pub fn bind(mut self, value: impl Into<Param>) -> Self {
        self.0.params.push(value.into());
        self
    }

    /// Names a write that returns rows (`RETURNING`), as [`Execute::request`] does.
    pub fn request(mut self, name: RequestName) -> Self {
        self.0.request = Some(name);
        self
    }

    /// Streams the rows. The storage processes send at most one window of bytes more than the caller has
    /// taken.
    ///
    /// ```no_run
    /// # async fn run(db: &quorate::Db) -> Result<(), quorate::Error> {
    /// let mut rows = db.query("select id from t").stream().await?;
    /// while let Some(row) = rows.next().await? {
    ///     println!("{}", row.get::<i32>(0)?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream(self) -> Pending<'a, RowStream> {
        Box::pin(async move {
            let (answer, db) = self.0.ask().await?;
            let rows = answer.rows.unwrap_or_else(|| finish::Rows::plain(Vec::new()));
            Ok(RowStream { db, columns: answer.columns, rows, batch: Vec::new().into_iter() })
        })
    }
}

impl<'a> IntoFuture for Query<'a> {
    type Output = Result<Rows, Error>;
    type IntoFuture = Pending<'a, Rows>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let RowStream { db, columns, rows, .. } = self.stream().await?;
            let all = rows.all().await.map_err(|error| db.judged(error))?;
            Ok(Rows { columns, rows: all.into_iter() })
        })
    }
}

/// All rows of a result.
#[derive(Clone, Debug)]
pub struct Rows {
    columns: Arc<[Column]>,
    rows: std::vec::IntoIter<Vec<Value>>,
}

impl Rows {
    /// Returns the columns, in order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }
}

impl Iterator for Rows {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        self.rows.next().map(|values| Row::new(self.columns.clone(), values))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl ExactSizeIterator for Rows {}

/// The rows of a result as they arrive ([`Query::stream`]). Dropping the stream before its end ends the read
/// everywhere.
pub struct RowStream {
    db: Db,
    columns: Arc<[Column]>,
    rows: finish::Rows,
    batch: std::vec::IntoIter<Vec<Value>>,
}

impl RowStream {
    /// Returns the columns, in order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the next row, or `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Row>, Error> {
        if self.batch.len() == 0 {
            self.batch = self.rows.next().await.map_err(|error| self.db.judged(error))?.into_iter();
        }
        Ok(self.batch.next().map(|values| Row::new(self.columns.clone(), values)))
    }
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream").field("columns", &self.columns).finish_non_exhaustive()
    }
}

fn statement(prepared: &Prepared) -> Option<&Statement> {
    prepared.bound.as_ref().map(|bound| &bound.statement)
}

/// Converts the values of a statement's parameters to their types.
fn values(prepared: &Prepared, params: Vec<Param>) -> Result<Vec<Value>, SqlError> {
    let types = prepared.parameters();
    if types.len() != params.len() {
        let message = format!("the statement has {} parameters, and {} are given", types.len(), params.len());
        return Err(SqlError::new("08P01", message));
    }
    let of_type = |(index, (param, ty)): (usize, (Param, &_))| encode::in_range(param.of_type(*ty, index)?);
    params.into_iter().zip(types).enumerate().map(of_type).collect()
}

/// Names the state that a statement leaves to the next statement of its session, if any.
fn kept(statement: &Statement) -> Option<&'static str> {
    match statement {
        Statement::Set { .. } | Statement::ResetAll | Statement::SetTransaction { .. } => Some("a setting"),
        Statement::Begin(_)
        | Statement::Commit
        | Statement::Rollback
        | Statement::Savepoint(_)
        | Statement::RollbackTo(_)
        | Statement::Release(_) => Some("a transaction"),
        Statement::Prepare { .. } | Statement::Execute { .. } | Statement::Deallocate(_) => {
            Some("a prepared statement")
        }
        Statement::Declare(_) | Statement::Fetch { .. } | Statement::Close(_) => Some("a cursor"),
        _ => None,
    }
}

/// Returns the number of rows in a command's tag: the last word of the tag, if that word is a number.
fn changed(tag: &str) -> u64 {
    tag.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn a_tag_counts_rows_if_it_has_a_number() {
        assert_eq!(changed("INSERT 0 12"), 12);
        assert_eq!(changed("UPDATE 3"), 3);
        assert_eq!(changed("CREATE TABLE"), 0);
    }
}
