//! What is done to machines and to the directions between them.

use std::time::Duration;

use quorate_protocol::{Protocol, Time, journal::Told, wire::Wire};

use super::{Crash, Happening, World};
use crate::{disk::Disk, network::LinkState};

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// Ends the process on `machine`. Memory, inbox and what has not left are lost.
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

    /// The disk of `machine` is slow for a while.
    pub fn slow_disk(&mut self, machine: usize, span: Duration) -> bool {
        let until = self.now + span;
        let disk = self.machines[machine].disk.as_mut();
        disk.map(|disk| disk.slow_until = until).is_some()
    }

    /// The next sync of the disk of `machine` fails.
    pub fn fail_sync(&mut self, machine: usize) -> bool {
        let slot = &mut self.machines[machine];
        let disk = slot.disk.as_mut().filter(|_| slot.process.is_some());
        disk.map(|disk| disk.fails = true).is_some()
    }

    /// A byte on the disk of `machine`, where nothing runs, becomes another.
    pub fn rot(&mut self, machine: usize) -> bool {
        let slot = &mut self.machines[machine];
        slot.process.is_none() && slot.disk.as_mut().is_some_and(|disk| disk.rot(&mut self.chance_disk))
    }

    /// Copies what is durable on all disks where a process runs.
    pub fn copy_disks(&mut self) {
        for machine in 0..self.machines.len() {
            if let (Some(id), Some(disk)) = (self.id(machine), &mut self.machines[machine].disk) {
                disk.take_copy(id);
            }
        }
    }

    /// Puts the copy of its disk back on `machine`, where nothing runs.
    pub fn put_back(&mut self, machine: usize) {
        let slot = &mut self.machines[machine];
        assert!(slot.process.is_none(), "a disk is put back under no process");
        if let Some(disk) = &mut slot.disk {
            disk.put_back();
        }
    }

    /// Whether what was recovered last from the disk of `machine` may lack durable records: rot in the last records of a journal is not
    /// told from a torn tail until a later frame says that they were durable.
    pub fn may_lack_records(&self, machine: usize) -> bool {
        self.machines.get(machine).and_then(|slot| slot.disk.as_ref()).is_some_and(Disk::lacks)
    }

    /// Whether what is on the disk of `machine` is an older copy.
    pub fn has_older_copy(&self, machine: usize) -> bool {
        self.machines.get(machine).and_then(|slot| slot.disk.as_ref()).is_some_and(Disk::is_older)
    }

    /// Whether the copy of the disk of `machine` is older than everybody with a disk knows who ever heard of its process. One
    /// that is down, or was cut off, may know less, and no process that meets nobody else is found out.
    pub fn is_copy_known_as_older(&self, machine: usize) -> bool {
        let (Some(id), Some(disk)) = (self.id(machine), &self.machines[machine].disk) else { return false };
        let (mut known, mut unknown) = (false, false);
        for (_, other) in self.machines.iter().enumerate().filter(|(number, _)| *number != machine) {
            let told = other.hearsay.told(id);
            match (&other.process, &other.disk) {
                (_, None) => {}
                (None, Some(theirs)) => unknown |= theirs.owner().is_some(),
                (Some(_), Some(_)) if told == Told::default() => {}
                (Some(_), Some(_)) if disk.copy_lacks(id, told) => known = true,
                (Some(_), Some(_)) => unknown = true,
            }
        }
        known && !unknown
    }

    /// What is cut, held or paused from now on is counted for `cause`, each time that it has an effect.
    pub fn blame(&mut self, cause: &'static str) {
        self.blamed = cause;
    }

    /// What effects are counted for.
    pub(crate) fn blamed(&self) -> &'static str {
        self.blamed
    }

    /// Lets the process on `machine` do nothing for a while. Its links stand, its clock runs.
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

    /// Lets a machine stall: from now on nothing passes to it or from it, after `lead` its process stands still too, and
    /// after `span` all goes on, and arrives in whatever order the links give. What the process sends in between is on
    /// its way all the time, and comes from the past.
    pub fn stall(&mut self, machine: usize, lead: Duration, span: Duration) {
        for other in (0..self.machines.len()).filter(|&other| other != machine) {
            self.clog(machine, other, span);
            self.clog(other, machine, span);
        }
        if self.machines[machine].process.is_some() {
            let life = self.machines[machine].life;
            let (until, cause) = (self.now + span, self.blamed);
            self.push(self.now + lead, Happening::Pause { life, until, cause });
        }
    }

    /// Lets nothing pass between two machines in one direction for a while. Links in use break by and by when that lasts.
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
            self.push(self.now + patience, Happening::Break { one, other, session });
        }
    }

    /// Holds back what one machine sends to another for a while; nothing breaks.
    pub fn clog(&mut self, from: usize, to: usize, span: Duration) {
        self.note(b'G', from as u64, to as u64);
        self.troubled(from, self.now + span);
        self.troubled(to, self.now + span);
        self.network.cut(from, to, self.now + span, self.blamed);
    }

    /// Breaks the link between the processes of two machines, if one stands.
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

    /// Ends all cuts, clogs and pauses, and makes the links flawless. What was held back is lost with its session.
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
