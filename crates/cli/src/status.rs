//! `quorate status`: what each process of the local cluster says of itself, side by side.

use std::{
    borrow::Cow,
    io::{self, Write},
    path::PathBuf,
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use quorate::{maps::MapStatus, node::DiskStatus};
use quorate_protocol::{Role, role::State};
use quorate_tables::status::{MemberStatus, ReformStatus, TableStatus};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cluster::{Cluster, DirectoryArgs, Entry},
    quorum::{Gone, Quorum},
};

/// Shows who runs where, how far each process is in the total order, and how far behind it is; of those with a disk also what
/// is on it, how long its syncs take, how old the last checkpoint is, and how much a restart would read.
///
/// Exits with 1 when a majority of the routers does not answer: nothing can be written then. It says whether they are gone
/// for good, and what going on without them would lose. Exits with 1 too when nobody answers who holds some range: its rows
/// can be neither read nor written. A process that the cluster has given up on but still waits for has a row of its own,
/// `unreachable`, beside that of its next life.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One JSON object a line for each process.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// What a process says of itself at `/status`, as JSON.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Report {
    /// Its name.
    pub(crate) name: String,
    /// Its role.
    pub(crate) role: Role,
    /// Its place in the cluster.
    pub(crate) node: u64,
    /// Which life of it, in hexadecimal.
    pub(crate) incarnation: String,
    /// What it is in its role.
    pub(crate) state: State,
    /// Why it cannot do its work, as far as it can tell alone.
    #[serde(default)]
    pub(crate) hindrance: Option<String>,
    /// The position in the total order that it has reached: of what concerns it, for all but routers.
    pub(crate) position: u64,
    /// The position up to which it has done what concerns it.
    #[serde(default)]
    pub(crate) executed: u64,
    /// The process as others name it: node and the head of its incarnation.
    pub(crate) process: String,
    /// The domain it belongs to.
    #[serde(default)]
    pub(crate) domain: String,
    /// The routers that vote, as a router knows them.
    #[serde(default)]
    pub(crate) routers: Vec<String>,
    /// Those that a change under way would make: it is these who vote then.
    #[serde(default)]
    pub(crate) routers_open: Option<Vec<String>>,
    /// How many of them the domain keeps.
    #[serde(default)]
    pub(crate) wanted_routers: usize,
    /// Its generation, and of a router what that began with, and how far it knows the log.
    #[serde(default)]
    pub(crate) generation: u32,
    #[serde(default)]
    pub(crate) generation_of: String,
    #[serde(default)]
    pub(crate) reformed: Option<ReformStatus>,
    #[serde(default)]
    pub(crate) log: String,
    /// The members of the configuration, as this process knows it.
    #[serde(default)]
    pub(crate) members: Vec<MemberStatus>,
    #[serde(default)]
    pub(crate) config_version: u64,
    /// The tables, as it knows them, and the ring that they are on.
    #[serde(default)]
    pub(crate) tables: Vec<TableStatus>,
    #[serde(default)]
    pub(crate) ranges: usize,
    #[serde(default)]
    pub(crate) replicas: u8,
    /// How it stands with its disk, if it has one.
    #[serde(default)]
    pub(crate) disk: Option<DiskStatus>,
    /// When its program began, in milliseconds of Unix time.
    #[serde(default)]
    pub(crate) started: u64,
    /// The maps, as a router or a cell of them knows them.
    #[serde(default)]
    pub(crate) maps: Vec<MapStatus>,
    /// How it stands as a cell.
    #[serde(default)]
    pub(crate) cell: Option<CellReport>,
}

/// A cell's word on itself.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct CellReport {
    /// The cells that it would ask now, itself included.
    pub(crate) reachable: Vec<u32>,
}

/// Something that a cluster lacks to be whole.
pub(crate) struct Lack {
    /// The role that is not filled.
    pub(crate) role: Role,
    /// The reason, which names the process.
    pub(crate) why: String,
}

impl Report {
    /// The routers that vote: those of the newest change that this router knows of, chosen or not.
    pub(crate) fn voters(&self) -> &[String] {
        self.routers_open.as_ref().unwrap_or(&self.routers)
    }

    /// Storage processes that keep rows of a former life, and up to which position they have them.
    pub(crate) fn keepers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.members.iter().filter_map(|member| Some((member.name.as_str(), member.keeps_through?)))
    }

    /// Whether it belongs to the domain.
    pub(crate) fn has_joined(&self) -> bool {
        !matches!(self.state, State::Joining | State::Spare)
    }
}

