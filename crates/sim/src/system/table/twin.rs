//! The naive twin of Rubberband's routing: the members, the holders of rows, and the destinations of each
//! message. It follows the rules (002 §6.3, S5, S6, S14) key by key, without a line of the code that it
//! judges.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_protocol::{
    ProcessId, RequestId, Role,
    domain::Part,
    ecast::Class,
    rubberband::{Control, DataHeader, DataKind, Rubberband, TableChange},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::check::order::{Twin, Unroutable};

/// The event that a range continues from the rows of a keeper.
pub(super) const TAKEN_UP: &str = "kept rows taken up";

/// The state of a storage process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageStatus {
    Standby,
    Receiving(u64),
    Active,
    Unreachable,
    /// The process keeps a former life's rows of this place on the ring, up to a position.
    Keeping(u64, u64),
    /// The process announced a stop before a restart, and was active.
    AwayActive,
    AwayStandby,
}

/// The state that follows from the control messages.
#[derive(Clone, Debug, Default)]
struct TwinState {
    replicas: usize,
    roles: BTreeMap<ProcessId, Role>,
    storage: BTreeMap<ProcessId, StorageStatus>,
    /// Suspected processes, each with the position of the suspicion.
    suspected: BTreeMap<ProcessId, u64>,
    ring: BTreeMap<u64, ProcessId>,
    placements: u64,
    tables: BTreeMap<u32, String>,
    tables_ever: u32,
    sessions: BTreeMap<u128, u64>,
    /// Processes that have rows up to a position, and receive no later rows.
    rows_through: BTreeMap<ProcessId, u64>,
    /// Number of control messages that had an effect.
    controls: u64,
    /// Keys whose last replica was declared lost, each with that replica.
    forsaken: Vec<(u64, ProcessId)>,
    /// Processes that were declared lost, in order.
    declared: Vec<ProcessId>,
    /// Sessions and numbers that are remembered although they are below the session's limit.
    kept: BTreeSet<(u128, u64)>,
}

/// The slow model with which the routers' destinations are compared.
#[derive(Clone, Debug)]
pub(super) struct TableTwin {
    twin_state: TwinState,
    /// The ranges that each position may change: those of a write, or everything for a control message.
    touched: BTreeMap<u64, Vec<(u64, u64)>>,
    /// The hash of the operation of each write.
    writes: BTreeMap<u64, u64>,
    /// The first use of each made-up id.
    made_up: BTreeMap<RequestId, Used>,
    /// The names of writes that have a position.
    names: BTreeSet<(u128, u64)>,
    /// Names of the special cases of the rules that have occurred, for the counters of the run.
    occurred: Vec<&'static str>,
}

/// The first use of a made-up id.
#[derive(Clone, Debug)]
struct Used {
    print: u64,
    at: u64,
    expired: bool,
}

impl TableTwin {
    pub(super) fn new(replicas: u8) -> Self {
        let twin_state = TwinState { replicas: usize::from(replicas), ..TwinState::default() };
        TableTwin {
            twin_state,
            touched: BTreeMap::new(),
            writes: BTreeMap::new(),
            names: BTreeSet::new(),
            made_up: BTreeMap::new(),
            occurred: Vec::new(),
        }
    }

    /// Returns the last position up to `position` that may have changed rows of this range.
    pub(super) fn touched(&self, (low, high): (u64, u64), position: u64) -> u64 {
        let meets = |ranges: &[(u64, u64)]| ranges.iter().any(|&(from, to)| from <= high && low <= to);
        let last = self.touched.range(..=position).rev().find(|(_, ranges)| meets(ranges));
        last.map_or(0, |(&position, _)| position)
    }

    /// Whether the message at `position` may change rows in the ring segment of a key.
    pub(super) fn concerns(&self, position: u64, key: u64) -> bool {
        let mut ranges = self.touched.get(&position).into_iter().flatten();
        let segment = self.twin_state.segment(key);
        ranges.any(|&(low, high)| {
            self.twin_state.samples(low, high).iter().any(|&it| self.twin_state.segment(it) == segment)
        })
    }

    /// Returns the hash of the operation of the write at `position`.
    pub(super) fn written(&self, position: u64) -> Option<u64> {
        self.writes.get(&position).copied()
    }

