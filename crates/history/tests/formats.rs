//! Files in and out.

use quorate_history::format::json::{self, Json};
use quorate_history::format::{ReadError, Reader};
use quorate_history::{Action, History, Lines, Operation, Outcome, Recorder, Report, Verdict, check};

fn read(text: &str) -> Result<History, ReadError> {
    let mut history = History::new();
    Reader::new("h.jsonl", text.as_bytes(), Box::<Json>::default()).read_into(&mut history)?;
    Ok(history)
}

fn refused(text: &str) -> String {
    read(text).expect_err("malformed").to_string()
}

#[test]
fn json_lines_round_trip() {
    let actions = [
        Action::Read(None),
        Action::Read(Some("v".into())),
        Action::Read(Some(vec!["a".into(), "b".into()].into())),
        Action::Write("v\"\n∅".into()),
        Action::Cas { expected: None, new: "v".into(), matched: false },
        Action::Cas { expected: Some("u".into()), new: "v".into(), matched: true },
        Action::Delete,
        Action::Append("x".into()),
        Action::Add("x".into()),
        Action::Remove("x".into()),
        Action::Enqueue("x".into()),
        Action::Dequeue(Some("x".into())),
    ];
    for action in actions {
        for (finish, outcome) in
            [(Some(9), Outcome::Ok), (Some(9), Outcome::Failed), (None, Outcome::Unknown)]
        {
            let operation =
                Operation { client: 3, key: "k".into(), action: action.clone(), start: -4, finish, outcome };
            let mut line = Vec::new();
            json::write(&mut line, &operation).unwrap();
            let mut records = Vec::new();
            let mut reader = Reader::new("h", line.as_slice(), Box::<Json>::default());
            while reader.read(&mut records).unwrap() {}
            let expected = quorate_history::format::Record::Operation(operation);
            assert_eq!(records, [expected], "{}", String::from_utf8_lossy(&line));
        }
    }
}

#[test]
fn a_killed_client_leaves_a_write_of_unknown_outcome() {
    let mut text = Vec::new();
    let mut client = Recorder::new(1, Lines::new(&mut text, "a", 50).unwrap());
    let call = client.start("x", Action::Write("v1".into()), 10).unwrap();
    client.ok(call, 20).unwrap();
    let call = client.start("x", Action::Read(None), 30).unwrap();
    client.returned(call, Some("v1".into()), 40).unwrap();
    let _lost = client.start("x", Action::Write("v2".into()), 50).unwrap();
    drop(client);
    let mut other = Recorder::new(2, Lines::new(&mut text, "b", 7).unwrap());
    let call = other.start("x", Action::Read(None), 60).unwrap();
    other.returned(call, Some("v2".into()), 70).unwrap();
    let _unanswered = other.start("x", Action::Read(None), 80).unwrap();
    drop(other);

    let history = read(std::str::from_utf8(&text).unwrap()).unwrap();
    let report = check(&history);
    assert_eq!((report.verdict, report.operations, report.orphan_reads), (Verdict::Atomic, 4, 0));
    assert_eq!((history.left_out(), history.clock_error()), (1, 57));
}

#[test]
fn malformed_lines_say_where_and_what() {
    let good = r#"{"client":1,"key":"x","op":"write","value":"v","start_ns":1,"end_ns":2,"outcome":"ok"}"#;
    assert!(refused(&format!("{good}\n{{\"client\":1,,}}\n")).starts_with("h.jsonl:2:13: "));
    assert!(refused("{\"client\":1}\n").contains("expected a field \"start_ns\""));
    let before = good.replace("\"end_ns\":2", "\"end_ns\":0");
    assert_eq!(refused(&format!("{before}\n")), "h.jsonl:1:1: finish 0 is before start 1");
    let far = good.replace("\"end_ns\":2", "\"end_ns\":9000000000000000000");
    assert!(refused(&format!("{far}\n")).contains("out of range"));
    let verb = good.replace("write", "wriet");
    assert!(refused(&format!("{verb}\n")).contains("found \"wriet\""));
    assert!(refused("\u{feff}\n").starts_with("h.jsonl:1:1: "));
}

#[test]
fn a_torn_last_line_is_skipped_and_reported() {
    let good = r#"{"client":1,"key":"x","op":"write","value":"v","start_ns":1,"end_ns":2,"outcome":"ok"}"#;
    let text = format!("{good}\n{}", &good[..40]);
    let mut history = History::new();
    let mut reader = Reader::new("h", text.as_bytes(), Box::<Json>::default());
    reader.read_into(&mut history).unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!(reader.torn().unwrap().to_string(), "h:2: the last line is incomplete and was skipped");
    // Complete but for its line break, it counts.
    assert_eq!(read(&format!("{good}\n{good}")).unwrap().len(), 2);
}

#[test]
fn an_empty_file_is_an_atomic_history_of_nothing() {
    let Report { operations, keys, verdict, .. } = check(&read("").unwrap());
    assert_eq!((operations, keys, verdict), (0, 0, Verdict::Atomic));
}
