//! Hand-made cases, each drawn in `docs/consistency.md`.

use quorate_history::{History, Measures, Operation, Outcome, Report, Score, Verdict, check};

/// Reads a drawing: one operation a line, its label first, then its interval; a column is a nanosecond. `[` begins,
/// `]` ends, `|` is an instant, `>` at the end is an unknown outcome.
pub(crate) fn drawn(drawing: &str) -> History {
    let mut history = History::new();
    for (client, line) in (1..).zip(drawing.lines().filter(|line| !line.trim().is_empty())) {
        let (label, _) = line.trim_start().split_once(' ').expect("a label and an interval");
        let (verb, value) = label.trim_end_matches(')').split_once('(').expect("R(value) or W(value)");
        let column = |mark: char| line.chars().position(|c| c == mark).map(|at| at as i64);
        let start = column('[').or(column('|')).expect("a beginning");
        let finish = column(']').or(column('|'));
        let value = (value != "-").then(|| value.into());
        let mut operation = match verb {
            "R" => Operation::read(client, "x", value, start, start),
            "W" => Operation::write(client, "x", value.expect("a value"), start, start),
            other => panic!("{other} is neither R nor W"),
        };
        operation.finish = finish;
        operation.outcome = if finish.is_some() { Outcome::Ok } else { Outcome::Unknown };
        history.push(operation).expect("possible");
    }
    history
}

fn measured(drawing: &str) -> (Report, Measures) {
    let report = check(&drawn(drawing));
    let measures = report.measures.expect("distinct values are measured");
    (report, measures)
}

/// 004, figure 1: W(b) must take effect before W(a) and W(a) before R(b). Without b the rest is atomic.
#[test]
fn the_papers_example_is_two_ninths() {
    let (report, measures) = measured(
        "
        W(b)  [---]
        W(e)    [------]
        W(a)         [----]
        R(a)              [------]
        R(b)                [---]
        W(c)                     [---]
        R(c)                        [----]
        W(d)                           [----]
        R(d)                              [----]
        ",
    );
    assert_eq!(report.verdict, Verdict::NotAtomic);
    assert_eq!((measures.inconsistent_operations, report.operations), (2, 9));
    assert_eq!(report.proportion(), Some(2.0 / 9.0));
}

#[test]
fn a_stale_read_scores_the_shorter_way_out() {
    let (report, measures) = measured(
        "
        W(a)  [--]
        W(b)        [--]
        R(b)             [-]
        R(a)               [--]
        ",
    );
    assert_eq!(report.verdict, Verdict::NotAtomic);
    // W(b) ends at 15 + 8 − 8; R(a) begins 4 ns after W(b) ended.
    assert_eq!(measures.gamma, Score::Finite(4));
    assert_eq!(measures.delta, Score::Finite(4));
    assert_eq!(measures.k, Score::Finite(2));
    assert_eq!(measures.irregular_reads, 1);
}
