//! The steps that all kinds of processes share: they listen, and they wait for a reason to stop.

use std::time::Duration;

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, select};
use quorate::process::End;
use quorate_protocol::Role;
use tokio::net::TcpListener;
use tracing::{error, warn};

use crate::{config::NodeConfig, lifeline::StopRequest};

/// Longest time that running statements may take when a process leaves.
pub(super) const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

pub(super) async fn bind(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// Waits for a reason to stop: a request, or the end of one of the members.
pub(super) fn wait(
    config: &NodeConfig,
    requests: &Receiver<StopRequest>,
    ended: &Receiver<End>,
    beside: Option<&Receiver<End>>,
) -> Result<StopRequest, End> {
    let keeps = matches!(config.role, Role::Router | Role::Storage | Role::Cell);
    let never = crossbeam_channel::never();
    let end = loop {
        select! {
            recv(requests) -> request => match request {
                Ok(StopRequest::Restart) if keeps && !config.durable => {
                    warn!("this process ignores the signal to restart: it has no disk and would lose its data");
                }
                request => return Ok(request.unwrap_or(StopRequest::Stop)),
            },
            recv(ended) -> end => break end,
            recv(beside.unwrap_or(&never)) -> end => break end,
        }
    };
    let end = end.unwrap_or(End::Broken(String::from("the protocol thread has ended")));
    error!(?end, "this process cannot go on, and ends");
    Err(end)
}