    /// Returns the segments of the ring, each with its complete replicas.
    pub(super) fn complete(&self) -> Vec<((u64, u64), Vec<ProcessId>)> {
        let lows = self.twin_state.samples(0, u64::MAX);
        let highs = lows.iter().skip(1).map(|&low| low - 1).chain([u64::MAX]);
        let complete = |low: u64| {
            let mut holders = self.twin_state.holders(low);
            holders.retain(|&holder| self.twin_state.is(holder, StorageStatus::Active));
            holders
        };
        lows.iter().zip(highs).map(|(&low, high)| ((low, high), complete(low))).collect()
    }

    /// Returns the number of control messages that had an effect.
    pub(super) fn controls(&self) -> u64 {
        self.twin_state.controls
    }

    /// Whether `process` is a member.
    pub(super) fn has_member(&self, process: ProcessId) -> bool {
        self.twin_state.roles.contains_key(&process)
    }

    /// Returns the position up to which `process` has all rows, if it receives no later rows.
    pub(super) fn rows_through(&self, process: ProcessId) -> Option<u64> {
        self.twin_state.rows_through.get(&process).copied()
    }

    /// Returns the events since the last call.
    pub(super) fn occurred(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.occurred)
    }

    /// Notes the special cases of the rules that a control message causes.
    fn note_control(&mut self, sender: ProcessId, control: &Control) {
        let stored = |process: &&ProcessId| self.twin_state.storage.contains_key(process);
        let keeps =
            |it: &ProcessId| matches!(self.twin_state.storage.get(it), Some(StorageStatus::Keeping(..)));
        let several: &[(bool, &'static str)] = match control {
            Control::Suspect { processes } => &[
                (processes.iter().filter(stored).count() > 1, "two suspects in one message"),
                (
                    processes
                        .iter()
                        .any(|&it| self.twin_state.roles.contains_key(&it) && !self.twin_state.can_spare(it)),
                    "suspected: the last with all rows",
                ),
            ],
            Control::Join { keeps: Some(_), .. } => &[(true, "rows kept")],
            Control::Dismiss { .. } => &[(true, "keeper dismissed")],
            Control::Away => &[(self.twin_state.may_go(sender), "went away")],
            Control::Back { caught_up } => &[(*caught_up && self.twin_state.is_away(sender), "came back")],
            Control::Replace { copy, .. } => &[(copy.iter().any(|(_, source)| keeps(source)), TAKEN_UP)],
            Control::Refute { .. } => {
                &[(self.twin_state.is(sender, StorageStatus::Unreachable), "returned from being unreachable")]
            }
            Control::Forget { below, .. } => {
                &[(*below == u64::MAX, "session ended"), (*below != u64::MAX, "replies forgotten")]
            }
            _ => &[],
        };
        self.occurred.extend(several.iter().filter(|(met, _)| *met).map(|(_, what)| *what));
    }

    /// Notes the special cases of the rules that a write causes.
    fn note_write(&mut self, header: &DataHeader) {
        let request = header.name.request;
        if self.names.insert((request.session, request.number)) {
            return;
        }
        self.occurred.push("write ordered again");
        let lost = |key: u64| {
            self.twin_state
                .forsaken
                .iter()
                .any(|(lost, _)| self.twin_state.segment(*lost) == self.twin_state.segment(key))
        };
        let keys: Vec<u64> =
            (header.ranges.iter()).flat_map(|range| self.twin_state.samples(range.low, range.high)).collect();
        if keys.iter().any(|&key| lost(key)) && !keys.iter().all(|&key| lost(key)) {
            self.occurred.push("repetition that one range knows");
        }
    }

    /// Returns the keys whose last replica was declared lost, each with that replica.
    pub(super) fn forsaken(&self) -> &[(u64, ProcessId)] {
        &self.twin_state.forsaken
    }

    /// Returns the processes that were declared lost, in order. Only an operator may declare that (S14).
    pub(super) fn declared(&self) -> &[ProcessId] {
        &self.twin_state.declared
    }
}

