//! The disk thread: takes everything that waits, writes it, makes it durable, and only then says so.

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

use super::{DiskError, Files, Identity, checkpoint, files::segment_name};
use crate::counters::Counters;

/// The protocol thread's end. Dropping it lets the thread finish what waits, and waits for that.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<Sender<Job>>,
    progress: Arc<Progress>,
    thread: Option<thread::JoinHandle<()>>,
    /// Bytes handed over so far.
    bytes: u64,
}

/// Events of the disk thread.
#[derive(Debug)]
struct Progress {
    durable: AtomicU64,
    /// Bytes of those handed over that are durable.
    bytes: AtomicU64,
    /// Numbers of greetings that are reserved.
    numbers: AtomicU32,
    failed: OnceLock<DiskError>,
}

#[derive(Debug)]
enum Job {
    /// Bytes, and up to which record all is durable with them.
    Write { writes: Vec<Write>, through: Ticket },
    /// These segments are needed no more.
    Remove(Vec<u64>),
    /// From now on this is the owner; told when it is durable.
    Own(Identity, Option<Sender<()>>),
    /// A checkpoint became whole.
    Checkpoint,
}

impl Writer {
    /// Starts the thread. `through` is durable already; `wake` is called when there is news.
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
        let told = progress.clone();
        let thread = thread::Builder::new().name("disk".to_owned()).spawn(move || {
            let spare = VecDeque::new();
            let mut tray = Tray { files, settings, begun: None, ahead: 0, spare, progress: told, counters };
            tray.run(&waiting, wake);
        })?;
        Ok(Writer { jobs: Some(jobs), progress, thread: Some(thread), bytes: 0 })
    }

    fn hand_over(&self, job: Job) {
        // A thread that has ended has failed and said so: whoever hands over looks at that once a turn.
        let _ = self.jobs.as_ref().expect("taken only in drop").send(job);
    }

    /// Hands writes over.
    pub(crate) fn write(&mut self, writes: Vec<Write>, through: Ticket) {
        self.bytes += writes.iter().map(|write| write.bytes.len() as u64).sum::<u64>();
        self.hand_over(Job::Write { writes, through });
    }

    /// Lets segments go.
    pub(crate) fn remove(&mut self, segments: Vec<u64>) {
        self.hand_over(Job::Remove(segments));
    }

    /// Notes in the directory that a checkpoint became whole just now.
    pub(crate) fn note_checkpoint(&mut self) {
        self.hand_over(Job::Checkpoint);
    }

    /// Gives the directory another identity, some time.
    pub(crate) fn own(&mut self, identity: Identity) {
        self.hand_over(Job::Own(identity, None));
    }

    /// Gives the directory another identity, and waits until that is durable, or the disk has failed.
    pub(crate) fn own_now(&mut self, identity: Identity) {
        let (tell, told) = crossbeam_channel::bounded(1);
        self.hand_over(Job::Own(identity, Some(tell)));
        let _ = told.recv();
    }

    /// Up to which record all is durable.
    pub(crate) fn durable(&self) -> Ticket {
        Ticket(self.progress.durable.load(Ordering::Acquire))
    }

    /// Bytes that wait.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.bytes - self.progress.bytes.load(Ordering::Acquire)
    }

    /// Numbers of greetings that are reserved.
    pub(crate) fn numbers(&self) -> u32 {
        self.progress.numbers.load(Ordering::Acquire)
    }

    /// Whether an operation has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.progress.failed.get().is_some()
    }

    /// Ends the thread once everything that waits is done. An error is what failed, if anything did.
    pub(crate) fn finish(mut self) -> Result<(), DiskError> {
        self.end();
        let progress = std::mem::replace(&mut self.progress, Arc::new(Progress::empty()));
        let failed = Arc::into_inner(progress).and_then(|progress| progress.failed.into_inner());
        failed.map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed by its own thread; what it did not make durable was never told.
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

/// State of the disk thread.
struct Tray {
    files: Box<dyn Files>,
    settings: journal::Settings,
    /// The first segment of this life.
    begun: Option<u64>,
    /// The last segment that was created.
    ahead: u64,
    /// Segments that are needed no more and still there, the oldest ones. To write over what was written is less work for a
    /// file system than to write what was only reserved.
    spare: VecDeque<u64>,
    progress: Arc<Progress>,
    counters: Counters,
}

impl Tray {
    fn run(&mut self, waiting: &Receiver<Job>, wake: impl Fn()) {
        while let Ok(first) = waiting.recv() {
            let jobs = std::iter::once(first).chain(waiting.try_iter()).collect();
            match self.take(jobs, &wake) {
                Ok(()) => {}
                Err(error) => {
                    self.progress.failed.set(error).expect("the thread ends with its first failure");
                    return wake();
                }
            }
        }
    }

    /// Does everything that waited. What lies together is written together.
    fn take(&mut self, jobs: Vec<Job>, wake: &impl Fn()) -> Result<(), DiskError> {
        let mut pieces: Vec<Write> = Vec::new();
        let mut through = None;
        let mut rest = Vec::new();
        for job in jobs {
            match job {
                Job::Write { writes, through: ticket } => {
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
            // After the news: nobody waits for it.
            self.create_through(last + 1)?;
            self.counters.disk_busy_nanoseconds.inc_by(begun.elapsed().as_nanos() as u64);
        }
        for job in rest {
            match job {
                Job::Write { .. } => unreachable!("taken out above"),
                Job::Remove(segments) => {
                    self.spare.extend(segments);
                    // The oldest first: those that stay are without a gap.
                    while self.spare.len() > SPARE_MAX
                        && let Some(number) = self.spare.pop_front()
                    {
                        let name = segment_name(number);
                        self.files.remove(&name).map_err(|error| DiskError::new("remove", &name, error))?;
                    }
                }
                Job::Own(identity, tell) => {
                    let written = identity.write(&mut *self.files);
                    written.map_err(|error| DiskError::new("write", "identity", error))?;
                    self.progress.numbers.store(identity.numbers, Ordering::Release);
                    // The protocol thread has ended if it does not wait for this.
                    let _ = tell.map(|tell| tell.send(()));
                }
                Job::Checkpoint => {
                    let now = checkpoint::write(&mut *self.files);
                    let now = now.map_err(|error| DiskError::new("write", checkpoint::NAME, error))?;
                    self.counters.disk_checkpoint_seconds.set(now);
                }
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
            assert!(write.offset == end, "what is written to a segment goes to its end");
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

    /// Segments are written in the order of their numbers, and each is there before it is needed.
    fn create_through(&mut self, number: u64) -> Result<(), DiskError> {
        if number > self.ahead {
            let name = segment_name(number);
            // A segment ends behind the record with which it reaches its length.
            let begun = *self.begun.get_or_insert(number);
            let length = self.settings.segment_length(number - begun) + SLACK_BYTES;
            let created = match self.spare.pop_front() {
                // What it holds names another segment in its checksums, and is taken for nothing.
                Some(old) => self.files.reuse(&segment_name(old), &name, length),
                None => self.files.create(&name, length),
            };
            created.map_err(|error| DiskError::new("create", &name, error))?;
            self.ahead = number;
        }
        Ok(())
    }
}

/// How many segments that are needed no more are kept, to be written over.
const SPARE_MAX: usize = 2;
/// Reserved behind the end of a segment for its last record. A longer one makes the file grow.
const SLACK_BYTES: u64 = 512 << 10;
