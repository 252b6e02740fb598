//! Tests of reading and writing histories.

use quorate_history::format::edn::FailedCas;
use quorate_history::format::json::{self, Json};
use quorate_history::format::{Format, ReadError, Reader, Record};
use quorate_history::{
    Action, History, KeyShare, Lines, Operation, Outcome, Recorder, Report, Value, Verdict, check, confidence,
};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

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
            let expected = Record::Operation(operation);
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
fn a_recorder_in_memory_has_every_end() {
    let mut client = Recorder::in_memory(7);
    let write = || Action::Write("v".into());
    let cas = |matched| Action::Cas { expected: None, new: "v".into(), matched };
    let calls = [write(), write(), Action::Read(None), cas(false), write(), write()];
    let calls: Vec<_> = (0..).zip(calls).map(|(at, action)| client.start("x", action, at).unwrap()).collect();
    let Ok([_open, written, read, compared, failed, unknown]) = <[_; 6]>::try_from(calls) else { panic!() };
    client.ok(written, 10).unwrap();
    client.returned(read, Some("v".into()), 11).unwrap();
    client.compared(compared, true, 12).unwrap();
    client.failed(failed, 13).unwrap();
    client.unknown(unknown).unwrap();
    let operation = |action, start, finish, outcome| Operation {
        client: 7,
        key: "x".into(),
        action,
        start,
        finish,
        outcome,
    };
    let expected = [
        operation(write(), 1, Some(10), Outcome::Ok),
        operation(Action::Read(Some("v".into())), 2, Some(11), Outcome::Ok),
        operation(cas(true), 3, Some(12), Outcome::Ok),
        operation(write(), 4, Some(13), Outcome::Failed),
        operation(write(), 5, None, Outcome::Unknown),
        operation(write(), 0, None, Outcome::Unknown),
    ];
    assert_eq!(client.into_operations(), expected);
}

#[test]
fn malformed_lines_are_reported_with_place_and_reason() {
    let good = r#"{"client":1,"key":"x","op":"write","value":"v","start_ns":1,"end_ns":2,"outcome":"ok"}"#;
    assert!(refused(&format!("{good}\n{{\"client\":1,,}}\n")).starts_with("h.jsonl:2:13: "));
    assert!(refused("{\"client\":1}\n").contains("expected a field \"start_ns\""));
    let before = good.replace("\"end_ns\":2", "\"end_ns\":0");
    assert_eq!(
        refused(&format!("{before}\n")),
        "h.jsonl:1:1: the operation finishes at 0, before its start at 1"
    );
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
    // The reader accepts a last line that lacks only its line break.
    assert_eq!(read(&format!("{good}\n{good}")).unwrap().len(), 2);
}

#[test]
fn an_empty_file_is_an_atomic_history_of_nothing() {
    let Report { operations, keys, verdict, .. } = check(&read("").unwrap());
    assert_eq!((operations, keys, verdict), (0, 0, Verdict::Atomic));
}

/// Reads a text of any format and returns its operations as JSON lines.
fn operations(text: &str, failed_cas: FailedCas) -> Result<Vec<String>, ReadError> {
    let first = text.lines().next().expect("a line");
    let format = Format::detect(first).unwrap_or_else(|| panic!("{first:?} looks like no format"));
    let mut reader = Reader::new("h", text.as_bytes(), format.decoder(failed_cas));
    let mut records = Vec::new();
    while reader.read(&mut records)? {}
    let line = |record| match record {
        Record::Operation(operation) => {
            let mut line = Vec::new();
            json::write(&mut line, &operation).expect("memory");
            String::from_utf8(line).expect("text").trim().replace('"', "'")
        }
        Record::Clock { host, error } => format!("{host} ±{error}"),
        Record::Transaction(transaction) => panic!("{transaction:?} among operations"),
    };
    Ok(records.into_iter().map(line).collect())
}

#[track_caller]
fn says(text: &str, expected: &[&str]) {
    assert_eq!(operations(text, FailedCas::Observed).expect("well-formed"), expected);
}

#[track_caller]
fn fails(text: &str, expected: &str) {
    let error = operations(text, FailedCas::Observed).expect_err("malformed").to_string();
    assert_eq!(error, expected);
}

