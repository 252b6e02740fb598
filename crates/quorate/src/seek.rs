//! The search for processes of which only addresses are known. Every process of this crate runs it on a
//! thread of its own.

use std::{
    collections::BTreeMap,
    io, thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use quorate_protocol::{DomainId, Peer, ProcessId};
use quorate_runtime::discover::{DiscoverError, DiscoveredProcess, discover};
use tracing::{debug, warn};

/// Asks each of these addresses which process listens there.
pub(crate) fn survey(
    addresses: &[String],
    domain: DomainId,
) -> Vec<Result<DiscoveredProcess, DiscoverError>> {
    addresses.iter().map(|address| ask(address, domain)).collect()
}

/// Asks an address which process listens there.
pub(crate) fn ask(address: &str, domain: DomainId) -> Result<DiscoveredProcess, DiscoverError> {
    discover(address, domain, DISCOVERY_PATIENCE)
}

/// Time that one address may take to answer.
const DISCOVERY_PATIENCE: Duration = Duration::from_millis(500);

/// A search for the other processes of a domain that listen at some addresses.
pub(crate) struct Search {
    domain: DomainId,
    me: ProcessId,
    addresses: Vec<String>,
    /// The beginning of the search, if an operator has to act when the search finds no process.
    since: Option<Instant>,
    /// The last fault of each address, which is logged once.
    logged: BTreeMap<usize, String>,
    pause_max: Duration,
}

impl Search {
    /// Makes a search that may find nobody: faults are logged at a low level.
    pub(crate) fn quiet(domain: DomainId, me: ProcessId, addresses: Vec<String>) -> Search {
        Search { domain, me, addresses, since: None, logged: BTreeMap::new(), pause_max: PAUSE_MAX }
    }

    /// Makes a search that must find processes. In its first second the processes may still be starting;
    /// after that, faults become warnings.
    pub(crate) fn warning(domain: DomainId, me: ProcessId, addresses: Vec<String>) -> Search {
        Search { since: Some(Instant::now()), ..Search::quiet(domain, me, addresses) }
    }

    /// Sets the longest pause between two rounds of the search; the default is 2 s.
    #[cfg(feature = "maps")]
    pub(crate) fn every(self, pause_max: Duration) -> Search {
        Search { pause_max, ..self }
    }

    /// Returns the other processes of the domain that listen at the addresses now.
    pub(crate) fn look(&mut self) -> Vec<Peer> {
        let mut found = Vec::new();
        for (place, address) in self.addresses.iter().enumerate() {
            match ask(address, self.domain) {
                Ok(met) => {
                    self.logged.remove(&place);
                    if met.process != self.me {
                        found.push(Peer { id: met.process, address: address.clone() });
                    }
                }
                Err(error) if self.since.is_some_and(|since| since.elapsed() < QUIET) => {
                    debug!(address, %error, "no process of the domain answers at this address");
                }
                Err(error) => {
                    let error = error.to_string();
                    if self.logged.get(&place) != Some(&error) {
                        match self.since {
                            Some(_) => {
                                warn!(address, error, "no process of the domain answers at this address")
                            }
                            None => {
                                debug!(address, error, "no process of the domain answers at this address")
                            }
                        }
                        self.logged.insert(place, error);
                    }
                }
            }
        }
        found
    }

    /// Searches repeatedly on a thread of its own, and passes the processes of each round to `hand`. The
    /// pauses between rounds are short at first and after a kick. Later they are long, because the search
    /// only serves the case that all known processes are gone. The search ends when the sender of kicks is
    /// dropped.
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

/// Time during which the other processes may still be starting.
const QUIET: Duration = Duration::from_secs(1);

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
