//! The user's code, on its own thread: orders of the replica in, results out.
//!
//! Orders come in batches, as the protocol thread gathered them in a turn, and are executed in order. Results
//! leave in batches, too, but none waits behind a slow request ([`Outlet`]).
//!
//! A short service ([`Service::SHORT`]) has no such thread: the endpoint executes its orders itself, in the
//! turn in which they arise (`inline`). A [`Performer`] is the common view of both on a service.
//!
//! **Failures.** A panic in `execute` rejects the request: the state was only borrowed. A panic in `apply`
//! leaves an unknown state, so this replica ends, and gives the reason. A leader first rejects the request,
//! so that it does not end the next leader in the same way: its change was never proposed. Then the replica
//! resigns ([`service::Command::Resign`]), which delivers the rejection. Bytes that do not decode end the
//! replica, too, if they came from another replica. They are rejected if they came from a client.
//!
//! **Bytes.** A change is the clock of the leader, followed by the content that [`Service::CARRIES`] chooses:
//! the delta; or the [`Witness`]; or the number of changes and the state. The last form is also that of a
//! checkpoint (`copies`). Parts of a restored state are changes as well ([`export`](super::export)).
//!
//! **Size.** A state has a bound, in bytes of its checkpoint, because a checkpoint is one record of a
//! journal, and is held in memory. The executor adds the bytes of changes to the last exact size. If the sum
//! passes the bound, it measures the state. It takes back and refuses a change that made the state larger
//! than the bound. A change that makes a state smaller is never refused for this. Backups apply all chosen
//! changes.
//!
//! **Checks.** A host can check its services. Then the leader applies each change, takes it back, and applies
//! it again from its bytes. It compares the states before and after byte by byte. A wrong `revert`, or a
//! delta that decodes to another one, refuses the request and ends the replica.

mod copies;

use std::{
    borrow::Cow,
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
    vec,
};

use bytes::{Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender};
use quorate_node::panic_message;
use quorate_protocol::service::{self, Event, TransactionId};
use quorate_runtime::chance::Chance;
use serde::{Deserialize, Serialize};

use super::{
    Carries, Executed, Service,
    cx::{Clock, Cx, Source},
    encoder::{Encoder, ITEM_BYTES_MAX, STATE_BYTES_MAX, decode},
    export::{Copying, Exported, Refused, Restoring, StatePart, split_clock},
};

/// Figures that an executor shows to other threads.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Approximate size of the waiting orders, in bytes.
    pub(super) backlog: AtomicUsize,
    /// The last work that the replica ordered.
    pub(super) ordered: AtomicU64,
    /// The last work that the replica ordered in a reign that is over. Earlier works that were not executed
    /// may be skipped, because an order to revert follows them.
    pub(super) void: AtomicU64,
    /// Number of changes in the state.
    pub(super) changes: AtomicU64,
    /// Number of checkpoints of other replicas that replaced the state.
    pub(super) restored: AtomicU64,
}

impl Tally {
    /// Notes an order of the replica.
    pub(super) fn note(&self, order: &Event) {
        match order {
            Event::Execute { work, .. } | Event::Commit { work, .. } => {
                self.ordered.store(*work, Ordering::Relaxed);
            }
            Event::Revert => self.void.store(self.ordered.load(Ordering::Relaxed), Ordering::Relaxed),
            _ => {}
        }
    }
}

/// An order to an executor's thread.
pub(super) enum ExecutorOrder {
    /// Orders of the replica, from one turn.
    Turn(Vec<Event>),
    /// The host's request for a copy of the state.
    Copy(Sender<Exported>),
}

/// The receiver of an executor's results.
pub(super) trait Outlet: Send + Sync {
    /// Takes results in order. Returns `false` if nobody wants more.
    fn results(&self, results: Vec<service::Command>) -> bool;
    /// Makes the replica resign, because it cannot continue.
    fn broken(&self, why: String);
}

