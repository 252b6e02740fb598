//! Keeps the processes of a local cluster running.
//!
//! The first router founds the domain, once; whatever starts later joins through the routers that listened last, dead or not:
//! a router that starts again listens where it did. So does a gateway, whose next life then joins at once, and is found by SQL
//! clients where they left it. So where all routers die at once, fresh ones wait for each other and for
//! an operator, who may have one go on from the members (`quorate router reform`). That never happens by itself. What
//! dies is started again, at once if it had run for a while or was killed, and with a growing pause while it keeps dying
//! soon of its own; it comes back as a new incarnation that remembers nothing. A process that ends before it ever
//! listened, on its first start, ends the whole: something is wrong that trying again does not mend. So does one that finds on
//! its first start that its directory is an older copy; later it stays down. Nothing else does: a
//! process that can not be started again now may be later, and [`Records`] never fail.
//!
//! Stopping: gateways are asked to drain; then the pipes close and everybody ends ([`crate::lifeline`]). Storage
//! processes are not asked to leave, as the others would then copy their rows only to end too.

use std::{
    io::{BufRead, BufReader},
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
    OLDER_COPY,
    cluster::{Cluster, Entry},
    config::NodeConfig,
    kill::signal,
    lifeline::{self, Bound},
    up::records::Records,
};

/// Runs the processes of one local cluster.
pub(super) struct Supervisor {
    records: Records,
    /// What `cluster.json` says; its processes and `slots` go in step.
    cluster: Cluster,
    slots: Vec<Slot>,
    news: (Sender<News>, Receiver<News>),
    failures: (Sender<Error>, Receiver<Error>),
}

struct Slot {
    config: NodeConfig,
    life: Life,
    /// Where it is configured to listen, for processes, for SQL and for Redis, and where it last did for processes.
    listen: (String, Option<String>, Option<String>),
    listened: Option<String>,
    /// Waits that long before the next start.
    pause: Duration,
    /// Has listened in some life.
    proven: bool,
}

enum Life {
    /// To be started as soon as there is a router to join.
    Due,
    /// To be started again at this time.
    Pausing(Instant),
    /// Runs.
    Running {
        since: Instant,
        #[expect(dead_code, reason = "it is there to be dropped: then the process ends")]
        lifeline: ChildStdin,
    },
    /// Is to stay down.
    Stopped,
}

/// What happened to a process, by its place among the slots.
enum News {
    Listening(usize, Bound),
    Ended(usize, ExitStatus),
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A process that lived this long did not die of how it starts.
const PROOF: Duration = Duration::from_secs(3);
/// How long gateways may drain, and then how long the rest may take to end.
const DRAIN: Duration = Duration::from_secs(5);
const END: Duration = Duration::from_secs(3);
/// How long processes of a role with a disk may take to make durable what they have.
const SETTLE: Duration = Duration::from_secs(5);
/// How often it is looked whether the records still stand.
const TEND: Duration = Duration::from_secs(1);

impl Supervisor {
    /// A supervisor of these processes, the first of which founds the domain. Those of a durable cluster listen at the
    /// addresses that the plan says, in every life. Nothing runs yet.
    pub(super) fn new(records: Records, plan: Vec<NodeConfig>, durable: bool) -> Result<Supervisor> {
        let domain = plan.first().context("a cluster has at least one process")?.domain;
        let mut processes = Vec::new();
        for config in &plan {
            processes.push(Entry {
                name: config.name.clone(),
                role: config.role,
                node: config.node,
                pid: None,
                bound: None,
                starts: 0,
                log: records.make_log(&config.name, durable)?,
            });
        }
        let slot = |config: NodeConfig| Slot {
            listen: (config.listen.clone(), config.sql_listen.clone(), config.redis_listen.clone()),
            // They find each other in whatever order they start.
            listened: durable.then(|| config.listen.clone()),
            config,
            life: Life::Due,
            pause: PAUSE_MIN,
            proven: false,
        };
        Ok(Supervisor {
            records,
            cluster: Cluster { domain, pid: std::process::id(), durable, processes },
            slots: plan.into_iter().map(slot).collect(),
            news: unbounded(),
            failures: unbounded(),
        })
    }

    /// What is sent here stops the cluster, and is what [`Supervisor::run`] then returns.
    pub(super) fn failures(&self) -> Sender<Error> {
        self.failures.0.clone()
    }

