//! A replica: the entries of one cell, and its answers.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    clock::{Clock, Stamp},
    compare::{Item, Part},
    entry::{Entry, Value},
    horizon::Horizon,
    journal::Record,
    layout::{Layout, MapId},
    message::{Answer, Demand, Refusal, Request},
    ring::Token,
    scan::{Kind, Listed},
    store::Store,
    tree::{Arc, Sum, print},
};
use crate::time::Time;

/// How much a replica keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// No entry takes more bytes, and neither do the entries of all keys that share a token: such keys travel together.
    pub entry_bytes_max: usize,
    /// All entries together take no more bytes. Deletes are taken beyond it: they are how room is made.
    pub store_bytes_max: usize,
}

/// Refusals of a replica, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Refused {
    /// Requests of another layout.
    pub layout: u64,
    /// Writes with stamps too far ahead.
    pub skewed: u64,
    /// Writes that would make an entry too large.
    pub too_large: u64,
    /// Writes for which there was no memory.
    pub full: u64,
}

/// The entries that a cell keeps.
#[derive(Debug)]
pub struct Replica {
    limits: Limits,
    maps: BTreeMap<MapId, Store>,
    bytes: usize,
    refused: Refused,
    /// Everything that this covers is here; copies of it that come later are passed over.
    horizon: Horizon,
    /// How far the search for what can be forgotten has come.
    swept: Option<(MapId, Token, Bytes)>,
    forgotten: u64,
    /// Of a cell with a disk: its changes that were not written down yet.
    changes: Option<Vec<Record>>,
}

impl Replica {
    /// A replica that keeps nothing yet.
    pub fn new(limits: Limits) -> Replica {
        Replica {
            limits,
            maps: BTreeMap::new(),
            bytes: 0,
            refused: Refused::default(),
            horizon: Horizon::default(),
            swept: None,
            forgotten: 0,
            changes: None,
        }
    }

