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
//! **Time.** A key whose life is over is as good as deleted from then on, and is removed by writes that come later, a few with each.
//!
//! **Bounds.** [`VALUE_BYTES_MAX`] of a value, all fields of a hash together; [`BYTES_MAX`] of a map.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::partial::{Kind, Value, counter::integer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

/// No value, and no hash, has more bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// No map has more bytes, keys and values and what they take beside.
pub const BYTES_MAX: usize = 1 << 30;

/// Of an entry and of a field, beside their own bytes, about.
const ENTRY_BYTES: usize = 160;
const FIELD_BYTES: usize = 96;

/// A write removes so many keys whose life is over.
const REMOVED_AT_ONCE: usize = 16;

/// A request to a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The values under these keys. Answered by [`Answer::Found`].
    Read(Vec<Bytes>),
    /// Gives keys these strings: all of them, or none. Counts 1 if it did.
    Put {
        /// Keys and values. Of a key that is there twice the last one counts.
        pairs: Vec<(Bytes, Bytes)>,
        /// For how long.
        life: Life,
        /// On which condition.
        when: When,
        /// Tells what was under the first key, which must be a string then.
        tell: bool,
    },
    /// Deletes keys. Counts those that were there.
    Delete {
        /// The keys.
        keys: Vec<Bytes>,
        /// Tells what was under the first key, which must be a string then.
        tell: bool,
    },
    /// Changes the life of what is under a key. Counts 1 if it did.
    Live {
        /// The key.
        key: Bytes,
        /// Its life from now on.
        life: Life,
        /// On which condition.
        only: Only,
        /// Tells what is under the key, which must be a string then.
        tell: bool,
    },
    /// Adds to a string of digits, and counts what it comes to.
    Add {
        /// The key.
        key: Bytes,
        /// What is added.
        added: i64,
    },
    /// Puts this behind a string, and counts its bytes.
    Append {
        /// The key.
        key: Bytes,
        /// What is put behind.
        tail: Bytes,
    },
    /// Gives fields of a hash these values. Counts those that were not there.
    PutFields {
        /// The key.
        key: Bytes,
        /// Names and values.
        fields: Vec<(Bytes, Bytes)>,
        /// Only if none of the fields is there.
        absent: bool,
    },
    /// Deletes fields of a hash. Counts those that were there.
    DeleteFields {
        /// The key.
        key: Bytes,
        /// Their names.
        names: Vec<Bytes>,
    },
    /// Adds to a field of digits, and counts what it comes to.
    AddField {
        /// The key.
        key: Bytes,
        /// The name of the field.
        name: Bytes,
        /// What is added.
        added: i64,
    },
    /// Some of the keys. Answered by [`Answer::Keys`].
    Scan {
        /// Those whose hashes are above this one; none: from the beginning.
        behind: Option<u64>,
        /// About so many.
        limit: u32,
    },
    /// Counts the keys.
    Size,
}

/// How long a value lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// Until it is replaced.
    Unlimited,
    /// As long as the one before.
    Kept,
    /// For this long.
    For(Duration),
    /// Until this time, in nanoseconds since 1970.
    Until(u64),
}

/// The condition of a write of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// None.
    Always,
    /// Nothing is under any of the keys.
    Absent,
    /// Something is under each of them.
    Present,
}

/// The condition of a change of a life. A life without limit counts as longer than any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Only {
    /// None.
    Always,
    /// It has no limit.
    Unlimited,
    /// It has a limit.
    Limited,
    /// It becomes longer.
    Longer,
    /// It becomes shorter.
    Shorter,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// A value for each key, and when its life is over, in nanoseconds since 1970.
    Found(Vec<(Value, Option<u64>)>),
    /// It was done, and changed so much.
    Done {
        /// What [`Request`] says of it.
        count: i64,
        /// What was there before, if that was to be told.
        before: Value,
    },
    /// Some of the keys.
    Keys {
        /// The keys, and what is under them.
        keys: Vec<(Bytes, Kind)>,
        /// Behind which hash the others are; none: these were the last.
        next: Option<u64>,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A string where a hash is, or the other way.
    WrongType,
    /// A string that is no whole number.
    NoNumber,
    /// A field that is no whole number.
    NoNumberInField,
    /// The sum leaves 64 bits.
    Overflow,
    /// The value, or the hash, would have more than [`VALUE_BYTES_MAX`].
    TooLarge,
    /// The map would have more than [`BYTES_MAX`].
    Full,
}

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

