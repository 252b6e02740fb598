//! What a group is at a position of the order: its view, who waits, and a change under way.
//!
//! Everything here is a function of ordered messages, the same at routers and members. Who delivers a [`Step`] learns
//! from its [`Turn`]s what it has to do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{SeatId, Seats};
use crate::{
    ecast::Position,
    id::{Peer, ProcessId},
};

/// The members of a group: processes, each with one or several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The position at which it was installed; 0 before the first.
    pub number: Position,
    /// The processes, oldest first: a process's rank is its place.
    pub members: Vec<Entry>,
    /// Their members, where a process has other ones than the first alone. Stored with the group.
    #[serde(skip)]
    pub seats: Seats,
    /// Processes that were not in the view before.
    pub joined: Vec<ProcessId>,
    /// Processes of the view before that are in no more.
    pub left: Vec<ProcessId>,
}

/// A process of a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Who, and where it listens.
    pub peer: Peer,
    /// Whether it has the group's state.
    pub standing: Standing,
}

/// Whether a member has the group's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It has.
    Whole,
    /// It gets the one at view `since` from a member that was whole then.
    Fed {
        /// From whom.
        giver: ProcessId,
        /// As of which view.
        since: Position,
    },
}

/// A group at a position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The view that was installed last.
    pub view: View,
    /// Processes that wait to be taken in, in the order in which they asked.
    pub joining: Vec<Peer>,
    /// Members that wait to be let go.
    pub leaving: BTreeSet<ProcessId>,
    /// Members of the view that are suspected, and processes that were while they waited to be taken in.
    pub dropped: BTreeSet<ProcessId>,
    /// The seats that processes have from the next view on.
    pub seats: Seats,
    /// The change under way.
    pub change: Option<Change>,
}

/// The form in which a group is stored. Where each process has its first member alone, its bytes are those of builds that knew no others,
/// which are in logs and on disks.
#[derive(Serialize, Deserialize)]
struct Stored {
    name: String,
    view: View,
    joining: Vec<Peer>,
    leaving: BTreeSet<ProcessId>,
    dropped: BTreeSet<ProcessId>,
    tail: Tail,
}

#[derive(Serialize, Deserialize)]
enum Tail {
    // The bytes of an option.
    Still,
    Changing(Change),
    Seated { now: Seats, next: Seats, change: Option<Change> },
}

impl From<Group> for Stored {
    fn from(group: Group) -> Stored {
        let Group { name, mut view, joining, leaving, dropped, seats: next, change } = group;
        let now = std::mem::take(&mut view.seats);
        let tail = match change {
            change if (&now, &next) != (&Seats::default(), &Seats::default()) => {
                Tail::Seated { now, next, change }
            }
            Some(change) => Tail::Changing(change),
            None => Tail::Still,
        };
        Stored { name, view, joining, leaving, dropped, tail }
    }
}

impl From<Stored> for Group {
    fn from(stored: Stored) -> Group {
        let Stored { name, mut view, joining, leaving, dropped, tail } = stored;
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

/// A change of the view that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The position that began it: its name.
    pub prepared: Position,
    /// What each survivor holds.
    pub reports: BTreeMap<ProcessId, Report>,
    /// Where each stream ends, once all survivors have reported.
    pub cut: Option<BTreeMap<ProcessId, u64>>,
    /// Survivors that hold all of the cut.
    pub repaired: BTreeSet<ProcessId>,
}

/// What a survivor says that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The change in which it says so, by its name.
    pub change: Position,
    /// How much of each member's stream.
    pub held: BTreeMap<ProcessId, u64>,
    /// Whether it has the group's state.
    pub whole: bool,
}

/// What an ordered message means for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A process wants to be taken in.
    Join(Peer),
    /// A member wants to be let go; one that waits to be taken in wants to no more.
    Leave(ProcessId),
    /// A process seems to have failed.
    Drop(ProcessId),
    /// A survivor says what it holds.
    Report(ProcessId, Report),
    /// A survivor holds all of the cut of the change of this name.
    Repaired(ProcessId, Position),
    /// A member has got the state at this view.
    Whole(ProcessId, Position),
    /// A member wants a view to begin, the one under way if any, and the state at its beginning kept.
    Save {
        /// Which.
        sender: ProcessId,
        /// Kept by all members, or by it alone.
        by_all: bool,
    },
    /// A process has these members from the next view on.
    Seats(ProcessId, Vec<SeatId>),
}

