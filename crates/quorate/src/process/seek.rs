//! Looking for others: routers to join through, and the process that has this one's node.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use quorate_protocol::{DomainId, Peer, ProcessId};
use quorate_runtime::discover::{Met, Undiscovered, discover};
use quorate_tables::Command;
use tracing::{debug, info, warn};

use super::{End, Identity, Shared};

/// Who listens at each of these addresses.
pub(crate) fn survey(addresses: &[String], domain: DomainId) -> Vec<Result<Met, Undiscovered>> {
    addresses.iter().map(|address| discover(address, domain, DISCOVERY_PATIENCE)).collect()
}

/// How long one that is asked who it is may take.
const DISCOVERY_PATIENCE: Duration = Duration::from_millis(500);

/// For so long it is normal that a router is not there yet.
const DISCOVERY_QUIET: Duration = Duration::from_secs(1);

/// Looks for routers at the addresses until the process knows them, and again while it has lost them.
pub(super) fn seek(shared: &Shared, addresses: &[String], domain: DomainId, me: ProcessId) {
    let mut pause = Duration::from_millis(20);
    let began = Instant::now();
    let mut told: BTreeMap<&String, String> = BTreeMap::new();
    while !shared.stopping.load(Ordering::Acquire) {
        let mut seeds = Vec::new();
        for address in addresses {
            match discover(address, domain, DISCOVERY_PATIENCE) {
                Ok(met) if met.process != me => {
                    seeds.push(Peer { id: met.process, address: address.clone() });
                }
                Ok(_) => {}
                // At first everything starts at once; afterwards somebody may have to mend it.
                Err(error) if began.elapsed() > DISCOVERY_QUIET => {
                    let error = error.to_string();
                    if told.get(address) != Some(&error) {
                        warn!(%address, %error, "no router is found there");
                        told.insert(address, error);
                    }
                }
                Err(error) => debug!(%address, %error, "no router found"),
            }
        }
        if let Some(port) = shared.port.get()
            && !seeds.is_empty()
        {
            let _ = port.try_command(Command::Seeds(seeds));
        }
        thread::sleep(pause);
        // Eager at first, when everything starts at once; then only in case all known routers are gone.
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Finds out whether the process lives that keeps this one from joining: if it does, this one ends. It may just be dead and
/// not yet removed; then this one joins once it is.
pub(super) fn probe_namesake(me: &Identity, other: &Peer, end: &Sender<End>) {
    match discover(&other.address, me.domain, DISCOVERY_PATIENCE) {
        Ok(met) if met.process == other.id => {
            // The first reason is the one that counts.
            let _ = end.try_send(End::NotAdmitted(format!(
                "node {} is in use: {} at {} belongs to the domain and answers there; this process, {} at {}, does not join beside \
                 it. Give it a node number of its own, or stop the other one",
                me.me.node, other.id, other.address, me.me, me.address
            )));
        }
        _ => {
            info!(
                other = %other.id, address = other.address,
                "another process of this node belongs to the domain, and does not answer: waiting until it is removed"
            );
            thread::sleep(NAMESAKE_PAUSE);
        }
    }
}

/// The wait before it is looked for again.
const NAMESAKE_PAUSE: Duration = Duration::from_secs(1);
