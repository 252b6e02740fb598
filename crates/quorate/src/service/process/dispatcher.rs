//! Passes the endpoints' events from the protocol thread to executors and callers.
//!
//! The dispatcher gathers the events of a turn by endpoint. At the end of the turn it passes them on, with
//! one wake-up for all events of an endpoint.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use quorate_node::{self as node, Channel, EndpointId, Node};
use quorate_protocol::{
    DomainId, ProcessId, Time,
    service::{self, ClientCommand, ClientEvent, Fate},
};
use quorate_runtime::{
    CommandError, NodeMetrics,
    discover::{DomainAnswer, DomainState},
    disk::DiskError,
};
use rustc_hash::FxHashMap;
use tracing::{info, warn};

use super::{
    super::{
        executor::{ExecutorOrder, Performer, weight},
        service_endpoint::{Command, Event, ServiceEndpoint, Set},
    },
    CallBatch, EndpointHandle, EndpointKind, ReplicaHandle, Results, ServiceShared,
    shared::AfterEnd,
    spawn,
};

use crate::lock::lock;

/// Passes events on from the protocol thread.
pub(super) struct Dispatcher {
    shared: Arc<ServiceShared>,
    endpoints: FxHashMap<EndpointId, EndpointEvents>,
    /// Endpoints with events in this turn.
    active: Vec<EndpointId>,
    dropped: NodeMetrics,
}

/// An endpoint, and its events in this turn.
struct EndpointEvents {
    endpoint: Arc<EndpointHandle>,
    orders: Vec<service::Event>,
    bytes: usize,
    fates: Vec<ClientEvent>,
}

impl Dispatcher {
    pub(super) fn new(shared: Arc<ServiceShared>, dropped: NodeMetrics) -> Dispatcher {
        Dispatcher { shared, endpoints: FxHashMap::default(), active: Vec::new(), dropped }
    }

    fn events(&mut self, channel: Channel) -> Option<&mut EndpointEvents> {
        if !self.endpoints.contains_key(&channel.endpoint) {
            let endpoint = lock(&self.shared.endpoints).get(&channel.endpoint)?.clone();
            let events = EndpointEvents { endpoint, orders: Vec::new(), bytes: 0, fates: Vec::new() };
            self.endpoints.insert(channel.endpoint, events);
        }
        self.endpoints.get_mut(&channel.endpoint)
    }

    fn on_event(&mut self, channel: Channel, event: Event) {
        let Some(events) = self.events(channel) else { return };
        let is_first = events.orders.is_empty() && events.fates.is_empty();
        match event {
            Event::Replica(event) => {
                // The last events of an ended endpoint may come after another endpoint has taken its place.
                let EndpointKind::Replica(replica) = &events.endpoint.kind else { return };
                match meaning_of(replica, &event) {
                    // The endpoint itself has executed the order.
                    EventMeaning::Order if lock(&replica.inline).is_some() => return,
                    EventMeaning::Order => {
                        replica.tally.note(&event);
                        events.bytes += weight(&event);
                        events.orders.push(event);
                    }
                    EventMeaning::News => return,
                    EventMeaning::Changed => {
                        let endpoint = events.endpoint.clone();
                        // A thread that is about to wait holds this lock while it checks. So the signal does
                        // not come between its check and its wait.
                        drop(lock(&endpoint.heard));
                        return endpoint.news.notify_all();
                    }
                    EventMeaning::End(why) => {
                        let endpoint = events.endpoint.clone();
                        self.shared.end(&endpoint, why, AfterEnd::ComeBack);
                        return self.remove(&endpoint);
                    }
                }
            }
            Event::Client(event) => events.fates.push(event),
            Event::Broken(why) => return events.endpoint.fail(why),
            Event::Long(metered) => return self.give_thread(channel, metered.into_performer()),
        }
        if is_first {
            self.active.push(channel.endpoint);
        }
    }

    /// Gives a service a thread, because its requests take too long for its endpoint's thread.
    fn give_thread(&mut self, channel: Channel, performer: Box<dyn Performer>) {
        let shared = self.shared.clone();
        let Some(events) = self.events(channel) else { return };
        let EndpointKind::Replica(replica) = &events.endpoint.kind else { unreachable!("a replica's event") };
        let Some(orders) = lock(&replica.inline).take() else {
            unreachable!("the replica was executed by its endpoint until now")
        };
        warn!(
            service = events.endpoint.name,
            "the requests of a service are not short, so the service is given a thread of its own"
        );
        let results = Results::new(&shared, &events.endpoint);
        if let Err(error) = spawn(performer, orders, results) {
            let endpoint = events.endpoint.clone();
            self.shared.end(
                &endpoint,
                format!("the system gives no thread for the service's executor: {error}"),
                AfterEnd::ComeBack,
            );
            self.remove(&endpoint);
        }
    }

