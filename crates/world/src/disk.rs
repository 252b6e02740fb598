//! A machine's disk: what a process has written, what of it is durable, and what waits for it.
//!
//! Writes go to the cache of the operating system and are made durable together, one sync after another. A process that is
//! killed leaves the cache behind; a power cut takes what is not durable, whole, from the end, or sector by sector in any
//! order. Bytes on disk can rot, a sync can fail, a disk can be slow, and an older copy of it can be put back.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Destination, DomainId, ProcessId, Ticket, Time,
    journal::{Damage, Hearsay, Journal, Owner, Recovered, Settings, Starts, Told, Write},
    wire::{Wire, WireError},
};
use serde::{Deserialize, Serialize};

use crate::{
    machine::{Lane, Outgoing},
    random::{Chance, Delay},
};

/// Speed and sizes of disks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskSettings {
    /// How long a sync takes.
    pub sync: Delay,
    /// How long a sync takes while a disk is slow, at most.
    pub slow_ms_max: f64,
    /// When a segment of a journal ends.
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

/// A rule of those who write to disks, broken on purpose: a test of checkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// Messages leave before the records that they wait for are durable.
    SentBeforeDurable,
    /// Messages that wait for no record overtake those that do.
    OvertakesDurable,
    /// Of the records on a disk the later half is forgotten.
    RecoversHalf,
    /// Bytes that rotted are taken for a torn tail.
    RotTakenForTail,
    /// A process goes on from an older copy of its disk.
    OlderCopyAccepted,
}

/// The disk of one machine, and the queues of its process that wait for it.
#[derive(Debug)]
pub(crate) struct Disk {
    settings: DiskSettings,
    breach: Option<Breach>,
    /// Bytes that survive a power cut.
    files: BTreeMap<u64, Vec<u8>>,
    /// Writes that are not durable yet, in order.
    cached: VecDeque<Write>,
    /// Of the process that runs.
    journal: Option<Journal>,
    /// How often the process that owns it began.
    starts: Starts,
    /// What is known of others is noted with the first write from then on.
    note_at: Time,
    /// Taken some time ago.
    copy: Option<Copy>,
    /// What is there is an older copy.
    older: bool,
    /// The sync under way: how many writes it makes durable, and up to which record.
    syncing: Option<(usize, Ticket)>,
    pub(crate) slow_until: Time,
    /// The next sync fails.
    pub(crate) fails: bool,
    /// A durable frame says of every durable record that it is: only then is rot told from a torn tail.
    sealed: bool,
    /// Bytes that were durable are others now.
    rotten: bool,
    /// What was recovered last may lack durable records: rot in the last of them looked like a torn tail.
    lacks: bool,
    /// The process is not to be made again.
    forgotten: bool,
    /// The last record of which the process was told that it is durable.
    told: Ticket,
    /// Messages that wait, by destination: number, the record each waits for, bytes.
    held: BTreeMap<ProcessId, VecDeque<(u64, Option<Ticket>, Bytes)>>,
    /// How many messages were sent on the lane that may wait, and the number of the last that left.
    numbers: BTreeMap<ProcessId, (u64, u64)>,
    /// The records that the next process is made from.
    records: Vec<(Ticket, Bytes)>,
}

/// What was durable on a disk when it was copied.
#[derive(Debug)]
struct Copy {
    owner: ProcessId,
    files: BTreeMap<u64, Vec<u8>>,
    starts: Starts,
    last: Ticket,
}

/// A record as it is.
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
/// As real processes do.
const NOTE_AFTER: std::time::Duration = std::time::Duration::from_millis(100);

impl Disk {
    pub(crate) fn new(settings: DiskSettings, breach: Option<Breach>) -> Disk {
        Disk {
            settings,
            breach,
            files: BTreeMap::new(),
            cached: VecDeque::new(),
            journal: None,
            starts: Starts::default(),
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
            told: Ticket(0),
            held: BTreeMap::new(),
            numbers: BTreeMap::new(),
            records: Vec::new(),
        }
    }

    fn journal_settings(&self) -> Settings {
        Settings { segment_bytes: self.settings.segment_bytes, gaps: true }
    }

    /// The process whose journal lies here, if it can be read as a whole.
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

    /// The process that runs is not to be made again.
    pub(crate) fn forget(&mut self) {
        self.forgotten = true;
    }

    /// Nothing is on the disk any more.
    fn wipe(&mut self) {
        self.files.clear();
        self.cached.clear();
        (self.rotten, self.older, self.records) = (false, false, Vec::new());
        self.starts = Starts::default();
    }

    /// Reads what the last process left. Who may go on from it, if anybody; otherwise the disk is empty afterwards. Tells
    /// what was found.
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

    /// Whether what was recovered last may lack durable records, because rot in the last of them looked like a torn tail.
    pub(crate) fn lacks(&self) -> bool {
        self.lacks
    }

    /// The records that were recovered, for the process that is made from them.
    pub(crate) fn take_records(&mut self) -> Vec<(Ticket, Bytes)> {
        std::mem::take(&mut self.records)
    }

    /// The records are for the next process after all.
    pub(crate) fn give_records(&mut self, records: Vec<(Ticket, Bytes)>) {
        self.records = records;
    }

    /// No process can go on from what was recovered: the next one is new.
    pub(crate) fn abandon(&mut self) {
        self.journal = None;
        self.wipe();
    }

