//! A replica: the entries of one cell, and its answers.
//!
//! **Limits.** A client cannot make a replica keep more than its [`Limits`]. Three kinds of writes have three
//! bounds:
//!
//! | write | an entry, with all keys of its token | the whole store |
//! |---|---|---|
//! | of a client, with a value | `entry_bytes_max` | `store_bytes_max` |
//! | of a client, deletes only | `entry_bytes_spare` more | `store_bytes_spare` more |
//! | a copy: repair, arrival, a read that brings a quorum up to date | `place_bytes_max` | none |
//!
//! A replica always takes a write that makes nothing larger. So a delete of a key that takes more memory than
//! its tombstone never fails, and a client can make room in a full replica.
//!
//! - *Deletes have a bound* because a delete of a key that never existed leaves a tombstone. The tombstone
//!   stays as long as any cell is away ([`horizon`](super::horizon)). A client that reads first, at quorum
//!   levels, need not delete a key that it did not find.
//! - *Copies pass the limits of clients* because another replica has accepted them. Whether a write fits
//!   depends on the order in which writes arrive. If a replica refused an entry that another replica has, the
//!   two would differ for ever. Then no round of comparing would be complete, and no tombstone of any map
//!   would be forgotten. A copy brings no more than the replicas of its key have accepted from clients.
//! - *Every entry fits into a message.* With n copies in the map, clients' writes may fill only one n-th of
//!   `place_bytes_max` at each replica. So the content that all replicas of a key have accepted fits together
//!   into `place_bytes_max`. The sum can be larger only if cells are replaced again and again while clients
//!   write to the arriving cells. Then the replica refuses the copy and counts the refusal, and a delete of
//!   the key makes room everywhere.
//!
//! **Rejected: many tombstones of fields as one tombstone of the key.** A delete of the key with the highest
//! of their stamps would cover fields that this replica has not seen. Such a field may be acknowledged at the
//! other replicas. Only the horizon says that a replica has seen every field below a stamp, and content that
//! the horizon of all cells covers is forgotten anyway.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    clock::Clock,
    compare::{ArcContent, Item},
    entry::{Entry, Kind},
    horizon::Horizon,
    id::MapId,
    journal::Record,
    layout::Layout,
    message::{Answer, Demand, Listed, ReplicaRefusal, Request},
    stamp::Stamp,
    store::Store,
    token::{Arc, Token},
    tree::{Sum, print},
};
use crate::time::Time;

/// The limits of a replica's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of an entry in bytes, and of the entries of all keys that share a token, because such
    /// keys are sent together.
    pub entry_bytes_max: usize,
    /// Maximum size of all entries together that clients' writes may reach, in bytes.
    pub store_bytes_max: usize,
    /// Number of bytes that clients' deletes may add to an entry beyond `entry_bytes_max`.
    pub entry_bytes_spare: usize,
    /// Number of bytes that clients' deletes may add to all entries beyond `store_bytes_max`.
    pub store_bytes_spare: usize,
    /// Maximum size of the entries of one token after a copy, in bytes. A message carries as many bytes, and
    /// 512 KiB more.
    pub place_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            entry_bytes_max: 8 << 20,
            store_bytes_max: 1 << 30,
            entry_bytes_spare: 8 << 20,
            store_bytes_spare: 128 << 20,
            place_bytes_max: 60 << 20,
        }
    }
}

/// The way in which a write reached a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteSource {
    /// The coordinator of a client's write sent the copy. `copies` is the map's number of copies. The copy
    /// may come late.
    Client { copies: usize },
    /// Another cell sent the copy without a request. The copy may come late.
    Unrequested,
    /// This cell requested the copy when it compared.
    Compared,
    /// This cell requested the copy for its arrival.
    Arrival,
}

impl Limits {
    /// Returns the maximum sizes after a write that came in this way, in bytes: of the entries of its token,
    /// and of all entries.
    fn of(&self, way: WriteSource, is_delete: bool) -> (usize, usize) {
        let WriteSource::Client { copies } = way else { return (self.place_bytes_max, usize::MAX) };
        let spare = |spare: usize| if is_delete { spare } else { 0 };
        let entry = self.entry_bytes_max.saturating_add(spare(self.entry_bytes_spare));
        let store = self.store_bytes_max.saturating_add(spare(self.store_bytes_spare));
        (entry.min(self.place_bytes_max / copies.max(1)), store)
    }
}

