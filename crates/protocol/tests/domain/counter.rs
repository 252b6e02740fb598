//! A third kind of state: a number that every member of the part holds and may add to.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    domain::Part,
    ecast::{Class, Destinations, MessageId, Position, Refusal, Routing},
};

/// The part of the domain that holds the numbers.
pub(super) struct Counters;

/// A message that a member of the part submits.
pub(super) enum Message {
    Join,
    Leave,
    Add(u8),
}

impl Message {
    pub(super) fn encode(&self) -> (Class, Bytes) {
        let (class, bytes) = match self {
            Message::Join => (Class::Control, vec![Counters::TAG, b'+']),
            Message::Leave => (Class::Control, vec![Counters::TAG, b'-']),
            Message::Add(count) => (Class::Data, vec![Counters::TAG, b'=', *count]),
        };
        (class, bytes.into())
    }

    pub(super) fn decode(body: &[u8]) -> Result<Message, Refusal> {
        match body {
            [Counters::TAG, b'+'] => Ok(Message::Join),
            [Counters::TAG, b'-'] => Ok(Message::Leave),
            [Counters::TAG, b'=', count] => Ok(Message::Add(*count)),
            _ => Err(Refusal(1)),
        }
    }
}

impl Routing for Counters {
    type Config = BTreeSet<ProcessId>;
    type Ledger = u64;

    fn admit(ledger: &mut u64, _: Position, _: Class, _: &Bytes) -> Result<(), Refusal> {
        *ledger += 1;
        Ok(())
    }

    fn apply(
        members: &BTreeSet<ProcessId>,
        _: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<BTreeSet<ProcessId>>, Refusal> {
        let mut members = members.clone();
        let changed = match Message::decode(body)? {
            Message::Join => members.insert(sender),
            Message::Leave => members.remove(&sender),
            Message::Add(_) => false,
        };
        Ok(changed.then_some(members))
    }

    fn destinations(
        members: &BTreeSet<ProcessId>,
        _: MessageId,
        _: Class,
        body: &Bytes,
    ) -> Result<Destinations, Refusal> {
        Message::decode(body)?;
        Ok(Destinations { processes: members.iter().copied().collect(), ..Destinations::default() })
    }

    fn is_member(members: &BTreeSet<ProcessId>, process: ProcessId) -> bool {
        members.contains(&process)
    }

    fn members(members: &BTreeSet<ProcessId>) -> Vec<ProcessId> {
        members.iter().copied().collect()
    }

    fn attachment(_: &BTreeSet<ProcessId>, _: MessageId, _: &Bytes, _: ProcessId) -> Option<Bytes> {
        None
    }
}

impl Part for Counters {
    const TAG: u8 = 9;

    fn vacant() -> BTreeSet<ProcessId> {
        BTreeSet::new()
    }
}
