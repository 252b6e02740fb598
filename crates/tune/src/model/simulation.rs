//! The Monte Carlo run: clients do the workload on copies that messages reach after a time.
//!
//! The start and end of operations do not depend on the values that reads return. So the run first times all
//! operations. Then each read takes its value from the writes that have arrived.

use std::{cmp::Reverse, collections::BinaryHeap};

use quorate_history::{Operation, Value};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use rustc_hash::FxHashMap;

use super::{COPIES, Model, OPERATIONS, REWARMING};
use crate::{
    controller::Setting,
    dial::Choice,
    load::Tape,
    window::{Judge, Window},
    workload::Next,
};

/// A write of one key.
struct ModelWrite {
    /// Time at which the coordinator sent the write.
    stamp: i64,
    /// Time at which the write reached each copy.
    arrives: [i64; COPIES],
}

/// An operation with its times.
struct Timed {
    client: u64,
    key: u64,
    start: i64,
    finish: i64,
    deed: TimedKind,
}

enum TimedKind {
    /// Number of the write among the key's writes, from 1.
    Write(usize),
    /// Time at which each copy answers the read. `None` for copies that the read does not wait for.
    Read([Option<i64>; COPIES]),
}

/// A client that can continue. Ordered by time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ReadyClient {
    start: i64,
    client: u64,
    /// Time at which the operation is due.
    due: i64,
    /// For a write after a read: the key, and the time at which the read was due.
    writes: Option<(u64, i64)>,
}

/// The state of a run.
struct ModelRun<'a> {
    model: &'a Model,
    setting: Setting,
    random: &'a mut Pcg64Mcg,
    rounds: [f64; COPIES],
    writes: FxHashMap<u64, Vec<ModelWrite>>,
    timed: Vec<Timed>,
    tape: Tape,
    /// Inserts that have not ended. Reads do not choose the keys of these inserts.
    inserts: BinaryHeap<Reverse<(i64, u64)>>,
}

/// Simulates a setting and judges the result.
pub(super) fn run(model: &Model, setting: Setting, random: &mut Pcg64Mcg) -> Window {
    let rounds = std::array::from_fn(|place| model.places[place].rounds());
    let (writes, inserts) = (FxHashMap::default(), BinaryHeap::new());
    let old = model.chooser.written_keys();
    let mut run = ModelRun {
        model,
        setting,
        random,
        rounds,
        writes,
        timed: Vec::new(),
        tape: Tape::default(),
        inserts,
    };
    let until = run.time();
    run.judge(until, old)
}

