//! Tests of the decisions of one router, message by message. They include every answer and refusal that could
//! be removed from the code without a failure of the random schedules.

use bytes::Bytes;
use quorate_protocol::{
    Input, Peer, Session,
    paxos::{
        Ballot, Better, Change, ChangeRefusal, Command, Contact, Event, LeaderRoute, Message, Prepare, Pulse,
        Record, Refusal, Settings, Slot, SlotValue, StateKind,
    },
};

use super::{
    alone::{Alone, ballot, checkpoint, members, peers, value},
    world::{peer, process},
};

/// Returns router 3 of three. It holds six slots in the ballot of router 1, and has learned five of them.
fn third() -> Alone {
    Alone::from("3", &Settings::default(), checkpoint("1 2 3", ballot(1, "1"), 5, vec![value(9)]))
}

/// Returns the question of a candidate that holds as much as [`third`].
fn question(ballot_asked: Ballot) -> Prepare {
    Prepare { ballot: ballot_asked, accepted: ballot(1, "1"), last: Slot(6), chosen: Slot(5), reach: 3 }
}

fn heartbeat(ballot: Ballot) -> Message {
    Message::Heartbeat { ballot, chosen: Slot(5), collect: Slot(5), sent: Slot::ZERO }
}

fn accept(slot: u64, value: SlotValue) -> Message {
    Message::Accept { ballot: ballot(1, "1"), slot: Slot(slot), chosen: Slot(5), value }
}

#[test]
fn a_stranger_without_later_slots_learns_that_it_is_no_member() {
    let mut router = third();
    let said = router.hear("9", Message::Prepare(question(ballot(7, "9"))));
    assert!(matches!(said.to("9")[..], [Message::NotMember { chosen: Slot(5), .. }]), "{:?}", said.sent);
    assert!(said.records.is_empty(), "and nothing is promised to it");
    let more = Prepare { last: Slot(7), ..question(ballot(7, "9")) };
    assert!(matches!(router.hear("9", Message::Prepare(more)).to("9")[..], [Message::Promise { .. }]));
}

#[test]
fn a_joiner_without_a_log_votes_for_no_candidate() {
    let mut router = Alone::joining("4", &Settings::default());
    for message in [Message::PreVote(question(ballot(7, "1"))), Message::Prepare(question(ballot(7, "1")))] {
        let said = router.hear("1", message);
        assert!(said.sent.is_empty() && said.records.is_empty(), "{:?}", said.sent);
    }
}

#[test]
fn a_ballot_is_promised_again_but_written_once() {
    let mut router = third();
    let asked = Message::Prepare(question(ballot(7, "2")));
    let said = router.hear("2", asked.clone());
    assert!(matches!(said.records[..], [Record::Promised(promised)] if promised == ballot(7, "2")));
    let promise = said.sent.iter().find(|(_, message, _)| matches!(message, Message::Promise { .. }));
    assert!(promise.expect("it promises").2.is_some(), "not before it is on disk");
    router.persisted();
    let said = router.hear("2", asked);
    let promise = said.sent.iter().find(|(_, message, _)| matches!(message, Message::Promise { .. }));
    assert!(promise.expect("the first promise may be lost").2.is_none(), "nothing to wait for");
    assert!(said.records.is_empty());
    let lower = router.hear("1", Message::Prepare(question(ballot(6, "1"))));
    assert!(matches!(lower.to("1")[..], [Message::Refused { refusal: Refusal::Outbid, .. }]));
    let higher = router.hear("2", Message::Prepare(question(ballot(8, "2"))));
    let promise = higher.sent.iter().find(|(_, message, _)| matches!(message, Message::Promise { .. }));
    assert!(promise.expect("it promises").2.is_some(), "what is on disk is an older promise");
    let same = Message::PreVote(question(ballot(8, "2")));
    let same = router.hear("2", same);
    assert!(matches!(same.to("2")[..], [Message::Refused { .. }]), "a ballot is used once: {:?}", same.sent);
}

