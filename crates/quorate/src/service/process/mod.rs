//! A process of services: a node with an endpoint for each service, in the shell that every process has.
//!
//! ```text
//!   protocol thread ── orders of a turn ──▶ each replica's executor ── results ──▶ protocol thread
//!                   ── fates of a turn ───▶ their callers
//!   seeking thread  ── who listens at the addresses ──▶ protocol thread
//! ```
//!
//! `dispatcher` runs on the protocol thread.

mod dispatcher;
mod shared;

use std::{
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use quorate_node::{self as node, Channel, EndpointId, NewEndpoint, Node};
use quorate_protocol::{
    CommandId, DomainId, Peer, ProcessId, Ticket,
    paxos::{Change, ChangeRefusal},
    service::{self, ClientCommand, Fate},
};
use quorate_roles::services::Exported;
use quorate_runtime::{CommandError, Config, Disk, Handle, NodeMetrics, chance};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use self::dispatcher::Dispatcher;
use super::{
    directory::Directory,
    executor::ExecutorOrder,
    service_endpoint::{Command, ServiceEndpoint, Set},
};
use crate::{error::Error, lock::lock, seek::Search, shell::Shell};

use shared::CallBatch;

pub(super) use shared::{
    CALLS_MAX, ClientCalls, EndpointHandle, EndpointKind, ReplicaHandle, Results, SeenSets, ServiceShared,
    spawn,
};

/// A running process. It ends when its last holder drops it.
pub(super) struct Process {
    shared: Arc<ServiceShared>,
    shell: Shell<ServiceEndpoint>,
}

impl Process {
    /// Starts the threads. `addresses` are possible addresses of other processes. With a disk, the process
    /// has the identity that is on the disk, and keeps the records from which replicas will continue.
    pub(super) fn start(
        mut config: Config,
        addresses: Vec<String>,
        disk: Option<(&Directory, Disk)>,
        endings: Option<Sender<String>>,
    ) -> Result<Arc<Process>, Error> {
        if let Some((_, disk)) = &disk {
            config.me = disk.process();
        }
        let (domain, me) = (config.domain, config.me);
        let (handle, endpoints) = (OnceLock::new(), Mutex::default());
        let shared = Arc::new(ServiceShared { handle, domain, me, addresses, endpoints, endings });
        let dropped = NodeMetrics::new(&config.metrics);
        let dispatcher = Dispatcher::new(shared.clone(), dropped);
        let mut node = Node::new();
        let disk = disk.map(|(place, disk)| {
            for channel in place.channels() {
                node.expect(channel, place.first);
            }
            disk
        });
        let shell =
            Shell::start_node(node, dispatcher, config, disk, &shared.handle).map_err(Error::start)?;
        let process = Arc::new(Process { shared: shared.clone(), shell });
        // Informs all endpoints which processes listen at the addresses.
        process.shell.seek(process.search(), move |found| {
            let endpoints: Vec<Arc<EndpointHandle>> = lock(&shared.endpoints).values().cloned().collect();
            for endpoint in endpoints.iter().filter(|_| !found.is_empty()) {
                // The search repeats, so losing one command does no harm.
                let _ = shared.handle().try_command(endpoint.home(Command::Seeds(found.clone())));
            }
        })?;
        Ok(process)
    }

    fn handle(&self) -> &Handle<Node<ServiceEndpoint>> {
        self.shared.handle()
    }

    pub(super) fn me(&self) -> ProcessId {
        self.shared.me
    }

    /// Returns the configuration of another process of the same domain.
    pub(super) fn sibling(&self) -> Config {
        config_of(self.shared.domain)
    }

    /// Returns the channel of a service.
    pub(super) fn channel(&self, name: &str) -> Channel {
        let endpoint = EndpointId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
        Channel { domain: self.shared.domain, endpoint }
    }

    /// Adds an endpoint, and starts a search for other processes of the service. Returns the present endpoint
    /// as an error if the service has one. `known` is the endpoint's set if the endpoint knows it, and its
    /// first record if the endpoint continues from records.
    pub(super) fn add(
        &self,
        name: &str,
        kind: EndpointKind,
        service_endpoint: ServiceEndpoint,
        known: Option<(Set, Option<Ticket>)>,
    ) -> Result<Arc<EndpointHandle>, Arc<EndpointHandle>> {
        let channel = self.channel(name);
        let set = known.map(|(set, _)| set);
        let (heard, news) = (Mutex::new(SeenSets { set, ..SeenSets::default() }), Condvar::new());
        let endpoint = Arc::new(EndpointHandle { name: name.to_owned(), channel, kind, heard, news });
        {
            let mut endpoints = lock(&self.shared.endpoints);
            if let Some(there) = endpoints.get(&channel.endpoint) {
                return Err(there.clone());
            }
            endpoints.insert(channel.endpoint, endpoint.clone());
        }
        let new_endpoint = NewEndpoint::typed(channel, service_endpoint);
        let new_endpoint = match known {
            Some((_, Some(first))) => new_endpoint.recovered(first),
            _ => new_endpoint,
        };
        // The command is refused only if the process has ended, and then no answer comes.
        let _ = self.handle().command(node::Command::Add(new_endpoint));
        self.shell.kick();
        Ok(endpoint)
    }

    /// Returns the outlet of an executor's results.
    pub(super) fn results(&self, endpoint: &Arc<EndpointHandle>) -> Results {
        Results::new(&self.shared, endpoint)
    }

    /// Removes an endpoint with its records.
    pub(super) fn remove(&self, endpoint: &EndpointHandle) {
        lock(&self.shared.endpoints).remove(&endpoint.channel.endpoint);
        let _ = self.handle().command(node::Command::Remove(endpoint.channel));
    }

    /// Removes an endpoint, and keeps its records.
    pub(super) fn retire(&self, endpoint: &EndpointHandle) {
        lock(&self.shared.endpoints).remove(&endpoint.channel.endpoint);
        let _ = self.handle().command(node::Command::Retire(endpoint.channel));
    }

    /// Drops the records of a retired endpoint. The endpoint that is now at the same channel stays.
    pub(super) fn release_retired(&self, name: &str) {
        let _ = self.handle().command(node::Command::Release(self.channel(name)));
    }

    /// Returns the endpoint of a service.
    pub(super) fn endpoint(&self, name: &str) -> Option<Arc<EndpointHandle>> {
        lock(&self.shared.endpoints).get(&self.channel(name).endpoint).cloned()
    }

    /// Drops the records of a service whose replica continues in another process.
    pub(super) fn release(&self, name: &str) {
        let _ = self.handle().command(node::Command::Remove(self.channel(name)));
    }

    /// Changes the replicas of a set, and waits at most for `patience`. Returns whether the change was made
    /// in time. The error is the reason why the change will not be made.
    pub(super) fn change(
        &self,
        endpoint: &EndpointHandle,
        change: &Change,
        patience: Duration,
    ) -> Result<bool, ChangeRefusal> {
        let EndpointKind::Replica(replica) = &endpoint.kind else {
            unreachable!("a replica changes its set")
        };
        let is_current = || {
            let status = lock(&replica.status);
            let has = |id: &ProcessId| status.replicas.iter().any(|(replica, _)| replica == id);
            match change {
                Change::Add(peer) => has(&peer.id),
                Change::Remove(process) => !has(process),
            }
        };
        let refusal = || {
            let mut refused = lock(&replica.refused);
            let place = refused.iter().position(|(refused, _)| refused == change)?;
            refused.remove(place).map(|(_, why)| why)
        };
        refusal();
        let until = Instant::now() + patience;
        let mut asked_at = None;
        let mut heard = lock(&endpoint.heard);
        loop {
            if is_current() {
                return Ok(true);
            }
            if replica.over.load(Ordering::Relaxed) {
                return Ok(*change == Change::Remove(self.me()));
            }
            match refusal() {
                None => {}
                // This refusal is the answer to a repeated command. The first command is still in progress.
                Some(ChangeRefusal::AlreadySo) => {}
                Some(ChangeRefusal::NoLeader) => asked_at = None,
                Some(why) => return Err(why),
            }
            let now = Instant::now();
            if now >= until {
                return Ok(false);
            }
            // The request to change the replicas is repeated, because a leader that dies forgets it.
            if asked_at.is_none_or(|asked: Instant| now.duration_since(asked) >= ASKED_AGAIN) {
                asked_at = Some(now);
                let wish = match change.clone() {
                    Change::Add(peer) => service::Command::AddReplica(peer),
                    Change::Remove(process) => service::Command::RemoveReplica(process),
                };
                let _ = self.handle().command(endpoint.home(Command::Wish(wish)));
            }
            let pause = (until - now).min(ASKED_AGAIN);
            heard = endpoint.news.wait_timeout(heard, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends an endpoint the replicas of its set.
    pub(super) fn send_seeds(&self, endpoint: &EndpointHandle, replicas: Vec<Peer>) {
        // The endpoint also finds the replicas by search, so losing the command does no harm.
        let _ = self.handle().command(endpoint.home(Command::Seeds(replicas)));
    }

    fn search(&self) -> Search {
        Search::quiet(self.shared.domain, self.me(), self.shared.addresses.clone())
    }

    /// Asks the processes at the configured addresses for the set of the endpoint's service. Waits at most
    /// for `patience`. Returns the first set that a process shows.
    pub(super) fn survey(&self, endpoint: &EndpointHandle, patience: Duration) -> Option<Set> {
        let until = Instant::now() + patience;
        let others: Vec<ProcessId> = self.search().look().into_iter().map(|peer| peer.id).collect();
        let mut heard = lock(&endpoint.heard);
        loop {
            let answered = others.iter().all(|other| heard.without_set.contains(other));
            let left = until.saturating_duration_since(Instant::now());
            if heard.set.is_some() || answered || left.is_zero() {
                return heard.set;
            }
            heard = endpoint.news.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Informs an endpoint of its set.
    pub(super) fn begin(&self, endpoint: &EndpointHandle, set: Set, founded: bool) {
        lock(&endpoint.heard).set = Some(set);
        // The command is refused only if the process has ended.
        let _ = self.handle().command(endpoint.home(Command::Begin { set, founded }));
    }

    /// Requests a copy of a replica's state. No copy comes if the replica has ended, or if its service gets a
    /// thread of its own at this moment.
    pub(super) fn copy(&self, endpoint: &EndpointHandle, wanted: Sender<Exported>) {
        let EndpointKind::Replica(replica) = &endpoint.kind else { unreachable!("a replica has a state") };
        if lock(&replica.inline).is_some() {
            let _ = self.handle().command(endpoint.home(Command::Copy(wanted)));
        } else {
            let _ = replica.orders.send(ExecutorOrder::Copy(wanted));
        }
    }

    /// Returns the number of a new transaction.
    pub(super) fn transaction(endpoint: &EndpointHandle) -> u64 {
        let EndpointKind::Client(client) = &endpoint.kind else { unreachable!("a client calls") };
        client.transactions.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a client give a transaction up.
    pub(super) fn abandon(&self, endpoint: &EndpointHandle, transaction: u64) {
        let abandon = vec![ClientCommand::Abandon { transaction }];
        // If the command is refused, the transaction ends when it has been idle for long.
        let _ = self.handle().try_command(endpoint.home(Command::Calls(abandon)));
    }

    /// Makes a client send one call for each permit; there is at least one permit. The receiver reports their
    /// fates.
    pub(super) fn call(
        &self,
        endpoint: &EndpointHandle,
        permits: OwnedSemaphorePermit,
        calls: impl FnOnce(CommandId) -> Vec<ClientCommand>,
    ) -> Result<oneshot::Receiver<Vec<Fate>>, Error> {
        let EndpointKind::Client(client) = &endpoint.kind else { unreachable!("a client calls") };
        let count = permits.num_permits();
        let (sender, receiver) = oneshot::channel();
        let batch = CallBatch { fates: vec![None; count], left: count, sender, permits };
        let ended = || Error::wedged("the process has ended");
        client.calls.send(batch, ended, |token| {
            let commands = calls(ClientCalls::first_command(token));
            assert!(count > 0 && commands.len() == count, "a permit for each call");
            let sent = self.handle().try_command(endpoint.home(Command::Calls(commands)));
            sent.map_err(|untaken| match untaken {
                CommandError::Full(_) => Error::not_sent("too many calls wait for the protocol thread"),
                CommandError::Stopped(_) => ended(),
            })
        })?;
        Ok(receiver)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        lock(&self.shared.endpoints).clear();
        self.shell.stop();
    }
}

/// Interval at which a request to change the replicas is repeated.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// Returns the configuration of a process without the address at which the process listens.
pub(super) fn config(domain: &str) -> Config {
    config_of(super::domain(domain))
}

fn config_of(domain: DomainId) -> Config {
    // The process does not continue an earlier process, so its node number is random.
    let node = chance::Chance::new().bits();
    let me = ProcessId { node, incarnation: chance::incarnation() };
    Config::new(domain, me, Vec::new())
}
