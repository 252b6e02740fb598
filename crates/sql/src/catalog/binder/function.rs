//! Binds calls: scalar functions, aggregates, `row_number`, and functions in a select list that return rows.

use quorate_table::{expr::Expr, value::Type};
use sqlparser::{
    ast::{self, FunctionArg, FunctionArgExpr, FunctionArguments},
    tokenizer::Span,
};

use super::{Binder, Column, SetReturningCalls, Typed, operand, text_if_unknown};
use crate::{
    catalog::{
        functions,
        plan::{Aggregate, AggregateFunction, LeafNode, Window},
    },
    error::{Result, SqlError},
    statement::{expr, scope},
    types::PgType,
};

impl Binder<'_> {
    pub(super) fn arguments(&mut self, args: &[FunctionArg], span: Span) -> Result<Vec<Typed>> {
        args.iter()
            .map(|argument| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => self.expr(expr),
                other => Err(SqlError::unsupported(format!("the argument {other}")).at(span)),
            })
            .collect()
    }

    /// Binds a call of a function that exists only in queries of the catalog.
    pub(super) fn function_of_catalog(
        &mut self,
        function: &ast::Function,
        span: Span,
    ) -> Result<Option<Typed>> {
        let mut schema = scope::parts(&function.name)?;
        let name = schema.pop().unwrap_or_default();
        if !schema.is_empty() && schema != ["pg_catalog"] && schema != ["information_schema"] {
            return Ok(None);
        }
        if let Some(ast::WindowType::WindowSpec(spec)) = &function.over
            && name == "row_number"
            && spec.window_name.is_none()
            && spec.window_frame.is_none()
            && function.filter.is_none()
            && matches!(&function.args, FunctionArguments::List(list) if *list == NO_ARGUMENTS)
        {
            let partition =
                spec.partition_by.iter().map(|expr| Ok(self.expr(expr)?.0)).collect::<Result<_>>()?;
            let order = spec.order_by.iter().map(|key| self.key(key, span)).collect::<Result<_>>()?;
            self.windows.push(Window { partition, order });
            return Ok(Some(self.leaf(LeafNode::Number(self.windows.len() - 1), PgType::INT8)));
        }
        if function.over.is_some() || function.filter.is_some() {
            return Err(SqlError::unsupported("a window or FILTER").at(span));
        }
        let list = match &function.args {
            FunctionArguments::None => return Ok(None),
            FunctionArguments::Subquery(query) if name == "array" => {
                return self.rows_of_query(query, span).map(Some);
            }
            FunctionArguments::Subquery(_) => {
                return Err(
                    SqlError::unsupported(format!("{name} with a sub-select as its argument")).at(span)
                );
            }
            FunctionArguments::List(list) => list,
        };
        if let Some(aggregate) = aggregate_named(&name) {
            return self.aggregate(aggregate, list, span).map(Some);
        }
        if expr::is_aggregate(&name) {
            let what = format!("the aggregate {name} in a query of the system catalog");
            return Err(SqlError::unsupported(what).at(span));
        }
        let returns_rows = is_set_returning(&name);
        if !returns_rows && !functions::is_known(&name, list.args.len()) {
            return Ok(None);
        }
        for (present, what) in [
            (list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct), "DISTINCT"),
            (!list.clauses.is_empty(), "ORDER BY"),
        ] {
            if present {
                let message = format!("{what} specified, but {name} is not an aggregate function");
                return Err(SqlError::new("42809", message).at(span));
            }
        }
        let arguments = self.arguments(&list.args, span)?;
        if returns_rows {
            let rows = self.rows_of(&name, arguments, span)?;
            return self.set(function.to_string(), rows, span).map(Some);
        }
        self.call(&name, arguments, span).map(Some)
    }

    /// Binds a key of ORDER BY within a call. The second result says whether the order is descending.
    fn key(&mut self, key: &ast::OrderByExpr, span: Span) -> Result<(Expr, bool)> {
        let descends = key.options.asc == Some(false);
        if key.options.nulls_first.is_some_and(|first| first != descends) {
            return Err(SqlError::unsupported("NULLS FIRST or NULLS LAST within a call").at(span));
        }
        Ok((self.expr(&key.expr)?.0, descends))
    }

    /// Binds a call in a select list whose function returns rows. The call becomes a column of those rows.
    fn set(&mut self, call: String, Typed(node, ty): Typed, span: Span) -> Result<Typed> {
        let level = self.levels.last_mut().expect("the binder is inside a level of the query");
        let SetReturningCalls::List(calls) = &mut self.set else {
            return Err(SqlError::unsupported("a set-returning function outside a select list").at(span));
        };
        let place = match calls.iter().position(|(written, _)| *written == call) {
            Some(place) => place,
            None => {
                // The column has no name, so neither a name nor `*` in the statement means it.
                level.push(Column::new("", "", ty));
                calls.push((call, node));
                calls.len() - 1
            }
        };
        let index = level.len() - calls.len() + place;
        Ok(self.leaf(LeafNode::Column { level: 0, index }, ty))
    }

    /// Binds a call by its name: of a function of the catalog, or of a function that queries of tables have,
    /// too.
    pub(super) fn call(&mut self, name: &str, arguments: Vec<Typed>, span: Span) -> Result<Typed> {
        let types: Vec<PgType> = arguments.iter().map(|Typed(_, ty)| *ty).collect();
        if let Some((builtin, ty)) = functions::find(name, &types) {
            let mut given = Vec::with_capacity(arguments.len());
            for argument in arguments {
                let is_open = matches!(argument.0, Expr::Parameter(..));
                given.push(if is_open { self.coerced(argument, PgType::TEXT)?.0 } else { argument.0 });
            }
            return Ok(self.leaf(LeafNode::Call(builtin, given), ty));
        }
        if functions::is_known(name, arguments.len()) {
            return Err(no_function(name, &types, span));
        }
        let arguments = arguments.into_iter().map(operand).collect();
        let called = self.scalar(|binder| binder.call(name, arguments, span))?;
        self.typed(called)
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
                order.push(self.key(key, span)?);
            }
        }
        let star = matches!(list.args.as_slice(), [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)]);
        let arguments = if star { Vec::new() } else { self.arguments(&list.args, span)? };
        let first = arguments.first().map_or(PgType::TEXT, |Typed(_, ty)| text_if_unknown(*ty));
        let ty = match function {
            AggregateFunction::Count => PgType::INT8,
            AggregateFunction::Sum => match first {
                PgType::Plain(Type::Int2 | Type::Int4) => PgType::INT8,
                PgType::INT8 => PgType::Plain(Type::Numeric),
                other => other,
            },
            AggregateFunction::Min | AggregateFunction::Max => first,
            AggregateFunction::Array => first.array().unwrap_or(PgType::TextArray),
            AggregateFunction::String => PgType::TEXT,
            AggregateFunction::And | AggregateFunction::Or => PgType::BOOL,
        };
        let arguments = arguments.into_iter().map(|Typed(node, _)| node).collect();
        let distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
        let aggregate = Aggregate { function, arguments, distinct, order };
        Ok(self.leaf(LeafNode::Aggregate(Box::new(aggregate)), ty))
    }
}

/// The parentheses of a call without arguments.
const NO_ARGUMENTS: ast::FunctionArgumentList =
    ast::FunctionArgumentList { duplicate_treatment: None, args: Vec::new(), clauses: Vec::new() };

/// Whether a function in a select list returns rows.
fn is_set_returning(name: &str) -> bool {
    matches!(name, "unnest" | "generate_series" | "generate_subscripts" | "_pg_expandarray")
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

/// Returns the error about a function that does not exist.
pub(super) fn no_function(name: &str, types: &[PgType], span: Span) -> SqlError {
    let shown: Vec<&str> = types.iter().map(|ty| ty.display()).collect();
    expr::no_function(name, &shown, span)
}
