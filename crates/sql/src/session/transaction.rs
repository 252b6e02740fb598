//! Transaction blocks: their statements take effect together at COMMIT, or not at all.
//!
//! Nothing of an open block is in the cluster. The session keeps the block's statements as a list
//! ([`Steps`]). A write is *tried* when the client sends it: storage processes execute it behind the
//! block's earlier statements, answer, and change nothing (`attempt`). The client receives that result.
//! COMMIT sends the whole list as one ordered write, with the results that the client received. The
//! statements are executed again at the position of that write. If each gives the result that the client
//! received, all of them take effect there. Otherwise none does, the client gets 40001, and it repeats the
//! block. So there are no locks: an idle block costs the cluster nothing, and a client that vanishes leaves
//! nothing behind.
//!
//! ```text
//! begin;                                                  nothing is sent
//! update acct set cents = cents - 50 where id = 1;        tried: UPDATE 1
//! select cents from acct where id = 1;                    tried behind the update: 50
//! commit;                                                 one write: the update changes one row,
//!                                                         and the row then has 50; or 40001
//! ```
//!
//! **Isolation** decides which results have to stay true. READ COMMITTED, the default: the results of writes,
//! and the results of reads as far as they come from rows that the block wrote or locked before (SELECT FOR
//! UPDATE). Other reads are sent alone and leave no step. REPEATABLE READ and SERIALIZABLE: all results,
//! errors and rolled-back parts included. A block that only read sends at COMMIT nothing, or, at the strict
//! levels after two reads or more, one message that compares the results and changes nothing.
//!
//! **Failures.** A statement that fails changes nothing and fails its block, as in PostgreSQL. ROLLBACK drops
//! the list. A savepoint keeps the settings and the length of the list.
//!
//! **Implicit blocks.** Several statements in one message, or before one Sync, are one block, although their
//! client sent no BEGIN. The door opens the block ([`Session::begin_implicit`]) and ends it
//! ([`Session::end_implicit`]). Writes are deferred meanwhile (`settle`). BEGIN turns the block into one that
//! the client has to end.
//!
//! **Definitions.** CREATE TABLE and DROP TABLE take effect at once. So a block holds one of them at most,
//! and no write besides. An implicit block is committed before one. A ROLLBACK after one is an error that
//! says that it stands. A ROLLBACK after the refusal of a further write succeeds: drivers send it
//! automatically, and would show its error instead of the refusal.

use std::collections::{BTreeMap, VecDeque};

use quorate_table::{
    engine::Answer,
    operation::{Operation, Step, TableTransaction},
};

use super::{
    Session, StatementOutcome,
    block::{OpenBlock, Savepoint, TransactionBlock},
    deferred::{DeferredWrite, WriteResult, renumbered, within_any},
    in_flight::InFlight,
    now,
    request::is_definite,
    setting::{REQUEST_ID, Settings},
    steps::Steps,
};
use crate::{
    backend::WriteName,
    cache::Prepared,
    error::{Result, SqlError, code},
    fault,
    statement::{Isolation, Modes, Statement, select::Source},
};

impl Session {
    pub(super) fn check_block(&self, prepared: &Prepared) -> Result<()> {
        let ends = matches!(
            prepared.bound.as_ref().map(|bound| &bound.statement),
            None | Some(Statement::Commit | Statement::Rollback | Statement::RollbackTo(_))
        );
        if matches!(self.block, TransactionBlock::Failed(_)) && !ends { Err(aborted()) } else { Ok(()) }
    }

    /// Returns the error of a statement that cannot be bound. In a failed block, PostgreSQL reads a
    /// statement, but does not look up what it names.
    pub(super) fn unbound(&self, error: SqlError) -> SqlError {
        let is_failed = matches!(self.block, TransactionBlock::Failed(_));
        if is_failed && error.code != code::SYNTAX_ERROR { aborted() } else { error }
    }

