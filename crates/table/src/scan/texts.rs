//! Texts in one heap, one behind the other.
//!
//! Of each only its end is kept, as the distance from where it would be if all were as long as they are on average: texts of
//! one length need nothing for it, others mostly 32 bits.

use super::{kernel, packed::Packed};

/// Where there is no room for one more text, there is made some for such a part of those there.
const GROWTH_PART: usize = 8;
/// Stands for no distance, so that an end before the line is a number, too.
const ON_THE_LINE: u64 = 1 << 63;

#[derive(Clone)]
pub(super) struct Texts {
    heap: String,
    /// By how much the line rises from one text to the next.
    rise: u64,
    /// How far beside the line each text ends.
    beside: Packed,
}

impl Default for Texts {
    /// None; the ends of those that come ascend, so that their width seldom changes.
    fn default() -> Texts {
        Texts { heap: String::new(), rise: 0, beside: Packed::pack(&[]) }
    }
}

impl Texts {
    pub(super) fn of<'t>(texts: impl Iterator<Item = &'t str> + Clone) -> Texts {
        let lengths = texts.clone().map(|text| text.len() as u64);
        let (count, bytes) = lengths.fold((0u64, 0), |(count, bytes), length| (count + 1, bytes + length));
        let rise = (bytes + count / 2) / count.max(1);
        let mut heap = String::with_capacity(bytes as usize);
        let beside = texts.zip(1..).map(|(text, number)| {
            heap.push_str(text);
            beside(heap.len(), number * rise)
        });
        let beside = Packed::pack(&beside.collect::<Vec<_>>());
        Texts { heap, rise, beside }
    }

    pub(super) fn len(&self) -> usize {
        self.beside.len()
    }

    #[inline]
    pub(super) fn text(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.end(before));
        &self.heap[start..self.end(index)]
    }

    #[inline]
    fn end(&self, index: usize) -> usize {
        let line = (index as u64 + 1) * self.rise;
        self.beside.number(index).wrapping_sub(ON_THE_LINE).wrapping_add(line) as usize
    }

    pub(super) fn push(&mut self, text: &str) {
        if self.heap.capacity() - self.heap.len() < text.len() {
            self.heap.reserve_exact(text.len().max(self.heap.len() / GROWTH_PART));
        }
        self.heap.push_str(text);
        let index = self.len();
        self.beside.insert(index, beside(self.heap.len(), (index as u64 + 1) * self.rise));
    }

    /// Asks for the memory of a text ahead of its use: for what says where it lies, or (`deep`) for the text.
    #[inline]
    pub(super) fn prefetch(&self, index: usize, deep: bool) {
        if !deep {
            self.beside.prefetch(index);
        } else if index < self.len() {
            let last = self.end(index).saturating_sub(1);
            self.heap.as_bytes().get(last).into_iter().for_each(kernel::prefetch);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.heap.capacity() + self.beside.bytes()
    }
}

fn beside(end: usize, line: u64) -> u64 {
    (end as u64).wrapping_sub(line).wrapping_add(ON_THE_LINE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn texts_are_a_vector_of_strings(
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
    fn ends_of_texts_of_one_length_take_nothing() {
        let numbers: Vec<String> = (0..1000).map(|number| format!("{number:012}")).collect();
        let texts = Texts::of(numbers.iter().map(String::as_str));
        assert_eq!(texts.bytes(), 12 * 1000);
        // An empty one in front moves the line.
        let texts = Texts::of(std::iter::once("").chain(numbers.iter().map(String::as_str)));
        assert_eq!((texts.bytes(), texts.text(0), texts.text(1000)), (12 * 1000, "", "000000000999"));
    }
}
