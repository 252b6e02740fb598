//! Tests of a router: the processes from which it accepts messages, and the information that it sends to each
//! process.

use super::*;
use crate::{
    ecast::block::{DeliverBlockBuilder, Delivery, DeliveryKind},
    ecast::{
        RefoundRefusal,
        rig::{Routers, peer, router},
        toy::{Toy, block, process},
    },
    seam::Ticket,
};

const A_WHILE: Duration = Duration::from_secs(3);

impl Routers {
    /// Takes the messages that were sent to a process since the last call.
    fn heard(&mut self, by: ProcessId) -> Vec<Message> {
        self.said.extract_if(.., |(_, whom, _)| *whom == by).map(|(.., message)| message).collect()
    }

    /// Links these processes to one router, lets them join there, and confirms their deliveries.
    fn join(&mut self, at: ProcessId, members: &[u64]) {
        for &member in members {
            self.link(at, process(member));
            self.say(process(member), at, Message::Route(block(member, 1, &["*join"])));
        }
        self.run(A_WHILE);
        let last = self.routers[&at].position();
        for &member in members {
            self.has(member, at, (last, last, last));
        }
        self.run(A_WHILE);
        self.said.clear();
    }

    fn has(
        &mut self,
        member: u64,
        at: ProcessId,
        (through, executed, durable): (Position, Position, Position),
    ) {
        self.say(process(member), at, Message::Confirm { through, executed, durable });
    }
}

/// Returns the runs of stable numbers in notices.
fn stable(messages: &[Message]) -> Vec<(u64, u32)> {
    let notices = messages.iter().filter_map(|message| match message {
        Message::Notice(notice) => Some(notice.stable.clone()),
        _ => None,
    });
    notices.flatten().collect()
}

#[test]
fn messages_in_the_name_of_others_or_of_the_future_are_refused() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    domain.join(leader, &[7, 8]);
    let (last, refused) = (domain.routers[&leader].position(), domain.refused(leader));
    // Three wrong blocks: one in the name of a different sender, one without a message, and bytes that are no
    // block.
    for (count, wrong) in (1..).zip([block(8, 2, &["a"]), block(7, 2, &[]), Bytes::from_static(b"a")]) {
        domain.say(process(7), leader, Message::Route(wrong));
        assert_eq!(domain.refused(leader), refused + count);
    }
    domain.run(A_WHILE);
    assert_eq!(domain.routers[&leader].position(), last, "nothing of that is ordered");

    domain.say(process(7), leader, Message::Route(block(7, 2, &["a"])));
    domain.run(A_WHILE);
    domain.heard(process(7));
    let (at, ahead) = (Position(last.0 + 1), Position(last.0 + 2));
    assert_eq!(domain.routers[&leader].position(), at);
    // Each of these reports is ahead of the history. The message would count as confirmed by both members if
    // the router believed the report.
    let wrong = [(ahead, at, at), (at, ahead, at), (at, at, ahead)];
    for (count, has) in (4..).zip(wrong) {
        domain.has(7, leader, has);
        domain.has(8, leader, (at, at, at));
        assert_eq!(domain.refused(leader), refused + count);
    }
    domain.run(A_WHILE);
    assert_eq!(stable(&domain.heard(process(7))), []);
    domain.has(7, leader, (at, at, at));
    domain.run(A_WHILE);
    assert_eq!(stable(&domain.heard(process(7))), [(2, 1)]);
}

#[test]
fn every_router_reports_the_outcomes_that_the_log_knows() {
    let mut domain = Routers::founded();
    let (leader, follower) = (domain.leader(), domain.followers()[0]);
    domain.join(leader, &[7]);
    domain.link(follower, process(7));
    domain.run(A_WHILE);
    for router in [leader, follower] {
        domain.said.clear();
        domain.say(process(7), router, Message::Route(block(7, 1, &["*join"])));
        domain.give(router, Input::Drained);
        let messages = domain.heard(process(7));
        assert_eq!(stable(&messages), [(1, 1)], "told by {router:?}: {messages:?}");
        assert_eq!(domain.routers[&router].position(), Position(1), "it is ordered once");
    }
    // A new message is ordered, and has no outcome yet.
    domain.say(process(7), follower, Message::Route(block(7, 2, &["a"])));
    assert_eq!(domain.heard(process(7)), []);
    domain.run(A_WHILE);
    assert_eq!(domain.routers[&follower].position(), Position(2));
}

