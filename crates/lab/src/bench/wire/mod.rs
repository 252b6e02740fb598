//! `quorate bench wire`: the ticket queries through the SQL door of a cluster of real processes.
//!
//! A separate load process keeps connections busy with prepared statements of eight templates. Their
//! constants come from existing rows. The load process compares the number of rows in every answer with the
//! scan engine's result. With `--address` the same load queries another server that speaks the protocol and
//! has the same rows.

mod load;
mod queries;

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures_util::SinkExt;
use quorate_protocol::{Role, Strength};
use serde::Serialize;
use tokio_postgres::Client;

pub(crate) use self::load::{LoadArgs, run_load};
use self::{
    load::{LoadRun, LoadSlot, LoadSpec},
    queries::Question,
};
use super::{
    child::Child,
    processor,
    spawned::{Process, Spawned},
};
use crate::sql;

/// Measures ticket queries over the PostgreSQL protocol.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Connections that query concurrently.
    #[arg(long, default_value_t = 256)]
    clients: usize,
    /// Tickets in the table.
    #[arg(long, default_value_t = 1_000_000)]
    rows: usize,
    /// Number of different questions.
    #[arg(long, default_value_t = 4096)]
    questions: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Warm-up seconds before each measurement.
    #[arg(long, default_value_t = 2.0)]
    warm_up: f64,
    /// The strength of reads. If several are given, each is measured separately.
    #[arg(long, value_delimiter = ',', default_value = "snapshot")]
    read: Vec<Strength>,
    /// Draw a new mixture of templates and new constants at this interval in seconds, and report every half
    /// second.
    #[arg(long, value_name = "SECONDS")]
    redraw: Option<f64>,
    /// Seed of the generator.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the rows and the questions in this folder, for other systems.
    #[arg(long, value_name = "FOLDER")]
    emit: Option<PathBuf>,
    /// Query a cluster on disk.
    #[arg(long, conflicts_with = "address")]
    durable: bool,
    /// Query the server at host:port, which has the rows already, instead of a cluster.
    #[arg(long, requires = "from")]
    address: Option<String>,
    /// Take the questions from this folder, where --emit wrote them.
    #[arg(long, value_name = "FOLDER", requires = "address")]
    from: Option<PathBuf>,
    /// Print one JSON object for each measurement.
    #[arg(long)]
    json: bool,
}

/// One measurement.
#[derive(Serialize)]
struct WireMeasurement {
    bench: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<&'static str>,
    durable: bool,
    clients: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<usize>,
    seconds: f64,
    executions: u64,
    queries_per_second: f64,
    latency_p50_ms: f64,
    latency_p99_ms: f64,
    latency_max_ms: f64,
    p99_to_p50: f64,
    rows_per_query: f64,
    /// Number of executions, and median latency in milliseconds, of each template.
    templates: Vec<(u64, f64)>,
    /// Processor time of the gateway per query, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway_cpu_us_per_query: Option<f64>,
    /// Mean number of queries in a pass, over the storage processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    queries_per_pass: Option<f64>,
    /// Mean duration of a pass, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pass_ms: Option<f64>,
    load_seconds: Option<f64>,
    /// For each process, the number of cores that it used on average, and its processor time per execution.
    processes: BTreeMap<String, ProcessUsage>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<LoadSlot>,
}

#[derive(Serialize)]
struct ProcessUsage {
    cores: f64,
    us_per_query: f64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    ensure!(
        args.clients > 0 && args.questions > 0 && args.rows > 0,
        "--clients, --questions and --rows must be at least 1"
    );
    if let (Some(address), Some(from)) = (&args.address, &args.from) {
        let (run, _) = measure(&args, address, None, from, &[])?;
        return print_result(&args, None, run, Vec::new(), None, None);
    }
    let spawned = Spawned::maybe_durable(args.durable)?;
    let folder = match &args.emit {
        Some(folder) => folder.clone(),
        None => spawned.place().to_owned(),
    };
    fs::create_dir_all(&folder)?;
    let address = spawned.sql()?.to_owned();
    let loading = fill(&args, &address, &folder)?;
    for &strength in &args.read {
        let before = passes(spawned.processes())?;
        let (run, used) = measure(&args, &address, Some(strength), &folder, spawned.processes())?;
        let after = passes(spawned.processes())?;
        print_result(&args, Some(strength), run, used, Some((before, after)), Some(loading))?;
    }
    spawned.succeeded();
    Ok(())
}

