//! Binds ALTER TABLE: several actions become one new definition, with the source of each column.
//!
//! **Passes.** As in PostgreSQL, an action that removes something comes before an action that adds something,
//! whatever their order in the statement (`pass`).
//!
//! **Requirements.** SET NOT NULL, ADD CHECK and ADD COLUMN demand something of the rows that exist. The
//! binder states the demand as a condition over the *earlier* columns. The session first lets the table
//! refuse rows that break the condition, then looks for such rows, and only then makes the new definition
//! (`session/alter_table.rs`).

use std::sync::Arc;

use quorate_table::{
    constraint::{Check, Constraint, Reference},
    expr::{Expr, Unary},
    modifier::Modifier,
    schema::{Partition, Schema},
    value::{Type, Value},
};
use sqlparser::ast::{self, AlterColumnOperation, AlterTableOperation, Spanned};

use super::{
    check::{self, UnboundCheck},
    condition_text::text_of,
    ddl, fold,
    parameters::{Parameters, SessionValue},
    reference::{DeclaredReference, refuse_dependents, rename_references},
    scope,
    unsupported_clauses::foreign_key,
};
use crate::{
    backend::{Catalog, Table},
    catalog,
    error::{Result, SqlError, code},
    index::{self, IndexDefinition},
    sequence::{self, is_sequence},
    types,
};

const DROP_CONSTRAINT: &str = "DROP CONSTRAINT";

/// A bound ALTER TABLE.
#[derive(Debug)]
pub struct AlterTable {
    /// The table; `None` if there is none and the statement says IF EXISTS.
    pub table: Option<Arc<Table>>,
    /// The table's new definition.
    pub schema: Schema,
    /// The source of each column of the new definition.
    pub columns: Vec<NewColumn>,
    /// The conditions that the existing rows must satisfy.
    pub requirements: Vec<Requirement>,
    /// The names of added references, which the existing rows must satisfy.
    pub references: Vec<String>,
    /// The other tables to which the added references refer.
    pub parents: Vec<Arc<Table>>,
    /// The new names of columns, by their earlier names.
    pub renamed: Vec<(String, String)>,
    /// The names of dropped columns.
    pub dropped: Vec<String>,
    /// The notices for the client.
    pub notices: Vec<SqlError>,
}

/// The source of a column of the new definition.
#[derive(Clone, Debug, PartialEq)]
pub enum NewColumn {
    /// The column at this index of the earlier definition.
    Kept(usize),
    /// The value of this expression, which may be a value of the session, in all rows.
    Added(Expr),
}

/// A condition that the existing rows must satisfy.
#[derive(Debug)]
pub struct Requirement {
    /// The condition over the new definition.
    pub condition: Expr,
    /// The column whose NULLs the condition refuses, if the condition is a NOT NULL.
    pub not_null: Option<usize>,
    /// The error for the client if a row breaks the condition.
    pub violation: SqlError,
}

