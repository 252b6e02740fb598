//! Binds queries of the catalog: from syntax to a `CatalogPlan`.
//!
//! `query` binds the parts around a select (UNION, VALUES, ORDER BY, LIMIT), `select` one select, `from` its
//! relations, `expr` expressions and `function` calls. Names are looked up level by level, the innermost
//! select first.

mod expr;
mod from;
mod function;
mod query;
mod select;

use std::sync::Arc;

use sqlparser::ast;

use super::plan::{PlanNode, Window};
use crate::{
    backend::Catalog,
    error::{Result, SqlError, code},
    statement::{
        Field,
        parameters::{Parameters, SessionValue},
        query::{Finish, Query, Source},
        scope,
    },
    types::PgType,
};

/// Binds a query of the catalog.
pub fn bind(query: &ast::Query, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Query> {
    let mut binder = Binder {
        parameters,
        catalog,
        levels: Vec::new(),
        windows: Vec::new(),
        set: SetReturningCalls::Refused,
        with: Vec::new(),
        with_uses: 0,
    };
    let (plan, columns) = binder.query(query)?;
    let sent = |ty| if ty == PgType::Record { PgType::TEXT } else { ty };
    let fields = columns.into_iter().map(|column| Field::new(column.name, sent(column.ty))).collect();
    let finish = Finish { visible: plan.visible, ..Finish::default() };
    Ok(Query { source: Source::Catalog(Box::new(plan)), finish, fields })
}

/// A column that an expression can name, or a column of a result.
#[derive(Clone, Debug)]
struct Column {
    /// The name or alias of its table.
    table: String,
    name: String,
    ty: PgType,
    using: Using,
}

/// The effect that a join by USING has on a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Using {
    /// The column is in no USING list.
    Not,
    /// The result keeps the column. It stands for both joined columns, and comes first in `*`.
    Kept,
    /// The column is hidden, because the column of the other side stands for it.
    Merged,
}

impl Column {
    fn new(table: impl Into<String>, name: impl Into<String>, ty: PgType) -> Self {
        Column { table: table.into(), name: name.into(), ty, using: Using::Not }
    }
}

struct Binder<'a> {
    parameters: &'a mut Parameters,
    catalog: &'a Arc<Catalog>,
    /// Columns that can be named, the innermost level last.
    levels: Vec<Vec<Column>>,
    /// Windows of the select that is being bound.
    windows: Vec<Window>,
    set: SetReturningCalls,
    /// The WITH queries that can be named, the innermost last.
    with: Vec<CommonTable>,
    /// Number of uses of WITH queries so far.
    with_uses: usize,
}

/// A query of WITH.
#[derive(Clone)]
struct CommonTable {
    name: String,
    /// The names of the table's columns, which may be fewer than there are.
    alias: ast::TableAlias,
    query: Box<ast::Query>,
}

/// The calls in the current select list that return rows.
enum SetReturningCalls {
    /// Refused, because the expression is not in a select list.
    Refused,
    /// The calls and their arrays. Their elements become columns after those of FROM, a column for each
    /// different call.
    List(Vec<(String, PlanNode)>),
}

/// An expression with its type.
struct Typed(PlanNode, PgType);

impl Binder<'_> {
    fn condition(&mut self, expr: &ast::Expr) -> Result<PlanNode> {
        let typed = self.expr(expr)?;
        Ok(self.coerced(typed, PgType::BOOL).0)
    }

    /// Converts an expression of unknown type to `to`. Any other expression stays.
    fn coerced(&mut self, Typed(node, ty): Typed, to: PgType) -> Typed {
        if ty != PgType::Unknown {
            return Typed(node, ty);
        }
        match node {
            PlanNode::Parameter(number) => {
                self.parameters.decide(number, to);
                parameter(number, to)
            }
            PlanNode::Constant(datum) if datum.is_null() => Typed(PlanNode::Constant(datum), to),
            node => Typed(PlanNode::Cast(Box::new(node), PgType::Unknown, to), to),
        }
    }

    /// Converts the operands of unknown type to the type of the other operand.
    fn meet(&mut self, a: Typed, b: Typed) -> (PlanNode, PlanNode) {
        let (ta, tb) = (a.1, b.1);
        let a = if ta == PgType::Unknown {
            self.coerced(a, if tb == PgType::Unknown { PgType::TEXT } else { tb })
        } else {
            a
        };
        let b = if tb == PgType::Unknown { self.coerced(b, ta_or_text(ta)) } else { b };
        (a.0, b.0)
    }

    fn column(&mut self, idents: &[ast::Ident]) -> Result<Typed> {
        let names: Vec<String> = idents.iter().map(scope::fold).collect();
        let (table, name) = match names.as_slice() {
            [name] => (None, name),
            [table, name] | [_, table, name] => (Some(table), name),
            _ => return Err(SqlError::unsupported(format!("the name {}", names.join(".")))),
        };
        for (out, level) in self.levels.iter().rev().enumerate() {
            let found = level.iter().enumerate().filter(|(_, column)| {
                column.name == *name
                    && table.map_or(column.using != Using::Merged, |table| *table == column.table)
            });
            let found: Vec<(usize, &Column)> = found.collect();
            match found.as_slice() {
                [] => {}
                [(index, column)] => {
                    return Ok(Typed(PlanNode::Column { level: out, index: *index }, column.ty));
                }
                _ => {
                    return Err(SqlError::new(
                        code::AMBIGUOUS_COLUMN,
                        format!("column reference \"{name}\" is ambiguous"),
                    )
                    .at(idents[0].span));
                }
            }
        }
        if let [ident] = idents
            && ident.quote_style.is_none()
            && let Some(value) = SessionValue::named(name)
        {
            return Ok(Typed(PlanNode::Parameter(value.number()), value.ty()));
        }
        let shown = match table {
            Some(table) => format!("column {table}.{name} does not exist"),
            None => format!("column \"{name}\" does not exist"),
        };
        Err(SqlError::new(code::UNDEFINED_COLUMN, shown).at(idents[0].span))
    }
}

/// Returns a parameter of this type. A parameter for an object id may be a name, and an array comes as its
/// text.
fn parameter(number: usize, ty: PgType) -> Typed {
    let node = PlanNode::Parameter(number);
    let node = if ty.is_oid() || ty.element().is_some() {
        PlanNode::Cast(Box::new(node), PgType::Unknown, ty)
    } else {
        node
    };
    Typed(node, ty)
}

fn known(a: PgType, b: PgType) -> PgType {
    if a == PgType::Unknown { b } else { a }
}

fn ta_or_text(ty: PgType) -> PgType {
    known(ty, PgType::TEXT)
}

fn element_of(ty: PgType) -> PgType {
    ty.info().element.unwrap_or(PgType::TEXT)
}
