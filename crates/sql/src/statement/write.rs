//! Binds INSERT, UPDATE, DELETE and TRUNCATE.

use std::sync::Arc;

use quorate_table::{
    expr::Expr,
    schema::{Column, Schema},
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    Field,
    action::Action,
    assignment::{assignments, filter, is_default},
    coerce, conflict,
    expr::Binder,
    fold,
    parameters::{Parameters, SessionValue},
    scope::{self, Scope},
    select::{self, clauses},
    spelling::{Overriding, overriding_of},
    upkeep::Upkeep,
    values_select,
};
use crate::{
    backend::{Catalog, Table},
    error::{Result, SqlError, code},
    sequence::{self, Identity, Sequence, SequenceCall, SequenceName},
};

pub use super::assignment::columns;

/// A bound write.
#[derive(Debug)]
pub struct Write {
    /// The table that is written.
    pub table: Arc<Table>,
    /// The change.
    pub action: Action,
    /// The expressions of RETURNING, over the written rows.
    pub returning: Vec<Expr>,
    /// The columns of RETURNING.
    pub fields: Vec<Field>,
    /// Whether the sequences of the table's columns start again (TRUNCATE … RESTART IDENTITY).
    pub restarts: bool,
    /// The constraints of the table that concern other tables.
    pub upkeep: Option<Arc<Upkeep>>,
}

/// Returns the tag of a command with this verb, for this number of rows.
pub fn tag(verb: &str, rows: u64) -> String {
    match verb {
        "INSERT" => format!("INSERT 0 {rows}"),
        "TRUNCATE TABLE" => verb.to_owned(),
        verb => format!("{verb} {rows}"),
    }
}

