//! Tests of snapshots: the time at which a router asks its user for a snapshot, the routers to which it sends
//! the snapshot, and the parts that a receiver accepts.

use bytes::Bytes;
use quorate_protocol::{
    Input, Session,
    paxos::{Ballot, Command, Event, Message, Record, Settings, Slot},
};

use super::{
    alone::{Alone, Said, ballot, checkpoint, peers},
    reign::{choose, follow, join, leading, small_messages},
    world::process,
};

fn wanted(said: &Said) -> Vec<Slot> {
    let wanted = said.events.iter().filter_map(|event| match event {
        Event::SnapshotWanted { slot } => Some(*slot),
        _ => None,
    });
    wanted.collect()
}

/// Returns the offsets of the snapshot chunks that were sent to `to`.
fn chunks(said: &Said, to: &str) -> Vec<u64> {
    let chunks = said.to(to).into_iter().filter_map(|message| match message {
        Message::Chunk { offset, .. } => Some(*offset),
        _ => None,
    });
    chunks.collect()
}

#[test]
fn a_router_without_learned_slots_takes_no_checkpoint() {
    let settings = Settings { checkpoint_bytes: Some(1), ..Settings::default() };
    let mut router = Alone::joining("4", &settings);
    let beat = Message::Heartbeat {
        ballot: ballot(7, "1"),
        chosen: Slot::ZERO,
        collect: Slot::ZERO,
        sent: Slot::ZERO,
    };
    let said = router.hear("1", beat);
    assert!(!said.records.is_empty(), "it promises");
    assert_eq!(wanted(&router.input(Input::Drained)), []);
}

#[test]
fn replaced_records_are_removed_once_the_checkpoint_is_on_disk() {
    let settings = Settings { checkpoint_bytes: Some(1), ..Settings::default() };
    let mut router = Alone::founder(&settings);
    router.persisted();
    assert_eq!(wanted(&router.input(Input::Drained)), [Slot(1)]);
    router.command(Command::Snapshot { slot: Slot(1), state: Bytes::new() });
    assert!(router.persisted().collected.is_some());
}

/// Lets a joining router wait for a snapshot.
fn waiting(router: &mut Alone, own: Ballot, name: &str) -> Said {
    join(router, name);
    router.input(Input::Linked { peer: process(name), session: Session(1) });
    follow(router, own, name, None, 0)
}

fn snapshot(router: &mut Alone, slot: u64, bytes: usize) -> Said {
    router.command(Command::Snapshot { slot: Slot(slot), state: Bytes::from(vec![b's'; bytes]) })
}

#[test]
fn the_user_is_asked_once_for_all_waiting_routers() {
    let settings = Settings { checkpoint_bytes: Some(1), ..small_messages() };
    let (mut router, own) = leading(&settings);
    assert_eq!(wanted(&waiting(&mut router, own, "4")), [Slot(5)]);
    assert_eq!(wanted(&waiting(&mut router, own, "5")), []);
    assert_eq!(wanted(&router.input(Input::Drained)), [], "nor for the disk");
    let said = snapshot(&mut router, 5, 20);
    assert_eq!((chunks(&said, "4"), chunks(&said, "5")), (vec![0, 10], vec![0, 10]));
}

#[test]
fn a_snapshot_is_sent_as_it_is_taken() {
    let (mut router, own) = leading(&small_messages());
    waiting(&mut router, own, "4");
    assert_eq!(chunks(&snapshot(&mut router, 5, 80), "4"), [0, 10, 20, 30]);
    let taken = |router: &mut Alone, slot: u64, offset: u64| {
        let said = router.hear("4", Message::ChunkTaken { ballot: own, slot: Slot(slot), offset });
        chunks(&said, "4")
    };
    assert_eq!(taken(&mut router, 4, 10), [], "of another snapshot");
    assert_eq!(taken(&mut router, 5, 50), [], "more than was sent");
    assert_eq!(taken(&mut router, 5, 10), [40]);
    // The joining router lost its part of the snapshot, or has a snapshot from another router.
    let lacks = Message::Following { ballot: own, through: None, chosen: Slot::ZERO, lacks: true };
    assert_eq!(chunks(&router.hear("4", lacks), "4"), [0, 10, 20, 30]);
    let said = follow(&mut router, own, "4", None, 5);
    assert!(matches!(said.to("4")[..], [Message::Sync { start: Slot(5), .. }]), "{:?}", said.sent);
}

