use super::*;
use crate::{
    admission::Terms,
    ecast::{
        entry::RouteBlockBuilder,
        toy::{Toy, block, live, process, stable},
    },
    id::Generation,
};

fn order() -> Order<Toy> {
    Order::new(BTreeSet::new(), 4)
}

fn learn(order: &mut Order<Toy>, payloads: &[Bytes]) {
    for payload in payloads {
        order.learn(payload.clone());
    }
}

#[test]
fn a_block_is_appended_from_its_senders_next_number_on() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a"])]);
    assert_eq!(live(&order), "1:1.1 join, 2:1.2 a", "a message behind the join in its block");
    learn(&mut order, &[block(1, 1, &["*join", "a"]), block(1, 4, &["c"])]);
    assert_eq!(order.last(), Position(2), "neither a repetition nor what comes behind a gap");
    learn(&mut order, &[block(1, 2, &["a", "b"]), block(1, 4, &["c"])]);
    assert_eq!(live(&order), "1:1.1 join, 2:1.2 a, 3:1.3 b, 4:1.4 c");
    learn(&mut order, &[block(2, 1, &["x"]), block(1, 5, &["*what?"])]);
    assert_eq!(order.last(), Position(5), "strangers are not heard");
    assert!(live(&order).ends_with("5:1.5! what?"), "what routing refuses has its position");
}

#[test]
fn a_departed_process_is_not_admitted_again() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join"]), block(2, 1, &["*join", "a"])]);
    let learned = order.learn(block(2, 3, &["*leave", "behind"]));
    assert_eq!((learned.departed, learned.departed_senders), (vec![process(2)], vec![process(2)]));
    assert_eq!(order.last(), Position(4), "nothing of a sender behind its leaving");
    assert!(order.is_departed(process(2)) && !order.is_departed(process(1)));
    let learned = order.learn(block(2, 1, &["*join"]));
    assert_eq!(learned.departed_senders, vec![process(2)], "a late copy of its join is answered");
    assert!(learned.not_admitted.is_empty(), "and not refused");
    assert!(!order.config().contains(&process(2)), "and admits no ghost");
    learn(&mut order, &[block(1, 2, &["*-\u{2}", "*-\u{1}", "last"])]);
    assert_eq!(order.last(), Position(6), "who drops itself is not heard any more");
}

#[test]
fn stable_messages_are_forgotten_from_the_front_with_their_configuration() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a"]), block(2, 1, &["*join"]), block(1, 3, &["b"])]);
    assert_eq!(order.configs(), 3);
    let learned = order.learn(stable(&[(2, 2)]));
    let settled: Vec<_> = learned.settled.iter().map(|(at, ..)| at.0).collect();
    assert_eq!((settled, order.base()), (vec![2, 3], Position(0)));
    assert_eq!(live(&order), "1:1.1 join, 2:1.2 , 3:2.1 , 4:1.3 b", "bodies of stable messages are dropped");
    let known = |order: &Order<Toy>, number| order.sender(process(1)).and_then(|s| s.outcome(number));
    assert_eq!((known(&order, 1), known(&order, 2)), (None, Some(Outcome::Stable)));
    learn(&mut order, &[stable(&[(0, 2), (1, u32::MAX)]), stable(&[(u64::MAX, u32::MAX), (99, 1)])]);
    assert_eq!((order.base(), order.configs()), (Position(4), 1), "runs reach as far as the history");
    assert_eq!(order.config_at(Position(4)).len(), 2);
}

#[test]
fn stable_messages_behind_an_open_message_are_not_kept() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "open"]), stable(&[(1, 1)])]);
    for number in 3..1000 {
        learn(&mut order, &[block(1, number, &["done"]), stable(&[(number, 1)])]);
    }
    assert!(order.live_messages.kept() <= 5, "{} are kept", order.live_messages.kept());
    assert!(order.snapshot().len() < 1000, "{} bytes", order.snapshot().len());
    assert_eq!((order.base(), order.last()), (Position(1), Position(999)));
    assert_eq!(order.sender(process(1)).map(|sender| sender.sparse.count()), Some(1));
    assert_eq!(order.flight(Position(2)).map(|flight| &flight.body[..]), Some(&b"open"[..]));
    let mut copy = self::order();
    assert_eq!(copy.install(&order.snapshot()), Ok(()));
    let learned = copy.learn(stable(&[(2, 1)]));
    assert_eq!(learned.settled.len(), 1);
    assert_eq!((copy.base(), copy.live_messages.kept()), (Position(999), 0));
}

#[test]
fn a_repeated_message_is_refused_by_every_copy_that_learned_the_first() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a!", "a!", "b!"])]);
    assert_eq!(live(&order), "1:1.1 join, 2:1.2 a!, 3:1.3! a!, 4:1.4 b!");
    let mut copy = self::order();
    assert_eq!(copy.install(&order.snapshot()), Ok(()));
    learn(&mut copy, &[block(1, 5, &["b!"])]);
    assert!(live(&copy).ends_with("5:1.5! b!"), "a snapshot carries what messages are judged by");
}

