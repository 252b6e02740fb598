//! The judge of transactions: a table of small histories, one or more for each anomaly.
//!
//! A line is `client start end outcome steps`. Steps are `x+1` (append), `x:1,2` (read of a list), `x=1`
//! (write) and `x?1` (read of a register, `-` for nothing).

use quorate_history::format::{Format, Reader};
use quorate_history::transactions::{
    Anomaly, IsolationLevel, PositionReplay, RecordedTransaction, RefusedTransaction, TransactionHistory,
    TransactionReport, judge,
};
use quorate_history::{Action, Outcome, Value};

pub(crate) fn history(script: &str) -> Vec<RecordedTransaction> {
    script.lines().map(str::trim).filter(|line| !line.is_empty()).map(transaction).collect()
}

fn transaction(line: &str) -> RecordedTransaction {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [client, start, end, outcome, steps @ ..] = &words[..] else { panic!("{line}") };
    let (outcome, position) = outcome
        .split_once('@')
        .map_or((*outcome, None), |(outcome, position)| (outcome, Some(position.parse().unwrap())));
    RecordedTransaction {
        client: client.parse().unwrap(),
        steps: steps.iter().map(|step| self::step(step)).collect(),
        start: start.parse().unwrap(),
        finish: end.parse().ok(),
        outcome: match outcome {
            "ok" => Outcome::Ok,
            "failed" => Outcome::Failed,
            "open" => Outcome::Unknown,
            other => panic!("{other}"),
        },
        position,
    }
}

fn step(text: &str) -> (Box<str>, Action) {
    let at = text.find(['+', ':', '=', '?']).unwrap();
    let (key, value) = (&text[..at], &text[at + 1..]);
    let action = match &text[at..=at] {
        "+" => Action::Append(value.into()),
        "=" => Action::Write(value.into()),
        "?" if value == "-" => Action::Read(None),
        "?" => Action::Read(Some(value.into())),
        _ => {
            let elements = value.split(',').filter(|element| !element.is_empty());
            Action::Read(Some(elements.map(Value::from).collect::<Vec<_>>().into()))
        }
    };
    (key.into(), action)
}

pub(crate) fn judged(transactions: &[RecordedTransaction]) -> TransactionReport {
    let mut history = TransactionHistory::new();
    for transaction in transactions {
        history.push(transaction).unwrap();
    }
    judge(&history).unwrap()
}

/// Checks the level of a script, and that the report names exactly these anomalies.
#[track_caller]
fn check(script: &str, level: Option<IsolationLevel>, anomalies: &[Anomaly]) {
    let report = judged(&history(script));
    let found: Vec<Anomaly> = report.anomalies.iter().map(|report| report.anomaly).collect();
    assert_eq!((report.level, &found[..]), (level, anomalies), "{report}");
    for anomaly in &report.anomalies {
        assert!(!anomaly.transactions.is_empty() && !anomaly.because.is_empty(), "{report}");
    }
}

use Anomaly::*;
use IsolationLevel::*;

#[test]
fn serial_histories_are_strict() {
    check("", Some(StrictSerializable), &[]);
    check("1 0 1 ok x+1 x:1\n2 2 3 ok x:1 x+2 x:1,2 y?-", Some(StrictSerializable), &[]);
    check("1 0 1 ok x=1 x?1\n2 2 3 ok x?1 x=2 x?2 y?-", Some(StrictSerializable), &[]);
    // An open transaction may have taken effect, or not.
    check("1 0 - open x+1\n2 5 6 ok x:", Some(StrictSerializable), &[]);
    check("1 0 - open x+1\n2 5 6 ok x:1", Some(StrictSerializable), &[]);
    check("1 0 - open x=1\n2 5 6 ok x?-\n2 7 8 ok x?1", Some(StrictSerializable), &[]);
    // A failed transaction may be tried again with the same value.
    check("1 0 1 failed x+1\n1 2 3 ok x+1\n2 4 5 ok x:1", Some(StrictSerializable), &[]);
    // Intervals that touch are concurrent.
    check("1 0 5 ok x+1\n2 5 6 ok x:\n3 7 8 ok x:1", Some(StrictSerializable), &[]);
}

