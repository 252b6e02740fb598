//! Tests of a replica: the writes that it takes, ignores, forgets and refuses.

use bytes::BytesMut;

use super::{
    super::{
        counter::Tally,
        entry::Value,
        id::{CellNumber, Site},
        journal::Past,
        layout::{Copies, LayoutOrder, Map, ReadRepair, Strategy, tests::layout},
        message::Round,
        routing::{Change, Roster},
    },
    *,
};
use crate::{ecast::Position, time::Duration, wire::Wire as _};

const MAP: MapId = MapId(1);

struct Rig {
    replica: MapsReplica,
    layout: Layout,
    clock: Clock,
}

impl Rig {
    fn new(limits: Limits) -> Rig {
        let mut layout = layout(&[(0, 1)]);
        let copies = Copies::new([(Site(0), 1)]).unwrap();
        let map = Map { copies, strategy: Strategy::Quorum(ReadRepair::None) };
        layout.apply(&LayoutOrder::CreateMap(MAP, map)).unwrap();
        Rig { replica: MapsReplica::new(limits), layout, clock: Clock::new(0, Duration::from_micros(1)) }
    }

    fn demand(&mut self, key: &'static str, demand: Demand) -> Answer {
        let key = Bytes::from_static(key.as_bytes());
        let request = Request { round: Round(1), layout: self.layout.version(), map: MAP, key, demand };
        self.replica.answer(request, &self.layout, &mut self.clock, Time(1_000))
    }

    /// Executes the records of this replica again, and returns the resulting replica.
    fn recovered(&mut self) -> MapsReplica {
        let roster = Box::new(Roster::of(self.layout.clone()));
        let (name, address) = (String::from("cell"), String::from("h:1"));
        let body = Change::Join { name, address, site: Site(0), tokens: Vec::new() }.encode();
        let joined = Record::Submitted { token: 0, body };
        let before = [joined, Record::Layout { at: Position(1), roster }];
        let encoded = |record: Record| {
            let mut bytes = BytesMut::new();
            record.encode(&mut bytes);
            bytes.freeze()
        };
        let records = before.into_iter().chain(self.replica.take_changes()).map(encoded).collect();
        Past::read(records, self.replica.limits).unwrap().unwrap().replica
    }

    fn put(&mut self, key: &'static str, time: u64, bytes: usize) -> Answer {
        let value = Some(Bytes::from(vec![b'x'; bytes]));
        self.demand(key, Demand::Write(Entry::whole(stamp(time), value, None)))
    }
}

fn stamp(time: u64) -> Stamp {
    Stamp { time, cell: CellNumber(1) }
}

const TAKEN: Answer = Answer::Written { newer: Stamp::ZERO };
const WIDE: Limits = small(1 << 20, 1 << 20);

const fn small(entry_bytes_max: usize, store_bytes_max: usize) -> Limits {
    let (entry_bytes_spare, store_bytes_spare, place_bytes_max) = (600, 100, 4 << 20);
    Limits { entry_bytes_max, store_bytes_max, entry_bytes_spare, store_bytes_spare, place_bytes_max }
}

#[test]
fn a_replica_with_a_newer_stamp_answers_with_it() {
    let mut rig = Rig::new(WIDE);
    assert_eq!(rig.demand("k", Demand::Ask), Answer::HighestStamp(Stamp::ZERO));
    assert_eq!(rig.put("k", 100, 1), TAKEN);
    assert_eq!(rig.put("k", 50, 1), Answer::Written { newer: stamp(100) });
    assert_eq!(rig.put("k", 100, 1), TAKEN);
    assert_eq!(rig.demand("k", Demand::Ask), Answer::HighestStamp(stamp(100)));
    let held = rig.replica.entry(MAP, &Bytes::from_static(b"k")).unwrap().clone();
    assert_eq!(rig.demand("k", Demand::Digest), Answer::Digest(held.digest()));
    assert_eq!(rig.demand("k", Demand::Read(u32::MAX)), Answer::Entry(held));
}

#[test]
fn copies_that_the_horizon_covers_are_passed_over() {
    let mut rig = Rig::new(WIDE);
    rig.put("k", 100, 1);
    rig.demand("k", Demand::Write(Entry::whole(stamp(200), None, None)));
    let horizon = Horizon { time: 300, cell: CellNumber(1) };
    rig.replica.reach(horizon);
    rig.replica.sweep(Horizon { time: 199, cell: CellNumber(1) });
    assert_eq!(rig.replica.keys(), 1, "not everybody has the deletion");
    rig.replica.sweep(horizon);
    assert_eq!((rig.replica.keys(), rig.replica.bytes(), rig.replica.forgotten()), (0, 0, 1));
    assert_eq!(rig.put("k", 100, 1), Answer::Written { newer: stamp(300) });
    assert_eq!(rig.replica.keys(), 0);
    assert_eq!(rig.demand("k", Demand::Ask), Answer::HighestStamp(stamp(300)));
    // The clock of a cell's later life may be behind the horizon.
    let late = Stamp { time: 250, cell: CellNumber(2) };
    let write = Entry::whole(late, Some(Bytes::from_static(b"v")), None);
    assert_eq!(rig.demand("k", Demand::Write(write)), Answer::Written { newer: stamp(300) });
    assert_eq!(rig.replica.keys(), 1);
}

