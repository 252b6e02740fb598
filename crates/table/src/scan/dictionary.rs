//! Dictionaries: codes for the texts or numerics of a column.
//!
//! Codes of the *sorted* part are ordered as the values are, so that a range of values is a range of codes. New values
//! take codes behind it, in the *tail*, in the order they come. When the tail has grown to a part of the whole, it is
//! merged: the values in use get new codes and the column's chunks are written anew (`mod.rs`), so that what no
//! row holds any more is dropped. Versions share the sorted part and copy the tail.
//!
//! A sorted part whose values are few, and held by several rows each, has them as they are, so that results share them,
//! and finds them by hash; another holds its texts in one heap (`texts.rs`) and finds them by halving, which takes a fifth of
//! the memory. The tail is kept as the sorted part is, but always finds by hash (`positions.rs`).

use std::{cmp::Ordering, hash::BuildHasher, sync::Arc};

use rustc_hash::FxBuildHasher;

use crate::{
    engine::Failure,
    saved::{self, Line, Name, Records, Runs, Saver},
    value::Value,
};

use super::{kernel, positions::Positions, texts::Texts};

/// The most values that a sorted part holds as they are.
const SMALL: usize = 1 << 16;
/// Beyond so many, each must on average be held by so many rows.
const TINY: usize = 1024;
const SHARERS: usize = 4;
/// The tail is merged when it is as long as this and as a quarter of the sorted part.
const TAIL_MIN: usize = 1024;
/// The tail is put in order when so many of its values, and a fifth of it, are not.
const LOOSE_MIN: usize = 64;
/// A run on disk has no more values, and ends with the one that takes it to so many bytes.
const RUN_VALUES: usize = 1 << 14;
const RUN_BYTES: usize = 256 << 10;
/// Runs of the tail are numbered from here on.
const TAIL: usize = 1 << 32;

#[derive(Clone, Default)]
pub(super) struct Dictionary {
    sorted: Arc<Sorted>,
    tail: Values,
    /// The first positions of the tail, in the order of the values; those behind are looked at one by one.
    ordered: Vec<u32>,
    /// Where values are in the tail.
    positions: Positions,
    /// Where the tail is on disk.
    runs: Arc<Runs>,
}

#[derive(Default)]
struct Sorted {
    values: Values,
    /// Where values are; nothing of texts in a heap.
    positions: Positions,
    /// Where they are on disk.
    runs: Runs,
}

/// Values by position.
#[derive(Clone)]
enum Values {
    /// As they are.
    Each(Vec<Value>),
    /// All of them texts.
    Texts(Texts),
}

