//! The claims of a member for locks of its group.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::group::{Claim, Grant, SeatId};
use tokio::sync::oneshot;

use super::message::RELEASE;

/// The claims of a member that are not granted yet, and the claims that the member has given up.
/// [`Waiters`](crate::waiters::Waiters) cannot keep the claims, because a claim may outlast its caller's
/// wait, and then its lock has to be released.
pub(super) struct Claims {
    seat: SeatId,
    last: u32,
    waiting: BTreeMap<u64, oneshot::Sender<u64>>,
    /// Names of locks, by the numbers of claims that were given up and whose release has not been delivered
    /// here. The routers may refuse a release while the process is out of touch. Without this map nobody
    /// would repeat the release, and the lock would stay held for the member's life.
    given_up: BTreeMap<u64, String>,
}

impl Claims {
    /// Creates the empty list of lock claims of a member. `seat` is the member's number in its process.
    pub(super) fn new(seat: SeatId) -> Claims {
        Claims { seat, last: 0, waiting: BTreeMap::new(), given_up: BTreeMap::new() }
    }

    pub(super) fn make(&mut self) -> (u64, oneshot::Receiver<u64>) {
        self.last += 1;
        let number = self.seat.number(self.last);
        let (granted, receiver) = oneshot::channel();
        self.waiting.insert(number, granted);
        (number, receiver)
    }

    pub(super) fn give_up(&mut self, number: u64, name: &str) {
        self.waiting.remove(&number);
        self.given_up.insert(number, name.to_owned());
    }

    /// Notes that the release of the claim with this number was delivered here.
    pub(super) fn released(&mut self, number: u64) {
        self.given_up.remove(&number);
    }

    /// Returns messages that release the claims whose releases were not delivered here.
    pub(super) fn unreleased(&self) -> Vec<Bytes> {
        self.given_up.iter().map(|(number, name)| release(*number, name)).collect()
    }

    /// Reports a grant to the caller that waits for it. If that caller has given the claim up, a release is
    /// already on its way.
    pub(super) fn granted(&mut self, Grant { claim: Claim { number, .. }, fence }: Grant) {
        if let Some(waits) = self.waiting.remove(&number) {
            // The caller may no longer wait.
            let _ = waits.send(fence);
        }
    }

    /// Ends the waits for all claims. A later grant has no effect.
    pub(super) fn end(&mut self) {
        self.waiting.clear();
        self.given_up.clear();
    }
}

/// Returns the message that gives a claim up.
pub(super) fn release(number: u64, name: &str) -> Bytes {
    message(RELEASE, number, name)
}

pub(super) fn message(kind: u8, number: u64, name: &str) -> Bytes {
    let mut body = BytesMut::with_capacity(9 + name.len());
    body.put_u8(kind);
    body.put_u64_le(number);
    body.put_slice(name.as_bytes());
    body.freeze()
}
