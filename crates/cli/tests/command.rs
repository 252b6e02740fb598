//! Runs the command, in a data directory of its own.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How many lines of each log a failed test prints.
const LOGGED: usize = 40;

/// A place for one local cluster. Whatever still runs there when it is dropped is ended.
pub(crate) struct Place {
    directory: TempDir,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The command with these words, in this place.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(words).stdin(Stdio::null()).env("QUORATE_DATA_DIR", self.data_dir());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Said {
        Said::of(self.command(words).output().unwrap())
    }

    /// Prints what its processes are at, and what each logged last: a test that failed elsewhere is understood from that.
    fn tell(&self) {
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

    /// Starts it and lets it run.
    pub(crate) fn start(&self, words: &[&str]) -> Child {
        self.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if thread::panicking() {
            self.tell();
        }
        let _ = self.command(&["down", "--yes"]).output();
    }
}

impl Said {
    pub(crate) fn of(output: Output) -> Said {
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// It failed, with this exit code and saying this.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, because: &str) {
        assert!(self.code == Some(code) && self.err.contains(because), "not {because:?}: {self:?}");
    }
}

/// Waits for a condition; panics when it does not come within a minute.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Stops a process. When this returns none of its threads runs: one that a busy machine has not woken yet would go on for
/// a moment, and acknowledge a write.
pub(crate) fn freeze(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", pid.as_raw_pid());
    let stands = |task: fs::DirEntry| {
        // The state is behind the name, which is in parentheses.
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    };
    wait_for("the process stands", || fs::read_dir(&tasks).unwrap().flatten().all(stands));
}
