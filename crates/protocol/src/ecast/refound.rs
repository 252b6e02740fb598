//! A new generation without a surviving router: a domain continues from its members alone (rule S1).
//!
//! **Promise.** The same as with a survivor ([`Reformed`](super::Reformed)), except for the survivor's log.
//! An operator gives the command to one *founder*, a router that has just started and knows nothing. Then the
//! domain has one history again. It contains every delivery of a member that follows, at its position. So no
//! acknowledged message is lost if one process that delivered it follows. Everything that only routers knew
//! is lost: messages that were ordered and delivered nowhere, and outcomes that were not reported. Senders of
//! such messages learn [`Outcome::MaybeApplied`](super::Outcome::MaybeApplied).
//!
//! **Source.** Rule S1 of the design; the papers have no counterpart. The two steps, a promise of a majority
//! and then a report of each member, are those of phase 1 of Paxos, with members as acceptors and a single
//! value.
//!
//! ```text
//!  operator       founder                          members                     old routers
//!     ├─ Refound ────▶│ wants a link to each           │                            ╳
//!     │               ├── Call ───────────────────────▶│ hears no leader, follows nobody else
//!     │               │◀─────────────────────── Pledge ┤
//!     │               │ a majority: begins g           │
//!     │               ├── Refound(g) ─────────────────▶│ enters g: no link to older routers
//!     │               │◀────────── Witness(delivered, ─┤
//!     │               │    what it delivered last,     │
//!     │               │    configuration there)        │
//!     │               │ alone in a new log (paxos)     │
//!     │               │ log: Recovered(ground, messages)
//!     │               ├── Lead(g), Deliver … ─────────▶│ as with a survivor
//! ```
//!
//! **What is known of the past.** Streams are routed per destination, so no member saw all messages. Yet
//! together they know what matters:
//!
//! - *Completeness.* A leader adds its *base* to deliveries: all messages up to it are stable, that is,
//!   confirmed by every destination that is a member. So a member lacks nothing up to the greatest base that
//!   any member knows, even if it got no message for a day. It also lacks nothing up to its own last
//!   delivery.
//! - *The ground* is the position up to which even the least advanced following member lacks nothing. The
//!   history begins there. Every delivery after it is among the kept deliveries of some member; otherwise
//!   the ground lies further ahead.
//! - *The configuration* reaches every member. So a member that lacks nothing up to the ground, and has
//!   delivered nothing after it, has the configuration at the ground. Later changes are messages like
//!   others.
//! - *Parts.* The members of a [domain](crate::domain)'s parts report their own parts' configurations, and
//!   each message concerns one part. So each part has a ground of its own, and the history begins at the
//!   lowest ground. Messages that a part delivered up to its own ground need no position in the new history:
//!   no member of the part lacks them, and the part's configuration already has their effect.
//! - *Numbers of senders.* A sender reports up to which of its numbers it knows the outcomes, and which
//!   number it used last. Messages in between are recovered, or were perhaps delivered before the ground. In
//!   the second case the outcome is [`Outcome::MaybeApplied`], and the message is not ordered again.
//!
//! **Invariants.**
//! - *One founder.* A founder begins only with more than half of the members that the operator named. A
//!   member pledges to one founder as long as its link stands, and follows no other. So of two founders at
//!   most one begins, and the other is refused; or both are refused, and the operator may try either again. A
//!   founder that gives up releases its members. Before there is a majority, no member has moved.
//! - *Live routers are not replaced.* A member that hears of a leader reports that, and the founder gives up.
//! - *A member that lags too far is out.* Some member may no longer keep all its deliveries after the ground.
//!   Then the least advanced members are fenced off, level by level, until all later deliveries are known.
//!   The most advanced member stays, so no acknowledged message is lost.
//! - Silence before the cut, the fence, and facts that keep their positions: as with a survivor.
//!
//! **Attacks considered.**
//! - *A member that delivered a message died.* Nobody else knows the message, so its position is a hole. A
//!   control message goes to every member. So if a member has a delivery after such a hole, the lost message
//!   was no control message, or the member joined after the hole. A process that joined after a hole is out.
//! - *A member was removed and does not know it.* Its base may be true for the other members and not for
//!   itself. It is left out if it is no member in the configuration of a more advanced member.
//! - *The founder dies.* Before the cut, some members have entered its generation and delivered nothing
//!   there. The operator tells the next founder the highest generation of any member, and that founder begins
//!   a later generation. After the cut, some members have heard of the generation, and the others cannot tell
//!   whether it includes them. So a member first learns which members' answers counted, and passes that on. A
//!   member that counted stays; it has delivered nothing since. Survivors send the same list.
//! - *The operator's tool dies, or tells the founder twice.* The founder continues without it. It refuses a
//!   second command until it leads.
//! - *Old routers were only cut off.* They have no links to members that followed. If they have a majority
//!   among them, and members that did not follow, they continue, like a majority that a survivor left behind.
//! - *A process joins meanwhile.* If its joining was delivered to some member, it is recovered. If not, the
//!   process joins again: its first message makes it a member at most once, as always.
//! - *Confirmations, executions and credits* are soft state. The founder rebuilds it as a new leader does.
//! - *The routers' ledger* ([`Routing::Ledger`](super::Routing::Ledger)) begins empty, because members do not
//!   have it. Routers fill it from the recovered messages.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};

