//! The library: a cluster's tables in a program of one's own, and processes of a cluster.
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
//! Futures run under any executor: threads of this crate wake them, and nothing needs a runtime. Without an executor,
//! [`Wait::wait`] is the blocking form of whatever can be awaited.
//!
//! [`connect`] makes a client; on a [`Node`] groups are joined and services hosted beside it. There is no other way in. Every
//! [`Error`] says what may have happened.
//!
//! | module | promise |
//! |---|---|
//! | [`node`] | a program's place among others, and the processes that it starts |
//! | [`process`] | one of its lives: a protocol on real threads, its engine, its end |
//! | [`backup`] | all rows of tables as of one position, in a file, and back |
//! | [`cluster`] | the tables of a cluster, as SQL asks for them |
//! | [`maps`] | routers and cells of maps whose operations say how many replicas they wait for |
//! | [`crew`] | threads that look at a table together |
//! | [`group`] | process groups: an object with a copy in each of several programs |
//! | [`service`] | replicated services that need not be deterministic |

pub mod backup;
pub mod cluster;
pub mod crew;
mod db;
mod error;
pub mod group;
mod local;
pub mod maps;
pub mod node;
mod param;
mod pending;
pub mod process;
mod seek;
pub mod service;
mod timer;
mod wait;

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

/// Connects as a client: to the tables of a cluster, by the addresses of some of its routers (`host:port`), or to services, by those of
/// some of their hosts.
///
/// ```no_run
/// # async fn run() -> Result<(), quorate::Error> {
/// let db = quorate::connect(["127.0.0.1:7400", "127.0.0.1:7401"]).await?;
/// db.execute("create table t (id int primary key)").await?;
/// # Ok(())
/// # }
/// ```
///
/// The client of tables is a process of its own in the cluster, on threads of this program: what it asks goes straight to the storage
/// processes. It is ready when the cluster has taken it in, and fails if that takes longer than 10 s. Of hosts of services it has no
/// tables, but [stubs](Db::service). [`Node::builder`] sets up more, and clients of both.
pub fn connect<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Pending<'static, Db> {
    let addresses: Vec<String> = addresses.into_iter().map(Into::into).collect();
    let starting = Node::builder().routers(addresses.clone()).seeds(addresses).start();
    Box::pin(async move { starting.await?.client().await })
}
