//! Tests when a client asks about a write, what it reports of the outcome, and what the ranges may forget.

use std::ops::RangeInclusive;

use super::*;
use crate::{
    ecast::{self, Outcome},
    id::Peer,
    rubberband::{
        client::{
            ClientSettings,
            tests::{ME, START, direct, failed, gateway, led, piece, reply, said, within, write},
        },
        sample::{RecordingSink, process, range},
    },
    seam::{Input, Session},
};

const SESSION: u128 = ME.incarnation.0;

fn id(number: u64) -> RequestId {
    RequestId { session: SESSION, number }
}

/// Builds a gateway of a single storage process.
fn client() -> Client {
    gateway(1, &[0], "A", ClientSettings::default())
}

/// Makes the write of this token stable.
fn stable(client: &mut Client, token: u64) {
    let attempt = client.requests[&token].attempt;
    within(START, |cx, out| client.on_outcome(cx, attempt, Outcome::Stable, out));
}

/// Moves to the time of the next check, and returns the client's output.
fn look_after(client: &mut Client) -> RecordingSink<Client> {
    let (at, _) = *client.look.first().expect("something is looked after");
    said(client, at, Input::Deadline)
}

/// Returns the numbers of writes with unknown outcome.
fn maybe(client: &Client) -> Vec<u64> {
    client.maybe.iter().map(|(_, number)| *number).collect()
}

fn asked(said: &RecordingSink<Client>) -> usize {
    direct(said).iter().filter(|(_, message)| matches!(message, Direct::Ask { .. })).count()
}

#[test]
fn an_answer_sent_before_the_link_stood_is_requested_soon() {
    // A gateway comes back as a new process, and its users send requests before it knows the configuration.
    // If a write is answered before the link to its replica is up, the client asks for the answer soon.
    let mut client = Client::new(
        Peer { id: ME, address: String::new() },
        String::from("gateway-1"),
        ClientSettings::default(),
    );
    said(&mut client, START, write(1, None, false, range(0, 9)));
    client.membership.know(gateway(1, &[0], "A", ClientSettings::default()).config().unwrap().clone());
    stable(&mut client, 1);
    let linked = |peer| Input::Linked { peer: process(peer), session: Session(peer) };
    let now = START + Duration::from_millis(100);
    said(&mut client, now, linked(60));
    assert!(client.look.first().is_some_and(|(at, _)| *at > now + Duration::from_secs(1)), "no storage");
    said(&mut client, now, linked(1));
    let soon = now + client.settings.retry_after;
    assert_eq!(asked(&said(&mut client, soon, Input::Deadline)), 1);
    // The client also asks soon for the answer to a write that is ordered only after the link is up.
    let mut client = self::client();
    said(&mut client, START, write(2, None, false, range(0, 9)));
    said(&mut client, START, linked(1));
    stable(&mut client, 2);
    assert_eq!(client.look.first(), Some(&(START + client.settings.retry_after, 2)));
}

#[test]
fn the_end_of_a_write_releases_only_its_own_number() {
    let mut client = client();
    said(&mut client, START, write(1, None, false, range(0, 9)));
    said(&mut client, START, write(2, None, false, range(0, 9)));
    // The first number of another gateway's session.
    let other = RequestId { session: 77, number: 1 };
    said(&mut client, START, write(3, Some(other), true, range(0, 9)));
    for token in [1, 2, 3] {
        stable(&mut client, token);
    }
    let done = |client: &mut Client, token| {
        let answer = piece(client, token, 0, true, range(0, 9));
        reply(client, START, 1, answer);
        client.writes.iter().copied().collect::<Vec<_>>()
    };
    assert_eq!(done(&mut client, 3), [1, 2]);
    assert_eq!(done(&mut client, 2), [1]);
    assert_eq!(done(&mut client, 1), []);
}

#[test]
fn an_own_write_of_unknown_fate_is_remembered_once_until_it_is_known() {
    let mut client = client();
    let give_up = |client: &mut Client, now: Time, token| {
        failed(&within(now, |cx, out| client.give_up(cx.now, token, out)).events)
    };
    for number in 1..=3 {
        said(&mut client, START, write(number, None, false, range(0, 9)));
        let request = id(number);
        assert_eq!(give_up(&mut client, START, number), [(number, ClientError::MaybeApplied { request })]);
    }
    assert_eq!(maybe(&client), [1, 2, 3]);
    // A repetition that fails does not prolong the memory of a number. A number of another gateway's session
    // is not remembered.
    let later = START + Duration::from_secs(1);
    said(&mut client, later, write(4, Some(id(2)), true, range(0, 9)));
    give_up(&mut client, later, 4);
    said(&mut client, later, write(5, Some(RequestId { session: 77, number: 9 }), true, range(0, 9)));
    give_up(&mut client, later, 5);
    assert_eq!(client.maybe, [(START, 1), (START, 2), (START, 3)]);
    // If the client has given up a number, a repetition under this number makes the client remember it
    // again.
    client.maybe.retain(|(_, number)| *number != 2);
    said(&mut client, later, write(6, Some(id(2)), true, range(0, 9)));
    give_up(&mut client, later, 6);
    assert_eq!(client.maybe, [(START, 1), (START, 3), (later, 2)]);
    // A repetition that is done, or known to have failed, ends the memory of its number.
    said(&mut client, later, write(7, Some(id(1)), true, range(0, 9)));
    stable(&mut client, 7);
    let answer = piece(&client, 7, 0, true, range(0, 9));
    reply(&mut client, later, 1, answer);
    assert_eq!(maybe(&client), [3, 2]);
    for applied in [true, false] {
        let number = if applied { 3 } else { 2 };
        said(&mut client, later, write(8, Some(id(number)), true, range(0, 9)));
        stable(&mut client, 8);
        let content = ReplyContent::Forgotten { applied };
        let known = Reply { content, ..piece(&client, 8, 0, true, range(0, 9)) };
        let output = reply(&mut client, later, 1, known);
        assert_eq!(failed(&output.events), [(8, ClientError::Forgotten { applied })]);
        assert!(!maybe(&client).contains(&number));
    }
}

