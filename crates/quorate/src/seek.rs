//! Looking for processes of which only addresses are known: by every process of this crate, on a thread of its own.

use std::{
    collections::BTreeMap,
    io, thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use quorate_protocol::{DomainId, Peer, ProcessId};
use quorate_runtime::discover::{Met, Undiscovered, discover};
use tracing::{debug, warn};

/// Who listens at each of these addresses.
pub(crate) fn survey(addresses: &[String], domain: DomainId) -> Vec<Result<Met, Undiscovered>> {
    addresses.iter().map(|address| ask(address, domain)).collect()
}

/// Who listens at an address.
pub(crate) fn ask(address: &str, domain: DomainId) -> Result<Met, Undiscovered> {
    discover(address, domain, DISCOVERY_PATIENCE)
}

/// How long one that is asked who it is may take.
const DISCOVERY_PATIENCE: Duration = Duration::from_millis(500);

/// A search for the other processes of a domain that listen at some addresses.
pub(crate) struct Search {
    domain: DomainId,
    me: ProcessId,
    addresses: Vec<String>,
    /// When it began, if somebody has to mend it that nobody is found.
    since: Option<Instant>,
    /// The fault of each address, which is logged once.
    told: BTreeMap<usize, String>,
    pause_max: Duration,
}

impl Search {
    /// Nobody needs to be there: faults are logged for those who look for faults.
    pub(crate) fn quiet(domain: DomainId, me: ProcessId, addresses: Vec<String>) -> Search {
        Search { domain, me, addresses, since: None, told: BTreeMap::new(), pause_max: PAUSE_MAX }
    }

    /// Processes have to be there: after a second, in which everything starts at once, faults are warnings.
    pub(crate) fn warning(domain: DomainId, me: ProcessId, addresses: Vec<String>) -> Search {
        Search { since: Some(Instant::now()), ..Search::quiet(domain, me, addresses) }
    }

    /// However long nothing is new, it looks again after this time; 2 s unless said otherwise.
    pub(crate) fn every(self, pause_max: Duration) -> Search {
        Search { pause_max, ..self }
    }

    /// Those that listen there now, without this process.
    pub(crate) fn look(&mut self) -> Vec<Peer> {
        let mut found = Vec::new();
        for (place, address) in self.addresses.iter().enumerate() {
            match ask(address, self.domain) {
                Ok(met) => {
                    self.told.remove(&place);
                    if met.process != self.me {
                        found.push(Peer { id: met.process, address: address.clone() });
                    }
                }
                Err(error) if self.since.is_some_and(|since| since.elapsed() < QUIET) => {
                    debug!(address, %error, "nobody is found there");
                }
                Err(error) => {
                    let error = error.to_string();
                    if self.told.get(&place) != Some(&error) {
                        match self.since {
                            Some(_) => warn!(address, error, "nobody is found there"),
                            None => debug!(address, error, "nobody is found there"),
                        }
                        self.told.insert(place, error);
                    }
                }
            }
        }
        found
    }

    /// Looks again and again on a thread of its own, and hands over who is found, if anybody: often at first and after a kick, then now and
    /// then, in case all others that are known are gone. It ends when nobody can kick it any more.
    pub(crate) fn go_on(
        mut self,
        kicks: Receiver<()>,
        mut hand: impl FnMut(Vec<Peer>) + Send + 'static,
    ) -> io::Result<()> {
        let seek = move || {
            let mut pause = PAUSE_MIN;
            loop {
                hand(self.look());
                pause = match kicks.recv_timeout(pause) {
                    Ok(()) => PAUSE_MIN,
                    Err(RecvTimeoutError::Timeout) => (pause * 2).min(self.pause_max),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
            }
        };
        thread::Builder::new().name(String::from("seeker")).spawn(seek).map(drop)
    }
}

/// For so long it is normal that others are not there yet.
const QUIET: Duration = Duration::from_secs(1);

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
