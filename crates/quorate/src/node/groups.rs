//! The process groups of a node.

use quorate_runtime::metrics::Metrics;

use super::{Node, NodeShared};
use crate::group::{Group, groups::Groups};

impl Node {
    /// Returns a process group of the node's routers' domain.
    pub fn group(&self, name: impl Into<String>) -> Group {
        self.groups().group(name)
    }

    /// Returns the present metrics of the node's process with groups; `render` makes the text for Prometheus.
    /// Waits less than a second for that process.
    pub fn group_metrics(&self) -> Metrics {
        self.groups().metrics()
    }

    fn groups(&self) -> &Groups {
        let NodeShared { settings, address, member, capabilities, .. } = &*self.0;
        capabilities.groups.get_or_init(|| Groups::new(settings.groups_settings(*address, member.as_ref())))
    }
}