#[test]
fn g0() {
    check("1 0 9 ok x+1 y+1\n2 0 9 ok x+2 y+2\n3 10 11 ok x:1,2 y:2,1", None, &[G0]);
    check("1 0 9 ok x+1 y+1\n2 0 9 ok x+2 y+2\n3 10 11 ok x:1,2 y:1,2", Some(StrictSerializable), &[]);
}

#[test]
fn g1a_and_dirty_update() {
    check("1 0 1 failed x+1\n2 2 3 ok x:1", Some(ReadUncommitted), &[G1a]);
    check("1 0 1 failed x=1\n2 2 3 ok x?1", Some(ReadUncommitted), &[G1a]);
    check("1 0 1 failed x+1\n2 2 3 ok x+2\n3 4 5 ok x:1,2", Some(ReadUncommitted), &[G1a, DirtyUpdate]);
    check("1 0 1 failed x=1\n2 2 3 ok x?1 x=2", Some(ReadUncommitted), &[G1a, DirtyUpdate]);
    check("1 0 1 failed x+1\n2 2 3 ok x:", Some(StrictSerializable), &[]);
}

#[test]
fn g1b() {
    check("1 0 9 ok x+1 x+2\n2 0 9 ok x:1\n3 10 11 ok x:1,2", Some(ReadUncommitted), &[G1b, GSingle]);
    check("1 0 9 ok x=1 x=2\n2 0 9 ok x?1", Some(ReadUncommitted), &[G1b]);
    check("1 0 9 ok x+1 x:1 x+2\n2 10 11 ok x:1,2", Some(StrictSerializable), &[]);
}

#[test]
fn g1c() {
    check("1 0 9 ok x+1 y:1\n2 0 9 ok y+1 x:1", Some(ReadUncommitted), &[G1c]);
    check("1 0 9 ok x=1 y?1\n2 0 9 ok y=1 x?1", Some(ReadUncommitted), &[G1c]);
    check("1 0 9 ok x=1 y?-\n2 0 9 ok y=1 x?1", Some(StrictSerializable), &[]);
}

#[test]
fn anomalies_within_one_read_are_found() {
    check("1 0 1 ok x=1\n2 2 3 ok x?2", Some(ReadUncommitted), &[UnwrittenValue]);
    check("1 0 1 ok x+1\n2 2 3 ok x:1,7", Some(ReadUncommitted), &[UnwrittenValue]);
    check("1 0 1 ok x+1\n2 2 3 ok x:1,1", None, &[DuplicateElement]);
    check(
        "1 0 9 ok x+1\n2 0 9 ok x+2\n3 10 11 ok x:1,2\n4 10 11 ok x:2,1",
        Some(ReadUncommitted),
        &[IncompatibleOrder],
    );
}

#[test]
fn internal() {
    for (wrong, others) in [
        ("x:1 x+2 x:1", ""),
        ("x+2 x:", ""),
        ("x:1 x:1,2", "2 0 9 ok x+2\n3 0 9 ok x:1,2"),
        ("x?- x:1", "2 0 9 ok x+2\n3 0 9 ok x:1,2"),
        ("x+3 x:1,2", "2 0 9 ok x+2\n3 0 9 ok x:1,2"),
    ] {
        let report = judged(&history(&format!("1 0 9 ok x+1\n{others}\n4 0 9 ok {wrong}")));
        assert!(report.has(Internal) && !report.holds(SnapshotIsolation), "{wrong}: {report}");
    }
    for wrong in ["x?1 x=3 x?1", "x?1 x?2", "x=3 x?-", "x?- x?1"] {
        let report = judged(&history(&format!("1 0 9 ok x=1\n2 0 9 ok x=2\n4 0 9 ok {wrong}")));
        assert!(report.has(Internal), "{wrong}: {report}");
    }
    // A transaction that reads its own later write.
    check("1 0 9 ok x:1 x+1", Some(ReadCommitted), &[Internal]);
    check("1 0 9 ok x?1 x=1", Some(ReadCommitted), &[Internal]);
}

