//! The places on the ring, and the arcs between them.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::id::MapId;

/// A place on the circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token(pub u64);

impl Token {
    /// Returns the place of a key of a map. Maps differ, so that keys of the same name are not hot at the
    /// same cells in every map.
    pub fn of(map: MapId, key: &[u8]) -> Token {
        Token(xxh3_64_with_seed(key, u64::from(map.0)))
    }
}

/// An arc of the ring, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arc {
    /// The first token.
    pub first: Token,
    /// The last token, which is not before the first.
    pub last: Token,
}

impl Arc {
    pub(super) const WHOLE: Arc = Arc { first: Token(0), last: Token(u64::MAX) };
    /// The number of parts that an arc is split into.
    pub(super) const PARTS: usize = 4;

    /// Returns the arc's parts, or `None` if the arc has one token only. The arc is cut where the smallest
    /// block around it is cut into quarters, so after a few splits the parts are blocks. A part is `None` if
    /// its quarter has no token of the arc.
    pub(super) fn parts(self) -> Option<[Option<Arc>; Arc::PARTS]> {
        let bits = (u64::BITS - (self.first.0 ^ self.last.0).leading_zeros()).next_multiple_of(2);
        if bits == 0 {
            return None;
        }
        let quarter = bits - 2;
        let base = self.first.0 >> quarter & !3;
        Some([0, 1, 2, 3].map(|part| {
            let block = Arc::block((base | part) << quarter, quarter);
            let both = Arc { first: self.first.max(block.first), last: self.last.min(block.last) };
            (both.first <= both.last).then_some(both)
        }))
    }

    /// Returns the block of two to the power of `bits` tokens that begins at `first`.
    pub(super) fn block(first: u64, bits: u32) -> Arc {
        Arc { first: Token(first), last: Token(first | low_bits(bits)) }
    }

    /// Returns the base-two logarithm of the arc's number of tokens, if the arc is a block (all tokens with
    /// the same leading bits).
    pub(super) fn block_bits(self) -> Option<u32> {
        let bits = u64::BITS - (self.first.0 ^ self.last.0).leading_zeros();
        (self == Arc::block(self.first.0 & !low_bits(bits), bits)).then_some(bits)
    }

    pub(super) fn has(self, token: Token) -> bool {
        (self.first..=self.last).contains(&token)
    }
}

/// Returns a number whose lowest `bits` bits are ones.
pub(super) fn low_bits(bits: u32) -> u64 {
    u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_keys_are_pinned() {
        assert_eq!(Token::of(MapId(1), b"key").0, Token::of(MapId(1), b"key").0);
        assert_ne!(Token::of(MapId(1), b"key"), Token::of(MapId(2), b"key"));
    }

    #[test]
    fn parts_cover_an_arc_once() {
        let arc = |first, last| Arc { first: Token(first), last: Token(last) };
        for (first, last) in [(0, u64::MAX), (5, 8), (5, 6), (6, 9), (10, 999), (u64::MAX - 3, u64::MAX)] {
            let parts: Vec<Arc> = arc(first, last).parts().unwrap().into_iter().flatten().collect();
            assert!(parts.len() > 1 && parts.iter().all(|part| part.first <= part.last));
            assert_eq!((parts[0].first.0, parts[parts.len() - 1].last.0), (first, last));
            assert!(parts.windows(2).all(|pair| pair[0].last.0 + 1 == pair[1].first.0));
        }
        assert_eq!(arc(5, 5).parts(), None);
        // Wherever an arc lies, its parts that are not at its ends are blocks.
        let mut open = vec![arc(12_345, u64::MAX / 3)];
        for _ in 0..4 {
            open = open.into_iter().flat_map(|arc| arc.parts().unwrap()).flatten().collect();
        }
        assert!(open.len() > 50);
        assert!(open[1..open.len() - 1].iter().all(|arc| arc.block_bits().is_some()), "{open:?}");
    }

    #[test]
    fn aligned_blocks_are_distinguished_from_other_arcs() {
        let bits = |first, last| Arc { first: Token(first), last: Token(last) }.block_bits();
        assert_eq!(
            (bits(0, u64::MAX), bits(7, 7), bits(8, 15), bits(6, 7)),
            (Some(64), Some(0), Some(3), Some(1))
        );
        assert_eq!((bits(1, u64::MAX), bits(7, 8), bits(8, 14), bits(12, 19)), (None, None, None, None));
    }
}
