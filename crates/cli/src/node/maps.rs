//! A router or a cell of a domain of maps, in the foreground.

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
    maps::{CellStatus, Process, Recent, Setup, Task, strategy},
    process::End,
};
use quorate_command::{Coded, Usage};
use quorate_protocol::{
    DomainId, ProcessId, Role,
    partial::{self, Place, Site, tokens_of},
};
use quorate_runtime::{
    clock,
    door::ClientLimits,
    metrics::{Gauge, Metrics},
};
use quorate_server::{
    http,
    resp::{self, Handed, Latch},
};
use serde_json::{Value, json};
use tracing::info;

use super::again::{self, Program};
use crate::{
    OLDER_COPY,
    charter::SERVICES,
    config::NodeConfig,
    lifeline::{Bound, Request},
};

/// How long the protocol thread may take to say where it stands.
const PATIENCE: Duration = Duration::from_millis(800);

/// After a restart a cell that reaches more than half of the cells waits so long for the others before it serves its clients, and one
/// that does not waits so long for any.
const ALL_WITHIN: Duration = Duration::from_secs(1);
const READY_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A cell's door for clients.
struct Door {
    listener: TcpListener,
    latch: Latch,
    recent: Recent,
    /// It was left by the program before, and its clients wait.
    was_left: bool,
}

/// Runs the process until it is asked to stop or to restart, or can not go on. `left` is the door that the program before has left.
pub(super) fn run(
    config: NodeConfig,
    left: Option<RawFd>,
    requests: &Receiver<Request>,
    program: &Program,
) -> Result<()> {
    let doors = Metrics::new([("process", config.name.clone()), ("role", config.role.to_string())]);
    let mut door = None;
    let task = match (&config.redis_listen, config.role) {
        (Some(address), Role::Cell) => {
            let (task, its_door) = cell(&config, address, left, &doors)?;
            door = Some(its_door);
            task
        }
        _ => Task::Router { found: config.found, wanted: config.wanted_routers },
    };
    let process = Process::start(Setup {
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
        task,
    })?;
    let role = config.role.name();
    info!(process = %process.id(), role, listen = %process.address(), "started");

    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let listener = threads.block_on(super::bind(&config.http_listen))?;
    let bound = Bound {
        listen: process.address().to_string(),
        http: listener.local_addr()?.to_string(),
        sql: None,
        redis: door.as_ref().map(|door| door.listener.local_addr()).transpose()?.map(|it| it.to_string()),
    };
    let process = Arc::new(process);
    if let Some(Door { latch, was_left: true, .. }) = &door {
        let (process, latch) = (process.clone(), latch.clone());
        thread::Builder::new().name(String::from("door")).spawn(move || {
            await_cells(&process);
            latch.open();
        })?;
    }
    let exhibit = Exhibit {
        name: config.name.clone(),
        role,
        domain: config.domain,
        me: process.id(),
        started: super::exhibit::unix_ms(),
        process: process.clone(),
        gauges: Gauges::new(&doors),
        recent: door.as_ref().map(|door| door.recent.clone()),
        doors,
    };
    threads.spawn(http::serve(listener, Arc::new(exhibit), Vec::new(), std::future::pending()));
    bound.announce()?;

    let ended = super::wait(&config, requests, process.ended(), None);
    let restarts = matches!(ended, Ok(Request::Restart));
    let mut leaving = None;
    if restarts && let Some(Door { listener, latch, .. }) = door {
        let handed = latch.close(super::LEAVE_PATIENCE);
        let clients = handed.into_iter().map(|Handed { stream, carried }| (stream, carried));
        leaving = Some(again::leave(listener, clients.collect())?);
    }
    if ended.is_ok()
        && (config.durable || config.role == Role::Cell)
        && let Err(why) = process.pause(super::LEAVE_PATIENCE)
    {
        info!(%why, "the others will notice that it stops");
    }
    process.stop();
    threads.shutdown_timeout(Duration::from_millis(200));
    match ended {
        Ok(Request::Restart) => Err(program.execute(&bound, leaving)),
        Ok(Request::Stop) => {
            info!("stopped");
            Ok(())
        }
        Err(End::OlderCopy(why)) => Err(Coded { code: OLDER_COPY, why }.into()),
        Err(end) => Err(anyhow!("{end}")),
    }
}

