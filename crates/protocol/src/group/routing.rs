//! The routing of groups in E-Cast: the messages that members submit, the receivers of each message, and the
//! routers' state.
//!
//! A control message goes to the processes that it concerns: the audience of its group, and its sender. So a
//! member keeps only its own groups, and applies the same [`GroupStep`]s to them as the routers. Stale
//! messages are refused: no member gets them, or has to check them again. A data message goes to the members
//! of its group's view.

use std::{collections::BTreeSet, fmt};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};

use super::{
    AddressStatistics, GROUP_NAME_BYTES_MAX, Group, GroupId, GroupStep, Mark, Offer, Phi, Record, SeatId,
    SurvivorReport, Turn,
    addresses::Addresses,
    checkpoint::{LIVES_MAX, Records, keep},
    shards::Shards,
};
use crate::{
    domain::{Part, Shared},
    ecast::{Class, Destinations, MessageId, Position, Refusal, Routing},
    id::{Peer, ProcessId},
    seam::MulticastAddress,
    wire::{WireError, decode_body, encode_body, take_u8, take_u64},
};

/// A message by which processes change membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// The sender becomes a member of the domain.
    Enter,
    /// The sender wants to join a group.
    Join {
        /// The group.
        group: GroupId,
        /// The group's name. All processes that join give the same name.
        name: String,
        /// The address at which the sender listens.
        address: String,
    },
    /// The sender wants to leave a group.
    Leave {
        /// The group.
        group: GroupId,
    },
    /// A process delays a change of a group for too long, so it is dropped from the domain. The message is
    /// void once the change no longer waits for that process.
    Late {
        /// The process that delays the change.
        process: ProcessId,
        /// The group.
        group: GroupId,
        /// The position that names the change.
        change: Position,
    },
    /// The messages that the sender holds, by group.
    Reports(Vec<(GroupId, SurvivorReport)>),
    /// The sender holds all messages of the cut of these changes, named by group and by the position at which
    /// each was prepared.
    Repaired(Vec<(GroupId, Position)>),
    /// The sender has received the state as of this view.
    Whole {
        /// The group.
        group: GroupId,
        /// The view.
        view: Position,
    },
    /// The sender leaves the domain and all groups.
    Exit,
    /// The sender has lost its state of a group. It is removed from the group as if it had failed.
    Quit {
        /// The group.
        group: GroupId,
    },
    /// A [`Control::Join`] by a process that has the group's state on disk, or that may begin without it.
    Return {
        /// The group.
        group: GroupId,
        /// The group's name. All processes that join give the same name.
        name: String,
        /// The address at which the sender listens.
        address: String,
        /// The state that the process offers.
        offer: Offer,
    },
    /// A view begins without a new member, and the state at its beginning is saved.
    Save {
        /// The group.
        group: GroupId,
        /// Whether all members save the state, rather than only the sender.
        by_all: bool,
    },
    /// The sender has this checkpoint of the group on disk.
    Kept {
        /// The group.
        group: GroupId,
        /// The checkpoint.
        checkpoint: Mark,
    },
    /// The sender has these members of a group from the next view on.
    Seats {
        /// The group.
        group: GroupId,
        /// The members' seats, in order.
        seats: Vec<SeatId>,
    },
    /// The rates of groups. A rate is the exponent of the least power of two above the number of soft
    /// messages a second; 0 means hardly any messages.
    Rates(Vec<(GroupId, u8)>),
}

/// The attachment of a message with rates: the receiver's groups whose addresses change now, each with its
/// new address.
pub(super) type Moves = Vec<(GroupId, Option<MulticastAddress>)>;

/// The answer to a process that asked to join: the group, and the routers' record of the group's checkpoints.
/// A process that is neither in the group nor about to join was refused, because a newer checkpoint is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Admission {
    pub(super) group: Group,
    pub(super) record: Option<Record>,
    pub(super) address: Option<MulticastAddress>,
}

