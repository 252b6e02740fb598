//! Tests of several cells together: the claims of the essay one by one, and random schedules with checkers.

mod check;
mod counters;
mod disk;
mod limits;
mod net;
mod random;

use bytes::Bytes;

use self::net::{Net, TIMEOUT};
use super::{layout::tests::process, *};
use crate::time::Duration;

const FIXED: [Level; 3] = [Level::One, Level::Quorum, Level::All];

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn found(outcome: &OperationOutcome) -> Option<Value> {
    match outcome {
        OperationOutcome::Found { value, .. } => Some(value.clone()),
        _ => None,
    }
}

fn string(text: &'static str) -> Option<Value> {
    Some(Value::String(bytes(text)))
}

#[test]
fn writes_are_read_at_every_pair_of_levels() {
    for repair in [ReadRepair::None, ReadRepair::Background { per_million: 1_000_000 }, ReadRepair::Blocking]
    {
        let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], repair, 1);
        for (write, read) in FIXED.iter().flat_map(|write| FIXED.map(|read| (*write, read))) {
            for cell in 1..=4 {
                let done = net.put(cell, "k", "v", write);
                assert!(matches!(done, OperationOutcome::Done { level, .. } if level == write), "{done:?}");
                net.run(Duration::from_millis(5));
                let answer = net.read(5 - cell, "k", read);
                assert_eq!(found(&answer), string("v"));
            }
        }
        assert_eq!(found(&net.read(1, "other", Level::Quorum)), Some(Value::Nothing));
    }
}

/// 004 §I: of the nine pairs of levels four survive the failure of one server.
#[test]
fn four_pairs_of_nine_survive_a_dead_cell() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    net.cut(3, 1);
    net.cut(3, 2);
    net.run(Duration::from_secs(1));
    let mut survived = Vec::new();
    for (read, write) in FIXED.iter().flat_map(|read| FIXED.map(|write| (*read, write))) {
        let done = net.put(1, "k", "v", write);
        let answer = net.read(2, "k", read);
        if matches!(done, OperationOutcome::Done { .. }) && found(&answer).is_some() {
            survived.push((read, write));
        } else {
            assert!(done == OperationOutcome::Unavailable || answer == OperationOutcome::Unavailable);
        }
    }
    use Level::{One, Quorum};
    assert_eq!(survived, [(One, One), (One, Quorum), (Quorum, One), (Quorum, Quorum)]);
}

#[test]
fn a_quorum_write_goes_above_the_stamp_of_a_fast_clock() {
    let stamp = |outcome: &OperationOutcome| match outcome {
        OperationOutcome::Done { stamp, .. } => *stamp,
        other => panic!("{other:?}"),
    };
    for repair in [ReadRepair::None, ReadRepair::Blocking] {
        let mut net = Net::new(&[0, 0, 0], &[(0, 3)], repair, 1);
        net.adjust(1, 300_000_000);
        let fast = net.put(1, "k", "fast", Level::Quorum);
        let slow = net.put(2, "k", "slow", Level::Quorum);
        assert!(stamp(&slow) > stamp(&fast));
        assert_eq!(found(&net.read(3, "k", Level::Quorum)), string("slow"));
    }
    // At levels that share no replica, the second write is reported as done, and is lost.
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    net.adjust(1, 300_000_000);
    net.hold(1, 2);
    net.put(1, "k", "fast", Level::One);
    assert!(matches!(net.put(2, "k", "slow", Level::One), OperationOutcome::Done { .. }));
    net.release();
    net.run(Duration::from_millis(5));
    assert_eq!(found(&net.read(2, "k", Level::All)), string("fast"));
}

