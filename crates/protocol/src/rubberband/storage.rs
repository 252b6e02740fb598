//! A storage process: holds ranges, executes what the order delivers, answers, and moves ranges to standbys.
//!
//! Everything that concerns the engine is one queue of [`Step`]s in the total order. Whenever the engine is idle, the
//! steps that have gathered become one batch of [`Task`]s ([`StorageEvent::Execute`]); the batch ends behind a write
//! whose verdict others must confirm (S15), before an import is done, and at a size limit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Config, Control, DataHeader, DataKind, Direct, Message, Range, Reply, ReplyContent, Role, Spent,
    StorageState,
    membership::{Delivered, INTERNAL, Membership},
    outbox::{Asked, Outboxes, Wanted},
    replies::{Remembered, Replies},
    transfer::{Import, ImportStep},
    verdicts::{Decision, Verdicts, covers},
};
use crate::{
    ecast::{Class, Member, MemberCommand, MemberSettings, Position},
    id::{Peer, ProcessId},
    paxos,
    seam::{Context, Destination, Input, Protocol, Sink},
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
}

impl Default for StorageSettings {
    fn default() -> Self {
        StorageSettings {
            alive_every: Duration::from_millis(50),
            batch_max: 16_384,
            ask_after: Duration::from_millis(200),
            reply_window: 512 << 10,
        }
    }
}

/// Work for the engine, to be done in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The position it stands for.
    pub at: Position,
    /// What.
    pub kind: TaskKind,
}

/// What the engine is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskKind {
    /// A write to these ranges; one result per range. A held one is evaluated and neither published nor voided until
    /// [`TaskKind::Settle`]; it is the last of its batch.
    Write {
        /// The ranges held here.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
        /// Whether to hold it.
        held: bool,
    },
    /// Publishes or voids the held write.
    Settle {
        /// Which of the two.
        publish: bool,
    },
    /// A read of these ranges.
    Read {
        /// What to read.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
    },
    /// The next rows of a read that is [`TaskResult::Long`], of the version kept at its position.
    Page {
        /// Of which ranges.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
        /// Where to go on; `None` at first.
        cursor: Option<Bytes>,
        /// How many rows.
        rows: usize,
    },
    /// A table begins to exist.
    CreateTable {
        /// Its number.
        table: u32,
        /// Its definition.
        definition: Bytes,
    },
    /// A table ceases to exist.
    DropTable {
        /// Its number.
        table: u32,
    },
    /// A read that is [`TaskResult::Long`] needs its version no more.
    Finish,
    /// Keeps the present version readable as of this position, for a move of ranges.
    Pin,
    /// Gives the version back.
    Release,
    /// Reads the next rows of the version pinned at this position.
    Export {
        /// Of which ranges.
        ranges: Vec<Range>,
        /// Where to go on.
        cursor: Option<Bytes>,
    },
    /// Takes rows in.
    Import {
        /// What an export read.
        rows: Bytes,
    },
    /// Drops all rows of these ranges.
    Forget {
        /// Which.
        ranges: Vec<Range>,
    },
}

/// What came of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskResult {
    /// Done, nothing to tell.
    Done,
    /// A write's answer, one per range of the task.
    Written(Vec<Bytes>),
    /// A write failed and changed nothing.
    Failed(Bytes),
    /// A read's answer in pieces; at least one.
    Read(Vec<Bytes>),
    /// The answer is too long to be held whole: the version it is of is kept, until [`TaskKind::Finish`], and its rows
    /// are to be asked for by [`TaskKind::Page`].
    Long,
    /// Some rows of a long answer.
    Page {
        /// The rows.
        rows: Bytes,
        /// Where to go on; `None` at the end.
        cursor: Option<Bytes>,
    },
    /// An export.
    Exported {
        /// The rows.
        rows: Bytes,
        /// Where to go on; `None` at the end.
        cursor: Option<Bytes>,
    },
}

/// What a storage process may be asked.
#[derive(Clone, Debug)]
pub enum StorageCommand {
    /// The batch is done: a result per task.
    Executed(Vec<TaskResult>),
    /// Processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leave the cluster.
    Leave,
}

/// What a storage process tells.
#[derive(Clone, Debug)]
pub enum StorageEvent {
    /// Have the engine do this. No further batch comes before [`StorageCommand::Executed`].
    Execute(Vec<Task>),
    /// Nobody waits any more for what comes of this task of the batch, which is a read. Some result is wanted all the
    /// same.
    Withdraw {
        /// Its place in the batch.
        task: usize,
    },
    /// This process is out and must stop; it may come back as a new one.
    Wedged,
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
    /// Writes that were answered from memory.
    pub repeated: u64,
    /// Messages from peers that were refused.
    pub refused: u64,
}

