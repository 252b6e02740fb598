//! Suspicion: from one process's guess to a removal.
//!
//! **Promise.** A dead member is removed about as soon as its links break. Nobody is removed on one process's
//! word, or for a pause of a second, or because of a partial cut while a process that the accuser asks hears
//! the member. A process is never removed while no other complete copy of one of its ranges is at an
//! unsuspected process (S14). Once a process has shown by an ordered message that it lives, earlier
//! suspicions of that process have no effect.
//!
//! **Source.** SWIM (Das, Gupta and Motivala, DSN 2002): probes by third parties (§4.1), and a suspicion that
//! its subject may refute before it is confirmed (§4.2).
//!
//! **Roles.** An *accuser* is a process whose [detector](crate::detector) suspects a member. Its *bench* are
//! the *witnesses* that it asks. The accuser depends on the part of the domain
//! ([`Routing::expulsion`](crate::ecast::Routing::expulsion)):
//! - Members of a part with rows (storage processes, gateways, supers) are accused by supers, because a
//!   removal may lose rows. The bench are all routers and the other supers. A removal takes two ordered
//!   steps.
//! - Members of any other part, such as process groups, are accused by the lead router. The bench are the
//!   other routers. A removal takes one step, described below.
//!
//! ```text
//!  accuser           other super          each router            suspect
//!     │ AskOpinion ──────▶│                     │                    │      every interval, while it lasts
//!     │◀── Opinion: what its detector says ─────┤                    │
//!     │ AskOpinion ────────────────────────────▶│── Probe ──────────▶│      if there is a link
//!     │◀── Opinion: unlinked, or linked ────────┤◀── Alive ──────────┤
//!     │◀── Opinion: heard ──────────────────────┤     (from routers that know a way to the leader)
//!     │ Suspect ─────────▶ ordered @7                   if a majority does not hear it, and nobody does
//!     │                    (the suspect, if it lives: Refute @7 ─▶ ordered @8)
//!     │ Remove @7 ───────▶ ordered @9                   if @7 is delivered, and the bench still agrees
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
//! - *Agreement.* A witness without a link to the suspect agrees at once: a process that is killed breaks all
//!   its links. A witness with a link agrees once it has listened for [`Patience::witness`], reporting the
//!   link, and has not heard the suspect. A silent witness does not agree, whatever the reason. The accuser
//!   agrees once the link is broken, or the suspect is silent for [`Patience::silence`]: a process that
//!   stands still for a second keeps its place. A router that knows no way to the leader has no opinion.
//! - *Numbers.* More than half of the bench and the accuser must agree. While a router hears the suspect, the
//!   suspect stays, however long: the router relays between the suspect and the leader. While no router but
//!   only another super hears the suspect, the suspect stays for [`Patience::doubt`]. A super relays nothing,
//!   so the suspect's work has no effect.
//! - *Two steps.* `Suspect` is ordered first and has one effect: no other process may be removed in reliance
//!   on its subject. The subject gets `Suspect` like all other processes. If the subject lives, it refutes
//!   the suspicion by an ordered message, and is no longer suspected or unreachable. `Remove` names the
//!   position of the suspicion, and is void once the suspicion was refuted. `Remove` also names the witnesses
//!   that agreed.
//! - *Only for the living.* A storage process is removed only while the accuser, or a witness, hears another
//!   complete replica of each of its ranges. Not being suspected is not enough, because such a replica may
//!   have just died. Until that replica is heard or suspected, the removal waits.
//! - *One step of the lead router.* An expulsion names the number of the suspect's messages that the lead
//!   router had learned. The expulsion is void if another message of the suspect was ordered before it: a
//!   process that shows itself alive in the order is not removed on older grounds. A removal costs such a
//!   part no rows, so the lead router waits for no refutation. Instead every router with a link listens
//!   before the lead router judges, and a router that stays silent has the same time to answer. A lone router
//!   has no bench, and judges alone.
//! - *An operator's declaration is checked.* A process is not declared lost while anybody on the bench hears
//!   it.
//! - *Nothing is queued.* A super that no router hears announces nothing, and withdraws announcements that it
//!   could not send.
//!
//! **Why S14 holds.** `apply` removes a storage process only if each of its ranges has another complete
//! replica that nobody suspects *at that position*. Two suspects of one message are both suspected before
//! `apply` judges either of them. The same holds for suspects of two messages, and of two supers. So the last
//! unsuspected replica of a range is not removed in reliance on suspected replicas. `apply` makes the process
//! with that replica unreachable instead, like every process that it may not remove. Unreachable processes
//! that live refute the suspicion, and are active again without a loss, because their ranges took no writes.
//! Then the dead processes can be removed.
//!
//! **Remaining case.** A process is cut off and removed while others hold its rows, and these others crash
//! before the rows are copied. The removed process [keeps](crate::rubberband::keeping) its rows, but only the
//! others know the writes that they acknowledged after its removal. So its rows are used only once an
//! operator declares the others lost. The same holds for a process that an operator declared lost, and that
//! returns.
//!
//! **Attacks considered.**
//! - *A super's bad moment* (its links break, it sleeps, it is cut off from all storage processes): it
//!   accuses everybody, and the bench hears them. Its own late tick also excuses everybody (S11).
//! - *Both supers cannot hear a process:* the two supers are no majority of the five voters, and a router
//!   hears the process.
//! - *Only one router hears a process:* if that router talks with the leader, or with a router that does, it
//!   relays for the process. The process is then slower, and stays. If the router is cut off, too, it has no
//!   opinion. It may briefly believe that it has a way which is already cut, and then the process stays for
//!   that time. A leader that lost its majority leads no longer than an election takes, and orders nothing.
//! - *No router knows a way to a leader:* there is no leader. Nobody agrees, and nothing could be ordered.
//! - *Two supers contradict each other:* each is a witness of the other's accusations. If they cannot hear
//!   each other, each accuses the other, and the routers hear both.
//! - *An opinion never comes:* a missing opinion is no agreement, so silence decides nothing. A majority of
//!   the routers and the accuser are a majority of the bench in every domain of three routers and two supers;
//!   without a majority of routers nothing is ordered anyway. The accuser asks again every interval, so a
//!   lost question costs an interval.
//! - *The lead moves meanwhile:* the accuser asks all routers, whether they lead or not. Ordered messages
//!   stay ordered, and the accuser's E-Cast member sends the other messages again.
//! - *A lead router lost its majority:* it still accuses members that it does not hear. Its routers do not
//!   answer, so nobody agrees. Seconds later, the next leader may choose an expulsion that the earlier lead
//!   router had proposed. The expulsion stands only if its subject has submitted nothing since.
//! - *A new lead router* has heard nobody: each member counts as alive at first.
//! - *A process dies before any other member knew it:* the lead router watches it like any other member.
//! - *Stale, duplicated, reordered:* each second opinion (the inquiry about one suspect) has a number, and
//!   each opinion of a witness carries that number. The accuser ignores opinions with a number other than the
//!   present one. If a link to a witness breaks, the accuser drops that witness's statements, because a later
//!   statement may be lost. A second `Suspect` of a suspected process changes nothing. A `Remove` that comes
//!   late, or twice, names a suspicion that is refuted, or a process that is gone. A `Refute` names the
//!   suspicion, and voids no later one.
//! - *Queued while cut off:* a super cannot take back a suspicion that its E-Cast member has numbered
//!   already, so the suspicion may be ordered seconds later. Its subject refutes it. A removal needs a
//!   statement that the bench makes after the suspicion's delivery.
//! - *The suspect lives, and its refutation loses the race* against a removal that was sent a moment before:
//!   then more than half of the voters did not hear the suspect for as long as the rules demand. The suspect
//!   is out, and comes back as a new process.
//! - *The suspect hears nothing of the order but sends signs of life:* the suspect cannot refute, but
//!   witnesses hear it. It stays, suspected, and no other process is removed in reliance on it.
//! - *Forged by a bug:* `apply` refuses removals by a process that is not a super and those without another
//!   witness.