    /// Removes a replica that ended. Keeps its records if its set may count on them.
    fn remove(&self, endpoint: &EndpointHandle) {
        let keeps =
            matches!(&endpoint.kind, EndpointKind::Replica(replica) if replica.keeps_records(self.shared.me));
        let remove = if keeps { node::Command::Retire } else { node::Command::Remove };
        if let Err(CommandError::Full(_)) = self.shared.handle().try_command(remove(endpoint.channel)) {
            warn!("this process cannot remove a replica that ended yet, because too many commands wait");
        }
    }

    /// Handles the pass of a process that this endpoint refused.
    fn on_refused_pass(&mut self, channel: Channel, peer: ProcessId, theirs: &[u8]) {
        let Some(endpoint) = self.events(channel).map(|events| events.endpoint.clone()) else { return };
        let mut heard = lock(&endpoint.heard);
        let Some(set) = Set::of_pass(theirs) else {
            if theirs.is_empty() && !heard.without_set.contains(&peer) {
                if heard.without_set.len() >= HEARD_MAX {
                    heard.without_set.clear();
                }
                heard.without_set.push(peer);
                endpoint.news.notify_all();
            }
            return;
        };
        match (heard.set, &endpoint.kind) {
            (Some(own), _) => {
                let is_other = own.group != set.group && !heard.other_sets.contains(&set.group);
                if is_other && heard.other_sets.len() < HEARD_MAX {
                    heard.other_sets.push(set.group);
                    warn!(
                        service = endpoint.name, %peer,
                        "another process serves a second service of the same name: the service was founded \
                         twice, so withdraw one of the two"
                    );
                }
            }
            (None, EndpointKind::Replica(replica)) if replica.founds => heard.set = Some(set),
            (None, EndpointKind::Replica(replica)) if let Some(why) = replica.terms.differ(set.terms) => {
                drop(heard);
                self.shared.end(&endpoint, String::from(why), AfterEnd::StayEnded);
                return self.remove(&endpoint);
            }
            (None, EndpointKind::Redirect) => {}
            (None, _) => {
                // If the process refuses the command now, this code sends the command again when the peer
                // next shows the set.
                let begin = endpoint.home(Command::Begin { set, founded: false });
                if self.shared.handle().try_command(begin).is_ok() {
                    heard.set = Some(set);
                    info!(service = endpoint.name, %peer, "a replica of a service found the other replicas");
                }
            }
        }
        endpoint.news.notify_all();
    }

    fn pass_on(&mut self, endpoint: EndpointId) {
        let Some(events) = self.endpoints.get_mut(&endpoint) else { return };
        match &events.endpoint.kind {
            EndpointKind::Replica(replica) => {
                let bytes = mem::take(&mut events.bytes);
                let backlog = replica.tally.backlog.fetch_add(bytes, Ordering::Relaxed) + bytes;
                // The send fails only if the executor has ended, and the executor has given the reason.
                let _ = replica.orders.send(ExecutorOrder::Turn(mem::take(&mut events.orders)));
                if backlog > BACKLOG_BYTES_MAX {
                    let why = format!(
                        "the service is too slow: {backlog} bytes of orders wait, and at most \
                         {BACKLOG_BYTES_MAX} may wait"
                    );
                    let endpoint = events.endpoint.clone();
                    self.shared.end(&endpoint, why, AfterEnd::ComeBack);
                    self.remove(&endpoint);
                }
            }
            EndpointKind::Client(client) => {
                let ended = client.end(mem::take(&mut events.fates));
                for CallBatch { fates, sender, permits, .. } in ended {
                    // The caller may no longer wait.
                    let _ = sender.send(fates.into_iter().flatten().collect());
                    drop(permits);
                }
            }
            EndpointKind::Redirect => {}
        }
    }

    fn ended(&mut self, channel: Channel, ending: node::Ending) {
        self.active.retain(|active| *active != channel.endpoint);
        let events = self.endpoints.remove(&channel.endpoint);
        let endpoint = events
            .map(|events| events.endpoint)
            .or_else(|| lock(&self.shared.endpoints).get(&channel.endpoint).cloned());
        let Some(endpoint) = endpoint else { return };
        if let node::Ending::Panicked(words) = ending {
            self.shared.end(
                &endpoint,
                format!("an invariant of the replica is broken: {words}"),
                AfterEnd::ComeBack,
            );
            self.remove(&endpoint);
        }
        if let EndpointKind::Client(client) = &endpoint.kind {
            drop(client.calls.take_where(|_| true));
        }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        // The protocol thread also ends after a panic or a fault of the disk. After that no caller may wait
        // for it.
        let endpoints: Vec<_> = lock(&self.shared.endpoints).values().cloned().collect();
        for endpoint in endpoints {
            if let EndpointKind::Client(client) = &endpoint.kind {
                client.calls.close();
            }
        }
    }
}

