//! Cells on disks: tests of the claims in the essay of `journal`, and recovery after random writes.

use bytes::Bytes;

use super::{
    super::{layout::tests::process, *},
    bytes, found,
    net::{Net, TIMEOUT},
    string,
};
use crate::{Input, time::Duration};

const MOMENT: Duration = Duration::from_millis(5);
const LARGE: u64 = 1 << 30;

fn stamp(outcome: &OperationOutcome) -> Stamp {
    match outcome {
        OperationOutcome::Done { stamp, .. } => *stamp,
        other => panic!("the write is not done: {other:?}"),
    }
}

#[test]
fn a_write_is_acknowledged_once_a_quorum_has_it_on_disk() {
    let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
    net.run(Duration::from_millis(600));
    net.slow_disks(true);
    let at = net.begin(1, "k", Some("v"), Level::Quorum, None);
    net.run(MOMENT);
    assert_eq!(net.holders("k"), 1, "the write left before its stamp was covered");
    net.sync(1);
    net.run(MOMENT);
    assert_eq!((net.holders("k"), net.outcome(at)), (3, None), "one of three has it on disk");
    net.sync(2);
    net.run(MOMENT);
    assert!(matches!(net.outcome(at), Some(OperationOutcome::Done { level: Level::Quorum, .. })));
    for node in 1..=3 {
        net.cut_power(node);
    }
    for node in [3, 1, 2] {
        net.restart(node, 0);
    }
    net.run(Duration::from_millis(100));
    assert_eq!(found(&net.read(3, "k", Level::Quorum)), string("v"));
}

/// A key that a scan lists survives a power cut.
#[test]
fn a_scan_shows_no_key_that_is_not_durable() {
    for asked in [1, 2] {
        let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
        net.put(1, "other", "v", Level::All);
        net.slow_disks(true);
        net.begin(1, "k", Some("v"), Level::Quorum, None);
        net.run(MOMENT);
        assert_eq!(net.holders("k"), 3);
        let scan = net.begin_scan(asked, Level::Quorum, None);
        net.run(MOMENT);
        assert_eq!(net.scanned(scan), None, "cell {asked} showed what no disk has");
        net.slow_disks(false);
        net.run(MOMENT);
        let Some(Scanned::Piece { keys, .. }) = net.scanned(scan) else { panic!("the scan does not end") };
        assert_eq!(keys.len(), 2);
    }
}

/// Stamps are reserved ahead, so a write soon after an earlier write waits only for the syncs of its
/// replicas.
#[test]
fn a_write_leaves_at_once_when_its_stamp_is_covered() {
    let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
    net.put(1, "k", "v", Level::Quorum);
    net.slow_disks(true);
    let at = net.begin(1, "k", Some("w"), Level::Quorum, None);
    net.run(MOMENT);
    net.sync(2);
    net.sync(3);
    net.run(MOMENT);
    assert!(matches!(net.outcome(at), Some(OperationOutcome::Done { .. })), "two others have it on disk");
}

/// A write has reached two replicas of three, whose disks lag, when its coordinator dies. No read shows the
/// write while a power cut would take it away.
#[test]
fn a_read_shows_no_write_that_a_power_cut_would_take() {
    for synced in [false, true] {
        let mut net = Net::on_disks(3, ReadRepair::Blocking, LARGE, 1);
        net.put(1, "k", "old", Level::All);
        net.slow_disks(true);
        net.begin(1, "k", Some("new"), Level::Quorum, None);
        net.run(MOMENT);
        assert_eq!(net.holders("k"), 3);
        net.cut_power(1);
        let at = net.begin(2, "k", None, Level::Quorum, None);
        net.run(MOMENT);
        assert_eq!(net.outcome(at), None, "what is on no disk was shown");
        if synced {
            net.sync(2);
            net.sync(3);
            net.run(MOMENT);
            assert_eq!(found(net.outcome(at).expect("both have it on disk")), string("new"));
        }
        net.cut_power(2);
        net.cut_power(3);
        for node in 1..=3 {
            net.restart(node, 0);
        }
        net.run(Duration::from_millis(100));
        let expected = if synced { "new" } else { "old" };
        assert_eq!(found(&net.read(1, "k", Level::Quorum)), string(expected));
    }
}

