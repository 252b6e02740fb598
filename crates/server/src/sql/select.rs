//! Selects of one table, or of constants.
//!
//! The replicas of a range filter, project, sort, or build partial groups; the gateway merges what the ranges answer.
//! So a select is bound to two halves: a [`Select`] that travels, and a [`Finish`] that stays.

use std::{collections::BTreeMap, sync::Arc};

use quorate_table::{
    expr::{Aggregate, Expr},
    operation::{Order, Output, Select},
    value::Type,
};
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    Field,
    coerce::{self, Operand},
    expr::{self, AGGREGATE, Binder},
    fold,
    parameters::{Parameters, SessionValue},
    scope::{self, Scope},
};
use crate::{
    backend::{Catalog, Table},
    catalog,
    error::{Result, SqlError, code},
    types::PgType,
};

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
                // The catalog's evaluator knows more functions and forms; what neither knows is told in the
                // binder's words.
                Err(error) if tried.beyond => catalog::bind(query, parameters, catalog).map_err(|_| error),
                Err(error) => Err(error),
            }
        }
        Relations::Several => catalog::bind(query, parameters, catalog),
    }
}

/// All rows of a table, some of its columns, as COPY TO reads them.
pub fn whole_table(table: Arc<Table>, columns: &[usize]) -> Query {
    let chosen = columns.iter().map(|&position| (position, &table.schema.columns[position]));
    let fields =
        chosen.clone().map(|(_, column)| Field::new(&column.name, PgType::Plain(column.ty))).collect();
    let columns: Vec<Expr> = chosen.map(|(position, column)| Expr::Column(position, column.ty)).collect();
    let visible = columns.len();
    let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
    Query {
        source: Source::Table { select: Select { table: table.id, filter: None, output }, table },
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
                _ => Relations::Several,
            },
            _ => Relations::Several,
        },
        _ => Relations::Several,
    }
}

/// The clauses of a query around its body, refused or handed out.
pub struct Tail<'a> {
    /// ORDER BY.
    pub order: &'a [ast::OrderByExpr],
    /// LIMIT or FETCH FIRST.
    pub limit: Option<&'a ast::Expr>,
    /// OFFSET.
    pub offset: Option<&'a ast::Expr>,
}

/// Takes the clauses around the body apart.
pub fn tail(query: &ast::Query) -> Result<Tail<'_>> {
    if let Some(with) = &query.with {
        return Err(SqlError::unsupported("WITH").at(with.span()));
    }
    if !query.locks.is_empty() {
        return Err(SqlError::unsupported("SELECT FOR UPDATE or FOR SHARE")
            .hint("A statement is atomic; there are no row locks."));
    }
    if query.for_clause.is_some() || query.settings.is_some() || query.format_clause.is_some() {
        return Err(SqlError::unsupported("this clause"));
    }
    let order = match &query.order_by {
        None => &[][..],
        Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(list), interpolate: None }) => list,
        Some(_) => return Err(SqlError::unsupported("ORDER BY ALL")),
    };
    let (mut limit, offset) = match &query.limit_clause {
        None => (None, None),
        Some(ast::LimitClause::LimitOffset { limit, offset, limit_by }) if limit_by.is_empty() => {
            (limit.as_ref(), offset.as_ref().map(|offset| &offset.value))
        }
        Some(_) => {
            return Err(SqlError::new(code::SYNTAX_ERROR, "LIMIT #,# syntax is not supported")
                .hint("Use separate LIMIT and OFFSET clauses."));
        }
    };
    if let Some(fetch) = &query.fetch {
        if fetch.with_ties || fetch.percent {
            return Err(SqlError::unsupported("FETCH with TIES or PERCENT"));
        }
        limit = fetch.quantity.as_ref();
    }
    Ok(Tail { order, limit, offset })
}

