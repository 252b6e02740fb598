//! The entry of a key, and how two copies of it are merged.
//!
//! An entry is a *base*, the last write of the whole key, and the fields written since. A write of the whole
//! key (a string, a delete) replaces every field with a lower stamp. So each field is a register, whose
//! writes are the writes of the field and the writes of the whole key. The write with the highest stamp wins,
//! at any replica and in any order of arrival.
//!
//! A counter is a base of digits, or no base, and [tallies](Tally): sums of the increments since
//! ([`counter`](super::counter)). The stamp of a tally's first increment names the tally. A tally counts only
//! if that stamp is above the base, as for a field. A *sole* tally replaces the earlier tallies of its cell
//! that are as firm.
//!
//! Merging is idempotent, commutative and associative: replicas that have the same writes have the same
//! entry.
//!
//! **Why only a write of a value sets when it expires.** The write that sets a register's value also sets the
//! time at which the value expires. No later write changes that time. To make an existing value expire
//! (`EXPIRE`), a coordinator would have to read the value and write it again, and so undo a write that came
//! in between. The alternative is to store the time apart from the value, with the stamp of the write that it
//! concerns. That would be sound for a string: the write with that stamp either is the base at a replica, or
//! is gone. A hash, and a counter that nobody has `SET`, have no such write. Their base is the deletion
//! before their first field or increment, or nothing at all. Cells forget that deletion (`horizon`), one cell
//! sooner than another, so replicas would disagree about the stamp. So a map of partial quorums refuses
//! `EXPIRE`, whatever the kind of the key.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    counter::{TALLY_BYTES, Tally, integer, is_merged_into, put_tally, take_tally},
    horizon::Horizon,
    stamp::{Stamp, put_stamp, take_stamp},
};
use crate::wire::{Wire, WireError, put_bytes, take_bytes, take_count, take_u8, take_u64};

/// One write of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Register {
    /// The write's place among the writes of its key or field.
    pub stamp: Stamp,
    /// The value. `None` if it was deleted or never written.
    pub value: Option<Bytes>,
    /// The wall clock at which the value expires, in nanoseconds. `None` if it never does.
    pub expires: Option<u64>,
}

impl Register {
    /// Returns the value, unless it has expired at this instant of the wall clock, in nanoseconds.
    pub fn live(&self, wall: u64) -> Option<&Bytes> {
        self.value.as_ref().filter(|_| self.expires.is_none_or(|expires| wall < expires))
    }

    /// Takes `other` if it is newer. Honest cells never give one stamp to two writes. If a cell does, all
    /// replicas still choose the same write.
    fn merge(&mut self, other: &Register) -> bool {
        let newer = *other > *self;
        if newer {
            self.clone_from(other);
        }
        newer
    }

    /// Whether the register's value is gone for every cell: all cells have the write, and the value was
    /// deleted, or has expired by every cell's clock.
    fn is_past(&self, common: Horizon) -> bool {
        self.stamp > Stamp::ZERO && common.covers(self.stamp) && self.live(common.time).is_none()
    }

    fn wire_bytes(&self) -> usize {
        let expires = self.expires.map_or(0, |_| size_of::<u64>());
        REGISTER_BYTES_LEAST + expires + self.value.as_ref().map_or(0, |value| LENGTH_BYTES + value.len())
    }

    fn bytes(&self) -> usize {
        REGISTER_BYTES + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// The memory of a register in addition to its value, in bytes.
const REGISTER_BYTES: usize = size_of::<Register>();

/// All that a replica knows of a key.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Entry {
    /// The last write of the whole key.
    base: Register,
    /// The writes since the base, each with a higher stamp. Boxed because most keys have no such writes.
    since: Option<Box<EntryParts>>,
}

/// The writes since the last write of the whole key. At least one of the two maps has content.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct EntryParts {
    fields: BTreeMap<Bytes, Register>,
    /// Tallies by the stamps of their first increments.
    tallies: BTreeMap<Stamp, Tally>,
}

impl EntryParts {
    fn boxed(self) -> Option<Box<EntryParts>> {
        (!self.fields.is_empty() || !self.tallies.is_empty()).then(|| Box::new(self))
    }
}

