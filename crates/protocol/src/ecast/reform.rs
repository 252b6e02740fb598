//! A new generation: a domain continues after a majority of its routers is gone for good (rule S1).
//!
//! **Promise.** Once an operator has given the command to one surviving router, the domain has one history
//! again. It contains everything in that router's log, and everything that a surviving member has delivered,
//! at the positions of the deliveries. So replicas that had progressed differently become equal again, and no
//! acknowledged message is lost if one of its destinations survives and answers. Other ordered messages are
//! lost. Their senders, which still have them, submit them again, or learn
//! [`Outcome::MaybeApplied`](super::Outcome::MaybeApplied) if the number cannot be used again. Later messages
//! of the old routers have no effect.
//!
//! **Source.** Rule S1 of the design; the papers have no counterpart. The idea is that of view changes (001
//! §5): the survivors' messages are gathered, cut and made equal before anything new is sent.
//!
//! **Roles.** The *survivor* is the router whose log reaches furthest. The operator's tool chooses it by the
//! ballot in which its log was accepted, then by the log's length. Members answer it. All other routers of
//! the old generation end, and new routers join.
//!
//! ```text
//!  operator        survivor                         members                     old routers
//!     ├─ Reform ─────▶│ enters g: no link to them ◀╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌▶│
//!     │               │ alone in the log (paxos)        │
//!     │               ├── Gather(g) ───────────────────▶│ enters g: no link to them
//!     │               │◀─────────────── Tail(delivered, ─┤
//!     │               │        what it delivered last)   │
//!     │               │ log: Recovered(their messages),  │
//!     │               │      then what it had accepted   │
//!     │               ├── Lead(g) ─────────────────────▶│ submits again what has no outcome
//!     │               ├── Deliver … ───────────────────▶│ what it lacks
//! ```
//!
//! **Invariants.**
//! - *The fence.* A process enters a generation once and never goes back. At that moment its links to earlier
//!   routers break, and no new links to them are made ([`Fence`](super::Fence)). A member reports its
//!   deliveries only after its fence stands, so the report stays true: no router of the old generation
//!   delivers to the member any longer. No message from before the fence is ordered after it as if it were
//!   new. For that, a member submits only to routers that have announced, on the present link, the leader of
//!   its generation. And once the survivor has asked a process for its deliveries, it accepts nothing from
//!   that process until the process answers. Otherwise a process that had joined in the lost part would join
//!   a second time, with deliveries of another order.
//! - *Facts keep their positions.* A delivery of any member is at its position in the new history, or that
//!   member is fenced off. Positions that nobody can fill are holes without destinations.
//! - *Silence before the cut.* Until the survivor learns `Recovered`, it orders, confirms and delivers
//!   nothing. So new messages come after all recovered positions. The survivor admits no other router either,
//!   because that router might lead without having gathered anything.
//! - *A silent member is out.* A member that did not report its deliveries, or cannot report all of them, may
//!   be ahead of the cut. It learns that it is no member whenever it appears, and gets no deliveries.
//!   (Rubberband's supers then find the member silent and suspect it as usual, S14 included.) If the member
//!   had joined in the lost part, the log does not know it. The member finds out by itself that it is out
//!   when it learns the leader of the generation although the survivor did not ask it, because then the cut
//!   was made without it. If the survivor did ask it, the member repeats its report until it learns the
//!   leader, and submits nothing before: its joining would be ordered again, for a process that stops. A
//!   process that delivered nothing cannot be ahead of the cut, and joins.
//!
//! **Attacks considered.**
//! - *An old router that stood still goes on and leads.* Nobody of the new generation listens to it. With a
//!   majority of its own it may choose further entries, for members that did not answer either. These members
//!   are fenced off when they come back. If the old routers have voted the survivor out, neither side looks
//!   for a link to the other. So every router looks for a link to each router that is found at its seeds
//!   ([`RouterCommand::Seeds`](super::RouterCommand::Seeds)), and the fence informs it.
//! - *Two operators, two survivors.* Each survivor begins a generation of its own. The tool refuses a router
//!   whose log is not the furthest among the routers that answer, and a router that follows a leader. An
//!   operator who nevertheless uses two separated survivors has two domains. Their generations carry the
//!   survivors' names, so no process of one domain ever has a link to a process of the other domain. A member
//!   is in the generation that it met first. If a later generation continues one of the two domains,
//!   processes of the other domain may meet that generation. Their deliveries belong to another history, so
//!   they are fenced off like silent members. The report of a process that the log does not know counts only
//!   if it was delivered in the survivor's own generation, which the report states.
//! - *A process had joined in the lost part.* It got a configuration and delivered from there on. If an
//!   earlier position is missing, that message may have been part of the configuration. Then the process is
//!   out, and deliveries that only it has are lost.
//! - *The survivor led, and was cut off.* Behind the entries that it knows to be chosen, it accepted some
//!   that no other router accepted. The other routers ordered other messages in their place, which members
//!   delivered. So only the chosen part of its log keeps its positions; the rest comes after the members'
//!   reports, if the senders' numbers still fit.
//! - *The survivor has a disk, and is restarted before the cut.* It has the fence of its generation, and a
//!   log without the beginning. So the survivor continues alone once more, and asks the members again, which
//!   have delivered nothing since. If the survivor led from its log alone, deliveries that only members have
//!   would be lost, and replicas that are ahead of it would stay ahead. If the log has the entry, chosen or
//!   not, members may have heard of the generation's beginning, so the entry stands. A founder
//!   ([`refound`](super::refound)) without that entry has lost its ground: it ends, and the next founder
//!   begins a later generation.
//! - *A message was delivered at one of two replicas.* That replica reports it, and the other replica gets it
//!   at the same position.
//! - *A sender is ahead of the log.* A message that it knows to be stable was delivered, so it is recovered
//!   or had no live destination. The sender's next number comes after those it acknowledged, so it does not
//!   wait for ever.
//!
//! **Memory.** Members keep their last deliveries, at most [`TAIL_BYTES_MAX`] bytes. These are more bytes
//! than a following router can be behind the leader.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Class, MessageId, Position,
    block::{DeliverBlock, Delivery, DeliveryKind},
    entry::LogEntry,
    recovery::{EarlierHistory, POSITIONS_MAX, Recovery},
};
use crate::{
    id::{Generation, ProcessId},
    time::Time,
    wire::Wire,
};

