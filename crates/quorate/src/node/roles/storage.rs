//! A storage process: it holds rows, and executes operations on an engine.

use std::{
    sync::{Mutex, OnceLock},
    time::{Duration, Instant},
};

use quorate_protocol::{
    Generation, Peer,
    rubberband::{Handover, Storage, StorageSettings},
};
use quorate_roles::tables;
use quorate_table::{
    engine::{Bounds, Engine},
    scan::{Costs, ScanEngine},
};
use tracing::info;

use crate::{
    error::Error,
    lock::lock,
    node::{
        life::CHECKPOINT_BYTES,
        role_work::{LifeStart, NewProcess, RoleWork},
        setup::Setup,
    },
    process::{Parts, Process, engine::on_engine},
    scan_threads::ScanThreadOptions,
};

/// The limits of a storage process's memory, and of its use of processors.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// The limits of the storage process's engine.
    pub bounds: Bounds,
    /// The threads that scan the rows.
    pub scan_thread_options: ScanThreadOptions,
    /// Upper bound of the size of all results that their clients have not yet taken, in bytes.
    pub held_bytes_max: u64,
    /// Longest time for which a result is held while its client takes none of its rows.
    pub held_max: Duration,
}

impl Default for StorageOptions {
    fn default() -> Self {
        let settings = quorate_protocol::rubberband::StorageSettings::default();
        StorageOptions {
            bounds: Bounds::default(),
            scan_thread_options: ScanThreadOptions::default(),
            held_bytes_max: settings.held_bytes_max,
            held_max: settings.held_max,
        }
    }
}

/// The rows of a storage process that is out, and the engine that holds them.
type FormerRows = (Box<Handover>, Box<dyn Engine>);

/// The work of a storage process.
pub(in crate::node) struct StorageWork {
    options: StorageOptions,
    /// The rows of the previous life, which may be the only replicas of their ranges.
    rows: Mutex<Option<FormerRows>>,
}

/// Time that an ended process may take to hand its engine over.
const ENGINE_PATIENCE: Duration = Duration::from_secs(3);

impl StorageWork {
    pub(in crate::node) fn new(options: StorageOptions) -> StorageWork {
        StorageWork { options, rows: Mutex::default() }
    }

    fn settings(&self, setup: &Setup) -> StorageSettings {
        StorageSettings {
            alive_every: setup.detector.interval,
            held_bytes_max: self.options.held_bytes_max,
            held_max: self.options.held_max,
            terms: setup.terms,
            checkpoint_bytes: setup.journal.as_ref().map(|_| CHECKPOINT_BYTES as u64),
            ..StorageSettings::default()
        }
    }

    /// Returns the protocol of the next life, and its engine.
    fn storage(&self, setup: &Setup, peer: Peer, recovered: Option<Storage>) -> (Storage, Box<dyn Engine>) {
        let name = setup.name.clone();
        if let Some((remains, engine)) = lock(&self.rows).take() {
            return (Storage::again(peer, name, remains), engine);
        }
        let engine = ScanEngine::new(self.options.bounds).with_costs(costs());
        let storage = recovered.unwrap_or_else(|| Storage::new(peer, name, self.settings(setup)));
        (storage, Box::new(engine))
    }
}

impl RoleWork for StorageWork {
    fn begin(&self, setup: &Setup, start: LifeStart) -> Result<NewProcess, Error> {
        let LifeStart { former, mut journal, .. } = start;
        let mut recovered = None;
        if let Some(opened) = journal.take_if(|journal| journal.goes_on()) {
            let begin_new = || setup.another_journal();
            let (opened, storage) = opened.storage(&setup.advertised, self.settings(setup), begin_new)?;
            (journal, recovered) = (Some(opened), storage);
        }
        let generation = match &recovered {
            Some(storage) => storage.member().generation(),
            None => former.unwrap_or(Generation::FIRST),
        };
        let peer = setup.peer(journal.as_ref());
        let me = peer.id;
        let (storage, engine) = self.storage(setup, peer, recovered);
        let executor = Some(on_engine(engine, self.options.scan_thread_options.clone()));
        let disk = journal.map(|journal| (journal.disk, journal.first));
        Ok(NewProcess {
            me,
            generation,
            state: tables::Process::Storage(storage),
            parts: Parts { executor, disk, ..setup.parts() },
        })
    }

    fn take_handover(&self, process: &Process) -> bool {
        let mut rows = lock(&self.rows);
        *rows = process.take_handover(ENGINE_PATIENCE);
        rows.is_some()
    }
}

/// Returns the costs of scanning on this machine, measured once.
fn costs() -> Costs {
    static COSTS: OnceLock<Costs> = OnceLock::new();
    *COSTS.get_or_init(|| {
        let begin = Instant::now();
        let costs = Costs::measured(|| begin.elapsed());
        info!(group = costs.group, row = costs.row, "the costs of scanning were measured on this machine");
        costs
    })
}
