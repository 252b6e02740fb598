use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use super::{
    Damage, DurabilityReport, FRAME_HEAD, HEADER, Journal, Key, Owner, RECORD, RemoteDurability, SEAL,
    Settings, Write, checksum,
};
use crate::{
    id::{DomainId, Incarnation, ProcessId},
    seam::Ticket,
    wire::{Wire, WireError},
};

/// A record of the tests: a number, and bytes that the number determines.
#[derive(Clone, Copy)]
struct Note(u64);

impl Note {
    fn bytes(self) -> Bytes {
        let length = (self.0 * 37 % 91) as usize;
        let mut bytes = self.0.to_le_bytes().to_vec();
        bytes.extend((0..length).map(|at| (self.0 as usize + at) as u8));
        bytes.into()
    }
}

impl Wire for Note {
    fn encode(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.bytes());
    }

    fn decode(_: &mut Bytes) -> Result<Note, WireError> {
        Err(WireError::Body)
    }
}

const SMALL: Settings =
    Settings { segment_bytes: 1_000, gaps: false, key: Key { secret: 0x5ec_3e7, since: 0 } };

fn owner(node: u64) -> Owner {
    Owner { domain: DomainId(7), process: ProcessId { node, incarnation: Incarnation(node.into()) } }
}

/// A disk that keeps all bytes written to it.
#[derive(Clone, Default)]
struct Files(BTreeMap<u64, Vec<u8>>);

impl Files {
    fn write(&mut self, writes: &[Write]) {
        for Write { segment, offset, bytes } in writes {
            let file = self.0.entry(*segment).or_default();
            file.resize((*offset as usize).max(file.len()), 0);
            file.truncate(*offset as usize);
            file.extend_from_slice(bytes);
        }
    }

    fn read(&self) -> BTreeMap<u64, Bytes> {
        self.0.iter().map(|(number, bytes)| (*number, Bytes::copy_from_slice(bytes))).collect()
    }

    fn recover(&mut self, settings: Settings) -> Result<(Journal, Vec<Bytes>), Damage> {
        let recovered = Journal::recover(owner(1), settings, &self.read())?;
        for (number, length) in recovered.lengths {
            self.0.get_mut(&number).unwrap().truncate(length as usize);
        }
        for number in recovered.empty {
            self.0.remove(&number);
        }
        Ok((recovered.journal, recovered.records.into_iter().map(|(_, record)| record).collect()))
    }

    /// Returns the segment and the offset of every byte.
    fn places(&self) -> impl Iterator<Item = (u64, usize)> {
        self.0.iter().flat_map(|(&number, bytes)| (0..bytes.len()).map(move |at| (number, at)))
    }
}

/// Writes notes `from..to` in groups of four, which become durable one group after another, and seals the
/// journal.
fn written(journal: &mut Journal, files: &mut Files, notes: std::ops::Range<u64>) {
    for number in notes {
        let ticket = journal.append(&Note(number));
        if number % 4 == 3 {
            files.write(&journal.take_writes());
            journal.synced(ticket);
        }
    }
    files.write(&journal.take_writes());
    journal.synced(journal.last());
    journal.seal();
    files.write(&journal.take_writes());
}

fn notes(range: std::ops::Range<u64>) -> Vec<Bytes> {
    range.map(|number| Note(number).bytes()).collect()
}

#[test]
fn written_records_are_read_back() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    written(&mut journal, &mut files, 0..100);
    assert!(journal.segments() > 5);
    let (mut journal, records) = files.recover(SMALL).unwrap();
    assert_eq!(records, notes(0..100));
    assert_eq!(journal.append(&Note(100)), Ticket(101));
    written(&mut journal, &mut files, 101..140);
    assert_eq!(files.recover(SMALL).unwrap().1, notes(0..140));
}

