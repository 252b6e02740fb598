//! The settings of this system: those of its parts.

use serde::Deserialize;

use crate::system::{group, quorum, service, table};

/// The settings of all workloads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Tables, which have the routers.
    pub table: table::Settings,
    /// Groups.
    pub group: group::Settings,
    /// Maps.
    pub quorum: quorum::Settings,
    /// A service.
    pub service: service::Settings,
}
