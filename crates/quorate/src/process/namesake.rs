//! Checks whether another process with the same node number is alive.

use std::{thread, time::Duration};

use quorate_protocol::Peer;
use tracing::info;

use super::Identity;
use crate::{
    end::{End, EndReporter},
    seek,
};

/// Checks whether the namesake, a process with the same node number that keeps this process from joining, is
/// alive. If the namesake is alive, this process ends. If it is dead but not yet removed, this process joins
/// after the removal.
pub(super) fn probe_namesake(me: &Identity, other: &Peer, end: &EndReporter) {
    match seek::ask(&other.address, me.domain) {
        Ok(met) if met.process == other.id => {
            end.report(End::NotAdmitted(format!(
                "node {} is in use: the process {} at {} belongs to the domain and answers there; this \
                 process, {} at {}, cannot join with the same node number. Give this process a node number \
                 of its own, or stop the other process",
                me.me.node, other.id, other.address, me.me, me.address
            )));
        }
        _ => {
            info!(
                other = %other.id, address = other.address,
                "another process with this node number belongs to the domain and does not answer: this \
                 process waits until the other process is removed"
            );
            thread::sleep(NAMESAKE_PAUSE);
        }
    }
}

/// The pause before the next check.
const NAMESAKE_PAUSE: Duration = Duration::from_secs(1);
