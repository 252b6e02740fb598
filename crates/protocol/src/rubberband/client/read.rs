//! A read: its attempts, and the pieces of its answer.
//!
//! An attempt goes to processes that together hold what is asked for, and one answer is made of what they say of one position.
//! It may take as long as those who are at it say that they are; whoever is silent is passed over in the next attempt, and a
//! read that nobody is heard to be at is given up.
//!
//! **A read at which processes die** may be the reason. A process has died if it was removed while the read was there, or
//! its link was lost and has not come back: a cut is no death. After the first death the read is asked once more, and only
//! of processes without which every range of theirs would keep a complete replica. At the second death, or where none would
//! remain, it fails ([`ClientError::Died`]), once it is certain that nobody was merely cut off. A read of many ranges is at
//! many processes at once; the one that died may have been the one with the row that kills. Whoever has told the answer of some
//! ranges is *proven* for them, and not expected to die of them; of others that it holds it may still die. Where too many are not
//! proven, some are *probed* first: those at which it has been already, or else one alone, begin to answer what they are to read,
//! and their answers are thrown away.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Answered, Client, ClientError, ClientEvent, ClientSettings,
    request::{Kind, TRIES_MAX},
};
use crate::{
    ecast::{Class, MemberCommand, Position},
    id::{ProcessId, RequestId},
    rubberband::{
        Assignment, DataHeader, DataKind, Direct, Message, Range, Reply, ReplyContent, Spent, StorageState,
        WriteName, placement::covers, refusal,
    },
    seam::{Context, Destination, Input, Sink},
    strength::Strength,
    time::{Duration, Time},
};

/// A read that has not been answered in full.
pub(super) struct Read {
    strength: Strength,
    table: u32,
    ranges: SmallVec<[Range; 2]>,
    operation: Bytes,
    parts: SmallVec<[Part; 4]>,
    /// What the first pieces of answers are about.
    begun: SmallVec<[Range; 5]>,
    covered: SmallVec<[Range; 5]>,
    at: Option<Position>,
    /// Whom the attempt probably went to.
    expected: SmallVec<[ProcessId; 4]>,
    /// The user has the beginning of the answer: it is given the rest of this one, or of none.
    is_told: bool,
    /// How many attempts there were.
    pub(super) tries: u32,
    /// How many of them nothing was heard of: the next is given more time. Those that were refused say nothing about it.
    silences: u32,
    /// Who was asked whether they are at it, and has not said so.
    asked: Vec<ProcessId>,
    /// Who never did in earlier attempts: others are asked if there are any.
    silent: Vec<ProcessId>,
    /// Processes that died while it was there, as far as is known.
    died: SmallVec<[ProcessId; 2]>,
    /// Processes that have told the answer of ranges.
    proven: SmallVec<[(ProcessId, Range); 4]>,
    /// The attempt is only to see who lives through it.
    probing: bool,
    /// The attempt has failed: no answer to it counts any more.
    pub(super) void: bool,
    /// The attempt has its place in the order.
    pub(super) ordered: bool,
    /// When there was news of the attempt last.
    heard: Time,
    /// When there was news of any, or the user was waited for.
    news: Time,
    /// When the attempt began.
    begun_at: Time,
}

/// The answer of one process, as far as it has come.
struct Part {
    from: ProcessId,
    pieces: u32,
    received: u64,
    /// What of it the user has taken.
    consumed: u64,
    ended: bool,
    spent: Spent,
    /// Pieces that the user does not have yet.
    held: SmallVec<[Bytes; 1]>,
}

/// Where the next attempt at a read goes.
enum Plan {
    /// To those who answer with this offset, which are probably these.
    Ask { offset: u32, expected: SmallVec<[ProcessId; 4]> },
    /// To these, to see whether they live through it.
    Probe(Vec<Assignment>),
    /// Nowhere yet: those who are to be asked are out of reach, or it is not certain who has died.
    Wait,
    /// Nowhere.
    Fail(ClientError),
}

/// How much of the latency that is remembered the newest read makes up.
const LATENCY_PART: u32 = 64;

impl Read {
    /// One that has not been attempted yet.
    pub(super) fn new(
        strength: Strength,
        table: u32,
        ranges: SmallVec<[Range; 2]>,
        operation: Bytes,
        now: Time,
    ) -> Self {
        Read {
            strength,
            table,
            ranges,
            operation,
            parts: SmallVec::new(),
            begun: SmallVec::new(),
            covered: SmallVec::new(),
            at: None,
            expected: SmallVec::new(),
            is_told: false,
            tries: 0,
            silences: 0,
            asked: Vec::new(),
            silent: Vec::new(),
            died: SmallVec::new(),
            proven: SmallVec::new(),
            probing: false,
            void: false,
            ordered: false,
            heard: now,
            news: now,
            begun_at: now,
        }
    }

