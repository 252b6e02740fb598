//! Partial quorums: the answers about each key keep the promise of its map, and at the end replicas hold all
//! acknowledged writes.
//!
//! Values are written once, so a read shows which write it saw. A deleted key reads like a key that was never
//! written. The judges look at all pairs of operations of a key; the history crate judges the order of atomic
//! operations.

mod expiring;
mod more;

use std::collections::{BTreeMap, BTreeSet};

use quorate_history::{self as history, Action, History, Operation, Outcome, Verdict};
use quorate_protocol::{
    ProcessId,
    partial::{CellNumber, Entry, Layout, MapId, Stamp, Token, Value},
};
use quorate_world::Violation;

/// A promise about the operations on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// A read returns a value that some user wrote, or nothing.
    Written,
    /// A read returns no value that was replaced before it began.
    Regular,
    /// The key behaves like one register in one place.
    Atomic,
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    /// Write this value, or delete.
    Write(Option<u64>),
    Read,
    /// Add to a counter.
    Add(i64),
}

/// An operation that has no answer yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingOperation {
    pub(crate) user: u64,
    pub(crate) map: &'static str,
    pub(crate) promise: Promise,
    pub(crate) key: String,
    pub(crate) deed: OperationKind,
    pub(crate) at: i64,
    pub(crate) coordinator: ProcessId,
    /// The latest life of a cell that the coordinator knew of when it got the request.
    pub(crate) latest: CellNumber,
}

/// An operation as its user saw it.
#[derive(Clone, Debug)]
struct ObservedOperation {
    user: u64,
    start: i64,
    /// The time of the answer; `None` for a write of unknown outcome.
    end: Option<i64>,
    wrote: bool,
    /// The value that was written or read.
    value: Option<u64>,
}

/// An acknowledged write.
#[derive(Clone, Debug)]
struct Acknowledged {
    stamp: Stamp,
    value: Option<u64>,
    coordinator: ProcessId,
    /// Whether the write was acknowledged at a quorum level: any two sets of replicas that acknowledge at
    /// this level have a replica in common.
    quorum: bool,
    /// The latest life of any cell that the coordinator knew of when it got the request. Later lives may have
    /// replaced a cell that took the write.
    latest: CellNumber,
}

/// The history of a key.
#[derive(Debug)]
struct KeyHistory {
    map: &'static str,
    promise: Promise,
    seen: Vec<ObservedOperation>,
    acknowledged: Vec<Acknowledged>,
}

impl KeyHistory {
    /// Whether a delete replaced a write, or may have replaced it.
    fn is_deleted_after(&self, write: &Acknowledged) -> bool {
        let above = |it: &Acknowledged| it.value.is_none() && it.stamp >= write.stamp;
        let unknown = |seen: &ObservedOperation| seen.wrote && seen.value.is_none() && seen.end.is_none();
        self.acknowledged.iter().any(above) || self.seen.iter().any(unknown)
    }
}

/// The history of all keys, and facts about the coordinators that wrote the keys.
#[derive(Debug, Default)]
pub(crate) struct QuorumCheck {
    keys: BTreeMap<String, KeyHistory>,
    stamps: BTreeSet<Stamp>,
    /// Coordinators that lost all their hints, or gave up some.
    forgetful: BTreeSet<ProcessId>,
    expiring: BTreeMap<String, expiring::Expiring>,
}

impl QuorumCheck {
    fn key(&mut self, asked: &PendingOperation) -> &mut KeyHistory {
        let new =
            || KeyHistory { map: asked.map, promise: asked.promise, seen: vec![], acknowledged: vec![] };
        self.keys.entry(asked.key.clone()).or_insert_with(new)
    }

    fn see(&mut self, asked: &PendingOperation, wrote: bool, value: Option<u64>, end: Option<i64>) {
        let seen = ObservedOperation { user: asked.user, start: asked.at, end, wrote, value };
        self.key(asked).seen.push(seen);
    }

