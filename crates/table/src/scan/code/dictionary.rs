//! Dictionaries: codes for the texts or numerics of a column.
//!
//! Codes of the *sorted* part have the order of their values (of their bytes for `jsonb`), so a range of
//! values is a range of codes. New values get the next codes, in the *tail*, in the order of arrival. A tail
//! that is long relative to the sorted part is merged (`block/change.rs`). All values in use then get new
//! codes, the column's chunks are rebuilt, and values that no row holds are dropped. Versions share the
//! sorted part and copy the tail.
//!
//! A sorted part keeps each value separately if its values are few and several rows share each value. Results
//! can then share the values, and a hash finds them. Any other sorted part of texts keeps them in one heap
//! (`texts.rs`) and finds them by binary search, which takes a fifth of the memory. The tail has the form of
//! the sorted part, but always finds values by hash (`positions.rs`).

use std::{cmp::Ordering, hash::BuildHasher, sync::Arc};

use rustc_hash::FxBuildHasher;

use crate::{
    engine::Failure,
    saved::{self, Name, OutlineLine, Records, Runs, Saver},
    value::Value,
};

use super::{hint, positions::Positions, texts::Texts};

/// Maximum number of texts that a sorted part keeps separately.
const SEPARATE_TEXTS_MAX: usize = 1 << 16;
/// A sorted part with more values than `UNSHARED_MAX` keeps texts separately only if `ROWS_PER_VALUE_MIN`
/// rows on average share a value.
const UNSHARED_MAX: usize = 1024;
const ROWS_PER_VALUE_MIN: usize = 4;
/// The least length of a tail that is merged; the tail must also reach a quarter of the sorted part's length.
const TAIL_MIN: usize = 1024;
/// A tail is sorted once it has more unsorted values than this number plus a quarter of its sorted values.
const UNSORTED_MIN: usize = 64;
/// Maximum number of values of a run on disk. A run also ends with the value that takes it to `RUN_BYTES`.
const RUN_VALUES: usize = 1 << 14;
const RUN_BYTES: usize = 256 << 10;
/// The number of the tail's first run; lower numbers belong to the sorted part.
const TAIL: usize = 1 << 32;

#[derive(Clone, Default)]
pub(in crate::scan) struct Dictionary {
    sorted: Arc<Sorted>,
    tail: Values,
    /// The first positions of the tail, sorted by value. Searches compare the unsorted positions behind them
    /// one by one.
    ordered: Vec<u32>,
    /// The index that finds values in the tail.
    positions: Positions,
    /// The runs of the tail on disk.
    runs: Arc<Runs>,
}

#[derive(Default)]
struct Sorted {
    values: Values,
    /// The index that finds values; empty for texts in a heap.
    positions: Positions,
    /// The runs of the values on disk.
    runs: Runs,
}

/// The values of the sorted part of a dictionary, each under its index.
#[derive(Clone)]
enum Values {
    /// Each value separately.
    Each(Vec<Value>),
    /// Texts in one heap.
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

    /// Returns a text without copying it; `None` for other values.
    fn text(&self, position: usize) -> Option<&str> {
        match self {
            Values::Texts(texts) => Some(texts.text(position)),
            Values::Each(values) => match &values[position] {
                Value::Text(text) => Some(text),
                _ => None,
            },
        }
    }

    /// Whether the value at a position is identical to `value`. 1.0 and 1.00 are not identical.
    fn is(&self, position: usize, value: &Value) -> bool {
        match (self, value) {
            (Values::Each(values), value) => values[position] == *value,
            (Values::Texts(texts), Value::Text(text)) => texts.text(position) == &**text,
            _ => false,
        }
    }

