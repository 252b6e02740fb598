//! Marks: a bit for each row of a block that is left, and a bit for each 64 of them among which some are.

use std::ops::Range;

use super::{block::BLOCK_ROWS, chunk::Chunk, compile::Term, kernel};

const WORDS: usize = BLOCK_ROWS / 64;

/// Rows of a block.
pub(super) struct Marks {
    bits: [u64; WORDS],
    /// A bit for each word that has some.
    words: u64,
}

impl Marks {
    /// No rows. Made where it stays: it is half a kibibyte.
    #[inline(always)]
    pub(super) fn none() -> Marks {
        Marks { bits: [0; WORDS], words: 0 }
    }

    /// Marks the rows whose values pass a term, and no others.
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

    /// Marks all rows of a slice.
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

    /// Drops the rows that others have not.
    pub(super) fn and(&mut self, others: &Marks) {
        self.bits.iter_mut().zip(&others.bits).for_each(|(word, other)| *word &= other);
        self.words &= others.words;
        self.recount();
    }

    /// Finds out anew which words have some, among those that may.
    fn recount(&mut self) {
        let mut words = std::mem::take(&mut self.words);
        while words != 0 {
            let number = words.trailing_zeros();
            self.words |= u64::from(self.bits[number as usize] != 0) << number;
            words &= words - 1;
        }
    }

    /// How many rows there are.
    pub(super) fn count(&self) -> usize {
        let mut rows = 0;
        let mut words = self.words;
        while words != 0 {
            rows += self.bits[words.trailing_zeros() as usize].count_ones() as usize;
            words &= words - 1;
        }
        rows
    }

    /// Each row, in their order.
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
