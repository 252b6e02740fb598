//! A cluster of separate processes for one bench, gone when it is dropped; its logs stay if the bench failed.
//!
//! It is `quorate up`'s, and known by what `quorate status --json` says of it.

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
    /// As it stood when it was started. Processes are started again at the same addresses.
    processes: Vec<Process>,
    passed: AtomicBool,
}

/// One of its processes.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) node: u64,
    pub(super) role: Role,
    /// Its operating-system process, while it runs.
    pub(super) pid: Option<u32>,
    /// Where it listens, once it does.
    pub(super) bound: Option<Bound>,
    pub(super) state: State,
    /// Which life of it, in hexadecimal; none if it does not answer.
    pub(super) incarnation: Option<String>,
}

/// The addresses that a process listens on.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Bound {
    /// For other processes.
    pub(super) listen: String,
    /// For `/metrics`, `/health` and `/status`.
    pub(super) http: String,
    /// For SQL clients; gateways only.
    sql: Option<String>,
    /// For Redis clients; cells only.
    redis: Option<String>,
}

impl Spawned {
    /// Starts the default cluster, empty, in memory, on ports that are free. `flags` go to `quorate up`.
    pub(super) fn start(flags: &[&str]) -> Result<Spawned> {
        Spawned::up(&[&["--memory"], flags].concat())
    }

    /// The same, on disk if `durable`.
    pub(super) fn maybe_durable(durable: bool) -> Result<Spawned> {
        if durable { Spawned::on_disk(&[]) } else { Spawned::start(&[]) }
    }

    /// The same on disk.
    pub(super) fn on_disk(flags: &[&str]) -> Result<Spawned> {
        Spawned::up(flags)
    }

    /// Has it go on where it was, after all of it has ended.
    pub(super) fn again(&self, flags: &[&str]) -> Result<Upping> {
        let mut command = self.quorate(&["up", "--detach", "--empty"]);
        command.args(flags).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Upping(command.spawn()?))
    }

    /// The operating-system process that supervises it.
    pub(super) fn supervisor(&self) -> Result<u32> {
        let cluster: serde_json::Value = serde_json::from_slice(&fs::read(self.place.join("cluster.json"))?)?;
        let pid = cluster["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.context("cluster.json names no supervisor")
    }

    /// Restarts one of its processes, and says how that went: an object of JSON.
    pub(super) fn restart(&self, process: &str) -> Result<String> {
        let output = self.quorate(&["restart", "--json", process]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
    }

    fn up(flags: &[&str]) -> Result<Spawned> {
        let place = env::temp_dir().join(format!("quorate-bench-{}", std::process::id()));
        let program = quorate_program()?;
        let mut spawned = Spawned { place, program, processes: Vec::new(), passed: AtomicBool::new(false) };
        let output = spawned.quorate(&["up", "--detach", "--empty", "--port", "0"]).args(flags).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        spawned.processes = spawned.status()?;
        Ok(spawned)
    }

    /// Its processes, as they were when it was started.
    pub(super) fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Its processes as they are now: each that is supervised, but no former life of one.
    pub(super) fn status(&self) -> Result<Vec<Process>> {
        // Its exit code says whether the cluster can work, which is for the bench to judge.
        let output = self.quorate(&["status", "--json"]).output()?;
        let lines = String::from_utf8(output.stdout)?;
        // Whatever else it says of the cluster as a whole is no process.
        let processes: Vec<Process> =
            lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        ensure!(!processes.is_empty(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(processes.into_iter().filter(|process| process.state != State::Unreachable).collect())
    }

    /// Where SQL is spoken.
    pub(super) fn sql(&self) -> Result<&str> {
        let mut doors = self.processes.iter().filter_map(|process| process.bound.as_ref()?.sql.as_deref());
        doors.next().context("the cluster has no gateway")
    }

    /// Where the Redis protocol is spoken, in the order of the cells; empty if there are none.
    pub(super) fn redis(&self) -> impl Iterator<Item = &str> {
        self.processes.iter().filter_map(|process| process.bound.as_ref()?.redis.as_deref())
    }

    /// Where its logs are; a bench may keep files of its own there.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// The bench has what it wanted: nobody will ask for the logs.
    pub(super) fn passed(&self) {
        self.passed.store(true, Ordering::Relaxed);
    }

    fn quorate(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--data-dir").arg(&self.place).stdin(Stdio::null());
        command
    }
}

/// A call of `quorate up` that has not returned yet.
pub(super) struct Upping(process::Child);

impl Upping {
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
        if self.passed.load(Ordering::Relaxed) {
            down.push("--destroy");
        }
        let stopped = self.quorate(&down).output().is_ok_and(|output| output.status.success());
        if stopped && self.passed.load(Ordering::Relaxed) {
            let _ = fs::remove_dir_all(&self.place);
        } else {
            eprintln!("the logs of the bench's cluster are in {}", self.place.display());
        }
    }
}