/// A value expired by this cell's clock, which is at 1,000. It is forgotten only once the horizon has reached
/// the time at which the value expires: then even the slowest clock has reached that time.
#[test]
fn expired_entries_are_forgotten_once_every_clock_has_passed_their_end() {
    let mut rig = Rig::new(WIDE);
    let write = Entry::whole(stamp(100), Some(Bytes::from_static(b"v")), Some(500));
    rig.demand("k", Demand::Write(write));
    for (time, keys) in [(99, 1), (499, 1), (500, 0)] {
        rig.replica.sweep(Horizon { time, cell: CellNumber(1) });
        assert_eq!(rig.replica.keys(), keys, "{time}");
    }
}

/// A late state of a tally is ignored if all cells have forgotten the deletion that ended the tally. The
/// tally went on before its coordinator received the deletion.
#[test]
fn later_states_of_an_ended_tally_are_ignored() {
    let mut rig = Rig::new(WIDE);
    let tally = |begun: u64, time: u64| {
        let tally = Tally { stamp: stamp(time), sum: 1, firm: true, sole: false };
        Entry::of_tally(stamp(begun), tally)
    };
    let count = |rig: &Rig| rig.replica.entry(MAP, b"k").map(|entry| entry.value(0));
    let one = Some(Value::String(Bytes::from_static(b"1")));
    assert_eq!(rig.demand("k", Demand::Write(tally(100, 100))), TAKEN);
    let horizon = Horizon { time: 150, cell: CellNumber(1) };
    rig.replica.reach(horizon);
    assert_eq!(rig.demand("k", Demand::Write(tally(100, 160))), TAKEN);
    assert_eq!(count(&rig), one, "one that is held goes on");
    rig.demand("k", Demand::Write(Entry::whole(stamp(200), None, None)));
    let horizon = Horizon { time: 220, cell: CellNumber(1) };
    rig.replica.reach(horizon);
    rig.replica.sweep(horizon);
    assert_eq!(rig.replica.keys(), 0);
    rig.demand("k", Demand::Write(tally(100, 230)));
    assert_eq!(count(&rig), None, "it ended");
    rig.demand("k", Demand::Write(tally(221, 231)));
    assert_eq!(count(&rig), one, "another one began");
    // Comparing fetched this tally from another replica, which holds it. So the tally did not end everywhere.
    let copy = (Bytes::from_static(b"l"), tally(100, 230));
    rig.replica.take(MAP, copy, &mut rig.clock, Time(1_000)).unwrap();
    assert_eq!(rig.replica.keys(), 2);
}

/// A copy has a tally that ended, and a tally that goes on. Only the second tally is written to the disk.
#[test]
fn a_tally_that_was_passed_over_does_not_come_back_from_disk() {
    let mut rig = Rig::new(WIDE);
    rig.replica.persist();
    let tally = |begun: u64| {
        let tally = Tally { stamp: stamp(begun + 10), sum: 1, firm: true, sole: false };
        Entry::of_tally(stamp(begun), tally)
    };
    let mut both = tally(100);
    both.merge(&tally(300));
    rig.demand("k", Demand::Write(tally(100)));
    rig.demand("k", Demand::Write(Entry::whole(stamp(200), None, None)));
    let horizon = Horizon { time: 105, cell: CellNumber(1) };
    rig.replica.reach(horizon);
    rig.replica.sweep(Horizon { time: 220, cell: CellNumber(1) });
    assert_eq!(rig.replica.keys(), 0);
    rig.demand("k", Demand::Write(both));
    let held = rig.replica.entry(MAP, b"k");
    assert_eq!(held, Some(tally(300)));
    assert_eq!(rig.recovered().entry(MAP, b"k"), held);
}

#[test]
fn a_stamp_too_far_ahead_is_refused_and_counted() {
    let mut rig = Rig::new(WIDE);
    assert_eq!(rig.put("k", 2_001, 1), Answer::Refused(ReplicaRefusal::Skewed));
    assert_eq!(rig.put("k", 2_000, 1), TAKEN);
    assert_eq!(rig.replica.refused().skewed, 1);
}

