//! A process: a replica with its host, or a client, and the adapter that tampers with it.

use std::time::Duration;

use quorate_protocol::{
    Context, Input, Lift, Peer, ProcessId, Protocol, Sink, Time, paxos,
    service::{self, Client, ClientCommand, ClientEvent, Event, Message, Replica, SessionId},
};

use super::{host::StoreHost, tamper::Tamper, watch::Watch};

/// A process.
pub(crate) enum ServiceProcess {
    Replica(Box<HostedReplica>),
    Client(Box<ServiceClient>),
}

/// A replica with its host.
pub(crate) struct HostedReplica {
    pub(crate) replica: Replica,
    pub(crate) host: StoreHost,
    /// Whether the members changed in this turn.
    members_changed: bool,
    tamper: Option<Tamper>,
}

/// A client.
pub(crate) struct ServiceClient {
    pub(crate) client: Client,
    watch: Watch,
    /// The time that the client waits for an answer.
    wait: Duration,
    tamper: Option<Tamper>,
}

pub(crate) enum ServiceCommand {
    Replica(service::Command),
    Client(ClientCommand),
}

#[derive(Debug)]
pub(crate) enum ServiceEvent {
    Leader(Option<ProcessId>),
    /// The members after the last learned slot.
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
    /// A client reported something that it cannot know.
    Unfounded(String),
}

impl ServiceProcess {
    pub(crate) fn replica(replica: Replica, host: StoreHost, tamper: Option<Tamper>) -> Self {
        ServiceProcess::Replica(Box::new(HostedReplica { replica, host, members_changed: false, tamper }))
    }

    pub(crate) fn client(client: Client, wait: Duration, tamper: Option<Tamper>) -> Self {
        ServiceProcess::Client(Box::new(ServiceClient { client, watch: Watch::default(), wait, tamper }))
    }
}

impl Protocol for ServiceProcess {
    type Message = Message;
    type Record = paxos::Record;
    type Command = ServiceCommand;
    type Event = ServiceEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match self {
            ServiceProcess::Replica(hosted) => {
                let input = input.map(std::convert::identity, |ask| match ask {
                    ServiceCommand::Replica(command) => command,
                    ServiceCommand::Client(_) => {
                        unreachable!("only a replica receives the commands of replicas")
                    }
                });
                hosted.handle(cx, input, out);
            }
            ServiceProcess::Client(caller) => {
                let input = input.map(std::convert::identity, |ask| match ask {
                    ServiceCommand::Client(command) => command,
                    ServiceCommand::Replica(_) => {
                        unreachable!("only a client receives the commands of clients")
                    }
                });
                caller.handle(cx, input, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            ServiceProcess::Replica(hosted) => {
                let replica = &hosted.replica;
                // A host that may not execute waits for the log.
                let host = hosted.host.deadline().filter(|_| !replica.holds_too_much());
                replica.deadline().into_iter().chain(host).min()
            }
            ServiceProcess::Client(caller) => caller.client.deadline(),
        }
    }
}

impl HostedReplica {
    /// Whether these replicas have all executed the same, and one serves. Replicas that have just recovered
    /// may be equal and still lack records of their disks, so one must serve.
    pub(crate) fn are_at_rest(members: &[&HostedReplica]) -> bool {
        members.windows(2).all(|pair| pair[0].replica.chosen() == pair[1].replica.chosen())
            && members.iter().all(|member| member.host.is_quiet())
            && members.iter().any(|member| member.replica.is_serving())
    }

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Replica>, out: &mut dyn Sink<ServiceProcess>) {
        let ends = matches!(input, Input::Drained);
        match (input, &mut self.tamper) {
            // The deadline may be the host's.
            (Input::Deadline, _) if self.replica.deadline().is_none_or(|due| due > cx.now) => {}
            (Input::Receive { from, message }, Some(tamper)) => {
                let message = tamper.received(from, message, &self.replica, &mut self.host, out);
                self.give(cx, Input::Receive { from, message }, out);
            }
            (input, _) => self.give(cx, input, out),
        }
        if let Some(tamper) = &mut self.tamper {
            tamper.forward(&mut self.host, &self.replica, out);
        }
        // Results at the end of a batch make a batch of their own.
        while self.work(cx, out) && ends {
            self.give(cx, Input::Drained, out);
        }
        if std::mem::take(&mut self.members_changed) {
            let log = self.replica.log();
            out.emit(ServiceEvent::Members { slot: log.applied().0, members: log.members().to_vec() });
        }
    }

