//! The workload, and what its answers must show.

mod book;
mod judge;
mod operations;
mod repeat;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use quorate_history::{self as history, Action};
use quorate_protocol::{
    ProcessId, RequestId, Strength, Time,
    rubberband::{Answered, ClientCommand, ClientEvent, Config, Control},
};
use quorate_table::{
    engine::Answer,
    operation::Operation,
    schema::{Column, Partition, Schema},
    value::{Row, Type, Value},
};
use quorate_tables::{Command, Process, gateway};

use xxhash_rust::xxh3::xxh3_64;

use super::{
    Settings,
    citizen::{Citizen, ask, role},
};
use quorate_world::{Chance, Violation, World};

use crate::{check::holders::Keys, mutation::Mutation};
use book::Book;

/// What the gateways do, and what came of it.
pub(super) struct Bank {
    accounts: i64,
    /// The bytes of text that statements give back for each row beside.
    returned_bytes: usize,
    left: u64,
    tokens: u64,
    schemas: [Schema; 4],
    phase: Phase,
    pending: BTreeMap<u64, Pending>,
    operations: Vec<history::Operation>,
    /// Log rows: asked for, acknowledged, refused for certain.
    logged: BTreeMap<i64, Fate>,
    book: Book,
    /// Bulk loads, and the machine at whose gateway each is.
    loads: BTreeMap<i64, (usize, u64)>,
    gateways: Vec<usize>,
    /// What the tables held in the end, by their place among the schemas.
    last: BTreeMap<usize, Vec<Row>>,
    /// Ranges whose last holder crashed, and when.
    lost: Vec<(Keys, Time)>,
    /// A range went on from rows that a keeper had: a write that spans ranges, and was not acknowledged, may be missed there
    /// and have taken effect elsewhere.
    torn: bool,
    /// Repetitions get a new name: a mutation.
    renames: bool,
    /// Gateways take repetitions for new writes: a mutation.
    denies: bool,
    /// A read at which processes died is asked again: a mutation.
    insists: bool,
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
    /// And when it was asked for.
    Acknowledged(Time),
    Refused,
}

#[derive(Clone, Debug)]
struct Pending {
    machine: usize,
    life: u64,
    start: Time,
    what: What,
    /// The name under which it is repeated.
    request: Option<RequestId>,
    /// Some earlier attempt may have been applied.
    doubtful: bool,
    rows: Vec<Row>,
    /// Rows that a write changed.
    changed: u64,
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
    Enter { entry: i64 },
    Count { counters: [i64; 2] },
    Stage { load: i64, part: i64 },
    Publish { load: i64 },
    Discard { load: i64 },
    LastLook { table: usize },
    Deadly { account: i64, number: i64, wide: bool },
}

const ACCOUNTS: &str = "accounts";
const LOG: &str = "log";
const ENTRIES: &str = "entries";
const COUNTERS: &str = "counters";
/// How many counters there are.
const COUNTERS_MAX: u64 = 12;
const BALANCE: i64 = 1_000;

