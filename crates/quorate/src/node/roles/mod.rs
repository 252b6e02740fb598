//! The roles that this program can take.

#[cfg(feature = "tables")]
pub(super) mod gateway;
mod router;
#[cfg(feature = "tables")]
pub(super) mod storage;
mod watcher;

use quorate_protocol::Role;

use super::{options::CapabilityOptions, role_work::RoleWork};
use crate::error::Error;

impl CapabilityOptions {
    /// Returns the work of this role.
    pub(super) fn work(&self, role: Role) -> Result<Box<dyn RoleWork>, Error> {
        match role {
            Role::Router => Ok(Box::new(router::RouterWork)),
            Role::Super => Ok(Box::new(watcher::SuperWork)),
            #[cfg(feature = "tables")]
            Role::Storage => Ok(Box::new(storage::StorageWork::new(self.tables.storage.clone()))),
            #[cfg(feature = "tables")]
            Role::Gateway => Ok(Box::new(gateway::GatewayWork::new(self.tables.write_wait))),
            #[cfg(not(feature = "tables"))]
            Role::Storage | Role::Gateway => Err(Error::start(format!(
                "this program was built without the feature `tables` of the crate `quorate`, which the role \
                 {role} needs"
            ))),
            Role::Cell => Err(Error::start("the role cell belongs to maps, and not to tables")),
        }
    }
}
