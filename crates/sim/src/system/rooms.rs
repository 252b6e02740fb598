//! Rooms: the smallest useful routing, and its naive twin.
//!
//! Members enter and quit rooms. A word goes to the members that are in its room at that point of the order.
//! The routing refuses a word in an empty room. Joins, departures and suspicions go to every member.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    ProcessId,
    ecast::{Class, Destinations, MessageId, Position, Refusal, Routing},
    wire::{decode_body, encode_body},
};
use serde::{Deserialize, Serialize};

use crate::check::order::{Twin, Unroutable};

/// The messages that members submit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Say {
    /// The sender becomes a member.
    Join,
    /// The sender leaves.
    Leave,
    /// These processes have failed.
    Suspect { processes: Vec<ProcessId> },
    /// The sender enters a room.
    Enter { room: u64 },
    /// The sender quits a room.
    Quit { room: u64 },
    /// A word for every member in the room.
    Word { room: u64, word: u64, filler: Vec<u8> },
}

impl Say {
    pub(crate) fn class(&self) -> Class {
        if matches!(self, Say::Word { .. }) { Class::Data } else { Class::Control }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        encode_body(&mut out, self);
        out.freeze()
    }

    pub(crate) fn decode(body: &Bytes) -> Option<Say> {
        decode_body(&mut body.clone()).ok()
    }
}

/// The routing.
pub(crate) struct Rooms;

/// The configuration of the routing: the members, and the rooms of each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Floor {
    members: BTreeMap<ProcessId, BTreeSet<u64>>,
}

impl Floor {
    pub(crate) fn has(&self, member: ProcessId) -> bool {
        self.members.contains_key(&member)
    }
}

impl Routing for Rooms {
    type Config = Floor;
    type Ledger = ();

    fn admit(_: &mut (), _: Position, _: Class, _: &Bytes) -> Result<(), Refusal> {
        Ok(())
    }

    fn apply(
        config: &Floor,
        _at: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<Floor>, Refusal> {
        let mut floor = config.clone();
        match Say::decode(body).ok_or(MALFORMED)? {
            Say::Join => {
                floor.members.entry(sender).or_default();
            }
            Say::Leave => {
                floor.members.remove(&sender);
            }
            Say::Suspect { processes } => floor.members.retain(|member, _| !processes.contains(member)),
            Say::Enter { room } => {
                floor.members.get_mut(&sender).ok_or(MALFORMED)?.insert(room);
            }
            Say::Quit { room } => {
                floor.members.get_mut(&sender).ok_or(MALFORMED)?.remove(&room);
            }
            Say::Word { .. } => return Err(MALFORMED),
        }
        Ok((floor != *config).then_some(floor))
    }

    fn destinations(
        config: &Floor,
        _id: MessageId,
        class: Class,
        body: &Bytes,
    ) -> Result<Destinations, Refusal> {
        let mut found = Destinations::default();
        match Say::decode(body).ok_or(MALFORMED)? {
            Say::Word { room, .. } if class == Class::Data => {
                let inside = config.members.iter().filter(|(_, rooms)| rooms.contains(&room));
                found.processes = inside.map(|(&member, _)| member).collect();
                if found.processes.is_empty() {
                    return Err(Refusal(room));
                }
                // The routers acknowledge a word to its sender only if at least one member of the room has
                // received it.
                found.groups.push(u64::MAX >> (64 - found.processes.len()));
            }
            _ => found.processes = config.members.keys().copied().collect(),
        }
        Ok(found)
    }

    fn is_member(config: &Floor, process: ProcessId) -> bool {
        config.members.contains_key(&process)
    }

    fn members(config: &Floor) -> Vec<ProcessId> {
        config.members.keys().copied().collect()
    }

    fn attachment(config: &Floor, id: MessageId, body: &Bytes, destination: ProcessId) -> Option<Bytes> {
        (id.sender == destination && Say::decode(body) == Some(Say::Join)).then(|| {
            let mut out = BytesMut::new();
            encode_body(&mut out, config);
            out.freeze()
        })
    }
}

const MALFORMED: Refusal = Refusal(u64::MAX);

/// The naive twin: it keeps the history of control messages, and computes everything from that.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoomsTwin {
    history: Vec<(ProcessId, Say)>,
    /// The rooms of each member, cached until the history changes.
    present: Option<BTreeMap<ProcessId, BTreeSet<u64>>>,
}

impl Twin for RoomsTwin {
    fn next(
        &mut self,
        _position: u64,
        sender: ProcessId,
        class: Class,
        body: &Bytes,
    ) -> Result<BTreeSet<ProcessId>, Unroutable> {
        let say = Say::decode(body).ok_or(Unroutable::NotMember)?;
        if class == Class::Control {
            let before = self.is_member(sender);
            self.history.push((sender, say));
            self.present = None;
            if !before && !self.is_member(sender) {
                self.history.pop();
                self.present = None;
                return Err(Unroutable::NotMember);
            }
            // A process that leaves does not receive its own departure. A process that joins receives its own
            // join.
            return Ok(self.present().keys().copied().collect());
        }
        if !self.is_member(sender) {
            return Err(Unroutable::NotMember);
        }
        let Say::Word { room, .. } = say else { return Err(Unroutable::NotMember) };
        let inside = self.present().iter().filter(|(_, rooms)| rooms.contains(&room));
        let inside: BTreeSet<ProcessId> = inside.map(|(&member, _)| member).collect();
        if inside.is_empty() { Err(Unroutable::Refused) } else { Ok(inside) }
    }

    fn is_member(&mut self, process: ProcessId) -> bool {
        self.present().contains_key(&process)
    }
}

impl RoomsTwin {
    /// Returns the members, and the rooms of each.
    pub(crate) fn present(&mut self) -> &BTreeMap<ProcessId, BTreeSet<u64>> {
        if self.present.is_none() {
            let joined: BTreeSet<ProcessId> =
                self.history.iter().filter(|(_, say)| *say == Say::Join).map(|(who, _)| *who).collect();
            let gone = |who: ProcessId| {
                self.history.iter().any(|(sender, say)| match say {
                    Say::Leave => *sender == who,
                    Say::Suspect { processes } => processes.contains(&who),
                    _ => false,
                })
            };
            let inside = |who: ProcessId| -> BTreeSet<u64> {
                let own = || self.history.iter().filter(|(sender, _)| *sender == who).map(|(_, say)| say);
                let last = |room: u64| {
                    own().rev().find(
                        |say| matches!(say, Say::Enter { room: r } | Say::Quit { room: r } if *r == room),
                    )
                };
                own()
                    .filter_map(|say| match say {
                        Say::Enter { room } => Some(*room),
                        _ => None,
                    })
                    .filter(|&room| matches!(last(room), Some(Say::Enter { .. })))
                    .collect()
            };
            self.present =
                Some(joined.into_iter().filter(|&who| !gone(who)).map(|who| (who, inside(who))).collect());
        }
        self.present.as_ref().expect("just computed")
    }
}