/// Binds an ALTER TABLE.
pub fn bind(alter: &ast::AlterTable, parameters: &mut Parameters, catalog: &Catalog) -> Result<AlterTable> {
    let ast::AlterTable {
        name,
        if_exists,
        only: _,
        operations,
        location,
        on_cluster,
        table_type,
        end_token: _,
    } = alter;
    if location.is_some() || on_cluster.is_some() || table_type.is_some() {
        return Err(
            SqlError::new(code::SYNTAX_ERROR, "ALTER TABLE has clauses of another database").at(name.span())
        );
    }
    let table = match scope::table(catalog, name) {
        Ok(table) => table,
        Err(error) if *if_exists && error.code == code::UNDEFINED_TABLE => {
            let notice = SqlError::new("00000", format!("{}, skipping", error.message));
            return Ok(AlterTable {
                table: None,
                schema: empty_schema(),
                columns: Vec::new(),
                requirements: Vec::new(),
                references: Vec::new(),
                parents: Vec::new(),
                renamed: Vec::new(),
                dropped: Vec::new(),
                notices: vec![notice],
            });
        }
        Err(error) => return Err(error),
    };
    if is_sequence(&table.schema) {
        return Err(SqlError::unsupported("ALTER TABLE of a sequence").at(name.span()));
    }
    let columns = (0..table.schema.columns.len()).map(NewColumn::Kept).collect();
    let mut binder = Alterations {
        earlier: &table,
        catalog,
        bound: AlterTable {
            schema: table.schema.clone(),
            table: Some(table.clone()),
            columns,
            requirements: Vec::new(),
            references: Vec::new(),
            parents: Vec::new(),
            renamed: Vec::new(),
            dropped: Vec::new(),
            notices: Vec::new(),
        },
    };
    let renames = |operation: &AlterTableOperation| {
        use AlterTableOperation::*;
        matches!(operation, RenameColumn { .. } | RenameTable { .. } | RenameConstraint { .. })
    };
    if operations.len() > 1 && operations.iter().any(renames) {
        return Err(SqlError::new(code::SYNTAX_ERROR, "RENAME stands alone in ALTER TABLE").at(name.span()));
    }
    let mut ordered: Vec<&AlterTableOperation> = operations.iter().collect();
    ordered.sort_by_key(|operation| pass(operation));
    for operation in ordered {
        binder.apply(operation, parameters)?;
    }
    binder.bound.schema.check()?;
    Ok(binder.bound)
}

fn empty_schema() -> Schema {
    Schema {
        name: String::new(),
        columns: Vec::new(),
        primary_key: Vec::new(),
        partition: Partition::Hash { column: 0 },
        constraints: Vec::new(),
    }
}

/// Returns the number of the pass in which PostgreSQL performs an action.
fn pass(operation: &AlterTableOperation) -> u8 {
    match operation {
        AlterTableOperation::DropColumn { .. } | AlterTableOperation::DropConstraint { .. } => 0,
        AlterTableOperation::AlterColumn { op, .. } => match op {
            AlterColumnOperation::DropNotNull | AlterColumnOperation::DropDefault => 0,
            AlterColumnOperation::SetDataType { .. } => 1,
            AlterColumnOperation::SetNotNull => 3,
            _ => 4,
        },
        AlterTableOperation::AddColumn { .. } => 2,
        _ => 4,
    }
}

/// The actions of a statement so far.
struct Alterations<'a> {
    earlier: &'a Arc<Table>,
    catalog: &'a Catalog,
    bound: AlterTable,
}

