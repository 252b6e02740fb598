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
    /// Returns the figure's id, `SOURCE/FIGURE`.
    fn id(&self) -> &'static str;
    /// Returns the figure's title.
    fn title(&self) -> &'static str;
    /// Returns the figure's section in the source.
    fn section(&self) -> &'static str;
    /// Returns the method, and the differences from the source's.
    fn method(&self) -> &'static str;
    /// Returns the source's claims.
    fn claims(&self) -> &'static [Claim];
    /// Runs the experiment once.
    fn run(&self, setting: &Setting) -> Result<Record>;
    /// Whether the experiment can run on this store; the error gives the reason if not.
    fn takes(&self, running: &Running) -> Result<(), &'static str> {
        match running.store {
            None => Ok(()),
            Some(_) => {
                Err("this figure runs only on processes that the lab starts itself; leave out --store")
            }
        }
    }
    /// Returns the drawings.
    fn panels(&self) -> &'static [Panel];
}

/// A drawing of a figure.
pub struct Panel {
    /// The prefix, before a slash, of the series in [`Record::series`] that are drawn; all series if empty.
    pub of: &'static str,
    /// The label of the first axis.
    pub across: &'static str,
    /// The label of the axis of values.
    pub up: &'static str,
    /// The form of the drawing.
    pub form: Form,
}

/// The form in which series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line for each series, with errors where the record has them.
    Curves,
    /// A box for each series, on a logarithmic scale.
    Boxes,
}

impl Panel {
    /// Returns a panel that draws all series as lines.
    const fn curves(across: &'static str, up: &'static str) -> Panel {
        Panel { of: "", across, up, form: Form::Curves }
    }
}

/// All figures.
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

/// Returns the figure with this id, or all figures of this source.
pub fn named(id: &str) -> Vec<&'static dyn Figure> {
    let is_meant =
        |figure: &&&dyn Figure| figure.id() == id || figure.id().split_once('/').is_some_and(|it| it.0 == id);
    ALL.iter().filter(is_meant).copied().collect()
}
