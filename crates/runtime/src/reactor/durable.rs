//! A reactor with a disk: the journal, and messages that wait for it.
//!
//! The rules are those of the seam. Records become durable in the order of writing. A message that waits for its record
//! holds back what is sent to the same peer behind it, and nothing else; what is sent aside does not come here. What waits
//! for a session that has ended is dropped.
//!
//! **Bounds.** While [`Settings::waiting_bytes_max`](crate::disk::Settings) bytes of records or of messages wait, the
//! reactor reads no links and takes no commands ([`Durable::is_pressed`]); senders feel that as they feel a slow process.
//! Deadlines, and signs of life with them, go on.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io,
    path::PathBuf,
};

use bytes::Bytes;
use quorate_protocol::{
    Destination, Duration, ProcessId, Ticket, Time,
    journal::{Hearsay, Journal, Told},
    wire::Wire,
};

use crate::{
    counters::Counters,
    disk::{Disk, DiskError, Identity, NUMBERS_RESERVED, Settings, Writer},
    frame::Encoded,
    link::{Links, Sent},
};

/// The journal of a process that runs, and what waits for it.
pub(super) struct Durable<M> {
    directory: PathBuf,
    journal: Journal,
    writer: Writer,
    settings: Settings,
    /// As it is on disk, or soon will be.
    identity: Identity,
    counters: Counters,
    /// The segments that are kept, and how long they are.
    lengths: BTreeMap<u64, u64>,
    /// Up to which record the protocol knows that all is durable.
    told: Ticket,
    /// Messages that wait, by peer: the record that each needs, if any.
    held: BTreeMap<ProcessId, VecDeque<(Option<Ticket>, Encoded)>>,
    held_bytes: usize,
    /// Messages to this process that wait.
    own: VecDeque<(Option<Ticket>, M)>,
    /// When the journal is sealed, unless something is written before.
    seal_at: Option<Time>,
    /// When others are told how far the journal goes, and what they told is noted.
    exchange_at: Option<Time>,
    /// Nobody is told anything before: whoever remembers more of this process than its directory holds is to be met first.
    tells_from: Option<Time>,
    /// The process may say nothing any more.
    silenced: bool,
    /// Why its directory is not the newest.
    outdated: Option<DiskError>,
    lock: File,
}

/// How many messages left, and how many had no link.
#[derive(Default)]
pub(super) struct Spread {
    pub(super) sent: u64,
    pub(super) unlinked: u64,
}

impl Spread {
    pub(super) fn count(&mut self, sent: Sent) {
        match sent {
            Sent::Queued => self.sent += 1,
            Sent::Dropped => self.unlinked += 1,
        }
    }
}

