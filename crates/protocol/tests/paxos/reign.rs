//! A leader's decisions about routers that join, about routers that leave, and about the confirmation of its
//! reign.

use bytes::Bytes;
use quorate_protocol::{
    Duration, Input, Session,
    paxos::{Ballot, Change, ChangeRefusal, Command, Event, Message, Refusal, Settings, Slot, StateKind},
};

use super::{
    alone::{Alone, Said, ballot, checkpoint, members},
    world::{peer, process},
};

/// Returns router 1 of three, which was just elected. It has learned five slots, and does not know which
/// slots the other routers hold.
pub(super) fn elected(settings: &Settings) -> (Alone, Ballot) {
    let mut router = Alone::from("1", settings, checkpoint("1 2 3", ballot(1, "1"), 5, vec![]));
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
    router.persisted();
    (router, own)
}

/// Returns the router of [`elected`], after both other routers have its log.
pub(super) fn leading(settings: &Settings) -> (Alone, Ballot) {
    let (mut router, own) = elected(settings);
    for other in ["2", "3"] {
        follow(&mut router, own, other, Some(5), 5);
    }
    (router, own)
}

pub(super) fn follow(
    router: &mut Alone,
    ballot: Ballot,
    from: &str,
    through: Option<u64>,
    chosen: u64,
) -> Said {
    let (through, chosen) = (through.map(Slot), Slot(chosen));
    router.hear(from, Message::Following { ballot, through, chosen, lacks: false })
}

pub(super) fn join(router: &mut Alone, name: &str) -> Said {
    router.hear(name, Message::Join { peer: peer(process(name)) })
}

/// Chooses a slot with one payload, by the votes of the leader and of router 2.
pub(super) fn choose(router: &mut Alone, own: Ballot, bytes: usize) {
    router.command(Command::Propose { payload: Bytes::from(vec![b'x'; bytes]) });
    router.input(Input::Drained);
    let through = Slot(router.last());
    router.persisted();
    router.hear("2", Message::Accepted { ballot: own, through });
    assert_eq!(router.paxos.applied(), through);
}

fn is_not_member(message: &&Message) -> bool {
    matches!(message, Message::NotMember { .. })
}

pub(super) fn roomy() -> Settings {
    Settings { wanted: 7, ..Settings::default() }
}

#[test]
fn a_newcomer_is_given_up_for_its_next_life() {
    let (mut router, _) = leading(&roomy());
    assert_eq!(join(&mut router, "4").reached, [process("4")]);
    router.input(Input::Linked { peer: process("4"), session: Session(1) });
    router.input(Input::Unlinked { peer: process("4") });
    let said = join(&mut router, "4b");
    assert_eq!((said.forgotten, said.reached), (vec![process("4")], vec![process("4b")]));
}

#[test]
fn a_newcomer_that_is_silent_is_given_up_in_time() {
    let settings = Settings { remove_after: Duration::from_secs(10), ..roomy() };
    let (mut router, own) = leading(&settings);
    join(&mut router, "4");
    let begun = router.now;
    let given_up = loop {
        let said = router.wake();
        if !said.forgotten.is_empty() {
            break said.forgotten;
        }
        assert!(router.now.since(begun) < Duration::from_secs(20), "it is given up");
        for other in ["2", "3"] {
            follow(&mut router, own, other, Some(5), 5);
        }
    };
    assert_eq!(given_up, [process("4")]);
    assert!(router.now.since(begun) >= Duration::from_secs(10), "{:?}", router.now.since(begun));
}

#[test]
fn a_newcomer_that_can_never_follow_is_refused_once_the_reign_is_settled() {
    let refused = |ballot, promised| Message::Refused { ballot, promised, refusal: Refusal::Outbid };
    let (mut router, own) = elected(&roomy());
    let above = ballot(own.round + 1, "4");
    join(&mut router, "4");
    let is_named_out = |router: &mut Alone, from: &str, promised| {
        let said = router.hear(from, refused(own, promised));
        said.to(from).iter().any(is_not_member)
    };
    assert!(!is_named_out(&mut router, "4", above), "a log that names it may go on");
    follow(&mut router, own, "2", Some(5), 5);
    assert!(is_named_out(&mut router, "4", above));
    assert!(!is_named_out(&mut router, "4", own), "one that promised this very ballot follows");
    assert!(!is_named_out(&mut router, "9", above), "a stranger is told nothing");
}

/// Votes router 3 out with the votes of routers 1 and 2.
fn remove(router: &mut Alone, own: Ballot) {
    router.command(Command::RemoveRouter(process("3")));
    let said = router.input(Input::Drained);
    assert!(said.to("2").iter().any(|message| matches!(message, Message::Accept { slot: Slot(6), .. })));
    router.persisted();
    router.hear("2", Message::Accepted { ballot: own, through: Slot(6) });
    assert_eq!((router.paxos.applied(), router.paxos.members().len()), (Slot(6), 2));
}

#[test]
fn a_removed_router_is_dismissed_once_a_majority_knows_of_its_removal() {
    let (mut router, own) = leading(&Settings::default());
    remove(&mut router, own);
    let linked = |router: &mut Alone| {
        let said = router.input(Input::Linked { peer: process("3"), session: Session(2) });
        said.to("3").iter().any(is_not_member)
    };
    // If this leader fails, the other routers may need the vote of router 3 to learn of the change.
    assert!(!linked(&mut router));
    assert!(!router.wake().forgotten.contains(&process("3")), "and a link to it");
    let said = follow(&mut router, own, "2", Some(6), 5);
    assert!(!said.to("3").iter().any(is_not_member), "2 does not know yet");
    let said = follow(&mut router, own, "2", Some(6), 6);
    assert!(said.to("3").iter().any(is_not_member));
    assert!(linked(&mut router), "what it was told may be lost");
    assert_eq!(router.wake().forgotten, [process("3")]);
}

