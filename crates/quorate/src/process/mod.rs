//! One process on real threads: a node on a reactor, the executor of a storage process's tasks, and a
//! watching thread.
//!
//! ```text
//!   protocol thread ── tasks ──▶ executor ── Executed(results) ──▶ protocol thread (short tasks: at once)
//!                   ── client events ───▶ a callback that never blocks
//! ```
//!
//! All processes of this crate have the threads of the shell in common.

#[cfg(feature = "tables")]
pub(crate) mod engine;
pub(crate) mod executor;
mod namesake;
mod shared;
mod strangers;
#[cfg(feature = "tables")]
mod withdrawals;

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::Receiver;
use quorate_protocol::{
    CommandId, DomainId, NotAdmitted, ProcessId, Protocol, Terms, Ticket, Time,
    domain::Shared as Held,
    ecast::RouterEvent,
    group::Roster,
    relay::{self, Relay},
    rubberband::{ClientEvent, StorageCommand, StorageEvent, SuperEvent, TaskResult},
};
use quorate_roles::tables::{
    self as tables, Command, Event, health::Unhealthy, operate::AdminOperation, status::Status,
};
use quorate_runtime::{
    Config, Disk, Host, Port, StartError,
    discover::{DomainAnswer, DomainState},
    disk::DiskError,
};
use tracing::{error, info, warn};

pub(crate) use self::strangers::Strangers;
use self::{
    executor::{StartExecutor, TaskExecutor},
    namesake::probe_namesake,
};
use crate::{
    end::EndReporter,
    lock::lock,
    seek::Search,
    shell::{Shell, seeds_to},
    waiters::{CallError, Calls},
};

use self::shared::{Identity, ProcessShared};
pub use crate::end::End;

/// The reason why an operation has not taken effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// The process has not accepted the operation, because the process has ended or too many commands wait.
    /// Nothing was done.
    Untaken,
    /// The process accepted the operation, and ended before it knew the result.
    Ended,
    /// The reason why the operation was refused or has not ended in time.
    Because(String),
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDone::Untaken => f.write_str("the process does not answer"),
            NotDone::Ended => f.write_str(
                "the process ended before it knew whether the operation took effect: see the status of the \
                 cluster before you repeat the operation",
            ),
            NotDone::Because(why) => f.write_str(why),
        }
    }
}

/// The resources that a process needs in addition to its node.
pub(crate) struct Parts {
    /// Starts the executor of a storage process's tasks.
    pub(crate) executor: Option<StartExecutor>,
    /// The receiver of a client's events. The protocol thread calls it, so it must not block.
    pub(crate) client: Option<Box<dyn FnMut(ClientEvent) + Send>>,
    /// Addresses of routers.
    pub(crate) routers: Vec<String>,
    /// The terms that the process expects of the domain; `None` accepts any.
    pub(crate) terms: Option<Terms>,
    /// The process's disk, and the ticket of the first record there, if it has one.
    pub(crate) disk: Option<(Disk, Ticket)>,
}

/// A running process.
pub struct Process {
    shell: Shell<Relay<tables::Process>>,
    shared: Arc<ProcessShared>,
    #[cfg(feature = "tables")]
    executor: Option<Arc<dyn TaskExecutor>>,
    ended: Receiver<End>,
}

struct NodeHost {
    shared: Arc<ProcessShared>,
    executor: Option<Arc<dyn TaskExecutor>>,
    /// The results of the latest batch, if the executor executed it on this thread.
    executed: Option<Vec<TaskResult>>,
    client: Option<Box<dyn FnMut(ClientEvent) + Send>>,
    identity: Identity,
    strangers: Strangers,
    /// Whether a thread is checking if another process with the same node number is alive.
    probing: Arc<AtomicBool>,
    end: EndReporter,
}

impl Process {
    /// Starts the threads.
    pub(crate) fn start(
        process: tables::Process,
        config: Config,
        parts: Parts,
    ) -> Result<Process, StartError> {
        let shared = Arc::new(ProcessShared {
            port: OnceLock::new(),
            statuses: Calls::default(),
            rosters: Calls::default(),
            operations: Calls::default(),
            remains: Mutex::new(None),
        });
        let (end, ended) = EndReporter::new();
        let executor = match parts.executor {
            Some(start) => Some(start(&config.metrics, shared.clone(), end.clone())?),
            None => None,
        };
        let host = NodeHost {
            shared: shared.clone(),
            executor: executor.clone(),
            executed: None,
            client: parts.client,
            identity: Identity {
                domain: config.domain,
                me: config.me,
                address: config.advertise.clone().unwrap_or_default(),
                terms: parts.terms,
            },
            strangers: Strangers::default(),
            probing: Arc::default(),
            end: end.clone(),
        };
        let (domain, me) = (config.domain, config.me);
        let relay = Relay::new(process, relay::Settings::default());
        let shell = Shell::start(relay, host, config, parts.disk, None, &shared.port)?;
        let process = Process {
            shell,
            shared,
            #[cfg(feature = "tables")]
            executor,
            ended,
        };
        if !parts.routers.is_empty() {
            let search = Search::warning(domain, me, parts.routers);
            process.shell.seek(search, seeds_to(process.port().clone(), Command::Seeds))?;
        }
        process.shell.watch(end)?;
        Ok(process)
    }

