use super::*;
use crate::{
    ecast::{
        RouterCommand,
        block::{DeliverBlockBuilder, Delivery, DeliveryKind},
        reform::Tail,
        rig::{Routers, peer},
        toy::{Toy, process},
    },
    wire::encode_body,
};

/// Builds a report of a member with a configuration of these nodes. It has delivered up to `delivered`, knows
/// that everything up to `base` is stable, and keeps its deliveries after `kept`.
fn witness(delivered: u64, base: u64, kept: u64, nodes: &[u64]) -> Witness {
    let mut config = bytes::BytesMut::new();
    encode_body(&mut config, &nodes.iter().map(|node| process(*node)).collect::<BTreeSet<_>>());
    Witness {
        tail: Tail {
            generation: Generation::FIRST.next(process(1)),
            before: Generation::FIRST,
            delivered: Position(delivered),
            acknowledged: 0,
            blocks: Vec::new(),
        },
        kept_behind: Position(kept),
        base: Position(base),
        sent: 0,
        counted: Vec::new(),
        config: config.freeze(),
    }
}

/// Returns the ground, the members of the configuration at the ground, and the members that stay.
fn chosen(witnesses: &[(u64, Witness)]) -> Option<(u64, Vec<u64>, Vec<u64>)> {
    let witnesses = witnesses.iter().map(|(node, witness)| (process(*node), witness.clone())).collect();
    let start = choose_start::<Toy>(&BTreeSet::new(), &witnesses)?;
    let config = start.config;
    let nodes = |all: Vec<ProcessId>| all.into_iter().map(|process| process.node).collect();
    Some((start.behind.0, nodes(config.into_iter().collect()), nodes(start.accounts.into_keys().collect())))
}

#[test]
fn the_history_begins_where_no_member_lacks_messages() {
    // The third member has delivered nothing since position 5. It lacks nothing up to 20 nevertheless,
    // because the first member's base is 20.
    let all = &[7, 8, 9];
    let witnesses =
        [(7, witness(30, 20, 10, all)), (8, witness(25, 18, 10, all)), (9, witness(5, 0, 0, all))];
    assert_eq!(chosen(&witnesses), Some((20, vec![7, 8, 9], vec![7, 8, 9])));
    // A member joined after the ground; members at the ground do not have it in their configuration.
    let joined =
        [(7, witness(30, 20, 10, &[7, 8, 9])), (8, witness(5, 0, 0, &[7, 8])), (9, witness(28, 0, 0, all))];
    assert_eq!(chosen(&joined), Some((20, vec![7, 8], vec![7, 8, 9])));
    assert_eq!(chosen(&[(7, witness(0, 0, 0, &[]))]), None);
}

#[test]
fn a_member_behind_the_kept_history_of_others_is_out() {
    let all = &[7, 8, 9];
    let witnesses =
        [(7, witness(90, 20, 60, all)), (8, witness(70, 20, 10, all)), (9, witness(5, 0, 0, all))];
    assert_eq!(chosen(&witnesses), Some((70, vec![7, 8, 9], vec![7, 8])));
}

#[test]
fn a_member_that_kept_everything_behind_the_ground_stays() {
    let all = &[7, 8];
    let kept = |kept| chosen(&[(7, witness(30, 20, kept, all)), (8, witness(5, 0, 0, all))]);
    assert_eq!(kept(20), Some((20, vec![7, 8], vec![7, 8])));
    assert_eq!(kept(21), Some((30, vec![7, 8], vec![7])));
}

#[test]
fn the_report_of_a_removed_member_does_not_count() {
    // Process 8 stands at 10 and was removed later. Everything up to 20 is stable, but only for members.
    let witnesses = [
        (7, witness(15, 20, 0, &[7, 9])),
        (8, witness(10, 0, 0, &[7, 8, 9])),
        (9, witness(30, 20, 0, &[7, 9])),
    ];
    assert_eq!(chosen(&witnesses), Some((20, vec![7, 9], vec![7, 9])));
}

