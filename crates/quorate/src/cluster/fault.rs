//! The errors of unanswered requests, extended by facts that only the gateway knows: names of processes, and
//! reasons.

use quorate_protocol::{
    ProcessId,
    rubberband::{ClientError, refusal},
};
use quorate_sql::backend::OperationError;
use quorate_table::engine::Failure;

use super::requests::Requests;

impl Requests {
    /// Returns the name of a process for display, or its id if the process is no member.
    fn name_of(&self, process: ProcessId) -> String {
        let config = self.config();
        let known = config.as_ref().and_then(|config| config.members.get(&process));
        known.map_or_else(|| process.to_string(), |member| format!("{} at {}", member.name, member.address))
    }

    /// Returns the fault "no ring is founded", or `None` if a ring is founded.
    pub(super) fn unfounded(&self) -> Option<OperationError> {
        let config = self.config()?;
        let (joined, wanted) = (config.storage.len(), config.wanted_storage);
        let about = format!("{joined} of {wanted} storage processes have joined");
        let error = ClientError::Rejected(refusal::NO_RING);
        config.ring.is_empty().then_some(OperationError::Unanswered { error, about })
    }

    /// Returns the fault of a request that failed with this error.
    pub(super) fn fault(&self, error: ClientError) -> OperationError {
        let about = match error {
            ClientError::Rejected(refusal::NO_SUCH_TABLE) => return no_such_table(),
            ClientError::Rejected(refusal::TABLE_EXISTS) => {
                return Failure::new("42P07", "the table exists already").into();
            }
            ClientError::Rejected(refusal::NO_RING) => {
                return self.unfounded().unwrap_or_else(|| {
                    OperationError::not_sent("the ring was founded just now: send the request again")
                });
            }
            ClientError::NotSent | ClientError::MaybeApplied { .. } if self.is_adrift() => ADRIFT.to_owned(),
            ClientError::NotSent => format!("no router took the request within {} ms", self.wait.as_millis()),
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
        OperationError::Unanswered { error, about }
    }
}

pub(super) fn no_such_table() -> OperationError {
    Failure::table_ended().into()
}

pub(super) const ADRIFT: &str = "no majority of the routers leads, as far as this gateway can tell";
