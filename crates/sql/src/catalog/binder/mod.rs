//! Binds queries of the catalog: from syntax to a `CatalogPlan`.
//!
//! `query` binds the parts around a select (UNION, VALUES, ORDER BY, LIMIT), `select` one select, and
//! `from` its relations, and `with` the queries of WITH. Expressions are bound as over tables
//! ([`statement::expr`](crate::statement::expr)). `extension` adds the forms and types that only the
//! catalog has, and `function` its calls. Names are looked up level by level, the innermost select first.

mod extension;
mod from;
mod function;
mod query;
mod select;
mod with;

use std::sync::Arc;

use quorate_table::{
    expr::{Expr, Function},
    value::{Type, Value},
};
use sqlparser::{ast, tokenizer::Span};

use super::plan::{CatalogPlan, Leaf, LeafNode, Window, carrier};
use crate::{
    backend::Catalog,
    error::Result,
    statement::{
        Field,
        coerce::Operand,
        expr,
        parameters::{Parameters, SessionValue},
        query::{Finish, Query, Source},
        scope::Scope,
    },
    types::PgType,
};

/// Binds a query of the catalog.
pub fn bind(query: &ast::Query, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Query> {
    let mut binder = Binder {
        parameters,
        catalog,
        leaves: Vec::new(),
        levels: Vec::new(),
        windows: Vec::new(),
        set: SetReturningCalls::Refused,
        with: Vec::new(),
        with_uses: 0,
        working_tables: 0,
        working_table_uses: 0,
    };
    let (query, columns) = binder.query(query)?;
    let sent = |ty| if ty == PgType::Record { PgType::TEXT } else { ty };
    let fields = columns.into_iter().map(|column| Field::new(column.name, sent(column.ty))).collect();
    let finish = Finish { visible: query.visible, ..Finish::default() };
    let plan = CatalogPlan { query, leaves: binder.leaves };
    Ok(Query { source: Source::Catalog(Box::new(plan)), finish, fields })
}

/// A column that an expression can name, or a column of a result.
#[derive(Clone, Debug)]
struct Column {
    /// The name or alias of the column's table.
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
    /// The result keeps the column, which stands for both joined columns and comes first in `*`.
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
    /// The leaves of all expressions so far, bounded by the length of the statement.
    leaves: Vec<Leaf>,
    /// Columns that can be named, the innermost level last.
    levels: Vec<Vec<Column>>,
    /// Windows of the select that is being bound.
    windows: Vec<Window>,
    set: SetReturningCalls,
    /// The WITH queries that can be named, the innermost last.
    with: Vec<CommonTable>,
    /// Number of uses of WITH queries so far.
    with_uses: usize,
    /// Number of working tables so far.
    working_tables: usize,
    /// Number of uses of working tables so far.
    working_table_uses: usize,
}

/// A name that WITH defines.
#[derive(Clone)]
struct CommonTable {
    name: String,
    source: CommonSource,
}

#[derive(Clone)]
enum CommonSource {
    /// A query of WITH.
    Query {
        /// The names for the query's columns. There may be fewer names than columns.
        alias: ast::TableAlias,
        query: Box<ast::Query>,
        /// Whether the query may name itself.
        recursive: bool,
    },
    /// The recursive query whose non-recursive term is being bound. The term must not name its query.
    TooEarly,
    /// The working table of the recursive query that is being bound, under the query's own name.
    WorkingTable { number: usize, columns: Vec<Column> },
}

/// The calls in the current select list that return rows.
enum SetReturningCalls {
    /// Refused, because the expression is not in a select list.
    Refused,
    /// The calls with their arrays. The elements of each array become a column after the columns of FROM.
    /// Equal calls share a column.
    List(Vec<(String, Expr)>),
}

/// An expression with its type. An expression of unknown type is text, and may still become another type.
struct Typed(Expr, PgType);

impl Binder<'_> {
    /// Binds an expression.
    fn expr(&mut self, expr: &ast::Expr) -> Result<Typed> {
        let operand = self.scalar(|binder| binder.operand(expr))?;
        self.typed(operand)
    }

    /// Binds the condition of a clause.
    fn condition(&mut self, expr: &ast::Expr, clause: &str) -> Result<Expr> {
        self.scalar(|binder| binder.condition(expr, clause))
    }

    /// Runs `bind` with the binder of scalar expressions, for which this binder supplies the forms of the
    /// catalog.
    fn scalar<T>(&mut self, bind: impl FnOnce(&mut expr::Binder<'_>) -> Result<T>) -> Result<T> {
        let mut parameters = std::mem::take(self.parameters);
        let bound = bind(&mut expr::Binder {
            scope: &Scope::empty(),
            parameters: &mut parameters,
            aggregates: Err("a query of the system catalog"),
            extension: Some(self),
        });
        *self.parameters = parameters;
        bound
    }

    fn leaf(&mut self, node: LeafNode, ty: PgType) -> Typed {
        self.leaves.push(Leaf { node, ty });
        Typed(Expr::Column(self.leaves.len() - 1, carrier(ty)), ty)
    }

    /// Returns the expression of an operand. An operand without a type becomes text of unknown type.
    fn typed(&mut self, operand: Operand) -> Result<Typed> {
        let ty = self.type_of(&operand);
        Ok(match operand {
            Operand::Parameter(number, _) => Typed(Expr::Parameter(number, Type::Text), ty),
            other => Typed(other.resolve_unknown(self.parameters)?.0, ty),
        })
    }

    /// Returns the type of an operand for clients.
    fn type_of(&self, operand: &Operand) -> PgType {
        match operand {
            Operand::Typed(expr, _) => self.type_of_expr(expr),
            Operand::Interval(_) => PgType::Interval,
            Operand::Literal(..) | Operand::Null | Operand::Parameter(..) => PgType::Unknown,
        }
    }

    fn type_of_expr(&self, expr: &Expr) -> PgType {
        let common = |results: &[&Expr]| {
            let mut types = results.iter().filter(|result| !matches!(result, Expr::Constant(..)));
            let first = types.next().map(|result| self.type_of_expr(result));
            first.filter(|first| types.all(|result| self.type_of_expr(result) == *first))
        };
        let chosen = match expr {
            Expr::Column(leaf, _) => Some(self.leaves[*leaf].ty),
            Expr::Parameter(number, _) => SessionValue::from_number(*number).map(SessionValue::ty),
            Expr::Case { branches, otherwise, .. } => {
                let results = branches.iter().map(|(_, result)| result).chain(otherwise.as_deref());
                common(&results.collect::<Vec<_>>())
            }
            Expr::Call(Function::Coalesce | Function::Greatest | Function::Least, arguments) => {
                common(&arguments.iter().collect::<Vec<_>>())
            }
            Expr::Call(Function::NullIf, arguments) => common(&[&arguments[0]]),
            _ => None,
        };
        chosen.filter(|ty| carrier(*ty) == expr.ty()).unwrap_or(PgType::Plain(expr.ty()))
    }

    /// Converts an expression of unknown type to `to`. Returns any other expression unchanged.
    fn coerced(&mut self, Typed(expr, ty): Typed, to: PgType) -> Result<Typed> {
        if ty != PgType::Unknown {
            return Ok(Typed(expr, ty));
        }
        Ok(match expr {
            Expr::Parameter(number, _) => {
                self.parameters.decide(number, to);
                self.parameter_of(number, to)
            }
            Expr::Constant(Value::Null, _) => Typed(Expr::Constant(Value::Null, carrier(to)), to),
            text if to.is_oid() || to.element().is_some() => {
                self.leaf(LeafNode::Cast(text, PgType::Unknown, to), to)
            }
            Expr::Constant(Value::Text(text), _) => {
                let literal = Operand::Literal(text.to_string(), Span::empty());
                Typed(literal.coerce_implicit(carrier(to), self.parameters)?, to)
            }
            other => Typed(other, to),
        })
    }

    /// Returns a parameter of this type. The client may give a name for an object id, and gives an array as
    /// its text.
    fn parameter_of(&mut self, number: usize, ty: PgType) -> Typed {
        if ty.is_oid() || ty.element().is_some() {
            let text = Expr::Parameter(number, Type::Text);
            self.leaf(LeafNode::Cast(text, PgType::Unknown, ty), ty)
        } else {
            Typed(Expr::Parameter(number, carrier(ty)), ty)
        }
    }
}

/// Returns a typed expression as an operand for the binder of scalar expressions.
fn operand(Typed(expr, ty): Typed) -> Operand {
    match expr {
        Expr::Constant(Value::Text(text), _) if ty == PgType::Unknown => {
            Operand::Literal(text.to_string(), Span::empty())
        }
        Expr::Constant(Value::Null, _) if ty == PgType::Unknown => Operand::Null,
        Expr::Parameter(number, _) if ty == PgType::Unknown => Operand::Parameter(number, Span::empty()),
        expr => {
            let ty = expr.ty();
            Operand::Typed(expr, ty)
        }
    }
}

fn known(a: PgType, b: PgType) -> PgType {
    if a == PgType::Unknown { b } else { a }
}

fn text_if_unknown(ty: PgType) -> PgType {
    known(ty, PgType::TEXT)
}

fn element_of(ty: PgType) -> PgType {
    ty.info().element.unwrap_or(PgType::TEXT)
}