impl ModelRun<'_> {
    /// Times the operations of all clients. Returns the end of the window.
    fn time(&mut self) -> i64 {
        let clients = self.model.homes.len() as u64;
        let rate = self.model.rate;
        let spacing = if rate > 0.0 { (clients as f64 / rate * 1e9) as i64 } else { 0 };
        let until = if rate > 0.0 { (OPERATIONS as f64 / rate * 1e9) as i64 } else { i64::MAX };
        let mut ready = BinaryHeap::new();
        for client in 0..clients {
            let due = spacing * client as i64 / clients as i64;
            ready.push(Reverse(ReadyClient { start: due, client, due, writes: None }));
        }
        while let Some(Reverse(ReadyClient { start, client, due, writes })) = ready.pop() {
            if start >= until {
                break;
            }
            if rate <= 0.0 && self.timed.len() >= OPERATIONS {
                return start.max(1);
            }
            self.insert_until(start);
            let next = match writes {
                Some((key, _)) => Next::Write(key),
                None => self.model.chooser.next(self.random),
            };
            let finish = match next {
                Next::Read(key) | Next::ReadThenWrite(key) => self.read(client, key, start),
                Next::Write(key) => self.write(client, key, start),
            };
            if finish <= until {
                let latencies =
                    if matches!(next, Next::Write(_)) { &mut self.tape.writes } else { &mut self.tape.reads };
                latencies.push((finish - due) as u64);
            }
            ready.push(Reverse(match next {
                Next::ReadThenWrite(key) => {
                    ReadyClient { start: finish, client, due: finish, writes: Some((key, due)) }
                }
                _ if spacing > 0 => {
                    let due = writes.map_or(due, |(_, due)| due) + spacing;
                    ReadyClient { start: due.max(finish), client, due, writes: None }
                }
                _ => ReadyClient { start: finish, client, due: finish, writes: None },
            }));
        }
        until
    }

    /// Allows reads to choose the keys inserted until `now`.
    fn insert_until(&mut self, now: i64) {
        while self.inserts.peek().is_some_and(|it| it.0.0 <= now) {
            self.inserts.pop().into_iter().for_each(|it| self.model.chooser.wrote(it.0.1));
        }
    }

    fn is_strong(&mut self, key: u64, is_write: bool) -> bool {
        let p = if is_write { self.setting.p_writes } else { self.setting.p_reads };
        match self.model.choice {
            Choice::Chance => self.random.random::<f64>() < p,
            Choice::Heat => self.model.heat.is_among_hottest(&key.to_le_bytes(), is_write, p),
        }
    }

    fn read(&mut self, client: u64, key: u64, start: i64) -> i64 {
        let own = self.model.homes[client as usize];
        let place = &self.model.places[own];
        let is_strong = self.is_strong(key, false);
        let begin = start + (self.setting.delay_reads * 1e9) as i64;
        let took = place.service(false, is_strong, self.random);
        let finish = begin + took as i64;
        let mut looks = [None; COPIES];
        let asked = if is_strong { place.handling(self.random) } else { took / 2.0 };
        looks[own] = Some(begin + asked as i64);
        if is_strong {
            let other = place.neighbour(own);
            let arrives = asked + place.one_way[other] + self.model.places[other].handling(self.random);
            // The copy answered before the operation ended, because the operation waited for this answer.
            looks[other] = Some((begin + arrives as i64).min(finish - place.one_way[other] as i64));
        }
        self.timed.push(Timed { client, key, start, finish, deed: TimedKind::Read(looks) });
        finish
    }

    fn write(&mut self, client: u64, key: u64, start: i64) -> i64 {
        let own = self.model.homes[client as usize];
        let place = &self.model.places[own];
        let is_strong = self.is_strong(key, true);
        let took = place.service(true, is_strong, self.random);
        let answered = start + took as i64;
        let asked = if is_strong {
            took * (self.rounds[own] - 1.0) / self.rounds[own] + place.handling(self.random)
        } else {
            took / 2.0
        };
        let stamp = (start + asked as i64).min(answered);
        let mut arrives = std::array::from_fn(|copy| {
            let handled = if copy == own { 0.0 } else { self.model.places[copy].handling(self.random) };
            stamp + (place.one_way[copy] + handled) as i64
        });
        if is_strong {
            let other = place.neighbour(own);
            arrives[other] = arrives[other].min(answered - place.one_way[other] as i64);
        }
        let writes = self.writes.entry(key).or_default();
        writes.push(ModelWrite { stamp, arrives });
        let finish = answered + (self.setting.delay_writes * 1e9) as i64;
        self.timed.push(Timed { client, key, start, finish, deed: TimedKind::Write(writes.len()) });
        if key >= self.model.workload.keys {
            self.inserts.push(Reverse((finish, key)));
        }
        finish
    }

    /// Gives each read its value, and judges all operations. Keys below `old` had a value at the start.
    fn judge(mut self, until: i64, old: u64) -> Window {
        let mut before = Tape::default();
        let mut begun = std::mem::take(&mut self.timed);
        begun.sort_unstable_by_key(|it| it.start);
        let mut known: FxHashMap<u64, String> = FxHashMap::default();
        for Timed { client, key, start, finish, deed } in begun {
            let name = known.entry(key).or_insert_with(|| {
                let name = key.to_string();
                if key < old {
                    before.operations.push(Operation::write(u64::MAX, &name, "0", -2, -1));
                }
                name
            });
            self.tape.operations.push(match deed {
                TimedKind::Write(number) => Operation::write(client, name, number.to_string(), start, finish),
                TimedKind::Read(looks) => {
                    let writes = self.writes.get_mut(&key).map_or(&mut [][..], |writes| writes);
                    let number = newest(writes, looks);
                    let is_strong = looks.iter().flatten().count() > 1;
                    if is_strong && self.rounds[self.model.homes[client as usize]] > 1.0 {
                        repair(writes, number, looks, finish);
                    }
                    let value = (number > 0 || key < old).then(|| Value::from(&*number.to_string()));
                    Operation::read(client, name, value, start, finish)
                }
            });
        }
        let mut judge = Judge::default();
        judge.begin(before);
        judge.window(self.tape, 0, until)
    }
}

/// Returns the number, from 1, of the newest write that had reached one of the copies when it answered.
/// Returns 0 if no write had reached one of these copies.
fn newest(writes: &[ModelWrite], looks: [Option<i64>; COPIES]) -> usize {
    let arrived =
        |write: &ModelWrite| (0..COPIES).any(|copy| looks[copy].is_some_and(|at| write.arrives[copy] <= at));
    let all = writes.iter().enumerate().filter(|(_, write)| arrived(write));
    all.max_by_key(|(_, write)| write.stamp).map_or(0, |(at, _)| at + 1)
}

/// In a map with blocking repair, a strong read stores its value at the copies that it waited for.
fn repair(writes: &mut [ModelWrite], number: usize, looks: [Option<i64>; COPIES], finish: i64) {
    let Some(write) = number.checked_sub(1).and_then(|at| writes.get_mut(at)) else { return };
    for copy in (0..COPIES).filter(|copy| looks[*copy].is_some()) {
        write.arrives[copy] = write.arrives[copy].min(finish);
    }
}

impl Model {
    /// Predicts the window of a setting. All settings use the same random numbers, so two predictions differ
    /// only by their settings.
    pub fn predict(&self, setting: Setting) -> Window {
        let mut random = Pcg64Mcg::seed_from_u64(4);
        let p = (setting.p_reads * self.workload.reads + setting.p_writes * (1.0 - self.workload.reads))
            .clamp(0.0, 1.0);
        if self.choice == Choice::Heat && p > 0.0 && p < 1.0 {
            self.warm(p, REWARMING, &mut random);
        }
        run(self, setting, &mut random)
    }
}