impl Control {
    /// Encodes the control message.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(TAG);
        encode_body(&mut out, self);
        out.freeze()
    }

    /// Decodes a control message.
    pub fn decode(body: &Bytes) -> Option<Control> {
        let mut body = body.clone();
        (take_u8(&mut body) == Ok(TAG)).then(|| decode_body(&mut body).ok())?
    }

    /// Returns the steps that follow from the control message, by group. A process that is dropped from the
    /// domain is dropped from all groups that `of` returns.
    pub(super) fn steps(
        self,
        sender: ProcessId,
        of: impl FnOnce(ProcessId) -> Vec<GroupId>,
    ) -> Vec<(GroupId, GroupStep)> {
        let dropped =
            |process| of(process).into_iter().map(|group| (group, GroupStep::Drop(process))).collect();
        match self {
            Control::Join { group, address, .. } | Control::Return { group, address, .. } => {
                vec![(group, GroupStep::Join(Peer { id: sender, address }))]
            }
            Control::Save { group, by_all } => vec![(group, GroupStep::Save { sender, by_all })],
            Control::Leave { group } => vec![(group, GroupStep::Leave(sender))],
            Control::Reports(reports) => {
                let step = |(group, report)| (group, GroupStep::Report(sender, report));
                reports.into_iter().map(step).collect()
            }
            Control::Repaired(changes) => changes
                .into_iter()
                .map(|(group, change)| (group, GroupStep::Repaired(sender, change)))
                .collect(),
            Control::Whole { group, view } => vec![(group, GroupStep::Whole(sender, view))],
            Control::Late { process, .. } => dropped(process),
            Control::Exit => dropped(sender),
            Control::Quit { group } => vec![(group, GroupStep::Drop(sender))],
            Control::Seats { group, seats } => vec![(group, GroupStep::Seats(sender, seats))],
            Control::Enter | Control::Kept { .. } | Control::Rates(_) => Vec::new(),
        }
    }

    fn groups(&self) -> Vec<GroupId> {
        match self {
            Control::Join { group, .. }
            | Control::Return { group, .. }
            | Control::Leave { group }
            | Control::Whole { group, .. }
            | Control::Save { group, .. }
            | Control::Kept { group, .. }
            | Control::Seats { group, .. }
            | Control::Quit { group } => vec![*group],
            Control::Reports(reports) => reports.iter().map(|(group, _)| *group).collect(),
            Control::Repaired(changes) => changes.iter().map(|(group, _)| *group).collect(),
            Control::Enter | Control::Exit | Control::Late { .. } | Control::Rates(_) => Vec::new(),
        }
    }
}

/// The header of ordered or safe sends, before the updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) group: GroupId,
    /// The view in which the message was sent.
    pub(super) view: Position,
    /// Number of soft updates that the sender had sent in the view before this message.
    pub(super) behind: u64,
    /// The number that the sender gave to the message.
    pub(super) number: u64,
    /// The φ of a safe send; `None` for an ordered send.
    pub(super) safe: Option<Phi>,
}

/// Upper bound of a header's size, in bytes: tag, group, view, predecessors, number, and φ.
const HEADER_BYTES_MAX: usize = 1 + 4 * 8 + 3;

const ORDERED: u8 = 0;
const SAFE_ALL: u8 = 1;
const SAFE_MAJORITY: u8 = 2;
const SAFE_COUNT: u8 = 3;

impl Header {
    pub(super) fn before(&self, body: &Bytes) -> Bytes {
        let mut out = BytesMut::with_capacity(HEADER_BYTES_MAX + body.len());
        out.put_u8(TAG);
        out.put_u64_le(self.group.0);
        out.put_u64_le(self.view.0);
        out.put_u64_le(self.behind);
        out.put_u64_le(self.number);
        match self.safe {
            None => out.put_u8(ORDERED),
            Some(Phi::All) => out.put_u8(SAFE_ALL),
            Some(Phi::Majority) => out.put_u8(SAFE_MAJORITY),
            Some(Phi::Count(count)) => {
                out.put_u8(SAFE_COUNT);
                out.put_u16_le(count);
            }
        }
        out.put_slice(body);
        out.freeze()
    }

    pub(super) fn take(input: &mut Bytes) -> Result<Header, WireError> {
        match take_u8(input)? {
            TAG => {}
            tag => return Err(WireError::Tag(tag)),
        }
        let (group, view) = (GroupId(take_u64(input)?), Position(take_u64(input)?));
        let (behind, number) = (take_u64(input)?, take_u64(input)?);
        let safe = match take_u8(input)? {
            ORDERED => None,
            SAFE_ALL => Some(Phi::All),
            SAFE_MAJORITY => Some(Phi::Majority),
            SAFE_COUNT => {
                crate::wire::need(input, 2)?;
                Some(Phi::Count(input.get_u16_le()))
            }
            tag => return Err(WireError::Tag(tag)),
        };
        Ok(Header { group, view, behind, number, safe })
    }
}

