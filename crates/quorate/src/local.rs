//! A cluster in this process, for tests and examples.

use quorate_protocol::{Role, Terms};
use quorate_runtime::chance;

use crate::{
    error::Error,
    node::{Builder, Node},
    pending::Pending,
};

/// A cluster of real processes (routers, supers, storage) that run on threads of the calling program and talk
/// over loopback sockets. Nothing is simulated, and nothing is written to a disk: the cluster and its tables
/// end when this value is dropped.
///
/// ```
/// # use quorate::Wait;
/// let cluster = quorate::Local::start().wait()?;
/// let db = quorate::connect(cluster.addresses()).wait()?;
/// db.execute("create table t (id int primary key, v text)").wait()?;
/// assert_eq!(db.execute("insert into t values (1, 'one'), (2, 'two')").wait()?, 2);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Local {
    nodes: Vec<Node>,
    addresses: Vec<String>,
}

/// The size of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalBuilder {
    routers: usize,
    storage: usize,
    replicas: u8,
}

impl Local {
    /// Starts the smallest cluster: a router, a super, and a storage process.
    pub fn start() -> Pending<'static, Local> {
        Local::builder().start()
    }

    /// Returns the settings of the smallest cluster, which the caller can change.
    pub fn builder() -> LocalBuilder {
        LocalBuilder { routers: 1, storage: 1, replicas: 1 }
    }

    /// Returns the addresses of the cluster's routers. A client needs nothing else.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Returns the cluster's nodes: routers, then the super, then storage.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Ends the cluster, and waits for the end.
    pub async fn stop(self) {
        for node in self.nodes.iter().rev() {
            node.clone().abandon().await;
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for node in self.nodes.iter().rev() {
            // All nodes end together, so none of them announces its leave to the others.
            node.abandon_unwaited();
        }
    }
}

impl LocalBuilder {
    /// Sets the number of routers, of which a majority must live; at least 1.
    pub fn routers(mut self, count: usize) -> Self {
        self.routers = count.max(1);
        self
    }

    /// Sets the number of storage processes, each with some of the rows; at least 1.
    pub fn storage(mut self, count: usize) -> Self {
        self.storage = count.max(1);
        self
    }

    /// Sets the number of replicas of each row; at least 1.
    pub fn replicas(mut self, count: u8) -> Self {
        self.replicas = count.max(1);
        self
    }

    /// Starts the cluster. The future is ready when the processes listen. The first statement waits until the
    /// cluster can execute it.
    pub fn start(self) -> Pending<'static, Local> {
        Box::pin(async move {
            let count = |count: usize| {
                u32::try_from(count).map_err(|_| Error::start("the number of processes is too large"))
            };
            let terms = Terms {
                replicas: self.replicas,
                wanted_storage: count(self.storage)?,
                wanted_routers: count(self.routers)?,
            };
            let domain = chance::domain();
            let founder = Node::builder().name("router-1").number(1).domain(domain).terms(terms);
            let founder = founder.role(Role::Router).found().start().await?;
            let mut addresses: Vec<String> = vec![founder.address().to_string()];
            let mut nodes = vec![founder];
            let joining = |role: Role, name: String, number: usize, addresses: &[String]| -> Builder {
                let builder = Node::builder().name(name).number(number as u64).terms(terms).role(role);
                builder.domain(domain).routers(addresses)
            };
            for router in 2..=self.routers {
                let node =
                    joining(Role::Router, format!("router-{router}"), router, &addresses).start().await?;
                addresses.push(node.address().to_string());
                nodes.push(node);
            }
            let next = self.routers + 1;
            nodes.push(joining(Role::Super, String::from("super-1"), next, &addresses).start().await?);
            for storage in 1..=self.storage {
                let builder =
                    joining(Role::Storage, format!("storage-{storage}"), next + storage, &addresses);
                nodes.push(builder.start().await?);
            }
            Ok(Local { nodes, addresses })
        })
    }
}
