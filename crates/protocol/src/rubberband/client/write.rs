//! A write: when it is done, which processes the client asks about it, and when the ranges may forget it.
//!
//! A write is done when it is stable and every range has answered. The ranges remember the write's result
//! (S6), so the client can ask for a lost answer again. The client tells the ranges to forget a write that
//! nobody will ask about any longer.

use smallvec::SmallVec;

use super::{
    Client, ClientError, ProcessAnswer,
    progress::{Kind, TRIES_MAX},
};
use crate::{
    ecast::{Class, Position},
    id::{ProcessId, RequestId},
    rubberband::{
        Config, Control, Direct, Message, Range, Reply, ReplyContent, WriteName, membership::INTERNAL,
        range::covers,
    },
    seam::{Context, Destination, Sink},
    time::{Duration, Time},
};

/// Maximum number of old writes, of unknown outcome or long in progress, that are remembered while later
/// writes are forgotten. If there are more such writes, the ranges remember everything from the first one
/// beyond this number on.
const KEPT_MAX: usize = 1024;

/// Number of steps into which the retained writes under made-up ids are divided; ids expire a step at a time.
const EXPIRIES: usize = 16;

impl Client {
    /// Returns the id of a write: the user's, or a new one.
    pub(super) fn name_write(&mut self, given: Option<RequestId>) -> RequestId {
        let request = given.unwrap_or_else(|| {
            self.number += 1;
            RequestId { session: self.session(), number: self.number }
        });
        if request.session == self.session() {
            // A number that the user chose must not be given to another write.
            self.number = self.number.max(request.number);
            self.writes.insert(request.number);
        }
        request
    }

    /// Ends the write if it is stable and answered for all its ranges. If an answer is missing, schedules a
    /// check.
    pub(super) fn finish_write(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        let request = self.requests.get_mut(&token).expect("the request is open");
        let Kind::Write(write) = &request.kind else { return };
        if !write.stable {
            return;
        }
        if write.ranges.iter().all(|range| covers(&write.covered, *range)) {
            if write.forgotten {
                return self.fail(cx.now, token, ClientError::Forgotten { applied: true }, out);
            }
            let at = write.at;
            self.done(token, at, out);
        } else if request.look_at.is_none() {
            let after = self.ask_after(token);
            self.look_later(token, cx.now + after);
        }
    }

    /// Returns how long to wait for an answer before asking the other replicas, which remember it. An answer
    /// is usually only slow. But if a replica or a link was lost since the write began, the answer was
    /// probably lost, too.
    fn ask_after(&self, token: u64) -> Duration {
        match &self.requests[&token].kind {
            Kind::Write(write) if write.doubted => {
                let after = self.settings.retry_after * (1 << write.asked.min(TRIES_MAX));
                after.min(self.settings.patience)
            }
            _ => self.settings.patience,
        }
    }

    /// Marks the writes to lost ranges, because a later holder of such a range knows nothing of them.
    pub(super) fn lose_ranges(&mut self, config: &Config) {
        for request in self.requests.values_mut() {
            if let Kind::Write(write) = &mut request.kind {
                let missing = write.ranges.iter().filter(|range| !covers(&write.covered, **range));
                write.lost |= missing.into_iter().any(|range| config.any_lost(&[*range]));
            }
        }
    }

    /// Handles a reply to a write.
    pub(super) fn write_answered(
        &mut self,
        cx: &mut Context<'_>,
        token: u64,
        from: ProcessId,
        reply: Reply,
        out: &mut dyn Sink<Self>,
    ) {
        let request = self.requests.get_mut(&token).expect("every attempt has a request");
        let Kind::Write(write) = &mut request.kind else { panic!("only a write gets the answer of a write") };
        match reply.content {
            ReplyContent::Answer(content) => {
                if reply.ranges.iter().all(|range| covers(&write.covered, *range)) {
                    return;
                }
                write.covered.extend_from_slice(&reply.ranges);
                write.at = write.at.max(reply.at);
                let pieces = SmallVec::from_buf([content]);
                write.answers.push(ProcessAnswer { from, spent: reply.spent, pieces, ended: true });
                self.finish_write(cx, token, out);
            }
            ReplyContent::Expired => self.fail(cx.now, token, ClientError::Expired, out),
            ReplyContent::OtherStatement => self.fail(cx.now, token, ClientError::OtherStatement, out),
            ReplyContent::Forgotten { applied: false } => {
                self.fail(cx.now, token, ClientError::Forgotten { applied: false }, out);
            }
            ReplyContent::Forgotten { applied: true } => {
                write.covered.extend_from_slice(&reply.ranges);
                write.at = write.at.max(reply.at);
                write.forgotten = true;
                self.finish_write(cx, token, out);
            }
            // The replica does not know the write yet, or knows a different position for the write. The
            // client asks again later.
            ReplyContent::Unknown | ReplyContent::Retry => {}
            ReplyContent::Underway | ReplyContent::NoRoom | ReplyContent::Untaken => self.refused += 1,
        }
    }