#[test]
fn a_candidate_gets_a_promise_only_with_the_slots_that_it_lacks() {
    let behind = Prepare { chosen: Slot(4), last: Slot(5), ..question(ballot(7, "2")) };
    let said = third().hear("2", Message::Prepare(behind));
    assert!(matches!(said.to("2")[..], [Message::Refused { refusal: Refusal::Behind, .. }]), "collected");

    // A candidate whose log is as long as the voter's, or of a later ballot, lacks nothing. The voter does
    // not send such a candidate chosen slots that the voter has collected.
    let later = Prepare { accepted: ballot(2, "2"), last: Slot(5), ..question(ballot(7, "2")) };
    for (prepare, chosen) in [(question(ballot(7, "2")), 4), (later, 4), (question(ballot(7, "2")), 5)] {
        let start = Slot(chosen);
        let prepare = Prepare { chosen: start, ..prepare };
        let said = third().hear("2", Message::PreVote(prepare));
        assert!(matches!(said.to("2")[..], [Message::PreVoted { better: None, .. }]), "{:?}", said.sent);
        let said = third().hear("2", Message::Prepare(prepare));
        let [Message::Promise { accepted, last, chosen, start: behind, values, .. }] = &said.to("2")[..]
        else {
            panic!("{:?}", said.sent)
        };
        assert_eq!((*accepted, *last, *chosen, *behind), (ballot(1, "1"), Slot(6), start, start));
        assert!(values.is_empty());
    }

    // One slot of any size fits into a message. Two slots that exceed a message together do not.
    for (slots, fits) in [(1, true), (2, false)] {
        let large = vec![value(20 << 20); slots];
        let record = checkpoint("1 2 3", ballot(1, "1"), 5, large);
        let mut router = Alone::from("3", &Settings::default(), record);
        let asked = Prepare { last: Slot(5), ..question(ballot(7, "2")) };
        let said = router.hear("2", Message::Prepare(asked));
        assert_eq!(matches!(said.to("2")[..], [Message::Promise { .. }]), fits, "{slots}");
    }

    // The candidate knows more than this router, so it lacks nothing.
    let ahead = Prepare { chosen: Slot(8), last: Slot(8), ..question(ballot(7, "2")) };
    assert!(matches!(third().hear("2", Message::Prepare(ahead)).to("2")[..], [Message::Promise { .. }]));
}

#[test]
fn a_pre_vote_describes_the_better_log_and_its_members() {
    // The voter's log ends in a change of the members, or does not. The voter describes its log only if that
    // log beats the candidate's.
    let record = |end| checkpoint("1 2 3", ballot(1, "1"), 5, vec![end]);
    for (end, names) in [(value(9), "1 2 3"), (members("1 2 3 4"), "1 2 3 4")] {
        let mut router = Alone::from("3", &Settings::default(), record(end));
        let shorter = Prepare { last: Slot(5), ..question(ballot(7, "2")) };
        let better = Better { accepted: ballot(1, "1"), last: Slot(6), members: peers(names) };
        let said = router.hear("2", Message::PreVote(shorter));
        let expected = Message::PreVoted { ballot: ballot(7, "2"), better: Some(better) };
        assert_eq!(said.to("2"), [&expected]);
    }

    // The candidate's own change needs a third vote, from a router that is gone. A voter describes a better
    // log that never had the change, and the candidate counts votes by that log. The candidate ignores a
    // worse log, and members that it knows to have been replaced.
    let log = |round: u64, last: u64, names| Better {
        accepted: ballot(round, "1"),
        last: Slot(last),
        members: peers(names),
    };
    let votes = [
        (None, false),
        (Some(log(1, 6, "1 2 3")), false),
        (Some(log(2, 6, "1 2 3")), true),
        (Some(log(2, 6, "2 3")), true),
        (Some(log(2, 6, "1 2 3 5")), false),
        (Some(log(2, 5, "1 2 3 5")), true),
        (Some(log(2, 6, "")), false),
    ];
    for (better, carried) in votes {
        let mut router = Alone::from("3", &Settings::default(), record(members("1 2 3 4")));
        let own = router.stand();
        let said = router.hear("2", Message::PreVoted { ballot: own, better: better.clone() });
        let asks = said.to("1").iter().any(|message| matches!(message, Message::Prepare(_)));
        assert_eq!(asks, carried, "{better:?}");
        let newcomer = better.is_some_and(|log| log.members == peers("1 2 3 5") && log.last > Slot(5));
        assert_eq!(said.to("5").iter().any(|message| matches!(message, Message::PreVote(_))), newcomer);
    }
}

