//! The choice of the replica that the client asks.
//!
//! The client asks the leader, as far as it knows the leader. A replica that does not lead names the leader.
//! If the asked replica is silent for a while, the client goes to the next replica in turn. The client then
//! avoids the silent replica until the client's patience has ended once more. It does so even if other
//! replicas name the silent replica as the leader, because they name it until they notice that it stands
//! still. Replicas' statements about each other may be out of date, so the client remembers the replicas that
//! it learned of earlier. Suppose that the client remembered only the last statement, and that this statement
//! named only dead replicas. Then the client would have no replica to ask.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use super::settings::ClientSettings;
use crate::{
    id::{Peer, ProcessId},
    seam::{Protocol, Sink},
    time::Time,
};

/// The replicas that a client knows, and the replica that it asks.
#[derive(Debug, Default)]
pub(super) struct ReplicaSelector {
    /// The known replicas, each with the number of the last statement that named it.
    known: BTreeMap<ProcessId, u64>,
    updates: u64,
    linked: BTreeSet<ProcessId>,
    asked: Option<ProcessId>,
    /// The replica that was asked last. The next replica in turn is the known replica with the next larger
    /// id.
    turn: Option<ProcessId>,
    /// The number of redirections since a replica last answered.
    hops: u32,
    /// The time before which the client sends nothing.
    held_until: Option<Time>,
    /// The time at which the client turns to the next replica.
    patient_until: Option<Time>,
    /// The number of times that the asked replica gave no answer in time, since a replica last answered.
    timeouts: u32,
    /// A replica that gave no answer in time. The client avoids this replica until another wait ends without
    /// an answer, or until the asked replica answers.
    avoided: Option<ProcessId>,
}

impl ReplicaSelector {
    /// Adds these replicas, some of which may be gone.
    pub(super) fn learn<P: Protocol>(&mut self, replicas: &[Peer], out: &mut dyn Sink<P>) {
        self.updates += 1;
        for peer in replicas {
            if self.known.insert(peer.id, self.updates).is_none() {
                out.reach(peer.id, &peer.address);
            }
        }
        while self.known.len() > KNOWN_MAX {
            let spared = |id: &ProcessId| Some(*id) != self.asked;
            let known = self.known.iter().filter(|(id, _)| spared(id));
            let oldest = known.min_by_key(|(_, updated)| **updated).map(|(id, _)| *id);
            let oldest = oldest.expect("at most one replica is spared");
            self.known.remove(&oldest);
            out.forget(oldest);
        }
    }

    pub(super) fn asked(&self) -> Option<ProcessId> {
        self.asked
    }

    /// Returns the replica to which the client may send now.
    pub(super) fn target(&self, now: Time) -> Option<ProcessId> {
        let held = self.held_until.is_some_and(|until| now < until);
        self.asked.filter(|asked| !held && self.linked.contains(asked))
    }

    /// Returns the linked replicas, except the replica that the client asks.
    pub(super) fn others(&self) -> impl Iterator<Item = ProcessId> {
        let others = self.linked.iter().filter(|id| self.known.contains_key(id) && Some(**id) != self.asked);
        others.copied()
    }

    fn next_in_turn(&mut self) {
        let known = |id: &&ProcessId| self.known.contains_key(id);
        let usable = |id: &&ProcessId| known(id) && Some(**id) != self.avoided;
        let behind = self.turn.and_then(|turn| {
            self.linked.range((Bound::Excluded(turn), Bound::Unbounded)).find(usable).copied()
        });
        let next = behind.or_else(|| self.linked.iter().find(usable).copied());
        // If no other replica is linked, the client asks the same replica again.
        self.asked = next.or_else(|| self.linked.iter().find(known).copied());
        self.turn = self.asked.or(self.turn);
    }

    /// Records that a link stands. Returns whether all unanswered calls must be sent again.
    pub(super) fn linked(&mut self, peer: ProcessId) -> bool {
        self.linked.insert(peer);
        if self.asked.is_none() {
            self.next_in_turn();
        }
        self.asked == Some(peer)
    }

