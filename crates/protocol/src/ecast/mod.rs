//! E-Cast: ordered multicast as stateful routing.
//!
//! **Promise.** Every message that any *member* (application process) submits gets one position in one total order, and
//! is delivered, in that order, by every process of its destination set that does not fail: uniformly, causally, without
//! gaps per sender, exactly once. The destination set is a function of the message and of all messages before it
//! ([`Routing`]), so a membership or placement change takes effect between two positions, the same two everywhere. The
//! submitter is told one [`Outcome`] per message.
//!
//! **Source.** 002 §5, algorithms 1 and 2 with the optimisations the paper names, and its appendix for the predicates.
//!
//! **Roles.** [`Router`]s agree on the order through [`paxos`](crate::paxos) and replicate the *order*: the
//! history's live part, one configuration per distinct stretch, what each sender has submitted. One of them, the paxos
//! leader, *dispatches*: routes, delivers, counts confirmations, tells stability, hands out credits.
//! [`Member`]s submit, deliver and confirm.
//!
//! ```text
//!  member            lead router               routers              destinations
//!    │ Route(7..9, …)     │                       │                      │
//!    ├───────────────────▶│ propose               │                      │
//!    │                    ├──── paxos: accept ───▶│                      │
//!    │                    │◀─── accepted ─────────┤                      │
//!    │            learn: positions 41..43         │ learn                │
//!    │                    ├──── Deliver(41, previous 38, …) ────────────▶│
//!    │                    │◀─── Confirm(through 43, executed 40) ────────┤
//!    │◀── Notice(7..9 stable, credit) ─┤          │                      │
//!    │                    ├──── paxos: Stable(41..43) ───▶ (in the background)
//! ```
//!
//! **Invariants.**
//! - *Learning (S3).* A router appends a learned message iff its number is its sender's next; all routers do the same,
//!   so they hold the same history. A member keeps what it submitted until it knows the outcome, and sends all of it
//!   again whenever a router tells it of a leader (again), its link breaks, or news stays out too long. Routers keep
//!   nothing that they have not learned; what was learned before is answered, not appended.
//! - *Delivering (S4).* A delivery at `t` carries `previous`, the position before it for that destination. A member
//!   delivers iff `previous <= t_max < t`, and otherwise asks for repair or re-confirms. So it may listen to any number
//!   of routers that believe they lead.
//! - *Confirming.* `Confirm { through }` covers all that was destined to that process up to `through`.
//! - *Durable.* A confirmation says as well up to where nothing need be sent again, whatever happens to the process: for one
//!   without a disk that is all that it delivered. Routers keep a message until that is so at every destination: only then
//!   does the log say that it is stable. Nobody waits for it: it decides what is collected, and nothing else. A process that
//!   comes back from its disk confirms less than before, and is sent what is behind.
//! - *Stability* is a fact once every destination has confirmed, has left by an ordered message, or is away by one
//!   ([`Pace::Away`]). The leader tells the
//!   submitter at once and logs it later, per message; the log keeps a watermark and a sparse set per sender. It logs nothing
//!   that a process which is away does not have durable yet.
//! - *Adrift.* A member whose routers in reach have known no leader for longer than an election takes says so. Nothing that
//!   it submitted or will submit is ordered until one leads, so its users need not wait to learn that. It is a guess and
//!   decides nothing: what was sent keeps its place in the window, and may still be ordered.
//! - *Base.* Every message at or below the *base* is stable, so a new leader routes what is
//!   above it and may start every destination's chain at `previous = 0`.
//!
//! **Where we differ, and why.**
//! - The paper's atomic broadcast learns whatever a living router proposed, so a member sends a message to a router once
//!   and the router proposes it until it is learned. Our log may lose a proposal when its leader changes, and it is the
//!   member that sends again: it has to keep its window anyhow, until it knows the outcomes, and routers then hold no
//!   second copy of everything under way. The price is one window per member at a change of leader.
//! - Positions are sparse per destination, so `previous` makes the paper's "any preceding message was sent first" a
//!   check instead of a trust in channels (a link that breaks loses a suffix).
//! - Stability is told before it is logged: it is a fact that no later leader can contradict, except to a weaker answer
//!   ([`Outcome::MaybeApplied`]); this saves one agreement round per message, and the syncs of all destinations. Submitters
//!   that ask again meanwhile are told by the leader.
//! - Followers do not route. They keep configurations for the live stretch and route it when they come to lead.
//! - Data is submitted against credits that return when destinations have *executed*, so a slow scan holds back its
//!   writers and not the routers' memory; control messages need no credits (S7). A destination that is waited for, or
//!   receives what it missed, counts for nobody's credit ([`Pace`]).
//! - Some messages are judged by more than the configuration ([`Routing::Ledger`]): whether this one was there before.
//!   Routers keep that, and refuse; members need not know.
//! - A domain that lost a majority of its routers for good can be made to go on, without its past being forged
//!   ([`Reformed`]), even if no router is left ([`RouterCommand::Refound`]); the paper leaves that open. For the latter, what
//!   is delivered carries the leader's base.
//! - What a domain is founded with is the log's first entry, so that routers which join do not begin with a configuration of
//!   their own.
//! - A process whose joining is refused is told so: it sends again, and joins once the reason is gone.
//! - A member that died is taken out by the lead router where a part of the domain wants that ([`Routing::expulsion`]): an
//!   entry of the log stands for the message by which the member would have left, under its next number. So it is void if
//!   the member submitted that number itself, and routers, members and checkers need no second kind of departure.
//! - A departed sender's id is remembered for the next 4,096 departures, so that a
//!   duplicate of its join can not admit a ghost.

