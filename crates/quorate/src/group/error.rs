//! What a member is told when something comes to nothing.

use quorate_protocol::{Fate, RequestId, group::Failure};
use thiserror::Error;

/// Why something came to nothing, named by what may have happened: the ladder of [`quorate::Error`](crate::Error), for groups.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was sent: repeat it freely.
    #[error("nothing was sent: {why}")]
    NotSent {
        /// Why.
        why: String,
    },
    /// Members may deliver it, or none will: this process was dropped before it could know. No name tells two sends apart, so what must
    /// not be repeated needs one inside the update.
    #[error("it may have been delivered: {why}")]
    MaybeApplied {
        /// Why its outcome is open.
        why: String,
    },
    /// This process was dropped from its groups, and nothing was sent: join again, with a fresh state.
    #[error("this process was dropped from its groups: join again")]
    Wedged,
    /// No router in reach knows of a leader, so the others may go on without this process: what is here may be old. It passes,
    /// or ends in [`Error::Wedged`].
    #[error("out of touch with the routers: what is here may be old")]
    OutOfTouch,
    /// This member has left, or ended, and nothing was sent.
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
    /// The group is one of another kind of replica: the two programs do not fit together.
    #[error("the group has replicas of `{theirs}`, this one is `{ours}`")]
    Mismatch {
        /// [`Replica::NAME`](super::Replica::NAME) here.
        ours: String,
        /// The name there.
        theirs: String,
    },
    /// The group's state does not decode here.
    #[error("the group's state does not decode: {why}")]
    Corrupt {
        /// The fault in it.
        why: String,
    },
    /// A process did not start, or found no routers.
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

    pub(super) fn not_member(why: impl ToString) -> Error {
        Error::NotMember { why: why.to_string() }
    }

    /// The outcome that is possible; none where nothing was asked for.
    pub fn fate(&self) -> Option<Fate> {
        match self {
            Error::NotSent { .. } | Error::OutOfTouch | Error::NotMember { .. } => Some(Fate::NotSent),
            Error::MaybeApplied { .. } => {
                Some(Fate::MaybeApplied { id: RequestId { session: 0, number: 0 } })
            }
            Error::Wedged => Some(Fate::Wedged),
            Error::TooLarge { .. } => Some(Fate::Rejected),
            Error::Mismatch { .. } | Error::Corrupt { .. } | Error::Start { .. } => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::NotSent => Error::not_sent("the order did not take it"),
            Failure::MaybeApplied => {
                Error::MaybeApplied { why: String::from("this process was dropped while it was under way") }
            }
            Failure::Wedged => Error::Wedged,
            Failure::NotMember => Error::not_member("it has left, or is about to"),
            Failure::AlreadyMember => Error::start("this process has a member of this group already"),
            Failure::Full(limit) => Error::not_sent(format!("more than {limit} bytes wait")),
        }
    }
}
