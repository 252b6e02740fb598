//! The name of a result column that has no alias.

use sqlparser::ast;

use crate::{statement::scope, types};

/// Returns the name that PostgreSQL gives to a column without an alias.
pub fn column_name(expr: &ast::Expr) -> String {
    inner_name(expr).unwrap_or_else(|| "?column?".to_owned())
}

/// Returns a name that comes from a column or function, and not from a type or keyword.
fn strong_name(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Nested(inner) | ast::Expr::Cast { expr: inner, .. } => strong_name(inner),
        ast::Expr::Case { else_result, .. } => else_result.as_deref().and_then(strong_name),
        ast::Expr::TypedString(_) | ast::Expr::Interval(_) | ast::Expr::Value(_) => None,
        other => inner_name(other),
    }
}

fn inner_name(expr: &ast::Expr) -> Option<String> {
    let last = |name: &ast::ObjectName| scope::parts(name).ok().and_then(|mut parts| parts.pop());
    Some(match expr {
        ast::Expr::Identifier(ident) => scope::fold(ident),
        ast::Expr::CompoundIdentifier(idents) => scope::fold(idents.last()?),
        ast::Expr::Nested(inner) | ast::Expr::Collate { expr: inner, .. } => inner_name(inner)?,
        ast::Expr::Function(function) => last(&function.name)?,
        ast::Expr::Cast { expr, data_type, .. } => match strong_name(expr) {
            Some(name) => name,
            None => types::base(data_type)?.info().name.to_owned(),
        },
        ast::Expr::TypedString(typed) => types::base(&typed.data_type)?.info().name.to_owned(),
        // As in PostgreSQL, the name comes from ELSE if ELSE has a name.
        ast::Expr::Case { else_result, .. } => {
            else_result.as_deref().and_then(strong_name).unwrap_or_else(|| "case".to_owned())
        }
        ast::Expr::Interval(_) => "interval".to_owned(),
        ast::Expr::Exists { .. } => "exists".to_owned(),
        ast::Expr::Array(_) => "array".to_owned(),
        ast::Expr::Ceil { .. } => "ceil".to_owned(),
        ast::Expr::Floor { .. } => "floor".to_owned(),
        ast::Expr::Substring { shorthand, .. } => if *shorthand { "substr" } else { "substring" }.to_owned(),
        ast::Expr::Extract { .. } => "extract".to_owned(),
        ast::Expr::Position { .. } => "position".to_owned(),
        ast::Expr::Trim { .. } => "btrim".to_owned(),
        ast::Expr::Subquery(query) => match &*query.body {
            ast::SetExpr::Select(select) => match select.projection.first()? {
                ast::SelectItem::UnnamedExpr(expr) => inner_name(expr)?,
                ast::SelectItem::ExprWithAlias { alias, .. } => scope::fold(alias),
                _ => return None,
            },
            _ => return None,
        },
        _ => return None,
    })
}
