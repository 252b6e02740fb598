//! What members and routers say to each other, and its bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{
    Class, Outcome, Position, Refusal,
    reform::{Recovery, Tail},
    refound::{Pledge, Witness},
};
use crate::{
    admission::NotAdmitted,
    detector::Opinion,
    id::{Generation, Peer, ProcessId},
    paxos,
    wire::{
        self, PAYLOAD_BYTES_SHARED, Wire, WireError, decode_body, encode_body, encode_whole, need, put_bytes,
        put_generation, put_opinion, put_payload, put_process, take_bytes, take_count, take_generation,
        take_opinion, take_process, take_u8, take_u32, take_u64,
    },
};

/// A message of the ordering layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Between routers.
    Paxos(paxos::Message),
    /// Member → router: a block of its messages with consecutive numbers, proposed as it is.
    Route(Bytes),
    /// Router → member: what became of its messages.
    Notice(Notice),
    /// Router → member: messages at their positions.
    Deliver(DeliverBlock),
    /// Member → router: what it has.
    Confirm {
        /// All that was destined to the member up to here has been delivered.
        through: Position,
        /// All that was destined to the member up to here has been executed.
        executed: Position,
    },
    /// Member → router: a delivery came whose `previous` the member does not have.
    Repair,
    /// Router → anyone linked: who routes, and who leads.
    Lead {
        /// The generation that the sender belongs to.
        generation: Generation,
        /// The leader, if known.
        leader: Option<ProcessId>,
        /// All routers.
        routers: Vec<Peer>,
        /// How much of the log the sender has learned: of two sets of routers the one with more behind it is news.
        learned: u64,
    },
    /// Member → lead router: deliver this behind everything ordered so far, without ordering it (002 §6.7, snapshot
    /// reads). May be lost; never retried here.
    Inject {
        /// The member's own number for it.
        token: u64,
        /// The body.
        body: Bytes,
    },
    /// Router → member: an injected message was not delivered (not the leader, or no destination).
    InjectRefused {
        /// Which.
        token: u64,
    },
    /// Router → anyone linked: a new generation begins with the sender; say what you have.
    Gather {
        /// The generation.
        generation: Generation,
    },
    /// Member → router: the answer to [`Message::Gather`].
    Tail(Tail),
    /// Router that knows nothing → anyone linked: an operator says that all routers are gone; will you follow?
    Call,
    /// Member → router: the answer to [`Message::Call`].
    Pledge(Pledge),
    /// Router that knows nothing → member that pledged to follow: a generation begins with the sender; say what you have.
    Refound {
        /// The generation.
        generation: Generation,
    },
    /// Member → router: the answer to [`Message::Refound`].
    Witness(Box<Witness>),
    /// Founder that gives up → members that pledged to follow it: they may follow another.
    Release,
    /// Router with which a generation began → its members: whose answers counted. Told before they hear who leads.
    Counted {
        /// The generation.
        generation: Generation,
        /// The members that follow.
        members: Vec<ProcessId>,
    },
    /// Member → router: do you hear this process? Answered by [`Message::Opinion`] at once, and once more if it is heard.
    AskOpinion {
        /// Whom the question is about.
        about: ProcessId,
        /// The asker's name for this hearing.
        hearing: u64,
    },
    /// Router → member: whether it hears a process.
    Opinion {
        /// Which.
        about: ProcessId,
        /// The hearing in which the member asked.
        hearing: u64,
        /// What the router can say.
        opinion: Opinion,
    },
    /// Router → member: give a sign of life, since somebody asked for one.
    Probe {
        /// Who asked.
        asker: ProcessId,
        /// The hearing in which it asked.
        hearing: u64,
    },
    /// Member → router: the answer to [`Message::Probe`].
    Alive {
        /// Who asked.
        asker: ProcessId,
        /// The hearing in which it asked.
        hearing: u64,
    },
    /// Router → process that is no member: its joining was refused, and would be again as long as this holds.
    NotAdmitted(NotAdmitted),
    /// Router → next router towards the leader: what a member sent.
    Up {
        /// The member.
        member: ProcessId,
        /// Over so many more links it may go.
        hops: u8,
        /// What it sent, as bytes.
        message: Bytes,
    },
    /// Router → next router towards a member: what the leader has for it.
    Down {
        /// The member.
        member: ProcessId,
        /// Over so many more links it may go.
        hops: u8,
        /// What the leader has for it, as bytes.
        message: Bytes,
    },
    /// Router → next router towards the leader: all members that the sender reaches.
    Reach {
        /// The members.
        members: Vec<ProcessId>,
    },
}

