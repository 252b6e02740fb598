//! Tables: columns, keys, and the definition of the rows' places on the ring.

use serde::{Deserialize, Serialize};

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    constraint::{Check, Constraint, Reference},
    eval::refuses,
    expr::Expr,
    failure::{self, Failure, TEXT_BYTES_MAX},
    modifier::Modifier,
    value::{Type, Value, key_of},
};

/// Maximum number of columns of a table; PostgreSQL's limit.
pub const COLUMNS_MAX: usize = 1600;

/// Maximum number of bytes of all texts of a row after an update; a longer row could not move to another
/// process. Texts of up to [`TEXT_BYTES_SHORT`] need no check, because even [`COLUMNS_MAX`] of them fit.
pub const ROW_BYTES_MAX: usize = 32 << 20;

/// The longest text, in bytes, that can never make a row too long.
pub const TEXT_BYTES_SHORT: usize = 4 << 10;

/// A table's number, assigned once by the order and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableId(pub u32);

/// A column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The name, as stored (lower case unless quoted).
    pub name: String,
    /// The type.
    pub ty: Type,
    /// The modifier of the type, as in `varchar(n)`, if the declaration has one.
    pub modifier: Option<Modifier>,
    /// Whether the column refuses NULL.
    pub not_null: bool,
    /// The value that an INSERT without the column stores; a constant or a parameter.
    pub default: Option<Expr>,
}

impl Column {
    /// Whether the expression may be a default: a constant, or a parameter, perhaps cast, whose value the
    /// inserting session provides.
    fn takes_default(&self, default: &Expr) -> bool {
        match default {
            Expr::Constant(value, _) => value.fits(self.ty),
            Expr::Cast(inner, ty) => matches!(**inner, Expr::Parameter(..)) && *ty == self.ty,
            Expr::Parameter(_, ty) => *ty == self.ty,
            _ => false,
        }
    }
}

/// A table's definition. It travels in the total order, so every process has the same one at the same
/// position.
///
/// The encoded form of a table without constraints is that of early builds, which know no constraints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "EncodedSchema", into = "EncodedSchema")]
pub struct Schema {
    /// The table's name, as stored.
    pub name: String,
    /// The columns in order.
    pub columns: Vec<Column>,
    /// The indexes of the primary key's columns, which include the partition column; empty if there is no
    /// primary key.
    pub primary_key: Vec<usize>,
    /// The map from rows to ring keys.
    pub partition: Partition,
    /// The constraints other than the primary key and NOT NULL. The CHECKs stand in the order of their names,
    /// in which an engine evaluates them for a row.
    pub constraints: Vec<Constraint>,
}

/// The encoded form of a [`Schema`].
#[derive(Serialize, Deserialize)]
struct EncodedSchema {
    name: String,
    columns: Vec<Column>,
    primary_key: Vec<usize>,
    rest: EncodedRest,
}

/// The last field of an encoded schema. The first two variants are those of [`Partition`], which stood here
/// before tables had constraints.
#[derive(Serialize, Deserialize)]
enum EncodedRest {
    Hash { column: usize },
    Range { column: usize, low: Option<Value>, high: Option<Value> },
    Constrained { partition: Partition, constraints: Vec<Constraint> },
}

impl From<Schema> for EncodedSchema {
    fn from(schema: Schema) -> EncodedSchema {
        let Schema { name, columns, primary_key, partition, constraints } = schema;
        let rest = match partition {
            partition if !constraints.is_empty() => EncodedRest::Constrained { partition, constraints },
            Partition::Hash { column } => EncodedRest::Hash { column },
            Partition::Range { column, low, high } => EncodedRest::Range { column, low, high },
        };
        EncodedSchema { name, columns, primary_key, rest }
    }
}

