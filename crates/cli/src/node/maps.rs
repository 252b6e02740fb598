//! A cell, in the foreground.

use std::{
    net::TcpListener,
    os::fd::RawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use crossbeam_channel::Receiver;
use quorate::{
    maps::{CellStatus, Front, Process, Recent, Setup, strategy::Services},
    process::End,
};
use quorate_command::{Coded, Usage};
use quorate_protocol::{
    DomainId, ProcessId,
    partial::{self, JoinOptions, Site, tokens_of},
};
use quorate_runtime::{
    clock,
    door::ClientLimits,
    metrics::{Gauge, Metrics},
};
use quorate_server::{
    http::{self, AdminPage},
    resp::{self, HandedClient},
};
use serde_json::{Value, json};
use tracing::info;

use super::{
    process::{LEAVE_PATIENCE, bind, wait},
    restart_in_place::{self, Program},
};
use crate::{
    charter::SERVICES,
    config::NodeConfig,
    lifeline::{BoundAddresses, OLDER_COPY, StopRequest},
};

/// Longest time that the protocol thread may take to report its state.
const PATIENCE: Duration = Duration::from_millis(800);

/// Longest time that a restarted cell waits for the remaining cells, before it serves clients, if it reaches
/// more than half of all cells.
const ALL_CELLS_WAIT_MAX: Duration = Duration::from_secs(1);
/// Longest time that a restarted cell waits before it serves clients, if it reaches no more than half of the
/// cells.
const READY_WAIT_MAX: Duration = Duration::from_secs(10);
/// Interval at which a waiting cell checks which cells it reaches.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// A cell's door for clients.
struct CellDoor {
    listener: TcpListener,
    front: Box<resp::RedisClients>,
    /// Whether the previous program left the door, so that clients are waiting.
    was_inherited: bool,
}

/// Runs the cell until a request stops or restarts it, or until it cannot continue. `left` is the door that
/// the previous program left.
pub(super) fn run(
    config: NodeConfig,
    left: Option<RawFd>,
    requests: &Receiver<StopRequest>,
    program: &Program,
) -> Result<()> {
    let doors = Metrics::new([("process", config.name.clone()), ("role", config.role.to_string())]);
    let CellDoor { listener: door, front, was_inherited } = CellDoor::open(&config, left, &doors)?;
    let (handover_handle, recent) = (front.handover_handle(), front.recent());
    let process = Process::start(setup(&config, front, door.try_clone()?)?)?;
    let role = config.role.name();
    info!(process = %process.id(), role, listen = %process.address(), "this process has started");

    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let listener = threads.block_on(bind(&config.http_listen))?;
    let bound = BoundAddresses {
        listen: process.address().to_string(),
        http: listener.local_addr()?.to_string(),
        sql: None,
        redis: Some(door.local_addr()?.to_string()),
    };
    let process = Arc::new(process);
    if was_inherited {
        let (process, handover_handle) = (process.clone(), handover_handle.clone());
        thread::Builder::new().name(String::from("door")).spawn(move || {
            await_cells(&process);
            handover_handle.open();
        })?;
    }
    let admin_view = CellView {
        name: config.name.clone(),
        role,
        domain: config.domain,
        me: process.id(),
        started: super::admin::unix_ms(),
        process: process.clone(),
        gauges: Gauges::new(&doors),
        recent,
        doors,
    };
    threads.spawn(http::serve(
        listener,
        config.http(),
        Arc::new(admin_view),
        Vec::new(),
        std::future::pending(),
    ));
    bound.announce()?;

    let ended = wait(&config, requests, process.ended(), None);
    let mut leaving = None;
    if matches!(ended, Ok(StopRequest::Restart)) {
        let handed = handover_handle.close(LEAVE_PATIENCE);
        let clients = handed.into_iter().map(|HandedClient { stream, client_state }| (stream, client_state));
        leaving = Some(restart_in_place::leave(door, clients.collect())?);
    }
    if matches!(ended, Ok(StopRequest::Stop | StopRequest::Restart)) {
        process.pause();
    }
    process.stop();
    threads.shutdown_timeout(Duration::from_millis(200));
    match ended {
        Ok(StopRequest::Restart) => Err(program.execute(&bound, leaving)),
        Ok(StopRequest::Stop | StopRequest::End) => {
            info!("stopped");
            Ok(())
        }
        Err(End::OlderCopy(why)) => Err(Coded { code: OLDER_COPY, why }.into()),
        Err(end) => Err(anyhow!("{end}")),
    }
}

/// Waits after a restart until the cell can answer clients: it reaches the other cells, and its clock is near
/// the stamps that it had reserved. These stamps lead the clock by at most twice the permitted lead. After
/// this wait they lead the clock by at most half of the permitted lead.
fn await_cells(process: &Process) {
    let near = partial::Settings::default().skew_max * 3 / 2;
    let began = Instant::now();
    while began.elapsed() < READY_WAIT_MAX {
        if began.elapsed() >= near
            && let Some(status) = process.status(PATIENCE)
        {
            let cells = status.members.iter().filter(|member| member.cell.is_some()).count();
            let reached = status.cell.reachable.len();
            let enough = reached == cells || began.elapsed() > ALL_CELLS_WAIT_MAX && 2 * reached > cells;
            if status.cell.number.is_some() && enough {
                return;
            }
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

impl CellDoor {
    /// Opens a cell's door: the door that the previous program left, or else a new door.
    fn open(config: &NodeConfig, left: Option<RawFd>, doors: &Metrics) -> Result<CellDoor> {
        let address = config.redis_listen.as_deref().context("a cell has no address for Redis clients")?;
        let level = resp::level(&config.cell.level).map_err(Usage)?;
        let settings = resp::Settings { level, ..resp::Settings::default() };
        let mut front = Box::new(resp::RedisClients::new(settings, doors));
        let was_inherited = left.is_some();
        let listener = match left.map(restart_in_place::take).transpose()? {
            Some((listener, clients)) => {
                let handed =
                    clients.into_iter().map(|(stream, client_state)| HandedClient { stream, client_state });
                front.resume(handed.collect());
                listener
            }
            None => TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?,
        };
        Ok(CellDoor { listener, front, was_inherited })
    }
}

/// Converts the configuration for the library.
fn setup(config: &NodeConfig, front: Box<resp::RedisClients>, door: TcpListener) -> Result<Setup> {
    let place = JoinOptions {
        name: config.name.clone(),
        site: Site(config.cell.site),
        tokens: tokens_of(config.node, config.cell.tokens),
    };
    let distances = config.cell.distances.iter().map(|it| match it.distance() {
        Ok(distance) => Ok((Site(it.site), distance)),
        Err(why) => Err(Usage(format!("cell.distances, site {}: {why}", it.site))),
    });
    let distances = distances.collect::<Result<_, Usage>>()?;
    let mut settings = partial::Settings::default();
    settings.limits.store_bytes_max = config.cell.store_bytes_max;
    settings.patience.hints.bytes_max = config.cell.hint_bytes_max;
    let directory = config.data_dir.as_ref().filter(|_| config.durable);
    let services = config.cell.services_listen.clone().map(|listen| Services {
        listen,
        advertise: config.cell.services_advertise.clone(),
        seeds: config.cell.services.clone(),
        directory: directory.map(|directory| directory.join(format!("{SERVICES}{}", config.node))),
    });
    Ok(Setup {
        domain: config.domain,
        number: config.node,
        name: config.name.clone(),
        routers: config.routers.clone(),
        listen: config.listen.clone(),
        advertise: config.advertise.clone(),
        insecure: config.insecure,
        directory: config.data_dir.clone(),
        durable: config.durable,
        late_files: config.late_files,
        detector: config.detector.settings(),
        clients: ClientLimits { clients_max: config.cell.clients_max, ..ClientLimits::default() },
        place,
        distances,
        settings,
        strategies: Some(front.strategies()),
        services,
        front: Some((front as Box<dyn Front>, door)),
    })
}

/// The state of the process, served over HTTP.
struct CellView {
    name: String,
    role: &'static str,
    domain: DomainId,
    me: ProcessId,
    /// Start of the process, in milliseconds of Unix time.
    started: u64,
    process: Arc<Process>,
    /// Counters of the cell's door.
    doors: Metrics,
    /// The cell's values at the time of the request.
    gauges: Gauges,
    /// Recent operations of the cell's clients.
    recent: Recent,
}

/// The value that a gauge shows of a cell.
type GaugeValue = fn(&CellStatus) -> u64;

/// The gauges of a cell, with their values.
struct Gauges(Vec<(Gauge, GaugeValue)>);

impl Gauges {
    fn new(metrics: &Metrics) -> Gauges {
        let figures: [(&str, &str, GaugeValue); 16] = [
            ("map_running", "Operations under way", |cell| cell.running as u64),
            ("map_bytes", "Bytes of keys and entries", |cell| cell.bytes as u64),
            ("map_cells_reachable", "Cells that this cell can reach, itself included", |cell| {
                cell.reachable.len() as u64
            }),
            (
                "map_refused_stamps",
                "Writes refused because their stamps are too far ahead of this cell's clock",
                |cell| cell.refused_skewed,
            ),
            (
                "map_refused_layout",
                "Requests refused because their sender has another layout of the ring",
                |cell| cell.refused_layout,
            ),
            (
                "map_refused_room",
                "Writes refused because the cell is full or the entry is too large",
                |cell| cell.refused_full + cell.refused_too_large,
            ),
            ("map_repairs", "Reads that brought replicas up to date", |cell| cell.repairs),
            ("map_hints", "Hints kept for other cells", |cell| cell.hints as u64),
            ("map_hints_delivered", "Hints delivered to their cells", |cell| cell.hints_delivered),
            ("map_hints_lost", "Hints dropped without delivery", |cell| cell.hints_lost),
            ("map_keys", "Keys with an entry, including deleted keys", |cell| cell.keys as u64),
            ("map_compared", "Completed rounds of comparing keys with all other cells", |cell| cell.compared),
            ("map_compared_bytes", "Bytes of the messages that compare keys with other cells", |cell| {
                cell.compared_bytes
            }),
            ("map_entries_taken", "Entries taken from other cells", |cell| cell.entries_taken),
            ("map_entries_given", "Entries given to other cells", |cell| cell.entries_given),
            ("map_forgotten", "Deleted and expired values whose entries were removed", |cell| cell.forgotten),
        ];
        let gauge = |(name, help, figure)| (metrics.gauge(name, help), figure);
        Gauges(figures.into_iter().map(gauge).collect())
    }

    fn show(&self, cell: &CellStatus) {
        for (gauge, figure) in &self.0 {
            gauge.set(i64::try_from(figure(cell)).unwrap_or(i64::MAX));
        }
    }
}

impl http::AdminView for CellView {
    fn name(&self) -> String {
        format!("{} ({})", self.name, self.role)
    }

    fn has(&self, view: AdminPage) -> bool {
        match view {
            AdminPage::Health | AdminPage::Status | AdminPage::Metrics | AdminPage::Recent => true,
            AdminPage::Tables | AdminPage::Groups => false,
        }
    }

    fn health(&self) -> Result<(), String> {
        let status =
            self.process.status(PATIENCE).ok_or("the protocol thread of this process does not answer")?;
        status.hindrance.map_or(Ok(()), Err)
    }

    fn status(&self) -> String {
        let mut status = match self.process.status(PATIENCE) {
            Some(status) => serde_json::to_value(status).unwrap_or_default(),
            None => json!({ "state": "silent", "position": 0, "process": self.me.to_string() }),
        };
        if let Value::Object(fields) = &mut status {
            fields.insert(String::from("name"), json!(self.name));
            fields.insert(String::from("role"), json!(self.role));
            fields.insert(String::from("domain"), json!(self.domain.to_string()));
            fields.insert(String::from("node"), json!(self.me.node));
            fields.insert(String::from("incarnation"), json!(format!("{:032x}", self.me.incarnation.0)));
            fields.insert(String::from("started"), json!(self.started));
            fields.insert(String::from("disk"), json!(self.process.disk()));
        }
        status.to_string()
    }

    fn metrics(&self) -> String {
        if let Some(status) = self.process.status(PATIENCE) {
            self.gauges.show(&status.cell);
        }
        // `disk` measures the used space, which updates one of the gauges.
        let _ = self.process.disk();
        // The text joins two registries, so the end mark of the first is removed.
        let doors = self.doors.render();
        doors.trim_end_matches("# EOF\n").to_owned() + &self.process.metrics().render()
    }

    fn recent(&self) -> Option<String> {
        let snapshot = self.recent.snapshot(clock::now(), clock::wall_offset());
        serde_json::to_string(&snapshot).ok()
    }

    fn operate(&self, _: &str) -> Result<String, String> {
        Err(String::from(
            "this process is a cell: a Redis client of any cell changes maps and cells by QUORATE CREATE, QUORATE DROP and QUORATE DISMISS",
        ))
    }
}
