//! Distances between sites: messages to cells of other sites arrive later, as if the sites were far away.
//!
//! **Promise.** A message to a cell at a site with a distance is delayed by the distance and a random jitter.
//! No message leaves during a stall of the way to its cell. Messages to one cell leave in the order of
//! sending. Messages to near cells and to routers leave at once. So one machine can run a store whose cells
//! are at several sites (004 §III.D). It can also run a store whose replicas are late now and then (004
//! §III.B, because of garbage collectors).
//!
//! **Bound.** At most [`WAITING_MAX`] messages wait. Above that bound, messages leave too early, but are not
//! lost.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use quorate_protocol::{
    Destination, Duration, ProcessId, Ticket, Time,
    partial::{Roster, Site, resident::Message},
};

/// The distance from one site to another, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distance {
    /// The shortest time of a message.
    pub least: Duration,
    /// Upper bound of the random time that is added to each message.
    pub jitter: Duration,
    /// The stalls of messages on this way.
    pub stall: Option<Stall>,
}

/// Periodic stalls on the way to a site. No message leaves during a stall, and at its end all waiting
/// messages leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Length of a stall.
    pub span: Duration,
    /// Time from the beginning of one stall to that of the next. Not zero.
    pub every: Duration,
}

impl Stall {
    /// Returns the instant at which a message that would leave at `due` may leave on this way.
    fn end(self, way: Way, due: Time) -> Time {
        let every = u64::try_from(self.every.as_nanos()).unwrap_or(u64::MAX).max(1);
        let phase = way.0.wrapping_mul(SPREAD) % every;
        let begun = Duration::from_nanos(due.0.wrapping_add(phase) % every);
        due + self.span.saturating_sub(begun)
    }
}

/// Upper bound of a distance, in milliseconds.
const DISTANCE_MS_MAX: f64 = 10_000.0;

impl Distance {
    /// Makes a distance from its parts in milliseconds, each from 0 to 10,000: the shortest time, the jitter,
    /// the length of a stall, and the period of stalls. Zero means no jitter, or no stalls.
    ///
    /// # Errors
    /// If a part is out of bounds, or a stall is longer than its period.
    pub fn of_ms(least: f64, jitter: f64, stall: f64, stall_every: f64) -> Result<Distance, String> {
        let span = |ms: f64| {
            let fits = (0.0..=DISTANCE_MS_MAX).contains(&ms);
            fits.then(|| Duration::from_secs_f64(ms / 1e3)).ok_or_else(|| {
                format!("{ms} ms is out of range: each time of a distance is from 0 to {DISTANCE_MS_MAX} ms")
            })
        };
        if stall > stall_every {
            return Err(format!(
                "messages cannot hang for {stall} ms every {stall_every} ms: a stall is not longer than \
                     its period"
            ));
        }
        let hangs = Stall { span: span(stall)?, every: span(stall_every)? };
        let stall = (!hangs.span.is_zero()).then_some(hangs);
        Ok(Distance { least: span(least)?, jitter: span(jitter)?, stall })
    }

    /// Returns the four parts in milliseconds, in the order in which [`Distance::of_ms`] takes them.
    pub fn in_ms(self) -> [f64; 4] {
        let (span, every) = self.stall.map_or_else(Default::default, |stall| (stall.span, stall.every));
        [self.least, self.jitter, span, every].map(|part| part.as_nanos() as f64 / 1e6)
    }

    /// Returns the time at which a message arrives that is sent now on this way. `chance` determines its
    /// jitter.
    pub fn arrival(self, way: Way, now: Time, chance: u64) -> Time {
        let jitter = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX);
        let drawn = chance.checked_rem(jitter).unwrap_or(0);
        let due = now + self.least + Duration::from_nanos(drawn);
        self.stall.map_or(due, |stall| stall.end(way, due))
    }
}

/// The way from one process to another, identified by a number. Different ways stall at different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way(pub u64);

/// The distance of two sites. Its text is `0-1=18.5`, `0-1=18.5~2` or `0-1=18.5~2!100/4000`: milliseconds one
/// way, the jitter, the length of a stall, and its period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// Both sites; they differ.
    pub sites: [Site; 2],
    /// The way from each of the two sites to the other.
    pub distance: Distance,
}

impl Between {
    /// Returns the other site and its distance, if `site` is one of the two.
    pub fn from(self, site: Site) -> Option<(Site, Distance)> {
        match self.sites {
            [ours, other] | [other, ours] if ours == site => Some((other, self.distance)),
            _ => None,
        }
    }
}

impl FromStr for Between {
    type Err = String;

    fn from_str(text: &str) -> Result<Between, String> {
        let parts = || {
            let (sites, far) = text.split_once('=')?;
            let (a, b) = sites.split_once('-')?;
            let (far, stall) = far.split_once('!').unwrap_or((far, "0/0"));
            let (least, jitter) = far.split_once('~').unwrap_or((far, "0"));
            let (span, every) = stall.split_once('/')?;
            let sites = [Site(a.parse().ok()?), Site(b.parse().ok()?)];
            let ms = |part: &str| part.parse::<f64>().ok();
            (sites[0] != sites[1]).then_some((sites, [ms(least)?, ms(jitter)?, ms(span)?, ms(every)?]))
        };
        let (sites, [least, jitter, span, every]) = parts().ok_or(
            "a distance has two sites and milliseconds: 0-1=18.5, 0-1=18.5~2 with jitter, or \
             0-1=18.5~2!100/4000 where messages hang for 100 ms every 4 s",
        )?;
        Ok(Between { sites, distance: Distance::of_ms(least, jitter, span, every)? })
    }
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([a, b], [least, jitter, span, every]) = (self.sites, self.distance.in_ms());
        write!(f, "{}-{}={least}~{jitter}!{span}/{every}", a.0, b.0)
    }
}

