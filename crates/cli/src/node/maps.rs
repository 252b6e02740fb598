//! A router or a cell of a domain of maps, in the foreground.

use std::{net::TcpListener, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use crossbeam_channel::{Receiver, select};
use quorate::{
    maps::{CellStatus, Process, Setup, Task},
    process::End,
};
use quorate_command::{Coded, Usage};
use quorate_protocol::{
    DomainId, ProcessId, Role,
    partial::{self, Place, Site, tokens_of},
};
use quorate_runtime::{
    door::ClientLimits,
    metrics::{Gauge, Metrics},
};
use quorate_server::{http, resp};
use serde_json::{Value, json};
use tracing::{error, info};

use crate::{OLDER_COPY, config::NodeConfig, lifeline::Bound};

/// How long the protocol thread may take to say where it stands.
const PATIENCE: Duration = Duration::from_millis(800);

/// Runs the process until it is asked to stop, or can not go on.
pub(super) fn run(config: NodeConfig, stop: &Receiver<()>) -> Result<()> {
    let doors = Metrics::new([("process", config.name.clone()), ("role", config.role.to_string())]);
    let mut redis = None;
    let task = match (&config.redis_listen, config.role) {
        (Some(address), Role::Cell) => {
            let listener =
                TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
            redis = Some(listener.local_addr()?.to_string());
            cell(&config, listener, &doors)?
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
        redis,
    };
    let process = Arc::new(process);
    let exhibit = Exhibit {
        name: config.name.clone(),
        role,
        domain: config.domain,
        me: process.id(),
        started: super::exhibit::unix_ms(),
        process: process.clone(),
        gauges: Gauges::new(&doors),
        doors,
    };
    threads.spawn(http::serve(listener, Arc::new(exhibit), Vec::new(), std::future::pending()));
    bound.announce()?;

    let ended = select! {
        recv(stop) -> _ => None,
        recv(process.ended()) -> end => {
            Some(end.unwrap_or(End::Broken(String::from("the protocol thread is gone"))))
        }
    };
    process.stop();
    threads.shutdown_timeout(Duration::from_millis(200));
    match ended {
        None => {
            info!("stopped");
            Ok(())
        }
        Some(end) => {
            error!(?end, "cannot go on");
            match end {
                End::OlderCopy(why) => Err(Coded { code: OLDER_COPY, why }.into()),
                end => Err(anyhow!("{end}")),
            }
        }
    }
}

fn cell(config: &NodeConfig, listener: TcpListener, doors: &Metrics) -> Result<Task> {
    let level = resp::level(&config.cell.level).map_err(Usage)?;
    let front = resp::Front::new(resp::Settings { level, ..resp::Settings::default() }, doors);
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
    Ok(Task::Cell { place, distances, settings, front: Some((Box::new(front), listener)) })
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

    fn operate(&self, _: &str) -> Result<String, String> {
        Err(String::from(
            "maps and cells are changed through the Redis door of a cell: QUORATE CREATE, DROP, DISMISS",
        ))
    }
}