/// Counters of a replica's refusals, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RefusalCounters {
    /// Requests with another layout version, or for a map that does not exist.
    pub layout: u64,
    /// Writes with stamps too far ahead of the wall clock.
    pub skewed: u64,
    /// Writes that would make an entry too large.
    pub too_large: u64,
    /// Writes for which the store had no room.
    pub full: u64,
}

/// The entries that a cell keeps.
#[derive(Debug)]
pub struct MapsReplica {
    limits: Limits,
    maps: BTreeMap<MapId, Store>,
    bytes: usize,
    refused: RefusalCounters,
    /// The horizon that the replica has reached: it has all writes that this horizon covers, and ignores
    /// later copies of them.
    horizon: Horizon,
    /// The place of the last step of the search for values that can be forgotten. `None` at the beginning of
    /// a pass.
    swept: Option<(MapId, Token, Bytes)>,
    forgotten: u64,
    /// The changes that are not written to the disk yet. `None` for a cell without a disk.
    changes: Option<Vec<Record>>,
}

impl MapsReplica {
    /// Returns a replica that keeps nothing yet.
    pub fn new(limits: Limits) -> MapsReplica {
        assert!(limits.place_bytes_max < u32::MAX as usize, "the limit of an entry's size fits into 32 bits");
        MapsReplica {
            limits,
            maps: BTreeMap::new(),
            bytes: 0,
            refused: RefusalCounters::default(),
            horizon: Horizon::default(),
            swept: None,
            forgotten: 0,
            changes: None,
        }
    }

    /// Collects changes for the disk from now on.
    pub(super) fn persist(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// Returns the changes to be written to the disk, in order.
    pub(super) fn take_changes(&mut self) -> Vec<Record> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Executes a recorded change of a key's entry again. The limits and the horizon were checked before the
    /// change was recorded.
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

    /// Replaces a stretch of a map by a recorded stretch, which goes from behind a key to the last recorded
    /// key, or to the end of the map.
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

    /// Returns the next stretch of entries for a checkpoint: the entries of map `from` behind a key, or of
    /// the next existing map. Returns `None` if there are no further maps.
    pub(super) fn stretch(&self, from: MapId, behind: Option<Bytes>) -> Option<EntryRun> {
        let map = *self.maps.range(from..).next()?.0;
        let behind = behind.filter(|_| map == from);
        let (entries, next) = self.copy(map, behind.as_ref(), |_| true);
        Some(EntryRun { map, behind, entries, next })
    }

    /// Raises the horizon to `horizon`, which the replica has reached. From now on the replica ignores copies
    /// of writes that the horizon covers.
    pub(super) fn reach(&mut self, horizon: Horizon) {
        self.horizon = horizon;
    }

    /// Returns how many deleted or expired values were forgotten.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Returns the number of keys that have an entry, including deleted keys.
    pub fn keys(&self) -> usize {
        self.maps.values().map(Store::len).sum()
    }

    /// Returns a hash of the keys and their stamps. Replicas of the same keys that have the same writes have
    /// the same hash.
    pub fn print(&self) -> u64 {
        let of =
            |(map, kept): (&MapId, &Store)| kept.sum(Arc::WHOLE).print.wrapping_mul(2 * u64::from(map.0) + 1);
        self.maps.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// Returns the approximate memory of the replica's keys and entries, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the replica's refusals so far.
    pub fn refused(&self) -> RefusalCounters {
        self.refused
    }

    /// Returns the entry of a key.
    pub fn entry(&self, map: MapId, key: &[u8]) -> Option<Entry> {
        self.maps.get(&map)?.entry(Token::of(map, key), key)
    }

    /// Adopts a changed layout: drops the maps that the layout does not have.
    pub fn adopt(&mut self, layout: &Layout) {
        let dropped: Vec<_> = self.maps.keys().copied().filter(|map| layout.map(*map).is_none()).collect();
        for map in dropped {
            let kept = self.maps.remove(&map).expect("the map's id was just taken from the keys");
            self.bytes -= kept.range(Arc::WHOLE).map(|it| Store::bytes(it.key, &it.entry())).sum::<usize>();
        }
    }

    /// Answers a coordinator's request.
    pub fn answer(&mut self, request: Request, layout: &Layout, clock: &mut Clock, now: Time) -> Answer {
        if request.layout != layout.version() || layout.map(request.map).is_none() {
            self.refused.layout += 1;
            return Answer::Refused(ReplicaRefusal::Layout);
        }
        let held = || self.entry(request.map, &request.key);
        match request.demand {
            Demand::Copy { .. } => {
                unreachable!("a demand for copies is answered by the cell, which knows the owners")
            }
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
            // The clock of a cell's later life may be behind the horizon. But the stamps of that life's
            // writes must be above the stamps of forgotten writes.
            Demand::Ask => {
                let newest = held().map_or(Stamp::ZERO, |held| held.newest());
                Answer::HighestStamp(newest.max(self.horizon.stamp()))
            }
            Demand::Read(most) => {
                let entry = held().unwrap_or_default();
                match u32::try_from(entry.wire_bytes()) {
                    Ok(bytes) if bytes <= most => Answer::Entry(entry),
                    bytes => Answer::Large(bytes.unwrap_or(u32::MAX)),
                }
            }
            Demand::Digest => Answer::Digest(held().unwrap_or_default().digest()),
            Demand::Write(entry) => {
                let copies = layout.map(request.map).map_or(1, |map| map.copies.total());
                self.written(request.map, request.key, (&entry, WriteSource::Client { copies }), clock, now)
            }
            Demand::Repair(entry) => {
                self.written(request.map, request.key, (&entry, WriteSource::Unrequested), clock, now)
            }
        }
    }

    /// Returns some entries of a map whose tokens satisfy `wanted`, from behind a key on. Looks at a bounded
    /// part of the map. Also returns the key at which it looked last, or `None` at the end of the map.
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

    /// Lists some keys of a map behind a token, including deleted ones. Also returns the token up to which
    /// the list is complete, or `None` at the end of the map. Keys of one token stay together.
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
            let print = if entry.has_parts() { print(packed.token, &entry).max(1) } else { 0 };
            let (key, newest, kind) = (packed.key(), entry.newest(), Kind::of(&entry, wall));
            keys.push(Listed { key, newest, kind, print });
        }
        (keys, None)
    }