    /// Whether `process` is to answer it, or does.
    pub(super) fn concerns(&self, process: ProcessId) -> bool {
        self.expected.contains(&process) || self.parts.iter().any(|part| part.from == process)
    }

    /// Whether its attempt may be answered by `process`, of which nothing has come.
    pub(super) fn may_await(&self, process: ProcessId) -> bool {
        let expected = self.expected.is_empty() || self.expected.contains(&process);
        !self.void && expected && self.parts.iter().all(|part| part.from != process)
    }

    /// Whether `process` may be at it.
    fn is_at(&self, process: ProcessId) -> bool {
        self.concerns(process) && !self.has_ended(process) || self.silent.contains(&process)
    }

    /// A process is out of reach, or removed: it has died, unless it `left`.
    pub(super) fn lost(&mut self, process: ProcessId, left: bool) {
        if left {
            self.died.retain(|died| *died != process);
        } else if self.is_at(process) && !self.died.contains(&process) {
            self.died.push(process);
        }
    }

    /// Those who live have not died.
    pub(super) fn revive(&mut self, lives: impl Fn(&ProcessId) -> bool) {
        self.died.retain(|died| !lives(died));
    }

    /// Those who have not been seen to live through what is assigned to them.
    fn unproven(&self, assigned: &[Assignment]) -> Vec<ProcessId> {
        assigned.iter().filter(|it| !self.is_proven(it)).map(|it| it.process).collect()
    }

    fn is_proven(&self, assigned: &Assignment) -> bool {
        let told = self.proven.iter().filter(|(process, _)| *process == assigned.process);
        let told: SmallVec<[Range; 4]> = told.map(|(_, range)| *range).collect();
        assigned.held.iter().all(|range| covers(&told, *range))
    }

    /// What `process` has answered; it begins with nothing.
    fn part(&mut self, process: ProcessId) -> &mut Part {
        let place = self.parts.iter().position(|part| part.from == process).unwrap_or_else(|| {
            self.parts.push(Part {
                from: process,
                pieces: 0,
                received: 0,
                consumed: 0,
                ended: false,
                spent: Spent::default(),
                held: SmallVec::new(),
            });
            self.parts.len() - 1
        });
        &mut self.parts[place]
    }

    /// The pieces that the user does not have yet, by process.
    pub(super) fn hand_over(&mut self) -> Vec<Answered> {
        let untold = self.parts.iter_mut().filter(|part| !part.held.is_empty());
        let answered = untold.map(|part| Answered {
            from: part.from,
            spent: part.spent,
            pieces: std::mem::take(&mut part.held),
            ended: part.ended,
        });
        let mut answered: Vec<Answered> = answered.collect();
        answered.sort_unstable_by_key(|part| part.from);
        answered
    }

    fn has_ended(&self, process: ProcessId) -> bool {
        self.parts.iter().any(|part| part.from == process && part.ended)
    }

    /// The user has taken so many bytes of one process's pieces in all.
    pub(super) fn consumed(&mut self, from: ProcessId, bytes: u64) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.from == from) {
            part.consumed = part.consumed.max(bytes);
        }
    }

    /// How long it may go without news. However often nothing was heard, the next who are asked have time to say that they
    /// are at it before the read is given up.
    fn patience(&self, settings: &ClientSettings) -> Duration {
        let longer = settings.patience * (1 << self.silences.min(TRIES_MAX));
        longer.min(settings.read_wait / 4).max(settings.patience)
    }

    /// Who has not told all that is expected of them.
    fn owing(&self) -> Vec<ProcessId> {
        self.expected.iter().copied().filter(|process| !self.has_ended(*process)).collect()
    }

    /// Whether it needs a place in the order, or the leader's stamp, and nothing has come of that yet.
    pub(super) fn waits_for_order(&self) -> bool {
        self.strength != Strength::Basic && !self.ordered && self.parts.is_empty()
    }

    /// Whether it goes on when the user takes more, and only then.
    fn waits_for_user(&self) -> bool {
        let begun = self.ranges.iter().all(|range| covers(&self.begun, *range));
        let untaken = |part: &Part| part.ended || part.consumed < part.received;
        !self.void && begun && self.parts.iter().all(untaken)
    }
}

