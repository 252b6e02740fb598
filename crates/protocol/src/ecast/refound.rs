//! A new generation where no router lives: a domain goes on from its members alone (rule S1).
//!
//! **Promise.** As with a survivor ([`Reformed`](super::Reformed)), but for the survivor's log. Once an operator has said
//! so to one *founder*, a router that has just started and knows nothing, the domain has one history again. It contains
//! whatever a member that follows has delivered, at the position that it had. So no acknowledged message is lost as long
//! as one process that delivered it follows. Everything that only routers knew is lost: messages that were ordered and
//! delivered to nobody, and the outcomes that had not been told. Their senders are told
//! [`Outcome::MaybeApplied`](super::Outcome::MaybeApplied).
//!
//! **Source.** Rule S1 of the design; the papers have no counterpart. The two steps, first a promise of a majority and then
//! what each has, are those of phase 1 of Paxos, with members for acceptors and one value ever.
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
//! **What is known of the past.** Streams are routed for each destination, so no member saw all messages. Yet together they
//! know what matters:
//!
//! - *Who lacks nothing.* A leader adds its *base* to what it delivers: everything up to there is stable, that is, confirmed
//!   by every destination that is a member. So a member lacks nothing up to the greatest base that any of them knows,
//!   even if nothing was destined to it for a day. It also lacks nothing up to its own last delivery.
//! - *The ground.* Each member that follows lacks nothing up to the position where the least advanced one stands. The
//!   history begins there. All behind it that anybody delivered is in somebody's last deliveries, or the ground lies
//!   further ahead.
//! - *The configuration* goes to every member. So one that lacks nothing up to the ground, and has delivered nothing behind
//!   it, has the configuration at the ground. The changes behind it are messages like others.
//! - *Numbers of senders.* A sender says which of its numbers it knows the outcomes of, and which one it gave out last. What
//!   lies between is recovered or was perhaps delivered before the ground. It is told [`Outcome::MaybeApplied`] then, and
//!   not ordered again.
//!
//! **Invariants.**
//! - *One founder.* It begins only with more than half of the members that the operator named. A member pledges to one
//!   founder for as long as its link stands, and follows only the one that it pledged to. So of two that are told at once
//!   at most one begins, and the other is refused; or both are, and either may be told again. A founder that gives up
//!   releases its members. Nobody has moved before there is a majority.
//! - *Routers that live are left alone.* A member that hears of a leader says so, and the founder gives up.
//! - *Who lags too far is out.* If somebody no longer has what it delivered behind the ground, the members that stand before
//!   the rest are cut off, the least advanced first, until all that remains is known. The one that is furthest stays, so
//!   acknowledged messages do.
//! - Silence before the cut, the fence, facts that keep their positions: as with a survivor.
//!
//! **Attacks considered.**
//! - *A member that delivered a message and died.* Nobody else knows the message: its position is a hole. A control message
//!   goes to every member, so whoever has delivered anything behind such a hole was no destination of a control message
//!   there, or joined later; and who joined behind a hole is out.
//! - *A member that had been removed and does not know.* Its base may speak for the others and not for itself. One that is
//!   no member in the configuration of somebody who is further is left out.
//! - *The founder dies.* Before the cut, members have entered its generation, or not; they delivered nothing there. The next
//!   founder is told the highest generation that any of them is in, and begins one behind it. After the cut, some have
//!   heard of it and others cannot tell whether it was made with them. So a member is told whose answers counted before it
//!   hears anything else, and hands that on. Whoever counted stays, and has delivered nothing since. Survivors tell it too.
//! - *The operator's tool dies, or tells the founder twice.* The founder goes on alone. Told again meanwhile it refuses;
//!   afterwards it leads.
//! - *Old routers that were only cut off* have no links to whoever followed. If they have a majority among them and members
//!   that did not follow, they go on, like a majority that a survivor was told to go on without.
//! - *A process that joins meanwhile.* Its joining was delivered to somebody and is recovered, or was not. Then it joins
//!   again: its first message makes it a member at most once, as ever.
//! - *What was confirmed, executed, credited* is soft. It is found out anew, as by a new leader.
//! - *What routers judge messages by beside the configuration* ([`Routing::Ledger`](super::Routing::Ledger)) begins empty.
//!   Members do not have it. It learns from what is recovered.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    Message, Position, Router, RouterEvent, Routing,
    reform::{Gathering, NUMBERS_MAX, Tail},
};
use crate::{
    id::{Generation, Peer, ProcessId},
    paxos,
    seam::{CommandId, Context, Destination, Input, Sink},
    time::{Duration, Time},
    wire::encode_body,
};

/// What a member answers a founder that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pledge {
    /// It will follow, and nobody else as long as the link stands.
    Follows,
    /// It follows this founder.
    FollowsAnother(ProcessId),
    /// This router leads, as far as it hears.
    Led(ProcessId),
}

