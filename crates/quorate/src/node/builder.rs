//! How a node is set up.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use quorate_node::EndpointId;
use quorate_protocol::{DomainId, Role, Terms, detector, paxos, service::ClientSettings};
use quorate_runtime::{
    chance,
    config::{DATAGRAM_BYTES, DATAGRAM_BYTES_MAX},
    discover,
};
use quorate_table::engine::Bounds;

use super::{
    Member, Node,
    directory::{self, Claim},
    founding::{self, Beginning},
    journal::{Journal, Owner},
};
use crate::{
    crew::Muster,
    error::Error,
    pending::{Pending, on_a_thread},
    service,
};

/// What a storage process takes at most, of memory and of processors.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// What its engine takes.
    pub bounds: Bounds,
    /// The threads that look at the rows.
    pub muster: Muster,
    /// Bytes that are held of all results that their clients have yet to take.
    pub held_bytes_max: u64,
    /// How long a result may be held of which its client takes nothing.
    pub held_max: Duration,
}

impl Default for StorageOptions {
    fn default() -> Self {
        let settings = quorate_protocol::rubberband::StorageSettings::default();
        StorageOptions {
            bounds: Bounds::default(),
            muster: Muster::default(),
            held_bytes_max: settings.held_bytes_max,
            held_max: settings.held_max,
        }
    }
}

/// Sets a node up ([`Node::builder`]).
#[derive(Clone, Debug)]
pub struct Builder {
    role: Option<Role>,
    found: bool,
    storage: StorageOptions,
    name: Option<String>,
    number: Option<u64>,
    pub(super) domain: Option<DomainId>,
    pub(super) routers: Vec<String>,
    listen: String,
    advertise: Option<String>,
    pub(super) insecure: bool,
    directory: Option<PathBuf>,
    detector: detector::Settings,
    terms: Option<Terms>,
    write_wait: Duration,
    pub(super) patience: Duration,
    at_once: bool,
    pub(super) durable: bool,
    late: bool,
    pub(super) http: Option<String>,
    pub(super) seeds: Vec<String>,
    /// The domain of its services, by name.
    pub(super) services: String,
    pub(super) call_wait: Duration,
    pub(super) log_bytes_kept: usize,
    pub(super) checks: bool,
    pub(super) one_at_a_time: bool,
    pub(super) datagram_bytes: usize,
    pub(super) pack: u32,
}

/// Where a node listens.
pub(super) enum Place {
    /// Where the process in its role does.
    Member(Member),
    /// At a socket of its own.
    Open { listener: Arc<TcpListener>, address: SocketAddr },
}

/// A node that is set up: all that each of its lives begins with.
pub(crate) struct Setup {
    pub(super) role: Role,
    /// What it takes as a storage process.
    pub(super) storage: StorageOptions,
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) domain: DomainId,
    pub(super) routers: Vec<String>,
    pub(super) listener: Arc<TcpListener>,
    pub(super) listen: SocketAddr,
    pub(super) advertised: String,
    pub(super) insecure: bool,
    pub(super) directory: Option<PathBuf>,
    pub(super) detector: detector::Settings,
    pub(super) terms: Option<Terms>,
    pub(super) write_wait: Duration,
    /// Where its journal is, if it has one, and whether its files hand over bytes only at a sync.
    pub(super) journal: Option<PathBuf>,
    pub(super) late: bool,
    /// Held as long as the member lives.
    pub(super) _claim: Option<Arc<Claim>>,
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
            at_once: false,
            durable: false,
            late: false,
            http: None,
            seeds: Vec::new(),
            services: String::from(service::DOMAIN),
            call_wait: ClientSettings::default().wait,
            log_bytes_kept: paxos::Settings::default().log_bytes_kept,
            checks: false,
            one_at_a_time: false,
            datagram_bytes: DATAGRAM_BYTES_MAX,
            pack: u32::MAX,
        }
    }
}

impl Builder {
    /// Where routers may be found, `host:port`. All that tables and groups need.
    pub fn routers<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.routers = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// Its role in a cluster of tables, from its start on. A node without a role holds nothing of them. Any node but a gateway becomes a
    /// client of them as well, a member of its own, when [`Node::db`] or [`Node::gateway`] is asked for.
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Where hosts of services may be found, `host:port`. Its own address may be among them, and does no harm.
    pub fn seeds<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.seeds = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// The domain of its services, by name: nodes of another one do not speak with it about them. There is one that is taken unless
    /// another is named.
    pub fn services(mut self, domain: impl Into<String>) -> Self {
        self.services = domain.into();
        self
    }

