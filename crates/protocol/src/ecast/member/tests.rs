//! Tests of a member at the beginning of a generation, and while it waits for news.

use super::*;
use crate::{
    ecast::reform::Gathering,
    ecast::{
        block::{DeliverBlockBuilder, Delivery, DeliveryKind},
        entry::LogEntry,
        fence::Fence,
        reform::Tail,
    },
    id::Incarnation,
    seam::{Session, Ticket},
};

#[derive(Default)]
struct Out {
    sent: Vec<Message>,
    /// Records that must be durable before messages are sent.
    waits: Vec<Ticket>,
    events: Vec<MemberEvent>,
    entered: Vec<Generation>,
}

impl Sink<Member> for Out {
    fn send(&mut self, _: Destination, message: Message, after: Option<Ticket>) {
        self.waits.extend(after);
        self.sent.push(message);
    }

    fn persist(&mut self, _: paxos::Record) -> Ticket {
        unreachable!("a member writes no records")
    }

    fn emit(&mut self, event: MemberEvent) {
        self.events.push(event);
    }

    fn reach(&mut self, _: ProcessId, _: &str) {}

    fn forget(&mut self, _: ProcessId) {}

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        let fence = Fence::of_pass(&policy.pass()).expect("a member shows its fence");
        assert!(!fence.router);
        self.entered.push(fence.generation);
    }
}

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(node.into()) }
}

const ROUTER: u64 = 1;
const SURVIVOR: u64 = 2;
const MEMBER: u64 = 9;

fn give(member: &mut Member, now: Time, input: Input<Member>) -> Out {
    let mut out = Out::default();
    let mut random = || 0;
    let mut cx = Context { now, me: process(MEMBER), random: &mut random };
    member.handle(&mut cx, input, &mut out);
    out
}

fn receive(member: &mut Member, from: u64, message: Message) -> Out {
    give(member, Time::ZERO, Input::Receive { from: process(from), message })
}

fn lead(router: u64, generation: Generation) -> Message {
    let routers = vec![Peer { id: process(router), address: String::new() }];
    Message::Lead { generation, leader: Some(process(router)), routers, learned: 1 }
}

fn block(at: u64, previous: u64) -> DeliverBlock {
    let mut block = DeliverBlockBuilder::default();
    block.push(&Delivery {
        kind: DeliveryKind::Data,
        at: Position(at),
        previous: Position(previous),
        sender: process(7),
        number: at,
        body: Bytes::from_static(b"m"),
        attachment: None,
    });
    block.finish(Position(0))
}

/// Builds a member of the first generation that has delivered one message.
fn member() -> Member {
    let mut member = Member::new(process(MEMBER), MemberSettings::default());
    receive(&mut member, ROUTER, lead(ROUTER, Generation::FIRST));
    receive(&mut member, ROUTER, Message::Deliver(block(1, 0)));
    assert_eq!(member.delivered(), Position(1));
    member
}

fn tails(out: &Out) -> Vec<&Tail> {
    let sent = out.sent.iter();
    sent.filter_map(|message| if let Message::Tail(tail) = message { Some(tail) } else { None }).collect()
}

#[test]
fn a_member_that_meets_a_later_leader_without_a_report_is_wedged() {
    let later = Generation::FIRST.next(process(SURVIVOR));
    let mut member = member();
    let out = receive(&mut member, SURVIVOR, lead(SURVIVOR, later));
    assert_eq!((out.entered, out.events), (vec![later], vec![MemberEvent::Wedged]));

    // A member without deliveries cannot be ahead of the cut.
    let mut fresh = Member::new(process(MEMBER), MemberSettings::default());
    let out = receive(&mut fresh, SURVIVOR, lead(SURVIVOR, later));
    assert!(out.entered == [later] && !out.events.contains(&MemberEvent::Wedged), "{:?}", out.events);
}

