//! What a gateway knows of a request that has no answer, beside what its client says: the names of processes, and why.

use quorate_protocol::{
    ProcessId,
    rubberband::{ClientError, refusal},
};
use quorate_sql::backend::Fault;
use quorate_table::engine::Failure;

use super::{ADRIFT, requests::Requests};

impl Requests {
    /// What people call a process; its id once it is no member any more.
    fn name_of(&self, process: ProcessId) -> String {
        let config = self.config();
        let known = config.as_ref().and_then(|config| config.members.get(&process));
        known.map_or_else(|| process.to_string(), |member| format!("{} at {}", member.name, member.address))
    }

    /// That no ring is founded, if so.
    pub(super) fn unfounded(&self) -> Option<Fault> {
        let config = self.config()?;
        let (joined, wanted) = (config.storage.len(), config.wanted_storage);
        let about = format!("{joined} of {wanted} storage processes have joined");
        let error = ClientError::Rejected(refusal::NO_RING);
        config.ring.is_empty().then_some(Fault::Unanswered { error, about })
    }

    /// The fault of a request that failed so.
    pub(super) fn fault(&self, error: ClientError) -> Fault {
        let about = match error {
            ClientError::Rejected(refusal::NO_SUCH_TABLE) => return no_such_table(),
            ClientError::Rejected(refusal::TABLE_EXISTS) => {
                return Failure::new("42P07", "the table exists already").into();
            }
            ClientError::Rejected(refusal::NO_RING) => {
                return self.unfounded().unwrap_or_else(|| Fault::not_sent("the ring has just been founded"));
            }
            ClientError::NotSent | ClientError::MaybeApplied { .. } if self.is_adrift() => ADRIFT.to_owned(),
            ClientError::NotSent => format!("no router took it within {} ms", self.wait.as_millis()),
            ClientError::Unreached { process } | ClientError::Died { process, .. } => self.name_of(process),
            ClientError::MaybeApplied { .. }
            | ClientError::Rejected(_)
            | ClientError::Expired
            | ClientError::OtherStatement
            | ClientError::Forgotten { .. }
            | ClientError::Unanswered
            | ClientError::Broken
            | ClientError::NoRoom { .. }
            | ClientError::Untaken { .. } => String::new(),
        };
        Fault::Unanswered { error, about }
    }
}

pub(super) fn no_such_table() -> Fault {
    Failure::new("42P01", "the table does not exist any more").into()
}
