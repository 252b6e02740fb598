//! The stored results of one run: one JSON object on each line.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    path::Path,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::store::CELLS;

/// One run of a figure.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Record {
    /// The figure, as `SOURCE/FIGURE`.
    pub figure: String,
    /// The store of the run; `quorate` if the figure started its own.
    #[serde(default = "own_store", skip_serializing_if = "is_own_store")]
    pub store: String,
    /// The end of the run, in seconds since 1970.
    pub at: u64,
    /// The version of the program.
    pub version: String,
    /// The command that repeats the run.
    pub command: String,
    /// The machine of the run.
    pub machine: Machine,
    /// The settings of the run, by name.
    pub setting: BTreeMap<String, f64>,
    /// The values that claims are judged by.
    pub values: BTreeMap<String, f64>,
    /// Curves, as points.
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
    /// The standard errors of the points of those curves that have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, Vec<f64>>,
    /// Marked instants with their texts, in the unit of the curves' first axis.
    pub marks: Vec<(f64, String)>,
    /// The check that every acknowledged row is there once.
    pub account: RowAudit,
}

/// The machine of a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    /// The name of the machine's processors.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
}

/// The result of looking for the rows that a run had acknowledged.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct RowAudit {
    /// Number of acknowledged rows.
    pub acknowledged: u64,
    /// Number of acknowledged rows that are missing.
    pub lost: u64,
    /// Number of rows that are there more than once.
    pub doubled: u64,
}

impl Record {
    /// Creates an empty record of this figure, for a run that ends now on this machine.
    pub fn new(figure: &str, command: String) -> Record {
        Record {
            figure: figure.to_owned(),
            store: own_store(),
            at: now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            machine: Machine::here(),
            setting: BTreeMap::new(),
            values: BTreeMap::new(),
            series: BTreeMap::new(),
            errors: BTreeMap::new(),
            marks: Vec::new(),
            account: RowAudit::default(),
        }
    }
}

impl RowAudit {
    /// Whether no row is lost or doubled.
    pub fn is_complete(self) -> bool {
        self.lost == 0 && self.doubled == 0
    }
}

impl Machine {
    /// Describes the machine of this process.
    pub fn here() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Machine {
            processor: name.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            processors: thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

fn own_store() -> String {
    CELLS.to_owned()
}

fn is_own_store(name: &str) -> bool {
    name == CELLS
}

/// Returns the records of a figure by store. Our own store comes first, even without records.
pub fn by_store(records: &[Record], figure: &str) -> Vec<(String, Vec<Record>)> {
    let mut stores = vec![(own_store(), Vec::new())];
    for record in records.iter().filter(|record| record.figure == figure) {
        match stores.iter_mut().find(|(name, _)| *name == record.store) {
            Some((_, own)) => own.push(record.clone()),
            None => stores.push((record.store.clone(), vec![record.clone()])),
        }
    }
    stores
}

/// Returns the name of a figure on a store.
pub fn titled(figure: &str, store: &str) -> String {
    if is_own_store(store) { figure.to_owned() } else { format!("{figure} on {store}") }
}

/// Returns the present time, in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Appends a record to a file, and creates the file if needed.
pub fn append(path: &Path, record: &Record) -> Result<()> {
    let line = serde_json::to_string(record)? + "\n";
    open(path)?.write_all(line.as_bytes()).with_context(|| path.display().to_string())
}

/// Opens a file for appending records. Called before a run, so that a bad path fails before the work.
pub fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| path.display().to_string())
}

/// Returns all records of a file; none if the file does not exist.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| path.display().to_string())?,
    };
    let numbered = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    numbered
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| {
                format!("cannot read a result of the lab in {}, line {number}", path.display())
            })
        })
        .collect()
}

#[cfg(test)]
impl Record {
    pub(crate) fn sample() -> Record {
        Record {
            figure: String::from("002/figure-16"),
            store: own_store(),
            at: 1_800_000_000,
            version: String::from("0.1.0"),
            command: String::from("quorate lab run 002/figure-16"),
            machine: Machine { processor: String::from("a <processor>"), processors: 2 },
            setting: BTreeMap::from([(String::from("clients"), 8.0)]),
            values: BTreeMap::new(),
            series: BTreeMap::from([(String::from("writes"), vec![(0.0, 1.0), (0.1, 2.0)])]),
            errors: BTreeMap::new(),
            marks: vec![(0.05, String::from("lead router killed"))],
            account: RowAudit { acknowledged: 2, lost: 0, doubled: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_results_are_read_back() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("results.jsonl");
        assert_eq!(read(&path).unwrap(), []);
        let other = Record { at: 1, ..Record::sample() };
        append(&path, &Record::sample()).unwrap();
        append(&path, &other).unwrap();
        assert_eq!(read(&path).unwrap(), [Record::sample(), other.clone()]);
        let elsewhere = Record { store: String::from("cassandra"), ..Record::sample() };
        append(&path, &elsewhere).unwrap();
        let stores = by_store(&read(&path).unwrap(), &other.figure);
        assert_eq!(
            stores,
            [(own_store(), vec![Record::sample(), other]), (String::from("cassandra"), vec![elsewhere])]
        );
        assert_eq!(by_store(&[], "002/figure-16"), [(own_store(), Vec::new())]);
        fs::write(&path, "{}\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().ends_with("line 1"));
    }
}
