//! The modes of `BEGIN` and `SET TRANSACTION`.

use sqlparser::ast;

use crate::error::{Result, SqlError};

/// The modes of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// READ ONLY or READ WRITE, if given.
    pub read_only: Option<bool>,
}

/// Binds the modes of `BEGIN` and `SET TRANSACTION`. Each statement of a block sees its own state of the
/// tables, as under READ COMMITTED. Higher isolation levels are refused.
pub fn modes_of(modes: &[ast::TransactionMode]) -> Result<Modes> {
    let mut bound = Modes::default();
    for mode in modes {
        match mode {
            ast::TransactionMode::AccessMode(access) => {
                bound.read_only = Some(*access == ast::TransactionAccessMode::ReadOnly);
            }
            ast::TransactionMode::IsolationLevel(
                ast::TransactionIsolationLevel::ReadCommitted
                | ast::TransactionIsolationLevel::ReadUncommitted,
            ) => {}
            ast::TransactionMode::IsolationLevel(level) => {
                return Err(SqlError::unsupported(format!("isolation level {level}")).hint(
                    "Every statement is atomic; a transaction block of several statements is READ COMMITTED.",
                ));
            }
        }
    }
    Ok(bound)
}