#[test]
fn phase_1_repeats_its_question_to_every_asked_member() {
    // The change removes router 2, and router 2 may know that the change failed.
    let mut router = Alone::from(
        "3",
        &Settings::default(),
        checkpoint("1 2 3 4", ballot(1, "1"), 5, vec![members("1 3 4")]),
    );
    let own = router.stand();
    let said = router.hear("4", Message::PreVoted { ballot: own, better: None });
    for other in ["1", "2", "4"] {
        assert!(matches!(said.to(other)[..], [Message::Prepare(_)]), "{other}: {:?}", said.sent);
    }
}

#[test]
fn of_two_candidates_one_is_helped() {
    // A candidate that hears a majority, itself included, gets help.
    let mut router = third();
    let two = Prepare { reach: 2, ..question(ballot(7, "2")) };
    assert!(matches!(router.hear("2", Message::PreVote(two)).to("2")[..], [Message::PreVoted { .. }]));
    let one = Prepare { reach: 2, ..question(ballot(7, "1")) };
    let said = router.hear("1", Message::PreVote(one));
    assert!(
        matches!(said.to("1")[..], [Message::Refused { refusal: Refusal::Rival, .. }]),
        "{:?}",
        said.sent
    );

    // A candidate in phase 1 gives way to no other candidate, however well connected that candidate is.
    let mut router = third();
    let own = router.stand();
    assert!(
        !router.hear("2", Message::PreVoted { ballot: own, better: None }).to("1").is_empty(),
        "phase 1 begins"
    );
    let better = Prepare { reach: 9, ..question(ballot(own.round + 1, "1")) };
    let said = router.hear("1", Message::PreVote(better));
    assert!(
        matches!(said.to("1")[..], [Message::Refused { refusal: Refusal::Rival, .. }]),
        "{:?}",
        said.sent
    );
}

/// Returns router 3 in phase 1, with its ballot.
fn candidate() -> (Alone, Ballot) {
    let mut router = third();
    let own = router.stand();
    router.hear("2", Message::PreVoted { ballot: own, better: None });
    assert_eq!(router.state(), StateKind::Candidate);
    (router, own)
}

fn promise(ballot_asked: Ballot, last: u64, chosen: u64, start: u64, values: Vec<SlotValue>) -> Message {
    Message::Promise {
        ballot: ballot_asked,
        accepted: ballot(1, "1"),
        last: Slot(last),
        chosen: Slot(chosen),
        start: Slot(start),
        values,
    }
}

#[test]
fn a_malformed_promise_does_not_count() {
    let (mut router, own) = candidate();
    let broken = [
        promise(own, 6, 5, 4, vec![value(9)]),
        promise(own, 6, 7, 5, vec![value(9), value(9)]),
        promise(own, 6, 6, 5, vec![]),
        promise(own, 8, 5, 5, vec![value(9)]),
        promise(own, 7, 5, 5, vec![members("1 2 3 4"), value(9)]),
        promise(own, 6, 6, 5, vec![members("1 2 3 4 5")]),
        promise(own, 6, 5, u64::MAX, vec![value(9)]),
    ];
    for message in broken {
        let said = router.hear("2", message.clone());
        assert_eq!(router.state(), StateKind::Candidate, "{message:?}");
        assert!(said.records.is_empty(), "{message:?}");
    }
    let said = router.hear("2", promise(own, 6, 5, 5, vec![]));
    assert_eq!(router.state(), StateKind::Leader);
    assert!(matches!(said.records[..], [Record::Accepted { .. }]), "{:?}", said.records);
}

