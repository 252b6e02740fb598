//! Recorded operations and how consistent they were.
//!
//! Clients record what they did — which operation, on which key, from when to when, with what answer — and this crate says what
//! that shows: whether the history is *atomic* (linearizable), what proportion of its operations is inconsistent, by how
//! much time (Γ), and which operations show it. It is the measure of 004 (§II.B and appendix), and the judge of
//! everything else here.
//!
//! * [`operation`] is one operation; [`History`] is all of them by key; a [`Recorder`] makes them; [`mod@format`] reads and writes files.
//! * [`check()`] judges. Where every value of a key was written once, *zones* decide and measure in O(n log n); elsewhere a
//!   search for an order decides, and may answer "unknown".
//! * A [`Report`] has the numbers and a [`Witness`] for the worst key.
//!
//! # Conventions
//!
//! * Times are integer nanoseconds. An operation is a closed interval: one that ends at the instant another begins may come after it.
//! * The initial value, "nothing", is a write before everything. Failed operations never happened; a read without an answer says
//!   nothing; an update of unknown outcome may take effect at any time from its start on, or never.
//! * **Γ**: every operation is stretched by γ/2 at *either* end. So Γ of two conflicting values is
//!   `min(s_a − f_b, s_b − f_a)`, always a whole number of nanoseconds.
//! * A read that ended before its write began is inconsistent in itself, by the time between. A read of a value that nobody wrote
//!   (an *orphan*) is inconsistent by no finite time, and counted apart as well.
//! * ε, the clocks' error, bounds how wrong the *difference* of two recorded times may be. Γ is then known to ±ε.
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
//! // Of the four times that decide, W(b)'s start and W(a)'s end are the closest: 2 ns, and the read is 2 ns late.
//! assert_eq!(report.measures.unwrap().gamma_finite, 2);
//! println!("{report}"); // with a drawing of the two zones
//! # Ok::<(), quorate_history::Impossible>(())
//! ```
//!
//! This crate has no clock, thread or random source: a host passes times in and checks keys on its own threads
//! ([`check_key`]). It imports nothing else of Quorate.

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
pub use witness::{Exhibit, Witness, ZoneEvidence};
