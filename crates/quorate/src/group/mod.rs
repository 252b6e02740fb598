//! Process groups: an object with a copy in each of several programs, updated by sends whose strength is said by the verb.
//!
//! **Promise.** What [`quorate_protocol::group`] promises of its messages, for a type of the user's own: all [`Replica`]s of a group
//! apply the same updates in the same views, each sender's in its order, and `ordered` and `safe` ones in one order. Any member is
//! read without asking another. Who joins gets the state. Every send, flush and query ends once, and an [`Error`](crate::Error) says what may have
//! happened.
//!
//! **Source.** 000 (Isis2), figures 1, 3 and 4: the object, the verbs, the flush. The protocol, its invariants and the attacks on it
//! are [`quorate_protocol::group`]'s; here is what hosts it.
//!
//! **Roles.** A [node](crate::Node) has a process of the domain for all its groups; it needs routers, and no tables. A [`Member`] is this
//! program's end of one group. Its *inbox* holds what was delivered and not applied. The members that a process has of one group stand in
//! a *row* (`row`): each has an object and an inbox of its own, and every delivery goes into all of them. Updates on their way to the protocol
//! thread gather in the process's *outbox* (`outbox`).
//!
//! ```text
//!   caller ── send, query ──▶ outbox ──▶ protocol thread ═══ links ═══ other members, routers
//!      ◀── wakes ─────────────────────── │ deliveries, views, states
//!   reader ─┐                            ▼
//!           ├── whoever is first ──▶  inbox ──▶ apply, view, query, checkpoint, restore   (under the replica's lock)
//!   delivery thread ─┘
//! ```
//!
//! **Invariants.**
//! - *User code never runs on the protocol thread,* and that thread takes no lock under which user code runs: it fills the inbox, whose
//!   lock is held for a push. The order of locks is replica, then inbox.
//! - *One order.* Updates, views, queries and the taking of states come out of the inbox as they went in, whoever takes them. Each is
//!   applied once.
//! - *Read your sends.* A delivery is in the inbox before its send is answered, and a read applies what is in the inbox first.
//! - *A state of which nobody knows what it is is not used.* A panic in `apply`, `view`, `checkpoint` or `restore`, or bytes that do
//!   not decode, end this member: it is out as if it had failed, says why, and the others go on. `query` and reads are only lent the state.
//! - *A member that comes to others of its process* begins with the object of one of them, taken between the same two deliveries between
//!   which its first view stands; until it has that, its inbox waits.
//! - *In the order of the calls.* Sends, queries, flushes and all other commands of one caller reach the protocol in the order in which it made
//!   them, though sends go together and the others alone.
//! - *A slow member holds nobody up.* Receipts are given for what is in the inbox. A member whose inbox holds more than
//!   `INBOX_BYTES_MAX` is out.
//! - *Out of touch, nothing is shown for current*: sends, flushes, queries and reads are refused as soon as the process knows
//!   of no leader ([`OutOfTouch`](crate::Error::OutOfTouch)), and for good when it was dropped ([`Wedged`](crate::Error::Wedged)).
//! - *Nobody waits for routers that are away for good.* What the order was given before is waited for no longer than `AWAY_PATIENCE` out of touch:
//!   it may come about later ([`MaybeApplied`](crate::Error::MaybeApplied)).
//!
//! **Attacks considered.**
//! - *The member dies that others get the object from*, in this process or another one: whoever waits cannot tell that from one that is slow.
//!   So a member that owes its object takes its process out of the group, and another process gives it. One that owes nothing is out
//!   alone.
//! - *All that have the object leave while others of the process wait for it:* the oldest is kept until they have it.
//! - *A callback that uses its own member.* Sends from `apply` are fine, if nobody waits for them there. A read inside a callback would
//!   wait for itself: it is refused.
//! - *An answer that is put off never comes, or too late.* Nobody waits for a [`Promise`] but the asker, until its deadline or until
//!   the view lets the member go. One that is forgotten with its object declines.
//! - *A lock is dropped out of touch.* Its release is turned back as any send is, so each claim that was given up is remembered until that comes back
//!   in the order, and said again in touch. Said twice, the second says nothing.
//! - *A caller loses interest.* The send goes on; its answer is dropped where it arrives.
//! - *Nobody is left, and the state is in files.* Who may begin with which is `checkpoint`'s, and said there.
//! - *Two programs with different types in one group.* The state names its [`Replica::NAME`], so that who joins with another one
//!   is told both names, and leaves.
//! - *A sender that has no room.* At most `ROOM_BYTES` of a member's sends are under way; the next ones wait for room, in the order in which
//!   they are polled.
//!
//! **Where we differ, and why.** A group has one type of updates and one of queries, where the source has a handler for each number and list of
//! arguments; several kinds are an `enum`, which the compiler checks. The issue's sketch streams a state in chunks; the protocol takes it as one
//! piece of bytes, so [`Snapshot`] is one, too, and may be made by another thread ([`Snapshot::later`]). Replies to queries do not go through the
//! views: they are told once, and who asked counts those who did not answer.

