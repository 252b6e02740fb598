//! `quorate bench service`: replicated services in the library, on real processes.
//!
//! Three hosts, each with a replica of two services, and clients, each an operating-system process on
//! loopback. A write's request, reply and delta have the same number of bytes. Clients check their answers.
//! At the end every replica must have applied as many changes as were answered, with the same fingerprint of
//! all changes in their order.
//!
//! The same run measures the machine before and after (`machine`), and scales the figures by these
//! references.
//!
//! With `--kills` the bench kills leaders, with `--stops` it stops them (`faults`). With `--disk` the hosts
//! have disks, and are judged by the bare disks (`disk`).

mod args;
mod disk;
mod faults;
mod hosts;
mod http;
mod measurement;
mod process;
mod report;
mod services;
pub(crate) mod source;
mod spec;
mod transactions;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

pub(crate) use self::args::Args;

use self::{
    faults::ServiceFault,
    hosts::{REPLICAS, ServiceBench},
    measurement::{
        ECHO, HTTP, Measurement, ONE_AT_A_TIME, ORIGINAL, ORIGINAL_ALONE, READ_ALONE, READS, STORE,
        WRITE_ALONE, median,
    },
    spec::ServiceWork,
};
use super::machine::MachineSpeed;

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.bytes >= services::BYTES_MIN, "--bytes must be at least {}", services::BYTES_MIN);
    ensure!((1..=args.in_flight).contains(&args.together), "--together must be from 1 to --in-flight");
    ensure!(args.readers > 0 && args.runs > 0, "--readers and --runs must be at least 1");
    ensure!(
        args.in_flight / args.readers >= args.together,
        "--in-flight must be at least --readers times --together, because each reader makes --together \
         calls at a time"
    );
    if args.disk {
        return disk::run(args);
    }
    if args.transactions {
        return transactions::run(args);
    }
    if let Some(kills) = args.kills {
        return faults::run(args, ServiceFault::Kill, kills);
    }
    if let Some(stops) = args.stops {
        return faults::run(args, ServiceFault::Stop, stops);
    }
    let before = MachineSpeed::measure(args.seconds)?;
    let mut runs = Vec::with_capacity(args.runs);
    for index in 0..args.runs {
        let run = one_run(args).with_context(|| format!("run {}", index + 1))?;
        if !args.json {
            println!("run {}", index + 1);
            run.iter().for_each(Measurement::print);
        }
        runs.push(run);
    }
    let machine = before.mean(&MachineSpeed::measure(args.seconds)?);
    let figures: Vec<Figure> = LIMITS.iter().map(|limit| limit.judge(&runs, &machine)).collect();
    if args.json {
        println!("{}", json_report(args, &machine, &figures, &runs));
    } else {
        machine.print();
        figures.iter().for_each(Figure::print);
    }
    Ok(())
}

fn json_report(args: &Args, machine: &MachineSpeed, figures: &[Figure], runs: &[Vec<Measurement>]) -> Value {
    let mut report = Map::new();
    report.insert("bench".into(), json!("service"));
    for figure in figures {
        report.insert(figure.limit.name.into(), json!(figure.raw.round()));
        report.insert(format!("{}_scaled", figure.limit.name), json!(figure.scaled.round()));
    }
    let last = runs.last().map(Vec::as_slice).unwrap_or_default();
    let details: Map<String, Value> = last.iter().map(|one| (one.name.to_owned(), one.json())).collect();
    let rest = json!({
        "round_trip_us": machine.round_trip_us, "ecast_per_second": machine.ecast_per_second.round(),
        "replicas": REPLICAS, "readers": args.readers, "bytes": args.bytes, "in_flight": args.in_flight,
        "together": args.together, "seconds": args.seconds, "runs": args.runs, "last_run": details,
        "verdict": figures.iter().map(Figure::verdict).collect::<Vec<_>>(),
        "holds": figures.iter().all(|figure| figure.holds),
    });
    report.extend(rest.as_object().cloned().unwrap_or_default());
    Value::Object(report)
}

/// The limit of a figure, on the machine for which limits are set.
struct Limit {
    name: &'static str,
    measurement: &'static str,
    of: Bound,
}

enum Bound {
    LatencyMost(f64),
    RateLeast(f64),
}

