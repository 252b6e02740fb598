//! Relations that describe the constraints of tables.

use quorate_table::{
    constraint::{Check, Constraint, Deferral, Reference, ReferenceAction},
    expr::Expr,
};

use super::{definition::Columns, indexes};
use crate::{
    backend::Table,
    catalog::{
        CatalogContext,
        datum::Datum,
        identifier::quoted,
        oid::{self, constraint_oid, index_oid, table_oid},
    },
    index,
    statement::{condition_text::text_of, upkeep::positions},
};

/// A constraint of a table.
pub(in crate::catalog) struct CatalogConstraint<'a> {
    /// The constraint's object id.
    pub(in crate::catalog) oid: u32,
    name: String,
    table: &'a Table,
    kind: ConstraintKind<'a>,
    /// The object id of the constraint's index, or of the referenced key's index; 0 if there is none.
    index: u32,
    /// The constrained columns, as indexes of the table's columns.
    columns: Vec<usize>,
}

#[derive(Clone, Copy)]
enum ConstraintKind<'a> {
    PrimaryKey,
    Unique,
    Check(&'a Check),
    /// A reference and its parent.
    Reference(&'a Reference, &'a Table),
}

impl ConstraintKind<'_> {
    /// Returns `pg_constraint.contype`.
    fn letter(self) -> &'static str {
        match self {
            ConstraintKind::PrimaryKey => "p",
            ConstraintKind::Unique => "u",
            ConstraintKind::Check(_) => "c",
            ConstraintKind::Reference(..) => "f",
        }
    }

    fn words(self) -> &'static str {
        match self {
            ConstraintKind::PrimaryKey => "PRIMARY KEY",
            ConstraintKind::Unique => "UNIQUE",
            ConstraintKind::Check(_) => "CHECK",
            ConstraintKind::Reference(..) => "FOREIGN KEY",
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
    primary.chain(unique).chain(of_check(context)).chain(references(context))
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

fn references<'a>(context: &'a CatalogContext<'_>) -> impl Iterator<Item = CatalogConstraint<'a>> {
    let of_table = |table: &'a Table| {
        let numbered = table.schema.constraints.iter().enumerate();
        numbered.filter_map(move |(number, constraint)| match constraint {
            Constraint::Reference(reference) => Some((table, number, reference)),
            Constraint::Check(_) | Constraint::KeyName(_) => None,
        })
    };
    context.user_tables().flat_map(of_table).filter_map(|(table, number, reference)| {
        let parent = context.user_tables().find(|parent| parent.schema.name == reference.parent)?;
        let referenced = positions(&parent.schema, &reference.parent_columns)?;
        let is_key = |key: &[usize]| {
            key.len() == referenced.len() && key.iter().all(|column| referenced.contains(column))
        };
        let unique = || {
            let mut indexes = indexes::all(context).filter(|index| index.table.id == parent.id);
            let positions = |index: &indexes::CatalogIndex<'_>| {
                index.keys.iter().map(|key| key.position).collect::<Vec<_>>()
            };
            indexes.find(|index| is_key(&positions(index))).map_or(0, |index| index.oid)
        };
        Some(CatalogConstraint {
            oid: constraint_oid(table.id, number),
            name: reference.name.clone(),
            table,
            kind: ConstraintKind::Reference(reference, parent),
            index: if is_key(&parent.schema.primary_key) { index_oid(parent.id) } else { unique() },
            columns: reference.columns.clone(),
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
        let mut text = format!("{} ({})", self.kind.words(), names.join(", "));
        if let ConstraintKind::Reference(reference, _) = self.kind {
            let names: Vec<String> = reference.parent_columns.iter().map(|name| quoted(name)).collect();
            text.push_str(&format!(" REFERENCES {}({})", quoted(&reference.parent), names.join(", ")));
            for (event, action) in [("UPDATE", reference.on_update), ("DELETE", reference.on_delete)] {
                if action != ReferenceAction::NoAction {
                    text.push_str(&format!(" ON {event} {}", action_words(action)));
                }
            }
            text.push_str(match reference.deferral {
                Deferral::Immediate => "",
                Deferral::Deferrable => " DEFERRABLE",
                Deferral::Deferred => " DEFERRABLE INITIALLY DEFERRED",
            });
        }
        text
    }

    /// Returns the referenced key of a reference.
    fn referenced_key<'c>(&self, context: &'c CatalogContext<'_>) -> Option<CatalogConstraint<'c>> {
        let ConstraintKind::Reference(_, parent) = self.kind else { return None };
        let is_key = |other: &CatalogConstraint<'_>| {
            let is_unique = matches!(other.kind, ConstraintKind::PrimaryKey | ConstraintKind::Unique);
            is_unique && other.table.id == parent.id && other.index == self.index
        };
        all(context).find(is_key)
    }

    /// Returns for each column of a reference the place of the referenced column in the referenced key. Empty
    /// for other constraints.
    fn places(&self, context: &CatalogContext<'_>) -> Vec<usize> {
        let ConstraintKind::Reference(reference, parent) = self.kind else { return Vec::new() };
        let Some(key) = self.referenced_key(context) else { return Vec::new() };
        let referenced = positions(&parent.schema, &reference.parent_columns).unwrap_or_default();
        let place = |column: &usize| key.columns.iter().position(|other| other == column);
        referenced.iter().filter_map(place).collect()
    }

    fn deferral(&self) -> Deferral {
        match self.kind {
            ConstraintKind::Reference(reference, _) => reference.deferral,
            ConstraintKind::PrimaryKey | ConstraintKind::Unique | ConstraintKind::Check(_) => {
                Deferral::Immediate
            }
        }
    }
}

fn action_words(action: ReferenceAction) -> &'static str {
    match action {
        ReferenceAction::NoAction => "NO ACTION",
        ReferenceAction::Restrict => "RESTRICT",
        ReferenceAction::Cascade => "CASCADE",
        ReferenceAction::SetNull => "SET NULL",
        ReferenceAction::SetDefault => "SET DEFAULT",
    }
}

