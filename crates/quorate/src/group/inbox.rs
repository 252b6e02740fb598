//! A seat: one member of a group in this process, with the user's object and the deliveries that it has not
//! applied.
//!
//! The protocol thread pushes deliveries ([`Seat::push`]). They are applied by a reader or by the delivery
//! thread, whichever comes first ([`Seat::catch_up`]).

use std::{
    any::Any,
    borrow::Cow,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use quorate_node::panic_message;
use quorate_protocol::{
    ProcessId,
    group::{CommandOutcome, Failure, Grant, GroupId, Locks, SeatId},
};
use tokio::sync::oneshot;
use tracing::warn;

use super::{
    Object,
    claims::Claims,
    keeper::Keeper,
    key::{GroupKeys, OpenError},
    message::{head_bytes, number_of},
    open_queries::{ANSWER_BYTES_MAX, OpenQueries},
    replica::{JoinerState, LocalReplica},
    shared::{Delivery, GroupShared, ReplicaContext, Replicated, Seat},
};
use crate::{error::Error, lock::lock};

/// Number of applied bytes after which the count of waiting bytes of an inbox is reduced.
const APPLIED_BYTES: usize = 1 << 20;

impl Seat {
    pub(super) fn new<R: Object>(
        name: String,
        group: GroupId,
        (me, id): (ProcessId, SeatId),
        group_keys: Option<Arc<GroupKeys>>,
        keeper: Option<Arc<Keeper>>,
        JoinerState { object, loaded }: JoinerState<R>,
        ready: oneshot::Sender<Result<(), Error>>,
    ) -> Seat {
        let local_replica =
            LocalReplica { object, locks: Locks::default(), view: None, fresh: false, loaded };
        Seat {
            name,
            group,
            id,
            me,
            group_keys,
            keeper,
            inbox: Mutex::default(),
            copy: Mutex::new(Box::new(local_replica)),
            inside: AtomicU64::new(0),
            ready: Mutex::new(Some(ready)),
            over: OnceLock::new(),
            leaving: AtomicBool::new(false),
            out: Mutex::new(None),
            debts: Mutex::default(),
            queued: AtomicBool::new(false),
            latest: Mutex::new(None),
            open_queries: Mutex::new(OpenQueries::new(id, ANSWER_BYTES_MAX)),
            claims: Mutex::new(Claims::new(id)),
        }
    }

    /// Whether this member must be the only member of the group in its process. With a key, each of several
    /// members would have to open each message. A checkpoint file belongs to one member.
    pub(super) fn is_alone(&self) -> bool {
        self.group_keys.is_some() || self.keeper.is_some()
    }

    /// Passes a message on, sealed if the group has a key.
    pub(super) fn sealed<T>(&self, body: &[u8], hand_over: impl FnOnce(&[u8]) -> T) -> T {
        match &self.group_keys {
            None => hand_over(body),
            Some(group_keys) => group_keys.send(head_bytes(body), body, hand_over),
        }
    }

    /// Returns the content behind the head of a message of `sender`, opened if the group has a key. Returns
    /// `None` if the message must be skipped.
    pub(super) fn opened<'a>(
        &self,
        sender: ProcessId,
        head: &[u8],
        content: &'a [u8],
    ) -> Result<Option<Cow<'a, [u8]>>, Error> {
        let Some(group_keys) = &self.group_keys else { return Ok(Some(content.into())) };
        match group_keys.open_next(sender, head, content) {
            Ok(plain) => Ok(Some(Vec::from(plain).into())),
            Err(OpenError::OtherKey(key)) => Err(Error::not_member(format!(
                "a message of {sender} is sealed with the key {key}, which this member does not have"
            ))),
            // This member's caller has already learnt that the message was delivered, but all members refused
            // it. So the member must end.
            Err(OpenError::Replayed) if sender == self.me => Err(Error::not_member(
                "all members refused one of this member's own messages as a repetition",
            )),
            Err(why @ (OpenError::Damaged | OpenError::Replayed)) => {
                warn!(
                    group = self.name, %sender, ?why,
                    "a message of a group is skipped, because its seal is damaged or was used before"
                );
                Ok(None)
            }
        }
    }

    /// Puts all `deliveries` of the protocol into the inbox, in their order, and leaves the vector empty.
    /// Runs on the protocol thread. If more than `bytes_max` bytes wait, the member does not keep up, and the
    /// first such call returns an error.
    pub(super) fn push(&self, deliveries: &mut Vec<Delivery>, bytes_max: usize) -> Option<Error> {
        for delivery in &*deliveries {
            match delivery {
                Delivery::View { view, .. } => {
                    *lock(&self.latest) = Some(view.clone());
                    lock(&self.open_queries).view(view);
                }
                Delivery::Updates { sender, updates } if *sender == self.me => {
                    for number in updates.iter().filter_map(|(_, message)| number_of(message)) {
                        if let Some(view) = &*lock(&self.latest) {
                            lock(&self.open_queries).delivered(number, view);
                        }
                    }
                }
                _ => {}
            }
        }
        let mut inbox = lock(&self.inbox);
        if inbox.closed {
            deliveries.clear();
            return None;
        }
        inbox.bytes += deliveries.iter().map(Delivery::bytes).sum::<usize>();
        inbox.queue.append(deliveries);
        if inbox.bytes <= bytes_max {
            return None;
        }
        inbox.closed = true;
        let reason =
            if inbox.waits { "for the object of another member of this process" } else { "to be applied" };
        let bytes = inbox.bytes;
        Some(Error::not_member(format!(
            "this member does not keep up: {bytes} bytes of updates wait {reason}, and at most \
             {bytes_max} may wait"
        )))
    }

    /// Returns the number of bytes that were delivered and are not applied.
    pub(super) fn waiting_bytes(&self) -> usize {
        lock(&self.inbox).bytes
    }

    /// Applies all deliveries so far. Returns the lock on the object. While the caller holds it, the object
    /// does not change.
    fn catch_up<'a>(
        self: &'a Arc<Self>,
        shared: &Arc<GroupShared>,
    ) -> Result<MutexGuard<'a, Box<dyn Replicated>>, Error> {
        let here = thread_number();
        if self.inside.load(Ordering::Relaxed) == here {
            return Err(Error::invalid("this call is not possible inside a callback of the same replica"));
        }
        let mut copy = lock(&self.copy);
        let batch = {
            let mut inbox = lock(&self.inbox);
            if inbox.waits || inbox.queue.is_empty() {
                return Ok(copy);
            }
            mem::take(&mut inbox.queue)
        };
        self.inside.store(here, Ordering::Relaxed);
        // The lock of the inbox is taken once for many deliveries, to spread its cost.
        let mut applied = 0;
        for delivery in batch {
            if self.over().is_some() {
                break;
            }
            applied += delivery.bytes();
            if applied >= APPLIED_BYTES {
                // The delivery that is being applied stays in the count until it has been applied.
                self.applied(applied - delivery.bytes());
                applied = delivery.bytes();
            }
            let context = ReplicaContext { seat: self, shared };
            let taken = catch_unwind(AssertUnwindSafe(|| copy.take(delivery, &context)));
            let taken = taken.unwrap_or_else(|panic| {
                Err(Error::not_member(format!(
                    "the group's object panicked at this member: {}",
                    panic_message(&*panic)
                )))
            });
            if let Err(error) = taken {
                self.fail(error, shared);
            }
        }
        self.applied(applied);
        self.inside.store(0, Ordering::Relaxed);
        Ok(copy)
    }

    /// Subtracts the `bytes` of applied deliveries from the size of the inbox.
    fn applied(&self, bytes: usize) {
        let mut inbox = lock(&self.inbox);
        // If the member has ended, its inbox was emptied, and the count may be less than `bytes`.
        inbox.bytes = inbox.bytes.saturating_sub(bytes);
    }

    /// Applies all deliveries so far, on the delivery thread.
    pub(super) fn deliver(self: &Arc<Self>, shared: &Arc<GroupShared>) {
        // The flag is cleared before the inbox is read, so that a delivery that arrives meanwhile queues the
        // member again.
        self.queued.store(false, Ordering::Release);
        // Applying fails only if a callback of the object called it, and the delivery thread is not inside a
        // callback.
        drop(self.catch_up(shared));
    }

    /// Applies all deliveries, then passes the replica to `read`.
    pub(super) fn lend<R: Object, T>(
        self: &Arc<Self>,
        shared: &Arc<GroupShared>,
        read: impl FnOnce(&LocalReplica<R>) -> T,
    ) -> Result<T, Error> {
        // The check is repeated after the deliveries were applied, because one of them may have ended the
        // member.
        self.over().map_or(Ok(()), Err)?;
        shared.check()?;
        let copy = self.catch_up(shared)?;
        self.over().map_or(Ok(()), Err)?;
        let copy: &dyn Any = &**copy;
        let copy = copy.downcast_ref::<LocalReplica<R>>().expect("the member was made with this type");
        let (here, before) = (thread_number(), self.inside.load(Ordering::Relaxed));
        self.inside.store(here, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| read(copy)));
        self.inside.store(before, Ordering::Relaxed);
        // `read` only borrowed the object, so the object is intact. The panic is resumed after the lock was
        // released normally.
        Ok(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Returns the reason why this member ended, if it has ended.
    pub(super) fn over(&self) -> Option<Error> {
        self.over.get().cloned()
    }

    /// Ends this member for a reason of its own: the member leaves the group, and the other members go on.
    pub(super) fn fail(&self, why: Error, shared: &Arc<GroupShared>) {
        warn!(
            group = self.name, %why,
            "a member of a group ends in this process, and the other members go on"
        );
        if self.end(why.clone()) {
            shared.lose_member(self, &why);
        }
    }

    /// Counts one more request to this member for its object.
    pub(super) fn owe(&self) {
        lock(&self.debts).owed += 1;
    }

    /// Whether another member or process waits for this member's object.
    pub(super) fn owes(&self) -> bool {
        lock(&self.debts).owed > 0
    }

    /// Ends the member as soon as it has answered all requests for its object.
    pub(super) fn depart(&self) {
        let mut debts = lock(&self.debts);
        debts.gone = true;
        if debts.owed == 0 {
            drop(debts);
            self.end(Error::not_member("the member has left the group"));
        }
    }

    /// Notes that the member has answered one request for its object.
    pub(super) fn paid(&self) {
        let mut debts = lock(&self.debts);
        debts.owed = debts.owed.saturating_sub(1);
        if debts.gone && debts.owed == 0 {
            drop(debts);
            self.end(Error::not_member("the member has left the group"));
        }
    }

    /// Stops the application of deliveries until the object arrives from another member of this process.
    pub(super) fn wait(&self) {
        lock(&self.inbox).waits = true;
    }

    /// Takes the object that arrived from another member of this process, and resumes the application of
    /// deliveries.
    pub(super) fn begin(&self, state: Bytes) {
        let mut inbox = lock(&self.inbox);
        inbox.waits = false;
        if !inbox.closed {
            inbox.queue.insert(0, Delivery::Restore(Some(state)));
        }
    }

    /// Sets the sender that reports that the member is out of the group. Reports at once if it is out
    /// already.
    pub(super) fn set_end_sender(&self, sender: oneshot::Sender<Result<CommandOutcome, Failure>>) {
        *lock(&self.out) = Some(sender);
        if self.over().is_some() {
            self.report_end();
        }
    }

    /// Reports an unknown outcome to the caller that waits for the member to be out of the group.
    pub(super) fn leave_unheard(&self) {
        if let Some(sender) = lock(&self.out).take() {
            // The caller may no longer wait.
            let _ = sender.send(Err(Failure::MaybeApplied));
        }
    }

    fn report_end(&self) {
        if let Some(sender) = lock(&self.out).take() {
            // The caller may no longer wait.
            let _ = sender.send(Ok(CommandOutcome::Left));
        }
    }

    /// Ends this member: no further delivery is applied to its object. Returns `false` if the member had
    /// ended before.
    pub(super) fn end(&self, why: Error) -> bool {
        {
            let mut inbox = lock(&self.inbox);
            inbox.closed = true;
            inbox.queue.clear();
            inbox.bytes = 0;
        }
        lock(&self.open_queries).end();
        lock(&self.claims).end();
        if let Some(keeper) = &self.keeper {
            keeper.fail(&why);
        }
        if let Some(ready) = lock(&self.ready).take() {
            // The caller of the join may no longer wait.
            let _ = ready.send(Err(why.clone()));
        }
        let first = self.over.set(why).is_ok();
        self.report_end();
        first
    }

    /// Reports a grant of a lock to the waiting caller, if a member of this process made the claim.
    pub(super) fn granted(&self, grant: Grant) {
        if grant.claim.member == self.me {
            lock(&self.claims).granted(grant);
        }
    }

    pub(super) fn restored(&self) {
        if let Some(ready) = lock(&self.ready).take() {
            // The caller of the join may no longer wait.
            let _ = ready.send(Ok(()));
        }
    }
}

