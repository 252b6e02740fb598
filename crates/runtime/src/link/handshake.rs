//! The handshake: from a connection to a link, or to a refusal.
//!
//! Either side may dial. A connection *stands* at the acceptor when it has sent its welcome and at the dialler when that
//! arrives. Every hello and welcome carries a number that its sender never uses again and that grows. When two
//! connections of one pair meet, the acceptor of the later one decides, by rules that cannot lose both:
//!
//! 1. A link stands already: if the new hello's number is higher than that of the greeting the link was made with, its
//!    sender has lost that link (it would not dial otherwise), so the new connection replaces it. If the number is
//!    lower, the hello was sent before the link came to stand, and is refused as redundant.
//! 2. None stands, but our own hello is under way to that peer: the connection dialled by the *smaller* id is preferred.
//!    If that is the peer, its hello is accepted and our own dial given up. If it is we, the answer is deferred until
//!    our dial has come to an end either way; only then the rules are applied again.
//! 3. Else it is accepted, and an attempt of ours that has not come to its hello is given up.
//!
//! Before that, each end compares what the other remembers of its journal with what is there, and does not go on if it has an
//! older copy ([`Hearsay`](quorate_protocol::journal::Hearsay)).
//!
//! Rules 2 and 3 give up a connection while none stands, but in the very step that makes another one stand.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
};

use bytes::Bytes;
use quorate_protocol::{DomainId, Duration, ProcessId};
use rustix::net::sockopt;
use tracing::{debug, info, warn};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Attempt, Happening, Identity, Links, Stage, Timer};
use crate::datagram::Mouth;
use crate::discover::{Answer, NOBODY, Presence};
use crate::hello::{Greeting, Hello, NoGreeting, Reason, Refusal};

impl Links {
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listeners[index].accept() {
                Ok((stream, _)) => {
                    if self.unsettled >= self.limits.unsettled_max
                        || self.connections.len() >= self.limits.connections_max
                    {
                        self.counters.crowded.inc();
                        continue;
                    }
                    match self.add(stream, Stage::Accepted, self.limits.hello_timeout) {
                        Ok(_) => self.unsettled += 1,
                        Err(error) => warn!(%error, "cannot take a connection on"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // Out of file descriptors, most likely. The edge is spent, so a timer tries again.
                    warn!(%error, "cannot accept");
                    self.timers.insert((self.now + ACCEPT_PAUSE, Timer::Accept(index)));
                    return;
                }
            }
        }
        self.timers.insert((self.now, Timer::Accept(index)));
    }

    pub(super) fn take_greeting(&mut self, token: usize, greeting: Result<Greeting, NoGreeting>) {
        let me = self.identity.me;
        match (&self.connections[token].stage, greeting) {
            (Stage::Accepted, Ok(Greeting::Hello(hello))) => {
                let Some(common) = self.common_domain(&hello) else {
                    warn!(
                        "refused {} of {}: this process belongs to {}",
                        hello.process,
                        words(&hello.domains),
                        words(&self.identity.domains)
                    );
                    return self.refuse(token, Reason::Domain, hello.version);
                };
                if hello.wanted == NOBODY {
                    self.answer(token, common, hello.version);
                } else if hello.wanted != me || hello.process == me {
                    debug!("refused {}: it wants {}, not {me}", hello.process, hello.wanted);
                    self.refuse(token, Reason::Stranger, hello.version);
                } else if !self.identity.policy.admits(&hello.pass) {
                    let Hello { version, process, pass, .. } = hello;
                    warn!("refused {process}: {}", self.identity.policy.refusal(&pass));
                    self.refuse(token, Reason::Policy, version);
                    self.happenings.push_back(Happening::Stranger { peer: process, theirs: pass });
                } else if !self.starts.holds(hello.known) {
                    self.has_older_copy(token, &hello);
                } else {
                    let peer = self.peer_key(hello.process);
                    self.connections[token].stage = Stage::Deferred { peer, hello: Box::new(hello) };
                    self.apply_rules(token);
                }
            }
            (Stage::Accepted, Err(NoGreeting::Version(version))) => {
                let (oldest, newest) = self.identity.versions.clone().into_inner();
                info!(
                    "refused a hello of protocol version {version}: this process speaks {oldest} to {newest}"
                );
                self.refuse(token, Reason::Version, newest);
            }
            (&Stage::Greeting { peer, number, version }, Ok(Greeting::Welcome(hello)))
                if hello.process == self.peers[peer].id
                    && hello.version == version
                    && hello.wanted == me
                    && self.common_domain(&hello).is_some() =>
            {
                if !self.starts.holds(hello.known) {
                    self.has_older_copy(token, &hello);
                } else if self.identity.policy.admits(&hello.pass) {
                    self.establish(token, peer, &hello, number);
                } else {
                    // It welcomed us before one of us adopted another policy.
                    self.broke(token, &self.identity.policy.refusal(&hello.pass));
                    self.happenings
                        .push_back(Happening::Stranger { peer: hello.process, theirs: hello.pass });
                }
            }
            (&Stage::Greeting { peer, version, .. }, Ok(Greeting::Refusal(refusal)))
                if refusal.reason == Reason::Version
                    && refusal.version < version
                    && self.identity.versions.contains(&refusal.version) =>
            {
                self.peers[peer].version = Some(refusal.version);
                // At once, and at the same address: it has not failed yet.
                self.peers[peer].route.extend(self.connections[token].stream.peer_addr());
                self.broke(token, &refusal.to_string());
            }
            (&Stage::Greeting { peer, .. }, Ok(Greeting::Refusal(refusal))) => {
                let by_policy = refusal.reason == Reason::Policy;
                let why = match by_policy {
                    true => self.identity.policy.refusal(&refusal.pass),
                    false => refusal.to_string(),
                };
                self.refused(token, peer, refusal.reason, &why);
                if by_policy {
                    let Refusal { process, pass, .. } = refusal;
                    self.happenings.push_back(Happening::Stranger { peer: process, theirs: pass });
                }
            }
            (&Stage::Greeting { peer, .. }, Err(version @ NoGreeting::Version(_))) => {
                self.refused(token, peer, Reason::Version, &version.to_string());
            }
            (_, Err(error)) => self.garbage(token, &error.to_string()),
            (_, Ok(_)) => self.garbage(token, "a greeting out of turn"),
        }
    }

