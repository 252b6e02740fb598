//! `quorate bench group`: updates of a process group, on real processes.
//!
//! Routers and members, each an operating-system process on loopback. Each sending member keeps a number of
//! updates in flight, and an update counts once the last member has applied it. Each member checks the order
//! of every sender's updates. At the end the bench compares the members' fingerprints of all updates that
//! they got in one order. The machine is measured in the same run, before and after (`machine`).

mod args;
mod clock;
mod many;
mod process;
mod report;
mod routers;
mod series;
pub(crate) mod source;
mod spec;
mod stack;
mod state;
mod update;
mod views;
mod watch;

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

pub(crate) use self::args::Args;

use self::{
    args::Measure,
    report::{Alone, Summary},
    routers::routers,
    spec::{MemberPart, spec},
};
use super::{child::Child, ecast, machine::MachineSpeed};

struct GroupRun {
    rate: f64,
    latency_us: [f64; 2],
    elsewhere_us: Option<[f64; 2]>,
    elsewhere_alone_us: Option<[f64; 2]>,
    alone: Option<Alone>,
    shares: Vec<(String, f64)>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    ensure!(args.bytes >= update::BYTES_MIN, "--bytes must be at least {}", update::BYTES_MIN);
    ensure!((1..=args.members).contains(&args.senders), "--senders must be between 1 and --members");
    ensure!(
        !args.apart || args.members <= process::APART_MAX,
        "--apart allows at most {} members",
        process::APART_MAX
    );
    ensure!(
        args.in_flight > 0 && args.runs > 0 && args.routers > 0,
        "--in-flight, --runs and --routers must be at least 1"
    );
    match args.what {
        Measure::Groups => return many::run(&args),
        Measure::View => return views::run(&args),
        Measure::Stack => return stack::run(&args),
        Measure::State => return state::run(&args),
        Measure::Series => return series::run(&args),
        Measure::Soft | Measure::Ordered | Measure::Safe => {}
    }
    let before = MachineSpeed::measure(args.seconds)?;
    let mut runs = Vec::with_capacity(args.runs);
    for index in 0..args.runs {
        let run = one_run(&args).with_context(|| format!("run {}", index + 1))?;
        if !args.json {
            println!("run {}: {:.0} updates/s", index + 1, run.rate);
        }
        runs.push(run);
    }
    runs.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let GroupRun { rate, latency_us: [p50, p99], elsewhere_us, elsewhere_alone_us, alone, shares } =
        runs.swap_remove(runs.len() / 2);
    // The reference for the latency of single updates is the latency of single messages in the order, without
    // a group, measured in the same run.
    let ecast_alone_us = if args.in_flight == 1 { Some(ecast::alone_us(args.seconds)?) } else { None };
    let machine = before.mean(&MachineSpeed::measure(args.seconds)?);
    if args.json {
        let cpu: serde_json::Map<String, serde_json::Value> =
            shares.iter().map(|(name, share)| (name.clone(), json!(share))).collect();
        let figures = json!({
            "bench": "group", "what": args.what, "updates_per_second": rate.round(),
            "updates_per_second_scaled": machine.rate(rate).round(), "round_trip_us": machine.round_trip_us,
            "ecast_per_second": machine.ecast_per_second.round(), "ecast_alone_us_p50": ecast_alone_us,
            "pack": args.pack, "datagram_bytes": args.datagram_bytes, "latency_p50_us": p50,
            "latency_p50_us_scaled": machine.latency(p50),
            "latency_p99_us": p99, "routers": args.routers, "members": args.members, "senders": args.senders,
            "bytes": args.bytes, "apart": args.apart, "in_flight": args.in_flight, "runs": args.runs, "seconds": args.seconds,
            "apply_elsewhere_us_p50": elsewhere_us.map(|[p50, _]| p50),
            "apply_elsewhere_us_p99": elsewhere_us.map(|[_, p99]| p99),
            "apply_elsewhere_alone_us_p50": elsewhere_alone_us.map(|[p50, _]| p50), "alone": alone, "cpu_cores": cpu,
        });
        println!("{figures}");
    } else {
        println!(
            "median: {rate:.0} updates/s at the last member (scaled {:.0}); answered p50 {p50:.0} µs (scaled {:.0}), p99 {p99:.0} µs",
            machine.rate(rate),
            machine.latency(p50)
        );
        if let Some([p50, p99]) = elsewhere_us {
            println!("applied at other members after p50 {p50:.0} µs, p99 {p99:.0} µs");
        }
        if let Some(alone) = alone {
            println!(
                "medians with one operation at a time: a soft send {:.0} ns (after a pause {:.0} ns), a \
                 flush {:.0} µs, a query of all members {:.0} µs, a read {:.0} ns (after a query {:.0} ns)",
                alone.send_ns_p50,
                alone.send_idle_ns_p50,
                alone.flush_us_p50,
                alone.query_all_us_p50,
                alone.read_ns_p50,
                alone.read_idle_ns_p50
            );
        }
        if let Some([p50, _]) = elsewhere_alone_us {
            println!(
                "a soft update without others under way is applied at other members after p50 {p50:.0} µs \
                 (scaled {:.0})",
                machine.latency(p50)
            );
        }
        for (name, share) in shares {
            println!("  {name}: {share:.2} cores");
        }
        machine.print();
        if let Some(alone) = ecast_alone_us {
            println!("for comparison, `quorate bench ecast --window 1`: {alone:.0} µs");
        }
    }
    Ok(())
}

