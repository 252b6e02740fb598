//! What a client is told when the cluster has no answer.
//!
//! The code says what may be done next: 40001, nothing was done, send it again; 40003, it may have been done, send it
//! again under the same id (`SET quorate.request_id`); the rest will not get better by sending it again at once.
//!
//! A write that may have been sent before under its id is never told to have come to nothing: that would be about this
//! attempt, and the client asks about the write. Until the ranges answer definitely it is 40003, with the same id.

use quorate_protocol::Fate;

use crate::{
    backend::Fault,
    error::{SqlError, code},
    session::request::RequestName,
};

/// The fault of a read.
pub fn of_read(fault: Fault) -> SqlError {
    let fate = fault.fate();
    reading(fault).with_fate(fate)
}

fn reading(fault: Fault) -> SqlError {
    match fault {
        Fault::Failed(failure) => failure.into(),
        Fault::Retry { .. } | Fault::NotSent { .. } | Fault::Rejected { .. } => {
            SqlError::new(code::SERIALIZATION_FAILURE, fault).hint("Send the statement again.")
        }
        Fault::Expired | Fault::OtherStatement | Fault::Forgotten { .. } => {
            SqlError::new(code::SERIALIZATION_FAILURE, fault)
        }
        Fault::Unavailable { .. } => SqlError::new("58000", fault).hint("Other ranges go on."),
        Fault::Unfounded { .. } => unfounded(fault),
        Fault::Unreached { .. } => SqlError::new("58000", fault).hint(
            "The others hear it, so it is not replaced: mend the network between the two, or the address that it advertises. \
             Another gateway may reach it.",
        ),
        Fault::Died { .. } => SqlError::new(code::INTERNAL_ERROR, fault).hint(
            "The query may have ended them: look into their logs before you send it again. If they were killed for another reason,              send it again.",
        ),
        Fault::MaybeApplied { .. } => SqlError::new(code::INTERNAL_ERROR, "a read was answered as a write"),
    }
}

/// The fault of a write that was sent under `id`. `retried` says that the client chose the id, so that it may have
/// been used before.
pub fn of_write(fault: Fault, id: RequestName, retried: bool) -> SqlError {
    let fate = fault.fate();
    writing(fault, id, retried).with_request(id).with_fate(fate)
}

fn writing(fault: Fault, id: RequestName, retried: bool) -> SqlError {
    match fault {
        Fault::Failed(failure) => failure.into(),
        Fault::MaybeApplied { reason: Some(reason), .. } => {
            let error = maybe_applied(id);
            error.detail(format!("Request id: {id}. {}{}.", reason[..1].to_uppercase(), &reason[1..]))
        }
        Fault::MaybeApplied { reason: None, .. } => maybe_applied(id),
        Fault::OtherStatement => other_statement(id),
        Fault::Forgotten { applied: true } => SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, fault)
            .detail(format!("It was applied once, by an earlier attempt. Request id: {id}."))
            .hint("Read the rows that it wrote; do not send the statement again without its id."),
        Fault::Forgotten { applied: false } => SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, fault)
            .detail(format!("Nothing was applied. Request id: {id}."))
            .hint("Send the statement again without its id."),
        Fault::Expired if retried => SqlError::new(
            code::STATEMENT_COMPLETION_UNKNOWN,
            "the request id has expired: whether the write was applied before is no longer known",
        )
        .detail(format!("Nothing was applied now. Request id: {id}."))
        .hint("Look whether its rows are there. RESET quorate.request_id before any other write."),
        // The attempt came to nothing. An earlier one under the same id may have been applied.
        _ if retried => maybe_applied(id),
        Fault::NotSent { .. } | Fault::Rejected { .. } | Fault::Retry { .. } | Fault::Expired => {
            SqlError::new(code::SERIALIZATION_FAILURE, fault)
                .detail(format!("Nothing was applied. Request id: {id}."))
                .hint("Send the statement again.")
        }
        Fault::Unfounded { .. } => unfounded(fault).detail("Nothing was applied."),
        Fault::Unavailable { .. } | Fault::Unreached { .. } => {
            SqlError::new("58000", fault).detail("Nothing was applied.")
        }
        Fault::Died { .. } => SqlError::new(code::INTERNAL_ERROR, "a write was answered as a read"),
    }
}

/// The fault of what has no name to be sent again under: a table's definition, a chunk of a COPY.
pub fn of_nameless(fault: Fault) -> SqlError {
    let fate = fault.fate();
    defining(fault).with_fate(fate)
}

fn defining(fault: Fault) -> SqlError {
    match fault {
        Fault::Failed(failure) => failure.into(),
        Fault::MaybeApplied { .. } => maybe_defined(),
        fault @ Fault::Unfounded { .. } => unfounded(fault).detail("Nothing was applied."),
        fault @ (Fault::Unavailable { .. } | Fault::Unreached { .. }) => {
            SqlError::new("58000", fault).detail("Nothing was applied.")
        }
        fault => SqlError::new(code::SERIALIZATION_FAILURE, fault)
            .detail("Nothing was applied.")
            .hint("Send the statement again."),
    }
}

/// A write under the id of another statement.
fn other_statement(id: RequestName) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER_VALUE, Fault::OtherStatement)
        .detail(format!("Nothing was applied. Request id: {id}."))
        .hint("Send the statement that failed, with the same parameters, or RESET quorate.request_id.")
}

/// The fault of what comes before there is a ring.
fn unfounded(fault: Fault) -> SqlError {
    SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, fault)
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
        .with_fate(Some(Fate::MaybeApplied { id: id.id() }))
        .detail(format!("Request id: {id}."))
        .hint(format!(
            "SET quorate.request_id = '{id}' and send the statement again: it is applied once in all."
        ))
}