/// Maximum size of the last deliveries that a member keeps, in bytes: twice the number of bytes that a leader
/// sends ahead of its followers' answers.
pub(super) const TAIL_BYTES_MAX: usize = 16 << 20;

/// Maximum distance between a sender's last known number and a recovered number. It can be bounded, because
/// credits bound the messages in progress.
pub(super) const NUMBERS_MAX: u64 = 1 << 17;

/// A member's answer to the survivor.
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
pub struct Tail {
    /// The generation that the member has entered.
    pub generation: Generation,
    /// The last earlier generation whose routers the member heard after the generation's cut. The member's
    /// deliveries come from that generation, or from earlier generations.
    pub before: Generation,
    /// Last position delivered.
    pub delivered: Position,
    /// The member knows the outcomes of all its own messages up to this number.
    pub acknowledged: u64,
    /// The last deliveries, in order of arrival.
    pub(super) blocks: Vec<DeliverBlock>,
}

/// A member's last deliveries.
#[derive(Debug, Default)]
pub(super) struct RecentDeliveries {
    /// Blocks, each with its last position.
    blocks: VecDeque<(Position, DeliverBlock)>,
    bytes: usize,
    /// The position after which all deliveries are kept.
    behind: Position,
}

impl RecentDeliveries {
    /// Creates an empty collection that lacks all deliveries up to `behind`.
    pub(super) fn from(behind: Position) -> RecentDeliveries {
        RecentDeliveries { behind, ..RecentDeliveries::default() }
    }

    /// Keeps a block, of which `last` is the last position.
    pub(super) fn push(&mut self, last: Position, block: DeliverBlock) {
        self.bytes += block.bytes();
        self.blocks.push_back((last, block));
        while self.bytes > TAIL_BYTES_MAX {
            let (last, oldest) =
                self.blocks.pop_front().expect("blocks are kept while their bytes are counted");
            self.bytes -= oldest.bytes();
            self.behind = self.behind.max(last);
        }
    }