impl Twin for TableTwin {
    fn next(
        &mut self,
        position: u64,
        sender: ProcessId,
        class: Class,
        body: &Bytes,
    ) -> Result<BTreeSet<ProcessId>, Unroutable> {
        if body.first() != Some(&Rubberband::TAG) {
            return Err(Unroutable::OtherPart);
        }
        if class == Class::Control {
            self.touched.insert(position, vec![(0, u64::MAX)]);
            let control = Control::decode(body).ok_or(Unroutable::Refused)?;
            self.note_control(sender, &control);
            let mut after = self.twin_state.clone();
            after.control(position, sender, control.clone()).ok_or(Unroutable::Refused)?;
            if !after.roles.contains_key(&sender) && !self.twin_state.roles.contains_key(&sender) {
                return Err(Unroutable::NotMember);
            }
            self.twin_state = after;
            if let Control::Expire { through } = control {
                for used in self.made_up.values_mut() {
                    used.expired |= used.at <= through.0;
                }
            }
            self.twin_state.controls += 1;
            return Ok(self.twin_state.roles.keys().copied().collect());
        }
        if !self.twin_state.roles.contains_key(&sender) {
            return Err(Unroutable::NotMember);
        }
        let mut operation = body.clone();
        let header = DataHeader::take(&mut operation).map_err(|_| Unroutable::Refused)?;
        if header.kind != DataKind::Read && header.name.request.is_made_up() {
            let first = Used { print: header.name.print, at: position, expired: false };
            let used = self.made_up.entry(header.name.request).or_insert(first);
            if used.expired || used.print != header.name.print {
                return Err(Unroutable::Refused);
            }
        }
        let found = self.twin_state.data(sender, &header).ok_or(Unroutable::Refused)?;
        if header.kind != DataKind::Read {
            let ranges = header.ranges.iter().map(|range| (range.low, range.high)).collect();
            self.note_write(&header);
            self.touched.insert(position, ranges);
            self.writes.insert(position, xxh3_64(&operation));
        }
        Ok(found)
    }

    fn is_member(&mut self, process: ProcessId) -> bool {
        self.twin_state.roles.contains_key(&process)
    }
}

impl TwinState {
    /// Returns the replicas of a key: the holder of the ring id at or below it, and its successors.
    fn holders(&self, key: u64) -> Vec<ProcessId> {
        let below = self.ring.range(..=key).next_back().or(self.ring.last_key_value());
        let Some((&first, _)) = below else { return Vec::new() };
        let around = self.ring.range(first..).chain(self.ring.range(..first));
        around.map(|(_, &process)| process).take(self.replicas).collect()
    }

    /// Returns a key of every segment between two ring ids that a range touches.
    fn samples(&self, low: u64, high: u64) -> Vec<u64> {
        let inside = self.ring.keys().copied().filter(|&key| low < key && key <= high);
        [low].into_iter().chain(inside).collect()
    }

    /// Returns the ring id at or below a key.
    fn segment(&self, key: u64) -> Option<u64> {
        self.ring.range(..=key).next_back().map(|(&low, _)| low)
    }

    fn is(&self, process: ProcessId, state: StorageStatus) -> bool {
        self.storage.get(&process) == Some(&state)
    }

    /// Whether for each of the ranges of `process` another, unsuspected process is complete.
    fn can_spare(&self, process: ProcessId) -> bool {
        let keeps = |other: ProcessId| {
            other != process && self.is(other, StorageStatus::Active) && !self.suspected.contains_key(&other)
        };
        self.samples(0, u64::MAX)
            .into_iter()
            .map(|key| self.holders(key))
            .all(|holders| !holders.contains(&process) || holders.iter().any(|&other| keeps(other)))
    }

    /// Whether a process may stop before a restart: no range moves, and other processes have its rows.
    fn may_go(&self, process: ProcessId) -> bool {
        let moves = self.storage.values().any(|state| matches!(state, StorageStatus::Receiving(_)));
        self.is(process, StorageStatus::Standby)
            || self.is(process, StorageStatus::Active) && !moves && self.can_spare(process)
    }

    fn is_away(&self, process: ProcessId) -> bool {
        self.is(process, StorageStatus::AwayActive) || self.is(process, StorageStatus::AwayStandby)
    }

    /// Whether a process of this node keeps a new process of the node from joining: it is a member, the
    /// cluster does not wait for it, and it does not make way.
    fn is_in_use(&self, node: u64, role: Role) -> bool {
        let stays = |process: ProcessId, its: Role| !self.is_awaited(process) && !makes_way(role, its);
        self.roles.iter().any(|(&process, &its)| process.node == node && stays(process, its))
    }

    /// Whether the cluster waits for this process instead of removing it.
    fn is_awaited(&self, process: ProcessId) -> bool {
        let keeps = matches!(self.storage.get(&process), Some(StorageStatus::Keeping(..)));
        self.is(process, StorageStatus::Unreachable) || keeps && self.suspected.contains_key(&process)
    }

