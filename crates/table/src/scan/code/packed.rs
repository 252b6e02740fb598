//! Numbers as narrow codes: a base, and the distance of each number from it in as few bytes as the largest
//! distance needs.

#![allow(clippy::unnecessary_cast)] // Every width shares one code; at 64 bits its cast does nothing.

use super::hint;
use crate::{
    engine::Failure,
    saved::{self, Input},
};

/// Runs the same code for each width.
macro_rules! each_width {
    ($codes:expr, $same:pat => $constant:expr, $vector:ident => $body:expr) => {
        match $codes {
            $same => $constant,
            Codes::U8($vector) => $body,
            Codes::U16($vector) => $body,
            Codes::U32($vector) => $body,
            Codes::U64($vector) => $body,
        }
    };
}

pub(in crate::scan) use each_width;

/// The size of a cache line, in bytes.
const LINE: usize = 64;
/// The number of cache lines that are prefetched per page; the processor then detects the sequence itself.
const LINES_ASKED: usize = 8;

/// A full list grows by 1/`GROWTH_PART` of its length.
const GROWTH_PART: usize = 8;

/// Distances from the base.
#[derive(Clone, Debug)]
pub(in crate::scan) enum Codes {
    /// The number of codes, all of them zero.
    Same(usize),
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
}

/// A list of numbers.
#[derive(Clone, Debug)]
pub struct Packed {
    pub(in crate::scan) base: u64,
    pub(in crate::scan) codes: Codes,
}

impl Packed {
    /// Packs numbers in codes as narrow as possible.
    pub fn pack(numbers: &[u64]) -> Packed {
        let base = numbers.iter().copied().min().unwrap_or(0);
        let span = numbers.iter().copied().max().unwrap_or(0) - base;
        let distances = numbers.iter().map(|number| number - base);
        let codes = match span {
            0 => Codes::Same(numbers.len()),
            1..=0xFF => Codes::U8(distances.map(|code| code as u8).collect()),
            0x100..=0xFFFF => Codes::U16(distances.map(|code| code as u16).collect()),
            0x1_0000..=0xFFFF_FFFF => Codes::U32(distances.map(|code| code as u32).collect()),
            _ => Codes::U64(distances.collect()),
        };
        Packed { base, codes }
    }

    pub(in crate::scan) fn len(&self) -> usize {
        each_width!(&self.codes, Codes::Same(len) => *len, codes => codes.len())
    }

    #[inline]
    pub(in crate::scan) fn number(&self, index: usize) -> u64 {
        self.base.wrapping_add(each_width!(&self.codes, Codes::Same(_) => 0, codes => codes[index] as u64))
    }

    pub(in crate::scan) fn numbers(&self) -> Vec<u64> {
        let base = self.base;
        each_width!(&self.codes, Codes::Same(len) => vec![base; *len],
            codes => codes.iter().map(|&code| base + code as u64).collect())
    }

    /// Drops from a list the rows whose numbers lie outside a range, but never the first `first` rows of the
    /// list.
    pub fn retain_within(&self, low: u64, high: u64, rows: &mut Vec<u32>, first: usize) {
        let Some(span) = high.checked_sub(low) else { return rows.truncate(first) };
        // `number - low` equals `code - (low - base)`, modulo 2^64.
        let low = low.wrapping_sub(self.base);
        let mut kept = first;
        each_width!(&self.codes, Codes::Same(_) => {
            if 0u64.wrapping_sub(low) <= span {
                kept = rows.len();
            }
        }, codes => {
            for next in first..rows.len() {
                let row = rows[next];
                rows[kept] = row;
                kept += usize::from((codes[row as usize] as u64).wrapping_sub(low) <= span);
            }
        });
        rows.truncate(kept);
    }

