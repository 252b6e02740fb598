//! A super's commands and events, and the operators' commands that have not ended.
//!
//! A command ends in exactly one [`SuperEvent::Ended`], when the message submitted for it has an outcome in
//! the order.

use std::{collections::BTreeMap, sync::Arc};

use thiserror::Error;

use super::{
    Config,
    membership::{INTERNAL, LeaveRefusal},
};
use crate::{
    ecast::Outcome,
    id::{Peer, ProcessId},
    seam::CommandId,
};

/// Commands of a super.
#[derive(Clone, Debug)]
pub enum SuperCommand {
    /// An operator declares that an unreachable storage process will not return. Must not be given while
    /// [`Super::hearer`](super::Super::hearer) returns a process. Ends in [`SuperEvent::Ended`].
    DeclareLost {
        /// The caller's id of the command.
        id: CommandId,
        /// The unreachable process.
        process: ProcessId,
    },
    /// An operator wants a standby to take the place of this storage process, which becomes a standby itself.
    /// Ends in [`SuperEvent::Ended`].
    Replace {
        /// The caller's id of the command.
        id: CommandId,
        /// The process that makes way.
        process: ProcessId,
    },
    /// Names processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leaves the cluster. Ends in [`SuperEvent::Ended`].
    Leave {
        /// The caller's id of the command.
        id: CommandId,
    },
}

/// Events of a super.
#[derive(Clone, Debug)]
pub enum SuperEvent {
    /// A new configuration.
    Config(Arc<Config>),
    /// The super suspects this process, and asks other processes about it.
    Suspected(ProcessId),
    /// The super submits the removal of this process, because other processes do not hear it either. The
    /// process may become unreachable instead of being removed.
    Removing {
        /// The process.
        process: ProcessId,
        /// The witnesses, which do not hear the process either.
        witnesses: Vec<ProcessId>,
    },
    /// The super submits that a standby takes the place of a dead process.
    Replacing {
        /// The dead process.
        old: ProcessId,
        /// The standby.
        new: ProcessId,
    },
    /// A command has ended.
    Ended {
        /// The caller's id of the command.
        id: CommandId,
        /// The result: done, or the reason why not.
        result: Result<(), SuperRefusal>,
    },
    /// This process is no longer a member and must stop; it may come back under a new id.
    Wedged,
}

/// The reason why an operator's command had no effect, or may have had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SuperRefusal {
    /// This super is no member of the domain.
    #[error("this super has not joined the domain yet: try again later")]
    NotJoined,
    /// The process holds no place, no healthy standby exists, or a range has no source to copy from.
    #[error(
        "no standby can replace the process now: the process holds no range, no standby is well, or a range \
         has no complete replica"
    )]
    NoReplacement,
    /// Messages ordered earlier contradict the command.
    #[error(
        "another change was ordered first, so the command had no effect: look at `quorate status`, and give \
         the command again"
    )]
    Overtaken,
    /// All processes that could confirm the command have failed.
    #[error(
        "the command may have taken effect: all processes that could confirm that have failed; look at \
         `quorate status`"
    )]
    Unknown,
    /// The message for the command was not sent.
    #[error("the command was not sent, because no router leads: try again later")]
    NotSent,
    /// The super was cut off.
    #[error("this super was cut off from the domain: ask another super")]
    Wedged,
    /// The maximum number of commands is in progress.
    #[error("too many commands are in progress at this super: try again when some of them have ended")]
    TooMany,
    /// The super does not leave the domain, for this reason.
    #[error(transparent)]
    Leave(#[from] LeaveRefusal),
}

/// Commands in progress, by the tokens of their submissions.
#[derive(Debug, Default)]
pub(super) struct Commands {
    submitted: BTreeMap<u64, CommandId>,
    last: u64,
}

/// Bits that mark the tokens of operators' commands.
const OPERATOR: u64 = INTERNAL | 1 << 62;
/// Maximum number of commands in progress.
const COMMANDS_MAX: usize = 64;

impl Commands {
    /// Returns a token for the message of a command.
    ///
    /// # Errors
    ///
    /// [`SuperRefusal::TooMany`] if [`COMMANDS_MAX`] commands are in progress.
    pub(super) fn begin(&mut self, id: CommandId) -> Result<u64, SuperRefusal> {
        if self.submitted.len() >= COMMANDS_MAX {
            return Err(SuperRefusal::TooMany);
        }
        self.last += 1;
        let token = OPERATOR | self.last;
        self.submitted.insert(token, id);
        Ok(token)
    }

    /// Ends the command with this token. `outcome` is the outcome of the command's message, `None` if the
    /// message was never sent.
    pub(super) fn end(
        &mut self,
        token: u64,
        outcome: Option<Outcome>,
    ) -> Option<(CommandId, Result<(), SuperRefusal>)> {
        let id = self.submitted.remove(&token)?;
        let result = match outcome {
            Some(Outcome::Stable) => Ok(()),
            Some(Outcome::Rejected(_)) => Err(SuperRefusal::Overtaken),
            Some(Outcome::MaybeApplied) => Err(SuperRefusal::Unknown),
            Some(Outcome::Wedged) => Err(SuperRefusal::Wedged),
            None => Err(SuperRefusal::NotSent),
        };
        Some((id, result))
    }

    /// Takes all commands, because the super is no longer a member and gets no outcome of their messages.
    pub(super) fn take_all(&mut self) -> Vec<CommandId> {
        std::mem::take(&mut self.submitted).into_values().collect()
    }
}