#[test]
fn a_member_repeats_its_report_until_a_delivery_arrives() {
    let later = Generation::FIRST.next(process(SURVIVOR));
    let mut member = member();
    let out = receive(&mut member, SURVIVOR, Message::Gather { generation: later });
    assert_eq!(tails(&out).iter().map(|tail| tail.blocks.len()).collect::<Vec<_>>(), [1]);
    assert_eq!((tails(&out)[0].generation, tails(&out)[0].before), (later, Generation::FIRST));
    let out = receive(&mut member, SURVIVOR, lead(SURVIVOR, later));
    assert_eq!(tails(&out).iter().map(|tail| tail.blocks.len()).collect::<Vec<_>>(), [0]);
    receive(&mut member, SURVIVOR, Message::Deliver(block(2, 1)));
    let out = receive(&mut member, SURVIVOR, lead(SURVIVOR, later));
    assert!(tails(&out).is_empty());
}

fn linked(member: &mut Member) -> Out {
    let mut out = Out::default();
    let mut random = || 0;
    let mut cx = Context { now: Time::ZERO, me: process(MEMBER), random: &mut random };
    member.handle(&mut cx, Input::Drained, &mut out);
    out
}

fn submits(out: &Out) -> bool {
    out.sent.iter().any(|message| matches!(message, Message::Route(_)))
}

/// A member that may be out submits nothing. Otherwise its join message would be ordered again, for a process
/// that is out.
#[test]
fn a_member_that_may_be_out_submits_nothing() {
    let later = Generation::FIRST.next(process(SURVIVOR));
    let mut member = member();
    member.submit(1, Class::Control, Bytes::from_static(b"join"));
    receive(&mut member, SURVIVOR, Message::Gather { generation: later });
    receive(&mut member, SURVIVOR, lead(SURVIVOR, later));
    assert!(!submits(&linked(&mut member)), "nothing has come of what it said");
    receive(&mut member, SURVIVOR, Message::Notice(Notice::default()));
    assert!(submits(&linked(&mut member)), "it was heard");

    // A process without deliveries joins, even if its report is lost.
    let mut fresh = Member::new(process(MEMBER), MemberSettings::default());
    fresh.submit(1, Class::Control, Bytes::from_static(b"join"));
    receive(&mut fresh, SURVIVOR, Message::Gather { generation: later });
    let out = receive(&mut fresh, SURVIVOR, lead(SURVIVOR, later));
    assert!(tails(&out).is_empty() && submits(&linked(&mut fresh)));
}

/// Nothing is submitted to a router that has not named the leader. A member whose routers are gone may find
/// routers of the next generation that do not know the member. A submission to these routers, even of its
/// joining, would be ordered for a process that is out.
#[test]
fn nothing_is_submitted_to_a_router_that_has_not_named_the_leader() {
    let later = Generation::FIRST.next(process(SURVIVOR));
    let mut member = Member::new(process(MEMBER), MemberSettings::default());
    let seen = |member: &mut Member, input: Input<Member>| {
        let mut out = Out::default();
        let mut random = || 0;
        let mut cx = Context { now: Time::ZERO, me: process(MEMBER), random: &mut random };
        member.handle(&mut cx, input, &mut out);
        member.handle(&mut cx, Input::Drained, &mut out);
        out
    };
    let link = |router: u64| Input::Linked { peer: process(router), session: Session(router) };
    let seeds = |router: u64| {
        let seed = Peer { id: process(router), address: String::new() };
        Input::Command(MemberCommand::Seeds(vec![seed]))
    };
    member.submit(1, Class::Control, Bytes::from_static(b"join"));
    seen(&mut member, seeds(ROUTER));
    assert!(!submits(&seen(&mut member, link(ROUTER))), "it has not said who leads");
    receive(&mut member, ROUTER, lead(ROUTER, Generation::FIRST));
    assert!(submits(&linked(&mut member)));
    receive(&mut member, ROUTER, Message::Deliver(block(1, 0)));

    seen(&mut member, Input::Unlinked { peer: process(ROUTER) });
    seen(&mut member, seeds(SURVIVOR));
    assert!(!submits(&seen(&mut member, link(SURVIVOR))), "it may be of a later generation");
    let out = receive(&mut member, SURVIVOR, lead(SURVIVOR, later));
    assert!(out.entered == [later] && out.events.contains(&MemberEvent::Wedged));
    assert!(!submits(&linked(&mut member)));
}

