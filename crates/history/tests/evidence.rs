//! Tests of reports: their numbers, their witnesses, and the order of suspects.

use quorate_history::{
    Action, GLANCE_STEPS, History, KeyShare, Operation, Options, Outcome, Report, Score, Value, Verdict,
    Witness, check, check_key, check_with, confidence, fewest_operations, inconsistent_values,
};

/// Parses operations: `W value start finish` is a write and `R value start finish` a read. Each operation has
/// its own client. The value `-` is "nothing", and the finish `?` is unknown.
fn history(operations: &[&str]) -> History {
    keyed("x", operations).into_iter().collect()
}

fn keyed(key: &str, operations: &[&str]) -> Vec<Operation> {
    let operation = |(client, text): (u64, &&str)| {
        let [verb, value, start, finish] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
        let value = (value != "-").then(|| Value::from(value));
        let action = match (verb, value) {
            ("R", value) => Action::Read(value),
            ("W", Some(value)) => Action::Write(value),
            ("W", None) => Action::Delete,
            ("E", Some(value)) => Action::Enqueue(value),
            ("D", value) => Action::Dequeue(value),
            _ => panic!("{text}"),
        };
        let finish = (finish != "?").then(|| finish.parse().expect("a time"));
        let outcome = if finish.is_some() { Outcome::Ok } else { Outcome::Unknown };
        Operation { client, key: key.into(), action, start: start.parse().expect("a time"), finish, outcome }
    };
    (1..).zip(operations).map(operation).collect()
}

fn witness(operations: &[&str]) -> Witness {
    check(&history(operations)).suspects.remove(0).witness.expect("a witness")
}

#[test]
fn a_history_returns_the_pushed_operations() {
    let ok = |action| Operation::answered(1, "x", action, 3, 9);
    let unknown = |action| Operation { finish: None, outcome: Outcome::Unknown, ..ok(action) };
    let cas = |matched| Action::Cas { expected: Some("a".into()), new: "b".into(), matched };
    let registers = [
        ok(Action::Read(None)),
        ok(Action::Read(Some("a".into()))),
        ok(Action::Write("a".into())),
        unknown(Action::Write("b".into())),
        ok(Action::Delete),
        ok(cas(true)),
        ok(cas(false)),
        unknown(cas(true)),
    ];
    let texts = [ok(Action::Append("a".into())), ok(Action::Read(Some("a".into())))];
    let sets = [ok(Action::Add("a".into())), unknown(Action::Remove("a".into()))];
    let queues = [ok(Action::Enqueue("a".into())), ok(Action::Dequeue(None)), unknown(Action::Dequeue(None))];
    for operations in [&registers[..], &texts, &sets, &queues] {
        let history: History = operations.iter().cloned().collect();
        assert!(history.keys()[0].operations().eq(operations.iter().cloned()), "{operations:?}");
        assert!(!history.is_empty() && !history.keys()[0].is_empty());
    }
    assert!(History::new().is_empty());
}

#[test]
fn one_hard_key_holds_up_no_verdict() {
    // Fourteen concurrent writes of three values, and two reads that contradict each other: the search tries
    // every order.
    let hard = |key: &str| -> Vec<Operation> {
        let writes = (0..14).map(|client| Operation::write(client, key, client % 3, 0, 100));
        let read = |value: u64, at| Operation::read(99, key, Some(value.into()), at, at + 1);
        writes.chain([read(0, 101), read(1, 103)]).collect()
    };
    let alone = check(&hard("hard").into_iter().collect());
    assert_eq!((alone.verdict, alone.searched_keys), (Verdict::NotAtomic, 1));
    let glance = Options { search_steps: GLANCE_STEPS, ..Options::default() };
    let glanced = check_with(&hard("hard").into_iter().collect(), &glance);
    assert_eq!(glanced.verdict, Verdict::Unknown, "it takes more than a glance");
    // The hard key stays undecided as soon as another key is not atomic.
    let wrong = keyed("wrong", &["W a 0 1", "W b 2 3", "R a 4 5"]);
    let both = check(&hard("hard").into_iter().chain(wrong).collect());
    assert_eq!((both.verdict, both.searched_keys, both.keys), (Verdict::NotAtomic, 1, 2));
    let verdicts: Vec<_> = both.suspects.iter().map(|key| (&*key.key, key.verdict)).collect();
    assert_eq!(verdicts, [("wrong", Verdict::NotAtomic), ("hard", Verdict::Unknown)]);
}

