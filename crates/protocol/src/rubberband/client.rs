//! A client (a gateway): submits for users and collects the parts of their answers.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Config, Control, DataHeader, DataKind, Direct, Message, Range, Reply, ReplyContent, RequestId, Role,
    Spent,
    membership::{Delivered, INTERNAL, Membership},
    refusal,
    verdicts::covers,
};
use crate::{
    ecast::{Class, Member, MemberCommand, MemberSettings, Outcome, Position, Refusal},
    id::{Peer, ProcessId},
    paxos,
    seam::{Context, Destination, Input, Protocol, Sink},
    time::{Duration, Time},
};

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// How often signs of life are sent.
    pub alive_every: Duration,
    /// How long to wait before a read is tried again, or a missing answer is asked for.
    pub retry_after: Duration,
    /// How long a read may go without news before those who were to answer are asked whether they are at it; and how long
    /// they may take to say so before it is tried elsewhere.
    pub patience: Duration,
    /// How long a write that may have been applied can be asked about by its id.
    pub retention: Duration,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            alive_every: Duration::from_millis(50),
            retry_after: Duration::from_millis(30),
            patience: Duration::from_secs(2),
            retention: Duration::from_secs(600),
        }
    }
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReadStrength {
    /// What each replica has; several ranges may be of different ages.
    Basic,
    /// One consistent cut, of unstated age.
    Snapshot,
    /// A cut after everything acknowledged before: through the total order.
    Sequential,
}

/// What a client may be asked. Requests with a token end in exactly one [`ClientEvent::Done`] or [`ClientEvent::Failed`].
#[derive(Clone, Debug)]
pub enum ClientCommand {
    /// Write.
    Write {
        /// The user's name for it.
        token: u64,
        /// A name given by the user (an earlier write's, to repeat it, or a new one of this client's session, not far
        /// behind the newest); a new one when absent.
        request: Option<RequestId>,
        /// The table.
        table: u32,
        /// The ring keys concerned; disjoint.
        ranges: SmallVec<[Range; 2]>,
        /// Whether it can fail at run time.
        fallible: bool,
        /// What to do, opaque here.
        operation: Bytes,
    },
    /// Read.
    Read {
        /// The user's name for it.
        token: u64,
        /// How fresh.
        strength: ReadStrength,
        /// The table.
        table: u32,
        /// The ring keys concerned; disjoint.
        ranges: SmallVec<[Range; 2]>,
        /// What to read, opaque here.
        operation: Bytes,
    },
    /// Change the configuration.
    Control {
        /// The user's name for it.
        token: u64,
        /// How.
        control: Control,
    },
    /// So many bytes of one process's parts have been consumed in all.
    Consumed {
        /// Of which request.
        token: u64,
        /// Whose.
        from: ProcessId,
        /// How many.
        bytes: u64,
    },
    /// Stop waiting. Ends the request at once: a write with [`ClientError::NotSent`] or [`ClientError::MaybeApplied`].
    Cancel {
        /// Which request.
        token: u64,
    },
    /// Processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leave the cluster.
    Leave,
}

/// What a client tells.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// A piece of an answer.
    Part {
        /// Of which request.
        token: u64,
        /// Whose.
        from: ProcessId,
        /// The answer, opaque here.
        content: Bytes,
        /// Whether it is that process's last piece.
        last: bool,
        /// What it cost there.
        spent: Spent,
    },
    /// The write has its place in the order and will take effect, or fail, there: all that is open is when that is told.
    Ordered {
        /// Which request.
        token: u64,
    },
    /// All who are to answer the read have said that they are at it. Told again and again while it takes long.
    Underway {
        /// Which request.
        token: u64,
    },
    /// Every process that answers the read has told its first piece: no further ones will.
    Gathered {
        /// Which request.
        token: u64,
    },
    /// The read starts anew: what came so far is void.
    Restart {
        /// Which request.
        token: u64,
    },
    /// The request is answered in full.
    Done {
        /// Which request.
        token: u64,
        /// Its position, or stamp; 0 for control messages and basic reads.
        at: Position,
    },
    /// The request failed.
    Failed {
        /// Which request.
        token: u64,
        /// Why.
        error: ClientError,
    },
    /// A new configuration.
    Config(Arc<Config>),
    /// This process is out and must stop; it may come back as a new one.
    Wedged,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// It was never sent: repeat it freely.
    NotSent,
    /// It may have been applied, or still be: repeat it with this id.
    MaybeApplied {
        /// Its name.
        request: RequestId,
    },
    /// It was refused and applied nowhere.
    Rejected(Refusal),
    /// Its session is over; it was not executed.
    Expired,
}