#[test]
fn a_clock_that_is_too_far_ahead_writes_nothing() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    net.adjust(1, 3_000_000_000);
    // The coordinator's own replica shares its clock. The other two replicas refuse the stamp.
    assert_eq!(net.put(1, "k", "v", Level::Quorum), OperationOutcome::MaybeApplied);
    assert_eq!(net.status(2).refused.skewed, 1);
    // A coordinator that is no owner holds nothing itself, so it knows that nothing was written.
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let stranger = net.stranger("k");
    net.adjust(stranger, 3_000_000_000);
    assert_eq!(net.put(stranger, "k", "v", Level::Quorum), OperationOutcome::Rejected(Rejection::Skewed));
}

#[test]
fn a_write_that_is_not_acknowledged_in_time_may_be_applied() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::Blocking, 1);
    net.hold(2, 1);
    net.hold(3, 1);
    let at = net.begin(1, "k", Some("v"), Level::Quorum, None);
    net.run(TIMEOUT);
    // The write had no stamp yet when its time was over.
    assert_eq!(net.outcome(at), Some(&OperationOutcome::NotApplied));
    net.release();
    net.run(Duration::from_millis(100));
    let at = net.begin(1, "k", Some("v"), Level::Quorum, None);
    net.run_until_writing(1);
    net.hold(2, 1);
    net.hold(3, 1);
    net.run(TIMEOUT);
    assert_eq!(net.outcome(at), Some(&OperationOutcome::MaybeApplied));
    // The answers that come now belong to no operation.
    net.release();
    net.run(Duration::from_millis(5));
    assert_eq!(found(&net.read(2, "k", Level::Quorum)), string("v"));
}

#[test]
fn a_fallback_to_a_smaller_level_is_reported() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    for other in [2, 3] {
        net.cut(1, other);
    }
    net.run(Duration::from_secs(1));
    assert_eq!(net.put(1, "k", "v", Level::Quorum), OperationOutcome::Unavailable);
    let at = net.begin(1, "k", Some("v"), Level::Quorum, Some(Level::One));
    assert!(matches!(net.outcome(at), Some(OperationOutcome::Done { level: Level::One, .. })));
    net.heal();
    net.run(Duration::from_millis(100));
    // The cells are reachable but silent, so the level fails only when the time is over.
    net.hold(2, 1);
    net.hold(3, 1);
    let at = net.begin(1, "k", None, Level::Quorum, Some(Level::One));
    net.run(TIMEOUT);
    assert!(
        matches!(net.outcome(at), Some(OperationOutcome::Found { level: Level::One, .. })),
        "{:?}",
        net.outcome(at)
    );
}

#[test]
fn a_local_quorum_needs_no_other_site() {
    let mut net = Net::new(&[0, 0, 0, 1, 1, 1], &[(0, 3), (1, 3)], ReadRepair::None, 1);
    assert!(matches!(net.put(4, "k", "a", Level::EachQuorum), OperationOutcome::Done { .. }));
    for (near, far) in (1..=3).flat_map(|near| (4..=6).map(move |far| (near, far))) {
        net.cut(near, far);
    }
    net.run(Duration::from_secs(1));
    assert_eq!(found(&net.read(1, "k", Level::LocalQuorum)), string("a"));
    assert_eq!(net.read(1, "k", Level::Quorum), OperationOutcome::Unavailable);
    assert_eq!(net.put(1, "k", "b", Level::EachQuorum), OperationOutcome::Unavailable);
    assert!(matches!(net.put(1, "k", "b", Level::LocalQuorum), OperationOutcome::Done { .. }));
    assert_eq!(found(&net.read(5, "k", Level::LocalQuorum)), string("a"));
}

/// A write reaches one replica of three and its coordinator dies. With blocking repair the first read that
/// sees the write leaves it at a quorum. Without repair the next read may not see it.
#[test]
fn a_read_leaves_what_it_saw_at_a_quorum() {
    for (repair, holders) in [(ReadRepair::None, 1), (ReadRepair::Blocking, 2)] {
        let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], repair, 1);
        let owners = net.owners("k");
        let stranger = net.stranger("k");
        // One of the three requests arrives.
        for owner in &owners[1..] {
            net.hold(stranger, *owner);
        }
        net.begin(stranger, "k", Some("v"), Level::One, None);
        net.run(Duration::from_millis(1));
        net.crash(stranger);
        assert_eq!(net.holders("k"), 1);
        let answer = net.read(owners[0], "k", Level::Quorum);
        assert_eq!(found(&answer), string("v"));
        assert!(net.holders("k") >= holders, "{repair:?}");
        assert_eq!(net.status(owners[0]).repairs, u64::from(repair == ReadRepair::Blocking));
    }
}