#[test]
fn the_worst_keys_come_first() {
    let late = |key: &str, by: i64| {
        let read = Operation::read(3, key, Some("a".into()), 20 + by, 30 + by);
        [Operation::write(1, key, "a", 0, 10), Operation::write(2, key, "b", 15, 20), read]
    };
    let of_nobody = Operation::read(1, "orphan", Some("a".into()), 0, 1);
    let more = Operation::read(4, "d", Some("b".into()), 16, 20);
    let all = [late("c", 1), late("b", 5), late("a", 5), late("d", 5)].into_iter().flatten();
    let report = check(&all.chain([of_nobody, more]).collect());
    // Suspects are sorted by Γ, then by the number of inconsistent operations, then by name. Γ is infinite
    // for a key with an orphan read.
    let keys: Vec<&str> = report.suspects.iter().map(|key| &*key.key).collect();
    assert_eq!(keys, ["orphan", "d", "a", "b", "c"]);
    assert_eq!((report.searched_keys, report.keys), (0, 5));
    assert_eq!(report.measures.expect("measured").gamma.finite(), None);
    assert_eq!(Score::Finite(3).finite(), Some(3));
}

#[test]
fn proportions_are_of_operations_and_of_values() {
    let report = check(&history(&["W a 0 1", "R a 2 3", "W b 4 5", "R a 6 7", "R b 8 9", "R c 8 9"]));
    // Value a has three operations and b has two. Nobody wrote c.
    assert_eq!(report.proportion(), Some(3.0 / 6.0));
    assert_eq!(report.proportion_values(), Some(2.0 / 3.0));
    assert_eq!(report.shares, [KeyShare { operations: 6, inconsistent: 3 }]);
    assert_eq!((Report::new().proportion(), Report::new().proportion_values()), (Some(0.0), Some(0.0)));
    let unmeasured = check(&history(&["W a 0 1", "W a 2 3", "R b 4 5"]));
    assert_eq!((unmeasured.proportion(), unmeasured.proportion_values()), (None, None));
}

#[test]
fn a_test_fails_with_the_witness_unless_the_history_is_atomic() {
    check(&history(&["W a 0 1", "R a 2 3"])).assert_atomic();
    let wrong = check(&history(&["W a 0 1", "R - 2 3"]));
    let failure = std::panic::catch_unwind(|| wrong.assert_atomic()).expect_err("it is not atomic");
    let text = failure.downcast_ref::<String>().expect("a text");
    assert!(text.contains("a and ∅ conflict") || text.contains("∅ and a conflict"), "{text}");
}

#[test]
fn two_keys_say_how_keys_differ() {
    let key = |inconsistent| KeyShare { operations: 10, inconsistent };
    assert_eq!(confidence(&[key(0), key(10)], 100, |_| 1), Some((1.0, 1.0)));
    assert_eq!(confidence(&[key(0)], 100, |_| 0), None);
    assert_eq!(confidence(&[key(0), key(10)], 0, |_| 1), None);
    let nothing = KeyShare { operations: 0, inconsistent: 0 };
    assert_eq!(confidence(&[nothing, nothing], 1, |_| 1), Some((0.0, 0.0)));
}

