//! The settings of a node.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use quorate_protocol::{DomainId, Role, Terms, detector, paxos, service::ClientSettings};
use quorate_runtime::{chance, config::DATAGRAM_BYTES_MAX};

use super::{
    Member,
    directory::{self, DirectoryLock},
    founding::{self, Beginning},
    journal::{Journal, Owner},
    setup::{Setup, StorageOptions},
};
use crate::{
    address::{advertised, ask_domain, bind, further_addresses},
    error::Error,
    service,
};

/// Sets a node up ([`Node::builder`](super::Node::builder)).
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) role: Option<Role>,
    pub(super) found: bool,
    storage: StorageOptions,
    name: Option<String>,
    pub(super) number: Option<u64>,
    pub(super) domain: Option<DomainId>,
    pub(super) routers: Vec<String>,
    pub(super) listen: String,
    advertise: Option<String>,
    pub(super) insecure: bool,
    pub(super) directory: Option<PathBuf>,
    detector: detector::Settings,
    terms: Option<Terms>,
    write_wait: Duration,
    pub(super) patience: Duration,
    pub(super) ready_at_listen: bool,
    pub(super) durable: bool,
    late: bool,
    pub(super) http: Option<String>,
    pub(super) seeds: Vec<String>,
    /// Name of the domain of the node's services.
    pub(super) services: String,
    pub(super) call_wait: Duration,
    pub(super) log_bytes_kept: usize,
    pub(super) checks: bool,
    pub(super) state_bytes_max: usize,
    pub(super) one_at_a_time: bool,
    pub(super) datagram_bytes: usize,
    pub(super) pack: u32,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            role: None,
            found: false,
            storage: StorageOptions::default(),
            name: None,
            number: None,
            domain: None,
            routers: Vec::new(),
            listen: String::from("127.0.0.1:0"),
            advertise: None,
            insecure: false,
            directory: None,
            detector: detector::Settings::default(),
            terms: None,
            write_wait: Duration::from_secs(3),
            patience: Duration::from_secs(10),
            ready_at_listen: false,
            durable: false,
            late: false,
            http: None,
            seeds: Vec::new(),
            services: String::from(service::DOMAIN),
            call_wait: ClientSettings::default().wait,
            log_bytes_kept: paxos::Settings::default().log_bytes_kept,
            checks: false,
            state_bytes_max: service::STATE_BYTES_MAX,
            one_at_a_time: false,
            datagram_bytes: DATAGRAM_BYTES_MAX,
            pack: u32::MAX,
        }
    }
}

impl Builder {
    /// Sets the addresses of routers, `host:port`. Tables and groups need nothing else.
    pub fn routers<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.routers = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the node's role in a cluster of tables, which it takes when it starts. A node without a role
    /// holds none of the cluster's data. A node other than a gateway also becomes a client of the tables, as
    /// a separate member, when the program calls [`Node::db`](super::Node::db) or
    /// [`Node::gateway`](super::Node::gateway).
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Sets the addresses of hosts of services, `host:port`. The node's own address may be among them, and
    /// does no harm.
    pub fn seeds<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.seeds = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the name of the domain of its services. Nodes of different domains share no services. There is a
    /// default domain.
    pub fn services(mut self, domain: impl Into<String>) -> Self {
        self.services = domain.into();
        self
    }

    /// Sets the time after which the fate of a service's call is reported, as far as it is known; the default
    /// is 10 s. The time to find the service does not count.
    pub fn call_wait(mut self, wait: Duration) -> Self {
        self.call_wait = wait;
        self
    }

    /// Sets the size of the agreed changes that a replica of a service keeps for lagging ones, in bytes; the
    /// default is 64 MiB. A replica that lacks more gets a checkpoint.
    pub fn log_bytes_kept(mut self, bytes: usize) -> Self {
        self.log_bytes_kept = bytes;
        self
    }

    /// Makes a router found the domain if there is none. One router of a domain does, once.
    pub fn found(mut self) -> Self {
        self.found = true;
        self
    }

    /// Sets the limits of the node's storage process.
    pub fn storage(mut self, options: StorageOptions) -> Self {
        self.storage = options;
        self
    }

    /// Sets the node's name for people.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the node number, which no other process of the cluster may have. The default is the number in its
    /// directory, or a random one.
    pub fn number(mut self, number: u64) -> Self {
        self.number = Some(number);
        self
    }

