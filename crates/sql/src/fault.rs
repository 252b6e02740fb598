//! The errors that a client gets when the cluster has no answer.
//!
//! The gateway's client decides what may have happened to the operation: a [`ClientError`], from which
//! [`ClientError::fate`] follows. Only this module translates that error into SQL.
//!
//! The code says what the client may do. After 40001 nothing was done, and the client may send the statement
//! again. After 40003 the statement may have been done, and the client may send it again under the same id
//! (`SET quorate.request_id`). After any other code, sending the statement again at once does not help.
//!
//! A write that an earlier attempt may have sent under the same id is never reported as not done: the report
//! would only hold for this attempt, and the client asks about the write. Until the ranges answer definitely,
//! the code is 40003 with the same id.

use quorate_protocol::Fate;
use quorate_table::failure::Failure;

use crate::{
    backend::{ClientError, OperationError, refusal, words},
    error::{SqlError, code},
    name::RequestName,
};

/// Returns the error of a read.
pub fn read_error(fault: OperationError) -> SqlError {
    let fate = fault.fate();
    match fault {
        OperationError::Failed(failure) => failure.into(),
        OperationError::Unanswered { error, about } => reading(error, &about).with_fate(fate),
    }
}

/// The advice after a failure of a transaction that may succeed if it is repeated, in PostgreSQL's words.
pub const RETRY: &str = "The transaction might succeed if retried.";

/// Returns the error of a statement that was tried in an open block. The whole block has to be repeated.
pub fn trial_error(fault: OperationError) -> SqlError {
    let error = in_block(read_error(fault));
    if error.code == code::SERIALIZATION_FAILURE { error.hint(RETRY) } else { error }
}

const REDEFINED: &str = "could not serialize access due to a concurrent ALTER TABLE or DROP TABLE";

/// Whether a statement failed because its table was dropped, or altered, after the statement was bound. Then
/// nothing was executed.
pub fn is_outdated(error: &SqlError) -> bool {
    error.code == code::UNDEFINED_TABLE && error.message == Failure::TABLE_ENDED
}

/// Returns the error of a statement of a block. If its table was altered, the whole block has to be repeated,
/// because the results that the client received are those of the earlier table.
pub fn in_block(error: SqlError) -> SqlError {
    if !is_outdated(&error) {
        return error;
    }
    SqlError::new(code::SERIALIZATION_FAILURE, REDEFINED).with_fate(error.fate).hint(RETRY)
}

/// Returns the error of a statement that is a block of its own. If one of its tables was altered, nothing was
/// executed, and the statement can be bound again.
pub fn of_one_statement(error: SqlError) -> SqlError {
    if error.code != code::SERIALIZATION_FAILURE || error.message != REDEFINED {
        return error;
    }
    SqlError::from(Failure::table_ended()).with_fate(error.fate)
}

/// Returns the error of a COMMIT that was sent under `id`.
pub fn commit_error(fault: OperationError, id: RequestName, retried: bool) -> SqlError {
    let error = in_block(write_error(fault, id, retried));
    match error.code.as_ref() {
        code::SERIALIZATION_FAILURE => error.hint(RETRY),
        code::STATEMENT_COMPLETION_UNKNOWN
            if error.hint.as_ref().is_some_and(|hint| hint.starts_with("SET")) =>
        {
            error.hint(again(id))
        }
        _ => error,
    }
}

/// Returns the error of a COMMIT whose outcome is unknown.
pub fn maybe_committed(id: RequestName) -> SqlError {
    maybe_applied(id).hint(again(id))
}

fn again(id: RequestName) -> String {
    format!(
        "SET quorate.request_id = '{id}' and repeat the whole transaction: both attempts together apply it once."
    )
}

/// Returns the error of a check that the results of a block without writes were true at one position.
pub fn check_error(fault: OperationError) -> SqlError {
    match fault {
        OperationError::Unanswered { about, .. } => {
            let message = format!("the results of the transaction could not be checked: {about}");
            SqlError::new(code::SERIALIZATION_FAILURE, message).hint(RETRY)
        }
        failed => trial_error(failed),
    }
}

