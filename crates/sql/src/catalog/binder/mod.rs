//! Queries of the catalog, from syntax to a `Plan`.
//!
//! `query` binds what surrounds a select (UNION, VALUES, ORDER BY, LIMIT), `select` one select, `from` its relations,
//! `expr` expressions and `function` calls. Names are looked up level by level, the innermost select first.

mod expr;
mod from;
mod function;
mod query;
mod select;

use std::sync::Arc;

use sqlparser::ast;

use super::plan::{Node, Window};
use crate::{
    backend::Catalog,
    error::{Result, SqlError, code},
    statement::{
        Field,
        parameters::{Parameters, SessionValue},
        scope,
        select::{Finish, Query, Source},
    },
    types::PgType,
};

/// Binds a query of the catalog.
pub fn bind(query: &ast::Query, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Query> {
    let mut binder =
        Binder { parameters, catalog, levels: Vec::new(), windows: Vec::new(), set: Set::Refused };
    let (plan, columns) = binder.query(query)?;
    let sent = |ty| if ty == PgType::Record { PgType::TEXT } else { ty };
    let fields = columns.into_iter().map(|column| Field::new(column.name, sent(column.ty))).collect();
    let finish = Finish { visible: plan.visible, ..Finish::default() };
    Ok(Query { source: Source::Catalog(Box::new(plan)), finish, fields })
}

/// A column in reach, or of a result.
#[derive(Clone, Debug)]
struct Column {
    /// The name of its table here.
    table: String,
    name: String,
    ty: PgType,
    using: Using,
}

/// What a join by USING made of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Using {
    /// Nothing.
    Not,
    /// It stands for both, and comes first in `*`.
    Kept,
    /// The other one stands for it.
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
    /// Columns in reach, the innermost level last.
    levels: Vec<Vec<Column>>,
    /// Windows of the select that is being bound.
    windows: Vec<Window>,
    set: Set,
}

/// Functions that make rows, in the select list that is being bound.
enum Set {
    /// This is not a select list.
    Refused,
    /// Their rows come behind those of FROM, side by side: a column for each call, as it is written, and what makes it.
    List(Vec<(String, Node)>),
}

/// An expression with its type.
struct Typed(Node, PgType);

impl Binder<'_> {
    fn condition(&mut self, expr: &ast::Expr) -> Result<Node> {
        let typed = self.expr(expr)?;
        Ok(self.coerced(typed, PgType::BOOL).0)
    }

    /// Gives an undecided expression a type.
    fn coerced(&mut self, Typed(node, ty): Typed, to: PgType) -> Typed {
        if ty != PgType::Unknown {
            return Typed(node, ty);
        }
        match node {
            Node::Parameter(number) => {
                self.parameters.decide(number, to);
                parameter(number, to)
            }
            Node::Constant(datum) if datum.is_null() => Typed(Node::Constant(datum), to),
            node => Typed(Node::Cast(Box::new(node), PgType::Unknown, to), to),
        }
    }

    /// Lets two operands meet: an undecided one becomes what the other is.
    fn meet(&mut self, a: Typed, b: Typed) -> (Node, Node) {
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
                [(index, column)] => return Ok(Typed(Node::Column { level: out, index: *index }, column.ty)),
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
            return Ok(Typed(Node::Parameter(value.number()), value.ty()));
        }
        let shown = match table {
            Some(table) => format!("column {table}.{name} does not exist"),
            None => format!("column \"{name}\" does not exist"),
        };
        Err(SqlError::new(code::UNDEFINED_COLUMN, shown).at(idents[0].span))
    }
}

/// A parameter of this type. One that stands for an object may come as its name.
fn parameter(number: usize, ty: PgType) -> Typed {
    let node = Node::Parameter(number);
    let node = if ty.is_oid() { Node::Cast(Box::new(node), PgType::Unknown, ty) } else { node };
    Typed(node, ty)
}

fn known(a: PgType, b: PgType) -> PgType {
    if a == PgType::Unknown { b } else { a }
}

fn ta_or_text(ty: PgType) -> PgType {
    known(ty, PgType::TEXT)
}

/// The index of an array's first element; a vector's is 0.
pub(super) fn first_index(ty: PgType) -> i64 {
    i64::from(!matches!(ty, PgType::Int2Vector | PgType::OidVector))
}

fn element_of(ty: PgType) -> PgType {
    ty.info().element.unwrap_or(PgType::TEXT)
}
