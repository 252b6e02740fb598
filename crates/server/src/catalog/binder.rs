//! Queries of the catalog, from syntax to a [`Plan`].

use std::sync::Arc;

use quorate_table::{
    expr::Binary,
    operation::Order,
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, BinaryOperator, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned, UnaryOperator},
    tokenizer::Span,
};

use super::{
    datum::Datum,
    functions,
    plan::{Aggregate, AggregateFunction, Body, From, Node, Plan, Select, SetFunction, Window},
    relations,
};
use crate::{
    backend::Catalog,
    error::{Result, SqlError, code},
    sql::{
        Field,
        expr::column_name,
        parameters::{Parameters, SessionValue},
        scope,
        select::{self, Finish, Query, Source},
    },
    types::{self, PgType},
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

/// The function that makes rows in the select list that is being bound.
enum Set {
    /// This is not a select list.
    Refused,
    /// There is none so far.
    Absent,
    /// Its rows come behind those of FROM, once for all calls that are written alike.
    Present { written: String, from: From },
}

/// An expression with its type.
struct Typed(Node, PgType);

impl Binder<'_> {
    fn query(&mut self, query: &ast::Query) -> Result<(Plan, Vec<Column>)> {
        let tail = select::tail(query)?;
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
                    .map(|(index, ty)| Column {
                        table: String::new(),
                        name: format!("column{}", index + 1),
                        ty,
                    })
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

    fn select(
        &mut self,
        select: &ast::Select,
        order: &[ast::OrderByExpr],
    ) -> Result<(Body, Vec<Column>, Vec<Order>, usize)> {
        select::refuse_extras(select)?;
        self.levels.push(Vec::new());
        let around = std::mem::take(&mut self.windows);
        let bound = self.select_within(select, order);
        self.windows = around;
        self.levels.pop();
        bound
    }

    fn select_within(
        &mut self,
        select: &ast::Select,
        order: &[ast::OrderByExpr],
    ) -> Result<(Body, Vec<Column>, Vec<Order>, usize)> {
        let mut from = Vec::with_capacity(select.from.len());
        for item in &select.from {
            from.push(self.joined(item)?);
        }
        let mut conjuncts = Vec::new();
        if let Some(selection) = &select.selection {
            let mut parts = Vec::new();
            split(selection, &mut parts);
            for part in parts {
                let node = self.condition(part)?;
                let needs = needs(&node);
                conjuncts.push((node, needs));
            }
        }
        let mut columns: Vec<Column> = Vec::new();
        let mut nodes = Vec::new();
        let mut exprs: Vec<Option<&ast::Expr>> = Vec::new();
        let named = self.levels.last().map_or(0, Vec::len);
        self.set = Set::Absent;
        for item in &select.projection {
            let (expr, name) = match item {
                ast::SelectItem::UnnamedExpr(expr) => (expr, column_name(expr)),
                ast::SelectItem::ExprWithAlias { expr, alias } => (expr, scope::fold(alias)),
                ast::SelectItem::Wildcard(_) | ast::SelectItem::QualifiedWildcard(..) => {
                    let qualifier = match item {
                        ast::SelectItem::QualifiedWildcard(
                            ast::SelectItemQualifiedWildcardKind::ObjectName(name),
                            _,
                        ) => Some(scope::parts(name)?.pop().unwrap_or_default()),
                        _ => None,
                    };
                    let level = self.levels.last().expect("inside a level");
                    for (index, column) in level.iter().take(named).enumerate() {
                        if qualifier.as_ref().is_none_or(|table| *table == column.table) {
                            columns.push(column.clone());
                            nodes.push(Node::Column { level: 0, index });
                            exprs.push(None);
                        }
                    }
                    continue;
                }
                other => {
                    return Err(SqlError::unsupported(format!("the select item {other}")).at(other.span()));
                }
            };
            let Typed(node, ty) = self.expr(expr)?;
            let node = shown(node, ty);
            columns.push(Column { table: String::new(), name, ty });
            nodes.push(node);
            exprs.push(Some(expr));
        }
        let makes_rows = match std::mem::replace(&mut self.set, Set::Refused) {
            Set::Present { from: rows, .. } => {
                from.push(rows);
                true
            }
            Set::Refused | Set::Absent => false,
        };
        let visible = columns.len();
        let mut keys = Vec::new();
        for key in order {
            let named = match &key.expr {
                ast::Expr::Identifier(name) => {
                    let name = scope::fold(name);
                    columns[..visible].iter().position(|column| column.name == name)
                }
                other => select::position(other, visible, "ORDER BY")?,
            };
            let known = named.or_else(|| exprs.iter().position(|expr| *expr == Some(&key.expr)));
            let column = match known {
                Some(index) => index,
                None => {
                    let Typed(node, ty) = self.expr(&key.expr)?;
                    nodes.push(node);
                    columns.push(Column { table: String::new(), name: String::new(), ty });
                    nodes.len() - 1
                }
            };
            keys.push(select::direction(column, &key.options));
        }
        let groups = match &select.group_by {
            ast::GroupByExpr::Expressions(list, modifiers) if modifiers.is_empty() => list,
            _ => return Err(SqlError::unsupported("GROUP BY ALL or with a modifier")),
        };
        let mut group_nodes = Vec::with_capacity(groups.len());
        for item in groups {
            let node = match select::position(item, visible, "GROUP BY") {
                Ok(Some(index)) => match exprs[index] {
                    Some(expr) => self.expr(expr)?.0,
                    None => Node::Column { level: 0, index },
                },
                _ => self.expr(item)?.0,
            };
            group_nodes.push(node);
        }
        let having = match &select.having {
            Some(having) => Some(self.condition(having)?),
            None => None,
        };
        let aggregated = !groups.is_empty() || having.is_some() || nodes.iter().any(has_aggregate);
        if makes_rows && (aggregated || !self.windows.is_empty()) {
            return Err(SqlError::unsupported("a function that makes rows beside aggregates or windows"));
        }
        let body = Select {
            from,
            conjuncts,
            groups: aggregated.then_some(group_nodes),
            having,
            distinct: matches!(select.distinct, Some(ast::Distinct::Distinct)),
            columns: nodes,
            windows: std::mem::take(&mut self.windows),
        };
        let hidden = columns.len() - visible;
        Ok((Body::Select(Box::new(body)), columns, keys, hidden))
    }

    // FROM.

    fn joined(&mut self, item: &ast::TableWithJoins) -> Result<From> {
        let mut from = self.factor(&item.relation)?;
        for join in &item.joins {
            use ast::JoinOperator::{CrossJoin, Inner, Join, Left, LeftOuter};
            let (constraint, outer) = match &join.join_operator {
                Join(constraint) | Inner(constraint) | CrossJoin(constraint) => (constraint, false),
                Left(constraint) | LeftOuter(constraint) => (constraint, true),
                _ => return Err(SqlError::unsupported("this kind of join").at(join.span())),
            };
            let right = self.factor(&join.relation)?;
            let on = match constraint {
                ast::JoinConstraint::On(on) => Some(self.condition(on)?),
                ast::JoinConstraint::None => None,
                _ => return Err(SqlError::unsupported("JOIN … USING or NATURAL").at(join.span())),
            };
            from = From::Join { left: Box::new(from), right: Box::new(right), on, outer };
        }
        Ok(from)
    }

    fn reach(&mut self, columns: impl IntoIterator<Item = Column>) {
        self.levels.last_mut().expect("inside a level").extend(columns);
    }

    fn factor(&mut self, factor: &ast::TableFactor) -> Result<From> {
        match factor {
            ast::TableFactor::Table { name, alias, args: None, .. } => {
                let parts = scope::parts(name)?;
                let (schema, bare) = match parts.as_slice() {
                    [bare] => (None, bare),
                    [schema, bare] | [_, schema, bare] => (Some(schema.as_str()), bare),
                    _ => return Err(SqlError::unsupported(format!("the name {name}")).at(name.span())),
                };
                let Some(relation) = relations::find(schema, bare) else {
                    return Err(self.no_relation(name, schema, bare));
                };
                let table = alias.as_ref().map_or_else(|| bare.clone(), |alias| scope::fold(&alias.name));
                let renamed: Vec<String> = alias
                    .iter()
                    .flat_map(|alias| alias.columns.iter().map(|column| scope::fold(&column.name)))
                    .collect();
                let columns = relation.columns.iter().enumerate().map(|(index, (name, ty))| Column {
                    table: table.clone(),
                    name: renamed.get(index).cloned().unwrap_or_else(|| (*name).to_owned()),
                    ty: *ty,
                });
                self.reach(columns.collect::<Vec<_>>());
                Ok(From::Relation(relation))
            }
            ast::TableFactor::Table { name, alias, args: Some(args), .. } => {
                self.set_function(name, &args.args, alias.as_ref())
            }
            ast::TableFactor::Function { name, args, alias, .. } => {
                self.set_function(name, args, alias.as_ref())
            }
            ast::TableFactor::UNNEST { alias, array_exprs, .. } => {
                let [array] = array_exprs.as_slice() else {
                    return Err(SqlError::unsupported("UNNEST of several arrays").at(factor.span()));
                };
                let Typed(node, ty) = self.expr(array)?;
                Ok(self.function_source("unnest", node, element_of(ty), SetFunction::Unnest, alias.as_ref()))
            }
            ast::TableFactor::Derived { lateral, subquery, alias, .. } => {
                let (plan, columns) = self.derived(subquery, *lateral)?;
                let table = alias.as_ref().map(|alias| scope::fold(&alias.name)).unwrap_or_default();
                let renamed: Vec<String> = alias
                    .iter()
                    .flat_map(|alias| alias.columns.iter().map(|column| scope::fold(&column.name)))
                    .collect();
                let columns: Vec<Column> = columns
                    .into_iter()
                    .enumerate()
                    .map(|(index, column)| Column {
                        table: table.clone(),
                        name: renamed.get(index).cloned().unwrap_or(column.name),
                        ty: column.ty,
                    })
                    .collect();
                self.reach(columns);
                Ok(From::Derived { plan: Box::new(plan), lateral: *lateral })
            }
            ast::TableFactor::NestedJoin { table_with_joins, alias: None } => self.joined(table_with_joins),
            other => Err(SqlError::unsupported(format!("{other} in FROM")).at(other.span())),
        }
    }

    /// A derived table that is not lateral sees only what is around the whole select.
    fn derived(&mut self, query: &ast::Query, lateral: bool) -> Result<(Plan, Vec<Column>)> {
        if lateral {
            return self.query(query);
        }
        let level = self.levels.pop().expect("inside a level");
        let bound = self.query(query);
        self.levels.push(level);
        bound
    }

    fn no_relation(&self, name: &ast::ObjectName, schema: Option<&str>, bare: &str) -> SqlError {
        if schema.is_none_or(|schema| schema == "public") && self.catalog.table(bare).is_some() {
            return SqlError::unsupported("a join, union or sub-select over tables")
                .hint("Only the relations of the catalog can be joined yet.")
                .at(name.span());
        }
        SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist")).at(name.span())
    }

    fn set_function(
        &mut self,
        name: &ast::ObjectName,
        args: &[FunctionArg],
        alias: Option<&ast::TableAlias>,
    ) -> Result<From> {
        let bare = scope::parts(name)?.pop().unwrap_or_default();
        let arguments = self.arguments(args, name.span())?;
        match (bare.as_str(), arguments.len()) {
            ("unnest", 1) | ("generate_series", 2) => {
                let Typed(node, ty) = rows_of(&bare, arguments, name.span())?;
                Ok(self.function_source(&bare, node, ty, SetFunction::Unnest, alias))
            }
            ("pg_get_keywords", 0) => {
                let table = alias.map_or(bare, |alias| scope::fold(&alias.name));
                let node = Node::Constant(Datum::NULL);
                self.reach([Column { table, name: "word".to_owned(), ty: PgType::TEXT }]);
                Ok(From::Function { node, kind: SetFunction::Empty })
            }
            _ => Err(SqlError::unsupported(format!("the function {bare} in FROM")).at(name.span())),
        }
    }

    fn function_source(
        &mut self,
        name: &str,
        node: Node,
        ty: PgType,
        kind: SetFunction,
        alias: Option<&ast::TableAlias>,
    ) -> From {
        let table = alias.map_or_else(|| name.to_owned(), |alias| scope::fold(&alias.name));
        let column = alias
            .and_then(|alias| alias.columns.first())
            .map_or_else(|| table.clone(), |column| scope::fold(&column.name));
        self.reach([Column { table, name: column, ty }]);
        From::Function { node, kind }
    }

    // Expressions.

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
                Typed(Node::Parameter(number), to)
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
                column.name == *name && table.is_none_or(|table| *table == column.table)
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

    fn expr(&mut self, expr: &ast::Expr) -> Result<Typed> {
        let span = expr.span();
        let boolean = |node| Ok(Typed(node, PgType::BOOL));
        let negated = |not: bool, node: Node| if not { Node::Not(Box::new(node)) } else { node };
        match expr {
            ast::Expr::Identifier(ident) => self.column(std::slice::from_ref(ident)),
            ast::Expr::CompoundIdentifier(idents) => self.column(idents),
            ast::Expr::Nested(inner) => self.expr(inner),
            ast::Expr::Collate { expr, .. } => self.expr(expr),
            ast::Expr::Value(value) => self.literal(&value.value, value.span),
            ast::Expr::Cast { expr, data_type, .. } => {
                let to = types::named(data_type).map_err(|error| error.at(span))?;
                let Typed(node, from) = self.expr(expr)?;
                if let (Node::Parameter(number), PgType::Unknown) = (&node, from) {
                    self.parameters.decide(*number, to);
                    return Ok(Typed(node, to));
                }
                Ok(Typed(Node::Cast(Box::new(node), from, to), to))
            }
            ast::Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
                let node = self.condition(expr)?;
                boolean(Node::Not(Box::new(node)))
            }
            ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
                let Typed(node, ty) = self.expr(expr)?;
                Ok(Typed(Node::Negate(Box::new(node)), ty))
            }
            ast::Expr::UnaryOp { op: UnaryOperator::Plus, expr } => self.expr(expr),
            ast::Expr::BinaryOp { left, op, right } => self.binary(left, op, right, span),
            ast::Expr::IsNull(inner) => boolean(Node::IsNull(Box::new(self.expr(inner)?.0))),
            ast::Expr::IsNotNull(inner) => {
                boolean(Node::Not(Box::new(Node::IsNull(Box::new(self.expr(inner)?.0)))))
            }
            ast::Expr::IsTrue(inner) => self.is(inner, true, true),
            ast::Expr::IsNotTrue(inner) => self.is(inner, true, false),
            ast::Expr::IsFalse(inner) => self.is(inner, false, true),
            ast::Expr::IsNotFalse(inner) => self.is(inner, false, false),
            ast::Expr::IsDistinctFrom(a, b) | ast::Expr::IsNotDistinctFrom(a, b) => {
                let (a, b) = (self.expr(a)?, self.expr(b)?);
                let (a, b) = self.meet(a, b);
                let not = matches!(expr, ast::Expr::IsNotDistinctFrom(..));
                boolean(negated(not, Node::Distinct(Box::new(a), Box::new(b))))
            }
            ast::Expr::Between { expr, negated: not, low, high } => {
                let low = self.binary(expr, &BinaryOperator::GtEq, low, span)?.0;
                let high = self.binary(expr, &BinaryOperator::LtEq, high, span)?.0;
                boolean(negated(*not, Node::And(Box::new(low), Box::new(high))))
            }
            ast::Expr::InList { expr, list, negated: not } => {
                let Typed(subject, ty) = self.expr(expr)?;
                let mut items = Vec::with_capacity(list.len());
                for item in list {
                    let typed = self.expr(item)?;
                    items.push(self.coerced(typed, ta_or_text(ty)).0);
                }
                let subject = self.coerced(Typed(subject, ty), PgType::TEXT).0;
                boolean(negated(*not, Node::In(Box::new(subject), items)))
            }
            ast::Expr::InSubquery { expr, subquery, negated: not } => {
                let subject = self.expr(expr)?;
                let (plan, columns) = self.query(subquery)?;
                one_column(&columns, span)?;
                let subject = self.coerced(subject, columns[0].ty).0;
                boolean(negated(*not, Node::InQuery(Box::new(subject), Box::new(plan))))
            }
            ast::Expr::Exists { subquery, negated: not } => {
                let (plan, _) = self.query(subquery)?;
                boolean(negated(*not, Node::Exists(Box::new(plan))))
            }
            ast::Expr::Subquery(query) => {
                let (plan, columns) = self.query(query)?;
                one_column(&columns, span)?;
                Ok(Typed(Node::Scalar(Box::new(plan)), columns[0].ty))
            }
            ast::Expr::AnyOp { left, compare_op, right, .. } => {
                self.any(left, compare_op, right, false, span)
            }
            ast::Expr::AllOp { left, compare_op, right } => self.any(left, compare_op, right, true, span),
            ast::Expr::Like { negated: not, expr, pattern, escape_char, any: false } => self
                .like(expr, pattern, escape_char.as_ref(), false)
                .map(|node| Typed(negated(*not, node), PgType::BOOL)),
            ast::Expr::ILike { negated: not, expr, pattern, escape_char, any: false } => self
                .like(expr, pattern, escape_char.as_ref(), true)
                .map(|node| Typed(negated(*not, node), PgType::BOOL)),
            ast::Expr::Case { operand, conditions, else_result, .. } => {
                let subject = match operand {
                    Some(operand) => Some(self.expr(operand)?),
                    None => None,
                };
                let subject_type = subject.as_ref().map(|typed| typed.1);
                let mut branches = Vec::with_capacity(conditions.len());
                let mut ty = PgType::Unknown;
                for when in conditions {
                    let condition = match subject_type {
                        None => self.condition(&when.condition)?,
                        Some(ty) => {
                            let typed = self.expr(&when.condition)?;
                            self.coerced(typed, ta_or_text(ty)).0
                        }
                    };
                    let Typed(result, result_type) = self.expr(&when.result)?;
                    ty = known(ty, result_type);
                    branches.push((condition, shown(result, result_type)));
                }
                let otherwise = match else_result {
                    Some(otherwise) => {
                        let Typed(node, other) = self.expr(otherwise)?;
                        ty = known(ty, other);
                        Some(Box::new(node))
                    }
                    None => None,
                };
                let ty = ta_or_text(ty);
                Ok(Typed(
                    Node::Case { subject: subject.map(|typed| Box::new(typed.0)), branches, otherwise },
                    ty,
                ))
            }
            ast::Expr::Array(array) => {
                let mut nodes = Vec::with_capacity(array.elem.len());
                let mut ty = PgType::Unknown;
                for element in &array.elem {
                    let Typed(node, element) = self.expr(element)?;
                    ty = known(ty, element);
                    nodes.push(node);
                }
                Ok(Typed(Node::Array(nodes), ta_or_text(ty).array().unwrap_or(PgType::TextArray)))
            }
            ast::Expr::CompoundFieldAccess { root, access_chain } => {
                let Typed(mut node, mut ty) = self.expr(root)?;
                for access in access_chain {
                    match access {
                        ast::AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                            let index = self.expr(index)?.0;
                            node = Node::Element(Box::new(node), Box::new(index));
                            ty = element_of(ty);
                        }
                        ast::AccessExpr::Dot(ast::Expr::Identifier(field)) if ty == PgType::Record => {
                            let (place, field) = record_field(field)?;
                            node = Node::Field(Box::new(node), place);
                            ty = field;
                        }
                        _ => return Err(SqlError::unsupported("this field or slice of a value").at(span)),
                    }
                }
                Ok(Typed(node, ty))
            }
            ast::Expr::Substring { expr, substring_from, substring_for, .. } => {
                let mut arguments = vec![self.expr(expr)?];
                for part in [substring_from, substring_for].into_iter().flatten() {
                    arguments.push(self.expr(part)?);
                }
                self.call("substring", arguments, span)
            }
            ast::Expr::Function(function) => self.function(function, span),
            other => Err(SqlError::unsupported(format!("the expression {other} over the catalog")).at(span)),
        }
    }

    fn literal(&mut self, value: &ast::Value, span: Span) -> Result<Typed> {
        Ok(match value {
            ast::Value::Number(digits, _) => match digits.parse::<i64>() {
                Ok(number) => {
                    let ty = if i32::try_from(number).is_ok() { PgType::INT4 } else { PgType::INT8 };
                    Typed(Node::Constant(Datum::int8(number)), ty)
                }
                Err(_) => {
                    let value = quorate_table::text::parse_text(Type::Numeric, digits)?;
                    Typed(Node::Constant(Datum::Value(value)), PgType::Plain(Type::Numeric))
                }
            },
            ast::Value::Boolean(truth) => Typed(Node::Constant(Datum::bool(*truth)), PgType::BOOL),
            ast::Value::Null => Typed(Node::Constant(Datum::NULL), PgType::Unknown),
            ast::Value::Placeholder(name) => {
                let number = self.parameters.number(name, span)?;
                let ty = self.parameters.ty(number).unwrap_or(PgType::Unknown);
                Typed(Node::Parameter(number), ty)
            }
            other => match other.clone().into_string() {
                Some(text) => Typed(Node::Constant(Datum::Value(Value::text_of(text))), PgType::Unknown),
                None => return Err(SqlError::unsupported(format!("the constant {other}")).at(span)),
            },
        })
    }

    fn binary(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        span: Span,
    ) -> Result<Typed> {
        use BinaryOperator as Op;
        let symbol = match op {
            Op::PGCustomBinaryOperator(parts) => parts.last().cloned().unwrap_or_default(),
            other => other.to_string(),
        };
        let boxed = |node| Box::new(node);
        match symbol.as_str() {
            "AND" | "OR" => {
                let (left, right) = (self.condition(left)?, self.condition(right)?);
                let node = if symbol == "AND" {
                    Node::And(boxed(left), boxed(right))
                } else {
                    Node::Or(boxed(left), boxed(right))
                };
                return Ok(Typed(node, PgType::BOOL));
            }
            "~" | "!~" | "~*" | "!~*" => {
                let (text, pattern) = (self.expr(left)?, self.expr(right)?);
                let (text, pattern) =
                    (self.coerced(text, PgType::TEXT).0, self.coerced(pattern, PgType::TEXT).0);
                let insensitive = symbol.ends_with('*');
                let node = Node::Match { text: boxed(text), pattern: boxed(pattern), insensitive };
                let node = if symbol.starts_with('!') { Node::Not(boxed(node)) } else { node };
                return Ok(Typed(node, PgType::BOOL));
            }
            "~~" | "!~~" | "~~*" | "!~~*" => {
                let node = self.like(left, right, None, symbol.ends_with('*'))?;
                let node = if symbol.starts_with('!') { Node::Not(boxed(node)) } else { node };
                return Ok(Typed(node, PgType::BOOL));
            }
            _ => {}
        }
        let Some(op) = operator(&symbol) else {
            return Err(SqlError::unsupported(format!("operator {symbol} over the catalog")).at(span));
        };
        let (a, b) = (self.expr(left)?, self.expr(right)?);
        let (ta, tb) = (a.1, b.1);
        let (a, b) = self.meet(a, b);
        let ty = if op.is_comparison() {
            PgType::BOOL
        } else if op == Binary::Concat {
            [ta, tb].into_iter().find(|ty| ty.info().category == 'A').unwrap_or(PgType::TEXT)
        } else {
            known(ta, tb)
        };
        Ok(Typed(Node::Binary(op, boxed(a), boxed(b)), ty))
    }

    fn is(&mut self, inner: &ast::Expr, truth: bool, wanted: bool) -> Result<Typed> {
        let node = self.condition(inner)?;
        let other = Node::Constant(Datum::bool(truth));
        let distinct = Node::Distinct(Box::new(node), Box::new(other));
        Ok(Typed(if wanted { Node::Not(Box::new(distinct)) } else { distinct }, PgType::BOOL))
    }

    fn any(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        all: bool,
        span: Span,
    ) -> Result<Typed> {
        let Some(op) = operator(&op.to_string()) else {
            return Err(SqlError::unsupported("ANY with this operator").at(span));
        };
        let left = self.expr(left)?;
        let unwrapped = match right {
            ast::Expr::Nested(inner) => inner,
            other => other,
        };
        let (right, element) = match unwrapped {
            ast::Expr::Subquery(query) => {
                let (plan, columns) = self.query(query)?;
                one_column(&columns, span)?;
                (Node::ArrayOf(Box::new(plan)), columns[0].ty)
            }
            other => {
                let typed = self.expr(other)?;
                let wanted = ta_or_text(left.1).array().unwrap_or(PgType::TextArray);
                let Typed(node, ty) = self.coerced(typed, wanted);
                (node, element_of(ty))
            }
        };
        let left = self.coerced(left, element).0;
        Ok(Typed(Node::Any { left: Box::new(left), op, right: Box::new(right), all }, PgType::BOOL))
    }

    fn like(
        &mut self,
        text: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        insensitive: bool,
    ) -> Result<Node> {
        let (text, pattern) = (self.expr(text)?, self.expr(pattern)?);
        let (text, pattern) = (self.coerced(text, PgType::TEXT).0, self.coerced(pattern, PgType::TEXT).0);
        let escape = match escape {
            None => Some('\\'),
            Some(value) => value.value.clone().into_string().and_then(|text| text.chars().next()),
        };
        Ok(Node::Like { text: Box::new(text), pattern: Box::new(pattern), escape, insensitive })
    }

    fn arguments(&mut self, args: &[FunctionArg], span: Span) -> Result<Vec<Typed>> {
        args.iter()
            .map(|argument| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => self.expr(expr),
                other => Err(SqlError::unsupported(format!("the argument {other}")).at(span)),
            })
            .collect()
    }

    fn function(&mut self, function: &ast::Function, span: Span) -> Result<Typed> {
        let name = scope::parts(&function.name)?.pop().unwrap_or_default();
        if let Some(ast::WindowType::WindowSpec(spec)) = &function.over
            && name == "row_number"
            && spec.window_name.is_none()
            && spec.window_frame.is_none()
        {
            let partition =
                spec.partition_by.iter().map(|expr| Ok(self.expr(expr)?.0)).collect::<Result<_>>()?;
            let order = spec
                .order_by
                .iter()
                .map(|key| Ok((self.expr(&key.expr)?.0, key.options.asc == Some(false))))
                .collect::<Result<_>>()?;
            self.windows.push(Window { partition, order });
            return Ok(Typed(Node::Number(self.windows.len() - 1), PgType::INT8));
        }
        if function.over.is_some() || function.filter.is_some() {
            return Err(SqlError::unsupported("a window or FILTER").at(span));
        }
        let list = match &function.args {
            FunctionArguments::None => {
                return match SessionValue::named(&name) {
                    Some(value) => Ok(Typed(Node::Parameter(value.number()), value.ty())),
                    None => Err(no_function(&name, &[], span)),
                };
            }
            FunctionArguments::Subquery(query) if name == "array" => {
                let (plan, columns) = self.query(query)?;
                one_column(&columns, span)?;
                let ty = columns[0].ty.array().unwrap_or(PgType::TextArray);
                return Ok(Typed(Node::ArrayOf(Box::new(plan)), ty));
            }
            FunctionArguments::Subquery(_) => {
                return Err(SqlError::unsupported(format!("{name} of a query")).at(span));
            }
            FunctionArguments::List(list) => list,
        };
        if let Some(aggregate) = aggregate_named(&name) {
            return self.aggregate(aggregate, list, span);
        }
        if list.args.is_empty()
            && let Some(value) = SessionValue::named(&name)
        {
            return Ok(Typed(Node::Parameter(value.number()), value.ty()));
        }
        let arguments = self.arguments(&list.args, span)?;
        if matches!(name.as_str(), "unnest" | "generate_series" | "_pg_expandarray") {
            let rows = rows_of(&name, arguments, span)?;
            return self.set(function.to_string(), rows, span);
        }
        self.call(&name, arguments, span)
    }

    /// A column of the rows that a function of the select list makes.
    fn set(&mut self, call: String, Typed(node, ty): Typed, span: Span) -> Result<Typed> {
        let level = self.levels.last_mut().expect("inside a level");
        match &self.set {
            Set::Refused => {
                return Err(
                    SqlError::unsupported("a function that makes rows outside a select list").at(span)
                );
            }
            Set::Absent => {
                // No name reaches it, nor does `*`.
                level.push(Column { table: String::new(), name: String::new(), ty });
                self.set =
                    Set::Present { written: call, from: From::Function { node, kind: SetFunction::Unnest } };
            }
            Set::Present { written, .. } if *written == call => {}
            Set::Present { .. } => {
                return Err(
                    SqlError::unsupported("several functions that make rows in a select list").at(span)
                );
            }
        }
        Ok(Typed(Node::Column { level: 0, index: level.len() - 1 }, ty))
    }

    fn call(&mut self, name: &str, arguments: Vec<Typed>, span: Span) -> Result<Typed> {
        let types: Vec<PgType> = arguments.iter().map(|Typed(_, ty)| *ty).collect();
        let Some((builtin, ty)) = functions::find(name, &types) else {
            return Err(no_function(name, &types, span));
        };
        let mut nodes = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let is_open = matches!(argument.0, Node::Parameter(_));
            nodes.push(if is_open { self.coerced(argument, PgType::TEXT).0 } else { argument.0 });
        }
        Ok(Typed(Node::Call(builtin, nodes), ty))
    }

    fn aggregate(
        &mut self,
        function: AggregateFunction,
        list: &ast::FunctionArgumentList,
        span: Span,
    ) -> Result<Typed> {
        let mut order = Vec::new();
        for clause in &list.clauses {
            let ast::FunctionArgumentClause::OrderBy(keys) = clause else {
                return Err(SqlError::unsupported("this clause of an aggregate").at(span));
            };
            for key in keys {
                order.push((self.expr(&key.expr)?.0, key.options.asc == Some(false)));
            }
        }
        let star = matches!(list.args.as_slice(), [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)]);
        let arguments = if star { Vec::new() } else { self.arguments(&list.args, span)? };
        let first = arguments.first().map_or(PgType::TEXT, |Typed(_, ty)| ta_or_text(*ty));
        let ty = match function {
            AggregateFunction::Count => PgType::INT8,
            AggregateFunction::Min | AggregateFunction::Max | AggregateFunction::Sum => first,
            AggregateFunction::Array => first.array().unwrap_or(PgType::TextArray),
            AggregateFunction::String => PgType::TEXT,
            AggregateFunction::And | AggregateFunction::Or => PgType::BOOL,
        };
        let arguments = arguments.into_iter().map(|Typed(node, _)| node).collect();
        let distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
        Ok(Typed(Node::Aggregate(Box::new(Aggregate { function, arguments, distinct, order })), ty))
    }
}

