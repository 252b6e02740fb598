//! Entries: merging has one outcome, and their byte form is pinned.

use super::{super::id::CellNumber, *};

fn stamp(time: u64) -> Stamp {
    Stamp { time, cell: CellNumber(1) }
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn string(time: u64, text: &'static str) -> Entry {
    Entry::whole(stamp(time), Some(bytes(text)), None)
}

fn field(time: u64, name: &'static str, value: Option<&'static str>) -> Entry {
    Entry::of_fields(stamp(time), [(bytes(name), value.map(bytes))])
}

fn merged(writes: &[&Entry]) -> Entry {
    let mut entry = Entry::nothing();
    for write in writes {
        entry.merge(write);
    }
    entry
}

/// The same writes give the same entry in any order, with repetitions, and with merges in between.
#[test]
fn merging_has_one_outcome_in_any_order() {
    let writes = [
        string(10, "s"),
        field(5, "a", Some("early")),
        field(20, "a", Some("late")),
        field(20, "b", Some("b")),
        field(30, "b", None),
        Entry::whole(stamp(15), None, None),
        string(8, "old"),
    ];
    let whole = merged(&writes.iter().collect::<Vec<_>>());
    assert_eq!(whole.value(0), Value::Hash(vec![(bytes("a"), bytes("late"))]));
    let mut chance = 1u64;
    for _ in 0..2_000 {
        let mut replicas = [Entry::nothing(), Entry::nothing(), Entry::nothing()];
        let mut has = [0u32; 3];
        while has != [127; 3] {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (to, what) = ((chance >> 33) as usize % 3, (chance >> 40) as usize % 9);
            if what < writes.len() {
                replicas[to].merge(&writes[what]);
                has[to] |= 1 << what;
            } else {
                let from = (to + 1) % 3;
                let other = replicas[from].clone();
                let before = replicas[to].clone();
                assert_eq!(replicas[to].merge(&other), replicas[to] != before);
                has[to] |= has[from];
            }
        }
        assert!(replicas.iter().all(|replica| *replica == whole && replica.digest() == whole.digest()));
    }
}

fn tally(begun: u64, time: u64, sum: i64) -> Entry {
    Entry::of_tally(stamp(begun), Tally { stamp: stamp(time), sum, firm: false, sole: false })
}

/// Every order of increments and of writes of the whole key gives one entry, and no increment counts twice.
#[test]
fn counters_have_one_outcome_in_any_order() {
    let other = |begun, sum| {
        let stamp = Stamp { time: begun, cell: CellNumber(2) };
        Entry::of_tally(stamp, Tally { stamp, sum, firm: true, sole: false })
    };
    let writes = [
        string(10, "5"),
        Entry::whole(stamp(3), None, None),
        // This tally began before the string, so all of it is gone, including later increments.
        tally(8, 8, 100),
        tally(8, 30, 300),
        tally(12, 12, 1),
        tally(12, 20, 3),
        other(15, -7),
        tally(22, 22, 20),
        tally(24, 24, 40),
        // The tallies that began at 12 and 22 are taken in.
        Entry::of_tally(stamp(24), Tally { stamp: stamp(30), sum: 63, firm: false, sole: true }),
    ];
    let whole = merged(&writes.iter().collect::<Vec<_>>());
    assert_eq!(whole.value(0), Value::String(bytes("61")));
    assert_eq!((whole.newest(), whole.oldest()), (stamp(30), stamp(10)));
    assert_eq!(whole.tallies().count(), 2);
    let mut chance = 5u64;
    for _ in 0..500 {
        let mut entry = Entry::nothing();
        for _ in 0..60 {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let before = entry.clone();
            let changed = entry.merge(&writes[(chance >> 33) as usize % writes.len()]);
            assert_eq!(changed, entry != before);
        }
        entry.merge(&whole);
        assert!(entry == whole && entry.digest() == whole.digest());
    }
}

#[test]
fn a_base_that_is_no_number_hides_its_tallies_and_fields_hide_both() {
    let text = merged(&[&string(10, "x"), &tally(12, 12, 1)]);
    assert_eq!((text.value(0), text.count(0)), (Value::String(bytes("x")), None));
    let hash = merged(&[&string(10, "5"), &tally(12, 12, 1), &field(13, "a", Some("v"))]);
    assert_eq!(hash.value(0), Value::Hash(vec![(bytes("a"), bytes("v"))]));
    assert_eq!(tally(12, 12, 0).value(0), Value::String(bytes("0")), "a counter at zero is there");
    assert!(!tally(12, 12, 0).is_delete());
    let beyond = merged(&[&string(10, "9223372036854775807"), &tally(12, 12, 1)]);
    assert_eq!(beyond.value(0), Value::String(bytes("9223372036854775808")));
}

#[test]
fn tallies_end_with_the_base_that_expires() {
    let base = Entry::whole(stamp(10), Some(bytes("5")), Some(100));
    let entry = merged(&[&base, &tally(12, 150, 1), &tally(100, 101, 2)]);
    assert_eq!(entry.value(99), Value::String(bytes("8")));
    assert_eq!(entry.value(100), Value::String(bytes("2")));
    assert_eq!((entry.expires(99), entry.expires(100)), (Some(100), None));
    let mut forgotten = entry.clone();
    let common = Horizon { time: 100, cell: CellNumber(1) };
    assert!(entry.is_forgettable(common));
    assert_eq!(forgotten.forget(common), 2);
    assert_eq!(forgotten, tally(100, 101, 2));
    // A copy of the tally that comes later brings nothing back, though the tally went on beyond the horizon.
    assert_eq!(entry.beyond(common), tally(100, 101, 2));
    let before = Horizon { time: 99, cell: CellNumber(1) };
    assert!(!entry.is_forgettable(before));
}

#[test]
fn a_late_copy_of_an_old_write_changes_nothing_after_a_delete() {
    let mut entry = merged(&[&string(10, "x"), &Entry::whole(stamp(20), None, None)]);
    assert_eq!(entry.value(0), Value::Nothing);
    assert!(!entry.merge(&string(10, "x")));
    assert!(!entry.merge(&field(15, "f", Some("v"))));
    assert_eq!(entry.value(0), Value::Nothing);
    assert_eq!(entry.newest(), stamp(20));
}

#[test]
fn a_value_expires_by_the_wall_clock() {
    let entry = Entry::whole(stamp(1), Some(bytes("x")), Some(100));
    assert_eq!(entry.value(99), Value::String(bytes("x")));
    assert_eq!(entry.value(100), Value::Nothing);
}

#[test]
fn a_write_competes_with_the_stamps_of_its_key_or_field() {
    let entry = merged(&[&string(10, "x"), &field(20, "a", Some("v"))]);
    assert_eq!(entry.newest_competing(&string(5, "y")), stamp(20));
    assert_eq!(entry.newest_competing(&field(5, "a", None)), stamp(20));
    assert_eq!(entry.newest_competing(&field(5, "b", None)), stamp(10));
}

#[test]
fn bytes_of_records_are_pinned() {
    let entry = merged(&[
        &Entry::whole(stamp(1), Some(bytes("s")), Some(9)),
        &field(2, "a", Some("v")),
        &field(3, "b", None),
    ]);
    let mut out = BytesMut::new();
    entry.encode(&mut out);
    let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "01000000000000000100000003090000000000000001000000730200000001000000610200000000000000010000000101000000760100000062030000000000000001000000\
         00"
    );
    let counter = merged(&[&string(1, "7"), &tally(2, 3, -1)]);
    let mut out_counter = BytesMut::new();
    counter.encode(&mut out_counter);
    let hex: String = out_counter.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "0100000000000000010000000501000000370000000001000000020000000000000001000000\
         0300000000000000ffffffffffffffff00"
    );
    assert_eq!(out_counter.len(), counter.wire_bytes());
    assert_eq!(Entry::decode(&mut out_counter.freeze()).unwrap(), counter);
    let mut flags = BytesMut::new();
    put_tally(&mut flags, stamp(2), Tally { stamp: stamp(3), sum: 0, firm: true, sole: true });
    assert_eq!(flags.last(), Some(&3));
    let whole = out.freeze();
    assert_eq!(Entry::decode(&mut whole.clone()).unwrap(), entry);
    for end in 0..whole.len() {
        assert!(Entry::decode(&mut whole.slice(..end)).is_err(), "{end} bytes");
    }
    assert_eq!(Entry::nothing().digest(), Digest::default());
}