/// What became of a sender's messages.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Notice {
    /// Runs `(first, count)` of numbers that are stable.
    pub stable: Vec<(u64, u32)>,
    /// Other outcomes, by number.
    pub others: Vec<(u64, Outcome)>,
    /// Data may be sent up to this number.
    pub credit: u64,
    /// The sender is not a member any more.
    pub wedged: bool,
}

impl Notice {
    /// Adds a stable number, joining it to the last run where it continues it.
    pub(super) fn push_stable(&mut self, number: u64) {
        match self.stable.last_mut() {
            Some((first, count)) if *first + u64::from(*count) == number && *count < u32::MAX => *count += 1,
            _ => self.stable.push((number, 1)),
        }
    }

    pub(super) fn push(&mut self, number: u64, outcome: Outcome) {
        match outcome {
            Outcome::Stable => self.push_stable(number),
            other => self.others.push((number, other)),
        }
    }
}

/// A batch of messages of one sender, with consecutive numbers: the unit of proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteBlock {
    /// Who submits.
    pub sender: ProcessId,
    /// The sender has handled the outcomes of all its messages up to this number.
    pub acknowledged: u64,
    /// The number of the first message.
    pub first: u64,
    /// How many there are.
    pub count: u32,
    /// The messages: class, length, body.
    messages: Bytes,
}

/// Builds a [`RouteBlock`] in its byte form.
pub(super) struct RouteBlockBuilder {
    bytes: BytesMut,
    count: u32,
}

const ROUTE_HEADER: usize = 1 + 24 + 8 + 8 + 4;
const ROUTE_COUNT_AT: usize = ROUTE_HEADER - 4;

impl RouteBlockBuilder {
    pub(super) fn new(sender: ProcessId, acknowledged: u64, first: u64) -> Self {
        let mut bytes = BytesMut::with_capacity(4096);
        bytes.put_u8(LOG_ROUTE);
        put_process(&mut bytes, sender);
        bytes.put_u64_le(acknowledged);
        bytes.put_u64_le(first);
        bytes.put_u32_le(0);
        RouteBlockBuilder { bytes, count: 0 }
    }

    pub(super) fn push(&mut self, class: Class, body: &[u8]) {
        self.bytes.put_u8(match class {
            Class::Data => 0,
            Class::Control => 1,
        });
        put_bytes(&mut self.bytes, body);
        self.count += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn finish(mut self) -> Bytes {
        self.bytes[ROUTE_COUNT_AT..ROUTE_HEADER].copy_from_slice(&self.count.to_le_bytes());
        self.bytes.freeze()
    }
}

impl RouteBlock {
    /// Whether every message in the block decodes; to be asked before a block from a peer is proposed, since what has
    /// been chosen can not be refused any more.
    pub(super) fn is_sound(&self) -> bool {
        let mut messages = self.messages();
        let whole = messages.by_ref().count() == self.count as usize;
        whole && messages.rest.is_empty()
    }

    /// The messages in order.
    pub(super) fn messages(&self) -> RouteMessages {
        RouteMessages { rest: self.messages.clone(), left: self.count }
    }

    /// The number of the last message.
    pub(super) fn last(&self) -> u64 {
        self.first + u64::from(self.count) - 1
    }
}

pub(super) struct RouteMessages {
    rest: Bytes,
    left: u32,
}

impl Iterator for RouteMessages {
    type Item = (Class, Bytes);