impl<M: Wire> Durable<M> {
    /// Goes on with a disk that was opened.
    pub(super) fn start(
        disk: Disk,
        counters: Counters,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Durable<M>> {
        let Disk { directory, files, journal, identity, settings, lengths, checkpoint, lock, .. } = disk;
        let told = journal.last();
        let begin = (settings.journal, told, identity.numbers);
        counters.disk_checkpoint_seconds.set(checkpoint);
        let durable = Durable {
            directory,
            writer: Writer::start(files, begin, counters.clone(), wake)?,
            counters,
            lengths,
            journal,
            settings,
            identity,
            told,
            held: BTreeMap::new(),
            held_bytes: 0,
            own: VecDeque::new(),
            seal_at: None,
            exchange_at: None,
            tells_from: None,
            silenced: false,
            outdated: None,
            lock,
        };
        durable.count_restart();
        Ok(durable)
    }

    /// Tells how much a restart would read.
    fn count_restart(&self) {
        let bytes: u64 = self.lengths.values().sum();
        self.counters.disk_restart_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    // Outputs of the protocol.

    pub(super) fn persist(&mut self, record: &impl Wire) -> Ticket {
        self.seal_at = None;
        self.journal.append(record)
    }

    /// A checkpoint is whole, and what comes before this record is needed no more, but for what is `kept`.
    pub(super) fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        let segments = self.journal.collect(before, kept);
        self.lengths.retain(|number, _| !segments.contains(number));
        self.count_restart();
        if !segments.is_empty() {
            self.writer.remove(segments);
        }
        self.writer.note_checkpoint();
    }

    /// Shows this pass from now on, also after a crash. The one time that the protocol thread waits for its disk: nothing
    /// may leave before that is certain, and passes seldom change.
    pub(super) fn adopt(&mut self, pass: Bytes) {
        self.identity.pass = Some(pass);
        self.writer.own_now(self.identity.clone());
        self.silenced = self.writer.has_failed();
    }

    /// This process had told somebody of a record that is not there. Nothing leaves any more, and the process ends.
    pub(super) fn outdate(&mut self, witness: ProcessId, told: Told) {
        self.silenced = true;
        self.outdated.get_or_insert(DiskError::OlderCopy {
            directory: self.directory.clone(),
            last: self.told,
            told: told.durable,
            witness,
        });
    }

    pub(super) fn is_silenced(&self) -> bool {
        self.silenced
    }

    /// Keeps a message that has to wait, and sends it to those for whom it has not. If none has to wait it is handed back.
    pub(super) fn admit(
        &mut self,
        (me, links): (ProcessId, &mut Links),
        (to, message, after): (Destination, M, Option<Ticket>),
        own: &mut VecDeque<M>,
        spread: &mut Spread,
    ) -> Option<(Destination, M)> {
        assert!(after.is_none_or(|after| after <= self.journal.last()), "{after:?} was never given out");
        if self.silenced {
            return None;
        }
        let late = after.is_some_and(|after| after > self.told);
        let waits = |this: &Self, peer: ProcessId| match peer == me {
            true => late || !this.own.is_empty(),
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
                spread.count(links.send_shared(peer, &bytes));
            } else if links.is_linked(peer) {
                self.held_bytes += bytes.len();
                self.held.entry(peer).or_default().push_back((after, bytes.clone()));
                spread.sent += 1;
            } else {
                spread.unlinked += 1;
            }
        }
        if all.contains(&me) {
            if waits(self, me) {
                self.own.push_back((after, message));
            } else {
                own.push_back(message);
            }
        }
        None
    }

    /// The session with this peer is over: what waits for it is as good as lost.
    pub(super) fn drop_held(&mut self, peer: ProcessId) {
        let dropped = self.held.remove(&peer).unwrap_or_default();
        self.held_bytes -= dropped.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    }

    // What the loop asks.

    /// Whether the disk has something to tell.
    pub(super) fn has_news(&self) -> bool {
        self.writer.durable() > self.told || self.writer.has_failed()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.writer.has_failed()
    }

    /// Whether so much waits that nothing more is to be taken in.
    pub(super) fn is_pressed(&self) -> bool {
        let most = self.settings.waiting_bytes_max;
        self.writer.waiting_bytes() >= most as u64 || self.held_bytes >= most
    }

    /// When [`Durable::hand_out`] has something to do at the latest.
    pub(super) fn deadline(&self) -> Option<Time> {
        [self.seal_at, self.exchange_at].into_iter().flatten().min()
    }

    /// More is durable: lets go of what waited for it, and tells up to which record. To be called once all ends of sessions
    /// were told.
    pub(super) fn take_news(
        &mut self,
        now: Time,
        links: &mut Links,
        own: &mut VecDeque<M>,
    ) -> Option<Ticket> {
        let durable = self.writer.durable();
        if durable <= self.told || self.writer.has_failed() {
            return None;
        }
        self.told = durable;
        self.journal.synced(durable);
        self.exchange_at.get_or_insert(now + EXCHANGE_AFTER);
        if durable == self.journal.last() && !self.journal.is_sealed() {
            self.seal_at = Some(now + SEAL_AFTER);
        }
        let may_leave = |after: &Option<Ticket>| after.is_none_or(|after| after <= durable);
        let held_bytes = &mut self.held_bytes;
        self.held.retain(|&peer, queue| {
            while let Some((_, bytes)) = queue.pop_front_if(|(after, _)| may_leave(after)) {
                *held_bytes -= bytes.len();
                // Counted when it was sent. A link that breaks here is told of like any other.
                let _ = links.send_shared(peer, &bytes);
            }
            !queue.is_empty()
        });
        while let Some((_, message)) = self.own.pop_front_if(|(after, _)| may_leave(after)) {
            own.push_back(message);
        }
        Some(durable)
    }