    /// Records an acknowledged write.
    pub(crate) fn wrote(
        &mut self,
        asked: &PendingOperation,
        value: Option<u64>,
        (stamp, quorum): (Stamp, bool),
        now: i64,
    ) -> Result<(), Violation> {
        self.stamped(asked, stamp)?;
        self.see(asked, true, value, Some(now));
        let PendingOperation { coordinator, latest, .. } = *asked;
        self.key(asked).acknowledged.push(Acknowledged { stamp, value, coordinator, quorum, latest });
        Ok(())
    }

    /// Records the stamp of a write. No other write may have this stamp.
    pub(crate) fn stamped(&mut self, asked: &PendingOperation, stamp: Stamp) -> Result<(), Violation> {
        if self.stamps.insert(stamp) {
            return Ok(());
        }
        let what = format!("a write of key {} has stamp {stamp:?}, which another write has, too", asked.key);
        Err(Violation::new("one stamp", what))
    }

    /// Records the answer to a read.
    pub(crate) fn read(&mut self, asked: &PendingOperation, value: Option<u64>, now: i64) {
        self.see(asked, false, value, Some(now));
    }

    /// Records a write of unknown outcome.
    pub(crate) fn unknown(&mut self, asked: &PendingOperation) {
        if let OperationKind::Write(value) = asked.deed {
            self.see(asked, true, value, None);
        }
    }

    /// Records that this coordinator ended and its hints were lost, or that it reported the loss of some
    /// hints.
    pub(crate) fn forgets(&mut self, coordinator: ProcessId) {
        self.forgetful.insert(coordinator);
    }

