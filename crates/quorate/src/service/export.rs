//! Export and import: a service's state, out of one set and into another.
//!
//! **Out.** An export is a copy of a replica's state. It holds no revertible change: if changes in it are not
//! chosen yet, it waits for them, and is taken again if the reign ends first. At the leader it holds all
//! changes that were answered before; another replica may lag behind.
//!
//! **In.** A restored set is a newly founded set with another id: nobody who knew the old set confuses the
//! two. All its replicas begin in the service's first state, as usual. The exported state is the first change
//! of its log. It is cut into parts that fit into messages, so joiners and disks need no special case. Only
//! the founder's own host can put it there: it requests each part with a random word. Until the last part is
//! there, calls are rejected. A service whose log carries whole states gets it as the first state.
//!
//! **The file** has a first line with its kind, and a print of all bytes after it. Then come the name of the
//! service and the set, and the state. It is written to a temporary neighbour and renamed when it is durable.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crossbeam_channel::Sender;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::encoder::ITEM_BYTES_MAX;
use crate::error::Error;

/// A service's state from a replica: [`Node::export`](crate::Node::export).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    head: ExportHead,
    state: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ExportHead {
    name: String,
    set: u64,
    led: bool,
    changes: u64,
    clock: u64,
}

impl Export {
    /// Makes an export from a replica's copy of its state, or `None` if that state is being restored.
    pub(super) fn of_copy(name: &str, set: u64, led: bool, copy: &Bytes) -> Option<Export> {
        if StatePart::is(copy) {
            return None;
        }
        let (clock, rest) = split_clock(copy)?;
        let (changes, state) = split_clock(rest)?;
        let head = ExportHead { name: name.to_owned(), set, led, changes, clock };
        Some(Export { head, state: copy.slice_ref(state) })
    }

    /// Returns the name of the exported service.
    pub fn name(&self) -> &str {
        &self.head.name
    }

    /// Returns the random number of the exported set.
    pub fn set(&self) -> u64 {
        self.head.set
    }

    /// Whether the replica led: then the export holds all changes that were answered before the request for
    /// it.
    pub fn led(&self) -> bool {
        self.head.led
    }

    /// Returns the number of changes that the export holds.
    pub fn changes(&self) -> u64 {
        self.head.changes
    }

    /// Returns the state in bytes, as `postcard` encodes it.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// Writes the export to a file, completely and durably, or not at all.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::file(path, error);
        let beside = path.with_extension("part");
        let mut file = File::create(&beside).map_err(failed)?;
        file.write_all(&self.encode()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&beside, path).map_err(failed)?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|place| place.sync_all()).map_err(failed)
    }

    /// Reads the export from a file. Fails if the file is damaged.
    pub fn read(path: &Path) -> Result<Export, Error> {
        let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
        Export::decode(bytes.into()).map_err(|why| Error::file(path, why))
    }

    /// Encodes the export as the content of a file.
    pub fn encode(&self) -> Bytes {
        let head = postcard::to_stdvec(&self.head).expect("a name and numbers serialise");
        let mut body = BytesMut::with_capacity(head.len() + self.state.len() + 4);
        body.put_u32_le(head.len() as u32);
        body.put_slice(&head);
        body.put_slice(&self.state);
        let mut bytes = BytesMut::with_capacity(FIRST_LINE.len() + 16 + body.len());
        bytes.put_slice(FIRST_LINE);
        bytes.put_u128_le(xxh3_128(&body));
        bytes.put_slice(&body);
        bytes.freeze()
    }

    /// Decodes the content of a file. The error is a text for the user.
    pub fn decode(mut bytes: Bytes) -> Result<Export, String> {
        if !bytes.starts_with(FIRST_LINE) {
            return Err(String::from(
                "the data is not an export of a service, or was written by another version",
            ));
        }
        bytes.advance(FIRST_LINE.len());
        if bytes.len() < 20 || bytes.get_u128_le() != xxh3_128(&bytes) {
            return Err(String::from("the export is damaged, or cut off"));
        }
        let length = bytes.get_u32_le() as usize;
        if bytes.len() < length {
            return Err(String::from("the export is damaged"));
        }
        let head = bytes.split_to(length);
        let head = postcard::from_bytes(&head).map_err(|error| error.to_string())?;
        Ok(Export { head, state: bytes })
    }

    /// Returns the export's parts, as changes; a whole state is one change.
    pub(super) fn parts(&self, whole: bool) -> Vec<Bytes> {
        let ExportHead { clock, changes, .. } = self.head;
        if whole {
            return vec![[&clock.to_le_bytes()[..], &changes.to_le_bytes(), &self.state].concat().into()];
        }
        let count = self.state.len().div_ceil(PART_BYTES).max(1);
        let part = |number: usize| {
            let end = ((number + 1) * PART_BYTES).min(self.state.len());
            let state = self.state.slice(number * PART_BYTES..end);
            StatePart { number: number as u32, last: number + 1 == count, clock, state }.encode()
        };
        (0..count).map(part).collect()
    }
}

