//! Refuses clauses that the parser accepts and no binder binds.
//!
//! A clause that is parsed and not bound would have no effect, so the statement would not do what it says.
//! Therefore every statement is walked here before it is bound. Each struct of the syntax tree is taken apart
//! field by field and without `..`. If a new version of the parser adds a field, this code does not compile
//! until somebody decides about the field. A field that is matched with an underscore is read by a binder, or
//! changes nothing.
//!
//! A clause of PostgreSQL is refused with 0A000, a clause of another database with 42601. Sometimes only the
//! binder can tell whether a field is supported, such as ORDER BY within the call of an aggregate. Then the
//! binder refuses the clause.

mod clause;
mod create_table;
mod expressions;
mod queries;
mod statements;
mod tables;

pub(super) use create_table::foreign_key;

use std::ops::ControlFlow;

use sqlparser::ast::{self, Visit, Visitor};

use crate::error::{Result, SqlError};

/// Refuses a statement with a clause that no binder binds.
pub(super) fn refuse(statement: &ast::Statement) -> Result<()> {
    match Visit::visit(statement, &mut Walk) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(*error),
    }
}

struct Walk;

fn broken(checked: Result<()>) -> ControlFlow<Box<SqlError>> {
    match checked {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(Box::new(error)),
    }
}

impl Visitor for Walk {
    type Break = Box<SqlError>;

    fn pre_visit_statement(&mut self, statement: &ast::Statement) -> ControlFlow<Self::Break> {
        broken(statements::statement(statement))
    }

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<Self::Break> {
        broken(queries::query(query))
    }

    fn pre_visit_select(&mut self, select: &ast::Select) -> ControlFlow<Self::Break> {
        broken(queries::select(select))
    }

    fn pre_visit_table_factor(&mut self, factor: &ast::TableFactor) -> ControlFlow<Self::Break> {
        broken(tables::factor(factor))
    }

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<Self::Break> {
        broken(expressions::expr(expr))
    }
}
