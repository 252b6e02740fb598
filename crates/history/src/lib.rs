//! Judges how consistent a recorded history of operations is.
//!
//! Clients record their operations: the key, the start, the end and the answer of each. From these records
//! this crate computes whether the history is *atomic* (linearizable), which proportion of its operations is
//! inconsistent, by how much time (Γ), and which operations prove it. The measures are those of 004 (§II.B
//! and appendix). All other crates judge their tests and measurements by these measures.
//!
//! * [`operation`] defines one operation, and [`History`] holds all operations by key. A [`Recorder`] records
//!   operations, and [`mod@format`] reads and writes files of operations.
//! * [`check()`] judges. If no value of a key was written twice, *zones* decide and measure in O(n log n).
//!   For all other keys a search looks for an explaining order. The search may answer "unknown".
//! * A [`Report`] holds the numbers, and a [`Witness`] against the worst key.
//! * [`transactions`] judges which isolation level a history of transactions kept.
//!
//! # Conventions
//!
//! * Times are integer nanoseconds. An operation is a closed interval: an operation that ends at the instant
//!   another begins may come after it.
//! * The initial value, "nothing", counts as a write before everything. Failed operations did not happen. A
//!   read without an answer is ignored. An update of unknown outcome may take effect at any time after its
//!   start, or never.
//! * **Γ**: every operation is stretched by γ/2 at *either* end. So Γ of two conflicting values is
//!   `min(s_a − f_b, s_b − f_a)`, always a whole number of nanoseconds.
//! * A read that ended before its write began is inconsistent on its own, by the time between its end and the
//!   start of the write. A read of a value that nobody wrote (an *orphan*) is inconsistent by an infinite
//!   time, and is also counted separately.
//! * ε, the clocks' error, bounds the error of the *difference* of two recorded times. Γ is then known to ±ε.
//!
//! ```
//! use quorate_history::{History, Operation, Verdict, check};
//!
//! let mut history = History::new();
//! history.push(Operation::write(1, "x", "a", 0, 10))?;
//! history.push(Operation::write(2, "x", "b", 12, 20))?;
//! history.push(Operation::read(3, "x", Some("a".into()), 22, 30))?;
//!
//! let report = check(&history);
//! assert_eq!(report.verdict, Verdict::NotAtomic);
//! // Γ = min(s_a − f_b, s_b − f_a) = min(22 − 20, 12 − 10).
//! assert_eq!(report.measures.unwrap().gamma_finite, 2);
//! println!("{report}"); // with a drawing of the two zones
//! # Ok::<(), quorate_history::Impossible>(())
//! ```
//!
//! This crate has no clock, no threads and no random source. A host passes times in and may check keys on its
//! own threads ([`check_key`]). This crate imports nothing else of Quorate.

mod bootstrap;
mod check;
mod decide;
pub mod format;
mod history;
pub mod model;
pub mod operation;
mod optimum;
mod proportion;
mod recorder;
mod report;
pub mod search;
mod session;
mod staleness;
mod stream;
pub mod transactions;
mod witness;
mod zone;

pub use bootstrap::{KeyShare, confidence};
pub use check::{GLANCE_STEPS, KeyCheck, Options, check, check_key, check_with, gammas, inconsistent_values};
pub use history::{History, Impossible, KeyHistory};
pub use operation::{Action, Nanos, Operation, Outcome, Value};
pub use optimum::fewest_operations;
pub use recorder::{Call, Lines, Recorder, Tape};
pub use report::{KeyReport, Measures, Method, Report, Score, Verdict};
pub use session::SessionViolations;
pub use stream::Stream;
pub use witness::{EvidenceOperation, Witness, ZoneEvidence};
