//! E-Cast: ordered multicast as stateful routing.
//!
//! **Promise.** Every message that a *member* (an application process) submits gets one position in one total
//! order. Every process of its destination set that does not fail delivers it, in that order: uniformly,
//! causally, without gaps per sender, exactly once. The destination set is a function of the message and of
//! all messages before it ([`Routing`]). So a membership or placement change takes effect between two
//! positions, the same two everywhere. The submitter learns one [`Outcome`] per message.
//!
//! **Source.** 002 §5, algorithms 1 and 2 with the optimisations that the paper names, and its appendix for
//! the predicates.
//!
//! **Roles.** [`Router`]s agree on the order through [`paxos`](crate::paxos). They replicate the *order*: the
//! live part of the history, each configuration that was valid in it, and the numbers that each sender has
//! submitted. One router, the paxos leader, *dispatches*: it routes and delivers messages, counts
//! confirmations, reports stability and gives out credits. [`Member`]s submit, deliver and confirm.
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
//! - *Learning (S3).* A router appends a learned message iff its number is its sender's next. All routers do
//!   the same, so they hold the same history. A member keeps a submitted message until it knows the outcome.
//!   It sends all kept messages again when a router announces a leader, even the same leader again, when the
//!   link to its router breaks, or when news of its messages is overdue. Routers keep no message that they
//!   have not learned. If a message was learned before, they answer it and do not append it again.
//! - *Delivering (S4).* A delivery at `t` carries `previous`, the position before it for that destination. A
//!   member delivers iff `previous <= t_max < t`; otherwise it asks for repair or confirms again. So it may
//!   listen to any number of routers that believe they lead.
//! - *Confirming.* `Confirm { through }` covers all messages for that process up to `through`.
//! - *Durable.* A confirmation also carries the position up to which nothing need be sent again, whatever
//!   happens to the process. A process without a disk reports all that it delivered. Routers keep a message
//!   until every destination reports it durable, and only then does the log call the message stable. Nobody
//!   waits for this: it only decides when messages are collected. A process that comes back from its disk
//!   confirms less than before, and gets the rest again.
//! - *Stability.* A message is stable once every destination has confirmed it, or has left or is away
//!   ([`Pace::Away`]) by an ordered message. The leader tells the submitter at once, and logs the fact later.
//!   The log keeps a watermark and a sparse set per sender. As long as an away process does not have a
//!   message on disk, the leader does not log that the message is stable.
//! - *Adrift.* A member reports that it is adrift when its routers in reach have known no leader for longer
//!   than an election takes. Until a router leads, nothing is ordered, so its users need not wait. The report
//!   is a guess and decides nothing: a sent message keeps its place in the window and may still be ordered.
//! - *Base.* Every message at or below the *base* is stable. So a new leader routes the messages above it,
//!   and may start every destination's chain at `previous = 0`.
//!
//! **Where we differ, and why.**
//! - The paper's atomic broadcast learns whatever a live router proposed, so a member sends a message to a
//!   router once, and the router proposes it until it is learned. Our log may lose a proposal when its leader
//!   changes, and then the member sends again. It has to keep its window until it knows the outcomes anyway,
//!   and routers hold no second copy of it. The price is one window per member at a change of leader.
//! - Positions are sparse per destination. `previous` turns the paper's "any preceding message was sent
//!   first" into a check, instead of trust in channels: a link that breaks loses a suffix.
//! - The leader reports stability before it logs it. No later leader can contradict the fact, except by a
//!   weaker answer ([`Outcome::MaybeApplied`]). Reporting first saves one agreement round per message, and
//!   the syncs of all destinations. The leader answers submitters that ask again before the log has the fact.
//! - Followers do not route. They keep the configurations of the live range, and route it when they become
//!   leader.
//! - Data is submitted against credits, which return when destinations have *executed* it. So a slow scan
//!   holds back its writers and does not fill the routers' memory. Control messages need no credits (S7). A
//!   destination for which the cluster waits, or that catches up, uses nobody's credit ([`Pace`]).
//! - Routers judge some messages by more than the configuration ([`Routing::Ledger`]), for example by the
//!   request ids that applications made up earlier. Routers keep this knowledge and refuse messages by it;
//!   members need not have it.
//! - An operator can let a domain continue after it lost a majority of its routers for good, without forging
//!   its past ([`Reformed`]), even if no router is left ([`RouterCommand::Refound`]). The paper leaves this
//!   open. For the second case, deliveries carry the leader's base.
//! - The founding configuration is the log's first entry, so that joining routers do not begin with a
//!   configuration of their own.
//! - A process whose joining is refused learns why. It sends again, and joins once the reason is gone.
//! - If a part of the domain wants it ([`Routing::expulsion`]), the lead router removes a member that died. A
//!   log entry stands for the message by which the member would have left, under the member's next number. If
//!   the member submitted that number itself, the entry has no effect. So routers, members and checkers need
//!   no second kind of departure.
//! - The ids of the last 4,096 departed senders are remembered, so that a copy of a departed sender's join
//!   message cannot admit it again.