/// A thread body that executes the orders of a replica.
pub(super) trait Runner: Send {
    /// Executes orders until the channel ends.
    fn run(self: Box<Self>, orders: Receiver<ExecutorOrder>, outlet: Arc<dyn Outlet>);
}

/// A runner that also executes orders one by one.
pub(super) trait Performer: Runner {
    /// Executes an order.
    fn perform(&mut self, order: Event, results: &mut Results) -> Result<(), Broken>;

    /// Notes a request for a copy of the state.
    fn want_copy(&mut self, wanted: Sender<Exported>);

    /// Sends the copies of the state that hold no revertible change. The caller calls it after executing
    /// orders.
    fn give_copies(&mut self);
}

/// A service, and the data to execute, revert and copy it.
pub(super) struct Executor<S: Service> {
    pub(super) state: S,
    /// Changes that are not chosen, oldest first.
    undo: VecDeque<Unchosen<S::Undo>>,
    /// Number of changes ever put into `undo`.
    undoable: u64,
    /// Whether requests may complete in another order than they arrived; then each write has an entry in
    /// `undo`.
    any_order: bool,
    /// Number of changes in `undo` that belong to open transactions.
    uncommitted: usize,
    /// Whether the works in `undo` rise. A commit ends that: its changes take its number, and stay before
    /// later works.
    is_sorted: bool,
    clock: Clock,
    chance: Chance,
    encoder: Encoder,
    /// The rest of a checkpoint that is being sent.
    checkpoint: Bytes,
    /// The received part of another replica's checkpoint.
    coming: BytesMut,
    /// Copies of the state that are requested, or hold changes which are not chosen.
    copies: Vec<Copying>,
    /// The state of an earlier set, with which this one begins.
    pub(super) restoring: Restoring,
    tally: Arc<Tally>,
    /// Whether each change is checked.
    checks: bool,
    /// The last known size of the state, plus the bytes of changes since.
    size: usize,
    /// Upper bound of the state after a change, in bytes.
    size_max: usize,
}

/// The content of a change that is executed again: all values that the leader drew, and a print of the
/// result.
#[derive(Serialize, Deserialize)]
struct Witness<'a> {
    #[serde(borrow)]
    request: Cow<'a, [u8]>,
    drawn: Vec<u64>,
    /// The print of the delta.
    print: u64,
}

/// A change that is not chosen.
struct Unchosen<U> {
    /// The change's number; numbers rise.
    number: u64,
    work: u64,
    /// The transaction to which the change belongs, until the commit.
    transaction: Option<TransactionId>,
    undo: Undo<U>,
}

/// The data that takes a change back.
enum Undo<U> {
    /// A change of the service.
    Change(U),
    /// A part of an earlier set's state, with the number of bytes before it.
    Part(usize),
    /// A request without a change.
    Nothing,
}

/// The reason why a replica ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

impl<S: Service> Performer for Executor<S> {
    fn perform(&mut self, order: Event, results: &mut Results) -> Result<(), Broken> {
        catch_unwind(AssertUnwindSafe(|| self.take(order, results))).unwrap_or_else(|panic| {
            Err(Broken(format!("the service's executor panicked: {}", panic_message(&*panic))))
        })
    }

    fn want_copy(&mut self, wanted: Sender<Exported>) {
        self.copies.push(Copying::wanted(wanted));
    }

    fn give_copies(&mut self) {
        if !self.copies.is_empty() {
            self.copy();
        }
    }
}

impl<S: Service> Runner for Executor<S> {
    fn run(mut self: Box<Self>, orders: Receiver<ExecutorOrder>, outlet: Arc<dyn Outlet>) {
        let mut results = Results::default();
        for order in orders {
            if !self.carry_out(order, &mut results, &*outlet, Self::perform) {
                return;
            }
        }
    }
}

