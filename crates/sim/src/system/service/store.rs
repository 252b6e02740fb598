//! A service that is not deterministic, and its host: registers, whose values chance has a part in.
//!
//! A value is the number of the call that wrote it and some bits that were drawn when it was executed. So it shows which
//! execution of the call it is from: two executions of one call differ.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Context, Duration, Time,
    service::{Command, Event, Executed, TransactionId},
    wire::{decode_body, encode_body},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64;

use crate::mutation::Mutation;

/// The number of a call, and what chance added when it was executed.
pub(crate) type Written = (u64, u64);

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Write the call's number. The reply is [`Written`].
    Put { key: u64, call: u64 },
    /// The reply is an `Option<Written>`.
    Get { key: u64, call: u64 },
    /// Refused, and the reason is an `Option<Written>`.
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
pub(crate) struct Store {
    values: BTreeMap<u64, Written>,
    /// The executions of each call that changed anything.
    pub(crate) effects: BTreeMap<u64, Vec<Effect>>,
}

/// An execution that changed something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// The bits that chance added.
    pub(crate) chance: u64,
    pub(crate) key: u64,
    /// The value that it replaced.
    pub(crate) before: Option<Written>,
}

impl Effect {
    /// The bits that chance added, the key, and the call whose value it replaced.
    pub(crate) fn execution(&self) -> (u64, u64, Option<u64>) {
        (self.chance, self.key, self.before.map(|(call, _)| call))
    }
}

/// A change of the state, as backups apply it. It rests on the state in which it was computed: it names the value that it replaces.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Change {
    key: u64,
    written: Written,
    before: Option<Written>,
}

/// What reverts a change.
struct Undo {
    work: u64,
    /// The transaction to which the change belongs, until that is committed.
    transaction: Option<TransactionId>,
    key: u64,
    call: u64,
    before: Option<Written>,
}

impl Store {
    fn apply(&mut self, Change { key, written: (call, chance), before }: Change) {
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

    /// The reply to a request that changes nothing.
    pub(super) fn look(&self, key: u64) -> Bytes {
        sealed(&self.values.get(&key).copied())
    }

    /// Equal for equal states.
    pub(crate) fn digest(&self) -> u64 {
        xxh3_64(&sealed(self))
    }
}

/// How long a host takes over a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Always as long.
    Exactly(Duration),
    /// As chance has it, and no longer.
    UpTo(Duration),
}

impl Pace {
    fn span(self, chance: u64) -> Duration {
        match self {
            Pace::Exactly(span) => span,
            Pace::UpTo(most) => most.mul_f64((chance % 1000) as f64 / 1e3),
        }
    }

    /// Whether it answers in the turn in which it is asked.
    fn is_instant(self) -> bool {
        let (Pace::Exactly(most) | Pace::UpTo(most)) = self;
        most.is_zero()
    }
}

/// How a host works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) pace: Pace,
    /// Whether a change is the whole state.
    pub(crate) whole_states: bool,
    /// Whether it executes requests in whatever order it likes.
    pub(crate) any_order: bool,
}

/// Executes and applies, in the order in which it is told.
pub(crate) struct Host {
    pub(crate) store: Store,
    /// What was changed and is not chosen, oldest first.
    undo: VecDeque<Undo>,
    pub(crate) queue: VecDeque<Event>,
    manner: Manner,
    /// Requests that wait for their turn, if it executes them in any order.
    tasks: Vec<Event>,
    /// Whether it executes nothing before a checkpoint.
    rests: bool,
    /// The call that was executed last.
    pub(super) latest: u64,
    /// When the request at which it is will be executed.
    busy_until: Option<Time>,
    /// The rest of a checkpoint that is being given.
    checkpoint: Bytes,
    coming: BytesMut,
    mutation: Option<Mutation>,
    /// Changes that were reverted with their reign, for a replica that forwards them: a mutation.
    pub(super) lost: Vec<(u64, Bytes)>,
    /// Changes of other replicas' reigns, by call: a mutation.
    pub(super) forwarded: BTreeMap<u64, Bytes>,
    /// Changes of aborted transactions that are reverted behind the next checkpoint: a mutation.
    held: Vec<Undo>,
}

impl Host {
    pub(crate) fn new(manner: Manner, mutation: Option<Mutation>) -> Self {
        Host {
            store: Store::default(),
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
            lost: Vec::new(),
            forwarded: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    /// Whether its state is what its replica has learned.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.tasks.is_empty() && self.undo.is_empty() && self.held.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.busy_until.filter(|_| !self.rests)
    }

    /// Does what can be done now, up to the next result.
    pub(super) fn step(&mut self, cx: &mut Context<'_>) -> Option<Command> {
        loop {
            if self.manner.any_order {
                while let Some(task) = self.queue.pop_front_if(|event| matches!(event, Event::Execute { .. }))
                {
                    self.tasks.push(task);
                }
                if self.queue.is_empty() && !self.tasks.is_empty() && !self.rests {
                    if self.is_busy(cx) {
                        return None;
                    }
                    let any = (cx.random)() as usize % self.tasks.len();
                    let task = self.tasks.swap_remove(any);
                    return self.perform(cx, task);
                }
            }
            if let Some(Event::Execute { .. }) = self.queue.front()
                && self.is_busy(cx)
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

    /// Whether the request that is next takes longer.
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
            self.let_go();
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
                    self.let_go();
                }
            }
            Event::Revert if self.mutation == Some(Mutation::LeftUnreverted) => self.undo.clear(),
            Event::Revert => {
                if self.mutation == Some(Mutation::ForwardedDelta) && !self.manner.whole_states {
                    let lost =
                        self.undo.iter().filter_map(|undo| Some((undo.call, undo.change(&self.store)?)));
                    self.lost.extend(lost);
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
                    let mut change: Change = opened(&change);
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
                self.checkpoint = sealed(&self.store);
                self.let_go();
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
            // News, for others.
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

    /// Takes back what aborted transactions have changed.
    fn let_go(&mut self) {
        for undo in self.held.drain(..) {
            self.store.revert(&undo);
        }
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
                let change = Change { key, written: (call, (cx.random)()), before };
                let change = self.forwarded.remove(&call).map_or(change, |change| opened(&change));
                self.store.apply(change);
                self.undo.push_back(Undo { work, transaction, key, call, before });
                let reply = sealed(&change.written);
                let change = if self.manner.whole_states { sealed(&self.store) } else { sealed(&change) };
                Executed::Changed { reply, change }
            }
            Request::Get { key, .. } => Executed::Unchanged { reply: self.store.look(key) },
            Request::Refuse { key, .. } => Executed::Rejected { reason: self.store.look(key) },
        }
    }
}

impl Undo {
    /// The change, if it was of no transaction.
    fn change(&self, store: &Store) -> Option<Bytes> {
        let effect = store.effects.get(&self.call).and_then(|them| them.last())?;
        let change = Change { key: self.key, written: (self.call, effect.chance), before: effect.before };
        self.transaction.is_none().then(|| sealed(&change))
    }
}

/// The bytes of a value.
pub(crate) fn sealed(value: &impl Serialize) -> Bytes {
    let mut bytes = BytesMut::new();
    encode_body(&mut bytes, value);
    bytes.freeze()
}

/// The value of bytes that [`sealed`] made.
pub(crate) fn opened<T: DeserializeOwned>(bytes: &Bytes) -> T {
    decode_body(&mut bytes.clone()).expect("bytes arrive as they were made")
}