mod block;
mod commands;
mod detour;
mod dispatch;
mod entry;
mod fence;
mod latest;
mod live_range;
mod member;
mod message;
mod monitor;
mod order;
mod pause;
mod poll;
mod reach;
mod recovery;
mod reform;
mod refound;
#[cfg(test)]
mod rig;
mod router;
mod station;
#[cfg(test)]
mod toy;
mod unconfirmed;
mod watch;

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use smallvec::SmallVec;

use crate::{
    admission::NotAdmitted,
    id::{Peer, ProcessId},
    wire::{Wire, decode_body},
};

pub use self::{
    commands::{RouterCommand, RouterEvent, RouterRefusal},
    fence::Fence,
    member::{Member, MemberCommand, MemberEvent, MemberSettings, Submissions},
    message::Message,
    order::Ordered,
    poll::{Pledge, RefoundRefusal, Witness},
    reform::{Reformed, Tail},
    router::{Router, RouterSettings, RouterStatus},
    station::{OrderCarrier, Station, StationCommand, StationEvent},
};

/// A position in the total order, counted from 1; 0 means "nothing yet".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, Wire)]
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

/// A message's name: its sender, and its number among the sender's submissions, counted from 1 without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Wire)]
pub struct MessageId {
    /// The submitting process.
    pub sender: ProcessId,
    /// The number.
    pub number: u64,
}

/// The class of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Class {
    /// The message never changes the configuration, and needs credits.
    Data,
    /// The message may change the configuration, and needs no credits.
    Control,
}

/// The outcome of a submitted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// Every destination delivered the message or failed, and in each group at least one process delivered
    /// it.
    Stable,
    /// Some group lost all its processes before one of them confirmed.
    MaybeApplied,
    /// The routing refused the message when it was ordered. No process delivers it.
    Rejected(Refusal),
    /// The sender was no member when the message was ordered. No process delivers it.
    Wedged,
}

/// The reason why routing refused a message. The application defines the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Refusal(pub u64);

/// The destinations of a message.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Destinations {
    /// The processes, without duplicates; at most 64 if there are groups.
    pub processes: SmallVec<[ProcessId; 4]>,
    /// Groups of which at least one process must confirm for the outcome [`Outcome::Stable`]. Bit `i` stands
    /// for `processes[i]`.
    pub groups: SmallVec<[u64; 2]>,
}

/// A destination's effect on the credit of its submitters (S7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A message uses its submitter's credit until the process has executed it.
    Executes,
    /// The process catches up. A message uses credit only if it is routed while the process is very far
    /// behind.
    Receives,
    /// The cluster waits for the process, which may not return. No message uses credit on its account, and
    /// routers send the process nothing that needs credits.
    Waits,
    /// The process has a disk, and stopped for a moment of its own will. No message uses credit on its
    /// account, and nobody waits for its confirmations. Routers keep its messages until the process has them
    /// on disk.
    Away,
}