    /// Compares the value at a position to a value of the column's type.
    fn order(&self, position: usize, value: &Value) -> Ordering {
        match (self, value) {
            (Values::Texts(texts), Value::Text(text)) => texts.text(position).as_bytes().cmp(text.as_bytes()),
            (Values::Each(values), value) => code_order(&values[position], value),
            (values, value) => code_order(&values.value(position), value),
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
                    text.as_bytes().first().into_iter().for_each(hint::prefetch)
                }
                Some(value) if !deep => hint::prefetch(value),
                _ => {}
            },
        }
    }

    /// Builds an index of the values by hash.
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

    /// Returns the end of a run on disk that begins at `start`.
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

    /// Encodes a range of the values as a fragment of a saved version.
    fn encode(&self, start: usize, end: usize, out: &mut Vec<u8>) {
        match self {
            Values::Each(values) => saved::put_rest(out, &&values[start..end]),
            Values::Texts(texts) => {
                (start..end).for_each(|position| saved::put_u32(out, texts.text(position).len()));
                (start..end).for_each(|position| out.extend_from_slice(texts.text(position).as_bytes()));
            }
        }
    }

    /// Restores values from runs. Fails if a run is malformed.
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
struct ForeignValue {
    beginning: u64,
    other: u32,
    code: u32,
}

/// Returns the first eight bytes of a text as a number that has the order of the texts.
fn beginning(text: &str) -> u64 {
    let mut bytes = [0; 8];
    let len = text.len().min(bytes.len());
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    u64::from_be_bytes(bytes)
}

fn hash(value: &Value) -> u32 {
    FxBuildHasher.hash_one(value) as u32
}

/// Compares by value, except for documents. These compare by their bytes, because comparing them by value
/// would parse them. So no condition on documents is a range of codes.
fn code_order(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Jsonb(a), Value::Jsonb(b)) => a.as_bytes().cmp(b.as_bytes()),
        (a, b) => a.order(b),
    }
}

/// Compares by value, equal numerics (1.0 and 1.00) by scale, and equal `character`s by length.
fn identity_order(a: &Value, b: &Value) -> Ordering {
    code_order(a, b).then_with(|| match (a, b) {
        (Value::Numeric(a), Value::Numeric(b)) => a.scale().cmp(&b.scale()),
        (Value::Bpchar(a), Value::Bpchar(b)) => a.len().cmp(&b.len()),
        _ => Ordering::Equal,
    })
}