use std::collections::BTreeMap;

use crate::{
    detector::Opinion,
    id::ProcessId,
    quorum::majority,
    time::{Duration, Time},
};

/// Times of silence after which a member counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Shortest silence for which a linked member is removed.
    pub silence: Duration,
    /// Time for which a witness with a link listens before it agrees.
    pub witness: Duration,
    /// Time for which the suspect stays while supers hear it and no router does.
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

/// An accuser's knowledge of one suspect.
#[derive(Debug)]
pub(crate) struct SecondOpinion {
    /// The number of this second opinion. The accuser's questions and the witnesses' opinions carry it.
    pub(crate) number: u64,
    opened: Time,
    statements: BTreeMap<ProcessId, WitnessStatement>,
}

/// The statements of one witness.
#[derive(Debug)]
struct WitnessStatement {
    /// Time of the witness's last statement.
    stated_at: Time,
    /// Whether the witness had a link to the suspect at that time.
    linked: bool,
    /// Beginning of the witness's listening: its first statement, or the last time that it heard the suspect.
    listening: Time,
    /// Whether the witness heard the suspect at all.
    heard: bool,
}

/// The bench's judgement of a suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The suspect is heard, or too few witnesses have reported that they do not hear it.
    Stays,
    /// The suspect has failed. The value lists the processes that agree, in id order.
    Failed(Vec<ProcessId>),
}

