//! Process groups: an object with a copy in each of several programs. The name of each sending method states
//! its guarantee.
//!
//! **Promise.** The promise of [`quorate_protocol::group`] for messages holds here for a user's own type: all
//! [`Replica`]s of a group apply the same updates in the same views. The updates of each sender come in the
//! sender's order, and all `ordered` and `safe` updates in one total order. A read of any member asks no
//! other member. A process that joins receives the group's state. Every send, flush and query ends once, and
//! an [`Error`](crate::Error) says what may have happened.
//!
//! **Source.** 000 (Isis2), figures 1, 3 and 4: the object, the verbs, the flush. The protocol, its
//! invariants and its attacks are in [`quorate_protocol::group`]. This module hosts the protocol.
//!
//! **Roles.** A [node](crate::Node) has one process of the domain for all its groups; a node needs routers,
//! and no tables. A [`Member`] is this program's end of one group. The member's *inbox* holds deliveries that
//! the member has not applied. The members of one group in one process form a *row* (`row`). Each member has
//! its own object and inbox, and every delivery goes into all inboxes of the row. Updates on their way to the
//! protocol thread gather in the process's *outbox* (`outbox`).
//!
//! ```text
//!   caller ── send, query ──▶ outbox ──▶ protocol thread ═══ links ═══ other members, routers
//!      ◀── wakes ─────────────────────── │ deliveries, views, states
//!   reader ─┐                            ▼
//!           ├── the first of both ─▶  inbox ──▶ apply, view, query, checkpoint, restore   (replica's lock)
//!   delivery thread ─┘
//! ```
//!
//! **Invariants.**
//! - *User code never runs on the protocol thread,* and that thread takes no lock under which user code runs.
//!   The protocol thread fills the inbox, whose lock is held for one push. The order of locks is replica,
//!   then inbox.
//! - *One order.* Updates, views, queries and requests for states leave the inbox in the order in which they
//!   entered, whichever thread takes them. The member applies each of them once.
//! - *Read your sends.* A delivery is in the inbox before its send is answered, and a read first applies the
//!   inbox.
//! - *An object in an unknown state is not used.* A panic in `apply`, `view`, `checkpoint` or `restore`, or
//!   bytes that do not decode, end this member. The member is out of the group as if it had failed, and gives
//!   the reason. The other members go on. `query` and reads cannot cause this, because they only borrow the
//!   state.
//! - *A second member in a process* begins with the object of another member there. That object is taken at
//!   the place in the deliveries at which the new member's first view stands. Until the object comes, the new
//!   inbox waits.
//! - *In the order of the calls.* The commands of one caller (sends, queries, flushes and all others) reach
//!   the protocol in the order of the calls. This holds although sends travel together and all other commands
//!   alone.
//! - *A slow member delays nobody.* A receipt covers messages in the inbox. A member is removed from the
//!   group if its inbox holds more than `INBOX_BYTES_MAX`, including the deliveries that are being applied. A
//!   joining member gets the deliveries that follow its state step by step, as it applies them. So a long
//!   state fills no inbox.
//! - *No member stays in a view without acting in it.* The command that takes a member out, or gives up its
//!   seat, reaches the protocol even if the queue of commands is full: the protocol takes it together with
//!   the next command (`owed::Owed`).
//! - *Out of touch, nothing is shown as current*: sends, flushes, queries and reads are refused as soon as
//!   the process knows no leading router ([`OutOfTouch`](crate::Error::OutOfTouch)). They are refused for
//!   good once the others have dropped the process ([`Wedged`](crate::Error::Wedged)).
//! - *Nobody waits for routers that are away for good.* If the process gets out of touch after it has sent a
//!   request to the routers, the caller waits for at most `AWAY_PATIENCE`. The request may take effect later
//!   ([`MaybeApplied`](crate::Error::MaybeApplied)).
//!
//! **Attacks considered.**
//! - *The member that gives its object to others dies*, in this process or another one: a waiting member
//!   cannot tell a dead giver from a slow one. So if a member dies that owes its object, its whole process
//!   leaves the group, and another process gives the object. If a member dies that owes nothing, only this
//!   member leaves.
//! - *All members that have the object leave while other members of the process wait for it:* the oldest
//!   leaving member stays until the waiting members have the object.
//! - *A callback uses its own member.* Sends from `apply` work, unless the callback waits for them. A read
//!   inside a callback would wait for itself, so such a read is refused.
//! - *A deferred answer never comes, or comes too late.* Only the asker waits for a [`Promise`], until the
//!   asker's deadline or until a view without the answering member. If the promise is dropped with its
//!   object, it declines.
//! - *A lock is dropped out of touch.* Its release is refused like any send. So the member remembers each
//!   claim that was given up until the claim's release is delivered. It sends the release again when the
//!   process is back in touch. A second release has no effect.
//! - *A caller no longer waits.* The send goes on, and its answer is dropped on arrival.
//! - *Nobody is left in the group, and its state is in files.* `checkpoint` says which member may begin with
//!   which file.
//! - *Two programs with different types join one group.* The state carries its [`Replica::NAME`]. A member
//!   that joins with another name gets an error with both names, and leaves.
//! - *A sender has no room.* At most `ROOM_BYTES` of a member's sends are in progress; later sends wait for
//!   room, in the order in which they are polled.
//!
//! **Where we differ, and why.** A group has one type of updates and one type of queries. In the source a
//! group has a handler for each number and list of arguments. Here several kinds are an `enum`, which the
//! compiler checks. A first design streamed a state in chunks. But the protocol takes the state as one piece
//! of bytes, so [`Snapshot`] is one piece, too. Another thread may make it ([`Snapshot::later`]). Replies to
//! queries are not messages of a view: each member sends its reply once, and the asker counts the members
//! that did not answer.