#[test]
fn segments_of_a_life_grow_to_their_full_length() {
    let lengths = |settings: Settings| (0..100).map(move |nth| settings.segment_length(nth));
    let sizes: Vec<u64> = lengths(Settings::default()).map(|length| length >> 20).collect();
    assert_eq!(sizes[..6], [4, 8, 16, 32, 64, 64]);
    assert!(lengths(SMALL).all(|length| length == SMALL.segment_bytes));
    let endless = Settings { segment_bytes: u64::MAX, ..SMALL };
    assert!(lengths(endless).is_sorted());
}

#[test]
fn segments_are_removed_once_no_record_in_them_is_needed() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    written(&mut journal, &mut files, 0..100);
    let before = journal.segments();
    let gone = journal.collect(Ticket(60), &[]);
    assert_eq!(before - gone.len(), journal.segments());
    for number in gone {
        files.0.remove(&number);
    }
    let (journal, records) = files.recover(SMALL).unwrap();
    assert_eq!(journal.last(), Ticket(100));
    assert_eq!(records.last(), Some(&Note(99).bytes()));
    let first = 100 - records.len() as u64;
    assert!((20..60).contains(&first), "{first} is needed no more, or all are there");
}

/// With [`Settings::gaps`], an owner may keep single old records, and the segments between kept ones are
/// removed.
#[test]
fn middle_segments_are_removed_where_the_owner_allows_gaps() {
    let gaps = Settings { gaps: true, ..SMALL };
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), gaps);
    written(&mut journal, &mut files, 0..100);
    let kept = [Ticket(10), Ticket(40)];
    for number in journal.collect(Ticket(80), &kept) {
        files.0.remove(&number);
    }
    let tickets = |files: &Files| {
        let recovered = Journal::recover(owner(1), gaps, &files.read())?;
        Ok::<_, Damage>(recovered.records.into_iter().map(|(ticket, _)| ticket.0).collect::<Vec<_>>())
    };
    let there = tickets(&files).unwrap();
    assert!(there.len() < 70 && kept.iter().all(|kept| there.contains(&kept.0)), "{there:?}");
    assert!((80..=100).all(|ticket| there.contains(&ticket)), "{there:?}");
    assert!(matches!(files.recover(SMALL), Err(Damage::Missing(_))), "for any other owner it is damage");
    // The journal continues, collects records once more, and can be read again.
    let recovered = Journal::recover(owner(1), gaps, &files.read()).unwrap();
    let mut journal = recovered.journal;
    written(&mut journal, &mut files, 100..140);
    for number in journal.collect(Ticket(120), &kept[1..]) {
        files.0.remove(&number);
    }
    let there = tickets(&files).unwrap();
    assert!(there.contains(&40) && !there.contains(&10), "{there:?}");
    assert!((120..=140).all(|ticket| there.contains(&ticket)), "{there:?}");
    // Either the reader reports the rot, or the rotten record is missing and the owner notices.
    for (number, at) in files.places().collect::<Vec<_>>() {
        let mut rotten = files.clone();
        rotten.0.get_mut(&number).unwrap()[at] ^= 0x10;
        if let Ok(left) = tickets(&rotten) {
            let newest = |ticket: &&u64| **ticket >= 120;
            assert_eq!(
                left.iter().filter(newest).collect::<Vec<_>>(),
                there.iter().filter(newest).collect::<Vec<_>>(),
                "{number} {at}"
            );
        }
    }
}

/// Cutting off any bytes that were not durable is no damage, and all durable records remain.
#[test]
fn a_torn_tail_is_cut_off() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    written(&mut journal, &mut files, 0..50);
    let durable = files.clone();
    for number in 50..80 {
        journal.append(&Note(number));
    }
    files.write(&journal.take_writes());
    for (number, at) in files.places() {
        let kept = durable.0.get(&number).map_or(0, Vec::len);
        if at < kept || at % 5 != 0 {
            continue;
        }
        // The rest of this segment is zero, but later segments exist, as if the disk had written them
        // earlier.
        let mut torn = files.clone();
        torn.0.get_mut(&number).unwrap()[at..].fill(0);
        let (mut journal, records) = torn.recover(SMALL).unwrap();
        assert!(records.len() >= 50, "{number} {at}");
        assert_eq!(records, notes(0..records.len() as u64));
        // The journal continues, and can be read again although the torn tail is still there.
        let begin = records.len() as u64;
        written(&mut journal, &mut torn, begin..begin + 20);
        assert_eq!(torn.recover(SMALL).unwrap().1, notes(0..begin + 20), "{number} {at}");
    }
}

