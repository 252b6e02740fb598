//! `quorate bench ecast`: the total order alone, on real processes.
//!
//! Routers, receivers and one load process, each an operating-system process on loopback. Every message has
//! its own id, is routed by its key to `copies` receivers that follow each other on a ring, and ends in its
//! own stable notice. Receivers check the order and content of all their deliveries; at the end their counts
//! must add up.
//!
//! With `--durable` the routers have disks, and the same run also measures the bare disk and the order in
//! memory (`disk`).

mod disk;
mod process;
mod routing;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use quorate_protocol::DomainId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use self::process::{ProcessPart, Spec};
use super::child::Child;

/// Measures the order alone: routers, receivers and a load, each in its own process.
#[derive(Clone, clap::Args)]
pub(crate) struct Args {
    /// Routers.
    #[arg(long, default_value_t = 3)]
    routers: usize,
    /// Receivers.
    #[arg(long, default_value_t = 4)]
    receivers: usize,
    /// Receivers of each message.
    #[arg(long, default_value_t = 3)]
    copies: usize,
    /// Bytes of each message.
    #[arg(long, default_value_t = 100)]
    bytes: usize,
    /// Messages in flight.
    #[arg(long, default_value_t = 8192)]
    window: usize,
    /// Seconds of each run, after a warm-up of one second.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Runs; the result is the median.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Give the routers disks, and also measure the disk alone and the order in memory.
    #[arg(long)]
    durable: bool,
    /// Directory on the disk to measure; a new directory in it is used and then removed.
    #[arg(long, requires = "durable")]
    directory: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Maximum number of receivers on one machine.
const RECEIVERS_MAX: usize = 256;

/// The report of the load process on a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct EcastRun {
    messages: u64,
    seconds: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
    latency_max_us: f64,
    /// Number of messages sent, including the warm-up, by receiver.
    destined: Vec<u64>,
    outcomes_other: u64,
    resends: u64,
}

/// The report of a receiver at the end.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Received {
    delivered: u64,
    faults: u64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    ensure!(args.bytes >= routing::BODY_BYTES_MIN, "--bytes must be at least {}", routing::BODY_BYTES_MIN);
    ensure!(
        (1..=args.receivers).contains(&args.copies) && args.receivers <= RECEIVERS_MAX,
        "--copies must be between 1 and --receivers, and --receivers at most {RECEIVERS_MAX}"
    );
    ensure!(
        args.window > 0 && args.runs > 0 && args.routers > 0,
        "--window, --runs and --routers must be at least 1"
    );
    if args.durable {
        return disk::run(&args);
    }
    let mut runs = Vec::with_capacity(args.runs);
    let mut shares = Vec::new();
    for index in 0..args.runs {
        let Measured { run, cpu, .. } = one_run(&args, None).with_context(|| format!("run {}", index + 1))?;
        if !args.json {
            println!("run {}: {:.0} messages/s", index + 1, run.rate());
        }
        shares = cpu;
        runs.push(run);
    }
    let median = |of: &dyn Fn(&EcastRun) -> f64| median(runs.iter().map(of).collect());
    let rate = median(&EcastRun::rate);
    let (p50, p99) = (median(&|run| run.latency_p50_us), median(&|run| run.latency_p99_us));
    let longest = median(&|run| run.latency_max_us);
    let resends: u64 = runs.iter().map(|run| run.resends).sum();
    // The routers are the first of `shares`.
    let busy = |shares: &[(String, f64)]| shares.iter().map(|(_, share)| share).sum::<f64>();
    let [router_us, confirmation_us] = [args.routers, shares.len()]
        .map(|count| busy(&shares[..count.min(shares.len())]) * 1e6 / (rate * args.copies as f64));
    if args.json {
        let cpu: serde_json::Map<String, serde_json::Value> =
            shares.iter().map(|(name, share)| (name.clone(), json!(share))).collect();
        let figures = json!({
            "bench": "ecast", "messages_per_second": rate.round(), "latency_p50_us": p50, "latency_p99_us": p99,
            "latency_max_us": longest, "window": args.window, "clients": 1, "routers": args.routers,
            "receivers": args.receivers, "copies": args.copies, "bytes": args.bytes, "runs": args.runs,
            "seconds": args.seconds, "resends": resends, "cpu_us_per_confirmation": confirmation_us,
            "router_cpu_us_per_confirmation": router_us, "cpu_cores": cpu,
        });
        println!("{figures}");
    } else {
        println!(
            "median: {rate:.0} messages/s, latency p50 {p50:.0} µs, p99 {p99:.0} µs, max {longest:.0} µs"
        );
        println!(
            "processor time for each message at each of its receivers: {confirmation_us:.3} µs of all \
             processes, of which {router_us:.3} µs of routers"
        );
        for (name, share) in shares {
            println!("  {name}: {share:.2} cores");
        }
    }
    Ok(())
}

