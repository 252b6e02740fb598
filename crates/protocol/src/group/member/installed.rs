//! The view that is installed at a member, and messages to the view's other members.

use super::context::MemberContext;
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
    pub(super) fn tree(&self, context: &MemberContext<'_>) -> Tree {
        let rank = self.view.ids().position(|id| id == self.me).unwrap_or(0);
        Tree { rank, members: self.view.members.len(), width: context.settings.receipts_at_once }
    }

    /// Returns the members of these ranks.
    pub(super) fn ranked(&self, ranks: impl Iterator<Item = usize>) -> Vec<ProcessId> {
        ranks.map(|rank| self.view.members[rank].peer.id).collect()
    }

    /// Sends a message of this view.
    pub(super) fn say(&self, context: &mut MemberContext<'_>, to: Vec<ProcessId>, direct: Direct) {
        self.send_in_view(self.view.number, context, to, direct);
    }

    /// Sends a message that concerns the given view.
    pub(super) fn send_in_view(
        &self,
        view: Position,
        context: &mut MemberContext<'_>,
        to: Vec<ProcessId>,
        direct: Direct,
    ) {
        if !to.is_empty() {
            let message = Message::Group { group: self.group, view, direct };
            context.effects.sends.push((Destination::Many(to), message));
        }
    }
}
