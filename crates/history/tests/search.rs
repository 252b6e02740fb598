//! Compares the general search with exhaustive search, for every kind of object.

use quorate_history::{Action, History, Operation, Outcome, Value, Verdict, check};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Contents of an object, in the simplest form.
type State = Vec<String>;

/// Returns the state after `operation`, or `None` if its answer is impossible.
fn happen(state: &State, operation: &Operation) -> Option<State> {
    let texts = |value: &Option<Value>| match value {
        None => vec![],
        Some(Value::List(values)) => values.iter().map(ToString::to_string).collect(),
        Some(value) => vec![value.to_string()],
    };
    let unknown = operation.outcome == Outcome::Unknown;
    match &operation.action {
        Action::Read(value) => (texts(value) == *state).then(|| state.clone()),
        Action::Write(value) => Some(vec![value.to_string()]),
        Action::Delete => Some(vec![]),
        Action::Cas { expected, new, matched } => match (texts(expected) == *state, *matched || unknown) {
            (true, true) => Some(vec![new.to_string()]),
            (false, false) => Some(state.clone()),
            _ => None,
        },
        Action::Append(value) | Action::Enqueue(value) => Some([&state[..], &[value.to_string()]].concat()),
        Action::Add(value) => {
            let mut state = [&state[..], &[value.to_string()]].concat();
            state.sort();
            state.dedup();
            Some(state)
        }
        Action::Remove(value) => Some(state.iter().filter(|v| **v != value.to_string()).cloned().collect()),
        Action::Dequeue(value) => match state.split_first() {
            Some((first, rest)) => (unknown || texts(value) == [first.clone()]).then(|| rest.to_vec()),
            None => (!unknown && value.is_none()).then(Vec::new),
        },
    }
}

fn explains(operations: &[Operation], left: u32, state: &State) -> bool {
    let indices = || (0..operations.len()).filter(move |i| left & (1 << i) != 0);
    let finish = |i: usize| match operations[i].outcome {
        Outcome::Ok => operations[i].finish.expect("answered"),
        _ => i64::MAX,
    };
    if indices().all(|i| finish(i) == i64::MAX) {
        return true;
    }
    indices().any(|i| {
        let preceded = indices().any(|j| finish(j) < operations[i].start);
        !preceded
            && happen(state, &operations[i])
                .is_some_and(|after| explains(operations, left & !(1 << i), &after))
    })
}

fn random_history(random: &mut impl Rng, kind: u32) -> Vec<Operation> {
    let mut now = [0i64; 4];
    let count = random.random_range(1..=7);
    let span = random.random_range(1..=10);
    let mut operations = Vec::new();
    for unique in 0..count {
        let client = random.random_range(0..4usize);
        let start = now[client] + random.random_range(0..=span);
        let finish = start + random.random_range(0..=span);
        now[client] = finish;
        let few = |random: &mut dyn FnMut(u32) -> u32| Value::from(u64::from(random(3)));
        let mut draw = |below: u32| random.random_range(0..below);
        let list = |draw: &mut dyn FnMut(u32) -> u32| {
            let mut values: Vec<Value> = (0..draw(4)).map(|_| Value::from(u64::from(draw(3)))).collect();
            if kind == 3 {
                values.sort();
                values.dedup();
            }
            Some(Value::from(values))
        };
        let action = match (kind, draw(10)) {
            (0, 0..4) => Action::Read((draw(6) > 0).then(|| few(&mut draw))),
            (0, 4..7) => Action::Write(few(&mut draw)),
            (0, 7) => Action::Delete,
            (0, _) => {
                let expected = (draw(6) > 0).then(|| few(&mut draw));
                Action::Cas { expected, new: few(&mut draw), matched: draw(3) > 0 }
            }
            // Few distinct values, so that writes repeat and short histories are often atomic.
            (1, 0..6) => Action::Read((draw(8) > 0).then(|| few(&mut draw))),
            (1, _) => Action::Write(few(&mut draw)),
            (2, 0..4) => Action::Read(list(&mut draw)),
            (2, _) => Action::Append(few(&mut draw)),
            (3, 0..4) => Action::Read(list(&mut draw)),
            (3, 4..8) => Action::Add(few(&mut draw)),
            (3, _) => Action::Remove(few(&mut draw)),
            (4, 0..5) => Action::Enqueue(Value::from(unique)),
            _ => Action::Dequeue((draw(4) > 0).then(|| Value::from(u64::from(draw(4))))),
        };
        let is_read = matches!(action, Action::Read(_));
        let outcome = if !is_read && draw(8) == 0 { Outcome::Unknown } else { Outcome::Ok };
        operations.push(Operation {
            client: client as u64,
            key: "x".into(),
            action,
            start,
            finish: Some(finish),
            outcome,
        });
    }
    operations
}

#[test]
fn any_kind_of_object_is_decided_as_by_trying_everything() {
    for kind in 0..5 {
        let mut counts = [0u32; 2];
        for seed in 0..8_000 {
            let operations = random_history(&mut Pcg64::seed_from_u64(seed), kind);
            let history: History = operations.iter().cloned().collect();
            let expected = explains(&operations, (1 << operations.len()) - 1, &vec![]);
            let report = check(&history);
            let found = report.verdict == Verdict::Atomic;
            assert_eq!(found, expected, "kind {kind} seed {seed}: {operations:#?}\n{report}");
            counts[usize::from(found)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 400), "kind {kind}: {counts:?}");
    }
}

