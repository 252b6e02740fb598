//! A reactor's disk: the journal, and the messages that wait for records to become durable.
//!
//! The rules are those of the interface between protocols and hosts (`quorate_protocol::seam`). Records
//! become durable in the order of writing. A message that waits for a record holds back later messages to the
//! same peer, and nothing else. A message of `Sink::send_aside` does not pass through here. When a session
//! ends, the messages that wait for it are dropped.
//!
//! A sync takes processor time, and syncs of several processes on one disk wait for each other. So a process
//! may let records gather for [`Settings::gathering`](crate::disk::Settings) before it writes them, as long
//! as no message waits.
//!
//! **Bounds.** While [`Settings::waiting_bytes_max`](crate::disk::Settings) bytes of records or of messages
//! wait, the reactor reads no links and takes no commands ([`Durable::is_pressed`]). To senders, such a
//! process looks slow. Deadlines are still served, and so signs of life are still sent.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io,
    path::PathBuf,
};

use bytes::Bytes;
use quorate_protocol::{
    Destination, Duration, ProcessId, Ticket, Time,
    journal::{DurabilityReport, Journal, RemoteDurability},
    wire::Wire,
};

use crate::{
    counters::Counters,
    disk::{Disk, DiskError, Identity, NUMBERS_RESERVED, Settings, Writer},
    frame::Encoded,
    link::{Links, SendOutcome},
};

/// The journal of a running process, and the messages that wait for it.
pub(super) struct Durable<M> {
    directory: PathBuf,
    journal: Journal,
    writer: Writer,
    settings: Settings,
    /// The contents of the identity file. A change is on disk already, or on its way there.
    identity: Identity,
    counters: Counters,
    /// The lengths of the segments in use, in bytes, by segment number.
    lengths: BTreeMap<u64, u64>,
    /// The last record up to which the protocol knows all records to be durable.
    reported: Ticket,
    /// Waiting messages by peer, each with the record for which it waits, if any.
    held: BTreeMap<ProcessId, VecDeque<(Option<Ticket>, Encoded)>>,
    held_bytes: usize,
    /// Waiting messages of this process to itself, each with the record for which it waits, if any.
    to_self: VecDeque<(Option<Ticket>, M)>,
    /// The time at which the records that gather are written. Unset if no record gathers.
    gather_until: Option<Time>,
    /// The time at which the journal is sealed, unless a record is written earlier.
    seal_at: Option<Time>,
    /// The time at which this process announces how far its journal is durable, and notes the announcements
    /// of other processes.
    announce_at: Option<Time>,
    /// The time of the first announcement; unset before the first turn. See [`FIRST_ANNOUNCEMENT_AFTER`].
    announce_from: Option<Time>,
    /// Whether all output is suppressed, because the process is about to end.
    silenced: bool,
    /// The error with which the process ends, once a peer has proved that the directory is an older copy.
    outdated: Option<DiskError>,
    lock: File,
}

/// Numbers of messages of a turn: messages sent, and messages dropped because their peer had no link.
#[derive(Default)]
pub(super) struct SendCounts {
    pub(super) sent: u64,
    pub(super) unlinked: u64,
}

impl SendCounts {
    pub(super) fn count(&mut self, sent: SendOutcome) {
        match sent {
            SendOutcome::Queued => self.sent += 1,
            SendOutcome::Dropped => self.unlinked += 1,
        }
    }
}

