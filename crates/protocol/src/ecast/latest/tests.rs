//! When a lead router delivers, confirms and refuses injections of the latest state.

use super::*;
use crate::{
    Duration, Input,
    ecast::{
        Position,
        block::DeliveryKind,
        rig::Routers,
        toy::{block, process},
        unconfirmed::OPEN_MAX,
    },
    paxos::Message as LogMessage,
};

const MEMBER: u64 = 7;
const OTHER: u64 = 8;

/// A time longer than a round of the routers, and shorter than their patience with a silent leader.
const A_ROUND: Duration = Duration::from_millis(60);
/// A time longer than an election.
const AN_ELECTION: Duration = Duration::from_secs(3);

/// Founds a domain of three routers with two members, both linked to all routers. Returns it with the leader.
fn domain() -> (Routers, ProcessId) {
    let mut domain = Routers::founded();
    for router in domain.routers.keys().copied().collect::<Vec<_>>() {
        for member in [MEMBER, OTHER] {
            domain.link(router, process(member));
        }
    }
    let leader = domain.leader();
    for member in [MEMBER, OTHER] {
        domain.say(process(member), leader, Message::Route(block(member, 1, &["*join"])));
    }
    domain.run(AN_ELECTION);
    domain.said.clear();
    (domain, leader)
}

impl Routers {
    fn inject_latest(&mut self, router: ProcessId, member: u64, token: u64) {
        let body = Bytes::from_static(b"read");
        self.say(process(member), router, Message::InjectLatest { token, body });
    }

    /// Takes the answers of routers to the member since the last call, in order.
    fn answers(&mut self, member: u64) -> Vec<String> {
        let to_member = self.said.extract_if(.., |(_, to, _)| *to == process(member));
        let answers = to_member.filter_map(|(_, _, message)| match message {
            Message::Latest { tokens } => Some(format!("latest {tokens:?}")),
            Message::InjectRefused { token } => Some(format!("refused {token}")),
            Message::Deliver(block) => {
                let mut injected = block.into_items().map(|item| item.expect("our own bytes decode"));
                let injected = injected.find(|item| item.kind == DeliveryKind::Injected)?;
                Some(format!("injected {} at {}", injected.number, injected.at))
            }
            _ => None,
        });
        answers.collect()
    }
}

#[test]
fn an_injection_is_delivered_at_once_and_confirmed_after_a_round() {
    let (mut domain, leader) = domain();
    domain.inject_latest(leader, MEMBER, 5);
    domain.inject_latest(leader, OTHER, 6);
    domain.inject_latest(leader, MEMBER, 7);
    domain.give(leader, Input::Drained);
    let answers = domain.answers(MEMBER);
    assert!(
        answers.iter().all(|it| it.starts_with("injected")),
        "no confirmation before the round: {answers:?}"
    );
    domain.run(A_ROUND);
    let confirmed = |answers: Vec<String>| answers.into_iter().filter(|it| it.starts_with("latest"));
    assert_eq!(confirmed(domain.answers(MEMBER)).collect::<Vec<_>>(), ["latest [5, 7]"]);
    assert_eq!(confirmed(domain.answers(OTHER)).collect::<Vec<_>>(), ["latest [6]"]);
}

#[test]
fn a_round_that_began_before_an_injection_does_not_confirm_it() {
    let (mut domain, leader) = domain();
    domain.inject_latest(leader, MEMBER, 5);
    domain.give(leader, Input::Drained);
    // The first round is on its way. It ends while the second injection waits for another round.
    domain.inject_latest(leader, MEMBER, 6);
    let ballot = domain.routers[&leader].unconfirmed.reign.as_ref().expect("it leads").ballot;
    domain.answers(MEMBER);
    for follower in domain.followers() {
        domain.say(follower, leader, Message::Paxos(LogMessage::Confirmed { ballot, round: 1 }));
    }
    assert_eq!(domain.answers(MEMBER), ["latest [5]"]);
    domain.run(A_ROUND);
    assert!(domain.answers(MEMBER).contains(&String::from("latest [6]")));
}

