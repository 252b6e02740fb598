//! A program's place among others. Through one node a program queries tables, joins groups and hosts
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
//! **Processes.** A node begins without a process, and no other node knows it. At the first call of a kind,
//! the node starts a process for that kind on threads of this program. It keeps the process for later calls.
//!
//! | use | process | after it was cut off |
//! |---|---|---|
//! | a [role](Builder::role) | a [`Member`] of the cluster of tables | returns by itself in its next life |
//! | [tables](Node::db) | a client [`Member`]; a gateway uses its own | returns by itself in its next life |
//! | [groups](Node::group) | a member of the domain with all groups of the node | a join starts a new one |
//! | [hosting](Node::serve) | a process of replicas, without routers | each replica returns as a new process |
//! | [calling](Node::service) | a client of services | is never cut off |
//!
//! These are separate processes and not endpoints of one, because an identity has one fate. A process that
//! its groups have dropped takes another identity, and a replica must not lose its own identity by that. A
//! storage process that is also a gateway is two members for the same reason: each is counted, suspected and
//! admitted separately.
//!
//! **Dropping.** When the last clone of a node is dropped (a [`Db`](crate::Db) holds one), its member leaves
//! in the background, and its replicas end as if killed. Members of groups and stubs keep what they need.
//!
//! | file | subject |
//! |---|---|
//! | `builder` | how a node is set up |
//! | `member` | the process in its role, over its lives |
//! | `life` | one of these: what it begins with, for each role |
//! | `founding` | whether a router founds the domain or joins |
//! | `directory` | whose directory it is |
//! | `disk` | what is on its disk, for operators |

mod builder;
mod client;
pub(crate) mod directory;
mod disk;
pub(crate) mod founding;
pub(crate) mod journal;
pub(crate) mod life;
mod member;
mod setup;
mod start;

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

use quorate_protocol::{DomainId, Role, service::Pipelining};
use quorate_runtime::metrics::Metrics;

use self::directory::DirectoryLock;
pub use self::{builder::Builder, disk::DiskStatus, member::Member};

use crate::{
    address::{advertised, bind},
    error::Error,
    group::{
        Group,
        groups::{Groups, GroupsSettings},
    },
    lock::lock,
    pending::{Pending, on_a_thread},
    service::{
        Begin, Export, Service, ServiceLoop, Standing, Stub,
        host::{Host, HostSettings},
        stub::Connection,
    },
};
pub use setup::StorageOptions;

/// A program's place among others. Clones share it.
#[derive(Clone)]
pub struct Node(Arc<NodeShared>);

struct NodeShared {
    settings: Builder,
    /// The socket at which the node listens as a host; `None` if a process in a role listens there.
    listener: Option<Arc<TcpListener>>,
    address: SocketAddr,
    directory_lock: Option<Arc<DirectoryLock>>,
    /// The process in the node's role.
    member: Option<Member>,
    /// The client of tables of a node that has no role, or another one.
    client: Mutex<Option<Member>>,
    /// The lock that is held while a client starts, which waits for others.
    starting: Mutex<()>,
    groups: Groups,
    host: Mutex<Option<Arc<Host>>>,
    calls: Mutex<Option<Connection>>,
}