/// What is under a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    content: Content,
    /// When its life is over, in nanoseconds since 1970.
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

impl Life {
    /// When it is over, of a value that takes the place of one whose life is over at `before`.
    fn end(self, before: Option<u64>, now: u64) -> Option<u64> {
        match self {
            Life::Unlimited => None,
            Life::Kept => before,
            Life::For(time) => Some(now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))),
            Life::Until(time) => Some(time),
        }
    }
}

impl Request {
    /// Whether it changes nothing, whatever is there.
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Read(_) | Request::Scan { .. } | Request::Size)
    }

    /// Bytes of its keys and values, about.
    pub(super) fn bytes(&self) -> usize {
        let pair = |(key, value): &(Bytes, Bytes)| key.len() + value.len();
        let all = |keys: &[Bytes]| keys.iter().map(Bytes::len).sum::<usize>();
        size_of::<Request>()
            + match self {
                Request::Read(keys) | Request::Delete { keys, .. } => all(keys),
                Request::Put { pairs, .. } => pairs.iter().map(pair).sum(),
                Request::Live { key, .. } | Request::Add { key, .. } => key.len(),
                Request::Append { key, tail } => key.len() + tail.len(),
                Request::PutFields { key, fields, .. } => key.len() + fields.iter().map(pair).sum::<usize>(),
                Request::DeleteFields { key, names } => key.len() + all(names),
                Request::AddField { key, name, .. } => key.len() + name.len(),
                Request::Scan { .. } | Request::Size => 0,
            }
    }

    /// The keys that it names.
    pub fn keys(&self) -> Vec<&Bytes> {
        match self {
            Request::Read(keys) | Request::Delete { keys, .. } => keys.iter().collect(),
            Request::Put { pairs, .. } => pairs.iter().map(|(key, _)| key).collect(),
            Request::Live { key, .. }
            | Request::Add { key, .. }
            | Request::Append { key, .. }
            | Request::PutFields { key, .. }
            | Request::DeleteFields { key, .. }
            | Request::AddField { key, .. } => vec![key],
            Request::Scan { .. } | Request::Size => Vec::new(),
        }
    }
}

/// The changes that a request comes to, while they are gathered.
struct Draft<'a> {
    keyspace: &'a Keyspace,
    now: u64,
    changes: Vec<Change>,
}

type Decided = Result<Answer, Refusal>;

