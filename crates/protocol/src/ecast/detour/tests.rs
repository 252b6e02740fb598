//! Members without a link to the leader, and the messages that other routers relay for them.

use super::*;
use crate::{
    Duration,
    ecast::{
        Position,
        block::DeliveryKind,
        rig::Routers,
        toy::{block, process},
    },
};

const MEMBER: u64 = 7;

/// A time longer than routers need to find a new way.
const A_WHILE: Duration = Duration::from_secs(3);

impl Routers {
    /// Formats everything that this router sent to the member since the last call: deliveries, refusals, and
    /// stable messages.
    fn take_sent(&mut self, by: ProcessId) -> Vec<String> {
        let mut sent = Vec::new();
        for (_, _, message) in self.said.extract_if(.., |(from, to, _)| *from == by && *to == process(MEMBER))
        {
            match message {
                Message::Deliver(block) => sent.extend(block.into_items().map(|item| {
                    let item = item.expect("our own bytes decode");
                    let injected = if item.kind == DeliveryKind::Injected { "injected " } else { "" };
                    format!("{injected}{}", item.at)
                })),
                Message::Notice(notice) => {
                    sent.extend(notice.stable.iter().map(|run| format!("stable {run:?}")))
                }
                Message::InjectRefused { token } => sent.push(format!("refused {token}")),
                Message::Latest { tokens } => sent.push(format!("latest {tokens:?}")),
                _ => {}
            }
        }
        sent
    }

    fn confirm(&mut self, router: ProcessId, at: u64) {
        let (through, executed, durable) = (Position(at), Position(at), Position(at));
        self.say(process(MEMBER), router, Message::Confirm { through, executed, durable });
    }

    fn inject(&mut self, router: ProcessId, token: u64) {
        self.say(process(MEMBER), router, Message::Inject { token, body: Bytes::from_static(b"read") });
    }

    /// Returns the lists of reached members that one router sent to another.
    fn reach_reports(&self, by: ProcessId, to: ProcessId) -> Vec<Vec<u64>> {
        let sent = self.said.iter().filter(|(from, whom, _)| *from == by && *whom == to);
        let members = sent.filter_map(|(_, _, message)| match message {
            Message::Reach { members } => Some(members.iter().map(|member| member.node).collect()),
            _ => None,
        });
        members.collect()
    }
}

/// Lets a member join through this router; no other router hears it.
fn joined_through(domain: &mut Routers, router: ProcessId) {
    domain.link(router, process(MEMBER));
    domain.say(process(MEMBER), router, Message::Route(block(MEMBER, 1, &["*join"])));
    domain.run(A_WHILE);
}

#[test]
fn a_member_that_only_a_follower_hears_is_served_as_by_the_leader() {
    let mut domain = Routers::founded();
    let (leader, follower) = (domain.leader(), domain.followers()[0]);
    joined_through(&mut domain, follower);
    assert_eq!(domain.take_sent(follower), ["1"], "its joining is delivered to it");
    domain.confirm(follower, 1);
    domain.run(A_WHILE);
    assert_eq!(domain.take_sent(follower), ["stable (1, 1)"]);
    domain.inject(follower, 5);
    domain.say(process(MEMBER), follower, Message::Route(block(MEMBER, 2, &["a"])));
    domain.run(A_WHILE);
    assert_eq!(domain.take_sent(follower), ["injected 1", "2"]);
    domain.say(process(MEMBER), follower, Message::Repair);
    domain.run(A_WHILE);
    assert_eq!(domain.take_sent(follower), ["2"], "what it asks for again");
    assert!(domain.take_sent(leader).is_empty(), "there is no link to it");
}

#[test]
fn a_member_that_changes_its_router_gets_the_rest_over_the_new_route() {
    let mut domain = Routers::founded();
    let (leader, followers) = (domain.leader(), domain.followers());
    joined_through(&mut domain, followers[0]);
    domain.confirm(followers[0], 1);
    domain.say(process(MEMBER), followers[0], Message::Route(block(MEMBER, 2, &["a"])));
    domain.run(A_WHILE);
    domain.take_sent(followers[0]);
    domain.unlink(followers[0], process(MEMBER));
    domain.run(A_WHILE);
    domain.inject(leader, 6);
    domain.run(A_WHILE);
    assert_eq!(domain.take_sent(leader), ["refused 6"], "nobody reaches it");
    domain.link(followers[1], process(MEMBER));
    domain.run(A_WHILE);
    let sent = ["2", "stable (1, 1)"];
    assert_eq!(
        domain.take_sent(followers[1]),
        sent,
        "what it has not confirmed, and what it may not have heard"
    );
}

#[test]
fn a_route_passes_through_several_routers() {
    let mut domain = Routers::founded();
    let (leader, followers) = (domain.leader(), domain.followers());
    let (near, far) = (followers[0], followers[1]);
    domain.cut(leader, far);
    domain.run(A_WHILE);
    assert_eq!(domain.routers[&far].log().detour(), Some(near));
    joined_through(&mut domain, far);
    assert_eq!(domain.take_sent(far), ["1"]);
    domain.confirm(far, 1);
    domain.inject(far, 5);
    domain.run(A_WHILE);
    assert_eq!(domain.take_sent(far), ["injected 1", "stable (1, 1)"]);
    assert_eq!(domain.reach_reports(near, leader).last(), Some(&vec![MEMBER]), "the leader hears of it");
    assert!(
        domain.take_sent(near).is_empty() && domain.take_sent(leader).is_empty(),
        "they have no link to it"
    );
}