const LIMITS: [Limit; 6] = [
    Limit { name: "writes_per_second", measurement: ECHO, of: Bound::RateLeast(1_200_000.0) },
    Limit { name: "store_writes_per_second", measurement: STORE, of: Bound::RateLeast(1_000_000.0) },
    Limit { name: "reads_per_second", measurement: READS, of: Bound::RateLeast(1_500_000.0) },
    Limit { name: "http_per_second", measurement: HTTP, of: Bound::RateLeast(40_000.0) },
    Limit { name: "write_p50_us", measurement: WRITE_ALONE, of: Bound::LatencyMost(90.0) },
    Limit { name: "read_p50_us", measurement: READ_ALONE, of: Bound::LatencyMost(70.0) },
];

/// A limit, with the measured value.
struct Figure {
    limit: &'static Limit,
    raw: f64,
    scaled: f64,
    holds: bool,
}

impl Limit {
    fn judge(&'static self, runs: &[Vec<Measurement>], machine: &MachineSpeed) -> Figure {
        let of = runs.iter().flatten().filter(|one| one.name == self.measurement);
        let (raw, scaled, holds) = match self.of {
            Bound::RateLeast(least) => {
                let raw = median(of.map(Measurement::rate).collect());
                let scaled = machine.rate(raw);
                (raw, scaled, scaled >= least)
            }
            Bound::LatencyMost(most) => {
                let raw = median(of.map(|one| one.calls.p50_us).collect());
                let scaled = machine.latency(raw);
                (raw, scaled, scaled <= most)
            }
        };
        Figure { limit: self, raw, scaled, holds }
    }
}

impl Figure {
    fn verdict(&self) -> String {
        let word = if self.holds { "holds" } else { "misses" };
        let (bound, limit) = match self.limit.of {
            Bound::RateLeast(limit) => ("at least", limit),
            Bound::LatencyMost(limit) => ("at most", limit),
        };
        format!(
            "{word}: {}, scaled to the reference machine, is {:.0}; the limit is {bound} {limit:.0}",
            self.limit.name, self.scaled
        )
    }

    fn print(&self) {
        println!("{}: {:.0} ({})", self.limit.name, self.raw, self.verdict());
    }
}

fn one_run(args: &Args) -> Result<Vec<Measurement>> {
    let mut stage = ServiceBench::start(args, None)?;
    let readers = args.readers;
    let measurements = vec![
        stage.measure(ECHO, ServiceWork::EchoWrites, 1, args.in_flight, args.together)?,
        stage.measure(STORE, ServiceWork::StoreWrites, 1, args.in_flight, args.together)?,
        stage.measure(READS, ServiceWork::StoreReads, readers, args.in_flight / readers, args.together)?,
        stage.measure(WRITE_ALONE, ServiceWork::EchoWrites, 1, 1, 1)?,
        stage.measure(READ_ALONE, ServiceWork::StoreReads, 1, 1, 1)?,
    ];
    stage.compare()?;
    drop(stage);
    // Measures an unreplicated service, and then a service without pipelining: the comparison gives the cost
    // of replication.
    let mut original = ServiceBench::begin(args, None, (1, false))?;
    let mut measurements = measurements;
    measurements.push(original.measure(
        ORIGINAL,
        ServiceWork::EchoWrites,
        1,
        args.in_flight,
        args.together,
    )?);
    measurements.push(original.measure(ORIGINAL_ALONE, ServiceWork::EchoWrites, 1, 1, 1)?);
    original.compare()?;
    drop(original);
    let mut one_at_a_time = ServiceBench::begin(args, None, (REPLICAS, true))?;
    measurements.push(one_at_a_time.measure(
        ONE_AT_A_TIME,
        ServiceWork::EchoWrites,
        1,
        args.in_flight,
        args.together,
    )?);
    one_at_a_time.compare()?;
    drop(one_at_a_time);
    let mut doors = ServiceBench::with_doors(args)?;
    measurements.push(doors.measure(HTTP, ServiceWork::HttpWrites, 1, CONNECTIONS, 1)?);
    Ok(measurements)
}

/// Number of connections to an HTTP door, each with one call in flight.
const CONNECTIONS: usize = 64;

/// One process of the bench; the bench starts it.
#[derive(clap::Args)]
pub(crate) struct ServiceProcessArgs {
    /// The role of the process in the bench, as JSON.
    spec: String,
}

pub(crate) fn run_process(args: &ServiceProcessArgs) -> Result<()> {
    process::run(serde_json::from_str(&args.spec)?)
}
