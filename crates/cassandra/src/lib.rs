//! Apache Cassandra as a store of registers, with a level for each read and write.
//!
//! **Promise.** A [`TableClient`] is a [`Store`](quorate::maps::Store) over a table of a Cassandra cluster.
//! So programs that measure or dial Quorate's own maps can do the same to Cassandra. Each operation is one
//! request and is never repeated. Its answer is the cluster's. A write with an unknown outcome fails as
//! [`MaybeApplied`](quorate::maps::Failure::MaybeApplied).
//!
//! **Source.** 004 measured Cassandra (§II.C, §III). Levels are Cassandra's consistency levels of the same
//! names.
//!
//! **Order of writes.** Cassandra keeps the write with the highest timestamp. By default the client assigns
//! timestamps, from one generator for all clients of a [`Cluster`]. A write that begins after another was
//! answered thus has a higher timestamp. The clocks of coordinators ([`Timestamps::Server`]) tick in
//! milliseconds. If two coordinators write within a millisecond, the later write may lose at any level.
//!
//! **Promise of quorums.** A register is atomic for the clients of one cluster if they read and write at
//! [`Level::Quorum`](quorate::maps::Level::Quorum), with timestamps from the client and [`Repair::Blocking`]
//! (Cassandra's default). With [`Repair::None`] it is regular.
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
//! | module | subject |
//! |---|---|
//! | [`options`] | the address of a cluster, and options |
//! | [`cluster`] | a connected cluster, its keyspace and tables |
//! | [`client`] | reads and writes, and their failures |

pub mod client;
pub mod cluster;
mod connections;
pub mod options;

pub use self::{
    client::TableClient,
    cluster::{Cluster, ClusterError, Repair, Table},
    options::{Coordinators, Options, OptionsError, Timestamps},
};
