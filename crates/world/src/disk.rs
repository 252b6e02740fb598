//! A machine's disk: the records that a process has written, the records that are durable, and the messages
//! that wait for durable records.
//!
//! Writes go to the operating system's cache and become durable together, one sync after another. When a
//! process is killed, the cache stays intact. A power cut destroys the cache: all of it, its end, or random
//! sectors. Bytes on disk can rot, a sync can fail, a disk can be slow, and an older copy of a disk can be
//! put back.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Destination, DomainId, ProcessId, Ticket, Time,
    journal::{
        Damage, DurabilityReport, Journal, Key, Owner, Recovered, RemoteDurability, Settings, StartHistory,
        Write,
    },
    wire::{Wire, WireError},
};
use serde::{Deserialize, Serialize};

use crate::{
    outbox::{Lane, Outgoing},
    random::{Chance, Delay},
};

/// Speed and sizes of disks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskSettings {
    /// Time that a sync takes.
    pub sync: Delay,
    /// Upper bound of the additional time of a sync while a disk is slow, in milliseconds.
    pub slow_ms_max: f64,
    /// Length of a journal's segment, in bytes.
    pub segment_bytes: u64,
}

impl Default for DiskSettings {
    fn default() -> Self {
        DiskSettings {
            sync: Delay::Exponential { least_micros: 50.0, mean_micros: 800.0 },
            slow_ms_max: 2_500.0,
            segment_bytes: 8 << 10,
        }
    }
}

/// A deliberate violation of the rules for disks. Checkers must detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// Messages leave before the records that they wait for are durable.
    SentBeforeDurable,
    /// Messages that wait for no record overtake messages that wait for one.
    OvertakesDurable,
    /// Recovery forgets the later half of the records.
    RecoversHalf,
    /// Recovery takes rotten bytes for a torn tail.
    RotTakenForTail,
    /// A process continues from an older copy of its disk.
    OlderCopyAccepted,
}

/// The disk of one machine, and the messages that its process holds back until records are durable.
#[derive(Debug)]
pub(crate) struct Disk {
    settings: DiskSettings,
    breach: Option<Breach>,
    /// The segments' files without the cache: the bytes that survive a power cut.
    files: BTreeMap<u64, Vec<u8>>,
    /// Files of collected segments. Later segments overwrite them, as on real disks.
    spare: VecDeque<Vec<u8>>,
    /// The cache: writes that are not durable yet, in order.
    cached: VecDeque<Write>,
    /// The journal of the running process.
    journal: Option<Journal>,
    /// The starts of the process that owns the disk.
    starts: StartHistory,
    /// The time from which the next write also notes the announcements of other processes.
    note_at: Time,
    /// A copy of the disk, taken some time ago.
    copy: Option<Copy>,
    /// Whether an older copy was put back.
    older: bool,
    /// The sync under way: the number of cached writes that it makes durable, and the last record among them.
    syncing: Option<(usize, Ticket)>,
    pub(crate) slow_until: Time,
    /// Whether the next sync fails.
    pub(crate) fails: bool,
    /// Whether a durable frame marks every durable record as durable. Only then can rot be distinguished from
    /// a torn tail.
    sealed: bool,
    /// Whether a durable byte has rotted.
    rotten: bool,
    /// Whether the last recovery may lack durable records, because rot in the last records looked like a torn
    /// tail.
    lacks: bool,
    /// Whether the disk has to be emptied when the process ends.
    forgotten: bool,
    /// The last record that was reported to the process as durable.
    reported: Ticket,
    /// Waiting messages by destination: each message's number, the record for which it waits, if any, and its
    /// bytes.
    held: BTreeMap<ProcessId, VecDeque<(u64, Option<Ticket>, Bytes)>>,
    /// For each destination, how many messages the process has sent to it in order, and the number of the
    /// last of these messages that has left.
    numbers: BTreeMap<ProcessId, (u64, u64)>,
    /// The recovered records, from which the next process is made.
    records: Vec<(Ticket, Bytes)>,
}

/// A copy of the durable contents of a disk.
#[derive(Debug)]
struct Copy {
    owner: ProcessId,
    files: BTreeMap<u64, Vec<u8>>,
    starts: StartHistory,
    last: Ticket,
}

/// An encoded record.
struct Raw<'a>(&'a Bytes);

impl Wire for Raw<'_> {
    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(self.0);
    }

    fn decode(_: &mut Bytes) -> Result<Self, WireError> {
        unreachable!("the journal hands out bytes")
    }
}

const DOMAIN: DomainId = DomainId(1);
const SECTOR: usize = 512;
/// Maximum number of files of collected segments that are kept for reuse.
const SPARE_MAX: usize = 2;
/// The secret of the journal's key. No workload knows it.
const SECRET: u64 = 0x2545_f491_4f6c_dd1d;
/// Time between two notes of other processes' announcements: as long as in a real process.
const NOTE_AFTER: std::time::Duration = std::time::Duration::from_millis(100);

