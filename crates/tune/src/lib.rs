//! Measures what clients of a quorum store get at each setting of the dial, and controls the dial by an
//! agreement.
//!
//! **Promise.** Clients read and write any [`Store`](quorate::maps::Store) at dialled levels and delays
//! ([`Dials`]). The crate measures their latencies, free of coordinated omission, and the consistency of
//! their recorded history. A [`Controller`] turns the dials until the clients get what an [`Agreement`]
//! demands of both. If no setting keeps the agreement, the controller reports this.
//!
//! **Source.** 004: continuous partial quorums and artificial delays (§II.A), the proportion of inconsistent
//! operations (§II.B), and the workload (§II.D). [`Controller`] and [`Heat`] implement its future work (§V),
//! the automatic choice of settings.
//!
//! ```text
//!   Workload ─ operations due ─▶ Load: clients ─▶ Dialled ─ level, delay ─▶ Store
//!                                   │ tapes           ▲ dials
//!                                   ▼                 │
//!                                 Judge ─ Window ─▶ Controller ◀─ Agreement
//!                                   └ latencies ─▶ Model ┘ predictions
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`dial`] | levels chosen for each operation, and delays |
//! | [`heat`] | detection of hot keys |
//! | [`keys`], [`workload`] | choice of the next key and operation |
//! | [`load`] | clients that do the operations due and record them |
//! | [`figures`] | results of one setting |
//! | [`window`] | latency and consistency, judged while clients work |
//! | [`last_minute`] | the same for clients of cells, from the operations that cells remember |
//! | [`agreement`] | bounds on latency and consistency |
//! | [`model`] | predictions for a setting, by Monte Carlo from live latencies |
//! | [`controller`] | search for a setting that keeps an agreement |
//! | [`mod@hold`] | all of it together, on a running store |

pub mod agreement;
pub mod controller;
pub mod dial;
pub mod figures;
pub mod heat;
pub mod hold;
pub mod keys;
pub mod last_minute;
pub mod load;
pub mod model;
#[cfg(test)]
mod replicas;
mod ways;
pub mod window;
pub mod workload;

pub use self::{
    agreement::{Agreement, AgreementError, Line, LineStatus, Measure},
    controller::{Controller, LevelEnds, Phase, Setting, Tried},
    dial::{Choice, Dial, Dialled, Dials, Served},
    figures::SettingResults,
    heat::Heat,
    hold::{PredictionComparison, WindowResult, compare, hold},
    keys::Distribution,
    last_minute::LastMinute,
    load::{Connect, Load, LoadError, Service, Sounding, Tape},
    model::Model,
    window::{Estimate, Judge, Window},
    workload::{Others, Workload},
};
