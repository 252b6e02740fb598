//! Tests of counters: increments through many cells, each counted once.

use bytes::Bytes;

use super::{
    super::*,
    FIXED, bytes, found,
    net::{self, Net, TIMEOUT},
    string,
};
use crate::time::Duration;

const MOMENT: Duration = Duration::from_millis(5);

fn add(net: &mut Net, node: u64, key: &'static str, added: i64, level: Level) -> OperationOutcome {
    net.act(node, key, Action::Add(added), level)
}

/// Returns the count in the answer to an increment.
fn count(outcome: &OperationOutcome) -> i64 {
    match outcome {
        OperationOutcome::Counted { count, .. } => *count,
        other => panic!("{other:?}"),
    }
}

/// Returns the number of a counter's tallies at a cell.
fn tallies(net: &Net, node: u64, key: &'static str) -> usize {
    let entry = net.cells[&node].replica().entry(net::MAP, &bytes(key));
    entry.map_or(0, |entry| entry.tallies().count())
}

#[test]
fn increments_through_all_cells_are_counted_once() {
    for repair in [ReadRepair::None, ReadRepair::Background { per_million: 1_000_000 }, ReadRepair::Blocking]
    {
        let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], repair, 1);
        let mut wanted = 0;
        for (level, round) in FIXED.iter().flat_map(|level| (1..=4).map(move |round| (*level, round))) {
            for node in 1..=4 {
                wanted += round;
                assert_eq!(count(&add(&mut net, node, "k", round, level)), wanted);
                net.run(Duration::from_millis(5));
            }
            let answer = net.read(2, "k", level);
            assert_eq!(found(&answer), Some(Value::String(Bytes::from(wanted.to_string()))));
        }
        // Each cell has one tally for smaller levels, and one for quorums.
        for owner in net.owners("k") {
            assert_eq!(tallies(&net, owner, "k"), 8);
        }
        net.run(Duration::from_secs(5));
        assert!(net.cells.values().all(|cell| cell.status().running == 0));
    }
}

#[test]
fn a_string_of_digits_is_counted_on() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let level = Level::Quorum;
    net.put(1, "k", "-5", level);
    assert_eq!(count(&add(&mut net, 2, "k", 3, level)), -2);
    assert_eq!(count(&add(&mut net, 3, "k", 4, level)), 2);
    // A string replaces base and tallies, and so does a deletion.
    net.put(1, "k", "100", level);
    assert_eq!(found(&net.read(2, "k", level)), string("100"));
    assert_eq!(count(&add(&mut net, 2, "k", -1, level)), 99);
    net.act(3, "k", Action::Delete, level);
    assert_eq!(found(&net.read(2, "k", level)), Some(Value::Nothing));
    assert_eq!(count(&add(&mut net, 2, "k", 7, level)), 7);
    let refused = |net: &mut Net, added| match add(net, 1, "k", added, level) {
        OperationOutcome::Rejected(rejection) => rejection,
        other => panic!("{other:?}"),
    };
    for text in ["x", "", "01", "+1", "-0", " 1", "9223372036854775808"] {
        net.put(1, "k", text, level);
        assert_eq!(refused(&mut net, 1), Rejection::NoNumber, "{text:?}");
        assert_eq!(found(&net.read(2, "k", level)), string(text));
    }
    net.put(1, "k", "9223372036854775806", level);
    assert_eq!(count(&add(&mut net, 2, "k", 1, level)), i64::MAX);
    assert_eq!(refused(&mut net, 1), Rejection::Overflow);
    assert_eq!(count(&add(&mut net, 2, "k", i64::MIN, level)), -1);
    // The sum of one tally would exceed 64 bits, but the count does not.
    assert_eq!(count(&add(&mut net, 2, "k", i64::MIN + 1, level)), i64::MIN);
    assert_eq!(refused(&mut net, -1), Rejection::Overflow);
    net.act(1, "k", Action::Delete, level);
    net.act(1, "k", Action::PutFields(vec![(bytes("f"), Some(bytes("1")))]), level);
    assert_eq!(refused(&mut net, 1), Rejection::Hash);
}

/// Two coordinators begin before either receives a message of the other: each answers 1, and both increments
/// are counted.
#[test]
fn increments_at_the_same_time_are_both_counted() {
    for repair in [ReadRepair::None, ReadRepair::Blocking] {
        let mut net = Net::new(&[0, 0, 0], &[(0, 3)], repair, 1);
        let one = net.start(1, "k", Action::Add(1), Level::Quorum, None);
        let two = net.start(2, "k", Action::Add(1), Level::Quorum, None);
        net.run(Duration::from_millis(5));
        assert_eq!(count(net.outcome(one).unwrap()) + count(net.outcome(two).unwrap()), 2);
        assert_eq!(found(&net.read(3, "k", Level::Quorum)), string("2"));
    }
}