/// What a function makes rows of: an array, with its elements' type.
fn rows_of(name: &str, arguments: Vec<Typed>, span: Span) -> Result<Typed> {
    let types: Vec<PgType> = arguments.iter().map(|Typed(_, ty)| *ty).collect();
    let mut nodes: Vec<Node> = arguments.into_iter().map(|Typed(node, _)| node).collect();
    match types.as_slice() {
        [array] if name == "unnest" && array.info().category == 'A' => {
            Ok(Typed(nodes.remove(0), element_of(*array)))
        }
        _ => match functions::find(name, &types) {
            Some((builtin, ty)) => Ok(Typed(Node::Call(builtin, nodes), ty)),
            None => Err(no_function(name, &types, span)),
        },
    }
}

/// The place and type of a record's field. The only records are those of `_pg_expandarray`: an element and its number.
fn record_field(field: &ast::Ident) -> Result<(usize, PgType)> {
    match scope::fold(field).as_str() {
        "x" => Ok((0, PgType::Plain(Type::Int2))),
        "n" => Ok((1, PgType::INT4)),
        other => Err(SqlError::new(
            code::UNDEFINED_COLUMN,
            format!("could not identify column \"{other}\" in record data type"),
        )
        .at(field.span)),
    }
}

fn aggregate_named(name: &str) -> Option<AggregateFunction> {
    Some(match name {
        "count" => AggregateFunction::Count,
        "min" => AggregateFunction::Min,
        "max" => AggregateFunction::Max,
        "sum" => AggregateFunction::Sum,
        "array_agg" => AggregateFunction::Array,
        "string_agg" => AggregateFunction::String,
        "bool_and" | "every" => AggregateFunction::And,
        "bool_or" => AggregateFunction::Or,
        _ => return None,
    })
}

