//! Statements that come together, in one Query or before one Sync, are one implicit transaction, as in
//! PostgreSQL: all of them take effect at one position, or none does.
//!
//! ```text
//! Query "update …; update …"                                    two statements in one message
//! Bind Execute (update …) Bind Execute (update …) Sync          a pipeline
//! ```
//!
//! **Deferral.** The client needs no answer before the message or the pipeline ends. So the session defers
//! writes, and their answers leave gaps in the buffer of answers. Later answers come behind the gaps, and
//! nothing is written before the gaps are filled. At the end one message executes all writes, and the results
//! fill the gaps. No result is compared, so other transactions cannot make this message fail.
//!
//! **Conversation.** At a Flush, before the data of a COPY, and if 256 KiB of answers wait, the client has to
//! receive answers earlier. Then the session tries the deferred writes, and their results fill the gaps. From
//! then on the session compares results at the end.
//!
//! **Errors.** If a statement fails, the session tries the deferred writes before it. So each of these has
//! its answer, and an earlier failure comes first. If the message at the end fails, its error takes the place
//! of the first gap.
//!
//! **A statement alone.** Most pipelines are one statement before a Sync. The session executes this statement
//! without a block. So before a write is executed, the next message must have arrived
//! ([`Connection::is_alone`]). A read at READ COMMITTED needs no block in any case.

use std::{io, pin::pin};

use quorate_sql::{
    cache::Prepared,
    encode::Format,
    error::{Result, SqlError, code},
    finish::{RowBatch, Rows},
    session::{Status, WriteResult},
    statement::Field,
};

use super::{connection::Connection, limit::Limit, output::OutputBuffer, script::Shape};

/// Maximum number of unread bytes that are searched for the message behind a statement.
const LOOK_AHEAD_BYTES: usize = 64 << 10;

