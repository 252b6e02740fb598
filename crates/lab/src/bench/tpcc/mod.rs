//! `quorate bench tpcc`: the five transactions of TPC-C while processes are killed.
//!
//! Terminals run the transactions of the specification (revision 5.11) in its mix, without keying and
//! thinking times, as conversations of single statements. Processes of every role are killed meanwhile.
//! Afterwards the bench checks the specification's consistency conditions, and that every order whose commit
//! was confirmed is there.
//!
//! **Differences from the specification.** Amounts are whole cents. Delivery commits each district on its
//! own, which clause 2.7.2 allows. Stock level asks in two statements, because Quorate has no joins. There is
//! no ramp of response times. So the result is no tpmC.

mod conditions;
mod population;
mod terminal;
mod transactions;

use std::{
    io::Write,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use quorate_protocol::Role;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use self::{population::Size, terminal::Terminals};
use super::{failover, spawned::Spawned};
use crate::sql;

/// Runs the transactions of TPC-C while processes are killed, and checks the consistency conditions.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Warehouses.
    #[arg(long, default_value_t = 4)]
    warehouses: i32,
    /// Customers of each district, and orders of each district at the beginning.
    #[arg(long, default_value_t = 3000)]
    customers: i32,
    /// Items, each of which is in stock at every warehouse.
    #[arg(long, default_value_t = 100_000)]
    items: i32,
    /// Concurrent connections, each of which runs one transaction after another.
    #[arg(long, default_value_t = 16)]
    terminals: usize,
    /// Kills, spread evenly over the time. Storage processes, routers, supers and the gateway take turns.
    #[arg(long, default_value_t = 0)]
    kills: usize,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Seed of the population and of the transactions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure a cluster on disk.
    #[arg(long)]
    durable: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct TpccMeasurement {
    bench: &'static str,
    warehouses: i32,
    customers: i32,
    items: i32,
    terminals: usize,
    durable: bool,
    seconds: f64,
    kills: usize,
    new_orders_per_minute: f64,
    /// Median and 99th percentile of the time of a new order, repetitions included.
    new_order_p50_ms: f64,
    new_order_p99_ms: f64,
    /// Committed transactions of all kinds.
    committed: u64,
    /// Attempts that failed with 40001 and were repeated.
    conflicts: u64,
    /// Transactions that ended without a known outcome, because a process died.
    unknown: u64,
    /// New orders whose commit was confirmed, and that are not there.
    lost: u64,
    /// Orders of which only a part is there.
    half: u64,
    /// Violations of the specification's consistency conditions.
    violations: u64,
    /// The violated conditions, by their number in the specification.
    violated: Vec<String>,
}

/// The roles whose processes are killed, in turns.
const ROLES: [Role; 4] = [Role::Storage, Role::Router, Role::Super, Role::Gateway];

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.warehouses > 0 && args.customers > 0 && args.items > 0 && args.terminals > 0,
        "--warehouses, --customers, --items and --terminals must be at least 1"
    );
    let size = Size { warehouses: args.warehouses, customers: args.customers, items: args.items };
    let spawned = Spawned::maybe_durable(args.durable)?;
    let address = spawned.sql()?.to_owned();
    let runtime = sql::runtime()?;
    let client = runtime.block_on(sql::connect(&address))?;
    runtime.block_on(population::load(&client, size, args.seed)).context("loading the tables")?;
    drop(client);
    let terminals = Arc::new(Terminals::new(&address, size, args.seed));
    let running = {
        let (terminals, count) = (terminals.clone(), args.terminals);
        thread::spawn(move || terminals.run(count))
    };
    let began = Instant::now();
    let killed = kill_in_turns(args, &spawned, began);
    thread::sleep(Duration::from_secs_f64(args.seconds).saturating_sub(began.elapsed()));
    let seconds = began.elapsed().as_secs_f64();
    terminals.end();
    running.join().expect("the terminals do not panic")?;
    let kills = killed?;
    failover::whole(&spawned)?;
    let totals = terminals.totals();
    let client = runtime.block_on(sql::connect(&address))?;
    let found = runtime.block_on(conditions::check(&client, &totals.orders))?;
    let measurement = TpccMeasurement {
        bench: "tpcc",
        warehouses: size.warehouses,
        customers: size.customers,
        items: size.items,
        terminals: args.terminals,
        durable: args.durable,
        seconds,
        kills,
        new_orders_per_minute: (totals.orders.len() as f64 * 60.0 / seconds).round(),
        new_order_p50_ms: totals.new_order_ms(0.5),
        new_order_p99_ms: totals.new_order_ms(0.99),
        committed: totals.committed,
        conflicts: totals.conflicts,
        unknown: totals.unknown,
        lost: found.lost,
        half: found.half,
        violations: found.violated.len() as u64,
        violated: found.violated,
    };
    report(&measurement, args.json)?;
    ensure!(
        measurement.violations + measurement.lost + measurement.half == 0,
        "the tables do not show exactly the committed transactions"
    );
    spawned.succeeded();
    Ok(())
}

/// Kills processes, spread over the time of the measurement. Each kill waits until the cluster has recovered
/// from the one before. Returns the number of kills.
fn kill_in_turns(args: &Args, spawned: &Spawned, began: Instant) -> Result<usize> {
    let pause = args.seconds / (args.kills + 1) as f64;
    for kill in 0..args.kills {
        let due = Duration::from_secs_f64(pause * (kill + 1) as f64);
        thread::sleep(due.saturating_sub(began.elapsed()));
        let processes = failover::whole(spawned)?;
        let (_, victim) = failover::victim(&processes, ROLES[kill % ROLES.len()], kill / ROLES.len())?;
        let pid = victim.pid.and_then(|pid| Pid::from_raw(pid as i32));
        kill_process(
            pid.context("`quorate status` shows no process id of a process that runs")?,
            Signal::KILL,
        )?;
        eprintln!("killed {}", victim.name);
    }
    Ok(args.kills)
}

fn report(it: &TpccMeasurement, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(it)?)?;
        return Ok(());
    }
    writeln!(
        out,
        "{} warehouses, {} terminals, {} kills in {:.0} s: {:.0} new orders a minute, p50 {:.0} ms, p99 {:.0} ms",
        it.warehouses,
        it.terminals,
        it.kills,
        it.seconds,
        it.new_orders_per_minute,
        it.new_order_p50_ms,
        it.new_order_p99_ms
    )?;
    writeln!(
        out,
        "{} transactions committed, {} attempts repeated after 40001, {} of unknown outcome",
        it.committed, it.conflicts, it.unknown
    )?;
    writeln!(out, "lost: {}, half: {}, violated conditions: {}", it.lost, it.half, it.violations)?;
    for violated in &it.violated {
        writeln!(out, "  {violated}")?;
    }
    Ok(())
}
