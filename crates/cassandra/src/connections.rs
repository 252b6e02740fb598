//! A [`SharedCluster`] holds the connections to the nodes of a cluster, for all of its clients.

use std::sync::Arc;

use scylla::{client::session::Session, policies::load_balancing::LoadBalancingPolicy};
use tokio::runtime::Runtime;

/// The connections, their threads and the load-balancing policies, which all clients of a cluster share.
pub(crate) struct SharedCluster {
    /// The session must be dropped before the runtime that its tasks run on, so this field comes first.
    pub(crate) session: Session,
    pub(crate) runtime: Runtime,
    /// Load-balancing policies. Client `n` uses the policy with index `n` modulo the number of policies.
    pub(crate) policies: Vec<Arc<dyn LoadBalancingPolicy>>,
}