mod answer;
mod background;
mod checkpoint;
mod claims;
pub(crate) mod groups;
mod handlers;
mod host;
mod inbox;
mod keeper;
mod key;
mod lock;
mod member;
mod message;
mod open_commands;
mod open_queries;
mod outbox;
mod owed;
mod process;
mod query;
mod replica;
mod row;
mod save;
mod shared;
mod signature;
mod touch;

use std::{fmt, time::Duration};

use bytes::Bytes;
use quorate_protocol::ProcessId;
use serde::{Serialize, de::DeserializeOwned};

pub(crate) use self::checkpoint::fuzz_checkpoint;
pub use self::{
    answer::{Answer, Later, Promise},
    groups::Group,
    handlers::Handlers,
    key::{Key, KeyId},
    lock::Lock,
    member::Member,
    open_queries::Want,
    query::{Absence, Missing, Query, Replied, Replies},
};
pub use quorate_protocol::group::{Mark, Phi, Place, SendStrength};

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
    /// The name of the type, with its version. All replicas of a group must have the same name.
    const NAME: &'static str;
    /// A change of the object. The members apply it.
    type Update: Serialize + DeserializeOwned + Send;
    /// The type of queries to members; `()` if there are none.
    type Query: Serialize + DeserializeOwned + Send;
    /// The type of replies to queries.
    type Reply: Serialize + DeserializeOwned + Send;

    /// Changes the object. Every member calls this method once for each delivered update, in the group's
    /// order. An update must have the same effect at each member. A panic ends this member.
    fn apply(&mut self, update: Self::Update, origin: &Origin);

    /// Answers a query from the present state of this member. A panic is reported to the asker.
    fn query(&self, query: Self::Query, share: Share) -> Answer<Self::Reply>;

    /// Returns the object's state, for a member that joined. One member calls this method, between two
    /// updates, and applies nothing until it returns. Large objects use [`Snapshot::later`].
    fn checkpoint(&self) -> Snapshot;

    /// Returns the object from another member's [`Replica::checkpoint`] or from a checkpoint file.
    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt>;

    /// Called when a view begins. `view` lists the members from the next update on. A joining member gets its
    /// first view right after its state. The member that gave the state had written it before it called
    /// `view` for the same view. So if this method changes the object, the change is made once at each
    /// member.
    fn view(&mut self, view: &View) {
        let _ = view;
    }
}

/// The object with which a member joins a group: a [`Replica`], closures ([`Handlers`]), or another type. A
/// type that needs something of its own program in addition to the state, such as a channel to its windows,
/// implements this trait itself.
pub trait Object: Send + Sized + 'static {
    /// An update, as [`Replica::Update`].
    type Update: Serialize + DeserializeOwned + Send;
    /// A query, as [`Replica::Query`].
    type Query: Serialize + DeserializeOwned + Send;
    /// A reply to a query, as [`Replica::Reply`].
    type Reply: Serialize + DeserializeOwned + Send;

    /// Returns the name, as in [`Replica::NAME`]. The name never changes.
    fn name(&self) -> &str;
    /// Changes the object, as [`Replica::apply`] does.
    fn apply(&mut self, update: Self::Update, origin: &Origin);
    /// Answers a query, as [`Replica::query`] does.
    fn query(&self, query: Self::Query, share: Share) -> Answer<Self::Reply>;
    /// Returns the object's state, as [`Replica::checkpoint`] does.
    fn checkpoint(&self) -> Snapshot;
    /// Returns the object with this state, as [`Replica::restore`] does. `self` is the object with which the
    /// member joined.
    fn restore(&self, snapshot: &Snapshot) -> Result<Self, Corrupt>;
    /// Notes that a view begins, as [`Replica::view`] does.
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

