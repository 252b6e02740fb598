//! `quorate bench check`: the speed of judging histories, compared with porcupine on the same histories.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use quorate_history::format::json;
use quorate_history::{Action, History, Operation, Options, Outcome, Value, Verdict};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::Serialize;

use super::check_transactions;
use super::peak::{forget_peak, peak};
use crate::judge::judge;

/// Measures the speed of judging recorded histories.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
    /// Operations of the large histories.
    #[arg(long, default_value_t = 1_000_000)]
    operations: usize,
    /// Judge this number of transactions, and nothing else.
    #[arg(long, value_name = "N")]
    transactions: Option<u64>,
    /// With --transactions: judge them by their positions.
    #[arg(long, requires = "transactions")]
    by_position: bool,
    /// Threads; by default the number of cores.
    #[arg(long)]
    threads: Option<usize>,
    /// Directory of the sources of the porcupine program; with it, and `go`, both programs judge the same
    /// small histories.
    #[arg(long, value_name = "DIR")]
    porcupine: Option<PathBuf>,
    /// Seconds that porcupine may take for a history.
    #[arg(long, default_value_t = 20)]
    porcupine_limit: u64,
}

/// One measurement.
#[derive(Serialize)]
struct CheckResult {
    name: String,
    operations: u64,
    /// Time from unordered, unpacked operations in memory to the verdict, in seconds.
    seconds: f64,
    /// Peak memory of the process during the judging, including the operations, in bytes.
    peak_bytes: Option<u64>,
    atomic: Verdict,
    proportion: Option<f64>,
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    porcupine: Option<Rival>,
}

#[derive(Serialize)]
struct Rival {
    atomic: serde_json::Value,
    seconds: f64,
    times_slower: f64,
}

/// The generated history: an atomic store of registers with some stale reads.
struct Workload {
    operations: usize,
    keys: u64,
    clients: usize,
    /// Number of reads in a million that return the value before the latest one.
    stale_per_million: u32,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(transactions) = args.transactions {
        let line = check_transactions::measure(transactions, args.by_position)?;
        let text = if args.json { serde_json::to_string(&line)? } else { line.sentence() };
        writeln!(std::io::stdout(), "{text}")?;
        return Ok(());
    }
    let operations = args.operations;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let large = [("atomic", 0), ("0.1 % stale", 1_000)];
    for (flaw, stale_per_million) in large {
        for (shape, keys) in [("1000 keys", 1_000), ("one key", 1)] {
            let name = format!("{shape}, 64 clients, {flaw}");
            let workload = Workload { operations, keys, clients: 64, stale_per_million };
            print(args.json, &measure(name, generate(&workload), threads)?)?;
        }
    }
    let program = args.porcupine.as_deref().map(build).transpose()?;
    for (clients, flaw, stale_per_million) in
        [(3, "atomic", 0), (3, "stale", 20_000), (16, "atomic", 0), (16, "stale", 20_000), (64, "atomic", 0)]
    {
        let name = format!("one key, {clients} clients, {flaw}");
        let operations = generate(&Workload { operations: 5_000, keys: 1, clients, stale_per_million });
        let rival = match &program {
            Some(program) => Some(ask(program, &operations, args.porcupine_limit)?),
            None => None,
        };
        let mut line = measure(name, operations, 1)?;
        line.porcupine =
            rival.map(|(atomic, seconds)| Rival { atomic, seconds, times_slower: seconds / line.seconds });
        print(args.json, &line)?;
    }
    Ok(())
}

fn measure(name: String, operations: Vec<Operation>, threads: usize) -> anyhow::Result<CheckResult> {
    forget_peak();
    let begin = Instant::now();
    let mut history = History::new();
    for operation in operations {
        history.push(operation)?;
    }
    let report = judge(&history, &Options::default(), threads, None);
    let seconds = begin.elapsed().as_secs_f64();
    Ok(CheckResult {
        name,
        operations: report.operations,
        seconds,
        peak_bytes: peak(),
        atomic: report.verdict,
        proportion: report.proportion(),
        threads,
        porcupine: None,
    })
}

