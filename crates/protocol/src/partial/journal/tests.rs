//! Tests of the byte forms of records, and of damaged journals.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::*;
use crate::{
    ecast::Submissions,
    partial::{CellNumber, Change, Settings, Site},
};

const MAP: MapId = MapId(1);

fn encoded(record: &Record) -> Bytes {
    let mut bytes = BytesMut::new();
    record.encode(&mut bytes);
    bytes.freeze()
}

fn read(records: &[Bytes]) -> Result<Option<Past>, Unrecoverable> {
    Past::read(records.to_vec(), Settings::default().limits)
}

fn joining() -> Record {
    let (name, address) = (String::from("cell-1"), String::from("h1:1"));
    let body = Change::Join { name, address, site: Site(0), tokens: Vec::new() }.encode();
    Record::Submitted { token: 7, body }
}

fn check(record: &Record, hex: &str) {
    let bytes = encoded(record);
    let written: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(written, hex.split_whitespace().collect::<String>(), "{record:?}");
    let mut rest = bytes.clone();
    assert_eq!(Record::decode(&mut rest).as_ref(), Ok(record));
    assert!(rest.is_empty());
    for end in 0..bytes.len() {
        assert!(Record::decode(&mut bytes.slice(..end)).is_err(), "{record:?} at {end}");
    }
}

/// Records have pinned bytes, because later builds read the disks of this build.
#[test]
fn records_have_their_bytes() {
    let key = Bytes::from_static(b"k");
    let stamp = Stamp { time: 5, cell: CellNumber(2) };
    let entry = Entry::whole(stamp, Some(Bytes::from_static(b"v")), None);
    let written = "0500000000000000 02000000 01 01000000 76 00000000";
    let horizon = Horizon { time: 9, cell: CellNumber(3) };
    let horizon_bytes = "0900000000000000 03000000";
    check(&Record::Submitted { token: 5, body: key.clone() }, "40 0500000000000000 01000000 6b");
    check(&Record::Reserved(7), "42 0700000000000000");
    let merged = Record::Merged { map: MAP, key: key.clone(), write: entry.clone() };
    check(&merged, &format!("43 01000000 01000000 6b {written}"));
    let forgot = Record::Forgot { map: MAP, common: horizon, keys: vec![key.clone()] };
    check(&forgot, &format!("44 01000000 {horizon_bytes} 01000000 01000000 6b"));
    check(&Record::Reached(horizon), &format!("45 {horizon_bytes}"));
    let kept = Record::Kept { map: MAP, behind: Some(key.clone()), last: true, entries: vec![(key, entry)] };
    check(&kept, &format!("47 01000000 01 01000000 6b 01 01000000 01000000 6b {written}"));
    check(&Record::Ended, "48");
    let layout = Record::Layout { at: Position(3), roster: Box::new(Roster::default()) };
    assert_eq!(Record::decode(&mut encoded(&layout)), Ok(layout));
    let ballot = paxos::Ballot::ZERO;
    let promised = Record::Log(paxos::Record::Promised(ballot));
    assert_eq!(Record::decode(&mut encoded(&promised)), Ok(promised));
    assert_eq!(Record::decode(&mut Bytes::from_static(&[99])), Err(WireError::Tag(99)));
}

#[test]
fn a_journal_that_does_not_follow_from_itself_is_refused() {
    assert!(matches!(read(&[]), Ok(None)));
    let join = encoded(&joining());
    assert!(matches!(read(std::slice::from_ref(&join)), Ok(Some(Past { roster: None, .. }))));
    let refused = |records: &[Bytes]| read(records).err();
    assert_eq!(refused(&[encoded(&Record::Reserved(1))]), Some(Unrecoverable::Missing));
    assert_eq!(refused(&[encoded(&Record::Ended)]), Some(Unrecoverable::Missing));
    let log = encoded(&Record::Log(paxos::Record::Promised(paxos::Ballot::ZERO)));
    assert_eq!(refused(&[join.clone(), log]), Some(Unrecoverable::Disconnected(1)));
    let layout = encoded(&Record::Layout { at: Position(3), roster: Box::new(Roster::default()) });
    assert_eq!(refused(&[join.clone(), layout.clone(), layout]), Some(Unrecoverable::Disconnected(2)));
    // The first segment is gone, and the journal begins with a later message of the cell.
    for change in [Change::Complete(CellNumber(1)), Change::DropMap { name: String::from("m") }] {
        let later = encoded(&Record::Submitted { token: 7, body: change.encode() });
        assert_eq!(refused(&[later]), Some(Unrecoverable::Missing), "{change:?}");
    }
    assert_eq!(
        refused(&[encoded(&Record::Submitted { token: 7, body: Bytes::new() })]),
        Some(Unrecoverable::Missing)
    );
    let mut longer = BytesMut::from(&join[..]);
    longer.put_u8(0);
    let trailing = Unrecoverable::Malformed(1, WireError::Trailing(1));
    assert_eq!(refused(&[join, longer.freeze()]), Some(trailing));
}

/// A stretch replaces all earlier content of the same part of the map, even keys that no later record has.
#[test]
fn a_stretch_replaces_earlier_content_of_its_part() {
    let stamp = |time| Stamp { time, cell: CellNumber(1) };
    let entry = |time| Entry::whole(stamp(time), Some(Bytes::from_static(b"v")), None);
    let merged = |key: &'static [u8], time| {
        encoded(&Record::Merged { map: MAP, key: Bytes::from_static(key), write: entry(time) })
    };
    let began = Began {
        at: Position(1),
        roster: with_map(),
        passed: 0,
        submitted: Vec::new(),
        reserved: 40,
        horizon: Horizon { time: 2, cell: CellNumber(1) },
    };
    let kept = Record::Kept {
        map: MAP,
        behind: None,
        last: true,
        entries: vec![(Bytes::from_static(b"b"), entry(4))],
    };
    let began = encoded(&Record::Began(Box::new(began)));
    let records = [
        encoded(&joining()),
        merged(b"before", 1),
        began.clone(),
        merged(b"a", 3),
        encoded(&kept),
        merged(b"c", 5),
        encoded(&Record::Ended),
        // A later checkpoint was not finished.
        began,
    ];
    let past = read(&records).unwrap().unwrap();
    let held = |key: &[u8]| past.replica.entry(MAP, key);
    assert_eq!(
        [held(b"before"), held(b"a"), held(b"b"), held(b"c")],
        [None, None, Some(entry(4)), Some(entry(5))]
    );
    assert_eq!((past.replica.keys(), past.reserved, past.horizon.time), (2, 40, 2));
    assert_eq!(past.submissions, Submissions::default());
}

fn with_map() -> Roster {
    use crate::partial::{Copies, Layout, LayoutMember, LayoutOrder, Map, ReadRepair, Strategy, Token};
    let mut layout = Layout::default();
    let peer = crate::Peer {
        id: crate::ProcessId { node: 1, incarnation: crate::Incarnation(1) },
        address: String::from("h1:1"),
    };
    let member = LayoutMember { peer, site: Site(0), tokens: vec![Token(1)], arriving: false };
    layout.apply(&LayoutOrder::AddCell(member)).unwrap();
    let copies = Copies::new([(Site(0), 1)]).unwrap();
    layout
        .apply(&LayoutOrder::CreateMap(MAP, Map { copies, strategy: Strategy::Quorum(ReadRepair::None) }))
        .unwrap();
    Roster::of(layout)
}