/// A gateway's end of Rubberband.
pub struct Client {
    settings: ClientSettings,
    membership: Membership,
    linked: BTreeSet<ProcessId>,
    /// The last number given to a request, and to an attempt.
    number: u64,
    attempt: u64,
    requests: BTreeMap<u64, Request>,
    /// Attempt → request.
    attempts: BTreeMap<u64, u64>,
    /// When to look after requests again.
    look: BTreeSet<(Time, u64)>,
    /// Own writes whose fate was left open, with the instant of it.
    maybe: VecDeque<(Time, u64)>,
    /// Own writes under way.
    writes: BTreeSet<u64>,
    /// Below this number the ranges have been allowed to forget.
    forgotten: u64,
    refused: u64,
    retries: u64,
    /// How long the first pieces of reads' answers took of late.
    latency: Duration,
}

struct Request {
    attempt: u64,
    kind: Kind,
    look_at: Option<Time>,
}

enum Kind {
    Write(Write),
    Read(Read),
    Control,
}

struct Write {
    request: RequestId,
    ranges: SmallVec<[Range; 2]>,
    covered: Vec<Range>,
    stable: bool,
    at: Position,
    /// All replicas of one of its ranges were lost for good while it was under way, and how often it was asked about since.
    lost: bool,
    asked: u32,
    /// A replica or a link was lost while it was under way.
    doubted: bool,
}

struct Read {
    strength: ReadStrength,
    table: u32,
    ranges: SmallVec<[Range; 2]>,
    operation: Bytes,
    parts: BTreeMap<ProcessId, Part>,
    /// What the first pieces of answers are about.
    begun: Vec<Range>,
    covered: Vec<Range>,
    at: Option<Position>,
    /// Whom the attempt probably went to.
    expected: Vec<ProcessId>,
    /// Whether any piece was told to the user.
    told: bool,
    /// How many attempts there were.
    tries: u32,
    /// How many of them nothing was heard of: the next is given more time. Those that were refused say nothing about it.
    silences: u32,
    /// Who was asked whether they are at it, and has not said so.
    asked: Vec<ProcessId>,
    /// Who never did in earlier attempts: others are asked if there are any.
    silent: Vec<ProcessId>,
    /// The attempt has failed: no answer to it counts any more.
    void: bool,
    /// When there was news of it last.
    heard: Time,
    /// When the attempt began.
    begun_at: Time,
}

#[derive(Default)]
struct Part {
    pieces: u32,
    received: u64,
    /// What of it the user has taken.
    consumed: u64,
    ended: bool,
}

impl Read {
    /// How long it may go without news.
    fn patience(&self, settings: &ClientSettings) -> Duration {
        settings.patience * (1 << self.silences.min(TRIES_MAX))
    }

    /// Who has not told all that is expected of them.
    fn owing(&self) -> Vec<ProcessId> {
        let ended = |process: &&ProcessId| self.parts.get(process).is_some_and(|part| part.ended);
        self.expected.iter().filter(|process| !ended(process)).copied().collect()
    }

    /// Whether it goes on when the user takes more, and only then.
    fn waits_for_user(&self) -> bool {
        let begun = self.ranges.iter().all(|range| covers(&self.begun, *range));
        let untaken = |part: &Part| part.ended || part.consumed < part.received;
        !self.void && begun && self.parts.values().all(untaken)
    }
}

/// Own numbers between two messages that let the ranges forget.
const FORGET_EVERY: u64 = 16_384;
/// Own numbers that are remembered at least.
const FORGET_BEHIND: u64 = 65_536;
/// A write of unknown fate is given up for good when so many have been made after it, sooner than
/// [`ClientSettings::retention`] if need be: until then the ranges remember them all.
const REMEMBERED_MAX: u64 = 1 << 20;
/// With so many requests under way, what their users wait for is throughput.
const REQUESTS_MANY: usize = 16;
/// Input gathers then for this part of what an answer takes anyway, and no longer than so: turns are fewer, and batches
/// larger all along the way of requests and answers, down to the queries that share a scan.
const GATHERING_PART: u32 = 16;
const GATHERING_MAX: Duration = Duration::from_millis(2);
/// How much of the latency that is remembered the newest read makes up.
const LATENCY_PART: u32 = 64;
/// Attempts of a read are spaced by doubling, so often.
const TRIES_MAX: u32 = 5;

