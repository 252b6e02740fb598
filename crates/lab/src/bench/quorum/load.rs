//! The load: clients, each a thread with a connection of its own, that do what is due and record it.
//!
//! With a rate, operations are due at instants that do not depend on how long others take, and a latency is the time since
//! its operation was due: one that waits behind a slow one counts its wait (free of coordinated omission). Without
//! a rate each client goes on as soon as it is answered. What is recorded is what the client saw: from sending to the answer.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use hdrhistogram::Histogram;
use quorate::maps::{Client, Failure};
use quorate_history::{Action, Operation, Recorder, Value};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::{
    dial::{Dial, Dialled},
    keys::Keys,
};

/// The work of all clients together.
pub(super) struct Load<'a> {
    /// The doors of the cells; clients are spread over them.
    pub(super) doors: &'a [String],
    pub(super) map: &'a str,
    pub(super) clients: u64,
    /// Operations a second of all clients together; zero: as many as they can.
    pub(super) rate: f64,
    pub(super) span: Duration,
    pub(super) keys: &'a Keys,
    pub(super) value_bytes: usize,
    /// The share of reads.
    pub(super) reads: f64,
    pub(super) dials: (Dial, Dial),
}

/// What clients were answered.
pub(super) struct Done {
    /// All that they did, loading included.
    pub(super) operations: Vec<Operation>,
    /// Latencies of answered operations, in nanoseconds.
    pub(super) reads: Histogram<u64>,
    pub(super) writes: Histogram<u64>,
    /// Operations that did not do what was asked.
    pub(super) failed: u64,
    pub(super) seconds: f64,
}

/// No operation takes longer.
const PATIENCE: Duration = Duration::from_secs(10);
const LATENCY_MAX: u64 = 100_000_000_000;

impl Done {
    fn new() -> Result<Done> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_MAX, 3).context("a histogram's bounds");
        let (reads, writes) = (histogram()?, histogram()?);
        Ok(Done { operations: Vec::new(), reads, writes, failed: 0, seconds: 0.0 })
    }

    fn add(&mut self, other: Done) -> Result<()> {
        self.operations.extend(other.operations);
        self.reads.add(&other.reads).context("histograms of one kind")?;
        self.writes.add(&other.writes).context("histograms of one kind")?;
        self.failed += other.failed;
        self.seconds = self.seconds.max(other.seconds);
        Ok(())
    }
}

impl Load<'_> {
    /// Writes every key once, at the strong level of writes, and then has all clients work.
    pub(super) fn run(&self, key_count: u64) -> Result<Done> {
        let clock = Instant::now();
        let mut all = Done::new()?;
        all.operations = self.fill(key_count, clock)?;
        // All begin together once everybody is connected.
        let begin = clock.elapsed() + Duration::from_millis(200 + 2 * self.clients);
        let done: Vec<Result<Done>> = thread::scope(|scope| {
            let workers: Vec<_> = (0..self.clients)
                .map(|number| scope.spawn(move || Worker::connect(self, number, clock)?.work(begin)))
                .collect();
            let panicked = |_| Err(anyhow!("a client panicked"));
            workers.into_iter().map(|it| it.join().unwrap_or_else(panicked)).collect()
        });
        for done in done {
            all.add(done?)?;
        }
        Ok(all)
    }

    fn fill(&self, key_count: u64, clock: Instant) -> Result<Vec<Operation>> {
        let mut worker = Worker::connect(self, self.clients, clock)?;
        (worker.dialled.writes.p, worker.dialled.writes.delay) = (1.0, Duration::ZERO);
        for key in 0..key_count {
            worker.write(key)?.map_err(|failure| anyhow!("loading: {failure}"))?;
        }
        Ok(worker.recorder.into_operations())
    }
}

/// A client.
struct Worker<'a> {
    load: &'a Load<'a>,
    number: u64,
    clock: Instant,
    dialled: Dialled<Client>,
    random: Pcg64Mcg,
    recorder: Recorder<Vec<Operation>>,
    written: u64,
}