/// Binds an INSERT.
pub fn insert(insert: &ast::Insert, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Write> {
    let ast::TableObject::TableName(name) = &insert.table else {
        return Err(SqlError::unsupported("INSERT into anything but a table"));
    };
    let table = scope::changed_table(catalog, name)?;
    let schema = &table.schema;
    let named: Vec<String> = insert.columns.iter().map(scope::column_name).collect::<Result<_>>()?;
    let spans: Vec<Span> = insert.columns.iter().map(Spanned::span).collect();
    let targets = columns(schema, &named, &spans)?;
    let targets = if targets.is_empty() { (0..schema.columns.len()).collect() } else { targets };
    let selected = insert.source.as_deref().map(values_select::rows).transpose()?.flatten();
    let values: Vec<&[ast::Expr]> = match (insert.source.as_deref(), &selected) {
        (None, _) => Vec::new(),
        (Some(_), Some(rows)) => rows.iter().map(|row| &row[..]).collect(),
        (Some(query), None) => match &*query.body {
            ast::SetExpr::Values(values) if is_bare(query) => {
                clauses::same_length(values)?;
                values.rows.iter().map(|row| &row.content[..]).collect()
            }
            _ => {
                return Err(SqlError::unsupported("INSERT … SELECT from anything but a list of VALUES")
                    .hint("Read with SELECT or COPY TO and load with COPY FROM.")
                    .at(query.span()));
            }
        },
    };
    let scope = Scope::empty();
    let overriding = overriding_of(insert);
    let identities = identities(catalog, schema);
    let defaults = defaults(catalog, schema);
    let mut rows = Vec::with_capacity(values.len().max(1));
    if insert.source.is_none() {
        rows.push(with_defaults(vec![None; schema.columns.len()], schema, &defaults, parameters)?);
    }
    for row in values {
        if row.len() > targets.len() {
            return Err(SqlError::new(code::SYNTAX_ERROR, "INSERT has more expressions than target columns")
                .at(row[targets.len()].span()));
        }
        if row.len() < targets.len() && !named.is_empty() {
            return Err(SqlError::new(code::SYNTAX_ERROR, "INSERT has more target columns than expressions")
                .at(spans[row.len()]));
        }
        let mut bound = vec![None; schema.columns.len()];
        for (expr, &target) in row.iter().zip(&targets) {
            let column = &schema.columns[target];
            let identity = identities.iter().find(|(column, _)| *column == target);
            let is_drawn = identity.is_some() && overriding == Some(Overriding::User);
            if is_default(expr) || is_drawn {
                continue;
            }
            if overriding.is_none() && identity.is_some_and(|(_, identity)| *identity == Identity::Always) {
                let name = &column.name;
                let message = format!("cannot insert a non-DEFAULT value into column \"{name}\"");
                return Err(SqlError::new("428C9", message)
                    .detail(format!("Column \"{name}\" is an identity column defined as GENERATED ALWAYS."))
                    .hint("Use OVERRIDING SYSTEM VALUE to override.")
                    .at(expr.span()));
            }
            let operand = Binder::new(&scope, parameters, Err("VALUES")).operand(expr)?;
            bound[target] = Some(operand.coerce_stored(column, expr.span(), parameters)?);
        }
        rows.push(with_defaults(bound, schema, &defaults, parameters)?);
    }
    let alias = insert.table_alias.as_ref().map(|alias| scope::fold(&alias.alias));
    let upkeep = Upkeep::of(catalog, schema);
    let target = (schema, upkeep.as_deref());
    let conflict = conflict::bind(insert.on.as_ref(), target, alias.clone(), parameters)?;
    let (returning, fields) = returning(insert.returning.as_deref(), &table, alias, parameters)?;
    let is_drawn = |part: &Expr| match part {
        Expr::Parameter(number, _) => {
            SessionValue::from_number(*number).is_some_and(SessionValue::differs_by_row)
        }
        _ => false,
    };
    let draws = !returning.is_empty() && rows.iter().flatten().any(|expr| fold::any(expr, &is_drawn));
    let action = Action::Insert { rows, conflict, draws };
    Ok(Write { table, action, returning, fields, restarts: false, upkeep })
}

/// Whether a query consists of its body alone, without clauses such as WITH or LIMIT.
fn is_bare(query: &ast::Query) -> bool {
    let ast::Query {
        with,
        body: _,
        order_by,
        limit_clause,
        fetch,
        locks,
        for_clause: _,
        settings: _,
        format_clause: _,
        pipe_operators: _,
    } = query;
    with.is_none() && order_by.is_none() && limit_clause.is_none() && fetch.is_none() && locks.is_empty()
}

/// The default of a column.
pub enum ColumnDefault {
    /// A constant or a value of the session.
    Value(Expr),
    /// The next number of a sequence.
    Next(Arc<Sequence>),
    /// The next number of a sequence that does not exist.
    Missing,
}

/// Returns the default of every column.
pub fn defaults(catalog: &Catalog, schema: &Schema) -> Vec<ColumnDefault> {
    let default = |column: &Column| match &column.default {
        None => ColumnDefault::Value(Expr::Constant(Value::Null, column.ty)),
        Some(default) => match sequence::of_default(catalog, default) {
            None => ColumnDefault::Value(default.clone()),
            Some(None) => ColumnDefault::Missing,
            Some(Some(sequence)) => ColumnDefault::Next(sequence),
        },
    };
    schema.columns.iter().map(default).collect()
}

/// Completes a row with the defaults of the columns that the statement does not give.
fn with_defaults(
    row: Vec<Option<Expr>>,
    schema: &Schema,
    defaults: &[ColumnDefault],
    parameters: &mut Parameters,
) -> Result<Vec<Expr>> {
    let columns = schema.columns.iter().zip(defaults);
    row.into_iter()
        .zip(columns)
        .map(|(given, (column, default))| match (given, default) {
            (Some(given), _) => Ok(given),
            (None, ColumnDefault::Value(default)) => Ok(default.clone()),
            (None, ColumnDefault::Next(sequence)) => {
                let next = SequenceCall::Next(SequenceName::Known(sequence.clone()));
                let next = Expr::Parameter(parameters.call(next).number(), Type::Int8);
                Ok(if column.ty == Type::Int8 { next } else { coerce::cast(next, column.ty) })
            }
            (None, ColumnDefault::Missing) => Err(no_sequence(schema, column)),
        })
        .collect()
}

/// Returns the error about a default whose sequence does not exist.
pub fn no_sequence(schema: &Schema, column: &Column) -> SqlError {
    let message =
        format!("the sequence of column \"{}\" of relation \"{}\" does not exist", column.name, schema.name);
    SqlError::new(code::UNDEFINED_TABLE, message)
}

/// Returns the identity columns of a table.
fn identities(catalog: &Catalog, schema: &Schema) -> Vec<(usize, Identity)> {
    let columns = schema.columns.iter().enumerate();
    let takes_numbers = columns.filter(|(_, column)| {
        column.default.as_ref().is_some_and(|default| sequence::of_default(catalog, default).is_some())
    });
    let identity = |(index, column): (usize, &Column)| {
        let sequence = sequence::of_column(catalog, &schema.name, &column.name)?;
        sequence.identity.map(|identity| (index, identity))
    };
    takes_numbers.filter_map(identity).collect()
}

fn returning(
    items: Option<&[ast::SelectItem]>,
    table: &Table,
    alias: Option<String>,
    parameters: &mut Parameters,
) -> Result<(Vec<Expr>, Vec<Field>)> {
    match items {
        None => Ok((Vec::new(), Vec::new())),
        Some(items) => select::returning(items, table, alias, parameters),
    }
}

/// Returns the only table of an UPDATE or DELETE, and its alias. Refuses joins and anything that is no table.
fn target(
    tables: &[ast::TableWithJoins],
    what: &str,
    catalog: &Arc<Catalog>,
) -> Result<(Arc<Table>, Option<String>)> {
    match tables {
        [one] if one.joins.is_empty() => match &one.relation {
            ast::TableFactor::Table { name, alias, args: None, .. } => {
                if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
                    return Err(SqlError::new(
                        code::SYNTAX_ERROR,
                        format!("syntax error: the table of {what} takes no list of column aliases"),
                    )
                    .at(name.span()));
                }
                Ok((
                    scope::changed_table(catalog, name)?,
                    alias.as_ref().map(|alias| scope::fold(&alias.name)),
                ))
            }
            other => Err(SqlError::unsupported(format!("{what} of anything but a table")).at(other.span())),
        },
        _ => Err(SqlError::unsupported(format!("{what} over several tables"))),
    }
}

