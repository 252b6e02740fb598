//! A small application for the tests of this folder: members join, leave and remove others, and all get every
//! message.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{
    Class, Destinations, MessageId, Pace, Position, Refusal, Routing,
    entry::{LogEntry, RouteBlockBuilder},
    order::Order,
};
use crate::{
    admission::{NotAdmitted, Terms},
    id::{Incarnation, ProcessId},
};

pub(super) struct Toy;

/// Node number that is added to a member's own: such an entry of the configuration says that the cluster
/// waits for the member.
const WAITED_FOR: u64 = 1000;
/// Node number that is added to a member's own: such an entry of the configuration says that the member is
/// away.
const AWAY: u64 = 2 * WAITED_FOR;

/// The first node number of members that the routers expel when they die (up to `WAITED_FOR`).
pub(super) const JUDGED: u64 = 100;

impl Routing for Toy {
    type Config = BTreeSet<ProcessId>;
    /// Bodies ending in `!` that were seen; each is admitted once.
    type Ledger = BTreeSet<Bytes>;

    fn admit(said: &mut Self::Ledger, _at: Position, _class: Class, body: &Bytes) -> Result<(), Refusal> {
        if body.ends_with(b"!") && !said.insert(body.clone()) { Err(Refusal(2)) } else { Ok(()) }
    }

    fn apply(
        config: &Self::Config,
        _at: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<Self::Config>, Refusal> {
        let mut after = config.clone();
        match &body[..] {
            b"join" => after.insert(sender),
            b"leave" => after.remove(&sender),
            [b'-', node] => after.remove(&process(u64::from(*node))),
            [b'?', node] => after.insert(process(WAITED_FOR + u64::from(*node))),
            [b'!', node] => after.remove(&process(WAITED_FOR + u64::from(*node))),
            [b'~', node] => after.insert(process(AWAY + u64::from(*node))),
            [b'=', node] => after.remove(&process(AWAY + u64::from(*node))),
            _ => return Err(Refusal(1)),
        };
        Ok(Some(after))
    }

    fn destinations(
        config: &Self::Config,
        _id: MessageId,
        _class: Class,
        body: &Bytes,
    ) -> Result<Destinations, Refusal> {
        // A message `1:…` is for process 1 alone.
        let only = |process: &&ProcessId| !matches!(body[..], [node, b':', ..] if u64::from(node) != 48 + process.node);
        Ok(Destinations {
            processes: Toy::members(config).iter().filter(only).copied().collect(),
            ..Destinations::default()
        })
    }

    fn not_admitted(_: &Self::Config, _: ProcessId, _: &Bytes) -> Option<NotAdmitted> {
        Some(NotAdmitted::Terms(Terms::default()))
    }

    fn is_member(config: &Self::Config, process: ProcessId) -> bool {
        config.contains(&process)
    }

    fn expulsion(config: &Self::Config, process: ProcessId) -> Option<Bytes> {
        let judged = (JUDGED..WAITED_FOR).contains(&process.node) && config.contains(&process);
        judged.then(|| Bytes::from_static(b"leave"))
    }

    fn members(config: &Self::Config) -> Vec<ProcessId> {
        config.iter().filter(|process| process.node < WAITED_FOR).copied().collect()
    }

    fn pace(config: &Self::Config, process: ProcessId) -> Pace {
        let waited_for = config.contains(&self::process(WAITED_FOR + process.node));
        match (waited_for, config.contains(&self::process(AWAY + process.node))) {
            (true, _) => Pace::Waits,
            (false, true) => Pace::Away,
            (false, false) => Pace::Executes,
        }
    }

    fn attachment(_: &Self::Config, _: MessageId, _: &Bytes, _: ProcessId) -> Option<Bytes> {
        None
    }
}

pub(super) fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(u128::from(node)) }
}

/// Builds a block. A body that begins with `*` is a control message.
pub(super) fn block(sender: u64, first: u64, bodies: &[&str]) -> Bytes {
    let mut block = RouteBlockBuilder::new(process(sender), 0, first);
    for body in bodies {
        match body.strip_prefix('*') {
            Some(body) => block.push(Class::Control, body.as_bytes()),
            None => block.push(Class::Data, body.as_bytes()),
        }
    }
    block.finish()
}

pub(super) fn stable(runs: &[(u64, u32)]) -> Bytes {
    LogEntry::encode_stable(runs, &[])
}

/// Formats the live messages.
pub(super) fn live(order: &Order<Toy>) -> String {
    let flight = |at| order.flight(Position(at)).expect("it is live");
    let texts = (order.base().0 + 1..=order.last().0).map(|at| {
        let flight = flight(at);
        let refused = if flight.refused.is_some() { "!" } else { "" };
        let body = String::from_utf8_lossy(&flight.body).into_owned();
        format!("{at}:{}.{}{refused} {body}", flight.id.sender.node, flight.id.number)
    });
    texts.collect::<Vec<_>>().join(", ")
}