    /// Decides what becomes of a good hello from outside, by the rules of this module.
    pub(super) fn apply_rules(&mut self, token: usize) {
        let Stage::Deferred { peer: key, ref hello } = self.connections[token].stage else {
            unreachable!("only a connection with a hello is decided on")
        };
        let hello = hello.clone();
        let peer = &mut self.peers[key];
        if let Some(other) = peer.deferred.take_if(|other| *other != token) {
            // The peer dialled again, so it gave the earlier attempt up.
            self.drop_connection(other);
        }
        let peer = &mut self.peers[key];
        peer.deferred = None;
        if let Some(standing) = peer.standing {
            if hello.number < peer.number {
                return self.refuse(token, Reason::Redundant, hello.version);
            }
            self.unlink(standing, "the peer made a new connection");
        } else if let Attempt::Dialling(ours) = peer.attempt {
            let greeting = matches!(self.connections[ours].stage, Stage::Greeting { .. });
            if greeting && self.identity.me < peer.id {
                peer.deferred = Some(token);
                return;
            }
            self.drop_connection(ours);
        }
        let number = self.next_number();
        let welcome = Greeting::Welcome(self.hello(hello.version, hello.process, number));
        match self.greet(token, &welcome) {
            Ok(()) => {
                self.unsettled -= 1;
                self.establish(token, key, &hello, number);
            }
            Err(error) => {
                // Our own dial, if there was one, has been given up for this.
                self.drop_connection(token);
                self.resume(key, &error.to_string());
            }
        }
    }

    pub(super) fn establish(&mut self, token: usize, key: usize, hello: &Hello, number: u32) {
        let connection = &mut self.connections[token];
        connection.stage = Stage::Standing { peer: key };
        connection.limit = None;
        let peer = &mut self.peers[key];
        assert!(peer.standing.is_none(), "one link a pair");
        peer.standing = Some(token);
        peer.attempt = Attempt::Idle;
        peer.route.clear();
        peer.number = hello.number;
        peer.since = self.now;
        peer.told_unlinked = false;
        peer.refusal = None;
        peer.pass = hello.pass.clone();
        peer.told = hello.durable;
        let place = |told: &str, seen: io::Result<SocketAddr>| {
            told.parse().ok().or(seen.ok()).map(|address: SocketAddr| address.ip())
        };
        let stream = &self.connections[token].stream;
        let here = place(&self.identity.address, stream.local_addr());
        // On one machine links carry more.
        let there = place(&hello.address, stream.peer_addr()).filter(|there| Some(*there) != here);
        let port = Some(hello.port).filter(|port| *port != 0 && self.identity.datagram_port != 0);
        peer.mouth = port
            .zip(there)
            .map(|(port, there)| Mouth { address: SocketAddr::new(there, port), token: hello.token });
        peer.token = token_of(self.secret, number);
        self.tokens.insert(peer.token, peer.id);
        peer.voice = hello.voice;
        if hello.voice != 0 {
            // Nobody takes another one's voice away.
            self.tokens.entry(hello.voice).or_insert(peer.id);
        }
        let session = hello.session(self.identity.me, number);
        self.counters.linked.inc();
        self.counters.links.inc();
        debug!("linked to {} of {}, in version {}", peer.id, hello.address, hello.version);
        self.happenings.push_back(Happening::Linked { peer: peer.id, session });
        if let Some(deferred) = peer.deferred {
            self.apply_rules(deferred);
        }
        // It has compared what the peer remembers with what is there: only now does it tell of itself.
        self.notify(token, key);
    }

