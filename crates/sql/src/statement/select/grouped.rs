//! Rewrites expressions over groups: afterwards they refer to keys and aggregates instead of columns.

use std::collections::BTreeMap;

use quorate_table::expr::{Aggregate, Expr};
use sqlparser::{ast, tokenizer::Span};

use crate::{
    error::{Result, SqlError, code},
    statement::{expr::AGGREGATE, scope::Scope},
};

pub(super) struct Grouping {
    pub(super) keys: Vec<Expr>,
    pub(super) aggregates: Vec<Aggregate>,
    pub(super) having: Option<Expr>,
    /// The places where columns occur outside of aggregates, for error messages.
    pub(super) mentions: BTreeMap<usize, Span>,
}

/// Records the place of a select item that is a plain column.
pub(super) fn mention(item: &ast::SelectItem, scope: &Scope<'_>, mentions: &mut BTreeMap<usize, Span>) {
    let (ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. }) = item else {
        return;
    };
    let name = match expr {
        ast::Expr::Identifier(name) => std::slice::from_ref(name),
        ast::Expr::CompoundIdentifier(names) => names,
        _ => return,
    };
    if let (Ok(Expr::Column(index, _)), Some(last)) = (scope.column(name), name.last()) {
        mentions.entry(index).or_insert(last.span);
    }
}

/// Rewrites an expression over columns and aggregates to an expression over a group's keys and results.
pub(super) fn over_groups(expr: &Expr, grouping: &Grouping, scope: &Scope<'_>) -> Result<Expr> {
    if let Some(index) = grouping.keys.iter().position(|key| key == expr) {
        return Ok(Expr::Column(index, expr.ty()));
    }
    match expr {
        Expr::Column(index, ty) if *index >= AGGREGATE => {
            Ok(Expr::Column(grouping.keys.len() + index - AGGREGATE, *ty))
        }
        Expr::Column(index, _) => {
            let shown = format!("{}.{}", scope.alias, scope.name_of(*index));
            let error = SqlError::new(
                code::GROUPING_ERROR,
                format!(
                    "column \"{shown}\" must appear in the GROUP BY clause or be used in an aggregate function"
                ),
            );
            Err(match grouping.mentions.get(index) {
                Some(span) => error.at(*span),
                None => error,
            })
        }
        other => {
            let mut rewritten = other.clone();
            for child in rewritten.children_mut() {
                *child = over_groups(child, grouping, scope)?;
            }
            Ok(rewritten)
        }
    }
}