fn print(as_json: bool, line: &CheckResult) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{}", serde_json::to_string(line)?)?;
        return Ok(());
    }
    let CheckResult { name, operations, seconds, peak_bytes, atomic, .. } = line;
    let peak = peak_bytes.map_or_else(String::new, |bytes| format!(", peak {} MB", bytes / 1_000_000));
    write!(out, "{name}: {operations} operations in {seconds:.4} s{peak}, {atomic:?}")?;
    if let Some(rival) = &line.porcupine {
        write!(
            out,
            "; porcupine {} in {:.3} s, {:.0} times as long",
            rival.atomic, rival.seconds, rival.times_slower
        )?;
    }
    writeln!(out)?;
    Ok(())
}

/// Generates the operations of clients that work one operation after another, 80 % reads, on a store that is
/// atomic except for some stale reads.
fn generate(workload: &Workload) -> Vec<Operation> {
    let mut random = Pcg64::seed_from_u64(4);
    let mut now = vec![0i64; workload.clients];
    // The time of an operation's effect decides the value that a read returns, and the order in which writes
    // apply.
    let mut operations: Vec<(i64, Operation)> = (0..workload.operations)
        .map(|index| {
            let client = index % workload.clients;
            let start = now[client] + random.random_range(0..20_000);
            let finish = start + random.random_range(50_000..400_000);
            now[client] = finish;
            let key = random.random_range(0..workload.keys);
            let action = match random.random_bool(0.2) {
                true => Action::Write(Value::from(index as u64)),
                false => Action::Read(None),
            };
            let key = format!("key{key}").into();
            let (client, finish, outcome) = (client as u64, Some(finish), Outcome::Ok);
            let at = random.random_range(start..=finish.expect("just set"));
            (at, Operation { client, key, action, start, finish, outcome })
        })
        .collect();
    operations.sort_by_key(|(at, _)| *at);
    let mut held: std::collections::BTreeMap<Box<str>, [Option<Value>; 2]> = Default::default();
    for (_, operation) in &mut operations {
        let [before, last] = held.entry(operation.key.clone()).or_default();
        match &mut operation.action {
            Action::Write(value) => *before = last.replace(value.clone()),
            Action::Read(value) => {
                let stale = random.random_range(0..1_000_000) < workload.stale_per_million;
                *value = if stale { before.clone() } else { last.clone() };
            }
            _ => {}
        }
    }
    // A merged log has the operations in the order of their ends.
    operations.sort_by_key(|(_, operation)| operation.finish);
    operations.into_iter().map(|(_, operation)| operation).collect()
}

/// Builds the porcupine program in a temporary directory.
fn build(sources: &Path) -> anyhow::Result<PathBuf> {
    let place = std::env::temp_dir().join(format!("quorate-porcupine-{}", std::process::id()));
    fs::create_dir_all(&place)?;
    for file in ["go.mod", "go.sum", "main.go"] {
        fs::copy(sources.join(file), place.join(file)).with_context(|| {
            format!(
                "cannot copy the porcupine program from {}: give the directory with its go.mod, go.sum and \
                 main.go",
                sources.display()
            )
        })?;
    }
    let output = Command::new("go").args(["build", "-o", "porcupine", "."]).current_dir(&place).output();
    let output = output.context("cannot run `go`, which builds porcupine: install Go")?;
    if !output.status.success() {
        bail!("`go build` could not build porcupine: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(place.join("porcupine"))
}

/// Returns porcupine's answer about the history, and its time in seconds.
fn ask(program: &Path, operations: &[Operation], limit: u64) -> anyhow::Result<(serde_json::Value, f64)> {
    let path = program.with_file_name("history.jsonl");
    let mut text = Vec::new();
    for operation in operations {
        json::write(&mut text, operation)?;
    }
    fs::write(&path, text)?;
    let output = Command::new(program).args(["-timeout", &format!("{limit}s")]).arg(&path).output()?;
    if !output.status.success() {
        bail!("the porcupine program failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let seconds = answer["seconds"]
        .as_f64()
        .context("the answer of the porcupine program contains no number of seconds")?;
    Ok((answer["linearizable"].clone(), seconds))
}