#[test]
fn a_promise_with_a_change_makes_the_candidate_ask_the_new_members() {
    let (mut router, own) = candidate();
    let said = router.hear("2", promise(own, 7, 5, 5, vec![value(9), members("1 2 3 4")]));
    assert_eq!(router.state(), StateKind::Candidate, "two of four");
    assert!(matches!(said.to("4")[..], [Message::Prepare(_)]), "{:?}", said.sent);
    // The candidate asks a member again when they are linked. It never asks a process without a vote.
    let linked = |peer| Input::Linked { peer: process(peer), session: Session(1) };
    assert!(matches!(router.input(linked("4")).to("4")[..], [Message::Prepare(_)]));
    assert!(router.input(linked("9")).to("9").is_empty());
    router.hear("4", promise(own, 6, 5, 5, vec![]));
    assert_eq!(router.state(), StateKind::Leader);
}

#[test]
fn a_refusal_counts_for_its_ballot_only() {
    let (mut router, own) = candidate();
    let refused = |ballot, promised| Message::Refused { ballot, promised, refusal: Refusal::Outbid };
    let other = ballot(own.round - 1, "3");
    for from in ["1", "2"] {
        router.hear(from, refused(other, own));
        assert_eq!(router.state(), StateKind::Candidate);
    }
    router.hear("2", promise(own, 6, 5, 5, vec![]));
    assert_eq!(router.state(), StateKind::Leader);
    let above = ballot(own.round + 1, "1");
    for (ballot, promised) in [(other, above), (own, own), (own, other)] {
        router.hear("1", refused(ballot, promised));
        assert_eq!(router.state(), StateKind::Leader, "{ballot:?} {promised:?}");
    }
    router.hear("1", refused(own, above));
    assert_eq!(router.state(), StateKind::Follower);
}

#[test]
fn a_leader_is_followed_only_by_its_own_message_and_with_one_record() {
    let mut router = third();
    router.hear("2", heartbeat(ballot(7, "1")));
    router.hear("3", heartbeat(ballot(7, "3")));
    assert_eq!(router.paxos.leader(), None, "nobody speaks for another");
    let first = router.hear("1", heartbeat(ballot(7, "1")));
    assert_eq!(router.paxos.leader(), Some(process("1")));
    assert!(matches!(first.records[..], [Record::Promised(_)]));
    assert!(router.hear("1", heartbeat(ballot(7, "1"))).records.is_empty());
}

#[test]
fn forwarded_proposals_fit_into_messages() {
    let mut router = third();
    router.hear("1", heartbeat(ballot(1, "1")));
    for bytes in [10 << 20, 10 << 20, 20 << 20, 6 << 20, 9 << 20] {
        router.command(Command::Propose { payload: Bytes::from(vec![0; bytes]) });
    }
    let said = router.input(Input::Drained);
    let lengths = said.to("1").into_iter().map(|message| match message {
        Message::Forward { payloads, .. } => payloads.iter().map(|payload| payload.len() >> 20).collect(),
        other => panic!("{other:?}"),
    });
    assert_eq!(lengths.collect::<Vec<Vec<usize>>>(), [vec![10], vec![10], vec![20], vec![6, 9]]);
}

#[test]
fn no_slot_is_accepted_after_a_gap_or_a_change() {
    let mut router = third();
    router.hear("1", accept(8, value(9)));
    assert_eq!(router.last(), 6, "a gap");
    router.hear("1", accept(7, members("1 2 3 4 5")));
    assert_eq!(router.last(), 6, "two steps at once");
    router.hear("1", accept(7, members("1 2 3 4")));
    router.hear("1", accept(8, value(9)));
    assert_eq!(router.last(), 7, "behind an open change");
    let sync = |start: u64, values| Message::Sync {
        ballot: ballot(1, "1"),
        start: Slot(start),
        chosen: Slot(5),
        values,
    };
    router.hear("1", sync(7, vec![value(9)]));
    assert_eq!(router.last(), 7, "nor by a sync");
}

