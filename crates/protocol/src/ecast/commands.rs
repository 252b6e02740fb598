//! Commands: what is asked of a router, what it tells, and what operators asked until it has come about or will not.
//!
//! **Promise.** Each of an operator's ends in exactly one [`RouterEvent::Ended`] while the process runs and a leader
//! comes about. Two that contradict each other each get an answer of their own.
//!
//! A change of the routers is made by the leader. It refuses, or the change is seen in the log. A leader that resigns
//! forgets what it was asked, and a link that breaks loses it; so the next leader is asked again, and the same one on the
//! next link. That is harmless: a router that is in, or out, is so already, and that ends the command as well.

use std::sync::Arc;

use thiserror::Error;

use super::{Position, Reformed, RefoundRefusal};
use crate::{
    id::{Generation, Peer, ProcessId},
    paxos::{Change, ChangeRefusal, ReformRefusal},
    seam::CommandId,
    time::Duration,
};

/// Commands of a router.
#[derive(Clone, Debug)]
pub enum RouterCommand {
    /// Processes to ask for admission, while joining; to look at for a moment afterwards.
    Seeds(Vec<Peer>),
    /// Make a process, which runs and joins, a router, beyond the wanted number too; or take one out of the set. Ends in
    /// [`RouterEvent::Ended`].
    Change {
        /// The asker's name for it.
        id: CommandId,
        /// What.
        change: Change,
    },
    /// This router is about to stop for a moment: should it lead, another one is to. Ends in [`RouterEvent::Ended`] once another
    /// router leads.
    Pause {
        /// The asker's name for it.
        id: CommandId,
    },
    /// Begin the next generation alone: an operator says that a majority of the routers is gone for good ([`Reformed`]).
    /// Ends in [`RouterEvent::Ended`], behind [`RouterEvent::Reformed`] if it begins.
    Reform {
        /// The asker's name for it.
        id: CommandId,
        /// How long members may take to say what they have.
        patience: Duration,
    },
    /// Begin the next generation from members alone: an operator says that all routers are gone for good. To be given to one
    /// that has just started, and joins. Ends as [`RouterCommand::Reform`] does.
    Refound {
        /// The asker's name for it.
        id: CommandId,
        /// The latest generation that a member is in.
        before: Generation,
        /// All members but those that are gone for good; more than half of them have to follow.
        members: Vec<Peer>,
        /// How long they may take to say what they have.
        patience: Duration,
    },
}

/// Events of a router.
#[derive(Clone, Debug)]
pub enum RouterEvent<C> {
    /// Who leads, as far as this router knows.
    Leader(Option<ProcessId>),
    /// The routers have changed.
    Routers(Vec<Peer>),
    /// The application's configuration has changed.
    Config(Position, Arc<C>),
    /// This router has been taken out of the set: the process must stop, and may come back as a new one.
    Removed,
    /// A generation began with this router.
    Reformed(Reformed),
    /// The end of an operator's command: it has come about, or the reason why it does not.
    Ended {
        /// The asker's name for it.
        id: CommandId,
        /// The outcome.
        result: Result<(), RouterRefusal>,
    },
    /// A snapshot from another router did not decode: the process must stop.
    Corrupt(String),
}

/// Why what an operator asked of a router does not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RouterRefusal {
    /// The leader refuses the change.
    #[error(transparent)]
    Change(#[from] ChangeRefusal),
    /// The router cannot go on alone.
    #[error(transparent)]
    Reform(#[from] ReformRefusal),
    /// The router cannot go on from members alone.
    #[error(transparent)]
    Refound(#[from] RefoundRefusal),
    /// A generation is about to begin here.
    #[error("a generation of the domain is about to begin here: ask again when it has")]
    GenerationBegins,
    /// Only routers ask for changes of the routers.
    #[error("this router does not belong to the domain, or was taken out of it")]
    NotRouter,
    /// No other router could lead now.
    #[error("no other router could lead now: none has all that this one has, and is heard")]
    NoSuccessor,
    /// Too many commands are under way.
    #[error("too many changes of the routers are under way")]
    TooMany,
}

/// Commands that have not ended.
#[derive(Debug, Default)]
pub(super) struct Commands {
    changes: Vec<(CommandId, Change)>,
    /// The one that has a generation begin here.
    pub(super) generation: Option<CommandId>,
    /// The one that has this router stop for a moment.
    pub(super) pause: Option<CommandId>,
    /// The leader that was asked last.
    leader: Option<ProcessId>,
    /// The leader is to be asked again.
    again: bool,
}

/// No more changes wait for the leader.
const CHANGES_MAX: usize = 64;

impl Commands {
    /// A change is about to be asked for.
    pub(super) fn begin(&mut self, id: CommandId, change: Change) -> Result<(), RouterRefusal> {
        if self.changes.len() >= CHANGES_MAX {
            return Err(RouterRefusal::TooMany);
        }
        self.changes.push((id, change));
        Ok(())
    }

    /// The changes to ask the leader for again, if that is due.
    pub(super) fn take_again(&mut self) -> Vec<Change> {
        if !std::mem::take(&mut self.again) {
            return Vec::new();
        }
        self.changes.iter().map(|(_, change)| change.clone()).collect()
    }

    pub(super) fn leader(&mut self, leader: Option<ProcessId>) {
        self.again |= leader.is_some() && leader != self.leader;
        self.leader = leader;
    }

    pub(super) fn linked(&mut self, peer: ProcessId) {
        self.again |= self.leader == Some(peer);
    }

    /// These are the routers: the changes that have come about.
    pub(super) fn settle(&mut self, routers: &[Peer]) -> Vec<CommandId> {
        let is_router = |id: ProcessId| routers.iter().any(|router| router.id == id);
        let settled = |change: &Change| match change {
            Change::Add(peer) => is_router(peer.id),
            Change::Remove(router) => !is_router(*router),
        };
        self.changes.extract_if(.., |(_, change)| settled(change)).map(|(id, _)| id).collect()
    }

    /// The leader refuses this change: the command that asked for it, and how it ends.
    pub(super) fn refuse(
        &mut self,
        refused: &Change,
        why: ChangeRefusal,
    ) -> Option<(CommandId, Result<(), RouterRefusal>)> {
        let at = self.changes.iter().position(|(_, change)| change == refused)?;
        let (id, _) = self.changes.remove(at);
        let result = if why == ChangeRefusal::AlreadySo { Ok(()) } else { Err(why.into()) };
        Some((id, result))
    }

    /// This router is out, as one of the changes may have wanted: nothing is heard of the others here.
    pub(super) fn take_all(&mut self, me: ProcessId) -> Vec<(CommandId, Result<(), RouterRefusal>)> {
        let result =
            |change| if change == Change::Remove(me) { Ok(()) } else { Err(RouterRefusal::NotRouter) };
        self.changes.drain(..).map(|(id, change)| (id, result(change))).collect()
    }
}

#[cfg(test)]
mod tests;
