//! Turns an operator's operations into commands for the process that receives them.

use quorate_protocol::{
    CommandId, Generation, Incarnation, Peer, ProcessId,
    ecast::RouterCommand,
    paxos::Change,
    rubberband::{ClientCommand, Config, StorageCommand, StorageState, SuperCommand},
    time::Duration,
};

use crate::tables::{Command, Process, operate::AdminOperation};

impl Process {
    /// Returns the command that makes the process leave, or the reason why the process cannot leave.
    pub(crate) fn leave(&self, id: CommandId) -> Result<Command, String> {
        match self {
            // The membership of routers changes by one router at a time, and the other routers decide which
            // router leaves.
            Process::Router(_) => Err(String::from(
                "a router cannot remove itself: have another router remove it, with `quorate router remove`",
            )),
            Process::Storage(_) => Ok(Command::Storage(StorageCommand::Leave { id })),
            Process::Super(_) => Ok(Command::Super(SuperCommand::Leave { id })),
            Process::Client(_) => Ok(Command::Client(ClientCommand::Leave { id })),
        }
    }

    /// Returns the command that prepares a short stop. A super and a client have no state to come back to, so
    /// they leave instead.
    pub(crate) fn pause(&self, id: CommandId) -> Command {
        match self {
            Process::Router(_) => Command::Router(RouterCommand::Pause { id }),
            Process::Storage(_) => Command::Storage(StorageCommand::Pause { id }),
            Process::Super(_) => Command::Super(SuperCommand::Leave { id }),
            Process::Client(_) => Command::Client(ClientCommand::Leave { id }),
        }
    }

    /// Returns the command that carries out an operation, or the reason why the operation is impossible.
    pub(crate) fn plan(&self, id: CommandId, operation: AdminOperation) -> Result<Command, String> {
        let change = |change| Ok(Command::Router(RouterCommand::Change { id, change }));
        match (self, operation) {
            (Process::Router(_), AdminOperation::AddRouter { process: (node, incarnation), address }) => {
                let id = ProcessId { node, incarnation: Incarnation(incarnation) };
                change(Change::Add(Peer { id, address }))
            }
            (Process::Router(router), AdminOperation::RemoveRouter { process }) => {
                let routers = router.log().members();
                match routers.iter().find(|router| router.id.to_string() == process) {
                    Some(router) => change(Change::Remove(router.id)),
                    None => Err(format!("{process} is not a router of this domain")),
                }
            }
            (Process::Router(_), AdminOperation::Reform { patience_ms }) => {
                let patience = Duration::from_millis(patience_ms);
                Ok(Command::Router(RouterCommand::Reform { id, patience }))
            }
            (
                Process::Router(_),
                AdminOperation::Refound { patience_ms, before: (number, survivor), members },
            ) => {
                let peer = |(node, incarnation, address)| Peer {
                    id: ProcessId { node, incarnation: Incarnation(incarnation) },
                    address,
                };
                Ok(Command::Router(RouterCommand::Refound {
                    id,
                    before: Generation { number, survivor: Incarnation(survivor) },
                    members: members.into_iter().map(peer).collect(),
                    patience: Duration::from_millis(patience_ms),
                }))
            }
            (Process::Super(super_process), AdminOperation::DeclareLost { process }) => {
                let config = super_process.config().ok_or("this super has not joined the cluster yet")?;
                let waited_for = |id: &ProcessId| config.is_waited_for(*id);
                let Some(lost) = storage(config, &process)?.into_iter().find(waited_for) else {
                    return Err(format!(
                        "{process} is not unreachable, or other processes hold all of its rows: it need not be declared lost"
                    ));
                };
                match super_process.hearer(lost) {
                    Some(hearer) => Err(format!(
                        "{process} is not lost: {hearer} receives its messages, and it serves again once the routers reach it"
                    )),
                    None => Ok(Command::Super(SuperCommand::DeclareLost { id, process: lost })),
                }
            }
            (Process::Super(super_process), AdminOperation::Replace { process }) => {
                let config = super_process.config().ok_or("this super has not joined the cluster yet")?;
                let on_ring = |id: &ProcessId| config.ring.values().any(|holder| holder == id);
                let Some(old) = storage(config, &process)?.into_iter().find(on_ring) else {
                    return Err(format!("{process} is a standby without rows and need not be replaced"));
                };
                if config.storage.get(&old) == Some(&StorageState::Unreachable) {
                    return Err(format!(
                        "{process} is unreachable and cannot be copied: declare it lost, and a standby takes its place"
                    ));
                }
                if !config.storage.values().any(|state| *state == StorageState::Standby) {
                    return Err(format!(
                        "there is no standby that could take the place of {process}: start another storage process"
                    ));
                }
                Ok(Command::Super(SuperCommand::Replace { id, process: old }))
            }
            (Process::Router(_), _) => Err(String::from(
                "this process is a router, and only a super can carry out this operation: send it to a super",
            )),
            (Process::Super(_), _) => Err(String::from(
                "this process is a super, and only a router can carry out this operation: send it to a router",
            )),
            (_, _) => Err(String::from(
                "only a router or a super can carry out this operation, and this process is neither: send it to a router or a super",
            )),
        }
    }
}

/// Returns the storage processes with this name or id. A name may belong to several incarnations. Fails if no
/// storage process has this name or id.
pub(super) fn storage(config: &Config, shown: &str) -> Result<Vec<ProcessId>, String> {
    let storage = config.members.iter().filter(|(process, _)| config.storage.contains_key(process));
    let named = storage.filter(|(process, info)| info.name == shown || process.to_string() == shown);
    let found: Vec<ProcessId> = named.map(|(&process, _)| process).collect();
    if found.is_empty() {
        return Err(format!(
            "no storage process is called {shown}; if the process was removed before, nothing is left to do"
        ));
    }
    Ok(found)
}
