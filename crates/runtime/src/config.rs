//! How a reactor is set up.

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

/// Who a process is and where it listens.
#[derive(Clone, Debug)]
pub struct Config {
    /// The domain. A process that belongs to none of this one's domains is refused.
    pub domain: DomainId,
    /// Other domains that it belongs to.
    pub others: Vec<DomainId>,
    /// The process.
    pub me: ProcessId,
    /// Where to listen; port 0 lets the system choose.
    pub listen: Vec<SocketAddr>,
    /// Sockets that listen already, for who has to know the port before the reactor starts.
    pub listening: Vec<Arc<TcpListener>>,
    /// What hellos tell as our address; `None`: the first listening address, which must not be unspecified then.
    pub advertise: Option<String>,
    /// The protocol versions that it speaks, a part of those of this build.
    pub versions: RangeInclusive<u16>,
    /// Bytes of a datagram at most, one of [`DATAGRAM_BYTES`], if it has a socket for them, for a protocol that casts. Without one, casts go over links.
    pub datagrams: Option<usize>,
    /// Whether addresses other than loopback may be listened on. Links are neither encrypted nor authenticated.
    pub insecure: bool,
    /// What is bounded.
    pub limits: Limits,
    /// Where the counters are registered.
    pub metrics: Metrics,
}

impl Config {
    /// A process that listens on these addresses, with the usual limits.
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

/// Bytes of the longest datagram, unless it is said to be shorter.
pub const DATAGRAM_BYTES_MAX: usize = CAST_BYTES_MAX + DATAGRAM_HEAD_BYTES;
/// A datagram may be said to have so many bytes at most.
pub const DATAGRAM_BYTES: RangeInclusive<usize> = 512..=DATAGRAM_BYTES_MAX;
/// Of these so many may be in front of a cast: the token, and what hosts put around it.
const DATAGRAM_HEAD_BYTES: usize = 64;

/// Bytes of the longest cast that such a datagram takes.
pub fn cast_bytes(datagram_bytes: usize) -> usize {
    datagram_bytes - DATAGRAM_HEAD_BYTES
}

/// What is bounded, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands waiting for the protocol thread; who sends more waits.
    pub commands_max: usize,
    /// Commands taken in one turn of the loop.
    pub commands_per_turn: usize,
    /// Bytes queued for a peer that does not read; beyond, its link is broken.
    pub queue_bytes_max: usize,
    /// Bytes of the longest frame taken from a peer.
    pub frame_bytes_max: usize,
    /// Connections, beyond which no more are accepted.
    pub connections_max: usize,
    /// Accepted connections without a link, beyond which no more are accepted.
    pub unsettled_max: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a peer may take to say who it is.
    pub hello_timeout: Duration,
    /// How long what was written may stay unacknowledged before the link is broken, and how long a link may go without
    /// a sign of the other end's system, which is asked for one when there is nothing to write. Without this bound a link
    /// outlives a cut of the network by the system's retransmission pauses, which grow to minutes, or for ever.
    pub unacknowledged_timeout: Duration,
    /// The wait before the first new attempt to connect; it doubles.
    pub backoff_min: Duration,
    /// The longest wait between attempts to connect.
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

/// Why a reactor did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Others than this machine could reach the address.
    #[error(
        "refused to listen on {0}: it is no loopback address, and links are neither encrypted nor authenticated \
         (insecure mode allows it)"
    )]
    Insecure(SocketAddr),
    /// The address cannot be listened on, for example because another process does.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// No other process could connect to the address that it would be told.
    #[error(
        "{0} stands for every address of this machine, and other processes cannot connect to it: say under which address \
         they reach this one (advertise)"
    )]
    Unspecified(String),
    /// The address told in hellos is over the limit.
    #[error("the advertised address is longer than {limit} bytes")]
    Advertise {
        /// The limit.
        limit: usize,
    },
    /// It would belong to too many domains.
    #[error("a process belongs to {limit} domains at most")]
    Domains {
        /// The limit.
        limit: usize,
    },
    /// The system gave no poll, thread, or other thing needed.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Whether an address, `IP:port`, stands for all of a machine: one to listen at, and none to connect to.
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
