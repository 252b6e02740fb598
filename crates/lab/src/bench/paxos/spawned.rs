//! The bench starts each process as a [`Spawned`], and reads what it reports.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};

use super::{
    process::{PaxosProcessSpec, RouterLine, RouterWork},
    replica::RouterReport,
};

pub(super) const ROUTERS: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(30);

/// A process of the bench; dropping it kills the process.
pub(super) struct Spawned {
    pub(super) child: Child,
    stdin: Option<ChildStdin>,
    pub(super) lines: Receiver<String>,
    pub(super) name: String,
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Spawned {
    pub(super) fn start(name: String, spec: &PaxosProcessSpec) -> Result<Spawned> {
        let mut child = Command::new(env::current_exe()?)
            .args(["bench", "paxos-process", &serde_json::to_string(spec)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(
            child
                .stdout
                .take()
                .context("the bench did not get the output pipe of a process that it started")?,
        );
        let (tell, lines) = unbounded();
        // The thread reads the output to its end, also after the process was killed.
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Spawned { child, stdin, lines, name })
    }

    pub(super) fn tell(&mut self, word: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the input of a process of the bench is closed")?;
        writeln!(stdin, "{word}")?;
        Ok(stdin.flush()?)
    }

    pub(super) fn line(&self) -> Result<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("the process {} of the bench prints nothing", self.name),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the process {} of the bench ended early; its own error is printed above", self.name)
            }
        }
    }

    /// Returns the router's report. Passes earlier acknowledgements to `acknowledged`.
    pub(super) fn report(&mut self, mut acknowledged: impl FnMut(u64)) -> Result<(RouterReport, RouterWork)> {
        self.tell("report")?;
        loop {
            match serde_json::from_str(&self.line()?)? {
                RouterLine::Acknowledged(number) => acknowledged(number),
                RouterLine::Report(report, work) => return Ok((*report, work)),
            }
        }
    }
}

/// Returns free addresses, each for one router and its later lives.
pub(super) fn addresses() -> Result<Vec<String>> {
    let held: Vec<TcpListener> =
        (0..ROUTERS).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

/// Waits until `look` finds its result.
pub(super) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(Instant::now() < limit, "this did not become true in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