/// Fifty clients increment through one cell at once. All increments go into one tally.
#[test]
fn a_crowd_at_one_cell_shares_a_tally() {
    for level in [Level::One, Level::Quorum] {
        let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::Blocking, 1);
        let node = net.stranger("k");
        for _ in 0..2 {
            let asked: Vec<u64> =
                (0..50).map(|_| net.start(node, "k", Action::Add(1), level, None)).collect();
            net.run(Duration::from_millis(5));
            assert!(
                asked.iter().all(|id| matches!(net.outcome(*id), Some(OperationOutcome::Counted { .. })))
            );
        }
        assert_eq!(found(&net.read(node, "k", Level::Quorum)), string("100"));
        for owner in net.owners("k") {
            assert_eq!(tallies(&net, owner, "k"), 1, "{level:?}");
        }
    }
}

/// A life's tallies stay when the life ends. The next life begins another tally, because it does not know the
/// last state that the former life sent.
#[test]
fn the_next_life_begins_another_tally() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::Blocking, 1);
    for _ in 0..3 {
        add(&mut net, 2, "k", 10, Level::Quorum);
    }
    net.crash(2);
    net.run(Duration::from_secs(1));
    net.replace(2, 4);
    net.run(Duration::from_secs(1));
    net.order_arrivals();
    assert_eq!(count(&add(&mut net, 4, "k", 5, Level::Quorum)), 35);
    assert_eq!(count(&add(&mut net, 4, "k", 5, Level::Quorum)), 40);
    net.run(Duration::from_secs(3));
    for owner in net.owners("k") {
        assert_eq!(tallies(&net, owner, "k"), 2);
        assert_eq!(found(&net.read(owner, "k", Level::One)), string("40"));
    }
}

/// A cell that comes back begins another tally. Its own disk has its tally's first state, and another owner
/// has acknowledged the second. If the cell continued the first state, the second would be lost.
#[test]
fn a_cell_that_comes_back_begins_another_tally() {
    let mut net = Net::on_disks(3, ReadRepair::None, 1 << 30, 1);
    assert_eq!(count(&add(&mut net, 1, "k", 1, Level::One)), 1);
    net.run(MOMENT);
    net.slow_disks(true);
    let at = net.start(1, "k", Action::Add(20), Level::One, None);
    net.run(MOMENT);
    assert_eq!(net.outcome(at), None, "it is on no disk");
    net.sync(2);
    net.run(MOMENT);
    assert_eq!(count(net.outcome(at).expect("it is on one disk")), 21);
    net.cut_power(1);
    net.restart(1, 0);
    net.cut(1, 2);
    net.cut(1, 3);
    assert_eq!(count(&add(&mut net, 1, "k", 300, Level::One)), 301);
    net.heal();
    net.slow_disks(false);
    net.run(Duration::from_secs(3));
    for node in 1..=3 {
        assert_eq!(tallies(&net, node, "k"), 2);
        assert_eq!(found(&net.read(node, "k", Level::One)), string("321"));
    }
    // From now on the cell continues that tally.
    assert_eq!(count(&add(&mut net, 1, "k", 4_000, Level::Quorum)), 4_321);
    assert_eq!(count(&add(&mut net, 1, "k", 50_000, Level::Quorum)), 54_321);
    assert_eq!(tallies(&net, 1, "k"), 3, "one more, at a quorum level");
    // All owners have the first tally, and all cells know that they have it.
    net.run(Duration::from_secs(5));
    assert_eq!(count(&add(&mut net, 1, "k", 600_000, Level::One)), 654_321);
    net.run(MOMENT);
    assert_eq!(tallies(&net, 1, "k"), 2);
    assert_eq!(found(&net.read(2, "k", Level::Quorum)), string("654321"));
}

