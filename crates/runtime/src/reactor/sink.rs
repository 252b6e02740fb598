//! The sink that a protocol writes to. It passes output to links, datagrams, the journal and the host.

use std::sync::Arc;

use quorate_protocol::{
    Destination, MulticastAddress, Policy, ProcessId, Protocol, Sink, Ticket, Time, wire::Wire,
};

use super::{Durable, Host, PendingOutputs};
use crate::{
    datagram::Datagrams,
    link::{Links, SendOutcome},
};

/// The sink of one call of [`Protocol::handle`].
pub(super) struct ReactorSink<'a, P: Protocol, H> {
    pub(super) links: &'a mut Links,
    pub(super) datagrams: &'a mut Option<Datagrams>,
    pub(super) host: &'a mut H,
    pub(super) pending: &'a mut PendingOutputs<P>,
    pub(super) me: ProcessId,
    pub(super) now: Time,
}

impl<P, H> Sink<P> for ReactorSink<'_, P, H>
where
    P: Protocol,
    P::Message: Wire,
    H: Host<P>,
{
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>) {
        let PendingOutputs { durable, to_self, send_counts, ticket, .. } = &mut *self.pending;
        match durable {
            None => {
                // Without a disk, all issued tickets count as durable, so no message has to wait.
                assert!(
                    after.is_none_or(|after| after <= *ticket),
                    "only tickets that were given out are waited for, but {after:?} was not"
                );
                self.leave(to, message);
            }
            Some(durable) => {
                let place = (self.me, &mut *self.links);
                if let Some((to, message)) =
                    durable.send_or_hold(place, (to, message, after), to_self, send_counts)
                {
                    self.leave(to, message);
                }
            }
        }
    }

    fn send_aside(&mut self, to: Destination, message: P::Message) {
        if !self.pending.durable.as_ref().is_some_and(Durable::is_silenced) {
            self.leave(to, message);
        }
    }

    fn cast(&mut self, to: Destination, message: P::Message) {
        if self.pending.durable.as_ref().is_some_and(Durable::is_silenced) {
            return;
        }
        let Some(datagrams) = self.datagrams else { return self.leave(to, message) };
        let peers = match to {
            Destination::One(peer) => vec![peer],
            Destination::Many(peers) => peers,
        };
        let bytes = self.links.encode_shared(&message);
        for peer in peers.iter().copied().filter(|peer| *peer != self.me) {
            let is_cast = self
                .links
                .datagram_address(peer)
                .is_some_and(|datagram_address| datagrams.cast(datagram_address, &bytes));
            let sent = if is_cast { SendOutcome::Queued } else { self.links.send_shared(peer, &bytes) };
            self.pending.send_counts.count(sent);
        }
        if peers.contains(&self.me) {
            self.pending.to_self.push_back(message);
        }
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: P::Message) {
        let takes = |links: &Links, peer: &ProcessId| links.datagram_address(*peer).is_some();
        // For a single receiver, a separate datagram costs no more than a multicast.
        let pays = to.iter().filter(|peer| takes(self.links, peer)).count() > 1;
        let Some(datagrams) = self.datagrams.as_mut().filter(|_| pays) else {
            return self.cast(Destination::Many(to), message);
        };
        if self.pending.durable.as_ref().is_some_and(Durable::is_silenced) {
            return;
        }
        let bytes = self.links.encode_shared(&message);
        if !datagrams.multicast(address, &bytes) {
            return self.cast(Destination::Many(to), message);
        }
        for peer in to {
            let is_cast = takes(self.links, &peer);
            let sent = if is_cast { SendOutcome::Queued } else { self.links.send_shared(peer, &bytes) };
            self.pending.send_counts.count(sent);
        }
    }

    fn listen(&mut self, address: MulticastAddress) {
        if let Some(datagrams) = self.datagrams {
            datagrams.listen(address);
        }
    }

    fn ignore(&mut self, address: MulticastAddress) {
        if let Some(datagrams) = self.datagrams {
            datagrams.ignore(address);
        }
    }

    fn persist(&mut self, record: P::Record) -> Ticket {
        if let Some(durable) = &mut self.pending.durable {
            return durable.persist(&record);
        }
        self.pending.ticket.0 += 1;
        self.pending.persisted = Some(self.pending.ticket);
        self.pending.ticket
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        if let Some(durable) = &mut self.pending.durable {
            durable.collect(before, kept);
        }
    }

    fn emit(&mut self, event: P::Event) {
        self.pending.has_emitted = true;
        self.host.event(event, self.now);
        self.pending.completed.extend(self.host.completed());
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.links.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        if let Some(durable) = &mut self.pending.durable {
            durable.drop_held(peer);
        }
        self.links.forget(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        if let Some(durable) = &mut self.pending.durable {
            durable.adopt(policy.pass());
        }
        self.links.adopt(policy);
    }
}

impl<P, H> ReactorSink<'_, P, H>
where
    P: Protocol,
    P::Message: Wire,
{
    /// Sends a message without waiting for the disk.
    fn leave(&mut self, to: Destination, message: P::Message) {
        match to {
            Destination::One(to) if to == self.me => self.pending.to_self.push_back(message),
            Destination::One(to) => self.pending.send_counts.count(self.links.send(to, &message)),
            Destination::Many(many) => {
                let bytes = self.links.encode_shared(&message);
                for to in many.iter().copied().filter(|to| *to != self.me) {
                    self.pending.send_counts.count(self.links.send_shared(to, &bytes));
                }
                if many.contains(&self.me) {
                    self.pending.to_self.push_back(message);
                }
            }
        }
    }
}