impl Keyspace {
    /// The number of keys, those whose life is over among them until they are removed.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of keys and values and what they take beside, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The answer to a request, and what is to be changed. `now` is in nanoseconds since 1970.
    pub fn decide(&self, request: &Request, now: u64) -> (Answer, Vec<Change>) {
        let mut draft = Draft { keyspace: self, now, changes: Vec::new() };
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

impl Draft<'_> {
    fn live(&self, key: &Bytes) -> Option<&Entry> {
        self.keyspace.live(key, self.now)
    }

    fn decide(&mut self, request: &Request) -> Decided {
        match request {
            Request::Read(keys) => {
                let found = |key| {
                    self.live(key).map_or((Value::Nothing, None), |entry| (entry.value(), entry.expires))
                };
                Ok(Answer::Found(keys.iter().map(found).collect()))
            }
            Request::Put { pairs, life, when, tell } => self.put(pairs, *life, *when, *tell),
            Request::Delete { keys, tell } => self.delete(keys, *tell),
            Request::Live { key, life, only, tell } => self.limit(key, *life, *only, *tell),
            Request::Add { key, added } => self.add(key, *added),
            Request::Append { key, tail } => self.append(key, tail),
            Request::PutFields { key, fields, absent } => self.put_fields(key, fields, *absent),
            Request::DeleteFields { key, names } => self.delete_fields(key, names),
            Request::AddField { key, name, added } => self.add_field(key, name, *added),
            Request::Scan { behind, limit } => Ok(self.keyspace.scan(*behind, *limit, self.now)),
            Request::Size => Ok(counted(self.keyspace.size(self.now))),
        }
    }

    /// The value before, if it is to be told. A hash is refused then.
    fn before(&self, key: Option<&Bytes>, tell: bool) -> Result<Value, Refusal> {
        match key.filter(|_| tell).and_then(|key| self.live(key)) {
            None => Ok(Value::Nothing),
            Some(Entry { content: Content::String(value), .. }) => Ok(Value::String(value.clone())),
            Some(_) => Err(Refusal::WrongType),
        }
    }

    /// Whether there is room for so many bytes more.
    fn room(&self, more: usize) -> Result<(), Refusal> {
        if self.keyspace.bytes + more > BYTES_MAX { Err(Refusal::Full) } else { Ok(()) }
    }

    fn put(&mut self, pairs: &[(Bytes, Bytes)], life: Life, when: When, tell: bool) -> Decided {
        let before = self.before(pairs.first().map(|(key, _)| key), tell)?;
        let holds = match when {
            When::Always => true,
            When::Absent => pairs.iter().all(|(key, _)| self.live(key).is_none()),
            When::Present => pairs.iter().all(|(key, _)| self.live(key).is_some()),
        };
        if !holds {
            return Ok(Answer::Done { count: 0, before });
        }
        if pairs.iter().any(|(key, value)| key.len() + value.len() > VALUE_BYTES_MAX) {
            return Err(Refusal::TooLarge);
        }
        self.room(pairs.iter().map(|(key, value)| ENTRY_BYTES + key.len() + value.len()).sum())?;
        for (key, value) in pairs {
            let expires = life.end(self.live(key).and_then(|entry| entry.expires), self.now);
            self.changes.push(Change::Key(key.clone(), Some(Entry::string(value.clone(), expires))));
        }
        Ok(Answer::Done { count: 1, before })
    }

    fn delete(&mut self, keys: &[Bytes], tell: bool) -> Decided {
        let before = self.before(keys.first(), tell)?;
        let there: BTreeSet<&Bytes> = keys.iter().filter(|key| self.live(key).is_some()).collect();
        let count = there.len() as i64;
        self.changes.extend(there.into_iter().map(|key| Change::Key(key.clone(), None)));
        Ok(Answer::Done { count, before })
    }

    fn limit(&mut self, key: &Bytes, life: Life, only: Only, tell: bool) -> Decided {
        let before = self.before(Some(key), tell)?;
        let Some(present) = self.live(key).map(|entry| entry.expires) else {
            return Ok(Answer::Done { count: 0, before });
        };
        let expires = life.end(present, self.now);
        let (from, to) = (present.unwrap_or(u64::MAX), expires.unwrap_or(u64::MAX));
        let holds = match only {
            // What has no limit is given none.
            Only::Always => present.is_some() || expires.is_some(),
            Only::Unlimited => present.is_none(),
            Only::Limited => present.is_some(),
            Only::Longer => to > from,
            Only::Shorter => to < from,
        };
        if holds && expires.is_some_and(|expires| expires <= self.now) {
            self.changes.push(Change::Key(key.clone(), None));
        } else if holds && expires != present {
            self.changes.push(Change::Life(key.clone(), expires));
        }
        Ok(Answer::Done { count: holds.into(), before })
    }

    /// The string under a key, and when its life is over.
    fn string(&self, key: &Bytes) -> Result<Option<(&Bytes, Option<u64>)>, Refusal> {
        match self.live(key) {
            None => Ok(None),
            Some(Entry { content: Content::String(value), expires }) => Ok(Some((value, *expires))),
            Some(_) => Err(Refusal::WrongType),
        }
    }

    fn add(&mut self, key: &Bytes, added: i64) -> Decided {
        let (present, expires) = match self.string(key)? {
            Some((digits, expires)) => (integer(digits).ok_or(Refusal::NoNumber)?, expires),
            None => (0, None),
        };
        let sum = present.checked_add(added).ok_or(Refusal::Overflow)?;
        let digits = Bytes::from(sum.to_string());
        self.room(ENTRY_BYTES + key.len() + digits.len())?;
        self.changes.push(Change::Key(key.clone(), Some(Entry::string(digits, expires))));
        Ok(counted(sum))
    }

    fn append(&mut self, key: &Bytes, tail: &Bytes) -> Decided {
        let (head, expires) = self.string(key)?.map_or((Bytes::new(), None), |(it, end)| (it.clone(), end));
        let length = head.len() + tail.len();
        if key.len() + length > VALUE_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        self.room(ENTRY_BYTES + key.len() + tail.len())?;
        let mut whole = BytesMut::with_capacity(length);
        whole.extend_from_slice(&head);
        whole.extend_from_slice(tail);
        self.changes.push(Change::Key(key.clone(), Some(Entry::string(whole.freeze(), expires))));
        Ok(counted(length as i64))
    }

    /// The fields under a key; none: there is nothing.
    fn fields(&self, key: &Bytes) -> Result<Option<&BTreeMap<Bytes, Bytes>>, Refusal> {
        match self.live(key) {
            None => Ok(None),
            Some(Entry { content: Content::Hash(fields), .. }) => Ok(Some(fields)),
            Some(_) => Err(Refusal::WrongType),
        }
    }

    fn put_fields(&mut self, key: &Bytes, fields: &[(Bytes, Bytes)], absent: bool) -> Decided {
        let present = self.fields(key)?;
        let is_there = |name: &Bytes| present.is_some_and(|present| present.contains_key(name));
        let fresh: BTreeSet<&Bytes> =
            fields.iter().map(|(name, _)| name).filter(|name| !is_there(name)).collect();
        if absent && fields.iter().any(|(name, _)| is_there(name)) {
            return Ok(counted(0));
        }
        let count = fresh.len() as i64;
        let bytes: usize = fields.iter().map(|(name, value)| FIELD_BYTES + name.len() + value.len()).sum();
        let there = self.live(key).map_or(0, Entry::content_bytes);
        if key.len() + there + bytes > VALUE_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        self.room(ENTRY_BYTES + key.len() + bytes)?;
        if present.is_none() {
            let content = Content::Hash(fields.iter().cloned().collect());
            self.changes.push(Change::Key(key.clone(), Some(Entry { content, expires: None })));
        } else {
            let change = |(name, value): &(Bytes, Bytes)| {
                Change::Field(key.clone(), name.clone(), Some(value.clone()))
            };
            self.changes.extend(fields.iter().map(change));
        }
        Ok(counted(count))
    }

    fn delete_fields(&mut self, key: &Bytes, names: &[Bytes]) -> Decided {
        let Some(present) = self.fields(key)? else { return Ok(counted(0)) };
        let there: BTreeSet<&Bytes> = names.iter().filter(|name| present.contains_key(*name)).collect();
        let count = there.len() as i64;
        if there.len() == present.len() {
            // A hash without fields is none.
            self.changes.push(Change::Key(key.clone(), None));
        } else {
            let changes = there.into_iter().map(|name| Change::Field(key.clone(), name.clone(), None));
            self.changes.extend(changes);
        }
        Ok(counted(count))
    }

    fn add_field(&mut self, key: &Bytes, name: &Bytes, added: i64) -> Decided {
        let present = match self.fields(key)?.and_then(|fields| fields.get(name)) {
            Some(digits) => integer(digits).ok_or(Refusal::NoNumberInField)?,
            None => 0,
        };
        let sum = present.checked_add(added).ok_or(Refusal::Overflow)?;
        self.put_fields(key, &[(name.clone(), Bytes::from(sum.to_string()))], false)?;
        Ok(counted(sum))
    }
}

fn counted(count: i64) -> Answer {
    Answer::Done { count, before: Value::Nothing }
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
