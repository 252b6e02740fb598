//! A router and its user, who appends numbered entries.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Input, Lift, Peer, ProcessId, Protocol, Sink, Time,
    paxos::{self, Command, Event, Paxos},
    wire::{decode_body, encode_body, put_process, take_process, take_u64},
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::mutation::Tamper;

/// A router and its user.
pub(crate) struct Replica {
    pub(crate) paxos: Paxos,
    /// The author id for the replica's entries. A replica that recovers from disk takes a new one, because it
    /// does not know the last entry that it proposed.
    author: ProcessId,
    pub(crate) state: State,
    /// Own entries that the replica has not learned yet, in order.
    pub(crate) own: VecDeque<(u64, Bytes)>,
    own_next: u64,
    queue: VecDeque<Event>,
    tamper: Option<Tamper>,
}

/// A summary of the log, by which replicas are compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) slot: u64,
    chain: u64,
    /// The number of entries of each proposer in the log.
    appended: BTreeMap<ProcessId, u64>,
}

pub(crate) enum PaxosCommand {
    Append(Bytes),
    Remove(ProcessId),
    /// Addresses of routers that the replica's host found.
    Seeds(Vec<Peer>),
}

#[derive(Debug)]
pub(crate) enum PaxosEvent {
    Learned {
        slot: u64,
        payloads: Vec<Bytes>,
        chain: u64,
    },
    Installed {
        slot: u64,
        chain: u64,
    },
    Members(Vec<Peer>),
    Leader(Option<ProcessId>),
    SnapshotMade,
    Removed,
    ChangeRefused,
    /// The leader saw that a learner had promised a higher ballot, so the learner can never follow this
    /// leader.
    OutbidByLearner,
}

impl Replica {
    pub(crate) fn new(paxos: Paxos, author: ProcessId, tamper: Option<Tamper>) -> Self {
        let state = State::default();
        Replica { paxos, author, state, own: VecDeque::new(), own_next: 0, queue: VecDeque::new(), tamper }
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Paxos>, out: &mut dyn Sink<Replica>) {
        let Replica { paxos, queue, tamper, .. } = self;
        let mut lift = Lift::<Replica, _, _>::new::<Paxos>(
            out,
            |_, _, message| match tamper {
                Some(tamper) => tamper.replaced_outgoing(message),
                None => Some(message),
            },
            |_, event| queue.push_back(event),
        );
        paxos.handle(cx, input, &mut lift);
    }

    fn settle(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Replica>) {
        while let Some(event) = self.queue.pop_front() {
            match event {
                Event::Learned { slot, payloads } => {
                    for payload in &payloads {
                        self.learned(payload);
                    }
                    self.state.slot = slot.0;
                    self.state.chain = chained(self.state.chain, slot.0, &payloads);
                    out.emit(PaxosEvent::Learned { slot: slot.0, payloads, chain: self.state.chain });
                }
                Event::Leader(leader) => {
                    let once = self.tamper.as_ref().is_some_and(Tamper::proposes_once);
                    if leader.is_some() && !once {
                        for (_, payload) in self.own.clone() {
                            self.give(cx, Input::Command(Command::Propose { payload }), out);
                        }
                    }
                    out.emit(PaxosEvent::Leader(leader));
                }
                Event::SnapshotWanted { slot } => {
                    assert_eq!(
                        slot.0, self.state.slot,
                        "a snapshot is wanted of the slot that was learned last"
                    );
                    let mut state = BytesMut::new();
                    encode_body(&mut state, &self.state);
                    let command = Command::Snapshot { slot, state: state.freeze() };
                    self.give(cx, Input::Command(command), out);
                    out.emit(PaxosEvent::SnapshotMade);
                }
                Event::Install { slot, mut state } => {
                    self.state = decode_body(&mut state).expect("a snapshot arrives as it was made");
                    let known = self.state.appended.get(&self.author).copied().unwrap_or(0);
                    self.own.retain(|&(number, _)| number >= known);
                    out.emit(PaxosEvent::Installed { slot: slot.0, chain: self.state.chain });
                }
                Event::Members(members) => out.emit(PaxosEvent::Members(members)),
                Event::Removed => out.emit(PaxosEvent::Removed),
                Event::ChangeRefused { .. } => out.emit(PaxosEvent::ChangeRefused),
                Event::Detour(_)
                | Event::SnapshotPartWanted { .. }
                | Event::SnapshotUnwanted { .. }
                | Event::InstallPart { .. }
                | Event::Reign { .. }
                | Event::Settled { .. }
                | Event::Deposed { .. }
                | Event::Refused { .. }
                | Event::Confirmed { .. } => {}
            }
        }
    }

