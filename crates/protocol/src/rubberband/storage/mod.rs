//! A storage process: holds ranges, executes what the order delivers, answers, and moves ranges to standbys.
//!
//! Everything that concerns the engine is one queue of steps in the total order (`steps`). Whenever the engine is idle,
//! the steps that have gathered become one batch of [`Task`]s (`batch`, [`StorageEvent::Execute`]); the batch ends behind
//! a write whose verdict others must confirm (S15), before an import is done, and at a size limit.
//!
//! | file | subject |
//! |---|---|
//! | `task` | what the engine is asked, and what it answers |
//! | `steps` | what the order delivers becomes steps |
//! | `batch` | steps become batches, and results become answers |
//! | `write`, `verdicts`, `replies` | a write's way from evaluation to its answer; the verdicts on it; what is remembered of it |
//! | `remains` | what a process that is out leaves to its next life |
//! | `outbox` | answers to reads, no faster than they are consumed |
//! | `migration`, `import` | moving ranges: rows for others, and others' rows |
//! | `checkpoint`, `shelf`, `recovery` | with a disk: what is written down, what of it is kept, and coming back from it |
//! | `direct` | what other members say beside the order |

mod batch;
mod checkpoint;
mod direct;
mod import;
mod migration;
mod outbox;
mod pause;
mod recovery;
mod remains;
mod replies;
mod shelf;
mod steps;
mod task;
#[cfg(test)]
mod tests;
mod verdicts;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use self::{
    batch::{Crowded, Purpose},
    checkpoint::Checkpoint,
    direct::retry,
    import::Import,
    migration::{COMPLETION, Fetch},
    outbox::Outboxes,
    pause::{AWAY, Pause},
    replies::{Pinned, REMEMBERED_BYTES_MAX, Replies},
    shelf::Shelf,
    steps::Step,
    verdicts::Verdicts,
    write::{Evaluated, Write},
};
pub use self::{
    pause::PauseRefusal,
    remains::Remains,
    task::{Task, TaskKind, TaskResult},
};
use super::{
    Config, Direct, Keeps, Message, Record, Role, StorageState,
    membership::{Delivered, INTERNAL, LeaveRefusal, Membership},
};
use crate::{
    admission::Terms,
    ecast::{Member, MemberCommand, MemberEvent, MemberSettings, Outcome, Position},
    id::Peer,
    seam::{CommandId, Context, Destination, Input, Policy, Protocol, Sink},
    time::{Duration, Time},
};

/// How a storage process behaves.
#[derive(Clone, Debug)]
pub struct StorageSettings {
    /// How often signs of life are sent.
    pub alive_every: Duration,
    /// Tasks in one batch.
    pub batch_max: usize,
    /// How long to wait for a verdict, or for a chunk of rows, before asking (again).
    pub ask_after: Duration,
    /// Bytes of one answer that may be under way to a client that has not consumed them.
    pub reply_window: u64,
    /// Bytes that are held of all answers that their clients have yet to take. What would exceed them is refused.
    pub held_bytes_max: u64,
    /// How long an answer may be held of which its client takes nothing.
    pub held_max: Duration,
    /// What it takes the domain to be founded with; none: whatever it is.
    pub terms: Option<Terms>,
    /// Bytes that each range keeps of what its writes answered. The same at every replica.
    pub remembered_bytes_max: usize,
    /// Bytes of one message of what ranges remember, unless one answer alone has more.
    pub section_bytes_max: usize,
    /// With a disk: how many bytes of what was delivered are written down before a checkpoint takes their place; more where
    /// checkpoints are longer, and a quarter where the last one is long ago. Without one nothing is written down, and a process that ends is gone for good.
    pub checkpoint_bytes: Option<u64>,
}

impl Default for StorageSettings {
    fn default() -> Self {
        StorageSettings {
            alive_every: Duration::from_millis(50),
            batch_max: 16_384,
            ask_after: Duration::from_millis(200),
            reply_window: 512 << 10,
            held_bytes_max: 512 << 20,
            held_max: Duration::from_secs(300),
            terms: None,
            remembered_bytes_max: REMEMBERED_BYTES_MAX,
            section_bytes_max: 1 << 20,
            checkpoint_bytes: None,
        }
    }
}