fn operator(symbol: &str) -> Option<Binary> {
    Some(match symbol {
        "=" => Binary::Equal,
        "<>" | "!=" => Binary::NotEqual,
        "<" => Binary::Less,
        "<=" => Binary::LessEqual,
        ">" => Binary::Greater,
        ">=" => Binary::GreaterEqual,
        "+" => Binary::Add,
        "-" => Binary::Subtract,
        "*" => Binary::Multiply,
        "/" => Binary::Divide,
        "%" => Binary::Modulo,
        "||" => Binary::Concat,
        _ => return None,
    })
}

fn no_function(name: &str, types: &[PgType], span: Span) -> SqlError {
    let shown: Vec<&str> = types.iter().map(|ty| ty.display()).collect();
    SqlError::new(code::UNDEFINED_FUNCTION, format!("function {name}({}) does not exist", shown.join(", ")))
        .hint("No function matches the given name and argument types. You might need to add explicit type casts.")
        .at(span)
}

fn one_column(columns: &[Column], span: Span) -> Result<()> {
    match columns.len() {
        1 => Ok(()),
        0 => Err(SqlError::new(code::SYNTAX_ERROR, "subquery must return a column").at(span)),
        _ => Err(SqlError::new(code::SYNTAX_ERROR, "subquery must return only one column").at(span)),
    }
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

/// An object id that stands for a name is shown by it.
fn shown(node: Node, ty: PgType) -> Node {
    if ty.is_oid() && !matches!(ty, PgType::Oid | PgType::Xid) {
        Node::Cast(Box::new(node), ty, PgType::TEXT)
    } else {
        node
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
                other => select::position(other, columns.len(), "ORDER BY")?,
            };
            let column = column.ok_or_else(|| {
                SqlError::new(code::FEATURE_NOT_SUPPORTED, "invalid UNION/INTERSECT/EXCEPT ORDER BY clause")
                    .at(key.expr.span())
            })?;
            Ok(select::direction(column, &key.options))
        })
        .collect()
}