fn reading(error: ClientError, about: &str) -> SqlError {
    let said = |code| SqlError::new(code, words(&error, about));
    match error {
        ClientError::NotSent => {
            SqlError::new(code::SERIALIZATION_FAILURE, format!("the read failed: {about}"))
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
            said("58000").hint(
                "Statements on other ranges still work. If a storage process that holds this range was stopped, start it \
                 again.",
            )
        }
        ClientError::Rejected(_) => said(code::SERIALIZATION_FAILURE).hint("Send the statement again."),
        ClientError::Unreached { .. } => said("58000").hint(
            "Other processes reach that storage process, so it is not replaced. Repair the network between this gateway \
             and that process, or the address that the process advertises. Another gateway may reach the process.",
        ),
        ClientError::Died { .. } => said(code::INTERNAL_ERROR).hint(
            "The query may be the cause: read the logs of the storage processes before you send the query again. If they \
             ended for another reason, send the query again.",
        ),
        ClientError::NoRoom { .. } => said("53200").detail(
            "A storage process keeps a result with ORDER BY, DISTINCT or GROUP BY until the client has read it. Run \
             the query again later, select fewer rows, or raise engine.held_bytes_max of the storage processes.",
        ),
        ClientError::Untaken { .. } => said("57014").detail(
            "A storage process drops the rest of a result if the client reads nothing of it for engine.held_max_ms.",
        ),
        ClientError::MaybeApplied { .. } => {
            SqlError::new(code::INTERNAL_ERROR, "a read got the answer of a write")
        }
    }
}

/// Returns the error of a write that was sent under `id`. `retried` says that the client chose the id, so
/// that an earlier attempt may have used it.
pub fn write_error(fault: OperationError, id: RequestName, retried: bool) -> SqlError {
    let fate = fault.fate();
    let said = match fault {
        OperationError::Failed(failure) => failure.into(),
        OperationError::Unanswered { error, about } => writing(error, &about, id, retried),
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
            .detail(format!("The write was applied once, by an earlier attempt. Request id: {id}."))
            .hint("Read the rows that the write changed; do not send the statement again without this request id."),
        ClientError::Forgotten { applied: false } => said(code::OBJECT_NOT_IN_PREREQUISITE_STATE)
            .detail(format!("Nothing was applied. Request id: {id}."))
            .hint("Send the statement again without this request id."),
        ClientError::Expired if retried => SqlError::new(
            code::STATEMENT_COMPLETION_UNKNOWN,
            "the request id has expired: it is no longer known whether an earlier attempt was applied",
        )
        .detail(format!("This attempt applied nothing. Request id: {id}."))
        .hint("Check whether the table has the rows of the write. RESET quorate.request_id before any other write."),
        // This attempt did nothing, but an earlier attempt under the same id may have been applied.
        _ if retried => maybe_applied(id),
        error => refused(error, about, &format!("Nothing was applied. Request id: {id}.")),
    }
}

/// Returns the error of a statement without a name under which it could be sent again: a table's definition,
/// or a chunk of a COPY.
pub fn unnamed_error(fault: OperationError) -> SqlError {
    let fate = fault.fate();
    match fault {
        OperationError::Failed(failure) => failure.into(),
        OperationError::Unanswered { error: ClientError::MaybeApplied { .. }, .. } => {
            maybe_defined().with_fate(fate)
        }
        OperationError::Unanswered { error, about } => {
            refused(error, &about, "Nothing was applied.").with_fate(fate)
        }
    }
}

/// Returns the error of a statement that changed nothing.
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

/// Returns the error of a statement that came before the ring of storage processes was founded.
fn unfounded(about: &str) -> SqlError {
    let words = words(&ClientError::Rejected(refusal::NO_RING), about);
    SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, words)
        .hint("Start the storage processes that are missing: wanted_storage of the founding router says how many there must be.")
}

/// Returns the error of a definition whose outcome is unknown.
pub fn maybe_defined() -> SqlError {
    SqlError::new(code::STATEMENT_COMPLETION_UNKNOWN, "the statement may have been applied")
        .hint("Check whether the table exists. IF NOT EXISTS and IF EXISTS can be sent again in any case.")
}

/// Returns the error of a write whose outcome is unknown.
pub fn maybe_applied(id: RequestName) -> SqlError {
    SqlError::new(code::STATEMENT_COMPLETION_UNKNOWN, "the write may have been applied")
        .with_request(id)
        .with_fate(Some(Fate::MaybeApplied { id: Some(id.id()) }))
        .detail(format!("Request id: {id}."))
        .hint(format!(
            "SET quorate.request_id = '{id}' and send the statement again: both attempts together apply the write once."
        ))
}
