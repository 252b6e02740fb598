//! Binds CHECK constraints.
//!
//! A condition is evaluated by every replica of a row, so it may only depend on the row. PostgreSQL also
//! accepts values of the session such as `now()` and evaluates them at each write; here they are refused.

use quorate_table::{constraint::Check, expr::Expr, schema::Schema};
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    condition_text::text_of,
    expr::Binder,
    parameters::{Parameters, SessionValue},
    parse, scope,
    scope::Scope,
};
use crate::error::{Result, SqlError, code};

/// A CHECK of a statement, before it is bound.
pub(super) struct UnboundCheck<'a> {
    /// The name after CONSTRAINT, if there is one.
    pub(super) name: Option<&'a ast::Ident>,
    /// The condition.
    pub(super) constraint: &'a ast::CheckConstraint,
}

/// Returns the CHECKs of a CREATE TABLE, those of columns first.
pub(super) fn all_of(create: &ast::CreateTable) -> Vec<UnboundCheck<'_>> {
    let of_columns = create.columns.iter().flat_map(of_column);
    let of_table = create.constraints.iter().filter_map(|constraint| match constraint {
        ast::TableConstraint::Check(check) => {
            Some(UnboundCheck { name: check.name.as_ref(), constraint: check })
        }
        _ => None,
    });
    of_columns.chain(of_table).collect()
}

/// Returns the CHECKs of a column's definition.
pub(super) fn of_column(column: &ast::ColumnDef) -> impl Iterator<Item = UnboundCheck<'_>> {
    column.options.iter().filter_map(|option| match &option.option {
        ast::ColumnOption::Check(check) => {
            Some(UnboundCheck { name: option.name.as_ref(), constraint: check })
        }
        _ => None,
    })
}

/// Binds CHECKs and adds them to the table's definition.
pub(super) fn add_all(
    checks: &[UnboundCheck<'_>],
    schema: &mut Schema,
    parameters: &mut Parameters,
) -> Result<()> {
    let mut bound = Vec::with_capacity(checks.len());
    for check in checks {
        let condition = condition(check.constraint, schema, parameters)?;
        let text =
            text_of(&condition, schema, false).unwrap_or_else(|| format!("({})", check.constraint.expr));
        let name = match check.name {
            Some(ident) => {
                let name = scope::fold(ident);
                if has(schema, &bound, &name) {
                    let message = format!("check constraint \"{name}\" already exists");
                    return Err(SqlError::new(code::DUPLICATE_OBJECT, message).at(ident.span));
                }
                name
            }
            None => made_up_name(&condition, schema, &bound, parameters),
        };
        bound.push(Check { name, condition, text });
    }
    bound.into_iter().for_each(|check| schema.add_check(check));
    Ok(())
}

fn has(schema: &Schema, bound: &[Check], name: &str) -> bool {
    bound.iter().any(|check| check.name == name)
        || schema.constraints.iter().any(|constraint| constraint.name() == name)
        || (!schema.primary_key.is_empty() && schema.key_name() == name)
}

/// Returns PostgreSQL's name of a constraint without a name. A condition on one column is named after the
/// column. Names of other tables' constraints are avoided, too.
fn made_up_name(condition: &Expr, schema: &Schema, bound: &[Check], parameters: &Parameters) -> String {
    let base = match condition.columns()[..] {
        [column] => format!("{}_{}_check", schema.name, schema.columns[column].name),
        _ => format!("{}_check", schema.name),
    };
    let catalog = parameters.sequences.as_ref();
    let tables = || catalog.into_iter().flat_map(|catalog| &catalog.tables);
    let is_taken = |name: &str| {
        has(schema, bound, name)
            || tables().any(|table| table.schema.constraints.iter().any(|other| other.name() == name))
    };
    let numbered = (1..).map(|number| format!("{base}{number}"));
    std::iter::once(base.clone()).chain(numbered).find(|name| !is_taken(name)).expect("names never end")
}

/// Binds a condition over the columns of a table.
fn condition(
    constraint: &ast::CheckConstraint,
    schema: &Schema,
    parameters: &mut Parameters,
) -> Result<Expr> {
    let ast::CheckConstraint { name: _, expr, enforced } = constraint;
    let span = expr.span();
    if enforced.is_some() {
        return Err(SqlError::unsupported("ENFORCED of a CHECK").at(span));
    }
    let scope = Scope::of(schema, None);
    let mut binder = Binder::new(&scope, parameters, Err("check constraints"));
    let condition = binder.condition(expr, "CHECK").map_err(|error| subquery(error, expr))?;
    refuse_parameters(&condition, span)?;
    Ok(condition.fold())
}

/// Binds the text of a condition again, over a table whose columns have other types. Returns the condition
/// and its text.
pub(super) fn rebound(text: &str, schema: &Schema, parameters: &mut Parameters) -> Result<(Expr, String)> {
    let constraint = ast::CheckConstraint { name: None, expr: Box::new(expression(text)?), enforced: None };
    let condition = condition(&constraint, schema, parameters)?;
    let text = text_of(&condition, schema, false).unwrap_or_else(|| text.to_owned());
    Ok((condition, text))
}

/// Parses an expression that a catalog shows.
fn expression(text: &str) -> Result<ast::Expr> {
    let statements = parse::parse(&format!("SELECT {text}"))?;
    let [ast::Statement::Query(query)] = &statements[..] else { return Err(unreadable(text)) };
    let ast::SetExpr::Select(select) = &*query.body else { return Err(unreadable(text)) };
    match &select.projection[..] {
        [ast::SelectItem::UnnamedExpr(expr)] => Ok(expr.clone()),
        _ => Err(unreadable(text)),
    }
}

fn unreadable(text: &str) -> SqlError {
    SqlError::new(code::INTERNAL_ERROR, format!("the text of a condition is no expression: {text}"))
}

/// Replaces the error about a sub-select with PostgreSQL's error.
fn subquery(error: SqlError, expr: &ast::Expr) -> SqlError {
    if error.code == code::FEATURE_NOT_SUPPORTED && error.message.starts_with("a sub-select") {
        return SqlError::new(code::FEATURE_NOT_SUPPORTED, "cannot use subquery in check constraint")
            .at(expr.span());
    }
    error
}

fn refuse_parameters(expr: &Expr, span: Span) -> Result<()> {
    match expr {
        Expr::Parameter(number, _) if SessionValue::from_number(*number).is_some() => {
            Err(SqlError::unsupported("a value of the session such as now() in a CHECK").at(span))
        }
        Expr::Parameter(number, _) => {
            let message = format!("there is no parameter ${}", number + 1);
            Err(SqlError::new(code::UNDEFINED_PARAMETER, message).at(span))
        }
        _ => expr.children().into_iter().try_for_each(|child| refuse_parameters(child, span)),
    }
}