#[test]
fn a_sync_that_leaves_a_gap_is_asked_for_again() {
    let sync = |ballot_of: Ballot, start: u64, chosen: u64, values| Message::Sync {
        ballot: ballot_of,
        start: Slot(start),
        chosen: Slot(chosen),
        values,
    };
    let lacks = |message| {
        let mut router = third();
        let said = router.hear("1", message);
        assert!(
            said.to("1").iter().any(|message| matches!(message, Message::Following { lacks: true, .. })),
            "{:?}",
            said.sent
        );
        assert_eq!(router.last(), 6);
    };
    let (same, new) = (ballot(1, "1"), ballot(7, "1"));
    lacks(sync(same, 7, 7, vec![value(9)]));
    lacks(sync(new, 6, 6, vec![value(9)]));
    lacks(sync(new, 3, 4, vec![value(9)]));

    // A sync of the same ballot may begin anywhere in the held log.
    let mut router = third();
    router.hear("1", sync(same, 6, 5, vec![value(9)]));
    assert_eq!(router.last(), 7);
    // A sync without news costs no record.
    assert!(router.hear("1", sync(same, 6, 5, vec![value(9)])).records.is_empty());
    assert!(router.hear("1", sync(same, 7, 5, vec![])).records.is_empty());

    // Members change one at a time, also in a log that replaces the router's own.
    let mut router = third();
    router.hear("1", sync(new, 5, 6, vec![members("1 2 3 4 5")]));
    assert_eq!((router.last(), router.paxos.members().len()), (6, 3));
}

#[test]
fn caught_up_slots_are_written_once_and_without_a_gap() {
    let catch_up =
        |start: u64, values| Message::CatchUp { ballot: ballot(7, "1"), start: Slot(start), values };
    let mut router = third();
    let leaps = ["1 2 3 4 5", "3", "3 4"].map(|names| catch_up(5, vec![members(names)]));
    for broken in [catch_up(6, vec![value(9)])].into_iter().chain(leaps) {
        let said = router.hear("1", broken);
        assert!(matches!(said.to("1")[..], [Message::Following { lacks: true, .. }]), "{:?}", said.sent);
        assert_eq!(router.paxos.applied(), Slot(5));
    }
    let said = router.hear("1", catch_up(5, vec![value(9), value(8)]));
    assert!(
        matches!(&said.records[..], [Record::Learned { start: Slot(5), values, .. }] if values.len() == 2)
    );
    assert_eq!(router.paxos.applied(), Slot(7));
    assert!(router.hear("1", catch_up(5, vec![value(9), value(8)])).records.is_empty(), "nothing is new");
}

#[test]
fn parts_of_a_snapshot_must_continue_each_other() {
    let chunk = |slot: u64, total: u64, offset: u64, bytes: usize| Message::Chunk {
        ballot: ballot(7, "1"),
        slot: Slot(slot),
        members: peers("1 2 3"),
        total,
        offset,
        bytes: Bytes::from(vec![0; bytes]),
    };
    let taken = |said: &super::alone::Said| match said.to("1")[..] {
        [Message::ChunkTaken { offset, .. }] => Some(*offset),
        _ => None,
    };
    let mut router = third();
    let known = router.hear("1", chunk(5, 10, 0, 5));
    assert_eq!(taken(&known), Some(10), "all of it is known already");
    assert!(known.events.iter().all(|event| !matches!(event, Event::Install { .. })));
    assert_eq!(taken(&router.hear("1", chunk(9, 10, 0, 6))), Some(6));
    for broken in [chunk(9, 10, 5, 4), chunk(8, 10, 6, 4), chunk(9, 11, 6, 4), chunk(9, 10, 6, 5)] {
        assert_eq!(taken(&router.hear("1", broken)), None);
    }
    let whole = router.hear("1", chunk(9, 10, 6, 4));
    assert_eq!(taken(&whole), Some(10));
    assert!(whole.events.iter().any(|event| matches!(event, Event::Install { slot: Slot(9), .. })));
}

#[test]
fn unchosen_slots_are_never_collected() {
    let settings = Settings { log_bytes_kept: 100, ..Settings::default() };
    let record = checkpoint("1 2 3", ballot(1, "1"), 5, vec![value(1000), value(1000)]);
    let mut router = Alone::from("3", &settings, record);
    router.hear("1", heartbeat(ballot(1, "1")));
    assert_eq!(router.paxos.unchosen().len(), 2);
}