    fn next(&mut self) -> Option<(Class, Bytes)> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let class = match take_u8(&mut self.rest).ok()? {
            0 => Class::Data,
            1 => Class::Control,
            _ => return None,
        };
        Some((class, take_bytes(&mut self.rest).ok()?))
    }
}

/// What the routers' log holds.
pub(super) enum LogEntry {
    /// Messages to append.
    Route(RouteBlock),
    /// Positions that are stable: runs `(first, count)`, and outcomes other than [`Outcome::Stable`].
    Stable { runs: Vec<(u64, u32)>, others: Vec<(u64, Outcome)> },
    /// What a new generation begins with.
    Recovered(Recovery),
    /// The configuration that the domain was founded with; the founder's first.
    Founded(Bytes),
}

const LOG_ROUTE: u8 = 1;
const LOG_STABLE: u8 = 2;
const LOG_RECOVERED: u8 = 3;
const LOG_FOUNDED: u8 = 4;

impl LogEntry {
    pub(super) fn decode(mut payload: Bytes) -> Result<LogEntry, WireError> {
        match take_u8(&mut payload)? {
            LOG_ROUTE => {
                let sender = take_process(&mut payload)?;
                let acknowledged = take_u64(&mut payload)?;
                let first = take_u64(&mut payload)?;
                let count = take_u32(&mut payload)?;
                // Numbers run from 1, a block has a message, and what is acknowledged lies before it.
                if acknowledged >= first || count == 0 || first.checked_add(u64::from(count)).is_none() {
                    return Err(WireError::Body);
                }
                Ok(LogEntry::Route(RouteBlock { sender, acknowledged, first, count, messages: payload }))
            }
            LOG_STABLE => {
                let (runs, others) = (take_runs(&mut payload)?, take_outcomes(&mut payload)?);
                Ok(LogEntry::Stable { runs, others })
            }
            LOG_RECOVERED => Ok(LogEntry::Recovered(decode_body(&mut payload)?)),
            LOG_FOUNDED => Ok(LogEntry::Founded(payload)),
            tag => Err(WireError::Tag(tag)),
        }
    }

    pub(super) fn encode_founded<C: serde::Serialize>(config: &C) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(LOG_FOUNDED);
        encode_body(&mut out, config);
        out.freeze()
    }

    pub(super) fn encode_recovered(recovery: &Recovery) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(LOG_RECOVERED);
        encode_body(&mut out, recovery);
        out.freeze()
    }

    pub(super) fn encode_stable(runs: &[(u64, u32)], others: &[(u64, Outcome)]) -> Bytes {
        let mut out = BytesMut::with_capacity(16 + runs.len() * 12 + others.len() * 17);
        out.put_u8(LOG_STABLE);
        put_runs(&mut out, runs);
        put_outcomes(&mut out, others);
        out.freeze()
    }
}

fn put_runs(out: &mut BytesMut, runs: &[(u64, u32)]) {
    out.put_u32_le(runs.len() as u32);
    for &(first, count) in runs {
        out.put_u64_le(first);
        out.put_u32_le(count);
    }
}

fn take_runs(input: &mut Bytes) -> Result<Vec<(u64, u32)>, WireError> {
    let count = take_count(input, 12)?;
    (0..count).map(|_| Ok((take_u64(input)?, take_u32(input)?))).collect()
}

fn put_outcomes(out: &mut BytesMut, outcomes: &[(u64, Outcome)]) {
    out.put_u32_le(outcomes.len() as u32);
    for &(number, outcome) in outcomes {
        out.put_u64_le(number);
        let (tag, detail) = match outcome {
            Outcome::Stable => (0, 0),
            Outcome::MaybeApplied => (1, 0),
            Outcome::Rejected(Refusal(reason)) => (2, reason),
            Outcome::Wedged => (3, 0),
        };
        out.put_u8(tag);
        out.put_u64_le(detail);
    }
}

