//! The doors: SQL over the PostgreSQL protocol, maps over the Redis protocol, metrics and health over HTTP.
//!
//! A statement passes three layers. [`pg`] reads messages and writes results, and is the only layer that
//! interprets the PostgreSQL protocol. `quorate_sql` keeps the state of a connection (settings, prepared
//! statements, the open block), binds texts to operations, and merges the answers of ranges. A backend
//! carries the operations out: a cluster or a [`LocalBackend`](quorate_sql::local::LocalBackend).
//!
//! ```no_run
//! # async fn run() -> std::io::Result<()> {
//! use std::sync::Arc;
//! use quorate_server::pg;
//! use quorate_sql::local::LocalBackend;
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:5466").await?;
//! let server = pg::Server::new(Arc::new(LocalBackend::new()));
//! server.serve(listener, std::future::pending()).await;
//! # Ok(())
//! # }
//! ```

pub mod http;
pub mod metrics;
pub mod pg;
pub mod resp;
