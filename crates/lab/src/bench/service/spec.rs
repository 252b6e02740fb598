//! The [`ServiceProcessSpec`] of a process says which part it plays in the bench.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// The role of a process in the bench.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum ServiceProcessSpec {
    /// A host with a replica of each service.
    Host {
        domain: String,
        /// The wanted number of replicas.
        replicas: u8,
        /// Whether a write is executed only when the preceding write is chosen (003 §VI.A.2).
        one_at_a_time: bool,
        /// The addresses of other hosts; the first host has none, and founds the services.
        seeds: Vec<String>,
        /// The directory on disk, if the host has one.
        directory: Option<PathBuf>,
        /// Whether the host has an HTTP door, and a service for it.
        http: bool,
    },
    Client(ClientSpec),
}

/// The calls of a client.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ClientSpec {
    pub(super) domain: String,
    /// The addresses of the hosts, or of their HTTP doors.
    pub(super) hosts: Vec<String>,
    pub(super) work: ServiceWork,
    /// The number of the client's first call.
    pub(super) first: u64,
    pub(super) bytes: usize,
    pub(super) in_flight: usize,
    /// Number of calls that are sent and awaited together.
    pub(super) together: usize,
    pub(super) seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum ServiceWork {
    EchoWrites,
    /// The client writes to the echo service until the bench ends the client. With `at_half`, the client
    /// writes at full rate for one second, and then at half of the rate that it reached.
    EchoWritesOn {
        at_half: bool,
    },
    /// Writes over HTTP.
    HttpWrites,
    StoreWrites,
    StoreReads,
    Transactions(Transact),
}

/// The transactions of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Transact {
    pub(super) requests: usize,
    /// Number of requests that write, unless all requests write.
    pub(super) writes: usize,
    pub(super) mode: Mode,
}

impl Transact {
    /// Returns the number of changes that a transaction makes.
    pub(super) fn changes(self) -> u64 {
        let Transact { requests, writes, mode } = self;
        (match mode {
            Mode::Optimised => writes,
            Mode::ReadWrite => writes + 1,
            Mode::WriteOnly => requests + 1,
        }) as u64
    }
}

/// The coordination of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Mode {
    /// The replicas agree on the commit alone.
    Optimised,
    /// The replicas agree on each request by itself, and on the commit as on one more write.
    ReadWrite,
    /// As in `ReadWrite`, but all requests are writes.
    WriteOnly,
}

pub(super) const WARM_UP: Duration = Duration::from_secs(1);
