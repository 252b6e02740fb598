//! Keys with strings and hashes, as one state: the part of a map that a service or a group replicates.
//!
//! **Promise.** The effect of a [`Request`] depends only on the present keys, the request, and the time that
//! the caller passes. So replicas that get the same requests and times in the same order have the same keys.
//! A command that reads and writes does so in one step, which partial quorums cannot promise.
//!
//! **Source.** The commands of Redis 7 on strings and hashes, and their answers.
//!
//! **How.** [`Keyspace::decide`] finds the result of a request and changes nothing. [`Keyspace::apply`] makes
//! the changes, and returns the changes that undo them. Keys are in the order of their hashes. A scan
//! continues after the last hash that it returned. So it returns every key that exists during the whole scan,
//! whatever is written meanwhile.
//!
//! | file | subject |
//! |---|---|
//! | `request` | requests and answers |
//! | `decide` | the result of a request |
//!
//! **Time.** A key whose life is over counts as deleted from then on. Later writes remove such keys, a few
//! each.
//!
//! **Ids.** A request may carry an id ([`Request::Once`]). The answer is stored in the same step, under a key
//! that is derived from the id, and a repetition gets the stored answer. So a client that lost an answer may
//! repeat the request.
//!
//! **Bounds.** [`VALUE_BYTES_MAX`] of a value, with all fields of a hash; [`BYTES_MAX`] of a map;
//! [`ANSWER_BYTES_MAX`] of an answer. A scan returns fewer keys if they are long ([`SCAN_BYTES`]).

mod decide;
mod request;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::partial::{Kind, Value};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

pub use self::request::{KeyspaceAnswer, Life, Only, Refusal, Request, When};

/// Upper bound of a value or a hash, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Upper bound of a map, in bytes of keys and values and their overhead.
pub const BYTES_MAX: usize = 1 << 30;

/// Upper bound of the answer to a read, in bytes. Keys that are named several times count each time.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Bytes of keys after which a scan stops.
pub const SCAN_BYTES: usize = 256 << 10;

/// Time for which the answer to a request with an id is remembered.
pub const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// The prefix of keys that store the answers to requests with ids. They are ordinary keys, so that a copy of
/// the map contains them.
const MEMORY_PREFIX: &[u8] = b"quorate:id:";

/// Approximate overhead of an entry, in bytes.
const ENTRY_BYTES: usize = 160;
/// Approximate overhead of a field, in bytes.
const FIELD_BYTES: usize = 96;

/// Number of expired keys that a write removes.
const REMOVED_AT_ONCE: usize = 16;

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyspaceChange {
    /// The new entry of a key; `None` removes the key.
    Key(Bytes, Option<Entry>),
    /// The new value of a field of the hash of this key; `None` removes the field. The hash keeps at least
    /// one other field.
    Field(Bytes, Bytes, Option<Bytes>),
    /// The new end of the life of a key's value.
    Life(Bytes, Option<u64>),
}

/// The value of a key, and its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    content: EntryContent,
    /// The end of the entry's life, in nanoseconds since 1970.
    expires: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum EntryContent {
    String(Bytes),
    /// A hash, which is never empty.
    Hash(BTreeMap<Bytes, Bytes>),
}

/// A key's hash, and the key.
type HashedKey = (u64, Bytes);

/// Keys with strings and hashes.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    keys: BTreeMap<HashedKey, Entry>,
    /// Keys whose life has a limit, by its end.
    limited: BTreeSet<(u64, HashedKey)>,
    bytes: usize,
}

fn place(key: &Bytes) -> HashedKey {
    (xxh3_64(key), key.clone())
}

impl Entry {
    fn string(value: Bytes, expires: Option<u64>) -> Entry {
        Entry { content: EntryContent::String(value), expires }
    }

    fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    fn value(&self) -> Value {
        match &self.content {
            EntryContent::String(value) => Value::String(value.clone()),
            EntryContent::Hash(fields) => {
                Value::Hash(fields.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
            }
        }
    }

    fn content_bytes(&self) -> usize {
        match &self.content {
            EntryContent::String(value) => value.len(),
            EntryContent::Hash(fields) => {
                fields.iter().map(|(name, value)| FIELD_BYTES + name.len() + value.len()).sum()
            }
        }
    }
}

impl Keyspace {
    /// Returns the number of keys, expired ones included until they are removed.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the approximate size of keys and values and their overhead, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes a change. Returns the change that undoes it.
    pub fn apply(&mut self, change: &KeyspaceChange) -> KeyspaceChange {
        match change {
            KeyspaceChange::Key(key, entry) => {
                let before = self.replace(key, entry.clone());
                KeyspaceChange::Key(key.clone(), before)
            }
            KeyspaceChange::Field(key, name, value) => {
                let Some(entry) = self.keys.get_mut(&place(key)) else {
                    unreachable!("a field is of a hash")
                };
                let EntryContent::Hash(fields) = &mut entry.content else {
                    unreachable!("a field is of a hash")
                };
                let before = match value {
                    Some(value) => fields.insert(name.clone(), value.clone()),
                    None => fields.remove(name),
                };
                let field = |value: &Option<Bytes>| {
                    value.as_ref().map_or(0, |value| FIELD_BYTES + name.len() + value.len())
                };
                self.bytes = self.bytes + field(value) - field(&before);
                KeyspaceChange::Field(key.clone(), name.clone(), before)
            }
            KeyspaceChange::Life(key, expires) => {
                let place = place(key);
                let Some(entry) = self.keys.get_mut(&place) else { unreachable!("a life is of a value") };
                let before = std::mem::replace(&mut entry.expires, *expires);
                if let Some(before) = before {
                    self.limited.remove(&(before, place.clone()));
                }
                if let Some(expires) = expires {
                    self.limited.insert((*expires, place));
                }
                KeyspaceChange::Life(key.clone(), before)
            }
        }
    }

    /// Makes changes. Returns the changes that undo them, in the order in which they have to be applied.
    pub fn apply_all(&mut self, changes: &[KeyspaceChange]) -> Vec<KeyspaceChange> {
        let mut undo: Vec<KeyspaceChange> = changes.iter().map(|change| self.apply(change)).collect();
        undo.reverse();
        undo
    }

    fn replace(&mut self, key: &Bytes, entry: Option<Entry>) -> Option<Entry> {
        let place = place(key);
        let taken = |entry: &Entry| ENTRY_BYTES + key.len() + entry.content_bytes();
        let before = self.keys.remove(&place);
        if let Some(before) = &before {
            self.bytes -= taken(before);
            if let Some(expires) = before.expires {
                self.limited.remove(&(expires, place.clone()));
            }
        }
        if let Some(entry) = entry {
            self.bytes += taken(&entry);
            if let Some(expires) = entry.expires {
                self.limited.insert((expires, place.clone()));
            }
            self.keys.insert(place, entry);
        }
        before
    }

    /// Returns the changes that remove some expired keys.
    fn over(&self, now: u64) -> impl Iterator<Item = KeyspaceChange> + '_ {
        let over = self.limited.iter().take_while(move |(expires, _)| *expires <= now).take(REMOVED_AT_ONCE);
        over.map(|(_, (_, key))| KeyspaceChange::Key(key.clone(), None))
    }

    fn live(&self, key: &Bytes, now: u64) -> Option<&Entry> {
        self.keys.get(&place(key)).filter(|entry| !entry.is_over(now))
    }

    fn scan(&self, behind: Option<u64>, limit: u32, now: u64) -> KeyspaceAnswer {
        // The scan begins at the next hash. Among the keys of one hash, the empty key is the first.
        let Some(from) = behind.map_or(Some(0), |hash| hash.checked_add(1)) else {
            return KeyspaceAnswer::Keys { keys: Vec::new(), next: None };
        };
        let (mut keys, mut next, mut seen, mut bytes) = (Vec::new(), None, 0, 0);
        let mut last = None;
        for ((hash, key), entry) in self.keys.range((from, Bytes::new())..) {
            // Keys of one hash are returned together.
            if (seen >= limit || bytes >= SCAN_BYTES) && last != Some(*hash) {
                next = last;
                break;
            }
            (seen, last) = (seen + 1, Some(*hash));
            if !entry.is_over(now) {
                let kind = match entry.content {
                    EntryContent::String(_) => Kind::String,
                    EntryContent::Hash(_) => Kind::Hash,
                };
                bytes += key.len();
                keys.push((key.clone(), kind));
            }
        }
        KeyspaceAnswer::Keys { keys, next }
    }

    fn size(&self, now: u64) -> i64 {
        let over = self.limited.iter().take_while(|(expires, _)| *expires <= now).count();
        (self.keys.len() - over) as i64
    }
}

impl Serialize for Keyspace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.keys.iter().map(|((_, key), entry)| (key, entry)))
    }
}

impl<'de> Deserialize<'de> for Keyspace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Vec::<(Bytes, Entry)>::deserialize(deserializer)?;
        let mut keyspace = Keyspace::default();
        for (key, entry) in entries {
            keyspace.replace(&key, Some(entry));
        }
        Ok(keyspace)
    }
}
