//! The ways in which a process learns that it must stop, and reports that it listens.
//!
//! The standard input of a supervised process is the reading end of a pipe. The pipe closes however the
//! supervisor ends, so no process outlives its supervisor. A supervisor that ends all processes first writes
//! [`END`] into each pipe. Each process then makes its data durable and ends, without leaving the cluster in
//! order, because that would need the other processes. SIGTERM and Ctrl-C stop a process in order: it drains,
//! leaves and exits with 0. A second such signal ends it at once. SIGUSR2 makes a process of `quorate node`
//! restart in place.

use std::{
    io::{self, Read, Write},
    process, thread,
};

use anyhow::Result;
use crossbeam_channel::{Receiver, bounded, unbounded};
use serde::{Deserialize, Serialize};
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGUSR2},
    iterator::Signals,
};
use tracing::info;

/// The addresses on which a process listens, with the ports that the system chose.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct BoundAddresses {
    /// Address for other processes.
    pub(crate) listen: String,
    /// Address for `/metrics`, `/health` and `/status`.
    pub(crate) http: String,
    /// Address for SQL clients. For gateways, and for storage processes that are also gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sql: Option<String>,
    /// Address for Redis clients. For cells only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) redis: Option<String>,
}

impl BoundAddresses {
    /// Prints the addresses on standard output, as one line of JSON, for the program that started this
    /// process. Call this once, when all sockets listen. A process that restarts in place prints them again,
    /// although its reader may be gone.
    pub(crate) fn announce(&self) -> Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        if let Err(error) = out.write_all(&line).and_then(|()| out.flush()) {
            info!(%error, "cannot write the addresses of this process to standard output; the process goes on");
        }
        Ok(())
    }
}

/// A request that a process gets by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// Stop.
    Stop,
    /// Stop together with all other processes of the cluster, without waiting for any of them.
    End,
    /// Stop and restart in place.
    Restart,
}

/// The line by which a supervisor ends all its processes.
pub(crate) const END: &[u8] = b"end\n";

/// Exit code of a process whose directory is an older copy that somebody put back. A supervisor then knows
/// that another start would not help.
pub(crate) const OLDER_COPY: u8 = 4;

/// Returns a channel that gets one message when the process must stop.
pub(crate) fn stop_requests(supervised: bool) -> Result<Receiver<()>> {
    let (asked, requests) = bounded(1);
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut signals = signals.forever();
        signals.next();
        let _ = asked.send(());
        signals.next();
        end_at_once();
    })?;
    watch_supervisor(supervised, || {})?;
    Ok(requests)
}

/// Returns a channel of requests. No request follows a `Stop`.
pub(crate) fn requests(supervised: bool) -> Result<Receiver<StopRequest>> {
    let (asked, requests) = unbounded();
    let end = asked.clone();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR2])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stopping = false;
        for signal in signals.forever() {
            if signal == SIGUSR2 {
                let _ = asked.send(StopRequest::Restart);
            } else if std::mem::replace(&mut stopping, true) {
                end_at_once();
            } else {
                let _ = asked.send(StopRequest::Stop);
            }
        }
    })?;
    watch_supervisor(supervised, move || {
        let _ = end.send(StopRequest::End);
    })?;
    Ok(requests)
}

fn end_at_once() -> ! {
    tracing::warn!("this process was asked to stop a second time, and ends at once");
    process::exit(1);
}

/// Ends this process when its supervisor ends, if it has one. Calls `end` when the supervisor ends all
/// processes.
fn watch_supervisor(supervised: bool, end: impl Fn() + Send + 'static) -> Result<()> {
    if supervised {
        thread::Builder::new().name("lifeline".into()).spawn(move || {
            loop {
                match io::stdin().lock().read(&mut [0; END.len()]) {
                    Ok(1..) => end(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // The supervisor is gone.
                    Ok(0) | Err(_) => break,
                }
            }
            tracing::info!("the supervisor of this process has ended, so this process ends, too");
            process::exit(0);
        })?;
    }
    Ok(())
}
