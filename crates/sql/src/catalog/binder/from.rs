//! Binds FROM: relations, joins, derived tables, and functions that return rows.

use quorate_table::{
    expr::Expr,
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, BinaryOperator, FunctionArg, Spanned},
    tokenizer::Span,
};

use super::{Binder, Column, Typed, Using, element_of, function::no_function, operand};
use crate::{
    array,
    catalog::{
        functions,
        plan::{From, LeafNode, QueryPlan},
        relations,
    },
    error::{Result, SqlError, code},
    statement::{coerce::Operand, parameters::SessionValue, scope, select::clauses},
    types::PgType,
};

impl Binder<'_> {
    pub(super) fn joined(&mut self, item: &ast::TableWithJoins) -> Result<From> {
        let mut from = self.factor(&item.relation)?;
        for join in &item.joins {
            use ast::JoinOperator::{CrossJoin, Inner, Join, Left, LeftOuter};
            let (constraint, outer) = match &join.join_operator {
                Join(constraint) | Inner(constraint) | CrossJoin(constraint) => (constraint, false),
                Left(constraint) | LeftOuter(constraint) => (constraint, true),
                _ => return Err(SqlError::unsupported("this kind of join").at(join.span())),
            };
            let begin = self.level().len();
            let right = self.factor(&join.relation)?;
            let on = match constraint {
                ast::JoinConstraint::On(on) => Some(self.condition(on, "JOIN/ON")?),
                ast::JoinConstraint::None => None,
                ast::JoinConstraint::Using(names) => {
                    let name = |name| Ok(scope::parts(name)?.pop().unwrap_or_default());
                    let names = names.iter().map(name).collect::<Result<Vec<String>>>()?;
                    self.using(begin, &names, join.span())?
                }
                ast::JoinConstraint::Natural => {
                    let (left, right) = self.level().split_at(begin);
                    let common =
                        right.iter().filter(|column| left.iter().any(|other| other.name == column.name));
                    let names: Vec<String> = common.map(|column| column.name.clone()).collect();
                    self.using(begin, &names, join.span())?
                }
            };
            from = From::Join { left: Box::new(from), right: Box::new(right), on, outer };
        }
        Ok(from)
    }

    fn level(&self) -> &[Column] {
        self.levels.last().expect("the binder is inside a level of the query")
    }

    /// Returns the condition of a join by USING: the named columns are equal on both sides. The result hides
    /// the right column of each pair.
    fn using(&mut self, begin: usize, names: &[String], span: Span) -> Result<Option<Expr>> {
        let mut on = Vec::new();
        for name in names {
            let level = self.levels.last_mut().expect("the binder is inside a level of the query");
            let (left, right) = level.split_at_mut(begin);
            let kept = left.iter().position(|column| column.name == *name && column.using != Using::Merged);
            let right = right
                .iter_mut()
                .enumerate()
                .find(|(_, column)| column.name == *name && column.using != Using::Merged);
            let (Some(kept), Some((right, column))) = (kept, right) else {
                return Err(SqlError::new(
                    code::UNDEFINED_COLUMN,
                    format!("column \"{name}\" specified in USING clause does not exist in both tables"),
                )
                .at(span));
            };
            column.using = Using::Merged;
            left[kept].using = Using::Kept;
            let types = [left[kept].ty, column.ty];
            let sides = [kept, begin + right].into_iter().zip(types);
            let mut sides: Vec<Operand> = sides
                .map(|(index, ty)| operand(self.leaf(LeafNode::Column { level: 0, index }, ty)))
                .collect();
            let (right, left) = (sides.pop().expect("two"), sides.pop().expect("two"));
            let equal = self.scalar(|binder| binder.applied(&BinaryOperator::Eq, left, right, span))?;
            on.push(self.typed(equal)?.0);
        }
        Ok((!on.is_empty()).then(|| Expr::all(on)))
    }

    fn reach(&mut self, columns: impl IntoIterator<Item = Column>) {
        self.levels.last_mut().expect("the binder is inside a level of the query").extend(columns);
    }

    /// Adds the columns of a derived table to the level, under the names from its alias.
    pub(super) fn reach_renamed(
        &mut self,
        table: &str,
        columns: Vec<Column>,
        alias: Option<&ast::TableAlias>,
    ) -> Result<()> {
        let renamed = renamed(alias, columns.len())?;
        let columns = columns.into_iter().enumerate().map(|(index, column)| {
            Column::new(table, renamed.get(index).cloned().unwrap_or(column.name), column.ty)
        });
        self.reach(columns.collect::<Vec<_>>());
        Ok(())
    }

    fn factor(&mut self, factor: &ast::TableFactor) -> Result<From> {
        match factor {
            ast::TableFactor::Table { name, alias, args: None, .. } => {
                let parts = scope::parts(name)?;
                if let [named] = parts.as_slice()
                    && let Some(place) = self.with.iter().rposition(|with| with.name == *named)
                {
                    return self.common_table(place, alias.as_ref(), name.span());
                }
                let (schema, bare) = match parts.as_slice() {
                    [bare] => (None, bare),
                    [schema, bare] | [_, schema, bare] => (Some(schema.as_str()), bare),
                    _ => return Err(SqlError::unsupported(format!("the name {name}")).at(name.span())),
                };
                let Some(relation) = relations::find(schema, bare) else {
                    return Err(self.no_relation(name, schema, bare));
                };
                let table = alias.as_ref().map_or_else(|| bare.clone(), |alias| scope::fold(&alias.name));
                let renamed = renamed(alias.as_ref(), relation.columns.len())?;
                let columns = relation.columns.iter().enumerate().map(|(index, (name, ty))| {
                    Column::new(
                        &table,
                        renamed.get(index).cloned().unwrap_or_else(|| (*name).to_owned()),
                        *ty,
                    )
                });
                self.reach(columns.collect::<Vec<_>>());
                Ok(From::Relation(relation))
            }
            ast::TableFactor::Table { name, alias, args: Some(args), with_ordinality, .. } => {
                self.set_function(name, &args.args, alias.as_ref(), *with_ordinality)
            }
            ast::TableFactor::Function { name, args, alias, with_ordinality, .. } => {
                self.set_function(name, args, alias.as_ref(), *with_ordinality)
            }
            ast::TableFactor::UNNEST { alias, array_exprs, with_ordinality, .. } => {
                let mut columns = Vec::with_capacity(array_exprs.len());
                for array in array_exprs {
                    let Typed(node, ty) = self.expr(array)?;
                    columns.push(("unnest", Typed(node, element_of(ty))));
                }
                let numbers = match (*with_ordinality, array_exprs.as_slice()) {
                    (false, _) => None,
                    (true, [array]) => {
                        let array = self.expr(array)?.0;
                        Some(self.numbers(array))
                    }
                    (true, _) => return Err(SqlError::unsupported("WITH ORDINALITY of several arrays")),
                };
                self.elements("unnest", columns, numbers, alias.as_ref())
            }
            ast::TableFactor::Derived { lateral, subquery, alias, .. } => {
                let (plan, columns) = self.derived(subquery, *lateral)?;
                let table = alias.as_ref().map(|alias| scope::fold(&alias.name)).unwrap_or_default();
                self.reach_renamed(&table, columns, alias.as_ref())?;
                Ok(From::Derived { plan: Box::new(plan), lateral: *lateral })
            }
            ast::TableFactor::NestedJoin { table_with_joins, alias: None } => self.joined(table_with_joins),
            other => Err(SqlError::unsupported(format!("{other} in FROM")).at(other.span())),
        }
    }

    /// Binds a derived table. Without LATERAL, its query sees only the levels around the whole select.
    pub(super) fn derived(&mut self, query: &ast::Query, lateral: bool) -> Result<(QueryPlan, Vec<Column>)> {
        if lateral {
            return self.query(query);
        }
        let level = self.levels.pop().expect("the binder is inside a level of the query");
        let bound = self.query(query);
        self.levels.push(level);
        bound
    }

    fn no_relation(&self, name: &ast::ObjectName, schema: Option<&str>, bare: &str) -> SqlError {
        if schema.is_none_or(|schema| schema == "public") && self.catalog.table(bare).is_some() {
            if let Err(error) = scope::table(self.catalog, name) {
                return error;
            }
            return SqlError::unsupported("a join, union or sub-select over tables")
                .hint("Only relations of the system catalog can be joined.")
                .at(name.span());
        }
        SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist")).at(name.span())
    }

    fn set_function(
        &mut self,
        name: &ast::ObjectName,
        args: &[FunctionArg],
        alias: Option<&ast::TableAlias>,
        with_ordinality: bool,
    ) -> Result<From> {
        let bare = scope::parts(name)?.pop().unwrap_or_default();
        let arguments = self.arguments(args, name.span())?;
        let columns = match (bare.as_str(), arguments.len()) {
            ("unnest" | "generate_series" | "generate_subscripts" | "_pg_expandarray", 1 | 2) => {
                vec![(bare.as_str(), self.rows_of(&bare, arguments, name.span())?)]
            }
            ("pg_get_keywords", 0) => {
                let column = |place: usize| {
                    let words = KEYWORDS.lines().map(|line| line.split(' ').nth(place).map(str::to_owned));
                    Typed(Expr::Constant(Value::text_of(array::text(words)), Type::Text), PgType::TEXT)
                };
                vec![("word", column(0)), ("catcode", column(1))]
            }
            // A function without a case above returns one row.
            _ => {
                let Typed(node, ty) = match (SessionValue::named(&bare), bare.as_str()) {
                    (Some(value), _) if arguments.is_empty() => self.parameter_of(value.number(), value.ty()),
                    (_, "version") if arguments.is_empty() => {
                        Typed(Expr::Constant(Value::text_of(crate::version()), Type::Text), PgType::TEXT)
                    }
                    _ => self.call(&bare, arguments, name.span())?,
                };
                let row = self.leaf(LeafNode::Array(vec![node]), array_of(ty));
                vec![(bare.as_str(), Typed(row.0, ty))]
            }
        };
        let numbers = match (with_ordinality, columns.len()) {
            (false, _) => None,
            (true, 1) => {
                let again = self.arguments(args, name.span())?;
                let array = self.rows_of(&bare, again, name.span())?.0;
                Some(self.numbers(array))
            }
            (true, _) => return Err(SqlError::unsupported(format!("WITH ORDINALITY of {bare}"))),
        };
        self.elements(&bare, columns, numbers, alias)
    }

    /// Makes the rows of a function a FROM item: its columns, and the row numbers if ORDINALITY is given. A
    /// single column takes the table's name.
    fn elements(
        &mut self,
        name: &str,
        columns: Vec<(&str, Typed)>,
        numbers: Option<Typed>,
        alias: Option<&ast::TableAlias>,
    ) -> Result<From> {
        renamed(alias, columns.len() + usize::from(numbers.is_some()))?;
        let table = alias.map_or_else(|| name.to_owned(), |alias| scope::fold(&alias.name));
        let alone = columns.len() == 1;
        let mut arrays = Vec::with_capacity(columns.len());
        let numbers = numbers.map(|numbers| ("ordinality", numbers));
        for (index, (name, Typed(node, ty))) in columns.into_iter().chain(numbers).enumerate() {
            let renamed =
                alias.and_then(|alias| alias.columns.get(index)).map(|column| scope::fold(&column.name));
            let name =
                renamed.unwrap_or_else(|| if alone && index == 0 { table.clone() } else { name.to_owned() });
            self.reach([Column::new(&table, name, ty)]);
            arrays.push(node);
        }
        Ok(From::Elements(arrays))
    }

    /// Returns the array whose elements become a function's rows, with the elements' type.
    pub(super) fn rows_of(&mut self, name: &str, mut arguments: Vec<Typed>, span: Span) -> Result<Typed> {
        let types: Vec<PgType> = arguments.iter().map(|Typed(_, ty)| *ty).collect();
        if name == "generate_series" {
            let ty = series(&types, span)?;
            let mut bounds = Vec::with_capacity(arguments.len());
            for bound in arguments {
                bounds.push(self.coerced(bound, ty)?.0);
            }
            let array = self.leaf(LeafNode::Call(functions::Builtin::GenerateSeries, bounds), array_of(ty));
            return Ok(Typed(array.0, ty));
        }
        match types.as_slice() {
            [array] if name == "unnest" && array.info().category == 'A' => {
                Ok(Typed(arguments.remove(0).0, element_of(*array)))
            }
            _ => match functions::find(name, &types) {
                Some((builtin, ty)) => {
                    let arguments = arguments.into_iter().map(|Typed(node, _)| node).collect();
                    Ok(Typed(self.leaf(LeafNode::Call(builtin, arguments), array_of(ty)).0, ty))
                }
                None => Err(no_function(name, &types, span)),
            },
        }
    }

    /// Returns the numbers of an array's elements, from 1.
    fn numbers(&mut self, array: Expr) -> Typed {
        let node = LeafNode::Call(functions::Builtin::Subscripts(1), vec![array]);
        Typed(self.leaf(node, array_of(PgType::INT8)).0, PgType::INT8)
    }
}

