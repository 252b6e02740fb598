//! A process that was removed ends its life and begins the next life ([keeping](crate::rubberband::keeping)).
//!
//! The next life has the same engine. The next life takes over deliveries that were not executed, and
//! executes them. It does not take over requests of other processes, or work that is bound to the old id.

use std::collections::VecDeque;

use super::{
    Storage, StorageEvent, checkpoints::CheckpointProgress, decisions::WriteDecisions,
    engine_queue::EngineQueue, fragment_index::FragmentIndex, handover::Handover, outbox::Outboxes,
    work::QueuedStep,
};
use crate::{
    ecast::Position,
    id::Peer,
    rubberband::{Config, KeptRows, Range, StorageState},
    seam::Sink,
};

impl Storage {
    /// Creates the next life of a storage process that is no longer a member, with the same engine and a new
    /// id.
    pub fn again(me: Peer, name: String, handover: Box<Handover>) -> Self {
        let Handover { keeps, settings, config, queue, held, verdicts, replies, outboxes, next_saved } =
            *handover;
        Storage {
            queue: EngineQueue::of(queue),
            decisions: WriteDecisions::taken_over(held),
            verdicts,
            replies,
            outboxes,
            before: Some(config),
            checkpoints: CheckpointProgress::new(FragmentIndex::new(next_saved)),
            ..Storage::joining(me, name, settings, Some(keeps))
        }
    }

    /// Ends this life. The process keeps its rows if it may be the last process that has them.
    pub(super) fn part(&mut self, out: &mut dyn Sink<Self>) {
        match self.kept() {
            Some(_) => self.is_leaving_rows = true,
            None => out.emit(StorageEvent::Wedged),
        }
    }

    fn kept(&self) -> Option<KeptRows> {
        // A process that leaves by command keeps nothing. A process that missed a generation keeps nothing
        // either: the later generation may lack messages that were delivered here.
        if self.leaving || !self.membership.member.is_of_its_generation() {
            return None;
        }
        if self.keeps.is_some() {
            return self.keeps;
        }
        let (me, config) = (self.membership.me, self.membership.config()?);
        let held = match config.storage.get(&me)? {
            StorageState::Active | StorageState::Unreachable | StorageState::Away { on_ring: true } => true,
            // This process may be complete already: its `Complete` may have been ordered and not delivered
            // here.
            StorageState::Receiving { .. } => self.import.is_none(),
            StorageState::Standby | StorageState::Keeping(_) | StorageState::Away { on_ring: false } => false,
        };
        let (&place, _) = config.ring.iter().find(|(_, process)| **process == me).filter(|_| held)?;
        Some(KeptRows { former: me, place, through: self.membership.member.delivered() })
    }

    /// Whether this process is no longer a member. If it still has to hand its rows over, emits
    /// [`StorageEvent::Out`], because the engine is idle now.
    pub(super) fn is_out(&mut self, out: &mut dyn Sink<Self>) -> bool {
        // A message that arrived since the removal may have shown that other processes have the rows. Then
        // this process keeps nothing.
        if std::mem::take(&mut self.is_leaving_rows) {
            match self.kept() {
                Some(keeps) => {
                    let handover = self.handover(keeps);
                    out.emit(StorageEvent::Out(Box::new(handover)));
                }
                None => out.emit(StorageEvent::Wedged),
            }
        }
        self.membership.is_wedged()
    }

    fn handover(&mut self, keeps: KeptRows) -> Handover {
        self.drop_crowded(|_| true);
        self.outboxes.cancel(|_| true);
        let config = self.before.take().or_else(|| self.membership.config().cloned());
        let pinned = self.checkpoints.drop_current();
        let mut queue: VecDeque<QueuedStep> =
            self.exports.positions().chain(pinned).map(|at| QueuedStep::Release { at }).collect();
        queue.extend(self.queue.steps.drain(..).filter(|step| match step {
            QueuedStep::Write(_)
            | QueuedStep::Create { .. }
            | QueuedStep::Drop { .. }
            | QueuedStep::Alter { .. }
            | QueuedStep::Forget { .. }
            | QueuedStep::Expire { .. }
            | QueuedStep::Restore { .. }
            | QueuedStep::RestoreRows { .. }
            | QueuedStep::Clear { .. } => true,
            // These steps serve only the former life, so the next life does not need them.
            QueuedStep::Read { .. }
            | QueuedStep::Pin { .. }
            | QueuedStep::Release { .. }
            | QueuedStep::Checkpoint { .. }
            | QueuedStep::Await { .. } => false,
        }));
        Handover {
            keeps,
            settings: self.settings.clone(),
            config: config.expect("a process that keeps rows was admitted, or its former life was"),
            queue,
            held: self.decisions.hand_over(),
            verdicts: std::mem::replace(&mut self.verdicts, self.settings.verdicts()),
            replies: std::mem::replace(&mut self.replies, self.settings.replies()),
            outboxes: std::mem::replace(&mut self.outboxes, Outboxes::new(&self.settings)),
            next_saved: self.checkpoints.fragment_index.next(),
        }
    }

    /// Applies the effects of control messages that were ordered between two lives. `former` is the last
    /// configuration of the former life. This process was just admitted with the former life's rows.
    pub(super) fn catch_up(&mut self, at: Position, former: &Config, config: &Config) {
        for &table in former.tables.keys().filter(|table| !config.tables.contains_key(table)) {
            self.queue.push(QueuedStep::Drop { at, table });
        }
        for (&session, &before) in &former.sessions {
            let below = config.sessions.get(&session).copied().unwrap_or(u64::MAX);
            let kept = config.kept.get(&session).into_iter().flatten().copied().collect();
            if below > before || config.kept.get(&session) != former.kept.get(&session) {
                self.queue.push(QueuedStep::Forget { at, session, below, kept });
            }
        }
        if config.keeps(self.membership.me).is_none() {
            // The cluster did not accept this process as a keeper.
            let place = self.keeps.map_or(0, |keeps| keeps.place);
            self.drop_rows(at, former.ranges_at(place));
        }
    }

    /// Drops the kept rows, because other processes have them.
    pub(super) fn drop_rows(&mut self, at: Position, ranges: Vec<Range>) {
        self.keeps = None;
        self.exports.expect_none();
        let pinned = |at: &Position| self.exports.pinned(*at).is_some();
        self.queue.steps.retain(|step| match step {
            QueuedStep::Create { .. } | QueuedStep::Drop { .. } | QueuedStep::Alter { .. } => true,
            QueuedStep::Release { at } => pinned(at),
            _ => false,
        });
        self.checkpoints.drop_due();
        if let Some((write, _)) = self.decisions.release(false) {
            self.replies.finish(write.header.name);
        }
        self.queue.push(QueuedStep::Clear { at, ranges });
    }

    /// Whether this process kept rows and was dismissed.
    pub(super) fn is_dismissed(&self) -> bool {
        let me = self.membership.me;
        let config = self.membership.config();
        config.is_some_and(|config| config.storage.get(&me) == Some(&StorageState::Standby))
    }
}
