//! Tests of the table crate through its public interface.

mod ring;
mod values;