    /// Lets the host work, and returns whether it did anything.
    fn work(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<ServiceProcess>) -> bool {
        let mut worked = false;
        while let Some(command) = self.host.step(cx, !self.replica.holds_too_much()) {
            worked = true;
            if let Some(tamper) = &mut self.tamper {
                tamper.executed(self.host.latest, &command, out);
                if tamper.loses(&command, &self.replica) {
                    continue;
                }
            }
            self.give(cx, Input::Command(command), out);
        }
        worked
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Replica>, out: &mut dyn Sink<ServiceProcess>) {
        let HostedReplica { replica, host, members_changed, .. } = self;
        let mut lift = Lift::<ServiceProcess, _, _>::new::<Replica>(
            out,
            |_, _, message| Some(message),
            |out, event| {
                match &event {
                    Event::Leader(leader) => out.emit(ServiceEvent::Leader(*leader)),
                    Event::Members(_) => *members_changed = true,
                    Event::Removed => out.emit(ServiceEvent::Removed),
                    Event::Corrupt(error) => out.emit(ServiceEvent::Corrupt(error.clone())),
                    Event::Revert => out.emit(ServiceEvent::News("reverted")),
                    Event::Serving => out.emit(ServiceEvent::News("serving")),
                    Event::Rest { .. } => out.emit(ServiceEvent::News("host rests")),
                    Event::Checkpoint { .. } => out.emit(ServiceEvent::News("checkpoint taken")),
                    Event::Restore { .. } => out.emit(ServiceEvent::News("checkpoint restored")),
                    Event::ChangeRefused { .. } => out.emit(ServiceEvent::News("change refused")),
                    _ => {}
                }
                host.queue.push_back(event);
            },
        );
        replica.handle(cx, input, &mut lift);
    }
}

impl ServiceClient {
    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Client>, out: &mut dyn Sink<ServiceProcess>) {
        let ServiceClient { client, watch, wait, tamper } = self;
        let (now, wait) = (cx.now, *wait);
        match &input {
            Input::Receive { message, .. } => {
                let expired = watch.hears(message);
                expired
                    .into_iter()
                    .for_each(|(session, number)| out.emit(ServiceEvent::Expired(session, number)));
            }
            Input::Command(command) => watch.asked(command, now),
            _ => {}
        }
        let input = match (input, &tamper) {
            (Input::Receive { from, message }, Some(tamper)) => {
                Input::Receive { from, message: tamper.answered(message) }
            }
            (input, _) => input,
        };
        let mut fates = Vec::new();
        let mut lift = Lift::<ServiceProcess, _, _>::new::<Client>(
            out,
            |_, _, message| {
                watch.sends(&message);
                match tamper {
                    Some(tamper) => Some(tamper.called(message)),
                    None => Some(message),
                }
            },
            |_, event| fates.push(event),
        );
        client.handle(cx, input, &mut lift);
        for event in fates {
            if let Err(what) = watch.ended(&event, now, wait) {
                out.emit(ServiceEvent::Unfounded(what));
            }
            out.emit(ServiceEvent::Client(event));
        }
    }
}

/// Returns a digest that is equal for replicas which have executed the same.
pub(super) fn digest(replica: &Replica, host: &StoreHost) -> u64 {
    host.store.digest() ^ replica.remembered() as u64
}

/// The number of instances between two comparisons of states.
pub(super) const STATES_APART: u64 = 4;
