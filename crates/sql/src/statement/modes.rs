//! The modes of `BEGIN` and `SET TRANSACTION`.

use sqlparser::ast;

use crate::error::{Result, SqlError};

/// The modes of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// READ ONLY or READ WRITE, if given.
    pub read_only: Option<bool>,
    /// The isolation level, if given.
    pub isolation: Option<Isolation>,
}

/// An isolation level: it decides which results of a block still have to be true when the block commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The same as READ COMMITTED, as in PostgreSQL.
    ReadUncommitted,
    /// The results of writes, and results about rows that the block wrote or locked.
    #[default]
    ReadCommitted,
    /// All results, as under SERIALIZABLE, which is more than PostgreSQL promises.
    RepeatableRead,
    /// All results of the block.
    Serializable,
}

impl Isolation {
    /// The names of all levels, as settings spell them.
    pub const NAMES: &'static [&'static str] =
        &["serializable", "repeatable read", "read committed", "read uncommitted"];

    /// Returns the level of this name in lower case.
    pub fn named(name: &str) -> Option<Isolation> {
        Some(match name {
            "read uncommitted" => Isolation::ReadUncommitted,
            "read committed" => Isolation::ReadCommitted,
            "repeatable read" => Isolation::RepeatableRead,
            "serializable" => Isolation::Serializable,
            _ => return None,
        })
    }

    /// Returns the name of the level, as settings spell it.
    pub fn name(self) -> &'static str {
        match self {
            Isolation::ReadUncommitted => "read uncommitted",
            Isolation::ReadCommitted => "read committed",
            Isolation::RepeatableRead => "repeatable read",
            Isolation::Serializable => "serializable",
        }
    }

    /// Whether all results of the block still have to be true when it commits.
    pub fn is_strict(self) -> bool {
        matches!(self, Isolation::RepeatableRead | Isolation::Serializable)
    }
}

/// Binds the modes of `BEGIN` and `SET TRANSACTION`.
pub fn modes_of(modes: &[ast::TransactionMode]) -> Result<Modes> {
    use ast::TransactionIsolationLevel as Level;
    let mut bound = Modes::default();
    for mode in modes {
        match mode {
            ast::TransactionMode::AccessMode(access) => {
                bound.read_only = Some(*access == ast::TransactionAccessMode::ReadOnly);
            }
            ast::TransactionMode::IsolationLevel(level) => {
                bound.isolation = Some(match level {
                    Level::ReadUncommitted => Isolation::ReadUncommitted,
                    Level::ReadCommitted => Isolation::ReadCommitted,
                    Level::RepeatableRead => Isolation::RepeatableRead,
                    Level::Serializable => Isolation::Serializable,
                    Level::Snapshot => {
                        return Err(SqlError::unsupported("isolation level SNAPSHOT")
                            .hint("Write REPEATABLE READ or SERIALIZABLE."));
                    }
                });
            }
        }
    }
    Ok(bound)
}
