//! A super: it watches the other processes, and plans the placement of rows.

use quorate_protocol::{
    Generation,
    rubberband::{Super, SuperSettings},
};
use quorate_roles::tables;

use crate::{
    error::Error,
    node::{
        role_work::{LifeStart, NewProcess, RoleWork},
        setup::Setup,
    },
};

/// The work of a super.
pub(in crate::node) struct SuperWork;

impl RoleWork for SuperWork {
    fn begin(&self, setup: &Setup, start: LifeStart) -> Result<NewProcess, Error> {
        let peer = setup.peer(start.journal.as_ref());
        let settings =
            SuperSettings { detector: setup.detector, terms: setup.terms, ..SuperSettings::default() };
        Ok(NewProcess {
            me: peer.id,
            generation: start.former.unwrap_or(Generation::FIRST),
            state: tables::Process::Super(Super::new(peer, setup.name.clone(), settings)),
            parts: setup.parts(),
        })
    }
}