#[test]
fn lost_update() {
    check("1 0 9 ok x?- x=1\n2 0 9 ok x?- x=2", Some(ReadCommitted), &[LostUpdate, G2Item]);
    check("1 0 9 ok x: x+1\n2 0 9 ok x: x+2\n3 10 11 ok x:1,2", Some(ReadCommitted), &[LostUpdate, GSingle]);
    check("1 0 9 ok x?- x=1\n2 0 9 ok x?1 x=2", Some(StrictSerializable), &[]);
}

#[test]
fn read_skew() {
    check(
        "1 0 1 ok x+1 y+1\n2 2 9 ok x+2 y+2\n3 2 9 ok x:1 y:1,2\n4 10 11 ok x:1,2",
        Some(ReadCommitted),
        &[GSingle],
    );
    check("1 0 1 ok x=1 y=1\n2 2 9 ok x?1 x=2 y?1 y=2\n3 2 9 ok x?1 y?2", Some(ReadCommitted), &[GSingle]);
}

#[test]
fn write_skew() {
    check("1 0 9 ok x: y+1\n2 0 9 ok y: x+1", Some(SnapshotIsolation), &[G2Item]);
    check("1 0 9 ok x?- y=1\n2 0 9 ok y?- x=1", Some(SnapshotIsolation), &[G2Item]);
    // Two readers disagree about the order of two writes: the two anti-dependencies are not next to each
    // other.
    check(
        "1 0 9 ok x+1\n2 0 9 ok y+1\n3 0 9 ok x:1 y:\n4 0 9 ok y:1 x:",
        Some(ReadCommitted),
        &[GNonadjacent, G2Item],
    );
}

#[test]
fn sessions_and_time() {
    // A read does not show a write that had ended before the read began.
    check("1 0 1 ok x+1\n2 2 3 ok x:\n3 4 5 ok x:1", Some(Serializable), &[GSingleTime]);
    check("1 0 1 ok x=1\n2 2 3 ok x?-", Some(Serializable), &[GSingleTime]);
    // As above, but one client does both operations. The first ends at the instant at which the second
    // begins, so only the session shows their order.
    check("1 0 5 ok x+1\n1 5 6 ok x:\n3 7 8 ok x:1", Some(Serializable), &[GSingleSession]);
    // elle#21: client 2 reads a write of the first transaction, and then appends the element that the first
    // transaction had read.
    check("1 0 9 ok x:1 y+1\n2 0 1 ok y:1\n2 2 3 ok x+1", Some(Serializable), &[G1cSession]);
    // elle-cli#47: two clients see two blind writes in both orders.
    check(
        "1 0 1 ok x?-\n2 2 3 ok x?-\n1 4 5 ok x=100\n2 6 7 ok x=200\n1 8 9 ok x?200\n2 10 11 ok x?100",
        Some(Serializable),
        &[G0Session, GSingleTime],
    );
    // The same order, shown by time alone: each client does one operation.
    let report = judged(&history("1 0 1 ok x=100\n2 2 3 ok x=200\n3 4 5 ok x?100"));
    assert_eq!(report.level, Some(Serializable), "{report}");
    // Two blind writes whose order only time shows, and a read of a version that had been replaced before the
    // other read began.
    let report = judged(&history("1 0 1 ok x=1\n2 2 3 ok x=2\n3 4 9 ok x?1 y=1\n4 4 5 ok y?-"));
    assert_eq!(report.level, Some(Serializable), "{report}");
}

#[test]
fn elles_example_of_the_paper() {
    check(
        "0 0 1 ok a+1 a+3 a+4 b+2 b+3 b+4 b+5 c+1 c+2
         1 2 9 ok b+8 a:1,3,4
         2 2 9 ok c+4 b:2,3,4,5,8 c:1,2,4 a:1,3,4
         3 2 9 ok d+10 a:1,3,4 b:2,3,4,5 c+3",
        Some(ReadCommitted),
        &[GSingle],
    );
}

#[test]
fn positions_order_registers() {
    let script = |last: &str| format!("1 0 9 ok@1 x=1\n2 0 9 ok@2 x=2 y=1\n3 0 9 ok@3 x?{last} y?1");
    check(&script("2"), Some(StrictSerializable), &[]);
    check(&script("1"), Some(ReadCommitted), &[GSingle]);
}