#[test]
fn proposals_wait_and_gather_within_their_bounds() {
    let propose = |router: &mut Alone, bytes: usize| {
        router.command(Command::Propose { payload: Bytes::from(vec![0; bytes]) });
        (router.last(), router.paxos.status().pending_bytes)
    };
    let settings =
        Settings { batch_bytes_max: 10, pending_bytes_max: 40, window_max: 3, ..Settings::default() };
    // After the first slot, none of the founder's records reaches the disk, so nothing more is chosen.
    let mut router = Alone::founder(&settings);
    router.persisted();
    assert_eq!(propose(&mut router, 9), (1, 9), "a batch that is not full waits for the end of the turn");
    assert_eq!(propose(&mut router, 1), (2, 0), "a full one does not");
    assert_eq!(propose(&mut router, 10), (3, 0));
    assert_eq!(propose(&mut router, 10), (4, 0), "full batches open the window");
    assert_eq!(router.paxos.status().window, 3);
    assert_eq!(propose(&mut router, 10), (4, 10), "as far as it opens");
    assert_eq!(propose(&mut router, 30), (4, 40));
    assert_eq!(propose(&mut router, 1), (4, 40), "what waits is bounded");

    let mut router = Alone::founder(&settings);
    router.persisted();
    for last in 2..=3 {
        assert_eq!(propose(&mut router, 1), (last - 1, 1));
        router.input(Input::Drained);
        assert_eq!(router.last(), last);
    }
    propose(&mut router, 1);
    router.input(Input::Drained);
    assert_eq!((router.last(), router.paxos.status().window), (3, 2), "small batches open no window");
}

#[test]
fn a_window_closes_while_slots_are_small() {
    let settings = Settings { batch_bytes_max: 104, window_max: 8, ..Settings::default() };
    let mut router = Alone::founder(&settings);
    router.persisted();
    for _ in 0..8 {
        router.command(Command::Propose { payload: Bytes::from(vec![0; 104]) });
    }
    assert_eq!(router.paxos.status().window, 8);
    router.persisted();
    let small = |router: &mut Alone, bytes: usize| {
        router.command(Command::Propose { payload: Bytes::from(vec![0; bytes]) });
        router.input(Input::Drained);
        router.paxos.status().window
    };
    // With four slots in flight, the window is half full.
    for _ in 0..5 {
        assert_eq!(small(&mut router, 1), 8);
    }
    assert_eq!(small(&mut router, 13), 8, "not so small");
    assert_eq!(small(&mut router, 12), 7);
}

#[test]
fn a_payload_larger_than_a_batch_goes_alone() {
    let settings = Settings { batch_bytes_max: 10, ..Settings::default() };
    let mut router = Alone::founder(&settings);
    router.persisted();
    for bytes in [4, 25] {
        router.command(Command::Propose { payload: Bytes::from(vec![0; bytes]) });
    }
    assert_eq!((router.last(), router.paxos.status().pending_bytes), (3, 0));
}

