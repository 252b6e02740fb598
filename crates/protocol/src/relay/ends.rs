//! Both ends of a session, and the router between them.

use super::{
    AcceptedAttempt, Bytes, Destination, Direct, EndMessage, Ends, Envelope, Message, ProcessId, RETRY_MAX,
    RETRY_MIN, Relay, RelayEvent, RelayState, Relayed, RelayedSession, Session, SessionAttempt, Sink, Stream,
    Ticket, Time, Wire,
};

impl<M: Wire> Ends<M> {
    pub(super) fn tick<P>(&mut self, me: ProcessId, now: Time, inner: &P, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        self.tick_at = now.next_multiple(self.settings.interval);
        self.detector.tick(now);
        let routers = inner.routers();
        let among_routers = |peer: &ProcessId| self.router && routers.contains(peer);
        let neighbours: Vec<ProcessId> =
            self.direct.keys().copied().filter(|peer| !among_routers(peer)).collect();
        if !neighbours.is_empty() {
            out.send(Destination::Many(neighbours), Envelope::Relay(Message::Beat), None);
        }
        let watched: Vec<ProcessId> =
            self.detector.watched().filter(|peer| *peer != me && !among_routers(peer)).collect();
        for peer in watched {
            if self.has_relayed(peer) {
                self.keep_alive(me, now, peer, out);
            }
            if !self.has_relayed(peer) && inner.may_relay_to(peer) {
                self.request_session(me, now, peer, &routers, out);
            }
        }
    }

    /// Sends a sign of life over the session with `peer`. Ends the session instead if the other end is
    /// silent, or if the direct link can be used again.
    fn keep_alive<P>(&mut self, me: ProcessId, now: Time, peer: ProcessId, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        let (hold, fresh) = (self.settings.hold, self.settings.interval * 2);
        let is_well = |direct: &Direct| now.since(direct.since) >= hold && now.since(direct.heard) <= fresh;
        let deaf = self.detector.suspects(peer, now);
        let Some(relayed) = self.relayed(peer) else { return };
        let back = relayed.opener && self.direct.get(&peer).is_some_and(is_well);
        if deaf || back {
            return self.end(me, now, peer, true, out);
        }
        carry(relayed.via, peer, EndMessage::Alive { session: relayed.session }, None, out);
    }