impl<'a> Worker<'a> {
    fn connect(load: &'a Load<'a>, number: u64, clock: Instant) -> Result<Worker<'a>> {
        let door = &load.doors[number as usize % load.doors.len()];
        let store =
            Client::connect(door, load.map, PATIENCE).with_context(|| format!("the cell at {door}"))?;
        let random = |stream: u64| Pcg64Mcg::seed_from_u64(number * 2 + stream);
        let (reads, writes) = load.dials;
        Ok(Worker {
            load,
            number,
            clock,
            dialled: Dialled { store, reads, writes, random: random(0) },
            random: random(1),
            recorder: Recorder::in_memory(number),
            written: 0,
        })
    }

    /// Does what is due, from `begin` on.
    fn work(mut self, begin: Duration) -> Result<Done> {
        let mut done = Done::new()?;
        let end = begin + self.load.span;
        let mut due = begin;
        if self.load.rate > 0.0 {
            due += Duration::from_secs_f64(self.number as f64 / self.load.rate);
        }
        loop {
            let now = self.clock.elapsed();
            if now < due {
                thread::sleep(due - now);
            }
            if self.load.rate <= 0.0 {
                due = self.clock.elapsed();
            }
            if due >= end {
                break;
            }
            let key = self.load.keys.choose(&mut self.random);
            let is_read = self.random.random::<f64>() < self.load.reads;
            let answered = if is_read { self.read(key)? } else { self.write(key)? };
            let latency = self.clock.elapsed() - due;
            match answered {
                Ok(()) => {
                    let histogram = if is_read { &mut done.reads } else { &mut done.writes };
                    histogram.saturating_record(latency.as_nanos() as u64);
                }
                Err(_) => done.failed += 1,
            }
            if self.load.rate > 0.0 {
                due += Duration::from_secs_f64(self.load.clients as f64 / self.load.rate);
            }
        }
        done.seconds = (self.clock.elapsed() - begin).as_secs_f64();
        done.operations = self.recorder.into_operations();
        Ok(done)
    }

    fn now(&self) -> i64 {
        self.clock.elapsed().as_nanos() as i64
    }

    fn read(&mut self, key: u64) -> Result<Result<(), Failure>> {
        let name = name(key);
        let call = self.recorder.start(&name, Action::Read(None), self.now())?;
        let answer = self.dialled.read(name.as_bytes());
        let now = self.now();
        Ok(match answer {
            Ok(value) => {
                let value = value.map(|value| Value::from(&*String::from_utf8_lossy(tag_of(&value))));
                self.recorder.returned(call, value, now)?;
                Ok(())
            }
            Err(failure) => {
                self.recorder.failed(call, now)?;
                Err(failure)
            }
        })
    }

    fn write(&mut self, key: u64) -> Result<Result<(), Failure>> {
        let name = name(key);
        self.written += 1;
        let tag = format!("{}-{}", self.number, self.written);
        let mut value = tag.clone().into_bytes();
        value.resize(self.load.value_bytes.max(value.len()), b'.');
        let call = self.recorder.start(&name, Action::Write(tag.into()), self.now())?;
        let answer = self.dialled.write(name.as_bytes(), &value);
        let now = self.now();
        match &answer {
            Ok(()) => self.recorder.ok(call, now)?,
            Err(Failure::NotDone(_)) => self.recorder.failed(call, now)?,
            Err(Failure::MaybeApplied(_)) => self.recorder.unknown(call)?,
        }
        Ok(answer)
    }
}

fn name(key: u64) -> String {
    format!("user{key}")
}

/// The part of a value that tells it from others.
fn tag_of(value: &[u8]) -> &[u8] {
    &value[..value.iter().position(|byte| *byte == b'.').unwrap_or(value.len())]
}