impl<S: Service> Executor<S> {
    pub(super) fn new(state: S, restoring: Restoring, tally: Arc<Tally>, checks: bool) -> Self {
        Executor {
            state,
            undo: VecDeque::new(),
            undoable: 0,
            any_order: false,
            uncommitted: 0,
            is_sorted: true,
            clock: Clock::default(),
            chance: Chance::new(),
            encoder: Encoder::default(),
            checkpoint: Bytes::new(),
            coming: BytesMut::new(),
            copies: Vec::new(),
            restoring,
            tally,
            checks,
            size: 0,
            size_max: STATE_BYTES_MAX,
        }
    }

    /// Sets the present size of the state and its bound, in bytes.
    pub(super) fn with_size(self, size: usize, size_max: usize) -> Self {
        Executor { size, size_max, ..self }
    }

    /// Lets requests complete in any order.
    pub(super) fn in_any_order(self) -> Self {
        Executor { any_order: true, ..self }
    }

    /// Executes an order on a thread, and passes the results on. Returns `false` if it was the last order.
    pub(super) fn carry_out(
        &mut self,
        order: ExecutorOrder,
        results: &mut Results,
        outlet: &dyn Outlet,
        mut perform: impl FnMut(&mut Self, Event, &mut Results) -> Result<(), Broken>,
    ) -> bool {
        let batch = match order {
            ExecutorOrder::Turn(batch) => batch,
            ExecutorOrder::Copy(wanted) => {
                self.want_copy(wanted);
                Vec::new()
            }
        };
        for event in batch {
            let bytes = weight(&event);
            let performed = perform(self, event, results);
            self.tally.backlog.fetch_sub(bytes, Ordering::Relaxed);
            if let Err(Broken(why)) = performed {
                results.leave(outlet);
                outlet.broken(why);
                return false;
            }
            if results.are_due() && !results.leave(outlet) {
                return false;
            }
        }
        self.give_copies();
        results.leave(outlet)
    }

    fn take(&mut self, event: Event, results: &mut Results) -> Result<(), Broken> {
        match event {
            Event::Rest { .. } => unreachable!("told to services with threads of their own"),
            Event::Execute { work, .. } | Event::Commit { work, .. }
                if work <= self.tally.void.load(Ordering::Relaxed) => {}
            Event::Execute { work, request, read, transaction } => {
                let found = self.execute(work, transaction, &request, read);
                self.tell(work, found, results)?;
            }
            Event::Chosen { work } => self.chosen(work),
            Event::Commit { work, transaction } => {
                self.commit(work, transaction);
                let result = service::Executed::Unchanged { reply: Bytes::new() };
                results.put(service::Command::Executed { work, result });
            }
            Event::Abort { transaction } => self.abort(transaction)?,
            Event::Revert => self.revert()?,
            Event::Apply { through, changes } => self.apply(through, changes)?,
            Event::Checkpoint { .. } => {
                assert!(self.undo.is_empty(), "a checkpoint holds what is chosen");
                self.checkpoint = self.take_state(0)?;
                self.size = self.checkpoint.len();
            }
            Event::CheckpointPartWanted { checkpoint, bytes } => {
                let bytes = self.checkpoint.split_to(bytes.min(self.checkpoint.len()));
                let last = self.checkpoint.is_empty();
                results.put(service::Command::CheckpointPart { checkpoint, bytes, last });
            }
            Event::CheckpointUnwanted => self.checkpoint.clear(),
            Event::RestorePart { first, bytes } => {
                if first {
                    self.coming.clear();
                }
                self.coming.extend_from_slice(&bytes);
            }
            Event::Restore { through } => self.restore(through)?,
            // These events are for the host.
            Event::Leader(_)
            | Event::Serving
            | Event::Members(_)
            | Event::Removed
            | Event::ChangeRefused { .. }
            | Event::Corrupt(_)
            | Event::Resigned => {}
        }
        Ok(())
    }

