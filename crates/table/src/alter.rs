//! Alterations: a table gets another definition, and keeps its rows.
//!
//! **Promise.** At one position, a table ends and another table begins, with the same rows under another
//! definition. Every operation before the position sees the earlier table, every operation behind it the
//! later one. An operation that was bound against the earlier definition fails behind the position, because
//! its table is gone. So no operation reads a row by a definition other than its own.
//!
//! **Method.** The later table has a number of its own. Each of its columns names its source: a column of the
//! earlier table, or a constant. The engine takes the columns over as they are. A constant costs one number
//! per block and not one per row. An integer that becomes wider is stored as the same number as before. So
//! the time of an alteration depends on the number of blocks, and the engine copies no row.
//!
//! **Invariants.**
//! - *Rows keep their places.* The partition column and the columns of the primary key come from the same
//!   columns of the earlier table, in the same order and with the same type.
//! - *The engine checks no existing row.* A new condition or NOT NULL holds for rows that are written after
//!   the alteration. The session that alters the table searches for rows that break it, and reverses the
//!   alteration if there are any.
//! - *Staged rows end.* A load belongs to the definition with which it began. So the engine drops its rows
//!   with the earlier table, and the session that publishes the load gets an error.
//! - *Versions stay.* A pinned version keeps the earlier table under the earlier number.

use serde::{Deserialize, Serialize};

use crate::{
    failure::Failure,
    schema::{Partition, Schema},
    types::Type,
    value::Value,
};

/// The source of a column's values in an altered table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ColumnSource {
    /// The column at this index of the earlier table. An integer may become wider.
    Column(usize),
    /// This value, in every row.
    Constant(Value),
}

/// A new definition of a table, with the source of each column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alteration {
    /// The definition of the table from the alteration on.
    pub schema: Schema,
    /// The sources of the columns, in the order of the new definition.
    pub columns: Vec<ColumnSource>,
}

impl Alteration {
    /// Returns an alteration that takes all columns over as they are.
    pub fn of_definition(schema: Schema) -> Alteration {
        let columns = (0..schema.columns.len()).map(ColumnSource::Column).collect();
        Alteration { schema, columns }
    }

    /// Refuses an alteration that would move rows, or whose columns cannot hold the values of their sources.
    pub fn check(&self, earlier: &Schema) -> Result<(), Failure> {
        let Alteration { schema, columns } = self;
        schema.check()?;
        if columns.len() != schema.columns.len() {
            return Err(Failure::malformed("an alteration does not name the source of each column"));
        }
        for (column, source) in schema.columns.iter().zip(columns) {
            let fits = match source {
                ColumnSource::Column(index) => {
                    earlier.columns.get(*index).is_some_and(|source| takes_over(source.ty, column.ty))
                }
                ColumnSource::Constant(value) => value.fits(column.ty),
            };
            if !fits {
                return Err(Failure::malformed("a column of an alteration cannot take over its source"));
            }
        }
        let source = |index: usize| match columns.get(index) {
            Some(ColumnSource::Column(source)) if schema.columns[index].ty == earlier.columns[*source].ty => {
                Some(*source)
            }
            _ => None,
        };
        let key: Option<Vec<usize>> = schema.primary_key.iter().map(|index| source(*index)).collect();
        let (before, after) = (&earlier.partition, &schema.partition);
        let is_alike = match (before, after) {
            (Partition::Hash { .. }, Partition::Hash { .. }) => true,
            (Partition::Range { low, high, .. }, Partition::Range { low: now_low, high: now_high, .. }) => {
                (low, high) == (now_low, now_high)
            }
            _ => false,
        };
        if key.as_ref() != Some(&earlier.primary_key)
            || !is_alike
            || source(after.column()) != Some(before.column())
        {
            return Err(Failure::malformed("an alteration moves rows"));
        }
        Ok(())
    }

    /// Returns a row of the altered table, made from a row of the earlier table.
    pub(crate) fn row(&self, row: &[Value]) -> Vec<Value> {
        let value = |(source, ty): (&ColumnSource, Type)| match source {
            ColumnSource::Constant(value) => value.clone(),
            ColumnSource::Column(index) => widened(&row[*index], ty),
        };
        self.columns.iter().zip(self.schema.columns.iter().map(|column| column.ty)).map(value).collect()
    }
}

/// Whether a column of type `to` can store the values of a column of type `from` as the same numbers.
fn takes_over(from: Type, to: Type) -> bool {
    let rank = |ty| [Type::Int2, Type::Int4, Type::Int8].iter().position(|known| *known == ty);
    from == to || rank(from).is_some() && rank(from) < rank(to)
}

fn widened(value: &Value, ty: Type) -> Value {
    let integer = match value {
        Value::Int2(integer) => i64::from(*integer),
        Value::Int4(integer) => i64::from(*integer),
        other => return other.clone(),
    };
    match ty {
        Type::Int8 => Value::Int8(integer),
        Type::Int4 => Value::Int4(integer as i32),
        _ => value.clone(),
    }
}
