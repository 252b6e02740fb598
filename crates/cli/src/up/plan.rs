//! The processes of a local cluster, and their addresses.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, TcpListener},
    ops::RangeInclusive,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use quorate::maps::Between;
use quorate_command::{Usage, log_stderr};
use quorate_protocol::{DomainId, Role, partial::Site};

use crate::{
    charter::{ClusterContent, ClusterSize},
    config::{self, CellConfig, DetectorConfig, DistanceConfig, EngineConfig, NodeConfig},
};

/// The settings that determine the processes.
pub(super) struct ClusterPlan {
    pub(super) domain: DomainId,
    pub(super) size: ClusterSize,
    /// First port. With 0 each process takes a free port.
    pub(super) first_port: u16,
    /// Configuration of each cell.
    pub(super) cell: CellConfig,
    /// Distances between the sites of cells.
    pub(super) distances: Vec<Between>,
    /// Directory for the data of routers, storage processes and cells, or `None` in memory.
    pub(super) data_root: Option<PathBuf>,
    /// Whether files get their bytes only at a sync.
    pub(super) late_files: bool,
}

/// Number of supers: one plans, and the other takes over when it dies (S14).
const SUPERS: u16 = 2;

/// Longest time that a port may stay taken after a cluster was killed.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
/// Longest time that a port may stay taken if the killed processes may be in the middle of a sync.
const SYNC_PATIENCE: Duration = Duration::from_secs(10);

/// Range of the drawn ports: above the ports of services, and below those that systems use for outgoing
/// connections.
const DRAWN_PORTS: RangeInclusive<u16> = 10_000..=32_000;
/// Maximum number of attempts to draw ports that are all free.
const DRAWS_MAX: usize = 200;

impl ClusterPlan {
    /// Returns the configurations of all processes. The first process founds the domain. In a cluster in
    /// memory with free ports, the supervisor later tells each process which routers to join.
    pub(super) fn processes(&self) -> Result<Vec<NodeConfig>> {
        let ClusterSize { routers, storage, replicas, .. } = self.size;
        // The processes that hold rows share the machine's processors, so each process gets a part of them.
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let scan_threads = (processors / usize::from(storage.max(1))).clamp(1, config::SCAN_THREADS_MAX);
        let (wanted_storage, replicas) = if self.size.has(ClusterContent::Tables) {
            (storage.into(), replicas.into())
        } else {
            (config::defaults::storage(), config::defaults::replicas())
        };
        let services: Vec<String> =
            (1..=self.size.cells).map(|cell| self.address(self.services(cell))).collect::<Result<_, _>>()?;
        let mut plan = Vec::new();
        for (node, (role, number)) in (1..).zip(self.places()) {
            let durable =
                self.data_root.is_some() && matches!(role, Role::Router | Role::Storage | Role::Cell);
            plan.push(NodeConfig {
                domain: self.domain,
                node,
                name: format!("{role}-{number}"),
                role,
                listen: self.address(2 * node - 1)?,
                advertise: None,
                sql_listen: if role == Role::Gateway { Some(self.address(0)?) } else { None },
                redis_listen: if role == Role::Cell { Some(self.address(self.door(number))?) } else { None },
                http_listen: self.address(2 * node)?,
                http_names: Vec::new(),
                found: node == 1,
                routers: Vec::new(),
                wanted_routers: routers.into(),
                wanted_storage,
                replicas,
                write_wait_ms: config::defaults::write_wait_ms(),
                insecure: false,
                supervised: true,
                data_dir: self.data_root.clone().filter(|_| durable),
                durable,
                late_files: durable && self.late_files,
                detector: DetectorConfig::default(),
                engine: EngineConfig { scan_threads, ..EngineConfig::default() },
                cell: match role {
                    Role::Cell => self.cell_at(number, &services),
                    _ => self.cell.clone(),
                },
            });
        }
        Ok(plan)
    }

    /// Returns the configuration of the cell with this number. `services` are the service addresses of all
    /// cells.
    fn cell_at(&self, number: u16, services: &[String]) -> CellConfig {
        let index = number - 1;
        let site = index % self.size.sites.max(1);
        let between = self.distances.iter().filter_map(|between| between.from(Site(site)));
        let between = between.map(|(other, distance)| DistanceConfig::new(other.0, distance));
        let others = services.iter().enumerate().filter(|(other, _)| *other != usize::from(index));
        CellConfig {
            site,
            distances: between.collect(),
            services_listen: services.get(usize::from(index)).cloned(),
            services: others.map(|(_, address)| address.clone()).collect(),
            ..self.cell.clone()
        }
    }

