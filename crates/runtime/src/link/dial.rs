//! Dialling: from a wish to a hello.
//!
//! Attempts are repeated as long as the link is wanted, with pauses that double up to a bound and vary at random, so
//! that two processes which lost each other do not dial in step for ever. Names are resolved anew for each round.

use std::io;

use mio::net::TcpStream;
use tracing::info;

use super::{Attempt, Happening, Links, Stage, Timer};
use crate::hello::Greeting;

impl Links {
    pub(super) fn dial(&mut self, key: usize) {
        let peer = &mut self.peers[key];
        assert!(peer.standing.is_none(), "one link a pair");
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
                peer.attempt = Attempt::Resolving;
                self.resolver.ask(peer.id, address);
            }
        }
    }

    pub(super) fn dial_route(&mut self, key: usize) {
        let peer = &mut self.peers[key];
        let Some(address) = peer.route.pop() else { return self.dial_failed(key, "its name leads nowhere") };
        self.counters.dials.inc();
        match TcpStream::connect(address) {
            Ok(stream) => {
                match self.add(stream, Stage::Connecting { peer: key }, self.limits.connect_timeout) {
                    Ok(token) => self.peers[key].attempt = Attempt::Dialling(token),
                    Err(error) => self.dial_failed(key, &error.to_string()),
                }
            }
            Err(error) => self.dial_failed(key, &error.to_string()),
        }
    }

    pub(super) fn finish_connecting(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        let Stage::Connecting { peer: key } = connection.stage else { return };
        match connection.stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return self.broke(token, &error.to_string()),
        }
        match connection.stream.peer_addr() {
            Ok(_) => {}
            // Not there yet; another event will tell.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
            Err(error) => return self.broke(token, &error.to_string()),
        }
        let number = self.next_number();
        let version = self.peers[key].version.take().unwrap_or(*self.identity.versions.end());
        let hello = Greeting::Hello(self.hello(version, self.peers[key].id, number));
        self.connections[token].stage = Stage::Greeting { peer: key, number, version };
        self.set_limit(token, self.limits.hello_timeout);
        if let Err(error) = self.greet(token, &hello) {
            self.broke(token, &error.to_string());
        }
    }

    /// An attempt came to nothing: tells so once an outage, waits, and turns to a deferred connection if there is one.
    pub(super) fn dial_failed(&mut self, key: usize, why: &str) {
        let peer = &mut self.peers[key];
        if !peer.route.is_empty() && peer.deferred.is_none() {
            // The name has another address: not failed yet.
            return self.dial_route(key);
        }
        let wait = peer.backoff.mul_f64(0.5 + 0.5 * unit(self.chance.bits()));
        peer.backoff = (peer.backoff * 2).min(self.limits.backoff_max);
        let again = self.now + wait;
        peer.attempt = Attempt::Waiting(again);
        self.timers.insert((again, Timer::Redial(key)));
        let deferred = peer.deferred.take();
        if let Some(token) = deferred {
            self.apply_rules(token);
        }
        let peer = &mut self.peers[key];
        if peer.standing.is_none() && !std::mem::replace(&mut peer.told_unlinked, true) {
            info!("no link to {} at {}: {why}", peer.id, peer.wanted.as_deref().unwrap_or("?"));
            self.happenings.push_back(Happening::Unlinked { peer: peer.id });
        }
    }
}

/// Random bits as a number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