#[test]
fn commands_without_effect_are_answered() {
    let mut router = Alone::from("1", &Settings::default(), checkpoint("1 2 3", ballot(1, "1"), 5, vec![]));
    let refused = |said: &super::alone::Said| match said.events[..] {
        [Event::ChangeRefused { reason, .. }] => Some(reason),
        _ => None,
    };
    let add = |name| Command::AddRouter(peer(process(name)));
    assert_eq!(refused(&router.command(add("4"))), Some(ChangeRefusal::NoLeader));
    let own = router.stand();
    router.hear("2", Message::PreVoted { ballot: own, better: None });
    let promise = Message::Promise {
        ballot: own,
        accepted: ballot(1, "1"),
        last: Slot(5),
        chosen: Slot(5),
        start: Slot(5),
        values: vec![],
    };
    router.hear("2", promise);
    assert_eq!(router.state(), StateKind::Leader);
    assert_eq!(refused(&router.command(add("2"))), Some(ChangeRefusal::AlreadySo));
    assert_eq!(refused(&router.command(Command::RemoveRouter(process("4")))), Some(ChangeRefusal::AlreadySo));
    let asked = router.hear("2", Message::Change(Change::Remove(process("4"))));
    assert!(matches!(asked.to("2")[..], [Message::ChangeRefused { reason: ChangeRefusal::AlreadySo, .. }]));
    assert!(router.hear("9", Message::Change(Change::Remove(process("2")))).sent.is_empty(), "a stranger");

    // A follower does not decide other routers' requests for changes.
    let mut follower = third();
    follower.hear("1", heartbeat(ballot(1, "1")));
    let asked = follower.hear("2", Message::Change(Change::Remove(process("1"))));
    assert!(asked.to("1").is_empty());
    assert!(matches!(asked.to("2")[..], [Message::ChangeRefused { reason: ChangeRefusal::NoLeader, .. }]));
    let own = follower.command(Command::RemoveRouter(process("1")));
    assert!(matches!(own.to("1")[..], [Message::Change(Change::Remove(_))]));
}

#[test]
fn a_next_life_at_the_same_address_is_admitted_without_waiting() {
    let (mut router, own) = candidate();
    router.hear("2", promise(own, 6, 5, 5, vec![]));
    let elsewhere = Peer { address: String::from("elsewhere:1"), ..peer(process("2b")) };
    let asks = |router: &mut Alone, peer: Peer| {
        let said = router.hear("2b", Message::Join { peer });
        said.to("2b").iter().any(|message| matches!(message, Message::NodeInUse { .. }))
    };
    // A process with a link stays a member, even if another process asks for its place.
    assert!(asks(&mut router, peer(process("2b"))));
    router.input(Input::Unlinked { peer: process("2") });
    assert!(asks(&mut router, elsewhere));
    assert!(!asks(&mut router, peer(process("2b"))));
}

#[test]
fn joiners_are_remembered_by_their_newest_life() {
    let mut router = Alone::joining("4", &Settings::default());
    let join = |name| Message::Join { peer: peer(process(name)) };
    assert_eq!(router.hear("5", join("5")).reached, [process("5")]);
    assert!(router.hear("6", join("5")).reached.is_empty(), "nobody speaks for another");
    let said = router.hear("5b", join("5b"));
    assert_eq!((said.forgotten, said.reached), (vec![process("5")], vec![process("5b")]));
    let said = router.hear("6", join("6"));
    assert_eq!((said.forgotten, said.reached), (vec![], vec![process("6")]));
    // A joiner also remembers processes that others named. It does not ask them before there is a link.
    let refer = Message::Refer { leader: Some(process("7")), members: peers("7 8") };
    let said = router.hear("6", refer);
    assert_eq!(said.reached, [process("7"), process("8")]);
    assert!(said.sent.is_empty(), "{:?}", said.sent);
    assert_eq!(router.hear("8b", join("8b")).forgotten, [process("8")]);
}

#[test]
fn a_follower_looks_for_strangers_for_a_moment() {
    let mut router = third();
    let said = router.command(Command::Seeds(peers("1 8")));
    assert_eq!(said.reached, [process("8")], "members are linked already");
    router.input(Input::Linked { peer: process("8"), session: Session(1) });
    let said = router.command(Command::Seeds(peers("8 9")));
    assert_eq!((said.reached, said.forgotten), (vec![process("9")], vec![]));
    let said = router.command(Command::Seeds(peers("7")));
    assert_eq!((said.reached, said.forgotten), (vec![process("7")], vec![process("9")]));
}

fn pulse(beat: u64, way: Option<LeaderRoute>, contacts: &[&str]) -> Message {
    let contacts = contacts.iter().map(|name| Contact { process: process(name), beat: 0, heard: true });
    Message::Pulse(Pulse { beat, round: 0, reach: 3, led: false, way, contacts: contacts.collect() })
}