/// A process as the supervisor and as it itself see it.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    entry: Cow<'a, Entry>,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    hindrance: Option<String>,
    incarnation: Option<String>,
    position: Option<u64>,
    lag: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskStatus>,
}

/// How long a process may take to answer for itself.
const PATIENCE: Duration = Duration::from_millis(1000);

pub(crate) fn run(args: Args) -> Result<()> {
    let directory = args.directory.directory()?;
    let cluster = directory.running()?;
    let reports = reports(&cluster);
    let mut rows = rows(&cluster, &reports);
    let gone = Gone::of(reports.iter().flatten());
    rows.extend(gone.unreachable.iter().map(|member| Row::unreachable(&cluster, member)));
    let mut out = io::stdout().lock();
    if args.json {
        for row in &rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
    } else {
        writeln!(out, "domain {}, run by pid {}, in {}", cluster.domain, cluster.pid, directory.shown())?;
        writeln!(out, "{}", table(&rows))?;
        if let Some(disks) = disks(&rows) {
            writeln!(out, "\n{disks}\n")?;
        }
        for Row { entry, hindrance, .. } in &rows {
            if let Some(why) = hindrance {
                writeln!(out, "{}: {why}", entry.name)?;
            }
        }
    }
    let quorum = Quorum::of(reports.iter().flatten());
    if !quorum.is_lost() {
        if gone.ranges.is_empty() {
            return Ok(());
        }
        if args.json {
            writeln!(out, "{}", gone.json())?;
        }
        bail!("{}", gone.explained());
    }
    if args.json {
        writeln!(out, "{}", quorum.json())?;
    }
    let named = |process: &str| {
        let node = process.split('.').next().unwrap_or_default();
        let mut entries = cluster.processes.iter();
        let entry = entries.find(|entry| entry.node.to_string() == node);
        entry.map_or_else(|| process.to_owned(), |entry| entry.name.clone())
    };
    bail!("{}", quorum.explained(named))
}

/// What each process of the cluster says, in the cluster's order; none where it does not answer. One that the lead router
/// does not count among its routers and members yet is joining, whatever it says itself; or, a router, spare: there are as
/// many as the domain keeps.
pub(crate) fn reports(cluster: &Cluster) -> Vec<Option<Report>> {
    let address = |entry: &Entry| Some(entry.bound.as_ref()?.http.clone());
    reports_at(&cluster.processes.iter().map(address).collect::<Vec<_>>())
}

/// The same of processes that serve HTTP at these addresses.
pub(crate) fn reports_at(addresses: &[Option<String>]) -> Vec<Option<Report>> {
    let mut reports: Vec<Option<Report>> = thread::scope(|scope| {
        let ask = |address: &Option<String>| fetch(address.as_ref()?, "status");
        let asked: Vec<_> = addresses.iter().map(|address| scope.spawn(move || ask(address))).collect();
        asked.into_iter().map(|answer| answer.join().ok().flatten()).collect()
    });
    let leader = reports.iter().flatten().find(|report| report.state == State::Leading);
    if let Some(Report { routers, members, wanted_routers, .. }) = leader.cloned() {
        let answers = |router: &String| reports.iter().flatten().any(|report| report.process == *router);
        let enough = routers.len() >= wanted_routers && routers.iter().all(answers);
        let counted: Vec<String> = members.into_iter().map(|member| member.process).chain(routers).collect();
        for report in reports.iter_mut().flatten().filter(|report| !counted.contains(&report.process)) {
            let spare = report.role == Role::Router && enough;
            report.state = if spare { State::Spare } else { State::Joining };
        }
    }
    reports
}

