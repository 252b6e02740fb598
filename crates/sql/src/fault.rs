//! What a client is told when the cluster has no answer.
//!
//! Outcomes have one ladder. The gateway's client decides what may have happened ([`ClientError`], whose fate is
//! [`ClientError::fate`]); here is added how SQL says it, and nowhere else.
//!
//! The code says what may be done next: 40001, nothing was done, send it again; 40003, it may have been done, send it
//! again under the same id (`SET quorate.request_id`); the rest will not get better by sending it again at once.
//!
//! A write that may have been sent before under its id is never told to have come to nothing: that would be about this
//! attempt, and the client asks about the write. Until the ranges answer definitely it is 40003, with the same id.

use quorate_protocol::Fate;

use crate::{
    backend::{ClientError, Fault, refusal},
    error::{SqlError, code},
    session::request::RequestName,
};

/// The message: what went wrong, and `about` it.
pub(crate) fn words(error: &ClientError, about: &str) -> String {
    let of_read = |why: &str| format!("the read came to nothing: {why}");
    match *error {
        ClientError::NotSent => format!("it was not sent: {about}"),
        ClientError::MaybeApplied { .. } => "the write may have been applied".to_owned(),
        ClientError::Rejected(refusal::NO_RING) => format!("the ring is not founded: {about}"),
        ClientError::Rejected(why) => match refusal::as_range(why) {
            Some(low) => format!("range from {low:#018x} has no live replica"),
            None => format!("the cluster refused it (reason {})", why.0),
        },
        ClientError::Expired => "the session has expired; nothing was executed".to_owned(),
        ClientError::OtherStatement => "the request id is that of another statement".to_owned(),
        ClientError::Forgotten { applied: true } => {
            "the write was applied; its rows are no longer known".to_owned()
        }
        ClientError::Forgotten { applied: false } => "the write failed; why is no longer known".to_owned(),
        ClientError::Unanswered => of_read("no replica was heard to be at it in time"),
        ClientError::Broken => of_read("a replica was lost in the middle of the answer"),
        ClientError::Unreached { .. } => {
            format!("this gateway cannot reach {about}, which holds rows that were asked for")
        }
        ClientError::Died { again: true, .. } => {
            format!(
                "storage process {about} ended while this query was there, the second one: no other is asked"
            )
        }
        ClientError::Died { again: false, .. } => format!(
            "storage process {about} ended while this query was there, and no other is asked, because some rows would be \
             lost if that ended, too"
        ),
        ClientError::NoRoom { .. } => {
            "out of memory: a storage process holds no more results for clients that are slow to take theirs"
                .to_owned()
        }
        ClientError::Untaken { .. } => {
            "canceling statement because its result was not taken in time".to_owned()
        }
    }
}

/// The fault of a read.
pub fn of_read(fault: Fault) -> SqlError {
    let fate = fault.fate();
    match fault {
        Fault::Failed(failure) => failure.into(),
        Fault::Unanswered { error, about } => reading(error, &about).with_fate(fate),
    }
}

fn reading(error: ClientError, about: &str) -> SqlError {
    let said = |code| SqlError::new(code, words(&error, about));
    match error {
        ClientError::NotSent => {
            SqlError::new(code::SERIALIZATION_FAILURE, format!("the read came to nothing: {about}"))
                .hint("Send the statement again.")
        }
        ClientError::Unanswered | ClientError::Broken => {
            said(code::SERIALIZATION_FAILURE).hint("Send the statement again.")
        }
        ClientError::Expired | ClientError::OtherStatement | ClientError::Forgotten { .. } => {
            said(code::SERIALIZATION_FAILURE)
        }
        ClientError::Rejected(refusal::NO_RING) => unfounded(about),
        ClientError::Rejected(why) if refusal::as_range(why).is_some() => {
            said("58000").hint("Other ranges go on.")
        }
        ClientError::Rejected(_) => said(code::SERIALIZATION_FAILURE).hint("Send the statement again."),
        ClientError::Unreached { .. } => said("58000").hint(
            "The others hear it, so it is not replaced: mend the network between the two, or the address that it advertises. \
             Another gateway may reach it.",
        ),
        ClientError::Died { .. } => said(code::INTERNAL_ERROR).hint(
            "The query may have ended them: look into their logs before you send it again. If they were killed for another \
             reason, send it again.",
        ),
        ClientError::NoRoom { .. } => said("53200").detail(
            "Results with ORDER BY, DISTINCT or GROUP BY are held whole until they are taken. Ask again later, ask for less, \
             or raise engine.held_bytes_max of the storage processes.",
        ),
        ClientError::Untaken { .. } => said("57014").detail(
            "A storage process drops the rest of a result of which its client takes nothing for engine.held_max_ms.",
        ),
        ClientError::MaybeApplied { .. } => {
            SqlError::new(code::INTERNAL_ERROR, "a read was answered as a write")
        }
    }
}

