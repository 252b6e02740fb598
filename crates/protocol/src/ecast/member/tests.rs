//! What a member does when a generation begins.

use super::*;
use crate::{
    ecast::message::{DeliverBlockBuilder, Delivery, DeliveryKind, LogEntry},
    ecast::reform::Gathering,
    id::Incarnation,
    seam::Ticket,
};

#[derive(Default)]
struct Out {
    sent: Vec<Message>,
    events: Vec<MemberEvent>,
    entered: Vec<Generation>,
}

impl Sink<Member> for Out {
    fn send(&mut self, _: Destination, message: Message, _: Option<Ticket>) {
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

    fn enter(&mut self, generation: Generation) {
        self.entered.push(generation);
    }
}

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(node.into()) }
}

const ROUTER: u64 = 1;
const SURVIVOR: u64 = 2;
const MEMBER: u64 = 9;

fn tell(member: &mut Member, from: u64, message: Message) -> Out {
    let mut out = Out::default();
    let mut random = || 0;
    let mut cx = Context { now: Time::ZERO, me: process(MEMBER), random: &mut random };
    member.handle(&mut cx, Input::Receive { from: process(from), message }, &mut out);
    out
}

fn lead(router: u64, generation: Generation) -> Message {
    let routers = vec![Peer { id: process(router), address: String::new() }];
    Message::Lead { generation, leader: Some(process(router)), routers, learned: 1 }
}

fn block(at: u64) -> DeliverBlock {
    let mut block = DeliverBlockBuilder::default();
    block.push(&Delivery {
        kind: DeliveryKind::Data,
        at: Position(at),
        previous: Position(at - 1),
        sender: process(7),
        number: at,
        body: Bytes::from_static(b"m"),
        attachment: None,
    });
    block.finish()
}

/// A member of the first generation that has delivered one message.
fn member() -> Member {
    let mut member = Member::new(process(MEMBER), MemberSettings::default());
    tell(&mut member, ROUTER, lead(ROUTER, Generation::FIRST));
    tell(&mut member, ROUTER, Message::Deliver(block(1)));
    assert_eq!(member.delivered(), Position(1));
    member
}

fn tails(out: &Out) -> Vec<&Tail> {
    let sent = out.sent.iter();
    sent.filter_map(|message| if let Message::Tail(tail) = message { Some(tail) } else { None }).collect()
}

#[test]
fn who_hears_of_a_later_leader_and_was_not_asked_is_out() {
    let later = Generation::FIRST.next(process(SURVIVOR));
    let mut member = member();
    let out = tell(&mut member, SURVIVOR, lead(SURVIVOR, later));
    assert_eq!((out.entered, out.events), (vec![later], vec![MemberEvent::Wedged]));

    // One that had delivered nothing has nothing that the cut could lack.
    let mut fresh = Member::new(process(MEMBER), MemberSettings::default());
    let out = tell(&mut fresh, SURVIVOR, lead(SURVIVOR, later));
    assert!(out.entered == [later] && !out.events.contains(&MemberEvent::Wedged), "{:?}", out.events);
}

#[test]
fn who_was_asked_says_so_again_until_it_is_delivered_to() {
    let later = Generation::FIRST.next(process(SURVIVOR));
    let mut member = member();
    let out = tell(&mut member, SURVIVOR, Message::Gather { generation: later });
    assert_eq!(tails(&out).iter().map(|tail| tail.blocks.len()).collect::<Vec<_>>(), [1]);
    assert_eq!((tails(&out)[0].generation, tails(&out)[0].before), (later, Generation::FIRST));
    let out = tell(&mut member, SURVIVOR, lead(SURVIVOR, later));
    assert_eq!(tails(&out).iter().map(|tail| tail.blocks.len()).collect::<Vec<_>>(), [0]);
    tell(&mut member, SURVIVOR, Message::Deliver(block(2)));
    let out = tell(&mut member, SURVIVOR, lead(SURVIVOR, later));
    assert!(tails(&out).is_empty());
}

#[test]
fn a_generation_beside_its_own_is_not_listened_to() {
    let (own, other) = (Generation::FIRST.next(process(SURVIVOR)), Generation::FIRST.next(process(ROUTER)));
    assert!(own.is_beside(other) && !own.is_later(other) && !other.is_later(own));
    let mut member = member();
    tell(&mut member, SURVIVOR, Message::Gather { generation: own });
    for message in [Message::Gather { generation: other }, lead(ROUTER, other)] {
        let refused = member.refused();
        let out = tell(&mut member, ROUTER, message);
        assert!(out.sent.is_empty() && out.entered.is_empty() && out.events.is_empty());
        assert_eq!(member.refused(), refused + 1);
    }
}

#[test]
fn what_was_delivered_in_another_generation_does_not_count() {
    let recovered = |before: Generation| {
        let mut gathering =
            Gathering::new(Generation::FIRST, process(SURVIVOR), Position(0), Time::ZERO, Vec::new());
        let generation = gathering.generation();
        let (delivered, blocks) = (Position(1), vec![block(1)]);
        gathering.take(process(MEMBER), Tail { generation, before, delivered, acknowledged: 0, blocks });
        let entry = gathering.finish().remove(0);
        let Ok(LogEntry::Recovered(recovery)) = LogEntry::decode(entry) else {
            panic!("a recovery comes first")
        };
        (recovery.messages.len(), recovery.reported.contains_key(&process(MEMBER)))
    };
    assert_eq!(recovered(Generation::FIRST), (1, true));
    assert_eq!(recovered(Generation::FIRST.next(process(ROUTER))), (0, false));
}
