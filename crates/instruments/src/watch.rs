//! `quorate watch`: the consistency and latency that clients of cells got in the last minute.

use std::{
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use quorate::maps::Lately;
use quorate_command::{Usage, say};
use quorate_tune::{Estimate, LastMinute, Measure};
use serde_json::{Value, json};

/// Shows how consistent the last minute was, and how fast: of all operations that clients of a cluster's cells asked for.
///
/// Cells remember them, of all keys or of a sample; each operation counts for as long as its cell took for it. A line tells the
/// proportion of inconsistent operations with its 95 % interval, and by how long the most inconsistent hundredth of the reads was out of date (Γ).
/// Keys with hashes and counters are left out. `quorate tune` holds an agreement on such figures, with clients of its own.
///
/// Exits with 1 if no cell answers.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Addresses at which cells tell of themselves over HTTP, `HOST:PORT`: all of the cluster's. `quorate` names those of the local cluster.
    #[arg(long, value_delimiter = ',', required = true)]
    cells: Vec<String>,
    /// Tells it once, and ends.
    #[arg(long)]
    once: bool,
    /// Seconds from one line to the next.
    #[arg(long, default_value_t = 2.0)]
    every: f64,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// A cell may take so long to tell.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lines after which it is said again what stands in them.
const LINES_PER_HEADER: usize = 20;

pub(crate) fn run(args: &Args) -> Result<()> {
    if !(0.1..=3_600.0).contains(&args.every) {
        bail!(Usage(String::from("--every: from 0.1 to 3600 seconds")));
    }
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build();
    let agent: ureq::Agent = agent.into();
    let mut silent = Vec::new();
    for line in 0.. {
        let mut told = Vec::new();
        let mut failed = Vec::new();
        for cell in &args.cells {
            match ask(&agent, cell) {
                Ok(lately) => told.push(lately),
                Err(error) => failed.push(format!("{cell} does not tell: {error:#}")),
            }
        }
        if told.is_empty() {
            bail!("{}", failed.join("\n"));
        }
        if failed != silent {
            failed.iter().for_each(|why| eprintln!("{why}"));
            silent = failed;
        }
        let minute = LastMinute::new(&told);
        if args.json {
            say!("{}", object(&minute, told.len()))?;
        } else {
            if line % LINES_PER_HEADER == 0 {
                say!("{HEADER}")?;
            }
            say!("{}", row(&minute))?;
        }
        if args.once {
            break;
        }
        thread::sleep(Duration::from_secs_f64(args.every));
    }
    Ok(())
}

/// A cell's memory, by this machine's clock.
fn ask(agent: &ureq::Agent, cell: &str) -> Result<Lately> {
    let began = wall();
    let mut response = agent.get(format!("http://{cell}/recent")).call()?;
    let text = response.body_mut().with_config().limit(BYTES_MAX).read_to_string()?;
    let ended = wall();
    let mut lately: Lately = serde_json::from_str(&text).context("this is no cell's word")?;
    // Its clock is known to within half the time that asking took.
    let off = lately.now_ns - i64::midpoint(began, ended);
    if off.abs() > (ended - began) / 2 {
        lately.since_ns -= off;
        lately.now_ns -= off;
        for told in &mut lately.operations {
            told.start_ns -= off;
            told.end_ns -= off;
        }
    }
    Ok(lately)
}

/// No cell's word is longer.
const BYTES_MAX: u64 = 64 << 20;

fn wall() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

const HEADER: &str = "LAST      OPS/S     KEYS  INCONSISTENT               Γ P99       READS P50   P99         WRITES P50  P99         FAILED";

fn row(minute: &LastMinute) -> String {
    let window = &minute.window;
    let time = |seconds: Option<f64>| seconds.map_or(String::from("-"), |it| Measure::Mean.shown(it));
    let keys = match minute.one_in {
        1 => minute.keys.to_string(),
        one_in => format!("{} (1/{one_in})", minute.keys),
    };
    let (inconsistent, gamma) = match window.operations() {
        0 => (String::from("-"), String::from("-")),
        _ => {
            let Estimate { value, low, high } = window.proportion();
            let shown = |value| Measure::Inconsistent.shown(value);
            let gamma = Measure::Mean.shown(window.gamma(0.99).value);
            (format!("{} ({} to {})", shown(value), shown(low), shown(high)), gamma)
        }
    };
    let left_out = match minute.left_out {
        0 => String::new(),
        count => format!("   {count} left out"),
    };
    format!(
        "{:<8}  {:<8.0}  {keys:<4}  {inconsistent:<25}  {gamma:<10}  {:<10}  {:<10}  {:<10}  {:<10}  {}{left_out}",
        match window.span.as_secs_f64() {
            short @ ..10.0 => format!("{short:.1} s"),
            long => format!("{long:.0} s"),
        },
        minute.per_second(),
        time(minute.reads(0.5)),
        time(minute.reads(0.99)),
        time(minute.writes(0.5)),
        time(minute.writes(0.99)),
        window.failed,
    )
}

fn object(minute: &LastMinute, cells: usize) -> Value {
    let window = &minute.window;
    let Estimate { value, low, high } = window.proportion();
    let micros = |seconds: Option<f64>| seconds.map(|it| it * 1e6);
    json!({
        "watch": "minute", "cells": cells, "seconds": window.span.as_secs_f64(), "operations": window.operations(),
        "per_second": minute.per_second(), "keys": minute.keys, "one_in": minute.one_in, "left_out": minute.left_out,
        "failed": window.failed, "inconsistent": value, "inconsistent_low": low, "inconsistent_high": high,
        "gamma_p99_ms": window.gamma(0.99).value * 1e3,
        "reads_p50_us": micros(minute.reads(0.5)), "reads_p99_us": micros(minute.reads(0.99)),
        "writes_p50_us": micros(minute.writes(0.5)), "writes_p99_us": micros(minute.writes(0.99)),
    })
}