/// What a storage process may be asked.
#[derive(Clone, Debug)]
pub enum StorageCommand {
    /// The batch is done: a result per task.
    Executed(Vec<TaskResult>),
    /// Processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leave the cluster. Ends in [`StorageEvent::Left`].
    Leave {
        /// The asker's name for it.
        id: CommandId,
    },
    /// Have the process stop for a moment ([away](crate::rubberband::away)). Ends in [`StorageEvent::Paused`].
    Pause {
        /// The asker's name for it.
        id: CommandId,
    },
}

/// What a storage process tells.
#[derive(Debug)]
pub enum StorageEvent {
    /// Have the engine do this. No further batch comes before [`StorageCommand::Executed`].
    Execute(Vec<Task>),
    /// Nobody waits any more for what comes of this task of the batch, which is a read. Some result is wanted all the
    /// same.
    Withdraw {
        /// Its place in the batch.
        task: usize,
    },
    /// The end of the command to leave: this process is out, or the reason why not.
    Left {
        /// The asker's name for it.
        id: CommandId,
        /// The outcome.
        result: Result<(), LeaveRefusal>,
    },
    /// The end of the command to stop for a moment: nobody waits for this process, and it may stop; or the reason why somebody
    /// will.
    Paused {
        /// The asker's name for it.
        id: CommandId,
        /// The outcome.
        result: Result<(), PauseRefusal>,
    },
    /// This process is out and must stop; it may come back as a new one.
    Wedged,
    /// This process is out and must stop, and it is to come back with the same engine by [`Storage::again`]: nobody else
    /// may have its rows.
    Out(Box<Remains>),
}

/// Where a storage process stands.
#[derive(Clone, Debug)]
pub struct StorageStatus {
    /// The last position delivered.
    pub delivered: Position,
    /// The last position executed.
    pub executed: Position,
    /// Steps that wait.
    pub queued: usize,
    /// Its state in the configuration.
    pub state: Option<StorageState>,
    /// Rows are being taken in.
    pub importing: bool,
    /// Pinned positions.
    pub pins: usize,
    /// Long answers under way.
    pub answering: usize,
    /// Bytes of answers that their clients have yet to take.
    pub held_bytes: u64,
    /// Answers that were refused because too much was held.
    pub no_room: u64,
    /// Answers that were dropped because they were not taken.
    pub untaken: u64,
    /// Writes that were answered from memory.
    pub repeated: u64,
    /// Writes that are remembered, by each range that they concern.
    pub remembered: u64,
    /// Bytes of their answers.
    pub remembered_bytes: u64,
    /// Messages from peers that were refused.
    pub refused: u64,
}

/// A storage process.
pub struct Storage {
    settings: StorageSettings,
    membership: Membership,
    queue: VecDeque<Step>,
    /// What the tasks at the engine are for; empty when it is idle.
    running: Vec<Purpose>,
    /// When they were handed over.
    begun: Time,
    /// The evaluated write that waits for verdicts, and how it fared here.
    holding: Option<(Box<Write>, Evaluated)>,
    /// Decided, and to be settled first thing in the next batch.
    settle: Option<(Position, bool)>,
    verdicts: Verdicts,
    /// Where a member departed last.
    departed: Position,
    ask_at: Option<Time>,
    replies: Replies,
    /// What the ranges remembered at each pinned position.
    pins: BTreeMap<Position, Pinned>,
    /// Pins that the queue still has to reach.
    pins_due: BTreeSet<Position>,
    fetches: VecDeque<Fetch>,
    import: Option<Import>,
    /// The change whose rows are all here.
    received: Option<Position>,
    /// The same, to be told once a checkpoint has them.
    complete_due: Option<Position>,
    checkpoint: Option<Checkpoint>,
    /// The version that the engine kept for one, and that is to be given back.
    version_spent: Option<Position>,
    /// The bytes of the last one.
    checkpoint_bytes: u64,
    /// When the last one began, or the process.
    checkpointed_at: Option<Time>,
    /// What checkpoints have written of the engine.
    shelf: Shelf,
    /// What was delivered before it came back, to be delivered once more first of all.
    replay: Option<Vec<MemberEvent>>,
    executed: Position,
    outboxes: Outboxes,
    /// Reads that were crowded out of their batches, and whether the last batch was of one.
    crowded: VecDeque<Crowded>,
    crowded_last: bool,
    /// The rows of a former life that it keeps.
    keeps: Option<Keeps>,
    /// The configuration that this life's predecessor had last, until it is admitted.
    before: Option<Config>,
    /// It was asked to leave.
    leaving: bool,
    pause: Pause,
    /// It is out, and hands over what it leaves as soon as its engine is idle.
    parting: bool,
    repeated: u64,
    refused: u64,
}

