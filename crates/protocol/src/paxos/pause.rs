//! Stopping for a moment: a leader first hands over the lead, and nobody is voted out for the stop.
//!
//! The handover and the protection from being voted out are guesses, like those of a detector: they decide
//! when to try, and no safety depends on them. The successor is elected like any leader. It stands at once,
//! with a complete log, and the others let it stand first.
//!
//! All members remember which members are away, because the next leader must know. When a member is back,
//! earlier suspicions of it are dropped. Otherwise it would be voted out at its return, because it was
//! suspected while it was away.
//!
//! A member that comes back from its disk counts each other member as away until it has a link to that
//! member. After a power cut or `quorate down` the members come up at different times, and the last one must
//! not be voted out.

use super::{
    Ballot, Context, Core, Duration, Message, Paxos, ProcessId, Reign, Sink, State, reign::FollowerPhase,
};
use crate::time::Time;

impl Paxos {
    /// Prepares this process to stop before a restart.
    pub(super) fn pause(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        self.pausing = true;
        if self.core.settings.checkpoint_bytes.is_some() {
            self.core.send_all(self.core.others(), Message::Away, out);
        }
        if let State::Leader(reign) = &self.state
            && let Some(successor) = reign.successor(&self.core, cx.now)
        {
            let ballot = reign.ballot;
            self.core.send_all(self.core.others(), Message::HandOver { ballot, successor }, out);
            self.lose_leader(cx, self.interval() * PATIENCE, out);
        }
        self.election = None;
        self.ready_from = None;
    }

    /// Handles a leader's message that `successor` should lead next.
    pub(super) fn succeed(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        ballot: Ballot,
        successor: ProcessId,
        out: &mut dyn Sink<Self>,
    ) {
        if self.core.leader != Some(ballot) || from != ballot.router {
            return;
        }
        if successor != cx.me || self.pausing {
            return self.lose_leader(cx, self.interval() * PATIENCE, out);
        }
        self.lose_leader(cx, Duration::ZERO, out);
        if self.core.concerns(cx.me) {
            self.stand(cx, out);
        }
    }

    /// Notes that another member is about to stop before a restart.
    pub(super) fn note_member_restart(&mut self, from: ProcessId, now: Time) {
        self.core.away.retain(|_, until| now < *until);
        if self.core.is_member(from) {
            self.core.away.insert(from, now + self.core.settings.away_max);
        }
    }

    /// Notes a new link to this member. If the member was away, it is back, and earlier suspicions of it end.
    pub(super) fn returned(&mut self, member: ProcessId) {
        if self.core.away.remove(&member).is_some()
            && let State::Leader(reign) = &mut self.state
            && let Some(progress) = reign.peers.get_mut(&member)
        {
            progress.suspected = None;
        }
    }
}

impl Core {
    /// Counts all other members as away, because they may have ended together with this process, and may
    /// still be starting.
    pub(super) fn count_others_as_away(&mut self, now: Time) {
        let until = now + self.settings.away_max;
        self.away = self.others().into_iter().map(|member| (member, until)).collect();
    }
}

impl Reign {
    /// Returns the member with the longest part of the log, among the members that follow closely.
    fn successor(&self, core: &Core, now: Time) -> Option<ProcessId> {
        let well = |progress: &&super::reign::Progress| {
            progress.member
                && progress.phase == FollowerPhase::Streaming
                && progress.suspected.is_none()
                && core.away.get(&progress.peer.id).is_none_or(|until| *until < now)
        };
        let best = self.peers.values().filter(well).max_by_key(|progress| (progress.acked, progress.peer.id));
        best.map(|progress| progress.peer.id)
    }
}

/// Number of intervals for which the other members let the successor stand first.
const PATIENCE: u32 = 6;