    /// Sets the node's domain. The default is the routers' domain; a founder draws a random one.
    pub fn domain(mut self, domain: DomainId) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Sets the address at which it listens: in its role, or else as a host of services. The default is
    /// `127.0.0.1` at a port that the system chooses. Its further processes listen at the same host, at ports
    /// that the system chooses.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    /// Sets the address at which other processes reach the node, `host:port`, if it is not the address at
    /// which the node listens. Port 0 stands for the port at which it listens.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// Allows addresses other than loopback. Links are neither encrypted nor authenticated.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// Sets the directory of the state that outlives the process: its number, and the mark that it founded
    /// its domain. One process of a number uses it at a time: another one is refused
    /// ([`Error::DirectoryInUse`]) as long as the first lives.
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// Sets the settings of the failure detector.
    pub fn detector(mut self, settings: detector::Settings) -> Self {
        self.detector = settings;
        self
    }

    /// Sets the terms with which the domain is founded, and which a joining process demands. A client accepts
    /// any terms.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = Some(terms);
        self
    }

    /// Sets the time that a write waits for a majority of the routers; the default is 3 s. After it, the
    /// write is not sent or may have been applied.
    pub fn write_wait(mut self, wait: Duration) -> Self {
        self.write_wait = wait;
        self
    }

    /// Sets the time for its admission to a cluster, or to a group, the state included; the default is 10 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Makes a gateway ready as soon as it listens, too: it waits for its cluster without a limit.
    pub fn ready_at_listen(mut self) -> Self {
        self.ready_at_listen = true;
        self
    }

    /// Keeps a router's log, and a storage process's rows, on disk in its [directory](Builder::directory).
    /// The process continues from there, even if all were killed at once, or lost power. The same holds for
    /// the replicas of services that a node without a role hosts: all replicas of a set have disks, or none
    /// has, and a replica that does not come back within 30 s is replaced. The process must listen at the
    /// same address each time. Other roles have no state to keep.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Makes a durable router or storage process pass bytes to the system only at a sync, and in pieces.
    /// Tests of power cuts use it: a kill then loses the same bytes as a power cut. It is slower.
    pub fn late_files(mut self) -> Self {
        self.late = true;
        self
    }

    /// Sets the upper bound of its datagrams as a member of groups, in bytes, from 512 on; the default is
    /// 8,256. A longer datagram than the network carries whole travels in fragments. It is lost with any of
    /// them, or always if fragments are blocked: 1,408 suit an Ethernet.
    pub fn datagram_bytes(mut self, bytes: usize) -> Self {
        self.datagram_bytes = bytes;
        self
    }

    /// Sets the upper bound of the updates that it sends together as a member of groups. It serves
    /// comparisons: with many concurrent sends, a bound makes it slower.
    pub fn pack(mut self, updates: u32) -> Self {
        self.pack = updates.max(1);
        self
    }

    /// Makes the node's leaders, as a host of services, execute a write when the previous one is agreed on,
    /// as 003 (§VI.A.2) does, and not on the state that they have already executed. This is slower, and
    /// serves only comparisons.
    pub fn one_at_a_time(mut self) -> Self {
        self.one_at_a_time = true;
        self
    }

    /// Sets the upper bound of a service's state, in bytes as `serde` and `postcard` encode it; the default
    /// is 1 GiB. As a host of services, the node refuses changes beyond it. The call is
    /// [`Rejected`](crate::Error::Rejected). The leader decides, so the hosts of a set should have the same
    /// bound.
    pub fn state_bytes_max(mut self, bytes: usize) -> Self {
        self.state_bytes_max = bytes;
        self
    }

    /// Makes a host of services check them, for tests: each change is applied, reverted, and applied again
    /// from its bytes, and the states are compared byte by byte. A wrong
    /// [`revert`](crate::service::Service::revert), or a delta that decodes to another one, refuses the
    /// request with that reason, and ends the replica. The state is serialised four times for each change.
    /// Equal states must have equal bytes: a state with hash maps does not.
    pub fn check_services(mut self) -> Self {
        self.checks = true;
        self
    }

    /// Makes a host of services also listen at this address for calls over HTTP: `POST /services/NAME/call`
    /// with a request in JSON, and with an `Idempotency-Key` if it has to take effect once however often it
    /// is sent; `…/transactions`; `GET /services`. See `docs/services.md`.
    pub fn http(mut self, address: impl Into<String>) -> Self {
        self.http = Some(address.into());
        self
    }

    /// Starts the process in this role.
    pub(super) fn member(
        self,
        role: Role,
        directory_lock: Option<Arc<DirectoryLock>>,
    ) -> Result<Member, Error> {
        match role {
            Role::Cell => return Err(Error::start("a cell is started by quorate::maps, and not as a node")),
            Role::Router => {}
            _ if self.found => return Err(Error::start("only a router can found a domain")),
            Role::Gateway | Role::Storage | Role::Super => {}
        }
        let domain = match self.domain {
            Some(domain) => domain,
            None if self.found && self.routers.is_empty() => chance::domain(),
            None => ask_domain(&self.routers, self.patience)?,
        };
        let number = directory_lock.as_ref().map(|directory_lock| directory_lock.node).or(self.number);
        let journal = self.journal_directory(role)?;
        let opened = match (&journal, number) {
            (Some(place), Some(number)) => {
                Some(Journal::open(place, Owner { domain, node: number, role, late: self.late })?)
            }
            _ => None,
        };
        // This process asks the other routers before it listens. Until then, a router that has not begun is
        // absent to them, and to itself if it is among those that it asks.
        let beginning = match (role, &opened) {
            (Role::Router, Some(opened)) if opened.goes_on() => Some(Beginning::Join(opened.generation()?)),
            (Role::Router, _) => {
                Some(founding::begin(domain, &self.routers, self.found, self.directory.as_deref())?)
            }
            _ => None,
        };
        let (listener, listen) = bind(&self.listen)?;
        let number = number.unwrap_or_else(directory::draw);
        let name = self.name.unwrap_or_else(|| format!("{role}-{number}"));
        let setup = Setup {
            advertised: advertised(self.advertise.as_deref(), listen),
            role,
            storage: self.storage,
            name,
            number,
            domain,
            routers: self.routers,
            listener,
            listen,
            insecure: self.insecure,
            directory: self.directory,
            detector: self.detector,
            terms: self.terms,
            write_wait: self.write_wait,
            journal,
            late: self.late,
            _directory_lock: directory_lock,
        };
        Member::start(setup, beginning, opened)
    }

    /// Returns the directory of the node's service replicas' logs, and the node's number there; `None` keeps
    /// logs in memory.
    pub(super) fn hosts_directory(&self, directory_lock: Option<&DirectoryLock>) -> Option<(PathBuf, u64)> {
        let is_host = self.durable && self.role.is_none();
        is_host
            .then_some(self.directory.clone()?)
            .zip(directory_lock.map(|directory_lock| directory_lock.node))
    }

    /// Returns the addresses at which the node's further processes listen, and at which others reach them: at
    /// the same host, at ports that the system chooses.
    pub(super) fn further_addresses(&self, address: SocketAddr) -> (String, Option<String>) {
        further_addresses(self.advertise.as_deref(), address)
    }

    /// Returns the advertised form of its own address.
    pub(super) fn advertised(&self, address: SocketAddr) -> String {
        advertised(self.advertise.as_deref(), address)
    }

    /// Returns the settings of a member in addition to the one in its role: with its own number and name, and
    /// without the directory.
    pub(super) fn beside_role(mut self, member: &Member) -> Builder {
        if member.role() == Role::Router {
            self.routers.push(member.address().to_string());
        }
        self.name = self.name.map(|name| format!("{name}-{}", Role::Gateway));
        self.domain = Some(member.domain());
        (self.role, self.number, self.directory, self.found) = (None, None, None, false);
        self
    }

    /// Returns the settings with an address for a further process.
    pub(super) fn moved_beside(mut self, address: SocketAddr) -> Builder {
        (self.listen, self.advertise) = self.further_addresses(address);
        self
    }

    /// Returns the directory of the journal, if there has to be one.
    fn journal_directory(&self, role: Role) -> Result<Option<PathBuf>, Error> {
        match (role, &self.directory) {
            _ if !self.durable => Ok(None),
            (Role::Router | Role::Storage, Some(directory)) => Ok(Some(directory.clone())),
            (Role::Router | Role::Storage, None) => Err(Error::start("a durable process needs a directory")),
            _ => Err(Error::start(
                "only routers and storage processes can be durable; other processes have nothing to keep",
            )),
        }
    }
}
