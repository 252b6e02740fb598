//! The state of a group at a position of the order: its view, its waiting processes, and a change in
//! progress.
//!
//! Everything here is a function of ordered messages, the same at routers and members. The [`Turn`]s of a
//! delivered [`GroupStep`] list what a member has to do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{SeatId, Seats};
use crate::{
    ecast::Position,
    id::{Peer, ProcessId},
};

/// The members of a group: processes with one or more members each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The position at which the view was installed; 0 before the first view.
    pub number: Position,
    /// The processes, oldest first. A process's rank is its index.
    pub members: Vec<ViewMember>,
    /// The seats of each process whose seats are not just seat 0. Not part of the view's byte form, because
    /// the group stores them.
    #[serde(skip)]
    pub seats: Seats,
    /// Processes that were not in the previous view.
    pub joined: Vec<ProcessId>,
    /// Processes of the previous view that are not in the present view.
    pub left: Vec<ProcessId>,
}

/// A process of a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewMember {
    /// The process, and the address at which it listens.
    pub peer: Peer,
    /// Progress of the transfer of the group's state to the member.
    pub transfer: StateTransfer,
}

/// The progress of the transfer of a group's state to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateTransfer {
    /// The member has the state.
    Complete,
    /// The member receives the state of view `since` from a member that had the state when that view began.
    Receiving {
        /// The member that gives the state.
        giver: ProcessId,
        /// The view whose first state is sent.
        since: Position,
    },
}

/// The state of a group at a position of the order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredGroup", into = "StoredGroup")]
pub struct Group {
    /// The group's name.
    pub name: String,
    /// The view that was installed last.
    pub view: View,
    /// Processes that wait for admission, in the order of their requests.
    pub joining: Vec<Peer>,
    /// Members that wait to leave.
    pub leaving: BTreeSet<ProcessId>,
    /// Suspected members of the view, and processes that became suspected while they waited for admission.
    pub dropped: BTreeSet<ProcessId>,
    /// The seats that processes will have from the next view on.
    pub seats: Seats,
    /// The change in progress.
    pub change: Option<ViewChange>,
}

/// The stored form of a group. If no process has other seats than seat 0, the bytes equal the form of builds
/// that knew no other seats, because logs and disks hold that form.
#[derive(Serialize, Deserialize)]
struct StoredGroup {
    name: String,
    view: View,
    joining: Vec<Peer>,
    leaving: BTreeSet<ProcessId>,
    dropped: BTreeSet<ProcessId>,
    tail: Tail,
}

#[derive(Serialize, Deserialize)]
enum Tail {
    // The first two variants have the byte form of an `Option`, which older builds stored here.
    Still,
    Changing(ViewChange),
    Seated { now: Seats, next: Seats, change: Option<ViewChange> },
}

impl From<Group> for StoredGroup {
    fn from(group: Group) -> StoredGroup {
        let Group { name, mut view, joining, leaving, dropped, seats: next, change } = group;
        let now = std::mem::take(&mut view.seats);
        let tail = match change {
            change if (&now, &next) != (&Seats::default(), &Seats::default()) => {
                Tail::Seated { now, next, change }
            }
            Some(change) => Tail::Changing(change),
            None => Tail::Still,
        };
        StoredGroup { name, view, joining, leaving, dropped, tail }
    }
}

impl From<StoredGroup> for Group {
    fn from(stored: StoredGroup) -> Group {
        let StoredGroup { name, mut view, joining, leaving, dropped, tail } = stored;
        let (seats, change) = match tail {
            Tail::Still => (Seats::default(), None),
            Tail::Changing(change) => (Seats::default(), Some(change)),
            Tail::Seated { now, next, change } => {
                view.seats = now;
                (next, change)
            }
        };
        Group { name, view, joining, leaving, dropped, seats, change }
    }
}

/// A change of the view in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewChange {
    /// The position at which the change began. It names the change.
    pub prepared: Position,
    /// The reports that survivors have sent.
    pub reports: BTreeMap<ProcessId, SurvivorReport>,
    /// The last number of each stream, once all survivors have reported.
    pub cut: Option<BTreeMap<ProcessId, u64>>,
    /// Survivors that hold all messages of the cut.
    pub repaired: BTreeSet<ProcessId>,
}