#[test]
fn text_lines() {
    says(
        "W key 1 5 a value\nR  key  6 7\n\nW key 8 9\n",
        &[
            "{'client':1,'key':'key','op':'write','value':'a value','start_ns':1,'end_ns':5,'outcome':'ok'}",
            "{'client':2,'key':'key','op':'read','value':null,'start_ns':6,'end_ns':7,'outcome':'ok'}",
            "{'client':3,'key':'key','op':'delete','start_ns':8,'end_ns':9,'outcome':'ok'}",
        ],
    );
    fails("W k 1 2 v\nX k 1 2 v\n", "h:2:1: expected R or W, found \"X\"");
    fails("W k one 2 v\n", "h:1:5: expected the start in nanoseconds, found \"one\"");
    fails("W k 1\n", "h:1:6: expected the end in nanoseconds");
}

#[test]
fn watca_logs() {
    says(
        "10\tINV\t01\tW\tuser1\tfield0=a b \n11\tINV\tp2\tR\tuser1\n14\tRES\t01\tW\tuser1\n\
         15\tRES\tp2\tR\tuser1\tfield0=a b\n16\tINV\t01\tR\tuser1\n17\tRES\t01\tR\tuser1\t\n\
         18\tINV\t01\tW\tuser1\tlost\n",
        &[
            "{'client':0,'key':'user1','op':'write','value':'field0=a b','start_ns':10,'end_ns':14,'outcome':'ok'}",
            "{'client':1,'key':'user1','op':'read','value':'field0=a b','start_ns':11,'end_ns':15,'outcome':'ok'}",
            "{'client':0,'key':'user1','op':'read','value':null,'start_ns':16,'end_ns':17,'outcome':'ok'}",
            "{'client':0,'key':'user1','op':'write','value':'lost','start_ns':18,'outcome':'unknown'}",
        ],
    );
    fails(
        "10\tINV\t1\tW\tk\tv\n11\tRES\t2\tW\tk\n",
        "h:2:4: expected an earlier INV of the same client, operation and key",
    );
    fails("10\tINV\t1\tQ\tk\n", "h:1:10: expected R or W, found \"Q\"");
}

#[test]
fn jepsen_registers() {
    let events = "[{:process 0, :type :invoke, :f :write, :value 3, :time 120, :index 0}\n\
        {:process 1, :type :invoke, :f :read, :value nil, :time 130}\n\
        {:process :nemesis, :type :info, :f :start, :value \"cut\"}\n\
        {:process 1, :type :ok, :f :read, :value 3, :time 140}\n\
        {:process 0, :type :info, :f :write, :value 3, :time 150, :error :timeout}\n\
        {:process 1, :type :invoke, :f :cas, :value [3 4], :time 160}\n\
        {:process 1, :type :fail, :f :cas, :value [3 4], :time 170}]\n";
    let read =
        "{'client':1,'key':'register','op':'read','value':'3','start_ns':130,'end_ns':140,'outcome':'ok'}";
    let write = "{'client':0,'key':'register','op':'write','value':'3','start_ns':120,'outcome':'unknown'}";
    let cas = "{'client':1,'key':'register','op':'cas','expected':'3','value':'4','matched':";
    let refused = format!("{cas}false,'start_ns':160,'end_ns':170,'outcome':'ok'}}");
    let failed = format!("{cas}true,'start_ns':160,'end_ns':170,'outcome':'failed'}}");
    says(events, &[read, write, &refused]);
    assert_eq!(operations(events, FailedCas::Ignored).unwrap(), [read, write, &failed]);

    // Independent keys, and events without times: the order of the events is their time.
    says(
        "{:type :invoke, :f :read, :value #jepsen.independent/tuple [5 nil], :process 2}\n\
         {:type :invoke, :f :cas, :value [5 [nil 1]], :process 3}\n\
         {:type :ok, :f :cas, :value [5 [nil 1]], :process 3}\n\
         {:type :ok, :f :read, :value [5 1], :process 2}\n",
        &[
            "{'client':3,'key':'5','op':'cas','expected':null,'value':'1','matched':true,'start_ns':2,'end_ns':3,'outcome':'ok'}",
            "{'client':2,'key':'5','op':'read','value':'1','start_ns':1,'end_ns':4,'outcome':'ok'}",
        ],
    );
}

