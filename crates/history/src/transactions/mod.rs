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
//! under it, every cycle has two anti-dependencies next to each other.
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
//! The nodes of the graph are the transactions that took effect: answered transactions, and transactions of
//! unknown outcome with a write that some answered read returned. An edge means "came before":
//!
//! * **ww**: the latter replaced a version that the former wrote. A list shows the order of its appends. For
//!   registers, the file `registers.rs` says which order is certain.
//! * **wr**: the latter read a version that the former wrote.
//! * **rw**: the latter replaced a version that the former read. If the longest read does not show an
//!   answered append, that append comes after all readers of the longest list.
//! * **session**: one client began the latter after it knew the outcome of the former.
//! * **time**: the former ended before the latter began. A chain of joints, one for each instant at which a
//!   transaction ended, carries this order with three edges per transaction.
//!
//! Tarjan's algorithm finds the components with a cycle in linear time. If there is no such component, the
//! history is strictly serializable, and no further search is needed. Otherwise each kind of cycle is
//! searched for inside the components: the search picks an edge that makes the cycle one of this kind, and
//! finds a shortest path from the edge's end back to its beginning. A budget bounds the search for each kind,
//! so that even a component with all transactions costs only seconds. If the budget is used up, the reported
//! cycle may not be the shortest, and the report may lack kinds that refute no more levels than the reported
//! kinds.
//!
//! # What is not inferred
//!
//! * Predicates: a history of keys does not show phantoms.
//! * The order of two blind writes to a register if no transaction read the register in between.
//! * Facts from a read whose transaction was not answered.
//! * From a read that is no prefix of the longest list, anything beyond the values that the read itself
//!   shows.
//!
//! # Positions
//!
//! A store that orders its writes can report the position at which each transaction took effect.
//! [`PositionReplay`] applies the transactions in the order of their positions and compares every read. It
//! takes linear time and keeps one window of transactions in memory. If transactions have positions, the
//! graph also orders the versions of registers by position.
//!
//! # Differences from Elle
//!
//! Elle accepts a read of a value that nobody wrote until another read contradicts it, and it accepts a
//! transaction's read of its own later write. This judge reports `unwritten-value` and `internal` instead. A
//! user of Elle chooses which orders of a register's versions Elle infers. This judge infers every order, and
//! uses each one only for the levels at which it is certain. This judge adds no session edge from a
//! transaction of unknown outcome.

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
