//! The interface between SQL and the tables, which are written and read at a strength.
//!
//! Sessions bind statements to [`Operation`]s and finish the results. They know nothing of routers, ranges or
//! replicas. The cluster implements [`Backend`]. For tests and examples, [`crate::local::LocalBackend`]
//! implements it on one engine in this process.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use quorate_protocol::Fate;
pub use quorate_protocol::{
    RequestId, Strength,
    rubberband::{ClientError, WriteName, refusal},
};
use quorate_roles::tables::gateway;
use quorate_table::{
    alter::Alteration,
    engine::Answer,
    explain::Explanation,
    failure::Failure,
    operation::{Operation, ReceivedResult, Select, TableTransaction, Trial},
    schema::{KeyRange, Schema, TableId},
};
use thiserror::Error;
use tokio::sync::mpsc;

/// The tables at one moment. Clones share the tables. `version` changes with every change of the catalog.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Version of the catalog. It rises with every change of the catalog.
    pub version: u64,
    /// The tables, by name.
    pub tables: Vec<Arc<Table>>,
}

impl Catalog {
    /// Returns the table of this name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.iter().find(|table| table.schema.name == name)
    }
}

/// A table, with its number of replicas and rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The table's id.
    pub id: TableId,
    /// The table's definition.
    pub schema: Schema,
    /// Number of replicas of each range of the table.
    pub replicas: u32,
    /// Number of rows at the last report; `None` before the first report. The catalog shows the number as an
    /// estimate.
    pub rows: Option<u64>,
}

/// The reason why an operation has no answer.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OperationError {
    /// The operation has no answer, or its answer is no longer remembered. Only `error` says what may have
    /// happened.
    #[error("{}", words(error, about))]
    Unanswered {
        /// The error from the gateway's client.
        error: ClientError,
        /// More about the error: the reason, or the name of the process. May be empty.
        about: String,
    },
    /// The operation ran and failed deterministically. It changed nothing.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl OperationError {
    /// Creates the error for an error of the gateway's client that needs no explanation.
    pub fn from_client(error: ClientError) -> OperationError {
        OperationError::Unanswered { error, about: String::new() }
    }

    /// Creates the error for an operation that was not sent, with the reason.
    pub fn not_sent(why: impl Into<String>) -> OperationError {
        OperationError::Unanswered { error: ClientError::NotSent, about: why.into() }
    }

    /// Whether a transaction or a trial failed because another transaction had changed a result.
    pub fn is_conflict(&self) -> bool {
        matches!(self, OperationError::Failed(failure) if failure.sqlstate == Failure::CONFLICT)
    }

    /// Whether the outcome is unknown: the operation may have been executed, may still be executed, or may
    /// never be.
    pub fn is_open(&self) -> bool {
        matches!(self, OperationError::Unanswered { error: ClientError::MaybeApplied { .. }, .. })
    }

    /// Returns what may have happened to the operation. `None` if that is certain, because the operation ran
    /// and failed.
    pub fn fate(&self) -> Option<Fate> {
        match self {
            OperationError::Unanswered { error, .. } => error.fate(),
            OperationError::Failed(_) => None,
        }
    }
}

/// The answers of a read, by range.
#[derive(Debug)]
pub struct AnswerStream {
    /// The answers of each range.
    pub parts: Vec<RangeAnswers>,
}

/// The answers of one range, in the order of the select.
#[derive(Debug)]
pub enum RangeAnswers {
    /// All answers of the range, encoded as a replica sent them.
    Whole(smallvec::IntoIter<[Bytes; 1]>),
    /// Answers that are still coming.
    Stream(Box<dyn PieceStream>),
    /// The first answer, until it is taken, and the answers behind it.
    Begun(Option<Answer>, Box<RangeAnswers>),
}

/// A stream of pieces. Only a few pieces are under way at a time. A reader that requests no piece stops the
/// sender, and dropping the stream ends the read.
pub trait PieceStream: fmt::Debug + Send + Sync {
    /// Returns the next piece, or `None` after the last. The call also shows that the reader no longer needs
    /// the pieces before it.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, OperationError>>>;
}

impl PieceStream for mpsc::Receiver<Result<Piece, OperationError>> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, OperationError>>> {
        self.poll_recv(cx)
    }
}

/// The outcome of a trial.
#[derive(Debug)]
pub struct Attempt {
    /// The result of the statement, by range of ring keys, as it is compared when the transaction is
    /// executed.
    pub received: Vec<(KeyRange, ReceivedResult)>,
    /// The answers of the statement, or the reason why the statement fails.
    pub answers: Result<AnswerStream, Failure>,
}