    /// Returns the port for commands.
    pub fn port(&self) -> &Port<Relay<tables::Process>> {
        self.shared.port.get().expect("the port is set when the process starts")
    }

    /// Returns a receiver that gets one message, the reason, when the process cannot continue.
    pub fn ended(&self) -> &Receiver<End> {
        &self.ended
    }

    /// Returns the status of the process, or `None` if the protocol thread does not answer within `patience`.
    pub fn status(&self, patience: Duration) -> Option<Status> {
        let ask = |token| self.port().try_command(Command::Status { token }).is_ok();
        self.shared.statuses.call(patience, ask).ok()
    }

    /// Returns the process groups that a router knows, or `None` if its protocol thread does not answer
    /// within `patience`.
    pub fn groups(&self, patience: Duration) -> Option<Held<Roster>> {
        let ask = |token| self.port().try_command(Command::Groups { token }).is_ok();
        self.shared.rosters.call(patience, ask).ok()
    }

    /// Executes an operator's request, and waits until it has taken effect, at most for `patience`.
    /// [`Member::operate`] does the same for a member that may restart meanwhile.
    ///
    /// [`Member::operate`]: crate::node::Member::operate
    pub fn operate(&self, operation: AdminOperation, patience: Duration) -> Result<(), NotDone> {
        self.ended_within(patience, |id| Command::Operate { id, operation })
    }

    /// Leaves the cluster, and waits until the process is out. Returns the reason as an error if the process
    /// is not out after `patience`, or cannot leave.
    pub fn leave(&self, patience: Duration) -> Result<(), String> {
        self.ended_within(patience, |id| Command::Leave { id }).map_err(|why| why.to_string())
    }

    /// Announces a stop before a restart to the other processes, and waits until they are prepared. Returns
    /// an error if they are not prepared, so that they will treat the stop as a failure.
    pub fn pause(&self, patience: Duration) -> Result<(), String> {
        self.ended_within(patience, |id| Command::Pause { id }).map_err(|why| why.to_string())
    }

    fn ended_within(
        &self,
        patience: Duration,
        command: impl FnOnce(CommandId) -> Command,
    ) -> Result<(), NotDone> {
        let ask = |id| self.port().try_command(command(CommandId(id))).is_ok();
        match self.shared.operations.call(patience, ask) {
            Ok(answer) => answer.map_err(NotDone::Because),
            Err(CallError::NotTaken) => Err(NotDone::Untaken),
            Err(CallError::Ended) => Err(NotDone::Ended),
            Err(CallError::TimedOut) => Err(NotDone::Because(format!(
                "the operation has not taken effect within {} s",
                patience.as_secs()
            ))),
        }
    }

    /// Stops the threads. Requests without an answer get none.
    pub fn stop(&self) {
        self.shell.stop();
        self.shared.statuses.close();
        self.shared.rosters.close();
        self.shared.operations.close();
    }
}

impl NodeHost {
    fn executor(&self) -> &dyn TaskExecutor {
        &**self.executor.as_ref().expect("a storage process has an executor")
    }

    fn end(&self, end: End) {
        self.end.report(end);
    }

    fn not_admitted(&mut self, why: NotAdmitted) {
        match why {
            NotAdmitted::Terms(theirs) => self.compare_terms(theirs),
            NotAdmitted::NoPart => self.end(End::NotAdmitted(why.to_string())),
            NotAdmitted::NodeInUse(other) => {
                if !self.probing.swap(true, Ordering::AcqRel) {
                    let (me, end, probing) = (self.identity.clone(), self.end.clone(), self.probing.clone());
                    let spawned = thread::Builder::new().name(String::from("namesake")).spawn(move || {
                        probe_namesake(&me, &other, &end);
                        probing.store(false, Ordering::Release);
                    });
                    if let Err(error) = spawned {
                        warn!(
                            %error,
                            "the system gives no thread to look for the other process with this process's \
                             node number"
                        );
                    }
                }
            }
        }
    }

    /// Ends the process if its settings demand other terms than those of the domain.
    fn compare_terms(&self, theirs: Terms) {
        let Some(ours) = self.identity.terms else { return };
        let pairs = [
            ("replicas", u32::from(ours.replicas), u32::from(theirs.replicas)),
            ("wanted_storage", ours.wanted_storage, theirs.wanted_storage),
            ("wanted_routers", ours.wanted_routers, theirs.wanted_routers),
        ];
        let differing: Vec<String> = pairs
            .into_iter()
            .filter(|(_, ours, theirs)| ours != theirs)
            .map(|(key, ours, theirs)| format!("{key} = {ours}, but the domain was founded with {theirs}"))
            .collect();
        if !differing.is_empty() {
            self.end(End::NotAdmitted(format!(
                "{}: the router that founds a domain decides these values for the whole domain; configure \
                 the same values here",
                differing.join("; ")
            )));
        }
    }

