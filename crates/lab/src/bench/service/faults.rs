//! Leaders that are killed at full load, or stopped at half of it: how long no call is answered.
//!
//! One client keeps its calls in flight. Again and again the host that leads is killed, and another one is started in its place once calls are
//! answered again; or it is stopped, goes on later, and must find its way back. In the end every replica must have applied each write that was
//! answered, and no other: a call that was under way when its leader was gone took effect once.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::json;

use super::{Args, REPLICAS, Stage, Work, median, process::Calls};

/// The fate of leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// They are killed, at full load.
    Kill,
    /// They stand still for a while, at half load.
    Stop,
}

impl Fault {
    fn plural(self) -> &'static str {
        match self {
            Fault::Kill => "kills",
            Fault::Stop => "stops",
        }
    }

    /// The longest silence until a successor answers.
    fn silence_most_ms(self) -> f64 {
        match self {
            Fault::Kill => 300.0,
            Fault::Stop => 1500.0,
        }
    }

    /// So long after one the longest silence is asked for. A leader stands still meanwhile.
    fn looked_at(self) -> Duration {
        match self {
            Fault::Kill => Duration::from_millis(1500),
            Fault::Stop => Duration::from_secs(4),
        }
    }
}

pub(super) fn run(args: &Args, fault: Fault, count: usize) -> Result<()> {
    let mut stage = Stage::start(args, None)?;
    stage.stops = fault == Fault::Stop;
    let work = Work::EchoWritesOn { at_half: fault == Fault::Stop };
    let mut client = stage.client(work, args.in_flight, args.together, args.seconds, 0)?;
    client.tell("go")?;
    thread::sleep(Duration::from_secs(2));
    let mut silences = Vec::with_capacity(count);
    for _ in 0..count {
        let standings = stage.standings()?;
        let leader = standings.iter().position(|standing| standing.leads).context("nobody leads")?;
        client.ask("mark")?;
        match fault {
            Fault::Kill => stage.end_host(leader),
            Fault::Stop => stage.hosts[leader].signal(Signal::STOP)?,
        }
        thread::sleep(fault.looked_at());
        let silence: f64 = client.ask("silence")?.parse()?;
        if !args.json {
            println!("  no answer for {silence:.0} ms");
        }
        silences.push(silence);
        match fault {
            Fault::Kill => stage.begin_host(None, (REPLICAS, false))?,
            Fault::Stop => stage.hosts[leader].signal(Signal::CONT)?,
        }
        stage.wait_until("it is made up for", |standings| {
            standings.iter().all(|standing| standing.replicas == usize::from(REPLICAS))
                && standings.iter().filter(|standing| standing.leads).count() == 1
        })?;
    }
    let calls: Calls = serde_json::from_str(&client.ask("end")?)?;
    stage.written[0] += calls.answered;
    stage.compare()?;
    let (worst, rate) = (silences.iter().copied().fold(0.0, f64::max), calls.measured as f64 / calls.seconds);
    let (middle, most, plural) = (median(silences.clone()), fault.silence_most_ms(), fault.plural());
    let holds = worst <= most;
    let word = if holds { "holds" } else { "misses" };
    let verdict = format!("{word}: the worst silence of {count} {plural} {worst:.0} ms, at most {most:.0}");
    if args.json {
        let told = json!({
            "bench": "service", plural: count, "silence_ms": silences, "silence_ms_median": middle, "silence_ms_worst": worst,
            "answered": calls.answered, "per_second": rate.round(), "in_flight": args.in_flight, "verdict": verdict, "holds": holds,
        });
        println!("{told}");
    } else {
        println!("{} calls answered, {rate:.0}/s over all; silence, median {middle:.0} ms", calls.answered);
        println!("{verdict}");
    }
    Ok(())
}