impl Disk {
    pub(crate) fn new(settings: DiskSettings, breach: Option<Breach>) -> Disk {
        Disk {
            settings,
            breach,
            files: BTreeMap::new(),
            spare: VecDeque::new(),
            cached: VecDeque::new(),
            journal: None,
            starts: StartHistory::default(),
            note_at: Time::ZERO,
            copy: None,
            older: false,
            syncing: None,
            slow_until: Time::ZERO,
            fails: false,
            sealed: true,
            rotten: false,
            lacks: false,
            forgotten: false,
            reported: Ticket(0),
            held: BTreeMap::new(),
            numbers: BTreeMap::new(),
            records: Vec::new(),
        }
    }

    fn journal_settings(&self) -> Settings {
        let key = Key { secret: SECRET, since: 0 };
        Settings { segment_bytes: self.settings.segment_bytes, gaps: true, key }
    }

    /// Returns the process that can continue from this disk, while no process runs on it. Returns `None` if
    /// the disk has rotted or is an older copy.
    pub(crate) fn owner(&self) -> Option<ProcessId> {
        if self.rotten || self.older {
            return None;
        }
        match &self.journal {
            Some(_) => None,
            None => Journal::owner(&self.read()).map(|owner| owner.process),
        }
    }

    fn read(&self) -> BTreeMap<u64, Bytes> {
        self.files.iter().map(|(number, bytes)| (*number, Bytes::copy_from_slice(bytes))).collect()
    }

    /// Marks the disk as one to empty when the running process ends.
    pub(crate) fn forget(&mut self) {
        self.forgotten = true;
    }

    /// Empties the disk.
    fn wipe(&mut self) {
        self.files.clear();
        self.spare.clear();
        self.cached.clear();
        (self.rotten, self.older, self.records) = (false, false, Vec::new());
        self.starts = StartHistory::default();
    }

    /// Recovers the records that the last process left. Returns the process that may continue from these
    /// records. If no process may, the call empties the disk and returns `None`. The second result is the
    /// name of the fault that was found, if any, under which the fault is counted.
    pub(crate) fn recover(&mut self) -> (Option<ProcessId>, Option<&'static str>) {
        assert!(self.journal.is_none(), "one process at a time writes to a directory");
        self.sync_all();
        let Some(owner) = Journal::owner(&self.read()) else {
            self.wipe();
            return (None, None);
        };
        loop {
            match Journal::recover(owner, self.journal_settings(), &self.read()) {
                Ok(Recovered { records, .. }) if records.is_empty() => {
                    self.wipe();
                    return (None, Some("nothing was durable"));
                }
                Ok(Recovered { journal, mut records, torn_bytes, empty, .. }) => {
                    for number in empty {
                        self.files.remove(&number);
                    }
                    if self.breach == Some(Breach::RecoversHalf) {
                        records.truncate(records.len() / 2 + 1);
                    }
                    self.lacks = std::mem::take(&mut self.rotten);
                    (self.journal, self.records) = (Some(journal), records);
                    let torn = (torn_bytes > 0).then_some("torn tail cut off");
                    return (Some(owner.process), torn);
                }
                Err(Damage::Rotten { segment, offset, .. })
                    if self.breach == Some(Breach::RotTakenForTail) =>
                {
                    self.files.retain(|number, _| *number <= segment);
                    if let Some(file) = self.files.get_mut(&segment) {
                        file.truncate(offset as usize);
                    }
                }
                Err(_) => {
                    self.wipe();
                    return (None, Some("rot found"));
                }
            }
        }
    }

    /// Whether the last recovery may lack durable records, because rot in the last records looked like a torn
    /// tail.
    pub(crate) fn lacks(&self) -> bool {
        self.lacks
    }

    /// Removes and returns the recovered records, for the process that is made from them.
    pub(crate) fn take_records(&mut self) -> Vec<(Ticket, Bytes)> {
        std::mem::take(&mut self.records)
    }

    /// Puts back the records that [`Disk::take_records`] returned.
    pub(crate) fn give_records(&mut self, records: Vec<(Ticket, Bytes)>) {
        self.records = records;
    }

    /// Discards the recovered journal, because no process can continue from it. The next process will be new.
    pub(crate) fn abandon(&mut self) {
        self.journal = None;
        self.wipe();
    }

