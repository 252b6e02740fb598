//! The questions and answers by which cells compare their keys, and the byte forms of these messages.

use bytes::{Buf as _, BufMut, Bytes, BytesMut};

use super::token::{Arc, Token, low_bits};
use crate::wire::{WireError, need, take_u8, take_u32, take_u64};

/// A rough number of the differences that a comparing cell has found so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceCount {
    /// The question is the first of a comparison. The other cell may refuse it; then the asking cell asks
    /// again later.
    Unknown,
    /// The asking cell has found few differences: other cells may compare meanwhile.
    Few,
    /// The asking cell has found many differences.
    Many,
}

/// Maximum number of arcs in a request to compare.
pub(super) const ARCS_MAX: usize = 64;
/// Maximum number of tokens in a request to fetch.
pub(super) const TOKENS_MAX: usize = 256;

/// The content of an arc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArcContent {
    /// A hash of each part of the arc.
    Prints([u64; Arc::PARTS]),
    /// All the arc's tokens that have entries, in ascending order.
    Items(Vec<Item>),
}

/// A token that has at least one entry, usually of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The token.
    pub token: Token,
    /// The time of the newest stamp at this token, in nanoseconds.
    pub newest: u64,
    /// A hash of the key.
    pub key: u32,
    /// A hash of the entry.
    pub print: u64,
}

const ITEM_BYTES: usize = 28;
/// The first byte of an arc that is not a block. For a block, this byte is the base-two logarithm of its
/// size.
const ENDS: u8 = 255;
/// The first byte of a part that has hashes. For other parts this byte is the number of items.
const PRINTS: u8 = 255;

impl DifferenceCount {
    pub(super) fn tag(self) -> u8 {
        match self {
            DifferenceCount::Unknown => 0,
            DifferenceCount::Few => 1,
            DifferenceCount::Many => 2,
        }
    }

    pub(super) fn of(tag: u8) -> Result<DifferenceCount, WireError> {
        let all = [DifferenceCount::Unknown, DifferenceCount::Few, DifferenceCount::Many];
        all.into_iter().find(|pace| pace.tag() == tag).ok_or(WireError::Tag(tag))
    }
}

/// Writes an arc. A block is written as the base-two logarithm of its size and the leading bytes that its
/// tokens share. Any other arc is written as its first and last token.
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
            // An arc has only one byte form, so a block that is written in the form of other arcs is refused.
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

/// Returns how many bytes hold the leading bits that all tokens of a block share.
fn prefix_bytes(bits: u32) -> usize {
    (u64::BITS - bits).div_ceil(8) as usize
}

pub(super) fn put_part(out: &mut BytesMut, part: &ArcContent) {
    match part {
        ArcContent::Prints(prints) => {
            out.put_u8(PRINTS);
            prints.iter().for_each(|print| out.put_u64_le(*print));
        }
        ArcContent::Items(items) => {
            let count = u8::try_from(items.len()).ok().filter(|count| *count < PRINTS);
            out.put_u8(count.expect("an arc is sent as items only if it has few"));
            for Item { token, newest, key, print } in items {
                out.put_u64_le(token.0);
                out.put_u64_le(*newest);
                out.put_u32_le(*key);
                out.put_u64_le(*print);
            }
        }
    }
}

pub(super) fn take_part(input: &mut Bytes) -> Result<ArcContent, WireError> {
    match take_u8(input)? {
        PRINTS => {
            let mut prints = [0; Arc::PARTS];
            for print in &mut prints {
                *print = take_u64(input)?;
            }
            Ok(ArcContent::Prints(prints))
        }
        count => {
            need(input, usize::from(count) * ITEM_BYTES)?;
            let item = |_| {
                let (token, newest) = (Token(take_u64(input)?), take_u64(input)?);
                Ok(Item { token, newest, key: take_u32(input)?, print: take_u64(input)? })
            };
            Ok(ArcContent::Items((0..count).map(item).collect::<Result<_, WireError>>()?))
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
        // Three arcs are refused: a block in the form of other arcs, a block whose first token has more bits
        // than its prefix, and a block larger than the ring.
        let block = [&[ENDS][..], &[0; 8], &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
        for bytes in [block, vec![60, 1], vec![65]] {
            assert!(take_arc(&mut Bytes::from(bytes)).is_err());
        }
    }
}