/// Creates the table, copies the tickets into it, and writes the questions. Returns the duration of the copy
/// in seconds.
fn fill(args: &Args, address: &str, folder: &Path) -> Result<f64> {
    let runtime = sql::runtime()?;
    let client = runtime.block_on(sql::connect(address))?;
    runtime.block_on(create(&client))?;
    let mut file = match args.emit {
        Some(_) => Some(fs::File::create(folder.join("tickets.tsv"))?),
        None => None,
    };
    let (mut loaded, mut spent) = (0, Duration::ZERO);
    let questions: Vec<Question> = queries::make(args.seed, args.rows, args.questions, |text| {
        if let Some(file) = &mut file {
            file.write_all(&text)?;
        }
        let began = Instant::now();
        loaded += runtime.block_on(copy(&client, text))?;
        spent += began.elapsed();
        Ok(())
    })?;
    ensure!(loaded == args.rows as u64, "{loaded} tickets were loaded instead of {}", args.rows);
    queries::write(folder, &questions)?;
    Ok(spent.as_secs_f64())
}

/// Creates the table, and copies `rows` tickets into it.
pub(super) fn load_tickets(address: &str, rows: usize) -> Result<()> {
    let runtime = sql::runtime()?;
    let client = runtime.block_on(sql::connect(address))?;
    runtime.block_on(create(&client))?;
    queries::make(1, rows, 1, |text| runtime.block_on(copy(&client, text)).map(drop))?;
    Ok(())
}

async fn copy(client: &Client, text: Vec<u8>) -> Result<u64> {
    let mut copy = std::pin::pin!(client.copy_in("copy tickets from stdin").await?);
    let text = Bytes::from(text);
    for from in (0..text.len()).step_by(PIECE_BYTES) {
        copy.send(text.slice(from..text.len().min(from + PIECE_BYTES))).await?;
    }
    Ok(copy.finish().await?)
}

/// Size of one message of a COPY, in bytes.
const PIECE_BYTES: usize = 256 << 10;

async fn create(client: &Client) -> Result<()> {
    let statement = format!("{} with (partition_by = 'hash(rloc)')", queries::schema());
    Ok(client.batch_execute(&statement).await?)
}

/// Runs the load. Returns its results, and the processor time that each process used during the measurement.
fn measure(
    args: &Args,
    address: &str,
    strength: Option<Strength>,
    folder: &Path,
    processes: &[Process],
) -> Result<(LoadRun, Vec<(String, Duration)>)> {
    let spec = LoadSpec {
        address: address.to_owned(),
        begin: strength.map(|strength| format!("set quorate.read = '{strength}'")),
        clients: args.clients,
        warm_up: args.warm_up,
        seconds: args.seconds,
        questions: folder.join("questions.jsonl"),
        seed: args.seed,
        redraw: args.redraw,
    };
    let mut load = Child::start(String::from("load"), "wire-load", &spec)?;
    let mut used: Vec<(String, u32)> =
        processes.iter().filter_map(|entry| Some((entry.name.clone(), entry.pid?))).collect();
    used.push(("load".to_owned(), load.id()));
    let times = || used.iter().map(|(_, pid)| processor::time(*pid)).collect::<Result<Vec<_>>>();
    ensure!(load.line()? == "measuring", "the load process of the bench did not begin to measure");
    let before = times()?;
    let line = load.line()?;
    let after = times()?;
    let run: LoadRun = serde_json::from_str(&line).with_context(|| line.clone())?;
    if run.failed > 0 {
        bail!("{} queries failed, the first of these with: {}", run.failed, run.failure.unwrap_or_default());
    }
    ensure!(run.wrong == 0, "{} of {} queries returned too few or too many rows", run.wrong, run.executions);
    let spent = before.into_iter().zip(after).map(|(before, after)| after - before);
    Ok((run, used.iter().map(|(name, _)| name.clone()).zip(spent).collect()))
}