/// Refuses what no select here has.
pub fn refuse_extras(select: &ast::Select) -> Result<()> {
    let refused = [
        (select.into.is_some(), "SELECT INTO"),
        (matches!(select.distinct, Some(ast::Distinct::On(_))), "DISTINCT ON"),
        (!select.named_window.is_empty(), "WINDOW"),
        (select.qualify.is_some(), "QUALIFY"),
        (select.top.is_some(), "TOP"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
    ];
    match refused.iter().find(|(present, _)| *present) {
        Some((_, what)) => Err(SqlError::unsupported(what)),
        None => Ok(()),
    }
}

fn row_count(
    expr: Option<&ast::Expr>,
    clause: &'static str,
    parameters: &mut Parameters,
) -> Result<Option<Expr>> {
    let Some(expr) = expr else { return Ok(None) };
    let scope = Scope::empty();
    let mut binder = Binder { scope: &scope, parameters, aggregates: Err(clause) };
    let operand = binder.operand(expr).map_err(|error| {
        if error.code == code::UNDEFINED_COLUMN {
            SqlError::new(
                code::INVALID_COLUMN_REFERENCE,
                format!("argument of {clause} must not contain variables"),
            )
            .at(expr.span())
        } else {
            error
        }
    })?;
    if let Some(ty) = operand.ty()
        && !ty.is_number()
    {
        return Err(SqlError::new(
            code::DATATYPE_MISMATCH,
            format!("argument of {clause} must be type bigint, not type {}", ty.name()),
        )
        .at(expr.span()));
    }
    Ok(Some(operand.implicit(Type::Int8, parameters)?))
}

/// One column of a select list.
struct Item {
    name: String,
    expr: Expr,
    ty: Type,
    /// Whether it may be named by ORDER BY and GROUP BY.
    span: Span,
}

fn bind_table(query: &ast::Query, table: Arc<Table>, parameters: &mut Parameters) -> Result<Query> {
    let ast::SetExpr::Select(select) = &*query.body else { unreachable!("a table is selected from") };
    refuse_extras(select)?;
    let alias = match &select.from[0].relation {
        ast::TableFactor::Table { alias, args: None, sample: None, .. } => match alias {
            Some(alias) if !alias.columns.is_empty() => {
                return Err(SqlError::unsupported("a list of column aliases").at(alias.name.span));
            }
            alias => alias.as_ref().map(|alias| scope::fold(&alias.name)),
        },
        other => return Err(SqlError::unsupported("this way to name a table").at(other.span())),
    };
    let scope = Scope::of(&table.schema, alias);
    let body = Body { select, tail: tail(query)?, scope: &scope };
    let filter = match &select.selection {
        None => None,
        Some(selection) => {
            let mut binder = Binder { scope: &scope, parameters, aggregates: Err("WHERE") };
            Some(binder.condition(selection, "WHERE")?)
        }
    };
    let bound = body.bind(parameters)?;
    let fields = bound
        .items
        .iter()
        .map(|item| Field {
            name: item.name.clone(),
            ty: PgType::Plain(item.ty),
            origin: match item.expr {
                Expr::Column(index, _) if index < AGGREGATE => {
                    Some((catalog::table_oid(table.id), index as i16 + 1))
                }
                _ => None,
            },
        })
        .collect();
    let visible = bound.items.len();
    let mut columns: Vec<Expr> = bound.items.into_iter().map(|item| item.expr).collect();
    columns.extend(bound.hidden);
    let (output, groups) = match bound.grouping {
        None => {
            let order = bound.order.clone();
            (Output::Rows { columns, order, limit: None, distinct: bound.distinct }, None)
        }
        Some(grouping) => {
            let keys = grouping.keys.len();
            let output =
                Output::Groups { keys: grouping.keys.clone(), aggregates: grouping.aggregates.clone() };
            let columns =
                columns.iter().map(|column| over_groups(column, &grouping, &scope)).collect::<Result<_>>()?;
            let having = match &grouping.having {
                None => None,
                Some(having) => Some(over_groups(having, &grouping, &scope)?),
            };
            (output, Some(Groups { aggregates: grouping.aggregates, keys, having, columns }))
        }
    };
    Ok(Query {
        source: Source::Table { select: Select { table: table.id, filter, output }, table },
        finish: Finish {
            groups,
            distinct: bound.distinct,
            order: bound.order,
            offset: bound.offset,
            limit: bound.limit,
            visible,
        },
        fields,
    })
}

/// A select's parts, before they are bound.
struct Body<'a> {
    select: &'a ast::Select,
    tail: Tail<'a>,
    scope: &'a Scope<'a>,
}

struct BoundBody {
    items: Vec<Item>,
    hidden: Vec<Expr>,
    grouping: Option<Grouping>,
    order: Vec<Order>,
    distinct: bool,
    limit: Option<Expr>,
    offset: Option<Expr>,
}

struct Grouping {
    keys: Vec<Expr>,
    aggregates: Vec<Aggregate>,
    having: Option<Expr>,
    /// Where columns are mentioned outside aggregates, for the error.
    mentions: BTreeMap<usize, Span>,
}