/// A survivor's report of the messages that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurvivorReport {
    /// The position that names the change to which the report belongs.
    pub change: Position,
    /// For each member's stream, the last number that the reporting member holds.
    pub held: BTreeMap<ProcessId, u64>,
    /// Whether the member has the group's state.
    pub whole: bool,
}

/// The meaning of an ordered message for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// A process asks for admission.
    Join(Peer),
    /// A member asks to leave, or a process that waits for admission withdraws.
    Leave(ProcessId),
    /// A process seems to have failed.
    Drop(ProcessId),
    /// A survivor reports the messages that it holds.
    Report(ProcessId, SurvivorReport),
    /// A survivor holds all messages of the cut of the change with this name.
    Repaired(ProcessId, Position),
    /// A member has received the state as of this view.
    Whole(ProcessId, Position),
    /// A member requests a view and a saved state at its beginning. A change in progress serves the request.
    Save {
        /// The member that requests the save.
        sender: ProcessId,
        /// Whether all members save the state, rather than only the sender.
        by_all: bool,
    },
    /// A process has these seats from the next view on.
    Seats(ProcessId, Vec<SeatId>),
}

/// An action that a step requires of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A change begins or restarts, and each survivor has to report.
    Prepared,
    /// The streams of the old view end at these numbers, and each survivor has to obtain the messages that it
    /// lacks.
    Cut(BTreeMap<ProcessId, u64>),
    /// A view begins, because the change has ended.
    Installed,
}

impl View {
    /// Returns the entry of `process`.
    pub fn entry(&self, process: ProcessId) -> Option<&ViewMember> {
        self.members.iter().find(|entry| entry.peer.id == process)
    }

    /// Returns the index of `process` among the processes.
    pub fn rank(&self, process: ProcessId) -> Option<usize> {
        self.members.iter().position(|entry| entry.peer.id == process)
    }

    /// Returns the processes, oldest first.
    pub fn ids(&self) -> impl Iterator<Item = ProcessId> + Clone + '_ {
        self.members.iter().map(|entry| entry.peer.id)
    }

    /// Returns the members. Members of one process are adjacent, in the order of their seats.
    pub fn places(&self) -> impl Iterator<Item = (ProcessId, SeatId)> + Clone + '_ {
        self.ids().flat_map(|id| self.seats.of(id).iter().map(move |seat| (id, *seat)))
    }

    /// Whether the view includes this member.
    pub fn has(&self, process: ProcessId, seat: SeatId) -> bool {
        self.entry(process).is_some() && self.seats.of(process).contains(&seat)
    }
}

impl ViewChange {
    fn new(prepared: Position) -> Self {
        ViewChange { prepared, reports: BTreeMap::new(), cut: None, repaired: BTreeSet::new() }
    }
}

impl Group {
    /// Returns the members of the view that are not suspected.
    pub fn survivors(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.view.ids().filter(|id| !self.dropped.contains(id))
    }

    /// Whether `process` is in the view and not suspected.
    pub fn is_survivor(&self, process: ProcessId) -> bool {
        self.view.entry(process).is_some() && !self.dropped.contains(&process)
    }

    /// Returns the survivors for which the change in progress waits.
    pub fn late(&self) -> Vec<ProcessId> {
        let Some(change) = &self.change else { return Vec::new() };
        let waited_for = |id: &ProcessId| match change.cut {
            None => !change.reports.contains_key(id),
            Some(_) => !change.repaired.contains(id),
        };
        self.survivors().filter(waited_for).collect()
    }

    /// Returns the processes that get the messages about the group's changes.
    pub fn audience(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.view.ids().chain(self.joining.iter().map(|peer| peer.id)).chain(self.view.left.iter().copied())
    }

    /// Whether `process` was recently dropped from the group.
    pub fn has_dropped(&self, process: ProcessId) -> bool {
        self.dropped.contains(&process) || self.view.left.contains(&process)
    }

