//! Binds REFERENCES and FOREIGN KEY.

use std::sync::Arc;

use quorate_table::{
    constraint::{Constraint, Deferral, Reference, ReferenceAction},
    schema::{Column, Schema},
    value::Type,
};
use sqlparser::ast::{self, Spanned};

use super::scope;
use crate::{
    backend::{Catalog, Table},
    error::{Result, SqlError, code},
    index::{self, KEYS_MAX},
    sequence::is_sequence,
};

/// Code 42830: the referenced columns are no key.
const INVALID_FOREIGN_KEY: &str = "42830";

/// A reference as declared.
pub(super) struct DeclaredReference<'a> {
    /// REFERENCES, with the columns before it if it is FOREIGN KEY.
    declared: &'a ast::ForeignKeyConstraint,
    name: Option<String>,
    /// The referencing columns, as indexes of the table's columns.
    columns: Vec<usize>,
}

impl<'a> DeclaredReference<'a> {
    /// Reads the columns of a reference. `position` is that of the column with REFERENCES.
    pub(super) fn new(
        declared: &'a ast::ForeignKeyConstraint,
        name: Option<&ast::Ident>,
        position: Option<usize>,
        columns: &[Column],
    ) -> Result<DeclaredReference<'a>> {
        let columns = match position {
            Some(position) => vec![position],
            None => positions(&declared.columns, columns)?,
        };
        Ok(DeclaredReference { declared, name: name.map(scope::fold), columns })
    }

    /// Binds a reference of the table `own`. The referenced table is in the catalog and is returned, or it is
    /// `own` itself, whose unique keys other than the primary key are `uniques`.
    pub(super) fn bind(
        self,
        own: &Schema,
        uniques: &[Vec<usize>],
        catalog: &Catalog,
    ) -> Result<(Reference, Option<Arc<Table>>)> {
        let DeclaredReference { declared, name, columns } = self;
        let span = declared.foreign_table.span();
        let parent_name = scope::table_name(&declared.foreign_table)?;
        let names: Vec<&str> = columns.iter().map(|&column| &*own.columns[column].name).collect();
        let name = name
            .unwrap_or_else(|| free_name(&format!("{}_{}_fkey", own.name, names.join("_")), own, catalog));
        let is_own_name = own.constraints.iter().any(|constraint| constraint.name() == name)
            || !own.primary_key.is_empty() && own.key_name() == name;
        if is_own_name {
            let message = format!("constraint \"{name}\" for relation \"{}\" already exists", own.name);
            return Err(SqlError::new(code::DUPLICATE_OBJECT, message));
        }
        let is_own = parent_name == own.name;
        let table = (!is_own).then(|| scope::table(catalog, &declared.foreign_table)).transpose()?;
        if table.as_ref().is_some_and(|table| is_sequence(&table.schema)) {
            let message = format!("referenced relation \"{parent_name}\" is not a table");
            return Err(SqlError::new("42809", message).at(span));
        }
        let parent = table.as_ref().map_or(own, |table| &table.schema);
        let parent_columns = if declared.referred_columns.is_empty() {
            if parent.primary_key.is_empty() {
                let message = format!("there is no primary key for referenced table \"{parent_name}\"");
                return Err(SqlError::new("42704", message).at(span));
            }
            parent.primary_key.clone()
        } else {
            positions_of_parent(&declared.referred_columns, &parent.columns)?
        };
        if parent_columns.len() != columns.len() {
            let message = "number of referencing and referenced columns for foreign key disagree";
            return Err(SqlError::new(INVALID_FOREIGN_KEY, message).at(span));
        }
        if columns.len() > KEYS_MAX {
            let message = format!("cannot have more than {KEYS_MAX} keys in a foreign key");
            return Err(SqlError::new("54011", message).at(span));
        }
        let is_key = |key: &[usize]| {
            key.len() == parent_columns.len() && key.iter().all(|column| parent_columns.contains(column))
        };
        let has_key = is_key(&parent.primary_key)
            || if is_own {
                uniques.iter().any(|key| is_key(key))
            } else {
                index::unique_keys(catalog, parent).iter().any(|key| is_key(key))
            };
        if !has_key {
            let message = format!(
                "there is no unique constraint matching given keys for referenced table \"{parent_name}\""
            );
            return Err(SqlError::new(INVALID_FOREIGN_KEY, message).at(span));
        }
        for (&column, &parent_column) in columns.iter().zip(&parent_columns) {
            let (column, referenced) = (&own.columns[column], &parent.columns[parent_column]);
            if column.ty != referenced.ty && !(column.ty.is_integer() && referenced.ty.is_integer()) {
                if are_comparable(column.ty, referenced.ty) {
                    let message = format!(
                        "a foreign key of type {} to a column of type {}",
                        column.ty.name(),
                        referenced.ty.name()
                    );
                    return Err(SqlError::unsupported(message).at(span));
                }
                let message = format!("foreign key constraint \"{name}\" cannot be implemented");
                return Err(SqlError::new(code::DATATYPE_MISMATCH, message)
                    .detail(format!(
                        "Key columns \"{}\" and \"{}\" are of incompatible types: {} and {}.",
                        column.name,
                        referenced.name,
                        column.ty.name(),
                        referenced.ty.name()
                    ))
                    .at(span));
            }
        }
        let parent_columns =
            parent_columns.iter().map(|&column| parent.columns[column].name.clone()).collect();
        let on_delete = action(declared.on_delete);
        if matches!(on_delete, ReferenceAction::SetNull | ReferenceAction::SetDefault)
            && columns.contains(&own.partition.column())
        {
            let column = &own.columns[own.partition.column()].name;
            let what = format!("ON DELETE SET NULL or SET DEFAULT of the partition column \"{column}\"");
            return Err(SqlError::unsupported(what)
                .hint("Give the table a primary key, or partition it by another column.")
                .at(span));
        }
        let reference = Reference {
            name,
            columns,
            parent: parent_name,
            parent_columns,
            on_delete,
            on_update: action(declared.on_update),
            deferral: deferral(declared.characteristics),
        };
        Ok((reference, table))
    }
}