/// Something that concerns the engine, at its position.
enum Step {
    Write(Write),
    Read {
        at: Position,
        client: ProcessId,
        token: u64,
        ranges: Vec<Range>,
        operation: Bytes,
        /// When it came.
        since: Time,
    },
    Create {
        at: Position,
        table: u32,
        definition: Bytes,
    },
    Drop {
        at: Position,
        table: u32,
    },
    Pin {
        at: Position,
    },
    Release {
        at: Position,
    },
    Forget {
        session: u128,
        below: u64,
    },
    /// The ranges held so far are another's now.
    Clear {
        at: Position,
        ranges: Vec<Range>,
    },
    /// The import of the change at this position must be done before anything behind it.
    Await {
        at: Position,
    },
}

struct Write {
    at: Position,
    client: ProcessId,
    header: DataHeader,
    held: Vec<Range>,
    answers: Vec<Range>,
    /// The other replicas concerned and what they hold of it, when verdicts are exchanged.
    others: Vec<(ProcessId, Vec<Range>)>,
    operation: Bytes,
}

/// What a task in the running batch is for.
enum Purpose {
    Write(Write),
    Read {
        at: Position,
        client: ProcessId,
        token: u64,
        ranges: Vec<Range>,
        operation: Bytes,
        since: Time,
    },
    /// A read that nobody waits for.
    Withdrawn {
        at: Position,
    },
    Page {
        asked: Asked,
        at: Position,
    },
    Export {
        to: ProcessId,
        at: Position,
        asked: Option<Bytes>,
    },
    Import,
    Step(Position),
    Settle,
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
    holding: Option<(Write, Result<Vec<Bytes>, Bytes>)>,
    /// Decided, and to be settled first thing in the next batch.
    settle: Option<(Position, bool)>,
    verdicts: Verdicts,
    /// Where a member departed last.
    departed: Position,
    ask_at: Option<Time>,
    replies: Replies,
    /// What the ranges remembered at each pinned position.
    pins: BTreeMap<Position, Replies>,
    /// Pins that the queue still has to reach.
    pins_due: BTreeSet<Position>,
    fetches: VecDeque<Fetch>,
    import: Option<Import>,
    executed: Position,
    outboxes: Outboxes,
    repeated: u64,
    refused: u64,
}

struct Fetch {
    from: ProcessId,
    change: Position,
    ranges: Vec<Range>,
    cursor: Option<Bytes>,
}