/// What a member tells the founder that it follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The answer that it would give a survivor.
    pub tail: Tail,
    /// What it delivered behind this position is in the tail.
    pub kept_behind: Position,
    /// Everything up to here is stable, as routers told it.
    pub base: Position,
    /// The last number that it gave to a message of its own.
    pub sent: u64,
    /// Whose answers counted when the generation `tail.before` began; empty if it was not told.
    pub counted: Vec<ProcessId>,
    /// The configuration at its last delivery, encoded; empty if it has none.
    pub config: Bytes,
}

/// Why no generation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RefoundRefusal {
    /// This process is a router, or one feeds it the log: ask it to go on as a survivor.
    #[error("this router belongs to the domain, or others feed it: nothing is lost, or it is a survivor")]
    NotFresh,
    /// It was asked already, and waits for members.
    #[error("it was asked already, and waits for members")]
    Underway,
    /// A member hears that this router leads.
    #[error("a member hears that {0} is the leader: nothing is lost")]
    LeaderLives(ProcessId),
    /// So many members follow another founder that no majority is left. This is one such.
    #[error("members follow the router {0}, which was told to go on from them too: see whether it does")]
    FollowsAnother(ProcessId),
    /// Not more than half of the members followed in time.
    #[error(
        "only {followed} of {named} members followed, and more than half of them have to: wait for others, or name those \
         that are gone for good"
    )]
    Unfollowed {
        /// How many did.
        followed: usize,
        /// How many were named.
        named: usize,
    },
    /// None of those who followed has delivered anything that could be gone on from.
    #[error("no member that followed has anything that could be gone on from")]
    Nothing,
}

/// A founder waits for members.
#[derive(Debug)]
pub(super) struct Refounding {
    /// The members that the operator named.
    named: BTreeSet<ProcessId>,
    until: Time,
    pledged: BTreeSet<ProcessId>,
    elsewhere: BTreeSet<ProcessId>,
    /// A majority follows: the generation has been announced.
    begun: bool,
    witnesses: BTreeMap<ProcessId, Witness>,
}

impl Refounding {
    pub(super) fn until(&self) -> Time {
        self.until
    }

    fn is_majority(&self, count: usize) -> bool {
        count * 2 > self.named.len()
    }
}

/// What a member that follows knows, its configuration decoded.
struct Account<C> {
    witness: Witness,
    config: C,
    /// It lacks nothing up to here.
    whole_to: Position,
}

/// Where a history begins that goes on from members.
struct Ground<C> {
    before: Generation,
    behind: Position,
    config: Bytes,
    accounts: BTreeMap<ProcessId, Account<C>>,
}