#[test]
fn a_snapshot_goes_on_as_the_original() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a"]), block(2, 1, &["*join"]), stable(&[(2, 1)])]);
    learn(&mut order, &[block(2, 2, &["*leave"])]);
    let mut copy = self::order();
    assert_eq!(copy.install(&order.snapshot()), Ok(()));
    for payload in [block(1, 3, &["b"]), block(2, 1, &["*join"]), stable(&[(1, 3)]), block(1, 3, &["b", "c"])]
    {
        order.learn(payload.clone());
        copy.learn(payload);
        assert_eq!(copy.snapshot(), order.snapshot());
    }
    let bytes = order.snapshot();
    for length in 0..bytes.len() {
        assert!(self::order().install(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
    }
}

#[test]
fn the_outcome_of_each_message_is_kept_for_its_sender() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a", "b", "c"])]);
    order.settle(&[(1, 2)], &[(4, Outcome::MaybeApplied)], &mut EntryEffects::default());
    let outcomes = |order: &Order<Toy>| {
        let sender = order.sender(process(1)).expect("it has submitted");
        [1, 2, 3, 4, 5].map(|number| sender.outcome(number))
    };
    let stable = Some(Outcome::Stable);
    assert_eq!(outcomes(&order), [stable, stable, None, Some(Outcome::MaybeApplied), None]);
    order.settle(&[(3, 1)], &[], &mut EntryEffects::default());
    assert_eq!(outcomes(&order), [stable, stable, stable, Some(Outcome::MaybeApplied), None]);
}

#[test]
fn a_domain_is_founded_once() {
    let config = |members: &[u64]| {
        let mut bytes = bytes::BytesMut::new();
        let members: BTreeSet<ProcessId> = members.iter().map(|&member| process(member)).collect();
        crate::wire::encode_body(&mut bytes, &members);
        bytes.freeze()
    };
    let mut order = order();
    assert!(!order.is_founded());
    order.found(Bytes::from_static(&[0xff]), &mut EntryEffects::default());
    assert_eq!((order.is_founded(), order.malformed), (false, 1));
    let mut learned = EntryEffects::default();
    order.found(config(&[7]), &mut learned);
    assert!(order.is_founded() && learned.reconfigured && order.config().contains(&process(7)));
    order.found(config(&[8]), &mut EntryEffects::default());
    assert!(!order.config().contains(&process(8)), "the first word counts");

    // A log that contains ordered messages takes no founding configuration.
    let mut late = self::order();
    learn(&mut late, &[block(1, 1, &["*join"])]);
    assert!(late.is_founded());
    late.found(config(&[8]), &mut EntryEffects::default());
    assert!(late.config().contains(&process(1)) && !late.config().contains(&process(8)));
}

#[test]
fn the_configurations_of_stable_messages_are_forgotten_with_them() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a"]), stable(&[(1, 1)])]);
    assert_eq!((order.base(), order.configs()), (Position(1), 1));
    assert!(order.config_at(Position(2)).contains(&process(1)));
}

#[test]
fn a_recovered_number_lies_within_the_window() {
    let plausible = [(4, false), (5, true), (4 + NUMBERS_MAX, true), (5 + NUMBERS_MAX, false)];
    for (number, expected) in plausible {
        assert_eq!(is_plausible(number, 5), expected, "{number}");
    }
}

/// Builds the beginning of a generation.
fn recovery(behind: u64, through: u64, messages: &[(u64, u64, u64)]) -> Recovery {
    let message = |&(at, sender, number): &(u64, u64, u64)| {
        let id = MessageId { sender: process(sender), number };
        let (class, body) = if number == 1 { (Class::Control, "join") } else { (Class::Data, "again") };
        (Position(at), id, class, Bytes::from_static(body.as_bytes()))
    };
    Recovery {
        generation: Generation::FIRST.next(process(9)),
        behind: Position(behind),
        through: Position(through),
        messages: messages.iter().map(message).collect(),
        reported: BTreeMap::from([(process(1), 3)]),
        earlier_history: None,
    }
}

#[test]
fn a_generation_begins_where_the_log_ends_and_nowhere_else() {
    let begun = || {
        let mut order = order();
        learn(&mut order, &[block(1, 1, &["*join", "a"])]);
        order
    };
    for behind in [1, 3] {
        let mut order = begun();
        order.learn(LogEntry::encode_recovered(&recovery(behind, 4, &[])));
        assert_eq!((order.last(), order.malformed), (Position(2), 1), "behind {behind}");
    }
    let mut order = begun();
    order.learn(LogEntry::encode_recovered(&recovery(2, 4, &[(4, 1, 3)])));
    assert_eq!((order.last(), order.malformed), (Position(4), 0));
    let kept = |at| order.flight(Position(at)).map(|flight| (flight.is_hole(), flight.is_stable()));
    assert_eq!([2, 3, 4].map(kept), [Some((false, false)), Some((true, true)), Some((false, false))]);
    let reformed = order.reformed().expect("a generation began");
    assert_eq!((reformed.recovered, reformed.missing), (1, 1));
}

