//! One connection's conversation.
//!
//! ```text
//! client                                server
//!   startup                     ─────▶    authentication ok, parameters, key, ready
//!   Query "…; …"                ─────▶    (description, rows, complete)*, ready
//!   Parse Bind Describe Execute ─────▶    parsed, bound, description, rows, complete | suspended
//!   Sync                        ─────▶    ready
//!   COPY data, done             ─────▶    complete
//! ```
//!
//! Answers gather in a buffer that is written when it is full, when the client waits, and at the end of every
//! statement; messages that are here already are all answered before anything is written. After an error in the
//! extended protocol everything up to Sync is passed over.
//!
//! Statements between two Syncs (or in one Query) that are in no block are applied each for itself: an error among
//! them says whether something before it stands.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use bytes::BytesMut;
use pgwire::messages::{
    PgWireBackendMessage as Backend, PgWireFrontendMessage as Frontend,
    copy::{CopyData, CopyDone, CopyInResponse, CopyOutResponse},
    data::{DataRow, FieldDescription, NoData, ParameterDescription, RowDescription},
    extendedquery::{
        Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, PortalSuspended,
        TARGET_TYPE_BYTE_STATEMENT,
    },
    response::{
        CommandComplete, EmptyQueryResponse, ErrorResponse, NoticeResponse, ReadyForQuery, TransactionStatus,
    },
    startup::{
        Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey, Startup,
    },
};
use quorate_table::value::{Row, Value};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, tcp},
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{
    Server,
    encode::{self, Format},
    frame::{Frame, Frames, Opening},
};
use crate::{
    cache::Prepared,
    copy::{CopyIn, lines},
    error::{Result, SqlError, code},
    finish::Rows,
    metrics::Metrics,
    session::{Outcome, Session, Status},
    sql::{self, Field, parse},
    types::PgType,
};

/// How long a client may take to say who it is.
const STARTUP: Duration = Duration::from_secs(60);

/// Answers are written when there is so much of them.
const BUFFER_BYTES: usize = 64 << 10;

/// A portal: a statement with its arguments, and where its rows stand.
struct Portal {
    prepared: Arc<Prepared>,
    values: Vec<Value>,
    formats: Vec<Format>,
    fields: Option<Arc<Vec<Field>>>,
    state: State,
}

enum State {
    /// Not executed.
    Bound,
    /// Rows are coming; some may have been taken from the stream and not sent.
    Open(Box<Rows>, std::vec::IntoIter<Row>, &'static str),
    /// Rows a write returned.
    Written(std::vec::IntoIter<Row>, String),
    /// At its end.
    Done,
}

struct Connection<'a> {
    frames: Frames<tcp::OwnedReadHalf>,
    output: Output<'a>,
    session: Session,
    cancelled: Arc<Notify>,
    stopped: watch::Receiver<bool>,
    statements: BTreeMap<String, Arc<Prepared>>,
    portals: BTreeMap<String, Portal>,
    /// After an error in the extended protocol, until Sync.
    skipping: bool,
    /// Writes applied outside a block since the last Sync.
    applied: usize,
}

struct Output<'a> {
    stream: tcp::OwnedWriteHalf,
    buffer: BytesMut,
    row: BytesMut,
    metrics: &'a Metrics,
}

/// Talks to a client until one of both leaves.
pub(super) async fn serve(
    server: &Server,
    stream: TcpStream,
    full: bool,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let mut frames = Frames::new(read);
    let mut output =
        Output { stream: write, buffer: BytesMut::new(), row: BytesMut::new(), metrics: &server.metrics };
    let opened = timeout(STARTUP, open(&mut frames, &mut output, server)).await;
    let Ok(opened) = opened else { return Ok(()) };
    let Some(startup) = opened? else { return Ok(()) };
    if full {
        output.fatal(&SqlError::new("53300", "sorry, too many clients already"));
        return output.flush().await;
    }
    let registration = server.sessions.register();
    let session = match begin(&startup, server, registration.pid) {
        Ok(session) => session,
        Err(error) => {
            output.fatal(&error);
            return output.flush().await;
        }
    };
    let mut connection = Connection {
        frames,
        output,
        session,
        cancelled: registration.cancelled.clone(),
        stopped,
        statements: BTreeMap::new(),
        portals: BTreeMap::new(),
        skipping: false,
        applied: 0,
    };
    connection.greet(&startup, registration.pid, registration.secret);
    connection.run().await
}