#[test]
fn a_follower_needs_no_leader_to_answer() {
    let mut domain = Routers::founded();
    let (leader, follower) = (domain.leader(), domain.followers()[0]);
    domain.join(leader, &[7]);
    domain.link(follower, process(7));
    domain.said.clear();
    domain.silent = Some(leader);
    domain.say(process(7), follower, Message::Route(block(7, 1, &["*join"])));
    assert_eq!(stable(&domain.heard(process(7))), [(1, 1)]);
}

#[test]
fn opinions_are_for_members() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    domain.join(leader, &[7, 8]);
    let ask = |about: u64| Message::AskOpinion { about: process(about), second_opinion: 3 };
    let opinion = |opinion| Message::Opinion { about: process(8), second_opinion: 3, opinion };
    domain.say(process(7), leader, ask(8));
    assert_eq!(domain.heard(process(7)), [opinion(Opinion::Linked)]);
    assert_eq!(domain.heard(process(8)), [Message::Probe { asker: process(7), second_opinion: 3 }]);
    domain.say(process(8), leader, Message::Alive { asker: process(7), second_opinion: 3 });
    assert_eq!(domain.heard(process(7)), [opinion(Opinion::Heard)]);
    // A process that is no member gets no answer, and its question causes no probe.
    domain.link(leader, process(9));
    domain.heard(process(9));
    domain.say(process(9), leader, ask(8));
    domain.say(process(8), leader, Message::Alive { asker: process(9), second_opinion: 3 });
    assert_eq!((domain.heard(process(9)), domain.heard(process(8))), (vec![], vec![]));
}

#[test]
fn only_routers_send_detour_messages() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    domain.join(leader, &[7, 8]);
    let (member, hops, message) = (process(8), 3, Bytes::from_static(b"x"));
    let refused = domain.refused(leader);
    let round = [
        Message::Up { member, hops, message: message.clone() },
        Message::Down { member, hops, message },
        Message::Reach { members: vec![process(9)] },
    ];
    for (count, message) in (1..).zip(round) {
        domain.say(process(7), leader, message);
        assert_eq!(domain.refused(leader), refused + count);
    }
    assert!(!domain.routers[&leader].reaches(process(9)));
    assert_eq!(domain.heard(process(8)), []);
    domain.say(domain.followers()[0], leader, Message::Reach { members: vec![process(9)] });
    assert!(domain.routers[&leader].reaches(process(9)), "a router's word counts");
    assert_eq!(domain.refused(leader), refused + 3);
}

#[test]
fn all_routers_begin_with_the_founders_configuration() {
    let domain = Routers::founded_with(&[5]);
    for (id, router) in &domain.routers {
        assert!(router.config().contains(&process(5)), "{id:?}");
    }
    // A joining router proposes no founding entry, even if it becomes leader.
    let mut joiner = router(2, 1, &[6]);
    let mut out = Nowhere::default();
    let mut random = || 7;
    let mut cx = Context { now: Time::ZERO, me: process(2), random: &mut random };
    joiner.handle(&mut cx, Input::Drained, &mut out);
    assert!(!joiner.founding);
}

