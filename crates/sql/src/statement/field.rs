//! The columns of a result, as clients see them.

use quorate_table::schema::Column;

use crate::types::{self, PgType};

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The column's name.
    pub name: String,
    /// The column's type.
    pub ty: PgType,
    /// The type's modifier for clients, or -1.
    pub modifier: i32,
    /// The table's object id and the column's number, if the column comes directly from a table.
    pub origin: Option<(u32, i16)>,
}

impl Field {
    /// Creates a column that comes from no table.
    pub fn new(name: impl Into<String>, ty: PgType) -> Self {
        Field { name: name.into(), ty, modifier: -1, origin: None }
    }

    /// Whether a client reads values of both columns in the same way.
    pub fn reads_as(&self, other: &Field) -> bool {
        (&self.name, self.ty, self.modifier) == (&other.name, other.ty, other.modifier)
    }

    /// Creates a column with the type of a table's column, without an origin.
    pub fn of(column: &Column) -> Self {
        let (ty, modifier) = types::of_column(column);
        Field { modifier, ..Field::new(&column.name, ty) }
    }
}
