//! The processes of a local cluster, and where each of them listens.

use std::{
    io::{self, ErrorKind},
    net::TcpListener,
    ops::RangeInclusive,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use quorate::maps::Between;
use quorate_command::Usage;
use quorate_protocol::{DomainId, Role, partial::Site};

use crate::{
    charter::{Content, Shape},
    config::{self, CellConfig, DetectorConfig, DistanceConfig, EngineConfig, NodeConfig, Orders},
};

/// All that decides it.
pub(super) struct Plan {
    pub(super) domain: DomainId,
    pub(super) shape: Shape,
    /// The first port; 0: each process takes what is free.
    pub(super) first_port: u16,
    /// How each cell is configured.
    pub(super) cell: CellConfig,
    /// How far its sites are from each other.
    pub(super) distances: Vec<Between>,
    /// Where routers, storage processes and cells keep what they have; none: in memory.
    pub(super) kept_in: Option<PathBuf>,
    /// Their files hand over bytes only at a sync.
    pub(super) late_files: bool,
}

/// How many supers: one plans, the other is there when it dies (S14).
const SUPERS: u16 = 2;

/// How long a port may stay taken by a cluster that was just killed; longer if its processes may be in the middle of a sync.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
const SYNC_PATIENCE: Duration = Duration::from_secs(10);

/// Ports that are drawn for a cluster that keeps them: above those of services, below those that systems take for clients.
const DRAWN: RangeInclusive<u16> = 10_000..=32_000;
const DRAWS: usize = 200;

impl Plan {
    /// Every process of the cluster. The first founds the domain. One that lives in memory and takes what port is free learns
    /// from the supervisor whom it joins.
    pub(super) fn processes(&self) -> Result<Vec<NodeConfig>> {
        let Shape { routers, storage, replicas, .. } = self.shape;
        let content = self.shape.content();
        // Those that hold rows share the processors.
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let scan_threads = (processors / usize::from(storage.max(1))).clamp(1, config::SCAN_THREADS_MAX);
        let (wanted_storage, replicas) = match content {
            Content::Tables => (storage.into(), replicas.into()),
            Content::Maps => (config::defaults::storage(), config::defaults::replicas()),
        };
        let services: Vec<String> =
            (1..=self.shape.cells).map(|cell| self.address(self.services(cell))).collect::<Result<_, _>>()?;
        let mut plan = Vec::new();
        for (node, (role, number)) in (1..).zip(self.places()) {
            let durable = self.kept_in.is_some() && matches!(role, Role::Router | Role::Storage | Role::Cell);
            plan.push(NodeConfig {
                domain: self.domain,
                node,
                name: format!("{role}-{number}"),
                role,
                listen: self.address(2 * node - 1)?,
                advertise: None,
                sql_listen: if role == Role::Gateway { Some(self.address(0)?) } else { None },
                redis_listen: if role == Role::Cell { Some(self.address(self.door(number))?) } else { None },
                orders: match content {
                    Content::Maps if role == Role::Router => Orders::Maps,
                    _ => Orders::Tables,
                },
                http_listen: self.address(2 * node)?,
                found: node == 1,
                routers: Vec::new(),
                wanted_routers: routers.into(),
                wanted_storage,
                replicas,
                write_wait_ms: config::defaults::write_wait_ms(),
                insecure: false,
                supervised: true,
                data_dir: self.kept_in.clone().filter(|_| durable),
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

    /// The configuration of the cell of this number, one of those that host services here.
    fn cell_at(&self, number: u16, services: &[String]) -> CellConfig {
        let index = number - 1;
        let site = index % self.shape.sites.max(1);
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

    /// The processes by role and number, in the order of their nodes.
    fn places(&self) -> impl Iterator<Item = (Role, u16)> {
        let Shape { routers, storage, standby, cells, .. } = self.shape;
        let roles = match self.shape.content() {
            Content::Maps => vec![(Role::Router, routers), (Role::Cell, cells)],
            Content::Tables => vec![
                (Role::Router, routers),
                (Role::Super, SUPERS),
                (Role::Storage, storage + standby),
                (Role::Gateway, 1),
            ],
        };
        roles.into_iter().flat_map(|(role, count)| (1..=count).map(move |number| (role, number)))
    }

    /// The place among the ports at which clients come to this cell: the one that was chosen to the first, those behind the ports of
    /// the processes to the others.
    fn door(&self, cell: u16) -> u64 {
        let Shape { routers, cells, .. } = self.shape;
        match cell {
            0 | 1 => 0,
            _ => 2 * u64::from(routers + cells) + u64::from(cell) - 1,
        }
    }

    /// The place among the ports at which this cell hosts services, behind all of them.
    fn services(&self, cell: u16) -> u64 {
        let Shape { routers, cells, .. } = self.shape;
        2 * u64::from(routers + cells) + u64::from(cells) - 1 + u64::from(cell)
    }

    fn address(&self, offset: u64) -> Result<String, Usage> {
        match self.first_port {
            0 => Ok(String::from("127.0.0.1:0")),
            port => match u16::try_from(u64::from(port) + offset) {
                Ok(port) => Ok(format!("127.0.0.1:{port}")),
                Err(_) => Err(Usage(format!("--port {port}: the ports after it do not suffice"))),
            },
        }
    }

    /// Chooses a first port so that all ports of the plan are free now. A process that is started again must listen where it
    /// did, so the system's choice, which it gives to anybody meanwhile, does not do.
    pub(super) fn draw_ports(&mut self) -> Result<()> {
        let last = match self.shape.cells {
            0 => 2 * self.places().count() as u64,
            cells => self.services(cells),
        };
        let count = u16::try_from(last)? + 1;
        for _ in 0..DRAWS {
            let chance = getrandom::u32().map_err(|error| anyhow!("no random bytes: {error}"))?;
            let width = u32::from(DRAWN.end() - DRAWN.start() - count);
            let first = DRAWN.start() + u16::try_from(chance % width)?;
            let free = |port| TcpListener::bind(("127.0.0.1", port));
            if (first..first + count).map(free).collect::<io::Result<Vec<_>>>().is_ok() {
                self.first_port = first;
                return Ok(());
            }
        }
        bail!(
            "no {count} ports in a row are free between {} and {}: choose some with --port",
            DRAWN.start(),
            DRAWN.end()
        )
    }
}

/// Says which port is taken, rather than letting one of many processes fail. One that a cluster held which was just killed is
/// free in a moment.
pub(super) fn check_ports(plan: &[NodeConfig], goes_on: bool) -> Result<()> {
    let (patience, otherwise) = if goes_on {
        let why = "this cluster keeps its ports, because its processes know each other by them";
        (SYNC_PATIENCE, format!("end that program; {why}"))
    } else {
        (PORT_PATIENCE, String::from("choose other ports with --port"))
    };
    let began = Instant::now();
    let listen = |address: &String| loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < patience => {
                thread::sleep(Duration::from_millis(20));
            }
            bound => return bound,
        }
    };
    // The door first: it is the port that people choose.
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
            anyhow!(
                "{} cannot listen at {address}: {error}; another program has it, or processes of a killed cluster that do \
                 not end: {otherwise}",
                config.name
            )
        })?;
    }
    Ok(())
}
