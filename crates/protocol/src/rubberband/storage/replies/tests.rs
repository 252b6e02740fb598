use super::*;
use crate::rubberband::{
    RequestId,
    sample::{range, text},
};

fn request(session: u128, number: u64) -> WriteName {
    WriteName { request: RequestId { session, number }, print: 0, repeated: true }
}

fn is_done(replies: &Replies, name: WriteName) -> bool {
    matches!(replies.known(name), Known::Done(_))
}

/// A write's answers: from low keys to what was said there.
fn done(at: u64, answers: &[(u64, &str)]) -> Remembered {
    let answer = |&(low, text): &(u64, &str)| (range(low, low + 9), Bytes::copy_from_slice(text.as_bytes()));
    Remembered { at: Position(at), results: Ok(answers.iter().map(answer).collect()) }
}

fn failed(at: u64, why: &'static str) -> Remembered {
    Remembered { at: Position(at), results: Err(Bytes::from_static(why.as_bytes())) }
}

fn replies(writes: &[(WriteName, Remembered)]) -> Replies {
    let mut replies = Replies::default();
    for (request, remembered) in writes {
        replies.begin(*request);
        replies.finish(*request, remembered.clone());
    }
    replies
}

/// What is remembered, as text.
fn shown(replies: &Replies) -> String {
    let mut lines = Vec::new();
    for (session, numbers) in &replies.sessions {
        for ((number, _), entry) in numbers {
            let what = match entry {
                Entry::Pending => "pending".to_string(),
                Entry::Done(known) => match &known.results {
                    Err(why) => format!("{} failed {}", known.at, String::from_utf8_lossy(why)),
                    Ok(answers) => {
                        let answer = |(range, bytes): &(Range, Bytes)| {
                            format!("{}={}", text(*range), String::from_utf8_lossy(bytes))
                        };
                        format!("{} {}", known.at, answers.iter().map(answer).collect::<Vec<_>>().join(" "))
                    }
                },
            };
            lines.push(format!("{session}.{number}: {what}"));
        }
    }
    lines.join(", ")
}

#[test]
fn a_write_is_pending_until_it_is_done() {
    let mut replies = Replies::default();
    let one = request(1, 1);
    assert_eq!(replies.known(one), Known::Nothing);
    replies.begin(one);
    assert_eq!(replies.known(one), Known::Pending);
    replies.finish(one, done(5, &[(0, "ok")]));
    assert_eq!(replies.known(one), Known::Done(&done(5, &[(0, "ok")])));
    assert_eq!(replies.known(request(2, 1)), Known::Nothing, "another session's numbers are others");
}

#[test]
fn another_statement_under_a_known_id_is_refused_unless_its_gateway_gave_the_number_out() {
    let mut replies = Replies::default();
    let (first, other) = (request(1, 1), WriteName { print: 9, ..request(1, 1) });
    let given_out = WriteName { repeated: false, ..other };
    replies.begin(first);
    assert_eq!(replies.known(other), Known::Pending, "the first may still be voided");
    replies.cancel(first);
    assert_eq!(replies.known(other), Known::Nothing);
    replies.begin(first);
    replies.finish(first, done(5, &[(0, "ok")]));
    assert_eq!(replies.known(other), Known::OtherStatement);
    assert_eq!(replies.known(given_out), Known::Nothing);
    replies.begin(given_out);
    replies.finish(given_out, done(6, &[(0, "mine")]));
    assert_eq!(replies.known(first), Known::Done(&done(5, &[(0, "ok")])));
    assert_eq!(replies.known(other), Known::Done(&done(6, &[(0, "mine")])));
}

#[test]
#[should_panic(expected = "would be executed twice")]
fn what_is_remembered_is_not_begun_again() {
    replies(&[(request(1, 1), done(5, &[]))]).begin(request(1, 1));
}

#[test]
fn what_other_ranges_answered_is_put_together() {
    let mut ours = replies(&[
        (request(1, 1), done(5, &[(0, "a")])),
        (request(1, 2), failed(6, "divided")),
        (request(2, 1), done(7, &[(0, "mine")])),
    ]);
    ours.merge(replies(&[
        (request(1, 1), done(5, &[(0, "a"), (10, "b")])),
        (request(1, 2), failed(6, "divided")),
        (request(1, 3), done(8, &[(10, "c")])),
        (request(3, 1), failed(9, "full")),
    ]));
    let merged =
        "1.1: 5 0-9=a 10-19=b, 1.2: 6 failed divided, 1.3: 8 10-19=c, 2.1: 7 0-9=mine, 3.1: 9 failed full";
    assert_eq!(shown(&ours), merged);
    ours.merge(ours.clone());
    assert_eq!(shown(&ours), merged, "the same again changes nothing");
}

/// A pin keeps a copy while the original goes on: merging into one must not show in the other.
#[test]
fn a_copy_keeps_what_it_was() {
    let mut original = replies(&[(request(1, 1), done(5, &[(0, "a")]))]);
    let copy = original.clone();
    original.merge(replies(&[(request(1, 1), done(5, &[(10, "b")]))]));
    assert_eq!(shown(&original), "1.1: 5 0-9=a 10-19=b");
    assert_eq!(shown(&copy), "1.1: 5 0-9=a");
}

#[test]
fn what_moves_is_what_is_done() {
    let mut from = replies(&[(request(1, 1), done(5, &[(0, "a")])), (request(2, 4), failed(6, "divided"))]);
    from.begin(request(1, 2));
    let bytes = from.encode();
    let mut to = Replies::decode(&bytes).expect("our own bytes decode");
    assert_eq!(shown(&to), "1.1: 5 0-9=a, 2.4: 6 failed divided");
    to.begin(request(1, 2));
    for length in 0..bytes.len() {
        assert!(Replies::decode(&bytes[..length]).is_none(), "{length} of {} bytes", bytes.len());
    }
    let mut ours = Replies::default();
    ours.merge(from);
    assert_eq!(
        shown(&ours),
        "1.1: 5 0-9=a, 2.4: 6 failed divided",
        "what another executes is not pending here"
    );
}

#[test]
fn a_session_is_forgotten_from_below_or_whole() {
    let mut replies = replies(&[
        (request(1, 1), done(5, &[])),
        (request(1, 2), done(6, &[])),
        (request(1, 3), done(7, &[])),
        (request(2, 1), done(8, &[])),
    ]);
    replies.forget(1, 1);
    assert_eq!(replies.sessions[&1].len(), 3, "1 itself is not below 1");
    replies.forget(1, 3);
    replies.forget(9, 3);
    let left: Vec<_> = replies
        .sessions
        .iter()
        .map(|(s, n)| (*s, n.keys().map(|(number, _)| *number).collect::<Vec<_>>()))
        .collect();
    assert_eq!(left, [(1, vec![3]), (2, vec![1])]);
    replies.forget(1, 2);
    assert!(is_done(&replies, request(1, 3)), "an older message forgets no more");
    replies.forget(1, u64::MAX);
    assert_eq!(replies.sessions.keys().copied().collect::<Vec<_>>(), [2], "the session is over");
}