    /// Records that a link broke. Returns whether all unanswered calls must be sent again.
    pub(super) fn unlinked(&mut self, peer: ProcessId) -> bool {
        self.linked.remove(&peer);
        let lost = self.asked == Some(peer);
        if lost {
            self.next_in_turn();
        }
        lost
    }

    /// Handles a redirection: the sender names another leader, or knows no leader. Returns whether all
    /// unanswered calls must be sent again.
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
        // The other replicas name a leader that has just died until they notice its death. So the client asks
        // a leader only if a link to that leader stands.
        let is_there = |leader: &ProcessId| self.known.contains_key(leader) && self.linked.contains(leader);
        match leader.filter(|leader| *leader != from && is_there(leader)) {
            Some(leader) if Some(leader) == self.avoided => {
                // The named leader has just been silent to this client. The other replicas will soon notice
                // that as well, or hear from the leader. Meanwhile the client asks the next replica.
                self.hops = 0;
                self.next_in_turn();
                self.held_until = Some(now + settings.ask_again_after);
            }
            Some(leader) => {
                (self.asked, self.turn) = (Some(leader), Some(leader));
                // Two replicas that each take the other for the leader would redirect the client for ever.
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

    /// Pauses because the asked replica has no room at present.
    pub(super) fn refused(&mut self, settings: &ClientSettings, now: Time) {
        self.held_until = Some(now + settings.retry_after);
    }

    /// Records that a replica answered.
    pub(super) fn answered(&mut self, from: ProcessId) {
        if self.asked == Some(from) {
            (self.hops, self.timeouts, self.patient_until, self.avoided) = (0, 0, None, None);
        }
    }

    /// Starts or stops the time for which the client waits for the asked replica. `something` is whether the
    /// client awaits an answer.
    pub(super) fn set_waiting(&mut self, settings: &ClientSettings, something: bool, now: Time) {
        if !something {
            self.patient_until = None;
        } else if self.patient_until.is_none() {
            let doubled = self.timeouts.saturating_sub(1).min(DOUBLED_MAX);
            let patience = settings.patience * (1 << doubled);
            self.patient_until = Some(now + patience);
        }
    }

    /// Acts on times that have passed. Returns whether all unanswered calls must be sent again.
    pub(super) fn on_deadline(&mut self, now: Time) -> bool {
        self.held_until.take_if(|until| now >= *until);
        let tired = self.patient_until.take_if(|until| now >= *until).is_some();
        if tired {
            self.timeouts += 1;
            self.hops = 0;
            self.avoided = match self.avoided {
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

/// The maximum number of known replicas, enough for several successive replica sets.
const KNOWN_MAX: usize = 16;
/// Maximum number of redirections that a client follows without a pause.
const HOPS_MAX: u32 = 3;
/// The maximum number of times that the client doubles its patience. The doublings begin with the third wait,
/// because the second replica may not have noticed the leader's death yet.
const DOUBLED_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::Incarnation,
        seam::{Destination, Ticket},
        service::{Client, ClientEvent, Message},
        time::Duration,
    };

    /// A sink that records the processes to which the selector wants links, and the processes to which it no
    /// longer wants links.
    #[derive(Default)]
    struct ReachRecorder {
        reached: BTreeSet<ProcessId>,
    }

    impl Sink<Client> for ReachRecorder {
        fn send(&mut self, _: Destination, _: Message, _: Option<Ticket>) {
            unreachable!("a selector sends nothing")
        }
        fn persist(&mut self, _: crate::paxos::Record) -> Ticket {
            unreachable!("a client has no disk")
        }
        fn emit(&mut self, _: ClientEvent) {
            unreachable!("a selector emits nothing")
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

    fn selector(nodes: &[u64]) -> (ReplicaSelector, ReachRecorder) {
        let (mut selector, mut wishes) = (ReplicaSelector::default(), ReachRecorder::default());
        selector.learn(&peers(nodes.iter().copied()), &mut wishes);
        for node in nodes {
            selector.linked(process(*node));
        }
        (selector, wishes)
    }

    /// The other replicas name a dead leader until they notice its death. The client then asks the next
    /// replica instead of waiting for that leader.
    #[test]
    fn a_departed_leader_is_not_awaited() {
        let (mut selector, settings, now) =
            (ReplicaSelector::default(), ClientSettings::default(), Time::ZERO);
        selector.learn(&peers(1..=3), &mut ReachRecorder::default());
        for node in 1..=3 {
            selector.linked(process(node));
        }
        assert_eq!(selector.target(now), Some(process(1)));
        assert!(selector.unlinked(process(1)));
        assert!(selector.redirected(&settings, process(2), Some(process(1)), now));
        assert_eq!(selector.target(now), None, "not at once");
        let later = now + settings.retry_after;
        selector.on_deadline(later);
        assert_eq!(selector.target(later), Some(process(3)));
        assert!(selector.redirected(&settings, process(3), Some(process(2)), later));
        assert_eq!(selector.target(later), Some(process(2)), "it leads now");
    }

    #[test]
    fn a_stale_list_of_replicas_removes_no_candidate() {
        let (mut selector, mut wishes) = selector(&[4, 5, 6]);
        selector.learn(&peers([1, 2, 3]), &mut wishes);
        assert!(selector.unlinked(process(4)));
        assert_eq!(selector.asked(), Some(process(5)), "earlier announced replicas are still asked");
        for set in 0..20 {
            selector.learn(&peers([100 + 3 * set, 101 + 3 * set, 102 + 3 * set]), &mut wishes);
        }
        assert_eq!(wishes.reached.len(), KNOWN_MAX);
        assert!(wishes.reached.contains(&process(5)), "the one that is asked stays");
    }

    #[test]
    fn replicas_that_name_each_other_are_not_asked_in_a_circle() {
        let (settings, now) = (ClientSettings::default(), Time::ZERO);
        let (mut selector, _) = selector(&[1, 2]);
        for hop in 0..4 {
            let (from, to) = if hop % 2 == 0 { (1, 2) } else { (2, 1) };
            assert!(selector.target(now).is_some(), "hop {hop}");
            assert!(selector.redirected(&settings, process(from), Some(process(to)), now));
        }
        assert_eq!(selector.target(now), None);
        let later = now + settings.retry_after;
        assert!(!selector.on_deadline(later), "nothing is lost");
        assert_eq!(selector.target(later), Some(process(1)));
    }

    #[test]
    fn a_silent_leader_is_passed_over_until_patience_ends_again() {
        let settings = ClientSettings::default();
        let (mut selector, _) = selector(&[1, 2, 3]);
        let mut now = Time::ZERO;
        let tire = |selector: &mut ReplicaSelector, now: &mut Time| {
            selector.set_waiting(&settings, true, *now);
            *now = selector.patient_until.expect("something is open");
            assert!(selector.on_deadline(*now));
        };
        tire(&mut selector, &mut now);
        for follower in [2, 3, 2] {
            assert_eq!(selector.target(now), Some(process(follower)));
            assert!(selector.redirected(&settings, process(follower), Some(process(1)), now));
            assert_eq!(selector.target(now), None, "the next one is asked in a while");
            now = now + settings.ask_again_after;
            assert!(!selector.on_deadline(now));
        }
        assert!(selector.redirected(&settings, process(3), Some(process(2)), now), "another one leads now");
        assert_eq!(selector.target(now), Some(process(2)));
        tire(&mut selector, &mut now);
        assert!(selector.redirected(&settings, process(3), Some(process(1)), now));
        assert_eq!(selector.target(now), Some(process(1)), "it may have been slow");
    }

    #[test]
    fn patience_grows_until_a_replica_answers() {
        let settings = ClientSettings { patience: Duration::from_millis(100), ..ClientSettings::default() };
        let (mut selector, _) = selector(&[1, 2, 3]);
        let mut now = Time::ZERO;
        for (asked, patience) in [(1, 100), (2, 100), (3, 200), (1, 400), (2, 800), (3, 800)] {
            assert_eq!(selector.target(now), Some(process(asked)));
            selector.set_waiting(&settings, true, now);
            let span = Duration::from_millis(patience);
            assert!(!selector.on_deadline(Time((now + span).0 - 1)));
            now = now + span;
            assert!(selector.on_deadline(now), "{patience} ms");
        }
        selector.answered(process(1));
        selector.set_waiting(&settings, true, now);
        assert_eq!(selector.deadline(), Some(now + settings.patience));
    }
}