impl Connection<'_> {
    /// Decides how a portal's statement is executed: alone, or as a part of its block, and whether the client
    /// needs its result now.
    pub(super) async fn join(&mut self, prepared: &Prepared, needs_result: bool) -> io::Result<()> {
        let defers = match self.session.status() {
            Status::Idle if self.session.joins_block(prepared) && !self.is_alone().await? => {
                self.begin_block();
                true
            }
            Status::Block => {
                self.session.is_implicit()
                    || !self.output.gaps.is_empty()
                    || self.frames.following().is_some_and(|kind| kind != b'S')
            }
            Status::Idle | Status::Failed => false,
        };
        self.session.defer(defers && !needs_result);
        Ok(())
    }

    /// Opens a block for statements that come together, if no block is open.
    pub(super) fn begin_block(&mut self) {
        if self.session.status() == Status::Idle {
            self.session.begin_implicit();
            self.begin_script();
        }
    }

    /// Whether the statement that is about to be executed is the only one before its Sync. Waits until the
    /// next message begins to arrive.
    async fn is_alone(&mut self) -> io::Result<bool> {
        loop {
            if let Some(kind) = self.frames.following() {
                return Ok(kind == b'S');
            }
            if self.frames.unread() > LOOK_AHEAD_BYTES || !self.arrives().await? {
                return Ok(false);
            }
        }
    }

    /// Ends the implicit transaction of the statements that came together, and fills the gaps with their
    /// results.
    pub(super) async fn end_together(&mut self) -> io::Result<Result<()>> {
        self.session.defer(false);
        if !self.session.is_implicit() && self.output.gaps.is_empty() {
            self.script = None;
            return Ok(Ok(()));
        }
        self.limit = Limit::new(&self.cancel, self.session.time_limit(true));
        loop {
            let ended = {
                let work = pin!(self.session.end_implicit());
                self.limit.run(work).await
            };
            if ended.is_err() && self.can_repeat() {
                if let Err(error) = self.repeat().await? {
                    return Ok(Err(error));
                }
                continue;
            }
            self.script = None;
            self.output.fill(self.session.results());
            self.notices();
            return Ok(ended);
        }
    }

    /// Fills all gaps: tries the deferred writes.
    pub(super) async fn settle(&mut self) -> Result<()> {
        if self.output.gaps.is_empty() {
            return Ok(());
        }
        let settled = {
            let work = pin!(self.session.settle());
            self.limit.run(work).await
        };
        self.output.fill(self.session.results());
        settled
    }

    /// Fills all gaps because of an error behind them. Returns the error of an earlier statement, if one
    /// fails.
    pub(super) async fn earlier_error(&mut self, error: &SqlError) -> Option<SqlError> {
        // After a cancellation, and if the cluster does not answer, the earlier statements are not tried.
        let is_of_statement = !["40", "53", "57", "58", "XX"].contains(&&error.code[..2]);
        if self.output.gaps.is_empty() || !is_of_statement {
            return None;
        }
        self.limit = Limit::new(&self.cancel, self.session.time_limit(false));
        self.settle().await.err()
    }

    /// Fills all gaps if many answers wait.
    pub(super) async fn settle_if_full(&mut self) -> Result<()> {
        if self.output.is_held_full() { self.settle().await } else { Ok(()) }
    }

    /// Writes the answers of a statement if they are many. Gaps are filled before.
    pub(super) async fn flush_if_full(&mut self) -> io::Result<Result<()>> {
        if let Err(error) = self.settle_if_full().await {
            return Ok(Err(error));
        }
        if self.output.is_full() {
            return match self.limit.run_io(self.output.flush()).await {
                Ok(flushed) => flushed.map(Ok),
                Err(error) => Ok(Err(error)),
            };
        }
        Ok(Ok(()))
    }

    /// Sends at most `most` rows, and returns the number of rows sent. Fewer rows mean that the result has
    /// ended. `ready` has rows that were taken from `rows` and not sent yet.
    pub(super) async fn send_rows(
        &mut self,
        rows: &mut Rows,
        ready: &mut RowBatch,
        most: usize,
        shape: (&[Field], &[Format]),
    ) -> io::Result<Result<usize>> {
        let mut sent = 0;
        loop {
            match self.output.rows(rows, ready, most - sent, shape, &self.limit).await? {
                Ok(more) => sent += more,
                Err(error) => return Ok(Err(error)),
            }
            if !self.output.is_held_full() {
                return Ok(Ok(sent));
            }
            if let Err(error) = self.settle().await {
                return Ok(Err(error));
            }
        }
    }
}

impl OutputBuffer<'_> {
    /// Fills the first gaps with these results.
    pub(super) fn fill(&mut self, results: Vec<WriteResult>) {
        if results.is_empty() {
            return;
        }
        self.progress += 1;
        let old = self.buffer.split();
        let mut copied = 0;
        for result in results {
            let Some(gap) = self.gaps.pop_front() else { break };
            self.buffer.extend_from_slice(&old[copied..gap.at]);
            copied = gap.at;
            let Shape { fields, formats, is_described } = &gap.shape;
            if let Some(fields) = fields {
                if *is_described {
                    self.describe(fields, formats);
                }
                for row in &result.rows {
                    self.row(row, fields, formats)
                        .expect("the result of a transaction is shorter than a message of the protocol");
                }
            }
            self.complete(&result.tag);
            self.metrics.ended(gap.running, code::SUCCESSFUL_COMPLETION);
        }
        let before = self.buffer.len();
        self.buffer.extend_from_slice(&old[copied..]);
        for gap in &mut self.gaps {
            gap.at = before + (gap.at - copied);
        }
    }

    /// Drops all answers from the first gap on, because an error takes its place.
    pub(super) fn cut_at_gap(&mut self, code: &str) {
        if let Some(first) = self.gaps.front() {
            self.buffer.truncate(first.at);
        }
        for gap in self.gaps.drain(..) {
            self.metrics.ended(gap.running, code);
        }
    }
}
