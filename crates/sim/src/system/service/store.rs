//! A service that is not deterministic, and its host: registers whose values contain random bits.
//!
//! A value is the number of the call that wrote it, and some bits that were drawn at its execution. So it
//! shows the execution that wrote it: two executions of one call differ.

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroUsize,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Context, Duration, Time,
    service::{Command, Event, Executed, TransactionId},
    wire::{decode_body, encode_body},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64;

use crate::mutation::Mutation;

/// The number of a call, and the random bits of its execution.
pub(crate) type Written = (u64, u64);

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Write the call's number. The reply is [`Written`].
    Put { key: u64, call: u64 },
    /// The reply is an `Option<Written>`.
    Get { key: u64, call: u64 },
    /// Refused; the reason is an `Option<Written>`.
    Refuse { key: u64, call: u64 },
}

impl Request {
    pub(crate) fn call(&self) -> u64 {
        let (Request::Put { call, .. } | Request::Get { call, .. } | Request::Refuse { call, .. }) = self;
        *call
    }

    pub(crate) fn key(&self) -> u64 {
        let (Request::Put { key, .. } | Request::Get { key, .. } | Request::Refuse { key, .. }) = self;
        *key
    }
}

/// The state of the service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreState {
    values: BTreeMap<u64, Written>,
    /// The executions of each call that changed anything.
    pub(crate) effects: BTreeMap<u64, Vec<Effect>>,
}

/// An execution that changed something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// The random bits.
    pub(crate) chance: u64,
    pub(crate) key: u64,
    /// The value that the write replaced.
    pub(crate) before: Option<Written>,
}

impl Effect {
    /// Returns the random bits, the key, and the call whose value was replaced.
    pub(crate) fn execution(&self) -> (u64, u64, Option<u64>) {
        (self.chance, self.key, self.before.map(|(call, _)| call))
    }
}

/// A change of the state, as backups apply it. It names the value that it replaces, because it rests on the
/// state in which it was computed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct StoreChange {
    key: u64,
    written: Written,
    before: Option<Written>,
}

/// The inverse of a change.
struct Undo {
    work: u64,
    /// The transaction to which the change belongs, until its commit.
    transaction: Option<TransactionId>,
    key: u64,
    call: u64,
    before: Option<Written>,
}

impl StoreState {
    fn apply(&mut self, StoreChange { key, written: (call, chance), before }: StoreChange) {
        self.values.insert(key, (call, chance));
        self.effects.entry(call).or_default().push(Effect { chance, key, before });
    }

    fn revert(&mut self, undo: &Undo) {
        let times = self.effects.get_mut(&undo.call).expect("it was applied");
        times.pop();
        if times.is_empty() {
            self.effects.remove(&undo.call);
        }
        match undo.before {
            Some(before) => self.values.insert(undo.key, before),
            None => self.values.remove(&undo.key),
        };
    }

    /// Returns the reply to a request that changes nothing.
    pub(super) fn look(&self, key: u64) -> Bytes {
        sealed(&self.values.get(&key).copied())
    }

    /// Returns a digest that is equal for equal states.
    pub(crate) fn digest(&self) -> u64 {
        xxh3_64(&sealed(self))
    }
}

/// The time that a host takes for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Always the same time.
    Exactly(Duration),
    /// A random time up to this one.
    UpTo(Duration),
}

impl Pace {
    fn span(self, chance: u64) -> Duration {
        match self {
            Pace::Exactly(span) => span,
            Pace::UpTo(most) => most.mul_f64((chance % 1000) as f64 / 1e3),
        }
    }

    /// Whether the host answers in the turn of the request.
    fn is_instant(self) -> bool {
        let (Pace::Exactly(most) | Pace::UpTo(most)) = self;
        most.is_zero()
    }
}

/// The manner in which a host works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) pace: Pace,
    /// Whether a change is the whole state.
    pub(crate) whole_states: bool,
    /// Whether the host executes requests in any order.
    pub(crate) any_order: bool,
    /// Maximum padding of a reply, a change or a state, in bytes.
    pub(crate) padding: usize,
}