impl Attempt {
    /// Waits until the answers to a trial have begun, and takes the fingerprints out of them.
    pub async fn of(mut stream: AnswerStream) -> Result<Attempt, OperationError> {
        let mut received = Vec::new();
        for part in &mut stream.parts {
            let (fingerprints, first) = match part.next().await {
                Some(Ok(Answer::Tried { received, answer })) => (received, Some(*answer)),
                Some(Ok(Answer::TrialFailed { ranges, failure })) => {
                    let failed = |range| (range, ReceivedResult::Failed(failure.sqlstate.clone()));
                    return Ok(Attempt {
                        received: ranges.into_iter().map(failed).collect(),
                        answers: Err(failure),
                    });
                }
                Some(Ok(_)) | None => {
                    return Err(Failure::malformed("the answer to a trial has another form").into());
                }
                Some(Err(error)) => return Err(error),
            };
            received.extend(
                fingerprints.into_iter().map(|(range, print)| (range, ReceivedResult::Success(print))),
            );
            let rest = std::mem::replace(part, RangeAnswers::none());
            *part = RangeAnswers::Begun(first, Box::new(rest));
        }
        Ok(Attempt { received, answers: Ok(stream) })
    }
}

/// A replica's report on its part of a read.
#[derive(Clone, Debug)]
pub struct Analyzed {
    /// The replica's name.
    pub replica: String,
    /// Time that the read waited until its batch began.
    pub waited: Duration,
    /// Time that the batch took.
    pub took: Duration,
    /// The steps that the replica took.
    pub explained: Explanation,
}

/// A piece of an answer.
#[derive(Clone, Debug)]
pub enum Piece {
    /// An answer that is decoded already.
    Answer(Answer),
    /// An encoded answer, as a replica sent it.
    Encoded(Bytes),
}

impl RangeAnswers {
    fn none() -> RangeAnswers {
        RangeAnswers::Whole(smallvec::SmallVec::new().into_iter())
    }

    /// Returns a single answer.
    pub fn begun(answer: Answer) -> RangeAnswers {
        RangeAnswers::Begun(Some(answer), Box::new(RangeAnswers::none()))
    }

    /// Returns the next piece, or `None` after the last.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, OperationError>>> {
        match self {
            RangeAnswers::Whole(pieces) => Poll::Ready(pieces.next().map(|piece| Ok(Piece::Encoded(piece)))),
            RangeAnswers::Stream(pieces) => pieces.poll_next(cx),
            RangeAnswers::Begun(first, rest) => match first.take() {
                Some(first) => Poll::Ready(Some(Ok(Piece::Answer(first)))),
                None => rest.poll_next(cx),
            },
        }
    }

    /// Returns the next answer, or `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Answer, OperationError>> {
        let piece = poll_fn(|cx| self.poll_next(cx)).await?;
        Some(piece.and_then(Piece::answer))
    }
}

