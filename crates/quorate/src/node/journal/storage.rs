//! The recovery of a storage process.

use quorate_protocol::{
    Peer,
    rubberband::{Storage, StorageSettings, Unrecoverable},
};
use tracing::warn;

use super::Journal;
use crate::error::Error;

impl Journal {
    /// Rebuilds the storage process, if the journal holds its records. Also returns the journal with which to
    /// continue. If the process had rows that are not in the journal, a new process continues, with the
    /// journal that `begin_new` makes.
    pub(crate) fn storage(
        mut self,
        address: &str,
        settings: StorageSettings,
        begin_new: impl FnOnce() -> Result<Journal, Error>,
    ) -> Result<(Journal, Option<Storage>), Error> {
        let me = Peer { id: self.process(), address: address.to_owned() };
        let (generation, records) = (self.generation()?, std::mem::take(&mut self.records));
        match Storage::recover(me, settings, generation, records) {
            Ok(storage) => Ok((self, storage)),
            Err(why @ (Unrecoverable::Unfinished | Unrecoverable::Missing)) => {
                warn!(
                    %why,
                    "this storage process cannot go on from its journal: a new process begins, and joins"
                );
                // The old journal holds the lock, which the new journal needs.
                drop(self);
                Ok((begin_new()?, None))
            }
            Err(Unrecoverable::Moved(known)) => Err(self.moved(&known, address)),
            Err(error) => Err(Error::start(format!("{}: {error}", self.place.display()))),
        }
    }
}