#[test]
fn a_thorough_read_brings_all_up_to_date() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::Background { per_million: 1_000_000 }, 1);
    net.cut(1, 2);
    net.cut(1, 3);
    net.put(1, "k", "v", Level::One);
    net.heal();
    net.run(Duration::from_millis(100));
    net.read(2, "k", Level::One);
    net.run(Duration::from_millis(100));
    assert_eq!(net.holders("k"), 3);
}

#[test]
fn a_slow_replica_is_not_waited_for() {
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    net.put(1, "k", "v", Level::All);
    let (owners, stranger) = (net.owners("k"), net.stranger("k"));
    for owner in &owners {
        net.hold(*owner, stranger);
        let at = net.begin(stranger, "k", None, Level::Quorum, None);
        net.run(Duration::from_millis(100));
        assert_eq!(net.outcome(at).and_then(found), string("v"), "without {owner}");
        net.release();
    }
}

/// 004 §II.A: a delay comes before a read and after a write, inside the interval that the user sees.
#[test]
fn a_delay_is_before_a_read_and_behind_a_write() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let delay = Duration::from_millis(20);
    let put = |value| Action::Put { value: bytes(value), lifetime: None };
    let write = net.start_delayed(1, "k", put("v"), delay);
    net.run(Duration::from_millis(19));
    assert_eq!((net.outcome(write), net.holders("k")), (None, 3));
    let read = net.start_delayed(2, "k", Action::Read, delay);
    net.run(Duration::from_millis(2));
    assert!(matches!(net.outcome(write), Some(OperationOutcome::Done { .. })));
    // This write comes after the user asked for the read, and before the read began.
    net.put(3, "k", "w", Level::All);
    assert_eq!(net.outcome(read), None);
    net.run(delay);
    assert_eq!(net.outcome(read).and_then(found), string("w"));
    // The coordinator reports a failed write at once.
    net.cut(1, 2);
    net.cut(1, 3);
    let all = Operation { delay, level: Level::All, ..net::operation(99, "k", put("x"), Level::All, None) };
    net.input(1, crate::Input::Command(Command::Operate(all)));
    assert_eq!(net.outcome(99), Some(&OperationOutcome::Unavailable));
}

/// Scans a map piece by piece, and returns all its keys.
fn scanned(net: &mut Net, node: u64, level: Level) -> Vec<(String, Kind)> {
    let (mut all, mut behind, mut pieces) = (Vec::new(), None, 0);
    loop {
        let Scanned::Piece { keys, next } = net.scan(node, level, behind) else { panic!("no piece") };
        all.extend(keys.into_iter().map(|(key, kind)| (String::from_utf8_lossy(&key).into_owned(), kind)));
        pieces += 1;
        assert!(pieces < 100 && (next.is_none() || next > behind), "a scan goes on");
        behind = next;
        if behind.is_none() {
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "a key is in two pieces");
            return all;
        }
    }
}

