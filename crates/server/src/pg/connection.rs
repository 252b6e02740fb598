//! The conversation on one connection.
//!
//! ```text
//! client                                server
//!   startup                     ─────▶    authentication ok, parameters, key, ready        startup.rs
//!   Query "…; …"                ─────▶    (description, rows, complete)*, ready            simple.rs
//!   Parse Bind Describe Execute ─────▶    parsed, bound, description, rows, complete | …   extended.rs
//!   Sync                        ─────▶    ready
//!   COPY data, done             ─────▶    complete                                         bulk.rs
//! ```
//!
//! Answers gather in a buffer (`output`). The connection writes the buffer when it is full, before it waits
//! for the client, and at the end of every statement. It answers all messages that have already arrived
//! before it writes anything. After an error in the extended protocol, it skips all messages up to Sync. A
//! cancellation or a timeout ends a statement early (`limit`).
//!
//! Statements between two Syncs, or in one Query, are one transaction (`together`). Definitions of tables,
//! and a COPY that begins a pipeline, are applied at once. So the error of a later statement says that they
//! stay applied.

use std::{collections::HashMap, future::poll_fn, io, pin::pin, sync::Arc, task::Poll};

use pgwire::messages::{
    PgWireBackendMessage as Backend, PgWireFrontendMessage as Frontend,
    response::{ReadyForQuery, TransactionStatus},
    startup::ParameterStatus,
};
use quorate_sql::{
    cache::Prepared,
    error::{Result, SqlError, code},
    session::{Session, StatementOutcome, Status},
    statement::{self, Field},
};
use quorate_table::value::Value;
use tokio::{net::tcp, time::sleep};

use super::{
    frame::{Frame, Frames},
    gap::Gap,
    limit::{Cancel, Limit},
    output::{BUFFER_BYTES, OutputBuffer},
    portals::{NamedStatement, Portals},
    script::{Script, Shape},
};
use crate::metrics::ExecutingStatement;

pub(super) struct Connection<'a> {
    pub(super) frames: Frames<tcp::OwnedReadHalf>,
    pub(super) output: OutputBuffer<'a>,
    pub(super) session: Session,
    pub(super) cancel: Arc<Cancel>,
    /// The cancellation and timeout of the current statement.
    pub(super) limit: Limit,
    pub(super) statements: HashMap<String, NamedStatement>,
    pub(super) portals: Portals,
    /// Whether messages are skipped until Sync, after an error in the extended protocol.
    pub(super) skipping: bool,
    /// Number of writes, definitions and commits that were applied since the last Sync.
    pub(super) applied: usize,
    /// The current statement, as long as the metrics have not counted it.
    pub(super) running: Option<ExecutingStatement>,
    /// The statements of the present block, as long as the client has received nothing of it.
    pub(super) script: Option<Script>,
    /// The offset in the buffer at which the answer of the current statement begins.
    pub(super) answer_from: usize,
    /// Whether the client has all answers, and no message was read since.
    pub(super) is_ready: bool,
    /// Whether the connection ends, because its block took too long.
    pub(super) is_over: bool,
    /// Whether the connection was handed over, so that another process continues it.
    pub(super) handed_over: bool,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        mut frames: Frames<tcp::OwnedReadHalf>,
        output: OutputBuffer<'a>,
        session: Session,
        cancel: &Arc<Cancel>,
    ) -> Connection<'a> {
        frames.count_into(session.account());
        Connection {
            frames,
            output,
            session,
            limit: Limit::new(cancel, None),
            cancel: cancel.clone(),
            statements: HashMap::new(),
            portals: Portals::default(),
            skipping: false,
            applied: 0,
            running: None,
            script: None,
            answer_from: 0,
            is_ready: false,
            is_over: false,
            handed_over: false,
        }
    }
}