/// The application's part: a deterministic, versioned function from history to destinations (002 §5.6
/// "Config").
pub trait Routing: 'static {
    /// The state of a history that routing depends on.
    type Config: Clone + PartialEq + fmt::Debug + Serialize + DeserializeOwned + Send + Sync;

    /// The knowledge of the history by which routers judge messages, in addition to the configuration.
    /// Members do not have it.
    type Ledger: Default + Serialize + DeserializeOwned + Send;

    /// Notes a message at its position. Routers do not call this function for a control message that
    /// [`Routing::apply`] refused.
    ///
    /// # Errors
    ///
    /// The reason why the message is refused; then it has no destinations.
    fn admit(ledger: &mut Self::Ledger, at: Position, class: Class, body: &Bytes) -> Result<(), Refusal>;

    /// Returns the configuration after a control message, `None` if it changes nothing. The sender is a
    /// member of `config`, or would be a member of the returned configuration.
    ///
    /// # Errors
    ///
    /// The reason why the message is refused.
    fn apply(
        config: &Self::Config,
        at: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<Self::Config>, Refusal>;

    /// Returns a message's destinations under the configuration that includes the message's own effect.
    fn destinations(
        config: &Self::Config,
        id: MessageId,
        class: Class,
        body: &Bytes,
    ) -> Result<Destinations, Refusal>;

    /// Whether `process` is a member.
    fn is_member(config: &Self::Config, process: ProcessId) -> bool;

    /// Returns the reason why a process did not become a member by its message, which [`Routing::apply`] has
    /// refused. The routers tell the process the reason.
    fn not_admitted(_config: &Self::Config, _sender: ProcessId, _body: &Bytes) -> Option<NotAdmitted> {
        None
    }

    /// Returns the member of this node, unless the cluster has given it up.
    fn of_node(_config: &Self::Config, _node: u64) -> Option<Peer> {
        None
    }

    /// Returns the control message by which routers remove a dead member in its name
    /// ([suspicion](crate::suspicion)). `None` if the process is no member, or if processes other than
    /// routers judge members of this part.
    fn expulsion(_config: &Self::Config, _process: ProcessId) -> Option<Bytes> {
        None
    }

    /// Returns all members, in id order.
    fn members(config: &Self::Config) -> Vec<ProcessId>;

    /// Returns how unexecuted messages for `process` use their submitters' credit (S7).
    fn pace(_config: &Self::Config, _process: ProcessId) -> Pace {
        Pace::Executes
    }

    /// Returns what the destination needs in addition to the message. A joining process needs the
    /// configuration.
    fn attachment(
        config: &Self::Config,
        id: MessageId,
        body: &Bytes,
        destination: ProcessId,
    ) -> Option<Bytes>;

    /// Returns the configuration that a member reports when a domain is founded again from members
    /// ([`Witness`]); `None` if the bytes are no configuration.
    fn witnessed(word: &Bytes) -> Option<Self::Config> {
        decode_body(&mut word.clone()).ok()
    }

    /// Returns the version of routing logic with which the domain was founded (S8).
    fn version(_config: &Self::Config) -> u32 {
        1
    }

    /// Returns the tag of the part of the domain whose configuration these bytes report. A routing that is
    /// not divided into parts has only one tag.
    fn witnessed_part(_word: &Bytes) -> u8 {
        0
    }

    /// Returns the configuration with which a domain continues if it is founded again from members.
    /// `reported` has one configuration for each part whose members report, and `begun` is the founder's own
    /// configuration.
    fn continued(begun: &Self::Config, reported: Vec<(u8, Self::Config)>) -> Self::Config {
        reported.into_iter().next().map_or_else(|| begun.clone(), |(_, config)| config)
    }
}
