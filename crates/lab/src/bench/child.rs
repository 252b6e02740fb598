//! A process of a bench, which runs this same program. It gets its part as JSON, and exchanges lines with the
//! bench.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{self, ChildStdin, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::processor;

/// A process of the bench, killed when it is dropped.
pub(super) struct Child {
    child: process::Child,
    stdin: ChildStdin,
    /// The lines that the process has printed and the bench has not read.
    lines: Receiver<String>,
    pub(super) name: String,
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Child {
    /// Starts `quorate bench COMMAND` as a process with the role `spec`.
    pub(super) fn start(name: String, command: &str, spec: &impl Serialize) -> Result<Child> {
        let mut child = Command::new(env::current_exe()?)
            .args(["bench", command, &serde_json::to_string(spec)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes
            .context("the bench did not get the pipes for input and output of a process that it started")?;
        let (printed, lines) = unbounded();
        // The thread reads the output to its end, so the process never waits for the bench. The lines of a
        // killed process remain.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if printed.send(line.trim().to_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Child { child, stdin, lines, name })
    }

    /// Returns the next line that the process prints.
    pub(super) fn line(&mut self) -> Result<String> {
        self.lines.recv().or_else(|_| self.ended())
    }

    /// Returns the next line that the process prints. Fails if it prints none within `patience`.
    pub(super) fn line_within(&mut self, patience: Duration) -> Result<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("the process {} of the bench prints nothing", self.name),
            Err(RecvTimeoutError::Disconnected) => self.ended(),
        }
    }

    fn ended(&self) -> Result<String> {
        bail!("the process {} of the bench ended early; its own error is printed above", self.name)
    }

    /// Sends the process a line.
    pub(super) fn send_line(&mut self, word: &str) -> Result<()> {
        writeln!(self.stdin, "{word}")?;
        Ok(self.stdin.flush()?)
    }

    /// Sends the process a line, and returns the line that it prints in reply.
    pub(super) fn ask(&mut self, word: &str) -> Result<String> {
        self.send_line(word)?;
        self.line()
    }

    /// Sends the process a signal.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Kills the process without waiting for its end.
    pub(super) fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// Waits until the process has ended. Returns the lines that the bench has not read.
    pub(super) fn rest(&mut self) -> Result<impl Iterator<Item = String> + '_> {
        self.child.wait()?;
        Ok(self.lines.iter())
    }

    /// Returns the operating-system id of the process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of bytes that the system has written to disks for the process.
    pub(super) fn disk_bytes(&self) -> Result<u64> {
        processor::disk_bytes(self.child.id())
    }

    /// Returns the processor time that the process has used.
    pub(super) fn cpu(&self) -> Result<Duration> {
        processor::time(self.child.id())
    }
}
