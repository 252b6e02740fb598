//! The names that an expression can use.

use std::sync::Arc;

use quorate_table::{
    expr::Expr,
    schema::{Column, Schema},
};
use sqlparser::ast::{Ident, ObjectName, Spanned};

use crate::{
    backend::{Catalog, Table},
    catalog,
    error::{Result, SqlError, code},
    index::is_index,
    sequence::is_sequence,
};

/// Returns a name as SQL stores names: in lower case unless the name was quoted.
pub fn fold(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// Returns the parts of a name that may be qualified.
pub fn parts(name: &ObjectName) -> Result<Vec<String>> {
    name.0
        .iter()
        .map(|part| {
            part.as_ident().map(fold).ok_or_else(|| SqlError::unsupported(format!("the name {name}")))
        })
        .collect()
}

/// Returns the name of a column that is assigned a value. Refuses a qualified name.
pub fn column_name(name: &ObjectName) -> Result<String> {
    let mut parts = parts(name)?;
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => Err(SqlError::unsupported(format!("an assignment to a part of column \"{}\"", parts[0]))
            .hint("Write the name of the column alone.")
            .at(name.span())),
    }
}

/// Returns the name of a table. Refuses a schema other than `public`.
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

/// Returns the user's table of this name.
pub fn table(catalog: &Catalog, name: &ObjectName) -> Result<Arc<Table>> {
    let bare = table_name(name)?;
    if let Some(table) = catalog.table(&bare) {
        if is_index(&table.schema) {
            return Err(SqlError::new("42809", format!("cannot open relation \"{bare}\""))
                .detail("This operation is not supported for indexes.")
                .at(name.span()));
        }
        return Ok(table.clone());
    }
    if catalog::is_relation(&bare) {
        return Err(SqlError::new(
            "42809",
            format!("\"{bare}\" is part of the system catalog and cannot be changed"),
        )
        .at(name.span()));
    }
    Err(SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{bare}\" does not exist")).at(name.span()))
}

/// Returns the user's table of this name, which a statement changes. Refuses a sequence.
pub fn changed_table(catalog: &Catalog, name: &ObjectName) -> Result<Arc<Table>> {
    let table = table(catalog, name)?;
    if !is_sequence(&table.schema) {
        return Ok(table);
    }
    Err(SqlError::new("42809", format!("cannot change sequence \"{}\"", table.schema.name))
        .hint("setval sets the sequence.")
        .at(name.span()))
}

/// The columns that an expression can name: the columns of one table, or of a sub-select over the table,
/// under the statement's alias.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    /// The table's definition. `None` if there is no table, so that no column can be named.
    pub schema: Option<&'a Schema>,
    /// The table's alias, or its name.
    pub alias: String,
    /// The columns of the sub-select by name. `None` means all columns of the table.
    view: Option<Vec<(String, Expr)>>,
    /// Whether the row to be inserted can be named as `excluded`. The row's columns follow those of the
    /// table.
    excluded: bool,
}

impl<'a> Scope<'a> {
    /// Creates a scope without columns.
    pub const fn empty() -> Self {
        Scope { schema: None, alias: String::new(), view: None, excluded: false }
    }

    /// Creates a scope with the columns of a table.
    pub fn of(schema: &'a Schema, alias: Option<String>) -> Self {
        let alias = alias.unwrap_or_else(|| schema.name.clone());
        Scope { schema: Some(schema), alias, view: None, excluded: false }
    }

    /// Creates a scope with the columns of a table and the columns of a row to be inserted.
    pub fn of_conflict(schema: &'a Schema, alias: Option<String>) -> Self {
        Scope { excluded: true, ..Scope::of(schema, alias) }
    }

    /// Creates a scope with the columns of a sub-select over a table.
    pub fn view(schema: &'a Schema, alias: String, columns: Vec<(String, Expr)>) -> Self {
        Scope { schema: Some(schema), alias, view: Some(columns), excluded: false }
    }

    /// Returns the columns that `*` stands for.
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

    /// Returns the name of a column of the table in this scope.
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

    /// Finds a column by its name, qualified or not.
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
