//! The entry of a key, and how two copies of it become one.
//!
//! An entry is a *base*, the last write of the whole key, and the fields written since. A write of the whole key (a string, a
//! delete) replaces every field with a lower stamp. So each field is a register, of which the writes are those of the field
//! and those of the key; the one with the highest stamp wins, wherever and in whatever order they arrive.
//!
//! Merging is idempotent, commutative and associative: replicas that have the same writes have the same entry.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64;

use super::{clock::Stamp, horizon::Horizon, layout::CellNumber};
use crate::wire::{Wire, WireError, need, put_bytes, take_bytes, take_count, take_u8, take_u64};

/// One write of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Register {
    /// Its place among the writes.
    pub stamp: Stamp,
    /// The value; none: it was deleted, or never written.
    pub value: Option<Bytes>,
    /// The wall clock from which on it is as good as deleted, in nanoseconds.
    pub expires: Option<u64>,
}

impl Register {
    /// The value at this instant of the wall clock.
    pub fn live(&self, wall: u64) -> Option<&Bytes> {
        self.value.as_ref().filter(|_| self.expires.is_none_or(|expires| wall < expires))
    }

    /// Takes `other` if it is newer. Of two writes with one stamp, which no honest cells make, all take the same.
    fn merge(&mut self, other: &Register) -> bool {
        let newer = *other > *self;
        if newer {
            self.clone_from(other);
        }
        newer
    }

    /// Whether it has no value, and every cell knows: every clock has come to the end of a value that expires.
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

/// The memory of a register besides its value.
const REGISTER_BYTES: usize = size_of::<Register>();

/// All that is known of a key.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Entry {
    /// The last write of the whole key.
    base: Register,
    /// The fields written since, each above the base. Boxed: most keys have none.
    #[allow(clippy::box_collection)]
    fields: Option<Box<BTreeMap<Bytes, Register>>>,
}

/// The answer to a digest request: entries with the same digest are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Digest {
    /// The highest stamp in the entry.
    pub newest: Stamp,
    /// A hash of its bytes.
    pub print: u64,
}

impl Entry {
    /// A key that was never written.
    pub fn nothing() -> Entry {
        Entry::default()
    }

    /// A write of a whole key: a string, or with no value a delete.
    pub fn whole(stamp: Stamp, value: Option<Bytes>, expires: Option<u64>) -> Entry {
        Entry { base: Register { stamp, value, expires }, fields: None }
    }

    /// A write of fields; one without a value is deleted.
    pub fn of_fields(stamp: Stamp, fields: impl IntoIterator<Item = (Bytes, Option<Bytes>)>) -> Entry {
        let register = |value| Register { stamp, value, expires: None };
        let fields: BTreeMap<_, _> =
            fields.into_iter().map(|(name, value)| (name, register(value))).collect();
        Entry { base: Register::default(), fields: (!fields.is_empty()).then(|| Box::new(fields)) }
    }

    /// The last write of the whole key.
    pub fn base(&self) -> &Register {
        &self.base
    }

