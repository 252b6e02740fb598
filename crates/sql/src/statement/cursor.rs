//! Binds DECLARE, FETCH and CLOSE.

use std::sync::Arc;

use sqlparser::ast;

use super::{Statement, parameters::Parameters, scope, select};
use crate::{
    backend::Catalog,
    error::{Result, SqlError, code},
};

pub use super::bound::Declare;

/// Binds a DECLARE.
pub fn declare(
    declared: &[ast::Declare],
    parameters: &mut Parameters,
    catalog: &Arc<Catalog>,
) -> Result<Statement> {
    let [ast::Declare { names, binary, scroll, hold, for_query: Some(query), .. }] = declared else {
        return Err(SqlError::unsupported("DECLARE of anything but a cursor"));
    };
    let [name] = names.as_slice() else {
        return Err(SqlError::unsupported("DECLARE of several cursors"));
    };
    for (present, what) in [
        (*binary == Some(true), "a BINARY cursor"),
        (*scroll == Some(true), "a SCROLL cursor"),
        (*hold == Some(true), "a cursor WITH HOLD"),
    ] {
        if present {
            return Err(SqlError::unsupported(what).at(name.span));
        }
    }
    let query = select::bind(query, parameters, catalog)?;
    Ok(Statement::Declare(Box::new(Declare { name: scope::fold(name), query })))
}

/// Binds a FETCH.
pub fn fetch(name: &ast::Ident, direction: &ast::FetchDirection) -> Result<Statement> {
    use ast::FetchDirection::{All, Count, Forward, ForwardAll, Next};
    let count = match direction {
        Next | Forward { limit: None } => Some(1),
        All | ForwardAll => None,
        Count { limit } | Forward { limit: Some(limit) } => {
            let ast::Value::Number(digits, _) = &limit.value else {
                return Err(SqlError::new(code::SYNTAX_ERROR, "FETCH needs a number of rows").at(limit.span));
            };
            match digits.parse::<i64>() {
                Ok(count @ 1..) => Some(count as u64),
                Ok(_) => return Err(forward_only()),
                Err(_) => {
                    return Err(
                        SqlError::new(code::SYNTAX_ERROR, "FETCH needs a number of rows").at(limit.span)
                    );
                }
            }
        }
        _ => return Err(forward_only()),
    };
    Ok(Statement::Fetch { name: scope::fold(name), count })
}

fn forward_only() -> SqlError {
    SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, "cursor can only scan forward")
}
