//! Process groups: write an object, join a group, pick the promise by the verb, read any replica.
//!
//! **Promise.** All members of a group see the same sequence of *views* (the members of the group). Between
//! two views all members deliver the same messages. A sender picks the strength of each message:
//!
//! | strength | promise |
//! |---|---|
//! | [`Soft`](SendStrength::Soft) | delivered at the sender at once, elsewhere in sender order; see below |
//! | [`Ordered`](SendStrength::Ordered) | soft, and in one order at all members |
//! | [`Safe`](SendStrength::Safe) | ordered, and only once a majority of the routers and φ members have it |
//! | [`Flush`](Command::Flush) | ends once all members have what this member had delivered before the flush |
//!
//! A soft message is kept if any process that enters the next view holds the message and all earlier messages
//! of its sender. A member's messages of all strengths are delivered in the order in which it sent them,
//! everywhere. A process that joins gets the state at the beginning of its first view, and everything since.
//! Deliveries, views and the member's end come in one stream, so that no view overtakes a message.
//!
//! **Source.** 000 §5 (epochs, wedging, the firewall), §6 (`Send`, `OrderedSend`, `SafeSend` with φ, joining
//! with a state from one member, a checkpoint in a file), §7 and figure 4 (`Flush`). A view change must agree
//! as in 000 §5, "any message received by all members of the old view is included". The lead router judges
//! which members died, with the other routers as witnesses ([`suspicion`](crate::suspicion)).
//!
//! **Roles.**
//! - *Routers* order every change of membership and every ordered or safe send. They run
//!   [`ecast`](crate::ecast) with the routing [`Groups`]; a [`Group`] at a position is a function of the
//!   earlier control messages (`view`). The lead router removes dead members.
//! - A [`Process`] is one member of the domain: it holds the links, and submits messages to the order.
//! - A *member* (`member`) is a process in one group: it holds the streams of soft messages (`stream`),
//!   delivers, reports, repairs. Its caller may have several members of the group behind it, each in a *seat*
//!   (`seats`).
//! - The *lanes* (`lanes`) of a member choose the way of soft messages to each other member: the group's
//!   multicast address, casts to it alone, or the link. The routers choose the groups that have an address
//!   (`addresses`).
//! - The commands of the member's caller (`caller_commands`) form a queue in the caller's order. Each command
//!   gets an answer.
//! - The *feed* (`feed`) carries a state from a member that has the state to a member that joined.
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
//! **A view change** (S9) is computed by [`Group::step`] from ordered messages alone, the same by routers and
//! members. It has no coordinator, so nobody's death interrupts it.
//! 1. *Prepare*: the position of the join, leave or suspicion that finds no change in progress. Soft sends
//!    wait from its delivery on.
//! 2. *Reports*: each survivor reports how much of each member's stream it holds, and whether it has the
//!    state. A report names the position of its prepare.
//! 3. *Cut*: the position of the last survivor's report. It ends each sender's stream at the longest prefix
//!    that any survivor holds. Messages after a gap count as held by nobody, and are dropped with the report.
//! 4. *Repair*: a survivor that lacks messages of the cut asks a survivor that reported them, then another
//!    one, and confirms when it has all messages of the cut. A survivor whose report equals the cut need not
//!    confirm.
//! 5. *Install*: the position at which the last survivor has all messages of the cut. It is the view's
//!    number. All processes that asked to join or to leave before this position are admitted or released with
//!    this view.
//!
//! **Seats.** The members of one group in one process act as one member of the protocol: they share one copy
//! of a message, one receipt and one report, and they fail together. So a process costs the group no more
//! than one member, however many members the process has. A process submits its seats ([`Control::Seats`]).
//! That begins a change like a join, and the view of the next install in the order includes the seats. The
//! caller passes each message to all of its members. A new member gets the state, as of its first view, from
//! a member of the same process. φ counts processes, because the members of a process fail together.
//!
//! **Receipts.** A receipt says what a member holds: the last number of each stream, and the position of the
//! order. By receipts, members free the messages that all members hold, end flushes, and deliver safe
//! messages. In a view of at most [`Settings::receipts_at_once`] members, each member sends its receipt to
//! all other members at the end of every turn that changed the receipt. In a larger view such receipts would
//! cost more than the messages themselves. There receipts go through a *tree*, in which members are placed by
//! rank, with a bounded number of members directly below each member. A member sends up the receipt of its
//! *branch*: the least number of each stream, and each member's position. The receipt of the root's branch
//! covers all members, and goes down.
//! 1. *Times.* Receipts go at each [interval](Settings::interval) while anything is held or waits, so a lost
//!    receipt is repeated. The receipt of a branch goes at once when the branch holds more of the order than
//!    before and a safe message may wait for that progress. The root sends at once a receipt by which it
//!    delivers a safe message.
//! 2. *Value.* The receipt of a branch is a receipt of each member in it, and may be old, like any receipt. A
//!    slow member in the middle of the tree delays only safe messages with φ = all, which wait for each
//!    member anyway. Everything else goes past the tree.
//! 3. *Past the tree.* A member that asked recently gets receipts at once. A member asks all when a flush
//!    begins, at each interval while a flush waits, and when its window is half full. Members take turns to
//!    ask all when ordered messages wait and none proceeded, or when they could free no held messages for a
//!    few intervals. An asked member sends its own receipt, and the root also the receipt of all members. A
//!    member without a link to the member above it sends receipts to all other members now and then.
//!
//! **Casts.** A soft message leaves its sender as a [cast](crate::seam::Sink::cast): one copy for all members
//! that the group's address reaches, if the group has an address, and one copy for each other member. A cast
//! may be lost, come twice, come late, or overtake other casts, at each member separately. Members recognize
//! messages by their numbers, so the way by which a copy comes does not matter: streams, receipts, reports,
//! cuts and the firewall do not depend on it. Everything else goes over links.
//! 1. *Ahead of others.* A message after a gap is put aside, up to [`Settings::ahead_bytes`] bytes of each
//!    sender, until the gap closes. Such a message is in no receipt and no report. A message that does not
//!    fit counts as missing. Members recognize a second copy by its number.
//! 2. *Gaps* are requested over the link, one by one ([`Direct::Gap`]), once they have been open for
//!    [`Settings::gap_patience`], and again at each [interval](Settings::interval). A member requests a gap
//!    from the sender or, without a link to the sender, from a member whose receipt covers the gap.
//! 3. *The last message* has no successor that would expose its loss. But the receipts of its sender cover
//!    the sender's own stream, and go over the link: in a small view at the end of the turn in which the
//!    message was cast. The sender also repeats, over the link, messages that a member does not confirm from
//!    one interval to the next.
//! 4. *The window.* At most [`Settings::cast_window_bytes`] of casts to each member are unconfirmed. The link
//!    takes the rest, and messages that are too long for a cast. If this bound is 0, the member casts
//!    nothing, but takes the casts of other members. `addresses` describes how addresses are assigned, and
//!    the unwanted traffic on them.
//! 5. *Where casts do not arrive,* the link takes everything. The evidence is that casts had to be repaired,
//!    and no cast was confirmed. The sender notices this after one gap, because only one cast is in flight
//!    until a cast was confirmed. Casts are tried again after a second, then two, up to a minute (`lanes`).
//!
//! **Checkpoints.** While a group has no members, its state is in files of former members. A checkpoint is
//! the state at the beginning of a view: all members have the same state there. So the view alone identifies
//! the state, and any member may write it. A save is a view change that changes no members. Its [`Mark`] is a
//! life of the group and the view's number.
//! 1. [`Command::Save`] is an ordered message. The state is saved at the next install: [`Event::Keep`], in
//!    the stream of deliveries.
//! 2. The host reports that the file is durable ([`Command::Kept`]). The report is ordered, too, and gives
//!    routers and members the newest checkpoint ([`Record`]). The report counts only if it comes from a
//!    member, so the routers know of a checkpoint before its group is idle.
//! 3. A member that is about to leave sends nothing more, has all its sends delivered, saves, and leaves once
//!    the routers know its checkpoint. So the last member's checkpoint is complete.
//! 4. A joining process names its checkpoint ([`Offer`]). If nobody is in the group, the routers admit a
//!    process with the newest checkpoint that they know, or a newer one. They refuse all other processes,
//!    unless the join is forced. They also refuse a process without a checkpoint: it would begin with a fresh
//!    state, and its next checkpoint would make the checkpoints of other processes stale. If the group has
//!    members, the state comes from them.
//!
//! Positions tell which of two checkpoints is newer, as long as the routers go on. New routers count from the
//! first position again, and know no checkpoint. A process that comes with a checkpoint raises the group's
//! *life* above the checkpoint's life, so all later checkpoints are newer. A forced join overrides one
//! refusal and changes nothing else: only a save makes the newest checkpoint stale.
//!
//! A record stays when its group is idle, also in routers' snapshots, and takes little more than 24 bytes. If
//! there are more than `RECORDS_MAX` groups (16,384), the routers forget the record of the idle group whose
//! newest checkpoint is the oldest. Then they admit the first process that returns to this group with any
//! state.
//!
//! A suspicion during a change voids reports and cut, and its position is the new prepare. A survivor that
//! delays a change for longer than [`Settings::patience`] is suspected for that. The suspicion names the
//! prepare of that change, and is void once the change has ended.
//!
//! **Invariants**, asserted in these words.
//! - *Virtual synchrony.* At the install a member has delivered exactly the cut of every stream, and
//!   everything that was ordered before and not voided.
//! - *Nothing beyond the cut.* After its report a member delivers of each stream only what it reported, until
//!   it knows the cut. So every cut reaches as far as each survivor has delivered.
//! - *Nothing ahead of a report.* From its report to the install a member holds nothing after a gap, and puts
//!   nothing aside. Otherwise a repair could close a gap, and the member would hold more than any member
//!   reported. A later cut of the same change could then reach further than an earlier cut, and deliver a
//!   message that the earlier cut voided.
//! - *FIFO.* A soft message leaves its sender once the sender's own ordered messages are delivered there. It
//!   names the last of these ordered messages, and is delivered after it. An ordered message carries the
//!   number of soft messages before it, and is delivered after them. A host may learn from the order a key
//!   that other hosts need to read its soft messages. The host makes its soft messages follow the position of
//!   that key in the same way ([`Command::Follow`]).
//! - *Voided everywhere.* No survivor delivers an ordered message with soft predecessors beyond the cut. Once
//!   the suspicion is delivered, nobody takes direct messages of a sender that is gone (firewall). So no
//!   later cut of the same change reaches further than an earlier cut, and voided messages stay voided.
//! - *Packs.* Updates of one strength that the host passes together ([`Pack`]) are sent, held, confirmed and
//!   delivered together, and have one fate. Each soft update has its number, so receipts, reports and cuts
//!   count updates, and none of these counts ends inside a pack. Ordered and safe updates of a pack share one
//!   position and one set of soft predecessors, and each has an index at that position.
//! - *Safe.* A member confirms a position once it holds the message there, everything ordered before it, and
//!   the soft predecessors of all these messages. A safe message waits for φ such receipts, or for the
//!   install. At the install the routers have the message, so each survivor gets the message before the new
//!   view, some survivors a little later than others (S10).
//! - *The newest begins.* If nobody has the state, no member begins with an older checkpoint than the newest
//!   one reported earlier in the order, unless its join is forced.
//! - *One view at a time.* Messages of a later view wait until that view is installed here. Messages of an
//!   earlier view are ignored.
//!
//! **Attacks considered**, and how each ends.
//! - *A member dies during a change*, before its report, after it, or as the only holder of part of the cut:
//!   the suspicion voids the cut, and the survivors report again. A message that no survivor holds is in no
//!   cut. All members that had delivered it have died, because a survivor's report covers all its deliveries.
//! - *A second suspicion voids a cut by which some members have repaired and delivered:* their new reports
//!   include what they delivered, and the new cut covers it. These survivors have installed nothing, because
//!   the install needs every survivor.
//! - *A reporter is late, or sleeps:* after the patience a suspicion that names the position of the change
//!   drops the reporter, and nobody else has to agree. If the report is ordered before the suspicion, the
//!   suspicion is stale: the routing refuses it, and no member gets it.
//! - *Only dead members held the soft predecessors of an ordered send:* the send is voided at every survivor,
//!   at the install at the latest. Only processes that are gone delivered it, perhaps its sender. An ordered
//!   send promises no more; a flush or a safe send would have shown the loss. A safe send with φ = all was
//!   delivered nowhere: some survivor never confirmed it. With a smaller φ, dead members may have delivered
//!   the safe send. So the survivors deliver it without its lost predecessors, and the event of the new view
//!   has their number.
//! - *Dead members confirmed a safe send:* it is chosen, so the survivors get it from the routers before the
//!   install.
//! - *A member quits and joins again before the other members have a view without it:* one view removes it
//!   and admits it again, as a process that has no state. Nothing of its former membership is left. It has
//!   only its first seat, and its locks are released. Sends that had not reached the order are never ordered,
//!   and their numbers are not used again.
//! - *A process quits before it was admitted, and joins again:* the order answers both joins to that process.
//!   A member takes only the answer to its own message, which it recognizes by the message's number in the
//!   order.
//! - *A joiner dies during its join:* before the install the joiner is taken off the list of waiting
//!   processes; after the install, it is a member like any other. The routers watch joiners and members
//!   alike, so no group waits for a dead process.
//! - *A busy group has a large state:* deliveries meanwhile wait at the joiner, bounded in memory. The host
//!   gets them in steps, and each step waits until the host has applied the step before
//!   ([`Event::ProgressWanted`]), so no host has to hold all of them. Above the bound the join ends with
//!   [`Failure::Behind`], which tells how fast the deliveries came, and the joiner is out of the group.
//! - *The giver of a state dies:* the next view is without the giver and names a new giver, which gives the
//!   state of that view. The joiner drops the pieces that it had received.
//! - *All holders of the state die:* the oldest remaining member begins with a fresh state, and its host
//!   learns that. A joiner that has received the state before its report counts as a member with the state,
//!   because its report says so. After its report it takes no piece of a state before the install.
//! - *All holders of the state die while other members wait for the state, and a checkpoint is known:* the
//!   oldest waiting member begins with its own checkpoint, if that checkpoint is the newest. Otherwise it
//!   makes way ([`Control::Quit`]), and the next oldest has the same choice.
//! - *A checkpoint is durable, and its member dies before the routers know the checkpoint:* the checkpoint is
//!   newer than the newest checkpoint that the routers know. So they admit a process that joins with it, and
//!   know it from then on.
//! - *Two members save at once, or during a change:* the next install serves all of them, with one mark.
//! - *A member ends while it saves:* the routers refuse a report of the checkpoint that comes after the
//!   member's end, because the group may have begun from an older checkpoint meanwhile.
//! - *A member that made way, or lost its state, comes back before a view without it begins:* it waits for
//!   admission, as a joiner.
//! - *One direction between two members is cut:* the receiver requests messages that the sender's link loses
//!   from members whose receipts cover them. While any router hears a member, it stays.
//! - *All members of a group die, or its only member:* the routers find out, because they watch all members
//!   of the domain. Nothing is kept for the dead.
//! - *A member is cut off from the routers, and not from members:* it gets nothing of the order, and its soft
//!   sends still arrive. Once it is suspected, members refuse it (firewall). It stops delivering and sending
//!   as soon as it knows no leader, or has heard no router for a second and a half though links to them stand
//!   ([`Event::InTouch`]). It ends when it learns that it was dropped ([`Event::Wedged`]). Waiting sends are
//!   then refused, and flushes fail ([`Failure::OutOfTouch`]), because the routers may be away for good.
//!   Sends that the order already has keep waiting for the order's answer. The host of a joiner still
//!   receives the state, and what the joiner delivered before it lost contact.
//! - *The last message's cast is dropped, and nothing follows:* the receipt of its sender, which goes over
//!   the link, shows the loss.
//! - *The network drops all casts, or all casts in one direction:* each direction is a lane of its own, and
//!   each sender falls back separately. The link carries repairs and receipts in both directions. If the link
//!   is cut as well, see *one direction is cut*.
//! - *A burst exceeds the room to put aside:* a message that does not fit counts as not received. It is a gap
//!   like any other, and the sender's receipts show how far it reaches.
//! - *Casts come twice, or after the view in which they were sent:* their numbers and the view's number
//!   expose them.
//! - *A cast is of an earlier session:* as long as the view has not changed, the stream has not changed
//!   either, and the cast is as good as any other copy. *It is of an earlier incarnation:* each incarnation
//!   counts as a process of its own, so members take the cast only if that process is in the view.
//! - *A cast overtakes the message over a link that begins the cast's view:* the cast waits, as any message
//!   of the next view does.
//! - *The network delays a cast, and a member delivers the suspicion of the sender before the cast arrives:*
//!   the member refuses the cast, because the firewall is at the member, not at the link.
//! - *A gap of a dead sender closes during a change,* by a repair, and messages put aside after it would now
//!   be held: see *nothing ahead of a report*.
//! - *A cast is not a soft message of its caster:* it is refused. The runtime states how certain the caster's
//!   identity is.
//! - *A request names a gap to the end of all numbers:* the answer has those messages of the gap that the
//!   receiver holds, in one piece.
//! - *A soft message of the next view overtakes its install:* the message waits. The bytes of such messages
//!   are bounded, and a message that does not fit is a gap like any other.
//! - *Late duplicates, repairs of an old view:* they carry their view's number and are ignored.
//! - *An ordered send of the old view is ordered after the install:* its sender survived, so its soft
//!   predecessors are in the cut, and all members of the new view deliver it there.
//! - *The only holder of the state leaves while others wait for the state:* once another member has got the
//!   state, the next view change releases the holder.
//! - *All leave at once, or join at once:* one change serves all of them. The routers forget an empty group
//!   with the next control message, except for its record.
//! - *Hundreds join at once, a few in each process:* the first member of each process joins, and the
//!   process's other members are seats. A process submits its seats once it has the state, as one list. So
//!   any number of seats costs one message in the order, and shares the change in progress.
//! - *A seat is given up with sends on their way:* the new list of seats goes after these sends
//!   ([`Command::Seats`]), so no message comes from a member that is in no view.
//! - *A process dies between its list and the install:* its seats go with it; nothing is kept of processes
//!   outside the view.
//! - *Two lists of one process overtake each other:* the order keeps control messages of one sender in the
//!   order in which they were sent, and each list is complete.
//! - *A process lists ten thousand seats, or the same twice:* the list is refused ([`SEATS_MAX`]), everywhere
//!   alike.
//!
//! **Where we differ, and why.**
//! - 000 has a membership service that interacts with members in rounds. Here rounds are ordered messages,
//!   and every receiver computes the cut: no coordinator can fail during a change.
//! - 000 sends soft messages by IP multicast to all members, or to none. Here each member that multicast does
//!   not reach gets separate casts, or copies over the link.
//! - 000 stacks members of a group on a machine as separate processes, and sends stability up a tree of them.
//!   Here such members share one process, which takes the place of the lowest level of that tree. Flushes go
//!   past the tree: the flushing member asks all members, and each member answers.
//! - An isolated member does not "reboot" as soon as it is out of touch, as in 000: it stops, and continues
//!   if it was not dropped. Otherwise a short loss of the routers would cost every group its state.
//! - 000 names one checkpoint file and does not discuss several. Here routers know the newest checkpoint, so
//!   members on several machines may have a checkpoint each.
//! - A soft send waits at its *sender* until the sender's own ordered messages are delivered there. 000
//!   leaves the relation of strengths open.

