//! Whether a process can do its work, as far as it can tell alone.
//!
//! A router can: it hears the others. An application process hears routers only when there is something to deliver, so it
//! tells where the leader listens, for its host to ask.

use quorate_protocol::{
    ProcessId,
    ecast::Member,
    rubberband::{Storage, StorageState},
};
use thiserror::Error;

use crate::Node;

/// Why a process can not do its work now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Hindrance {
    /// It belongs to no domain yet.
    #[error("joining: the cluster has not taken this process in yet")]
    Joining,
    /// No router leads that it could reach. One that loses its majority leads no more.
    #[error("no router is known to lead a majority, or it is out of reach: nothing can be written")]
    Leaderless,
    /// It is a router no more.
    #[error("removed: this router votes no more")]
    Removed,
    /// It is a gateway, and this storage process serves without its reaching it.
    #[error("out of reach: this gateway has no link to {0}, which serves; reads that need it fail")]
    Unreached(ProcessId),
    /// The others have given up on it.
    #[error("unreachable: the others do not hear this process, and refuse writes to what it holds alone")]
    Unreachable,
}

impl Node {
    /// Why it can not do its work, if it can not.
    pub fn hindrance(&self) -> Option<Hindrance> {
        match self {
            Node::Router(router) => {
                let log = router.log().status();
                match log.role {
                    "joining" => Some(Hindrance::Joining),
                    "removed" => Some(Hindrance::Removed),
                    "leader" => None,
                    "follower" if log.leader.is_some() => None,
                    _ => Some(Hindrance::Leaderless),
                }
            }
            Node::Storage(storage) => member(storage.config().is_some(), storage.member())
                .or_else(|| unreachable(storage).then_some(Hindrance::Unreachable)),
            Node::Super(superior) => member(superior.config().is_some(), superior.member()),
            Node::Client(client) => member(client.config().is_some(), client.member())
                .or_else(|| client.unreached().next().map(Hindrance::Unreached)),
        }
    }

    /// The same for people, with names and addresses.
    pub fn hindrance_named(&self) -> Option<String> {
        let hindrance = self.hindrance()?;
        match (hindrance, self) {
            (Hindrance::Unreached(_), Node::Client(client)) => {
                let named = |process: ProcessId| {
                    let known = client.config().and_then(|config| config.members.get(&process));
                    known.map_or_else(
                        || process.to_string(),
                        |member| format!("{} ({process}) at {}", member.name, member.address),
                    )
                };
                let unreached: Vec<String> = client.unreached().map(named).collect();
                Some(format!(
                    "out of reach: this gateway has no link to {}: reads that need it fail, though it serves and the supers \
                     hear it",
                    unreached.join(", ")
                ))
            }
            _ => Some(hindrance.to_string()),
        }
    }

    /// Where the lead router listens, as an application process knows it.
    pub fn leader_address(&self) -> Option<&str> {
        match self {
            Node::Router(_) => None,
            Node::Storage(storage) => storage.member().leader_address(),
            Node::Super(superior) => superior.member().leader_address(),
            Node::Client(client) => client.member().leader_address(),
        }
    }
}

fn member(admitted: bool, member: &Member) -> Option<Hindrance> {
    match (admitted, member.leader_address()) {
        (false, _) => Some(Hindrance::Joining),
        (true, None) => Some(Hindrance::Leaderless),
        (true, Some(_)) => None,
    }
}

fn unreachable(storage: &Storage) -> bool {
    storage.status().state == Some(StorageState::Unreachable)
}
