//! The services of the bench: one that says what it was told, and one of keys and values.
//!
//! Each keeps a print of all changes that it applied: in their order, but for transactions, whose changes have none until they commit. It is shown outside of the state, for a replica whose
//! state is replaced by a checkpoint is still to be asked for it.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::{BufMut, Bytes, BytesMut};
use quorate::service::{Cx, Executed, Kind, Service};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A service that the bench can load and look at.
pub(super) trait Measured: Service<Request: Clone + Send + Sync, Reply: Send> + Default {
    const NAME: &'static str;

    /// Changes that this process's replica has applied.
    fn shown() -> &'static Shown;

    /// A write, the number of which tells it from others, with so many bytes.
    fn write(number: u64, bytes: usize) -> Self::Request;

    /// A read of what was written, if the service has any.
    fn read(number: u64) -> Option<Self::Request>;

    /// Whether this is the answer.
    fn answers(request: &Self::Request, reply: &Self::Reply) -> bool;
}

/// The changes that a replica has applied: how many, and a print of them in their order.
#[derive(Debug, Default)]
pub(super) struct Shown {
    count: AtomicU64,
    print: AtomicU64,
}

impl Shown {
    const fn new() -> Shown {
        Shown { count: AtomicU64::new(0), print: AtomicU64::new(0) }
    }

    /// Count and print, while nothing is applied.
    pub(super) fn now(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.print.load(Ordering::Relaxed))
    }

    fn show(&self, applied: Applied) {
        self.count.store(applied.count, Ordering::Relaxed);
        self.print.store(applied.print, Ordering::Relaxed);
    }
}

/// The same as a part of the state.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Applied {
    count: u64,
    print: u64,
}

impl Applied {
    /// One more, and what it was before.
    fn add(&mut self, change: &[u8], shown: &Shown) -> Applied {
        let before = *self;
        *self = Applied { count: before.count + 1, print: xxh3_64_with_seed(change, before.print) };
        shown.show(*self);
        before
    }

    fn take_back(&mut self, before: Applied, shown: &Shown) {
        *self = before;
        shown.show(before);
    }

    /// One more, whose place among the others does not count: the leader makes the changes of a transaction before its commit has a place. Its print.
    fn add_anywhere(&mut self, key: u64, change: &[u8], shown: &Shown) -> u64 {
        let print = xxh3_64_with_seed(change, key);
        *self = Applied { count: self.count + 1, print: self.print.wrapping_add(print) };
        shown.show(*self);
        print
    }

    fn take_from_anywhere(&mut self, print: u64, shown: &Shown) {
        *self = Applied { count: self.count - 1, print: self.print.wrapping_sub(print) };
        shown.show(*self);
    }
}

/// So many bytes that begin with a number.
fn numbered(number: u64, bytes: usize) -> Bytes {
    let mut body = BytesMut::with_capacity(bytes);
    body.put_u64_le(number);
    body.resize(bytes, number as u8);
    body.freeze()
}

/// The least bytes of a request.
pub(super) const BYTES_MIN: usize = 8;

/// Answers what it is told, and has a delta of the same bytes.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Echo(Applied);

static ECHO: Shown = Shown::new();

impl Service for Echo {
    type Request = Bytes;
    type Reply = Bytes;
    type Delta = Bytes;
    type Undo = Applied;

    const SHORT: bool = true;

    fn execute(&self, request: &Bytes, _: &mut Cx<'_>) -> Executed<Self> {
        Executed::Changed(request.clone(), request.clone())
    }

    fn apply(&mut self, delta: &Bytes) -> Applied {
        self.0.add(delta, &ECHO)
    }

    fn revert(&mut self, before: Applied) {
        self.0.take_back(before, &ECHO);
    }
}

impl Measured for Echo {
    const NAME: &'static str = "echo";

    fn shown() -> &'static Shown {
        &ECHO
    }

    fn write(number: u64, bytes: usize) -> Bytes {
        numbered(number, bytes)
    }

    fn read(_: u64) -> Option<Bytes> {
        None
    }

    fn answers(request: &Bytes, reply: &Bytes) -> bool {
        request == reply
    }
}

