//! Texts in one heap, one behind the other.
//!
//! For each text only its end is kept, as the distance from the end that it would have if all texts had the
//! average length. Texts of equal length take no memory for their ends; others mostly take 32 bits each.

use super::{hint, packed::Packed};

/// A full heap grows by 1/`GROWTH_PART` of its size.
const GROWTH_PART: usize = 8;
/// The code of distance zero. Codes are unsigned, so a text that ends before the line gets a smaller code.
const DEVIATION_ZERO: u64 = 1 << 63;

#[derive(Clone)]
pub(super) struct Texts {
    heap: String,
    /// The average length of a text in bytes: the slope of the line on which the ends would lie.
    length_mean: u64,
    /// The distance of each text's end from the line.
    deviations: Packed,
}

impl Default for Texts {
    /// Creates an empty heap with slope zero. The ends then ascend, so their width seldom changes.
    fn default() -> Texts {
        Texts { heap: String::new(), length_mean: 0, deviations: Packed::pack(&[]) }
    }
}

impl Texts {
    pub(super) fn of<'t>(texts: impl Iterator<Item = &'t str> + Clone) -> Texts {
        let lengths = texts.clone().map(|text| text.len() as u64);
        let (count, bytes) = lengths.fold((0u64, 0), |(count, bytes), length| (count + 1, bytes + length));
        let length_mean = (bytes + count / 2) / count.max(1);
        let mut heap = String::with_capacity(bytes as usize);
        let deviations = texts.zip(1..).map(|(text, number)| {
            heap.push_str(text);
            deviation(heap.len(), number * length_mean)
        });
        let deviations = Packed::pack(&deviations.collect::<Vec<_>>());
        Texts { heap, length_mean, deviations }
    }

    pub(super) fn len(&self) -> usize {
        self.deviations.len()
    }

    #[inline]
    pub(super) fn text(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.end(before));
        &self.heap[start..self.end(index)]
    }

    #[inline]
    fn end(&self, index: usize) -> usize {
        let line = (index as u64 + 1) * self.length_mean;
        self.deviations.number(index).wrapping_sub(DEVIATION_ZERO).wrapping_add(line) as usize
    }

    pub(super) fn push(&mut self, text: &str) {
        if self.heap.capacity() - self.heap.len() < text.len() {
            self.heap.reserve_exact(text.len().max(self.heap.len() / GROWTH_PART));
        }
        self.heap.push_str(text);
        let index = self.len();
        self.deviations.insert(index, deviation(self.heap.len(), (index as u64 + 1) * self.length_mean));
    }

    /// Prefetches a text: its end, or (if `deep`) its bytes.
    #[inline]
    pub(super) fn prefetch(&self, index: usize, deep: bool) {
        if !deep {
            self.deviations.prefetch(index);
        } else if index < self.len() {
            let last = self.end(index).saturating_sub(1);
            self.heap.as_bytes().get(last).into_iter().for_each(hint::prefetch);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.heap.capacity() + self.deviations.bytes()
    }
}

fn deviation(end: usize, line: u64) -> u64 {
    (end as u64).wrapping_sub(line).wrapping_add(DEVIATION_ZERO)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn texts_equal_a_vector_of_strings(
            first in prop::collection::vec("[a-cé]{0,300}", 0..40),
            more in prop::collection::vec("[a-cé]{0,300}", 0..40),
        ) {
            let mut all = first.clone();
            let mut texts = Texts::of(first.iter().map(String::as_str));
            let mut pushed = Texts::default();
            first.iter().for_each(|text| pushed.push(text));
            for text in more {
                texts.push(&text);
                pushed.push(&text);
                all.push(text);
            }
            for texts in [texts, pushed] {
                prop_assert_eq!(texts.len(), all.len());
                prop_assert!(all.iter().enumerate().all(|(index, text)| texts.text(index) == text));
            }
        }
    }

    #[test]
    fn texts_of_one_length_need_no_memory_for_their_ends() {
        let numbers: Vec<String> = (0..1000).map(|number| format!("{number:012}")).collect();
        let texts = Texts::of(numbers.iter().map(String::as_str));
        assert_eq!(texts.bytes(), 12 * 1000);
        // An empty text at the front moves all ends away from the line by the same distance.
        let texts = Texts::of(std::iter::once("").chain(numbers.iter().map(String::as_str)));
        assert_eq!((texts.bytes(), texts.text(0), texts.text(1000)), (12 * 1000, "", "000000000999"));
    }
}