#[test]
fn a_stranger_that_counts_this_router_as_a_member_gets_its_pulse() {
    let mut router = third();
    for stranger in ["8", "9"] {
        router.input(Input::Linked { peer: process(stranger), session: Session(1) });
    }
    router.hear("8", pulse(1, None, &["1", "2"]));
    router.hear("9", pulse(1, None, &["1", "3"]));
    let said = router.wake();
    assert_eq!((said.pulses("1"), said.pulses("8"), said.pulses("9")), (1, 0, 1));
}

#[test]
fn no_way_leads_back_or_in_a_circle() {
    let way = |leader, next, hops| Some(LeaderRoute { ballot: ballot(7, leader), next: process(next), hops });
    let settled = |way| {
        let mut router = third();
        for beat in 1..6 {
            router.hear("2", pulse(beat, way, &["1", "3"]));
            router.wake();
        }
        router.paxos.detour()
    };
    assert_eq!(settled(way("1", "1", 1)), Some(process("2")));
    assert_eq!(settled(way("1", "3", 1)), None, "back to where it came from");
    assert_eq!(settled(way("3", "1", 1)), None, "to itself");
    assert_eq!(settled(way("1", "1", 2)), None, "two others are one link apart");
}

#[test]
fn only_the_leader_itself_resigns_or_drops() {
    let (reign, other) = (ballot(1, "1"), ballot(0, "2"));
    let mut router = third();
    router.hear("1", heartbeat(reign));
    for (from, ballot) in [("2", reign), ("2", other), ("1", other)] {
        router.hear(from, Message::Resign { ballot });
        assert_eq!(router.paxos.leader(), Some(process("1")), "{from} {ballot:?}");
        router.hear(from, Message::Dropped { ballot });
        assert!(!router.wake().events.iter().any(|event| matches!(event, Event::Leader(_))), "{from}");
    }
    router.hear("1", Message::Dropped { ballot: reign });
    assert!(router.wake().events.contains(&Event::Leader(Some(process("1")))), "propose again");
    router.hear("1", Message::Resign { ballot: reign });
    assert_eq!(router.paxos.leader(), None);
}

#[test]
fn strangers_propose_nothing() {
    let (mut router, own) = candidate();
    router.hear("2", promise(own, 6, 5, 5, vec![]));
    let forward = || Message::Forward { ballot: own, payloads: vec![Bytes::from_static(b"x")] };
    let said = router.hear("9", forward());
    assert!(matches!(said.to("9")[..], [Message::Dropped { .. }]), "{:?}", said.sent);
    assert_eq!(router.paxos.status().pending_bytes, 0);
    assert!(router.hear("2", forward()).to("2").is_empty());
    assert_eq!(router.paxos.status().pending_bytes, 1);
}

#[test]
fn a_broken_link_to_another_loses_no_proposal() {
    let mut router = third();
    router.hear("1", heartbeat(ballot(1, "1")));
    router.command(Command::Propose { payload: Bytes::from_static(b"x") });
    router.input(Input::Unlinked { peer: process("2") });
    assert!(matches!(router.input(Input::Drained).to("1")[..], [Message::Forward { .. }]));
}

#[test]
fn a_member_leaves_on_a_newer_list_without_its_name() {
    let mut router = third();
    let not_member = |chosen, names| Message::NotMember { chosen: Slot(chosen), members: peers(names) };
    for (chosen, names) in [(4, "1 2"), (5, "1 2 3"), (6, "1 3")] {
        router.hear("1", not_member(chosen, names));
        assert_eq!(router.state(), StateKind::Follower, "{chosen} {names}");
    }
    router.hear("1", not_member(5, "1 2"));
    assert_eq!(router.state(), StateKind::Removed);
}

#[test]
fn a_joiner_learns_which_process_has_its_node() {
    let mut router = Alone::joining("4b", &Settings::default());
    for name in ["5", "4b"] {
        router.hear("1", Message::NodeInUse { by: peer(process(name)) });
        assert_eq!(router.paxos.namesake(), None, "{name}");
    }
    router.hear("1", Message::NodeInUse { by: peer(process("4")) });
    assert_eq!(router.paxos.namesake(), Some(&peer(process("4"))));
}