impl Client {
    /// A client that joins.
    pub fn new(me: Peer, name: String, settings: ClientSettings) -> Self {
        let member = MemberSettings::default();
        Client {
            membership: Membership::new(me, Role::Client, name, member, settings.alive_every),
            settings,
            linked: BTreeSet::new(),
            number: 0,
            attempt: 0,
            requests: BTreeMap::new(),
            attempts: BTreeMap::new(),
            look: BTreeSet::new(),
            maybe: VecDeque::new(),
            writes: BTreeSet::new(),
            forgotten: 0,
            refused: 0,
            retries: 0,
            latency: Duration::ZERO,
        }
    }

    /// The configuration at the last delivered position, once admitted.
    pub fn config(&self) -> Option<&Config> {
        self.membership.config()
    }

    /// The order's end in this process.
    pub fn member(&self) -> &Member {
        &self.membership.member
    }

    /// Requests under way.
    pub fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// How often reads were tried again.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Messages from peers that were refused.
    pub fn refused(&self) -> u64 {
        self.refused + self.membership.refused()
    }

    fn session(&self) -> u128 {
        self.membership.me.incarnation.0
    }

    fn member_input(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut impl Sink<Self>) {
        self.membership.handle(cx, input, out);
        while let Some(item) = self.membership.next(out) {
            self.on_delivered(cx, item, out);
        }
    }

    fn on_delivered(&mut self, cx: &mut Context<'_>, item: Delivered, out: &mut impl Sink<Self>) {
        match item {
            Delivered::Control { before, .. } => {
                let config =
                    self.membership.config().expect("a delivered control message leaves one").clone();
                for process in before.iter().flat_map(|before| before.storage.keys()) {
                    if !config.storage.contains_key(process) {
                        self.lost(cx, *process);
                        self.lose_ranges(&config);
                    }
                }
                out.emit(ClientEvent::Config(Arc::new(config)));
            }
            Delivered::Outcome { token: attempt, outcome } => self.on_outcome(cx, attempt, outcome, out),
            Delivered::NotSent { token: attempt } => {
                if let Some(token) = self.attempts.get(&attempt).copied() {
                    self.fail(cx.now, token, ClientError::NotSent, out);
                }
            }
            Delivered::NotInjected { token: attempt } => self.not_injected(cx, attempt, out),
            Delivered::Wedged => {
                for token in self.requests.keys().copied().collect::<Vec<_>>() {
                    self.give_up(cx.now, token, out);
                }
                out.emit(ClientEvent::Wedged);
            }
            Delivered::Data { .. } | Delivered::Injected { .. } => self.refused += 1,
        }
    }

    fn on_outcome(
        &mut self,
        cx: &mut Context<'_>,
        attempt: u64,
        outcome: Outcome,
        out: &mut impl Sink<Self>,
    ) {
        let Some(token) = self.attempts.get(&attempt).copied() else { return };
        let request = self.requests.get_mut(&token).expect("an attempt has its request");
        match (&mut request.kind, outcome) {
            (_, Outcome::Rejected(refusal::EXPIRED)) => self.fail(cx.now, token, ClientError::Expired, out),
            (_, Outcome::Rejected(refusal)) => self.fail(cx.now, token, ClientError::Rejected(refusal), out),
            (Kind::Control, Outcome::Stable) => self.done(token, Position(0), out),
            (Kind::Write(write), Outcome::Stable) => {
                write.stable = true;
                out.emit(ClientEvent::Ordered { token });
                self.finish_write(cx, token, out);
            }
            (Kind::Write(_) | Kind::Control, Outcome::MaybeApplied | Outcome::Wedged) => {
                self.give_up(cx.now, token, out);
            }
            (Kind::Read(_), Outcome::Stable) => {}
            (Kind::Read(_), Outcome::MaybeApplied | Outcome::Wedged) => self.retry_soon(cx, attempt),
        }
    }

