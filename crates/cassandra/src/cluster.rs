//! A connected cluster, its keyspace and its tables.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use scylla::{
    client::{execution_profile::ExecutionProfile, session::Session, session_builder::SessionBuilder},
    cluster::metadata::Strategy,
    errors::{ExecutionError, NewSessionError, PrepareError},
    policies::{
        load_balancing::{
            DefaultPolicy, LoadBalancingPolicy, NodeIdentifier, SingleTargetLoadBalancingPolicy,
        },
        retry::FallthroughRetryPolicy,
        timestamp_generator::MonotonicTimestampGenerator,
    },
    statement::prepared::PreparedStatement,
};
use thiserror::Error;
use tokio::runtime::Builder;

use crate::{
    client::TableClient,
    connections::SharedCluster,
    options::{Coordinators, Options, OptionsError, Timestamps, checked_name},
};

/// A connected cluster. Its clients share one connection to each node, and the threads that serve the
/// connections.
///
/// Calls of a cluster and of its clients block. They must not run on a thread of an asynchronous runtime.
pub struct Cluster {
    shared: Arc<SharedCluster>,
    keyspace: String,
}

/// A table of registers: `key blob PRIMARY KEY, value blob`.
pub struct Table {
    shared: Arc<SharedCluster>,
    read: PreparedStatement,
    write: PreparedStatement,
}

/// The handling of differing replicas by a read at more than one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// The read writes the newest value to the replicas that it waited for, and then answers.
    #[default]
    Blocking,
    /// The read answers with the newest value and repairs nothing.
    None,
}

