//! Distances between sites: messages to cells of other sites arrive later, as if these were far away.
//!
//! **Promise.** A message to a cell at a site with a distance leaves after that time and its jitter, and not while that way hangs, in the
//! order of sending to that cell. Everything else leaves at once: messages to cells nearby, and those to routers. So a store between
//! sites runs on one machine (004 §III.D), and one whose replicas are late now and then (004 §III.B: their garbage collectors).
//!
//! **Bound.** At most [`WAITING_MAX`] messages wait; beyond, messages leave sooner rather than never.

use std::{collections::BTreeMap, sync::Arc};

use quorate_protocol::{
    Destination, Duration, ProcessId, Ticket, Time,
    partial::{Roster, Site, resident::Message},
};

/// How far a site is: one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distance {
    /// The shortest time of a message.
    pub least: Duration,
    /// It takes up to so much longer, each time by chance.
    pub jitter: Duration,
    /// When messages there hang besides.
    pub stall: Option<Stall>,
}

/// A way on which messages hang now and then: none of them leaves for a span, and then all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The time for which they hang.
    pub span: Duration,
    /// From the beginning of one to that of the next. Not zero.
    pub every: Duration,
}

impl Stall {
    /// The instant from which a message to `peer` that would leave at `due` may leave. Ways to different peers hang at different times.
    fn end(self, peer: ProcessId, due: Time) -> Time {
        let every = u64::try_from(self.every.as_nanos()).unwrap_or(u64::MAX).max(1);
        let phase = peer.node.wrapping_mul(SPREAD) % every;
        let begun = Duration::from_nanos(due.0.wrapping_add(phase) % every);
        due + self.span.saturating_sub(begun)
    }
}

/// Odd, and its multiples are spread evenly: so are their remainders.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Messages wait, at most so many.
const WAITING_MAX: usize = 1 << 20;

/// The distances of a cell's site to others, and what is under way.
#[derive(Debug, Default)]
pub struct Distances {
    sites: BTreeMap<Site, Distance>,
    roster: Option<Arc<Roster>>,
    /// The members at sites with a distance.
    far: BTreeMap<ProcessId, Distance>,
    waiting: BTreeMap<(Time, u64), Waiting>,
    /// How many have waited: those that are due at one instant leave in their order.
    count: u64,
    /// The instant at which the last message to each leaves.
    last: BTreeMap<ProcessId, Time>,
}

/// A message on its way, and the record that must be on disk before it leaves.
type Waiting = (ProcessId, Message, Option<Ticket>);

impl Distances {
    pub(super) fn new(sites: BTreeMap<Site, Distance>) -> Distances {
        Distances { sites, ..Distances::default() }
    }

    pub(super) fn sites(&self) -> &BTreeMap<Site, Distance> {
        &self.sites
    }

    /// Whether anybody is far.
    pub(super) fn reach_any(&self) -> bool {
        !self.far.is_empty()
    }

    pub(super) fn has_jitter(&self) -> bool {
        self.far.values().any(|distance| !distance.jitter.is_zero())
    }