    /// How long a call of a service may take before its fate is told as far as it is known: 10 s unless said otherwise. The time in
    /// which a service is found does not count.
    pub fn call_wait(mut self, wait: Duration) -> Self {
        self.call_wait = wait;
        self
    }

    /// How many bytes of agreed changes a replica of a service keeps for those that lag, 64 MiB unless said otherwise. Those that lack
    /// more are given a checkpoint.
    pub fn log_bytes_kept(mut self, bytes: usize) -> Self {
        self.log_bytes_kept = bytes;
        self
    }

    /// A router founds the domain if there is none. One router of a domain does, once.
    pub fn found(mut self) -> Self {
        self.found = true;
        self
    }

    /// The most that it takes if it is a storage process.
    pub fn storage(mut self, options: StorageOptions) -> Self {
        self.storage = options;
        self
    }

    /// What people call it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Its place in the cluster, which no other process may have. Drawn at random unless said here or in its directory.
    pub fn number(mut self, number: u64) -> Self {
        self.number = Some(number);
        self
    }

    /// The domain it belongs to. Asked of the routers unless said; a founder draws it.
    pub fn domain(mut self, domain: DomainId) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Where it listens: in its role, or else as a host of services. `127.0.0.1` at a port of the system's choice, unless said otherwise. Its
    /// further processes listen at the same host, at ports of the system's choice.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    /// Where the others reach it, `host:port`, if not where it listens; port 0 stands for the port that it listens at.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// Allows addresses other than loopback. Links are neither encrypted nor authenticated.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// Where it keeps what outlives it: its number, and that it has founded its domain. One process of a number at a time:
    /// another one is refused ([`Error::DirectoryInUse`]) for as long as the first lives.
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// How patient it is with silent peers.
    pub fn detector(mut self, settings: detector::Settings) -> Self {
        self.detector = settings;
        self
    }