    /// Refuses a write or a definition that the session or its block does not allow.
    pub(super) fn check_write(&mut self, verb: &str) -> Result<()> {
        self.check_read_only(verb)?;
        let TransactionBlock::Open(open) = &mut self.block else { return Ok(()) };
        let is_definition = ["CREATE ", "DROP ", "ALTER "].iter().any(|word| verb.starts_with(word));
        match &open.defined {
            Some(_) if is_definition => Ok(()),
            Some(defined) => {
                open.client_knows_definition_stands = true;
                Err(SqlError::unsupported(format!("{verb} after a definition in one transaction block"))
                    .detail(format!("{defined} and cannot be rolled back; this statement changed nothing."))
                    .hint("Commit after CREATE TABLE, ALTER TABLE and DROP TABLE (autocommit)."))
            }
            None if is_definition && open.steps.has_writes() => {
                Err(SqlError::unsupported(format!("{verb} after a write in one transaction block"))
                    .detail("A table is created, altered or dropped at once, and cannot wait for COMMIT.")
                    .hint("Commit before CREATE TABLE, ALTER TABLE and DROP TABLE."))
            }
            None => Ok(()),
        }
    }

    /// Refuses a statement that writes or locks rows if the transaction is read-only.
    pub(super) fn check_read_only(&self, verb: &str) -> Result<()> {
        let is_read_only = match &self.block {
            TransactionBlock::Open(open) => open.read_only,
            _ => self.setting("default_transaction_read_only") == "on",
        };
        if !is_read_only {
            return Ok(());
        }
        let message = format!("cannot execute {verb} in a read-only transaction");
        Err(SqlError::new(code::READ_ONLY_SQL_TRANSACTION, message))
    }

    /// Whether the session is in a block whose statements are tried.
    pub(super) fn is_in_block(&self) -> bool {
        matches!(self.block, TransactionBlock::Open(_))
    }

    /// Whether the session is in a block that has writes for COMMIT to send.
    pub fn has_unsent_writes(&self) -> bool {
        matches!(&self.block, TransactionBlock::Open(open) if open.steps.has_writes())
    }

    /// Records in the block that a definition was applied.
    pub(super) fn has_defined(&mut self, what: &str) {
        self.in_flight = None;
        if let TransactionBlock::Open(open) = &mut self.block {
            open.defined = Some(match open.defined {
                None => format!("{what} was applied"),
                Some(_) => "several definitions were applied".to_owned(),
            });
        }
    }

    /// Opens a block for several statements that came together, unless a block is open.
    pub fn begin_implicit(&mut self) {
        if let TransactionBlock::None = self.block {
            self.statement_began = now();
            self.open(Modes::default(), true);
        }
    }

    /// Ends the statements that came together: commits the block that was opened for them. A block that the
    /// client began stays open, and the results of its statements become known.
    pub async fn end_implicit(&mut self) -> Result<()> {
        match &self.block {
            TransactionBlock::Open(open) if open.is_implicit => self.commit_block().await,
            _ => self.settle().await,
        }
    }

    /// Returns whether a conflict with another transaction caused an error since the last call, so that the
    /// block may succeed if it is executed once more.
    pub fn take_conflict(&mut self) -> bool {
        std::mem::take(&mut self.conflicted)
    }

    /// Drops the block without a trace, so that its statements can be executed once more.
    pub fn drop_block(&mut self) {
        let dropped = std::mem::replace(&mut self.block, TransactionBlock::None);
        if let TransactionBlock::Open(open) | TransactionBlock::Failed(open) = dropped {
            self.cursors.clear();
            self.restore(open.saved);
        }
        self.results.clear();
    }

    /// Ends an implicit block that failed.
    pub fn roll_back_implicit(&mut self) {
        if matches!(&self.block, TransactionBlock::Failed(open) if open.is_implicit) {
            self.drop_block();
        }
    }

    /// Whether a statement outside of a block has to be in one block with the statements that come together
    /// with it. A read need not, unless the reads of a block are compared.
    pub fn joins_block(&self, prepared: &Prepared) -> bool {
        match prepared.bound.as_ref().map(|bound| &bound.statement) {
            Some(Statement::Write(_) | Statement::Execute { .. } | Statement::Declare(_)) => true,
            Some(Statement::Set { .. } | Statement::SetTransaction { .. }) => true,
            // `set_config` is a query of the catalog.
            Some(Statement::Query(query)) if matches!(query.source, Source::Catalog(_)) => true,
            Some(Statement::Query(_)) => {
                let default = self.settings.get("default_transaction_isolation");
                default.and_then(|name| Isolation::named(name)).is_some_and(Isolation::is_strict)
            }
            _ => false,
        }
    }

