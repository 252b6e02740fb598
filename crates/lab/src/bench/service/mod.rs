//! `quorate bench service`: replicated services in the library, on real processes.
//!
//! Three hosts, each with a replica of two services, and clients, each an operating-system process on
//! loopback. A write's request, reply and delta have the same number of bytes. Clients check their answers.
//! At the end every replica must have applied as many changes as were answered, with the same print of all
//! changes in their order.
//!
//! The same run measures the machine before and after (`machine`), and scales the figures by that.
//!
//! With `--kills` the bench kills leaders, with `--stops` it stops them (`faults`). With `--disk` the hosts
//! have disks, and are judged by the bare disks (`disk`).

mod disk;
mod faults;
mod http;
mod process;
mod services;
pub(crate) mod source;
mod transactions;

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value, json};

use self::{
    faults::ServiceFault,
    process::{Calls, ClientSpec, HostReport, ServiceWork, Spec},
};
use super::{child::Child, machine::Machine};

/// Measures replicated services: writes and reads, many in flight and single ones.
#[derive(Clone, clap::Args)]
pub(crate) struct Args {
    /// Bytes of each request, reply and delta.
    #[arg(long, default_value_t = 100)]
    bytes: usize,
    /// Calls in flight, of all clients together.
    #[arg(long, default_value_t = 8192)]
    in_flight: usize,
    /// Calls that a client makes together.
    #[arg(long, default_value_t = 256)]
    together: usize,
    /// Clients that read, each a process; one writes.
    #[arg(long, default_value_t = 8)]
    readers: usize,
    /// Seconds of each measurement, after a warm-up of one second.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Runs; the results are the medians.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Measures writes with hosts on disk, compared with the same in memory and with the bare disk.
    #[arg(long)]
    disk: bool,
    /// Directory on the disk to measure; a new directory in it is used and then removed.
    #[arg(long, requires = "disk")]
    directory: Option<PathBuf>,
    /// Measures transactions instead: with T-Paxos, as reads and writes, and as writes alone, for 1 to 16
    /// clients.
    #[arg(long, conflicts_with = "disk")]
    transactions: bool,
    /// Instead, kills the leader this number of times at full load, and measures how long no call is
    /// answered.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["disk", "transactions"])]
    kills: Option<usize>,
    /// Instead, stops the leader this number of times at half load, for 4 s each time.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["disk", "transactions", "kills"])]
    stops: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Returns the default arguments with this time for each measurement.
    fn plain(seconds: f64) -> Args {
        Args {
            bytes: 100,
            in_flight: 8192,
            together: 256,
            readers: 1,
            seconds,
            runs: 1,
            disk: false,
            directory: None,
            transactions: false,
            kills: None,
            stops: None,
            json: false,
        }
    }
}

const REPLICAS: u8 = 3;
const PATIENCE: Duration = Duration::from_secs(30);

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
    let before = Machine::measure(args.seconds)?;
    let mut runs = Vec::with_capacity(args.runs);
    for index in 0..args.runs {
        let run = one_run(args).with_context(|| format!("run {}", index + 1))?;
        if !args.json {
            println!("run {}", index + 1);
            run.iter().for_each(Measurement::print);
        }
        runs.push(run);
    }
    let machine = before.mean(&Machine::measure(args.seconds)?);
    let figures: Vec<Figure> = LIMITS.iter().map(|limit| limit.judge(&runs, &machine)).collect();
    if args.json {
        println!("{}", told(args, &machine, &figures, &runs));
    } else {
        machine.print();
        figures.iter().for_each(Figure::print);
    }
    Ok(())
}

