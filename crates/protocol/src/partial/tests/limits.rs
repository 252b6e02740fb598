//! Tests of limits: a client cannot exceed them at any cell, and copies between cells may exceed them.

use bytes::Bytes;

use super::{
    super::*,
    bytes, found,
    net::{MAP, Net},
};
use crate::time::Duration;

/// Returns cells at one site that compare their keys. The map has three copies.
fn limited(cells: usize, limits: Limits, repair: ReadRepair) -> Net {
    let settings = Settings { limits, ..Settings::default() };
    Net::with(settings, &vec![0; cells], &[(0, 3)], repair, 1)
}

fn small(entry_bytes_max: usize, store_bytes_max: usize) -> Limits {
    let (entry_bytes_spare, store_bytes_spare, place_bytes_max) = (600, 1_000, 3_600);
    Limits { entry_bytes_max, store_bytes_max, entry_bytes_spare, store_bytes_spare, place_bytes_max }
}

fn field(name: &'static str) -> Action {
    Action::PutFields(vec![(bytes(name), Some(Bytes::from(vec![b'x'; 200])))])
}

fn value() -> Action {
    Action::Put { value: Bytes::from(vec![b'x'; 300]), lifetime: None }
}

fn is_done(outcome: &OperationOutcome) -> bool {
    matches!(outcome, OperationOutcome::Done { .. })
}

/// Cuts a cell off from all other cells.
fn send_away(net: &mut Net, away: u64) {
    for other in net.nodes().into_iter().filter(|other| *other != away) {
        net.cut(away, other);
    }
    net.run(Duration::from_secs(1));
}

/// Lets time pass until the horizons of all cells have passed the present time.
fn pass_horizon(net: &mut Net, patience: Duration) {
    let (from, end) = (net.now, net.now + patience);
    let is_behind = |net: &Net, node: &u64| net.status(*node).horizon.time < from.0;
    while net.nodes().iter().any(|node| is_behind(net, node)) {
        assert!(
            net.now < end,
            "a horizon stands: {:?}",
            net.nodes().iter().map(|it| net.status(*it)).collect::<Vec<_>>()
        );
        net.run(Duration::from_millis(100));
    }
}

/// Two writes, each taken by some replicas, together exceed the limit of an entry. The replicas become equal
/// nevertheless.
#[test]
fn replicas_become_equal_though_their_sum_is_above_the_limit_of_an_entry() {
    let mut net = limited(3, small(600, 1 << 20), ReadRepair::Blocking);
    assert!(is_done(&net.act(1, "h", field("a"), Level::All)));
    send_away(&mut net, 2);
    assert!(is_done(&net.act(1, "h", field("x"), Level::Quorum)));
    assert!(is_done(&net.act(2, "h", field("y"), Level::One)));
    net.heal();
    net.run(Duration::from_millis(20));
    for node in 1..=3 {
        let Some(Value::Hash(fields)) = found(&net.read(node, "h", Level::Quorum)) else {
            panic!("a read is not answered at {node}")
        };
        assert!(fields.len() >= 2, "{fields:?}");
    }
    pass_horizon(&mut net, Duration::from_secs(20));
    for node in 1..=3 {
        let held = net.cells[&node].replica().entry(MAP, b"h").expect("each owner has it");
        assert_eq!(held.fields().count(), 3, "{node}");
    }
    // A client cannot make the entry larger.
    let more = net.act(1, "h", field("z"), Level::Quorum);
    assert_eq!(more, OperationOutcome::Rejected(Rejection::TooLarge));
}

/// Each of the other cells has room for its own entries, and the limit of the new cell is too small for all
/// of them. The new cell takes the place nevertheless.
#[test]
fn a_cell_is_replaced_though_the_others_are_full() {
    let mut net = limited(3, small(600, 500), ReadRepair::None);
    send_away(&mut net, 1);
    assert!(is_done(&net.act(1, "k", value(), Level::One)));
    assert!(is_done(&net.act(2, "l", value(), Level::Quorum)));
    net.crash(3);
    net.heal();
    net.replace(3, 9);
    net.run(Duration::from_secs(3));
    assert!(net.order_arrivals() > 0, "it never arrives: {:?}", net.status(9));
    pass_horizon(&mut net, Duration::from_secs(20));
    assert_eq!((net.holders("k"), net.holders("l")), (3, 3));
}

