//! The inner loops of a pass: they find the codes in a range, and the rows that may interest any of many
//! queries.
//!
//! Each loop exists in plain code, the reference. The compiler builds this code for every processor (on
//! 64-bit ARM with NEON) and again for AVX2. Loops that the compiler vectorises badly also have a manual
//! variant for AVX-512. The variant is chosen at run time. The tests compare every variant that the processor
//! supports with the plain code.
//!
//! The loops are public for the benches.

use super::packed::Codes;

pub use super::packed::Packed;

/// The variant that runs. A level is only created on a processor that supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// Returns the best level of this processor.
    #[inline]
    fn here() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("popcnt")
            {
                return Level::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
                return Level::Avx2;
            }
        }
        Level::Plain
    }
}

/// Sets the bit of each number from `low` to `high` and clears the other bits. `bits` has a word for each 64
/// numbers, and at most 64 words. Returns a mask of the words that have set bits.
pub fn within(numbers: &Packed, low: u64, high: u64, bits: &mut [u64]) -> u64 {
    within_at(Level::here(), numbers, low, high, bits)
}

fn within_at(level: Level, numbers: &Packed, low: u64, high: u64, bits: &mut [u64]) -> u64 {
    assert!(bits.len() <= 64, "a block has at most 64 words of bits");
    let low = low.max(numbers.base);
    let most = match &numbers.codes {
        Codes::Same(_) => 0,
        Codes::U8(_) => u8::MAX.into(),
        Codes::U16(_) => u16::MAX.into(),
        Codes::U32(_) => u32::MAX.into(),
        Codes::U64(_) => u64::MAX,
    };
    if low > high || low - numbers.base > most {
        bits.fill(0);
        return 0;
    }
    let first = low - numbers.base;
    let span = (high - low).min(most - first);
    match &numbers.codes {
        Codes::Same(len) => {
            bits.fill(u64::MAX);
            clear_behind(*len, bits);
            u64::MAX.checked_shr(64 - bits.len() as u32).unwrap_or(0)
        }
        Codes::U8(codes) => dispatch::within_u8(level, codes, first as u8, span as u8, bits),
        Codes::U16(codes) => dispatch::within_u16(level, codes, first as u16, span as u16, bits),
        Codes::U32(codes) => dispatch::within_u32(level, codes, first as u32, span as u32, bits),
        Codes::U64(codes) => dispatch::within_u64(level, codes, first, span, bits),
    }
}

/// Clears the bits from `len` on.
pub(in crate::scan) fn clear_behind(len: usize, bits: &mut [u64]) {
    if !len.is_multiple_of(64) {
        bits[len / 64] &= (1 << (len % 64)) - 1;
    }
    bits[len.div_ceil(64)..].fill(0);
}

/// Adds a column's numbers to the hashes of their rows, each shifted right by `shift` (fewer than 32) bits
/// and multiplied by `factor`. No number may exceed `high`.
pub fn mix(numbers: &Packed, high: u64, shift: u32, factor: u32, hashes: &mut [u32]) {
    mix_at(Level::here(), numbers, high, shift, factor, hashes);
}

fn mix_at(level: Level, numbers: &Packed, high: u64, shift: u32, factor: u32, hashes: &mut [u32]) {
    let base = numbers.base;
    let half = u64::from(u32::MAX);
    let low = base as u32;
    // Unless the upper half is the same for all numbers, each number is folded. Otherwise the upper half adds
    // one constant to every folded number, and the loops below read only the lower half.
    if (base & half).saturating_add(high.saturating_sub(base)) > half
        || matches!(numbers.codes, Codes::U64(_))
    {
        for (index, hash) in hashes.iter_mut().enumerate() {
            *hash = hash.wrapping_add(fold(numbers.number(index) >> shift).wrapping_mul(factor));
        }
        return;
    }
    let constant = fold((base & !half) >> shift).wrapping_mul(factor);
    match &numbers.codes {
        Codes::Same(_) => {
            let constant = (low >> shift).wrapping_mul(factor).wrapping_add(constant);
            hashes.iter_mut().for_each(|hash| *hash = hash.wrapping_add(constant));
        }
        Codes::U8(codes) => dispatch::mix_u8(level, codes, low, shift, factor, constant, hashes),
        Codes::U16(codes) => dispatch::mix_u16(level, codes, low, shift, factor, constant, hashes),
        Codes::U32(codes) => dispatch::mix_u32(level, codes, low, shift, factor, constant, hashes),
        Codes::U64(_) => unreachable!("folded above"),
    }
}

