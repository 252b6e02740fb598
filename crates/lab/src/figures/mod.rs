//! The experiments: one file a figure.

mod router_failures;

use anyhow::Result;

use crate::{Setting, claim::Claim, record::Record};

/// An experiment.
pub trait Figure: Sync {
    /// Its name, `SOURCE/FIGURE`.
    fn id(&self) -> &'static str;
    /// What it shows.
    fn title(&self) -> &'static str;
    /// Where the source has it.
    fn section(&self) -> &'static str;
    /// What is done, and what differs from the source.
    fn method(&self) -> &'static str;
    /// What the source says of it.
    fn claims(&self) -> &'static [Claim];
    /// Runs it once.
    fn run(&self, setting: &Setting) -> Result<Record>;
    /// The names of the axes: the first, and that of the curves.
    fn axes(&self) -> (&'static str, &'static str);
}

/// All of them.
pub const ALL: &[&dyn Figure] = &[&router_failures::RouterFailures];

/// The figure of this name.
pub fn named(id: &str) -> Option<&'static dyn Figure> {
    ALL.iter().copied().find(|figure| figure.id() == id)
}