use super::{
    Message, Position, Router, RouterEvent, Routing,
    poll::{MemberPoll, Pledge, RefoundRefusal, Witness},
    reform::{Gathering, NUMBERS_MAX},
};
use crate::{
    id::{Generation, Peer, ProcessId},
    paxos,
    seam::{CommandId, Context, Destination, Input, Sink},
    time::Duration,
    wire::encode_body,
};

/// The report of a following member, with its configuration decoded.
struct MemberAccount<C> {
    witness: Witness,
    /// The part of the domain to which the member belongs.
    part: u8,
    config: C,
    /// Position up to which the member lacks nothing.
    whole_to: Position,
    /// The ground of the member's part.
    behind: Position,
}

/// The beginning of a history that continues from members.
struct HistoryStart<C> {
    before: Generation,
    behind: Position,
    config: C,
    accounts: BTreeMap<ProcessId, MemberAccount<C>>,
}

/// Chooses the start of the history, and the members that stay. `begun` is the founder's configuration.
fn choose_start<R: Routing>(
    begun: &R::Config,
    witnesses: &BTreeMap<ProcessId, Witness>,
) -> Option<HistoryStart<R::Config>> {
    let delivered = |witness: &&Witness| witness.tail.delivered > Position(0);
    let before = witnesses.values().filter(delivered).map(|witness| witness.tail.before).max()?;
    // The newest generation may have begun with or without some of the members, and they may not have heard
    // of its beginning.
    let newest = || witnesses.values().filter(|witness| witness.tail.before == before);
    let counted: BTreeSet<ProcessId> = newest().flat_map(|witness| witness.counted.iter().copied()).collect();
    let mut accounts: BTreeMap<ProcessId, MemberAccount<R::Config>> = BTreeMap::new();
    for (&who, witness) in witnesses {
        let numbers = witness.sent.checked_sub(witness.tail.acknowledged);
        let belongs = witness.tail.before == before || counted.contains(&who);
        if belongs
            && delivered(&witness)
            && numbers.is_some_and(|numbers| numbers <= NUMBERS_MAX)
            && let Some(config) = R::witnessed(&witness.config)
        {
            let mut witness = witness.clone();
            if witness.tail.before != before {
                // The member's deliveries belong to the later generation's history, but messages that the
                // earlier generation called stable may not belong to it.
                (witness.tail.before, witness.base) = (before, Position(0));
            }
            let part = R::witnessed_part(&witness.config);
            let (whole_to, behind) = (Position(0), Position(0));
            accounts.insert(who, MemberAccount { witness, part, config, whole_to, behind });
        }
    }
    let removed: Vec<ProcessId> = accounts
        .iter()
        .filter(|(who, account)| {
            accounts.values().any(|other| {
                other.part == account.part
                    && other.witness.tail.delivered > account.witness.tail.delivered
                    && !R::is_member(&other.config, **who)
            })
        })
        .map(|(who, _)| *who)
        .collect();
    for who in removed {
        accounts.remove(&who);
    }
    let base = accounts.values().map(|account| account.witness.base).max()?;
    for account in accounts.values_mut() {
        account.whole_to = account.witness.tail.delivered.max(base);
    }
    let parts: BTreeSet<u8> = accounts.values().map(|account| account.part).collect();
    let mut reported = Vec::new();
    for part in parts {
        let is_of_part = |account: &MemberAccount<R::Config>| account.part == part;
        loop {
            let of_part = || accounts.values().filter(|account| is_of_part(account));
            let behind =
                of_part().map(|account| account.whole_to).min().expect("the most advanced member stays");
            if of_part().all(|account| account.witness.kept_behind <= behind) {
                let stands = |account: &&MemberAccount<R::Config>| account.witness.tail.delivered <= behind;
                let least = of_part().filter(stands).max_by_key(|account| account.witness.tail.delivered);
                let least = least.expect("some member has delivered nothing beyond the start");
                reported.push((part, least.config.clone()));
                for account in accounts.values_mut().filter(|account| is_of_part(account)) {
                    account.behind = behind;
                }
                break;
            }
            accounts.retain(|_, account| !is_of_part(account) || account.whole_to > behind);
        }
    }
    let behind = accounts.values().map(|account| account.behind).min()?;
    Some(HistoryStart { before, behind, config: R::continued(begun, reported), accounts })
}

