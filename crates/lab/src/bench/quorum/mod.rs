//! `quorate bench quorum`: consistency against latency, dialled and measured (004).
//!
//! Cells and routers are processes on loopback, and clients are threads of the bench, each with a connection
//! to one of the cells. Instead of these cells the bench can measure a store that runs already, which may be
//! Cassandra. Each setting of the dial gets a fresh map. All keys are written once, clients read and write
//! for a while, and their recorded history is judged. A setting is a pair of levels, the probabilities of the
//! strong ones, and delays. If a list of values is given, each value gets a run of its own.

pub(crate) mod rig;

use std::{fs::File, io::BufWriter, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use quorate::maps::Level;
use quorate_history::format::json;
use quorate_tune::{Choice, Dial, Dials, Distribution, Others, SettingResults, Workload, figures::Latencies};
use serde_json::json;

use self::rig::{Done, Experiment, Rig, Running};
use crate::store::{COPIES, Replication, StoreAddress};

/// Measures clients of a map at given levels, probabilities and delays: rates, latencies, and the consistency
/// of their history.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    running: Running,
    /// Cells of the cluster that the bench starts.
    #[arg(long, default_value_t = 3, conflicts_with = "store")]
    cells: u16,
    /// Copies of each key; 3 unless the store says otherwise.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..))]
    copies: Option<u8>,
    /// The strategy of the map: quorum, ordered, group or service. Levels, p and delays belong to partial
    /// quorums; for ordered maps the bench also starts processes of tables.
    #[arg(long, default_value = "quorum", value_parser = ["quorum", "ordered", "group", "service"])]
    strategy: String,
    /// The reaction of reads to replicas that differ: none, blocking, or the number of reads in a million
    /// that repair in the background.
    #[arg(long, default_value = "none")]
    repair: String,
    /// The strong level of reads.
    #[arg(long, default_value = "quorum")]
    read: Level,
    /// The strong level of writes.
    #[arg(long, default_value = "quorum")]
    write: Level,
    /// The weak level of reads and writes.
    #[arg(long, default_value = "one")]
    weak: Level,
    /// The probability of the strong level: of reads and writes, or as `read/write`. If several are given,
    /// separated by commas, each has a run of its own.
    #[arg(long, default_value = "1", value_delimiter = ',', value_parser = probabilities)]
    p: Vec<(f64, f64)>,
    /// Chooses the strong operations by the heat of their keys, not by chance.
    #[arg(long)]
    by_heat: bool,
    /// Milliseconds before each read and after each write, or as `read/write`. If several are given,
    /// separated by commas, each has a run of its own.
    #[arg(long, default_value = "0", value_delimiter = ',', value_parser = delays)]
    delay: Vec<(Duration, Duration)>,
    /// Clients, spread over the cells.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    clients: u64,
    /// Operations per second of all clients together; 0 means no limit.
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Seconds of each run.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Number of keys.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// The distribution of keys.
    #[arg(long, default_value = "zipfian", value_parser = distribution)]
    distribution: Distribution,
    /// The share of reads.
    #[arg(long, default_value_t = 0.8)]
    reads: f64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 128)]
    value_bytes: usize,
    /// Milliseconds for which each cell in turn stands still, as if it collected garbage; 0 for no pauses.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// Milliseconds in which each cell stands still once.
    #[arg(long, default_value_t = 2_000)]
    pause_every_ms: u64,
    /// Instead of consistency and latency, measures the share of the throughput that recording and checking
    /// take, in this number of turns. Each turn runs once with recording and once without.
    #[arg(long, value_name = "TURNS", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "record")]
    recording_cost: Option<u16>,
    /// Writes the history of the last run to this file, for `quorate check`.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Print one JSON object a run.
    #[arg(long)]
    json: bool,
}

fn distribution(name: &str) -> Result<Distribution, String> {
    let names = Distribution::ALL.map(Distribution::name).join(", ");
    Distribution::named(name).ok_or_else(|| format!("the distribution must be one of: {names}"))
}

