//! Names in reach of an expression.

use quorate_table::{
    expr::Expr,
    schema::{Column, Schema},
};
use sqlparser::ast::{Ident, ObjectName, Spanned};

use crate::error::{Result, SqlError, code};

/// A name as SQL stores it: lower case unless it was quoted.
pub fn fold(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// The parts of a possibly qualified name.
pub fn parts(name: &ObjectName) -> Result<Vec<String>> {
    name.0
        .iter()
        .map(|part| {
            part.as_ident().map(fold).ok_or_else(|| SqlError::unsupported(format!("the name {name}")))
        })
        .collect()
}

/// The name of a table in the one schema that users have.
pub fn table_name(name: &ObjectName) -> Result<String> {
    let parts = parts(name)?;
    match parts.as_slice() {
        [table] => Ok(table.clone()),
        [schema, table] if schema == "public" => Ok(table.clone()),
        [schema, _] => {
            Err(SqlError::new(code::INVALID_SCHEMA_NAME, format!("schema \"{schema}\" does not exist"))
                .at(name.span()))
        }
        _ => Err(SqlError::unsupported(format!("the name {name}")).at(name.span())),
    }
}

/// The columns in reach: those of one table, or of a sub-select over it, under the name that the statement gives it.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    /// The table's definition; `None` where there is no table, so no name is in reach.
    pub schema: Option<&'a Schema>,
    /// Its alias, or its name.
    pub alias: String,
    /// What a sub-select shows of the table, by name; `None` is all its columns.
    view: Option<Vec<(String, Expr)>>,
    /// Whether the row that was to be added is in reach as well, as `excluded`, behind the table's.
    excluded: bool,
}

impl<'a> Scope<'a> {
    /// No columns at all.
    pub const fn empty() -> Self {
        Scope { schema: None, alias: String::new(), view: None, excluded: false }
    }

    /// The columns of a table.
    pub fn of(schema: &'a Schema, alias: Option<String>) -> Self {
        let alias = alias.unwrap_or_else(|| schema.name.clone());
        Scope { schema: Some(schema), alias, view: None, excluded: false }
    }

    /// The columns of a table, and those of a row that was to be added to it.
    pub fn of_conflict(schema: &'a Schema, alias: Option<String>) -> Self {
        Scope { excluded: true, ..Scope::of(schema, alias) }
    }

    /// What a sub-select shows of a table.
    pub fn view(schema: &'a Schema, alias: String, columns: Vec<(String, Expr)>) -> Self {
        Scope { schema: Some(schema), alias, view: Some(columns), excluded: false }
    }

    /// All columns, as `*` means them.
    pub fn columns(&self) -> Vec<(String, Expr)> {
        match (&self.view, self.schema) {
            (Some(columns), _) => columns.clone(),
            (None, Some(schema)) => {
                let column =
                    |(index, column): (usize, &Column)| (column.name.clone(), Expr::Column(index, column.ty));
                schema.columns.iter().enumerate().map(column).collect()
            }
            (None, None) => Vec::new(),
        }
    }

    /// The name of a column of the table, as the statement sees it.
    pub fn name_of(&self, index: usize) -> &str {
        let shown =
            self.view.iter().flatten().find(|(_, expr)| matches!(expr, Expr::Column(i, _) if *i == index));
        match shown {
            Some((name, _)) => name,
            None => self.schema.map_or("", |schema| &schema.columns[index].name),
        }
    }

    fn find(&self, name: &str) -> Result<Option<Expr>> {
        let Some(view) = &self.view else {
            let columns = self.schema.map_or(&[][..], |schema| &schema.columns);
            let index = columns.iter().position(|column| column.name == name);
            return Ok(index.map(|index| Expr::Column(index, columns[index].ty)));
        };
        let mut found = view.iter().filter(|(column, _)| column == name);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(ambiguous(name)),
            (first, _) => Ok(first.map(|(_, expr)| expr.clone())),
        }
    }

    /// Finds a column, by name or by alias and name.
    pub fn column(&self, name: &[Ident]) -> Result<Expr> {
        let span = name.last().map(|ident| ident.span).unwrap_or_else(sqlparser::tokenizer::Span::empty);
        let first = name.first().map_or(span, |ident| ident.span);
        let folded: Vec<String> = name.iter().map(fold).collect();
        let (qualifier, column) = match folded.as_slice() {
            [column] => (None, column),
            [table, column] => (Some(table), column),
            [schema, table, column] if schema == "public" => (Some(table), column),
            _ => return Err(SqlError::unsupported(format!("the name {}", folded.join("."))).at(first)),
        };
        let of_excluded = self.excluded && qualifier.is_some_and(|qualifier| qualifier == "excluded");
        if let Some(qualifier) = qualifier
            && !of_excluded
            && (self.schema.is_none() || *qualifier != self.alias)
        {
            return Err(SqlError::new(
                code::UNDEFINED_TABLE,
                format!("missing FROM-clause entry for table \"{qualifier}\""),
            )
            .at(first));
        }
        let found = match self.find(column).map_err(|error| error.at(first))? {
            Some(_) if self.excluded && qualifier.is_none() => return Err(ambiguous(column).at(first)),
            Some(Expr::Column(index, ty)) if of_excluded => {
                let width = self.schema.map_or(0, |schema| schema.columns.len());
                Some(Expr::Column(width + index, ty))
            }
            found => found,
        };
        found.ok_or_else(|| {
            let shown = match qualifier {
                Some(qualifier) => format!("column {qualifier}.{column} does not exist"),
                None => format!("column \"{column}\" does not exist"),
            };
            SqlError::new(code::UNDEFINED_COLUMN, shown).at(first)
        })
    }
}

fn ambiguous(column: &str) -> SqlError {
    SqlError::new(code::AMBIGUOUS_COLUMN, format!("column reference \"{column}\" is ambiguous"))
}
