//! Bytes of disks: journals after a crash, checkpoint files of groups, backups of tables.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate::fuzzing;
use quorate_protocol::{
    DomainId, Incarnation, ProcessId, Ticket,
    journal::{Journal, Owner, Settings, Write},
};

const OWNER: Owner =
    Owner { domain: DomainId(1), process: ProcessId { node: 2, incarnation: Incarnation(3) } };
/// Returns settings with small segments, so that a short input writes several segments.
fn settings() -> Settings {
    Settings { segment_bytes: 256, ..Settings::default() }
}

/// Decodes the input as a checkpoint file of a group: as the whole file, and as the body of a file whose
/// checksum is right.
pub(crate) fn checkpoints(input: &[u8]) {
    fuzzing::checkpoint(input);
}

/// Decodes the input as a backup: as the whole backup, and as sections whose checksums are right.
pub(crate) fn backups(input: &[u8]) {
    fuzzing::backup(input);
}

/// Writes a journal as the input describes, damages it as the input describes, and recovers it.
///
/// Recovery must end in a journal or in a typed error. A recovered journal must work: if a record is appended
/// and made durable, the next recovery finds it after the earlier records.
pub(crate) fn journals(input: &[u8]) {
    let mut disk = BTreeMap::<u64, Vec<u8>>::new();
    let mut journal = Journal::create(OWNER, settings());
    let mut rest = input;
    while let Some((step, more)) = rest.split_first() {
        rest = more;
        let length = usize::from(*rest.first().unwrap_or(&0));
        match step % 6 {
            0 | 1 => {
                let contents = &rest[..length.min(rest.len())];
                rest = &rest[contents.len()..];
                journal.append(&Raw(contents.to_vec()));
            }
            2 => {
                store(&mut disk, journal.take_writes());
                journal.synced(journal.last());
            }
            3 => {
                let before = Ticket(journal.durable().0.saturating_sub(length as u64));
                for segment in journal.collect(before, &[]) {
                    disk.remove(&segment);
                }
            }
            4 => damage(&mut disk, rest, length),
            _ => plant(&mut disk, rest),
        }
    }
    store(&mut disk, journal.take_writes());
    recover(disk);
}

fn recover(mut disk: BTreeMap<u64, Vec<u8>>) {
    let Ok(found) = Journal::recover(OWNER, settings(), &shared(&disk)) else { return };
    for segment in found.empty {
        disk.remove(&segment);
    }
    for (segment, length) in found.lengths {
        disk.get_mut(&segment).expect("each segment with a length was read").truncate(length as usize);
    }
    let (mut journal, before) = (found.journal, found.records);
    journal.append(&Raw(b"after".to_vec()));
    store(&mut disk, journal.take_writes());
    journal.synced(journal.last());
    let again = Journal::recover(OWNER, settings(), &shared(&disk))
        .expect("a journal that was recovered can be recovered again");
    let (last, kept) = again.records.split_last().expect("a record was appended");
    assert_eq!(&last.1[..], b"after");
    assert_eq!(kept, before);
}

fn store(disk: &mut BTreeMap<u64, Vec<u8>>, writes: Vec<Write>) {
    for Write { segment, offset, bytes } in writes {
        let (file, begin) = (disk.entry(segment).or_default(), offset as usize);
        file.resize(file.len().max(begin + bytes.len()), 0);
        file[begin..begin + bytes.len()].copy_from_slice(&bytes);
    }
}

/// Changes a byte of a segment, or cuts the segment off at this byte.
fn damage(disk: &mut BTreeMap<u64, Vec<u8>>, rest: &[u8], at: usize) {
    let [_, segment, kind, ..] = rest else { return };
    let count = disk.len().max(1);
    let Some(file) = disk.values_mut().nth(usize::from(*segment) % count) else { return };
    if let Some(byte) = file.get_mut(at) {
        match kind % 2 {
            0 => *byte ^= kind | 1,
            _ => file.truncate(at),
        }
    }
}

/// Puts bytes after the end of the last segment, like the former content of a recycled file.
fn plant(disk: &mut BTreeMap<u64, Vec<u8>>, rest: &[u8]) {
    if let Some(file) = disk.values_mut().next_back() {
        file.extend_from_slice(&rest[..rest.len().min(256)]);
    }
}

fn shared(disk: &BTreeMap<u64, Vec<u8>>) -> BTreeMap<u64, Bytes> {
    disk.iter().map(|(segment, file)| (*segment, Bytes::copy_from_slice(file))).collect()
}

/// A record that consists only of its bytes.
struct Raw(Vec<u8>);

impl quorate_protocol::wire::Wire for Raw {
    fn encode(&self, out: &mut bytes::BytesMut) {
        out.extend_from_slice(&self.0);
    }

    fn decode(input: &mut Bytes) -> Result<Raw, quorate_protocol::wire::WireError> {
        Ok(Raw(std::mem::take(input).to_vec()))
    }
}
