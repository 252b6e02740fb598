//! Relations that describe the constraints of tables.

use super::definition::Columns;
use crate::{
    backend::Table,
    catalog::{
        CatalogContext,
        datum::Datum,
        identifier::quoted,
        oid::{self, index_oid, table_oid},
    },
    index,
};

/// A constraint of a table.
pub(in crate::catalog) struct CatalogConstraint<'a> {
    /// The constraint's object id.
    pub(in crate::catalog) oid: u32,
    name: String,
    table: &'a Table,
    kind: ConstraintKind,
    /// The object id of the constraint's index.
    index: u32,
    /// The constrained columns, as indexes of the table's columns.
    columns: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConstraintKind {
    PrimaryKey,
    Unique,
}

impl ConstraintKind {
    /// Returns `pg_constraint.contype`.
    fn letter(self) -> &'static str {
        match self {
            ConstraintKind::PrimaryKey => "p",
            ConstraintKind::Unique => "u",
        }
    }

    fn words(self) -> &'static str {
        match self {
            ConstraintKind::PrimaryKey => "PRIMARY KEY",
            ConstraintKind::Unique => "UNIQUE",
        }
    }
}

/// Returns the constraints of all tables.
pub(in crate::catalog) fn all<'a>(
    context: &'a CatalogContext<'_>,
) -> impl Iterator<Item = CatalogConstraint<'a>> {
    let primary = context.keyed_tables().map(|table| CatalogConstraint {
        oid: index_oid(table.id),
        name: table.schema.key_name(),
        table,
        kind: ConstraintKind::PrimaryKey,
        index: index_oid(table.id),
        columns: table.schema.primary_key.clone(),
    });
    let unique = index::all(&context.catalog).filter(|(_, definition)| definition.is_constraint());
    let unique = unique.filter_map(|(own, definition)| {
        let table = context.user_tables().find(|table| table.schema.name == definition.table)?;
        let position =
            |key: &index::IndexKey| table.schema.columns.iter().position(|column| column.name == key.column);
        Some(CatalogConstraint {
            oid: index_oid(own.id),
            table,
            kind: ConstraintKind::Unique,
            index: table_oid(own.id),
            columns: definition.keys.iter().map(position).collect::<Option<_>>()?,
            name: definition.name,
        })
    });
    primary.chain(unique)
}

impl CatalogConstraint<'_> {
    /// Returns the constraint as SQL text, without its name.
    pub(in crate::catalog) fn definition(&self) -> String {
        let name = |&position: &usize| quoted(&self.table.schema.columns[position].name);
        let names: Vec<String> = self.columns.iter().map(name).collect();
        format!("{} ({})", self.kind.words(), names.join(", "))
    }
}

pub(super) fn relation(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    all(context)
        .map(|constraint| {
            let numbers = constraint.columns.iter().map(|&position| Datum::int8(position as i64 + 1));
            vec![
                ("oid", Datum::int8(constraint.oid)),
                ("conname", Datum::text(&constraint.name)),
                ("connamespace", Datum::int8(oid::PUBLIC)),
                ("contype", Datum::text(constraint.kind.letter())),
                ("convalidated", Datum::bool(true)),
                ("conrelid", Datum::int8(table_oid(constraint.table.id))),
                ("conindid", Datum::int8(constraint.index)),
                ("conislocal", Datum::bool(true)),
                ("connoinherit", Datum::bool(true)),
                ("conkey", Datum::array(numbers.collect())),
            ]
        })
        .collect()
}

/// Returns `information_schema.table_constraints`.
pub(super) fn view(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    all(context)
        .map(|constraint| {
            vec![
                ("constraint_catalog", Datum::text(context.database)),
                ("constraint_schema", Datum::text("public")),
                ("constraint_name", Datum::text(&constraint.name)),
                ("table_catalog", Datum::text(context.database)),
                ("table_schema", Datum::text("public")),
                ("table_name", Datum::text(&constraint.table.schema.name)),
                ("constraint_type", Datum::text(constraint.kind.words())),
                ("is_deferrable", Datum::text("NO")),
                ("initially_deferred", Datum::text("NO")),
                ("enforced", Datum::text("YES")),
            ]
        })
        .collect()
}

/// Returns `information_schema.key_column_usage`.
pub(super) fn keys(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for constraint in all(context) {
        let schema = &constraint.table.schema;
        for (index, &position) in constraint.columns.iter().enumerate() {
            rows.push(vec![
                ("constraint_catalog", Datum::text(context.database)),
                ("constraint_schema", Datum::text("public")),
                ("constraint_name", Datum::text(&constraint.name)),
                ("table_catalog", Datum::text(context.database)),
                ("table_schema", Datum::text("public")),
                ("table_name", Datum::text(&schema.name)),
                ("column_name", Datum::text(&schema.columns[position].name)),
                ("ordinal_position", Datum::int8(index as i64 + 1)),
                ("position_in_unique_constraint", Datum::NULL),
            ]);
        }
    }
    rows
}
