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
//! [`connect`] makes a client, and [`Node`] any process of a cluster; there is no other way in. Every [`Error`] says what may
//! have happened.
//!
//! | module | promise |
//! |---|---|
//! | [`node`] | a process in a cluster, over its lives |
//! | [`process`] | one of its lives: a protocol on real threads, its engine, its end |
//! | [`cluster`] | the tables of a cluster, as SQL asks for them |
//! | [`maps`] | routers and cells of maps whose operations say how many replicas they wait for |
//! | [`crew`] | threads that look at a table together |
//! | [`group`] | process groups: an object with a copy in each of several programs |
//! | [`service`] | replicated services that need not be deterministic |

pub mod cluster;
pub mod crew;
mod db;
mod error;
pub mod group;
mod local;
pub mod maps;
pub mod node;
mod param;
pub mod process;
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

use std::pin::Pin;

pub use self::{
    db::{Db, Execute, Query, Reader, RowStream, Rows, Session, Transaction},
    error::{Error, Rejection, RequestName},
    local::{Local, LocalBuilder},
    node::Node,
    param::{Column, FromValue, Param, Place, Row, Value},
    wait::Wait,
};
pub use quorate_protocol::{DomainId, Fate, ProcessId, RequestId, Strength, Terms};

/// Something that is under way, for any executor.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Connects to a cluster as a client, by the addresses of some of its routers (`host:port`).
///
/// ```no_run
/// # async fn run() -> Result<(), quorate::Error> {
/// let db = quorate::connect(["127.0.0.1:7400", "127.0.0.1:7401"]).await?;
/// # Ok(())
/// # }
/// ```
///
/// The client is a process of its own in the cluster, on threads of this program: what it asks goes straight to the storage
/// processes. It is ready when the cluster has taken it in, and fails if that takes longer than 10 s. [`Node::builder`] sets
/// up more.
pub fn connect<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Pending<'static, Db> {
    let starting = Node::builder().routers(addresses).start();
    Box::pin(async move {
        let node = starting.await?;
        Ok(node.db().expect("a client has tables"))
    })
}