/// The answer to a digest request. Two entries with the same digest count as equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Digest {
    /// The highest stamp in the entry.
    pub newest: Stamp,
    /// A hash of the entry's bytes.
    pub print: u64,
}

impl Entry {
    /// Returns the entry of a key that was never written.
    pub fn nothing() -> Entry {
        Entry::default()
    }

    /// Returns a write of a whole key: a string, or a delete if `value` is `None`.
    pub fn whole(stamp: Stamp, value: Option<Bytes>, expires: Option<u64>) -> Entry {
        Entry { base: Register { stamp, value, expires }, since: None }
    }

    /// Returns a write of fields. A field without a value is deleted.
    pub fn of_fields(stamp: Stamp, fields: impl IntoIterator<Item = (Bytes, Option<Bytes>)>) -> Entry {
        let register = |value| Register { stamp, value, expires: None };
        let fields = fields.into_iter().map(|(name, value)| (name, register(value))).collect();
        let since = EntryParts { fields, tallies: BTreeMap::new() }.boxed();
        Entry { base: Register::default(), since }
    }

    /// Returns a write of the tally of a counter that began with this stamp.
    pub fn of_tally(begun: Stamp, tally: Tally) -> Entry {
        let since = EntryParts { fields: BTreeMap::new(), tallies: BTreeMap::from([(begun, tally)]) }.boxed();
        Entry { base: Register::default(), since }
    }

    /// Returns the last write of the whole key.
    pub fn base(&self) -> &Register {
        &self.base
    }

    /// Returns the fields written since the base, including deleted ones, in order of their names.
    pub fn fields(&self) -> impl Iterator<Item = (&Bytes, &Register)> {
        self.since.iter().flat_map(|since| since.fields.iter())
    }

    /// Returns the tallies of a counter, in order of the stamps of their first increments.
    pub fn tallies(&self) -> impl DoubleEndedIterator<Item = (Stamp, Tally)> {
        self.since.iter().flat_map(|since| since.tallies.iter()).map(|(begun, tally)| (*begun, *tally))
    }

    /// Returns the tally that began with this stamp.
    pub(super) fn tally(&self, begun: Stamp) -> Option<Tally> {
        self.since.as_ref()?.tallies.get(&begun).copied()
    }

    /// Keeps only the fields and tallies for which these predicates hold.
    fn retain(
        &mut self,
        mut fields: impl FnMut(&Register) -> bool,
        mut tallies: impl FnMut(Stamp, Tally) -> bool,
    ) {
        let Some(since) = &mut self.since else { return };
        since.fields.retain(|_, register| fields(register));
        since.tallies.retain(|begun, tally| tallies(*begun, *tally));
        if since.fields.is_empty() && since.tallies.is_empty() {
            self.since = None;
        }
    }

    /// Takes all writes of `other` that are newer. Returns whether anything changed.
    pub fn merge(&mut self, other: &Entry) -> bool {
        let mut changed = self.base.merge(&other.base);
        let base = self.base.stamp;
        if changed {
            self.retain(|register| register.stamp > base, |begun, _| begun > base);
        }
        for (name, register) in other.fields().filter(|(_, register)| register.stamp > base) {
            let fields = &mut self.since.get_or_insert_default().fields;
            match fields.get_mut(name) {
                Some(present) => changed |= present.merge(register),
                None => {
                    fields.insert(name.clone(), register.clone());
                    changed = true;
                }
            }
        }
        for (begun, tally) in other.tallies().filter(|(begun, _)| *begun > base) {
            changed |= self.merge_tally(begun, tally);
        }
        changed
    }

    /// Takes a state of a tally, if it is newer and the tally began above the base, unless another tally has
    /// taken that tally in. Returns whether anything changed.
    fn merge_tally(&mut self, begun: Stamp, tally: Tally) -> bool {
        let present = self.tally(begun).unwrap_or_default();
        if tally <= present || self.tallies().any(|other| is_merged_into((begun, tally), other)) {
            return false;
        }
        if tally.sole {
            self.retain(|_| true, |earlier, state| !is_merged_into((earlier, state), (begun, tally)));
        }
        self.since.get_or_insert_default().tallies.insert(begun, tally);
        true
    }

