//! Sessions that end by time (rule S6).
//!
//! **Promise.** If the leader has heard nothing of a session for
//! [`Settings::session_idle`](super::Settings::session_idle), the session ends, at all replicas at the same
//! instance. A session from which the leader hears does not end by time.
//!
//! An instance of the log ends a session, like everything that changes the state. The leader's clock only
//! decides when the leader proposes the instance, so all replicas keep and forget the same sessions, whatever
//! their clocks. Clients without calls send a message without calls now and then.
//!
//! **Attacks considered.**
//!
//! - *A new leader has heard of no session.* The new leader measures the idle time from its first look at the
//!   sessions.
//! - *The leader sleeps, and all sessions seem idle when it wakes.* The leader looks at the sessions at
//!   regular intervals. If it notices that a look comes late, it discards the earlier times, as a detector
//!   does (rule S11).
//! - *A call comes while the end of its session is on its way through the log.* The call takes effect after
//!   that end and is answered, and no table remembers it. A repetition is answered *expired*, as in a session
//!   that ended because there was no room for it.
//! - *Two leaders in turn end one session.* The second end finds no session.
//! - *A process sends invented session ids to fill the leader's memory.* The leader records times only for
//!   existing sessions.

use std::collections::BTreeMap;

use super::SessionId;
use crate::time::{Duration, Time};

/// For each session, the time at which the leader last heard from its client.
#[derive(Debug, Default)]
pub(super) struct Idle {
    heard: BTreeMap<SessionId, Time>,
    looked_at: Option<Time>,
}

impl Idle {
    /// Records that the leader heard from the client of an existing session.
    pub(super) fn heard(&mut self, session: SessionId, now: Time) {
        self.heard.insert(session, now);
    }

    /// Returns the existing sessions that have to end.
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

/// Number of looks at the sessions within the time after which an idle session ends.
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
    fn a_leader_that_slept_restarts_idle_times() {
        let mut idle = Idle::default();
        assert_eq!(looks(&mut idle, 0..5, &[1]), []);
        assert_eq!(looks(&mut idle, 100..108, &[1]), []);
        assert_eq!(looks(&mut idle, 108..109, &[1]), [(108, 1)]);
    }
}
