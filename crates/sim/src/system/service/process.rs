//! A process as production runs it: a node with the endpoint of a replica or a client. The adapter around the
//! endpoint plays the thread of a service, and tampers in some runs.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use quorate_node::{Channel, EndpointId, NewEndpoint, Node, records_of};
use quorate_protocol::{
    Context, Input, Lift, Peer, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    service::{self, Client, ClientEvent, ClientSettings, Message, Replica, SessionId},
};
use quorate_roles::services::{
    EndpointHost, Inline, ReplicaOptions, ResultLatch, ServiceEndpoint, Set, SetRecord, Successor,
    endpoint::{self, Unrecovered},
};

use crate::endpoint::DOMAIN;

use super::{host::StoreHost, host_tamper::HostTamper, tamper::Tamper, watch::Watch};

/// A process with one endpoint.
pub(crate) type ServiceProcess = Node<Resident>;
/// A command to a process.
pub(crate) type NodeCommand = quorate_node::Command<Resident>;
/// An event of a process.
pub(crate) type NodeEvent = quorate_node::Event<Resident>;
/// A command to an endpoint.
pub(crate) type ServiceCommand = endpoint::Command<StoreEndpointHost>;
type StoreEndpoint = ServiceEndpoint<StoreEndpointHost>;
type InlineStore = Option<Box<Inline<StoreHost>>>;

/// The simulator as a host of endpoints.
pub(crate) enum StoreEndpointHost {}

impl EndpointHost for StoreEndpointHost {
    type Executor = StoreHost;
    type Latch = OpenLatch;
    type Successor = NoSuccessor;
}

/// A latch that is always open, because the adapter asks the replica itself whether its thread may execute.
#[derive(Default)]
pub(crate) struct OpenLatch;

impl ResultLatch for OpenLatch {
    type Passage = ();

    fn hold(&mut self, (): &()) {}

    fn set(&mut self, _: bool) {}
}

/// A redirect that never exists: when a process ends, its machine starts another process.
pub(crate) enum NoSuccessor {}

impl Successor for NoSuccessor {
    fn replicas(&self) -> (Option<ProcessId>, Vec<Peer>) {
        match *self {}
    }
}

/// An endpoint with its adapter.
pub(crate) enum Resident {
    Replica(Box<HostedReplica>),
    Client(Box<ServiceClient>),
}

/// A replica, or an endpoint that looks for its set before it becomes a replica.
pub(crate) struct HostedReplica {
    endpoint: StoreEndpoint,
    /// The thread that executes the service; `None` if the endpoint executes the service.
    thread: Option<StoreHost>,
    host_tamper: Rc<RefCell<HostTamper>>,
    /// Names of the orders that the host has carried out and the workload has not counted yet.
    news: Rc<RefCell<Vec<&'static str>>>,
    /// Whether the members changed in this turn.
    members_changed: bool,
    tamper: Option<Tamper>,
}

/// A client, or an endpoint that looks for its set before it becomes a client.
pub(crate) struct ServiceClient {
    endpoint: StoreEndpoint,
    watch: Watch,
    /// The time that the client waits for an answer.
    wait: Duration,
    tamper: Option<Tamper>,
}

#[derive(Debug)]
pub(crate) enum ServiceEvent {
    Leader(Option<ProcessId>),
    /// The set's members after the last slot that the replica has learned.
    Members {
        slot: u64,
        members: Vec<Peer>,
    },
    Removed,
    Corrupt(String),
    /// An event to be counted.
    News(&'static str),
    Client(ClientEvent),
    /// A client heard that a call is forgotten.
    Expired(SessionId, u64),
    /// A client reported an outcome that it cannot know.
    Unfounded(String),
}

/// The channel of the service.
const HERE: Channel = Channel { domain: DOMAIN, endpoint: EndpointId(7) };

impl Resident {
    /// Makes an endpoint that looks for the set, and then becomes its client.
    pub(crate) fn client(settings: ClientSettings, tamper: Option<Tamper>) -> Resident {
        let wait = settings.wait;
        let endpoint = ServiceEndpoint::client(settings);
        Resident::Client(Box::new(ServiceClient { endpoint, watch: Watch::default(), wait, tamper }))
    }

