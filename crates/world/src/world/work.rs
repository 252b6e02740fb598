//! The work of processes: they get what has arrived, and are woken at their deadlines.

use std::time::Duration;

use quorate_protocol::{Context, Input, Protocol, Session, Ticket, Time, seam::CAST_BYTES_MAX, wire::Wire};

use super::{Crash, Environment, Violation, World, WorldEvent};
use crate::{
    machine::{Arrival, Machine},
    network::LifeNumber,
    outbox::{LinkRequest, Outbox},
};

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// Passes everything that has arrived to the process, as one batch.
    pub(super) fn work<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        machine: usize,
    ) -> Result<(), Violation> {
        let slot = &mut self.machines[machine];
        slot.work_at = None;
        let ready = slot.busy_until.max(slot.paused_until);
        if ready > self.now {
            self.work_later(machine);
            return Ok(());
        }
        let batch = std::mem::take(&mut slot.inbox);
        self.turn(environment, machine, batch, true)
    }

    /// Passes these arrivals to the process on `machine`, and handles its output. If `drained` is true, this
    /// ends the batch.
    pub(super) fn turn<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        machine: usize,
        batch: impl IntoIterator<Item = Arrival<P>>,
        drained: bool,
    ) -> Result<(), Violation> {
        let slot = &mut self.machines[machine];
        let Machine { process, chance, clock, slowness, tickets, life, disk, remote_durability, .. } = slot;
        let process = process.as_mut().expect("only a machine with a living process works");
        let me = self.lives[*life as usize].id;
        let life = *life;
        let now = clock.local(self.now);
        let on_disk = disk.is_some();
        let mut outbox: Outbox<P> = Outbox::new(*tickets, on_disk || self.manual.is_some());
        let mut inputs = 0u64;
        let mut bytes = 0usize;
        let mut manual = self.manual.as_mut();
        let mut draw = || match &mut manual {
            Some(manual) => (manual.chance)(),
            None => chance.bits(),
        };
        let mut give = |input: Input<P>, outbox: &mut Outbox<P>| {
            let mut durable = outbox.tickets;
            process.handle(&mut Context { now, me, random: &mut draw }, input, outbox);
            // Without a disk every record is durable at once, and the process is notified of this before its
            // next input. The process may then write more records.
            while outbox.tickets > durable && !on_disk {
                durable = outbox.tickets;
                let persisted = Input::Persisted(Ticket(durable));
                process.handle(&mut Context { now, me, random: &mut draw }, persisted, outbox);
            }
        };
        let mut malformed = 0u64;
        let (lives, all_admitted) = (&self.lives, self.all_admitted);
        for arrival in batch {
            // Arrivals from peers that the newly adopted policy forbids are dropped.
            let forbidden = |peer: LifeNumber, outbox: &Outbox<P>| {
                let Some((_, mine)) = outbox.adopted.last().filter(|_| !all_admitted) else { return false };
                let theirs = &lives[peer as usize].policy;
                !mine.admits(&theirs.pass()) || !theirs.admits(&mine.pass())
            };
            match arrival {
                Arrival::Frame { from, .. } | Arrival::Cast { from, .. } if forbidden(from, &outbox) => {}
                Arrival::Linked { peer, .. } if forbidden(peer, &outbox) => {}
                Arrival::Frame { from, frame } => {
                    let from = self.lives[from as usize].id;
                    remote_durability.record(from, frame.durability);
                    for message in frame.messages {
                        inputs += 1;
                        bytes += message.len();
                        self.trace.update(&message);
                        let mut rest = message;
                        match P::Message::decode(&mut rest) {
                            Ok(message) if rest.is_empty() => {
                                give(Input::Receive { from, message }, &mut outbox);
                            }
                            Ok(_) | Err(_) => malformed += 1,
                        }
                    }
                    if frame.cut {
                        give(Input::Progress { peer: from }, &mut outbox);
                    }
                }
                Arrival::Cast { from, message } => {
                    inputs += 1;
                    bytes += message.len();
                    self.trace.update(&message);
                    let (from, mut rest) = (self.lives[from as usize].id, message);
                    match P::Message::decode(&mut rest) {
                        Ok(message) if rest.is_empty() => give(Input::Cast { from, message }, &mut outbox),
                        Ok(_) | Err(_) => malformed += 1,
                    }
                }
                Arrival::Linked { peer, session } => {
                    inputs += 1;
                    let peer = self.lives[peer as usize].id;
                    outbox.mark_session_boundary(peer);
                    give(Input::Linked { peer, session: Session(session) }, &mut outbox);
                }
                Arrival::Unlinked { peer } => {
                    inputs += 1;
                    outbox.mark_session_boundary(peer);
                    give(Input::Unlinked { peer }, &mut outbox);
                }
                Arrival::Command(command) => {
                    inputs += 1;
                    give(Input::Command(command), &mut outbox);
                }
                Arrival::Deadline => {
                    inputs += 1;
                    give(Input::Deadline, &mut outbox);
                }
                Arrival::Persisted(ticket) => {
                    inputs += 1;
                    if let Some(disk) = disk {
                        disk.note_reported(ticket);
                    }
                    give(Input::Persisted(ticket), &mut outbox);
                }
            }
        }
        if drained {
            give(Input::Drained, &mut outbox);
        }
        assert_eq!(malformed, 0, "{me} received bytes that its own kind does not decode");
        let limit = self.network_settings.message_bytes_max;
        if outbox.longest > limit {
            let what =
                format!("{me} sends {} bytes in one message, and a link takes {limit}", outbox.longest);
            return Err(Violation::new("frame", what));
        }
        if outbox.longest_cast > CAST_BYTES_MAX {
            return Err(Violation::new(
                "cast",
                format!("{me} casts {} bytes in one datagram, which is too long", outbox.longest_cast),
            ));
        }
        let slowness = *slowness;
        slot.tickets = outbox.tickets;
        let bytes = bytes + outbox.bytes;
        let cost = (inputs as f64 * self.machine_settings.input_micros
            + bytes as f64 * self.machine_settings.kilobyte_micros / 1e3)
            * slowness;
        slot.busy_until = self.now + Duration::from_nanos((cost * 1e3) as u64 + 200);
        let leave = slot.busy_until;
        self.note(b'W', u64::from(life), inputs);
        let Outbox {
            mut sends, casts, multicasts, listens, wishes, events, adopted, records, collected, ..
        } = outbox;
        let records = records.unwrap_or_default();
        let Machine { disk, remote_durability, .. } = &mut self.machines[machine];
        if let Some(disk) = disk {
            disk.write(&records, collected, (self.now, remote_durability));
            sends = disk.release(sends).map_err(|peer| {
                Violation::new("order of sending", format!("{me} sent messages to {peer} out of their order"))
            })?;
            self.sync_later(machine);
        } else if !records.is_empty() {
            environment.wrote(self, machine, records);
        }
        let reached = wishes.iter().any(|(_, wish)| matches!(wish, LinkRequest::Reach(_)));
        for (peer, wish) in wishes {
            match wish {
                LinkRequest::Reach(address) => self.reach(machine, peer, &address),
                LinkRequest::Forget => self.forget(machine, peer),
            }
        }
        self.dispatch(machine, leave, sends);
        self.dispatch_casts(machine, leave, casts);
        self.dispatch_multicasts(machine, leave, multicasts);
        for (address, listens) in listens {
            self.listen(life, address, listens);
        }
        let adopts = !adopted.is_empty();
        let mut adopted = adopted.into_iter().peekable();
        for (index, event) in events.into_iter().enumerate() {
            while let Some((_, policy)) = adopted.next_if(|(before, _)| *before == index) {
                self.adopt(life, policy);
                environment.adopted(self, machine)?;
            }
            environment.event(self, machine, event)?;
        }
        for (_, policy) in adopted {
            self.adopt(life, policy);
            environment.adopted(self, machine)?;
        }
        if self.living(life).is_some() {
            self.wake_later(machine);
        }
        if self.manual.is_some() {
            if adopts {
                self.part_from_strangers(environment, life)?;
            }
            if reached {
                self.relink(environment)?;
            }
        }
        environment.stepped(self, machine)
    }

    /// Starts a sync of the disk of `machine`, if the disk is idle and some write waits.
    pub(super) fn sync_later(&mut self, machine: usize) {
        let (now, slot) = (self.now, &mut self.machines[machine]);
        let Some(disk) = &mut slot.disk else { return };
        if let Some(span) = disk.sync(now, &mut self.chance_disk) {
            let life = slot.life;
            self.push(now + span, WorldEvent::Synced { life });
        }
    }

    /// Handles the end of a sync of the disk of `machine`.
    pub(super) fn synced(&mut self, machine: usize) {
        let Machine { disk: Some(disk), remote_durability, .. } = &mut self.machines[machine] else { return };
        match disk.synced(remote_durability) {
            Some(through) => {
                self.arrive(machine, Arrival::Persisted(through));
                self.sync_later(machine);
            }
            None => {
                // After a failed sync it is unknown which of the writes are on disk, so the process ends as
                // in a power cut.
                self.count("killed by a failed sync");
                if let Some(disk) = &mut self.machines[machine].disk {
                    disk.end(true, &mut self.chance_disk);
                }
                self.crash(machine, Crash::Killed);
                self.restart_after(machine, RESTART_AFTER_FAILURE);
            }
        }
    }

    pub(super) fn arrive(&mut self, machine: usize, arrival: Arrival<P>) {
        let slot = &mut self.machines[machine];
        slot.inbox.push_back(arrival);
        if slot.paused_until > self.now {
            let cause = slot.paused_by;
            self.count(cause);
        }
        self.work_later(machine);
    }

    pub(super) fn work_later(&mut self, machine: usize) {
        let gather = self.machine_settings.gather_micros;
        let slot = &mut self.machines[machine];
        let gathered = self.now + Duration::from_nanos((gather * slot.slowness * 1e3) as u64);
        let at = gathered.max(slot.busy_until).max(slot.paused_until);
        if slot.work_at.is_none_or(|before| at < before) {
            slot.work_at = Some(at);
            let life = slot.life;
            self.push(at, WorldEvent::Work { life });
        }
    }

    pub(super) fn deadline(&self, machine: usize) -> Option<Time> {
        let slot = &self.machines[machine];
        slot.process.as_ref()?.deadline().map(|local| slot.clock.real(local))
    }

    pub(super) fn wake_later(&mut self, machine: usize) {
        let Some(at) = self.deadline(machine) else { return };
        let lateness = self.machine_settings.timer_lateness;
        let slot = &mut self.machines[machine];
        if slot.wake_at.is_none_or(|before| at < before) {
            let at = at.max(self.now) + slot.chance.span(lateness);
            slot.wake_at = Some(at);
            let life = slot.life;
            self.push(at, WorldEvent::Wake { life });
        }
    }
}

const RESTART_AFTER_FAILURE: Duration = Duration::from_millis(300);
