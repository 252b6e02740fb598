//! Rules of the house that no compiler checks.
//!
//! The crate stands outside the floors: nobody imports it and it imports nobody. Its one test reads the workspace as
//! Cargo sees it and lists every broken rule at once. A rule is a function from what was read to *findings*, sentences
//! that say what is wrong and what to do, so that each rule is itself tested on a workspace that breaks it.
//!
//! | module | rule |
//! |---|---|
//! | [`floors`] | a crate imports only from lower floors |
//! | [`lints`] | pure crates carry the purity rules; `unsafe` only where an argument stands beside it |
//! | [`origin`] | dependencies come from the registry, under licences we allow |
//! | [`stage`] | a simulated system has no faults, timers, healing or routers of its own |
//! | [`texts`] | the map names every crate, links lead somewhere, no file names a place of one machine |

pub mod floors;
pub mod lints;
pub mod origin;
pub mod stage;
pub mod texts;
mod workspace;

pub use workspace::{Dependency, Package, Workspace};

/// What is wrong, as sentences for a person.
pub type Findings = Vec<String>;
