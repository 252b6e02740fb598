//! Suspicion: from one process's guess to a removal.
//!
//! **Promise.** A member that died is removed about as soon as its links break. Nobody is removed on one process's word, nor
//! because of a partial cut while somebody who was asked hears it, nor for a pause of a second. A process that holds the
//! last complete copy of a range, as far as the others are unsuspected, is never removed (S14). What was thought of a
//! process before it last showed itself alive in the order has no effect.
//!
//! **Source.** SWIM (Das, Gupta and Motivala, DSN 2002): probes by third parties (§4.1), and a suspicion that its subject
//! may refute before it is confirmed (§4.2).
//!
//! **Roles.** An *accuser* is a process whose [detector](crate::detector) suspects a member. Its *bench* are the *witnesses* that it
//! asks. Who accuses depends on the part of the domain ([`Routing::expulsion`](crate::ecast::Routing::expulsion)):
//! - Members of a part with rows (storage processes, gateways, supers) are accused by supers, because a removal may lose rows.
//!   The bench are all routers and the other supers. It takes two ordered steps.
//! - Members of any other part, process groups for one, are accused by the lead router. The bench are the other routers. It takes
//!   one step, below.
//!
//! ```text
//!  accuser           other super          each router            suspect
//!     │ AskOpinion ──────▶│                     │                    │      every interval, while it lasts
//!     │◀── Opinion: what its detector says ─────┤                    │
//!     │ AskOpinion ────────────────────────────▶│── Probe ──────────▶│      if there is a link
//!     │◀── Opinion: unlinked, or linked ────────┤◀── Alive ──────────┤
//!     │◀── Opinion: heard ──────────────────────┤     (from routers that know a way to the leader)
//!     │ Suspect ─────────▶ ordered @7                                       if a majority does not hear it, and nobody does
//!     │                    (the suspect, if it lives: Refute @7 ─▶ ordered @8)
//!     │ Remove @7 ───────▶ ordered @9                                       delivered @7, and the bench says so still
//! ```
//!
//! ```text
//!  lead router        each other router      suspect
//!     │ Probe ────────────────────────────────▶│      while it is silent for longer than three intervals
//!     │◀── Alive ──────────────────────────────┤
//!     │ AskOpinion ─────────▶│── Probe ────────▶│      once the detector suspects it, every interval
//!     │◀── Opinion ──────────┤◀── Alive ───────┤
//!     │ Expelled ────────────▶ ordered @7               if a majority does not hear it, and no router does
//! ```
//!
//! **Rules.**
//! - *Who agrees.* A witness without a link to the suspect agrees at once: a process that is killed breaks all its links.
//!   One with a link agrees once it has said so for [`Patience::witness`] without hearing it. A witness that says nothing
//!   does not agree, whatever the reason. The accuser agrees once the link is broken, or the suspect is silent for
//!   [`Patience::silence`]: a process that stands still for a second keeps its place. A router that knows no way to the
//!   leader has no opinion.
//! - *How many.* More than half of the bench and the accuser must agree. While a router hears the suspect, it stays, however
//!   long that lasts: the router hands on what the suspect and the leader say to each other. While another super alone
//!   hears it, it stays for [`Patience::doubt`]. A super hands nothing on, so nothing the suspect does gets anywhere.
//! - *Two steps.* `Suspect` is ordered first and changes nothing but this: its subject is no ground any more on which others
//!   may be removed. Its subject gets it like everybody and, if it lives, refutes it by an ordered message, which brings it
//!   back from unreachable, too. `Remove` names the position of the suspicion, and is void once that was refuted. It also
//!   names the witnesses that agreed.
//! - *Only for the living.* A storage process is removed only while the accuser, or a witness, hears another complete
//!   replica of each of its ranges at that moment: one that is not suspected yet may have died a moment ago. Until that
//!   one is heard or suspected, the removal waits.
//! - *One step of the lead router.* An expulsion names how many messages of the suspect the lead router had learned. It is void if
//!   one more was ordered before it: a process that shows itself alive in the order is not removed on older grounds. A removal costs such a
//!   part no rows, so nothing waits for a refutation. Instead every router with a link listens before the lead router judges, and one that
//!   says nothing has as much time to. A lone router has no bench, and judges alone.
//! - *An operator is asked back.* A process is not declared lost while anybody on the bench hears it.
//! - *Nothing is queued.* A super that no router hears announces nothing, and withdraws what it could not send.
//!
//! **Why S14 holds.** `apply` removes a storage process only if each of its ranges has another complete replica that nobody
//! suspects *at that position*. Two suspects of one message are both suspected before either is judged, and so are those
//! of two messages and of two supers: of the replicas of a range the last one that is unsuspected is not removed on the
//! ground of those that are. It becomes unreachable, and with it every one judged thus. The living among them refute, and
//! are active again having missed nothing, since their ranges took no writes; then the dead can be removed.
//!
//! **What remains.** A process that was cut off is removed while others hold its rows, and those others crash before they are
//! copied. It [keeps](crate::rubberband::keeping) its rows; but what the others wrote and acknowledged behind its removal is known to them
//! alone. So it is taken up only once an operator declares them lost. The same holds for a process that is declared lost itself,
//! and returns.
//!
//! **Attacks considered.**
//! - *A super's bad moment* (its links break, it sleeps, it is cut off from all storage processes): it accuses everybody, and
//!   the bench hears them. Its own late tick excuses everybody besides (S11).
//! - *Both supers cannot hear a process:* they are two of five; a router hears it.
//! - *One router hears a process, and nobody else does:* if that router talks with the leader, or with one that does, the process
//!   goes on by way of it, slower, and stays. If it is cut off as well, it has no opinion. It may believe for a moment that it
//!   knows a way when that is cut already, and keeps the process for so long. A leader that lost its majority leads for no
//!   longer than an election takes, and orders nothing.
//! - *No router knows a way to a leader:* there is none, nobody agrees, and nothing could be ordered.
//! - *Two supers that contradict each other:* each is a witness of the other's accusations. If they cannot hear each other,
//!   each accuses the other, and the routers hear both.
//! - *An opinion that never comes* is no agreement, so that nothing is decided by silence. A majority of the routers and the
//!   accuser are a majority of the bench in every domain of three routers and two supers; without a majority of routers
//!   nothing is ordered anyway. The accuser asks again every interval, so a lost question costs an interval.
//! - *The lead moves meanwhile:* all routers are asked, whoever leads. What was ordered stays ordered, and the member sends
//!   again what was not.
//! - *A lead router that lost its majority* goes on to accuse those that it does not hear. Its routers do not answer, so nobody agrees.
//!   An expulsion that it had proposed before may be chosen by the next leader, seconds later. It stands only if its subject has
//!   submitted nothing since.
//! - *A new lead router* has heard nobody: each member has the benefit of the doubt from then on.
//! - *A process that dies as the only one that knows of itself* is watched like any other: by the lead router.
//! - *Stale, duplicated, reordered:* opinions name the hearing; those of another one are ignored. A link to a
//!   witness that breaks takes what it said with it, since a later word of it may be lost. A second `Suspect` of one who is
//!   suspected changes nothing. A `Remove` that comes late, or twice, names a suspicion that is refuted, or a process that
//!   is gone. A `Refute` names the suspicion, and voids no later one.
//! - *Queued while cut off:* a suspicion that was numbered already cannot be taken back, and is ordered seconds later. Its
//!   subject refutes it; a removal needs a word of the bench that is given behind its delivery.
//! - *The suspect lives, and its refutation loses the race* against a removal that was sent a moment before: then more than
//!   half did not hear it for as long as the rules say. It is out, and comes back as a new process.
//! - *The suspect hears nothing of the order but says signs of life:* it cannot refute and is heard; it stays, suspected, and
//!   nobody is removed in reliance on it.
//! - *Forged by a bug:* `apply` refuses removals by one who is no super and those without another witness.