/// An odd number, whose multiples are spread evenly over all numbers of 64 bits, as are the remainders of
/// these multiples.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Upper bound of the number of messages on their way.
const WAITING_MAX: usize = 1 << 20;

/// The distances of a cell's site to other sites, and the messages on their way.
#[derive(Debug, Default)]
pub struct Distances {
    sites: BTreeMap<Site, Distance>,
    roster: Option<Arc<Roster>>,
    /// The members at sites that have a distance.
    far: BTreeMap<ProcessId, Distance>,
    waiting: BTreeMap<(Time, u64), HeldMessage>,
    /// Number of messages so far. Messages that are due at one instant leave in the order of this number.
    count: u64,
    /// Instant at which the latest message to each process leaves.
    last: BTreeMap<ProcessId, Time>,
}

/// A message on its way: its receiver, and the record that must be on disk before it leaves.
type HeldMessage = (ProcessId, Message, Option<Ticket>);

impl Distances {
    pub(super) fn new(sites: BTreeMap<Site, Distance>) -> Distances {
        Distances { sites, ..Distances::default() }
    }

    pub(super) fn sites(&self) -> &BTreeMap<Site, Distance> {
        &self.sites
    }

    /// Whether some member is at a site that has a distance.
    pub(super) fn reach_any(&self) -> bool {
        !self.far.is_empty()
    }

    pub(super) fn has_jitter(&self) -> bool {
        self.far.values().any(|distance| !distance.jitter.is_zero())
    }

    /// Adopts the present members and their sites.
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

    /// Keeps a message for receivers at far sites. Returns the receivers to which the message goes at once.
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

    fn put(&mut self, sent: HeldMessage, distance: Distance, now: Time, chance: u64) {
        let to = sent.0;
        self.count += 1;
        // Several messages of one turn get different delays.
        let chance = chance.wrapping_add(self.count.wrapping_mul(SPREAD));
        let due = distance.arrival(Way(to.node), now, chance);
        let last = self.last.entry(to).or_default();
        *last = due.max(*last);
        self.waiting.insert((*last, self.count), sent);
    }

    /// Returns the next message that is due.
    pub(super) fn due(&mut self, now: Time) -> Option<HeldMessage> {
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

    /// Drops the messages on a link that broke: they are lost.
    pub(super) fn lose(&mut self, peer: ProcessId) {
        self.waiting.retain(|_, (to, ..)| *to != peer);
        self.last.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::{
        Incarnation,
        partial::{self, Answer, ReplicaRefusal, Round},
    };

    use super::*;

    const MS: u64 = 1_000_000;

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(1) }
    }

    fn numbered(round: u64) -> Message {
        Message::Cell(partial::Message::Answer {
            round: Round(round),
            answer: Answer::Refused(ReplicaRefusal::Full),
        })
    }

    fn far(jitter: u64) -> Distances {
        let (least, jitter) = (Duration::from_millis(20), Duration::from_millis(jitter));
        let distance = Distance { least, jitter, stall: None };
        Distances { far: [(process(2), distance)].into(), ..Distances::default() }
    }

    #[test]
    fn messages_over_a_distance_arrive_late_and_in_order() {
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
    fn messages_during_a_stall_leave_at_its_end() {
        let stall = Stall { span: Duration::from_millis(100), every: Duration::from_millis(4_000) };
        let delays = |node| (0..8_000).map(move |ms| stall.end(Way(node), Time(ms * MS)).0 - ms * MS);
        for node in [1, 2] {
            let late: Vec<u64> = delays(node).filter(|delay| *delay > 0).collect();
            assert!((199..=201).contains(&late.len()), "two of 100 ms in 8 s: {}", late.len());
            assert!(late.iter().all(|delay| *delay <= 100 * MS));
        }
        assert!(!delays(1).eq(delays(2)), "the ways to two cells do not hang at once");
    }

    #[test]
    fn a_distance_parses_to_its_printed_form() {
        for text in ["0-1=18.5~0!0/0", "2-0=37.5~1.25!100/4000", "1-65535=0~10000!0/0"] {
            assert_eq!(text.parse::<Between>().unwrap().to_string(), text);
        }
        assert_eq!("0-1=1!0/7".parse::<Between>(), "0-1=1".parse());
        let between: Between = "0-2=5".parse().unwrap();
        assert_eq!(between.from(Site(2)), Some((Site(0), between.distance)));
        assert_eq!(between.from(Site(1)), None);
        for text in [
            "",
            "0=1",
            "0-0=1",
            "0-1=",
            "0-1=-1",
            "0-1=NaN",
            "0-1=10001",
            "0-1=1!2/1",
            "0-1=1!1",
            "0-65536=1",
        ] {
            assert!(text.parse::<Between>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_broken_link_loses_what_is_under_way() {
        let mut distances = far(0);
        assert!(distances.hold(&Destination::One(process(2)), &numbered(1), None, Time(0), 3).is_empty());
        distances.lose(process(2));
        assert_eq!(distances.deadline(), None);
    }
}
