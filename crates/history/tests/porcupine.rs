//! Compares verdicts with Porcupine, an independent checker, on its published histories and on random ones.
//!
//! The tests need `go` and its module proxy. Without them they report that they were skipped. Nothing that is
//! fetched is stored in the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use quorate_history::format::edn::FailedCas;
use quorate_history::format::{Format, Reader, Record, json};
use quorate_history::{Action, History, Operation, Outcome, Value, Verdict, check};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

struct Porcupine {
    program: PathBuf,
    /// Directory of Porcupine's module, with its tests and their histories.
    module: PathBuf,
}

/// Builds Porcupine once. Returns `None`, and prints the reason, if it cannot be built here.
fn porcupine() -> Option<&'static Porcupine> {
    static BUILT: OnceLock<Option<Porcupine>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let here = Path::new("tests/porcupine");
        let there = Path::new(env!("CARGO_TARGET_TMPDIR")).join("porcupine");
        fs::create_dir_all(&there).expect("the target directory can be written");
        for file in ["go.mod", "go.sum", "main.go"] {
            fs::copy(here.join(file), there.join(file)).expect("the target directory can be written");
        }
        let go = |arguments: &[&str]| {
            let output = Command::new("go").args(arguments).current_dir(&there).output();
            match output {
                Ok(Output { status, stdout, .. }) if status.success() => {
                    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
                }
                Ok(Output { stderr, .. }) => Err(String::from_utf8_lossy(&stderr).into_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        let module = go(&["build", "-o", "porcupine", "."])
            .and_then(|_| go(&["list", "-m", "-f", "{{.Dir}}", "github.com/anishathalye/porcupine"]));
        match module {
            Ok(module) => Some(Porcupine { program: there.join("porcupine"), module: module.into() }),
            Err(reason) => {
                eprintln!("skipped: porcupine cannot be built here: {reason}");
                None
            }
        }
    });
    built.as_ref()
}

impl Porcupine {
    /// Returns Porcupine's verdict on each file: `true`, `false` or `"unknown"`.
    fn judge(&self, files: &[PathBuf]) -> Vec<serde_json::Value> {
        let output =
            Command::new(&self.program).arg("-timeout").arg("100s").args(files).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).expect("text");
        let answer =
            |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["linearizable"].clone();
        lines.lines().map(answer).collect()
    }
}

fn write_history(name: &str, operations: &[Operation]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("porcupine").join(name);
    let mut text = Vec::new();
    for operation in operations {
        json::write(&mut text, operation).expect("memory");
    }
    fs::write(&path, text).expect("the target directory can be written");
    path
}

fn read_jepsen(path: &Path) -> Vec<Operation> {
    let text = fs::read(path).expect("a published history");
    let decoder = Format::Edn.decoder(FailedCas::Observed);
    let mut reader = Reader::new(path.display().to_string(), text.as_slice(), decoder);
    let mut records = Vec::new();
    while reader.read(&mut records).expect("a published history is well-formed") {}
    let operation = |record| match record {
        Record::Operation(operation) => operation,
        other => panic!("{other:?} in a Jepsen history"),
    };
    records.into_iter().map(operation).collect()
}

fn ours(operations: &[Operation]) -> Verdict {
    check(&operations.iter().cloned().collect::<History>()).verdict
}

fn shown(verdict: Verdict) -> serde_json::Value {
    serde_json::to_value(verdict).expect("a verdict is JSON")
}

/// Porcupine's tests state the verdict of each published history. Porcupine and this crate must both reach
/// this verdict.
#[test]
fn published_histories_are_judged_as_published() {
    let Some(porcupine) = porcupine() else { return };
    let tests = fs::read_to_string(porcupine.module.join("porcupine_test.go")).expect("its tests");
    let mut published: BTreeMap<PathBuf, bool> = BTreeMap::new();
    for line in tests.lines().map(str::trim) {
        if let Some(arguments) = line.strip_prefix("checkJepsen(t, ").and_then(|rest| rest.strip_suffix(')'))
        {
            let (number, verdict) = arguments.split_once(", ").expect("a number and a verdict");
            let name = format!("test_data/jepsen/etcd_{:03}.log", number.parse::<u32>().expect("a number"));
            published.insert(name.into(), verdict == "true");
        }
        if let Some(arguments) =
            line.strip_prefix("checkKv(t, \"").and_then(|rest| rest.strip_suffix(", true)"))
        {
            let (name, verdict) = arguments.split_once("\", ").expect("a name and a verdict");
            published.insert(format!("test_data/kv/{name}.txt").into(), verdict == "true");
        }
    }
    assert!(published.len() > 100, "only {} published histories were found", published.len());

    let histories: Vec<_> = published.keys().map(|name| read_jepsen(&porcupine.module.join(name))).collect();
    let files: Vec<_> = (0..)
        .zip(&histories)
        .map(|(number, operations)| write_history(&format!("published-{number}.jsonl"), operations))
        .collect();
    let theirs = porcupine.judge(&files);
    for (((name, expected), operations), theirs) in published.iter().zip(&histories).zip(theirs) {
        let found = ours(operations);
        assert_eq!(found == Verdict::Atomic, *expected, "{}: we find {found:?}", name.display());
        assert_eq!(shown(found), theirs, "{}", name.display());
    }
    eprintln!("{} published histories judged as published", published.len());
}