impl<R: Routing> Router<R> {
    /// Begins a generation, because an operator says that no router of the domain will come back. The
    /// operator names the domain's members; `before` is the latest generation of any of them.
    pub(super) fn refound(
        &mut self,
        cx: &mut Context<'_>,
        id: CommandId,
        (before, members): (Generation, Vec<Peer>),
        patience: Duration,
        out: &mut dyn Sink<Self>,
    ) {
        if self.member_poll.is_some() || self.gathering.is_some() {
            return out.emit(RouterEvent::Ended { id, result: Err(RefoundRefusal::Underway.into()) });
        }
        if !self.paxos.can_found() {
            return out.emit(RouterEvent::Ended { id, result: Err(RefoundRefusal::NotFresh.into()) });
        }
        self.commands.generation = Some(id);
        if before.is_later(self.settings.generation) {
            // Members have links to routers of their own generation and of later ones.
            self.settings.generation = before;
            self.adopt(out);
        }
        for member in &members {
            out.reach(member.id, &member.address);
        }
        let named: BTreeSet<ProcessId> = members.into_iter().map(|member| member.id).collect();
        self.member_poll = Some(MemberPoll {
            until: cx.now + patience,
            pledged: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            begun: false,
            witnesses: BTreeMap::new(),
            named,
        });
        for member in self.linked.clone() {
            self.call(member, out);
        }
    }

    /// Asks `member`, which has a link, whether it follows this router into the new generation, if the
    /// operator named `member`.
    pub(super) fn call(&self, member: ProcessId, out: &mut dyn Sink<Self>) {
        if self.member_poll.as_ref().is_some_and(|it| it.named.contains(&member)) {
            out.send(Destination::One(member), Message::Call, None);
        }
    }

    /// Handles a member's answer.
    pub(super) fn on_pledge(&mut self, from: ProcessId, pledge: Pledge, out: &mut dyn Sink<Self>) {
        let Some(member_poll) = self.member_poll.as_mut().filter(|it| it.named.contains(&from)) else {
            self.refused += 1;
            return;
        };
        match pledge {
            Pledge::Follows => {
                member_poll.pledged.insert(from);
                member_poll.elsewhere.remove(&from);
                if member_poll.begun {
                    return self.ask(vec![from], out);
                }
                if member_poll.is_majority(member_poll.pledged.len()) {
                    member_poll.begun = true;
                    let followers = member_poll.pledged.iter().copied().collect();
                    let generation = self.settings.generation.next(self.paxos.me());
                    self.settings.generation = generation;
                    self.adopt(out);
                    self.ask(followers, out);
                }
            }
            Pledge::FollowsAnother(founder) => {
                member_poll.elsewhere.insert(from);
                if member_poll.elsewhere.len() * 2 >= member_poll.named.len() {
                    self.give_up(RefoundRefusal::FollowsAnother(founder), out);
                }
            }
            Pledge::Led(leader) => self.give_up(RefoundRefusal::LeaderLives(leader), out),
        }
    }

