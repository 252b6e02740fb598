//! Keeps the processes of a local cluster running.
//!
//! The first router founds the domain, once. Every later process joins through the routers that listened
//! last, whether or not they are alive. A restarted router listens at its old port. So does a gateway, so
//! that its next life joins at once and SQL clients find it. If all routers of a cluster in memory die
//! together, their successors wait for each other and for an operator. The operator may let one of them go on
//! from the members (`quorate router reform`), which never happens automatically.
//!
//! The supervisor restarts every process that dies. If the process ran for a while or was killed, the
//! supervisor restarts it at once. If it keeps dying soon by itself, the supervisor pauses longer each time.
//! A process without a disk comes back as a new incarnation that remembers nothing. If a process ends before
//! it ever listened, on its first start, the supervisor stops the cluster, because another try would not
//! help. It also stops the cluster if a process finds on its first start that its directory is an older copy.
//! On later starts such a process stays down. Nothing else stops the cluster: a process that cannot be
//! started now may start later, and [`ProcessRecords`] never fail.
//!
//! To stop the cluster, the supervisor first asks gateways to drain. In a durable cluster it then stops the
//! supers, and tells the processes with disks that all of them end ([`crate::lifeline`]): each makes its data
//! durable and waits for no other process. At last it closes the pipes, and all processes end. It never asks
//! storage processes to leave the cluster, because the other storage processes would copy their rows and then
//! end, too. Nor does it ask them to go away for a moment: other processes would have to agree, and some of
//! these have ended by then.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    os::unix::process::ExitStatusExt,
    process::{ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, anyhow};
use crossbeam_channel::{Receiver, Sender, after, never, select, tick, unbounded};
use quorate_protocol::Role;
use rustix::process::Signal;

use crate::{
    cluster::{Cluster, ProcessEntry, end_of},
    config::NodeConfig,
    kill::signal,
    lifeline::{self, BoundAddresses, OLDER_COPY},
    up::{program::this_program, records::ProcessRecords},
};

/// Runs the processes of one local cluster.
pub(super) struct Supervisor {
    records: ProcessRecords,
    /// Contents of `cluster.json`. Its processes and `slots` have the same order.
    cluster: Cluster,
    slots: Vec<SupervisedProcess>,
    events: (Sender<ProcessEvent>, Receiver<ProcessEvent>),
    failures: (Sender<Error>, Receiver<Error>),
}

struct SupervisedProcess {
    config: NodeConfig,
    life: ProcessLife,
    /// Configured addresses for processes, for SQL and for Redis. `listened` is the last address for
    /// processes.
    listen: (String, Option<String>, Option<String>),
    listened: Option<String>,
    /// Pause before the next start.
    pause: Duration,
    /// Whether the process has listened in some life.
    has_listened: bool,
}

enum ProcessLife {
    /// The process will start as soon as there is a router to join.
    Due,
    /// The process will start at this time.
    Pausing(Instant),
    /// The process is running.
    Running {
        since: Instant,
        /// The writing end of the process's standard input. The process ends when it is dropped.
        lifeline: ChildStdin,
    },
    /// The process stays down.
    Stopped,
}