impl Default for Values {
    fn default() -> Values {
        Values::Each(Vec::new())
    }
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Each(values) => values.len(),
            Values::Texts(texts) => texts.len(),
        }
    }

    fn value(&self, position: usize) -> Value {
        match self {
            Values::Each(values) => values[position].clone(),
            Values::Texts(texts) => Value::text_of(texts.text(position)),
        }
    }

    /// A text, without a copy.
    fn text(&self, position: usize) -> Option<&str> {
        match self {
            Values::Texts(texts) => Some(texts.text(position)),
            Values::Each(values) => match &values[position] {
                Value::Text(text) => Some(text),
                _ => None,
            },
        }
    }

    /// Whether it is this very value.
    fn is(&self, position: usize, value: &Value) -> bool {
        match (self, value) {
            (Values::Each(values), value) => values[position] == *value,
            (Values::Texts(texts), Value::Text(text)) => texts.text(position) == &**text,
            _ => false,
        }
    }

    /// How it stands to a value of the column's type.
    fn order(&self, position: usize, value: &Value) -> Ordering {
        match (self, value) {
            (Values::Texts(texts), Value::Text(text)) => texts.text(position).as_bytes().cmp(text.as_bytes()),
            (Values::Each(values), value) => values[position].order(value),
            (values, value) => values.value(position).order(value),
        }
    }

    fn push(&mut self, value: &Value) {
        match (self, value) {
            (Values::Each(values), value) => values.push(value.clone()),
            (Values::Texts(texts), Value::Text(text)) => texts.push(text),
            (Values::Texts(_), other) => panic!("{other:?} is no text"),
        }
    }

    #[inline]
    fn prefetch(&self, position: usize, deep: bool) {
        match self {
            Values::Texts(texts) => texts.prefetch(position, deep),
            Values::Each(values) => match values.get(position) {
                Some(Value::Text(text)) if deep => {
                    text.as_bytes().first().into_iter().for_each(kernel::prefetch)
                }
                Some(value) if !deep => kernel::prefetch(value),
                _ => {}
            },
        }
    }

    /// Where each is.
    fn positions(&self) -> Positions {
        let mut positions = Positions::with_capacity(self.len());
        for position in 0..self.len() {
            let hash = match self {
                Values::Each(values) => hash(&values[position]),
                Values::Texts(_) => hash(&self.value(position)),
            };
            positions.add(hash, position as u32);
        }
        positions
    }

    /// How far a run on disk may reach that begins here.
    fn run_end(&self, start: usize) -> usize {
        let (mut end, mut bytes) = (start, 0);
        while end < self.len() && end - start < RUN_VALUES && bytes < RUN_BYTES {
            bytes += match self {
                Values::Texts(texts) => texts.text(end).len(),
                Values::Each(values) => values[end].bytes(),
            };
            end += 1;
        }
        end
    }

    /// Some of them as a fragment of a saved version.
    fn encode(&self, start: usize, end: usize, out: &mut Vec<u8>) {
        match self {
            Values::Each(values) => saved::put_rest(out, &&values[start..end]),
            Values::Texts(texts) => {
                (start..end).for_each(|position| saved::put_u32(out, texts.text(position).len()));
                (start..end).for_each(|position| out.extend_from_slice(texts.text(position).as_bytes()));
            }
        }
    }

    /// Those of some runs.
    fn restored(heap: bool, runs: &[(Name, u32)], records: &Records) -> Result<Values, Failure> {
        let counted = |values: usize, count: u32| match values == count as usize {
            true => Ok(()),
            false => Err(saved::malformed()),
        };
        if !heap {
            let mut all: Vec<Value> = Vec::with_capacity(runs.iter().map(|(_, count)| *count as usize).sum());
            for (name, count) in runs {
                let values: Vec<Value> = saved::fragment(records, *name)?.rest()?;
                counted(values.len(), *count)?;
                all.extend(values);
            }
            return Ok(Values::Each(all));
        }
        let mut all: Vec<&str> = Vec::new();
        for (name, count) in runs {
            let mut input = saved::fragment(records, *name)?;
            let lengths = (0..*count).map(|_| input.u32()).collect::<Result<Vec<_>, _>>()?;
            for length in lengths {
                let text = str::from_utf8(input.take(length as usize)?);
                all.push(text.map_err(|_| saved::malformed())?);
            }
            input.end()?;
        }
        Ok(Values::Texts(Texts::of(all.into_iter())))
    }

    fn bytes(&self) -> usize {
        match self {
            Values::Each(values) => {
                let outside: usize = values.iter().map(|value| value.bytes() - size_of::<Value>()).sum();
                values.capacity() * size_of::<Value>() + outside
            }
            Values::Texts(texts) => texts.bytes(),
        }
    }
}

/// A value of another dictionary.
struct Coming {
    beginning: u64,
    other: u32,
    code: u32,
}

/// The first bytes of a text, as a number of the same order.
fn beginning(text: &str) -> u64 {
    let mut bytes = [0; 8];
    let len = text.len().min(bytes.len());
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    u64::from_be_bytes(bytes)
}

fn hash(value: &Value) -> u32 {
    FxBuildHasher.hash_one(value) as u32
}

/// By value, and what is equal by value (1.0 and 1.00) by its form.
fn identity_order(a: &Value, b: &Value) -> Ordering {
    let scale = |value: &Value| match value {
        Value::Numeric(number) => number.scale(),
        _ => 0,
    };
    a.order(b).then_with(|| scale(a).cmp(&scale(b)))
}

impl Sorted {
    /// These values of a dictionary, which are in order; `texts` if all are.
    fn of(dictionary: &Dictionary, codes: &[u32], texts: bool, rows: usize) -> Sorted {
        let rare = codes.len() > TINY && rows < SHARERS * codes.len();
        if texts && (rare || codes.len() > SMALL) {
            let text = |&code: &u32| dictionary.text(code as usize).expect("a text among texts");
            let values = Values::Texts(Texts::of(codes.iter().map(text)));
            return Sorted { values, positions: Positions::default(), runs: Runs::default() };
        }
        let values: Vec<Value> = codes.iter().map(|&code| dictionary.value(code.into())).collect();
        let values = Values::Each(values);
        Sorted { positions: values.positions(), values, runs: Runs::default() }
    }