/// The meaning of a replica's event for its host.
enum EventMeaning {
    /// An order for the executor.
    Order,
    News,
    /// An event that concerns threads which wait for a change of the replicas.
    Changed,
    End(String),
}

fn meaning_of(replica: &ReplicaHandle, event: &service::Event) -> EventMeaning {
    if replica.over.load(Ordering::Relaxed) {
        // `status` already describes the replica that replaced this replica, so the event must not change it.
        return EventMeaning::News;
    }
    let status = || lock(&replica.status);
    match event {
        service::Event::Leader(leader) => status().leader = *leader,
        service::Event::Serving => status().serving = true,
        service::Event::Members(members) => {
            status().replicas = members.iter().map(|peer| (peer.id, peer.address.clone())).collect();
            return EventMeaning::Changed;
        }
        service::Event::Removed => {
            replica.voted_out.store(true, Ordering::Relaxed);
            return EventMeaning::End(String::from(
                "the other replicas went on without this process, which they took for failed",
            ));
        }
        service::Event::Resigned => {
            return EventMeaning::End(String::from("the service of this replica cannot go on"));
        }
        service::Event::Corrupt(why) => {
            return EventMeaning::End(format!("another replica sent data that cannot be decoded: {why}"));
        }
        service::Event::ChangeRefused { change, reason } => {
            warn!(?change, ?reason, "a change of a service's replicas was refused");
            let mut refused = lock(&replica.refused);
            refused.push_back((change.clone(), *reason));
            if refused.len() > REFUSED_MAX {
                refused.pop_front();
            }
            return EventMeaning::Changed;
        }
        service::Event::Revert => {
            status().serving = false;
            return EventMeaning::Order;
        }
        _ => return EventMeaning::Order,
    }
    EventMeaning::News
}

impl quorate_runtime::Host<Node<ServiceEndpoint>> for Dispatcher {
    fn event(&mut self, event: node::Event<ServiceEndpoint>, _: Time) {
        match event {
            node::Event::Typed(channel, event) => self.on_event(channel, event),
            node::Event::PolicyMismatch { channel, peer, theirs, .. } => {
                self.on_refused_pass(channel, peer, &theirs)
            }
            node::Event::Ended(channel, ending) => self.ended(channel, ending),
            // The endpoint had ended when the calls came.
            node::Event::Unserved(node::Command::Typed(channel, Command::Calls(calls))) => {
                for command in calls.iter().filter_map(ClientCommand::command) {
                    self.on_event(channel, Event::Client(ClientEvent { command, fate: Fate::NotSent }));
                }
            }
            node::Event::Malformed { peer, error, .. } => {
                warn!("{peer} sent an invalid message ({error}): the session with that process is over");
            }
            node::Event::Added(_) | node::Event::Unserved(_) => {}
            node::Event::Occupied(_) => unreachable!("a name that is in use is refused before"),
            node::Event::Dynamic(..) => unreachable!("there are no dynamic endpoints"),
        }
    }

    fn batch_ended(&mut self, _: Time) {
        let mut active = mem::take(&mut self.active);
        for endpoint in active.drain(..) {
            self.pass_on(endpoint);
        }
        self.active = active;
    }

    fn turn_ended(&mut self, node: &Node<ServiceEndpoint>) {
        self.dropped.follow(node.counters());
    }

    fn disk_failed(&mut self, error: &DiskError) {
        for endpoint in lock(&self.shared.endpoints).values() {
            self.shared.end(endpoint, format!("the host's disk has failed: {error}"), AfterEnd::StayEnded);
        }
    }

    fn answer(&self, _: &Node<ServiceEndpoint>, _: DomainId) -> DomainAnswer {
        DomainAnswer { presence: DomainState::Settled, pass: Bytes::new() }
    }
}

/// Upper bound of the number of refusals that are kept for waiting threads.
const REFUSED_MAX: usize = 16;

/// Upper bound of the number of processes, and of the number of sets, that are remembered for a name.
const HEARD_MAX: usize = 64;

/// Size of waiting orders above which a replica ends, in bytes.
const BACKLOG_BYTES_MAX: usize = 256 << 20;