    /// Starts a process, restored or new. `mark` is the random mark of this start. Returns the last ticket of
    /// the process's journal, and the reports of other processes that the journal contains.
    pub(crate) fn begin(&mut self, process: ProcessId, mark: u64) -> (Ticket, RemoteDurability) {
        self.held.clear();
        self.numbers.clear();
        let settings = self.journal_settings();
        let owner = Owner { domain: DOMAIN, process };
        let journal = self.journal.get_or_insert_with(|| Journal::create(owner, settings));
        self.reported = journal.last();
        self.starts.begin(mark, self.reported);
        (self.reported, journal.remote_durability().clone())
    }

    /// Returns the report about its journal that the process announces to others.
    pub(crate) fn durability_report(&self) -> DurabilityReport {
        self.starts.report(self.reported)
    }

    /// Whether the journal holds all records that the process had announced by `report`.
    pub(crate) fn holds(&self, report: DurabilityReport) -> bool {
        self.breach == Some(Breach::OlderCopyAccepted) || self.starts.holds(report)
    }

    /// Whether an older copy was put back.
    pub(crate) fn is_older(&self) -> bool {
        self.older
    }

    /// Copies the durable contents of the disk.
    pub(crate) fn take_copy(&mut self, owner: ProcessId) {
        let last = self.journal.as_ref().map_or(self.reported, Journal::durable);
        self.copy = Some(Copy { owner, files: self.files.clone(), starts: self.starts.clone(), last });
    }

    /// Whether the copy belongs to this process, and lacks records that the process had announced by the
    /// `report`.
    pub(crate) fn copy_lacks(&self, owner: ProcessId, report: DurabilityReport) -> bool {
        self.copy.as_ref().filter(|copy| copy.owner == owner).is_some_and(|copy| {
            let mut starts = copy.starts.clone();
            starts.begin(0, copy.last);
            !starts.holds(report)
        })
    }

    /// Puts the copy in place of the present contents.
    pub(crate) fn put_back(&mut self) {
        if let Some(Copy { files, starts, .. }) = self.copy.take() {
            self.cached.clear();
            (self.files, self.starts, self.older) = (files, starts, true);
        }
    }

    /// Ends the process. A power cut destroys the writes that are not durable yet.
    pub(crate) fn end(&mut self, power: bool, chance: &mut Chance) {
        if let Some(journal) = self.journal.take() {
            self.sealed = self.cached.is_empty() && journal.is_sealed();
        }
        if std::mem::take(&mut self.forgotten) {
            self.wipe();
        }
        self.syncing = None;
        self.held.clear();
        self.records.clear();
        self.slow_until = Time::ZERO;
        self.fails = false;
        if !power {
            return;
        }
        // The power cut destroys the whole cache, its end, or random sectors.
        let (keep, scattered) = match chance.index(3) {
            0 => (0, false),
            1 => (chance.index(self.cached.len() + 1), false),
            _ => (self.cached.len(), true),
        };
        for (at, write) in std::mem::take(&mut self.cached).into_iter().enumerate() {
            if at > keep {
                break;
            }
            let file = file(&mut self.files, &mut self.spare, write.segment);
            for (sector, piece) in write.bytes.chunks(SECTOR).enumerate() {
                let kept = if scattered || at == keep { chance.happens(0.5) } else { true };
                if kept {
                    put(file, write.offset as usize + sector * SECTOR, piece);
                }
            }
        }
        self.files.retain(|_, file| !file.is_empty());
    }

    /// Changes a durable byte. Returns `false` if there is no such byte.
    pub(crate) fn rot(&mut self, chance: &mut Chance) -> bool {
        let spared = self.files.keys().next_back().copied().filter(|_| !self.sealed);
        let files = || self.files.iter().filter(|(number, _)| Some(**number) != spared);
        let total: usize = files().map(|(_, file)| file.len()).sum();
        if total == 0 {
            return false;
        }
        let mut at = chance.index(total);
        for file in self.files.values_mut() {
            if at < file.len() {
                file[at] ^= 1 << chance.index(8);
                break;
            }
            at -= file.len();
        }
        self.rotten = true;
        true
    }

    fn sync_all(&mut self) {
        for write in std::mem::take(&mut self.cached) {
            let file = file(&mut self.files, &mut self.spare, write.segment);
            put(file, write.offset as usize, &write.bytes);
        }
    }

    /// Writes records. Releases all records before the ticket in `collect`, except the records that `collect`
    /// lists. From time to time, also writes the announcements of other processes into the journal.
    pub(crate) fn write(
        &mut self,
        records: &[Bytes],
        collect: Option<(Ticket, Vec<Ticket>)>,
        (now, remote_durability): (Time, &RemoteDurability),
    ) {
        let journal = self.journal.as_mut().expect("a process that runs has a journal");
        if !records.is_empty() && now >= self.note_at {
            journal.note(remote_durability);
            self.note_at = now + NOTE_AFTER;
        }
        for record in records {
            journal.append(&Raw(record));
        }
        self.cached.extend(journal.take_writes());
        if let Some((before, kept)) = collect {
            for number in journal.collect(before, &kept) {
                self.spare.extend(self.files.remove(&number));
            }
            self.spare.truncate(SPARE_MAX);
        }
    }

