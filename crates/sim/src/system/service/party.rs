//! A process: a replica with its host, or a client, and what tampers with it.

use quorate_protocol::{
    Context, Input, Lift, Peer, ProcessId, Protocol, Sink, Time, paxos,
    service::{self, Client, ClientCommand, ClientEvent, Event, Message, Replica},
};

use super::{Callers, GROUP, Stage, World, store::Host, tamper::Tamper};

/// A process.
pub(crate) enum Party {
    Replica(Box<Hosted>),
    Client(Box<Caller>),
}

/// A replica with its host.
pub(crate) struct Hosted {
    pub(crate) replica: Replica,
    pub(crate) host: Host,
    /// The members changed in this turn.
    members_changed: bool,
    tamper: Option<Tamper>,
}

/// A client.
pub(crate) struct Caller {
    pub(crate) client: Client,
    tamper: Option<Tamper>,
}

pub(crate) enum Ask {
    Replica(service::Command),
    Client(ClientCommand),
}

#[derive(Debug)]
pub(crate) enum Told {
    Leader(Option<ProcessId>),
    /// The members behind the slot that was learned last.
    Members {
        slot: u64,
        members: Vec<Peer>,
    },
    Removed,
    Corrupt(String),
    /// Something that is worth counting.
    News(&'static str),
    Client(ClientEvent),
}

impl Callers {
    /// The replica that starts on `machine`, from its disk if there is one.
    pub(super) fn replica(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        id: ProcessId,
    ) -> Replica {
        let me = Peer { id, address: World::address(machine) };
        let (settings, now) = (self.service.clone(), world.clock(machine));
        let recovered = Replica::recover(GROUP, me.clone(), settings.clone(), world.records(machine), now);
        if let Some(replica) = recovered.expect("what was durable follows from itself") {
            world.count("recovered from disk");
            return replica;
        }
        if self.founder == Some(machine) && !stage.routers.begun() {
            // Nobody has ever heard of the set.
            stage.routers.found_again();
        }
        if stage.routers.founds() {
            self.founder = Some(machine);
            Replica::found(GROUP, me, settings, now)
        } else {
            Replica::join(GROUP, me, stage.routers.living(world), settings, now)
        }
    }
}

/// Clients, and replicas that know no leader, look for replicas where some should be, as every real process does.
pub(super) fn look_for_replicas(stage: &Stage, world: &mut World) {
    for machine in 0..world.machines() {
        let mut others = stage.routers.living(world);
        others.retain(|peer| Some(peer.id) != world.id(machine));
        match world.process(machine) {
            Some(Party::Client(_)) => world.command(machine, Ask::Client(ClientCommand::Seeds(others))),
            Some(Party::Replica(it)) if it.replica.log().leader().is_none() => {
                world.command(machine, Ask::Replica(service::Command::Seeds(others)));
            }
            _ => {}
        }
    }
}

impl Party {
    pub(crate) fn replica(replica: Replica, host: Host, tamper: Option<Tamper>) -> Self {
        Party::Replica(Box::new(Hosted { replica, host, members_changed: false, tamper }))
    }

    pub(crate) fn client(client: Client, tamper: Option<Tamper>) -> Self {
        Party::Client(Box::new(Caller { client, tamper }))
    }
}

impl Protocol for Party {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Ask;
    type Event = Told;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match self {
            Party::Replica(hosted) => {
                let input = input.map(std::convert::identity, |ask| match ask {
                    Ask::Replica(command) => command,
                    Ask::Client(_) => unreachable!("a replica is asked as a replica"),
                });
                hosted.handle(cx, input, out);
            }
            Party::Client(caller) => {
                let input = input.map(std::convert::identity, |ask| match ask {
                    Ask::Client(command) => command,
                    Ask::Replica(_) => unreachable!("a client is asked as a client"),
                });
                caller.handle(cx, input, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Party::Replica(hosted) => {
                hosted.replica.deadline().into_iter().chain(hosted.host.deadline()).min()
            }
            Party::Client(caller) => caller.client.deadline(),
        }
    }
}

impl Hosted {
    /// Whether these have all executed the same, and one serves: replicas that have just come back may be alike, and behind what they
    /// have on their disks.
    pub(crate) fn are_at_rest(members: &[&Hosted]) -> bool {
        members.windows(2).all(|pair| pair[0].replica.chosen() == pair[1].replica.chosen())
            && members.iter().all(|member| member.host.is_quiet())
            && members.iter().any(|member| member.replica.is_serving())
    }

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Replica>, out: &mut dyn Sink<Party>) {
        let ends = matches!(input, Input::Drained);
        match (input, &mut self.tamper) {
            // It may be the host's.
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
        // Results that come of the end of a batch are a batch of their own.
        while self.work(cx, out) && ends {
            self.give(cx, Input::Drained, out);
        }
        if std::mem::take(&mut self.members_changed) {
            let log = self.replica.log();
            out.emit(Told::Members { slot: log.applied().0, members: log.members().to_vec() });
        }
    }

    /// Has the host do what it can, and says whether anything came of it.
    fn work(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Party>) -> bool {
        let mut worked = false;
        while let Some(command) = self.host.step(cx) {
            worked = true;
            if let Some(tamper) = &mut self.tamper {
                tamper.executed(self.host.latest, &command, out);
            }
            self.give(cx, Input::Command(command), out);
        }
        worked
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Replica>, out: &mut dyn Sink<Party>) {
        let Hosted { replica, host, members_changed, .. } = self;
        let mut lift = Lift::<Party, _, _>::new::<Replica>(
            out,
            |_, _, message| Some(message),
            |out, event| {
                match &event {
                    Event::Leader(leader) => out.emit(Told::Leader(*leader)),
                    Event::Members(_) => *members_changed = true,
                    Event::Removed => out.emit(Told::Removed),
                    Event::Corrupt(error) => out.emit(Told::Corrupt(error.clone())),
                    Event::Revert => out.emit(Told::News("reverted")),
                    Event::Serving => out.emit(Told::News("serving")),
                    Event::Rest { .. } => out.emit(Told::News("host rests")),
                    Event::Checkpoint { .. } => out.emit(Told::News("checkpoint taken")),
                    Event::Restore { .. } => out.emit(Told::News("checkpoint restored")),
                    Event::ChangeRefused { .. } => out.emit(Told::News("change refused")),
                    _ => {}
                }
                host.queue.push_back(event);
            },
        );
        replica.handle(cx, input, &mut lift);
    }
}

impl Caller {
    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Client>, out: &mut dyn Sink<Party>) {
        let Caller { client, tamper } = self;
        let input = match (input, &tamper) {
            (Input::Receive { from, message }, Some(tamper)) => {
                Input::Receive { from, message: tamper.answered(message) }
            }
            (input, _) => input,
        };
        let mut lift = Lift::<Party, _, _>::new::<Client>(
            out,
            |_, _, message| match tamper {
                Some(tamper) => Some(tamper.called(message)),
                None => Some(message),
            },
            |out, event| out.emit(Told::Client(event)),
        );
        client.handle(cx, input, &mut lift);
    }
}