    /// Runs until asked to stop, or until a failure.
    pub(super) fn run(mut self) -> Result<()> {
        let stop = lifeline::stop_requests(false)?;
        let (news, failures) = (self.news.1.clone(), self.failures.1.clone());
        let tending = tick(TEND);
        let outcome = loop {
            if let Err(error) = self.start_what_is_due() {
                break Err(error);
            }
            let timer = self
                .next_start()
                .map_or_else(never, |at| after(at.saturating_duration_since(Instant::now())));
            select! {
                recv(news) -> news => if let Err(error) = self.learn(news?) {
                    break Err(error);
                },
                recv(failures) -> error => break Err(error?),
                recv(stop) -> _ => break Ok(()),
                recv(timer) -> _ => {}
                recv(tending) -> _ => self.records.tend(&self.cluster),
            }
        };
        self.stop();
        outcome
    }

    fn next_start(&self) -> Option<Instant> {
        let pausing = self.slots.iter().filter_map(|slot| match slot.life {
            Life::Pausing(until) => Some(until),
            _ => None,
        });
        pausing.min()
    }

    fn start_what_is_due(&mut self) -> Result<()> {
        let now = Instant::now();
        for index in 0..self.slots.len() {
            let due = match self.slots[index].life {
                Life::Due => true,
                Life::Pausing(until) => until <= now,
                Life::Running { .. } | Life::Stopped => false,
            };
            let routers = self.routers_but(index);
            if due && (self.slots[index].config.found || !routers.is_empty()) {
                match self.start(index, routers) {
                    // It may go again later: no more processes may be allowed at the moment, say.
                    Err(error) if self.slots[index].proven => {
                        tracing::warn!("{error:#}");
                        self.pause(index);
                    }
                    started => started?,
                }
            }
        }
        Ok(())
    }

