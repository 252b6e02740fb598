//! Which replica is asked.
//!
//! The one that leads, as far as is known. A replica that does not lead says who does. One that says nothing for a while is
//! left for the next in turn, and passed over for as long as that may take again, whoever names it: a leader that stands still is
//! named by the others until they find out, which they are asked again and again. What replicas say of each other may be out of date, so the client goes on knowing those
//! it was told of earlier: of two sets that it hears of, the dead one alone would leave it with nobody.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use super::{Client, ClientSettings};
use crate::{
    id::{Peer, ProcessId},
    seam::Sink,
    time::Time,
};

/// The replicas that a client knows, and the one that it asks.
#[derive(Debug, Default)]
pub(super) struct Guide {
    /// Replicas, and when each was told of last, by counting.
    known: BTreeMap<ProcessId, u64>,
    tellings: u64,
    linked: BTreeSet<ProcessId>,
    asked: Option<ProcessId>,
    /// The one that was asked last: the next in turn is behind it.
    turn: Option<ProcessId>,
    /// How often it was sent on since anybody answered.
    hops: u32,
    /// Nothing is sent before then.
    held_until: Option<Time>,
    /// The next one is asked then.
    patient_until: Option<Time>,
    /// How often patience came to an end since anybody answered.
    fruitless: u32,
    /// The replica that was asked when it did, until it does again.
    passed_over: Option<ProcessId>,
}

impl Guide {
    /// These are replicas, or were.
    pub(super) fn told(&mut self, replicas: &[Peer], out: &mut dyn Sink<Client>) {
        self.tellings += 1;
        for peer in replicas {
            if self.known.insert(peer.id, self.tellings).is_none() {
                out.reach(peer.id, &peer.address);
            }
        }
        while self.known.len() > KNOWN_MAX {
            let spared = |id: &ProcessId| Some(*id) != self.asked;
            let known = self.known.iter().filter(|(id, _)| spared(id));
            let oldest = known.min_by_key(|(_, told)| **told).map(|(id, _)| *id);
            let oldest = oldest.expect("at most one is spared");
            self.known.remove(&oldest);
            out.forget(oldest);
        }
    }

    pub(super) fn asked(&self) -> Option<ProcessId> {
        self.asked
    }

    /// The replica to which something may be sent now.
    pub(super) fn whom(&self, now: Time) -> Option<ProcessId> {
        let held = self.held_until.is_some_and(|until| now < until);
        self.asked.filter(|asked| !held && self.linked.contains(asked))
    }

    /// Those that can be told something besides.
    pub(super) fn others(&self) -> impl Iterator<Item = ProcessId> {
        let others = self.linked.iter().filter(|id| self.known.contains_key(id) && Some(**id) != self.asked);
        others.copied()
    }

    fn next_in_turn(&mut self) {
        let known = |id: &&ProcessId| self.known.contains_key(id);
        let usable = |id: &&ProcessId| known(id) && Some(**id) != self.passed_over;
        let behind = self.turn.and_then(|turn| {
            self.linked.range((Bound::Excluded(turn), Bound::Unbounded)).find(usable).copied()
        });
        let next = behind.or_else(|| self.linked.iter().find(usable).copied());
        // The only one there is has to do.
        self.asked = next.or_else(|| self.linked.iter().find(known).copied());
        self.turn = self.asked.or(self.turn);
    }

    /// A link stands. Says whether all that is open is to be sent anew.
    pub(super) fn linked(&mut self, peer: ProcessId) -> bool {
        self.linked.insert(peer);
        if self.asked.is_none() {
            self.next_in_turn();
        }
        self.asked == Some(peer)
    }

    /// A link broke. Says whether all that is open is to be sent anew.
    pub(super) fn unlinked(&mut self, peer: ProcessId) -> bool {
        self.linked.remove(&peer);
        let lost = self.asked == Some(peer);
        if lost {
            self.next_in_turn();
        }
        lost
    }

