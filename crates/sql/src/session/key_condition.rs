//! Conditions on the keys of rows.

use quorate_table::{
    expr::{Binary, Expr},
    schema::Schema,
    value::{Row, Value},
};

/// The values of some columns of a row.
pub(super) type KeyValues = Vec<Value>;

/// Returns the values of some columns of a row.
pub(super) fn key_of_row(columns: &[usize], row: &Row) -> KeyValues {
    columns.iter().map(|&column| row[column].clone()).collect()
}

pub(super) fn column_of(schema: &Schema, column: usize) -> Expr {
    Expr::Column(column, schema.columns[column].ty)
}

/// Returns the condition that a row has these values in some columns.
pub(super) fn has_key(schema: &Schema, columns: &[usize], key: &[Value]) -> Expr {
    let equals = |(&column, value): (&usize, &Value)| {
        let constant = Expr::constant(value.clone(), schema.columns[column].ty);
        Expr::binary(Binary::Equal, column_of(schema, column), constant)
    };
    Expr::all(columns.iter().zip(key).map(equals).collect())
}

/// Returns the condition that a row has one of these keys in some columns, at least one. A key with NULL is
/// equal to no other.
pub(super) fn has_any_key(schema: &Schema, columns: &[usize], keys: &[KeyValues]) -> Expr {
    let keys = keys.iter().filter(|key| !has_null(key));
    let first = |key: &KeyValues| Expr::constant(key[0].clone(), schema.columns[columns[0]].ty);
    let listed = Expr::In(Box::new(column_of(schema, columns[0])), keys.clone().map(first).collect());
    match columns {
        [_] => listed,
        _ => Expr::all(vec![listed, Expr::any(keys.map(|key| has_key(schema, columns, key)).collect())]),
    }
}

/// Whether a key has NULL.
pub(super) fn has_null(key: &[Value]) -> bool {
    key.iter().any(Value::is_null)
}
