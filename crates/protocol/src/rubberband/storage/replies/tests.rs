use super::*;
use crate::rubberband::{
    RequestId,
    sample::{range, text},
};

const ALL: [Range; 2] = [Range { low: 0, high: 9 }, Range { low: 10, high: 19 }];

fn name(session: u128, number: u64) -> WriteName {
    WriteName { request: RequestId { session, number }, print: 0, repeated: true }
}

/// Returns a result whose answer has this many bytes.
fn done(at: u64, range: Range, bytes: usize) -> Remembered {
    Remembered { at: Position(at), results: Ok(vec![(range, Some(Bytes::from(vec![at as u8; bytes])))]) }
}

fn failed(at: u64, why: &'static str) -> Remembered {
    Remembered { at: Position(at), results: Err(Some(Bytes::from_static(why.as_bytes()))) }
}

/// Formats everything that is remembered.
fn shown(replies: &Replies) -> String {
    let mut lines = Vec::new();
    for (range, memory) in &replies.ranges {
        for (&(session, _), block) in &memory.blocks {
            for (&(number, _), known) in block.iter() {
                let what = match &known.results {
                    Err(why) => format!("failed {}", String::from_utf8_lossy(why.as_deref().unwrap_or(b"?"))),
                    Ok(answers) => {
                        let answer = |(_, answer): &(Range, Option<Bytes>)| match answer {
                            Some(bytes) => bytes.len().to_string(),
                            None => String::from("gone"),
                        };
                        answers.iter().map(answer).collect::<Vec<_>>().join(" ")
                    }
                };
                lines.push(format!("{} {session}.{number}@{} {what}", text(*range), known.at));
            }
        }
    }
    lines.join(", ")
}

/// Moves a pinned memory in sections of `bytes_max` bytes. Returns the copy and the number of sections.
fn moved(pinned: &Pinned, ranges: &[Range], bytes_max: usize, keeps: usize) -> (Replies, usize) {
    let (mut to, mut cursor, mut sections) = (Replies::new(keeps, 1000), None, 0);
    loop {
        let (section, next) = pinned.section(ranges, cursor, bytes_max);
        assert!(to.take_in(&section));
        sections += 1;
        match next {
            None => return (to, sections),
            next => cursor = next,
        }
    }
}

#[test]
fn a_write_is_pending_until_it_is_done() {
    let (mut replies, one) = (Replies::new(1000, 1000), name(1, 1));
    assert!(!replies.is_pending(one));
    replies.begin(one);
    assert!(replies.is_pending(one));
    replies.finish(one);
    replies.remember(one, ALL[0], done(5, ALL[0], 2));
    assert!(!replies.is_pending(one));
    assert_eq!(replies.known(one, ALL[0]), KnownReply::Done(&Arc::new(done(5, ALL[0], 2))));
    assert_eq!(replies.known(one, ALL[1]), KnownReply::Nothing, "each range has a memory of its own");
    assert_eq!(
        replies.known(name(2, 1), ALL[0]),
        KnownReply::Nothing,
        "another session's numbers are others"
    );
}

#[test]
#[should_panic(expected = "would be executed twice")]
fn a_remembered_write_keeps_its_first_answer() {
    let mut replies = Replies::new(1000, 1000);
    replies.remember(name(1, 1), ALL[0], done(5, ALL[0], 2));
    replies.remember(name(1, 1), ALL[0], done(6, ALL[0], 2));
}

#[test]
fn another_statement_under_a_known_id_is_refused_unless_its_gateway_gave_the_number_out() {
    let mut replies = Replies::new(1000, 1000);
    let (first, other) = (name(1, 1), WriteName { print: 9, ..name(1, 1) });
    let given_out = WriteName { repeated: false, ..other };
    replies.begin(first);
    assert!(replies.is_pending(other), "the first may still be voided");
    assert!(!replies.is_pending(given_out));
    replies.finish(first);
    assert_eq!(replies.known(other, ALL[0]), KnownReply::Nothing);
    replies.remember(first, ALL[0], done(5, ALL[0], 2));
    assert_eq!(replies.known(other, ALL[0]), KnownReply::OtherStatement);
    assert_eq!(replies.known(given_out, ALL[0]), KnownReply::Nothing);
    replies.remember(given_out, ALL[0], done(6, ALL[0], 3));
    assert_eq!(replies.known(first, ALL[0]), KnownReply::Done(&Arc::new(done(5, ALL[0], 2))));
    assert_eq!(replies.known(other, ALL[0]), KnownReply::Done(&Arc::new(done(6, ALL[0], 3))));
}