#[test]
fn another_layout_is_refused_and_a_dropped_map_is_forgotten() {
    let mut rig = Rig::new(WIDE);
    rig.put("k", 1, 1);
    let key = Bytes::from_static(b"k");
    let old = Request {
        round: Round(1),
        layout: rig.layout.version(),
        map: MAP,
        key: key.clone(),
        demand: Demand::Read(u32::MAX),
    };
    rig.layout.apply(&LayoutOrder::DropMap(MAP)).unwrap();
    rig.replica.adopt(&rig.layout);
    assert!(rig.replica.entry(MAP, &key).is_none());
    assert_eq!(rig.replica.bytes(), 0);
    let answer = rig.replica.answer(old.clone(), &rig.layout, &mut rig.clock, Time(1_000));
    assert_eq!(answer, Answer::Refused(ReplicaRefusal::Layout));
    let new = Request { layout: rig.layout.version(), ..old };
    let answer = rig.replica.answer(new, &rig.layout, &mut rig.clock, Time(1_000));
    assert_eq!(answer, Answer::Refused(ReplicaRefusal::Layout));
}

#[test]
fn limits_hold_and_deletes_make_room() {
    let mut rig = Rig::new(small(600, 900));
    assert_eq!(rig.put("a", 1, 1_000), Answer::Refused(ReplicaRefusal::TooLarge));
    assert_eq!(rig.put("a", 1, 400), TAKEN);
    assert_eq!(rig.put("b", 1, 400), Answer::Refused(ReplicaRefusal::Full));
    assert_eq!(rig.put("a", 2, 400), TAKEN);
    assert_eq!(rig.demand("a", Demand::Write(Entry::whole(stamp(3), None, None))), TAKEN);
    assert_eq!(rig.put("b", 1, 400), TAKEN);
    let refused = rig.replica.refused();
    assert_eq!((refused.too_large, refused.full), (1, 1));
}

fn deletes_of(time: u64, names: impl Iterator<Item = u64>) -> Entry {
    let field = |name: u64| (Bytes::from(format!("field {name:08}")), None);
    Entry::of_fields(stamp(time), names.map(field))
}

/// Deletes of fields that never existed leave tombstones. They are refused beyond a bound, because a link
/// could not carry the entry.
#[test]
fn deletes_of_fields_that_were_never_there_have_a_bound() {
    let mut rig = Rig::new(small(600, 1 << 20));
    let mut refused = None;
    for at in 0..100 {
        let answer = rig.demand("h", Demand::Write(deletes_of(at + 1, at * 4..at * 4 + 4)));
        if answer != TAKEN {
            refused = Some(answer);
            break;
        }
    }
    let bytes = rig.replica.bytes();
    assert_eq!(refused, Some(Answer::Refused(ReplicaRefusal::TooLarge)), "an entry has {bytes} bytes");
    assert!((600..=1_200).contains(&bytes), "{bytes}");
    // The whole key can be deleted, because that makes the entry smaller.
    assert_eq!(rig.demand("h", Demand::Write(Entry::whole(stamp(900), None, None))), TAKEN);
    assert!(rig.replica.bytes() < 200);
}

#[test]
fn deletes_of_keys_that_were_never_there_have_a_bound() {
    let mut rig = Rig::new(small(600, 900));
    let key = |at: u64| Bytes::from(format!("key {at:08}"));
    let mut refused = None;
    for at in 0..1_000 {
        let demand = Demand::Write(Entry::whole(stamp(at + 1), None, None));
        let request =
            Request { round: Round(1), layout: rig.layout.version(), map: MAP, key: key(at), demand };
        let answer = rig.replica.answer(request, &rig.layout, &mut rig.clock, Time(1_000));
        if answer != TAKEN {
            refused = Some(answer);
            break;
        }
    }
    let bytes = rig.replica.bytes();
    assert_eq!(refused, Some(Answer::Refused(ReplicaRefusal::Full)), "the store has {bytes} bytes");
    assert!((900..=1_100).contains(&bytes), "{bytes}");
}

/// A copied entry is taken beyond the limits of clients, because another replica has accepted it. If this
/// replica refused the entry, both would differ for ever.
#[test]
fn a_copy_passes_the_limits_of_clients() {
    let mut rig = Rig::new(small(600, 900));
    let fields = |time: u64, name: &'static str| {
        let value = Some(Bytes::from(vec![b'x'; 400]));
        Entry::of_fields(stamp(time), [(Bytes::from_static(name.as_bytes()), value)])
    };
    assert_eq!(rig.demand("h", Demand::Write(fields(1, "a"))), TAKEN);
    assert_eq!(rig.demand("h", Demand::Write(fields(2, "b"))), Answer::Refused(ReplicaRefusal::TooLarge));
    let copy = (Bytes::from_static(b"h"), fields(2, "b"));
    assert!(rig.replica.take(MAP, copy, &mut rig.clock, Time(1_000)).is_ok(), "too large");
    let copy = (Bytes::from_static(b"i"), fields(3, "a"));
    assert!(rig.replica.take(MAP, copy, &mut rig.clock, Time(1_000)).is_ok(), "no room");
    assert_eq!(rig.replica.keys(), 2);
}
