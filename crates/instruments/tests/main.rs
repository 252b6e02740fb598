//! The instruments as a user meets them.

mod check;
mod command;
mod durable;
