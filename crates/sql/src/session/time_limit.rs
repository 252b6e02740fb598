//! Limits of time: of a statement, of a block, and of a block that waits for its client.

use std::time::Duration;

use super::{Session, block::TransactionBlock, now};
use crate::error::{SqlError, code};

/// A limit of time that applies from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    /// The time that is left.
    pub left: Duration,
    /// The setting that the limit comes from.
    pub kind: TimeLimitKind,
}

/// The settings that limit time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimitKind {
    /// `statement_timeout`.
    Statement,
    /// `transaction_timeout`.
    Transaction,
    /// `idle_in_transaction_session_timeout`.
    IdleInTransaction,
}

impl TimeLimitKind {
    /// Returns the error after the limit.
    pub fn error(self) -> SqlError {
        match self {
            TimeLimitKind::Statement => {
                SqlError::new(code::QUERY_CANCELED, "canceling statement due to statement timeout")
            }
            TimeLimitKind::Transaction => {
                SqlError::new(code::TRANSACTION_TIMEOUT, "terminating connection due to transaction timeout")
            }
            TimeLimitKind::IdleInTransaction => SqlError::new(
                code::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                "terminating connection due to idle-in-transaction timeout",
            ),
        }
    }
}

impl Session {
    /// Returns the limit of a statement that begins now. `ends_block` says that the statement is a COMMIT,
    /// which a timeout of its block does not interrupt, because its outcome would be unknown.
    pub fn time_limit(&self, ends_block: bool) -> Option<TimeLimit> {
        let statement = self.settings.timeouts.statement;
        let statement = statement.map(|left| TimeLimit { left, kind: TimeLimitKind::Statement });
        let transaction = if ends_block { None } else { self.transaction_left() };
        first(statement, transaction)
    }

    /// Returns the limit of the wait for the client's next message. `is_idle` says that the client has all
    /// answers.
    pub fn patience(&self, is_idle: bool) -> Option<TimeLimit> {
        if let TransactionBlock::None = self.block {
            return None;
        }
        let idle = self.settings.timeouts.idle_in_transaction.filter(|_| is_idle);
        let idle = idle.map(|left| TimeLimit { left, kind: TimeLimitKind::IdleInTransaction });
        first(idle, self.transaction_left())
    }

    fn transaction_left(&self) -> Option<TimeLimit> {
        let (TransactionBlock::Open(open) | TransactionBlock::Failed(open)) = &self.block else {
            return None;
        };
        let limit = self.settings.timeouts.transaction?;
        let elapsed = Duration::from_micros(u64::try_from(now() - open.began).unwrap_or(0));
        Some(TimeLimit { left: limit.saturating_sub(elapsed), kind: TimeLimitKind::Transaction })
    }
}

fn first(one: Option<TimeLimit>, other: Option<TimeLimit>) -> Option<TimeLimit> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other.left < one.left { other } else { one }),
        (one, other) => one.or(other),
    }
}