    /// Returns the keys of a map that any user touched.
    pub(crate) fn keys(&self, map: &'static str) -> impl Iterator<Item = &String> + '_ {
        self.keys.iter().filter(move |(_, key)| key.map == map).map(|(name, _)| name)
    }

    /// Judges the entries that the owners of a key hold at the end. `equal` says whether a repair or
    /// comparison has made the owners' entries equal.
    pub(crate) fn held(
        &self,
        name: &str,
        equal: bool,
        held: &[(CellNumber, Entry)],
    ) -> Result<(), Violation> {
        let Some(key) = self.keys.get(name) else { return Ok(()) };
        let violation = |rule, write: &Acknowledged| {
            Err(Violation::new(
                rule,
                format!(
                    "the write {write:?} of key {name} was acknowledged, but the owners of the key hold \
                     {held:?}"
                ),
            ))
        };
        for write in &key.acknowledged {
            // A deleted key may be forgotten once all owners have the deletion.
            let forgotten = key.is_deleted_after(write);
            let holds =
                |entry: &Entry| entry.newest() >= write.stamp || forgotten && *entry == Entry::nothing();
            let holders = held.iter().filter(|(_, entry)| holds(entry)).count();
            if write.quorum && key.promise != Promise::Written && holders * 2 <= held.len() {
                return violation("durable", write);
            }
            // A write at a smaller level may be lost with the only owner that took it, once a later life has
            // replaced that owner.
            let may_be_lost = !write.quorum && held.iter().any(|(owner, _)| *owner > write.latest);
            let everywhere = equal && !may_be_lost || !self.forgetful.contains(&write.coordinator);
            if holders < held.len() && everywhere {
                return violation("hints", write);
            }
            let differs = |(_, entry): &&(CellNumber, Entry)| {
                entry.newest() == write.stamp && number(&entry.value(0)) != write.value
            };
            if held.iter().any(|it| differs(&it)) {
                return violation("content", write);
            }
        }
        let differ = held.windows(2).any(|pair| pair[0].1 != pair[1].1);
        if differ && (equal || self.forgetful.is_empty()) {
            return Err(Violation::new(
                "convergence",
                format!("the owners of key {name} hold different entries at the end: {held:?}"),
            ));
        }
        Ok(())
    }

    /// Judges all answers that users received.
    pub(crate) fn judge(&self) -> Result<(), Violation> {
        let (mut atomic, mut regular) = (History::new(), History::new());
        for (name, key) in &self.keys {
            check_reads(name, key)?;
            let deletes = key.seen.iter().any(|seen| seen.wrote && seen.value.is_none());
            let history = match key.promise {
                Promise::Atomic => &mut atomic,
                // Without an order of writes, the judge cannot tell one deletion from another.
                Promise::Regular if !deletes => &mut regular,
                Promise::Regular | Promise::Written => continue,
            };
            for operation in key.seen.iter().map(|seen| operation(name, seen)) {
                history.push(operation).expect("an operation begins before its end");
            }
        }
        let report = history::check(&atomic);
        if report.verdict != Verdict::Atomic {
            return Err(Violation::new(
                "atomic",
                format!("the history of keys is {:?}: {report}", report.verdict),
            ));
        }
        let report = history::check(&regular);
        let bad = |it: &history::Measures| it.irregular_reads + it.sessions.read_your_writes > 0;
        if report.measures.as_ref().is_some_and(bad) {
            return Err(Violation::new(
                "sessions",
                format!("the history of keys has the measures {:?}: {report}", report.measures),
            ));
        }
        Ok(())
    }
}

/// Checks that reads return values whose write began before the read ended. In maps that promise it, the
/// value of a read must also not have been replaced before the read began.
fn check_reads(name: &str, key: &KeyHistory) -> Result<(), Violation> {
    let writes = || key.seen.iter().filter(|seen| seen.wrote);
    for read in key.seen.iter().filter(|seen| !seen.wrote) {
        let began = |write: &&ObservedOperation| write.value == read.value && Some(write.start) <= read.end;
        // An unwritten key counts as a key whose write ended before all operations.
        let unwritten = read.value.is_none().then_some(Some(i64::MIN));
        let mut ends = writes().filter(began).map(|write| write.end).chain(unwritten).peekable();
        if ends.peek().is_none() {
            return Err(Violation::new(
                "written",
                format!("key {name}: no client had written the value that the read {read:?} returned"),
            ));
        }
        let replaced = |end: Option<i64>| {
            let between = |write: &ObservedOperation| write.end.is_some_and(|end| end < read.start);
            end.is_some_and(|end| writes().any(|write| end < write.start && between(write)))
        };
        if key.promise != Promise::Written && ends.all(replaced) {
            return Err(Violation::new(
                "regular",
                format!(
                    "key {name}: the read {read:?} returned a value that had been replaced before the read \
                     began; the operations on the key are {:?}",
                    key.seen
                ),
            ));
        }
    }
    Ok(())
}

fn operation(name: &str, seen: &ObservedOperation) -> Operation {
    let action = match (seen.wrote, seen.value) {
        (true, Some(value)) => Action::Write(value.into()),
        (true, None) => Action::Delete,
        (false, value) => Action::Read(value.map(Into::into)),
    };
    let outcome = if seen.end.is_some() { Outcome::Ok } else { Outcome::Unknown };
    Operation { client: seen.user, key: name.into(), action, start: seen.start, finish: seen.end, outcome }
}

/// Returns the number that a value contains.
pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Nothing => None,
        Value::String(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        Value::Hash(_) => Some(u64::MAX),
    }
}

/// Returns the owners of a key by the definition of the ring: all tokens in order from the key's token on,
/// each cell at its first token.
pub(crate) fn owners(layout: &Layout, map: MapId, key: &[u8]) -> Vec<CellNumber> {
    let Some(settings) = layout.map(map) else { return Vec::new() };
    let token = Token::of(map, key);
    let mut places = Vec::new();
    for (cell, member) in layout.cells() {
        places.extend(member.tokens.iter().map(|it| (it.0.wrapping_sub(token.0), cell, member.site)));
    }
    places.sort_unstable();
    let mut taken = Vec::new();
    for (_, cell, site) in places {
        let at_site = taken.iter().filter(|(_, it)| *it == site).count();
        if at_site < settings.copies.at(site) && taken.iter().all(|(it, _)| *it != cell) {
            taken.push((cell, site));
        }
    }
    taken.into_iter().map(|(cell, _)| cell).collect()
}

#[cfg(test)]
mod tests {
    use quorate_protocol::Incarnation;

