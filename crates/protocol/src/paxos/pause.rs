//! Stopping for a moment: who leads hands the lead over first, and nobody is voted out for it.
//!
//! Both are guesses of the kind that a detector makes: they say when to try, and nothing rests on them. A successor is elected as
//! any leader is. It stands at once, with a log that lacks nothing, and the others let it.

use super::{Ballot, Context, Duration, Message, Paxos, ProcessId, Reign, Sink, State, leader::Phase};
use crate::time::Time;

impl Paxos {
    /// This process is about to stop for a moment.
    pub(super) fn pause(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        self.pausing = true;
        if self.core.settings.checkpoint_bytes.is_some() {
            self.core.send_all(self.core.others(), Message::Away, out);
        }
        if let State::Leader(reign) = &self.state
            && let Some(successor) = reign.successor(cx.now)
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
        let until = now + self.core.settings.away_max;
        if let State::Leader(reign) = &mut self.state
            && let Some(peer) = reign.peers.get_mut(&from)
        {
            peer.away = Some(until);
        }
    }
}

impl Reign {
    /// There is a link to this member again: it is back if it was away.
    pub(super) fn returned(&mut self, member: ProcessId) {
        if let Some(progress) = self.peers.get_mut(&member) {
            progress.away = None;
        }
    }

    /// The member that holds most of the log, and is fed as it grows.
    fn successor(&self, now: Time) -> Option<ProcessId> {
        let well = |progress: &&super::leader::Progress| {
            progress.member
                && progress.phase == Phase::Streaming
                && progress.suspected.is_none()
                && progress.away.is_none_or(|until| until < now)
        };
        let best = self.peers.values().filter(well).max_by_key(|progress| (progress.acked, progress.peer.id));
        best.map(|progress| progress.peer.id)
    }
}

/// So many intervals others let the successor try first.
const PATIENCE: u32 = 6;