    /// The members and their sites are these now.
    pub(super) fn follow(&mut self, roster: Option<&Arc<Roster>>) {
        let is_known = match (&self.roster, roster) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            _ => false,
        };
        if is_known || self.sites.is_empty() {
            return;
        }
        self.roster = roster.cloned();
        let members = roster.iter().flat_map(|roster| roster.members());
        let far = members.filter_map(|(id, seat)| Some((id, *self.sites.get(&seat.site)?)));
        self.far = far.collect();
    }

    /// Keeps a message for those that are far, and returns those to whom it goes at once.
    pub(super) fn hold(
        &mut self,
        to: &Destination,
        message: &Message,
        after: Option<Ticket>,
        now: Time,
        chance: u64,
    ) -> Vec<ProcessId> {
        let all = match to {
            Destination::One(peer) => std::slice::from_ref(peer),
            Destination::Many(peers) => peers,
        };
        let is_data = matches!(message, Message::Cell(_));
        let mut near = Vec::new();
        for peer in all {
            match self.far.get(peer).copied() {
                Some(distance) if is_data => {
                    self.put((*peer, message.clone(), after), distance, now, chance);
                }
                _ => near.push(*peer),
            }
        }
        near
    }

    fn put(&mut self, sent: Waiting, distance: Distance, now: Time, chance: u64) {
        let to = sent.0;
        self.count += 1;
        let jitter = u64::try_from(distance.jitter.as_nanos()).unwrap_or(u64::MAX);
        // Several messages of one turn have different delays.
        let drawn = chance.wrapping_add(self.count.wrapping_mul(SPREAD)).checked_rem(jitter);
        let due = now + distance.least + Duration::from_nanos(drawn.unwrap_or(0));
        let due = distance.stall.map_or(due, |stall| stall.end(to, due));
        let last = self.last.entry(to).or_default();
        *last = due.max(*last);
        self.waiting.insert((*last, self.count), sent);
    }

    /// The next message that is due.
    pub(super) fn due(&mut self, now: Time) -> Option<Waiting> {
        let first = self.waiting.first_entry()?;
        let is_due = first.key().0 <= now;
        (is_due || self.waiting.len() > WAITING_MAX)
            .then(|| self.waiting.pop_first())
            .flatten()
            .map(|(_, it)| it)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }

    /// A link broke: what was under way on it is lost.
    pub(super) fn lose(&mut self, peer: ProcessId) {
        self.waiting.retain(|_, (to, ..)| *to != peer);
        self.last.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::{
        Incarnation,
        partial::{self, Answer, Refusal, Round},
    };

    use super::*;

    const MS: u64 = 1_000_000;

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(1) }
    }

    fn numbered(round: u64) -> Message {
        Message::Cell(partial::Message::Answer {
            round: Round(round),
            answer: Answer::Refused(Refusal::Full),
        })
    }

    fn far(jitter: u64) -> Distances {
        let (least, jitter) = (Duration::from_millis(20), Duration::from_millis(jitter));
        let distance = Distance { least, jitter, stall: None };
        Distances { far: [(process(2), distance)].into(), ..Distances::default() }
    }

    #[test]
    fn what_is_far_arrives_late_and_in_order() {
        let mut distances = far(5);
        let message = numbered;
        let both = Destination::Many(vec![process(1), process(2)]);
        for at in 0..100 {
            let near = distances.hold(&both, &message(at), None, Time(at * MS), at * 7_919_777);
            assert_eq!(near, [process(1)]);
        }
        assert_eq!(distances.due(Time(20 * MS - 1)), None);
        let mut arrived = Vec::new();
        while let Some(due) = distances.deadline() {
            let (to, message, _) = distances.due(due).unwrap();
            assert_eq!(to, process(2));
            let round = arrived.len() as u64;
            assert_eq!(message, numbered(round));
            let took = due.0 - round * MS;
            assert!((20 * MS..=25 * MS).contains(&took), "{took}");
            arrived.push(round);
        }
        assert_eq!(arrived.len(), 100);
    }

    #[test]
    fn what_would_leave_while_a_way_hangs_leaves_at_the_end() {
        let stall = Stall { span: Duration::from_millis(100), every: Duration::from_millis(4_000) };
        let delays = |node| (0..8_000).map(move |ms| stall.end(process(node), Time(ms * MS)).0 - ms * MS);
        for node in [1, 2] {
            let late: Vec<u64> = delays(node).filter(|delay| *delay > 0).collect();
            assert!((199..=201).contains(&late.len()), "two of 100 ms in 8 s: {}", late.len());
            assert!(late.iter().all(|delay| *delay <= 100 * MS));
        }
        assert!(!delays(1).eq(delays(2)), "the ways to two cells do not hang at once");
    }

    #[test]
    fn a_broken_link_loses_what_is_under_way() {
        let mut distances = far(0);
        assert!(distances.hold(&Destination::One(process(2)), &numbered(1), None, Time(0), 3).is_empty());
        distances.lose(process(2));
        assert_eq!(distances.deadline(), None);
    }
}