#[test]
fn the_values_to_take_out_are_named() {
    let named = |operations: &[&str]| {
        let history = history(operations);
        let values = inconsistent_values(&history.keys()[0]).into_iter();
        values.map(|value| value.map_or("∅".into(), ToString::to_string)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(named(&["W a 0 1", "R a 2 3"]), "");
    assert_eq!(named(&["W a 0 1", "R a 0 3", "W b 4 5", "R a 6 7", "R b 8 9"]), "b");
    assert_eq!(named(&["W a 0 1", "R - 2 3", "R a 2 3"]), "∅");
    assert_eq!(named(&["R a 0 1", "W a 2 3", "W b 2 3", "R c 2 3"]), "c a", "of nobody, and read too early");
}

#[test]
fn a_read_of_the_future_is_shown_with_its_write() {
    let text = witness(&["R a 4 6", "R a 3 5", "W a 9 10", "R a 11 12", "W b 0 1", "R b 2 3"]).to_string();
    assert!(text.starts_with("R(a) by 2 ended 4 ns before W(a) by 3 began\n"), "{text}");
    // Both values were read before their writes. The witness is the read with the larger Γ.
    let text = witness(&["R a 4 6", "W a 9 10", "R b 1 2", "W b 9 10"]).to_string();
    assert!(text.starts_with("R(b) by 3 ended 7 ns before W(b) by 4 began\n"), "{text}");
    // The larger of a conflict's Γ and a future read's Γ is shown. Here a and b conflict by 19 ns.
    let conflict = ["W a 100 101", "W b 120 130", "R a 150 160"];
    let text = witness(&[&["R c 4 6", "W c 24 25"], &conflict[..]].concat()).to_string();
    assert!(text.contains("conflict, Γ = 19 ns"), "{text}");
    let text = witness(&[&["R c 4 6", "W c 25 26"], &conflict[..]].concat()).to_string();
    assert!(text.starts_with("R(c) by 1 ended 19 ns before W(c) by 2 began\n"), "{text}");
}

#[test]
fn the_first_read_of_an_unwritten_value_is_shown() {
    let text = witness(&["W a 0 1", "R b 5 9", "R b 4 8", "R a 2 3"]).to_string();
    assert!(text.starts_with("R(b) by 3 returned a value that nobody wrote\n"), "{text}");
    let searched = witness(&["W a 0 1", "W a 2 3", "R b 4 8"]).to_string();
    assert!(searched.starts_with("R(b) by 3 returned a value that nobody wrote\n"), "{searched}");
}

#[test]
fn an_atomic_key_has_nothing_to_show() {
    for operations in [&["W a 0 1", "R a 2 3"][..], &["W a 0 1", "W b 2 3", "W a 4 5"]] {
        let history = history(operations);
        let report = check_key(&history.keys()[0], &Options::default());
        assert_eq!((report.verdict, report.witness), (Verdict::Atomic, None), "{operations:?}");
    }
}

/// A value that nobody read cannot be inconsistent, however large the clock error is.
#[test]
fn unread_writes_are_consistent_on_any_clock() {
    let history = history(&["W a 0 10", "W b 5 15", "W c 30 40"]);
    for clock_error in [1, 8, 20, 1_000, u64::MAX] {
        let report = check_with(&history, &Options { clock_error, ..Options::default() });
        let measures = report.measures.expect("measured");
        let found = (report.verdict, measures.certain_operations, measures.possible_operations);
        assert_eq!(found, (Verdict::Atomic, 0, 0), "clock error {clock_error}");
    }
}

#[test]
fn the_order_in_which_operations_are_recorded_says_nothing() {
    let mut operations = keyed("x", &["W a 0 1", "W b 2 3", "R b 4 5", "R a 6 7"]);
    operations.iter_mut().for_each(|operation| operation.client = 1);
    operations.reverse();
    let measures = check(&operations.into_iter().collect()).measures.expect("measured");
    assert_eq!((measures.sessions.read_your_writes, measures.sessions.monotonic_reads), (1, 1));
}

/// Checks a drawing of twenty columns. Its first line gives the time span in nanoseconds.
fn drawn(operations: &[&str], expected: &str) {
    let drawing = witness(operations).drawing(20);
    let drawing: Vec<&str> = drawing.lines().map(str::trim_end).collect();
    assert_eq!(drawing.join("\n"), expected.trim_matches('\n'), "{operations:?}");
}

#[test]
fn a_conflict_is_drawn_with_its_zones() {
    let forward = "
           100 ns … +19 ns
W(a) by 1  ├─┤
W(b) by 2     ├─┤
R(b) by 3           ├─┤
R(a) by 4                     │
zone b          ╞═══╡
zone a       ╞════════════════╡
";
    drawn(&["W a 100 102", "W b 103 105", "R b 109 111", "R a 119 119"], forward);
    let backward = "
           100 ns … +19 ns
W(a) by 1  ├┤
W(b) by 3       ├────┤
R(a) by 2                     │
zone b          ┆╌╌╌╌┆
zone a      ╞═════════════════╡
";
    drawn(&["W a 100 101", "R a 119 119", "W b 105 110"], backward);
    let of_unknown_outcome = "
           100 ns … +19 ns
W(b) by 3  ├┤
R(a) by 2       ├──────┤
W(a) by 1            ├─────────
R(b) by 4                     │
zone b      ╞═════════════════╡
zone a               ┆╌┆
";
    drawn(&["W a 110 ?", "R a 105 112", "W b 100 101", "R b 119 119"], of_unknown_outcome);
}

#[test]
fn the_initial_value_is_drawn_from_before_everything() {
    let long = "
           103 ns … +16 ns
initially  ────────────────────
R(a) by 2  │
R(∅) by 3                     │
zone a     │
zone ∅     ═══════════════════╡
";
    drawn(&["W a 100 ?", "R a 103 103", "R - 119 119"], long);
    // An operation shorter than a column shows its end mark if it has no start.
    let short = "
           0 ns … +1000 ns
initially  ────────────────────
W(a) by 1  │
R(∅) by 2  ├──────────────────┤
zone a     │
zone ∅     ╡
";
    drawn(&["W a 0 0", "R - 1 1000", "W b 1000 ?"], short);
    let future = "
           4 ns … +5 ns
R(a) by 1  ├──────┤
W(a) by 2                     ├
";
    drawn(&["R a 4 6", "W a 9 ?"], future);
}

#[test]
fn a_search_shows_the_order_that_came_furthest() {
    // In the first order that the search tries, b comes last. Then the read of a does not fit.
    let found = witness(&["W - 0 1", "W a 10 20", "W b 10 20", "R a 21 22", "R b 23 24"]);
    let text = found.to_string();
    assert!(
        text.starts_with("4 of 5 operations can be ordered, and then none of R(b) by 5 can follow\n"),
        "{text}"
    );
    let Witness::NoOrder { prefix, .. } = found else { panic!("{text}") };
    assert_eq!(prefix[0].label, "delete by 1");
}

#[test]
fn a_search_shows_where_it_ended() {
    let text = witness(&["W a 0 1", "W b 2 3", "W - 4 5", "R a 6 7", "R - 8 9"]).to_string();
    assert!(
        text.starts_with("3 of 5 operations can be ordered, and then none of R(a) by 4 can follow\n"),
        "{text}"
    );
    let Witness::NoOrder { ordered, operations, prefix, candidates } =
        witness(&["E a 0 1", "E b 2 3", "D a 4 5", "D a 6 8", "D - 7 9"])
    else {
        panic!("a queue is searched")
    };
    let labels = |evidence_operations: &[quorate_history::EvidenceOperation]| {
        evidence_operations.iter().map(|operation| operation.label.clone()).collect::<Vec<_>>().join(", ")
    };
    assert_eq!((ordered, operations), (3, 5));
    assert_eq!(labels(&prefix), "enqueue(a) by 1, enqueue(b) by 2, dequeue → a by 3");
    assert_eq!(labels(&candidates), "dequeue → a by 4, dequeue → ∅ by 5");
}

#[test]
fn the_fewest_operations_are_found_or_not() {
    // Two reads end before their write begins. Both are removed, and the write may stay.
    let history = history(&["R a 0 1", "R a 0 2", "W a 3 4", "R a 5 6"]);
    let key = &history.keys()[0];
    assert_eq!(fewest_operations(key, 1_000), Some(2));
    assert_eq!(fewest_operations(key, 1), None, "the steps are used up");
}
