//! `quorate bench failover`: the time for which writes stop when a process is killed, and false suspicions of
//! processes that are only starved of processor time.
//!
//! Clients insert numbered rows, each as soon as the one before is acknowledged. Each kill waits until the
//! cluster has recovered from the last one: all processes answer, the table has its replicas, every client
//! writes. Each kill gives two times, both the worst over all clients: the time until a client's next
//! acknowledged write, and the longest silence that began before the recovery. The second is stricter: a
//! client's next write may go to ranges that lost nothing, and only a later write to a range that lost a
//! replica. At the end every acknowledged row must be there, once.
//!
//! Then two processes spin on the processor for a while, and no process may be suspected.

use std::{
    collections::BTreeMap,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use quorate_protocol::{Role, role::State};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::spawned::{Process, Spawned};
use crate::{record::RowAudit, writers::Writers};

/// Kills processes of a default cluster one after another, and measures how long writes stop.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of kills of each role.
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// Role to kill; can be repeated. By default every role.
    #[arg(long = "role")]
    roles: Vec<Role>,
    /// Number of clients that write.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Seconds for which two processes spin while no process may be suspected.
    #[arg(long, default_value_t = 60)]
    starve: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FailoverMeasurement {
    bench: &'static str,
    clients: usize,
    /// The times by role; routers that led when they were killed are separate from followers.
    kills: BTreeMap<String, Times>,
    /// Number of acknowledged rows.
    acknowledged: u64,
    /// Number of acknowledged rows that are missing.
    lost: u64,
    /// Number of rows that are there twice.
    doubled: u64,
    starved_seconds: u64,
    /// Number of processes that were suspected though they were only starved.
    false_suspicions: u64,
}

#[derive(Default, Serialize)]
struct Times {
    kills: usize,
    next_write_ms_max: f64,
    next_write_ms_p50: f64,
    silence_ms_max: f64,
    silence_ms_p50: f64,
    mended_ms_max: f64,
}

/// The cost of one kill.
struct Cost {
    next_write: Duration,
    silence: Duration,
    mended: Duration,
}

/// Time within which a cluster must recover.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(args: Args) -> Result<()> {
    let spawned = Spawned::start(&[])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let writers = Writers::start(&runtime, spawned.sql()?, args.clients)?;

    let mut costs: BTreeMap<String, Vec<Cost>> = BTreeMap::new();
    let roles = match args.roles.as_slice() {
        [] => vec![Role::Router, Role::Storage, Role::Super, Role::Gateway],
        roles => roles.to_vec(),
    };
    for role in roles {
        for round in 0..args.kills {
            let processes = mended(&spawned, &writers)?;
            let (label, victim) = victim(&processes, role, round)?;
            let pid = victim.pid.and_then(|pid| Pid::from_raw(pid as i32));
            let pid = pid.context("`quorate status` shows no process id of a process that runs")?;
            let killed = Instant::now();
            kill_process(pid, Signal::KILL)?;
            writers.wait_for_all_since(killed)?;
            mended(&spawned, &writers)?;
            let mended = killed.elapsed();
            let (next_write, silence) = writers.stood_still(killed);
            eprintln!(
                "killed {} ({label}): next write after {next_write:.0?}, longest silence {silence:.0?}, \
                 cluster whole again after {mended:.1?}",
                victim.name
            );
            costs.entry(label).or_default().push(Cost { next_write, silence, mended });
        }
    }
    let false_suspicions = starve(&spawned, &writers, Duration::from_secs(args.starve))?;
    let RowAudit { acknowledged, lost, doubled } = runtime.block_on(writers.stop())?.account;

    let figures = FailoverMeasurement {
        bench: "failover",
        clients: args.clients,
        kills: costs.into_iter().map(|(label, costs)| (label, Times::of(&costs))).collect(),
        acknowledged,
        lost,
        doubled,
        starved_seconds: args.starve,
        false_suspicions,
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        for (label, times) in &figures.kills {
            println!(
                "{label}: {} kills, next write after at most {:.0} ms (median {:.0}), longest silence at \
                 most {:.0} ms (median {:.0}), cluster whole again within {:.0} ms",
                times.kills,
                times.next_write_ms_max,
                times.next_write_ms_p50,
                times.silence_ms_max,
                times.silence_ms_p50,
                times.mended_ms_max
            );
        }
        println!("{} rows acknowledged, {lost} lost, {doubled} doubled", figures.acknowledged);
        println!(
            "{false_suspicions} processes were falsely suspected in {} s without enough processor time",
            args.starve
        );
    }
    ensure!(
        lost == 0 && doubled == 0,
        "{lost} acknowledged rows are lost, and {doubled} are in the table twice"
    );
    ensure!(
        false_suspicions == 0,
        "{false_suspicions} processes were suspected, although they only had too little processor time"
    );
    spawned.succeeded();
    Ok(())
}

