//! The links between the processes of a world: which are wanted and stand, which are cut, and what is on the way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_protocol::{ProcessId, Session};

/// Links whose queues hold things of type `T`, oldest first.
pub(crate) struct Links<T> {
    standing: BTreeSet<(ProcessId, ProcessId)>,
    cut: BTreeSet<(ProcessId, ProcessId)>,
    held: BTreeSet<(ProcessId, ProcessId)>,
    queues: BTreeMap<(ProcessId, ProcessId), VecDeque<T>>,
    sessions: u64,
}

fn pair(a: ProcessId, b: ProcessId) -> (ProcessId, ProcessId) {
    (a.min(b), a.max(b))
}

impl<T> Default for Links<T> {
    fn default() -> Self {
        Links {
            standing: BTreeSet::new(),
            cut: BTreeSet::new(),
            held: BTreeSet::new(),
            queues: BTreeMap::new(),
            sessions: 0,
        }
    }
}

impl<T> Links<T> {
    /// Those that stand, each once.
    pub(crate) fn standing(&self) -> Vec<(ProcessId, ProcessId)> {
        self.standing.iter().copied().collect()
    }

    /// Those of one process that stand, with the others' names.
    pub(crate) fn of(&self, id: ProcessId) -> Vec<ProcessId> {
        let other = |&(a, b): &(ProcessId, ProcessId)| match id {
            _ if a == id => Some(b),
            _ if b == id => Some(a),
            _ => None,
        };
        self.standing.iter().filter_map(other).collect()
    }

    /// Makes a link, unless it is cut or stands already.
    pub(crate) fn make(&mut self, a: ProcessId, b: ProcessId) -> Option<Session> {
        if self.is_cut(a, b) || !self.standing.insert(pair(a, b)) {
            return None;
        }
        self.sessions += 1;
        Some(Session(self.sessions))
    }

    /// Breaks a link; what was on the way is lost. Says whether it stood.
    pub(crate) fn unmake(&mut self, a: ProcessId, b: ProcessId) -> bool {
        self.queues.remove(&(a, b));
        self.queues.remove(&(b, a));
        self.standing.remove(&pair(a, b))
    }

    /// Has no link be made between the two until all are mended.
    pub(crate) fn cut(&mut self, a: ProcessId, b: ProcessId) {
        self.cut.insert(pair(a, b));
    }

    pub(crate) fn is_cut(&self, a: ProcessId, b: ProcessId) -> bool {
        self.cut.contains(&pair(a, b))
    }

    /// Nothing is cut any more, and nothing held.
    pub(crate) fn mend(&mut self) {
        self.cut.clear();
        self.held.clear();
    }

    /// Keeps what `from` sends to `to` on the way.
    pub(crate) fn hold(&mut self, from: ProcessId, to: ProcessId) {
        self.held.insert((from, to));
    }

    pub(crate) fn release(&mut self) {
        self.held.clear();
    }

    /// What is on the way from one to the other, if there is a link to be on.
    pub(crate) fn queue(&mut self, from: ProcessId, to: ProcessId) -> Option<&mut VecDeque<T>> {
        self.standing.contains(&pair(from, to)).then(|| self.queues.entry((from, to)).or_default())
    }

    /// What is on the way and not held, in the order of the processes.
    pub(crate) fn moving(&self) -> impl Iterator<Item = ((ProcessId, ProcessId), &VecDeque<T>)> {
        let moving = self.queues.iter().filter(|(way, _)| !self.held.contains(way));
        moving.map(|(way, queue)| (*way, queue))
    }

    /// The oldest thing on its way, if nothing holds it and it satisfies a condition.
    pub(crate) fn next_if(&mut self, from: ProcessId, to: ProcessId, due: impl Fn(&T) -> bool) -> Option<T> {
        if self.held.contains(&(from, to)) {
            return None;
        }
        let queue = self.queues.get_mut(&(from, to))?;
        if queue.front().is_some_and(due) { queue.pop_front() } else { None }
    }
}
