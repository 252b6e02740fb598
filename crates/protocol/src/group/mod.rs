//! Process groups: write an object, join a group, pick the promise by the verb, read any replica.
//!
//! **Promise.** All members of a group see the same sequence of *views* (who is in the group). Between two views they
//! deliver the same messages. A sender picks the strength of each:
//!
//! | strength | promise |
//! |---|---|
//! | [`Soft`](Strength::Soft) | delivered at the sender at once, elsewhere in the sender's order; kept if any process that enters the next view holds it and what its sender sent before |
//! | [`Ordered`](Strength::Ordered) | soft, and in one order at all members |
//! | [`Safe`](Strength::Safe) | ordered, and delivered nowhere until a majority of the routers and φ members of the view have it |
//! | [`Flush`](Command::Flush) | ends once everything that this member had delivered when it asked, from anyone, is at all members |
//!
//! A member's messages of all strengths are delivered in the order in which it sent them, everywhere. A process that joins gets
//! the state as it was when its first view began, and everything since. Deliveries, views and the member's end come in one
//! stream, so that no view overtakes a message.
//!
//! **Source.** 000 §5 (epochs, wedging, the firewall), §6 (`Send`, `OrderedSend`, `SafeSend` with φ, joining with a state from
//! one member, a checkpoint in a file), §7 and figure 4 (`Flush`). What a view change must agree on: 000 §5, "any message received by all members of
//! the old view is included". Who died is judged by the lead router with the others for a bench ([`suspicion`](crate::suspicion)).
//!
//! **Roles.**
//! - *Routers* order every change of membership and every ordered or safe send. They run [`ecast`](crate::ecast) with the
//!   routing [`Groups`]; what a [`Group`] is at a position is a function of the control messages before it (`view`). The lead router
//!   takes members out that died.
//! - A [`Process`] is one member of the domain: it holds the links, and submits.
//! - A *member* (`member`) is a process in one group: it holds the streams of soft messages (`stream`), delivers, reports, repairs.
//!   Its caller may have several members of the group behind it, each in a *seat* (`seats`).
//! - Its *lanes* (`lanes`) say by which way soft messages go to each other member: by the group's multicast address, as casts to it alone, or over
//!   the link. Which groups have an address the routers say (`addresses`).
//! - The *front* (`front`) is its caller's side: a queue in the caller's order, and the answer to each command.
//! - The *feed* (`feed`) carries a state from a member that has it to one that joined.
//!
//! ```text
//!  a (sends)         b                 routers                         joiner j
//!    │ Soft 1..3 ───▶│ delivered          │                                 │
//!    │◀── Receipts ──┤ (stability)        │                                 │
//!    │ ordered ──────────────────────────▶│ @7 ──▶ a, b: delivered          │
//!    │               │                    │◀──────────────── Join ──────────┤
//!    │◀─ @8 Join: prepare ────────────────┤──▶ b                            │
//!    │ Reports{a: 3} ────────────────────▶│◀── Reports{a: 2} ─ b            │     soft sends wait
//!    │◀─ @10: the last report is the cut {a: 3} ──▶ b                       │
//!    │ Soft 3 ──────▶│ repaired           │                                 │
//!    │               │ Repaired ─────────▶│ @11 ──▶ a, b, j: view 11 ──────▶│
//!    │◀──────────────────────────────────── Want, State in pieces ─────────▶│     while all go on
//!    │               │                    │◀──────────────── Whole ─────────┤
//! ```
//!
//! **A view change** (S9) is computed by [`Group::step`] from ordered messages alone, the same by routers and members. Nobody
//! coordinates it, so nobody's death interrupts it.
//! 1. *Prepare*: the position of the join, leave or suspicion that finds no change under way. Soft sends wait from its
//!    delivery on.
//! 2. *Reports*: each survivor says how much of each member's stream it holds, and whether it has the state. A report names its
//!    prepare.
//! 3. *Cut*: the position of the last survivor's report. It ends each sender's stream at the longest prefix that any survivor
//!    holds. What lies behind a gap counts as held by nobody, and is let go with the report.
//! 4. *Repair*: who lacks something of the cut asks a survivor that reported it, then another, and says when it has all.
//!    A survivor whose report equals the cut need not say so.
//! 5. *Install*: the position at which the last survivor has all. The view's number is this position. Whoever
//!    asked to join or to leave up to here is taken in or let go with it: many in one view.
//!
//! **Seats.** Members of one group in one process are one party of all this: one copy of a message reaches them, one receipt is given for
//! them, one report is made, and they fail together. So a group costs its processes, and a member more costs its own process alone. A
//! process says which seats it has ([`Control::Seats`]), and the next view tells all of them: this is a change like a join, and
//! whatever comes behind it in the order before its install is in the same view. The caller hands each message to all of its members; a new one
//! gets the state from one that is here, as of its first view. φ counts processes, since no more of them fail together.
//!
//! **Receipts.** A member tells the others what it holds: how much of each stream, and up to which position of the order. What all
//! hold is freed, flushes end, and safe messages are delivered by them. In a view of at most [`Settings::receipts_at_once`] members
//! each tells all others at the end of every turn that changed it. In a larger one that would be more than the messages themselves:
//! there receipts go through a *tree*, in which members stand by rank, so many right below each at most. A member tells the one above what
//! its *branch* holds: the least counts of streams, and how far each member in it has the order. What the root's branch holds all do, and that is
//! told down.
//! 1. *When.* At each [interval](Settings::interval) while anything is held or waits, so a receipt that got lost is said again; and at once
//!    when a branch has more of the order, and a safe message may wait for that. The root tells at once what lets it deliver one.
//! 2. *What it is worth.* The receipt of a branch is a receipt of each member in it, and may be old, as any receipt may. Nobody in the middle
//!    can be in the way of more than that: a safe message with φ = all waits for each member anyhow, and everything else goes past the tree.
//! 3. *Past the tree.* Who asked lately is told at once. A member asks all when a flush begins and at each interval while one waits, when its
//!    window is half full, and, by turns, when ordered messages wait and none went on, or when it holds messages and could let none go for a few
//!    intervals. Who is asked tells what it holds, and the root what all do. Who has no link to the one above tells all others now and then.
//!
//! **Casts.** A soft message leaves its sender as a [cast](crate::seam::Sink::cast): once for all whom the group's address reaches, if it has one,
//! and one copy for each other process. It may be lost, doubled, late, and ahead of others, at each member for itself. Numbers decide, so by which way a copy came matters nowhere: streams, receipts, reports, cuts and the firewall are as they
//! were. Everything else goes over links.
//! 1. *Ahead of others.* What comes behind a gap is put aside, at most [`Settings::ahead_bytes`] of a sender's, until the gap closes. It is in no
//!    receipt and no report; what does not fit is missed again. A double is known by its number.
//! 2. *Gaps* are asked for over the link, hole by hole ([`Direct::Gap`]), once they have been open for [`Settings::gap_patience`], and again at
//!    each [interval](Settings::interval): at the sender, or where no link to it stands at a member whose receipt shows that it has it.
//! 3. *The last message* has nothing behind it by which it would be missed. But its sender holds its own stream, its receipts say how
//!    much, and they go over the link: in a small view at the end of the turn that cast it. And what a member does not confirm from one
//!    interval to the next its sender sends again, over the link.
//! 4. *The window.* To each member at most [`Settings::cast_window_bytes`] of casts are unconfirmed, and the link takes the rest; so
//!    does it what is longer than a cast may be. With 0 nothing is cast; what others cast is taken all the same. How the routers give out addresses,
//!    and what else comes by them, stands in `addresses`.
//! 5. *Where casts do not pass,* the link takes everything, by evidence: what was cast had to be repaired, and nothing cast was
//!    confirmed. That is found out at the price of one gap, because until a cast was confirmed only one is under way, and tried anew after a
//!    second, then two, up to a minute (`lanes`).
//!
//! **Checkpoints.** While nobody is in a group, its state is in files of those who were. A checkpoint is the state at the beginning of a view:
//! there all members have the same, so it needs no other description, and any of them may write it. A save is a view change that
//! changes nobody. Its [`Mark`] is a life of the group and the view's number.
//! 1. [`Command::Save`] is an ordered message. The next install is where the state is kept: [`Event::Keep`], in the stream of deliveries.
//! 2. The host says that the file is durable ([`Command::Kept`]). That is ordered, too, and routers and members know the newest from there
//!    on ([`Record`]). It counts only of a member, so the routers know of a checkpoint before its group is idle.
//! 3. A member that is about to leave sends nothing more, has all that it sent delivered, saves, and leaves once the routers know. So
//!    the last one's checkpoint is all there is.
//! 4. Who joins says which checkpoint it has ([`Offer`]). If nobody is in the group, the routers take in a process with the newest that they
//!    know of, or a newer one, and refuse all others, unless forced; also one with none, which would begin anew, and whose next
//!    checkpoint would make the others' stale. Where the group has members, the state comes from them.
//!
//! Positions say which of two checkpoints is newer, as long as the routers go on. Routers that begin anew count from the first
//! position again, and know of no checkpoint. A process that comes with one raises the group's *life* above that one's, so whatever is
//! saved from then on is newer. Force passes one refusal and changes nothing else: only a save makes the newest one stale.
//!
//! A record stays when its group is idle, in routers' snapshots too, and is 24 bytes and some. Beyond `RECORDS_MAX`
//! groups (16,384) the idle one whose newest checkpoint is the oldest is forgotten: the first to return to it is taken with whatever it has.
//!
//! A suspicion during a change voids reports and cut, and its position is the new prepare. A survivor that holds up a change for
//! longer than [`Settings::patience`] is suspected on that ground; the suspicion names the prepare and is void behind its end.
//!
//! **Invariants**, asserted in these words.
//! - *Virtual synchrony.* At the install a member has delivered exactly the cut of every stream, and everything that was ordered
//!   before and not voided.
//! - *Nothing beyond the cut.* Behind its report a member delivers of each stream what it reported, until it knows the cut. So
//!   every cut reaches as far as each survivor has delivered.
//! - *Nothing ahead of a report.* From its report to the install a member holds nothing behind a gap, and puts nothing aside. Else a gap
//!   that a repair closes would let it hold more than anybody reported, a later cut of the same change could reach further than an earlier
//!   one, and deliver what that one voided.
//! - *FIFO.* A soft message leaves its sender once the sender's own ordered ones are delivered there, and names the last of them;
//!   it is delivered behind it. An ordered one says how many soft ones precede it, and is delivered behind them. A host that
//!   has learned from the order what others need to read its soft messages, a key, has them follow that position in the same way
//!   ([`Command::Follow`]).
//! - *Voided everywhere.* An ordered message with soft predecessors beyond the cut is delivered by no survivor. Of a sender
//!   that is gone nobody takes anything directly once the suspicion is delivered (firewall). So no later cut of the same
//!   change reaches further than an earlier one, and what was voided stays so.
//! - *Packs.* Updates of one strength that the host hands over together ([`Pack`]) travel together, are held, confirmed and delivered
//!   together, and have one fate. Of soft ones each has its number, so receipts, reports and cuts count updates, and none ends inside a
//!   pack. Ordered and safe ones have one position and an index there, and one set of soft predecessors.
//! - *Safe.* A member confirms a position once it holds it, everything ordered before it, and the soft predecessors of all. A safe
//!   message waits for φ such receipts, or for the install, before which all survivors have it (S10).
//! - *The newest begins.* Where nobody has the state, no member begins with less than the newest checkpoint that was told of in the order
//!   before, unless forced.
//! - *One view at a time.* Messages of a later view wait until it is installed here; those of an earlier one are ignored.
//!
//! **Attacks considered**, and how each ends.
//! - *A member dies in mid-change*, before its report, behind it, or while it is the only holder of part of the cut: the suspicion
//!   voids the cut; the survivors report anew, and what nobody holds is in no cut. Those that had delivered it died as well:
//!   a survivor's report covers all that it delivered.
//! - *A second suspicion voids a cut by which some have repaired and delivered:* their new report says so, and the new cut covers it.
//!   They installed nothing yet: the install needs every survivor.
//! - *A reporter that is late, or sleeps:* it is suspected by position, not by opinion, after the patience. If its report was
//!   ordered first, the suspicion is stale, refused by the routing and delivered nowhere.
//! - *An ordered send whose soft predecessors only the dead held:* voided at every survivor, at the install at the latest.
//!   Only processes that are gone delivered it, its sender perhaps among them: that is what ordered promises, and a flush or a safe
//!   send would have shown it. A safe send with φ = all was delivered nowhere: some survivor never
//!   confirmed it. With a smaller φ it may have been delivered by those that died: it is delivered, and its predecessors are
//!   missing (the view tells how many).
//! - *A safe send that dead members confirmed:* it is chosen, so the survivors get it from the routers, at the latest before the install.
//! - *A joiner dies during its join:* before the install it is taken off the list; behind it, it is a member like any other. The
//!   routers watch joiner and members alike, so no group waits for a dead one.
//! - *The giver of a state dies:* it leaves the view, and that view names another giver, whose state is the one at that view. The
//!   joiner forgets what it had buffered before.
//! - *All that had the state die:* the oldest member left begins with a fresh one, and is told so. A joiner that just got the state is not
//!   taken for one without: its report says that it has it, and behind its report it takes no piece before the install.
//! - *All that had the state die while others wait for it, and a checkpoint is known:* the oldest of these begins with its own, if that is the
//!   newest. Else it makes way ([`Control::Quit`]), and the next oldest is asked the same.
//! - *A checkpoint is durable, and its member dies before the routers hear of it:* it is newer than they know. It is taken, and is then known.
//! - *Two save at once, or during a change:* the next install serves all of them, under one mark.
//! - *A save of a member that ends:* told of behind its end it is refused, since the group may have begun from an older one meanwhile.
//! - *A member that made way, or lost its state, comes back before the view without it:* it waits to be taken in, as a joiner.
//! - *One direction between two members is cut:* what the sender's link loses, the receiver asks others for, as their receipts
//!   show that they have it. While any router hears a member, it stays.
//! - *All members of a group die, or its only one:* the routers find out, whoever else is there. Nothing is kept for the dead.
//! - *Cut off, with links to members but none to routers:* nothing of the order arrives, and its soft sends still do. Once it is
//!   suspected, members turn it away (firewall). It stops delivering and sending as soon as it knows of no leader, or has heard no router for
//!   a second and a half though links to them stand ([`Event::InTouch`]), and ends when it hears that it was dropped ([`Event::Wedged`]). What waits to be sent is turned back then, and
//!   flushes fail ([`Failure::OutOfTouch`]), for the routers may be away for good; what the order was given waits to hear of it.
//! - *The last message's cast is dropped, and nothing follows:* its sender's receipt tells of it, over the link.
//! - *All casts are dropped, or those in one direction:* each direction is a lane of its own, and each sender falls back for itself. The link
//!   carries repairs and receipts in both. If the link is cut as well, it is as in *one direction is cut*.
//! - *A burst beyond what is put aside:* what does not fit was never here. It is a hole like any other, and the sender's receipts tell how far.
//! - *Casts come twice, or after the view in which they were sent:* by number they are known, by the view's number ignored.
//! - *A cast of an earlier session:* as long as the view is the same so is the stream, and it is as good as any copy. *Of an earlier
//!   incarnation:* that is another process, which is in the view or is not.
//! - *A cast overtakes the link's word of the view that it belongs to:* it waits, as any message of the next view does.
//! - *A cast of a process that is gone, kept by the network until its suspicion is delivered:* the firewall is at the member, not at the link.
//! - *A gap of the dead closes in mid-change,* by a repair, and what was put aside behind it would now be held: see *nothing ahead of a report*.
//! - *A cast that is no soft message of whoever cast it:* it is refused. The runtime says how sure it is of who that is.
//! - *A gap to the end of all numbers:* it is answered with what there is, in one piece.
//! - *A soft message of the next view overtakes its install:* it waits, bounded in bytes; what does not fit is a gap like any other.
//! - *Late duplicates, repairs of an old view:* they carry their view's number and are ignored.
//! - *An ordered send of the old view is ordered behind the install:* its sender survived, so its soft predecessors are in the cut,
//!   and all of the new view deliver it there.
//! - *The only one that has the state leaves while others wait for it:* it is let go by the view change behind the first that got it.
//! - *All leave at once, join at once:* one change; an empty group is forgotten with the next control message, but for its record.
//! - *Hundreds join at once, a few in each process:* the first of each process joins, and the others are seats. Seats are said once the
//!   process has the state, as one list, so any number of them costs a word in the order and takes part in whatever change is under way.
//! - *A seat is given up with sends on their way:* it is said behind them ([`Command::Seats`]), so no message comes from a member that is in
//!   no view.
//! - *A process dies between the word and the install:* its seats go with it; what it said is kept of nobody who is not in the view.
//! - *Two words of one process overtake each other:* control messages of one sender are in its order, and each says all of its seats.
//! - *A process that says it has ten thousand seats, or the same twice:* the word is refused ([`SEATS_MAX`]), everywhere alike.
//!
//! **Where we differ, and why.**
//! - 000 has a membership service that interacts with members in rounds. Here rounds are ordered messages and the cut is computed
//!   by whoever delivers them: there is no coordinator whose failure in mid-change has to be thought of.
//! - 000 sends soft messages by IP multicast to all members, or to none. Here each member that does not hear has its copies alone, or over the link.
//! - 000 stacks members of a group on a machine as processes of their own, and tells stability up a tree of them. Here members that are stacked
//!   share a process, which is that tree's lowest floor. Flushes go past the tree: whoever flushes asks all, and hears from each.
//! - An isolated member does not "reboot" as soon as it is out of touch: it stops, and goes on if it turns out that nobody
//!   dropped it. Else a short loss of the routers would cost every group its state.
//! - 000 names a checkpoint file and says nothing of several of them. Here routers say which is the newest, so members on several machines may
//!   have one each.
//! - A soft send waits at its *sender* until its own ordered ones are delivered there. 000 leaves open what happens between strengths.