/// Each start begins a tally of a key that is incremented at once. That tally takes in the earlier tallies,
/// or the next start continues that tally.
#[test]
fn starts_of_a_cell_leave_no_tallies_behind() {
    for (repair, level) in [(ReadRepair::None, Level::One), (ReadRepair::Blocking, Level::Quorum)] {
        let mut net = Net::on_disks(3, repair, 2_000, 1);
        let mut wanted = 0;
        for round in 1..=12 {
            for node in [1, 2] {
                net.cut_power(node);
                net.restart(node, 0);
            }
            net.run(Duration::from_millis(600));
            for node in [1, 2] {
                wanted += round;
                assert_eq!(count(&add(&mut net, node, "k", round, level)), wanted);
                net.run(MOMENT);
            }
            net.run(Duration::from_secs(5));
            for node in [1, 2].into_iter().filter(|_| round % 3 == 0) {
                wanted += 100;
                assert_eq!(count(&add(&mut net, node, "k", 100, level)), wanted);
                net.run(MOMENT);
            }
            for node in 1..=3 {
                assert!(tallies(&net, node, "k") <= if round % 3 == 0 { 2 } else { 6 }, "round {round}");
                assert_eq!(counter_value(&net.read(node, "k", Level::One)), Some(wanted));
            }
        }
    }
}

/// One owner has earlier tallies, and another owner has the state that has taken these tallies in. Reads,
/// hints and comparing merge the copies in any order.
#[test]
fn merged_tallies_do_not_count_again() {
    let mut net = Net::on_disks(3, ReadRepair::None, 2_000, 1);
    for start in 0..3 {
        add(&mut net, 1, "k", 1 << start, Level::Quorum);
        net.run(MOMENT);
        net.cut_power(1);
        net.restart(1, 0);
        net.run(Duration::from_millis(600));
    }
    assert_eq!(count(&add(&mut net, 1, "k", 8, Level::Quorum)), 15);
    net.run(Duration::from_secs(4));
    assert_eq!(tallies(&net, 2, "k"), 4);
    net.cut(1, 3);
    assert_eq!(count(&add(&mut net, 1, "k", 16, Level::Quorum)), 31);
    net.run(MOMENT);
    assert_eq!((1..=3).map(|node| tallies(&net, node, "k")).collect::<Vec<_>>(), [1, 1, 4]);
    // The coordinator dies with its hint. The earlier tallies and the state that took them in meet at one
    // coordinator, and then everywhere.
    net.cut_power(1);
    for level in [Level::Quorum, Level::One] {
        assert_eq!(counter_value(&net.read(2, "k", level)), Some(31));
    }
    assert_eq!(count(&add(&mut net, 3, "k", 32, Level::Quorum)), 63);
    net.restart(1, 0);
    net.heal();
    net.run(Duration::from_secs(4));
    for node in 1..=3 {
        assert_eq!(
            (tallies(&net, node, "k"), counter_value(&net.read(node, "k", Level::One))),
            (2, Some(63))
        );
    }
}

/// At level one the first increment goes to one replica. The second increment goes to another replica, in a
/// state that holds both increments.
#[test]
fn a_coordinator_remembers_increments_that_some_owners_lack() {
    let mut net = Net::without_comparing(4);
    let (node, owners) = (net.stranger("k"), net.owners("k"));
    for away in &owners[1..] {
        net.cut(node, *away);
    }
    assert_eq!(count(&add(&mut net, node, "k", 1, Level::One)), 1);
    net.heal();
    for away in [owners[0], owners[2]] {
        net.cut(node, away);
    }
    assert_eq!(count(&add(&mut net, node, "k", 1, Level::One)), 2);
    net.heal();
    net.run(Duration::from_secs(3));
    for owner in owners {
        assert_eq!(tallies(&net, owner, "k"), 1);
        assert_eq!(found(&net.read(owner, "k", Level::One)), string("2"));
    }
}

#[test]
fn an_increment_that_is_not_acknowledged_may_be_counted() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    net.hold(2, 1);
    net.hold(3, 1);
    let at = net.start(1, "k", Action::Add(1), Level::Quorum, None);
    net.run(TIMEOUT);
    assert_eq!(net.outcome(at), Some(&OperationOutcome::NotApplied), "it had read nothing yet");
    net.release();
    net.run(Duration::from_millis(100));
    let at = net.start(1, "k", Action::Add(1), Level::Quorum, None);
    net.run_until_writing(1);
    net.hold(2, 1);
    net.hold(3, 1);
    net.run(TIMEOUT);
    assert_eq!(net.outcome(at), Some(&OperationOutcome::MaybeApplied));
    net.release();
    net.run(Duration::from_secs(2));
    assert_eq!(count(&add(&mut net, 1, "k", 1, Level::Quorum)), 2);
    assert_eq!(found(&net.read(2, "k", Level::All)), string("2"));
}

