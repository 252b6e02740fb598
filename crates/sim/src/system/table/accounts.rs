//! The workload, and the judgement of its answers.

mod altering;
mod book;
mod conversation;
mod converse;
mod judge;
mod operations;
mod repeat;
mod request_log;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use quorate_history::{self as history, Action};
use quorate_protocol::{
    ProcessId, RequestId, Strength, Time,
    rubberband::{ClientCommand, ClientEvent, Config, Control, ProcessAnswer},
};
use quorate_roles::tables::{Command, Process, gateway};
use quorate_table::{
    engine::Answer,
    failure::Failure,
    fingerprint::Fingerprint,
    operation::Operation,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use xxhash_rust::xxh3::xxh3_64;

use super::{
    Settings,
    world::{TableWorld, ask, role},
};
use quorate_world::{Chance, Violation};

use crate::{check::holders::Keys, mutation::Mutation};
use conversation::{CELLS, Conversations};
use request_log::{RequestLog, RowOutcome};

/// The requests of the gateways, and their outcomes.
pub(super) struct AccountWorkload {
    accounts: i64,
    /// Size of the additional text that statements return for each row, in bytes.
    returned_bytes: usize,
    left: u64,
    tokens: u64,
    schemas: Vec<Schema>,
    /// Share of the commands that begin a conversation.
    conversations_share: f64,
    conversations: Conversations,
    phase: AccountPhase,
    pending: BTreeMap<u64, PendingStatement>,
    operations: Vec<history::Operation>,
    /// The rows of the log, each with its outcome.
    logged: BTreeMap<i64, RowOutcome>,
    request_log: RequestLog,
    /// Share of the commands that alter a table.
    alterations_share: f64,
    /// The bulk loads, by their numbers.
    loads: BTreeMap<i64, BulkLoad>,
    gateways: Vec<usize>,
    /// The rows of the tables at the end, by the index of their schemas.
    last: BTreeMap<usize, Vec<Row>>,
    /// Ranges whose last holder crashed, with the time.
    lost: Vec<(Keys, Time)>,
    /// Whether a range continued from a keeper's rows. A write that spans ranges and was not acknowledged
    /// may be missing in such a range, although it took effect in others.
    may_be_partial: bool,
    /// For a mutation: whether repetitions get a new name.
    renames: bool,
    /// For a mutation: whether gateways take repetitions for new writes.
    forgets_names: bool,
    /// For a mutation: whether a read that killed processes is asked again.
    repeats_killers: bool,
}

/// A bulk load.
#[derive(Clone, Copy, Debug)]
struct BulkLoad {
    /// The machine of its gateway.
    machine: usize,
    /// The life of the machine in which it began.
    life: u64,
    /// The number that the table had when the load began.
    table: TableId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccountPhase {
    /// The tables do not exist yet.
    Founding,
    /// The accounts do not exist yet; a request with this name opens them.
    Opening(Option<RequestId>),
    /// Normal operation.
    Open,
}

#[derive(Clone, Debug)]
struct PendingStatement {
    machine: usize,
    life: u64,
    start: Time,
    what: AccountStatement,
    /// The name under which the request is repeated.
    request: Option<RequestId>,
    /// Whether an earlier attempt may have been applied.
    doubtful: bool,
    rows: Vec<Row>,
    /// Number of rows that a write changed.
    changed: u64,
    /// The fingerprints in the answer to a trial.
    received: Vec<(KeyRange, Fingerprint)>,
    failed: bool,
    /// Whether a storage process answered that the table was altered before the statement reached it.
    table_ended: bool,
    /// The value of the added column in every row that the statement reads.
    added: Option<i64>,
}

#[derive(Clone, Debug)]
enum AccountStatement {
    Create,
    /// Gives a table another added column.
    Alter,
    Open,
    Mark {
        account: i64,
        mark: i64,
    },
    Look {
        account: i64,
    },
    Transfer {
        from: i64,
        to: i64,
        amount: i64,
    },
    Sum,
    Log {
        row: i64,
    },
    Fail {
        account: i64,
    },
    Glance,
    Enter {
        entry: i64,
    },
    Count {
        counters: [i64; 2],
    },
    Stage {
        load: i64,
        part: i64,
    },
    Publish {
        load: i64,
    },
    Discard {
        load: i64,
    },
    LastLook {
        table: usize,
    },
    KillerQuery {
        account: i64,
        number: i64,
        wide: bool,
    },
    /// A statement of a conversation, or its commit.
    Turn {
        conversation: i64,
    },
}

const ACCOUNTS: &str = "accounts";
const LOG: &str = "log";
const ENTRIES: &str = "entries";
const COUNTERS: &str = "counters";
/// Number of counters.
const COUNTERS_MAX: u64 = 12;
const BALANCE: i64 = 1_000;

impl AccountWorkload {
    pub(super) fn new(settings: &Settings, gateways: Vec<usize>, mutation: Option<Mutation>) -> Self {
        let column = |name: &str, not_null| Column {
            name: name.to_owned(),
            ty: Type::Int8,
            modifier: None,
            not_null,
            default: None,
        };
        let schema = |name: &str, columns, keyed: bool| Schema {
            name: name.to_owned(),
            columns,
            primary_key: if keyed { vec![0] } else { Vec::new() },
            partition: Partition::Hash { column: 0 },
            constraints: Vec::new(),
        };
        let account = vec![column("id", true), column("balance", true), column("mark", false)];
        let counter = vec![column("id", true), column("value", true)];
        let mut schemas = vec![
            schema(ACCOUNTS, account, true),
            schema(LOG, vec![column("id", true)], false),
            schema(ENTRIES, vec![column("id", true)], true),
            schema(COUNTERS, counter, true),
        ];
        if settings.conversations > 0.0 {
            let cell = vec![column("id", true), column("value", true)];
            schemas.push(schema(CELLS, cell, true));
        }
        AccountWorkload {
            accounts: settings.accounts,
            returned_bytes: settings.returned_bytes,
            left: settings.commands,
            tokens: 0,
            schemas,
            conversations_share: settings.conversations,
            alterations_share: settings.alterations,
            conversations: Conversations::new(mutation),
            phase: AccountPhase::Founding,
            pending: BTreeMap::new(),
            operations: Vec::new(),
            logged: BTreeMap::new(),
            request_log: RequestLog::default(),
            loads: BTreeMap::new(),
            gateways,
            last: BTreeMap::new(),
            lost: Vec::new(),
            may_be_partial: false,
            renames: mutation == Some(Mutation::RepeatedUnderNewName),
            forgets_names: mutation == Some(Mutation::RepetitionDenied),
            repeats_killers: mutation == Some(Mutation::ReadAskedAgain),
        }
    }

    /// Makes the gateway on `machine` send a request. The gateway makes the request by the configuration that
    /// it knows, which may be an earlier one.
    pub(super) fn act(&mut self, world: &mut TableWorld, machine: usize, chance: &mut Chance) {
        let Some(Process::Client(client)) = role(world, machine) else { return };
        let Some(config) = client.config().filter(|own| !own.ring.is_empty()).cloned() else { return };
        let config = &config;
        match self.phase {
            AccountPhase::Founding => {
                let missing = self.schemas.iter().find(|schema| config.table(&schema.name).is_none());
                match missing {
                    Some(schema) if self.pending.is_empty() => {
                        let definition = postcard(schema);
                        let name = schema.name.clone();
                        let token = self.token();
                        self.begin(world, machine, token, AccountStatement::Create, false);
                        let control = Control::CreateTable { name, definition };
                        let command = ClientCommand::Control { token, control };
                        world.command(machine, ask(Command::Client(command)));
                    }
                    Some(_) => self.give_up_the_dead(world),
                    None => self.phase = AccountPhase::Opening(None),
                }
            }
            AccountPhase::Opening(request) => {
                self.give_up_the_dead(world);
                if self.pending.is_empty() {
                    self.write(world, machine, config, AccountStatement::Open, request, request.is_some());
                }
            }
            AccountPhase::Open => {
                self.give_up_the_dead(world);
                if self.left == 0 {
                    return;
                }
                for _ in 0..1 + chance.below(6).min(self.left) {
                    self.left = self.left.saturating_sub(1);
                    self.one(world, machine, config, chance);
                }
            }
        }
    }

    fn one(&mut self, world: &mut TableWorld, machine: usize, config: &Config, chance: &mut Chance) {
        if self.alterations_share > 0.0 && chance.happens(self.alterations_share) {
            return self.alter(world, machine, config, chance);
        }
        if self.conversations_share > 0.0 && chance.happens(self.conversations_share) {
            return self.converse(world, machine, config, chance);
        }
        let account = chance.below(self.accounts as u64) as i64;
        let other = (account + 1 + chance.below(self.accounts as u64 - 1) as i64) % self.accounts;
        let unique = self.tokens as i64 + 1;
        match chance.below(100) {
            0..30 => self.write(
                world,
                machine,
                config,
                AccountStatement::Mark { account, mark: unique },
                None,
                false,
            ),
            30..57 => {
                self.read(world, machine, config, AccountStatement::Look { account }, Strength::Sequential)
            }
            57..65 => {
                let amount = 1 + chance.below(50) as i64;
                let what = AccountStatement::Transfer { from: account, to: other, amount };
                self.write(world, machine, config, what, None, false);
            }
            65..70 => self.read(world, machine, config, AccountStatement::Sum, Strength::Snapshot),
            70..74 => self.read(world, machine, config, AccountStatement::Sum, Strength::Sequential),
            74..79 => {
                self.request_log.ask_entry(unique);
                self.write(world, machine, config, AccountStatement::Enter { entry: unique }, None, false);
            }
            79..84 => {
                let one = chance.below(COUNTERS_MAX);
                let other = (one + 1 + chance.below(COUNTERS_MAX - 1)) % COUNTERS_MAX;
                let counters = [one as i64, other as i64];
                self.request_log.ask_count(counters);
                self.write(world, machine, config, AccountStatement::Count { counters }, None, false);
            }
            84..86 => {
                let Some((table, _)) = config.table(LOG) else { return };
                // The rows of a load count as refused until the users ask for the load's publication.
                self.settle_load(unique, RowOutcome::Refused);
                let load = BulkLoad { machine, life: world.life(machine), table: TableId(table) };
                self.loads.insert(unique, load);
                self.write(
                    world,
                    machine,
                    config,
                    AccountStatement::Stage { load: unique, part: 0 },
                    None,
                    false,
                );
            }
            86..94 => {
                self.logged.insert(unique, RowOutcome::Unknown);
                self.write(world, machine, config, AccountStatement::Log { row: unique }, None, false);
                if chance.happens(0.2) {
                    // The user loses patience, does not know the outcome, and asks again.
                    let token = self.tokens;
                    let later = chance.between(Duration::ZERO, Duration::from_millis(20));
                    world.command_after(
                        machine,
                        later,
                        ask(Command::Client(ClientCommand::Cancel { token })),
                    );
                }
            }
            94..96 => self.write(world, machine, config, AccountStatement::Fail { account }, None, false),
            _ => self.read(world, machine, config, AccountStatement::Glance, Strength::Basic),
        }
    }

    fn token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    fn begin(
        &mut self,
        world: &TableWorld,
        machine: usize,
        token: u64,
        what: AccountStatement,
        doubtful: bool,
    ) {
        let pending = PendingStatement {
            machine,
            life: world.life(machine),
            start: world.now(),
            what,
            request: None,
            doubtful,
            rows: Vec::new(),
            changed: 0,
            received: Vec::new(),
            failed: false,
            table_ended: false,
            added: None,
        };
        self.pending.insert(token, pending);
    }

    fn write(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        config: &Config,
        what: AccountStatement,
        request: Option<RequestId>,
        doubtful: bool,
    ) {
        let Some((operation, schema)) = self.operation(config, &what) else { return };
        let made = gateway::request(&operation, schema);
        // As for a statement of SQL, the print does not depend on the definition of the table.
        let print = xxh3_64(format!("{what:?}").as_bytes());
        let token = self.token();
        self.begin(world, machine, token, what, doubtful);
        self.pending.get_mut(&token).expect("just begun").request = request;
        let command = ClientCommand::Write {
            token,
            request,
            print,
            repeated: request.is_some() && !self.forgets_names,
            table: made.table,
            ranges: made.ranges,
            fallible: made.fallible,
            operation: made.operation,
        };
        world.command(machine, ask(Command::Client(command)));
    }

    fn read(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        config: &Config,
        what: AccountStatement,
        strength: Strength,
    ) {
        self.read_after(world, machine, config, what, strength, Duration::ZERO);
    }

    fn read_after(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        config: &Config,
        what: AccountStatement,
        strength: Strength,
        delay: Duration,
    ) {
        let Some((Operation::Select(select), schema)) = self.operation(config, &what) else { return };
        let made = gateway::read(&select, schema);
        let added = self.added_for(config, &what);
        let token = self.token();
        self.begin(world, machine, token, what, false);
        self.pending.get_mut(&token).expect("just begun").added = added;
        let command = ClientCommand::Read {
            token,
            strength,
            table: made.table,
            ranges: made.ranges,
            operation: made.operation,
        };
        world.command_after(machine, delay, ask(Command::Client(command)));
    }

    /// Returns a query that kills processes, encoded, and the ring key of its row.
    pub(super) fn ask_killer(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        number: i64,
        wide: bool,
    ) -> Option<(Bytes, u64)> {
        let Some(Process::Client(client)) = role(world, machine) else { return None };
        let config = client.config().filter(|_| self.phase == AccountPhase::Open)?.clone();
        let account = number % self.accounts;
        let what = AccountStatement::KillerQuery { account, number, wide };
        let (Operation::Select(select), schema) = self.operation(&config, &what)? else { return None };
        let bytes = gateway::read(&select, schema).operation;
        let key = schema.partition.key_of(&Value::Int8(account));
        self.read(world, machine, &config, what, Strength::Sequential);
        Some((bytes, key))
    }

    /// Handles an event that a gateway reported.
    pub(super) fn on_event(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        event: ClientEvent,
    ) -> Result<(), Violation> {
        match event {
            ClientEvent::Begun { token, parts } => {
                for ProcessAnswer { from, pieces, .. } in parts {
                    for piece in pieces {
                        self.part(token, &piece)?;
                        consumed(world, machine, token, from, &piece);
                    }
                }
                Ok(())
            }
            ClientEvent::Part { token, from, content, .. } => {
                self.part(token, &content)?;
                consumed(world, machine, token, from, &content);
                Ok(())
            }
            ClientEvent::Done { token, parts, .. } => {
                for piece in parts.iter().flat_map(|part| &part.pieces) {
                    self.part(token, piece)?;
                }
                self.known(token)?;
                let pending = self.pending.remove(&token).expect("just seen");
                self.done(world, pending)
            }
            ClientEvent::Failed { token, error } => {
                self.known(token)?;
                let pending = self.pending.remove(&token).expect("just seen");
                self.failed(world, pending, error);
                Ok(())
            }
            ClientEvent::Config(_)
            | ClientEvent::Unreached { .. }
            | ClientEvent::Adrift(_)
            | ClientEvent::Left { .. }
            | ClientEvent::Wedged => Ok(()),
        }
    }

    fn known(&mut self, token: u64) -> Result<&mut PendingStatement, Violation> {
        self.pending.get_mut(&token).ok_or_else(|| {
            Violation::new("one outcome", format!("request {token} was answered a second time"))
        })
    }

    fn part(&mut self, token: u64, content: &Bytes) -> Result<(), Violation> {
        let pending = self.known(token)?;
        match gateway::answer(content) {
            Some(Answer::Rows(rows)) => pending.rows.extend(rows),
            Some(Answer::Tried { received, answer }) => {
                pending.received.extend(received);
                if let Answer::Rows(rows) = *answer {
                    pending.rows.extend(rows);
                }
            }
            Some(Answer::Failed(failure)) => {
                pending.failed = true;
                pending.table_ended |= failure == Failure::table_ended();
            }
            Some(Answer::TrialFailed { .. }) => pending.failed = true,
            Some(Answer::Written(written)) => {
                pending.changed += written.iter().map(|one| one.rows).sum::<u64>();
                pending.rows.extend(written.into_iter().flat_map(|one| one.returning));
            }
            Some(_) | None => {
                return Err(Violation::new(
                    "answer",
                    format!("request {token} has the answer of another kind of request"),
                ));
            }
        }
        Ok(())
    }

    fn done(&mut self, world: &mut TableWorld, mut pending: PendingStatement) -> Result<(), Violation> {
        if pending.table_ended && self.alterations_share > 0.0 && pending.what.is_read() {
            world.count("read of an altered table refused");
            return Ok(());
        }
        pending.check_added()?;
        let expected_failure = match pending.what {
            AccountStatement::Open => None,
            // If the row of the account is lost, the statement divides by zero at no row, so it does not
            // fail.
            AccountStatement::Fail { account } => self.account_lost_at(account).is_none().then_some(true),
            AccountStatement::Turn { .. } => None,
            _ => Some(false),
        };
        if expected_failure.is_some_and(|expected| expected != pending.failed) {
            let what =
                format!("{:?} {}", pending.what, if pending.failed { "failed" } else { "did not fail" });
            return Err(Violation::new("answer", what));
        }
        let now = world.now().0 as i64;
        match pending.what {
            AccountStatement::Create => {}
            AccountStatement::Alter => world.count("table altered"),
            AccountStatement::Glance => {
                // The read sees no consistent cut, but the present rows of each range's replica. Each account
                // is in exactly one range.
                self.all_accounts(&pending.rows)?;
            }
            AccountStatement::Open => self.phase = AccountPhase::Open,
            AccountStatement::Mark { account, mark } => {
                world.count("mark set");
                let value = format!("{mark}");
                // If the account was lost meanwhile, no later read sees the mark. An earlier read may have
                // seen the mark.
                let finish = self.account_lost_at(account).is_none().then_some(now);
                self.record(
                    pending.life,
                    account,
                    Action::Write(value.as_str().into()),
                    pending.start,
                    finish,
                );
            }
            AccountStatement::Look { account } if self.account_lost_at(account).is_some() => {
                world.count("lost account read");
            }
            AccountStatement::Look { account } => {
                world.count("mark read");
                let [row] = &pending.rows[..] else {
                    let what = format!(
                        "a read of account {account} returned {} rows instead of one",
                        pending.rows.len()
                    );
                    return Err(Violation::new("answer", what));
                };
                let mark = row[0].as_integer().map(|mark| format!("{mark}").as_str().into());
                self.record(pending.life, account, Action::Read(mark), pending.start, Some(now));
            }
            AccountStatement::Transfer { .. } => world.count("transfer"),
            AccountStatement::Sum => {
                world.count("sum");
                self.all_accounts(&pending.rows)?;
                let sum: i64 = pending.rows.iter().filter_map(|row| row[1].as_integer()).sum();
                let expected = self.accounts * BALANCE;
                if sum != expected && self.lost.is_empty() && !self.may_be_partial {
                    let what = format!("the sum of all accounts is {sum} instead of {expected}");
                    return Err(Violation::new("conserved", what));
                }
            }
            AccountStatement::Log { row } => {
                world.count("log row acknowledged");
                self.logged.insert(row, RowOutcome::Acknowledged(pending.start));
            }
            AccountStatement::Fail { .. } => world.count("failed as a whole"),
            AccountStatement::Enter { entry } => {
                world.count("entry acknowledged");
                self.entered(entry, &pending.rows, pending.start)?;
            }
            AccountStatement::Count { counters } => {
                world.count("counted");
                self.counted(counters, &pending.rows)?;
            }
            AccountStatement::Stage { load, part } => {
                let next = if part + 1 < request_log::LOAD_PARTS {
                    AccountStatement::Stage { load, part: part + 1 }
                } else {
                    self.settle_load(load, RowOutcome::Unknown);
                    AccountStatement::Publish { load }
                };
                self.go_on(world, load, next);
            }
            AccountStatement::Publish { load } => {
                world.count("load published");
                let all = request_log::all_load_rows(load).count() as u64;
                if pending.changed != all {
                    if self.lost.is_empty() {
                        let what = format!("load {load} published {} of its {all} rows", pending.changed);
                        return Err(Violation::new("as a whole", what));
                    }
                    // The staged rows were lost with a range, and the gateway reports it.
                    self.loads.remove(&load);
                    return Ok(());
                }
                self.settle_load(load, RowOutcome::Acknowledged(pending.start));
                self.loads.remove(&load);
            }
            AccountStatement::Discard { load } => {
                world.count("load discarded");
                self.loads.remove(&load);
            }
            AccountStatement::LastLook { table } => {
                self.last.insert(table, pending.rows);
            }
            // The query killed no process, because it arrived when no process could be spared.
            AccountStatement::KillerQuery { .. } => world.count("deadly read answered"),
            AccountStatement::Turn { conversation } => self.turned(world, conversation, &pending)?,
        }
        Ok(())
    }

    /// Notes that all rows of a range are lost, so that the judge does not expect them.
    pub(super) fn lose(&mut self, keys: Keys, now: Time) {
        self.lost.push((keys, now));
    }

    /// Notes that a range continues from a keeper's rows.
    pub(super) fn tear(&mut self) {
        self.may_be_partial = true;
    }

    /// Returns the time at which the last holder of this key crashed, if it did.
    fn lost_at(&self, key: u64) -> Option<Time> {
        self.lost.iter().filter(|((low, high), _)| *low <= key && key <= *high).map(|(_, at)| *at).max()
    }

    fn account_lost_at(&self, account: i64) -> Option<Time> {
        self.lost_at(self.schemas[0].partition.key_of(&Value::Int8(account)))
    }

    /// Checks that these rows contain every account once, and nothing else. A lost account may be missing.
    fn all_accounts(&self, rows: &[Row]) -> Result<(), Violation> {
        let mut ids: Vec<Option<i64>> = rows.iter().map(|row| row[0].as_integer()).collect();
        ids.sort_unstable();
        let missing = |account: &i64| ids.binary_search(&Some(*account)).is_err();
        let missed = (0..self.accounts).filter(missing).find(|&it| self.account_lost_at(it).is_none());
        let known = |id: &Option<i64>| id.is_some_and(|id| (0..self.accounts).contains(&id));
        if missed.is_some() || !ids.iter().all(known) || ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Violation::new(
                "answer",
                format!("a read of all accounts must show each account exactly once, but shows {ids:?}"),
            ));
        }
        Ok(())
    }

    fn record(&mut self, client: u64, account: i64, action: Action, start: Time, finish: Option<i64>) {
        self.operations.push(history::Operation {
            client,
            key: format!("account {account}").into(),
            action,
            start: start.0 as i64,
            finish,
            outcome: if finish.is_some() { history::Outcome::Ok } else { history::Outcome::Unknown },
        });
    }

    /// Whether all requests of the run have ended.
    pub(super) fn is_idle(&mut self, world: &mut TableWorld) -> bool {
        self.give_up_the_dead(world);
        let last =
            self.pending.values().all(|pending| matches!(pending.what, AccountStatement::LastLook { .. }));
        self.phase == AccountPhase::Open && self.left == 0 && last
    }

    /// Asks once for all rows that are judged at the end. Returns whether they have arrived.
    pub(super) fn ask_last(&mut self, world: &mut TableWorld) -> bool {
        let table = (1..self.schemas.len()).find(|table| !self.last.contains_key(table));
        if let Some(table) = table
            && self.pending.is_empty()
        {
            let machine = self.gateways[0];
            let Some(Process::Client(client)) = role(world, machine) else { return false };
            let Some(config) = client.config().cloned() else { return false };
            self.read(world, machine, &config, AccountStatement::LastLook { table }, Strength::Sequential);
        }
        table.is_none()
    }

    /// Returns a description of the open requests.
    pub(super) fn waits(&self) -> String {
        let first = self.pending.iter().next();
        format!(
            "the phase of the accounts is {:?}, {} commands are left, {} requests have no answer, the \
             first of these is {first:?}",
            self.phase,
            self.left,
            self.pending.len()
        )
    }
}

/// Tells a gateway that its user has taken a piece, and that there is room for more.
fn consumed(world: &mut TableWorld, machine: usize, token: u64, from: ProcessId, piece: &Bytes) {
    let bytes = piece.len() as u64;
    world.command(machine, ask(Command::Client(ClientCommand::Consumed { token, from, bytes })));
}

fn postcard(schema: &Schema) -> Bytes {
    postcard::to_stdvec(schema).expect("a schema can always be serialised").into()
}
