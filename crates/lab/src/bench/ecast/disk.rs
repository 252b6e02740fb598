//! The order with routers on disk, compared with the bare disk and with the same order in memory.
//!
//! The bare disk is measured in the same run: the time of a sync while three files are synced at once, and
//! the bytes per second of three bare journals. Each write to these journals is as long as all messages in
//! flight together.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    super::paxos::{self, SYNC_LEAST_US, Scratch},
    args::Args,
    measurement::{Measured, median, one_run},
    report::EcastRun,
};

/// Runs in memory and on disk in turn, with a full window and with a single message.
pub(super) fn run(args: &Args) -> Result<()> {
    let base = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let place = Scratch::new(&base, "ecast")?;
    let span = args.seconds.min(3.0);
    let bytes = (args.window * args.bytes).clamp(256, 32 << 20);
    let mut rounds = Vec::with_capacity(args.runs);
    for index in 0..args.runs {
        let measure = |window, disk: bool| {
            let place = disk.then(|| place.0.join(format!("run-{index}-{window}")));
            let measured = one_run(&Args { window, ..args.clone() }, place.as_deref());
            if let Some(place) = place {
                std::fs::remove_dir_all(place)?;
            }
            measured.with_context(|| format!("run {}", index + 1))
        };
        let round = Round {
            sync_p50_us: paxos::sync_p50(&place.0, span)?,
            bare_per_second: paxos::bare_rate(&place.0, bytes, Duration::ZERO, span)?,
            memory: measure(args.window, false)?,
            disk: measure(args.window, true)?,
            memory_alone: measure(1, false)?.run,
            disk_alone: measure(1, true)?.run,
        };
        if !args.json {
            round.print(index + 1);
        }
        rounds.push(round);
    }
    let figures = DiskMeasurement::of(&rounds);
    if args.json {
        println!("{}", figures.json(args));
    } else {
        figures.verdict().0.iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}

/// The measurements of one run: the disk and both modes.
struct Round {
    sync_p50_us: f64,
    /// Bytes per second of the slowest of three bare journals.
    bare_per_second: f64,
    memory: Measured,
    disk: Measured,
    memory_alone: EcastRun,
    disk_alone: EcastRun,
}

impl Round {
    /// Returns the messages per second that three bare journals could write.
    fn bare_messages(&self) -> f64 {
        self.bare_per_second / self.disk.disk_bytes_per_message
    }

    fn print(&self, number: usize) {
        println!(
            "run {number}: {:.0} messages/s in memory, {:.0} on disk, {:.0} that three bare journals could \
             write; one message at a time p50 {:.0} µs in memory and {:.0} µs on disk, a sync {:.0} µs",
            self.memory.run.rate(),
            self.disk.run.rate(),
            self.bare_messages(),
            self.memory_alone.latency_p50_us,
            self.disk_alone.latency_p50_us,
            self.sync_p50_us
        );
    }
}

/// Medians over the runs.
struct DiskMeasurement {
    sync_p50_us: f64,
    bare_per_second: f64,
    bare_messages: f64,
    memory: f64,
    disk: f64,
    disk_p50_us: f64,
    disk_p99_us: f64,
    disk_bytes_per_message: f64,
    memory_alone_p50_us: f64,
    disk_alone_p50_us: f64,
}

impl DiskMeasurement {
    fn of(rounds: &[Round]) -> DiskMeasurement {
        let of = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
        DiskMeasurement {
            sync_p50_us: of(&|round| round.sync_p50_us),
            bare_per_second: of(&|round| round.bare_per_second),
            bare_messages: of(&Round::bare_messages),
            memory: of(&|round| round.memory.run.rate()),
            disk: of(&|round| round.disk.run.rate()),
            disk_p50_us: of(&|round| round.disk.run.latency_p50_us),
            disk_p99_us: of(&|round| round.disk.run.latency_p99_us),
            disk_bytes_per_message: of(&|round| round.disk.disk_bytes_per_message),
            memory_alone_p50_us: of(&|round| round.memory_alone.latency_p50_us),
            disk_alone_p50_us: of(&|round| round.disk_alone.latency_p50_us),
        }
    }

    /// Returns the judgements of the order on disk, as sentences, and whether all limits are kept; `None` if
    /// syncs are too fast for a real disk.
    fn verdict(&self) -> (Vec<String>, Option<bool>) {
        if self.sync_p50_us < SYNC_LEAST_US {
            let why = format!(
                "a sync takes {:.0} µs, too little for a real disk, so there is no verdict",
                self.sync_p50_us
            );
            return (vec![why], None);
        }
        let most = 1.3 * self.sync_p50_us + ALONE_US;
        let many = self.disk >= (0.5 * self.memory).min(0.7 * self.bare_messages);
        let alone = self.disk_alone_p50_us <= most;
        let word = |holds| if holds { "holds" } else { "misses" };
        let verdict = vec![
            format!(
                "{}: with many messages in flight the disk has {:.2} of the rate in memory and {:.2} of \
                 the rate of three bare journals",
                word(many),
                self.disk / self.memory,
                self.disk / self.bare_messages
            ),
            format!(
                "{}: one message at a time takes {:.0} µs; the limit is 1.3 syncs and {ALONE_US:.0} µs = \
                 {most:.0} µs",
                word(alone),
                self.disk_alone_p50_us
            ),
        ];
        (verdict, Some(many && alone))
    }

    fn json(&self, args: &Args) -> Value {
        let (verdict, holds) = self.verdict();
        json!({
            "bench": "ecast", "durable": true, "sync_p50_us": self.sync_p50_us,
            "messages_per_second": self.disk.round(), "latency_p50_us": self.disk_p50_us,
            "latency_p99_us": self.disk_p99_us, "alone_p50_us": self.disk_alone_p50_us,
            "memory_messages_per_second": self.memory.round(), "memory_alone_p50_us": self.memory_alone_p50_us,
            "bare_bytes_per_second": self.bare_per_second.round(), "bare_messages_per_second": self.bare_messages.round(),
            "disk_bytes_per_message": self.disk_bytes_per_message.round(), "window": args.window, "clients": 1,
            "routers": args.routers, "receivers": args.receivers, "copies": args.copies, "bytes": args.bytes,
            "runs": args.runs, "seconds": args.seconds, "verdict": verdict, "holds": holds,
        })
    }
}

/// Allowed time of a single message in addition to its sync, in microseconds.
const ALONE_US: f64 = 150.0;