impl Storage {
    /// A storage process that joins as standby.
    pub fn new(me: Peer, name: String, settings: StorageSettings) -> Self {
        let member = MemberSettings { executes: true, ..MemberSettings::default() };
        Storage {
            membership: Membership::new(me, Role::Storage, name, member, settings.alive_every),
            outboxes: Outboxes::new(settings.reply_window),
            settings,
            queue: VecDeque::new(),
            running: Vec::new(),
            begun: Time(0),
            holding: None,
            settle: None,
            verdicts: Verdicts::default(),
            departed: Position(0),
            ask_at: None,
            replies: Replies::default(),
            pins: BTreeMap::new(),
            pins_due: BTreeSet::new(),
            fetches: VecDeque::new(),
            import: None,
            executed: Position(0),
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
        StorageStatus {
            delivered: self.membership.member.delivered(),
            executed: self.executed,
            queued: self.queue.len(),
            state: self.config().and_then(|config| config.storage.get(&me).copied()),
            importing: self.import.is_some(),
            pins: self.pins.len(),
            answering: self.outboxes.open(),
            repeated: self.repeated,
            refused: self.refused + self.membership.refused(),
        }
    }

    fn member_input(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut impl Sink<Self>) {
        self.membership.handle(cx, input, out);
        while let Some(item) = self.membership.next(out) {
            self.on_delivered(cx, item, out);
        }
    }

    fn on_delivered(&mut self, cx: &mut Context<'_>, item: Delivered, out: &mut impl Sink<Self>) {
        match item {
            Delivered::Control { at, control, before } => self.on_control(cx, at, control, before, out),
            Delivered::Data { at, id, header, operation } => {
                self.on_data(cx.now, at, id.sender, header, operation);
            }
            Delivered::Injected { at, sender, header, fits: false, .. } => {
                retry(sender, header.token, at, out);
            }
            Delivered::Injected { at, sender, header, operation, fits: true } => {
                self.on_injected(cx.now, at, sender, header, operation, out);
            }
            Delivered::Wedged => out.emit(StorageEvent::Wedged),
            Delivered::NotSent { token }
            | Delivered::NotInjected { token }
            | Delivered::Outcome { token, .. } => {
                debug_assert!(token & INTERNAL != 0, "a storage process submits only for itself");
            }
        }
    }

    fn on_data(&mut self, now: Time, at: Position, client: ProcessId, header: DataHeader, operation: Bytes) {
        // Routers send data behind the join only.
        let Some(config) = self.membership.config() else {
            self.refused += 1;
            return;
        };
        let me = self.membership.me;
        let assigned = match header.kind {
            DataKind::Read => config.assign_read(&header.ranges, header.offset),
            DataKind::Write | DataKind::FallibleWrite => config.assign_write(&header.ranges, header.offset),
        };
        let assigned =
            assigned.unwrap_or_else(|range| panic!("delivered {at} although {range:?} has no replica"));
        let mine = assigned.iter().position(|assignment| assignment.process == me);
        let mine = mine.unwrap_or_else(|| panic!("delivered {at} although it does not concern {me}"));
        if header.kind == DataKind::Read {
            let ranges = assigned[mine].held.clone();
            let token = header.token;
            self.queue.push_back(Step::Read { at, client, token, ranges, operation, since: now });
            return;
        }
        // One range is evaluated alike by all its replicas; only several can disagree.
        let spans = header.ranges.iter().map(|range| config.count_segments(*range)).sum::<usize>() > 1;
        let exchanged = header.kind == DataKind::FallibleWrite && spans;
        let others = assigned.iter().filter(|assignment| exchanged && assignment.process != me);
        let others = others.map(|assignment| (assignment.process, assignment.held.clone())).collect();
        let super::Assignment { held, answers, .. } = assigned[mine].clone();
        self.queue.push_back(Step::Write(Write { at, client, header, held, answers, others, operation }));
    }

    fn on_injected(
        &mut self,
        now: Time,
        at: Position,
        client: ProcessId,
        header: DataHeader,
        operation: Bytes,
        out: &mut impl Sink<Self>,
    ) {
        let me = self.membership.me;
        let assigned =
            self.config().and_then(|config| config.assign_read(&header.ranges, header.offset).ok());
        let mine = assigned.and_then(|all| all.into_iter().find(|assignment| assignment.process == me));
        match mine {
            Some(mine) if header.kind == DataKind::Read => {
                let token = header.token;
                self.queue.push_back(Step::Read {
                    at,
                    client,
                    token,
                    ranges: mine.held,
                    operation,
                    since: now,
                });
            }
            _ => retry(client, header.token, at, out),
        }
    }

    fn on_control(
        &mut self,
        cx: &mut Context<'_>,
        at: Position,
        control: Control,
        before: Option<Config>,
        out: &mut impl Sink<Self>,
    ) {
        let me = self.membership.me;
        let config =
            self.membership.config().expect("a delivered control message leaves a configuration").clone();
        let Some(before) = before else {
            // Just admitted: the tables that exist.
            for (&table, entry) in &config.tables {
                self.queue.push_back(Step::Create { at, table, definition: entry.definition.clone() });
            }
            return;
        };
        match control {
            Control::CreateTable { name, definition } => {
                let (table, _) = config.table(&name).expect("what was delivered was not refused");
                self.queue.push_back(Step::Create { at, table, definition });
            }
            Control::DropTable { table } => self.queue.push_back(Step::Drop { at, table }),
            Control::Forget { session, below } => self.queue.push_back(Step::Forget { session, below }),
            Control::Replace { new, copy, .. } if new == me => {
                let import = Import::new(at, copy, config.ranges_of(me));
                if import.is_empty() {
                    self.complete(cx, at, out);
                } else {
                    self.import = Some(import);
                    self.queue.push_back(Step::Await { at });
                    self.fetch(cx.now, out);
                }
            }
            Control::Replace { new, .. } => {
                let moving = config.ranges_of(new);
                let holds = |range: &Range| config.ranges_of(me).contains(range);
                if config.storage.get(&me) == Some(&StorageState::Active) && moving.iter().any(holds) {
                    self.pins_due.insert(at);
                    self.queue.push_back(Step::Pin { at });
                }
                let held = before.ranges_of(me);
                if !held.is_empty() && config.ranges_of(me).is_empty() {
                    self.queue.push_back(Step::Clear { at, ranges: held });
                }
            }
            _ => {}
        }
        // Receivers that are complete, or gone, need their pin no more.
        for (_, change) in before.receiving() {
            if !config.receiving().any(|(_, still)| still == change)
                && (self.pins.contains_key(&change) || self.pins_due.contains(&change))
            {
                self.queue.push_back(Step::Release { at: change });
            }
        }
        let gone: Vec<ProcessId> =
            before.members.keys().copied().filter(|process| !config.members.contains_key(process)).collect();
        if !gone.is_empty() {
            self.departed = at;
        }
        for process in gone {
            self.withdraw(|(client, _)| client == process, out);
            self.fetches.retain(|fetch| fetch.from != process);
            if self.import.as_ref().is_some_and(|import| import.reads_from(process)) {
                self.import_failed(cx.now, process, out);
            }
        }
    }

    // --- Executing ---------------------------------------------------------------------------------------------------

    /// Gives the engine its next batch if it is idle and there is something that may run.
    fn execute(&mut self, cx: &mut Context<'_>, out: &mut impl Sink<Self>) {
        if !self.running.is_empty() {
            return;
        }
        let mut tasks = Vec::new();
        if let Some((at, publish)) = self.settle.take() {
            self.push(&mut tasks, at, TaskKind::Settle { publish }, Purpose::Settle);
        }
        self.push_transfers(&mut tasks);
        self.push_pages(&mut tasks);
        while self.holding.is_none()
            && tasks.len() < self.settings.batch_max
            && self.push_step(&mut tasks, out)
        {}
        if !tasks.is_empty() {
            self.begun = cx.now;
            out.emit(StorageEvent::Execute(tasks));
        } else if self.queue.is_empty() && self.holding.is_none() {
            self.advance(cx, self.membership.member.delivered(), out);
        }
    }

    fn push(&mut self, tasks: &mut Vec<Task>, at: Position, kind: TaskKind, purpose: Purpose) {
        tasks.push(Task { at, kind });
        self.running.push(purpose);
    }

    /// Exports that standbys wait for, and the rows that we wait for.
    fn push_transfers(&mut self, tasks: &mut Vec<Task>) {
        for _ in 0..self.fetches.len() {
            let fetch = self.fetches.pop_front().expect("counted");
            if self.pins.contains_key(&fetch.change) {
                let (to, at, asked) = (fetch.from, fetch.change, fetch.cursor.clone());
                let kind = TaskKind::Export { ranges: fetch.ranges, cursor: fetch.cursor };
                self.push(tasks, at, kind, Purpose::Export { to, at, asked });
            } else {
                self.fetches.push_back(fetch);
            }
        }
        // What the order delivered before the change comes first: the tables that the rows are of.
        if let Some(import) = &mut self.import
            && matches!(self.queue.front(), Some(Step::Await { at }) if *at == import.change())
        {
            let change = import.change();
            if let Some(kind) = import.task() {
                self.push(tasks, change, kind, Purpose::Import);
            }
        }
    }

    /// The next pages of long answers, and the versions that they need no more.
    fn push_pages(&mut self, tasks: &mut Vec<Task>) {
        for at in self.outboxes.released() {
            self.push(tasks, at, TaskKind::Finish, Purpose::Step(Position(0)));
        }
        for Wanted { asked, at, ranges, operation, cursor, rows } in self.outboxes.wanted() {
            let kind = TaskKind::Page { ranges, operation, cursor, rows };
            self.push(tasks, at, kind, Purpose::Page { asked, at });
        }
    }

    /// Moves the next step into the batch; `false` when it can not run yet, or must be the last.
    fn push_step(&mut self, tasks: &mut Vec<Task>, out: &mut impl Sink<Self>) -> bool {
        match self.queue.front() {
            None => return false,
            Some(Step::Await { at }) if self.import.as_ref().is_some_and(|import| import.change() == *at) => {
                return false;
            }
            // The replies that a pin or a repeated request needs are complete only when the batch before is done.
            Some(Step::Pin { .. } | Step::Forget { .. } | Step::Clear { .. })
                if self.running.iter().any(|purpose| matches!(purpose, Purpose::Write(_))) =>
            {
                return false;
            }
            Some(Step::Write(write)) if self.replies.is_pending(write.header.request) => return false,
            Some(_) => {}
        }
        match self.queue.pop_front().expect("just seen") {
            Step::Write(write) => return self.push_write(tasks, write, out),
            Step::Read { at, client, token, ranges, operation, since } => {
                let kind = TaskKind::Read { ranges: ranges.clone(), operation: operation.clone() };
                self.push(tasks, at, kind, Purpose::Read { at, client, token, ranges, operation, since });
            }
            Step::Create { at, table, definition } => {
                self.push(tasks, at, TaskKind::CreateTable { table, definition }, Purpose::Step(at));
            }
            Step::Drop { at, table } => {
                self.push(tasks, at, TaskKind::DropTable { table }, Purpose::Step(at))
            }
            Step::Pin { at } => {
                self.pins_due.remove(&at);
                self.pins.insert(at, self.replies.clone());
                self.push(tasks, at, TaskKind::Pin, Purpose::Step(at));
            }
            Step::Release { at } => {
                self.pins.remove(&at);
                self.fetches.retain(|fetch| fetch.change != at);
                self.push(tasks, at, TaskKind::Release, Purpose::Step(Position(0)));
            }
            Step::Forget { session, below } => self.replies.forget(session, below),
            Step::Clear { at, ranges } => {
                self.replies = Replies::default();
                self.push(tasks, at, TaskKind::Forget { ranges }, Purpose::Step(at));
            }
            Step::Await { .. } => {}
        }
        true
    }

    fn push_write(&mut self, tasks: &mut Vec<Task>, write: Write, out: &mut impl Sink<Self>) -> bool {
        if let Some(known) = self.replies.get(write.header.request) {
            // S6: it took effect before; say again what it did, in every range held here.
            self.repeated += 1;
            let token = write.header.token;
            send_remembered(write.client, token, known, &write.header.ranges, out);
            return true;
        }
        self.replies.begin(write.header.request);
        let held = !write.others.is_empty();
        let kind = TaskKind::Write { ranges: write.held.clone(), operation: write.operation.clone(), held };
        self.push(tasks, write.at, kind, Purpose::Write(write));
        !held
    }

    fn on_executed(&mut self, cx: &mut Context<'_>, results: Vec<TaskResult>, out: &mut impl Sink<Self>) {
        let purposes = std::mem::take(&mut self.running);
        let took = cx.now.since(self.begun);
        assert_eq!(purposes.len(), results.len(), "the engine answers every task of its batch");
        let mut done = self.executed;
        for (purpose, result) in purposes.into_iter().zip(results) {
            match (purpose, result) {
                (Purpose::Write(write), TaskResult::Written(results)) => {
                    assert_eq!(results.len(), write.held.len(), "a write answers every range");
                    done = self.wrote(cx, write, Ok(results), done, out);
                }
                (Purpose::Write(write), TaskResult::Failed(failure)) => {
                    done = self.wrote(cx, write, Err(failure), done, out);
                }
                (Purpose::Read { at, client, token, ranges, since, .. }, TaskResult::Read(pieces)) => {
                    let spent = Spent { waited: self.begun.since(since), took };
                    self.outboxes.reply((client, token), at, &ranges, spent, pieces, out);
                    done = done.max(at);
                }
                (Purpose::Read { at, client, token, ranges, operation, since }, TaskResult::Long) => {
                    let spent = Spent { waited: self.begun.since(since), took };
                    self.outboxes.begin((client, token), at, &ranges, spent, operation);
                    done = done.max(at);
                }
                (Purpose::Withdrawn { at }, TaskResult::Read(_)) => done = done.max(at),
                (Purpose::Withdrawn { at }, TaskResult::Long) => {
                    self.outboxes.unwanted(at);
                    done = done.max(at);
                }
                (Purpose::Page { asked, at }, TaskResult::Page { rows, cursor }) => {
                    self.outboxes.page(asked, at, rows, cursor, out);
                }
                (Purpose::Export { to, at, asked }, TaskResult::Exported { rows, cursor }) => {
                    let replies = self.pins.get(&at).filter(|_| cursor.is_none()).map(Replies::encode);
                    let chunk = Direct::Chunk { change: at, asked, rows, cursor, replies };
                    out.send(Destination::One(to), Message::Direct(chunk), None);
                }
                (Purpose::Import, TaskResult::Done) => self.imported(cx, out),
                (Purpose::Step(at), TaskResult::Done) => done = done.max(at),
                (Purpose::Settle, TaskResult::Done) => {}
                (_, result) => panic!("the engine answered a task of another kind: {result:?}"),
            }
        }
        self.advance(cx, done, out);
    }

    /// A write was evaluated here: answer, or wait for the others' verdicts.
    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        write: Write,
        result: Result<Vec<Bytes>, Bytes>,
        done: Position,
        out: &mut impl Sink<Self>,
    ) -> Position {
        let at = write.at;
        if write.others.is_empty() {
            self.answer(&write, result, out);
            return done.max(at);
        }
        let failure = result.as_ref().err().cloned();
        let verdict = Direct::Verdict { at, ranges: write.held.clone(), failure: failure.clone() };
        let others = write.others.iter().map(|(process, _)| *process).collect();
        out.send(Destination::Many(others), Message::Direct(verdict), None);
        self.verdicts.add(at, &write.held, failure);
        self.holding = Some((write, result));
        self.ask_at = Some(cx.now + self.settings.ask_after);
        self.decide(out);
        // The position counts as executed once it is settled; `decide` has advanced it if that was at once.
        if self.holding.is_none() { done.max(at) } else { done }
    }

