//! What cells ask and tell each other when they compare their keys, and its bytes.

use bytes::{Buf as _, BufMut, Bytes, BytesMut};

use super::{
    ring::Token,
    tree::{Arc, low_bits},
};
use crate::wire::{WireError, need, take_u8, take_u32, take_u64};

/// How far a cell is that compares its keys with those of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// This is its first question: it may be refused, and comes again later.
    Begins,
    /// It has found little that differs: others may compare meanwhile.
    Little,
    /// It has found much.
    Much,
}

/// No request to compare has more arcs.
pub(super) const ARCS_MAX: usize = 64;
/// No request to fetch has more tokens.
pub(super) const TOKENS_MAX: usize = 256;

/// The content of an arc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A print of each of its parts.
    Prints([u64; Arc::PARTS]),
    /// All its tokens that have entries, in order.
    Items(Vec<Item>),
}

/// A token that has an entry, as a rule of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The token.
    pub token: Token,
    /// The time of its newest stamp.
    pub newest: u64,
    /// A hash of its key.
    pub key: u32,
    /// A print of its entry.
    pub print: u64,
}

const ITEM_BYTES: usize = 28;
/// Stands before both ends of an arc, where a block has its power of two.
const ENDS: u8 = 255;
/// Stands before the prints of a part, where others have the number of their items.
const PRINTS: u8 = 255;

impl Pace {
    pub(super) fn tag(self) -> u8 {
        match self {
            Pace::Begins => 0,
            Pace::Little => 1,
            Pace::Much => 2,
        }
    }

    pub(super) fn of(tag: u8) -> Result<Pace, WireError> {
        let all = [Pace::Begins, Pace::Little, Pace::Much];
        all.into_iter().find(|pace| pace.tag() == tag).ok_or(WireError::Tag(tag))
    }
}

/// A block is its power of two and the bytes that all its tokens begin with; any other arc is its ends.
pub(super) fn put_arc(out: &mut BytesMut, arc: Arc) {
    match arc.block_bits() {
        Some(bits) => {
            out.put_u8(bits as u8);
            out.put_slice(&arc.first.0.to_be_bytes()[..prefix_bytes(bits)]);
        }
        None => {
            out.put_u8(ENDS);
            out.put_u64_le(arc.first.0);
            out.put_u64_le(arc.last.0);
        }
    }
}

pub(super) fn take_arc(input: &mut Bytes) -> Result<Arc, WireError> {
    match take_u8(input)? {
        ENDS => {
            let arc = Arc { first: Token(take_u64(input)?), last: Token(take_u64(input)?) };
            // An arc has one byte form.
            if arc.first <= arc.last && arc.block_bits().is_none() { Ok(arc) } else { Err(WireError::Body) }
        }
        bits if u32::from(bits) <= u64::BITS => {
            let (bits, mut first) = (u32::from(bits), [0; 8]);
            need(input, prefix_bytes(bits))?;
            input.copy_to_slice(&mut first[..prefix_bytes(bits)]);
            let first = u64::from_be_bytes(first);
            if first & low_bits(bits) == 0 { Ok(Arc::block(first, bits)) } else { Err(WireError::Body) }
        }
        other => Err(WireError::Tag(other)),
    }
}

/// So many bytes hold the bits that all tokens of a block begin with.
fn prefix_bytes(bits: u32) -> usize {
    (u64::BITS - bits).div_ceil(8) as usize
}

pub(super) fn put_part(out: &mut BytesMut, part: &Part) {
    match part {
        Part::Prints(prints) => {
            out.put_u8(PRINTS);
            prints.iter().for_each(|print| out.put_u64_le(*print));
        }
        Part::Items(items) => {
            let count = u8::try_from(items.len()).ok().filter(|count| *count < PRINTS);
            out.put_u8(count.expect("few items are told"));
            for Item { token, newest, key, print } in items {
                out.put_u64_le(token.0);
                out.put_u64_le(*newest);
                out.put_u32_le(*key);
                out.put_u64_le(*print);
            }
        }
    }
}

pub(super) fn take_part(input: &mut Bytes) -> Result<Part, WireError> {
    match take_u8(input)? {
        PRINTS => {
            let mut prints = [0; Arc::PARTS];
            for print in &mut prints {
                *print = take_u64(input)?;
            }
            Ok(Part::Prints(prints))
        }
        count => {
            need(input, usize::from(count) * ITEM_BYTES)?;
            let item = |_| {
                let (token, newest) = (Token(take_u64(input)?), take_u64(input)?);
                Ok(Item { token, newest, key: take_u32(input)?, print: take_u64(input)? })
            };
            Ok(Part::Items((0..count).map(item).collect::<Result<_, WireError>>()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arc_has_one_byte_form() {
        let arc = |first, last| Arc { first: Token(first), last: Token(last) };
        for whole in [Arc::WHOLE, arc(7, 7), arc(u64::MAX, u64::MAX), arc(1 << 63, u64::MAX)] {
            let mut out = BytesMut::new();
            put_arc(&mut out, whole);
            assert_eq!(take_arc(&mut out.freeze()), Ok(whole));
        }
        // A block in the form of other arcs, one whose first token has more bits, and one larger than the ring.
        let block = [&[ENDS][..], &[0; 8], &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
        for bytes in [block, vec![60, 1], vec![65]] {
            assert!(take_arc(&mut Bytes::from(bytes)).is_err());
        }
    }
}