    fn finish_write(&mut self, cx: &mut Context<'_>, token: u64, out: &mut impl Sink<Self>) {
        let request = self.requests.get_mut(&token).expect("asked about a live request");
        let Kind::Write(write) = &request.kind else { return };
        if !write.stable {
            return;
        }
        if write.ranges.iter().all(|range| covers(&write.covered, *range)) {
            let at = write.at;
            self.done(token, at, out);
        } else if request.look_at.is_none() {
            let after = self.ask_after(token);
            self.look_later(token, cx.now + after);
        }
    }

    /// How long to wait for an answer before the other replicas are asked, who remember. Mostly it is just slow; but if a
    /// replica or a link was lost while the write was under way, its answer probably was, too.
    fn ask_after(&self, token: u64) -> Duration {
        match &self.requests[&token].kind {
            Kind::Write(write) if write.doubted => {
                let after = self.settings.retry_after * (1 << write.asked.min(TRIES_MAX));
                after.min(self.settings.patience)
            }
            _ => self.settings.patience,
        }
    }

    fn look_later(&mut self, token: u64, at: Time) {
        let request = self.requests.get_mut(&token).expect("a live request");
        if let Some(before) = request.look_at.replace(at) {
            self.look.remove(&(before, token));
        }
        self.look.insert((at, token));
    }

    fn remove(&mut self, token: u64) -> Option<Request> {
        let request = self.requests.remove(&token)?;
        self.attempts.remove(&request.attempt);
        if let Some(at) = request.look_at {
            self.look.remove(&(at, token));
        }
        if let Kind::Write(write) = &request.kind
            && write.request.session == self.session()
        {
            self.writes.remove(&write.request.number);
        }
        Some(request)
    }

    fn done(&mut self, token: u64, at: Position, out: &mut impl Sink<Self>) {
        if let Some(request) = self.remove(token) {
            if let Kind::Write(write) = &request.kind
                && write.request.session == self.session()
            {
                // Repeated, and now its fate is known.
                self.maybe.retain(|(_, number)| *number != write.request.number);
            }
            out.emit(ClientEvent::Done { token, at });
        }
    }

    fn fail(&mut self, now: Time, token: u64, error: ClientError, out: &mut impl Sink<Self>) {
        let Some(request) = self.remove(token) else { return };
        if let Kind::Read(read) = &request.kind {
            cancel_parts(request.attempt, read, out);
        }
        if let ClientError::MaybeApplied { request } = error
            && request.session == self.session()
            && request.number > 0
        {
            self.maybe.push_back((now, request.number));
        }
        out.emit(ClientEvent::Failed { token, error });
    }

    /// The request ends without an answer.
    fn give_up(&mut self, now: Time, token: u64, out: &mut impl Sink<Self>) {
        let Some(request) = self.requests.get(&token) else { return };
        let error = match &request.kind {
            Kind::Write(write) => ClientError::MaybeApplied { request: write.request },
            Kind::Control => {
                ClientError::MaybeApplied { request: RequestId { session: self.session(), number: 0 } }
            }
            Kind::Read(_) => ClientError::NotSent,
        };
        self.fail(now, token, error, out);
    }

    // --- Reads -------------------------------------------------------------------------------------------------------

    fn new_attempt(&mut self, token: u64) -> u64 {
        self.attempt += 1;
        self.attempts.insert(self.attempt, token);
        self.attempt
    }

