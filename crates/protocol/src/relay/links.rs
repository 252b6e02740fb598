//! The links that the protocol above sees: their announcements, its requests for links, and the ways that its
//! messages take.

use super::{
    Arc, Counters, Destination, Direct, EndMessage, Ends, Envelope, Message, Policy, ProcessId, Relay,
    RelayEvent, Relayed, RelayedSession, Session, Sink, Ticket, Time, Wire,
    ends::{carry, pump},
};

impl<M: Wire> Ends<M> {
    pub(super) fn counters(&self) -> Counters {
        Counters { pairs: self.carried.len() as u64, ..self.counters }
    }

    /// Whether every direct message may go to the protocol above without a further check.
    pub(super) fn is_plain(&self) -> bool {
        self.counters.sessions == 0 && self.abandoned.is_empty()
    }

    pub(super) fn has_relayed(&self, peer: ProcessId) -> bool {
        self.counters.sessions > 0 && self.relayed(peer).is_some()
    }

    pub(super) fn relayed(&self, peer: ProcessId) -> Option<&RelayedSession> {
        self.relay_states.get(&peer)?.relayed.as_ref()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.direct.is_empty() || !self.wanted.is_empty()).then_some(self.tick_at)
    }

    /// Records that a direct message arrived from `from`.
    pub(super) fn hear(&mut self, from: ProcessId, now: Time) {
        if self.heard == Some((from, now)) {
            return;
        }
        self.heard = Some((from, now));
        let Some(direct) = self.direct.get_mut(&from) else { return };
        if now.since(direct.heard) > self.settings.silence_min {
            // The peer was silent for too long in between, so the time for which the link was heard begins
            // again.
            direct.since = now;
        }
        direct.heard = now;
        // While a session stands, its other end must be heard through it.
        if !self.has_relayed(from) {
            self.detector.heard(from, now);
        }
    }

    /// Returns the time at which any of these peers was last heard on a direct link.
    pub(super) fn heard_of(&self, peers: &[ProcessId]) -> Option<Time> {
        peers.iter().filter_map(|peer| Some(self.direct.get(peer)?.heard)).max()
    }

    pub(super) fn linked<P>(
        &mut self,
        now: Time,
        peer: ProcessId,
        session: Session,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        self.abandoned.remove(&peer);
        self.direct.insert(peer, Direct { session, since: now, heard: now });
        self.detector.watch(peer, now);
        if self.has_relayed(peer) {
            return;
        }
        if self.relay_states.remove(&peer).is_some() {
            // The peer may believe that the relayed session still stands.
            out.send(Destination::One(peer), Envelope::Relay(Message::Return), None);
        }
        self.detector.linked(peer, now);
        self.events.push_back(RelayEvent::Linked { peer, session });
    }

    pub(super) fn unlinked<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        peer: ProcessId,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        self.abandoned.remove(&peer);
        self.direct.remove(&peer);
        if !self.has_relayed(peer) {
            self.detector.unlinked(peer, now);
            self.events.push_back(RelayEvent::Unlinked { peer });
            if !self.wanted.contains_key(&peer) {
                self.forget_if_unused(peer);
            }
        }
        let pairs: Vec<(ProcessId, ProcessId)> =
            self.carried.iter().copied().filter(|(one, other)| *one == peer || *other == peer).collect();
        for (one, other) in pairs {
            self.carried.remove(&(one, other));
            let left = if one == peer { other } else { one };
            out.send(Destination::One(left), Envelope::Relay(Message::Undelivered { to: peer }), None);
        }
        let ways: Vec<ProcessId> = self.relay_states.keys().copied().collect();
        for end in ways {
            self.lost_way(me, now, peer, end, out);
        }
    }

    /// Handles the loss of the way through router `via` to `end`.
    pub(super) fn lost_way<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        via: ProcessId,
        end: ProcessId,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        let Some(relay_state) = self.relay_states.get_mut(&end) else { return };
        if relay_state.attempt.as_ref().is_some_and(|asking| asking.via == via) {
            self.fail(now, end);
        }
        if self.relayed(end).is_some_and(|relayed| relayed.via == via) {
            self.end(me, now, end, false, out);
        }
    }

    /// Forgets `peer` if it has no link and none is wanted.
    pub(super) fn forget_if_unused(&mut self, peer: ProcessId) {
        // A peer whose attempt was accepted may be about to begin a session. Then the first sign of the
        // session is the end of the peer's direct link.
        let begins = self
            .relay_states
            .get(&peer)
            .is_some_and(|relay_state| relay_state.accepted.is_some() || relay_state.relayed.is_some());
        if !begins && !self.direct.contains_key(&peer) && !self.wanted.contains_key(&peer) {
            self.relay_states.remove(&peer);
            self.detector.unwatch(peer);
        }
    }

    pub(super) fn reach(&mut self, me: ProcessId, now: Time, peer: ProcessId, address: &str) {
        if peer == me {
            return;
        }
        self.wanted.insert(peer, address.to_owned());
        self.detector.watch(peer, now);
        if !self.direct.contains_key(&peer) && !self.has_relayed(peer) {
            self.detector.unlinked(peer, now);
        }
    }

    pub(super) fn forget<P>(&mut self, me: ProcessId, peer: ProcessId, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        self.wanted.remove(&peer);
        if let Some(relayed) = self.take_relayed(peer) {
            carry(relayed.via, peer, EndMessage::Close { session: relayed.session }, None, out);
            self.events.push_back(RelayEvent::Unlinked { peer });
        }
        debug_assert_ne!(peer, me, "no process wants a link to itself");
        self.relay_states.remove(&peer);
        self.forget_if_unused(peer);
    }

    pub(super) fn adopt<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        policy: Arc<dyn Policy>,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        self.policy = policy;
        let peers: Vec<ProcessId> = self.relay_states.keys().copied().collect();
        for peer in peers {
            if self.relayed(peer).is_some_and(|relayed| !self.policy.admits(&relayed.pass)) {
                self.end(me, now, peer, true, out);
            }
            if let Some(relay_state) = self.relay_states.get_mut(&peer) {
                // The attempt was made under the former policy, so it is dropped.
                relay_state.attempt = None;
                relay_state.accepted = None;
            }
        }
    }

    /// Whether the link to `peer` broke or came up, and the protocol above has not yet been notified. Until
    /// then, messages that the protocol sends to `peer` belong to an earlier link.
    fn is_changing(&self, peer: ProcessId) -> bool {
        self.events.iter().any(|news| match news {
            RelayEvent::Linked { peer: changed, .. } | RelayEvent::Unlinked { peer: changed } => {
                *changed == peer
            }
            RelayEvent::Message { .. } | RelayEvent::Progress { .. } => false,
        })
    }

    /// Whether all peers are reached directly, and the protocol above knows this. If so, its messages need no
    /// conversion.
    pub(super) fn are_direct(&self) -> bool {
        self.counters.sessions == 0 && self.events.is_empty()
    }

    /// Sends a message to the destinations that are reached through a router. Returns the other destinations.
    pub(super) fn divert<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        to: Destination,
        message: &M,
        after: Option<Ticket>,
        out: &mut dyn Sink<Relay<P>>,
    ) -> Option<Destination>
    where
        P: Relayed<Message = M>,
    {
        let mut push = |to: ProcessId| {
            if self.is_changing(to) {
                return true;
            }
            let Some(relayed) =
                self.relay_states.get_mut(&to).and_then(|relay_state| relay_state.relayed.as_mut())
            else {
                return false;
            };
            if relayed.stream.push(message, after).is_err() {
                // The queue is full, because the peer does not read its messages.
                self.end(me, now, to, true, out);
            }
            true
        };
        match to {
            Destination::One(to) => (!push(to)).then_some(Destination::One(to)),
            Destination::Many(mut many) => {
                many.retain(|&to| !push(to));
                (!many.is_empty()).then_some(Destination::Many(many))
            }
        }
    }

    /// Sends the messages that sessions have gathered.
    pub(super) fn flush<P>(&mut self, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        if self.counters.sessions == 0 {
            return;
        }
        for (&peer, relay_state) in &mut self.relay_states {
            if let Some(relayed) = &mut relay_state.relayed {
                relayed.stream.seal();
                pump(peer, relayed, out);
            }
        }
    }
}
