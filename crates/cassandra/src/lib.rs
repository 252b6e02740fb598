//! Apache Cassandra as a store of registers: reads and writes at a level of their own.
//!
//! **Promise.** A [`Client`] is a [`Store`](quorate::maps::Store) over a table of a Cassandra cluster, so programs that
//! measure or dial Quorate's own maps do the same to Cassandra. Each operation is one request, never repeated: its answer is the cluster's,
//! and a write whose end nobody knows is [`MaybeApplied`](quorate::maps::Failure::MaybeApplied).
//!
//! **Source.** 004 measured Cassandra (§II.C, §III). Levels are Cassandra's consistency levels of the same names.
//!
//! **Order of writes.** Cassandra keeps the write with the highest timestamp. By default the client gives it: one generator for all
//! clients of a [`Cluster`], so that a write which begins after another one was answered has a higher timestamp. Timestamps of the coordinators ([`Timestamps::Server`])
//! come from clocks that tick in milliseconds: of two writes by way of two coordinators within a millisecond the
//! later one may lose, whatever its level.
//!
//! **Promise of quorums.** With reads and writes at [`Level::Quorum`](quorate::maps::Level::Quorum), timestamps from the client and
//! [`Repair::Blocking`] (Cassandra's default) a register is atomic for the clients of one cluster. With [`Repair::None`] it is regular.
//!
//! ```no_run
//! use quorate::maps::{Level, Store};
//! use quorate_cassandra::{Cluster, Options, Repair};
//!
//! let options: Options = "cassandra://127.0.0.1:9042/registers".parse()?;
//! let cluster = Cluster::connect(&options)?;
//! cluster.create_keyspace(options.copies)?;
//! cluster.create_table("main", Repair::Blocking)?;
//! let mut client = cluster.table("main")?.client(0);
//! client.write(b"greeting", b"hello", Level::Quorum)?;
//! assert_eq!(client.read(b"greeting", Level::One)?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`options`] | where a cluster is, and how it is spoken to |
//! | [`cluster`] | a connected cluster, its keyspace and tables |
//! | [`client`] | reads and writes, and how they end |

pub mod client;
pub mod cluster;
pub mod options;

pub use self::{
    client::Client,
    cluster::{Cluster, ClusterError, Repair, Table},
    options::{Coordinators, Options, OptionsError, Timestamps},
};