#[test]
fn deliveries_that_a_generation_did_not_learn_of_belong_to_the_generation_before() {
    let first = Generation::FIRST.next(process(SURVIVOR));
    let second = first.next(process(ROUTER));
    let before = |heard: bool| {
        let mut member = member();
        receive(&mut member, SURVIVOR, Message::Gather { generation: first });
        receive(&mut member, SURVIVOR, lead(SURVIVOR, first));
        if heard {
            receive(&mut member, SURVIVOR, Message::Notice(Notice::default()));
        }
        let out = receive(&mut member, ROUTER, Message::Gather { generation: second });
        tails(&out)[0].before
    };
    assert_eq!((before(true), before(false)), (first, Generation::FIRST));
}

#[test]
fn messages_of_a_conflicting_generation_are_refused() {
    let (own, other) = (Generation::FIRST.next(process(SURVIVOR)), Generation::FIRST.next(process(ROUTER)));
    assert!(own.is_beside(other) && !own.is_later(other) && !other.is_later(own));
    let mut member = member();
    receive(&mut member, SURVIVOR, Message::Gather { generation: own });
    for message in [Message::Gather { generation: other }, lead(ROUTER, other)] {
        let refused = member.refused();
        let out = receive(&mut member, ROUTER, message);
        assert!(out.sent.is_empty() && out.entered.is_empty() && out.events.is_empty());
        assert_eq!(member.refused(), refused + 1);
    }
}

/// Two processes that joined in the lost part report to a survivor whose log ends at 1: one joined at
/// position 2, the other at `joined`. A process that joined after a position that nobody knows is out.
#[test]
fn a_process_that_joined_behind_an_unknown_position_is_out() {
    let stays = |joined: u64| {
        let generation = Generation::FIRST.next(process(SURVIVOR));
        let mut gathering =
            Gathering::new(Generation::FIRST, generation, Position(1), Time::ZERO, Vec::new());
        for (who, at) in [(MEMBER + 1, joined), (MEMBER, 2)] {
            let (before, delivered, blocks) = (Generation::FIRST, Position(at), vec![block(at, 0)]);
            let tail = Tail { generation, before, delivered, acknowledged: 0, blocks };
            gathering.take(process(who), tail, false);
        }
        let Ok(LogEntry::Recovered(recovery)) = LogEntry::decode(gathering.finish().remove(0)) else {
            panic!("a recovery comes first")
        };
        let known: Vec<u64> = recovery.messages.iter().map(|(at, ..)| at.0).collect();
        (recovery.through.0, known, recovery.reported.len())
    };
    assert_eq!(stays(3), (3, vec![2, 3], 2));
    assert_eq!(
        stays(4),
        (2, vec![2], 1),
        "what was at 3 may have changed the configuration that it was given at 4"
    );
}

#[test]
fn deliveries_of_another_generation_do_not_count() {
    let recovered = |before: Generation, known: bool| {
        let generation = Generation::FIRST.next(process(SURVIVOR));
        let mut gathering =
            Gathering::new(Generation::FIRST, generation, Position(0), Time::ZERO, Vec::new());
        let (delivered, blocks) = (Position(1), vec![block(1, 0)]);
        gathering.take(
            process(MEMBER),
            Tail { generation, before, delivered, acknowledged: 0, blocks },
            known,
        );
        let entry = gathering.finish().remove(0);
        let Ok(LogEntry::Recovered(recovery)) = LogEntry::decode(entry) else {
            panic!("a recovery comes first")
        };
        (recovery.messages.len(), recovery.reported.contains_key(&process(MEMBER)))
    };
    let other = Generation::FIRST.next(process(ROUTER));
    assert_eq!(recovered(Generation::FIRST, false), (1, true));
    assert_eq!(recovered(other, false), (0, false));
    // Deliveries of a known member count, even from earlier generations.
    assert_eq!(recovered(other, true), (1, true));
}