    fn start_read(&mut self, cx: &mut Context<'_>, token: u64, out: &mut impl Sink<Self>) {
        let attempt = self.new_attempt(token);
        let request = self.requests.get_mut(&token).expect("a live request");
        let before = std::mem::replace(&mut request.attempt, attempt);
        self.attempts.remove(&before);
        let Kind::Read(read) = &mut request.kind else { panic!("only reads are attempted again") };
        cancel_parts(before, read, out);
        let patience = read.patience(&self.settings);
        read.tries += 1;
        read.void = false;
        read.silent.append(&mut read.asked);
        read.heard = Time(0);
        read.begun_at = cx.now;
        read.parts.clear();
        read.begun.clear();
        read.covered.clear();
        read.at = None;
        if std::mem::take(&mut read.told) {
            out.emit(ClientEvent::Restart { token });
        }
        // Reads of one place take turns among its replicas. Those of many are all divided alike, so that a process scans
        // the same rows for all of them; another division is tried when that one came to nothing.
        let random = (cx.random)() as u32;
        let wide = |config: &Config| {
            read.ranges.iter().map(|range| config.count_segments(*range)).sum::<usize>() > 1
        };
        let first = if read.tries == 1 && self.membership.config().is_some_and(wide) { 0 } else { random };
        // Who cannot be heard cannot answer.
        let heard = |process: &ProcessId| self.linked.contains(process) && !read.silent.contains(process);
        let readers = |config: &Config, offset: u32| -> Vec<ProcessId> {
            let assigned = config.assign_read(&read.ranges, offset).unwrap_or_default();
            assigned.iter().map(|assignment| assignment.process).collect()
        };
        let (offset, expected) = match self.membership.config() {
            None => (first, Vec::new()),
            Some(config) => {
                let offsets = (0..u32::from(config.replicas)).map(|turn| first.wrapping_add(turn));
                let mut divisions = offsets.map(|offset| (offset, readers(config, offset)));
                let audible = divisions.find(|(_, expected)| expected.iter().all(heard));
                audible.unwrap_or_else(|| (first, readers(config, first)))
            }
        };
        read.expected = expected;
        let header = DataHeader {
            kind: DataKind::Read,
            token: attempt,
            request: RequestId { session: self.membership.me.incarnation.0, number: 0 },
            offset,
            table: read.table,
            ranges: read.ranges.clone(),
        };
        let (strength, operation) = (read.strength, read.operation.clone());
        self.look_later(token, cx.now + patience);
        match strength {
            ReadStrength::Sequential => {
                // An attempt that still waits to be sent would only be one read more.
                self.member_input(cx, Input::Command(MemberCommand::Withdraw { token: before }), out);
                self.membership.submit(cx, attempt, Class::Data, header.encode(&operation), out);
            }
            ReadStrength::Snapshot => {
                let body = header.encode(&operation);
                self.member_input(cx, Input::Command(MemberCommand::Inject { token: attempt, body }), out);
            }
            ReadStrength::Basic => self.send_basic(cx, token, offset, operation, out),
        }
    }

