//! One router without a world. A test builds it from records and gives it one message at a time.

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Input, Peer, ProcessId, Protocol, Session, Sink, Ticket, Time,
    paxos::{Ballot, Command, Corrupt, Event, Message, Paxos, Record, Settings, Slot, SlotValue, StateKind},
    wire::Wire,
};

use super::world::{peer, process};

/// The outputs of a router during one call.
#[derive(Default)]
pub(super) struct Said {
    pub(super) sent: Vec<(Vec<ProcessId>, Message, Option<Ticket>)>,
    pub(super) events: Vec<Event>,
    pub(super) records: Vec<Record>,
    pub(super) reached: Vec<ProcessId>,
    pub(super) forgotten: Vec<ProcessId>,
    /// The router needs no record older than this one.
    pub(super) collected: Option<Ticket>,
    ticket: u64,
}

impl Said {
    /// Returns the messages to `to`, except pulses.
    pub(super) fn to(&self, to: &str) -> Vec<&Message> {
        let sent = self.sent.iter().filter(|(all, ..)| all.contains(&process(to)));
        sent.map(|(_, message, _)| message).filter(|message| !matches!(message, Message::Pulse(_))).collect()
    }

    pub(super) fn pulses(&self, to: &str) -> usize {
        let pulses = self.sent.iter().filter(|(_, message, _)| matches!(message, Message::Pulse(_)));
        pulses.filter(|(all, ..)| all.contains(&process(to))).count()
    }
}

impl Sink<Paxos> for Said {
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        let to = match to {
            Destination::One(one) => vec![one],
            Destination::Many(many) => many,
        };
        self.sent.push((to, message, after));
    }

    fn persist(&mut self, record: Record) -> Ticket {
        self.records.push(record);
        self.ticket += 1;
        Ticket(self.ticket)
    }

    fn collect(&mut self, before: Ticket, _: &[Ticket]) {
        self.collected = Some(before);
    }

    fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    fn reach(&mut self, peer: ProcessId, _: &str) {
        self.reached.push(peer);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.forgotten.push(peer);
    }
}

pub(super) struct Alone {
    pub(super) paxos: Paxos,
    pub(super) now: Time,
    /// The events that the router emitted at its first input.
    pub(super) events: Vec<Event>,
    ticket: u64,
}

/// Returns the ballot of a round that `router` leads.
pub(super) fn ballot(round: u64, router: &str) -> Ballot {
    Ballot { round, router: process(router) }
}

pub(super) fn peers(names: &str) -> Vec<Peer> {
    names.split_whitespace().map(|name| peer(process(name))).collect()
}

pub(super) fn members(names: &str) -> SlotValue {
    SlotValue::Members(peers(names).into())
}

/// Returns a slot's value with one payload of `bytes` bytes.
pub(super) fn value(bytes: usize) -> SlotValue {
    SlotValue::Payloads([Bytes::from(vec![b'x'; bytes])].into())
}

/// Returns the record of a router that has accepted `values` behind `chosen` in `ballot`.
pub(super) fn checkpoint(names: &str, ballot: Ballot, chosen: u64, values: Vec<SlotValue>) -> Record {
    Record::Checkpoint {
        promised: ballot,
        accepted: ballot,
        taught: Ballot::ZERO,
        slot: Slot(chosen),
        chosen: Slot(chosen),
        members: peers(names).into(),
        state: Bytes::new(),
        values,
    }
}

/// Builds router `me` from its records.
pub(super) fn recovered(
    me: &str,
    settings: &Settings,
    records: impl IntoIterator<Item = Record>,
) -> Result<Option<Paxos>, Corrupt> {
    let encoded = records.into_iter().map(|record| {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        bytes.freeze()
    });
    let encoded: Vec<Bytes> = encoded.collect();
    Paxos::recover(peer(process(me)), settings.clone(), encoded, Time(1_000_000_000))
}

impl Alone {
    /// Wraps a router that has had no input yet.
    pub(super) fn of(paxos: Paxos) -> Alone {
        Alone { paxos, now: Time(1_000_000_000), events: Vec::new(), ticket: 0 }
    }

    fn new(paxos: Paxos) -> Alone {
        let mut alone = Alone::of(paxos);
        alone.events = alone.input(Input::Drained).events;
        alone
    }

    /// Builds router `me` from one record, and links it to all other members.
    pub(super) fn from(me: &str, settings: &Settings, record: Record) -> Alone {
        let paxos = recovered(me, settings, [record]);
        let mut alone = Alone::new(paxos.expect("the record is whole").expect("there is one"));
        let others: Vec<_> = alone.paxos.members().iter().map(|peer| peer.id).collect();
        for other in others.into_iter().filter(|other| *other != process(me)) {
            alone.input(Input::Linked { peer: other, session: Session(1) });
        }
        alone
    }

    pub(super) fn joining(me: &str, settings: &Settings) -> Alone {
        Alone::new(Paxos::join(peer(process(me)), Vec::new(), settings.clone(), Time(1_000_000_000)))
    }

    pub(super) fn founder(settings: &Settings) -> Alone {
        Alone::new(Paxos::found(peer(process("1")), settings.clone(), Time(1_000_000_000)))
    }

    pub(super) fn input(&mut self, input: Input<Paxos>) -> Said {
        let mut random = || 0;
        let mut cx = Context { now: self.now, me: self.paxos.me(), random: &mut random };
        let mut said = Said { ticket: self.ticket, ..Said::default() };
        self.paxos.handle(&mut cx, input, &mut said);
        self.ticket = said.ticket;
        said
    }

    pub(super) fn hear(&mut self, from: &str, message: Message) -> Said {
        self.input(Input::Receive { from: process(from), message })
    }

    pub(super) fn command(&mut self, command: Command) -> Said {
        self.input(Input::Command(command))
    }

    /// Reports to the router that everything written so far is on disk.
    pub(super) fn persisted(&mut self) -> Said {
        self.input(Input::Persisted(Ticket(self.ticket)))
    }

    /// Waits for the next deadline.
    pub(super) fn wake(&mut self) -> Said {
        self.now = self.now.max(self.paxos.deadline().expect("a router always waits for something"));
        self.input(Input::Deadline)
    }

    /// Waits until the router stands for leader. Returns its ballot.
    pub(super) fn stand(&mut self) -> Ballot {
        for _ in 0..50 {
            for (_, message, _) in self.wake().sent {
                if let Message::PreVote(prepare) = message {
                    return prepare.ballot;
                }
            }
        }
        panic!("it never stands");
    }

    pub(super) fn state(&self) -> StateKind {
        self.paxos.status().state
    }

    pub(super) fn last(&self) -> u64 {
        self.paxos.status().last.0
    }
}
