//! Common parts of the commands that operate a cluster: they find its processes, and send an operation to one
//! of them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use quorate_protocol::Role;
use quorate_roles::tables::operate::AdminOperation;

use crate::{
    directory::DirectoryArgs,
    reports::{self, Report},
};

/// The choice of a cluster, and the form of the output.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// HTTP addresses of a cluster's processes, host:port, instead of the local cluster. Can be repeated. A
    /// router or super among them does the work.
    #[arg(long, value_name = "HOST:PORT")]
    http: Vec<String>,
    /// Prints JSON objects, each on a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// A process that answers, and its HTTP address.
pub(crate) struct AnsweringProcess {
    pub(crate) http: String,
    pub(crate) report: Report,
}

/// Longest time of an operation. The process itself waits for less.
const PATIENCE: Duration = Duration::from_secs(60);

impl Target {
    /// Returns the node of the local cluster's process with this name.
    pub(crate) fn node(&self, name: &str) -> Result<Option<u64>> {
        if !self.http.is_empty() {
            return Ok(None);
        }
        let cluster = self.directory.directory()?.running()?;
        Ok(cluster.processes.iter().find(|entry| entry.name == name).map(|entry| entry.node))
    }

    /// Returns the reports of all processes that answer.
    pub(crate) fn answering(&self) -> Result<Vec<AnsweringProcess>> {
        let addresses: Vec<Option<String>> = match self.http.as_slice() {
            [] => {
                let cluster = self.directory.directory()?.running()?;
                cluster.processes.into_iter().map(|entry| Some(entry.bound?.http)).collect()
            }
            given => given.iter().cloned().map(Some).collect(),
        };
        let reports = reports::reports_at(&addresses);
        let pairs = addresses.into_iter().zip(reports);
        let answering: Vec<AnsweringProcess> = pairs
            .filter_map(|(http, report)| Some(AnsweringProcess { http: http?, report: report? }))
            .collect();
        if answering.is_empty() {
            bail!("no process of the cluster answers: check the addresses, and that the cluster runs");
        }
        Ok(answering)
    }
}

/// Returns a process in this role that has joined.
pub(crate) fn in_role(processes: &[AnsweringProcess], role: Role) -> Result<&AnsweringProcess> {
    let mut fitting = processes.iter().filter(|it| it.report.role == role && it.report.has_joined());
    fitting.next().with_context(|| format!("this needs a {role} that has joined the domain, and none answers: start a {role}, or wait until it has joined"))
}

/// Sends an operation to the process at this address. Returns the process's report after the operation.
pub(crate) fn ask(http: &str, operation: &AdminOperation) -> Result<Report> {
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
    let agent: ureq::Agent = agent.build().into();
    let body = serde_json::to_string(operation)?;
    let request = agent.post(format!("http://{http}/operate")).content_type("application/json");
    let mut response =
        request.send(body).with_context(|| format!("the process at {http} does not answer"))?;
    let said = response.body_mut().read_to_string()?;
    if !response.status().is_success() {
        bail!("{said}");
    }
    serde_json::from_str(&said).with_context(|| {
        format!("the process at {http} gave an answer that this program does not understand: {said}")
    })
}
