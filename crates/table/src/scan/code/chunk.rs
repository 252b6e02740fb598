//! Chunks: a column's values in one block, as packed numbers, with the NULLs and a filter that shows quickly
//! that a value is absent.

use super::{
    hint,
    packed::{Codes, Packed},
};
use crate::{
    engine::Failure,
    saved::{self, Input, NameCell},
};

/// The size of a membership filter, in bits.
const FILTER_BITS: usize = 4096;

#[derive(Clone)]
pub(in crate::scan) struct Chunk {
    /// The numbers of all rows; arbitrary for a NULL.
    pub(in crate::scan) numbers: Packed,
    /// A bit for each row, set for NULL; `None` if no value is NULL.
    nulls: Option<Vec<u64>>,
    /// A lower bound of the numbers; not always the least one.
    pub(in crate::scan) low: u64,
    /// An upper bound of the numbers.
    pub(in crate::scan) high: u64,
    /// A bit for the hash of every number, if codes are wider than a byte.
    filter: Option<Box<[u64; FILTER_BITS / 64]>>,
    /// The name of the chunk's fragment on disk; a change clears it.
    pub(in crate::scan) mark: NameCell,
}

fn filter_bit(number: u64) -> (usize, u64) {
    let bit = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize;
    (bit / 64, 1 << (bit % 64))
}

impl Chunk {
    pub(in crate::scan) fn new(values: &[Option<u64>]) -> Chunk {
        let nulls = values.iter().any(Option::is_none).then(|| {
            let mut bits = vec![0; values.len().div_ceil(64)];
            for (index, _) in values.iter().enumerate().filter(|(_, value)| value.is_none()) {
                bits[index / 64] |= 1 << (index % 64);
            }
            bits
        });
        Chunk::of(values.iter().map(|value| value.unwrap_or(0)).collect(), nulls)
    }

    /// Builds a chunk from numbers and NULL bits; the number of a NULL does not matter.
    fn of(mut numbers: Vec<u64>, nulls: Option<Vec<u64>>) -> Chunk {
        let there =
            |index: usize| nulls.as_ref().is_none_or(|nulls| nulls[index / 64] >> (index % 64) & 1 == 0);
        let (mut low, mut high) = (u64::MAX, 0);
        for (index, &number) in numbers.iter().enumerate() {
            if there(index) {
                (low, high) = (low.min(number), high.max(number));
            }
        }
        low = low.min(high);
        if nulls.is_some() {
            numbers
                .iter_mut()
                .enumerate()
                .filter(|(index, _)| !there(*index))
                .for_each(|(_, number)| *number = low);
        }
        let packed = Packed::pack(&numbers);
        let filter = (!matches!(packed.codes, Codes::Same(_) | Codes::U8(_))).then(|| {
            let mut filter = Box::new([0; FILTER_BITS / 64]);
            for (index, &number) in numbers.iter().enumerate() {
                let (word, bit) = filter_bit(number);
                filter[word] |= if there(index) { bit } else { 0 };
            }
            filter
        });
        Chunk { numbers: packed, nulls, low, high, filter, mark: NameCell::default() }
    }

    /// Returns a chunk of the same rows, with each number `n` replaced by `numbers[n]`.
    pub(in crate::scan) fn renumbered(&self, numbers: &[u32]) -> Chunk {
        let renumber = |(index, old): (usize, u64)| match self.is_null(index) {
            true => 0,
            false => numbers[old as usize].into(),
        };
        let nulls = self.nulls.clone().filter(|bits| bits.iter().any(|word| *word != 0));
        Chunk::of(self.numbers.numbers().into_iter().enumerate().map(renumber).collect(), nulls)
    }