impl Client {
    /// Begins another attempt; what came of the one before is void.
    pub(super) fn start_read(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        if let Some(process) = self.out_of_reach(cx.now, token) {
            return self.fail(cx.now, token, ClientError::Unreached { process }, out);
        }
        let random = (cx.random)() as u32;
        let request = self.requests.get_mut(&token).expect("a live request");
        let Kind::Read(read) = &mut request.kind else { panic!("only reads are attempted again") };
        read.silent.append(&mut read.asked);
        let request = &self.requests[&token];
        let Kind::Read(read) = &request.kind else { unreachable!("just seen") };
        let (offset, expected, probes) = match self.plan(read, random) {
            Plan::Ask { offset, expected } => (offset, expected, Vec::new()),
            Plan::Probe(probes) => (0, probes.iter().map(|probe| probe.process).collect(), probes),
            Plan::Wait => return self.retry_soon(cx, request.attempt),
            Plan::Fail(error) => return self.fail(cx.now, token, error, out),
        };
        if read.is_told {
            // Another attempt would tell the user again what it has.
            return self.fail(cx.now, token, ClientError::Broken, out);
        }
        let attempt = self.new_attempt(token);
        let request = self.requests.get_mut(&token).expect("a live request");
        let before = std::mem::replace(&mut request.attempt, attempt);
        self.attempts.remove(&before);
        let Kind::Read(read) = &mut request.kind else { panic!("only reads are attempted again") };
        cancel_parts(before, read, out);
        let patience = read.patience(&self.settings);
        self.retries += u64::from(read.tries > 0);
        read.tries += 1;
        read.void = false;
        read.probing = !probes.is_empty();
        read.ordered = false;
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
        // Whoever has not been reached when its time is over is waited for no longer.
        let reached = read.expected.iter().filter_map(|process| self.unreached.get(process));
        let over = reached.map(|it| it.since + self.settings.unreached_after).filter(|over| *over > cx.now);
        let look = over.chain([cx.now + patience]).min().unwrap_or(cx.now);
        self.look_after_read_at(token, look);
        if strength == Strength::Sequential {
            // An attempt that still waits to be sent would only be one read more.
            self.member_input(cx, Input::Command(MemberCommand::Withdraw { token: before }), out);
        }
        match strength {
            _ if !probes.is_empty() => self.send_parts(attempt, probes, &operation, out),
            Strength::Sequential => {
                self.membership.submit(cx, attempt, Class::Data, header.encode(&operation), out);
            }
            Strength::Snapshot => {
                let body = header.encode(&operation);
                self.member_input(cx, Input::Command(MemberCommand::Inject { token: attempt, body }), out);
            }
            Strength::Basic => self.send_basic(cx, token, offset, operation, out),
        }
    }

