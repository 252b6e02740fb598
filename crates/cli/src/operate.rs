//! What the commands that operate a cluster have in common: which processes there are, and having one do something.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_protocol::Role;
use quorate_tables::operate::Operation;

use crate::{
    cluster::DirectoryArgs,
    status::{self, Report},
};

/// Which cluster, and how to answer.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// Instead of the local cluster, one over machines: where its processes serve HTTP, host:port. Can be repeated; a
    /// router or super among them does the work.
    #[arg(long, value_name = "HOST:PORT")]
    http: Vec<String>,
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// A process that answers, and where.
pub(crate) struct Answering {
    pub(crate) http: String,
    pub(crate) report: Report,
}

/// How long an operation may take; longer than the process itself waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

impl Target {
    /// The node of the local cluster's process of this name.
    pub(crate) fn node(&self, name: &str) -> Result<Option<u64>> {
        if !self.http.is_empty() {
            return Ok(None);
        }
        let cluster = self.directory.directory()?.running()?;
        Ok(cluster.processes.iter().find(|entry| entry.name == name).map(|entry| entry.node))
    }

    /// What every process says of itself that answers.
    pub(crate) fn answering(&self) -> Result<Vec<Answering>> {
        let addresses: Vec<Option<String>> = match self.http.as_slice() {
            [] => {
                let cluster = self.directory.directory()?.running()?;
                cluster.processes.into_iter().map(|entry| Some(entry.bound?.http)).collect()
            }
            given => given.iter().cloned().map(Some).collect(),
        };
        let reports = status::reports_at(&addresses);
        let pairs = addresses.into_iter().zip(reports);
        let answering: Vec<Answering> =
            pairs.filter_map(|(http, report)| Some(Answering { http: http?, report: report? })).collect();
        if answering.is_empty() {
            bail!("no process answers");
        }
        Ok(answering)
    }
}

/// A process in this role that has joined.
pub(crate) fn in_role(processes: &[Answering], role: Role) -> Result<&Answering> {
    let mut fitting = processes.iter().filter(|it| it.report.role == role && it.report.has_joined());
    fitting.next().with_context(|| format!("no {role} answers that has joined"))
}

/// Has the process at this address do it, and returns what it says of itself afterwards.
pub(crate) fn ask(http: &str, operation: &Operation) -> Result<Report> {
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
    let agent: ureq::Agent = agent.build().into();
    let body = serde_json::to_string(operation)?;
    let request = agent.post(format!("http://{http}/operate")).content_type("application/json");
    let mut response = request.send(body).with_context(|| format!("{http} does not answer"))?;
    let said = response.body_mut().read_to_string()?;
    if !response.status().is_success() {
        bail!("{said}");
    }
    serde_json::from_str(&said).with_context(|| format!("{http} answered: {said}"))
}