mod addresses;
mod checkpoint;
mod feed;
mod front;
mod lanes;
mod lock;
mod member;
mod message;
mod process;
mod receipts;
mod routing;
mod seats;
mod shards;
mod stream;
mod updates;
mod view;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    ecast::Position,
    id::{Peer, ProcessId},
    seam::{CAST_BYTES_MAX, CommandId},
    time::Duration,
};

pub use self::{
    addresses::{ADDRESSES_MAX, AddressStatistics},
    checkpoint::{Mark, Offer, Record},
    lock::{Claim, Grant, LOCK_NAME_BYTES_MAX, Locks},
    message::{Direct, Holders, Message},
    process::Process,
    routing::{Control, Groups, Roster},
    seats::{SEATS_MAX, SeatId, Seats},
    stream::Soft,
    updates::{Pack, PackWriter, Updates},
    view::{Change, Entry, Group, Report, Standing, Step, Turn, View},
};

/// A group's number in its domain: a hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// No name of a group is longer, in bytes.
pub const GROUP_NAME_BYTES_MAX: usize = 255;

/// What a sender is promised of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strength {
    /// At once here, elsewhere in this member's order.
    Soft,
    /// In one order at all members.
    Ordered,
    /// In one order, and delivered nowhere before so many members have it.
    Safe(Phi),
}