/// Regression: a leader repeated all its answers each time that a router reported a new way to the member.
/// The member took the answers for news of a message that had been lost, and never sent that message again.
#[test]
fn repeated_outcomes_do_not_delay_a_resend() {
    let mut member = member();
    let submit = MemberCommand::Submit { token: 1, class: Class::Control, body: Bytes::from_static(b"m") };
    give(&mut member, Time::ZERO, Input::Command(submit));
    let routes = |out: &Out| out.sent.iter().filter(|it| matches!(it, Message::Route(_))).count();
    assert_eq!(routes(&give(&mut member, Time::ZERO, Input::Drained)), 1);
    let patience = member.queue.patience(member.settings.resend_after);
    let before = Time::ZERO + patience / 2;
    let nothing = Message::Notice(Notice::default());
    give(&mut member, before, Input::Receive { from: process(ROUTER), message: nothing });
    assert_eq!(member.deadline(), Some(Time::ZERO + patience));
    assert_eq!(routes(&give(&mut member, Time::ZERO + patience, Input::Deadline)), 1);
    // More credit is news, and so is an outcome.
    let credit = Message::Notice(Notice { credit: 7, ..Notice::default() });
    let now = Time::ZERO + patience + patience / 2;
    give(&mut member, now, Input::Receive { from: process(ROUTER), message: credit });
    assert_eq!(member.deadline(), Some(now + patience));
}

/// Passes the member a router's announcement of the routers and the leader. The router has learned `learned`
/// log entries.
fn word(member: &mut Member, from: u64, routers: &[u64], leader: Option<u64>, learned: u64) -> Out {
    let routers = routers.iter().map(|&it| Peer { id: process(it), address: String::new() }).collect();
    let leader = leader.map(process);
    receive(member, from, Message::Lead { generation: Generation::FIRST, leader, routers, learned })
}

fn routers(member: &Member) -> Vec<u64> {
    member.routers().map(|router| router.node).collect()
}

fn data(member: &mut Member, token: u64, bytes: usize) {
    let body = Bytes::from(vec![b'x'; bytes]);
    let submit = MemberCommand::Submit { token, class: Class::Data, body };
    give(member, Time::ZERO, Input::Command(submit));
}

#[test]
fn old_news_of_the_routers_changes_nothing() {
    let mut member = Member::new(process(MEMBER), MemberSettings::default());
    word(&mut member, 1, &[1, 2], Some(1), 5);
    assert_eq!(routers(&member), [1, 2]);
    word(&mut member, 2, &[2, 3], Some(2), 4);
    assert_eq!((routers(&member), member.leader()), (vec![1, 2], Some(process(1))), "older");
    word(&mut member, 2, &[1, 2, 3], Some(2), 4);
    assert_eq!((routers(&member), member.leader()), (vec![1, 2], Some(process(1))), "older, and more");
    word(&mut member, 2, &[1, 2], Some(2), 4);
    assert_eq!((routers(&member), member.leader()), (vec![1, 2], Some(process(2))), "older, of the same");
    word(&mut member, 2, &[2, 3], Some(2), 5);
    assert_eq!(routers(&member), [2, 3], "as new, from one that has learned more since");
    word(&mut member, 2, &[3, 4], Some(3), 6);
    assert_eq!(routers(&member), [2, 3, 4], "who says so is kept as long as it is linked");
}

#[test]
fn a_member_leaves_a_deposed_leader_for_its_successor() {
    let mut member = Member::new(process(MEMBER), MemberSettings::default());
    word(&mut member, 1, &[1, 2, 3], Some(1), 5);
    word(&mut member, 3, &[1, 2, 3], None, 5);
    word(&mut member, 2, &[1, 2, 3], Some(2), 6);
    assert_eq!(member.leader(), Some(process(2)));
    word(&mut member, 1, &[1, 2, 3], Some(1), 5);
    assert_eq!(member.leader(), Some(process(1)), "it has not heard of it yet, or led again");
    word(&mut member, 1, &[1, 2, 3], None, 5);
    assert_eq!(
        (member.leader(), member.routers.target()),
        (Some(process(2)), Some(process(2))),
        "the other says so still"
    );
    // Without router 2, the member prefers a router that knows a leader out of reach and passes messages on
    // to that leader.
    give(&mut member, Time::ZERO, Input::Unlinked { peer: process(2) });
    word(&mut member, 3, &[1, 2, 3], Some(2), 6);
    for random in 0..4 {
        member.routers.choose(None, random);
        assert_eq!(member.routers.target(), Some(process(3)), "the first knows of none");
    }
}