    /// Reports the result of a work.
    pub(super) fn tell(
        &mut self,
        work: u64,
        found: Result<service::Executed, Refused>,
        results: &mut Results,
    ) -> Result<(), Broken> {
        let (result, broken) = match found {
            Ok(result) => (result, Ok(())),
            Err(Refused::Whole(reason)) => (rejected(&reason), Ok(())),
            Err(Refused::Torn(reason)) => (rejected(&reason), Err(Broken(reason))),
        };
        results.put(service::Command::Executed { work, result });
        broken
    }

    fn execute(
        &mut self,
        work: u64,
        transaction: Option<TransactionId>,
        request: &Bytes,
        read: bool,
    ) -> Result<service::Executed, Refused> {
        if let Some(change) = self.restoring.answer(request)? {
            return self.begin_with(work, change);
        }
        let witness = (S::CARRIES == Carries::Witness).then_some(request);
        self.complete((work, transaction), witness, read, |state, cx| match requested::<S>(request) {
            Ok(request) => state.execute(&request, cx),
            Err(why) => Executed::Rejected(why),
        })
    }

    /// Finds the result of a request, and applies its change.
    pub(super) fn complete(
        &mut self,
        (work, transaction): (u64, Option<TransactionId>),
        witness: Option<&Bytes>,
        read: bool,
        execute: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>,
    ) -> Result<service::Executed, Refused> {
        let found = catch_unwind(AssertUnwindSafe(|| self.find_out(execute, witness, read)));
        let found = found.unwrap_or_else(|panic| {
            Err(Refused::Whole(format!("the service's `execute` panicked: {}", panic_message(&*panic))))
        })?;
        let ExecutionOutcome { reply, change, bytes } = found;
        let Some((delta, change)) = change else {
            if self.any_order && !read {
                self.remember(work, transaction, Undo::Nothing);
            }
            return Ok(service::Executed::Unchanged { reply });
        };
        let applied = catch_unwind(AssertUnwindSafe(|| match self.checks {
            true => self.rehearse(&delta, &change),
            false => Ok(self.state.apply(&delta)),
        }));
        let undo = applied.map_err(|panic| {
            let words = panic_message(&*panic);
            Refused::Torn(format!(
                "the service's `apply` panicked at the leader, before the change was proposed: {words}"
            ))
        })?;
        let undo = undo.map_err(Refused::Torn)?;
        let undo = self.grow(bytes, &delta, undo)?;
        let change = match S::CARRIES {
            Carries::Delta | Carries::Witness => change,
            Carries::State => match self.take_state(1) {
                Ok(state) if state.len() <= ITEM_BYTES_MAX => state,
                taken => {
                    self.state.revert(undo);
                    let why = match taken {
                        Ok(state) => format!(
                            "the state has {} bytes, and at most {ITEM_BYTES_MAX} are allowed",
                            state.len()
                        ),
                        Err(Broken(why)) => why,
                    };
                    return Err(Refused::Whole(why));
                }
            },
        };
        self.uncommitted += usize::from(transaction.is_some());
        self.remember(work, transaction, Undo::Change(undo));
        self.tally.changes.fetch_add(1, Ordering::Relaxed);
        Ok(service::Executed::Changed { reply, change })
    }

    /// Counts an applied change, or takes it back if it made the state too large.
    fn grow(&mut self, bytes: usize, delta: &S::Delta, undo: S::Undo) -> Result<S::Undo, Refused> {
        self.size += bytes;
        if self.size <= self.size_max {
            return Ok(undo);
        }
        self.size = self.measure()?;
        if self.size <= self.size_max {
            return Ok(undo);
        }
        let after = self.size;
        self.state.revert(undo);
        self.size = self.measure()?;
        if after < self.size {
            self.size = after;
            return Ok(self.state.apply(delta));
        }
        Err(Refused::Whole(format!(
            "the state would have {after} bytes, and at most {} are allowed: remove something before more \
             is added",
            self.size_max
        )))
    }

