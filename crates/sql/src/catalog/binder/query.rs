//! Binds the parts around a select: UNION, VALUES, ORDER BY, LIMIT and OFFSET.

use quorate_table::{
    expr::Expr,
    operation::Order,
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{Binder, Column, CommonSource, CommonTable, SetReturningCalls, Typed};
use crate::{
    catalog::plan::{Body, QueryPlan},
    error::{Result, SqlError, code},
    statement::{
        scope,
        select::clauses::{self, Limit},
    },
    types::PgType,
};

impl Binder<'_> {
    pub(super) fn query(&mut self, query: &ast::Query) -> Result<(QueryPlan, Vec<Column>)> {
        let outside = self.with.len();
        let recursive = query.with.as_ref().is_some_and(|with| with.recursive);
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            let ast::Cte { alias, query, from: _, materialized: _, closing_paren_token: _ } = cte;
            let name = scope::fold(&alias.name);
            if self.with[outside..].iter().any(|with| with.name == name) {
                let message = format!("WITH query name \"{name}\" specified more than once");
                return Err(SqlError::new("42712", message).at(alias.name.span));
            }
            let source = CommonSource::Query { alias: alias.clone(), query: query.clone(), recursive };
            self.with.push(CommonTable { name, source });
        }
        let bound = self.query_within(query);
        self.with.truncate(outside);
        bound
    }

    fn query_within(&mut self, query: &ast::Query) -> Result<(QueryPlan, Vec<Column>)> {
        let tail = clauses::tail_behind_with(query)?;
        let around = std::mem::replace(&mut self.set, SetReturningCalls::Refused);
        let (body, mut columns, order, hidden) = self.body(&query.body, tail.order)?;
        // A result column of unknown type becomes text. An object id that stands for a name is shown as the
        // name.
        for column in &mut columns {
            column.ty = if column.ty == PgType::Unknown { PgType::TEXT } else { column.ty.shown() };
        }
        let visible = columns.len() - hidden;
        columns.truncate(visible);
        self.levels.push(Vec::new());
        let mut count = |expr: Option<&ast::Expr>| -> Result<Option<Expr>> {
            expr.map(|expr| {
                let typed = self.expr(expr)?;
                Ok(self.coerced(typed, PgType::INT8)?.0)
            })
            .transpose()
        };
        let offset = count(tail.offset)?;
        let limit = match tail.limit {
            Limit::None => None,
            Limit::Of(expr) => count(Some(expr))?,
            Limit::One => Some(Expr::Constant(Value::Int8(1), Type::Int8)),
        };
        self.levels.pop();
        self.set = around;
        let types = columns.iter().map(|column| column.ty).collect();
        Ok((QueryPlan { body, order, limit, offset, visible, types }, columns))
    }

    /// Binds a body. Returns the body with its columns (hidden ones last), its order, and the number of
    /// hidden columns.
    fn body(
        &mut self,
        body: &ast::SetExpr,
        order: &[ast::OrderByExpr],
    ) -> Result<(Body, Vec<Column>, Vec<Order>, usize)> {
        match body {
            ast::SetExpr::Select(select) => self.select(select, order),
            ast::SetExpr::Query(query) if order.is_empty() => {
                let (plan, columns) = self.query(query)?;
                let types = plan.types.clone();
                let visible = plan.visible;
                let all = QueryPlan {
                    body: Body::Values(Vec::new()),
                    order: Vec::new(),
                    limit: None,
                    offset: None,
                    visible,
                    types,
                };
                let both = Body::Union { left: Box::new(plan), right: Box::new(all), all: true };
                Ok((both, columns, Vec::new(), 0))
            }
            ast::SetExpr::SetOperation { left, op: ast::SetOperator::Union, set_quantifier, right } => {
                let all = match set_quantifier {
                    ast::SetQuantifier::All => true,
                    ast::SetQuantifier::None | ast::SetQuantifier::Distinct => false,
                    other => return Err(SqlError::unsupported(format!("UNION {other}"))),
                };
                let (left, columns) = self.side(left)?;
                let (right, others) = self.side(right)?;
                if columns.len() != others.len() {
                    return Err(SqlError::new(
                        code::SYNTAX_ERROR,
                        "each UNION query must have the same number of columns",
                    ));
                }
                let columns: Vec<Column> = columns
                    .into_iter()
                    .zip(others)
                    .map(|(a, b)| Column { ty: if a.ty == PgType::TEXT { b.ty } else { a.ty }, ..a })
                    .collect();
                let order = by_output(order, &columns)?;
                Ok((Body::Union { left: Box::new(left), right: Box::new(right), all }, columns, order, 0))
            }
            ast::SetExpr::Values(values) => {
                clauses::same_length(values)?;
                self.levels.push(Vec::new());
                let mut rows = Vec::with_capacity(values.rows.len());
                let mut types: Vec<PgType> = Vec::new();
                for row in &values.rows {
                    let mut nodes = Vec::with_capacity(row.content.len());
                    for (index, expr) in row.content.iter().enumerate() {
                        let Typed(node, ty) = self.expr(expr)?;
                        if types.len() <= index {
                            types.push(ty);
                        } else if types[index] == PgType::Unknown {
                            types[index] = ty;
                        }
                        nodes.push(node);
                    }
                    rows.push(nodes);
                }
                self.levels.pop();
                let columns: Vec<Column> = types
                    .into_iter()
                    .enumerate()
                    .map(|(index, ty)| Column::new("", format!("column{}", index + 1), ty))
                    .collect();
                let order = by_output(order, &columns)?;
                Ok((Body::Values(rows), columns, order, 0))
            }
            other => Err(SqlError::unsupported(format!("the query {other}"))),
        }
    }

    pub(super) fn side(&mut self, body: &ast::SetExpr) -> Result<(QueryPlan, Vec<Column>)> {
        let (body, columns, order, _) = self.body(body, &[])?;
        let types = columns.iter().map(|column| column.ty).collect();
        let visible = columns.len();
        Ok((QueryPlan { body, order, limit: None, offset: None, visible, types }, columns))
    }
}

pub(super) fn one_column(columns: &[Column], span: Span) -> Result<()> {
    match columns.len() {
        1 => Ok(()),
        0 => Err(SqlError::new(code::SYNTAX_ERROR, "subquery must return a column").at(span)),
        _ => Err(SqlError::new(code::SYNTAX_ERROR, "subquery must return only one column").at(span)),
    }
}

fn by_output(order: &[ast::OrderByExpr], columns: &[Column]) -> Result<Vec<Order>> {
    order
        .iter()
        .map(|key| {
            let column = match &key.expr {
                ast::Expr::Identifier(name) => {
                    let name = scope::fold(name);
                    columns.iter().position(|column| column.name == name)
                }
                other => clauses::position(other, columns.len(), "ORDER BY")?,
            };
            let column = column.ok_or_else(|| {
                SqlError::new(code::FEATURE_NOT_SUPPORTED, "invalid UNION/INTERSECT/EXCEPT ORDER BY clause")
                    .at(key.expr.span())
            })?;
            Ok(clauses::direction(column, &key.options))
        })
        .collect()
}
