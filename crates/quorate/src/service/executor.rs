//! The user's code, on a thread of its own: orders of the replica in, results out.
//!
//! Orders come in batches, as the protocol thread gathered them in a turn, and are carried out in their order. Results leave in
//! batches, too, but none waits behind a slow request ([`Outlet`]).
//!
//! A service that is short ([`Service::SHORT`]) has no such thread: the endpoint carries its orders out itself, in the turn in which
//! they come up (`inline`). A [`Performer`] is all that either needs to know of a service.
//!
//! **What may go wrong.** A panic in `execute` rejects the request: the state was only lent. A panic in `apply` leaves a state
//! that nobody knows, so this replica ends, and says why. At a leader the request is rejected first, so that it does not end the
//! next leader in the same way: it was never proposed. The replica resigns then ([`service::Command::Resign`]), which has that told.
//! Bytes that do not decode end the replica, too, if they came from another replica, and are rejected if they came from a client.
//!
//! **Bytes.** A change is the clock of the leader and, behind it, what [`Service::CARRIES`] says: the delta; or the [`Witness`]; or the
//! number of changes and the state, which is what a checkpoint is, too (`copies`). Parts of a restored state are changes as well ([`export`](super::export)).
//!
//! **Checks.** A host may be told to check its services. Then each change at the leader is applied, taken back, and applied again as its bytes
//! say. The states before and after are compared byte by byte: a wrong `revert`, and a delta that is another one behind its bytes, make the request a
//! refusal, and the replica ends.

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
    export::{Copying, Exported, Part, Restoring},
    press::{ITEM_BYTES_MAX, Press, opened},
};

/// Figures that an executor shows to other threads.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Bytes of orders that wait, about.
    pub(super) backlog: AtomicUsize,
    /// Changes that the state holds.
    pub(super) changes: AtomicU64,
    /// Checkpoints of other replicas that took the state's place.
    pub(super) restored: AtomicU64,
}

/// What an executor's thread is told.
pub(super) enum Order {
    /// By the replica, in one turn.
    Turn(Vec<Event>),
    /// By the host: a copy of the state is wanted.
    Copy(Sender<Exported>),
}

/// The place where an executor's results go.
pub(super) trait Outlet: Send + Sync {
    /// These results, in this order. `false`: nobody wants them any more.
    fn results(&self, results: Vec<service::Command>) -> bool;
    /// The replica cannot go on: it is to resign.
    fn broken(&self, why: String);
}

/// Whatever carries out the orders of a replica.
pub(super) trait Runner: Send {
    /// Carries out what comes, until nobody orders any more.
    fn run(self: Box<Self>, orders: Receiver<Order>, outlet: Arc<dyn Outlet>);
}

/// The same, one by one.
pub(super) trait Performer: Runner {
    /// Carries out an order.
    fn perform(&mut self, order: Event, results: &mut Results) -> Result<(), Broken>;

    /// Takes in that somebody wants a copy of the state.
    fn want_copy(&mut self, wanted: Sender<Exported>);

    /// Gives copies of the state that hold nothing which may be taken back. To be called when orders were carried out.
    fn give_copies(&mut self);
}

/// A service, and what is needed to execute, revert and copy it.
pub(super) struct Executor<S: Service> {
    pub(super) state: S,
    /// The changes that are not chosen, the oldest first.
    undo: VecDeque<Unchosen<S::Undo>>,
    /// Changes that were put there, ever.
    undoable: u64,
    /// Whether requests are completed in another order than they came in; then each write has its place in `undo`.
    any_order: bool,
    /// How many of them are of transactions that are open.
    uncommitted: usize,
    clock: Clock,
    chance: Chance,
    press: Press,
    /// The rest of a checkpoint that is being given.
    checkpoint: Bytes,
    /// Another replica's, as far as it came.
    coming: BytesMut,
    /// Copies of the state that are wanted, or hold changes which are not chosen.
    copies: Vec<Copying>,
    /// The state of an earlier set, which this one begins with.
    pub(super) restoring: Restoring,
    tally: Arc<Tally>,
    /// Whether each change is checked.
    checks: bool,
}