    /// Returns the size of the state, in bytes.
    fn measure(&self) -> Result<usize, Refused> {
        let size = postcard::serialize_with_flavor(&self.state, postcard::ser_flavors::Size::default());
        size.map_err(|error| Refused::Torn(format!("the state does not serialise: {error}")))
    }

    fn remember(&mut self, work: u64, transaction: Option<TransactionId>, undo: Undo<S::Undo>) {
        self.undoable += 1;
        self.undo.push_back(Unchosen { number: self.undoable, work, transaction, undo });
    }

    /// Returns the result of a request. The state is unchanged, because `execute` only borrows it.
    fn find_out(
        &mut self,
        execute: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>,
        witness: Option<&Bytes>,
        read: bool,
    ) -> Result<ExecutionOutcome<S>, Refused> {
        let Executor { state, clock, chance, encoder, .. } = self;
        let mut drawn = Vec::new();
        let noted = witness.is_some().then_some(&mut drawn);
        let mut cx = Cx { source: Source::Machine { clock, chance, noted } };
        match execute(state, &mut cx) {
            Executed::Unchanged(reply) => {
                Ok(ExecutionOutcome { reply: encoder.encode(&[], &reply)?, change: None, bytes: 0 })
            }
            Executed::Rejected(reason) => Err(Refused::Whole(reason)),
            Executed::Changed(..) if read => {
                Err(Refused::Whole(String::from("a request that was sent as a read would change the state")))
            }
            Executed::Changed(reply, delta) => {
                let reply = encoder.encode(&[], &reply)?;
                let front = clock.latest().to_le_bytes();
                let (change, bytes) = match S::CARRIES {
                    Carries::Delta => {
                        let change = encoder.encode(&front, &delta)?;
                        let bytes = change.len();
                        (change, bytes)
                    }
                    Carries::Witness => {
                        let (print, bytes) = print(&delta).map_err(|error| error.to_string())?;
                        let request = witness.expect("a change by witness keeps its request");
                        let request = Cow::Borrowed(&request[..]);
                        (encoder.encode(&front, &Witness { request, drawn, print })?, bytes)
                    }
                    // The change's bytes are the new state, which has its own bound.
                    Carries::State => (Bytes::new(), 0),
                };
                Ok(ExecutionOutcome { reply, change: Some((delta, change)), bytes })
            }
        }
    }

    /// Applies a change, takes it back, and applies it again from its bytes.
    fn rehearse(&mut self, delta: &S::Delta, change: &[u8]) -> Result<S::Undo, String> {
        let before = self.bytes()?;
        let undo = self.state.apply(delta);
        let after = self.bytes()?;
        self.state.revert(undo);
        same(&before, &self.bytes()?).map_err(|why| {
            format!("check of `revert`: a reverted change has not left the earlier state: {why}")
        })?;
        if S::CARRIES == Carries::State {
            return Ok(self.state.apply(delta));
        }
        let delta = split_clock(change).ok_or("the change is cut off").and_then(|(_, rest)| {
            self.delta(rest).map_err(|_| "check: a change cannot be decoded from its own bytes")
        })?;
        let undo = self.state.apply(&delta);
        same(&after, &self.bytes()?).map_err(|why| {
            format!("check of `apply`: a change that was encoded and decoded has another effect: {why}")
        })?;
        Ok(undo)
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        postcard::to_stdvec(&self.state).map_err(|error| format!("the state does not serialise: {error}"))
    }

    /// Returns the delta of a change that another replica executed.
    fn delta(&self, bytes: &[u8]) -> Result<S::Delta, String> {
        if S::CARRIES == Carries::Delta {
            return decode(bytes).map_err(|error| error.to_string());
        }
        let Witness { request, drawn, print: expected } =
            postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        let request: S::Request = decode(&request).map_err(|error| error.to_string())?;
        let mut cx = Cx { source: Source::Again(drawn.iter()) };
        let found = catch_unwind(AssertUnwindSafe(|| self.state.execute(&request, &mut cx)));
        let found = found.map_err(|panic| {
            format!(
                "the service's `execute` panicked when a request was executed again: {}",
                panic_message(&*panic)
            )
        })?;
        match found {
            Executed::Changed(_, delta) if print(&delta).is_ok_and(|(print, _)| print == expected) => {
                Ok(delta)
            }
            _ => Err(String::from(
                "a request has another result when it is executed again: `execute` may depend on nothing \
                 but state, request, and the clock and chance of `Cx`",
            )),
        }
    }

