//! A router: it orders the domain's messages, and founds the domain or joins it.

use quorate_protocol::{
    Generation, Peer,
    domain::{self, Domain, Shared},
    ecast::{Router, RouterSettings},
    paxos::{self, Paxos},
    rubberband,
};
use quorate_roles::tables;
use quorate_runtime::clock;

use crate::{
    error::Error,
    node::{
        founding::{self, Beginning},
        journal::Journal,
        life::CHECKPOINT_BYTES,
        role_work::{LifeStart, NewProcess, RoleWork},
        setup::Setup,
    },
    process::Parts,
};

/// The work of a router.
pub(in crate::node) struct RouterWork;

impl RoleWork for RouterWork {
    fn begin(&self, setup: &Setup, start: LifeStart) -> Result<NewProcess, Error> {
        let LifeStart { former, beginning, mut journal } = start;
        let mut log = None;
        if let Some(opened) = journal.take_if(|journal| journal.goes_on()) {
            let begin_new = || setup.another_journal();
            let (opened, before) = opened.router(&setup.advertised, &log_settings(setup), begin_new)?;
            (journal, log) = (Some(opened), before);
        }
        let begun = match beginning {
            Some(beginning) => beginning,
            // Only the first life of a router may found the domain.
            None => founding::begin(setup.domain, &setup.routers, false, setup.directory.as_deref())?,
        };
        // Routers of different generations do not talk with each other.
        let mut generation = former.unwrap_or(Generation::FIRST);
        if let Beginning::Join(current) = begun {
            generation = generation.max(current);
        }
        let routing = journal.as_ref().map_or(Ok(1), Journal::routing)?;
        let peer = setup.peer(journal.as_ref());
        let disk = journal.map(|journal| (journal.disk, journal.first));
        Ok(NewProcess {
            me: peer.id,
            generation,
            state: tables::Process::Router(router(setup, peer, begun, (generation, routing), log)),
            parts: Parts { disk, ..setup.parts() },
        })
    }
}

fn log_settings(setup: &Setup) -> paxos::Settings {
    paxos::Settings {
        detector: setup.detector,
        wanted: setup.terms.unwrap_or_default().wanted_routers as usize,
        checkpoint_bytes: setup.journal.as_ref().map(|_| CHECKPOINT_BYTES),
        chosen_after: paxos::Settings::CHOSEN_AFTER,
        ..paxos::Settings::default()
    }
}

fn router(
    setup: &Setup,
    peer: Peer,
    begun: Beginning,
    (generation, routing): (Generation, u32),
    recovered: Option<Paxos>,
) -> Router<Domain> {
    let (terms, log) = (setup.terms.unwrap_or_default(), log_settings(setup));
    let paxos = match (recovered, begun) {
        (Some(paxos), _) => paxos,
        (None, Beginning::Found) => Paxos::found(peer, log.clone(), clock::now()),
        (None, Beginning::Join(_)) => Paxos::join(peer, Vec::new(), log.clone(), clock::now()),
    };
    let settings = RouterSettings { paxos: log, generation, routing, ..RouterSettings::default() };
    let tables = Shared::new(rubberband::Config::founded(terms));
    Router::new(paxos, domain::Config { tables, ..domain::Config::vacant() }, settings)
}
