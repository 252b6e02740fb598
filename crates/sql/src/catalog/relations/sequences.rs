//! Relations that describe sequences.

use quorate_table::value::Type;

use super::definition::{Columns, find};
use crate::{
    backend::Table,
    catalog::{CatalogContext, datum::Datum, oid::table_oid},
    sequence::SequenceDefinition,
    types::PgType,
};

/// Returns the sequences with their tables.
fn all<'a>(context: &'a CatalogContext<'_>) -> impl Iterator<Item = (&'a Table, SequenceDefinition)> {
    let tables = context.catalog.tables.iter();
    tables.filter_map(|table| Some((&**table, SequenceDefinition::of(&table.schema)?)))
}

pub(super) fn sequences(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    all(context)
        .map(|(table, sequence)| {
            vec![
                ("seqrelid", Datum::int8(table_oid(table.id))),
                ("seqtypid", Datum::int8(PgType::Plain(sequence.ty).oid())),
                ("seqstart", Datum::int8(sequence.start)),
                ("seqincrement", Datum::int8(sequence.increment)),
                ("seqmax", Datum::int8(sequence.max)),
                ("seqmin", Datum::int8(sequence.min)),
                ("seqcache", Datum::int8(sequence.cache)),
            ]
        })
        .collect()
}

/// Returns the view `pg_sequences`. The last number is NULL, because the catalog does not read rows.
pub(super) fn view(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    all(context)
        .map(|(_, sequence)| {
            vec![
                ("schemaname", Datum::text("public")),
                ("sequencename", Datum::text(&sequence.name)),
                ("sequenceowner", Datum::text(context.user)),
                ("data_type", Datum::int8(PgType::Plain(sequence.ty).oid())),
                ("start_value", Datum::int8(sequence.start)),
                ("min_value", Datum::int8(sequence.min)),
                ("max_value", Datum::int8(sequence.max)),
                ("increment_by", Datum::int8(sequence.increment)),
                ("cache_size", Datum::int8(sequence.cache)),
                ("last_value", Datum::NULL),
            ]
        })
        .collect()
}

/// Returns the dependencies of sequences on the columns to which they belong.
pub(super) fn dependencies(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let classes = find(None, "pg_class").map_or(0, |relation| relation.oid);
    let owned = all(context).filter_map(|(table, sequence)| {
        let owner = sequence.owner.as_ref()?;
        let owning = context.catalog.table(&owner.table)?;
        let column = owning.schema.columns.iter().position(|column| column.name == owner.column)?;
        Some(vec![
            ("classid", Datum::int8(classes)),
            ("objid", Datum::int8(table_oid(table.id))),
            ("refclassid", Datum::int8(classes)),
            ("refobjid", Datum::int8(table_oid(owning.id))),
            ("refobjsubid", Datum::int8(column as i64 + 1)),
            ("deptype", Datum::text(if sequence.identity.is_some() { "i" } else { "a" })),
        ])
    });
    owned.collect()
}

pub(super) fn information(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    // As in PostgreSQL, the sequences of identity columns are left out.
    all(context)
        .filter(|(_, sequence)| sequence.identity.is_none())
        .map(|(_, sequence)| {
            let bits = match sequence.ty {
                Type::Int2 => 16,
                Type::Int4 => 32,
                _ => 64,
            };
            vec![
                ("sequence_catalog", Datum::text(context.database)),
                ("sequence_schema", Datum::text("public")),
                ("sequence_name", Datum::text(&sequence.name)),
                ("data_type", Datum::text(sequence.ty.name())),
                ("numeric_precision", Datum::int8(bits)),
                ("numeric_precision_radix", Datum::int8(2)),
                ("numeric_scale", Datum::int8(0)),
                ("start_value", Datum::text(sequence.start.to_string())),
                ("minimum_value", Datum::text(sequence.min.to_string())),
                ("maximum_value", Datum::text(sequence.max.to_string())),
                ("increment", Datum::text(sequence.increment.to_string())),
                ("cycle_option", Datum::text("NO")),
            ]
        })
        .collect()
}
