//! A router and its user, which keeps a number of own values in flight.
//!
//! Values are numbered by their author, and a value counts iff it is the next of its author (rule S3). An
//! author is one life of an operating-system process: a router that recovers from its disk is the same member
//! and another author.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hdrhistogram::Histogram;
use quorate_protocol::{
    Context, Input, Lift, Peer, Protocol, Sink, Time,
    paxos::{self, Command, Event, Paxos},
    wire::{decode_body, encode_body},
};
use serde::{Deserialize, Serialize};

/// Minimum length of a value in bytes: author and number.
pub(super) const VALUE_BYTES_MIN: usize = 16;

pub(super) struct PaxosReplica {
    paxos: Paxos,
    author: u64,
    state: State,
    /// Own values that are not learned yet: number, time of the proposal, and value.
    own: VecDeque<(u64, Time, Bytes)>,
    own_next: u64,
    in_flight: usize,
    value_bytes: usize,
    queue: VecDeque<Event>,
    since: Time,
    measured: u64,
    latency: Histogram<u64>,
    /// The number up to which own values were reported to the user.
    reported: u64,
}

/// A summary of the log, by which replicas are compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    slot: u64,
    /// Number of values of each author in the log.
    values: BTreeMap<u64, u64>,
}

pub(super) enum ReplicaCommand {
    Seeds(Vec<Peer>),
    /// Keep this number of own values in flight.
    Load(usize),
    /// Start measuring.
    Reset,
    Report,
}

pub(super) enum ReplicaEvent {
    /// All own values below this number are in the log, and learned.
    Acknowledged(u64),
    Report(Box<RouterReport>),
}

/// The knowledge of a router, and its measurements.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct RouterReport {
    pub(super) process: String,
    pub(super) author: u64,
    pub(super) leads: bool,
    pub(super) members: Vec<String>,
    /// The last learned slot.
    pub(super) slot: u64,
    /// The last slot of the log, chosen or not.
    pub(super) last: u64,
    /// Number of values of each author in the log.
    pub(super) values: BTreeMap<u64, u64>,
    pub(super) measured: u64,
    pub(super) seconds: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl PaxosReplica {
    pub(super) fn new(paxos: Paxos, author: u64, value_bytes: usize) -> PaxosReplica {
        PaxosReplica {
            paxos,
            author,
            state: State::default(),
            own: VecDeque::new(),
            own_next: 0,
            in_flight: 0,
            value_bytes,
            queue: VecDeque::new(),
            since: Time::ZERO,
            measured: 0,
            latency: Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .expect("the bounds of the histogram are valid"),
            reported: 0,
        }
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Paxos>, out: &mut dyn Sink<PaxosReplica>) {
        let queue = &mut self.queue;
        let mut lift = Lift::<PaxosReplica, _, _>::new::<Paxos>(
            out,
            |_, _, message| Some(message),
            |_, event| queue.push_back(event),
        );
        self.paxos.handle(cx, input, &mut lift);
    }

    fn settle(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<PaxosReplica>) {
        while let Some(event) = self.queue.pop_front() {
            match event {
                Event::Learned { slot, payloads } => {
                    self.state.slot = slot.0;
                    payloads.iter().for_each(|payload| self.learned(cx.now, payload));
                }
                Event::Leader(Some(_)) => {
                    for (_, _, payload) in self.own.clone() {
                        self.give(cx, Input::Command(Command::Propose { payload }), out);
                    }
                }
                Event::SnapshotWanted { slot } => {
                    let mut state = BytesMut::new();
                    encode_body(&mut state, &self.state);
                    let state = state.freeze();
                    self.give(cx, Input::Command(Command::Snapshot { slot, state }), out);
                }
                Event::Install { mut state, .. } => {
                    self.state = decode_body(&mut state).expect("a snapshot arrives unchanged");
                    let known = self.state.values.get(&self.author).copied().unwrap_or(0);
                    self.own.retain(|(number, ..)| *number >= known);
                }
                Event::Removed => std::process::exit(3),
                // This user may propose at any router and hands out its state whole, so it ignores all other
                // events.
                _ => {}
            }
        }
    }

    fn learned(&mut self, now: Time, payload: &Bytes) {
        let mut rest = &payload[..];
        let (author, number) = (rest.get_u64_le(), rest.get_u64_le());
        let next = self.state.values.entry(author).or_insert(0);
        if number != *next {
            return;
        }
        *next += 1;
        if author == self.author {
            let (first, proposed, _) =
                self.own.pop_front().expect("a router keeps its own value until the value is learned");
            assert_eq!(first, number, "a router learns its own values in their order");
            self.measured += 1;
            self.latency.saturating_record(now.since(proposed).as_nanos() as u64);
        }
    }

    fn propose(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<PaxosReplica>) {
        while self.own.len() < self.in_flight {
            let mut payload = BytesMut::with_capacity(self.value_bytes);
            payload.put_u64_le(self.author);
            payload.put_u64_le(self.own_next);
            payload.resize(self.value_bytes, self.own_next as u8);
            let payload = payload.freeze();
            self.own.push_back((self.own_next, cx.now, payload.clone()));
            self.own_next += 1;
            self.give(cx, Input::Command(Command::Propose { payload }), out);
        }
    }

    fn report(&self, now: Time) -> RouterReport {
        let microseconds = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1000.0;
        RouterReport {
            process: self.paxos.me().to_string(),
            author: self.author,
            leads: self.paxos.is_leader(),
            members: self.paxos.members().iter().map(|peer| peer.id.to_string()).collect(),
            slot: self.state.slot,
            last: self.paxos.status().last.0,
            values: self.state.values.clone(),
            measured: self.measured,
            seconds: now.since(self.since).as_secs_f64(),
            p50_us: microseconds(0.5),
            p99_us: microseconds(0.99),
        }
    }
}

impl Protocol for PaxosReplica {
    type Message = paxos::Message;
    type Record = paxos::Record;
    type Command = ReplicaCommand;
    type Event = ReplicaEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let input = match input {
            Input::Command(ReplicaCommand::Load(in_flight)) => {
                self.in_flight = in_flight;
                return;
            }
            Input::Command(ReplicaCommand::Reset) => {
                (self.since, self.measured) = (cx.now, 0);
                return self.latency.reset();
            }
            Input::Command(ReplicaCommand::Report) => {
                return out.emit(ReplicaEvent::Report(Box::new(self.report(cx.now))));
            }
            input => input.map(std::convert::identity, |ask| match ask {
                ReplicaCommand::Seeds(seeds) => Command::Seeds(seeds),
                _ => unreachable!("a request for the report is answered before"),
            }),
        };
        if matches!(input, Input::Drained) {
            self.propose(cx, out);
        }
        self.give(cx, input, out);
        self.settle(cx, out);
        let acknowledged = self.own.front().map_or(self.own_next, |(number, ..)| *number);
        if acknowledged > self.reported {
            self.reported = acknowledged;
            out.emit(ReplicaEvent::Acknowledged(acknowledged));
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.paxos.deadline()
    }
}