    /// A process begins: one that goes on, or a new one, whose start has this mark. Tells its last ticket, and what it had noted
    /// of others.
    pub(crate) fn begin(&mut self, process: ProcessId, mark: u64) -> (Ticket, Hearsay) {
        self.held.clear();
        self.numbers.clear();
        let settings = self.journal_settings();
        let owner = Owner { domain: DOMAIN, process };
        let journal = self.journal.get_or_insert_with(|| Journal::create(owner, settings));
        self.told = journal.last();
        self.starts.begin(mark, self.told);
        (self.told, journal.hearsay().clone())
    }

    /// What the process tells others of its journal.
    pub(crate) fn tells(&self) -> Told {
        self.starts.tell(self.told)
    }

    /// Whether the process may go on, which had told this.
    pub(crate) fn holds(&self, told: Told) -> bool {
        self.breach == Some(Breach::OlderCopyAccepted) || self.starts.holds(told)
    }

    /// Whether what is there is an older copy.
    pub(crate) fn is_older(&self) -> bool {
        self.older
    }

    /// Copies what is durable.
    pub(crate) fn take_copy(&mut self, owner: ProcessId) {
        let last = self.journal.as_ref().map_or(self.told, Journal::durable);
        self.copy = Some(Copy { owner, files: self.files.clone(), starts: self.starts.clone(), last });
    }

    /// Whether the copy is one of this process, which would lack what it had told.
    pub(crate) fn copy_lacks(&self, owner: ProcessId, told: Told) -> bool {
        self.copy.as_ref().filter(|copy| copy.owner == owner).is_some_and(|copy| {
            let mut starts = copy.starts.clone();
            starts.begin(0, copy.last);
            !starts.holds(told)
        })
    }

    /// Puts the copy in place of what is there.
    pub(crate) fn put_back(&mut self) {
        if let Some(Copy { files, starts, .. }) = self.copy.take() {
            self.cached.clear();
            (self.files, self.starts, self.older) = (files, starts, true);
        }
    }

    /// The process has ended. A power cut takes what was not durable.
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
        // All of it is gone, or what came last, or any sectors.
        let (keep, scattered) = match chance.index(3) {
            0 => (0, false),
            1 => (chance.index(self.cached.len() + 1), false),
            _ => (self.cached.len(), true),
        };
        for (at, write) in std::mem::take(&mut self.cached).into_iter().enumerate() {
            if at > keep {
                break;
            }
            let file = self.files.entry(write.segment).or_default();
            for (sector, piece) in write.bytes.chunks(SECTOR).enumerate() {
                let kept = if scattered || at == keep { chance.happens(0.5) } else { true };
                if kept {
                    put(file, write.offset as usize + sector * SECTOR, piece);
                }
            }
        }
        self.files.retain(|_, file| !file.is_empty());
    }

    /// A byte that was durable becomes another. `false`: there is none.
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
            put(self.files.entry(write.segment).or_default(), write.offset as usize, &write.bytes);
        }
    }

    /// Writes records, and lets go of those before the first ticket of `collect`, except those behind it. Now and then notes
    /// with them what is known of others.
    pub(crate) fn write(
        &mut self,
        records: &[Bytes],
        collect: Option<(Ticket, Vec<Ticket>)>,
        (now, hearsay): (Time, &Hearsay),
    ) {
        let journal = self.journal.as_mut().expect("a process that runs has a journal");
        if !records.is_empty() && now >= self.note_at {
            journal.note(hearsay);
            self.note_at = now + NOTE_AFTER;
        }
        for record in records {
            journal.append(&Raw(record));
        }
        self.cached.extend(journal.take_writes());
        if let Some((before, kept)) = collect {
            for number in journal.collect(before, &kept) {
                self.files.remove(&number);
            }
        }
    }

    /// Begins a sync if there is something to make durable and none is under way. Tells how long it takes.
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

    /// The sync under way is done. Tells up to which record all is durable; `None` if it failed.
    pub(crate) fn synced(&mut self, hearsay: &Hearsay) -> Option<Ticket> {
        let (count, through) = self.syncing.take()?;
        if self.fails {
            return None;
        }
        for write in self.cached.drain(..count) {
            put(self.files.entry(write.segment).or_default(), write.offset as usize, &write.bytes);
        }
        let journal = self.journal.as_mut()?;
        journal.synced(through);
        if self.cached.is_empty() {
            journal.note(hearsay);
            journal.seal();
            self.cached.extend(journal.take_writes());
        }
        Some(through)
    }

    /// The process is told that all up to `through` is durable.
    pub(crate) fn tell(&mut self, through: Ticket) {
        self.told = self.told.max(through);
    }

    /// All is well with this disk from now on.
    pub(crate) fn heal(&mut self) {
        (self.slow_until, self.fails) = (Time::ZERO, false);
    }

    /// What may leave now: of what waited, and of `sends`, in order. An error names to whom messages were sent in another
    /// order.
    pub(crate) fn release(&mut self, sends: Vec<Outgoing>) -> Result<Vec<Outgoing>, ProcessId> {
        let mut leaving = Vec::new();
        let told = self.told;
        let waits = |after: Option<Ticket>| after.is_some_and(|after| after > told);
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

/// Puts bytes into a file that may be too short, or has others there.
fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if offset == 0 {
        file.clear();
    }
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}