/// An owner without room makes the coordinator give a hint up. Otherwise the hint would keep all horizons
/// back for hours.
#[test]
fn a_full_owner_holds_no_horizon_back() {
    let mut net = limited(3, small(600, 500), ReadRepair::None);
    send_away(&mut net, 3);
    assert!(is_done(&net.act(3, "k", value(), Level::One)));
    assert!(is_done(&net.act(1, "l", value(), Level::Quorum)));
    net.heal();
    pass_horizon(&mut net, Duration::from_secs(20));
    let hints = net.status(1).hints;
    assert_eq!((hints.kept, net.holders("l")), (0, 3));
}

/// A reachable owner refuses a write because it has no room, and the write meets its level at the other
/// owners. The coordinator keeps no hint for the refusing owner, and lists it among the owners that lack
/// writes.
#[test]
fn an_owner_that_refuses_a_write_for_want_of_room_lacks_it() {
    let mut net = limited(3, small(600, 500), ReadRepair::None);
    net.inject(
        3,
        "k",
        &Entry::whole(Stamp { time: 1, cell: CellNumber(1) }, Some(vec![b'x'; 300].into()), None),
    );
    net.run(Duration::from_millis(20));
    assert!(is_done(&net.act(1, "l", value(), Level::One)));
    net.run(Duration::from_millis(100));
    let status = net.status(1);
    assert_eq!((status.hints.kept, status.hints.lost, status.lacking.len()), (0, 1, 1), "{status:?}");
}

/// While a cell is away clients delete keys that never existed. The cell comes back, and all tombstones are
/// forgotten.
#[test]
fn tombstones_of_keys_that_never_existed_are_bounded_and_collected() {
    let mut net = limited(3, small(600, 4_000), ReadRepair::None);
    net.frame_bytes_max = 8_000;
    send_away(&mut net, 3);
    let mut refused = 0;
    for at in 0..200 {
        let names = (0..4).map(|name| (Bytes::from(format!("field {at}-{name}")), None)).collect();
        let outcome = net.act(1, "h", Action::PutFields(names), Level::Quorum);
        refused += u64::from(!is_done(&outcome));
        let key: &'static str = Box::leak(format!("absent {at}").into_boxed_str());
        let outcome = net.act(2, key, Action::Delete, Level::Quorum);
        refused += u64::from(!is_done(&outcome));
    }
    assert!(refused > 100, "{refused} refused, and cell 1 has {} bytes", net.status(1).bytes);
    net.heal();
    net.run(Duration::from_secs(60));
    for node in 1..=3 {
        let status = net.status(node);
        assert_eq!((status.keys, status.bytes), (0, 0), "{status:?}");
    }
}

/// A write with an earlier stamp, by a cell whose clock was far ahead, holds no horizon back.
#[test]
fn a_stamp_far_ahead_holds_no_horizon_back() {
    let mut net = limited(3, Settings::default().limits, ReadRepair::None);
    net.adjust(3, 3_600_000_000_000);
    net.act(3, "k", value(), Level::One);
    net.adjust(3, 0);
    pass_horizon(&mut net, Duration::from_secs(20));
    // The cell that takes a place takes all entries that the other cells have accepted.
    net.crash(2);
    net.replace(2, 9);
    net.run(Duration::from_secs(3));
    assert!(net.order_arrivals() > 0, "it never arrives: {:?}", net.status(9));
}

/// A write whose map is dropped while the write is under way leaves no hint. The hint would be sent in vain
/// for hours, and hold the horizon back.
#[test]
fn a_write_to_a_map_that_is_dropped_meanwhile_leaves_no_hint() {
    let mut net = Net::without_comparing(3);
    net.hold(1, 3);
    net.begin(1, "k", Some("v"), Level::Quorum, None);
    net.run(Duration::from_millis(1));
    net.order(&LayoutOrder::DropMap(MAP));
    net.run(Duration::from_secs(5));
    assert_eq!(net.status(1).hints.kept, 0);
}