#[test]
fn a_key_that_is_on_disk_is_read_though_others_wait() {
    let mut net = Net::on_disks(3, ReadRepair::Blocking, LARGE, 1);
    net.put(1, "k", "v", Level::All);
    net.slow_disks(true);
    net.begin(1, "other", Some("w"), Level::One, None);
    net.run(MOMENT);
    let at = net.begin(2, "k", None, Level::All, None);
    net.run(MOMENT);
    assert_eq!(net.outcome(at).and_then(found), string("v"));
}

#[test]
fn stamps_continue_above_earlier_stamps_although_the_clock_was_set_back() {
    let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
    let before = stamp(&net.put(1, "k", "v", Level::Quorum));
    net.cut_power(1);
    net.restart(1, -400_000_000);
    net.run(Duration::from_millis(700));
    let after = stamp(&net.put(1, "other", "w", Level::Quorum));
    assert!(after > before && after.cell == before.cell, "{after:?} is issued after {before:?}");
    // The cell refuses to write, because its stamps would be too far ahead of the wall clock.
    net.cut_power(1);
    net.restart(1, -5_000_000_000);
    net.run(Duration::from_millis(100));
    assert_eq!(net.put(1, "k", "x", Level::Quorum), OperationOutcome::Rejected(Rejection::Skewed));
    net.adjust(1, 0);
    assert!(stamp(&net.put(1, "k", "x", Level::Quorum)) > after);
}

/// The other cells keep a deletion while a cell is away, however long, so that the cell brings nothing back.
#[test]
fn a_cell_that_was_away_brings_no_deleted_key_back() {
    let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
    net.put(1, "k", "v", Level::All);
    net.run(Duration::from_secs(5));
    net.cut_power(3);
    net.run(Duration::from_secs(1));
    net.act(1, "k", Action::Delete, Level::Quorum);
    net.run(Duration::from_secs(60));
    let keys = |net: &Net, node| net.status(node).keys;
    assert_eq!((keys(&net, 1), keys(&net, 2)), (1, 1), "a deletion was forgotten that cell 3 lacks");
    net.restart(3, 0);
    assert!(net.status(3).resumed);
    assert_eq!(keys(&net, 3), 1);
    net.run(Duration::from_millis(100));
    assert_eq!(found(&net.read(3, "k", Level::Quorum)), Some(Value::Nothing));
    net.run(Duration::from_secs(30));
    assert_eq!((1..=3).map(|node| keys(&net, node)).sum::<usize>(), 0, "nobody is away any more");
    // Forgotten deletions stay forgotten.
    for node in 1..=3 {
        net.cut_power(node);
    }
    for node in 1..=3 {
        net.restart(node, 0);
        assert_eq!(keys(&net, node), 0);
    }
    net.run(Duration::from_secs(1));
    assert_eq!(found(&net.read(3, "k", Level::All)), Some(Value::Nothing));
}

/// A cell reports its horizon only once the horizon is on disk, because this report lets the other cells
/// forget deletions.
#[test]
fn a_deletion_that_is_not_on_every_disk_is_forgotten_nowhere() {
    let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
    net.put(1, "k", "v", Level::All);
    net.run(Duration::from_secs(5));
    net.slow_disks(true);
    net.start(1, "k", Action::Delete, Level::Quorum, None);
    for _ in 0..20 {
        net.run(Duration::from_millis(300));
        net.sync(1);
        net.sync(2);
    }
    net.cut_power(3);
    net.restart(3, 0);
    assert_eq!(net.status(3).keys, 1, "it has the value, and not the deletion");
    assert_eq!((net.status(1).keys, net.status(2).keys), (1, 1));
    net.slow_disks(false);
    net.run(Duration::from_secs(30));
    assert_eq!((1..=3).map(|node| net.status(node).keys).sum::<usize>(), 0);
    assert_eq!(found(&net.read(3, "k", Level::All)), Some(Value::Nothing));
}

/// A report of a cell's progress leaves after the records of everything that the cell has taken and reserved.
#[test]
fn a_horizon_report_leaves_after_the_records_before_it() {
    let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
    net.put(1, "k", "v", Level::All);
    net.slow_disks(true);
    net.begin(1, "k", Some("w"), Level::One, None);
    net.hold(1, 2);
    net.run(Duration::from_millis(1_500));
    let is_word = |message: &Message| matches!(message, Message::HorizonReport(_));
    assert_eq!(net.count_queued(1, 2, is_word), 0, "a word was told that rests on what is on no disk");
    net.sync(1);
    assert_ne!(net.count_queued(1, 2, is_word), 0);
}

