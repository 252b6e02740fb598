//! Dialling: from a wanted link to a hello.
//!
//! Attempts are repeated as long as the link is wanted. Pauses double up to a bound and vary at random, so
//! that two processes which lost each other do not keep dialling in step. Each round resolves names again.

use std::io;

use mio::net::TcpStream;
use tracing::info;

use super::{ConnectionState, DialState, LinkEvent, LinkTimer, Links};
use crate::hello::Greeting;

impl Links {
    pub(super) fn dial(&mut self, key: usize) {
        let peer = &mut self.peers[key];
        assert!(peer.link.is_none(), "two processes have at most one link");
        if !peer.route.is_empty() {
            return self.dial_route(key);
        }
        let Some(address) = &peer.wanted else { return };
        match address.parse() {
            Ok(address) => {
                peer.route.push(address);
                self.dial_route(key);
            }
            Err(_) => {
                peer.attempt = DialState::Resolving;
                self.resolver.ask(peer.id, address);
            }
        }
    }

    pub(super) fn dial_route(&mut self, key: usize) {
        let peer = &mut self.peers[key];
        let Some(address) = peer.route.pop() else {
            return self.dial_failed(key, "the host name resolves to no address");
        };
        self.counters.dials.inc();
        match TcpStream::connect(address) {
            Ok(stream) => {
                match self.add(stream, ConnectionState::Connecting { peer: key }, self.limits.connect_timeout)
                {
                    Ok(token) => self.peers[key].attempt = DialState::Dialling(token),
                    Err(error) => self.dial_failed(key, &error.to_string()),
                }
            }
            Err(error) => self.dial_failed(key, &error.to_string()),
        }
    }

    pub(super) fn finish_connecting(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        let ConnectionState::Connecting { peer: key } = connection.state else { return };
        match connection.stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return self.broke(token, &error.to_string()),
        }
        match connection.stream.peer_addr() {
            Ok(_) => {}
            // The socket is still connecting, and another event will follow.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
            Err(error) => return self.broke(token, &error.to_string()),
        }
        let number = self.next_number();
        let version = self.peers[key].version.take().unwrap_or(*self.identity.versions.end());
        let hello = Greeting::Hello(self.hello(version, self.peers[key].id, number));
        self.connections[token].state = ConnectionState::Greeting { peer: key, number, version };
        self.set_limit(token, self.limits.hello_timeout);
        if let Err(error) = self.greet(token, &hello) {
            self.broke(token, &error.to_string());
        }
    }

    /// Handles a failed attempt: tries the next address if there is one. Otherwise reports the outage, unless
    /// it was already reported, schedules the next dial, and decides on a deferred connection if there is
    /// one.
    pub(super) fn dial_failed(&mut self, key: usize, why: &str) {
        let peer = &mut self.peers[key];
        if !peer.route.is_empty() && peer.deferred.is_none() {
            // The name has a further address, so the dial has not failed yet.
            return self.dial_route(key);
        }
        let wait = peer.backoff.mul_f64(0.5 + 0.5 * unit(self.chance.bits()));
        peer.backoff = (peer.backoff * 2).min(self.limits.backoff_max);
        let again = self.now + wait;
        peer.attempt = DialState::Waiting(again);
        self.timers.insert((again, LinkTimer::Redial(key)));
        let deferred = peer.deferred.take();
        if let Some(token) = deferred {
            self.apply_rules(token);
        }
        let peer = &mut self.peers[key];
        if peer.link.is_none() && !std::mem::replace(&mut peer.outage_reported, true) {
            info!(
                "no link to process {} at {}: {why}; this process tries again until the link is up or is \
                 not wanted",
                peer.id,
                peer.wanted.as_deref().unwrap_or("?")
            );
            self.link_events.push_back(LinkEvent::Unlinked { peer: peer.id });
        }
    }
}

/// Maps random bits to a number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