#[test]
fn a_member_that_missed_the_last_generation_stays_if_it_counted_there() {
    let last = Generation { number: 4, ..Generation::FIRST };
    let heard = |counted: &[u64]| {
        let mut heard = witness(30, 20, 0, &[7, 8]);
        heard.tail.before = last;
        heard.counted = counted.iter().map(|node| process(*node)).collect();
        heard
    };
    // The other member's base, 25, was true in the earlier generation only.
    let other = witness(10, 25, 0, &[7, 8]);
    assert_eq!(chosen(&[(7, heard(&[7])), (8, other.clone())]), Some((30, vec![7, 8], vec![7])));
    assert_eq!(chosen(&[(7, heard(&[7, 8])), (8, other)]), Some((20, vec![7, 8], vec![7, 8])));
}

/// Builds a delivery that only member 7 has: the joining of process 9 at position 6, after the ground.
fn joining_of_9() -> Vec<crate::ecast::block::DeliverBlock> {
    let mut block = DeliverBlockBuilder::default();
    block.push(&Delivery {
        kind: DeliveryKind::Control,
        at: Position(6),
        previous: Position(5),
        sender: process(9),
        number: 1,
        body: Bytes::from_static(b"join"),
        attachment: None,
    });
    vec![block.finish(Position(5))]
}

/// Builds a founder with which a generation has begun.
fn begun() -> (Routers, ProcessId) {
    let patience = Duration::from_secs(3);
    let (mut domain, founder) = (Routers::fresh(2), process(2));
    let members = [7, 8, 9, 10].map(peer).to_vec();
    let refound = RouterCommand::Refound { id: CommandId(1), before: Generation::FIRST, members, patience };
    domain.give(founder, Input::Command(refound));
    for node in 7..=10 {
        domain.link(founder, process(node));
        domain.say(process(node), founder, Message::Pledge(Pledge::Follows));
    }
    let generation = domain.routers[&founder].generation();
    let nothing = || witness(0, 0, 0, &[]);
    let mut first_witness = witness(6, 5, 5, &[7, 8, 9, 10]);
    first_witness.tail.blocks = joining_of_9();
    for (node, mut witness) in
        [(7, first_witness), (8, nothing()), (9, nothing()), (10, witness(5, 5, 0, &[7, 8, 10]))]
    {
        witness.tail.generation = generation;
        domain.say(process(node), founder, Message::Witness(Box::new(witness)));
    }
    domain.run(patience);
    assert_eq!(domain.ended, [(1, Ok(()))]);
    (domain, founder)
}

#[test]
fn a_member_without_deliveries_stays_if_it_joined_behind_the_ground() {
    let (domain, founder) = begun();
    let began = domain.routers[&founder].reformed().expect("a generation has begun");
    // Nobody knows the messages that process 8 was sent when it joined, before the ground.
    assert_eq!(
        (began.behind, began.through, &began.fenced[..]),
        (Position(5), Position(6), &[process(8)][..])
    );
}

/// A founder that is killed and restarted, with any part of its records durable, continues from the ground or
/// ends. It never begins an empty domain.
#[test]
fn a_founder_that_is_restarted_without_its_ground_ends() {
    let (mut ended, mut went_on) = (0, 0);
    for durable in 1.. {
        let (mut domain, founder) = begun();
        let whole = domain.records[&founder].len();
        let before = domain.routers[&founder].reformed().cloned();
        domain.restart(founder, durable);
        domain.run(Duration::from_secs(3));
        let router = &domain.routers[&founder];
        if domain.removed.is_empty() {
            assert!(router.is_leader());
            assert_eq!(router.reformed().cloned(), before);
            went_on += 1;
        } else {
            assert_eq!((router.reformed(), router.position()), (None, Position(0)));
            ended += 1;
        }
        if durable >= whole {
            break;
        }
    }
    assert!(ended > 0 && went_on > 0, "{ended} ended, {went_on} went on");
}
