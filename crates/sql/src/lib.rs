//! SQL on tables, without sockets: parses, binds and executes statements, and merges results.
//!
//! A statement passes these modules. [`session`] keeps a client's settings, prepared statements and open
//! block. [`statement`] binds text to the operations of `quorate_table`. A [`backend`] executes the
//! operations: a cluster or [`local`]. [`finish`] merges the answers of the ranges, and [`encode`] writes
//! the values. [`catalog`] answers queries of the relations that describe the tables, [`sequence`] gives
//! numbers, and [`index`] records indexes. Only this crate interprets SQL text. It knows no client
//! protocol: the doors and the library do.
//!
//! ```
//! use std::sync::Arc;
//! use quorate_sql::{cache::Cache, local::LocalBackend, session::{Session, StatementOutcome}};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> quorate_sql::error::Result<()> {
//! let cache = Arc::new(Cache::default());
//! let mut session = Session::new(Arc::new(LocalBackend::new()), cache, "me".into(), "quorate".into(), 1);
//! let create = session.prepare("create table t (id int primary key)", Vec::new())?;
//! let StatementOutcome::Done(tag) = session.execute(&create, &[]).await? else { unreachable!() };
//! assert_eq!(tag, "CREATE TABLE");
//! # Ok(())
//! # }
//! ```

pub mod array;
pub mod backend;
pub mod budget;
pub mod cache;
pub mod catalog;
pub mod copy;
pub mod encode;
pub mod error;
pub mod fault;
pub mod finish;
pub mod index;
pub mod local;
pub mod locks;
pub mod name;
pub mod sequence;
pub mod session;
pub mod statement;
pub mod types;

/// The PostgreSQL version that this SQL follows.
pub const POSTGRES_VERSION: &str = "15.0";

/// The PostgreSQL version as a number.
pub const POSTGRES_VERSION_NUMBER: &str = "150000";

/// Returns the answer of `version()`.
pub fn version() -> String {
    format!("PostgreSQL {POSTGRES_VERSION} (Quorate {})", env!("CARGO_PKG_VERSION"))
}