    fn open(&mut self, modes: Modes, is_implicit: bool) {
        let read_only =
            modes.read_only.unwrap_or_else(|| self.setting("default_transaction_read_only") == "on");
        self.block = TransactionBlock::Open(OpenBlock {
            is_implicit,
            read_only,
            isolation: modes.isolation.unwrap_or_else(|| self.default_isolation()),
            has_begun: false,
            steps: Steps::new(self.hold()),
            deferred: VecDeque::new(),
            checks: Vec::new(),
            locks: self.cache.locks().of_block(),
            defined: None,
            client_knows_definition_stands: false,
            saved: self.settings.clone(),
            local: BTreeMap::new(),
            began: self.statement_began,
            savepoints: Vec::new(),
        });
    }

    /// Begins a block. An implicit block becomes this block, with the statements before.
    pub(super) fn begin(&mut self, modes: Modes) -> Result<StatementOutcome> {
        match &mut self.block {
            TransactionBlock::None => self.open(modes, false),
            TransactionBlock::Open(open) if open.is_implicit => {
                open.is_implicit = false;
                if !open.has_begun {
                    // Only settings came before BEGIN, and a rollback leaves these.
                    open.saved = self.settings.clone();
                }
                self.set_transaction(modes, false)?;
            }
            _ => self.notices.push(SqlError::new(
                code::ACTIVE_SQL_TRANSACTION,
                "there is already a transaction in progress",
            )),
        }
        Ok(StatementOutcome::Done("BEGIN".to_owned()))
    }

    /// Whether the session opened the present block.
    pub fn is_implicit(&self) -> bool {
        matches!(&self.block, TransactionBlock::Open(open) | TransactionBlock::Failed(open) if open.is_implicit)
    }

    /// Returns the isolation level of blocks that name none.
    pub(super) fn default_isolation(&self) -> Isolation {
        Isolation::named(&self.setting("default_transaction_isolation")).unwrap_or_default()
    }

    pub(super) fn set_transaction(&mut self, modes: Modes, session: bool) -> Result<StatementOutcome> {
        if session {
            if let Some(isolation) = modes.isolation {
                let value = isolation.name().to_owned();
                self.settings.insert("default_transaction_isolation".to_owned(), value);
            }
            if let Some(read_only) = modes.read_only {
                let value = if read_only { "on" } else { "off" };
                self.settings.insert("default_transaction_read_only".to_owned(), value.to_owned());
            }
        } else if let TransactionBlock::Open(open) = &mut self.block {
            if let Some(isolation) = modes.isolation.filter(|isolation| *isolation != open.isolation) {
                let refused = |why: &str| {
                    let message = format!("SET TRANSACTION ISOLATION LEVEL must {why}");
                    Err(SqlError::new(code::ACTIVE_SQL_TRANSACTION, message))
                };
                if open.has_begun {
                    return refused("be called before any query");
                }
                if !open.savepoints.is_empty() {
                    return refused("not be called in a subtransaction");
                }
                open.isolation = isolation;
            }
            open.read_only = modes.read_only.unwrap_or(open.read_only);
        } else {
            self.notices.push(SqlError::new(
                code::NO_ACTIVE_SQL_TRANSACTION,
                "SET TRANSACTION can only be used in transaction blocks",
            ));
        }
        Ok(StatementOutcome::Done("SET".to_owned()))
    }

    /// Executes COMMIT. Whatever the outcome is, the session is in no block afterwards.
    pub(super) async fn commit(&mut self) -> Result<StatementOutcome> {
        if self.is_implicit() || matches!(self.block, TransactionBlock::None) {
            self.no_block();
        }
        if let TransactionBlock::Failed(_) = self.block {
            return self.end_rolled_back();
        }
        self.commit_block().await?;
        Ok(StatementOutcome::Done("COMMIT".to_owned()))
    }

    /// Ends the open block with its effects. Whatever the outcome is, the session is in no block afterwards.
    pub(super) async fn commit_block(&mut self) -> Result<()> {
        self.cursors.clear();
        self.check_at_commit().await?;
        match std::mem::replace(&mut self.block, TransactionBlock::None) {
            TransactionBlock::None | TransactionBlock::Failed(_) => {}
            TransactionBlock::Open(open) if open.steps.has_writes() => self.apply(open).await?,
            TransactionBlock::Open(open) if open.isolation.is_strict() && open.steps.needs_check() => {
                self.check_results(open).await?;
            }
            TransactionBlock::Open(open) => self.end_local(open.local),
        }
        Ok(())
    }

