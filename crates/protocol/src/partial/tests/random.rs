//! Random schedules: any message may be next, links break, cells pause and die, clocks differ and jump.

use bytes::Bytes;

use super::{
    super::*,
    check::{Seen, What, is_atomic, is_regular},
    net::Net,
};
use crate::time::Duration;

const KEYS: [&str; 2] = ["left", "right"];

/// The conditions of a run.
struct Plan {
    repair: ReadRepair,
    reads: &'static [Level],
    writes: &'static [Level],
    operations: u64,
}

struct Begun {
    id: u64,
    node: u64,
    key: usize,
    start: u64,
    end: Option<u64>,
    what: What,
}

/// A run in progress.
struct Run {
    net: Net,
    begun: Vec<Begun>,
    step: u64,
    crashed: bool,
}

/// Runs a plan until all its operations have ended.
fn run(plan: &Plan, seed: u64) -> Run {
    run_until_ended(plan, seed, false)
}

/// Runs a plan until all its operations have ended. If `crashed`, no further cell dies.
fn run_until_ended(plan: &Plan, seed: u64, crashed: bool) -> Run {
    let net = Net::new(&[0, 0, 0, 0], &[(0, 3)], plan.repair, seed);
    let mut run = Run { net, begun: Vec::new(), step: 0, crashed };
    for node in 1..=4 {
        run.adjust(node);
    }
    while (run.begun.len() as u64) < plan.operations
        || run.begun.iter().any(|it| !run.net.outcomes.contains_key(&it.id))
    {
        run.step += 1;
        assert!(run.step < 100_000, "seed {seed}: an operation does not end");
        run.step(plan);
        for it in run.begun.iter_mut().filter(|it| it.end.is_none() && run.net.outcomes.contains_key(&it.id))
        {
            it.end = Some(run.step);
        }
    }
    run
}

impl Run {
    fn step(&mut self, plan: &Plan) {
        match self.net.below(100) {
            0..=7 if (self.begun.len() as u64) < plan.operations => self.begin(plan),
            8 => {
                let (a, b) = (self.net.below(4) + 1, self.net.below(4) + 1);
                if a != b && self.net.cells.contains_key(&a) && self.net.cells.contains_key(&b) {
                    self.net.unlink(a, b);
                    self.net.link(a, b);
                }
            }
            9..=10 => {
                let (a, b) = (self.net.below(4) + 1, self.net.below(4) + 1);
                self.net.hold(a, b);
            }
            11 => self.net.release(),
            12 => {
                let node = self.net.below(4) + 1;
                self.adjust(node);
            }
            13 if !self.crashed && self.step > 300 => self.crash(),
            14 => self.pass(Duration::from_millis(40)),
            15..=20 => self.pass(Duration::from_millis(1)),
            _ => {
                let ready = self.net.ready();
                if ready.is_empty() {
                    self.pass(Duration::from_millis(5));
                } else {
                    let pair = ready[self.net.below(ready.len() as u64) as usize];
                    self.net.deliver(pair);
                }
            }
        }
    }

    fn pass(&mut self, span: Duration) {
        self.net.now = self.net.now + span;
        self.net.fire();
    }

    /// Sets a clock: clocks differ by up to 400 ms, and 500 ms are allowed.
    fn adjust(&mut self, node: u64) {
        let offset = self.net.below(400_000_000) as i64 - 200_000_000;
        self.net.adjust(node, offset);
    }

    fn begin(&mut self, plan: &Plan) {
        let nodes = self.net.nodes();
        let node = nodes[self.net.below(nodes.len() as u64) as usize];
        let key = self.net.below(2) as usize;
        let number = self.begun.len() as u64 + 1;
        let (action, what) = match self.net.below(10) {
            0..=4 => (Action::Read, What::Read(None)),
            5 => (Action::Delete, What::Wrote(None)),
            _ => {
                let value = Bytes::from(number.to_string());
                (Action::Put { value, lifetime: None }, What::Wrote(Some(number)))
            }
        };
        let levels = if matches!(what, What::Read(_)) { plan.reads } else { plan.writes };
        let level = levels[self.net.below(levels.len() as u64) as usize];
        let id = self.net.start(node, KEYS[key], action, level, None);
        self.begun.push(Begun { id, node, key, start: self.step, end: None, what });
    }

    /// Ends a cell with its operations: its writes have unknown outcomes, and its reads return to no user.
    fn crash(&mut self) {
        self.crashed = true;
        let node = self.net.below(4) + 1;
        self.net.crash(node);
        for it in self.begun.iter().filter(|it| it.node == node && it.end.is_none()) {
            let outcome = if matches!(it.what, What::Read(_)) {
                OperationOutcome::Unanswered
            } else {
                OperationOutcome::MaybeApplied
            };
            self.net.outcomes.insert(it.id, outcome);
        }
    }

