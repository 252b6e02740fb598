//! The turns of conversations, and the judgement of them all.
//!
//! A conversation reads two cells, writes to a third cell a value that no other conversation writes, and
//! commits. All results that the client received are compared at the commit. Some conversations only read.
//! At the end, the judge of histories checks that all conversations together are strict serializable.

use quorate_history::{
    Action, Outcome,
    transactions::{IsolationLevel, RecordedTransaction, TransactionHistory, judge},
};
use quorate_protocol::{
    Strength, Time,
    rubberband::{ClientCommand, Config},
};
use quorate_roles::tables::{Command, Process, gateway};
use quorate_table::{
    expr::{Binary, Expr},
    operation::{
        Compared, Conflict, Operation, Output, ReceivedResult, Select, Step, TableTransaction,
        TransactionStatement, Trial,
    },
    schema::TableId,
    value::{Type, Value},
};
use quorate_world::{Chance, Violation};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    AccountStatement, AccountWorkload, PendingStatement,
    altering::added_column,
    conversation::{CELLS, CELLS_MAX, Conversation},
};
use crate::system::table::world::{TableWorld, ask, role};

impl AccountWorkload {
    /// Begins a conversation at the gateway on `machine`.
    pub(super) fn converse(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        config: &Config,
        chance: &mut Chance,
    ) {
        let mut cell = || chance.below(CELLS_MAX) as i64;
        let (reads, writes) = ([cell(), cell()], cell());
        let number = self.tokens as i64 + 1;
        let conversation = Conversation {
            machine,
            life: world.life(machine),
            start: world.now(),
            reads,
            writes: (!chance.happens(0.2)).then_some(writes),
            steps: Vec::new(),
            seen: Vec::new(),
            trying: None,
            commits: false,
        };
        self.conversations.open.insert(number, conversation);
        self.turn(world, number, config);
    }

    /// Sends the next statement of a conversation, or its commit.
    fn turn(&mut self, world: &mut TableWorld, number: i64, config: &Config) {
        let Some((table, _)) = config.table(CELLS) else { return };
        let table = TableId(table);
        let is_blind = self.conversations.is_blind;
        let conversation = &self.conversations.open[&number];
        let tried = conversation.steps.iter().find_map(Step::statement);
        if tried.is_some_and(|statement| statement.operation.table() != table) {
            // As in a session, the whole transaction has to be repeated.
            world.count("conversation of an altered table");
            return self.conclude(number, Outcome::Failed, world.now());
        }
        let token = self.token();
        let conversation = self.conversations.open.get_mut(&number).expect("it is open");
        let (machine, steps) = (conversation.machine, conversation.steps.clone());
        let key = number as u128;
        let next = match (steps.len(), conversation.writes) {
            (turn @ 0..2, _) => Some(read(table, conversation.reads[turn])),
            (2, Some(cell)) => Some(write(table, cell, (number, added_column(config, CELLS)))),
            // A conversation without a write repeats its last read, so that the results of the earlier
            // reads are compared once more.
            (_, None) => Some(read(table, conversation.reads[1])),
            (_, Some(_)) => None,
        };
        conversation.trying.clone_from(&next);
        conversation.commits = next.is_none();
        let schema = self.schemas.last().filter(|schema| schema.name == CELLS);
        let schema = |id: TableId| schema.filter(|_| id == table);
        let command = match next {
            Some(operation) => {
                let statement =
                    TransactionStatement { operation, compared: Compared::All, received: Vec::new() };
                let trial = Trial { key, earlier: steps, compares_all: true, statement };
                let made = gateway::trial(trial, schema).expect("the table is known");
                ClientCommand::Read {
                    token,
                    strength: Strength::Sequential,
                    table: made.table,
                    ranges: made.ranges,
                    operation: made.operation,
                }
            }
            None => {
                let mut transaction = TableTransaction { key, steps };
                for step in &mut transaction.steps {
                    if let (Step::Execute(statement), true) = (step, is_blind) {
                        statement.received.clear();
                    }
                }
                let made = gateway::transaction(transaction, schema).expect("the table is known");
                ClientCommand::Write {
                    token,
                    request: None,
                    print: xxh3_64(&made.operation),
                    repeated: false,
                    table: made.table,
                    ranges: made.ranges,
                    fallible: made.fallible,
                    operation: made.operation,
                }
            }
        };
        self.begin(world, machine, token, AccountStatement::Turn { conversation: number }, false);
        world.command(machine, ask(Command::Client(command)));
    }