/// The origin of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender's process.
    pub sender: ProcessId,
    /// Whether this member sent the update.
    pub own: bool,
    /// The update's place: of a soft update, among the soft messages that the sender's process sent in this
    /// view; of any other update, in the total order.
    pub place: Place,
}

/// This member's share of a query, if members divide the work. Item `n` is in the share if
/// `n % of == rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// This member's index among the members, from 0 for the oldest.
    pub rank: usize,
    /// The number of members.
    pub of: usize,
}

/// The members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The view's number. Later views have larger numbers.
    pub number: u64,
    /// The processes of the members; a member's rank is its index. Older processes come first. Members of one
    /// process are adjacent, older ones first.
    pub members: Vec<ProcessId>,
    /// The processes of the members that were not in the preceding view.
    pub joined: Vec<ProcessId>,
    /// The processes of the members of the preceding view that are not in this view.
    pub left: Vec<ProcessId>,
    /// This member's process.
    pub me: ProcessId,
    place: Option<usize>,
    /// For each departed sender, the number of its soft messages that were lost although a later safe message
    /// of that sender was delivered. Messages are lost in this way only if φ is less than all members.
    pub missing: Vec<(ProcessId, u64)>,
    /// Time for which this member's soft sends waited for the view to begin; zero for the member's first
    /// view.
    pub waited: Duration,
}

impl View {
    /// Returns this member's index among the members, or `None` if it is not in the view.
    pub fn rank(&self) -> Option<usize> {
        self.place
    }
}

/// An object's state, in bytes.
pub struct Snapshot(Content);

enum Content {
    Here(Result<Bytes, String>),
    Later(Box<SnapshotWriter>),
}

/// A function that appends an object's bytes to a buffer.
type SnapshotWriter = dyn FnOnce(Vec<u8>) -> Result<Vec<u8>, String> + Send;

impl Snapshot {
    /// Makes the snapshot from a value that `serde` serialises now.
    pub fn of(value: &impl Serialize) -> Snapshot {
        Snapshot(Content::Here(written(value, Vec::new()).map(Bytes::from)))
    }

    /// Makes the snapshot from bytes.
    pub fn of_bytes(bytes: impl Into<Bytes>) -> Snapshot {
        Snapshot(Content::Here(Ok(bytes.into())))
    }

    /// Makes the snapshot from a value that another thread serialises while this member goes on. The value is
    /// a copy that costs little, such as an `Arc` or a persistent map. Large byte strings are best kept as
    /// `bytes::Bytes`, which are written in one step; a `Vec<u8>` is written byte by byte.
    pub fn later(value: impl Serialize + Send + 'static) -> Snapshot {
        Snapshot(Content::Later(Box::new(move |behind| written(&value, behind))))
    }

    /// Decodes the value. Fails if the bytes do not decode, or some of them are left over.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Corrupt> {
        match postcard::take_from_bytes(self.bytes()?) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(Corrupt(format!("{} bytes are left over after the value", rest.len()))),
            Err(error) => Err(Corrupt(error.to_string())),
        }
    }

    /// Returns the bytes. Fails if the bytes are not written yet or the value did not serialise.
    pub fn bytes(&self) -> Result<&[u8], Corrupt> {
        match &self.0 {
            Content::Here(Ok(bytes)) => Ok(bytes),
            Content::Here(Err(why)) => Err(Corrupt(why.clone())),
            Content::Later(_) => Err(Corrupt(String::from("the snapshot is not serialised yet"))),
        }
    }

    /// Returns `head` with the snapshot's bytes after it. A snapshot made by [`Snapshot::later`] is
    /// serialised now, directly into that buffer, so that a large object is not copied.
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

/// The error of a state that does not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Corrupt(pub String);

/// Serialises a value and appends its bytes to `behind`.
fn written(value: &impl Serialize, behind: Vec<u8>) -> Result<Vec<u8>, String> {
    postcard::to_extend(value, behind).map_err(|error| format!("the value does not serialise: {error}"))
}
