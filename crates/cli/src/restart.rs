//! `quorate restart`: restarts processes of the local cluster one after another, unnoticed by clients.
//!
//! A signal makes a process restart in place, with the preparations of its role. A storage process announces
//! a short absence. A lead router hands over the lead. A gateway or a cell passes its clients' connections to
//! the next program. All other processes are well before each restart, and all processes are well after it.
//! So two processes are never away at once.

use std::{
    collections::BTreeSet,
    io::IsTerminal,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use quorate_command::{Usage, report};
use quorate_protocol::{Role, role::State};
use rustix::process::Signal;
use serde::Serialize;

use crate::{
    cluster::Cluster,
    directory::{Directory, DirectoryArgs},
    kill::signal,
    reports::{self, Report},
};

/// Restarts processes of the local cluster in place, while statements and commands continue. Disks and client
/// connections are kept.
///
/// A process with a disk returns as the same process, and no rows move. Before a restart the command waits
/// until all other processes are well, and after the restart until all processes are well. If this takes too
/// long, the command fails and says which process is not well. In a cluster in memory only supers and
/// gateways can be restarted.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the process, as in `quorate status`: router-1, storage-2, super-1, gateway-1, cell-3. Without
    /// a name, and without --rolling, the command lists the names.
    #[arg(conflicts_with = "rolling")]
    process: Option<String>,
    /// Restarts all processes, one after another: storage processes, cells, routers (the lead router last),
    /// supers, gateways.
    #[arg(long)]
    rolling: bool,
    /// Longest time that the cluster may be unwell, before and after each restart, in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    wait: u64,
    /// Prints one JSON object for each process, and one for all, each on a line.
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
    /// Time from the signal until all processes were well, in seconds.
    seconds: f64,
    /// Whether the other processes see the same process as before.
    same_incarnation: bool,
}

/// The roles in the order of their restarts.
const RESTART_ORDER: [Role; 5] = [Role::Storage, Role::Cell, Role::Router, Role::Super, Role::Gateway];

const CHECK_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(args: Args) -> Result<()> {
    let directory = args.directory.directory()?;
    let cluster = directory.running()?;
    let mut due: BTreeSet<String> = match &args.process {
        Some(name) => [cluster.process(name)?.name.clone()].into(),
        None if !args.rolling => {
            let names = cluster.names();
            bail!(Usage(format!("give the name of a process, or --rolling for all processes: {names}")));
        }
        None => cluster.processes.iter().map(|process| process.name.clone()).collect(),
    };
    for process in cluster.processes.iter().filter(|process| due.contains(&process.name)) {
        may_restart(&cluster, process.role, &process.name)?;
    }
    let restart = Restart { directory, patience: Duration::from_secs(args.wait) };
    let bar = progress(due.len() as u64, args.json)?;
    let began = Instant::now();
    let mut restarted = 0;
    while let Some(name) = next_due(&restart.wait_until_well(None)?, &due)? {
        bar.set_message(name.clone());
        let done = restart.restart(&name)?;
        due.remove(&name);
        restarted += 1;
        bar.inc(1);
        if args.json {
            report!("{}", serde_json::to_string(&done)?);
        } else {
            let which = if done.same_incarnation { "the same process as before" } else { "as a new process" };
            bar.suspend(|| report!("{name} is back after {:.2} s, {which}", done.seconds));
        }
    }
    bar.finish_and_clear();
    if args.json {
        report!(
            "{}",
            serde_json::json!({ "restarted": restarted, "seconds": began.elapsed().as_secs_f64() })
        );
    }
    Ok(())
}

/// Refuses a restart that would lose rows or the domain.
fn may_restart(cluster: &Cluster, role: Role, name: &str) -> Result<()> {
    match role {
        Role::Router | Role::Storage | Role::Cell if !cluster.durable => bail!(
            "{name} has no disk, because the cluster was started with --memory: a restart would lose the data of {name}"
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

/// Returns the next process to restart. The lead router comes last among the routers.
fn next_due(reports: &[Report], due: &BTreeSet<String>) -> Result<Option<String>> {
    let Some(role) = RESTART_ORDER
        .into_iter()
        .find(|role| reports.iter().any(|report| report.role == *role && due.contains(&report.name)))
    else {
        ensure!(
            due.is_empty(),
            "no process of the name {} answers",
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
    /// Restarts one process and waits until all processes are well.
    fn restart(&self, name: &str) -> Result<Restarted> {
        let cluster = self.directory.running()?;
        let process = cluster.process(name)?;
        let pid = process
            .pid
            .with_context(|| format!("{name} is not running at the moment; see `quorate status`"))?;
        let address = process.bound.as_ref().map(|bound| bound.http.clone());
        let report_of_process = || reports::reports_at(std::slice::from_ref(&address)).pop().flatten();
        let before = report_of_process().with_context(|| format!("{name} does not answer"))?;
        let began = Instant::now();
        signal(pid, Signal::USR2).with_context(|| format!("cannot signal {name}"))?;
        let after = self.wait_until_well(Some(&before))?;
        let after = after
            .into_iter()
            .find(|report| report.name == name)
            .with_context(|| format!("{name} no longer answers"))?;
        Ok(Restarted {
            process: name.to_owned(),
            role: before.role,
            seconds: began.elapsed().as_secs_f64(),
            same_incarnation: before.incarnation == after.incarnation,
        })
    }

    /// Waits until every process does its work. If `before` is given, the process of that report must also
    /// have started since then.
    fn wait_until_well(&self, before: Option<&Report>) -> Result<Vec<Report>> {
        let until = Instant::now() + self.patience;
        loop {
            let cluster = self.directory.running()?;
            let reports = reports::reports(&cluster);
            let awaited = match before {
                Some(before) if !reports.iter().flatten().any(|report| is_next_of(report, before)) => {
                    Some(format!("{} has not restarted yet", before.name))
                }
                _ => reports::shortages(&cluster, &reports).into_iter().next().map(|lack| lack.why),
            };
            let Some(why) = awaited else { return Ok(reports.into_iter().flatten().collect()) };
            if Instant::now() >= until {
                bail!(
                    "the cluster is not well after {} s: {why}; see `quorate status`",
                    self.patience.as_secs()
                );
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// Whether the process of `before` has started again by the time of `report`.
fn is_next_of(report: &Report, before: &Report) -> bool {
    report.name == before.name && report.started != before.started
}
