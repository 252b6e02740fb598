//! What a caller of a service is told when a call comes to nothing.

use quorate_protocol::{Fate, RequestId, service};
use thiserror::Error;

/// The name of a call: asked for again under it, it takes effect once in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(super) service::CallId);

/// Why a call, or a start, came to nothing, named by what may have happened: the ladder of [`quorate::Error`](crate::Error), for
/// services.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was executed, and nothing will be: repeat it freely.
    #[error("nothing was executed: {why}")]
    NotSent {
        /// Why.
        why: String,
    },
    /// It took effect once, or will, or not at all.
    #[error("it may have been applied: {why}")]
    MaybeApplied {
        /// The call to ask for again ([`Stub::again`](super::Stub::again)); none if the end that sent it is gone.
        id: Option<CallId>,
        /// Why its outcome is open.
        why: String,
    },
    /// The service refused it, or panicked when it executed it. Nothing was changed.
    #[error("the service rejects it: {why}")]
    Rejected {
        /// The service's words.
        why: String,
    },
    /// The call's name is over: nothing was executed now. Whether it was before is no longer known.
    #[error("the call's name has expired: {why}")]
    Expired {
        /// More of it.
        why: String,
    },
    /// This process's end of the service is gone, and nothing was sent: connect anew.
    #[error("this process's end of the service is gone: {why}")]
    Wedged {
        /// Why.
        why: String,
    },
    /// It took effect once, and what came back is no reply of this type: the two ends have different services of one name.
    #[error("it took effect, and the reply is of another type: {why}")]
    Mismatch {
        /// More of it.
        why: String,
    },
    /// A process or a service did not start.
    #[error("cannot start: {why}")]
    Start {
        /// Why.
        why: String,
    },
}

impl Error {
    pub(super) fn start(why: impl ToString) -> Error {
        Error::Start { why: why.to_string() }
    }

    pub(super) fn not_sent(why: impl ToString) -> Error {
        Error::NotSent { why: why.to_string() }
    }

    pub(super) fn wedged(why: impl ToString) -> Error {
        Error::Wedged { why: why.to_string() }
    }

    /// The fate of the call; none if it is no call, or was answered.
    pub fn fate(&self) -> Option<Fate> {
        match self {
            Error::NotSent { .. } => Some(Fate::NotSent),
            Error::MaybeApplied { id, .. } => {
                let (session, number) = id.map_or((0, 0), |CallId(id)| (id.session.0, id.number));
                Some(Fate::MaybeApplied { id: RequestId { session: session.into(), number } })
            }
            Error::Rejected { .. } => Some(Fate::Rejected),
            Error::Expired { .. } => Some(Fate::Expired),
            Error::Wedged { .. } => Some(Fate::Wedged),
            Error::Mismatch { .. } | Error::Start { .. } => None,
        }
    }
}