impl SecondOpinion {
    pub(crate) fn new(number: u64, now: Time) -> Self {
        SecondOpinion { number, opened: now, statements: BTreeMap::new() }
    }

    /// Records the opinion of a witness.
    pub(crate) fn record(&mut self, witness: ProcessId, opinion: Opinion, now: Time) {
        let first = WitnessStatement { stated_at: now, linked: true, listening: now, heard: false };
        let testimony = self.statements.entry(witness).or_insert(first);
        testimony.stated_at = now;
        testimony.linked = opinion != Opinion::Unlinked;
        if opinion == Opinion::Heard {
            testimony.listening = now;
            testimony.heard = true;
        }
    }

    /// Drops the statements of a witness whose link broke, because a later statement may be lost.
    pub(crate) fn unlinked(&mut self, witness: ProcessId) {
        self.statements.remove(&witness);
    }

    /// Whether any witness heard the suspect within the last `recent`.
    pub(crate) fn is_heard(&self, now: Time, recent: Duration) -> bool {
        let heard = |it: &WitnessStatement| it.linked && it.heard && now.since(it.listening) < recent;
        self.statements.values().any(heard)
    }

    /// Returns a witness whose last statement says that the witness had heard the suspect within the time
    /// `recent` before that statement.
    pub(crate) fn hearer(&self, recent: Duration) -> Option<ProcessId> {
        let hears =
            |it: &WitnessStatement| it.linked && it.heard && it.stated_at.since(it.listening) < recent;
        self.statements.iter().find(|(_, it)| hears(it)).map(|(&witness, _)| witness)
    }

    /// Whether a witness may still turn out to hear the suspect: it has a link and has not listened for long,
    /// or has made no statement and has had no time for one.
    pub(crate) fn is_open(&self, bench: &[ProcessId], now: Time, patience: &Patience) -> bool {
        let young = now.since(self.opened) < patience.witness;
        bench.iter().any(|witness| match self.statements.get(witness) {
            Some(testimony) => testimony.linked && now.since(testimony.listening) < patience.witness,
            None => young,
        })
    }

    /// Returns the bench's verdict. The accuser itself already counts the suspect as failed. `routers` and
    /// `supers` are the bench. A statement older than `fresh` does not count.
    pub(crate) fn verdict(
        &self,
        (routers, supers): (&[ProcessId], &[ProcessId]),
        now: Time,
        fresh: Duration,
        patience: &Patience,
    ) -> Verdict {
        let said = |witness: &&ProcessId| {
            self.statements.get(witness).filter(|testimony| now.since(testimony.stated_at) <= fresh)
        };
        let silent = |testimony: &WitnessStatement| now.since(testimony.listening) >= patience.witness;
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
        // The accuser has a vote, too.
        let counted = routers.len() + supers.len() + 1;
        match agreeing.len() + 1 >= majority(counted) && !agreeing.is_empty() {
            true => Verdict::Failed(agreeing),
            false => Verdict::Stays,
        }
    }
}

#[cfg(test)]
mod tests;
