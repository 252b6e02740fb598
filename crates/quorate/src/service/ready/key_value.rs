//! A store of keys and values. Calls with different keys need not wait for each other.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Executed, Kind, Service};

/// Keys and values.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KeyValue(BTreeMap<String, String>);

/// A request to a [`KeyValue`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyValueRequest {
    /// Sets the value of a key.
    Put(String, String),
    /// Reads the value of a key.
    Get(String),
    /// Deletes a key.
    Delete(String),
}

/// A key and its new value; `None` deletes the key.
pub type Put = (String, Option<String>);

impl Service for KeyValue {
    type Request = KeyValueRequest;
    /// The former value of the key.
    type Reply = Option<String>;
    type Delta = Put;
    type Undo = Put;

    const SHORT: bool = true;

    fn execute(&self, request: &KeyValueRequest, _: &mut Cx<'_>) -> Executed<Self> {
        let there = |key: &String| self.0.get(key).cloned();
        match request {
            KeyValueRequest::Get(key) => Executed::Unchanged(there(key)),
            KeyValueRequest::Put(key, value) => {
                Executed::Changed(there(key), (key.clone(), Some(value.clone())))
            }
            KeyValueRequest::Delete(key) => Executed::Changed(there(key), (key.clone(), None)),
        }
    }

    fn apply(&mut self, (key, value): &Put) -> Put {
        let before = match value {
            Some(value) => self.0.insert(key.clone(), value.clone()),
            None => self.0.remove(key),
        };
        (key.clone(), before)
    }

    fn revert(&mut self, undo: Put) {
        self.apply(&undo);
    }

    fn kind(request: &KeyValueRequest) -> Kind {
        match request {
            KeyValueRequest::Get(_) => Kind::Read,
            KeyValueRequest::Put(..) | KeyValueRequest::Delete(_) => Kind::Write,
        }
    }

    fn keys(request: &KeyValueRequest) -> Vec<u64> {
        let (KeyValueRequest::Put(key, _) | KeyValueRequest::Get(key) | KeyValueRequest::Delete(key)) =
            request;
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        vec![hasher.finish()]
    }
}