#[test]
fn jepsen_appends_and_sets() {
    says(
        "{:type :invoke, :process 0, :f :txn, :value [[:append 7 1] [:r 8 nil]]}\n\
         {:type :ok, :process 0, :f :txn, :value [[:append 7 1] [:r 8 [2 3]]]}\n\
         {:type :invoke, :process 1, :f :add, :value 4}\n",
        &[
            "{'client':0,'key':'7','op':'append','value':'1','start_ns':1,'end_ns':2,'outcome':'ok'}",
            "{'client':0,'key':'8','op':'read','value':['2','3'],'start_ns':1,'end_ns':2,'outcome':'ok'}",
            "{'client':1,'key':'register','op':'add','value':'4','start_ns':3,'outcome':'unknown'}",
        ],
    );
    fails(
        "{:process 0, :type :invoke, :f :fly}\n",
        "h:1:1: expected :f to be :read, :write, :cas, :append, :add, :remove, :enqueue, :dequeue or :txn, found :fly",
    );
    fails("{:process 0, :type :ok, :f :read}\n", "h:1:1: expected an earlier :invoke of process 0");
    fails("{:process 0, :type :invoke, :f \"r\n", "h:1:34: expected a closing quotation mark");
    fails(&format!("{{:value {}\n", "[".repeat(99_999)), "h:1:41: expected at most 32 levels of nesting");
}

/// B10: checks the verdict on a history that writes one value and reads another, in each format that has
/// numbers.
#[track_caller]
fn verdicts(written: &str, read: &str, expected: Verdict) {
    let json = |op, value, start| {
        let end = start + 1;
        format!(
            "{{\"client\":1,\"key\":\"x\",\"op\":\"{op}\",\"value\":{value},\"start_ns\":{start},\"end_ns\":{end},\"outcome\":\"ok\"}}\n"
        )
    };
    let edn = |op, value| {
        format!(
            "{{:process 0, :type :invoke, :f :{op}, :key 1, :value {value}}}\n{{:process 0, :type :ok, :f :{op}, :key 1, :value {value}}}\n"
        )
    };
    for text in
        [json("write", written, 0) + &json("read", read, 2), edn("write", written) + &edn("read", read)]
    {
        let format = Format::detect(&text).expect("a format");
        let mut history = History::new();
        let mut reader = Reader::new("h", text.as_bytes(), format.decoder(FailedCas::Ignored));
        reader.read_into(&mut history).expect("well-formed");
        assert_eq!(check(&history).verdict, expected, "{text}");
    }
}

#[test]
fn values_are_never_rounded() {
    use Verdict::{Atomic, NotAtomic};
    verdicts("18446744073709551616", "18446744073709551617", NotAtomic);
    verdicts("18446744073709551616", "18446744073709551616", Atomic);
    verdicts("-9223372036854775809", "-9223372036854775810", NotAtomic);
    verdicts("9007199254740993.0", "9007199254740992.0", NotAtomic);
    verdicts("0.1", "0.10000000000000000001", NotAtomic);
    verdicts("1e400", "2e400", NotAtomic);
    verdicts("1", "\"1\"", Atomic);
    verdicts("1", "1.0", NotAtomic);
    verdicts("1", "1e0", NotAtomic);
    verdicts("0", "-0", NotAtomic);
    verdicts("true", "\"true\"", Atomic);
    verdicts("[18446744073709551616, 1]", "[18446744073709551617, 1]", NotAtomic);
    // A number as a key is exact, too, so these two numbers are different keys.
    let keys = r#"{"client":1,"key":18446744073709551616,"op":"write","value":1,"start_ns":0,"end_ns":1}
{"client":1,"key":18446744073709551617,"op":"read","value":null,"start_ns":2,"end_ns":3}
"#;
    assert_eq!(check(&read(keys).unwrap()).verdict, Atomic);
}

