//! Binds the parts of a write that assign values: the columns, the assignments of SET, and the condition on
//! the rows.

use quorate_table::{
    expr::Expr,
    schema::{Column, Schema},
    value::Value,
};
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    expr::Binder,
    parameters::{Parameters, SessionValue},
    scope::{self, Scope},
};
use crate::{
    error::{Result, SqlError, code},
    sequence,
};

/// Returns the positions of named columns. Refuses a name that occurs twice.
pub fn columns(schema: &Schema, names: &[String], spans: &[Span]) -> Result<Vec<usize>> {
    let mut positions = Vec::with_capacity(names.len());
    for (name, span) in names.iter().zip(spans) {
        let Some(position) = schema.columns.iter().position(|column| column.name == *name) else {
            return Err(SqlError::new(
                code::UNDEFINED_COLUMN,
                format!("column \"{name}\" of relation \"{}\" does not exist", schema.name),
            )
            .at(*span));
        };
        if positions.contains(&position) {
            return Err(SqlError::new(
                code::DUPLICATE_COLUMN,
                format!("column \"{name}\" specified more than once"),
            )
            .at(*span));
        }
        positions.push(position);
    }
    Ok(positions)
}

/// Whether an expression is the word DEFAULT, which the parser reads as a name.
pub(super) fn is_default(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Identifier(name) if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("default"))
}

pub(super) fn filter(
    selection: Option<&ast::Expr>,
    scope: &Scope<'_>,
    parameters: &mut Parameters,
) -> Result<Option<Expr>> {
    selection
        .map(|selection| Binder::new(scope, parameters, Err("WHERE")).condition(selection, "WHERE"))
        .transpose()
}

/// `column = value`.
pub(super) struct Assignment {
    pub(super) column: usize,
    pub(super) value: Expr,
    /// The place of the column's name in the text.
    pub(super) span: Span,
}

/// Binds the assignments of SET.
pub(super) fn assignments(
    list: &[ast::Assignment],
    scope: &Scope<'_>,
    parameters: &mut Parameters,
) -> Result<Vec<Assignment>> {
    let schema = scope.schema.expect("only columns of a table are assigned");
    let mut assignments: Vec<Assignment> = Vec::with_capacity(list.len());
    for (name, value) in pairs(list)? {
        let span = name.span();
        let column = scope::column_name(name)?;
        let position = columns(schema, std::slice::from_ref(&column), &[span])?[0];
        if assignments.iter().any(|known| known.column == position) {
            return Err(SqlError::new(
                code::SYNTAX_ERROR,
                format!("multiple assignments to same column \"{column}\""),
            )
            .at(span));
        }
        let value = assigned(&schema.columns[position], value, scope, parameters)?;
        assignments.push(Assignment { column: position, value, span });
    }
    Ok(assignments)
}

fn assigned(
    column: &Column,
    value: &ast::Expr,
    scope: &Scope<'_>,
    parameters: &mut Parameters,
) -> Result<Expr> {
    if is_default(value) {
        let Some(default) = &column.default else { return Ok(Expr::Constant(Value::Null, column.ty)) };
        if sequence::takes_numbers(default) {
            let what = format!(
                "an UPDATE that sets column \"{}\" to DEFAULT, which takes a number from a sequence",
                column.name
            );
            return Err(SqlError::unsupported(what).at(value.span()));
        }
        if SessionValue::is_random(default) {
            let what = format!(
                "an UPDATE that sets column \"{}\" to DEFAULT, which differs for each row",
                column.name
            );
            return Err(SqlError::unsupported(what).at(value.span()));
        }
        return Ok(default.clone());
    }
    let operand = Binder::new(scope, parameters, Err("UPDATE")).operand(value)?;
    operand.coerce_stored(column, value.span(), parameters)
}

/// Returns pairs of names and values. The statement may write them one by one or as lists: `(a, b) = (1, 2)`.
fn pairs(list: &[ast::Assignment]) -> Result<Vec<(&ast::ObjectName, &ast::Expr)>> {
    let mut pairs = Vec::with_capacity(list.len());
    for assignment in list {
        match (&assignment.target, &assignment.value) {
            (ast::AssignmentTarget::ColumnName(name), value) => pairs.push((name, value)),
            (ast::AssignmentTarget::Tuple(names), ast::Expr::Tuple(values)) => {
                if names.len() != values.len() {
                    return Err(SqlError::new(
                        code::SYNTAX_ERROR,
                        "number of columns does not match number of values",
                    )
                    .at(assignment.span()));
                }
                pairs.extend(names.iter().zip(values));
            }
            (ast::AssignmentTarget::Tuple(_), _) => {
                let what = "UPDATE of a list of columns with anything but a list of values";
                return Err(SqlError::unsupported(what).at(assignment.span()));
            }
        }
    }
    Ok(pairs)
}
