//! Links as the protocol above sees them: told, wanted, and where its messages go.

use super::{
    Arc, Destination, Direct, Ends, Envelope, Figures, Message, Parcel, Policy, ProcessId, Relay, Relayed,
    Road, Session, Sink, Ticket, Time, Up, Wire,
    ends::{carry, pump},
};

impl<M: Wire> Ends<M> {
    pub(super) fn figures(&self) -> Figures {
        Figures { pairs: self.carried.len() as u64, ..self.figures }
    }

    /// Whether every message that comes directly is for the protocol above.
    pub(super) fn is_plain(&self) -> bool {
        self.figures.sessions == 0 && self.severed.is_empty()
    }

    pub(super) fn has_road(&self, peer: ProcessId) -> bool {
        self.figures.sessions > 0 && self.road(peer).is_some()
    }

    pub(super) fn road(&self, peer: ProcessId) -> Option<&Road> {
        self.detours.get(&peer)?.road.as_ref()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.direct.is_empty() || !self.wanted.is_empty()).then_some(self.tick_at)
    }

    /// Something arrived directly.
    pub(super) fn hear(&mut self, from: ProcessId, now: Time) {
        if self.heard == Some((from, now)) {
            return;
        }
        self.heard = Some((from, now));
        let Some(direct) = self.direct.get_mut(&from) else { return };
        if now.since(direct.heard) > self.settings.silence_min {
            // It was out of hearing in between.
            direct.since = now;
        }
        direct.heard = now;
        // While a session stands, its other end must be heard by way of it.
        if !self.has_road(from) {
            self.detector.heard(from, now);
        }
    }

    /// When one of these was heard last, of those with a direct link.
    pub(super) fn heard_of(&self, peers: &[ProcessId]) -> Option<Time> {
        peers.iter().filter_map(|peer| Some(self.direct.get(peer)?.heard)).max()
    }

    // Direct links.

    pub(super) fn linked<P>(
        &mut self,
        now: Time,
        peer: ProcessId,
        session: Session,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        self.severed.remove(&peer);
        self.direct.insert(peer, Direct { session, since: now, heard: now });
        self.detector.watch(peer, now);
        if self.has_road(peer) {
            return;
        }
        if self.detours.remove(&peer).is_some() {
            // It may believe that a session stands.
            out.send(Destination::One(peer), Envelope::Relay(Message::Return), None);
        }
        self.detector.linked(peer, now);
        self.up.push_back(Up::Linked { peer, session });
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
        self.severed.remove(&peer);
        self.direct.remove(&peer);
        if !self.has_road(peer) {
            self.detector.unlinked(peer, now);
            self.up.push_back(Up::Unlinked { peer });
            if !self.wanted.contains_key(&peer) {
                self.leave(peer);
            }
        }
        let pairs: Vec<(ProcessId, ProcessId)> =
            self.carried.iter().copied().filter(|(one, other)| *one == peer || *other == peer).collect();
        for (one, other) in pairs {
            self.carried.remove(&(one, other));
            let left = if one == peer { other } else { one };
            out.send(Destination::One(left), Envelope::Relay(Message::Undelivered { to: peer }), None);
        }
        let ways: Vec<ProcessId> = self.detours.keys().copied().collect();
        for end in ways {
            self.lost_way(me, now, peer, end, out);
        }
    }

    /// The router `via` no longer leads to `end`.
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
        let Some(detour) = self.detours.get_mut(&end) else { return };
        if detour.asking.as_ref().is_some_and(|asking| asking.via == via) {
            self.fail(now, end);
        }
        if self.road(end).is_some_and(|road| road.via == via) {
            self.end(me, now, end, false, out);
        }
    }

    /// Nothing more is known of `peer` once there is no link to it and none is wanted.
    pub(super) fn leave(&mut self, peer: ProcessId) {
        // One that has been accepted may be about to begin a session: that its direct link ends is the first sign.
        let begins =
            self.detours.get(&peer).is_some_and(|detour| detour.offer.is_some() || detour.road.is_some());
        if !begins && !self.direct.contains_key(&peer) && !self.wanted.contains_key(&peer) {
            self.detours.remove(&peer);
            self.detector.unwatch(peer);
        }
    }

    // What the protocol above wants.

    pub(super) fn reach(&mut self, me: ProcessId, now: Time, peer: ProcessId, address: &str) {
        if peer == me {
            return;
        }
        self.wanted.insert(peer, address.to_owned());
        self.detector.watch(peer, now);
        if !self.direct.contains_key(&peer) && !self.has_road(peer) {
            self.detector.unlinked(peer, now);
        }
    }

    pub(super) fn forget<P>(&mut self, me: ProcessId, peer: ProcessId, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        self.wanted.remove(&peer);
        if let Some(road) = self.take_road(peer) {
            carry(road.via, peer, Parcel::Close { session: road.session }, None, out);
            self.up.push_back(Up::Unlinked { peer });
        }
        debug_assert_ne!(peer, me, "nobody wants a link to itself");
        self.detours.remove(&peer);
        self.leave(peer);
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
        let peers: Vec<ProcessId> = self.detours.keys().copied().collect();
        for peer in peers {
            if self.road(peer).is_some_and(|road| !self.policy.admits(&road.pass)) {
                self.end(me, now, peer, true, out);
            }
            if let Some(detour) = self.detours.get_mut(&peer) {
                // Made under the policy before.
                detour.asking = None;
                detour.offer = None;
            }
        }
    }

    /// Whether the protocol above has yet to hear that a link to `peer` broke or stands. What it sends until then is for a link
    /// that is gone.
    fn is_changing(&self, peer: ProcessId) -> bool {
        self.up.iter().any(|news| match news {
            Up::Linked { peer: changed, .. } | Up::Unlinked { peer: changed } => *changed == peer,
            Up::Message { .. } | Up::Progress { .. } => false,
        })
    }

    /// Whether all are reached directly, and the protocol above knows of it: then messages pass as they are.
    pub(super) fn are_direct(&self) -> bool {
        self.figures.sessions == 0 && self.up.is_empty()
    }

    /// Sends to those who are reached by way of a router, and returns the others.
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
            let Some(road) = self.detours.get_mut(&to).and_then(|detour| detour.road.as_mut()) else {
                return false;
            };
            if road.stream.push(message, after).is_err() {
                // It does not read what is sent to it.
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

    /// Sends what sessions have gathered.
    pub(super) fn flush<P>(&mut self, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        if self.figures.sessions == 0 {
            return;
        }
        for (&peer, detour) in &mut self.detours {
            if let Some(road) = &mut detour.road {
                road.stream.seal();
                pump(peer, road, out);
            }
        }
    }
}
