//! Compares the definitions of safe, regular and atomic registers (003 §VI.B) with the verdicts of the
//! history analysis.

use std::collections::BTreeSet;

use quorate_history::{Action, History, Operation, Outcome, Verdict, check};

/// The strongest of 003's registers that allows a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Register {
    None,
    Safe,
    Regular,
    Atomic,
}

/// A write or a read of a value, with its start and end. The only writer writes 1, 2, 3 … one after another,
/// over the initial 0.
#[derive(Clone, Copy, Debug)]
struct Step {
    write: bool,
    value: u64,
    start: i64,
    finish: i64,
}

fn write(value: u64, start: i64, finish: i64) -> Step {
    Step { write: true, value, start, finish }
}

fn read(value: u64, start: i64, finish: i64) -> Step {
    Step { write: false, value, start, finish }
}

/// Judges a history by the definitions of 003, word by word.
fn register(steps: &[Step]) -> Register {
    let writes = || steps.iter().filter(|step| step.write);
    let reads = || steps.iter().filter(|step| !step.write);
    // A regular read returns "the most recently written value" before it, or the value of a write that it
    // overlaps.
    let old = |read: &Step| {
        writes().filter(|write| write.finish < read.start).map(|it| it.value).max().unwrap_or(0)
    };
    let overlapped = |read: &Step| -> BTreeSet<u64> {
        let overlaps = |write: &&Step| write.start <= read.finish && read.start <= write.finish;
        writes().filter(overlaps).map(|it| it.value).collect()
    };
    let domain: BTreeSet<u64> = writes().map(|write| write.value).chain([0]).collect();
    let safe = |read: &Step| match overlapped(read).is_empty() {
        true => read.value == old(read),
        false => domain.contains(&read.value),
    };
    let regular = |read: &Step| read.value == old(read) || overlapped(read).contains(&read.value);
    // With one writer, atomicity adds one demand to regularity: no later read returns an older value.
    let inverted = |one: &Step, other: &Step| one.finish < other.start && one.value > other.value;
    let is_atomic = !reads().any(|one| reads().any(|other| inverted(one, other)));
    match (reads().all(safe), reads().all(regular)) {
        (_, true) if is_atomic => Register::Atomic,
        (_, true) => Register::Regular,
        (true, false) => Register::Safe,
        (false, false) => Register::None,
    }
}

/// Returns the verdict of the analysis, and the number of reads that are not regular.
fn judged(steps: &[Step]) -> (Verdict, u64) {
    let operation = |(client, step): (usize, &Step)| {
        let value = (step.value > 0).then(|| step.value.into());
        Operation {
            client: client as u64,
            key: "register".into(),
            action: match (step.write, value) {
                (true, Some(value)) => Action::Write(value),
                (_, value) => Action::Read(value),
            },
            start: step.start,
            finish: Some(step.finish),
            outcome: Outcome::Ok,
        }
    };
    let history: History = steps.iter().enumerate().map(operation).collect();
    let report = check(&history);
    (report.verdict, report.measures.expect("one writer is measured").irregular_reads)
}

#[test]
fn the_three_registers_are_told_apart() {
    let two = [write(1, 0, 10), write(2, 20, 40)];
    for (reads, expected) in [
        // One read between two writes, and one that overlaps the second write.
        (vec![read(1, 12, 14), read(2, 25, 30), read(2, 50, 60)], Register::Atomic),
        (vec![read(1, 25, 30), read(2, 32, 36)], Register::Atomic),
        // A read returns the new value, and a later read returns the old one.
        (vec![read(2, 25, 30), read(1, 32, 36)], Register::Regular),
        // A read that overlaps a write returns any value of the domain.
        (vec![read(0, 25, 30)], Register::Safe),
        // A read that overlaps no write returns an old value.
        (vec![read(1, 50, 60)], Register::None),
        (vec![read(2, 12, 14)], Register::None),
    ] {
        let steps: Vec<Step> = two.iter().copied().chain(reads).collect();
        assert_eq!(register(&steps), expected, "{steps:?}");
        let (verdict, irregular) = judged(&steps);
        assert_eq!(verdict == Verdict::Atomic, expected == Register::Atomic, "{steps:?}");
        assert_eq!(irregular == 0, expected >= Register::Regular, "{steps:?}");
    }
}

/// The analysis agrees with the definitions on random histories of two writes and two reads.
#[test]
fn the_analysis_agrees_with_the_definitions() {
    let mut state = 1_u64;
    let mut draw = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut seen = BTreeSet::new();
    for _ in 0..20_000 {
        // All instants are distinct, like the readings of a clock.
        let mut instants = BTreeSet::new();
        while instants.len() < 4 {
            instants.insert(draw(200) as i64 * 2);
        }
        let at: Vec<i64> = instants.into_iter().collect();
        let mut steps = vec![write(1, at[0], at[1]), write(2, at[2], at[3])];
        for _ in 0..2 {
            let start = draw(200) as i64 * 2 + 1;
            steps.push(read(draw(3), start, start + 2 + draw(100) as i64 * 2));
        }
        let expected = register(&steps);
        seen.insert(expected);
        let (verdict, irregular) = judged(&steps);
        assert_eq!(verdict == Verdict::Atomic, expected == Register::Atomic, "{steps:?}");
        assert_eq!(irregular == 0, expected >= Register::Regular, "{steps:?}");
    }
    assert_eq!(seen.len(), 4, "each kind has come up");
}
