//! A read: its attempts, and the pieces of its answer.
//!
//! An attempt goes to processes that together hold the ranges. One answer is made of the pieces of these
//! processes, all of one position. The attempt may take as long as the processes say that they execute it.
//! The next attempt avoids a process that stays silent. The client gives up a read if no process reports that
//! it executes the read.
//!
//! **A read that kills processes.** If processes die while they execute a read, the read may be the reason. A
//! process has died if it was removed during the read, or if its link was lost and has not come back; a cut
//! link is no death. After the first death the client sends the read once more, and only to processes without
//! which each of their ranges would keep a complete replica. The read fails ([`ClientError::Died`]) at the
//! second death, or if no complete replica would remain, once it is certain that no process was merely cut
//! off.
//!
//! A read of many ranges runs at many processes at once, and only one range may hold the row that kills. A
//! process that has sent the answer for some ranges is *proven* for them: these do not kill it, but its other
//! ranges still may. If too many processes are unproven, the client first *probes*: some of them begin to
//! answer, and the client drops their answers. It probes processes that the read has reached already, or else
//! a single process that the read has not reached.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Client, ClientError, ClientEvent,
    progress::{Kind, OpenRequest, Read},
};
use crate::{
    ecast::{Class, MemberCommand},
    id::{ProcessId, RequestId},
    rubberband::{
        Assignment, DataHeader, DataKind, Direct, LATEST_SINCE, Message, Reply, ReplyContent, StorageState,
        WriteName, refusal,
    },
    seam::{Context, Destination, Input, Sink},
    strength::Strength,
    time::Time,
};

/// The destination of a read's next attempt.
enum NextAttempt {
    /// The next attempt goes to the processes that this offset selects, which are probably `expected`.
    Ask { offset: u32, expected: SmallVec<[ProcessId; 4]> },
    /// The next attempt goes to these processes, to test whether they survive the read.
    Probe(Vec<Assignment>),
    /// The read has no destination yet: needed processes are out of reach, or a death is not certain.
    Wait,
    /// No process can answer the read, so it fails with this error.
    Fail(ClientError),
}

/// With this number of open requests or more, reads of the latest state go through the order. There they wait
/// for credit, so the queues of routers and storage processes stay short.
const INJECTING_REQUESTS_MAX: usize = 16_384;

/// Divisor: the newest read contributes 1/64 to the average latency.
const LATENCY_PART: u32 = 64;

