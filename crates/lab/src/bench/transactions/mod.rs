//! `quorate bench transactions`: what a transaction costs, beside an update of one row by its key.
//!
//! A separate load process transfers money between accounts through the SQL door: two updates in one message,
//! or a block of BEGIN, two updates and COMMIT. Contended transfers favour few accounts, and blocks on one
//! hot row lock it by FOR UPDATE. Afterwards the bench counts the changes in the table: each committed
//! transaction is there once, and the sum of all accounts is as before. With `--postgres` the same load
//! process measures a PostgreSQL server in the same run.

mod load;

use std::io::Write;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub(crate) use self::load::TransactionsLoad;
use self::load::{TransactionKind, Work};
use super::sql_load::{LoadOptions, LoadProcess, LoadRun, System, measure_each};
use crate::sql;

/// Measures transactions of two updates, and compares them with updates of one row.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of concurrent connections. Each number is measured separately.
    #[arg(long, value_delimiter = ',', default_value = "64,256", value_name = "N,…")]
    clients: Vec<usize>,
    /// Accounts in the table.
    #[arg(long, default_value_t = 100_000)]
    accounts: u64,
    /// Exponent of Zipf's law, by which contended transfers draw their accounts.
    #[arg(long, default_value_t = 1.5)]
    zipf: f64,
    /// Contended transfers that each connection has under way at a time.
    #[arg(long, default_value_t = 8)]
    pipeline: usize,
    #[command(flatten)]
    load: LoadOptions,
}

/// The figures of one system with one number of connections. Latencies are those of a single connection.
#[derive(Serialize)]
struct TransactionsMeasurement {
    bench: &'static str,
    system: String,
    durable: bool,
    clients: usize,
    accounts: u64,
    key_updates_per_second: f64,
    key_update_p50_us: f64,
    /// Transfers whose two updates are one message.
    one_message_per_second: f64,
    one_message_p50_us: f64,
    /// Transfers whose statements are sent one by one between BEGIN and COMMIT.
    conversation_per_second: f64,
    conversation_p50_us: f64,
    /// Transfers in one message each, between accounts of which few are frequent.
    contended_per_second: f64,
    /// The longest time that a contended transfer took.
    longest_wait_ms: f64,
    /// Blocks that lock one and the same row, and update it.
    hot_row_per_second: f64,
    /// Blocks on the hot row that failed with 40001, as a share of all attempts.
    conflicts_share: f64,
    /// Connections that committed nothing on the hot row.
    starved: usize,
    /// Transfers, contended or not, that failed with 40001.
    conflicts: u64,
    /// Committed updates that the table lacks.
    lost: u64,
    /// Updates that the table has once too often.
    doubled: u64,
    /// Money that appeared or disappeared, because a transfer took effect in part.
    half: u64,
}

/// A bench of one server.
struct TransactionsBench<'a> {
    system: &'a System,
    args: &'a Args,
}

/// The counts that tell what took effect.
#[derive(Clone, Copy)]
struct Ledger {
    cents: i64,
    moves: i64,
}

/// The sums of what the checks of all loads found.
#[derive(Default)]
struct Found {
    conflicts: u64,
    lost: u64,
    doubled: u64,
    half: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.accounts > 1 && !args.clients.is_empty() && args.clients.iter().all(|clients| *clients > 0),
        "--clients must be at least 1, and --accounts at least 2"
    );
    ensure!(args.pipeline > 0, "--pipeline must be at least 1");
    measure_each(&args.load, |system| TransactionsBench { system, args }.measure_all())
}