#[test]
fn a_map_scan_lists_every_key_once_and_no_deleted_key() {
    let mut net = Net::new(&[0, 0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let key = |n: u32| -> &'static str { Box::leak(format!("key {n:04}").into_boxed_str()) };
    for n in 0..1_500 {
        net.put(1 + u64::from(n) % 5, key(n), "v", Level::Quorum);
    }
    net.act(2, "h", Action::PutFields(vec![(bytes("f"), Some(bytes("v")))]), Level::Quorum);
    // One owner misses the delete, and still has the value.
    let owners = net.owners(key(7));
    let (coordinator, cut) = (owners[0], owners[2]);
    net.cut(coordinator, cut);
    net.act(coordinator, key(7), Action::Delete, Level::Quorum);
    let wanted: Vec<(String, Kind)> = [("h".to_owned(), Kind::Hash)]
        .into_iter()
        .chain((0..1_500).filter(|n| *n != 7).map(|n| (key(n).to_owned(), Kind::String)))
        .collect();
    assert_eq!(scanned(&mut net, coordinator, Level::Quorum), wanted);
    assert_eq!(scanned(&mut net, cut, Level::Quorum), wanted);
    // If some key cannot meet the level, the scan is refused. If cells do not answer, the scan ends in time.
    assert_eq!(net.scan(coordinator, Level::All, None), Scanned::Unavailable);
    net.heal();
    net.run(Duration::from_millis(100));
    for other in 1..=5 {
        net.hold(other, coordinator);
    }
    assert_eq!(net.scan(coordinator, Level::Quorum, None), Scanned::Unanswered);
    net.order(&LayoutOrder::DropMap(MapId(1)));
    assert_eq!(net.scan(coordinator, Level::One, None), Scanned::Rejected(Rejection::NoMap));
}

/// Returns a hash of these fields, each with the time of its write. A field that does not live is deleted.
fn hash(fields: &[(&'static str, u64, bool)]) -> Entry {
    let mut hash = Entry::nothing();
    for (name, time, lives) in fields {
        let stamp = Stamp { time: 1_000_000_000 + time, cell: CellNumber(1) };
        hash.merge(&Entry::of_fields(stamp, [(bytes(name), lives.then(|| bytes("v")))]));
    }
    hash
}

/// The highest stamp of a hash says nothing about its other fields: fields are merged one by one.
#[test]
fn a_scan_merges_the_fields_of_hashes_that_differ() {
    let (live, gone) = (true, false);
    let tally = |begun: u64, time: u64| {
        let stamp = |time| Stamp { time: 1_000_000_000 + time, cell: CellNumber(1) };
        Entry::of_tally(stamp(begun), Tally { stamp: stamp(time), sum: 1, firm: true, sole: false })
    };
    let deleted = Entry::whole(Stamp { time: 1_000_000_040, cell: CellNumber(1) }, None, None);
    for (here, there, kind) in [
        (hash(&[("a", 10, live), ("b", 12, live)]), hash(&[("b", 20, gone)]), Some(Kind::Hash)),
        (hash(&[("a", 10, live), ("b", 40, gone)]), hash(&[("a", 20, gone)]), None),
        (hash(&[("a", 10, live), ("b", 20, gone)]), hash(&[("a", 20, gone), ("b", 10, live)]), None),
        (hash(&[("a", 10, live)]), Entry::nothing(), Some(Kind::Hash)),
        (tally(10, 50), deleted.clone(), None),
        (tally(45, 50), deleted, Some(Kind::String)),
    ] {
        let mut net = Net::without_comparing(3);
        net.put(1, "other", "v", Level::All);
        for (node, entry) in [(1, &here), (2, &there)] {
            net.inject(node, "h", entry);
        }
        net.hold(3, 1);
        let expected = kind.map(|kind| (String::from("h"), kind));
        let expected: Vec<_> = expected.into_iter().chain([(String::from("other"), Kind::String)]).collect();
        assert_eq!(scanned(&mut net, 1, Level::Quorum), expected, "{here:?} and {there:?}");
    }
}

#[test]
fn requests_lost_with_a_link_are_sent_again() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    net.hold(1, 2);
    net.hold(1, 3);
    let at = net.begin(1, "k", Some("v"), Level::All, None);
    net.run(Duration::from_millis(1));
    net.cut(1, 2);
    net.cut(1, 3);
    net.release();
    net.heal();
    net.run(Duration::from_millis(500));
    assert!(matches!(net.outcome(at), Some(OperationOutcome::Done { .. })), "{:?}", net.outcome(at));
}

#[test]
fn fields_merge_and_a_delete_stays() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let fields = |net: &mut Net, cell, name, value: Option<&'static str>| {
        net.act(cell, "h", Action::PutFields(vec![(bytes(name), value.map(bytes))]), Level::Quorum)
    };
    fields(&mut net, 1, "a", Some("1"));
    fields(&mut net, 2, "b", Some("2"));
    fields(&mut net, 3, "a", None);
    let hash = Value::Hash(vec![(bytes("b"), bytes("2"))]);
    assert_eq!(found(&net.read(1, "h", Level::Quorum)), Some(hash));
    net.act(2, "h", Action::Delete, Level::Quorum);
    assert_eq!(found(&net.read(3, "h", Level::All)), Some(Value::Nothing));
    let value = bytes("x");
    let lifetime = Some(Duration::from_millis(50));
    net.act(1, "h", Action::Put { value, lifetime }, Level::All);
    assert_eq!(found(&net.read(3, "h", Level::One)), string("x"));
    net.run(Duration::from_millis(60));
    assert_eq!(found(&net.read(3, "h", Level::One)), Some(Value::Nothing));
}

#[test]
fn impossible_operations_are_rejected_with_their_reason() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let large = Action::Put { value: Bytes::from(vec![0; 5 << 20]), lifetime: None };
    assert_eq!(net.act(1, "k", large, Level::One), OperationOutcome::Rejected(Rejection::TooLarge));
    net.order(&LayoutOrder::DropMap(MapId(1)));
    assert_eq!(net.read(1, "k", Level::One), OperationOutcome::Rejected(Rejection::NoMap));
    let mut cell = Cell::new(process(9), Settings::default(), 0, crate::Time::ZERO);
    let events =
        net::alone(&mut cell, Command::Operate(net::operation(1, "k", Action::Read, Level::One, None)));
    assert_eq!(events, [Event::Ended { id: 1, outcome: OperationOutcome::Rejected(Rejection::NoCell) }]);
}

