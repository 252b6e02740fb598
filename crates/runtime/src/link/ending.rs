//! The end of a connection, and its consequences for the peer.

use tracing::{debug, info};

use super::{ConnectionState, LinkEvent, Links};

impl Links {
    pub(super) fn garbage(&mut self, token: usize, why: &str) {
        self.counters.garbage.inc();
        debug!("ending a connection that sent invalid bytes: {why}");
        self.broke(token, why);
    }

    /// Ends a connection in any state, with all consequences.
    pub(super) fn broke(&mut self, token: usize, why: &str) {
        match self.connections[token].state {
            ConnectionState::Linked { peer } => {
                self.unlink(token, why);
                self.resume(peer, why);
            }
            ConnectionState::Connecting { peer } | ConnectionState::Greeting { peer, .. } => {
                self.drop_connection(token);
                self.dial_failed(peer, why);
            }
            ConnectionState::Deferred { peer, .. } => {
                if self.peers[peer].deferred == Some(token) {
                    self.peers[peer].deferred = None;
                }
                self.drop_connection(token);
                self.leave(peer);
            }
            ConnectionState::Accepted => self.drop_connection(token),
        }
    }

    /// Ends a link and reports its end. The caller decides whether to dial the peer again.
    pub(super) fn unlink(&mut self, token: usize, why: &str) {
        let ConnectionState::Linked { peer: key } = self.connections[token].state else {
            unreachable!("only a connection in the state `Linked` is a link")
        };
        self.drop_connection(token);
        let peer = &mut self.peers[key];
        peer.link = None;
        peer.datagram_address = None;
        self.tokens.remove(&peer.token);
        if self.tokens.get(&peer.multicast_token) == Some(&peer.id) {
            self.tokens.remove(&peer.multicast_token);
        }
        peer.outage_reported = true;
        // When a link that lasted for a while breaks, a new outage begins. When a shorter link breaks, the
        // old outage continues.
        if self.now.since(peer.since) >= self.limits.backoff_max {
            peer.backoff = self.limits.backoff_min;
        }
        self.counters.links.dec();
        info!("lost the link to process {}: {why}", peer.id);
        self.link_events.push_back(LinkEvent::Unlinked { peer: peer.id });
    }

    /// Handles a peer with neither link nor dial: dials again if a link is wanted, and forgets the peer
    /// otherwise.
    pub(super) fn resume(&mut self, key: usize, why: &str) {
        if self.peers[key].wanted.is_some() {
            self.dial_failed(key, why);
        } else {
            self.leave(key);
        }
    }

    /// Forgets a peer that is neither linked nor wanted.
    pub(super) fn leave(&mut self, key: usize) {
        let peer = &self.peers[key];
        if peer.wanted.is_none() && peer.link.is_none() && peer.deferred.is_none() {
            self.peer_keys.remove(&peer.id);
            self.peers.remove(key);
        }
    }

    pub(super) fn drop_connection(&mut self, token: usize) {
        let mut connection = self.connections.remove(token);
        if matches!(connection.state, ConnectionState::Accepted | ConnectionState::Deferred { .. }) {
            self.handshakes -= 1;
        }
        // Closing the stream also deregisters it, but only if no other process shares the descriptor.
        let _ = self.poll.registry().deregister(&mut connection.stream);
    }
}