    /// Whether `process` is in the group or waits for admission.
    pub fn concerns(&self, process: ProcessId) -> bool {
        self.view.entry(process).is_some() || self.joining.iter().any(|peer| peer.id == process)
    }

    /// Whether no process is in the group or waits for admission.
    pub fn is_empty(&self) -> bool {
        self.view.members.is_empty() && self.joining.is_empty()
    }

    /// Applies the step of the message at position `at`. Returns `None` if the step is stale or has no
    /// effect.
    pub fn step(&mut self, at: Position, step: &GroupStep) -> Option<Vec<Turn>> {
        let mut turns = Vec::new();
        match step {
            GroupStep::Join(peer) => {
                let waits = self.joining.iter().any(|other| other.id == peer.id);
                // A member that lost its state may ask to join again before the view without it is installed.
                if waits || self.is_survivor(peer.id) {
                    return None;
                }
                self.joining.push(peer.clone());
                self.begin(at, &mut turns);
            }
            GroupStep::Leave(process) => {
                let waited = self.joining.len();
                self.joining.retain(|peer| peer.id != *process);
                if self.is_survivor(*process) && self.leaving.insert(*process) {
                    self.begin(at, &mut turns);
                } else if self.joining.len() == waited {
                    return None;
                }
            }
            GroupStep::Drop(process) => {
                let waited = self.joining.len();
                self.joining.retain(|peer| peer.id != *process);
                if self.is_survivor(*process) {
                    self.dropped.insert(*process);
                    // The process may join again before the view without it is installed, and then begins
                    // with seat 0.
                    self.seats.forget(*process);
                    // The reports and the cut included the process, so the change begins again without it.
                    self.change = None;
                    self.begin(at, &mut turns);
                } else if self.joining.len() < waited {
                    self.dropped.insert(*process);
                } else {
                    return None;
                }
            }
            GroupStep::Report(process, report) => {
                let change = self.change.as_ref().filter(|change| change.prepared == report.change)?;
                if !self.is_survivor(*process) || change.reports.contains_key(process) {
                    return None;
                }
                let held = |id| (id, report.held.get(&id).copied().unwrap_or(0));
                let held = self.view.ids().map(held).collect();
                let report = SurvivorReport { held, change: report.change, whole: report.whole };
                self.change.as_mut()?.reports.insert(*process, report);
                self.advance(at, &mut turns);
            }
            GroupStep::Repaired(process, prepared) => {
                let survives = self.is_survivor(*process);
                let change = self.change.as_mut().filter(|change| change.prepared == *prepared)?;
                if !survives || change.cut.is_none() || !change.repaired.insert(*process) {
                    return None;
                }
                self.advance(at, &mut turns);
            }
            GroupStep::Whole(process, view) => {
                let entry = self.view.members.iter_mut().find(|entry| entry.peer.id == *process)?;
                if !matches!(entry.transfer, StateTransfer::Receiving { since, .. } if since == *view) {
                    return None;
                }
                entry.transfer = StateTransfer::Complete;
                if !self.leaving.is_empty() {
                    // A member that had to stay as the only holder of the state may leave now.
                    self.begin(at, &mut turns);
                }
            }
            GroupStep::Save { sender, .. } => {
                if !self.is_survivor(*sender) {
                    return None;
                }
                self.begin(at, &mut turns);
            }
            GroupStep::Seats(process, seats) => {
                if !self.is_survivor(*process) || !self.seats.take(*process, seats) {
                    return None;
                }
                self.begin(at, &mut turns);
            }
        }
        Some(turns)
    }

    /// Begins a change, unless one is in progress.
    fn begin(&mut self, at: Position, turns: &mut Vec<Turn>) {
        if self.change.is_none() {
            self.change = Some(ViewChange::new(at));
            turns.push(Turn::Prepared);
            self.advance(at, turns);
        }
    }