    fn find(&self, value: &Value, hash: u32) -> Option<u32> {
        match &self.values {
            values @ Values::Each(_) => {
                self.positions.find(hash, |position| values.is(position as usize, value))
            }
            values @ Values::Texts(_) => {
                let code = self.bound(value, false) as usize;
                (code < values.len() && values.is(code, value)).then_some(code as u32)
            }
        }
    }

    /// The first code whose value is at least (or, if `above`, greater than) this one.
    fn bound(&self, value: &Value, above: bool) -> u64 {
        let least = at_least(!above);
        let (mut low, mut high) = (0, self.values.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.values.order(middle, value) >= least {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low as u64
    }

    /// The first position from `from` on whose value is at least this one; all before `from` are less.
    fn bound_from(&self, from: usize, value: &Value) -> usize {
        let is_less = |position: usize| self.values.order(position, value).is_lt();
        let (mut low, mut step) = (from, 1);
        while low + step <= self.len() && is_less(low + step - 1) {
            low += step;
            step *= 2;
        }
        let mut high = (low + step - 1).min(self.len());
        while low < high {
            let middle = (low + high) / 2;
            if is_less(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn bytes(&self) -> usize {
        self.values.bytes() + self.positions.bytes()
    }
}

/// How a value must at least stand to a lower bound, which belongs to the range or not.
fn at_least(with: bool) -> Ordering {
    if with { Ordering::Equal } else { Ordering::Greater }
}

impl Dictionary {
    pub(super) fn value(&self, code: u64) -> Value {
        let (values, position) = self.at(code as usize);
        values.value(position)
    }

    /// Where the value of a code is.
    fn at(&self, code: usize) -> (&Values, usize) {
        match code.checked_sub(self.sorted.len()) {
            None => (&self.sorted.values, code),
            Some(behind) => (&self.tail, behind),
        }
    }

    /// Whether the value of a code is made each time it is asked for.
    #[inline]
    pub(super) fn copies(&self, code: u64) -> bool {
        matches!(self.at(code as usize).0, Values::Texts(_))
    }

    /// Asks for the memory of a value ahead of its use: for what says where the value lies, or (`deep`) for the value.
    #[inline]
    pub(super) fn prefetch(&self, code: u64, deep: bool) {
        self.sorted.values.prefetch(code as usize, deep);
    }

    /// The code of this very value.
    pub(super) fn find(&self, value: &Value) -> Option<u64> {
        let hash = hash(value);
        let sorted = self.sorted.find(value, hash).map(u64::from);
        sorted.or_else(|| {
            let behind = self.positions.find(hash, |position| self.tail.is(position as usize, value))?;
            Some(self.sorted.len() as u64 + u64::from(behind))
        })
    }

    /// Gives a code to a value that has none.
    pub(super) fn add(&mut self, value: &Value) -> u64 {
        let code = u32::try_from(self.len()).expect("fewer values than rows");
        self.positions.add(hash(value), self.tail.len() as u32);
        self.tail.push(value);
        code.into()
    }

    /// The codes here of all values of others, by their own codes. Values that have none are given one.
    ///
    /// Texts are looked for in their order, each from where the one before was found: so a heap is walked once, where halving
    /// would jump about in it for each.
    pub(super) fn take_in(this: &mut Arc<Dictionary>, others: &[&Dictionary]) -> Vec<Vec<u32>> {
        let mut codes: Vec<Vec<u32>> = others.iter().map(|other| vec![0; other.len()]).collect();
        let mut all: Vec<Coming> = Vec::with_capacity(others.iter().map(|other| other.len()).sum());
        for (other, dictionary) in others.iter().enumerate() {
            all.extend((0..dictionary.len()).map(|code| {
                let beginning = dictionary.text(code).map_or(0, beginning);
                Coming { beginning, other: other as u32, code: code as u32 }
            }));
        }
        let text = |coming: &Coming| others[coming.other as usize].text(coming.code as usize);
        all.sort_unstable_by(|a, b| {
            let beginnings = a.beginning.cmp(&b.beginning);
            beginnings.then_with(|| text(a).map(str::as_bytes).cmp(&text(b).map(str::as_bytes)))
        });
        let (mut from, mut before): (usize, Option<(&Coming, u32)>) = (0, None);
        for coming in &all {
            let is_same = |before: &Coming| text(coming).is_some() && text(before) == text(coming);
            let code = match before.filter(|(before, _)| is_same(before)) {
                Some((_, code)) => code,
                None => {
                    let value = others[coming.other as usize].value(coming.code.into());
                    let known = this.find_from(&value, &mut from);
                    known.unwrap_or_else(|| Arc::make_mut(this).add(&value) as u32)
                }
            };
            codes[coming.other as usize][coming.code as usize] = code;
            before = Some((coming, code));
        }
        codes
    }

    /// The code of a value. None that was looked for before with this `from` was greater, if it is a text.
    fn find_from(&self, value: &Value, from: &mut usize) -> Option<u32> {
        let hash = hash(value);
        let sorted = match &self.sorted.values {
            values @ Values::Texts(_) => {
                *from = self.sorted.bound_from(*from, value);
                (*from < values.len() && values.is(*from, value)).then_some(*from as u32)
            }
            Values::Each(_) => self.sorted.find(value, hash),
        };
        sorted.or_else(|| {
            let behind = self.positions.find(hash, |position| self.tail.is(position as usize, value))?;
            Some(self.sorted.len() as u32 + behind)
        })
    }

    /// Whether many values of the tail are not in order.
    pub(super) fn is_loose(&self) -> bool {
        self.tail.len() - self.ordered.len() > LOOSE_MIN + self.ordered.len() / 4
    }

    /// Puts the tail in order.
    pub(super) fn order_tail(&mut self) {
        self.ordered = self.tail_in_order(|_| true);
    }

    /// Those positions of the tail, in the order of the values. Most texts are told apart by how they begin, without a look at them.
    fn tail_in_order(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<u32> {
        let tail = &self.tail;
        let wanted = (0..tail.len() as u32).filter(|&position| is_wanted(position));
        let mut keys: Vec<(u64, u32)> =
            wanted.map(|position| (tail.text(position as usize).map_or(0, beginning), position)).collect();
        keys.sort_unstable_by(|&(beginning, a), &(other, b)| {
            beginning.cmp(&other).then_with(|| match (tail.text(a as usize), tail.text(b as usize)) {
                (Some(a), Some(b)) => a.as_bytes().cmp(b.as_bytes()),
                _ => identity_order(&tail.value(a as usize), &tail.value(b as usize)),
            })
        });
        keys.into_iter().map(|(_, position)| position).collect()
    }

    /// The codes of the values between two bounds (whether the bound itself belongs to it is said beside it): a range
    /// of the sorted part, its end excluded, and single codes of the tail.
    pub(super) fn between(
        &self,
        low: Option<(&Value, bool)>,
        high: Option<(&Value, bool)>,
    ) -> (u64, u64, Vec<u64>) {
        let start = low.map_or(0, |(value, with)| self.sorted.bound(value, !with));
        let end = high.map_or(self.sorted.len() as u64, |(value, with)| self.sorted.bound(value, with));
        let below = |bound: &Value, with: bool| {
            self.ordered.partition_point(|&position| match self.tail.order(position as usize, bound) {
                Ordering::Equal => with,
                order => order.is_lt(),
            })
        };
        let first = low.map_or(0, |(value, with)| below(value, !with));
        let last = high.map_or(self.ordered.len(), |(value, with)| below(value, with));
        let tail = &self.ordered[first..last.max(first)];
        let behind = self.sorted.len() as u64;
        let mut others: Vec<u64> = tail.iter().map(|&position| behind + u64::from(position)).collect();
        let inside = |one: usize| {
            let order = |bound: &Value| self.tail.order(one, bound);
            low.is_none_or(|(low, with)| order(low) >= at_least(with))
                && high.is_none_or(|(high, with)| order(high) <= at_least(with).reverse())
        };
        let loose = self.ordered.len()..self.tail.len();
        others.extend(loose.filter(|&one| inside(one)).map(|one| behind + one as u64));
        others.sort_unstable();
        (start, end.max(start), others)
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len() + self.tail.len()
    }

    pub(super) fn wants_merge(&self) -> bool {
        self.tail.len() >= TAIL_MIN.max(self.sorted.len() / 4)
    }

    /// A text, without a copy.
    fn text(&self, code: usize) -> Option<&str> {
        let (values, position) = self.at(code);
        values.text(position)
    }

    /// How two values that have codes stand to each other.
    fn compare(&self, a: u32, b: u32) -> Ordering {
        match (self.text(a as usize), self.text(b as usize)) {
            (Some(a), Some(b)) => a.as_bytes().cmp(b.as_bytes()),
            _ => identity_order(&self.value(a.into()), &self.value(b.into())),
        }
    }

    /// A dictionary of the values whose codes are used by so many rows, all of them sorted; and the new code of every
    /// used old one. Only the tail is put in order: the sorted part is walked along it.
    pub(super) fn merged(&self, used: &[bool], rows: usize) -> (Dictionary, Vec<u32>) {
        let is_used = |code: &u32| used[*code as usize];
        let behind = self.sorted.len() as u32;
        let tail = self.tail_in_order(|position| is_used(&(behind + position)));
        let mut order: Vec<u32> = Vec::with_capacity(self.len());
        let mut tail = tail.into_iter().map(|position| behind + position).peekable();
        for code in (0..behind).filter(is_used) {
            while let Some(before) = tail.next_if(|&new| self.compare(new, code).is_lt()) {
                order.push(before);
            }
            order.push(code);
        }
        order.extend(tail);
        let mut codes = vec![0; self.len()];
        order.iter().zip(0..).for_each(|(&old, new)| codes[old as usize] = new);
        let texts = order.first().is_some_and(|&code| self.text(code as usize).is_some());
        let sorted = Sorted::of(self, &order, texts, rows);
        let tail = match sorted.values {
            Values::Each(_) => Values::default(),
            Values::Texts(_) => Values::Texts(Texts::default()),
        };
        (Dictionary { sorted: Arc::new(sorted), tail, ..Dictionary::default() }, codes)
    }

    /// Saves what of it is not on disk, from a run on: those of the sorted part, then those of the tail. Where to go on if that
    /// is too much.
    pub(super) fn save(&self, column: usize, mut at: usize, saver: &mut Saver<'_>) -> Option<usize> {
        let lists =
            [(0..TAIL, &self.sorted.values, &self.sorted.runs), (TAIL..usize::MAX, &self.tail, &self.runs)];
        for (numbers, values, runs) in lists {
            if numbers.contains(&at) {
                let fits = |start| values.run_end(start);
                let encode = |from, to, out: &mut Vec<u8>| values.encode(from, to, out);
                if let Some(run) = saver.list(runs, values.len(), at - numbers.start, fits, encode) {
                    return Some(numbers.start + run);
                }
                at = TAIL;
            }
        }
        let heaps = [&self.sorted.values, &self.tail].map(|values| matches!(values, Values::Texts(_)));
        let (sorted, tail) = (saver.names(&self.sorted.runs), saver.names(&self.runs));
        saver.line(&Line::Dictionary { column: column as u32, heaps, sorted, tail });
        None
    }

    /// What was saved of one.
    pub(super) fn restored(
        heaps: [bool; 2],
        sorted: Vec<(Name, u32)>,
        tail: Vec<(Name, u32)>,
        records: &Records,
    ) -> Result<Dictionary, Failure> {
        let values = Values::restored(heaps[0], &sorted, records)?;
        let positions = if heaps[0] { Positions::default() } else { values.positions() };
        let sorted = Arc::new(Sorted { values, positions, runs: Runs::of(sorted) });
        let values = Values::restored(heaps[1], &tail, records)?;
        let positions = values.positions();
        let runs = Arc::new(Runs::of(tail));
        let mut dictionary = Dictionary { sorted, tail: values, ordered: Vec::new(), positions, runs };
        dictionary.order_tail();
        Ok(dictionary)
    }

    /// The tail is counted for every version; the sorted part where it is met first.
    pub(super) fn bytes_beside(&self, counted: &mut std::collections::BTreeSet<usize>) -> usize {
        let first = counted.insert(Arc::as_ptr(&self.sorted).addr());
        self.tail_bytes() + if first { self.sorted.bytes() } else { 0 }
    }

    /// The bytes that are no part of a newer one.
    pub(super) fn bytes_apart(&self, newer: &Dictionary) -> usize {
        let shared = Arc::ptr_eq(&self.sorted, &newer.sorted);
        self.tail_bytes() + if shared { 0 } else { self.sorted.bytes() }
    }

    fn tail_bytes(&self) -> usize {
        let ordered = self.ordered.capacity() * size_of::<u32>();
        size_of::<Dictionary>() + self.tail.bytes() + ordered + self.positions.bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::numeric::Numeric;

    use super::*;

    /// Dictionaries that are merged again and again keep what is used, in order, and say what has become of each code.
    fn check(values: &[Value], unused: usize, rows: usize) {
        let mut dictionary = Dictionary::default();
        for part in values.chunks(values.len().div_ceil(3).max(1)) {
            for value in part {
                if dictionary.find(value).is_none() {
                    dictionary.add(value);
                }
            }
            let used: Vec<bool> = (0..dictionary.len()).map(|code| code % 7 != unused).collect();
            let (merged, codes) = dictionary.merged(&used, rows);
            assert_eq!(merged.len(), used.iter().filter(|used| **used).count());
            for code in (0..dictionary.len()).filter(|code| used[*code]) {
                let value = dictionary.value(code as u64);
                assert_eq!(identity_order(&merged.value(codes[code].into()), &value), Ordering::Equal);
                assert_eq!(merged.find(&value), Some(codes[code].into()));
            }
            for code in 1..merged.len() as u64 {
                assert_eq!(identity_order(&merged.value(code - 1), &merged.value(code)), Ordering::Less);
            }
            dictionary = merged;
        }
    }

    proptest! {
        #[test]
        fn merged_dictionaries_are_in_order(
            texts in prop::collection::vec("[a-cé]{0,4}", 0..300),
            numbers in prop::collection::vec((-50i64..50, 0u8..3), 0..300),
            unused in 0usize..9,
        ) {
            let texts: Vec<Value> = texts.iter().map(Value::text_of).collect();
            check(&texts, unused, usize::MAX);
            let numeric = |&(digits, zeros): &(i64, u8)| {
                let text = format!("{digits}.{}", "0".repeat(zeros.into()));
                Value::Numeric(Numeric::parse(text.trim_end_matches('.')).expect("a number"))
            };
            check(&numbers.iter().map(numeric).collect::<Vec<_>>(), unused, usize::MAX);
        }
    }

    /// Values that others bring have the codes that each by itself would have been found by.
    fn check_taken_in(first: &[Value], others: &[Vec<Value>], rows: usize) {
        let of = |values: &[Value]| {
            let mut dictionary = Dictionary::default();
            for value in values {
                if dictionary.find(value).is_none() {
                    dictionary.add(value);
                }
            }
            dictionary
        };
        let first = of(first);
        let mut dictionary = Arc::new(first.merged(&vec![true; first.len()], rows).0);
        let others: Vec<Dictionary> = others.iter().map(|values| of(values)).collect();
        let before = dictionary.len();
        let codes = Dictionary::take_in(&mut dictionary, &others.iter().collect::<Vec<_>>());
        let mut highest = before;
        for (other, codes) in others.iter().zip(&codes) {
            assert_eq!(codes.len(), other.len());
            for (code, &here) in codes.iter().enumerate() {
                assert_eq!(dictionary.find(&other.value(code as u64)), Some(here.into()));
                highest = highest.max(here as usize + 1);
            }
        }
        assert_eq!(dictionary.len(), highest, "a code for each new value, and no other");
    }

    proptest! {
        #[test]
        fn what_others_bring_is_found(
            texts in prop::collection::vec("[a-c]{0,9}", 0..300),
            others in prop::collection::vec(prop::collection::vec("[a-c]{0,9}", 0..100), 0..4),
        ) {
            let values = |texts: &[String]| texts.iter().map(Value::text_of).collect::<Vec<_>>();
            let others: Vec<Vec<Value>> = others.iter().map(|texts| values(texts)).collect();
            check_taken_in(&values(&texts), &others, usize::MAX);
        }

        #[test]
        fn what_others_bring_is_found_in_a_heap(
            others in prop::collection::vec(prop::collection::vec(0usize..4 * TINY, 0..300), 0..4),
        ) {
            let value = |number: usize| Value::text_of(format!("{:x}", number * 7919));
            let first: Vec<Value> = (0..3 * TINY).map(value).collect();
            let others: Vec<Vec<Value>> =
                others.iter().map(|numbers| numbers.iter().map(|number| value(*number)).collect()).collect();
            check_taken_in(&first, &others, 2 * TINY);
        }
    }

    #[test]
    fn many_texts_that_hardly_repeat_lie_in_one_heap() {
        let texts: Vec<Value> = (0..3 * TINY).map(|n| Value::text_of(format!("{:x}", n * 7919))).collect();
        check(&texts, 3, 2 * TINY);
    }
}