    /// Asks a router for a session with `peer`, if one is needed.
    fn request_session<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        peer: ProcessId,
        routers: &[ProcessId],
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        let suspected = self.detector.suspects(peer, now);
        let concerned = self.wanted.contains_key(&peer) || self.direct.contains_key(&peer);
        if let Some(relay_state) = self.relay_states.get_mut(&peer) {
            relay_state.accepted.take_if(|offer| offer.until <= now);
            let waits = relay_state.attempt.is_some() || relay_state.accepted.is_some();
            if relay_state.attempt.as_ref().is_some_and(|asking| asking.until <= now) {
                self.fail(now, peer);
            } else if !waits && !(concerned && (suspected || relay_state.urgent)) {
                self.relay_states.remove(&peer);
                self.forget_if_unused(peer);
            }
        }
        let (urgent, waits) = self.relay_states.get(&peer).map_or((false, false), |relay_state| {
            (relay_state.urgent, relay_state.attempt.is_some() || relay_state.again > now)
        });
        if !concerned || waits || !(suspected || urgent) {
            return;
        }
        let tried = self.relay_states.get(&peer).and_then(|relay_state| relay_state.tried);
        // The search goes round the list of routers, and begins after the router that was tried last.
        let begin = routers.iter().position(|router| Some(*router) == tried).map_or(0, |at| at + 1);
        let is_way = |router: &&ProcessId| **router != peer && **router != me && self.is_well(**router, now);
        let Some(&via) = routers[begin..].iter().chain(&routers[..begin]).find(is_way) else { return };
        let number = self.next_number();
        let until = now + self.settings.answer_max;
        let relay_state = self.relay_states.entry(peer).or_default();
        relay_state.tried = Some(via);
        relay_state.attempt = Some(SessionAttempt { via, number, until });
        let (router, pass) = (self.router, self.policy.pass());
        carry(via, peer, EndMessage::Open { number, router, pass }, None, out);
    }

    /// Whether a direct link to `peer` stands, and `peer` was heard on it lately.
    fn is_well(&self, peer: ProcessId, now: Time) -> bool {
        self.direct.contains_key(&peer) && !self.has_relayed(peer) && !self.detector.suspects(peer, now)
    }

    fn next_number(&mut self) -> u32 {
        self.number += 1;
        assert!(self.number < 1 << 31, "a process makes fewer than 2^31 attempts");
        self.number
    }

    pub(super) fn fail(&mut self, now: Time, peer: ProcessId) {
        let Some(relay_state) = self.relay_states.get_mut(&peer) else { return };
        relay_state.attempt = None;
        // The first failure may be the router's fault, so it adds no pause, and this end asks the next router
        // at once.
        if relay_state.failures > 0 {
            relay_state.again = now + RETRY_MAX.min(RETRY_MIN * (1 << relay_state.failures.min(8)));
        }
        relay_state.failures += 1;
    }

    pub(super) fn receive<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        from: ProcessId,
        message: Message,
        inner: &P,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        if !self.direct.contains_key(&from) {
            // The message comes from a direct link that was given up.
            return;
        }
        self.hear(from, now);
        match message {
            Message::Beat => {}
            Message::Return => self.follow(me, now, from, out),
            Message::Carry { to, end_message } => self.carry(now, from, to, end_message, out),
            Message::Carried { from: peer, end_message } => {
                if peer == me || peer == from {
                    self.counters.refused += 1;
                    return;
                }
                self.deliver(me, now, (from, peer), end_message, inner, out);
            }
            Message::Undelivered { to } => {
                self.lost_way(me, now, from, to, out);
                if !self.has_relayed(to) {
                    self.request_session(me, now, to, &inner.routers(), out);
                }
            }
        }
    }

    /// Passes a message from one neighbour on to another.
    fn carry<P>(
        &mut self,
        now: Time,
        from: ProcessId,
        to: ProcessId,
        end_message: EndMessage,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        let pair = (from.min(to), from.max(to));
        if !self.router || from == to || !self.is_well(to, now) {
            self.carried.remove(&pair);
            return out.send(Destination::One(from), Envelope::Relay(Message::Undelivered { to }), None);
        }
        match &end_message {
            EndMessage::Begin { .. } => {
                self.carried.insert(pair);
            }
            EndMessage::Close { .. } => {
                self.carried.remove(&pair);
            }
            EndMessage::Data { bytes, .. } => self.counters.carried_bytes += bytes.len() as u64,
            _ => {}
        }
        out.send(Destination::One(to), Envelope::Relay(Message::Carried { from, end_message }), None);
    }

    /// Handles a message of the other end that came through a router.
    fn deliver<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        (via, peer): (ProcessId, ProcessId),
        end_message: EndMessage,
        inner: &P,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        match end_message {
            EndMessage::Open { number, router, pass } => {
                let both_route = self.router && (router || inner.routers().contains(&peer));
                if both_route || !inner.may_relay_to(peer) || !self.policy.admits(&pass) {
                    return carry(via, peer, EndMessage::Refuse { number }, None, out);
                }
                let own = self.next_number();
                let until = now + self.settings.answer_max * 2;
                let relay_state = self.relay_states.entry(peer).or_default();
                if relay_state.attempt.is_some() && me < peer {
                    // Rule 3: the attempt of this end, which has the smaller id, continues.
                    return;
                }
                relay_state.attempt = None;
                let session = name((me, own), (peer, number));
                relay_state.accepted = Some(AcceptedAttempt { via, session, pass, until });
                self.detector.watch(peer, now);
                let pass = self.policy.pass();
                carry(via, peer, EndMessage::Accept { number, own, pass }, None, out);
            }
            EndMessage::Accept { number, own, pass } => {
                let Some(relay_state) = self.relay_states.get_mut(&peer) else { return };
                if relay_state.attempt.as_ref().is_none_or(|it| it.via != via || it.number != number) {
                    return;
                }
                relay_state.attempt = None;
                // Rule 2: the session is no longer needed if the peer was heard meanwhile.
                let needed = relay_state.urgent || self.detector.suspects(peer, now);
                if needed && self.policy.admits(&pass) {
                    let session = name((me, number), (peer, own));
                    carry(via, peer, EndMessage::Begin { session }, None, out);
                    self.begin(now, peer, (via, session, pass, true), out);
                }
            }
            EndMessage::Refuse { number } => {
                let asking =
                    self.relay_states.get(&peer).and_then(|relay_state| relay_state.attempt.as_ref());
                if asking.is_some_and(|asking| asking.via == via && asking.number == number) {
                    self.fail(now, peer);
                }
            }
            EndMessage::Begin { session } => {
                let offer =
                    self.relay_states.get_mut(&peer).and_then(|relay_state| relay_state.accepted.take());
                match offer {
                    Some(offer)
                        if (offer.via, offer.session) == (via, session)
                            && self.policy.admits(&offer.pass) =>
                    {
                        self.begin(now, peer, (via, session, offer.pass, false), out);
                    }
                    _ => carry(via, peer, EndMessage::Close { session }, None, out),
                }
            }
            EndMessage::Data { session, at, last, bytes } => {
                let Some(relayed) = self.relayed_of(peer, via, session) else {
                    return carry(via, peer, EndMessage::Close { session }, None, out);
                };
                let taken = relayed.stream.take(at, last, &bytes);
                if let Some(bytes) = relayed.stream.taken() {
                    carry(via, peer, EndMessage::Taken { session, bytes }, None, out);
                }
                self.detector.heard(peer, now);
                match taken {
                    Ok(Some(frame)) => self.open(me, now, peer, frame, out),
                    Ok(None) => self.events.push_back(RelayEvent::Progress { peer }),
                    Err(_) => self.refuse(me, now, peer, out),
                }
            }
            EndMessage::Taken { session, bytes } => {
                let Some(relayed) = self.relayed_of(peer, via, session) else { return };
                match relayed.stream.credit(bytes) {
                    Ok(()) => pump(peer, relayed, out),
                    Err(_) => return self.refuse(me, now, peer, out),
                }
                self.detector.heard(peer, now);
            }
            EndMessage::Alive { session } => {
                if self.relayed_of(peer, via, session).is_some() {
                    self.detector.heard(peer, now);
                } else {
                    carry(via, peer, EndMessage::Close { session }, None, out);
                }
            }
            EndMessage::Close { session } => {
                if self.relayed_of(peer, via, session).is_some() {
                    self.end(me, now, peer, false, out);
                }
            }
        }
    }

    fn relayed_of(
        &mut self,
        peer: ProcessId,
        via: ProcessId,
        session: Session,
    ) -> Option<&mut RelayedSession> {
        let relayed = self.relay_states.get_mut(&peer)?.relayed.as_mut()?;
        (relayed.via == via && relayed.session == session).then_some(relayed)
    }

    /// Passes the messages of a complete frame to the protocol above.
    fn open<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        peer: ProcessId,
        mut frame: bytes::Bytes,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        while !frame.is_empty() {
            match M::decode(&mut frame) {
                Ok(message) => self.events.push_back(RelayEvent::Message { from: peer, message }),
                Err(_) => return self.refuse(me, now, peer, out),
            }
        }
    }

    /// Ends the session, because the process at the other end broke the rules.
    fn refuse<P>(&mut self, me: ProcessId, now: Time, peer: ProcessId, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        self.counters.refused += 1;
        self.end(me, now, peer, true, out);
    }

    /// Begins a session, and gives up the direct link if there is one.
    fn begin<P>(
        &mut self,
        now: Time,
        peer: ProcessId,
        (via, session, pass, opener): (ProcessId, Session, Bytes, bool),
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        if self.take_relayed(peer).is_some() {
            // The other end must have lost the earlier session, because it would not have begun another one
            // otherwise.
            self.events.push_back(RelayEvent::Unlinked { peer });
        } else if self.direct.contains_key(&peer) {
            self.events.push_back(RelayEvent::Unlinked { peer });
        }
        if self.direct.remove(&peer).is_some() {
            self.abandoned.insert(peer);
            out.forget(peer);
            if let Some(address) = self.wanted.get(&peer) {
                out.reach(peer, address);
            }
        }
        let relay_state = self.relay_states.entry(peer).or_default();
        let tried = relay_state.tried;
        let stream = Stream::default();
        *relay_state = RelayState {
            relayed: Some(RelayedSession { via, session, pass, opener, stream }),
            tried,
            ..RelayState::default()
        };
        self.counters.sessions += 1;
        self.counters.begun += 1;
        self.detector.watch(peer, now);
        self.detector.linked(peer, now);
        self.events.push_back(RelayEvent::Linked { peer, session });
    }

    pub(super) fn take_relayed(&mut self, peer: ProcessId) -> Option<RelayedSession> {
        let relayed = self.relay_states.get_mut(&peer)?.relayed.take()?;
        self.counters.sessions -= 1;
        Some(relayed)
    }

    /// Returns to the direct link, because the other end already speaks on it.
    pub(super) fn follow<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        peer: ProcessId,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        if self.has_relayed(peer) && self.direct.contains_key(&peer) {
            self.end(me, now, peer, false, out);
        }
    }

    /// Ends a session. If a direct link to the peer stands, that link is used from now on.
    pub(super) fn end<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        peer: ProcessId,
        notify: bool,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        let Some(relayed) = self.take_relayed(peer) else { return };
        assert_ne!(relayed.via, me, "no process relays its own link");
        if notify {
            carry(relayed.via, peer, EndMessage::Close { session: relayed.session }, None, out);
        }
        self.events.push_back(RelayEvent::Unlinked { peer });
        if let Some(direct) = self.direct.get(&peer) {
            let session = direct.session;
            self.relay_states.remove(&peer);
            self.detector.linked(peer, now);
            out.send(Destination::One(peer), Envelope::Relay(Message::Return), None);
            self.events.push_back(RelayEvent::Linked { peer, session });
        } else {
            self.detector.unlinked(peer, now);
            if let Some(relay_state) = self.relay_states.get_mut(&peer) {
                relay_state.urgent = true;
            }
            self.forget_if_unused(peer);
        }
    }
}