#[test]
fn the_outcome_of_another_gateways_write_does_not_decide_an_own_write() {
    let mut client = client();
    said(&mut client, START, write(1, None, false, range(0, 9)));
    within(START, |cx, out| client.give_up(cx.now, 1, out));
    let other = RequestId { session: 77, number: 1 };
    for (token, content) in
        [(2, ReplyContent::Forgotten { applied: false }), (3, ReplyContent::Answer(Default::default()))]
    {
        said(&mut client, START, write(token, Some(other), true, range(0, 9)));
        stable(&mut client, token);
        let known = Reply { content, ..piece(&client, token, 0, true, range(0, 9)) };
        reply(&mut client, START, 1, known);
        assert!(!client.requests.contains_key(&token));
        assert_eq!(maybe(&client), [1]);
    }
}

#[test]
fn a_change_of_the_configuration_is_no_write_of_unknown_fate() {
    let mut client = client();
    let control = crate::rubberband::ClientCommand::Control { token: 1, control: Control::Leave };
    said(&mut client, START, Input::Command(control));
    let output = within(START, |cx, out| client.give_up(cx.now, 1, out));
    assert!(matches!(failed(&output.events)[..], [(1, ClientError::MaybeApplied { .. })]));
    assert_eq!(maybe(&client), []);
}

#[test]
fn a_missing_answer_is_asked_for_sooner_when_it_may_have_been_lost() {
    let settings = ClientSettings::default();
    let (patience, retry_after) = (settings.patience, settings.retry_after);
    for (doubted, after) in [(false, patience), (true, retry_after)] {
        let mut client = gateway(1, &[0], "A", settings.clone());
        said(&mut client, START, write(1, None, false, range(0, 9)));
        if let Kind::Write(write) = &mut client.requests.get_mut(&1).expect("it is under way").kind {
            write.doubted = doubted;
        }
        stable(&mut client, 1);
        assert_eq!(client.look.first(), Some(&(START + after, 1)), "doubted: {doubted}");
    }
}

#[test]
fn a_write_whose_session_is_over_is_asked_about_once() {
    let mut client = client();
    let other = RequestId { session: 77, number: 1 };
    said(&mut client, START, write(1, Some(other), true, range(0, 9)));
    stable(&mut client, 1);
    let first = look_after(&mut client);
    assert_eq!((asked(&first), failed(&first.events)), (1, vec![]));
    let second = look_after(&mut client);
    let lost = ClientError::MaybeApplied { request: other };
    assert_eq!((asked(&second), failed(&second.events)), (0, vec![(1, lost)]));
    // A made-up id has no session.
    said(&mut client, START, write(2, Some(RequestId::made_up(7)), true, range(0, 9)));
    stable(&mut client, 2);
    for _ in 0..3 {
        let output = look_after(&mut client);
        assert_eq!((asked(&output), failed(&output.events)), (1, vec![]));
    }
}

#[test]
fn a_write_is_given_up_when_all_processes_that_know_its_outcome_are_unreachable() {
    let mut client = gateway(2, &[0, 10], "AA", ClientSettings::default());
    said(&mut client, START, write(1, None, false, range(0, 9)));
    stable(&mut client, 1);
    let since = Time(START.0 - 60_000_000_000);
    let unreached = || crate::rubberband::client::Unreached { since, reported: true };
    client.unreached.insert(process(1), unreached());
    assert_eq!(failed(&look_after(&mut client).events), [], "the second may tell");
    client.unreached.insert(process(2), unreached());
    let lost = ClientError::MaybeApplied { request: id(1) };
    assert_eq!(failed(&look_after(&mut client).events), [(1, lost)]);
    // An unordered write may not take effect at all. If a range has no replica, new replicas may come.
    let mut client = gateway(2, &[0, 10], "AA", ClientSettings::default());
    said(&mut client, START, write(1, None, false, range(0, 9)));
    client.unreached.extend([1, 2].map(|node| (process(node), unreached())));
    let output = within(START, |cx, out| client.look_after_write(cx, 1, out));
    assert_eq!(failed(&output.events), []);
    let mut client = gateway(1, &[0], "D", ClientSettings::default());
    said(&mut client, START, write(1, None, false, range(0, 9)));
    stable(&mut client, 1);
    assert_eq!(failed(&look_after(&mut client).events), []);
}

