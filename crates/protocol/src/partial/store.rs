//! The entries of a map at one cell, packed: one allocation for each token, and a hash tree over all entries.
//!
//! A token usually has one key. Its record is a run of bytes: the lengths of key and entry, the key, and the
//! entry in its wire form. So a key costs some ninety bytes in addition to itself and its value, and a value
//! does not keep the network buffer alive in which it arrived. Keys that share a token share an allocation:
//! their records follow each other, in the order of the keys.

use std::{
    collections::{BTreeMap, btree_map::Entry as Slot},
    ops::{Bound, Range},
};

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{
    entry::Entry,
    token::{Arc, Token},
    tree::{Sum, Tree, print},
};
use crate::wire::Wire as _;

/// The entries of a map.
#[derive(Debug)]
pub(super) struct Store {
    places: BTreeMap<Token, Box<[u8]>>,
    count: usize,
    tree: Tree,
    /// The buffer in which the records of one token (a place) are put together. Empty between updates.
    packed: BytesMut,
}

/// A key and its entry, in packed form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed<'a> {
    pub(super) token: Token,
    pub(super) key: &'a [u8],
    entry: &'a [u8],
}

/// Approximate memory of a place (the records of one token) in addition to the records, in bytes: a slot of
/// the ordered map, two thirds full, and the allocator's overhead.
const PLACE_BYTES: usize = 56;
/// The largest capacity of the buffer that is kept between updates, in bytes.
const PACKED_BYTES_KEPT: usize = 64 << 10;
/// Size of the two lengths at the head of a record, in bytes.
const HEAD_BYTES: usize = 8;

impl Packed<'_> {
    /// Returns a copy of the key.
    pub(super) fn key(&self) -> Bytes {
        Bytes::copy_from_slice(self.key)
    }

    /// Returns the decoded entry, in memory of its own.
    pub(super) fn entry(&self) -> Entry {
        Entry::decode(&mut Bytes::copy_from_slice(self.entry)).expect("the entry was packed by this store")
    }

    fn print(&self) -> u64 {
        print(self.token, &self.entry())
    }
}

impl Store {
    pub(super) fn new() -> Store {
        Store { places: BTreeMap::new(), count: 0, tree: Tree::new(), packed: BytesMut::new() }
    }

    /// Returns the approximate memory of an entry with its key, in bytes.
    pub(super) fn bytes(key: &[u8], entry: &Entry) -> usize {
        PLACE_BYTES + HEAD_BYTES + key.len() + entry.wire_bytes()
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the entry of a key.
    pub(super) fn entry(&self, token: Token, key: &[u8]) -> Option<Entry> {
        let place = self.places.get(&token)?;
        records(token, place).find(|it| it.key == key).map(|it| it.entry())
    }

    /// Changes the entry of a key by `work`. `work` gets the entry, which is empty for a key that was never
    /// written, and the bytes of the other keys at this token. If `work` returns an entry, that entry
    /// replaces the old one, and an empty entry removes the key. If `work` returns `None`, nothing changes.
    pub(super) fn update<T>(
        &mut self,
        token: Token,
        key: &[u8],
        work: impl FnOnce(Entry, usize) -> (Option<Entry>, T),
    ) -> T {
        let Store { places, tree, packed, count } = self;
        let slot = places.entry(token);
        let place: &[u8] = if let Slot::Occupied(slot) = &slot { slot.get() } else { &[] };
        let (at, present) = find(token, place, key);
        let before = present.map(|it| it.entry());
        let print_before = before.as_ref().map(|before| print(token, before));
        let (after, outcome) = work(before.unwrap_or_default(), place.len() - at.len());
        let Some(after) = after else { return outcome };
        let print_after = (after != Entry::nothing()).then(|| print(token, &after));
        packed.put_slice(&place[..at.start]);
        if print_after.is_some() {
            pack(key, &after, packed);
        }
        packed.put_slice(&place[at.end..]);
        match slot {
            Slot::Occupied(slot) if packed.is_empty() => {
                slot.remove();
            }
            Slot::Occupied(mut slot) if slot.get().len() == packed.len() => {
                slot.get_mut().copy_from_slice(packed)
            }
            Slot::Occupied(mut slot) => *slot.get_mut() = packed[..].into(),
            Slot::Vacant(_) if packed.is_empty() => {}
            Slot::Vacant(slot) => {
                slot.insert(packed[..].into());
            }
        }
        packed.clear();
        if packed.capacity() > PACKED_BYTES_KEPT {
            *packed = BytesMut::new();
        }
        *count = *count + usize::from(print_after.is_some()) - usize::from(print_before.is_some());
        if print_before.is_some() || print_after.is_some() {
            tree.change(token, print_before, print_after, |arc| prints(places, arc));
        }
        outcome
    }

    /// Returns the keys of an arc, in the order of their tokens.
    pub(super) fn range(&self, arc: Arc) -> impl Iterator<Item = Packed<'_>> {
        range(&self.places, arc)
    }

    /// Returns the keys behind `behind`, in the order of their tokens. With `None`, returns all keys.
    pub(super) fn behind<'a>(
        &'a self,
        behind: Option<(Token, &'a [u8])>,
    ) -> impl Iterator<Item = Packed<'a>> {
        let from = behind.map_or(Bound::Unbounded, |(token, _)| Bound::Included(token));
        let places = self.places.range((from, Bound::Unbounded));
        let packed = places.flat_map(|(token, place)| records(*token, place));
        packed.skip_while(move |it| behind.is_some_and(|behind| (it.token, it.key) <= behind))
    }

    /// Returns the number and the hash of an arc's entries.
    pub(super) fn sum(&self, arc: Arc) -> Sum {
        self.tree.sum(arc, &|arc| prints(&self.places, arc))
    }
}

