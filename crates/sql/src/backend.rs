//! What stands behind the SQL door: tables somewhere, written and read at a strength.
//!
//! The door binds statements to [`Operation`]s and finishes results; it knows nothing of routers, ranges or
//! replicas. The cluster implements [`Backend`]; [`crate::local::LocalBackend`] does so on one engine in this
//! process, for tests and examples.

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
use quorate_table::{
    engine::Answer,
    explain::Explained,
    failure::Failure,
    operation::{Operation, Select},
    schema::{Schema, TableId},
};
use quorate_tables::gateway;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::fault;

/// The tables at one moment. Cheap to share; `version` changes whenever anything in it does.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Rises with every change.
    pub version: u64,
    /// The tables by name.
    pub tables: Vec<Arc<Table>>,
}

impl Catalog {
    /// The table of this name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.iter().find(|table| table.schema.name == name)
    }
}

/// A table and how it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its number.
    pub id: TableId,
    /// Its definition.
    pub schema: Schema,
    /// How many replicas each of its ranges has.
    pub replicas: u32,
    /// Rows at last report, `None` when nobody counted yet; an estimate for the catalog.
    pub rows: Option<u64>,
}

/// Why an operation has no answer.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Fault {
    /// It has none, or none that is known any more. The error decides what may have happened; nothing beside it does.
    #[error("{}", fault::words(error, about))]
    Unanswered {
        /// What the gateway's client says.
        error: ClientError,
        /// More of it: why, or what people call the process. Empty: nothing.
        about: String,
    },
    /// It ran and failed, deterministically; nothing changed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl Fault {
    /// One that the error says all of.
    pub fn of(error: ClientError) -> Fault {
        Fault::Unanswered { error, about: String::new() }
    }

    /// It was not sent, for this reason.
    pub fn not_sent(why: impl Into<String>) -> Fault {
        Fault::Unanswered { error: ClientError::NotSent, about: why.into() }
    }

    /// Whether it was executed once, will be, or not at all: nobody knows.
    pub fn is_open(&self) -> bool {
        matches!(self, Fault::Unanswered { error: ClientError::MaybeApplied { .. }, .. })
    }

    /// What may have happened to the operation; none if that is known: it was executed, or failed by itself.
    pub fn fate(&self) -> Option<Fate> {
        match self {
            Fault::Unanswered { error, .. } => error.fate(),
            Fault::Failed(_) => None,
        }
    }
}

/// The results of a read, by range.
#[derive(Debug)]
pub struct AnswerStream {
    /// One per range.
    pub parts: Vec<Part>,
}

/// One range's answers, in the order of the select.
#[derive(Debug)]
pub enum Part {
    /// They are all here, as they came from a replica.
    Whole(smallvec::IntoIter<[Bytes; 1]>),
    /// They come.
    Stream(Box<dyn Pieces>),
}

/// Pieces that come. Few are ever under way: a reader who waits stops the sender, and one who drops this ends the read.
pub trait Pieces: fmt::Debug + Send + Sync {
    /// The next piece; `None` behind the last. Asking for it says that those before are done with.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Fault>>>;
}

impl Pieces for mpsc::Receiver<Result<Piece, Fault>> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Fault>>> {
        self.poll_recv(cx)
    }
}

/// How a replica did its part of a read.
#[derive(Clone, Debug)]
pub struct Analyzed {
    /// Its name.
    pub replica: String,
    /// How long the read lay there until the batch that it was part of began.
    pub waited: Duration,
    /// How long that batch took.
    pub took: Duration,
    /// What was done.
    pub explained: Explained,
}

/// A piece of an answer.
#[derive(Clone, Debug)]
pub enum Piece {
    /// As it is.
    Answer(Answer),
    /// As it came from a replica.
    Encoded(Bytes),
}

impl Part {
    /// The next piece; `None` behind the last.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Fault>>> {
        match self {
            Part::Whole(pieces) => Poll::Ready(pieces.next().map(|piece| Ok(Piece::Encoded(piece)))),
            Part::Stream(pieces) => pieces.poll_next(cx),
        }
    }

    /// The next answer; `None` behind the last.
    pub async fn next(&mut self) -> Option<Result<Answer, Fault>> {
        let piece = poll_fn(|cx| self.poll_next(cx)).await?;
        Some(piece.and_then(Piece::answer))
    }
}

/// The next piece of whichever part has one; `None` when all have ended.
pub async fn next_of(parts: &mut Vec<Part>) -> Option<Result<Piece, Fault>> {
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
    /// What it says.
    pub fn answer(self) -> Result<Answer, Fault> {
        let encoded = match self {
            Piece::Answer(answer) => return Ok(answer),
            Piece::Encoded(bytes) => bytes,
        };
        match gateway::answer(&encoded) {
            Some(Answer::Failed(failure)) => Err(Fault::Failed(failure)),
            Some(answer) => Ok(answer),
            None => Err(Fault::Failed(Failure::malformed("an answer does not decode"))),
        }
    }
}

/// A cluster, as the SQL door sees it.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Whether it knows the tables. Until then the catalog is empty, which says nothing.
    fn is_ready(&self) -> bool {
        true
    }

    /// The tables now: what this gateway has delivered of the total order.
    fn catalog(&self) -> Arc<Catalog>;

    /// A name for the next write of this door, never given twice.
    fn request_id(&self) -> RequestId;

    /// The id of a write for which an application made up a name, by a digest of that.
    fn made_up(&self, digest: u128) -> RequestId {
        RequestId::made_up(digest)
    }

    /// Whether this may be a name that was given: one of another door, or of the past.
    fn may_have_given(&self, id: RequestId) -> bool;

    /// Makes a table; done when [`Backend::catalog`] shows it.
    async fn create_table(&self, id: RequestId, schema: Schema, replicas: Option<u32>) -> Result<(), Fault>;

    /// Drops a table; done when [`Backend::catalog`] no longer shows it.
    async fn drop_table(&self, id: RequestId, table: TableId) -> Result<(), Fault>;

    /// Performs a write once, however often it is sent under the same name. One answer per range.
    async fn write(&self, name: WriteName, operation: Operation) -> Result<Vec<Answer>, Fault>;

    /// Begins a read. A sequential one follows every write that was acknowledged before.
    async fn read(&self, strength: Strength, select: &Select) -> Result<AnswerStream, Fault>;

    /// Begins a read whose operation is in its byte form already; it concerns the whole of the table.
    async fn read_encoded(
        &self,
        strength: Strength,
        table: TableId,
        operation: Bytes,
    ) -> Result<AnswerStream, Fault> {
        let decoded = gateway::operation(&operation);
        let Some(Operation::Select(select)) = decoded.filter(|operation| operation.table() == table) else {
            return Err(Fault::Failed(Failure::malformed("a read does not decode")));
        };
        self.read(strength, &select).await
    }

    /// Performs a read, and tells how each replica found its rows instead of them.
    async fn analyze(&self, strength: Strength, select: &Select) -> Result<Vec<Analyzed>, Fault>;

    /// Where an operation would go, a line each: destinations and what was pruned.
    fn explain(&self, operation: &Operation) -> Vec<String>;
}
