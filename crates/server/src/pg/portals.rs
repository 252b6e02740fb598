//! The prepared statements and the portals of a connection.

use std::{collections::BTreeMap, sync::Arc};

use quorate_sql::{
    budget::MemoryReservation,
    cache::Prepared,
    encode::Formats,
    finish::{RowBatch, Rows},
    statement::Field,
};
use quorate_table::value::{Row, Value};

use super::script::Shape;

/// A prepared statement of a connection.
pub(super) struct NamedStatement {
    pub(super) prepared: Arc<Prepared>,
    /// Memory of the statement, freed together with it.
    pub(super) _hold: MemoryReservation,
}

/// A portal: a statement with its arguments, and the position that was reached in its rows.
pub(super) struct Portal {
    pub(super) prepared: Arc<Prepared>,
    pub(super) values: Vec<Value>,
    /// Memory of the arguments, freed together with the portal.
    pub(super) _hold: MemoryReservation,
    pub(super) formats: Formats,
    pub(super) fields: Option<Arc<Vec<Field>>>,
    pub(super) state: PortalState,
}

impl Portal {
    /// Returns the form of the answer to an Execute.
    pub(super) fn shape(&self) -> Shape {
        Shape { fields: self.fields.clone(), formats: self.formats.clone(), is_described: false }
    }
}

pub(super) enum PortalState {
    /// The portal was not executed yet.
    Bound,
    /// A stream of rows, the rows that were taken from the stream and not sent yet, and the word with which
    /// the tag begins.
    Open(Box<Rows>, RowBatch, &'static str),
    /// The rows, all in memory.
    Buffered { rows: std::vec::IntoIter<Row>, tag: String, _hold: MemoryReservation },
    /// All rows were sent.
    Done,
}

/// The portals of a connection.
#[derive(Default)]
pub(super) struct Portals {
    /// The unnamed portal. It is kept outside of the map, because most statements make an unnamed portal.
    unnamed: Option<Portal>,
    named: BTreeMap<String, Portal>,
}

impl Portals {
    pub(super) fn get(&self, name: &str) -> Option<&Portal> {
        if name.is_empty() { self.unnamed.as_ref() } else { self.named.get(name) }
    }

    pub(super) fn insert(&mut self, name: String, portal: Portal) {
        if name.is_empty() {
            self.unnamed = Some(portal);
        } else {
            self.named.insert(name, portal);
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Portal> {
        if name.is_empty() { self.unnamed.take() } else { self.named.remove(name) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unnamed.is_none() && self.named.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.unnamed = None;
        self.named.clear();
    }
}