/// An answer to a request from before the power cut must not count for a later request.
#[test]
fn request_numbers_continue_after_a_restart() {
    let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
    for _ in 0..20 {
        net.put(1, "k", "v", Level::All);
    }
    net.cut_power(1);
    net.restart(1, 0);
    net.run(MOMENT);
    net.hold(2, 1);
    net.hold(3, 1);
    let at = net.begin(1, "k", Some("w"), Level::All, None);
    for (node, number) in [2, 3].into_iter().flat_map(|node| (1..1_000).map(move |number| (node, number))) {
        let message =
            Message::Answer { round: Round(number), answer: Answer::Written { newer: Stamp::ZERO } };
        net.input(1, Input::Receive { from: process(node), message });
    }
    net.run(MOMENT);
    assert_eq!(net.outcome(at), None, "answers of before were taken for those of now");
    net.release();
    net.run(Duration::from_millis(100));
    assert!(matches!(net.outcome(at), Some(OperationOutcome::Done { .. })));
}

/// An arriving cell that loses power right after its last copy is still arriving when it comes back.
#[test]
fn a_cell_has_arrived_once_its_copies_are_on_disk() {
    let mut net = Net::on_disks(3, ReadRepair::None, LARGE, 1);
    net.put(1, "k", "v", Level::Quorum);
    net.cut_power(3);
    net.join_on_disk(3, 7);
    net.run(Duration::from_secs(3));
    assert_eq!(net.holders("k"), 3);
    assert_eq!(net.order_arrivals(), 0, "its copies are on no disk");
    net.sync(7);
    assert_eq!(net.order_arrivals(), 1);
    assert_eq!(net.status(7).arriving, None);
}

/// Power fails after each step of a checkpoint in turn, and the cell loses nothing.
#[test]
fn a_checkpoint_removes_nothing_before_it_is_complete() {
    for syncs in 0..5 {
        let mut net = Net::on_disks(3, ReadRepair::None, 4_000, 1);
        net.put(1, "k", "v", Level::All);
        net.slow_disks(true);
        for _ in 0..10 {
            let value = Bytes::from(vec![b'w'; 500]);
            net.start(1, "l", Action::Put { value, lifetime: None }, Level::One, None);
        }
        let before = net.disks[&1].bytes();
        for _ in 0..syncs {
            net.sync(1);
        }
        if syncs == 4 {
            assert!(net.disks[&1].bytes() < before / 2, "what was written over is still there");
        }
        net.cut_power(1);
        net.restart(1, 0);
        assert_eq!(found(&net.read(1, "k", Level::One)), string("v"), "{syncs} syncs");
        assert_eq!(net.status(1).keys, if syncs == 0 { 1 } else { 2 });
    }
}

/// A cell comes back with its content after random writes, deletions and forgetting, wherever a checkpoint
/// was when the power failed. The journal does not grow with overwritten values.
#[test]
fn a_cell_comes_back_with_its_content() {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for seed in 0..40 {
        let checkpoint = [4_000, 20_000, LARGE][seed as usize % 3];
        let mut net = Net::on_disks(3, ReadRepair::None, checkpoint, seed);
        let mut most = 0;
        for step in 0..250 {
            let (node, key) = (net.below(3) + 1, NAMES[net.below(8) as usize]);
            let value = Bytes::from(vec![b'v'; net.below(1_000) as usize]);
            let action = match net.below(10) {
                0 => Action::Delete,
                1 => Action::PutFields(vec![(bytes("x"), Some(value)), (bytes("y"), None)]),
                2 => Action::PutFields(vec![(bytes("y"), Some(value))]),
                3 => Action::Put { value, lifetime: Some(Duration::from_millis(900)) },
                4..6 => Action::Add(1),
                _ => Action::Put { value, lifetime: None },
            };
            net.act(node, key, action, Level::Quorum);
            match step % 25 {
                12 => net.run(Duration::from_secs(2)),
                24 => {
                    let of = |net: &Net| {
                        let status = net.status(node);
                        (status.keys, status.bytes, status.print, status.horizon)
                    };
                    let before = of(&net);
                    net.cut_power(node);
                    net.restart(node, 0);
                    assert_eq!(of(&net), before, "seed {seed}, step {step}");
                }
                _ => {}
            }
            let kept = net.status(node).bytes;
            if checkpoint < LARGE {
                most = most.max(net.disks[&node].bytes());
                let bound = 4 * kept.max(checkpoint as usize) + 20_000;
                assert!(net.disks[&node].bytes() < bound, "seed {seed}: {most} bytes for {kept}");
            }
        }
        net.run(TIMEOUT);
    }
}