impl Client {
    /// Begins the next attempt and drops the pieces of the previous one.
    pub(super) fn start_read(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        if let Some(process) = self.out_of_reach(cx.now, token) {
            return self.fail(cx.now, token, ClientError::Unreached { process }, out);
        }
        let random = (cx.random)() as u32;
        let request = self.requests.get_mut(&token).expect("the request is open");
        let Kind::Read(read) = &mut request.kind else { panic!("only a read is attempted again here") };
        read.silent.append(&mut read.asked);
        let request = &self.requests[&token];
        let Kind::Read(read) = &request.kind else { unreachable!("just seen") };
        let (offset, expected, probes) = match self.plan(read, random) {
            NextAttempt::Ask { offset, expected } => (offset, expected, Vec::new()),
            NextAttempt::Probe(probes) => (0, probes.iter().map(|probe| probe.process).collect(), probes),
            NextAttempt::Wait => return self.retry_soon(cx, request.attempt),
            NextAttempt::Fail(error) => return self.fail(cx.now, token, error, out),
        };
        if read.user_has_begun {
            // A further attempt would give the user the beginning of the answer a second time, so the read
            // fails.
            return self.fail(cx.now, token, ClientError::Broken, out);
        }
        let attempt = self.new_attempt(token);
        let request = self.requests.get_mut(&token).expect("the request is open");
        let before = std::mem::replace(&mut request.attempt, attempt);
        self.attempts.remove(&before);
        let Kind::Read(read) = &mut request.kind else { panic!("only a read is attempted again here") };
        cancel_parts(before, read, out);
        let patience = read.patience(&self.settings);
        self.retries += u64::from(read.tries > 0);
        read.tries += 1;
        read.void = false;
        read.probing = !probes.is_empty();
        read.ordered = false;
        read.unconfirmed = false;
        read.heard = Time(0);
        read.begun_at = cx.now;
        read.parts.clear();
        read.begun.clear();
        read.covered.clear();
        read.at = None;
        read.expected = expected;
        let header = DataHeader {
            kind: DataKind::Read,
            token: attempt,
            name: WriteName {
                request: RequestId { session: self.membership.me.incarnation.0, number: 0 },
                print: 0,
                repeated: false,
            },
            offset,
            table: read.table,
            ranges: read.ranges.clone(),
        };
        let (strength, operation) = (read.strength, read.operation.clone());
        // The read stops waiting for a process that is still unreached after `unreached_after`.
        let reached = read.expected.iter().filter_map(|process| self.unreached.get(process));
        let over = reached.map(|it| it.since + self.settings.unreached_after).filter(|over| *over > cx.now);
        let look = over.chain([cx.now + patience]).min().unwrap_or(cx.now);
        self.look_after_read_at(token, look);
        let knows = self.membership.config().is_some_and(|config| config.routing >= LATEST_SINCE);
        let injects = knows && self.requests.len() <= INJECTING_REQUESTS_MAX;
        if strength == Strength::Sequential && !injects {
            // An earlier attempt that has not been sent is withdrawn, because it would only add a read.
            self.member_input(cx, Input::Command(MemberCommand::Withdraw { token: before }), out);
        }
        match strength {
            _ if !probes.is_empty() => self.send_parts(attempt, probes, &operation, out),
            Strength::Sequential if !injects => {
                self.membership.submit(cx, attempt, Class::Data, header.encode(&operation), out);
            }
            Strength::Sequential | Strength::Snapshot => {
                let latest = strength == Strength::Sequential;
                let request = self.requests.get_mut(&token).expect("the request is open");
                if let Kind::Read(read) = &mut request.kind {
                    read.unconfirmed = latest;
                }
                let inject =
                    MemberCommand::Inject { token: attempt, latest, body: header.encode(&operation) };
                self.member_input(cx, Input::Command(inject), out);
            }
            Strength::Basic => self.send_basic(cx, token, offset, operation, out),
        }
    }

    /// Decides where the next attempt goes.
    fn plan(&self, read: &Read, random: u32) -> NextAttempt {
        let Some(config) = self.membership.config() else {
            return NextAttempt::Ask { offset: random, expected: SmallVec::new() };
        };
        // Reads of a single segment take turns among the segment's replicas. Reads of many segments all use
        // the same division at first, so that a process scans the same rows for all these reads. Later
        // attempts use other divisions.
        let wide = || read.ranges.iter().map(|range| config.count_segments(*range)).sum::<usize>() > 1;
        let first = if read.tries == 0 && wide() { 0 } else { random };
        // A process without a link, or one that was silent in an earlier attempt, is not expected to answer.
        let heard = |process: &ProcessId| self.linked.contains(process) && !read.silent.contains(process);
        let readers = |offset: u32| config.readers(&read.ranges, offset).unwrap_or_default();
        let offsets = (0..u32::from(config.replicas)).map(|turn| first.wrapping_add(turn));
        let Some(&process) = read.died.last() else {
            let mut divisions = offsets.map(|offset| (offset, readers(offset)));
            let audible = divisions.find(|(_, expected)| expected.iter().all(heard));
            let (offset, expected) = audible.unwrap_or_else(|| (first, readers(first)));
            return NextAttempt::Ask { offset, expected };
        };
        let again = read.died.len() > 1;
        // Whether a process may be asked: if it died of the read, too, no range would lose its last complete
        // replica.
        let expendable = |assigned: &Assignment| {
            !read.died.contains(&assigned.process)
                && (read.is_proven(assigned) || config.survives_loss_of(&[assigned.process], &read.died))
        };
        let assigned = |offset: u32| config.assign_read(&read.ranges, offset).unwrap_or_default();
        let divisions: Vec<(u32, Vec<Assignment>)> = offsets
            .map(|offset| (offset, assigned(offset)))
            .filter(|(_, parts)| !parts.is_empty() && parts.iter().all(expendable))
            .collect();
        if again || divisions.is_empty() {
            let state = |process| config.storage.get(process);
            let certain = |process| state(process).is_none_or(|it| *it == StorageState::Unreachable);
            return match read.died.iter().all(certain) {
                true => NextAttempt::Fail(ClientError::Died { process, again }),
                false => NextAttempt::Wait,
            };
        }
        let audible = |parts: &[Assignment]| parts.iter().all(|part| heard(&part.process));
        let mut audible = divisions.into_iter().filter(|(_, parts)| audible(parts)).peekable();
        let Some((_, probed)) = audible.peek().cloned() else { return NextAttempt::Wait };
        let harmless = |parts: &[Assignment]| config.survives_loss_of(&read.unproven(parts), &read.died);
        if let Some((offset, parts)) = audible.find(|(_, parts)| harmless(parts)) {
            return NextAttempt::Ask { offset, expected: parts.iter().map(|part| part.process).collect() };
        }
        // Probing a process that the read has already reached adds no risk.
        let (mut risked, others): (Vec<_>, Vec<_>) =
            read.unproven(&probed).into_iter().partition(|process| read.is_at(*process));
        if risked.is_empty() {
            risked.extend(others.first());
        }
        NextAttempt::Probe(probed.into_iter().filter(|part| risked.contains(&part.process)).collect())
    }

