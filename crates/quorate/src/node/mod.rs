//! A program's place among others: tables are asked, groups joined and services hosted on it, side by side.
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
//! **Processes.** A node is nothing to others until something is asked of it. Then it starts a process for that, on threads of this
//! program, and keeps it for all that is asked later:
//!
//! | asked for | process | comes back after it was cut off |
//! |---|---|---|
//! | a [role](Builder::role) | a [`Member`] of the cluster of tables | by itself, over its lives |
//! | [tables](Node::db) | a client of them, a [`Member`] as well: that in its role, if it is a gateway | by itself, over its lives |
//! | [groups](Node::group) | a member of the same domain, with all groups of this node | a new one, with the next to join |
//! | [hosting](Node::serve) | one with replicas of services, which needs no routers | each replica by itself, as a process beside it |
//! | [calling](Node::service) | a client of services | it is never cut off |
//!
//! They are processes of their own, and not endpoints of one, because an identity has one fate: a process that was dropped from
//! its groups takes another identity, and a replica must not lose its own by that. A storage process that is also a gateway is two
//! members for the same reason: each is counted, suspected and taken in again by itself.
//!
//! **Dropped.** With the last clone of a node (a [`Db`] has one) its member leaves, unwaited for, and its replicas end as if they had
//! been killed. Members of groups and stubs keep what they need.
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
pub(crate) mod directory;
mod disk;
pub(crate) mod founding;
pub(crate) mod journal;
pub(crate) mod life;
mod member;

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use quorate_protocol::{DomainId, Role, service::Pipelining};
use quorate_runtime::metrics::Metrics;

pub(crate) use self::builder::{advertised, ask_domain, bind};
use self::{builder::Place, directory::Claim};
pub use self::{
    builder::{Builder, StorageOptions},
    disk::DiskStatus,
    member::Member,
};
use crate::{
    db::Db,
    error::Error,
    group::{
        Group,
        groups::{Groups, GroupsSettings},
    },
    pending::{Pending, on_a_thread},
    service::{
        self, Begin, Export, Service, ServiceLoop, Standing, Stub,
        host::{Host, HostSettings},
        stub::Connection,
    },
};

/// A program's place among others. Clones share it.
#[derive(Clone)]
pub struct Node(Arc<Shared>);

struct Shared {
    settings: Builder,
    /// Where it listens as a host; none if a process in a role listens there.
    listener: Option<Arc<TcpListener>>,
    address: SocketAddr,
    claim: Option<Arc<Claim>>,
    /// The process in its role.
    member: Option<Member>,
    /// The client of tables of a node that has no role, or another one than that.
    client: Mutex<Option<Member>>,
    /// Held while a client starts, which waits for others.
    starting: Mutex<()>,
    groups: Groups,
    host: Mutex<Option<Arc<Host>>>,
    calls: Mutex<Option<Connection>>,
}