#[test]
fn an_old_snapshot_is_not_sent_if_the_log_behind_it_is_gone() {
    let settings = Settings { log_bytes_kept: 10, ..small_messages() };
    let (mut router, own) = leading(&settings);
    waiting(&mut router, own, "4");
    assert_eq!(chunks(&snapshot(&mut router, 5, 80), "4"), [0, 10, 20, 30]);
    for _ in 0..9 {
        choose(&mut router, own, 10);
    }
    let said = waiting(&mut router, own, "6");
    assert_eq!((wanted(&said), chunks(&said, "6")), (vec![Slot(14)], vec![]));
    // All waiting routers get the next snapshot, from its start.
    let said = snapshot(&mut router, 14, 20);
    assert_eq!((chunks(&said, "4"), chunks(&said, "6")), (vec![0, 10], vec![0, 10]));
}

#[test]
fn the_log_behind_a_snapshot_is_kept_longer() {
    let settings = Settings { log_bytes_kept: 200, ..small_messages() };
    let (mut router, own) = leading(&settings);
    waiting(&mut router, own, "4");
    snapshot(&mut router, 5, 80);
    router.wake();
    for _ in 0..3 {
        choose(&mut router, own, 10);
    }
    let said = waiting(&mut router, own, "6");
    assert_eq!((wanted(&said), chunks(&said, "6")), (vec![], vec![0, 10, 20, 30]));
}

#[test]
fn a_snapshot_that_every_receiver_has_is_dropped() {
    let (mut router, own) = leading(&small_messages());
    waiting(&mut router, own, "4");
    snapshot(&mut router, 5, 20);
    router.hear("4", Message::ChunkTaken { ballot: own, slot: Slot(5), offset: 20 });
    router.wake();
    assert_eq!(wanted(&waiting(&mut router, own, "5")), [Slot(5)]);
}

#[test]
fn a_late_state_is_used_if_its_members_are_known() {
    // Without a disk, the router takes the state as the requested state, however late it comes, and writes
    // nothing.
    let (mut router, own) = leading(&small_messages());
    waiting(&mut router, own, "4");
    choose(&mut router, own, 10);
    assert_eq!(chunks(&snapshot(&mut router, 5, 20), "4"), [0, 10]);
    let (mut router, own) = leading(&small_messages());
    waiting(&mut router, own, "4");
    let said = snapshot(&mut router, 5, 20);
    assert_eq!((chunks(&said, "4"), said.records.len()), (vec![0, 10], 0));

    // With a disk, the state may have been meant for the disk, so the router asks its user again.
    let settings = Settings { checkpoint_bytes: Some(1), ..small_messages() };
    let (mut router, own) = leading(&settings);
    waiting(&mut router, own, "4");
    choose(&mut router, own, 10);
    let said = snapshot(&mut router, 5, 20);
    assert_eq!((chunks(&said, "4"), wanted(&said)), (vec![], vec![Slot(6)]));
}

#[test]
fn a_state_gathered_for_the_disk_is_sent_to_waiting_routers() {
    let settings = Settings { checkpoint_bytes: Some(1), ..small_messages() };
    for waits in [true, false] {
        let (mut router, own) = leading(&settings);
        assert_eq!(wanted(&router.input(Input::Drained)), [Slot(5)]);
        router.command(Command::SnapshotLater { slot: Slot(5) });
        choose(&mut router, own, 10);
        if waits {
            assert_eq!(wanted(&waiting(&mut router, own, "4")), [Slot(6)]);
        }
        let said = snapshot(&mut router, 5, 20);
        assert!(matches!(said.records[..], [Record::Checkpoint { slot: Slot(5), .. }]));
        assert_eq!(chunks(&said, "4"), if waits { vec![0, 10] } else { vec![] });
        if !waits {
            assert_eq!(wanted(&waiting(&mut router, own, "4")), [Slot(6)], "nobody waited for that");
        }
    }
}