    /// The fields written since, deleted ones included, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&Bytes, &Register)> {
        self.fields.iter().flat_map(|fields| fields.iter())
    }

    /// Takes all of `other` that is newer; says whether anything was.
    pub fn merge(&mut self, other: &Entry) -> bool {
        let mut changed = self.base.merge(&other.base);
        let base = self.base.stamp;
        if changed && let Some(fields) = &mut self.fields {
            fields.retain(|_, register| register.stamp > base);
        }
        for (name, register) in other.fields().filter(|(_, register)| register.stamp > base) {
            let fields = self.fields.get_or_insert_default();
            match fields.get_mut(name) {
                Some(present) => changed |= present.merge(register),
                None => {
                    fields.insert(name.clone(), register.clone());
                    changed = true;
                }
            }
        }
        if self.fields.as_ref().is_some_and(|fields| fields.is_empty()) {
            self.fields = None;
        }
        changed
    }

    /// Whether it writes no value at all.
    pub fn is_delete(&self) -> bool {
        self.base.value.is_none() && self.fields().all(|(_, register)| register.value.is_none())
    }

    /// The highest stamp in it.
    pub fn newest(&self) -> Stamp {
        self.fields().map(|(_, register)| register.stamp).fold(self.base.stamp, Stamp::max)
    }

    /// The lowest stamp of a write in it; zero of an entry that has none.
    pub fn oldest(&self) -> Stamp {
        let stamps = self.fields().map(|(_, register)| register.stamp);
        let base = Some(self.base.stamp).filter(|stamp| *stamp > Stamp::ZERO);
        stamps.chain(base).min().unwrap_or_default()
    }

    /// The writes in it that a horizon does not cover.
    pub(super) fn beyond(&self, horizon: Horizon) -> Entry {
        let is_beyond = |register: &Register| !horizon.covers(register.stamp);
        let base = if is_beyond(&self.base) { self.base.clone() } else { Register::default() };
        let fields = self.fields().filter(|(_, register)| is_beyond(register));
        let fields: BTreeMap<_, _> = fields.map(|(name, it)| (name.clone(), it.clone())).collect();
        Entry { base, fields: (!fields.is_empty()).then(|| Box::new(fields)) }
    }

    /// Whether something in it was deleted or expired, and is covered by the horizons of all cells.
    pub(super) fn is_forgettable(&self, common: Horizon) -> bool {
        let is_past = |register: &Register| register.is_past(common);
        is_past(&self.base) || self.fields().any(|(_, register)| is_past(register))
    }

    /// Forgets that, and returns how much it was.
    pub(super) fn forget(&mut self, common: Horizon) -> u64 {
        let mut forgotten = 0;
        if self.base.is_past(common) {
            self.base = Register::default();
            forgotten += 1;
        }
        if let Some(fields) = &mut self.fields {
            let before = fields.len();
            fields.retain(|_, register| !register.is_past(common));
            forgotten += (before - fields.len()) as u64;
        }
        if self.fields.as_ref().is_some_and(|fields| fields.is_empty()) {
            self.fields = None;
        }
        forgotten
    }

    /// The highest stamp in it of a write that concerns what `write` writes: for a field, the writes of this field and of the
    /// key; for a whole key, all.
    pub fn newest_beside(&self, write: &Entry) -> Stamp {
        if write.base.stamp > Stamp::ZERO {
            return self.newest();
        }
        let field = |name| self.fields.as_ref().and_then(|fields| fields.get(name));
        let stamps = write.fields().filter_map(|(name, _)| Some(field(name)?.stamp));
        stamps.fold(self.base.stamp, Stamp::max)
    }

    /// The digest, which tells it from other entries of the key.
    pub fn digest(&self) -> Digest {
        if *self == Entry::default() {
            return Digest::default();
        }
        let mut bytes = BytesMut::new();
        self.encode(&mut bytes);
        Digest { newest: self.newest(), print: xxh3_64(&bytes) }
    }

    /// The value that a user sees at this instant of the wall clock. Live fields hide a string: they were written later.
    pub fn value(&self, wall: u64) -> Value {
        let live =
            self.fields().filter_map(|(name, register)| Some((name.clone(), register.live(wall)?.clone())));
        let fields: Vec<_> = live.collect();
        match self.base.live(wall) {
            _ if !fields.is_empty() => Value::Hash(fields),
            Some(value) => Value::String(value.clone()),
            None => Value::Nothing,
        }
    }

    /// How many bytes of memory it takes, about.
    pub fn bytes(&self) -> usize {
        let field =
            |(name, register): (&Bytes, &Register)| size_of::<Bytes>() + name.len() + register.bytes();
        size_of::<Option<Box<()>>>() + self.base.bytes() + self.fields().map(field).sum::<usize>()
    }
}

impl Entry {
    /// The length of its byte form.
    pub(super) fn wire_bytes(&self) -> usize {
        let field = |(name, register): (&Bytes, &Register)| LENGTH_BYTES + name.len() + register.wire_bytes();
        self.base.wire_bytes() + LENGTH_BYTES + self.fields().map(field).sum::<usize>()
    }
}

