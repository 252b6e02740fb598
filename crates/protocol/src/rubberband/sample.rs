//! Small rings and a recording sink, for the tests of this folder.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Config, DataHeader, DataKind, MemberInfo, Message, Range, Record, RequestId, Role, StorageState,
    WriteName, config::State,
};
use crate::{
    ecast::Position,
    id::{Incarnation, ProcessId},
    seam::{Destination, Protocol, Sink, Ticket},
};

/// Node number of the super in `town`.
pub(super) const SUPER: u64 = 9;

pub(super) fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(u128::from(node)) }
}

pub(super) fn range(low: u64, high: u64) -> Range {
    Range { low, high }
}

/// Builds a ring of processes 1, 2, 3, … at `keys`. A letter per process gives its state: `A`ctive,
/// `R`eceiving, `U`nreachable, `S`tandby, a`W`ay, or `D`ead.
pub(super) fn ring(factor: u8, keys: &[u64], states: &str) -> Config {
    assert_eq!(keys.len(), states.len(), "the sample has a state for each key");
    let mut state = State::from(Config::new(factor));
    for (node, (&key, letter)) in (1..).zip(keys.iter().zip(states.chars())) {
        state.ring.insert(key, process(node));
        let stands = match letter {
            'A' => StorageState::Active,
            'R' => StorageState::Receiving { change: Position(9) },
            'U' => StorageState::Unreachable,
            'S' => StorageState::Standby,
            'W' => StorageState::Away { on_ring: true },
            'D' => continue,
            other => panic!("no state is called {other}"),
        };
        state.storage.insert(process(node), stands);
    }
    Config::from(state)
}

/// Builds a ring whose storage processes are all members, and adds a super.
pub(super) fn town(factor: u8, keys: &[u64], states: &str) -> Config {
    let mut state = State::from(ring(factor, keys, states));
    let info = |role| MemberInfo { role, name: String::new(), address: String::new() };
    state.members = state.storage.keys().map(|&it| (it, info(Role::Storage))).collect();
    state.members.insert(process(SUPER), info(Role::Super));
    Config::from(state)
}

/// Returns the header of a client's write, number 1 of session 77, to these ranges.
pub(super) fn write_header(ranges: &[Range], repeated: bool) -> DataHeader {
    DataHeader {
        kind: DataKind::FallibleWrite,
        token: 5,
        name: WriteName { request: RequestId { session: 77, number: 1 }, print: 3, repeated },
        offset: 0,
        table: DataHeader::NO_TABLE,
        ranges: SmallVec::from_slice(ranges),
    }
}

/// Records the output of a role.
pub(super) struct RecordingSink<P: Protocol> {
    pub(super) sent: Vec<(ProcessId, P::Message)>,
    pub(super) events: Vec<P::Event>,
    /// Records written so far, of which the first has ticket 1.
    pub(super) records: Vec<Record>,
    pub(super) collected: Option<Ticket>,
    pub(super) kept: Vec<Ticket>,
    /// Peers that the role asked to link.
    pub(super) reached: Vec<ProcessId>,
    /// Peers whose links the role gave up.
    pub(super) forgotten: Vec<ProcessId>,
}

impl<P: Protocol> Default for RecordingSink<P> {
    fn default() -> Self {
        RecordingSink {
            sent: Vec::new(),
            events: Vec::new(),
            records: Vec::new(),
            collected: None,
            kept: Vec::new(),
            reached: Vec::new(),
            forgotten: Vec::new(),
        }
    }
}

impl<P: Protocol<Message = Message, Record = Record>> Sink<P> for RecordingSink<P> {
    fn send(&mut self, to: Destination, message: Message, _: Option<Ticket>) {
        let to = match to {
            Destination::One(one) => vec![one],
            Destination::Many(many) => many,
        };
        self.sent.extend(to.into_iter().map(|to| (to, message.clone())));
    }

    fn persist(&mut self, record: Record) -> Ticket {
        self.records.push(record);
        Ticket(self.records.len() as u64)
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.collected = Some(before);
        self.kept = kept.to_vec();
    }

    fn emit(&mut self, event: P::Event) {
        self.events.push(event);
    }

    fn reach(&mut self, peer: ProcessId, _: &str) {
        self.reached.push(peer);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.forgotten.push(peer);
    }
}

pub(super) fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Formats a range; the end of the ring is `end`.
pub(super) fn text(range: Range) -> String {
    match range.high {
        u64::MAX => format!("{}-end", range.low),
        high => format!("{}-{high}", range.low),
    }
}

/// Formats ranges.
pub(super) fn texts(ranges: &[Range]) -> String {
    ranges.iter().map(|range| text(*range)).collect::<Vec<_>>().join(" ")
}