/// Keys and values.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Store {
    values: HashMap<u64, Bytes>,
    applied: Applied,
}

static STORE: Shown = Shown::new();

/// A request to [`Store`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Put(u64, Bytes),
    Get(u64),
}

impl Service for Store {
    type Request = Ask;
    type Reply = Bytes;
    type Delta = (u64, Bytes);
    type Undo = (u64, Option<Bytes>, Applied);

    const SHORT: bool = true;

    fn execute(&self, ask: &Ask, _: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            Ask::Put(key, value) => Executed::Changed(value.clone(), (*key, value.clone())),
            Ask::Get(key) => match self.values.get(key) {
                Some(value) => Executed::Unchanged(value.clone()),
                None => Executed::Rejected(format!("there is no key {key}")),
            },
        }
    }

    fn apply(&mut self, (key, value): &(u64, Bytes)) -> Self::Undo {
        let before = self.applied.add(value, &STORE);
        (*key, self.values.insert(*key, value.clone()), before)
    }

    fn revert(&mut self, (key, value, before): Self::Undo) {
        match value {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
        self.applied.take_back(before, &STORE);
    }

    fn kind(ask: &Ask) -> Kind {
        match ask {
            Ask::Put(..) => Kind::Write,
            Ask::Get(_) => Kind::Read,
        }
    }
}

/// Keys and values, of which each request touches one: transactions on different keys do not wait for each other.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Accounts {
    values: HashMap<u64, Bytes>,
    applied: Applied,
}

static ACCOUNTS: Shown = Shown::new();

impl Accounts {
    /// A read.
    pub(super) fn look(key: u64) -> Ask {
        Ask::Get(key % KEYS)
    }
}

impl Service for Accounts {
    type Request = Ask;
    type Reply = Bytes;
    type Delta = (u64, Bytes);
    /// A key, its value before, and the print of the change.
    type Undo = (u64, Option<Bytes>, u64);

    const SHORT: bool = true;

    fn execute(&self, ask: &Ask, _: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            Ask::Put(key, value) => Executed::Changed(value.clone(), (*key, value.clone())),
            Ask::Get(key) => Executed::Unchanged(self.values.get(key).cloned().unwrap_or_default()),
        }
    }

    fn apply(&mut self, (key, value): &(u64, Bytes)) -> Self::Undo {
        let print = self.applied.add_anywhere(*key, value, &ACCOUNTS);
        (*key, self.values.insert(*key, value.clone()), print)
    }

    fn revert(&mut self, (key, value, print): Self::Undo) {
        match value {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
        self.applied.take_from_anywhere(print, &ACCOUNTS);
    }

    fn kind(ask: &Ask) -> Kind {
        Store::kind(ask)
    }

    fn keys(ask: &Ask) -> Vec<u64> {
        match ask {
            Ask::Put(key, _) | Ask::Get(key) => vec![*key],
        }
    }
}

impl Measured for Accounts {
    const NAME: &'static str = "accounts";

    fn shown() -> &'static Shown {
        &ACCOUNTS
    }

    fn write(number: u64, bytes: usize) -> Ask {
        Store::write(number, bytes)
    }

    fn read(number: u64) -> Option<Ask> {
        Store::read(number)
    }

    fn answers(ask: &Ask, reply: &Bytes) -> bool {
        match ask {
            Ask::Get(_) if reply.is_empty() => true,
            ask => Store::answers(ask, reply),
        }
    }
}

/// Keys of [`Store`]; all are written before the first read.
pub(super) const KEYS: u64 = 1 << 12;

impl Measured for Store {
    const NAME: &'static str = "store";

    fn shown() -> &'static Shown {
        &STORE
    }

    fn write(number: u64, bytes: usize) -> Ask {
        Ask::Put(number % KEYS, numbered(number, bytes))
    }

    fn read(number: u64) -> Option<Ask> {
        // Far from the key before.
        Some(Ask::Get(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS))
    }

    fn answers(ask: &Ask, reply: &Bytes) -> bool {
        match ask {
            Ask::Put(_, value) => value == reply,
            Ask::Get(key) => {
                let number = reply.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                number.is_some_and(|number| number % KEYS == *key)
            }
        }
    }
}