/// What the cluster lacks to be whole: every process does its work, each cell reaches all cells, and one router leads as many as the
/// domain keeps.
pub(crate) fn lacks(cluster: &Cluster, reports: &[Option<Report>]) -> Vec<Lack> {
    let cells = cluster.processes.iter().filter(|process| process.role == Role::Cell).count();
    let of_process = |(process, report): (&Entry, &Option<Report>)| {
        let name = &process.name;
        let why = match report {
            None => format!("{name} does not answer"),
            Some(Report { hindrance: Some(why), .. }) => format!("{name} is not well: {why}"),
            Some(Report { state, cell, .. }) => {
                let reached = cell.as_ref().map_or(cells, |cell| cell.reachable.len());
                match state {
                    State::Leading | State::Following | State::Standby | State::Serving
                        if reached >= cells =>
                    {
                        return None;
                    }
                    State::Serving => format!("{name} reaches {reached} of {cells} cells"),
                    state => format!("{name} is {state}"),
                }
            }
        };
        Some(Lack { role: process.role, why })
    };
    let mut lacks: Vec<Lack> = cluster.processes.iter().zip(reports).filter_map(of_process).collect();
    let mut leaders = reports.iter().flatten().filter(|report| report.state == State::Leading);
    let why = match (leaders.next(), leaders.next()) {
        (Some(leader), None) if leader.routers.len() >= leader.wanted_routers => return lacks,
        (Some(_), None) => String::from("a router is missing"),
        _ => String::from("there is not one lead router"),
    };
    lacks.push(Lack { role: Role::Router, why });
    lacks
}

/// What is served at this address under this name, if it is there and understood.
pub(crate) fn fetch<T: DeserializeOwned>(address: &str, name: &str) -> Option<T> {
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
    let body = agent.get(format!("http://{address}/{name}")).call().ok()?.body_mut().read_to_string().ok()?;
    serde_json::from_str(&body).ok()
}

impl Row<'_> {
    /// A storage process that does not answer, in a life that the cluster waits for.
    fn unreachable(cluster: &Cluster, member: &MemberStatus) -> Row<'static> {
        let node = member.process.split('.').next().and_then(|node| node.parse().ok());
        let known = cluster.processes.iter().find(|entry| entry.name == member.name);
        let entry = Entry {
            name: member.name.clone(),
            role: Role::Storage,
            node: node.unwrap_or_default(),
            pid: None,
            bound: None,
            starts: 0,
            log: known.map_or_else(PathBuf::new, |entry| entry.log.clone()),
        };
        Row {
            entry: Cow::Owned(entry),
            state: State::Unreachable,
            hindrance: None,
            incarnation: Some(member.process.clone()),
            position: None,
            lag: None,
            disk: None,
        }
    }
}

fn rows<'a>(cluster: &'a Cluster, reports: &[Option<Report>]) -> Vec<Row<'a>> {
    let furthest = reports.iter().flatten().map(|report| report.position).max();
    let row = |(entry, report): (&'a Entry, &Option<Report>)| Row {
        entry: Cow::Borrowed(entry),
        state: match (report, entry.pid) {
            (Some(report), _) => report.state,
            (None, Some(_)) => State::Silent,
            (None, None) => State::Down,
        },
        hindrance: report.as_ref().and_then(|report| report.hindrance.clone()),
        incarnation: report.as_ref().map(|report| report.incarnation.clone()),
        disk: report.as_ref().and_then(|report| report.disk.clone()),
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
        "PROCESS", "ROLE", "PID", "STATE", "POSITION", "LAG", "STARTS", "LISTENS", "HTTP", "CLIENTS", "LOG",
    ]);
    let shown = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    for Row { entry, state, position, lag, .. } in rows {
        let bound = entry.bound.as_ref();
        table.add_row([
            entry.name.clone(),
            entry.role.to_string(),
            shown(entry.pid.map(u64::from)),
            state.to_string(),
            shown(*position),
            shown(*lag),
            entry.starts.to_string(),
            bound.map(|bound| bound.listen.clone()).unwrap_or_default(),
            bound.map(|bound| bound.http.clone()).unwrap_or_default(),
            bound.and_then(|bound| bound.sql.clone().or_else(|| bound.redis.clone())).unwrap_or_default(),
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

/// The processes that have a disk; none if no one has.
fn disks(rows: &[Row<'_>]) -> Option<Table> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["DISK OF", "USED", "RESTART READS", "SYNCS", "MEAN", "LONGEST", "CHECKPOINT"]);
    for Row { entry, disk, .. } in rows {
        let Some(disk) = disk else { continue };
        table.add_row([
            entry.name.clone(),
            mebibytes(disk.used_bytes),
            mebibytes(disk.restart_bytes),
            disk.syncs.to_string(),
            milliseconds(disk.sync_us_mean),
            milliseconds(disk.sync_us_max),
            disk.checkpoint_age_s.map_or_else(|| String::from("none yet"), ago),
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    (!table.is_empty()).then_some(table)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn milliseconds(microseconds: u64) -> String {
    format!("{:.1} ms", microseconds as f64 / 1000.0)
}

/// An age in its largest unit.
fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}