impl From<EncodedSchema> for Schema {
    fn from(encoded: EncodedSchema) -> Schema {
        let EncodedSchema { name, columns, primary_key, rest } = encoded;
        let (partition, constraints) = match rest {
            EncodedRest::Hash { column } => (Partition::Hash { column }, Vec::new()),
            EncodedRest::Range { column, low, high } => (Partition::Range { column, low, high }, Vec::new()),
            EncodedRest::Constrained { partition, constraints } => (partition, constraints),
        };
        Schema { name, columns, primary_key, partition, constraints }
    }
}

impl Schema {
    /// Whether storage processes of builds that know neither constraints nor the later types can read the
    /// definition.
    pub fn is_of_first_form(&self) -> bool {
        let column = |column: &Column| {
            column.ty.is_of_first_form() && column.default.as_ref().is_none_or(Expr::is_of_first_form)
        };
        self.constraints.is_empty() && self.columns.iter().all(column)
    }

    /// Refuses an inconsistent definition. The message names the column.
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
                    "the primary key names a column twice, or a column that does not exist".to_owned(),
                );
            }
        }
        let partition = self.partition.column();
        if !self.primary_key.is_empty() && !self.primary_key.contains(&partition) {
            let name = &self.columns[partition].name;
            return invalid(format!("the primary key must contain the partition column \"{name}\""));
        }
        for (index, constraint) in self.constraints.iter().enumerate() {
            let name = constraint.name();
            if self.constraints[..index].iter().any(|other| other.name() == name) {
                let message = format!("constraint \"{name}\" for relation \"{}\" already exists", self.name);
                return Err(Failure::new("42710", message));
            }
        }
        if !self.checks().is_sorted_by(|one, other| one.name < other.name) {
            return invalid("the conditions of CHECK are not in the order of their names".to_owned());
        }
        for Reference { name, columns, parent_columns, .. } in self.references() {
            let exist = columns.iter().all(|column| *column < self.columns.len());
            if columns.is_empty() || columns.len() != parent_columns.len() || !exist {
                return invalid(format!("the reference \"{name}\" has no columns, or no such columns"));
            }
        }
        for Check { name, condition, .. } in self.checks() {
            if condition.ty() != Type::Bool || !self.holds_operands(condition) {
                return invalid(format!(
                    "the condition of \"{name}\" is no condition over the table's columns"
                ));
            }
        }
        Ok(())
    }

    /// Whether an expression reads only columns of the table, by their types, and no parameter.
    fn holds_operands(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Column(index, ty) => self.columns.get(*index).is_some_and(|column| column.ty == *ty),
            Expr::Parameter(..) => false,
            _ => expr.children().into_iter().all(|child| self.holds_operands(child)),
        }
    }

    /// Returns the conditions that each row must satisfy, in the order of their evaluation.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.constraints.iter().filter_map(|constraint| match constraint {
            Constraint::Check(check) => Some(check),
            Constraint::KeyName(_) | Constraint::Reference(_) => None,
        })
    }

    /// Returns the references to other tables and to the table itself.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.constraints.iter().filter_map(|constraint| match constraint {
            Constraint::Reference(reference) => Some(reference),
            Constraint::Check(_) | Constraint::KeyName(_) => None,
        })
    }

    /// Returns the conditions that an update of these columns can make false.
    pub(crate) fn checks_of(&self, columns: &[usize]) -> Vec<&Check> {
        self.checks().filter(|check| check.condition.reads_any_of(columns)).collect()
    }

    /// Adds a condition in the order of the names.
    pub fn add_check(&mut self, check: Check) {
        let is_before =
            |other: &Constraint| matches!(other, Constraint::Check(other) if other.name > check.name);
        let index = self.constraints.iter().position(is_before).unwrap_or(self.constraints.len());
        self.constraints.insert(index, Constraint::Check(check));
    }

    /// Refuses a row that makes a condition of a CHECK false (23514). A condition whose evaluation fails
    /// refuses the row with that failure. The row has passed [`Schema::check_row`].
    pub fn check_conditions(&self, row: &[Value]) -> Result<(), Failure> {
        self.checks().try_for_each(|check| {
            if refuses(&check.condition, row)? { Err(self.violation(check, row)) } else { Ok(()) }
        })
    }

    /// Returns the failure (23514) of a row that makes a condition false.
    pub(crate) fn violation(&self, check: &Check, row: &[Value]) -> Failure {
        let message =
            format!("new row for relation \"{}\" violates check constraint \"{}\"", self.name, check.name);
        Failure::new("23514", message).with_detail(failing(row))
    }

    /// Refuses a row that the columns cannot hold: 42804 for a wrong type, 23502 for a forbidden NULL.
    pub fn check_row(&self, row: &[Value]) -> Result<(), Failure> {
        if row.len() != self.columns.len() {
            return Err(Failure::malformed("a row does not have as many values as its table has columns"));
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
                return Err(Failure::new("23502", message).with_detail(failing(row)));
            }
        }
        Ok(())
    }

    /// Whether a column can hold a value.
    pub(crate) fn takes(&self, column: usize, value: &Value) -> bool {
        let Column { ty, not_null, .. } = &self.columns[column];
        value.fits(*ty) && !(value.is_null() && (*not_null || self.primary_key.contains(&column)))
    }

    /// Hashes the primary key; 0 if there is none. The hash defines the engines' row order, so it must never
    /// change.
    pub fn primary_key_hash(&self, row: &[Value]) -> u64 {
        if self.primary_key.is_empty() {
            return 0;
        }
        xxh3_64(&key_of(self.primary_key.iter().map(|&column| &row[column])))
    }

    /// Returns the name of the primary key as a constraint and as an index.
    pub fn key_name(&self) -> String {
        let given = self.constraints.iter().find_map(|constraint| match constraint {
            Constraint::KeyName(name) => Some(name.clone()),
            _ => None,
        });
        given.unwrap_or_else(|| format!("{}_pkey", self.name))
    }

    /// Returns the failure (23505) of a row whose primary key another row has.
    pub fn duplicate(&self, row: &[Value]) -> Failure {
        let names: Vec<&str> = self.primary_key.iter().map(|&column| &*self.columns[column].name).collect();
        let values = shown(self.primary_key.iter().map(|&column| &row[column]));
        let message = format!("duplicate key value violates unique constraint \"{}\"", self.key_name());
        let detail = format!("Key ({})=({values}) already exists.", names.join(", "));
        Failure::new("23505", message).with_detail(detail)
    }
}

