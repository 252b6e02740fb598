//! `quorate watch`: shows the consistency and latency that clients of cells got in the last minute.

use std::{
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use quorate::maps::RecentOperations;
use quorate_command::{Usage, log_stderr, print_line};
use quorate_tune::{Estimate, LastMinute, Measure};
use serde_json::{Value, json};

/// Shows the consistency and latency of all operations that clients asked of a cluster's cells in the last
/// minute.
///
/// Cells remember the operations on all keys or on a sample. The latency of an operation is the time that
/// its cell took. A line shows the operations of the last second (OPS/S). The other columns cover the time
/// under LAST: the proportion of inconsistent operations with its 95 % interval, the time by which the most
/// inconsistent hundredth of the reads was out of date (Γ P99), and the median (READS, WRITES) and 99th
/// percentile (P99) of the latencies. Keys with hashes and counters are left out. `quorate tune` holds an
/// agreement on such measures, with its own clients.
///
/// Exits with 1 if no cell answers.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// HTTP addresses of all cells of the cluster, `HOST:PORT`. `quorate` fills in those of the local
    /// cluster.
    #[arg(long, value_delimiter = ',', required = true)]
    cells: Vec<String>,
    /// Prints one line and ends.
    #[arg(long)]
    once: bool,
    /// Seconds between lines.
    #[arg(long, default_value_t = 2.0)]
    every: f64,
    /// Prints JSON objects, each on a line.
    #[arg(long)]
    json: bool,
}

/// Longest time that a cell may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Number of lines after which the header is printed again.
const LINES_PER_HEADER: usize = 20;

pub(crate) fn run(args: &Args) -> Result<()> {
    if !(0.1..=3_600.0).contains(&args.every) {
        bail!(Usage(String::from("--every must be from 0.1 to 3600 seconds")));
    }
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build();
    let agent: ureq::Agent = agent.into();
    let mut silent = Vec::new();
    for shown in 0.. {
        let mut reports = Vec::new();
        let mut failed = Vec::new();
        for cell in &args.cells {
            match fetch_recent(&agent, cell) {
                Ok(recent) => reports.push(recent),
                Err(error) => {
                    failed.push(format!("the cell at {cell} does not report its operations: {error:#}"))
                }
            }
        }
        if reports.is_empty() {
            bail!("{}", failed.join("\n"));
        }
        if failed != silent {
            failed.iter().for_each(log_stderr);
            silent = failed;
        }
        let minute = LastMinute::new(&reports);
        if args.json {
            print_line!("{}", json_line(&minute, reports.len()))?;
        } else {
            if shown % LINES_PER_HEADER == 0 {
                print_line!("{}", line(HEADER))?;
            }
            print_line!("{}", row(&minute))?;
        }
        if args.once {
            break;
        }
        thread::sleep(Duration::from_secs_f64(args.every));
    }
    Ok(())
}

/// Fetches the operations that a cell remembers, and converts their times to this machine's clock.
fn fetch_recent(agent: &ureq::Agent, cell: &str) -> Result<RecentOperations> {
    let began = wall_clock_ns();
    let mut response = agent.get(format!("http://{cell}/recent")).call()?;
    let text = response.body_mut().with_config().limit(BYTES_MAX).read_to_string()?;
    let ended = wall_clock_ns();
    let mut recent: RecentOperations =
        serde_json::from_str(&text).context("the answer is not the report of a cell")?;
    // The cell reads its clock at an unknown moment of the request, so the measured offset is wrong by up to
    // half of the request's time. Smaller offsets are therefore not corrected.
    let offset_ns = recent.now_ns - i64::midpoint(began, ended);
    if offset_ns.abs() > (ended - began) / 2 {
        recent.since_ns -= offset_ns;
        recent.now_ns -= offset_ns;
        for operation in &mut recent.operations {
            operation.start_ns -= offset_ns;
            operation.end_ns -= offset_ns;
        }
    }
    Ok(recent)
}

/// Longest answer of a cell, in bytes.
const BYTES_MAX: u64 = 16 << 20;

fn wall_clock_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// Width of each column. A column fits its widest usual value, so that columns do not move.
const WIDTHS: [usize; 10] = [6, 8, 13, 29, 8, 8, 8, 8, 8, 0];

/// Names of the columns. OPS/S covers the last second, and all other columns the time under LAST.
const HEADER: [&str; 10] =
    ["LAST", "OPS/S", "KEYS", "INCONSISTENT", "Γ P99", "READS", "P99", "WRITES", "P99", "FAILED"];

fn line(columns: [impl std::fmt::Display; 10]) -> String {
    let padded = columns.iter().zip(WIDTHS).map(|(column, width)| format!("{:<width$}", column.to_string()));
    padded.collect::<Vec<_>>().join("  ")
}

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
    line([
        match window.span.as_secs_f64() {
            short @ ..10.0 => format!("{short:.1} s"),
            long => format!("{long:.0} s"),
        },
        format!("{:.0}", minute.last_second()),
        keys,
        inconsistent,
        gamma,
        time(minute.reads(0.5)),
        time(minute.reads(0.99)),
        time(minute.writes(0.5)),
        time(minute.writes(0.99)),
        format!("{}{left_out}", window.failed),
    ])
}

fn json_line(minute: &LastMinute, cells: usize) -> Value {
    let window = &minute.window;
    let Estimate { value, low, high } = window.proportion();
    let micros = |seconds: Option<f64>| seconds.map(|it| it * 1e6);
    json!({
        "watch": "minute", "cells": cells, "seconds": window.span.as_secs_f64(), "operations": window.operations(),
        "per_second": minute.per_second(), "last_second": minute.last_second(), "keys": minute.keys, "one_in": minute.one_in, "left_out": minute.left_out,
        "failed": window.failed, "inconsistent": value, "inconsistent_low": low, "inconsistent_high": high,
        "gamma_p99_ms": window.gamma(0.99).value * 1e3,
        "reads_p50_us": micros(minute.reads(0.5)), "reads_p99_us": micros(minute.reads(0.99)),
        "writes_p50_us": micros(minute.writes(0.5)), "writes_p99_us": micros(minute.writes(0.99)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_values_fit_their_columns() {
        let place = |line: &str, word: &str| line.find(word).map(|at| line[..at].chars().count());
        let usual = [
            "60 s",
            "63000",
            "12345 (1/64)",
            "0.0331% (0.0123% to 0.0512%)",
            "250µs",
            "1",
            "2",
            "3",
            "4",
            "x",
        ];
        let header = line(HEADER);
        for (name, word) in
            [("KEYS", "12345"), ("INCONSISTENT", "0.0331%"), ("Γ P99", "250µs"), ("FAILED", "x")]
        {
            assert_eq!(place(&line(usual), word), place(&header, name), "{name}");
        }
    }
}
