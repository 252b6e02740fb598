//! The changes and the answer of a request.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use quorate_protocol::partial::{Value, counter::integer};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    ANSWER_BYTES_MAX, BYTES_MAX, ENTRY_BYTES, Entry, EntryContent, FIELD_BYTES, Keyspace, KeyspaceAnswer,
    KeyspaceChange, Life, MEMORY_PREFIX, Only, REMEMBERED_FOR, Refusal, Request, VALUE_BYTES_MAX, When,
};

/// The changes of a request, while they are gathered.
pub(super) struct Draft<'a> {
    keyspace: &'a Keyspace,
    now: u64,
    pub(super) changes: Vec<KeyspaceChange>,
}

type Decided = Result<KeyspaceAnswer, Refusal>;

impl<'a> Draft<'a> {
    pub(super) fn new(keyspace: &'a Keyspace, now: u64) -> Draft<'a> {
        Draft { keyspace, now, changes: Vec::new() }
    }

    fn live(&self, key: &Bytes) -> Option<&Entry> {
        self.keyspace.live(key, self.now)
    }

    pub(super) fn decide(&mut self, request: &Request) -> Decided {
        match request {
            Request::Read(keys) => {
                // The size is checked before anything is gathered.
                let bytes = |key| self.live(key).map_or(0, Entry::content_bytes) + FIELD_BYTES;
                let mut room = ANSWER_BYTES_MAX;
                for key in keys {
                    room = room.checked_sub(bytes(key)).ok_or(Refusal::Answer)?;
                }
                let found = |key| {
                    self.live(key).map_or((Value::Nothing, None), |entry| (entry.value(), entry.expires))
                };
                Ok(KeyspaceAnswer::Found(keys.iter().map(found).collect()))
            }
            Request::Put { pairs, life, when, return_old } => self.put(pairs, *life, *when, *return_old),
            Request::Delete { keys, return_old } => self.delete(keys, *return_old),
            Request::Live { key, life, only, return_old } => self.limit(key, *life, *only, *return_old),
            Request::Add { key, added } => self.add(key, *added),
            Request::Append { key, tail } => self.append(key, tail),
            Request::PutFields { key, fields, absent } => self.put_fields(key, fields, *absent),
            Request::DeleteFields { key, names } => self.delete_fields(key, names),
            Request::AddField { key, name, added } => self.add_field(key, name, *added),
            Request::Scan { behind, limit } => Ok(self.keyspace.scan(*behind, *limit, self.now)),
            Request::Size => Ok(counted(self.keyspace.size(self.now))),
            Request::Once { id, request } => self.once(id, request),
        }
    }

    /// Returns the stored answer for an id. If there is none, executes the request and stores its answer. A
    /// refusal changes nothing and is not stored.
    fn once(&mut self, id: &Bytes, request: &Bytes) -> Decided {
        let (key, print) = (memory_key(id), xxh3_64(request));
        if let Some((value, _)) = self.string(&key)? {
            // A client may have stored other data under this key.
            return match postcard::from_bytes::<(u64, KeyspaceAnswer)>(value) {
                Ok((same, answer)) if same == print => Ok(answer),
                _ => Err(Refusal::OtherRequest),
            };
        }
        let answer = match postcard::from_bytes(request) {
            Ok(Request::Once { .. }) | Err(_) => return Err(Refusal::OtherRequest),
            Ok(request) => self.decide(&request)?,
        };
        let memory = postcard::to_stdvec(&(print, &answer)).map_err(|_| Refusal::TooLarge)?;
        self.room(ENTRY_BYTES + key.len() + memory.len())?;
        let expires = Life::For(REMEMBERED_FOR).end(None, self.now);
        self.changes.push(KeyspaceChange::Key(key, Some(Entry::string(Bytes::from(memory), expires))));
        Ok(answer)
    }

    /// Returns the former value of the key if the request wants that value. In that case, refuses a key that
    /// has a hash.
    fn before(&self, key: Option<&Bytes>, return_old: bool) -> Result<Value, Refusal> {
        match key.filter(|_| return_old).and_then(|key| self.live(key)) {
            None => Ok(Value::Nothing),
            Some(Entry { content: EntryContent::String(value), .. }) => Ok(Value::String(value.clone())),
            Some(_) => Err(Refusal::WrongType),
        }
    }

    /// Refuses the request if the map has no room for `more` bytes.
    fn room(&self, more: usize) -> Result<(), Refusal> {
        if self.keyspace.bytes + more > BYTES_MAX { Err(Refusal::Full) } else { Ok(()) }
    }

    fn put(&mut self, pairs: &[(Bytes, Bytes)], life: Life, when: When, return_old: bool) -> Decided {
        let before = self.before(pairs.first().map(|(key, _)| key), return_old)?;
        let holds = match when {
            When::Always => true,
            When::Absent => pairs.iter().all(|(key, _)| self.live(key).is_none()),
            When::Present => pairs.iter().all(|(key, _)| self.live(key).is_some()),
        };
        if !holds {
            return Ok(KeyspaceAnswer::Done { count: 0, before });
        }
        if pairs.iter().any(|(key, value)| key.len() + value.len() > VALUE_BYTES_MAX) {
            return Err(Refusal::TooLarge);
        }
        self.room(pairs.iter().map(|(key, value)| ENTRY_BYTES + key.len() + value.len()).sum())?;
        for (key, value) in pairs {
            let expires = life.end(self.live(key).and_then(|entry| entry.expires), self.now);
            self.changes.push(KeyspaceChange::Key(key.clone(), Some(Entry::string(value.clone(), expires))));
        }
        Ok(KeyspaceAnswer::Done { count: 1, before })
    }

    fn delete(&mut self, keys: &[Bytes], return_old: bool) -> Decided {
        let before = self.before(keys.first(), return_old)?;
        let there: BTreeSet<&Bytes> = keys.iter().filter(|key| self.live(key).is_some()).collect();
        let count = there.len() as i64;
        self.changes.extend(there.into_iter().map(|key| KeyspaceChange::Key(key.clone(), None)));
        Ok(KeyspaceAnswer::Done { count, before })
    }

    fn limit(&mut self, key: &Bytes, life: Life, only: Only, return_old: bool) -> Decided {
        let before = self.before(Some(key), return_old)?;
        let Some(present) = self.live(key).map(|entry| entry.expires) else {
            return Ok(KeyspaceAnswer::Done { count: 0, before });
        };
        let expires = life.end(present, self.now);
        let (from, to) = (present.unwrap_or(u64::MAX), expires.unwrap_or(u64::MAX));
        let holds = match only {
            // A value that already lives without limit is not changed.
            Only::Always => present.is_some() || expires.is_some(),
            Only::Unlimited => present.is_none(),
            Only::Limited => present.is_some(),
            Only::Longer => to > from,
            Only::Shorter => to < from,
            Only::LimitedShorter => present.is_some() && to < from,
        };
        if holds && expires.is_some_and(|expires| expires <= self.now) {
            self.changes.push(KeyspaceChange::Key(key.clone(), None));
        } else if holds && expires != present {
            self.changes.push(KeyspaceChange::Life(key.clone(), expires));
        }
        Ok(KeyspaceAnswer::Done { count: holds.into(), before })
    }

    /// Returns the string of a key, and the end of its life.
    fn string(&self, key: &Bytes) -> Result<Option<(&Bytes, Option<u64>)>, Refusal> {
        match self.live(key) {
            None => Ok(None),
            Some(Entry { content: EntryContent::String(value), expires }) => Ok(Some((value, *expires))),
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
        self.changes.push(KeyspaceChange::Key(key.clone(), Some(Entry::string(digits, expires))));
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
        self.changes.push(KeyspaceChange::Key(key.clone(), Some(Entry::string(whole.freeze(), expires))));
        Ok(counted(length as i64))
    }

    /// Returns the fields of a key, or `None` if the key does not exist.
    fn fields(&self, key: &Bytes) -> Result<Option<&BTreeMap<Bytes, Bytes>>, Refusal> {
        match self.live(key) {
            None => Ok(None),
            Some(Entry { content: EntryContent::Hash(fields), .. }) => Ok(Some(fields)),
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
            let content = EntryContent::Hash(fields.iter().cloned().collect());
            self.changes.push(KeyspaceChange::Key(key.clone(), Some(Entry { content, expires: None })));
        } else {
            let change = |(name, value): &(Bytes, Bytes)| {
                KeyspaceChange::Field(key.clone(), name.clone(), Some(value.clone()))
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
            // A hash without fields does not exist.
            self.changes.push(KeyspaceChange::Key(key.clone(), None));
        } else {
            let changes =
                there.into_iter().map(|name| KeyspaceChange::Field(key.clone(), name.clone(), None));
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

/// Returns the key that stores the answer to the request of an id.
fn memory_key(id: &Bytes) -> Bytes {
    Bytes::from([MEMORY_PREFIX, &id[..]].concat())
}

fn counted(count: i64) -> KeyspaceAnswer {
    KeyspaceAnswer::Done { count, before: Value::Nothing }
}

impl Keyspace {
    /// Returns the answer to a request, and the changes to make. `now` is in nanoseconds since 1970.
    pub fn decide(&self, request: &Request, now: u64) -> (KeyspaceAnswer, Vec<KeyspaceChange>) {
        let mut draft = Draft::new(self, now);
        match draft.decide(request) {
            Ok(answer) if draft.changes.is_empty() => (answer, Vec::new()),
            Ok(answer) => (answer, self.over(now).chain(draft.changes).collect()),
            Err(refusal) => (KeyspaceAnswer::Refused(refusal), Vec::new()),
        }
    }

    /// Returns the answer to a request that changes nothing.
    pub fn read(&self, request: &Request, now: u64) -> KeyspaceAnswer {
        self.decide(request, now).0
    }
}
