//! The state of a world that a script moves by hand: messages and casts that wait until the script delivers,
//! holds or loses them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use quorate_protocol::{Duration, MulticastAddress, ProcessId, Time};

/// The state of a world that is moved by hand.
pub(super) struct ManualControl {
    pub(super) chance: Box<dyn FnMut() -> u64 + Send>,
    /// Messages under way, by receiver and sender, oldest first, each with the time when it is due.
    pub(super) messages: BTreeMap<ProcessId, BTreeMap<ProcessId, VecDeque<(Time, Bytes)>>>,
    /// Casts under way, by receiver and sender, oldest first.
    pub(super) casts: BTreeMap<ProcessId, BTreeMap<ProcessId, Casts>>,
    /// Directions in which casts are lost.
    pub(super) lost_casts: BTreeSet<Direction>,
    /// Directions in which casts are held.
    pub(super) held_casts: BTreeSet<Direction>,
    /// The minimum delay of a message, and the largest addition to it.
    pub(super) span: (Duration, Duration),
    /// Directions in which messages are held.
    pub(super) held_messages: BTreeSet<Direction>,
    /// Pairs that may not be linked, each with the smaller id first.
    pub(super) parted: BTreeSet<Direction>,
}

/// The casts in one direction, each with the multicast address that it used, if any.
pub(super) type Casts = VecDeque<(Option<MulticastAddress>, Bytes)>;

/// The direction from one process to another.
pub(super) type Direction = (ProcessId, ProcessId);
