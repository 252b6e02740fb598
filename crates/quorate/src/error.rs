//! What a user is told when something comes to nothing.

use std::{
    io,
    path::{Path, PathBuf},
};

use quorate_protocol::{
    Fate, RequestId,
    group::{Failure, Mark},
    service,
};
use quorate_runtime::StartError;
use quorate_sql::error::{Fields, SqlError};
use thiserror::Error;

pub use quorate_sql::session::request::RequestName;

/// Why something came to nothing, named by what may have happened and so by what its user may do next. It is the same for tables,
/// services and groups.
///
/// ```
/// # use quorate::{Db, Error, Name};
/// # async fn transfer(db: &Db) -> Result<(), Error> {
/// let mut write = db.execute("insert into payments values (7, 100)").await;
/// while let Err(error) = &write {
///     write = match error {
///         // Executed once, or not at all: under the same name it is executed once in all.
///         Error::MaybeApplied { id: Some(Name::Statement(id)), .. } => {
///             db.execute("insert into payments values (7, 100)").request(*id).await
///         }
///         // Nothing happened: as it was.
///         Error::NotSent { .. } => db.execute("insert into payments values (7, 100)").await,
///         // Refused: sending it again changes nothing.
///         other => return Err(other.clone()),
///     };
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was executed: repeat it freely.
    #[error("nothing was sent: {why}")]
    NotSent {
        /// Why.
        why: String,
    },
    /// It can be done neither now nor later as it was asked for: the program is to be changed. Nothing was sent.
    #[error("it cannot be done: {why}")]
    Invalid {
        /// Why.
        why: String,
    },
    /// It was executed once, or will be, or not at all.
    #[error("it may have been applied: {why}")]
    MaybeApplied {
        /// The name under which it takes effect once in all, however often it is asked for. Definitions of tables have none: look
        /// whether the table is there. Sends to groups have none: what must not be repeated needs a name inside the update.
        id: Option<Name>,
        /// Why its outcome is open.
        why: String,
    },
    /// The cluster, SQL or the service refuses it, or it failed: nothing was applied.
    #[error("{0}")]
    Rejected(Box<Rejection>),
    /// Nothing of a service's transaction took effect, and nothing will: begin it again.
    #[error("the transaction is over, and nothing of it took effect: {why}")]
    Aborted {
        /// Why.
        why: String,
    },
    /// The process behind it was cut off from the others for good, and nothing was sent. A node comes back by itself, and its
    /// tables with it; groups are joined again, with a fresh state, and services are connected to anew.
    #[error("this process was cut off from the others: {why}")]
    Wedged {
        /// Why.
        why: String,
    },
    /// The key of a service's call was used for another request. Nothing was changed now.
    #[error("its key was used for another request")]
    Reused,
    /// The request's name is over: nothing was executed now, and whether it was before is no longer known.
    #[error("the request's name has expired: {why}")]
    Expired {
        /// More of it.
        why: String,
    },
    /// A group's process knows of no leader among its routers, so the others may go on without it: what is here may be old. It passes,
    /// or ends in [`Error::Wedged`].
    #[error("out of touch with the routers: what is here may be old")]
    OutOfTouch,
    /// This member of a group has left, or ended, and nothing was sent.
    #[error("this member is not in the group: {why}")]
    NotMember {
        /// Why.
        why: String,
    },
    /// It is too large: nothing was sent, and nothing of this size will be.
    #[error("{bytes} bytes are too many: {limit} at most")]
    TooLarge {
        /// How many there are.
        bytes: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A process did not start, or found no cluster.
    #[error("cannot start: {why}")]
    Start {
        /// Why.
        why: String,
    },
    /// Another process of this node number is at work in the directory.
    #[error("node {node} has a process in {} already: one at a time", .directory.display())]
    DirectoryInUse {
        /// Where.
        directory: PathBuf,
        /// The number.
        node: u64,
    },
    /// This operating-system process is a fork of the one that connected: the threads behind the client stayed there. Nothing
    /// was sent; connect anew.
    #[error("a client does not survive a fork: connect in the child")]
    Forked,
    /// The file of a backup, or of a group's checkpoint, cannot be written or read, or is damaged. The cluster was asked for nothing that is
    /// left behind.
    #[error("{}: {why}", .file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody is in the group, and its newest checkpoint is another than the one that was brought. Joining begins with that file, or
    /// gives it up ([`Group::give_up_newer_checkpoint`](crate::group::Group::give_up_newer_checkpoint)).
    #[error("{} older than the group's newest, of {newest}: join with the file of that one, or give it up (`give_up_newer_checkpoint`)", stale(.file))]
    Stale {
        /// The checkpoint in the file that was brought; none if there was no file.
        file: Option<Mark>,
        /// The newest that the routers know of.
        newest: Mark,
    },
    /// What came is not of the type that is asked for here: a value of a row, a service's reply (its call took effect once), or the state
    /// of a group.
    #[error("{what}: {why}")]
    Mismatch {
        /// What came: a column by the name or number that was asked for, a reply, a state.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The name of a call of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(crate) service::CallId);

/// The name of what may have been applied: asked for again under it, it takes effect once in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Of a write to tables ([`Execute::request`](crate::Execute::request)).
    Statement(RequestName),
    /// Of a call of a service ([`Stub::again`](crate::service::Stub::again)).
    Call(CallId),
}

impl Name {
    /// The same as all doors have it.
    pub fn id(self) -> RequestId {
        match self {
            Name::Statement(name) => name.id(),
            Name::Call(CallId(call)) => RequestId { session: call.session.0.into(), number: call.number },
        }
    }
}

/// A refusal, or a failure that changed nothing, as PostgreSQL tells it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}{}{}{}", more(.sqlstate, " (", ")"), more(.detail, " ", ""), more(.hint, " ", ""))]
pub struct Rejection {
    /// The five characters of the SQLSTATE: `23505` is a duplicate key. A service's refusal has none.
    pub sqlstate: Option<String>,
    /// What was wrong, with which value.
    pub message: String,
    /// More of it.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
}

fn stale(file: &Option<Mark>) -> String {
    match file {
        Some(mark) => format!("the checkpoint brought, of {mark}, is"),
        None => String::from("no checkpoint was brought, and a fresh state is"),
    }
}

fn more(text: &Option<String>, before: &str, behind: &str) -> String {
    text.as_ref().map_or_else(String::new, |text| format!("{before}{text}{behind}"))
}

impl Error {
    pub(crate) fn start(why: impl ToString) -> Error {
        Error::Start { why: why.to_string() }
    }

    pub(crate) fn invalid(why: impl ToString) -> Error {
        Error::Invalid { why: why.to_string() }
    }

    pub(crate) fn not_sent(why: impl ToString) -> Error {
        Error::NotSent { why: why.to_string() }
    }

    pub(crate) fn not_member(why: impl ToString) -> Error {
        Error::NotMember { why: why.to_string() }
    }

    pub(crate) fn wedged(why: impl ToString) -> Error {
        Error::Wedged { why: why.to_string() }
    }

    /// A service's refusal.
    pub(crate) fn rejected(message: impl Into<String>) -> Error {
        let message = message.into();
        Error::Rejected(Box::new(Rejection { sqlstate: None, message, detail: None, hint: None }))
    }

    pub(crate) fn file(file: &Path, why: impl ToString) -> Error {
        Error::File { file: file.to_owned(), why: why.to_string() }
    }

    pub(crate) fn mismatch(what: impl Into<String>, why: impl ToString) -> Error {
        Error::Mismatch { what: what.into(), why: why.to_string() }
    }

    pub(crate) fn unsupported(what: &str) -> Error {
        SqlError::unsupported(what).into()
    }

    /// What may have happened to the request; none if it was answered by an error of its own, or is no request.
    pub fn fate(&self) -> Option<Fate> {
        match self {
            Error::NotSent { .. }
            | Error::Aborted { .. }
            | Error::Forked
            | Error::OutOfTouch
            | Error::NotMember { .. } => Some(Fate::NotSent),
            Error::MaybeApplied { id, .. } => Some(Fate::MaybeApplied { id: id.map(Name::id) }),
            Error::Rejected(_) | Error::Reused | Error::TooLarge { .. } | Error::Invalid { .. } => {
                Some(Fate::Rejected)
            }
            Error::Wedged { .. } => Some(Fate::Wedged),
            Error::Expired { .. } => Some(Fate::Expired),
            Error::Start { .. }
            | Error::DirectoryInUse { .. }
            | Error::File { .. }
            | Error::Stale { .. }
            | Error::Mismatch { .. } => None,
        }
    }

    /// The SQLSTATE of a statement that was refused or failed.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Error::Rejected(rejection) => rejection.sqlstate.as_deref(),
            _ => None,
        }
    }
}