mod addresses;
mod caller_commands;
mod checkpoint;
mod feed;
mod id;
mod lanes;
mod lock;
mod member;
mod message;
mod place;
mod process;
mod receipts;
mod routing;
mod seats;
mod shards;
mod stream;
mod updates;
mod view;

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;

use crate::{
    ecast::Position,
    id::{Peer, ProcessId},
    seam::{CAST_BYTES_MAX, CommandId},
    time::Duration,
};

pub use self::{
    addresses::{ADDRESSES_MAX, AddressStatistics},
    checkpoint::{Mark, Offer, Record},
    id::{GROUP_NAME_BYTES_MAX, GroupId},
    lock::{Claim, Grant, LOCK_NAME_BYTES_MAX, Locks},
    message::{Direct, Holders, Message},
    place::Place,
    process::Process,
    routing::{Control, Groups, Roster},
    seats::{SEATS_MAX, SeatId, Seats},
    stream::Soft,
    updates::{Pack, PackWriter, Updates},
    view::{Group, GroupStep, StateTransfer, SurvivorReport, Turn, View, ViewChange, ViewMember},
};
pub use crate::strength::{Phi, SendStrength};

/// The settings of a process in its groups.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Interval at which a process checks for lost messages, and sends them again.
    pub interval: Duration,
    /// Time for which a survivor may delay a view change before another member suspects it. That member waits
    /// this time once more for each punctual member that comes before it in rank.
    pub patience: Duration,
    /// Number of members of the largest view in which each member sends receipts to all other members at the
    /// end of each turn. In larger views they send receipts to members that ask, and through a tree in which
    /// each member has at most this number of members directly below it.
    pub receipts_at_once: usize,
    /// Upper bound of the member's own soft messages that not all members have, in bytes. Above it, new sends
    /// wait.
    pub window_bytes: usize,
    /// Upper bound of a cast, in bytes, at most [`CAST_BYTES_MAX`]. Longer soft messages go over the link.
    pub cast_bytes: usize,
    /// Upper bound of unconfirmed casts to a member, in bytes. Above it, soft messages to that member go over
    /// the link. With 0, all soft messages go over links.
    pub cast_window_bytes: usize,
    /// Interval at which members report the rates of their groups, if these have changed. Routers assign
    /// multicast addresses to groups by their rates.
    pub rate_interval: Duration,
    /// Upper bound of messages of a sender that arrived ahead of its earlier messages, in bytes. Messages
    /// above this bound must be sent again.
    pub ahead_bytes: usize,
    /// Time for which a gap may be open before it is requested, because the missing message may only have
    /// been overtaken.
    pub gap_patience: Duration,
    /// Upper bound of sends that have not ended, in bytes; above it, new sends are refused.
    pub queue_bytes_max: usize,
    /// Upper bound of the size of one message, in bytes.
    pub body_bytes_max: usize,
    /// Upper bound of a piece of a state, of a repair, and of messages that arrived before their view, in
    /// bytes.
    pub piece_bytes: usize,
    /// Upper bound of the state that a joining member requests in a second, in bytes. It leaves the other
    /// members time for their work.
    pub state_bytes_per_second: u64,
    /// Upper bound of the memory of events that wait at a joining member, in bytes. Above it, the join ends
    /// in [`Failure::Behind`].
    pub behind_bytes_max: usize,
    /// Upper bound of the memory of the events that the host gets in one step after the state, in bytes. A
    /// step has at least one event, however large.
    pub hand_over_bytes: usize,
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
            behind_bytes_max: 384 << 20,
            hand_over_bytes: 4 << 20,
        }
    }
}

