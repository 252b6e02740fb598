//! Staged rows: the rows of a load, which become visible together or are dropped together.
//!
//! A load arrives in pieces. Each piece is kept as a *run*: sorted, in the storage form of the table, and
//! never changed. So a piece costs the same however many pieces came before. A row is inserted among the
//! table's rows only once, when all runs join the rows of the table. No read searches staged rows. A move of
//! ranges needs them in order, and merges the runs as it goes.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    sync::Arc,
};

use crate::schema::{KeyRange, Schema};

use super::{RowPlace, RowView, Rows};

/// The rows of a load.
#[derive(Clone)]
pub(super) struct Staged<R> {
    /// The runs, none of which is empty.
    pub(super) runs: Vec<Arc<R>>,
}

impl<R> Default for Staged<R> {
    fn default() -> Staged<R> {
        Staged { runs: Vec::new() }
    }
}

impl<R: Rows> Staged<R> {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Adds a piece as a run.
    pub(super) fn add(&mut self, run: R) {
        if run.len() > 0 {
            self.runs.push(Arc::new(run));
        }
    }

    /// Returns the runs.
    pub(super) fn runs(&self) -> impl Iterator<Item = &R> {
        self.runs.iter().map(|run| &**run)
    }

    /// Begins a run whose rows are still to be restored.
    pub(super) fn begin(&mut self, run: R) -> &mut R {
        self.runs.push(Arc::new(run));
        self.last().expect("just begun")
    }

    /// Returns the run that was begun last.
    pub(super) fn last(&mut self) -> Option<&mut R> {
        self.runs.last_mut().map(Arc::make_mut)
    }

    pub(super) fn has(&self, place: &RowPlace) -> bool {
        self.runs.iter().any(|run| run.has(place))
    }

    /// Returns the places of all rows in these sorted, disjoint arcs, run by run.
    pub(super) fn places<'a>(&'a self, ranges: &'a [KeyRange]) -> impl Iterator<Item = RowPlace> + 'a {
        self.runs.iter().flat_map(|run| run.places()).filter(|place| KeyRange::cover(ranges, place.key))
    }