/// Returns the next piece of any range that has a piece ready. `None` when all ranges have ended.
pub async fn next_of(parts: &mut Vec<RangeAnswers>) -> Option<Result<Piece, OperationError>> {
    poll_fn(|cx| {
        let mut index = 0;
        while index < parts.len() {
            match parts[index].poll_next(cx) {
                Poll::Ready(Some(piece)) => return Poll::Ready(Some(piece)),
                Poll::Ready(None) => {
                    parts.swap_remove(index);
                }
                Poll::Pending => index += 1,
            }
        }
        if parts.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

impl Piece {
    /// Returns the answer, decoded if the piece is encoded.
    pub fn answer(self) -> Result<Answer, OperationError> {
        let encoded = match self {
            Piece::Answer(answer) => return Ok(answer),
            Piece::Encoded(bytes) => bytes,
        };
        match gateway::answer(&encoded) {
            Some(Answer::Failed(failure)) => Err(OperationError::Failed(failure)),
            Some(answer) => Ok(answer),
            None => {
                Err(OperationError::Failed(Failure::malformed("the bytes of an answer cannot be decoded")))
            }
        }
    }
}

/// A change of the tables.
#[derive(Clone, Debug, PartialEq)]
pub enum Definition {
    /// Creates a table.
    Create {
        /// The table's definition.
        schema: Schema,
        /// The number of replicas; `None` for the cluster's default.
        replicas: Option<u32>,
    },
    /// Drops a table.
    Drop {
        /// The table.
        table: TableId,
    },
    /// Gives a table a new definition and a new number ([`quorate_table::alter`]).
    Alter {
        /// The table.
        table: TableId,
        /// The new definition.
        alteration: Alteration,
    },
}

/// The cluster, from the view of SQL.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Whether the backend knows the tables. As long as it does not, an empty catalog says nothing about
    /// which tables exist.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns the current tables, as far as this gateway has delivered the total order.
    fn catalog(&self) -> Arc<Catalog>;

    /// Returns an id for the next write of this gateway. No id is returned twice.
    fn request_id(&self) -> RequestId;

    /// Returns the id of a write whose name an application made up, by a digest of that name.
    fn made_up(&self, digest: u128) -> RequestId {
        RequestId::made_up(digest)
    }

    /// Whether any gateway, this one included, may ever have returned this id.
    fn may_have_issued(&self, id: RequestId) -> bool;

    /// Changes the tables: all changes take effect at one position, or none does. Returns once
    /// [`Backend::catalog`] shows them. Fails with 42P01 if a table that is dropped or altered has ended
    /// already, and with 42P07 if a name is not free; then nothing was changed.
    async fn define(&self, id: RequestId, definitions: Vec<Definition>) -> Result<(), OperationError>;

    /// Executes a write once, even if it is sent repeatedly under the same name. Returns one answer per
    /// range.
    async fn write(&self, name: WriteName, operation: Operation) -> Result<Vec<Answer>, OperationError>;

    /// Executes a transaction once, even if it is sent repeatedly under the same name. Returns the answers
    /// of the ranges, each with one result per statement ([`Answer::Written`]). Fails with 40001 if a
    /// result that the client received is no longer true.
    async fn transact(
        &self,
        name: WriteName,
        transaction: TableTransaction,
    ) -> Result<Vec<Answer>, OperationError>;

    /// Tries a statement of a transaction that is not sent yet, at a strength. Fails with 40001 if a result
    /// that the client received is no longer true. Nothing is changed.
    async fn attempt(&self, strength: Strength, trial: Trial) -> Result<Attempt, OperationError>;

    /// Begins a read. A sequential read sees every write that was acknowledged before it began.
    async fn read(&self, strength: Strength, select: &Select) -> Result<AnswerStream, OperationError>;

    /// Begins a read of a whole table, whose operation is already encoded.
    async fn read_encoded(
        &self,
        strength: Strength,
        table: TableId,
        operation: Bytes,
    ) -> Result<AnswerStream, OperationError> {
        let decoded = gateway::operation(&operation);
        let Some(Operation::Select(select)) = decoded.filter(|operation| operation.table() == table) else {
            return Err(OperationError::Failed(Failure::malformed("the bytes of a read cannot be decoded")));
        };
        self.read(strength, &select).await
    }

    /// Executes a read. Returns how each replica found its rows, instead of the rows.
    async fn analyze(&self, strength: Strength, select: &Select) -> Result<Vec<Analyzed>, OperationError>;

    /// Waits for this time. A backend whose callers may have any executor has a timer of its own.
    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Describes the destinations of an operation and the ranges that were pruned, one per line.
    fn explain(&self, operation: &Operation) -> Vec<String>;
}

/// Returns the message for an error. `about` has the reason or the process.
pub(crate) fn words(error: &ClientError, about: &str) -> String {
    let of_read = |why: &str| format!("the read failed: {why}");
    match *error {
        ClientError::NotSent => format!("the operation was not sent: {about}"),
        ClientError::MaybeApplied { .. } => "the write may have been applied".to_owned(),
        ClientError::Rejected(refusal::NO_RING) => format!("the ring is not founded: {about}"),
        ClientError::Rejected(why) => match refusal::as_range(why) {
            Some(low) => format!("the range of ring keys from {low:#018x} has no live replica"),
            None => format!("the cluster refused the operation (reason {})", why.0),
        },
        ClientError::Expired => "the session of this request has expired; nothing was executed".to_owned(),
        ClientError::OtherStatement => "the request id belongs to another statement".to_owned(),
        ClientError::Forgotten { applied: true } => {
            "the write was applied, but its answer is no longer stored".to_owned()
        }
        ClientError::Forgotten { applied: false } => {
            "the write failed, but the reason is no longer stored".to_owned()
        }
        ClientError::Unanswered => of_read("no replica reported in time that it works on the read"),
        ClientError::Broken => of_read("a replica was lost in the middle of its answer"),
        ClientError::Unreached { .. } => {
            format!("this gateway cannot reach {about}, which holds rows that the query needs")
        }
        ClientError::Died { again: true, .. } => {
            format!(
                "storage process {about} ended while it executed this query, as another process did before: \
                 the query is not sent to a third process"
            )
        }
        ClientError::Died { again: false, .. } => format!(
            "storage process {about} ended while it executed this query. The query is not sent to another replica, \
             because some rows would be lost if that replica ended, too"
        ),
        ClientError::NoRoom { .. } => {
            "out of memory: a storage process has no room for more results that clients have not read yet"
                .to_owned()
        }
        ClientError::Untaken { .. } => {
            "canceling statement because the client did not read its result in time".to_owned()
        }
    }
}