/// Parses one number, or two separated by a slash.
fn pair(text: &str) -> Result<(f64, f64), String> {
    let number = |text: &str| text.parse::<f64>().map_err(|_| format!("'{text}' is not a number"));
    match text.split_once('/') {
        Some((read, write)) => Ok((number(read)?, number(write)?)),
        None => number(text).map(|both| (both, both)),
    }
}

fn probabilities(text: &str) -> Result<(f64, f64), String> {
    let (read, write) = pair(text)?;
    let is_one = |p: f64| (0.0..=1.0).contains(&p);
    if is_one(read) && is_one(write) {
        Ok((read, write))
    } else {
        Err("a probability must be from 0 to 1".to_owned())
    }
}

fn delays(text: &str) -> Result<(Duration, Duration), String> {
    let (read, write) = pair(text)?;
    let span = |ms: f64| {
        let fits = (0.0..=60_000.0).contains(&ms);
        if fits {
            Ok(Duration::from_secs_f64(ms / 1e3))
        } else {
            Err("a delay must be from 0 to 60000 ms".to_owned())
        }
    };
    Ok((span(read)?, span(write)?))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!((0.0..=1.0).contains(&args.reads), "--reads must be from 0 to 1");
    let is_dialled = args.p != [(1.0, 1.0)] || args.delay != [(Duration::ZERO, Duration::ZERO)];
    ensure!(
        args.strategy == "quorum" || !is_dialled,
        "--strategy {} has no probabilities and delays: only --strategy quorum has them",
        args.strategy
    );
    ensure!(
        args.seconds > 0.0 && args.rate >= 0.0,
        "--seconds must be above zero, and --rate must not be negative"
    );
    let pauses = (args.pause_ms > 0).then(|| {
        (
            Duration::from_millis(args.pause_ms),
            Duration::from_millis(args.pause_every_ms / u64::from(args.cells.max(1))),
        )
    });
    let copies = args.copies.unwrap_or(args.running.store.as_ref().map_or(COPIES, StoreAddress::copies));
    let cells = args.cells.to_string();
    let mut flags = vec!["--cells", &cells];
    // Only ordered maps need tables.
    if args.strategy != "ordered" {
        flags.extend(["--storage", "0"]);
    }
    let mut rig = Rig::of(&args.running, &flags)?;
    let (store, nodes) = rig.store();
    let experiment = Experiment {
        replication: match args.strategy.as_str() {
            "quorum" => Replication::quorum(copies.to_string(), &*args.repair),
            strategy => Replication::Otherwise(strategy.to_owned()),
        },
        clients: args.clients,
        rate: args.rate,
        span: Duration::from_secs_f64(args.seconds),
        workload: Workload {
            keys: args.keys,
            distribution: args.distribution,
            reads: args.reads,
            others: Others::Update,
            value_bytes: args.value_bytes,
        },
        pauses,
    };
    let choice = if args.by_heat { Choice::Heat } else { Choice::Chance };
    let settings = args.p.iter().flat_map(|p| args.delay.iter().map(move |delay| (*p, *delay)));
    for (p, delay) in settings {
        let dial = |strong, p, delay| Dial { weak: args.weak, strong, p, delay };
        let (reads, writes) = (dial(args.read, p.0, delay.0), dial(args.write, p.1, delay.1));
        let dials = Dials { reads, writes, choice };
        if let Some(turns) = args.recording_cost {
            let cost = rig.recording_cost(&experiment, dials, turns.into()).with_context(|| dials.spelt())?;
            if args.json {
                let (clients, seconds) = (args.clients, args.seconds);
                println!(
                    "{}",
                    json!({ "bench": "quorum", "store": store, "recording_cost": cost, "turns": turns, "clients": clients, "seconds": seconds })
                );
            } else {
                println!("recording and checking the history take {:.1} % of the throughput", cost * 100.0);
            }
            continue;
        }
        let Done { before, tape, took } = rig.measure(&experiment, dials).with_context(|| dials.spelt())?;
        if let Some(path) = &args.record {
            let all: Vec<_> = before.operations.iter().chain(&tape.operations).collect();
            record(path, &all).with_context(|| path.display().to_string())?;
        }
        let figures = SettingResults::of(before, tape, took);
        if args.json {
            println!("{}", object(args, (store, nodes, copies), &dials, &figures));
        } else {
            print(&args.strategy, &dials, &figures);
        }
    }
    rig.succeeded();
    Ok(())
}

