//! Bounds of the data that a door holds at one time, in bytes.
//!
//! | what | bound | beyond it |
//! |---|---|---|
//! | connections | [`web::Limits`] | the connection that has waited longest for a request closes |
//! | bodies of requests | [`DoorLimits::bodies_bytes_max`] together, 4 MiB each | a request waits first |
//! | replies in the service's bytes | [`DoorLimits::calls_max`] calls, 4 MiB each | a call waits its turn |
//! | answers | [`DoorLimits::answers_bytes_max`], [`DoorLimits::answer_bytes_max`] each | a reply waits |
//!
//! A request waits at most for [`DoorLimits::patience`]. After that it is refused, and nothing of it was
//! sent. If there is no room in time for the answer of a call that took effect, the caller gets an error that
//! says so. An answer releases its share when the system has taken its bytes, however slowly the caller
//! reads.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody},
    response::Response,
};
use futures_util::StreamExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{access::ServiceAccess, fault::Fault, json::json};
use quorate_roles::services::ITEM_BYTES_MAX;

use crate::{error::Error, web};

/// Bounds of a door.
#[derive(Clone, Debug)]
pub(in crate::service) struct DoorLimits {
    pub(in crate::service) connections: web::Limits,
    /// Upper bound of the size of the bodies of all requests in progress, in bytes.
    pub(in crate::service) bodies_bytes_max: usize,
    /// Upper bound of the number of calls in progress; commits and aborts do not count.
    pub(in crate::service) calls_max: usize,
    /// Upper bound of the size of all answers to calls that callers have not taken, in bytes.
    pub(in crate::service) answers_bytes_max: usize,
    /// Maximum size of one answer of a call, in bytes of JSON.
    pub(in crate::service) answer_bytes_max: usize,
    /// Time that a request waits for its share of these bounds.
    pub(in crate::service) patience: Duration,
}

impl Default for DoorLimits {
    fn default() -> Self {
        DoorLimits {
            connections: web::Limits::default(),
            bodies_bytes_max: 64 << 20,
            calls_max: 64,
            answers_bytes_max: 64 << 20,
            answer_bytes_max: 16 << 20,
            patience: Duration::from_secs(10),
        }
    }
}

/// The bounds of a door, and the shares that are free.
pub(super) struct Bounds {
    limits: DoorLimits,
    bodies: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

impl Bounds {
    pub(super) fn new(limits: DoorLimits) -> Bounds {
        let room = |most: usize| Arc::new(Semaphore::new(most));
        let (bodies, calls) = (room(limits.bodies_bytes_max), room(limits.calls_max));
        let answers = room(limits.answers_bytes_max);
        Bounds { limits, bodies, calls, answers }
    }

    /// Waits for a share. Returns `None` if that takes too long.
    async fn share(&self, of: &Arc<Semaphore>, size: usize) -> Option<OwnedSemaphorePermit> {
        let size = u32::try_from(size).expect("a share is some MiB at most");
        let share = timeout(self.limits.patience, of.clone().acquire_many_owned(size)).await.ok()?;
        Some(share.expect("no bound is ever closed"))
    }

    /// Waits for the turn of a call. The turn also covers the memory of the call's reply.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let full = || {
            Fault::Full(format!(
                "{} calls are under way at this host already: try again later",
                self.limits.calls_max
            ))
        };
        self.share(&self.calls, 1).await.ok_or_else(full)
    }

    /// Reads the body of a request.
    pub(super) async fn body(&self, body: Body) -> Result<(Bytes, OwnedSemaphorePermit), Fault> {
        // A body without an announced length may have any length.
        let most = body.size_hint().upper().unwrap_or(ITEM_BYTES_MAX as u64);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if most > ITEM_BYTES_MAX {
            return Err(pass_over(body.into_data_stream()).await);
        }
        let full = || {
            Fault::Full(String::from(
                "the bodies of other requests take all memory for bodies at this host: try again later",
            ))
        };
        let share = self.share(&self.bodies, most).await.ok_or_else(full)?;
        let mut whole = Vec::with_capacity(most.min(BODY_BYTES));
        let mut parts = body.into_data_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| Fault::Malformed(error.to_string()))?;
            if whole.len() + part.len() > ITEM_BYTES_MAX {
                drop((whole, share));
                return Err(pass_over(parts).await);
            }
            whole.extend_from_slice(&part);
        }
        Ok((whole.into(), share))
    }

    /// Returns the answer to a call that took effect with this reply.
    pub(super) async fn answer(&self, access: &dyn ServiceAccess, reply: Bytes) -> Result<Response, Fault> {
        let most = self.limits.answer_bytes_max;
        // `likely` is enough for the JSON form of most replies. A reply with long field names and short
        // values needs more.
        let likely = (JSON_RATIO * reply.len() + JSON_BYTES).min(most);
        for room in [likely, most] {
            let mut share = self.share(&self.answers, room).await.ok_or_else(|| {
                let why =
                    String::from("the call took effect, and other answers take all memory for its answer");
                Fault::Call(Error::MaybeApplied { id: None, why })
            })?;
            if let Some(bytes) = access.encode(&reply, room)? {
                let share = share.split(bytes.len()).expect("an answer is not longer than its share");
                return Ok(json(Bytes::from_owner(Counted { bytes, _share: share })));
            }
        }
        let why = format!("the call took effect, and its reply has more than {most} bytes as JSON");
        Err(Fault::Call(Error::mismatch("the reply", why)))
    }
}

