//! Checks of scans, and of values that expire.

use std::collections::{BTreeMap, BTreeSet};

use quorate_world::Violation;

use super::{KeyHistory, Promise, QuorumCheck, expiring::Expiring};

impl QuorumCheck {
    /// Records the start of a write of a value that expires.
    pub(crate) fn expires(&mut self, name: &str, map: &'static str, value: u64, at: i64) {
        let new = || Expiring { map, written: BTreeMap::new() };
        self.expiring.entry(name.to_owned()).or_insert_with(new).written.insert(value, at);
    }

    /// Returns the keys of a map whose values expire.
    pub(crate) fn expiring(&self, map: &'static str) -> impl Iterator<Item = &String> + '_ {
        self.expiring.iter().filter(move |(_, key)| key.map == map).map(|(name, _)| name)
    }

    /// Judges a value that a read, which began at `start`, found under a key. No value of the key lives
    /// longer than `life`, whatever the clocks say.
    pub(crate) fn lives(&self, name: &str, value: u64, start: i64, life: i64) -> Result<(), Violation> {
        let written = self.expiring.get(name).and_then(|key| key.written.get(&value));
        let Some(written) = written else {
            return Err(Violation::new(
                "written",
                format!("key {name}: a read found the value {value}, which no client had written"),
            ));
        };
        if start > written + life {
            let what = format!(
                "key {name}: the value {value} was written at {written} ns, and a read that began at \
                 {start} ns still found it although it had expired"
            );
            return Err(Violation::new("expired", what));
        }
        Ok(())
    }

    /// Judges the keys that a scan returned. The scan began at `start`. `is_within` says whether a key
    /// belongs to the scanned piece of the map. The names in `under_way` are being written.
    pub(crate) fn scanned(
        &self,
        (map, promise): (&'static str, Promise),
        told: &[String],
        start: i64,
        key_of: impl Fn(&str) -> String,
        is_within: impl Fn(&str) -> bool,
        under_way: &BTreeSet<String>,
    ) -> Result<(), Violation> {
        let unique: BTreeSet<&String> = told.iter().collect();
        if unique.len() < told.len() {
            return Err(Violation::new("scan", format!("a scan returned a key twice: {told:?}")));
        }
        if promise == Promise::Written {
            return Ok(());
        }
        let mut keys: BTreeMap<String, Vec<(&String, &KeyHistory)>> = BTreeMap::new();
        for (name, key) in self.keys.iter().filter(|(name, key)| key.map == map && is_within(name)) {
            keys.entry(key_of(name)).or_default().push((name, key));
        }
        for (name, parts) in keys {
            let is_told = unique.contains(&name);
            let lives =
                |(part, key): &(&String, &KeyHistory)| key.is_there(start) && !under_way.contains(*part);
            let is_gone =
                |(part, key): &(&String, &KeyHistory)| key.is_gone(start) && !under_way.contains(*part);
            if !is_told && parts.iter().any(lives) {
                let what = format!(
                    "key {name} has a value, but a scan that began at {start} ns omits the key; its \
                     history is {parts:?}"
                );
                return Err(Violation::new("scan", what));
            }
            // A part that is being written for the first time is not among the known parts.
            let is_written = || under_way.iter().any(|part| key_of(part) == name);
            if is_told && parts.iter().all(is_gone) && !is_written() {
                let what = format!(
                    "key {name} was deleted, but a scan that began at {start} ns returned the key; its \
                     history is {parts:?}"
                );
                return Err(Violation::new("scan", what));
            }
        }
        Ok(())
    }
}

impl KeyHistory {
    /// Whether a value was acknowledged before this time, and no delete was ever sent.
    fn is_there(&self, before: i64) -> bool {
        let writes = || self.seen.iter().filter(|seen| seen.wrote);
        writes().any(|seen| seen.value.is_some() && seen.end.is_some_and(|end| end < before))
            && writes().all(|seen| seen.value.is_some())
    }

    /// Whether no value was written, or a delete was acknowledged before this time that had begun after all
    /// writes of values had ended.
    fn is_gone(&self, before: i64) -> bool {
        let writes = || self.seen.iter().filter(|seen| seen.wrote);
        let values = || writes().filter(|seen| seen.value.is_some());
        if values().next().is_none() {
            return true;
        }
        let deletes =
            writes().filter(|seen| seen.value.is_none() && seen.end.is_some_and(|end| end < before));
        let last = deletes.map(|seen| seen.start).max();
        last.is_some_and(|last| values().all(|seen| seen.end.is_some_and(|end| end < last)))
    }
}
