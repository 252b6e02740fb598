//! `quorate bench paxos`: the log of the routers alone, in memory and on disk.
//!
//! Three routers, each an operating-system process on loopback, and a user in the leader's process that keeps
//! values in flight. A figure of a disk means nothing alone. So the same run measures the disk itself: the
//! time of a sync while three files are synced at once, and the bytes per second of three bare journals. Each
//! write to these journals is as long as all values in flight together.
//!
//! With `--kills` nothing is measured: all routers are killed at once under load, repeatedly, and recover
//! from their disks. No acknowledged value may be lost (`kills`).

mod kills;
mod process;
mod replica;
mod routers;

use std::{
    env,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use self::{
    process::{Bare, Begun, DiskSpec, PaxosProcessSpec, RouterSpec, RouterWork},
    replica::RouterReport,
    routers::{PATIENCE, ROUTERS, addresses, report, start, wait_until},
};

/// Measures the routers' log, in memory and on disk; or kills its routers.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Bytes of each value.
    #[arg(long, default_value_t = 100)]
    bytes: usize,
    /// Values in flight: a run for each.
    #[arg(long, value_delimiter = ',', default_values_t = [8192, 1])]
    in_flight: Vec<usize>,
    /// Seconds of each run, after a warm-up of one second.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Directory on the disk to measure; a new directory in it is used and then removed.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Kill all routers at once this number of times, instead of measuring.
    #[arg(long)]
    kills: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Size of a journal's segment. It is small, so that segments are overwritten before the measurement begins,
/// as in a long run.
const SEGMENT_BYTES: u64 = 16 << 20;
/// About the time between two syncs of a router with one value in flight. A disk without rest answers up to
/// several times as fast as one that rests between syncs.
const REST: Duration = Duration::from_micros(100);
/// Shortest sync of a real disk, in microseconds.
pub(super) const SYNC_LEAST_US: f64 = 50.0;

pub(crate) fn run(args: Args) -> Result<()> {
    ensure!(args.bytes >= replica::VALUE_BYTES_MIN, "--bytes must be at least {}", replica::VALUE_BYTES_MIN);
    ensure!(
        args.in_flight.iter().all(|it| (1..=1 << 16).contains(it)),
        "--in-flight must be between 1 and 65536"
    );
    let base = args.directory.clone().unwrap_or_else(env::temp_dir);
    let place = Scratch::new(&base, "paxos")?;
    match args.kills {
        Some(kills) => kills::run(kills, &place.0, args.json),
        None => measure(&args, &place.0),
    }
}

/// A temporary directory, removed with this value.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(base: &Path, bench: &str) -> Result<Scratch> {
        let path = base.join(format!("quorate-bench-{bench}-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot create a directory for the bench in {}", base.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn measure(args: &Args, place: &Path) -> Result<()> {
    let span = args.seconds.min(3.0);
    let sync_p50 = sync_p50(place, span)?;
    let mut runs = Vec::new();
    for &in_flight in &args.in_flight {
        let bytes = (in_flight * args.bytes).clamp(256, 32 << 20);
        let bare_rate = bare_rate(place, bytes, Duration::ZERO, span)?;
        let memory = one_run(args, in_flight, None)?;
        let disk = one_run(args, in_flight, Some(place))?;
        runs.push(Pair { in_flight, memory, disk, bare_rate, sync_p50 });
    }
    if args.json {
        let runs: Vec<_> = runs.iter().map(Pair::json).collect();
        let figures = json!({
            "bench": "paxos", "routers": ROUTERS, "bytes": args.bytes, "seconds": args.seconds,
            "sync_p50_us": sync_p50, "runs": runs,
        });
        println!("{figures}");
        return Ok(());
    }
    println!("a sync takes {sync_p50:.0} µs while three files are synced at once");
    for run in &runs {
        run.print();
    }
    Ok(())
}

/// A run in memory, one on disk, and the limits of the disk.
struct Pair {
    in_flight: usize,
    memory: PaxosRun,
    disk: PaxosRun,
    /// Bytes per second of the slowest of three bare journals.
    bare_rate: f64,
    sync_p50: f64,
}

/// One run: the measurements of the leader's user, and the work of each router's threads, the leader first.
struct PaxosRun {
    report: RouterReport,
    work: Vec<RouterWork>,
}

impl PaxosRun {
    fn rate(&self) -> f64 {
        self.report.measured as f64 / self.report.seconds
    }

    fn bytes_per_value(&self) -> f64 {
        self.work.iter().map(|work| work.disk_bytes as f64 / self.report.measured as f64).fold(0.0, f64::max)
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "per_second": self.rate().round(), "p50_us": self.report.p50_us, "p99_us": self.report.p99_us,
            "threads": self.work.iter().map(|work| json!({
                "protocol_cores": work.protocol_seconds / self.report.seconds,
                "disk_busy": work.disk_seconds / self.report.seconds,
                "syncs_per_second": (work.disk_syncs as f64 / self.report.seconds).round(),
                "bytes_per_sync": (work.disk_bytes as f64 / work.disk_syncs.max(1) as f64).round(),
                "turns_per_second": (work.turns as f64 / self.report.seconds).round(),
            })).collect::<Vec<_>>(),
        })
    }

    fn print(&self, mode: &str) {
        let RouterReport { p50_us, p99_us, seconds, .. } = self.report;
        println!("  {mode}: {:.0} values/s, p50 {p50_us:.0} µs, p99 {p99_us:.0} µs", self.rate());
        for (number, work) in self.work.iter().enumerate() {
            let part = if number == 0 { "leader" } else { "follower" };
            print!("    {part}: protocol thread {:.0} % busy", 100.0 * work.protocol_seconds / seconds);
            if work.disk_syncs > 0 {
                print!(
                    ", disk thread {:.0} %: {:.0} syncs/s of {:.0} KiB",
                    100.0 * work.disk_seconds / seconds,
                    work.disk_syncs as f64 / seconds,
                    work.disk_bytes as f64 / work.disk_syncs as f64 / 1024.0
                );
            }
            println!();
        }
    }
}

impl Pair {
    /// Returns the values per second that three bare journals could write.
    fn bare_values(&self) -> f64 {
        self.bare_rate / self.disk.bytes_per_value()
    }

    /// Returns the judgement of the run on disk, as a sentence, and whether the limit is kept; `None` if
    /// syncs are too fast for a real disk.
    fn verdict(&self) -> (String, Option<bool>) {
        if self.sync_p50 < SYNC_LEAST_US {
            let why = format!(
                "a sync takes {:.0} µs, too little for a real disk, so there is no verdict",
                self.sync_p50
            );
            return (why, None);
        }
        if self.in_flight == 1 {
            let most = 1.3 * self.sync_p50 + 100.0;
            let p50 = self.disk.report.p50_us;
            return (
                format!(
                    "one value at a time takes p50 {p50:.0} µs; the limit is 1.3 syncs + 100 µs = {most:.0} µs"
                ),
                Some(p50 <= most),
            );
        }
        let least = 0.7 * self.memory.rate().min(self.bare_values());
        let says = format!(
            "the disk has {:.2} of the rate in memory and {:.2} of the rate of three bare journals ({:.0} \
             MB/s each)",
            self.disk.rate() / self.memory.rate(),
            self.disk.rate() / self.bare_values(),
            self.bare_rate / 1e6
        );
        (says, Some(self.disk.rate() >= least))
    }

    fn json(&self) -> serde_json::Value {
        let (says, holds) = self.verdict();
        json!({
            "in_flight": self.in_flight, "memory": self.memory.json(), "disk": self.disk.json(),
            "bare_bytes_per_second": self.bare_rate.round(), "bytes_per_value": self.disk.bytes_per_value(),
            "verdict": says, "holds": holds,
        })
    }

    fn print(&self) {
        println!("{} values in flight", self.in_flight);
        self.memory.print("memory");
        self.disk.print("disk");
        let (says, holds) = self.verdict();
        let word = match holds {
            Some(true) => "holds: ",
            Some(false) => "misses: ",
            None => "",
        };
        println!("  {word}{says}");
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Returns the median time of a sync while three files are synced at once, in microseconds.
pub(super) fn sync_p50(place: &Path, seconds: f64) -> Result<f64> {
    Ok(median(bare(place, 256, REST, seconds)?.iter().map(|one| one.p50_us).collect()))
}

/// Returns the bytes per second of the slowest of three bare journals that write `bytes` at a time,
/// concurrently.
pub(super) fn bare_rate(place: &Path, bytes: usize, rest: Duration, seconds: f64) -> Result<f64> {
    let journals = bare(place, bytes, rest, seconds)?;
    Ok(journals.iter().map(|one| one.bytes as f64 / one.seconds).fold(f64::INFINITY, f64::min))
}

/// Runs three bare journals that write `bytes` at a time, concurrently.
fn bare(place: &Path, bytes: usize, rest: Duration, seconds: f64) -> Result<Vec<Bare>> {
    let mut journals = Vec::new();
    for number in 0..ROUTERS {
        let directory = place.join(format!("bare-{number}"));
        let mut journal = start(
            format!("journal {number}"),
            &PaxosProcessSpec::Journal { directory, bytes, rest, seconds },
        )?;
        ensure!(journal.line_within(PATIENCE)? == "ready", "{} did not begin to write", journal.name);
        journals.push(journal);
    }
    journals.iter_mut().try_for_each(|journal| journal.send_line("go"))?;
    journals.iter_mut().map(|journal| Ok(serde_json::from_str(&journal.line_within(PATIENCE)?)?)).collect()
}

fn one_run(args: &Args, in_flight: usize, disk: Option<&Path>) -> Result<PaxosRun> {
    let (domain, addresses) = (quorate_runtime::chance::domain(), addresses()?);
    let mut routers = Vec::new();
    for node in 1..=ROUTERS {
        let spec = RouterSpec {
            domain: domain.0,
            node,
            address: addresses[node as usize - 1].clone(),
            routers: addresses.clone(),
            founds: node == 1,
            disk: disk.map(|place| DiskSpec {
                directory: place.join(format!("router-{node}")),
                late: false,
                segment_bytes: SEGMENT_BYTES,
                checkpoint_bytes: SEGMENT_BYTES as usize,
            }),
            value_bytes: args.bytes,
            prints_acknowledged: false,
        };
        let mut router = start(format!("router {node}"), &PaxosProcessSpec::Router(spec))?;
        let _: Begun = serde_json::from_str(&router.line_within(PATIENCE)?)?;
        routers.push(router);
    }
    wait_until("all routers are members", || {
        let (report, _) = report(&mut routers[0], |_| {})?;
        Ok((report.leads && report.members.len() == ROUTERS as usize).then_some(()))
    })?;
    routers[0].send_line(&format!("load {in_flight}"))?;
    thread::sleep(Duration::from_secs(1));
    routers.iter_mut().try_for_each(|router| router.send_line("reset"))?;
    thread::sleep(Duration::from_secs_f64(args.seconds));
    let reports: Vec<_> = routers.iter_mut().map(|router| report(router, |_| {})).collect::<Result<_>>()?;
    ensure!(reports[0].0.leads, "the leader changed during the run");
    let report = reports[0].0.clone();
    ensure!(report.measured > 0, "the leader learned no value during the run");
    drop(routers);
    if let Some(place) = disk {
        for node in 1..=ROUTERS {
            std::fs::remove_dir_all(place.join(format!("router-{node}")))?;
        }
    }
    Ok(PaxosRun { report, work: reports.into_iter().map(|(_, work)| work).collect() })
}

/// One process of the bench; the bench starts it.
#[derive(clap::Args)]
pub(crate) struct PaxosProcessArgs {
    /// The role of the process in the bench, as JSON.
    spec: String,
}

pub(crate) fn run_process(args: PaxosProcessArgs) -> Result<()> {
    process::run(serde_json::from_str(&args.spec)?)
}
