//! A new generation: a domain goes on after a majority of its routers is gone for good (rule S1).
//!
//! **Promise.** Once an operator has said so to one surviving router, the domain has one history again, which contains
//! everything in that router's log and everything that a surviving member has delivered, the latter at the positions that
//! it had.
//! So replicas that were apart in how far they had come are alike again, and no acknowledged message is lost as long as
//! one of its destinations survives and answers. What else had been ordered is lost; its sender, which still has it,
//! submits it again, or is told [`Outcome::MaybeApplied`](super::Outcome::MaybeApplied) where its number cannot be used
//! any more. Nothing that the old routers may yet say has an effect.
//!
//! **Source.** Rule S1 of the design; the papers have no counterpart. The idea is that of view changes (001 §5): the
//! survivors' messages are gathered, cut and made equal before anything new is said.
//!
//! **Roles.** The *survivor* is a router whose log goes furthest, chosen by the operator's tool: by the ballot its log
//! was accepted in, then by its length. Members answer it. All other routers of the old generation end; fresh ones join.
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
//! - *The fence.* A process enters a generation once and never goes back; upon that its links to routers of earlier ones
//!   break, and no new ones come about ([`Fence`](super::Fence)). A member says what it has
//!   delivered only behind its fence. So what it says stays true: nobody delivers to it any more in the old generation.
//!   And nothing that was submitted before the fence is ordered behind it as if it were new: a member submits only to
//!   routers that have said, on the link that stands, who leads in its generation; and from whoever it asked the survivor
//!   takes nothing before the answer. Otherwise one that had joined in what is lost would join once more, with deliveries
//!   of another order.
//! - *Facts keep their positions.* What any member has delivered is at its position in the new history, or that member
//!   is fenced off. Positions that nobody can fill are holes; they go to nobody.
//! - *Silence before the cut.* Until `Recovered` is learned the survivor orders nothing, confirms nothing and delivers
//!   nothing, so new messages lie behind all recovered positions. Nor does it take in another router, which might come to
//!   lead without having gathered anything.
//! - *Who does not answer is out.* A member that did not say what it has, or cannot say all of it, may be ahead of the
//!   cut; it is told that it is no member, whenever it appears, and never delivered to. (Rubberband's supers then find it
//!   silent and suspect it as ever, S14 included.) The log may not know it: it had joined in what is lost. It finds out by
//!   itself if it hears who leads the generation without having been asked what it has, for then the cut was made without
//!   it; and if it was asked, it says so again until it hears of it, and submits nothing before: its joining would be
//!   ordered once more, for a process that stops. Who had delivered nothing has nothing that the cut could lack, and joins.
//!
//! **Attacks considered.**
//! - *An old router thaws and leads on.* Nobody of the new generation hears it. With a majority of its own it may go on
//!   choosing, for members that did not answer either; they are fenced off when they come back. Having voted the survivor
//!   out meanwhile, it looks for no link to it, nor does anybody to it: so every router looks for a link to whatever router is
//!   found where it was told to seek ([`RouterCommand::Seeds`](super::RouterCommand::Seeds)), and the fence tells it.
//! - *Two operators, two survivors.* Each becomes a generation of its own. The tool refuses a router that is not the
//!   furthest of those that answer, and one that follows a leader; whoever has two cut-off survivors go on has two domains.
//!   Their generations bear the survivors' names, so no process of one is ever linked to one of the other, and a member is
//!   in the one that it heard of first. Of a generation that goes on from one of them, processes of the other one hear,
//!   but what they delivered is of another history: they are cut off, as whoever did not answer. Of processes that the log
//!   does not know a tail counts only if it was delivered in the survivor's own generation; it says in which it was.
//! - *A process that joined in what is lost.* It was given a configuration, and delivered from there on. If anything is
//!   missing before, that may have been part of the configuration: then it is out, and what only it delivered is lost.
//! - *The survivor led, and was cut off.* Behind what it knows to be chosen it accepted what nobody else did, and others
//!   ordered something else there, which members delivered. So of its log only what is chosen keeps its positions before
//!   the members are heard; the rest comes behind what they say, if its senders' numbers still fit.
//! - *The survivor has a disk, and is restarted before the cut.* It has the fence of its generation and a log that does not say with
//!   what that begins. So it goes on alone once more, and asks members anew; they have delivered nothing since. Were it to lead from
//!   its log alone, what only members had delivered would be lost, and replicas that are ahead of it would stay so. If the log has
//!   the entry, known to be chosen or not, members may have heard of the beginning, and it stands. A founder
//!   ([`refound`](super::refound)) whose entry is not there has lost its ground: it ends, and the next begins behind it.
//! - *A message half delivered.* The replica that has it hands it over, the other gets it, at the same position.
//! - *A sender ahead of the log.* What it was told to be stable was delivered, so it is recovered or had no living
//!   destination; its next number is behind what it acknowledged, and it does not wait for ever.
//!
//! **Memory.** Members keep their last deliveries, at most [`TAIL_BYTES_MAX`] of them: more than a follower lags behind.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Class, MessageId, Position,
    block::{DeliverBlock, Delivery, DeliveryKind},
    entry::LogEntry,
};
use crate::{
    id::{Generation, ProcessId},
    time::Time,
};