#[test]
fn a_founder_proposes_the_first_configuration_once() {
    let mut founder = router(1, 1, &[5]);
    let mut out = Nowhere::default();
    let mut random = || 7;
    let mut now = Time::ZERO;
    for _ in 0..20 {
        now = now + Duration::from_millis(100);
        let mut cx = Context { now, me: process(1), random: &mut random };
        // The disk is slow: the founder does not learn its proposal at once.
        founder.handle(&mut cx, Input::Deadline, &mut out);
        for _ in 0..3 {
            founder.handle(&mut cx, Input::Drained, &mut out);
        }
        founder.handle(&mut cx, Input::Persisted(Ticket(out.0.len() as u64)), &mut out);
    }
    assert!(founder.is_leader() && founder.config().contains(&process(5)));
    let founded = LogEntry::encode_founded(founder.config());
    assert_eq!(out.recorded(&founded), 1);
}

/// Builds the report of member 7: the joining of both members up to `last`, and a later delivery that nobody
/// else has.
fn ahead(generation: Generation, last: Position) -> Message {
    let mut block = DeliverBlockBuilder::default();
    let mut previous = Position(0);
    for (kind, at, sender, number, body) in [
        (DeliveryKind::Control, last.0 - 1, 7, 1, "join"),
        (DeliveryKind::Control, last.0, 8, 1, "join"),
        (DeliveryKind::Data, last.0 + 1, 8, 2, "x"),
    ] {
        let (at, sender, body) = (Position(at), process(sender), Bytes::from_static(body.as_bytes()));
        block.push(&Delivery { kind, at, previous, sender, number, attachment: None, body });
        previous = at;
    }
    let (before, blocks) = (Generation::FIRST, vec![block.finish(Position(0))]);
    Message::Tail(Tail { generation, before, delivered: previous, acknowledged: 1, blocks })
}

/// Begins a generation, then restarts the survivor with `durable` of its records. Returns whether it asked
/// the members again.
fn restarted(durable: impl Fn(usize, usize) -> usize) -> bool {
    let (mut domain, survivor) = bereft();
    let (seven, eight) = (process(7), process(8));
    let without = domain.records[&survivor].len();
    let reform = |id| Input::Command(RouterCommand::Reform { id: CommandId(id), patience: A_WHILE });
    domain.give(survivor, reform(1));
    let (last, generation) = (domain.routers[&survivor].position(), domain.routers[&survivor].generation());
    domain.say(seven, survivor, ahead(generation, last));
    domain.say(eight, survivor, tail(generation, last));
    domain.run(A_WHILE);
    assert!(domain.routers[&survivor].is_leader(), "the generation has begun");
    let whole = domain.records[&survivor].len();
    domain.restart(survivor, durable(without, whole));
    domain.said.clear();
    domain.run(Duration::from_millis(500));
    for member in [seven, eight] {
        domain.link(survivor, member);
    }
    let is_asked = |it: &mut Routers, who| {
        let messages = it.heard(who);
        let led = |message: &Message| matches!(message, Message::Lead { .. });
        let asked = messages
            .iter()
            .any(|message| matches!(message, Message::Gather { generation: it } if *it == generation));
        assert!(!asked || !messages.iter().any(led), "nobody hears who leads before the cut: {messages:?}");
        asked
    };
    let asked = is_asked(&mut domain, seven);
    assert_eq!(is_asked(&mut domain, eight), asked);
    if asked {
        domain.say(seven, survivor, Message::Route(block(7, 2, &["a"])));
        domain.run(A_WHILE);
        assert!(!domain.routers[&survivor].is_leader() && domain.routers[&survivor].position() <= last);
        domain.give(survivor, reform(9));
        assert_eq!(domain.ended.last(), Some(&(9, Err(RouterRefusal::GenerationBegins))));
        domain.say(seven, survivor, ahead(generation, last));
        domain.say(eight, survivor, tail(generation, last));
    }
    domain.run(A_WHILE);
    let router = &domain.routers[&survivor];
    assert!(router.is_leader() && router.knows_beginning(), "it goes on");
    let reformed = router.reformed().expect("a generation has begun");
    assert_eq!((reformed.generation, reformed.through), (generation, Position(last.0 + 1)));
    assert_eq!((reformed.missing, &reformed.fenced[..]), (0, &[][..]));
    asked
}