/// Folds 64 bits into 32.
pub(in crate::scan) fn fold(number: u64) -> u32 {
    (number as u32).wrapping_add(((number >> 32) as u32).wrapping_mul(0x9E37_79B1))
}

/// Turns a sum of mixed numbers into a hash.
#[inline(always)]
pub(in crate::scan) fn finish(sum: u32) -> u32 {
    let hash = (sum ^ sum >> 15).wrapping_mul(0x2C1B_3C6D);
    hash ^ hash >> 13
}

/// Turns sums into hashes, and lists the rows whose upper hash bits are set in the filter. `rows` must have
/// room for all rows and sixteen more. Returns the number of listed rows.
pub fn probe(sums: &mut [u32], filter: &[u32], rows: &mut [u32]) -> usize {
    probe_at(Level::here(), sums, filter, rows)
}

fn probe_at(level: Level, sums: &mut [u32], filter: &[u32], rows: &mut [u32]) -> usize {
    assert!(filter.len().is_power_of_two(), "a filter has 32 bits for each of 2^n words");
    assert!(rows.len() >= sums.len() + 16, "the list has room for every row");
    dispatch::probe(level, sums, filter, rows)
}

mod plain {
    use super::finish;

    pub(super) trait Code: Copy + Ord {
        fn minus(self, other: Self) -> Self;
        fn low(self) -> u32;
    }

    macro_rules! code {
        ($($ty:ty)*) => { $(impl Code for $ty {
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn low(self) -> u32 {
                self as u32
            }
        })* };
    }
    code!(u8 u16 u32 u64);

    #[inline(always)]
    pub(super) fn within<C: Code>(codes: &[C], first: C, span: C, bits: &mut [u64]) -> u64 {
        let mut words = 0;
        for (number, (word, codes)) in bits.iter_mut().zip(codes.chunks(64)).enumerate() {
            let mut flags = [0u8; 64];
            for (flag, code) in flags.iter_mut().zip(codes) {
                *flag = u8::from(code.minus(first) <= span);
            }
            *word = flags.as_chunks::<8>().0.iter().enumerate().fold(0, |word, (index, eight)| {
                // The multiplication moves the lowest bit of each byte into the top byte.
                word | u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56 << (8 * index)
            });
            words |= u64::from(*word != 0) << number;
        }
        words
    }

    #[inline(always)]
    pub(super) fn mix<C: Code>(
        codes: &[C],
        low: u32,
        shift: u32,
        factor: u32,
        constant: u32,
        hashes: &mut [u32],
    ) {
        for (hash, code) in hashes.iter_mut().zip(codes) {
            let number = low.wrapping_add(code.low()) >> (shift & 31);
            *hash = hash.wrapping_add(number.wrapping_mul(factor).wrapping_add(constant));
        }
    }

    #[inline(always)]
    pub(super) fn probe(sums: &mut [u32], filter: &[u32], rows: &mut [u32], from: usize) -> usize {
        let shift = 32 - filter.len().trailing_zeros() - 5;
        let mut listed = 0;
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = finish(*sum);
            let bit = u64::from(*sum) >> shift;
            rows[listed] = (from + row) as u32;
            listed += (filter[(bit >> 5) as usize & (filter.len() - 1)] >> (bit & 31) & 1) as usize;
        }
        listed
    }
}

/// Runs the variant of a level.
#[allow(unsafe_code)] // Calls of kernels for one kind of processor.
mod dispatch {
    use super::Level;

    macro_rules! choose {
        ($($name:ident($($argument:ident: $ty:ty),*) $(-> $result:ty)? = $plain:expr;)*) => { $(
            pub(super) fn $name(level: Level, $($argument: $ty),*) $(-> $result)? {
                /// The plain code, vectorised by the compiler for AVX2.
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,popcnt")]
                fn avx2($($argument: $ty),*) $(-> $result)? {
                    $plain
                }
                match level {
                    Level::Plain => $plain,
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => {
                        // SAFETY: the level was created on a processor that has AVX2.
                        unsafe { avx2($($argument),*) }
                    }
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => {
                        // SAFETY: the level was created on a processor that has the features of these
                        // variants.
                        unsafe { super::avx512::$name($($argument),*) }
                    }
                }
            }
        )* };
    }