/// How much of what was delivered last a member keeps. Twice what a leader lets be in flight to its followers.
pub(super) const TAIL_BYTES_MAX: usize = 16 << 20;

/// A recovered number of a sender lies no further than this behind the last one known: credits bound what is under way.
pub(super) const NUMBERS_MAX: u64 = 1 << 17;

/// No member is this many positions ahead of a survivor, or it is cut off: each is kept, known or not.
const POSITIONS_MAX: u64 = 1 << 22;

/// What a member answers the survivor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The generation it has entered.
    pub generation: Generation,
    /// The last one before that whose routers it heard after their cut: it delivered what it has there, or earlier.
    pub before: Generation,
    /// The last position it has delivered.
    pub delivered: Position,
    /// It knows the outcomes of all its own messages up to this number.
    pub acknowledged: u64,
    /// What was delivered last, in the order in which it came.
    pub(super) blocks: Vec<DeliverBlock>,
}

/// A member's last deliveries.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Each with the last position in it.
    blocks: VecDeque<(Position, DeliverBlock)>,
    bytes: usize,
    /// Nothing that was delivered behind this position has been let go.
    behind: Position,
}

impl Kept {
    /// Nothing is kept of what was delivered up to there.
    pub(super) fn from(behind: Position) -> Kept {
        Kept { behind, ..Kept::default() }
    }

    /// Keeps a block, of which `last` is the last position.
    pub(super) fn push(&mut self, last: Position, block: DeliverBlock) {
        self.bytes += block.bytes();
        self.blocks.push_back((last, block));
        while self.bytes > TAIL_BYTES_MAX {
            let (last, oldest) = self.blocks.pop_front().expect("what is counted is kept");
            self.bytes -= oldest.bytes();
            self.behind = self.behind.max(last);
        }
    }

    pub(super) fn blocks(&self) -> Vec<DeliverBlock> {
        self.blocks.iter().map(|(_, block)| block.clone()).collect()
    }

    /// Everything delivered behind this position is kept.
    pub(super) fn behind(&self) -> Position {
        self.behind
    }
}

/// The log entry that a generation begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recovery {
    pub(super) generation: Generation,
    /// The survivor's last position.
    pub(super) behind: Position,
    /// The last position that a member has delivered.
    pub(super) through: Position,
    /// What is known of the positions between, in their order.
    pub(super) messages: Vec<(Position, MessageId, Class, Bytes)>,
    /// Who said all that it has, and up to which of its numbers it knows the outcomes.
    pub(super) reported: BTreeMap<ProcessId, u64>,
    /// What there is before, where no router survived.
    pub(super) ground: Option<Ground>,
}

/// What a history begins with that goes on from members alone ([`refound`](super::refound)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ground {
    /// The generation whose history goes on.
    pub(super) before: Generation,
    /// The configuration behind which the recovered messages come, encoded.
    pub(super) config: Bytes,
    /// The first number of each sender among these.
    pub(super) firsts: BTreeMap<ProcessId, u64>,
    /// The last number that each process gave to a message of its own.
    pub(super) sent: BTreeMap<ProcessId, u64>,
}