/// Waits, after a restart, until the cell can answer its clients: it reaches the others, and its clock has come near the stamps that it had
/// reserved. These are ahead of the clock by no more than twice as much as a stamp may be; then by half as much.
fn await_cells(process: &Process) {
    let near = partial::Settings::default().skew_max * 3 / 2;
    let began = Instant::now();
    while began.elapsed() < READY_WITHIN {
        if began.elapsed() >= near
            && let Some(status) = process.status(PATIENCE)
            && let Some(cell) = status.cell
        {
            let cells = status.members.iter().filter(|member| member.cell.is_some()).count();
            let reached = cell.reachable.len();
            let enough = reached == cells || began.elapsed() > ALL_WITHIN && 2 * reached > cells;
            if cell.number.is_some() && enough {
                return;
            }
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The task of a cell, and its door: the one that the program before has left, or another one at this address.
fn cell(config: &NodeConfig, address: &str, left: Option<RawFd>, doors: &Metrics) -> Result<(Task, Door)> {
    let level = resp::level(&config.cell.level).map_err(Usage)?;
    let mut front = resp::Front::new(resp::Settings { level, ..resp::Settings::default() }, doors);
    let was_left = left.is_some();
    let listener = match left.map(again::take).transpose()? {
        Some((listener, clients)) => {
            let handed = clients.into_iter().map(|(stream, carried)| Handed { stream, carried });
            front.resume(handed.collect());
            listener
        }
        None => TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?,
    };
    let door =
        Door { listener: listener.try_clone()?, latch: front.latch(), recent: front.recent(), was_left };
    let place = Place {
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
    let services = config.cell.services_listen.clone().map(|listen| strategy::Services {
        listen,
        advertise: config.cell.services_advertise.clone(),
        seeds: config.cell.services.clone(),
        directory: directory.map(|directory| directory.join(format!("{SERVICES}{}", config.node))),
    });
    let kept = strategy::Settings { services, tables: config.cell.tables.clone() };
    let strategies = Some((front.strategies(), kept));
    let task =
        Task::Cell { place, distances, settings, front: Some((Box::new(front), listener)), strategies };
    Ok((task, door))
}

/// What the process shows over HTTP.
struct Exhibit {
    name: String,
    role: &'static str,
    domain: DomainId,
    me: ProcessId,
    /// In milliseconds of Unix time.
    started: u64,
    process: Arc<Process>,
    /// What its door counts, and what is asked of its cell when somebody looks.
    doors: Metrics,
    gauges: Gauges,
    /// Operations of its clients.
    recent: Option<Recent>,
}

/// What one gauge shows of a cell.
type Figure = fn(&CellStatus) -> u64;

/// The figures of a cell.
struct Gauges(Vec<(Gauge, Figure)>);

impl Gauges {
    fn new(metrics: &Metrics) -> Gauges {
        let figures: [(&str, &str, Figure); 16] = [
            ("map_running", "Operations under way", |cell| cell.running as u64),
            ("map_bytes", "Bytes of keys and entries", |cell| cell.bytes as u64),
            ("map_cells_reachable", "Cells that would be asked", |cell| cell.reachable.len() as u64),
            ("map_refused_stamps", "Writes refused for stamps too far ahead", |cell| cell.refused_skewed),
            ("map_refused_layout", "Requests refused for another layout", |cell| cell.refused_layout),
            ("map_refused_room", "Writes refused for want of room", |cell| {
                cell.refused_full + cell.refused_too_large
            }),
            ("map_repairs", "Reads that brought replicas up to date", |cell| cell.repairs),
            ("map_hints", "Hints kept for other cells", |cell| cell.hints as u64),
            ("map_hints_delivered", "Hints that reached their cells", |cell| cell.hints_delivered),
            ("map_hints_lost", "Hints given up", |cell| cell.hints_lost),
            ("map_keys", "Keys with an entry, deleted ones too", |cell| cell.keys as u64),
            ("map_compared", "Rounds of comparing with all other cells", |cell| cell.compared),
            ("map_compared_bytes", "Bytes of messages of comparing", |cell| cell.compared_bytes),
            ("map_entries_taken", "Entries taken from other cells", |cell| cell.entries_taken),
            ("map_entries_given", "Entries given to other cells", |cell| cell.entries_given),
            ("map_forgotten", "Deleted and expired values forgotten", |cell| cell.forgotten),
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

impl http::Exhibit for Exhibit {
    fn health(&self) -> Result<(), String> {
        let status = self.process.status(PATIENCE).ok_or("the protocol thread does not answer")?;
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
        if let Some(cell) = self.process.status(PATIENCE).and_then(|status| status.cell) {
            self.gauges.show(&cell);
        }
        // Looks how much is on disk, for one of the gauges.
        let _ = self.process.disk();
        // One text of two registries: the end is marked once.
        let doors = self.doors.render();
        doors.trim_end_matches("# EOF\n").to_owned() + &self.process.metrics().render()
    }

    fn recent(&self) -> Option<String> {
        let told = self.recent.as_ref()?.tell(clock::now(), clock::wall_offset());
        serde_json::to_string(&told).ok()
    }

    fn operate(&self, _: &str) -> Result<String, String> {
        Err(String::from(
            "maps and cells are changed through the Redis door of a cell: QUORATE CREATE, DROP, DISMISS",
        ))
    }
}