    /// Returns the rows of sorted, disjoint arcs, run by run.
    pub(super) fn unordered<'a>(
        &'a self,
        ranges: &'a [KeyRange],
    ) -> impl Iterator<Item = (RowPlace, RowView<'a>)> + 'a {
        self.runs.iter().flat_map(move |run| run.within(ranges, RowPlace::first(0)))
    }

    /// Returns the rows of sorted, disjoint arcs in order, from a place on.
    pub(super) fn within<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        start: RowPlace,
    ) -> impl Iterator<Item = (RowPlace, RowView<'a>)> + 'a {
        let mut runs: Vec<_> = self.runs.iter().map(|run| run.within(ranges, start).peekable()).collect();
        let first = runs.iter_mut().enumerate();
        let first = first.filter_map(|(number, run)| run.peek().map(|(place, _)| Reverse((*place, number))));
        let mut next: BinaryHeap<Reverse<(RowPlace, usize)>> = first.collect();
        std::iter::from_fn(move || {
            let Reverse((_, number)) = next.pop()?;
            let row = runs[number].next();
            next.extend(runs[number].peek().map(|(place, _)| Reverse((*place, number))));
            row
        })
    }

    /// Removes and returns the rows in these sorted, disjoint arcs, which usually cover all rows.
    pub(super) fn take(&mut self, schema: &Arc<Schema>, ranges: &[KeyRange]) -> Vec<Arc<R>> {
        let mut taken = Vec::new();
        for run in std::mem::take(&mut self.runs) {
            match run.places().filter(|place| KeyRange::cover(ranges, place.key)).count() {
                0 => self.runs.push(run),
                all if all == run.len() => taken.push(run),
                _ => {
                    let rows: Vec<(RowPlace, RowView<'_>)> = run.within(ranges, RowPlace::first(0)).collect();
                    let places: Vec<RowPlace> = rows.iter().map(|(place, _)| *place).collect();
                    taken.push(Arc::new(R::gathered(
                        schema,
                        rows.iter().map(|(place, row)| (*place, &row[..])),
                    )));
                    let mut staying = R::clone(&run);
                    staying.remove(&places, None);
                    self.runs.push(Arc::new(staying));
                }
            }
        }
        taken
    }

    /// Returns the staged rows' memory in bytes, without parts that are already in `counted`. Adds the other
    /// parts to `counted`.
    pub(super) fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> usize {
        self.runs.iter().map(|run| run.bytes_uncounted(counted)).sum()
    }

    /// Estimates the memory that the same load in a newer version does not share, in bytes.
    pub(super) fn bytes_unshared(&self, newer: &Staged<R>) -> usize {
        let shared: BTreeSet<*const R> = newer.runs.iter().map(Arc::as_ptr).collect();
        let apart = self.runs.iter().filter(|run| !shared.contains(&Arc::as_ptr(run)));
        apart.map(|run| run.bytes_uncounted(&mut BTreeSet::new())).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        engine::{Epoch, RowId},
        plain::Blocks,
        scan::Columns,
        schema::{Column, Partition},
        value::{Row, Type, Value},
    };

    fn schema() -> Arc<Schema> {
        let column = |name: &str, ty| Column {
            name: name.to_owned(),
            ty,
            modifier: None,
            not_null: false,
            default: None,
        };
        Arc::new(Schema {
            name: String::from("t"),
            columns: vec![column("n", Type::Int8), column("s", Type::Text)],
            primary_key: Vec::new(),
            partition: Partition::Hash { column: 0 },
            constraints: Vec::new(),
        })
    }

    fn rows<'a>(rows: impl Iterator<Item = (RowPlace, RowView<'a>)>) -> Vec<(RowPlace, Row)> {
        rows.map(|(place, row)| (place, row.into_owned())).collect()
    }

    /// Stages rows with these keys in pieces, then reads the rows in an arc from a key on, and takes them.
    fn check<R: Rows>(pieces: &[Vec<u64>], arc: KeyRange, from: u64) -> Result<(), TestCaseError> {
        let (schema, arcs) = (schema(), [arc]);
        let (mut staged, mut model) = (Staged::<R>::default(), BTreeMap::new());
        for (piece, epoch) in pieces.iter().zip(0..) {
            let place = |line: u32, key| RowPlace { key, tie: 0, id: RowId { epoch: Epoch(epoch), line } };
            let texts = |key: &u64| vec![Value::Int8(*key as i64), Value::text_of(format!("{}", key % 7))];
            let coming: Vec<(RowPlace, Row)> =
                piece.iter().zip(0..).map(|(key, line)| (place(line, *key), texts(key))).collect();
            staged.add(R::gathered(&schema, coming.iter().map(|(place, row)| (*place, &row[..]))));
            model.extend(coming);
        }
        let start = RowPlace::first(from);
        let inside = |place: &RowPlace| arc.contains(place.key);
        let (within, outside): (Vec<(RowPlace, Row)>, Vec<_>) =
            model.clone().into_iter().partition(|(place, _)| inside(place));
        let behind: Vec<_> = within.iter().filter(|(place, _)| *place >= start).cloned().collect();
        prop_assert_eq!(rows(staged.within(&arcs, start)), behind);
        let places: BTreeSet<RowPlace> = staged.places(&arcs).collect();
        prop_assert_eq!(places.len(), within.len());
        prop_assert!(model.keys().all(|place| staged.has(place)));

        let before = staged.clone();
        let mut joined = R::new(&schema);
        joined.join(staged.take(&schema, &arcs));
        let all = [KeyRange::ALL];
        prop_assert_eq!(rows(joined.within(&all, RowPlace::first(0))), within);
        prop_assert_eq!(rows(staged.within(&all, RowPlace::first(0))), outside.clone());
        prop_assert_eq!(staged.is_empty(), outside.is_empty());
        prop_assert_eq!(rows(before.within(&all, RowPlace::first(0))), model.into_iter().collect::<Vec<_>>());
        Ok(())
    }

    proptest! {
        #[test]
        fn staged_rows_equal_an_ordered_map(
            pieces in prop::collection::vec(prop::collection::vec(0u64..40, 0..30), 0..6),
            low in 0u64..40, span in 0u64..40, from in 0u64..40
        ) {
            let arc = KeyRange { low, high: low + span };
            check::<Blocks>(&pieces, arc, from)?;
            check::<Columns>(&pieces, arc, from)?;
        }
    }
}