#[test]
fn messages_are_sent_again_when_their_route_may_have_changed() {
    let mut member = Member::new(process(MEMBER), MemberSettings::default());
    word(&mut member, 1, &[1, 2], Some(1), 5);
    let confirms = |out: &Out| out.sent.iter().any(|message| matches!(message, Message::Confirm { .. }));
    assert!(confirms(&linked(&mut member)), "the leader is told what was delivered");
    let submit = MemberCommand::Submit { token: 1, class: Class::Control, body: Bytes::from_static(b"m") };
    give(&mut member, Time::ZERO, Input::Command(submit));
    linked(&mut member);
    word(&mut member, 2, &[1, 2], Some(1), 5);
    assert_eq!(member.resends(), 0, "another router says the same");
    assert!(!confirms(&linked(&mut member)), "and does not lead");
    word(&mut member, 1, &[1, 2], Some(1), 5);
    assert_eq!(member.resends(), 1, "it found a new way to its leader, which may be itself");
    assert!(submits(&linked(&mut member)));
    word(&mut member, 2, &[1, 2], Some(2), 6);
    assert_eq!(member.resends(), 2, "another one leads");
}

#[test]
fn a_silent_leader_is_doubted_once_another_router_knows_no_leader() {
    for (other_says, adrift) in [(None, true), (Some(1), false)] {
        let mut member = Member::new(process(MEMBER), MemberSettings::default());
        word(&mut member, 1, &[1, 2], Some(1), 5);
        word(&mut member, 2, &[1, 2], other_says, 5);
        let submit =
            MemberCommand::Submit { token: 1, class: Class::Control, body: Bytes::from_static(b"m") };
        give(&mut member, Time::ZERO, Input::Command(submit));
        linked(&mut member);
        assert_eq!(member.routers.led_by(), Some(process(1)));
        let silent = Time::ZERO + member.queue.patience(member.settings.resend_after);
        give(&mut member, silent, Input::Deadline);
        assert_eq!(member.routers.led_by().is_none(), adrift, "{other_says:?}");
        let late = silent + member.settings.adrift_after;
        let events = give(&mut member, late, Input::Deadline).events;
        assert_eq!(events.contains(&MemberEvent::Adrift(true)), adrift, "{other_says:?}");
        // Any message of the leader makes the leader's latest statement count again.
        let news = give(
            &mut member,
            late,
            Input::Receive { from: process(1), message: Message::Notice(Notice::default()) },
        );
        assert_eq!(news.events.contains(&MemberEvent::Adrift(false)), adrift, "{other_says:?}");
    }
}

#[test]
fn data_goes_as_far_as_credit_and_window_allow() {
    for (credit, window_bytes, numbered) in [(5, 10, 3), (2, 10, 2), (5, 12, 3), (5, 13, 4), (20, 1000, 8)] {
        let settings = MemberSettings { window_bytes, ..MemberSettings::default() };
        let mut member = Member::new(process(MEMBER), settings);
        word(&mut member, 1, &[1], Some(1), 5);
        receive(&mut member, 1, Message::Notice(Notice { credit, ..Notice::default() }));
        for token in 0..8 {
            data(&mut member, token, 4);
        }
        linked(&mut member);
        assert_eq!(member.outstanding(), (numbered, 8 - numbered), "{credit} {window_bytes}");
    }
}

