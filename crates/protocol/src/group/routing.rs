//! How E-Cast's routing carries groups: what members submit, who is told, and what the routers keep.
//!
//! A control message goes to those whom it concerns: the audience of its group, and who sent it. A member therefore keeps only the
//! groups it is in, and applies the same [`Step`]s to them as the routers. What is stale is refused, so it is delivered to
//! nobody and nobody has to judge it again. A data message goes to the members of its group's view.

use std::{collections::BTreeSet, fmt};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};

use super::{
    AddressStatistics, GROUP_NAME_BYTES_MAX, Group, GroupId, Mark, Offer, Phi, Record, Report, SeatId, Step,
    Turn,
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

/// What processes submit to change membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// The sender becomes a member of the domain.
    Enter,
    /// The sender wants to be in a group.
    Join {
        /// Which.
        group: GroupId,
        /// Its name: the same for all who join.
        name: String,
        /// Where the sender listens.
        address: String,
    },
    /// The sender wants to be in a group no more.
    Leave {
        /// Which.
        group: GroupId,
    },
    /// A process holds up a change of a group for too long: it is dropped from the domain. Void once the change waits for it no more.
    Late {
        /// Which.
        process: ProcessId,
        /// The group.
        group: GroupId,
        /// The change, by its name.
        change: Position,
    },
    /// What the sender holds.
    Reports(Vec<(GroupId, Report)>),
    /// The sender holds all of the cut of changes that were prepared there.
    Repaired(Vec<(GroupId, Position)>),
    /// The sender got the state as of this view.
    Whole {
        /// Of which group.
        group: GroupId,
        /// The view.
        view: Position,
    },
    /// The sender is a member of the domain no more, nor of any group.
    Exit,
    /// The sender has lost its state of a group, and is out of it as if it had failed.
    Quit {
        /// Which.
        group: GroupId,
    },
    /// As [`Control::Join`], of a process that has the group's state on disk, or begins without it.
    Return {
        /// Which.
        group: GroupId,
        /// Its name: the same for all who join.
        name: String,
        /// Where the sender listens.
        address: String,
        /// The state that it has.
        offer: Offer,
    },
    /// A view begins, with nobody else in it: the state at its beginning is kept.
    Save {
        /// Of which group.
        group: GroupId,
        /// By all members, or by the sender alone.
        by_all: bool,
    },
    /// The sender has this checkpoint on disk.
    Kept {
        /// Of which group.
        group: GroupId,
        /// Which.
        checkpoint: Mark,
    },
    /// The sender has these members of a group from the next view on.
    Seats {
        /// Which group.
        group: GroupId,
        /// Their seats, in order.
        seats: Vec<SeatId>,
    },
    /// So busy are these groups: the soft messages a second are fewer than two to this power, and hardly any for 0.
    Rates(Vec<(GroupId, u8)>),
}

/// The attachment of rates: the groups of its receiver that have another address from now on.
pub(super) type Moves = Vec<(GroupId, Option<MulticastAddress>)>;

/// The answer to a process that asked to join: the group, and what is known of its checkpoints. If the process is not in the group, nor about
/// to be, it was refused: a newer checkpoint is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Admission {
    pub(super) group: Group,
    pub(super) record: Option<Record>,
    pub(super) address: Option<MulticastAddress>,
}