    /// Checks on a write, because the time for that has come, and asks the replicas for missing answers.
    pub(super) fn look_after_write(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        let request = self.requests.get_mut(&token).expect("the request is open");
        let attempt = request.attempt;
        let Kind::Write(write) = &mut request.kind else { panic!("only a write is looked after as a write") };
        let missing: SmallVec<[Range; 2]> =
            write.ranges.iter().copied().filter(|range| !covers(&write.covered, *range)).collect();
        let Some(config) = self.membership.config() else { return };
        let forgotten = !write.name.request.is_made_up() && config.is_forgotten(write.name.request);
        if (write.lost || write.stable && forgotten) && write.asked > 0 {
            // No replica is left that could answer, or the session is over and the ranges have forgotten the
            // id.
            return self.give_up(cx.now, token, out);
        }
        let replicas = config.replicas_of(&missing);
        let late = |process: &ProcessId| {
            self.unreached
                .get(process)
                .is_some_and(|it| cx.now.since(it.since) >= self.settings.unreached_after)
        };
        if write.stable && !replicas.is_empty() && replicas.iter().all(late) {
            // The write takes effect, but no replica in reach could report its result.
            return self.give_up(cx.now, token, out);
        }
        write.asked += u32::from(write.stable);
        let ask = Direct::Ask { name: write.name, token: attempt, ranges: missing };
        out.send(Destination::Many(replicas), Message::Direct(ask), None);
        let after = self.ask_after(token);
        self.look_later(token, cx.now + after);
    }

    /// Counts the end of a write under a made-up id. After each step of such writes, notes a position: ids
    /// first used up to it expire after enough later writes. `at` is the write's position if it was done.
    pub(super) fn ended(&mut self, name: WriteName, at: Position) {
        if !name.request.is_made_up() {
            return;
        }
        self.made_up += 1;
        let step = (self.settings.made_up_max / EXPIRIES).max(1);
        if self.made_up.is_multiple_of(step) {
            // The id was first used no later than the position of its answer. The noted positions never
            // decrease.
            let last = self.expiries.back().copied().unwrap_or_default();
            self.expiries.push_back(at.max(last).max(self.membership.member.delivered()));
        }
    }

    /// Expires made-up ids if this gateway has used enough later made-up ids.
    pub(super) fn expire(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        while self.expiries.len() > EXPIRIES {
            let through = self.expiries.pop_front().expect("the queue of expiries is longer than its limit");
            self.membership.submit(cx, INTERNAL, Class::Control, Control::Expire { through }.encode(), out);
        }
    }

    /// Lets the ranges forget writes that nobody will ask about any longer.
    pub(super) fn forget(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let over = |(since, number): &(Time, u64)| {
            cx.now.since(*since) > self.settings.retention
                || self.number - *number > self.settings.remembered_max
        };
        while self.maybe.front().is_some_and(over) {
            self.maybe.pop_front();
        }
        // The ranges must not forget the last `remembered_min` request numbers: the user may have drawn some
        // of them and not used them yet.
        let every = self.settings.forget_every;
        let mut below = self.number.saturating_sub(self.settings.remembered_min);
        if below < self.forgotten + every || self.number < self.forget_check_at {
            return;
        }
        let stuck = self.maybe.iter().map(|(_, number)| *number).chain(self.writes.range(..below).copied());
        let mut kept: Vec<u64> = stuck.filter(|number| *number < below).collect();
        kept.sort_unstable();
        kept.dedup();
        if let Some(next) = kept.get(KEPT_MAX) {
            below = *next;
            kept.truncate(KEPT_MAX);
        }
        if below < self.forgotten + every {
            self.forget_check_at = self.number + every / 16;
            return;
        }
        self.forgotten = below;
        let forget = Control::Forget { session: self.session(), below, kept };
        self.membership.submit(cx, INTERNAL, Class::Control, forget.encode(), out);
    }
}

#[cfg(test)]
mod tests;
