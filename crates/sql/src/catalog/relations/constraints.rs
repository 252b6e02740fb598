//! Relations that describe the constraints of tables.

use quorate_table::{
    constraint::{Check, Constraint},
    expr::Expr,
};

use super::definition::Columns;
use crate::{
    backend::Table,
    catalog::{
        CatalogContext,
        datum::Datum,
        identifier::quoted,
        oid::{self, constraint_oid, index_oid, table_oid},
    },
    index,
    statement::condition_text::text_of,
};

/// A constraint of a table.
pub(in crate::catalog) struct CatalogConstraint<'a> {
    /// The constraint's object id.
    pub(in crate::catalog) oid: u32,
    name: String,
    table: &'a Table,
    kind: ConstraintKind<'a>,
    /// The object id of the constraint's index; 0 if it has none.
    index: u32,
    /// The constrained columns, as indexes of the table's columns.
    columns: Vec<usize>,
}

#[derive(Clone, Copy)]
enum ConstraintKind<'a> {
    PrimaryKey,
    Unique,
    Check(&'a Check),
}

impl ConstraintKind<'_> {
    /// Returns `pg_constraint.contype`.
    fn letter(self) -> &'static str {
        match self {
            ConstraintKind::PrimaryKey => "p",
            ConstraintKind::Unique => "u",
            ConstraintKind::Check(_) => "c",
        }
    }

    fn words(self) -> &'static str {
        match self {
            ConstraintKind::PrimaryKey => "PRIMARY KEY",
            ConstraintKind::Unique => "UNIQUE",
            ConstraintKind::Check(_) => "CHECK",
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
    primary.chain(unique).chain(of_check(context))
}

fn of_check<'a>(context: &'a CatalogContext<'_>) -> impl Iterator<Item = CatalogConstraint<'a>> {
    let of_table =
        |table: &'a Table| table.schema.constraints.iter().enumerate().map(move |one| (table, one));
    context.user_tables().flat_map(of_table).filter_map(|(table, (number, constraint))| {
        let Constraint::Check(check) = constraint else { return None };
        let mut columns = Vec::new();
        add_columns(&check.condition, &mut columns);
        Some(CatalogConstraint {
            oid: constraint_oid(table.id, number),
            name: check.name.clone(),
            table,
            kind: ConstraintKind::Check(check),
            index: 0,
            columns,
        })
    })
}

/// Adds the indexes of the columns that an expression reads, in the order of their first use.
fn add_columns(expr: &Expr, columns: &mut Vec<usize>) {
    match expr {
        Expr::Column(index, _) if columns.contains(index) => {}
        Expr::Column(index, _) => columns.push(*index),
        _ => expr.children().into_iter().for_each(|child| add_columns(child, columns)),
    }
}

impl CatalogConstraint<'_> {
    /// Returns the constraint as SQL text, without its name. `is_pretty` leaves out parentheses of a CHECK.
    pub(in crate::catalog) fn definition(&self, is_pretty: bool) -> String {
        if let ConstraintKind::Check(check) = self.kind {
            let pretty = is_pretty.then(|| text_of(&check.condition, &self.table.schema, true)).flatten();
            return format!("CHECK ({})", pretty.as_ref().unwrap_or(&check.text));
        }
        let name = |&position: &usize| quoted(&self.table.schema.columns[position].name);
        let names: Vec<String> = self.columns.iter().map(name).collect();
        format!("{} ({})", self.kind.words(), names.join(", "))
    }
}

pub(super) fn relation(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    all(context)
        .map(|constraint| {
            let numbers = constraint.columns.iter().map(|&position| Datum::int8(position as i64 + 1));
            let is_check = matches!(constraint.kind, ConstraintKind::Check(_));
            let mut row = vec![
                ("oid", Datum::int8(constraint.oid)),
                ("conname", Datum::text(&constraint.name)),
                ("connamespace", Datum::int8(oid::PUBLIC)),
                ("contype", Datum::text(constraint.kind.letter())),
                ("convalidated", Datum::bool(true)),
                ("conrelid", Datum::int8(table_oid(constraint.table.id))),
                ("conindid", Datum::int8(constraint.index)),
                ("conislocal", Datum::bool(true)),
                ("connoinherit", Datum::bool(!is_check)),
                ("conkey", Datum::array(numbers.collect())),
            ];
            if let ConstraintKind::Check(check) = constraint.kind {
                row.push(("conbin", Datum::text(&check.text)));
            }
            row
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

/// Returns `information_schema.check_constraints`.
pub(super) fn checks(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    of_check(context)
        .filter_map(|constraint| {
            let ConstraintKind::Check(check) = constraint.kind else { return None };
            Some(vec![
                ("constraint_catalog", Datum::text(context.database)),
                ("constraint_schema", Datum::text("public")),
                ("constraint_name", Datum::text(&check.name)),
                ("check_clause", Datum::text(format!("({})", check.text))),
            ])
        })
        .collect()
}

/// Returns `information_schema.key_column_usage`.
pub(super) fn keys(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    let keys = all(context).filter(|constraint| !matches!(constraint.kind, ConstraintKind::Check(_)));
    for constraint in keys {
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