    /// Makes a replica that will found or join a set.
    pub(crate) fn replica(
        me: Peer,
        options: ReplicaOptions,
        host: StoreHost,
        tamper: Option<Tamper>,
    ) -> Resident {
        let made = Resident::hosted(host, tamper, |inline| Ok(ServiceEndpoint::replica(me, options, inline)));
        made.expect("a future replica needs no records")
    }

    /// Makes a replica with this endpoint, which executes the store in its turns if the host takes no time.
    fn hosted(
        host: StoreHost,
        tamper: Option<Tamper>,
        endpoint: impl FnOnce(InlineStore) -> Result<StoreEndpoint, Unrecovered>,
    ) -> Result<Resident, Unrecovered> {
        let (host_tamper, news) = (host.tamper.clone(), host.news.clone());
        let (thread, inline) = match host.is_instant() {
            true => (None, Some(Box::new(Inline::new(host)))),
            false => (Some(host), None),
        };
        let endpoint = endpoint(inline)?;
        let hosted = HostedReplica { endpoint, thread, host_tamper, news, members_changed: false, tamper };
        Ok(Resident::Replica(Box::new(hosted)))
    }
}

/// Returns the process of a resident that begins.
pub(crate) fn process_of(resident: Resident) -> ServiceProcess {
    Node::with(NewEndpoint::typed(HERE, resident).vital())
}

/// Returns the process of the replica that wrote these records.
pub(crate) fn recovered_process(
    me: &Peer,
    (first, records): (Ticket, Vec<Bytes>),
    (options, host, tamper): (ReplicaOptions, StoreHost, Option<Tamper>),
    now: Time,
) -> Result<ServiceProcess, Unrecovered> {
    let records = records.into_iter().zip(1..).map(|(record, ticket)| (Ticket(ticket), record)).collect();
    let records = records_of_endpoint(records).into_iter().map(|(_, record)| record).collect();
    let resident = Resident::hosted(host, tamper, |inline| {
        StoreEndpoint::recovered(me, records, (options, inline), now).map(|(_, endpoint)| endpoint)
    })?;
    Ok(Node::with(NewEndpoint::typed(HERE, resident).recovered(first).vital()))
}

/// Whether a replica can be rebuilt from these records.
pub(crate) fn recovers(
    me: &Peer,
    records: Vec<Bytes>,
    options: ReplicaOptions,
    now: Time,
) -> Result<(), Unrecovered> {
    StoreEndpoint::recovered(me, records, (options, None), now).map(drop)
}

/// Returns the records of the endpoint among those of its process.
pub(crate) fn records_of_endpoint(records: Vec<(Ticket, Bytes)>) -> Vec<(Ticket, Bytes)> {
    records_of(HERE, records).expect("a process can read the records that it wrote")
}

/// Wraps a command to an endpoint for its process.
pub(crate) fn ask(command: ServiceCommand) -> NodeCommand {
    NodeCommand::Typed(HERE, command)
}

/// Returns the command with which a process begins after it met a member of a set. `None` if the pass
/// `theirs` is not a member's.
pub(crate) fn begin(theirs: &[u8]) -> Option<ServiceCommand> {
    Some(ServiceCommand::Begin { set: Set::of_pass(theirs)?, founded: false })
}

/// Returns the resident of a process.
pub(crate) fn resident_of(process: &ServiceProcess) -> Option<&Resident> {
    process.typed(HERE)
}

/// Returns the replica of a process, if it belongs to a set.
pub(crate) fn replica_of(process: &ServiceProcess) -> Option<&HostedReplica> {
    match resident_of(process)? {
        Resident::Replica(hosted) if hosted.endpoint.as_replica().is_some() => Some(hosted),
        Resident::Replica(_) | Resident::Client(_) => None,
    }
}

impl Protocol for Resident {
    type Message = Message;
    type Record = SetRecord;
    type Command = ServiceCommand;
    type Event = ServiceEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let input = input.map(std::convert::identity, std::convert::identity);
        match self {
            Resident::Replica(hosted) => hosted.handle(cx, input, out),
            Resident::Client(client) => client.handle(cx, input, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Resident::Replica(hosted) => {
                // A thread that may not execute waits for the log, and sets no deadline.
                let thread = hosted.thread.as_ref().and_then(StoreHost::deadline);
                let thread = thread.filter(|_| hosted.may_execute());
                hosted.endpoint.deadline().into_iter().chain(thread).min()
            }
            Resident::Client(client) => client.endpoint.deadline(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Resident::Replica(hosted) => hosted.endpoint.policy(),
            Resident::Client(client) => client.endpoint.policy(),
        }
    }
}

impl HostedReplica {
    /// Returns the replica, which belongs to a set.
    pub(crate) fn replica(&self) -> &Replica {
        self.endpoint.as_replica().expect("only replicas of a set are looked at")
    }

