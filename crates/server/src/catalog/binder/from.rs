//! FROM: relations, joins, derived tables and functions that make rows.

use sqlparser::{
    ast::{self, FunctionArg, Spanned},
    tokenizer::Span,
};

use super::{Binder, Column, Typed, element_of, function::no_function};
use crate::{
    catalog::{
        datum::Datum,
        functions,
        plan::{From, Node, Plan, SetFunction},
        relations,
    },
    error::{Result, SqlError, code},
    sql::scope,
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
}

/// What a function makes rows of: an array, with its elements' type.
pub(super) fn rows_of(name: &str, arguments: Vec<Typed>, span: Span) -> Result<Typed> {
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
