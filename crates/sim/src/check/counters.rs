//! Counters: each count that a user reads contains each increment at most once, and every increment that it
//! must contain.
//!
//! The judge knows increments and writes of the whole key by their intervals alone. For each count it looks
//! for a base that no other write had replaced before, and for a choice among the increments that the count
//! may or may not include. If there are too many of these increments, the judge only checks the bounds of
//! their sum. It knows nothing of tallies and stamps.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::partial::{CellNumber, Entry, Value};
use quorate_world::Violation;

use super::quorum::Promise;

/// An increment, or a write of a whole counter, as its user saw it.
#[derive(Clone, Debug)]
pub(crate) struct CounterOperation {
    pub(crate) start: i64,
    /// The time of the answer; `None` if the outcome is unknown.
    pub(crate) end: Option<i64>,
    /// The number that was added or written; a deletion writes zero.
    pub(crate) number: i64,
    /// Whether the operation was acknowledged at a quorum level: any two sets of replicas that acknowledge at
    /// this level have a replica in common.
    pub(crate) quorum: bool,
    /// The latest life of any cell that the operation's coordinator knew of.
    pub(crate) latest: CellNumber,
}

/// A count that a user received.
#[derive(Clone, Debug)]
struct CountRead {
    start: i64,
    end: i64,
    count: i128,
    /// The increment whose answer was this count; the count includes that increment.
    own: Option<i64>,
}

/// The history of a counter.
#[derive(Debug)]
struct Counter {
    map: &'static str,
    promise: Promise,
    added: Vec<CounterOperation>,
    written: Vec<CounterOperation>,
    reads: Vec<CountRead>,
}

/// The history of all counters.
#[derive(Debug, Default)]
pub(crate) struct CounterCheck {
    counters: BTreeMap<String, Counter>,
}

/// The number of optional increments up to which the judge tries all choices.
const CHOICES_MAX: usize = 10;
/// The number of optional increments up to which the judge tries all choices for a final count. It is larger
/// than [`CHOICES_MAX`], because a final count is judged only once.
const CHOICES_MAX_AT_END: usize = 16;