impl TransactionsBench<'_> {
    fn measure_all(&self) -> Result<()> {
        let columns = "id bigint primary key, cents bigint not null, moves bigint not null";
        self.system.fill("accounts", columns, self.args.accounts, |id| format!("({id}, 1000, 0)"))?;
        for &clients in &self.args.clients {
            let measurement = self.measure(clients)?;
            self.report(&measurement)?;
            let wrong = measurement.lost + measurement.doubled + measurement.half;
            ensure!(wrong == 0, "the table does not show exactly the committed transactions");
        }
        Ok(())
    }

    fn measure(&self, clients: usize) -> Result<TransactionsMeasurement> {
        let mut found = Found::default();
        let mut alone = |kind| self.load(kind, 1, &mut found).map(|run| run.p50_us);
        let key_update_p50_us = alone(TransactionKind::KeyUpdate)?;
        let one_message_p50_us = alone(TransactionKind::OneMessage)?;
        let conversation_p50_us = alone(TransactionKind::Conversation)?;
        let mut together = |kind| self.load(kind, clients, &mut found);
        let key_updates = together(TransactionKind::KeyUpdate)?;
        let one_message = together(TransactionKind::OneMessage)?;
        let conversation = together(TransactionKind::Conversation)?;
        let contended = together(TransactionKind::Contended)?;
        // Conflicts on the hot row have a figure of their own.
        let mut found_on_hot_row = Found::default();
        let hot_row = self.load(TransactionKind::HotRow, clients, &mut found_on_hot_row)?;
        let attempts = hot_row.succeeded + hot_row.conflicts;
        Ok(TransactionsMeasurement {
            bench: "transactions",
            system: self.system.name.clone(),
            durable: self.system.durable,
            clients,
            accounts: self.args.accounts,
            key_updates_per_second: key_updates.per_second(),
            key_update_p50_us,
            one_message_per_second: one_message.per_second(),
            one_message_p50_us,
            conversation_per_second: conversation.per_second(),
            conversation_p50_us,
            contended_per_second: contended.per_second(),
            longest_wait_ms: contended.longest_us / 1000.0,
            hot_row_per_second: hot_row.per_second(),
            conflicts_share: hot_row.conflicts as f64 / attempts.max(1) as f64,
            starved: hot_row.starved,
            conflicts: found.conflicts,
            lost: found.lost + found_on_hot_row.lost,
            doubled: found.doubled + found_on_hot_row.doubled,
            half: found.half + found_on_hot_row.half,
        })
    }

    /// Runs a load, and compares the table with its results.
    fn load(&self, kind: TransactionKind, clients: usize, found: &mut Found) -> Result<LoadRun> {
        let Args { accounts, zipf, .. } = *self.args;
        let pipeline = if kind == TransactionKind::Contended { self.args.pipeline } else { 1 };
        let work = Work { kind, pipeline, accounts, zipf };
        let before = self.ledger()?;
        let (command, options) = ("transactions-load", &self.args.load);
        let mut load = LoadProcess::start::<TransactionsLoad>(command, self.system, options, clients, work)?;
        load.wait_for_begin()?;
        let line = load.wait_for_end()?;
        let run = load.results(&line)?;
        let after = self.ledger()?;
        let moved = after.moves - before.moves;
        let committed = run.succeeded as i64 * kind.updates();
        found.conflicts += run.conflicts;
        found.lost += (committed - moved).max(0) as u64;
        found.doubled += (moved - committed).max(0) as u64;
        found.half += after.cents.abs_diff(before.cents);
        Ok(run)
    }

    fn ledger(&self) -> Result<Ledger> {
        let runtime = sql::runtime()?;
        let client = runtime.block_on(sql::connect(&self.system.address))?;
        let sums = "select sum(cents)::bigint, sum(moves)::bigint from accounts";
        let row = runtime.block_on(client.query_one(sums, &[])).context(sums)?;
        Ok(Ledger { cents: row.get(0), moves: row.get(1) })
    }

    fn report(&self, measurement: &TransactionsMeasurement) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.args.load.json {
            writeln!(out, "{}", serde_json::to_string(measurement)?)?;
            return Ok(());
        }
        let it = measurement;
        writeln!(out, "{}, {} connections:", it.system, it.clients)?;
        let mut line = |what: &str, per_second: f64, p50_us: Option<f64>| {
            let alone = p50_us.map(|p50| format!(", {p50:.0} µs alone")).unwrap_or_default();
            writeln!(out, "  {what}: {per_second:.0}/s{alone}")
        };
        line("updates by key", it.key_updates_per_second, Some(it.key_update_p50_us))?;
        line("transfers in one message", it.one_message_per_second, Some(it.one_message_p50_us))?;
        line("transfers statement by statement", it.conversation_per_second, Some(it.conversation_p50_us))?;
        line("contended transfers", it.contended_per_second, None)?;
        line("blocks on one row", it.hot_row_per_second, None)?;
        writeln!(
            out,
            "  longest wait of a contended transfer: {:.0} ms; conflicts: {}, on the hot row {:.1} %; starved: {}",
            it.longest_wait_ms,
            it.conflicts,
            it.conflicts_share * 100.0,
            it.starved
        )?;
        writeln!(out, "  lost: {}, doubled: {}, half: {}", it.lost, it.doubled, it.half)?;
        Ok(())
    }
}
