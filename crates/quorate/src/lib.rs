//! The library: a cluster's tables for a user's own program, and processes of a cluster.
//!
//! ```
//! # use quorate::Wait;
//! # async fn run() -> Result<(), quorate::Error> {
//! use quorate::Strength;
//!
//! let cluster = quorate::Local::start().await?; // routers and storage in this process, for tests
//! let db = quorate::connect(cluster.addresses()).await?; // or the addresses of a real cluster's routers
//! db.execute("create table t (id int primary key, v text)").await?;
//! db.execute("insert into t values ($1, $2)").bind(1).bind("one").await?;
//! let rows = db.read(Strength::Snapshot).query("select * from t").await?;
//! # let rows: Vec<_> = rows.collect();
//! # assert!(rows.len() <= 1);
//! # Ok(())
//! # }
//! # run().wait().unwrap();
//! ```
//!
//! Futures run under any executor: threads of this crate wake them, and nothing needs a runtime. Without an
//! executor, [`Wait::wait`] blocks until a future or a request has its result.
//!
//! [`connect`] makes a client. A [`Node`] joins groups and hosts services in addition. There is no other
//! entry. Every [`Error`] says what may have happened.
//!
//! | module | promise |
//! |---|---|
//! | [`node`] | a program's place among others, and the processes that it starts |
//! | [`process`] | one life of a node: a protocol on real threads, its engine, its end |
//! | [`backup`] | all rows of tables as of one position, saved to a file and loaded back |
//! | [`cluster`] | the tables of a cluster, as SQL asks for them |
//! | [`maps`] | cells of maps whose operations say how many replicas they wait for |
//! | [`scan_threads`] | threads that scan a table together |
//! | [`group`] | process groups: an object with a copy in each of several programs |
//! | [`service`] | replicated services that need not be deterministic |
//! | [`web`] | the clients that an HTTP door admits, and the number of its connections |

mod address;
pub mod backup;
pub mod cluster;
mod db;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod group;
mod local;
mod lock;
pub mod maps;
pub mod node;
mod param;
mod pending;
pub mod process;
pub mod scan_threads;
mod seek;
pub mod service;
mod timer;
mod wait;
pub mod web;

/// The guide: its examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Guide;

/// The guide to services: its examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/services.md")]
struct ServicesGuide;

/// The guide to process groups: its examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/groups.md")]
struct GroupsGuide;

pub use self::{
    db::{Db, Execute, Query, Reader, RowStream, Rows, Session, Transaction},
    error::{Error, Name, Rejection, RequestName},
    local::{Local, LocalBuilder},
    node::Node,
    param::{Column, FromValue, Param, Place, Row, Value},
    pending::Pending,
    wait::Wait,
};
pub use quorate_protocol::{DomainId, Fate, ProcessId, RequestId, Role, Strength, Terms};

/// Connects as a client to the tables of a cluster, given addresses of some of its routers (`host:port`), or
/// to services, given addresses of some of their hosts.
///
/// ```no_run
/// # async fn run() -> Result<(), quorate::Error> {
/// let db = quorate::connect(["127.0.0.1:7400", "127.0.0.1:7401"]).await?;
/// db.execute("create table t (id int primary key)").await?;
/// # Ok(())
/// # }
/// ```
///
/// The client of tables is a process of its own in the cluster, on threads of this program. It sends its
/// requests straight to the storage processes. The output is ready when the cluster has admitted the client,
/// and fails after 10 s. A client of service hosts has no tables, but [stubs](Db::service). [`Node::builder`]
/// has more settings, and makes clients of both.
pub fn connect<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Pending<'static, Db> {
    let addresses: Vec<String> = addresses.into_iter().map(Into::into).collect();
    let starting = Node::builder().routers(addresses.clone()).seeds(addresses).start();
    Box::pin(async move { starting.await?.client().await })
}
