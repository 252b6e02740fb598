//! How a process is told to stop, and how it tells that it listens.
//!
//! A supervised process holds the reading end of a pipe as its standard input. The pipe closes when the supervisor ends,
//! however it ends, so that no orphan survives it. SIGTERM and Ctrl-C ask politely: drain, leave, exit 0; asked twice,
//! the process ends at once. SIGUSR2 has a process of `quorate node` restart in its place.

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

/// The addresses a process listens on, with the ports that the system chose.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Bound {
    /// For other processes.
    pub(crate) listen: String,
    /// For `/metrics`, `/health` and `/status`.
    pub(crate) http: String,
    /// For SQL clients; gateways, and storage processes that are gateways as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sql: Option<String>,
    /// For Redis clients; cells only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) redis: Option<String>,
}

impl Bound {
    /// Says so on standard output, one line of JSON, to whoever started this process. Call once, when all sockets listen. Nobody has to
    /// listen: one that is restarted in its place says it again to whoever is still there.
    pub(crate) fn announce(&self) -> Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        if let Err(error) = out.write_all(&line).and_then(|()| out.flush()) {
            info!(%error, "nobody reads where it listens");
        }
        Ok(())
    }
}

/// What a process may be asked by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// End.
    Stop,
    /// End, and begin anew in the same place.
    Restart,
}

/// Yields one message when the process is asked to stop.
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
    watch_supervisor(supervised)?;
    Ok(requests)
}

/// Yields what the process is asked; nothing after it was asked to stop.
pub(crate) fn requests(supervised: bool) -> Result<Receiver<Request>> {
    let (asked, requests) = unbounded();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR2])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stopping = false;
        for signal in signals.forever() {
            if signal == SIGUSR2 {
                let _ = asked.send(Request::Restart);
            } else if std::mem::replace(&mut stopping, true) {
                end_at_once();
            } else {
                let _ = asked.send(Request::Stop);
            }
        }
    })?;
    watch_supervisor(supervised)?;
    Ok(requests)
}

fn end_at_once() -> ! {
    tracing::warn!("asked to stop a second time: ending at once");
    process::exit(1);
}

/// Ends with the supervisor, if there is one.
fn watch_supervisor(supervised: bool) -> Result<()> {
    if supervised {
        thread::Builder::new().name("lifeline".into()).spawn(|| {
            // Nobody writes into the pipe; whatever ends the read, the supervisor is gone.
            let _ = io::stdin().lock().read_to_end(&mut Vec::new());
            tracing::info!("the supervisor is gone: ending");
            process::exit(0);
        })?;
    }
    Ok(())
}
