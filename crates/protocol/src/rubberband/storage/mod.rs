//! A storage process: holds ranges, executes delivered messages, answers, and moves ranges to standbys.
//!
//! All work for the engine is one queue of steps, in the total order (`steps`). Whenever the engine is idle,
//! the waiting steps form one batch of [`Task`]s (`batch`, [`StorageEvent::Execute`]). A batch ends after a
//! write that needs the verdicts of other processes (S15), before an unfinished import, and at a size limit.
//!
//! | file | subject |
//! |---|---|
//! | `task` | the engine's tasks and results |
//! | `work`, `engine_queue` | steps that wait for the engine, and the purposes of its current tasks |
//! | `steps` | delivered messages become steps |
//! | `batch` | steps become batches, and results become answers |
//! | `write`, `decisions` | evaluating a write, holding it, and answering it |
//! | `verdicts`, `replies` | verdicts on held writes, and the memory of replies |
//! | `handover`, `lives` | the rows and memory that a process which is out hands to its next life |
//! | `absence`, `pause` | stopping for a moment, and coming back |
//! | `outbox`, `reply` | answers to reads, sent no faster than clients consume them, and other replies |
//! | `migration`, `exports`, `import` | moving ranges: sending rows, and receiving rows |
//! | `checkpoint`, `checkpoints`, `stage`, `fragment_index` | with a disk: checkpoints |
//! | `recovery` | with a disk: coming back |
//! | `direct` | messages that bypass the order |

mod absence;
mod batch;
mod checkpoint;
mod checkpoints;
mod decisions;
mod direct;
mod engine_queue;
mod exports;
mod fragment_index;
mod handover;
mod import;
mod lives;
mod migration;
mod outbox;
mod pause;
mod recovery;
mod replies;
mod reply;
mod settings;
mod stage;
mod steps;
mod task;
#[cfg(test)]
mod tests;
mod token;
mod verdicts;
mod work;
mod write;

use std::sync::Arc;

use self::{
    absence::Pause,
    checkpoints::CheckpointProgress,
    decisions::WriteDecisions,
    engine_queue::EngineQueue,
    exports::Exports,
    fragment_index::FragmentIndex,
    import::Import,
    outbox::Outboxes,
    replies::Replies,
    reply::retry,
    token::{AWAY, COMPLETION},
    verdicts::Verdicts,
};
pub use self::{
    absence::PauseRefusal,
    handover::Handover,
    settings::StorageSettings,
    task::{Task, TaskKind, TaskResult},
};
use super::{
    Config, Direct, KeptRows, Message, Record, Role, StorageState,
    membership::{Delivered, INTERNAL, LeaveRefusal, Membership},
};
use crate::{
    ecast::{Member, MemberCommand, MemberEvent, MemberSettings, Outcome, Position},
    id::Peer,
    seam::{CommandId, Context, Destination, Input, Policy, Protocol, Sink},
    time::Time,
};

/// Commands of a storage process.
#[derive(Clone, Debug)]
pub enum StorageCommand {
    /// The engine has executed the batch: one result per task.
    Executed(Vec<TaskResult>),
    /// Names processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leaves the cluster. Ends in [`StorageEvent::Left`].
    Leave {
        /// The caller's id of the command.
        id: CommandId,
    },
    /// Prepares the process to stop before a restart ([away](crate::rubberband::away)). Ends in
    /// [`StorageEvent::Paused`].
    Pause {
        /// The caller's id of the command.
        id: CommandId,
    },
}

/// Events of a storage process.
#[derive(Debug)]
pub enum StorageEvent {
    /// A batch for the engine. No further batch comes before [`StorageCommand::Executed`].
    Execute(Vec<Task>),
    /// Nobody waits any longer for the result of this task of the batch, which is a read. The engine may
    /// return any result, but must return one.
    Withdraw {
        /// The task's index in the batch.
        task: usize,
    },
    /// The end of the command to leave.
    Left {
        /// The caller's id of the command.
        id: CommandId,
        /// The result: this process is no longer a member, or the reason why it still is.
        result: Result<(), LeaveRefusal>,
    },
    /// The end of the command to pause.
    Paused {
        /// The caller's id of the command.
        id: CommandId,
        /// The result: this process may stop, because nobody waits for it; or the reason why it may not.
        result: Result<(), PauseRefusal>,
    },
    /// This process is no longer a member and must stop; it may come back under a new id.
    Wedged,
    /// This process is no longer a member and must stop. The host brings it back with the same engine by
    /// [`Storage::again`], because nobody else may have its rows.
    Out(Box<Handover>),
}

/// The state of a storage process, for operators.
#[derive(Clone, Debug)]
pub struct StorageStatus {
    /// Last position delivered.
    pub delivered: Position,
    /// Last position executed.
    pub executed: Position,
    /// Number of waiting steps.
    pub queued: usize,
    /// The process's state in the configuration.
    pub state: Option<StorageState>,
    /// Whether the process is importing rows.
    pub importing: bool,
    /// Number of pinned positions.
    pub pins: usize,
    /// Number of long answers in progress.
    pub answering: usize,
    /// Bytes of answers that their clients have not taken.
    pub held_bytes: u64,
    /// Number of answers that were refused because the memory for answers was full.
    pub no_room: u64,
    /// Number of answers that were dropped because their clients did not take them.
    pub untaken: u64,
    /// Number of writes that were answered from memory.
    pub repeated: u64,
    /// Number of remembered writes; a write counts once for each of its ranges.
    pub remembered: u64,
    /// Bytes of remembered answers.
    pub remembered_bytes: u64,
    /// Number of decisions kept beyond the usual number, because a member may still ask for them.
    pub owed: u64,
    /// Bytes of all kept decisions.
    pub settled_bytes: u64,
    /// Number of messages from peers that were refused.
    pub refused: u64,
}

