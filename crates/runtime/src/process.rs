//! One real process: a node on a reactor, its engine on a thread of its own, and whoever watches.
//!
//! ```text
//!   protocol thread ── Execute(tasks) ──▶ engine thread ── Executed(results) ──▶ protocol thread
//!                   ── client events ───▶ a callback that never blocks
//!   discovery thread ── Seeds ──▶ protocol thread        (until the routers are known)
//! ```

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use quorate_node::{Command, Event, Node, status::Status, storage::execute};
use quorate_protocol::{
    DomainId, Peer, ProcessId, Time,
    ecast::RouterEvent,
    rubberband::{ClientEvent, StorageCommand, StorageEvent, SuperEvent, Task},
};
use quorate_table::engine::Engine;
use tracing::{debug, error, info, warn};

use crate::{
    clock,
    config::{Config, StartError},
    discover::discover,
    metrics::{Counter, Metrics},
    reactor::{Handle, Host, Reactor},
    worker::Worker,
};

/// Why a process can not go on. It should end, and may be started anew, as a new incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was cut off: the others go on without it.
    Wedged,
    /// It broke an invariant, or was handed a state that does not decode.
    Broken(String),
}

/// What a process needs beside its node.
pub struct Parts {
    /// A storage process's engine.
    pub engine: Option<Box<dyn Engine>>,
    /// Where a client's events go; called on the protocol thread, must not block.
    pub client: Option<Box<dyn FnMut(ClientEvent) + Send>>,
    /// Where routers may be found.
    pub routers: Vec<String>,
}

/// A running process.
pub struct Process {
    handle: Handle<Node>,
    shared: Arc<Shared>,
    ended: Receiver<End>,
}

/// What the threads of a process share.
struct Shared {
    handle: OnceLock<Handle<Node>>,
    /// Statuses that were asked for.
    asked: Mutex<BTreeMap<u64, Sender<Status>>>,
    token: AtomicU64,
    stopping: AtomicBool,
}

struct NodeHost {
    shared: Arc<Shared>,
    engine: Option<Worker<Vec<Task>>>,
    client: Option<Box<dyn FnMut(ClientEvent) + Send>>,
    end: Sender<End>,
}

impl Process {
    /// Starts the threads.
    pub fn start(node: Node, config: Config, parts: Parts) -> Result<Process, StartError> {
        let shared = Arc::new(Shared {
            handle: OnceLock::new(),
            asked: Mutex::new(BTreeMap::new()),
            token: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        let (end, ended) = bounded(1);
        let engine = match parts.engine {
            Some(engine) => {
                let passes = Passes::new(&config.metrics);
                Some(engine_thread(engine, passes, shared.clone(), end.clone())?)
            }
            None => None,
        };
        let host = NodeHost { shared: shared.clone(), engine, client: parts.client, end: end.clone() };
        let (domain, me) = (config.domain, config.me);
        let handle = Reactor::start(node, host, config)?;
        shared.handle.set(handle.clone()).unwrap_or_else(|_| unreachable!("set once, here"));
        if !parts.routers.is_empty() {
            let shared = shared.clone();
            thread::Builder::new()
                .name(String::from("discovery"))
                .spawn(move || seek(&shared, &parts.routers, domain, me))?;
        }
        let watched = handle.clone();
        thread::Builder::new().name(String::from("watch")).spawn(move || {
            if watched.wait().is_err() {
                let _ = end.try_send(End::Broken(String::from("the protocol thread panicked")));
            }
        })?;
        Ok(Process { handle, shared, ended })
    }

    /// The protocol thread, for commands.
    pub fn handle(&self) -> &Handle<Node> {
        &self.handle
    }

    /// Tells once why the process can not go on.
    pub fn ended(&self) -> &Receiver<End> {
        &self.ended
    }

    /// Where the process stands; `None` when the protocol thread does not answer within `patience`.
    pub fn status(&self, patience: Duration) -> Option<Status> {
        let token = self.shared.token.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = bounded(1);
        let asked = || self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked().insert(token, sender);
        let sent = self.handle.try_command(Command::Status { token });
        let status = sent.ok().and_then(|()| receiver.recv_timeout(patience).ok());
        asked().remove(&token);
        status
    }

    /// Stops the threads.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        // A panic has been told by [`Process::ended`].
        let _ = self.handle.stop();
    }
}

/// What an engine's thread counts.
struct Passes {
    batches: Counter,
    tasks: Counter,
    nanoseconds: Counter,
}

impl Passes {
    fn new(metrics: &Metrics) -> Passes {
        Passes {
            batches: metrics.counter("engine_batches", "Batches of tasks that the engine did"),
            tasks: metrics.counter("engine_tasks", "Tasks in them"),
            nanoseconds: metrics.counter("engine_nanoseconds", "Time that the engine took for them"),
        }
    }
}

fn engine_thread(
    mut engine: Box<dyn Engine>,
    passes: Passes,
    shared: Arc<Shared>,
    end: Sender<End>,
) -> Result<Worker<Vec<Task>>, StartError> {
    let worker = Worker::start("engine", 4, move |batches: Vec<Vec<Task>>| {
        for tasks in batches {
            let (began, count) = (clock::now(), tasks.len() as u64);
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| execute(&mut *engine, tasks)));
            let Ok(results) = ran else {
                let _ = end.try_send(End::Broken(String::from("the engine thread panicked")));
                return;
            };
            passes.batches.inc();
            passes.tasks.inc_by(count);
            passes.nanoseconds.inc_by(clock::now().since(began).as_nanos() as u64);
            if let Some(handle) = shared.handle.get() {
                // Refused only when the process is ending.
                let _ = handle.command(Command::Storage(StorageCommand::Executed(results)));
            }
        }
    })?;
    Ok(worker)
}