/// An event of a process, with the index of its slot.
enum ProcessEvent {
    Listening(usize, BoundAddresses),
    Ended(usize, ExitStatus),
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Lifetime from which on the end of a process does not count as caused by its start.
const STABLE_AFTER: Duration = Duration::from_secs(3);
/// Longest time for gateways to drain.
const DRAIN: Duration = Duration::from_secs(5);
/// Longest time for the other processes to end.
const END: Duration = Duration::from_secs(3);
/// Longest time for processes with disks to make their data durable.
const DURABLE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval at which the records are checked.
const RECORDS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Creates a supervisor of these processes without starting them. The first process founds the domain. In
    /// a durable cluster the processes listen at the planned addresses in every life.
    pub(super) fn new(records: ProcessRecords, plan: Vec<NodeConfig>, durable: bool) -> Result<Supervisor> {
        let domain = plan.first().context("the plan of the cluster contains no process")?.domain;
        let mut processes = Vec::new();
        for config in &plan {
            processes.push(ProcessEntry {
                name: config.name.clone(),
                role: config.role,
                node: config.node,
                pid: None,
                bound: None,
                starts: 0,
                log: records.make_log(&config.name, durable)?,
                stays_down: false,
            });
        }
        let slot = |config: NodeConfig| SupervisedProcess {
            listen: (config.listen.clone(), config.sql_listen.clone(), config.redis_listen.clone()),
            // With known addresses the processes find each other whatever their order of starting.
            listened: durable.then(|| config.listen.clone()),
            config,
            life: ProcessLife::Due,
            pause: PAUSE_MIN,
            has_listened: false,
        };
        Ok(Supervisor {
            records,
            cluster: Cluster { domain, pid: std::process::id(), durable, processes },
            slots: plan.into_iter().map(slot).collect(),
            events: unbounded(),
            failures: unbounded(),
        })
    }

    /// Returns a sender for errors. An error sent here stops the cluster, and [`Supervisor::run`] returns it.
    pub(super) fn failures(&self) -> Sender<Error> {
        self.failures.0.clone()
    }

    /// Runs until a stop is requested or a failure occurs.
    pub(super) fn run(mut self) -> Result<()> {
        let stop = lifeline::stop_requests(false)?;
        let (events, failures) = (self.events.1.clone(), self.failures.1.clone());
        let tending = tick(RECORDS_CHECK_INTERVAL);
        let outcome = loop {
            if let Err(error) = self.start_due_processes() {
                break Err(error);
            }
            let timer = self
                .next_start()
                .map_or_else(never, |at| after(at.saturating_duration_since(Instant::now())));
            select! {
                recv(events) -> event => if let Err(error) = self.learn(event?) {
                    break Err(error);
                },
                recv(failures) -> error => break Err(error?),
                recv(stop) -> _ => break Ok(()),
                recv(timer) -> _ => {}
                recv(tending) -> _ => self.records.rewrite_if_needed(&self.cluster),
            }
        };
        self.stop();
        outcome
    }

    fn next_start(&self) -> Option<Instant> {
        let pausing = self.slots.iter().filter_map(|slot| match slot.life {
            ProcessLife::Pausing(until) => Some(until),
            _ => None,
        });
        pausing.min()
    }

    fn start_due_processes(&mut self) -> Result<()> {
        let now = Instant::now();
        for index in 0..self.slots.len() {
            let due = match self.slots[index].life {
                ProcessLife::Due => true,
                ProcessLife::Pausing(until) => until <= now,
                ProcessLife::Running { .. } | ProcessLife::Stopped => false,
            };
            let routers = self.routers_but(index);
            if due && (self.slots[index].config.found || !routers.is_empty()) {
                match self.start(index, routers) {
                    // The cause may be temporary, such as a limit on the number of processes.
                    Err(error) if self.slots[index].has_listened => {
                        tracing::warn!(
                            "{error:#}; the next attempt follows in {:?}",
                            self.slots[index].pause
                        );
                        self.pause(index);
                    }
                    started => started?,
                }
            }
        }
        Ok(())
    }

    /// Returns the last addresses of the other routers. If all routers are down, the first router that comes
    /// back listens at its old address. A router without other routers gets its own address, and finds no
    /// router there.
    fn routers_but(&self, index: usize) -> Vec<String> {
        let others = self.slots.iter().enumerate().filter(|(other, _)| *other != index);
        let routers = others.filter(|(_, slot)| slot.config.role == Role::Router);
        let addresses: Vec<String> = routers.filter_map(|(_, slot)| slot.listened.clone()).collect();
        let own = self.slots[index].listened.iter().filter(|_| self.slots[index].config.role == Role::Router);
        if addresses.is_empty() { own.cloned().collect() } else { addresses }
    }