    pub(super) fn blocks(&self) -> Vec<DeliverBlock> {
        self.blocks.iter().map(|(_, block)| block.clone()).collect()
    }

    /// Returns the position after which all deliveries are kept.
    pub(super) fn behind(&self) -> Position {
        self.behind
    }
}

/// The beginning of a generation, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reformed {
    /// The generation.
    pub generation: Generation,
    /// If no router survived: the generation from whose members the history continues.
    pub from_members: Option<Generation>,
    /// The last position of the surviving router. If no router survived: the last position up to which no
    /// following member lacked anything.
    pub behind: Position,
    /// The last position that a member had delivered. If no member was ahead of the surviving router, the
    /// router's last position.
    pub through: Position,
    /// Number of positions between `behind` and `through` that were recovered from members.
    pub recovered: u64,
    /// Number of positions between `behind` and `through` that no answering member knows.
    pub missing: u64,
    /// Members that did not report their deliveries, and therefore are no longer members.
    pub fenced: Vec<ProcessId>,
}

/// Deliveries by position.
type Messages = BTreeMap<Position, (MessageId, Class, Bytes)>;

/// A survivor's collection of members' deliveries.
#[derive(Debug)]
pub(super) struct Gathering {
    generation: Generation,
    /// The generation to which the survivor belonged until now. The deliveries of a process that the
    /// survivor's log does not know count only if they belong to this generation, because deliveries of
    /// another generation may have the same positions.
    before: Generation,
    behind: Position,
    /// Time after which the survivor no longer waits for silent members; `None` once the entry is proposed.
    until: Option<Time>,
    through: Position,
    messages: Messages,
    /// The deliveries of processes that the survivor's log does not know.
    newcomers: BTreeMap<ProcessId, Messages>,
    /// The processes that have answered. For a process that reported all its deliveries, the value is the
    /// number up to which it knows the outcomes of its own messages.
    answers: BTreeMap<ProcessId, Option<u64>>,
    /// Entries of the survivor's log that were not known to be chosen.
    unchosen: Vec<Bytes>,
}

impl Gathering {
    /// Creates a collection for `generation`, which continues `before` and the history up to `behind`.
    pub(super) fn new(
        before: Generation,
        generation: Generation,
        behind: Position,
        until: Time,
        unchosen: Vec<Bytes>,
    ) -> Self {
        Gathering {
            generation,
            before,
            behind,
            until: Some(until),
            through: behind,
            messages: Messages::new(),
            newcomers: BTreeMap::new(),
            answers: BTreeMap::new(),
            unchosen,
        }
    }

    pub(super) fn until(&self) -> Option<Time> {
        self.until
    }

    /// Notes a process that follows and has delivered nothing.
    pub(super) fn take_newcomer(&mut self, from: ProcessId) {
        self.answers.insert(from, Some(0));
    }

    /// Takes a process's answer. If `known`, the survivor's log has the process as a member that is not
    /// fenced off, so the process's deliveries in earlier generations count, too. A process may answer twice;
    /// both answers are the same.
    pub(super) fn take(&mut self, from: ProcessId, tail: Tail, known: bool) {
        self.take_behind(from, tail, known, self.behind);
    }

