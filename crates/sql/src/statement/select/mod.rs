//! Binds selects of one table, or of constants.
//!
//! The replicas of a range filter, project, sort, or build partial groups. The gateway merges the answers of
//! the ranges. So a select is bound to two halves: a [`Select`] for the replicas, and a [`Finish`] for the
//! gateway. `body` binds the select list, GROUP BY, HAVING and ORDER BY. `grouped` rewrites these expressions
//! over groups. `constants` binds selects without a table. `clauses` has the clauses around any query,
//! including queries of the catalog.

mod body;
pub mod clauses;
mod constants;
mod grouped;

use std::sync::Arc;

use quorate_table::{
    expr::Expr,
    operation::{Output, Select},
};
use sqlparser::ast::{self, Spanned};

use super::{
    Field,
    encoded_template::EncodedTemplate,
    expr::AGGREGATE,
    parameters::Parameters,
    scope::{self, Scope},
};
use crate::{
    backend::{Catalog, Table},
    catalog,
    error::{Result, SqlError, code},
    index::is_index,
    types::{self, PgType},
};
use body::{Body, OutputItem, select_list};
use clauses::tail;
use constants::bind_constants;
use grouped::{Grouping, over_groups};

pub use super::query::{Finish, LockWait, MergedGroups, Query, RowLock, Source};

