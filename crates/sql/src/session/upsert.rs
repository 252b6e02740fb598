//! INSERT … ON CONFLICT of a table whose constraints concern other tables: decides about each row.

use std::collections::{BTreeMap, BTreeSet};

use quorate_table::{
    eval::{eval, satisfies},
    expr::Expr,
    operation::Conflict,
    value::{Row, Value, key_of},
};

use crate::error::{Result, SqlError, code};

/// The effects of an INSERT … ON CONFLICT.
pub(super) struct UpsertDecision<'a> {
    /// The rows to add.
    pub(super) added: Vec<Row>,
    /// The changes of existing rows.
    pub(super) changes: Vec<RowChange<'a>>,
    /// The rows of RETURNING, in the order of the rows to add.
    pub(super) returned: Vec<Row>,
}

/// The change of an existing row.
pub(super) struct RowChange<'a> {
    pub(super) old: &'a Row,
    pub(super) new: Row,
    /// The columns that the statement assigns.
    pub(super) assigned: Vec<usize>,
    /// The columns of the key by which the row was found.
    pub(super) arbiter: &'a [usize],
}

impl<'a> UpsertDecision<'a> {
    /// Decides for each row of an INSERT. `existing` are the rows that have one of their keys. `taken` gets
    /// the number of an arbiter, and returns the error of a change to a key of it that another row has.
    pub(super) fn of(
        arbiters: &'a [Vec<usize>],
        rows: Vec<Row>,
        existing: &'a [Row],
        conflict: &Conflict,
        returning: &[Expr],
        taken: impl Fn(usize) -> SqlError,
    ) -> Result<UpsertDecision<'a>> {
        /// The owner of a key.
        #[derive(Clone, Copy)]
        enum Owner {
            Existing(usize),
            Changed,
            Added,
        }
        let keys = |row: &Row| {
            let key = |(number, columns): (usize, &Vec<usize>)| {
                let values = columns.iter().map(|&column| &row[column]);
                let has_null = values.clone().any(Value::is_null);
                (!has_null).then(|| (number, key_of(values)))
            };
            arbiters.iter().enumerate().filter_map(key).collect::<Vec<_>>()
        };
        let mut owners = BTreeMap::new();
        // The keys that changed rows had and that no row has now.
        let mut vacated = BTreeSet::new();
        for (index, row) in existing.iter().enumerate() {
            owners.extend(keys(row).into_iter().map(|key| (key, Owner::Existing(index))));
        }
        let mut decision = UpsertDecision { added: Vec::new(), changes: Vec::new(), returned: Vec::new() };
        let returned = |row: &Row| returning.iter().map(|expr| Ok(eval(expr, row)?)).collect::<Result<Row>>();
        for row in rows {
            let owner = keys(&row).into_iter().find_map(|key| Some((key.0, *owners.get(&key)?, key)));
            match (owner, conflict) {
                (Some(_), Conflict::Skip) => {}
                (Some((_, Owner::Changed | Owner::Added, _)), Conflict::Update { .. }) => {
                    return Err(changed_twice());
                }
                (Some((number, Owner::Existing(index), key)), Conflict::Update { assignments, filter }) => {
                    let old = &existing[index];
                    owners.insert(key, Owner::Changed);
                    let both: Row = old.iter().chain(&row).cloned().collect();
                    if !satisfies(filter.as_ref(), &both)? {
                        continue;
                    }
                    let mut new = old.clone();
                    for (column, value) in assignments {
                        new[*column] = eval(value, &both)?;
                    }
                    let (before, after) = (keys(old), keys(&new));
                    vacated.extend(before.iter().filter(|key| !after.contains(key)).cloned());
                    for key in after.into_iter().filter(|key| !before.contains(key)) {
                        if owners.contains_key(&key) && !vacated.remove(&key) {
                            return Err(taken(key.0));
                        }
                        owners.insert(key, Owner::Changed);
                    }
                    if !returning.is_empty() {
                        decision.returned.push(returned(&new)?);
                    }
                    let assigned = assignments.iter().map(|(column, _)| *column).collect();
                    decision.changes.push(RowChange { old, new, assigned, arbiter: &arbiters[number] });
                }
                (None, _) => {
                    owners.extend(keys(&row).into_iter().map(|key| (key, Owner::Added)));
                    if !returning.is_empty() {
                        decision.returned.push(returned(&row)?);
                    }
                    decision.added.push(row);
                }
            }
        }
        Ok(decision)
    }
}

fn changed_twice() -> SqlError {
    SqlError::new(
        code::CARDINALITY_VIOLATION,
        "ON CONFLICT DO UPDATE command cannot affect row a second time",
    )
    .hint("Ensure that no rows proposed for insertion within the same command have duplicate constrained values.")
}
