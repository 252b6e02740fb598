//! Keys with strings and hashes, as one state: what a service or a group keeps of a map.
//!
//! **Promise.** The consequence of a [`Request`] depends on the keys that are there, on the request, and on the time that it is given, and on
//! nothing else. So replicas that are given the same requests and times, in one order, have the same keys; and a command that reads
//! and writes at once does so with nothing in between, which partial quorums cannot promise.
//!
//! **Source.** The commands of Redis 7 on strings and hashes, whose answers these are.
//!
//! **How.** [`Keyspace::decide`] finds out what a request comes to and changes nothing; [`Keyspace::apply`] makes the changes, and returns those
//! that take them back. Keys stand in the order of their hashes, so that a scan that goes on behind a hash tells every key that is
//! there from its beginning to its end, whatever is written meanwhile.
//!
//! | file | subject |
//! |---|---|
//! | `request` | what is asked, and what is answered |
//! | `decide` | what a request comes to |
//!
//! **Time.** A key whose life is over is as good as deleted from then on, and is removed by writes that come later, a few with each.
//!
//! **Bounds.** [`VALUE_BYTES_MAX`] of a value, all fields of a hash together; [`BYTES_MAX`] of a map.

mod decide;
mod request;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_protocol::partial::{Kind, Value};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use self::decide::Draft;
pub use self::request::{Answer, Life, Only, Refusal, Request, When};

/// No value, and no hash, has more bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// No map has more bytes, keys and values and what they take beside.
pub const BYTES_MAX: usize = 1 << 30;

/// Of an entry and of a field, beside their own bytes, about.
const ENTRY_BYTES: usize = 160;
const FIELD_BYTES: usize = 96;

/// A write removes so many keys whose life is over.
const REMOVED_AT_ONCE: usize = 16;

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// This is under the key now; none: nothing.
    Key(Bytes, Option<Entry>),
    /// This field of the hash under the key has this value; none: there is none of this name. Another one is left.
    Field(Bytes, Bytes, Option<Bytes>),
    /// The life of what is under the key is over then.
    Life(Bytes, Option<u64>),
}

/// The value under a key, and its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    content: Content,
    /// The end of its life, in nanoseconds since 1970.
    expires: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Content {
    String(Bytes),
    /// Never without fields.
    Hash(BTreeMap<Bytes, Bytes>),
}

/// A key behind its hash.
type Place = (u64, Bytes);

/// Keys with strings and hashes.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    keys: BTreeMap<Place, Entry>,
    /// Those whose life has a limit, by that.
    limited: BTreeSet<(u64, Place)>,
    bytes: usize,
}

fn place(key: &Bytes) -> Place {
    (xxh3_64(key), key.clone())
}

impl Entry {
    fn string(value: Bytes, expires: Option<u64>) -> Entry {
        Entry { content: Content::String(value), expires }
    }

    fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    fn value(&self) -> Value {
        match &self.content {
            Content::String(value) => Value::String(value.clone()),
            Content::Hash(fields) => {
                Value::Hash(fields.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
            }
        }
    }

    fn content_bytes(&self) -> usize {
        match &self.content {
            Content::String(value) => value.len(),
            Content::Hash(fields) => {
                fields.iter().map(|(name, value)| FIELD_BYTES + name.len() + value.len()).sum()
            }
        }
    }
}

impl Keyspace {
    /// The number of keys, those whose life is over among them until they are removed.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of keys and values and what they take beside, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The answer to a request, and what is to be changed. `now` is in nanoseconds since 1970.
    pub fn decide(&self, request: &Request, now: u64) -> (Answer, Vec<Change>) {
        let mut draft = Draft::new(self, now);
        match draft.decide(request) {
            Ok(answer) if draft.changes.is_empty() => (answer, Vec::new()),
            Ok(answer) => (answer, self.over(now).chain(draft.changes).collect()),
            Err(refusal) => (Answer::Refused(refusal), Vec::new()),
        }
    }

    /// The answer to a request that changes nothing.
    pub fn read(&self, request: &Request, now: u64) -> Answer {
        self.decide(request, now).0
    }

    /// Makes a change, and returns the one that takes it back.
    pub fn apply(&mut self, change: &Change) -> Change {
        match change {
            Change::Key(key, entry) => {
                let before = self.replace(key, entry.clone());
                Change::Key(key.clone(), before)
            }
            Change::Field(key, name, value) => {
                let Some(entry) = self.keys.get_mut(&place(key)) else {
                    unreachable!("a field is of a hash")
                };
                let Content::Hash(fields) = &mut entry.content else { unreachable!("a field is of a hash") };
                let before = match value {
                    Some(value) => fields.insert(name.clone(), value.clone()),
                    None => fields.remove(name),
                };
                let field = |value: &Option<Bytes>| {
                    value.as_ref().map_or(0, |value| FIELD_BYTES + name.len() + value.len())
                };
                self.bytes = self.bytes + field(value) - field(&before);
                Change::Field(key.clone(), name.clone(), before)
            }
            Change::Life(key, expires) => {
                let place = place(key);
                let Some(entry) = self.keys.get_mut(&place) else { unreachable!("a life is of a value") };
                let before = std::mem::replace(&mut entry.expires, *expires);
                if let Some(before) = before {
                    self.limited.remove(&(before, place.clone()));
                }
                if let Some(expires) = expires {
                    self.limited.insert((*expires, place));
                }
                Change::Life(key.clone(), before)
            }
        }
    }

    /// Makes changes, and returns those that take them back, in the order in which they do.
    pub fn apply_all(&mut self, changes: &[Change]) -> Vec<Change> {
        let mut undo: Vec<Change> = changes.iter().map(|change| self.apply(change)).collect();
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

    /// The removal of some keys whose life is over.
    fn over(&self, now: u64) -> impl Iterator<Item = Change> + '_ {
        let over = self.limited.iter().take_while(move |(expires, _)| *expires <= now).take(REMOVED_AT_ONCE);
        over.map(|(_, (_, key))| Change::Key(key.clone(), None))
    }

    fn live(&self, key: &Bytes, now: u64) -> Option<&Entry> {
        self.keys.get(&place(key)).filter(|entry| !entry.is_over(now))
    }

    fn scan(&self, behind: Option<u64>, limit: u32, now: u64) -> Answer {
        // The empty key is the first of its hash.
        let Some(from) = behind.map_or(Some(0), |hash| hash.checked_add(1)) else {
            return Answer::Keys { keys: Vec::new(), next: None };
        };
        let (mut keys, mut next, mut seen) = (Vec::new(), None, 0);
        let mut last = None;
        for ((hash, key), entry) in self.keys.range((from, Bytes::new())..) {
            // Keys of one hash are told together.
            if seen >= limit && last != Some(*hash) {
                next = last;
                break;
            }
            (seen, last) = (seen + 1, Some(*hash));
            if !entry.is_over(now) {
                let kind = match entry.content {
                    Content::String(_) => Kind::String,
                    Content::Hash(_) => Kind::Hash,
                };
                keys.push((key.clone(), kind));
            }
        }
        Answer::Keys { keys, next }
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
