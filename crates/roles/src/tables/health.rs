//! Checks whether a process can do its work, as far as the process can tell by itself.
//!
//! A router knows whether it can work, because it has links to the other routers. An application process
//! gets messages from routers only when there is something to deliver, so it cannot tell whether a router
//! leads. It only provides the leader's address, and its host asks the leader.

use quorate_protocol::{
    NotAdmitted, ProcessId,
    ecast::Member,
    paxos::StateKind,
    rubberband::{Config, Storage, StorageState},
};
use thiserror::Error;

use crate::tables::Process;

/// The reason why a process cannot do its work at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unhealthy {
    /// The process belongs to no domain yet.
    #[error("joining: the cluster has not yet accepted this process as a member")]
    Joining,
    /// No lead router is within reach. A router that loses its majority stops leading.
    #[error(
        "no router is known to lead a majority, or the lead router is out of reach: nothing can be written; if routers \
         are lost for good, `quorate router reform` continues without them"
    )]
    Leaderless,
    /// The process is no longer a router.
    #[error("removed: this process is no longer a router")]
    Removed,
    /// Fewer storage processes have joined so far than the founding of the ring needs.
    #[error(
        "the ring is not founded: {joined} of {wanted} storage processes have joined; until all have, no table can be \
         created, written or read"
    )]
    Unfounded {
        /// Number of storage processes that have joined.
        joined: usize,
        /// Number of storage processes with which the ring is founded.
        wanted: usize,
    },
    /// The process is a gateway, and has no link to this serving storage process.
    #[error("out of reach: this gateway has no link to {0}, so reads that need that process fail")]
    Unreached(ProcessId),
    /// The process is a storage process that the other processes consider unreachable.
    #[error(
        "unreachable: the other processes receive no messages from this process, and refuse writes to rows that \
         only this process holds"
    )]
    Unreachable,
}

impl Process {
    /// Returns the reason why the process cannot do its work. `None` if it can.
    pub fn hindrance(&self) -> Option<Unhealthy> {
        match self {
            Process::Router(router) => {
                let log = router.log().status();
                match log.state {
                    StateKind::Joining => Some(Unhealthy::Joining),
                    StateKind::Removed => Some(Unhealthy::Removed),
                    StateKind::Leader => None,
                    StateKind::Follower if log.leader.is_some() => None,
                    StateKind::Follower | StateKind::Candidate => Some(Unhealthy::Leaderless),
                }
            }
            Process::Storage(storage) => member(storage.config(), storage.member())
                .or_else(|| unreachable(storage).then_some(Unhealthy::Unreachable)),
            Process::Super(super_process) => member(super_process.config(), super_process.member()),
            Process::Client(client) => member(client.config(), client.member())
                .or_else(|| client.unreached().next().map(Unhealthy::Unreached)),
        }
    }

    /// Returns the reason in words for people, with names and addresses.
    pub fn unhealthy_text(&self) -> Option<String> {
        let hindrance = self.hindrance()?;
        match (hindrance, self) {
            (Unhealthy::Joining, role) => Some(match self.not_admitted() {
                None if matches!(role, Process::Router(_)) => format!(
                    "{hindrance}; if no router of the domain is left, `quorate router reform` rebuilds it from its members"
                ),
                None => hindrance.to_string(),
                Some(NotAdmitted::NodeInUse(by)) => format!(
                    "joining: process {} at {} has the same node number and is still a member; this process joins once that member is removed",
                    by.id, by.address
                ),
                Some(NotAdmitted::Terms(terms)) => {
                    format!("refused: the domain has the settings {terms:?}, and this process has others")
                }
                Some(why @ NotAdmitted::NoPart) => format!("refused: {why}"),
            }),
            (Unhealthy::Unreached(_), Process::Client(client)) => {
                let named = |process: ProcessId| {
                    let known = client.config().and_then(|config| config.members.get(&process));
                    known.map_or_else(
                        || process.to_string(),
                        |member| format!("{} ({process}) at {}", member.name, member.address),
                    )
                };
                let unreached: Vec<String> = client.unreached().map(named).collect();
                Some(format!(
                    "out of reach: this gateway has no link to {}, although the supers have one; \
                     reads that need that link fail",
                    unreached.join(", ")
                ))
            }
            _ => Some(hindrance.to_string()),
        }
    }

    /// Returns the address of the lead router, if this is an application process that knows it. Routers
    /// return `None`.
    pub fn leader_address(&self) -> Option<&str> {
        match self {
            Process::Router(_) => None,
            Process::Storage(storage) => storage.member().leader_address(),
            Process::Super(super_process) => super_process.member().leader_address(),
            Process::Client(client) => client.member().leader_address(),
        }
    }
}

fn member(config: Option<&Config>, member: &Member) -> Option<Unhealthy> {
    match (config, member.leader_address()) {
        (None, _) => Some(Unhealthy::Joining),
        (Some(_), None) => Some(Unhealthy::Leaderless),
        (Some(config), Some(_)) if config.ring.is_empty() => Some(Unhealthy::Unfounded {
            joined: config.storage.len(),
            wanted: config.wanted_storage as usize,
        }),
        (Some(_), Some(_)) => None,
    }
}

fn unreachable(storage: &Storage) -> bool {
    storage.status().state == Some(StorageState::Unreachable)
}