/// How many processes of the view must have a safe message, for all of their members, before any delivers it (000 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Phi {
    /// Every process: right where nobody knows which machines fail together.
    #[default]
    All,
    /// More than half.
    Majority,
    /// So many, or all if there are fewer.
    Count(u16),
}

impl Phi {
    /// Of `members`.
    pub(crate) fn of(self, members: usize) -> usize {
        match self {
            Phi::All => members,
            Phi::Majority => crate::quorum::majority(members),
            Phi::Count(count) => usize::from(count).clamp(1, members.max(1)),
        }
    }
}

/// How a process behaves in its groups.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often it looks whether something got lost, and says it again.
    pub interval: Duration,
    /// How long a survivor may hold up a view change. A member waits as long again for each one before it in rank that does not.
    pub patience: Duration,
    /// Up to so many members tell all others at the end of each turn what they hold. In larger views they tell those who ask, and the
    /// one above them in a tree in which so many are right below each.
    pub receipts_at_once: usize,
    /// Bytes of own soft messages that not all members have; beyond, sends wait.
    pub window_bytes: usize,
    /// Bytes of a cast, at most [`CAST_BYTES_MAX`]. Soft messages that are longer go over the link.
    pub cast_bytes: usize,
    /// Bytes of casts to a member that it has not confirmed; beyond, soft messages go to it over the link. With 0 all do.
    pub cast_window_bytes: usize,
    /// Members tell the rates of their groups so often, if they have changed: groups get multicast addresses by them.
    pub rate_interval: Duration,
    /// Bytes that came ahead of others of the same sender; beyond, they are sent again.
    pub ahead_bytes: usize,
    /// How long a gap may be open before it is asked for: what closes it may have been overtaken.
    pub gap_patience: Duration,
    /// Bytes of sends that wait; beyond, they are refused.
    pub queue_bytes_max: usize,
    /// Bytes of one message.
    pub body_bytes_max: usize,
    /// Bytes of a piece of a state, of a repair, and of messages that came before their view.
    pub piece_bytes: usize,
    /// A member that joins asks for no more bytes of the state in a second: the others go on meanwhile.
    pub state_bytes_per_second: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            interval: Duration::from_millis(50),
            patience: Duration::from_secs(1),
            receipts_at_once: 8,
            window_bytes: 4 << 20,
            cast_bytes: CAST_BYTES_MAX,
            cast_window_bytes: 128 << 10,
            rate_interval: Duration::from_secs(5),
            ahead_bytes: 1 << 20,
            gap_patience: Duration::from_millis(5),
            queue_bytes_max: 16 << 20,
            body_bytes_max: 16 << 20,
            piece_bytes: 256 << 10,
            state_bytes_per_second: 96 << 20,
        }
    }
}

