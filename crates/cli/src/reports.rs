//! The reports that the processes of a cluster serve over HTTP, and the reasons for which they show that a
//! cluster is not whole.

use std::{thread, time::Duration};

use quorate::{maps::MapStatus, node::DiskStatus};
use quorate_protocol::{Role, role::State};
use quorate_roles::tables::status::{MemberStatus, ReformStatus, TableStatus};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::cluster::{Cluster, ProcessEntry};

/// The report of a process, which it serves as JSON at `/status`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Report {
    /// Name of the process.
    pub(crate) name: String,
    /// Role of the process.
    pub(crate) role: Role,
    /// Node of the process in the cluster.
    pub(crate) node: u64,
    /// Incarnation of the process, in hexadecimal.
    pub(crate) incarnation: String,
    /// State of the process in its role.
    pub(crate) state: State,
    /// Reason why the process cannot do its work, as far as the process itself knows it.
    #[serde(default)]
    pub(crate) hindrance: Option<String>,
    /// Position that the process has reached in the total order. All processes but routers count only
    /// messages that concern them.
    pub(crate) position: u64,
    /// Position up to which the process has executed the messages that concern it.
    #[serde(default)]
    pub(crate) executed: u64,
    /// Short process id: the node and the beginning of the incarnation.
    pub(crate) process: String,
    /// Domain of the process.
    #[serde(default)]
    pub(crate) domain: String,
    /// Voting routers, if this is a router.
    #[serde(default)]
    pub(crate) routers: Vec<String>,
    /// Routers after a change that is under way. During the change these routers vote.
    #[serde(default)]
    pub(crate) routers_open: Option<Vec<String>>,
    /// Number of routers that the domain keeps.
    #[serde(default)]
    pub(crate) wanted_routers: usize,
    /// Generation of the domain.
    #[serde(default)]
    pub(crate) generation: u32,
    /// Origin of the domain's generation.
    #[serde(default)]
    pub(crate) generation_of: String,
    /// Report on the beginning of the domain's generation.
    #[serde(default)]
    pub(crate) reformed: Option<ReformStatus>,
    /// Progress of this router in the log.
    #[serde(default)]
    pub(crate) log: String,
    /// Members of the configuration, as this process knows them.
    #[serde(default)]
    pub(crate) members: Vec<MemberStatus>,
    #[serde(default)]
    pub(crate) config_version: u64,
    /// Tables, as this process knows them, and the ring that holds them.
    #[serde(default)]
    pub(crate) tables: Vec<TableStatus>,
    #[serde(default)]
    pub(crate) ranges: usize,
    #[serde(default)]
    pub(crate) replicas: u8,
    /// State of the disk, if the process has one.
    #[serde(default)]
    pub(crate) disk: Option<DiskStatus>,
    /// Start of the program, in milliseconds of Unix time.
    #[serde(default)]
    pub(crate) started: u64,
    /// Number of lives of the process in this program. It grows each time that the process was cut off and
    /// came back.
    #[serde(default = "one")]
    pub(crate) lives: u64,
    /// Reason why the previous life ended.
    #[serde(default)]
    pub(crate) former_end: Option<String>,
    /// Maps, as a router or a cell knows them.
    #[serde(default)]
    pub(crate) maps: Vec<MapStatus>,
    /// State of the cell, if the process is one.
    #[serde(default)]
    pub(crate) cell: Option<CellReport>,
}

/// The report of a cell about itself.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct CellReport {
    /// Numbers of the cells that this cell can reach now, including itself.
    pub(crate) reachable: Vec<u32>,
}

fn one() -> u64 {
    1
}

impl Report {
    /// Returns the voting routers. If a change of the routers is under way, whether chosen or not, these are
    /// the routers after the change.
    pub(crate) fn voters(&self) -> &[String] {
        self.routers_open.as_ref().unwrap_or(&self.routers)
    }

    /// Returns the storage processes that keep rows of an earlier life, with the position up to which they
    /// have them.
    pub(crate) fn keepers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.members.iter().filter_map(|member| Some((member.name.as_str(), member.keeps_through?)))
    }

    /// Whether the process belongs to the domain.
    pub(crate) fn has_joined(&self) -> bool {
        !matches!(self.state, State::Joining | State::Spare)
    }
}

/// A reason why a cluster is not whole.
pub(crate) struct Shortage {
    /// Role that is affected.
    pub(crate) role: Role,
    /// Description, which names the process.
    pub(crate) why: String,
}

/// Longest time that a process may take to answer.
const PATIENCE: Duration = Duration::from_millis(1000);

/// Returns the reports of all processes in the cluster's order, with `None` for a silent process. A process
/// that the lead router does not count as a router or member is joining, whatever its own report says. Such a
/// router is spare if the domain already has as many routers as it keeps.
pub(crate) fn reports(cluster: &Cluster) -> Vec<Option<Report>> {
    let address = |entry: &ProcessEntry| Some(entry.bound.as_ref()?.http.clone());
    reports_at(&cluster.processes.iter().map(address).collect::<Vec<_>>())
}

/// Returns the reports of the processes at these HTTP addresses, with `None` for a silent process.
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

/// Returns the reasons why the cluster is not whole. In a whole cluster every process does its work, each
/// cell reaches all cells, and one router leads as many routers as the domain keeps.
pub(crate) fn shortages(cluster: &Cluster, reports: &[Option<Report>]) -> Vec<Shortage> {
    let cells = cluster.processes.iter().filter(|process| process.role == Role::Cell).count();
    let of_process = |(process, report): (&ProcessEntry, &Option<Report>)| {
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
        Some(Shortage { role: process.role, why })
    };
    let mut shortages: Vec<Shortage> = cluster.processes.iter().zip(reports).filter_map(of_process).collect();
    let mut leaders = reports.iter().flatten().filter(|report| report.state == State::Leading);
    let why = match (leaders.next(), leaders.next()) {
        (Some(leader), None) if leader.routers.len() >= leader.wanted_routers => return shortages,
        (Some(_), None) => String::from("fewer routers vote than the domain keeps"),
        _ => String::from("there is no single lead router"),
    };
    shortages.push(Shortage { role: Role::Router, why });
    shortages
}

/// Fetches a JSON value from a process. Returns `None` if there is no answer or it cannot be parsed.
pub(crate) fn fetch<T: DeserializeOwned>(address: &str, name: &str) -> Option<T> {
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
    let body = agent.get(format!("http://{address}/{name}")).call().ok()?.body_mut().read_to_string().ok()?;
    serde_json::from_str(&body).ok()
}
