//! Tests of the table crate through its public interface.

mod postgres;
mod ring;
mod twin;
mod values;