impl Settings {
    /// A soft pack of no more bytes goes as one cast.
    pub fn cast_pack_bytes(&self) -> usize {
        self.cast_bytes.saturating_sub(CAST_HEAD_BYTES + SOFT_HEAD_BYTES)
    }
}

/// Bytes of a cast that stand before its soft messages.
const CAST_HEAD_BYTES: usize = 64;
/// For each soft message, besides its pack, count so many bytes.
const SOFT_HEAD_BYTES: usize = 64;

/// A request to a process. Every command with an id, and each [`Sending`], ends in exactly one [`Event::Done`] or [`Event::Sent`].
#[derive(Clone, Debug)]
pub enum Command {
    /// Processes that may be routers.
    Seeds(Vec<Peer>),
    /// Join a group. Done once the state is here.
    Join {
        /// The asker's name for it.
        id: CommandId,
        /// Which.
        group: GroupId,
        /// Its name; at most [`GROUP_NAME_BYTES_MAX`] bytes.
        name: String,
        /// The checkpoint that the host has, with which it begins if nobody has the group's state.
        offer: Offer,
    },
    /// Leave a group, behind everything sent so far.
    Leave {
        /// The asker's name for it.
        id: CommandId,
        /// Which.
        group: GroupId,
    },
    /// Send these, in their order.
    Send(Vec<Sending>),
    /// Done once everything delivered here so far is at all members.
    Flush {
        /// The asker's name for it.
        id: CommandId,
        /// Which.
        group: GroupId,
    },
    /// Have a view begin, so that the state at its beginning is kept: [`Event::Keep`]. Done once it has begun here. What was delivered
    /// here before is in the checkpoint.
    Save {
        /// The asker's name for it.
        id: CommandId,
        /// Which.
        group: GroupId,
        /// Whether this member is about to leave: it sends nothing more, all that it sent is in the checkpoint, and it alone keeps
        /// the state. Otherwise all members do.
        last: bool,
    },
    /// The host has a checkpoint on disk. Done once the routers know.
    Kept {
        /// The asker's name for it.
        id: CommandId,
        /// Which.
        group: GroupId,
        /// Its name.
        checkpoint: Mark,
    },
    /// Tell the figures of this process. Answered by [`Event::Figures`].
    Figures {
        /// The asker's name for it.
        token: u64,
    },
    /// Be no member of the domain any more, nor of any group: [`Event::Wedged`] once that is so. Who wants groups to end in order
    /// leaves them before.
    Exit,
    /// Be out of a group at once, as if this process had failed: its state is lost, and it can give it to nobody. Its open commands end;
    /// it has no end of its own. Until the next view the process cannot join that group again.
    Quit {
        /// Which.
        group: GroupId,
    },
    /// Send soft messages from now on behind this position of the order, which was delivered here: no member delivers them before it. Help,
    /// which has no end of its own.
    Follow {
        /// Which group.
        group: GroupId,
        /// The position.
        at: Position,
    },
    /// Say something to another member, past the views: it arrives at once or not at all, and nobody is told which. Help, which
    /// has no end of its own.
    Say {
        /// Which group.
        group: GroupId,
        /// To whom.
        to: ProcessId,
        /// The words.
        body: Bytes,
    },
    /// This process has these members of a group, once everything that it sent before is delivered here: the next view tells them. Help,
    /// which has no end of its own; the last word counts.
    Seats {
        /// Which group.
        group: GroupId,
        /// Their seats, in order; at least one, at most [`SEATS_MAX`].
        seats: Vec<SeatId>,
    },
    /// The answer to [`Event::CheckpointWanted`].
    Checkpoint {
        /// Which group.
        group: GroupId,
        /// As it was asked.
        view: Position,
        /// The state as it was when that view began.
        state: Bytes,
    },
}