fn told(args: &Args, machine: &Machine, figures: &[Figure], runs: &[Vec<Measurement>]) -> Value {
    let mut told = Map::new();
    told.insert("bench".into(), json!("service"));
    for figure in figures {
        told.insert(figure.limit.name.into(), json!(figure.raw.round()));
        told.insert(format!("{}_scaled", figure.limit.name), json!(figure.scaled.round()));
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
    told.extend(rest.as_object().cloned().unwrap_or_default());
    Value::Object(told)
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
    fn judge(&'static self, runs: &[Vec<Measurement>], machine: &Machine) -> Figure {
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

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

const ECHO: &str = "echo writes";
const STORE: &str = "store writes";
const READS: &str = "reads";
const WRITE_ALONE: &str = "write alone";
const READ_ALONE: &str = "read alone";
const HTTP: &str = "writes over HTTP";
const ORIGINAL: &str = "original writes";
const ORIGINAL_ALONE: &str = "original write alone";
const ONE_AT_A_TIME: &str = "one-at-a-time writes";

/// One measurement: the answers of all clients together, and the processors that each process used.
struct Measurement {
    name: &'static str,
    calls: Calls,
    cores: Vec<(String, f64)>,
}

impl Measurement {
    fn rate(&self) -> f64 {
        self.calls.measured as f64 / self.calls.seconds
    }

    /// Combines several measurements of one name: the sums of the answers, the median of the medians, the
    /// worst tail.
    fn of_turns(turns: Vec<Measurement>) -> Measurement {
        let (name, count) = (turns[0].name, turns.len() as f64);
        let calls: Vec<Calls> = turns.iter().map(|turn| turn.calls.clone()).collect();
        let calls = Calls { seconds: calls.iter().map(|one| one.seconds).sum(), ..together_of(&calls) };
        let mut cores = turns[0].cores.clone();
        for (place, (_, mean)) in cores.iter_mut().enumerate() {
            *mean = turns.iter().map(|turn| turn.cores[place].1).sum::<f64>() / count;
        }
        Measurement { name, calls, cores }
    }

    /// Returns the processor time of all processes per call, in microseconds.
    fn processor_us(&self) -> f64 {
        self.cores.iter().map(|(_, cores)| cores).sum::<f64>() * 1e6 / self.rate()
    }

    fn json(&self) -> Value {
        let cores: Map<String, Value> =
            self.cores.iter().map(|(name, cores)| (name.clone(), json!(cores))).collect();
        json!({
            "per_second": self.rate().round(), "p50_us": self.calls.p50_us, "p99_us": self.calls.p99_us,
            "cpu_cores": cores,
        })
    }

    fn print(&self) {
        let Calls { p50_us, p99_us, .. } = self.calls;
        let cores: Vec<String> =
            self.cores.iter().map(|(name, cores)| format!("{name} {cores:.2}")).collect();
        println!(
            "  {}: {:.0}/s, p50 {p50_us:.1} µs, p99 {p99_us:.1} µs; cores: {}",
            self.name,
            self.rate(),
            cores.join(", ")
        );
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
    // The cost of replication, and of replication without pipelining.
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

/// The hosts, and the answers that clients got from them.
struct ServiceBench<'a> {
    args: &'a Args,
    domain: String,
    hosts: Vec<Child>,
    addresses: Vec<String>,
    /// The HTTP addresses of the hosts; empty if they serve no HTTP.
    doors: Vec<String>,
    /// Number of hosts that were started.
    begun: usize,
    /// Number of answered writes of each service.
    written: [u64; 3],
    /// The number of the next write.
    number: u64,
    /// Whether hosts are stopped: the others may remove a stopped one, which then joins as a new replica.
    stops: bool,
}

impl<'a> ServiceBench<'a> {
    /// Starts the hosts, with directories in `place` if given.
    fn start(args: &'a Args, place: Option<&Path>) -> Result<ServiceBench<'a>> {
        ServiceBench::begin(args, place, (REPLICAS, false))
    }

    /// Starts this number of hosts, whose leader pipelines writes or executes one at a time.
    fn begin(
        args: &'a Args,
        place: Option<&Path>,
        (replicas, one_at_a_time): (u8, bool),
    ) -> Result<ServiceBench<'a>> {
        let mut stage = ServiceBench::empty(args);
        for _ in 0..replicas {
            stage.begin_host(place, (replicas, one_at_a_time))?;
        }
        stage.are_replicas(replicas)?;
        Ok(stage)
    }

    /// Starts three hosts that serve HTTP.
    fn with_doors(args: &'a Args) -> Result<ServiceBench<'a>> {
        let mut stage = ServiceBench::empty(args);
        for _ in 0..REPLICAS {
            let mut host = stage.spawn((REPLICAS, false), None, true)?;
            stage.addresses.push(host.line()?);
            stage.doors.push(host.line()?);
            stage.hosts.push(host);
        }
        stage.are_replicas(REPLICAS)?;
        Ok(stage)
    }

    fn empty(args: &'a Args) -> ServiceBench<'a> {
        let domain = format!("bench {:032x}", quorate_runtime::chance::domain().0);
        let (hosts, addresses, doors) = (Vec::new(), Vec::new(), Vec::new());
        ServiceBench {
            args,
            domain,
            hosts,
            addresses,
            doors,
            begun: 0,
            written: [0; 3],
            number: 0,
            stops: false,
        }
    }

    fn are_replicas(&mut self, replicas: u8) -> Result<()> {
        self.wait_until("all hosts are replicas", |standings| {
            standings.iter().all(|standing| standing.replicas == usize::from(replicas))
        })
    }

    /// Starts another host; the first one founds the services.
    fn begin_host(&mut self, place: Option<&Path>, terms: (u8, bool)) -> Result<()> {
        let mut host = self.spawn(terms, place, false)?;
        self.addresses.push(host.line()?);
        self.hosts.push(host);
        Ok(())
    }

    fn spawn(
        &mut self,
        (replicas, one_at_a_time): (u8, bool),
        place: Option<&Path>,
        http: bool,
    ) -> Result<Child> {
        let directory = place.map(|place| place.join(format!("host-{}", self.begun)));
        self.begun += 1;
        let (domain, seeds) = (self.domain.clone(), self.addresses.clone());
        let spec = Spec::Host { domain, replicas, one_at_a_time, seeds, directory, http };
        Child::start(format!("host {}", self.begun), "service-process", &spec)
    }

    /// Kills a host.
    fn end_host(&mut self, index: usize) {
        drop(self.hosts.remove(index));
        self.addresses.remove(index);
    }

    /// Starts a client, and waits until it is ready.
    fn client(
        &self,
        work: ServiceWork,
        in_flight: usize,
        together: usize,
        seconds: f64,
        index: usize,
    ) -> Result<Child> {
        let hosts = if work == ServiceWork::HttpWrites { &self.doors } else { &self.addresses };
        let spec = ClientSpec {
            domain: self.domain.clone(),
            hosts: hosts.clone(),
            work,
            first: self.number + ((index as u64) << 32),
            bytes: self.args.bytes,
            in_flight,
            together,
            seconds,
        };
        let mut client =
            Child::start(format!("client {}", index + 1), "service-process", &Spec::Client(spec))?;
        ensure!(client.line()? == "ready", "{} did not begin to call", client.name);
        Ok(client)
    }

    fn standings(&mut self) -> Result<Vec<HostReport>> {
        let standings = self.hosts.iter_mut().map(|host| Ok(serde_json::from_str(&host.ask("stand")?)?));
        let standings: Vec<HostReport> = standings.collect::<Result<_>>()?;
        if let Some(why) = standings.iter().find_map(|it| it.ended.as_ref()).filter(|_| !self.stops) {
            bail!("a replica of the service has ended: {why}");
        }
        Ok(standings)
    }

    fn wait_until(&mut self, what: &str, is: impl Fn(&[HostReport]) -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let standings = self.standings()?;
            if is(&standings) {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "this did not become true in time: {what}; the states of the hosts are {standings:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn measure(
        &mut self,
        name: &'static str,
        work: ServiceWork,
        clients: usize,
        in_flight: usize,
        together: usize,
    ) -> Result<Measurement> {
        let start = |index| self.client(work, in_flight, together, self.args.seconds, index);
        let mut started = (0..clients).map(start).collect::<Result<Vec<Child>>>()?;
        let clock = Instant::now();
        let before = self.work(&started)?;
        started.iter_mut().try_for_each(|client| client.tell("go"))?;
        let mut calls = Vec::with_capacity(clients);
        for client in &mut started {
            let told = client.line()?;
            calls.push(serde_json::from_str::<Calls>(&told).with_context(|| told.clone())?);
        }
        let after = self.work(&started)?;
        let seconds = clock.elapsed().as_secs_f64();
        let mut cores: Vec<(String, f64)> = Vec::new();
        for ((name, before), (_, after)) in before.into_iter().zip(after) {
            cores.push((name, (after - before).as_secs_f64() / seconds));
        }
        let all = together_of(&calls);
        self.number += all.answered;
        match work {
            ServiceWork::EchoWrites | ServiceWork::EchoWritesOn { .. } => self.written[0] += all.answered,
            ServiceWork::StoreWrites => self.written[1] += all.answered,
            // The client itself checks that each call took effect once.
            ServiceWork::StoreReads | ServiceWork::HttpWrites => {}
            ServiceWork::Transactions(transact) => self.written[2] += all.answered * transact.changes(),
        }
        Ok(Measurement { name, calls: all, cores })
    }

    /// Returns the processor time that every process has used.
    fn work(&self, clients: &[Child]) -> Result<Vec<(String, Duration)>> {
        let time = |it: &Child| Ok((it.name.clone(), it.cpu()?));
        self.hosts.iter().chain(clients).map(time).collect()
    }

    /// Returns the bytes that the busiest host's disk has got.
    fn disk_bytes(&self) -> Result<u64> {
        let bytes = self.hosts.iter().map(Child::disk_bytes).collect::<Result<Vec<_>>>()?;
        Ok(bytes.into_iter().max().unwrap_or(0))
    }

    /// Checks that every replica has applied the answered writes, in one order.
    fn compare(&mut self) -> Result<()> {
        let written = self.written;
        self.wait_until("every replica has applied all answered writes", |standings| {
            standings.iter().all(|standing| standing.applied.map(|(count, _)| count) == written)
        })?;
        let standings = self.standings()?;
        let same = standings.windows(2).all(|pair| pair[0].applied == pair[1].applied);
        ensure!(
            same,
            "the replicas have applied different changes; the states of the hosts are {standings:?}"
        );
        Ok(())
    }
}

/// Combines the answers of all clients.
fn together_of(calls: &[Calls]) -> Calls {
    let most = |of: fn(&Calls) -> f64| calls.iter().map(of).fold(0.0, f64::max);
    Calls {
        measured: calls.iter().map(|one| one.measured).sum(),
        seconds: most(|one| one.seconds),
        p50_us: median(calls.iter().map(|one| one.p50_us).collect()),
        p99_us: most(|one| one.p99_us),
        answered: calls.iter().map(|one| one.answered).sum(),
    }
}

/// One process of the bench; the bench starts it.
#[derive(clap::Args)]
pub(crate) struct ProcessArgs {
    /// The part of the process, as JSON.
    spec: String,
}

pub(crate) fn run_process(args: &ProcessArgs) -> Result<()> {
    process::run(serde_json::from_str(&args.spec)?)
}