/// All replicas refuse, so nothing was written. The next increment does not include the refused increment.
#[test]
fn a_refused_increment_is_taken_back() {
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let stranger = net.stranger("k");
    add(&mut net, stranger, "k", 1, Level::One);
    net.adjust(stranger, 3_000_000_000);
    let refused = add(&mut net, stranger, "k", 10, Level::One);
    assert_eq!(refused, OperationOutcome::Rejected(Rejection::Skewed));
    net.adjust(stranger, 0);
    net.run(Duration::from_secs(4));
    assert_eq!(count(&add(&mut net, stranger, "k", 100, Level::One)), 101);
    assert_eq!(found(&net.read(1, "k", Level::All)), string("101"));
}

#[test]
fn an_increment_keeps_the_end_of_what_expires() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::Blocking, 1);
    let lifetime = Some(Duration::from_millis(500));
    net.act(1, "k", Action::Put { value: bytes("10"), lifetime }, Level::All);
    assert_eq!(count(&add(&mut net, 1, "k", 1, Level::Quorum)), 11);
    let OperationOutcome::Found { expires: Some(_), .. } = net.read(2, "k", Level::Quorum) else {
        panic!("it stays")
    };
    net.run(Duration::from_millis(600));
    assert_eq!(found(&net.read(2, "k", Level::Quorum)), Some(Value::Nothing));
    assert_eq!(count(&add(&mut net, 1, "k", 1, Level::Quorum)), 1);
    // Base and tally are forgotten, and a tally that began later stays.
    net.run(Duration::from_secs(10));
    for node in net.nodes() {
        assert_eq!(tallies(&net, node, "k"), 1);
        assert!(matches!(net.read(node, "k", Level::One), OperationOutcome::Found { expires: None, .. }));
        assert_eq!(found(&net.read(node, "k", Level::One)), string("1"));
    }
}

/// A counter is deleted, forgotten and counted again, several times. A cell that was away for one of the
/// deletions brings nothing back.
#[test]
fn a_deleted_counter_is_forgotten_and_begins_at_zero() {
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let owners = net.owners("k");
    for round in 0..3 {
        for node in net.nodes() {
            add(&mut net, node, "k", 1, Level::Quorum);
        }
        if round == 1 {
            for other in net.nodes().into_iter().filter(|node| *node != owners[2]) {
                net.cut(owners[2], other);
            }
        }
        net.act(owners[0], "k", Action::Delete, Level::Quorum);
        net.run(Duration::from_secs(10));
        net.heal();
        net.run(Duration::from_secs(10));
        assert_eq!(net.holders("k"), 0);
        assert_eq!(count(&add(&mut net, owners[0], "k", 5, Level::Quorum)), 5);
        net.act(owners[1], "k", Action::Delete, Level::Quorum);
    }
}

/// A counter with the maximum number of tallies takes no further tally, and a string replaces all tallies by
/// one base.
#[test]
fn tallies_are_bounded() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let mut refused = None;
    for turn in 0..200u64 {
        // Each tally takes one increment: a second increment would exceed 64 bits.
        let added = if turn % 2 == 0 { i64::MAX } else { -i64::MAX };
        let node = turn % 2 + 1;
        if let OperationOutcome::Rejected(rejection) = add(&mut net, node, "k", added, Level::Quorum) {
            refused = Some((turn, rejection));
            break;
        }
    }
    assert_eq!(refused, Some((128, Rejection::Tallies)));
    net.put(1, "k", "0", Level::Quorum);
    assert_eq!(count(&add(&mut net, 1, "k", 1, Level::Quorum)), 1);
}

/// An operation of a random schedule. Increments add powers of two, so a count shows which increments it
/// includes.
struct Begun {
    id: u64,
    node: u64,
    start: u64,
    end: Option<u64>,
    /// The number to add. Zero for a read.
    added: i64,
}

/// Returns the increments that an outcome shows.
fn counter_value(outcome: &OperationOutcome) -> Option<i64> {
    match outcome {
        OperationOutcome::Counted { count, .. } => Some(*count),
        OperationOutcome::Found { value: Value::Nothing, .. } => Some(0),
        OperationOutcome::Found { value: Value::String(digits), .. } => counter::integer(digits),
        _ => None,
    }
}

/// Returns a net of cells in memory, one of which dies.
fn in_memory(repair: ReadRepair, seed: u64) -> Net {
    Net::new(&[0, 0, 0, 0], &[(0, 3)], repair, seed)
}

