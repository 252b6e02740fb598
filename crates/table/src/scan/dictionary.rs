//! Dictionaries: codes for the texts or numerics of a column.
//!
//! Codes of the *sorted* part are ordered as the values are, so that a range of values is a range of codes. New values
//! take codes behind it, in the *tail*, in the order they come. When the tail has grown to a part of the whole, it is
//! merged: the values in use get new codes and the column's chunks are written anew (`mod.rs`), so that what no
//! row holds any more is dropped. Versions share the sorted part and copy the tail.
//!
//! A sorted part whose values are few, and held by several rows each, has them as they are, so that results share them,
//! and finds them by hash; another holds its texts in one heap and finds them by halving, which takes a fifth of the
//! memory.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use rustc_hash::FxBuildHasher;

use crate::value::Value;

use super::kernel;

/// The most values that a sorted part holds as they are.
const SMALL: usize = 1 << 16;
/// Beyond so many, each must on average be held by so many rows.
const TINY: usize = 1024;
const SHARERS: usize = 4;
/// The tail is merged when it is as long as this and as a quarter of the sorted part.
const TAIL_MIN: usize = 1024;
/// The tail is put in order when so many of its values, and a fifth of it, are not.
const LOOSE_MIN: usize = 64;

#[derive(Clone, Default)]
pub(super) struct Dictionary {
    sorted: Arc<Sorted>,
    tail: Vec<Value>,
    /// The first positions of the tail, in the order of the values; those behind are looked at one by one.
    ordered: Vec<u32>,
    index: HashMap<Value, u32, FxBuildHasher>,
}

enum Sorted {
    Values { values: Vec<Value>, index: HashMap<Value, u32, FxBuildHasher> },
    Texts { heap: Box<str>, ends: Box<[u64]> },
}

