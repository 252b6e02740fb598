//! Names in reach of an expression.

use quorate_table::{schema::Schema, value::Type};
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

/// The columns of one table, under the name that the statement gives it.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    /// The table's definition; `None` where there is no table, so no name is in reach.
    pub schema: Option<&'a Schema>,
    /// Its alias, or its name.
    pub alias: String,
}

impl<'a> Scope<'a> {
    /// No columns at all.
    pub const fn empty() -> Self {
        Scope { schema: None, alias: String::new() }
    }

    /// The columns of a table.
    pub fn of(schema: &'a Schema, alias: Option<String>) -> Self {
        Scope { schema: Some(schema), alias: alias.unwrap_or_else(|| schema.name.clone()) }
    }

    /// Finds a column, by name or by alias and name.
    pub fn column(&self, name: &[Ident]) -> Result<(usize, Type)> {
        let span = name.last().map(|ident| ident.span).unwrap_or_else(sqlparser::tokenizer::Span::empty);
        let first = name.first().map_or(span, |ident| ident.span);
        let folded: Vec<String> = name.iter().map(fold).collect();
        let (qualifier, column) = match folded.as_slice() {
            [column] => (None, column),
            [table, column] => (Some(table), column),
            [schema, table, column] if schema == "public" => (Some(table), column),
            _ => return Err(SqlError::unsupported(format!("the name {}", folded.join("."))).at(first)),
        };
        if let Some(qualifier) = qualifier
            && (self.schema.is_none() || *qualifier != self.alias)
        {
            return Err(SqlError::new(
                code::UNDEFINED_TABLE,
                format!("missing FROM-clause entry for table \"{qualifier}\""),
            )
            .at(first));
        }
        let position = self.schema.and_then(|s| s.columns.iter().position(|c| c.name == *column));
        match (position, self.schema) {
            (Some(index), Some(schema)) => Ok((index, schema.columns[index].ty)),
            _ => {
                let shown = match qualifier {
                    Some(qualifier) => format!("column {qualifier}.{column} does not exist"),
                    None => format!("column \"{column}\" does not exist"),
                };
                Err(SqlError::new(code::UNDEFINED_COLUMN, shown).at(first))
            }
        }
    }
}