impl Settings {
    /// Returns the largest soft pack that fits into one cast, in bytes.
    pub fn cast_pack_bytes(&self) -> usize {
        self.cast_bytes.saturating_sub(CAST_HEAD_BYTES + stream::SOFT_HEAD_BYTES)
    }
}

/// Bytes of a cast before its soft messages.
const CAST_HEAD_BYTES: usize = 64;

/// A request to a process. Every command with an id, and each [`Sending`], ends in exactly one
/// [`Event::Done`] or [`Event::Sent`].
#[derive(Clone, Debug)]
pub enum Command {
    /// Processes that may be routers.
    Seeds(Vec<Peer>),
    /// Joins a group. Done once the host has applied the state and all events that came while the state was
    /// transferred.
    Join {
        /// The caller's name for the command.
        id: CommandId,
        /// The group.
        group: GroupId,
        /// The group's name; at most [`GROUP_NAME_BYTES_MAX`] bytes.
        name: String,
        /// The host's checkpoint. The process begins with it if no member has the group's state.
        offer: Offer,
    },
    /// Leaves a group, after all earlier sends.
    Leave {
        /// The caller's name for the command.
        id: CommandId,
        /// The group.
        group: GroupId,
    },
    /// Sends these packs, in order.
    Send(Vec<Sending>),
    /// Waits until all members have everything that was delivered here so far.
    Flush {
        /// The caller's name for the command.
        id: CommandId,
        /// The group.
        group: GroupId,
    },
    /// Begins a view, so that the state at its beginning is saved: [`Event::Keep`]. Done once the view has
    /// begun here. The checkpoint includes everything that was delivered here before the command.
    Save {
        /// The caller's name for the command.
        id: CommandId,
        /// The group.
        group: GroupId,
        /// Whether this member is about to leave: it sends nothing more, the checkpoint includes all its
        /// sends, and only this member saves the state. If no member leaves, all members save the state.
        last: bool,
    },
    /// Reports that the host has a checkpoint on disk. Done once the routers know.
    Kept {
        /// The caller's name for the command.
        id: CommandId,
        /// The group.
        group: GroupId,
        /// The checkpoint's name.
        checkpoint: Mark,
    },
    /// Requests the counters of this process. Answered by [`Event::Figures`].
    Figures {
        /// The token that the caller gave the command.
        token: u64,
    },
    /// Leaves the domain and all groups. [`Event::Wedged`] follows once this is done. For an orderly end,
    /// leave the groups first.
    Exit,
    /// Leaves a group at once, as if this process had failed. The process loses the group's state and can
    /// give it to no other process. Its open commands in the group end, but this command itself has no
    /// [`Event::Done`]. Until the next view the process cannot join that group again.
    Quit {
        /// The group.
        group: GroupId,
    },
    /// Makes later soft messages of this member follow this position of the order, which was delivered here:
    /// no member delivers those messages before the message at this position. This command has no
    /// [`Event::Done`].
    Follow {
        /// The group.
        group: GroupId,
        /// The position.
        at: Position,
    },
    /// Sends bytes to another member, independently of views. The bytes arrive at once or not at all, and the
    /// sender gets no report. This command has no [`Event::Done`].
    Say {
        /// The group.
        group: GroupId,
        /// The receiver.
        to: ProcessId,
        /// The bytes.
        body: Bytes,
    },
    /// Sets this process's members of a group, once everything that the process sent earlier is delivered
    /// here. The next view includes them. If there are several such commands, the last command counts. This
    /// command has no [`Event::Done`].
    Seats {
        /// The group.
        group: GroupId,
        /// The members' seats, in order; at least one, at most [`SEATS_MAX`].
        seats: Vec<SeatId>,
    },
    /// Executes these commands, in order.
    Several(Vec<Command>),
    /// The answer to [`Event::ProgressWanted`].
    Progress {
        /// The group that the process joins.
        group: GroupId,
    },
    /// The answer to [`Event::CheckpointWanted`].
    Checkpoint {
        /// The group.
        group: GroupId,
        /// The view that the event named.
        view: Position,
        /// The state at the beginning of that view.
        state: Bytes,
    },
}