/// Binds a query.
pub fn bind(query: &ast::Query, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Query> {
    match relations(query, catalog, &mut Vec::new()) {
        Relations::Table(table) => bind_table(query, table, parameters),
        Relations::None => {
            let mut tried = parameters.clone();
            match bind_constants(query, &mut tried) {
                Ok(bound) => {
                    *parameters = tried;
                    Ok(bound)
                }
                // The catalog's evaluator knows more functions and forms than this binder. If both fail, the
                // evaluator's error is returned if its place is further on in the text, or if only this
                // binder does not know the function. Otherwise this binder's error is returned.
                Err(error) if tried.needs_catalog => {
                    catalog::bind(query, parameters, catalog).map_err(|later| {
                        let absent = |error: &SqlError| error.code == code::UNDEFINED_FUNCTION;
                        let known = later.place == error.place && absent(&error) && !absent(&later);
                        if later.place > error.place || known { later } else { error }
                    })
                }
                Err(error) => Err(error),
            }
        }
        Relations::Several => catalog::bind(query, parameters, catalog),
    }
}

/// Returns a query of all rows of a table and of the given columns, for COPY TO.
pub fn whole_table(table: Arc<Table>, columns: &[usize]) -> Query {
    let chosen = columns.iter().map(|&position| (position, &table.schema.columns[position]));
    let fields = chosen.clone().map(|(_, column)| Field::of(column)).collect();
    let columns: Vec<Expr> = chosen.map(|(position, column)| Expr::Column(position, column.ty)).collect();
    let visible = columns.len();
    let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
    Query {
        source: Source::Table {
            select: Select { table: table.id, filter: None, output },
            table,
            template: None,
            lock: None,
        },
        finish: Finish { visible, ..Finish::default() },
        fields,
    }
}

enum Relations {
    /// The outermost select has no FROM.
    None,
    /// One table of the user.
    Table(Arc<Table>),
    /// Relations of the catalog, derived tables, joins, unions.
    Several,
}

/// Returns the relations of a query. `with` has the names of the WITH clauses around the query. Such a name
/// hides a table of the user that has the same name.
fn relations(query: &ast::Query, catalog: &Catalog, with: &mut Vec<String>) -> Relations {
    let outside = with.len();
    let named = query.with.iter().flat_map(|with| &with.cte_tables);
    with.extend(named.map(|query| scope::fold(&query.alias.name)));
    let found = relations_within(query, catalog, with);
    with.truncate(outside);
    found
}

fn relations_within(query: &ast::Query, catalog: &Catalog, with: &mut Vec<String>) -> Relations {
    let select = match &*query.body {
        ast::SetExpr::Values(_) => return Relations::None,
        ast::SetExpr::Select(select) => select,
        _ => return Relations::Several,
    };
    let relation = match select.from.as_slice() {
        [] => return Relations::None,
        [one] if one.joins.is_empty() => &one.relation,
        _ => return Relations::Several,
    };
    match relation {
        ast::TableFactor::Table { name, .. } => {
            let table = scope::table_name(name).ok().filter(|table| {
                let hidden = name.0.len() == 1 && with.contains(table);
                !hidden && !catalog::is_relation(table)
            });
            match table.and_then(|table| catalog.table(&table)) {
                Some(table) if !is_index(&table.schema) => Relations::Table(table.clone()),
                _ => Relations::Several,
            }
        }
        ast::TableFactor::Derived { subquery, lateral: false, .. } => {
            match relations(subquery, catalog, with) {
                Relations::Table(table) => Relations::Table(table),
                Relations::None | Relations::Several => Relations::Several,
            }
        }
        _ => Relations::Several,
    }
}

fn bind_table(query: &ast::Query, table: Arc<Table>, parameters: &mut Parameters) -> Result<Query> {
    let ast::SetExpr::Select(select) = &*query.body else {
        unreachable!("the statement selects from a table")
    };
    let From { scope, filter, sorted } = from(&select.from[0].relation, &table, parameters)?;
    let (tail, lock) = clauses::locking_tail(query, &scope_name(&select.from[0].relation, &table))?;
    let body = Body { select, tail, scope: &scope };
    let bound = body.bind(parameters)?;
    if let Some(RowLock { verb, .. }) = lock {
        let grouped = !matches!(&select.group_by, ast::GroupByExpr::Expressions(keys, _) if keys.is_empty());
        for (present, what) in [
            (bound.finish.distinct, "DISTINCT clause"),
            (grouped, "GROUP BY clause"),
            (select.having.is_some(), "HAVING clause"),
            (bound.grouping.is_some(), "aggregate functions"),
        ] {
            if present {
                let clause = verb.trim_start_matches("SELECT ");
                let message = format!("{clause} is not allowed with {what}");
                return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message));
            }
        }
    }
    if sorted && bound.grouping.is_none() && bound.finish.order.is_empty() {
        return Err(SqlError::unsupported("ORDER BY in a sub-select without ORDER BY in the outer select")
            .hint("Write ORDER BY in the outermost select."));
    }
    let fields = bound.items.iter().map(|item| field(item, &table)).collect();
    let columns = bound.columns();
    let mut finish = bound.finish;
    let output = match bound.grouping {
        None => Output::Rows { columns, order: finish.order.clone(), limit: None, distinct: finish.distinct },
        Some(grouping) => {
            let columns =
                columns.iter().map(|column| over_groups(column, &grouping, &scope)).collect::<Result<_>>()?;
            let having = match &grouping.having {
                None => None,
                Some(having) => Some(over_groups(having, &grouping, &scope)?),
            };
            let Grouping { keys, aggregates, .. } = grouping;
            finish.groups =
                Some(MergedGroups { aggregates: aggregates.clone(), keys: keys.len(), having, columns });
            Output::Groups { keys, aggregates }
        }
    };
    let filters: Vec<Expr> = filter.into_iter().chain(bound.filter).collect();
    let filter = (!filters.is_empty()).then(|| Expr::all(filters));
    let select = Select { table: table.id, filter, output };
    let whole = finish.limit.is_none() && finish.offset.is_none();
    let template = if whole { EncodedTemplate::of(&select, &table.schema) } else { None };
    Ok(Query { source: Source::Table { table, select, template, lock }, finish, fields })
}

/// Returns the name of a table within a query: its alias, or its own name.
fn scope_name(factor: &ast::TableFactor, table: &Table) -> String {
    let alias = match factor {
        ast::TableFactor::Table { alias, .. } | ast::TableFactor::Derived { alias, .. } => alias.as_ref(),
        _ => None,
    };
    alias.map_or_else(|| table.schema.name.clone(), |alias| scope::fold(&alias.name))
}

