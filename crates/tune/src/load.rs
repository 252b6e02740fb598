//! The load: clients, each a thread with a connection of its own, that do what is due and record it.
//!
//! With a rate, operations are due at instants that do not depend on how long others take, and a latency is the time since
//! its operation was due: one that waits behind a slow one counts its wait (free of coordinated omission). Without
//! a rate each client goes on as soon as it is answered. A client records what it saw: from sending to the answer, artificial
//! delays included.

use std::{
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crossbeam_channel::{Receiver, Sender};
use quorate::maps::{Failure, Store};
use quorate_history::{Action, Operation, Outcome, Value};
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;
use thiserror::Error;

use crate::{
    dial::{Dialled, Dials},
    heat::Heat,
    workload::{Chooser, Next, Workload},
};

/// Connects a client, given its number. Called on the client's own thread.
pub type Connect<'a> = dyn Fn(u64) -> Result<Box<dyn Store>, Failure> + Sync + 'a;

/// Clients that could not begin.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A client found no store.
    #[error("a client could not connect: {0}")]
    Connect(Failure),
    /// A key could not be written before the clients began.
    #[error("writing the keys at first: {0}")]
    Fill(Failure),
    /// A client's thread panicked.
    #[error("a client panicked")]
    Panicked,
}

/// Clients, and what they do.
pub struct Load<'a> {
    connect: &'a Connect<'a>,
    clients: u64,
    value_bytes: usize,
    keys: u64,
    chooser: Chooser,
    heat: Arc<Heat>,
    clock: Instant,
    dials: RwLock<Dials>,
    /// Operations a second of all clients together, as the bits of a float; zero: as many as they can.
    rate: AtomicU64,
    stops: AtomicBool,
    /// Tells values of this load from those of an earlier one in the same store.
    run: u32,
}

/// Operations of a client, and their latencies, since it told of them last.
#[derive(Debug, Default)]
pub struct Tape {
    /// All that counts for the history.
    pub operations: Vec<Operation>,
    /// Latencies of answered reads, in nanoseconds.
    pub reads: Vec<u64>,
    /// Those of answered writes.
    pub writes: Vec<u64>,
    /// Operations that did not do what was asked.
    pub failed: u64,
}

impl Tape {
    /// Puts another one behind this one.
    pub fn append(&mut self, mut other: Tape) {
        self.operations.append(&mut other.operations);
        self.reads.append(&mut other.reads);
        self.writes.append(&mut other.writes);
        self.failed += other.failed;
    }
}

/// Clients that write the keys at first.
const FILLERS_MAX: u64 = 32;

/// A client hands its tape over this often.
const HAND_OVER: Duration = Duration::from_millis(100);