impl Connection<'_> {
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            if self.is_over {
                return self.output.flush().await;
            }
            let idle = !self.frames.is_ready();
            let message = self.next().await?;
            self.is_ready = false;
            if idle {
                // A cancellation that came while the connection was idle was meant for a statement that has
                // already ended.
                self.cancel.clear();
            }
            let message = match message {
                Frame::Message(message) => message,
                Frame::Bind(_) | Frame::Execute(_) | Frame::TooLong { .. } | Frame::Refused { .. }
                    if self.skipping =>
                {
                    continue;
                }
                Frame::Bind(body) => {
                    let done = self.bind(body.bind());
                    self.conclude(done, None).await;
                    continue;
                }
                Frame::Execute(execute) => {
                    let text = self.text_of(&execute.portal);
                    let done = self.execute_portal(execute).await?;
                    self.conclude(done, text).await;
                    continue;
                }
                // The client was still sending data when its COPY failed. The data is ignored.
                Frame::TooLong { kind: b'd' | b'c' | b'f', .. }
                | Frame::Refused { kind: b'd' | b'c' | b'f', .. } => continue,
                Frame::TooLong { kind, bytes } => {
                    let message = format!(
                        "the client sent a message of {bytes} bytes, which is longer than the gateway accepts"
                    );
                    self.refuse_message(kind, SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, message)).await?;
                    continue;
                }
                Frame::Refused { kind, error } => {
                    self.refuse_message(kind, error).await?;
                    continue;
                }
                Frame::Malformed(what) => {
                    self.output.metrics.malformed_connections.inc();
                    self.output.fatal(&SqlError::new(code::PROTOCOL_VIOLATION, what));
                    return self.output.flush().await;
                }
                Frame::Closed => return Ok(()),
            };
            match message {
                // Only Sync ends the skipping. A client that sends a Query before the Sync expects the
                // statement before the Query to succeed.
                Frontend::Query(_) | Frontend::Flush(_) if self.skipping => {}
                Frontend::Query(query) => {
                    self.simple(&query.query).await?;
                    self.portals.remove("");
                    self.end_of_pipeline().await?;
                }
                Frontend::Sync(_) => {
                    self.skipping = false;
                    self.end_of_pipeline().await?;
                }
                Frontend::Flush(_) => {
                    self.limit = Limit::new(&self.cancel, self.session.time_limit(false));
                    let done = self.settle().await;
                    self.conclude(done, None).await;
                    self.output.flush().await?;
                }
                Frontend::Terminate(_) => return self.output.flush().await,
                // The client was still sending data when its COPY failed. The data is ignored.
                Frontend::CopyData(_) | Frontend::CopyDone(_) | Frontend::CopyFail(_) => {}
                message if self.skipping => drop(message),
                message => {
                    let (done, text) = self.extended(message);
                    self.conclude(done, text).await;
                }
            }
        }
    }

    /// Refuses a Query or a message of the extended protocol that was not decoded.
    async fn refuse_message(&mut self, kind: u8, error: SqlError) -> io::Result<()> {
        self.refuse(error, "").await;
        if kind == b'Q' {
            self.end_of_pipeline().await?;
        } else {
            self.skipping = true;
        }
        Ok(())
    }

    /// Concludes a message of the extended protocol. `text` is the text of the message's statement, for the
    /// position in an error.
    async fn conclude(&mut self, done: Result<()>, text: Option<Arc<str>>) {
        let done = match done {
            Ok(()) => {
                self.succeeded();
                self.settle_if_full().await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            self.refuse(error, text.as_deref().unwrap_or_default()).await;
            self.skipping = true;
        }
    }

    /// Returns the next message. Before the connection waits for the client, all answers are written.
    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        let is_between = self.cancel.hands_over() && self.is_between();
        if !is_between && self.frames.is_ready() && self.output.buffer.len() < BUFFER_BYTES {
            return self.frames.next().await;
        }
        self.output.flush().await?;
        let is_between = self.is_between();
        let patience = self.session.patience(self.is_ready);
        let mut late = pin!(patience.map(|limit| sleep(limit.left)));
        let mut next = pin!(self.frames.next());
        let frame = poll_fn(|cx| {
            if self.cancel.poll_stopping(cx, is_between) {
                return Poll::Ready(Err(None));
            }
            if let Poll::Ready(frame) = next.as_mut().poll(cx) {
                return Poll::Ready(Ok(frame));
            }
            match late.as_mut().as_pin_mut().map(|late| late.poll(cx)) {
                Some(Poll::Ready(())) => Poll::Ready(Err(patience.map(|limit| limit.kind.error()))),
                _ => Poll::Pending,
            }
        });
        let error = match frame.await {
            Ok(frame) => return frame,
            Err(Some(error)) => error,
            Err(None) if !self.cancel.is_stopping() => {
                self.handed_over = true;
                return Ok(Frame::Closed);
            }
            Err(None) => {
                SqlError::new(code::ADMIN_SHUTDOWN, "terminating connection: the gateway is shutting down")
            }
        };
        self.output.fatal(&error);
        self.output.flush().await?;
        Ok(Frame::Closed)
    }

    /// Waits for more bytes from the client. Returns whether any have arrived; otherwise the connection has
    /// ended, or has to end.
    pub(super) async fn arrives(&mut self) -> io::Result<bool> {
        self.output.flush().await?;
        let mut more = pin!(self.frames.arrives());
        poll_fn(|cx| match self.cancel.poll_stopping(cx, false) {
            true => Poll::Ready(Ok(false)),
            false => more.as_mut().poll(cx),
        })
        .await
    }

    /// Ends a Query or a pipeline.
    async fn end_of_pipeline(&mut self) -> io::Result<()> {
        if let Err(error) = self.end_together().await? {
            self.refuse(error, "").await;
        }
        if self.is_over {
            return Ok(());
        }
        self.applied = 0;
        if self.session.status() == Status::Idle {
            self.portals.clear();
        }
        self.ready();
        Ok(())
    }

    pub(super) fn ready(&mut self) {
        let status = match self.session.status() {
            Status::Idle => TransactionStatus::Idle,
            Status::Block => TransactionStatus::Transaction,
            Status::Failed => TransactionStatus::Error,
        };
        self.output.put(Backend::ReadyForQuery(ReadyForQuery::new(status)));
        self.is_ready = true;
    }

    pub(super) fn notices(&mut self) {
        for notice in self.session.notices() {
            self.output.notice(&notice);
        }
        for (name, value) in self.session.reported() {
            self.output.put(Backend::ParameterStatus(ParameterStatus::new(name, value)));
        }
    }

    /// Counts the current statement as successful, if there is one.
    pub(super) fn succeeded(&mut self) {
        if let Some(running) = self.running.take() {
            self.output.metrics.ended(Some(running), code::SUCCESSFUL_COMPLETION);
        }
    }

    /// Leaves a gap for the result of a write that was deferred.
    pub(super) fn leave_gap(&mut self, shape: Shape) {
        let (at, running) = (self.output.buffer.len(), self.running.take());
        self.output.gaps.push_back(Gap { at, shape, running });
    }

    /// Sends an error to the client. An open block fails, and an implicit block is rolled back.
    pub(super) async fn refuse(&mut self, error: SqlError, text: &str) {
        self.script = None;
        self.session.take_conflict();
        self.output.metrics.ended(self.running.take(), &error.code);
        let (error, text) = match self.earlier_error(&error).await {
            Some(earlier) => (earlier, ""),
            None => (error, text),
        };
        self.output.cut_at_gap(&error.code);
        self.is_over = error.code == code::TRANSACTION_TIMEOUT;
        let mut error = self.session.failed(error);
        self.session.roll_back_implicit();
        if self.applied > 0 && self.session.status() == Status::Idle {
            let stands = "The message or pipeline was applied up to its last COMMIT, COPY or definition, \
                          which cannot be rolled back.";
            error.detail = Some(match error.detail.take() {
                Some(detail) => format!("{detail} {stands}"),
                None => stands.to_owned(),
            });
        }
        self.notices();
        self.output.error(if self.is_over { "FATAL" } else { "ERROR" }, &error, text);
    }

    /// Executes a statement. If another transaction makes the statement's block fail, repeats the block if
    /// [`Connection::can_repeat`] allows it.
    pub(super) async fn execute(
        &mut self,
        prepared: &Arc<Prepared>,
        values: &[Value],
    ) -> io::Result<Result<StatementOutcome>> {
        loop {
            self.answer_from = self.output.buffer.len();
            let outcome = self.execute_once(prepared, values).await;
            if outcome.is_ok() || !self.can_repeat() {
                return Ok(outcome);
            }
            let defers = self.session.defers();
            if let Err(error) = self.repeat().await? {
                return Ok(Err(error));
            }
            self.session.defer(defers);
        }
    }

    /// Executes a statement. Fails if the client cancels the statement or its timeout passes.
    pub(super) async fn execute_once(
        &mut self,
        prepared: &Arc<Prepared>,
        values: &[Value],
    ) -> Result<StatementOutcome> {
        let statement = prepared.bound.as_ref().map(|bound| &bound.statement);
        let commits = matches!(statement, Some(statement::Statement::Commit));
        let commits_writes = commits && self.session.has_unsent_writes();
        self.running = Some(ExecutingStatement::begin(statement));
        self.limit = Limit::new(&self.cancel, self.session.time_limit(commits));
        let outcome = {
            // The future is pinned here, because it is large and would otherwise be copied at each inner
            // call.
            let work = pin!(self.session.execute(prepared, values));
            self.limit.run(work).await
        };
        self.output.fill(self.session.results());
        let outcome = outcome?;
        let writes = prepared.bound.as_ref().is_some_and(|bound| bound.statement.writes().is_some());
        let applied = (writes && !matches!(outcome, StatementOutcome::CopyIn(_))) || commits_writes;
        if applied && self.session.status() == Status::Idle {
            self.applied += 1;
        }
        self.notices();
        Ok(outcome)
    }

    /// Returns the columns of a statement's result. For EXECUTE and FETCH, these are the columns of the named
    /// statement or cursor.
    pub(super) fn fields(&self, prepared: &Prepared) -> Option<Arc<Vec<Field>>> {
        match prepared.bound.as_ref().map(|bound| &bound.statement) {
            Some(statement::Statement::Execute { name, .. }) => {
                self.session.named(name).and_then(|named| named.fields.clone())
            }
            Some(statement::Statement::Fetch { name, .. }) => self.session.cursor_fields(name),
            _ => prepared.fields.clone(),
        }
    }
}