impl Node {
    /// Returns the default settings of a node, for changes.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn with(settings: Builder, directory_lock: Option<Arc<DirectoryLock>>, place: NodeListener) -> Node {
        let (listener, address, member) = match place {
            NodeListener::Member(member) => (None, member.address(), Some(member)),
            NodeListener::Open { listener, address } => (Some(listener), address, None),
        };
        let router = member.as_ref().filter(|member| member.role() == Role::Router);
        let own = router.map(|member| member.address().to_string());
        let (listen, advertise) = settings.further_addresses(address);
        let groups = Groups::new(GroupsSettings {
            routers: settings.routers.iter().cloned().chain(own).collect(),
            domain: member.as_ref().map(Member::domain).or(settings.domain),
            listen,
            advertise,
            insecure: settings.insecure,
            patience: settings.patience,
            datagram_bytes: settings.datagram_bytes,
            pack: settings.pack,
        });
        let (client, host, calls) = (Mutex::default(), Mutex::default(), Mutex::default());
        let starting = Mutex::default();
        Node(Arc::new(NodeShared {
            settings,
            listener,
            address,
            directory_lock,
            member,
            client,
            starting,
            groups,
            host,
            calls,
        }))
    }

    /// Returns the address at which the node listens: in its role, or else as a host of services.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Returns the process in the node's role, or else its client of tables, if it has one by now.
    pub fn member(&self) -> Option<Member> {
        self.0.member.clone().or_else(|| lock(&self.0.client).clone())
    }

    /// Returns the node's client of tables, for doors with clients of their own. The client is ready as soon
    /// as it listens, and waits for its cluster without a limit. A node with another role starts it as a
    /// further member with its own number.
    pub fn gateway(&self) -> Pending<'static, Member> {
        let node = self.clone();
        on_a_thread("start", move || node.become_client(None))
    }

    fn become_client(&self, domain: Option<DomainId>) -> Result<Member, Error> {
        let _starting = lock(&self.0.starting);
        let NodeShared { settings, directory_lock, address, member, client, .. } = &*self.0;
        if let Some(member) = member.clone().filter(|member| member.role() == Role::Gateway) {
            return Ok(member);
        }
        if let Some(client) = &*lock(client) {
            return Ok(client.clone());
        }
        let mut settings = settings.clone().moved_beside(*address);
        settings.domain = settings.domain.or(domain);
        // A durable node without a role has disks for its replicas; its client of tables needs none.
        settings.durable = false;
        let started = match member {
            None => settings.member(Role::Gateway, directory_lock.clone())?,
            Some(member) => settings.beside_role(member).member(Role::Gateway, None)?,
        };
        *lock(client) = Some(started.clone());
        Ok(started)
    }

    /// Returns the node's members: first its client of tables, which may ask for rows of the process in its
    /// role, then that process.
    fn members(&self) -> Vec<Member> {
        lock(&self.0.client).iter().cloned().chain(self.0.member.clone()).collect()
    }

    /// Returns a process group of the node's routers' domain.
    pub fn group(&self, name: impl Into<String>) -> Group {
        self.0.groups.group(name)
    }

    /// Returns the present metrics of its process with groups: `render` makes the text for Prometheus. Waits
    /// for the process, less than a second.
    pub fn group_metrics(&self) -> Metrics {
        self.0.groups.metrics()
    }

    /// Hosts a replica of a service that begins in `state`. All replicas of a set begin in the same state,
    /// byte for byte. Clients know only the name and the type.
    ///
    /// Founding asks the [seeds](Builder::seeds) first, for about 2 s at most: if one of them shows a set of
    /// this name, founding fails. Joining is ready at once, and completes later ([`Node::standing`]). A
    /// replica whose log is on the node's disk ([durable](Builder::durable)) continues from there, whatever
    /// `begin` says.
    pub fn serve<S: Service>(&self, name: impl Into<String>, state: S, begin: Begin) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("start", move || node.become_host()?.serve(&name, state, begin))
    }

    /// Hosts a replica of a service that completes its requests by [threads of its own](ServiceLoop). All
    /// replicas of a set must be hosted this way.
    pub fn serve_loop<S: ServiceLoop>(
        &self,
        name: impl Into<String>,
        state: S,
        begin: Begin,
    ) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("start", move || node.become_host()?.serve_loop(&name, state, begin))
    }

    /// Copies the state of this node's replica of a service. All of it is agreed on, without open
    /// transactions. A leader's copy has all changes that were answered before; another replica's may lag
    /// behind ([`Export::led`]).
    pub fn export(&self, name: &str) -> Pending<'static, Export> {
        let (host, name) = (self.hosting(name), name.to_owned());
        on_a_thread("export", move || host?.export(&name))
    }

    /// Founds a service that begins with an exported state, as another set than the exported one. `first` is
    /// the usual first state of the service, as for replicas that [join](Begin::Join). Ready when the state
    /// is there; if it fails, nothing is served.
    pub fn restore<S: Service>(
        &self,
        name: impl Into<String>,
        first: S,
        export: Export,
        replicas: u8,
    ) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("restore", move || node.become_host()?.restore(&name, first, &export, replicas))
    }

    /// Restores a service that completes its requests by [threads of its own](ServiceLoop), like
    /// [`Node::restore`].
    pub fn restore_loop<S: ServiceLoop>(
        &self,
        name: impl Into<String>,
        first: S,
        export: Export,
        replicas: u8,
    ) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("restore", move || node.become_host()?.restore_loop(&name, first, &export, replicas))
    }

    fn become_host(&self) -> Result<Arc<Host>, Error> {
        let mut host = lock(&self.0.host);
        if let Some(host) = &*host {
            return Ok(host.clone());
        }
        let NodeShared { settings, listener, address, directory_lock, .. } = &*self.0;
        let (listener, advertised) = match listener {
            Some(listener) => (listener.clone(), settings.advertised(*address)),
            None => {
                let (listen, advertise) = settings.further_addresses(*address);
                let (listener, bound) = bind(&listen)?;
                (listener, advertised(advertise.as_deref(), bound))
            }
        };
        let terms = HostSettings {
            domain: settings.services.clone(),
            listener,
            advertised,
            further_addresses: settings.further_addresses(*address),
            insecure: settings.insecure,
            seeds: settings.seeds.clone(),
            log_bytes_kept: settings.log_bytes_kept,
            checks: settings.checks,
            state_bytes_max: settings.state_bytes_max,
            pipelining: match settings.one_at_a_time {
                true => Pipelining::OneAtATime,
                false => Pipelining::Speculative,
            },
            directory: settings.hosts_directory(directory_lock.as_deref()),
            http: settings.http.clone(),
        };
        Ok(host.insert(Arc::new(Host::start(terms)?)).clone())
    }

    /// Ends this node's replica of a service for good, as if it had been killed: the others go on, and a
    /// spare host replaces it. The node may serve the service again later.
    pub fn withdraw(&self, name: &str) -> Result<(), Error> {
        self.hosting(name)?.withdraw(name)
    }

    /// Makes the host at this address a replica, even beyond the wanted number. The host must already serve
    /// the service, as a spare, at the address of its [`Standing`]. Any node with a replica can be asked. The
    /// future ends when the new replica has all changes that were agreed on.
    pub fn add_replica(&self, name: &str, new: &str) -> Pending<'static, ()> {
        self.change_replicas(name, None, new)
    }

    /// Adds a replica like [`Node::add_replica`], and then removes the replica at the address `old`, whether
    /// that replica lives or not. A living replica becomes a spare.
    pub fn replace_replica(&self, name: &str, old: &str, new: &str) -> Pending<'static, ()> {
        self.change_replicas(name, Some(old.to_owned()), new)
    }

    fn change_replicas(&self, name: &str, old: Option<String>, new: &str) -> Pending<'static, ()> {
        let (host, name, new) = (self.hosting(name), name.to_owned(), new.to_owned());
        on_a_thread("replace", move || host?.host_shared().change(&name, old.as_deref(), &new))
    }

    /// Returns the host, for a request about a service.
    fn hosting(&self, name: &str) -> Result<Arc<Host>, Error> {
        lock(&self.0.host)
            .clone()
            .ok_or_else(|| Error::start(format!("this node serves no service `{name}`")))
    }

    /// Returns the present state of this node's replica of a service, or `None` if it hosts none.
    pub fn standing(&self, name: &str) -> Option<Standing> {
        lock(&self.0.host).clone()?.standing(name)
    }

    /// Returns the names of the services that it hosts, and the present states of their replicas.
    pub fn services(&self) -> Vec<(String, Standing)> {
        lock(&self.0.host).clone().map_or_else(Vec::new, |host| host.services())
    }

    /// Returns the address of the node's HTTP door, if it [has one](Builder::http) and hosts a service.
    pub fn http_address(&self) -> Option<SocketAddr> {
        lock(&self.0.host).clone()?.http_address()
    }

    /// Returns the stub of a service whose hosts are among its [seeds](Builder::seeds), or is this node
    /// itself. Calls find out whether a service of this name exists.
    pub fn service<S: Service>(&self, name: &str) -> Result<Stub<S>, Error> {
        let mut calls = lock(&self.0.calls);
        if calls.is_none() {
            let settings = &self.0.settings;
            let own = lock(&self.0.host).as_ref().map(|host| host.address().to_string());
            let addresses = settings.seeds.iter().cloned().chain(own).collect();
            *calls = Some(Connection::start(&settings.services, addresses, settings.call_wait)?);
        }
        Ok(calls.as_ref().expect("just started").service(name))
    }

    /// Leaves: the node's members tell the other processes, which take over the members' data, and its groups
    /// know at once. Its replicas end. Returns once the others have acknowledged that, or the time for it is
    /// over. An error says that the node has left, but did not save the state of a group with a [checkpoint
    /// file](crate::group::Group::checkpoint_file).
    pub async fn leave(self) -> Result<(), Error> {
        drop(lock(&self.0.host).take());
        let saved = self.0.groups.clone().leave().await;
        for member in self.members() {
            member.leave().await;
        }
        saved
    }

    /// Stops before a restart with the same settings. Other processes do the member's work meanwhile, and a
    /// member with a disk comes back as the same process. The node's groups know that it left, and its
    /// replicas end. Returns once the others have acknowledged the stop, or the time for it is over. An error
    /// is that of [`Node::leave`].
    pub async fn pause(self) -> Result<(), Error> {
        drop(lock(&self.0.host).take());
        let saved = self.0.groups.clone().leave().await;
        if let Some(member) = &self.0.member {
            // The client goes first, because its requests need the process in the role.
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
        drop(lock(&self.0.host).take());
        self.0.groups.clone().abandon();
        for member in self.members() {
            member.abandon().await;
        }
    }

    /// Stops like [`Node::abandon`], without waiting.
    pub(crate) fn abandon_unwaited(&self) {
        drop(lock(&self.0.host).take());
        self.0.groups.clone().abandon();
        for member in self.members() {
            member.abandon_unwaited();
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("address", &self.0.address).field("member", &self.member()).finish()
    }
}

/// The place at which a node listens.
pub(crate) enum NodeListener {
    /// The address of the process in its role.
    Member(Member),
    /// A socket of the node's own.
    Open { listener: Arc<TcpListener>, address: SocketAddr },
}