    /// Returns the role and number of each process, in the order of the nodes.
    fn places(&self) -> impl Iterator<Item = (Role, u16)> {
        let ClusterSize { routers, storage, standby, cells, .. } = self.size;
        let mut roles = vec![(Role::Router, routers)];
        if self.size.has(ClusterContent::Tables) {
            roles.extend([(Role::Super, SUPERS), (Role::Storage, storage + standby), (Role::Gateway, 1)]);
        }
        roles.push((Role::Cell, cells));
        roles.into_iter().flat_map(|(role, count)| (1..=count).map(move |number| (role, number)))
    }

    /// Returns the offset from the first port of this cell's door for clients. The port that the user chose
    /// belongs to SQL, or to the first cell if there are no tables. The other doors follow the ports of the
    /// processes.
    fn door(&self, cell: u16) -> u64 {
        match self.size.has(ClusterContent::Tables) {
            false if cell == 1 => 0,
            false => 2 * self.places().count() as u64 + u64::from(cell) - 1,
            true => 2 * self.places().count() as u64 + u64::from(cell),
        }
    }

    /// Returns the offset from the first port at which this cell hosts services. These ports come last.
    fn services(&self, cell: u16) -> u64 {
        let last_door = match self.size.cells {
            0 => 2 * self.places().count() as u64,
            cells => self.door(cells).max(2 * self.places().count() as u64),
        };
        last_door + u64::from(cell)
    }

    fn address(&self, offset: u64) -> Result<String, Usage> {
        match self.first_port {
            0 => Ok(String::from("127.0.0.1:0")),
            port => match u16::try_from(u64::from(port) + offset) {
                Ok(port) => Ok(format!("127.0.0.1:{port}")),
                Err(_) => Err(Usage(format!(
                    "--port {port}: the ports from {port} to 65535 are too few for the cluster; give a lower port"
                ))),
            },
        }
    }

    /// Draws a first port such that all ports of the plan are free now. A restarted process must listen at
    /// its old port. Ports chosen by the system would not do, because the system may give them to other
    /// programs in the meantime.
    pub(super) fn draw_ports(&mut self) -> Result<()> {
        let count = u16::try_from(self.services(self.size.cells))? + 1;
        for _ in 0..DRAWS_MAX {
            let chance =
                getrandom::u32().map_err(|error| anyhow!("the system gives no random bytes: {error}"))?;
            let width = u32::from(DRAWN_PORTS.end() - DRAWN_PORTS.start() - count);
            let first = DRAWN_PORTS.start() + u16::try_from(chance % width)?;
            let free = |port| TcpListener::bind(("127.0.0.1", port));
            if (first..first + count).map(free).collect::<io::Result<Vec<_>>>().is_ok() {
                self.first_port = first;
                return Ok(());
            }
        }
        bail!(
            "no {count} ports in a row are free between {} and {}: choose the first port with --port",
            DRAWN_PORTS.start(),
            DRAWN_PORTS.end()
        )
    }
}

/// Fails if a port is taken, and names the port and its holder. Without this check, one of many processes
/// would fail later. Ports of a cluster that was just killed become free soon, so the check waits a moment.
pub(super) fn check_ports(plan: &[NodeConfig], resumes: bool) -> Result<()> {
    let patience = if resumes { SYNC_PATIENCE } else { PORT_PATIENCE };
    let began = Instant::now();
    let listen = |address: &String| loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < patience => {
                thread::sleep(Duration::from_millis(20));
            }
            bound => return bound,
        }
    };
    // The doors' ports are checked first, because users choose them.
    let door = |config: &'_ NodeConfig| config.sql_listen.clone().or_else(|| config.redis_listen.clone());
    let doors = plan.iter().filter_map(|config| Some((config, door(config)?)));
    let others = plan.iter().flat_map(|config| {
        let services = config.cell.services_listen.clone();
        [Some(config.listen.clone()), Some(config.http_listen.clone()), services]
            .into_iter()
            .flatten()
            .map(move |address| (config, address))
    });
    for (config, address) in doors.chain(others) {
        listen(&address).map_err(|error| {
            let why = PortHolder::of(&address).explained(resumes);
            anyhow!("{} cannot listen at {address}: {error}; {why}", config.name)
        })?;
    }
    Ok(())
}