/// What a step brought about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A change begins, or begins anew: survivors report.
    Prepared,
    /// Streams end here: survivors repair.
    Cut(BTreeMap<ProcessId, u64>),
    /// A view begins.
    Installed,
}

impl View {
    /// The entry of `process`.
    pub fn entry(&self, process: ProcessId) -> Option<&Entry> {
        self.members.iter().find(|entry| entry.peer.id == process)
    }

    /// The place of `process` among the members.
    pub fn rank(&self, process: ProcessId) -> Option<usize> {
        self.members.iter().position(|entry| entry.peer.id == process)
    }

    /// The processes, oldest first.
    pub fn ids(&self) -> impl Iterator<Item = ProcessId> + Clone + '_ {
        self.members.iter().map(|entry| entry.peer.id)
    }

    /// The members: those of one process stand together, in the order of its seats.
    pub fn places(&self) -> impl Iterator<Item = (ProcessId, SeatId)> + Clone + '_ {
        self.ids().flat_map(|id| self.seats.of(id).iter().map(move |seat| (id, *seat)))
    }

    /// Whether this member is in it.
    pub fn has(&self, process: ProcessId, seat: SeatId) -> bool {
        self.entry(process).is_some() && self.seats.of(process).contains(&seat)
    }
}

impl Change {
    fn new(prepared: Position) -> Self {
        Change { prepared, reports: BTreeMap::new(), cut: None, repaired: BTreeSet::new() }
    }
}

impl Group {
    /// Members of the view that are not suspected.
    pub fn survivors(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.view.ids().filter(|id| !self.dropped.contains(id))
    }

    /// Whether `process` is a member of the view that is not suspected.
    pub fn is_survivor(&self, process: ProcessId) -> bool {
        self.view.entry(process).is_some() && !self.dropped.contains(&process)
    }

    /// Survivors for which the change under way waits.
    pub fn late(&self) -> Vec<ProcessId> {
        let Some(change) = &self.change else { return Vec::new() };
        let waited_for = |id: &ProcessId| match change.cut {
            None => !change.reports.contains_key(id),
            Some(_) => !change.repaired.contains(id),
        };
        self.survivors().filter(waited_for).collect()
    }

    /// Everybody who must know what becomes of the group.
    pub fn audience(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.view.ids().chain(self.joining.iter().map(|peer| peer.id)).chain(self.view.left.iter().copied())
    }

    /// Whether `process` was dropped from it lately.
    pub fn has_dropped(&self, process: ProcessId) -> bool {
        self.dropped.contains(&process) || self.view.left.contains(&process)
    }

    /// Whether `process` is in it or wants to be.
    pub fn concerns(&self, process: ProcessId) -> bool {
        self.view.entry(process).is_some() || self.joining.iter().any(|peer| peer.id == process)
    }

    /// Whether nobody is in it or wants to be.
    pub fn is_empty(&self) -> bool {
        self.view.members.is_empty() && self.joining.is_empty()
    }

    /// Takes the step of the message at `at`. `None`: it is stale, or means nothing.
    pub fn step(&mut self, at: Position, step: &Step) -> Option<Vec<Turn>> {
        let mut turns = Vec::new();
        match step {
            Step::Join(peer) => {
                let waits = self.joining.iter().any(|other| other.id == peer.id);
                // A member that lost its state may come back before the view without it.
                if waits || self.is_survivor(peer.id) {
                    return None;
                }
                self.joining.push(peer.clone());
                self.begin(at, &mut turns);
            }
            Step::Leave(process) => {
                let waited = self.joining.len();
                self.joining.retain(|peer| peer.id != *process);
                if self.is_survivor(*process) && self.leaving.insert(*process) {
                    self.begin(at, &mut turns);
                } else if self.joining.len() == waited {
                    return None;
                }
            }
            Step::Drop(process) => {
                let waited = self.joining.len();
                self.joining.retain(|peer| peer.id != *process);
                if self.is_survivor(*process) {
                    self.dropped.insert(*process);
                    // Reports and cut counted on it.
                    self.change = None;
                    self.begin(at, &mut turns);
                } else if self.joining.len() < waited {
                    self.dropped.insert(*process);
                } else {
                    return None;
                }
            }
            Step::Report(process, report) => {
                let change = self.change.as_ref().filter(|change| change.prepared == report.change)?;
                if !self.is_survivor(*process) || change.reports.contains_key(process) {
                    return None;
                }
                let held = |id| (id, report.held.get(&id).copied().unwrap_or(0));
                let held = self.view.ids().map(held).collect();
                let report = Report { held, change: report.change, whole: report.whole };
                self.change.as_mut()?.reports.insert(*process, report);
                self.advance(at, &mut turns);
            }
            Step::Repaired(process, prepared) => {
                let survives = self.is_survivor(*process);
                let change = self.change.as_mut().filter(|change| change.prepared == *prepared)?;
                if !survives || change.cut.is_none() || !change.repaired.insert(*process) {
                    return None;
                }
                self.advance(at, &mut turns);
            }
            Step::Whole(process, view) => {
                let entry = self.view.members.iter_mut().find(|entry| entry.peer.id == *process)?;
                if !matches!(entry.standing, Standing::Fed { since, .. } if since == *view) {
                    return None;
                }
                entry.standing = Standing::Whole;
                if !self.leaving.is_empty() {
                    // Who was held back because nobody else had the state may go.
                    self.begin(at, &mut turns);
                }
            }
            Step::Save { sender, .. } => {
                if !self.is_survivor(*sender) {
                    return None;
                }
                self.begin(at, &mut turns);
            }
            Step::Seats(process, seats) => {
                if !self.is_survivor(*process) || !self.seats.take(*process, seats) {
                    return None;
                }
                self.begin(at, &mut turns);
            }
        }
        Some(turns)
    }

