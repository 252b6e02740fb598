//! Tests of the table crate through its public interface.

mod aggregates;
mod alter;
mod batches;
mod bounds;
mod engine;
mod explain;
mod keeping;
mod lists;
mod memory;
mod postgres;
mod ring;
mod saved;
mod scan;
mod sqlite;
mod transactions;
mod twin;
mod values;
mod wire;
mod withdrawal;
mod words;