#[test]
fn a_cell_that_was_away_receives_hints() {
    let mut net = Net::without_comparing(3);
    net.cut(1, 3);
    net.put(1, "k", "old", Level::Quorum);
    net.put(1, "k", "new", Level::Quorum);
    net.put(1, "gone", "x", Level::Quorum);
    net.run(Duration::from_secs(3));
    assert_eq!((net.holders("k"), net.status(1).hints.kept), (2, 2));
    // Meanwhile a user who reaches the cell deletes one of the keys, so the hint comes too late.
    net.act(2, "gone", Action::Delete, Level::All);
    net.heal();
    net.run(Duration::from_secs(1));
    let hints = net.status(1).hints;
    assert_eq!((hints.kept, hints.bytes, hints.delivered, hints.lost), (0, 0, 2, 0));
    assert_eq!(found(&net.read(3, "k", Level::One)), string("new"));
    assert_eq!(found(&net.read(3, "gone", Level::One)), Some(Value::Nothing));
}

/// Returns the name of a key.
fn numbered(n: u64) -> &'static str {
    Box::leak(format!("key-{n}").into_boxed_str())
}

/// Hints are lost with their coordinator, and no key is read. Cells that compare become equal nevertheless.
#[test]
fn cells_that_compare_become_equal() {
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    net.cut(1, 3);
    net.cut(2, 3);
    net.cut(4, 3);
    let mut written: Vec<&'static str> = (0..300).map(numbered).collect();
    for key in written.clone() {
        net.put(1, key, "v", Level::One);
    }
    // The cell that is cut off can write only the keys that it owns.
    let own: Vec<_> = (300..600).map(numbered).filter(|key| net.owners(key).contains(&3)).collect();
    for key in &own {
        assert!(matches!(net.put(3, key, "v", Level::One), OperationOutcome::Done { .. }));
    }
    written.extend(own);
    net.run(Duration::from_secs(3));
    net.crash(1);
    net.heal();
    net.run(Duration::from_secs(8));
    let owners = |key: &'static str| net.owners(key).into_iter().filter(|node| *node != 1).count();
    let lacking = written.iter().filter(|key| net.holders(key) < owners(key));
    assert_eq!(lacking.count(), 0);
    let compared = net.nodes().into_iter().map(|node| net.status(node).compared);
    let (taken, given) = compared.fold((0, 0), |(taken, given), it| (taken + it.taken, given + it.given));
    assert!(taken + given > 150, "{taken} taken, {given} given");
}

