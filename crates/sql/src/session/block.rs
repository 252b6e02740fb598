//! Transaction blocks.
//!
//! Writes are applied, in the total order, when they are executed; nothing is held back until COMMIT. So a block may hold
//! reads and one write: a second write is refused, and so is a ROLLBACK behind an applied write, each saying what stands.
//! That is enough for drivers that begin a block around everything. A statement that fails changes nothing and fails its
//! block as in PostgreSQL.
//!
//! A savepoint keeps the settings and what was written so far. Going back to one makes a failed block usable again,
//! unless a write was applied since.

use std::collections::{BTreeMap, BTreeSet};

use super::{Outcome, Session, setting::Settings};
use crate::{
    cache::Prepared,
    error::{Result, SqlError, code},
    statement::{Modes, Statement},
};

/// Where the session stands towards its block.
pub(super) enum Block {
    None,
    Open(Open),
    Failed(Open),
}

pub(super) struct Open {
    pub(super) read_only: bool,
    /// What was applied, in words.
    pub(super) written: Option<String>,
    /// Settings as they were before.
    pub(super) saved: Settings,
    /// Settings that SET LOCAL changed, as they were before.
    pub(super) local: BTreeMap<String, Option<String>>,
    pub(super) began: i64,
    /// Named places to go back to, the last one last.
    savepoints: Vec<Savepoint>,
}

struct Savepoint {
    name: String,
    cursors: BTreeSet<String>,
    settings: Settings,
    local: BTreeMap<String, Option<String>>,
    written: Option<String>,
}

impl Session {
    pub(super) fn check_block(&self, prepared: &Prepared) -> Result<()> {
        let ends = matches!(
            prepared.bound.as_ref().map(|bound| &bound.statement),
            None | Some(Statement::Commit | Statement::Rollback | Statement::RollbackTo(_))
        );
        if matches!(self.block, Block::Failed(_)) && !ends {
            return Err(SqlError::new(
                code::IN_FAILED_SQL_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        Ok(())
    }

    pub(super) fn check_write(&self, verb: &str) -> Result<()> {
        let read_only = || {
            SqlError::new(
                code::READ_ONLY_SQL_TRANSACTION,
                format!("cannot execute {verb} in a read-only transaction"),
            )
        };
        let Block::Open(open) = &self.block else {
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
            Some(written) => Err(SqlError::unsupported("a second write in one transaction block")
                .detail(format!("{written} and stands."))
                .hint("Commit after each write, or put the rows into one statement.")),
        }
    }

    /// Notes in the block what was applied.
    pub(super) fn wrote(&mut self, what: &str) {
        self.in_flight = None;
        if let Block::Open(open) = &mut self.block {
            open.written = Some(format!("{what} was applied"));
        }
    }

    pub(super) fn begin(&mut self, modes: Modes) -> Outcome {
        if let Block::None = self.block {
            let read_only =
                modes.read_only.unwrap_or_else(|| self.setting("default_transaction_read_only") == "on");
            self.block = Block::Open(Open {
                read_only,
                written: None,
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
        Outcome::Done("BEGIN".to_owned())
    }

    pub(super) fn set_transaction(&mut self, modes: Modes, session: bool) -> Outcome {
        if session {
            if let Some(read_only) = modes.read_only {
                let value = if read_only { "on" } else { "off" };
                self.settings.insert("default_transaction_read_only".to_owned(), value.to_owned());
            }
        } else if let Block::Open(open) = &mut self.block {
            open.read_only = modes.read_only.unwrap_or(open.read_only);
        } else {
            self.notices.push(SqlError::new(
                code::NO_ACTIVE_SQL_TRANSACTION,
                "SET TRANSACTION can only be used in transaction blocks",
            ));
        }
        Outcome::Done("SET".to_owned())
    }

    pub(super) fn commit(&mut self) -> Result<Outcome> {
        self.cursors.clear();
        match std::mem::replace(&mut self.block, Block::None) {
            Block::None => {
                self.no_block();
                Ok(Outcome::Done("COMMIT".to_owned()))
            }
            Block::Open(open) => {
                self.end_local(open.local);
                Ok(Outcome::Done("COMMIT".to_owned()))
            }
            Block::Failed(open) => self.roll_back(open),
        }
    }

    pub(super) fn rollback(&mut self) -> Result<Outcome> {
        self.cursors.clear();
        match std::mem::replace(&mut self.block, Block::None) {
            Block::None => {
                self.no_block();
                Ok(Outcome::Done("ROLLBACK".to_owned()))
            }
            Block::Open(open) | Block::Failed(open) => self.roll_back(open),
        }
    }

    pub(super) fn savepoint(&mut self, name: &str) -> Result<Outcome> {
        let Block::Open(open) = &mut self.block else { return Err(outside("SAVEPOINT")) };
        open.savepoints.push(Savepoint {
            name: name.to_owned(),
            cursors: self.cursors.keys().cloned().collect(),
            settings: self.settings.clone(),
            local: open.local.clone(),
            written: open.written.clone(),
        });
        Ok(Outcome::Done("SAVEPOINT".to_owned()))
    }

    pub(super) fn release(&mut self, name: &str) -> Result<Outcome> {
        let Block::Open(open) = &mut self.block else { return Err(outside("RELEASE SAVEPOINT")) };
        let place = open.place(name)?;
        open.savepoints.truncate(place);
        Ok(Outcome::Done("RELEASE".to_owned()))
    }

    pub(super) fn rollback_to(&mut self, name: &str) -> Result<Outcome> {
        let (Block::Open(open) | Block::Failed(open)) = &mut self.block else {
            return Err(outside("ROLLBACK TO SAVEPOINT"));
        };
        let place = open.place(name)?;
        let savepoint = &open.savepoints[place];
        if open.written != savepoint.written {
            return Err(SqlError::new(
                code::INVALID_TRANSACTION_TERMINATION,
                "the block cannot go back to the savepoint: a write takes effect when it is executed",
            )
            .detail(format!("{} and stands.", open.written.as_deref().unwrap_or_default())));
        }
        let settings = savepoint.settings.clone();
        self.cursors.retain(|name, _| savepoint.cursors.contains(name));
        open.local = savepoint.local.clone();
        open.savepoints.truncate(place + 1);
        self.block = match std::mem::replace(&mut self.block, Block::None) {
            Block::Failed(open) => Block::Open(open),
            other => other,
        };
        self.restore(settings);
        Ok(Outcome::Done("ROLLBACK".to_owned()))
    }

    /// Puts settings back, and tells the client of those that it is told of.
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

    fn roll_back(&mut self, open: Open) -> Result<Outcome> {
        self.restore(open.saved);
        match open.written {
            None => Ok(Outcome::Done("ROLLBACK".to_owned())),
            Some(written) => Err(SqlError::new(
                code::INVALID_TRANSACTION_TERMINATION,
                "the block cannot be rolled back: a write takes effect when it is executed",
            )
            .detail(format!("{written} and stands."))
            .hint("The block has ended. Undo the write with another one.")),
        }
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

impl Open {
    /// Where the savepoint of this name stands; the last of several.
    fn place(&self, name: &str) -> Result<usize> {
        self.savepoints
            .iter()
            .rposition(|savepoint| savepoint.name == name)
            .ok_or_else(|| SqlError::new("3B001", format!("savepoint \"{name}\" does not exist")))
    }
}

fn outside(what: &str) -> SqlError {
    SqlError::new(code::NO_ACTIVE_SQL_TRANSACTION, format!("{what} can only be used in transaction blocks"))
}
