//! A small store in virtual time, for tests: three replicas with known message times, and clients that do a
//! workload on them.
//!
//! This store tests the [model](crate::model), so the two share no code except the choice of keys. Messages
//! are events, replicas store the writes that arrive, and a coordinator waits for answers.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use quorate_history::{Operation, Value};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use rustc_hash::FxHashMap;

use crate::{
    controller::Setting,
    dial::Choice,
    heat::Heat,
    load::{Service, Sounding, Tape},
    window::{Judge, Window},
    workload::{Chooser, Next, Workload},
};

const REPLICAS: usize = 3;
const MS: f64 = 1e6;

/// Three replicas, each with a coordinator next to it, and their clients.
pub(crate) struct Replicas {
    /// Time of a message between each two replicas, in milliseconds.
    pub(crate) distances: [[f64; REPLICAS]; REPLICAS],
    /// Mean of the exponentially distributed additional time of a message, in milliseconds.
    pub(crate) noise: f64,
    /// Tail of the message times: one message in `tail.0` is late, by up to `tail.1` milliseconds.
    pub(crate) tail: (u32, f64),
    /// Operations a second of all clients.
    pub(crate) rate: f64,
    /// Whether the replicas take turns in pausing for 2 s every 20 s.
    pub(crate) pauses: bool,
    clients: Vec<SimulatedClient>,
    chooser: Chooser,
    choice: Choice,
    heat: Heat,
    setting: Setting,
    now: i64,
    events: BinaryHeap<Reverse<(i64, u64, Event)>>,
    count: u64,
    operations: Vec<RunningOperation>,
    kept: [FxHashMap<u64, (i64, u64)>; REPLICAS],
    random: Pcg64Mcg,
    judge: Judge,
    tape: Tape,
}

struct SimulatedClient {
    due: i64,
    is_busy: bool,
}

/// An operation, from its start on.
struct RunningOperation {
    client: usize,
    key: u64,
    is_write: bool,
    is_strong: bool,
    due: i64,
    start: i64,
    asked: i64,
    answers: usize,
    is_done: bool,
    /// A stamp and a value: the newest pair that a read has seen, or the pair that a write writes.
    newest: (i64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client continues.
    Client(usize),
    /// The request reaches its coordinator.
    Coordinate(usize),
    /// The coordinator's message reaches a replica.
    AtReplica(usize, usize),
    /// The replica's answer reaches the coordinator.
    Answer(usize, (i64, u64)),
    /// The client has its answer, and its delay is over.
    End(usize),
}

impl Replicas {
    pub(crate) fn new(workload: &Workload, choice: Choice, clients: usize, rate: f64) -> Replicas {
        let mut judge = Judge::default();
        let mut before = Tape::default();
        for key in 0..workload.keys {
            before.operations.push(Operation::write(0, &key.to_string(), "0", -2, -1));
        }
        judge.begin(before);
        let mut replicas = Replicas {
            distances: [[0.0, 18.5, 37.5], [18.5, 0.0, 37.5], [37.5, 37.5, 0.0]],
            noise: 0.2,
            tail: (0, 0.0),
            rate,
            pauses: false,
            clients: Vec::new(),
            chooser: Chooser::new(workload),
            choice,
            heat: Heat::default(),
            setting: Setting::WEAK,
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            operations: Vec::new(),
            kept: Default::default(),
            random: Pcg64Mcg::seed_from_u64(11),
            judge,
            tape: Tape::default(),
        };
        for client in 0..clients {
            let due = (client as f64 / rate * 1e9) as i64;
            replicas.clients.push(SimulatedClient { due, is_busy: false });
            replicas.at(due, Event::Client(client));
        }
        replicas
    }

    /// Returns the clients' soundings. They understate distances by the factor `too_short`.
    pub(crate) fn soundings(&self, too_short: f64) -> Vec<Sounding> {
        let sounding = |client: usize| {
            let mut trips = self.distances[client % REPLICAS].map(|it| (2.0 * it / too_short + 0.1) * MS);
            trips.sort_by(f64::total_cmp);
            let round_trips = trips.map(|it| Some(Duration::from_nanos(it as u64)));
            Sounding { client: client as u64, round_trips }
        };
        (0..self.clients.len()).map(sounding).collect()
    }

    /// Turns the dials. Operations that are due and have not begun are let go.
    pub(crate) fn turn(&mut self, setting: Setting) {
        self.setting = setting;
        let spacing = self.spacing();
        for client in &mut self.clients {
            while client.due < self.now {
                client.due += spacing;
            }
        }
    }

    /// Lets clients work for `seconds`. Returns the store's times and the window.
    pub(crate) fn work(&mut self, seconds: f64) -> (Vec<Service>, Window) {
        let (from, until) = (self.now, self.now + (seconds * 1e9) as i64);
        while let Some(Reverse((at, _, event))) = self.events.peek().copied().filter(|it| it.0.0 <= until) {
            self.events.pop();
            self.now = at;
            self.happen(event);
        }
        self.now = until;
        let mut tape = std::mem::take(&mut self.tape);
        let served = std::mem::take(&mut tape.served);
        (served, self.judge.window(tape, from, until))
    }

