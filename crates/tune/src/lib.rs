//! What clients of a quorum store get at each setting of the dial, and a controller that holds an agreement.
//!
//! **Promise.** Clients read and write any [`Store`](quorate::maps::Store) at dialled levels and delays ([`Dials`]); what they got is
//! measured: latencies free of coordinated omission, and how consistent their recorded history is. A [`Controller`] turns the
//! dials until an [`Agreement`] on both is kept, and says so if none of the settings keeps it.
//!
//! **Source.** 004: continuous partial quorums and artificial delays (§II.A), the proportion of inconsistent operations (§II.B), the
//! workload (§II.D). Its future work (§V), choosing the settings automatically, is [`Controller`] and [`Heat`].
//!
//! ```text
//!   Workload ─ what is due ─▶ Load: clients ─▶ Dialled ─ level, delay ─▶ Store
//!                               │ tapes           ▲ dials
//!                               ▼                 │
//!                             Judge ─ Window ─▶ Controller ◀─ Agreement
//!                               └ latencies ─▶ Model ┘ predictions
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`dial`] | levels chosen for each operation, and delays |
//! | [`heat`] | which keys are hot |
//! | [`keys`], [`workload`] | which key is next, and what is done to it |
//! | [`load`] | clients that do what is due and record it |
//! | [`figures`] | what one setting gave |
//! | [`window`] | what clients get, judged while they work |
//! | [`last_minute`] | the same of clients of cells, from what the cells remember |
//! | [`agreement`] | what is agreed on |
//! | [`model`] | what clients would get at a setting, by Monte Carlo on live latencies |
//! | [`controller`] | which setting keeps it |
//! | [`mod@hold`] | all of it together, on a store that runs |

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
    agreement::{Agreement, AgreementError, Line, Measure, Standing},
    controller::{Controller, Ends, Phase, Setting, Tried},
    dial::{Choice, Dial, Dialled, Dials, Served},
    figures::Figures,
    heat::Heat,
    hold::{Compared, Round, compare, hold},
    keys::Distribution,
    last_minute::LastMinute,
    load::{Connect, Load, LoadError, Service, Sounding, Tape},
    model::Model,
    window::{Estimate, Judge, Window},
    workload::{Others, Workload},
};