    fn written(
        &mut self,
        map: MapId,
        key: Bytes,
        write: (&Entry, WriteSource),
        clock: &mut Clock,
        now: Time,
    ) -> Answer {
        match self.write(map, key, write, clock, now) {
            Ok(newer) => Answer::Written { newer },
            Err(refusal) => Answer::Refused(refusal),
        }
    }

    /// Takes a copy of an entry that this cell requested when it compared. Leaves out the writes whose stamps
    /// are too far ahead, and returns the time of the lowest of these stamps.
    pub(super) fn take(
        &mut self,
        map: MapId,
        (key, mut entry): (Bytes, Entry),
        clock: &mut Clock,
        now: Time,
    ) -> Result<Option<u64>, ReplicaRefusal> {
        let left_out = entry.split_off(clock.latest(now)).map(|stamp| stamp.time);
        self.refused.skewed += u64::from(left_out.is_some());
        self.write(map, key, (&entry, WriteSource::Compared), clock, now).map(|_| left_out)
    }

    /// Takes a copy of an entry that this cell requested for its arrival. Takes all writes in it, even writes
    /// with stamps that are too far ahead of the clock.
    pub(super) fn take_all(
        &mut self,
        map: MapId,
        (key, entry): (Bytes, Entry),
        clock: &mut Clock,
        now: Time,
    ) -> Result<(), ReplicaRefusal> {
        self.write(map, key, (&entry, WriteSource::Arrival), clock, now).map(|_| ())
    }