    /// Whether a thread executes the store.
    pub(crate) fn has_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Returns the host of the store.
    pub(crate) fn host(&self) -> &StoreHost {
        let inline =
            || self.endpoint.inline().expect("a store without a thread is in the endpoint").executor();
        self.thread.as_ref().unwrap_or_else(inline)
    }

    /// Whether the host's state equals what the replica has learned.
    pub(crate) fn is_quiet(&self) -> bool {
        self.host().is_quiet() && self.endpoint.inline().is_none_or(Inline::is_idle)
    }

    /// Whether these replicas have learned the same slots, have no work under way, and one of them serves.
    /// Replicas that have just recovered may be equal and still lack the records of their disks; if one of
    /// them serves, they have these records.
    pub(crate) fn are_at_rest(members: &[&HostedReplica]) -> bool {
        members.windows(2).all(|pair| pair[0].replica().chosen() == pair[1].replica().chosen())
            && members.iter().all(|member| member.is_quiet())
            && members.iter().any(|member| member.replica().is_serving())
    }

    /// Whether the replica has room for another result.
    fn may_execute(&self) -> bool {
        self.endpoint.as_replica().is_some_and(|replica| !replica.holds_too_much())
    }

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<StoreEndpoint>, out: &mut dyn Sink<Resident>) {
        let ends = matches!(input, Input::Drained);
        match input {
            // The deadline may concern only the thread, and then the endpoint has nothing to do.
            Input::Deadline if self.endpoint.deadline().is_none_or(|due| due > cx.now) => {}
            Input::Receive { from, message } => {
                let message = self.tampered(from, message, out);
                self.give(cx, Input::Receive { from, message }, out);
            }
            input => self.give(cx, input, out),
        }
        if let (Some(tamper), Some(replica)) = (&mut self.tamper, self.endpoint.as_replica()) {
            tamper.forward(&mut self.host_tamper.borrow_mut(), replica, out);
        }
        // If the host has results at the end of a batch, the replica handles them as a further batch.
        while self.work(cx, out) && ends {
            self.give(cx, Input::Drained, out);
        }
        let news = std::mem::take(&mut *self.news.borrow_mut());
        news.into_iter().for_each(|what| out.emit(ServiceEvent::News(what)));
        if std::mem::take(&mut self.members_changed) {
            let log = self.replica().log();
            out.emit(ServiceEvent::Members { slot: log.applied().0, members: log.members().to_vec() });
        }
    }

    /// Returns the message that the replica receives instead of `message`.
    fn tampered(&mut self, from: ProcessId, message: Message, out: &mut dyn Sink<Resident>) -> Message {
        let HostedReplica { endpoint, thread, host_tamper, tamper, .. } = self;
        let (Some(tamper), Some(replica)) = (tamper, endpoint.as_replica()) else { return message };
        let inline = endpoint.inline().map(Inline::executor);
        let host = thread.as_ref().or(inline).expect("a replica has a host");
        tamper.received(from, message, (replica, &host.store, &mut host_tamper.borrow_mut()), out)
    }