#[test]
fn beyond_the_bound_the_outcome_stays_and_the_oldest_answers_go() {
    let mut replies = Replies::new(250, 1000);
    for at in 1..=4 {
        replies.remember(name(1, at), ALL[0], done(at, ALL[0], 100));
    }
    replies.remember(name(1, 5), ALL[1], done(4, ALL[1], 100));
    replies.remember(name(1, 6), ALL[0], done(6, ALL[0], OUTCOME_BYTES_MAX));
    let known = "0-9 1.1@1 gone, 0-9 1.2@2 gone, 0-9 1.3@3 100, 0-9 1.4@4 100, 0-9 1.6@6 64, 10-19 1.5@4 100";
    assert_eq!(shown(&replies), known, "each range by itself, and outcomes do not count");
    assert_eq!(replies.size(), (6, 300));
    replies.remember(name(1, 7), ALL[1], done(7, ALL[1], 251));
    assert!(shown(&replies).ends_with("10-19 1.5@4 gone, 10-19 1.7@7 gone"), "one that alone is too long");
    let why = Bytes::from(vec![b'x'; FAILURE_BYTES_MAX + 1]);
    replies.remember(name(1, 8), ALL[1], Remembered { at: Position(8), results: Err(Some(why)) });
    assert!(shown(&replies).ends_with("1.8@8 failed ?"));
}

/// Beyond the bound, the oldest reasons are dropped: clients choose how often their writes fail.
#[test]
fn beyond_the_bound_the_oldest_reasons_go() {
    let mut replies = Replies::new(1000, 250);
    for at in 1..=4 {
        let results = Err(Some(Bytes::from(vec![b'x'; 100])));
        replies.remember(name(1, at), ALL[0], Remembered { at: Position(at), results });
    }
    let why = |replies: &Replies, number| match replies.known(name(1, number), ALL[0]) {
        KnownReply::Done(remembered) => remembered.results.clone().unwrap_err().is_some(),
        _ => panic!("its outcome stays"),
    };
    assert_eq!([1, 2, 3, 4].map(|number| why(&replies, number)), [false, false, true, true]);
    assert_eq!(replies.ranges[&ALL[0]].failure_bytes, 200);
    replies.forget(1, 5, &[]);
    assert_eq!((replies.ranges[&ALL[0]].failure_bytes, replies.size()), (0, (0, 0)));
}

#[test]
fn a_pinned_reply_memory_is_frozen_and_moves_only_its_ranges() {
    let mut replies = Replies::new(250, 1000);
    for at in 1..=3 {
        replies.remember(name(1, at), ALL[0], done(at, ALL[0], 80));
    }
    replies.remember(name(1, 3), ALL[1], done(3, ALL[1], 80));
    let (before, pinned) = (shown(&replies), replies.pin(&ALL));
    replies.remember(name(1, 4), ALL[0], done(4, ALL[0], 90));
    replies.forget(1, 3, &[]);
    assert_eq!(shown(&replies), "0-9 1.3@3 80, 0-9 1.4@4 90, 10-19 1.3@3 80");
    assert_eq!(replies.size(), (3, 250));
    let (whole, sections) = moved(&pinned, &ALL, 1 << 20, 250);
    assert_eq!((shown(&whole), sections), (before, 1));
    let (one, sections) = moved(&pinned, &ALL[..1], 1, 250);
    assert_eq!((shown(&one).as_str(), sections), ("0-9 1.1@1 80, 0-9 1.2@2 80, 0-9 1.3@3 80", 3));
    // The moved memory keeps to the bound as the original memory would have.
    let mut went_on = Replies::new(250, 1000);
    went_on.adopt(one);
    went_on.remember(name(1, 4), ALL[0], done(4, ALL[0], 90));
    assert_eq!(shown(&went_on), "0-9 1.1@1 gone, 0-9 1.2@2 80, 0-9 1.3@3 80, 0-9 1.4@4 90");
}

#[test]
fn a_section_that_is_cut_short_is_refused() {
    let mut replies = Replies::new(250, 1000);
    replies.remember(name(1, 1), ALL[0], done(5, ALL[0], 3));
    replies.remember(name(2, 4), ALL[0], failed(6, "divided"));
    let (bytes, _) = replies.pin(&ALL).section(&ALL, None, 1000);
    for length in 0..bytes.len() {
        assert!(!Replies::new(0, 1000).take_in(&bytes[..length]), "{length} of {} bytes", bytes.len());
    }
}

