//! The information schema.

use quorate_table::{modifier::Modifier, schema::Column, value::Type};

use super::{
    definition::{Columns, all},
    tables::{default_text, identity},
};
use crate::{
    backend::Table,
    catalog::{CatalogContext, datum::Datum, oid::NAMESPACES},
    sequence, types,
};

pub(super) fn tables(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let catalog = all().iter().map(|relation| (relation.schema, relation.name));
    let users = context.user_tables().map(|table| ("public", table.schema.name.as_str()));
    catalog
        .chain(users)
        .map(|(schema, name)| {
            vec![
                ("table_catalog", Datum::text(context.database)),
                ("table_schema", Datum::text(schema)),
                ("table_name", Datum::text(name)),
                ("table_type", Datum::text("BASE TABLE")),
                ("is_insertable_into", Datum::text("YES")),
                ("is_typed", Datum::text("NO")),
            ]
        })
        .collect()
}

pub(super) fn columns(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for table in context.user_tables() {
        for (index, column) in table.schema.columns.iter().enumerate() {
            let (ty, _) = types::of_column(column);
            let (precision, radix, scale) = match column.ty {
                Type::Int2 => (Datum::int8(16), Datum::int8(2), Datum::int8(0)),
                Type::Int4 => (Datum::int8(32), Datum::int8(2), Datum::int8(0)),
                Type::Int8 => (Datum::int8(64), Datum::int8(2), Datum::int8(0)),
                Type::Float4 => (Datum::int8(24), Datum::int8(2), Datum::NULL),
                Type::Float8 => (Datum::int8(53), Datum::int8(2), Datum::NULL),
                Type::Numeric if let Some(Modifier::Digits { precision, scale }) = column.modifier => {
                    (Datum::int8(precision), Datum::int8(10), Datum::int8(scale))
                }
                Type::Numeric => (Datum::NULL, Datum::int8(10), Datum::NULL),
                _ => (Datum::NULL, Datum::NULL, Datum::NULL),
            };
            let length = match column.modifier {
                Some(Modifier::Varchar(Some(most)) | Modifier::Char(most)) => Datum::int8(most),
                _ => Datum::NULL,
            };
            let subsecond = match column.ty {
                Type::Timestamp | Type::Timestamptz | Type::Time => Datum::int8(6),
                Type::Date => Datum::int8(0),
                _ => Datum::NULL,
            };
            rows.push(vec![
                ("table_catalog", Datum::text(context.database)),
                ("table_schema", Datum::text("public")),
                ("table_name", Datum::text(&table.schema.name)),
                ("column_name", Datum::text(&column.name)),
                ("ordinal_position", Datum::int8(index as i64 + 1)),
                ("column_default", default_text(context, table, column).map_or(Datum::NULL, Datum::text)),
                ("is_nullable", Datum::text(if column.not_null { "NO" } else { "YES" })),
                ("data_type", Datum::text(ty.display())),
                ("character_maximum_length", length),
                (
                    "character_octet_length",
                    if column.ty == Type::Text { Datum::int8(1 << 30) } else { Datum::NULL },
                ),
                ("numeric_precision", precision),
                ("numeric_precision_radix", radix),
                ("numeric_scale", scale),
                ("datetime_precision", subsecond),
                ("interval_precision", Datum::NULL),
                ("maximum_cardinality", Datum::NULL),
                ("udt_catalog", Datum::text(context.database)),
                ("udt_schema", Datum::text("pg_catalog")),
                ("udt_name", Datum::text(ty.info().name)),
                ("dtd_identifier", Datum::text((index + 1).to_string())),
                ("is_self_referencing", Datum::text("NO")),
                ("identity_cycle", Datum::text("NO")),
                ("is_generated", Datum::text("NEVER")),
                ("is_updatable", Datum::text("YES")),
            ]);
            rows.last_mut().expect("the row was added").extend(identity_columns(context, table, column));
        }
    }
    rows
}

/// Returns the columns of `information_schema.columns` about an identity column.
fn identity_columns(context: &CatalogContext<'_>, table: &Table, column: &Column) -> Columns<'static> {
    let Some(identity) = identity(context, table, column) else {
        return vec![("is_identity", Datum::text("NO"))];
    };
    let mut columns =
        vec![("is_identity", Datum::text("YES")), ("identity_generation", Datum::text(identity.words()))];
    if let Some(sequence) = sequence::of_column(&context.catalog, &table.schema.name, &column.name) {
        columns.extend([
            ("identity_start", Datum::text(sequence.start.to_string())),
            ("identity_increment", Datum::text(sequence.increment.to_string())),
            ("identity_maximum", Datum::text(sequence.max.to_string())),
            ("identity_minimum", Datum::text(sequence.min.to_string())),
        ]);
    }
    columns
}

pub(super) fn schemata(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    NAMESPACES
        .iter()
        .map(|(name, _)| {
            vec![
                ("catalog_name", Datum::text(context.database)),
                ("schema_name", Datum::text(name)),
                ("schema_owner", Datum::text(context.user)),
            ]
        })
        .collect()
}