    /// Notes that changes of works up to this one, outside open transactions, will not be reverted.
    fn chosen(&mut self, work: u64) {
        if self.any_order {
            while let Some(it) = self.undo.pop_front()
                && it.work != work
            {}
            return;
        }
        let is_chosen = |it: &mut Unchosen<S::Undo>| it.transaction.is_none() && it.work <= work;
        if self.uncommitted == 0 && self.is_sorted {
            while self.undo.pop_front_if(is_chosen).is_some() {}
        } else {
            self.undo.retain_mut(|it| !is_chosen(it));
            self.is_sorted = self.undo.iter().is_sorted_by_key(|it| it.work);
        }
    }

    /// Gives the changes of a transaction the number of its commit. They keep their place, because copies of
    /// the state rely on the order of execution.
    fn commit(&mut self, work: u64, transaction: TransactionId) {
        for it in self.undo.iter_mut().filter(|it| it.transaction == Some(transaction)) {
            (it.work, it.transaction) = (work, None);
            self.uncommitted -= 1;
            self.is_sorted = false;
        }
    }

    fn abort(&mut self, transaction: TransactionId) -> Result<(), Broken> {
        let all = mem::take(&mut self.undo).into_iter();
        let (gone, kept) = all.partition::<VecDeque<_>, _>(|it| it.transaction == Some(transaction));
        self.undo = kept;
        gone.into_iter().rev().try_for_each(|it| self.take_back(it))
    }

    fn revert(&mut self) -> Result<(), Broken> {
        while let Some(it) = self.undo.pop_back() {
            self.take_back(it)?;
        }
        Ok(())
    }