    /// Where the other routers listen, or did: should all be down, whichever comes back does so there. A router that is
    /// alone looks for itself, in vain.
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
        let mut command = Command::new(super::this_program()?);
        command.arg0("quorate").arg("node").args(self.records.configuration(&slot.config)?);
        // What is set for `up` is not meant for each process.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with(crate::config::ENVIRONMENT) {
                command.env_remove(variable);
            }
        }
        // A process group of its own, so that Ctrl-C reaches the supervisor only.
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.records.log(&entry.name));
        let mut child = command.spawn().with_context(|| format!("cannot start {}", entry.name))?;
        let (lifeline, output) =
            child.stdin.take().zip(child.stdout.take()).context("a child has no pipes")?;
        // No domain is founded twice (S1): from now on this process joins.
        slot.config.found = false;
        entry.starts += 1;
        let pid = child.id();
        let news = self.news.0.clone();
        thread::Builder::new().name(entry.name.clone()).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(bound) = serde_json::from_str(&line) {
                    let _ = news.send(News::Listening(index, bound));
                }
            }
            if let Ok(status) = child.wait() {
                let _ = news.send(News::Ended(index, status));
            }
        })?;
        slot.life = Life::Running { since: Instant::now(), lifeline };
        entry.pid = Some(pid);
        entry.bound = None;
        self.records.write(&self.cluster);
        Ok(())
    }

    /// Has it start again, later from time to time.
    fn pause(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.life = Life::Pausing(Instant::now() + slot.pause);
        slot.pause = (slot.pause * 2).min(PAUSE_MAX);
    }

    fn learn(&mut self, news: News) -> Result<()> {
        match news {
            News::Listening(index, bound) => {
                let slot = &mut self.slots[index];
                slot.proven = true;
                slot.listened = Some(bound.listen.clone());
                if matches!(slot.config.role, Role::Router | Role::Gateway) {
                    // Others look for it there, whichever life it is in.
                    slot.config.listen.clone_from(&bound.listen);
                    slot.config.sql_listen.clone_from(&bound.sql);
                }
                // Its clients look for it there.
                slot.config.redis_listen.clone_from(&bound.redis);
                self.cluster.processes[index].bound = Some(bound);
            }
            News::Ended(index, status) => {
                let slot = &mut self.slots[index];
                let entry = &mut self.cluster.processes[index];
                entry.pid = None;
                if entry.bound.take().is_none() {
                    // Perhaps another program has taken the port meanwhile.
                    let Slot { config, listen, .. } = slot;
                    (config.listen, config.sql_listen, config.redis_listen) = listen.clone();
                }
                let last_word = || {
                    let log = std::fs::read_to_string(&entry.log).unwrap_or_default();
                    log.lines().last().unwrap_or("").trim_start_matches("quorate: ").to_owned()
                };
                if !slot.proven {
                    return Err(anyhow!("{} did not start ({status}): {}", entry.name, last_word()));
                }
                if status.code() == Some(i32::from(OLDER_COPY)) {
                    // It would find the same again. A cluster that begins with an older copy was put together wrongly; one that
                    // works goes on without the process.
                    if entry.starts == 1 {
                        return Err(anyhow!("{} does not go on: {}", entry.name, last_word()));
                    }
                    tracing::error!("{} stays down: {}", entry.name, last_word());
                    slot.life = Life::Stopped;
                    self.records.write(&self.cluster);
                    return Ok(());
                }
                // Only one that dies soon, and so perhaps of how it starts, is started with ever longer pauses; who was killed
                // did not die of that.
                let lived = matches!(slot.life, Life::Running { since, .. } if since.elapsed() > PROOF);
                let killed = status.signal() == Some(Signal::KILL.as_raw());
                if lived || killed {
                    slot.pause = PAUSE_MIN;
                    slot.life = Life::Due;
                    tracing::warn!("{} ended ({status}); it starts again", entry.name);
                } else {
                    tracing::warn!("{} ended ({status}); it starts again in {:?}", entry.name, slot.pause);
                    self.pause(index);
                }
            }
        }
        self.records.write(&self.cluster);
        Ok(())
    }

    /// Ends everything. A second request to stop meanwhile ends this process at once, and with it the others.
    fn stop(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot.life, Life::Due | Life::Pausing(_)) {
                slot.life = Life::Stopped;
            }
        }
        self.ask(Role::Gateway, DRAIN);
        if self.cluster.durable {
            // First those that would take the others for dead, one after another, and replace them.
            self.drop_pipes(|role| role == Role::Super);
            self.await_ends(END, |config| config.role == Role::Super);
            for role in [Role::Storage, Role::Cell, Role::Router] {
                self.ask(role, SETTLE);
            }
        }
        self.drop_pipes(|_| true);
        self.await_ends(END, |_| true);
        for index in 0..self.slots.len() {
            if let Some(pid) = self.cluster.processes[index].pid {
                tracing::warn!(
                    "{} (pid {pid}) did not end and is killed",
                    self.cluster.processes[index].name
                );
                self.tell(index, Signal::KILL);
            }
        }
    }

    /// Asks the processes of a role to end in order, and waits for that, at most so long.
    fn ask(&mut self, role: Role, patience: Duration) {
        for index in 0..self.slots.len() {
            if self.slots[index].config.role == role {
                self.tell(index, Signal::TERM);
            }
        }
        self.await_ends(patience, |config| config.role == role);
    }

    /// Ends processes of these roles at once: dropping the pipe is what tells them.
    fn drop_pipes(&mut self, chosen: impl Fn(Role) -> bool) {
        for slot in &mut self.slots {
            if matches!(slot.life, Life::Running { .. }) && chosen(slot.config.role) {
                slot.life = Life::Stopped;
            }
        }
    }

    fn tell(&self, index: usize, what: Signal) {
        let entry = &self.cluster.processes[index];
        if let Some(pid) = entry.pid
            && let Err(error) = signal(pid, what)
        {
            tracing::warn!("{} (pid {pid}): {error}", entry.name);
        }
    }

    /// Waits for those chosen to end, at most so long.
    fn await_ends(&mut self, patience: Duration, chosen: impl Fn(&NodeConfig) -> bool) {
        let deadline = Instant::now() + patience;
        let runs = |supervisor: &Supervisor| {
            let mut processes = supervisor.slots.iter().zip(&supervisor.cluster.processes);
            processes.any(|(slot, entry)| entry.pid.is_some() && chosen(&slot.config))
        };
        while runs(self) {
            match self.news.1.recv_deadline(deadline) {
                Ok(News::Ended(index, _)) => {
                    self.cluster.processes[index].pid = None;
                    self.slots[index].life = Life::Stopped;
                }
                Ok(News::Listening(..)) => {}
                Err(_) => return,
            }
        }
    }
}