#[test]
fn json_errors_name_missing_and_duplicate_fields() {
    let line = |fields: &str| refused(&format!("{{\"client\":1,\"key\":\"x\",{fields}}}\n"));
    let says = |fields: &str, expected: &str| {
        let said = line(fields);
        assert!(said.contains(expected), "{said}");
    };
    says("\"op\":\"read\",\"start_ns\":1,\"end_ns\":2", "null if the operation found nothing");
    says("\"op\":\"write\",\"start_ns\":1,\"end_ns\":2", "null if the write deletes the key");
    says("\"op\":\"write\",\"value\":1,\"value\":2,\"start_ns\":1,\"end_ns\":2", "duplicate field `value`");
    says("\"op\":\"write\",\"value\":[1,null],\"start_ns\":1,\"end_ns\":2", "no null inside a list");
    says("\"op\":\"write\",\"value\":[[1]],\"start_ns\":1,\"end_ns\":2", "no list inside a list");
    says("\"op\":\"write\",\"value\":{\"a\":1},\"start_ns\":1,\"end_ns\":2", "found an object");
    says("\"op\":\"write\",\"value\":1,\"start_ns\":1.0,\"end_ns\":2", "invalid type: floating point");
    says("\"op\":\"write\",\"value\":1,\"start_ns\":99999999999999999999,\"end_ns\":2", "expected i64");
    let array = "[{\"client\":1,\"key\":\"x\",\"op\":\"write\",\"value\":1,\"start_ns\":1,\"end_ns\":2}]\n";
    assert_eq!(Format::detect(array), Some(Format::Json));
    assert_eq!(Format::detect("[\n  {\n    \"client\": 1"), Some(Format::Json));
    assert_eq!(Format::detect("[{:process 0}"), Some(Format::Edn));
    assert!(refused(array).starts_with("h.jsonl:1:1: expected one object a line, found an array"));
    // An incomplete line is refused if it is the only one, with or without a line break.
    assert!(refused(array.trim_end()).contains("found an array"));
    assert!(refused("{\n  \"client\": 1\n}\n").contains("expected a whole object on one line"));
    let deep = format!("{{\"client\":1,\"key\":\"x\",\"op\":\"write\",\"value\":{}1", "[".repeat(200_000));
    assert!(refused(&format!("{deep}\n")).starts_with("h.jsonl:1:"));
    let mut invalid = br#"{"client":1,"key":""#.to_vec();
    invalid.extend([0xff, b'"', b'}', b'\n']);
    let mut reader = Reader::new("h", invalid.as_slice(), Box::<Json>::default());
    let error = reader.read_into(&mut History::new()).expect_err("no text").to_string();
    assert_eq!(error, "h:1:20: expected UTF-8 text");
}

#[test]
fn jepsen_events_that_contradict_are_refused() {
    // The decoder uses all events of a line.
    let write =
        "{'client':0,'key':'register','op':'write','value':'1','start_ns':1,'end_ns':2,'outcome':'ok'}";
    for (open, close) in [("[", "]"), ("(", ")")] {
        says(
            &format!(
                "{open}{{:process 0, :type :invoke, :f :write, :value +1N}} {{:process 0, :type :ok, :f :write, :value 1}}{close}\n"
            ),
            &[write],
        );
    }
    let invoke = "{:process 0, :type :invoke, :f :txn, :value [[:r 1 nil] [:r 2 nil]]}\n";
    let ok = |value: &str| format!("{invoke}{{:process 0, :type :ok, :f :txn, :value {value}}}\n");
    fails(&ok("[[:r 1 [7]]]"), "h:2:1: expected a :value with the 2 steps of the :invoke");
    fails(&ok("nil"), "h:2:1: expected a :value with the 2 steps of the :invoke");
    fails(&ok("[[:r 2 [7]] [:r 1 [8]]]"), "h:2:1: expected key 1, as in the :invoke, found 2");
    fails(&ok("[[:r 1 [7 nil]] [:r 2 [8]]]"), "h:2:1: expected no nil inside a list");
    let read = "{:process 0, :type :invoke, :f :read, :value [5 nil]}\n";
    fails(
        &format!("{read}{{:process 0, :type :ok, :f :read, :value 7}}\n"),
        "h:2:1: expected [key value], as in the :invoke",
    );
    fails(
        &format!("{read}{{:process 0, :type :ok, :f :write, :value [5 7]}}\n"),
        "h:2:1: expected :f :read, as in the :invoke, found :write",
    );
    let timed = "{:process 0, :type :invoke, :f :read, :time 9}\n";
    fails(
        &format!("{timed}{{:process 0, :type :ok, :f :read, :value 7}}\n"),
        "h:2:1: expected a field :time in all events or in none",
    );
    fails(
        "{:process 0, :type :invoke, :f :write, :value 1, :value 2}\n",
        "h:1:1: expected one field :value, found two",
    );
    fails(
        "{:process 0, :type :invoke, :f :write, :value \"a\\qb\"}\n",
        "h:1:50: expected an escape sequence of EDN, found \\q",
    );
    // Two sets are equal in whatever order they are printed. A character equals its code.
    verdicts_of_edn("#{1 2}", "#{2 1}", Verdict::Atomic);
    verdicts_of_edn("{:a 1, :b 2}", "{:b 2, :a 1}", Verdict::Atomic);
    verdicts_of_edn("\"\\u0041\"", "\"A\"", Verdict::Atomic);
}