impl Storage {
    /// A storage process that joins as standby.
    pub fn new(me: Peer, name: String, settings: StorageSettings) -> Self {
        Storage::joining(me, name, settings, None)
    }

    fn joining(me: Peer, name: String, settings: StorageSettings, keeps: Option<Keeps>) -> Self {
        let member = MemberSettings { executes: true, ..MemberSettings::default() };
        let (alive_every, terms) = (settings.alive_every, settings.terms);
        let mut membership = Membership::new(me, Role::Storage, name, member, alive_every, terms, keeps);
        if settings.checkpoint_bytes.is_some() {
            membership = membership.persist();
        }
        Storage::with(membership, settings, keeps)
    }

    fn with(membership: Membership, settings: StorageSettings, keeps: Option<Keeps>) -> Self {
        Storage {
            membership,
            outboxes: Outboxes::new(&settings),
            replies: Replies::new(settings.remembered_bytes_max),
            settings,
            queue: VecDeque::new(),
            running: Vec::new(),
            begun: Time(0),
            holding: None,
            settle: None,
            verdicts: Verdicts::default(),
            departed: Position(0),
            ask_at: None,
            pins: BTreeMap::new(),
            pins_due: BTreeSet::new(),
            fetches: VecDeque::new(),
            import: None,
            received: None,
            complete_due: None,
            checkpoint: None,
            version_spent: None,
            checkpoint_bytes: 0,
            checkpointed_at: None,
            shelf: Shelf::new(1),
            replay: None,
            executed: Position(0),
            crowded: VecDeque::new(),
            crowded_last: false,
            keeps,
            before: None,
            leaving: false,
            pause: Pause::default(),
            parting: false,
            repeated: 0,
            refused: 0,
        }
    }

    /// The configuration at the last delivered position, once admitted.
    pub fn config(&self) -> Option<&Config> {
        self.membership.config()
    }

    /// The order's end in this process.
    pub fn member(&self) -> &Member {
        &self.membership.member
    }

    /// Where it stands.
    pub fn status(&self) -> StorageStatus {
        let me = self.membership.me;
        let (remembered, remembered_bytes) = self.replies.size();
        let (no_room, untaken) = self.outboxes.dropped();
        StorageStatus {
            delivered: self.membership.member.delivered(),
            executed: self.executed,
            queued: self.queue.len() + self.crowded.len(),
            state: self.config().and_then(|config| config.storage.get(&me).copied()),
            importing: self.import.is_some(),
            pins: self.pins.len(),
            answering: self.outboxes.open(),
            held_bytes: self.outboxes.held(),
            no_room,
            untaken,
            repeated: self.repeated,
            remembered,
            remembered_bytes,
            refused: self.refused + self.membership.refused(),
        }
    }

    fn member_input(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut dyn Sink<Self>) {
        self.membership.handle(cx, input, out);
        while let Some(item) = self.membership.next(out) {
            self.on_delivered(cx, item, out);
        }
    }