impl<'a> Load<'a> {
    /// Clients that do not work yet.
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
            value_bytes: workload.value_bytes,
            keys: workload.keys,
            chooser: Chooser::new(workload),
            heat: Arc::default(),
            clock: Instant::now(),
            dials: RwLock::new(dials),
            rate: AtomicU64::new(rate.to_bits()),
            stops: AtomicBool::new(false),
            run: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u32),
        }
    }

    /// Nanoseconds since the load was made: what operations are recorded by.
    pub fn now(&self) -> i64 {
        self.clock.elapsed().as_nanos() as i64
    }

    /// Turns the dials. Operations that begin from now on follow them.
    pub fn turn(&self, dials: Dials) {
        *self.dials.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = dials;
    }

    /// Whether the clients end, or were ended by one that could not begin.
    pub fn has_stopped(&self) -> bool {
        self.stops.load(Relaxed)
    }

    /// Changes the rate, in operations a second of all clients; zero: as many as they can.
    pub fn set_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Relaxed);
    }

    /// Writes every key once, at the strong level of writes and without delays, and returns what was done.
    pub fn fill(&self) -> Result<Tape, LoadError> {
        let fillers = self.clients.clamp(1, FILLERS_MAX);
        let fill = |number: u64| {
            let mut worker = Worker::connect(self, self.clients + number)?;
            worker.dialled.dials.writes.p = 1.0;
            worker.dialled.dials.writes.delay = Duration::ZERO;
            for key in (number..self.keys).step_by(fillers as usize) {
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

    /// Has all clients work for a span, and returns what they did.
    pub fn run(&self, span: Duration) -> Result<(Tape, Duration), LoadError> {
        let began = self.begin();
        let (sender, receiver) = crossbeam_channel::unbounded();
        self.work(began, Some(began + span), &sender)?;
        drop(sender);
        let took = self.clock.elapsed().saturating_sub(began);
        Ok((gather(&receiver), took))
    }

    /// Has all clients work while `meanwhile` runs, which is given what they do as it comes.
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

    /// All begin together once everybody is connected.
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
            // All are waited for before any failure is told.
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }
}

/// All that is there.
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
        let dials = *load.dials.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(Worker {
            load,
            number,
            dialled: Dialled::new(store, dials, load.heat.clone(), random(0)),
            random: random(1),
            tape: Tape::default(),
            written: 0,
        })
    }

    /// Does what is due, from `begin` on.
    fn work(mut self, begin: Duration, end: Option<Duration>, to: &Sender<Tape>) -> Result<(), LoadError> {
        let clock = self.load.clock;
        let mut rate = self.rate();
        let mut due = begin + spaced(self.number, rate);
        let mut told = begin;
        while !self.load.stops.load(Relaxed) {
            let now = clock.elapsed();
            if now >= told + HAND_OVER {
                told = now;
                let _ = to.send(std::mem::take(&mut self.tape));
                if self.rate() != rate {
                    rate = self.rate();
                    due = now + spaced(self.number, rate);
                }
            }
            let next = if rate > 0.0 { due } else { now };
            if end.is_some_and(|end| next >= end) {
                break;
            }
            if now < due {
                // One that waits for long still hands over, and sees that it must stop.
                thread::sleep((due - now).min(HAND_OVER));
                if clock.elapsed() < due {
                    continue;
                }
            }
            if rate <= 0.0 {
                due = clock.elapsed();
            }
            self.dialled.dials = *self.load.dials.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.step(due);
            if rate > 0.0 {
                due += spaced(self.load.clients, rate);
            }
        }
        // Nobody may listen any more.
        let _ = to.send(self.tape);
        Ok(())
    }

    fn rate(&self) -> f64 {
        f64::from_bits(self.load.rate.load(Relaxed))
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
        match (answered, is_write) {
            (Ok(()), false) => self.tape.reads.push(latency),
            (Ok(()), true) => self.tape.writes.push(latency),
            (Err(_), _) => self.tape.failed += 1,
        }
    }

    fn read(&mut self, key: u64) -> Result<(), Failure> {
        let (name, start) = (name(key), self.load.now());
        // A read without an answer says nothing.
        let value = self.dialled.read(name.as_bytes())?;
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
        value.resize(self.load.value_bytes.max(value.len()), b'.');
        let start = self.load.now();
        let answer = self.dialled.write(name.as_bytes(), &value);
        let (finish, outcome) = match &answer {
            Ok(()) => (Some(self.load.now()), Outcome::Ok),
            Err(Failure::NotDone(_)) => return answer,
            Err(Failure::MaybeApplied(_)) => (None, Outcome::Unknown),
        };
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
        self.load.chooser.wrote(key);
        answer
    }
}

/// The time that `count` operations take at a rate; none if there is no rate.
fn spaced(count: u64, rate: f64) -> Duration {
    if rate > 0.0 { Duration::from_secs_f64(count as f64 / rate) } else { Duration::ZERO }
}

fn name(key: u64) -> String {
    format!("user{key}")
}

/// The part of a value that tells it from others.
fn tag_of(value: &[u8]) -> &[u8] {
    &value[..value.iter().position(|byte| *byte == b'.').unwrap_or(value.len())]
}
