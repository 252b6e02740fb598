//! SQL on tables, without sockets: statements parsed, bound and performed, results merged.
//!
//! A statement's way: [`session`] keeps what a client has set, prepared and begun; [`statement`] binds text to the
//! operations of `quorate_table`; a [`backend`] (a cluster, or [`local`]) performs them; [`finish`] merges what its
//! ranges answer, and [`encode`] writes the values. [`catalog`] answers for the relations that describe the tables.
//! Only this crate knows SQL text, and it knows no protocol: doors and the library do.
//!
//! ```
//! use std::sync::Arc;
//! use quorate_sql::{cache::Cache, local::LocalBackend, session::{Outcome, Session}};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> quorate_sql::error::Result<()> {
//! let cache = Arc::new(Cache::default());
//! let mut session = Session::new(Arc::new(LocalBackend::new()), cache, "me".into(), "quorate".into(), 1);
//! let create = session.prepare("create table t (id int primary key)", Vec::new())?;
//! let Outcome::Done(tag) = session.execute(&create, &[]).await? else { unreachable!() };
//! assert_eq!(tag, "CREATE TABLE");
//! # Ok(())
//! # }
//! ```

pub mod array;
pub mod backend;
pub mod cache;
pub mod catalog;
pub mod copy;
pub mod encode;
pub mod error;
pub mod fault;
pub mod finish;
pub mod local;
pub mod session;
pub mod statement;
pub mod types;

/// The PostgreSQL version whose answers are given.
pub const POSTGRES_VERSION: &str = "15.0";

/// The same as a number.
pub const POSTGRES_VERSION_NUMBER: &str = "150000";

/// What `version()` says.
pub fn version() -> String {
    format!("PostgreSQL {POSTGRES_VERSION} (Quorate {})", env!("CARGO_PKG_VERSION"))
}
