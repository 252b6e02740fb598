//! Faults of machines and of the directions between them.

use std::time::Duration;

use quorate_protocol::{Protocol, Time, journal::DurabilityReport, wire::Wire};

use super::{Crash, World, WorldEvent};
use crate::{disk::Disk, network::LinkState};

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// Ends the process on `machine`. Its memory, its inbox and its unsent messages are lost.
    pub fn crash(&mut self, machine: usize, crash: Crash) {
        let slot = &mut self.machines[machine];
        if slot.process.take().is_none() {
            return;
        }
        let life = slot.life;
        slot.inbox.clear();
        slot.paused_until = Time::ZERO;
        let neighbours = std::mem::take(&mut slot.neighbours);
        self.lives[life as usize].alive = false;
        self.lives[life as usize].vanished = crash == Crash::Vanished;
        if let Some(disk) = &mut self.machines[machine].disk {
            disk.end(crash == Crash::Vanished, &mut self.chance_disk);
        }
        self.note(b'X', machine as u64, u64::from(crash == Crash::Vanished));
        for peer in neighbours {
            self.sever(life, peer, crash);
        }
    }

    /// Makes the disk of `machine` slow for a while. Returns whether there is a disk.
    pub fn slow_disk(&mut self, machine: usize, span: Duration) -> bool {
        let until = self.now + span;
        let disk = self.machines[machine].disk.as_mut();
        disk.map(|disk| disk.slow_until = until).is_some()
    }

    /// Makes the next sync of the disk of `machine` fail. Returns whether a process with a disk runs there.
    pub fn fail_sync(&mut self, machine: usize) -> bool {
        let slot = &mut self.machines[machine];
        let disk = slot.disk.as_mut().filter(|_| slot.process.is_some());
        disk.map(|disk| disk.fails = true).is_some()
    }

    /// Changes a byte on the disk of `machine`, where no process may run. Returns whether a byte was changed.
    pub fn rot(&mut self, machine: usize) -> bool {
        let slot = &mut self.machines[machine];
        slot.process.is_none() && slot.disk.as_mut().is_some_and(|disk| disk.rot(&mut self.chance_disk))
    }

    /// Copies the durable contents of the disks of all machines with a running process.
    pub fn copy_disks(&mut self) {
        for machine in 0..self.machines.len() {
            if let (Some(id), Some(disk)) = (self.id(machine), &mut self.machines[machine].disk) {
                disk.take_copy(id);
            }
        }
    }

    /// Replaces the contents of the disk of `machine`, where no process may run, by the older copy.
    pub fn put_back(&mut self, machine: usize) {
        let slot = &mut self.machines[machine];
        assert!(slot.process.is_none(), "a disk is put back only while no process runs on its machine");
        if let Some(disk) = &mut slot.disk {
            disk.put_back();
        }
    }

    /// Whether the last recovery on `machine` may lack durable records. Rot in the last records of a journal
    /// looks like a torn tail until a later frame marks those records as durable.
    pub fn may_lack_records(&self, machine: usize) -> bool {
        self.machines.get(machine).and_then(|slot| slot.disk.as_ref()).is_some_and(Disk::lacks)
    }

    /// Whether an older copy was put back on `machine`.
    pub fn has_older_copy(&self, machine: usize) -> bool {
        self.machines.get(machine).and_then(|slot| slot.disk.as_ref()).is_some_and(Disk::is_older)
    }

    /// Whether the copy of the disk of `machine` would certainly be detected as older after it was put back.
    /// Only a process that remembers more records than the copy holds detects this. So at least one such
    /// process must run, and no other process with a disk may have heard from the process on `machine` and
    /// remember fewer records. A process that is down may remember fewer records.
    pub fn is_copy_known_as_older(&self, machine: usize) -> bool {
        let (Some(id), Some(disk)) = (self.id(machine), &self.machines[machine].disk) else { return false };
        let (mut known, mut unknown) = (false, false);
        for (_, other) in self.machines.iter().enumerate().filter(|(number, _)| *number != machine) {
            let report = other.remote_durability.last_report(id);
            match (&other.process, &other.disk) {
                (_, None) => {}
                (None, Some(theirs)) => unknown |= theirs.owner().is_some(),
                (Some(_), Some(_)) if report == DurabilityReport::default() => {}
                (Some(_), Some(_)) if disk.copy_lacks(id, report) => known = true,
                (Some(_), Some(_)) => unknown = true,
            }
        }
        known && !unknown
    }

    /// Sets the name under which effects of later cuts, clogs and pauses are counted.
    pub fn blame(&mut self, cause: &'static str) {
        self.blamed = cause;
    }

    /// Returns the name under which effects of the present fault are counted.
    pub(crate) fn blamed(&self) -> &'static str {
        self.blamed
    }

    /// Pauses the process on `machine` for a while. Its links stay, and its clock goes on.
    pub fn pause(&mut self, machine: usize, span: Duration) {
        self.note(b'P', machine as u64, span.as_nanos() as u64);
        let slot = &mut self.machines[machine];
        if slot.paused_until < self.now + span {
            slot.paused_until = self.now + span;
            slot.paused_by = self.blamed;
        }
    }

    /// Ends the pause of the process on `machine`.
    pub fn resume(&mut self, machine: usize) {
        let slot = &mut self.machines[machine];
        slot.paused_until = self.now;
        if slot.process.is_some() && !slot.inbox.is_empty() {
            self.work_later(machine);
        }
    }

    /// Stalls a machine. From now on, no message passes to or from the machine. After `lead`, its process
    /// stands still, too. After `span` everything continues, in any order that the links allow. Messages that
    /// the process sent during `lead` then arrive late.
    pub fn stall(&mut self, machine: usize, lead: Duration, span: Duration) {
        for other in (0..self.machines.len()).filter(|&other| other != machine) {
            self.clog(machine, other, span);
            self.clog(other, machine, span);
        }
        if self.machines[machine].process.is_some() {
            let life = self.machines[machine].life;
            let (until, cause) = (self.now + span, self.blamed);
            self.push(self.now + lead, WorldEvent::Pause { life, until, cause });
        }
    }

    /// Stops all messages from one machine to another for a while. If the cut lasts, a link in use breaks.
    pub fn cut(&mut self, from: usize, to: usize, span: Duration) {
        self.note(b'C', from as u64, to as u64);
        self.troubled(from, self.now + span);
        self.troubled(to, self.now + span);
        self.network.cut(from, to, self.now + span, self.blamed);
        let patience = self.chance_network.between(CUT_PATIENCE_MIN, CUT_PATIENCE_MAX);
        if patience < span
            && let (Some(one), Some(other)) = (self.present(from), self.present(to))
            && let Some(link) = self.network.existing(one, other)
            && link.state == LinkState::Up
        {
            let session = link.session;
            self.push(self.now + patience, WorldEvent::Break { one, other, session });
        }
    }

    /// Delays all messages from one machine to another for a while, without breaking links.
    pub fn clog(&mut self, from: usize, to: usize, span: Duration) {
        self.note(b'G', from as u64, to as u64);
        self.troubled(from, self.now + span);
        self.troubled(to, self.now + span);
        self.network.cut(from, to, self.now + span, self.blamed);
    }

    /// Breaks the link between the processes of two machines. Returns whether there was a link.
    pub fn break_link(&mut self, one: usize, other: usize) -> bool {
        let (Some(one), Some(other)) = (self.present(one), self.present(other)) else { return false };
        let Some(link) = self.network.existing(one, other) else { return false };
        if link.state != LinkState::Up {
            return false;
        }
        let session = link.session;
        self.broken(one, other, session);
        true
    }

    /// Ends all cuts, clogs and pauses, and stops all random failures of links and disks. Delayed frames are
    /// lost with their sessions.
    pub fn heal(&mut self) {
        self.network_settings.break_probability = 0.0;
        for (from, to) in self.network.heal() {
            self.break_link(from, to);
        }
        for machine in 0..self.machines.len() {
            let slot = &mut self.machines[machine];
            slot.paused_until = Time::ZERO;
            if let Some(disk) = &mut slot.disk {
                disk.heal();
            }
            if slot.process.is_some() && !slot.inbox.is_empty() {
                self.work_later(machine);
            }
        }
        self.note(b'H', 0, 0);
    }
}

pub(super) const CUT_PATIENCE_MIN: Duration = Duration::from_millis(200);
pub(super) const CUT_PATIENCE_MAX: Duration = Duration::from_secs(6);