/// The fault of a write that was sent under `id`. `retried` says that the client chose the id, so that it may have
/// been used before.
pub fn of_write(fault: Fault, id: RequestName, retried: bool) -> SqlError {
    let fate = fault.fate();
    let said = match fault {
        Fault::Failed(failure) => failure.into(),
        Fault::Unanswered { error, about } => writing(error, &about, id, retried),
    };
    said.with_request(id).with_fate(fate)
}

fn writing(error: ClientError, about: &str, id: RequestName, retried: bool) -> SqlError {
    let said = |code| SqlError::new(code, words(&error, about));
    match error {
        ClientError::MaybeApplied { .. } if about.is_empty() => maybe_applied(id),
        ClientError::MaybeApplied { .. } => maybe_applied(id).detail(format!(
            "Request id: {id}. {}{}.",
            about[..1].to_uppercase(),
            &about[1..]
        )),
        ClientError::OtherStatement => said(code::INVALID_PARAMETER_VALUE)
            .detail(format!("Nothing was applied. Request id: {id}."))
            .hint("Send the statement that failed, with the same parameters, or RESET quorate.request_id."),
        ClientError::Forgotten { applied: true } => said(code::OBJECT_NOT_IN_PREREQUISITE_STATE)
            .detail(format!("It was applied once, by an earlier attempt. Request id: {id}."))
            .hint("Read the rows that it wrote; do not send the statement again without its id."),
        ClientError::Forgotten { applied: false } => said(code::OBJECT_NOT_IN_PREREQUISITE_STATE)
            .detail(format!("Nothing was applied. Request id: {id}."))
            .hint("Send the statement again without its id."),
        ClientError::Expired if retried => SqlError::new(
            code::STATEMENT_COMPLETION_UNKNOWN,
            "the request id has expired: whether the write was applied before is no longer known",
        )
        .detail(format!("Nothing was applied now. Request id: {id}."))
        .hint("Look whether its rows are there. RESET quorate.request_id before any other write."),
        // The attempt came to nothing. An earlier one under the same id may have been applied.
        _ if retried => maybe_applied(id),
        error => refused(error, about, &format!("Nothing was applied. Request id: {id}.")),
    }
}

/// The fault of what has no name to be sent again under: a table's definition, a chunk of a COPY.
pub fn of_nameless(fault: Fault) -> SqlError {
    let fate = fault.fate();
    match fault {
        Fault::Failed(failure) => failure.into(),
        Fault::Unanswered { error: ClientError::MaybeApplied { .. }, .. } => maybe_defined().with_fate(fate),
        Fault::Unanswered { error, about } => refused(error, &about, "Nothing was applied.").with_fate(fate),
    }
}

/// The fault of what changed nothing.
fn refused(error: ClientError, about: &str, detail: &str) -> SqlError {
    match error {
        ClientError::Rejected(refusal::NO_RING) => unfounded(about).detail("Nothing was applied."),
        ClientError::Rejected(why) if refusal::as_range(why).is_some() => {
            SqlError::new("58000", words(&error, about)).detail("Nothing was applied.")
        }
        error => SqlError::new(code::SERIALIZATION_FAILURE, words(&error, about))
            .detail(detail)
            .hint("Send the statement again."),
    }
}

/// The fault of what comes before there is a ring.
fn unfounded(about: &str) -> SqlError {
    let words = words(&ClientError::Rejected(refusal::NO_RING), about);
    SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, words)
        .hint("Start the storage processes that are missing: wanted_storage of the founding router says how many there must be.")
}

/// A definition whose outcome is not known.
pub fn maybe_defined() -> SqlError {
    SqlError::new(code::STATEMENT_COMPLETION_UNKNOWN, "the statement may have been applied")
        .hint("Look whether the table is there; IF NOT EXISTS and IF EXISTS can be sent again in any case.")
}

/// A write whose outcome is not known.
pub fn maybe_applied(id: RequestName) -> SqlError {
    SqlError::new(code::STATEMENT_COMPLETION_UNKNOWN, "the write may have been applied")
        .with_request(id)
        .with_fate(Some(Fate::MaybeApplied { id: Some(id.id()) }))
        .detail(format!("Request id: {id}."))
        .hint(format!(
            "SET quorate.request_id = '{id}' and send the statement again: it is applied once in all."
        ))
}