    fn spacing(&self) -> i64 {
        (self.clients.len() as f64 / self.rate * 1e9) as i64
    }

    fn at(&mut self, at: i64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Returns the time of arrival of a message sent now.
    fn arrival(&mut self, from: usize, to: usize) -> i64 {
        let noise = -self.random.random::<f64>().max(1e-12).ln() * self.noise;
        let is_late = self.tail.0 > 0 && self.random.random_range(0..self.tail.0) == 0;
        let late = if is_late { self.random.random::<f64>() * self.tail.1 } else { 0.0 };
        self.now + ((self.distances[from][to] + noise + late) * MS) as i64
    }

    /// Returns the end of the pause that a replica is in, or `None`.
    fn pause_of(&self, replica: usize) -> Option<i64> {
        let (turn, since) = (self.now / 20_000_000_000, self.now % 20_000_000_000);
        let stands_still = self.pauses && since >= 18_000_000_000 && turn as usize % REPLICAS == replica;
        stands_still.then(|| (turn + 1) * 20_000_000_000)
    }

    fn happen(&mut self, event: Event) {
        let home = |operation: usize| self.operations[operation].client % REPLICAS;
        let place = match event {
            Event::Client(_) | Event::End(_) => None,
            Event::Coordinate(operation) | Event::Answer(operation, _) => Some(home(operation)),
            Event::AtReplica(_, replica) => Some(replica),
        };
        if let Some(end) = place.and_then(|place| self.pause_of(place)) {
            return self.at(end, event);
        }
        match event {
            Event::Client(client) => self.begin(client),
            Event::Coordinate(operation) => {
                let own = home(operation);
                if self.operations[operation].is_write {
                    self.operations[operation].newest = (self.now, operation as u64 + 1);
                }
                for replica in 0..REPLICAS {
                    let at = self.arrival(own, replica);
                    self.at(at, Event::AtReplica(operation, replica));
                }
            }
            Event::AtReplica(operation, replica) => {
                let RunningOperation { key, is_write, newest, .. } = self.operations[operation];
                let kept = self.kept[replica].entry(key).or_insert((-1, 0));
                if is_write {
                    *kept = newest.max(*kept);
                }
                let (own, kept) = (self.operations[operation].client % REPLICAS, *kept);
                let at = self.arrival(replica, own);
                self.at(at, Event::Answer(operation, kept));
            }
            Event::Answer(operation, kept) => {
                let (delay, own) = (self.setting.delay_writes, home(operation));
                let running = &mut self.operations[operation];
                running.answers += 1;
                if !running.is_write {
                    running.newest = running.newest.max(kept);
                }
                if running.answers >= (if running.is_strong { 2 } else { 1 }) && !running.is_done {
                    running.is_done = true;
                    let (client, is_write, is_strong) = (running.client, running.is_write, running.is_strong);
                    let asked = running.asked;
                    let at = self.arrival(own, own);
                    let took = (at - asked) as u64;
                    self.tape.served.push(Service { client: client as u64, is_write, is_strong, took });
                    self.at(at + if is_write { (delay * 1e9) as i64 } else { 0 }, Event::End(operation));
                }
            }
            Event::End(operation) => self.end(operation),
        }
    }

    fn begin(&mut self, client: usize) {
        if self.clients[client].is_busy {
            return;
        }
        let due = self.clients[client].due;
        if due > self.now {
            return self.at(due, Event::Client(client));
        }
        let (key, is_write) = match self.chooser.next(&mut self.random) {
            Next::Read(key) => (key, false),
            Next::Write(key) | Next::ReadThenWrite(key) => (key, true),
        };
        let p = if is_write { self.setting.p_writes } else { self.setting.p_reads };
        let is_strong = match self.choice {
            Choice::Chance => self.random.random::<f64>() < p,
            Choice::Heat => self.heat.is_among_hottest(&key.to_le_bytes(), is_write, p),
        };
        let asked = self.now + if is_write { 0 } else { (self.setting.delay_reads * 1e9) as i64 };
        let (start, newest) = (self.now, (-1, 0));
        self.operations.push(RunningOperation {
            client,
            key,
            is_write,
            is_strong,
            due,
            start,
            asked,
            answers: 0,
            is_done: false,
            newest,
        });
        self.clients[client].due += self.spacing();
        self.clients[client].is_busy = true;
        let at = self.arrival(client % REPLICAS, client % REPLICAS) - self.now + asked;
        self.at(at, Event::Coordinate(self.operations.len() - 1));
    }

    fn end(&mut self, operation: usize) {
        let &RunningOperation { client, key, is_write, due, start, newest: (_, value), .. } =
            &self.operations[operation];
        let latency = (self.now - due) as u64;
        let (name, value) = (key.to_string(), value.to_string());
        let number = client as u64;
        if is_write {
            self.tape.writes.push(latency);
            self.tape.operations.push(Operation::write(number, &name, &*value, start, self.now));
        } else {
            self.tape.reads.push(latency);
            self.tape.operations.push(Operation::read(
                number,
                &name,
                Some(Value::from(&*value)),
                start,
                self.now,
            ));
        }
        self.clients[client].is_busy = false;
        self.at(self.now.max(self.clients[client].due), Event::Client(client));
    }
}