impl Alterations<'_> {
    fn apply(&mut self, operation: &AlterTableOperation, parameters: &mut Parameters) -> Result<()> {
        match operation {
            AlterTableOperation::AddColumn {
                column_keyword: _,
                if_not_exists,
                column_def,
                column_position: None,
            } => self.add_column(column_def, *if_not_exists, parameters),
            AlterTableOperation::DropColumn {
                has_column_keyword: _,
                column_names,
                if_exists,
                drop_behavior,
            } => {
                // Other objects that depend on a column of their own table go with it in any case.
                let cascades = *drop_behavior == Some(ast::DropBehavior::Cascade);
                column_names.iter().try_for_each(|name| self.drop_column(name, *if_exists, cascades))
            }
            AlterTableOperation::RenameColumn { old_column_name, new_column_name } => {
                self.rename_column(old_column_name, new_column_name)
            }
            AlterTableOperation::RenameTable {
                table_name: ast::RenameTableNameKind::To(name) | ast::RenameTableNameKind::As(name),
            } => self.rename_table(name),
            AlterTableOperation::RenameConstraint { old_name, new_name } => {
                self.rename_constraint(old_name, new_name)
            }
            AlterTableOperation::AlterColumn { column_name, op } => {
                self.alter_column(column_name, op, parameters)
            }
            AlterTableOperation::AddConstraint {
                constraint: ast::TableConstraint::Check(check),
                not_valid,
            } => {
                if *not_valid {
                    return Err(SqlError::unsupported("NOT VALID"));
                }
                self.add_checks(&[UnboundCheck { name: check.name.as_ref(), constraint: check }], parameters)
            }
            AlterTableOperation::AddConstraint {
                constraint: ast::TableConstraint::ForeignKey(key),
                not_valid,
            } => {
                if *not_valid {
                    return Err(SqlError::unsupported("NOT VALID"));
                }
                self.add_reference(key)
            }
            AlterTableOperation::AddConstraint { constraint, .. } => {
                let kind = match constraint {
                    ast::TableConstraint::PrimaryKey(_) => "ADD PRIMARY KEY",
                    ast::TableConstraint::Unique(_) => "ADD UNIQUE",
                    _ => "ADD CONSTRAINT of this kind",
                };
                Err(SqlError::unsupported(format!("ALTER TABLE … {kind}")))
            }
            AlterTableOperation::DropConstraint { if_exists, name, drop_behavior: _ } => {
                self.drop_constraint(name, *if_exists)
            }
            // Every table belongs to the only role, so OWNER TO changes nothing. Dumps of PostgreSQL contain
            // it.
            AlterTableOperation::OwnerTo { .. } => Ok(()),
            other => {
                let text = other.to_string();
                let words: Vec<&str> = text.split_whitespace().take(2).collect();
                Err(SqlError::unsupported(format!("ALTER TABLE … {}", words.join(" "))))
            }
        }
    }

    fn relation(&self) -> &str {
        &self.earlier.schema.name
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.bound.schema.columns.iter().position(|column| column.name == name)
    }

    /// Returns the index of a column, or PostgreSQL's error.
    fn column(&self, ident: &ast::Ident) -> Result<usize> {
        let name = scope::fold(ident);
        self.find(&name).ok_or_else(|| {
            let message = format!("column \"{name}\" of relation \"{}\" does not exist", self.relation());
            SqlError::new(code::UNDEFINED_COLUMN, message).at(ident.span)
        })
    }

    fn exists(&self, name: &str) -> SqlError {
        let message = format!("column \"{name}\" of relation \"{}\" already exists", self.relation());
        SqlError::new(code::DUPLICATE_COLUMN, message)
    }

    /// Whether a unique key other than the primary key has a column.
    fn is_in_unique_key(&self, name: &str) -> bool {
        let mut indexes = index::all(self.catalog).filter(|(_, index)| index.table == self.relation());
        indexes.any(|(_, index)| index.enforced.is_some() && index.keys.iter().any(|key| key.column == name))
    }

    /// Whether a row's place depends on a column.
    fn is_key(&self, index: usize) -> bool {
        let schema = &self.bound.schema;
        schema.primary_key.contains(&index) || schema.partition.column() == index
    }

    fn add_column(
        &mut self,
        definition: &ast::ColumnDef,
        if_not_exists: bool,
        parameters: &mut Parameters,
    ) -> Result<()> {
        let name = scope::fold(&definition.name);
        if self.find(&name).is_some() {
            let error = self.exists(&name);
            if !if_not_exists {
                return Err(error.at(definition.name.span));
            }
            let notice = format!("{}, skipping", error.message);
            self.bound.notices.push(SqlError::new(code::DUPLICATE_COLUMN, notice));
            return Ok(());
        }
        let span = definition.name.span;
        let (column, in_key, has_sequence) = ddl::bind_added(definition, self.relation(), parameters)?;
        if in_key {
            return Err(SqlError::unsupported("ADD COLUMN … PRIMARY KEY").at(span));
        }
        if has_sequence || column.default.as_ref().is_some_and(sequence::takes_numbers) {
            return Err(SqlError::unsupported("ADD COLUMN with numbers of a sequence").at(span));
        }
        let is_drawn = |part: &Expr| match part {
            Expr::Parameter(number, _) => {
                SessionValue::from_number(*number).is_some_and(SessionValue::differs_by_row)
            }
            _ => false,
        };
        if column.default.as_ref().is_some_and(|default| fold::any(default, &is_drawn)) {
            return Err(SqlError::unsupported("ADD COLUMN with a default that differs from row to row")
                .hint("Add the column without a default, then set the default.")
                .at(span));
        }
        let index = self.bound.schema.columns.len();
        let value = column.default.clone().unwrap_or(Expr::Constant(Value::Null, column.ty));
        let (not_null, ty) = (column.not_null, column.ty);
        self.bound.schema.columns.push(column);
        self.bound.columns.push(NewColumn::Added(value.clone()));
        if not_null && matches!(value, Expr::Constant(Value::Null, _)) {
            self.require_not_null(index, ty);
        }
        let checks: Vec<UnboundCheck<'_>> = check::of_column(definition).collect();
        self.add_checks(&checks, parameters)
    }

    fn require_not_null(&mut self, index: usize, ty: Type) {
        let message = format!(
            "column \"{}\" of relation \"{}\" contains null values",
            self.bound.schema.columns[index].name,
            self.relation()
        );
        let is_null = Expr::IsNull(Box::new(Expr::Column(index, ty)));
        let mut violation = SqlError::new(code::NOT_NULL_VIOLATION, message);
        violation.about.table = Some(self.relation().to_owned());
        violation.about.column = Some(self.bound.schema.columns[index].name.clone());
        self.bound.requirements.push(Requirement {
            condition: Expr::Unary(Unary::Not, Box::new(is_null)),
            not_null: Some(index),
            violation,
        });
    }

    fn add_checks(&mut self, checks: &[UnboundCheck<'_>], parameters: &mut Parameters) -> Result<()> {
        let known: Vec<String> =
            self.bound.schema.constraints.iter().map(|constraint| constraint.name().to_owned()).collect();
        check::add_all(checks, &mut self.bound.schema, parameters).map_err(|error| {
            if error.code != code::DUPLICATE_OBJECT {
                return error;
            }
            let name = error.message.split('"').nth(1).unwrap_or_default().to_owned();
            let message =
                format!("constraint \"{name}\" for relation \"{}\" already exists", self.earlier.schema.name);
            SqlError::new(code::DUPLICATE_OBJECT, message)
        })?;
        let relation = self.relation().to_owned();
        let added: Vec<Check> =
            self.bound.schema.checks().filter(|check| !known.contains(&check.name)).cloned().collect();
        for check in added {
            let message = format!(
                "check constraint \"{}\" of relation \"{relation}\" is violated by some row",
                check.name
            );
            let mut violation = SqlError::new(code::CHECK_VIOLATION, message);
            violation.about.table = Some(relation.clone());
            violation.about.constraint = Some(check.name.clone());
            self.bound.requirements.push(Requirement {
                condition: check.condition,
                not_null: None,
                violation,
            });
        }
        Ok(())
    }

    fn add_reference(&mut self, key: &ast::ForeignKeyConstraint) -> Result<()> {
        let span = key.foreign_table.span();
        foreign_key(key, span)?;
        let schema = &self.bound.schema;
        let declared = DeclaredReference::new(key, key.name.as_ref(), None, &schema.columns)?;
        let uniques = index::unique_keys(self.catalog, schema);
        let (reference, parent) = declared.bind(schema, &uniques, self.catalog)?;
        let is_added = |column: &usize| matches!(self.bound.columns[*column], NewColumn::Added(_));
        if reference.columns.iter().any(is_added) {
            let what = "ADD FOREIGN KEY of a column that the same statement adds";
            return Err(SqlError::unsupported(what).hint("Use two statements.").at(span));
        }
        let parents = &mut self.bound.parents;
        parents.extend(parent.filter(|parent| parents.iter().all(|known| known.id != parent.id)));
        self.bound.references.push(reference.name.clone());
        self.bound.schema.constraints.push(Constraint::Reference(reference));
        Ok(())
    }

    /// Returns the references to the table, with the names of their tables.
    fn references_to(&self) -> Vec<(&str, &Reference)> {
        let mut all = Vec::new();
        // The table's own references are those that the statement has left.
        let others = self.catalog.tables.iter().filter(|table| table.id != self.earlier.id);
        for schema in others.map(|table| &table.schema).chain([&self.bound.schema]) {
            let own = schema.references().filter(|reference| reference.parent == self.relation());
            all.extend(own.map(|reference| (&*schema.name, reference)));
        }
        all
    }

    fn drop_column(&mut self, ident: &ast::Ident, if_exists: bool, cascades: bool) -> Result<()> {
        let index = match self.column(ident) {
            Ok(index) => index,
            Err(error) if if_exists => {
                let notice = format!("{}, skipping", error.message);
                self.bound.notices.push(SqlError::new("00000", notice));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let name = self.bound.schema.columns[index].name.clone();
        if self.is_key(index) {
            let message = format!("DROP COLUMN of \"{name}\", by which the table is partitioned or keyed,");
            return Err(SqlError::unsupported(message).at(ident.span));
        }
        // As in PostgreSQL, the constraints on the column are dropped with it.
        self.bound.schema.constraints.retain(|constraint| match constraint {
            Constraint::Check(check) => !check.condition.reads_any_of(&[index]),
            Constraint::Reference(reference) => !reference.columns.contains(&index),
            Constraint::KeyName(_) => true,
        });
        let mut dependents = self.references_to();
        dependents.retain(|(_, reference)| reference.parent_columns.contains(&name));
        if cascades && !dependents.is_empty() {
            let what = format!("DROP COLUMN … CASCADE of \"{name}\", to which references refer,");
            return Err(SqlError::unsupported(what).hint("Drop the references first.").at(ident.span));
        }
        let column = format!("column {name} of table {}", self.relation());
        refuse_dependents(&column, &column, &dependents)?;
        let schema = &mut self.bound.schema;
        let moved = |column: &mut usize| *column -= usize::from(*column > index);
        for constraint in &mut schema.constraints {
            match constraint {
                Constraint::Check(check) => each_column(&mut check.condition, &mut |column, _| moved(column)),
                Constraint::Reference(reference) => reference.columns.iter_mut().for_each(moved),
                Constraint::KeyName(_) => {}
            }
        }
        schema.columns.remove(index);
        schema.primary_key.iter_mut().for_each(moved);
        match &mut schema.partition {
            Partition::Hash { column } | Partition::Range { column, .. } => moved(column),
        }
        self.bound.columns.remove(index);
        self.bound.dropped.push(name);
        Ok(())
    }

    fn rename_column(&mut self, from: &ast::Ident, to: &ast::Ident) -> Result<()> {
        let (before, after) = (scope::fold(from), scope::fold(to));
        let Some(index) = self.find(&before) else {
            let message = format!("column \"{before}\" does not exist");
            return Err(SqlError::new(code::UNDEFINED_COLUMN, message).at(from.span));
        };
        if self.find(&after).is_some() {
            return Err(self.exists(&after).at(to.span));
        }
        ddl::refuse_system_name(&after, to.span)?;
        let schema = &mut self.bound.schema;
        schema.columns[index].name = after.clone();
        let own = schema.name.clone();
        rename_references(schema, (&own, &own), &[(before.clone(), after.clone())]);
        self.write_texts(&[index])?;
        self.bound.renamed.push((before, after));
        Ok(())
    }

    /// Writes the texts of the conditions that read one of these columns again.
    fn write_texts(&mut self, columns: &[usize]) -> Result<()> {
        let schema = self.bound.schema.clone();
        for constraint in &mut self.bound.schema.constraints {
            let Constraint::Check(check) = constraint else { continue };
            if !check.condition.reads_any_of(columns) {
                continue;
            }
            check.text = text_of(&check.condition, &schema, false).ok_or_else(|| {
                SqlError::unsupported(format!("ALTER TABLE of a column of the condition \"{}\"", check.name))
                    .hint("Drop the constraint, and add it again afterwards.")
            })?;
        }
        Ok(())
    }

    fn rename_table(&mut self, name: &ast::ObjectName) -> Result<()> {
        let bare = scope::table_name(name)?;
        if catalog::is_relation(&bare) {
            let message = format!("the name \"{bare}\" belongs to a relation of the system catalog");
            return Err(SqlError::new("42939", message).at(name.span()));
        }
        if self.catalog.table(&bare).is_some() {
            let message = format!("relation \"{bare}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_TABLE, message).at(name.span()));
        }
        // The primary key keeps its name, as in PostgreSQL.
        let schema = &mut self.bound.schema;
        let key = schema.key_name();
        let before = std::mem::replace(&mut schema.name, bare.clone());
        rename_references(schema, (&before, &bare), &[]);
        if !schema.primary_key.is_empty() && schema.key_name() != key {
            schema.constraints.push(Constraint::KeyName(key));
        }
        Ok(())
    }

    fn missing_constraint(&self, name: &str) -> SqlError {
        let message = format!("constraint \"{name}\" of relation \"{}\" does not exist", self.relation());
        SqlError::new(code::UNDEFINED_OBJECT, message)
    }

    fn refuse_key(&self, name: &str, action: &str) -> Result<()> {
        let schema = &self.bound.schema;
        let (kind, columns) = if !schema.primary_key.is_empty() && schema.key_name() == name {
            let name = |index: &usize| schema.columns[*index].name.clone();
            ("primary key", schema.primary_key.iter().map(name).collect::<Vec<String>>())
        } else {
            let mut indexes = index::all(self.catalog);
            let is_key = |index: &IndexDefinition| {
                index.name == name && index.table == schema.name && index.is_constraint()
            };
            let Some((_, index)) = indexes.find(|(_, index)| is_key(index)) else { return Ok(()) };
            ("unique constraint", index.keys.into_iter().map(|key| key.column).collect())
        };
        if action == DROP_CONSTRAINT {
            let mut dependents = self.references_to();
            dependents.retain(|(_, reference)| {
                let named = &reference.parent_columns;
                named.len() == columns.len() && named.iter().all(|column| columns.contains(column))
            });
            let constraint = format!("constraint {name} on table {}", schema.name);
            refuse_dependents(&constraint, &format!("index {name}"), &dependents)?;
        }
        Err(SqlError::unsupported(format!("ALTER TABLE … {action} of a {kind}")))
    }

    fn rename_constraint(&mut self, from: &ast::Ident, to: &ast::Ident) -> Result<()> {
        let (before, after) = (scope::fold(from), scope::fold(to));
        self.refuse_key(&before, "RENAME CONSTRAINT")?;
        let schema = &mut self.bound.schema;
        let Some(index) = schema.constraints.iter().position(|constraint| constraint.name() == before) else {
            let message =
                format!("constraint \"{before}\" for table \"{}\" does not exist", self.earlier.schema.name);
            return Err(SqlError::new(code::UNDEFINED_OBJECT, message));
        };
        let is_taken = schema.constraints.iter().any(|constraint| constraint.name() == after)
            || !schema.primary_key.is_empty() && schema.key_name() == after;
        if is_taken {
            let message = format!(
                "constraint \"{after}\" for relation \"{}\" already exists",
                self.earlier.schema.name
            );
            return Err(SqlError::new(code::DUPLICATE_OBJECT, message));
        }
        match schema.constraints.remove(index) {
            Constraint::Check(check) => schema.add_check(Check { name: after, ..check }),
            Constraint::Reference(reference) => {
                schema
                    .constraints
                    .insert(index, Constraint::Reference(Reference { name: after, ..reference }));
            }
            Constraint::KeyName(_) => unreachable!("the name of the primary key was refused above"),
        }
        Ok(())
    }

    fn drop_constraint(&mut self, ident: &ast::Ident, if_exists: bool) -> Result<()> {
        let name = scope::fold(ident);
        self.refuse_key(&name, DROP_CONSTRAINT)?;
        let constraints = &mut self.bound.schema.constraints;
        match constraints.iter().position(|constraint| constraint.name() == name) {
            Some(index) => drop(constraints.remove(index)),
            None if if_exists => {
                let notice = format!("{}, skipping", self.missing_constraint(&name).message);
                self.bound.notices.push(SqlError::new("00000", notice));
            }
            None => return Err(self.missing_constraint(&name)),
        }
        Ok(())
    }

    fn alter_column(
        &mut self,
        ident: &ast::Ident,
        operation: &AlterColumnOperation,
        parameters: &mut Parameters,
    ) -> Result<()> {
        let index = self.column(ident)?;
        let name = self.bound.schema.columns[index].name.clone();
        let owned = sequence::of_column(self.catalog, self.relation(), &name);
        let is_identity = owned.is_some_and(|sequence| sequence.identity.is_some());
        let identity = || {
            let message = format!(
                "column \"{name}\" of relation \"{}\" is an identity column",
                self.earlier.schema.name
            );
            SqlError::new(code::SYNTAX_ERROR, message)
        };
        match operation {
            AlterColumnOperation::SetDefault { .. } | AlterColumnOperation::DropDefault if is_identity => {
                return Err(identity());
            }
            AlterColumnOperation::DropNotNull if is_identity => return Err(identity()),
            AlterColumnOperation::SetDefault { value } => {
                let default = ddl::default(value, &self.bound.schema.columns[index], parameters)?;
                let is_null = matches!(default, Expr::Constant(Value::Null, _));
                self.bound.schema.columns[index].default = (!is_null).then_some(default);
            }
            AlterColumnOperation::DropDefault => self.bound.schema.columns[index].default = None,
            AlterColumnOperation::DropNotNull => {
                if self.bound.schema.primary_key.contains(&index) {
                    let message = format!("column \"{name}\" is in a primary key");
                    return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message));
                }
                self.bound.schema.columns[index].not_null = false;
            }
            AlterColumnOperation::SetNotNull => {
                if !self.bound.schema.columns[index].not_null {
                    self.bound.schema.columns[index].not_null = true;
                    self.require_not_null(index, self.bound.schema.columns[index].ty);
                }
            }
            AlterColumnOperation::SetDataType { data_type, using, had_set: _ } => {
                if let Some(using) = using {
                    return Err(SqlError::unsupported("ALTER COLUMN … TYPE … USING").at(using.span()));
                }
                let (ty, modifier) = types::modified(data_type).map_err(|error| error.at(ident.span))?;
                self.change_type(index, ty, modifier, ident, parameters)?;
            }
            AlterColumnOperation::AddGenerated { .. } => {
                return Err(SqlError::unsupported("ALTER COLUMN … ADD GENERATED").at(ident.span));
            }
        }
        Ok(())
    }

    fn change_type(
        &mut self,
        index: usize,
        ty: Type,
        modifier: Option<Modifier>,
        ident: &ast::Ident,
        parameters: &mut Parameters,
    ) -> Result<()> {
        let before = self.bound.schema.columns[index].clone();
        if (before.ty, before.modifier) == (ty, modifier) {
            return Ok(());
        }
        let rank = |ty| [Type::Int2, Type::Int4, Type::Int8].iter().position(|known| *known == ty);
        let widens = rank(before.ty).is_some() && rank(before.ty) < rank(ty);
        let loosens = before.ty == ty && is_looser(before.modifier, modifier);
        let is_key = self.is_key(index) || self.is_in_unique_key(&before.name);
        if !(widens || loosens) || widens && is_key {
            let shown = |column: &quorate_table::schema::Column| types::of_column(column).0.display();
            let after = quorate_table::schema::Column { ty, modifier, default: None, ..before.clone() };
            let what = format!(
                "changing the type of column \"{}\" from {} to {}",
                before.name,
                shown(&before),
                shown(&after)
            );
            return Err(SqlError::unsupported(what)
                .hint("An integer outside of the key can become wider, and a varchar can become longer.")
                .at(ident.span));
        }
        let column = &mut self.bound.schema.columns[index];
        (column.ty, column.modifier) = (ty, modifier);
        if let Some(default) = column.default.take() {
            column.default = Some(match default {
                Expr::Constant(value, _) => Expr::Constant(quorate_table::cast::cast(&value, ty)?, ty),
                Expr::Cast(inner, _) => Expr::Cast(inner, ty),
                open @ Expr::Parameter(_, from) if from == ty => open,
                open => Expr::Cast(Box::new(open), ty),
            });
        }
        self.rebind_checks(index, parameters)
    }

    /// Binds the conditions on a column again, because its type is another.
    fn rebind_checks(&mut self, index: usize, parameters: &mut Parameters) -> Result<()> {
        let mut bare = self.bound.schema.clone();
        bare.constraints.clear();
        for constraint in &mut self.bound.schema.constraints {
            let Constraint::Check(check) = constraint else { continue };
            if check.condition.reads_any_of(&[index]) {
                (check.condition, check.text) = check::rebound(&check.text, &bare, parameters)?;
            }
        }
        Ok(())
    }
}

/// Whether every value of a type with the first modifier fits the type with the second.
fn is_looser(before: Option<Modifier>, after: Option<Modifier>) -> bool {
    match (before, after) {
        (_, None | Some(Modifier::Varchar(None))) => true,
        (Some(Modifier::Varchar(Some(before))), Some(Modifier::Varchar(Some(after)))) => before <= after,
        (
            Some(Modifier::Digits { precision: before, scale: from }),
            Some(Modifier::Digits { precision: after, scale: to }),
        ) => before <= after && from == to,
        _ => false,
    }
}

/// Calls `change` with the index and type of each column that an expression reads.
fn each_column(expr: &mut Expr, change: &mut dyn FnMut(&mut usize, &mut Type)) {
    match expr {
        Expr::Column(index, ty) => change(index, ty),
        _ => expr.children_mut().into_iter().for_each(|child| each_column(child, change)),
    }
}

impl AlterTable {
    /// Returns the references that the existing rows must satisfy.
    pub fn new_references(&self) -> impl Iterator<Item = &Reference> {
        self.schema.references().filter(|reference| self.references.contains(&reference.name))
    }

    /// Returns the index in the earlier definition of a column that the statement keeps.
    pub fn earlier_column(&self, column: usize) -> usize {
        match self.columns[column] {
            NewColumn::Kept(source) => source,
            NewColumn::Added(_) => unreachable!("a new reference has no added column"),
        }
    }

    /// Returns a condition over the new definition as a condition over the earlier definition. `values` holds
    /// the values of added columns.
    pub fn over_earlier(&self, condition: &Expr, values: &[Option<Value>]) -> Expr {
        let earlier = self.table.as_ref().map(|table| &table.schema);
        let mut condition = condition.clone();
        replace_columns(
            &mut condition,
            &mut |index, ty| match (&self.columns[index], &values[index], earlier) {
                (NewColumn::Kept(source), _, Some(earlier)) => {
                    let from = earlier.columns[*source].ty;
                    let column = Expr::Column(*source, from);
                    if from == ty { column } else { Expr::Cast(Box::new(column), ty) }
                }
                (_, value, _) => Expr::Constant(value.clone().unwrap_or(Value::Null), ty),
            },
        );
        condition.fold()
    }
}

fn replace_columns(expr: &mut Expr, source: &mut dyn FnMut(usize, Type) -> Expr) {
    match expr {
        Expr::Column(index, ty) => *expr = source(*index, *ty),
        _ => expr.children_mut().into_iter().for_each(|child| replace_columns(child, source)),
    }
}