/// Binds an UPDATE.
pub fn update(update: &ast::Update, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Write> {
    let (table, alias) = target(std::slice::from_ref(&update.table), "UPDATE", catalog)?;
    let schema = &table.schema;
    let scope = Scope::of(schema, alias.clone());
    let assignments = assignments(&update.assignments, &scope, parameters)?;
    if let Some((position, span)) = assignments.iter().find_map(|assignment| {
        (assignment.column == schema.partition.column()).then_some((assignment.column, assignment.span))
    }) {
        let column = &schema.columns[position].name;
        return Err(SqlError::unsupported(format!("UPDATE of the partition column \"{column}\""))
            .hint("Delete the row and insert it again with the new value.")
            .at(span));
    }
    for (column, identity) in identities(catalog, schema) {
        let assigned = assignments.iter().find(|assignment| assignment.column == column);
        if let (Some(assigned), Identity::Always) = (assigned, identity) {
            let message =
                format!("column \"{}\" can only be updated to DEFAULT", schema.columns[column].name);
            return Err(SqlError::new("428C9", message).at(assigned.span));
        }
    }
    let assignments =
        assignments.into_iter().map(|assignment| (assignment.column, assignment.value)).collect();
    let filter = filter(update.selection.as_ref(), &scope, parameters)?;
    let (returning, fields) = returning(update.returning.as_deref(), &table, alias, parameters)?;
    Ok(Write {
        action: Action::Update { assignments, filter },
        table: table.clone(),
        returning,
        fields,
        restarts: false,
        upkeep: Upkeep::of(catalog, schema),
    })
}

/// Binds a DELETE.
pub fn delete(delete: &ast::Delete, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Write> {
    let (ast::FromTable::WithFromKeyword(tables) | ast::FromTable::WithoutKeyword(tables)) = &delete.from;
    let (table, alias) = target(tables, "DELETE", catalog)?;
    let scope = Scope::of(&table.schema, alias.clone());
    let filter = filter(delete.selection.as_ref(), &scope, parameters)?;
    let (returning, fields) = returning(delete.returning.as_deref(), &table, alias, parameters)?;
    let (action, upkeep) = (Action::Delete { filter }, Upkeep::of(catalog, &table.schema));
    Ok(Write { action, table: table.clone(), returning, fields, restarts: false, upkeep })
}

/// Binds a TRUNCATE.
pub fn truncate(truncate: &ast::Truncate, catalog: &Arc<Catalog>) -> Result<Write> {
    let [target] = &truncate.table_names[..] else {
        return Err(SqlError::unsupported("TRUNCATE of several tables at once")
            .hint("Truncate the tables one by one; each TRUNCATE is atomic."));
    };
    let table = scope::changed_table(catalog, &target.name)?;
    let restarts = truncate.identity == Some(ast::TruncateIdentityOption::Restart);
    let upkeep = Upkeep::of(catalog, &table.schema);
    let has_others =
        upkeep.iter().any(|upkeep| upkeep.children.iter().any(|child| child.child.id != table.id));
    if has_others && truncate.cascade == Some(ast::CascadeOption::Cascade) {
        return Err(SqlError::unsupported("TRUNCATE … CASCADE of a table to which others refer"));
    }
    let (action, returning, fields) = (Action::Truncate, Vec::new(), Vec::new());
    Ok(Write { table, action, returning, fields, restarts, upkeep })
}

/// Refuses NULL in a column that is NOT NULL.
pub fn check_not_null(schema: &Schema, row: &[Value]) -> Result<()> {
    for (column, value) in schema.columns.iter().zip(row) {
        if column.not_null && value.is_null() {
            let shown: Vec<String> =
                row.iter().map(|value| value.text().unwrap_or_else(|| "null".to_owned())).collect();
            return Err(SqlError::new(
                code::NOT_NULL_VIOLATION,
                format!(
                    "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                    column.name, schema.name
                ),
            )
            .detail(format!("Failing row contains ({}).", shown.join(", "))));
        }
    }
    Ok(())
}

/// Returns the types of a table's columns.
pub fn types(schema: &Schema) -> Vec<Type> {
    schema.columns.iter().map(|column| column.ty).collect()
}
