//! The load: clients that do the operations due and record them. Each client is a thread with its own
//! connection.
//!
//! With a rate, operations are due at times that do not depend on how long other operations take. A latency
//! counts from the time at which the operation was due, so it includes the wait behind a slow operation (free
//! of coordinated omission). Without a rate, each client continues as soon as it is answered. A client
//! records the interval from sending to the answer, artificial delays included.
//!
//! **Turning.** At a setting that is too slow for the rate, some operations are due and have not begun. Under
//! the next setting they would be late from the start, so the latencies of the next setting would be those of
//! the previous one. So when the dials are turned, clients *let go* the operations that were due until then
//! and had not begun. These operations are counted ([`Tape::let_go`]) and never done. Within one setting no
//! operation is let go, and every wait counts. A change of the rate lets no operation go.

use std::{
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crossbeam_channel::{Receiver, Sender};
use quorate::maps::{Failure, Level, Store};
use quorate_history::{Action, Operation, Outcome, Value};
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;
use thiserror::Error;

use crate::{
    dial::{Dialled, Dials, Served},
    heat::Heat,
    workload::{Chooser, Next, Workload},
};

/// Connects the client with the given number. Called on the client's own thread.
pub type Connect<'a> = dyn Fn(u64) -> Result<Box<dyn Store>, Failure> + Sync + 'a;

/// A failure of the clients before they began, or of a client's thread.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A client could not connect to the store.
    #[error("a client could not connect to the store: {0}")]
    Connect(Failure),
    /// A key could not be written before the clients began.
    #[error("a key could not be written before the run: {0}")]
    Fill(Failure),
    /// A client's thread panicked.
    #[error("the thread of a client panicked, which is a bug of this program")]
    Panicked,
}

/// Clients with their workload.
pub struct Load<'a> {
    connect: &'a Connect<'a>,
    clients: u64,
    workload: Workload,
    chooser: Chooser,
    heat: Arc<Heat>,
    clock: Instant,
    turned: RwLock<DialsTurn>,
    /// Operations a second of all clients together, as the bits of a float. Zero means no limit.
    rate: AtomicU64,
    stops: AtomicBool,
    /// Whether clients record their operations for a history.
    records: bool,
    /// Milliseconds of the clock at the start. They distinguish the values of this load from those of earlier
    /// loads in the same store.
    run: u32,
}

/// The dials, and the time at which they were turned.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DialsTurn {
    dials: Dials,
    /// Time since the load was created.
    at: Duration,
}

/// The time that the store took for an answered operation, without artificial delays and waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Number of the client.
    pub client: u64,
    /// Whether the operation was a write.
    pub is_write: bool,
    /// Whether the operation was at the strong level.
    pub is_strong: bool,
    /// Time in nanoseconds.
    pub took: u64,
}

/// A client's distance from the three copies of a key: the shortest times of its reads at the levels of one,
/// two and all copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sounding {
    /// Number of the client.
    pub client: u64,
    /// Shortest time until one, two and three copies answered. `None` where fewer copies answered.
    pub round_trips: [Option<Duration>; 3],
}

/// Operations of a client and their latencies, since its last hand-over.
#[derive(Debug, Default)]
pub struct Tape {
    /// Operations recorded for the history. Unanswered reads are not recorded.
    pub operations: Vec<Operation>,
    /// Latencies of answered reads, in nanoseconds.
    pub reads: Vec<u64>,
    /// Latencies of answered writes, in nanoseconds.
    pub writes: Vec<u64>,
    /// Number of operations that failed.
    pub failed: u64,
    /// Times that the store took for answered operations.
    pub served: Vec<Service>,
    /// Number of operations let go. They were due before the dials were turned, had not begun by then, and
    /// were never done.
    pub let_go: u64,
}

impl Tape {
    /// Appends another tape.
    pub fn append(&mut self, mut other: Tape) {
        self.operations.append(&mut other.operations);
        self.reads.append(&mut other.reads);
        self.writes.append(&mut other.writes);
        self.failed += other.failed;
        self.served.append(&mut other.served);
        self.let_go += other.let_go;
    }
}

/// Largest number of clients that write the keys at the start.
const FILLERS_MAX: u64 = 32;

/// Number of reads at each level with which a client sounds the store.
const SOUNDINGS: u32 = 4;

/// Interval at which a client hands its tape over.
const HAND_OVER: Duration = Duration::from_millis(100);

