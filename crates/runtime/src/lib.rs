//! Sockets, clocks and threads that carry a node.
//!
//! Protocols are pure (see `quorate_protocol`); this crate is the world around one. A [`Reactor`] runs a protocol on a
//! thread of its own and links it with its peers over TCP. Nothing here is async: the protocol thread waits for its
//! sockets and its command queue and for nothing else.
//!
//! | module | promise |
//! |---|---|
//! | [`reactor`] | one protocol thread: inputs drained into batches, outputs written together |
//! | `link` | one connection for each pair of processes, made again when it breaks |
//! | `hello` | who speaks on a new connection, or why it is refused |
//! | `frame` | streams cut into frames, payloads shared, writes gathered |
//! | [`worker`] | threads for what would hold the protocol thread up |
//! | [`discover`] | who listens at an address |
//! | [`process`] | a node, its engine and its links as one real process |
//! | [`config`] | who a process is, where it listens, what is bounded |
//! | [`metrics`], [`counters`] | what is counted, for Prometheus |
//! | [`clock`], [`chance`] | the present instant, and random bits |

pub mod chance;
pub mod clock;
pub mod config;
pub mod counters;
pub mod discover;
mod frame;
mod hello;
mod link;
pub mod metrics;
pub mod process;
pub mod reactor;
mod resolver;
pub mod worker;

pub use config::{Config, Limits, StartError};
pub use reactor::{Handle, Host, Reactor};