    /// Sends the operation to these processes directly, each with its ranges.
    fn send_parts(
        &self,
        attempt: u64,
        assigned: Vec<Assignment>,
        operation: &Bytes,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(config) = self.membership.config() else { return };
        for Assignment { process, held, .. } in assigned {
            let basic = Direct::Basic {
                token: attempt,
                placement: config.placement,
                ranges: SmallVec::from_vec(held),
                operation: operation.clone(),
            };
            out.send(Destination::One(process), Message::Direct(basic), None);
        }
    }

    fn send_basic(
        &mut self,
        cx: &mut Context<'_>,
        token: u64,
        offset: u32,
        operation: Bytes,
        out: &mut dyn Sink<Self>,
    ) {
        let request = &self.requests[&token];
        let Kind::Read(read) = &request.kind else { panic!("only a read has the strength basic") };
        let attempt = request.attempt;
        let Some(config) = self.membership.config() else { return self.retry_soon(cx, attempt) };
        match config.assign_read(&read.ranges, offset) {
            Err(range) => {
                let error = ClientError::Rejected(refusal::range(range.low));
                self.fail(cx.now, token, error, out);
            }
            Ok(assigned) if assigned.is_empty() => {
                self.fail(cx.now, token, ClientError::Rejected(refusal::NO_RING), out);
            }
            Ok(assigned) if assigned.iter().all(|assignment| self.linked.contains(&assignment.process)) => {
                self.send_parts(attempt, assigned, &operation, out);
            }
            Ok(_) => self.retry_soon(cx, attempt),
        }
    }

    /// Handles an injection that no router accepted: the leader is unknown, or no destination exists. Fails
    /// the read if the configuration explains this for good; otherwise tries again.
    pub(super) fn not_injected(&mut self, cx: &mut Context<'_>, attempt: u64, out: &mut dyn Sink<Self>) {
        let Some(token) = self.attempts.get(&attempt).copied() else { return };
        let Kind::Read(read) = &self.requests[&token].kind else { return };
        let refused = self.membership.config().and_then(|config| {
            if config.ring.is_empty() {
                return Some(refusal::NO_RING);
            }
            if read.table != DataHeader::NO_TABLE && !config.tables.contains_key(&read.table) {
                return Some(refusal::NO_SUCH_TABLE);
            }
            config.assign_read(&read.ranges, 0).err().map(|range| refusal::range(range.low))
        });
        match refused {
            Some(refusal) => self.fail(cx.now, token, ClientError::Rejected(refusal), out),
            None => self.retry_soon(cx, attempt),
        }
    }

