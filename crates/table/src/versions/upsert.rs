//! Upserts: rows that are added unless a row with their primary key exists.
//!
//! Promise: an operation's rows are processed in order, each against the table as the operation's earlier
//! rows have left it. The answer counts and returns the rows that were added or changed. As in PostgreSQL,
//! one operation may neither change a row twice nor change a row that it added itself (21000). Otherwise the
//! outcome would depend on the order of its rows. Rows with the same primary key lie in one range, so each
//! range decides alone.

use std::collections::BTreeMap;

use crate::{
    engine::{Failure, Written},
    eval::{eval, satisfies},
    operation::Conflict,
    schema::TableId,
    value::Row,
};

use super::{
    FoundRow, OwnedRow, RowPlace, Rows, Table,
    write::{Effect, Results, WriteTask, check_length, is_long},
};

impl<R: Rows> Table<R> {
    pub(super) fn upsert(
        &self,
        id: TableId,
        task: WriteTask<'_>,
        rows: &[Row],
        conflict: &Conflict,
        mut results: Results<'_>,
    ) -> Result<(Vec<Written>, Effect<R>), Failure> {
        let (mut removed, mut added) = (Vec::new(), Vec::<(RowPlace, OwnedRow)>::new());
        // The rows that this operation has added or changed, by ring key and by hash of the primary key.
        let mut touched: BTreeMap<(u64, u64), Vec<&Row>> = BTreeMap::new();
        let all: Vec<usize> = (0..self.schema.columns.len()).collect();
        let keyed = !self.schema.primary_key.is_empty();
        for arrival in self.checked_rows(task, rows) {
            let (place, row) = arrival?;
            let touched = touched.entry((place.key, place.tie)).or_default();
            let again = keyed && touched.iter().any(|other| self.same_key(row, other));
            let tied = if keyed && !again { self.rows.tied(place.key, place.tie) } else { Vec::new() };
            let there = tied.iter().find(|(_, other)| self.same_key(row, other));
            match (conflict, there) {
                (Conflict::Skip, _) if again => {}
                (Conflict::Update { .. }, _) if again => return Err(twice()),
                (_, None) => {
                    results.count(place.key, row)?;
                    added.push((place, row.as_slice().into()));
                    touched.push(row);
                }
                (Conflict::Skip, Some(_)) => {}
                (Conflict::Update { assignments, filter }, Some((there, _))) => {
                    let (_, old) =
                        self.rows.at(&FoundRow::somewhere(*there), &all).expect("a row that was found");
                    let both: Row = old.iter().chain(row).cloned().collect();
                    if !satisfies(filter.as_ref(), &both)? {
                        continue;
                    }
                    let mut new = old.to_vec();
                    for (column, expr) in assignments {
                        let key = *column == self.schema.partition.column()
                            || self.schema.primary_key.contains(column);
                        match new.get_mut(*column).filter(|_| !key) {
                            Some(value) => *value = eval(expr, &both)?,
                            None => {
                                return Err(Failure::malformed(
                                    "an upsert assigns a column of the key, or a column that does not exist",
                                ));
                            }
                        }
                    }
                    self.schema.check_row(&new)?;
                    self.schema.check_conditions(&new)?;
                    if assignments.iter().any(|(column, _)| is_long(&new[*column])) {
                        check_length(new.iter())?;
                    }
                    results.count(place.key, &new)?;
                    removed.push(*there);
                    added.push((*there, new.into()));
                    touched.push(row);
                }
            }
        }
        Ok((results.written, Effect::Rows { table: id, removed, added }))
    }
}

fn twice() -> Failure {
    Failure::new("21000", "ON CONFLICT DO UPDATE command cannot affect row a second time")
        .with_detail("Ensure that no rows proposed for insertion within the same command have duplicate constrained values.")
}