impl Sorted {
    /// Builds a sorted part from these codes of a dictionary, which are in the order of their values. `texts`
    /// says that all values are texts; `rows` is the number of rows that hold them.
    fn of(dictionary: &Dictionary, codes: &[u32], texts: bool, rows: usize) -> Sorted {
        let rare = codes.len() > UNSHARED_MAX && rows < ROWS_PER_VALUE_MIN * codes.len();
        if texts && (rare || codes.len() > SEPARATE_TEXTS_MAX) {
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

    /// Returns the first code whose value is at least `value` (if `above`, greater than `value`).
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

    /// Returns the first position from `from` on whose value is at least `value`. All values before `from`
    /// must be less than `value`.
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

/// Returns the least result that comparing a value of a range with the lower bound of the range can have.
/// `with` says whether the bound itself belongs to the range.
fn at_least(with: bool) -> Ordering {
    if with { Ordering::Equal } else { Ordering::Greater }
}

impl Dictionary {
    pub(in crate::scan) fn value(&self, code: u64) -> Value {
        let (values, position) = self.at(code as usize);
        values.value(position)
    }

    /// Returns the list and position of the value of a code.
    fn at(&self, code: usize) -> (&Values, usize) {
        match code.checked_sub(self.sorted.len()) {
            None => (&self.sorted.values, code),
            Some(behind) => (&self.tail, behind),
        }
    }

    /// Whether each read of the value of a code allocates a copy.
    #[inline]
    pub(in crate::scan) fn copies(&self, code: u64) -> bool {
        matches!(self.at(code as usize).0, Values::Texts(_))
    }

    /// Prefetches a value of the sorted part: its pointer or end, or (if `deep`) its bytes.
    #[inline]
    pub(in crate::scan) fn prefetch(&self, code: u64, deep: bool) {
        self.sorted.values.prefetch(code as usize, deep);
    }

    /// Returns the code of a value; values that are equal but not identical have different codes.
    pub(in crate::scan) fn find(&self, value: &Value) -> Option<u64> {
        let hash = hash(value);
        let sorted = self.sorted.find(value, hash).map(u64::from);
        sorted.or_else(|| {
            let behind = self.positions.find(hash, |position| self.tail.is(position as usize, value))?;
            Some(self.sorted.len() as u64 + u64::from(behind))
        })
    }

    /// Adds a value that has no code, and returns its new code.
    pub(in crate::scan) fn add(&mut self, value: &Value) -> u64 {
        let code = u32::try_from(self.len()).expect("fewer values than rows");
        self.positions.add(hash(value), self.tail.len() as u32);
        self.tail.push(value);
        code.into()
    }

    /// Returns this dictionary's codes for all values of `others`, indexed by the other dictionary and by its
    /// code. Adds the values that are new here.
    ///
    /// Texts are searched in sorted order, each from the position of the one before. A heap is thus walked
    /// once, while a binary search for each text would jump about in it.
    pub(in crate::scan) fn merge_codes(this: &mut Arc<Dictionary>, others: &[&Dictionary]) -> Vec<Vec<u32>> {
        let mut codes: Vec<Vec<u32>> = others.iter().map(|other| vec![0; other.len()]).collect();
        let mut all: Vec<ForeignValue> = Vec::with_capacity(others.iter().map(|other| other.len()).sum());
        for (other, dictionary) in others.iter().enumerate() {
            all.extend((0..dictionary.len()).map(|code| {
                let beginning = dictionary.text(code).map_or(0, beginning);
                ForeignValue { beginning, other: other as u32, code: code as u32 }
            }));
        }
        let text = |foreign: &ForeignValue| others[foreign.other as usize].text(foreign.code as usize);
        all.sort_unstable_by(|a, b| {
            let beginnings = a.beginning.cmp(&b.beginning);
            beginnings.then_with(|| text(a).map(str::as_bytes).cmp(&text(b).map(str::as_bytes)))
        });
        let (mut from, mut before): (usize, Option<(&ForeignValue, u32)>) = (0, None);
        for foreign in &all {
            let is_same = |before: &ForeignValue| text(foreign).is_some() && text(before) == text(foreign);
            let code = match before.filter(|(before, _)| is_same(before)) {
                Some((_, code)) => code,
                None => {
                    let value = others[foreign.other as usize].value(foreign.code.into());
                    let known = this.find_from(&value, &mut from);
                    known.unwrap_or_else(|| Arc::make_mut(this).add(&value) as u32)
                }
            };
            codes[foreign.other as usize][foreign.code as usize] = code;
            before = Some((foreign, code));
        }
        codes
    }

    /// Returns the code of a value. If the value is a text, no value searched before with this `from` may be
    /// greater.
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

    /// Whether the tail has enough unsorted values to be sorted.
    pub(in crate::scan) fn is_unsorted(&self) -> bool {
        self.tail.len() - self.ordered.len() > UNSORTED_MIN + self.ordered.len() / 4
    }

    /// Sorts the tail.
    pub(in crate::scan) fn order_tail(&mut self) {
        self.ordered = self.tail_in_order(|_| true);
    }

    /// Returns the wanted positions of the tail, sorted by value. The first bytes order most texts, without
    /// an access to the heap.
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

    /// Returns the codes of the values between two bounds, each with a flag that says whether the bound
    /// belongs to the range. The result is a range of the sorted part, its end excluded, and a sorted list of
    /// codes of the tail.
    pub(in crate::scan) fn between(
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

    pub(in crate::scan) fn len(&self) -> usize {
        self.sorted.len() + self.tail.len()
    }

    pub(in crate::scan) fn wants_merge(&self) -> bool {
        self.tail.len() >= TAIL_MIN.max(self.sorted.len() / 4)
    }

    /// Returns a text without copying it; `None` for other values.
    fn text(&self, code: usize) -> Option<&str> {
        let (values, position) = self.at(code);
        values.text(position)
    }

    /// Compares the values of two codes.
    fn compare(&self, a: u32, b: u32) -> Ordering {
        match (self.text(a as usize), self.text(b as usize)) {
            (Some(a), Some(b)) => a.as_bytes().cmp(b.as_bytes()),
            _ => identity_order(&self.value(a.into()), &self.value(b.into())),
        }
    }

    /// Returns a dictionary of the used values, all of them sorted, and the new code of every used old code.
    /// `rows` is the number of rows that use them. Only the tail is sorted; the sorted part is then merged
    /// with it.
    pub(in crate::scan) fn merged(&self, used: &[bool], rows: usize) -> (Dictionary, Vec<u32>) {
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

    /// Saves the values that are not on disk, from run `at` on: first the sorted part, then the tail. If
    /// the saver becomes full, returns the number of the run at which the next call continues.
    pub(in crate::scan) fn save(&self, column: usize, mut at: usize, saver: &mut Saver<'_>) -> Option<usize> {
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
        saver.line(&OutlineLine::Dictionary { column: column as u32, heaps, sorted, tail });
        None
    }

    /// Restores a saved dictionary. Fails if a run is malformed.
    pub(in crate::scan) fn restored(
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

    /// Returns the memory in bytes. The tail counts for every version; the sorted part only for the version
    /// that first inserts it into `counted`.
    pub(in crate::scan) fn bytes_uncounted(&self, counted: &mut std::collections::BTreeSet<usize>) -> usize {
        let first = counted.insert(Arc::as_ptr(&self.sorted).addr());
        self.tail_bytes() + if first { self.sorted.bytes() } else { 0 }
    }

    /// Returns the memory that a newer dictionary does not share, in bytes.
    pub(in crate::scan) fn bytes_unshared(&self, newer: &Dictionary) -> usize {
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

    /// Checks that repeated merges keep the used values, in order, and return the right new code for each old
    /// one.
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

    /// Checks that `merge_codes` returns the codes that single look-ups would find.
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
        let codes = Dictionary::merge_codes(&mut dictionary, &others.iter().collect::<Vec<_>>());
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
        fn values_of_merged_dictionaries_are_found(
            texts in prop::collection::vec("[a-c]{0,9}", 0..300),
            others in prop::collection::vec(prop::collection::vec("[a-c]{0,9}", 0..100), 0..4),
        ) {
            let values = |texts: &[String]| texts.iter().map(Value::text_of).collect::<Vec<_>>();
            let others: Vec<Vec<Value>> = others.iter().map(|texts| values(texts)).collect();
            check_taken_in(&values(&texts), &others, usize::MAX);
        }

        #[test]
        fn values_of_merged_dictionaries_are_found_in_a_heap(
            others in prop::collection::vec(prop::collection::vec(0usize..4 * UNSHARED_MAX, 0..300), 0..4),
        ) {
            let value = |number: usize| Value::text_of(format!("{:x}", number * 7919));
            let first: Vec<Value> = (0..3 * UNSHARED_MAX).map(value).collect();
            let others: Vec<Vec<Value>> =
                others.iter().map(|numbers| numbers.iter().map(|number| value(*number)).collect()).collect();
            check_taken_in(&first, &others, 2 * UNSHARED_MAX);
        }
    }

    #[test]
    fn many_distinct_texts_are_stored_in_one_heap() {
        let texts: Vec<Value> =
            (0..3 * UNSHARED_MAX).map(|n| Value::text_of(format!("{:x}", n * 7919))).collect();
        check(&texts, 3, 2 * UNSHARED_MAX);
    }
}