/// Returns a net of cells on slow disks. The cells lose power, alone or all at once.
fn on_disks(repair: ReadRepair, seed: u64) -> Net {
    let mut net = Net::on_disks(3, repair, 2_000, seed);
    net.slow_disks(true);
    net
}

/// Runs a random schedule: any message may be next, links break, cells pause and end, clocks differ and jump.
/// Returns the net and the operations.
fn schedule(mut net: Net, levels: &[Level], seed: u64) -> (Net, Vec<Begun>) {
    let has_disks = !net.disks.is_empty();
    let cells = net.nodes().len() as u64;
    let (mut begun, mut step, mut crashed) = (Vec::<Begun>::new(), 0, seed.is_multiple_of(3));
    let (mut adds, mut reads) = (0, 0);
    while adds + reads < 70 || begun.iter().any(|it| it.end.is_none()) {
        step += 1;
        assert!(step < 100_000, "seed {seed}: an operation does not end");
        let nodes = net.nodes();
        match net.below(100) {
            0..=7 if adds + reads < 70 => {
                let node = nodes[net.below(nodes.len() as u64) as usize];
                let level = levels[net.below(levels.len() as u64) as usize];
                let is_add = adds < 50 && net.below(3) > 0;
                let added = if is_add { 1 << adds } else { 0 };
                let action = if is_add { Action::Add(added) } else { Action::Read };
                (adds, reads) = if is_add { (adds + 1, reads) } else { (adds, reads + 1) };
                let id = net.start(node, "k", action, level, None);
                begun.push(Begun { id, node, start: step, end: None, added });
            }
            8 => {
                let (a, b) = (net.below(cells) + 1, net.below(cells) + 1);
                if a != b && nodes.contains(&a) && nodes.contains(&b) {
                    net.unlink(a, b);
                    net.link(a, b);
                }
            }
            9..=10 => {
                let (a, b) = (net.below(cells) + 1, net.below(cells) + 1);
                net.hold(a, b);
            }
            11 => net.release(),
            12 => {
                let (node, offset) = (net.below(cells) + 1, net.below(400_000_000) as i64 - 200_000_000);
                net.adjust(node, offset);
            }
            13 if has_disks => {
                let one = net.below(cells) + 1;
                let lost: Vec<u64> = if net.below(3) == 0 { nodes } else { vec![one] };
                lost.iter().for_each(|node| net.cut_power(*node));
                give_up(&mut net, &begun, &lost);
                for node in &lost {
                    let offset = net.below(200_000_000) as i64 - 100_000_000;
                    net.restart(*node, offset);
                }
                net.slow_disks(true);
                // The clocks pass the reserved stamps.
                pass(&mut net, Duration::from_millis(600));
            }
            // All messages arrive, so cells continue earlier tallies or take them in.
            24 if has_disks && net.below(8) == 0 => {
                net.slow_disks(false);
                net.release();
                net.run(Duration::from_secs(4));
                net.slow_disks(true);
            }
            13 if !crashed && step > 300 => {
                crashed = true;
                let node = net.below(cells) + 1;
                net.crash(node);
                give_up(&mut net, &begun, &[node]);
            }
            16..=20 if has_disks => {
                let node = net.below(cells) + 1;
                net.sync(node);
            }
            14 => pass(&mut net, Duration::from_millis(40)),
            15..=20 => pass(&mut net, Duration::from_millis(1)),
            _ => {
                let ready = net.ready();
                match ready.len() as u64 {
                    0 => pass(&mut net, Duration::from_millis(5)),
                    count => {
                        let pair = ready[net.below(count) as usize];
                        net.deliver(pair);
                    }
                }
            }
        }
        for it in begun.iter_mut().filter(|it| it.end.is_none() && net.outcomes.contains_key(&it.id)) {
            it.end = Some(step);
        }
    }
    (net, begun)
}

/// Ends the open operations of these cells, whose outcome no user learns.
fn give_up(net: &mut Net, begun: &[Begun], nodes: &[u64]) {
    for it in begun.iter().filter(|it| nodes.contains(&it.node)) {
        net.outcomes.entry(it.id).or_insert(OperationOutcome::MaybeApplied);
    }
}

fn pass(net: &mut Net, span: Duration) {
    net.now = net.now + span;
    net.fire();
}