    fn router(&mut self, event: RouterEvent<quorate_protocol::domain::Config>) {
        match event {
            RouterEvent::Leader(leader) => info!(?leader, "the lead router has changed"),
            RouterEvent::Routers(routers) => {
                let routers: Vec<String> = routers.iter().map(|router| router.id.to_string()).collect();
                info!(?routers, "the set of routers has changed");
            }
            RouterEvent::Config(at, config) => {
                let config = &config.tables;
                self.compare_terms(config.terms());
                info!(
                    %at, version = config.version, placement = config.placement,
                    "a new configuration applies"
                );
            }
            RouterEvent::Reformed(reformed) => warn!(?reformed, "a new generation of the domain began here"),
            RouterEvent::Ended { .. } => {
                unreachable!("the end of an operator's command arrives as Event::Operated")
            }
            RouterEvent::Removed => self.end(End::Wedged),
            RouterEvent::Corrupt(why) => {
                self.end(End::Broken(format!("a router's snapshot cannot be decoded: {why}")))
            }
        }
    }
}

impl Host<Relay<tables::Process>> for NodeHost {
    fn answer(&self, relay: &Relay<tables::Process>, _: DomainId) -> DomainAnswer {
        let presence = match relay.inner().hindrance() {
            None => DomainState::Settled,
            Some(Unhealthy::Joining) => DomainState::Joining,
            // These hindrances have nothing to do with the routers.
            Some(Unhealthy::Unreached(_) | Unhealthy::Unfounded { .. }) => DomainState::Settled,
            Some(_) => DomainState::Leaderless,
        };
        DomainAnswer { presence, pass: relay.policy().pass() }
    }

    fn policy_mismatch(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) {
        if let Some(generation) = self.strangers.meet(peer, ours, theirs) {
            self.end(End::Outdated(generation));
        }
    }

    fn disk_failed(&mut self, error: &DiskError) {
        self.end.disk_failed(error);
    }

    fn completed(&mut self) -> Option<Command> {
        Some(Command::Storage(StorageCommand::Executed(self.executed.take()?)))
    }

    fn event(&mut self, event: Event, _now: Time) {
        match event {
            Event::Status { token, status } => self.shared.statuses.answer(token, *status),
            Event::Groups { token, roster } => self.shared.rosters.answer(token, roster),
            Event::Operated { id, result } => {
                if let Err(why) = &result {
                    warn!(%why, "an operator's command had no effect");
                }
                self.shared.operations.answer(id.0, result);
            }
            Event::Router(event) => self.router(event),
            Event::NotAdmitted(why) => self.not_admitted(why),
            Event::Unserved(command) => {
                error!(?command, "a command was refused, because this process has another role")
            }
            Event::Storage(StorageEvent::Execute(tasks)) => match self.executor().execute(tasks) {
                Ok(results) => self.executed = results,
                Err(ended) => {
                    error!("{ended}");
                    self.end(End::Broken(ended.to_string()));
                }
            },
            Event::Storage(StorageEvent::Out(remains)) => {
                info!(
                    ?remains,
                    "this storage process was removed; its rows are kept until other processes have them"
                );
                *lock(&self.shared.remains) = Some(remains);
                self.end(End::Wedged);
            }
            Event::Storage(StorageEvent::Withdraw { task }) => self.executor().withdraw(task),
            Event::Storage(StorageEvent::Left { .. } | StorageEvent::Paused { .. }) => {
                unreachable!("the end of an operator's command arrives as Event::Operated")
            }
            Event::Super(SuperEvent::Suspected(process)) => warn!(
                %process,
                "a process is suspected to have failed, and other processes are asked about it"
            ),
            Event::Super(SuperEvent::Removing { process, witnesses }) => {
                let witnesses: Vec<String> = witnesses.iter().map(ProcessId::to_string).collect();
                warn!(
                    %process, witnesses = witnesses.join(" "),
                    "a process has failed and is being removed, because the witnesses do not hear it either"
                );
            }
            Event::Super(SuperEvent::Replacing { old, new }) => info!(
                %old, %new,
                "a standby is taking the place of a storage process"
            ),
            Event::Super(SuperEvent::Ended { .. }) => {
                unreachable!("the end of an operator's command arrives as Event::Operated")
            }
            Event::Super(SuperEvent::Config(config)) => {
                info!(version = config.version, placement = config.placement, "a new configuration applies");
            }
            Event::Client(event) => {
                match &event {
                    ClientEvent::Wedged => self.end(End::Wedged),
                    ClientEvent::Unreached { process, name, address } => warn!(
                        %process, name, address,
                        "this process has no link to a storage process that serves: reads that need that \
                         storage process fail"
                    ),
                    _ => {}
                }
                if let Some(client) = &mut self.client {
                    client(event);
                }
            }
            Event::Storage(StorageEvent::Wedged) | Event::Super(SuperEvent::Wedged) => self.end(End::Wedged),
        }
    }
}