    /// Handles the confirmation that an attempt sees the latest state.
    pub(super) fn read_confirmed(&mut self, attempt: u64, out: &mut dyn Sink<Self>) {
        let Some(token) = self.attempts.get(&attempt).copied() else { return };
        let request = self.requests.get_mut(&token).expect("every attempt has a request");
        if let Kind::Read(read) = &mut request.kind
            && !read.void
            && std::mem::take(&mut read.unconfirmed)
        {
            self.hand_on(token, out);
        }
    }

    /// Begins the next attempt at each read that has no confirmation, because the attempt, or its
    /// confirmation, may be lost.
    pub(super) fn inject_again(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let unconfirmed = |request: &OpenRequest| match &request.kind {
            Kind::Read(read) => read.unconfirmed,
            Kind::Write(_) | Kind::Control => false,
        };
        let open = self.requests.iter().filter(|(_, request)| unconfirmed(request));
        for token in open.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.start_read(cx, token, out);
        }
    }

    /// Gives the user the beginning of an answer once each range has begun, and ends the read once all pieces
    /// are there.
    fn hand_on(&mut self, token: u64, out: &mut dyn Sink<Self>) {
        let request = self.requests.get_mut(&token).expect("the request is open");
        let Kind::Read(read) = &mut request.kind else { panic!("only a read is answered in pieces") };
        if read.unconfirmed {
            return;
        }
        if read.is_complete() {
            let at = read.at.unwrap_or_default();
            self.done(token, at, out);
        } else if !read.user_has_begun && read.has_begun() {
            read.user_has_begun = true;
            out.emit(ClientEvent::Begun { token, parts: read.hand_over() });
        }
    }

    /// Handles a piece of an answer, or another reply to an attempt.
    pub(super) fn read_answered(
        &mut self,
        cx: &mut Context<'_>,
        token: u64,
        from: ProcessId,
        reply: Reply,
        out: &mut dyn Sink<Self>,
    ) {
        let request = self.requests.get_mut(&token).expect("every attempt has a request");
        let attempt = request.attempt;
        let Kind::Read(read) = &mut request.kind else { panic!("only a read is answered in pieces") };
        if matches!(reply.content, ReplyContent::Answer(_)) && reply.piece == 0 {
            read.proven.extend(reply.ranges.iter().map(|range| (from, *range)));
        }
        match reply.content {
            // The attempt had failed by the time this reply came.
            content if read.void => {
                let part = read.part(from);
                part.ended |= reply.last && matches!(content, ReplyContent::Answer(_));
            }
            ReplyContent::Answer(_) if read.probing => {
                let part = read.part(from);
                part.ended |= reply.last;
                (read.heard, read.news) = (cx.now, cx.now);
                read.asked.retain(|process| *process != from);
                if read.expected.iter().all(|process| read.parts.iter().any(|part| part.from == *process)) {
                    self.start_read(cx, token, out);
                }
            }
            ReplyContent::Underway => {
                let waited = !read.asked.is_empty();
                read.asked.retain(|process| *process != from);
                if waited && read.asked.is_empty() {
                    read.heard = cx.now;
                    read.news = cx.now;
                }
            }
            ReplyContent::Answer(content) => {
                let one_cut = read.strength != Strength::Basic;
                if one_cut && *read.at.get_or_insert(reply.at) != reply.at {
                    return self.retry_soon(cx, attempt);
                }
                let user_has_begun = read.user_has_begun;
                let part = read.part(from);
                if part.pieces != reply.piece {
                    return self.retry_soon(cx, attempt);
                }
                part.pieces += 1;
                part.received += content.len() as u64;
                part.ended = reply.last;
                let first = reply.piece == 0;
                if first {
                    part.spent = reply.spent;
                }
                match user_has_begun {
                    true => out.emit(ClientEvent::Part { token, from, content, last: reply.last }),
                    false => part.held.push(content),
                }
                read.heard = cx.now;
                read.news = cx.now;
                read.asked.retain(|process| *process != from);
                if first {
                    read.begun.extend_from_slice(&reply.ranges);
                }
                if reply.last {
                    read.covered.extend_from_slice(&reply.ranges);
                }
                if first && read.has_begun() {
                    let took = cx.now.since(read.begun_at);
                    self.latency = (self.latency * (LATENCY_PART - 1) + took) / LATENCY_PART;
                }
                if first || reply.last {
                    self.hand_on(token, out);
                }
            }
            ReplyContent::NoRoom => self.fail(cx.now, token, ClientError::NoRoom { process: from }, out),
            ReplyContent::Untaken => self.fail(cx.now, token, ClientError::Untaken { process: from }, out),
            _ => self.retry_soon(cx, attempt),
        }
    }

    /// Schedules a check at `at`, or at the time when the read would have to be given up.
    fn look_after_read_at(&mut self, token: u64, at: Time) {
        let request = self.requests.get(&token).expect("the request is open");
        let Kind::Read(read) = &request.kind else { panic!("only a read is looked after as a read") };
        let end = read.news + self.settings.read_wait;
        self.look_later(token, at.min(end));
    }

    /// Returns a process that this read needs in every division and that has been out of reach for too long.
    fn out_of_reach(&self, now: Time, token: u64) -> Option<ProcessId> {
        if self.unreached.is_empty() {
            return None;
        }
        let Kind::Read(read) = &self.requests[&token].kind else {
            panic!("only a read needs a certain process")
        };
        let config = self.membership.config()?;
        let lacks = |process: &ProcessId| {
            let unreached = self.unreached.get(process);
            unreached.is_some_and(|it| now.since(it.since) >= self.settings.unreached_after)
        };
        let mut lacking = None;
        for offset in 0..u32::from(config.replicas) {
            let readers = config.readers(&read.ranges, offset).ok()?;
            lacking = Some(readers.into_iter().find(lacks)?);
        }
        lacking
    }

    /// Checks on a read whose time has come.
    pub(super) fn look_after_read(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        let lacking = self.out_of_reach(cx.now, token);
        let request = self.requests.get_mut(&token).expect("the request is open");
        let attempt = request.attempt;
        let Kind::Read(read) = &mut request.kind else { panic!("only a read is looked after as a read") };
        // The processes have begun to answer, so the read waits only for the lead router's confirmation.
        let confirmation_lost = read.unconfirmed && read.has_begun();
        if read.waits_for_user() {
            read.news = cx.now;
            self.look_after_read_at(token, cx.now + self.settings.patience);
        } else if let Some(process) = lacking {
            self.fail(cx.now, token, ClientError::Unreached { process }, out);
            self.member_input(cx, Input::Command(MemberCommand::Withdraw { token: attempt }), out);
        } else if cx.now >= read.news + self.settings.read_wait {
            self.fail(cx.now, token, ClientError::Unanswered, out);
            // If the attempt still waits to be sent, it is withdrawn, because the read has ended. No caller
            // awaits the member's report of the withdrawal.
            self.member_input(cx, Input::Command(MemberCommand::Withdraw { token: attempt }), out);
        } else if !read.void && cx.now < read.heard + self.settings.patience {
            let at = read.heard + self.settings.patience;
            self.look_after_read_at(token, at);
        } else if !read.void && read.asked.is_empty() && !read.owing().is_empty() && !confirmation_lost {
            // The read may just take long. A process that executes it replies, and the client goes on
            // waiting; otherwise the client tries elsewhere.
            read.asked = read.owing();
            let ask = Direct::AskRead { token: attempt };
            out.send(Destination::Many(read.asked.clone()), Message::Direct(ask), None);
            let after = read.patience(&self.settings);
            self.look_after_read_at(token, cx.now + after);
        } else {
            read.silent_attempts += u32::from(!read.void);
            self.start_read(cx, token, out);
        }
    }
}

/// Cancels an attempt at the processes that execute it or still hold pieces of its answer.
pub(super) fn cancel_parts(attempt: u64, read: &Read, out: &mut dyn Sink<Client>) {
    let answering = read.parts.iter().map(|part| part.from);
    let mut readers: Vec<ProcessId> = answering.chain(read.expected.iter().copied()).collect();
    readers.retain(|process| !read.has_ended(*process));
    readers.sort_unstable();
    readers.dedup();
    if !readers.is_empty() {
        let cancel = Direct::Cancel { token: attempt };
        out.send(Destination::Many(readers), Message::Direct(cancel), None);
    }
}

#[cfg(test)]
mod tests;
