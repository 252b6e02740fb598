//! The experiments: one file a figure.

mod figure;
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

pub use self::figure::{Figure, Form, Panel};
pub(crate) use self::partial::FAR;

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
    &partial_levels::LevelsInOneSite,
    &partial_chance::ChanceInOneSite,
    &partial_delays::DelaysInOneSite,
    &partial_levels::LevelsInThreeSites,
    &partial_chance::ChanceInThreeSites,
    &partial_delays::DelaysInThreeSites,
    &partial_severity::SeverityInOneSite,
    &partial_severity::SeverityInThreeSites,
];

/// Returns the figure with this id, or all figures of this source.
pub fn named(id: &str) -> Vec<&'static dyn Figure> {
    let is_meant =
        |figure: &&&dyn Figure| figure.id() == id || figure.id().split_once('/').is_some_and(|it| it.0 == id);
    ALL.iter().filter(is_meant).copied().collect()
}