    /// Whether no write in the entry has a value: all writes are deletes.
    pub fn is_delete(&self) -> bool {
        self.base.value.is_none()
            && self.fields().all(|(_, register)| register.value.is_none())
            && self.tallies().next().is_none()
    }

    /// Whether the entry has fields or tallies, including deleted fields. If it has none, its highest stamp
    /// identifies its content.
    pub(super) fn has_parts(&self) -> bool {
        self.since.is_some()
    }

    /// Removes the writes with stamps above `time`, and returns the lowest of these stamps.
    pub(super) fn split_off(&mut self, time: u64) -> Option<Stamp> {
        if self.newest().time <= time {
            return None;
        }
        let is_beyond = |stamp: &Stamp| stamp.time > time;
        let tallies = self.tallies().map(|(_, tally)| tally.stamp);
        let stamps = self.fields().map(|(_, register)| register.stamp).chain(tallies);
        let lowest = stamps.chain([self.base.stamp]).filter(is_beyond).min();
        if is_beyond(&self.base.stamp) {
            self.base = Register::default();
        }
        self.retain(|register| !is_beyond(&register.stamp), |_, tally| !is_beyond(&tally.stamp));
        lowest
    }

    /// Returns the entry's highest stamp.
    pub fn newest(&self) -> Stamp {
        let tallies = self.tallies().map(|(_, tally)| tally.stamp);
        self.fields().map(|(_, register)| register.stamp).chain(tallies).fold(self.base.stamp, Stamp::max)
    }

    /// Returns the entry's lowest stamp, or zero if it has no write.
    pub fn oldest(&self) -> Stamp {
        let tallies = self.tallies().map(|(_, tally)| tally.stamp);
        let stamps = self.fields().map(|(_, register)| register.stamp).chain(tallies);
        let base = Some(self.base.stamp).filter(|stamp| *stamp > Stamp::ZERO);
        stamps.chain(base).min().unwrap_or_default()
    }

    /// Returns the entry's writes that the horizon does not cover. Leaves out the tallies that ended with a
    /// base that expired below the horizon.
    pub(super) fn beyond(&self, horizon: Horizon) -> Entry {
        let mut beyond = self.clone();
        let ends = if beyond.base.is_past(horizon) { beyond.base.expires.unwrap_or(0) } else { 0 };
        if horizon.covers(beyond.base.stamp) {
            beyond.base = Register::default();
        }
        let is_beyond = |stamp: Stamp| !horizon.covers(stamp);
        beyond.retain(
            |register| is_beyond(register.stamp),
            |begun, tally| is_beyond(tally.stamp) && begun.time >= ends,
        );
        beyond
    }

    /// Removes tallies that began below the horizon, unless `held` has them. Such a tally was here once, and
    /// a later write ended it.
    pub(super) fn pass_over_ended(&mut self, horizon: Horizon, held: &Entry) {
        self.retain(|_| true, |begun, _| !horizon.covers(begun) || held.tally(begun).is_some());
    }

    /// Whether the entry has a deleted or expired value that cells may forget, because the horizons of all
    /// cells cover it.
    pub(super) fn is_forgettable(&self, common: Horizon) -> bool {
        let is_past = |register: &Register| register.is_past(common);
        is_past(&self.base) || self.fields().any(|(_, register)| is_past(register))
    }

    /// Removes the values that cells may forget, and returns their number.
    pub(super) fn forget(&mut self, common: Horizon) -> u64 {
        let held = |entry: &Entry| {
            let since = entry.since.as_ref().map_or(0, |since| since.fields.len() + since.tallies.len());
            since + usize::from(entry.base != Register::default())
        };
        let (before, mut ends) = (held(self), 0);
        if self.base.is_past(common) {
            ends = self.base.expires.unwrap_or(0);
            self.base = Register::default();
        }
        self.retain(|register| !register.is_past(common), |begun, _| begun.time >= ends);
        (before - held(self)) as u64
    }

    /// Returns the highest stamp among the writes that compete with `write`. If `write` is of a field, these
    /// are the writes of that field and of the whole key; otherwise all writes.
    pub fn newest_competing(&self, write: &Entry) -> Stamp {
        if write.base.stamp > Stamp::ZERO {
            return self.newest();
        }
        let field = |name| self.since.as_ref().and_then(|since| since.fields.get(name));
        let stamps = write.fields().filter_map(|(name, _)| Some(field(name)?.stamp));
        stamps.fold(self.base.stamp, Stamp::max)
    }

