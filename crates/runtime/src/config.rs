//! The configuration of a reactor.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    ops::RangeInclusive,
    sync::Arc,
};

use quorate_protocol::{
    DomainId, Duration, ProcessId,
    seam::CAST_BYTES_MAX,
    wire::{FRAME_BYTES_MAX, PROTOCOL_VERSIONS},
};
use thiserror::Error;

use crate::metrics::Metrics;

/// The identity, addresses and limits of a process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The domain of the process. A peer that shares none of this process's domains is refused.
    pub domain: DomainId,
    /// Further domains that the process belongs to.
    pub others: Vec<DomainId>,
    /// The id of the process.
    pub me: ProcessId,
    /// The addresses to listen on; with port 0 the system chooses the port.
    pub listen: Vec<SocketAddr>,
    /// Sockets that already listen, for callers that must know the port before the reactor starts.
    pub listening: Vec<Arc<TcpListener>>,
    /// The address that hellos name. `None` stands for the first address that the process listens on, which
    /// must then not be unspecified.
    pub advertise: Option<String>,
    /// The protocol versions that the process speaks, among those of this build.
    pub versions: RangeInclusive<u16>,
    /// Length of the longest datagram in bytes, within [`DATAGRAM_BYTES`]. With `None` the process opens no
    /// socket for datagrams, and its casts go over links.
    pub datagrams: Option<usize>,
    /// Whether the process may listen on addresses other than loopback. Links are neither encrypted nor
    /// authenticated.
    pub insecure: bool,
    /// The limits of the process.
    pub limits: Limits,
    /// The registry of the process's metrics.
    pub metrics: Metrics,
}

impl Config {
    /// Makes the configuration of a process that listens on these addresses, with the usual limits.
    pub fn new(domain: DomainId, me: ProcessId, listen: Vec<SocketAddr>) -> Self {
        Config {
            domain,
            others: Vec::new(),
            me,
            listen,
            listening: Vec::new(),
            advertise: None,
            versions: PROTOCOL_VERSIONS,
            datagrams: None,
            insecure: false,
            limits: Limits::default(),
            metrics: Metrics::default(),
        }
    }
}

/// Largest permitted length of a datagram, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = CAST_BYTES_MAX + DATAGRAM_HEAD_BYTES;
/// Permitted lengths of the longest datagram, in bytes.
pub const DATAGRAM_BYTES: RangeInclusive<usize> = 512..=DATAGRAM_BYTES_MAX;
/// Bytes of a datagram reserved for the token and the headers that hosts put around a cast.
const DATAGRAM_HEAD_BYTES: usize = 64;

/// Returns the length of the longest cast that fits such a datagram, in bytes.
pub fn cast_bytes(datagram_bytes: usize) -> usize {
    datagram_bytes - DATAGRAM_HEAD_BYTES
}

/// The limits within which a process serves commands, peers and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of commands that may wait for the protocol thread. Above the limit, callers wait.
    pub commands_max: usize,
    /// Number of commands that the loop accepts in one turn.
    pub commands_per_turn: usize,
    /// Bytes queued for a peer that does not read. Above the limit its link is broken.
    pub queue_bytes_max: usize,
    /// Length of the longest frame accepted from a peer, in bytes.
    pub frame_bytes_max: usize,
    /// Number of open connections. Above the limit, no more connections are accepted.
    pub connections_max: usize,
    /// Number of accepted connections that are not links yet. Above the limit, no more connections are
    /// accepted.
    pub unsettled_max: usize,
    /// Time for a connection to be made.
    pub connect_timeout: Duration,
    /// Time for a peer to send its hello.
    pub hello_timeout: Duration,
    /// Time for which written bytes may stay unacknowledged before the link is broken. An idle link breaks
    /// after about the same time without an answer to the system's probes. Without this bound a link would
    /// outlive a network cut for minutes, because the system's retransmission pauses grow, or for ever.
    pub unacknowledged_timeout: Duration,
    /// Upper bound of the random wait before the second attempt to connect. The bound doubles with each
    /// attempt.
    pub backoff_min: Duration,
    /// Upper bound at which the doubling of the wait ends.
    pub backoff_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            commands_max: 1 << 16,
            commands_per_turn: 4096,
            queue_bytes_max: 2 * FRAME_BYTES_MAX,
            frame_bytes_max: FRAME_BYTES_MAX + quorate_node::HEADER_BYTES,
            connections_max: 4096,
            unsettled_max: 256,
            connect_timeout: Duration::from_secs(2),
            hello_timeout: Duration::from_secs(3),
            unacknowledged_timeout: Duration::from_secs(10),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_millis(500),
        }
    }
}

/// The reason why a reactor did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Other machines could reach this address, and the configuration does not allow that.
    #[error(
        "refused to listen on {0}: other machines could reach this address, and links are neither encrypted \
         nor authenticated; use a loopback address, or allow other addresses with `insecure`"
    )]
    Insecure(SocketAddr),
    /// The process cannot listen on the address, for example because another process already does.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address on which the process should have listened.
        address: SocketAddr,
        /// The error that the system returned.
        error: io::Error,
    },
    /// The address that hellos would name stands for all addresses, so no other process could connect to it.
    #[error(
        "{0} stands for every address of this machine, so other processes cannot connect to it: set the \
         address under which they reach this process (advertise)"
    )]
    Unspecified(String),
    /// The address that hellos would name is too long.
    #[error("the advertised address is longer than {limit} bytes")]
    Advertise {
        /// The maximum length of an address, in bytes.
        limit: usize,
    },
    /// The configuration names too many domains.
    #[error("the configuration names too many domains: a process belongs to {limit} domains at most")]
    Domains {
        /// The maximum number of domains.
        limit: usize,
    },
    /// The system refused a resource: a poll, a thread, or another one.
    #[error("the system refused a resource that this process needs: {0}")]
    System(#[from] io::Error),
}

/// Whether an address, `IP:port`, stands for all addresses of a machine. A process can listen on such an
/// address, but not connect to it.
pub fn is_unspecified(address: &str) -> bool {
    address.parse().is_ok_and(|address: SocketAddr| address.ip().to_canonical().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_stands_for_all_of_a_machine_is_known() {
        for all in ["0.0.0.0:24701", "[::]:24701", "[::ffff:0.0.0.0]:1"] {
            assert!(is_unspecified(all), "{all}");
        }
        for one in ["127.0.0.1:1", "[::1]:1", "10.0.0.1:0", "storage-3:24701", "0.0.0.0"] {
            assert!(!is_unspecified(one), "{one}");
        }
    }
}
