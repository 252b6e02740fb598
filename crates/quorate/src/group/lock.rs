//! Locks of a group, for its members.
//!
//! Claims and releases are ordered messages of the group. The replica of each member has the same [`Locks`]; what is granted to a claim of
//! this member is told to whoever waits for it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::group::{Claim, Grant, LOCK_NAME_BYTES_MAX, SeatId, Strength};
use tokio::sync::oneshot;

use super::{Object, inbox::lock, member::Held, member::Member};
use crate::{Pending, error::Error};

/// A lock that this member holds. It is released when this is dropped, unwaited for.
///
/// A member that is cut off holds its locks until it notices, while others may hold them already: what must not be done twice asks
/// [`Lock::check`] before, and hands [`Lock::fence`] to whatever is protected, which turns away smaller numbers than it has seen.
#[must_use = "it is released when it is dropped"]
pub struct Lock {
    claim: Claimed,
    fence: u64,
}

impl Lock {
    /// Its fencing number: larger than those of everybody who held this lock before.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.claim.name
    }

    /// Whether it is held still, as far as this member knows: an error says that the member is out of its group, or out of touch with the
    /// routers.
    pub fn check(&self) -> Result<(), Error> {
        self.claim.held.check()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.claim.name)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

impl<R: Object> Member<R> {
    /// Claims a lock of the group. Ends once this member holds it, behind everybody who claimed it before; claims are granted in the
    /// group's order. Dropped before, the claim is given up.
    ///
    /// Each claim is by itself: a member that holds a lock and claims it again waits for itself. Nobody looks for such deadlocks.
    pub fn lock(&self, name: &str) -> Pending<'static, Lock> {
        if name.is_empty() || name.len() > LOCK_NAME_BYTES_MAX {
            let why = format!("a lock's name has 1 to {LOCK_NAME_BYTES_MAX} bytes");
            return Box::pin(async move { Err(Error::invalid(why)) });
        }
        let held = self.held().clone();
        let (number, granted) = lock(&held.seat().claims).make();
        let claim = Claimed { held, name: name.to_owned(), number };
        let sent = self.submit(Strength::Ordered, &message(CLAIM, number, name));
        Box::pin(async move {
            sent.await?;
            match granted.await {
                Ok(fence) => Ok(Lock { claim, fence }),
                Err(_) => Err(claim.held.seat().over().unwrap_or_else(|| Error::not_member("it has ended"))),
            }
        })
    }

    /// The process whose member holds a lock, behind everything that was delivered here.
    pub fn lock_holder(&self, name: &str) -> Result<Option<quorate_protocol::ProcessId>, Error> {
        self.lend(|copy| copy.locks.holder(name))
    }
}

/// A claim of this member, granted or not. Whoever drops it gives it up.
struct Claimed {
    held: Arc<Held>,
    name: String,
    number: u64,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        lock(&self.held.seat().claims).give_up(self.number, &self.name);
        self.held.say(Strength::Ordered, &release(self.number, &self.name));
    }
}

/// The kinds of messages about locks.
pub(super) const CLAIM: u8 = 2;
pub(super) const RELEASE: u8 = 3;

/// The message that gives a claim up.
pub(super) fn release(number: u64, name: &str) -> Bytes {
    message(RELEASE, number, name)
}

fn message(kind: u8, number: u64, name: &str) -> Bytes {
    let mut body = BytesMut::with_capacity(9 + name.len());
    body.put_u8(kind);
    body.put_u64_le(number);
    body.put_slice(name.as_bytes());
    body.freeze()
}

/// The claims of a member that are not granted, and those that it has given up.
pub(super) struct Claims {
    seat: SeatId,
    last: u32,
    waiting: BTreeMap<u64, oneshot::Sender<u64>>,
    /// The locks of claims that were given up, until that comes back in the order: out of touch with the routers nothing is sent, and a
    /// lock that nobody wants would be held for as long as the member lives.
    given_up: BTreeMap<u64, String>,
}

impl Claims {
    /// Of the member in this seat.
    pub(super) fn new(seat: SeatId) -> Claims {
        Claims { seat, last: 0, waiting: BTreeMap::new(), given_up: BTreeMap::new() }
    }

    fn make(&mut self) -> (u64, oneshot::Receiver<u64>) {
        self.last += 1;
        let number = self.seat.number(self.last);
        let (granted, told) = oneshot::channel();
        self.waiting.insert(number, granted);
        (number, told)
    }

    fn give_up(&mut self, number: u64, name: &str) {
        self.waiting.remove(&number);
        self.given_up.insert(number, name.to_owned());
    }

    /// The message that gave this claim up has come back in the order.
    pub(super) fn released(&mut self, number: u64) {
        self.given_up.remove(&number);
    }

    /// The messages that gave claims up and have not come back.
    pub(super) fn unreleased(&self) -> Vec<Bytes> {
        self.given_up.iter().map(|(number, name)| release(*number, name)).collect()
    }

    /// A claim of this member is granted. One that was given up meanwhile is released by what was said then.
    pub(super) fn granted(&mut self, Grant { claim: Claim { number, .. }, fence }: Grant) {
        if let Some(waits) = self.waiting.remove(&number) {
            // The one who waits may have lost interest.
            let _ = waits.send(fence);
        }
    }

    /// Nothing is granted any more.
    pub(super) fn end(&mut self) {
        self.waiting.clear();
        self.given_up.clear();
    }
}