#[test]
fn outcomes_known_to_a_sender_stay_settled_in_the_next_generation() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a", "b", "c", "d"])]);
    order.learn(LogEntry::encode_recovered(&recovery(5, 5, &[])));
    let sender = order.sender(process(1)).expect("it has submitted");
    let stable = Some(Outcome::Stable);
    assert_eq!([1, 2, 3, 4, 5].map(|number| sender.outcome(number)), [stable, stable, stable, None, None]);
    // A settled number keeps its outcome.
    let again = |sender: &mut Sender, number| sender.settle(number, Outcome::MaybeApplied);
    let mut sender = sender.clone();
    again(&mut sender, 3);
    assert_eq!(sender.outcome(3), stable, "the last number that is settled");
    again(&mut sender, 4);
    assert_eq!(sender.outcome(4), Some(Outcome::MaybeApplied));
}

/// Regression: a sender knew the outcomes of messages that the new generation lacked, but could not
/// acknowledge them until an older outcome came. Until then none of its messages was ordered.
#[test]
fn outcomes_known_to_a_sender_are_not_awaited() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a", "b"])]);
    order.learn(LogEntry::encode_recovered(&recovery(3, 3, &[])));
    let behind = |acknowledged, first, text: &str| {
        let mut block = RouteBlockBuilder::new(process(1), acknowledged, first);
        block.push(Class::Data, text.as_bytes());
        block.finish()
    };
    order.learn(behind(4, 6, "f"));
    assert_eq!((order.last(), order.expected(process(1))), (Position(3), 5), "5 is still to come");
    order.learn(behind(5, 6, "f"));
    assert!(live(&order).ends_with("4:1.6 f"), "{}", live(&order));
    let outcome = |number| order.sender(process(1)).and_then(|sender| sender.outcome(number));
    assert_eq!([5, 6].map(outcome), [Some(Outcome::Stable), None]);
}

#[test]
fn numbers_that_a_recovery_leaves_out_are_used_up() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a"])]);
    // The sender's messages 3 and 4 are lost, and some member delivered message 5.
    order.learn(LogEntry::encode_recovered(&recovery(2, 3, &[(3, 1, 5)])));
    let outcome = |number| order.sender(process(1)).and_then(|sender| sender.outcome(number));
    let lost = Some(Outcome::MaybeApplied);
    assert_eq!([3, 4, 5].map(outcome), [Some(Outcome::Stable), lost, None], "it knew of 3");
    assert_eq!(order.expected(process(1)), 6);
    // Of the messages of a process that the history does not know, only the first is accepted.
    for (number, known) in [(1, true), (5, false)] {
        let mut order = self::order();
        learn(&mut order, &[block(1, 1, &["*join", "a"])]);
        order.learn(LogEntry::encode_recovered(&recovery(2, 3, &[(3, 2, number)])));
        assert_eq!(order.config().contains(&process(2)), known, "{number}");
        assert_eq!(order.flight(Position(3)).map(Ordered::is_hole), Some(!known), "{number}");
    }
}

#[test]
fn a_ground_that_does_not_decode_begins_nothing() {
    let mut order = order();
    let (config, firsts, sent) = (Bytes::from_static(&[0xff]), BTreeMap::new(), BTreeMap::new());
    let earlier_history = Some(EarlierHistory { before: Generation::FIRST, config, firsts, sent });
    order.learn(LogEntry::encode_recovered(&Recovery { earlier_history, ..recovery(7, 9, &[]) }));
    assert_eq!((order.malformed, order.last()), (1, Position(0)));
    assert!(order.reformed().is_none() && !order.is_founded());
}

#[test]
fn a_refusal_is_sent_to_strangers_and_kept_for_members() {
    let mut order = order();
    let learned = order.learn(block(1, 1, &["*join", "*what?", "a!", "*what!"]));
    assert_eq!(live(&order), "1:1.1 join, 2:1.2! what?, 3:1.3 a!, 4:1.4! what!");
    assert!(learned.not_admitted.is_empty(), "a member is in");
    let learned = order.learn(block(2, 1, &["*what?"]));
    assert_eq!(learned.not_admitted, [(process(2), NotAdmitted::Terms(Terms::default()))]);
    let learned = order.learn(block(2, 1, &["a"]));
    assert!(learned.not_admitted.is_empty(), "a stranger's data asks for nothing");
    // A refused message leaves no trace in the ledger, so the same body may be sent again.
    learn(&mut order, &[block(1, 5, &["what!"])]);
    assert!(live(&order).ends_with("5:1.5 what!"), "{}", live(&order));
}

#[test]
fn a_snapshot_with_two_configurations_at_one_position_is_refused() {
    let mut order = order();
    learn(&mut order, &[block(1, 1, &["*join", "a"]), block(2, 1, &["*join"])]);
    assert_eq!(self::order().install(&order.snapshot()), Ok(()));
    let (at, config) = order.configs[1].clone();
    order.configs.insert(1, (at, config));
    assert_eq!(
        self::order().install(&order.snapshot()),
        Err("the configurations in the snapshot are out of order")
    );
}