/// Updates that are sent to a group together. The sending ends once they are delivered here.
#[derive(Clone, Debug)]
pub struct Sending {
    /// The caller's name for the sending.
    pub id: CommandId,
    /// The group.
    pub group: GroupId,
    /// The promise for the updates.
    pub strength: SendStrength,
    /// The updates.
    pub pack: Pack,
}

/// An event of a process. The events of all groups come in one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A command has ended.
    Done {
        /// The caller's name for the command.
        id: CommandId,
        /// The result.
        result: Result<CommandOutcome, Failure>,
    },
    /// The successful end of a [`Sending`]: its updates were delivered here.
    Sent {
        /// The caller's name for the sending.
        id: CommandId,
        /// The place of the first update of the sending. The places of the other updates come
        /// [behind](Place::behind) it.
        first: Place,
    },
    /// The state with which the member continues. `None` stands for the checkpoint that the host offered, or
    /// for a fresh state if the host offered no checkpoint.
    Restore {
        /// The group.
        group: GroupId,
        /// The state.
        state: Option<Bytes>,
    },
    /// A view begins.
    View {
        /// The group.
        group: GroupId,
        /// The view.
        view: View,
        /// Members that were not in the previous view.
        arrived: Vec<(ProcessId, SeatId)>,
        /// Members of the previous view that are not in the present view.
        departed: Vec<(ProcessId, SeatId)>,
        /// For each departed sender, the number of its soft messages that are lost although a later safe
        /// message of that sender was delivered.
        missing: BTreeMap<ProcessId, u64>,
        /// Time for which the member's own soft messages waited for the view, since the delivery of the
        /// message that began the change; zero for the first view.
        waited: Duration,
    },
    /// A request for the state as of the view in the preceding event. A process that joined with that view
    /// needs the state.
    CheckpointWanted {
        /// The group.
        group: GroupId,
        /// The view.
        view: Position,
    },
    /// The end of a step of events that waited behind the state of a joining member. Once the host has
    /// applied everything before this event, the host answers with [`Command::Progress`], and then gets the
    /// next step.
    ProgressWanted {
        /// The group that the process joins.
        group: GroupId,
    },
    /// A request to save the state as of this event under this name, and to report it by [`Command::Kept`]
    /// once it is durable.
    Keep {
        /// The group.
        group: GroupId,
        /// The checkpoint.
        checkpoint: Mark,
    },
    /// Consecutive updates of one sender.
    Deliver {
        /// The group.
        group: GroupId,
        /// The sender.
        sender: ProcessId,
        /// The updates, with their places.
        updates: Updates,
    },
    /// Bytes that a member sent independently of views ([`Command::Say`]).
    Said {
        /// The group.
        group: GroupId,
        /// The sender.
        from: ProcessId,
        /// The bytes.
        body: Bytes,
    },
    /// The answer to [`Command::Figures`].
    Figures {
        /// The token that the caller gave the command.
        token: u64,
        /// The counters of the process.
        figures: GroupCounters,
    },
    /// Whether a reachable router knows a leader. While no reachable router knows a leader, nothing is
    /// delivered here and soft sends wait.
    InTouch(bool),
    /// This process was dropped from the domain. It must stop, and may join again as a new process.
    Wedged,
}

