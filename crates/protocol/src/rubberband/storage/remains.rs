//! State that a removed process hands to its next life ([keeping](crate::rubberband::keeping)).
//!
//! The next life has the same engine. What was delivered and not executed yet goes along, and is executed; what was asked for
//! by others, or is bound to the old id, does not.

use std::{collections::VecDeque, fmt};

use super::{
    Outboxes, Replies, Storage, StorageEvent, StorageSettings, Verdicts,
    shelf::Shelf,
    steps::Step,
    write::{Evaluated, Write},
};
use crate::{
    ecast::Position,
    id::Peer,
    rubberband::{Config, Keeps, Range, StorageState},
    seam::Sink,
    time::Time,
};

/// A storage process's state but for its engine, when it is out.
pub struct Remains {
    keeps: Keeps,
    settings: StorageSettings,
    /// What it knew last.
    config: Config,
    queue: VecDeque<Step>,
    holding: Option<(Box<Write>, Evaluated)>,
    settle: Option<(Position, bool)>,
    verdicts: Verdicts,
    replies: Replies,
    outboxes: Outboxes,
    /// The number of the next record of what its engine saves.
    next_saved: u64,
}

impl fmt::Debug for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remains").field("keeps", &self.keeps).finish_non_exhaustive()
    }
}

impl Remains {
    /// Which rows are kept.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }
}

impl Storage {
    /// The next life of a storage process that is out, with the same engine and under a new id.
    pub fn again(me: Peer, name: String, remains: Box<Remains>) -> Self {
        let Remains {
            keeps,
            settings,
            config,
            queue,
            holding,
            settle,
            verdicts,
            replies,
            outboxes,
            next_saved,
        } = *remains;
        let ask_at = holding.is_some().then_some(Time::ZERO);
        Storage {
            queue,
            holding,
            settle,
            verdicts,
            replies,
            outboxes,
            ask_at,
            before: Some(config),
            shelf: Shelf::new(next_saved),
            ..Storage::joining(me, name, settings, Some(keeps))
        }
    }

    /// This process is out. It keeps its rows if it may be the last that has them, and ends otherwise.
    pub(super) fn part(&mut self, out: &mut dyn Sink<Self>) {
        match self.kept() {
            Some(_) => self.parting = true,
            None => out.emit(StorageEvent::Wedged),
        }
    }

    fn kept(&self) -> Option<Keeps> {
        // A later generation may know nothing of what was delivered here.
        if self.leaving || !self.membership.member.is_of_its_generation() {
            return None;
        }
        if self.keeps.is_some() {
            return self.keeps;
        }
        let (me, config) = (self.membership.me, self.membership.config()?);
        let held = match config.storage.get(&me)? {
            StorageState::Active | StorageState::Unreachable | StorageState::Away { on_ring: true } => true,
            // That it is complete may have been ordered and not been delivered here.
            StorageState::Receiving { .. } => self.import.is_none(),
            StorageState::Standby | StorageState::Keeping(_) | StorageState::Away { on_ring: false } => false,
        };
        let (&place, _) = config.ring.iter().find(|(_, process)| **process == me).filter(|_| held)?;
        Some(Keeps { former: me, place, through: self.membership.member.delivered() })
    }

    /// Whether this process is out. What it leaves is told once its engine is idle.
    pub(super) fn is_out(&mut self, out: &mut dyn Sink<Self>) -> bool {
        // Messages that were on their way when it heard that it is out may have come meanwhile. One of them may say that others
        // have the rows.
        if std::mem::take(&mut self.parting) {
            match self.kept() {
                Some(keeps) => {
                    let remains = self.remains(keeps);
                    out.emit(StorageEvent::Out(Box::new(remains)));
                }
                None => out.emit(StorageEvent::Wedged),
            }
        }
        self.membership.is_wedged()
    }

    fn remains(&mut self, keeps: Keeps) -> Remains {
        self.drop_crowded(|_| true);
        self.outboxes.cancel(|_| true);
        let config = self.before.take().or_else(|| self.membership.config().cloned());
        let pinned = self.drop_checkpoint();
        let mut queue: VecDeque<Step> =
            self.pins.keys().copied().chain(pinned).map(|at| Step::Release { at }).collect();
        queue.extend(self.queue.drain(..).filter(|step| match step {
            Step::Write(_)
            | Step::Create { .. }
            | Step::Drop { .. }
            | Step::Forget { .. }
            | Step::Expire { .. }
            | Step::Restore { .. }
            | Step::RestoreRows { .. }
            | Step::Clear { .. } => true,
            // Nobody waits for these any more.
            Step::Read { .. }
            | Step::Pin { .. }
            | Step::Release { .. }
            | Step::Checkpoint { .. }
            | Step::Await { .. } => false,
        }));
        Remains {
            keeps,
            settings: self.settings.clone(),
            config: config.expect("who keeps rows was admitted, or its former life was"),
            queue,
            holding: self.holding.take(),
            settle: self.settle.take(),
            verdicts: std::mem::take(&mut self.verdicts),
            replies: std::mem::replace(&mut self.replies, Replies::new(0)),
            outboxes: std::mem::replace(&mut self.outboxes, Outboxes::new(&self.settings)),
            next_saved: self.shelf.next(),
        }
    }

    /// Just admitted with the rows of a former life, which had this configuration last: what control messages did meanwhile.
    pub(super) fn catch_up(&mut self, at: Position, former: &Config, config: &Config) {
        for &table in former.tables.keys().filter(|table| !config.tables.contains_key(table)) {
            self.queue.push_back(Step::Drop { at, table });
        }
        for (&session, &before) in &former.sessions {
            let below = config.sessions.get(&session).copied().unwrap_or(u64::MAX);
            let kept = config.kept.get(&session).into_iter().flatten().copied().collect();
            if below > before || config.kept.get(&session) != former.kept.get(&session) {
                self.queue.push_back(Step::Forget { at, session, below, kept });
            }
        }
        if config.keeps(self.membership.me).is_none() {
            // It is not taken for what it is.
            let place = self.keeps.map_or(0, |keeps| keeps.place);
            self.drop_rows(at, former.ranges_at(place));
        }
    }

    /// Drops the rows that are kept: others have them.
    pub(super) fn drop_rows(&mut self, at: Position, ranges: Vec<Range>) {
        self.keeps = None;
        self.pins_due.clear();
        let pinned = |at: &Position| self.pins.contains_key(at);
        self.queue.retain(|step| match step {
            Step::Create { .. } | Step::Drop { .. } => true,
            Step::Release { at } => pinned(at),
            _ => false,
        });
        self.drop_checkpoint_due();
        if let Some((write, _)) = self.holding.take() {
            self.replies.finish(write.header.name);
            self.settle = Some((write.at, false));
            self.ask_at = None;
        }
        self.queue.push_back(Step::Clear { at, ranges });
    }

    /// Whether rows were kept here, and are not any more.
    pub(super) fn is_dismissed(&self) -> bool {
        let me = self.membership.me;
        let config = self.membership.config();
        config.is_some_and(|config| config.storage.get(&me) == Some(&StorageState::Standby))
    }
}