    fn take_back(&mut self, it: Unchosen<S::Undo>) -> Result<(), Broken> {
        self.uncommitted -= usize::from(it.transaction.is_some());
        for copy in &mut self.copies {
            copy.spoil(it.number);
        }
        let undo = match it.undo {
            Undo::Change(undo) => undo,
            Undo::Nothing => return Ok(()),
            Undo::Part(before) if self.restoring.take_back(before) => {
                self.tally.changes.fetch_sub(1, Ordering::Relaxed);
                return Ok(());
            }
            Undo::Part(_) => {
                return Err(Broken(String::from("the restored state of the service was not agreed on")));
            }
        };
        catch_unwind(AssertUnwindSafe(|| self.state.revert(undo))).map_err(|panic| {
            Broken(format!("the service's `revert` panicked: {}", panic_message(&*panic)))
        })?;
        self.tally.changes.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn apply(&mut self, through: u64, changes: Vec<Bytes>) -> Result<(), Broken> {
        assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
        for change in changes {
            let broken = |why| {
                Broken(format!(
                    "a change up to instance {through} of the service's log cannot be applied: {why}"
                ))
            };
            if S::CARRIES == Carries::State {
                self.take_over(&change).map_err(broken)?;
                continue;
            }
            if StatePart::is(&change) {
                self.take_part(&change).map_err(broken)?;
                continue;
            }
            let (clock, rest) =
                split_clock(&change).ok_or_else(|| broken("the change is cut off".to_owned()))?;
            let delta = self.delta(rest).map_err(broken)?;
            self.size += change.len();
            self.clock.advance(clock);
            catch_unwind(AssertUnwindSafe(|| drop(self.state.apply(&delta)))).map_err(|panic| {
                broken(format!("the service's `apply` panicked: {}", panic_message(&*panic)))
            })?;
            self.tally.changes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Says at which byte two states differ, if they do.
fn same(one: &[u8], other: &[u8]) -> Result<(), String> {
    if one == other {
        return Ok(());
    }
    let at = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    Err(format!("the states have {} and {} bytes, and differ from byte {at} on", one.len(), other.len()))
}

/// The result of a request, in bytes.
struct ExecutionOutcome<S: Service> {
    reply: Bytes,
    change: Option<(S::Delta, Bytes)>,
    /// Length of the delta, in bytes.
    bytes: usize,
}

/// Decodes a request.
pub(super) fn requested<S: Service>(request: &[u8]) -> Result<S::Request, String> {
    decode(request).map_err(|why| format!("the request does not decode as a request of this service: {why}"))
}

/// Results that wait to be passed on together.
#[derive(Default)]
pub(super) struct Results {
    waiting: Vec<service::Command>,
    bytes: usize,
    /// Time of the first of the results.
    since: Option<Instant>,
}

impl Results {
    pub(super) fn put(&mut self, result: service::Command) {
        self.bytes += result_bytes(&result);
        self.waiting.push(result);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether the results should not wait for the rest of the batch.
    fn are_due(&self) -> bool {
        let late = self.since.is_some_and(|since| since.elapsed() > RESULTS_PAUSE);
        late || self.waiting.len() >= RESULTS_MAX || self.bytes >= RESULTS_BYTES
    }

    /// Whether the results are long enough to leave before more is executed.
    pub(super) fn are_long(&self) -> bool {
        self.bytes >= RESULTS_BYTES
    }

    /// Takes the results, and keeps their memory.
    pub(super) fn drain(&mut self) -> vec::Drain<'_, service::Command> {
        (self.bytes, self.since) = (0, None);
        self.waiting.drain(..)
    }

    pub(super) fn leave(&mut self, outlet: &dyn Outlet) -> bool {
        (self.bytes, self.since) = (0, None);
        let results = mem::take(&mut self.waiting);
        results.is_empty() || outlet.results(results)
    }
}

/// Returns the size of a result, in bytes.
pub(super) fn result_bytes(result: &service::Command) -> usize {
    match result {
        service::Command::Executed { result: service::Executed::Changed { reply, change }, .. } => {
            reply.len() + change.len()
        }
        service::Command::Executed { result: service::Executed::Unchanged { reply }, .. } => reply.len(),
        service::Command::CheckpointPart { bytes, .. } => bytes.len(),
        _ => 0,
    }
}

/// Bounds at which results are passed on: their number, their bytes, and the age of the first.
const RESULTS_MAX: usize = 256;
const RESULTS_BYTES: usize = 256 << 10;
const RESULTS_PAUSE: Duration = Duration::from_micros(100);

/// Returns the approximate size of an order, in bytes.
pub(super) fn weight(event: &Event) -> usize {
    let bytes = match event {
        Event::Execute { request, .. } => request.len(),
        Event::Apply { changes, .. } => changes.iter().map(|change| change.len() + ORDER_BYTES).sum(),
        Event::RestorePart { bytes, .. } => bytes.len(),
        _ => 0,
    };
    ORDER_BYTES + bytes
}

const ORDER_BYTES: usize = 64;

/// Returns the print of a delta, which exposes a witness with another result, and the delta's length in
/// bytes.
fn print(delta: &impl Serialize) -> Result<(u64, usize), postcard::Error> {
    let bytes = postcard::to_stdvec(delta)?;
    Ok((xxhash_rust::xxh3::xxh3_64(&bytes), bytes.len()))
}

fn rejected(reason: &str) -> service::Executed {
    let length = reason.len().min(REASON_BYTES_MAX);
    service::Executed::Rejected { reason: Bytes::copy_from_slice(&reason.as_bytes()[..length]) }
}

/// Length at which a reason of a rejection is cut, in bytes.
const REASON_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests;
