//! The disk thread. It takes all waiting jobs, writes and syncs them, and only then reports them as durable.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_protocol::{
    Ticket,
    journal::{self, Write},
};
use tracing::warn;

use super::{DiskError, Files, Identity, checkpoint, files::segment_name};
use crate::counters::Counters;

/// The protocol thread's handle to the disk thread. Dropping it waits until the thread has finished all jobs.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<Sender<DiskJob>>,
    progress: Arc<Progress>,
    thread: Option<thread::JoinHandle<()>>,
    /// Number of bytes handed over so far.
    bytes: u64,
}

/// State that the disk thread reports.
#[derive(Debug)]
struct Progress {
    durable: AtomicU64,
    /// Number of bytes handed over that are durable.
    bytes: AtomicU64,
    /// The highest reserved number of a greeting.
    numbers: AtomicU32,
    failed: OnceLock<DiskError>,
}

#[derive(Debug)]
enum DiskJob {
    /// Write these bytes. Once they are durable, all records up to `through` are.
    Write { writes: Vec<Write>, through: Ticket },
    /// Remove or reuse these segments.
    Remove(Vec<u64>),
    /// Write this identity, and signal when it is durable.
    WriteIdentity(Identity, Option<Sender<()>>),
    /// Note the time at which a checkpoint was completed.
    Checkpoint,
}

impl Writer {
    /// Starts the disk thread. Records up to `through` are already durable. The thread calls `wake` when its
    /// state changes.
    pub(crate) fn start(
        files: Box<dyn Files>,
        (settings, through, numbers): (journal::Settings, Ticket, u32),
        counters: Counters,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Writer> {
        let (jobs, waiting) = unbounded();
        let progress = Arc::new(Progress {
            durable: AtomicU64::new(through.0),
            bytes: AtomicU64::new(0),
            numbers: AtomicU32::new(numbers),
            failed: OnceLock::new(),
        });
        let shared_progress = progress.clone();
        let thread = thread::Builder::new().name("disk".to_owned()).spawn(move || {
            let spare = VecDeque::new();
            let mut disk_thread = DiskThread {
                files,
                settings,
                first_segment: None,
                newest_segment: 0,
                spare,
                progress: shared_progress,
                counters,
            };
            disk_thread.run(&waiting, wake);
        })?;
        Ok(Writer { jobs: Some(jobs), progress, thread: Some(thread), bytes: 0 })
    }

    fn hand_over(&self, job: DiskJob) {
        // A disk thread that has ended has recorded its failure, which the caller checks once a turn, so this
        // error is ignored.
        let _ = self.jobs.as_ref().expect("the queue of jobs is taken only in drop").send(job);
    }

    /// Queues writes. Once they are durable, all records up to `through` are.
    pub(crate) fn write(&mut self, writes: Vec<Write>, through: Ticket) {
        self.bytes += writes.iter().map(|write| write.bytes.len() as u64).sum::<u64>();
        self.hand_over(DiskJob::Write { writes, through });
    }

    /// Queues the removal of segments.
    pub(crate) fn remove(&mut self, segments: Vec<u64>) {
        self.hand_over(DiskJob::Remove(segments));
    }

    /// Queues a note in the directory that a checkpoint is complete.
    pub(crate) fn note_checkpoint(&mut self) {
        self.hand_over(DiskJob::Checkpoint);
    }

    /// Queues a new identity of the directory.
    pub(crate) fn write_identity(&mut self, identity: Identity) {
        self.hand_over(DiskJob::WriteIdentity(identity, None));
    }

    /// Writes a new identity of the directory. Waits until the identity is durable, or the disk has failed.
    pub(crate) fn write_identity_and_wait(&mut self, identity: Identity) {
        let (done_sender, done) = crossbeam_channel::bounded(1);
        self.hand_over(DiskJob::WriteIdentity(identity, Some(done_sender)));
        let _ = done.recv();
    }

    /// Returns the last record up to which all records are durable.
    pub(crate) fn durable(&self) -> Ticket {
        Ticket(self.progress.durable.load(Ordering::Acquire))
    }

    /// Returns the number of bytes that were handed over and are not yet durable.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.bytes - self.progress.bytes.load(Ordering::Acquire)
    }

    /// Returns the highest number that is reserved on the disk for greetings, the first messages of links.
    pub(crate) fn numbers(&self) -> u32 {
        self.progress.numbers.load(Ordering::Acquire)
    }

    /// Whether an operation has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.progress.failed.get().is_some()
    }

    /// Ends the thread after all queued jobs, and returns its failure, if any.
    pub(crate) fn finish(mut self) -> Result<(), DiskError> {
        self.end();
        let progress = std::mem::replace(&mut self.progress, Arc::new(Progress::empty()));
        let failed = Arc::into_inner(progress).and_then(|progress| progress.failed.into_inner());
        failed.map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panicked thread has printed its own panic, and records that it did not sync were never
            // reported as durable.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Progress {
    fn empty() -> Progress {
        Progress {
            durable: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            numbers: AtomicU32::new(0),
            failed: OnceLock::new(),
        }
    }
}

/// The state of the disk thread.
struct DiskThread {
    files: Box<dyn Files>,
    settings: journal::Settings,
    /// The number of the first segment that this process has written since its start.
    first_segment: Option<u64>,
    /// The number of the newest segment that was created.
    newest_segment: u64,
    /// Old segments to reuse, oldest first. A file system overwrites written blocks faster than it fills
    /// reserved blocks.
    spare: VecDeque<u64>,
    progress: Arc<Progress>,
    counters: Counters,
}