    choose! {
        within_u8(codes: &[u8], first: u8, span: u8, bits: &mut [u64]) -> u64 = super::plain::within(codes, first, span, bits);
        within_u16(codes: &[u16], first: u16, span: u16, bits: &mut [u64]) -> u64 = super::plain::within(codes, first, span, bits);
        within_u32(codes: &[u32], first: u32, span: u32, bits: &mut [u64]) -> u64 = super::plain::within(codes, first, span, bits);
        within_u64(codes: &[u64], first: u64, span: u64, bits: &mut [u64]) -> u64 = super::plain::within(codes, first, span, bits);
        mix_u8(codes: &[u8], low: u32, shift: u32, factor: u32, constant: u32, hashes: &mut [u32]) = super::plain::mix(codes, low, shift, factor, constant, hashes);
        mix_u16(codes: &[u16], low: u32, shift: u32, factor: u32, constant: u32, hashes: &mut [u32]) = super::plain::mix(codes, low, shift, factor, constant, hashes);
        mix_u32(codes: &[u32], low: u32, shift: u32, factor: u32, constant: u32, hashes: &mut [u32]) = super::plain::mix(codes, low, shift, factor, constant, hashes);
        probe(sums: &mut [u32], filter: &[u32], rows: &mut [u32]) -> usize = super::plain::probe(sums, filter, rows, 0);
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // Loads, stores and gathers, which safe code cannot express.
mod avx512 {
    use std::arch::x86_64::*;

    use super::plain;

    macro_rules! within {
        ($($name:ident: $ty:ty, $lanes:literal, $set:ident($as:ty), $minus:ident, $at_most:ident;)*) => { $(
            #[target_feature(enable = "avx512f,avx512bw")]
            pub(super) fn $name(codes: &[$ty], first: $ty, span: $ty, bits: &mut [u64]) -> u64 {
                let (low, most) = ($set(first as $as), $set(span as $as));
                let (whole, rest) = codes.as_chunks::<64>();
                let mut words = 0;
                for (number, (word, codes)) in bits.iter_mut().zip(whole).enumerate() {
                    *word = 0;
                    for (part, codes) in codes.as_chunks::<$lanes>().0.iter().enumerate() {
                        // SAFETY: the array is 64 bytes long, and the load needs no alignment.
                        let codes = unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) };
                        let passes = $at_most($minus(codes, low), most);
                        *word |= u64::from(passes) << (part * $lanes);
                    }
                    words |= u64::from(*word != 0) << number;
                }
                match rest {
                    [] => words,
                    _ => words | plain::within(rest, first, span, &mut bits[whole.len()..]) << whole.len(),
                }
            }
        )* };
    }

    within! {
        within_u8: u8, 64, _mm512_set1_epi8(i8), _mm512_sub_epi8, _mm512_cmple_epu8_mask;
        within_u16: u16, 32, _mm512_set1_epi16(i16), _mm512_sub_epi16, _mm512_cmple_epu16_mask;
        within_u32: u32, 16, _mm512_set1_epi32(i32), _mm512_sub_epi32, _mm512_cmple_epu32_mask;
        within_u64: u64, 8, _mm512_set1_epi64(i64), _mm512_sub_epi64, _mm512_cmple_epu64_mask;
    }

    macro_rules! mix {
        ($($name:ident: $ty:ty;)*) => { $(
            #[target_feature(enable = "avx512f,avx512bw")]
            pub(super) fn $name(
                codes: &[$ty],
                low: u32,
                shift: u32,
                factor: u32,
                constant: u32,
                hashes: &mut [u32],
            ) {
                plain::mix(codes, low, shift, factor, constant, hashes);
            }
        )* };
    }

