//! Counters: each count that anybody is told is that of some increments, each once, and of all that must be in it.
//!
//! The judge knows increments and writes of the whole key by their intervals alone. For a count it looks for a base, which no other one had
//! replaced before, and a choice of the increments that may or may not be in it. Where there are too many of these it looks at the bounds of
//! their sum. It knows nothing of tallies and stamps.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::partial::{CellNumber, Entry, Value};
use quorate_world::Violation;

use super::quorum::Promise;

/// An increment or a write of a whole counter as its user saw it.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    pub(crate) start: i64,
    /// None: nobody knows what becomes of it.
    pub(crate) end: Option<i64>,
    /// The number that was added or written; a deletion writes zero.
    pub(crate) number: i64,
    /// Whether it was acknowledged at a level of which any two sets meet.
    pub(crate) quorum: bool,
    /// The latest life of a cell that its coordinator knew of.
    pub(crate) latest: CellNumber,
}

/// A count that somebody was told.
#[derive(Clone, Debug)]
struct Told {
    start: i64,
    end: i64,
    count: i128,
    /// The increment that was told it is in it.
    own: Option<i64>,
}

/// A counter's past.
#[derive(Debug)]
struct Counter {
    map: &'static str,
    promise: Promise,
    added: Vec<Deed>,
    written: Vec<Deed>,
    told: Vec<Told>,
}

/// The past of all counters.
#[derive(Debug, Default)]
pub(crate) struct CounterCheck {
    counters: BTreeMap<String, Counter>,
}

/// All choices of so many increments are tried.
const CHOICES_MAX: usize = 10;
/// The same of what is there in the end, which is looked at once.
const CHOICES_MAX_AT_END: usize = 16;