fn record(path: &std::path::Path, operations: &[&quorate_history::Operation]) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    json::write_clock(&mut out, "bench", 0)?;
    for operation in operations {
        json::write(&mut out, operation)?;
    }
    Ok(std::io::Write::flush(&mut out)?)
}

/// Builds the JSON object of a run: the store with its nodes and copies, the dials, and the figures.
fn object(
    args: &Args,
    (store, cells, copies): (&str, usize, u8),
    dials: &Dials,
    figures: &SettingResults,
) -> serde_json::Value {
    let Dials { reads, writes, choice } = dials;
    let mut result = json!({
        "bench": "quorum", "strategy": args.strategy, "store": store, "cells": cells, "copies": copies, "repair": args.repair,
        "read_level": reads.strong.name(), "write_level": writes.strong.name(), "weak_level": args.weak.name(),
        "p_read": reads.p, "p_write": writes.p, "choice": choice,
        "delay_read_ms": reads.delay.as_secs_f64() * 1e3, "delay_write_ms": writes.delay.as_secs_f64() * 1e3,
        "clients": args.clients, "target_per_second": args.rate, "seconds": args.seconds, "keys": args.keys,
        "distribution": args.distribution.name(), "reads": args.reads, "value_bytes": args.value_bytes,
    });
    if let (Some(result), serde_json::Value::Object(figures)) = (result.as_object_mut(), json!(figures)) {
        result.extend(figures);
    }
    result
}

fn print(strategy: &str, dials: &Dials, figures: &SettingResults) {
    let Dials { reads, writes, choice } = dials;
    let choice = if *choice == Choice::Heat { ", by heat" } else { "" };
    match strategy {
        "quorum" => print!("reads at {}, writes at {}{choice}", reads.spelt(), writes.spelt()),
        other => print!("a map of strategy {other}"),
    }
    println!(": {:.0}/s", figures.per_second);
    for (name, Latencies { mean_us, p50_us, p95_us, p99_us, .. }) in
        [("reads", &figures.read), ("writes", &figures.write)]
    {
        println!(
            "  {name}: mean {mean_us:.0} µs, p50 {p50_us:.0} µs, p95 {p95_us:.0} µs, p99 {p99_us:.0} µs"
        );
    }
    let judged = &figures.history;
    let gamma = judged.gamma_ms.map_or(String::new(), |[.., most]| format!(", Γ at most {most:.2} ms"));
    println!(
        "  {:.3} % of {} operations inconsistent (95 %: {:.3} to {:.3}), {} stale reads{gamma}; {} failed",
        judged.proportion * 100.0,
        judged.operations,
        judged.proportion_low * 100.0,
        judged.proportion_high * 100.0,
        judged.stale_reads,
        figures.failed
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_probabilities_and_delays_are_parsed() {
        assert_eq!(probabilities("0.5"), Ok((0.5, 0.5)));
        assert_eq!(probabilities("0/1"), Ok((0.0, 1.0)));
        assert!(
            probabilities("1.1").is_err() && probabilities("x").is_err() && probabilities("nan").is_err()
        );
        assert_eq!(delays("2.5/0"), Ok((Duration::from_micros(2_500), Duration::ZERO)));
        assert!(delays("-1").is_err() && delays("60001").is_err());
    }
}