/// The reason why a cluster cannot be used.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The address of a node cannot be resolved.
    #[error("the address of node {node} cannot be resolved: {error}")]
    Address {
        /// Address as the user wrote it.
        node: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The threads of the connections did not start.
    #[error("the threads for the connections to the cluster could not start: {0}")]
    Threads(io::Error),
    /// No node answered.
    #[error("no node of the cluster answers: {0}")]
    Connect(Box<NewSessionError>),
    /// The cluster lacks a node to which clients shall be pinned.
    #[error("the cluster has no node at {node}; its nodes are {nodes}")]
    NoNode {
        /// Address of the missing node, as the user wrote it.
        node: String,
        /// Addresses of the cluster's nodes.
        nodes: String,
    },
    /// The name is not valid for a table or a keyspace.
    #[error(transparent)]
    Name(#[from] OptionsError),
    /// The cluster refused a change of the schema.
    #[error("the cluster refused the statement {statement}: {error}")]
    Schema {
        /// The statement, in CQL.
        statement: String,
        /// Error of the cluster.
        error: Box<ExecutionError>,
    },
    /// The cluster refused to prepare a statement, for example because the table does not exist.
    #[error("the cluster refused to prepare the statement {statement}: {error}")]
    Prepare {
        /// The statement, in CQL.
        statement: String,
        /// Error of the cluster.
        error: Box<PrepareError>,
    },
}

impl Cluster {
    /// Connects to the nodes of [`Options::nodes`] and to all other nodes of their cluster.
    pub fn connect(options: &Options) -> Result<Cluster, ClusterError> {
        checked_name(&options.keyspace)?;
        let addresses = options.nodes.iter().map(|node| address(node)).collect::<Result<Vec<_>, _>>()?;
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(WORKERS).thread_name("cassandra").enable_all().build();
        let runtime = runtime.map_err(ClusterError::Threads)?;
        let session = runtime.block_on(connect(options, &addresses));
        let session = session.map_err(|error| ClusterError::Connect(Box::new(error)))?;
        let policies = match options.coordinators {
            Coordinators::Replicas => vec![DefaultPolicy::builder().token_aware(true).build()],
            Coordinators::Pinned => pinned(&session, &options.nodes, &addresses)?,
        };
        Ok(Cluster {
            shared: Arc::new(SharedCluster { session, runtime, policies }),
            keyspace: options.keyspace.clone(),
        })
    }

    /// Returns the number of nodes in the cluster, dead ones included.
    pub fn nodes(&self) -> usize {
        self.shared.session.get_cluster_state().get_nodes_info().len()
    }

    /// Creates the keyspace with `copies` copies of each key in each data centre, unless the keyspace exists.
    pub fn create_keyspace(&self, copies: u8) -> Result<(), ClusterError> {
        self.change(format!(
            "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': {copies}}}",
            self.keyspace
        ))
    }

    /// Whether the keyspace has `copies` copies of each key in each data centre.
    pub fn has_copies(&self, copies: u8) -> bool {
        let state = self.shared.session.get_cluster_state();
        match state.get_keyspace(&self.keyspace).map(|keyspace| &keyspace.strategy) {
            Some(Strategy::NetworkTopologyStrategy { datacenter_repfactors: factors }) => {
                factors.values().all(|factor| *factor == usize::from(copies))
            }
            Some(Strategy::SimpleStrategy { replication_factor: factor }) => *factor == usize::from(copies),
            _ => false,
        }
    }

    /// Creates a table in the keyspace, unless it exists.
    pub fn create_table(&self, name: &str, repair: Repair) -> Result<(), ClusterError> {
        let repair = match repair {
            Repair::Blocking => "BLOCKING",
            Repair::None => "NONE",
        };
        self.change(format!(
            "CREATE TABLE IF NOT EXISTS {}.{} (key blob PRIMARY KEY, value blob) WITH read_repair = '{repair}'",
            self.keyspace,
            checked_name(name)?
        ))
    }

    /// Drops a table with its rows, if it exists.
    pub fn drop_table(&self, name: &str) -> Result<(), ClusterError> {
        self.change(format!("DROP TABLE IF EXISTS {}.{}", self.keyspace, checked_name(name)?))
    }

    /// Opens a table of this cluster. The table must have the columns of [`Cluster::create_table`].
    pub fn table(&self, name: &str) -> Result<Table, ClusterError> {
        let name = format!("{}.{}", self.keyspace, checked_name(name)?);
        Ok(Table {
            read: self.prepare(format!("SELECT value FROM {name} WHERE key = ?"))?,
            write: self.prepare(format!("INSERT INTO {name} (key, value) VALUES (?, ?)"))?,
            shared: self.shared.clone(),
        })
    }

    fn change(&self, statement: String) -> Result<(), ClusterError> {
        let SharedCluster { session, runtime, .. } = &*self.shared;
        match runtime.block_on(session.query_unpaged(&*statement, ())) {
            Ok(_) => Ok(()),
            Err(error) => Err(ClusterError::Schema { statement, error: Box::new(error) }),
        }
    }

    fn prepare(&self, statement: String) -> Result<PreparedStatement, ClusterError> {
        let SharedCluster { session, runtime, .. } = &*self.shared;
        let prepared = runtime.block_on(session.prepare(&*statement));
        prepared.map_err(|error| ClusterError::Prepare { statement, error: Box::new(error) })
    }
}

impl Table {
    /// Creates a client. If clients are pinned, `number` chooses the client's node.
    pub fn client(&self, number: u64) -> TableClient {
        let policies = &self.shared.policies;
        let policy = &policies[number as usize % policies.len()];
        let with_policy = |statement: &PreparedStatement| {
            let mut statement = statement.clone();
            statement.set_load_balancing_policy(Some(policy.clone()));
            statement
        };
        TableClient::new(self.shared.clone(), with_policy(&self.read), with_policy(&self.write))
    }
}

/// Threads that serve the connections.
const WORKERS: usize = 2;

/// Time after which a silent node counts as unreachable.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

fn address(node: &str) -> Result<SocketAddr, ClusterError> {
    let failed = |error| ClusterError::Address { node: node.to_owned(), error };
    let none = || failed(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"));
    node.to_socket_addrs().map_err(failed)?.next().ok_or_else(none)
}

async fn connect(options: &Options, addresses: &[SocketAddr]) -> Result<Session, NewSessionError> {
    let profile = ExecutionProfile::builder()
        .request_timeout(Some(options.patience))
        // Requests are never repeated. For a repeated write, nobody could say when it took effect.
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes_addr(addresses)
        .connection_timeout(CONNECT_PATIENCE)
        .default_execution_profile_handle(profile.into_handle());
    if options.timestamps == Timestamps::Client {
        builder = builder.timestamp_generator(Arc::new(MonotonicTimestampGenerator::new()));
    }
    builder.build().await
}

/// Returns a policy for each node that never falls back to another node.
fn pinned(
    session: &Session,
    nodes: &[String],
    addresses: &[SocketAddr],
) -> Result<Vec<Arc<dyn LoadBalancingPolicy>>, ClusterError> {
    let state = session.get_cluster_state();
    let known =
        state.get_nodes_info().iter().map(|node| SocketAddr::new(node.address.ip(), node.address.port()));
    let known: Vec<SocketAddr> = known.collect();
    let policy = |(node, address): (&String, &SocketAddr)| {
        if !known.contains(address) {
            let nodes = known.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
            return Err(ClusterError::NoNode { node: node.clone(), nodes });
        }
        Ok(SingleTargetLoadBalancingPolicy::new(NodeIdentifier::NodeAddress(*address), None))
    };
    nodes.iter().zip(addresses).map(policy).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connecting_reports_unreachable_nodes_and_invalid_names() {
        // This port was free a moment ago, so nobody listens there.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = Cluster::connect(&Options::new(vec![free.to_string()])).err();
        assert!(matches!(refused, Some(ClusterError::Connect(_))), "{refused:?}");
        let nowhere = Cluster::connect(&Options::new(vec!["no such host:1".to_owned()])).err();
        assert!(matches!(nowhere, Some(ClusterError::Address { .. })), "{nowhere:?}");
        let hostile = Options { keyspace: "a; drop".to_owned(), ..Options::new(vec![free.to_string()]) };
        assert!(matches!(Cluster::connect(&hostile).err(), Some(ClusterError::Name(_))));
    }
}