impl Control {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(TAG);
        encode_body(&mut out, self);
        out.freeze()
    }

    /// The control message of these bytes.
    pub fn decode(body: &Bytes) -> Option<Control> {
        let mut body = body.clone();
        (take_u8(&mut body) == Ok(TAG)).then(|| decode_body(&mut body).ok())?
    }

    /// Its steps, by group. A process that is dropped from the domain is dropped from all groups `of` it.
    pub(super) fn steps(
        self,
        sender: ProcessId,
        of: impl FnOnce(ProcessId) -> Vec<GroupId>,
    ) -> Vec<(GroupId, Step)> {
        let dropped = |process| of(process).into_iter().map(|group| (group, Step::Drop(process))).collect();
        match self {
            Control::Join { group, address, .. } | Control::Return { group, address, .. } => {
                vec![(group, Step::Join(Peer { id: sender, address }))]
            }
            Control::Save { group, by_all } => vec![(group, Step::Save { sender, by_all })],
            Control::Leave { group } => vec![(group, Step::Leave(sender))],
            Control::Reports(reports) => {
                let step = |(group, report)| (group, Step::Report(sender, report));
                reports.into_iter().map(step).collect()
            }
            Control::Repaired(changes) => {
                changes.into_iter().map(|(group, change)| (group, Step::Repaired(sender, change))).collect()
            }
            Control::Whole { group, view } => vec![(group, Step::Whole(sender, view))],
            Control::Late { process, .. } => dropped(process),
            Control::Exit => dropped(sender),
            Control::Quit { group } => vec![(group, Step::Drop(sender))],
            Control::Seats { group, seats } => vec![(group, Step::Seats(sender, seats))],
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

/// What stands before the updates of ordered or safe sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) group: GroupId,
    /// The view in which it was sent.
    pub(super) view: Position,
    /// The sender had sent so many soft updates before it in that view.
    pub(super) behind: u64,
    /// The sender's number for it.
    pub(super) number: u64,
    /// None: ordered.
    pub(super) safe: Option<Phi>,
}

/// Tag, group, view, predecessors, number, and φ.
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

/// In the place of the last change: the form with checkpoints follows. No position is this.
const WITH_RECORDS: Position = Position(u64::MAX);
/// The same: that with checkpoints and addresses.
const WITH_ADDRESSES: Position = Position(u64::MAX - 1);

/// Without checkpoints and addresses its bytes are those of builds that knew none, which are in logs and on disks.
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
                    fields.next_element()?.ok_or_else(|| A::Error::custom("a roster is cut off"))
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

/// The fields of a roster with checkpoints and addresses, and the sign that it is one.
const FIELDS_MAX: usize = 7;

/// The routing of a domain of groups.
pub struct Groups;

/// What all messages of groups in the order begin with.
const TAG: u8 = Groups::TAG;

impl Part for Groups {
    const TAG: u8 = 2;

    fn vacant() -> Roster {
        Roster::default()
    }
}

/// Its configuration: who is a member of the domain, and what each group is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roster {
    /// The position of the last change. It stands first, so that two that differ are told apart without looking at their groups.
    changed: Position,
    members: Shared<BTreeSet<ProcessId>>,
    groups: Shards<Group>,
    /// Groups that were left by all with the last control message, or of which the checkpoint was forgotten: those who left are still to be told
    /// of it.
    empty: BTreeSet<GroupId>,
    /// The newest checkpoint of each group of which anybody told one, members or not.
    records: Records,
    /// Rates of groups, and their addresses.
    addresses: Addresses,
}

impl Roster {
    /// A group, while anybody is in it or wants to be, or a checkpoint of it is known.
    pub fn group(&self, group: GroupId) -> Option<&Group> {
        self.groups.get(group)
    }

    /// All groups that anybody is in or wants to be in.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter().filter(|(_, group)| !group.is_empty())
    }

    /// Groups that nobody is in, and that go on from a checkpoint which somebody told of. The name is empty where it was told to a build that
    /// kept none.
    pub fn idle(&self) -> impl Iterator<Item = (GroupId, &str, Record)> {
        let idle = self.records.iter().filter(|(group, _)| self.group(*group).is_none_or(Group::is_empty));
        idle.map(|(group, record)| (group, self.group(group).map_or("", |group| &group.name), *record))
    }

    /// What is known of a group's checkpoints.
    pub fn record(&self, group: GroupId) -> Option<Record> {
        self.records.get(group).copied()
    }

    /// The multicast address of a group, if it has one.
    pub fn address(&self, group: GroupId) -> Option<MulticastAddress> {
        self.addresses.of(group)
    }

    /// The result of the last assignment of addresses.
    pub fn address_statistics(&self) -> AddressStatistics {
        self.addresses.statistics()
    }

    fn keep(&mut self, group: GroupId, record: Record) {
        let Roster { groups, records, .. } = self;
        let forgotten = keep(records, group, record, |group| groups.get(group).is_none_or(Group::is_empty));
        // Its name goes as well.
        self.empty.extend(forgotten);
    }

    /// Processes of the domain that may be in groups.
    pub fn processes(&self) -> usize {
        self.members.len()
    }

    /// Those that `process` is in or wants to be in.
    fn groups_of(&self, process: ProcessId) -> Vec<GroupId> {
        let concerned = self.groups.iter().filter(|(_, group)| group.concerns(process));
        concerned.map(|(id, _)| id).collect()
    }

    /// Whether `process` is a member of the domain.
    pub fn has(&self, process: ProcessId) -> bool {
        self.members.contains(&process)
    }

    fn step(&mut self, at: Position, group: GroupId, step: &Step) -> Option<Vec<Turn>> {
        let entry = match step {
            Step::Join(_) => self.groups.entry(group),
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

    /// Forgets groups that were empty before this message; of one that has a checkpoint its name is left.
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
/// Overtaken by what was ordered before.
const STALE: Refusal = Refusal(3);
/// The group of this number has another name.
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
                    // Its sender is told of the newest one.
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
                let told = rates.iter().filter_map(|(id, level)| Some((*id, groups.get(*id)?, *level)));
                let mut is_news = false;
                for (id, group, level) in told.filter(|(_, group, _)| group.is_survivor(sender)) {
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

    /// A member that died exits.
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
                let told = Admission {
                    group: config.group(group).cloned().unwrap_or_default(),
                    record: config.record(group),
                    address: config.address(group),
                };
                encode_body(&mut out, &told);
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
