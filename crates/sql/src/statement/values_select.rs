//! INSERT … SELECT from a list of VALUES, the form in which SQLAlchemy inserts rows whose keys it wants back:
//!
//! ```text
//! insert into t (a) select p0::varchar from (values ('x', 0), ('y', 1)) as v(p0, n) order by n
//! ```
//!
//! Such a statement is an INSERT of the rows of VALUES. The expressions of the select list are written once
//! for each row, with the row's values in the places of the columns' names.

use std::ops::ControlFlow;

use sqlparser::ast::{self, Spanned, visit_expressions_mut};

use super::{assignment::is_default, scope, select::clauses};
use crate::error::{Result, SqlError, code};

/// Returns the rows of a select from a list of VALUES, as expressions. Returns `None` if the query has
/// another form.
pub(super) fn rows(query: &ast::Query) -> Result<Option<Vec<Vec<ast::Expr>>>> {
    let ast::SetExpr::Select(select) = &*query.body else { return Ok(None) };
    let [ast::TableWithJoins { relation, joins }] = &select.from[..] else { return Ok(None) };
    let ast::TableFactor::Derived { lateral: false, subquery, alias: Some(alias), .. } = relation else {
        return Ok(None);
    };
    let ast::SetExpr::Values(values) = &*subquery.body else { return Ok(None) };
    let is_grouped = match &select.group_by {
        ast::GroupByExpr::Expressions(keys, modifiers) => !keys.is_empty() || !modifiers.is_empty(),
        ast::GroupByExpr::All(_) => true,
    };
    let is_plain = joins.is_empty()
        && select.selection.is_none()
        && select.having.is_none()
        && select.distinct.is_none()
        && !is_grouped
        && has_only_body_and_order(query)
        && has_only_body_and_order(subquery)
        && subquery.order_by.is_none();
    let projected: Option<Vec<&ast::Expr>> = select
        .projection
        .iter()
        .map(|item| match item {
            ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. } => Some(expr),
            _ => None,
        })
        .collect();
    let (true, Some(projected)) = (is_plain, projected) else { return Ok(None) };
    clauses::same_length(values)?;
    let table = scope::fold(&alias.name);
    let names: Vec<String> = alias.columns.iter().map(|column| scope::fold(&column.name)).collect();
    let mut rows = Vec::with_capacity(values.rows.len());
    for row in &values.rows {
        if let Some(default) = row.content.iter().find(|expr| is_default(expr)) {
            return Err(SqlError::new(code::SYNTAX_ERROR, "DEFAULT is not allowed in this context")
                .at(default.span()));
        }
        let value = |expr: &ast::Expr| {
            let name = match expr {
                ast::Expr::Identifier(name) => name,
                ast::Expr::CompoundIdentifier(parts) => match &parts[..] {
                    [of, name] if scope::fold(of) == table => name,
                    _ => return None,
                },
                _ => return None,
            };
            let place = names.iter().position(|known| *known == scope::fold(name))?;
            row.content.get(place).cloned()
        };
        let Some(order) = order(query, value) else { return Ok(None) };
        let written = projected.iter().map(|expr| {
            let mut expr = (*expr).clone();
            let _: ControlFlow<()> = visit_expressions_mut(&mut expr, |part| {
                if let Some(value) = value(part) {
                    *part = value;
                }
                ControlFlow::Continue(())
            });
            expr
        });
        rows.push((order, written.collect::<Vec<_>>()));
    }
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(Some(rows.into_iter().map(|(_, row)| row).collect()))
}

/// Whether a query has no clauses apart from its body and ORDER BY.
fn has_only_body_and_order(query: &ast::Query) -> bool {
    query.with.is_none() && query.limit_clause.is_none() && query.fetch.is_none() && query.locks.is_empty()
}

/// Returns the place of a row in the order of ORDER BY. Returns `None` if a key is no constant integer, or is
/// not in ascending order.
fn order(query: &ast::Query, value: impl Fn(&ast::Expr) -> Option<ast::Expr>) -> Option<Vec<i64>> {
    let Some(order_by) = &query.order_by else { return Some(Vec::new()) };
    let ast::OrderByKind::Expressions(keys) = &order_by.kind else { return None };
    let key = |key: &ast::OrderByExpr| match value(&key.expr)? {
        ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Number(digits, _), .. })
            if key.options.asc != Some(false) =>
        {
            digits.parse().ok()
        }
        _ => None,
    };
    keys.iter().map(key).collect()
}
