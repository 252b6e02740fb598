//! A cluster of separate processes for one bench. Dropping it ends the processes; its logs stay if the bench
//! failed.
//!
//! `quorate up` starts the cluster, and `quorate status --json` reports on it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result, ensure};
use quorate_protocol::{Role, role::State};
use serde::Deserialize;

use crate::quorate_program;

pub(super) struct Spawned {
    place: PathBuf,
    program: PathBuf,
    /// The processes at the start of the cluster. Later lives have the same addresses.
    processes: Vec<Process>,
    succeeded: AtomicBool,
}

/// A process of the cluster.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) node: u64,
    pub(super) role: Role,
    /// The operating-system id of the process, while it runs.
    pub(super) pid: Option<u32>,
    /// The addresses at which the process listens, once it listens.
    pub(super) bound: Option<Bound>,
    pub(super) state: State,
    /// The process's incarnation, in hexadecimal; `None` if it does not answer.
    pub(super) incarnation: Option<String>,
}

/// The addresses that a process listens on.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Bound {
    /// The address for other processes.
    pub(super) listen: String,
    /// The address of `/metrics`, `/health` and `/status`.
    pub(super) http: String,
    /// The address for SQL clients; gateways only.
    sql: Option<String>,
    /// The address for Redis clients; cells only.
    redis: Option<String>,
}

impl Spawned {
    /// Starts the default cluster, empty, in memory, on free ports. `flags` go to `quorate up`.
    pub(super) fn start(flags: &[&str]) -> Result<Spawned> {
        Spawned::up(&[&["--memory"], flags].concat())
    }

    /// Starts the default cluster, on disk if `durable`.
    pub(super) fn maybe_durable(durable: bool) -> Result<Spawned> {
        if durable { Spawned::on_disk(&[]) } else { Spawned::start(&[]) }
    }

    /// Starts the default cluster on disk.
    pub(super) fn on_disk(flags: &[&str]) -> Result<Spawned> {
        Spawned::up(flags)
    }

    /// Starts the cluster again with its data, after all its processes have ended.
    pub(super) fn start_again(&self, flags: &[&str]) -> Result<PendingStart> {
        let mut command = self.quorate(&["up", "--detach", "--empty"]);
        command.args(flags).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(PendingStart(command.spawn()?))
    }

    /// Returns the id of the operating-system process that supervises the cluster.
    pub(super) fn supervisor(&self) -> Result<u32> {
        let cluster: serde_json::Value = serde_json::from_slice(&fs::read(self.place.join("cluster.json"))?)?;
        let pid = cluster["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.context("the file cluster.json of the bench's cluster has no process id of a supervisor")
    }

    /// Restarts a process. Returns the report on the restart, a JSON object.
    pub(super) fn restart(&self, process: &str) -> Result<String> {
        let output = self.quorate(&["restart", "--json", process]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
    }

    fn up(flags: &[&str]) -> Result<Spawned> {
        let place = env::temp_dir().join(format!("quorate-bench-{}", std::process::id()));
        let program = quorate_program()?;
        let mut spawned =
            Spawned { place, program, processes: Vec::new(), succeeded: AtomicBool::new(false) };
        let output = spawned.quorate(&["up", "--detach", "--empty", "--port", "0"]).args(flags).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        spawned.processes = spawned.status()?;
        Ok(spawned)
    }

    /// Returns the processes at the start of the cluster.
    pub(super) fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Returns the present processes: each one that is supervised, without former lives.
    pub(super) fn status(&self) -> Result<Vec<Process>> {
        // The exit code says whether the cluster can work; the bench judges that itself.
        let output = self.quorate(&["status", "--json"]).output()?;
        let lines = String::from_utf8(output.stdout)?;
        // Other lines describe the cluster as a whole.
        let processes: Vec<Process> =
            lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        ensure!(!processes.is_empty(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(processes.into_iter().filter(|process| process.state != State::Unreachable).collect())
    }

    /// Returns the SQL address.
    pub(super) fn sql(&self) -> Result<&str> {
        let mut doors = self.processes.iter().filter_map(|process| process.bound.as_ref()?.sql.as_deref());
        doors.next().context("the bench's cluster has no gateway, so there is no SQL address")
    }

    /// Returns the Redis addresses of the cells, in the order of the cells.
    pub(super) fn redis(&self) -> impl Iterator<Item = &str> {
        self.processes.iter().filter_map(|process| process.bound.as_ref()?.redis.as_deref())
    }

    /// Returns the directory of the cluster's logs; a bench may keep its own files there.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Notes that the bench succeeded, so the logs are not needed.
    pub(super) fn succeeded(&self) {
        self.succeeded.store(true, Ordering::Relaxed);
    }

    fn quorate(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--data-dir").arg(&self.place).stdin(Stdio::null());
        command
    }
}

/// A call of `quorate up` that has not returned yet.
pub(super) struct PendingStart(process::Child);

impl PendingStart {
    /// Waits until the cluster answers.
    pub(super) fn wait(self) -> Result<()> {
        let output = self.0.wait_with_output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let mut down = vec!["down", "--yes"];
        if self.succeeded.load(Ordering::Relaxed) {
            down.push("--destroy");
        }
        let stopped = self.quorate(&down).output().is_ok_and(|output| output.status.success());
        if stopped && self.succeeded.load(Ordering::Relaxed) {
            let _ = fs::remove_dir_all(&self.place);
        } else {
            eprintln!("the logs of the bench's cluster are in {}", self.place.display());
        }
    }
}
