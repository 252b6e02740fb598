//! The handshake: from a connection to a link, or to a refusal.
//!
//! Either side may dial. A connection becomes a link, and the link is *up*, at the acceptor when it has
//! sent its welcome, and at the dialler when the welcome arrives. Every hello and welcome carries a number
//! that grows with each greeting, and that its sender never reuses. When two connections of one pair meet,
//! the acceptor of the later one decides, by rules that cannot lose both connections:
//!
//! 1. A link is up already. If the new hello's number is higher than that of the greeting that made the
//!    link, the hello's sender has lost that link (otherwise it would not dial), so the new connection
//!    replaces it. If the number is lower, the hello was sent before the link was made, and is refused as
//!    redundant.
//! 2. No link is up, but our own hello to that peer is under way. Then the connection dialled by the
//!    *smaller* id is preferred. If the peer has the smaller id, its hello is accepted and our own dial given
//!    up. If we have the smaller id, the answer is deferred until our dial has succeeded or failed, and then
//!    the rules are applied again.
//! 3. Otherwise the hello is accepted. If we are dialling but have not sent a hello yet, that attempt is
//!    given up.
//!
//! Before these rules, each end compares the other's memory of its journal with the journal itself. An end
//! with an older copy makes no link ([`RemoteDurability`](quorate_protocol::journal::RemoteDurability)).
//!
//! While no link is up, rules 2 and 3 give up a connection only in the step in which another connection
//! becomes the link.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
};

use bytes::Bytes;
use quorate_protocol::{DomainId, Duration, ProcessId};
use rustix::net::sockopt;
use tracing::{debug, info, warn};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{ConnectionState, DialState, LinkEvent, LinkTimer, Links, LocalProcess};
use crate::datagram::DatagramAddress;
use crate::discover::{DomainAnswer, DomainState, NO_PROCESS};
use crate::hello::{Greeting, Hello, HelloRefusal, NoGreeting, Reason};