/// Reads the rest of a body that is too long, up to a limit. Otherwise a client that is still sending would
/// find its connection broken, and would not read the answer.
async fn pass_over(mut parts: BodyDataStream) -> Fault {
    let mut left = PASSED_OVER_BYTES_MAX;
    while let Some(Ok(part)) = parts.next().await
        && let Some(rest) = left.checked_sub(part.len())
    {
        left = rest;
    }
    Fault::Long
}

/// The bytes of an answer, and their share of the door's bound on answers. Both are released together.
struct Counted {
    bytes: Vec<u8>,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Upper bound of the memory for a body before its bytes arrive. Without this bound, a client could occupy
/// memory by merely announcing a length.
const BODY_BYTES: usize = 64 << 10;

/// Length of a body after which the door does not read the rest, in bytes.
const PASSED_OVER_BYTES_MAX: usize = 4 * ITEM_BYTES_MAX;

/// The likely length of an answer as JSON, as a multiple of the length of the reply.
const JSON_RATIO: usize = 8;
/// The constant part of the likely length of an answer as JSON, in bytes.
const JSON_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CallId;
    use crate::service::http::access::{Later, OpenTransaction};

    /// A service that writes this number of bytes of JSON for each byte of a reply.
    struct LongReplies(usize);

    impl ServiceAccess for LongReplies {
        fn call(&self, _: &[u8], _: Option<&str>) -> Later<'static, Bytes> {
            unreachable!("nobody calls")
        }
        fn begin(&self) -> Box<dyn OpenTransaction> {
            unreachable!("nobody begins a transaction")
        }
        fn committed(&self, _: CallId) -> Later<'static, ()> {
            unreachable!("nobody commits")
        }
        fn encode(&self, reply: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Fault> {
            let length = self.0 * reply.len();
            Ok((length <= limit).then(|| vec![b' '; length]))
        }
    }

    fn bounds() -> Bounds {
        let limits = DoorLimits {
            bodies_bytes_max: 5 << 20,
            calls_max: 2,
            answers_bytes_max: 64 << 10,
            answer_bytes_max: 32 << 10,
            patience: Duration::from_millis(50),
            ..DoorLimits::default()
        };
        Bounds::new(limits)
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn the_memory_of_unread_answers_is_bounded() {
        run(async {
            let (bounds, access) = (bounds(), LongReplies(1));
            let reply = Bytes::from(vec![0; 30 << 10]);
            let mut held = Vec::new();
            for _ in 0..2 {
                held.push(bounds.answer(&access, reply.clone()).await.ok().unwrap());
            }
            assert_eq!(bounds.answers.available_permits(), 4 << 10, "an answer takes its own length");
            let refused = bounds.answer(&access, reply.clone()).await;
            assert!(matches!(refused, Err(Fault::Call(Error::MaybeApplied { .. }))));
            held.pop();
            assert!(bounds.answer(&access, reply.clone()).await.is_ok(), "one was taken");
            drop(held);
            // The reply has long names for few bytes.
            let short = Bytes::from(vec![0; 1000]);
            assert!(bounds.answer(&LongReplies(30), short.clone()).await.is_ok());
            let refused = bounds.answer(&LongReplies(40), short).await;
            assert!(matches!(refused, Err(Fault::Call(Error::Mismatch { .. }))));
            assert_eq!(bounds.answers.available_permits(), 64 << 10);
        });
    }

    #[test]
    fn calls_and_bodies_wait_for_room_and_are_refused() {
        run(async {
            let bounds = bounds();
            let turns = [bounds.turn().await.ok().unwrap(), bounds.turn().await.ok().unwrap()];
            assert!(matches!(bounds.turn().await, Err(Fault::Full(_))));
            drop(turns);
            assert!(bounds.turn().await.is_ok());

            let body = |bytes: usize| Body::from(vec![0; bytes]);
            let first = bounds.body(body(4 << 20)).await.ok().unwrap();
            assert!(matches!(bounds.body(body(2 << 20)).await, Err(Fault::Full(_))));
            assert!(bounds.body(body(1 << 20)).await.is_ok());
            drop(first);
            assert!(bounds.body(body(2 << 20)).await.is_ok());
            assert!(matches!(bounds.body(body(ITEM_BYTES_MAX + 1)).await, Err(Fault::Long)));
            let parts = (0..5).map(|_| Ok::<_, std::io::Error>(vec![0; 1 << 20]));
            let endless = Body::from_stream(futures_util::stream::iter(parts));
            assert!(matches!(bounds.body(endless).await, Err(Fault::Long)));
            assert_eq!(bounds.bodies.available_permits(), 5 << 20);
        });
    }
}
