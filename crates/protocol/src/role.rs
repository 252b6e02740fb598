//! The roles of processes in a cluster, and their states. Configurations, messages and statuses share these
//! words.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The role of a process. Messages carry the role's index in this list; all other texts contain its name.
///
/// ```
/// use quorate_protocol::Role;
///
/// assert_eq!("Storage".parse(), Ok(Role::Storage));
/// assert_eq!(Role::Gateway.to_string(), "gateway");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Submits reads and writes: as a client of tables, or as an entry point for many users.
    Gateway,
    /// Holds ranges of tables, and executes reads and writes.
    Storage,
    /// Watches the other processes, reports suspicions and plans placement.
    Super,
    /// Orders and routes messages.
    Router,
    /// Keeps keys of maps.
    Cell,
}

/// The error of parsing a text that names no role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a role is gateway, storage, super, router or cell")]
pub struct NoRole;

impl Role {
    /// All roles.
    pub const ALL: [Role; 5] = [Role::Gateway, Role::Storage, Role::Super, Role::Router, Role::Cell];

    /// Returns the role's name.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway",
            Role::Storage => "storage",
            Role::Super => "super",
            Role::Router => "router",
            Role::Cell => "cell",
        }
    }

    /// Whether processes of this role are members of the domain of tables. Routers order messages for the
    /// members without being members themselves, and cells belong to maps.
    pub const fn is_of_tables(self) -> bool {
        match self {
            Role::Gateway | Role::Storage | Role::Super => true,
            Role::Router | Role::Cell => false,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Role {
    type Err = NoRole;

    /// Parses a role's name, in upper or lower case.
    fn from_str(word: &str) -> Result<Role, NoRole> {
        let named = |role: &Role| role.name().eq_ignore_ascii_case(word);
        Role::ALL.into_iter().find(named).ok_or(NoRole)
    }
}

/// The state of a process in its role, for its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The domain has not admitted the process yet.
    Joining,
    /// A router that leads.
    Leading,
    /// A router that follows a leader, or waits for one.
    Following,
    /// A router that is a candidate.
    Electing,
    /// A router that was removed, and does not vote.
    Removed,
    /// A storage process in reserve, which holds nothing.
    Standby,
    /// A storage process that copies the rows that it will hold.
    Receiving,
    /// The process does its work.
    Serving,
    /// A storage process that the other processes do not hear, and for which they wait.
    Unreachable,
    /// A storage process that keeps the rows of a former life until other processes have them.
    Keeping,
    /// A storage process that stopped for a moment, or that has returned and catches up.
    Away,
    /// A router of maps that knows no leader with a majority.
    Leaderless,
    /// A cell without keys: it joined when maps existed already.
    Spare,
    /// A cell that copies the data of the cell that it replaced.
    Arriving,
    /// The process runs, and does not answer.
    Silent,
    /// The process does not run, according to its supervisor.
    Down,
}

impl State {
    /// Returns the state's name.
    pub const fn name(self) -> &'static str {
        match self {
            State::Joining => "joining",
            State::Leading => "leading",
            State::Following => "following",
            State::Electing => "electing",
            State::Removed => "removed",
            State::Standby => "standby",
            State::Receiving => "receiving",
            State::Serving => "serving",
            State::Unreachable => "unreachable",
            State::Keeping => "keeping",
            State::Away => "away",
            State::Leaderless => "leaderless",
            State::Spare => "spare",
            State::Arriving => "arriving",
            State::Silent => "silent",
            State::Down => "down",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