/// The way to a startup packet; `None` when the connection is over without one.
async fn open(
    frames: &mut Frames<tcp::OwnedReadHalf>,
    output: &mut Output<'_>,
    server: &Server,
) -> io::Result<Option<Startup>> {
    loop {
        match frames.opening().await? {
            Opening::Encryption => {
                output.stream.write_all(b"N").await?;
            }
            Opening::Cancel(request) => {
                if let Some(secret) = request.secret_key.as_i32() {
                    server.sessions.cancel(request.pid, secret);
                }
                return Ok(None);
            }
            Opening::Startup(startup) => return Ok(Some(startup)),
            Opening::Closed => return Ok(None),
            Opening::Malformed(what) => {
                server.metrics.garbage.increment();
                tracing::debug!(what, "garbage at the SQL port");
                output.fatal(&SqlError::new(
                    code::PROTOCOL_VIOLATION,
                    format!("invalid startup packet: {what}"),
                ));
                output.flush().await?;
                return Ok(None);
            }
        }
    }
}

/// The session that a startup packet asks for.
fn begin(startup: &Startup, server: &Server, pid: i32) -> Result<Session> {
    let user = startup
        .parameters
        .get("user")
        .filter(|user| !user.is_empty())
        .ok_or_else(|| SqlError::new("28000", "no PostgreSQL user name specified in startup packet"))?;
    if startup
        .parameters
        .get("replication")
        .is_some_and(|value| !matches!(value.as_str(), "false" | "off" | "0"))
    {
        return Err(SqlError::unsupported("a replication connection"));
    }
    let database = startup.parameters.get("database").filter(|name| !name.is_empty()).unwrap_or(user);
    let mut session =
        Session::new(server.backend.clone(), server.cache.clone(), user.clone(), database.clone(), pid);
    for (name, value) in &startup.parameters {
        match name.as_str() {
            "user" | "database" | "replication" => {}
            "options" => {
                for (name, value) in options(value) {
                    session.start_with(&name, &value);
                }
            }
            name if name.starts_with("_pq_.") => {}
            name => session.start_with(name, value),
        }
    }
    Ok(session)
}

/// `-c name=value` and `--name=value` of the options parameter; a backslash keeps a space.
fn options(text: &str) -> Vec<(String, String)> {
    let mut words = vec![String::new()];
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => words.last_mut().expect("never empty").extend(characters.next()),
            c if c.is_whitespace() => words.push(String::new()),
            c => words.last_mut().expect("never empty").push(c),
        }
    }
    words
        .iter()
        .map(|word| word.strip_prefix("-c").or_else(|| word.strip_prefix("--")).unwrap_or(word))
        .filter_map(|word| word.split_once('='))
        .map(|(name, value)| (name.replace('-', "_"), value.to_owned()))
        .collect()
}

