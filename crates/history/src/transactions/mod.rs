//! Judges which isolation level a recorded history of transactions kept.
//!
//! # Promise
//!
//! A violation that a [`TransactionReport`] names is real: no execution at the refuted level could have given
//! these answers, provided that values are unique and times are right. The reverse does not hold. A level
//! *holds* if no violation of it was found, and clients see only part of what happened.
//!
//! # Sources
//!
//! Anomalies are those of Adya, Liskov and O'Neil, *Generalized Isolation Level Definitions* (2000). The
//! inference from what clients saw is that of Kingsbury and Alvaro, *Elle* (2020): lists whose elements are
//! unique, and registers whose values are unique. Snapshot isolation is judged by Cerone and Gotsman (2016):
//! every cycle has two anti-dependencies next to each other.
//!
//! | level | no anomaly of |
//! |---|---|
//! | read uncommitted | G0, duplicate elements |
//! | read committed | G1a, G1b, G1c, dirty updates, incompatible orders, unwritten values |
//! | snapshot isolation | G-single, G-nonadjacent, lost updates, internal anomalies |
//! | serializable | G2-item |
//! | strict serializable | the same cycles with edges of sessions or of time |
//!
//! # The graph
//!
//! Its nodes are transactions that took effect: those answered, and those of unknown outcome of which some
//! answered read saw a write. Its edges mean "came before":
//!
//! * **ww**: the latter replaced a version that the former wrote. A list shows the order of its appends.
//!   Of registers, the file `registers.rs` says what is certain.
//! * **wr**: the latter read a version that the former wrote.
//! * **rw**: the latter replaced a version that the former read. An answered append that the longest read
//!   does not show comes after all readers of that longest list.
//! * **session**: the client of both began the latter after it knew the outcome of the former.
//! * **time**: the former ended before the latter began. A chain of joints, one for each end, carries this
//!   order with three edges a transaction.
//!
//! Tarjan's algorithm finds the components with a cycle in linear time; without one, the history is strict
//! serializable, and that is all. Otherwise each kind of cycle is searched in the components alone: the edge
//! that makes the kind is chosen, and a shortest path leads back from its end to its beginning. A budget
//! bounds the search for each kind, so that a component of the whole history costs seconds. If it is used
//! up, the cycle that is shown may not be the shortest, and kinds may be missing that refute no more than
//! the kinds found.
//!
//! # What is not inferred
//!
//! * Predicates: a history of keys does not show phantoms.
//! * The order of two blind writes to a register that nobody read in between.
//! * Anything from a read whose transaction was not answered.
//! * From a read that is no prefix of the longest list, only what it shows by itself.
//!
//! # Positions
//!
//! A store that orders its writes can say where each transaction took effect. [`PositionReplay`] applies the
//! transactions in that order and compares every read; it takes linear time and keeps one window of
//! transactions. With positions, the graph orders registers by them, too.
//!
//! # Differences from Elle
//!
//! Elle passes a read of a value that nobody wrote until another read contradicts it, and a read of one's own
//! later write; here these are `unwritten-value` and `internal`. A user tells Elle which orders of a
//! register's versions to infer; the judge infers each order, and uses it for the levels at which it is
//! certain. Nothing follows a transaction of unknown outcome in its session.

mod analysis;
mod atoms;
mod cycles;
mod explanation;
mod graph;
mod history;
mod inference;
mod internal;
mod lists;
mod registers;
mod replay;
mod report;
mod transaction;

pub use analysis::judge;
pub use history::{RefusedTransaction, STEPS_MAX, TransactionHistory};
pub use replay::PositionReplay;
pub use report::{Anomaly, AnomalyReport, IsolationLevel, TransactionReport};
pub use transaction::RecordedTransaction;