    /// From now on its changes are to be written down.
    pub(super) fn persist(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// The changes to be written down, in order.
    pub(super) fn take_changes(&mut self) -> Vec<Record> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Changes the entry of a key as it was changed before: limits and horizon have been looked at.
    pub(super) fn restore(&mut self, map: MapId, key: Bytes, change: impl FnOnce(&mut Entry)) {
        let kept = self.maps.entry(map).or_insert_with(Store::new);
        let size = |entry: &Entry| if *entry == Entry::nothing() { 0 } else { Store::bytes(&key, entry) };
        let (before, after) = kept.update(Token::of(map, &key), &key, |mut entry, _| {
            let before = size(&entry);
            change(&mut entry);
            let after = size(&entry);
            (Some(entry), (before, after))
        });
        self.bytes = self.bytes - before + after;
    }

    /// Puts a stretch of a map in the place of what is there, from behind a key to the end of the map or to its own last key.
    pub(super) fn restore_stretch(
        &mut self,
        map: MapId,
        behind: Option<&Bytes>,
        last: bool,
        entries: Vec<(Bytes, Entry)>,
    ) {
        let place = |key: &Bytes| (Token::of(map, key), key.clone());
        let through = if last { None } else { entries.last().map(|(key, _)| place(key)) };
        let from = behind.map(|key| (Token::of(map, key), &key[..]));
        let present = self.maps.get(&map).into_iter().flat_map(|kept| kept.behind(from));
        let present = present.map(|packed| (packed.token, packed.key()));
        let is_within = |at: &(Token, Bytes)| through.as_ref().is_none_or(|through| at <= through);
        let gone: Vec<(Token, Bytes)> = present.take_while(is_within).collect();
        for (_, key) in gone {
            self.restore(map, key, |entry| *entry = Entry::nothing());
        }
        for (key, entry) in entries {
            self.restore(map, key, |present| *present = entry);
        }
    }

    /// A stretch of a map, as it is: from behind a key on, or of the next map that there is. Tells the map, where in it the stretch
    /// begins, and its last key, unless it goes to the end of the map. `None`: there are no further maps.
    pub(super) fn stretch(&self, from: MapId, behind: Option<Bytes>) -> Option<Stretch> {
        let map = *self.maps.range(from..).next()?.0;
        let behind = behind.filter(|_| map == from);
        let (entries, next) = self.copy(map, behind.as_ref(), |_| true);
        Some(Stretch { map, behind, entries, next })
    }

    /// From now on copies of what this covers are passed over: it is all here.
    pub(super) fn reach(&mut self, horizon: Horizon) {
        self.horizon = horizon;
    }

    /// How many entries were forgotten, because they were deleted or had expired.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// How many keys it has an entry of, deleted ones too.
    pub fn keys(&self) -> usize {
        self.maps.values().map(Store::len).sum()
    }

    /// A print of its keys and their stamps: replicas of the same keys that have the same writes have the same one.
    pub fn print(&self) -> u64 {
        let of =
            |(map, kept): (&MapId, &Store)| kept.sum(Arc::WHOLE).print.wrapping_mul(2 * u64::from(map.0) + 1);
        self.maps.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// How many bytes its keys and entries take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its refusals so far.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// The entry of a key.
    pub fn entry(&self, map: MapId, key: &[u8]) -> Option<Entry> {
        self.maps.get(&map)?.entry(Token::of(map, key), key)
    }

    /// The layout changed: maps that were dropped are forgotten.
    pub fn adopt(&mut self, layout: &Layout) {
        let dropped: Vec<_> = self.maps.keys().copied().filter(|map| layout.map(*map).is_none()).collect();
        for map in dropped {
            let kept = self.maps.remove(&map).expect("its key is there");
            self.bytes -= kept.range(Arc::WHOLE).map(|it| Store::bytes(it.key, &it.entry())).sum::<usize>();
        }
    }

    /// Does what a coordinator demands.
    pub fn answer(&mut self, request: Request, layout: &Layout, clock: &mut Clock, now: Time) -> Answer {
        if request.layout != layout.version() || layout.map(request.map).is_none() {
            self.refused.layout += 1;
            return Answer::Refused(Refusal::Layout);
        }
        let held = || self.entry(request.map, &request.key);
        match request.demand {
            Demand::Copy { .. } => unreachable!("the cell, which knows the owners, answers that"),
            Demand::List { behind } => {
                let (keys, through) = self.list(request.map, behind, clock.wall(now));
                Answer::Listed { keys, through }
            }
            Demand::Compare { arcs, .. } => {
                Answer::Compared(arcs.into_iter().map(|arc| self.part(request.map, arc)).collect())
            }
            Demand::Fetch(tokens) => {
                let (entries, next) = self.gather(request.map, &tokens);
                Answer::Copied { entries, next }
            }
            // A later life of a cell may be behind the horizon: it goes above what was forgotten.
            Demand::Ask => {
                let newest = held().map_or(Stamp::ZERO, |held| held.newest());
                Answer::Told(newest.max(self.horizon.stamp()))
            }
            Demand::Read => Answer::Entry(held().unwrap_or_default()),
            Demand::Digest => Answer::Digest(held().unwrap_or_default().digest()),
            Demand::Write(entry) => match self.write(request.map, request.key, (&entry, true), clock, now) {
                Ok(newer) => Answer::Written { newer },
                Err(refusal) => Answer::Refused(refusal),
            },
        }
    }

    /// Some entries of a map, of those that `wanted` holds for: from behind a key on. Looks at a part of the map only; tells the
    /// last key that it looked at, unless it was the map's last.
    pub(super) fn copy(
        &self,
        map: MapId,
        behind: Option<&Bytes>,
        wanted: impl Fn(Token) -> bool,
    ) -> (Vec<(Bytes, Entry)>, Option<Bytes>) {
        let (mut copied, mut bytes) = (Vec::new(), 0);
        let Some(kept) = self.maps.get(&map) else { return (copied, None) };
        let from = behind.map(|key| (Token::of(map, key), &key[..]));
        for (looked, packed) in (1..).zip(kept.behind(from)) {
            if wanted(packed.token) {
                let entry = packed.entry();
                bytes += Store::bytes(packed.key, &entry);
                copied.push((packed.key(), entry));
            }
            if bytes >= COPY_BYTES || looked >= COPY_LOOKS {
                return (copied, Some(packed.key()));
            }
        }
        (copied, None)
    }

    /// Some keys of a map behind a token, deleted ones too, and the token up to which these are all; none: they are the last. Keys
    /// of one token are never parted.
    fn list(&self, map: MapId, behind: Option<Token>, wall: u64) -> (Vec<Listed>, Option<Token>) {
        let from = match behind {
            Some(Token(u64::MAX)) => return (Vec::new(), None),
            Some(Token(token)) => Token(token + 1),
            None => Token(0),
        };
        let (mut keys, mut bytes, mut last) = (Vec::new(), 0, None);
        let arc = Arc { first: from, last: Token(u64::MAX) };
        for packed in self.maps.get(&map).into_iter().flat_map(|kept| kept.range(arc)) {
            if (keys.len() >= LIST_KEYS || bytes >= COPY_BYTES) && last != Some(packed.token) {
                return (keys, last);
            }
            last = Some(packed.token);
            bytes += size_of::<Listed>() + packed.key.len();
            let entry = packed.entry();
            let kind = match entry.value(wall) {
                Value::Nothing => Kind::Nothing,
                Value::String(_) => Kind::String,
                Value::Hash(_) => Kind::Hash,
            };
            keys.push(Listed { key: packed.key(), newest: entry.newest(), kind });
        }
        (keys, None)
    }

    /// Takes a copy of an entry, as a write.
    pub(super) fn take(
        &mut self,
        map: MapId,
        (key, entry): (Bytes, Entry),
        clock: &mut Clock,
        now: Time,
    ) -> Result<(), Refusal> {
        self.write(map, key, (&entry, false), clock, now).map(|_| ())
    }

    /// Merges `write` into what is held; one that may come `late` brings no tallies of counters that have ended here. Returns the highest stamp of what concerns the same and is newer.
    fn write(
        &mut self,
        map: MapId,
        key: Bytes,
        (write, late): (&Entry, bool),
        clock: &mut Clock,
        now: Time,
    ) -> Result<Stamp, Refusal> {
        let newest = write.newest();
        if clock.admit(newest, now).is_err() {
            self.refused.skewed += 1;
            return Err(Refusal::Skewed);
        }
        let (horizon, limits, stored) = (self.horizon, self.limits, self.bytes);
        let uncovered = (write.oldest().time <= horizon.time).then(|| write.beyond(horizon));
        let write = uncovered.as_ref().unwrap_or(write);
        let kept = self.maps.entry(map).or_insert_with(Store::new);
        let mut running = None;
        let merged = kept.update(Token::of(map, &key), &key, |mut entry, others| {
            let beside = entry.newest_beside(write).max(horizon.stamp());
            let is_new = entry == Entry::nothing();
            let size_before = if is_new { 0 } else { Store::bytes(&key, &entry) };
            if late && write.tallies().next().is_some() {
                running.insert(write.clone()).pass_over_ended(horizon, &entry);
            }
            if !entry.merge(running.as_ref().unwrap_or(write)) {
                return (None, Ok((beside, stored, false)));
            }
            let size = Store::bytes(&key, &entry);
            // A write that makes nothing larger is always taken, and so is a delete.
            let grows = size > size_before && !write.is_delete();
            if grows && others + size > limits.entry_bytes_max {
                return (None, Err(Refusal::TooLarge));
            }
            let stored = stored - size_before + size;
            if grows && stored > limits.store_bytes_max {
                return (None, Err(Refusal::Full));
            }
            (Some(entry), Ok((beside, stored, true)))
        });
        match merged {
            Ok((beside, stored, changed)) => {
                self.bytes = stored;
                if let Some(changes) = self.changes.as_mut().filter(|_| changed) {
                    // Tallies that were passed over are none of it: on disk there is no horizon to stop them.
                    let write = running.unwrap_or_else(|| write.clone());
                    changes.push(Record::Merged { map, key, write });
                }
                Ok(if beside > newest { beside } else { Stamp::ZERO })
            }
            Err(refusal) => {
                self.refused.too_large += u64::from(refusal == Refusal::TooLarge);
                self.refused.full += u64::from(refusal == Refusal::Full);
                Err(refusal)
            }
        }
    }

    /// What an arc of a map has: its keys if they are few, else a print of each of its parts.
    fn part(&self, map: MapId, arc: Arc) -> Part {
        let Some(kept) = self.maps.get(&map) else { return Part::Items(Vec::new()) };
        match arc.parts().filter(|_| kept.sum(arc).count > ITEMS_MAX) {
            Some(parts) => Part::Prints(parts.map(|part| part.map_or(0, |part| kept.sum(part).print))),
            None => Part::Items(items(kept, arc)),
        }
    }

    /// What an arc of a map has.
    pub(super) fn sum(&self, map: MapId, arc: Arc) -> Sum {
        self.maps.get(&map).map_or(Sum::default(), |kept| kept.sum(arc))
    }

    /// The tokens of an arc that have entries, and what they have.
    pub(super) fn items(&self, map: MapId, arc: Arc) -> Vec<Item> {
        self.maps.get(&map).map_or(Vec::new(), |kept| items(kept, arc))
    }

    /// Whether the only entry at a token was written whole after this time.
    pub(super) fn is_above(&self, map: MapId, token: Token, time: u64) -> bool {
        let Some(kept) = self.maps.get(&map) else { return false };
        let mut entries = kept.range(Arc { first: token, last: token });
        let first = entries.next().is_some_and(|it| it.entry().base().stamp.time > time);
        first && entries.next().is_none()
    }

    /// The entries at some tokens, which ascend; and the last key, if there were too many. Keys of one token are never parted.
    pub(super) fn gather(&self, map: MapId, tokens: &[Token]) -> (Vec<(Bytes, Entry)>, Option<Bytes>) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let Some(kept) = self.maps.get(&map) else { return (entries, None) };
        for token in tokens {
            if bytes >= COPY_BYTES {
                let last = entries.last().map(|(key, _): &(Bytes, Entry)| key.clone());
                return (entries, last);
            }
            for packed in kept.range(Arc { first: *token, last: *token }) {
                let entry = packed.entry();
                bytes += Store::bytes(packed.key, &entry);
                entries.push((packed.key(), entry));
            }
        }
        (entries, None)
    }

    /// Looks at some more entries, and forgets what was deleted or expired and is covered by the horizons of all cells.
    pub(super) fn sweep(&mut self, common: Horizon) {
        if common.time == 0 {
            return;
        }
        let from = self.swept.take();
        let mut looked = 0;
        let first = from.as_ref().map_or(MapId(0), |(map, ..)| *map);
        for (map, kept) in self.maps.range_mut(first..) {
            let behind = from.as_ref().filter(|(at, ..)| at == map).map(|(_, token, key)| (*token, &key[..]));
            let mut forgettable: Vec<(Token, Bytes)> = Vec::new();
            let mut last = None;
            for packed in kept.behind(behind).take(SWEEP_LOOKS - looked) {
                looked += 1;
                last = Some(packed);
                if packed.entry().is_forgettable(common) {
                    forgettable.push((packed.token, packed.key()));
                }
            }
            self.swept = last.map(|last| (*map, last.token, last.key())).or(self.swept.take());
            for (token, key) in &forgettable {
                kept.update(*token, key, |mut entry, _| {
                    self.bytes -= Store::bytes(key, &entry);
                    self.forgotten += entry.forget(common);
                    self.bytes += if entry == Entry::nothing() { 0 } else { Store::bytes(key, &entry) };
                    (Some(entry), ())
                });
            }
            if let Some(changes) = self.changes.as_mut().filter(|_| !forgettable.is_empty()) {
                let keys = forgettable.into_iter().map(|(_, key)| key).collect();
                changes.push(Record::Forgot { map: *map, common, keys });
            }
            if looked == SWEEP_LOOKS {
                return;
            }
        }
        self.swept = None;
    }
}

/// A stretch of a map.
pub(super) struct Stretch {
    pub(super) map: MapId,
    pub(super) behind: Option<Bytes>,
    pub(super) entries: Vec<(Bytes, Entry)>,
    /// Its last key, behind which the map has more.
    pub(super) next: Option<Bytes>,
}

fn items(kept: &Store, arc: Arc) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for packed in kept.range(arc) {
        let (token, entry) = (packed.token, packed.entry());
        let one = Item {
            token,
            newest: entry.newest().time,
            key: xxh3_64_with_seed(packed.key, KEY_SEED) as u32,
            print: print(token, &entry),
        };
        match items.last_mut().filter(|item| item.token == token) {
            Some(item) => {
                item.newest = item.newest.max(one.newest);
                item.key = item.key.wrapping_add(one.key);
                item.print = item.print.wrapping_add(one.print);
            }
            None => items.push(one),
        }
    }
    items
}

/// Another hash of keys than their token.
const KEY_SEED: u64 = 0x6b65_7973;
/// Of an arc with no more entries the keys are told.
const ITEMS_MAX: u32 = 4;
/// How many entries are looked at in one turn.
const SWEEP_LOOKS: usize = 2_048;

/// One copy has about so many bytes, or looks at so many entries.
const COPY_BYTES: usize = 256 << 10;
const COPY_LOOKS: usize = 4_096;
/// One piece of a scan has about so many keys.
const LIST_KEYS: usize = 512;
