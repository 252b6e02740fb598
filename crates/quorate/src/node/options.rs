//! The options of a node's capabilities. The builder sets them.

#[cfg(feature = "groups")]
pub(super) mod groups;
#[cfg(feature = "services")]
pub(super) mod services;
#[cfg(feature = "tables")]
pub(super) mod tables;

use crate::error::Error;

/// The options of each capability of the library.
#[derive(Clone, Debug, Default)]
pub(super) struct CapabilityOptions {
    #[cfg(feature = "tables")]
    pub(super) tables: tables::TableOptions,
    #[cfg(feature = "groups")]
    pub(super) groups: groups::GroupOptions,
    #[cfg(feature = "services")]
    pub(super) services: services::ServiceOptions,
}

impl CapabilityOptions {
    /// Refuses values that are impossible.
    pub(super) fn check(&self) -> Result<(), Error> {
        #[cfg(feature = "groups")]
        self.groups.check()?;
        #[cfg(feature = "services")]
        self.services.check()?;
        Ok(())
    }
}