fn split<'e>(expr: &'e ast::Expr, parts: &mut Vec<&'e ast::Expr>) {
    match expr {
        ast::Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            split(left, parts);
            split(right, parts);
        }
        ast::Expr::Nested(inner) => split(inner, parts),
        other => parts.push(other),
    }
}

/// How many of the level's columns an expression needs; `None` where a sub-select may need any.
fn needs(node: &Node) -> Option<usize> {
    let mut most = 0;
    let simple = visit(node, &mut |node| match node {
        Node::Column { level: 0, index } => {
            most = most.max(index + 1);
            true
        }
        Node::Scalar(_) | Node::Exists(_) | Node::InQuery(..) | Node::ArrayOf(_) => false,
        _ => true,
    });
    simple.then_some(most)
}

fn has_aggregate(node: &Node) -> bool {
    !visit(node, &mut |node| !matches!(node, Node::Aggregate(_)))
}

/// Visits a node and what is in it on its own level, until `test` fails.
fn visit(node: &Node, test: &mut dyn FnMut(&Node) -> bool) -> bool {
    if !test(node) {
        return false;
    }
    match node {
        Node::Constant(_) | Node::Parameter(_) | Node::Column { .. } | Node::Number(_) => true,
        Node::And(a, b)
        | Node::Or(a, b)
        | Node::Binary(_, a, b)
        | Node::Distinct(a, b)
        | Node::Element(a, b) => visit(a, test) && visit(b, test),
        Node::Not(a) | Node::IsNull(a) | Node::Negate(a) | Node::Cast(a, ..) | Node::Field(a, _) => {
            visit(a, test)
        }
        Node::Match { text, pattern, .. } | Node::Like { text, pattern, .. } => {
            visit(text, test) && visit(pattern, test)
        }
        Node::In(a, list) => visit(a, test) && list.iter().all(|node| visit(node, test)),
        Node::Case { subject, branches, otherwise } => {
            subject.as_ref().is_none_or(|node| visit(node, test))
                && branches.iter().all(|(a, b)| visit(a, test) && visit(b, test))
                && otherwise.as_ref().is_none_or(|node| visit(node, test))
        }
        Node::Any { left, right, .. } => visit(left, test) && visit(right, test),
        Node::Array(list) | Node::Call(_, list) => list.iter().all(|node| visit(node, test)),
        Node::InQuery(a, _) => visit(a, test),
        Node::Scalar(_) | Node::Exists(_) | Node::ArrayOf(_) => true,
        Node::Aggregate(aggregate) => aggregate.arguments.iter().all(|node| visit(node, test)),
    }
}
