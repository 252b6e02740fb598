//! Errors, as users see them.

#[cfg(feature = "groups")]
pub(crate) mod groups;
#[cfg(any(feature = "tables", feature = "groups", feature = "services"))]
mod requests;
#[cfg(feature = "tables")]
mod tables;

use std::{io, path::PathBuf};

use quorate_protocol::{Fate, RequestId, group::Mark, service};
use quorate_runtime::StartError;
use thiserror::Error;

#[cfg(feature = "tables")]
pub use quorate_sql::name::RequestName;

/// The reason why a request failed, named by its possible effect and so by the user's next step. Tables,
/// services and groups share it.
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
///         // Nothing happened: send it again.
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
    /// Nothing was executed. The request can be repeated without harm.
    #[error("nothing was sent: {why}")]
    NotSent {
        /// The reason.
        why: String,
    },
    /// The request can never be executed in this form. Nothing was sent. The program has to be changed.
    #[error("the request is invalid: {why}")]
    Invalid {
        /// The reason.
        why: String,
    },
    /// The request was executed once, or will be executed once, or is never executed.
    #[error("the request may have been applied: {why}")]
    MaybeApplied {
        /// The name under which the request takes effect once in all, however often it is sent. A definition
        /// of a table has no name: check whether the table exists. A send to a group has no name: an update
        /// that must not be repeated needs a name in its content.
        id: Option<Name>,
        /// The reason why the request's outcome is unknown.
        why: String,
    },
    /// The cluster, SQL or the service refused the request, or the request failed. Nothing was applied.
    #[error("{0}")]
    Rejected(Box<Rejection>),
    /// Nothing of a transaction took effect, and nothing will. The transaction can begin again.
    #[error("the transaction was aborted, and none of its changes took effect: {why}")]
    Aborted {
        /// The reason.
        why: String,
    },
    /// The process behind the request was cut off from the others for good, and nothing was sent. A node
    /// comes back by itself, and so does its access to tables. The program has to join groups again, with a
    /// fresh state, and to connect to services again.
    #[error("this process was cut off from the other processes: {why}")]
    Wedged {
        /// The reason.
        why: String,
    },
    /// The key of a service's call was used for another request before. This call changed nothing.
    #[error("the key of this call was used for another request: choose another key")]
    Reused,
    /// The request's name has expired. This request executed nothing, and nobody knows whether an earlier
    /// request of this name was executed.
    #[error("the request was not executed now, and may have been executed before: {why}")]
    Expired {
        /// Details.
        why: String,
    },
    /// A group's process knows no leader among its routers. The other processes may go on without this
    /// process, so the local state may be old. This condition passes, or ends in [`Error::Wedged`].
    #[error("out of touch with the routers: the group's state here may be old")]
    OutOfTouch,
    /// This member of a group has left, or ended, and nothing was sent.
    #[error("this member is not in the group: {why}")]
    NotMember {
        /// The reason.
        why: String,
    },
    /// The request is too large. Nothing was sent, and no request of this size can be sent.
    #[error("the request or state has {bytes} bytes, and at most {limit} are allowed")]
    TooLarge {
        /// Size of the request, in bytes.
        bytes: usize,
        /// Upper bound of the size of a request, in bytes.
        limit: usize,
    },
    /// A process did not start, or found no cluster.
    #[error("cannot start: {why}")]
    Start {
        /// The reason.
        why: String,
    },
    /// Another process with this node number uses the directory.
    #[error("the directory {} is in use by another process of node {node}", .directory.display())]
    DirectoryInUse {
        /// The directory.
        directory: PathBuf,
        /// The node number.
        node: u64,
    },
    /// This operating-system process is a fork of the process that connected, and the client's threads exist
    /// only in that process. Nothing was sent; connect again.
    #[error("a client cannot be used in a forked process: connect again in the child process")]
    Forked,
    /// The file of a backup, or of a group's checkpoint, cannot be written or read, or is damaged. No request
    /// to the cluster is left without an outcome.
    #[error("{}: {why}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// Nobody is in the group, and the routers know a newer checkpoint than this member has. Join with the
    /// file of the newest checkpoint, or give that checkpoint up
    /// ([`Group::give_up_newer_checkpoint`](crate::group::Group::give_up_newer_checkpoint)).
    #[error("{} older than the group's newest checkpoint, of {newest}: join with the file of the newest checkpoint, or give up the newest checkpoint (`give_up_newer_checkpoint`)", stale(.file))]
    Stale {
        /// The checkpoint in this member's file; `None` without a file.
        file: Option<Mark>,
        /// The newest checkpoint that the routers know.
        newest: Mark,
    },
    /// The received data is not of the requested type: a value of a row, a service's reply (its call took
    /// effect once), or the state of a group.
    #[error("{what}: {why}")]
    Mismatch {
        /// The name of the received data: a column by its requested name or number, a reply, or a state.
        what: String,
        /// The reason.
        why: String,
    },
}

/// The name of a call of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(crate) service::CallId);

/// The name of a request that may have been applied. If the request is sent again under this name, it takes
/// effect once in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Name {
    /// The name of a write to tables ([`Execute::request`](crate::Execute::request)).
    #[cfg(feature = "tables")]
    Statement(RequestName),
    /// The name of a call of a service ([`Stub::again`](crate::service::Stub::again)).
    Call(CallId),
}

impl Name {
    /// Returns the name in the form that all doors share.
    pub fn id(self) -> RequestId {
        match self {
            #[cfg(feature = "tables")]
            Name::Statement(name) => name.id(),
            Name::Call(CallId(call)) => RequestId { session: call.session.0.into(), number: call.number },
        }
    }
}

/// A refusal of a request, or a failure without effect, in PostgreSQL's form.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}{}{}{}", more(.sqlstate, " (", ")"), more(.detail, " ", ""), more(.hint, " ", ""))]
pub struct Rejection {
    /// The five characters of the SQLSTATE: `23505` is a duplicate key. A service's refusal has none.
    pub sqlstate: Option<String>,
    /// The fault, with the offending value.
    pub message: String,
    /// Details.
    pub detail: Option<String>,
    /// Advice.
    pub hint: Option<String>,
}

fn stale(file: &Option<Mark>) -> String {
    match file {
        Some(mark) => format!("this member's checkpoint, of {mark}, is"),
        None => String::from("this member brought no checkpoint, and a fresh state is"),
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

    /// Returns the possible effect of the request. Returns `None` if the error is not about the fate of a
    /// request.
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

    /// Returns the SQLSTATE of a statement that was refused or failed.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Error::Rejected(rejection) => rejection.sqlstate.as_deref(),
            _ => None,
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
