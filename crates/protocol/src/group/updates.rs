//! Updates that are sent, held and delivered together, to share the cost of each step.

use std::num::NonZeroU32;

use bytes::{Bytes, BytesMut};

use super::place::Place;
use crate::{
    ecast::Position,
    wire::{Wire, WireError, put_bytes, take_bytes},
};

/// Size of the field before each update that holds the update's length, in bytes.
const LENGTH_BYTES: usize = 4;

/// Consecutive updates, at least one, in their wire form: the length of each update, then its bytes. Clones
/// share the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pack {
    count: NonZeroU32,
    bytes: Bytes,
}

impl Pack {
    /// Makes a pack of one update.
    pub fn of(update: &[u8]) -> Pack {
        let mut writer = PackWriter::default();
        writer.push(update);
        writer.finish().expect("a pack with an update is not empty")
    }

    /// Reads the complete updates at the beginning of these bytes. Returns a pack of these updates, or `None`
    /// if there is none, and whether all bytes were read.
    pub(super) fn read(bytes: Bytes) -> (Option<Pack>, bool) {
        // The loop reads a slice, because a `Bytes` for each update would change a reference count that other
        // threads also change.
        let (mut rest, mut count) = (&bytes[..], 0);
        while let Some((length, behind)) = rest.split_first_chunk()
            && let Some(next) = behind.get(u32::from_le_bytes(*length) as usize..)
        {
            rest = next;
            count += 1;
        }
        let (whole, is_whole) = (bytes.len() - rest.len(), rest.is_empty());
        let pack = NonZeroU32::new(count).map(|count| Pack { count, bytes: bytes.slice(..whole) });
        (pack, is_whole)
    }

    /// Returns the number of the pack's updates.
    pub fn count(&self) -> u32 {
        self.count.get()
    }

    /// Returns the pack's form on the wire.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Copies the updates into memory of their own, so that they do not keep the larger receive buffer in
    /// memory.
    pub(super) fn copied(&self) -> Pack {
        Pack { count: self.count, bytes: Bytes::copy_from_slice(&self.bytes) }
    }

    /// Returns the updates.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk()?;
            let (update, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            rest = behind;
            Some(update)
        })
    }
}

/// The form on the wire is a length, then the updates. The decoder refuses a pack without updates, or with a
/// part of an update.
impl Wire for Pack {
    const BYTES_LEAST: usize = Bytes::BYTES_LEAST;

    fn encode(&self, out: &mut BytesMut) {
        self.bytes.encode(out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        self.bytes.encode_head(out)
    }

    fn decode(input: &mut Bytes) -> Result<Pack, WireError> {
        match Pack::read(take_bytes(input)?) {
            (Some(pack), true) => Ok(pack),
            _ => Err(WireError::Body),
        }
    }
}

/// A pack that is being written.
#[derive(Debug, Default)]
pub struct PackWriter {
    count: u32,
    bytes: BytesMut,
}

impl PackWriter {
    /// Appends an update. All updates of the pack together have at most [`u32::MAX`] bytes.
    pub fn push(&mut self, update: &[u8]) {
        self.count += 1;
        put_bytes(&mut self.bytes, update);
    }

    /// Appends all updates of a pack.
    pub(super) fn append(&mut self, pack: &Pack) {
        self.count += pack.count();
        self.bytes.extend_from_slice(&pack.bytes);
    }

    /// Returns the number of the pack's updates.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the pack's size on the wire, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the pack's memory, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether the pack would have at most `bytes` bytes with this update.
    pub fn fits(&self, update: &[u8], bytes: usize) -> bool {
        self.bytes.len() + LENGTH_BYTES + update.len() <= bytes
    }

    /// Returns the pack, or `None` if it is empty.
    pub fn finish(self) -> Option<Pack> {
        Some(Pack { count: NonZeroU32::new(self.count)?, bytes: self.bytes.freeze() })
    }
}

/// Consecutive updates of one sender, with their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Updates {
    first: Place,
    pack: Pack,
}

impl Updates {
    pub(super) fn new(first: Place, pack: Pack) -> Updates {
        Updates { first, pack }
    }

    /// Reads the updates of an ordered pack. No correct member makes a pack that ends inside an update. At
    /// all members, such a pack ends before that update, and the second result is `false`.
    pub(super) fn ordered(at: Position, pack: Bytes) -> (Option<Updates>, bool) {
        let (pack, is_whole) = Pack::read(pack);
        (pack.map(|pack| Updates::new(Place::Ordered(at, 0), pack)), is_whole)
    }

    /// Returns the place of the first update.
    pub fn first(&self) -> Place {
        self.first
    }

    /// Returns each update with its place.
    pub fn iter(&self) -> impl Iterator<Item = (Place, &[u8])> {
        (0..).zip(self.pack.iter()).map(|(index, update)| (self.first.behind(index), update))
    }

    /// Returns the updates, without their places.
    pub(super) fn pack(&self) -> &Pack {
        &self.pack
    }

    /// Returns the approximate size of the updates, in bytes.
    pub fn bytes(&self) -> usize {
        self.pack.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(updates: &[&str]) -> Pack {
        let mut writer = PackWriter::default();
        updates.iter().for_each(|update| writer.push(update.as_bytes()));
        writer.finish().expect("some were put in")
    }

    fn contents(updates: &Updates) -> Vec<(Place, String)> {
        updates.iter().map(|(place, body)| (place, String::from_utf8_lossy(body).into_owned())).collect()
    }

    #[test]
    fn each_update_has_its_place() {
        let pack = pack(&["ab", "", "c"]);
        assert_eq!((pack.count(), pack.bytes().len()), (3, 15));
        let soft = Updates::new(Place::Soft(5), pack.clone());
        let (ordered, whole) = Updates::ordered(Position(9), pack.bytes().clone());
        assert!(whole);
        let expected = |place: fn(u32) -> Place| {
            (0..).zip(["ab", "", "c"]).map(move |(index, body)| (place(index), body.to_owned()))
        };
        assert!(contents(&soft).into_iter().eq(expected(|index| Place::Soft(5 + u64::from(index)))));
        let ordered = ordered.expect("it has updates");
        assert!(contents(&ordered).into_iter().eq(expected(|index| Place::Ordered(Position(9), index))));
    }

    #[test]
    fn reading_a_pack_stops_before_an_incomplete_update() {
        let whole = pack(&["ab", "cd"]);
        for end in 0..=12 {
            let (read, is_whole) = Pack::read(whole.bytes().slice(..end));
            assert_eq!(read.map_or(0, |read| read.count()), end as u32 / 6, "{end}");
            assert_eq!(is_whole, end.is_multiple_of(6), "{end}");
        }
    }

    #[test]
    fn bytes_that_are_no_pack_are_refused() {
        let whole = pack(&["ab", "cd"]);
        for end in 0..=12 {
            let mut bytes = BytesMut::new();
            put_bytes(&mut bytes, &whole.bytes()[..end]);
            let taken = Pack::decode(&mut bytes.freeze());
            assert_eq!(taken.is_ok(), end == 6 || end == 12, "{end}");
        }
    }

    #[test]
    fn a_pack_writer_reports_whether_an_update_fits() {
        let mut writer = PackWriter::default();
        assert!(writer.fits(b"ab", 6) && !writer.fits(b"ab", 5));
        writer.push(b"ab");
        assert!(writer.fits(b"", 10) && !writer.fits(b"c", 10));
        assert!(PackWriter::default().finish().is_none());
    }
}
