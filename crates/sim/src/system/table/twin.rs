//! The naive twin of Rubberband's routing: who is a member, who holds what, and so whom a message is for. Written from the
//! rules (002 §6.3, S5, S6, S14), key by key, and without a line of the code that it judges.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_protocol::{
    ProcessId, RequestId, Role,
    ecast::Class,
    rubberband::{Control, DataHeader, DataKind},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::check::order::{Twin, Unroutable};

/// What occurs when a range goes on from the rows of a keeper.
pub(super) const TAKEN_UP: &str = "kept rows taken up";

/// Where a storage process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Standby,
    Receiving(u64),
    Active,
    Unreachable,
    /// It keeps the rows of this place on the ring, up to a position, from a life that was removed.
    Keeping(u64, u64),
    /// It said that it stops for a moment, and stood so.
    AwayActive,
    AwayStandby,
}

/// What follows from the control messages so far.
#[derive(Clone, Debug, Default)]
struct Town {
    replicas: usize,
    roles: BTreeMap<ProcessId, Role>,
    storage: BTreeMap<ProcessId, State>,
    /// Who is suspected, and since which position.
    doubted: BTreeMap<ProcessId, u64>,
    ring: BTreeMap<u64, ProcessId>,
    placements: u64,
    tables: BTreeMap<u32, String>,
    tables_ever: u32,
    sessions: BTreeMap<u128, u64>,
    /// Who holds rows up to a position only, and receives none behind it.
    behind: BTreeMap<ProcessId, u64>,
    /// How many control messages there were.
    controls: u64,
    /// Keys whose last replica was declared lost, and which it was.
    forsaken: Vec<(u64, ProcessId)>,
    /// Processes that were declared lost, in order.
    declared: Vec<ProcessId>,
    /// Sessions and numbers that are remembered although they are below.
    kept: BTreeSet<(u128, u64)>,
}