impl CounterCheck {
    fn counter(&mut self, (name, map, promise): (&str, &'static str, Promise)) -> &mut Counter {
        let new = || Counter { map, promise, added: vec![], written: vec![], reads: vec![] };
        self.counters.entry(name.to_owned()).or_insert_with(new)
    }

    /// Records an increment that ended, or whose outcome stays unknown.
    pub(crate) fn added(
        &mut self,
        of: (&str, &'static str, Promise),
        operation: CounterOperation,
        count: Option<i64>,
    ) {
        let counter = self.counter(of);
        if let (Some(count), Some(end)) = (count, operation.end) {
            let (start, own) = (operation.start, Some(operation.number));
            counter.reads.push(CountRead { start, end, count: count.into(), own });
        }
        counter.added.push(operation);
    }

    /// Records a write of the whole counter that ended, or whose outcome stays unknown.
    pub(crate) fn written(&mut self, of: (&str, &'static str, Promise), operation: CounterOperation) {
        self.counter(of).written.push(operation);
    }

    /// Records the answer to a read.
    pub(crate) fn read(
        &mut self,
        of: (&str, &'static str, Promise),
        (start, end): (i64, i64),
        value: &Value,
    ) -> Result<(), Violation> {
        let count = number(of.0, value)?;
        self.counter(of).reads.push(CountRead { start, end, count, own: None });
        Ok(())
    }

    /// Returns the counters of a map that any user touched.
    pub(crate) fn names(&self, map: &'static str) -> impl Iterator<Item = &String> + '_ {
        self.counters.iter().filter(move |(_, counter)| counter.map == map).map(|(name, _)| name)
    }

    /// Judges the entries that the owners of a counter hold at the end, at time `now`. `equal` says whether
    /// the owners have compared their entries.
    pub(crate) fn held(
        &self,
        name: &str,
        equal: bool,
        held: &[(CellNumber, Entry)],
        now: i64,
    ) -> Result<(), Violation> {
        let Some(counter) = self.counters.get(name) else { return Ok(()) };
        if equal && held.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            return Err(Violation::new(
                "convergence",
                format!(
                    "the owners of counter {name} hold different entries after they were made equal: {held:?}"
                ),
            ));
        }
        // A write at a smaller level may be lost with the only owner that took it, once a later life has
        // replaced that owner.
        let may_be_lost =
            |operation: &CounterOperation| held.iter().any(|(owner, _)| *owner > operation.latest);
        let owed = |operation: &CounterOperation| operation.quorum || equal && !may_be_lost(operation);
        if counter.promise == Promise::Written && !equal {
            return Ok(());
        }
        for few in quorums(held.len()) {
            let mut merged = Entry::nothing();
            for index in few {
                merged.merge(&held[index].1);
            }
            let count = number(name, &merged.value(0))?;
            let read = CountRead { start: now, end: now, count, own: None };
            counter.explain_count(name, &read, owed, CHOICES_MAX_AT_END)?;
        }
        Ok(())
    }

    /// Judges all counts that users received.
    pub(crate) fn judge(&self) -> Result<(), Violation> {
        for (name, counter) in &self.counters {
            let owed = |operation: &CounterOperation| operation.quorum && counter.promise != Promise::Written;
            for read in &counter.reads {
                counter.explain_count(name, read, owed, CHOICES_MAX)?;
            }
            counter.check_monotone(name)?;
        }
        Ok(())
    }
}

impl Counter {
    /// Looks for increments that add up to a count. `owed` returns whether every later operation must see an
    /// acknowledged increment.
    fn explain_count(
        &self,
        name: &str,
        read: &CountRead,
        owed: impl Fn(&CounterOperation) -> bool,
        choices_max: usize,
    ) -> Result<(), Violation> {
        let began = |operation: &&CounterOperation| operation.start < read.end;
        let strict = self.promise != Promise::Written;
        let ended = |operation: &CounterOperation| operation.end.is_some_and(|end| end < read.start);
        let replaced = |end: Option<i64>| {
            let Some(end) = end.filter(|_| strict) else { return false };
            self.written.iter().any(|write| end < write.start && ended(write))
        };
        let new = CounterOperation {
            start: i64::MIN,
            end: Some(i64::MIN),
            number: 0,
            quorum: true,
            latest: CellNumber(0),
        };
        let bases = self.written.iter().filter(began).chain([&new]).filter(|write| !replaced(write.end));
        let mut own = read.own;
        let mut all = Vec::new();
        for operation in self.added.iter().filter(began) {
            // The increment that this count answers is included already, and counts once.
            if own == Some(operation.number)
                && operation.start == read.start
                && operation.end == Some(read.end)
            {
                own = None;
                continue;
            }
            all.push(operation);
        }
        for base in bases {
            let (mut sum, mut choice) =
                (i128::from(base.number) + i128::from(read.own.unwrap_or(0)), Vec::new());
            for operation in &all {
                // A base replaces the increments that ended before the base began. The judge may rely on this
                // only if the base is certainly ordered after these increments.
                let sure = self.promise == Promise::Atomic || ended(base);
                let gone = strict && sure && operation.end.is_some_and(|end| end < base.start);
                let after_all = |write: &CounterOperation| write.end.is_some_and(|end| end < operation.start);
                let must =
                    owed(operation) && ended(operation) && self.written.iter().filter(began).all(after_all);
                if must {
                    sum += i128::from(operation.number);
                } else if !gone {
                    choice.push(i128::from(operation.number));
                }
            }
            if is_sum(read.count - sum, &choice, choices_max) {
                return Ok(());
            }
        }
        let Counter { promise, written, .. } = self;
        let what = format!(
            "no choice among the increments explains a count of counter {name}: the read is {read:?}, the \
             promise {promise:?}, the increments {all:?}, the writes of the whole counter {written:?}"
        );
        Err(Violation::new("counted", what))
    }

    /// Checks that a later read of a counter returns no smaller count, if the map is atomic and the counter
    /// only grows.
    fn check_monotone(&self, name: &str) -> Result<(), Violation> {
        let grows = self.written.is_empty() && self.added.iter().all(|operation| operation.number >= 0);
        if self.promise != Promise::Atomic || !grows {
            return Ok(());
        }
        let mut by_end: Vec<&CountRead> = self.reads.iter().collect();
        by_end.sort_by_key(|read| read.end);
        for read in &self.reads {
            let before = by_end.iter().take_while(|it| it.end < read.start).map(|it| it.count).max();
            if before.is_some_and(|before| before > read.count) {
                return Err(Violation::new(
                    "goes back",
                    format!(
                        "counter {name} only grows, but the read {read:?} returned less than an earlier \
                         read, which returned {before:?}"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Whether some choice of these numbers has this sum. If there are more than `choices_max` numbers, whether
/// the sum is within the bounds of all choices.
fn is_sum(sum: i128, choice: &[i128], choices_max: usize) -> bool {
    let low: i128 = choice.iter().filter(|number| **number < 0).sum();
    let high: i128 = choice.iter().filter(|number| **number > 0).sum();
    let within = (low..=high).contains(&sum);
    if !within || choice.len() > choices_max {
        return within;
    }
    let mut sums = BTreeSet::from([0]);
    for number in choice {
        let more: Vec<i128> = sums.iter().map(|sum| sum + number).collect();
        sums.extend(more);
    }
    sums.contains(&sum)
}

/// Returns the number that a value represents.
fn number(name: &str, value: &Value) -> Result<i128, Violation> {
    match value {
        Value::Nothing => Some(0),
        Value::String(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        Value::Hash(_) => None,
    }
    .ok_or_else(|| Violation::new("number", format!("the value of counter {name} is no number: {value:?}")))
}

/// Returns all smallest majorities of `count` replicas.
fn quorums(count: usize) -> impl Iterator<Item = Vec<usize>> {
    let sets = (0u32..1 << count).filter(move |set| set.count_ones() as usize == count / 2 + 1);
    sets.map(move |set| (0..count).filter(|index| set >> index & 1 == 1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(promise: Promise) -> (&'static str, &'static str, Promise) {
        ("k", "m", promise)
    }

    fn operation(number: i64, start: i64, end: Option<i64>) -> CounterOperation {
        CounterOperation { start, end, number, quorum: true, latest: CellNumber(1) }
    }

    fn string(count: i64) -> Value {
        Value::String(bytes::Bytes::from(count.to_string()))
    }

    /// Returns the broken rule for a counter to which 5 and 7 were added, 20 with an unknown outcome, and 100
    /// concurrently with the read.
    fn found(promise: Promise, count: i64) -> Option<&'static str> {
        let mut check = CounterCheck::default();
        check.added(of(promise), operation(5, 10, Some(20)), Some(5));
        check.added(of(promise), operation(7, 30, Some(40)), Some(12));
        check.added(of(promise), operation(20, 31, None), None);
        check.added(of(promise), operation(100, 55, Some(70)), None);
        check.added(of(promise), operation(500, 90, Some(95)), None);
        check.read(of(promise), (50, 60), &string(count)).unwrap();
        check.judge().err().map(|violation| violation.rule)
    }

    #[test]
    fn what_is_lost_or_counted_twice_is_found() {
        for promise in [Promise::Regular, Promise::Atomic] {
            for count in [12, 32, 112, 132] {
                assert_eq!(found(promise, count), None, "{count}");
            }
            for count in [0, 5, 7, 25, 17, 19, 52, 512, 632] {
                assert_eq!(found(promise, count), Some("counted"), "{count}");
            }
        }
        for (count, rule) in [(0, None), (27, None), (17, Some("counted")), (1_000, Some("counted"))] {
            assert_eq!(found(Promise::Written, count), rule, "{count}");
        }
    }

    #[test]
    fn a_write_of_the_whole_begins_anew() {
        let check = |promise, written: CounterOperation, count: i64| {
            let mut check = CounterCheck::default();
            check.added(of(promise), operation(5, 10, Some(20)), None);
            check.written(of(promise), written);
            check.added(of(promise), operation(3, 50, Some(60)), None);
            check.read(of(promise), (70, 80), &string(count)).unwrap();
            check.judge().is_ok()
        };
        assert!(check(Promise::Regular, operation(100, 30, Some(40)), 103));
        for lost in [3, 8, 100, 108] {
            assert!(!check(Promise::Regular, operation(100, 30, Some(40)), lost), "{lost}");
        }
        // An increment of unknown outcome may take effect at any time. If the increment first asks replicas
        // for their present stamps, it gets a stamp above those of all ended writes.
        for count in [8, 100, 103] {
            assert!(check(Promise::Atomic, operation(100, 30, None), count), "{count}");
        }
        assert!(!check(Promise::Atomic, operation(100, 30, None), 108));
        assert!(check(Promise::Regular, operation(100, 30, None), 108));
    }

    #[test]
    fn counts_that_go_back_are_found() {
        let check = |promise| {
            let mut check = CounterCheck::default();
            check.added(of(promise), operation(5, 10, None), None);
            check.read(of(promise), (20, 30), &string(5)).unwrap();
            check.read(of(promise), (40, 50), &string(0)).unwrap();
            check.judge().err().map(|violation| violation.rule)
        };
        assert_eq!((check(Promise::Regular), check(Promise::Atomic)), (None, Some("goes back")));
    }

    #[test]
    fn every_majority_holds_what_was_acknowledged() {
        let mut check = CounterCheck::default();
        check.added(of(Promise::Regular), operation(5, 10, Some(20)), Some(5));
        let entry = |text: &'static [u8]| {
            let stamp = quorate_protocol::partial::Stamp { time: 1, cell: CellNumber(1) };
            Entry::whole(stamp, Some(bytes::Bytes::from_static(text)), None)
        };
        let held = |entries: [Entry; 3]| -> Vec<_> { (1..).map(CellNumber).zip(entries).collect() };
        let rule = |equal, entries| {
            check.held("k", equal, &held(entries), 100).err().map(|violation| violation.rule)
        };
        assert_eq!(rule(false, [entry(b"5"), entry(b"5"), Entry::nothing()]), None);
        assert_eq!(rule(false, [entry(b"5"), Entry::nothing(), Entry::nothing()]), Some("counted"));
        assert_eq!(rule(true, [entry(b"5"), entry(b"5"), Entry::nothing()]), Some("convergence"));
        assert_eq!(rule(true, [entry(b"10"), entry(b"10"), entry(b"10")]), Some("counted"));
    }
}
