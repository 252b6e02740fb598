//! The experiments: one file a figure.

mod router_failures;
mod service_calls;
mod service_distances;
mod service_transactions;

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
pub const ALL: &[&dyn Figure] = &[
    &router_failures::RouterFailures,
    &service_calls::FewClients,
    &service_calls::ManyClients,
    &service_distances::Princeton,
    &service_distances::Wide,
    &service_transactions::Responses,
    &service_transactions::Rates,
];

/// The figure of this name, or all that are here of a source.
pub fn named(id: &str) -> Vec<&'static dyn Figure> {
    let is_meant =
        |figure: &&&dyn Figure| figure.id() == id || figure.id().split_once('/').is_some_and(|it| it.0 == id);
    ALL.iter().filter(is_meant).copied().collect()
}