#[test]
fn a_wedged_member_submits_nothing_and_ignores_messages() {
    let mut member = member();
    receive(&mut member, ROUTER, Message::Notice(Notice { wedged: true, ..Notice::default() }));
    assert!(!member.can_send());
    let submit = MemberCommand::Submit { token: 3, class: Class::Control, body: Bytes::new() };
    let events = give(&mut member, Time::ZERO, Input::Command(submit)).events;
    assert_eq!(events, [MemberEvent::NotSent { token: 3 }]);
    let inject = MemberCommand::Inject { token: 4, latest: false, body: Bytes::new() };
    let events = give(&mut member, Time::ZERO, Input::Command(inject)).events;
    assert_eq!(events, [MemberEvent::NotInjected { token: 4 }]);
    let refused = member.refused();
    let (asker, later) = (process(8), Generation::FIRST.next(process(SURVIVOR)));
    let probe = Message::Probe { asker, second_opinion: 1 };
    for message in [probe, Message::Call, Message::Refound { generation: later }] {
        let out = receive(&mut member, ROUTER, message);
        assert!(out.sent.is_empty() && out.entered.is_empty(), "{:?}", out.sent);
    }
    assert_eq!(member.refused(), refused + 3);
}

#[test]
fn deliveries_from_processes_other_than_routers_are_refused() {
    let mut member = member();
    let refused = member.refused();
    receive(&mut member, 55, Message::Deliver(block(2, 1)));
    receive(&mut member, 55, Message::Notice(Notice { wedged: true, ..Notice::default() }));
    assert_eq!((member.delivered(), member.wedged, member.refused()), (Position(1), false, refused + 2));
    receive(&mut member, ROUTER, Message::Deliver(block(2, 1)));
    assert_eq!(member.delivered(), Position(2));
}

#[test]
fn routers_are_looked_for_while_no_leader_is_heard() {
    let seeds = |member: &mut Member, seed: u64| {
        let seed = Peer { id: process(seed), address: String::new() };
        give(member, Time::ZERO, Input::Command(MemberCommand::Seeds(vec![seed])));
        routers(member)
    };
    let mut member = member();
    assert_eq!(seeds(&mut member, 5), [ROUTER], "it has one");
    give(&mut member, Time::ZERO, Input::Unlinked { peer: process(ROUTER) });
    assert_eq!(seeds(&mut member, 5), [ROUTER, 5]);
}

#[test]
fn an_execution_is_confirmed_once() {
    let settings = MemberSettings { executes: true, ..MemberSettings::default() };
    let mut member = Member::new(process(MEMBER), settings);
    word(&mut member, 1, &[1], Some(1), 5);
    receive(&mut member, 1, Message::Deliver(block(1, 0)));
    linked(&mut member);
    let confirmed = |member: &mut Member, through: u64| {
        let executed = MemberCommand::Executed { through: Position(through) };
        give(member, Time::ZERO, Input::Command(executed));
        let sent = linked(member).sent.into_iter().filter_map(|message| match message {
            Message::Confirm { executed, .. } => Some(executed.0),
            _ => None,
        });
        sent.collect::<Vec<u64>>()
    };
    assert_eq!(confirmed(&mut member, 1), [1]);
    assert!(confirmed(&mut member, 1).is_empty(), "it is known");
    assert!(confirmed(&mut member, 0).is_empty());
    assert_eq!(member.executed(), Position(1));
}

#[test]
fn one_repair_is_requested_for_a_gap() {
    let mut member = member();
    let repairs = |member: &mut Member| {
        let out = linked(member);
        out.sent.iter().filter(|message| matches!(message, Message::Repair)).count()
    };
    receive(&mut member, ROUTER, Message::Deliver(block(5, 4)));
    assert_eq!(repairs(&mut member), 1);
    receive(&mut member, ROUTER, Message::Deliver(block(6, 5)));
    assert_eq!(repairs(&mut member), 0, "it sends everything again");
    receive(&mut member, ROUTER, Message::Deliver(block(4, 1)));
    receive(&mut member, ROUTER, Message::Deliver(block(9, 8)));
    assert_eq!(repairs(&mut member), 1, "something fitted, and something is missing again");
}

