//! The shared-scan table engine: typed rows, predicates, and one pass for many operations.
//!
//! Source: 002 §3 (Crescando). One engine holds, for every table, the rows of the ring ranges that its storage
//! process replicates. Operations come as a batch in the total order; each carries its [`Epoch`], the position in
//! that order, and sees exactly the writes before it. The crate is pure: no threads, clocks or sockets; whoever
//! hosts an engine calls it from a thread of its own.

pub mod aggregate;
pub mod calendar;
pub mod cast;
pub mod engine;
pub mod eval;
pub mod expr;
pub mod failure;
pub mod fields;
pub mod function;
pub mod merge;
pub mod numeric;
pub mod operation;
pub mod partition;
pub mod pattern;
pub mod plain;
pub mod schema;
pub mod text;
pub mod value;