#[test]
fn unjudgeable_transactions_are_refused() {
    let refused = |script: &str| {
        let mut all = TransactionHistory::new();
        let pushed = history(script).iter().try_for_each(|transaction| all.push(transaction));
        pushed.and_then(|()| judge(&all).map(drop)).unwrap_err().to_string()
    };
    assert!(refused("1 0 1 ok x+1\n2 2 3 ok x+1").contains("value 1 is written to key \"x\" twice"));
    assert!(refused("1 0 1 ok x=1 x=1").contains("twice"));
    assert!(refused("1 0 1 ok x=1\n2 2 3 ok x+1").contains("as a list and as a register"));
    assert!(refused("1 3 1 ok x=1").contains("finishes at 1, before its start at 3"));
    assert!(refused("1 3 - ok x=1").contains("needs a finish time"));
    let other = RecordedTransaction { steps: vec![("x".into(), Action::Delete)], ..transaction("1 0 1 ok") };
    assert_eq!(TransactionHistory::new().push(&other), Err(RefusedTransaction::OtherStep("delete")));
}

fn replayed(script: &str, window: usize) -> Result<TransactionReport, RefusedTransaction> {
    let mut replay = PositionReplay::new(window);
    for transaction in history(script) {
        replay.push(transaction)?;
    }
    replay.finish()
}

#[test]
fn replays_follow_positions() {
    let strict = "1 0 9 ok@5 x=1 l+1\n2 0 9 ok@2 x=2 l+2\n3 0 9 ok@5 x?1 l:2,1\n1 10 11 failed x=9";
    let report = replayed(strict, 9).unwrap();
    assert_eq!((report.level, report.transactions), (Some(StrictSerializable), 3), "{report}");
    let beyond = RefusedTransaction::BeyondWindow { position: 2, applied: 5, window: 0 };
    assert_eq!(replayed(strict, 0).unwrap_err(), beyond);

    let wrong = replayed("1 0 9 ok@1 x=1\n2 0 9 ok@2 x=2\n3 0 9 ok@3 x?1", 9).unwrap();
    assert!(wrong.has(WrongAtPosition) && wrong.level.is_none(), "{wrong}");
    assert!(wrong.to_string().contains("read x = 1; there x held 2, last written at position 2"), "{wrong}");
    let wrong = replayed("1 0 9 ok@1 x+1\n2 0 9 ok@2 x+2\n3 0 9 ok@3 x:1", 9).unwrap();
    assert!(wrong.has(WrongAtPosition), "{wrong}");
    let wrong = replayed("1 0 9 failed@1 x+1\n3 0 9 ok@3 x:1", 9).unwrap();
    assert!(wrong.has(WrongAtPosition), "{wrong}");

    let late = replayed("1 0 1 ok@7 x=1\n2 2 3 ok@6 x?-", 9).unwrap();
    assert_eq!((late.level, late.has(PositionAgainstTime)), (Some(Serializable), true), "{late}");

    // An open transaction takes effect at the first read that shows it.
    let open = "1 0 - open x=1 l+1\n2 0 9 ok@1 x?- l+2\n2 10 11 ok@2 x?1 l:1,2\n2 12 13 ok@3 x?1 l:1,2";
    assert_eq!(replayed(open, 9).unwrap().level, Some(StrictSerializable));
    let undone = format!("{open}\n2 14 15 ok@4 x?-");
    assert!(replayed(&undone, 9).unwrap().has(WrongAtPosition));

    assert_eq!(replayed("1 0 9 ok x=1", 9).unwrap_err(), RefusedTransaction::PositionMissing);
    let twice = replayed("1 0 9 ok@1 x=1\n2 0 9 ok@1 x=2", 9).unwrap_err();
    assert_eq!(twice, RefusedTransaction::PositionTwice(1));
}

/// The session in the documentation is real: the judge prints the report that the page shows.
#[test]
fn the_session_of_the_page_is_real() {
    let page = include_str!("../../../docs/consistency.md");
    let block = |before: &str| {
        let rest = page.split_once(before).expect("the page has this text").1;
        let block =
            rest.split_once("```").expect("a fence begins").1.split_once("```").expect("a fence ends").0;
        block.split_once('\n').expect("a fence has lines").1
    };
    let input = block("## Transactions");
    let mut all = TransactionHistory::new();
    let decoder = Format::detect(input).and_then(Format::transaction_decoder).unwrap();
    Reader::new("doctors.jsonl", input.as_bytes(), decoder)
        .read_transactions(|transaction| all.push(&transaction))
        .unwrap();
    let output = block("and then leaves:");
    let (_, report) = output.split_once("doctors.jsonl\n").unwrap();
    assert_eq!(judge(&all).unwrap().to_string(), report);
}