#[test]
fn a_delete_is_forgotten_once_every_cell_has_it() {
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let away = net.owners("k")[2];
    net.put(net.owners("k")[0], "k", "v", Level::All);
    for other in net.nodes().into_iter().filter(|node| *node != away) {
        net.cut(away, other);
    }
    net.act(net.owners("k")[0], "k", Action::Delete, Level::Quorum);
    net.run(Duration::from_secs(30));
    assert_eq!(net.holders("k"), 3, "one of them has the value, and two the deletion");
    net.heal();
    net.run(Duration::from_secs(10));
    assert_eq!(net.holders("k"), 0);
    for node in net.nodes() {
        assert_eq!(found(&net.read(node, "k", Level::Quorum)), Some(Value::Nothing));
        assert_eq!(net.status(node).keys, 0);
    }
}

#[test]
fn a_hint_of_an_old_write_holds_the_horizon_back() {
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let (coordinator, owners) = (net.stranger("k"), net.owners("k"));
    // The value is at one owner, and its coordinator keeps hints. Another cell deletes the key.
    net.cut(coordinator, owners[1]);
    net.cut(coordinator, owners[2]);
    net.put(coordinator, "k", "old", Level::One);
    net.run(Duration::from_secs(3));
    net.act(owners[1], "k", Action::Delete, Level::All);
    net.run(Duration::from_secs(20));
    assert_eq!((net.holders("k"), net.status(coordinator).hints.kept), (3, 2));
    net.heal();
    net.run(Duration::from_secs(10));
    assert_eq!((net.holders("k"), net.status(coordinator).hints.kept), (0, 0));
}

/// An expired value is forgotten, and so is a deleted field of a hash whose other fields stay.
#[test]
fn expired_values_and_deleted_fields_are_forgotten() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let value = Bytes::from_static(b"v");
    let lifetime = Some(Duration::from_secs(2));
    net.act(1, "k", Action::Put { value: value.clone(), lifetime }, Level::All);
    let field = |name: &'static str, value| (Bytes::from_static(name.as_bytes()), value);
    let fields = vec![field("a", Some(value.clone())), field("b", Some(value))];
    net.act(1, "h", Action::PutFields(fields), Level::All);
    net.act(2, "h", Action::PutFields(vec![field("b", None)]), Level::All);
    net.run(Duration::from_secs(1));
    assert_eq!(net.holders("k"), 3);
    net.run(Duration::from_secs(9));
    assert_eq!((net.holders("k"), net.holders("h")), (0, 3));
    for node in net.nodes() {
        let held = net.cells[&node].replica().entry(net::MAP, &Bytes::from_static(b"h")).unwrap();
        assert_eq!(held.fields().count(), 1);
    }
    // The cells ignore a copy that comes late: they answer that they hold it, and keep nothing.
    assert!(net.nodes().into_iter().all(|node| net.status(node).horizon.time > 0));
}

#[test]
fn a_hint_is_no_acknowledgement() {
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    let stranger = net.stranger("k");
    for owner in net.owners("k") {
        net.cut(stranger, owner);
    }
    assert_eq!(net.put(stranger, "k", "v", Level::One), OperationOutcome::Unavailable);
    assert_eq!(net.status(stranger).hints.kept, 0);
}