/// The holder of a port.
#[derive(Debug, PartialEq)]
enum PortHolder {
    /// A program that listens.
    Listened,
    /// The local end of another program's connection, to this address.
    Outgoing(SocketAddr),
    /// Not found.
    Unknown,
}

impl PortHolder {
    fn of(address: &str) -> PortHolder {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        port.map_or(PortHolder::Unknown, |port| {
            PortHolder::in_tables(tables.iter().map(String::as_str), port)
        })
    }

    /// Finds the holder of this port in the kernel's tables of sockets.
    fn in_tables<'t>(tables: impl Iterator<Item = &'t str>, port: u16) -> PortHolder {
        let mut taken = PortHolder::Unknown;
        for line in tables.flat_map(str::lines) {
            let mut fields = line.split_whitespace().skip(1);
            let (Some(local), Some(remote), Some(state)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let (Some(local), Some(remote)) = (socket(local), socket(remote)) else { continue };
            match state {
                _ if local.port() != port => {}
                LISTENS => return PortHolder::Listened,
                WAITS_FOR_STRAYS => {}
                _ => taken = PortHolder::Outgoing(remote),
            }
        }
        taken
    }

    /// Explains who holds the port, and what to do.
    fn explained(&self, resumes: bool) -> String {
        let keeps = "this cluster keeps its ports, because its processes know each other by them";
        let otherwise = if resumes { keeps } else { "or choose other ports with --port" };
        match self {
            PortHolder::Outgoing(remote) => format!(
                "another program's connection to {remote} uses this port: wait until that connection ends; {otherwise}. \
                 `sysctl net.ipv4.ip_local_reserved_ports` keeps ports out of the range that such connections take"
            ),
            PortHolder::Listened | PortHolder::Unknown if resumes => format!(
                "another program, or a process of a killed cluster, uses this port: end that program; {keeps}"
            ),
            PortHolder::Listened | PortHolder::Unknown => String::from(
                "another program, or a process of a killed cluster, uses this port: choose other ports with --port",
            ),
        }
    }
}

/// State of a listening socket in the kernel's tables.
const LISTENS: &str = "0A";
/// State of a closed socket in the kernel's tables, which does not prevent another program from listening.
const WAITS_FOR_STRAYS: &str = "06";

/// Parses an address of the kernel's tables, such as `0100007F:1F90`. Each group of four bytes is in this
/// machine's byte order.
fn socket(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for word in address.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address: IpAddr = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        _ => <[u8; 16]>::try_from(bytes).ok()?.into(),
    };
    Some(SocketAddr::new(address.to_canonical(), port))
}

/// Warns about chosen ports in the range that the system uses for outgoing connections. Such a connection may
/// hold a port when the cluster or one of its processes starts again.
pub(super) fn warn_of_clients_ports(plan: &[NodeConfig], first: u16) {
    let Ok(range) = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range") else { return };
    let range: Vec<u16> = range.split_whitespace().filter_map(|bound| bound.parse().ok()).collect();
    let ports = plan.iter().flat_map(|config| {
        let doors =
            [config.sql_listen.as_ref(), config.redis_listen.as_ref(), config.cell.services_listen.as_ref()];
        let all = doors.into_iter().flatten().chain([&config.listen, &config.http_listen]);
        all.filter_map(|address| address.rsplit_once(':')?.1.parse::<u16>().ok()).collect::<Vec<_>>()
    });
    let (&[low, high], Some(last)) = (&range[..], ports.max()) else { return };
    if first > 0 && first <= high && last >= low {
        log_stderr(format_args!(
            "--port {first}: ports {first} to {last} lie in the range {low} to {high}, from which this system takes ports for outgoing \
             connections. Such a connection may take a port while its process is down, which then cannot start again. Ports \
             below {low} are safe"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_port_is_identified() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(PortHolder::of(&address.to_string()), PortHolder::Listened);
        let client = std::net::TcpStream::connect(address).unwrap();
        let taken = PortHolder::of(&client.local_addr().unwrap().to_string());
        assert_eq!(taken, PortHolder::Outgoing(address));
        let said = taken.explained(true);
        assert!(
            said.contains("wait until that connection ends") && !said.contains("end that program"),
            "{said}"
        );
    }
}
