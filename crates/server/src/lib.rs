//! The doors: SQL over the PostgreSQL protocol, metrics and health over HTTP.