fn take_outcomes(input: &mut Bytes) -> Result<Vec<(u64, Outcome)>, WireError> {
    let count = take_count(input, 17)?;
    let mut outcomes = Vec::with_capacity(count);
    for _ in 0..count {
        let number = take_u64(input)?;
        let tag = take_u8(input)?;
        let detail = take_u64(input)?;
        let outcome = match tag {
            0 => Outcome::Stable,
            1 => Outcome::MaybeApplied,
            2 => Outcome::Rejected(Refusal(detail)),
            3 => Outcome::Wedged,
            tag => return Err(WireError::Tag(tag)),
        };
        outcomes.push((number, outcome));
    }
    Ok(outcomes)
}

/// A block that has grown to so many bytes, or senders, takes no more.
const BLOCK_BYTES_FULL: usize = 256 << 10;
const SENDERS_FULL: usize = 60_000;

/// Deliveries to one destination. Senders are listed once; each item names its sender by index.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeliverBlock {
    senders: Vec<ProcessId>,
    count: u32,
    /// Everything up to here is stable, as the leader knew when it made the block.
    pub(super) base: Position,
    items: Bytes,
    /// The body of the last item, if it is large and this block was made here: all destinations share it. Over the wire
    /// it is the end of the items.
    last: Option<Bytes>,
}

/// One delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) kind: DeliveryKind,
    /// For an ordered message its position; for an injected one the last position before it.
    pub(super) at: Position,
    /// The position before it for this destination.
    pub(super) previous: Position,
    pub(super) sender: ProcessId,
    /// The message's number; for an injected one the sender's token.
    pub(super) number: u64,
    pub(super) body: Bytes,
    pub(super) attachment: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryKind {
    Data,
    Control,
    Injected,
}

#[derive(Default)]
pub(super) struct DeliverBlockBuilder {
    senders: Vec<ProcessId>,
    count: u32,
    items: BytesMut,
    last: Option<Bytes>,
}

impl DeliverBlockBuilder {
    /// Appends a delivery to a block that is not full.
    pub(super) fn push(&mut self, item: &Delivery) {
        assert!(self.last.is_none(), "nothing comes behind the body that ends a block");
        // The sender is nearly always the same as that of the item before.
        let index = match self.senders.iter().rposition(|&sender| sender == item.sender) {
            Some(index) => index,
            None => {
                self.senders.push(item.sender);
                self.senders.len() - 1
            }
        };
        let kind: u8 = match item.kind {
            DeliveryKind::Data => 0,
            DeliveryKind::Control => 1,
            DeliveryKind::Injected => 2,
        };
        let attached: u8 = if item.attachment.is_some() { 0x10 } else { 0 };
        let shared = item.body.len() >= PAYLOAD_BYTES_SHARED && item.attachment.is_none();
        self.items.reserve(1 + 2 + 8 * 3 + 4 + if shared { 0 } else { item.body.len() });
        self.items.put_u8(kind | attached);
        self.items.put_u16_le(u16::try_from(index).expect("a block is flushed long before 65,536 senders"));
        self.items.put_u64_le(item.at.0);
        self.items.put_u64_le(item.previous.0);
        self.items.put_u64_le(item.number);
        if shared {
            self.last = put_payload(&mut self.items, &item.body);
        } else {
            put_bytes(&mut self.items, &item.body);
        }
        if let Some(attachment) = &item.attachment {
            put_bytes(&mut self.items, attachment);
        }
        self.count += 1;
    }

    /// Whether it is to be finished before anything else is appended.
    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= BLOCK_BYTES_FULL || self.senders.len() >= SENDERS_FULL || self.last.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// `base`: everything up to there is stable.
    pub(super) fn finish(&mut self, base: Position) -> DeliverBlock {
        let block = DeliverBlock {
            senders: std::mem::take(&mut self.senders),
            count: self.count,
            base,
            items: self.items.split().freeze(),
            last: self.last.take(),
        };
        self.count = 0;
        block
    }
}