impl Bank {
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
        };
        let account = vec![column("id", true), column("balance", true), column("mark", false)];
        let counter = vec![column("id", true), column("value", true)];
        let schemas = [
            schema(ACCOUNTS, account, true),
            schema(LOG, vec![column("id", true)], false),
            schema(ENTRIES, vec![column("id", true)], true),
            schema(COUNTERS, counter, true),
        ];
        Bank {
            accounts: settings.accounts,
            returned_bytes: settings.returned_bytes,
            left: settings.commands,
            tokens: 0,
            schemas,
            phase: Phase::Founding,
            pending: BTreeMap::new(),
            operations: Vec::new(),
            logged: BTreeMap::new(),
            book: Book::default(),
            loads: BTreeMap::new(),
            gateways,
            last: BTreeMap::new(),
            lost: Vec::new(),
            torn: false,
            renames: mutation == Some(Mutation::RepeatedUnderNewName),
            denies: mutation == Some(Mutation::RepetitionDenied),
            insists: mutation == Some(Mutation::ReadAskedAgain),
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
        let Some(Process::Client(client)) = role(world, machine) else { return };
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
                        world.command(machine, ask(Command::Client(command)));
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
            0..30 => self.write(world, machine, config, What::Mark { account, mark: unique }, None, false),
            30..57 => self.read(world, machine, config, What::Look { account }, Strength::Sequential),
            57..65 => {
                let amount = 1 + chance.below(50) as i64;
                let what = What::Transfer { from: account, to: other, amount };
                self.write(world, machine, config, what, None, false);
            }
            65..70 => self.read(world, machine, config, What::Sum, Strength::Snapshot),
            70..74 => self.read(world, machine, config, What::Sum, Strength::Sequential),
            74..79 => {
                self.book.ask_entry(unique);
                self.write(world, machine, config, What::Enter { entry: unique }, None, false);
            }
            79..84 => {
                let one = chance.below(COUNTERS_MAX);
                let other = (one + 1 + chance.below(COUNTERS_MAX - 1)) % COUNTERS_MAX;
                let counters = [one as i64, other as i64];
                self.book.ask_count(counters);
                self.write(world, machine, config, What::Count { counters }, None, false);
            }
            84..86 => {
                // Refused for certain, until it is to be published.
                self.settle_load(unique, Fate::Refused);
                self.loads.insert(unique, (machine, world.life(machine)));
                self.write(world, machine, config, What::Stage { load: unique, part: 0 }, None, false);
            }
            86..94 => {
                self.logged.insert(unique, Fate::Unknown);
                self.write(world, machine, config, What::Log { row: unique }, None, false);
                if chance.happens(0.2) {
                    // The user loses patience; it cannot know then, and asks again.
                    let token = self.tokens;
                    let later = chance.between(Duration::ZERO, Duration::from_millis(20));
                    world.command_after(
                        machine,
                        later,
                        ask(Command::Client(ClientCommand::Cancel { token })),
                    );
                }
            }
            94..96 => self.write(world, machine, config, What::Fail { account }, None, false),
            _ => self.read(world, machine, config, What::Glance, Strength::Basic),
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
            request: None,
            doubtful,
            rows: Vec::new(),
            changed: 0,
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
        self.pending.get_mut(&token).expect("just begun").request = request;
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
        world.command(machine, ask(Command::Client(command)));
    }

    fn read(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        config: &Config,
        what: What,
        strength: Strength,
    ) {
        self.read_after(world, machine, config, what, strength, Duration::ZERO);
    }

    fn read_after(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        config: &Config,
        what: What,
        strength: Strength,
        delay: Duration,
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
        world.command_after(machine, delay, ask(Command::Client(command)));
    }

    /// A query of which processes die: its bytes, and the key of the row.
    pub(super) fn ask_deadly(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        number: i64,
        wide: bool,
    ) -> Option<(Bytes, u64)> {
        let Some(Process::Client(client)) = role(world, machine) else { return None };
        let config = client.config().filter(|_| self.phase == Phase::Open)?.clone();
        let account = number % self.accounts;
        let what = What::Deadly { account, number, wide };
        let (Operation::Select(select), schema) = self.operation(&config, &what)? else { return None };
        let bytes = gateway::read(&select, schema).operation;
        let key = schema.partition.key_of(&Value::Int8(account));
        self.read(world, machine, &config, what, Strength::Sequential);
        Some((bytes, key))
    }

    /// What a gateway tells.
    pub(super) fn told(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        event: ClientEvent,
    ) -> Result<(), Violation> {
        match event {
            ClientEvent::Begun { token, parts } => {
                for Answered { from, pieces, .. } in parts {
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

    fn known(&mut self, token: u64) -> Result<&mut Pending, Violation> {
        self.pending
            .get_mut(&token)
            .ok_or_else(|| Violation::new("one outcome", format!("request {token} was answered already")))
    }

    fn part(&mut self, token: u64, content: &Bytes) -> Result<(), Violation> {
        let pending = self.known(token)?;
        match gateway::answer(content) {
            Some(Answer::Rows(rows)) => pending.rows.extend(rows),
            Some(Answer::Failed(_)) => pending.failed = true,
            Some(Answer::Written(written)) => {
                pending.changed += written.iter().map(|one| one.rows).sum::<u64>();
                pending.rows.extend(written.into_iter().flat_map(|one| one.returning));
            }
            Some(Answer::Groups(_) | Answer::Explained(_) | Answer::Backup { .. }) | None => {
                return Err(Violation::new(
                    "answer",
                    format!("request {token} has an answer of another kind"),
                ));
            }
        }
        Ok(())
    }

    fn done(&mut self, world: &mut World<Citizen>, pending: Pending) -> Result<(), Violation> {
        let expected_failure = match pending.what {
            What::Open => None,
            // Where the account is lost, nothing is divided by zero.
            What::Fail { account } => self.account_lost_at(account).is_none().then_some(true),
            _ => Some(false),
        };
        if expected_failure.is_some_and(|expected| expected != pending.failed) {
            let what =
                format!("{:?} {}", pending.what, if pending.failed { "failed" } else { "did not fail" });
            return Err(Violation::new("answer", what));
        }
        let now = world.now().0 as i64;
        match pending.what {
            What::Create => {}
            What::Glance => {
                // No cut, but whatever each range's replica has: every account is somewhere, once.
                self.all_accounts(&pending.rows)?;
            }
            What::Open => self.phase = Phase::Open,
            What::Mark { account, mark } => {
                world.count("mark set");
                let value = format!("{mark}");
                // Where it was lost meanwhile, nobody reads it any more; somebody may have before.
                let finish = self.account_lost_at(account).is_none().then_some(now);
                self.record(
                    pending.life,
                    account,
                    Action::Write(value.as_str().into()),
                    pending.start,
                    finish,
                );
            }
            What::Look { account } if self.account_lost_at(account).is_some() => {
                world.count("lost account read");
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
                self.all_accounts(&pending.rows)?;
                let sum: i64 = pending.rows.iter().filter_map(|row| row[1].as_integer()).sum();
                let expected = self.accounts * BALANCE;
                if sum != expected && self.lost.is_empty() && !self.torn {
                    let what = format!("all accounts hold {sum}, not {expected}");
                    return Err(Violation::new("conserved", what));
                }
            }
            What::Log { row } => {
                world.count("log row acknowledged");
                self.logged.insert(row, Fate::Acknowledged(pending.start));
            }
            What::Fail { .. } => world.count("failed as a whole"),
            What::Enter { entry } => {
                world.count("entry acknowledged");
                self.entered(entry, &pending.rows, pending.start)?;
            }
            What::Count { counters } => {
                world.count("counted");
                self.counted(counters, &pending.rows)?;
            }
            What::Stage { load, part } => {
                let next = if part + 1 < book::LOAD_PARTS {
                    What::Stage { load, part: part + 1 }
                } else {
                    self.settle_load(load, Fate::Unknown);
                    What::Publish { load }
                };
                self.go_on(world, load, next);
            }
            What::Publish { load } => {
                world.count("load published");
                let all = book::all_load_rows(load).count() as u64;
                if pending.changed != all {
                    if self.lost.is_empty() {
                        let what = format!("load {load} published {} rows of {all}", pending.changed);
                        return Err(Violation::new("as a whole", what));
                    }
                    // Rows that were put aside went with a range, and the gateway tells so.
                    self.loads.remove(&load);
                    return Ok(());
                }
                self.settle_load(load, Fate::Acknowledged(pending.start));
                self.loads.remove(&load);
            }
            What::Discard { load } => {
                world.count("load discarded");
                self.loads.remove(&load);
            }
            What::LastLook { table } => {
                self.last.insert(table, pending.rows);
            }
            // Nobody died of it: it came when nobody might.
            What::Deadly { .. } => world.count("deadly read answered"),
        }
        Ok(())
    }

    /// All rows of a range are lost: what it held is not asked for any more.
    pub(super) fn lose(&mut self, keys: Keys, now: Time) {
        self.lost.push((keys, now));
    }

    /// A range goes on from rows that a keeper had.
    pub(super) fn tear(&mut self) {
        self.torn = true;
    }

    /// When the last holder of this key crashed, if it did.
    fn lost_at(&self, key: u64) -> Option<Time> {
        self.lost.iter().filter(|((low, high), _)| *low <= key && key <= *high).map(|(_, at)| *at).max()
    }

    fn account_lost_at(&self, account: i64) -> Option<Time> {
        self.lost_at(self.schemas[0].partition.key_of(&Value::Int8(account)))
    }

    /// Every account is among these rows once, and nothing else; one that was lost may be missing.
    fn all_accounts(&self, rows: &[Row]) -> Result<(), Violation> {
        let mut ids: Vec<Option<i64>> = rows.iter().map(|row| row[0].as_integer()).collect();
        ids.sort_unstable();
        let missing = |account: &i64| ids.binary_search(&Some(*account)).is_err();
        let missed = (0..self.accounts).filter(missing).find(|&it| self.account_lost_at(it).is_none());
        let known = |id: &Option<i64>| id.is_some_and(|id| (0..self.accounts).contains(&id));
        if missed.is_some() || !ids.iter().all(known) || ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Violation::new("answer", format!("a look at all accounts shows {ids:?}")));
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

    /// Whether all is done that was to be done.
    pub(super) fn is_idle(&mut self, world: &mut World<Citizen>) -> bool {
        self.give_up_the_dead(world);
        let last = self.pending.values().all(|pending| matches!(pending.what, What::LastLook { .. }));
        self.phase == Phase::Open && self.left == 0 && last
    }

    /// Asks for all rows of what is judged in the end, once; tells whether they have come.
    pub(super) fn ask_last(&mut self, world: &mut World<Citizen>) -> bool {
        let table = (1..self.schemas.len()).find(|table| !self.last.contains_key(table));
        if let Some(table) = table
            && self.pending.is_empty()
        {
            let machine = self.gateways[0];
            let Some(Process::Client(client)) = role(world, machine) else { return false };
            let Some(config) = client.config().cloned() else { return false };
            self.read(world, machine, &config, What::LastLook { table }, Strength::Sequential);
        }
        table.is_none()
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
}

/// A gateway's user has taken a piece, and there is room for more.
fn consumed(world: &mut World<Citizen>, machine: usize, token: u64, from: ProcessId, piece: &Bytes) {
    let bytes = piece.len() as u64;
    world.command(machine, ask(Command::Client(ClientCommand::Consumed { token, from, bytes })));
}

fn postcard(schema: &Schema) -> Bytes {
    postcard::to_stdvec(schema).expect("our own types always serialise").into()
}