/// The work of the storage processes so far.
#[derive(Clone, Copy, Default)]
struct Passes {
    passes: f64,
    tasks: f64,
    seconds: f64,
}

fn passes(processes: &[Process]) -> Result<Passes> {
    let mut all = Passes::default();
    for process in processes.iter().filter(|process| process.role == Role::Storage) {
        let Some(bound) = &process.bound else { continue };
        let text = ureq::get(format!("http://{}/metrics", bound.http)).call()?.body_mut().read_to_string()?;
        let counted = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        all.passes += counted("quorate_engine_batches_total");
        all.tasks += counted("quorate_engine_tasks_total");
        all.seconds += counted("quorate_engine_nanoseconds_total") / 1e9;
    }
    Ok(all)
}

fn print_result(
    args: &Args,
    read: Option<Strength>,
    run: LoadRun,
    used: Vec<(String, Duration)>,
    passes: Option<(Passes, Passes)>,
    load_seconds: Option<f64>,
) -> Result<()> {
    ensure!(run.executions > 0, "no query was answered in {} s: give more --seconds", args.seconds);
    let executions = run.executions as f64;
    let per_query = |time: &Duration| time.as_secs_f64() * 1e6 / executions;
    let done = passes.map(|(before, after)| Passes {
        passes: (after.passes - before.passes).max(1.0),
        tasks: after.tasks - before.tasks,
        seconds: after.seconds - before.seconds,
    });
    let figures = WireMeasurement {
        bench: "wire",
        read: read.map(Strength::name),
        durable: args.durable,
        clients: args.clients,
        rows: load_seconds.map(|_| args.rows),
        seconds: run.seconds,
        executions: run.executions,
        queries_per_second: (executions / run.seconds).round(),
        latency_p50_ms: run.p50_ms,
        latency_p99_ms: run.p99_ms,
        latency_max_ms: run.max_ms,
        p99_to_p50: run.p99_ms / run.p50_ms,
        rows_per_query: run.rows as f64 / executions,
        templates: run.templates,
        gateway_cpu_us_per_query: used
            .iter()
            .find(|(name, _)| name.starts_with("gateway"))
            .map(|(_, time)| per_query(time)),
        queries_per_pass: done.map(|done| done.tasks / done.passes),
        pass_ms: done.map(|done| done.seconds * 1e3 / done.passes),
        load_seconds,
        processes: used
            .iter()
            .map(|(name, time)| {
                let used =
                    ProcessUsage { cores: time.as_secs_f64() / run.seconds, us_per_query: per_query(time) };
                (name.clone(), used)
            })
            .collect(),
        slots: if args.redraw.is_some() { run.slots } else { Vec::new() },
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&figures)?)?;
        return Ok(());
    }
    let read = figures.read.map(|read| format!(" at {read}")).unwrap_or_default();
    writeln!(
        out,
        "{} clients{read}: {:.0} queries/s, p50 {:.1} ms, p99 {:.1} ms ({:.1} times p50), {:.1} rows each",
        figures.clients,
        figures.queries_per_second,
        figures.latency_p50_ms,
        figures.latency_p99_ms,
        figures.p99_to_p50,
        figures.rows_per_query
    )?;
    if let (Some(queries), Some(pass)) = (figures.queries_per_pass, figures.pass_ms) {
        writeln!(out, "  {queries:.0} queries in a pass of {pass:.1} ms")?;
    }
    for (name, used) in &figures.processes {
        writeln!(out, "  {name}: {:.2} cores, {:.1} us for each query", used.cores, used.us_per_query)?;
    }
    for slot in &figures.slots {
        writeln!(
            out,
            "  {:5.1} s, draw {}: {} queries, p50 {:.1} ms, p99 {:.1} ms",
            slot.at, slot.draw, slot.executions, slot.p50_ms, slot.p99_ms
        )?;
    }
    Ok(())
}