    mix! { mix_u8: u8; mix_u16: u16; mix_u32: u32; }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn probe(sums: &mut [u32], filter: &[u32], rows: &mut [u32]) -> usize {
        let bits = filter.len().trailing_zeros() + 5;
        let shift = _mm_cvtsi32_si128(32 - bits as i32);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let mut listed = 0;
        let (whole, rest) = sums.as_chunks_mut::<16>();
        for (part, sums) in whole.iter_mut().enumerate() {
            // SAFETY: the array is 64 bytes long, and the load needs no alignment.
            let sum = unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) };
            let mixed = _mm512_xor_si512(sum, _mm512_srli_epi32::<15>(sum));
            let mixed = _mm512_mullo_epi32(mixed, _mm512_set1_epi32(0x2C1B_3C6D));
            let hash = _mm512_xor_si512(mixed, _mm512_srli_epi32::<13>(mixed));
            // SAFETY: the array is 64 bytes long, and the store needs no alignment.
            unsafe {
                _mm512_storeu_si512(sums.as_mut_ptr().cast(), hash);
            }
            let bit = _mm512_srl_epi32(hash, shift);
            // SAFETY: the shift leaves `bits` bits of a 32-bit hash, and the filter has 2^(bits - 5) words.
            // So every index lies within the filter.
            let words =
                unsafe { _mm512_i32gather_epi32::<4>(_mm512_srli_epi32::<5>(bit), filter.as_ptr().cast()) };
            let here = _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_and_si512(bit, _mm512_set1_epi32(31)));
            let passes = _mm512_test_epi32_mask(words, here);
            let row = _mm512_add_epi32(lanes, _mm512_set1_epi32(part as i32 * 16));
            let dense = _mm512_maskz_compress_epi32(passes, row);
            // SAFETY: no row is listed twice, so at most as many rows are listed as come before these
            // sixteen, and `rows` has room for all rows and sixteen more.
            unsafe {
                _mm512_storeu_si512(rows.as_mut_ptr().add(listed).cast(), dense);
            }
            listed += passes.count_ones() as usize;
        }
        let done = whole.len() * 16;
        listed + plain::probe(rest, filter, &mut rows[listed..], done)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all levels of this processor.
    fn levels() -> Vec<Level> {
        let mut levels = vec![Level::Plain];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            levels.push(Level::Avx2);
        }
        if !levels.contains(&Level::here()) {
            levels.push(Level::here());
        }
        levels
    }

    proptest! {
        #[test]
        fn numbers_in_a_range_are_found(
            base: u64, wide in 0u32..64, numbers in prop::collection::vec(any::<u64>(), 0..300), low: u64, high: u64
        ) {
            let numbers: Vec<u64> = numbers.iter().map(|number| base.saturating_add(number >> wide)).collect();
            let packed = Packed::pack(&numbers);
            for (low, high) in [(low, high), (base, base.saturating_add(high >> wide)), (base, base)] {
                for level in levels() {
                    let mut bits = vec![u64::MAX; numbers.len().div_ceil(64)];
                    let words = within_at(level, &packed, low, high, &mut bits);
                    let some = bits.iter().enumerate().map(|(number, word)| u64::from(*word != 0) << number);
                    prop_assert_eq!(words, some.sum::<u64>(), "{:?}", level);
                    for (index, number) in numbers.iter().enumerate() {
                        let bit = bits[index / 64] >> (index % 64) & 1 == 1;
                        prop_assert_eq!(bit, low <= *number && *number <= high, "{:?}", level);
                    }
                }
            }
        }

        #[test]
        fn hashes_and_their_rows_are_found(
            base: u64, wide in 0u32..64, numbers in prop::collection::vec(any::<u64>(), 0..300),
            factor: u32, shift in 0u32..32, words in prop::collection::vec(any::<u32>(), 64)
        ) {
            let numbers: Vec<u64> = numbers.iter().map(|number| base.saturating_add(number >> wide)).collect();
            let packed = Packed::pack(&numbers);
            let expected: Vec<u32> = numbers
                .iter()
                .map(|number| fold(*number >> shift).wrapping_mul(factor).wrapping_add(7))
                .collect();
            let high = numbers.iter().copied().max().unwrap_or(0);
            let hashes: Vec<u32> = expected.iter().map(|sum| finish(*sum)).collect();
            let bits = words.len().trailing_zeros() + 5;
            let passes = |hash: u32| words[(hash >> (32 - bits) >> 5) as usize] >> (hash >> (32 - bits) & 31) & 1 == 1;
            let listed: Vec<u32> =
                hashes.iter().zip(0..).filter(|(hash, _)| passes(**hash)).map(|(_, row)| row).collect();
            for level in levels() {
                let mut sums = vec![7; numbers.len()];
                mix_at(level, &packed, high, shift, factor, &mut sums);
                prop_assert_eq!(&sums, &expected, "{:?}", level);
                let mut rows = vec![0; sums.len() + 16];
                let count = probe_at(level, &mut sums, &words, &mut rows);
                prop_assert_eq!(&sums, &hashes, "{:?}", level);
                prop_assert_eq!(&rows[..count], &listed[..], "{:?}", level);
            }
        }
    }
}
