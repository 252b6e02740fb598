//! Views of one large group: the time for which soft sends are blocked, and the time until all have the next
//! view, when a process with several members is killed while others send.

use std::{
    collections::BTreeMap,
    io::{self, BufRead},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use quorate::{
    Node, ProcessId, Wait,
    group::{Member, Origin, View},
};
use serde::{Deserialize, Serialize};
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

/// Time within which views must begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time of sending before the next kill.
const SENDING: Duration = Duration::from_millis(500);

/// A view that began at a member.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Began {
    size: usize,
    /// The time of the beginning, on the machine's clock.
    at: u64,
    /// The time for which soft sends had waited for the view.
    waited: u64,
}

/// The cost of one kill, in milliseconds.
struct Cost {
    /// Time from the kill until the first survivor was notified that a member is gone.
    suspected: f64,
    /// Time from that notification until the last survivor had the view without the killed members.
    view: f64,
    /// Longest wait of a survivor's soft sends.
    blocked: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.processes >= 2 && args.kills > 0 && args.members.is_multiple_of(args.processes),
        "--processes must be at least 2, --kills at least 1, and --members a multiple of --processes"
    );
    let (_routers, addresses) = routers(args)?;
    let each = args.members / args.processes;
    let start = |number: usize| {
        let rate = if number <= args.senders { args.rate / args.senders as u64 } else { 0 };
        let spec = spec(args, MemberPart::Views { members: each, rate }, number, &addresses);
        Child::start(format!("process-{number}"), "group-process", &spec)
    };
    let mut processes = (1..=args.processes).map(start).collect::<Result<Vec<_>>>()?;
    for process in &mut processes {
        ensure!(process.line()? == "joined", "{} did not join its group", process.name);
    }
    views(&mut processes, args.members)?;
    let mut costs = Vec::with_capacity(args.kills);
    for kill in 0..args.kills {
        thread::sleep(SENDING);
        let victim = kill % args.processes;
        let killed = nanos();
        drop(processes.remove(victim));
        let mut seen = views(&mut processes, args.members - each)?;
        seen.retain(|view| view.at > killed);
        let heard =
            seen.iter().map(|view| view.at - view.waited).min().context("no member reported a view")?;
        let last = seen.iter().map(|view| view.at).max().context("no member reported a view")?;
        let blocked = seen.iter().map(|view| view.waited).max().context("no member reported a view")?;
        let millis = |nanos: u64| nanos as f64 / 1e6;
        costs.push(Cost {
            suspected: millis(heard.saturating_sub(killed)),
            view: millis(last - heard),
            blocked: millis(blocked),
        });
        let mut process = start(victim + 1)?;
        ensure!(process.line()? == "joined", "{} did not join its group", process.name);
        processes.insert(victim, process);
        views(&mut processes, args.members)?;
    }
    let mut applied = 0;
    for process in &mut processes {
        let (count, faults) = serde_json::from_str::<(u64, u64)>(&process.ask("stop")?)?;
        ensure!(faults == 0, "{} applied {faults} updates out of the order of their sender", process.name);
        applied += count;
    }
    let of = |figure: fn(&Cost) -> f64| {
        let mut all: Vec<f64> = costs.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        (all[all.len() / 2], all[all.len() - 1])
    };
    let (suspected, view, blocked) =
        (of(|cost| cost.suspected), of(|cost| cost.view), of(|cost| cost.blocked));
    if args.json {
        let figures = json!({
            "bench": "group", "what": args.what, "routers": args.routers, "members": args.members,
            "processes": args.processes, "kills": args.kills, "rate": args.rate, "applied": applied,
            "suspected_ms_p50": suspected.0, "suspected_ms_max": suspected.1, "view_ms_p50": view.0,
            "view_ms_max": view.1, "blocked_ms_p50": blocked.0, "blocked_ms_max": blocked.1,
        });
        println!("{figures}");
        return Ok(());
    }
    println!(
        "{} members in {} processes, {} kills under {} updates/s: suspected after {:.0} ms (at most {:.0}), the view at the last \
         survivor {:.1} ms later (at most {:.1}), soft sends waited {:.1} ms (at most {:.1})",
        args.members,
        args.processes,
        args.kills,
        args.rate,
        suspected.0,
        suspected.1,
        view.0,
        view.1,
        blocked.0,
        blocked.1
    );
    Ok(())
}

