//! One connection's conversation.
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
//! Answers gather in a buffer (`output`) that is written when it is full, when the client waits, and at the end of every
//! statement; messages that are here already are all answered before anything is written. After an error in the
//! extended protocol everything up to Sync is passed over. A statement ends before its time by cancellation or timeout
//! (`limit`).
//!
//! Statements between two Syncs (or in one Query) that are in no block are applied each for itself: an error among
//! them says whether something before it stands.

use std::{collections::HashMap, future::poll_fn, io, pin::pin, sync::Arc, task::Poll};

use pgwire::messages::{
    PgWireBackendMessage as Backend, PgWireFrontendMessage as Frontend,
    response::{ReadyForQuery, TransactionStatus},
    startup::ParameterStatus,
};
use quorate_sql::{
    cache::Prepared,
    error::{Result, SqlError, code},
    session::{Outcome, Session, Status},
    statement::{self, Field},
};
use quorate_table::value::Value;
use tokio::net::tcp;

use super::{
    extended::Portals,
    frame::{Frame, Frames},
    limit::{Cancel, Limit},
    output::{BUFFER_BYTES, Output},
};
use crate::metrics::Running;

pub(super) struct Connection<'a> {
    pub(super) frames: Frames<tcp::OwnedReadHalf>,
    pub(super) output: Output<'a>,
    pub(super) session: Session,
    pub(super) cancel: Arc<Cancel>,
    /// Of the statement that is executed.
    pub(super) limit: Limit,
    pub(super) statements: HashMap<String, Arc<Prepared>>,
    pub(super) portals: Portals,
    /// After an error in the extended protocol, until Sync.
    pub(super) skipping: bool,
    /// Writes applied outside a block since the last Sync.
    pub(super) applied: usize,
    /// The statement that is executed and not counted yet.
    pub(super) running: Option<Running>,
    /// It has ended here to go on in another process.
    pub(super) parting: bool,
}

impl Connection<'_> {
    pub(super) async fn run(&mut self) -> io::Result<()> {
        loop {
            let idle = !self.frames.is_ready();
            let message = self.next().await?;
            if idle {
                // It was meant for a statement that has ended.
                self.cancel.forget();
            }
            let message = match message {
                Frame::Message(message) => message,
                Frame::Bind(_) | Frame::Execute(_) if self.skipping => continue,
                Frame::Bind(body) => {
                    let done = self.bind(body.bind());
                    self.ended(done, None);
                    continue;
                }
                Frame::Execute(execute) => {
                    let text = self.text_of(&execute.portal);
                    let done = self.execute_portal(execute).await?;
                    self.ended(done, text);
                    continue;
                }
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
                    self.output.metrics.garbage.inc();
                    self.output.fatal(&SqlError::new(code::PROTOCOL_VIOLATION, what));
                    return self.output.flush().await;
                }
                Frame::Closed => return Ok(()),
            };
            match message {
                Frontend::Query(query) => {
                    self.skipping = false;
                    self.simple(&query.query).await?;
                    self.portals.remove("");
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
                    let (done, text) = self.extended(message);
                    self.ended(done, text);
                }
            }
        }
    }

    /// A message of the extended protocol has been handled; the text is that of its statement.
    fn ended(&mut self, done: Result<()>, text: Option<Arc<str>>) {
        match done {
            Ok(()) => self.succeeded(),
            Err(error) => {
                self.refuse(error, text.as_deref().unwrap_or_default());
                self.skipping = true;
            }
        }
    }

    /// The next message. Before waiting for it, everything that was answered is written.
    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        let is_between = self.cancel.hands_over() && self.is_between();
        if !is_between && self.frames.is_ready() && self.output.buffer.len() < BUFFER_BYTES {
            return self.frames.next().await;
        }
        self.output.flush().await?;
        let is_between = self.is_between();
        let mut next = pin!(self.frames.next());
        let frame = poll_fn(|cx| match self.cancel.poll_stopping(cx, is_between) {
            true => Poll::Ready(None),
            false => next.as_mut().poll(cx).map(Some),
        });
        if let Some(frame) = frame.await {
            return frame;
        }
        if !self.cancel.is_stopping() {
            self.parting = true;
            return Ok(Frame::Closed);
        }
        let error =
            SqlError::new(code::ADMIN_SHUTDOWN, "terminating connection: the gateway is shutting down");
        self.output.fatal(&error);
        self.output.flush().await?;
        Ok(Frame::Closed)
    }

    /// The end of a statement or pipeline.
    fn synchronized(&mut self) {
        self.applied = 0;
        if self.session.status() == Status::Idle {
            self.portals.clear();
        }
        self.ready();
    }

    pub(super) fn ready(&mut self) {
        let status = match self.session.status() {
            Status::Idle => TransactionStatus::Idle,
            Status::Block => TransactionStatus::Transaction,
            Status::Failed => TransactionStatus::Error,
        };
        self.output.put(Backend::ReadyForQuery(ReadyForQuery::new(status)));
    }

    pub(super) fn notices(&mut self) {
        for notice in self.session.notices() {
            self.output.notice(&notice);
        }
        for (name, value) in self.session.reported() {
            self.output.put(Backend::ParameterStatus(ParameterStatus::new(name, value)));
        }
    }

    /// Counts the statement that ran, if one did.
    pub(super) fn succeeded(&mut self) {
        if let Some(running) = self.running.take() {
            self.output.metrics.ended(Some(running), code::SUCCESSFUL_COMPLETION);
        }
    }

    /// Tells an error and what it means for the block.
    pub(super) fn refuse(&mut self, error: SqlError, text: &str) {
        self.output.metrics.ended(self.running.take(), &error.code);
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
    pub(super) async fn execute(&mut self, prepared: &Arc<Prepared>, values: &[Value]) -> Result<Outcome> {
        let statement = prepared.bound.as_ref().map(|bound| &bound.statement);
        self.running = Some(Running::begin(statement));
        self.limit = Limit::new(&self.cancel, self.session.timeout());
        let outcome = {
            // Pinned where it is: its state is large, and would be moved at every step inwards.
            let work = pin!(self.session.execute(prepared, values));
            self.limit.keep(work).await?
        };
        let writes = prepared.bound.as_ref().is_some_and(|bound| bound.statement.writes().is_some());
        if writes && !matches!(outcome, Outcome::CopyIn(_)) && self.session.status() == Status::Idle {
            self.applied += 1;
        }
        self.notices();
        Ok(outcome)
    }

    /// The columns of a statement's result; those of an EXECUTE or a FETCH are of what it names.
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
