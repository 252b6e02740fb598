//! Ready-made services, which `quorate service host` hosts and the programs in `examples` call.
//!
//! Each of them is an ordinary [`Service`](super::Service), written as a user would write it. Their requests
//! and replies are public, so that a program can call a service of a running host:
//! `db.service::<ready::Counter>("counter")`. Over HTTP, requests are JSON in the form of `serde`, for
//! example `{"add": 1}` and `"read"`.

pub mod counter;
pub mod key_value;
pub mod lottery;
pub mod matchmaker;
pub mod scheduler;

pub use self::{
    counter::Counter, key_value::KeyValue, lottery::Lottery, matchmaker::Matchmaker, scheduler::Scheduler,
};