/// What a change carries if it is executed again: all that the leader drew, and a print of what came of it.
#[derive(Serialize, Deserialize)]
struct Witness<'a> {
    #[serde(borrow)]
    request: Cow<'a, [u8]>,
    drawn: Vec<u64>,
    /// Of the delta.
    print: u64,
}

/// A change that is not chosen.
struct Unchosen<U> {
    /// Counts up.
    number: u64,
    work: u64,
    /// The transaction to which it belongs, until that is committed.
    transaction: Option<TransactionId>,
    undo: Undo<U>,
}

/// All that takes a change back.
enum Undo<U> {
    /// One of the service.
    Change(U),
    /// A part of an earlier set's state; so many bytes were there before.
    Part(usize),
    /// Nothing was changed.
    Nothing,
}

/// Why a replica ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

impl<S: Service> Performer for Executor<S> {
    fn perform(&mut self, order: Event, results: &mut Results) -> Result<(), Broken> {
        catch_unwind(AssertUnwindSafe(|| self.take(order, results)))
            .unwrap_or_else(|panic| Err(Broken(format!("its executor panicked: {}", panic_message(&*panic)))))
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
    fn run(mut self: Box<Self>, orders: Receiver<Order>, outlet: Arc<dyn Outlet>) {
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
            clock: Clock::default(),
            chance: Chance::new(),
            press: Press::default(),
            checkpoint: Bytes::new(),
            coming: BytesMut::new(),
            copies: Vec::new(),
            restoring,
            tally,
            checks,
        }
    }

    /// The same, and requests are completed in any order.
    pub(super) fn in_any_order(self) -> Self {
        Executor { any_order: true, ..self }
    }

