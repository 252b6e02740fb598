//! The travel of casts. Each cast travels alone, to a process with a standing link, if it arrives at all. A
//! multicast becomes one cast for each listener, and each of these casts is lost or delayed independently.

use bytes::Bytes;
use quorate_protocol::{MulticastAddress, ProcessId, Protocol, Time, wire::Wire};

use super::{World, WorldEvent};
use crate::network::{LifeNumber, LinkState, end};

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// Sends the casts of a batch.
    pub(super) fn dispatch_casts(&mut self, machine: usize, leave: Time, casts: Vec<(ProcessId, Bytes)>) {
        let life = self.machines[machine].life;
        for (to, message) in casts {
            let Some(&peer) = self.life_of.get(&to) else {
                self.count("sent to nobody");
                continue;
            };
            let link = self.network.existing(life, peer);
            let stands = link.filter(|link| link.state == LinkState::Up && link.ends[end(life, peer)].open);
            match stands.map(|link| link.session) {
                _ if life == peer && self.manual.is_some() => self.leave_cast((to, to), None, message),
                _ if life == peer => {
                    self.push(leave, WorldEvent::Cast { from: life, to: life, session: 0, message });
                }
                None => self.count("sent without a link"),
                Some(_) if self.manual.is_some() => {
                    let from = self.lives[life as usize].id;
                    self.leave_cast((from, to), None, message);
                }
                Some(session) => self.cast(life, peer, (session, leave), message),
            }
        }
    }

    /// Sends the multicasts of a batch.
    pub(super) fn dispatch_multicasts(
        &mut self,
        machine: usize,
        leave: Time,
        multicasts: Vec<(MulticastAddress, Bytes)>,
    ) {
        let life = self.machines[machine].life;
        for (address, message) in multicasts {
            self.count("multicast");
            for peer in self.multicast_listeners.get(&address).cloned().unwrap_or_default() {
                let Some(there) = self.living(peer).filter(|_| peer != life) else { continue };
                // A listener recognizes the sender only by a standing link.
                let link = self.network.existing(peer, life);
                let stands =
                    link.filter(|link| link.state == LinkState::Up && link.ends[end(peer, life)].open);
                let Some(session) = stands.map(|link| link.session) else {
                    self.count("multicast of a stranger");
                    continue;
                };
                if self.manual.is_some() {
                    let (from, to) = (self.lives[life as usize].id, self.lives[peer as usize].id);
                    self.leave_cast((from, to), Some(address), message.clone());
                } else if self.drawn("multicasts", machine, there) < self.network_settings.casts.deaf {
                    self.count("multicast in a deaf direction");
                } else {
                    self.cast(life, peer, (session, leave), message.clone());
                }
            }
        }
    }

    /// Makes a process start or stop listening to an address.
    pub(super) fn listen(&mut self, life: LifeNumber, address: MulticastAddress, listens: bool) {
        let multicast_listeners = self.multicast_listeners.entry(address).or_default();
        if listens {
            assert!(multicast_listeners.insert(life), "an address is listened to once");
        } else {
            assert!(multicast_listeners.remove(&life), "only an address that is listened to is given up");
        }
    }

    fn cast(&mut self, life: LifeNumber, peer: LifeNumber, (session, leave): (u64, Time), message: Bytes) {
        let (from, to) = (self.lives[life as usize].machine, self.lives[peer as usize].machine);
        let settings = self.network_settings.casts;
        // The number depends only on the seed and the direction, so a closed direction stays closed for the
        // whole run.
        let place = self.drawn("casts", from, to);
        let is_narrow = place < settings.closed + settings.narrow;
        self.count("cast");
        if self.network.cut_until(from, to, leave).is_some() {
            return self.count("cast into a cut");
        }
        if place < settings.closed {
            return self.count("cast in a closed direction");
        }
        if is_narrow && message.len() > settings.short_bytes {
            return self.count("cast too long for its way");
        }
        if self.chance_casts.happens(settings.loss_probability) {
            return self.count("cast lost");
        }
        let copies = if self.chance_casts.happens(settings.doubling_probability) { 2 } else { 1 };
        if copies > 1 {
            self.count("cast doubled");
        }
        for _ in 0..copies {
            let delay = self.network_settings.delay.scaled(self.unevenness(from, to));
            let mut at = leave + self.chance_casts.span(delay);
            if self.chance_casts.happens(settings.lateness_probability) {
                self.count("cast late");
                at = at + self.chance_casts.span(settings.lateness);
            }
            let message = message.clone();
            self.push(at, WorldEvent::Cast { from: life, to: peer, session, message });
        }
    }
}