#[test]
fn a_session_is_forgotten_from_below_or_whole_but_for_single_numbers() {
    let mut replies = Replies::new(1000, 1000);
    for number in 1..=600 {
        replies.remember(name(1, number), ALL[0], done(number, ALL[0], 2));
    }
    replies.remember(name(2, 1), ALL[0], done(700, ALL[0], 100));
    let numbers = |replies: &Replies| {
        let memory = &replies.ranges[&ALL[0]];
        let all = memory
            .blocks
            .iter()
            .flat_map(|((session, _), block)| block.keys().map(move |(number, _)| (*session, *number)));
        all.collect::<Vec<_>>()
    };
    replies.forget(1, 599, &[3, 300]);
    replies.forget(9, 3, &[]);
    assert_eq!(numbers(&replies), [(1, 3), (1, 300), (1, 599), (1, 600), (2, 1)]);
    replies.forget(1, 599, &[300]);
    assert_eq!(numbers(&replies), [(1, 300), (1, 599), (1, 600), (2, 1)]);
    replies.forget(1, 2, &[]);
    assert_eq!(replies.size(), (4, 100), "an older message forgets no more");
    replies.forget(2, u64::MAX, &[]);
    replies.forget(1, u64::MAX, &[]);
    assert_eq!(replies.size(), (0, 0), "the sessions are over");
}

/// A memory that moves at any point of a history, and then takes the rest of the history, equals a memory
/// that did not move.
#[test]
fn a_moved_reply_memory_equals_one_that_stayed() {
    let mut state = 7u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut gone = 0;
    for _ in 0..300 {
        let (length, section) = (1 + random(120), 1 + random(4000) as usize);
        let moves = 1 + random(length);
        let mut stays = Replies::new(500, 1000);
        let mut goes: Option<Replies> = None;
        for at in 1..=length {
            if at == moves {
                let mut other = Replies::new(500, 1000);
                other.adopt(moved(&stays.pin(&ALL[..1]), &ALL[..1], section, usize::MAX).0);
                goes = Some(other);
            }
            let (number, bytes, forgets) = (random(700), random(200) as usize, random(20) == 0);
            for replies in [Some(&mut stays), goes.as_mut()].into_iter().flatten() {
                if replies.known(name(1, number), ALL[0]) == KnownReply::Nothing {
                    replies.remember(name(1, number), ALL[0], done(at, ALL[0], bytes));
                }
                if forgets {
                    replies.forget(1, number / 2, &[number / 3]);
                }
            }
            let memory = &stays.ranges[&ALL[0]];
            let known = memory.blocks.values().flat_map(|block| block.values());
            let counted: usize = known.clone().map(|known| known.bytes()).sum();
            assert!(counted == memory.bytes && counted <= 500 && known.count() == memory.writes);
        }
        let goes = goes.expect("it moved");
        assert_eq!(shown(&goes), shown(&stays));
        assert_eq!(goes.size(), stays.size());
        gone += shown(&goes).matches("gone").count();
    }
    assert!(gone > 1000, "{gone} answers went");
}

#[test]
fn replies_are_found_by_the_keys_of_their_range() {
    let mut replies = Replies::new(1000, 1000);
    replies.remember(name(1, 1), ALL[1], done(5, ALL[1], 2));
    assert_eq!(replies.concerned(&[range(0, 9)]).count(), 0);
    assert_eq!(replies.concerned(&[range(0, 10)]).collect::<Vec<_>>(), [ALL[1]]);
    replies.clear(&[ALL[1]]);
    assert_eq!(replies.size(), (0, 0));
}

#[test]
fn made_up_ids_expire_by_position() {
    let mut replies = Replies::new(1000, 1000);
    let made_up = |digest| WriteName { request: RequestId::made_up(digest), print: 0, repeated: true };
    for (at, name) in [(1, made_up(7)), (2, name(1, 1)), (3, made_up(u128::MAX)), (4, made_up(9))] {
        replies.remember(name, ALL[0], done(at, ALL[0], 100));
    }
    let pinned = replies.pin(&ALL);
    replies.expire(Position(3));
    assert_eq!(replies.known(made_up(7), ALL[0]), KnownReply::Nothing);
    assert_eq!(replies.known(made_up(u128::MAX), ALL[0]), KnownReply::Nothing);
    assert_eq!(replies.size(), (2, 200));
    let (mut moved, _) = moved(&pinned, &ALL, 1, 1000);
    moved.expire(Position(3));
    assert_eq!(shown(&moved), shown(&replies), "where it moved, it expires alike");
}