    fn ask(&mut self, members: Vec<ProcessId>, out: &mut dyn Sink<Self>) {
        let generation = self.settings.generation;
        self.asked.extend(&members);
        out.send(Destination::Many(members), Message::Refound { generation }, None);
    }

    /// Handles a member's report.
    pub(super) fn on_witness(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        witness: Witness,
        out: &mut dyn Sink<Self>,
    ) {
        let generation = self.settings.generation;
        let Some(member_poll) = self.member_poll.as_mut().filter(|it| it.pledged.contains(&from)) else {
            self.refused += 1;
            return;
        };
        if witness.tail.generation == generation {
            member_poll.witnesses.insert(from, witness);
        }
        self.finish_refounding(cx, out);
    }

    /// Begins the generation once all members have reported, or their time is over.
    pub(super) fn finish_refounding(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(member_poll) = &self.member_poll else { return };
        let (followed, named) = (member_poll.witnesses.len(), member_poll.named.len());
        if followed < named && cx.now < member_poll.until {
            return;
        }
        if !member_poll.is_majority(followed) {
            return self.give_up(RefoundRefusal::Unfollowed { followed, named }, out);
        }
        if !self.paxos.can_found() {
            return self.give_up(RefoundRefusal::NotFresh, out);
        }
        let Some(start) = choose_start::<R>(self.order.config(), &member_poll.witnesses) else {
            return self.give_up(RefoundRefusal::Nothing, out);
        };
        let witnesses = self.member_poll.take().expect("just seen").witnesses;
        let (gathering, entry) = self.recovered(cx, start, witnesses);
        self.gathering = Some(gathering);
        // The history begins with the configuration at the ground (the position up to which no following
        // member lacks a message). So no founding configuration is proposed.
        self.founding = true;
        self.drive(cx, Input::Command(paxos::Command::Found), out);
        self.propose(cx, entry, out);
    }

    /// Returns the entry with which the generation begins.
    fn recovered(
        &self,
        cx: &mut Context<'_>,
        start: HistoryStart<R::Config>,
        witnesses: BTreeMap<ProcessId, Witness>,
    ) -> (Gathering, Bytes) {
        let HistoryStart { before, behind, config: at_ground, accounts } = start;
        let mut gathering = Gathering::new(before, self.settings.generation, behind, cx.now, Vec::new());
        let mut sent = BTreeMap::new();
        for (who, witness) in witnesses {
            // A process without deliveries lacks nothing, unless its own joining lies before the ground.
            if witness.tail.delivered == Position(0) && !R::is_member(&at_ground, who) {
                gathering.take_newcomer(who);
            }
        }
        for (who, MemberAccount { witness, behind, .. }) in accounts {
            sent.insert(who, witness.sent);
            gathering.take_behind(who, witness.tail, R::is_member(&at_ground, who), behind);
        }
        let mut config = BytesMut::new();
        encode_body(&mut config, &at_ground);
        let entry = gathering.finish_on_ground(config.freeze(), sent);
        (gathering, entry)
    }

    /// Gives up: no generation begins with this router, and the members may follow another founder.
    fn give_up(&mut self, refusal: RefoundRefusal, out: &mut dyn Sink<Self>) {
        let Some(member_poll) = self.member_poll.take() else { return };
        if !member_poll.pledged.is_empty() {
            let followers = member_poll.pledged.into_iter().collect();
            out.send(Destination::Many(followers), Message::Release, None);
        }
        for member in member_poll.named {
            self.asked.remove(&member);
            out.forget(member);
        }
        let id = self.commands.generation.take().expect("an operator asked for the generation");
        out.emit(RouterEvent::Ended { id, result: Err(refusal.into()) });
    }
}

#[cfg(test)]
mod tests;
