use super::*;
use crate::{
    ecast::toy::{Toy, process},
    wire::encode_body,
};

/// A member with a configuration of these nodes, which has delivered up to `delivered`, knows that everything up to `base`
/// is stable and has kept what it delivered behind `kept`.
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

/// Where the history begins, whose configuration it begins with, by its members, and who stays.
fn chosen(witnesses: &[(u64, Witness)]) -> Option<(u64, Vec<u64>, Vec<u64>)> {
    let witnesses = witnesses.iter().map(|(node, witness)| (process(*node), witness.clone())).collect();
    let ground = ground::<Toy>(&witnesses)?;
    let config = Toy::witnessed(&ground.config).expect("our own bytes");
    let nodes = |all: Vec<ProcessId>| all.into_iter().map(|process| process.node).collect();
    Some((ground.behind.0, nodes(config.into_iter().collect()), nodes(ground.accounts.into_keys().collect())))
}

#[test]
fn the_history_begins_where_nobody_lacks_anything() {
    // The third has delivered nothing since position 5. It lacks nothing up to 20 all the same: the first heard so.
    let all = &[7, 8, 9];
    let witnesses =
        [(7, witness(30, 20, 10, all)), (8, witness(25, 18, 10, all)), (9, witness(5, 0, 0, all))];
    assert_eq!(chosen(&witnesses), Some((20, vec![7, 8, 9], vec![7, 8, 9])));
    // Behind the ground a member joined, whom those that stand there do not have in their configuration.
    let joined =
        [(7, witness(30, 20, 10, &[7, 8, 9])), (8, witness(5, 0, 0, &[7, 8])), (9, witness(28, 0, 0, all))];
    assert_eq!(chosen(&joined), Some((20, vec![7, 8], vec![7, 8, 9])));
    assert_eq!(chosen(&[(7, witness(0, 0, 0, &[]))]), None);
}

#[test]
fn who_lags_behind_what_others_keep_is_out() {
    let all = &[7, 8, 9];
    let witnesses =
        [(7, witness(90, 20, 60, all)), (8, witness(70, 20, 10, all)), (9, witness(5, 0, 0, all))];
    assert_eq!(chosen(&witnesses), Some((70, vec![7, 8, 9], vec![7, 8])));
}

#[test]
fn one_that_was_removed_and_does_not_know_has_no_say() {
    // The eighth stands at 10, and was removed behind that. Everything up to 20 is stable, for those who are members.
    let witnesses = [
        (7, witness(15, 20, 0, &[7, 9])),
        (8, witness(10, 0, 0, &[7, 8, 9])),
        (9, witness(30, 20, 0, &[7, 9])),
    ];
    assert_eq!(chosen(&witnesses), Some((20, vec![7, 9], vec![7, 9])));
}

#[test]
fn who_has_not_heard_of_the_last_beginning_stays_if_it_counted() {
    let last = Generation { number: 4, ..Generation::FIRST };
    let heard = |counted: &[u64]| {
        let mut heard = witness(30, 20, 0, &[7, 8]);
        heard.tail.before = last;
        heard.counted = counted.iter().map(|node| process(*node)).collect();
        heard
    };
    // What the other was told to be stable, 25, was so in the earlier generation.
    let other = witness(10, 25, 0, &[7, 8]);
    assert_eq!(chosen(&[(7, heard(&[7])), (8, other.clone())]), Some((30, vec![7, 8], vec![7])));
    assert_eq!(chosen(&[(7, heard(&[7, 8])), (8, other)]), Some((20, vec![7, 8], vec![7, 8])));
}