/// The bound FROM of a select of one table.
struct From<'a> {
    scope: Scope<'a>,
    /// The condition from WHERE of the sub-selects.
    filter: Option<Expr>,
    /// Whether a sub-select has an ORDER BY.
    sorted: bool,
}

/// Binds a table, or a sub-select over a table that only filters and computes. The names of the outer select
/// are resolved to the sub-select's expressions.
fn from<'a>(factor: &ast::TableFactor, table: &'a Table, parameters: &mut Parameters) -> Result<From<'a>> {
    let schema = &table.schema;
    match factor {
        ast::TableFactor::Table { alias, args: None, sample: None, .. } => match alias {
            Some(alias) if !alias.columns.is_empty() => {
                Err(SqlError::unsupported("a list of column aliases").at(alias.name.span))
            }
            alias => {
                let alias = alias.as_ref().map(|alias| scope::fold(&alias.name));
                Ok(From { scope: Scope::of(schema, alias), filter: None, sorted: false })
            }
        },
        ast::TableFactor::Derived { subquery, alias, sample: None, .. } => {
            let ast::SetExpr::Select(select) = &*subquery.body else {
                unreachable!("the statement selects from a table")
            };
            let Some(alias) = alias else {
                return Err(SqlError::new(code::SYNTAX_ERROR, "subquery in FROM must have an alias")
                    .hint("For example, FROM (SELECT ...) [AS] foo.")
                    .at(factor.span()));
            };
            let inner = from(&select.from[0].relation, table, parameters)?;
            let bound = Body { select, tail: tail(subquery)?, scope: &inner.scope }.bind(parameters)?;
            let finish = &bound.finish;
            for (present, what) in [
                (bound.grouping.is_some(), "aggregates or GROUP BY"),
                (finish.distinct, "DISTINCT"),
                (finish.limit.is_some() || finish.offset.is_some(), "LIMIT or OFFSET"),
                (bound.items.iter().any(|item| item.ty == PgType::Interval), "an interval"),
            ] {
                if present {
                    return Err(SqlError::unsupported(format!("a sub-select in FROM with {what}"))
                        .at(alias.name.span));
                }
            }
            clauses::check_renamed(alias, bound.items.len())?;
            let names = alias.columns.iter().map(|column| scope::fold(&column.name));
            let names = names.map(Some).chain(std::iter::repeat(None));
            let columns = bound.items.iter().zip(names);
            let columns = columns
                .map(|(item, name)| (name.unwrap_or_else(|| item.name.clone()), item.expr.clone()))
                .collect();
            let filters: Vec<Expr> = inner.filter.into_iter().chain(bound.filter).collect();
            Ok(From {
                scope: Scope::view(schema, scope::fold(&alias.name), columns),
                filter: (!filters.is_empty()).then(|| Expr::all(filters)),
                sorted: inner.sorted || !finish.order.is_empty(),
            })
        }
        other => Err(SqlError::unsupported("this way to name a table").at(other.span())),
    }
}

/// Returns the result's column for an item, with its origin if the item is a column of the table.
fn field(item: &OutputItem, table: &Table) -> Field {
    let mut field = Field { modifier: item.modifier, ..Field::new(&item.name, item.ty) };
    if let Expr::Column(index, _) = item.expr
        && index < AGGREGATE
    {
        field.origin = Some((catalog::table_oid(table.id), index as i16 + 1));
        (field.ty, field.modifier) = types::of_column(&table.schema.columns[index]);
    }
    field
}

/// Binds RETURNING: expressions over the rows of a write.
pub fn returning(
    items: &[ast::SelectItem],
    table: &Table,
    alias: Option<String>,
    parameters: &mut Parameters,
) -> Result<(Vec<Expr>, Vec<Field>)> {
    let scope = Scope::of(&table.schema, alias);
    let items = select_list(items, &scope, parameters, Err("RETURNING"))?;
    let fields = items.iter().map(|item| field(item, table)).collect();
    Ok((items.into_iter().map(|item| item.expr).collect(), fields))
}