/// If any one byte changes, all durable records are still read, or the damage is reported.
#[test]
fn damaged_records_are_found() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    written(&mut journal, &mut files, 0..30);
    // The second life of the process writes only a note at first.
    let (mut journal, _) = files.recover(SMALL).unwrap();
    let mut remote_durability = RemoteDurability::default();
    remote_durability.record(owner(2).process, DurabilityReport { start: 1, mark: 1, durable: Ticket(5) });
    journal.note(&remote_durability);
    files.write(&journal.take_writes());
    let (mut journal, _) = files.recover(SMALL).unwrap();
    written(&mut journal, &mut files, 30..60);
    let mut detected = 0;
    for (number, at) in files.places().collect::<Vec<_>>() {
        let mut rotten = files.clone();
        rotten.0.get_mut(&number).unwrap()[at] ^= 0x10;
        match rotten.recover(SMALL) {
            // The byte belongs to padding or to a seal, so no record is damaged.
            Ok((_, records)) => assert_eq!(records, notes(0..60), "{number} {at}"),
            Err(_) => detected += 1,
        }
    }
    assert!(detected * 10 > files.places().count() * 8, "{detected}");
}

#[test]
fn a_lost_segment_is_damage() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    written(&mut journal, &mut files, 0..60);
    files.0.remove(&3);
    assert_eq!(files.recover(SMALL).unwrap_err(), Damage::Missing(3));
}

#[test]
fn journals_of_others_are_refused() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(2), SMALL);
    written(&mut journal, &mut files, 0..3);
    assert_eq!(files.recover(SMALL).unwrap_err(), Damage::Foreign { owner: owner(2) });
    assert_eq!(Journal::owner(&files.read()), Some(owner(2)));
}

#[test]
fn a_journal_without_durable_records_starts_empty() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    for number in 0..20 {
        journal.append(&Note(number));
    }
    files.write(&journal.take_writes());
    for file in files.0.values_mut() {
        file.fill(0);
    }
    let (mut journal, records) = files.recover(SMALL).unwrap();
    assert!(records.is_empty() && files.0.is_empty());
    assert_eq!(journal.append(&Note(0)), Ticket(1));
}

#[test]
fn garbage_is_no_panic() {
    let mut state = 1u64;
    for round in 0..200 {
        let mut bytes = Vec::new();
        for _ in 0..round * 7 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.push((state >> 56) as u8);
        }
        let mut files = Files(BTreeMap::from([(1, bytes.clone()), (2, bytes)]));
        assert_eq!(files.recover(SMALL).unwrap().1, Vec::<Bytes>::new());
    }
}