    /// Whether every range of a keeper's place has an unsuspected complete replica; `None` if the process
    /// is no keeper.
    fn is_made_up_for(&self, process: ProcessId) -> Option<bool> {
        let Some(StorageStatus::Keeping(place, _)) = self.storage.get(&process) else { return None };
        let holder = self.ring.get(place)?;
        if matches!(self.storage.get(holder), Some(StorageStatus::Receiving(_))) {
            return Some(false);
        }
        let complete =
            |it: &ProcessId| self.is(*it, StorageStatus::Active) && !self.suspected.contains_key(it);
        let keys = self.samples(0, u64::MAX).into_iter().map(|key| self.holders(key));
        Some(keys.filter(|holders| holders.contains(holder)).all(|holders| holders.iter().any(complete)))
    }

    /// Returns the keeper that has a key's rows up to the latest position.
    fn best_keeper(&self, key: u64) -> Option<ProcessId> {
        let holders = self.holders(key);
        let keepers = self.storage.iter().filter_map(|(&process, state)| match state {
            StorageStatus::Keeping(place, through) if holders.contains(&self.ring[place]) => {
                Some((*through, process))
            }
            _ => None,
        });
        keepers.max().map(|(_, process)| process)
    }

    fn remove(&mut self, process: ProcessId) -> bool {
        self.roles.remove(&process);
        self.suspected.remove(&process);
        self.storage.remove(&process).is_some()
    }

    /// Removes a process, or marks it unreachable if it is the last with all rows. Returns whether the
    /// placement changed.
    fn part(&mut self, process: ProcessId, position: u64) -> bool {
        match self.storage.get(&process) {
            Some(StorageStatus::Active | StorageStatus::Unreachable | StorageStatus::AwayActive)
                if !self.can_spare(process) =>
            {
                self.suspected.entry(process).or_insert(position);
                self.storage.insert(process, StorageStatus::Unreachable) != Some(StorageStatus::Unreachable)
            }
            _ => self.remove(process),
        }
    }

