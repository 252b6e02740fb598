//! Errors of process groups.

use quorate_protocol::group::Failure;

use super::Error;

/// The reason in the errors of a process that the other members have dropped from its groups.
pub(crate) const DROPPED: &str =
    "the other members dropped this process from its groups: join the groups again";

impl Error {
    pub(crate) fn not_member(why: impl ToString) -> Error {
        Error::NotMember { why: why.to_string() }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::NotSent => {
                Error::not_sent("the routers did not take the message: send the message again")
            }
            Failure::MaybeApplied => {
                let why =
                    "this process was dropped from the group, or lost contact with the routers, while the \
                     request was under way"
                        .into();
                Error::MaybeApplied { id: None, why }
            }
            Failure::OutOfTouch => Error::OutOfTouch,
            Failure::Wedged => Error::wedged(DROPPED),
            Failure::NotMember => Error::not_member("the member has left the group, or is about to leave"),
            Failure::AlreadyMember => Error::start("this process has a member of this group already"),
            Failure::Stale(newest) => Error::Stale { file: None, newest },
            Failure::Full(limit) => Error::not_sent(format!(
                "the message is too long, or more than {limit} bytes of messages wait"
            )),
            Failure::Behind(backlog) => Error::start(backlog.to_string()),
        }
    }
}