const FIRST_LINE: &[u8] = b"quorate service export 1\n";

/// Bytes of the state in a part, so that a change fits into a message.
const PART_BYTES: usize = ITEM_BYTES_MAX / 4;

/// A copy of the state, on its way out.
pub(super) type Exported = Result<Bytes, String>;

/// A requested copy.
pub(super) struct Copying {
    wanted: Sender<Exported>,
    /// The copy, and the number of its last change that was not chosen when it was taken.
    taken: Option<(Exported, u64)>,
}

impl Copying {
    pub(super) fn wanted(wanted: Sender<Exported>) -> Copying {
        Copying { wanted, taken: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_none()
    }

    pub(super) fn fill(&mut self, copy: Exported, through: u64) {
        self.taken = Some((copy, through));
    }

    /// Drops the copy if it holds the change of this number, which is taken back.
    pub(super) fn spoil(&mut self, number: u64) {
        self.taken.take_if(|(_, through)| number <= *through);
    }

    /// Sends the copy if it holds no revertible change. `unchosen` is the oldest revertible change. Returns
    /// whether it was sent.
    pub(super) fn leaves(&mut self, unchosen: Option<u64>) -> bool {
        let is_chosen = |through: u64| unchosen.is_none_or(|unchosen| unchosen > through);
        match self.taken.take_if(|(_, through)| is_chosen(*through)) {
            Some((copy, _)) => {
                // The receiver may be gone.
                let _ = self.wanted.send(copy);
                true
            }
            None => false,
        }
    }
}

/// A part of an earlier set's state, as a change.
pub(super) struct StatePart {
    number: u32,
    last: bool,
    /// The clock of the whole state, in nanoseconds since 1970.
    clock: u64,
    state: Bytes,
}

/// The complete state of an earlier set.
pub(super) struct Whole {
    pub(super) clock: u64,
    pub(super) state: Bytes,
}

impl StatePart {
    /// Whether these bytes of a change or of a checkpoint belong to a state that is being restored. Then they
    /// begin with a value that no clock shows.
    pub(super) fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(&NO_CLOCK.to_le_bytes())
    }

    fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(PART_HEAD_BYTES + self.state.len());
        out.put_u64_le(NO_CLOCK);
        out.put_u32_le(self.number);
        out.put_u8(self.last.into());
        out.put_u64_le(self.clock);
        out.put_slice(&self.state);
        out.freeze()
    }

    pub(super) fn decode(change: &Bytes) -> Option<StatePart> {
        if change.len() < PART_HEAD_BYTES {
            return None;
        }
        let mut input = change.slice(8..);
        let (number, last) = (input.get_u32_le(), input.get_u8() == 1);
        Some(StatePart { number, last, clock: input.get_u64_le(), state: input })
    }
}

const PART_HEAD_BYTES: usize = 21;
const NO_CLOCK: u64 = u64::MAX;

/// The progress of a set that begins with an earlier set's state.
#[derive(Default)]
pub(super) struct Restoring {
    /// The parts of the state that the founder has, and the number by which its host requests them.
    parts: Option<(u128, Vec<Bytes>)>,
    /// The received part of the state.
    coming: BytesMut,
    /// Number of received parts.
    came: u32,
}

impl Restoring {
    pub(super) fn with(word: u128, parts: Vec<Bytes>) -> Restoring {
        Restoring { parts: Some((word, parts)), ..Restoring::default() }
    }

    /// Whether the state is incomplete.
    pub(super) fn is_under_way(&self) -> bool {
        self.parts.is_some() || self.came > 0
    }

    /// Returns a checkpoint of the progress: the service is still in its first state.
    pub(super) fn checkpoint(&self) -> Bytes {
        [&NO_CLOCK.to_le_bytes()[..], &self.came.to_le_bytes(), &self.coming].concat().into()
    }