impl From<SqlError> for Error {
    fn from(error: SqlError) -> Error {
        let Fields { code, message, detail, hint, fate, request, .. } = &*error;
        let why = || format!("{message}{}", more(detail, ". ", ""));
        match fate {
            Some(Fate::NotSent) => Error::NotSent { why: why() },
            Some(Fate::MaybeApplied { .. }) => {
                Error::MaybeApplied { id: request.map(Name::Statement), why: why() }
            }
            Some(Fate::Wedged) => Error::Wedged { why: why() },
            Some(Fate::Expired) => Error::Expired { why: why() },
            Some(Fate::Rejected) | None => Error::Rejected(Box::new(Rejection {
                sqlstate: Some(code.clone().into_owned()),
                message: message.clone(),
                detail: detail.clone(),
                hint: hint.clone(),
            })),
        }
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Error {
        Error::start(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::start(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::NotSent => Error::not_sent("the order did not take it"),
            Failure::MaybeApplied => {
                let why =
                    "this process was dropped, or out of touch with the routers, while it was under way"
                        .into();
                Error::MaybeApplied { id: None, why }
            }
            Failure::OutOfTouch => Error::OutOfTouch,
            Failure::Wedged => Error::wedged(DROPPED),
            Failure::NotMember => Error::not_member("it has left, or is about to"),
            Failure::AlreadyMember => Error::start("this process has a member of this group already"),
            Failure::Stale(newest) => Error::Stale { file: None, newest },
            Failure::Full(limit) => Error::not_sent(format!("more than {limit} bytes wait")),
        }
    }
}

/// The end of a process with groups.
pub(crate) const DROPPED: &str = "it was dropped from its groups: join again";