/// A value that stands in place of the position of the last change, and marks the form with checkpoints. No
/// position has this value.
const WITH_RECORDS: Position = Position(u64::MAX);
/// A value that stands in place of the position of the last change, and marks the form with checkpoints and
/// addresses. No position has this value.
const WITH_ADDRESSES: Position = Position(u64::MAX - 1);

/// A roster without checkpoints and addresses keeps the byte form of builds that knew neither, because logs
/// and disks hold that form.
impl Serialize for Roster {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Roster { changed, members, groups, empty, records, addresses } = self;
        if *addresses != Addresses::default() {
            (WITH_ADDRESSES, changed, members, groups, empty, records, addresses).serialize(serializer)
        } else if records.len() == 0 {
            (changed, members, groups, empty).serialize(serializer)
        } else {
            (WITH_RECORDS, changed, members, groups, empty, records).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Roster {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Roster;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a roster of groups")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Roster, A::Error> {
                fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(fields: &mut A) -> Result<T, A::Error> {
                    fields
                        .next_element()?
                        .ok_or_else(|| A::Error::custom("the roster of groups ends too early"))
                }
                let mut changed: Position = next(&mut fields)?;
                let with_addresses = changed == WITH_ADDRESSES;
                let with_records = changed == WITH_RECORDS || with_addresses;
                if with_records {
                    changed = next(&mut fields)?;
                }
                let (members, groups) = (next(&mut fields)?, next(&mut fields)?);
                let empty = next(&mut fields)?;
                let records = if with_records { next(&mut fields)? } else { Records::default() };
                let addresses = if with_addresses { next(&mut fields)? } else { Addresses::default() };
                Ok(Roster { changed, members, groups, empty, records, addresses })
            }
        }

        deserializer.deserialize_tuple(FIELDS_MAX, Fields)
    }
}

/// Number of fields of a roster with checkpoints and addresses, the mark included.
const FIELDS_MAX: usize = 7;

/// The routing of a domain of groups.
pub struct Groups;

/// The first byte of all messages of groups in the order.
const TAG: u8 = Groups::TAG;

impl Part for Groups {
    const TAG: u8 = 2;

    fn vacant() -> Roster {
        Roster::default()
    }
}

/// The configuration: the members of the domain, and the state of each group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roster {
    /// The position of the last change. It is the first field, so that a comparison of two different rosters
    /// ends early.
    changed: Position,
    members: Shared<BTreeSet<ProcessId>>,
    groups: Shards<Group>,
    /// Groups that all members left with the last control message, or whose checkpoint was forgotten. They
    /// stay until the next control message, because the members that left still have to receive the message
    /// that emptied the group.
    empty: BTreeSet<GroupId>,
    /// The newest known checkpoint of each group, with or without members.
    records: Records,
    /// Rates of groups, and their addresses.
    addresses: Addresses,
}

impl Roster {
    /// Returns a group that has members or joining processes, or a known checkpoint.
    pub fn group(&self, group: GroupId) -> Option<&Group> {
        self.groups.get(group)
    }