/// Returns the detail of a failure that concerns a whole row.
fn failing(row: &[Value]) -> String {
    format!("Failing row contains ({}).", shown(row.iter()))
}

/// Formats values for a detail, and stops when the detail is full.
fn shown<'a>(values: impl Iterator<Item = &'a Value>) -> String {
    let mut shown = String::new();
    for (number, value) in values.enumerate() {
        if number > 0 {
            shown.push_str(", ");
        }
        match value {
            Value::Text(text) => shown.push_str(&failure::shown(text)),
            value => shown.push_str(&value.text().map_or("null".to_owned(), |text| failure::shown(&text))),
        }
        if shown.len() > TEXT_BYTES_MAX {
            break;
        }
    }
    shown
}

/// The map from the partition column's value to the ring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Partition {
    /// A stable hash of the column's value. A filter that compares the column for equality needs one point of
    /// the ring.
    Hash {
        /// The column's index.
        column: usize,
    },
    /// A monotone map of the column's value, so that a filter with an interval needs one arc of the ring.
    /// Values up to `low` map to 0, values from `high` on to the top, and values between them linearly.
    /// Without bounds, the type's own order-preserving projection applies.
    Range {
        /// The column's index.
        column: usize,
        /// The value at the start of the ring.
        low: Option<Value>,
        /// The value at the end of the ring.
        high: Option<Value>,
    },
}

/// A closed arc of ring keys, `low <= key <= high`. The arc never wraps; an arc that would wrap becomes two
/// arcs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyRange {
    /// The first key.
    pub low: u64,
    /// The last key.
    pub high: u64,
}

