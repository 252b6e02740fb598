//! Transaction blocks.
//!
//! A write is applied in the total order when it is executed. Nothing is held back until COMMIT. So a block
//! may contain reads and one write. A second write is refused, and so is a ROLLBACK after an applied write.
//! Each of these errors says which write stands. A ROLLBACK after the refusal of a second write succeeds:
//! drivers send it automatically, and would show its error instead of the refusal. These rules are enough for
//! drivers that wrap all statements in blocks. A statement that fails changes nothing and fails its block, as
//! in PostgreSQL.
//!
//! A savepoint keeps the settings and the record of the writes so far. ROLLBACK TO a savepoint makes a failed
//! block usable again, unless a write was applied after the savepoint.

use std::collections::BTreeMap;

use super::{
    Session, StatementOutcome,
    block::{OpenBlock, Savepoint, TransactionBlock},
    setting::Settings,
};
use crate::{
    cache::Prepared,
    error::{Result, SqlError, code},
    statement::{Modes, Statement},
};

impl Session {
    pub(super) fn check_block(&self, prepared: &Prepared) -> Result<()> {
        let ends = matches!(
            prepared.bound.as_ref().map(|bound| &bound.statement),
            None | Some(Statement::Commit | Statement::Rollback | Statement::RollbackTo(_))
        );
        if matches!(self.block, TransactionBlock::Failed(_)) && !ends {
            return Err(SqlError::new(
                code::IN_FAILED_SQL_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        Ok(())
    }

    pub(super) fn check_write(&mut self, verb: &str) -> Result<()> {
        let read_only = || {
            SqlError::new(
                code::READ_ONLY_SQL_TRANSACTION,
                format!("cannot execute {verb} in a read-only transaction"),
            )
        };
        let TransactionBlock::Open(open) = &mut self.block else {
            if self.setting("default_transaction_read_only") == "on" {
                return Err(read_only());
            }
            return Ok(());
        };
        if open.read_only {
            return Err(read_only());
        }
        match &open.written {
            None => Ok(()),
            Some(written) => {
                open.client_knows_write_stands = true;
                Err(SqlError::unsupported("a second write in one transaction block")
                    .detail(format!("{written} and cannot be rolled back; the second write changed nothing."))
                    .hint("Commit after each write (autocommit), or write all rows with one statement."))
            }
        }
    }

    /// Records in the block that a write was applied.
    pub(super) fn wrote(&mut self, what: &str) {
        self.in_flight = None;
        if let TransactionBlock::Open(open) = &mut self.block {
            open.written = Some(format!("{what} was applied"));
        }
    }

    pub(super) fn begin(&mut self, modes: Modes) -> StatementOutcome {
        if let TransactionBlock::None = self.block {
            let read_only =
                modes.read_only.unwrap_or_else(|| self.setting("default_transaction_read_only") == "on");
            self.block = TransactionBlock::Open(OpenBlock {
                read_only,
                written: None,
                client_knows_write_stands: false,
                saved: self.settings.clone(),
                local: BTreeMap::new(),
                began: self.statement_began,
                savepoints: Vec::new(),
            });
        } else {
            self.notices.push(SqlError::new(
                code::ACTIVE_SQL_TRANSACTION,
                "there is already a transaction in progress",
            ));
        }
        StatementOutcome::Done("BEGIN".to_owned())
    }

    pub(super) fn set_transaction(&mut self, modes: Modes, session: bool) -> StatementOutcome {
        if session {
            if let Some(read_only) = modes.read_only {
                let value = if read_only { "on" } else { "off" };
                self.settings.insert("default_transaction_read_only".to_owned(), value.to_owned());
            }
        } else if let TransactionBlock::Open(open) = &mut self.block {
            open.read_only = modes.read_only.unwrap_or(open.read_only);
        } else {
            self.notices.push(SqlError::new(
                code::NO_ACTIVE_SQL_TRANSACTION,
                "SET TRANSACTION can only be used in transaction blocks",
            ));
        }
        StatementOutcome::Done("SET".to_owned())
    }

    pub(super) fn commit(&mut self) -> Result<StatementOutcome> {
        self.cursors.clear();
        match std::mem::replace(&mut self.block, TransactionBlock::None) {
            TransactionBlock::None => self.no_block(),
            TransactionBlock::Open(open) => self.end_local(open.local),
            TransactionBlock::Failed(open) => return self.roll_back(open),
        }
        Ok(StatementOutcome::Done("COMMIT".to_owned()))
    }

    pub(super) fn rollback(&mut self) -> Result<StatementOutcome> {
        self.cursors.clear();
        match std::mem::replace(&mut self.block, TransactionBlock::None) {
            TransactionBlock::None => {
                self.no_block();
                Ok(StatementOutcome::Done("ROLLBACK".to_owned()))
            }
            TransactionBlock::Open(open) | TransactionBlock::Failed(open) => self.roll_back(open),
        }
    }

    pub(super) fn savepoint(&mut self, name: &str) -> Result<StatementOutcome> {
        let TransactionBlock::Open(open) = &mut self.block else { return Err(outside("SAVEPOINT")) };
        open.savepoints.push(Savepoint {
            name: name.to_owned(),
            cursors: self.cursors.keys().cloned().collect(),
            settings: self.settings.clone(),
            local: open.local.clone(),
            written: open.written.clone(),
        });
        Ok(StatementOutcome::Done("SAVEPOINT".to_owned()))
    }

    pub(super) fn release(&mut self, name: &str) -> Result<StatementOutcome> {
        let TransactionBlock::Open(open) = &mut self.block else { return Err(outside("RELEASE SAVEPOINT")) };
        let place = open.place(name)?;
        open.savepoints.truncate(place);
        Ok(StatementOutcome::Done("RELEASE".to_owned()))
    }

    pub(super) fn rollback_to(&mut self, name: &str) -> Result<StatementOutcome> {
        let (TransactionBlock::Open(open) | TransactionBlock::Failed(open)) = &mut self.block else {
            return Err(outside("ROLLBACK TO SAVEPOINT"));
        };
        let place = open.place(name)?;
        let savepoint = &open.savepoints[place];
        if open.written != savepoint.written && !open.client_knows_write_stands {
            return Err(SqlError::new(
                code::INVALID_TRANSACTION_TERMINATION,
                "the transaction cannot be rolled back to the savepoint: a write takes effect when it is executed",
            )
            .detail(format!("{} and cannot be rolled back.", open.written.as_deref().unwrap_or_default())));
        }
        if open.written != savepoint.written {
            self.notices.push(stands(open.written.as_deref()));
        }
        let settings = savepoint.settings.clone();
        self.cursors.retain(|name, _| savepoint.cursors.contains(name));
        open.local = savepoint.local.clone();
        open.savepoints.truncate(place + 1);
        self.block = match std::mem::replace(&mut self.block, TransactionBlock::None) {
            TransactionBlock::Failed(open) => TransactionBlock::Open(open),
            other => other,
        };
        self.restore(settings);
        Ok(StatementOutcome::Done("ROLLBACK".to_owned()))
    }

    /// Restores settings, and reports the settings that the client follows.
    fn restore(&mut self, saved: Settings) {
        let changed: Vec<String> = self
            .settings
            .names()
            .chain(saved.names())
            .filter(|name| self.settings.get(name) != saved.get(name))
            .cloned()
            .collect();
        self.settings = saved;
        for name in changed {
            self.report(&name);
        }
    }

    fn roll_back(&mut self, open: OpenBlock) -> Result<StatementOutcome> {
        self.restore(open.saved);
        match open.written {
            None => {}
            Some(written) if open.client_knows_write_stands => self.notices.push(stands(Some(&written))),
            Some(written) => {
                return Err(SqlError::new(
                    code::INVALID_TRANSACTION_TERMINATION,
                    "the transaction cannot be rolled back: a write takes effect when it is executed",
                )
                .detail(format!("{written} and cannot be rolled back."))
                .hint("The transaction block has ended. Undo the write with another write."));
            }
        }
        Ok(StatementOutcome::Done("ROLLBACK".to_owned()))
    }

    fn end_local(&mut self, local: BTreeMap<String, Option<String>>) {
        for (name, value) in local {
            match value {
                Some(value) => self.settings.insert(name.clone(), value),
                None => drop(self.settings.remove(&name)),
            };
            self.report(&name);
        }
    }

    fn no_block(&mut self) {
        self.notices
            .push(SqlError::new(code::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress"));
    }
}

/// Returns the warning that a write stands although the client asked to roll it back.
fn stands(written: Option<&str>) -> SqlError {
    SqlError::new(code::WARNING, format!("{} and cannot be rolled back", written.unwrap_or_default()))
        .hint("A write takes effect when it is executed. Undo it with another write.")
}

fn outside(what: &str) -> SqlError {
    SqlError::new(code::NO_ACTIVE_SQL_TRANSACTION, format!("{what} can only be used in transaction blocks"))
}