/// The note of other processes' reports stays in the newest segment, whichever segments were removed, also
/// after a crash.
#[test]
fn reports_of_other_processes_survive_segment_removal_and_crashes() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    let mut remote_durability = RemoteDurability::default();
    let report = |durable| DurabilityReport { start: 1, mark: 1, durable: Ticket(durable) };
    remote_durability.record(owner(2).process, report(5));
    journal.note(&remote_durability);
    written(&mut journal, &mut files, 0..40);
    remote_durability.record(owner(2).process, report(9));
    journal.note(&remote_durability);
    written(&mut journal, &mut files, 40..80);
    for number in journal.collect(journal.durable(), &[]) {
        files.0.remove(&number);
    }
    let before = files.clone();
    let (mut journal, _) = files.recover(SMALL).unwrap();
    assert_eq!(*journal.remote_durability(), remote_durability);
    // Reports that are already noted are not noted again.
    journal.take_writes();
    journal.note(&remote_durability);
    assert_eq!(journal.take_writes(), []);

    // A rotten note is reported like a rotten record, if a later frame shows that everything before the note
    // was durable.
    let mut files = before;
    remote_durability.record(owner(3).process, report(1));
    let (mut journal, records) = files.recover(SMALL).unwrap();
    journal.note(&remote_durability);
    let noted = journal.take_writes();
    files.write(&noted);
    written(&mut journal, &mut files, 80..90);
    let (again, more) = files.clone().recover(SMALL).unwrap();
    assert_eq!((again.remote_durability(), more.len()), (&remote_durability, records.len() + 10));
    let end = noted.last().map(|write| (write.segment, write.offset as usize + write.bytes.len())).unwrap();
    files.0.get_mut(&end.0).unwrap()[end.1 - 9] ^= 1;
    assert!(matches!(files.recover(SMALL), Err(Damage::Rotten { .. })));
}

/// A record whose contents panic while they are written. This fault of one owner must not affect others that
/// share the journal.
struct Panics;

impl Wire for Panics {
    fn encode(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"some of it");
        panic!("payloads are bounded");
    }

    fn decode(_: &mut Bytes) -> Result<Panics, WireError> {
        Err(WireError::Body)
    }
}

#[test]
fn a_record_that_panics_leaves_nothing() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    for number in 0..60 {
        assert_eq!(journal.append(&Note(number)), Ticket(number + 1));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| journal.append(&Panics)));
        assert!(caught.is_err());
        assert_eq!(journal.last(), Ticket(number + 1));
        if number % 7 == 0 {
            files.write(&journal.take_writes());
        }
    }
    files.write(&journal.take_writes());
    assert_eq!(files.recover(SMALL).unwrap().1, notes(0..60));
}

/// Returns repeated heads of frames that claim a great length. Clients can write such bytes into a journal.
fn planted(bytes: usize, ticket: u64) -> Vec<u8> {
    let mut head = Vec::new();
    head.extend_from_slice(&RECORD.to_le_bytes());
    head.extend_from_slice(&(bytes as u32 / 2).to_le_bytes());
    head.extend_from_slice(&[7; 8]);
    head.extend_from_slice(&ticket.to_le_bytes());
    head.extend_from_slice(&ticket.to_le_bytes());
    // At each eighth byte begins either a complete head or only its first bytes.
    let magic = &head[..8];
    let mut rest = [magic.repeat(4), head.clone()].concat().repeat(bytes / 64);
    rest.truncate(bytes);
    rest
}

/// Returns a frame of version 3. Clients can compute such a frame, because nothing in it is secret.
fn older(segment: u64, magic: u32, ticket: u64, durable: u64, contents: &[u8]) -> Vec<u8> {
    let length = contents.len() as u32;
    let mut rest = [ticket.to_le_bytes(), durable.to_le_bytes()].concat();
    rest.extend_from_slice(contents);
    let sum = checksum(0, segment, magic, length, &rest);
    let mut frame = [magic.to_le_bytes(), length.to_le_bytes()].concat();
    frame.extend_from_slice(&sum.to_le_bytes());
    frame.extend_from_slice(&rest);
    frame.resize(frame.len().next_multiple_of(8), 0);
    frame
}