    /// Returns all groups with members or joining processes.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter().filter(|(_, group)| !group.is_empty())
    }

    /// Returns the groups without members that have a known checkpoint. The name is empty if a build that
    /// stored no names handled the report.
    pub fn idle(&self) -> impl Iterator<Item = (GroupId, &str, Record)> {
        let idle = self.records.iter().filter(|(group, _)| self.group(*group).is_none_or(Group::is_empty));
        idle.map(|(group, record)| (group, self.group(group).map_or("", |group| &group.name), *record))
    }

    /// Returns the record of a group's checkpoints, if one is known.
    pub fn record(&self, group: GroupId) -> Option<Record> {
        self.records.get(group).copied()
    }

    /// Returns the multicast address of a group, if it has one.
    pub fn address(&self, group: GroupId) -> Option<MulticastAddress> {
        self.addresses.of(group)
    }

    /// Returns the result of the last assignment of addresses.
    pub fn address_statistics(&self) -> AddressStatistics {
        self.addresses.statistics()
    }

    fn keep(&mut self, group: GroupId, record: Record) {
        let Roster { groups, records, .. } = self;
        let forgotten = keep(records, group, record, |group| groups.get(group).is_none_or(Group::is_empty));
        // A group whose record was dropped is forgotten with its name at the next control message.
        self.empty.extend(forgotten);
    }

    /// Returns the number of processes of the domain that may be in groups.
    pub fn processes(&self) -> usize {
        self.members.len()
    }

    /// Returns the groups in which `process` is, or which it wants to join.
    fn groups_of(&self, process: ProcessId) -> Vec<GroupId> {
        let concerned = self.groups.iter().filter(|(_, group)| group.concerns(process));
        concerned.map(|(id, _)| id).collect()
    }

    /// Whether `process` is a member of the domain.
    pub fn has(&self, process: ProcessId) -> bool {
        self.members.contains(&process)
    }

    fn step(&mut self, at: Position, group: GroupId, step: &GroupStep) -> Option<Vec<Turn>> {
        let entry = match step {
            GroupStep::Join(_) => self.groups.entry(group),
            _ => self.groups.get_mut(group)?,
        };
        let turns = entry.step(at, step);
        if turns.as_ref().is_some_and(|turns| turns.contains(&Turn::Installed)) {
            self.addresses.begins(group, entry);
        }
        if entry.is_empty() {
            self.empty.insert(group);
        }
        turns
    }

    /// Forgets groups that were already empty before this message. The name of a group with a checkpoint
    /// stays.
    fn sweep(&mut self) {
        for group in std::mem::take(&mut self.empty) {
            if !self.groups.get(group).is_some_and(Group::is_empty) {
                continue;
            }
            self.addresses.forget(group);
            match self.records.get(group) {
                None => self.groups.remove(group),
                Some(_) => {
                    let Group { name, .. } = std::mem::take(self.groups.entry(group));
                    *self.groups.entry(group) = Group { name, ..Group::default() };
                }
            }
        }
    }
}

const MALFORMED: Refusal = Refusal(1);
const NOT_MEMBER: Refusal = Refusal(2);
/// The refusal of a message that an earlier message in the order has made obsolete.
const STALE: Refusal = Refusal(3);
/// The refusal of a join that gives another name than the group has.
const MISNAMED: Refusal = Refusal(4);

impl Routing for Groups {
    type Config = Roster;
    type Ledger = ();

    fn admit(_: &mut (), _: Position, _: Class, _: &Bytes) -> Result<(), Refusal> {
        Ok(())
    }

