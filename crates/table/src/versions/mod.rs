//! Versions of tables: what every engine does alike, over rows that each keeps in its own way.
//!
//! Promise: the operations of a batch take effect exactly as if one after another, a statement wholly or not at all,
//! and replicas that were given the same operations for a range hold the same rows of it.
//!
//! A write is evaluated against the present version into an `Effect` (`write.rs`), which then either takes place or
//! does not: a failed statement has changed nothing, and a held one is an effect that waits. A version is a map from
//! table to rows ([`Rows`]). The present changes in place, and pinned versions know what it has overwritten (`pins.rs`).
//! Operations that stand together in a batch are handed to the rows together (`batch.rs`).
//!
//! A row's [`Place`] is its ring key, then a hash of its primary key, then its number. So the rows of an arc lie
//! together (migration and pruning are slices), rows that could have equal primary keys lie together (the order is the
//! unique index), and every replica visits rows in the same order, whatever way they came and whatever way they lie.
//!
//! Uniqueness is judged at the end of the statement, as the SQL standard says; PostgreSQL judges row by row and refuses
//! some updates that end without duplicates (`SET k = k + 1`). Row by row, the outcome would depend on where rows lie.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Answer, Epoch, Failure, RowId, Written},
    explain::Explained,
    expr::Expr,
    host::Host,
    operation::{LoadId, Select},
    saved::{Line, Records, Saver},
    schema::{KeyRange, Schema, TableId},
    value::Value,
};

mod batch;
mod budget;
mod migrate;
mod pins;
mod read;
mod save;
mod staged;
mod upsert;
mod write;

pub(crate) use batch::Versions;
pub(crate) use budget::Allowance;
pub(crate) use read::{Gathering, output_of};
pub(crate) use write::Change;

use staged::Staged;

/// Where a row lies among all rows of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub(crate) key: u64,
    pub(crate) tie: u64,
    pub(crate) id: RowId,
}

impl Place {
    /// Before every row of this ring key.
    pub(crate) fn first(key: u64) -> Place {
        Place { key, tie: 0, id: RowId { epoch: Epoch(0), line: 0 } }
    }
}

/// Where the rows of a table hold a row: good until rows come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    pub(crate) block: u32,
    pub(crate) row: u32,
}

/// A row that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub(crate) place: Place,
    pub(crate) spot: Spot,
}

impl Found {
    /// A row that has not been looked for.
    pub(crate) fn somewhere(place: Place) -> Found {
        Found { place, spot: Spot { block: u32::MAX, row: u32::MAX } }
    }
}

/// Rows that were found for a write ahead of its turn.
pub struct Foreseen {
    pub(crate) rows: Vec<Found>,
    /// Whether they are those that satisfy its filter now; otherwise these are among them, and some may be gone.
    pub(crate) certain: bool,
}

/// A row that is no part of a table, or not yet.
pub(crate) type Stored = Arc<[Value]>;

/// A row of a table: borrowed where it lies as it is, put together where it lies in pieces.
pub(crate) type Seen<'a> = Cow<'a, [Value]>;

/// A read of rows of one version.
pub struct Read<'a> {
    /// The arcs it is to answer for.
    pub ranges: &'a [KeyRange],
    /// What to read.
    pub select: &'a Select,
    /// Which job of the batch asks, as the host numbers them.
    pub job: usize,
    /// What may be gathered for it.
    pub allowance: Allowance<'a>,
}

/// What an operation asks of rows.
pub enum Task<'a> {
    /// A read's answer.
    Read(Read<'a>),
    /// The rows that a write may change.
    Find {
        /// The arcs it is about.
        ranges: &'a [KeyRange],
        /// Which rows of them.
        filter: Option<&'a Expr>,
        /// The columns that it changes, and their values.
        assigned: &'a [(usize, Expr)],
    },
    /// Nothing: the operation brings rows.
    Nothing,
}

/// The rows of one table in one version, in the order of their places. A clone is another version: cheap, and not
/// changed by what happens to the first. Whoever changes rows may ask for a log of what was overwritten.
pub trait Rows: Clone + Send {
    /// None, of a table with this definition.
    fn new(schema: &Arc<Schema>) -> Self;

