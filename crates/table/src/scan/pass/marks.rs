//! Marks: a bit for each remaining row of a block, and a bit for each word of 64 rows that has some.

use std::ops::Range;

use crate::scan::{
    block::BLOCK_ROWS,
    code::{
        chunk::Chunk,
        kernel,
        packed::{Codes, Packed, each_width},
    },
    query::compile::Term,
};

const WORDS: usize = BLOCK_ROWS / 64;

/// A set of rows of a block.
pub(super) struct Marks {
    bits: [u64; WORDS],
    /// A bit for each word of `bits`; clear only if the word is zero.
    words: u64,
}

impl Marks {
    /// Returns an empty set. It is inlined so that its 520 bytes are not copied.
    #[inline(always)]
    pub(super) fn none() -> Marks {
        Marks { bits: [0; WORDS], words: 0 }
    }

    /// Marks exactly the rows whose values pass a term.
    pub(super) fn pass(&mut self, chunk: &Chunk, term: &Term) {
        let len = chunk.numbers.len();
        let bits = &mut self.bits[..len.div_ceil(64)];
        self.words = kernel::within(&chunk.numbers, term.low, term.high, bits);
        if term.is_range() && chunk.nulls().is_none() {
            return;
        }
        for &number in term.others.iter().filter(|number| chunk.low <= **number && **number <= chunk.high) {
            let mut more = [0; WORDS];
            kernel::within(&chunk.numbers, number, number, &mut more[..bits.len()]);
            bits.iter_mut().zip(&more).for_each(|(word, more)| *word |= more);
        }
        if term.negated {
            bits.iter_mut().for_each(|word| *word = !*word);
        }
        if let Some(nulls) = chunk.nulls() {
            for (word, null) in bits.iter_mut().zip(nulls) {
                *word = if term.nulls { *word | null } else { *word & !null };
            }
        }
        self.words = u64::MAX;
        self.only(0..len);
    }

    /// Marks exactly the rows of a slice.
    pub(super) fn all(&mut self, slice: Range<usize>) {
        self.bits.fill(u64::MAX);
        self.words = u64::MAX;
        self.only(slice);
    }

    /// Drops the rows outside a slice.
    pub(super) fn only(&mut self, slice: Range<usize>) {
        kernel::clear_behind(slice.end, &mut self.bits);
        self.bits[..slice.start / 64].fill(0);
        if let Some(word) = self.bits.get_mut(slice.start / 64) {
            *word &= u64::MAX << (slice.start % 64);
        }
        self.recount();
    }

    /// Drops the rows that `others` lacks.
    pub(super) fn and(&mut self, others: &Marks) {
        self.bits.iter_mut().zip(&others.bits).for_each(|(word, other)| *word &= other);
        self.words &= others.words;
        self.recount();
    }

    /// Clears the bits of `words` whose words have become zero.
    fn recount(&mut self) {
        let mut words = std::mem::take(&mut self.words);
        while words != 0 {
            let number = words.trailing_zeros();
            self.words |= u64::from(self.bits[number as usize] != 0) << number;
            words &= words - 1;
        }
    }

    /// Returns the number of rows.
    pub(super) fn count(&self) -> usize {
        let mut rows = 0;
        let mut words = self.words;
        while words != 0 {
            rows += self.bits[words.trailing_zeros() as usize].count_ones() as usize;
            words &= words - 1;
        }
        rows
    }

    /// Calls `take` for each row in order.
    #[inline(always)]
    pub(super) fn each(&self, mut take: impl FnMut(u32)) {
        let mut words = self.words;
        while words != 0 {
            let number = words.trailing_zeros();
            words &= words - 1;
            let mut word = self.bits[number as usize];
            while word != 0 {
                take(number * 64 + word.trailing_zeros());
                word &= word - 1;
            }
        }
    }
}

impl Packed {
    /// Appends to `rows` the marked rows, `count` of them, whose numbers lie in a range.
    #[allow(clippy::unnecessary_cast)] // Every width shares one code; at 64 bits its cast does nothing.
    pub(super) fn list_within(&self, low: u64, high: u64, marks: &Marks, count: usize, rows: &mut Vec<u32>) {
        let Some(span) = high.checked_sub(low) else { return };
        let low = low.wrapping_sub(self.base);
        let mut kept = rows.len();
        rows.resize(kept + count, 0);
        each_width!(&self.codes, Codes::Same(_) => {
            if 0u64.wrapping_sub(low) <= span {
                marks.each(|row| {
                    rows[kept] = row;
                    kept += 1;
                });
            }
        }, codes => marks.each(|row| {
            rows[kept] = row;
            kept += usize::from((codes[row as usize] as u64).wrapping_sub(low) <= span);
        }));
        rows.truncate(kept);
    }
}
