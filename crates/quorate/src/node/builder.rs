//! The settings of a node.

#[cfg(any(feature = "tables", feature = "groups", feature = "services"))]
mod further;
#[cfg(feature = "groups")]
mod groups;
#[cfg(feature = "services")]
mod services;
#[cfg(feature = "tables")]
mod tables;

use std::{path::PathBuf, sync::Arc, time::Duration};

use quorate_protocol::{DomainId, Role, Terms, detector};
use quorate_runtime::chance;

use super::{
    Member,
    directory::{self, DirectoryLock},
    founding::{self, Beginning},
    journal::{Journal, Owner},
    options::CapabilityOptions,
    role_work::LifeStart,
    setup::Setup,
};
use crate::{
    address::{advertised, ask_domain, bind},
    error::Error,
};

/// Sets a node up ([`Node::builder`](super::Node::builder)).
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) role: Option<Role>,
    pub(super) found: bool,
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
    pub(super) patience: Duration,
    pub(super) ready_at_listen: bool,
    pub(super) durable: bool,
    late: bool,
    /// The options of each capability.
    pub(super) options: CapabilityOptions,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            role: None,
            found: false,
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
            patience: Duration::from_secs(10),
            ready_at_listen: false,
            durable: false,
            late: false,
            options: CapabilityOptions::default(),
        }
    }
}

impl Builder {
    /// Sets the addresses of routers, `host:port`. Tables and groups need nothing else.
    pub fn routers<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.routers = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the role that the node takes in a cluster of tables when it starts. A node without a role holds
    /// none of the cluster's data. A node other than a gateway also becomes a client of the tables, as a
    /// separate member, when the program calls [`Node::db`](super::Node::db) or
    /// [`Node::gateway`](super::Node::gateway).
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Makes a router found the domain if the domain does not exist. One router of a domain does this, once.
    pub fn found(mut self) -> Self {
        self.found = true;
        self
    }

    /// Sets the node's name for display.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the node number, which no other process of the cluster may have. The default is the number in the
    /// node's directory, or a random one.
    pub fn number(mut self, number: u64) -> Self {
        self.number = Some(number);
        self
    }

    /// Sets the node's domain. The default is the routers' domain; a founder draws a random one.
    pub fn domain(mut self, domain: DomainId) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Sets the address at which the node listens for its role, or, if it has no role, as a host of services.
    /// The default is `127.0.0.1` at a port that the system chooses. The node's further processes listen at
    /// the same host, at ports that the system chooses.
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

    /// Sets the directory of the state that outlives the process: the node's number, and the mark that the
    /// node founded its domain. Only one process with this node number can use the directory at a time:
    /// a second such process is refused ([`Error::DirectoryInUse`]) as long as the first lives.
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// Sets the settings of the failure detector.
    pub fn detector(mut self, settings: detector::Settings) -> Self {
        self.detector = settings;
        self
    }

    /// Sets the terms of the domain: a founder founds the domain with these terms, and a joining process
    /// joins only a domain with these terms. A client accepts any terms.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = Some(terms);
        self
    }

    /// Sets the upper bound of the time for the node's admission to a cluster, or to a group including the
    /// transfer of the state. The default is 10 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Makes the start of a gateway end as soon as the gateway listens. The gateway then waits for its
    /// cluster without a limit.
    pub fn ready_at_listen(mut self) -> Self {
        self.ready_at_listen = true;
        self
    }

    /// Keeps a router's log, and a storage process's rows, on disk in its [directory](Builder::directory).
    /// The process continues from its disk, even if all processes were killed at once, or lost power. A node
    /// without a role keeps the replicas of its services on disk. All replicas of a set must have disks, or
    /// none, and a replica that does not come back within 30 s is replaced. The process must listen at the
    /// same address each time. Other roles have no state to keep.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Makes a durable router or storage process pass bytes to the system only at a sync, and in pieces.
    /// Tests of power cuts use this setting: a kill then loses the same bytes as a power cut. The setting
    /// makes syncs slower.
    pub fn late_files(mut self) -> Self {
        self.late = true;
        self
    }

    /// Starts the node's process in this role.
    pub(super) fn member(
        self,
        role: Role,
        directory_lock: Option<Arc<DirectoryLock>>,
    ) -> Result<Member, Error> {
        if role == Role::Cell {
            return Err(Error::start("a cell is started by quorate::maps, and not as a node"));
        }
        let work = self.options.work(role)?;
        if self.found && role != Role::Router {
            return Err(Error::start("only a router can found a domain"));
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
        // This process asks the other routers before it listens. Until it listens, it is absent to them, and
        // also to itself if it asks its own address.
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
            journal,
            late: self.late,
            _directory_lock: directory_lock,
        };
        Member::start(setup, work, LifeStart { former: None, beginning, journal: opened })
    }

    /// Returns the directory of the journal, if the role needs one.
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
