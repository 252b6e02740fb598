//! Checks rules of this workspace that no compiler checks.
//!
//! The crate stands outside the floors: it imports no other crate of the project, and no other crate imports
//! it. One of its tests reads the workspace from Cargo and lists all broken rules at once. A rule is a
//! function from the workspace to *findings*: sentences that say what is wrong and what to do. So every rule
//! can be tested with a workspace that breaks it.
//!
//! | module | rule |
//! |---|---|
//! | [`bounds`] | everything that can grow has a bound that somebody wrote down |
//! | [`circles`] | the files of a crate form no circle |
//! | [`comments`] | no comment is wider than 110 columns or begins with a relative clause |
//! | [`floors`] | a crate imports only from lower floors |
//! | [`lints`] | pure crates carry the purity rules; `unsafe` needs a written argument |
//! | [`names`] | at most three types share a name |
//! | [`origin`] | dependencies come from the registry, under licences we allow |
//! | [`stage`] | a simulated system has no faults, timers, healing or routers of its own |
//! | [`texts`] | the map names every crate, links lead to files, quotes of the tour are exact, no file names a place on one machine |

pub mod bounds;
pub mod circles;
pub mod comments;
pub mod floors;
pub mod lints;
pub mod names;
pub mod origin;
pub mod stage;
pub mod texts;
mod workspace;

pub use workspace::{Dependency, Package, Workspace};

/// Sentences that say what is wrong and what to do.
pub type Findings = Vec<String>;