    /// Takes the answer of a process. No process of its part lacks anything up to `behind`, so this
    /// collection leaves out earlier deliveries.
    pub(super) fn take_behind(&mut self, from: ProcessId, tail: Tail, known: bool, behind: Position) {
        if tail.generation != self.generation || self.until.is_none() {
            return;
        }
        if !known && tail.before != self.before {
            self.answers.insert(from, None);
            return;
        }
        // Last position up to which the kept deliveries follow each other without a gap, starting at
        // `behind`.
        let mut whole_to = behind;
        let mut messages = Messages::new();
        let items = tail.blocks.into_iter().flat_map(DeliverBlock::into_items).map_while(Result::ok);
        for Delivery { kind, at, previous, sender, number, body, .. } in items {
            let class = match kind {
                DeliveryKind::Data => Class::Data,
                DeliveryKind::Control => Class::Control,
                DeliveryKind::Injected => continue,
            };
            if at > whole_to && previous <= whole_to {
                whole_to = at;
            }
            if at.0 - self.behind.0.min(at.0) > POSITIONS_MAX {
                break;
            }
            if at > behind {
                messages.entry(at).or_insert((MessageId { sender, number }, class, body));
            }
        }
        let whole = whole_to >= tail.delivered;
        self.answers.insert(from, whole.then_some(tail.acknowledged));
        if known {
            self.merge(messages);
        } else if whole {
            self.newcomers.insert(from, messages);
        }
    }

    /// Adds a process's deliveries to the history.
    fn merge(&mut self, messages: Messages) {
        for (at, message) in messages {
            self.through = self.through.max(at);
            self.messages.entry(at).or_insert(message);
        }
    }

    /// Admits processes that joined after the end of the survivor's log, in the order of their joining, if
    /// no earlier position is missing. A missing message might have changed the configuration that these
    /// processes got.
    fn admit(&mut self) {
        let newcomers = std::mem::take(&mut self.newcomers).into_iter();
        let joined =
            newcomers.filter_map(|(who, messages)| Some((*messages.first_key_value()?.0, who, messages)));
        let mut joined: Vec<(Position, ProcessId, Messages)> = joined.collect();
        joined.sort_by_key(|(at, who, _)| (*at, *who));
        for (at, who, messages) in joined {
            let known = self.messages.range(..at).count() as u64;
            if self.behind.0 + known + 1 == at.0 {
                self.merge(messages);
            } else {
                self.answers.insert(who, None);
            }
        }
    }

    /// Whether all these members have answered.
    pub(super) fn is_complete(&self, members: &[ProcessId]) -> bool {
        members.iter().all(|member| self.answers.contains_key(member))
    }

    /// Ends the collection. Returns the entries to propose; the last ones are messages that the survivor had
    /// accepted. The survivor's entries about stability are dropped, because their positions may hold other
    /// messages now. The joining of a process that did not report is dropped, too: it may have joined already
    /// in the lost part.
    pub(super) fn finish(&mut self) -> Vec<Bytes> {
        let recovery = self.recovery();
        let mut entries = vec![LogEntry::encode_recovered(&recovery)];
        let counts = |entry: &Bytes| match LogEntry::decode(entry.clone()) {
            Ok(LogEntry::Route(block)) => recovery.reported.contains_key(&block.sender),
            _ => false,
        };
        entries.extend(std::mem::take(&mut self.unchosen).into_iter().filter(counts));
        entries
    }

    /// Ends the collection if no router survived: the entry also describes the earlier history.
    pub(super) fn finish_on_ground(&mut self, config: Bytes, sent: BTreeMap<ProcessId, u64>) -> Bytes {
        let mut recovery = self.recovery();
        let mut firsts = BTreeMap::new();
        for (_, id, ..) in &recovery.messages {
            firsts.entry(id.sender).or_insert(id.number);
        }
        recovery.earlier_history = Some(EarlierHistory { before: self.before, config, firsts, sent });
        LogEntry::encode_recovered(&recovery)
    }

    fn recovery(&mut self) -> Recovery {
        assert!(self.until.take().is_some(), "a generation begins once");
        self.admit();
        let messages = std::mem::take(&mut self.messages).into_iter();
        let answers = std::mem::take(&mut self.answers).into_iter();
        Recovery {
            generation: self.generation,
            behind: self.behind,
            through: self.through,
            messages: messages.map(|(at, (id, class, body))| (at, id, class, body)).collect(),
            reported: answers.filter_map(|(process, whole)| Some((process, whole?))).collect(),
            earlier_history: None,
        }
    }
}

/// Whether a recovered message may have this number, if the history expects the number `expected` of its
/// sender next.
pub(super) fn is_plausible(number: u64, expected: u64) -> bool {
    number >= expected && number - expected < NUMBERS_MAX
}