impl<M: Wire> Durable<M> {
    /// Starts the disk thread on an opened disk.
    pub(super) fn start(
        disk: Disk,
        counters: Counters,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Durable<M>> {
        let Disk { directory, files, journal, identity, settings, lengths, checkpoint, lock, .. } = disk;
        let reported = journal.last();
        let begin = (settings.journal, reported, identity.numbers);
        counters.disk_checkpoint_seconds.set(checkpoint);
        let durable = Durable {
            directory,
            writer: Writer::start(files, begin, counters.clone(), wake)?,
            counters,
            lengths,
            journal,
            settings,
            identity,
            reported,
            held: BTreeMap::new(),
            held_bytes: 0,
            to_self: VecDeque::new(),
            gather_until: None,
            seal_at: None,
            announce_at: None,
            announce_from: None,
            silenced: false,
            outdated: None,
            lock,
        };
        durable.count_restart();
        Ok(durable)
    }

    /// Updates the metric of the bytes that a restart would read.
    fn count_restart(&self) {
        let bytes: u64 = self.lengths.values().sum();
        self.counters.disk_restart_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    // Methods for the outputs of the protocol.

    pub(super) fn persist(&mut self, record: &impl Wire) -> Ticket {
        self.seal_at = None;
        self.journal.append(record)
    }

    /// Frees the segments that precede this record, except those that hold a record in `kept`. Called when
    /// the protocol has completed a checkpoint.
    pub(super) fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        let segments = self.journal.collect(before, kept);
        self.lengths.retain(|number, _| !segments.contains(number));
        self.count_restart();
        if !segments.is_empty() {
            self.writer.remove(segments);
        }
        self.writer.note_checkpoint();
    }

    /// Makes the process show this pass from now on, also after a crash. Only here does the protocol thread
    /// wait for its disk: no message may leave before the pass is durable, and passes seldom change.
    pub(super) fn adopt(&mut self, pass: Bytes) {
        self.identity.pass = Some(pass);
        self.writer.write_identity_and_wait(self.identity.clone());
        self.silenced = self.writer.has_failed();
    }

    /// Notes that `witness` remembers a record that the journal lacks. The process then sends nothing more,
    /// and ends.
    pub(super) fn mark_outdated(&mut self, witness: ProcessId, report: DurabilityReport) {
        self.silenced = true;
        self.outdated.get_or_insert(DiskError::OlderCopy {
            directory: self.directory.clone(),
            last: self.reported,
            reported: report.durable,
            witness,
        });
    }

    pub(super) fn is_silenced(&self) -> bool {
        self.silenced
    }

    /// Sends a message at once to each receiver for which neither an undurable record nor an earlier held
    /// message stands in the way, and holds it for the other receivers. If nothing stands in the way for any
    /// receiver, returns the message, and the caller sends it.
    pub(super) fn send_or_hold(
        &mut self,
        (me, links): (ProcessId, &mut Links),
        (to, message, after): (Destination, M, Option<Ticket>),
        to_self: &mut VecDeque<M>,
        send_counts: &mut SendCounts,
    ) -> Option<(Destination, M)> {
        assert!(
            after.is_none_or(|after| after <= self.journal.last()),
            "only tickets that were given out are waited for, but {after:?} was not"
        );
        if self.silenced {
            return None;
        }
        let late = after.is_some_and(|after| after > self.reported);
        let waits = |this: &Self, peer: ProcessId| match peer == me {
            true => late || !this.to_self.is_empty(),
            false => late || this.held.contains_key(&peer),
        };
        let all = match &to {
            Destination::One(one) => std::slice::from_ref(one),
            Destination::Many(many) => &many[..],
        };
        if !all.iter().any(|peer| waits(self, *peer)) {
            return Some((to, message));
        }
        let bytes = links.encode_shared(&message);
        for &peer in all.iter().filter(|peer| **peer != me) {
            if !waits(self, peer) {
                send_counts.count(links.send_shared(peer, &bytes));
            } else if links.is_linked(peer) {
                self.held_bytes += bytes.len();
                self.held.entry(peer).or_default().push_back((after, bytes.clone()));
                send_counts.sent += 1;
            } else {
                send_counts.unlinked += 1;
            }
        }
        if all.contains(&me) {
            if waits(self, me) {
                self.to_self.push_back((after, message));
            } else {
                to_self.push_back(message);
            }
        }
        None
    }

    /// Drops the messages that wait for this peer, because the session with it is over.
    pub(super) fn drop_held(&mut self, peer: ProcessId) {
        let dropped = self.held.remove(&peer).unwrap_or_default();
        self.held_bytes -= dropped.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    }

    // Methods by which the loop asks about the disk.

    /// Whether more records have become durable, or the disk has failed.
    pub(super) fn has_news(&self) -> bool {
        self.writer.durable() > self.reported || self.writer.has_failed()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.writer.has_failed()
    }

    /// Whether too many bytes wait for the disk to accept further input.
    pub(super) fn is_pressed(&self) -> bool {
        let most = self.settings.waiting_bytes_max;
        self.writer.waiting_bytes() >= most as u64 || self.held_bytes >= most
    }

    /// Returns the latest time for the next call of [`Durable::submit_turn`].
    pub(super) fn deadline(&self) -> Option<Time> {
        [self.gather_until, self.seal_at, self.announce_at].into_iter().flatten().min()
    }

    /// Sends the messages whose records have become durable. Returns the last durable record, if it is new.
    /// Must be called after the protocol has received all ends of sessions.
    pub(super) fn release_durable(
        &mut self,
        now: Time,
        links: &mut Links,
        to_self: &mut VecDeque<M>,
    ) -> Option<Ticket> {
        let durable = self.writer.durable();
        if durable <= self.reported || self.writer.has_failed() {
            return None;
        }
        self.reported = durable;
        self.journal.synced(durable);
        self.announce_at.get_or_insert(now + ANNOUNCE_AFTER);
        if durable == self.journal.last() && !self.journal.is_sealed() {
            self.seal_at = Some(now + SEAL_AFTER);
        }
        let may_leave = |after: &Option<Ticket>| after.is_none_or(|after| after <= durable);
        let held_bytes = &mut self.held_bytes;
        self.held.retain(|&peer, queue| {
            while let Some((_, bytes)) = queue.pop_front_if(|(after, _)| may_leave(after)) {
                *held_bytes -= bytes.len();
                // The message was counted when it was queued. If the link breaks here, the protocol is
                // notified as usual.
                let _ = links.send_shared(peer, &bytes);
            }
            !queue.is_empty()
        });
        while let Some((_, message)) = self.to_self.pop_front_if(|(after, _)| may_leave(after)) {
            to_self.push_back(message);
        }
        Some(durable)
    }

    /// Passes the turn's records to the disk thread, and keeps enough numbers of greetings reserved. Returns
    /// an error if the directory is an older copy, or if reserved numbers run out because the disk does not
    /// answer.
    pub(super) fn submit_turn(&mut self, now: Time, links: &mut Links) -> Result<(), DiskError> {
        if let Some(outdated) = self.outdated.take() {
            return Err(outdated);
        }
        if links.has_learned() {
            self.announce_at.get_or_insert(now + ANNOUNCE_AFTER);
        }
        let announce_from = *self.announce_from.get_or_insert_with(|| {
            self.announce_at = Some(now + FIRST_ANNOUNCEMENT_AFTER);
            now + FIRST_ANNOUNCEMENT_AFTER
        });
        if self.announce_at.take_if(|at| *at <= now).is_some() {
            self.journal.note(links.remote_durability());
            if now >= announce_from {
                self.announce(links);
            } else {
                self.announce_at = Some(announce_from);
            }
        }
        if self.seal_at.take_if(|at| *at <= now).is_some() {
            self.journal.seal();
        }
        self.write(now);
        let reserved = self.writer.numbers();
        let left = reserved.saturating_sub(links.number());
        if left < NUMBERS_RESERVED / 2
            && reserved == self.identity.numbers
            && let Some(next) = self.identity.reserved(NUMBERS_RESERVED)
        {
            self.identity = next.clone();
            self.writer.write_identity(next);
        }
        if left < RESERVED_NUMBERS_MIN { Err(DiskError::Stuck) } else { Ok(()) }
    }

    /// Passes records to the disk thread, unless they may gather for longer.
    fn write(&mut self, now: Time) {
        let bytes = self.journal.unwritten_bytes();
        // A new journal has no record yet, and its header is written together with the first record.
        if bytes == 0 || self.journal.last() == Ticket(0) {
            return;
        }
        let is_awaited = !self.held.is_empty() || !self.to_self.is_empty();
        let gather_until = *self.gather_until.get_or_insert(now + self.settings.gathering);
        if gather_until > now && !is_awaited && bytes < GATHERED_BYTES_MAX {
            return;
        }
        self.gather_until = None;
        let writes = self.journal.take_writes();
        for write in &writes {
            self.lengths.insert(write.segment, write.offset + write.bytes.len() as u64);
        }
        self.count_restart();
        self.writer.write(writes, self.journal.last());
    }

    /// Announces to peers how far the journal is durable.
    pub(super) fn announce(&self, links: &mut Links) {
        links.announce_durable(self.reported);
    }

    /// Makes all written records durable, then a note of other processes' announcements, and then a seal.
    /// Returns the disk's failure, if any.
    pub(super) fn finish(self, remote_durability: &RemoteDurability) -> Result<(), DiskError> {
        let Durable { mut journal, mut writer, identity, lock, .. } = self;
        let last = journal.last();
        let writes = journal.take_writes();
        if last > Ticket(0) && !writes.is_empty() {
            writer.write(writes, last);
        }
        if writer.durable() < last {
            writer.write_identity_and_wait(identity);
        }
        if writer.durable() == last && !writer.has_failed() {
            journal.synced(last);
            journal.note(remote_durability);
            journal.seal();
            if last > Ticket(0) {
                writer.write(journal.take_writes(), last);
            }
        }
        let finished = writer.finish();
        // The lock is released here, and another process may lock the directory from now on.
        drop(lock);
        finished
    }
}

/// Bytes of records that may gather.
const GATHERED_BYTES_MAX: usize = 64 << 10;
/// Idle time after which the journal gets a seal, so that damage to its last records is detected.
const SEAL_AFTER: Duration = Duration::from_millis(20);
/// Time from a change to the next exchange of announcements. It is long enough for the exchange to cost
/// nothing, and short enough to detect older copies: an operator nearly always restores a copy that was made
/// longer ago.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(100);
/// Time after the start before the first announcement. In this time the process meets peers that remember its
/// journal. A peer that remembers nothing of this process believes any announcement. If this directory were
/// an older copy, and announced itself to such a peer first, that peer would later refuse the newest
/// directory.
const FIRST_ANNOUNCEMENT_AFTER: Duration = Duration::from_millis(300);
/// Number of reserved numbers that must be left at least: more than the connections that one turn makes.
const RESERVED_NUMBERS_MIN: u32 = 2048;
