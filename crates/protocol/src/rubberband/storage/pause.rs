//! Stopping for a moment, and coming back ([away](crate::rubberband::away)): the storage process's own part.

use thiserror::Error;

use super::{Storage, StorageEvent};
use crate::{
    ecast::{Class, Position},
    id::ProcessId,
    rubberband::{Control, StorageState, membership::INTERNAL},
    seam::{CommandId, Context, Sink},
};

/// The token of the message by which the process goes away.
pub(super) const AWAY: u64 = INTERNAL | 1 << 60;
/// The token of the messages by which it says that it is back.
const BACK: u64 = INTERNAL | 1 << 59;

/// Why a storage process is not away, so that the others notice when it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PauseRefusal {
    /// It would come back as another process.
    #[error("it has no disk to come back from: its rows would be gone")]
    NoDisk,
    /// Nobody else could take its place meanwhile.
    #[error("the others need it now: rows are moving, or some range has no other complete replica")]
    Needed,
    /// It is no member.
    #[error("it has not joined, or is cut off")]
    NotJoined,
    /// It was asked before.
    #[error("it was asked to stop before")]
    Already,
}

/// A process that is about to stop, or has come back.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// The command to stop for a moment, while it has not ended.
    asked: Option<CommandId>,
    /// This life is about to stop.
    going: bool,
    /// From this position on it is away.
    away: Option<Position>,
    /// It is back, and has caught up once it has executed all up to here.
    back: Option<Position>,
}

impl Storage {
    /// Goes away. The command ends when the process has done and answered all that is its own to do.
    pub(super) fn pause(&mut self, cx: &mut Context<'_>, id: CommandId, out: &mut dyn Sink<Self>) {
        let me = self.membership.me;
        let stands = self.config().and_then(|config| config.storage.get(&me).copied());
        let refusal = match stands {
            _ if self.settings.checkpoint_bytes.is_none() => Some(PauseRefusal::NoDisk),
            _ if self.membership.is_wedged() => Some(PauseRefusal::NotJoined),
            None => Some(PauseRefusal::NotJoined),
            Some(_) if self.pause.going => Some(PauseRefusal::Already),
            Some(_) => None,
        };
        if let Some(refusal) = refusal {
            return out.emit(StorageEvent::Paused { id, result: Err(refusal) });
        }
        (self.pause.asked, self.pause.going) = (Some(id), true);
        self.membership.submit(cx, AWAY, Class::Control, Control::Away.encode(), out);
    }

    /// What came of the message by which it goes away. If it is not away behind that, it was refused.
    pub(super) fn away_ended(&mut self, out: &mut dyn Sink<Self>) {
        if self.pause.away.is_none() {
            self.stay(PauseRefusal::Needed, out);
        }
    }

    fn stay(&mut self, why: PauseRefusal, out: &mut dyn Sink<Self>) {
        self.pause.going = false;
        if let Some(id) = self.pause.asked.take() {
            out.emit(StorageEvent::Paused { id, result: Err(why) });
        }
    }

    /// A control message of `sender` was delivered at `at`, and `before` it this process was not away.
    pub(super) fn note_pause(&mut self, at: Position, sender: ProcessId, control: &Control) {
        if sender != self.membership.me {
            return;
        }
        match control {
            Control::Away if self.is_away() && self.pause.going => self.pause.away = Some(at),
            // The word of a former life.
            Control::Away if self.is_away() => self.say_back(),
            Control::Back { caught_up: false } if self.is_away() => self.pause.back = Some(at),
            _ => {}
        }
    }

    fn is_away(&self) -> bool {
        let stands = self.config().and_then(|config| config.storage.get(&self.membership.me));
        matches!(stands, Some(StorageState::Away { .. }))
    }

    fn say_back(&mut self) {
        self.membership.say(Control::Back { caught_up: false });
    }

    /// All that was delivered before it came back was delivered once more.
    pub(super) fn replayed(&mut self) {
        self.pause.back = None;
        if self.is_away() {
            self.say_back();
        }
    }

    /// Has it stop, or serve again, as soon as there is nothing left to do before.
    pub(super) fn tend_pause(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if self.pause.back.is_some_and(|back| self.executed >= back) {
            self.pause.back = None;
            let back = Control::Back { caught_up: true };
            self.membership.submit(cx, BACK, Class::Control, back.encode(), out);
        }
        if self.pause.asked.is_none() {
            return;
        }
        if self.membership.is_wedged() {
            return self.stay(PauseRefusal::NotJoined, out);
        }
        let idle = self.running.is_empty()
            && self.queue.is_empty()
            && self.holding.is_none()
            && self.crowded.is_empty()
            && self.outboxes.open() == 0;
        if idle
            && self.pause.away.is_some_and(|away| self.executed >= away)
            && let Some(id) = self.pause.asked.take()
        {
            out.emit(StorageEvent::Paused { id, result: Ok(()) });
        }
    }
}