impl Node {
    /// How a node is set up.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn with(settings: Builder, claim: Option<Arc<Claim>>, place: Place) -> Node {
        let (listener, address, member) = match place {
            Place::Member(member) => (None, member.address(), Some(member)),
            Place::Open { listener, address } => (Some(listener), address, None),
        };
        let router = member.as_ref().filter(|member| member.role() == Role::Router);
        let own = router.map(|member| member.address().to_string());
        let (listen, advertise) = settings.beside(address);
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
        Node(Arc::new(Shared {
            settings,
            listener,
            address,
            claim,
            member,
            client,
            starting,
            groups,
            host,
            calls,
        }))
    }

    /// Where it listens: in its role, or else as a host of services.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The process in its role, if it has one, or is a client of tables by now.
    pub fn member(&self) -> Option<Member> {
        self.0.member.clone().or_else(|| lock(&self.0.client).clone())
    }

    /// The tables of the cluster. The first time it becomes a client of them, a [gateway](crate::Role::Gateway): that is ready when the
    /// cluster has taken it in, and fails if that takes longer than its [patience](Builder::patience).
    pub fn db(&self) -> Pending<'static, Db> {
        self.tables(None)
    }

    /// The tables of this domain, if it is known already.
    fn tables(&self, domain: Option<DomainId>) -> Pending<'static, Db> {
        let (node, begun) = (self.clone(), Instant::now());
        let member = on_a_thread("start", {
            let node = node.clone();
            move || node.become_client(domain)
        });
        Box::pin(async move {
            let member = member.await?;
            let tables = member.backend().expect("a client of tables has them");
            member.admitted(node.0.settings.patience.saturating_sub(begun.elapsed())).await?;
            Ok(Db::of_tables(node, member, tables))
        })
    }

    /// Its client of tables, for doors that speak to clients of their own. It is ready as soon as it listens, and waits for its cluster for
    /// as long as it takes. A node whose role is another one starts it beside that, as a member with a number of its own.
    pub fn gateway(&self) -> Pending<'static, Member> {
        let node = self.clone();
        on_a_thread("start", move || node.become_client(None))
    }

    fn become_client(&self, domain: Option<DomainId>) -> Result<Member, Error> {
        let _starting = lock(&self.0.starting);
        let Shared { settings, claim, address, member, client, .. } = &*self.0;
        if let Some(member) = member.clone().filter(|member| member.role() == Role::Gateway) {
            return Ok(member);
        }
        if let Some(client) = &*lock(client) {
            return Ok(client.clone());
        }
        let mut settings = settings.clone().moved_beside(*address);
        settings.domain = settings.domain.or(domain);
        // Its replicas have disks, and it is a client of tables as well.
        settings.durable = false;
        let started = match member {
            None => settings.member(Role::Gateway, claim.clone())?,
            Some(member) => settings.beside_role(member).member(Role::Gateway, None)?,
        };
        *lock(client) = Some(started.clone());
        Ok(started)
    }

    /// The members that it has: its client of tables before the process in its role, whose rows that may ask for.
    fn members(&self) -> Vec<Member> {
        lock(&self.0.client).iter().cloned().chain(self.0.member.clone()).collect()
    }

    /// All that processes at the addresses it was given have: tables if they are routers, services alone if they are hosts.
    pub(crate) fn client(&self) -> Pending<'static, Db> {
        let (node, settings) = (self.clone(), self.0.settings.clone());
        let asked = on_a_thread("start", move || ask_domain(&settings.routers, settings.patience));
        Box::pin(async move {
            let domain = asked.await?;
            if domain == service::domain(&node.0.settings.services) {
                return Ok(Db::of_services(node));
            }
            node.tables(Some(domain)).await
        })
    }

    /// A process group of the domain of its routers.
    pub fn group(&self, name: impl Into<String>) -> Group {
        self.0.groups.group(name)
    }

    /// What its process with groups counts, as it is now: `render` gives the text that Prometheus reads. Waits for the process, for less
    /// than a second.
    pub fn group_metrics(&self) -> Metrics {
        self.0.groups.metrics()
    }

    /// Hosts a replica of a service, which begins in `state`: the same state, in bytes, at all replicas of a set. The name and the
    /// type are all that clients know.
    ///
    /// Founding asks the [seeds](Builder::seeds) first, for at most 2 s or so: if one of them shows a set of this name, it is an error.
    /// Joining is ready at once, and comes about when it does ([`Node::standing`]). A replica whose log is on the node's disk
    /// ([durable](Builder::durable)) goes on from there, whichever is said.
    pub fn serve<S: Service>(&self, name: impl Into<String>, state: S, begin: Begin) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("start", move || node.become_host()?.serve(&name, state, begin))
    }

    /// Hosts a replica of a service that completes its requests by [threads of its own](ServiceLoop). All replicas of a set are served so.
    pub fn serve_loop<S: ServiceLoop>(
        &self,
        name: impl Into<String>,
        state: S,
        begin: Begin,
    ) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("start", move || node.become_host()?.serve_loop(&name, state, begin))
    }

    /// A copy of the state of this node's replica of a service: all of it is agreed on, and no open transaction is in it. Where the replica leads,
    /// it holds all that was answered before; elsewhere it may lag behind ([`Export::led`]).
    pub fn export(&self, name: &str) -> Pending<'static, Export> {
        let (host, name) = (self.hosting(name), name.to_owned());
        on_a_thread("export", move || host?.export(&name))
    }

    /// Founds a service that begins with an exported state, as another set than the one that it was exported from. `first` is the state that the
    /// service begins in otherwise, as for those who [join](Begin::Join) it. Ready when the state is there; if it fails, nothing is served.
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

    /// The same of a service that completes its requests by [threads of its own](ServiceLoop).
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
        let Shared { settings, listener, address, claim, .. } = &*self.0;
        let (listener, advertised) = match listener {
            Some(listener) => (listener.clone(), settings.advertised(*address)),
            None => {
                let (listen, advertise) = settings.beside(*address);
                let (listener, bound) = bind(&listen)?;
                (listener, builder::advertised(advertise.as_deref(), bound))
            }
        };
        let terms = HostSettings {
            domain: settings.services.clone(),
            listener,
            advertised,
            beside: settings.beside(*address),
            insecure: settings.insecure,
            seeds: settings.seeds.clone(),
            log_bytes_kept: settings.log_bytes_kept,
            checks: settings.checks,
            pipelining: match settings.one_at_a_time {
                true => Pipelining::OneAtATime,
                false => Pipelining::Speculative,
            },
            directory: settings.hosts_directory(claim.as_deref()),
            http: settings.http.clone(),
        };
        Ok(host.insert(Arc::new(Host::start(terms)?)).clone())
    }

    /// Ends this node's replica of a service for good, as if it had been killed: the others go on, and a spare host takes its place. It
    /// may be served again later.
    pub fn withdraw(&self, name: &str) -> Result<(), Error> {
        self.hosting(name)?.withdraw(name)
    }

    /// Makes the host at this address a replica, beyond the wanted number too. It serves the service already, as a spare, and the address is
    /// the one that its [`Standing`] has. Asked at any node that is a replica; ready when the newcomer has all that was agreed on.
    pub fn add_replica(&self, name: &str, new: &str) -> Pending<'static, ()> {
        self.change_replicas(name, None, new)
    }

    /// The same, and then the replica at the address `old` is one no more, whether it lives or not. If it lives it is a spare from then on.
    pub fn replace_replica(&self, name: &str, old: &str, new: &str) -> Pending<'static, ()> {
        self.change_replicas(name, Some(old.to_owned()), new)
    }

    fn change_replicas(&self, name: &str, old: Option<String>, new: &str) -> Pending<'static, ()> {
        let (host, name, new) = (self.hosting(name), name.to_owned(), new.to_owned());
        on_a_thread("replace", move || host?.house().change(&name, old.as_deref(), &new))
    }

    /// The host, of which something is asked about a service.
    fn hosting(&self, name: &str) -> Result<Arc<Host>, Error> {
        lock(&self.0.host).clone().ok_or_else(|| Error::start(format!("this node serves no `{name}`")))
    }

    /// How this node's replica of a service stands; none if it hosts none of this name.
    pub fn standing(&self, name: &str) -> Option<Standing> {
        lock(&self.0.host).clone()?.standing(name)
    }

    /// The names of the services that it hosts, and how their replicas stand.
    pub fn services(&self) -> Vec<(String, Standing)> {
        lock(&self.0.host).clone().map_or_else(Vec::new, |host| host.services())
    }

    /// Where its HTTP door is, once it hosts a service, if it [has one](Builder::http).
    pub fn http_address(&self) -> Option<SocketAddr> {
        lock(&self.0.host).clone()?.http_address()
    }

    /// The stub of a service whose hosts are among its [seeds](Builder::seeds), or is this node itself. Whether there is one of this
    /// name is found out by calls.
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

    /// Leaves: its members tell the others, which take over what they held, and its groups know at once. Its replicas end. Ready once
    /// they took note, or did not in time. An error says that it has left, and the state of a group with a [checkpoint
    /// file](crate::group::Group::checkpoint_file) was not saved.
    pub async fn leave(self) -> Result<(), Error> {
        drop(lock(&self.0.host).take());
        let saved = self.0.groups.clone().leave().await;
        for member in self.members() {
            member.leave().await;
        }
        saved
    }

    /// Stops for a moment, to be started again with the same settings: its member has others do its work meanwhile, and if it has a
    /// disk it comes back as who it is. Its groups know that it left, and its replicas end. Ready once the others took note,
    /// or did not in time. An error is that of [`Node::leave`].
    pub async fn pause(self) -> Result<(), Error> {
        drop(lock(&self.0.host).take());
        let saved = self.0.groups.clone().leave().await;
        if let Some(member) = &self.0.member {
            // What it asks of the process in its role it no longer can, so it goes first.
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

    /// Stops without a word, as if it had been killed: the others find out.
    pub async fn abandon(self) {
        drop(lock(&self.0.host).take());
        self.0.groups.clone().abandon();
        for member in self.members() {
            member.abandon().await;
        }
    }

    /// The same, and nobody waits for it.
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

/// What these locks guard is whole at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