#[test]
fn a_record_has_one_byte_form() {
    let encoded = |fields: &[(&str, u64)]| {
        let mut out = BytesMut::new();
        string(5, "s").base.put(0, &mut out);
        out.put_u32_le(fields.len() as u32);
        for (name, time) in fields {
            put_bytes(&mut out, name.as_bytes());
            Register { stamp: stamp(*time), value: None, expires: None }.put(0, &mut out);
        }
        Entry::decode(&mut out.freeze())
    };
    assert!(encoded(&[("a", 6), ("b", 7)]).is_ok());
    assert_eq!(encoded(&[("b", 6), ("a", 7)]), Err(WireError::Body));
    assert_eq!(encoded(&[("a", 6), ("a", 7)]), Err(WireError::Body));
    assert_eq!(encoded(&[("a", 5)]), Err(WireError::Body));
    // These malformed tallies are refused: tallies out of order, tallies that end before they begin, tallies
    // below the base, tallies that were taken in, and an empty list of tallies although the flag promises
    // tallies.
    let encoded = |tallies: &[(u64, u64)]| {
        let mut out = BytesMut::new();
        string(5, "s").base.put(HAS_TALLIES, &mut out);
        out.put_u32_le(0);
        out.put_u32_le(tallies.len() as u32);
        for (begun, time) in tallies {
            let tally = Tally { stamp: stamp(*time), sum: 1, firm: false, sole: *time > 100 };
            put_tally(&mut out, stamp(*begun), tally);
        }
        Entry::decode(&mut out.freeze())
    };
    assert!(encoded(&[(6, 9), (7, 7)]).is_ok());
    assert!(encoded(&[(6, 101), (7, 7)]).is_ok());
    for tallies in [&[(7, 7), (6, 6)][..], &[(6, 6), (6, 7)], &[(7, 6)], &[(5, 6)], &[(6, 6), (7, 101)], &[]]
    {
        assert_eq!(encoded(tallies), Err(WireError::Body), "{tallies:?}");
    }
    let forged = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
    assert!(matches!(Entry::decode(&mut forged.clone()), Err(WireError::Length { .. })));
}
