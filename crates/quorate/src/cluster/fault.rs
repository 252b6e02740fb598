//! The faults that a gateway's user is told, with the names of the processes in them.

use quorate_protocol::{
    ProcessId,
    rubberband::{ClientError, refusal},
};
use quorate_sql::backend::Fault;
use quorate_table::engine::Failure;

use super::{ADRIFT, ClusterBackend};

impl ClusterBackend {
    /// What people call a process; its id once it is no member any more.
    pub(super) fn name_of(&self, process: ProcessId) -> String {
        let config = self.requests.config();
        let known = config.as_ref().and_then(|config| config.members.get(&process));
        known.map_or_else(|| process.to_string(), |member| format!("{} at {}", member.name, member.address))
    }

    pub(super) fn fault(&self, error: ClientError) -> Fault {
        match error {
            ClientError::NotSent if self.requests.is_adrift() => Fault::NotSent { reason: ADRIFT.to_owned() },
            ClientError::NotSent => {
                Fault::NotSent { reason: format!("no router took it within {} ms", self.wait.as_millis()) }
            }
            ClientError::MaybeApplied { request } => {
                let reason = self.requests.is_adrift().then_some(ADRIFT);
                Fault::MaybeApplied { id: request, reason }
            }
            ClientError::Expired => Fault::Expired,
            ClientError::OtherStatement => Fault::OtherStatement,
            ClientError::Unreached { process } => Fault::Unreached { process: self.name_of(process) },
            ClientError::Died { process, again } => Fault::Died { process: self.name_of(process), again },
            ClientError::Forgotten { applied } => Fault::Forgotten { applied },
            ClientError::NoRoom { .. } => no_room(),
            ClientError::Untaken { .. } => untaken(),
            ClientError::Unanswered => {
                Fault::Retry { reason: String::from("no replica was heard to be at it in time") }
            }
            ClientError::Rejected(why) => match why {
                refusal::NO_SUCH_TABLE => {
                    Fault::Failed(Failure::new("42P01", "the table does not exist any more"))
                }
                refusal::TABLE_EXISTS => Fault::Failed(Failure::new("42P07", "the table exists already")),
                refusal::NO_RING => self
                    .unfounded()
                    .unwrap_or(Fault::Retry { reason: String::from("the ring has just been founded") }),
                why => match refusal::as_range(why) {
                    Some(low) => Fault::Unavailable { range: format!("from {low:#018x}") },
                    None => Fault::Rejected { range: format!("(reason {})", why.0) },
                },
            },
        }
    }
}

/// Too much is held for others.
pub(super) fn no_room() -> Fault {
    let what =
        "out of memory: a storage process holds no more results for clients that are slow to take theirs";
    let detail = "Results with ORDER BY, DISTINCT or GROUP BY are held whole until they are taken. Ask again later, ask for less, or \
                  raise engine.held_bytes_max of the storage processes.";
    Failure::new("53200", what).with_detail(detail).into()
}

/// A result was not taken in time.
pub(super) fn untaken() -> Fault {
    let what = "canceling statement because its result was not taken in time";
    let detail = "A storage process drops the rest of a result of which its client takes nothing for engine.held_max_ms.";
    Failure::new("57014", what).with_detail(detail).into()
}