use std::collections::BTreeMap;

use crate::{
    detector::Opinion,
    id::ProcessId,
    quorum::majority,
    time::{Duration, Time},
};

/// How long others may be silent before they count for failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// No member to which there is a link is removed for a shorter silence.
    pub silence: Duration,
    /// How long a witness with a link listens.
    pub witness: Duration,
    /// How long supers that hear a suspect keep it where no router does.
    pub doubt: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            silence: Duration::from_millis(1500),
            witness: Duration::from_millis(300),
            doubt: Duration::from_secs(15),
        }
    }
}

/// What an accuser has learned of one suspect.
#[derive(Debug)]
pub(crate) struct Hearing {
    /// Questions and opinions of this hearing carry it.
    pub(crate) number: u64,
    opened: Time,
    testimonies: BTreeMap<ProcessId, Testimony>,
}

/// What one witness has said.
#[derive(Debug)]
struct Testimony {
    /// When it spoke last.
    told: Time,
    /// Whether it had a link to the suspect then.
    linked: bool,
    /// Since when it listens: its first word, or when it heard the suspect last.
    listening: Time,
    /// Whether it heard the suspect at all.
    heard: bool,
}

/// What a bench makes of a suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is heard, or too few have said that they do not hear it.
    Stays,
    /// These agree that it has failed, in id order.
    Failed(Vec<ProcessId>),
}

