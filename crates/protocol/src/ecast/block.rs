//! Blocks of deliveries to one destination, and their bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Position;
use crate::{
    id::ProcessId,
    wire::{
        PAYLOAD_BYTES_SHARED, Wire, WireError, decode_list, encode_list, encode_whole, need, put_bytes,
        put_payload, take_bytes, take_u32, take_u64,
    },
};

/// Bytes of a delivery before its body.
const ITEM_HEAD_BYTES: usize = 1 + 2 + 8 * 3 + 4;

/// A block is full once it has this size in bytes, or this number of senders.
const BLOCK_BYTES_FULL: usize = 256 << 10;
const SENDERS_FULL: usize = 60_000;

/// Deliveries to one destination. The block lists senders once; each item names its sender by index.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeliverBlock {
    senders: Vec<ProcessId>,
    count: u32,
    /// All messages up to this position were stable, as far as the leader knew when it made the block.
    pub(super) base: Position,
    items: Bytes,
    /// The body of the last item, if that body is large and this process made the block; all destinations
    /// share it. On the wire it is the end of `items`.
    last: Option<Bytes>,
}

/// A delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) kind: DeliveryKind,
    /// The position of an ordered message; for an injected message, the last position before it.
    pub(super) at: Position,
    /// The position of the destination's previous delivery.
    pub(super) previous: Position,
    pub(super) sender: ProcessId,
    /// The message's number; for an injected message, the sender's token.
    pub(super) number: u64,
    pub(super) body: Bytes,
    pub(super) attachment: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryKind {
    Data,
    Control,
    Injected,
}

#[derive(Default)]
pub(super) struct DeliverBlockBuilder {
    senders: Vec<ProcessId>,
    count: u32,
    items: BytesMut,
    last: Option<Bytes>,
}

impl DeliverBlockBuilder {
    /// Reserves memory for deliveries with bodies of these lengths in bytes, at most `most` bytes and at most
    /// one block. Without this, a growing block would be copied several times.
    pub(super) fn reserve(&mut self, deliveries: impl Iterator<Item = usize>, most: usize) {
        let (mut room, most) = (0, most.min(BLOCK_BYTES_FULL));
        for bytes in deliveries.take_while(|bytes| *bytes < PAYLOAD_BYTES_SHARED) {
            room += bytes;
            if room >= most {
                break;
            }
        }
        self.items.reserve(room);
    }

    /// Appends a delivery to a block that is not full.
    pub(super) fn push(&mut self, item: &Delivery) {
        assert!(self.last.is_none(), "nothing comes behind the body that ends a block");
        // An item nearly always has the same sender as the previous item.
        let index = match self.senders.iter().rposition(|&sender| sender == item.sender) {
            Some(index) => index,
            None => {
                self.senders.push(item.sender);
                self.senders.len() - 1
            }
        };
        let kind: u8 = match item.kind {
            DeliveryKind::Data => 0,
            DeliveryKind::Control => 1,
            DeliveryKind::Injected => 2,
        };
        let attached: u8 = if item.attachment.is_some() { 0x10 } else { 0 };
        let shared = item.body.len() >= PAYLOAD_BYTES_SHARED && item.attachment.is_none();
        self.items.reserve(ITEM_HEAD_BYTES + if shared { 0 } else { item.body.len() });
        self.items.put_u8(kind | attached);
        self.items.put_u16_le(u16::try_from(index).expect("a block is flushed long before 65,536 senders"));
        self.items.put_u64_le(item.at.0);
        self.items.put_u64_le(item.previous.0);
        self.items.put_u64_le(item.number);
        if shared {
            self.last = put_payload(&mut self.items, &item.body);
        } else {
            put_bytes(&mut self.items, &item.body);
        }
        if let Some(attachment) = &item.attachment {
            put_bytes(&mut self.items, attachment);
        }
        self.count += 1;
    }

    /// Whether the block must be finished before anything else is appended.
    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= BLOCK_BYTES_FULL || self.senders.len() >= SENDERS_FULL || self.last.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Finishes the block. All messages up to `base` are stable.
    pub(super) fn finish(&mut self, base: Position) -> DeliverBlock {
        let block = DeliverBlock {
            senders: std::mem::take(&mut self.senders),
            count: self.count,
            base,
            items: self.items.split().freeze(),
            last: self.last.take(),
        };
        self.count = 0;
        block
    }
}

impl DeliverBlock {
    /// Returns the approximate memory of the block in bytes.
    pub(super) fn bytes(&self) -> usize {
        64 + self.senders.len() * 24 + self.items.len() + self.last.as_ref().map_or(0, Bytes::len)
    }

    /// Returns the same block. A small block is copied, so that it does not keep a much larger message in
    /// memory.
    pub(super) fn detached(&self) -> DeliverBlock {
        let small = self.items.len() < 4096;
        let items = if small { Bytes::copy_from_slice(&self.items) } else { self.items.clone() };
        DeliverBlock {
            senders: self.senders.clone(),
            count: self.count,
            base: self.base,
            items,
            last: self.last.clone(),
        }
    }

    /// Returns the deliveries in order; an error ends the sequence.
    pub(super) fn into_items(self) -> impl Iterator<Item = Result<Delivery, WireError>> {
        let DeliverBlock { senders, count, items: mut rest, last, .. } = self;
        if let Some(last) = last {
            rest = [rest, last].concat().into();
        }
        let mut left = count;
        std::iter::from_fn(move || {
            if left == 0 {
                return (!rest.is_empty()).then(|| {
                    let trailing = rest.len();
                    rest.clear();
                    Err(WireError::Trailing(trailing))
                });
            }
            left -= 1;
            let item = decode_delivery(&mut rest, &senders);
            if item.is_err() {
                left = 0;
                rest.clear();
            }
            Some(item)
        })
    }
}

fn decode_delivery(rest: &mut Bytes, senders: &[ProcessId]) -> Result<Delivery, WireError> {
    need(rest, 1 + 2 + 8 * 3)?;
    let flags = rest.get_u8();
    let kind = match flags & 0x0f {
        0 => DeliveryKind::Data,
        1 => DeliveryKind::Control,
        2 => DeliveryKind::Injected,
        tag => return Err(WireError::Tag(tag)),
    };
    let index = usize::from(rest.get_u16_le());
    let sender = *senders.get(index).ok_or(WireError::Body)?;
    let at = Position(rest.get_u64_le());
    let previous = Position(rest.get_u64_le());
    let number = rest.get_u64_le();
    let body = take_bytes(rest)?;
    let attachment = if flags & 0x10 != 0 { Some(take_bytes(rest)?) } else { None };
    Ok(Delivery { kind, at, previous, sender, number, body, attachment })
}

/// The senders, the number of items, the base, and the items with their length. The form is written by hand,
/// because the items may end in a body that all destinations share.
impl Wire for DeliverBlock {
    const BYTES_LEAST: usize = 4 + 4 + 8 + 4;

    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        encode_list(out, &self.senders);
        out.put_u32_le(self.count);
        out.put_u64_le(self.base.0);
        let Some(last) = &self.last else { return put_payload(out, &self.items) };
        let length = self.items.len() + last.len();
        out.put_u32_le(u32::try_from(length).expect("a block is bounded far below 4 GiB"));
        out.put_slice(&self.items);
        Some(last.clone())
    }

    fn decode(input: &mut Bytes) -> Result<DeliverBlock, WireError> {
        let senders = decode_list(input)?;
        let (count, base) = (take_u32(input)?, Position(take_u64(input)?));
        Ok(DeliverBlock { senders, count, base, items: take_bytes(input)?, last: None })
    }
}
