//! The entries of a map at one cell, packed: one allocation for each token, and a hash tree over all of them.
//!
//! A place on the ring has, as a rule, one key. Its record is a run of bytes: the lengths of key and entry, the key, and the entry in
//! the form in which it travels. So a key costs some ninety bytes beside itself and its value, and a value does not keep the
//! buffer alive in which it came over the network. Keys that share a token share a place: their records stand behind
//! each other, in the order of the keys.

use std::{
    collections::{BTreeMap, btree_map::Entry as Slot},
    ops::{Bound, Range},
};

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{
    entry::Entry,
    ring::Token,
    tree::{Arc, Sum, Tree, print},
};
use crate::wire::Wire as _;

/// The entries of a map.
#[derive(Debug)]
pub(super) struct Store {
    places: BTreeMap<Token, Box<[u8]>>,
    count: usize,
    tree: Tree,
    /// A place that is put together; empty in between.
    packed: BytesMut,
}

/// A key and its entry, as they are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed<'a> {
    pub(super) token: Token,
    pub(super) key: &'a [u8],
    entry: &'a [u8],
}

/// The memory of a place beside its record, about: a slot of the ordered map, two thirds full, and what the allocator adds.
const PLACE_BYTES: usize = 56;
/// The memory for putting a place together is given back if it is larger.
const PACKED_BYTES_KEPT: usize = 64 << 10;
/// Both lengths.
const HEAD_BYTES: usize = 8;

impl Packed<'_> {
    /// The key, in memory of its own.
    pub(super) fn key(&self) -> Bytes {
        Bytes::copy_from_slice(self.key)
    }

    /// The entry, in memory of its own.
    pub(super) fn entry(&self) -> Entry {
        Entry::decode(&mut Bytes::copy_from_slice(self.entry)).expect("it was packed here")
    }

    fn print(&self) -> u64 {
        print(self.token, &self.entry())
    }
}

impl Store {
    pub(super) fn new() -> Store {
        Store { places: BTreeMap::new(), count: 0, tree: Tree::new(), packed: BytesMut::new() }
    }

    /// How many bytes of memory an entry takes with its key, about.
    pub(super) fn bytes(key: &[u8], entry: &Entry) -> usize {
        PLACE_BYTES + HEAD_BYTES + key.len() + entry.wire_bytes()
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The entry of a key.
    pub(super) fn entry(&self, token: Token, key: &[u8]) -> Option<Entry> {
        let place = self.places.get(&token)?;
        records(token, place).find(|it| it.key == key).map(|it| it.entry())
    }

    /// Works on the entry of a key, and on the bytes that other keys at this token take; one that was never written is nothing. The
    /// entry that comes back takes its place, or nothing does; with none it stays as it was.
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
        let (after, told) = work(before.unwrap_or_default(), place.len() - at.len());
        let Some(after) = after else { return told };
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
        told
    }

    /// The keys of an arc, in the order of their tokens.
    pub(super) fn range(&self, arc: Arc) -> impl Iterator<Item = Packed<'_>> {
        range(&self.places, arc)
    }

    /// The keys behind one, in the order of their tokens; from the first on, if there is none.
    pub(super) fn behind<'a>(
        &'a self,
        behind: Option<(Token, &'a [u8])>,
    ) -> impl Iterator<Item = Packed<'a>> {
        let from = behind.map_or(Bound::Unbounded, |(token, _)| Bound::Included(token));
        let places = self.places.range((from, Bound::Unbounded));
        let packed = places.flat_map(|(token, place)| records(*token, place));
        packed.skip_while(move |it| behind.is_some_and(|behind| (it.token, it.key) <= behind))
    }

    /// The content of an arc.
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

/// The records of a place, in the order of their keys.
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

/// Where in a place the record of a key is, or would be; and the record.
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
        super::{clock::Stamp, layout::CellNumber},
        *,
    };

    fn string(time: u64) -> Entry {
        let stamp = Stamp { time, cell: CellNumber(1) };
        Entry::whole(stamp, Some(Bytes::from(vec![b'v'; time as usize % 40])), None)
    }

    /// Whatever was put in and taken out, the store has what a plain ordered map has: keys that share tokens, too.
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
