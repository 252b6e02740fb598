//! Stopping for a moment: who leads hands the lead over first, and nobody is voted out for it.
//!
//! Both are guesses of the kind that a detector makes: they say when to try, and nothing rests on them. A successor is elected as
//! any leader is. It stands at once, with a log that lacks nothing, and the others let it.
//!
//! All members remember who is away, because whoever leads next must know. Who is back is judged anew: it was suspected while it was
//! away, and would be voted out for that the moment it returns.

use super::{Ballot, Context, Core, Duration, Message, Paxos, ProcessId, Reign, Sink, State, leader::Phase};
use crate::time::Time;

impl Paxos {
    /// This process is about to stop for a moment.
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

    /// The leader would have `successor` lead.
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

    /// Another member is about to stop for a moment.
    pub(super) fn others_pause(&mut self, from: ProcessId, now: Time) {
        self.core.away.retain(|_, until| now < *until);
        if self.core.is_member(from) {
            self.core.away.insert(from, now + self.core.settings.away_max);
        }
    }

    /// There is a link to this member again: it is back if it was away, and what it was suspected of meanwhile is over.
    pub(super) fn returned(&mut self, member: ProcessId) {
        if self.core.away.remove(&member).is_some()
            && let State::Leader(reign) = &mut self.state
            && let Some(progress) = reign.peers.get_mut(&member)
        {
            progress.suspected = None;
        }
    }
}

impl Reign {
    /// The member that holds most of the log, and is fed as it grows.
    fn successor(&self, core: &Core, now: Time) -> Option<ProcessId> {
        let well = |progress: &&super::leader::Progress| {
            progress.member
                && progress.phase == Phase::Streaming
                && progress.suspected.is_none()
                && core.away.get(&progress.peer.id).is_none_or(|until| *until < now)
        };
        let best = self.peers.values().filter(well).max_by_key(|progress| (progress.acked, progress.peer.id));
        best.map(|progress| progress.peer.id)
    }
}

/// So many intervals others let the successor try first.
const PATIENCE: u32 = 6;