/// Returns the messages per second of one default run, as a reference for other benches.
pub(super) fn reference(seconds: f64) -> Result<f64> {
    Ok(one_run(&defaults(seconds, 8192), None)?.run.rate())
}

/// Returns the median latency of messages sent one at a time, in microseconds, as another reference.
pub(super) fn alone_us(seconds: f64) -> Result<f64> {
    Ok(one_run(&defaults(seconds, 1), None)?.run.latency_p50_us)
}

fn defaults(seconds: f64, window: usize) -> Args {
    Args {
        routers: 3,
        receivers: 4,
        copies: 3,
        bytes: 100,
        window,
        seconds,
        runs: 1,
        durable: false,
        directory: None,
        json: true,
    }
}

/// A run, and the resources that it used.
struct Measured {
    run: EcastRun,
    /// Average number of processors that each process kept busy.
    cpu: Vec<(String, f64)>,
    /// Bytes per message that the busiest router had written to its disk.
    disk_bytes_per_message: f64,
}

impl EcastRun {
    fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Runs once, with the routers' journals in `disk` if given.
fn one_run(args: &Args, disk: Option<&Path>) -> Result<Measured> {
    let domain = quorate_runtime::chance::domain();
    let mut routers: Vec<String> = Vec::new();
    let mut processes: Vec<Child> = Vec::new();
    let spec = |part, node, routers: &[String]| Spec {
        domain: domain.0,
        node,
        routers: routers.to_vec(),
        wanted: args.routers,
        copies: args.copies,
        bytes: args.bytes,
        window: args.window,
        seconds: args.seconds,
        receivers: args.receivers,
        disk: disk.filter(|_| matches!(part, ProcessPart::Founder | ProcessPart::Router)).map(Path::to_owned),
        part,
    };
    for index in 0..args.routers {
        let part = if index == 0 { ProcessPart::Founder } else { ProcessPart::Router };
        let mut router = Child::start(
            format!("router-{}", index + 1),
            "ecast-process",
            &spec(part, 1 + index as u64, &routers),
        )?;
        routers.push(router.line()?);
        processes.push(router);
    }
    for index in 0..args.receivers {
        let name = format!("receiver-{}", index + 1);
        let mut receiver =
            Child::start(name, "ecast-process", &spec(ProcessPart::Receiver, 101 + index as u64, &routers))?;
        receiver.line()?;
        processes.push(receiver);
    }
    let mut load =
        Child::start(String::from("load"), "ecast-process", &spec(ProcessPart::Load, 1001, &routers))?;
    load.line()?;
    // The load prints a line when its warm-up ends, and another when its run ends.
    ensure!(load.line()? == "measuring", "the load process of the bench did not begin to measure");
    let routers = &processes[..args.routers];
    let written = || routers.iter().map(Child::disk_bytes).collect::<Result<Vec<u64>>>();
    let written_before = written()?;
    let before: Vec<Duration> = processes.iter().chain([&load]).map(Child::cpu).collect::<Result<_>>()?;
    let run = load.line()?;
    let after: Vec<Duration> = processes.iter().chain([&load]).map(Child::cpu).collect::<Result<_>>()?;
    let written = written_before.iter().zip(written()?).map(|(before, after)| after - before).max();
    let run: EcastRun = serde_json::from_str(&run).with_context(|| run.clone())?;
    ensure!(
        run.outcomes_other == 0,
        "{} messages ended with another outcome than stable",
        run.outcomes_other
    );
    let receivers = &mut processes[args.routers..];
    for (receiver, &destined) in receivers.iter_mut().zip(&run.destined) {
        receiver.tell("stop")?;
        let received: Received = serde_json::from_str(&receiver.line()?)?;
        if received.faults > 0 || received.delivered != destined {
            return Err(anyhow!(
                "{} delivered {} of {destined} messages, {} of them out of order or damaged",
                receiver.name,
                received.delivered,
                received.faults
            ));
        }
    }
    let names = processes.iter().chain([&load]).map(|process| process.name.clone());
    let shares =
        before.iter().zip(after).map(|(before, after)| (after - *before).as_secs_f64() / run.seconds);
    let cpu = names.zip(shares).collect();
    let disk_bytes_per_message = written.unwrap_or(0) as f64 / run.messages.max(1) as f64;
    Ok(Measured { run, cpu, disk_bytes_per_message })
}

/// One process of the bench; the bench starts it.
#[derive(clap::Args)]
pub(crate) struct ProcessArgs {
    /// The part of the process, as JSON.
    spec: String,
}

pub(crate) fn run_process(args: ProcessArgs) -> Result<()> {
    let spec: Spec = serde_json::from_str(&args.spec)?;
    process::run(DomainId(spec.domain), spec)
}
