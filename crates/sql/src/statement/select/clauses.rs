//! The clauses around a query's body, and what no select here has.

use quorate_table::{expr::Expr, operation::Order, value::Type};
use sqlparser::ast::{self, Spanned};

use crate::{
    error::{Result, SqlError, code},
    statement::{expr::Binder, parameters::Parameters, scope::Scope},
};

/// The clauses of a query around its body, refused or handed out.
pub struct Tail<'a> {
    /// ORDER BY.
    pub order: &'a [ast::OrderByExpr],
    /// LIMIT or FETCH FIRST.
    pub limit: Option<&'a ast::Expr>,
    /// OFFSET.
    pub offset: Option<&'a ast::Expr>,
}

/// Takes the clauses around the body apart.
pub fn tail(query: &ast::Query) -> Result<Tail<'_>> {
    if let Some(with) = &query.with {
        return Err(SqlError::unsupported("WITH").at(with.span()));
    }
    if !query.locks.is_empty() {
        return Err(SqlError::unsupported("SELECT FOR UPDATE or FOR SHARE")
            .hint("A statement is atomic; there are no row locks."));
    }
    if query.for_clause.is_some() || query.settings.is_some() || query.format_clause.is_some() {
        return Err(SqlError::unsupported("this clause"));
    }
    let order = match &query.order_by {
        None => &[][..],
        Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(list), interpolate: None }) => list,
        Some(_) => return Err(SqlError::unsupported("ORDER BY ALL")),
    };
    let (mut limit, offset) = match &query.limit_clause {
        None => (None, None),
        Some(ast::LimitClause::LimitOffset { limit, offset, limit_by }) if limit_by.is_empty() => {
            (limit.as_ref(), offset.as_ref().map(|offset| &offset.value))
        }
        Some(_) => {
            return Err(SqlError::new(code::SYNTAX_ERROR, "LIMIT #,# syntax is not supported")
                .hint("Use separate LIMIT and OFFSET clauses."));
        }
    };
    if let Some(fetch) = &query.fetch {
        if fetch.with_ties || fetch.percent {
            return Err(SqlError::unsupported("FETCH with TIES or PERCENT"));
        }
        limit = fetch.quantity.as_ref();
    }
    Ok(Tail { order, limit, offset })
}

/// Refuses what no select here has.
pub fn refuse_extras(select: &ast::Select) -> Result<()> {
    let refused = [
        (select.into.is_some(), "SELECT INTO"),
        (matches!(select.distinct, Some(ast::Distinct::On(_))), "DISTINCT ON"),
        (!select.named_window.is_empty(), "WINDOW"),
        (select.qualify.is_some(), "QUALIFY"),
        (select.top.is_some(), "TOP"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
    ];
    match refused.iter().find(|(present, _)| *present) {
        Some((_, what)) => Err(SqlError::unsupported(what)),
        None => Ok(()),
    }
}

pub(super) fn row_count(
    expr: Option<&ast::Expr>,
    clause: &'static str,
    parameters: &mut Parameters,
) -> Result<Option<Expr>> {
    let Some(expr) = expr else { return Ok(None) };
    let scope = Scope::empty();
    let mut binder = Binder { scope: &scope, parameters, aggregates: Err(clause) };
    let operand = binder.operand(expr).map_err(|error| {
        if error.code == code::UNDEFINED_COLUMN {
            SqlError::new(
                code::INVALID_COLUMN_REFERENCE,
                format!("argument of {clause} must not contain variables"),
            )
            .at(expr.span())
        } else {
            error
        }
    })?;
    if let Some(ty) = operand.ty()
        && !ty.is_number()
    {
        return Err(SqlError::new(
            code::DATATYPE_MISMATCH,
            format!("argument of {clause} must be type bigint, not type {}", ty.name()),
        )
        .at(expr.span()));
    }
    Ok(Some(operand.implicit(Type::Int8, parameters)?))
}

/// ASC, DESC and where NULLs go.
pub fn direction(column: usize, options: &ast::OrderByOptions) -> Order {
    let descending = options.asc == Some(false);
    Order { column, descending, nulls_first: options.nulls_first.unwrap_or(descending) }
}

/// The column of the result that an integer constant means.
pub fn position(expr: &ast::Expr, columns: usize, clause: &str) -> Result<Option<usize>> {
    let (value, negative) = match expr {
        ast::Expr::Value(value) => (value, false),
        ast::Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr } => match &**expr {
            ast::Expr::Value(value) => (value, true),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    match &value.value {
        ast::Value::Number(digits, _) => {
            match digits.parse::<usize>() {
                Ok(number) if !negative && (1..=columns).contains(&number) => Ok(Some(number - 1)),
                Ok(number) => {
                    let sign = if negative { "-" } else { "" };
                    Err(SqlError::new(
                        code::INVALID_COLUMN_REFERENCE,
                        format!("{clause} position {sign}{number} is not in select list"),
                    )
                    .at(value.span))
                }
                Err(_) => Err(SqlError::new(code::SYNTAX_ERROR, format!("non-integer constant in {clause}"))
                    .at(value.span)),
            }
        }
        ast::Value::Placeholder(_) => Ok(None),
        _ => {
            Err(SqlError::new(code::SYNTAX_ERROR, format!("non-integer constant in {clause}")).at(value.span))
        }
    }
}