    fn apply(
        config: &Roster,
        at: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<Roster>, Refusal> {
        let control = Control::decode(body).ok_or(MALFORMED)?;
        let mut roster = config.clone();
        roster.changed = at;
        roster.sweep();
        if control == Control::Enter {
            roster.members.to_mut().insert(sender);
            return Ok(Some(roster));
        }
        if !roster.has(sender) {
            return Err(NOT_MEMBER);
        }
        if let Control::Late { process, group, change } = &control {
            let waits = roster.group(*group).is_some_and(|group| {
                group.change.as_ref().is_some_and(|under_way| under_way.prepared == *change)
                    && group.late().contains(process)
            });
            if process == &sender || !roster.has(*process) || !waits {
                return Err(STALE);
            }
        }
        let mut fits = match &control {
            Control::Late { process, .. } => roster.members.to_mut().remove(process),
            Control::Exit => roster.members.to_mut().remove(&sender),
            Control::Join { group, name, .. } | Control::Return { group, name, .. } => {
                let offer =
                    if let Control::Return { offer, .. } = &control { *offer } else { Offer::default() };
                if name.len() > GROUP_NAME_BYTES_MAX || offer.checkpoint.is_some_and(|it| it.life > LIVES_MAX)
                {
                    return Err(MALFORMED);
                }
                let (record, idle) =
                    (roster.record(*group), roster.group(*group).is_none_or(Group::is_empty));
                if idle && !Record::admits(record, offer) {
                    // The roster stays as it is, and the attachment informs the sender of the newest
                    // checkpoint.
                    return Ok(Some(roster));
                }
                if let Some(checkpoint) = offer.checkpoint {
                    roster.keep(*group, Record::brought(record, checkpoint));
                }
                let entry = roster.groups.entry(*group);
                if entry.is_empty() {
                    entry.name.clone_from(name);
                }
                if entry.name != *name {
                    return Err(MISNAMED);
                }
                false
            }
            Control::Kept { checkpoint, .. } if checkpoint.life > LIVES_MAX => return Err(MALFORMED),
            Control::Kept { group, .. } if !roster.group(*group).is_some_and(|it| it.is_survivor(sender)) => {
                return Err(STALE);
            }
            Control::Kept { group, checkpoint } => {
                roster.keep(*group, Record::kept(roster.record(*group), *checkpoint));
                true
            }
            Control::Rates(rates) => {
                let Roster { groups, addresses, .. } = &mut roster;
                let rated = rates.iter().filter_map(|(id, level)| Some((*id, groups.get(*id)?, *level)));
                let mut is_news = false;
                for (id, group, level) in rated.filter(|(_, group, _)| group.is_survivor(sender)) {
                    is_news |= addresses.rate(id, group, level);
                }
                addresses.settle(at, sender, |id| groups.get(id));
                is_news
            }
            _ => false,
        };
        for (group, step) in control.steps(sender, |process| roster.groups_of(process)) {
            fits |= roster.step(at, group, &step).is_some();
        }
        if fits { Ok(Some(roster)) } else { Err(STALE) }
    }

    fn destinations(
        config: &Roster,
        id: MessageId,
        class: Class,
        body: &Bytes,
    ) -> Result<Destinations, Refusal> {
        if class == Class::Data {
            let header = Header::take(&mut body.clone()).map_err(|_| MALFORMED)?;
            let group = config.group(header.group).filter(|group| group.is_survivor(id.sender));
            let group = group.ok_or(NOT_MEMBER)?;
            let processes = group.survivors().collect();
            return Ok(Destinations { processes, ..Destinations::default() });
        }
        let control = Control::decode(body).ok_or(MALFORMED)?;
        let dropped = |process| -> Vec<&Group> {
            config.groups.iter().map(|(_, group)| group).filter(|group| group.has_dropped(process)).collect()
        };
        let concerned: Vec<&Group> = match control {
            Control::Late { process, .. } => dropped(process),
            Control::Exit => dropped(id.sender),
            Control::Rates(_) => {
                config.addresses.moved(config.changed).filter_map(|group| config.group(group)).collect()
            }
            control => control.groups().iter().filter_map(|group| config.group(*group)).collect(),
        };
        let audience = concerned.into_iter().flat_map(Group::audience).chain([id.sender]);
        let processes: BTreeSet<ProcessId> = audience.filter(|process| config.has(*process)).collect();
        Ok(Destinations { processes: processes.into_iter().collect(), ..Destinations::default() })
    }

    fn is_member(config: &Roster, process: ProcessId) -> bool {
        config.has(process)
    }

    /// Returns the message by which a dead member exits.
    fn expulsion(config: &Roster, process: ProcessId) -> Option<Bytes> {
        config.has(process).then(|| Control::Exit.encode())
    }

    fn members(config: &Roster) -> Vec<ProcessId> {
        config.members.iter().copied().collect()
    }

    fn attachment(config: &Roster, id: MessageId, body: &Bytes, destination: ProcessId) -> Option<Bytes> {
        let mut out = BytesMut::new();
        match Control::decode(body)? {
            Control::Join { group, .. } | Control::Return { group, .. } if id.sender == destination => {
                let admission = Admission {
                    group: config.group(group).cloned().unwrap_or_default(),
                    record: config.record(group),
                    address: config.address(group),
                };
                encode_body(&mut out, &admission);
            }
            Control::Rates(_) => {
                let concerns = |id: &GroupId| config.group(*id).is_some_and(|it| it.concerns(destination));
                let moved = config.addresses.moved(config.changed).filter(concerns);
                let moves: Moves = moved.map(|group| (group, config.address(group))).collect();
                if moves.is_empty() {
                    return None;
                }
                encode_body(&mut out, &moves);
            }
            _ => return None,
        }
        Some(out.freeze())
    }
}

#[cfg(test)]
mod tests;