    /// Advances the change as far as the survivors' messages allow.
    fn advance(&mut self, at: Position, turns: &mut Vec<Turn>) {
        let survivors: Vec<ProcessId> = self.survivors().collect();
        let senders: Vec<ProcessId> = self.view.ids().collect();
        let change = self.change.as_mut().expect("a change is under way");
        if change.cut.is_none() && survivors.iter().all(|id| change.reports.contains_key(id)) {
            // The cut is everything that any survivor holds. No survivor holds messages after a gap, so the
            // longest held prefix of a stream covers all.
            let end = |sender: &ProcessId| survivors.iter().map(|id| change.reports[id].held[sender]).max();
            let ends: BTreeMap<ProcessId, u64> =
                senders.iter().map(|sender| (*sender, end(sender).unwrap_or(0))).collect();
            change.repaired =
                survivors.iter().copied().filter(|id| change.reports[id].held == ends).collect();
            change.cut = Some(ends.clone());
            turns.push(Turn::Cut(ends));
        }
        if change.cut.is_some() && survivors.iter().all(|id| change.repaired.contains(id)) {
            self.install(at, &survivors);
            turns.push(Turn::Installed);
        }
    }

    fn install(&mut self, at: Position, survivors: &[ProcessId]) {
        let change = self.change.take().expect("an install ends a change of the view");
        let old = std::mem::take(&mut self.view);
        let is_whole = |entry: &ViewMember| {
            let reported = change.reports.get(&entry.peer.id).is_some_and(|report| report.whole);
            survivors.contains(&entry.peer.id) && (reported || entry.transfer == StateTransfer::Complete)
        };
        let leaves = |entry: &ViewMember| self.leaving.contains(&entry.peer.id);
        let remains = |entry: &&ViewMember| survivors.contains(&entry.peer.id) && !leaves(entry);
        // While no other process has the state, one process that has it must stay.
        let alone = old.members.iter().filter(remains).all(|entry| !is_whole(entry));
        let awaited = !self.joining.is_empty() || old.members.iter().any(|entry| remains(&entry));
        let needed = old.members.iter().filter(|_| alone && awaited).find(|entry| is_whole(entry));
        let needed = needed.map(|entry| entry.peer.id);
        let stays =
            |id: ProcessId| survivors.contains(&id) && (!self.leaving.contains(&id) || Some(id) == needed);
        let (mut members, mut left) = (Vec::new(), Vec::new());
        for mut entry in old.members {
            let id = entry.peer.id;
            if !stays(id) {
                left.push(id);
                continue;
            }
            // The member may have received the state although the order has not confirmed that yet.
            if change.reports[&id].whole {
                entry.transfer = StateTransfer::Complete;
            }
            members.push(entry);
        }
        let joined: Vec<ProcessId> = self.joining.iter().map(|peer| peer.id).collect();
        let whole: Vec<ProcessId> = members
            .iter()
            .filter(|entry| entry.transfer == StateTransfer::Complete)
            .map(|it| it.peer.id)
            .collect();
        // If no process has the state, the oldest process begins with a fresh state.
        let fresh = whole.is_empty();
        let oldest = members.first().map(|entry| entry.peer.id).or(joined.first().copied());
        let givers: Vec<ProcessId> = if fresh { oldest.into_iter().collect() } else { whole };
        let receiving =
            |turn: usize| StateTransfer::Receiving { giver: givers[turn % givers.len()], since: at };
        for (turn, entry) in members.iter_mut().enumerate() {
            match entry.transfer {
                _ if fresh && turn == 0 => entry.transfer = StateTransfer::Complete,
                StateTransfer::Receiving { giver, .. } if fresh || !givers.contains(&giver) => {
                    entry.transfer = receiving(turn)
                }
                _ => {}
            }
        }
        for peer in self.joining.drain(..) {
            let transfer =
                if Some(peer.id) == oldest { StateTransfer::Complete } else { receiving(members.len()) };
            members.push(ViewMember { peer, transfer });
        }
        self.leaving.retain(|id| Some(*id) == needed);
        self.dropped.clear();
        self.seats.keep(|id| members.iter().any(|entry| entry.peer.id == id));
        self.view = View { number: at, members, seats: self.seats.clone(), joined, left };
    }
}

#[cfg(test)]
mod tests;
