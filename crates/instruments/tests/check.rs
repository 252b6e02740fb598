//! Tests of `quorate check` as a user runs it.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::command::{CommandOutput, run};

struct Files {
    directory: TempDir,
}

impl Files {
    fn new() -> Files {
        Files { directory: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Checks a file with this text, with these flags.
    fn check(&self, text: &str, flags: &[&str]) -> CommandOutput {
        let path = self.write("history", text);
        let arguments = [&["check", path.to_str().unwrap()], flags].concat();
        run(&arguments)
    }

    fn json(&self, text: &str, flags: &[&str]) -> (Option<i32>, serde_json::Value) {
        let output = self.check(text, &[&["--json"], flags].concat());
        let answer = serde_json::from_str(&output.out).unwrap_or_else(|_| panic!("{output:?}"));
        (output.code, answer)
    }
}

/// The history of 004, figure 1.
const PAPER: &str = "\
W x 8 12 b
W x 10 17 e
W x 15 20 a
R x 20 27 a
R x 22 26 b
W x 27 31 c
R x 30 35 c
W x 33 38 d
R x 36 41 d
";

#[test]
fn the_example_of_the_paper_gets_the_scores_of_the_paper() {
    let files = Files::new();
    let (code, mut answer) = files.json(PAPER, &[]);
    assert_eq!(code, Some(1));
    assert!(answer.as_object_mut().unwrap().remove("seconds").unwrap().is_f64());
    let expected = serde_json::json!({
        "operations": 9, "keys": 1, "atomic": false, "inconsistent_operations": 2, "proportion": 2.0 / 9.0,
        "proportion_values": 0.2, "gamma_ns": 2, "delta_ns": 2, "k": 2, "orphan_reads": 0,
    });
    assert_eq!(answer, expected);

    let page = files.directory.path().join("page.html");
    let output = files.check(PAPER, &["--html", page.to_str().unwrap()]);
    assert_eq!((output.code, output.err.as_str()), (Some(1), ""));
    for part in ["2, proportion 0.222222", "a and b conflict, Γ = 2 ns", "single operations must be removed"]
    {
        assert!(output.out.contains(part), "no {part:?} in {}", output.out);
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains(r#""key":"x""#) && !page.contains("http"),
        "the page has no timeline of the key, or loads something"
    );
}

#[test]
fn exit_codes_report_the_verdict() {
    let files = Files::new();
    assert_eq!(files.json("W x 0 1 a\nR x 2 3 a\n", &[]).0, Some(0));
    // Nothing is known about a history without operations.
    for (empty, reason) in [
        ("", "the file is empty and was skipped"),
        ("[]\n", "the history has no operation"),
        ("{\"host\":\"a\",\"clock_error_ns\":5}\n", "the history has no operation"),
        (
            "{\"client\":1,\"key\":\"x\",\"op\":\"write\",\"value\":1,\"start_ns\":0,\"end_ns\":1,\"outcome\":\"failed\"}\n",
            "all operations failed",
        ),
    ] {
        for flags in [&["--json"][..], &["--json", "--stream"]] {
            let output = files.check(empty, flags);
            output.failed(3, reason);
            let answer: serde_json::Value = serde_json::from_str(&output.out).unwrap();
            assert_eq!((&answer["operations"], &answer["atomic"]), (&0.into(), &"unknown".into()));
        }
    }
    // Sixty concurrent writes of few values, and reads that no order explains. The time limit of zero leaves
    // the search no time.
    let mut hard: String = (0..60).map(|i| format!("W x 0 100 {}\n", i % 6)).collect();
    for i in 0..60 {
        hard += &format!("R x {} {} {}\n", 101 + 2 * i, 102 + 2 * i, i % 6);
    }
    let (code, answer) = files.json(&hard, &["--time-limit", "0"]);
    assert_eq!((code, &answer["atomic"], &answer["gamma_ns"]), (Some(3), &"unknown".into(), &().into()));
    let (code, answer) = files.json("R x 0 1 never\n", &[]);
    assert_eq!(
        (code, &answer["orphan_reads"], &answer["gamma_ns"]),
        (Some(1), &1.into(), &"infinity".into())
    );
}

#[test]
fn an_unreadable_history_is_refused_with_its_file_and_line() {
    let files = Files::new();
    run(&["check", "nowhere.jsonl"]).failed(2, "nowhere.jsonl: No such file");
    run(&["check"]).failed(2, "<FILES>");
    files
        .check("W x 0 1 a\nW x 3 2 b\n", &[])
        .failed(2, "history:2:1: the operation finishes at 2, before its start at 3");
    files.check("W x 0\n", &[]).failed(2, "history:1:6: expected the end in nanoseconds");
    files.check("what is this\n", &[]).failed(2, "expected JSON lines, R|W lines, Jepsen EDN or a WatCA log");
    files.check("{\"client\":1}\n", &[]).failed(2, "history:1:1: expected a field \"start_ns\"");
    let array = "[{\"client\":1,\"key\":\"x\",\"op\":\"write\",\"value\":\"a\",\"start_ns\":0,\"end_ns\":1}]";
    files.check(array, &[]).failed(2, "history:1:1: expected one object a line, found an array");
    files.check(&format!("{array}\n"), &["--format", "json"]).failed(2, "found an array");
    let torn = "{\"client\":1,\"key\":\"x\",\"op\":\"write\",\"value\":\"a\",\"start_ns\":0,\"end_ns\":1,\"outcome\":\"ok\"}\n{\"cli";
    let output = files.check(torn, &[]);
    output.failed(0, "history:2: the last line is incomplete and was skipped");
}

/// A stream of several files gives the same result as a check of all files together.
#[test]
fn a_stream_of_files_is_merged_by_time() {
    let files = Files::new();
    let line = |i: i64, verb: char, value: i64| format!("{verb} x {} {} v{value}\n", 10 * i, 10 * i + 5);
    let writes: String = (0..2_000).map(|i| line(2 * i, 'W', i)).collect();
    let reads: String =
        (0..2_000).map(|i| line(2 * i + 1, 'R', if i % 100 == 99 { i - 1 } else { i })).collect();
    let (writes, reads) = (files.write("writes", &writes), files.write("reads", &reads));
    let mut answers = Vec::new();
    for flags in [&[][..], &["--stream", "--horizon", "1000"]] {
        let paths = ["check", "--json", writes.to_str().unwrap(), reads.to_str().unwrap()];
        let output = run(&[&paths, flags].concat());
        assert!(output.err.is_empty(), "{output:?}");
        let mut answer: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        answer["seconds"].take();
        answers.push(answer);
    }
    assert_eq!(answers[0], answers[1]);
    // Each of the 20 stale reads makes one operation inconsistent: the write of the value that it missed.
    assert_eq!(answers[0]["inconsistent_operations"], 20);
}

/// Two transfers that each read what the other one writes.
const WRITE_SKEW: &str = r#"{"client":1,"txn":[["r","x",[]],["append","y",1]],"start_ns":0,"end_ns":9,"position":1}
{"client":2,"txn":[["r","y",[]],["append","x",2]],"start_ns":0,"end_ns":9,"position":2}
"#;

#[test]
fn transactions_are_judged_against_an_isolation_level() {
    let files = Files::new();
    for (level, code) in [("snapshot", 0), ("serializable", 1), ("strict", 1)] {
        let (found, answer) = files.json(WRITE_SKEW, &["--transactions", level]);
        assert_eq!(found, Some(code), "{answer}");
        assert_eq!((&answer["level"], &answer["asked"]), (&"snapshot".into(), &level.into()));
        assert_eq!(answer["holds"], (code == 0));
        let skew = &answer["anomalies"][0];
        assert_eq!((&skew["name"], &skew["refutes"]), (&"G2-item".into(), &"serializable".into()));
        assert_eq!(skew["transactions"].as_array().unwrap().len(), 2, "{answer}");
        assert_eq!(skew["because"].as_array().unwrap().len(), 2, "{answer}");
    }
    let output = files.check(WRITE_SKEW, &["--transactions", "serializable"]);
    for part in
        ["strongest level that holds: snapshot isolation", "T1 saw x = []", "G2-item: not serializable"]
    {
        assert!(output.out.contains(part), "no {part:?} in {}", output.out);
    }
    let (code, answer) = files.json(WRITE_SKEW, &["--transactions", "serializable", "--by-position"]);
    assert_eq!((code, &answer["level"]), (Some(1), &().into()), "{answer}");
    assert_eq!(answer["anomalies"][0]["name"], "wrong-at-position");

    let jepsen = "{:process 1, :type :invoke, :f :txn, :value [[:append 1 1]]}\n\
                  {:process 1, :type :ok, :f :txn, :value [[:append 1 1]]}\n\
                  {:process 1, :type :invoke, :f :txn, :value [[:r 1 nil]]}\n\
                  {:process 1, :type :ok, :f :txn, :value [[:r 1 [1]]]}\n";
    assert_eq!(files.json(jepsen, &["--transactions", "strict"]).0, Some(0));
    assert_eq!(
        files.json(&jepsen.replace("[:r 1 [1]]", "[:r 1 [2]]"), &["--transactions", "strict"]).0,
        Some(1)
    );

    files.check("", &["--transactions", "strict"]).failed(3, "no transaction took effect");
    files.check("W x 0 1 a\n", &["--transactions", "strict"]).failed(2, "which hold transactions");
    files.check(WRITE_SKEW, &[]).failed(2, "history:1:19: expected a single operation, found a transaction");
    files.check(WRITE_SKEW, &["--transactions", "linear"]).failed(2, "read-uncommitted, read-committed");
    let snapshot = ["--transactions", "snapshot", "--by-position"];
    files.check(WRITE_SKEW, &snapshot).failed(2, "--by-position judges serializable and strict only");
    let broken = WRITE_SKEW.replacen("[\"r\",\"x\",[]]", "[\"r\",\"x\"]", 1);
    files.check(&broken, &["--transactions", "strict"]).failed(2, "history:1:20: expected the value");
    let twice = WRITE_SKEW.replace("\"append\",\"x\",2", "\"append\",\"y\",1");
    files.check(&twice, &["--transactions", "strict"]).failed(2, "value 1 is written to key \"y\" twice");
}
