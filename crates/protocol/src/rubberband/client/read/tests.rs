//! Tests how a gateway combines replies to its reads, and what it concludes from silence.

use smallvec::smallvec;

use super::*;
use crate::{
    ecast,
    rubberband::{
        Config,
        client::{
            ClientSettings,
            tests::{START, direct, failed, gateway, led, order, piece, read, reply, said, within},
        },
        config::State,
        membership::Delivered,
        sample::{process, range},
    },
    seam::Session,
    time::Duration,
};

/// Returns a read of one range that began at [`START`].
fn attempt() -> Read {
    Read::new(Strength::Basic, 1, smallvec![range(0, 9)], Bytes::new(), START)
}

/// Returns the client's read with this token.
fn of(client: &mut Client, token: u64) -> &mut Read {
    match &mut client.requests.get_mut(&token).expect("it is under way").kind {
        Kind::Read(read) => read,
        _ => panic!("it is a read"),
    }
}

fn answer(client: &Client, token: u64, content: ReplyContent, last: bool) -> Reply {
    Reply { content, last, ..piece(client, token, 0, last, range(0, 9)) }
}

/// Moves to the time of the next check, and returns the client's output.
fn look_after(client: &mut Client) -> crate::rubberband::sample::RecordingSink<Client> {
    let (at, _) = *client.look.first().expect("something is looked after");
    said(client, at, Input::Deadline)
}

/// Builds a client with a read from two processes, each of which has half of the ranges.
fn two_halves(strength: Strength) -> Client {
    let mut client = gateway(1, &[0, 10], "AA", ClientSettings::default());
    led(&mut client);
    said(&mut client, START, read(1, strength, &[range(0, 19)]));
    client
}

#[test]
fn a_process_linked_during_a_read_is_asked_whether_it_executes_the_read() {
    let mut client = two_halves(Strength::Sequential);
    let now = START + Duration::from_millis(100);
    let linked = || Input::Linked { peer: process(1), session: Session(7) };
    said(&mut client, now, linked());
    let soon = now + client.settings.retry_after;
    let said = said(&mut client, soon, Input::Deadline);
    let to: Vec<u64> = direct(&said)
        .into_iter()
        .map(|(to, message)| {
            assert!(matches!(message, Direct::AskRead { .. }), "{message:?}");
            to
        })
        .collect();
    assert_eq!(to, [1, 2]);
    // The client does not ask a process that has begun to answer.
    let mut client = two_halves(Strength::Basic);
    let whole = piece(&client, 1, 0, true, range(0, 9));
    reply(&mut client, START, 1, whole);
    let before = client.look.clone();
    self::said(&mut client, now, linked());
    assert_eq!(client.look, before);
}

#[test]
fn a_death_counts_against_a_read_only_where_the_read_executes() {
    let [one, two, three] = [1, 2, 3].map(process);
    let mut read = attempt();
    read.expected = smallvec![one, two];
    read.part(one).ended = true;
    for process in [one, two, three] {
        read.lost(process, false);
    }
    assert_eq!(read.died[..], [two], "the first has told all, and the third was not asked");
    // A process that answers unexpectedly executes the read. A process that did not reply in an earlier
    // attempt may be executing the read, too.
    let mut read = attempt();
    read.part(one);
    read.silent.push(two);
    for process in [one, two, three] {
        read.lost(process, false);
    }
    assert_eq!(read.died[..], [one, two]);
    read.lost(one, true);
    assert_eq!(read.died[..], [two], "whoever left has not died");
    read.lost(three, true);
    assert_eq!(read.died[..], [two]);
}

#[test]
fn a_read_waits_for_its_user_only_when_every_received_piece_is_unconsumed() {
    let [one, two] = [1, 2].map(process);
    let mut read = attempt();
    assert!(!read.waits_for_user(), "nothing came");
    read.part(one).received = 10;
    assert!(!read.waits_for_user(), "some have not begun");
    read.begun.push(range(0, 9));
    assert!(read.waits_for_user());
    read.consumed(two, 10);
    read.consumed(one, 4);
    assert!(read.waits_for_user(), "there is more to take");
    read.consumed(one, 10);
    read.consumed(one, 4);
    assert!(!read.waits_for_user(), "it has taken all: more is to come");
    read.part(two).ended = true;
    assert!(!read.waits_for_user(), "of the first");
    read.part(one).ended = true;
    assert!(read.waits_for_user());
    read.void = true;
    assert!(!read.waits_for_user(), "it is to be asked again");
}