    /// Merges `write` into the key's entry. If the write may be late, ignores tallies that have ended at this
    /// replica. Returns the highest stamp among competing writes if it is above the stamp of `write`, and
    /// else zero.
    fn write(
        &mut self,
        map: MapId,
        key: Bytes,
        (write, way): (&Entry, WriteSource),
        clock: &mut Clock,
        now: Time,
    ) -> Result<Stamp, ReplicaRefusal> {
        let newest = write.newest();
        if clock.admit(newest, now).is_err() && way != WriteSource::Arrival {
            self.refused.skewed += 1;
            return Err(ReplicaRefusal::Skewed);
        }
        let late = matches!(way, WriteSource::Client { .. } | WriteSource::Unrequested);
        let (entry_bytes_max, store_bytes_max) = self.limits.of(way, write.is_delete());
        let (horizon, stored) = (self.horizon, self.bytes);
        let uncovered = (write.oldest().time <= horizon.time).then(|| write.beyond(horizon));
        let write = uncovered.as_ref().unwrap_or(write);
        let kept = self.maps.entry(map).or_insert_with(Store::new);
        let mut running = None;
        let merged = kept.update(Token::of(map, &key), &key, |mut entry, others| {
            let beside = entry.newest_competing(write).max(horizon.stamp());
            let is_new = entry == Entry::nothing();
            let size_before = if is_new { 0 } else { Store::bytes(&key, &entry) };
            if late && write.tallies().next().is_some() {
                running.insert(write.clone()).pass_over_ended(horizon, &entry);
            }
            if !entry.merge(running.as_ref().unwrap_or(write)) {
                return (None, Ok((beside, stored, false)));
            }
            let size = Store::bytes(&key, &entry);
            // A write that makes nothing larger is always taken.
            let grows = size > size_before;
            if grows && others + size > entry_bytes_max {
                return (None, Err(ReplicaRefusal::TooLarge));
            }
            let stored = stored - size_before + size;
            if grows && stored > store_bytes_max {
                return (None, Err(ReplicaRefusal::Full));
            }
            (Some(entry), Ok((beside, stored, true)))
        });
        match merged {
            Ok((beside, stored, changed)) => {
                self.bytes = stored;
                if let Some(changes) = self.changes.as_mut().filter(|_| changed) {
                    // The record leaves out ignored tallies: no horizon would stop them when the record is
                    // executed again.
                    let write = running.unwrap_or_else(|| write.clone());
                    changes.push(Record::Merged { map, key, write });
                }
                Ok(if beside > newest { beside } else { Stamp::ZERO })
            }
            Err(refusal) => {
                self.refused.too_large += u64::from(refusal == ReplicaRefusal::TooLarge);
                self.refused.full += u64::from(refusal == ReplicaRefusal::Full);
                Err(refusal)
            }
        }
    }

    /// Returns the content of an arc of a map: its keys if they are few, and else a hash of each of its
    /// parts.
    fn part(&self, map: MapId, arc: Arc) -> ArcContent {
        let Some(kept) = self.maps.get(&map) else { return ArcContent::Items(Vec::new()) };
        match arc.parts().filter(|_| kept.sum(arc).count > ITEMS_MAX) {
            Some(parts) => ArcContent::Prints(parts.map(|part| part.map_or(0, |part| kept.sum(part).print))),
            None => ArcContent::Items(items(kept, arc)),
        }
    }

    /// Returns the number and the hash of the entries in an arc of a map.
    pub(super) fn sum(&self, map: MapId, arc: Arc) -> Sum {
        self.maps.get(&map).map_or(Sum::default(), |kept| kept.sum(arc))
    }

    /// Returns the tokens of an arc that have entries, each with its content.
    pub(super) fn items(&self, map: MapId, arc: Arc) -> Vec<Item> {
        self.maps.get(&map).map_or(Vec::new(), |kept| items(kept, arc))
    }

    /// Whether a token has exactly one entry, whose base was written after `time`.
    pub(super) fn is_above(&self, map: MapId, token: Token, time: u64) -> bool {
        let Some(kept) = self.maps.get(&map) else { return false };
        let mut entries = kept.range(Arc { first: token, last: token });
        let first = entries.next().is_some_and(|it| it.entry().base().stamp.time > time);
        first && entries.next().is_none()
    }

    /// Returns the entries at some tokens, which are in ascending order. If there are too many entries, also
    /// returns the last key. Keys of one token stay together.
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

    /// Looks at some more entries. Forgets deleted and expired values that the horizons of all cells cover.
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

/// A run of neighbouring entries of a map, for a checkpoint.
pub(super) struct EntryRun {
    pub(super) map: MapId,
    pub(super) behind: Option<Bytes>,
    pub(super) entries: Vec<(Bytes, Entry)>,
    /// The last key, if the map has more entries behind it.
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

/// The seed of a key's hash, which must differ from the hash that gives its token.
const KEY_SEED: u64 = 0x6b65_7973;
/// Maximum number of entries of an arc whose keys are listed instead of hashes.
const ITEMS_MAX: u32 = 4;
/// The number of entries that one sweep looks at.
const SWEEP_LOOKS: usize = 2_048;

/// The approximate bytes of the entries in one answer to a request for a copy.
const COPY_BYTES: usize = 256 << 10;
/// Maximum number of entries that one request for a copy looks at.
const COPY_LOOKS: usize = 4_096;
/// The approximate number of keys in one piece of a scan.
const LIST_KEYS: usize = 512;
