//! Ranges of keys, and the segments of a ring: each segment is a range of keys with its replicas.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{
    id::ProcessId,
    wire::{Wire, WireError, take_u64},
};

/// A closed range of ring keys, `low <= key <= high`. It never wraps around zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Range {
    /// The first key.
    pub low: u64,
    /// The last key.
    pub high: u64,
}

impl Range {
    /// All keys.
    pub const ALL: Range = Range { low: 0, high: u64::MAX };

    /// Returns the keys that both ranges contain.
    pub fn intersect(self, other: Range) -> Option<Range> {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        (low <= high).then_some(Range { low, high })
    }

    /// Returns the number of keys minus one. The number of all keys would not fit `u64`.
    pub fn span(self) -> u64 {
        self.high - self.low
    }
}

/// The byte form of a range: the first key, then the last. Decoding refuses a range that ends before it
/// begins.
impl Wire for Range {
    const BYTES_LEAST: usize = 16;

    fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.low);
        out.put_u64_le(self.high);
    }

    fn decode(input: &mut Bytes) -> Result<Range, WireError> {
        let range = Range { low: take_u64(input)?, high: take_u64(input)? };
        if range.low <= range.high { Ok(range) } else { Err(WireError::Body) }
    }
}

/// The keys between two neighbouring ring ids, and their replicas in ring order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The keys. A segment that wraps around zero is listed as two segments.
    pub range: Range,
    /// The primary and its successors, dead processes included.
    pub replicas: SmallVec<[ProcessId; 4]>,
}

impl Segment {
    /// Returns the segments of a ring in key order.
    pub(super) fn of_ring(ring: &BTreeMap<u64, ProcessId>, factor: u8) -> Vec<Segment> {
        let ids: Vec<(u64, ProcessId)> = ring.iter().map(|(&key, &process)| (key, process)).collect();
        let Some(&(first, _)) = ids.first() else { return Vec::new() };
        let factor = usize::from(factor).min(ids.len());
        let replicas = |primary: usize| (0..factor).map(|step| ids[(primary + step) % ids.len()].1).collect();
        let mut segments = Vec::with_capacity(ids.len() + 1);
        if first > 0 {
            // The last id's segment wraps around zero and is listed in two parts: this is the part from zero
            // on.
            segments.push(Segment {
                range: Range { low: 0, high: first - 1 },
                replicas: replicas(ids.len() - 1),
            });
        }
        for (index, &(low, _)) in ids.iter().enumerate() {
            let high = ids.get(index + 1).map_or(u64::MAX, |&(next, _)| next - 1);
            segments.push(Segment { range: Range { low, high }, replicas: replicas(index) });
        }
        segments
    }
}

/// Whether `parts` together contain every key of `whole`.
pub(super) fn covers(parts: &[Range], whole: Range) -> bool {
    let mut next = whole.low;
    loop {
        let here = parts.iter().filter(|part| part.low <= next && next <= part.high);
        match here.map(|part| part.high).max() {
            None => return false,
            Some(high) if high >= whole.high => return true,
            Some(high) => next = high + 1,
        }
    }
}

/// Returns the keys of `whole` that none of `parts` contains.
pub(super) fn uncovered(parts: &[Range], whole: Range) -> Vec<Range> {
    let mut parts: Vec<Range> = parts.iter().filter_map(|part| part.intersect(whole)).collect();
    parts.sort_unstable();
    let mut gaps = Vec::new();
    let mut next = whole.low;
    for part in parts {
        if part.low > next {
            gaps.push(Range { low: next, high: part.low - 1 });
        }
        if part.high >= whole.high {
            return gaps;
        }
        next = next.max(part.high + 1);
    }
    gaps.push(Range { low: next, high: whole.high });
    gaps
}
