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
//! Futures run under any executor, because threads of this crate wake them. Without an executor,
//! [`Wait::wait`] blocks until a future or a request has its result.
//!
//! **Features** of the crate choose what a program compiles: `tables`, `groups`, `services` and `maps`, all
//! on by default. Without these features a [`Node`] can only be a router or a super.
//!
//! [`connect`] makes a client. A [`Node`] is also a client, and can join groups and host services. A program
//! needs no other entry point. Every [`Error`] says what may have happened.
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
#[cfg(feature = "tables")]
pub mod backup;
#[cfg(feature = "tables")]
pub mod cluster;
#[cfg(feature = "tables")]
mod connect;
#[cfg(feature = "tables")]
mod db;
mod end;
mod error;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "groups")]
pub mod group;
#[cfg(feature = "tables")]
mod local;
mod lock;
#[cfg(feature = "maps")]
pub mod maps;
pub mod node;
#[cfg(feature = "tables")]
mod param;
mod pending;
pub mod process;
#[cfg(feature = "tables")]
pub mod scan_threads;
mod seek;
#[cfg(feature = "services")]
pub mod service;
mod shell;
mod timer;
mod wait;
mod waiters;
#[cfg(feature = "services")]
pub mod web;

/// The guide. Its examples run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Guide;

/// The guide to services. Its examples run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/services.md")]
struct ServicesGuide;

/// The guide to process groups. Its examples run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/groups.md")]
struct GroupsGuide;

#[cfg(feature = "tables")]
pub use self::{
    connect::connect,
    db::{Db, Execute, Query, Reader, RowStream, Rows, Session, Transaction},
    error::RequestName,
    local::{Local, LocalBuilder},
    param::{Column, FromValue, Param, Place, Row, Value},
};
pub use self::{
    error::{Error, Name, Rejection},
    node::Node,
    pending::Pending,
    wait::Wait,
};
pub use quorate_protocol::{DomainId, Fate, ProcessId, RequestId, Role, Strength, Terms};