    /// What the domain is founded with, and what a process that joins insists on. A client takes it as it is.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = Some(terms);
        self
    }

    /// How long a write waits for a majority of the routers before it comes to nothing, or may have been applied; 3 s.
    pub fn write_wait(mut self, wait: Duration) -> Self {
        self.write_wait = wait;
        self
    }

    /// How long it tries to be taken in by a cluster, or by a group, the state included; 10 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A gateway, too, is ready as soon as it listens: it waits for its cluster for as long as it takes.
    pub fn at_once(mut self) -> Self {
        self.at_once = true;
        self
    }

    /// A router keeps its log, and a storage process its rows, on disk, in its [directory](Builder::directory), and goes on
    /// from there: also if all were killed at once, or lost power. So do the replicas of services that a node without a role hosts: all
    /// replicas of a set have disks, or none has, and one that does not come back within 30 s is replaced. It must listen at the same address
    /// each time. Other roles have nothing to keep.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// For tests of power cuts: a router or storage process that is durable hands bytes over to the system only at a sync, and in
    /// pieces. So a kill takes what a power cut would take, and leaves what it would leave. It is slower.
    pub fn late_files(mut self) -> Self {
        self.late = true;
        self
    }

    /// As a member of groups it sends datagrams of so many bytes at most, 8,256 unless said otherwise. A longer one than the network takes whole goes in
    /// fragments, and is lost with any of them, or altogether where fragments are not let through: 1,408 suit an Ethernet. From 512 on.
    pub fn datagram_bytes(mut self, bytes: usize) -> Self {
        self.datagram_bytes = bytes;
        self
    }

    /// As a member of groups it sends so many updates together at most. To be compared with: the more are sent at once, the slower it is.
    pub fn pack(mut self, updates: u32) -> Self {
        self.pack = updates.max(1);
        self
    }

    /// As a host of services it has its leaders execute a write when the one before is agreed on, as 003 (§VI.A.2) does, rather than on what
    /// they have executed already. To be compared with: it is slower.
    pub fn one_at_a_time(mut self) -> Self {
        self.one_at_a_time = true;
        self
    }

    /// As a host of services it checks them, for tests: each change is applied, reverted, and applied again as its bytes say, and the
    /// states are compared byte by byte. A wrong [`revert`](crate::service::Service::revert), or a delta that is another one behind its
    /// bytes, makes the request a refusal that says so, and ends the replica. The state is serialised four times for each change, and
    /// must come to the same bytes whenever it is the same: one with hash maps does not.
    pub fn check_services(mut self) -> Self {
        self.checks = true;
        self
    }

    /// As a host of services it listens at this address, too, for calls over HTTP: `POST /services/NAME/call` with a request in JSON, and with an
    /// `Idempotency-Key` if it is to take effect once however often it is sent; `…/transactions`; `GET /services`. See
    /// `docs/services.md`.
    pub fn http(mut self, address: impl Into<String>) -> Self {
        self.http = Some(address.into());
        self
    }

    /// Starts it. A node without a role is ready at once: what is asked of it starts more. A gateway is ready when the cluster has taken it
    /// in, and a process of another role when it listens.
    ///
    /// The work is done by a thread of its own. Whoever drops the future gives the node up: once started, it leaves.
    pub fn start(self) -> Pending<'static, Node> {
        let (begun, patience) = (Instant::now(), self.patience);
        let waits = self.role == Some(Role::Gateway) && !self.at_once;
        let started = on_a_thread("start", move || self.begin());
        Box::pin(async move {
            let node = started.await?;
            if let Some(member) = node.member().filter(|_| waits) {
                member.admitted(patience.saturating_sub(begun.elapsed())).await?;
            }
            Ok(node)
        })
    }

    fn begin(self) -> Result<Node, Error> {
        if !DATAGRAM_BYTES.contains(&self.datagram_bytes) {
            let (bytes, most) = (self.datagram_bytes, DATAGRAM_BYTES_MAX);
            return Err(Error::invalid(format!(
                "datagrams of {bytes} bytes: between {} and {most}",
                DATAGRAM_BYTES.start()
            )));
        }
        let routers = self.routers.iter().map(|address| ("a router", address));
        for (what, address) in routers.chain(self.seeds.iter().map(|address| ("a seed", address))) {
            let is_place = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok();
            if !address.rsplit_once(':').is_some_and(is_place) {
                return Err(Error::invalid(format!(
                    "the address of {what} is host:port, and \"{address}\" is none"
                )));
            }
        }
        let claim = match &self.directory {
            Some(path) => Some(Arc::new(directory::claim(path, self.number)?)),
            None => None,
        };
        match self.role {
            Some(role) => {
                let member = self.clone().member(role, claim.clone())?;
                Ok(Node::with(self, claim, Place::Member(member)))
            }
            None if self.found => Err(Error::start("only a router can found a domain")),
            None if self.durable && self.directory.is_none() => {
                Err(Error::start("a durable host of services needs a directory"))
            }
            None => {
                let (listener, address) = bind(&self.listen)?;
                Ok(Node::with(self, claim, Place::Open { listener, address }))
            }
        }
    }

    /// Starts the process in this role.
    pub(super) fn member(self, role: Role, claim: Option<Arc<Claim>>) -> Result<Member, Error> {
        match role {
            Role::Cell => return Err(Error::start("a cell is of maps, and no process of tables")),
            Role::Router => {}
            _ if self.found => return Err(Error::start("only a router can found a domain")),
            Role::Gateway | Role::Storage | Role::Super => {}
        }
        let domain = match self.domain {
            Some(domain) => domain,
            None if self.found && self.routers.is_empty() => chance::domain(),
            None => ask_domain(&self.routers, self.patience)?,
        };
        let number = claim.as_ref().map(|claim| claim.node).or(self.number);
        let journal = self.journal_directory(role)?;
        let opened = match (&journal, number) {
            (Some(place), Some(number)) => {
                let (endpoint, late) = (EndpointId::TABLES, self.late);
                Some(Journal::open(place, Owner { domain, node: number, role, endpoint, late })?)
            }
            _ => None,
        };
        // Others' word is asked before this process listens: to them, and to itself if it is among those that it asks, a
        // router that has not begun is not there.
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
            _claim: claim,
        };
        Member::start(setup, beginning, opened)
    }

    /// Where its replicas of services keep their logs, and the node's number there; none: in memory.
    pub(super) fn hosts_directory(&self, claim: Option<&Claim>) -> Option<(PathBuf, u64)> {
        let is_host = self.durable && self.role.is_none();
        is_host.then_some(self.directory.clone()?).zip(claim.map(|claim| claim.node))
    }

    /// Where its further processes listen and are reached: at the same host, at ports of the system's choice.
    pub(super) fn beside(&self, address: SocketAddr) -> (String, Option<String>) {
        let host = self.advertise.as_deref().and_then(|told| told.rsplit_once(':'));
        (SocketAddr::new(address.ip(), 0).to_string(), host.map(|(host, _)| format!("{host}:0")))
    }

    /// The advertised form of the address where it listens itself.
    pub(super) fn advertised(&self, address: SocketAddr) -> String {
        advertised(self.advertise.as_deref(), address)
    }

    /// The same for a member beside the one in its role: with a number and a name of its own, and nothing of the directory.
    pub(super) fn beside_role(mut self, member: &Member) -> Builder {
        if member.role() == Role::Router {
            self.routers.push(member.address().to_string());
        }
        self.name = self.name.map(|name| format!("{name}-{}", Role::Gateway));
        self.domain = Some(member.domain());
        (self.role, self.number, self.directory, self.found) = (None, None, None, false);
        self
    }

    /// The same node, whose next process listens beside those that there are.
    pub(super) fn moved_beside(mut self, address: SocketAddr) -> Builder {
        (self.listen, self.advertise) = self.beside(address);
        self
    }

    /// Where the journal is to be, if there is to be one.
    fn journal_directory(&self, role: Role) -> Result<Option<PathBuf>, Error> {
        match (role, &self.directory) {
            _ if !self.durable => Ok(None),
            (Role::Router | Role::Storage, Some(directory)) => Ok(Some(directory.clone())),
            (Role::Router | Role::Storage, None) => Err(Error::start("a durable process needs a directory")),
            _ => Err(Error::start(
                "only routers and storage processes can be durable; others have nothing to keep",
            )),
        }
    }
}

