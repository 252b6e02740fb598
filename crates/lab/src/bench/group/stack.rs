//! A group that grows while the number of its processes stays: the time of a soft update to the last member
//! (000, figure 5).

use std::{
    io::{self, BufRead},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use quorate::{
    Node, Wait,
    group::{Origin, View},
};
use serde_json::json;

use super::{
    args::Args,
    clock::nanos,
    report::say,
    routers::routers,
    spec::{GroupProcessSpec, MemberPart, spec},
    watch::{Watch, Watcher, joined},
};
use crate::bench::child::Child;

/// Time within which each member must have all other members in its view, and an update must reach all
/// members.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of updates, one after another.
const UPDATES: usize = 500;
/// Time between two updates.
const PAUSE: Duration = Duration::from_millis(4);

/// The latencies of a group with this number of members.
struct StackLatency {
    members: usize,
    p50_us: f64,
    p99_us: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    ensure!(args.processes > 0 && !args.stack.is_empty(), "--processes and --stack must be at least 1");
    let mut rows: Vec<StackLatency> = Vec::new();
    for each in &args.stack {
        let row = row(args, *each).with_context(|| format!("{each} members in each process"))?;
        if !args.json {
            let StackLatency { members, p50_us, p99_us } = row;
            let ratio = p50_us / rows.first().map_or(p50_us, |first| first.p50_us);
            println!(
                "{members} members in {} processes: an update is at the last member after p50 {p50_us:.0} \
                 us, p99 {p99_us:.0} us; {ratio:.2} times the first row",
                args.processes
            );
        }
        rows.push(row);
    }
    if args.json {
        let first = rows[0].p50_us;
        let measured = rows.iter().map(|row| {
            json!({
                "members": row.members, "to_the_last_us_p50": row.p50_us, "to_the_last_us_p99": row.p99_us,
                "ratio": row.p50_us / first,
            })
        });
        let measured: Vec<_> = measured.collect();
        println!(
            "{}",
            json!({ "bench": "group", "what": args.what, "processes": args.processes, "rows": measured })
        );
    }
    Ok(())
}

fn row(args: &Args, each: usize) -> Result<StackLatency> {
    let (_routers, addresses) = routers(args)?;
    let members = each * args.processes;
    let mut processes = Vec::new();
    for number in 1..=args.processes {
        let spec = spec(args, MemberPart::Stack { members: each }, number, &addresses);
        processes.push(Child::start(format!("process-{number}"), "group-process", &spec)?);
    }
    for process in &mut processes {
        ensure!(process.line()? == "joined", "{} did not join its group", process.name);
    }
    for word in [format!("until {members}"), String::from("send"), String::from("applied")] {
        // Only the first process gets `send`; all processes get the other commands.
        let asked = if word == "send" { 1 } else { processes.len() };
        for process in &mut processes[..asked] {
            process.send_line(&word)?;
        }
        if word == "applied" {
            break;
        }
        for process in &mut processes[..asked] {
            let said = process.line()?;
            ensure!(said == "so it is", "{}: {said}", process.name);
        }
    }
    let mut last = vec![0; UPDATES];
    for process in &mut processes {
        let said = process.line()?;
        let took: Vec<u64> =
            serde_json::from_str(&said).with_context(|| format!("{}: {said}", process.name))?;
        ensure!(took.len() == UPDATES, "{} applied {} of {UPDATES} updates", process.name, took.len());
        for (last, took) in last.iter_mut().zip(took) {
            *last = took.max(*last);
        }
    }
    last.sort_unstable();
    let at = |quantile: f64| last[(quantile * (UPDATES - 1) as f64) as usize] as f64 / 1e3;
    Ok(StackLatency { members, p50_us: at(0.5), p99_us: at(0.99) })
}

/// The times that updates took to this member.
#[derive(Default)]
struct Times {
    took: Arc<Mutex<Vec<u64>>>,
    size: usize,
}

impl Watch for Times {
    const NAME: &'static str = "stack/1";
    /// The time of the send, on the machine's clock.
    type Update = u64;

    fn apply(&mut self, sent: u64, _: &Origin) {
        self.took.lock().expect("no thread panics while it holds this lock").push(nanos() - sent);
    }

    fn view(&mut self, view: &View) {
        self.size = view.members.len();
    }
}

pub(super) fn take_part(spec: &GroupProcessSpec, members: usize) -> Result<()> {
    let node = Node::builder().routers(&spec.routers).patience(PATIENCE).start().wait()?;
    let all = joined((0..members).map(|_| node.group("stack").join(Watcher::<Times>::default())))?;
    say("joined")?;
    let wait_until = |what: &dyn Fn(&Times) -> bool| -> Result<()> {
        let until = Instant::now() + PATIENCE;
        for member in &all {
            while !member.read(|watcher| what(&watcher.0))? {
                ensure!(
                    Instant::now() < until,
                    "a member of the bench did not come to the awaited state within {PATIENCE:?}"
                );
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("until", size) => {
                let size: usize = size.parse()?;
                wait_until(&|times| times.size == size)?;
                say("so it is")?;
            }
            ("send", _) => {
                for _ in 0..UPDATES {
                    thread::sleep(PAUSE);
                    all[0].send(nanos()).wait()?;
                }
                say("so it is")?;
            }
            ("applied", _) => {
                wait_until(&|times| {
                    times.took.lock().expect("no thread panics while it holds this lock").len() == UPDATES
                })?;
                let mut last = vec![0; UPDATES];
                for member in &all {
                    let took = member.read(|watcher| watcher.0.took.clone())?;
                    let took = took.lock().expect("no thread panics while it holds this lock");
                    for (last, took) in last.iter_mut().zip(took.iter()) {
                        *last = (*took).max(*last);
                    }
                }
                say(serde_json::to_string(&last)?)?;
            }
            _ => bail!("a process of the bench received the unknown command {line:?}"),
        }
    }
    Ok(())
}
