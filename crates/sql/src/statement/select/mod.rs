//! Selects of one table, or of constants.
//!
//! The replicas of a range filter, project, sort, or build partial groups; the gateway merges what the ranges answer.
//! So a select is bound to two halves: a [`Select`] that travels, and a [`Finish`] that stays. `body` binds the select
//! list, GROUP BY, HAVING and ORDER BY, `grouped` rewrites them over groups, `constants` binds what has no table, and
//! `clauses` takes apart what surrounds any query, those of the catalog too.

mod body;
pub mod clauses;
mod constants;
mod grouped;

use std::sync::Arc;

use quorate_table::{
    expr::{Aggregate, Expr},
    operation::{Order, Output, Select},
};
use sqlparser::ast::{self, Spanned};

use super::{
    Field,
    expr::AGGREGATE,
    parameters::Parameters,
    scope::{self, Scope},
    stencil::Stencil,
};
use crate::{
    backend::{Catalog, Table},
    catalog,
    error::{Result, SqlError, code},
    types::{self, PgType},
};
use body::{Body, Item, select_list};
use clauses::{refuse_extras, tail};
use constants::bind_constants;
use grouped::{Grouping, over_groups};

/// A bound query.
#[derive(Debug)]
pub struct Query {
    /// Where its rows come from.
    pub source: Source,
    /// What the gateway does to them.
    pub finish: Finish,
    /// The columns of the result.
    pub fields: Vec<Field>,
}

/// Where rows come from.
#[derive(Debug)]
pub enum Source {
    /// A table of the cluster.
    Table {
        /// Which.
        table: Arc<Table>,
        /// What its replicas do; parameters are open, and a pushed-down limit is set at execution.
        select: Select,
        /// The same in its byte form, where arguments do no more than fill it.
        stencil: Option<Stencil>,
    },
    /// Constants: `VALUES`, or a select without FROM.
    Constants {
        /// The rows.
        rows: Vec<Vec<Expr>>,
        /// WHERE.
        filter: Option<Expr>,
    },
    /// The catalog.
    Catalog(Box<catalog::Plan>),
}

/// What happens at the gateway, in this order.
#[derive(Debug, Default)]
pub struct Finish {
    /// Groups are merged and projected.
    pub groups: Option<Groups>,
    /// DISTINCT over the visible columns.
    pub distinct: bool,
    /// ORDER BY. A DISTINCT without one sorts by all columns, so that equal rows meet.
    pub order: Vec<Order>,
    /// OFFSET, a bigint.
    pub offset: Option<Expr>,
    /// LIMIT, a bigint; NULL is none.
    pub limit: Option<Expr>,
    /// How many columns the client sees; those behind exist to sort by.
    pub visible: usize,
}

/// What becomes of merged groups: rows of keys, then aggregates.
#[derive(Debug)]
pub struct Groups {
    /// The aggregates.
    pub aggregates: Vec<Aggregate>,
    /// How many keys come first.
    pub keys: usize,
    /// HAVING.
    pub having: Option<Expr>,
    /// The result's columns.
    pub columns: Vec<Expr>,
}

/// Binds a query.
pub fn bind(query: &ast::Query, parameters: &mut Parameters, catalog: &Arc<Catalog>) -> Result<Query> {
    match relations(query, catalog) {
        Relations::Table(table) => bind_table(query, table, parameters),
        Relations::None => {
            let mut tried = parameters.clone();
            match bind_constants(query, &mut tried) {
                Ok(bound) => {
                    *parameters = tried;
                    Ok(bound)
                }
                // The catalog's evaluator knows more functions and forms. What neither knows is told in the binder's
                // words, unless the evaluator came further, or knows a function of which it says something else.
                Err(error) if tried.beyond => catalog::bind(query, parameters, catalog).map_err(|later| {
                    let absent = |error: &SqlError| error.code == code::UNDEFINED_FUNCTION;
                    let known = later.place == error.place && absent(&error) && !absent(&later);
                    if later.place > error.place || known { later } else { error }
                }),
                Err(error) => Err(error),
            }
        }
        Relations::Several => catalog::bind(query, parameters, catalog),
    }
}