    /// Sends the writes of a block.
    async fn apply(&mut self, open: OpenBlock) -> Result<()> {
        let OpenBlock { steps, deferred, mut saved, local, .. } = open;
        let request = match self.request_of(steps.print()) {
            Ok(request) => request,
            Err(error) => {
                self.restore(saved);
                return Err(error);
            }
        };
        let used = self.settings.get(REQUEST_ID).cloned();
        self.end_local(local);
        let numbers: Vec<usize> = deferred.iter().map(|write| steps.statements_before(write.step)).collect();
        let client_numbers = steps.client_numbers();
        let (transaction, copies, hold) = steps.transaction();
        let answered = match sole_write(transaction, deferred.len()) {
            Ok(operation) => {
                self.in_flight = Some(InFlight::Write(request));
                self.backend.write(request.sent, operation).await
            }
            Err(transaction) => {
                self.in_flight = Some(InFlight::Transaction(request));
                self.backend.transact(request.sent, transaction).await
            }
        };
        self.in_flight = None;
        drop(hold);
        // If the name of an answered transaction came back with the settings from before the block, the next
        // write would pass for a repetition and would not be executed.
        if is_definite(&answered)
            && let Some(used) = used
        {
            for settings in [&mut self.settings, &mut saved] {
                if settings.get(REQUEST_ID) == Some(&used) {
                    settings.remove(REQUEST_ID);
                }
            }
        }
        match answered {
            Ok(answers) => {
                for mut copy in copies {
                    copy.was_published(request.sent.repeated);
                }
                self.results.extend(results(deferred, &numbers, answers)?);
                Ok(())
            }
            Err(fault) => {
                if !fault.is_open() {
                    self.restore(saved);
                }
                // An id that the client chose is used up.
                self.conflicted |= fault.is_conflict() && !request.sent.repeated;
                let error = fault::commit_error(fault, request.name, request.sent.repeated);
                Err(renumbered(within_any(error, &deferred), &client_numbers))
            }
        }
    }

    /// Checks that all results of a block without writes were true at one position.
    async fn check_results(&mut self, open: OpenBlock) -> Result<()> {
        let OpenBlock { steps, saved, local, .. } = open;
        let name = WriteName::nameless(self.backend.request_id());
        self.end_local(local);
        let (transaction, _, _hold) = steps.transaction();
        self.backend.transact(name, transaction).await.map(drop).map_err(|fault| {
            self.restore(saved);
            self.conflicted |= fault.is_conflict();
            fault::check_error(fault)
        })
    }

    /// Executes ROLLBACK. The client receives the results of the statements before.
    pub(super) async fn roll_back(&mut self) -> Result<StatementOutcome> {
        self.settle().await?;
        if self.is_implicit() || matches!(self.block, TransactionBlock::None) {
            self.no_block();
        }
        self.end_rolled_back()
    }

    /// Ends the block without its effects.
    pub(super) fn end_rolled_back(&mut self) -> Result<StatementOutcome> {
        self.cursors.clear();
        match std::mem::replace(&mut self.block, TransactionBlock::None) {
            TransactionBlock::None => Ok(StatementOutcome::Done("ROLLBACK".to_owned())),
            TransactionBlock::Open(open) | TransactionBlock::Failed(open) => self.undo(open),
        }
    }

    pub(super) async fn savepoint(&mut self, name: &str) -> Result<StatementOutcome> {
        let Some(open) = self.block.begun() else { return Err(outside("SAVEPOINT")) };
        if open.deferred.iter().any(|write| !write.checks.is_empty()) {
            // A check belongs to the steps before the savepoint, so ROLLBACK TO must not remove its read.
            self.settle().await?;
        }
        let Some(open) = self.block.begun() else { return Err(outside("SAVEPOINT")) };
        open.savepoints.push(Savepoint {
            name: name.to_owned(),
            cursors: self.cursors.keys().cloned().collect(),
            settings: self.settings.clone(),
            local: open.local.clone(),
            steps: open.steps.len(),
            defined: open.defined.clone(),
        });
        Ok(StatementOutcome::Done("SAVEPOINT".to_owned()))
    }