mod answer;
mod checkpoint;
pub(crate) mod groups;
mod handlers;
mod inbox;
mod key;
mod lock;
mod member;
mod outbox;
mod process;
mod query;
mod row;
mod signature;
mod touch;

use std::{fmt, time::Duration};

use bytes::Bytes;
use quorate_protocol::ProcessId;
use serde::{Serialize, de::DeserializeOwned};

pub use self::{
    answer::{Answer, Later, Promise},
    groups::Group,
    handlers::Handlers,
    key::{Key, KeyId},
    lock::Lock,
    member::Member,
    query::{Absence, Missing, Query, Replied, Replies, Want},
};
pub use quorate_protocol::group::{Mark, Phi, Place};

/// An object with a copy at each member of a group.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use quorate::group::{Answer, Corrupt, Origin, Replica, Share, Snapshot};
///
/// #[derive(Default)]
/// struct Prices(BTreeMap<String, i64>);
///
/// impl Replica for Prices {
///     const NAME: &'static str = "prices/1";
///     type Update = (String, i64);
///     type Query = String;
///     type Reply = Option<i64>;
///
///     fn apply(&mut self, (symbol, cents): (String, i64), _: &Origin) {
///         self.0.insert(symbol, cents);
///     }
///     fn query(&self, symbol: String, _: Share) -> Answer<Option<i64>> {
///         Answer::Now(self.0.get(&symbol).copied())
///     }
///     fn checkpoint(&self) -> Snapshot {
///         Snapshot::of(&self.0)
///     }
///     fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
///         snapshot.read().map(Prices)
///     }
/// }
/// ```
pub trait Replica: Send + Sized + 'static {
    /// The name of the type, with its version: all replicas of a group have the same.
    const NAME: &'static str;
    /// A change of the object.
    type Update: Serialize + DeserializeOwned + Send;
    /// The questions that members may be asked; `()` if none.
    type Query: Serialize + DeserializeOwned + Send;
    /// Their answer.
    type Reply: Serialize + DeserializeOwned + Send;

    /// Changes the object. Called once for each update that is delivered, at every member, in the group's order, and must come to the
    /// same at each. A panic ends this member.
    fn apply(&mut self, update: Self::Update, origin: &Origin);

    /// Answers a query, in the state that is here. A panic is told to who asked.
    fn query(&self, query: Self::Query, share: Share) -> Answer<Self::Reply>;

    /// The object as it is, for a member that joined. Called at one member, between two updates: as long as it takes, this member applies
    /// nothing ([`Snapshot::later`] is for objects that are large).
    fn checkpoint(&self) -> Snapshot;

    /// The object that another member's [`Replica::checkpoint`] gave, or a checkpoint file.
    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt>;

    /// A view begins: who is in the group from the next update on. The first one comes right behind the state, which another member gave behind its
    /// own call for the same view: a change of the object that must not be made twice is no matter for this.
    fn view(&mut self, view: &View) {
        let _ = view;
    }
}

/// The object that a group is joined with: a [`Replica`], closures ([`Handlers`]), or a type that needs something of its own program's beside the
/// state, such as a channel to its windows.
pub trait Object: Send + Sized + 'static {
    /// As [`Replica::Update`].
    type Update: Serialize + DeserializeOwned + Send;
    /// As [`Replica::Query`].
    type Query: Serialize + DeserializeOwned + Send;
    /// As [`Replica::Reply`].
    type Reply: Serialize + DeserializeOwned + Send;

    /// As [`Replica::NAME`]. It never changes.
    fn name(&self) -> &str;
    /// As [`Replica::apply`].
    fn apply(&mut self, update: Self::Update, origin: &Origin);
    /// As [`Replica::query`].
    fn query(&self, query: Self::Query, share: Share) -> Answer<Self::Reply>;
    /// As [`Replica::checkpoint`].
    fn checkpoint(&self) -> Snapshot;
    /// As [`Replica::restore`]. This object is the one that the member brought along when it joined.
    fn restore(&self, snapshot: &Snapshot) -> Result<Self, Corrupt>;
    /// As [`Replica::view`].
    fn view(&mut self, view: &View) {
        let _ = view;
    }
}