impl CounterCheck {
    fn counter(&mut self, (name, map, promise): (&str, &'static str, Promise)) -> &mut Counter {
        let new = || Counter { map, promise, added: vec![], written: vec![], told: vec![] };
        self.counters.entry(name.to_owned()).or_insert_with(new)
    }

    /// An increment ended, or nobody hears of it any more.
    pub(crate) fn added(&mut self, of: (&str, &'static str, Promise), deed: Deed, count: Option<i64>) {
        let counter = self.counter(of);
        if let (Some(count), Some(end)) = (count, deed.end) {
            let (start, own) = (deed.start, Some(deed.number));
            counter.told.push(Told { start, end, count: count.into(), own });
        }
        counter.added.push(deed);
    }

    /// A write of the whole counter ended, or nobody hears of it any more.
    pub(crate) fn written(&mut self, of: (&str, &'static str, Promise), deed: Deed) {
        self.counter(of).written.push(deed);
    }

    /// A read was answered.
    pub(crate) fn read(
        &mut self,
        of: (&str, &'static str, Promise),
        (start, end): (i64, i64),
        value: &Value,
    ) -> Result<(), Violation> {
        let count = number(of.0, value)?;
        self.counter(of).told.push(Told { start, end, count, own: None });
        Ok(())
    }

    /// The counters of a map that anybody had to do with.
    pub(crate) fn names(&self, map: &'static str) -> impl Iterator<Item = &String> + '_ {
        self.counters.iter().filter(move |(_, counter)| counter.map == map).map(|(name, _)| name)
    }

    /// Judges the entries that the owners of a counter hold in the end, at this time. `equal`: they have compared what they hold.
    pub(crate) fn held(
        &self,
        name: &str,
        equal: bool,
        held: &[(CellNumber, Entry)],
        now: i64,
    ) -> Result<(), Violation> {
        let Some(counter) = self.counters.get(name) else { return Ok(()) };
        if equal && held.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            return Err(Violation::new("convergence", format!("owners of {name} hold {held:?}")));
        }
        // A deed at a smaller level may be lost with the only owner that took it, whose place another life has.
        let may_be_lost = |deed: &Deed| held.iter().any(|(owner, _)| *owner > deed.latest);
        let owed = |deed: &Deed| deed.quorum || equal && !may_be_lost(deed);
        if counter.promise == Promise::Written && !equal {
            return Ok(());
        }
        for few in quorums(held.len()) {
            let mut merged = Entry::nothing();
            for index in few {
                merged.merge(&held[index].1);
            }
            let count = number(name, &merged.value(0))?;
            let told = Told { start: now, end: now, count, own: None };
            counter.explain(name, &told, owed, CHOICES_MAX_AT_END)?;
        }
        Ok(())
    }

    /// Judges all counts that users were told.
    pub(crate) fn judge(&self) -> Result<(), Violation> {
        for (name, counter) in &self.counters {
            let owed = |deed: &Deed| deed.quorum && counter.promise != Promise::Written;
            for told in &counter.told {
                counter.explain(name, told, owed, CHOICES_MAX)?;
            }
            counter.goes_on(name)?;
        }
        Ok(())
    }
}

impl Counter {
    /// Looks for increments that make a count. `owed` tells whether an acknowledged one must be seen by whoever begins later.
    fn explain(
        &self,
        name: &str,
        told: &Told,
        owed: impl Fn(&Deed) -> bool,
        choices_max: usize,
    ) -> Result<(), Violation> {
        let began = |deed: &&Deed| deed.start < told.end;
        let strict = self.promise != Promise::Written;
        let ended = |deed: &Deed| deed.end.is_some_and(|end| end < told.start);
        let replaced = |end: Option<i64>| {
            let Some(end) = end.filter(|_| strict) else { return false };
            self.written.iter().any(|write| end < write.start && ended(write))
        };
        let new =
            Deed { start: i64::MIN, end: Some(i64::MIN), number: 0, quorum: true, latest: CellNumber(0) };
        let bases = self.written.iter().filter(began).chain([&new]).filter(|write| !replaced(write.end));
        let mut own = told.own;
        let mut all = Vec::new();
        for deed in self.added.iter().filter(began) {
            // The own increment is in, and not for another time.
            if own == Some(deed.number) && deed.start == told.start && deed.end == Some(told.end) {
                own = None;
                continue;
            }
            all.push(deed);
        }
        for base in bases {
            let (mut sum, mut choice) =
                (i128::from(base.number) + i128::from(told.own.unwrap_or(0)), Vec::new());
            for deed in &all {
                // Increments that ended before the base was written are gone, once it is above them for sure.
                let sure = self.promise == Promise::Atomic || ended(base);
                let gone = strict && sure && deed.end.is_some_and(|end| end < base.start);
                let after_all = |write: &Deed| write.end.is_some_and(|end| end < deed.start);
                let must = owed(deed) && ended(deed) && self.written.iter().filter(began).all(after_all);
                if must {
                    sum += i128::from(deed.number);
                } else if !gone {
                    choice.push(i128::from(deed.number));
                }
            }
            if is_sum(told.count - sum, &choice, choices_max) {
                return Ok(());
            }
        }
        let Counter { promise, written, .. } = self;
        let what = format!("{name}: {told:?} ({promise:?}) of {all:?}, written {written:?}");
        Err(Violation::new("counted", what))
    }

    /// A counter of an atomic map that only grows tells no less to those that ask later.
    fn goes_on(&self, name: &str) -> Result<(), Violation> {
        let grows = self.written.is_empty() && self.added.iter().all(|deed| deed.number >= 0);
        if self.promise != Promise::Atomic || !grows {
            return Ok(());
        }
        let mut by_end: Vec<&Told> = self.told.iter().collect();
        by_end.sort_by_key(|told| told.end);
        for told in &self.told {
            let before = by_end.iter().take_while(|it| it.end < told.start).map(|it| it.count).max();
            if before.is_some_and(|before| before > told.count) {
                return Err(Violation::new("goes back", format!("{name}: {told:?} after {before:?}")));
            }
        }
        Ok(())
    }
}

/// Whether a choice of these numbers makes this sum; if they are too many, whether it is within the bounds of all choices.
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

/// The number that a value is.
fn number(name: &str, value: &Value) -> Result<i128, Violation> {
    match value {
        Value::Nothing => Some(0),
        Value::String(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        Value::Hash(_) => None,
    }
    .ok_or_else(|| Violation::new("number", format!("{name} is {value:?}")))
}

/// All majorities of so many replicas that have none to spare.
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

    fn deed(number: i64, start: i64, end: Option<i64>) -> Deed {
        Deed { start, end, number, quorum: true, latest: CellNumber(1) }
    }

    fn string(count: i64) -> Value {
        Value::String(bytes::Bytes::from(count.to_string()))
    }

    /// The finding in a counter to which 5 and 7 were added, 20 perhaps, and 100 at the same time as it was read.
    fn found(promise: Promise, count: i64) -> Option<&'static str> {
        let mut check = CounterCheck::default();
        check.added(of(promise), deed(5, 10, Some(20)), Some(5));
        check.added(of(promise), deed(7, 30, Some(40)), Some(12));
        check.added(of(promise), deed(20, 31, None), None);
        check.added(of(promise), deed(100, 55, Some(70)), None);
        check.added(of(promise), deed(500, 90, Some(95)), None);
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
        let check = |promise, written: Deed, count: i64| {
            let mut check = CounterCheck::default();
            check.added(of(promise), deed(5, 10, Some(20)), None);
            check.written(of(promise), written);
            check.added(of(promise), deed(3, 50, Some(60)), None);
            check.read(of(promise), (70, 80), &string(count)).unwrap();
            check.judge().is_ok()
        };
        assert!(check(Promise::Regular, deed(100, 30, Some(40)), 103));
        for lost in [3, 8, 100, 108] {
            assert!(!check(Promise::Regular, deed(100, 30, Some(40)), lost), "{lost}");
        }
        // One of unknown outcome may come at any time; where it asks first, it is above what had ended.
        for count in [8, 100, 103] {
            assert!(check(Promise::Atomic, deed(100, 30, None), count), "{count}");
        }
        assert!(!check(Promise::Atomic, deed(100, 30, None), 108));
        assert!(check(Promise::Regular, deed(100, 30, None), 108));
    }

    #[test]
    fn counts_that_go_back_are_found() {
        let check = |promise| {
            let mut check = CounterCheck::default();
            check.added(of(promise), deed(5, 10, None), None);
            check.read(of(promise), (20, 30), &string(5)).unwrap();
            check.read(of(promise), (40, 50), &string(0)).unwrap();
            check.judge().err().map(|violation| violation.rule)
        };
        assert_eq!((check(Promise::Regular), check(Promise::Atomic)), (None, Some("goes back")));
    }

    #[test]
    fn every_majority_holds_what_was_acknowledged() {
        let mut check = CounterCheck::default();
        check.added(of(Promise::Regular), deed(5, 10, Some(20)), Some(5));
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