    pub(in crate::scan) fn is_null(&self, index: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls[index / 64] >> (index % 64) & 1 == 1)
    }

    /// Returns the NULL bits, if the chunk keeps any.
    pub(in crate::scan) fn nulls(&self) -> Option<&[u64]> {
        self.nulls.as_deref()
    }

    #[inline]
    pub(in crate::scan) fn value(&self, index: usize) -> Option<u64> {
        (!self.is_null(index)).then(|| self.numbers.number(index))
    }

    /// Writes the numbers of these rows into the slots in order; an arbitrary number for NULL.
    pub(in crate::scan) fn gather<'s>(&self, rows: &[u32], slots: impl Iterator<Item = &'s mut u64>) {
        self.numbers.gather(rows, slots);
    }

    /// Prefetches the chunk's header.
    #[inline]
    pub(in crate::scan) fn prefetch(&self) {
        hint::prefetch(self);
        hint::prefetch(&self.filter);
    }

    /// Prefetches the memory that an update of a row writes.
    #[inline]
    pub(in crate::scan) fn prefetch_row(&self, index: usize) {
        hint::prefetch(&self.filter);
        self.numbers.prefetch(index);
    }

    /// Prefetches all values and the whole filter.
    pub(in crate::scan) fn prefetch_all(&self) {
        for words in self.filter.iter().flat_map(|filter| filter.as_chunks::<8>().0) {
            hint::prefetch(words);
        }
        self.numbers.prefetch_all();
    }

    /// Prefetches the filter bit of a number that is about to be written.
    #[inline]
    pub(in crate::scan) fn prefetch_mark(&self, number: Option<u64>) {
        if let (Some(filter), Some(number)) = (&self.filter, number) {
            hint::prefetch(&filter[filter_bit(number).0]);
        }
    }

    /// Prefetches the values, and the filter bit of a number.
    pub(in crate::scan) fn prefetch_values(&self, number: u64) {
        self.prefetch_mark(Some(number));
        self.numbers.prefetch_pages();
    }

    pub(in crate::scan) fn values(&self) -> Vec<Option<u64>> {
        let numbers = self.numbers.numbers().into_iter();
        match &self.nulls {
            None => numbers.map(Some).collect(),
            Some(_) => {
                numbers.enumerate().map(|(index, number)| (!self.is_null(index)).then_some(number)).collect()
            }
        }
    }

    /// Whether the chunk may hold a number.
    pub(in crate::scan) fn may_hold(&self, number: u64) -> bool {
        self.low <= number
            && number <= self.high
            && self.filter.as_ref().is_none_or(|filter| {
                let (word, bit) = filter_bit(number);
                filter[word] & bit != 0
            })
    }

    fn widen(&mut self, number: u64) {
        self.low = self.low.min(number);
        self.high = self.high.max(number);
        if let Some(filter) = &mut self.filter {
            let (word, bit) = filter_bit(number);
            filter[word] |= bit;
        }
    }

    fn mark(&mut self, index: usize, null: bool) {
        if null && self.nulls.is_none() {
            self.nulls = Some(vec![0; self.numbers.len().div_ceil(64)]);
        }
        if let Some(nulls) = &mut self.nulls {
            nulls[index / 64] = nulls[index / 64] & !(1 << (index % 64)) | u64::from(null) << (index % 64);
        }
    }

    pub(in crate::scan) fn set(&mut self, index: usize, value: Option<u64>) {
        self.mark.clear();
        if let Some(number) = value {
            self.numbers.set(index, number);
            self.widen(number);
        }
        self.mark(index, value.is_none());
    }

    pub(in crate::scan) fn insert(&mut self, index: usize, value: Option<u64>) {
        self.mark.clear();
        self.numbers.insert(index, value.unwrap_or(self.numbers.base));
        if let Some(number) = value {
            self.widen(number);
        }
        let words = self.numbers.len().div_ceil(64);
        if let Some(nulls) = &mut self.nulls {
            nulls.resize(words, 0);
            for word in (index / 64 + 1..words).rev() {
                nulls[word] = nulls[word] << 1 | nulls[word - 1] >> 63;
            }
            let below = (1u64 << (index % 64)) - 1;
            let word = nulls[index / 64];
            nulls[index / 64] = word & below | (word & !below) << 1;
        }
        self.mark(index, value.is_none());
    }

    pub(in crate::scan) fn remove(&mut self, index: usize) {
        self.mark.clear();
        self.numbers.remove(index);
        let words = self.numbers.len().div_ceil(64);
        if let Some(nulls) = &mut self.nulls {
            let below = (1u64 << (index % 64)) - 1;
            let word = nulls[index / 64];
            nulls[index / 64] = word & below | word >> 1 & !below;
            for word in index / 64 + 1..nulls.len() {
                nulls[word - 1] |= nulls[word] << 63;
                nulls[word] >>= 1;
            }
            nulls.truncate(words);
        }
    }

    /// Encodes the chunk as a fragment of a saved version.
    pub(in crate::scan) fn encode(&self, out: &mut Vec<u8>) {
        self.numbers.encode(out);
        out.push(u8::from(self.nulls.is_some()) | u8::from(self.filter.is_some()) << 1);
        saved::put_u64s(out, &[self.low, self.high]);
        saved::put_u64s(out, self.nulls.as_deref().unwrap_or_default());
        saved::put_u64s(out, self.filter.as_ref().map_or(&[], |filter| &filter[..]));
    }

    /// Decodes the fragment of this mark. Fails if it is malformed.
    pub(in crate::scan) fn decode(mut input: Input<'_>, mark: NameCell) -> Result<Chunk, Failure> {
        let numbers = Packed::decode(&mut input)?;
        let flags = input.u8()?;
        let (low, high) = (input.u64()?, input.u64()?);
        let nulls = (flags & 1 != 0).then(|| input.u64s(numbers.len().div_ceil(64))).transpose()?;
        let filter = (flags & 2 != 0).then(|| input.u64s(FILTER_BITS / 64)).transpose()?;
        let filter = filter.map(|words| {
            words.into_boxed_slice().try_into().expect("the filter has a fixed number of words")
        });
        input.end()?;
        Ok(Chunk { numbers, nulls, low, high, filter, mark })
    }

    pub(in crate::scan) fn bytes(&self) -> usize {
        size_of::<Chunk>()
            + 2 * size_of::<usize>()
            + self.numbers.bytes()
            + self.nulls.as_ref().map_or(0, |nulls| nulls.capacity() * size_of::<u64>())
            + self.filter.as_ref().map_or(0, |_| FILTER_BITS / 8)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_chunk_equals_a_vector(
            first in prop::collection::vec(prop::option::of(0u64..300), 1..200),
            steps in prop::collection::vec((0u8..3, 0usize..1000, prop::option::of(prop_oneof![
                0u64..400, any::<u32>().prop_map(u64::from), any::<u64>()
            ])), 0..200),
        ) {
            let (mut chunk, mut model) = (Chunk::new(&first), first);
            for (kind, at, value) in steps {
                match kind {
                    0 => {
                        let at = at % (model.len() + 1);
                        model.insert(at, value);
                        chunk.insert(at, value);
                    }
                    1 if model.len() > 1 => {
                        let at = at % model.len();
                        model.remove(at);
                        chunk.remove(at);
                    }
                    _ => {
                        let at = at % model.len();
                        model[at] = value;
                        chunk.set(at, value);
                    }
                }
                prop_assert_eq!(chunk.values(), &model[..]);
                prop_assert!(model.iter().flatten().all(|number| chunk.may_hold(*number)));
            }
        }
    }
}