    /// Returns the digest. Except by chance, different entries of a key have different digests.
    pub fn digest(&self) -> Digest {
        if *self == Entry::default() {
            return Digest::default();
        }
        let mut bytes = BytesMut::new();
        self.encode(&mut bytes);
        Digest { newest: self.newest(), print: xxh3_64(&bytes) }
    }

    /// Returns the wall clock at which the entry's string or counter expires. `None` if that never happens or
    /// there is no live value.
    pub fn expires(&self, wall: u64) -> Option<u64> {
        self.base.live(wall).and(self.base.expires)
    }

    /// Whether a tally that began with this stamp would count at this instant of the wall clock. The entry
    /// need not have the tally. The tally counts if, since that stamp, the whole key was not written and its
    /// value did not expire.
    pub(super) fn counts(&self, begun: Stamp, wall: u64) -> bool {
        let ends = self.base.expires.filter(|expires| *expires <= wall).unwrap_or(0);
        begun > self.base.stamp && begun.time >= ends
    }

    /// Returns the count at this instant of the wall clock. A key without a value is zero. Returns `None` if
    /// the value is no number.
    pub(super) fn count(&self, wall: u64) -> Option<i128> {
        let base = self.base.live(wall).map_or(Some(0), |digits| integer(digits))?;
        let tallies = self.tallies().filter(|(begun, _)| self.counts(*begun, wall));
        Some(tallies.fold(i128::from(base), |count, (_, tally)| count + i128::from(tally.sum)))
    }

    /// Returns the value that a user sees at this instant of the wall clock. Live fields hide a string,
    /// because they were written later. A string that is no number hides the increments after it.
    pub fn value(&self, wall: u64) -> Value {
        let live =
            self.fields().filter_map(|(name, register)| Some((name.clone(), register.live(wall)?.clone())));
        let fields: Vec<_> = live.collect();
        match self.base.live(wall) {
            _ if !fields.is_empty() => Value::Hash(fields),
            base => {
                let is_counter = self.tallies().any(|(begun, _)| self.counts(begun, wall));
                let digits = if is_counter { self.count(wall).map(|count| count.to_string()) } else { None };
                let string = digits.map(Bytes::from).or_else(|| base.cloned());
                string.map_or(Value::Nothing, Value::String)
            }
        }
    }

    /// Returns the approximate memory of the entry, in bytes.
    pub fn bytes(&self) -> usize {
        let field =
            |(name, register): (&Bytes, &Register)| size_of::<Bytes>() + name.len() + register.bytes();
        let tallies = self.tallies().count() * size_of::<(Stamp, Tally)>();
        size_of::<Option<Box<()>>>() + self.base.bytes() + self.fields().map(field).sum::<usize>() + tallies
    }
}

impl Entry {
    /// Returns the length of the entry's byte form.
    pub(super) fn wire_bytes(&self) -> usize {
        let field = |(name, register): (&Bytes, &Register)| LENGTH_BYTES + name.len() + register.wire_bytes();
        let tallies = match self.tallies().count() {
            0 => 0,
            count => LENGTH_BYTES + count * TALLY_BYTES,
        };
        self.base.wire_bytes() + LENGTH_BYTES + self.fields().map(field).sum::<usize>() + tallies
    }
}

/// The value that a user sees under a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// No value: the key was never written, was deleted or has expired.
    Nothing,
    /// A string.
    String(Bytes),
    /// Fields and their values, in order of their names.
    Hash(Vec<(Bytes, Bytes)>),
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// No value: it was deleted, or has expired.
    Nothing,
    /// A string.
    String,
    /// Fields.
    Hash,
}

impl Kind {
    /// Returns the kind of an entry's value at this instant of the wall clock.
    pub(super) fn of(entry: &Entry, wall: u64) -> Kind {
        match entry.value(wall) {
            Value::Nothing => Kind::Nothing,
            Value::String(_) => Kind::String,
            Value::Hash(_) => Kind::Hash,
        }
    }
}