impl<'a> Load<'a> {
    /// Creates a load whose clients do not work yet. A `rate` of zero means no limit.
    pub fn new(
        connect: &'a Connect<'a>,
        clients: u64,
        workload: &Workload,
        dials: Dials,
        rate: f64,
    ) -> Load<'a> {
        Load {
            connect,
            clients,
            workload: workload.clone(),
            chooser: Chooser::new(workload),
            heat: Arc::default(),
            clock: Instant::now(),
            turned: RwLock::new(DialsTurn { dials, at: Duration::ZERO }),
            rate: AtomicU64::new(rate.to_bits()),
            stops: AtomicBool::new(false),
            records: true,
            run: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u32),
        }
    }

    /// Turns recording off, to measure the cost of recording.
    pub fn unrecorded(self) -> Load<'a> {
        Load { records: false, ..self }
    }

    /// Returns nanoseconds since the load was created. Operations are recorded by this clock.
    pub fn now(&self) -> i64 {
        self.clock.elapsed().as_nanos() as i64
    }

    /// Turns the dials. Operations that begin from now on follow them. Operations that are due and have not
    /// begun are let go.
    pub fn turn(&self, dials: Dials) {
        let mut turned = self.turned.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *turned = DialsTurn { dials, at: self.clock.elapsed() };
    }

    fn turned(&self) -> DialsTurn {
        *self.turned.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the workload of the clients.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Returns the number of clients.
    pub fn clients(&self) -> u64 {
        self.clients
    }

    /// Returns the rate of all clients together, in operations a second. Zero means no limit.
    pub fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Relaxed))
    }

    /// Whether the clients stop, because the run ended or a client could not begin.
    pub fn has_stopped(&self) -> bool {
        self.stops.load(Relaxed)
    }

    /// Sets the rate of all clients together, in operations a second. Zero means no limit.
    pub fn set_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Relaxed);
    }

    /// Writes every key once, at the strong level and without delays. Returns the operations.
    pub fn fill(&self) -> Result<Tape, LoadError> {
        let fillers = self.clients.clamp(1, FILLERS_MAX);
        let fill = |number: u64| {
            let mut worker = Worker::connect(self, self.clients + number)?;
            worker.dialled.dials.writes.p = 1.0;
            worker.dialled.dials.writes.delay = Duration::ZERO;
            for key in (number..self.workload.keys).step_by(fillers as usize) {
                worker.write(key).map_err(LoadError::Fill)?;
            }
            Ok(Tape { operations: worker.tape.operations, ..Tape::default() })
        };
        let mut all = Tape::default();
        thread::scope(|scope| {
            let fillers: Vec<_> = (0..fillers).map(|number| scope.spawn(move || fill(number))).collect();
            for filled in fillers {
                all.append(filled.join().unwrap_or(Err(LoadError::Panicked))?);
            }
            Ok(all)
        })
    }

    /// Sounds the store: each client reads at the levels of one, two and all copies. Returns the shortest
    /// times. The keys must have been written.
    pub fn sound(&self) -> Result<Vec<Sounding>, LoadError> {
        let sound = |client: u64| {
            let mut worker = Worker::connect(self, client)?;
            let key = name(client % self.workload.keys);
            let mut least = |level| {
                let times = (0..SOUNDINGS).map(|_| {
                    let began = Instant::now();
                    worker.dialled.store.read(key.as_bytes(), level).ok().map(|_| began.elapsed())
                });
                times.flatten().min()
            };
            Ok(Sounding { client, round_trips: [Level::One, Level::Two, Level::All].map(&mut least) })
        };
        thread::scope(|scope| {
            let clients: Vec<_> =
                (0..self.clients).map(|client| scope.spawn(move || sound(client))).collect();
            let sounded = clients.into_iter().map(|it| it.join().unwrap_or(Err(LoadError::Panicked)));
            sounded.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Lets all clients work for a span. Returns their operations and the time that they took.
    pub fn run(&self, span: Duration) -> Result<(Tape, Duration), LoadError> {
        let began = self.begin();
        let (sender, receiver) = crossbeam_channel::unbounded();
        self.work(began, Some(began + span), &sender)?;
        drop(sender);
        let took = self.clock.elapsed().saturating_sub(began);
        Ok((gather(&receiver), took))
    }

    /// Lets all clients work while `meanwhile` runs. `meanwhile` receives their tapes.
    pub fn run_while<T>(&self, meanwhile: impl FnOnce(&Receiver<Tape>) -> T) -> Result<T, LoadError> {
        let began = self.begin();
        let (sender, receiver) = crossbeam_channel::unbounded();
        thread::scope(|scope| {
            let working = scope.spawn(move || self.work(began, None, &sender));
            let result = meanwhile(&receiver);
            self.stops.store(true, Relaxed);
            working.join().unwrap_or(Err(LoadError::Panicked))?;
            Ok(result)
        })
    }

    /// Returns the time at which all clients begin, late enough for them to connect.
    fn begin(&self) -> Duration {
        self.stops.store(false, Relaxed);
        self.clock.elapsed() + Duration::from_millis(200 + 2 * self.clients)
    }

    fn work(&self, begin: Duration, end: Option<Duration>, to: &Sender<Tape>) -> Result<(), LoadError> {
        thread::scope(|scope| {
            let client = |number| {
                move || {
                    let worked = Worker::connect(self, number).and_then(|it| it.work(begin, end, to));
                    if worked.is_err() {
                        self.stops.store(true, Relaxed);
                    }
                    worked
                }
            };
            let workers: Vec<_> = (0..self.clients).map(|number| scope.spawn(client(number))).collect();
            let ended = workers.into_iter().map(|it| it.join().unwrap_or(Err(LoadError::Panicked)));
            // Every client must end before a failure is returned.
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }
}

/// Returns all tapes in the channel, joined.
fn gather(receiver: &Receiver<Tape>) -> Tape {
    let mut all = Tape::default();
    receiver.try_iter().for_each(|tape| all.append(tape));
    all
}

/// A client.
struct Worker<'a> {
    load: &'a Load<'a>,
    number: u64,
    dialled: Dialled<Box<dyn Store>>,
    random: Pcg64Mcg,
    tape: Tape,
    written: u64,
}

impl<'a> Worker<'a> {
    fn connect(load: &'a Load<'a>, number: u64) -> Result<Worker<'a>, LoadError> {
        let store = (load.connect)(number).map_err(LoadError::Connect)?;
        let random = |stream: u64| Pcg64Mcg::seed_from_u64(number * 2 + stream);
        let dials = load.turned().dials;
        Ok(Worker {
            load,
            number,
            dialled: Dialled::new(store, dials, load.heat.clone(), random(0)),
            random: random(1),
            tape: Tape::default(),
            written: 0,
        })
    }

    /// Does the operations that are due, from `begin` on.
    fn work(mut self, begin: Duration, end: Option<Duration>, to: &Sender<Tape>) -> Result<(), LoadError> {
        let clock = self.load.clock;
        let mut rate = self.load.rate();
        let mut due = begin + spaced(self.number, rate);
        let mut reported_at = begin;
        let mut turned = self.load.turned().at;
        while !self.load.stops.load(Relaxed) {
            let now = clock.elapsed();
            if now >= reported_at + HAND_OVER {
                reported_at = now;
                let _ = to.send(std::mem::take(&mut self.tape));
                if self.load.rate() != rate {
                    rate = self.load.rate();
                    // A late operation keeps the time at which it was due, so that its latency includes the
                    // delay.
                    due = if rate > 0.0 && due < now { due } else { now + spaced(self.number, rate) };
                }
            }
            let latest = self.load.turned();
            self.dialled.dials = latest.dials;
            if latest.at != turned {
                turned = latest.at;
                let missed = due_before(turned, due, spaced(self.load.clients, rate));
                due += spaced(self.load.clients, rate) * missed;
                self.tape.let_go += u64::from(missed);
            }
            let next = if rate > 0.0 { due } else { now };
            if end.is_some_and(|end| next >= end) {
                break;
            }
            if now < due {
                // A long sleep is split, so that the client hands over, stops and follows the dials in time.
                thread::sleep((due - now).min(HAND_OVER));
                continue;
            }
            self.step(if rate > 0.0 { due } else { now });
            if rate > 0.0 {
                due += spaced(self.load.clients, rate);
            }
        }
        // The receiver may be gone by now.
        let _ = to.send(self.tape);
        Ok(())
    }

    fn step(&mut self, due: Duration) {
        match self.load.chooser.next(&mut self.random) {
            Next::Read(key) => self.timed(due, false, key),
            Next::Write(key) => self.timed(due, true, key),
            Next::ReadThenWrite(key) => {
                self.timed(due, false, key);
                let due = self.load.clock.elapsed();
                self.timed(due, true, key);
            }
        }
    }

    fn timed(&mut self, due: Duration, is_write: bool, key: u64) {
        let answered = if is_write { self.write(key) } else { self.read(key) };
        let latency = (self.load.clock.elapsed() - due).as_nanos() as u64;
        let Served { is_strong, took } = self.dialled.served;
        if answered.is_ok() {
            let took = took.as_nanos() as u64;
            self.tape.served.push(Service { client: self.number, is_write, is_strong, took });
        }
        match (answered, is_write) {
            (Ok(()), false) => self.tape.reads.push(latency),
            (Ok(()), true) => self.tape.writes.push(latency),
            (Err(_), _) => self.tape.failed += 1,
        }
    }

    fn read(&mut self, key: u64) -> Result<(), Failure> {
        let (name, start) = (name(key), self.load.now());
        // A read without an answer is not recorded, because it proves nothing.
        let value = self.dialled.read(name.as_bytes())?;
        if !self.load.records {
            return Ok(());
        }
        let value = value.map(|value| Value::from(&*String::from_utf8_lossy(tag_of(&value))));
        let operation = Operation::read(self.number, &name, value, start, self.load.now());
        self.tape.operations.push(operation);
        Ok(())
    }

    fn write(&mut self, key: u64) -> Result<(), Failure> {
        let name = name(key);
        self.written += 1;
        let tag = format!("{:x}-{}-{}", self.load.run, self.number, self.written);
        let mut value = tag.clone().into_bytes();
        value.resize(self.load.workload.value_bytes.max(value.len()), b'.');
        let start = self.load.now();
        let answer = self.dialled.write(name.as_bytes(), &value);
        let (finish, outcome) = match &answer {
            Ok(()) => (Some(self.load.now()), Outcome::Ok),
            Err(Failure::NotDone(_)) => return answer,
            Err(Failure::MaybeApplied(_)) => (None, Outcome::Unknown),
        };
        self.load.chooser.wrote(key);
        if !self.load.records {
            return answer;
        }
        let action = Action::Write(tag.into());
        let key_name = name.into();
        self.tape.operations.push(Operation {
            client: self.number,
            key: key_name,
            action,
            start,
            finish,
            outcome,
        });
        answer
    }
}

/// Returns the time in which `count` operations are due at `rate`, or zero without a rate.
fn spaced(count: u64, rate: f64) -> Duration {
    if rate > 0.0 { Duration::from_secs_f64(count as f64 / rate) } else { Duration::ZERO }
}

/// Returns the number of operations due before `instant`, if the first is due at `due` and each later one
/// `spacing` after its predecessor.
fn due_before(instant: Duration, due: Duration, spacing: Duration) -> u32 {
    if spacing.is_zero() || due >= instant {
        return 0;
    }
    let passed = (instant - due).as_nanos();
    u32::try_from(passed.div_ceil(spacing.as_nanos())).unwrap_or(u32::MAX)
}

fn name(key: u64) -> String {
    format!("user{key}")
}

/// Returns the part of a value that distinguishes it from other values.
fn tag_of(value: &[u8]) -> &[u8] {
    &value[..value.iter().position(|byte| *byte == b'.').unwrap_or(value.len())]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::controller::Setting;
    use crate::{Choice, LevelEnds};

    #[test]
    fn operations_due_before_an_instant_are_counted() {
        let ms = Duration::from_millis;
        assert_eq!(due_before(ms(100), ms(40), ms(20)), 3, "40, 60 and 80");
        assert_eq!(due_before(ms(101), ms(40), ms(20)), 4, "100 too");
        assert_eq!(due_before(ms(40), ms(40), ms(20)), 0);
        assert_eq!(due_before(ms(100), ms(40), Duration::ZERO), 0, "as many as they can: nothing is due");
    }

    /// A store that takes 10 ms for a read.
    struct Slow;

    impl Store for Slow {
        fn read(&mut self, _: &[u8], _: Level) -> Result<Option<Bytes>, Failure> {
            thread::sleep(Duration::from_millis(10));
            Ok(None)
        }

        fn write(&mut self, _: &[u8], _: &[u8], _: Level) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// If two clients can do at most 200 of the 1,000 operations due a second, the overdue operations are let
    /// go and counted when the dials turn.
    #[test]
    fn overdue_operations_are_dropped_and_counted_when_the_dials_turn() {
        let workload = Workload { keys: 10, reads: 1.0, ..Workload::named("004").unwrap() };
        let dials =
            Setting::WEAK.dials(LevelEnds { weak: Level::One, strong: Level::Quorum, choice: Choice::Heat });
        let connect = |_| Ok(Box::new(Slow) as Box<dyn Store>);
        let load = Load::new(&connect, 2, &workload, dials, 1_000.0);
        let late = |tape: &Tape| tape.reads.iter().max().copied().unwrap_or(0);
        let (before, turned, after) = load
            .run_while(|tapes| {
                let mut before = Tape::default();
                while late(&before) < 300_000_000 {
                    before.append(tapes.recv().unwrap());
                }
                load.turn(dials);
                let turned = load.now();
                let mut after = Tape::default();
                while after.operations.iter().all(|it| it.start <= turned) {
                    after.append(tapes.recv().unwrap());
                }
                (before, turned, after)
            })
            .unwrap();
        assert_eq!(before.let_go, 0, "within one setting every wait counts");
        assert!(after.let_go > 100, "{} let go", after.let_go);
        assert!(after.operations.iter().any(|it| it.start > turned));
        let first = after.operations.iter().position(|it| it.start > turned).unwrap();
        assert!(after.reads[first] < 300_000_000, "the first of the next setting is not late");
    }
}
