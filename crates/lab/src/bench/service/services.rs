//! The services of the bench: an echo, and one of keys and values.
//!
//! Each service keeps a fingerprint of all changes that it applied, in their order. Changes of transactions
//! have no order before the commit, so their fingerprint does not depend on the order. The fingerprint is
//! shown outside of the state, because the bench must still be able to read it when a checkpoint has replaced
//! a replica's state.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::{BufMut, Bytes, BytesMut};
use quorate::service::{Cx, Executed, Kind, Service};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A service that the bench can load and inspect.
pub(super) trait Measured: Service<Request: Clone + Send + Sync, Reply: Send> + Default {
    const NAME: &'static str;

    /// Returns the changes that this process's replica has applied.
    fn shown() -> &'static AppliedPrint;

    /// Returns a write of `bytes` bytes, identified by its number.
    fn write(number: u64, bytes: usize) -> Self::Request;

    /// Returns a read of a written value, if the service has reads.
    fn read(number: u64) -> Option<Self::Request>;

    /// Whether this is the right answer.
    fn answers(request: &Self::Request, reply: &Self::Reply) -> bool;
}

/// The changes that a replica has applied: their number, and a fingerprint of them in their order.
#[derive(Debug, Default)]
pub(super) struct AppliedPrint {
    count: AtomicU64,
    print: AtomicU64,
}

impl AppliedPrint {
    const fn new() -> AppliedPrint {
        AppliedPrint { count: AtomicU64::new(0), print: AtomicU64::new(0) }
    }

    /// Returns the count and the fingerprint; call it while no change is being applied.
    pub(super) fn now(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.print.load(Ordering::Relaxed))
    }

    fn show(&self, applied: Applied) {
        self.count.store(applied.count, Ordering::Relaxed);
        self.print.store(applied.print, Ordering::Relaxed);
    }
}

/// The count and the fingerprint of the applied changes, as a part of the state.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Applied {
    count: u64,
    print: u64,
}

impl Applied {
    /// Adds a change, and returns the count and the fingerprint from before the change.
    fn add(&mut self, change: &[u8], shown: &AppliedPrint) -> Applied {
        let before = *self;
        *self = Applied { count: before.count + 1, print: xxh3_64_with_seed(change, before.print) };
        shown.show(*self);
        before
    }

    fn take_back(&mut self, before: Applied, shown: &AppliedPrint) {
        *self = before;
        shown.show(before);
    }

    /// Adds a change regardless of its order, because the leader makes the changes of a transaction before
    /// its commit has a place. Returns the fingerprint of the change.
    fn add_anywhere(&mut self, key: u64, change: &[u8], shown: &AppliedPrint) -> u64 {
        let print = xxh3_64_with_seed(change, key);
        *self = Applied { count: self.count + 1, print: self.print.wrapping_add(print) };
        shown.show(*self);
        print
    }

    fn take_from_anywhere(&mut self, print: u64, shown: &AppliedPrint) {
        *self = Applied { count: self.count - 1, print: self.print.wrapping_sub(print) };
        shown.show(*self);
    }
}

/// Returns `bytes` bytes that begin with a number.
fn numbered(number: u64, bytes: usize) -> Bytes {
    let mut body = BytesMut::with_capacity(bytes);
    body.put_u64_le(number);
    body.resize(bytes, number as u8);
    body.freeze()
}

/// Minimum size of a request, in bytes.
pub(super) const BYTES_MIN: usize = 8;

/// A service that answers each request with the same bytes, which are also the delta.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Echo(Applied);

static ECHO: AppliedPrint = AppliedPrint::new();

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

    fn shown() -> &'static AppliedPrint {
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

static STORE: AppliedPrint = AppliedPrint::new();

/// A request to [`Store`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum StoreRequest {
    Put(u64, Bytes),
    Get(u64),
}

impl Service for Store {
    type Request = StoreRequest;
    type Reply = Bytes;
    type Delta = (u64, Bytes);
    type Undo = (u64, Option<Bytes>, Applied);

    const SHORT: bool = true;

    fn execute(&self, request: &StoreRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match request {
            StoreRequest::Put(key, value) => Executed::Changed(value.clone(), (*key, value.clone())),
            StoreRequest::Get(key) => match self.values.get(key) {
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

    fn kind(request: &StoreRequest) -> Kind {
        match request {
            StoreRequest::Put(..) => Kind::Write,
            StoreRequest::Get(_) => Kind::Read,
        }
    }
}

/// Keys and values. Each request touches one key, so that transactions on different keys do not wait for each
/// other.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Accounts {
    values: HashMap<u64, Bytes>,
    applied: Applied,
}

static ACCOUNTS: AppliedPrint = AppliedPrint::new();

impl Accounts {
    /// Returns a read.
    pub(super) fn look(key: u64) -> StoreRequest {
        StoreRequest::Get(key % KEYS)
    }
}

impl Service for Accounts {
    type Request = StoreRequest;
    type Reply = Bytes;
    type Delta = (u64, Bytes);
    /// A key, its former value, and the fingerprint of the change.
    type Undo = (u64, Option<Bytes>, u64);

    const SHORT: bool = true;

    fn execute(&self, request: &StoreRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match request {
            StoreRequest::Put(key, value) => Executed::Changed(value.clone(), (*key, value.clone())),
            StoreRequest::Get(key) => Executed::Unchanged(self.values.get(key).cloned().unwrap_or_default()),
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

    fn kind(request: &StoreRequest) -> Kind {
        Store::kind(request)
    }

    fn keys(request: &StoreRequest) -> Vec<u64> {
        match request {
            StoreRequest::Put(key, _) | StoreRequest::Get(key) => vec![*key],
        }
    }
}

impl Measured for Accounts {
    const NAME: &'static str = "accounts";

    fn shown() -> &'static AppliedPrint {
        &ACCOUNTS
    }

    fn write(number: u64, bytes: usize) -> StoreRequest {
        Store::write(number, bytes)
    }

    fn read(number: u64) -> Option<StoreRequest> {
        Store::read(number)
    }

    fn answers(request: &StoreRequest, reply: &Bytes) -> bool {
        match request {
            StoreRequest::Get(_) if reply.is_empty() => true,
            request => Store::answers(request, reply),
        }
    }
}

/// Number of keys of [`Store`]; all are written before the first read.
pub(super) const KEYS: u64 = 1 << 12;

impl Measured for Store {
    const NAME: &'static str = "store";

    fn shown() -> &'static AppliedPrint {
        &STORE
    }

    fn write(number: u64, bytes: usize) -> StoreRequest {
        StoreRequest::Put(number % KEYS, numbered(number, bytes))
    }

    fn read(number: u64) -> Option<StoreRequest> {
        // The key of this read is far from the key of the preceding read.
        Some(StoreRequest::Get(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS))
    }

    fn answers(request: &StoreRequest, reply: &Bytes) -> bool {
        match request {
            StoreRequest::Put(_, value) => value == reply,
            StoreRequest::Get(key) => {
                let number = reply.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                number.is_some_and(|number| number % KEYS == *key)
            }
        }
    }
}
