//! Whether a process can do its work, as far as it can tell alone.
//!
//! A router can: it hears the others. An application process hears routers only when there is something to deliver, so it
//! tells where the leader listens, for its host to ask.

use quorate_protocol::{
    NotAdmitted, ProcessId,
    ecast::Member,
    paxos::StateKind,
    rubberband::{Config, Storage, StorageState},
};
use thiserror::Error;

use crate::Process;

/// Why a process can not do its work now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Hindrance {
    /// It belongs to no domain yet.
    #[error("joining: the cluster has not taken this process in yet")]
    Joining,
    /// No router leads that it could reach. One that loses its majority leads no more.
    #[error(
        "no router is known to lead a majority, or it is out of reach: nothing can be written; if routers are gone for good, \
         `quorate router reform` goes on without them"
    )]
    Leaderless,
    /// It is a router no more.
    #[error("removed: this router votes no more")]
    Removed,
    /// Too few storage processes have ever joined.
    #[error(
        "the ring is not founded: {joined} of {wanted} storage processes have joined, and until then no table can be made, \
         written or read"
    )]
    Unfounded {
        /// How many wait.
        joined: usize,
        /// How many the domain was founded to begin with.
        wanted: usize,
    },
    /// It is a gateway, and this storage process serves without its reaching it.
    #[error("out of reach: this gateway has no link to {0}, which serves; reads that need it fail")]
    Unreached(ProcessId),
    /// The others have given up on it.
    #[error("unreachable: the others do not hear this process, and refuse writes to what it holds alone")]
    Unreachable,
}

impl Process {
    /// Why it can not do its work, if it can not.
    pub fn hindrance(&self) -> Option<Hindrance> {
        match self {
            Process::Router(router) => {
                let log = router.log().status();
                match log.state {
                    StateKind::Joining => Some(Hindrance::Joining),
                    StateKind::Removed => Some(Hindrance::Removed),
                    StateKind::Leader => None,
                    StateKind::Follower if log.leader.is_some() => None,
                    StateKind::Follower | StateKind::Candidate => Some(Hindrance::Leaderless),
                }
            }
            Process::Storage(storage) => member(storage.config(), storage.member())
                .or_else(|| unreachable(storage).then_some(Hindrance::Unreachable)),
            Process::Super(superior) => member(superior.config(), superior.member()),
            Process::Client(client) => member(client.config(), client.member())
                .or_else(|| client.unreached().next().map(Hindrance::Unreached)),
        }
    }

    /// The same for people, with names and addresses.
    pub fn hindrance_named(&self) -> Option<String> {
        let hindrance = self.hindrance()?;
        match (hindrance, self) {
            (Hindrance::Joining, role) => Some(match self.not_admitted() {
                None if matches!(role, Process::Router(_)) => format!(
                    "{hindrance}; if no router of the domain is left, `quorate router reform` has it go on from its members"
                ),
                None => hindrance.to_string(),
                Some(NotAdmitted::NodeInUse(by)) => format!(
                    "joining: another process of this one's node, {} at {}, belongs to the domain and is not suspected",
                    by.id, by.address
                ),
                Some(NotAdmitted::Terms(terms)) => {
                    format!("not taken in: the domain was founded with other terms, {terms:?}")
                }
            }),
            (Hindrance::Unreached(_), Process::Client(client)) => {
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
            Process::Router(_) => None,
            Process::Storage(storage) => storage.member().leader_address(),
            Process::Super(superior) => superior.member().leader_address(),
            Process::Client(client) => client.member().leader_address(),
        }
    }
}

fn member(config: Option<&Config>, member: &Member) -> Option<Hindrance> {
    match (config, member.leader_address()) {
        (None, _) => Some(Hindrance::Joining),
        (Some(_), None) => Some(Hindrance::Leaderless),
        (Some(config), Some(_)) if config.ring.is_empty() => Some(Hindrance::Unfounded {
            joined: config.storage.len(),
            wanted: config.wanted_storage as usize,
        }),
        (Some(_), Some(_)) => None,
    }
}

fn unreachable(storage: &Storage) -> bool {
    storage.status().state == Some(StorageState::Unreachable)
}