/// Settings with which the ranges forget writes in steps of 16 numbers, and remember the last 32 numbers.
fn forgetful() -> ClientSettings {
    ClientSettings {
        forget_every: 16,
        remembered_min: 32,
        remembered_max: 5_000,
        retention: Duration::from_secs(10),
        ..ClientSettings::default()
    }
}

/// Returns the contents of the next `Forget`: the first number that is not forgotten, and the lower numbers
/// that are not forgotten either.
fn forgets(client: &mut Client, now: Time) -> Option<(u64, Vec<u64>)> {
    let before = client.forgotten;
    let said = said(client, now, Input::Drained);
    let blocks = said.sent.iter().filter_map(|(_, message)| match message {
        Message::Order(ecast::Message::Route(block)) => Some(block),
        _ => None,
    });
    let sent: Vec<&[u8]> = blocks.map(|block| &block[..]).collect();
    let was_sent = |below: u64, kept: &[u64]| {
        let forget = Control::Forget { session: SESSION, below, kept: kept.to_vec() }.encode();
        sent.iter().any(|block| block.windows(forget.len()).any(|part| part == forget))
    };
    if client.forgotten == before {
        return None;
    }
    // If more numbers should be kept than a message may name, the message keeps the lowest ones.
    let below = client.forgotten;
    let mut known: Vec<u64> = maybe(client).into_iter().chain(client.writes.iter().copied()).collect();
    known.sort_unstable();
    let kept = (0..=known.len()).map(|count| &known[..count]).find(|kept| was_sent(below, kept));
    Some((below, kept.expect("it was told").to_vec()))
}

#[test]
fn the_ranges_forget_in_steps_behind_the_newest_numbers() {
    let mut client = gateway(1, &[0], "A", forgetful());
    led(&mut client);
    let mut steps = Vec::new();
    for number in 1..=100 {
        client.number = number;
        steps.extend(forgets(&mut client, START).map(|(below, kept)| (number, below, kept)));
    }
    assert_eq!(steps, [(48, 16, vec![]), (64, 32, vec![]), (80, 48, vec![]), (96, 64, vec![])]);
}

#[test]
fn numbers_that_users_may_still_ask_about_are_kept() {
    let mut client = gateway(1, &[0], "A", forgetful());
    led(&mut client);
    client.maybe.extend([(START, 3), (START, 16), (START, 20)]);
    client.writes.extend([1, 3, 17]);
    client.number = 48;
    assert_eq!(forgets(&mut client, START), Some((16, vec![1, 3])), "16 is not below 16");
}

#[test]
fn writes_of_unknown_fate_are_given_up_after_a_time_or_many_later_writes() {
    let retention = forgetful().retention;
    for (age, numbers, kept) in [
        (retention, 5_000, true),
        (retention + Duration::from_nanos(1), 100, false),
        (Duration::ZERO, 5_001, false),
        (Duration::ZERO, 100, true),
    ] {
        let mut client = gateway(1, &[0], "A", forgetful());
        led(&mut client);
        client.maybe.push_back((START, 1));
        client.number = 1 + numbers;
        forgets(&mut client, START + age);
        assert_eq!(maybe(&client), if kept { vec![1] } else { vec![] }, "{age:?} {numbers}");
    }
}

#[test]
fn too_many_stuck_numbers_block_forgetting_and_are_not_recounted() {
    let mut client = gateway(1, &[0], "A", forgetful());
    led(&mut client);
    let stuck: RangeInclusive<u64> = 1..=KEPT_MAX as u64 + 1;
    client.maybe.extend(stuck.map(|number| (START, number)));
    client.number = 3_000;
    let (below, kept) = forgets(&mut client, START).expect("those that are kept singly");
    assert_eq!((below, kept.len()), (KEPT_MAX as u64 + 1, KEPT_MAX));
    // Nothing more can be forgotten, so the client checks again only after some more writes.
    client.number = 3_001;
    assert_eq!((forgets(&mut client, START), client.forget_check_at), (None, 3_002));
    client.maybe.clear();
    assert_eq!((forgets(&mut client, START), client.forget_check_at), (None, 3_002));
    client.number = 3_002;
    assert_eq!(forgets(&mut client, START), Some((3_002 - 32, vec![])));
}

/// The client asks about a write sooner while a process is out of reach, because that process may be the
/// replica that answers the write's range.
#[test]
fn a_write_is_asked_about_sooner_while_a_process_is_out_of_reach() {
    let settings = ClientSettings::default();
    assert!(settings.retry_after < settings.patience);
    for (cut, after) in [(false, settings.patience), (true, settings.retry_after)] {
        let mut client = gateway(2, &[0, 10], "AA", ClientSettings::default());
        if cut {
            said(&mut client, START, Input::Unlinked { peer: process(2) });
        }
        said(&mut client, START, write(1, None, false, range(0, 9)));
        stable(&mut client, 1);
        assert_eq!(client.look.first(), Some(&(START + after, 1)), "{cut}");
    }
}