/// A position that only a member has delivered is kept, however much of the beginning is durable.
#[test]
fn a_survivor_restarted_before_the_cut_gathers_from_members_again() {
    let (mut without, mut with) = (0, 0);
    for more in 0.. {
        let reaches = std::cell::Cell::new(false);
        let asked = restarted(|before, whole| {
            reaches.set(before + more >= whole);
            whole.min(before + more)
        });
        *if asked { &mut without } else { &mut with } += 1;
        if reaches.get() {
            break;
        }
    }
    assert!(without > 2 && with > 0, "{without} without the entry, {with} with it");
}

/// A sink that sends no messages and keeps the records.
#[derive(Default)]
struct Nowhere(Vec<paxos::Record>);

impl Nowhere {
    /// Returns how often the payload was proposed.
    fn recorded(&self, payload: &Bytes) -> usize {
        let accepted = self.0.iter().filter_map(|record| match record {
            paxos::Record::Accepted { values, .. } => Some(values),
            _ => None,
        });
        let proposed = |value: &&paxos::SlotValue| matches!(value, paxos::SlotValue::Payloads(all) if all.contains(payload));
        accepted.flatten().filter(proposed).count()
    }
}

impl Sink<Router<Toy>> for Nowhere {
    fn send(&mut self, _: Destination, _: Message, _: Option<Ticket>) {}

    fn persist(&mut self, record: paxos::Record) -> Ticket {
        self.0.push(record);
        Ticket(self.0.len() as u64)
    }

    fn emit(&mut self, _: RouterEvent<BTreeSet<ProcessId>>) {}

    fn reach(&mut self, _: ProcessId, _: &str) {}

    fn forget(&mut self, _: ProcessId) {}

    fn adopt(&mut self, _: Arc<dyn Policy>) {}
}

/// Builds the report of a member that has delivered up to `delivered`.
fn tail(generation: Generation, delivered: Position) -> Message {
    let before = Generation::FIRST;
    Message::Tail(Tail { generation, before, delivered, acknowledged: 1, blocks: Vec::new() })
}

/// Builds a domain with one router left, and members 7 and 8.
fn bereft() -> (Routers, ProcessId) {
    let mut domain = Routers::founded();
    let survivor = domain.leader();
    domain.join(survivor, &[7, 8]);
    for other in domain.followers() {
        domain.lose(other);
    }
    domain.run(A_WHILE);
    domain.said.clear();
    (domain, survivor)
}

/// Builds a domain whose survivor got the command to continue, and waits for the members.
fn gathering() -> (Routers, ProcessId) {
    let (mut domain, survivor) = bereft();
    let reform = RouterCommand::Reform { id: CommandId(1), patience: A_WHILE };
    domain.give(survivor, Input::Command(reform));
    (domain, survivor)
}

#[test]
fn before_the_cut_nothing_is_ordered_and_nobody_is_admitted() {
    let (mut domain, survivor) = gathering();
    let last = domain.routers[&survivor].position();
    let members = vec![peer(7)];
    let before = Generation::FIRST;
    let refound = RouterCommand::Refound { id: CommandId(2), before, members, patience: A_WHILE };
    domain.give(survivor, Input::Command(refound));
    assert_eq!(domain.ended, [(2, Err(RefoundRefusal::Underway.into()))]);
    domain.ask(survivor, 3, paxos::Change::Add(peer(9)));
    assert_eq!(domain.ended.last(), Some(&(3, Err(RouterRefusal::GenerationBegins))));
    domain.run(Duration::from_millis(500));
    assert!(domain.routers[&survivor].log().is_leader() && !domain.routers[&survivor].is_leader());
    domain.say(process(7), survivor, Message::Route(block(7, 2, &["a"])));
    // The survivor ignores even a member that has reported, as long as other members have not reported.
    let generation = domain.routers[&survivor].generation();
    domain.say(process(7), survivor, tail(generation, last));
    domain.say(process(7), survivor, Message::Route(block(7, 2, &["a"])));
    domain.sought.clear();
    domain.link(survivor, process(9));
    domain.say(process(9), survivor, Message::Paxos(paxos::Message::Join { peer: peer(9) }));
    domain.run(Duration::from_millis(500));
    assert_eq!(domain.routers[&survivor].position(), last);
    assert_eq!(domain.sought, [], "no router joins");
    domain.run(A_WHILE);
    assert!(domain.routers[&survivor].is_leader(), "the generation has begun");
    assert_eq!(domain.ended.last(), Some(&(1, Ok(()))));
    domain.say(process(9), survivor, Message::Paxos(paxos::Message::Join { peer: peer(9) }));
    domain.run(Duration::from_millis(500));
    assert_ne!(domain.sought, [], "now it is taken in");
}