/// Chooses the ground, and who stays.
fn ground<R: Routing>(witnesses: &BTreeMap<ProcessId, Witness>) -> Option<Ground<R::Config>> {
    let delivered = |witness: &&Witness| witness.tail.delivered > Position(0);
    let before = witnesses.values().filter(delivered).map(|witness| witness.tail.before).max()?;
    // A later generation may have begun without those that have not heard of its beginning, or with them.
    let newest = || witnesses.values().filter(|witness| witness.tail.before == before);
    let counted: BTreeSet<ProcessId> = newest().flat_map(|witness| witness.counted.iter().copied()).collect();
    let mut accounts: BTreeMap<ProcessId, Account<R::Config>> = BTreeMap::new();
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
                // Its history is that of the later generation, but what it was told to be stable in the earlier one may not be.
                (witness.tail.before, witness.base) = (before, Position(0));
            }
            accounts.insert(who, Account { witness, config, whole_to: Position(0) });
        }
    }
    let removed: Vec<ProcessId> = accounts
        .iter()
        .filter(|(who, account)| {
            accounts.values().any(|other| {
                other.witness.tail.delivered > account.witness.tail.delivered
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
    loop {
        let behind = accounts.values().map(|account| account.whole_to).min()?;
        if accounts.values().all(|account| account.witness.kept_behind <= behind) {
            let stands = |account: &&Account<R::Config>| account.witness.tail.delivered <= behind;
            let least = accounts.values().filter(stands).max_by_key(|account| account.witness.tail.delivered);
            let config = least.expect("somebody stands at the ground").witness.config.clone();
            return Some(Ground { before, behind, config, accounts });
        }
        accounts.retain(|_, account| account.whole_to > behind);
    }
}

impl<R: Routing> Router<R> {
    /// An operator says that no router of the domain will come back, and names its members. `before` is the latest
    /// generation that one of them is in.
    pub(super) fn refound(
        &mut self,
        cx: &mut Context<'_>,
        id: CommandId,
        (before, members): (Generation, Vec<Peer>),
        patience: Duration,
        out: &mut dyn Sink<Self>,
    ) {
        if self.refounding.is_some() || self.gathering.is_some() {
            return out.emit(RouterEvent::Ended { id, result: Err(RefoundRefusal::Underway.into()) });
        }
        if !self.paxos.can_found() {
            return out.emit(RouterEvent::Ended { id, result: Err(RefoundRefusal::NotFresh.into()) });
        }
        self.commands.generation = Some(id);
        if before.is_later(self.settings.generation) {
            // Members link to routers of their own generation and of later ones.
            self.settings.generation = before;
            self.adopt(out);
        }
        for member in &members {
            out.reach(member.id, &member.address);
        }
        let named: BTreeSet<ProcessId> = members.into_iter().map(|member| member.id).collect();
        self.refounding = Some(Refounding {
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

    /// A link to a process stands: if it is one of the members, it is asked whether it follows.
    pub(super) fn call(&self, member: ProcessId, out: &mut dyn Sink<Self>) {
        if self.refounding.as_ref().is_some_and(|it| it.named.contains(&member)) {
            out.send(Destination::One(member), Message::Call, None);
        }
    }

    /// Whether a member follows.
    pub(super) fn on_pledge(&mut self, from: ProcessId, pledge: Pledge, out: &mut dyn Sink<Self>) {
        let Some(refounding) = self.refounding.as_mut().filter(|it| it.named.contains(&from)) else {
            self.refused += 1;
            return;
        };
        match pledge {
            Pledge::Follows => {
                refounding.pledged.insert(from);
                refounding.elsewhere.remove(&from);
                if refounding.begun {
                    return self.ask(vec![from], out);
                }
                if refounding.is_majority(refounding.pledged.len()) {
                    refounding.begun = true;
                    let followers = refounding.pledged.iter().copied().collect();
                    let generation = self.settings.generation.next(self.paxos.me());
                    self.settings.generation = generation;
                    self.adopt(out);
                    self.ask(followers, out);
                }
            }
            Pledge::FollowsAnother(founder) => {
                refounding.elsewhere.insert(from);
                if refounding.elsewhere.len() * 2 >= refounding.named.len() {
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

    /// What a member knows.
    pub(super) fn on_witness(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        witness: Witness,
        out: &mut dyn Sink<Self>,
    ) {
        let generation = self.settings.generation;
        let Some(refounding) = self.refounding.as_mut().filter(|it| it.pledged.contains(&from)) else {
            self.refused += 1;
            return;
        };
        if witness.tail.generation == generation {
            refounding.witnesses.insert(from, witness);
        }
        self.finish_refounding(cx, out);
    }

    /// Begins once all have said what they have, or have had their time.
    pub(super) fn finish_refounding(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(refounding) = &self.refounding else { return };
        let (followed, named) = (refounding.witnesses.len(), refounding.named.len());
        if followed < named && cx.now < refounding.until {
            return;
        }
        if !refounding.is_majority(followed) {
            return self.give_up(RefoundRefusal::Unfollowed { followed, named }, out);
        }
        if !self.paxos.can_found() {
            return self.give_up(RefoundRefusal::NotFresh, out);
        }
        let Some(ground) = ground::<R>(&refounding.witnesses) else {
            return self.give_up(RefoundRefusal::Nothing, out);
        };
        let witnesses = self.refounding.take().expect("just seen").witnesses;
        let (gathering, entry) = self.recovered(cx, ground, witnesses);
        self.gathering = Some(gathering);
        // The ground is what this domain begins with here.
        self.founding = true;
        self.drive(cx, Input::Command(paxos::Command::Found), out);
        self.propose(cx, entry, out);
    }

    /// The entry that the generation begins with.
    fn recovered(
        &self,
        cx: &mut Context<'_>,
        ground: Ground<R::Config>,
        witnesses: BTreeMap<ProcessId, Witness>,
    ) -> (Gathering, Bytes) {
        let Ground { before, behind, config, accounts } = ground;
        let at_ground = R::witnessed(&config).expect("it was decoded before");
        let mut gathering = Gathering::new(before, self.settings.generation, behind, cx.now, Vec::new());
        let mut sent = BTreeMap::new();
        for (who, witness) in witnesses {
            // One that has delivered nothing lacks its own joining if that lies before the ground, and nothing otherwise.
            if witness.tail.delivered == Position(0) && !R::is_member(&at_ground, who) {
                gathering.take_newcomer(who);
            }
        }
        for (who, Account { witness, .. }) in accounts {
            sent.insert(who, witness.sent);
            gathering.take(who, witness.tail, R::is_member(&at_ground, who));
        }
        let mut config = BytesMut::new();
        encode_body(&mut config, &at_ground);
        let entry = gathering.finish_on_ground(config.freeze(), sent);
        (gathering, entry)
    }

    /// No generation begins with this router; the members are free to follow another.
    fn give_up(&mut self, refusal: RefoundRefusal, out: &mut dyn Sink<Self>) {
        let Some(refounding) = self.refounding.take() else { return };
        if !refounding.pledged.is_empty() {
            let followers = refounding.pledged.into_iter().collect();
            out.send(Destination::Many(followers), Message::Release, None);
        }
        for member in refounding.named {
            self.asked.remove(&member);
            out.forget(member);
        }
        let id = self.commands.generation.take().expect("an operator asked for it");
        out.emit(RouterEvent::Ended { id, result: Err(refusal.into()) });
    }
}

#[cfg(test)]
mod tests;