#[test]
fn an_injected_message_is_accepted_only_at_the_present_position() {
    let mut member = member();
    receive(&mut member, ROUTER, Message::Deliver(block(4, 1)));
    for (at, previous, expected) in [(4, 4, true), (5, 4, true), (5, 5, false), (3, 1, false), (4, 1, true)] {
        let mut block = DeliverBlockBuilder::default();
        block.push(&Delivery {
            kind: DeliveryKind::Injected,
            at: Position(at),
            previous: Position(previous),
            sender: process(7),
            number: 1,
            body: Bytes::from_static(b"m"),
            attachment: None,
        });
        let events = receive(&mut member, ROUTER, Message::Deliver(block.finish(Position(0)))).events;
        let fits = |event: &MemberEvent| matches!(event, MemberEvent::Injected { fits: true, .. });
        assert_eq!(events.iter().any(fits), expected, "{at} behind {previous}");
    }
}

#[test]
fn a_recovered_member_keeps_its_numbers_and_submissions() {
    let submissions = Submissions {
        passed: 3,
        messages: vec![(10, Bytes::from_static(b"d")), (11, Bytes::from_static(b"e"))],
    };
    let settings = MemberSettings { executes: true, ..MemberSettings::default() };
    let mut member =
        Member::recovered(process(MEMBER), settings, Position(7), submissions.clone(), Generation::FIRST);
    assert_eq!(member.submissions(), Some(submissions));
    let seed = Peer { id: process(ROUTER), address: String::new() };
    give(&mut member, Time::ZERO, Input::Command(MemberCommand::Seeds(vec![seed])));
    receive(&mut member, ROUTER, lead(ROUTER, Generation::FIRST));
    member.submit(12, Class::Control, Bytes::from_static(b"f"));
    member.send_after(Ticket(5));
    let out = linked(&mut member);
    let confirmed = Message::Confirm { through: Position(7), executed: Position(0), durable: Position(7) };
    assert_eq!(out.sent[0], confirmed);
    let Message::Route(route) = &out.sent[1] else { panic!("{:?}", out.sent) };
    let Ok(LogEntry::Route(route)) = LogEntry::decode(route.clone()) else { panic!("a route block") };
    assert_eq!((route.first, route.count, route.acknowledged), (4, 3, 3));
    assert_eq!(out.waits, [Ticket(5)], "a number is used once it is written down");

    // A delivery is confirmed at once. It is reported as durable when the user reports it.
    receive(&mut member, ROUTER, Message::Deliver(block(8, 7)));
    let confirms = |out: Out| out.sent.into_iter().find(|message| matches!(message, Message::Confirm { .. }));
    let confirm = |through, durable| Message::Confirm {
        through: Position(through),
        executed: Position(0),
        durable: Position(durable),
    };
    assert_eq!(confirms(linked(&mut member)), Some(confirm(8, 7)));
    give(&mut member, Time::ZERO, Input::Command(MemberCommand::Durable { through: Position(8) }));
    assert_eq!(confirms(linked(&mut member)), Some(confirm(8, 8)));
    give(&mut member, Time::ZERO, Input::Command(MemberCommand::Durable { through: Position(8) }));
    assert_eq!(confirms(linked(&mut member)), None, "it is known");
}

#[test]
fn a_generation_begins_with_one_router() {
    let later = Generation::FIRST.next(process(SURVIVOR));
    let mut member = Member::new(process(MEMBER), MemberSettings::default());
    word(&mut member, ROUTER, &[ROUTER, SURVIVOR, 3], Some(ROUTER), 5);
    receive(&mut member, SURVIVOR, Message::Gather { generation: later });
    assert_eq!(routers(&member), [SURVIVOR], "the others are of the generation before");
}

/// A member reports the counted members of its own generation only, even if it heard of those of other
/// generations.
#[test]
fn a_member_reports_the_counted_members_of_its_own_generation_only() {
    let (own, next) = (Generation::FIRST.next(process(SURVIVOR)), process(ROUTER));
    let counted =
        |generation: Generation, node: u64| Message::Counted { generation, members: vec![process(node)] };
    let mut member = member();
    receive(&mut member, SURVIVOR, Message::Gather { generation: own });
    receive(&mut member, SURVIVOR, lead(SURVIVOR, own));
    receive(&mut member, SURVIVOR, counted(own, 7));
    receive(&mut member, SURVIVOR, Message::Notice(Notice::default()));
    let refused = member.refused();
    receive(&mut member, 8, counted(Generation::FIRST, 8));
    assert_eq!(member.refused(), refused + 1);
    give(&mut member, Time::ZERO, Input::Unlinked { peer: process(SURVIVOR) });
    receive(&mut member, next.node, Message::Call);
    receive(&mut member, next.node, Message::Refound { generation: own.next(next) });
    let Message::Witness(witness) = member.witness(Bytes::new()) else { panic!("it was asked for one") };
    assert_eq!((witness.tail.before, witness.counted), (own, vec![process(7)]));
}