/// Looks for routers at the addresses until the process knows them, and again while it has lost them.
fn seek(shared: &Shared, addresses: &[String], domain: DomainId, me: ProcessId) {
    let mut pause = Duration::from_millis(20);
    while !shared.stopping.load(Ordering::Acquire) {
        let mut seeds = Vec::new();
        for address in addresses {
            match discover(address, domain, Duration::from_millis(500)) {
                Ok(id) if id != me => seeds.push(Peer { id, address: address.clone() }),
                Ok(_) => {}
                Err(error) => debug!(%address, %error, "no router found"),
            }
        }
        if let Some(handle) = shared.handle.get()
            && !seeds.is_empty()
        {
            let _ = handle.try_command(Command::Seeds(seeds));
        }
        thread::sleep(pause);
        // Eager at first, when everything starts at once; then only in case all known routers are gone.
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

impl NodeHost {
    fn end(&self, end: End) {
        // The first reason is the one that counts.
        let _ = self.end.try_send(end);
    }

    fn router(&mut self, event: RouterEvent<quorate_protocol::rubberband::Config>) {
        match event {
            RouterEvent::Leader(leader) => info!(?leader, "lead router"),
            RouterEvent::Routers(routers) => {
                let routers: Vec<String> = routers.iter().map(|router| router.id.to_string()).collect();
                info!(?routers, "routers");
            }
            RouterEvent::Config(at, config) => {
                info!(%at, version = config.version, placement = config.placement, "configuration");
            }
            RouterEvent::ChangeRefused => warn!("a change of the routers was refused"),
            RouterEvent::Removed => self.end(End::Wedged),
            RouterEvent::Corrupt(why) => self.end(End::Broken(format!("a router's snapshot: {why}"))),
        }
    }
}

impl Host<Node> for NodeHost {
    fn event(&mut self, event: Event, _now: Time) {
        match event {
            Event::Status { token, status } => {
                let asked = self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
                if let Some(sender) = asked {
                    // Whoever asked may have lost patience.
                    let _ = sender.try_send(*status);
                }
            }
            Event::Router(event) => self.router(event),
            Event::Storage(StorageEvent::Execute(tasks)) => {
                let worker = self.engine.as_ref().expect("a storage process has an engine");
                if worker.submit(tasks).is_err() {
                    error!("the engine thread takes no work");
                    self.end(End::Broken(String::from("the engine thread takes no work")));
                }
            }
            Event::Super(SuperEvent::Suspected(process)) => warn!(%process, "suspected"),
            Event::Super(SuperEvent::Replacing { old, new }) => info!(%old, %new, "replacing"),
            Event::Super(SuperEvent::Config(config)) => {
                info!(version = config.version, placement = config.placement, "configuration");
            }
            Event::Client(event) => {
                if matches!(event, ClientEvent::Wedged) {
                    self.end(End::Wedged);
                }
                if let Some(client) = &mut self.client {
                    client(event);
                }
            }
            Event::Storage(StorageEvent::Wedged) | Event::Super(SuperEvent::Wedged) => self.end(End::Wedged),
        }
    }
}