    fn send_basic(
        &mut self,
        cx: &mut Context<'_>,
        token: u64,
        offset: u32,
        operation: Bytes,
        out: &mut impl Sink<Self>,
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
                let placement = config.placement;
                for assignment in assigned {
                    let basic = Direct::Basic {
                        token: attempt,
                        placement,
                        ranges: SmallVec::from_vec(assignment.held),
                        operation: operation.clone(),
                    };
                    out.send(Destination::One(assignment.process), Message::Direct(basic), None);
                }
            }
            Ok(_) => self.retry_soon(cx, attempt),
        }
    }

    /// The leader is not known, or there is nobody to deliver to: as far as we know for good, or for now.
    fn not_injected(&mut self, cx: &mut Context<'_>, attempt: u64, out: &mut impl Sink<Self>) {
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

    /// The attempt came to nothing: another one, a little later, and later each time.
    fn retry_soon(&mut self, cx: &mut Context<'_>, attempt: u64) {
        let Some(token) = self.attempts.get(&attempt).copied() else { return };
        let request = self.requests.get_mut(&token).expect("an attempt has its request");
        let mut after = self.settings.retry_after;
        if let Kind::Read(read) = &mut request.kind {
            read.void = true;
            after *= 1 << read.tries.saturating_sub(1).min(TRIES_MAX);
        }
        let spread = Duration::from_nanos((cx.random)() % (after.as_nanos() as u64).max(1));
        self.look_later(token, cx.now + after / 2 + spread);
    }

    /// A storage process is gone, or its link is: a read that it was to answer is tried elsewhere, and what a write did
    /// is asked of the others.
    fn lost(&mut self, cx: &mut Context<'_>, process: ProcessId) {
        for request in self.requests.values_mut() {
            if let Kind::Write(write) = &mut request.kind {
                write.doubted = true;
            }
        }
        let concerned: Vec<u64> = self
            .requests
            .values()
            .filter(|request| match &request.kind {
                Kind::Read(read) => read.expected.contains(&process) || read.parts.contains_key(&process),
                Kind::Write(write) => write.stable,
                Kind::Control => false,
            })
            .map(|request| request.attempt)
            .collect();
        for attempt in concerned {
            self.retry_soon(cx, attempt);
        }
    }

    /// Marks writes that concern a range nobody holds any more: whoever holds it later knows nothing of them.
    fn lose_ranges(&mut self, config: &Config) {
        for request in self.requests.values_mut() {
            if let Kind::Write(write) = &mut request.kind {
                let missing = write.ranges.iter().filter(|range| !covers(&write.covered, **range));
                write.lost |= missing.into_iter().any(|range| config.any_lost(&[*range]));
            }
        }
    }

    fn on_reply(&mut self, cx: &mut Context<'_>, from: ProcessId, reply: Reply, out: &mut impl Sink<Self>) {
        let Some(token) = self.attempts.get(&reply.token).copied() else {
            // Answers to attempts that were given up are no surprise; but the rest of one is not to wait there for us.
            if !reply.last {
                let cancel = Direct::Cancel { token: reply.token };
                out.send(Destination::One(from), Message::Direct(cancel), None);
            }
            return;
        };
        let request = self.requests.get_mut(&token).expect("an attempt has its request");
        let attempt = request.attempt;
        match (&mut request.kind, reply.content) {
            (Kind::Write(write), ReplyContent::Answer(content)) => {
                if reply.ranges.iter().all(|range| covers(&write.covered, *range)) {
                    return;
                }
                write.covered.extend_from_slice(&reply.ranges);
                write.at = write.at.max(reply.at);
                let spent = reply.spent;
                out.emit(ClientEvent::Part { token, from, content, last: true, spent });
                self.finish_write(cx, token, out);
            }
            // What came before it came to nothing.
            (Kind::Read(read), _) if read.void => {
                read.parts.entry(from).or_default();
            }
            (Kind::Read(read), ReplyContent::Underway) => {
                let waited = !read.asked.is_empty();
                read.asked.retain(|process| *process != from);
                if waited && read.asked.is_empty() {
                    read.heard = cx.now;
                    out.emit(ClientEvent::Underway { token });
                }
            }
            (Kind::Read(read), ReplyContent::Answer(content)) => {
                let one_cut = read.strength != ReadStrength::Basic;
                if one_cut && *read.at.get_or_insert(reply.at) != reply.at {
                    return self.retry_soon(cx, attempt);
                }
                let part = read.parts.entry(from).or_default();
                if part.pieces != reply.piece {
                    return self.retry_soon(cx, attempt);
                }
                read.heard = cx.now;
                read.asked.retain(|process| *process != from);
                part.pieces += 1;
                part.received += content.len() as u64;
                part.ended = reply.last;
                read.told = true;
                let first = reply.piece == 0;
                if first {
                    read.begun.extend_from_slice(&reply.ranges);
                }
                if reply.last {
                    read.covered.extend_from_slice(&reply.ranges);
                }
                let gathered = first && read.ranges.iter().all(|range| covers(&read.begun, *range));
                let complete = reply.last && read.ranges.iter().all(|range| covers(&read.covered, *range));
                let at = if one_cut { reply.at } else { Position(0) };
                let (last, spent, began) = (reply.last, reply.spent, read.begun_at);
                out.emit(ClientEvent::Part { token, from, content, last, spent });
                if gathered {
                    let took = cx.now.since(began);
                    self.latency = (self.latency * (LATENCY_PART - 1) + took) / LATENCY_PART;
                    out.emit(ClientEvent::Gathered { token });
                }
                if complete {
                    self.done(token, at, out);
                }
            }
            (Kind::Read(_), _) => self.retry_soon(cx, attempt),
            (Kind::Write(_), ReplyContent::Expired) => self.fail(cx.now, token, ClientError::Expired, out),
            // Asked about and not known there yet, or elsewhere in the order: it is asked about again.
            (Kind::Write(_), ReplyContent::Unknown | ReplyContent::Retry) => {}
            (Kind::Write(_), ReplyContent::Underway) | (Kind::Control, _) => self.refused += 1,
        }
    }

    /// Looks after a request whose time has come.
    fn look_after(&mut self, cx: &mut Context<'_>, token: u64, out: &mut impl Sink<Self>) {
        let request = self.requests.get_mut(&token).expect("a live request");
        request.look_at = None;
        let attempt = request.attempt;
        match &mut request.kind {
            Kind::Read(read) if read.waits_for_user() => {
                self.look_later(token, cx.now + self.settings.patience);
            }
            Kind::Read(read) if !read.void && cx.now < read.heard + self.settings.patience => {
                let at = read.heard + self.settings.patience;
                self.look_later(token, at);
            }
            // It may just take long. Who is at it says so, and is waited for; who is not, or is silent, is not.
            Kind::Read(read) if !read.void && read.asked.is_empty() && !read.owing().is_empty() => {
                read.asked = read.owing();
                let ask = Direct::AskRead { token: attempt };
                out.send(Destination::Many(read.asked.clone()), Message::Direct(ask), None);
                let after = read.patience(&self.settings);
                self.look_later(token, cx.now + after);
            }
            Kind::Read(read) => {
                read.silences += u32::from(!read.void);
                self.retries += 1;
                self.start_read(cx, token, out);
            }
            Kind::Write(write) => {
                let missing: SmallVec<[Range; 2]> =
                    write.ranges.iter().copied().filter(|range| !covers(&write.covered, *range)).collect();
                let Some(config) = self.membership.config() else { return };
                if write.lost && write.asked > 0 {
                    // Nobody is left who could tell.
                    return self.give_up(cx.now, token, out);
                }
                write.asked += u32::from(write.stable);
                let replicas = config.replicas_of(&missing);
                let ask = Direct::Ask { request: write.request, token: attempt, ranges: missing };
                out.send(Destination::Many(replicas), Message::Direct(ask), None);
                let after = self.ask_after(token);
                self.look_later(token, cx.now + after);
            }
            Kind::Control => {}
        }
    }

    fn command(&mut self, cx: &mut Context<'_>, command: ClientCommand, out: &mut impl Sink<Self>) {
        match command {
            ClientCommand::Write { token, request, table, ranges, fallible, operation } => {
                let request = request.unwrap_or_else(|| {
                    self.number += 1;
                    RequestId { session: self.membership.me.incarnation.0, number: self.number }
                });
                if request.session == self.session() {
                    // A number that the user made up is not given to another write.
                    self.number = self.number.max(request.number);
                    self.writes.insert(request.number);
                }
                let attempt = self.new_attempt(token);
                let kind = if fallible { DataKind::FallibleWrite } else { DataKind::Write };
                let offset = (cx.random)() as u32;
                let header =
                    DataHeader { kind, token: attempt, request, offset, table, ranges: ranges.clone() };
                let write = Write {
                    request,
                    ranges,
                    covered: Vec::new(),
                    stable: false,
                    at: Position(0),
                    lost: false,
                    asked: 0,
                    doubted: false,
                };
                self.insert(token, Request { attempt, kind: Kind::Write(write), look_at: None });
                self.membership.submit(cx, attempt, Class::Data, header.encode(&operation), out);
                self.refuse_if_wedged(cx, token, out);
            }
            ClientCommand::Read { token, strength, table, ranges, operation } => {
                let read = Read {
                    strength,
                    table,
                    ranges,
                    operation,
                    parts: BTreeMap::new(),
                    begun: Vec::new(),
                    covered: Vec::new(),
                    at: None,
                    expected: Vec::new(),
                    told: false,
                    tries: 0,
                    silences: 0,
                    asked: Vec::new(),
                    silent: Vec::new(),
                    void: false,
                    heard: cx.now,
                    begun_at: cx.now,
                };
                self.insert(token, Request { attempt: 0, kind: Kind::Read(read), look_at: None });
                self.start_read(cx, token, out);
                self.refuse_if_wedged(cx, token, out);
            }
            ClientCommand::Control { token, control } => {
                let attempt = self.new_attempt(token);
                self.insert(token, Request { attempt, kind: Kind::Control, look_at: None });
                self.membership.submit(cx, attempt, Class::Control, control.encode(), out);
                self.refuse_if_wedged(cx, token, out);
            }
            ClientCommand::Consumed { token, from, bytes } => {
                if let Some(request) = self.requests.get_mut(&token) {
                    if let Kind::Read(read) = &mut request.kind
                        && let Some(part) = read.parts.get_mut(&from)
                    {
                        part.consumed = part.consumed.max(bytes);
                    }
                    let consumed = Direct::Consumed { token: request.attempt, bytes };
                    out.send(Destination::One(from), Message::Direct(consumed), None);
                }
            }
            ClientCommand::Cancel { token } => {
                if let Some(request) = self.requests.get(&token) {
                    let withdraw = MemberCommand::Withdraw { token: request.attempt };
                    self.member_input(cx, Input::Command(withdraw), out);
                    self.give_up(cx.now, token, out);
                }
            }
            ClientCommand::Seeds(seeds) => {
                self.member_input(cx, Input::Command(MemberCommand::Seeds(seeds)), out);
            }
            ClientCommand::Leave => {
                self.membership.submit(cx, INTERNAL, Class::Control, Control::Leave.encode(), out);
            }
        }
    }

    fn insert(&mut self, token: u64, request: Request) {
        let before = self.requests.insert(token, request);
        assert!(before.is_none(), "token {token} names two requests");
    }

    fn refuse_if_wedged(&mut self, cx: &mut Context<'_>, token: u64, out: &mut impl Sink<Self>) {
        if self.membership.is_wedged() {
            self.fail(cx.now, token, ClientError::NotSent, out);
        }
    }

    /// Lets the ranges forget what nobody will ask about any more.
    fn forget(&mut self, cx: &mut Context<'_>, out: &mut impl Sink<Self>) {
        let over = |(since, number): &(Time, u64)| {
            cx.now.since(*since) > self.settings.retention || self.number - *number > REMEMBERED_MAX
        };
        while self.maybe.front().is_some_and(over) {
            self.maybe.pop_front();
        }
        let oldest = self.maybe.iter().map(|(_, number)| *number).chain(self.writes.first().copied()).min();
        // Users may have drawn numbers that they have not used yet.
        let below = oldest.unwrap_or(u64::MAX).min(self.number.saturating_sub(FORGET_BEHIND));
        if below >= self.forgotten + FORGET_EVERY {
            self.forgotten = below;
            let forget = Control::Forget { session: self.session(), below };
            self.membership.submit(cx, INTERNAL, Class::Control, forget.encode(), out);
        }
    }
}