impl Times {
    fn of(costs: &[Cost]) -> Times {
        let sorted = |of: fn(&Cost) -> Duration| {
            let mut times: Vec<f64> = costs.iter().map(|cost| of(cost).as_secs_f64() * 1000.0).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let (next, silence, mended) = (sorted(|c| c.next_write), sorted(|c| c.silence), sorted(|c| c.mended));
        let (last, middle) = (costs.len() - 1, costs.len() / 2);
        Times {
            kills: costs.len(),
            next_write_ms_max: next[last],
            next_write_ms_p50: next[middle],
            silence_ms_max: silence[last],
            silence_ms_p50: silence[middle],
            mended_ms_max: mended[last],
        }
    }
}

/// Returns the next process of this role to kill, with a label: for routers, a leading and a following one in
/// turn; for storage processes and cells, one that serves.
pub(super) fn victim(processes: &[Process], role: Role, round: usize) -> Result<(String, &Process)> {
    let (label, state) = match role {
        Role::Router if round.is_multiple_of(2) => ("router, leading", Some(State::Leading)),
        Role::Router => ("router, following", Some(State::Following)),
        Role::Storage => ("storage", Some(State::Serving)),
        Role::Super => ("super", None),
        Role::Gateway => ("gateway", None),
        Role::Cell => ("cell", Some(State::Serving)),
    };
    let fits = |process: &&Process| process.role == role && state.is_none_or(|state| process.state == state);
    let fitting: Vec<&Process> = processes.iter().filter(fits).collect();
    let process = fitting.get(round % fitting.len().max(1));
    Ok((
        label.into(),
        process.with_context(|| format!("the cluster has no process to kill that is: {label}"))?,
    ))
}

/// Waits until every process answers and has joined, storage is complete, and every client writes.
pub(super) fn mended(spawned: &Spawned, writers: &Writers) -> Result<Vec<Process>> {
    let processes = whole(spawned)?;
    writers.wait_for_all_since(Instant::now())?;
    Ok(processes)
}

/// Waits until every process answers and has joined, and storage is complete.
pub(super) fn whole(spawned: &Spawned) -> Result<Vec<Process>> {
    let began = Instant::now();
    loop {
        let processes = spawned.status()?;
        let lacks = |process: &Process| matches!(process.state, State::Joining | State::Silent | State::Down);
        let leading = processes.iter().filter(|process| process.state == State::Leading).count();
        let serves = |process: &&Process| process.role == Role::Storage && process.state == State::Serving;
        let serving = processes.iter().filter(serves).count();
        if leading == 1 && serving >= STORAGE && !processes.iter().any(lacks) {
            return Ok(processes);
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "the cluster is not whole again after {} s: see `quorate status`",
            PATIENCE.as_secs()
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Number of storage processes that hold rows in the default cluster.
const STORAGE: usize = 4;

/// Lets two processes spin, and counts the processes that changed their incarnation or state meanwhile, or no
/// longer exist.
fn starve(spawned: &Spawned, writers: &Writers, time: Duration) -> Result<u64> {
    let before = mended(spawned, writers)?;
    let busy = [BusyProcess::start()?, BusyProcess::start()?];
    thread::sleep(time);
    drop(busy);
    let after = mended(spawned, writers)?;
    let differs = |(before, after): &(&Process, &Process)| {
        (&before.incarnation, &before.state) != (&after.incarnation, &after.state)
    };
    Ok(before.iter().zip(&after).filter(differs).count() as u64)
}

/// A process that only uses the processor.
struct BusyProcess(Child);

impl BusyProcess {
    fn start() -> Result<BusyProcess> {
        let spin = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        Ok(BusyProcess(spin.context("cannot start `sh` for a process that only uses processor time")?))
    }
}

impl Drop for BusyProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