#[test]
fn a_read_is_retried_when_a_replica_that_began_its_answer_is_lost() {
    let mut client = gateway(2, &[0, 10, 20], "AAA", ClientSettings::default());
    led(&mut client);
    said(&mut client, START, read(1, Strength::Sequential, &[range(0, 9)]));
    // The order may select a replica other than the one that the client expected.
    let expected = of(&mut client, 1).expected.clone();
    let other = [1, 2].into_iter().find(|node| !expected.contains(&process(*node))).expect("there are two");
    let begins = piece(&client, 1, 0, false, range(0, 4));
    reply(&mut client, START, other, begins);
    said(&mut client, START, Input::Unlinked { peer: process(3) });
    assert!(!of(&mut client, 1).void, "the third has nothing to do with it");
    said(&mut client, START, Input::Unlinked { peer: process(other) });
    assert!(of(&mut client, 1).void);
}

#[test]
fn an_answer_is_passed_on_piece_by_piece_and_begins_once() {
    let mut client = two_halves(Strength::Basic);
    let (low, high) = (range(0, 9), range(10, 19));
    let reply_piece = |client: &mut Client, from, number, last, covers| {
        let piece = piece(client, 1, number, last, covers);
        let said = reply(client, START, from, piece);
        let text = |event: &ClientEvent| match event {
            ClientEvent::Begun { parts, .. } => format!("begun {}", parts.len()),
            ClientEvent::Part { from, last, .. } => format!("part of {} {last}", from.node),
            ClientEvent::Done { parts, .. } => format!("done {}", parts.len()),
            other => format!("{other:?}"),
        };
        said.events.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(reply_piece(&mut client, 1, 0, false, low), "");
    assert_eq!(reply_piece(&mut client, 2, 0, false, high), "begun 2");
    assert_eq!(reply_piece(&mut client, 1, 1, false, low), "part of 1 false");
    assert_eq!(reply_piece(&mut client, 2, 1, true, high), "part of 2 true");
    assert_eq!(reply_piece(&mut client, 1, 2, true, low), "part of 1 true, done 0");
    // An answer that is complete with its first pieces causes no `Begun`.
    let mut client = two_halves(Strength::Basic);
    assert_eq!(reply_piece(&mut client, 1, 0, true, low), "");
    assert_eq!(reply_piece(&mut client, 2, 0, true, high), "done 2");
}

#[test]
fn every_asked_process_must_confirm_that_it_executes_the_read() {
    let mut client = two_halves(Strength::Basic);
    let asked = look_after(&mut client);
    let attempt = client.requests[&1].attempt;
    assert_eq!(direct(&asked), [1, 2].map(|node| (node, Direct::AskRead { token: attempt })));
    let before = of(&mut client, 1).heard;
    let later = START + Duration::from_secs(3);
    let underway = || ReplyContent::Underway;
    let first = answer(&client, 1, underway(), false);
    reply(&mut client, later, 1, first);
    assert_eq!((of(&mut client, 1).heard, &of(&mut client, 1).asked[..]), (before, &[process(2)][..]));
    let second = answer(&client, 1, underway(), false);
    reply(&mut client, later, 2, second);
    assert_eq!((of(&mut client, 1).heard, of(&mut client, 1).asked.len()), (later, 0));
    // A reply that says that the read is under way is no news if the client asked no question.
    let unasked = answer(&client, 1, underway(), false);
    reply(&mut client, later + Duration::from_secs(1), 2, unasked);
    assert_eq!(of(&mut client, 1).heard, later);
}

#[test]
fn a_process_that_answers_need_not_confirm_that_it_executes_the_read() {
    for probing in [false, true] {
        let mut client = two_halves(Strength::Basic);
        look_after(&mut client);
        of(&mut client, 1).probing = probing;
        let more = piece(&client, 1, 0, false, range(0, 9));
        reply(&mut client, START, 1, more);
        assert_eq!(of(&mut client, 1).asked, [process(2)], "probing: {probing}");
    }
}

#[test]
fn an_incomplete_answer_is_cancelled_before_another_attempt() {
    for (content, last, is_complete) in [
        (ReplyContent::Answer(Bytes::new()), true, true),
        (ReplyContent::Answer(Bytes::new()), false, false),
        (ReplyContent::Retry, true, false),
    ] {
        let mut client = two_halves(Strength::Basic);
        of(&mut client, 1).void = true;
        let reply_of_one = answer(&client, 1, content.clone(), last);
        let attempt = reply_of_one.token;
        reply(&mut client, START, 1, reply_of_one);
        let again = within(START, |cx, out| client.start_read(cx, 1, out));
        let called_off =
            direct(&again).into_iter().filter(|(_, it)| *it == Direct::Cancel { token: attempt });
        let nodes: Vec<u64> = called_off.map(|(node, _)| node).collect();
        assert_eq!(nodes, if is_complete { vec![2] } else { vec![1, 2] }, "{content:?} {last}");
    }
}

#[test]
fn attempts_behind_the_first_are_counted() {
    let mut client = two_halves(Strength::Basic);
    assert_eq!(client.retries(), 0);
    for retries in 1..3 {
        within(START, |cx, out| client.start_read(cx, 1, out));
        assert_eq!(client.retries(), retries);
    }
}

/// A client of an older domain reads the latest state through the order. No router is known, so its attempt
/// waits, and the next attempt replaces it.
#[test]
fn an_attempt_that_was_not_sent_is_taken_back() {
    let mut client = gateway(1, &[0, 10], "AA", ClientSettings::default());
    let mut older = State::from(client.config().expect("the gateway has a configuration").clone());
    older.routing = LATEST_SINCE - 1;
    client.membership.know(Config::from(older));
    said(&mut client, START, read(1, Strength::Sequential, &[range(0, 19)]));
    // The client's `Join` and the read wait, because no router is known.
    assert_eq!(client.member().outstanding(), (0, 2));
    within(START, |cx, out| client.start_read(cx, 1, out));
    assert_eq!(client.member().outstanding(), (0, 2));
}

#[test]
fn a_basic_read_goes_to_all_of_its_processes_or_to_none() {
    let mut client = gateway(1, &[0, 10], "AA", ClientSettings::default());
    said(&mut client, START, Input::Unlinked { peer: process(2) });
    let output = said(&mut client, START, read(1, Strength::Basic, &[range(0, 19)]));
    assert_eq!((direct(&output), failed(&output.events)), (vec![], vec![]));
    said(&mut client, START, Input::Linked { peer: process(2), session: crate::Session(2) });
    let output = look_after(&mut client);
    let asked = direct(&output).into_iter().filter(|(_, message)| matches!(message, Direct::Basic { .. }));
    assert_eq!(asked.map(|(node, _)| node).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_read_that_no_attempt_could_answer_is_refused() {
    let ask = |client: &mut Client, strength, table| {
        let (ranges, operation) = (smallvec![range(0, 9)], Bytes::new());
        let read = super::super::ClientCommand::Read { token: 1, strength, table, ranges, operation };
        failed(&said(client, START, Input::Command(read)).events)
    };
    for strength in [Strength::Basic, Strength::Snapshot] {
        let mut nowhere = gateway(1, &[], "", ClientSettings::default());
        assert_eq!(ask(&mut nowhere, strength, 1), [(1, ClientError::Rejected(refusal::NO_RING))]);
    }
    let mut client = gateway(1, &[0], "A", ClientSettings::default());
    let refused = [(1, ClientError::Rejected(refusal::NO_SUCH_TABLE))];
    assert_eq!(ask(&mut client, Strength::Snapshot, 2), refused);
    let mut client = gateway(1, &[0], "A", ClientSettings::default());
    assert_eq!(ask(&mut client, Strength::Snapshot, 1), [], "a router may be found");
    assert!(of(&mut client, 1).void && client.outstanding() == 1);
}

/// Returns the requests that the client has ended, and those whose answer has begun.
fn progress(events: &[ClientEvent]) -> Vec<String> {
    let text = |event: &ClientEvent| match event {
        ClientEvent::Begun { token, parts } => format!("begun {token} with {} parts", parts.len()),
        ClientEvent::Done { token, parts, .. } => format!("done {token} with {} parts", parts.len()),
        other => format!("{other:?}"),
    };
    events.iter().map(text).collect()
}

/// Gives the client a router's confirmation of the current attempt at request 1.
fn confirm(client: &mut Client) -> Vec<String> {
    let tokens = vec![client.requests[&1].attempt];
    progress(&order(client, ecast::Message::Latest { tokens }).events)
}

/// Returns the attempts for which the client asked routers to inject a read of the latest state.
fn injected(said: &crate::rubberband::sample::RecordingSink<Client>) -> Vec<u64> {
    let sent = said.sent.iter().filter_map(|(_, message)| match message {
        Message::Order(ecast::Message::InjectLatest { token, .. }) => Some(*token),
        _ => None,
    });
    sent.collect()
}

#[test]
fn the_user_gets_nothing_of_the_latest_state_before_a_router_confirms_it() {
    let (low, high) = (range(0, 9), range(10, 19));
    // The pieces arrive before the confirmation: all pieces, or only the beginning of one answer.
    for last in [true, false] {
        let mut client = two_halves(Strength::Sequential);
        for (from, covers, last) in [(1, low, true), (2, high, last)] {
            let piece = piece(&client, 1, 0, last, covers);
            assert_eq!(progress(&reply(&mut client, START, from, piece).events), [""; 0]);
        }
        let begun_or_done = if last { "done 1 with 2 parts" } else { "begun 1 with 2 parts" };
        assert_eq!(confirm(&mut client), [begun_or_done]);
    }
    // The confirmation arrives before the pieces.
    let mut client = two_halves(Strength::Sequential);
    assert_eq!(confirm(&mut client), [""; 0]);
    for (from, covers, expected) in [(1, low, vec![]), (2, high, vec!["done 1 with 2 parts"])] {
        let piece = piece(&client, 1, 0, true, covers);
        assert_eq!(progress(&reply(&mut client, START, from, piece).events), expected);
    }
}

#[test]
fn a_confirmation_counts_only_for_the_attempt_that_it_names() {
    let mut client = two_halves(Strength::Sequential);
    let before = client.requests[&1].attempt;
    within(START, |cx, out| client.start_read(cx, 1, out));
    for (from, covers) in [(1, range(0, 9)), (2, range(10, 19))] {
        let piece = piece(&client, 1, 0, true, covers);
        reply(&mut client, START, from, piece);
    }
    let late = order(&mut client, ecast::Message::Latest { tokens: vec![before] });
    assert_eq!(progress(&late.events), [""; 0]);
    assert_eq!(confirm(&mut client), ["done 1 with 2 parts"]);
}

#[test]
fn a_read_without_a_confirmation_is_injected_again_when_a_router_names_a_leader() {
    let mut client = two_halves(Strength::Sequential);
    let piece_of_one = piece(&client, 1, 0, true, range(0, 9));
    reply(&mut client, START, 1, piece_of_one);
    let before = client.requests[&1].attempt;
    led(&mut client);
    assert!(client.requests[&1].attempt > before, "the first attempt may be lost");
    // A refused attempt, whose pause has begun, is also injected again at once.
    let tokens = client.requests[&1].attempt;
    order(&mut client, ecast::Message::InjectRefused { token: tokens });
    assert!(of(&mut client, 1).void);
    led(&mut client);
    assert!(!of(&mut client, 1).void && client.requests[&1].attempt > tokens);
    // A confirmed attempt goes on.
    confirm(&mut client);
    let confirmed = client.requests[&1].attempt;
    led(&mut client);
    assert_eq!(client.requests[&1].attempt, confirmed);
}

/// The processes go on executing the read, so they report that it is under way as often as they are asked.
#[test]
fn a_read_whose_confirmation_is_lost_is_injected_again_although_its_answer_has_begun() {
    let mut client = two_halves(Strength::Sequential);
    for (from, covers) in [(1, range(0, 9)), (2, range(10, 19))] {
        let piece = piece(&client, 1, 0, false, covers);
        reply(&mut client, START, from, piece);
    }
    assert!(!of(&mut client, 1).waits_for_user(), "the user has nothing of the answer");
    let again = look_after(&mut client);
    assert_eq!(injected(&again), [client.requests[&1].attempt]);
}

#[test]
fn a_read_without_a_confirmation_ends_when_no_router_knows_a_leader() {
    let mut client = two_halves(Strength::Sequential);
    let whole = piece(&client, 1, 0, true, range(0, 19));
    reply(&mut client, START, 1, whole);
    let adrift = within(START, |cx, out| client.on_delivered(cx, Delivered::Adrift(true), out));
    assert_eq!(failed(&adrift.events), [(1, ClientError::NotSent)]);
}