impl Body<'_> {
    fn bind(self, parameters: &mut Parameters) -> Result<BoundBody> {
        let mut aggregates = Vec::new();
        let mut items = self.items(parameters, &mut aggregates)?;
        let keys = self.keys(&items, parameters)?;
        let having = match &self.select.having {
            None => None,
            Some(having) => {
                let mut binder = Binder { scope: self.scope, parameters, aggregates: Ok(&mut aggregates) };
                Some(binder.condition(having, "HAVING")?)
            }
        };
        let distinct = matches!(self.select.distinct, Some(ast::Distinct::Distinct));
        let mut hidden = Vec::new();
        let mut order = self.order(&mut items, &mut hidden, distinct, parameters, &mut aggregates)?;
        if distinct {
            let sorted: Vec<usize> = order.iter().map(|key| key.column).collect();
            order.extend((0..items.len()).filter(|column| !sorted.contains(column)).map(|column| Order {
                column,
                descending: false,
                nulls_first: false,
            }));
        }
        let grouped = !keys.is_empty() || !aggregates.is_empty() || having.is_some();
        let grouping = grouped.then(|| {
            let mut mentions = BTreeMap::new();
            if let Some(schema) = self.scope.schema {
                for item in &self.select.projection {
                    mention(item, schema, &mut mentions);
                }
            }
            Grouping { keys, aggregates, having, mentions }
        });
        Ok(BoundBody {
            items,
            hidden,
            grouping,
            order,
            distinct,
            limit: row_count(self.tail.limit, "LIMIT", parameters)?,
            offset: row_count(self.tail.offset, "OFFSET", parameters)?,
        })
    }

    fn items(&self, parameters: &mut Parameters, aggregates: &mut Vec<Aggregate>) -> Result<Vec<Item>> {
        select_list(&self.select.projection, self.scope, parameters, Ok(aggregates))
    }

    /// GROUP BY: names of columns first, then of the result, then positions, then expressions.
    fn keys(&self, items: &[Item], parameters: &mut Parameters) -> Result<Vec<Expr>> {
        let list = match &self.select.group_by {
            ast::GroupByExpr::Expressions(list, modifiers) if modifiers.is_empty() => list,
            _ => return Err(SqlError::unsupported("GROUP BY ALL or with a modifier")),
        };
        let mut keys: Vec<Expr> = Vec::with_capacity(list.len());
        for item in list {
            let span = item.span();
            if matches!(item, ast::Expr::GroupingSets(_) | ast::Expr::Cube(_) | ast::Expr::Rollup(_)) {
                return Err(SqlError::unsupported("GROUPING SETS, CUBE or ROLLUP").at(span));
            }
            let named = match item {
                ast::Expr::Identifier(name) if self.scope.column(std::slice::from_ref(name)).is_err() => {
                    output_named(items, &scope::fold(name), span)?
                }
                _ => position(item, items.len(), "GROUP BY")?,
            };
            let key = match named {
                Some(index) => {
                    let aggregated = |e: &Expr| matches!(e, Expr::Column(c, _) if *c >= AGGREGATE);
                    if fold::any(&items[index].expr, &aggregated) {
                        return Err(SqlError::new(
                            code::GROUPING_ERROR,
                            "aggregate functions are not allowed in GROUP BY",
                        )
                        .at(items[index].span));
                    }
                    items[index].expr.clone()
                }
                None => {
                    let mut binder = Binder { scope: self.scope, parameters, aggregates: Err("GROUP BY") };
                    binder.decided(item)?.0
                }
            };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// ORDER BY: names of the result first, then positions, then expressions over columns.
    fn order(
        &self,
        items: &mut [Item],
        hidden: &mut Vec<Expr>,
        distinct: bool,
        parameters: &mut Parameters,
        aggregates: &mut Vec<Aggregate>,
    ) -> Result<Vec<Order>> {
        let mut order = Vec::with_capacity(self.tail.order.len());
        for key in self.tail.order {
            if key.with_fill.is_some() {
                return Err(SqlError::unsupported("WITH FILL"));
            }
            let span = key.expr.span();
            let named = match &key.expr {
                ast::Expr::Identifier(name) => output_named(items, &scope::fold(name), span)?,
                other => position(other, items.len(), "ORDER BY")?,
            };
            let column = match named {
                Some(index) => index,
                None => {
                    let mut binder =
                        Binder { scope: self.scope, parameters, aggregates: Ok(&mut *aggregates) };
                    let (expr, _) = binder.decided(&key.expr)?;
                    match items.iter().position(|item| item.expr == expr) {
                        Some(index) => index,
                        None if distinct => {
                            return Err(SqlError::new(
                                code::INVALID_COLUMN_REFERENCE,
                                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                            )
                            .at(span));
                        }
                        None => {
                            let known = hidden.iter().position(|other| *other == expr);
                            items.len()
                                + known.unwrap_or_else(|| {
                                    hidden.push(expr);
                                    hidden.len() - 1
                                })
                        }
                    }
                }
            };
            order.push(direction(column, &key.options));
        }
        Ok(order)
    }
}

/// ASC, DESC and where NULLs go.
pub fn direction(column: usize, options: &ast::OrderByOptions) -> Order {
    let descending = options.asc == Some(false);
    Order { column, descending, nulls_first: options.nulls_first.unwrap_or(descending) }
}

/// The column of the result that an integer constant means.
pub fn position(expr: &ast::Expr, columns: usize, clause: &str) -> Result<Option<usize>> {
    let ast::Expr::Value(value) = expr else { return Ok(None) };
    match &value.value {
        ast::Value::Number(digits, _) => {
            match digits.parse::<usize>() {
                Ok(number) if (1..=columns).contains(&number) => Ok(Some(number - 1)),
                Ok(number) => Err(SqlError::new(
                    code::INVALID_COLUMN_REFERENCE,
                    format!("{clause} position {number} is not in select list"),
                )
                .at(value.span)),
                Err(_) => Err(SqlError::new(code::SYNTAX_ERROR, format!("non-integer constant in {clause}"))
                    .at(value.span)),
            }
        }
        ast::Value::Placeholder(_) => Ok(None),
        _ => {
            Err(SqlError::new(code::SYNTAX_ERROR, format!("non-integer constant in {clause}")).at(value.span))
        }
    }
}

fn output_named(items: &[Item], name: &str, span: Span) -> Result<Option<usize>> {
    let mut found = items.iter().enumerate().filter(|(_, item)| item.name == name);
    let Some((index, first)) = found.next() else { return Ok(None) };
    if found.any(|(_, other)| other.expr != first.expr) {
        return Err(SqlError::new(code::AMBIGUOUS_COLUMN, format!("\"{name}\" is ambiguous")).at(span));
    }
    Ok(Some(index))
}

fn select_list(
    projection: &[ast::SelectItem],
    scope: &Scope<'_>,
    parameters: &mut Parameters,
    mut aggregates: Result<&mut Vec<Aggregate>, &'static str>,
) -> Result<Vec<Item>> {
    let mut items = Vec::with_capacity(projection.len());
    for item in projection {
        let span = item.span();
        let (expr, name) = match item {
            ast::SelectItem::UnnamedExpr(expr) => (expr, expr::column_name(expr)),
            ast::SelectItem::ExprWithAlias { expr, alias } => (expr, scope::fold(alias)),
            ast::SelectItem::Wildcard(_) => {
                all_columns(scope, span, &mut items)?;
                continue;
            }
            ast::SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
                let qualifier = scope::parts(name)?.pop().unwrap_or_default();
                if scope.schema.is_none() || qualifier != scope.alias {
                    return Err(SqlError::new(
                        code::UNDEFINED_TABLE,
                        format!("missing FROM-clause entry for table \"{qualifier}\""),
                    )
                    .at(span));
                }
                all_columns(scope, span, &mut items)?;
                continue;
            }
            other => return Err(SqlError::unsupported(format!("the select item {other}")).at(span)),
        };
        let aggregates = match &mut aggregates {
            Ok(list) => Ok(&mut **list),
            Err(place) => Err(*place),
        };
        let (expr, ty) = Binder { scope, parameters, aggregates }.decided(expr)?;
        items.push(Item { name, expr, ty, span });
    }
    Ok(items)
}