/// The value that a user sees under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value: never written, deleted or expired.
    Nothing,
    /// A string.
    String(Bytes),
    /// Fields and their values, in order.
    Hash(Vec<(Bytes, Bytes)>),
}

pub(super) fn put_stamp(out: &mut BytesMut, stamp: Stamp) {
    out.put_u64_le(stamp.time);
    out.put_u32_le(stamp.cell.0);
}

pub(super) fn take_stamp(input: &mut Bytes) -> Result<Stamp, WireError> {
    need(input, 12)?;
    Ok(Stamp { time: input.get_u64_le(), cell: CellNumber(input.get_u32_le()) })
}

const HAS_VALUE: u8 = 1;
const EXPIRES: u8 = 2;
/// Stands before values, names and fields.
const LENGTH_BYTES: usize = size_of::<u32>();
/// A stamp and flags.
const REGISTER_BYTES_LEAST: usize = 13;

impl Wire for Register {
    fn encode(&self, out: &mut BytesMut) {
        put_stamp(out, self.stamp);
        let value = if self.value.is_some() { HAS_VALUE } else { 0 };
        let expires = if self.expires.is_some() { EXPIRES } else { 0 };
        out.put_u8(value | expires);
        if let Some(expires) = self.expires {
            out.put_u64_le(expires);
        }
        if let Some(value) = &self.value {
            put_bytes(out, value);
        }
    }

    fn decode(input: &mut Bytes) -> Result<Register, WireError> {
        let stamp = take_stamp(input)?;
        let flags = take_u8(input)?;
        if flags > HAS_VALUE | EXPIRES {
            return Err(WireError::Tag(flags));
        }
        let expires = if flags & EXPIRES != 0 { Some(take_u64(input)?) } else { None };
        let value = if flags & HAS_VALUE != 0 { Some(take_bytes(input)?) } else { None };
        Ok(Register { stamp, value, expires })
    }
}

impl Wire for Entry {
    fn encode(&self, out: &mut BytesMut) {
        self.base.encode(out);
        let fields = self.fields.as_ref().map_or(0, |fields| fields.len());
        out.put_u32_le(u32::try_from(fields).expect("entries are bounded far below 4 GiB"));
        for (name, register) in self.fields() {
            put_bytes(out, name);
            register.encode(out);
        }
    }

