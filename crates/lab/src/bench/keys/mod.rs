//! `quorate bench keys`: reads and updates of one row by its key, through the SQL door.
//!
//! A separate load process keeps connections busy with one prepared statement, first alone and then with more
//! and more clients. Each figure comes with the processor time that each process of the cluster used. With
//! `--postgres` the same load process measures a PostgreSQL server in the same run: one process, one copy,
//! without syncs.

mod load;

use std::{collections::BTreeMap, io::Write, time::Duration};

use anyhow::{Result, ensure};
use quorate_protocol::Strength;
use serde::Serialize;

pub(crate) use self::load::KeysLoad;
use self::load::Verb;
use super::{
    processor,
    sql_load::{LoadOptions, LoadProcess, LoadRun, System, measure_each},
};

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
    #[command(flatten)]
    load: LoadOptions,
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

/// A bench of one server.
struct KeysBench<'a> {
    system: &'a System,
    args: &'a Args,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.rows > 0 && !args.clients.is_empty() && args.clients.iter().all(|clients| *clients > 0),
        "--rows and --clients must be at least 1"
    );
    measure_each(&args.load, |system| {
        let filler = "x".repeat(84);
        let columns = "id bigint primary key, value bigint not null, filler text not null";
        system.fill("keys", columns, args.rows, |id| format!("({id}, 0, '{filler}')"))?;
        let bench = KeysBench { system, args };
        if system.is_quorate {
            for &strength in &args.read {
                bench.measure_all(Verb::Read, Some(strength))?;
            }
        } else {
            bench.measure_all(Verb::Read, None)?;
        }
        if !args.no_updates {
            bench.measure_all(Verb::Update, None)?;
        }
        Ok(())
    })
}

impl KeysBench<'_> {
    /// Measures one statement with each number of clients.
    fn measure_all(&self, verb: Verb, strength: Option<Strength>) -> Result<()> {
        for &clients in &self.args.clients {
            let (run, used) = self.measure(verb, strength, clients)?;
            self.print_result(verb, strength, clients, run, used)?;
        }
        Ok(())
    }

    /// Runs the load. Returns its results, and the processor time that each process used meanwhile.
    fn measure(
        &self,
        verb: Verb,
        strength: Option<Strength>,
        clients: usize,
    ) -> Result<(LoadRun, Vec<(String, Duration)>)> {
        let begin = strength.map(|strength| format!("set quorate.read = '{strength}'"));
        let work = KeysLoad { begin, verb, rows: self.args.rows };
        let mut load =
            LoadProcess::start::<KeysLoad>("keys-load", self.system, &self.args.load, clients, work)?;
        let processes = self.system.processes.iter().cloned().chain([(String::from("load"), load.id())]);
        let processes: Vec<(String, u32)> = processes.collect();
        let times = || processes.iter().map(|(_, pid)| processor::time(*pid)).collect::<Result<Vec<_>>>();
        load.wait_for_begin()?;
        let before = times()?;
        let line = load.wait_for_end()?;
        let after = times()?;
        let run = load.results(&line)?;
        ensure!(run.wrong == 0, "{} of {} statements found no row", run.wrong, run.measured);
        let spent = before.into_iter().zip(after).map(|(before, after)| after - before);
        Ok((run, processes.into_iter().map(|(name, _)| name).zip(spent).collect()))
    }

    fn print_result(
        &self,
        verb: Verb,
        strength: Option<Strength>,
        clients: usize,
        run: LoadRun,
        used: Vec<(String, Duration)>,
    ) -> Result<()> {
        let executions = run.measured as f64;
        let processes = used.into_iter().map(|(name, time)| {
            let seconds = time.as_secs_f64();
            (
                name,
                ProcessUsage { cores: seconds / run.seconds, us_per_execution: seconds * 1e6 / executions },
            )
        });
        let measurement = KeysMeasurement {
            bench: "keys",
            system: self.system.name.clone(),
            durable: self.system.durable,
            work: verb.name(),
            read: strength.map(Strength::name),
            clients,
            rows: self.args.rows,
            seconds: run.seconds,
            executions: run.measured,
            per_second: run.per_second(),
            p50_us: run.p50_us,
            p99_us: run.p99_us,
            processes: processes.collect(),
        };
        let mut out = std::io::stdout().lock();
        if self.args.load.json {
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