    /// A replica says that another one leads, or that it knows none. Says whether all that is open is to be sent anew.
    pub(super) fn redirected(
        &mut self,
        settings: &ClientSettings,
        from: ProcessId,
        leader: Option<ProcessId>,
        now: Time,
    ) -> bool {
        if self.asked != Some(from) {
            return false;
        }
        self.hops += 1;
        // A leader that has just died is named by the others until they find that out. One to which no link stands is asked when
        // one does, if it leads then.
        let is_there = |leader: &ProcessId| self.known.contains_key(leader) && self.linked.contains(leader);
        match leader.filter(|leader| *leader != from && is_there(leader)) {
            Some(leader) if Some(leader) == self.passed_over => {
                // The others will find out soon, or hear from it.
                self.hops = 0;
                self.next_in_turn();
                self.held_until = Some(now + settings.ask_again_after);
            }
            Some(leader) => {
                (self.asked, self.turn) = (Some(leader), Some(leader));
                // Two that take each other for the leader would have everything sent to and fro.
                if self.hops > HOPS_MAX {
                    self.held_until = Some(now + settings.retry_after);
                }
            }
            None => {
                self.next_in_turn();
                self.held_until = Some(now + settings.retry_after);
            }
        }
        true
    }

    /// The replica that is asked has no room at present.
    pub(super) fn refused(&mut self, settings: &ClientSettings, now: Time) {
        self.held_until = Some(now + settings.retry_after);
    }

    /// A replica answered.
    pub(super) fn answered(&mut self, from: ProcessId) {
        if self.asked == Some(from) {
            (self.hops, self.fruitless, self.patient_until, self.passed_over) = (0, 0, None, None);
        }
    }

    /// Something is open, or nothing is.
    pub(super) fn expects(&mut self, settings: &ClientSettings, something: bool, now: Time) {
        if !something {
            self.patient_until = None;
        } else if self.patient_until.is_none() {
            let doubled = self.fruitless.saturating_sub(1).min(DOUBLED_MAX);
            let patience = settings.patience * (1 << doubled);
            self.patient_until = Some(now + patience);
        }
    }

    /// Time has passed. Says whether all that is open is to be sent anew.
    pub(super) fn wake(&mut self, now: Time) -> bool {
        self.held_until.take_if(|until| now >= *until);
        let tired = self.patient_until.take_if(|until| now >= *until).is_some();
        if tired {
            self.fruitless += 1;
            self.hops = 0;
            self.passed_over = match self.passed_over {
                None => self.asked,
                Some(_) => None,
            };
            self.next_in_turn();
        }
        tired
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.held_until.into_iter().chain(self.patient_until).min()
    }
}

