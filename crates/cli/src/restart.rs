//! `quorate restart`: processes of the local cluster, one after another, without anybody's noticing.
//!
//! Each is asked by a signal to begin anew in its place, and does what its role needs for that: a storage process goes away for a moment,
//! a lead router hands the lead over, a gateway or a cell leaves its clients' connections to the program that follows. Before each one all
//! others are well, and after it all are again. So two are never away at once.

use std::{
    collections::BTreeSet,
    io::IsTerminal,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use quorate_command::say;
use quorate_protocol::{Role, role::State};
use rustix::process::Signal;
use serde::Serialize;

use crate::{
    cluster::{Cluster, Directory, DirectoryArgs},
    kill::signal,
    status::{self, Report},
};

/// Restarts processes of the local cluster, while statements and commands go on: each in its place, with its disk, and its clients connected.
///
/// A process that has a disk comes back as the one that it was, and no rows move. The others are well before it is restarted, and all
/// are afterwards, or the command fails and says who is awaited. In a cluster in memory only supers and gateways can be restarted.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Its name, as `quorate status` shows it: router-1, storage-2, super-1, gateway-1, cell-3.
    #[arg(required_unless_present = "rolling", conflicts_with = "rolling")]
    process: Option<String>,
    /// All processes, one after another: storage processes or cells, routers (the lead router last), supers, gateways.
    #[arg(long)]
    rolling: bool,
    /// For how many seconds the cluster may not be well, before and after each restart.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    wait: u64,
    /// One JSON object a line for each process, and one for all.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// A process that was restarted.
#[derive(Serialize)]
struct Restarted {
    process: String,
    role: Role,
    /// From the signal until all was well.
    seconds: f64,
    /// Whether it is who it was.
    same_incarnation: bool,
}

/// Who can be restarted next, in this order.
const ORDER: [Role; 5] = [Role::Storage, Role::Cell, Role::Router, Role::Super, Role::Gateway];

const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn run(args: Args) -> Result<()> {
    let directory = args.directory.directory()?;
    let cluster = directory.running()?;
    let mut due: BTreeSet<String> = match &args.process {
        Some(name) => [cluster.process(name)?.name.clone()].into(),
        None => cluster.processes.iter().map(|process| process.name.clone()).collect(),
    };
    for process in cluster.processes.iter().filter(|process| due.contains(&process.name)) {
        may_restart(&cluster, process.role, &process.name)?;
    }
    let restart = Restart { directory, patience: Duration::from_secs(args.wait) };
    let bar = progress(due.len() as u64, args.json)?;
    let began = Instant::now();
    let mut restarted = 0;
    while let Some(name) = next(&restart.wait_until_well(None)?, &due)? {
        bar.set_message(name.clone());
        let done = restart.restart(&name)?;
        due.remove(&name);
        restarted += 1;
        bar.inc(1);
        if args.json {
            say!("{}", serde_json::to_string(&done)?)?;
        } else {
            let as_whom = if done.same_incarnation { "as who it was" } else { "as a new process" };
            bar.suspend(|| say!("{name} is back {as_whom} after {:.2} s", done.seconds))?;
        }
    }
    bar.finish_and_clear();
    if args.json {
        say!("{}", serde_json::json!({ "restarted": restarted, "seconds": began.elapsed().as_secs_f64() }))?;
    }
    Ok(())
}

/// Refuses what would lose rows or the domain.
fn may_restart(cluster: &Cluster, role: Role, name: &str) -> Result<()> {
    match role {
        Role::Router | Role::Storage | Role::Cell if !cluster.durable => bail!(
            "{name} has no disk: a restart would make it another process. This cluster was started with --memory"
        ),
        _ => Ok(()),
    }
}

fn progress(count: u64, json: bool) -> Result<ProgressBar> {
    if json || !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template("restarting {bar:20} {pos}/{len} {msg}")?;
    Ok(ProgressBar::new(count).with_style(style))
}

/// Who is next of those that are due: the lead router only once no other is left of its role.
fn next(reports: &[Report], due: &BTreeSet<String>) -> Result<Option<String>> {
    let Some(role) = ORDER
        .into_iter()
        .find(|role| reports.iter().any(|report| report.role == *role && due.contains(&report.name)))
    else {
        ensure!(
            due.is_empty(),
            "no process answers that is called {}",
            Vec::from_iter(due.iter().cloned()).join(", ")
        );
        return Ok(None);
    };
    let fitting = reports.iter().filter(|report| report.role == role && due.contains(&report.name));
    let first = fitting.min_by_key(|report| {
        let rank = match report.state {
            State::Standby => 0,
            State::Leading => 2,
            _ => 1,
        };
        (rank, report.node)
    });
    Ok(first.map(|report| report.name.clone()))
}

struct Restart {
    directory: Directory,
    patience: Duration,
}

impl Restart {
    /// Restarts one process, and waits until all is well again.
    fn restart(&self, name: &str) -> Result<Restarted> {
        let cluster = self.directory.running()?;
        let process = cluster.process(name)?;
        let pid = process.pid.with_context(|| format!("{name} does not run at the moment"))?;
        let address = process.bound.as_ref().map(|bound| bound.http.clone());
        let of_it = || status::reports_at(std::slice::from_ref(&address)).pop().flatten();
        let before = of_it().with_context(|| format!("{name} does not answer"))?;
        let began = Instant::now();
        signal(pid, Signal::USR2).with_context(|| name.to_owned())?;
        let after = self.wait_until_well(Some(&before))?;
        let after = after.into_iter().find(|report| report.name == name).context("it was just seen")?;
        Ok(Restarted {
            process: name.to_owned(),
            role: before.role,
            seconds: began.elapsed().as_secs_f64(),
            same_incarnation: before.incarnation == after.incarnation,
        })
    }

    /// Waits until every process does its work, and has been started since it gave `before`.
    fn wait_until_well(&self, before: Option<&Report>) -> Result<Vec<Report>> {
        let until = Instant::now() + self.patience;
        loop {
            let cluster = self.directory.running()?;
            let reports = status::reports(&cluster);
            let awaited = match before {
                Some(before) if !reports.iter().flatten().any(|report| is_next_of(report, before)) => {
                    Some(format!("{} has not begun anew", before.name))
                }
                _ => status::lacks(&cluster, &reports).into_iter().next().map(|lack| lack.why),
            };
            let Some(why) = awaited else { return Ok(reports.into_iter().flatten().collect()) };
            if Instant::now() >= until {
                bail!("after {} s {why}; see `quorate status`", self.patience.as_secs());
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Whether the process that gave a report was started since the other one was given by it.
fn is_next_of(report: &Report, before: &Report) -> bool {
    report.name == before.name && report.started != before.started
}
