//! Locks of a group, for its members.
//!
//! Claims and releases are ordered messages of the group. The replica of each member has the same [`Locks`].
//! A grant to a claim of this member reaches the caller that waits for it.

use std::{fmt, sync::Arc};

use quorate_protocol::group::{LOCK_NAME_BYTES_MAX, SendStrength};

use super::{
    Object,
    claims::{message, release},
    member::{Member, MemberHandle},
    message::CLAIM,
};
use crate::{Pending, error::Error, lock::lock};

/// A lock that this member holds. Dropping it releases the lock in the background.
///
/// A member that is cut off counts its locks as held until it notices that it is cut off. Other members may
/// hold the locks by then. Before an action that must not happen twice, a program calls [`Lock::check`]. The
/// program also passes [`Lock::fence`] to the protected resource, which refuses numbers smaller than one that
/// it has seen.
#[must_use = "a lock is released when it is dropped"]
pub struct Lock {
    claim: Claimed,
    fence: u64,
}

impl Lock {
    /// Returns the lock's fencing number: larger than those of all earlier holders of this lock.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &str {
        &self.claim.name
    }

    /// Checks whether this member still holds the lock, as far as the member knows. An error means that the
    /// member is out of its group, or out of touch with the routers.
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
    /// Claims a lock of the group. Claims are granted in the group's order, so the future ends once all
    /// earlier claims are over and this member holds the lock. Dropping the future gives the claim up.
    ///
    /// A lock is not reentrant: a member that holds a lock and claims it again waits for itself. Nothing
    /// detects such deadlocks.
    pub fn lock(&self, name: &str) -> Pending<'static, Lock> {
        if name.is_empty() || name.len() > LOCK_NAME_BYTES_MAX {
            let why = format!("a lock's name has 1 to {LOCK_NAME_BYTES_MAX} bytes");
            return Box::pin(async move { Err(Error::invalid(why)) });
        }
        let held = self.held().clone();
        let (number, granted) = lock(&held.seat().claims).make();
        let claim = Claimed { held, name: name.to_owned(), number };
        let sent = self.submit(SendStrength::Ordered, &message(CLAIM, number, name));
        Box::pin(async move {
            sent.await?;
            match granted.await {
                Ok(fence) => Ok(Lock { claim, fence }),
                Err(_) => {
                    Err(claim.held.seat().over().unwrap_or_else(|| Error::not_member("the member has ended")))
                }
            }
        })
    }

    /// Returns the process whose member holds the lock. Applies all deliveries first.
    pub fn lock_holder(&self, name: &str) -> Result<Option<quorate_protocol::ProcessId>, Error> {
        self.lend(|copy| copy.locks.holder(name))
    }
}

/// A claim of this member, granted or not. Dropping this value gives the claim up.
struct Claimed {
    held: Arc<MemberHandle>,
    name: String,
    number: u64,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        lock(&self.held.seat().claims).give_up(self.number, &self.name);
        self.held.say(SendStrength::Ordered, &release(self.number, &self.name));
    }
}