impl<R: Replica> Object for R {
    type Update = R::Update;
    type Query = R::Query;
    type Reply = R::Reply;

    fn name(&self) -> &str {
        R::NAME
    }

    fn apply(&mut self, update: R::Update, origin: &Origin) {
        Replica::apply(self, update, origin);
    }

    fn query(&self, query: R::Query, share: Share) -> Answer<R::Reply> {
        Replica::query(self, query, share)
    }

    fn checkpoint(&self) -> Snapshot {
        Replica::checkpoint(self)
    }

    fn restore(&self, snapshot: &Snapshot) -> Result<R, Corrupt> {
        R::restore(snapshot)
    }

    fn view(&mut self, view: &View) {
        Replica::view(self, view);
    }
}

/// Where an update came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The process of its sender.
    pub sender: ProcessId,
    /// Whether it was this member that sent it.
    pub own: bool,
    /// Its place: in the soft messages that the sender's process sent in this view, or in the order.
    pub place: Place,
}

/// The part of a query that is this member's, if members share the work: that with `n % of == rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// This member's place among the members, oldest first.
    pub rank: usize,
    /// How many there are.
    pub of: usize,
}

/// The members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its number: later views have larger ones.
    pub number: u64,
    /// The processes of the members: a member's rank is its place. Older processes come first, and members of one process stand together,
    /// older ones first.
    pub members: Vec<ProcessId>,
    /// The processes of those that were not in the view before.
    pub joined: Vec<ProcessId>,
    /// The processes of those of the view before that are not in this one.
    pub left: Vec<ProcessId>,
    /// The process of this member.
    pub me: ProcessId,
    place: Option<usize>,
    /// How many soft messages were lost with each sender that is gone, though a safe one behind them was delivered. Only with a φ
    /// below all.
    pub missing: Vec<(ProcessId, u64)>,
    /// How long soft sends of this member waited for it; zero for its first view.
    pub waited: Duration,
}

impl View {
    /// This member's place.
    pub fn rank(&self) -> Option<usize> {
        self.place
    }
}

/// An object in bytes.
pub struct Snapshot(Content);

enum Content {
    Here(Result<Bytes, String>),
    Later(Box<Write>),
}

/// Writes an object behind what is there.
type Write = dyn FnOnce(Vec<u8>) -> Result<Vec<u8>, String> + Send;

impl Snapshot {
    /// Of this value, as `serde` writes it.
    pub fn of(value: &impl Serialize) -> Snapshot {
        Snapshot(Content::Here(written(value, Vec::new()).map(Bytes::from)))
    }

    /// Of these bytes.
    pub fn of_bytes(bytes: impl Into<Bytes>) -> Snapshot {
        Snapshot(Content::Here(Ok(bytes.into())))
    }

    /// Of a value that another thread writes while this member goes on: a copy that costs little to make, such as an `Arc` or a
    /// persistent map. Large byte strings are best kept as `bytes::Bytes`, which are written at once; a `Vec<u8>` is written byte by byte.
    pub fn later(value: impl Serialize + Send + 'static) -> Snapshot {
        Snapshot(Content::Later(Box::new(move |behind| written(&value, behind))))
    }

    /// The value in it.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Corrupt> {
        match postcard::take_from_bytes(self.bytes()?) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(Corrupt(format!("{} bytes are left over", rest.len()))),
            Err(error) => Err(Corrupt(error.to_string())),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Result<&[u8], Corrupt> {
        match &self.0 {
            Content::Here(Ok(bytes)) => Ok(bytes),
            Content::Here(Err(why)) => Err(Corrupt(why.clone())),
            Content::Later(_) => Err(Corrupt(String::from("it is still to be written"))),
        }
    }

    /// Its bytes behind these; written now if they are not, so that a large object is not copied for them.
    fn finish_behind(self, mut head: Vec<u8>) -> Result<Vec<u8>, String> {
        match self.0 {
            Content::Here(bytes) => {
                head.extend_from_slice(&bytes?);
                Ok(head)
            }
            Content::Later(write) => write(head),
        }
    }

    fn is_late(&self) -> bool {
        matches!(self.0, Content::Later(_))
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Content::Here(Ok(bytes)) => write!(f, "Snapshot({} bytes)", bytes.len()),
            Content::Here(Err(why)) => write!(f, "Snapshot({why})"),
            Content::Later(_) => f.write_str("Snapshot(later)"),
        }
    }
}

/// A state that does not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Corrupt(pub String);

/// A value in bytes, behind these.
fn written(value: &impl Serialize, behind: Vec<u8>) -> Result<Vec<u8>, String> {
    postcard::to_extend(value, behind).map_err(|error| format!("it does not serialise: {error}"))
}
