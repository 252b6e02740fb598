use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use super::{Damage, Hearsay, Journal, Owner, Settings, Told, Write};
use crate::{
    id::{DomainId, Incarnation, ProcessId},
    seam::Ticket,
    wire::{Wire, WireError},
};

/// A record of the tests: a number, and bytes that follow from it.
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

const SMALL: Settings = Settings { segment_bytes: 1_000, gaps: false };

fn owner(node: u64) -> Owner {
    Owner { domain: DomainId(7), process: ProcessId { node, incarnation: Incarnation(node.into()) } }
}

/// A disk that keeps what it is given.
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

    /// The bytes of all segments, as places.
    fn places(&self) -> impl Iterator<Item = (u64, usize)> {
        self.0.iter().flat_map(|(&number, bytes)| (0..bytes.len()).map(move |at| (number, at)))
    }
}

/// Notes `from..to`, written in groups of four that become durable one by one, and sealed.
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
fn what_was_written_is_read() {
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
    let told: Vec<u64> = lengths(Settings::default()).map(|length| length >> 20).collect();
    assert_eq!(told[..6], [4, 8, 16, 32, 64, 64]);
    assert!(lengths(SMALL).all(|length| length == SMALL.segment_bytes));
    let endless = Settings { segment_bytes: u64::MAX, gaps: false };
    assert!(lengths(endless).is_sorted());
}

#[test]
fn segments_go_once_nothing_in_them_is_needed() {
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

/// Records are kept from before those that are all needed, and what lies between them goes.
#[test]
fn segments_between_others_go_where_the_owner_looks_for_gaps() {
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
    // It goes on, collects again, and is read again.
    let recovered = Journal::recover(owner(1), gaps, &files.read()).unwrap();
    let mut journal = recovered.journal;
    written(&mut journal, &mut files, 100..140);
    for number in journal.collect(Ticket(120), &kept[1..]) {
        files.0.remove(&number);
    }
    let there = tickets(&files).unwrap();
    assert!(there.contains(&40) && !there.contains(&10), "{there:?}");
    assert!((120..=140).all(|ticket| there.contains(&ticket)), "{there:?}");
    // Rot is found, or what it hit is missing and the owner sees that.
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

/// Whatever is cut off behind what was durable is no damage, and what was durable is all there.
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
        // The rest of this segment is zeros; what comes in later ones is there, as if written in another order.
        let mut torn = files.clone();
        torn.0.get_mut(&number).unwrap()[at..].fill(0);
        let (mut journal, records) = torn.recover(SMALL).unwrap();
        assert!(records.len() >= 50, "{number} {at}");
        assert_eq!(records, notes(0..records.len() as u64));
        // It goes on, and is read again although the torn tail is still there.
        let begin = records.len() as u64;
        written(&mut journal, &mut torn, begin..begin + 20);
        assert_eq!(torn.recover(SMALL).unwrap().1, notes(0..begin + 20), "{number} {at}");
    }
}

/// One byte that is another, anywhere: what was durable is read whole, or the damage is told.
#[test]
fn rot_is_found() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    written(&mut journal, &mut files, 0..30);
    let (mut journal, _) = files.recover(SMALL).unwrap();
    written(&mut journal, &mut files, 30..60);
    let mut told = 0;
    for (number, at) in files.places().collect::<Vec<_>>() {
        let mut rotten = files.clone();
        rotten.0.get_mut(&number).unwrap()[at] ^= 0x10;
        match rotten.recover(SMALL) {
            // Padding, or a seal.
            Ok((_, records)) => assert_eq!(records, notes(0..60), "{number} {at}"),
            Err(_) => told += 1,
        }
    }
    assert!(told * 10 > files.places().count() * 8, "{told}");
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
fn what_never_became_durable_leaves_a_new_journal() {
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

/// In the newest segment, whichever went, and behind a crash.
#[test]
fn what_is_known_of_others_is_kept() {
    let mut files = Files::default();
    let mut journal = Journal::create(owner(1), SMALL);
    let mut hearsay = Hearsay::default();
    let told = |durable| Told { start: 1, mark: 1, durable: Ticket(durable) };
    hearsay.learn(owner(2).process, told(5));
    journal.note(&hearsay);
    written(&mut journal, &mut files, 0..40);
    hearsay.learn(owner(2).process, told(9));
    journal.note(&hearsay);
    written(&mut journal, &mut files, 40..80);
    for number in journal.collect(journal.durable(), &[]) {
        files.0.remove(&number);
    }
    let before = files.clone();
    let (mut journal, _) = files.recover(SMALL).unwrap();
    assert_eq!(*journal.hearsay(), hearsay);
    // What is known already is not noted again.
    journal.take_writes();
    journal.note(&hearsay);
    assert_eq!(journal.take_writes(), []);

    // A note is rotten like a record where a frame behind it says that what came before was durable.
    let mut files = before;
    hearsay.learn(owner(3).process, told(1));
    let (mut journal, records) = files.recover(SMALL).unwrap();
    journal.note(&hearsay);
    let noted = journal.take_writes();
    files.write(&noted);
    written(&mut journal, &mut files, 80..90);
    let (again, more) = files.clone().recover(SMALL).unwrap();
    assert_eq!((again.hearsay(), more.len()), (&hearsay, records.len() + 10));
    let end = noted.last().map(|write| (write.segment, write.offset as usize + write.bytes.len())).unwrap();
    files.0.get_mut(&end.0).unwrap()[end.1 - 9] ^= 1;
    assert!(matches!(files.recover(SMALL), Err(Damage::Rotten { .. })));
}
