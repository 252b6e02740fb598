//! References of the machine, measured in the same run as a bench, because figures of one machine mean little
//! alone.
//!
//! Latencies are scaled by the round trip between two blocking processes, and rates by `bench ecast`, to the
//! machine for which the limits are set.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow};
use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{child::Child, ecast};

/// The speeds of this machine by which results are scaled.
pub(super) struct MachineSpeed {
    pub(super) round_trip_us: f64,
    pub(super) ecast_per_second: f64,
}

/// The machine for which the limits are set.
const MEANT: MachineSpeed = MachineSpeed { round_trip_us: 54.0, ecast_per_second: 900_000.0 };

const MIRRORED_BYTES: usize = 100;
const ROUND_TRIPS: u32 = 10_000;

impl MachineSpeed {
    /// Measures the round trip, and then for this number of seconds the rate of `bench ecast`.
    pub(super) fn measure(seconds: f64) -> Result<MachineSpeed> {
        let mut mirror = Child::start(String::from("mirror"), "mirror-process", &())?;
        let round_trip_us = round_trip(mirror.line()?)?;
        drop(mirror);
        Ok(MachineSpeed { round_trip_us, ecast_per_second: ecast::reference(seconds)? })
    }

    /// Returns the mean of two measurements, one before and one after a bench.
    pub(super) fn mean(&self, other: &MachineSpeed) -> MachineSpeed {
        MachineSpeed {
            round_trip_us: (self.round_trip_us + other.round_trip_us) / 2.0,
            ecast_per_second: (self.ecast_per_second + other.ecast_per_second) / 2.0,
        }
    }

    /// Converts a measured rate to the speed of the reference machine ([`MEANT`]), for which the limits are
    /// set.
    pub(super) fn rate(&self, measured: f64) -> f64 {
        measured * MEANT.ecast_per_second / self.ecast_per_second
    }

    /// Converts a measured time to the speed of the reference machine ([`MEANT`]), for which the limits are
    /// set.
    pub(super) fn latency(&self, measured: f64) -> f64 {
        measured * MEANT.round_trip_us / self.round_trip_us
    }

    pub(super) fn print(&self) {
        let MachineSpeed { round_trip_us, ecast_per_second } = self;
        println!(
            "this machine: a round trip between two processes that block takes {round_trip_us:.1} µs; \
             `quorate bench ecast` has {ecast_per_second:.0} messages/s"
        );
    }
}

/// The other end of the round trips; the bench starts it.
#[derive(clap::Args)]
pub(crate) struct MirrorArgs {
    /// Unused: every process of a bench gets its role as JSON, and a mirror needs no further settings.
    _spec: String,
}

/// Sends every message back unchanged.
pub(crate) fn run_mirror(_: &MirrorArgs) -> Result<()> {
    on_core(1)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut bytes = [0; MIRRORED_BYTES];
    while stream.read_exact(&mut bytes).is_ok() {
        stream.write_all(&bytes)?;
    }
    Ok(())
}

/// Returns the median of round trips to a mirror, in microseconds. Each end is bound to its own core, because
/// the system often puts unbound ends on one core, which gives another measure. The measured processes are
/// not bound.
fn round_trip(mirror: String) -> Result<f64> {
    let measured = thread::spawn(move || {
        on_core(0)?;
        round_trips(&mirror)
    });
    measured.join().map_err(|_| anyhow!("the thread that measures round trips panicked"))?
}

/// Binds this thread to the allowed core with this index.
fn on_core(number: usize) -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let core = cores.nth(number).context("this measurement needs two processor cores")?;
    let mut own = CpuSet::new();
    own.set(core);
    Ok(sched_setaffinity(None, &own)?)
}

fn round_trips(mirror: &str) -> Result<f64> {
    let mut stream = TcpStream::connect(mirror)?;
    stream.set_nodelay(true)?;
    let (mut bytes, mut spans) = ([7; MIRRORED_BYTES], Histogram::<u64>::new(3)?);
    for turn in 0..ROUND_TRIPS {
        let begun = Instant::now();
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
        if turn >= ROUND_TRIPS / 10 {
            spans.record(begun.elapsed().as_nanos() as u64)?;
        }
    }
    Ok(spans.value_at_quantile(0.5) as f64 / 1e3)
}