/// Bytes that clients chose, left over from an older segment after the end of a newer one, count neither as
/// records nor as proofs. Reading them takes no longer than reading other bytes.
#[test]
fn bytes_planted_after_the_end_count_as_neither_records_nor_proofs() {
    let hashed = |files: &Files| Journal::recover(owner(1), SMALL, &files.read()).map(|it| it.hashed_bytes);
    for ticket in [0x0101_0101_0101_0101, 11, 12, 1 << 40] {
        let mut files = Files::default();
        let mut journal = Journal::create(owner(1), Settings { segment_bytes: 1 << 20, ..SMALL });
        written(&mut journal, &mut files, 0..10);
        let (file, forged) = (files.0.get_mut(&1).unwrap(), older(1, SEAL, ticket, ticket, b""));
        let length = file.len();
        file.extend(planted(1 << 20, ticket));
        file.extend(forged);
        // The next segment was reserved, but never begun.
        let mut next = older(2, RECORD, ticket, ticket, b"");
        next.extend(planted(1 << 20, ticket));
        files.0.insert(2, next);
        assert!(hashed(&files).unwrap() <= length as u64, "{ticket}");
        let (_, records) = files.recover(SMALL).unwrap();
        assert_eq!(records, notes(0..10), "nothing was durable behind them");
    }
}

/// Builds the first two segments of a journal of version 3: header, records, seal.
fn of_version_3() -> Files {
    let mut header = 3u32.to_le_bytes().to_vec();
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(&7u128.to_le_bytes());
    header.extend_from_slice(&1u64.to_le_bytes());
    header.extend_from_slice(&1u128.to_le_bytes());
    let mut files = Files::default();
    for (segment, first) in [(1, 1), (2, 11)] {
        let mut file = older(segment, HEADER, first, first - 1, &header);
        for ticket in first..first + 10 {
            file.extend(older(segment, RECORD, ticket, first - 1, &Note(ticket - 1).bytes()));
        }
        file.extend(older(segment, SEAL, first + 9, first + 9, b""));
        files.0.insert(segment, file);
    }
    files
}

#[test]
fn a_journal_of_the_version_before_is_read_and_gone_on_with() {
    let of_older = Settings { key: Key::of_older(9), ..SMALL };
    let mut files = of_version_3();
    assert_eq!(Journal::owner(&files.read()), Some(owner(1)));
    let (mut journal, records) = files.recover(of_older).unwrap();
    assert_eq!((records, journal.key()), (notes(0..20), Key { secret: 9, since: 3 }));
    let key = journal.key();
    written(&mut journal, &mut files, 20..40);
    let (journal, records) = files.recover(Settings { key, ..SMALL }).unwrap();
    assert_eq!((records, journal.key()), (notes(0..40), key));
    // Rot is found in segments of versions 3 and 4, and bytes after the end of a segment cost little.
    for (number, at) in files.places().collect::<Vec<_>>() {
        let mut rotten = files.clone();
        rotten.0.get_mut(&number).unwrap()[at] ^= 0x10;
        if let Ok((_, records)) = rotten.recover(Settings { key, ..SMALL }) {
            assert_eq!(records, notes(0..40), "{number} {at}");
        }
    }
    let mut files = of_version_3();
    files.0.get_mut(&2).unwrap().extend(planted(1 << 20, 1 << 40));
    let recovered = Journal::recover(owner(1), of_older, &files.read()).unwrap();
    assert_eq!(recovered.records.len(), 20);
    assert!(recovered.hashed_bytes < 20 << 20, "{}", recovered.hashed_bytes);
}

/// The byte form of frames is fixed, because later builds must read these bytes.
#[test]
fn frames_have_their_bytes() {
    let mut journal = Journal::create(owner(1), SMALL);
    journal.append(&Note(1));
    let bytes: Vec<u8> = journal.take_writes().into_iter().flat_map(|write| write.bytes).collect();
    let (header, record) = bytes.split_at(FRAME_HEAD + 48);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        hex(header),
        "514a4448300000003f7a44212501039e01000000000000000100000071ea358c040000000000000007000000000000000000000000000000010000000000000001000000000000000000000000000000"
    );
    assert_eq!(
        hex(&record[..FRAME_HEAD]),
        "514a52432d000000f48e85b4393f76f8010000000000000001000000663b4cc8"
    );
}