    /// Fields that are not in ascending order, or not above the base, are refused: an entry has one byte form.
    fn decode(input: &mut Bytes) -> Result<Entry, WireError> {
        let base = Register::decode(input)?;
        let count = take_count(input, size_of::<u32>() + REGISTER_BYTES_LEAST)?;
        let mut fields: BTreeMap<Bytes, Register> = BTreeMap::new();
        for _ in 0..count {
            let name = take_bytes(input)?;
            let register = Register::decode(input)?;
            let ascends = fields.last_key_value().is_none_or(|(last, _)| *last < name);
            if !ascends || register.stamp <= base.stamp {
                return Err(WireError::Body);
            }
            fields.insert(name, register);
        }
        Ok(Entry { base, fields: (count > 0).then(|| Box::new(fields)) })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(time: u64) -> Stamp {
        Stamp { time, cell: CellNumber(1) }
    }

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn string(time: u64, text: &'static str) -> Entry {
        Entry::whole(stamp(time), Some(bytes(text)), None)
    }

    fn field(time: u64, name: &'static str, value: Option<&'static str>) -> Entry {
        Entry::of_fields(stamp(time), [(bytes(name), value.map(bytes))])
    }

    fn merged(writes: &[&Entry]) -> Entry {
        let mut entry = Entry::nothing();
        for write in writes {
            entry.merge(write);
        }
        entry
    }

    /// Every order of some writes, with repetitions and half-merged entries in between, gives one entry.
    #[test]
    fn merging_has_one_outcome_in_whatever_order() {
        let writes = [
            string(10, "s"),
            field(5, "a", Some("early")),
            field(20, "a", Some("late")),
            field(20, "b", Some("b")),
            field(30, "b", None),
            Entry::whole(stamp(15), None, None),
            string(8, "old"),
        ];
        let whole = merged(&writes.iter().collect::<Vec<_>>());
        assert_eq!(whole.value(0), Value::Hash(vec![(bytes("a"), bytes("late"))]));
        let mut chance = 1u64;
        for _ in 0..2_000 {
            let mut replicas = [Entry::nothing(), Entry::nothing(), Entry::nothing()];
            let mut has = [0u32; 3];
            while has != [127; 3] {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (to, what) = ((chance >> 33) as usize % 3, (chance >> 40) as usize % 9);
                if what < writes.len() {
                    replicas[to].merge(&writes[what]);
                    has[to] |= 1 << what;
                } else {
                    let from = (to + 1) % 3;
                    let other = replicas[from].clone();
                    let before = replicas[to].clone();
                    assert_eq!(replicas[to].merge(&other), replicas[to] != before);
                    has[to] |= has[from];
                }
            }
            assert!(replicas.iter().all(|replica| *replica == whole && replica.digest() == whole.digest()));
        }
    }

    #[test]
    fn a_late_copy_of_an_old_write_changes_nothing_after_a_delete() {
        let mut entry = merged(&[&string(10, "x"), &Entry::whole(stamp(20), None, None)]);
        assert_eq!(entry.value(0), Value::Nothing);
        assert!(!entry.merge(&string(10, "x")));
        assert!(!entry.merge(&field(15, "f", Some("v"))));
        assert_eq!(entry.value(0), Value::Nothing);
        assert_eq!(entry.newest(), stamp(20));
    }

    #[test]
    fn a_value_expires_by_the_wall_clock() {
        let entry = Entry::whole(stamp(1), Some(bytes("x")), Some(100));
        assert_eq!(entry.value(99), Value::String(bytes("x")));
        assert_eq!(entry.value(100), Value::Nothing);
    }

    #[test]
    fn what_a_write_concerns() {
        let entry = merged(&[&string(10, "x"), &field(20, "a", Some("v"))]);
        assert_eq!(entry.newest_beside(&string(5, "y")), stamp(20));
        assert_eq!(entry.newest_beside(&field(5, "a", None)), stamp(20));
        assert_eq!(entry.newest_beside(&field(5, "b", None)), stamp(10));
    }

    #[test]
    fn bytes_of_records_are_pinned() {
        let entry = merged(&[
            &Entry::whole(stamp(1), Some(bytes("s")), Some(9)),
            &field(2, "a", Some("v")),
            &field(3, "b", None),
        ]);
        let mut out = BytesMut::new();
        entry.encode(&mut out);
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "01000000000000000100000003090000000000000001000000730200000001000000610200000000000000010000000101000000760100000062030000000000000001000000\
             00"
        );
        let whole = out.freeze();
        assert_eq!(Entry::decode(&mut whole.clone()).unwrap(), entry);
        for end in 0..whole.len() {
            assert!(Entry::decode(&mut whole.slice(..end)).is_err(), "{end} bytes");
        }
        assert_eq!(Entry::nothing().digest(), Digest::default());
    }

    #[test]
    fn a_record_has_one_byte_form() {
        let encoded = |fields: &[(&str, u64)]| {
            let mut out = BytesMut::new();
            string(5, "s").base.encode(&mut out);
            out.put_u32_le(fields.len() as u32);
            for (name, time) in fields {
                put_bytes(&mut out, name.as_bytes());
                Register { stamp: stamp(*time), value: None, expires: None }.encode(&mut out);
            }
            Entry::decode(&mut out.freeze())
        };
        assert!(encoded(&[("a", 6), ("b", 7)]).is_ok());
        assert_eq!(encoded(&[("b", 6), ("a", 7)]), Err(WireError::Body));
        assert_eq!(encoded(&[("a", 6), ("a", 7)]), Err(WireError::Body));
        assert_eq!(encoded(&[("a", 5)]), Err(WireError::Body));
        let forged = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
        assert!(matches!(Entry::decode(&mut forged.clone()), Err(WireError::Length { .. })));
    }
}
