//! A service's state, out of one set and into another.
//!
//! **Out.** An export is a copy of a replica's state. It holds nothing that may be taken back: where changes in it are not chosen yet, it waits for
//! them, and is taken anew if the reign ends first. At the leader it holds all that was answered before; another replica may lag behind.
//!
//! **In.** A set that is restored is another set, founded anew, under another id: nobody who knew the old one takes it for that. Its replicas all
//! begin in the service's first state, as ever. The exported state is the first change of its log, cut into parts that messages carry,
//! so that joiners and disks know nothing of it. Only the founder's own host can put it there: it asks for each part under a word that it
//! drew by chance. Until the last part is there, calls are rejected. A service whose log carries whole states has it as its first one.
//!
//! **The file** says what it is, then the name of the service and the set, and has a print of all behind its first line. It is written beside
//! its place and renamed when it is durable.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crossbeam_channel::Sender;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    executor::{Refused, split_clock},
    press::ITEM_BYTES_MAX,
};
use crate::error::Error;

/// The state of a service, out of a replica: [`Node::export`](crate::Node::export).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    head: Head,
    state: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    name: String,
    set: u64,
    led: bool,
    changes: u64,
    clock: u64,
}

impl Export {
    /// What a replica gave as a copy of its state; none if that is being restored.
    pub(super) fn of_copy(name: &str, set: u64, led: bool, copy: &Bytes) -> Option<Export> {
        if Part::is(copy) {
            return None;
        }
        let (clock, rest) = split_clock(copy)?;
        let (changes, state) = split_clock(rest)?;
        let head = Head { name: name.to_owned(), set, led, changes, clock };
        Some(Export { head, state: copy.slice_ref(state) })
    }

    /// The name of the service that it is of.
    pub fn name(&self) -> &str {
        &self.head.name
    }

    /// The random number of the set that it is of.
    pub fn set(&self) -> u64 {
        self.head.set
    }

    /// Whether the replica led: then it holds all that was answered before it was asked for.
    pub fn led(&self) -> bool {
        self.head.led
    }

    /// How many changes it holds.
    pub fn changes(&self) -> u64 {
        self.head.changes
    }

    /// The state in bytes, as `postcard` writes it.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// Writes it to a file, which is there whole and durable, or not at all.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::file(path, error);
        let beside = path.with_extension("part");
        let mut file = File::create(&beside).map_err(failed)?;
        file.write_all(&self.encode()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&beside, path).map_err(failed)?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|place| place.sync_all()).map_err(failed)
    }

    /// Reads it from a file.
    pub fn read(path: &Path) -> Result<Export, Error> {
        let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
        Export::decode(bytes.into()).map_err(|why| Error::file(path, why))
    }

    /// Its bytes, as they stand in a file.
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

    /// An export of these bytes.
    pub fn decode(mut bytes: Bytes) -> Result<Export, String> {
        if !bytes.starts_with(FIRST_LINE) {
            return Err(String::from("it is no export of a service, or of another version"));
        }
        bytes.advance(FIRST_LINE.len());
        if bytes.len() < 20 || bytes.get_u128_le() != xxh3_128(&bytes) {
            return Err(String::from("it is damaged, or cut off"));
        }
        let length = bytes.get_u32_le() as usize;
        if bytes.len() < length {
            return Err(String::from("it is damaged"));
        }
        let head = bytes.split_to(length);
        let head = postcard::from_bytes(&head).map_err(|error| error.to_string())?;
        Ok(Export { head, state: bytes })
    }

    /// Its parts, as changes. As a whole state it is one.
    pub(super) fn parts(&self, whole: bool) -> Vec<Bytes> {
        let Head { clock, changes, .. } = self.head;
        if whole {
            return vec![[&clock.to_le_bytes()[..], &changes.to_le_bytes(), &self.state].concat().into()];
        }
        let count = self.state.len().div_ceil(PART_BYTES).max(1);
        let part = |number: usize| {
            let end = ((number + 1) * PART_BYTES).min(self.state.len());
            let state = self.state.slice(number * PART_BYTES..end);
            Part { number: number as u32, last: number + 1 == count, clock, state }.encode()
        };
        (0..count).map(part).collect()
    }
}

const FIRST_LINE: &[u8] = b"quorate service export 1\n";

/// The bytes of the state in a part: a change is no longer than a message may be.
const PART_BYTES: usize = ITEM_BYTES_MAX / 4;

/// A copy of the state, on its way out.
pub(super) type Exported = Result<Bytes, String>;

/// A copy that somebody wants.
pub(super) struct Copying {
    wanted: Sender<Exported>,
    /// The copy, and the number of the last change in it that was not chosen when it was taken.
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

    /// A change is taken back.
    pub(super) fn spoil(&mut self, number: u64) {
        self.taken.take_if(|(_, through)| number <= *through);
    }

