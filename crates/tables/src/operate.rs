//! What an operator may ask of a process, beyond what the processes do by themselves.
//!
//! Each is handed to the role that can bring it about, and ends in one [`Event::Operated`](crate::Event::Operated) once it has
//! come about or will not. What cannot come about is refused at once, in words for the operator.

use quorate_protocol::{
    CommandId, Generation, Incarnation, Peer, ProcessId,
    ecast::RouterCommand,
    paxos::Change,
    rubberband::{ClientCommand, Config, StorageCommand, StorageState, SuperCommand},
    time::Duration,
};
use serde::{Deserialize, Serialize};

use crate::{Command, Process};

/// Something that only an operator decides. Processes are named as in a status (`3.1f2e3d4c`), members also by their
/// names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// To a router: this process, which runs and joins, becomes a router, beyond the wanted number too.
    AddRouter {
        /// Its node and incarnation.
        process: (u64, u128),
        /// Its address.
        address: String,
    },
    /// To a router: this one is a router no more.
    RemoveRouter {
        /// Which.
        process: String,
    },
    /// To a router: go on without a majority, as the next generation.
    Reform {
        /// How long members may take to say what they have.
        patience_ms: u64,
    },
    /// To a router that has just started: no router is left, go on from the members, as the next generation.
    Refound {
        /// How long members may take to say what they have.
        patience_ms: u64,
        /// The latest generation that one of them is in: its number, and which life of a router it began with.
        before: (u32, u128),
        /// All members but those that are gone for good: node, incarnation, and where each listens.
        members: Vec<(u64, u128, String)>,
    },
    /// To a super: this unreachable storage process will not return.
    DeclareLost {
        /// Which.
        process: String,
    },
    /// To a super: a standby takes the place of this storage process.
    Replace {
        /// Which.
        process: String,
    },
}

impl Process {
    /// The command that has the process leave, or why it cannot.
    pub(crate) fn leave(&self, id: CommandId) -> Result<Command, String> {
        match self {
            // Its set changes one at a time, and by the word of the others.
            Process::Router(_) => Err(String::from("a router does not leave: have another one remove it")),
            Process::Storage(_) => Ok(Command::Storage(StorageCommand::Leave { id })),
            Process::Super(_) => Ok(Command::Super(SuperCommand::Leave { id })),
            Process::Client(_) => Ok(Command::Client(ClientCommand::Leave { id })),
        }
    }

    /// The command that has the process stop for a moment. One that has nothing to come back to leaves.
    pub(crate) fn pause(&self, id: CommandId) -> Command {
        match self {
            Process::Router(_) => Command::Router(RouterCommand::Pause { id }),
            Process::Storage(_) => Command::Storage(StorageCommand::Pause { id }),
            Process::Super(_) => Command::Super(SuperCommand::Leave { id }),
            Process::Client(_) => Command::Client(ClientCommand::Leave { id }),
        }
    }

    /// The command that brings an operation about, or why it cannot be.
    pub(crate) fn plan(&self, id: CommandId, operation: Operation) -> Result<Command, String> {
        let change = |change| Ok(Command::Router(RouterCommand::Change { id, change }));
        match (self, operation) {
            (Process::Router(_), Operation::AddRouter { process: (node, incarnation), address }) => {
                let id = ProcessId { node, incarnation: Incarnation(incarnation) };
                change(Change::Add(Peer { id, address }))
            }
            (Process::Router(router), Operation::RemoveRouter { process }) => {
                let routers = router.log().members();
                match routers.iter().find(|router| router.id.to_string() == process) {
                    Some(router) => change(Change::Remove(router.id)),
                    None => Err(format!("{process} is no router of this domain")),
                }
            }
            (Process::Router(_), Operation::Reform { patience_ms }) => {
                let patience = Duration::from_millis(patience_ms);
                Ok(Command::Router(RouterCommand::Reform { id, patience }))
            }
            (Process::Router(_), Operation::Refound { patience_ms, before: (number, survivor), members }) => {
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
            (Process::Super(superior), Operation::DeclareLost { process }) => {
                let config = superior.config().ok_or("this super has not joined yet")?;
                let waited_for = |id: &ProcessId| config.is_waited_for(*id);
                let Some(lost) = storage(config, &process)?.into_iter().find(waited_for) else {
                    return Err(format!(
                        "{process} is not unreachable: others hold what it holds, and nothing need be declared lost"
                    ));
                };
                match superior.hearer(lost) {
                    Some(hearer) => Err(format!(
                        "{process} is not lost: {hearer} hears it, and it is back once the routers reach it"
                    )),
                    None => Ok(Command::Super(SuperCommand::DeclareLost { id, process: lost })),
                }
            }
            (Process::Super(superior), Operation::Replace { process }) => {
                let config = superior.config().ok_or("this super has not joined yet")?;
                let on_ring = |id: &ProcessId| config.ring.values().any(|holder| holder == id);
                let Some(old) = storage(config, &process)?.into_iter().find(on_ring) else {
                    return Err(format!("{process} is a standby: it holds nothing"));
                };
                if config.storage.get(&old) == Some(&StorageState::Unreachable) {
                    return Err(format!(
                        "{process} is unreachable: declare it lost, and a standby takes its place"
                    ));
                }
                if !config.storage.values().any(|state| *state == StorageState::Standby) {
                    return Err(String::from("there is no standby that could take its place: start one"));
                }
                Ok(Command::Super(SuperCommand::Replace { id, process: old }))
            }
            (Process::Router(_), _) => Err(String::from("this is a router: ask a super")),
            (Process::Super(_), _) => Err(String::from("this is a super: ask a router")),
            (_, _) => Err(String::from("ask a router or a super")),
        }
    }
}

/// The storage processes of this name, which may have several lives, or shown so; at least one.
fn storage(config: &Config, shown: &str) -> Result<Vec<ProcessId>, String> {
    let storage = config.members.iter().filter(|(process, _)| config.storage.contains_key(process));
    let named = storage.filter(|(process, info)| info.name == shown || process.to_string() == shown);
    let found: Vec<ProcessId> = named.map(|(&process, _)| process).collect();
    if found.is_empty() {
        return Err(format!("no storage process is called {shown}, or it is gone already and needs nothing"));
    }
    Ok(found)
}