#[test]
fn a_command_to_remove_ends_once() {
    let (mut router, own) = leading(&Settings::default());
    let refusals = |said: &Said| -> Vec<ChangeRefusal> {
        let refused = said.events.iter().filter_map(|event| match event {
            Event::ChangeRefused { reason, .. } => Some(*reason),
            _ => None,
        });
        refused.collect()
    };
    remove(&mut router, own);
    assert_eq!(refusals(&router.input(Input::Drained)), [], "it was done");
    // A router that was voted out does not come back under its id.
    let added = router.command(Command::AddRouter(peer(process("3"))));
    assert_eq!(refusals(&added), [ChangeRefusal::Unreachable]);
    let asked = router.hear("2", Message::Change(Change::Add(peer(process("3")))));
    let reason = ChangeRefusal::Unreachable;
    assert!(asked.to("2").iter().any(
        |it| matches!(it, Message::ChangeRefused { reason: refused_for, .. } if *refused_for == reason)
    ));
}

#[test]
fn a_command_to_remove_waits_until_the_others_are_heard() {
    let settings = Settings::default();
    let (mut router, own) = leading(&settings);
    router.now = router.now + settings.detector.interval * 3;
    router.command(Command::RemoveRouter(process("3")));
    assert!(router.input(Input::Drained).to("2").is_empty(), "2 was not heard just now");
    follow(&mut router, own, "2", Some(5), 5);
    let said = router.input(Input::Drained);
    assert!(said.to("2").iter().any(|message| matches!(message, Message::Accept { slot: Slot(6), .. })));
}

/// Returns the settings of a log in which a message holds one slot.
pub(super) fn small_messages() -> Settings {
    Settings { chunk_bytes: 10, ..roomy() }
}

#[test]
fn a_follower_that_catches_up_gets_more_slots_once_it_has_learned_the_last() {
    let (mut router, own) = leading(&small_messages());
    for _ in 0..4 {
        choose(&mut router, own, 10);
    }
    router.input(Input::Linked { peer: process("3"), session: Session(2) });
    let fed = |said: &Said| -> Vec<Slot> {
        let fed = said.to("3").into_iter().filter_map(|message| match message {
            Message::CatchUp { start, .. } => Some(*start),
            _ => None,
        });
        fed.collect()
    };
    let first = follow(&mut router, own, "3", Some(5), 5);
    assert_eq!(fed(&first), [Slot(5)]);
    assert_eq!(fed(&follow(&mut router, own, "3", Some(5), 5)), [], "it has not learned that");
    let lacks = Message::Following { ballot: own, through: Some(Slot(5)), chosen: Slot(5), lacks: true };
    assert_eq!(fed(&router.hear("3", lacks)), [Slot(5)], "it lost that");
    assert_eq!(fed(&follow(&mut router, own, "3", Some(6), 6)), [Slot(6)]);
}

/// A change of the members at the end of the log needs a majority of the members after the change.
#[test]
fn a_reign_is_settled_once_its_initial_slots_are_chosen() {
    let record = checkpoint("1 2 3", ballot(1, "1"), 5, vec![members("1 2 3 4")]);
    let mut router = Alone::from("1", &Settings::default(), record);
    let own = router.stand();
    for other in ["2", "3"] {
        router.hear(other, Message::PreVoted { ballot: own, better: None });
    }
    for other in ["2", "3"] {
        let (accepted, last, chosen, start) = (ballot(1, "1"), Slot(6), Slot(5), Slot(5));
        router.hear(other, Message::Promise { ballot: own, accepted, last, chosen, start, values: vec![] });
    }
    assert_eq!(router.state(), StateKind::Leader);
    router.persisted();
    let settled = |said: Said| said.events.iter().any(|event| matches!(event, Event::Settled { .. }));
    assert!(!settled(follow(&mut router, own, "2", Some(6), 5)), "two of four");
    assert!(settled(follow(&mut router, own, "3", Some(6), 5)));
}

/// Whether the leader sent a question that confirms its reign.
fn asks(said: &Said, to: &str) -> bool {
    said.to(to).iter().any(|message| matches!(message, Message::Confirm { .. }))
}

#[test]
fn a_reign_is_confirmed_by_its_voters_once_it_is_settled() {
    let (mut router, own) = elected(&roomy());
    join(&mut router, "4");
    router.command(Command::Confirm { ballot: own, through: 1 });
    assert!(!asks(&router.input(Input::Drained), "2"), "it has no ground");
    follow(&mut router, own, "2", Some(5), 5);
    let said = router.input(Input::Drained);
    assert_eq!((asks(&said, "2"), asks(&said, "3"), asks(&said, "4")), (true, true, false));
    for (other, again) in [("3", true), ("4", false)] {
        let linked = Input::Linked { peer: process(other), session: Session(2) };
        assert_eq!(asks(&router.input(linked), other), again, "{other}");
    }
    let said = router.hear("2", Message::Confirmed { ballot: own, round: 1 });
    assert!(said.events.contains(&Event::Confirmed { ballot: own, through: 1 }));
    assert_eq!(router.paxos.followed(), None, "a leader follows nobody");
}