    fn start(&mut self, index: usize, routers: Vec<String>) -> Result<()> {
        let slot = &mut self.slots[index];
        let entry = &mut self.cluster.processes[index];
        slot.config.routers = routers;
        let mut command = Command::new(this_program()?);
        command.arg0("quorate").arg("node").args(self.records.configuration(&slot.config)?);
        // Environment variables that configure `up` must not configure its processes.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with(crate::config::ENVIRONMENT) {
                command.env_remove(variable);
            }
        }
        // The process gets its own group, so that Ctrl-C reaches only the supervisor.
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.records.log(&entry.name));
        let mut child = command.spawn().with_context(|| format!("cannot start {}", entry.name))?;
        let (lifeline, output) = child.stdin.take().zip(child.stdout.take()).with_context(|| {
            format!("the supervisor did not get the pipes for input and output of {}", entry.name)
        })?;
        // A domain is founded only once (S1). From now on this process joins.
        slot.config.found = false;
        entry.starts += 1;
        let pid = child.id();
        let events = self.events.0.clone();
        thread::Builder::new().name(entry.name.clone()).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(bound) = serde_json::from_str(&line) {
                    let _ = events.send(ProcessEvent::Listening(index, bound));
                }
            }
            if let Ok(status) = child.wait() {
                let _ = events.send(ProcessEvent::Ended(index, status));
            }
        })?;
        slot.life = ProcessLife::Running { since: Instant::now(), lifeline };
        entry.pid = Some(pid);
        entry.bound = None;
        self.records.write(&self.cluster);
        Ok(())
    }

    /// Schedules the next start of a process after its pause, and doubles the pause.
    fn pause(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.life = ProcessLife::Pausing(Instant::now() + slot.pause);
        slot.pause = (slot.pause * 2).min(PAUSE_MAX);
    }

    fn learn(&mut self, event: ProcessEvent) -> Result<()> {
        match event {
            ProcessEvent::Listening(index, bound) => {
                let slot = &mut self.slots[index];
                slot.has_listened = true;
                slot.listened = Some(bound.listen.clone());
                if matches!(slot.config.role, Role::Router | Role::Gateway) {
                    // Other processes look for this process at the same address in its next life.
                    slot.config.listen.clone_from(&bound.listen);
                    slot.config.sql_listen.clone_from(&bound.sql);
                }
                // Redis clients look for this process at the same address in its next life.
                slot.config.redis_listen.clone_from(&bound.redis);
                self.cluster.processes[index].bound = Some(bound);
            }
            ProcessEvent::Ended(index, status) => {
                let slot = &mut self.slots[index];
                let entry = &mut self.cluster.processes[index];
                entry.pid = None;
                if entry.bound.take().is_none() {
                    // Another program may have taken the port, so the next start uses the configured
                    // addresses.
                    let SupervisedProcess { config, listen, .. } = slot;
                    (config.listen, config.sql_listen, config.redis_listen) = listen.clone();
                }
                let last_log_line = || {
                    let log = end_of(&entry.log);
                    log.lines().last().unwrap_or("").trim_start_matches("quorate: ").to_owned()
                };
                if !slot.has_listened {
                    return Err(anyhow!("{} did not start ({status}): {}", entry.name, last_log_line()));
                }
                if status.code() == Some(i32::from(OLDER_COPY)) {
                    // A further start would find the same older copy. A cluster that starts with an older
                    // copy was put together wrongly, so it stops. A working cluster goes on without the
                    // process.
                    if entry.starts == 1 {
                        return Err(anyhow!("{} cannot go on: {}", entry.name, last_log_line()));
                    }
                    tracing::error!("{} ended and is not started again: {}", entry.name, last_log_line());
                    slot.life = ProcessLife::Stopped;
                    entry.stays_down = true;
                    self.records.write(&self.cluster);
                    return Ok(());
                }
                // A process that died soon after its start, perhaps because of the start, gets longer pauses.
                // A process that was killed does not.
                let lived =
                    matches!(slot.life, ProcessLife::Running { since, .. } if since.elapsed() > STABLE_AFTER);
                let killed = status.signal() == Some(Signal::KILL.as_raw());
                if lived || killed {
                    slot.pause = PAUSE_MIN;
                    slot.life = ProcessLife::Due;
                    tracing::warn!("{} ended ({status}) and is started again", entry.name);
                } else {
                    tracing::warn!(
                        "{} ended ({status}) and is started again in {:?}",
                        entry.name,
                        slot.pause
                    );
                    self.pause(index);
                }
            }
        }
        self.records.write(&self.cluster);
        Ok(())
    }

    /// Stops all processes. A second request to stop ends this process at once, and all other processes with
    /// it.
    fn stop(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot.life, ProcessLife::Due | ProcessLife::Pausing(_)) {
                slot.life = ProcessLife::Stopped;
            }
        }
        self.ask(Role::Gateway, DRAIN);
        if self.cluster.durable {
            // Supers stop first. Otherwise they would consider the other processes dead, one after another,
            // and replace them.
            self.drop_pipes(|role| role == Role::Super);
            self.await_ends(END, |config| config.role == Role::Super);
            self.end_together([Role::Storage, Role::Cell, Role::Router]);
        }
        self.drop_pipes(|_| true);
        self.await_ends(END, |_| true);
        for index in 0..self.slots.len() {
            if let Some(pid) = self.cluster.processes[index].pid {
                tracing::warn!(
                    "{} (pid {pid}) did not end in time and is killed",
                    self.cluster.processes[index].name
                );
                self.signal(index, Signal::KILL);
            }
        }
    }

    /// Sends SIGTERM to all processes of a role, and waits until they have ended, at most for `patience`.
    fn ask(&mut self, role: Role, patience: Duration) {
        for index in 0..self.slots.len() {
            if self.slots[index].config.role == role {
                self.signal(index, Signal::TERM);
            }
        }
        self.await_ends(patience, |config| config.role == role);
    }

    /// Tells the processes of these roles that the whole cluster ends, and waits until they have ended.
    fn end_together<const ROLES: usize>(&mut self, roles: [Role; ROLES]) {
        for (slot, entry) in self.slots.iter_mut().zip(&self.cluster.processes) {
            if let ProcessLife::Running { lifeline, .. } = &mut slot.life
                && roles.contains(&slot.config.role)
                && let Err(error) = lifeline.write_all(lifeline::END)
            {
                tracing::warn!("cannot tell {} to end: {error}", entry.name);
            }
        }
        self.await_ends(DURABLE_WAIT_MAX, |config| roles.contains(&config.role));
    }

    /// Ends the processes of the chosen roles at once, by dropping their pipes.
    fn drop_pipes(&mut self, chosen: impl Fn(Role) -> bool) {
        for slot in &mut self.slots {
            if matches!(slot.life, ProcessLife::Running { .. }) && chosen(slot.config.role) {
                slot.life = ProcessLife::Stopped;
            }
        }
    }

    fn signal(&self, index: usize, what: Signal) {
        let entry = &self.cluster.processes[index];
        if let Some(pid) = entry.pid
            && let Err(error) = signal(pid, what)
        {
            tracing::warn!("cannot send a signal to {} (pid {pid}): {error}", entry.name);
        }
    }

    /// Waits until the chosen processes have ended, at most for `patience`.
    fn await_ends(&mut self, patience: Duration, chosen: impl Fn(&NodeConfig) -> bool) {
        let deadline = Instant::now() + patience;
        let runs = |supervisor: &Supervisor| {
            let mut processes = supervisor.slots.iter().zip(&supervisor.cluster.processes);
            processes.any(|(slot, entry)| entry.pid.is_some() && chosen(&slot.config))
        };
        while runs(self) {
            match self.events.1.recv_deadline(deadline) {
                Ok(ProcessEvent::Ended(index, _)) => {
                    self.cluster.processes[index].pid = None;
                    self.slots[index].life = ProcessLife::Stopped;
                }
                Ok(ProcessEvent::Listening(..)) => {}
                Err(_) => return,
            }
        }
    }
}
