//! The capabilities of a node: its access to tables, its groups and its services. A program chooses them by
//! features of the crate. Each capability is empty until the program uses it.

#[cfg(feature = "services")]
pub(super) mod hosting;

#[cfg(feature = "tables")]
use std::sync::Mutex;
#[cfg(feature = "groups")]
use std::sync::OnceLock;

use crate::error::Error;
#[cfg(feature = "groups")]
use crate::group::groups::Groups;

/// The state of each capability of a node.
#[derive(Default)]
pub(super) struct Capabilities {
    /// The lock that a thread holds while it starts the client of tables, because the start waits for other
    /// processes.
    #[cfg(feature = "tables")]
    pub(super) starting: Mutex<()>,
    /// The groups, from their first use on.
    #[cfg(feature = "groups")]
    pub(super) groups: OnceLock<Groups>,
    #[cfg(feature = "services")]
    pub(super) services: hosting::Hosting,
}

impl Capabilities {
    /// Ends the node's replicas of services, as if they had been killed.
    pub(super) fn end_hosting(&self) {
        #[cfg(feature = "services")]
        self.services.end();
    }

    /// Leaves all groups. The error means that a group's state was not saved.
    pub(super) async fn leave_groups(&self) -> Result<(), Error> {
        #[cfg(feature = "groups")]
        if let Some(groups) = self.groups.get() {
            groups.clone().leave().await?;
        }
        Ok(())
    }

    /// Ends the node's replicas, and its members of groups, as if they had been killed.
    pub(super) fn abandon(&self) {
        self.end_hosting();
        #[cfg(feature = "groups")]
        if let Some(groups) = self.groups.get() {
            groups.clone().abandon();
        }
    }
}