impl DiskThread {
    fn run(&mut self, waiting: &Receiver<DiskJob>, wake: impl Fn()) {
        while let Ok(first) = waiting.recv() {
            let jobs = std::iter::once(first).chain(waiting.try_iter()).collect();
            match self.take(jobs, &wake) {
                Ok(()) => {}
                Err(error) => {
                    self.progress.failed.set(error).expect("the disk thread ends with its first failure");
                    return wake();
                }
            }
        }
    }

    /// Executes all queued jobs. Joins adjacent writes of a segment.
    fn take(&mut self, jobs: Vec<DiskJob>, wake: &impl Fn()) -> Result<(), DiskError> {
        let mut pieces: Vec<Write> = Vec::new();
        let mut through = None;
        let mut rest = Vec::new();
        for job in jobs {
            match job {
                DiskJob::Write { writes, through: ticket } => {
                    pieces.extend(writes);
                    through = Some(ticket);
                }
                job => rest.push(job),
            }
        }
        if let Some(through) = through {
            let begun = Instant::now();
            let bytes: u64 = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
            let mut last = 0;
            for run in pieces.chunk_by(|one, next| one.segment == next.segment) {
                last = run[0].segment;
                self.write(last, run)?;
            }
            self.progress.durable.store(through.0, Ordering::Release);
            self.progress.bytes.fetch_add(bytes, Ordering::Release);
            self.counters.disk_bytes.inc_by(bytes);
            wake();
            // The next segment is created after the report, because nothing waits for the new segment yet.
            self.create_through(last + 1)?;
            self.counters.disk_busy_nanoseconds.inc_by(begun.elapsed().as_nanos() as u64);
        }
        for job in rest {
            match job {
                DiskJob::Write { .. } => unreachable!("writes were taken out above"),
                DiskJob::Remove(segments) => {
                    self.spare.extend(segments);
                    // The oldest segments are removed first, so that the numbers of the remaining segments
                    // have no gap.
                    while self.spare.len() > SPARE_SEGMENTS_MAX
                        && let Some(number) = self.spare.pop_front()
                    {
                        let name = segment_name(number);
                        self.files.remove(&name).map_err(|error| DiskError::new("remove", &name, error))?;
                    }
                }
                DiskJob::WriteIdentity(identity, done_sender) => {
                    let written = identity.write(&mut *self.files);
                    written.map_err(|error| DiskError::new("write", "identity", error))?;
                    self.progress.numbers.store(identity.numbers, Ordering::Release);
                    // The receiver is gone only if the protocol thread has ended.
                    let _ = done_sender.map(|done_sender| done_sender.send(()));
                }
                // The program does not depend on this file, so an error, for example because of a quota of
                // files, does not end the process. If the whole disk fails, the next write of the journal
                // reports that.
                DiskJob::Checkpoint => match checkpoint::write(&mut *self.files) {
                    Ok(now) => {
                        self.counters.disk_checkpoint_seconds.set(now);
                    }
                    Err(error) => warn!(
                        %error,
                        "cannot write the file `checkpoint`, so `quorate status` may show an earlier time of \
                         the last checkpoint"
                    ),
                },
            }
        }
        Ok(())
    }

    fn write(&mut self, segment: u64, run: &[Write]) -> Result<(), DiskError> {
        self.create_through(segment)?;
        let name = segment_name(segment);
        let failed = |operation| {
            let name = name.clone();
            move |error| DiskError::new(operation, &name, error)
        };
        let end = run.iter().fold(run[0].offset, |end, write| {
            assert!(write.offset == end, "a write to a segment begins at the segment's end");
            end + write.bytes.len() as u64
        });
        assert!(end > run[0].offset, "no write is empty");
        let pieces: Vec<Bytes> = run.iter().map(|write| write.bytes.clone()).collect();
        self.files.write(&name, run[0].offset, &pieces).map_err(failed("write"))?;
        let begun = Instant::now();
        self.files.sync(&name).map_err(failed("sync"))?;
        self.counters.synced(begun.elapsed());
        Ok(())
    }

    /// Creates the segment `number` unless it exists. Segments are written in the order of their numbers, and
    /// each is created before it is needed.
    fn create_through(&mut self, number: u64) -> Result<(), DiskError> {
        if number > self.newest_segment {
            let name = segment_name(number);
            // The file is longer than the segment's nominal length, because the record that reaches this
            // length still belongs to the segment.
            let begun = *self.first_segment.get_or_insert(number);
            let length = self.settings.segment_length(number - begun) + SLACK_BYTES;
            let created = match self.spare.pop_front() {
                // Old records in a reused file are ignored, because their checksums name another segment.
                Some(old) => self.files.reuse(&segment_name(old), &name, length),
                None => self.files.create(&name, length),
            };
            created.map_err(|error| DiskError::new("create", &name, error))?;
            self.newest_segment = number;
        }
        Ok(())
    }
}

/// Number of old segments kept for reuse.
const SPARE_SEGMENTS_MAX: usize = 2;
/// Bytes reserved after the nominal end of a segment, for its last record. A longer record makes the file
/// grow.
const SLACK_BYTES: u64 = 512 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        disk::{
            Directory,
            faults::{Faults, FaultyFiles},
        },
        metrics::Metrics,
    };

    /// A note of a checkpoint that cannot be written, for example because of a quota of files, does not end
    /// the process: the journal has its space reserved.
    #[test]
    fn a_note_that_cannot_be_written_ends_no_process() {
        let place = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        let files = FaultyFiles::new(Directory::create(place.path()).unwrap(), faults.clone());
        let begin = (journal::Settings::default(), Ticket(0), 0);
        let mut writer =
            Writer::start(Box::new(files), begin, Counters::new(&Metrics::default()), || {}).unwrap();
        faults.fail("replace", io::ErrorKind::StorageFull);
        writer.note_checkpoint();
        writer.finish().unwrap();
        assert!(!place.path().join("checkpoint").exists());
    }
}