    /// Where the next attempt at a read goes.
    fn plan(&self, read: &Read, random: u32) -> Plan {
        let Some(config) = self.membership.config() else {
            return Plan::Ask { offset: random, expected: SmallVec::new() };
        };
        // Reads of one place take turns among its replicas. Those of many are all divided alike, so that a process scans
        // the same rows for all of them; another division is tried when that one came to nothing.
        let wide = || read.ranges.iter().map(|range| config.count_segments(*range)).sum::<usize>() > 1;
        let first = if read.tries == 0 && wide() { 0 } else { random };
        // A process that is not heard cannot answer.
        let heard = |process: &ProcessId| self.linked.contains(process) && !read.silent.contains(process);
        let readers = |offset: u32| config.readers(&read.ranges, offset).unwrap_or_default();
        let offsets = (0..u32::from(config.replicas)).map(|turn| first.wrapping_add(turn));
        let Some(&process) = read.died.last() else {
            let mut divisions = offsets.map(|offset| (offset, readers(offset)));
            let audible = divisions.find(|(_, expected)| expected.iter().all(heard));
            let (offset, expected) = audible.unwrap_or_else(|| (first, readers(first)));
            return Plan::Ask { offset, expected };
        };
        let again = read.died.len() > 1;
        // Of those who are left, each may die, for all that is known, and nothing would be lost.
        let expendable = |assigned: &Assignment| {
            !read.died.contains(&assigned.process)
                && (read.is_proven(assigned) || config.can_spare(&[assigned.process], &read.died))
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
                true => Plan::Fail(ClientError::Died { process, again }),
                false => Plan::Wait,
            };
        }
        let audible = |parts: &[Assignment]| parts.iter().all(|part| heard(&part.process));
        let mut audible = divisions.into_iter().filter(|(_, parts)| audible(parts)).peekable();
        let Some((_, probed)) = audible.peek().cloned() else { return Plan::Wait };
        let harmless = |parts: &[Assignment]| config.can_spare(&read.unproven(parts), &read.died);
        if let Some((offset, parts)) = audible.find(|(_, parts)| harmless(parts)) {
            return Plan::Ask { offset, expected: parts.iter().map(|part| part.process).collect() };
        }
        // To those at which it has been already no risk is added.
        let (mut risked, others): (Vec<_>, Vec<_>) =
            read.unproven(&probed).into_iter().partition(|process| read.is_at(*process));
        if risked.is_empty() {
            risked.extend(others.first());
        }
        Plan::Probe(probed.into_iter().filter(|part| risked.contains(&part.process)).collect())
    }

    /// Asks these directly, each for what it holds.
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
        let Kind::Read(read) = &request.kind else { panic!("only reads are basic") };
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

    /// The leader is not known, or there is nobody to deliver to: as far as we know for good, or for now.
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

    /// Something came of an attempt.
    pub(super) fn read_answered(
        &mut self,
        cx: &mut Context<'_>,
        token: u64,
        from: ProcessId,
        reply: Reply,
        out: &mut dyn Sink<Self>,
    ) {
        let request = self.requests.get_mut(&token).expect("an attempt has its request");
        let attempt = request.attempt;
        let Kind::Read(read) = &mut request.kind else { panic!("only reads are answered in pieces") };
        if matches!(reply.content, ReplyContent::Answer(_)) && reply.piece == 0 {
            read.proven.extend(reply.ranges.iter().map(|range| (from, *range)));
        }
        match reply.content {
            // What came before it came to nothing.
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
                let is_told = read.is_told;
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
                match is_told {
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
                let gathered = first && read.ranges.iter().all(|range| covers(&read.begun, *range));
                let complete = reply.last && read.ranges.iter().all(|range| covers(&read.covered, *range));
                let at = if one_cut { reply.at } else { Position(0) };
                if gathered {
                    if !complete {
                        read.is_told = true;
                        out.emit(ClientEvent::Begun { token, parts: read.hand_over() });
                    }
                    let took = cx.now.since(read.begun_at);
                    self.latency = (self.latency * (LATENCY_PART - 1) + took) / LATENCY_PART;
                }
                if complete {
                    self.done(token, at, out);
                }
            }
            ReplyContent::NoRoom => self.fail(cx.now, token, ClientError::NoRoom { process: from }, out),
            ReplyContent::Untaken => self.fail(cx.now, token, ClientError::Untaken { process: from }, out),
            _ => self.retry_soon(cx, attempt),
        }
    }

    /// Looks after a read at that time, or when it would have to be given up.
    fn look_after_read_at(&mut self, token: u64, at: Time) {
        let request = self.requests.get(&token).expect("a live request");
        let Kind::Read(read) = &request.kind else { panic!("only reads are looked after so") };
        let end = read.news + self.settings.read_wait;
        self.look_later(token, at.min(end));
    }

    /// A process that this read needs, however it is divided, and that has been out of reach for too long.
    fn out_of_reach(&self, now: Time, token: u64) -> Option<ProcessId> {
        if self.unreached.is_empty() {
            return None;
        }
        let Kind::Read(read) = &self.requests[&token].kind else { panic!("only reads need a process") };
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

    /// Looks after a read whose time has come.
    pub(super) fn look_after_read(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        let lacking = self.out_of_reach(cx.now, token);
        let request = self.requests.get_mut(&token).expect("a live request");
        let attempt = request.attempt;
        let Kind::Read(read) = &mut request.kind else { panic!("only reads are looked after so") };
        if read.waits_for_user() {
            read.news = cx.now;
            self.look_after_read_at(token, cx.now + self.settings.patience);
        } else if let Some(process) = lacking {
            self.fail(cx.now, token, ClientError::Unreached { process }, out);
            self.member_input(cx, Input::Command(MemberCommand::Withdraw { token: attempt }), out);
        } else if cx.now >= read.news + self.settings.read_wait {
            self.fail(cx.now, token, ClientError::Unanswered, out);
            // If it still waits to be sent, nobody need do it any more. What the member says of that concerns nobody.
            self.member_input(cx, Input::Command(MemberCommand::Withdraw { token: attempt }), out);
        } else if !read.void && cx.now < read.heard + self.settings.patience {
            let at = read.heard + self.settings.patience;
            self.look_after_read_at(token, at);
        } else if !read.void && read.asked.is_empty() && !read.owing().is_empty() {
            // It may just take long. Who is at it says so, and is waited for; who is not, or is silent, is not.
            read.asked = read.owing();
            let ask = Direct::AskRead { token: attempt };
            out.send(Destination::Many(read.asked.clone()), Message::Direct(ask), None);
            let after = read.patience(&self.settings);
            self.look_after_read_at(token, cx.now + after);
        } else {
            read.silences += u32::from(!read.void);
            self.start_read(cx, token, out);
        }
    }
}

/// Has those who work on an attempt's answer, or still hold parts of it, give it up.
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