    /// Lets the thread work, and returns whether it did anything.
    fn work(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Resident>) -> bool {
        let mut worked = false;
        loop {
            let may_execute = self.may_execute();
            let Some(thread) = &mut self.thread else { return worked };
            let Some(command) = thread.step(cx, may_execute) else { return worked };
            worked = true;
            if let (Some(tamper), Some(replica)) = (&self.tamper, self.endpoint.as_replica())
                && tamper.loses(&command, replica)
            {
                continue;
            }
            self.give(cx, Input::Command(ServiceCommand::Executed(vec![command], ())), out);
        }
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<StoreEndpoint>, out: &mut dyn Sink<Resident>) {
        let HostedReplica { endpoint, thread, members_changed, .. } = self;
        let mut lift = Lift::<Resident, _, _>::new::<StoreEndpoint>(
            out,
            |_, _, message| Some(message),
            |out, event| match event {
                endpoint::Event::Replica(event) => {
                    report(&event, members_changed, out);
                    if let Some(thread) = thread {
                        thread.queue.push_back(event);
                    }
                }
                endpoint::Event::Client(_) => unreachable!("a replica is no client"),
                endpoint::Event::Broken(why) => unreachable!("the store does not fail: {why}"),
                endpoint::Event::Long(_) => unreachable!("the store takes no time in the endpoint"),
            },
        );
        endpoint.handle(cx, input, &mut lift);
        let executed = std::mem::take(&mut self.host_tamper.borrow_mut().executed);
        if let Some(tamper) = &mut self.tamper {
            executed.iter().for_each(|(call, command)| tamper.executed(*call, command, out));
        }
    }
}

/// Reports an event of a replica to the workload.
fn report(event: &service::Event, members_changed: &mut bool, out: &mut dyn Sink<Resident>) {
    use service::Event;
    match event {
        Event::Leader(leader) => out.emit(ServiceEvent::Leader(*leader)),
        Event::Members(_) => *members_changed = true,
        Event::Removed => out.emit(ServiceEvent::Removed),
        Event::Corrupt(error) => out.emit(ServiceEvent::Corrupt(error.clone())),
        Event::Revert => out.emit(ServiceEvent::News("reverted")),
        Event::Serving => out.emit(ServiceEvent::News("serving")),
        Event::ChangeRefused { .. } => out.emit(ServiceEvent::News("change refused")),
        _ => {}
    }
}

impl ServiceClient {
    /// Returns the client, if it knows its set.
    pub(crate) fn client(&self) -> Option<&Client> {
        self.endpoint.as_client()
    }

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<StoreEndpoint>, out: &mut dyn Sink<Resident>) {
        let ServiceClient { endpoint, watch, wait, tamper } = self;
        let (now, wait) = (cx.now, *wait);
        match &input {
            Input::Receive { message, .. } => {
                let expired = watch.hears(message);
                expired
                    .into_iter()
                    .for_each(|(session, number)| out.emit(ServiceEvent::Expired(session, number)));
            }
            Input::Command(ServiceCommand::Calls(commands)) => {
                commands.iter().for_each(|command| watch.asked(command, now));
            }
            _ => {}
        }
        let input = match (input, &tamper) {
            (Input::Receive { from, message }, Some(tamper)) => {
                Input::Receive { from, message: tamper.answered(message) }
            }
            (input, _) => input,
        };
        let mut fates = Vec::new();
        let mut lift = Lift::<Resident, _, _>::new::<StoreEndpoint>(
            out,
            |_, _, message| {
                watch.sends(&message);
                match tamper {
                    Some(tamper) => Some(tamper.called(message)),
                    None => Some(message),
                }
            },
            |_, event| match event {
                endpoint::Event::Client(event) => fates.push(event),
                _ => unreachable!("a client is no replica"),
            },
        );
        endpoint.handle(cx, input, &mut lift);
        for event in fates {
            if let Err(what) = watch.ended(&event, now, wait) {
                out.emit(ServiceEvent::Unfounded(what));
            }
            out.emit(ServiceEvent::Client(event));
        }
    }
}

/// Returns a digest that is equal for replicas which have executed the same requests.
pub(super) fn digest(hosted: &HostedReplica) -> u64 {
    hosted.host().store.digest() ^ hosted.replica().remembered() as u64
}

/// The number of instances between two comparisons of states.
pub(super) const STATES_APART: u64 = 4;
