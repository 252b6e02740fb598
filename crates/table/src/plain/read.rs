//! Reads: one pass over the rows a filter can match.

use std::collections::HashSet;

use rustc_hash::FxBuildHasher;

use crate::{
    aggregate::Groups,
    engine::{Answer, Cursor, Epoch, Failure, Page, RowId},
    eval::{eval, satisfies},
    expr::Expr,
    operation::{Order, Output, Select},
    schema::KeyRange,
    value::{Row, Value, key_of},
};

use super::{Version, blocks::Place};

impl Version {
    /// A whole read.
    pub(crate) fn select(&self, ranges: &[KeyRange], select: &Select) -> Result<Answer, Failure> {
        let table = self.table(select.table)?;
        let ranges = table.reach(ranges, select.filter.as_ref());
        let rows = table.rows.within(&ranges, Place::first(0)).map(|(_, row)| row);
        match &select.output {
            Output::Rows { columns, order, limit, distinct } => {
                Order::check(order, columns.len())?;
                let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
                let mut output: Vec<Row> = Vec::new();
                let mut seen = HashSet::with_hasher(FxBuildHasher);
                for row in rows {
                    if order.is_empty() && output.len() >= limit {
                        break;
                    }
                    if !satisfies(select.filter.as_ref(), row)? {
                        continue;
                    }
                    let result = project(columns, row)?;
                    if *distinct && !seen.insert(key_of(&result)) {
                        continue;
                    }
                    output.push(result);
                    if !order.is_empty() && output.len() >= limit.saturating_add(Order::SURPLUS) {
                        Order::keep_first(&mut output, order, limit);
                    }
                }
                Order::keep_first(&mut output, order, limit);
                Ok(Answer::Rows(output))
            }
            Output::Groups { keys, aggregates } => {
                let mut groups = Groups::new(keys.len(), aggregates.clone());
                for row in rows {
                    if satisfies(select.filter.as_ref(), row)? {
                        groups.add(project(keys, row)?, row)?;
                    }
                }
                Ok(Answer::Groups(groups.into_groups()))
            }
        }
    }

    /// Part of a read of plain rows.
    pub(crate) fn page(
        &self,
        ranges: &[KeyRange],
        select: &Select,
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Page, Failure> {
        let columns = match &select.output {
            Output::Rows { columns, order, limit: None, distinct: false } if order.is_empty() => columns,
            _ => return Err(Failure::malformed("only plain rows are read page by page")),
        };
        let table = self.table(select.table)?;
        let ranges = table.reach(ranges, select.filter.as_ref());
        let start = match cursor {
            None => Place::first(0),
            Some(cursor) => place_of(&cursor.0)?,
        };
        let mut output = Vec::new();
        for (place, row) in table.rows.within(&ranges, start) {
            if output.len() >= rows.max(1) {
                return Ok(Page { rows: output, next: Some(Cursor(numbers_of(place).to_vec())) });
            }
            if satisfies(select.filter.as_ref(), row)? {
                output.push(project(columns, row)?);
            }
        }
        Ok(Page { rows: output, next: None })
    }
}

/// A place as it stands in a cursor.
pub(crate) fn numbers_of(place: &Place) -> [u64; 4] {
    [place.key, place.tie, place.id.epoch.0, place.id.line.into()]
}

/// The place in a cursor, which may come from anywhere.
pub(crate) fn place_of(numbers: &[u64]) -> Result<Place, Failure> {
    let malformed = || Failure::malformed("a cursor");
    let &[key, tie, epoch, line] = numbers else { return Err(malformed()) };
    let line = u32::try_from(line).map_err(|_| malformed())?;
    Ok(Place { key, tie, id: RowId { epoch: Epoch(epoch), line } })
}

fn project(columns: &[Expr], row: &[Value]) -> Result<Row, Failure> {
    columns.iter().map(|column| eval(column, row)).collect()
}
