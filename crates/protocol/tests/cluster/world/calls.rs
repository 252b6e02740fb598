//! What is handed to processes, and what comes of it.

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    CommandId, Context, Destination, Duration, Input, ProcessId, Protocol, RequestId,
    ecast::{Fence, Position, RefoundRefusal, Router, RouterCommand, RouterEvent, RouterRefusal},
    rubberband::{
        Answered, Client, ClientCommand, ClientError, ClientEvent, DataHeader, LeaveRefusal, Message, Range,
        Rubberband, Storage, StorageCommand, StorageEvent, Super, SuperCommand, SuperEvent,
    },
    wire::Wire,
};

use super::{Happening, MESSAGE_BYTES_MAX, Outputs, Role, Told, World};
use crate::cluster::names::{name, peer};

/// A statement's print: any hash will do.
fn print(op: &str) -> u64 {
    op.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl World {
    /// Hands something to a process and takes care of everything that comes of it.
    pub(crate) fn happen(&mut self, id: ProcessId, happening: Happening) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if !matches!(happening, Happening::Drained) {
            process.undrained = true;
        }
        match &process.role {
            Role::Router(_) => {
                let input = happening.input::<Router<Rubberband>>(|message| match message {
                    Message::Order(message) => message,
                    Message::Direct(message) => panic!("a router is sent {message:?}"),
                });
                self.input_router(id, input);
            }
            Role::Super(_) => self.input_super(id, happening.input::<Super>(|message| message)),
            Role::Storage(..) => self.input_storage(id, happening.input::<Storage>(|message| message)),
            Role::Client(_) => self.input_client(id, happening.input::<Client>(|message| message)),
        }
    }

    fn input_router(&mut self, id: ProcessId, input: Input<Router<Rubberband>>) {
        let events = self.call(id, input, Message::Order, |role| match role {
            Role::Router(router) => router,
            _ => panic!("{} is no router", name(id)),
        });
        self.compare(id);
        for event in events {
            match event {
                RouterEvent::Leader(Some(leader)) if leader == id => {
                    self.count("leader");
                    self.say(&format!("{} leads", name(id)));
                }
                RouterEvent::Reformed(reformed) => {
                    if reformed.from_members.is_some() {
                        self.count("generation from members");
                    }
                    if !reformed.fenced.is_empty() {
                        self.count("cut off from a generation");
                    }
                    let fenced: Vec<_> = reformed.fenced.iter().map(|process| name(*process)).collect();
                    self.say(&format!(
                        "{} begins generation {} behind @{}, through @{}: recovered {}, missing {}, without [{}]",
                        name(id),
                        reformed.generation,
                        reformed.behind,
                        reformed.through,
                        reformed.recovered,
                        reformed.missing,
                        fenced.join(" ")
                    ));
                }
                RouterEvent::Ended { result: Err(RouterRefusal::Reform(refusal)), .. } => {
                    self.say(&format!("{} does not go on alone: {refusal:?}", name(id)));
                }
                RouterEvent::Ended { result: Err(RouterRefusal::Refound(refusal)), .. } => {
                    let why = match refusal {
                        RefoundRefusal::FollowsAnother(other) => format!("members follow {}", name(other)),
                        RefoundRefusal::LeaderLives(leader) => format!("{} leads", name(leader)),
                        other => format!("{other:?}"),
                    };
                    self.say(&format!("{} does not go on from members: {why}", name(id)));
                }
                RouterEvent::Removed => self.processes.get_mut(&id).expect("it lives").wedged = true,
                RouterEvent::Corrupt(why) => panic!("{}: {why}", name(id)),
                _ => {}
            }
        }
    }

    /// An operator has a router begin the next generation.
    pub(crate) fn reform(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).expect("it lives");
        process.undrained = true;
        let patience = Duration::from_secs(1);
        self.input_router(id, Input::Command(RouterCommand::Reform { id: CommandId(1), patience }));
    }

    /// An operator has a router that knows nothing begin the next generation from these members.
    pub(crate) fn refound(&mut self, id: ProcessId, members: &[ProcessId]) {
        let before = self.processes.values().map(|process| process.generation).max().unwrap_or_default();
        let members = members.iter().map(|member| peer(*member)).collect();
        let patience = Duration::from_secs(1);
        self.processes.get_mut(&id).expect("it lives").undrained = true;
        let refound = RouterCommand::Refound { id: CommandId(1), before, members, patience };
        self.input_router(id, Input::Command(refound));
        self.relink();
    }

    fn input_super(&mut self, id: ProcessId, input: Input<Super>) {
        let events = self.call(
            id,
            input,
            |message| message,
            |role| match role {
                Role::Super(it) => it,
                _ => panic!("{} is no super", name(id)),
            },
        );
        for event in events {
            match event {
                SuperEvent::Suspected(whom) => self.say(&format!("{} suspects {}", name(id), name(whom))),
                SuperEvent::Replacing { old, new } => {
                    self.count("replace");
                    self.say(&format!("{} has {} take the place of {}", name(id), name(new), name(old)));
                }
                SuperEvent::Removing { process, witnesses } => {
                    let witnesses: Vec<_> = witnesses.into_iter().map(name).collect();
                    self.say(&format!(
                        "{} removes {}, as {} agree",
                        name(id),
                        name(process),
                        witnesses.join(" ")
                    ));
                }
                SuperEvent::Wedged => self.wedge(id),
                SuperEvent::Config(_) | SuperEvent::Ended { .. } => {}
            }
        }
    }

    pub(crate) fn command_super(&mut self, id: ProcessId, command: SuperCommand) {
        self.processes.get_mut(&id).expect("it lives").undrained = true;
        self.input_super(id, Input::Command(command));
    }

    pub(super) fn command_storage(&mut self, id: ProcessId, command: StorageCommand) {
        self.processes.get_mut(&id).expect("it lives").undrained = true;
        self.input_storage(id, Input::Command(command));
    }

    fn input_storage(&mut self, id: ProcessId, input: Input<Storage>) {
        let events = self.call(
            id,
            input,
            |message| message,
            |role| match role {
                Role::Storage(it, _) => it,
                _ => panic!("{} is no storage process", name(id)),
            },
        );
        for event in events {
            match event {
                StorageEvent::Execute(tasks) => {
                    let span = self.work.unwrap_or_default().as_micros() as u64;
                    let span = if span == 0 { 0 } else { self.random() % span };
                    let due = self.now + Duration::from_micros(span);
                    let before = self.processes.get_mut(&id).expect("it lives").tasks.replace((due, tasks));
                    assert!(before.is_none(), "{} is given a batch while at another", name(id));
                }
                StorageEvent::Withdraw { task } => {
                    let (_, tasks) = self.processes[&id].tasks.as_ref().expect("a batch is at the engine");
                    let at = tasks[task].at;
                    self.say(&format!("{} @{at} is waited for no more", name(id)));
                }
                StorageEvent::Left { result, .. } => self.left(id, result),
                StorageEvent::Paused { .. } => unreachable!("nobody has a disk here"),
                StorageEvent::Wedged => self.wedge(id),
                StorageEvent::Out(remains) => {
                    self.count("keeps");
                    let through = remains.keeps().through;
                    self.say(&format!("{} is out, and keeps its rows through @{through}", name(id)));
                    let process = self.processes.get_mut(&id).expect("it lives");
                    process.wedged = true;
                    process.remains = Some(remains);
                }
            }
        }
    }

    fn left(&mut self, id: ProcessId, result: Result<(), LeaveRefusal>) {
        match result {
            Ok(()) => self.say(&format!("{} has left", name(id))),
            Err(why) => self.say(&format!("{} does not leave: {why}", name(id))),
        }
    }

    fn wedge(&mut self, id: ProcessId) {
        self.count("wedged");
        self.say(&format!("{} is wedged", name(id)));
        self.processes.get_mut(&id).expect("it lives").wedged = true;
    }

    pub(crate) fn leave(&mut self, id: ProcessId) {
        let command = CommandId(1);
        match self.processes[&id].role {
            Role::Storage(..) => self.command_storage(id, StorageCommand::Leave { id: command }),
            Role::Super(_) => self.command_super(id, SuperCommand::Leave { id: command }),
            Role::Client(_) => self.command_client(id, ClientCommand::Leave { id: command }),
            Role::Router(_) => panic!("{} is a router", name(id)),
        }
    }

    pub(crate) fn command_client(&mut self, id: ProcessId, command: ClientCommand) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.undrained = true;
            self.input_client(id, Input::Command(command));
        }
    }

    pub(crate) fn write(
        &mut self,
        id: ProcessId,
        token: u64,
        again: Option<RequestId>,
        ranges: &[Range],
        op: &str,
    ) {
        self.told.insert((id, token), Told::default());
        let write = ClientCommand::Write {
            token,
            request: again,
            print: print(op),
            repeated: again.is_some(),
            table: DataHeader::NO_TABLE,
            ranges: ranges.into(),
            fallible: op.starts_with('!'),
            operation: Bytes::copy_from_slice(op.as_bytes()),
        };
        self.command_client(id, write);
    }

    fn input_client(&mut self, id: ProcessId, input: Input<Client>) {
        let retries = self.retries(id);
        let events = self.call(
            id,
            input,
            |message| message,
            |role| match role {
                Role::Client(it) => it,
                _ => panic!("{} is no client", name(id)),
            },
        );
        for _ in retries..self.retries(id) {
            self.count("restart");
        }
        for event in events {
            match event {
                ClientEvent::Begun { token, parts } => self.told_parts(id, token, parts),
                ClientEvent::Part { token, from, content, .. } => self.told_piece(id, token, from, content),
                ClientEvent::Done { token, at, parts } => {
                    self.told_parts(id, token, parts);
                    self.count("done");
                    self.end(id, token, Ok(at));
                    self.say(&format!("{} {token} is done @{at}", name(id)));
                }
                ClientEvent::Failed { token, error } => {
                    self.count(match error {
                        ClientError::NotSent => "not sent",
                        ClientError::MaybeApplied { .. } => "maybe applied",
                        ClientError::Rejected(_) => "rejected",
                        ClientError::Expired => "expired",
                        ClientError::OtherStatement => "other statement",
                        ClientError::Forgotten { .. } => "forgotten",
                        ClientError::Unanswered => "unanswered",
                        ClientError::Broken => "broken off",
                        ClientError::Unreached { .. } => "unreached",
                        ClientError::Died { .. } => "died",
                        ClientError::NoRoom { .. } => "no room",
                        ClientError::Untaken { .. } => "untaken",
                    });
                    self.end(id, token, Err(error));
                    let error = match error {
                        ClientError::MaybeApplied { request } => format!("MaybeApplied {}", request.number),
                        ClientError::Unreached { process } => format!("Unreached {}", name(process)),
                        ClientError::NoRoom { process } => format!("NoRoom at {}", name(process)),
                        ClientError::Untaken { process } => format!("Untaken, says {}", name(process)),
                        ClientError::Died { process, again } => {
                            let which = if again { "the second" } else { "and no other may" };
                            format!("Died {}, {which}", name(process))
                        }
                        other => format!("{other:?}"),
                    };
                    self.say(&format!("{} {token} failed: {error}", name(id)));
                }
                ClientEvent::Config(_) => {}
                ClientEvent::Unreached { process, .. } => {
                    self.say(&format!("{} cannot reach {}", name(id), name(process)));
                }
                ClientEvent::Adrift(true) => self.say(&format!("{} is adrift", name(id))),
                ClientEvent::Adrift(false) => self.say(&format!("{} hears of a leader", name(id))),
                ClientEvent::Left { result, .. } => self.left(id, result),
                ClientEvent::Wedged => self.wedge(id),
            }
        }
    }

    /// How often a client has tried reads again.
    fn retries(&self, id: ProcessId) -> u64 {
        match self.processes.get(&id).map(|process| &process.role) {
            Some(Role::Client(client)) => client.retries(),
            _ => 0,
        }
    }

    fn told_parts(&mut self, id: ProcessId, token: u64, parts: Vec<Answered>) {
        for Answered { from, pieces, .. } in parts {
            for content in pieces {
                self.told_piece(id, token, from, content);
            }
        }
    }

    fn told_piece(&mut self, id: ProcessId, token: u64, from: ProcessId, content: Bytes) {
        let told = self.told.get_mut(&(id, token)).expect("it was asked");
        assert!(told.end.is_none(), "a part behind the end of {token}");
        told.parts.push(content.clone());
        if content.len() < 8 && content.is_ascii() && !content.is_empty() && content[0] >= b' ' {
            let content = String::from_utf8_lossy(&content);
            self.say(&format!("{} {token} from {}: {content}", name(id), name(from)));
        }
    }

    fn end(&mut self, id: ProcessId, token: u64, end: Result<Position, ClientError>) {
        let told = self.told.get_mut(&(id, token)).expect("it was asked");
        assert!(told.end.is_none(), "{} {token} ends twice: {:?} and {end:?}", name(id), told.end);
        told.end = Some(end);
    }

    fn call<P: Protocol>(
        &mut self,
        id: ProcessId,
        input: Input<P>,
        wrap: impl Fn(P::Message) -> Message,
        pick: impl Fn(&mut Role) -> &mut P,
    ) -> Vec<P::Event> {
        let process = self.processes.get_mut(&id).expect("it lives");
        let protocol = pick(&mut process.role);
        let mut out = Outputs::<P>::behind(process.ticket);
        let mut chance = || self.chance.next();
        let mut cx = Context { now: self.now, me: id, random: &mut chance };
        protocol.handle(&mut cx, input, &mut out);
        // In memory mode a record is on disk before the next input.
        while std::mem::take(&mut out.persisted) {
            let ticket = out.ticket;
            protocol.handle(&mut cx, Input::Persisted(ticket), &mut out);
        }
        process.ticket = out.ticket;
        for peer in out.forgotten {
            process.wanted.remove(&peer);
        }
        if let Some(policy) = out.adopted {
            let Fence { generation, .. } = Fence::of_pass(&policy.pass()).expect("it shows its fence");
            assert!(generation > process.generation, "{} goes back to an earlier generation", name(id));
            process.generation = generation;
            for other in self.links.of(id) {
                if self.is_outdated(other, id) {
                    self.unlink(id, other);
                }
            }
        }
        let process = self.processes.get_mut(&id).expect("it lives");
        self.relink_due |= !out.reached.is_empty();
        process.wanted.extend(out.reached);
        for (to, message) in out.sent {
            self.post(id, to, &wrap(message));
        }
        out.events
    }

    fn post(&mut self, from: ProcessId, to: Destination, message: &Message) {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes);
        let bytes = bytes.freeze();
        let length = bytes.len();
        assert!(length <= MESSAGE_BYTES_MAX, "{} sends a message of {length} bytes", name(from));
        let many = match to {
            Destination::One(one) => vec![one],
            Destination::Many(many) => many,
        };
        for to in many {
            let Some(queue) = self.links.queue(from, to) else { continue };
            let (least, spread) = self.latency;
            let mut due = self.now + least;
            if !spread.is_zero() {
                // Mostly quick, sometimes slow.
                let cubed = (self.chance.next() % 1000).pow(3) / 1_000_000;
                due = due + spread * cubed as u32 / 1000;
            }
            let due = queue.back().map_or(due, |(last, _)| due.max(*last));
            queue.push_back((due, bytes.clone()));
        }
    }
}
