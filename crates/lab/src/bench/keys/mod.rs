//! `quorate bench keys`: reads and updates of one row by its key, through the SQL door.
//!
//! A separate load process keeps connections busy with one prepared statement, first alone and then with more
//! and more clients. Each figure comes with the processor time that each process of the cluster used. With
//! `--postgres` the same load process measures a PostgreSQL server in the same run: one process, one copy,
//! without syncs.

mod load;

use std::{collections::BTreeMap, io::Write, time::Duration};

use anyhow::{Context, Result, ensure};
use quorate_protocol::Strength;
use serde::Serialize;

pub(crate) use self::load::{LoadArgs, run_load};
use self::load::{LoadRun, LoadSpec, Work};
use super::{child::Child, postgres::Postgres, processor, spawned::Spawned};
use crate::sql;

/// Measures reads and updates of single rows by key.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of concurrent connections. Each number is measured separately.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256", value_name = "N,…")]
    clients: Vec<usize>,
    /// Strengths of the reads. Each strength is measured separately.
    #[arg(long, value_delimiter = ',', default_value = "basic,snapshot,sequential", value_name = "WORD,…")]
    read: Vec<Strength>,
    /// Leave out the updates.
    #[arg(long)]
    no_updates: bool,
    /// Rows in the table.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Warm-up seconds before each measurement.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Seed of the keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure a cluster on disk.
    #[arg(long)]
    durable: bool,
    /// Also measure PostgreSQL with fsync off, if it is installed.
    #[arg(long)]
    postgres: bool,
    /// Print one JSON object for each measurement.
    #[arg(long)]
    json: bool,
}

/// One measurement.
#[derive(Serialize)]
struct KeysMeasurement {
    bench: &'static str,
    system: String,
    durable: bool,
    work: &'static str,
    /// The strength of the reads; `None` for updates and for PostgreSQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<&'static str>,
    clients: usize,
    rows: u64,
    seconds: f64,
    executions: u64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// For every process, the cores used, and the processor time per execution.
    processes: BTreeMap<String, ProcessUsage>,
}

#[derive(Serialize)]
struct ProcessUsage {
    cores: f64,
    us_per_execution: f64,
}

/// A server that is measured.
struct System<'a> {
    name: String,
    address: String,
    /// Names of the server's processes, with their operating-system ids.
    processes: Vec<(String, u32)>,
    durable: bool,
    args: &'a Args,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.rows > 0 && !args.clients.is_empty() && args.clients.iter().all(|clients| *clients > 0),
        "--rows and --clients must be at least 1"
    );
    let spawned = Spawned::maybe_durable(args.durable)?;
    let processes = spawned.processes().iter().filter_map(|entry| Some((entry.name.clone(), entry.pid?)));
    let quorate = System {
        name: String::from("quorate"),
        address: spawned.sql()?.to_owned(),
        processes: processes.collect(),
        durable: args.durable,
        args,
    };
    quorate.fill()?;
    for &strength in &args.read {
        quorate.measure_all(Work::Read, Some(strength))?;
    }
    if !args.no_updates {
        quorate.measure_all(Work::Update, None)?;
    }
    spawned.succeeded();
    drop(spawned);
    if args.postgres {
        let Some(server) = Postgres::start()? else {
            eprintln!("left out: PostgreSQL is not installed (Debian: postgresql)");
            return Ok(());
        };
        let postgres = System {
            name: server.version()?,
            address: server.address(),
            processes: Vec::new(),
            durable: false,
            args,
        };
        postgres.fill()?;
        postgres.measure_all(Work::Read, None)?;
        if !args.no_updates {
            postgres.measure_all(Work::Update, None)?;
        }
    }
    Ok(())
}