#[track_caller]
fn verdicts_of_edn(written: &str, read: &str, expected: Verdict) {
    let text = format!(
        "{{:process 0, :type :invoke, :f :write, :value {written}, :key 1}}\n{{:process 0, :type :ok, :f :write, :value {written}, :key 1}}\n\
         {{:process 0, :type :invoke, :f :read, :value nil, :key 1}}\n{{:process 0, :type :ok, :f :read, :value {read}, :key 1}}\n"
    );
    let mut history = History::new();
    let mut reader = Reader::new("h", text.as_bytes(), Format::Edn.decoder(FailedCas::Ignored));
    reader.read_into(&mut history).expect("well-formed");
    assert_eq!(check(&history).verdict, expected, "{text}");
}

/// A file without line breaks is refused before the reader holds all of it.
#[test]
fn a_line_has_a_bound() {
    let endless = std::io::BufReader::new(std::io::repeat(b'x'));
    let mut reader = Reader::new("h", endless, Box::<Json>::default());
    let error = reader.read_into(&mut History::new()).expect_err("endless").to_string();
    assert_eq!(error, "h:1:1: expected a line of at most 256 MiB");
}

/// Reading ends in an answer for any contents of a file.
#[test]
fn no_input_panics() {
    let seeds = [
        "{\"client\":1,\"key\":\"x\",\"op\":\"cas\",\"expected\":\"u\",\"value\":[\"v\"],\"start_ns\":1,\"end_ns\":2,\"outcome\":\"ok\"}\n",
        "R key 1 2 value\nW key 3 4 more\n",
        "10\tINV\t01\tW\tuser1\tv\n14\tRES\t01\tW\tuser1\n",
        "{:process 0, :type :invoke, :f :cas, :value [5 [3 \"é\\\"4\"]], :time 120}\n{:process 0, :type :ok, :f :cas, :value #{1}}\n",
        "INFO  jepsen.util - 4\t:invoke\t:cas\t[3 0]\nINFO  jepsen.util - 4\t:info\t:cas\t:timed-out\n",
    ];
    let mut random = Pcg64::seed_from_u64(7);
    let (mut read, mut refused) = (0, 0);
    for round in 0..20_000 {
        let mut text = seeds[round % seeds.len()].as_bytes().to_vec();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..text.len());
            match random.random_range(0..4) {
                0 => text[at] = random.random(),
                1 if text.len() > 1 => drop(text.remove(at)),
                2 => text.insert(at, b"[]{}\":#,\\ \n0-9"[random.random_range(0..14usize)]),
                _ => text.truncate(at.max(1)),
            }
        }
        for format in [Format::Json, Format::Text, Format::Edn, Format::Watca] {
            let mut history = History::new();
            let mut reader = Reader::new("h", text.as_slice(), format.decoder(FailedCas::Observed));
            match reader.read_into(&mut history) {
                Ok(()) => {
                    read += 1;
                    check(&history);
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(read > 2_000 && refused > 2_000, "{read} read, {refused} refused");
}

#[test]
fn kinds_of_objects_do_not_mix() {
    let mut history = History::new();
    history.push(Operation::write(1, "x", "v", 0, 1)).unwrap();
    let enqueue = Operation::answered(1, "x", Action::Enqueue("v".into()), 2, 3);
    let error = history.push(enqueue.clone()).unwrap_err().to_string();
    assert_eq!(
        error,
        "key \"x\" has the operation enqueue in addition to write or delete, and no single kind of object offers all of them"
    );
    history.push(Operation { key: "y".into(), ..enqueue }).unwrap();
}

/// The interval contains the proportion, is the same for the same draws, and narrows with more keys.
#[test]
fn confidence_by_bootstrap() {
    let keys = |count: u64| -> Vec<KeyShare> {
        (0..count)
            .map(|key| KeyShare { operations: 100, inconsistent: if key % 10 == 0 { 30 } else { 0 } })
            .collect()
    };
    let interval = |count| {
        let mut random = Pcg64::seed_from_u64(1);
        confidence(&keys(count), 1_000, |below| random.random_range(0..below)).expect("several keys")
    };
    let (low, high) = interval(100);
    assert!(low < 0.03 && 0.03 < high && high - low < 0.06, "{low} {high}");
    let (narrow_low, narrow_high) = interval(2_500);
    assert!((narrow_high - narrow_low) * 3.0 < high - low, "{narrow_low} {narrow_high}");
    assert_eq!(interval(100), (low, high));
    assert_eq!(confidence(&keys(1), 1_000, |_| 0), None);
    assert_eq!(Value::from(7), Value::from("7"));
}
