//! Both ends of a session, and the router between them.

use super::{
    Asking, Bytes, Destination, Detour, Direct, Ends, Envelope, Message, Offer, Parcel, ProcessId, RETRY_MAX,
    RETRY_MIN, Relay, Relayed, Road, Session, Sink, Stream, Ticket, Time, Up, Wire,
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
            if self.has_road(peer) {
                self.tend(me, now, peer, out);
            }
            if !self.has_road(peer) {
                self.seek(me, now, peer, &routers, out);
            }
        }
    }

    /// Keeps a session alive, and ends it when it is deaf or not needed any more.
    fn tend<P>(&mut self, me: ProcessId, now: Time, peer: ProcessId, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        let (hold, fresh) = (self.settings.hold, self.settings.interval * 2);
        let is_well = |direct: &Direct| now.since(direct.since) >= hold && now.since(direct.heard) <= fresh;
        let deaf = self.detector.suspects(peer, now);
        let Some(road) = self.road(peer) else { return };
        let back = road.opener && self.direct.get(&peer).is_some_and(is_well);
        if deaf || back {
            return self.end(me, now, peer, true, out);
        }
        carry(road.via, peer, Parcel::Alive { session: road.session }, None, out);
    }

    /// Asks a router for a way to `peer`, if there is reason.
    fn seek<P>(
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
        if let Some(detour) = self.detours.get_mut(&peer) {
            detour.offer.take_if(|offer| offer.until <= now);
            let waits = detour.asking.is_some() || detour.offer.is_some();
            if detour.asking.as_ref().is_some_and(|asking| asking.until <= now) {
                self.fail(now, peer);
            } else if !waits && !(concerned && (suspected || detour.urgent)) {
                self.detours.remove(&peer);
                self.leave(peer);
            }
        }
        let (urgent, waits) = self
            .detours
            .get(&peer)
            .map_or((false, false), |detour| (detour.urgent, detour.asking.is_some() || detour.again > now));
        if !concerned || waits || !(suspected || urgent) {
            return;
        }
        let tried = self.detours.get(&peer).and_then(|detour| detour.tried);
        // The one behind the last that was tried, in a circle.
        let begin = routers.iter().position(|router| Some(*router) == tried).map_or(0, |at| at + 1);
        let is_way = |router: &&ProcessId| **router != peer && **router != me && self.is_well(**router, now);
        let Some(&via) = routers[begin..].iter().chain(&routers[..begin]).find(is_way) else { return };
        let number = self.next_number();
        let until = now + self.settings.answer_max;
        let detour = self.detours.entry(peer).or_default();
        detour.tried = Some(via);
        detour.asking = Some(Asking { via, number, until });
        let (router, pass) = (self.router, self.policy.pass());
        carry(via, peer, Parcel::Open { number, router, pass }, None, out);
    }

    /// Whether a direct link to `peer` stands and is heard.
    fn is_well(&self, peer: ProcessId, now: Time) -> bool {
        self.direct.contains_key(&peer) && !self.has_road(peer) && !self.detector.suspects(peer, now)
    }

    fn next_number(&mut self) -> u32 {
        self.number += 1;
        assert!(self.number < 1 << 31, "a process makes fewer than 2^31 attempts");
        self.number
    }

    pub(super) fn fail(&mut self, now: Time, peer: ProcessId) {
        let Some(detour) = self.detours.get_mut(&peer) else { return };
        detour.asking = None;
        // The first failure may be the router's: the next one is asked at once.
        if detour.failures > 0 {
            detour.again = now + RETRY_MAX.min(RETRY_MIN * (1 << detour.failures.min(8)));
        }
        detour.failures += 1;
    }

    // Messages.

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
            // It comes from a link that was given up.
            return;
        }
        self.hear(from, now);
        match message {
            Message::Beat => {}
            Message::Return => self.follow(me, now, from, out),
            Message::Carry { to, parcel } => self.carry(now, from, to, parcel, out),
            Message::Carried { from: peer, parcel } => {
                if peer == me || peer == from {
                    self.figures.refused += 1;
                    return;
                }
                self.deliver(me, now, (from, peer), parcel, inner, out);
            }
            Message::Undelivered { to } => {
                self.lost_way(me, now, from, to, out);
                if !self.has_road(to) {
                    self.seek(me, now, to, &inner.routers(), out);
                }
            }
        }
    }

    /// Passes on what one neighbour has for another.
    fn carry<P>(
        &mut self,
        now: Time,
        from: ProcessId,
        to: ProcessId,
        parcel: Parcel,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        let pair = (from.min(to), from.max(to));
        if !self.router || from == to || !self.is_well(to, now) {
            self.carried.remove(&pair);
            return out.send(Destination::One(from), Envelope::Relay(Message::Undelivered { to }), None);
        }
        match &parcel {
            Parcel::Begin { .. } => {
                self.carried.insert(pair);
            }
            Parcel::Close { .. } => {
                self.carried.remove(&pair);
            }
            Parcel::Data { bytes, .. } => self.figures.carried_bytes += bytes.len() as u64,
            _ => {}
        }
        out.send(Destination::One(to), Envelope::Relay(Message::Carried { from, parcel }), None);
    }

    /// The other end says something by way of a router.
    fn deliver<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        (via, peer): (ProcessId, ProcessId),
        parcel: Parcel,
        inner: &P,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        match parcel {
            Parcel::Open { number, router, pass } => {
                let both_route = self.router && (router || inner.routers().contains(&peer));
                if both_route || !self.policy.admits(&pass) {
                    return carry(via, peer, Parcel::Refuse { number }, None, out);
                }
                let own = self.next_number();
                let until = now + self.settings.answer_max * 2;
                let detour = self.detours.entry(peer).or_default();
                if detour.asking.is_some() && me < peer {
                    // Rule 3: ours goes on.
                    return;
                }
                detour.asking = None;
                let session = name((me, own), (peer, number));
                detour.offer = Some(Offer { via, session, pass, until });
                self.detector.watch(peer, now);
                let pass = self.policy.pass();
                carry(via, peer, Parcel::Accept { number, own, pass }, None, out);
            }
            Parcel::Accept { number, own, pass } => {
                let Some(detour) = self.detours.get_mut(&peer) else { return };
                if detour.asking.as_ref().is_none_or(|it| it.via != via || it.number != number) {
                    return;
                }
                detour.asking = None;
                // Rule 2: it may have been heard meanwhile.
                let needed = detour.urgent || self.detector.suspects(peer, now);
                if needed && self.policy.admits(&pass) {
                    let session = name((me, number), (peer, own));
                    carry(via, peer, Parcel::Begin { session }, None, out);
                    self.begin(now, peer, (via, session, pass, true), out);
                }
            }
            Parcel::Refuse { number } => {
                let asking = self.detours.get(&peer).and_then(|detour| detour.asking.as_ref());
                if asking.is_some_and(|asking| asking.via == via && asking.number == number) {
                    self.fail(now, peer);
                }
            }
            Parcel::Begin { session } => {
                let offer = self.detours.get_mut(&peer).and_then(|detour| detour.offer.take());
                match offer {
                    Some(offer)
                        if (offer.via, offer.session) == (via, session)
                            && self.policy.admits(&offer.pass) =>
                    {
                        self.begin(now, peer, (via, session, offer.pass, false), out);
                    }
                    _ => carry(via, peer, Parcel::Close { session }, None, out),
                }
            }
            Parcel::Data { session, at, last, bytes } => {
                let Some(road) = self.road_of(peer, via, session) else {
                    return carry(via, peer, Parcel::Close { session }, None, out);
                };
                let taken = road.stream.take(at, last, &bytes);
                if let Some(bytes) = road.stream.taken() {
                    carry(via, peer, Parcel::Taken { session, bytes }, None, out);
                }
                self.detector.heard(peer, now);
                match taken {
                    Ok(Some(frame)) => self.open(me, now, peer, frame, out),
                    Ok(None) => self.up.push_back(Up::Progress { peer }),
                    Err(_) => self.refuse(me, now, peer, out),
                }
            }
            Parcel::Taken { session, bytes } => {
                let Some(road) = self.road_of(peer, via, session) else { return };
                match road.stream.credit(bytes) {
                    Ok(()) => pump(peer, road, out),
                    Err(_) => return self.refuse(me, now, peer, out),
                }
                self.detector.heard(peer, now);
            }
            Parcel::Alive { session } => {
                if self.road_of(peer, via, session).is_some() {
                    self.detector.heard(peer, now);
                } else {
                    carry(via, peer, Parcel::Close { session }, None, out);
                }
            }
            Parcel::Close { session } => {
                if self.road_of(peer, via, session).is_some() {
                    self.end(me, now, peer, false, out);
                }
            }
        }
    }

    fn road_of(&mut self, peer: ProcessId, via: ProcessId, session: Session) -> Option<&mut Road> {
        let road = self.detours.get_mut(&peer)?.road.as_mut()?;
        (road.via == via && road.session == session).then_some(road)
    }

    /// Hands over the messages of a frame.
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
                Ok(message) => self.up.push_back(Up::Message { from: peer, message }),
                Err(_) => return self.refuse(me, now, peer, out),
            }
        }
    }

    /// The other end breaks the rules.
    fn refuse<P>(&mut self, me: ProcessId, now: Time, peer: ProcessId, out: &mut dyn Sink<Relay<P>>)
    where
        P: Relayed<Message = M>,
    {
        self.figures.refused += 1;
        self.end(me, now, peer, true, out);
    }

    // How sessions begin and end.

    /// A session stands. The direct link, if there is one, is given up.
    fn begin<P>(
        &mut self,
        now: Time,
        peer: ProcessId,
        (via, session, pass, opener): (ProcessId, Session, Bytes, bool),
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        if self.take_road(peer).is_some() {
            // The other end has lost that one, or it would not have made another.
            self.up.push_back(Up::Unlinked { peer });
        } else if self.direct.contains_key(&peer) {
            self.up.push_back(Up::Unlinked { peer });
        }
        if self.direct.remove(&peer).is_some() {
            self.severed.insert(peer);
            out.forget(peer);
            if let Some(address) = self.wanted.get(&peer) {
                out.reach(peer, address);
            }
        }
        let detour = self.detours.entry(peer).or_default();
        let tried = detour.tried;
        let stream = Stream::default();
        *detour =
            Detour { road: Some(Road { via, session, pass, opener, stream }), tried, ..Detour::default() };
        self.figures.sessions += 1;
        self.figures.begun += 1;
        self.detector.watch(peer, now);
        self.detector.linked(peer, now);
        self.up.push_back(Up::Linked { peer, session });
    }

    pub(super) fn take_road(&mut self, peer: ProcessId) -> Option<Road> {
        let road = self.detours.get_mut(&peer)?.road.take()?;
        self.figures.sessions -= 1;
        Some(road)
    }

    /// The other end speaks directly: so does this one.
    pub(super) fn follow<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        peer: ProcessId,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        if self.has_road(peer) && self.direct.contains_key(&peer) {
            self.end(me, now, peer, false, out);
        }
    }

    /// A session is over. If a direct link stands, it is used from now on.
    pub(super) fn end<P>(
        &mut self,
        me: ProcessId,
        now: Time,
        peer: ProcessId,
        tell: bool,
        out: &mut dyn Sink<Relay<P>>,
    ) where
        P: Relayed<Message = M>,
    {
        let Some(road) = self.take_road(peer) else { return };
        assert_ne!(road.via, me, "nobody is a relay of its own");
        if tell {
            carry(road.via, peer, Parcel::Close { session: road.session }, None, out);
        }
        self.up.push_back(Up::Unlinked { peer });
        if let Some(direct) = self.direct.get(&peer) {
            let session = direct.session;
            self.detours.remove(&peer);
            self.detector.linked(peer, now);
            out.send(Destination::One(peer), Envelope::Relay(Message::Return), None);
            self.up.push_back(Up::Linked { peer, session });
        } else {
            self.detector.unlinked(peer, now);
            if let Some(detour) = self.detours.get_mut(&peer) {
                detour.urgent = true;
            }
            self.leave(peer);
        }
    }
}

pub(super) fn carry<P: Relayed>(
    via: ProcessId,
    to: ProcessId,
    parcel: Parcel,
    after: Option<Ticket>,
    out: &mut dyn Sink<Relay<P>>,
) where
    P::Message: Wire,
{
    out.send(Destination::One(via), Envelope::Relay(Message::Carry { to, parcel }), after);
}

/// Sends as much of a session as there is credit for.
pub(super) fn pump<P: Relayed>(peer: ProcessId, road: &mut Road, out: &mut dyn Sink<Relay<P>>)
where
    P::Message: Wire,
{
    while let Some(piece) = road.stream.next() {
        let parcel =
            Parcel::Data { session: road.session, at: piece.at, last: piece.last, bytes: piece.bytes };
        carry(road.via, peer, parcel, piece.after, out);
    }
}

/// The name of a session: both ends make the same, of a number of each that is never used again. The highest bit tells it
/// from the sessions of direct links.
fn name(one: (ProcessId, u32), other: (ProcessId, u32)) -> Session {
    let (low, high) = if one.0 < other.0 { (one.1, other.1) } else { (other.1, one.1) };
    Session(1 << 63 | u64::from(low) << 32 | u64::from(high))
}
