//! What surrounds a select: UNION, VALUES, ORDER BY, LIMIT and OFFSET.

use quorate_table::operation::Order;
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{Binder, Column, Set, Typed};
use crate::{
    catalog::plan::{Body, Node, Plan},
    error::{Result, SqlError, code},
    statement::{scope, select::clauses},
    types::PgType,
};

impl Binder<'_> {
    pub(super) fn query(&mut self, query: &ast::Query) -> Result<(Plan, Vec<Column>)> {
        let tail = clauses::tail(query)?;
        let around = std::mem::replace(&mut self.set, Set::Refused);
        let (body, mut columns, order, hidden) = self.body(&query.body, tail.order)?;
        // A result that nobody gave a type is text; an object's name is shown rather than its number.
        for column in &mut columns {
            if column.ty == PgType::Unknown
                || (column.ty.is_oid() && !matches!(column.ty, PgType::Oid | PgType::Xid))
            {
                column.ty = PgType::TEXT;
            }
        }
        let visible = columns.len() - hidden;
        columns.truncate(visible);
        self.levels.push(Vec::new());
        let mut count = |expr: Option<&ast::Expr>| -> Result<Option<Node>> {
            expr.map(|expr| {
                let typed = self.expr(expr)?;
                Ok(self.coerced(typed, PgType::INT8).0)
            })
            .transpose()
        };
        let limit = count(tail.limit)?;
        let offset = count(tail.offset)?;
        self.levels.pop();
        self.set = around;
        let types = columns.iter().map(|column| column.ty).collect();
        Ok((Plan { body, order, limit, offset, visible, types }, columns))
    }

    /// A body, its columns with the hidden ones last, its order, and how many are hidden.
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
                let all = Plan {
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

    fn side(&mut self, body: &ast::SetExpr) -> Result<(Plan, Vec<Column>)> {
        let (body, columns, order, _) = self.body(body, &[])?;
        let types = columns.iter().map(|column| column.ty).collect();
        let visible = columns.len();
        Ok((Plan { body, order, limit: None, offset: None, visible, types }, columns))
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