    /// Starts a sync if the cache is not empty and no sync is under way. Returns the duration of the sync.
    pub(crate) fn sync(&mut self, now: Time, chance: &mut Chance) -> Option<std::time::Duration> {
        if self.syncing.is_some() || self.cached.is_empty() {
            return None;
        }
        let journal = self.journal.as_ref()?;
        self.syncing = Some((self.cached.len(), journal.last()));
        let span = chance.span(self.settings.sync);
        let slow = std::time::Duration::from_nanos((self.settings.slow_ms_max * chance.unit() * 1e6) as u64);
        Some(if now < self.slow_until { span + slow } else { span })
    }

    /// Ends the sync under way. Returns the last record that is now durable, or `None` if the sync failed.
    pub(crate) fn synced(&mut self, remote_durability: &RemoteDurability) -> Option<Ticket> {
        let (count, through) = self.syncing.take()?;
        if self.fails {
            return None;
        }
        for write in self.cached.drain(..count) {
            let file = file(&mut self.files, &mut self.spare, write.segment);
            put(file, write.offset as usize, &write.bytes);
        }
        let journal = self.journal.as_mut()?;
        journal.synced(through);
        if self.cached.is_empty() {
            journal.note(remote_durability);
            journal.seal();
            self.cached.extend(journal.take_writes());
        }
        Some(through)
    }

    /// Records that the process has been notified that all records up to `through` are durable.
    pub(crate) fn note_reported(&mut self, through: Ticket) {
        self.reported = self.reported.max(through);
    }

    /// Makes the disk fast and free of failures from now on.
    pub(crate) fn heal(&mut self) {
        (self.slow_until, self.fails) = (Time::ZERO, false);
    }

    /// Returns the messages that may leave now, in order: first messages that waited, then messages of
    /// `sends`. An error names a receiver to which messages would leave in another order than they were sent.
    pub(crate) fn release(&mut self, sends: Vec<Outgoing>) -> Result<Vec<Outgoing>, ProcessId> {
        let mut leaving = Vec::new();
        let reported = self.reported;
        let waits = |after: Option<Ticket>| after.is_some_and(|after| after > reported);
        let mut left = Vec::new();
        for (&peer, queue) in &mut self.held {
            while let Some((number, _, bytes)) = queue.pop_front_if(|(_, after, _)| !waits(*after)) {
                left.push((peer, number));
                leaving.push(Outgoing::Message(Destination::One(peer), bytes, Lane::Aside));
            }
        }
        for outgoing in sends {
            match outgoing {
                Outgoing::Barrier(peer) => {
                    self.held.remove(&peer);
                    leaving.push(Outgoing::Barrier(peer));
                }
                Outgoing::Message(to, bytes, Lane::Aside) => {
                    leaving.push(Outgoing::Message(to, bytes, Lane::Aside));
                }
                Outgoing::Message(to, bytes, Lane::Ordered(after)) => {
                    let all = match to {
                        Destination::One(peer) => vec![peer],
                        Destination::Many(peers) => peers,
                    };
                    for peer in all {
                        let (sent, _) = self.numbers.entry(peer).or_default();
                        *sent += 1;
                        let number = *sent;
                        let behind = self.held.get(&peer).is_some_and(|queue| !queue.is_empty());
                        let stays = match self.breach {
                            Some(Breach::SentBeforeDurable) => false,
                            Some(Breach::OvertakesDurable) => waits(after),
                            _ => waits(after) || behind,
                        };
                        if stays {
                            self.held.entry(peer).or_default().push_back((number, after, bytes.clone()));
                        } else {
                            left.push((peer, number));
                            leaving.push(Outgoing::Message(
                                Destination::One(peer),
                                bytes.clone(),
                                Lane::Aside,
                            ));
                        }
                    }
                }
            }
        }
        for (peer, number) in left {
            let (_, last) = self.numbers.entry(peer).or_default();
            if number < *last {
                return Err(peer);
            }
            *last = number;
        }
        Ok(leaving)
    }
}

/// Returns the file of a segment. A new file may hold bytes of an older segment.
fn file<'a>(
    files: &'a mut BTreeMap<u64, Vec<u8>>,
    spare: &mut VecDeque<Vec<u8>>,
    segment: u64,
) -> &'a mut Vec<u8> {
    files.entry(segment).or_insert_with(|| spare.pop_front().unwrap_or_default())
}

/// Writes bytes into a file, and extends the file if needed.
fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}
