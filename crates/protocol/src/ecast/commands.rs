//! Commands and events of a router, and the operators' commands that have not ended.
//!
//! **Promise.** Each operator's command ends in exactly one [`RouterEvent::Ended`], provided that the process
//! runs and the routers elect a leader. Two contradicting commands each get an answer of their own.
//!
//! The leader changes the routers. It refuses a change, or the change appears in the log. A leader that
//! resigns forgets the requests, and a link that breaks loses them. So the router sends the request again, to
//! the next leader, or to the same leader on the next link. The repetition is harmless: if the change has
//! happened already, the leader's answer says so, and ends the command.

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
    /// Names processes outside the known routers. While this router joins, it asks them for admission;
    /// afterwards it opens a link to each of them for a short time.
    Seeds(Vec<Peer>),
    /// Makes a running, joining process a router, even beyond the wanted number, or removes a router. Ends in
    /// [`RouterEvent::Ended`].
    Change {
        /// The caller's id of the command.
        id: CommandId,
        /// The change.
        change: Change,
    },
    /// Prepares this router to stop before a restart: if it leads, another router takes over. Ends in
    /// [`RouterEvent::Ended`] once another router leads.
    Pause {
        /// The caller's id of the command.
        id: CommandId,
    },
    /// Begins the next generation with this router alone, because an operator says that a majority of the
    /// routers is gone for good ([`Reformed`]). Ends in [`RouterEvent::Ended`], after
    /// [`RouterEvent::Reformed`] if the generation begins.
    Reform {
        /// The caller's id of the command.
        id: CommandId,
        /// Time that members have to report their deliveries.
        patience: Duration,
    },
    /// Begins the next generation from members alone, because an operator says that all routers are gone for
    /// good. Only for a router that has just started and is joining. Ends like [`RouterCommand::Reform`].
    Refound {
        /// The caller's id of the command.
        id: CommandId,
        /// The latest generation of any member.
        before: Generation,
        /// All members except those that are gone for good; more than half of them must follow.
        members: Vec<Peer>,
        /// Time that members have to report their deliveries.
        patience: Duration,
    },
}

/// Events of a router.
#[derive(Clone, Debug)]
pub enum RouterEvent<C> {
    /// The leader, as far as this router knows.
    Leader(Option<ProcessId>),
    /// The new set of routers.
    Routers(Vec<Peer>),
    /// The application's new configuration, and its position.
    Config(Position, Arc<C>),
    /// This router was removed from the set: the process must stop, and may come back under a new id.
    Removed,
    /// A generation began with this router.
    Reformed(Reformed),
    /// The end of an operator's command.
    Ended {
        /// The caller's id of the command.
        id: CommandId,
        /// The result: done, or the reason why not.
        result: Result<(), RouterRefusal>,
    },
    /// A snapshot from another router did not decode: the process must stop.
    Corrupt(String),
}

/// The reason why an operator's command to a router had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RouterRefusal {
    /// The leader refuses the change.
    #[error(transparent)]
    Change(#[from] ChangeRefusal),
    /// The router cannot continue alone.
    #[error(transparent)]
    Reform(#[from] ReformRefusal),
    /// The router cannot continue from members alone.
    #[error(transparent)]
    Refound(#[from] RefoundRefusal),
    /// This router is already about to begin a generation.
    #[error(
        "this router is about to begin a new generation of the domain: try again when the generation has \
         begun"
    )]
    GenerationBegins,
    /// Only a router may change the routers.
    #[error("this router is not a member of the domain, or was removed from the domain: ask another router")]
    NotRouter,
    /// No other router in reach has the whole log, so no router can take over.
    #[error(
        "no other router can take over now: no router that this router hears has the whole log; try again \
         later"
    )]
    NoSuccessor,
    /// The maximum number of changes is in progress.
    #[error("too many changes of the set of routers are in progress: try again when some of them have ended")]
    TooMany,
}

/// Operators' commands that have not ended.
#[derive(Debug, Default)]
pub(super) struct Commands {
    changes: Vec<(CommandId, Change)>,
    /// The command to begin a generation with this router.
    pub(super) generation: Option<CommandId>,
    /// The command to pause this router.
    pub(super) pause: Option<CommandId>,
    /// The leader from which this router last requested the changes.
    leader: Option<ProcessId>,
    /// Whether this router must request the changes from the leader again.
    again: bool,
}

/// Maximum number of changes that wait for the leader.
const CHANGES_MAX: usize = 64;

impl Commands {
    /// Adds a change that is about to be requested.
    ///
    /// # Errors
    ///
    /// [`RouterRefusal::TooMany`] if [`CHANGES_MAX`] changes wait.
    pub(super) fn begin(&mut self, id: CommandId, change: Change) -> Result<(), RouterRefusal> {
        if self.changes.len() >= CHANGES_MAX {
            return Err(RouterRefusal::TooMany);
        }
        self.changes.push((id, change));
        Ok(())
    }

    /// Takes the changes to request again, if a new request is due.
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

    /// Ends the changes that the present set of routers shows as done. Returns their commands.
    pub(super) fn settle(&mut self, routers: &[Peer]) -> Vec<CommandId> {
        let is_router = |id: ProcessId| routers.iter().any(|router| router.id == id);
        let settled = |change: &Change| match change {
            Change::Add(peer) => is_router(peer.id),
            Change::Remove(router) => !is_router(*router),
        };
        self.changes.extract_if(.., |(_, change)| settled(change)).map(|(id, _)| id).collect()
    }

    /// Ends the command for a change that the leader refuses. Returns the command and its result.
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

    /// Ends all changes, because this router was removed and hears nothing of the other routers any longer. A
    /// change that removes this router has succeeded.
    pub(super) fn take_all(&mut self, me: ProcessId) -> Vec<(CommandId, Result<(), RouterRefusal>)> {
        let result =
            |change| if change == Change::Remove(me) { Ok(()) } else { Err(RouterRefusal::NotRouter) };
        self.changes.drain(..).map(|(id, change)| (id, result(change))).collect()
    }
}

#[cfg(test)]
mod tests;
