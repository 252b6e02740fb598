//! A service that is not deterministic: registers whose values contain random bits.
//!
//! A value is the number of the call that wrote it, and some random bits that were drawn at the execution of
//! the call. So a value shows which execution wrote it, and two executions of one call differ.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use quorate_protocol::wire::{decode_body, encode_body};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64;

/// The number of a call, and the random bits of its execution.
pub(crate) type Written = (u64, u64);

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Write the call's number. The reply is [`Written`].
    Put { key: u64, call: u64 },
    /// Read the value of a key. The reply is an `Option<Written>`.
    Get { key: u64, call: u64 },
    /// Refused; the reason is the text of an `Option<Written>` ([`reason_of`]).
    Refuse { key: u64, call: u64 },
}

impl Request {
    pub(crate) fn call(&self) -> u64 {
        let (Request::Put { call, .. } | Request::Get { call, .. } | Request::Refuse { call, .. }) = self;
        *call
    }

    pub(crate) fn key(&self) -> u64 {
        let (Request::Put { key, .. } | Request::Get { key, .. } | Request::Refuse { key, .. }) = self;
        *key
    }
}

/// The state of the service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreState {
    pub(super) values: BTreeMap<u64, Written>,
    /// The executions of each call that changed anything.
    pub(crate) effects: BTreeMap<u64, Vec<Effect>>,
}

/// An execution that changed something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// The random bits.
    pub(crate) chance: u64,
    pub(crate) key: u64,
    /// The value that the write replaced.
    pub(crate) before: Option<Written>,
}

impl Effect {
    /// Returns the random bits, the key, and the call whose value was replaced.
    pub(crate) fn execution(&self) -> (u64, u64, Option<u64>) {
        (self.chance, self.key, self.before.map(|(call, _)| call))
    }
}

/// A change of the state, as backups apply it. A change is valid only in the state in which it was computed,
/// so it names the value that it replaces.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct StoreChange {
    pub(super) key: u64,
    pub(super) written: Written,
    pub(super) before: Option<Written>,
}

/// The inverse of a change.
#[derive(Debug)]
pub(super) struct StoreUndo {
    pub(super) key: u64,
    pub(super) call: u64,
    pub(super) before: Option<Written>,
}

impl StoreState {
    pub(super) fn apply(&mut self, StoreChange { key, written: (call, chance), before }: StoreChange) {
        self.values.insert(key, (call, chance));
        self.effects.entry(call).or_default().push(Effect { chance, key, before });
    }

    pub(super) fn revert(&mut self, undo: &StoreUndo) {
        let times = self.effects.get_mut(&undo.call).expect("it was applied");
        times.pop();
        if times.is_empty() {
            self.effects.remove(&undo.call);
        }
        match undo.before {
            Some(before) => self.values.insert(undo.key, before),
            None => self.values.remove(&undo.key),
        };
    }

    /// Returns the change that `undo` reverts, which is the latest change of its call.
    pub(super) fn change(&self, undo: &StoreUndo) -> Option<Bytes> {
        let effect = self.effects.get(&undo.call).and_then(|them| them.last())?;
        let (written, before) = ((undo.call, effect.chance), effect.before);
        Some(sealed(&StoreChange { key: undo.key, written, before }))
    }

    /// Returns the reply to a request that changes nothing.
    pub(super) fn look(&self, key: u64) -> Bytes {
        sealed(&self.values.get(&key).copied())
    }

    /// Returns the reason of a refusal, which shows the value of a key.
    pub(super) fn refusal(&self, key: u64) -> String {
        match self.values.get(&key) {
            Some((call, chance)) => format!("{call} {chance}"),
            None => String::new(),
        }
    }

    /// Returns a digest that is equal for equal states.
    pub(crate) fn digest(&self) -> u64 {
        xxh3_64(&sealed(self))
    }
}

/// Encodes a value as bytes.
pub(crate) fn sealed(value: &impl Serialize) -> Bytes {
    let mut bytes = BytesMut::new();
    encode_body(&mut bytes, value);
    bytes.freeze()
}

/// Decodes bytes that [`sealed`] made.
pub(crate) fn opened<T: DeserializeOwned>(bytes: &Bytes) -> T {
    decode_body(&mut bytes.clone()).expect("bytes arrive as they were made")
}

/// Returns the value that the reason of a refusal shows.
pub(crate) fn reason_of(refusal: &Bytes) -> Option<Written> {
    let reason = str::from_utf8(refusal).expect("a reason is a text");
    let (call, chance) = reason.split_once(' ')?;
    Some((call.parse().expect("the number of a call"), chance.parse().expect("random bits")))
}