/// Has those who work on an attempt's answer, or still hold parts of it, give it up.
fn cancel_parts<S: Sink<Client>>(attempt: u64, read: &Read, out: &mut S) {
    let ended = |process: &ProcessId| read.parts.get(process).is_some_and(|part| part.ended);
    let mut readers: Vec<ProcessId> = read.parts.keys().chain(&read.expected).copied().collect();
    readers.retain(|process| !ended(process));
    readers.sort_unstable();
    readers.dedup();
    if !readers.is_empty() {
        let cancel = Direct::Cancel { token: attempt };
        out.send(Destination::Many(readers), Message::Direct(cancel), None);
    }
}

impl Protocol for Client {
    type Message = Message;
    type Record = paxos::Record;
    type Command = ClientCommand;
    type Event = ClientEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        match input {
            Input::Receive { from, message: Message::Order(message) } => {
                self.member_input(cx, Input::Receive { from, message }, out);
            }
            Input::Receive { from, message: Message::Direct(Direct::Reply(reply)) } => {
                self.on_reply(cx, from, reply, out);
            }
            Input::Receive { .. } => self.refused += 1,
            Input::Command(command) => self.command(cx, command, out),
            Input::Deadline => {
                self.member_input(cx, Input::Deadline, out);
                while let Some((_, token)) = self.look.first().copied().filter(|(at, _)| *at <= cx.now) {
                    self.look.pop_first();
                    self.look_after(cx, token, out);
                }
                self.membership.tick(cx.now, self.membership.member.delivered(), out);
            }
            Input::Persisted(ticket) => self.member_input(cx, Input::Persisted(ticket), out),
            Input::Linked { peer, session } => {
                self.linked.insert(peer);
                self.member_input(cx, Input::Linked { peer, session }, out);
            }
            Input::Unlinked { peer } => {
                self.linked.remove(&peer);
                self.lost(cx, peer);
                self.member_input(cx, Input::Unlinked { peer }, out);
            }
            Input::Drained => {
                self.forget(cx, out);
                self.member_input(cx, Input::Drained, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let look = self.look.first().map(|(at, _)| *at);
        [self.membership.deadline(), look].into_iter().flatten().min()
    }

    fn gathering(&self) -> Duration {
        if self.requests.len() < REQUESTS_MANY {
            return Duration::ZERO;
        }
        (self.latency / GATHERING_PART).min(GATHERING_MAX)
    }
}
