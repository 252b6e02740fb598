//! What a user is told when something comes to nothing.

use std::{io, path::PathBuf};

use quorate_protocol::{Fate, RequestId};
use quorate_runtime::StartError;
use quorate_sql::error::{Fields, SqlError};
use thiserror::Error;

pub use quorate_sql::session::request::RequestName;

/// Why something came to nothing, named by what may have happened and so by what its user may do next.
///
/// ```
/// # use quorate::{Db, Error};
/// # async fn transfer(db: &Db) -> Result<(), Error> {
/// let mut write = db.execute("insert into payments values (7, 100)").await;
/// while let Err(error) = &write {
///     write = match error {
///         // Executed once, or not at all: under the same name it is executed once in all.
///         Error::MaybeApplied { id: Some(id), .. } => {
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
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was executed: repeat it freely.
    #[error("nothing was sent: {why}")]
    NotSent {
        /// Why.
        why: String,
    },
    /// It was executed once, or will be, or not at all.
    #[error("it may have been applied: {why}")]
    MaybeApplied {
        /// The name under which it is executed once in all, however often it is sent. Definitions of tables have none: look
        /// whether the table is there.
        id: Option<RequestName>,
        /// Why its outcome is open.
        why: String,
    },
    /// The cluster, or SQL, refuses it, or it failed: nothing was applied.
    #[error("{0}")]
    Rejected(Box<Rejection>),
    /// The process behind it is out of the cluster for good.
    #[error("this process is out of the cluster: {why}")]
    Wedged {
        /// Why.
        why: String,
    },
    /// The request's name is over: nothing was executed now, and whether it was before is no longer known.
    #[error("the request's name has expired: {why}")]
    Expired {
        /// More of it.
        why: String,
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
    /// A column or value is not of the type that was asked for.
    #[error("column {column}: {why}")]
    Mismatch {
        /// The column, by the name or number that was asked for.
        column: String,
        /// What is wrong with it.
        why: String,
    },
}

/// A refusal, or a failure that changed nothing, in PostgreSQL's terms.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message} ({sqlstate}){}{}", more(.detail, " "), more(.hint, " "))]
pub struct Rejection {
    /// The five characters of the SQLSTATE: `23505` is a duplicate key.
    pub sqlstate: String,
    /// What was wrong, with which value.
    pub message: String,
    /// More of it.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
}

fn more(text: &Option<String>, before: &str) -> String {
    text.as_ref().map_or_else(String::new, |text| format!("{before}{text}"))
}

impl Error {
    pub(crate) fn start(why: impl ToString) -> Error {
        Error::Start { why: why.to_string() }
    }

    pub(crate) fn unsupported(what: &str) -> Error {
        SqlError::unsupported(what).into()
    }

    /// What may have happened to the request; none if it was answered by an error of its own, or is no request.
    pub fn fate(&self) -> Option<Fate> {
        match self {
            Error::NotSent { .. } | Error::Forked => Some(Fate::NotSent),
            Error::MaybeApplied { id, .. } => {
                let id = id.map_or(RequestId { session: 0, number: 0 }, RequestName::id);
                Some(Fate::MaybeApplied { id })
            }
            Error::Rejected(_) => Some(Fate::Rejected),
            Error::Wedged { .. } => Some(Fate::Wedged),
            Error::Expired { .. } => Some(Fate::Expired),
            Error::Start { .. } | Error::DirectoryInUse { .. } | Error::Mismatch { .. } => None,
        }
    }

    /// The SQLSTATE of a statement that was refused or failed.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Error::Rejected(rejection) => Some(&rejection.sqlstate),
            _ => None,
        }
    }
}

impl From<SqlError> for Error {
    fn from(error: SqlError) -> Error {
        let Fields { code, message, detail, hint, fate, request, .. } = &*error;
        let why = || format!("{message}{}", more(detail, ". "));
        match fate {
            Some(Fate::NotSent) => Error::NotSent { why: why() },
            Some(Fate::MaybeApplied { .. }) => Error::MaybeApplied { id: *request, why: why() },
            Some(Fate::Wedged) => Error::Wedged { why: why() },
            Some(Fate::Expired) => Error::Expired { why: why() },
            Some(Fate::Rejected) | None => Error::Rejected(Box::new(Rejection {
                sqlstate: code.clone().into_owned(),
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