/// Executes requests and applies changes in the order of the events.
pub(crate) struct StoreHost {
    pub(crate) store: StoreState,
    /// Inverses of the changes that are not chosen, oldest first.
    undo: VecDeque<Undo>,
    pub(crate) queue: VecDeque<Event>,
    manner: Manner,
    /// Requests that wait, if the host executes them in any order.
    tasks: Vec<Event>,
    /// Whether the host executes nothing until a checkpoint.
    rests: bool,
    /// The call that was executed last.
    pub(super) latest: u64,
    /// The time at which the present request will be executed.
    busy_until: Option<Time>,
    /// The rest of a checkpoint that the host is handing out.
    checkpoint: Bytes,
    coming: BytesMut,
    mutation: Option<Mutation>,
    /// For a mutation: changes that were undone with their reign, for a replica that forwards them.
    pub(super) reverted: Vec<(u64, Bytes)>,
    /// For a mutation: changes of other replicas' reigns, by call.
    pub(super) forwarded: BTreeMap<u64, Bytes>,
    /// For a mutation: changes of aborted transactions that are undone only after the next checkpoint.
    held: Vec<Undo>,
}

impl StoreHost {
    pub(crate) fn new(manner: Manner, mutation: Option<Mutation>) -> Self {
        StoreHost {
            store: StoreState::default(),
            undo: VecDeque::new(),
            queue: VecDeque::new(),
            manner,
            tasks: Vec::new(),
            rests: false,
            latest: 0,
            busy_until: None,
            checkpoint: Bytes::new(),
            coming: BytesMut::new(),
            mutation,
            reverted: Vec::new(),
            forwarded: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    /// Whether the host's state equals what its replica has learned.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.tasks.is_empty() && self.undo.is_empty() && self.held.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.busy_until.filter(|_| !self.rests)
    }

    /// Works up to the next result. Executes a request only if it `may_execute`.
    pub(super) fn step(&mut self, cx: &mut Context<'_>, may_execute: bool) -> Option<Command> {
        loop {
            if self.manner.any_order {
                while let Some(task) = self.queue.pop_front_if(|event| matches!(event, Event::Execute { .. }))
                {
                    self.tasks.push(task);
                }
                if self.queue.is_empty() && !self.tasks.is_empty() && !self.rests {
                    if !may_execute || self.is_busy(cx) {
                        return None;
                    }
                    let any = (cx.random)() as usize % self.tasks.len();
                    let task = self.tasks.swap_remove(any);
                    return self.perform(cx, task);
                }
            }
            if let Some(Event::Execute { .. }) = self.queue.front()
                && (!may_execute || self.is_busy(cx))
            {
                return None;
            }
            if let Some(command) = self.perform(cx, self.queue.front()?.clone()) {
                self.queue.pop_front();
                return Some(command);
            }
            self.queue.pop_front();
        }
    }

    /// Whether the next request is still being executed.
    fn is_busy(&mut self, cx: &mut Context<'_>) -> bool {
        if self.manner.pace.is_instant() {
            return false;
        }
        let span = self.manner.pace.span((cx.random)());
        let end = *self.busy_until.get_or_insert(cx.now + span);
        let is_busy = cx.now < end;
        if !is_busy {
            self.busy_until = None;
        }
        is_busy
    }

    fn perform(&mut self, cx: &mut Context<'_>, event: Event) -> Option<Command> {
        if !matches!(event, Event::Abort { .. } | Event::Chosen { .. } | Event::Checkpoint { .. }) {
            self.undo_aborted();
        }
        if matches!(event, Event::Revert) && self.manner.any_order {
            self.tasks.clear();
            (self.busy_until, self.rests) = (None, false);
        }
        match event {
            Event::Execute { work, request, read, transaction } => {
                let result = self.execute(cx, (work, transaction), &request);
                assert!(!read || matches!(result, Executed::Unchanged { .. }), "a read changes nothing");
                return Some(Command::Executed { work, result });
            }
            Event::Chosen { work } if self.manner.any_order => {
                let last = self.undo.iter().position(|undo| undo.work == work);
                self.undo.drain(..=last.expect("what is chosen was executed"));
            }
            Event::Chosen { work } => {
                self.undo.retain(|undo| undo.work > work || undo.transaction.is_some());
            }
            Event::Commit { work, transaction } => {
                for undo in self.undo.iter_mut().filter(|undo| undo.transaction == Some(transaction)) {
                    (undo.work, undo.transaction) = (work, None);
                }
                let result = Executed::Unchanged { reply: Bytes::new() };
                return Some(Command::Executed { work, result });
            }
            Event::Abort { .. } if self.mutation == Some(Mutation::AbortUnreverted) => {}
            Event::Abort { transaction } => {
                let (gone, kept) = std::mem::take(&mut self.undo)
                    .into_iter()
                    .partition::<VecDeque<_>, _>(|undo| undo.transaction == Some(transaction));
                self.undo = kept;
                self.held.extend(gone.into_iter().rev());
                if self.mutation != Some(Mutation::CheckpointUncommitted) {
                    self.undo_aborted();
                }
            }
            Event::Revert if self.mutation == Some(Mutation::LeftUnreverted) => self.undo.clear(),
            Event::Revert => {
                if self.mutation == Some(Mutation::ForwardedDelta) && !self.manner.whole_states {
                    let reverted =
                        self.undo.iter().filter_map(|undo| Some((undo.call, undo.change(&self.store)?)));
                    self.reverted.extend(reverted);
                }
                for undo in std::mem::take(&mut self.undo).iter().rev() {
                    self.store.revert(undo);
                }
            }
            Event::Apply { changes, .. } => {
                assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
                for change in changes {
                    if self.manner.whole_states {
                        self.store = opened(&change);
                        continue;
                    }
                    let mut change: StoreChange = opened(&change);
                    if self.mutation == Some(Mutation::ExecutedByBackups) {
                        change.written.1 = (cx.random)();
                    }
                    self.store.apply(change);
                }
            }
            Event::Rest { rest } => {
                self.rests = true;
                return Some(Command::Rests { rest });
            }
            Event::Checkpoint { .. } => {
                self.rests = false;
                assert!(self.undo.is_empty(), "a checkpoint holds what is chosen");
                self.checkpoint = self.padded(cx, sealed(&self.store));
                self.undo_aborted();
            }
            Event::CheckpointPartWanted { checkpoint, bytes } => {
                let bytes = self.checkpoint.split_to(bytes.min(self.checkpoint.len()));
                return Some(Command::CheckpointPart { checkpoint, bytes, last: self.checkpoint.is_empty() });
            }
            Event::CheckpointUnwanted => self.checkpoint.clear(),
            Event::RestorePart { first, bytes } => {
                if first {
                    self.coming.clear();
                }
                self.coming.extend_from_slice(&bytes);
            }
            Event::Restore { .. } => {
                assert!(self.undo.is_empty(), "a backup has nothing that is not chosen");
                self.store = opened(&std::mem::take(&mut self.coming).freeze());
            }
            // Events for other receivers.
            Event::Leader(_)
            | Event::Serving
            | Event::Members(_)
            | Event::Removed
            | Event::ChangeRefused { .. }
            | Event::Corrupt(_)
            | Event::Resigned => {}
        }
        None
    }

    /// Undoes the changes of aborted transactions.
    fn undo_aborted(&mut self) {
        for undo in self.held.drain(..) {
            self.store.revert(&undo);
        }
    }

    /// Returns the bytes with random padding, which nobody reads.
    fn padded(&self, cx: &mut Context<'_>, bytes: Bytes) -> Bytes {
        let Some(more) = NonZeroUsize::new(self.manner.padding) else { return bytes };
        let mut padded = BytesMut::from(&bytes[..]);
        padded.resize(bytes.len() + (cx.random)() as usize % more, 0);
        padded.freeze()
    }

    fn execute(
        &mut self,
        cx: &mut Context<'_>,
        (work, transaction): (u64, Option<TransactionId>),
        request: &Bytes,
    ) -> Executed {
        let request: Request = opened(request);
        self.latest = request.call();
        match request {
            Request::Put { key, call } => {
                let before = self.store.values.get(&key).copied();
                let change = StoreChange { key, written: (call, (cx.random)()), before };
                let change = self.forwarded.remove(&call).map_or(change, |change| opened(&change));
                self.store.apply(change);
                self.undo.push_back(Undo { work, transaction, key, call, before });
                let reply = self.padded(cx, sealed(&change.written));
                let change = if self.manner.whole_states { sealed(&self.store) } else { sealed(&change) };
                Executed::Changed { reply, change: self.padded(cx, change) }
            }
            Request::Get { key, .. } => Executed::Unchanged { reply: self.padded(cx, self.store.look(key)) },
            Request::Refuse { key, .. } => Executed::Rejected { reason: self.store.look(key) },
        }
    }
}

impl Undo {
    /// Returns the change, if it belongs to no transaction.
    fn change(&self, store: &StoreState) -> Option<Bytes> {
        let effect = store.effects.get(&self.call).and_then(|them| them.last())?;
        let change =
            StoreChange { key: self.key, written: (self.call, effect.chance), before: effect.before };
        self.transaction.is_none().then(|| sealed(&change))
    }
}

/// Encodes a value as bytes.
pub(crate) fn sealed(value: &impl Serialize) -> Bytes {
    let mut bytes = BytesMut::new();
    encode_body(&mut bytes, value);
    bytes.freeze()
}

/// Decodes bytes that [`sealed`] made.
pub(crate) fn opened<T: DeserializeOwned>(bytes: &Bytes) -> T {
    decode_body(&mut bytes.clone()).expect("bytes arrive as they were made")
}