/// Makes the references to a table follow its new name and the new names of its columns. Returns whether the
/// definition has such references.
pub(crate) fn rename_references(
    schema: &mut Schema,
    (before, after): (&str, &str),
    renamed: &[(String, String)],
) -> bool {
    let mut has_any = false;
    for constraint in &mut schema.constraints {
        let Constraint::Reference(reference) = constraint else { continue };
        if reference.parent != before {
            continue;
        }
        has_any = true;
        reference.parent = after.to_owned();
        for column in &mut reference.parent_columns {
            if let Some((_, now)) = renamed.iter().find(|(earlier, _)| earlier == column) {
                column.clone_from(now);
            }
        }
    }
    has_any
}

/// Refuses to drop something to which references refer. `what` names it, and `on` names what the references
/// need of it.
pub(super) fn refuse_dependents(what: &str, on: &str, dependents: &[(&str, &Reference)]) -> Result<()> {
    if dependents.is_empty() {
        return Ok(());
    }
    let line = |(table, reference): &(&str, &Reference)| {
        format!("constraint {} on table {table} depends on {on}", reference.name)
    };
    let lines: Vec<String> = dependents.iter().map(line).collect();
    let message = format!("cannot drop {what} because other objects depend on it");
    Err(SqlError::new(code::DEPENDENT_OBJECTS, message)
        .detail(lines.join("\n"))
        .hint("Use DROP ... CASCADE to drop the dependent objects too."))
}

/// Whether PostgreSQL compares values of these types, which differ.
fn are_comparable(left: Type, right: Type) -> bool {
    let numbers = |ty: Type| ty.is_integer() || matches!(ty, Type::Numeric | Type::Float4 | Type::Float8);
    let texts = |ty| matches!(ty, Type::Text | Type::Bpchar);
    let moments = |ty| matches!(ty, Type::Date | Type::Timestamp | Type::Timestamptz);
    [numbers, texts, moments].iter().any(|group: &fn(Type) -> bool| group(left) && group(right))
}

/// Returns the first name that no constraint has: the proposed one, or the proposed one with a number. As in
/// PostgreSQL, names of other tables' constraints are avoided, too.
fn free_name(proposed: &str, own: &Schema, catalog: &Catalog) -> String {
    let schemas = || catalog.tables.iter().map(|table| &table.schema).chain([own]);
    let is_taken = |name: &str| {
        schemas().any(|schema| schema.constraints.iter().any(|constraint| constraint.name() == name))
    };
    let numbered = (1..).map(|number| format!("{proposed}{number}"));
    let mut names = std::iter::once(proposed.to_owned()).chain(numbered);
    names.find(|name| !is_taken(name)).expect("there are more numbers than constraints")
}

fn positions(names: &[ast::Ident], columns: &[Column]) -> Result<Vec<usize>> {
    let position = |ident: &ast::Ident| {
        let name = scope::fold(ident);
        columns.iter().position(|column| column.name == name).ok_or_else(|| {
            let message = format!("column \"{name}\" referenced in foreign key constraint does not exist");
            SqlError::new(code::UNDEFINED_COLUMN, message).at(ident.span)
        })
    };
    names.iter().map(position).collect()
}

fn positions_of_parent(names: &[ast::Ident], columns: &[Column]) -> Result<Vec<usize>> {
    let positions = positions(names, columns)?;
    for (index, position) in positions.iter().enumerate() {
        if positions[..index].contains(position) {
            let message = "foreign key referenced-columns list must not contain duplicates";
            return Err(SqlError::new(INVALID_FOREIGN_KEY, message).at(names[index].span));
        }
    }
    Ok(positions)
}

fn action(action: Option<ast::ReferentialAction>) -> ReferenceAction {
    match action {
        None | Some(ast::ReferentialAction::NoAction) => ReferenceAction::NoAction,
        Some(ast::ReferentialAction::Restrict) => ReferenceAction::Restrict,
        Some(ast::ReferentialAction::Cascade) => ReferenceAction::Cascade,
        Some(ast::ReferentialAction::SetNull) => ReferenceAction::SetNull,
        Some(ast::ReferentialAction::SetDefault) => ReferenceAction::SetDefault,
    }
}

fn deferral(characteristics: Option<ast::ConstraintCharacteristics>) -> Deferral {
    let Some(ast::ConstraintCharacteristics { deferrable, initially, .. }) = characteristics else {
        return Deferral::Immediate;
    };
    match (deferrable, initially) {
        (_, Some(ast::DeferrableInitial::Deferred)) => Deferral::Deferred,
        (Some(true), _) => Deferral::Deferrable,
        _ => Deferral::Immediate,
    }
}