impl Links {
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listeners[index].accept() {
                Ok((stream, _)) => {
                    if self.handshakes >= self.limits.unsettled_max
                        || self.connections.len() >= self.limits.connections_max
                    {
                        self.counters.crowded.inc();
                        continue;
                    }
                    match self.add(stream, ConnectionState::Accepted, self.limits.hello_timeout) {
                        Ok(_) => self.handshakes += 1,
                        Err(error) => warn!(
                            %error,
                            "cannot serve a connection that was accepted, so the connection is closed"
                        ),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // Most likely the process has no file descriptors left. The poll will not report this
                    // listener again, so a timer makes the next attempt.
                    warn!(%error, "this process cannot accept connections now, and will try again");
                    self.timers.insert((self.now + ACCEPT_PAUSE, LinkTimer::Accept(index)));
                    return;
                }
            }
        }
        self.timers.insert((self.now, LinkTimer::Accept(index)));
    }

    pub(super) fn take_greeting(&mut self, token: usize, greeting: Result<Greeting, NoGreeting>) {
        let me = self.identity.me;
        match (&self.connections[token].state, greeting) {
            (ConnectionState::Accepted, Ok(Greeting::Hello(hello))) => {
                let Some(common) = self.common_domain(&hello) else {
                    let theirs = words(&hello.domains);
                    let ours = words(&self.identity.domains);
                    if hello.wanted == NO_PROCESS {
                        // The dialler only asks whether this process is a router of its domain. A refusal is
                        // normal, because most processes belong to another domain.
                        debug!("answered a client that asked about {theirs}: this process belongs to {ours}");
                    } else {
                        warn!(
                            "refused a connection from process {} of {theirs}: this process belongs to \
                             {ours}",
                            hello.process
                        );
                    }
                    return self.refuse(token, Reason::Domain, hello.version);
                };
                if hello.wanted == NO_PROCESS {
                    self.answer(token, common, hello.version);
                } else if hello.wanted != me || hello.process == me {
                    debug!(
                        "refused a connection from process {}: that process wants {}, and this process is \
                         {me}",
                        hello.process, hello.wanted
                    );
                    self.refuse(token, Reason::WrongProcess, hello.version);
                } else if !self.identity.policy.admits(&hello.pass) {
                    let Hello { version, process, pass, .. } = hello;
                    warn!(
                        "refused a connection from process {process}: {}",
                        self.identity.policy.refusal(&pass)
                    );
                    self.refuse(token, Reason::Policy, version);
                    self.link_events.push_back(LinkEvent::PolicyMismatch { peer: process, theirs: pass });
                } else if !self.starts.holds(hello.known) {
                    self.has_older_copy(token, &hello);
                } else {
                    let peer = self.peer_key(hello.process);
                    self.connections[token].state =
                        ConnectionState::Deferred { peer, hello: Box::new(hello) };
                    self.apply_rules(token);
                }
            }
            (ConnectionState::Accepted, Err(NoGreeting::Version(version))) => {
                let (oldest, newest) = self.identity.versions.clone().into_inner();
                info!(
                    "refused a connection: the peer speaks protocol version {version}, and this process \
                     speaks versions {oldest} to {newest}"
                );
                self.refuse(token, Reason::Version, newest);
            }
            (&ConnectionState::Greeting { peer, number, version }, Ok(Greeting::Welcome(hello)))
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
                    // The peer sent its welcome before one of the two processes changed its policy.
                    self.broke(token, &self.identity.policy.refusal(&hello.pass));
                    self.link_events
                        .push_back(LinkEvent::PolicyMismatch { peer: hello.process, theirs: hello.pass });
                }
            }
            (&ConnectionState::Greeting { peer, version, .. }, Ok(Greeting::Refusal(refusal)))
                if refusal.reason == Reason::Version
                    && refusal.version < version
                    && self.identity.versions.contains(&refusal.version) =>
            {
                self.peers[peer].version = Some(refusal.version);
                // The peer is dialled again at once, at the same address, because this address has not
                // failed.
                self.peers[peer].route.extend(self.connections[token].stream.peer_addr());
                self.broke(token, &refusal.to_string());
            }
            (&ConnectionState::Greeting { peer, .. }, Ok(Greeting::Refusal(refusal))) => {
                let by_policy = refusal.reason == Reason::Policy;
                let why = match by_policy {
                    true => self.identity.policy.refusal(&refusal.pass),
                    false => refusal.to_string(),
                };
                self.refused(token, peer, refusal.reason, &why);
                if by_policy {
                    let HelloRefusal { process, pass, .. } = refusal;
                    self.link_events.push_back(LinkEvent::PolicyMismatch { peer: process, theirs: pass });
                }
            }
            (&ConnectionState::Greeting { peer, .. }, Err(version @ NoGreeting::Version(_))) => {
                self.refused(token, peer, Reason::Version, &version.to_string());
            }
            (_, Err(error)) => self.garbage(token, &error.to_string()),
            (_, Ok(_)) => self.garbage(token, "the peer sent a greeting out of turn"),
        }
    }

    /// Accepts, refuses or defers a valid hello, by the rules of this module.
    pub(super) fn apply_rules(&mut self, token: usize) {
        let ConnectionState::Deferred { peer: key, ref hello } = self.connections[token].state else {
            unreachable!("only a connection with a hello is accepted or refused")
        };
        let hello = hello.clone();
        let peer = &mut self.peers[key];
        if let Some(other) = peer.deferred.take_if(|other| *other != token) {
            // The peer has dialled a second time, so it has given up its earlier attempt.
            self.drop_connection(other);
        }
        let peer = &mut self.peers[key];
        peer.deferred = None;
        if let Some(link) = peer.link {
            if hello.number < peer.number {
                return self.refuse(token, Reason::Redundant, hello.version);
            }
            self.unlink(link, "the peer made a new connection");
        } else if let DialState::Dialling(ours) = peer.attempt {
            let greeting = matches!(self.connections[ours].state, ConnectionState::Greeting { .. });
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
                self.handshakes -= 1;
                self.establish(token, key, &hello, number);
            }
            Err(error) => {
                // Our own dial to this peer was already given up in favour of this connection, so the peer
                // may have to be dialled again.
                self.drop_connection(token);
                self.resume(key, &error.to_string());
            }
        }
    }

    pub(super) fn establish(&mut self, token: usize, key: usize, hello: &Hello, number: u32) {
        let connection = &mut self.connections[token];
        connection.state = ConnectionState::Linked { peer: key };
        connection.limit = None;
        let peer = &mut self.peers[key];
        assert!(peer.link.is_none(), "two processes have at most one link");
        peer.link = Some(token);
        peer.attempt = DialState::Idle;
        peer.route.clear();
        peer.number = hello.number;
        peer.since = self.now;
        peer.outage_reported = false;
        peer.refusal = None;
        peer.pass = hello.pass.clone();
        peer.reported = hello.durable;
        let place = |address: &str, seen: io::Result<SocketAddr>| {
            address.parse().ok().or(seen.ok()).map(|address: SocketAddr| address.ip())
        };
        let stream = &self.connections[token].stream;
        let here = place(&self.identity.address, stream.local_addr());
        // Between processes on one machine, links are faster than datagrams.
        let there = place(&hello.address, stream.peer_addr()).filter(|there| Some(*there) != here);
        let port = Some(hello.port).filter(|port| *port != 0 && self.identity.datagram_port != 0);
        peer.datagram_address = port.zip(there).map(|(port, there)| DatagramAddress {
            address: SocketAddr::new(there, port),
            token: hello.token,
        });
        peer.token = token_of(self.secret, number);
        self.tokens.insert(peer.token, peer.id);
        peer.multicast_token = hello.multicast_token;
        if hello.multicast_token != 0 {
            // A token stays with the peer that announced it first, so that no other process can take it over.
            self.tokens.entry(hello.multicast_token).or_insert(peer.id);
        }
        let session = hello.session(self.identity.me, number);
        self.counters.linked.inc();
        self.counters.links.inc();
        debug!("linked to process {} at {}, with protocol version {}", peer.id, hello.address, hello.version);
        self.link_events.push_back(LinkEvent::Linked { peer: peer.id, session });
        if let Some(deferred) = peer.deferred {
            self.apply_rules(deferred);
        }
        // The peer does not remember more of this process's journal than there is, so this process may
        // announce its own records.
        self.notify(token, key);
    }

    /// Returns the index, among this process's domains, of a domain that the peer shares.
    fn common_domain(&self, hello: &Hello) -> Option<usize> {
        self.identity.domains.iter().position(|domain| hello.domains.contains(domain))
    }

    /// Answers a process that asks about one of this process's domains.
    fn answer(&mut self, token: usize, domain: usize, version: u16) {
        let DomainAnswer { presence, pass } = self.answers[domain].clone();
        let reason = match presence {
            DomainState::Joining => Reason::Joining,
            DomainState::Leaderless => Reason::Leaderless,
            DomainState::Settled => Reason::Settled,
        };
        let (domain, process) = (self.identity.domains[domain], self.identity.me);
        self.refuse_with(token, HelloRefusal { reason, version, domain, process, pass });
    }

    /// Refuses a hello. `version` is the hello's version or, for [`Reason::Version`], the newest version that
    /// this process speaks.
    pub(super) fn refuse(&mut self, token: usize, reason: Reason, version: u16) {
        let pass = if reason == Reason::Version { Bytes::new() } else { self.pass() };
        let (domain, process) = (self.identity.domains[0], self.identity.me);
        self.refuse_with(token, HelloRefusal { reason, version, domain, process, pass });
    }

    /// Reports that the peer remembers more of this process's journal than this process has, and drops the
    /// connection.
    fn has_older_copy(&mut self, token: usize, hello: &Hello) {
        self.link_events.push_back(LinkEvent::OlderCopy { witness: hello.process, report: hello.known });
        self.broke(token, "this process has an older copy of its journal");
    }

    fn refuse_with(&mut self, token: usize, refusal: HelloRefusal) {
        self.counters.refused.inc();
        // The peer may not receive this refusal, but the connection closes in either case.
        let _ = self.greet(token, &Greeting::Refusal(refusal));
        self.broke(token, "refused");
    }

    pub(super) fn refused(&mut self, token: usize, key: usize, reason: Reason, why: &str) {
        self.counters.refused.inc();
        let peer = &mut self.peers[key];
        if reason != Reason::Redundant {
            // The peer is unlikely to change its mind soon, so the next attempt comes as late as possible.
            peer.backoff = self.limits.backoff_max;
            if peer.refusal.replace(reason) != Some(reason) {
                warn!(
                    "process {} at {} refused a connection from this process (of {}): {why}",
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
        let LocalProcess { domains, policy, me, address, versions: _, datagram_port: port, multicast_token } =
            self.identity.clone();
        let (durable, known) = (self.starts.report(self.durable), self.remote_durability.last_report(wanted));
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
            multicast_token,
        }
    }

    /// Writes a greeting. The socket's buffer is empty, so the socket takes a greeting completely; otherwise
    /// the connection is useless.
    pub(super) fn greet(&mut self, token: usize, greeting: &Greeting) -> io::Result<()> {
        let stream = &mut self.connections[token].stream;
        stream.set_nodelay(true)?;
        let patience = self.limits.unacknowledged_timeout;
        sockopt::set_tcp_user_timeout(&*stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
        // The user timeout acts only while bytes are unacknowledged, so an idle process that was cut off
        // would never learn that the other end has given up. Therefore the system probes an idle peer in the
        // second half of the same time.
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

/// Derives, from the secret, the token of the greeting with this number.
fn token_of(secret: u64, number: u32) -> u64 {
    xxh3_64_with_seed(&number.to_le_bytes(), secret)
}

/// Formats domains for a log.
fn words(domains: &[DomainId]) -> String {
    let domains: Vec<String> = domains.iter().map(DomainId::to_string).collect();
    format!("domain {}", domains.join(" and "))
}

const ACCEPTS_PER_TURN: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