/// Updates that are to be sent to a group together. Done once they are delivered here.
#[derive(Clone, Debug)]
pub struct Sending {
    /// The asker's name for it.
    pub id: CommandId,
    /// Which.
    pub group: GroupId,
    /// The promise.
    pub strength: Strength,
    /// The updates.
    pub pack: Pack,
}

/// What a process tells, in one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The end of a command.
    Done {
        /// The asker's name for it.
        id: CommandId,
        /// What came of it.
        result: Result<Outcome, Failure>,
    },
    /// The end of a [`Sending`]: it was delivered here.
    Sent {
        /// The asker's name for it.
        id: CommandId,
        /// The place of its first update; the others are [behind](Place::behind) it.
        first: Place,
    },
    /// The member's state from here on; none: the checkpoint that the host offered, or a fresh one if it offered none.
    Restore {
        /// Which group.
        group: GroupId,
        /// The state.
        state: Option<Bytes>,
    },
    /// A view begins.
    View {
        /// Which group.
        group: GroupId,
        /// The view.
        view: View,
        /// Members that were not in the view before.
        arrived: Vec<(ProcessId, SeatId)>,
        /// Members of the view before that are in no more.
        departed: Vec<(ProcessId, SeatId)>,
        /// How many soft messages were lost of each sender that is gone and of which a safe one, sent behind them, was delivered.
        missing: BTreeMap<ProcessId, u64>,
        /// How long own soft messages waited for it: since its change was prepared here. None waited for the first.
        waited: Duration,
    },
    /// Somebody joined and gets its state from here: that at the view which was told just before.
    CheckpointWanted {
        /// Which group.
        group: GroupId,
        /// The view.
        view: Position,
    },
    /// The state at this place is to be kept under this name, and [`Command::Kept`] told once it is durable.
    Keep {
        /// Which group.
        group: GroupId,
        /// The checkpoint.
        checkpoint: Mark,
    },
    /// Updates of one sender, in a row.
    Deliver {
        /// Which group.
        group: GroupId,
        /// The sender.
        sender: ProcessId,
        /// The updates, with their places.
        updates: Updates,
    },
    /// A member says something, past the views ([`Command::Say`]).
    Said {
        /// Which group.
        group: GroupId,
        /// Who.
        from: ProcessId,
        /// The words.
        body: Bytes,
    },
    /// The answer to [`Command::Figures`].
    Figures {
        /// The asker's name for it.
        token: u64,
        /// The figures.
        figures: Figures,
    },
    /// Whether a router in reach knows of a leader. While none does, nothing is delivered here and soft sends wait.
    InTouch(bool),
    /// This process was dropped: it must stop, and may come back as a new one.
    Wedged,
}

