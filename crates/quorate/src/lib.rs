//! The library: processes of a cluster and its clients, in a program of one's own.
//!
//! | module | promise |
//! |---|---|
//! | [`process`] | a process of tables on real threads: its protocol, its engine, its end |
//! | [`cluster`] | the tables of a cluster, as SQL asks for them |
//! | [`crew`] | threads that look at a table together |

pub mod cluster;
pub mod crew;
pub mod process;
mod withdrawals;