impl Connection<'_> {
    fn greet(&mut self, startup: &Startup, pid: i32, secret: i32) {
        const NEWEST_MINOR: u16 = 2;
        let extensions: Vec<String> =
            startup.parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect();
        if startup.protocol_number_minor > NEWEST_MINOR || !extensions.is_empty() {
            let newest = (3 << 16) | i32::from(NEWEST_MINOR.min(startup.protocol_number_minor));
            self.output
                .put(Backend::NegotiateProtocolVersion(NegotiateProtocolVersion::new(newest, extensions)));
        }
        self.output.put(Backend::Authentication(Authentication::Ok));
        for (name, value) in self.session.parameters() {
            self.output.put(Backend::ParameterStatus(ParameterStatus::new(name, value)));
        }
        self.output.put(Backend::BackendKeyData(BackendKeyData::new(pid, SecretKey::I32(secret))));
        self.notices();
        self.ready();
    }

    async fn run(&mut self) -> io::Result<()> {
        loop {
            let message = match self.next().await? {
                Frame::Message(message) => message,
                Frame::TooLong { kind, bytes } => {
                    let error = SqlError::new(
                        code::PROGRAM_LIMIT_EXCEEDED,
                        format!("a message of {bytes} bytes is too long"),
                    );
                    if !self.skipping {
                        self.refuse(error, "");
                    }
                    if kind == b'Q' {
                        self.ready();
                    } else {
                        self.skipping = true;
                    }
                    continue;
                }
                Frame::Malformed(what) => {
                    self.output.metrics.garbage.increment();
                    self.output.fatal(&SqlError::new(code::PROTOCOL_VIOLATION, what));
                    return self.output.flush().await;
                }
                Frame::Closed => return Ok(()),
            };
            match message {
                Frontend::Query(query) => {
                    self.skipping = false;
                    self.simple(&query.query).await?;
                    self.portals.clear();
                    self.synchronized();
                }
                Frontend::Sync(_) => {
                    self.skipping = false;
                    self.synchronized();
                }
                Frontend::Flush(_) => self.output.flush().await?,
                Frontend::Terminate(_) => return self.output.flush().await,
                // What is left of a COPY that failed.
                Frontend::CopyData(_) | Frontend::CopyDone(_) | Frontend::CopyFail(_) => {}
                message if self.skipping => drop(message),
                message => {
                    let (done, text) = self.extended(message).await?;
                    if let Err(error) = done {
                        self.refuse(error, &text);
                        self.skipping = true;
                    }
                }
            }
        }
    }

    /// The next message. Before waiting for it, everything that was answered is written.
    async fn next(&mut self) -> io::Result<Frame> {
        if self.frames.is_ready() && self.output.buffer.len() < BUFFER_BYTES {
            return self.frames.next().await;
        }
        self.output.flush().await?;
        let mut stopped = self.stopped.clone();
        let stopping = async move {
            // An error says that the server is gone, which is a stop as well.
            drop(stopped.wait_for(|stopped| *stopped).await);
        };
        tokio::select! {
            frame = self.frames.next() => frame,
            () = stopping => {
                let error = SqlError::new(
                    code::ADMIN_SHUTDOWN,
                    "terminating connection: the gateway is shutting down",
                );
                self.output.fatal(&error);
                self.output.flush().await?;
                Ok(Frame::Closed)
            }
        }
    }

    /// The end of a statement or pipeline.
    fn synchronized(&mut self) {
        self.applied = 0;
        if self.session.status() == Status::Idle {
            self.portals.clear();
        }
        self.ready();
    }

    fn ready(&mut self) {
        let status = match self.session.status() {
            Status::Idle => TransactionStatus::Idle,
            Status::Block => TransactionStatus::Transaction,
            Status::Failed => TransactionStatus::Error,
        };
        self.output.put(Backend::ReadyForQuery(ReadyForQuery::new(status)));
    }

    fn notices(&mut self) {
        for notice in self.session.notices() {
            self.output.notice(&notice);
        }
        for (name, value) in self.session.reported() {
            self.output.put(Backend::ParameterStatus(ParameterStatus::new(name, value)));
        }
    }

    /// Tells an error and what it means for the block.
    fn refuse(&mut self, error: SqlError, text: &str) {
        self.output.metrics.errors.increment();
        let mut error = self.session.failed(error);
        if self.applied > 0 && self.session.status() == Status::Idle {
            let stands = "What came before it in the same message or pipeline was applied and stands.";
            error.detail = Some(match error.detail.take() {
                Some(detail) => format!("{detail} {stands}"),
                None => stands.to_owned(),
            });
        }
        self.notices();
        self.output.error("ERROR", &error, text);
    }

    /// Executes a statement, unless it is cancelled or takes too long.
    async fn execute(&mut self, prepared: &Arc<Prepared>, values: &[Value]) -> Result<Outcome> {
        self.output.metrics.statements.increment();
        let limit = Limit::new(&self.cancelled, self.session.timeout());
        let outcome = limit.keep(self.session.execute(prepared, values)).await?;
        let writes = prepared.bound.as_ref().is_some_and(|bound| bound.statement.writes().is_some());
        if writes && !matches!(outcome, Outcome::CopyIn(_)) && self.session.status() == Status::Idle {
            self.applied += 1;
        }
        self.notices();
        Ok(outcome)
    }

    // The simple protocol.

    async fn simple(&mut self, text: &str) -> io::Result<()> {
        let statements = match parse::parse(text) {
            Ok(statements) => statements,
            Err(error) => {
                self.refuse(error, text);
                return Ok(());
            }
        };
        if statements.is_empty() {
            self.output.put(Backend::EmptyQueryResponse(EmptyQueryResponse::new()));
            return Ok(());
        }
        let alone = statements.len() == 1;
        for statement in statements {
            let prepared = if alone {
                self.session.prepare(text, Vec::new())
            } else {
                self.session.prepare_once(text, statement)
            };
            let done = match prepared {
                Ok(prepared) => self.simple_statement(&prepared).await?,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                self.refuse(error, text);
                return Ok(());
            }
        }
        Ok(())
    }

    async fn simple_statement(&mut self, prepared: &Arc<Prepared>) -> io::Result<Result<()>> {
        if !prepared.parameters().is_empty() {
            return Ok(Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1")));
        }
        let fields = self.fields(prepared);
        let outcome = match self.execute(prepared, &[]).await {
            Ok(outcome) => outcome,
            Err(error) => return Ok(Err(error)),
        };
        let fields = fields.unwrap_or_default();
        let formats = vec![Format::Text; fields.len()];
        match outcome {
            Outcome::Rows(mut rows, word) => {
                self.output.describe(&fields, &formats);
                let mut sent = 0;
                loop {
                    let limit = Limit::new(&self.cancelled, self.session.timeout());
                    match self.output.batch(&mut rows, &fields, &formats, limit).await? {
                        Ok(0) => break self.output.complete(&select_tag(word, sent)),
                        Ok(more) => sent += more,
                        Err(error) => return Ok(Err(error)),
                    }
                }
            }
            Outcome::Written(rows, tag) => {
                self.output.describe(&fields, &formats);
                for row in &rows {
                    self.output.row(row, &fields, &formats).await?;
                }
                self.output.complete(&tag);
            }
            Outcome::Done(tag) => self.output.complete(&tag),
            Outcome::Empty => self.output.put(Backend::EmptyQueryResponse(EmptyQueryResponse::new())),
            Outcome::CopyIn(copy) => return self.copy_in(copy).await,
            Outcome::CopyOut(rows, format, fields) => return self.copy_out(rows, &format, &fields).await,
        }
        Ok(Ok(()))
    }

    /// The columns of a statement's result, through an EXECUTE to the statement it names.
    fn fields(&self, prepared: &Prepared) -> Option<Arc<Vec<Field>>> {
        match prepared.bound.as_ref().map(|bound| &bound.statement) {
            Some(sql::Statement::Execute { name, .. }) => {
                self.session.named(name).and_then(|named| named.fields.clone())
            }
            _ => prepared.fields.clone(),
        }
    }

    // The extended protocol.

    /// Handles a message; the text is of the statement it is about, to point into.
    async fn extended(&mut self, message: Frontend) -> io::Result<(Result<()>, Arc<str>)> {
        let nothing: Arc<str> = Arc::from("");
        Ok(match message {
            Frontend::Parse(parse) => {
                let text = Arc::from(parse.query.as_str());
                (self.parse(parse), text)
            }
            Frontend::Bind(bind) => (self.bind(bind), nothing),
            Frontend::Describe(describe) => (self.describe(&describe), nothing),
            Frontend::Execute(execute) => {
                let name = execute.name.clone().unwrap_or_default();
                let text = self.portals.get(&name).map_or(nothing, |portal| portal.prepared.text.clone());
                (self.execute_portal(execute).await?, text)
            }
            Frontend::Close(close) => (self.close(close), nothing),
            other => {
                let what = format!("an unexpected message: {other:?}");
                (Err(SqlError::new(code::PROTOCOL_VIOLATION, what)), nothing)
            }
        })
    }

    fn parse(&mut self, parse: Parse) -> Result<()> {
        let name = parse.name.unwrap_or_default();
        if !name.is_empty() && self.statements.contains_key(&name) {
            return Err(SqlError::new(
                code::DUPLICATE_PREPARED_STATEMENT,
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let declared = parse
            .type_oids
            .iter()
            .map(|oid| match (*oid, PgType::from_oid(*oid)) {
                (0, _) | (_, Some(PgType::Unknown)) => Ok(None),
                (_, Some(ty)) => Ok(Some(ty)),
                (oid, None) => Err(SqlError::unsupported(format!("a parameter of the type with oid {oid}"))),
            })
            .collect::<Result<Vec<_>>>()?;
        self.statements.remove(&name);
        let prepared = self.session.prepare(&parse.query, declared)?;
        self.statements.insert(name, prepared);
        self.output.put(Backend::ParseComplete(ParseComplete::new()));
        Ok(())
    }

    fn statement(&self, name: &str) -> Result<&Arc<Prepared>> {
        self.statements.get(name).ok_or_else(|| {
            let message = match name {
                "" => "unnamed prepared statement does not exist".to_owned(),
                name => format!("prepared statement \"{name}\" does not exist"),
            };
            SqlError::new(code::INVALID_SQL_STATEMENT_NAME, message)
        })
    }

    fn bind(&mut self, bind: Bind) -> Result<()> {
        let statement = bind.statement_name.unwrap_or_default();
        let name = bind.portal_name.unwrap_or_default();
        if !name.is_empty() && self.portals.contains_key(&name) {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        let prepared = self.statement(&statement)?.clone();
        let types = prepared.parameters();
        if types.len() != bind.parameters.len() {
            return Err(SqlError::new(
                code::PROTOCOL_VIOLATION,
                format!(
                    "bind message supplies {} parameters, but prepared statement \"{statement}\" requires {}",
                    bind.parameters.len(),
                    types.len()
                ),
            ));
        }
        let formats = encode::formats(&bind.parameter_format_codes, types.len())?;
        let mut values = Vec::with_capacity(types.len());
        for (number, ((bytes, ty), format)) in bind.parameters.iter().zip(types).zip(formats).enumerate() {
            let value = encode::parameter(bytes.as_deref(), *ty, format, number)
                .map_err(|error| error.context(format!("unnamed portal parameter ${}", number + 1)))?;
            values.push(value);
        }
        let fields = self.fields(&prepared);
        let count = fields.as_ref().map_or(0, |fields| fields.len());
        let formats =
            if count == 0 { Vec::new() } else { encode::formats(&bind.result_column_format_codes, count)? };
        self.portals.insert(name, Portal { prepared, values, formats, fields, state: State::Bound });
        self.output.put(Backend::BindComplete(BindComplete::new()));
        Ok(())
    }

    fn describe(&mut self, describe: &Describe) -> Result<()> {
        let name = describe.name.as_deref().unwrap_or_default();
        let (fields, formats) = if describe.target_type == TARGET_TYPE_BYTE_STATEMENT {
            let prepared = self.statement(name)?.clone();
            let types = prepared.parameters().iter().map(|ty| ty.oid()).collect();
            self.output.put(Backend::ParameterDescription(ParameterDescription::new(types)));
            let fields = self.fields(&prepared);
            let formats = vec![Format::Text; fields.as_ref().map_or(0, |fields| fields.len())];
            (fields, formats)
        } else {
            let portal = self.portals.get(name).ok_or_else(|| no_portal(name))?;
            (portal.fields.clone(), portal.formats.clone())
        };
        match fields {
            Some(fields) => self.output.describe(&fields, &formats),
            None => self.output.put(Backend::NoData(NoData::new())),
        }
        Ok(())
    }

    async fn execute_portal(&mut self, execute: Execute) -> io::Result<Result<()>> {
        let name = execute.name.unwrap_or_default();
        let Some(mut portal) = self.portals.remove(&name) else { return Ok(Err(no_portal(&name))) };
        let most = usize::try_from(execute.max_rows).ok().filter(|rows| *rows > 0).unwrap_or(usize::MAX);
        if let State::Bound = portal.state {
            let outcome = match self.execute(&portal.prepared, &portal.values).await {
                Ok(outcome) => outcome,
                Err(error) => return Ok(Err(error)),
            };
            portal.state = State::Done;
            match outcome {
                Outcome::Rows(rows, word) => {
                    portal.state = State::Open(Box::new(rows), Vec::new().into_iter(), word);
                }
                Outcome::Written(rows, tag) => portal.state = State::Written(rows.into_iter(), tag),
                Outcome::Done(tag) => {
                    self.output.complete(&tag);
                    // A block that ended takes its portals along.
                    if self.session.status() == Status::Idle {
                        self.portals.clear();
                    }
                    return Ok(Ok(()));
                }
                Outcome::Empty => {
                    self.output.put(Backend::EmptyQueryResponse(EmptyQueryResponse::new()));
                    self.portals.insert(name, Portal { state: State::Bound, ..portal });
                    return Ok(Ok(()));
                }
                Outcome::CopyIn(copy) => return self.copy_in(copy).await,
                Outcome::CopyOut(rows, format, fields) => return self.copy_out(rows, &format, &fields).await,
            }
        }
        let fields = portal.fields.clone().unwrap_or_default();
        let mut sent = 0;
        match &mut portal.state {
            State::Bound => unreachable!("it was executed"),
            State::Done => {
                return Ok(Err(SqlError::new(
                    code::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("portal \"{name}\" cannot be run"),
                )));
            }
            State::Written(rows, tag) => {
                for row in rows.by_ref().take(most) {
                    self.output.row(&row, &fields, &portal.formats).await?;
                    sent += 1;
                }
                if sent == most {
                    self.output.put(Backend::PortalSuspended(PortalSuspended::new()));
                } else {
                    self.output.complete(tag);
                }
            }
            State::Open(rows, ready, word) => {
                while sent < most {
                    if let Some(row) = ready.next() {
                        self.output.row(&row, &fields, &portal.formats).await?;
                        sent += 1;
                        continue;
                    }
                    let limit = Limit::new(&self.cancelled, self.session.timeout());
                    match limit.keep(rows.next()).await {
                        Ok(batch) if batch.is_empty() => break,
                        Ok(batch) => *ready = batch.into_iter(),
                        Err(error) => return Ok(Err(error)),
                    }
                }
                if sent == most {
                    self.output.put(Backend::PortalSuspended(PortalSuspended::new()));
                } else {
                    let tag = select_tag(word, sent);
                    self.output.complete(&tag);
                }
            }
        }
        self.portals.insert(name, portal);
        Ok(Ok(()))
    }

    fn close(&mut self, close: Close) -> Result<()> {
        let name = close.name.unwrap_or_default();
        if close.target_type == TARGET_TYPE_BYTE_STATEMENT {
            self.statements.remove(&name);
        } else {
            self.portals.remove(&name);
        }
        self.output.put(Backend::CloseComplete(CloseComplete::new()));
        Ok(())
    }

    // COPY.

    async fn copy_in(&mut self, mut copy: Box<CopyIn>) -> io::Result<Result<()>> {
        let columns = copy.columns();
        self.output.put(Backend::CopyInResponse(CopyInResponse::new(0, columns as i16, vec![0; columns])));
        loop {
            let limit = Limit::new(&self.cancelled, None);
            let frame = match limit.keep_io(self.next()).await {
                Ok(frame) => frame?,
                Err(error) => return Ok(Err(error)),
            };
            match frame {
                Frame::Message(Frontend::CopyData(data)) => {
                    let limit = Limit::new(&self.cancelled, self.session.timeout());
                    if let Err(error) = limit.keep(self.session.copy_data(&mut copy, &data.data)).await {
                        return Ok(Err(error));
                    }
                }
                Frame::Message(Frontend::CopyDone(_)) => {
                    let limit = Limit::new(&self.cancelled, self.session.timeout());
                    return Ok(match limit.keep(self.session.copy_done(copy)).await {
                        Ok(tag) => {
                            if self.session.status() == Status::Idle {
                                self.applied += 1;
                            }
                            self.output.complete(&tag);
                            Ok(())
                        }
                        Err(error) => Err(error),
                    });
                }
                Frame::Message(Frontend::CopyFail(fail)) => {
                    return Ok(Err(SqlError::new(
                        code::QUERY_CANCELED,
                        format!("COPY from stdin failed: {}", fail.message),
                    )));
                }
                // The protocol lets a client send these at any time during COPY.
                Frame::Message(Frontend::Flush(_) | Frontend::Sync(_)) => {}
                Frame::Message(other) => {
                    let what = format!("unexpected message during COPY from stdin: {other:?}");
                    return Ok(Err(SqlError::new(code::PROTOCOL_VIOLATION, what)));
                }
                Frame::TooLong { bytes, .. } => {
                    let what = format!("a piece of COPY data of {bytes} bytes is too long");
                    return Ok(Err(SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, what)));
                }
                Frame::Malformed(what) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                Frame::Closed => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }

    async fn copy_out(
        &mut self,
        mut rows: Rows,
        format: &sql::copy::Format,
        fields: &[Field],
    ) -> io::Result<Result<()>> {
        let columns = fields.len();
        self.output.put(Backend::CopyOutResponse(CopyOutResponse::new(0, columns as i16, vec![0; columns])));
        if format.header {
            let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            let mut line = Vec::new();
            lines::write_header(format, &names, &mut line);
            self.output.put(Backend::CopyData(CopyData::new(line.into())));
        }
        let mut sent: u64 = 0;
        loop {
            let limit = Limit::new(&self.cancelled, self.session.timeout());
            let batch = match limit.keep(rows.next()).await {
                Ok(batch) => batch,
                Err(error) => return Ok(Err(error)),
            };
            if batch.is_empty() {
                break;
            }
            for row in &batch {
                let texts: Vec<Option<String>> = row.iter().map(Value::text).collect();
                let mut line = Vec::new();
                lines::write(format, &texts, &mut line);
                self.output.put(Backend::CopyData(CopyData::new(line.into())));
                self.output.flush_if_full().await?;
            }
            sent += batch.len() as u64;
        }
        self.output.metrics.rows.add(sent);
        self.output.put(Backend::CopyDone(CopyDone::new()));
        self.output.complete(&format!("COPY {sent}"));
        Ok(Ok(()))
    }
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new(code::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}

fn select_tag(word: &str, rows: usize) -> String {
    if word == "SELECT" { format!("SELECT {rows}") } else { word.to_owned() }
}

/// What ends a statement before its time.
struct Limit {
    cancelled: Arc<Notify>,
    deadline: Option<Instant>,
}

impl Limit {
    fn new(cancelled: &Arc<Notify>, timeout: Option<Duration>) -> Self {
        Limit { cancelled: cancelled.clone(), deadline: timeout.map(|timeout| Instant::now() + timeout) }
    }

    async fn keep<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.keep_io(work).await?
    }

    async fn keep_io<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let late = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.cancelled.notified() => {
                Err(SqlError::new(code::QUERY_CANCELED, "canceling statement due to user request"))
            }
            () = late => {
                Err(SqlError::new(code::QUERY_CANCELED, "canceling statement due to statement timeout"))
            }
        }
    }
}

impl Output<'_> {
    fn put(&mut self, message: Backend) {
        message.encode(&mut self.buffer).expect("messages of ours are within their limits");
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.stream.write_all(&self.buffer).await?;
            self.metrics.bytes.add(self.buffer.len() as u64);
            self.buffer.clear();
        }
        Ok(())
    }

    async fn flush_if_full(&mut self) -> io::Result<()> {
        if self.buffer.len() >= BUFFER_BYTES { self.flush().await } else { Ok(()) }
    }

    fn complete(&mut self, tag: &str) {
        self.put(Backend::CommandComplete(CommandComplete::new(tag.to_owned())));
    }

    fn describe(&mut self, fields: &[Field], formats: &[Format]) {
        let described = fields
            .iter()
            .zip(formats)
            .map(|(field, format)| {
                let (table, column) = field.origin.unwrap_or_default();
                FieldDescription::new(
                    field.name.clone(),
                    table as i32,
                    column,
                    field.ty.oid(),
                    field.ty.info().length,
                    -1,
                    i16::from(*format == Format::Binary),
                )
            })
            .collect();
        self.put(Backend::RowDescription(RowDescription::new(described)));
    }

    async fn row(&mut self, row: &[Value], fields: &[Field], formats: &[Format]) -> io::Result<()> {
        self.row.clear();
        for ((value, field), format) in row.iter().zip(fields).zip(formats) {
            encode::field(value, field.ty, *format, &mut self.row);
        }
        let message = DataRow::new(std::mem::take(&mut self.row), row.len() as i16);
        let encoded = pgwire::messages::Message::encode(&message, &mut self.buffer);
        encoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        self.row = message.data;
        self.metrics.rows.increment();
        self.flush_if_full().await
    }

    /// Sends the next rows; none when there are no more.
    async fn batch(
        &mut self,
        rows: &mut Rows,
        fields: &[Field],
        formats: &[Format],
        limit: Limit,
    ) -> io::Result<Result<usize>> {
        let batch = match limit.keep(rows.next()).await {
            Ok(batch) => batch,
            Err(error) => return Ok(Err(error)),
        };
        for row in &batch {
            self.row(row, fields, formats).await?;
        }
        Ok(Ok(batch.len()))
    }

    fn fatal(&mut self, error: &SqlError) {
        self.error("FATAL", error, "");
    }

    fn error(&mut self, severity: &str, error: &SqlError, text: &str) {
        let fields = fields_of(severity, error, text);
        self.put(Backend::ErrorResponse(ErrorResponse::new(fields)));
    }

    fn notice(&mut self, notice: &SqlError) {
        // A code of class 00 or 42 is a matter of course, anything else a warning.
        let severity = if matches!(&notice.code[..2], "00" | "42") { "NOTICE" } else { "WARNING" };
        self.put(Backend::NoticeResponse(NoticeResponse::new(fields_of(severity, notice, ""))));
    }
}

fn fields_of(severity: &str, error: &SqlError, text: &str) -> Vec<(u8, String)> {
    // A C string ends at a NUL, which a message may quote.
    let clean = |text: &str| text.replace('\0', "\u{fffd}");
    let mut fields = vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', error.code.to_string()),
        (b'M', clean(&error.message)),
    ];
    let position = error.place.filter(|_| !text.is_empty()).map(|place| place.offset(text).to_string());
    let more = [(b'D', &error.detail), (b'H', &error.hint), (b'P', &position), (b'W', &error.context)];
    fields
        .extend(more.into_iter().filter_map(|(kind, text)| text.as_deref().map(|text| (kind, clean(text)))));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_cut_at_spaces() {
        let expected = vec![
            ("statement_timeout".to_owned(), "5s".to_owned()),
            ("application_name".to_owned(), "a b".to_owned()),
        ];
        assert_eq!(options("-c statement_timeout=5s --application-name=a\\ b"), expected);
        assert_eq!(options("-cstatement_timeout=5s -c application_name=a\\ b"), expected);
    }
}