/// The leader is cut off and does not know that it was deposed. Another leader orders a message meanwhile.
#[test]
fn a_deposed_leader_confirms_nothing_and_refuses_open_injections() {
    let (mut domain, leader) = domain();
    domain.silent = Some(leader);
    domain.inject_latest(leader, MEMBER, 5);
    domain.give(leader, Input::Drained);
    let answers = domain.answers(MEMBER);
    assert!(answers.iter().any(|it| it.starts_with("injected 5")), "it believes that it leads: {answers:?}");
    domain.run(AN_ELECTION);
    let successor = *domain
        .routers
        .iter()
        .find(|(id, router)| **id != leader && router.is_leader())
        .expect("the others elected one of them")
        .0;
    domain.say(process(OTHER), successor, Message::Route(block(OTHER, 2, &["a"])));
    domain.run(A_ROUND);
    domain.silent = None;
    domain.run(AN_ELECTION);
    let answers = domain.answers(MEMBER);
    assert_eq!(answers, ["refused 5"]);
    assert!(domain.routers[&leader].unconfirmed.open.is_empty());
    domain.inject_latest(successor, MEMBER, 6);
    domain.run(A_ROUND);
    assert!(domain.answers(MEMBER).contains(&String::from("latest [6]")));
}

/// Before its reign is settled, a new leader may not have learned what its predecessor chose.
#[test]
fn a_leader_whose_reign_is_not_settled_refuses() {
    let (mut domain, leader) = domain();
    let router = domain.routers.get_mut(&leader).expect("it is there");
    router.unconfirmed.reign.as_mut().expect("it leads").settled = false;
    domain.inject_latest(leader, MEMBER, 5);
    assert_eq!(domain.answers(MEMBER), ["refused 5"]);
}

#[test]
fn a_leader_with_too_many_open_injections_refuses_more() {
    let (mut domain, leader) = domain();
    domain.silent = Some(leader);
    for token in 0..OPEN_MAX as u64 {
        domain.routers.get_mut(&leader).expect("it is there").unconfirmed.push(process(OTHER), token);
    }
    domain.inject_latest(leader, MEMBER, 5);
    assert_eq!(domain.answers(MEMBER), ["refused 5"]);
}

/// A message of the toy application goes to all members, and no router reaches one of them.
#[test]
fn a_leader_that_does_not_reach_a_destination_refuses() {
    let (mut domain, leader) = domain();
    for router in domain.routers.keys().copied().collect::<Vec<_>>() {
        domain.unlink(router, process(OTHER));
    }
    domain.run(AN_ELECTION);
    domain.answers(MEMBER);
    domain.inject_latest(leader, MEMBER, 5);
    assert_eq!(domain.answers(MEMBER), ["refused 5"]);
    assert!(domain.routers[&leader].unconfirmed.open.is_empty());
}

/// The member's only link is to a follower, which passes the injection up and the confirmation down.
#[test]
fn an_injection_through_a_follower_is_confirmed_through_it() {
    let (mut domain, leader) = domain();
    let follower = domain.followers()[0];
    for router in domain.routers.keys().copied().filter(|it| *it != follower).collect::<Vec<_>>() {
        domain.unlink(router, process(MEMBER));
    }
    domain.run(AN_ELECTION);
    domain.answers(MEMBER);
    domain.inject_latest(follower, MEMBER, 5);
    domain.run(AN_ELECTION);
    let answers = domain.answers(MEMBER);
    assert!(answers.contains(&String::from("latest [5]")), "{answers:?}");
    assert!(domain.routers[&leader].position() >= Position(2));
}

#[test]
fn a_single_router_confirms_at_once() {
    let mut domain = Routers::fresh(1);
    domain.run(AN_ELECTION);
    let router = process(1);
    domain.link(router, process(MEMBER));
    domain.say(process(MEMBER), router, Message::Route(block(MEMBER, 1, &["*join"])));
    domain.run(A_ROUND);
    domain.answers(MEMBER);
    domain.inject_latest(router, MEMBER, 5);
    domain.give(router, Input::Drained);
    assert!(domain.answers(MEMBER).contains(&String::from("latest [5]")));
}
