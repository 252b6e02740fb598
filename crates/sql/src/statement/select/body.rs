//! Binds a select's list, GROUP BY, HAVING and ORDER BY.

use std::collections::BTreeMap;

use quorate_table::{
    expr::{Aggregate, Expr},
    operation::Order,
};
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    clauses::{self, QueryTail, direction, position, row_count},
    grouped::{Grouping, mention},
};
use crate::{
    error::{Result, SqlError, code},
    statement::{
        coerce,
        expr::{AGGREGATE, Binder, name::column_name},
        fold,
        parameters::Parameters,
        query::Finish,
        scope::{self, Scope},
    },
    types::PgType,
};

/// One column of a select list.
pub(super) struct OutputItem {
    pub(super) name: String,
    pub(super) expr: Expr,
    pub(super) ty: PgType,
    /// The type's modifier for clients.
    pub(super) modifier: i32,
    /// The place of the item in the text, for errors.
    pub(super) span: Span,
}

impl OutputItem {
    /// Refuses to sort or group by an interval. An interval is carried as text, whose order and equality
    /// differ from those of the interval's length.
    fn check_order(&self) -> Result<()> {
        if self.ty == PgType::Interval {
            return Err(SqlError::unsupported("ORDER BY, GROUP BY or DISTINCT on an interval")
                .hint("Use extract(epoch from …).")
                .at(self.span));
        }
        Ok(())
    }
}

/// The parts of a select, before they are bound.
pub(super) struct Body<'a> {
    pub(super) select: &'a ast::Select,
    pub(super) tail: QueryTail<'a>,
    pub(super) scope: &'a Scope<'a>,
}

pub(super) struct BoundBody {
    pub(super) filter: Option<Expr>,
    pub(super) items: Vec<OutputItem>,
    /// Expressions to sort by that are not items. Their columns follow the columns of the items.
    pub(super) hidden: Vec<Expr>,
    pub(super) grouping: Option<Grouping>,
    /// The gateway's half of the select, without the groups, which are added later.
    pub(super) finish: Finish,
}

impl BoundBody {
    /// Returns the expressions of the items, followed by the hidden expressions.
    pub(super) fn columns(&self) -> Vec<Expr> {
        self.items.iter().map(|item| &item.expr).chain(&self.hidden).cloned().collect()
    }
}