/// Waits until all members have a view of this size. Returns the views that began since the last such wait.
fn views(processes: &mut [Child], size: usize) -> Result<Vec<Began>> {
    for process in &mut *processes {
        process.send_line(&format!("until {size}"))?;
    }
    let mut all = Vec::new();
    for process in processes {
        let said = process.line()?;
        let views: Vec<Began> =
            serde_json::from_str(&said).map_err(|_| anyhow!("{}: {said}", process.name))?;
        all.extend(views);
    }
    Ok(all)
}

/// A member's views, and its count of updates, checked for each sender's order.
#[derive(Default)]
struct Views {
    views: Arc<Mutex<Vec<Began>>>,
    applied: u64,
    last: BTreeMap<ProcessId, u64>,
    faults: u64,
}

impl Watch for Views {
    const NAME: &'static str = "views/1";
    type Update = u64;

    fn apply(&mut self, update: u64, origin: &Origin) {
        self.applied += 1;
        if self.last.insert(origin.sender, update).is_some_and(|last| update != last + 1) {
            self.faults += 1;
        }
    }

    fn view(&mut self, view: &View) {
        let began = Began { size: view.members.len(), at: nanos(), waited: view.waited.as_nanos() as u64 };
        self.views.lock().expect("no thread panics while it holds this lock").push(began);
    }
}

pub(super) fn take_part(spec: &GroupProcessSpec, members: usize, rate: u64) -> Result<()> {
    let node = Node::builder().routers(&spec.routers).start().wait()?;
    let all = joined((0..members).map(|_| node.group("views").join(Watcher::<Views>::default())))?;
    let views = all.iter().map(|member| Ok(member.read(|watcher| watcher.0.views.clone())?));
    let views = views.collect::<Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        let sending = threads.spawn(|| send(&all[0], rate, &stop));
        say("joined")?;
        for line in io::stdin().lock().lines() {
            let line = line?;
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("until", size) => say(until(&views, size.parse()?)?)?,
                ("stop", _) => {
                    stop.store(true, Ordering::Relaxed);
                    let (mut applied, mut faults) = (0, 0);
                    for member in &all {
                        let here = member.read(|watcher| (watcher.0.applied, watcher.0.faults))?;
                        (applied, faults) = (applied + here.0, faults + here.1);
                    }
                    say(serde_json::to_string(&(applied, faults))?)?;
                    break;
                }
                _ => bail!("a process of the bench received the unknown command {line:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        sending.join().map_err(|_| anyhow!("the sending thread of a member panicked"))?
    })
}

/// Waits until the last view of each member has this size. Returns the views that began since the last call.
fn until(views: &[Arc<Mutex<Vec<Began>>>], size: usize) -> Result<String> {
    let until = Instant::now() + PATIENCE;
    for views in views {
        let last =
            || views.lock().expect("no thread panics while it holds this lock").last().map(|view| view.size);
        while last() != Some(size) {
            if Instant::now() > until {
                return Ok(format!("the last view of a member has {:?} members instead of {size}", last()));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    let mut all = Vec::new();
    for views in views {
        let mut views = views.lock().expect("no thread panics while it holds this lock");
        let last = *views.last().context("no member reported a view")?;
        all.append(&mut views);
        // Puts the last view back, because the next call looks at it again.
        views.push(last);
    }
    Ok(serde_json::to_string(&all)?)
}

/// Sends soft updates at this rate per second.
fn send(member: &Member<Watcher<Views>>, rate: u64, stop: &AtomicBool) -> Result<()> {
    let (began, mut sent) = (Instant::now(), 0);
    let mut under_way = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        under_way.extend((sent..due).map(|number| member.send(number)));
        sent = due;
        thread::sleep(Duration::from_millis(1));
        for sending in under_way.drain(..) {
            sending.wait()?;
        }
    }
    Ok(())
}
