//! Leaders that are killed at full load: how long no call is answered.
//!
//! One client keeps its calls in flight. Again and again the host that leads is killed, and another one is started in its place once calls are
//! answered again. In the end every replica must have applied each write that was answered, and no other: a call that was under way when a leader died
//! took effect once.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{Args, REPLICAS, Stage, Work, median, process::Calls};

/// What a killed leader's successor needs, at most.
const SILENCE_MOST_MS: f64 = 300.0;

/// So long after a kill the longest silence is asked for.
const LOOKED_AT: Duration = Duration::from_millis(1500);

pub(super) fn run(args: &Args, kills: usize) -> Result<()> {
    let mut stage = Stage::start(args, None)?;
    let mut client = stage.client(Work::EchoWritesOn, args.in_flight, args.together, args.seconds, 0)?;
    client.tell("go")?;
    thread::sleep(Duration::from_secs(1));
    let mut silences = Vec::with_capacity(kills);
    for _ in 0..kills {
        let standings = stage.standings()?;
        let leader = standings.iter().position(|standing| standing.leads).context("nobody leads")?;
        client.ask("mark")?;
        stage.end_host(leader);
        thread::sleep(LOOKED_AT);
        let silence: f64 = client.ask("silence")?.parse()?;
        if !args.json {
            println!("  no answer for {silence:.0} ms");
        }
        silences.push(silence);
        stage.begin_host(None, (REPLICAS, false))?;
        stage.wait_until("another one has taken its place", |standings| {
            standings.iter().all(|standing| standing.replicas == usize::from(REPLICAS))
                && standings.iter().any(|standing| standing.leads)
        })?;
    }
    let calls: Calls = serde_json::from_str(&client.ask("end")?)?;
    stage.written[0] += calls.answered;
    stage.compare()?;
    let (worst, rate) = (silences.iter().copied().fold(0.0, f64::max), calls.measured as f64 / calls.seconds);
    let middle = median(silences.clone());
    let holds = worst <= SILENCE_MOST_MS;
    let word = if holds { "holds" } else { "misses" };
    let verdict =
        format!("{word}: the worst silence of {kills} kills {worst:.0} ms, at most {SILENCE_MOST_MS:.0}");
    if args.json {
        let told = json!({
            "bench": "service", "kills": kills, "silence_ms": silences, "silence_ms_median": middle, "silence_ms_worst": worst,
            "answered": calls.answered, "per_second": rate.round(), "in_flight": args.in_flight, "verdict": verdict, "holds": holds,
        });
        println!("{told}");
    } else {
        println!("{} calls answered, {rate:.0}/s over all; silence, median {middle:.0} ms", calls.answered);
        println!("{verdict}");
    }
    Ok(())
}