/// Returns the letter of `pg_constraint.confdeltype` and `confupdtype`.
fn action_letter(action: ReferenceAction) -> &'static str {
    match action {
        ReferenceAction::NoAction => "a",
        ReferenceAction::Restrict => "r",
        ReferenceAction::Cascade => "c",
        ReferenceAction::SetNull => "n",
        ReferenceAction::SetDefault => "d",
    }
}

fn yes_or_no(condition: bool) -> Datum {
    Datum::text(if condition { "YES" } else { "NO" })
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
                ("condeferrable", Datum::bool(constraint.deferral() != Deferral::Immediate)),
                ("condeferred", Datum::bool(constraint.deferral() == Deferral::Deferred)),
            ];
            if let ConstraintKind::Check(check) = constraint.kind {
                row.push(("conbin", Datum::text(&check.text)));
            }
            if let ConstraintKind::Reference(reference, parent) = constraint.kind {
                let referenced = positions(&parent.schema, &reference.parent_columns).unwrap_or_default();
                let numbers = referenced.iter().map(|&position| Datum::int8(position as i64 + 1));
                row.extend([
                    ("confrelid", Datum::int8(table_oid(parent.id))),
                    ("confkey", Datum::array(numbers.collect())),
                    ("confupdtype", Datum::text(action_letter(reference.on_update))),
                    ("confdeltype", Datum::text(action_letter(reference.on_delete))),
                    ("confmatchtype", Datum::text("s")),
                ]);
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
                ("is_deferrable", yes_or_no(constraint.deferral() != Deferral::Immediate)),
                ("initially_deferred", yes_or_no(constraint.deferral() == Deferral::Deferred)),
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
        let places = constraint.places(context);
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
                (
                    "position_in_unique_constraint",
                    places.get(index).map_or(Datum::NULL, |place| Datum::int8(*place as i64 + 1)),
                ),
            ]);
        }
    }
    rows
}

/// Returns `information_schema.referential_constraints`.
pub(super) fn referential(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for constraint in references(context) {
        let ConstraintKind::Reference(reference, _) = constraint.kind else { continue };
        let key = constraint.referenced_key(context);
        rows.push(vec![
            ("constraint_catalog", Datum::text(context.database)),
            ("constraint_schema", Datum::text("public")),
            ("constraint_name", Datum::text(&constraint.name)),
            ("unique_constraint_catalog", Datum::text(context.database)),
            ("unique_constraint_schema", Datum::text("public")),
            ("unique_constraint_name", key.map_or(Datum::NULL, |key| Datum::text(&key.name))),
            ("match_option", Datum::text("NONE")),
            ("update_rule", Datum::text(action_words(reference.on_update))),
            ("delete_rule", Datum::text(action_words(reference.on_delete))),
        ]);
    }
    rows
}

/// Returns `information_schema.constraint_column_usage`: the columns that a condition reads, the columns of a
/// key, and the columns to which a reference refers.
pub(super) fn usage(context: &CatalogContext<'_>) -> Vec<Columns<'static>> {
    let mut rows = Vec::new();
    for constraint in all(context) {
        let (table, columns) = match constraint.kind {
            ConstraintKind::Reference(reference, parent) => {
                (parent, positions(&parent.schema, &reference.parent_columns).unwrap_or_default())
            }
            _ => (constraint.table, constraint.columns),
        };
        for column in columns {
            rows.push(vec![
                ("table_catalog", Datum::text(context.database)),
                ("table_schema", Datum::text("public")),
                ("table_name", Datum::text(&table.schema.name)),
                ("column_name", Datum::text(&table.schema.columns[column].name)),
                ("constraint_catalog", Datum::text(context.database)),
                ("constraint_schema", Datum::text("public")),
                ("constraint_name", Datum::text(&constraint.name)),
            ]);
        }
    }
    rows
}