    fn is_outbid_by_learner(&self, me: ProcessId, from: ProcessId, message: &paxos::Message) -> bool {
        let paxos::Message::Refused { ballot, promised, .. } = message else { return false };
        let is_member = self.paxos.members().iter().any(|peer| peer.id == from);
        promised > ballot && !is_member && self.paxos.leader() == Some(me)
    }

    fn learned(&mut self, payload: &Bytes) {
        let (proposer, number) = opened(payload);
        let next = self.state.appended.entry(proposer).or_insert(0);
        if number == *next {
            *next += 1;
            if proposer == self.author {
                let (first, _) =
                    self.own.pop_front().expect("a router keeps its proposal until the proposal is learned");
                assert_eq!(first, number, "a router learns its own entries in their order");
            }
        }
    }
}

impl Protocol for Replica {
    type Message = paxos::Message;
    type Record = paxos::Record;
    type Command = PaxosCommand;
    type Event = PaxosEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let author = self.author;
        let input = input.map(std::convert::identity, |ask| match ask {
            PaxosCommand::Append(filler) => {
                let payload = sealed(author, self.own_next, &filler);
                self.own.push_back((self.own_next, payload.clone()));
                self.own_next += 1;
                Command::Propose { payload }
            }
            PaxosCommand::Remove(router) => Command::RemoveRouter(router),
            PaxosCommand::Seeds(seeds) => Command::Seeds(seeds),
        });
        if let Input::Receive { from, message } = &input
            && self.is_outbid_by_learner(cx.me, *from, message)
        {
            out.emit(PaxosEvent::OutbidByLearner);
        }
        match (input, &mut self.tamper) {
            (Input::Receive { from, message }, Some(tamper)) => {
                for (to, vote) in tamper.forged_votes(cx.me, &self.paxos, &message) {
                    out.send(Destination::One(to), vote, None);
                }
                self.give(cx, Input::Receive { from, message }, out);
            }
            (input, _) => self.give(cx, input, out),
        }
        self.settle(cx, out);
    }

    fn deadline(&self) -> Option<Time> {
        self.paxos.deadline()
    }
}

fn sealed(proposer: ProcessId, number: u64, filler: &[u8]) -> Bytes {
    let mut payload = BytesMut::with_capacity(32 + filler.len());
    put_process(&mut payload, proposer);
    payload.put_u64_le(number);
    payload.put_slice(filler);
    payload.freeze()
}

/// Decodes the proposer of a payload, and the number of the entry.
pub(crate) fn opened(payload: &Bytes) -> (ProcessId, u64) {
    let mut rest = payload.clone();
    let proposer = take_process(&mut rest).expect("a learned payload equals the proposed one");
    (proposer, take_u64(&mut rest).expect("a learned payload equals the proposed one"))
}

/// Returns the running hash of a log after one more slot. `chain` is the hash before it.
pub(crate) fn chained(chain: u64, slot: u64, payloads: &[Bytes]) -> u64 {
    let chain = xxh3_64_with_seed(&slot.to_le_bytes(), chain);
    payloads.iter().fold(chain, |chain, payload| xxh3_64_with_seed(payload, chain))
}
