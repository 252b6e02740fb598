//! Stopping for a moment, and coming back ([away](crate::rubberband::away)): the part of the storage process
//! itself.

use super::{
    Storage, StorageEvent,
    absence::PauseRefusal,
    token::{AWAY, BACK},
};
use crate::{
    ecast::{Class, Position},
    id::ProcessId,
    rubberband::{Control, StorageState},
    seam::{CommandId, Context, Sink},
};

impl Storage {
    /// Goes away by submitting `Away`. The command ends when the process has executed and answered everything
    /// before that message.
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

    /// Ends the command if the `Away` message had no effect: the process is not away, so the message was
    /// refused.
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

    /// Notes a control message that `sender` submitted and that was delivered here at `at`, if it is this
    /// process's own message about pausing.
    pub(super) fn note_pause(&mut self, at: Position, sender: ProcessId, control: &Control) {
        if sender != self.membership.me {
            return;
        }
        match control {
            Control::Away if self.is_away() && self.pause.going => self.pause.away = Some(at),
            // A former life of this process submitted the message and has ended. The present life runs, so it
            // reports back.
            Control::Away if self.is_away() => self.announce_return(),
            Control::Back { caught_up: false } if self.is_away() => self.pause.back = Some(at),
            _ => {}
        }
    }

    fn is_away(&self) -> bool {
        let stands = self.config().and_then(|config| config.storage.get(&self.membership.me));
        matches!(stands, Some(StorageState::Away { .. }))
    }

    fn announce_return(&mut self) {
        self.membership.say(Control::Back { caught_up: false });
    }

    /// Reports back if the process was away when its former life ended. All earlier deliveries have been
    /// replayed.
    pub(super) fn replayed(&mut self) {
        self.pause.back = None;
        if self.is_away() {
            self.announce_return();
        }
    }

    /// Lets the process stop, or serve again, once it has no work left that must come first.
    pub(super) fn advance_pause(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
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
        let idle = self.queue.is_empty() && !self.decisions.is_holding() && self.outboxes.open() == 0;
        if idle
            && self.pause.away.is_some_and(|away| self.executed >= away)
            && let Some(id) = self.pause.asked.take()
        {
            out.emit(StorageEvent::Paused { id, result: Ok(()) });
        }
    }
}