    /// Hands the disk thread what was written in this turn, and sees to it that numbers of greetings are reserved. An error:
    /// there are none left, and the disk does not answer.
    pub(super) fn hand_out(&mut self, now: Time, links: &mut Links) -> Result<(), DiskError> {
        if let Some(outdated) = self.outdated.take() {
            return Err(outdated);
        }
        if links.has_learned() {
            self.exchange_at.get_or_insert(now + EXCHANGE_AFTER);
        }
        let tells_from = *self.tells_from.get_or_insert_with(|| {
            self.exchange_at = Some(now + TELLS_AFTER);
            now + TELLS_AFTER
        });
        if self.exchange_at.take_if(|at| *at <= now).is_some() {
            self.journal.note(links.hearsay());
            if now >= tells_from {
                self.tell(links);
            } else {
                self.exchange_at = Some(tells_from);
            }
        }
        if self.seal_at.take_if(|at| *at <= now).is_some() {
            self.journal.seal();
        }
        // The header of a new journal waits for the first record.
        if self.journal.last() > Ticket(0) {
            let writes = self.journal.take_writes();
            if !writes.is_empty() {
                for write in &writes {
                    self.lengths.insert(write.segment, write.offset + write.bytes.len() as u64);
                }
                self.count_restart();
                self.writer.write(writes, self.journal.last());
            }
        }
        let reserved = self.writer.numbers();
        let left = reserved.saturating_sub(links.number());
        if left < NUMBERS_RESERVED / 2
            && reserved == self.identity.numbers
            && let Some(next) = self.identity.reserved(NUMBERS_RESERVED)
        {
            self.identity = next.clone();
            self.writer.own(next);
        }
        if left < NUMBERS_LEAST { Err(DiskError::Stuck) } else { Ok(()) }
    }

    /// Tells others how far the journal goes.
    pub(super) fn tell(&self, links: &mut Links) {
        links.tell_durable(self.told);
    }

    /// The end: makes durable what was written, with what is known of others and a seal behind it. An error is what failed.
    pub(super) fn finish(self, hearsay: &Hearsay) -> Result<(), DiskError> {
        let Durable { mut journal, mut writer, identity, lock, .. } = self;
        let last = journal.last();
        if writer.durable() < last {
            writer.own_now(identity);
        }
        if writer.durable() == last && !writer.has_failed() {
            journal.synced(last);
            journal.note(hearsay);
            journal.seal();
            if last > Ticket(0) {
                writer.write(journal.take_writes(), last);
            }
        }
        let finished = writer.finish();
        // From now on another process may have the directory.
        drop(lock);
        finished
    }
}

/// A journal to which nothing is written for so long gets a seal, so that rot of its last records is found.
const SEAL_AFTER: Duration = Duration::from_millis(20);
/// So long after news others are told, and it is noted what they told: seldom enough to cost nothing, and an older copy that
/// is put back was taken earlier than that.
const EXCHANGE_AFTER: Duration = Duration::from_millis(100);
/// A process that has just begun tells nobody of its journal for so long. Some peers remember nothing of it, such as a process that took
/// another's place: were they told by an older copy before that meets those who know better, they would take the newest copy, put back
/// afterwards, for an older one.
const TELLS_AFTER: Duration = Duration::from_millis(300);
/// More than the connections that one turn makes.
const NUMBERS_LEAST: u32 = 2048;