/// A search that runs in pieces reaches the same answer as a search in one piece.
#[test]
fn a_search_can_be_gone_on_with() {
    use quorate_history::model::{
        Register,
        RegisterOperation::{Read, Write},
    };
    use quorate_history::search::{Search, SearchAnswer, Timed};
    let timed = |start, finish, operation| Timed { start, finish: Some(finish), operation };
    // Ten concurrent writes of two values, then reads that alternate between them. The last read is
    // impossible.
    let mut operations: Vec<_> = (0..10).map(|i| timed(0, 100, Write(1 + i % 2))).collect();
    operations.extend((0..9).map(|i| timed(i, 100, Read(1 + (i as u32) % 2))));
    operations.push(timed(101, 102, Read(1)));
    operations.push(timed(103, 104, Read(2)));
    let whole = Search::new(Register, operations.clone()).advance(u64::MAX);
    assert!(matches!(whole, SearchAnswer::NotLinearizable(_)));
    let mut pieces = Search::new(Register, operations);
    let mut turns = 0;
    let answer = loop {
        turns += 1;
        match pieces.advance(1) {
            SearchAnswer::OutOfSteps => {}
            answer => break answer,
        }
    };
    assert_eq!(answer, whole);
    assert!(turns > 10, "{turns} turns");
}

#[test]
fn out_of_steps_is_unknown() {
    let write = |client| Operation::write(client, "x", client % 3, 0, 100);
    let mut history: History = (0..30).map(write).collect();
    history.push(Operation::read(99, "x", Some(Value::from(0)), 101, 102)).unwrap();
    history.push(Operation::read(99, "x", Some(Value::from(1)), 103, 104)).unwrap();
    let options = quorate_history::Options { search_steps: 100, ..Default::default() };
    let report = quorate_history::check_with(&history, &options);
    assert_eq!((report.verdict, report.measures), (Verdict::Unknown, None));
}

/// Places that differ only in operations far above the base are different places.
#[test]
fn a_long_search_distinguishes_its_places() {
    let write = |value: &str, start, finish| Operation::write(1, "x", value, start, finish);
    let read = |value: &str, at| Operation::read(2, "x", Some(value.into()), at, at + 1);
    // 63 writes one after another. The following write can only come last, so it stays open after them.
    let mut operations: Vec<Operation> =
        (0..63).map(|at| write(["p", "q"][at as usize % 2], at, at)).collect();
    operations.push(write("last", 99, 1_000));
    // The short write of a must come first. The search tries the long write first, which gives the same value
    // but leads nowhere.
    operations.extend([write("a", 100, 200), write("a", 101, 110), write("b", 101, 105), read("b", 120)]);
    operations.extend([read("a", 140), read("last", 1_001)]);
    operations.extend((0..128).map(|at| write(["p", "q"][at as usize % 2], 2_000 + at, 2_000 + at)));
    let report = check(&operations.into_iter().collect());
    assert_eq!((report.verdict, report.searched_keys), (Verdict::Atomic, 1), "{report}");
    // These writes are as many operations as a machine word has bits.
    let exactly = (0..64).map(|at| write("p", at, at));
    assert_eq!(check(&exactly.collect()).verdict, Verdict::Atomic);
}

#[test]
fn texts_grow_by_appended_values() {
    let append = |value: &str, at| Operation::answered(1, "x", Action::Append(value.into()), at, at);
    let read = |value: &str, at| Operation::read(2, "x", Some(value.into()), at, at);
    let verdict = |operations: &[Operation]| check(&operations.iter().cloned().collect()).verdict;
    assert_eq!(verdict(&[append("a", 0), read("a", 1), append("b", 2), read("ab", 3)]), Verdict::Atomic);
    assert_eq!(verdict(&[append("a", 0), append("b", 2), read("b", 3)]), Verdict::NotAtomic);
    assert_eq!(verdict(&[append("a", 0), append("b", 2), read("a", 3)]), Verdict::NotAtomic);
}

/// A key with compare-and-set operations is a register, whatever values it holds.
#[test]
fn a_register_may_hold_lists() {
    let list =
        |values: &[&str]| Value::from(values.iter().map(|value| Value::from(*value)).collect::<Vec<_>>());
    let at = |at, action| Operation::answered(1, "x", action, at, at);
    let cas = |expected: &[&str], new: &[&str]| Action::Cas {
        expected: Some(list(expected)),
        new: list(new),
        matched: true,
    };
    let verdict = |actions: Vec<Action>| {
        let history: History = (0..).zip(actions).map(|(time, action)| at(time, action)).collect();
        check(&history).verdict
    };
    let read = |values: &[&str]| Action::Read(Some(list(values)));
    let set = [Action::Write(list(&["a"])), cas(&["a"], &["b", "a"])];
    assert_eq!(verdict([&set[..], &[read(&["b", "a"])]].concat()), Verdict::Atomic);
    assert_eq!(verdict([&set[..], &[read(&["a", "b"])]].concat()), Verdict::NotAtomic);
    // An empty list that was written reads as "nothing" or as an empty list.
    for empty in [Action::Read(None), read(&[])] {
        let written = vec![Action::Write(list(&["a"])), Action::Write(list(&[])), empty.clone()];
        assert_eq!(verdict(written), Verdict::Atomic, "{empty:?}");
        let compared = vec![Action::Write(list(&["a"])), cas(&["a"], &[]), empty.clone()];
        assert_eq!(verdict(compared), Verdict::Atomic, "{empty:?}");
        assert_eq!(verdict(vec![Action::Write(list(&["a"])), empty]), Verdict::NotAtomic);
    }
    let written: History = [at(0, cas(&[], &[]))].into_iter().collect();
    assert!(
        written.keys()[0]
            .operations()
            .eq([at(0, Action::Cas { expected: None, new: list(&[]), matched: true })])
    );
}