fn all_columns(scope: &Scope<'_>, span: Span, items: &mut Vec<Item>) -> Result<()> {
    let Some(schema) = scope.schema else {
        return Err(
            SqlError::new(code::SYNTAX_ERROR, "SELECT * with no tables specified is not valid").at(span)
        );
    };
    for (index, column) in schema.columns.iter().enumerate() {
        items.push(Item {
            name: column.name.clone(),
            expr: Expr::Column(index, column.ty),
            ty: column.ty,
            span,
        });
    }
    Ok(())
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
    let fields = items
        .iter()
        .map(|item| Field {
            name: item.name.clone(),
            ty: PgType::Plain(item.ty),
            origin: match item.expr {
                Expr::Column(index, _) => Some((catalog::table_oid(table.id), index as i16 + 1)),
                _ => None,
            },
        })
        .collect();
    Ok((items.into_iter().map(|item| item.expr).collect(), fields))
}

/// Notes where a select item mentions a column plainly.
fn mention(
    item: &ast::SelectItem,
    schema: &quorate_table::schema::Schema,
    mentions: &mut BTreeMap<usize, Span>,
) {
    let (ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. }) = item else {
        return;
    };
    let name = match expr {
        ast::Expr::Identifier(name) => name,
        ast::Expr::CompoundIdentifier(names) => names.last().expect("a name has parts"),
        _ => return,
    };
    let folded = scope::fold(name);
    if let Some(index) = schema.columns.iter().position(|column| column.name == folded) {
        mentions.entry(index).or_insert(name.span);
    }
}