    /// Carries out an order on a thread, and hands over what came of it. `false`: it was the last one.
    pub(super) fn carry_out(
        &mut self,
        order: Order,
        results: &mut Results,
        outlet: &dyn Outlet,
        mut perform: impl FnMut(&mut Self, Event, &mut Results) -> Result<(), Broken>,
    ) -> bool {
        let batch = match order {
            Order::Turn(batch) => batch,
            Order::Copy(wanted) => {
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
            // News, for the host.
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

    /// Tells what came of a work.
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

    /// Finds out what a request comes to, and applies that.
    pub(super) fn complete(
        &mut self,
        (work, transaction): (u64, Option<TransactionId>),
        witness: Option<&Bytes>,
        read: bool,
        execute: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>,
    ) -> Result<service::Executed, Refused> {
        let found = catch_unwind(AssertUnwindSafe(|| self.find_out(execute, witness, read)));
        let found = found.unwrap_or_else(|panic| {
            Err(Refused::Whole(format!("execute panicked: {}", panic_message(&*panic))))
        })?;
        let Found { reply, change } = found;
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
            Refused::Torn(format!("apply panicked at the leader, before its change was proposed: {words}"))
        })?;
        let undo = undo.map_err(Refused::Torn)?;
        let change = match S::CARRIES {
            Carries::Delta | Carries::Witness => change,
            Carries::State => match self.take_state(1) {
                Ok(state) if state.len() <= ITEM_BYTES_MAX => state,
                taken => {
                    self.state.revert(undo);
                    let why = match taken {
                        Ok(state) => format!("a state of {} bytes: {ITEM_BYTES_MAX} at most", state.len()),
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

    fn remember(&mut self, work: u64, transaction: Option<TransactionId>, undo: Undo<S::Undo>) {
        self.undoable += 1;
        self.undo.push_back(Unchosen { number: self.undoable, work, transaction, undo });
    }

    /// The result of a request. It changes no more of the state than `execute` can, which is lent it.
    fn find_out(
        &mut self,
        execute: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>,
        witness: Option<&Bytes>,
        read: bool,
    ) -> Result<Found<S>, Refused> {
        let Executor { state, clock, chance, press, .. } = self;
        let mut drawn = Vec::new();
        let noted = witness.is_some().then_some(&mut drawn);
        let mut cx = Cx { source: Source::Machine { clock, chance, noted } };
        match execute(state, &mut cx) {
            Executed::Unchanged(reply) => Ok(Found { reply: press.seal(&[], &reply)?, change: None }),
            Executed::Rejected(reason) => Err(Refused::Whole(reason)),
            Executed::Changed(..) if read => {
                Err(Refused::Whole(String::from("a request that was sent as a read would change the state")))
            }
            Executed::Changed(reply, delta) => {
                let reply = press.seal(&[], &reply)?;
                let front = clock.latest().to_le_bytes();
                let change = match S::CARRIES {
                    Carries::Delta => press.seal(&front, &delta)?,
                    Carries::Witness => {
                        let print = print(&delta).map_err(|error| error.to_string())?;
                        let request = witness.expect("it is the request that is executed again");
                        let request = Cow::Borrowed(&request[..]);
                        press.seal(&front, &Witness { request, drawn, print })?
                    }
                    // It is made of what the state will be.
                    Carries::State => Bytes::new(),
                };
                Ok(Found { reply, change: Some((delta, change)) })
            }
        }
    }

    /// Applies a change, takes it back, and applies it again as its bytes say.
    fn rehearse(&mut self, delta: &S::Delta, change: &[u8]) -> Result<S::Undo, String> {
        let before = self.bytes()?;
        let undo = self.state.apply(delta);
        let after = self.bytes()?;
        self.state.revert(undo);
        same(&before, &self.bytes()?)
            .map_err(|why| format!("check: the state is another one when a change was reverted: {why}"))?;
        if S::CARRIES == Carries::State {
            return Ok(self.state.apply(delta));
        }
        let delta = split_clock(change).ok_or("it is cut off").and_then(|(_, rest)| {
            self.delta(rest).map_err(|_| "check: a change does not come back from its bytes")
        })?;
        let undo = self.state.apply(&delta);
        same(&after, &self.bytes()?).map_err(|why| {
            format!("check: a change that comes from its bytes has another effect at backups: {why}")
        })?;
        Ok(undo)
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        postcard::to_stdvec(&self.state).map_err(|error| format!("the state does not serialise: {error}"))
    }

    /// The delta of a change that another replica executed.
    fn delta(&self, bytes: &[u8]) -> Result<S::Delta, String> {
        if S::CARRIES == Carries::Delta {
            return opened(bytes).map_err(|error| error.to_string());
        }
        let Witness { request, drawn, print: expected } =
            postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        let request: S::Request = opened(&request).map_err(|error| error.to_string())?;
        let mut cx = Cx { source: Source::Again(drawn.iter()) };
        let found = catch_unwind(AssertUnwindSafe(|| self.state.execute(&request, &mut cx)));
        let found =
            found.map_err(|panic| format!("execute panicked with a witness: {}", panic_message(&*panic)))?;
        match found {
            Executed::Changed(_, delta) if print(&delta) == Ok(expected) => Ok(delta),
            _ => Err(String::from(
                "executed again it comes to something else: beside clock and chance of `Cx` it must depend on nothing",
            )),
        }
    }

    /// Changes of works up to this one, and of no open transaction, will not be reverted.
    fn chosen(&mut self, work: u64) {
        if self.any_order {
            while let Some(it) = self.undo.pop_front()
                && it.work != work
            {}
            return;
        }
        let is_chosen = |it: &mut Unchosen<S::Undo>| it.transaction.is_none() && it.work <= work;
        if self.uncommitted == 0 {
            while self.undo.pop_front_if(is_chosen).is_some() {}
        } else {
            self.undo.retain_mut(|it| !is_chosen(it));
        }
    }

    fn commit(&mut self, work: u64, transaction: TransactionId) {
        for it in self.undo.iter_mut().filter(|it| it.transaction == Some(transaction)) {
            (it.work, it.transaction) = (work, None);
            self.uncommitted -= 1;
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
            Undo::Part(_) => return Err(Broken(String::from("its restored state was not agreed on"))),
        };
        catch_unwind(AssertUnwindSafe(|| self.state.revert(undo)))
            .map_err(|panic| Broken(format!("revert panicked: {}", panic_message(&*panic))))?;
        self.tally.changes.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn apply(&mut self, through: u64, changes: Vec<Bytes>) -> Result<(), Broken> {
        assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
        for change in changes {
            let broken = |why| Broken(format!("a change up to instance {through}: {why}"));
            if S::CARRIES == Carries::State {
                self.take_over(&change).map_err(broken)?;
                continue;
            }
            if Part::is(&change) {
                self.take_part(&change).map_err(broken)?;
                continue;
            }
            let (clock, rest) = split_clock(&change).ok_or_else(|| broken("it is cut off".to_owned()))?;
            let delta = self.delta(rest).map_err(broken)?;
            self.clock.advance(clock);
            catch_unwind(AssertUnwindSafe(|| drop(self.state.apply(&delta))))
                .map_err(|panic| broken(format!("apply panicked: {}", panic_message(&*panic))))?;
            self.tally.changes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Where two states differ, if they do.
fn same(one: &[u8], other: &[u8]) -> Result<(), String> {
    if one == other {
        return Ok(());
    }
    let at = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    Err(format!("{} and {} bytes, which differ from byte {at} on", one.len(), other.len()))
}

/// The result of a request, in bytes.
struct Found<S: Service> {
    reply: Bytes,
    change: Option<(S::Delta, Bytes)>,
}

/// Why a request is refused.
pub(super) enum Refused {
    /// The state is as it was.
    Whole(String),
    /// Nobody knows what the state is.
    Torn(String),
}

/// The request in these bytes.
pub(super) fn requested<S: Service>(request: &[u8]) -> Result<S::Request, String> {
    opened(request).map_err(|why| format!("the request is none of this service: {why}"))
}

/// Results that wait to be handed over together.
#[derive(Default)]
pub(super) struct Results {
    waiting: Vec<service::Command>,
    bytes: usize,
    /// When the first of them was there.
    since: Option<Instant>,
}

impl Results {
    pub(super) fn put(&mut self, result: service::Command) {
        self.bytes += match &result {
            service::Command::Executed { result: service::Executed::Changed { reply, change }, .. } => {
                reply.len() + change.len()
            }
            service::Command::Executed { result: service::Executed::Unchanged { reply }, .. } => reply.len(),
            service::Command::CheckpointPart { bytes, .. } => bytes.len(),
            _ => 0,
        };
        self.waiting.push(result);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether they should not wait for the rest of the batch.
    fn are_due(&self) -> bool {
        let late = self.since.is_some_and(|since| since.elapsed() > RESULTS_PAUSE);
        late || self.waiting.len() >= RESULTS_MAX || self.bytes >= RESULTS_BYTES
    }

    /// Takes them, and keeps their memory.
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

/// So many results are handed over at the most, so many bytes of them, and so late.
const RESULTS_MAX: usize = 256;
const RESULTS_BYTES: usize = 256 << 10;
const RESULTS_PAUSE: Duration = Duration::from_micros(100);

/// The bytes of an order, about.
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

/// The print of a delta, by which a witness that comes to something else is told.
fn print(delta: &impl Serialize) -> Result<u64, postcard::Error> {
    Ok(xxhash_rust::xxh3::xxh3_64(&postcard::to_stdvec(delta)?))
}

impl From<String> for Refused {
    fn from(reason: String) -> Refused {
        Refused::Whole(reason)
    }
}

fn rejected(reason: &str) -> service::Executed {
    let length = reason.len().min(REASON_BYTES_MAX);
    service::Executed::Rejected { reason: Bytes::copy_from_slice(&reason.as_bytes()[..length]) }
}

/// A longer reason of a rejection is cut, in bytes.
const REASON_BYTES_MAX: usize = 4096;

pub(super) fn split_clock(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (clock, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*clock), rest))
}

#[cfg(test)]
mod tests;