impl Body<'_> {
    pub(super) fn bind(self, parameters: &mut Parameters) -> Result<BoundBody> {
        let filter = match &self.select.selection {
            None => None,
            Some(selection) => {
                let mut binder = Binder::new(self.scope, parameters, Err("WHERE"));
                Some(binder.condition(selection, "WHERE")?)
            }
        };
        let mut aggregates = Vec::new();
        let mut items = self.items(parameters, &mut aggregates)?;
        let keys = self.keys(&items, parameters)?;
        let having = match &self.select.having {
            None => None,
            Some(having) => {
                let mut binder = Binder::new(self.scope, parameters, Ok(&mut aggregates));
                Some(binder.condition(having, "HAVING")?)
            }
        };
        let distinct = matches!(self.select.distinct, Some(ast::Distinct::Distinct));
        let mut hidden = Vec::new();
        let mut order = self.order(&mut items, &mut hidden, distinct, parameters, &mut aggregates)?;
        if distinct {
            items.iter().try_for_each(OutputItem::check_order)?;
            items.iter().try_for_each(|item| coerce::check_equality(item.expr.ty(), item.span))?;
            let sorted: Vec<usize> = order.iter().map(|key| key.column).collect();
            order.extend((0..items.len()).filter(|column| !sorted.contains(column)).map(|column| Order {
                column,
                descending: false,
                nulls_first: false,
            }));
        }
        let grouped = !keys.is_empty() || !aggregates.is_empty() || having.is_some();
        let grouping = grouped.then(|| {
            let mut mentions = BTreeMap::new();
            for item in &self.select.projection {
                mention(item, self.scope, &mut mentions);
            }
            Grouping { keys, aggregates, having, mentions }
        });
        let finish = Finish {
            groups: None,
            distinct,
            order,
            limit: clauses::limit(self.tail.limit, parameters)?,
            offset: row_count(self.tail.offset, "OFFSET", parameters)?,
            visible: items.len(),
        };
        Ok(BoundBody { filter, items, hidden, grouping, finish })
    }

    fn items(&self, parameters: &mut Parameters, aggregates: &mut Vec<Aggregate>) -> Result<Vec<OutputItem>> {
        select_list(&self.select.projection, self.scope, parameters, Ok(aggregates))
    }

    /// Binds GROUP BY. A name is first looked up among the table's columns, then among the columns of the
    /// result. An item that is no name is a position in the select list, or otherwise an expression.
    fn keys(&self, items: &[OutputItem], parameters: &mut Parameters) -> Result<Vec<Expr>> {
        let list = match &self.select.group_by {
            ast::GroupByExpr::Expressions(list, modifiers) if modifiers.is_empty() => list,
            _ => return Err(SqlError::unsupported("GROUP BY ALL or with a modifier")),
        };
        let mut keys: Vec<Expr> = Vec::with_capacity(list.len());
        for item in list {
            let span = item.span();
            if matches!(item, ast::Expr::GroupingSets(_) | ast::Expr::Cube(_) | ast::Expr::Rollup(_)) {
                return Err(SqlError::unsupported("GROUPING SETS, CUBE or ROLLUP").at(span));
            }
            let named = match item {
                ast::Expr::Identifier(name) if self.scope.column(std::slice::from_ref(name)).is_err() => {
                    output_named(items, &scope::fold(name), span)?
                }
                _ => position(item, items.len(), "GROUP BY")?,
            };
            let key = match named {
                Some(index) => {
                    items[index].check_order()?;
                    let aggregated = |e: &Expr| matches!(e, Expr::Column(c, _) if *c >= AGGREGATE);
                    if fold::any(&items[index].expr, &aggregated) {
                        return Err(SqlError::new(
                            code::GROUPING_ERROR,
                            "aggregate functions are not allowed in GROUP BY",
                        )
                        .at(items[index].span));
                    }
                    items[index].expr.clone()
                }
                None => {
                    let mut binder = Binder::new(self.scope, parameters, Err("GROUP BY"));
                    binder.resolve_unknown(item)?.0
                }
            };
            coerce::check_equality(key.ty(), span)?;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Binds ORDER BY. A name is first looked up among the columns of the result. An item that is no such
    /// name is a position in the select list, or otherwise an expression over the table's columns.
    fn order(
        &self,
        items: &mut [OutputItem],
        hidden: &mut Vec<Expr>,
        distinct: bool,
        parameters: &mut Parameters,
        aggregates: &mut Vec<Aggregate>,
    ) -> Result<Vec<Order>> {
        let mut order = Vec::with_capacity(self.tail.order.len());
        for key in self.tail.order {
            let span = key.expr.span();
            let named = match &key.expr {
                ast::Expr::Identifier(name) => output_named(items, &scope::fold(name), span)?,
                other => position(other, items.len(), "ORDER BY")?,
            };
            let column = match named {
                Some(index) => {
                    items[index].check_order()?;
                    index
                }
                None => {
                    let mut binder = Binder::new(self.scope, parameters, Ok(&mut *aggregates));
                    let (expr, _) = binder.resolve_unknown(&key.expr)?;
                    match items.iter().position(|item| item.expr == expr) {
                        Some(index) => index,
                        None if distinct => {
                            return Err(SqlError::new(
                                code::INVALID_COLUMN_REFERENCE,
                                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                            )
                            .at(span));
                        }
                        None => {
                            let known = hidden.iter().position(|other| *other == expr);
                            items.len()
                                + known.unwrap_or_else(|| {
                                    hidden.push(expr);
                                    hidden.len() - 1
                                })
                        }
                    }
                }
            };
            let sorted = match column.checked_sub(items.len()) {
                None => &items[column].expr,
                Some(index) => &hidden[index],
            };
            coerce::check_order(sorted.ty(), span)?;
            order.push(direction(column, &key.options));
        }
        Ok(order)
    }
}

fn output_named(items: &[OutputItem], name: &str, span: Span) -> Result<Option<usize>> {
    let mut found = items.iter().enumerate().filter(|(_, item)| item.name == name);
    let Some((index, first)) = found.next() else { return Ok(None) };
    if found.any(|(_, other)| other.expr != first.expr) {
        return Err(SqlError::new(code::AMBIGUOUS_COLUMN, format!("\"{name}\" is ambiguous")).at(span));
    }
    Ok(Some(index))
}

pub(super) fn select_list(
    projection: &[ast::SelectItem],
    scope: &Scope<'_>,
    parameters: &mut Parameters,
    mut aggregates: Result<&mut Vec<Aggregate>, &'static str>,
) -> Result<Vec<OutputItem>> {
    let mut items = Vec::with_capacity(projection.len());
    for item in projection {
        let span = item.span();
        let (expr, name) = match item {
            ast::SelectItem::UnnamedExpr(expr) => (expr, column_name(expr)),
            ast::SelectItem::ExprWithAlias { expr, alias } => (expr, scope::fold(alias)),
            ast::SelectItem::Wildcard(_) => {
                all_columns(scope, span, &mut items)?;
                continue;
            }
            ast::SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
                let mut parts = scope::parts(name)?;
                let qualifier = parts.pop().unwrap_or_default();
                let ours = parts.is_empty() || parts == ["public"];
                if !ours || scope.schema.is_none() || qualifier != scope.alias {
                    return Err(SqlError::new(
                        code::UNDEFINED_TABLE,
                        format!("missing FROM-clause entry for table \"{qualifier}\""),
                    )
                    .at(span));
                }
                all_columns(scope, span, &mut items)?;
                continue;
            }
            other => return Err(SqlError::unsupported(format!("the select item {other}")).at(span)),
        };
        let aggregates = match &mut aggregates {
            Ok(list) => Ok(&mut **list),
            Err(place) => Err(*place),
        };
        let (expr, (ty, modifier)) = Binder::new(scope, parameters, aggregates).shown(expr)?;
        items.push(OutputItem { name, expr, ty, modifier, span });
    }
    Ok(items)
}

fn all_columns(scope: &Scope<'_>, span: Span, items: &mut Vec<OutputItem>) -> Result<()> {
    if scope.schema.is_none() {
        return Err(
            SqlError::new(code::SYNTAX_ERROR, "SELECT * with no tables specified is not valid").at(span)
        );
    }
    for (name, expr) in scope.columns() {
        let ty = PgType::Plain(expr.ty());
        items.push(OutputItem { name, expr, ty, modifier: -1, span });
    }
    Ok(())
}
