//! The calls of unknown fate that a client keeps, so that its user can repeat them. The oldest calls are
//! forgotten.

use super::{Client, KEYED, SessionState, calls::CallContent};
use crate::service::{CallId, SessionId};

impl Client {
    /// Keeps a call of unknown fate, so that the user can repeat it. A call with a key can be repeated in any
    /// session of this client, because replicas remember keys independently of sessions.
    pub(super) fn leave_open(&mut self, id: CallId, asked: CallContent) {
        let bytes = asked.bytes();
        if id.session == SessionId::KEYED {
            // A call with a key is kept only once: the latest call with the key replaces earlier calls.
            self.forget_keyed(id.number, |_| true);
            self.open_keyed.push_back((id.number, asked));
        } else if self.session == SessionState::Open(id.session) {
            self.open.insert(id.number, asked);
        } else {
            return;
        }
        self.kept_bytes += bytes;
        if self.open_keyed.len() as u64 > self.settings.open_max {
            self.forget_oldest_keyed();
        }
    }

    /// Forgets a call that was kept, because its fate is now known, or because it is about to be kept again.
    pub(super) fn close(&mut self, number: u64, asked: &CallContent) {
        if number >= KEYED {
            self.forget_keyed(number, |open| open.request == asked.request);
        } else if !self.open.is_empty()
            && let Some(closed) = self.open.remove(&number)
        {
            self.kept_bytes -= closed.bytes();
        }
    }

    fn forget_keyed(&mut self, number: u64, which: impl Fn(&CallContent) -> bool) {
        let place = self.open_keyed.iter().position(|(open, asked)| *open == number && which(asked));
        if let Some((_, closed)) = place.and_then(|place| self.open_keyed.remove(place)) {
            self.kept_bytes -= closed.bytes();
        }
    }

    pub(super) fn open_keyed(&self, number: u64) -> Option<&CallContent> {
        self.open_keyed.iter().find(|(open, _)| *open == number).map(|(_, asked)| asked)
    }

    fn forget_oldest_keyed(&mut self) -> bool {
        let Some((_, oldest)) = self.open_keyed.pop_front() else { return false };
        self.kept_bytes -= oldest.bytes();
        true
    }

    /// Forgets a call with an unknown fate. Returns whether there was such a call.
    pub(super) fn forget_one_open(&mut self) -> bool {
        match self.open.first_key_value().map(|(number, _)| *number) {
            Some(number) => {
                self.forget_open(number + 1);
                true
            }
            None => self.forget_oldest_keyed(),
        }
    }

    /// Forgets the calls of unknown fate with numbers below `below`, so that the user can no longer repeat
    /// them.
    pub(super) fn forget_open(&mut self, below: u64) {
        while let Some(first) = self.open.first_entry()
            && *first.key() < below
        {
            self.kept_bytes -= first.remove().bytes();
        }
    }
}
