//! Several soft sends and a flush compared with as many safe sends, one after another and together (000,
//! figure 8): the fastest way to make a series durable.

use std::{
    io::{self, BufRead},
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use quorate::{Node, Wait, group::Member};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    args::Args,
    report::say,
    routers::routers,
    spec::{GroupProcessSpec, MemberPart, spec},
    update::{Applied, MemberUpdate},
};
use crate::bench::{child::Child, machine::MachineSpeed};

/// Number of series of each kind and length, taken in turns.
const ROUNDS: usize = 300;

/// Median times for series of one number of sends, in microseconds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct SeriesLatency {
    sends: usize,
    /// Soft sends, and a flush after them.
    flushed_us: f64,
    /// Safe sends, each after the answer to the one before.
    one_by_one_us: f64,
    /// Safe sends, all at once.
    together_us: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    ensure!(!args.series.contains(&0), "--series must be at least 1");
    let before = MachineSpeed::measure(1.0)?;
    let (_routers, addresses) = routers(args)?;
    let mut members = Vec::new();
    for number in 1..=args.members {
        let spec = spec(args, MemberPart::Series, number, &addresses);
        let mut member = Child::start(format!("member-{number}"), "group-process", &spec)?;
        ensure!(member.line()? == "joined", "{} did not join its group", member.name);
        members.push(member);
    }
    let mut rows = Vec::new();
    for sends in &args.series {
        let said = members[0].ask(&format!("series {sends}"))?;
        let row: SeriesLatency = serde_json::from_str(&said)
            .with_context(|| format!("cannot read the report of a series of {sends} sends: {said}"))?;
        if !args.json {
            let SeriesLatency { sends, flushed_us, one_by_one_us, together_us } = row;
            println!(
                "{sends} soft sends and a flush take {flushed_us:.0} µs; as many safe sends take \
                 {one_by_one_us:.0} µs one by one ({:.1} times), and {together_us:.0} µs together ({:.1} \
                 times)",
                one_by_one_us / flushed_us,
                together_us / flushed_us
            );
        }
        rows.push(row);
    }
    // Each member applied every update of the series, in order.
    let sent = args.series.iter().sum::<usize>() * ROUNDS * 3;
    for member in &mut members {
        let said = member.ask("applied")?;
        ensure!(
            said == format!("{sent} 0"),
            "{} reports {said} (applied updates, faults), but {sent} updates were sent",
            member.name
        );
    }
    let machine = before.mean(&MachineSpeed::measure(1.0)?);
    if args.json {
        println!(
            "{}",
            json!({
                "bench": "group", "what": args.what, "members": args.members, "bytes": args.bytes, "rounds": ROUNDS,
                "series": rows, "round_trip_us": machine.round_trip_us,
            })
        );
    } else {
        machine.print();
    }
    Ok(())
}

pub(super) fn take_part(spec: &GroupProcessSpec) -> Result<()> {
    let node = Node::builder().routers(&spec.routers).start().wait()?;
    let member = node.group("bench").join(Applied::new()).wait()?;
    say("joined")?;
    let mut sent = 0;
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("series", sends) => {
                say(serde_json::to_string(&measure(&member, spec.bytes, sends.parse()?, &mut sent)?)?)?;
            }
            ("applied", _) => {
                say(member.read(|applied| format!("{} {}", applied.count(), applied.faults()))?)?
            }
            _ => bail!("a process of the bench received the unknown command {line:?}"),
        }
    }
    Ok(())
}

fn measure(member: &Member<Applied>, bytes: usize, sends: usize, sent: &mut u64) -> Result<SeriesLatency> {
    let mut times: [Histogram<u64>; 3] =
        [(); 3].map(|()| Histogram::new(3).expect("a histogram may have three significant figures"));
    let mut series = || -> Vec<MemberUpdate> {
        (0..sends)
            .map(|_| {
                *sent += 1;
                MemberUpdate::new(1, *sent, bytes)
            })
            .collect()
    };
    let took = |of: &mut Histogram<u64>, began: Instant| {
        of.record(began.elapsed().as_nanos() as u64).expect("the histogram grows as needed");
    };
    for _ in 0..ROUNDS {
        let [flushed, one_by_one, together] = &mut times;
        let updates = series();
        let began = Instant::now();
        // A flush waits for the earlier sends.
        let soft: Vec<_> = updates.into_iter().map(|update| member.send(update)).collect();
        member.flush().wait()?;
        took(flushed, began);
        for soft in soft {
            soft.wait()?;
        }
        let updates = series();
        let began = Instant::now();
        for update in updates {
            member.safe_send(update).wait()?;
        }
        took(one_by_one, began);
        let updates = series();
        let began = Instant::now();
        let safe: Vec<_> = updates.into_iter().map(|update| member.safe_send(update)).collect();
        for safe in safe {
            safe.wait()?;
        }
        took(together, began);
    }
    let [flushed_us, one_by_one_us, together_us] = times.map(|of| of.value_at_quantile(0.5) as f64 / 1e3);
    Ok(SeriesLatency { sends, flushed_us, one_by_one_us, together_us })
}