fn parts_wanted(said: &Said) -> usize {
    said.events.iter().filter(|event| matches!(event, Event::SnapshotPartWanted { .. })).count()
}

#[test]
fn parts_are_asked_for_one_at_a_time() {
    let (mut router, own) = leading(&small_messages());
    let begins = || Command::SnapshotBegins { slot: Slot(5) };
    let unwanted = router.command(begins()).events;
    assert_eq!(unwanted, [Event::SnapshotUnwanted { slot: Slot(5) }], "nobody waits");
    waiting(&mut router, own, "4");
    assert_eq!(parts_wanted(&router.command(begins())), 1);
    assert_eq!(parts_wanted(&waiting(&mut router, own, "5")), 0, "it waits for the same");
}

/// Parts that a receiver has not taken are kept for it. If the receiver fails, the parts that only it lacked
/// are freed, and the user gives the next parts to the other receivers.
#[test]
fn a_failed_receiver_delays_no_other_receiver() {
    let (mut router, own) = leading(&small_messages());
    waiting(&mut router, own, "4");
    waiting(&mut router, own, "5");
    router.command(Command::SnapshotBegins { slot: Slot(5) });
    for part in 0..4 {
        let bytes = Bytes::from(vec![part; 10]);
        router.command(Command::SnapshotPart { slot: Slot(5), bytes, last: false });
    }
    let taken = |router: &mut Alone, name: &str, parts: u64| {
        router.hear(name, Message::ChunkTaken { ballot: own, slot: Slot(5), offset: parts })
    };
    assert_eq!(parts_wanted(&taken(&mut router, "4", 4)), 0, "router 5 has taken none");
    assert_eq!(parts_wanted(&taken(&mut router, "5", 1)), 1);
    let part = Command::SnapshotPart { slot: Slot(5), bytes: Bytes::from_static(b"fifth part"), last: false };
    assert_eq!(parts_wanted(&router.command(part)), 0);
    assert_eq!(parts_wanted(&taken(&mut router, "4", 5)), 0, "four parts wait for router 5");
    router.input(Input::Unlinked { peer: process("5") });
    router.input(Input::Linked { peer: process("5"), session: Session(2) });
    assert_eq!(parts_wanted(&router.wake()), 1);
}

#[test]
fn the_parts_of_a_snapshot_that_comes_must_follow_each_other() {
    for checkpoint_bytes in [None, Some(1)] {
        let settings = Settings { checkpoint_bytes, ..Settings::default() };
        let record = checkpoint("1 2 3", ballot(1, "1"), 5, vec![]);
        let mut router = Alone::from("3", &settings, record);
        let mut hear = |slot: u64, number: u64, last: bool| {
            let (members, bytes) = (peers("1 2 3"), Bytes::from_static(b"part"));
            router.hear(
                "1",
                Message::Part { ballot: ballot(7, "1"), slot: Slot(slot), members, number, last, bytes },
            )
        };
        let taken = |said: &Said| said.events.iter().any(|event| matches!(event, Event::InstallPart { .. }));
        assert!(!taken(&hear(5, 0, false)), "it knows as much");
        assert!(!taken(&hear(9, 1, false)), "it does not begin");
        assert!(taken(&hear(9, 0, false)));
        assert!(!taken(&hear(9, 2, false)), "one is missing");
        assert!(!taken(&hear(8, 1, false)), "of another");
        let said = hear(9, 1, true);
        let state = said.records.iter().find_map(|record| match record {
            Record::Installed { state, .. } => Some(state.len()),
            _ => None,
        });
        // The user gets the parts. If there is a disk, they are also written to it.
        assert_eq!((taken(&said), state), (true, Some(if checkpoint_bytes.is_some() { 8 } else { 0 })));
    }
}