#[test]
fn a_member_that_did_not_follow_receives_only_its_removal() {
    let (mut domain, survivor) = gathering();
    let (last, generation) = (domain.routers[&survivor].position(), domain.routers[&survivor].generation());
    domain.say(process(7), survivor, tail(generation, last));
    domain.run(A_WHILE + A_WHILE);
    assert!(domain.routers[&survivor].is_leader());
    domain.link(survivor, process(8));
    domain.said.clear();
    let late = [
        tail(generation, last),
        Message::Route(block(8, 2, &["a"])),
        Message::AskOpinion { about: process(7), second_opinion: 1 },
        Message::Inject { token: 1, body: Bytes::new() },
        Message::Repair,
    ];
    for message in late {
        domain.say(process(8), survivor, message.clone());
        domain.run(Duration::from_millis(100));
        let messages = domain.heard(process(8));
        let out = |messages: &Message| matches!(messages, Message::Notice(notice) if notice.wedged);
        assert!(messages.iter().all(out), "{message:?}: {messages:?}");
    }
    assert_eq!(domain.routers[&survivor].position(), last, "nothing of it is ordered");
    // A member of the new generation gets a notice, however late its report is. A process without deliveries
    // may join.
    let witness = |delivered| {
        let Message::Tail(tail) = tail(generation, delivered) else { unreachable!("it was made so") };
        let (kept_behind, base, sent) = (Position(0), Position(0), 0);
        let (counted, config) = (Vec::new(), Bytes::new());
        Message::Witness(Box::new(crate::ecast::Witness { tail, kept_behind, base, sent, counted, config }))
    };
    domain.link(survivor, process(9));
    domain.run(Duration::from_millis(100));
    for (member, message) in [
        (7, tail(generation, last)),
        (7, witness(last)),
        (9, tail(generation, Position(0))),
        (9, witness(Position(0))),
    ] {
        domain.heard(process(member));
        domain.say(process(member), survivor, message);
        assert_eq!(domain.heard(process(member)), [Message::Notice(Notice::default())], "{member}");
    }
    // A process that is no member and has deliveries knows of messages that are unknown here.
    domain.say(process(9), survivor, tail(generation, last));
    let wedged = Notice { wedged: true, ..Notice::default() };
    assert_eq!(domain.heard(process(9)), [Message::Notice(wedged)]);
}

/// At the next generation, a member that was fenced off is asked like any other member, so that it learns
/// that it is out.
#[test]
fn a_fenced_member_is_asked_for_its_report_too() {
    let (mut domain, survivor) = gathering();
    let (last, generation) = (domain.routers[&survivor].position(), domain.routers[&survivor].generation());
    domain.say(process(7), survivor, tail(generation, last));
    domain.run(A_WHILE + A_WHILE);
    assert!(domain.routers[&survivor].order.is_fenced(process(8)));
    let until = domain.now + A_WHILE;
    let router = domain.routers.get_mut(&survivor).expect("it is left");
    router.gathering = Some(Gathering::new(generation, generation.next(survivor), last, until, Vec::new()));
    domain.said.clear();
    domain.link(survivor, process(8));
    let asked = |message: &Message| matches!(message, Message::Gather { .. });
    assert!(domain.heard(process(8)).iter().any(asked));
}