/// Counters and gauges of a process, over all its groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Number of groups that the process is in, or about to join.
    pub groups: u64,
    /// Number of views that began here.
    pub views: u64,
    /// Longest time that a member's own soft messages waited for a view.
    pub longest_wait: Duration,
    /// Number of times that the process requested gaps in the soft messages of another member, each time one
    /// gap or several.
    pub gaps: u64,
    /// Number of soft updates that were sent again, because other members lacked them.
    pub resent: u64,
    /// Number of casts of soft messages, counted once for each receiving process. Several messages may share
    /// a cast.
    pub cast: u64,
    /// Number of casts of soft messages by a group's multicast address, each to any number of processes.
    pub multicast: u64,
    /// Number of multicast addresses to which the process listens.
    pub addresses: u64,
    /// Number of casts that came for groups in which the process is not.
    pub unwanted: u64,
    /// Number of times that casts to a process were given up for a while, because they did not arrive. It
    /// does not matter whether these were separate casts or casts by an address.
    pub fallbacks: u64,
    /// Size of soft messages that are held because not all members are known to have them, in bytes.
    pub held_bytes: u64,
    /// Number of ordered messages that wait for their predecessors, or until enough members have them.
    pub waiting: u64,
    /// Number of messages from processes that were dropped.
    pub firewalled: u64,
    /// Number of refused messages, which no correct peer sends.
    pub refused: u64,
}

