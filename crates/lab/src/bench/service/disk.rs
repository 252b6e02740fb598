//! Services on disk, compared with the bare disk and with the same services in memory.
//!
//! The bare disk is measured in the same run: the time of a sync while three files are synced at once, and
//! the bytes per second of three bare journals. Each write to these journals is as long as all calls in
//! flight together.

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    super::paxos::{self, SYNC_LEAST_US, Scratch},
    args::Args,
    hosts::{REPLICAS, ServiceBench},
    measurement::{ECHO, Measurement, WRITE_ALONE},
    spec::ServiceWork,
};

/// Runs the bench of services on disk.
pub(super) fn run(args: &Args) -> Result<()> {
    let base = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let place = Scratch::new(&base, "service")?;
    let span = args.seconds.min(3.0);
    let sync_p50_us = paxos::sync_p50(&place.0, span)?;
    let bytes = (args.in_flight * args.bytes).clamp(256, 32 << 20);
    let bare_per_second = paxos::bare_rate(&place.0, bytes, Duration::ZERO, span)?;
    let (memory, _) = measure(args, None)?;
    let (disk, written) = measure(args, Some(&place.0))?;
    let figures = DiskMeasurement { sync_p50_us, bare_per_second, memory, disk, written };
    if args.json {
        println!("{}", figures.json(args));
    } else {
        figures.print();
    }
    Ok(())
}

/// Measures writes in flight and single writes. Also returns the bytes that the busiest host wrote to its
/// disk for each write in flight.
fn measure(args: &Args, place: Option<&Path>) -> Result<([Measurement; 2], f64)> {
    let mut stage = ServiceBench::start(args, place)?;
    let before = stage.disk_bytes()?;
    let many = stage.measure(ECHO, ServiceWork::EchoWrites, 1, args.in_flight, args.together)?;
    let written = (stage.disk_bytes()? - before) as f64 / stage.written[0].max(1) as f64;
    let alone = stage.measure(WRITE_ALONE, ServiceWork::EchoWrites, 1, 1, 1)?;
    stage.compare()?;
    Ok(([many, alone], written))
}

struct DiskMeasurement {
    sync_p50_us: f64,
    /// Bytes per second of the slowest of three bare journals.
    bare_per_second: f64,
    memory: [Measurement; 2],
    disk: [Measurement; 2],
    /// Bytes on disk per write.
    written: f64,
}

impl DiskMeasurement {
    /// Returns the writes per second that three bare journals could write.
    fn bare_writes(&self) -> f64 {
        self.bare_per_second / self.written
    }

    /// Returns the judgements of the services on disk, as sentences, and whether all limits are kept; `None`
    /// if syncs are too fast for a real disk.
    fn verdict(&self) -> (Vec<String>, Option<bool>) {
        if self.sync_p50_us < SYNC_LEAST_US {
            let why = format!(
                "a sync takes {:.0} µs, too little for a real disk, so there is no verdict",
                self.sync_p50_us
            );
            return (vec![why], None);
        }
        let (rate, memory, bare) = (self.disk[0].rate(), self.memory[0].rate(), self.bare_writes());
        let (p50_us, most) = (self.disk[1].calls.p50_us, 1.3 * self.sync_p50_us + ALONE_US);
        let (many, alone) = (rate >= (0.5 * memory).min(0.7 * bare), p50_us <= most);
        let word = |holds| if holds { "holds" } else { "misses" };
        let verdict = vec![
            format!(
                "{}: with many writes in flight the disk has {:.2} of the rate in memory and {:.2} of the \
                 rate of three bare journals",
                word(many),
                rate / memory,
                rate / bare
            ),
            format!(
                "{}: one write at a time takes {p50_us:.0} µs; the limit is 1.3 syncs and {ALONE_US:.0} µs \
                 = {most:.0} µs",
                word(alone)
            ),
        ];
        (verdict, Some(many && alone))
    }

    fn json(&self, args: &Args) -> Value {
        let (verdict, holds) = self.verdict();
        json!({
            "bench": "service", "disk": true, "sync_p50_us": self.sync_p50_us,
            "disk_writes_per_second": self.disk[0].rate().round(), "disk_write_p50_us": self.disk[1].calls.p50_us,
            "disk_write_p99_us": self.disk[1].calls.p99_us,
            "memory_writes_per_second": self.memory[0].rate().round(), "memory_write_p50_us": self.memory[1].calls.p50_us,
            "bare_bytes_per_second": self.bare_per_second.round(), "disk_bytes_per_write": self.written.round(),
            "replicas": REPLICAS, "bytes": args.bytes, "in_flight": args.in_flight, "together": args.together,
            "seconds": args.seconds, "verdict": verdict, "holds": holds,
        })
    }

    fn print(&self) {
        println!("a sync takes {:.0} µs while three files are synced at once", self.sync_p50_us);
        for (mode, measurements) in [("memory", &self.memory), ("disk", &self.disk)] {
            println!("{mode}");
            measurements.iter().for_each(Measurement::print);
        }
        self.verdict().0.iter().for_each(|line| println!("{line}"));
    }
}

/// Allowed time of a single write in addition to its sync, in microseconds.
const ALONE_US: f64 = 120.0;