    /// Decodes the progress of another replica.
    pub(super) fn of_checkpoint(bytes: &[u8]) -> Option<Restoring> {
        let (came, coming) = bytes.get(8..)?.split_first_chunk()?;
        Some(Restoring { parts: None, coming: coming.into(), came: u32::from_le_bytes(*came) })
    }

    /// Returns the change for a request while the state is incomplete. `None` if requests are for the
    /// service.
    pub(super) fn answer(&self, request: &[u8]) -> Result<Option<Bytes>, Refused> {
        let Some((word, parts)) = &self.parts else {
            return match self.came {
                0 => Ok(None),
                _ => Err(Refused::Whole(String::from(
                    "the founder of this service ended before the state was restored: restore the export \
                     again, under another name",
                ))),
            };
        };
        match parts.get(self.came as usize) {
            Some(part) if request == &word.to_le_bytes()[..] => Ok(Some(part.clone())),
            _ => Err(Refused::Whole(String::from("the state of this service is still being restored"))),
        }
    }

    /// Returns the number of parts received.
    pub(super) fn came(&self) -> u64 {
        self.came.into()
    }

    pub(super) fn bytes(&self) -> usize {
        self.coming.len()
    }

    /// Takes a part of the state. With the last part, returns the whole state.
    pub(super) fn take(&mut self, part: StatePart) -> Option<Whole> {
        if part.number != self.came {
            // The part is of a restoration that was broken off.
            return None;
        }
        self.came += 1;
        self.coming.put_slice(&part.state);
        if !part.last {
            return None;
        }
        (self.came, self.parts) = (0, None);
        Some(Whole { clock: part.clock, state: std::mem::take(&mut self.coming).freeze() })
    }

    /// Removes the last part again, unless that part completed the state. `before` is the number of bytes
    /// before the part. Returns whether the part was removed.
    pub(super) fn take_back(&mut self, before: usize) -> bool {
        let is_open = self.came > 0;
        if is_open {
            self.came -= 1;
            self.coming.truncate(before);
        }
        is_open
    }
}

/// The reason why a request is refused.
pub(super) enum Refused {
    /// The reason of a refusal that left the state unchanged.
    Whole(String),
    /// The reason of a refusal after which the state is unknown.
    Torn(String),
}

impl From<String> for Refused {
    fn from(reason: String) -> Refused {
        Refused::Whole(reason)
    }
}

pub(super) fn split_clock(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (clock, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*clock), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(bytes: usize) -> Export {
        let state: Vec<u8> = (0..bytes).map(|byte| (byte % 251) as u8).collect();
        let head = ExportHead { name: String::from("bank"), set: 7, led: true, changes: 9, clock: 11 };
        Export { head, state: state.into() }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_damage_is_told() {
        let place = tempfile::tempdir().unwrap();
        let (path, export) = (place.path().join("bank.export"), export(1000));
        export.write(&path).unwrap();
        assert_eq!(Export::read(&path), Ok(export));
        let mut bytes = fs::read(&path).unwrap();
        for place in [0, 30, 100, bytes.len() - 1] {
            bytes[place] ^= 1;
            assert!(Export::decode(bytes.clone().into()).is_err(), "byte {place}");
            bytes[place] ^= 1;
        }
        for length in 0..bytes.len() {
            assert!(Export::decode(Bytes::copy_from_slice(&bytes[..length])).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn parts_are_put_together_again_and_may_be_taken_back_until_the_last() {
        for bytes in [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let export = export(bytes);
            let mut restoring = Restoring::with(5, export.parts(false));
            let mut whole = None;
            while whole.is_none() {
                assert!(restoring.answer(b"other").is_err(), "calls wait for the state");
                let Ok(Some(change)) = restoring.answer(&5_u128.to_le_bytes()) else { panic!("a part") };
                assert!(StatePart::is(&change) && restoring.is_under_way());
                let there = Restoring::of_checkpoint(&restoring.checkpoint()).unwrap();
                assert_eq!((there.came, &there.coming), (restoring.came, &restoring.coming));
                let before = restoring.bytes();
                whole = restoring.take(StatePart::decode(&change).unwrap());
                if whole.is_none() {
                    assert!(restoring.take_back(before));
                    assert!(restoring.take(StatePart::decode(&change).unwrap()).is_none());
                }
            }
            assert_eq!(&whole.unwrap().state, export.state());
            assert!(matches!(restoring.answer(b"other"), Ok(None)));
            assert!(!restoring.take_back(0), "the state is whole");
        }
    }
}