/// Returns a random history of a few clients and keys. The store is atomic except for occasional stale reads
/// and lost writes.
fn random_history(random: &mut impl Rng) -> Vec<Operation> {
    struct Event {
        at: i64,
        operation: Operation,
    }
    let clients = random.random_range(2..8u64);
    let repeats = random.random_bool(0.5);
    let flaw = if random.random_bool(0.5) { 0.0 } else { 0.03 };
    let mut events: Vec<Event> = Vec::new();
    for client in 0..clients {
        let mut now = 0;
        for _ in 0..random.random_range(5..25) {
            let start = now + random.random_range(0..10);
            let finish = start + random.random_range(0..40);
            let at = random.random_range(start..=finish);
            now = finish;
            let key = ["x", "y", "z"][random.random_range(0..3usize)];
            let value = Value::from(if repeats { random.random_range(0..4) } else { events.len() as u64 });
            let action = match random.random_range(0..20) {
                0..10 => Action::Read(None),
                10..16 => Action::Write(value),
                16 if repeats => Action::Delete,
                _ if repeats => {
                    let expected = Some(Value::from(random.random_range(0..4u64)));
                    Action::Cas { expected, new: value, matched: false }
                }
                _ => Action::Write(value),
            };
            let outcome = if random.random_bool(0.05) { Outcome::Unknown } else { Outcome::Ok };
            let (key, finish) = (key.into(), Some(finish));
            events.push(Event { at, operation: Operation { client, key, action, start, finish, outcome } });
        }
    }
    events.sort_by_key(|event| event.at);
    let mut held: BTreeMap<Box<str>, Vec<Option<Value>>> = BTreeMap::new();
    for Event { operation, .. } in &mut events {
        let versions = held.entry(operation.key.clone()).or_insert_with(|| vec![None]);
        let flawed = random.random_bool(flaw);
        let now = versions[versions.len() - 1].clone();
        let lost = flawed || operation.outcome == Outcome::Unknown && random.random_bool(0.5);
        match &mut operation.action {
            Action::Read(value) => {
                *value = versions[versions.len() - 1 - usize::from(flawed && versions.len() > 1)].clone()
            }
            Action::Write(value) if !lost => versions.push(Some(value.clone())),
            Action::Delete if !lost => versions.push(None),
            Action::Cas { expected, new, matched } => {
                *matched = *expected == now;
                if *matched && !lost {
                    versions.push(Some(new.clone()));
                }
            }
            _ => {}
        }
    }
    events.into_iter().map(|event| event.operation).collect()
}

#[test]
fn random_histories_are_judged_alike() {
    let Some(porcupine) = porcupine() else { return };
    let histories: Vec<_> = (0..600).map(|seed| random_history(&mut Pcg64::seed_from_u64(seed))).collect();
    let files: Vec<_> = (0..)
        .zip(&histories)
        .map(|(number, operations)| write_history(&format!("random-{number}.jsonl"), operations))
        .collect();
    let theirs = porcupine.judge(&files);
    assert_eq!(theirs.len(), histories.len());
    let mut atomic = 0;
    for ((seed, operations), theirs) in histories.iter().enumerate().zip(theirs) {
        let found = ours(operations);
        assert_eq!(shown(found), theirs, "seed {seed}");
        atomic += usize::from(found == Verdict::Atomic);
    }
    assert!((200..500).contains(&atomic), "{atomic} of {} are atomic", histories.len());
    eprintln!("{} random histories judged alike, {atomic} of them atomic", histories.len());
}