/// A storage process.
pub struct Storage {
    settings: StorageSettings,
    membership: Membership,
    queue: EngineQueue,
    decisions: WriteDecisions,
    verdicts: Verdicts,
    replies: Replies,
    exports: Exports,
    import: Option<Import>,
    /// The placement change whose rows have all been imported here.
    received: Option<Position>,
    /// The placement change to report as complete once a checkpoint contains its rows.
    completion_due: Option<Position>,
    checkpoints: CheckpointProgress,
    /// Deliveries from before the crash, to be delivered again before any input.
    replay: Option<Vec<MemberEvent>>,
    executed: Position,
    outboxes: Outboxes,
    /// The kept rows of a former life.
    keeps: Option<KeptRows>,
    /// The last configuration of the former life, until this life is admitted.
    before: Option<Config>,
    /// Whether a command to leave is in progress, or has succeeded.
    leaving: bool,
    pause: Pause,
    /// Whether the process is no longer a member, and will hand its rows to its next life as soon as the
    /// engine is idle.
    is_leaving_rows: bool,
    repeated: u64,
    refused: u64,
}

impl Storage {
    /// Creates a storage process that joins the domain as a standby.
    pub fn new(me: Peer, name: String, settings: StorageSettings) -> Self {
        Storage::joining(me, name, settings, None)
    }

    fn joining(me: Peer, name: String, settings: StorageSettings, keeps: Option<KeptRows>) -> Self {
        let member = MemberSettings { executes: true, ..MemberSettings::default() };
        let (alive_every, terms) = (settings.alive_every, settings.terms);
        let mut membership = Membership::new(me, Role::Storage, name, member, alive_every, terms, keeps);
        if settings.checkpoint_bytes.is_some() {
            membership = membership.persist();
        }
        Storage::with(membership, settings, keeps)
    }

    fn with(membership: Membership, settings: StorageSettings, keeps: Option<KeptRows>) -> Self {
        Storage {
            membership,
            outboxes: Outboxes::new(&settings),
            replies: settings.replies(),
            verdicts: settings.verdicts(),
            settings,
            queue: EngineQueue::default(),
            decisions: WriteDecisions::default(),
            exports: Exports::default(),
            import: None,
            received: None,
            completion_due: None,
            checkpoints: CheckpointProgress::new(FragmentIndex::new(1)),
            replay: None,
            executed: Position(0),
            keeps,
            before: None,
            leaving: false,
            pause: Pause::default(),
            is_leaving_rows: false,
            repeated: 0,
            refused: 0,
        }
    }

    /// Returns the configuration at the last delivered position, `None` before admission.
    pub fn config(&self) -> Option<&Config> {
        self.membership.config()
    }

    /// Returns the E-Cast member through which this process takes part in the order.
    pub fn member(&self) -> &Member {
        &self.membership.member
    }

    /// Returns the state for operators.
    pub fn status(&self) -> StorageStatus {
        let me = self.membership.me;
        let (remembered, remembered_bytes) = self.replies.size();
        let (no_room, untaken) = self.outboxes.dropped();
        let (owed, settled_bytes) = self.verdicts.size();
        StorageStatus {
            delivered: self.membership.member.delivered(),
            executed: self.executed,
            queued: self.queue.len(),
            state: self.config().and_then(|config| config.storage.get(&me).copied()),
            importing: self.import.is_some(),
            pins: self.exports.positions().count(),
            answering: self.outboxes.open(),
            held_bytes: self.outboxes.held(),
            no_room,
            untaken,
            repeated: self.repeated,
            remembered,
            remembered_bytes,
            owed,
            settled_bytes,
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
            Delivered::Adrift(_) | Delivered::Rerouted => {}
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
            | Delivered::Latest { token }
            | Delivered::Outcome { token, .. } => {
                debug_assert!(token & INTERNAL != 0, "a storage process submits only for itself");
            }
        }
    }

    fn left(&mut self, id: CommandId, result: Result<(), LeaveRefusal>, out: &mut dyn Sink<Self>) {
        // A process whose command to leave failed stays. If it is cut off later, it keeps its rows like any
        // other process.
        self.leaving = result.is_ok();
        out.emit(StorageEvent::Left { id, result });
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if let Some(write) = self.decisions.due(cx.now, cx.now + self.settings.ask_after) {
            let ask = Direct::AskVerdict { at: write.at, name: write.header.name };
            let asked = write.may_know(&self.membership);
            if !asked.is_empty() {
                out.send(Destination::Many(asked), Message::Direct(ask), None);
            }
            self.give_up(out);
        }
        self.outboxes.look_after(cx.now, out);
        if self.import.as_ref().and_then(Import::deadline).is_some_and(|at| at <= cx.now) {
            // The source has been silent, so this process asks it again. Supers replace a source that they
            // suspect.
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
                self.decisions.persisted(ticket);
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
                // The rest of the read's answer would arrive with a gap, because pieces on the old link were
                // lost. The client will ask again.
                self.withdraw(|(client, _)| client == peer, out);
                self.member_input(cx, Input::Unlinked { peer }, out);
            }
            Input::Drained => {
                self.begin_checkpoint(cx.now, out);
                self.execute(cx, out);
                self.advance_pause(cx, out);
                self.member_input(cx, Input::Drained, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        if self.replay.is_some() {
            return Some(Time::ZERO);
        }
        let import = self.import.as_ref().and_then(Import::deadline);
        [self.membership.deadline(), self.decisions.ask_at(), import, self.outboxes.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.membership.member.policy()
    }
}