    /// Leaves, if it holds nothing that may be taken back. `unchosen` is the oldest change that may.
    pub(super) fn leaves(&mut self, unchosen: Option<u64>) -> bool {
        let is_chosen = |through: u64| unchosen.is_none_or(|unchosen| unchosen > through);
        match self.taken.take_if(|(_, through)| is_chosen(*through)) {
            Some((copy, _)) => {
                // Nobody may want it any more.
                let _ = self.wanted.send(copy);
                true
            }
            None => false,
        }
    }
}

/// A part of an earlier set's state, as a change.
pub(super) struct Part {
    number: u32,
    last: bool,
    /// Of the whole.
    clock: u64,
    state: Bytes,
}

/// The earlier set's state, all of it.
pub(super) struct Whole {
    pub(super) clock: u64,
    pub(super) state: Bytes,
}

impl Part {
    /// Whether a change is a part, or a checkpoint is one of a state that is being restored: no clock shows this.
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

    pub(super) fn decode(change: &Bytes) -> Option<Part> {
        if change.len() < PART_HEAD_BYTES {
            return None;
        }
        let mut input = change.slice(8..);
        let (number, last) = (input.get_u32_le(), input.get_u8() == 1);
        Some(Part { number, last, clock: input.get_u64_le(), state: input })
    }
}

const PART_HEAD_BYTES: usize = 21;
const NO_CLOCK: u64 = u64::MAX;

/// How a set that begins with an earlier one's state gets it.
#[derive(Default)]
pub(super) struct Restoring {
    /// The founder's parts, and the word under which its host asks for them.
    parts: Option<(u128, Vec<Bytes>)>,
    /// The state, as far as it came.
    coming: BytesMut,
    /// Parts that came.
    came: u32,
}

impl Restoring {
    pub(super) fn with(word: u128, parts: Vec<Bytes>) -> Restoring {
        Restoring { parts: Some((word, parts)), ..Restoring::default() }
    }

    /// Whether the state is not there yet.
    pub(super) fn is_under_way(&self) -> bool {
        self.parts.is_some() || self.came > 0
    }

    /// A checkpoint while it is under way: the state is the first one still.
    pub(super) fn checkpoint(&self) -> Bytes {
        [&NO_CLOCK.to_le_bytes()[..], &self.came.to_le_bytes(), &self.coming].concat().into()
    }

    /// That of another replica.
    pub(super) fn of_checkpoint(bytes: &[u8]) -> Option<Restoring> {
        let (came, coming) = bytes.get(8..)?.split_first_chunk()?;
        Some(Restoring { parts: None, coming: coming.into(), came: u32::from_le_bytes(*came) })
    }

    /// The change that a request comes to, while the state is not there yet; none if it is, and requests are the service's.
    pub(super) fn answer(&self, request: &[u8]) -> Result<Option<Bytes>, Refused> {
        let Some((word, parts)) = &self.parts else {
            return match self.came {
                0 => Ok(None),
                _ => Err(Refused::Whole(String::from(
                    "its founder ended while it restored the state: restore it again, under another name",
                ))),
            };
        };
        match parts.get(self.came as usize) {
            Some(part) if request == &word.to_le_bytes()[..] => Ok(Some(part.clone())),
            _ => Err(Refused::Whole(String::from("the state is being restored"))),
        }
    }

    /// How many parts came.
    pub(super) fn came(&self) -> u64 {
        self.came.into()
    }

    pub(super) fn bytes(&self) -> usize {
        self.coming.len()
    }

    /// Takes a part; gives the state back with the last one.
    pub(super) fn take(&mut self, part: Part) -> Option<Whole> {
        if part.number != self.came {
            // Of a restoration that was broken off.
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

    /// Takes a part back, if the state was not whole with it.
    pub(super) fn take_back(&mut self, before: usize) -> bool {
        let is_open = self.came > 0;
        if is_open {
            self.came -= 1;
            self.coming.truncate(before);
        }
        is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(bytes: usize) -> Export {
        let state: Vec<u8> = (0..bytes).map(|byte| (byte % 251) as u8).collect();
        let head = Head { name: String::from("bank"), set: 7, led: true, changes: 9, clock: 11 };
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
                assert!(Part::is(&change) && restoring.is_under_way());
                let there = Restoring::of_checkpoint(&restoring.checkpoint()).unwrap();
                assert_eq!((there.came, &there.coming), (restoring.came, &restoring.coming));
                let before = restoring.bytes();
                whole = restoring.take(Part::decode(&change).unwrap());
                if whole.is_none() {
                    assert!(restoring.take_back(before));
                    assert!(restoring.take(Part::decode(&change).unwrap()).is_none());
                }
            }
            assert_eq!(&whole.unwrap().state, export.state());
            assert!(matches!(restoring.answer(b"other"), Ok(None)));
            assert!(!restoring.take_back(0), "the state is whole");
        }
    }
}
