//! A process of a bench, which runs this same program. It gets its part as JSON, and exchanges lines with the
//! bench.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{self, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::processor;

/// A process of the bench, killed when it is dropped.
pub(super) struct Child {
    child: process::Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    pub(super) name: String,
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Child {
    /// Starts `quorate bench COMMAND` with its part.
    pub(super) fn start(name: String, command: &str, spec: &impl Serialize) -> Result<Child> {
        let mut child = Command::new(env::current_exe()?)
            .args(["bench", command, &serde_json::to_string(spec)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = (
            stdin.context(
                "the bench did not get the pipes for input and output of a process that it started",
            )?,
            BufReader::new(stdout.context(
                "the bench did not get the pipes for input and output of a process that it started",
            )?),
        );
        Ok(Child { child, stdin, stdout, name })
    }

    /// Returns the next line that the process prints.
    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(
            self.stdout.read_line(&mut line)? > 0,
            "the process {} of the bench ended early; its own error is printed above",
            self.name
        );
        Ok(line.trim().to_owned())
    }

    /// Sends the process a line.
    pub(super) fn tell(&mut self, word: &str) -> Result<()> {
        writeln!(self.stdin, "{word}")?;
        Ok(self.stdin.flush()?)
    }

    /// Sends the process a line, and returns the line that it prints in reply.
    pub(super) fn ask(&mut self, word: &str) -> Result<String> {
        self.tell(word)?;
        self.line()
    }

    /// Sends the process a signal.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Returns the bytes that the process has had written to disks.
    pub(super) fn disk_bytes(&self) -> Result<u64> {
        processor::disk_bytes(self.child.id())
    }

    /// Returns the processor time that the process has used.
    pub(super) fn cpu(&self) -> Result<Duration> {
        processor::time(self.child.id())
    }
}
