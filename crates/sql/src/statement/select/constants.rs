//! Binds `SELECT` without FROM, and `VALUES`.

use quorate_table::{expr::Expr, value::Type};
use sqlparser::ast::{self, Spanned};

use super::{
    body::Body,
    clauses::{self, direction, position, row_count, tail},
};
use crate::{
    error::{Result, SqlError},
    statement::{
        Field,
        coerce::{self, Operand},
        expr::Binder,
        parameters::{Parameters, SessionValue},
        query::{Finish, Query, Source},
        scope::{self, Scope},
    },
    types::PgType,
};

/// Binds `SELECT` without FROM, or `VALUES`.
pub(super) fn bind_constants(query: &ast::Query, parameters: &mut Parameters) -> Result<Query> {
    let tail = tail(query)?;
    let scope = Scope::empty();
    match &*query.body {
        ast::SetExpr::Select(select) => {
            let bound = Body { select, tail, scope: &scope }.bind(parameters)?;
            if bound.grouping.is_some() {
                parameters.needs_catalog = true;
                return Err(SqlError::unsupported("an aggregate without a table"));
            }
            let fields = bound
                .items
                .iter()
                .map(|item| {
                    let ty = shown_type(&item.expr, item.ty);
                    Field { modifier: item.modifier, ..Field::new(&item.name, ty) }
                })
                .collect();
            Ok(Query {
                source: Source::Constants { rows: vec![bound.columns()], filter: bound.filter },
                finish: bound.finish,
                fields,
            })
        }
        ast::SetExpr::Values(values) => {
            clauses::same_length(values)?;
            let mut rows: Vec<Vec<Operand>> = Vec::with_capacity(values.rows.len());
            for row in &values.rows {
                let mut operands = Vec::with_capacity(row.content.len());
                for expr in &row.content {
                    operands.push(Binder::new(&scope, parameters, Err("VALUES")).operand(expr)?);
                }
                rows.push(operands);
            }
            let width = rows.first().map_or(0, Vec::len);
            let mut types = Vec::with_capacity(width);
            for column in 0..width {
                let operands: Vec<Operand> = rows.iter().map(|row| row[column].clone()).collect();
                types.push(coerce::common(&operands, "VALUES", query.span())?.unwrap_or(Type::Text));
            }
            let mut bound = Vec::with_capacity(rows.len());
            for row in rows {
                let mut exprs = Vec::with_capacity(width);
                for (operand, ty) in row.into_iter().zip(&types) {
                    exprs.push(operand.coerce_implicit(*ty, parameters)?);
                }
                bound.push(exprs);
            }
            let fields: Vec<Field> = types
                .iter()
                .enumerate()
                .map(|(index, ty)| Field::new(format!("column{}", index + 1), PgType::Plain(*ty)))
                .collect();
            let mut order = Vec::with_capacity(tail.order.len());
            for key in tail.order {
                let column = match &key.expr {
                    ast::Expr::Identifier(name) => {
                        let name = scope::fold(name);
                        fields.iter().position(|field| field.name == name)
                    }
                    other => position(other, width, "ORDER BY")?,
                };
                let Some(column) = column else {
                    return Err(
                        SqlError::unsupported("ORDER BY an expression over VALUES").at(key.expr.span())
                    );
                };
                coerce::check_order(types[column], key.expr.span())?;
                order.push(direction(column, &key.options));
            }
            Ok(Query {
                source: Source::Constants { rows: bound, filter: None },
                finish: Finish {
                    groups: None,
                    distinct: false,
                    order,
                    offset: row_count(tail.offset, "OFFSET", parameters)?,
                    limit: clauses::limit(tail.limit, parameters)?,
                    visible: width,
                },
                fields,
            })
        }
        other => {
            parameters.needs_catalog = true;
            Err(SqlError::unsupported(format!("the query {other}")))
        }
    }
}

/// Returns the type of a column for clients.
fn shown_type(expr: &Expr, ty: PgType) -> PgType {
    match expr {
        Expr::Parameter(number, _) => SessionValue::from_number(*number).map_or(ty, SessionValue::ty),
        _ => ty,
    }
}
