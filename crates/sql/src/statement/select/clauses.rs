//! The clauses around a query's body, and checks that all selects share.

use quorate_table::{
    expr::Expr,
    operation::Order,
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use crate::{
    error::{Result, SqlError, code},
    statement::{
        expr::Binder,
        parameters::Parameters,
        query::{LockWait, RowLock},
        scope::{self, Scope},
    },
};

/// The clauses around the body of a query, as far as binders accept such clauses.
pub struct QueryTail<'a> {
    /// ORDER BY.
    pub order: &'a [ast::OrderByExpr],
    /// LIMIT or FETCH FIRST.
    pub limit: Limit<'a>,
    /// OFFSET.
    pub offset: Option<&'a ast::Expr>,
}

/// The limit on the number of rows.
#[derive(Clone, Copy)]
pub enum Limit<'a> {
    /// No limit.
    None,
    /// The value of the expression.
    Of(&'a ast::Expr),
    /// One row: FETCH FIRST ROW without a number.
    One,
}

/// Returns the clauses around the body, and refuses WITH. `unsupported_clauses` has already refused clauses
/// of other databases.
pub fn tail(query: &ast::Query) -> Result<QueryTail<'_>> {
    match &query.with {
        Some(with) => Err(SqlError::unsupported("WITH").at(with.span())),
        None => tail_behind_with(query),
    }
}

/// Returns the clauses around the body for a binder that binds WITH itself.
pub fn tail_behind_with(query: &ast::Query) -> Result<QueryTail<'_>> {
    if !query.locks.is_empty() {
        return Err(SqlError::unsupported("FOR UPDATE or FOR SHARE in a query of this form")
            .hint("Select from one table, in the outermost select."));
    }
    Ok(clauses(query))
}

/// Returns the clauses around the body of a select from one table, and the lock of the select if it locks its
/// rows. `name` is the name of the table within the query.
pub(super) fn locking_tail<'a>(
    query: &'a ast::Query,
    name: &str,
) -> Result<(QueryTail<'a>, Option<RowLock>)> {
    if let Some(with) = &query.with {
        return Err(SqlError::unsupported("WITH").at(with.span()));
    }
    let mut first: Option<RowLock> = None;
    for lock in &query.locks {
        let locks = match lock.lock_type {
            ast::LockType::Update => "SELECT FOR UPDATE",
            ast::LockType::Share => "SELECT FOR SHARE",
        };
        let wait = match lock.nonblock {
            Some(ast::NonBlock::Nowait) => LockWait::NoWait,
            Some(ast::NonBlock::SkipLocked) => LockWait::Skip,
            None => LockWait::Wait,
        };
        if let Some(of) = &lock.of
            && scope::parts(of)? != [name]
        {
            let message = format!(
                "relation \"{of}\" in {} clause not found in FROM clause",
                locks.trim_start_matches("SELECT ")
            );
            return Err(SqlError::new(code::UNDEFINED_TABLE, message).at(of.span()));
        }
        // As in PostgreSQL, NOWAIT of one clause is NOWAIT of all, and precedes SKIP LOCKED.
        first = Some(match first {
            None => RowLock { verb: locks, wait },
            Some(first) => RowLock { wait: first.wait.max(wait), ..first },
        });
    }
    Ok((clauses(query), first))
}

fn clauses(query: &ast::Query) -> QueryTail<'_> {
    let order = match &query.order_by {
        Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(list), interpolate: None }) => list,
        _ => &[][..],
    };
    let (limit, offset) = match &query.limit_clause {
        Some(ast::LimitClause::LimitOffset { limit, offset, limit_by: _ }) => {
            (limit.as_ref(), offset.as_ref().map(|offset| &offset.value))
        }
        _ => (None, None),
    };
    let limit = match &query.fetch {
        None => limit.map_or(Limit::None, Limit::Of),
        Some(fetch) => fetch.quantity.as_ref().map_or(Limit::One, Limit::Of),
    };
    QueryTail { order, limit, offset }
}

/// Refuses VALUES whose rows differ in length (42601), before any value is bound.
pub fn same_length(values: &ast::Values) -> Result<()> {
    let width = values.rows.first().map_or(0, |row| row.content.len());
    match values.rows.iter().find(|row| row.content.len() != width) {
        None => Ok(()),
        Some(row) => {
            let span = row.content.first().map_or_else(Span::empty, Spanned::span);
            Err(SqlError::new(code::SYNTAX_ERROR, "VALUES lists must all be the same length").at(span))
        }
    }
}

/// Binds LIMIT or FETCH FIRST; `None` means no limit.
pub(super) fn limit(limit: Limit<'_>, parameters: &mut Parameters) -> Result<Option<Expr>> {
    match limit {
        Limit::None => Ok(None),
        Limit::Of(expr) => row_count(Some(expr), "LIMIT", parameters),
        Limit::One => Ok(Some(Expr::Constant(Value::Int8(1), Type::Int8))),
    }
}

pub(super) fn row_count(
    expr: Option<&ast::Expr>,
    clause: &'static str,
    parameters: &mut Parameters,
) -> Result<Option<Expr>> {
    let Some(expr) = expr else { return Ok(None) };
    let scope = Scope::empty();
    let mut binder = Binder::new(&scope, parameters, Err(clause));
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
    Ok(Some(operand.coerce_implicit(Type::Int8, parameters)?))
}

/// Refuses an alias that renames more columns than the table has.
pub fn check_renamed(alias: &ast::TableAlias, columns: usize) -> Result<()> {
    let named = alias.columns.len();
    if named <= columns {
        return Ok(());
    }
    let message = format!(
        "table \"{}\" has {columns} columns available but {named} columns specified",
        scope::fold(&alias.name)
    );
    Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message).at(alias.name.span))
}

/// Binds ASC or DESC, and NULLS FIRST or LAST.
pub fn direction(column: usize, options: &ast::OrderByOptions) -> Order {
    let descending = options.asc == Some(false);
    Order { column, descending, nulls_first: options.nulls_first.unwrap_or(descending) }
}

/// Returns the column of the result that an integer constant stands for.
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
