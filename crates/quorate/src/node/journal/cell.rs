//! The recovery of a cell.

use quorate_protocol::{
    Peer,
    partial::{self, Resident},
};
use quorate_runtime::clock;
use tracing::{info, warn};

use super::Journal;
use crate::error::Error;

impl Journal {
    /// Rebuilds the cell, if the journal holds a cell's records. Also returns the journal with which to
    /// continue. If records are missing, a new process continues, with the journal that `begin_new` makes.
    pub(crate) fn cell(
        mut self,
        address: &str,
        settings: partial::Settings,
        begin_new: impl FnOnce() -> Result<Journal, Error>,
    ) -> Result<(Journal, Option<Resident>), Error> {
        let me = Peer { id: self.process(), address: address.to_owned() };
        let (generation, records) = (self.generation()?, std::mem::take(&mut self.records));
        let records = records.into_iter().map(|(_, record)| record).collect();
        let now = (clock::wall_offset(), clock::now());
        match Resident::recover(me, settings, generation, records, now) {
            Ok(Some(resident)) => {
                let keys = resident.cell().replica().keys();
                info!(
                    keys,
                    "the cell goes on from its journal; its hints for other cells are lost, and comparing \
                     brings the writes that those cells lack"
                );
                Ok((self, Some(resident)))
            }
            Ok(None) => Ok((self, None)),
            Err(why @ partial::Unrecoverable::Missing) => {
                warn!(
                    %why,
                    "the cell cannot go on from its journal: a new cell begins, and copies the keys of the \
                     other cells"
                );
                // The old journal holds the lock, which the new journal needs.
                drop(self);
                Ok((begin_new()?, None))
            }
            Err(partial::Unrecoverable::Moved(known)) => Err(self.moved(&known, address)),
            Err(error) => Err(Error::start(format!("{}: {error}", self.place.display()))),
        }
    }
}
