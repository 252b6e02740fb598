//! The stamps of writes, and their byte form.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::id::CellNumber;
use crate::wire::{WireError, need};

/// The place of a write among the writes of its key: the write with the greater stamp wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Stamp {
    /// Nanoseconds of the coordinator's hybrid clock.
    pub time: u64,
    /// The coordinator's number, which decides between equal times.
    pub cell: CellNumber,
}

impl Stamp {
    /// The stamp below every stamp that is issued. A key that was never written has this stamp.
    pub const ZERO: Stamp = Stamp { time: 0, cell: CellNumber(0) };
}

pub(super) fn put_stamp(out: &mut BytesMut, stamp: Stamp) {
    out.put_u64_le(stamp.time);
    out.put_u32_le(stamp.cell.0);
}

pub(super) fn take_stamp(input: &mut Bytes) -> Result<Stamp, WireError> {
    need(input, 12)?;
    Ok(Stamp { time: input.get_u64_le(), cell: CellNumber(input.get_u32_le()) })
}