/// Returns the sum of the increments that took effect, and the sum of the increments that may have taken
/// effect.
fn effects(net: &Net, begun: &[Begun]) -> (i64, i64) {
    begun.iter().fold((0, 0), |(done, perhaps), it| match &net.outcomes[&it.id] {
        OperationOutcome::Counted { .. } => (done | it.added, perhaps),
        OperationOutcome::MaybeApplied => (done, perhaps | it.added),
        _ => (done, perhaps),
    })
}

/// Checks for each seed that each count includes all increments acknowledged before it, and no increment that
/// was not requested.
fn quorums_count(seeds: u64, net: fn(ReadRepair, u64) -> Net) {
    let levels = [Level::Quorum, Level::Quorum, Level::All, Level::EachQuorum];
    for seed in 0..seeds {
        let repair = if seed % 2 == 0 { ReadRepair::None } else { ReadRepair::Blocking };
        let (net, begun) = schedule(net(repair, seed), &levels, seed);
        let (done, perhaps) = effects(&net, &begun);
        for it in &begun {
            let Some(count) = counter_value(&net.outcomes[&it.id]) else { continue };
            let before = begun.iter().filter(|other| other.end < Some(it.start));
            let acknowledged = before.clone().filter(|other| done & other.added != 0);
            let owed = acknowledged.fold(it.added, |owed, other| owed | other.added);
            let began = begun.iter().filter(|other| Some(other.start) < it.end);
            let may = began.fold(0, |may, other| may | other.added) & (done | perhaps);
            assert_eq!(count & owed, owed, "seed {seed}: {count:b} lacks some of {owed:b}");
            assert_eq!(count & !may, 0, "seed {seed}: {count:b} is more than {may:b}");
            if repair == ReadRepair::Blocking {
                let seen = before
                    .filter_map(|other| counter_value(&net.outcomes[&other.id]))
                    .fold(0, |all, it| all | it);
                assert_eq!(count & seen, seen, "seed {seed}: {count:b} goes back behind {seen:b}");
            }
        }
    }
}

#[test]
fn a_quorum_counts_all_increments_acknowledged_before() {
    quorums_count(300, in_memory);
}

#[test]
fn a_quorum_on_disk_counts_all_increments_acknowledged_before() {
    quorums_count(150, on_disks);
}

/// Checks that at smaller levels, too, all acknowledged increments are counted in the end, and none twice.
/// Returns the tallies of the owner that has the most tallies.
fn all_is_counted(net: Net, levels: &[Level], seed: u64) -> Vec<Tally> {
    let (mut net, begun) = schedule(net, levels, seed);
    let (done, perhaps) = effects(&net, &begun);
    if !net.disks.is_empty() {
        net.slow_disks(false);
    }
    net.release();
    net.heal();
    net.run(Duration::from_secs(8));
    let mut most = Vec::new();
    for owner in net.owners("k") {
        let count = counter_value(&net.read(owner, "k", Level::One)).expect("it is a number");
        assert_eq!(count & done, done, "seed {seed}: {count:b} lacks some of {done:b}");
        assert_eq!(count & !(done | perhaps), 0, "seed {seed}: {count:b}, {done:b}, {perhaps:b}");
        let entry = net.cells[&owner].replica().entry(net::MAP, &bytes("k")).unwrap_or_default();
        let tallies: Vec<Tally> = entry.tallies().map(|(_, tally)| tally).collect();
        most = if tallies.len() > most.len() { tallies } else { most };
    }
    most
}

/// In memory, all acknowledged increments are counted while no cell dies, as in every third schedule.
#[test]
fn replicas_count_all_that_was_acknowledged() {
    let levels = [Level::One, Level::Two, Level::Quorum];
    for seed in 0..200 {
        let repair = if seed % 2 == 0 { ReadRepair::None } else { ReadRepair::Blocking };
        let tallies = all_is_counted(in_memory(repair, 3 * seed), &levels, 3 * seed).len();
        assert!(tallies <= 16, "seed {seed}: {tallies} tallies");
    }
}

/// On disk, all acknowledged increments are counted, whatever cell dies.
#[test]
fn replicas_on_disk_count_all_that_was_acknowledged() {
    let levels = [Level::One, Level::Two, Level::Quorum];
    let mut taken_in = 0;
    for seed in 0..150 {
        let repair = if seed % 2 == 0 { ReadRepair::None } else { ReadRepair::Blocking };
        let tallies = all_is_counted(on_disks(repair, seed), &levels, seed);
        taken_in += usize::from(tallies.iter().any(|tally| tally.sole));
    }
    assert!(taken_in > 30, "tallies were taken in for {taken_in} seeds alone");
}