impl KeyRange {
    /// The whole ring.
    pub const ALL: KeyRange = KeyRange { low: 0, high: u64::MAX };

    /// Whether `key` lies in this arc.
    pub fn contains(&self, key: u64) -> bool {
        self.low <= key && key <= self.high
    }

    /// Whether the arc holds a single key.
    pub(crate) fn is_point(&self) -> bool {
        self.low == self.high
    }

    /// Whether `key` lies in one of these sorted, disjoint arcs.
    pub(crate) fn cover(ranges: &[KeyRange], key: u64) -> bool {
        let position = ranges.partition_point(|range| range.high < key);
        ranges.get(position).is_some_and(|range| range.low <= key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::Check;

    /// The definition of a table without constraints keeps the bytes that earlier builds wrote and can read.
    #[test]
    fn a_definition_without_constraints_has_the_bytes_of_earlier_builds() {
        #[derive(Serialize)]
        struct EarlierSchema {
            name: String,
            columns: Vec<Column>,
            primary_key: Vec<usize>,
            partition: Partition,
        }
        let column =
            Column { name: "k".to_owned(), ty: Type::Int4, modifier: None, not_null: true, default: None };
        let range = |low| Partition::Range { column: 0, low, high: Some(Value::Int4(9)) };
        for partition in [Partition::Hash { column: 0 }, range(None), range(Some(Value::Int4(1)))] {
            let (name, columns, primary_key) = ("t".to_owned(), vec![column.clone()], vec![0]);
            let earlier = EarlierSchema { name, columns, primary_key, partition };
            let EarlierSchema { name, columns, primary_key, partition } = &earlier;
            let mut schema = Schema {
                name: name.clone(),
                columns: columns.clone(),
                primary_key: primary_key.clone(),
                partition: partition.clone(),
                constraints: Vec::new(),
            };
            let bytes = postcard::to_stdvec(&schema).unwrap();
            assert_eq!(bytes, postcard::to_stdvec(&earlier).unwrap());
            assert_eq!(postcard::from_bytes::<Schema>(&bytes).unwrap(), schema);
            let condition = Expr::Constant(Value::Bool(true), Type::Bool);
            let check = Check { name: "c".to_owned(), condition, text: "true".to_owned() };
            schema.constraints.push(Constraint::Check(check));
            let bytes = postcard::to_stdvec(&schema).unwrap();
            assert_eq!(postcard::from_bytes::<Schema>(&bytes).unwrap(), schema);
        }
    }

    /// A failure shows only the beginning of long keys and rows, because clients choose their length and
    /// every process concerned keeps the failure.
    #[test]
    fn a_failure_shows_only_the_beginning_of_long_values() {
        let column = |number: usize| Column {
            name: format!("c{number}"),
            ty: Type::Text,
            modifier: None,
            not_null: true,
            default: None,
        };
        for (columns, length) in [(1, 15 << 20), (2, 1 << 20), (COLUMNS_MAX, 3)] {
            let schema = Schema {
                name: "t".to_owned(),
                columns: (0..columns).map(column).collect(),
                primary_key: (0..columns).collect(),
                partition: Partition::Hash { column: 0 },
                constraints: Vec::new(),
            };
            let mut row = vec![Value::text_of("€".repeat(length)); columns];
            let duplicate = schema.duplicate(&row);
            row[0] = Value::Null;
            let missing = schema.check_row(&row).unwrap_err();
            for (failure, sqlstate, begins) in
                [(duplicate, "23505", "Key (c0"), (missing, "23502", "Failing row contains (null")]
            {
                assert_eq!(failure.sqlstate, sqlstate);
                assert!(
                    failure.detail.as_ref().is_some_and(|detail| detail.starts_with(begins)),
                    "{failure:?}"
                );
                let encoded = postcard::to_stdvec(&failure).unwrap().len();
                assert!(encoded <= 1 << 10, "{encoded} bytes of {columns} columns");
            }
        }
    }
}
