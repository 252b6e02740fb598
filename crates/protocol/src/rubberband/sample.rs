//! Small rings for the tests of this folder.

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

/// The super of a [`town`].
pub(super) const SUPER: u64 = 9;

pub(super) fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(u128::from(node)) }
}

pub(super) fn range(low: u64, high: u64) -> Range {
    Range { low, high }
}

/// A ring of processes 1, 2, 3, … at `keys`, each in the state that its letter names: `A`ctive, `R`eceiving,
/// `U`nreachable, `S`tandby, a`W`ay, or `D`ead.
pub(super) fn ring(factor: u8, keys: &[u64], states: &str) -> Config {
    assert_eq!(keys.len(), states.len(), "a state for each key");
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

/// A ring with everybody on it a member, and a super.
pub(super) fn town(factor: u8, keys: &[u64], states: &str) -> Config {
    let mut state = State::from(ring(factor, keys, states));
    let info = |role| MemberInfo { role, name: String::new(), address: String::new() };
    state.members = state.storage.keys().map(|&it| (it, info(Role::Storage))).collect();
    state.members.insert(process(SUPER), info(Role::Super));
    Config::from(state)
}

/// The header of a client's write, number 1 of session 77, to these ranges.
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

/// What a role sends, and tells its user.
pub(super) struct Said<P: Protocol> {
    pub(super) sent: Vec<(ProcessId, P::Message)>,
    pub(super) events: Vec<P::Event>,
    /// What it wrote down, from ticket 1 on, and what of that it needs no more.
    pub(super) records: Vec<Record>,
    pub(super) collected: Option<Ticket>,
    pub(super) kept: Vec<Ticket>,
    /// Links that it wants, and those that it wants no more.
    pub(super) reached: Vec<ProcessId>,
    pub(super) forgotten: Vec<ProcessId>,
}

impl<P: Protocol> Default for Said<P> {
    fn default() -> Self {
        Said {
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

impl<P: Protocol<Message = Message, Record = Record>> Sink<P> for Said<P> {
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

/// Bytes of a text.
pub(super) fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// A range as text; the end of the ring is `end`.
pub(super) fn text(range: Range) -> String {
    match range.high {
        u64::MAX => format!("{}-end", range.low),
        high => format!("{}-{high}", range.low),
    }
}

/// Ranges as text.
pub(super) fn texts(ranges: &[Range]) -> String {
    ranges.iter().map(|range| text(*range)).collect::<Vec<_>>().join(" ")
}
