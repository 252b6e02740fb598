//! Repeats statements that came together, if another transaction made them fail and their client has received
//! nothing of them.
//!
//! Such statements can fail with 40001 although nobody waits for their answers: if one of the statements
//! reads rows that an earlier one has written, or locks rows, COMMIT compares its result. The client could
//! only send the statements again, so the gateway executes them again itself, up to [`REPEATS_MAX`] times. It
//! keeps the statements in a [`Script`], with the place of each answer in the buffer. A repetition drops the
//! block, executes the statements once more, and puts the new answers in the places of the old ones. Answers
//! of other messages (Parse, Bind, Describe) stay.
//!
//! The script ends when the client receives something, and at a statement whose effect on the session a
//! rollback does not undo, such as PREPARE.

use std::{io, ops::Range, sync::Arc, time::Duration};

use quorate_sql::{cache::Prepared, error::Result, session::Status, statement::Statement};
use quorate_table::value::Value;
use rand::RngExt;
use tokio::time::sleep;

use super::{
    connection::Connection,
    script::{Script, ScriptStatement, Shape},
};

/// Maximum number of repetitions of statements that came together.
const REPEATS_MAX: u32 = 8;

/// Longest pause before the first repetition. It doubles with each repetition.
const REPEAT_PAUSE: Duration = Duration::from_millis(1);

impl Connection<'_> {
    /// Begins the script of a block that begins now.
    pub(super) fn begin_script(&mut self) {
        let progress = self.output.progress;
        self.script = Some(Script { statements: Vec::new(), progress, repeats: 0 });
    }

    /// Adds a statement to the script, after its answer was put into the buffer.
    pub(super) fn record(&mut self, prepared: &Arc<Prepared>, values: Vec<Value>, shape: Shape) {
        let Some(script) = &mut self.script else { return };
        let statement = prepared.bound.as_ref().map(|bound| &bound.statement);
        let is_undone_by_rollback = matches!(
            statement,
            Some(
                Statement::Query(_)
                    | Statement::Write(_)
                    | Statement::Set { .. }
                    | Statement::SetTransaction { .. }
                    | Statement::Show(_)
                    | Statement::Begin(_)
                    | Statement::Savepoint(_)
                    | Statement::Release(_)
            )
        );
        if !is_undone_by_rollback || self.session.status() == Status::Idle {
            self.script = None;
            return;
        }
        let answer = self.answer_from..self.output.buffer.len();
        let (prepared, is_deferred) = (prepared.clone(), self.session.defers());
        script.statements.push(ScriptStatement { prepared, values, shape, is_deferred, answer });
    }

    /// Whether an error is the conflict of a block that can be repeated. The caller calls
    /// [`Connection::repeat`] then.
    pub(super) fn can_repeat(&mut self) -> bool {
        let is_conflict = self.session.take_conflict();
        let Some(script) = &self.script else { return false };
        is_conflict && script.progress == self.output.progress && script.repeats < REPEATS_MAX
    }

    /// Drops the block and executes its statements once more, until they succeed, fail for another reason, or
    /// have been repeated [`REPEATS_MAX`] times.
    pub(super) async fn repeat(&mut self) -> io::Result<Result<()>> {
        let Some(mut script) = self.script.take() else { return Ok(Ok(())) };
        let old = self.output.buffer.split();
        loop {
            self.session.drop_block();
            self.output.gaps.clear();
            self.output.buffer.clear();
            let pause = rand::rng().random_range(Duration::ZERO..REPEAT_PAUSE * 2u32.pow(script.repeats));
            if let Err(error) = self.limit.run_io(sleep(pause)).await {
                return Ok(Err(error));
            }
            script.repeats += 1;
            self.session.begin_implicit();
            match self.execute_script(&script, &old).await? {
                Ok(places) => {
                    for (statement, place) in script.statements.iter_mut().zip(places) {
                        statement.answer = place;
                    }
                    self.script = Some(script);
                    return Ok(Ok(()));
                }
                Err(_) if self.session.take_conflict() && script.repeats < REPEATS_MAX => {}
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Executes the statements of a script. Their answers take the places of those in `old`. Returns the new
    /// places.
    async fn execute_script(&mut self, script: &Script, old: &[u8]) -> io::Result<Result<Vec<Range<usize>>>> {
        let mut copied = 0;
        let mut places = Vec::with_capacity(script.statements.len());
        for statement in &script.statements {
            self.output.buffer.extend_from_slice(&old[copied..statement.answer.start]);
            copied = statement.answer.end;
            let from = self.output.buffer.len();
            self.session.defer(statement.is_deferred);
            let outcome = match self.execute_once(&statement.prepared, &statement.values).await {
                Ok(outcome) => outcome,
                Err(error) => return Ok(Err(error)),
            };
            if let Err(error) = self.answer(outcome, &statement.shape).await? {
                return Ok(Err(error));
            }
            // The metrics have counted the statement already, so they do not count its repetition.
            self.running = None;
            places.push(from..self.output.buffer.len());
        }
        self.output.buffer.extend_from_slice(&old[copied..]);
        Ok(Ok(places))
    }
}
