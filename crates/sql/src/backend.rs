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
pub use quorate_protocol::{RequestId, Strength, rubberband::WriteName};
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

/// Why an operation has no answer. Named by what the client may do next.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Fault {
    /// Nothing was sent: retry freely.
    #[error("the write was not sent: {reason}")]
    NotSent {
        /// Why.
        reason: String,
    },
    /// It may have been applied or not: retry under the same id.
    #[error("the write may have been applied")]
    MaybeApplied {
        /// The id to retry with.
        id: RequestId,
        /// Why its outcome is open, if there is more to say of that than that no answer came.
        reason: Option<&'static str>,
    },
    /// No replica could take it.
    #[error("no replica of range {range} could take the operation")]
    Rejected {
        /// The range's name.
        range: String,
    },
    /// The session is over; nothing was executed.
    #[error("the session has expired; nothing was executed")]
    Expired,
    /// The id is that of another statement; nothing was executed.
    #[error("the request id is that of another statement")]
    OtherStatement,
    /// It was repeated, and what it answered is no longer known.
    #[error("the write {}", outcome(*applied))]
    Forgotten {
        /// Whether it took effect; otherwise it failed and changed nothing.
        applied: bool,
    },
    /// A read came to nothing: the same read again will do.
    #[error("the read came to nothing: {reason}")]
    Retry {
        /// Why.
        reason: String,
    },
    /// All replicas of a range are gone: its reads fail.
    #[error("range {range} has no live replica")]
    Unavailable {
        /// The range's name.
        range: String,
    },
    /// The ring is not founded: no table can be made, written or read.
    #[error("the ring is not founded: {joined} of {wanted} storage processes have joined")]
    Unfounded {
        /// How many storage processes wait.
        joined: usize,
        /// How many it is founded with.
        wanted: usize,
    },
    /// A read needs a storage process that serves, and that this gateway cannot reach.
    #[error("this gateway cannot reach {process}, which holds rows that were asked for")]
    Unreached {
        /// Its name and where it is said to listen.
        process: String,
    },
    /// A read at which storage processes died: it may be the reason, and is not asked of another.
    #[error("storage process {process} ended while this query was there, {}", why_no_other(*again))]
    Died {
        /// The last of them: its name and where it is said to listen, or its id once it was removed.
        process: String,
        /// Whether it was the second.
        again: bool,
    },
    /// It ran and failed, deterministically; nothing changed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl Fault {
    /// What may have happened to the operation; none if that is known: it was executed, or failed by itself.
    pub fn fate(&self) -> Option<Fate> {
        match self {
            Fault::MaybeApplied { id, .. } => Some(Fate::MaybeApplied { id: *id }),
            Fault::NotSent { .. }
            | Fault::Retry { .. }
            | Fault::Unfounded { .. }
            | Fault::Unreached { .. }
            | Fault::Died { .. } => Some(Fate::NotSent),
            Fault::Rejected { .. }
            | Fault::OtherStatement
            | Fault::Unavailable { .. }
            | Fault::Forgotten { applied: false } => Some(Fate::Rejected),
            Fault::Expired => Some(Fate::Expired),
            Fault::Forgotten { applied: true } | Fault::Failed(_) => None,
        }
    }
}

/// Why a read at which a process died is not asked of another.
fn why_no_other(again: bool) -> &'static str {
    match again {
        true => "the second one: no other is asked",
        false => "and no other is asked, because some rows would be lost if that ended, too",
    }
}

/// All that is still known of a write.
fn outcome(applied: bool) -> &'static str {
    if applied { "was applied; its rows are no longer known" } else { "failed; why is no longer known" }
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
