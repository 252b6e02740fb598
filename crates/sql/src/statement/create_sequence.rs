//! Binds CREATE SEQUENCE and DROP SEQUENCE.

use quorate_table::value::Type;
use sqlparser::ast::{self, Spanned};

use super::{ddl::DropTable, scope, sequence_options::set_options};
use crate::{
    backend::Catalog,
    catalog,
    error::{Result, SqlError, code},
    index::is_index,
    sequence::{SequenceDefinition, SequenceOwner, is_sequence},
    types::{self, PgType},
};

/// A bound CREATE SEQUENCE.
#[derive(Debug)]
pub struct CreateSequence {
    /// The definition of the sequence to create.
    pub definition: SequenceDefinition,
    /// Whether the statement says IF NOT EXISTS.
    pub if_not_exists: bool,
}

/// Binds a CREATE SEQUENCE.
pub fn bind(statement: &ast::Statement, catalog: &Catalog) -> Result<CreateSequence> {
    let ast::Statement::CreateSequence {
        temporary,
        if_not_exists,
        name,
        data_type,
        sequence_options,
        owned_by,
    } = statement
    else {
        unreachable!("only CREATE SEQUENCE is bound here")
    };
    let span = name.span();
    if *temporary {
        return Err(SqlError::unsupported("a temporary sequence").at(span));
    }
    let bare = scope::table_name(name)?;
    if catalog::is_relation(&bare) {
        let message = format!("the name \"{bare}\" belongs to a relation of the system catalog");
        return Err(SqlError::new("42939", message).at(span));
    }
    let ty = match data_type.as_ref().map(types::named).transpose()? {
        None => Type::Int8,
        Some(PgType::Plain(ty)) if ty.is_integer() => ty,
        Some(_) => return Err(invalid("sequence type must be smallint, integer, or bigint").at(span)),
    };
    let mut definition = SequenceDefinition::new(bare, ty);
    set_options(&mut definition, sequence_options).map_err(|error| error.at(span))?;
    definition.owner = owned_by.as_ref().map(|column| owner(column, catalog)).transpose()?.flatten();
    Ok(CreateSequence { definition, if_not_exists: *if_not_exists })
}

/// Binds OWNED BY.
fn owner(column: &ast::ObjectName, catalog: &Catalog) -> Result<Option<SequenceOwner>> {
    let mut parts = scope::parts(column)?;
    if parts == ["none"] {
        return Ok(None);
    }
    let name = parts.pop().unwrap_or_default();
    let Some(table) = parts.pop() else {
        return Err(SqlError::new(code::SYNTAX_ERROR, "invalid OWNED BY option")
            .hint("Specify OWNED BY table.column or OWNED BY NONE.")
            .at(column.span()));
    };
    let known = catalog
        .table(&table)
        .filter(|table| !is_sequence(&table.schema) && !is_index(&table.schema))
        .ok_or_else(|| {
            SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{table}\" does not exist"))
                .at(column.span())
        })?;
    if !known.schema.columns.iter().any(|column| column.name == name) {
        let message = format!("column \"{name}\" of relation \"{table}\" does not exist");
        return Err(SqlError::new(code::UNDEFINED_COLUMN, message).at(column.span()));
    }
    Ok(Some(SequenceOwner { table, column: name }))
}

fn invalid(message: impl std::fmt::Display) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER_VALUE, message)
}

/// Binds a DROP SEQUENCE.
pub fn drop_sequence(statement: &ast::Statement) -> Result<DropTable> {
    let ast::Statement::Drop { if_exists, names, cascade, .. } = statement else {
        unreachable!("only DROP is bound here")
    };
    if *cascade {
        return Err(SqlError::unsupported("DROP SEQUENCE … CASCADE")
            .hint("Drop the tables whose columns take numbers from the sequence first.")
            .at(statement.span()));
    }
    let names = names.iter().map(scope::table_name).collect::<Result<_>>()?;
    Ok(DropTable { names, if_exists: *if_exists, cascades: false })
}