    /// Begins a change, unless one is under way.
    fn begin(&mut self, at: Position, turns: &mut Vec<Turn>) {
        if self.change.is_none() {
            self.change = Some(Change::new(at));
            turns.push(Turn::Prepared);
            self.advance(at, turns);
        }
    }

    /// Goes on as far as what survivors said allows.
    fn advance(&mut self, at: Position, turns: &mut Vec<Turn>) {
        let survivors: Vec<ProcessId> = self.survivors().collect();
        let senders: Vec<ProcessId> = self.view.ids().collect();
        let change = self.change.as_mut().expect("a change is under way");
        if change.cut.is_none() && survivors.iter().all(|id| change.reports.contains_key(id)) {
            // What the survivors hold together: none keeps anything behind a gap, so the longest prefix is all of it.
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
        let change = self.change.take().expect("a change ends here");
        let old = std::mem::take(&mut self.view);
        let is_whole = |entry: &Entry| {
            let reported = change.reports.get(&entry.peer.id).is_some_and(|report| report.whole);
            survivors.contains(&entry.peer.id) && (reported || entry.standing == Standing::Whole)
        };
        let leaves = |entry: &Entry| self.leaving.contains(&entry.peer.id);
        let remains = |entry: &&Entry| survivors.contains(&entry.peer.id) && !leaves(entry);
        // As long as nobody else has the state, one who has it is not let go.
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
            // It may have got the state without that being ordered yet.
            if change.reports[&id].whole {
                entry.standing = Standing::Whole;
            }
            members.push(entry);
        }
        let joined: Vec<ProcessId> = self.joining.iter().map(|peer| peer.id).collect();
        let whole: Vec<ProcessId> =
            members.iter().filter(|entry| entry.standing == Standing::Whole).map(|it| it.peer.id).collect();
        // Where nobody has the state any more, the oldest begins with a fresh one.
        let fresh = whole.is_empty();
        let oldest = members.first().map(|entry| entry.peer.id).or(joined.first().copied());
        let givers: Vec<ProcessId> = if fresh { oldest.into_iter().collect() } else { whole };
        let fed = |turn: usize| Standing::Fed { giver: givers[turn % givers.len()], since: at };
        for (turn, entry) in members.iter_mut().enumerate() {
            match entry.standing {
                _ if fresh && turn == 0 => entry.standing = Standing::Whole,
                Standing::Fed { giver, .. } if fresh || !givers.contains(&giver) => {
                    entry.standing = fed(turn)
                }
                _ => {}
            }
        }
        for peer in self.joining.drain(..) {
            let standing = if Some(peer.id) == oldest { Standing::Whole } else { fed(members.len()) };
            members.push(Entry { peer, standing });
        }
        self.leaving.retain(|id| Some(*id) == needed);
        self.dropped.clear();
        self.seats.keep(|id| members.iter().any(|entry| entry.peer.id == id));
        self.view = View { number: at, members, seats: self.seats.clone(), joined, left };
    }
}

#[cfg(test)]
mod tests;