fn range(places: &BTreeMap<Token, Box<[u8]>>, arc: Arc) -> impl Iterator<Item = Packed<'_>> {
    places.range(arc.first..=arc.last).flat_map(|(token, place)| records(*token, place))
}

fn prints(places: &BTreeMap<Token, Box<[u8]>>, arc: Arc) -> impl Iterator<Item = (Token, u64)> {
    range(places, arc).map(|it| (it.token, it.print()))
}

/// Iterates over the records of a place, in the order of their keys.
fn records(token: Token, mut place: &[u8]) -> impl Iterator<Item = Packed<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = place.split_first_chunk::<HEAD_BYTES>()?;
        let (key_bytes, entry_bytes) = lengths(head);
        let (key, rest) = rest.split_at(key_bytes);
        let (entry, rest) = rest.split_at(entry_bytes);
        place = rest;
        Some(Packed { token, key, entry })
    })
}

/// Finds the record of a key in a place. Returns the record's range and the record. If the key has no record,
/// the range is empty and lies at the place where a record would be inserted.
fn find<'a>(token: Token, place: &'a [u8], key: &[u8]) -> (Range<usize>, Option<Packed<'a>>) {
    let mut at = 0;
    for record in records(token, place) {
        let end = at + HEAD_BYTES + record.key.len() + record.entry.len();
        if record.key == key {
            return (at..end, Some(record));
        }
        if record.key > key {
            break;
        }
        at = end;
    }
    (at..at, None)
}

fn pack(key: &[u8], entry: &Entry, out: &mut BytesMut) {
    let length = |bytes: usize| u32::try_from(bytes).expect("entries are bounded far below 4 GiB");
    out.put_u32_le(length(key.len()));
    out.put_u32_le(length(entry.wire_bytes()));
    out.put_slice(key);
    entry.encode(out);
}

fn lengths(head: &[u8; HEAD_BYTES]) -> (usize, usize) {
    let [a, b, c, d, e, f, g, h] = *head;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{id::CellNumber, stamp::Stamp},
        *,
    };

    fn string(time: u64) -> Entry {
        let stamp = Stamp { time, cell: CellNumber(1) };
        Entry::whole(stamp, Some(Bytes::from(vec![b'v'; time as usize % 40])), None)
    }

    /// After any sequence of updates the store equals a plain ordered map, also when keys share tokens.
    #[test]
    fn the_store_is_as_a_plain_map() {
        let (mut store, mut twin, mut chance) = (Store::new(), BTreeMap::new(), 3u64);
        for step in 1..8_000u64 {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (token, name) = (Token(chance >> 33 & 0xff), chance >> 45 & 3);
            let key = vec![b'k'; name as usize];
            let before = twin.get(&(token, key.clone())).cloned();
            assert_eq!(store.entry(token, &key), before);
            let after = match step % 4 {
                0 => Some(Entry::nothing()),
                1 => None,
                _ => Some(string(step)),
            };
            store.update(token, &key, |present, _| {
                assert_eq!(present, before.unwrap_or_default());
                (after.clone(), ())
            });
            match after {
                None => {}
                Some(entry) if entry == Entry::nothing() => {
                    twin.remove(&(token, key));
                }
                Some(entry) => {
                    twin.insert((token, key), entry);
                }
            }
            assert_eq!(store.len(), twin.len());
            if step % 50 == 0 {
                let is = |packed: Packed<'_>| ((packed.token, packed.key.to_vec()), packed.entry());
                let all: Vec<_> = store.range(Arc::WHOLE).map(is).collect();
                let plain: Vec<_> = twin.iter().map(|(at, entry)| (at.clone(), entry.clone())).collect();
                assert_eq!(all, plain);
                let sum =
                    twin.iter().fold(0u64, |sum, ((token, _), entry)| sum.wrapping_add(print(*token, entry)));
                assert_eq!(
                    (store.sum(Arc::WHOLE).count as usize, store.sum(Arc::WHOLE).print),
                    (twin.len(), sum)
                );
                let behind = (token, &b"kk"[..]);
                let rest: Vec<_> = store.behind(Some(behind)).map(is).collect();
                let plain: Vec<_> =
                    plain.into_iter().filter(|((at, key), _)| (*at, &key[..]) > behind).collect();
                assert_eq!(rest, plain);
            }
        }
        assert!(store.places.len() < twin.len(), "no keys shared a token");
    }

    #[test]
    fn the_length_of_an_entry_is_that_of_its_bytes() {
        let stamp = Stamp { time: 9, cell: CellNumber(1) };
        let field = (Bytes::from_static(b"name"), Some(Bytes::from_static(b"value")));
        let expiring = Entry::whole(stamp, Some(Bytes::from_static(b"text")), Some(7));
        for entry in [Entry::nothing(), string(9), expiring, Entry::of_fields(stamp, [field])] {
            let mut out = BytesMut::new();
            entry.encode(&mut out);
            assert_eq!(out.len(), entry.wire_bytes());
        }
    }
}