/// Replicas that are known at a time: several sets, one after another.
const KNOWN_MAX: usize = 16;
/// So often a client follows what replicas say at once.
const HOPS_MAX: u32 = 3;
/// Patience doubles so often at most, from its third end on: the second replica may just not have found out yet.
const DOUBLED_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::Incarnation,
        seam::{Destination, Ticket},
        service::{ClientEvent, Message},
        time::Duration,
    };

    /// Whom it was told to reach and to forget.
    #[derive(Default)]
    struct Wishes {
        reached: BTreeSet<ProcessId>,
    }

    impl Sink<Client> for Wishes {
        fn send(&mut self, _: Destination, _: Message, _: Option<Ticket>) {
            unreachable!("a guide sends nothing")
        }
        fn persist(&mut self, _: crate::paxos::Record) -> Ticket {
            unreachable!("a client has no disk")
        }
        fn emit(&mut self, _: ClientEvent) {
            unreachable!("a guide tells nothing")
        }
        fn reach(&mut self, peer: ProcessId, _: &str) {
            assert!(self.reached.insert(peer), "it is reached already");
        }
        fn forget(&mut self, peer: ProcessId) {
            assert!(self.reached.remove(&peer), "it was reached");
        }
    }

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(0) }
    }

    fn peers(nodes: impl IntoIterator<Item = u64>) -> Vec<Peer> {
        nodes.into_iter().map(|node| Peer { id: process(node), address: format!("host{node}:1") }).collect()
    }

    fn guide(nodes: &[u64]) -> (Guide, Wishes) {
        let (mut guide, mut wishes) = (Guide::default(), Wishes::default());
        guide.told(&peers(nodes.iter().copied()), &mut wishes);
        for node in nodes {
            guide.linked(process(*node));
        }
        (guide, wishes)
    }

    /// The others name a leader that died until they find that out: it must not be waited for.
    #[test]
    fn a_leader_that_is_gone_is_not_waited_for() {
        let (mut guide, settings, now) = (Guide::default(), ClientSettings::default(), Time::ZERO);
        guide.told(&peers(1..=3), &mut Wishes::default());
        for node in 1..=3 {
            guide.linked(process(node));
        }
        assert_eq!(guide.whom(now), Some(process(1)));
        assert!(guide.unlinked(process(1)));
        assert!(guide.redirected(&settings, process(2), Some(process(1)), now));
        assert_eq!(guide.whom(now), None, "not at once");
        let later = now + settings.retry_after;
        guide.wake(later);
        assert_eq!(guide.whom(later), Some(process(3)));
        assert!(guide.redirected(&settings, process(3), Some(process(2)), later));
        assert_eq!(guide.whom(later), Some(process(2)), "it leads now");
    }

    #[test]
    fn a_stale_word_about_the_replicas_takes_nobody_away() {
        let (mut guide, mut wishes) = guide(&[4, 5, 6]);
        guide.told(&peers([1, 2, 3]), &mut wishes);
        assert!(guide.unlinked(process(4)));
        assert_eq!(guide.asked(), Some(process(5)), "those told of earlier are asked on");
        for set in 0..20 {
            guide.told(&peers([100 + 3 * set, 101 + 3 * set, 102 + 3 * set]), &mut wishes);
        }
        assert_eq!(wishes.reached.len(), KNOWN_MAX);
        assert!(wishes.reached.contains(&process(5)), "the one that is asked stays");
    }

    #[test]
    fn two_that_name_each_other_are_not_asked_in_a_circle() {
        let (settings, now) = (ClientSettings::default(), Time::ZERO);
        let (mut guide, _) = guide(&[1, 2]);
        for hop in 0..4 {
            let (from, to) = if hop % 2 == 0 { (1, 2) } else { (2, 1) };
            assert!(guide.whom(now).is_some(), "hop {hop}");
            assert!(guide.redirected(&settings, process(from), Some(process(to)), now));
        }
        assert_eq!(guide.whom(now), None);
        let later = now + settings.retry_after;
        assert!(!guide.wake(later), "nothing is lost");
        assert_eq!(guide.whom(later), Some(process(1)));
    }

    #[test]
    fn a_silent_leader_is_passed_over_until_patience_ends_again() {
        let settings = ClientSettings::default();
        let (mut guide, _) = guide(&[1, 2, 3]);
        let mut now = Time::ZERO;
        let tire = |guide: &mut Guide, now: &mut Time| {
            guide.expects(&settings, true, *now);
            *now = guide.patient_until.expect("something is open");
            assert!(guide.wake(*now));
        };
        tire(&mut guide, &mut now);
        for follower in [2, 3, 2] {
            assert_eq!(guide.whom(now), Some(process(follower)));
            assert!(guide.redirected(&settings, process(follower), Some(process(1)), now));
            assert_eq!(guide.whom(now), None, "the next one is asked in a while");
            now = now + settings.ask_again_after;
            assert!(!guide.wake(now));
        }
        assert!(guide.redirected(&settings, process(3), Some(process(2)), now), "another one leads now");
        assert_eq!(guide.whom(now), Some(process(2)));
        tire(&mut guide, &mut now);
        assert!(guide.redirected(&settings, process(3), Some(process(1)), now));
        assert_eq!(guide.whom(now), Some(process(1)), "it may have been slow");
    }

    #[test]
    fn patience_grows_until_somebody_answers() {
        let settings = ClientSettings { patience: Duration::from_millis(100), ..ClientSettings::default() };
        let (mut guide, _) = guide(&[1, 2, 3]);
        let mut now = Time::ZERO;
        for (asked, patience) in [(1, 100), (2, 100), (3, 200), (1, 400), (2, 800), (3, 800)] {
            assert_eq!(guide.whom(now), Some(process(asked)));
            guide.expects(&settings, true, now);
            let span = Duration::from_millis(patience);
            assert!(!guide.wake(Time((now + span).0 - 1)));
            now = now + span;
            assert!(guide.wake(now), "{patience} ms");
        }
        guide.answered(process(1));
        guide.expects(&settings, true, now);
        assert_eq!(guide.deadline(), Some(now + settings.patience));
    }
}