    /// Settles the held write if the verdicts suffice.
    fn decide(&mut self, out: &mut impl Sink<Self>) {
        let Some((write, _)) = &self.holding else { return };
        let receiving =
            self.membership.config().and_then(|config| config.receiving().map(|(_, at)| at).min());
        let Some(decision) = self.verdicts.decide(write.at, &write.header.ranges, receiving) else { return };
        let (write, result) = self.holding.take().expect("just seen");
        self.ask_at = None;
        self.settle = Some((write.at, decision == Decision::Publish));
        let result = match decision {
            Decision::Publish => {
                assert!(result.is_ok(), "S15: published at {} what failed here", write.at);
                result
            }
            Decision::Void(failure) => Err(failure),
        };
        self.answer(&write, result, out);
    }

    /// Who may know more of a held write: all that were concerned and live, and who replicates its ranges by now.
    fn may_know(&self, write: &Write) -> Vec<ProcessId> {
        let Some(config) = self.membership.config() else { return Vec::new() };
        let concerned = write.others.iter().map(|(process, _)| *process);
        let mut all: Vec<ProcessId> = concerned.chain(config.replicas_of(&write.header.ranges)).collect();
        all.retain(|process| *process != self.membership.me && config.members.contains_key(process));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Voids the held write if those that were to tell a verdict are all out, and nobody alive knows it.
    fn give_up(&mut self) {
        let Some((write, _)) = &self.holding else { return };
        let at = write.at;
        let missing = self.verdicts.missing(at, &write.header.ranges);
        let alive = self.may_know(write);
        let will_speak = |(process, held): &(ProcessId, Vec<Range>)| {
            let concerned = |range: &Range| missing.iter().any(|gap| gap.intersect(*range).is_some());
            alive.contains(process) && held.iter().any(concerned)
        };
        let unknowing = |process: &ProcessId| self.verdicts.is_unknowing(at, *process, self.departed);
        if at > self.departed || write.others.iter().any(will_speak) || !alive.iter().all(unknowing) {
            return;
        }
        let (write, _) = self.holding.take().expect("just seen");
        self.ask_at = None;
        self.settle = Some((at, false));
        self.verdicts.drop(at);
        // Its client learns that a range is lost; said again under its name, the write is a new one.
        self.replies.cancel(write.header.request);
    }

    fn answer(&mut self, write: &Write, result: Result<Vec<Bytes>, Bytes>, out: &mut impl Sink<Self>) {
        let token = write.header.token;
        let remembered = match result {
            Ok(results) => {
                let results: Vec<(Range, Bytes)> = write.held.iter().copied().zip(results).collect();
                Remembered { at: write.at, results: Ok(results) }
            }
            Err(failure) => Remembered { at: write.at, results: Err(failure) },
        };
        send_remembered(write.client, token, &remembered, &write.answers, out);
        self.replies.finish(write.header.request, remembered);
    }

    /// Whether a read waits here, is at the engine, or has more of its answer here than was told.
    fn is_underway(&self, asked: Asked) -> bool {
        let waits =
            |step: &Step| matches!(step, Step::Read { client, token, .. } if (*client, *token) == asked);
        let runs =
            |at: &Purpose| matches!(at, Purpose::Read { client, token, .. } if (*client, *token) == asked);
        self.outboxes.is_open(asked) || self.running.iter().any(runs) || self.queue.iter().any(waits)
    }

    /// Nobody waits any more for the answers to these questions.
    fn withdraw(&mut self, unwanted: impl Fn(Asked) -> bool, out: &mut impl Sink<Self>) {
        self.queue.retain(|step| match step {
            Step::Read { client, token, .. } => !unwanted((*client, *token)),
            _ => true,
        });
        for (task, purpose) in self.running.iter_mut().enumerate() {
            if let Purpose::Read { at, client, token, .. } = purpose
                && unwanted((*client, *token))
            {
                *purpose = Purpose::Withdrawn { at: *at };
                out.emit(StorageEvent::Withdraw { task });
            }
        }
        self.outboxes.cancel(unwanted);
    }

    fn advance(&mut self, cx: &mut Context<'_>, through: Position, out: &mut impl Sink<Self>) {
        // A released or injected step may stand for a position that is not delivered here.
        let through = through.min(self.membership.member.delivered());
        if through > self.executed {
            self.executed = through;
            self.member_input(cx, Input::Command(MemberCommand::Executed { through }), out);
        }
    }

    // --- Moving ranges -----------------------------------------------------------------------------------------------

    fn fetch(&mut self, now: Time, out: &mut impl Sink<Self>) {
        let Some(import) = &mut self.import else { return };
        if let Some((source, ranges, cursor)) = import.fetch(now + self.settings.ask_after * 5) {
            let fetch = Direct::Fetch { change: import.change(), ranges, cursor };
            out.send(Destination::One(source), Message::Direct(fetch), None);
        }
    }

    fn import_failed(&mut self, now: Time, source: ProcessId, out: &mut impl Sink<Self>) {
        let config = self.membership.config().expect("an import follows a delivered message");
        let Some(import) = &mut self.import else { return };
        if import.switch(config, source) {
            self.fetch(now, out);
        } else {
            // No replica can send: the import can not be finished, and this process is of no use as it is.
            out.emit(StorageEvent::Wedged);
        }
    }

    fn imported(&mut self, cx: &mut Context<'_>, out: &mut impl Sink<Self>) {
        let Some(import) = &mut self.import else { return };
        match import.done() {
            ImportStep::More => self.fetch(cx.now, out),
            ImportStep::Finished { change, replies } => {
                self.import = None;
                self.replies.merge(replies);
                self.complete(cx, change, out);
            }
        }
    }

    fn complete(&mut self, cx: &mut Context<'_>, change: Position, out: &mut impl Sink<Self>) {
        let complete = Control::Complete { change };
        self.membership.submit(cx, INTERNAL, Class::Control, complete.encode(), out);
    }

    // --- Direct messages ---------------------------------------------------------------------------------------------

    fn on_direct(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        message: Direct,
        out: &mut impl Sink<Self>,
    ) {
        let Some(config) = self.membership.config() else {
            self.refused += 1;
            return;
        };
        if !config.members.contains_key(&from) {
            self.refused += 1;
            return;
        }
        match message {
            Direct::Basic { token, placement, ranges, operation } => {
                let held = config.ranges_of(self.membership.me);
                let active = config.storage.get(&self.membership.me) == Some(&StorageState::Active);
                let covered = ranges
                    .iter()
                    .all(|range| held.iter().any(|mine| mine.low <= range.low && range.high <= mine.high));
                let at = self.membership.member.delivered();
                if active && covered && placement == config.placement {
                    let ranges = ranges.to_vec();
                    let since = cx.now;
                    self.queue.push_back(Step::Read { at, client: from, token, ranges, operation, since });
                } else {
                    retry(from, token, at, out);
                }
            }
            Direct::Consumed { token, bytes } => self.outboxes.consumed((from, token), bytes, out),
            Direct::Cancel { token } => self.withdraw(|asked| asked == (from, token), out),
            Direct::Ask { request, token, ranges } => match self.replies.get(request) {
                Some(known) => send_remembered(from, token, known, &ranges, out),
                // Still to be executed here: the client asks again.
                None => tell(from, token, Position(0), ReplyContent::Unknown, out),
            },
            Direct::AskRead { token } => {
                let known = self.is_underway((from, token));
                let content = if known { ReplyContent::Underway } else { ReplyContent::Unknown };
                tell(from, token, Position(0), content, out);
            }
            Direct::Verdict { at, ranges, failure } => {
                // What is settled here needs no more verdicts.
                if at > self.executed || self.holding.as_ref().is_some_and(|(write, _)| write.at == at) {
                    self.verdicts.add(at, &ranges, failure);
                    self.decide(out);
                }
            }
            Direct::AskVerdict { at } => {
                // One that imported the write's rows knows it by what the ranges remember.
                let remembered = || {
                    let remembered = self.replies.at(at)?;
                    Some((vec![Range::ALL], remembered.results.as_ref().err().cloned()))
                };
                let known = self.verdicts.known(at).or_else(remembered);
                let through = self.membership.member.delivered();
                let settled = known.as_ref().is_some_and(|(ranges, _)| covers(ranges, Range::ALL));
                if let Some((ranges, failure)) = known {
                    let verdict = Direct::Verdict { at, ranges, failure };
                    out.send(Destination::One(from), Message::Direct(verdict), None);
                }
                if !settled && self.import.is_none() {
                    let nothing = Direct::NoVerdict { at, through };
                    out.send(Destination::One(from), Message::Direct(nothing), None);
                }
            }
            Direct::NoVerdict { at, through } => {
                self.verdicts.add_unknowing(at, from, through);
                self.give_up();
            }
            Direct::Fetch { change, ranges, cursor } => {
                let known = self.pins.contains_key(&change) || self.pins_due.contains(&change);
                if known || change > self.membership.member.delivered() {
                    self.fetches.retain(|fetch| fetch.from != from || fetch.change != change);
                    self.fetches.push_back(Fetch { from, change, ranges, cursor });
                } else {
                    out.send(Destination::One(from), Message::Direct(Direct::FetchRefused { change }), None);
                }
            }
            Direct::Chunk { change, asked, rows, cursor, replies } => {
                if let Some(import) = &mut self.import
                    && !import.chunk(from, change, asked, rows, cursor, replies)
                {
                    self.refused += 1;
                }
            }
            Direct::FetchRefused { change } => {
                let ours = |import: &Import| import.change() == change && import.source() == Some(from);
                if self.import.as_ref().is_some_and(ours) {
                    self.import_failed(cx.now, from, out);
                }
            }
            Direct::Alive { .. } | Direct::Reply(_) => self.refused += 1,
        }
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut impl Sink<Self>) {
        if self.ask_at.is_some_and(|at| at <= cx.now)
            && let Some((write, _)) = &self.holding
        {
            self.ask_at = Some(cx.now + self.settings.ask_after);
            let ask = Direct::AskVerdict { at: write.at };
            out.send(Destination::Many(self.may_know(write)), Message::Direct(ask), None);
            self.give_up();
        }
        if self.import.as_ref().and_then(Import::deadline).is_some_and(|at| at <= cx.now) {
            // No news from the source: ask it again; it is replaced when it is suspected.
            self.import.as_mut().expect("just seen").again();
            self.fetch(cx.now, out);
        }
    }
}

fn retry<S: Sink<Storage>>(client: ProcessId, token: u64, at: Position, out: &mut S) {
    tell(client, token, at, ReplyContent::Retry, out);
}

/// Tells a client something that is no part of an answer. A client that waits for it no more withdraws what is under way.
fn tell<S: Sink<Storage>>(client: ProcessId, token: u64, at: Position, content: ReplyContent, out: &mut S) {
    let (spent, last) = (Spent::default(), content != ReplyContent::Underway);
    let reply = Reply { token, at, ranges: SmallVec::new(), piece: 0, last, spent, content };
    out.send(Destination::One(client), Message::Direct(Direct::Reply(reply)), None);
}

/// Tells a client what a write did in those of `ranges` that are remembered here.
fn send_remembered<S: Sink<Storage>>(
    client: ProcessId,
    token: u64,
    known: &Remembered,
    ranges: &[Range],
    out: &mut S,
) {
    let mut send = |covered: SmallVec<[Range; 2]>, content: Bytes| {
        let (content, spent) = (ReplyContent::Answer(content), Spent::default());
        let reply = Reply { token, at: known.at, ranges: covered, piece: 0, last: true, spent, content };
        out.send(Destination::One(client), Message::Direct(Direct::Reply(reply)), None);
    };
    match &known.results {
        Ok(results) => {
            for (range, result) in results {
                if ranges.iter().any(|wanted| wanted.intersect(*range).is_some()) {
                    send(SmallVec::from_slice(&[*range]), result.clone());
                }
            }
        }
        // A write fails as a whole: any one answer will do.
        Err(failure) if !ranges.is_empty() => send(SmallVec::from_slice(ranges), failure.clone()),
        Err(_) => {}
    }
}

impl Protocol for Storage {
    type Message = Message;
    type Record = paxos::Record;
    type Command = StorageCommand;
    type Event = StorageEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
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
            Input::Command(StorageCommand::Leave) => {
                self.membership.submit(cx, INTERNAL, Class::Control, Control::Leave.encode(), out);
            }
            Input::Deadline => {
                self.member_input(cx, Input::Deadline, out);
                self.on_deadline(cx, out);
                self.membership.tick(cx.now, self.executed, out);
            }
            Input::Persisted(ticket) => self.member_input(cx, Input::Persisted(ticket), out),
            Input::Linked { peer, session } => self.member_input(cx, Input::Linked { peer, session }, out),
            Input::Unlinked { peer } => {
                // What is left of its answers would arrive with a gap, and it asks anew.
                self.withdraw(|(client, _)| client == peer, out);
                self.member_input(cx, Input::Unlinked { peer }, out);
            }
            Input::Drained => {
                self.execute(cx, out);
                self.member_input(cx, Input::Drained, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let import = self.import.as_ref().and_then(Import::deadline);
        [self.membership.deadline(), self.ask_at, import].into_iter().flatten().min()
    }
}