const HAS_VALUE: u8 = 1;
const EXPIRES: u8 = 2;
/// The flag of tallies, which follow the fields. Only the base of an entry has this flag.
const HAS_TALLIES: u8 = 4;
/// The bytes of the length before a value, a name or the fields.
const LENGTH_BYTES: usize = size_of::<u32>();
/// Minimum size of a register in bytes: stamp and flags.
const REGISTER_BYTES_LEAST: usize = 13;

impl Register {
    fn put(&self, flags: u8, out: &mut BytesMut) {
        put_stamp(out, self.stamp);
        let value = if self.value.is_some() { HAS_VALUE } else { 0 };
        let expires = if self.expires.is_some() { EXPIRES } else { 0 };
        out.put_u8(value | expires | flags);
        if let Some(expires) = self.expires {
            out.put_u64_le(expires);
        }
        if let Some(value) = &self.value {
            put_bytes(out, value);
        }
    }

    /// Decodes a register. Also returns which of the flags in `more` the register has.
    fn take(more: u8, input: &mut Bytes) -> Result<(Register, u8), WireError> {
        let stamp = take_stamp(input)?;
        let flags = take_u8(input)?;
        if flags & !(HAS_VALUE | EXPIRES | more) != 0 {
            return Err(WireError::Tag(flags));
        }
        let expires = if flags & EXPIRES != 0 { Some(take_u64(input)?) } else { None };
        let value = if flags & HAS_VALUE != 0 { Some(take_bytes(input)?) } else { None };
        Ok((Register { stamp, value, expires }, flags & more))
    }
}

impl Wire for Entry {
    fn encode(&self, out: &mut BytesMut) {
        let count = |count: usize| u32::try_from(count).expect("entries are bounded far below 4 GiB");
        let (fields, tallies) =
            self.since.as_ref().map_or((0, 0), |since| (since.fields.len(), since.tallies.len()));
        self.base.put(if tallies > 0 { HAS_TALLIES } else { 0 }, out);
        out.put_u32_le(count(fields));
        for (name, register) in self.fields() {
            put_bytes(out, name);
            register.put(0, out);
        }
        if tallies > 0 {
            out.put_u32_le(count(tallies));
            self.tallies().for_each(|(begun, tally)| put_tally(out, begun, tally));
        }
    }

    /// Refuses fields and tallies that are not in ascending order or not above the base, and tallies that
    /// another tally has taken in. Otherwise an entry would have several byte forms.
    fn decode(input: &mut Bytes) -> Result<Entry, WireError> {
        let (base, has_tallies) = Register::take(HAS_TALLIES, input)?;
        let count = take_count(input, size_of::<u32>() + REGISTER_BYTES_LEAST)?;
        let mut since = EntryParts::default();
        for _ in 0..count {
            let name = take_bytes(input)?;
            let (register, _) = Register::take(0, input)?;
            let ascends = since.fields.last_key_value().is_none_or(|(last, _)| *last < name);
            if !ascends || register.stamp <= base.stamp {
                return Err(WireError::Body);
            }
            since.fields.insert(name, register);
        }
        if has_tallies != 0 {
            let count = take_count(input, TALLY_BYTES)?;
            for _ in 0..count {
                let (begun, tally) = take_tally(input)?;
                let ascends = since.tallies.last_key_value().is_none_or(|(last, _)| *last < begun);
                let mut before = since.tallies.iter().map(|(begun, tally)| (*begun, *tally));
                let is_rest = tally.sole && before.any(|it| is_merged_into(it, (begun, tally)));
                if !ascends || is_rest || begun <= base.stamp {
                    return Err(WireError::Body);
                }
                since.tallies.insert(begun, tally);
            }
            if since.tallies.is_empty() {
                return Err(WireError::Body);
            }
        }
        Ok(Entry { base, since: since.boxed() })
    }
}

impl Wire for Digest {
    fn encode(&self, out: &mut BytesMut) {
        put_stamp(out, self.newest);
        out.put_u64_le(self.print);
    }

    fn decode(input: &mut Bytes) -> Result<Digest, WireError> {
        Ok(Digest { newest: take_stamp(input)?, print: take_u64(input)? })
    }
}
