//! The answers of maps whose strategy is not partial quorums.

use quorate::maps::strategy::{
    Outcome, RequestError,
    keyspace::{ANSWER_BYTES_MAX, KeyspaceAnswer, Refusal, VALUE_BYTES_MAX},
};
use quorate_protocol::partial::{Scanned, Token, Value};

use super::{
    read_form::ReadForm,
    refusal::{NO_NUMBER, WRONG_TYPE},
    reply::Reply,
    scan,
};

/// The way in which an answer is made from the outcome of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplyForm {
    /// The values of the keys that were read, in the form of the command's reply.
    Read(ReadForm),
    Scan(scan::ScanRequest),
    /// `OK`.
    Done,
    /// `OK`, or null if the condition of the command did not hold.
    DoneIf,
    /// The value that the key had before the write.
    Before,
    /// The number of keys, fields or bytes that the command reports.
    Count,
}

impl ReplyForm {
    /// Makes the answer. `wall` is the time of the wall clock in nanoseconds.
    pub(super) fn answer(self, outcome: Outcome, wall: u64) -> Reply {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(undone) => {
                return Reply::Error(words(&undone, matches!(self, ReplyForm::Read(_) | ReplyForm::Scan(_))));
            }
        };
        match (self, answer) {
            (_, KeyspaceAnswer::Refused(refusal)) => Reply::Error(refused(refusal)),
            (ReplyForm::Read(shape), KeyspaceAnswer::Found(found)) => shape.answer(found.into(), wall),
            (ReplyForm::Scan(request), KeyspaceAnswer::Keys { keys, next }) => {
                request.answer(Scanned::Piece { keys, next: next.map(Token) })
            }
            (ReplyForm::Done, KeyspaceAnswer::Done { .. }) => Reply::OK,
            (ReplyForm::DoneIf, KeyspaceAnswer::Done { count: 1, .. }) => Reply::OK,
            (ReplyForm::DoneIf, KeyspaceAnswer::Done { .. }) => Reply::Null,
            (ReplyForm::Count, KeyspaceAnswer::Done { count, .. }) => Reply::Number(count),
            (ReplyForm::Before, KeyspaceAnswer::Done { before, .. }) => match before {
                Value::String(value) => Reply::Bulk(value),
                Value::Nothing => Reply::Null,
                Value::Hash(_) => Reply::Error(String::from(WRONG_TYPE)),
            },
            (form, answer) => unreachable!("{form:?} was answered with {answer:?}"),
        }
    }
}

/// Describes a request that failed. If a write changed nothing, the text says that, too.
fn words(undone: &RequestError, reads: bool) -> String {
    match (undone, reads) {
        (RequestError::Unsupported(what), _) => format!("ERR this map does not support {what}"),
        (RequestError::NotDone(why), true) => format!("UNAVAILABLE {why}"),
        (RequestError::NotDone(why), false) => format!("UNAVAILABLE {why}: nothing was written"),
        (RequestError::MaybeApplied(why), true) => format!("UNANSWERED {why}"),
        (RequestError::MaybeApplied(why), false) => {
            format!("MAYBEAPPLIED {why}: the write may take effect at any time from now on, or never")
        }
    }
}

fn refused(refusal: Refusal) -> String {
    match refusal {
        Refusal::WrongType => WRONG_TYPE.to_owned(),
        Refusal::NoNumber => NO_NUMBER.to_owned(),
        Refusal::NoNumberInField => String::from("ERR hash value is not an integer"),
        Refusal::Overflow => String::from("ERR increment or decrement would overflow"),
        Refusal::Answer => {
            format!(
                "TOOLARGE the answer would have more than {ANSWER_BYTES_MAX} bytes: read fewer keys at once"
            )
        }
        Refusal::OtherRequest => String::from(
            "ERR QUORATE ID: this id belongs to another request, and nothing was written: use a new id for each request",
        ),
        Refusal::TooLarge => {
            format!("TOOLARGE a value has at most {VALUE_BYTES_MAX} bytes: nothing was written")
        }
        Refusal::Full => String::from("OOM the map holds as many bytes as it may: nothing was written"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn outcomes_become_replies() {
        let done = |count, before| Ok(KeyspaceAnswer::Done { count, before });
        assert_eq!(ReplyForm::DoneIf.answer(done(0, Value::Nothing), 0), Reply::Null);
        assert_eq!(
            ReplyForm::Before.answer(done(1, Value::String(Bytes::from_static(b"v"))), 0),
            Reply::Bulk(Bytes::from_static(b"v"))
        );
        assert_eq!(ReplyForm::Count.answer(done(3, Value::Nothing), 0), Reply::Number(3));
        let Reply::Error(text) = ReplyForm::Count.answer(Ok(KeyspaceAnswer::Refused(Refusal::NoNumber)), 0)
        else {
            panic!("no error")
        };
        assert_eq!(text, NO_NUMBER);
        let maybe = ReplyForm::Done.answer(Err(RequestError::MaybeApplied(String::from("why"))), 0);
        assert!(matches!(maybe, Reply::Error(text) if text.starts_with("MAYBEAPPLIED why")));
    }
}