    /// Where a domain that both belong to stands among those of this process.
    fn common_domain(&self, hello: &Hello) -> Option<usize> {
        self.identity.domains.iter().position(|domain| hello.domains.contains(domain))
    }

    /// Tells whoever asks how this process stands in one of its domains.
    fn answer(&mut self, token: usize, domain: usize, version: u16) {
        let Answer { presence, pass } = self.answers[domain].clone();
        let reason = match presence {
            Presence::Joining => Reason::Joining,
            Presence::Leaderless => Reason::Leaderless,
            Presence::Settled => Reason::Settled,
        };
        let (domain, process) = (self.identity.domains[domain], self.identity.me);
        self.refuse_with(token, Refusal { reason, version, domain, process, pass });
    }

    /// Refuses a hello of this version, or names it as the newest.
    pub(super) fn refuse(&mut self, token: usize, reason: Reason, version: u16) {
        let pass = if reason == Reason::Version { Bytes::new() } else { self.pass() };
        let (domain, process) = (self.identity.domains[0], self.identity.me);
        self.refuse_with(token, Refusal { reason, version, domain, process, pass });
    }

    /// The process that greets remembers more of this one's journal than there is.
    fn has_older_copy(&mut self, token: usize, hello: &Hello) {
        self.happenings.push_back(Happening::OlderCopy { witness: hello.process, told: hello.known });
        self.broke(token, "this process has an older copy of its journal");
    }

    fn refuse_with(&mut self, token: usize, refusal: Refusal) {
        self.counters.refused.inc();
        // If the peer cannot take it, it is none the wiser; we close either way.
        let _ = self.greet(token, &Greeting::Refusal(refusal));
        self.broke(token, "refused");
    }

    pub(super) fn refused(&mut self, token: usize, key: usize, reason: Reason, why: &str) {
        self.counters.refused.inc();
        let peer = &mut self.peers[key];
        if reason != Reason::Redundant {
            // It will not change its mind soon.
            peer.backoff = self.limits.backoff_max;
            if peer.refusal.replace(reason) != Some(reason) {
                warn!(
                    "{} at {} refused this process (of {}): {why}",
                    peer.id,
                    peer.wanted.as_deref().unwrap_or("?"),
                    words(&self.identity.domains)
                );
            }
        }
        self.broke(token, why);
    }

    pub(super) fn next_number(&mut self) -> u32 {
        self.number = self.number.checked_add(1).expect("a process makes fewer than 2^32 connections");
        self.number
    }

    pub(super) fn hello(&self, version: u16, wanted: ProcessId, number: u32) -> Hello {
        let Identity { domains, policy, me, address, versions: _, datagram_port: port, voice } =
            self.identity.clone();
        let (durable, known) = (self.starts.tell(self.durable), self.hearsay.told(wanted));
        let (pass, token) = (policy.pass(), token_of(self.secret, number));
        Hello {
            version,
            domains,
            pass,
            process: me,
            wanted,
            number,
            durable,
            known,
            address,
            port,
            token,
            voice,
        }
    }

    /// Writes a greeting. The socket's buffer is empty and takes it whole, or the connection is of no use.
    pub(super) fn greet(&mut self, token: usize, greeting: &Greeting) -> io::Result<()> {
        let stream = &mut self.connections[token].stream;
        stream.set_nodelay(true)?;
        let patience = self.limits.unacknowledged_timeout;
        sockopt::set_tcp_user_timeout(&*stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
        // The bound is of no use to a link on which nothing is under way: who was cut off while it had nothing to say would
        // never hear that the other end gave up. So the system asks, for the second half of the same time.
        let half = u32::try_from(patience.as_secs() / 2).unwrap_or(u32::MAX).max(1);
        sockopt::set_tcp_keepidle(&*stream, Duration::from_secs(half.into()))?;
        sockopt::set_tcp_keepintvl(&*stream, Duration::from_secs(1))?;
        sockopt::set_tcp_keepcnt(&*stream, half)?;
        sockopt::set_socket_keepalive(&*stream, true)?;
        let bytes = greeting.encode();
        if stream.write(&bytes)? < bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }
}

/// The token of the greeting of this number.
fn token_of(secret: u64, number: u32) -> u64 {
    xxh3_64_with_seed(&number.to_le_bytes(), secret)
}

/// Domains for a log.
fn words(domains: &[DomainId]) -> String {
    let domains: Vec<String> = domains.iter().map(DomainId::to_string).collect();
    format!("domain {}", domains.join(" and "))
}

const ACCEPTS_PER_TURN: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