    /// Rows of a table with this definition that came together; they are never searched, but may join others.
    fn gathered<'a>(schema: &Arc<Schema>, rows: impl Iterator<Item = (Place, &'a [Value])>) -> Self;

    /// How many there are.
    fn len(&self) -> usize;

    /// The bytes they take, except those of parts already in `counted`, which gains the rest.
    fn bytes_beside(&self, counted: &mut BTreeSet<usize>) -> usize;

    /// About how many bytes of it are no part of a newer version of the same rows.
    fn bytes_apart(&self, newer: &Self) -> usize;

    /// Where they lie, in order.
    fn places(&self) -> impl Iterator<Item = Place>;

    /// Whether there is a row at this place.
    fn has(&self, place: &Place) -> bool;

    /// The rows of sorted, disjoint arcs, from a place on.
    fn within<'a>(&'a self, ranges: &'a [KeyRange], start: Place) -> impl Iterator<Item = (Place, Seen<'a>)>;

    /// The rows whose ring key and tie these are; at least what their primary keys are made of.
    fn tied(&self, key: u64, tie: u64) -> Vec<(Place, Seen<'_>)>;

    /// The rows in these sorted, disjoint arcs that may satisfy the filter, and those on which it fails; of each at
    /// least these columns.
    fn candidates<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        filter: Option<&Expr>,
        columns: &'a [usize],
    ) -> impl Iterator<Item = (Found, Seen<'a>)>;

    /// A row that was found, if it is still anywhere; at least these columns.
    fn at(&self, found: &Found, columns: &[usize]) -> Option<(Found, Seen<'_>)>;

    /// What one change of one row overwrote.
    type Undo: Send;

    /// The bytes that it takes.
    fn undo_bytes(undo: &Self::Undo) -> usize;

    /// Puts rows at their places, where there are none.
    fn insert(&mut self, rows: Vec<(Place, Stored)>, log: Option<&mut Vec<Self::Undo>>);

    /// Takes in all rows of others, of the same table and at places where there are none.
    fn join(&mut self, others: Vec<Arc<Self>>);

    /// Takes away rows that are there.
    fn remove(&mut self, places: &[Place], log: Option<&mut Vec<Self::Undo>>);

    /// Finds ahead what a change needs of the present rows, good until they are tidied.
    fn prepare(&self, _change: &mut Change) {}

    /// Changes rows where they are.
    fn change(&mut self, change: &Change, log: Option<&mut Vec<Self::Undo>>);

    /// Takes changes back, the last first.
    fn undo(&mut self, log: &[Self::Undo]);

    /// Whether a value can be told from those that never were in this column.
    fn knows(&self, _column: usize, _value: &Value) -> bool {
        true
    }

    /// Takes note of a value that is about to come to a column.
    fn expect(&mut self, _column: usize, _value: &Value) {}

    /// Saves what has changed since it was saved before, from a place of its own counting on. Where to go on if that is too
    /// much at once.
    fn save(&self, from: (usize, usize), saver: &mut Saver<'_>) -> Option<(usize, usize)>;

    /// Takes in what a line of an outline names, behind what was taken in before.
    fn restore(&mut self, line: Line, records: &Records) -> Result<(), Failure>;

    /// Whether nothing has piled up that is put in order between batches.
    fn is_tidy(&self) -> bool {
        true
    }

    /// Puts it in order.
    fn tidy(&mut self) {}

    /// Whether it pays to find for writes and reads of a batch together.
    const SHARED: bool;

    /// What the operations of a batch find in the version before all of them.
    type Foresight<'a>;

    /// What ways of finding rows cost on this machine; no result depends on it.
    type Costs: Default + Send + Sync;

    /// Finds it for all of them, each as if it were alone; `followed` if writes among them will be noted. What is
    /// withdrawn meanwhile is given up.
    fn foresee<'a>(
        &self,
        schema: &Schema,
        tasks: &[Task<'a>],
        followed: bool,
        costs: &Self::Costs,
        host: &dyn Host,
    ) -> Self::Foresight<'a>;

    /// What a read answers now; given once, and not if it must be asked anew.
    fn answer(&self, foresight: &mut Self::Foresight<'_>, task: usize) -> Option<Result<Answer, Failure>>;

    /// How a read was done that is not answered yet; its rows are counted later.
    fn explain(&self, foresight: &Self::Foresight<'_>, task: usize) -> Explained;

    /// The rows that a write must look at; given once.
    fn foreseen(&self, foresight: &mut Self::Foresight<'_>, task: usize) -> Option<Foreseen>;

    /// Takes note that these rows are about to change in these columns, or have just changed; that they are about to go
    /// or have just come, if no columns are named. `again` if note was taken of them before the same change.
    fn note(
        &self,
        foresight: &mut Self::Foresight<'_>,
        rows: &[Found],
        changing: Option<&[usize]>,
        again: bool,
    );
}

/// All tables at one moment.
#[derive(Clone)]
struct Version<R> {
    tables: BTreeMap<TableId, Arc<Table<R>>>,
}

impl<R> Default for Version<R> {
    fn default() -> Version<R> {
        Version { tables: BTreeMap::new() }
    }
}

#[derive(Clone)]
struct Table<R> {
    schema: Arc<Schema>,
    rows: R,
    /// Rows of loads that are not published.
    staged: BTreeMap<LoadId, Staged<R>>,
}

impl<R> Version<R> {
    fn table(&self, table: TableId) -> Result<&Arc<Table<R>>, Failure> {
        self.tables.get(&table).ok_or_else(|| no_table(table))
    }
}

fn no_table(table: TableId) -> Failure {
    Failure::new("42P01", format!("table {} does not exist", table.0))
}

impl<R: Rows> Table<R> {
    fn new(schema: Schema) -> Table<R> {
        let schema = Arc::new(schema);
        Table { rows: R::new(&schema), schema, staged: BTreeMap::new() }
    }

    /// Where a row of this number belongs.
    fn place(&self, row: &[Value], id: RowId) -> Place {
        Place { key: self.schema.partition.key(row), tie: self.schema.primary_key_hash(row), id }
    }

    fn reach(&self, ranges: &[KeyRange], filter: Option<&Expr>) -> Vec<KeyRange> {
        reach(&self.schema, ranges, filter)
    }

    /// The bytes it takes, except those of parts already counted.
    fn bytes_beside(&self, counted: &mut BTreeSet<usize>) -> usize {
        let staged = self.staged.values().map(|staged| staged.bytes_beside(counted)).sum::<usize>();
        staged + self.rows.bytes_beside(counted)
    }

    /// About how many bytes of it are no part of a newer version of it.
    fn bytes_apart(&self, newer: Option<&Table<R>>) -> usize {
        let Some(newer) = newer else { return self.bytes_beside(&mut BTreeSet::new()) };
        let staged = self.staged.iter().map(|(load, staged)| match newer.staged.get(load) {
            Some(newer) => staged.bytes_apart(newer),
            None => staged.bytes_beside(&mut BTreeSet::new()),
        });
        staged.sum::<usize>() + self.rows.bytes_apart(&newer.rows)
    }
}

impl Read<'_> {
    /// The arcs that it has to look at.
    pub(crate) fn reach(&self, schema: &Schema) -> Vec<KeyRange> {
        reach(schema, self.ranges, self.select.filter.as_ref())
    }
}

/// The arcs among `ranges` that can hold a row satisfying the filter.
pub(crate) fn reach(schema: &Schema, ranges: &[KeyRange], filter: Option<&Expr>) -> Vec<KeyRange> {
    match filter.map(|filter| schema.partition.ranges(filter)) {
        Some(reach) if ranges == [KeyRange::ALL] => reach,
        Some(reach) => KeyRange::intersection(&KeyRange::union(ranges.to_vec()), &reach),
        None => KeyRange::union(ranges.to_vec()),
    }
}

/// One empty result for each range.
fn nothing_written(ranges: &[KeyRange]) -> Vec<Written> {
    vec![Written::default(); ranges.len()]
}
