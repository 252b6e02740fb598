//! A [`MemberUpdate`] is an update of the bench, and [`Applied`] counts and checks what a member has got.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hdrhistogram::Histogram;
use quorate::group::{Answer, Corrupt, Origin, Replica, Share, Snapshot};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};
use smallvec::SmallVec;

use super::clock::nanos;

/// An update: its sender, its number, its time, and bytes that follow from the number.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MemberUpdate {
    sender: u64,
    number: u64,
    /// The time of the send on [the machine's clock](nanos), for one update in [`TIMED`] and for each update
    /// that was sent alone; 0 for all other updates.
    at: u64,
    /// Whether the update was sent after a pause.
    alone: bool,
    padding: Padding,
}

/// Bytes that need no separate allocation if they are few.
#[derive(Clone, Debug)]
struct Padding(SmallVec<[u8; 64]>);

impl Serialize for Padding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Padding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taken;
        impl Visitor<'_> for Taken {
            type Value = Padding;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Padding, E> {
                Ok(Padding(SmallVec::from_slice(bytes)))
            }
        }
        deserializer.deserialize_bytes(Taken)
    }
}

/// Number of updates among which one is timed.
pub(super) const TIMED: u64 = 16;

/// Maximum length of an update without the bytes of its padding: sender, number, time, mark, and the
/// padding's length, in bytes.
pub(super) const BYTES_MIN: usize = 25;

impl MemberUpdate {
    pub(super) fn new(sender: u64, number: u64, bytes: usize) -> MemberUpdate {
        let letter = b'a' + (number % 26) as u8;
        let at = if number.is_multiple_of(TIMED) { nanos() } else { 0 };
        let padding = Padding(SmallVec::from_elem(letter, bytes - BYTES_MIN));
        MemberUpdate { sender, number, at, alone: false, padding }
    }

    /// Returns the same update, marked as sent now and alone.
    pub(super) fn alone(self) -> MemberUpdate {
        MemberUpdate { at: nanos(), alone: true, ..self }
    }

    fn is_whole(&self) -> bool {
        let letter = b'a' + (self.number % 26) as u8;
        // The loop looks at all bytes, several at a time.
        self.padding.0.iter().fold(0, |differing, byte| differing | (byte ^ letter)) == 0
    }
}

/// The count and fingerprint of a member's updates; the updates are not kept.
pub(super) struct Applied {
    pub(super) count: Arc<AtomicU64>,
    last: BTreeMap<u64, u64>,
    pub(super) faults: u64,
    pub(super) print: u64,
    pub(super) elsewhere: Histogram<u64>,
    /// Latencies of the updates that were sent alone.
    pub(super) elsewhere_alone: Histogram<u64>,
}

impl Applied {
    pub(super) fn new() -> Applied {
        let [elsewhere, elsewhere_alone] =
            [(); 2].map(|()| Histogram::new(3).expect("a histogram may have three significant figures"));
        Applied {
            count: Arc::default(),
            last: BTreeMap::new(),
            faults: 0,
            print: 0,
            elsewhere,
            elsewhere_alone,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn faults(&self) -> u64 {
        self.faults
    }
}

impl Replica for Applied {
    const NAME: &'static str = "bench/1";
    type Update = MemberUpdate;
    type Query = ();
    type Reply = ();

    fn apply(&mut self, update: MemberUpdate, origin: &Origin) {
        let last = self.last.entry(update.sender).or_default();
        if update.number != *last + 1 || !update.is_whole() {
            self.faults += 1;
        }
        *last = update.number;
        if update.at > 0 && !origin.own {
            let elsewhere = if update.alone { &mut self.elsewhere_alone } else { &mut self.elsewhere };
            elsewhere.record(nanos() - update.at).expect("the histogram grows as needed");
        }
        self.print =
            self.print.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(update.sender << 48 | update.number);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Now(())
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&())
    }

    fn restore(_: &Snapshot) -> Result<Self, Corrupt> {
        // All members join before any member sends.
        Ok(Applied::new())
    }
}