/// Returns the type of an array with elements of this type. Records have no array type. Clients never see an
/// array of records, so any array type serves for it.
fn array_of(ty: PgType) -> PgType {
    ty.array().unwrap_or(PgType::TextArray)
}

/// Returns the column names from an alias, which may name fewer than `columns`.
fn renamed(alias: Option<&ast::TableAlias>, columns: usize) -> Result<Vec<String>> {
    let Some(alias) = alias else { return Ok(Vec::new()) };
    clauses::check_renamed(alias, columns)?;
    Ok(alias.columns.iter().map(|column| scope::fold(&column.name)).collect())
}

/// PostgreSQL 15's keywords and their categories.
const KEYWORDS: &str = include_str!("keywords.txt");

/// Returns the type of a series with these bounds: `bigint` if a bound is a `bigint`, otherwise `integer`.
fn series(bounds: &[PgType], span: Span) -> Result<PgType> {
    let wide = bounds.contains(&PgType::INT8);
    let narrow = bounds.contains(&PgType::INT4);
    let whole =
        |ty: &PgType| matches!(ty, PgType::Plain(Type::Int2 | Type::Int4 | Type::Int8) | PgType::Unknown);
    let shown = || bounds.iter().map(|ty| ty.display()).collect::<Vec<&str>>().join(", ");
    match bounds.iter().all(whole) && bounds.len() == 2 {
        true if wide => Ok(PgType::INT8),
        true if narrow => Ok(PgType::INT4),
        true => Err(SqlError::new(
            code::AMBIGUOUS_FUNCTION,
            format!("function generate_series({}) is not unique", shown()),
        )
        .hint("Could not choose a best candidate function. You might need to add explicit type casts.")
        .at(span)),
        false => Err(SqlError::unsupported(format!("generate_series({})", shown())).at(span)),
    }
}