    /// Returns the digests of a key at its living owners.
    fn digests(&self, key: &'static str) -> Vec<Digest> {
        let owners = self.net.owners(key);
        let key = Bytes::from_static(key.as_bytes());
        let alive = owners.iter().filter_map(|owner| self.net.cells.get(owner));
        alive.map(|cell| cell.replica().entry(MapId(1), &key).unwrap_or_default().digest()).collect()
    }

    /// Returns the history of each key, as its clients saw it.
    fn histories(&self) -> [Vec<Seen>; 2] {
        let mut histories = [Vec::new(), Vec::new()];
        for it in &self.begun {
            let end = it.end.expect("it ended");
            let (end, what) = match (&it.what, &self.net.outcomes[&it.id]) {
                (What::Wrote(value), OperationOutcome::Done { .. }) => (Some(end), What::Wrote(*value)),
                (What::Wrote(value), OperationOutcome::MaybeApplied) => (None, What::Wrote(*value)),
                (What::Read(_), OperationOutcome::Found { value, .. }) => {
                    (Some(end), What::Read(number(value)))
                }
                _ => continue,
            };
            // An operation ends after its own beginning, even within one step.
            histories[it.key].push(Seen { start: it.start * 2, end: end.map(|end| end * 2 + 1), what });
        }
        histories
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Nothing => None,
        Value::String(text) => Some(std::str::from_utf8(text).expect("digits").parse().expect("a number")),
        Value::Hash(_) => panic!("nobody wrote a hash"),
    }
}

const QUORUMS: &[Level] = &[Level::Quorum, Level::Quorum, Level::All, Level::EachQuorum];

fn quorums(repair: ReadRepair) -> Plan {
    Plan { repair, reads: QUORUMS, writes: QUORUMS, operations: 40 }
}

const THOROUGH: ReadRepair = ReadRepair::Background { per_million: 500_000 };

#[test]
fn quorums_are_regular_without_repair() {
    for seed in 0..400 {
        let repair = if seed % 2 == 0 { ReadRepair::None } else { THOROUGH };
        for history in run(&quorums(repair), seed).histories() {
            assert!(is_regular(&history), "seed {seed}: {history:#?}");
        }
    }
}

#[test]
fn quorums_are_atomic_with_blocking_repair() {
    for seed in 0..600 {
        for history in run(&quorums(ReadRepair::Blocking), seed).histories() {
            assert!(is_regular(&history) && is_atomic(&history), "seed {seed}: {history:#?}");
        }
    }
}

/// The runs are hard enough to catch weaker levels and modes. Otherwise the two tests above would prove
/// nothing.
#[test]
fn weaker_levels_violate_the_stronger_promises() {
    let one =
        || Plan { repair: ReadRepair::None, reads: &[Level::One], writes: &[Level::One], operations: 40 };
    let is_irregular = |seed: u64| run(&one(), seed).histories().iter().any(|history| !is_regular(history));
    assert!((0..200).any(is_irregular), "ONE and ONE look regular");
    let not_atomic = |seed: u64| {
        run(&quorums(ReadRepair::None), seed).histories().iter().any(|history| !is_atomic(history))
    };
    assert!((0..400).any(not_atomic), "quorums without repair look atomic");
}

/// After healing, one thorough read of each key makes all replicas equal.
#[test]
fn replicas_converge_once_everything_is_read() {
    let levels: &[Level] = &[Level::One, Level::Quorum];
    let always = ReadRepair::Background { per_million: 1_000_000 };
    for seed in 0..200 {
        let mut run = run(&Plan { repair: always, reads: levels, writes: levels, operations: 40 }, seed);
        run.net.release();
        run.net.heal();
        run.net.run(Duration::from_secs(3));
        let reader = run.net.nodes()[0];
        for key in KEYS {
            run.net.read(reader, key, Level::One);
            run.net.run(Duration::from_millis(50));
            let digests = run.digests(key);
            assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {digests:?}");
        }
    }
}

/// Without any read, hints alone make all replicas equal, as long as no coordinator dies.
#[test]
fn replicas_converge_by_hints() {
    let levels: &[Level] = &[Level::One, Level::Quorum];
    for seed in 0..200 {
        let plan = Plan { repair: ReadRepair::None, reads: levels, writes: levels, operations: 40 };
        let mut run = run_until_ended(&plan, seed, true);
        run.net.release();
        run.net.heal();
        run.net.run(Duration::from_secs(5));
        for key in KEYS {
            let digests = run.digests(key);
            assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {digests:?}");
        }
        let hints: Vec<_> = run.net.nodes().into_iter().map(|node| run.net.status(node).hints).collect();
        assert!(hints.iter().all(|hints| (hints.kept, hints.lost) == (0, 0)), "seed {seed}: {hints:?}");
    }
}

/// The same seed gives the same run.
#[test]
fn runs_replay() {
    let plan = quorums(ReadRepair::Blocking);
    assert_eq!(run(&plan, 7).histories(), run(&plan, 7).histories());
}
