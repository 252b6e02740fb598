//! A store of keys and values: calls that touch different keys need not wait for each other.

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
pub enum Ask {
    /// Gives a key this value.
    Put(String, String),
    /// Asks for the value of a key.
    Get(String),
    /// Deletes a key.
    Delete(String),
}

/// The value of a key; none: it is deleted.
pub type Put = (String, Option<String>);

impl Service for KeyValue {
    type Request = Ask;
    /// The value of the key before.
    type Reply = Option<String>;
    type Delta = Put;
    type Undo = Put;

    const SHORT: bool = true;

    fn execute(&self, ask: &Ask, _: &mut Cx<'_>) -> Executed<Self> {
        let there = |key: &String| self.0.get(key).cloned();
        match ask {
            Ask::Get(key) => Executed::Unchanged(there(key)),
            Ask::Put(key, value) => Executed::Changed(there(key), (key.clone(), Some(value.clone()))),
            Ask::Delete(key) => Executed::Changed(there(key), (key.clone(), None)),
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

    fn kind(ask: &Ask) -> Kind {
        match ask {
            Ask::Get(_) => Kind::Read,
            Ask::Put(..) | Ask::Delete(_) => Kind::Write,
        }
    }

    fn keys(ask: &Ask) -> Vec<u64> {
        let (Ask::Put(key, _) | Ask::Get(key) | Ask::Delete(key)) = ask;
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        vec![hasher.finish()]
    }
}
