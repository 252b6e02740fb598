//! A program's place among other programs. Through a node a program queries tables, joins groups and hosts
//! services.
//!
//! ```no_run
//! # use quorate::{group::Replica, service::{Begin, Service}};
//! # async fn run<Prices: Replica + Default, Lottery: Service + Default>() -> Result<(), quorate::Error> {
//! let node = quorate::Node::builder().routers(["127.0.0.1:7400"]).listen("127.0.0.1:7101").start().await?;
//! let prices = node.group("prices").join(Prices::default()).await?;
//! node.serve("lottery", Lottery::default(), Begin::Found { replicas: 3 }).await?;
//! node.db().await?.execute("create table t (id int primary key)").await?;
//! node.leave().await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Processes.** A new node has no process, and other nodes do not know it. At the first call of a kind, the
//! node starts a process for calls of that kind, on threads of this program. It keeps the process for later
//! calls.
//!
//! | use | process | after it was cut off |
//! |---|---|---|
//! | a [role](Builder::role) | a [`Member`] of the cluster of tables | returns by itself in its next life |
//! | [tables](Node::db) | a client [`Member`]; a gateway uses its own | returns by itself in its next life |
//! | [groups](Node::group) | a member of the domain with all groups of the node | a join starts a new one |
//! | [hosting](Node::serve) | a process of replicas without routers | each replica returns as a new process |
//! | [calling](Node::service) | a client of services | is never cut off |
//!
//! These are separate processes, and not endpoints of one process, because a process has one identity. A
//! process that its groups have dropped takes another identity, and a replica must not lose its identity with
//! it. A storage process that is also a gateway is two members for the same reason: each is counted,
//! suspected and admitted separately.
//!
//! **Dropping.** When the last clone of a node is dropped (a [`Db`](crate::Db) holds one), its member leaves
//! in the background, and its replicas end as if they had been killed. Members of groups, and stubs, keep
//! their processes alive.
//!
//! | file | subject |
//! |---|---|
//! | `builder`, `options` | how a node is set up |
//! | `capabilities` | the node's state for tables, groups and services; each is a feature of the crate |
//! | `client`, `groups`, `services` | the calls by which a program uses tables, groups and services |
//! | `member` | the process in its role, over its lives |
//! | `life` | one life of a member |
//! | `role_work`, `roles` | what a life begins with, and what outlives it, for each role |
//! | `founding` | whether a router founds the domain or joins |
//! | `directory` | the owner of a directory |
//! | `disk` | the contents of a node's disk, for operators |

mod builder;
mod capabilities;
#[cfg(feature = "tables")]
mod client;
pub(crate) mod directory;
mod disk;
pub(crate) mod founding;
#[cfg(feature = "groups")]
mod groups;
pub(crate) mod journal;
pub(crate) mod life;
mod member;
mod options;
mod role_work;
mod roles;
#[cfg(feature = "services")]
mod services;
mod setup;
mod start;

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

#[cfg(feature = "tables")]
pub use self::roles::storage::StorageOptions;
pub use self::{builder::Builder, disk::DiskStatus, member::Member};

use self::{capabilities::Capabilities, directory::DirectoryLock};
use crate::{error::Error, lock::lock};

/// A program's place among other programs. Clones share it.
#[derive(Clone)]
pub struct Node(Arc<NodeShared>);

struct NodeShared {
    settings: Builder,
    /// The socket at which the node listens as a host; `None` if the process in the node's role listens
    /// there.
    listener: Option<Arc<TcpListener>>,
    address: SocketAddr,
    directory_lock: Option<Arc<DirectoryLock>>,
    /// The process in the node's role.
    member: Option<Member>,
    /// The client of tables of a node that has no role, or a role other than that of a gateway.
    client: Mutex<Option<Member>>,
    capabilities: Capabilities,
}

impl Node {
    /// Returns the default settings of a node, which the caller can change.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn with(settings: Builder, directory_lock: Option<Arc<DirectoryLock>>, place: NodeListener) -> Node {
        let (listener, address, member) = match place {
            NodeListener::Member(member) => (None, member.address(), Some(member)),
            NodeListener::Open { listener, address } => (Some(listener), address, None),
        };
        let (client, capabilities) = (Mutex::default(), Capabilities::default());
        let shared = NodeShared { settings, listener, address, directory_lock, member, client, capabilities };
        Node(Arc::new(shared))
    }

    /// Returns the address at which the node listens for its role, or, if it has no role, as a host of
    /// services.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Returns the process in the node's role, or else the client of tables, if the node has one by now.
    pub fn member(&self) -> Option<Member> {
        self.0.member.clone().or_else(|| lock(&self.0.client).clone())
    }

    /// Returns the node's members: first its client of tables, then the process in its role. The client comes
    /// first because it may ask that process for rows.
    fn members(&self) -> Vec<Member> {
        lock(&self.0.client).iter().cloned().chain(self.0.member.clone()).collect()
    }

    /// Leaves the domain. The node's members announce their departure, and other processes take over the
    /// members' data. The node leaves its groups at once, and its replicas end. Returns once the other
    /// processes have acknowledged the departure, or after a time limit. An error means that the node has
    /// left, but could not save the state of a group with a [checkpoint
    /// file](crate::group::Group::checkpoint_file).
    pub async fn leave(self) -> Result<(), Error> {
        self.0.capabilities.end_hosting();
        let saved = self.0.capabilities.leave_groups().await;
        for member in self.members() {
            member.leave().await;
        }
        saved
    }

    /// Stops before a restart with the same settings. Other processes take over the member's work until it is
    /// back, and a member with a disk comes back as the same process. The node leaves its groups, and its
    /// replicas end. Returns once the other processes have acknowledged the stop, or after a time limit. An
    /// error means the same as that of [`Node::leave`].
    pub async fn pause(self) -> Result<(), Error> {
        self.0.capabilities.end_hosting();
        let saved = self.0.capabilities.leave_groups().await;
        if let Some(member) = &self.0.member {
            // The client stops first, because its requests need the process in the node's role.
            let client = lock(&self.0.client).take();
            if let Some(client) = client {
                client.leave().await;
            }
            member.clone().pause().await;
        } else if let Some(member) = self.member() {
            member.pause().await;
        }
        saved
    }

    /// Stops without a message, as if the process had been killed. The other processes notice its silence.
    pub async fn abandon(self) {
        self.0.capabilities.abandon();
        for member in self.members() {
            member.abandon().await;
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeShared { settings, listener, address, directory_lock, .. } = &*self.0;
        f.debug_struct("Node")
            .field("role", &settings.role)
            .field("number", &directory_lock.as_ref().map(|directory_lock| directory_lock.node))
            .field("address", address)
            .field("listener", listener)
            .field("member", &self.member())
            .finish_non_exhaustive()
    }
}

/// The listening side of a node.
pub(crate) enum NodeListener {
    /// The process in the node's role, which listens at its own address.
    Member(Member),
    /// A socket of the node's own.
    Open { listener: Arc<TcpListener>, address: SocketAddr },
}
