//! The doors: SQL over the PostgreSQL protocol, maps over the Redis protocol, metrics and health over HTTP.
//!
//! A statement's way: [`pg`] reads messages and writes results; `quorate_sql` keeps what a connection has set, prepared
//! and begun, binds text to operations and merges what ranges answer; a backend, a cluster or
//! [`LocalBackend`](quorate_sql::local::LocalBackend), performs them. Only [`pg`] knows the PostgreSQL protocol.
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