impl System<'_> {
    /// Creates the table with its rows.
    fn fill(&self) -> Result<()> {
        const BATCH: u64 = 1000;
        let runtime = sql::runtime()?;
        let client = runtime.block_on(sql::connect(&self.address))?;
        let create = "create table keys (id bigint primary key, value bigint not null, filler text not null)";
        runtime.block_on(client.batch_execute(create)).context("creating the table")?;
        let filler = "x".repeat(84);
        for first in (0..self.args.rows).step_by(BATCH as usize) {
            let rows = (first..self.args.rows.min(first + BATCH)).map(|id| format!("({id}, 0, '{filler}')"));
            let insert = format!("insert into keys values {}", rows.collect::<Vec<_>>().join(", "));
            runtime.block_on(client.batch_execute(&insert)).context("filling the table")?;
        }
        Ok(())
    }

    /// Measures one kind of work with each number of clients.
    fn measure_all(&self, work: Work, strength: Option<Strength>) -> Result<()> {
        for &clients in &self.args.clients {
            let (run, used) = self.measure(work, strength, clients)?;
            self.print_result(work, strength, clients, run, used)?;
        }
        Ok(())
    }

    /// Runs the load. Returns its results, and the processor time that each process used meanwhile.
    fn measure(
        &self,
        work: Work,
        strength: Option<Strength>,
        clients: usize,
    ) -> Result<(LoadRun, Vec<(String, Duration)>)> {
        let spec = LoadSpec {
            address: self.address.clone(),
            begin: strength.map(|strength| format!("set quorate.read = '{strength}'")),
            work,
            clients,
            rows: self.args.rows,
            warm_up: self.args.warm_up,
            seconds: self.args.seconds,
            seed: self.args.seed,
        };
        let mut load = Child::start(String::from("load"), "keys-load", &spec)?;
        let processes = self.processes.iter().cloned().chain([(String::from("load"), load.id())]);
        let processes: Vec<(String, u32)> = processes.collect();
        let times = || processes.iter().map(|(_, pid)| processor::time(*pid)).collect::<Result<Vec<_>>>();
        ensure!(load.line()? == "measuring", "the load process of the bench did not begin to measure");
        let before = times()?;
        let line = load.line()?;
        let after = times()?;
        let run: LoadRun = serde_json::from_str(&line).with_context(|| line.clone())?;
        let failure = run.failure.clone().unwrap_or_default();
        ensure!(run.failed == 0, "{} statements failed, the first of these with: {failure}", run.failed);
        ensure!(run.wrong == 0, "{} of {} statements found no row", run.wrong, run.executions);
        ensure!(run.executions > 0, "nothing was answered in {} s: give more --seconds", self.args.seconds);
        let spent = before.into_iter().zip(after).map(|(before, after)| after - before);
        Ok((run, processes.into_iter().map(|(name, _)| name).zip(spent).collect()))
    }

    fn print_result(
        &self,
        work: Work,
        strength: Option<Strength>,
        clients: usize,
        run: LoadRun,
        used: Vec<(String, Duration)>,
    ) -> Result<()> {
        let executions = run.executions as f64;
        let processes = used.into_iter().map(|(name, time)| {
            let seconds = time.as_secs_f64();
            (
                name,
                ProcessUsage { cores: seconds / run.seconds, us_per_execution: seconds * 1e6 / executions },
            )
        });
        let measurement = KeysMeasurement {
            bench: "keys",
            system: self.name.clone(),
            durable: self.durable,
            work: work.name(),
            read: strength.map(Strength::name),
            clients,
            rows: self.args.rows,
            seconds: run.seconds,
            executions: run.executions,
            per_second: (executions / run.seconds).round(),
            p50_us: run.p50_us,
            p99_us: run.p99_us,
            processes: processes.collect(),
        };
        let mut out = std::io::stdout().lock();
        if self.args.json {
            writeln!(out, "{}", serde_json::to_string(&measurement)?)?;
            return Ok(());
        }
        let what = match measurement.read {
            Some(read) => format!("{} at {read}", measurement.work),
            None => measurement.work.to_owned(),
        };
        writeln!(
            out,
            "{}, {what}, {clients} clients: {:.0}/s, p50 {:.0} µs, p99 {:.0} µs",
            measurement.system, measurement.per_second, measurement.p50_us, measurement.p99_us
        )?;
        for (name, used) in &measurement.processes {
            writeln!(out, "  {name}: {:.2} cores, {:.1} µs each", used.cores, used.us_per_execution)?;
        }
        Ok(())
    }
}
