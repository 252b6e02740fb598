//! The processes to which a member keeps links.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ecast::Position, group::Group, id::ProcessId};

/// The processes to which this process keeps links for a group.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    reached: BTreeSet<ProcessId>,
    /// The state of the group for which `reached` was computed: the view, and the numbers of dropped and
    /// joining processes.
    computed_for: Option<(Position, usize, usize)>,
}

impl Neighbours {
    /// Makes the next call of `update` compute the processes again, even if the group's state is the same.
    pub(super) fn reset(&mut self) {
        self.computed_for = None;
    }

    /// Returns the processes to which links are needed from now on, with their addresses, and the processes
    /// to which links are no longer needed.
    pub(super) fn update(
        &mut self,
        me: ProcessId,
        group: Option<&Group>,
    ) -> (Vec<(ProcessId, String)>, Vec<ProcessId>) {
        let now = group.map(|group| (group.view.number, group.dropped.len(), group.joining.len()));
        if std::mem::replace(&mut self.computed_for, now) == now {
            return (Vec::new(), Vec::new());
        }
        let neighbours = group.map_or_else(BTreeMap::new, |group| of(me, group));
        let reached = std::mem::replace(&mut self.reached, neighbours.keys().copied().collect());
        let gone = reached.difference(&self.reached).copied().collect();
        (neighbours.into_iter().filter(|(id, _)| !reached.contains(id)).collect(), gone)
    }

    /// Returns the processes to which links are kept now.
    pub(super) fn into_reached(self) -> BTreeSet<ProcessId> {
        self.reached
    }
}

/// Returns the other members of the view that are not dropped, and the joining processes, with their
/// addresses.
fn of(me: ProcessId, group: &Group) -> BTreeMap<ProcessId, String> {
    let members =
        group.view.members.iter().map(|entry| &entry.peer).filter(|it| !group.dropped.contains(&it.id));
    let peers = members.chain(&group.joining).filter(|peer| peer.id != me);
    peers.map(|peer| (peer.id, peer.address.clone())).collect()
}
