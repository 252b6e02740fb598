//! How connections end, and what follows for their peers.

use tracing::{debug, info};

use super::{Happening, Links, Stage};

impl Links {
    pub(super) fn garbage(&mut self, token: usize, why: &str) {
        self.counters.garbage.inc();
        debug!("garbage on a connection: {why}");
        self.broke(token, why);
    }

    /// Ends a connection in whatever stage, with all that follows.
    pub(super) fn broke(&mut self, token: usize, why: &str) {
        match self.connections[token].stage {
            Stage::Standing { peer } => {
                self.unlink(token, why);
                self.resume(peer, why);
            }
            Stage::Connecting { peer } | Stage::Greeting { peer, .. } => {
                self.drop_connection(token);
                self.dial_failed(peer, why);
            }
            Stage::Deferred { peer, .. } => {
                if self.peers[peer].deferred == Some(token) {
                    self.peers[peer].deferred = None;
                }
                self.drop_connection(token);
                self.leave(peer);
            }
            Stage::Accepted => self.drop_connection(token),
        }
    }

    /// Ends a link and tells so; what becomes of the peer is the caller's to say.
    pub(super) fn unlink(&mut self, token: usize, why: &str) {
        let Stage::Standing { peer: key } = self.connections[token].stage else {
            unreachable!("only a standing connection is a link")
        };
        self.drop_connection(token);
        let peer = &mut self.peers[key];
        peer.standing = None;
        peer.mouth = None;
        self.tokens.remove(&peer.token);
        if self.tokens.get(&peer.voice) == Some(&peer.id) {
            self.tokens.remove(&peer.voice);
        }
        peer.told_unlinked = true;
        // A link that stood for a while starts a new outage; one that did not goes on with the old.
        if self.now.since(peer.since) >= self.limits.backoff_max {
            peer.backoff = self.limits.backoff_min;
        }
        self.counters.links.dec();
        info!("lost the link to {}: {why}", peer.id);
        self.happenings.push_back(Happening::Unlinked { peer: peer.id });
    }

    /// A peer has neither link nor dial: tries again if it is wanted.
    pub(super) fn resume(&mut self, key: usize, why: &str) {
        if self.peers[key].wanted.is_some() {
            self.dial_failed(key, why);
        } else {
            self.leave(key);
        }
    }

    /// Drops what is known about a peer if it is neither linked nor wanted.
    pub(super) fn leave(&mut self, key: usize) {
        let peer = &self.peers[key];
        if peer.wanted.is_none() && peer.standing.is_none() && peer.deferred.is_none() {
            self.peer_keys.remove(&peer.id);
            self.peers.remove(key);
        }
    }

    pub(super) fn drop_connection(&mut self, token: usize) {
        let mut connection = self.connections.remove(token);
        if matches!(connection.stage, Stage::Accepted | Stage::Deferred { .. }) {
            self.unsettled -= 1;
        }
        // Closing would do that too, but only while no other process shares the descriptor.
        let _ = self.poll.registry().deregister(&mut connection.stream);
    }
}