impl DeliverBlock {
    /// What it takes to keep it, about.
    pub(super) fn bytes(&self) -> usize {
        64 + self.senders.len() * 24 + self.items.len() + self.last.as_ref().map_or(0, Bytes::len)
    }

    /// The same, in memory of its own where it would keep much more than itself from being freed.
    pub(super) fn detached(&self) -> DeliverBlock {
        let small = self.items.len() < 4096;
        let items = if small { Bytes::copy_from_slice(&self.items) } else { self.items.clone() };
        DeliverBlock {
            senders: self.senders.clone(),
            count: self.count,
            base: self.base,
            items,
            last: self.last.clone(),
        }
    }

    /// The deliveries in order; an error ends them.
    pub(super) fn into_items(self) -> impl Iterator<Item = Result<Delivery, WireError>> {
        let DeliverBlock { senders, count, items: mut rest, last, .. } = self;
        if let Some(last) = last {
            rest = [rest, last].concat().into();
        }
        let mut left = count;
        std::iter::from_fn(move || {
            if left == 0 {
                return (!rest.is_empty()).then(|| {
                    let trailing = rest.len();
                    rest.clear();
                    Err(WireError::Trailing(trailing))
                });
            }
            left -= 1;
            let item = decode_delivery(&mut rest, &senders);
            if item.is_err() {
                left = 0;
                rest.clear();
            }
            Some(item)
        })
    }
}

fn decode_delivery(rest: &mut Bytes, senders: &[ProcessId]) -> Result<Delivery, WireError> {
    need(rest, 1 + 2 + 8 * 3)?;
    let flags = rest.get_u8();
    let kind = match flags & 0x0f {
        0 => DeliveryKind::Data,
        1 => DeliveryKind::Control,
        2 => DeliveryKind::Injected,
        tag => return Err(WireError::Tag(tag)),
    };
    let index = usize::from(rest.get_u16_le());
    let sender = *senders.get(index).ok_or(WireError::Body)?;
    let at = Position(rest.get_u64_le());
    let previous = Position(rest.get_u64_le());
    let number = rest.get_u64_le();
    let body = take_bytes(rest)?;
    let attachment = if flags & 0x10 != 0 { Some(take_bytes(rest)?) } else { None };
    Ok(Delivery { kind, at, previous, sender, number, body, attachment })
}

fn put_block(out: &mut BytesMut, block: &DeliverBlock) -> Option<Bytes> {
    out.put_u32_le(block.senders.len() as u32);
    for &sender in &block.senders {
        put_process(out, sender);
    }
    out.put_u32_le(block.count);
    out.put_u64_le(block.base.0);
    let Some(last) = &block.last else { return put_payload(out, &block.items) };
    let length = block.items.len() + last.len();
    out.put_u32_le(u32::try_from(length).expect("a block is bounded far below 4 GiB"));
    out.put_slice(&block.items);
    Some(last.clone())
}

fn take_block(input: &mut Bytes) -> Result<DeliverBlock, WireError> {
    let count = take_count(input, 24)?;
    let senders = (0..count).map(|_| take_process(input)).collect::<Result<_, _>>()?;
    let (count, base) = (take_u32(input)?, Position(take_u64(input)?));
    Ok(DeliverBlock { senders, count, base, items: take_bytes(input)?, last: None })
}

const PAXOS: u8 = 1;
const ROUTE: u8 = 2;
const NOTICE: u8 = 3;
const DELIVER: u8 = 4;
const CONFIRM: u8 = 5;
const REPAIR: u8 = 6;
const LEAD: u8 = 7;
const INJECT: u8 = 8;
const INJECT_REFUSED: u8 = 9;
const GATHER: u8 = 10;
const TAIL: u8 = 11;
const ASK_OPINION: u8 = 12;
const OPINION: u8 = 13;
const PROBE: u8 = 14;
const ALIVE: u8 = 15;
const UP: u8 = 17;
const DOWN: u8 = 18;
const REACH: u8 = 19;
const CALL: u8 = 20;
const PLEDGE: u8 = 21;
const REFOUND: u8 = 22;
const WITNESS: u8 = 23;
const COUNTED: u8 = 24;
const RELEASE: u8 = 25;