/// The success of a command that does not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The process is in the group, with its state.
    Joined,
    /// The process is out of the group.
    Left,
    /// All members have the flushed messages.
    Flushed,
    /// A view began, and the state at its beginning is saved under this name.
    Marked(Mark),
    /// The routers know of the checkpoint, or of a newer one.
    Kept,
}

/// The reason why a command failed. The variants differ in what the caller may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The send never left this process, so the caller may send it again.
    #[error("the message was not sent: it may be sent again")]
    NotSent,
    /// The send may have taken effect.
    #[error("the request may have taken effect")]
    MaybeApplied,
    /// This process is out of touch with the routers. The message was not sent, and the caller may send it
    /// again once the process is in touch.
    #[error("this process is out of touch with the routers: try again later")]
    OutOfTouch,
    /// This process was dropped from its groups. It must come back as a new process.
    #[error("this process was dropped from its groups: join them again as a new process")]
    Wedged,
    /// The process is not in this group, or is about to leave it.
    #[error("this process is not a member of the group")]
    NotMember,
    /// The process is already in this group, or about to join it.
    #[error("this process is a member of the group already")]
    AlreadyMember,
    /// No process is in the group, or none has its state, and a newer checkpoint than the offered one is
    /// known.
    #[error("the group has a newer checkpoint than this process offered: {0}")]
    Stale(Mark),
    /// The message is too long, or too many messages wait to be sent.
    #[error("the message is too long, or too many messages wait: the limit is {0} bytes")]
    Full(usize),
    /// The process did not get into the group, because updates came faster than the process received the
    /// state and its host applied updates.
    #[error("{0}")]
    Behind(Backlog),
}

/// The backlog of events at a joining member when it exceeded [`Settings::behind_bytes_max`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Size of the events that came since the member requested the state, in bytes.
    pub came: u64,
    /// Time from the request for the state until the limit was exceeded.
    pub during: Duration,
    /// The limit of the backlog's memory, in bytes.
    pub limit: usize,
}

impl Backlog {
    /// Returns the mean rate of the events, in bytes a second.
    pub fn bytes_per_second(&self) -> u64 {
        (self.came as f64 / self.during.as_secs_f64().max(1e-3)) as u64
    }
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the group sends {} bytes a second, more than this process could take over in the {:.1} s since \
             it asked for the state: more than {} bytes wait for the state, so this process does not join",
            self.bytes_per_second(),
            self.during.as_secs_f64(),
            self.limit
        )
    }
}