impl Hearing {
    pub(crate) fn new(number: u64, now: Time) -> Self {
        Hearing { number, opened: now, testimonies: BTreeMap::new() }
    }

    /// A witness gives its opinion.
    pub(crate) fn told(&mut self, witness: ProcessId, opinion: Opinion, now: Time) {
        let first = Testimony { told: now, linked: true, listening: now, heard: false };
        let testimony = self.testimonies.entry(witness).or_insert(first);
        testimony.told = now;
        testimony.linked = opinion != Opinion::Unlinked;
        if opinion == Opinion::Heard {
            testimony.listening = now;
            testimony.heard = true;
        }
    }

    /// The link to a witness broke: a later word of it may be lost.
    pub(crate) fn unlinked(&mut self, witness: ProcessId) {
        self.testimonies.remove(&witness);
    }

    /// Whether any witness heard the suspect within the last `recent`.
    pub(crate) fn is_heard(&self, now: Time, recent: Duration) -> bool {
        let heard = |it: &Testimony| it.linked && it.heard && now.since(it.listening) < recent;
        self.testimonies.values().any(heard)
    }

    /// A witness that heard the suspect within the last `recent` before it spoke last.
    pub(crate) fn hearer(&self, recent: Duration) -> Option<ProcessId> {
        let hears = |it: &Testimony| it.linked && it.heard && it.told.since(it.listening) < recent;
        self.testimonies.iter().find(|(_, it)| hears(it)).map(|(&witness, _)| witness)
    }

    /// Whether one of these may still turn out to hear the suspect: it has a link and has not listened for long, or has said
    /// nothing and has had no time to.
    pub(crate) fn is_open(&self, bench: &[ProcessId], now: Time, patience: &Patience) -> bool {
        let young = now.since(self.opened) < patience.witness;
        bench.iter().any(|witness| match self.testimonies.get(witness) {
            Some(testimony) => testimony.linked && now.since(testimony.listening) < patience.witness,
            None => young,
        })
    }

    /// What follows if the accuser, too, takes the suspect for failed. Its bench are these routers and supers. Words count for
    /// `fresh`.
    pub(crate) fn verdict(
        &self,
        (routers, supers): (&[ProcessId], &[ProcessId]),
        now: Time,
        fresh: Duration,
        patience: &Patience,
    ) -> Verdict {
        let said = |witness: &&ProcessId| {
            self.testimonies.get(witness).filter(|testimony| now.since(testimony.told) <= fresh)
        };
        let silent = |testimony: &Testimony| now.since(testimony.listening) >= patience.witness;
        let hears = |witness: &&ProcessId| {
            said(witness).is_some_and(|testimony| testimony.linked && testimony.heard && !silent(testimony))
        };
        let agrees = |witness: &&ProcessId| {
            said(witness).is_some_and(|testimony| !testimony.linked || silent(testimony))
        };
        let in_doubt = now.since(self.opened) <= patience.doubt;
        let is_heard = |bench: &[ProcessId]| bench.iter().any(|witness| hears(&witness));
        if is_heard(routers) || is_heard(supers) && in_doubt {
            return Verdict::Stays;
        }
        let mut agreeing: Vec<ProcessId> = routers.iter().chain(supers).filter(agrees).copied().collect();
        agreeing.sort_unstable();
        // The accuser is one of those who are counted.
        let counted = routers.len() + supers.len() + 1;
        match agreeing.len() + 1 >= majority(counted) && !agreeing.is_empty() {
            true => Verdict::Failed(agreeing),
            false => Verdict::Stays,
        }
    }
}

#[cfg(test)]
mod tests;
