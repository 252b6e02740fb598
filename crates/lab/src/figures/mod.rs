//! The experiments: one file a figure.

mod group;
mod group_acceptors;
mod group_large;
mod group_responses;
mod group_stacking;
mod group_strengths;
mod partial;
mod partial_chance;
mod partial_delays;
mod partial_levels;
mod partial_severity;
mod router_failures;
mod service_calls;
mod service_distances;
mod service_transactions;

use anyhow::Result;

pub(crate) use self::partial::FAR;

use crate::{Running, Setting, claim::Claim, record::Record};

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
    /// Whether it can be run on this store; the error says why not.
    fn takes(&self, running: &Running) -> Result<(), &'static str> {
        match running.store {
            None => Ok(()),
            Some(_) => Err("it needs processes that are started for it"),
        }
    }
    /// Its drawings.
    fn panels(&self) -> &'static [Panel];
}

/// A drawing of a figure.
pub struct Panel {
    /// The part of [`Record::series`] that is drawn: the series of which the name begins with this and a stroke; all if it is empty.
    pub of: &'static str,
    /// The name of the first axis.
    pub across: &'static str,
    /// The name of the axis of values.
    pub up: &'static str,
    /// What is drawn.
    pub form: Form,
}

/// How series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line for each, with errors where the record has them.
    Curves,
    /// A box for each, on a scale of logarithms.
    Boxes,
}

impl Panel {
    /// All series as lines.
    const fn curves(across: &'static str, up: &'static str) -> Panel {
        Panel { of: "", across, up, form: Form::Curves }
    }
}

/// All of them.
pub const ALL: &[&dyn Figure] = &[
    &group_stacking::Stacking,
    &group_acceptors::Acceptors,
    &group_strengths::Strengths,
    &group_responses::Responses,
    &group_large::Large,
    &router_failures::RouterFailures,
    &service_calls::FewClients,
    &service_calls::ManyClients,
    &service_distances::Princeton,
    &service_distances::Wide,
    &service_transactions::Responses,
    &service_transactions::Rates,
    &partial_levels::OneSite,
    &partial_chance::OneSite,
    &partial_delays::OneSite,
    &partial_levels::ThreeSites,
    &partial_chance::ThreeSites,
    &partial_delays::ThreeSites,
    &partial_severity::OneSite,
    &partial_severity::ThreeSites,
];

/// The figure of this name, or all that are here of a source.
pub fn named(id: &str) -> Vec<&'static dyn Figure> {
    let is_meant =
        |figure: &&&dyn Figure| figure.id() == id || figure.id().split_once('/').is_some_and(|it| it.0 == id);
    ALL.iter().filter(is_meant).copied().collect()
}
