//! The workload, and what its answers must show.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use quorate_history::{self as history, Action, History, SessionViolations, Verdict};
use quorate_node::{Command, Node, gateway};
use quorate_protocol::{
    ProcessId, Time,
    rubberband::{ClientCommand, ClientError, ClientEvent, Config, Control, ReadStrength, RequestId},
};
use quorate_table::{
    engine::Answer,
    expr::{Binary, Expr},
    operation::{Operation, Output, Select},
    schema::{Column, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use xxhash_rust::xxh3::xxh3_64;

use super::citizen::{Citizen, node};
use crate::{
    mutation::Mutation,
    random::Chance,
    world::{Violation, World},
};

/// What the gateways do, and what came of it.
pub(super) struct Bank {
    accounts: i64,
    left: u64,
    tokens: u64,
    schemas: [Schema; 2],
    phase: Phase,
    pending: BTreeMap<u64, Pending>,
    operations: Vec<history::Operation>,
    /// Log rows: asked for, acknowledged, refused for certain.
    logged: BTreeMap<i64, Fate>,
    last: Option<Vec<i64>>,
    /// Repetitions get a new name: a mutation.
    renames: bool,
    /// Gateways take repetitions for new writes: a mutation.
    denies: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Tables are to be created.
    Founding,
    /// Accounts are to be opened, by a request with this name.
    Opening(Option<RequestId>),
    /// Business.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unknown,
    Acknowledged,
    Refused,
}

#[derive(Clone, Debug)]
struct Pending {
    machine: usize,
    life: u64,
    start: Time,
    what: What,
    /// Some earlier attempt may have been applied.
    doubtful: bool,
    rows: Vec<Row>,
    failed: bool,
}

#[derive(Clone, Debug)]
enum What {
    Create,
    Open,
    Mark { account: i64, mark: i64 },
    Look { account: i64 },
    Transfer { from: i64, to: i64, amount: i64 },
    Sum,
    Log { row: i64 },
    Fail { account: i64 },
    Glance,
    LastLook,
}

const ACCOUNTS: &str = "accounts";
const LOG: &str = "log";
const BALANCE: i64 = 1_000;

impl Bank {
    pub(super) fn new(accounts: i64, commands: u64, mutation: Option<Mutation>) -> Self {
        let column = |name: &str, not_null| Column {
            name: name.to_owned(),
            ty: Type::Int8,
            modifier: None,
            not_null,
            default: None,
        };
        let accounts_schema = Schema {
            name: ACCOUNTS.to_owned(),
            columns: vec![column("id", true), column("balance", true), column("mark", false)],
            primary_key: vec![0],
            partition: Partition::Hash { column: 0 },
        };
        let log_schema = Schema {
            name: LOG.to_owned(),
            columns: vec![column("id", true)],
            primary_key: Vec::new(),
            partition: Partition::Hash { column: 0 },
        };
        Bank {
            accounts,
            left: commands,
            tokens: 0,
            schemas: [accounts_schema, log_schema],
            phase: Phase::Founding,
            pending: BTreeMap::new(),
            operations: Vec::new(),
            logged: BTreeMap::new(),
            last: None,
            renames: mutation == Some(Mutation::RepeatedUnderNewName),
            denies: mutation == Some(Mutation::RepetitionDenied),
        }
    }

    /// The gateway on `machine` does something.
    pub(super) fn act(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        config: &Config,
        chance: &mut Chance,
    ) {
        let Some(Node::Client(client)) = node(world, machine) else { return };
        let Some(own) = client.config().filter(|own| !own.ring.is_empty()) else { return };
        match self.phase {
            Phase::Founding => {
                let missing = self.schemas.iter().find(|schema| own.table(&schema.name).is_none());
                match missing {
                    Some(schema) if self.pending.is_empty() => {
                        let definition = postcard(schema);
                        let name = schema.name.clone();
                        let token = self.token();
                        self.begin(world, machine, token, What::Create, false);
                        let control = Control::CreateTable { name, definition };
                        let command = ClientCommand::Control { token, control };
                        world.command(machine, Command::Client(command));
                    }
                    Some(_) => self.give_up_the_dead(world),
                    None => self.phase = Phase::Opening(None),
                }
            }
            Phase::Opening(request) => {
                self.give_up_the_dead(world);
                if self.pending.is_empty() {
                    self.write(world, machine, config, What::Open, request, request.is_some());
                }
            }
            Phase::Open => {
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

    fn one(&mut self, world: &mut World<Citizen>, machine: usize, config: &Config, chance: &mut Chance) {
        let account = chance.below(self.accounts as u64) as i64;
        let other = (account + 1 + chance.below(self.accounts as u64 - 1) as i64) % self.accounts;
        let unique = self.tokens as i64 + 1;
        match chance.below(100) {
            0..35 => self.write(world, machine, config, What::Mark { account, mark: unique }, None, false),
            35..65 => self.read(world, machine, config, What::Look { account }, ReadStrength::Sequential),
            65..75 => {
                let amount = 1 + chance.below(50) as i64;
                let what = What::Transfer { from: account, to: other, amount };
                self.write(world, machine, config, what, None, false);
            }
            75..80 => self.read(world, machine, config, What::Sum, ReadStrength::Snapshot),
            80..84 => self.read(world, machine, config, What::Sum, ReadStrength::Sequential),
            84..94 => {
                self.logged.insert(unique, Fate::Unknown);
                self.write(world, machine, config, What::Log { row: unique }, None, false);
                if chance.happens(0.2) {
                    // The user loses patience; it cannot know then, and asks again.
                    let token = self.tokens;
                    let later = chance.between(Duration::ZERO, Duration::from_millis(20));
                    world.command_after(machine, later, Command::Client(ClientCommand::Cancel { token }));
                }
            }
            94..96 => self.write(world, machine, config, What::Fail { account }, None, false),
            _ => self.read(world, machine, config, What::Glance, ReadStrength::Basic),
        }
    }

    fn token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    fn begin(&mut self, world: &World<Citizen>, machine: usize, token: u64, what: What, doubtful: bool) {
        let pending = Pending {
            machine,
            life: world.life(machine),
            start: world.now(),
            what,
            doubtful,
            rows: Vec::new(),
            failed: false,
        };
        self.pending.insert(token, pending);
    }

    fn write(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        config: &Config,
        what: What,
        request: Option<RequestId>,
        doubtful: bool,
    ) {
        let Some((operation, schema)) = self.operation(config, &what) else { return };
        let made = gateway::request(&operation, schema);
        let token = self.token();
        self.begin(world, machine, token, what, doubtful);
        let command = ClientCommand::Write {
            token,
            request,
            print: xxh3_64(&made.operation),
            repeated: request.is_some() && !self.denies,
            table: made.table,
            ranges: made.ranges,
            fallible: made.fallible,
            operation: made.operation,
        };
        world.command(machine, Command::Client(command));
    }

    fn read(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        config: &Config,
        what: What,
        strength: ReadStrength,
    ) {
        let Some((Operation::Select(select), schema)) = self.operation(config, &what) else { return };
        let made = gateway::read(&select, schema);
        let token = self.token();
        self.begin(world, machine, token, what, false);
        let command = ClientCommand::Read {
            token,
            strength,
            table: made.table,
            ranges: made.ranges,
            operation: made.operation,
        };
        world.command(machine, Command::Client(command));
    }

    fn operation(&self, config: &Config, what: &What) -> Option<(Operation, &Schema)> {
        let accounts = TableId(config.table(ACCOUNTS)?.0);
        let log = TableId(config.table(LOG)?.0);
        let [accounts_schema, log_schema] = &self.schemas;
        let column = |index| Expr::Column(index, Type::Int8);
        let number = |value| Expr::constant(Value::Int8(value), Type::Int8);
        let is = |account| Expr::binary(Binary::Equal, column(0), number(account));
        let update = |assignments, filter| Operation::Update {
            table: accounts,
            assignments,
            filter,
            returning: Vec::new(),
        };
        let select = |table, columns: Vec<Expr>, filter| {
            let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
            Operation::Select(Select { table, filter, output })
        };
        let insert = |table, rows| Operation::Insert { table, rows, returning: Vec::new() };
        let account = |id| vec![Value::Int8(id), Value::Int8(BALANCE), Value::Null];
        Some(match what {
            What::Create => return None,
            What::Open => (insert(accounts, (0..self.accounts).map(account).collect()), accounts_schema),
            What::Mark { account, mark } => {
                (update(vec![(2, number(*mark))], Some(is(*account))), accounts_schema)
            }
            What::Look { account } => {
                (select(accounts, vec![column(2)], Some(is(*account))), accounts_schema)
            }
            What::Transfer { from, to, amount } => {
                let change = Expr::Case {
                    branches: vec![(is(*from), number(-amount))],
                    otherwise: Some(Box::new(number(*amount))),
                    ty: Type::Int8,
                };
                let balance = Expr::binary(Binary::Add, column(1), change);
                let both = Expr::any(vec![is(*from), is(*to)]);
                (update(vec![(1, balance)], Some(both)), accounts_schema)
            }
            What::Sum | What::Glance => (select(accounts, vec![column(0), column(1)], None), accounts_schema),
            What::Log { row } => (insert(log, vec![vec![Value::Int8(*row)]]), log_schema),
            // Divides by zero at one account, having changed all others, were it not for rule S15.
            What::Fail { account } => {
                let zero = Expr::binary(Binary::Subtract, column(0), number(*account));
                let share = Expr::binary(Binary::Divide, number(1_000_000), zero);
                (update(vec![(1, Expr::binary(Binary::Add, column(1), share))], None), accounts_schema)
            }
            What::LastLook => (select(log, vec![column(0)], None), log_schema),
        })
    }

    /// What a gateway tells.
    pub(super) fn told(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        event: ClientEvent,
    ) -> Result<(), Violation> {
        match event {
            ClientEvent::Part { token, from, content, .. } => {
                self.part(world, machine, token, from, &content)
            }
            ClientEvent::Restart { token } => {
                world.count("read started anew");
                let pending = self.known(token)?;
                pending.rows.clear();
                pending.failed = false;
                Ok(())
            }
            ClientEvent::Done { token, .. } => {
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
            ClientEvent::Gathered { .. }
            | ClientEvent::Ordered { .. }
            | ClientEvent::Config(_)
            | ClientEvent::Unreached { .. }
            | ClientEvent::Adrift(_)
            | ClientEvent::Wedged => Ok(()),
        }
    }

    fn known(&mut self, token: u64) -> Result<&mut Pending, Violation> {
        self.pending
            .get_mut(&token)
            .ok_or_else(|| Violation::new("one outcome", format!("request {token} was answered already")))
    }

    fn part(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        token: u64,
        from: ProcessId,
        content: &Bytes,
    ) -> Result<(), Violation> {
        let pending = self.known(token)?;
        match gateway::answer(content) {
            Some(Answer::Rows(rows)) => pending.rows.extend(rows),
            Some(Answer::Failed(_)) => pending.failed = true,
            Some(Answer::Written(_)) => {}
            Some(Answer::Groups(_) | Answer::Explained(_)) | None => {
                return Err(Violation::new(
                    "answer",
                    format!("request {token} has an answer of another kind"),
                ));
            }
        }
        let bytes = content.len() as u64;
        world.command(machine, Command::Client(ClientCommand::Consumed { token, from, bytes }));
        Ok(())
    }

    fn done(&mut self, world: &mut World<Citizen>, pending: Pending) -> Result<(), Violation> {
        let expected_failure = matches!(pending.what, What::Fail { .. });
        if pending.failed != expected_failure && !matches!(pending.what, What::Open) {
            let what =
                format!("{:?} {}", pending.what, if pending.failed { "failed" } else { "did not fail" });
            return Err(Violation::new("answer", what));
        }
        let now = world.now().0 as i64;
        match pending.what {
            What::Create => {}
            What::Glance => {
                // No cut, but whatever each range's replica has: every account is somewhere, once.
                let mut ids: Vec<Option<i64>> = pending.rows.iter().map(|row| row[0].as_integer()).collect();
                ids.sort_unstable();
                if ids != (0..self.accounts).map(Some).collect::<Vec<_>>() {
                    return Err(Violation::new("answer", format!("a glance shows the accounts {ids:?}")));
                }
            }
            What::Open => self.phase = Phase::Open,
            What::Mark { account, mark } => {
                world.count("mark set");
                let value = format!("{mark}");
                self.record(
                    pending.life,
                    account,
                    Action::Write(value.as_str().into()),
                    pending.start,
                    Some(now),
                );
            }
            What::Look { account } => {
                world.count("mark read");
                let [row] = &pending.rows[..] else {
                    let what = format!("account {account} has {} rows", pending.rows.len());
                    return Err(Violation::new("answer", what));
                };
                let mark = row[0].as_integer().map(|mark| format!("{mark}").as_str().into());
                self.record(pending.life, account, Action::Read(mark), pending.start, Some(now));
            }
            What::Transfer { .. } => world.count("transfer"),
            What::Sum => {
                world.count("sum");
                let sum: i64 = pending.rows.iter().filter_map(|row| row[1].as_integer()).sum();
                let ids: BTreeSet<Option<i64>> = pending.rows.iter().map(|row| row[0].as_integer()).collect();
                let (rows, expected) = (pending.rows.len() as i64, self.accounts * BALANCE);
                if sum != expected || rows != self.accounts || ids.len() as i64 != rows {
                    let what = format!("{rows} accounts with {} ids hold {sum}, not {expected}", ids.len());
                    return Err(Violation::new("conserved", what));
                }
            }
            What::Log { row } => {
                world.count("log row acknowledged");
                self.logged.insert(row, Fate::Acknowledged);
            }
            What::Fail { .. } => world.count("failed as a whole"),
            What::LastLook => {
                self.last = Some(pending.rows.iter().filter_map(|row| row[0].as_integer()).collect());
            }
        }
        Ok(())
    }

    fn failed(&mut self, world: &mut World<Citizen>, pending: Pending, error: ClientError) {
        let count = match error {
            ClientError::NotSent => "not sent",
            ClientError::MaybeApplied { .. } => "maybe applied",
            ClientError::Rejected(_) => "rejected",
            ClientError::Expired => "expired",
            ClientError::OtherStatement => "other statement",
            ClientError::Unanswered => "unanswered",
            ClientError::Unreached { .. } => "unreached",
        };
        world.count(count);
        // A user believes what it is told. Only one that asked about an earlier attempt knows that an id has expired.
        let expired = pending.doubtful && matches!(error, ClientError::Expired);
        let doubtful = expired || matches!(error, ClientError::MaybeApplied { .. });
        let name = match error {
            ClientError::MaybeApplied { request } => Some(request),
            _ => None,
        };
        match pending.what {
            What::Open => self.phase = Phase::Opening(name),
            What::Mark { account, mark } if doubtful => {
                let value = format!("{mark}");
                self.record(pending.life, account, Action::Write(value.as_str().into()), pending.start, None);
            }
            What::Log { row } => {
                if !doubtful {
                    self.logged.insert(row, Fate::Refused);
                } else if let Some(request) = name
                    && node(world, pending.machine).is_some()
                {
                    // Repeated under its name, it takes effect once.
                    let Some(Node::Client(client)) = node(world, pending.machine) else { return };
                    let Some(config) = client.config().cloned() else { return };
                    world.count("repeated under its name");
                    let request = (!self.renames).then_some(request);
                    self.write(world, pending.machine, &config, What::Log { row }, request, true);
                }
            }
            What::LastLook => self.last = None,
            _ => {}
        }
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

    /// Requests of gateways that died will never be answered.
    fn give_up_the_dead(&mut self, world: &World<Citizen>) {
        let dead: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| {
                node(world, pending.machine).is_none() || world.life(pending.machine) != pending.life
            })
            .map(|(&token, _)| token)
            .collect();
        for token in dead {
            let pending = self.pending.remove(&token).expect("just seen");
            if let What::Mark { account, mark } = pending.what {
                let value = format!("{mark}");
                self.record(pending.life, account, Action::Write(value.as_str().into()), pending.start, None);
            }
            if matches!(pending.what, What::Open) {
                // Whether the accounts exist is not known: a primary key refuses to open them twice.
                self.phase = Phase::Opening(None);
            }
        }
    }

    /// Whether all is done that was to be done.
    pub(super) fn is_idle(&mut self, world: &World<Citizen>) -> bool {
        self.give_up_the_dead(world);
        let last = self.pending.values().all(|pending| matches!(pending.what, What::LastLook));
        self.phase == Phase::Open && self.left == 0 && last
    }

    /// Asks for all log rows, once; tells whether they have come.
    pub(super) fn ask_last(&mut self, world: &mut World<Citizen>, gateways: &[usize]) -> bool {
        if self.last.is_none() && self.pending.is_empty() {
            let machine = gateways[0];
            let Some(Node::Client(client)) = node(world, machine) else { return false };
            let Some(config) = client.config().cloned() else { return false };
            self.read(world, machine, &config, What::LastLook, ReadStrength::Sequential);
        }
        self.last.is_some()
    }

    /// What it still waits for.
    pub(super) fn waits(&self) -> String {
        let first = self.pending.iter().next();
        format!(
            "{:?}, {} commands left, {} pending, first {first:?}",
            self.phase,
            self.left,
            self.pending.len()
        )
    }

    /// Judges the whole.
    pub(super) fn judge(&mut self) -> Result<(), Violation> {
        let last = self.last.take().unwrap_or_default();
        let mut times: BTreeMap<i64, u64> = BTreeMap::new();
        for row in &last {
            *times.entry(*row).or_default() += 1;
        }
        for (row, count) in &times {
            match self.logged.get(row) {
                None => return Err(Violation::new("valid", format!("nobody logged {row}"))),
                Some(Fate::Refused) => {
                    return Err(Violation::new("durable", format!("{row} was refused, and is there")));
                }
                Some(_) if *count > 1 => {
                    return Err(Violation::new("once", format!("{row} is there {count} times")));
                }
                Some(_) => {}
            }
        }
        let lost =
            self.logged.iter().find(|(row, fate)| **fate == Fate::Acknowledged && !times.contains_key(row));
        if let Some((row, _)) = lost {
            return Err(Violation::new("durable", format!("{row} was acknowledged, and is gone")));
        }
        let history: History = std::mem::take(&mut self.operations).into_iter().collect();
        let report = history::check(&history);
        match report.verdict {
            Verdict::Atomic
                if report.measures.is_some_and(|it| it.sessions != SessionViolations::default()) =>
            {
                Err(Violation::new("session", format!("{report:?}")))
            }
            Verdict::Atomic => Ok(()),
            verdict => Err(Violation::new("atomic", format!("{verdict:?}: {report:?}"))),
        }
    }
}

fn postcard(schema: &Schema) -> Bytes {
    postcard::to_stdvec(schema).expect("our own types always serialise").into()
}