/// Rewrites an expression over columns and aggregates to one over a group's keys and results.
fn over_groups(expr: &Expr, grouping: &Grouping, scope: &Scope<'_>) -> Result<Expr> {
    if let Some(index) = grouping.keys.iter().position(|key| key == expr) {
        return Ok(Expr::Column(index, expr.ty()));
    }
    match expr {
        Expr::Column(index, ty) if *index >= AGGREGATE => {
            Ok(Expr::Column(grouping.keys.len() + index - AGGREGATE, *ty))
        }
        Expr::Column(index, _) => {
            let schema = scope.schema.expect("a column has a table");
            let shown = format!("{}.{}", scope.alias, schema.columns[*index].name);
            let error = SqlError::new(
                code::GROUPING_ERROR,
                format!(
                    "column \"{shown}\" must appear in the GROUP BY clause or be used in an aggregate function"
                ),
            );
            Err(match grouping.mentions.get(index) {
                Some(span) => error.at(*span),
                None => error,
            })
        }
        other => {
            let mut rewritten = other.clone();
            for child in rewritten.children_mut() {
                *child = over_groups(child, grouping, scope)?;
            }
            Ok(rewritten)
        }
    }
}

/// `SELECT` without FROM, or `VALUES`.
fn bind_constants(query: &ast::Query, parameters: &mut Parameters) -> Result<Query> {
    let tail = tail(query)?;
    let scope = Scope::empty();
    match &*query.body {
        ast::SetExpr::Select(select) => {
            refuse_extras(select)?;
            let filter = match &select.selection {
                None => None,
                Some(selection) => {
                    let mut binder = Binder { scope: &scope, parameters, aggregates: Err("WHERE") };
                    Some(binder.condition(selection, "WHERE")?)
                }
            };
            let bound = Body { select, tail, scope: &scope }.bind(parameters)?;
            if bound.grouping.is_some() {
                parameters.beyond = true;
                return Err(SqlError::unsupported("an aggregate without a table"));
            }
            let fields = bound
                .items
                .iter()
                .map(|item| Field::new(&item.name, shown_type(&item.expr, item.ty)))
                .collect();
            let visible = bound.items.len();
            let mut columns: Vec<Expr> = bound.items.into_iter().map(|item| item.expr).collect();
            columns.extend(bound.hidden);
            Ok(Query {
                source: Source::Constants { rows: vec![columns], filter },
                finish: Finish {
                    groups: None,
                    distinct: bound.distinct,
                    order: bound.order,
                    offset: bound.offset,
                    limit: bound.limit,
                    visible,
                },
                fields,
            })
        }
        ast::SetExpr::Values(values) => {
            let mut rows: Vec<Vec<Operand>> = Vec::with_capacity(values.rows.len());
            for row in &values.rows {
                let mut operands = Vec::with_capacity(row.content.len());
                for expr in &row.content {
                    operands
                        .push(Binder { scope: &scope, parameters, aggregates: Err("VALUES") }.operand(expr)?);
                }
                if rows.first().is_some_and(|first| first.len() != operands.len()) {
                    return Err(SqlError::new(
                        code::SYNTAX_ERROR,
                        "VALUES lists must all be the same length",
                    )
                    .at(query.span()));
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
                    exprs.push(operand.implicit(*ty, parameters)?);
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
                order.push(direction(column, &key.options));
            }
            Ok(Query {
                source: Source::Constants { rows: bound, filter: None },
                finish: Finish {
                    groups: None,
                    distinct: false,
                    order,
                    offset: row_count(tail.offset, "OFFSET", parameters)?,
                    limit: row_count(tail.limit, "LIMIT", parameters)?,
                    visible: width,
                },
                fields,
            })
        }
        other => {
            parameters.beyond = true;
            Err(SqlError::unsupported(format!("the query {other}")))
        }
    }
}

/// The type a client is told for a column.
fn shown_type(expr: &Expr, ty: Type) -> PgType {
    match expr {
        Expr::Parameter(number, _) => {
            SessionValue::numbered(*number).map_or(PgType::Plain(ty), SessionValue::ty)
        }
        _ => PgType::Plain(ty),
    }
}