    /// Writes the numbers of these rows into the slots in order.
    #[inline]
    pub fn gather<'s>(&self, rows: &[u32], slots: impl Iterator<Item = &'s mut u64>) {
        let base = self.base;
        each_width!(&self.codes, Codes::Same(_) => slots.take(rows.len()).for_each(|slot| *slot = base),
            codes => rows.iter().zip(slots).for_each(|(&row, slot)| *slot = base + codes[row as usize] as u64));
    }

    /// Prefetches a number.
    #[inline]
    pub(in crate::scan) fn prefetch(&self, index: usize) {
        each_width!(&self.codes, Codes::Same(_) => {}, codes => {
            codes.get(index).into_iter().for_each(hint::prefetch)
        });
    }

    /// Prefetches all numbers.
    pub(in crate::scan) fn prefetch_all(&self) {
        each_width!(&self.codes, Codes::Same(_) => {}, codes => {
            codes.iter().step_by(LINE / size_of_val(&codes[0])).for_each(hint::prefetch);
        });
    }

    /// Prefetches the beginning of each page; the processor itself prefetches the rest once it detects the
    /// sequence.
    pub(super) fn prefetch_pages(&self) {
        each_width!(&self.codes, Codes::Same(_) => {}, codes => {
            let line = LINE / size_of_val(&codes[0]);
            let pages = codes.chunks(64 * line);
            pages.flat_map(|page| page.iter().step_by(line).take(LINES_ASKED)).for_each(hint::prefetch);
        });
    }

    /// Returns the distance of a number, if the present width holds it.
    fn code(&self, number: u64) -> Option<u64> {
        let code = number.checked_sub(self.base)?;
        let most = match &self.codes {
            Codes::Same(_) => 0,
            Codes::U8(_) => u8::MAX.into(),
            Codes::U16(_) => u16::MAX.into(),
            Codes::U32(_) => u32::MAX.into(),
            Codes::U64(_) => u64::MAX,
        };
        (code <= most).then_some(code)
    }

    pub(in crate::scan) fn set(&mut self, index: usize, number: u64) {
        match self.code(number) {
            Some(code) => {
                each_width!(&mut self.codes, Codes::Same(_) => {}, codes => codes[index] = code as _);
            }
            None => {
                let mut numbers = self.numbers();
                numbers[index] = number;
                *self = Packed::pack(&numbers);
            }
        }
    }

    pub(in crate::scan) fn insert(&mut self, index: usize, number: u64) {
        match self.code(number) {
            Some(code) => {
                each_width!(&mut self.codes, Codes::Same(len) => *len += 1, codes => {
                    // The list grows by a small part of its length: a block never doubles, and a copied
                    // list has no spare capacity.
                    if codes.len() == codes.capacity() {
                        codes.reserve_exact(codes.len() / GROWTH_PART + 1);
                    }
                    codes.insert(index, code as _);
                });
            }
            None => {
                let mut numbers = self.numbers();
                numbers.insert(index, number);
                *self = Packed::pack(&numbers);
            }
        }
    }

    pub(in crate::scan) fn remove(&mut self, index: usize) {
        each_width!(&mut self.codes, Codes::Same(len) => *len -= 1, codes => { codes.remove(index); });
    }

    /// Encodes the list for a fragment of a saved version: code width in bytes, count, base, codes.
    pub(in crate::scan) fn encode(&self, out: &mut Vec<u8>) {
        out.push(match &self.codes {
            Codes::Same(_) => 0,
            Codes::U8(_) => 1,
            Codes::U16(_) => 2,
            Codes::U32(_) => 4,
            Codes::U64(_) => 8,
        });
        saved::put_u32(out, self.len());
        saved::put_u64s(out, &[self.base]);
        each_width!(&self.codes, Codes::Same(_) => {}, codes => {
            out.reserve(size_of_val(&codes[..]));
            codes.iter().for_each(|code| out.extend_from_slice(&code.to_le_bytes()));
        });
    }

    /// Decodes a list. Fails if it is malformed.
    pub(in crate::scan) fn decode(input: &mut Input<'_>) -> Result<Packed, Failure> {
        macro_rules! codes {
            ($width:ident, $number:ty, $count:expr) => {{
                const BYTES: usize = size_of::<$number>();
                let bytes = input.take($count.checked_mul(BYTES).ok_or_else(saved::malformed)?)?;
                let codes = bytes.as_chunks::<BYTES>().0.iter();
                Codes::$width(codes.map(|code| <$number>::from_le_bytes(*code)).collect())
            }};
        }
        let (width, count, base) = (input.u8()?, input.u32()? as usize, input.u64()?);
        let codes = match width {
            0 => Codes::Same(count),
            1 => codes!(U8, u8, count),
            2 => codes!(U16, u16, count),
            4 => codes!(U32, u32, count),
            8 => codes!(U64, u64, count),
            _ => return Err(saved::malformed()),
        };
        Ok(Packed { base, codes })
    }

    pub(in crate::scan) fn bytes(&self) -> usize {
        fn taken<C>(codes: &Vec<C>) -> usize {
            codes.capacity() * size_of::<C>()
        }
        each_width!(&self.codes, Codes::Same(_) => 0, codes => taken(codes))
    }

    /// Returns how many numbers satisfy a condition, which must hold for a leading part of the list only. The
    /// search begins near a guess and doubles its steps.
    pub(in crate::scan) fn partition_point_near(&self, near: usize, holds: impl Fn(u64) -> bool) -> usize {
        let len = self.len();
        let (mut low, mut high, mut step) = (near, near, 1);
        if near < len && holds(self.number(near)) {
            while high < len && holds(self.number(high)) {
                low = high + 1;
                high += step;
                step *= 2;
            }
            high = high.min(len);
        } else {
            while low > 0 && !holds(self.number(low - 1)) {
                high = low - 1;
                low = high.saturating_sub(step);
                step *= 2;
            }
        }
        self.partition_point(low, high, holds)
    }

    /// Returns how many numbers satisfy a condition, which must hold for a leading part of the list only.
    /// The result must lie from `low` to `high`.
    pub(in crate::scan) fn partition_point(
        &self,
        low: usize,
        high: usize,
        holds: impl Fn(u64) -> bool,
    ) -> usize {
        let (mut low, mut high) = (low, high);
        while low < high {
            let middle = (low + high) / 2;
            if holds(self.number(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_partition_point_is_found_from_any_start(
            mut numbers in prop::collection::vec(0u64..400, 1..300),
            from in 0usize..300,
            bound in 0u64..410,
        ) {
            numbers.sort_unstable();
            let packed = Packed::pack(&numbers);
            let point = numbers.partition_point(|&number| number < bound);
            let near = from.min(numbers.len());
            prop_assert_eq!(packed.partition_point_near(near, |number| number < bound), point);
            prop_assert_eq!(packed.partition_point(0, numbers.len(), |number| number < bound), point);
        }
    }
}