    /// Applies a control message. Returns `None` if the routing refuses it.
    fn control(&mut self, position: u64, sender: ProcessId, control: Control) -> Option<()> {
        let role = self.roles.get(&sender).copied();
        let only = |wanted: Role| (role == Some(wanted)).then_some(());
        let placed = match control {
            Control::Join { .. } if role.is_some() => false,
            Control::Join { role, .. } if self.is_in_use(sender.node, role) => return None,
            Control::Join { role, keeps, .. } => {
                if makes_way(role, role) {
                    let former =
                        |process: &ProcessId, its: Role| process.node == sender.node && makes_way(role, its);
                    self.roles.retain(|process, its| !former(process, *its));
                    self.suspected.retain(|process, _| self.roles.contains_key(process));
                }
                self.roles.insert(sender, role);
                if role == Role::Gateway {
                    self.sessions.insert(sender.incarnation.0, 0);
                }
                let sound = |twin_state: &TwinState, former: ProcessId, place: u64, through: u64| {
                    !twin_state.roles.contains_key(&former)
                        && twin_state.ring.contains_key(&place)
                        && through < position
                };
                let state = match keeps {
                    Some(it) if sound(self, it.former, it.place, it.through.0) => {
                        self.rows_through.insert(sender, it.through.0);
                        StorageStatus::Keeping(it.place, it.through.0)
                    }
                    _ => StorageStatus::Standby,
                };
                role == Role::Storage && self.storage.insert(sender, state).is_none()
            }
            Control::Leave if self.is_made_up_for(sender) == Some(false) => false,
            Control::Dismiss { process } => {
                only(Role::Super)?;
                (self.is_made_up_for(process) == Some(true)).then_some(())?;
                self.storage.insert(process, StorageStatus::Standby);
                true
            }
            Control::Away => {
                (role == Some(Role::Storage)).then_some(())?;
                let goes = self.may_go(sender);
                if goes {
                    let away = if self.is(sender, StorageStatus::Active) {
                        StorageStatus::AwayActive
                    } else {
                        StorageStatus::AwayStandby
                    };
                    self.storage.insert(sender, away);
                }
                goes
            }
            Control::Back { caught_up } => {
                let back = match self.storage.get(&sender) {
                    Some(StorageStatus::AwayActive) => Some(StorageStatus::Active),
                    Some(StorageStatus::AwayStandby) => Some(StorageStatus::Standby),
                    _ => None,
                };
                let back = back.filter(|_| caught_up);
                if let Some(state) = back {
                    self.storage.insert(sender, state);
                }
                back.is_some()
            }
            Control::Leave => self.part(sender, position),
            Control::Suspect { processes } => {
                only(Role::Super)?;
                for process in processes {
                    if process != sender && self.roles.contains_key(&process) {
                        self.suspected.entry(process).or_insert(position);
                    }
                }
                false
            }
            Control::Refute { suspected } => {
                let right = self.suspected.get(&sender) == Some(&suspected.0);
                if right {
                    self.suspected.remove(&sender);
                }
                let back = right && self.is(sender, StorageStatus::Unreachable);
                if back {
                    self.storage.insert(sender, StorageStatus::Active);
                }
                back
            }
            Control::Remove { removals } => {
                only(Role::Super)?;
                let mut placed = false;
                for removal in removals {
                    let right = self.suspected.get(&removal.process) == Some(&removal.suspected.0);
                    let needed = self.is_made_up_for(removal.process) == Some(false);
                    placed |= right && !needed && self.part(removal.process, position);
                }
                placed
            }
            Control::Place { expected, ring } => {
                only(Role::Super)?;
                let fresh = expected == self.placements && self.ring.is_empty() && !ring.is_empty();
                let keys: BTreeSet<u64> = ring.iter().map(|(key, _)| *key).collect();
                let holders: BTreeSet<ProcessId> = ring.iter().map(|(_, process)| *process).collect();
                let distinct = keys.len() == ring.len() && holders.len() == ring.len() && ring.len() <= 64;
                let ready = holders.iter().all(|&process| self.is(process, StorageStatus::Standby));
                (fresh && distinct && ready).then_some(())?;
                self.storage.extend(holders.into_iter().map(|process| (process, StorageStatus::Active)));
                self.ring.extend(ring);
                true
            }
            Control::Replace { expected, old, new, copy } => {
                only(Role::Super)?;
                let key = self.ring.iter().find(|(_, process)| **process == old).map(|(&key, _)| key)?;
                let free = expected == self.placements && self.is(new, StorageStatus::Standby);
                let spared = !self.is(old, StorageStatus::Unreachable)
                    && (!self.storage.contains_key(&old) || self.can_spare(old));
                (free && spared).then_some(())?;
                self.ring.insert(key, new);
                self.storage.insert(new, StorageStatus::Receiving(position));
                if let Some(state) = self.storage.get_mut(&old) {
                    *state = StorageStatus::Keeping(key, position);
                    self.rows_through.insert(old, position);
                }
                self.rows_through.remove(&new);
                // Each segment that the process gets is copied once, from a complete replica if there is one.
                for key in self.samples(0, u64::MAX) {
                    let holders = self.holders(key);
                    if holders.contains(&new) {
                        let has = |source: &ProcessId| {
                            holders.contains(source) && self.is(*source, StorageStatus::Active)
                        };
                        let mut sources =
                            copy.iter().filter(|(range, _)| range.low <= key && key <= range.high);
                        let sound = match (sources.next(), sources.next()) {
                            (Some((_, source)), None) => has(source),
                            (None, _) => false,
                            _ => return None,
                        };
                        let gone = !holders.iter().any(|&holder| {
                            [StorageStatus::Active, StorageStatus::Unreachable, StorageStatus::AwayActive]
                                .into_iter()
                                .any(|state| self.is(holder, state))
                        });
                        let alone = !holders.iter().any(|&holder| {
                            holder != new
                                && matches!(self.storage.get(&holder), Some(StorageStatus::Receiving(_)))
                        });
                        let from: Vec<ProcessId> = copy
                            .iter()
                            .filter(|(range, _)| range.low <= key && key <= range.high)
                            .map(|(_, source)| *source)
                            .collect();
                        let kept: Vec<ProcessId> = self.best_keeper(key).into_iter().collect();
                        (sound || gone && alone && from == kept).then_some(())?;
                    }
                }
                true
            }
            Control::Complete { change } => {
                self.is(sender, StorageStatus::Receiving(change.0)).then_some(())?;
                self.storage.insert(sender, StorageStatus::Active);
                true
            }
            Control::DeclareLost { process } => {
                only(Role::Super)?;
                self.is_awaited(process).then_some(())?;
                let keeps = |twin_state: &TwinState, key: u64| {
                    let holders = twin_state.holders(key);
                    holders.iter().any(|&it| {
                        twin_state.is(it, StorageStatus::Active)
                            || twin_state.is(it, StorageStatus::Unreachable)
                    })
                };
                self.declared.push(process);
                let removed = self.remove(process);
                let keys = self.samples(0, u64::MAX);
                let forsaken: Vec<u64> = keys.into_iter().filter(|&key| !keeps(self, key)).collect();
                self.forsaken.extend(forsaken.into_iter().map(|key| (key, process)));
                removed
            }
            Control::CreateTable { name, .. } => {
                (!self.ring.is_empty() && !self.tables.values().any(|known| *known == name)).then_some(())?;
                self.tables_ever += 1;
                self.tables.insert(self.tables_ever, name);
                false
            }
            Control::DropTable { table } => {
                self.tables.remove(&table)?;
                false
            }
            Control::Define { changes } => {
                let is_held =
                    |key: u64| self.holders(key).iter().any(|it| self.is(*it, StorageStatus::Active));
                let are_held = self.samples(0, u64::MAX).into_iter().all(is_held);
                let (mut tables, mut begun) = (self.tables.clone(), Vec::new());
                for change in changes {
                    match change {
                        TableChange::Create { name, .. } if !self.ring.is_empty() => begun.push(name),
                        TableChange::Create { .. } => return None,
                        TableChange::Drop { table } => drop(tables.remove(&table)?),
                        TableChange::Alter { table, name, .. } => {
                            (are_held && tables.remove(&table).is_some()).then(|| begun.push(name))?;
                        }
                    }
                }
                let mut ever = self.tables_ever;
                for name in begun {
                    (!tables.values().any(|known| *known == name)).then_some(())?;
                    ever += 1;
                    tables.insert(ever, name);
                }
                (self.tables, self.tables_ever) = (tables, ever);
                false
            }
            Control::Forget { session, below, kept } => {
                if sender.incarnation.0 != session {
                    only(Role::Super)?;
                }
                let floor = self.sessions.get_mut(&session)?;
                if below >= *floor {
                    let still = |number: u64| {
                        let known = number >= *floor || self.kept.contains(&(session, number));
                        (number < below && known).then_some((session, number))
                    };
                    let kept: Vec<(u128, u64)> = kept.into_iter().filter_map(still).collect();
                    self.kept.retain(|(other, _)| *other != session);
                    self.kept.extend(kept);
                    *floor = below;
                }
                if below == u64::MAX {
                    self.sessions.remove(&session);
                    self.kept.retain(|(other, _)| *other != session);
                }
                false
            }
            Control::Expire { .. } => {
                matches!(role?, Role::Super | Role::Gateway).then_some(())?;
                false
            }
        };
        self.placements += u64::from(placed);
        Some(())
    }