    /// Handles the answer to a statement of a conversation, or to its commit.
    pub(super) fn turned(
        &mut self,
        world: &mut TableWorld,
        number: i64,
        pending: &PendingStatement,
    ) -> Result<(), Violation> {
        let Some(conversation) = self.conversations.open.get_mut(&number) else { return Ok(()) };
        if pending.failed {
            world.count("conversation conflicted");
            self.conclude(number, Outcome::Failed, world.now());
            return Ok(());
        }
        let Some(operation) = conversation.trying.take() else {
            world.count("conversation committed");
            self.conclude(number, Outcome::Ok, world.now());
            return Ok(());
        };
        if let Operation::Select(_) = operation {
            let values: Vec<Option<i64>> = pending.rows.iter().map(|row| row[1].as_integer()).collect();
            if values.len() > 1 {
                let what = format!("a read of one cell returned {} rows", values.len());
                return Err(Violation::new("answer", what));
            }
            conversation.seen.push(values.first().copied().flatten());
        }
        if conversation.writes.is_none() && conversation.steps.len() == 2 {
            world.count("conversation read");
            self.conclude(number, Outcome::Ok, world.now());
            return Ok(());
        }
        let received =
            pending.received.iter().map(|(range, print)| (*range, ReceivedResult::Success(*print))).collect();
        let statement = TransactionStatement { operation, compared: Compared::All, received };
        conversation.steps.push(Step::Execute(statement));
        let (machine, life) = (conversation.machine, conversation.life);
        let config = match role(world, machine) {
            Some(Process::Client(client)) if world.life(machine) == life => client.config().cloned(),
            _ => None,
        };
        match config {
            Some(config) => self.turn(world, number, &config),
            None => self.conclude(number, Outcome::Failed, world.now()),
        }
        Ok(())
    }

    /// Ends a conversation whose last statement, or whose commit, has no answer.
    pub(super) fn unanswered(&mut self, number: i64, certainly_not_applied: bool, now: Time) {
        let Some(conversation) = self.conversations.open.get(&number) else { return };
        let is_unknown = conversation.commits && !certainly_not_applied;
        self.conclude(number, if is_unknown { Outcome::Unknown } else { Outcome::Failed }, now);
    }

    fn conclude(&mut self, number: i64, outcome: Outcome, now: Time) {
        let Some(conversation) = self.conversations.open.remove(&number) else { return };
        let name = |cell: i64| format!("cell {cell}").into_boxed_str();
        let value = |value: i64| format!("{value}").as_str().into();
        let reads = conversation.reads.iter().zip(&conversation.seen);
        let mut steps: Vec<(Box<str>, Action)> =
            reads.map(|(cell, seen)| (name(*cell), Action::Read(seen.map(value)))).collect();
        steps.extend(conversation.writes.map(|cell| (name(cell), Action::Write(value(number)))));
        self.conversations.ended.push(RecordedTransaction {
            client: number as u64,
            steps,
            start: conversation.start.0 as i64,
            finish: (outcome == Outcome::Ok).then_some(now.0 as i64),
            outcome,
            position: None,
        });
    }

    /// Judges all conversations of the run, unless rows were lost.
    pub(super) fn judge_conversations(&mut self) -> Result<(), Violation> {
        let open: Vec<i64> = self.conversations.open.keys().copied().collect();
        open.into_iter().for_each(|number| self.unanswered(number, false, Time::ZERO));
        if !self.lost.is_empty() || self.may_be_partial {
            return Ok(());
        }
        let mut history = TransactionHistory::new();
        for transaction in std::mem::take(&mut self.conversations.ended) {
            let refused = history.push(&transaction);
            refused.map_err(|why| Violation::new("conversations", format!("{why:?}: {transaction:?}")))?;
        }
        let report = judge(&history);
        match report.map_err(|why| Violation::new("conversations", format!("{why:?}")))? {
            report if report.holds(IsolationLevel::StrictSerializable) => Ok(()),
            report => Err(Violation::new("strict serializable", format!("{report:?}"))),
        }
    }
}

/// Returns a read of one row of the table of cells: the row's number, and its value.
fn read(table: TableId, cell: i64) -> Operation {
    let column = |index| Expr::Column(index, Type::Int8);
    let is = Expr::binary(Binary::Equal, column(0), Expr::constant(Value::Int8(cell), Type::Int8));
    let columns = vec![column(0), column(1)];
    let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
    Operation::Select(Select { table, filter: Some(is), output })
}

/// Returns a write of one row of the table of cells, with the value of the added column. The row may not
/// exist yet.
fn write(table: TableId, cell: i64, (value, added): (i64, Option<i64>)) -> Operation {
    let value = Value::Int8(value);
    let assignments = vec![(1, Expr::constant(value.clone(), Type::Int8))];
    let conflict = Conflict::Update { assignments, filter: None };
    let row = [Value::Int8(cell), value].into_iter().chain(added.map(Value::Int8)).collect();
    Operation::Upsert { table, rows: vec![row], conflict, returning: Vec::new() }
}