mod block;
mod commands;
mod detour;
mod dispatch;
mod entry;
mod fence;
mod member;
mod message;
mod order;
mod pause;
mod reform;
mod refound;
#[cfg(test)]
mod rig;
mod router;
mod stretch;
#[cfg(test)]
mod toy;
mod vigil;

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use smallvec::SmallVec;

use crate::{
    admission::NotAdmitted,
    id::{Peer, ProcessId},
    wire::decode_body,
};

pub use self::{
    commands::{RouterCommand, RouterEvent, RouterRefusal},
    fence::Fence,
    member::{Member, MemberCommand, MemberEvent, MemberSettings, Submissions},
    message::Message,
    order::Ordered,
    reform::{Reformed, Tail},
    refound::{Pledge, RefoundRefusal, Witness},
    router::{Router, RouterSettings, RouterStatus},
};

/// A position in the total order. The first message has 1; 0 means "nothing yet".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Position(pub u64);

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A message's name: who submitted it and which of its submissions it is, counted from 1 without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MessageId {
    /// The submitting process.
    pub sender: ProcessId,
    /// Its count.
    pub number: u64,
}

/// What a message may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Never changes the configuration; needs credits.
    Data,
    /// May change the configuration; needs no credits.
    Control,
}

/// What became of a submitted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// Every destination delivered it or failed, and each group that had to have a live replica has one that delivered.
    Stable,
    /// Some group lost all its replicas before one of them confirmed.
    MaybeApplied,
    /// The routing refused it when it was ordered; it was delivered nowhere.
    Rejected(Refusal),
    /// Its sender was no member when it was ordered; it was delivered nowhere.
    Wedged,
}

/// Why routing refused a message; the number is the application's (a range, a reason).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Refusal(pub u64);

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Destinations {
    /// The processes; no duplicates. At most 64 when there are groups.
    pub processes: SmallVec<[ProcessId; 4]>,
    /// Groups of which at least one process must have confirmed for the outcome to be [`Outcome::Stable`]: bit `i`
    /// stands for `processes[i]`.
    pub groups: SmallVec<[u64; 2]>,
}

/// How a destination holds back those who submit to it (S7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A message counts for its submitter's credit until it is executed there.
    Executes,
    /// It catches up: only what is routed to it once it is very far behind counts.
    Receives,
    /// It is waited for and may not return: nothing counts. It is sent nothing that needs credits.
    Waits,
    /// It stopped for a moment, of its own will and with a disk: nothing counts for credit, and nobody waits for its
    /// confirmations. What goes there meanwhile is kept until it is durable there.
    Away,
}

/// The application's part: a deterministic, versioned function from history to destinations (002 §5.6 "Config").
pub trait Routing: 'static {
    /// The checkpoint of all that matters of a history.
    type Config: Clone + PartialEq + fmt::Debug + Serialize + DeserializeOwned + Send + Sync;

    /// What routers keep of the history beside the configuration, to judge messages by. Members do not have it.
    type Ledger: Default + Serialize + DeserializeOwned + Send;

    /// Takes note of a message at its position, and may refuse it: then it goes nowhere. A control message that was refused
    /// by [`Routing::apply`] is not asked about.
    fn admit(ledger: &mut Self::Ledger, at: Position, class: Class, body: &Bytes) -> Result<(), Refusal>;

    /// The configuration after a control message, `None` if it changes nothing, or why it is refused. The message's
    /// sender is a member of `config`, or would be of the result.
    fn apply(
        config: &Self::Config,
        at: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<Self::Config>, Refusal>;

    /// Where a message goes under the configuration that includes its own effect.
    fn destinations(
        config: &Self::Config,
        id: MessageId,
        class: Class,
        body: &Bytes,
    ) -> Result<Destinations, Refusal>;

    /// Whether `process` is a member (and so unsuspected).
    fn is_member(config: &Self::Config, process: ProcessId) -> bool;

    /// Why the message of a process that is no member, which [`Routing::apply`] refused, does not make it one: what the
    /// process is told.
    fn not_admitted(_config: &Self::Config, _sender: ProcessId, _body: &Bytes) -> Option<NotAdmitted> {
        None
    }

    /// The member of this node that is not given up.
    fn of_node(_config: &Self::Config, _node: u64) -> Option<Peer> {
        None
    }

    /// The control message by which the routers take a member that died out, in its name ([suspicion](crate::suspicion)). None if
    /// the process is no member, or if members of this part are judged by others.
    fn expulsion(_config: &Self::Config, _process: ProcessId) -> Option<Bytes> {
        None
    }

    /// All members, in id order.
    fn members(config: &Self::Config) -> Vec<ProcessId>;

    /// Whether what `process` has not executed holds back those who submitted it (S7).
    fn pace(_config: &Self::Config, _process: ProcessId) -> Pace {
        Pace::Executes
    }

    /// What the destination needs beside the message itself (a joiner: the configuration).
    fn attachment(
        config: &Self::Config,
        id: MessageId,
        body: &Bytes,
        destination: ProcessId,
    ) -> Option<Bytes>;

    /// The configuration that a member bears witness to, where a domain is founded anew from members ([`Witness`]); `None` if
    /// the bytes are none.
    fn witnessed(word: &Bytes) -> Option<Self::Config> {
        decode_body(&mut word.clone()).ok()
    }
}