/// The least that a block takes.
const BLOCK_BYTES_MIN: usize = 4 + 4 + 8 + 4;

fn put_processes(out: &mut BytesMut, processes: &[ProcessId]) {
    out.put_u32_le(processes.len() as u32);
    for &process in processes {
        put_process(out, process);
    }
}

fn take_processes(input: &mut Bytes) -> Result<Vec<ProcessId>, WireError> {
    let count = take_count(input, 24)?;
    (0..count).map(|_| take_process(input)).collect()
}

fn put_tail(out: &mut BytesMut, tail: &Tail) {
    put_generation(out, tail.generation);
    put_generation(out, tail.before);
    out.put_u64_le(tail.delivered.0);
    out.put_u64_le(tail.acknowledged);
    out.put_u32_le(tail.blocks.len() as u32);
    for block in &tail.blocks {
        if let Some(payload) = put_block(out, block) {
            out.put_slice(&payload);
        }
    }
}

fn take_tail(input: &mut Bytes) -> Result<Tail, WireError> {
    Ok(Tail {
        generation: take_generation(input)?,
        before: take_generation(input)?,
        delivered: Position(take_u64(input)?),
        acknowledged: take_u64(input)?,
        blocks: {
            let count = take_count(input, BLOCK_BYTES_MIN)?;
            (0..count).map(|_| take_block(input)).collect::<Result<_, _>>()?
        },
    })
}