/// The domain of the routers at these addresses, asked again until one answers.
pub(crate) fn ask_domain(routers: &[String], patience: Duration) -> Result<DomainId, Error> {
    let began = Instant::now();
    loop {
        let mut last = String::from("no router is named to join through");
        for address in routers {
            match discover::domain(address, ASK_PATIENCE) {
                Ok(domain) => return Ok(domain),
                Err(error) => last = format!("{address}: {error}"),
            }
        }
        if routers.is_empty() {
            return Err(Error::start(last));
        }
        if began.elapsed() >= patience {
            let (all, waited) = (routers.join(", "), patience.as_millis());
            return Err(Error::start(format!(
                "no router of a cluster answers within {waited} ms at {all} (the last: {last}); `quorate status` shows where they listen"
            )));
        }
        thread::sleep(ASK_PAUSE);
    }
}

/// How long one that is asked may take, and the wait before all are asked again.
const ASK_PATIENCE: Duration = Duration::from_millis(500);
const ASK_PAUSE: Duration = Duration::from_millis(20);

/// Listens for other processes. A process is told where before it starts, and each life listens there.
pub(crate) fn bind(address: &str) -> Result<(Arc<TcpListener>, SocketAddr), Error> {
    let failed = |error: io::Error| Error::start(format!("cannot listen on {address}: {error}"));
    let place = address.to_socket_addrs().map_err(failed)?.next();
    let place = place.ok_or_else(|| Error::start(format!("{address}: no address")))?;
    let listener = TcpListener::bind(place).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((Arc::new(listener), bound))
}

/// What other processes are told to connect to.
pub(crate) fn advertised(told: Option<&str>, listen: SocketAddr) -> String {
    match told.and_then(|told| told.rsplit_once(':')) {
        None => listen.to_string(),
        Some((host, "0")) => format!("{host}:{}", listen.port()),
        Some((host, port)) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_not_told_is_the_one_that_is_listened_at() {
        let listen: SocketAddr = "0.0.0.0:7400".parse().unwrap();
        assert_eq!(advertised(None, listen), "0.0.0.0:7400");
        assert_eq!(advertised(Some("router-1:0"), listen), "router-1:7400");
        assert_eq!(advertised(Some("[::1]:80"), listen), "[::1]:80");
    }
}