/// The twin.
#[derive(Clone, Debug)]
pub(super) struct TableTwin {
    town: Town,
    /// What each position may change: a write its ranges, a control message everything.
    touched: BTreeMap<u64, Vec<(u64, u64)>>,
    /// The hash of the operation of each write.
    writes: BTreeMap<u64, u64>,
    /// What ids that applications made up were first used for.
    made_up: BTreeMap<RequestId, Used>,
    /// The names of writes that have a position.
    names: BTreeSet<(u128, u64)>,
    /// What occurred that rules speak of, and was not counted yet.
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
        let town = Town { replicas: usize::from(replicas), ..Town::default() };
        TableTwin {
            town,
            touched: BTreeMap::new(),
            writes: BTreeMap::new(),
            names: BTreeSet::new(),
            made_up: BTreeMap::new(),
            occurred: Vec::new(),
        }
    }

    /// The last position up to `position` that may have changed rows of this range.
    pub(super) fn touched(&self, (low, high): (u64, u64), position: u64) -> u64 {
        let meets = |ranges: &[(u64, u64)]| ranges.iter().any(|&(from, to)| from <= high && low <= to);
        let last = self.touched.range(..=position).rev().find(|(_, ranges)| meets(ranges));
        last.map_or(0, |(&position, _)| position)
    }

    /// Whether what is ordered at `position` may change rows of the stretch of the ring that a key lies in.
    pub(super) fn concerns(&self, position: u64, key: u64) -> bool {
        let mut ranges = self.touched.get(&position).into_iter().flatten();
        let stretch = self.town.stretch(key);
        ranges.any(|&(low, high)| {
            self.town.samples(low, high).iter().any(|&it| self.town.stretch(it) == stretch)
        })
    }

    /// The hash of the operation that is written at `position`.
    pub(super) fn written(&self, position: u64) -> Option<u64> {
        self.writes.get(&position).copied()
    }

    /// The stretches of the ring, each with those that are complete there.
    pub(super) fn complete(&self) -> Vec<((u64, u64), Vec<ProcessId>)> {
        let lows = self.town.samples(0, u64::MAX);
        let highs = lows.iter().skip(1).map(|&low| low - 1).chain([u64::MAX]);
        let complete = |low: u64| {
            let mut holders = self.town.holders(low);
            holders.retain(|&holder| self.town.is(holder, State::Active));
            holders
        };
        lows.iter().zip(highs).map(|(&low, high)| ((low, high), complete(low))).collect()
    }

    /// How many control messages had an effect.
    pub(super) fn controls(&self) -> u64 {
        self.town.controls
    }

    /// Whether `process` is a member.
    pub(super) fn has_member(&self, process: ProcessId) -> bool {
        self.town.roles.contains_key(&process)
    }

    /// Up to where `process` has all rows, if it receives none behind that.
    pub(super) fn behind(&self, process: ProcessId) -> Option<u64> {
        self.town.behind.get(&process).copied()
    }

    /// What occurred since this was asked last.
    pub(super) fn occurred(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.occurred)
    }

    /// Notes where a control message meets the precondition of a rule.
    fn note_control(&mut self, sender: ProcessId, control: &Control) {
        let stored = |process: &&ProcessId| self.town.storage.contains_key(process);
        let keeps = |it: &ProcessId| matches!(self.town.storage.get(it), Some(State::Keeping(..)));
        let several: &[(bool, &'static str)] = match control {
            Control::Suspect { processes } => &[
                (processes.iter().filter(stored).count() > 1, "two suspects in one message"),
                (
                    processes.iter().any(|&it| self.town.roles.contains_key(&it) && !self.town.spares(it)),
                    "suspected: the last with all rows",
                ),
            ],
            Control::Join { keeps: Some(_), .. } => &[(true, "rows kept")],
            Control::Dismiss { .. } => &[(true, "keeper dismissed")],
            Control::Away => &[(self.town.may_go(sender), "went away")],
            Control::Back { caught_up } => &[(*caught_up && self.town.is_away(sender), "came back")],
            Control::Replace { copy, .. } => &[(copy.iter().any(|(_, source)| keeps(source)), TAKEN_UP)],
            Control::Refute { .. } => {
                &[(self.town.is(sender, State::Unreachable), "returned from being unreachable")]
            }
            Control::Forget { below, .. } => {
                &[(*below == u64::MAX, "session ended"), (*below != u64::MAX, "replies forgotten")]
            }
            _ => &[],
        };
        self.occurred.extend(several.iter().filter(|(met, _)| *met).map(|(_, what)| *what));
    }

    /// Notes where a write meets the precondition of a rule.
    fn note_write(&mut self, header: &DataHeader) {
        let request = header.name.request;
        if self.names.insert((request.session, request.number)) {
            return;
        }
        self.occurred.push("write ordered again");
        let lost = |key: u64| {
            self.town.forsaken.iter().any(|(lost, _)| self.town.stretch(*lost) == self.town.stretch(key))
        };
        let keys: Vec<u64> =
            (header.ranges.iter()).flat_map(|range| self.town.samples(range.low, range.high)).collect();
        if keys.iter().any(|&key| lost(key)) && !keys.iter().all(|&key| lost(key)) {
            self.occurred.push("repetition that one range knows");
        }
    }

    /// Keys whose last replica was declared lost, and which it was.
    pub(super) fn forsaken(&self) -> &[(u64, ProcessId)] {
        &self.town.forsaken
    }

    /// Processes that were declared lost, in order: an operator's word, and nobody else's (S14).
    pub(super) fn declared(&self) -> &[ProcessId] {
        &self.town.declared
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
        if class == Class::Control {
            self.touched.insert(position, vec![(0, u64::MAX)]);
            let control = Control::decode(body).ok_or(Unroutable::Refused)?;
            self.note_control(sender, &control);
            let mut after = self.town.clone();
            after.control(position, sender, control.clone()).ok_or(Unroutable::Refused)?;
            if !after.roles.contains_key(&sender) && !self.town.roles.contains_key(&sender) {
                return Err(Unroutable::Stranger);
            }
            self.town = after;
            if let Control::Expire { through } = control {
                for used in self.made_up.values_mut() {
                    used.expired |= used.at <= through.0;
                }
            }
            self.town.controls += 1;
            return Ok(self.town.roles.keys().copied().collect());
        }
        if !self.town.roles.contains_key(&sender) {
            return Err(Unroutable::Stranger);
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
        let found = self.town.data(sender, &header).ok_or(Unroutable::Refused)?;
        if header.kind != DataKind::Read {
            let ranges = header.ranges.iter().map(|range| (range.low, range.high)).collect();
            self.note_write(&header);
            self.touched.insert(position, ranges);
            self.writes.insert(position, xxh3_64(&operation));
        }
        Ok(found)
    }

    fn is_member(&mut self, process: ProcessId) -> bool {
        self.town.roles.contains_key(&process)
    }
}

impl Town {
    /// Who replicates a key: the holder of the ring id at or below it, and its successors.
    fn holders(&self, key: u64) -> Vec<ProcessId> {
        let below = self.ring.range(..=key).next_back().or(self.ring.last_key_value());
        let Some((&first, _)) = below else { return Vec::new() };
        let around = self.ring.range(first..).chain(self.ring.range(..first));
        around.map(|(_, &process)| process).take(self.replicas).collect()
    }

    /// A key of every stretch between two ring ids that a range touches.
    fn samples(&self, low: u64, high: u64) -> Vec<u64> {
        let inside = self.ring.keys().copied().filter(|&key| low < key && key <= high);
        [low].into_iter().chain(inside).collect()
    }

    /// The ring id at or below a key.
    fn stretch(&self, key: u64) -> Option<u64> {
        self.ring.range(..=key).next_back().map(|(&low, _)| low)
    }

    fn is(&self, process: ProcessId, state: State) -> bool {
        self.storage.get(&process) == Some(&state)
    }

    /// Whether everything that `process` holds is held complete by another that nobody suspects.
    fn spares(&self, process: ProcessId) -> bool {
        let keeps = |other: ProcessId| {
            other != process && self.is(other, State::Active) && !self.doubted.contains_key(&other)
        };
        self.samples(0, u64::MAX)
            .into_iter()
            .map(|key| self.holders(key))
            .all(|holders| !holders.contains(&process) || holders.iter().any(|&other| keeps(other)))
    }

    /// Whether a process may stop for a moment: nothing moves, and others have what it has.
    fn may_go(&self, process: ProcessId) -> bool {
        let moves = self.storage.values().any(|state| matches!(state, State::Receiving(_)));
        self.is(process, State::Standby) || self.is(process, State::Active) && !moves && self.spares(process)
    }

    fn is_away(&self, process: ProcessId) -> bool {
        self.is(process, State::AwayActive) || self.is(process, State::AwayStandby)
    }

    /// Whether a process of this node belongs to the town, is not given up, and does not make way.
    fn is_in_use(&self, node: u64, role: Role) -> bool {
        let stays = |process: ProcessId, its: Role| !self.is_awaited(process) && !makes_way(role, its);
        self.roles.iter().any(|(&process, &its)| process.node == node && stays(process, its))
    }

    /// Whether a process that is out of reach belongs to the town all the same.
    fn is_awaited(&self, process: ProcessId) -> bool {
        let keeps = matches!(self.storage.get(&process), Some(State::Keeping(..)));
        self.is(process, State::Unreachable) || keeps && self.doubted.contains_key(&process)
    }

    /// Of a keeper: whether everything that it keeps is held complete by somebody whom nobody suspects.
    fn is_made_up_for(&self, process: ProcessId) -> Option<bool> {
        let Some(State::Keeping(place, _)) = self.storage.get(&process) else { return None };
        let holder = self.ring.get(place)?;
        if matches!(self.storage.get(holder), Some(State::Receiving(_))) {
            return Some(false);
        }
        let complete = |it: &ProcessId| self.is(*it, State::Active) && !self.doubted.contains_key(it);
        let keys = self.samples(0, u64::MAX).into_iter().map(|key| self.holders(key));
        Some(keys.filter(|holders| holders.contains(holder)).all(|holders| holders.iter().any(complete)))
    }

    /// The keeper that has a key's rows up to the latest position.
    fn best_keeper(&self, key: u64) -> Option<ProcessId> {
        let holders = self.holders(key);
        let keepers = self.storage.iter().filter_map(|(&process, state)| match state {
            State::Keeping(place, through) if holders.contains(&self.ring[place]) => {
                Some((*through, process))
            }
            _ => None,
        });
        keepers.max().map(|(_, process)| process)
    }

    fn remove(&mut self, process: ProcessId) -> bool {
        self.roles.remove(&process);
        self.doubted.remove(&process);
        self.storage.remove(&process).is_some()
    }

    /// Says whether the placement changed.
    fn part(&mut self, process: ProcessId, position: u64) -> bool {
        match self.storage.get(&process) {
            Some(State::Active | State::Unreachable | State::AwayActive) if !self.spares(process) => {
                self.doubted.entry(process).or_insert(position);
                self.storage.insert(process, State::Unreachable) != Some(State::Unreachable)
            }
            _ => self.remove(process),
        }
    }

    /// `None`: refused.
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
                    self.doubted.retain(|process, _| self.roles.contains_key(process));
                }
                self.roles.insert(sender, role);
                if role == Role::Gateway {
                    self.sessions.insert(sender.incarnation.0, 0);
                }
                let sound = |town: &Town, former: ProcessId, place: u64, through: u64| {
                    !town.roles.contains_key(&former) && town.ring.contains_key(&place) && through < position
                };
                let state = match keeps {
                    Some(it) if sound(self, it.former, it.place, it.through.0) => {
                        self.behind.insert(sender, it.through.0);
                        State::Keeping(it.place, it.through.0)
                    }
                    _ => State::Standby,
                };
                role == Role::Storage && self.storage.insert(sender, state).is_none()
            }
            Control::Leave if self.is_made_up_for(sender) == Some(false) => false,
            Control::Dismiss { process } => {
                only(Role::Super)?;
                (self.is_made_up_for(process) == Some(true)).then_some(())?;
                self.storage.insert(process, State::Standby);
                true
            }
            Control::Away => {
                (role == Some(Role::Storage)).then_some(())?;
                let goes = self.may_go(sender);
                if goes {
                    let away =
                        if self.is(sender, State::Active) { State::AwayActive } else { State::AwayStandby };
                    self.storage.insert(sender, away);
                }
                goes
            }
            Control::Back { caught_up } => {
                let back = match self.storage.get(&sender) {
                    Some(State::AwayActive) => Some(State::Active),
                    Some(State::AwayStandby) => Some(State::Standby),
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
                        self.doubted.entry(process).or_insert(position);
                    }
                }
                false
            }
            Control::Refute { suspected } => {
                let right = self.doubted.get(&sender) == Some(&suspected.0);
                if right {
                    self.doubted.remove(&sender);
                }
                let back = right && self.is(sender, State::Unreachable);
                if back {
                    self.storage.insert(sender, State::Active);
                }
                back
            }
            Control::Remove { removals } => {
                only(Role::Super)?;
                let mut placed = false;
                for removal in removals {
                    let right = self.doubted.get(&removal.process) == Some(&removal.suspected.0);
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
                let ready = holders.iter().all(|&process| self.is(process, State::Standby));
                (fresh && distinct && ready).then_some(())?;
                self.storage.extend(holders.into_iter().map(|process| (process, State::Active)));
                self.ring.extend(ring);
                true
            }
            Control::Replace { expected, old, new, copy } => {
                only(Role::Super)?;
                let key = self.ring.iter().find(|(_, process)| **process == old).map(|(&key, _)| key)?;
                let free = expected == self.placements && self.is(new, State::Standby);
                let spared = !self.is(old, State::Unreachable)
                    && (!self.storage.contains_key(&old) || self.spares(old));
                (free && spared).then_some(())?;
                self.ring.insert(key, new);
                self.storage.insert(new, State::Receiving(position));
                if let Some(state) = self.storage.get_mut(&old) {
                    *state = State::Keeping(key, position);
                    self.behind.insert(old, position);
                }
                self.behind.remove(&new);
                // Every stretch that it gets is copied once, from one that has it, unless nobody does.
                for key in self.samples(0, u64::MAX) {
                    let holders = self.holders(key);
                    if holders.contains(&new) {
                        let has =
                            |source: &ProcessId| holders.contains(source) && self.is(*source, State::Active);
                        let mut sources =
                            copy.iter().filter(|(range, _)| range.low <= key && key <= range.high);
                        let sound = match (sources.next(), sources.next()) {
                            (Some((_, source)), None) => has(source),
                            (None, _) => false,
                            _ => return None,
                        };
                        let gone = !holders.iter().any(|&holder| {
                            [State::Active, State::Unreachable, State::AwayActive]
                                .into_iter()
                                .any(|state| self.is(holder, state))
                        });
                        let alone = !holders.iter().any(|&holder| {
                            holder != new && matches!(self.storage.get(&holder), Some(State::Receiving(_)))
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
                self.is(sender, State::Receiving(change.0)).then_some(())?;
                self.storage.insert(sender, State::Active);
                true
            }
            Control::DeclareLost { process } => {
                only(Role::Super)?;
                self.is_awaited(process).then_some(())?;
                let keeps = |town: &Town, key: u64| {
                    let holders = town.holders(key);
                    holders.iter().any(|&it| town.is(it, State::Active) || town.is(it, State::Unreachable))
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

    /// Whom a data message is for; `None`: refused.
    fn data(&self, sender: ProcessId, header: &DataHeader) -> Option<BTreeSet<ProcessId>> {
        let client = self.roles.get(&sender) == Some(&Role::Gateway);
        let table = header.table == DataHeader::NO_TABLE || self.tables.contains_key(&header.table);
        (client && table && !self.ring.is_empty()).then_some(())?;
        let stretches: Vec<Vec<ProcessId>> = (header.ranges.iter())
            .flat_map(|range| self.samples(range.low, range.high))
            .map(|key| self.holders(key))
            .collect();
        let active = |process: &ProcessId| self.is(*process, State::Active);
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
        let blocked = |process: &ProcessId| self.is(*process, State::Unreachable);
        if forgotten || stretches.iter().flatten().any(blocked) {
            return None;
        }
        let takes = |process: &ProcessId| {
            matches!(self.storage.get(process), Some(State::Active | State::Receiving(_) | State::AwayActive))
        };
        Some(stretches.into_iter().flatten().filter(takes).collect())
    }

    /// Of every stretch one that has it all: which, the offset says.
    fn readers(&self, stretches: &[Vec<ProcessId>], offset: u32) -> BTreeSet<ProcessId> {
        let reader = |holders: &Vec<ProcessId>| {
            let active: Vec<ProcessId> =
                holders.iter().copied().filter(|&process| self.is(process, State::Active)).collect();
            active[offset as usize % active.len()]
        };
        stretches.iter().map(reader).collect()
    }
}

/// Whether a process makes way for the next life of its node, which is at its address as ever here.
fn makes_way(role: Role, its: Role) -> bool {
    role == its && matches!(role, Role::Super | Role::Gateway)
}
