//! Slow and obvious versions of the crate's computations. They try all possibilities.

use quorate_history::{Action, History, Operation, Outcome, Value};
use rand::{Rng, RngExt};

/// An operation of a tiny history on one key. Value 0 is "nothing". Times are in half nanoseconds, so that
/// stretching by an odd γ is exact.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiny {
    pub(crate) client: u64,
    pub(crate) is_write: bool,
    pub(crate) value: u64,
    pub(crate) start: i64,
    /// End of the operation, or `i64::MAX` for a write of unknown outcome.
    pub(crate) finish: i64,
}

/// Whether some order of the chosen operations (one bit each) explains every answer.
pub(crate) fn is_atomic(ops: &[Tiny], chosen: u32) -> bool {
    fn extend(ops: &[Tiny], left: u32, holds: u64) -> bool {
        let indices = || (0..ops.len()).filter(move |i| left & (1 << i) != 0);
        // Writes of unknown outcome need not happen.
        if indices().all(|i| ops[i].finish == i64::MAX) {
            return true;
        }
        indices().any(|i| {
            let preceded = indices().any(|j| ops[j].finish < ops[i].start);
            let possible = !preceded && (ops[i].is_write || ops[i].value == holds);
            possible && extend(ops, left & !(1 << i), ops[i].value)
        })
    }
    extend(ops, chosen, 0)
}

/// Chooses all operations.
pub(crate) fn all(ops: &[Tiny]) -> u32 {
    (1 << ops.len()) - 1
}

/// Stretches every operation by `gamma`/2 nanoseconds at either end.
pub(crate) fn stretched(ops: &[Tiny], gamma: i64) -> Vec<Tiny> {
    let stretch = |op: &Tiny| Tiny {
        start: op.start - gamma,
        finish: if op.finish == i64::MAX { i64::MAX } else { op.finish + gamma },
        ..*op
    };
    ops.iter().map(stretch).collect()
}

/// Lets every read begin `delta` nanoseconds earlier.
pub(crate) fn reads_earlier(ops: &[Tiny], delta: i64) -> Vec<Tiny> {
    let earlier = |op: &Tiny| Tiny { start: op.start - if op.is_write { 0 } else { 2 * delta }, ..*op };
    ops.iter().map(earlier).collect()
}

/// Returns a random history. Each client does one operation after another, values are written once, and reads
/// return any value.
pub(crate) fn tiny(random: &mut impl Rng, operations: usize) -> Vec<Tiny> {
    let clients = random.random_range(1..=4);
    let mut now = [0i64; 4];
    let span = random.random_range(2..=12);
    let mut ops: Vec<Tiny> = Vec::new();
    let mut values = 0;
    for _ in 0..operations {
        let client = random.random_range(0..clients);
        let start = now[client] + random.random_range(0..=span);
        let finish = start + random.random_range(0..=span);
        now[client] = finish;
        let is_write = random.random_bool(0.4);
        let unknown = is_write && random.random_bool(0.08);
        values += u64::from(is_write);
        ops.push(Tiny {
            client: client as u64,
            is_write,
            value: if is_write { values } else { 0 },
            start: 2 * start,
            finish: if unknown { i64::MAX } else { 2 * finish },
        });
    }
    // A read usually returns a written value, sometimes "nothing", and rarely a value that nobody wrote.
    for op in ops.iter_mut().filter(|op| !op.is_write) {
        op.value = if random.random_bool(0.02) { values + 1 } else { random.random_range(0..=values) };
    }
    ops
}

/// Converts the history for the crate, in whole nanoseconds.
pub(crate) fn history(ops: &[Tiny]) -> History {
    ops.iter().map(operation).collect()
}

/// Converts one operation for the crate.
pub(crate) fn operation(op: &Tiny) -> Operation {
    let value = (op.value > 0).then(|| Value::from(op.value));
    let unknown = op.finish == i64::MAX;
    Operation {
        client: op.client,
        key: "x".into(),
        action: if op.is_write {
            Action::Write(value.expect("writes write something"))
        } else {
            Action::Read(value)
        },
        start: op.start / 2,
        finish: (!unknown).then_some(op.finish / 2),
        outcome: if unknown { Outcome::Unknown } else { Outcome::Ok },
    }
}
