//! The reasons for which a router refuses a message of tables ([`Refusal`]).

use crate::ecast::Refusal;

/// The placement changed after the message was made.
pub const PLACEMENT_CHANGED: Refusal = Refusal(1);
/// A table of this name exists already.
pub const TABLE_EXISTS: Refusal = Refusal(2);
/// No table has this number.
pub const NO_SUCH_TABLE: Refusal = Refusal(3);
/// The process is not in the state that the message assumes: it is no standby, or it is not on the ring.
pub const WRONG_STATE: Refusal = Refusal(4);
/// The sender's role does not allow this message.
pub const NOT_ALLOWED: Refusal = Refusal(5);
/// The message does not decode.
pub const MALFORMED: Refusal = Refusal(6);
/// The ring has not been founded yet.
pub const NO_RING: Refusal = Refusal(7);
/// The request's session has ended, or its number was forgotten.
pub const EXPIRED: Refusal = Refusal(8);
/// The request's id belongs to a different statement.
pub const OTHER_STATEMENT: Refusal = Refusal(9);
/// Routers already remember the maximum number of open made-up ids.
pub const TOO_MANY_IDS: Refusal = Refusal(10);
/// Another process of the sender's node is a member.
pub const NODE_IN_USE: Refusal = Refusal(11);
/// The domain was founded with other terms than the sender assumes.
pub const OTHER_TERMS: Refusal = Refusal(12);
/// Mark, in the lower 9 bits, of a refusal because no complete replica of a range can be reached. The upper
/// bits are the upper bits of the range's lowest key. See [`range`].
const RANGE: u64 = 256;

/// Returns the refusal that names a range by its lowest key, rounded down to a multiple of 512.
pub fn range(low: u64) -> Refusal {
    Refusal(RANGE | (low & !511))
}

/// Returns the lowest key of the refused range, rounded down to a multiple of 512.
pub fn as_range(refusal: Refusal) -> Option<u64> {
    (refusal.0 & 511 == RANGE).then_some(refusal.0 & !511)
}