#[test]
fn a_message_without_hops_left_is_not_forwarded() {
    let mut domain = Routers::founded();
    let (leader, followers) = (domain.leader(), domain.followers());
    joined_through(&mut domain, followers[0]);
    domain.take_sent(followers[0]);
    domain.said.clear();
    let inject = encoded(&Message::Inject { token: 5, body: Bytes::from_static(b"read") });
    let up = |hops| Message::Up { member: process(MEMBER), hops, message: inject.clone() };
    domain.say(followers[1], followers[0], up(0));
    assert_eq!(domain.take_sent(followers[0]), ["refused 5"], "it is not the leader, and may not hand it on");
    domain.say(followers[1], followers[0], up(1));
    let handed = |domain: &Routers, to: ProcessId| {
        let said = domain.said.iter().filter(|(_, whom, _)| *whom == to);
        let hops = said.filter_map(|(_, _, message)| match message {
            Message::Up { hops, .. } | Message::Down { hops, .. } => Some(*hops),
            _ => None,
        });
        hops.collect::<Vec<_>>()
    };
    assert_eq!(handed(&domain, leader), [0]);
    let notice = encoded(&Message::InjectRefused { token: 5 });
    let down = |hops| Message::Down { member: process(MEMBER), hops, message: notice.clone() };
    domain.say(followers[1], leader, down(0));
    assert_eq!(handed(&domain, followers[0]), []);
    domain.say(followers[1], leader, down(1));
    assert_eq!(handed(&domain, followers[0]), [0]);
}

#[test]
fn only_one_whole_message_of_the_right_kind_is_forwarded() {
    let mut domain = Routers::founded();
    let (leader, followers) = (domain.leader(), domain.followers());
    joined_through(&mut domain, followers[0]);
    domain.take_sent(followers[0]);
    let longer = |message: &Message| Bytes::from([&encoded(message)[..], &[0]].concat());
    let (repair, refused) = (Message::Repair, Message::InjectRefused { token: 5 });
    let (member, hops) = (process(MEMBER), 3);
    let wrong_up = [longer(&repair), encoded(&refused), Bytes::from_static(&[0xff])];
    let before = [leader, followers[0]].map(|router| domain.refused(router));
    for (count, message) in (1..).zip(wrong_up) {
        domain.say(followers[0], leader, Message::Up { member, hops, message });
        assert_eq!(domain.refused(leader), before[0] + count);
    }
    let wrong_down = [longer(&refused), encoded(&repair), Bytes::from_static(&[0xff])];
    for (count, message) in (1..).zip(wrong_down) {
        domain.say(leader, followers[0], Message::Down { member, hops, message });
        assert_eq!(domain.refused(followers[0]), before[1] + count);
    }
    assert!(domain.take_sent(followers[0]).is_empty());
    domain.say(leader, followers[0], Message::Down { member, hops, message: encoded(&refused) });
    assert_eq!(domain.take_sent(followers[0]), ["refused 5"]);
}

#[test]
fn a_router_reports_the_members_it_reaches_to_one_router_at_a_time() {
    let mut domain = Routers::founded();
    let (leader, followers) = (domain.leader(), domain.followers());
    joined_through(&mut domain, followers[0]);
    domain.said.clear();
    // A second member comes: the router sends its list again, without withdrawing the earlier list first.
    domain.link(followers[0], process(8));
    domain.run(A_WHILE);
    assert_eq!(domain.reach_reports(followers[0], leader), [[MEMBER, 8]]);
    // A link to a third router does not affect the way to the leader.
    domain.unlink(followers[0], followers[1]);
    assert_eq!(domain.routers[&followers[0]].detours.reported_to, Some(leader));
    domain.link(followers[0], followers[1]);
    domain.run(A_WHILE);
    // The way changes: the router that got the earlier list learns that this list no longer counts.
    domain.cut(followers[0], leader);
    assert_eq!(domain.routers[&followers[0]].detours.reported_to, None);
    domain.run(A_WHILE);
    assert_eq!(domain.routers[&followers[0]].detours.reported_to, Some(followers[1]));
    assert_eq!(domain.reach_reports(followers[0], followers[1]), [[MEMBER, 8]]);
    domain.said.clear();
    domain.silent = Some(leader);
    domain.run_until(|it| it.routers[&followers[0]].detours.reported_to != Some(followers[1]));
    assert_eq!(domain.reach_reports(followers[0], followers[1]).last(), Some(&vec![]));
}

/// The list that a router reports to the next router omits members that the next router reaches itself.
#[test]
fn a_report_of_reached_members_omits_those_that_the_receiver_reaches_itself() {
    let mut domain = Routers::founded();
    let (leader, followers) = (domain.leader(), domain.followers());
    let reach = |node: u64| Message::Reach { members: vec![process(node)] };
    domain.say(leader, followers[0], reach(8));
    domain.say(followers[1], followers[0], reach(9));
    domain.said.clear();
    domain.run(A_WHILE);
    assert_eq!(domain.reach_reports(followers[0], leader), [[9]]);
}
