//! The doors: SQL over the PostgreSQL protocol, metrics and health over HTTP.
//!
//! A statement's way: [`pg`] reads messages and writes results; [`session`] keeps what a connection has set, prepared
//! and begun; [`sql`] binds text to the operations of `quorate_table`; a [`backend`] — a cluster, or [`local`] —
//! performs them; [`finish`] merges what its ranges answer. [`catalog`] answers for the relations that describe the
//! tables. Only this crate knows SQL text, and only [`pg`] knows the protocol.
//!
//! ```no_run
//! # async fn run() -> std::io::Result<()> {
//! use std::sync::Arc;
//! use quorate_server::{local::LocalBackend, pg};
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:5466").await?;
//! let server = pg::Server::new(Arc::new(LocalBackend::new()));
//! server.serve(listener, std::future::pending()).await;
//! # Ok(())
//! # }
//! ```

pub mod array;
pub mod backend;
pub mod cache;
pub mod catalog;
pub mod cluster;
pub mod copy;
pub mod error;
pub mod fault;
pub mod finish;
pub mod http;
pub mod local;
pub mod metrics;
pub mod pg;
pub mod session;
pub mod sql;
pub mod types;

/// The PostgreSQL version whose answers are given.
pub const POSTGRES_VERSION: &str = "15.0";

/// The same as a number.
pub const POSTGRES_VERSION_NUMBER: &str = "150000";

/// What `version()` says.
pub fn version() -> String {
    format!("PostgreSQL {POSTGRES_VERSION} (Quorate {})", env!("CARGO_PKG_VERSION"))
}