#[test]
fn a_replacing_cell_counts_for_no_quorum_until_it_has_every_entry() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::Blocking, 1);
    // The write is at cells 1 and 2 only, and cell 2 is lost.
    net.cut(1, 3);
    net.cut(2, 3);
    net.put(1, "k", "v", Level::Quorum);
    net.crash(2);
    net.heal();
    net.hold(1, 4);
    net.replace(2, 4);
    net.run(Duration::from_secs(1));
    assert_eq!(net.status(4).arriving, Some(1), "cell 3 has nothing to give, and cell 1 is not heard");
    // Cells 3 and 4 are a majority of three. Cell 4 does not know the write, and cell 3 might not.
    net.cut(1, 3);
    assert_eq!(net.read(3, "k", Level::Quorum), OperationOutcome::Unavailable);
    assert_eq!(net.put(3, "k", "w", Level::Quorum), OperationOutcome::Unavailable);
    net.heal();
    net.run(Duration::from_secs(1));
    assert_eq!(net.order_arrivals(), 0);
    assert_eq!(found(&net.read(3, "k", Level::Quorum)), string("v"));

    net.release();
    net.run(Duration::from_secs(3));
    assert!(net.order_arrivals() > 1, "it is told again as long as it is not ordered");
    net.run(Duration::from_millis(100));
    assert_eq!(net.status(4).arriving, None);
    net.crash(1);
    net.run(Duration::from_millis(100));
    assert_eq!(found(&net.read(4, "k", Level::Quorum)), string("v"));
    assert!(matches!(net.put(3, "k", "w", Level::Quorum), OperationOutcome::Done { .. }));
}

/// The only holder of a write is lost. The cell that takes its place gets the write from the coordinator's
/// hints for the other owners, although it has copied from these owners before they got the write.
#[test]
fn a_replacing_cell_gets_the_pending_hints_of_other_owners() {
    let mut net = Net::without_comparing(4);
    let (owners, stranger) = (net.owners("k"), net.stranger("k"));
    for owner in &owners[1..] {
        net.cut(stranger, *owner);
    }
    assert!(matches!(net.put(stranger, "k", "v", Level::One), OperationOutcome::Done { .. }));
    net.run(TIMEOUT + Duration::from_secs(1));
    assert_eq!((net.holders("k"), net.status(stranger).hints.kept), (1, 2));
    net.crash(owners[0]);
    net.replace(owners[0], 9);
    net.run(Duration::from_secs(1));
    assert!(net.order_arrivals() > 0);
    assert_eq!(net.holders("k"), 1);
    net.heal();
    net.run(Duration::from_secs(1));
    let hints = net.status(stranger).hints;
    assert_eq!((net.holders("k"), hints.kept, hints.bytes, hints.lost), (3, 0, 0, 0));
}

/// If too few replicas take a write in time for its level, the coordinator keeps it as hints for the other
/// replicas: they may take the write later.
#[test]
fn a_write_that_some_replicas_refuse_is_kept_as_hints() {
    let mut net = Net::without_comparing(3);
    net.adjust(1, 1_000_000_000);
    assert_eq!(net.put(1, "k", "v", Level::Quorum), OperationOutcome::MaybeApplied);
    assert_eq!((net.holders("k"), net.status(1).hints.kept), (1, 2));
    net.run(Duration::from_secs(2));
    assert_eq!((net.holders("k"), net.status(1).hints.kept), (3, 0));
}