impl Recovery {
    /// Whether it may stand behind `last`, the end of the history that it is learned in.
    pub(super) fn fits(&self, last: Position) -> bool {
        let ahead = self.through.0.checked_sub(self.behind.0);
        let continues = if self.ground.is_some() { last == Position(0) } else { self.behind == last };
        continues && ahead.is_some_and(|ahead| ahead <= POSITIONS_MAX)
    }
}

/// What a generation began with, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reformed {
    /// Which.
    pub generation: Generation,
    /// No router survived: the history goes on from what members had in this generation.
    pub from_members: Option<Generation>,
    /// The last position of the surviving router; without one, the last up to which every member that followed lacked nothing.
    pub behind: Position,
    /// The last position that a member had delivered; the surviving router's, if no member was ahead of it.
    pub through: Position,
    /// How many positions between were recovered from members.
    pub recovered: u64,
    /// How many were not: nobody who answered knows what was there.
    pub missing: u64,
    /// Members that did not say what they have, and so are members no more.
    pub fenced: Vec<ProcessId>,
}

/// What was delivered, by its position.
type Messages = BTreeMap<Position, (MessageId, Class, Bytes)>;

/// The survivor waits for what members have.
#[derive(Debug)]
pub(super) struct Gathering {
    generation: Generation,
    /// The survivor's generation until now. What was delivered in another one may stand at the same positions, unless by a
    /// member.
    before: Generation,
    behind: Position,
    /// When those who have not answered are given up; `None` once the entry is proposed.
    until: Option<Time>,
    through: Position,
    messages: Messages,
    /// The same of processes that the survivor's log does not know.
    newcomers: BTreeMap<ProcessId, Messages>,
    /// Who answered, and if with all that it has, which of its numbers it knows the outcomes of.
    answers: BTreeMap<ProcessId, Option<u64>>,
    /// What the survivor's log had behind what was known to be chosen.
    unchosen: Vec<Bytes>,
}

impl Gathering {
    /// `generation` goes on from `before` and the history up to `behind`.
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

    /// A process that has delivered nothing follows.
    pub(super) fn take_newcomer(&mut self, from: ProcessId) {
        self.answers.insert(from, Some(0));
    }

    /// A process answers; `known`: the survivor's log has it for a member that is not cut off, so what it delivered in earlier
    /// generations stands there too. One that answers twice was asked twice, and says the same.
    pub(super) fn take(&mut self, from: ProcessId, tail: Tail, known: bool) {
        if tail.generation != self.generation || self.until.is_none() {
            return;
        }
        if !known && tail.before != self.before {
            self.answers.insert(from, None);
            return;
        }
        // Whether the deliveries kept continue each other from the survivor's last position on.
        let mut whole_to = self.behind;
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
            if at > self.behind {
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

    /// Takes what somebody has delivered for what there was.
    fn merge(&mut self, messages: Messages) {
        for (at, message) in messages {
            self.through = self.through.max(at);
            self.messages.entry(at).or_insert(message);
        }
    }

    /// Those who joined behind the survivor's end stay, in the order in which they did, if nothing is missing before: what
    /// is might have changed the configuration that they were given.
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

    /// Whether all of these have answered.
    pub(super) fn is_complete(&self, members: &[ProcessId]) -> bool {
        members.iter().all(|member| self.answers.contains_key(member))
    }

    /// Ends the waiting: the entries to propose. Messages that the survivor had accepted come last; what it accepted about
    /// the stability of positions may be of others now, and is found out anew. Nor does the joining of a process count that
    /// did not say what it has: it may have joined already, in what is lost.
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

    /// The same where no router survived: the entry tells what there is before, too.
    pub(super) fn finish_on_ground(&mut self, config: Bytes, sent: BTreeMap<ProcessId, u64>) -> Bytes {
        let mut recovery = self.recovery();
        let mut firsts = BTreeMap::new();
        for (_, id, ..) in &recovery.messages {
            firsts.entry(id.sender).or_insert(id.number);
        }
        recovery.ground = Some(Ground { before: self.before, config, firsts, sent });
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
            ground: None,
        }
    }
}

/// Whether a message recovered from somewhere may be its sender's, of whom `expected` would be the next.
pub(super) fn is_plausible(number: u64, expected: u64) -> bool {
    number >= expected && number - expected < NUMBERS_MAX
}
