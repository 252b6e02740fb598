//! Sessions that end by time (rule S6).
//!
//! **Promise.** A session of which the leader has heard nothing for [`Settings::session_idle`](super::Settings::session_idle)
//! ends, everywhere at the same instance; one of which it hears does not end by time.
//!
//! A session ends by an instance of the log, like everything that changes the state. The leader's clock only says when it
//! proposes one, so nothing that is kept or forgotten rests on a clock. Clients that have nothing to say send a message without
//! calls now and then.
//!
//! **Attacks considered.**
//!
//! - *A new leader has heard of nobody.* It counts from the moment at which it looked first.
//! - *The leader sleeps, and all sessions seem idle when it wakes.* A look that comes late discards what was counted before, as a
//!   detector does (rule S11).
//! - *A call comes while the end of its session is on its way.* It takes effect behind that end and is answered, and nothing
//!   remembers it: a repetition is told that the session is over, as is one of a session that ended for want of room.
//! - *Two leaders in turn end one session.* The second end finds nothing.
//! - *Sessions are made up to fill the leader's memory.* Only those that there are count.

use std::collections::BTreeMap;

use super::SessionId;
use crate::time::{Duration, Time};

/// When the leader heard of each session last.
#[derive(Debug, Default)]
pub(super) struct Idle {
    heard: BTreeMap<SessionId, Time>,
    looked_at: Option<Time>,
}

impl Idle {
    /// A session, one that there is, was heard of.
    pub(super) fn heard(&mut self, session: SessionId, now: Time) {
        self.heard.insert(session, now);
    }

    /// The sessions that are to end, of those that there are.
    pub(super) fn look(
        &mut self,
        now: Time,
        idle: Duration,
        sessions: impl Iterator<Item = SessionId>,
    ) -> Vec<SessionId> {
        let every = idle / LOOKS;
        if self.looked_at.is_some_and(|looked| now.since(looked) < every) {
            return Vec::new();
        }
        if self.looked_at.is_some_and(|looked| now.since(looked) > every * 2) {
            self.heard.clear();
        }
        self.looked_at = Some(now);
        let before = std::mem::take(&mut self.heard);
        let mut over = Vec::new();
        for session in sessions {
            match before.get(&session) {
                Some(heard) if now.since(*heard) >= idle => over.push(session),
                heard => drop(self.heard.insert(session, heard.copied().unwrap_or(now))),
            }
        }
        over
    }
}

/// So often is looked in the time after which a session ends.
const LOOKS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(8);

    fn second(second: u64) -> Time {
        Time(second * 1_000_000_000)
    }

    fn looks(idle: &mut Idle, seconds: std::ops::Range<u64>, sessions: &[u64]) -> Vec<(u64, u64)> {
        let mut over = Vec::new();
        for now in seconds {
            let found = idle.look(second(now), IDLE, sessions.iter().map(|id| SessionId(*id)));
            over.extend(found.into_iter().map(|session| (now, session.0)));
        }
        over
    }

    #[test]
    fn a_session_ends_when_nothing_was_heard_for_long() {
        let mut idle = Idle::default();
        assert_eq!(looks(&mut idle, 0..5, &[1, 2]), []);
        idle.heard(SessionId(2), second(5));
        assert_eq!(looks(&mut idle, 5..9, &[1, 2]), [(8, 1)]);
        assert_eq!(looks(&mut idle, 9..20, &[2]), [(13, 2)]);
    }

    #[test]
    fn a_leader_that_slept_counts_anew() {
        let mut idle = Idle::default();
        assert_eq!(looks(&mut idle, 0..5, &[1]), []);
        assert_eq!(looks(&mut idle, 100..108, &[1]), []);
        assert_eq!(looks(&mut idle, 108..109, &[1]), [(108, 1)]);
    }
}