    use super::*;

    const ME: ProcessId = ProcessId { node: 1, incarnation: Incarnation(1) };

    fn asked(promise: Promise, deed: OperationKind, at: i64) -> PendingOperation {
        let latest = CellNumber(3);
        PendingOperation {
            user: at as u64,
            map: "m",
            promise,
            key: "k".into(),
            deed,
            at,
            coordinator: ME,
            latest,
        }
    }

    fn stamp(time: u64) -> Stamp {
        Stamp { time, cell: CellNumber(1) }
    }

    fn write(check: &mut QuorumCheck, promise: Promise, value: Option<u64>, (at, end): (i64, i64)) {
        check
            .wrote(&asked(promise, OperationKind::Write(value), at), value, (stamp(at as u64), true), end)
            .unwrap();
    }

    fn rule(result: Result<(), Violation>) -> Option<&'static str> {
        result.err().map(|violation| violation.rule)
    }

    /// Returns the broken rule if a read returns `value` after 7, then 8, were written.
    fn found(promise: Promise, value: Option<u64>) -> Option<&'static str> {
        let mut check = QuorumCheck::default();
        write(&mut check, promise, Some(7), (10, 20));
        write(&mut check, promise, Some(8), (30, 40));
        check.read(&asked(promise, OperationKind::Read, 50), value, 60);
        rule(check.judge())
    }

    #[test]
    fn a_read_of_what_was_replaced_is_found() {
        for promise in [Promise::Regular, Promise::Atomic] {
            assert_eq!(found(promise, Some(8)), None);
            assert_eq!(found(promise, Some(7)), Some("regular"));
            assert_eq!(found(promise, None), Some("regular"));
            assert_eq!(found(promise, Some(9)), Some("written"));
        }
        assert_eq!(found(Promise::Written, Some(7)), None);
        assert_eq!(found(Promise::Written, Some(9)), Some("written"));
    }

    #[test]
    fn a_deleted_value_that_comes_back_is_found() {
        let mut check = QuorumCheck::default();
        write(&mut check, Promise::Regular, Some(7), (10, 20));
        write(&mut check, Promise::Regular, None, (30, 40));
        check.read(&asked(Promise::Regular, OperationKind::Read, 50), None, 60);
        assert_eq!(rule(check.judge()), None);
        check.read(&asked(Promise::Regular, OperationKind::Read, 70), Some(7), 80);
        assert_eq!(rule(check.judge()), Some("regular"));
    }

    #[test]
    fn reads_that_go_back_are_regular_and_not_atomic() {
        for (promise, expected) in [(Promise::Regular, None), (Promise::Atomic, Some("atomic"))] {
            let mut check = QuorumCheck::default();
            write(&mut check, promise, Some(7), (10, 20));
            check.unknown(&asked(promise, OperationKind::Write(Some(8)), 30));
            check.read(&asked(promise, OperationKind::Read, 40), Some(8), 50);
            check.read(&asked(promise, OperationKind::Read, 60), Some(7), 70);
            assert_eq!(rule(check.judge()), expected);
        }
    }

    /// Returns the verdict on a scan that began at 50, of a hash whose field `a` was written and whose field
    /// `b` was deleted.
    fn scan(told: &[&str], deletes_a: bool, under_way: &[&str]) -> Option<&'static str> {
        let mut check = QuorumCheck::default();
        let mut write = |name: &str, value, (at, end): (i64, i64)| {
            let asked = PendingOperation {
                key: name.into(),
                ..asked(Promise::Regular, OperationKind::Write(value), at)
            };
            check.wrote(&asked, value, (stamp(at as u64), true), end).unwrap();
        };
        write("h.a", Some(7), (10, 20));
        write("h.b", Some(8), (11, 20));
        write("h.b", None, (30, 40));
        if deletes_a {
            write("h.a", None, (31, 40));
        }
        let told: Vec<String> = told.iter().map(|it| String::from(*it)).collect();
        let under_way = under_way.iter().map(|it| String::from(*it)).collect();
        let key = |name: &str| name.split('.').next().unwrap().to_owned();
        rule(check.scanned(("m", Promise::Regular), &told, 50, key, |_| true, &under_way))
    }

    #[test]
    fn a_scan_that_omits_a_hash_or_tells_a_deleted_one_is_found() {
        assert_eq!((scan(&["h"], false, &[]), scan(&[], true, &[])), (None, None));
        assert_eq!(scan(&[], false, &[]), Some("scan"));
        assert_eq!(scan(&["h"], true, &[]), Some("scan"));
        assert_eq!(scan(&["h", "h"], false, &[]), Some("scan"));
        assert_eq!((scan(&[], false, &["h.a"]), scan(&["h"], true, &["h.b"])), (None, None));
    }

    #[test]
    fn a_value_that_outlives_its_end_is_found() {
        let mut check = QuorumCheck::default();
        check.expires("k", "m", 7, 10);
        assert_eq!(rule(check.lives("k", 7, 110, 100)), None);
        assert_eq!(rule(check.lives("k", 7, 111, 100)), Some("expired"));
        assert_eq!(rule(check.lives("k", 8, 20, 100)), Some("written"));
    }

    #[test]
    fn owners_hold_what_was_acknowledged() {
        let mut check = QuorumCheck::default();
        write(&mut check, Promise::Atomic, Some(7), (10, 20));
        let entry = |time, text: Option<&'static str>| {
            let value = text.map(|text| bytes::Bytes::from_static(text.as_bytes()));
            Entry::whole(stamp(time), value, None)
        };
        let held = |entries: [Entry; 3]| -> Vec<_> { (1..).map(CellNumber).zip(entries).collect() };
        let (good, nothing) = (entry(10, Some("7")), Entry::nothing());
        let all = held([good.clone(), good.clone(), good.clone()]);
        assert_eq!(rule(check.held("k", true, &all)), None);
        let few = held([good.clone(), nothing.clone(), nothing.clone()]);
        assert_eq!(rule(check.held("k", false, &few)), Some("durable"));
        let most = held([good.clone(), good.clone(), nothing]);
        assert_eq!(rule(check.held("k", false, &most)), Some("hints"));
        check.forgets(ME);
        assert_eq!(rule(check.held("k", false, &most)), None);
        assert_eq!(rule(check.held("k", true, &most)), Some("hints"));
        // At a smaller level, a write may be lost with an owner that a later life has replaced.
        let mut small = QuorumCheck::default();
        let asked_small = asked(Promise::Written, OperationKind::Write(Some(7)), 10);
        small.wrote(&asked_small, Some(7), (stamp(10), false), 20).unwrap();
        small.forgets(ME);
        let mut lost = held([Entry::nothing(), Entry::nothing(), Entry::nothing()]);
        assert_eq!(rule(small.held("k", false, &lost)), None);
        assert_eq!(rule(small.held("k", true, &lost)), Some("hints"));
        lost[2].0 = CellNumber(4);
        assert_eq!(rule(small.held("k", true, &lost)), None);
        let other = held([good.clone(), good.clone(), entry(10, Some("8"))]);
        assert_eq!(rule(check.held("k", false, &other)), Some("content"));
        // All owners together may forget a deleted key. Half of the owners may not, and no owner may before
        // the deletion.
        let none = held([Entry::nothing(), Entry::nothing(), Entry::nothing()]);
        assert_eq!(rule(check.held("k", true, &none)), Some("durable"));
        write(&mut check, Promise::Atomic, None, (20, 25));
        assert_eq!(rule(check.held("k", true, &none)), None);
        let half = held([entry(20, None), entry(20, None), Entry::nothing()]);
        assert_eq!(rule(check.held("k", true, &half)), Some("convergence"));
        let back = held([good.clone(), good.clone(), good]);
        assert_eq!(rule(check.held("k", true, &back)), Some("durable"));
        assert!(
            check
                .wrote(&asked(Promise::Atomic, OperationKind::Write(None), 30), None, (stamp(10), true), 31)
                .is_err()
        );
    }
}