    /// Returns the destinations of a data message; `None` if the routing refuses it.
    fn data(&self, sender: ProcessId, header: &DataHeader) -> Option<BTreeSet<ProcessId>> {
        let client = self.roles.get(&sender) == Some(&Role::Gateway);
        let table = header.table == DataHeader::NO_TABLE || self.tables.contains_key(&header.table);
        (client && table && !self.ring.is_empty()).then_some(())?;
        let stretches: Vec<Vec<ProcessId>> = (header.ranges.iter())
            .flat_map(|range| self.samples(range.low, range.high))
            .map(|key| self.holders(key))
            .collect();
        let active = |process: &ProcessId| self.is(*process, StorageStatus::Active);
        if !stretches.iter().all(|holders| holders.iter().any(active)) {
            return None;
        }
        if header.kind == DataKind::Read {
            return Some(self.readers(&stretches, header.offset));
        }
        let request = header.name.request;
        let forgotten = match self.sessions.get(&request.session) {
            Some(floor) => request.number < *floor && !self.kept.contains(&(request.session, request.number)),
            None => !request.is_made_up(),
        };
        let blocked = |process: &ProcessId| self.is(*process, StorageStatus::Unreachable);
        if forgotten || stretches.iter().flatten().any(blocked) {
            return None;
        }
        let takes = |process: &ProcessId| {
            matches!(
                self.storage.get(process),
                Some(StorageStatus::Active | StorageStatus::Receiving(_) | StorageStatus::AwayActive)
            )
        };
        Some(stretches.into_iter().flatten().filter(takes).collect())
    }

    /// Returns one complete replica of every segment; the offset selects it.
    fn readers(&self, stretches: &[Vec<ProcessId>], offset: u32) -> BTreeSet<ProcessId> {
        let reader = |holders: &Vec<ProcessId>| {
            let active: Vec<ProcessId> =
                holders.iter().copied().filter(|&process| self.is(process, StorageStatus::Active)).collect();
            active[offset as usize % active.len()]
        };
        stretches.iter().map(reader).collect()
    }
}

/// Whether a process makes way for the next life of its node. In this world a node never changes its address.
fn makes_way(role: Role, its: Role) -> bool {
    role == its && matches!(role, Role::Super | Role::Gateway)
}