#[test]
fn operations_on_a_replaced_cell_end() {
    let mut net = Net::new(&[0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
    net.hold(1, 2);
    net.hold(1, 3);
    let write = net.begin(1, "k", Some("v"), Level::All, None);
    let read = net.begin(1, "k", None, Level::Quorum, None);
    net.crash(3);
    net.replace(3, 5);
    assert_eq!(net.outcomes.get(&write), Some(&OperationOutcome::MaybeApplied));
    assert_eq!(net.outcomes.get(&read), Some(&OperationOutcome::Unanswered));
    net.release();
    net.run(Duration::from_secs(1));
    assert!(net.order_arrivals() > 0);
    assert_eq!(found(&net.read(5, "k", Level::Quorum)), string("v"), "the write was under way to them");
}

#[test]
fn many_keys_are_copied_in_parts_while_new_writes_arrive_directly() {
    let mut net = Net::new(&[0, 0, 0, 0], &[(0, 2)], ReadRepair::None, 1);
    let key = |n: u32| -> &'static str { Box::leak(format!("key {n}").into_boxed_str()) };
    for n in 0..6_000 {
        net.put(1, key(n), "v", Level::All);
    }
    let owned = |net: &Net, node: u64| {
        let holds = |n: &u32| {
            net.cells[&node].replica().entry(net::MAP, &Bytes::from_static(key(*n).as_bytes())).is_some()
        };
        (0..6_500).filter(holds).count()
    };
    let before = owned(&net, 2);
    net.crash(2);
    net.replace(2, 7);
    for n in 6_000..6_500 {
        assert!(matches!(net.put(3, key(n), "w", Level::One), OperationOutcome::Done { .. }));
    }
    net.run(Duration::from_secs(2));
    assert!(net.order_arrivals() > 0);
    assert!(owned(&net, 7) > before, "{} after {before}", owned(&net, 7));
}

/// Writes keys with a large value each, which cell 1 coordinates and does not own.
fn large_keys_of_others(net: &mut Net, count: usize, bytes: usize) -> Vec<&'static str> {
    let value: &'static str = "v".repeat(bytes).leak();
    let mut keys = Vec::new();
    for number in 0.. {
        let key: &'static str = format!("k{number}").leak();
        if net.owners(key).contains(&1) {
            continue;
        }
        assert!(matches!(net.put(1, key, value, Level::All), OperationOutcome::Done { .. }));
        keys.push(key);
        if keys.len() == count {
            break;
        }
    }
    net.run(Duration::from_millis(50));
    keys
}

/// Cells send a bounded number of bytes to a cell that reads many of their large values at once. Without a
/// bound, they would send more than a link carries, or than that cell's memory holds.
#[test]
fn entries_on_their_way_to_a_coordinator_are_bounded_in_bytes() {
    let usual = Settings::default();
    let patience = Patience { in_flight_bytes_max: 1 << 20, ..usual.patience };
    let repair = RepairSettings { every: Duration::from_secs(3_600), ..usual.repair };
    let settings = Settings { patience, repair, ..usual };
    for level in FIXED {
        let mut net = Net::with(settings, &[0, 0, 0, 0], &[(0, 3)], ReadRepair::None, 1);
        let keys = large_keys_of_others(&mut net, 12, 200 << 10);
        let reads: Vec<u64> = keys.iter().map(|key| net.begin(1, key, None, level, None)).collect();
        let mut most = 0;
        // Messages to cell 1 pile up while any other message can be delivered.
        while let Some(pair) = net.ready().into_iter().max_by_key(|(_, to)| *to != 1) {
            net.deliver(pair);
            most = most.max(net.bytes_to(1));
        }
        assert!(most <= 1 << 20, "{most} bytes were on their way to cell 1");
        let is_busy = |outcome: &OperationOutcome| *outcome == OperationOutcome::Rejected(Rejection::Busy);
        let outcomes: Vec<&OperationOutcome> =
            reads.iter().map(|id| net.outcome(*id).expect("each ends")).collect();
        let done = outcomes.iter().filter(|outcome| found(outcome).is_some()).count();
        let busy = outcomes.iter().filter(|outcome| is_busy(outcome)).count();
        assert!(done >= 4 && busy > 0 && done + busy == 12, "{done} done and {busy} busy at {level:?}");
        // No bytes stay counted: one key after another can be read.
        for _ in 0..3 {
            for key in &keys {
                assert!(found(&net.read(1, key, level)).is_some(), "{level:?}");
            }
        }
    }
}
