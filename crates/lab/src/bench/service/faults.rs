//! Kills leaders at full load, or stops them at half load, and measures how long no call is answered.
//!
//! One client keeps its calls in flight. The bench repeatedly kills the leading host, and starts another one
//! in its place once calls are answered again; or it stops the leader, which resumes later and must rejoin.
//! At the end every replica must have applied exactly the answered writes: a call that was in flight when its
//! leader was lost took effect once.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::json;

use super::{
    args::Args,
    hosts::{REPLICAS, ServiceBench},
    measurement::median,
    report::Calls,
    spec::ServiceWork,
};

/// The fault of the leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceFault {
    /// The leader is killed, at full load.
    Kill,
    /// The leader is stopped for a while, at half load.
    Stop,
}

impl ServiceFault {
    fn plural(self) -> &'static str {
        match self {
            ServiceFault::Kill => "kills",
            ServiceFault::Stop => "stops",
        }
    }

    /// Returns the limit of the silence until a successor answers, in milliseconds.
    fn silence_most_ms(self) -> f64 {
        match self {
            ServiceFault::Kill => 300.0,
            ServiceFault::Stop => 1500.0,
        }
    }

    /// Returns the time after a fault at which the bench asks for the longest silence. A stopped leader
    /// stands still during that time.
    fn looked_at(self) -> Duration {
        match self {
            ServiceFault::Kill => Duration::from_millis(1500),
            ServiceFault::Stop => Duration::from_secs(4),
        }
    }
}

pub(super) fn run(args: &Args, fault: ServiceFault, count: usize) -> Result<()> {
    let mut stage = ServiceBench::start(args, None)?;
    stage.stops = fault == ServiceFault::Stop;
    let work = ServiceWork::EchoWritesOn { at_half: fault == ServiceFault::Stop };
    let mut client = stage.client(work, args.in_flight, args.together, args.seconds, 0)?;
    client.send_line("go")?;
    thread::sleep(Duration::from_secs(2));
    let mut silences = Vec::with_capacity(count);
    for _ in 0..count {
        let reports = stage.reports()?;
        let leader =
            reports.iter().position(|report| report.leads).context("no replica of the service leads")?;
        client.ask("mark")?;
        match fault {
            ServiceFault::Kill => stage.end_host(leader),
            ServiceFault::Stop => stage.hosts[leader].signal(Signal::STOP)?,
        }
        thread::sleep(fault.looked_at());
        let silence: f64 = client.ask("silence")?.parse()?;
        if !args.json {
            println!("  the client had no answer for {silence:.0} ms");
        }
        silences.push(silence);
        match fault {
            ServiceFault::Kill => stage.begin_host(None, (REPLICAS, false))?,
            ServiceFault::Stop => stage.hosts[leader].signal(Signal::CONT)?,
        }
        stage.wait_until("the service has all replicas again, and one of these leads", |reports| {
            reports.iter().all(|report| report.replicas == usize::from(REPLICAS))
                && reports.iter().filter(|report| report.leads).count() == 1
        })?;
    }
    let calls: Calls = serde_json::from_str(&client.ask("end")?)?;
    stage.written[0] += calls.answered;
    stage.compare()?;
    let (worst, rate) = (silences.iter().copied().fold(0.0, f64::max), calls.measured as f64 / calls.seconds);
    let (middle, most, plural) = (median(silences.clone()), fault.silence_most_ms(), fault.plural());
    let holds = worst <= most;
    let word = if holds { "holds" } else { "misses" };
    let verdict = format!(
        "{word}: the longest silence after {count} {plural} was {worst:.0} ms; the limit is {most:.0} ms"
    );
    if args.json {
        let result = json!({
            "bench": "service", plural: count, "silence_ms": silences, "silence_ms_median": middle, "silence_ms_worst": worst,
            "answered": calls.answered, "per_second": rate.round(), "in_flight": args.in_flight, "verdict": verdict, "holds": holds,
        });
        println!("{result}");
    } else {
        println!(
            "{} calls were answered, {rate:.0}/s in all; the median silence was {middle:.0} ms",
            calls.answered
        );
        println!("{verdict}");
    }
    Ok(())
}