    fn on_delivered(&mut self, cx: &mut Context<'_>, item: Delivered, out: &mut dyn Sink<Self>) {
        match item {
            Delivered::Control { at, sender, control, before } => {
                self.note_pause(at, sender, &control);
                self.on_control(cx, at, control, before, out);
            }
            Delivered::Data { at, id, header, operation } => {
                self.on_data(cx.now, at, id.sender, header, operation);
            }
            Delivered::Injected { at, sender, header, fits: false, .. } => {
                retry(sender, header.token, at, out);
            }
            Delivered::Injected { at, sender, header, operation, fits: true } => {
                self.on_injected(cx.now, at, sender, header, operation, out);
            }
            Delivered::Wedged => self.part(out),
            Delivered::Adrift(_) => {}
            Delivered::Left { id, result } => self.left(id, result, out),
            Delivered::NotSent { token: COMPLETION }
            | Delivered::Outcome { token: COMPLETION, outcome: Outcome::MaybeApplied } => {
                self.complete_again(cx, out);
            }
            Delivered::NotSent { token: AWAY } | Delivered::Outcome { token: AWAY, .. } => {
                self.away_ended(out)
            }
            Delivered::NotSent { token }
            | Delivered::NotInjected { token }
            | Delivered::Outcome { token, .. } => {
                debug_assert!(token & INTERNAL != 0, "a storage process submits only for itself");
            }
        }
    }

    fn left(&mut self, id: CommandId, result: Result<(), LeaveRefusal>, out: &mut dyn Sink<Self>) {
        // A process that stays, and is cut off later, keeps its rows like any other.
        self.leaving = result.is_ok();
        out.emit(StorageEvent::Left { id, result });
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if self.ask_at.is_some_and(|at| at <= cx.now)
            && let Some((write, _)) = &self.holding
        {
            self.ask_at = Some(cx.now + self.settings.ask_after);
            let ask = Direct::AskVerdict { at: write.at, name: write.header.name };
            let asked = self.may_know(write);
            if !asked.is_empty() {
                out.send(Destination::Many(asked), Message::Direct(ask), None);
            }
            self.give_up(out);
        }
        self.outboxes.look_after(cx.now, out);
        if self.import.as_ref().and_then(Import::deadline).is_some_and(|at| at <= cx.now) {
            // No news from the source: ask it again; it is replaced when it is suspected.
            self.import.as_mut().expect("just seen").again();
            self.fetch(cx.now, out);
        }
    }
}

impl Protocol for Storage {
    type Message = Message;
    type Record = Record;
    type Command = StorageCommand;
    type Event = StorageEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        self.replay(cx, out);
        match input {
            Input::Receive { from, message: Message::Order(message) } => {
                self.member_input(cx, Input::Receive { from, message }, out);
            }
            Input::Receive { from, message: Message::Direct(message) } => {
                self.on_direct(cx, from, message, out)
            }
            Input::Command(StorageCommand::Executed(results)) => self.on_executed(cx, results, out),
            Input::Command(StorageCommand::Seeds(seeds)) => {
                self.member_input(cx, Input::Command(MemberCommand::Seeds(seeds)), out);
            }
            Input::Command(StorageCommand::Leave { id }) => {
                self.leaving = true;
                if let Some(result) = self.membership.leave(cx, id, out) {
                    out.emit(StorageEvent::Left { id, result });
                }
            }
            Input::Command(StorageCommand::Pause { id }) => self.pause(cx, id, out),
            Input::Deadline => {
                self.member_input(cx, Input::Deadline, out);
                self.on_deadline(cx, out);
                self.membership.tick(cx.now, self.executed, out);
            }
            Input::Persisted(ticket) => {
                self.checkpoint_persisted(cx, ticket, out);
                self.member_input(cx, Input::Persisted(ticket), out);
            }
            Input::Linked { peer, session } => {
                self.outboxes.restart(peer, out);
                self.member_input(cx, Input::Linked { peer, session }, out);
            }
            // Nobody casts to storage processes.
            Input::Cast { .. } | Input::Progress { .. } => {}
            Input::Unlinked { peer } => {
                // What is left of its answers would arrive with a gap, and it asks anew.
                self.withdraw(|(client, _)| client == peer, out);
                self.member_input(cx, Input::Unlinked { peer }, out);
            }
            Input::Drained => {
                self.begin_checkpoint(cx.now, out);
                self.execute(cx, out);
                self.tend_pause(cx, out);
                self.member_input(cx, Input::Drained, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        if self.replay.is_some() {
            return Some(Time::ZERO);
        }
        let import = self.import.as_ref().and_then(Import::deadline);
        [self.membership.deadline(), self.ask_at, import, self.outboxes.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.membership.member.policy()
    }
}
