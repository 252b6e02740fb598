//! `quorate bench ecast`: the total order alone, on real processes.
//!
//! Routers, receivers and one load process, each an operating-system process on loopback. Every message has
//! its own id, is routed by its key to `copies` receivers that follow each other on a ring, and ends in its
//! own stable notice. Receivers check the order and content of all their deliveries; at the end their counts
//! must add up.
//!
//! With `--durable` the routers have disks, and the same run also measures the bare disk and the order in
//! memory (`disk`).

mod args;
mod disk;
mod measurement;
mod process;
mod report;
mod routing;

use anyhow::{Context as _, Result, ensure};
use quorate_protocol::DomainId;
use serde_json::json;

pub(crate) use self::args::Args;

use self::{
    measurement::{Measured, median, one_run},
    process::EcastProcessSpec,
    report::EcastRun,
};

/// Maximum number of receivers on one machine.
const RECEIVERS_MAX: usize = 256;

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
    // The first entries of `shares` belong to the routers.
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

/// One process of the bench; the bench starts it.
#[derive(clap::Args)]
pub(crate) struct EcastProcessArgs {
    /// The role of the process in the bench, as JSON.
    spec: String,
}

pub(crate) fn run_process(args: EcastProcessArgs) -> Result<()> {
    let spec: EcastProcessSpec = serde_json::from_str(&args.spec)?;
    process::run(DomainId(spec.domain), spec)
}
