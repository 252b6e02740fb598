//! Binds the uses of the queries of WITH.

use sqlparser::{ast, tokenizer::Span};

use super::{Binder, Column, CommonSource, CommonTable, SetReturningCalls};
use crate::{
    catalog::plan::{Body, From, QueryPlan, RecursionPlan},
    error::{Result, SqlError, code},
    statement::{
        scope,
        select::clauses::{self, Limit},
    },
    types::PgType,
};

/// Maximum number of uses of WITH queries in a statement. Each use is bound separately, and WITH queries may
/// name each other, so without a bound the work could grow exponentially.
const USES_MAX: usize = 64;

impl Binder<'_> {
    /// Binds a name of WITH at a place that names it. A query of WITH changes nothing, so each place that
    /// names it can evaluate it separately.
    pub(super) fn common_table(
        &mut self,
        place: usize,
        alias: Option<&ast::TableAlias>,
        span: Span,
    ) -> Result<From> {
        self.with_uses += 1;
        if self.with_uses > USES_MAX {
            let message =
                format!("the statement names queries of its WITH clause more than {USES_MAX} times");
            return Err(SqlError::new(code::STATEMENT_TOO_COMPLEX, message).at(span));
        }
        let CommonTable { name, source } = self.with[place].clone();
        let table = alias.map_or_else(|| name.clone(), |alias| scope::fold(&alias.name));
        let (query, renamed, recursive) = match source {
            CommonSource::WorkingTable { number, columns } => {
                self.working_table_uses += 1;
                let width = columns.len();
                self.reach_renamed(&table, columns, alias)?;
                return Ok(From::WorkingTable { number, width });
            }
            CommonSource::TooEarly => {
                self.working_table_uses += 1;
                let message = format!(
                    "recursive reference to query \"{name}\" must not appear within its non-recursive term"
                );
                return Err(SqlError::new(code::INVALID_RECURSION, message).at(span));
            }
            CommonSource::Query { alias, query, recursive } => (query, alias, recursive),
        };
        // A query of WITH can name only the queries before it in the list.
        let later = self.with.split_off(place);
        let recursion = if recursive { self.recursion(&name, &renamed, &query) } else { Ok(None) };
        let bound = recursion.and_then(|recursion| match recursion {
            Some(recursion) => Ok(recursion),
            None => self.derived(&query, false),
        });
        self.with.extend(later);
        let (plan, columns) = bound?;
        let columns = named(columns, &renamed)?;
        self.reach_renamed(&table, columns, alias)?;
        Ok(From::Derived { plan: Box::new(plan), lateral: false })
    }

    /// Binds a query of WITH RECURSIVE. Returns `None` if the query does not name itself.
    fn recursion(
        &mut self,
        name: &str,
        alias: &ast::TableAlias,
        query: &ast::Query,
    ) -> Result<Option<(QueryPlan, Vec<Column>)>> {
        let ast::SetExpr::SetOperation { left, op: ast::SetOperator::Union, set_quantifier, right } =
            &*query.body
        else {
            return Ok(None);
        };
        let all = *set_quantifier == ast::SetQuantifier::All;
        let tail = clauses::tail_behind_with(query)?;
        // Without LATERAL, a table of FROM sees only the levels around the whole select.
        let level = self.levels.pop().expect("the binder is inside a level of the query");
        let around = std::mem::replace(&mut self.set, SetReturningCalls::Refused);
        let uses = self.working_table_uses;
        let bound = self.recursion_terms(name, alias, (left, right), all);
        let names_itself = self.working_table_uses > uses;
        self.set = around;
        self.levels.push(level);
        if !names_itself {
            return Ok(None);
        }
        let (recursion, columns) = bound?;
        let has_tail = !tail.order.is_empty() || tail.offset.is_some() || !matches!(tail.limit, Limit::None);
        if has_tail || query.with.is_some() {
            return Err(SqlError::unsupported("ORDER BY, LIMIT, OFFSET or WITH in a recursive query"));
        }
        let plan = QueryPlan {
            order: Vec::new(),
            limit: None,
            offset: None,
            visible: columns.len(),
            types: columns.iter().map(|column| column.ty).collect(),
            body: Body::Recursion(Box::new(recursion)),
        };
        Ok(Some((plan, columns)))
    }

    fn recursion_terms(
        &mut self,
        name: &str,
        alias: &ast::TableAlias,
        (left, right): (&ast::SetExpr, &ast::SetExpr),
        all: bool,
    ) -> Result<(RecursionPlan, Vec<Column>)> {
        self.with.push(CommonTable { name: name.to_owned(), source: CommonSource::TooEarly });
        let base = self.side(left);
        self.with.pop();
        let (base, columns) = base?;
        let mut columns = named(columns, alias)?;
        for column in &mut columns {
            column.ty = if column.ty == PgType::Unknown { PgType::TEXT } else { column.ty };
        }
        self.working_tables += 1;
        let number = self.working_tables;
        let source = CommonSource::WorkingTable { number, columns: columns.clone() };
        self.with.push(CommonTable { name: name.to_owned(), source });
        let step = self.side(right);
        self.with.pop();
        let (step, others) = step?;
        if columns.len() != others.len() {
            let message = "each UNION query must have the same number of columns";
            return Err(SqlError::new(code::SYNTAX_ERROR, message));
        }
        for (index, (column, other)) in columns.iter().zip(&others).enumerate() {
            if other.ty != column.ty && other.ty != PgType::Unknown {
                let message = format!(
                    "recursive query \"{name}\" column {} has type {} in non-recursive term but type {} overall",
                    index + 1,
                    column.ty.display(),
                    other.ty.display()
                );
                return Err(SqlError::new(code::DATATYPE_MISMATCH, message)
                    .hint("Cast the output of the non-recursive term to the correct type."));
            }
        }
        Ok((RecursionPlan { base, step, all, working_table: number }, columns))
    }
}

/// Gives columns the names from the alias of their query of WITH.
fn named(mut columns: Vec<Column>, alias: &ast::TableAlias) -> Result<Vec<Column>> {
    clauses::check_renamed(alias, columns.len())?;
    for (column, name) in columns.iter_mut().zip(&alias.columns) {
        column.name = scope::fold(&name.name);
    }
    Ok(columns)
}