fn one_run(args: &Args) -> Result<GroupRun> {
    let (mut processes, routers) = routers(args)?;
    for number in 1..=args.members {
        let part = if number <= args.senders { MemberPart::Sender } else { MemberPart::Listener };
        let mut member =
            Child::start(format!("member-{number}"), "group-process", &spec(args, part, number, &routers))?;
        ensure!(member.line()? == "joined", "{} did not join its group", member.name);
        processes.push(member);
    }
    for member in &mut processes[args.routers..] {
        member.ask("begin")?;
    }
    thread::sleep(Duration::from_secs(1));
    let (before, cpu_before) = look(&mut processes, args.routers)?;
    let began = Instant::now();
    thread::sleep(Duration::from_secs_f64(args.seconds));
    let (after, cpu_after) = look(&mut processes, args.routers)?;
    let seconds = began.elapsed().as_secs_f64();
    let least = before
        .iter()
        .zip(&after)
        .map(|(before, after)| after - before)
        .min()
        .context("the bench has no members")?;
    let mut sent = 0;
    for member in &mut processes[args.routers..] {
        sent += member.ask("stop")?.parse::<u64>()?;
    }
    let mut summaries = Vec::new();
    for member in &mut processes[args.routers..] {
        let summary: Summary = serde_json::from_str(&member.ask(&format!("until {sent}"))?)?;
        ensure!(
            summary.applied == sent && summary.faults == 0,
            "{} applied {} of {sent} updates, {} of them out of order or damaged",
            member.name,
            summary.applied,
            summary.faults
        );
        summaries.push(summary);
    }
    ensure!(
        args.what == Measure::Soft || summaries.windows(2).all(|pair| pair[0].print == pair[1].print),
        "members applied the ordered updates in different orders"
    );
    let latency_us = summaries[0].latency_us.context("the first member, which sends, reported no latency")?;
    let alone = summaries[0].alone;
    // The result is the latency of the slowest member.
    let last = |of: fn(&Summary) -> Option<[f64; 2]>| {
        summaries.iter().filter_map(of).max_by(|a, b| a[0].total_cmp(&b[0]))
    };
    let elsewhere_us = last(|summary| summary.elsewhere_us);
    let elsewhere_alone_us = last(|summary| summary.elsewhere_alone_us);
    let names = processes.iter().map(|process| process.name.clone());
    let shares =
        cpu_before.iter().zip(cpu_after).map(|(before, after)| (after - *before).as_secs_f64() / seconds);
    let rate = least as f64 / seconds;
    let shares = names.zip(shares).collect();
    Ok(GroupRun { rate, latency_us, elsewhere_us, elsewhere_alone_us, alone, shares })
}

/// Returns the number of updates that each member has applied, and the processor time of each process.
fn look(processes: &mut [Child], routers: usize) -> Result<(Vec<u64>, Vec<Duration>)> {
    let counts = processes[routers..].iter_mut().map(|member| Ok(member.ask("count")?.parse()?));
    let counts = counts.collect::<Result<_>>()?;
    let used = processes.iter().map(Child::cpu);
    Ok((counts, used.collect::<Result<_>>()?))
}

/// One process of the bench; the bench starts it.
#[derive(clap::Args)]
pub(crate) struct GroupProcessArgs {
    /// The role of the process in the bench, as JSON.
    spec: String,
}

pub(crate) fn run_process(args: GroupProcessArgs) -> Result<()> {
    process::run(serde_json::from_str(&args.spec)?)
}
