//! Runs the command in its own data directory.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
};

use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Number of lines of each log that a failed test prints.
const LOGGED: usize = 40;

/// The directory of one local cluster. Dropping it ends all processes that still run there.
pub(crate) struct LocalCluster {
    directory: TempDir,
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl LocalCluster {
    pub(crate) fn new() -> LocalCluster {
        LocalCluster { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns the command with these arguments, for this directory.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(words).stdin(Stdio::null()).env("QUORATE_DATA_DIR", self.data_dir());
        command
    }

    /// Runs a command until it ends.
    pub(crate) fn run(&self, words: &[&str]) -> CommandOutput {
        CommandOutput::of(self.command(words).output().unwrap())
    }

    /// Prints the status and the end of each log, to explain a test that failed.
    fn print_state(&self) {
        eprintln!("{}", self.run(&["status"]).out);
        let files = fs::read_dir(self.data_dir()).into_iter().flatten().flatten();
        let mut logs: Vec<_> = files.map(|file| file.path()).collect();
        logs.retain(|path| path.extension().is_some_and(|it| it == "log"));
        logs.sort();
        for path in logs {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let last = text.lines().count().saturating_sub(LOGGED);
            eprintln!("-- {}", path.display());
            text.lines().skip(last).for_each(|line| eprintln!("{line}"));
        }
    }

    /// Starts a command without waiting for its end.
    pub(crate) fn start(&self, words: &[&str]) -> Child {
        self.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_state();
        }
        let _ = self.command(&["down", "--yes"]).output();
    }
}

impl CommandOutput {
    pub(crate) fn of(output: Output) -> CommandOutput {
        CommandOutput {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Checks that the command failed with this exit code and this message.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, because: &str) {
        assert!(self.code == Some(code) && self.err.contains(because), "not {because:?}: {self:?}");
    }
}

/// Freezes a process, and returns once none of its threads runs. On a busy machine a thread may otherwise run
/// a moment longer and acknowledge a write.
pub(crate) fn freeze(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", pid.as_raw_pid());
    let stands = |task: fs::DirEntry| {
        // The state follows the name, which is in parentheses.
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    };
    wait_for("the process stands", || fs::read_dir(&tasks).unwrap().flatten().all(stands));
}
