//! The user's code, on a thread of its own: orders of the replica in, results out.
//!
//! Orders come in batches, as the protocol thread gathered them in a turn, and are carried out in their order. Results leave in
//! batches, too, but none waits behind a slow request ([`Outlet`]).
//!
//! **What may go wrong.** A panic in `execute` rejects the request: the state was only lent. A panic in `apply` leaves a state
//! that nobody knows, so this replica ends, and says why. At a leader the request is rejected first, so that it does not end the
//! next leader in the same way: it was never proposed. Bytes that do not decode end the replica, too, if they came from
//! another replica, and are rejected if they came from a client.
//!
//! **Bytes.** A change is the clock of the leader and the delta; a checkpoint is the clock, the number of changes and the state.

use std::{
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use crossbeam_channel::Receiver;
use quorate_node::panic_message;
use quorate_protocol::service::{self, Event, TransactionId};
use quorate_runtime::chance::Chance;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Executed, Service,
    cx::{Clock, Cx},
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

/// The place where an executor's results go.
pub(super) trait Outlet {
    /// These results, in this order. `false`: nobody wants them any more.
    fn results(&self, results: Vec<service::Command>) -> bool;
    /// The replica cannot go on.
    fn ended(&self, why: String);
}

/// A service, and what is needed to execute, revert and copy it.
pub(super) struct Executor<S: Service> {
    state: S,
    /// The changes that are not chosen, the oldest first.
    undo: VecDeque<Unchosen<S::Undo>>,
    /// How many of them are of transactions that are open.
    uncommitted: usize,
    clock: Clock,
    chance: Chance,
    press: Press,
    /// The rest of a checkpoint that is being given.
    checkpoint: Bytes,
    /// Another replica's, as far as it came.
    coming: BytesMut,
    tally: Arc<Tally>,
}

/// A change that is not chosen.
struct Unchosen<U> {
    work: u64,
    /// The transaction to which it belongs, until that is committed.
    transaction: Option<TransactionId>,
    undo: U,
}

/// Why a replica ends.
#[derive(Debug, PartialEq, Eq)]
struct Broken(String);

impl<S: Service> Executor<S> {
    pub(super) fn new(state: S, tally: Arc<Tally>) -> Self {
        Executor {
            state,
            undo: VecDeque::new(),
            uncommitted: 0,
            clock: Clock::default(),
            chance: Chance::new(),
            press: Press::default(),
            checkpoint: Bytes::new(),
            coming: BytesMut::new(),
            tally,
        }
    }

    /// Carries out what comes, until nobody orders any more.
    pub(super) fn run(mut self, orders: Receiver<Vec<Event>>, outlet: impl Outlet) {
        let mut results = Results::default();
        for batch in orders {
            for event in batch {
                let bytes = weight(&event);
                let performed = catch_unwind(AssertUnwindSafe(|| self.perform(event, &mut results)));
                let performed = performed.unwrap_or_else(|panic| {
                    Err(Broken(format!("its executor panicked: {}", panic_message(&*panic))))
                });
                self.tally.backlog.fetch_sub(bytes, Ordering::Relaxed);
                if let Err(Broken(why)) = performed {
                    results.leave(&outlet);
                    // A rejection is confirmed by the others before it is told.
                    thread::sleep(REJECTION_PAUSE);
                    return outlet.ended(why);
                }
                if results.are_due() && !results.leave(&outlet) {
                    return;
                }
            }
            if !results.leave(&outlet) {
                return;
            }
        }
    }

    fn perform(&mut self, event: Event, results: &mut Results) -> Result<(), Broken> {
        match event {
            Event::Execute { work, request, read, transaction } => {
                let (result, broken) = match self.execute(work, transaction, &request, read) {
                    Ok(result) => (result, Ok(())),
                    Err(Refused::Whole(reason)) => (rejected(&reason), Ok(())),
                    Err(Refused::Torn(reason)) => (rejected(&reason), Err(Broken(reason))),
                };
                results.put(service::Command::Executed { work, result });
                broken?;
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
                self.checkpoint = self.take_checkpoint()?;
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
            | Event::Corrupt(_) => {}
        }
        Ok(())
    }

    fn execute(
        &mut self,
        work: u64,
        transaction: Option<TransactionId>,
        request: &Bytes,
        read: bool,
    ) -> Result<service::Executed, Refused> {
        let found = catch_unwind(AssertUnwindSafe(|| self.find_out(request, read)));
        let found = found.unwrap_or_else(|panic| {
            Err(Refused::Whole(format!("execute panicked: {}", panic_message(&*panic))))
        })?;
        let Found { reply, change } = found;
        let Some((delta, change)) = change else { return Ok(service::Executed::Unchanged { reply }) };
        let applied = catch_unwind(AssertUnwindSafe(|| self.state.apply(&delta)));
        let undo = applied.map_err(|panic| {
            let words = panic_message(&*panic);
            Refused::Torn(format!("apply panicked at the leader, before its change was proposed: {words}"))
        })?;
        self.uncommitted += usize::from(transaction.is_some());
        self.undo.push_back(Unchosen { work, transaction, undo });
        self.tally.changes.fetch_add(1, Ordering::Relaxed);
        Ok(service::Executed::Changed { reply, change })
    }

    /// The result of a request. It changes no more of the state than `execute` can, which is lent it.
    fn find_out(&mut self, request: &Bytes, read: bool) -> Result<Found<S>, Refused> {
        let request: S::Request = opened(request)
            .map_err(|why| Refused::Whole(format!("the request is none of this service: {why}")))?;
        let Executor { state, clock, chance, press, .. } = self;
        let mut cx = Cx { clock, chance };
        match state.execute(&request, &mut cx) {
            Executed::Unchanged(reply) => Ok(Found { reply: press.seal(&[], &reply)?, change: None }),
            Executed::Rejected(reason) => Err(Refused::Whole(reason)),
            Executed::Changed(..) if read => {
                Err(Refused::Whole(String::from("a request that was sent as a read would change the state")))
            }
            Executed::Changed(reply, delta) => {
                let reply = press.seal(&[], &reply)?;
                let change = press.seal(&clock.latest().to_le_bytes(), &delta)?;
                Ok(Found { reply, change: Some((delta, change)) })
            }
        }
    }

    /// Changes of works up to this one, and of no open transaction, will not be reverted.
    fn chosen(&mut self, work: u64) {
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
        catch_unwind(AssertUnwindSafe(|| self.state.revert(it.undo)))
            .map_err(|panic| Broken(format!("revert panicked: {}", panic_message(&*panic))))?;
        self.tally.changes.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn apply(&mut self, through: u64, changes: Vec<Bytes>) -> Result<(), Broken> {
        assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
        for change in changes {
            let broken = |why| Broken(format!("a change up to instance {through}: {why}"));
            let (clock, delta) = split_clock(&change).ok_or_else(|| broken("it is cut off".to_owned()))?;
            let delta: S::Delta = opened(delta).map_err(|why| broken(why.to_string()))?;
            self.clock.advance(clock);
            catch_unwind(AssertUnwindSafe(|| drop(self.state.apply(&delta))))
                .map_err(|panic| broken(format!("apply panicked: {}", panic_message(&*panic))))?;
            self.tally.changes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn take_checkpoint(&self) -> Result<Bytes, Broken> {
        let taken = catch_unwind(AssertUnwindSafe(|| postcard::to_stdvec(&self.state)));
        let taken = taken
            .map_err(|panic| Broken(format!("serialising the state panicked: {}", panic_message(&*panic))))?;
        let state = taken.map_err(|error| Broken(format!("the state does not serialise: {error}")))?;
        let (clock, changes) = (self.clock.latest(), self.tally.changes.load(Ordering::Relaxed));
        Ok([&clock.to_le_bytes()[..], &changes.to_le_bytes(), &state].concat().into())
    }

    fn restore(&mut self, through: u64) -> Result<(), Broken> {
        assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
        let coming = mem::take(&mut self.coming);
        let broken = |why: String| Broken(format!("the checkpoint of instance {through}: {why}"));
        let split = split_clock(&coming).and_then(|(clock, rest)| Some((clock, split_clock(rest)?)));
        let (clock, (changes, state)) = split.ok_or_else(|| broken(String::from("it is cut off")))?;
        let state = catch_unwind(|| opened(state).map_err(|error| error.to_string()));
        let state =
            state.unwrap_or_else(|panic| Err(format!("restoring panicked: {}", panic_message(&*panic))));
        self.state = state.map_err(broken)?;
        self.clock.advance(clock);
        self.tally.changes.store(changes, Ordering::Relaxed);
        self.tally.restored.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The result of a request, in bytes.
struct Found<S: Service> {
    reply: Bytes,
    change: Option<(S::Delta, Bytes)>,
}

/// Why a request is refused.
enum Refused {
    /// The state is as it was.
    Whole(String),
    /// Nobody knows what the state is.
    Torn(String),
}

/// How long a replica that ends waits so that its last rejection is told.
const REJECTION_PAUSE: Duration = Duration::from_millis(300);

/// Results that wait to be handed over together.
#[derive(Default)]
struct Results {
    waiting: Vec<service::Command>,
    bytes: usize,
    /// When the first of them was there.
    since: Option<Instant>,
}

impl Results {
    fn put(&mut self, result: service::Command) {
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

    fn leave(&mut self, outlet: &impl Outlet) -> bool {
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

/// The print of a state, by which replicas that begin with different ones are told apart.
pub(super) fn print(state: &impl Serialize) -> Result<u64, postcard::Error> {
    Ok(xxhash_rust::xxh3::xxh3_64(&postcard::to_stdvec(state)?))
}

/// The bytes of values, one behind another in memory that they share.
#[derive(Default)]
pub(super) struct Press(BytesMut);

impl Press {
    /// A value's bytes behind others; refused if they are too many.
    pub(super) fn seal(&mut self, front: &[u8], value: &impl Serialize) -> Result<Bytes, String> {
        if self.0.capacity() < PRESS_BYTES_LEFT {
            self.0.reserve(PRESS_BYTES);
        }
        self.0.extend_from_slice(front);
        let sealed = postcard::serialize_with_flavor(value, Ink(&mut self.0));
        let bytes = self.0.split().freeze();
        sealed.map_err(|error| format!("it does not serialise: {error}"))?;
        match bytes.len() {
            length if length > ITEM_BYTES_MAX => Err(format!(
                "{length} bytes are too many for a request, a reply or a change: {ITEM_BYTES_MAX} at most"
            )),
            _ => Ok(bytes),
        }
    }
}

/// Memory that values share, and what is left of it when other memory is taken, in bytes.
const PRESS_BYTES: usize = 32 << 10;
const PRESS_BYTES_LEFT: usize = 512;

/// Where postcard writes.
struct Ink<'a>(&'a mut BytesMut);

impl postcard::ser_flavors::Flavor for Ink<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.put_u8(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// The value that these bytes are, all of them.
pub(super) fn opened<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}

/// No request, reply or change is longer, in bytes.
pub(super) const ITEM_BYTES_MAX: usize = 4 << 20;

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

fn split_clock(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (clock, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*clock), rest))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde::Deserialize;

    use super::*;

    /// Words, of which each is a change.
    #[derive(Default, Serialize, Deserialize)]
    struct Words(Vec<String>);

    impl Service for Words {
        type Request = String;
        type Reply = usize;
        type Delta = String;
        type Undo = ();

        fn execute(&self, word: &String, cx: &mut Cx<'_>) -> Executed<Self> {
            cx.clock();
            assert!(!word.is_empty(), "no word");
            Executed::Changed(self.0.len() + 1, word.clone())
        }

        fn apply(&mut self, word: &String) {
            assert!(word != "poison", "no such word");
            self.0.push(word.clone());
        }

        fn revert(&mut self, (): ()) {
            self.0.pop();
        }
    }

    fn executor() -> Executor<Words> {
        Executor::new(Words::default(), Arc::default())
    }

    fn order(work: u64, word: &str) -> Event {
        Event::Execute {
            work,
            request: Press::default().seal(&[], &word).unwrap(),
            read: false,
            transaction: None,
        }
    }

    /// The change that an order comes to.
    fn change(executor: &mut Executor<Words>, order: Event) -> Bytes {
        let mut results = Results::default();
        executor.perform(order, &mut results).unwrap();
        match &results.waiting[..] {
            [service::Command::Executed { result: service::Executed::Changed { change, .. }, .. }] => {
                change.clone()
            }
            other => panic!("{other:?}"),
        }
    }

    fn perform(executor: &mut Executor<Words>, event: Event) -> Result<Vec<service::Command>, Broken> {
        let mut results = Results::default();
        executor.perform(event, &mut results)?;
        Ok(results.waiting)
    }

    #[test]
    fn what_is_not_chosen_is_taken_back_and_what_is_chosen_stays() {
        let mut executor = executor();
        for (work, word) in [(1, "a"), (2, "b"), (3, "c")] {
            change(&mut executor, order(work, word));
        }
        perform(&mut executor, Event::Chosen { work: 2 }).unwrap();
        perform(&mut executor, Event::Revert).unwrap();
        assert_eq!(executor.state.0, ["a", "b"]);
        assert_eq!(executor.tally.changes.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn an_aborted_transaction_is_taken_back_and_a_committed_one_goes_with_its_commit() {
        let transaction = |number| TransactionId { session: service::SessionId(1), number };
        let mut executor = executor();
        for (work, word, number) in [(1, "a", 1), (2, "b", 0), (3, "c", 2), (4, "d", 1)] {
            let Event::Execute { work, request, read, .. } = order(work, word) else { unreachable!() };
            let transaction = (number > 0).then(|| transaction(number));
            change(&mut executor, Event::Execute { work, request, read, transaction });
        }
        perform(&mut executor, Event::Chosen { work: 2 }).unwrap();
        // What revert takes back here is the last word, whichever it is: that is what default keys allow.
        perform(&mut executor, Event::Abort { transaction: transaction(1) }).unwrap();
        assert_eq!((executor.state.0.len(), executor.uncommitted), (2, 1));
        perform(&mut executor, Event::Commit { work: 5, transaction: transaction(2) }).unwrap();
        perform(&mut executor, Event::Chosen { work: 4 }).unwrap();
        assert_eq!(executor.undo.len(), 1, "its commit is not chosen");
        perform(&mut executor, Event::Revert).unwrap();
        assert_eq!((executor.state.0.len(), executor.uncommitted), (1, 0));
    }

    #[test]
    fn a_backup_and_a_joiner_come_to_the_same_state_and_clock() {
        let (mut leader, mut backup, mut joiner) = (executor(), executor(), executor());
        let changes = vec![change(&mut leader, order(1, "a")), change(&mut leader, order(2, "b"))];
        perform(&mut backup, Event::Apply { through: 2, changes }).unwrap();
        assert_eq!(backup.clock.latest(), leader.clock.latest());
        perform(&mut backup, Event::Checkpoint { checkpoint: 1 }).unwrap();
        let mut first = true;
        loop {
            let wanted = Event::CheckpointPartWanted { checkpoint: 1, bytes: 7 };
            let given = perform(&mut backup, wanted).unwrap();
            let [service::Command::CheckpointPart { bytes, last, .. }] = &given[..] else {
                panic!("{given:?}")
            };
            let part = Event::RestorePart { first, bytes: bytes.clone() };
            perform(&mut joiner, part).unwrap();
            first = false;
            if *last {
                break;
            }
        }
        perform(&mut joiner, Event::Restore { through: 2 }).unwrap();
        assert_eq!(joiner.state.0, ["a", "b"]);
        assert_eq!(joiner.clock.latest(), leader.clock.latest());
        assert_eq!(joiner.tally.changes.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_does_not_decode_is_refused_to_a_client_and_ends_a_backup() {
        let mut executor = executor();
        let bytes = Bytes::from_static(&[200]);
        let execute = Event::Execute { work: 1, request: bytes.clone(), read: false, transaction: None };
        let given = perform(&mut executor, execute).unwrap();
        assert!(
            matches!(
                &given[..],
                [service::Command::Executed { result: service::Executed::Rejected { .. }, .. }]
            ),
            "{given:?}"
        );
        let changes = vec![bytes.clone()];
        assert!(perform(&mut executor, Event::Apply { through: 1, changes }).is_err());
        perform(&mut executor, Event::RestorePart { first: true, bytes }).unwrap();
        assert!(perform(&mut executor, Event::Restore { through: 1 }).is_err());
        assert!(executor.state.0.is_empty());
    }

    struct Ear(Arc<Mutex<(Vec<service::Command>, Option<String>)>>);

    impl Outlet for Ear {
        fn results(&self, results: Vec<service::Command>) -> bool {
            self.0.lock().unwrap().0.extend(results);
            true
        }

        fn ended(&self, why: String) {
            self.0.lock().unwrap().1 = Some(why);
        }
    }

    #[test]
    fn a_panic_in_execute_is_a_refusal_and_one_in_apply_is_the_end_behind_a_refusal() {
        let (orders, waiting) = crossbeam_channel::unbounded();
        let (executor, heard) = (executor(), Arc::new(Mutex::default()));
        let tally = executor.tally.clone();
        let batch = vec![order(1, ""), order(2, "a"), order(3, "poison"), order(4, "b")];
        tally.backlog.fetch_add(batch.iter().map(weight).sum(), Ordering::Relaxed);
        orders.send(batch).unwrap();
        executor.run(waiting, Ear(heard.clone()));
        let heard = heard.lock().unwrap();
        let works = heard.0.iter().map(|command| match command {
            service::Command::Executed { work, result } => {
                (*work, matches!(result, service::Executed::Rejected { .. }))
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(
            works.collect::<Vec<_>>(),
            [(1, true), (2, false), (3, true)],
            "none behind it is executed"
        );
        assert!(heard.1.as_ref().unwrap().contains("no such word"), "{heard:?}");
    }
}
