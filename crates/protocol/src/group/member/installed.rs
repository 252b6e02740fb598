//! The view that is installed at a member, and messages to the view's other members.

use super::scene::Scene;
use crate::{
    ecast::Position,
    group::{Direct, GroupId, Message, View, receipts::Tree},
    id::ProcessId,
    seam::Destination,
};

/// The installed view of a group, as this process sees it.
pub(super) struct InstalledView {
    pub(super) group: GroupId,
    pub(super) me: ProcessId,
    /// The view. Until this process is in a view, the installed view does not contain it.
    pub(super) view: View,
}

impl InstalledView {
    /// Whether this process is in the view.
    pub(super) fn is_member(&self) -> bool {
        self.view.entry(self.me).is_some()
    }

    /// Returns the member's place in the tree of its view.
    pub(super) fn tree(&self, scene: &Scene<'_>) -> Tree {
        let rank = self.view.ids().position(|id| id == self.me).unwrap_or(0);
        Tree { rank, members: self.view.members.len(), width: scene.settings.receipts_at_once }
    }

    /// Returns the members of these ranks.
    pub(super) fn ranked(&self, ranks: impl Iterator<Item = usize>) -> Vec<ProcessId> {
        ranks.map(|rank| self.view.members[rank].peer.id).collect()
    }

    /// Sends a message of this view.
    pub(super) fn say(&self, scene: &mut Scene<'_>, to: Vec<ProcessId>, direct: Direct) {
        self.say_in(self.view.number, scene, to, direct);
    }

    /// Sends a message that concerns the given view.
    pub(super) fn say_in(&self, view: Position, scene: &mut Scene<'_>, to: Vec<ProcessId>, direct: Direct) {
        if !to.is_empty() {
            let message = Message::Group { group: self.group, view, direct };
            scene.effects.sends.push((Destination::Many(to), message));
        }
    }
}
