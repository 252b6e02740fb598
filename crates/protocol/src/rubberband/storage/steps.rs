//! Delivered messages become steps for the engine.
//!
//! A step is work for the engine at a position. For data, the process computes the same assignment of ranges
//! as the routers did, from the configuration at the message's position. The engine's work for a control
//! message becomes steps, too. The message's effects on other processes (a departure, a complete import) are
//! applied at once.

use bytes::Bytes;

use super::{
    Storage,
    import::Import,
    reply::retry,
    work::{QueuedStep, Write},
};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{Assignment, Config, Control, DataHeader, DataKind, Range, StorageState, TableChange},
    seam::{Context, Sink},
    time::Time,
};

impl Storage {
    pub(super) fn on_data(
        &mut self,
        now: Time,
        at: Position,
        client: ProcessId,
        header: DataHeader,
        operation: Bytes,
    ) {
        // Routers send data only after the process has joined.
        let Some(config) = self.membership.config() else {
            self.refused += 1;
            return;
        };
        let me = self.membership.me;
        let assigned = match header.kind {
            DataKind::Read => config.assign_read(&header.ranges, header.offset),
            DataKind::Write | DataKind::FallibleWrite => config.assign_write(&header.ranges, header.offset),
        };
        let assigned = assigned.unwrap_or_else(|range| {
            panic!("every range of a delivered write has a replica, but {range:?} has none at {at}")
        });
        let mine = assigned.iter().position(|assignment| assignment.process == me);
        let mine = mine.unwrap_or_else(|| {
            panic!("only messages that concern a process are delivered to it, but {at} does not concern {me}")
        });
        if header.kind == DataKind::Read {
            let ranges = assigned[mine].held.clone();
            let token = header.token;
            self.queue.push(QueuedStep::Read { at, client, token, ranges, operation, since: now });
            return;
        }
        // All replicas of one range evaluate a write alike; only different ranges can disagree. Even a write
        // that cannot fail may be refused by a range that knows the write's id under a different statement.
        let spans = header.ranges.iter().map(|range| config.count_segments(*range)).sum::<usize>() > 1;
        let exchanged = (header.kind == DataKind::FallibleWrite || header.name.repeated) && spans;
        let others = assigned.iter().filter(|assignment| exchanged && assignment.process != me);
        let others = others.map(|assignment| (assignment.process, assignment.held.clone())).collect();
        let Assignment { held, answers, .. } = assigned[mine].clone();
        let segments = held.iter().map(|range| config.segment_of(range.low)).collect();
        let write =
            Write { at, client, header, held, segments, remembered: Vec::new(), answers, others, operation };
        self.queue.push(QueuedStep::Write(Box::new(write)));
    }

    /// Executes the changes of tables after the steps before them.
    fn define(&mut self, at: Position, config: &Config, changes: Vec<TableChange>) {
        let begun = |name: &str| config.table(name).expect("a delivered control message was not refused").0;
        for change in changes {
            self.queue.push(match change {
                TableChange::Create { name, definition } => {
                    QueuedStep::Create { at, table: begun(&name), definition }
                }
                TableChange::Drop { table } => QueuedStep::Drop { at, table },
                TableChange::Alter { table, name, definition, columns } => {
                    QueuedStep::Alter { at, table, altered: begun(&name), definition, columns }
                }
            });
        }
    }

    pub(super) fn on_injected(
        &mut self,
        now: Time,
        at: Position,
        client: ProcessId,
        header: DataHeader,
        operation: Bytes,
        out: &mut dyn Sink<Self>,
    ) {
        let me = self.membership.me;
        let assigned =
            self.config().and_then(|config| config.assign_read(&header.ranges, header.offset).ok());
        let mine = assigned.and_then(|all| all.into_iter().find(|assignment| assignment.process == me));
        match mine {
            Some(mine) if header.kind == DataKind::Read => {
                let token = header.token;
                self.queue.push(QueuedStep::Read {
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

    pub(super) fn on_control(
        &mut self,
        cx: &mut Context<'_>,
        at: Position,
        control: Control,
        before: Option<Config>,
        out: &mut dyn Sink<Self>,
    ) {
        let me = self.membership.me;
        let config =
            self.membership.config().expect("a delivered control message leaves a configuration").clone();
        let Some(before) = before else {
            // This process was just admitted, so its engine needs the existing tables.
            let former = self.before.take();
            let known = |table| former.as_ref().is_some_and(|former| former.tables.contains_key(&table));
            for (&table, entry) in config.tables.iter().filter(|(table, _)| !known(**table)) {
                self.queue.push(QueuedStep::Create { at, table, definition: entry.definition.clone() });
            }
            if let Some(former) = former {
                self.decisions.departed = at;
                self.catch_up(at, &former, &config);
            }
            return;
        };
        match control {
            Control::CreateTable { name, definition } => {
                self.define(at, &config, vec![TableChange::Create { name, definition }]);
            }
            Control::DropTable { table } => self.define(at, &config, vec![TableChange::Drop { table }]),
            Control::Define { changes } => self.define(at, &config, changes),
            Control::Expire { through } => self.queue.push(QueuedStep::Expire { through }),
            Control::Forget { session, below, kept } => {
                self.queue.push(QueuedStep::Forget { at, session, below, kept });
            }
            Control::Replace { new, copy, .. } if new == me => {
                let import = Import::new(at, copy, config.ranges_of(me));
                if import.is_empty() {
                    self.complete(cx, at, out);
                } else {
                    self.import = Some(import);
                    self.queue.push(QueuedStep::Await { at });
                    self.fetch(cx.now, out);
                }
            }
            Control::Replace { copy, .. } if self.keeps.is_some() => {
                let ours = copy.into_iter().filter(|(_, source)| *source == me);
                let moving: Vec<Range> = ours.map(|(range, _)| range).collect();
                if !moving.is_empty() {
                    self.exports.expect(at);
                    self.queue.push(QueuedStep::Pin { at, ranges: moving });
                }
            }
            Control::Dismiss { process } if process == me => {
                let keeps = before.keeps(me).expect("only a keeper is dismissed");
                self.drop_rows(at, before.ranges_at(keeps.place));
            }
            Control::Replace { new, .. } => {
                let mut moving = config.ranges_of(new);
                moving.retain(|range| config.ranges_of(me).contains(range));
                let stands = config.storage.get(&me);
                let has_rows =
                    matches!(stands, Some(StorageState::Active | StorageState::Away { on_ring: true }));
                if has_rows && !moving.is_empty() {
                    self.exports.expect(at);
                    self.queue.push(QueuedStep::Pin { at, ranges: moving });
                }
                // If this process gives up its place on the ring, it keeps its rows.
                self.keeps = config.keeps(me);
            }
            _ => {}
        }
        // A receiver that is complete, or gone, no longer needs the pin for its import.
        for (_, change) in before.receiving() {
            if !config.receiving().any(|(_, still)| still == change) && self.exports.knows(change) {
                self.queue.push(QueuedStep::Release { at: change });
            }
        }
        let gone: Vec<ProcessId> =
            before.members.keys().copied().filter(|process| !config.members.contains_key(process)).collect();
        if !gone.is_empty() {
            self.decisions.departed = at;
        }
        for process in gone {
            self.withdraw(|(client, _)| client == process, out);
            self.verdicts.departed(process);
            self.exports.departed(process);
            if self.import.as_ref().is_some_and(|import| import.reads_from(process)) {
                self.import_failed(cx.now, process, out);
            }
        }
    }
}