/// Counts of a process, over all its groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Groups that it is in, or about to be.
    pub groups: u64,
    /// Views that began here.
    pub views: u64,
    /// The longest that own soft messages of a member waited for a view.
    pub longest_wait: Duration,
    /// Gaps in others' soft messages: each was asked for again.
    pub gaps: u64,
    /// Soft updates sent once more, because others lacked them.
    pub resent: u64,
    /// Soft messages cast, several as one: so many casts, one for each process that they went to.
    pub cast: u64,
    /// Soft messages cast by a group's multicast address, several as one: so many casts, for however many processes.
    pub multicast: u64,
    /// Multicast addresses to which it listens.
    pub addresses: u64,
    /// Casts that came of groups in which it is not.
    pub unwanted: u64,
    /// The number of times that casts to a process, alone or by an address, were given up for a while, because they did not arrive.
    pub fallbacks: u64,
    /// Bytes of soft messages that are held because not all members are known to have them.
    pub held_bytes: u64,
    /// Ordered messages that wait for what they stand behind, or for members to have them.
    pub waiting: u64,
    /// Messages from processes that were dropped.
    pub firewalled: u64,
    /// Messages that no correct peer sends.
    pub refused: u64,
}

/// The place of a message among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In its sender's stream of the view, counted from 1.
    Soft(u64),
    /// In the order: its pack's position, and its index there, counted from 0.
    Ordered(Position, u32),
}

/// The good end of a command other than to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// In the group, with its state.
    Joined,
    /// Out of the group.
    Left,
    /// At all members.
    Flushed,
    /// A view began, at whose beginning the state is kept under this name.
    Marked(Mark),
    /// The routers know of the checkpoint, or of a newer one.
    Kept,
}

/// Why a command did not end well, by what the caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It was never sent: retry freely.
    #[error("not sent")]
    NotSent,
    /// It may have taken effect.
    #[error("it may have taken effect")]
    MaybeApplied,
    /// This process is out of touch with the routers. A message was not sent: retry once it is in touch again.
    #[error("out of touch with the routers")]
    OutOfTouch,
    /// This process was cut off; it must come back as a new one.
    #[error("this process was dropped from its groups")]
    Wedged,
    /// The process is not in this group, or is about to leave it.
    #[error("not a member of the group")]
    NotMember,
    /// The process is in this group, or about to join it.
    #[error("a member of the group already")]
    AlreadyMember,
    /// Nobody is in the group, or has its state, and a newer checkpoint than the one offered is known.
    #[error("a newer checkpoint is known: {0}")]
    Stale(Mark),
    /// The message is too long, or too many wait.
    #[error("over the limit of {0} bytes")]
    Full(usize),
}