impl Default for Sorted {
    fn default() -> Sorted {
        Sorted::Values { values: Vec::new(), index: HashMap::default() }
    }
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
            let mut heap = String::with_capacity(codes.iter().map(|code| text(code).len()).sum());
            let ends = codes.iter().map(|code| {
                heap.push_str(text(code));
                heap.len() as u64
            });
            let ends = ends.collect();
            return Sorted::Texts { heap: heap.into_boxed_str(), ends };
        }
        let values: Vec<Value> = codes.iter().map(|&code| dictionary.value(code.into())).collect();
        let index = values.iter().cloned().zip(0..).collect();
        Sorted::Values { values, index }
    }

    fn len(&self) -> usize {
        match self {
            Sorted::Values { values, .. } => values.len(),
            Sorted::Texts { ends, .. } => ends.len(),
        }
    }

    fn text<'a>(heap: &'a str, ends: &[u64], code: usize) -> &'a str {
        let start = code.checked_sub(1).map_or(0, |before| ends[before] as usize);
        &heap[start..ends[code] as usize]
    }

    fn value(&self, code: usize) -> Value {
        match self {
            Sorted::Values { values, .. } => values[code].clone(),
            Sorted::Texts { heap, ends } => Value::text_of(Sorted::text(heap, ends, code)),
        }
    }

    fn find(&self, value: &Value) -> Option<u32> {
        match (self, value) {
            (Sorted::Values { index, .. }, value) => index.get(value).copied(),
            (Sorted::Texts { heap, ends }, Value::Text(text)) => {
                let code =
                    self.first_that(|code| Sorted::text(heap, ends, code).as_bytes() >= text.as_bytes());
                (code < ends.len() && Sorted::text(heap, ends, code) == &**text).then_some(code as u32)
            }
            _ => None,
        }
    }

    /// The first code for which a condition holds that holds for all later ones.
    fn first_that(&self, holds: impl Fn(usize) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if holds(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// The first code whose value is at least (or, if `above`, greater than) this one.
    fn bound(&self, value: &Value, above: bool) -> u64 {
        let least = at_least(!above);
        (match (self, value) {
            (Sorted::Values { values, .. }, value) => {
                self.first_that(|code| values[code].order(value) >= least)
            }
            (Sorted::Texts { heap, ends }, Value::Text(text)) => self
                .first_that(|code| Sorted::text(heap, ends, code).as_bytes().cmp(text.as_bytes()) >= least),
            _ => 0,
        }) as u64
    }

    fn bytes(&self) -> usize {
        match self {
            Sorted::Values { values, index } => values_bytes(values) + index_bytes(index),
            Sorted::Texts { heap, ends } => heap.len() + std::mem::size_of_val(&ends[..]),
        }
    }
}

fn values_bytes(values: &Vec<Value>) -> usize {
    let outside: usize = values.iter().map(|value| value.bytes() - size_of::<Value>()).sum();
    values.capacity() * size_of::<Value>() + outside
}

/// Of the table of an index, whose values are shared: a power of two of entries, each with a byte of its hash, of which
/// one in eight at least stays free.
fn index_bytes(index: &HashMap<Value, u32, FxBuildHasher>) -> usize {
    match index.capacity() {
        0 => 0,
        capacity => (capacity * 8 / 7).next_power_of_two() * (size_of::<(Value, u32)>() + 1),
    }
}

/// How a value must at least stand to a lower bound, which belongs to the range or not.
fn at_least(with: bool) -> Ordering {
    if with { Ordering::Equal } else { Ordering::Greater }
}

impl Dictionary {
    pub(super) fn value(&self, code: u64) -> Value {
        let code = code as usize;
        match code.checked_sub(self.sorted.len()) {
            None => self.sorted.value(code),
            Some(behind) => self.tail[behind].clone(),
        }
    }

    /// Asks for the memory of a value ahead of its use: for what says where the value lies, or (`deep`) for the value.
    #[inline]
    pub(super) fn prefetch(&self, code: u64, deep: bool) {
        let code = code as usize;
        match &*self.sorted {
            Sorted::Values { values, .. } => match values.get(code) {
                Some(Value::Text(text)) if deep => {
                    text.as_bytes().first().into_iter().for_each(kernel::prefetch)
                }
                Some(value) if !deep => kernel::prefetch(value),
                _ => {}
            },
            Sorted::Texts { heap, ends } => match ends.get(code) {
                Some(end) if deep => heap
                    .as_bytes()
                    .get((*end as usize).saturating_sub(1))
                    .into_iter()
                    .for_each(kernel::prefetch),
                Some(end) => kernel::prefetch(end),
                None => {}
            },
        }
    }

    /// The code of this very value.
    pub(super) fn find(&self, value: &Value) -> Option<u64> {
        self.sorted.find(value).or_else(|| self.index.get(value).copied()).map(u64::from)
    }

    /// Gives a code to a value that has none.
    pub(super) fn add(&mut self, value: &Value) -> u64 {
        let code = u32::try_from(self.len()).expect("fewer values than rows");
        self.tail.push(value.clone());
        self.index.insert(value.clone(), code);
        code.into()
    }

    /// Whether many values of the tail are not in order.
    pub(super) fn is_loose(&self) -> bool {
        self.tail.len() - self.ordered.len() > LOOSE_MIN + self.ordered.len() / 4
    }

    /// Puts the tail in order.
    pub(super) fn order_tail(&mut self) {
        self.ordered = (0..self.tail.len() as u32).collect();
        let tail = &self.tail;
        self.ordered.sort_by(|&a, &b| tail[a as usize].order(&tail[b as usize]));
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
            self.ordered.partition_point(|&position| match self.tail[position as usize].order(bound) {
                Ordering::Equal => with,
                order => order.is_lt(),
            })
        };
        let first = low.map_or(0, |(value, with)| below(value, !with));
        let last = high.map_or(self.ordered.len(), |(value, with)| below(value, with));
        let tail = &self.ordered[first..last.max(first)];
        let behind = self.sorted.len() as u64;
        let mut others: Vec<u64> = tail.iter().map(|&position| behind + u64::from(position)).collect();
        let inside = |value: &Value| {
            let above = low.is_none_or(|(low, with)| value.order(low) >= at_least(with));
            above && high.is_none_or(|(high, with)| value.order(high) <= at_least(with).reverse())
        };
        let loose = self.ordered.len()..self.tail.len();
        others.extend(loose.filter(|&one| inside(&self.tail[one])).map(|one| behind + one as u64));
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
        let value = match (code.checked_sub(self.sorted.len()), &*self.sorted) {
            (None, Sorted::Texts { heap, ends }) => return Some(Sorted::text(heap, ends, code)),
            (None, Sorted::Values { values, .. }) => &values[code],
            (Some(behind), _) => &self.tail[behind],
        };
        match value {
            Value::Text(text) => Some(text),
            _ => None,
        }
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
        let (behind, end) = (self.sorted.len() as u32, self.len() as u32);
        let mut tail: Vec<u32> = (behind..end).filter(is_used).collect();
        tail.sort_unstable_by(|&a, &b| self.compare(a, b));
        let mut order: Vec<u32> = Vec::with_capacity(self.len());
        let mut tail = tail.into_iter().peekable();
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
        (Dictionary { sorted: Arc::new(sorted), ..Dictionary::default() }, codes)
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
        size_of::<Dictionary>() + values_bytes(&self.tail) + ordered + index_bytes(&self.index)
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

    #[test]
    fn many_texts_that_hardly_repeat_lie_in_one_heap() {
        let texts: Vec<Value> = (0..3 * TINY).map(|n| Value::text_of(format!("{:x}", n * 7919))).collect();
        check(&texts, 3, 2 * TINY);
    }
}