/// The founder may not have received this member's report. Until the founder has it, the member submits
/// nothing to the founder, unless the member has no deliveries.
#[test]
fn a_member_submits_to_a_founder_once_the_founder_has_its_report() {
    let later = Generation::FIRST.next(process(SURVIVOR));
    for delivered in [true, false] {
        let mut member = match delivered {
            true => member(),
            false => Member::new(process(MEMBER), MemberSettings::default()),
        };
        give(&mut member, Time::ZERO, Input::Unlinked { peer: process(ROUTER) });
        member.submit(1, Class::Control, Bytes::from_static(b"join"));
        receive(&mut member, SURVIVOR, Message::Call);
        let out = receive(&mut member, SURVIVOR, Message::Refound { generation: later });
        assert_eq!(out.events, [MemberEvent::WitnessWanted { founder: process(SURVIVOR) }]);
        // The founder may ask twice. A different generation of the same number belongs to another founder.
        let out = receive(&mut member, SURVIVOR, Message::Refound { generation: later });
        assert_eq!(out.events, [MemberEvent::WitnessWanted { founder: process(SURVIVOR) }]);
        let beside = Generation::FIRST.next(process(ROUTER));
        let out = receive(&mut member, SURVIVOR, Message::Refound { generation: beside });
        assert_eq!(out.events, []);
        receive(&mut member, SURVIVOR, lead(SURVIVOR, later));
        assert_eq!(submits(&linked(&mut member)), !delivered);
    }
}

/// Returns the positions that a survivor takes from these blocks `(at, previous)`, and whether the report
/// counts as complete. The member has delivered up to 5.
fn taken(behind: u64, blocks: &[(u64, u64)]) -> (Vec<u64>, bool) {
    let (first, later) = (Generation::FIRST, Generation::FIRST.next(process(SURVIVOR)));
    let mut gathering = Gathering::new(first, later, Position(behind), Time::ZERO, Vec::new());
    let tail = |generation: Generation| Tail {
        generation,
        before: first,
        delivered: Position(5),
        acknowledged: 0,
        blocks: blocks.iter().map(|&(at, previous)| block(at, previous)).collect(),
    };
    gathering.take(process(MEMBER), tail(first), true);
    assert!(!gathering.is_complete(&[process(MEMBER)]), "it has not entered the generation");
    gathering.take(process(MEMBER), tail(later), true);
    assert!(gathering.is_complete(&[process(MEMBER)]));
    let entry = gathering.finish().remove(0);
    gathering.take(process(MEMBER + 1), tail(later), true);
    assert!(!gathering.is_complete(&[process(MEMBER + 1)]), "too late");
    let Ok(LogEntry::Recovered(recovery)) = LogEntry::decode(entry) else { panic!("a recovery comes first") };
    let known = recovery.messages.iter().map(|(at, ..)| at.0).collect();
    (known, recovery.reported.contains_key(&process(MEMBER)))
}

#[test]
fn a_member_with_an_incomplete_report_is_out() {
    assert_eq!(taken(2, &[(3, 2), (5, 3)]), (vec![3, 5], true), "4 was not for it");
    assert_eq!(taken(2, &[(1, 0), (2, 1), (3, 2), (5, 3)]), (vec![3, 5], true), "what the survivor has");
    assert_eq!(taken(2, &[(5, 4)]), (vec![5], false), "something was for it at 4");
    assert_eq!(taken(2, &[(3, 2)]), (vec![3], false));
    assert_eq!(taken(5, &[(3, 2), (4, 3)]), (vec![], true), "it is not ahead");
    assert_eq!(taken(2, &[(4, 2), (1, 0), (5, 4)]), (vec![4, 5], true), "in whatever order");
}
