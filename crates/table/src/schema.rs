//! Tables: columns, keys, and how rows find their place on the ring.

use serde::{Deserialize, Serialize};

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    expr::Expr,
    failure::Failure,
    modifier::Modifier,
    value::{Type, Value, key_of},
};

/// No table has more columns; PostgreSQL's limit.
pub const COLUMNS_MAX: usize = 1600;

/// No update makes the texts of a row longer than this many bytes, together: it could not be moved to another process. Short
/// ones are not counted: of as many as there may be columns, none makes a row too long.
pub const ROW_BYTES_MAX: usize = 32 << 20;

/// No text up to this many bytes makes a row too long.
pub const TEXT_BYTES_SHORT: usize = 4 << 10;

/// A table's number, given once by the order and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableId(pub u32);

/// A column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name, as stored (lower case unless quoted).
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// What its declaration asks beyond the type.
    pub modifier: Option<Modifier>,
    /// Whether NULL is refused.
    pub not_null: bool,
    /// What an INSERT that leaves the column out stores; constant.
    pub default: Option<Expr>,
}

impl Column {
    /// A default is a constant, or a parameter that whoever inserts has a value for, which may be cast.
    fn takes_default(&self, default: &Expr) -> bool {
        match default {
            Expr::Constant(value, _) => value.fits(self.ty),
            Expr::Cast(inner, ty) => matches!(**inner, Expr::Parameter(..)) && *ty == self.ty,
            Expr::Parameter(_, ty) => *ty == self.ty,
            _ => false,
        }
    }
}

/// A table's definition. Travels in the total order, so every process holds the same one at the same position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    /// Table name, as stored.
    pub name: String,
    /// Columns in order.
    pub columns: Vec<Column>,
    /// Positions of the primary key's columns; empty when there is none. Contains the partition column.
    pub primary_key: Vec<usize>,
    /// How a row's ring key is computed.
    pub partition: Partition,
}

impl Schema {
    /// Refuses a definition that contradicts itself. Messages name the column.
    pub fn check(&self) -> Result<(), Failure> {
        let invalid = |message: String| Err(Failure::new("42P16", message));
        if self.columns.len() > COLUMNS_MAX {
            return Err(Failure::new("54011", format!("tables can have at most {COLUMNS_MAX} columns")));
        }
        self.partition.check(&self.columns)?;
        for (index, column) in self.columns.iter().enumerate() {
            if self.columns[..index].iter().any(|other| other.name == column.name) {
                return Err(Failure::new(
                    "42701",
                    format!("column \"{}\" specified more than once", column.name),
                ));
            }
            if !column.default.as_ref().is_none_or(|default| column.takes_default(default)) {
                return invalid(format!(
                    "the default of column \"{}\" is neither a constant of its type nor a value of the session",
                    column.name
                ));
            }
        }
        for (index, &column) in self.primary_key.iter().enumerate() {
            if column >= self.columns.len() || self.primary_key[..index].contains(&column) {
                return invalid(
                    "the primary key names a column twice, or one that does not exist".to_owned(),
                );
            }
        }
        let partition = self.partition.column();
        if !self.primary_key.is_empty() && !self.primary_key.contains(&partition) {
            let name = &self.columns[partition].name;
            return invalid(format!("the primary key must contain the partition column \"{name}\""));
        }
        Ok(())
    }

    /// Refuses a row that the columns cannot hold: 23502 for NULL where there must be none.
    pub fn check_row(&self, row: &[Value]) -> Result<(), Failure> {
        if row.len() != self.columns.len() {
            return Err(Failure::malformed("a row of another width"));
        }
        for (index, (column, value)) in self.columns.iter().zip(row).enumerate() {
            if !value.fits(column.ty) {
                return Err(Failure::new(
                    "42804",
                    format!(
                        "column \"{}\" is of type {}, not of the type of its value",
                        column.name,
                        column.ty.name()
                    ),
                ));
            }
            if value.is_null() && (column.not_null || self.primary_key.contains(&index)) {
                let message = format!(
                    "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                    column.name, self.name
                );
                let values: Vec<String> = row.iter().map(shown).collect();
                let detail = format!("Failing row contains ({}).", values.join(", "));
                return Err(Failure::new("23502", message).with_detail(detail));
            }
        }
        Ok(())
    }

    /// Whether a column can hold a value.
    pub(crate) fn takes(&self, column: usize, value: &Value) -> bool {
        let Column { ty, not_null, .. } = &self.columns[column];
        value.fits(*ty) && !(value.is_null() && (*not_null || self.primary_key.contains(&column)))
    }

    /// Equal for rows of equal primary key; 0 if there is none. Part of the engines' row order: never to be changed.
    pub fn primary_key_hash(&self, row: &[Value]) -> u64 {
        if self.primary_key.is_empty() {
            return 0;
        }
        xxh3_64(&key_of(self.primary_key.iter().map(|&column| &row[column])))
    }

    /// What its primary key is called, as a constraint and as an index.
    pub fn key_name(&self) -> String {
        format!("{}_pkey", self.name)
    }

    /// 23505: another row has this one's primary key.
    pub fn duplicate(&self, row: &[Value]) -> Failure {
        let names: Vec<&str> = self.primary_key.iter().map(|&column| &*self.columns[column].name).collect();
        let values: Vec<String> = self.primary_key.iter().map(|&column| shown(&row[column])).collect();
        let message = format!("duplicate key value violates unique constraint \"{}\"", self.key_name());
        let detail = format!("Key ({})=({}) already exists.", names.join(", "), values.join(", "));
        Failure::new("23505", message).with_detail(detail)
    }
}

/// A value as details show it.
fn shown(value: &Value) -> String {
    value.text().unwrap_or_else(|| "null".to_owned())
}

/// How a row's place on the ring follows from its partition column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Partition {
    /// A stable hash of the column's value; equality on the column prunes to one point.
    Hash {
        /// Which column.
        column: usize,
    },
    /// A monotone map of the column's value, so that intervals prune to an arc. Values at or below `low` map to 0,
    /// at or above `high` to the top, linearly between; without bounds the type's own order-preserving projection.
    Range {
        /// Which column.
        column: usize,
        /// Where the ring starts.
        low: Option<Value>,
        /// Where the ring ends.
        high: Option<Value>,
    },
}

/// A closed arc of ring keys, `low <= key <= high`; never wraps (an arc that wraps is two of these).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyRange {
    /// First key.
    pub low: u64,
    /// Last key.
    pub high: u64,
}

impl KeyRange {
    /// The whole ring.
    pub const ALL: KeyRange = KeyRange { low: 0, high: u64::MAX };

    /// Whether `key` lies in this arc.
    pub fn contains(&self, key: u64) -> bool {
        self.low <= key && key <= self.high
    }

    /// Whether only one key lies in this arc.
    pub(crate) fn is_point(&self) -> bool {
        self.low == self.high
    }

    /// Whether `key` lies in one of these sorted, disjoint arcs.
    pub(crate) fn cover(ranges: &[KeyRange], key: u64) -> bool {
        let position = ranges.partition_point(|range| range.high < key);
        ranges.get(position).is_some_and(|range| range.low <= key)
    }
}
