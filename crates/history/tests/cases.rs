//! The hand-made cases that `docs/consistency.md` draws.

use quorate_history::{History, Operation, Outcome, Score, Verdict, check};

const PAGE: &str = include_str!("../../../docs/consistency.md");

/// Parses a drawing: one operation a line, with its label first. A column is a nanosecond.
fn drawn(drawing: &str) -> History {
    let mut history = History::new();
    for (client, line) in (1..).zip(drawing.lines()) {
        let (label, _) = line.split_once(' ').expect("a label and an interval");
        let (verb, value) = label.trim_end_matches(')').split_once('(').expect("R(value) or W(value)");
        let column = |mark: char| line.chars().position(|c| c == mark).map(|at| at as i64);
        let start = column('[').expect("a beginning");
        let value = (value != "-").then(|| value.into());
        let mut operation = match verb {
            "R" => Operation::read(client, "x", value, start, start),
            "W" => Operation::write(client, "x", value.expect("a value"), start, start),
            other => panic!("{other} is neither R nor W"),
        };
        operation.finish = column(']');
        operation.outcome = if operation.finish.is_some() { Outcome::Ok } else { Outcome::Unknown };
        history.push(operation).expect("possible");
    }
    history
}

/// Returns the result of a check in the words that the page uses.
fn reported(drawing: &str) -> String {
    let report = check(&drawn(drawing));
    let measures = report.measures.expect("distinct values are measured");
    let shown = |score: Score| score.to_string();
    format!(
        "→ atomic {}, inconsistent {}/{}, Γ {}, Δ {}, k {}, irregular {}, orphans {}",
        if report.verdict == Verdict::Atomic { "yes" } else { "no" },
        measures.inconsistent_operations,
        report.operations,
        shown(measures.gamma),
        shown(measures.delta),
        shown(measures.k),
        measures.irregular_reads,
        report.orphan_reads,
    )
}

#[test]
fn every_drawing_of_the_page_is_judged_as_the_page_says() {
    let mut cases = 0;
    for part in PAGE.split("```drawing\n").skip(1) {
        let (drawing, rest) = part.split_once("```\n").expect("the drawing ends");
        let expected = rest.lines().next().expect("what it shows");
        assert_eq!(reported(drawing), expected, "\n{drawing}");
        cases += 1;
    }
    assert!(cases >= 16, "only {cases} drawings were found");
}

/// 004, figure 1: W(b) must take effect before W(a), and W(a) before R(b). Without b the rest is atomic.
#[test]
fn the_papers_example_is_two_ninths() {
    let (_, part) = PAGE.split_once("**004, figure 1.**").expect("it is on the page");
    let drawing = part.split("```drawing\n").nth(1).and_then(|part| part.split("```").next()).expect("drawn");
    let report = check(&drawn(drawing));
    assert_eq!(report.proportion(), Some(2.0 / 9.0));
    let history = drawn(drawing);
    let values = quorate_history::inconsistent_values(&history.keys()[0]);
    assert_eq!(values, [Some(&"b".into())]);
    let witness = report.suspects[0].witness.as_ref().expect("a witness");
    assert!(witness.to_string().starts_with("values a and b conflict, Γ = 2 ns"), "{witness}");
}
