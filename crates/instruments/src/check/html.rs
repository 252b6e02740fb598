//! The HTML page: timelines of the worst keys, which the reader can zoom. The page is one file and loads
//! nothing.

use std::collections::BTreeSet;

use quorate_history::{Action, History, KeyHistory, KeyReport, Operation, Report, inconsistent_values};
use serde_json::{Value, json};

use super::table::{time, verdict};

/// Largest number of operations drawn for a key. They are the operations nearest to the witness.
const OPERATIONS_MAX: usize = 5_000;

const PAGE: &str = include_str!("timeline.html");

pub(super) fn page(history: &History, report: &Report, top: usize) -> String {
    let find = |name: &str| history.keys().iter().find(|key| key.key() == name);
    let worst = report.suspects.iter().take(top).filter_map(|key| Some((find(&key.key)?, Some(key))));
    let mut keys: Vec<Value> = worst.map(|(key, report)| timeline(key, report)).collect();
    if keys.is_empty() {
        // All keys are atomic, so the page shows the keys with the most operations.
        let mut busiest: Vec<&KeyHistory> = history.keys().iter().collect();
        busiest.sort_by_key(|key| std::cmp::Reverse(key.len()));
        keys.extend(busiest.into_iter().take(top).map(|key| timeline(key, None)));
    }
    let data = json!({
        "operations": report.operations,
        "keys": report.keys,
        "verdict": verdict(report.verdict),
        "proportion": report.proportion(),
        "gamma": report.measures.map(|measures| time(measures.gamma)),
        "timelines": keys,
    });
    // A browser ends a script at the first "</", even inside a string.
    PAGE.replace("/*DATA*/null", &data.to_string().replace("</", "<\\/"))
}

fn timeline(key: &KeyHistory, report: Option<&KeyReport>) -> Value {
    let mut operations: Vec<Operation> = key.operations().collect();
    operations.sort_by_key(|operation| (operation.start, operation.finish));
    let shown = operations.len();
    let witness = report.and_then(|report| report.witness.as_ref());
    if operations.len() > OPERATIONS_MAX {
        let instant = witness.and_then(|witness| {
            witness.evidence_operations().into_iter().find_map(|operation| operation.start)
        });
        let middle =
            instant.map_or(0, |instant| operations.partition_point(|operation| operation.start < instant));
        let first = middle.saturating_sub(OPERATIONS_MAX / 2).min(operations.len() - OPERATIONS_MAX);
        operations = operations.split_off(first);
        operations.truncate(OPERATIONS_MAX);
    }
    let wrong: BTreeSet<Option<String>> = match key.has_distinct_writes() {
        true => inconsistent_values(key).into_iter().map(|value| value.map(ToString::to_string)).collect(),
        false => BTreeSet::new(),
    };
    let origin = operations.first().map_or(0, |operation| operation.start);
    let rows: Vec<Value> = operations
        .iter()
        .map(|operation| {
            let (verb, value) = verb_and_value(&operation.action);
            let is_wrong = key.has_distinct_writes() && wrong.contains(&value);
            let finish = operation.finish.map(|finish| finish - origin);
            json!([operation.client, verb, value, operation.start - origin, finish, is_wrong])
        })
        .collect();
    json!({
        "key": key.key(),
        "verdict": report.map_or("yes", |report| verdict(report.verdict)),
        "gamma": report.and_then(|report| report.measures).map(|measures| time(measures.gamma)),
        "inconsistent": report.and_then(|report| report.measures).map(|measures| measures.inconsistent_operations),
        "of": shown,
        "zones": key.has_distinct_writes(),
        "witness": witness.map(ToString::to_string),
        "origin": origin.to_string(),
        "operations": rows,
    })
}

fn verb_and_value(action: &Action) -> (&'static str, Option<String>) {
    let value = match action {
        Action::Read(value) | Action::Dequeue(value) => value.as_ref().map(ToString::to_string),
        Action::Write(value)
        | Action::Append(value)
        | Action::Add(value)
        | Action::Remove(value)
        | Action::Enqueue(value) => Some(value.to_string()),
        Action::Cas { expected, new, matched } => {
            let expected = expected.as_ref().map_or_else(|| "∅".into(), ToString::to_string);
            Some(format!("{expected}→{new}{}", if *matched { "" } else { " refused" }))
        }
        Action::Delete => None,
    };
    (action.name(), value)
}
