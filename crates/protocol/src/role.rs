//! What processes do in a cluster, and what they are in that. The words are the same in configurations, messages and statuses.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What a process does. In messages it is its place in this list, elsewhere its word.
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
    /// Submits reads and writes for users: a client of tables, or a door for many.
    Gateway,
    /// Holds ranges of tables and executes.
    Storage,
    /// Watches the others, reports suspicions and plans placement.
    Super,
    /// Orders and routes.
    Router,
    /// Keeps keys of maps.
    Cell,
}

/// A word that names no role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a role is gateway, storage, super, router or cell")]
pub struct NoRole;

impl Role {
    /// All of them.
    pub const ALL: [Role; 5] = [Role::Gateway, Role::Storage, Role::Super, Role::Router, Role::Cell];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway",
            Role::Storage => "storage",
            Role::Super => "super",
            Role::Router => "router",
            Role::Cell => "cell",
        }
    }

    /// Whether members of tables have it. Routers order for them and are no members; cells are of maps.
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

    /// Reads the word, in any case.
    fn from_str(word: &str) -> Result<Role, NoRole> {
        let named = |role: &Role| role.name().eq_ignore_ascii_case(word);
        Role::ALL.into_iter().find(named).ok_or(NoRole)
    }
}

/// What a process is in its role, as its status shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The domain has not taken it in yet.
    Joining,
    /// A router that leads.
    Leading,
    /// A router that follows a leader, or waits for one.
    Following,
    /// A router that would lead.
    Electing,
    /// A router that was taken out, and votes no more.
    Removed,
    /// A storage process in reserve, which holds nothing.
    Standby,
    /// A storage process that copies the rows that it is to hold.
    Receiving,
    /// It does its work.
    Serving,
    /// A storage process that the others do not hear and wait for.
    Unreachable,
    /// A storage process that keeps the rows of a former life until others have them.
    Keeping,
    /// A storage process that stopped for a moment, or is back and catches up.
    Away,
    /// A router of maps that knows no leader with a majority.
    Leaderless,
    /// A cell without keys: it joined when there were maps already.
    Spare,
    /// A cell that copies what the cell had whose place it took.
    Arriving,
    /// It runs, and does not answer.
    Silent,
    /// It does not run, as its supervisor says.
    Down,
}

impl State {
    /// The word for it.
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
