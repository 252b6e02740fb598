//! What is asked of a super, what it tells, and what operators asked until it has come about or will not.
//!
//! An operator's command ends in exactly one [`SuperEvent::Ended`]: when what was submitted for it has an outcome in the
//! order.

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
    /// An operator says that an unreachable storage process will not return. Not to be given while there is a
    /// [`Super::hearer`](super::Super::hearer). Ends in [`SuperEvent::Ended`].
    DeclareLost {
        /// The asker's name for it.
        id: CommandId,
        /// Which.
        process: ProcessId,
    },
    /// An operator wants a standby in the place of this storage process, which becomes a standby itself. Ends in
    /// [`SuperEvent::Ended`].
    Replace {
        /// The asker's name for it.
        id: CommandId,
        /// Which.
        process: ProcessId,
    },
    /// Processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leave the cluster. Ends in [`SuperEvent::Ended`].
    Leave {
        /// The asker's name for it.
        id: CommandId,
    },
}

/// Events of a super.
#[derive(Clone, Debug)]
pub enum SuperEvent {
    /// A new configuration.
    Config(Arc<Config>),
    /// It suspects this process, and asks others.
    Suspected(ProcessId),
    /// It has this process removed, or called unreachable: others do not hear it either.
    Removing {
        /// The process.
        process: ProcessId,
        /// The others that do not hear it.
        witnesses: Vec<ProcessId>,
    },
    /// It has a standby take the place of a dead process.
    Replacing {
        /// The process that goes.
        old: ProcessId,
        /// The process that comes.
        new: ProcessId,
    },
    /// The end of a command: it has come about, or the reason why it does not.
    Ended {
        /// The asker's name for it.
        id: CommandId,
        /// The outcome.
        result: Result<(), SuperRefusal>,
    },
    /// This process is out and must stop; it may come back as a new one.
    Wedged,
}

/// Why what an operator asked of a super does not come about, or not for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SuperRefusal {
    /// It is no member of the domain.
    #[error("this super has not joined yet")]
    NotJoined,
    /// The process holds nothing, no standby is well, or a range has nobody to copy from.
    #[error(
        "no standby can take its place now: it holds nothing, no standby is well, or a range has no complete replica"
    )]
    NoReplacement,
    /// It was ordered behind something with which it does not agree.
    #[error(
        "something else was ordered first, and this has no effect any more: look at the status, and ask again"
    )]
    Overtaken,
    /// All that were to confirm it have failed.
    #[error("it may have come about: all processes that could tell have failed")]
    Unknown,
    /// It was not sent.
    #[error("it was not sent: no router leads")]
    NotSent,
    /// The super was cut off.
    #[error("this super was cut off")]
    Wedged,
    /// Too many commands are under way.
    #[error("too many commands are under way")]
    TooMany,
    /// It does not leave.
    #[error(transparent)]
    Leave(#[from] LeaveRefusal),
}

/// Commands that were submitted and have not ended, by the tokens of their submissions.
#[derive(Debug, Default)]
pub(super) struct Commands {
    submitted: BTreeMap<u64, CommandId>,
    last: u64,
}

/// Tokens of operators' commands have this bit and that of internal ones.
const OPERATOR: u64 = INTERNAL | 1 << 62;
/// No more wait for their outcome.
const COMMANDS_MAX: usize = 64;

impl Commands {
    /// A token for what is about to be submitted for a command.
    pub(super) fn begin(&mut self, id: CommandId) -> Result<u64, SuperRefusal> {
        if self.submitted.len() >= COMMANDS_MAX {
            return Err(SuperRefusal::TooMany);
        }
        self.last += 1;
        let token = OPERATOR | self.last;
        self.submitted.insert(token, id);
        Ok(token)
    }

    /// What was submitted has an outcome, or (none) was never sent.
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

    /// The super is out: nothing that was submitted has an outcome here.
    pub(super) fn take_all(&mut self) -> Vec<CommandId> {
        std::mem::take(&mut self.submitted).into_values().collect()
    }
}