pub(super) fn carry<P: Relayed>(
    via: ProcessId,
    to: ProcessId,
    end_message: EndMessage,
    after: Option<Ticket>,
    out: &mut dyn Sink<Relay<P>>,
) where
    P::Message: Wire,
{
    out.send(Destination::One(via), Envelope::Relay(Message::Carry { to, end_message }), after);
}

/// Sends as many pieces of a session as the credit allows.
pub(super) fn pump<P: Relayed>(peer: ProcessId, relayed: &mut RelayedSession, out: &mut dyn Sink<Relay<P>>)
where
    P::Message: Wire,
{
    while let Some(piece) = relayed.stream.next() {
        let end_message =
            EndMessage::Data { session: relayed.session, at: piece.at, last: piece.last, bytes: piece.bytes };
        carry(relayed.via, peer, end_message, piece.after, out);
    }
}

/// Returns the name of a session. Both ends compute the same name, because each end contributes a number that
/// it never uses again. The highest bit distinguishes the name from the names of sessions on direct links.
fn name(one: (ProcessId, u32), other: (ProcessId, u32)) -> Session {
    let (low, high) = if one.0 < other.0 { (one.1, other.1) } else { (other.1, one.1) };
    Session(1 << 63 | u64::from(low) << 32 | u64::from(high))
}