fn put_asked(out: &mut BytesMut, tag: u8, process: ProcessId, hearing: u64) {
    out.put_u8(tag);
    put_process(out, process);
    out.put_u64_le(hearing);
}
const NOT_ADMITTED: u8 = 16;

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Message::Paxos(message) => {
                out.put_u8(PAXOS);
                return message.encode_head(out);
            }
            Message::Route(block) => {
                out.put_u8(ROUTE);
                return put_payload(out, block);
            }
            Message::Notice(notice) => {
                out.put_u8(NOTICE);
                put_runs(out, &notice.stable);
                put_outcomes(out, &notice.others);
                out.put_u64_le(notice.credit);
                out.put_u8(u8::from(notice.wedged));
            }
            Message::Deliver(block) => {
                out.put_u8(DELIVER);
                return put_block(out, block);
            }
            Message::Confirm { through, executed } => {
                out.put_u8(CONFIRM);
                out.put_u64_le(through.0);
                out.put_u64_le(executed.0);
            }
            Message::Repair => out.put_u8(REPAIR),
            Message::Lead { generation, leader, routers, learned } => {
                out.put_u8(LEAD);
                encode_body(out, &(generation, leader, routers, learned));
            }
            Message::Inject { token, body } => {
                out.put_u8(INJECT);
                out.put_u64_le(*token);
                return put_payload(out, body);
            }
            Message::InjectRefused { token } => {
                out.put_u8(INJECT_REFUSED);
                out.put_u64_le(*token);
            }
            Message::Gather { generation } => {
                out.put_u8(GATHER);
                put_generation(out, *generation);
            }
            Message::NotAdmitted(why) => {
                out.put_u8(NOT_ADMITTED);
                encode_body(out, why);
            }
            Message::Tail(tail) => {
                out.put_u8(TAIL);
                put_tail(out, tail);
            }
            Message::Call => out.put_u8(CALL),
            Message::Pledge(pledge) => {
                out.put_u8(PLEDGE);
                encode_body(out, pledge);
            }
            Message::Refound { generation } => {
                out.put_u8(REFOUND);
                put_generation(out, *generation);
            }
            Message::Witness(witness) => {
                out.put_u8(WITNESS);
                put_tail(out, &witness.tail);
                out.put_u64_le(witness.kept_behind.0);
                out.put_u64_le(witness.base.0);
                out.put_u64_le(witness.sent);
                put_processes(out, &witness.counted);
                put_bytes(out, &witness.config);
            }
            Message::Release => out.put_u8(RELEASE),
            Message::Counted { generation, members } => {
                out.put_u8(COUNTED);
                put_generation(out, *generation);
                put_processes(out, members);
            }
            Message::AskOpinion { about, hearing } => put_asked(out, ASK_OPINION, *about, *hearing),
            Message::Opinion { about, hearing, opinion } => {
                put_asked(out, OPINION, *about, *hearing);
                put_opinion(out, *opinion);
            }
            Message::Probe { asker, hearing } => put_asked(out, PROBE, *asker, *hearing),
            Message::Alive { asker, hearing } => put_asked(out, ALIVE, *asker, *hearing),
            Message::Up { member, hops, message } => return put_handed_on(out, UP, *member, *hops, message),
            Message::Down { member, hops, message } => {
                return put_handed_on(out, DOWN, *member, *hops, message);
            }
            Message::Reach { members } => {
                out.put_u8(REACH);
                put_processes(out, members);
            }
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(match take_u8(input)? {
            PAXOS => Message::Paxos(paxos::Message::decode(input)?),
            ROUTE => Message::Route(take_bytes(input)?),
            NOTICE => Message::Notice(Notice {
                stable: take_runs(input)?,
                others: take_outcomes(input)?,
                credit: take_u64(input)?,
                wedged: take_u8(input)? != 0,
            }),
            DELIVER => Message::Deliver(take_block(input)?),
            CONFIRM => {
                Message::Confirm { through: Position(take_u64(input)?), executed: Position(take_u64(input)?) }
            }
            REPAIR => Message::Repair,
            LEAD => {
                let (generation, leader, routers, learned) = decode_body(input)?;
                Message::Lead { generation, leader, routers, learned }
            }
            INJECT => Message::Inject { token: take_u64(input)?, body: take_bytes(input)? },
            INJECT_REFUSED => Message::InjectRefused { token: take_u64(input)? },
            GATHER => Message::Gather { generation: take_generation(input)? },
            TAIL => Message::Tail(take_tail(input)?),
            CALL => Message::Call,
            PLEDGE => Message::Pledge(decode_body(input)?),
            REFOUND => Message::Refound { generation: take_generation(input)? },
            WITNESS => Message::Witness(Box::new(Witness {
                tail: take_tail(input)?,
                kept_behind: Position(take_u64(input)?),
                base: Position(take_u64(input)?),
                sent: take_u64(input)?,
                counted: take_processes(input)?,
                config: take_bytes(input)?,
            })),
            RELEASE => Message::Release,
            COUNTED => {
                Message::Counted { generation: take_generation(input)?, members: take_processes(input)? }
            }
            ASK_OPINION => Message::AskOpinion { about: take_process(input)?, hearing: take_u64(input)? },
            OPINION => Message::Opinion {
                about: take_process(input)?,
                hearing: take_u64(input)?,
                opinion: take_opinion(input)?,
            },
            PROBE => Message::Probe { asker: take_process(input)?, hearing: take_u64(input)? },
            ALIVE => Message::Alive { asker: take_process(input)?, hearing: take_u64(input)? },
            NOT_ADMITTED => Message::NotAdmitted(decode_body(input)?),
            UP => Message::Up {
                member: take_process(input)?,
                hops: take_u8(input)?,
                message: take_bytes(input)?,
            },
            DOWN => Message::Down {
                member: take_process(input)?,
                hops: take_u8(input)?,
                message: take_bytes(input)?,
            },
            REACH => Message::Reach { members: take_processes(input)? },
            tag => return Err(wire::WireError::Tag(tag)),
        })
    }
}

fn put_handed_on(out: &mut BytesMut, tag: u8, member: ProcessId, hops: u8, message: &Bytes) -> Option<Bytes> {
    out.put_u8(tag);
    put_process(out, member);
    out.put_u8(hops);
    put_payload(out, message)
}

#[cfg(test)]
mod tests;