#[test]
fn both_formats_read_alike() {
    let read = |format: Format, text: &str| {
        let mut all = Vec::new();
        let mut reader = Reader::new("h", text.as_bytes(), format.transaction_decoder().unwrap());
        reader.read_transactions(|one| {
            all.push(one);
            Ok(())
        })?;
        Ok::<_, quorate_history::format::ReadError>(all)
    };
    let json = r#"{"client":1,"txn":[["append","5",1],["read","x",null]],"start_ns":1}
{"client":2,"txn":[["w","x",4],["r","5",[]]],"start_ns":2,"end_ns":4,"outcome":"failed"}
{"client":1,"txn":[["append","5",1],["r","x","4"]],"start_ns":1,"end_ns":3,"position":9}
{"client":3,"txn":[["write","x","7"]],"start_ns":5}
"#;
    let mut expected = history("1 1 3 ok@9 5+1 x?4\n2 2 4 failed x=4 5:\n3 5 - open x=7");
    expected.swap(0, 1);
    assert_eq!(read(Format::Json, json).unwrap(), expected);

    let edn = "[{:type :invoke, :process 1, :f :txn, :value [[:append 5 1] [:r :x]]}\n\
               {:type :invoke, :process 2, :value [[:w :x 4] [:r 5 nil]]} ; no :f\n\
               {:type :ok, :process 1, :f :txn, :value [[:append 5 1] [:r :x \"4\"]]}\n\
               {:type :info, :process :nemesis, :f :kill, :value nil}\n\
               {:type :fail, :process 2, :value [[:w :x 4] [:r 5 []]]}\n\
               {:type :invoke, :process 3, :value [[:w :x 7]]}]\n";
    let all = read(Format::Edn, edn).unwrap();
    let steps = [("5".into(), Action::Append("1".into())), (":x".into(), Action::Read(Some("4".into())))];
    assert_eq!((all.len(), &all[0].steps[..], all[0].start, all[0].finish), (3, &steps[..], 1, Some(3)));
    assert_eq!((all[1].outcome, all[1].start, all[1].finish), (Outcome::Failed, 2, Some(4)));
    assert_eq!((all[2].outcome, all[2].finish), (Outcome::Unknown, None));

    for (format, text, expected) in [
        (Format::Json, "{\"client\":1,\"start_ns\":1}\n", "h:1:1: expected a field \"txn\""),
        (
            Format::Json,
            "{\"client\":1,\"start_ns\":1,\"txn\":[[\"inc\",\"x\",1]]}\n",
            "h:1:33: expected a step",
        ),
        (Format::Edn, "{:type :ok, :value []}\n", "h:1:1: expected an earlier :invoke of process 0"),
        (Format::Edn, "{:type :invoke, :value [[:inc 1]]}\n", "h:1:1: expected [:r key value]"),
        (Format::Edn, "{:type :invoke, :value 3}\n", "h:1:1: expected :value to be a vector"),
        (
            Format::Edn,
            "{:type :invoke, :value [[:w 1 1]]} {:type :ok, :value [[:w 1 2]]}\n",
            "h:1:36: expected the keys and writes of the :invoke",
        ),
    ] {
        let error = read(format, text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// The graph is one cycle through all 20,000 transactions.
#[test]
fn large_components_are_judged_in_time() {
    let count = 20_000;
    let mut script = String::new();
    for index in 0..count {
        let next = (index + 1) % count;
        script += &format!("{index} 0 9 ok k{index}: k{next}+1\n");
    }
    let report = judged(&history(&script));
    assert_eq!(report.level, Some(SnapshotIsolation), "{} anomalies", report.anomalies.len());
    assert!(report.has(G2Item) && report.to_string().contains("more such steps lead back to"));
}
