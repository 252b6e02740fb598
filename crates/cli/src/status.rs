//! `quorate status`: what each process of the local cluster says of itself, side by side.

use std::{
    io::{self, Write},
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::{
    cluster::{Cluster, DirectoryArgs, Entry},
    config::Role,
};

/// Shows who runs where, how far each process is in the total order, and how far behind it is.
///
/// Exits with 1 when a majority of the routers does not answer: nothing can be written then.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One JSON object a line for each process.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// What a process says of itself at `/status`, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Report {
    /// Its name.
    pub(crate) name: String,
    /// Its role.
    pub(crate) role: Role,
    /// Its place in the cluster.
    pub(crate) node: u64,
    /// Which life of it, in hexadecimal.
    pub(crate) incarnation: String,
    /// In one word, what it is doing: `leading`, `following`, `joining`, `serving`, `standby`, `wedged`.
    pub(crate) state: String,
    /// The position in the total order that it has reached: of what concerns it, for all but routers.
    pub(crate) position: u64,
    /// The position up to which it has done what concerns it.
    #[serde(default)]
    pub(crate) executed: u64,
    /// The process as others name it: node and the head of its incarnation.
    pub(crate) process: String,
    /// The routers that vote, as a router knows them.
    #[serde(default)]
    pub(crate) routers: Vec<String>,
    /// The members of the configuration, as this process knows it.
    #[serde(default)]
    pub(crate) members: Vec<Member>,
}

/// A member of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Member {
    /// As others name it.
    pub(crate) process: String,
}

/// A process as the supervisor and as it itself see it.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    state: String,
    incarnation: Option<String>,
    position: Option<u64>,
    lag: Option<u64>,
}

/// How long a process may take to answer for itself.
const PATIENCE: Duration = Duration::from_millis(1000);

pub(crate) fn run(args: Args) -> Result<()> {
    let directory = args.directory.directory()?;
    let cluster = directory.running()?;
    let reports = reports(&cluster);
    let rows = rows(&cluster, &reports);
    let mut out = io::stdout().lock();
    if args.json {
        for row in &rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
    } else {
        writeln!(out, "domain {}, run by pid {}, in {}", cluster.domain, cluster.pid, directory.shown())?;
        writeln!(out, "{}", table(&rows))?;
    }
    let routers = || cluster.processes.iter().zip(&reports).filter(|(entry, _)| entry.role == Role::Router);
    let alive = routers().filter(|(_, report)| report.is_some()).count();
    if alive * 2 <= routers().count() {
        bail!(
            "only {alive} of {} routers answer: nothing can be written until a majority does",
            routers().count()
        );
    }
    Ok(())
}

/// What each process of the cluster says, in the cluster's order; none where it does not answer. One that the lead router
/// does not count among its routers and members yet is joining, whatever it says itself.
pub(crate) fn reports(cluster: &Cluster) -> Vec<Option<Report>> {
    let mut reports: Vec<Option<Report>> = thread::scope(|scope| {
        let ask = |entry: &'_ Entry| ask(entry.bound.as_ref()?.http.as_str());
        let asked: Vec<_> = cluster.processes.iter().map(|entry| scope.spawn(move || ask(entry))).collect();
        asked.into_iter().map(|answer| answer.join().ok().flatten()).collect()
    });
    let leader = reports.iter().flatten().find(|report| report.state == "leading");
    if let Some(Report { routers, members, .. }) = leader.cloned() {
        let counted: Vec<String> = members.into_iter().map(|member| member.process).chain(routers).collect();
        for report in reports.iter_mut().flatten().filter(|report| !counted.contains(&report.process)) {
            report.state = "joining".into();
        }
    }
    reports
}

fn ask(address: &str) -> Option<Report> {
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
    let body = agent.get(format!("http://{address}/status")).call().ok()?.body_mut().read_to_string().ok()?;
    serde_json::from_str(&body).ok()
}

fn rows<'a>(cluster: &'a Cluster, reports: &[Option<Report>]) -> Vec<Row<'a>> {
    let furthest = reports.iter().flatten().map(|report| report.position).max();
    let row = |(entry, report): (&'a Entry, &Option<Report>)| Row {
        entry,
        state: match (report, entry.pid) {
            (Some(report), _) => report.state.clone(),
            (None, Some(_)) => "silent".into(),
            (None, None) => "down".into(),
        },
        incarnation: report.as_ref().map(|report| report.incarnation.clone()),
        position: report.as_ref().map(|report| report.position),
        lag: report.as_ref().and_then(|report| match report.role {
            // A router has every message; the others only what concerns them.
            Role::Router => Some(furthest?.saturating_sub(report.position)),
            _ => Some(report.position.saturating_sub(report.executed)),
        }),
    };
    cluster.processes.iter().zip(reports).map(row).collect()
}

fn table(rows: &[Row<'_>]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "PROCESS", "ROLE", "PID", "STATE", "POSITION", "LAG", "STARTS", "LISTENS", "HTTP", "SQL", "LOG",
    ]);
    let shown = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    for Row { entry, state, position, lag, .. } in rows {
        let bound = entry.bound.as_ref();
        table.add_row([
            entry.name.clone(),
            entry.role.as_str().into(),
            shown(entry.pid.map(u64::from)),
            state.clone(),
            shown(*position),
            shown(*lag),
            entry.starts.to_string(),
            bound.map(|bound| bound.listen.clone()).unwrap_or_default(),
            bound.map(|bound| bound.http.clone()).unwrap_or_default(),
            bound.and_then(|bound| bound.sql.clone()).unwrap_or_default(),
            entry.log.display().to_string(),
        ]);
    }
    for column in [2, 4, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
