//! The tokens of messages that a storage process submits on its own behalf. The process recognises the
//! outcomes of these messages by their tokens.

use crate::rubberband::membership::INTERNAL;

/// Token of [`Control::Complete`](crate::rubberband::Control::Complete).
pub(super) const COMPLETION: u64 = INTERNAL | 1;

/// Token of [`Control::Away`](crate::rubberband::Control::Away).
pub(super) const AWAY: u64 = INTERNAL | 1 << 60;

/// Token of [`Control::Back`](crate::rubberband::Control::Back).
pub(super) const BACK: u64 = INTERNAL | 1 << 59;