/// All rows of a table, some of its columns, as COPY TO reads them.
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
            stencil: None,
        },
        finish: Finish { visible, ..Finish::default() },
        fields,
    }
}

enum Relations {
    /// No FROM anywhere on the top level.
    None,
    /// One user table.
    Table(Arc<Table>),
    /// The catalog's relations, derived tables, joins, unions.
    Several,
}

fn relations(query: &ast::Query, catalog: &Catalog) -> Relations {
    match &*query.body {
        ast::SetExpr::Values(_) => Relations::None,
        ast::SetExpr::Select(select) => match select.from.as_slice() {
            [] => Relations::None,
            [one] if one.joins.is_empty() => match &one.relation {
                ast::TableFactor::Table { name, .. } => match scope::table_name(name) {
                    Ok(table) if !catalog::is_relation(&table) => match catalog.table(&table) {
                        Some(table) => Relations::Table(table.clone()),
                        None => Relations::Several,
                    },
                    _ => Relations::Several,
                },
                ast::TableFactor::Derived { subquery, lateral: false, .. } => {
                    match relations(subquery, catalog) {
                        Relations::Table(table) => Relations::Table(table),
                        Relations::None | Relations::Several => Relations::Several,
                    }
                }
                _ => Relations::Several,
            },
            _ => Relations::Several,
        },
        _ => Relations::Several,
    }
}

fn bind_table(query: &ast::Query, table: Arc<Table>, parameters: &mut Parameters) -> Result<Query> {
    let ast::SetExpr::Select(select) = &*query.body else { unreachable!("a table is selected from") };
    refuse_extras(select)?;
    let From { scope, filter, sorted } = from(&select.from[0].relation, &table, parameters)?;
    let body = Body { select, tail: tail(query)?, scope: &scope };
    let bound = body.bind(parameters)?;
    if sorted && bound.grouping.is_none() && bound.finish.order.is_empty() {
        return Err(SqlError::unsupported("ORDER BY in a sub-select whose rows are not sorted again")
            .hint("Write ORDER BY at the outermost select."));
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
                Some(Groups { aggregates: aggregates.clone(), keys: keys.len(), having, columns });
            Output::Groups { keys, aggregates }
        }
    };
    let filters: Vec<Expr> = filter.into_iter().chain(bound.filter).collect();
    let filter = (!filters.is_empty()).then(|| Expr::all(filters));
    let select = Select { table: table.id, filter, output };
    let whole = finish.limit.is_none() && finish.offset.is_none();
    let stencil = if whole { Stencil::of(&select, &table.schema) } else { None };
    Ok(Query { source: Source::Table { table, select, stencil }, finish, fields })
}

/// What a select of one table is from.
struct From<'a> {
    scope: Scope<'a>,
    /// WHERE of the sub-selects.
    filter: Option<Expr>,
    /// A sub-select has an ORDER BY.
    sorted: bool,
}

/// A table, or a sub-select over one that only filters and computes: the select around it is bound through it.
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
                unreachable!("a table is selected from")
            };
            let Some(alias) = alias else {
                return Err(SqlError::new(code::SYNTAX_ERROR, "subquery in FROM must have an alias")
                    .hint("For example, FROM (SELECT ...) [AS] foo.")
                    .at(factor.span()));
            };
            refuse_extras(select)?;
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

/// The column of the result that an item makes, with the column of the table that it is, if it is one.
fn field(item: &Item, table: &Table) -> Field {
    let mut field = Field { modifier: item.modifier, ..Field::new(&item.name, item.ty) };
    if let Expr::Column(index, _) = item.expr
        && index < AGGREGATE
    {
        field.origin = Some((catalog::table_oid(table.id), index as i16 + 1));
        (field.ty, field.modifier) = types::of_column(&table.schema.columns[index]);
    }
    field
}

/// RETURNING: expressions over the rows of a write.
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