    pub(super) fn release(&mut self, name: &str) -> Result<StatementOutcome> {
        let Some(open) = self.block.begun() else { return Err(outside("RELEASE SAVEPOINT")) };
        let place = open.place(name)?;
        open.savepoints.truncate(place);
        Ok(StatementOutcome::Done("RELEASE".to_owned()))
    }

    pub(super) async fn roll_back_to(&mut self, name: &str) -> Result<StatementOutcome> {
        self.settle().await?;
        if self.is_implicit() {
            return Err(outside("ROLLBACK TO SAVEPOINT"));
        }
        let (TransactionBlock::Open(open) | TransactionBlock::Failed(open)) = &mut self.block else {
            return Err(outside("ROLLBACK TO SAVEPOINT"));
        };
        let place = open.place(name)?;
        let savepoint = &mut open.savepoints[place];
        if open.defined != savepoint.defined {
            let defined = open.defined.as_deref().unwrap_or_default();
            if !open.client_knows_definition_stands {
                return Err(SqlError::new(
                    code::INVALID_TRANSACTION_TERMINATION,
                    "the transaction cannot be rolled back to the savepoint: a definition takes effect at once",
                )
                .detail(format!("{defined} and cannot be rolled back.")));
            }
            self.notices.push(stands(defined));
        }
        open.steps.roll_back_to(savepoint.steps, open.isolation.is_strict())?;
        savepoint.steps = open.steps.len();
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

    fn undo(&mut self, open: OpenBlock) -> Result<StatementOutcome> {
        self.restore(open.saved);
        match open.defined {
            None => {}
            Some(defined) if open.client_knows_definition_stands => self.notices.push(stands(&defined)),
            Some(defined) => {
                return Err(SqlError::new(
                    code::INVALID_TRANSACTION_TERMINATION,
                    "the transaction cannot be rolled back: a definition takes effect at once",
                )
                .detail(format!("{defined} and cannot be rolled back."))
                .hint("The transaction block has ended. Undo the definition with another definition."));
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

/// Returns the operation of a transaction that is nothing but one write without a result. It is sent as that
/// write, which costs less. Returns the transaction if it is more.
fn sole_write(
    mut transaction: TableTransaction,
    deferred: usize,
) -> std::result::Result<Operation, TableTransaction> {
    match (deferred, transaction.steps.pop()) {
        (1, Some(Step::Execute(statement))) if transaction.steps.is_empty() => Ok(statement.operation),
        (_, last) => {
            transaction.steps.extend(last);
            Err(transaction)
        }
    }
}

/// Returns the results of the writes that were deferred. `numbers` has the number of statements before each
/// of them. `answers` has for each range the results of all statements.
fn results(
    deferred: VecDeque<DeferredWrite>,
    numbers: &[usize],
    answers: Vec<Answer>,
) -> Result<Vec<WriteResult>> {
    let mut sums: Vec<_> = deferred.into_iter().map(|write| (write, 0, Vec::new())).collect();
    for answer in answers {
        let mut ranges = match answer {
            Answer::Written(results) => results,
            Answer::Failed(failure) => return Err(failure.into()),
            _ => return Err(SqlError::new(code::INTERNAL_ERROR, "a range answered a transaction with rows")),
        };
        for ((_, changed, rows), number) in sums.iter_mut().zip(numbers) {
            if let Some(result) = ranges.get_mut(*number) {
                *changed += result.rows;
                rows.append(&mut result.returning);
            }
        }
    }
    let mut results = Vec::with_capacity(sums.len());
    for (write, changed, rows) in sums {
        write.conclude(changed, rows, &mut results);
    }
    Ok(results)
}

/// Returns the warning that a definition stands although the client asked to roll it back.
fn stands(defined: &str) -> SqlError {
    SqlError::new(code::WARNING, format!("{defined} and cannot be rolled back"))
        .hint("A definition takes effect at once. Undo it with another definition.")
}

fn outside(what: &str) -> SqlError {
    SqlError::new(code::NO_ACTIVE_SQL_TRANSACTION, format!("{what} can only be used in transaction blocks"))
}

fn aborted() -> SqlError {
    SqlError::new(
        code::IN_FAILED_SQL_TRANSACTION,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}