/// Returns the number of this thread, which no other thread has.
fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = LAST.fetch_add(1, Ordering::Relaxed) + 1);
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use crossbeam_channel::unbounded;
    use quorate_protocol::Incarnation;

    use super::*;
    use crate::group::{Handlers, Origin, outbox::PackBounds, shared::DELIVERY_BYTES};

    const ME: ProcessId = ProcessId { node: 1, incarnation: Incarnation(1) };

    /// Makes a member whose object records at each view how many bytes its own inbox holds.
    fn member() -> (Arc<Seat>, Arc<GroupShared>, Arc<Mutex<Vec<usize>>>) {
        let itself = Arc::new(OnceLock::<Arc<Seat>>::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (looks, sees) = (itself.clone(), seen.clone());
        let object = Handlers::new("test/1", 0_u64)
            .update(|_: &mut u64, _: u64, _: &Origin| ())
            .view(move |_, _| lock(&sees).push(looks.get().expect("it is made").waiting_bytes()));
        let brought = JoinerState { object, loaded: None };
        let (sender, _) = oneshot::channel();
        let seat = Seat::new(String::from("g"), GroupId(1), (ME, SeatId(0)), None, None, brought, sender);
        let seat = Arc::new(seat);
        assert!(itself.set(seat.clone()).is_ok(), "it is made once");
        let bounds = PackBounds { soft_bytes: 1, ordered_bytes: 1, updates: 1 };
        (seat, Arc::new(GroupShared::new(ME, unbounded().0, bounds, 1)), seen)
    }

    fn views(count: usize) -> Vec<Delivery> {
        let view = Delivery::View {
            view: Arc::default(),
            arrived: Arc::default(),
            departed: Arc::default(),
            missing: BTreeMap::new(),
            waited: Duration::ZERO,
        };
        vec![view; count]
    }

    #[test]
    fn deliveries_count_in_the_inbox_until_they_are_applied() {
        let (seat, shared, seen) = member();
        assert_eq!(seat.push(&mut views(3), usize::MAX), None);
        let all = 3 * DELIVERY_BYTES;
        assert_eq!(seat.waiting_bytes(), all);
        seat.deliver(&shared);
        assert_eq!(*lock(&seen), [all, all, all], "it takes memory until it is applied");
        assert_eq!(seat.waiting_bytes(), 0);
        // A long batch leaves the count step by step.
        let count = 3 * APPLIED_BYTES / DELIVERY_BYTES;
        assert_eq!(seat.push(&mut views(count), usize::MAX), None);
        seat.deliver(&shared);
        let last = *lock(&seen).last().expect("it saw them");
        assert!((1..=APPLIED_BYTES + DELIVERY_BYTES).contains(&last), "{last}");
        assert_eq!(seat.waiting_bytes(), 0);
    }

    #[test]
    fn a_slow_member_is_warned_once_with_the_waiting_bytes() {
        let (seat, _, _) = member();
        let most = 5 * DELIVERY_BYTES;
        assert_eq!(seat.push(&mut views(5), most), None);
        let why = seat.push(&mut views(1), most).expect("it is too much").to_string();
        assert!(
            why.contains(&format!(
                "{} bytes of updates wait to be applied, and at most {most} may wait",
                6 * DELIVERY_BYTES
            )),
            "{why}"
        );
        assert_eq!(seat.push(&mut views(1), most), None, "it was told");
    }
}
