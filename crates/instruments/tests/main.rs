//! Tests of the instruments as a user runs them.

mod check;
mod command;
mod durable;
