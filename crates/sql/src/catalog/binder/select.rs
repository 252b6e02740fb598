//! Binds one select: its list, conditions, groups and order.

use quorate_table::{expr::Expr, operation::Order};
use sqlparser::ast::{self, BinaryOperator, Spanned};

use super::{Binder, Column, SetReturningCalls, Typed, Using};
use crate::{
    catalog::plan::{Body, From, LeafNode, Select, visit},
    error::{Result, SqlError},
    statement::{coerce, expr::name::column_name, scope, select::clauses},
    types::PgType,
};

impl Binder<'_> {
    pub(super) fn select(
        &mut self,
        select: &ast::Select,
        order: &[ast::OrderByExpr],
    ) -> Result<(Body, Vec<Column>, Vec<Order>, usize)> {
        self.levels.push(Vec::new());
        let around = std::mem::take(&mut self.windows);
        let bound = self.select_within(select, order);
        self.windows = around;
        self.levels.pop();
        bound
    }

    fn select_within(
        &mut self,
        select: &ast::Select,
        order: &[ast::OrderByExpr],
    ) -> Result<(Body, Vec<Column>, Vec<Order>, usize)> {
        let mut from = Vec::with_capacity(select.from.len());
        for item in &select.from {
            from.push(self.joined(item)?);
        }
        let mut conjuncts = Vec::new();
        if let Some(selection) = &select.selection {
            let mut parts = Vec::new();
            split(selection, &mut parts);
            for part in parts {
                let node = self.condition(part, "WHERE")?;
                let needs = self.needs(&node);
                conjuncts.push((node, needs));
            }
        }
        let mut columns: Vec<Column> = Vec::new();
        let mut nodes = Vec::new();
        let mut exprs: Vec<Option<&ast::Expr>> = Vec::new();
        let named = self.levels.last().map_or(0, Vec::len);
        self.set = SetReturningCalls::List(Vec::new());
        for item in &select.projection {
            let (expr, name) = match item {
                ast::SelectItem::UnnamedExpr(expr) => (expr, column_name(expr)),
                ast::SelectItem::ExprWithAlias { expr, alias } => (expr, scope::fold(alias)),
                ast::SelectItem::Wildcard(_) | ast::SelectItem::QualifiedWildcard(..) => {
                    let qualifier = match item {
                        ast::SelectItem::QualifiedWildcard(
                            ast::SelectItemQualifiedWildcardKind::ObjectName(name),
                            _,
                        ) => Some(scope::parts(name)?.pop().unwrap_or_default()),
                        _ => None,
                    };
                    let level = self.levels.last().expect("the binder is inside a level of the query");
                    let mut places: Vec<usize> = (0..named).collect();
                    match &qualifier {
                        Some(table) => places.retain(|index| *table == level[*index].table),
                        None => {
                            places.retain(|index| level[*index].using != Using::Merged);
                            places.sort_by_key(|index| level[*index].using != Using::Kept);
                        }
                    }
                    let placed: Vec<(usize, Column)> =
                        places.into_iter().map(|index| (index, level[index].clone())).collect();
                    for (index, column) in placed {
                        nodes.push(self.leaf(LeafNode::Column { level: 0, index }, column.ty).0);
                        columns.push(column);
                        exprs.push(None);
                    }
                    continue;
                }
                other => {
                    return Err(SqlError::unsupported(format!("the select item {other}")).at(other.span()));
                }
            };
            let Typed(node, ty) = self.expr(expr)?;
            let node = self.shown(node, ty);
            columns.push(Column::new("", name, ty));
            nodes.push(node);
            exprs.push(Some(expr));
        }
        let rows = match std::mem::replace(&mut self.set, SetReturningCalls::Refused) {
            SetReturningCalls::List(calls) => calls.into_iter().map(|(_, node)| node).collect(),
            SetReturningCalls::Refused => Vec::new(),
        };
        let makes_rows = !rows.is_empty();
        if makes_rows {
            from.push(From::Elements(rows));
        }
        let visible = columns.len();
        let mut keys = Vec::new();
        for key in order {
            let named = match &key.expr {
                ast::Expr::Identifier(name) => {
                    let name = scope::fold(name);
                    columns[..visible].iter().position(|column| column.name == name)
                }
                other => clauses::position(other, visible, "ORDER BY")?,
            };
            let known = named.or_else(|| exprs.iter().position(|expr| *expr == Some(&key.expr)));
            let column = match known {
                Some(index) => index,
                None => {
                    let Typed(node, ty) = self.expr(&key.expr)?;
                    nodes.push(node);
                    columns.push(Column::new("", "", ty));
                    nodes.len() - 1
                }
            };
            coerce::check_order(nodes[column].ty(), key.expr.span())?;
            keys.push(clauses::direction(column, &key.options));
        }
        let groups = match &select.group_by {
            ast::GroupByExpr::Expressions(list, modifiers) if modifiers.is_empty() => list,
            _ => return Err(SqlError::unsupported("GROUP BY ALL or with a modifier")),
        };
        let mut group_nodes = Vec::with_capacity(groups.len());
        for item in groups {
            let node = match clauses::position(item, visible, "GROUP BY") {
                Ok(Some(index)) => match exprs[index] {
                    Some(expr) => self.expr(expr)?.0,
                    None => nodes[index].clone(),
                },
                _ => self.expr(item)?.0,
            };
            coerce::check_equality(node.ty(), item.span())?;
            group_nodes.push(node);
        }
        let distinct = matches!(select.distinct, Some(ast::Distinct::Distinct));
        for node in nodes[..visible].iter().filter(|_| distinct) {
            coerce::check_equality(node.ty(), select.span())?;
        }
        let having = match &select.having {
            Some(having) => Some(self.condition(having, "HAVING")?),
            None => None,
        };
        let aggregated =
            !groups.is_empty() || having.is_some() || nodes.iter().any(|node| self.has_aggregate(node));
        if makes_rows && (aggregated || !self.windows.is_empty()) {
            return Err(SqlError::unsupported(
                "a set-returning function together with aggregates or window functions",
            ));
        }
        let body = Select {
            from,
            conjuncts,
            groups: aggregated.then_some(group_nodes),
            having,
            distinct,
            columns: nodes,
            windows: std::mem::take(&mut self.windows),
        };
        let hidden = columns.len() - visible;
        Ok((Body::Select(Box::new(body)), columns, keys, hidden))
    }

    /// Casts an object id that stands for a name to that name.
    fn shown(&mut self, expr: Expr, ty: PgType) -> Expr {
        let shown = ty.shown();
        if shown == ty { expr } else { self.leaf(LeafNode::Cast(expr, ty, shown), shown).0 }
    }

    /// Returns how many of the level's first columns an expression needs. `None` if a sub-select may need any
    /// column.
    fn needs(&self, expr: &Expr) -> Option<usize> {
        let mut most = 0;
        let simple = visit(expr, &self.leaves, &mut |node| match node {
            LeafNode::Column { level: 0, index } => {
                most = most.max(index + 1);
                true
            }
            LeafNode::Scalar(_) | LeafNode::Exists(_) | LeafNode::ArrayOf(_) => false,
            _ => true,
        });
        simple.then_some(most)
    }

    fn has_aggregate(&self, expr: &Expr) -> bool {
        !visit(expr, &self.leaves, &mut |node| !matches!(node, LeafNode::Aggregate(_)))
    }
}

fn split<'e>(expr: &'e ast::Expr, parts: &mut Vec<&'e ast::Expr>) {
    match expr {
        ast::Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            split(left, parts);
            split(right, parts);
        }
        ast::Expr::Nested(inner) => split(inner, parts),
        other => parts.push(other),
    }
}
