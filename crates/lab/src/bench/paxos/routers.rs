//! The processes of the bench: how they are started, and what they report.

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    process::{PaxosProcessSpec, RouterLine, RouterWork},
    replica::RouterReport,
};
use crate::bench::child::Child;

pub(super) const ROUTERS: u64 = 3;
/// Time within which a process must print its next line, and a condition must become true.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a process with the role `spec`.
pub(super) fn start(name: String, spec: &PaxosProcessSpec) -> Result<Child> {
    Child::start(name, "paxos-process", spec)
}

/// Returns the router's report. Passes earlier acknowledgements to `acknowledged`.
pub(super) fn report(
    router: &mut Child,
    mut acknowledged: impl FnMut(u64),
) -> Result<(RouterReport, RouterWork)> {
    router.send_line("report")?;
    loop {
        match serde_json::from_str(&router.line_within(PATIENCE)?)? {
            RouterLine::Acknowledged(number) => acknowledged(number),
            RouterLine::Report(report, work) => return Ok((*report, work)),
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
