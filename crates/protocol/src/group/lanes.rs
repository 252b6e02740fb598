//! Lanes: how this member's soft messages go to each other member, and the evidence that casts arrive. The
//! ways are the group's multicast address, casts to the member alone, and the link.
//!
//! A receipt confirms a cast if it covers the cast's messages before they were sent again over the link: only
//! the cast can have brought them. A cast that had to be repaired was lost. Until a cast was confirmed, only
//! one cast at a time is under way, and the link takes the other messages. So if casts do not arrive, only
//! one cast is lost before the sender notices. After [`LOSSES_MAX`] losses in a row, or the first loss if no
//! cast was ever confirmed, messages go another way for a pause, which doubles up to [`PAUSE_MAX`]. Multicast
//! and casts to the member alone are judged separately: if multicast does not arrive, separate casts may
//! arrive. If neither arrives, the link takes all messages.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    id::ProcessId,
    time::{Duration, Time},
};

/// The ways of this member's soft messages to all other members.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<ProcessId, Lane>,
}

/// The address of a cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CastRoute {
    /// The cast goes to the group's multicast address.
    Multicast,
    /// The cast goes to one member alone.
    Alone,
}

#[derive(Debug, Default)]
struct Lane {
    /// Casts that are neither confirmed nor repaired, oldest first.
    casts: VecDeque<Cast>,
    /// The casts' size, in bytes.
    bytes: usize,
    multicast: Evidence,
    alone: Evidence,
}

#[derive(Clone, Copy, Debug)]
struct Cast {
    /// The number of the cast's last message.
    last: u64,
    bytes: usize,
    way: CastRoute,
}

/// Evidence of whether casts of one route reach a member.
#[derive(Debug)]
struct Evidence {
    /// Number of casts that are neither confirmed nor repaired.
    under_way: usize,
    /// Whether a cast was confirmed since the route was last given up.
    proven: bool,
    /// Number of losses since the last confirmed cast.
    losses: u32,
    /// Time until which messages avoid this route.
    closed_until: Time,
    /// Length of the next pause of this route.
    pause: Duration,
}

/// Number of losses in a row after which a route is given up.
const LOSSES_MAX: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause of a route.
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl Default for Evidence {
    fn default() -> Self {
        Evidence { under_way: 0, proven: false, losses: 0, closed_until: Time::ZERO, pause: PAUSE_MIN }
    }
}

impl Lane {
    fn of(&mut self, way: CastRoute) -> &mut Evidence {
        match way {
            CastRoute::Multicast => &mut self.multicast,
            CastRoute::Alone => &mut self.alone,
        }
    }

    fn is_open(&self, way: CastRoute, now: Time, bytes: usize, window: usize) -> bool {
        let evidence = match way {
            CastRoute::Multicast => &self.multicast,
            CastRoute::Alone => &self.alone,
        };
        let fits = if evidence.proven { self.bytes + bytes <= window } else { evidence.under_way == 0 };
        window > 0 && fits && now >= evidence.closed_until
    }
}

impl Evidence {
    /// Records a lost cast. Returns whether the route is given up for a while.
    fn lost(&mut self, now: Time) -> bool {
        self.losses += 1;
        let gives_up = !self.proven || self.losses >= LOSSES_MAX;
        if gives_up {
            (self.proven, self.losses) = (false, 0);
            self.closed_until = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        gives_up
    }
}

impl Lanes {
    /// Whether a cast of `bytes` bytes may go to `peer` by this route. At most `window` bytes of casts may be
    /// unconfirmed.
    pub(super) fn is_open(
        &self,
        peer: ProcessId,
        way: CastRoute,
        now: Time,
        bytes: usize,
        window: usize,
    ) -> bool {
        self.lanes.get(&peer).map_or(window > 0, |lane| lane.is_open(way, now, bytes, window))
    }

    /// Records a cast whose last message has number `last`.
    pub(super) fn cast(&mut self, peer: ProcessId, way: CastRoute, last: u64, bytes: usize) {
        let lane = self.lanes.entry(peer).or_default();
        lane.casts.push_back(Cast { last, bytes, way });
        lane.bytes += bytes;
        lane.of(way).under_way += 1;
    }

    /// Notes a receipt by which `peer` holds every message up to number `held`.
    pub(super) fn confirmed(&mut self, peer: ProcessId, held: u64) {
        let Some(lane) = self.lanes.get_mut(&peer) else { return };
        while let Some(Cast { bytes, way, .. }) = lane.casts.pop_front_if(|cast| cast.last <= held) {
            lane.bytes -= bytes;
            let evidence = lane.of(way);
            evidence.under_way -= 1;
            (evidence.proven, evidence.losses, evidence.pause) = (true, 0, PAUSE_MIN);
        }
    }

    /// Records that messages from `first` to `last` went to `peer` over the link, because `peer` asked for
    /// them, or did not confirm them for long. Returns whether a route of casts to `peer` is given up.
    pub(super) fn repaired(&mut self, peer: ProcessId, (first, last): (u64, u64), now: Time) -> bool {
        let Some(lane) = self.lanes.get_mut(&peer) else { return false };
        let (mut begins, mut multicast, mut alone) = (0, 0, 0);
        lane.casts.retain(|cast| {
            let is_apart = cast.last < first || begins > last;
            begins = cast.last + 1;
            if !is_apart {
                lane.bytes -= cast.bytes;
                *(if cast.way == CastRoute::Multicast { &mut multicast } else { &mut alone }) += 1;
            }
            is_apart
        });
        let mut gives_up = false;
        for (way, lost) in [(CastRoute::Multicast, multicast), (CastRoute::Alone, alone)] {
            let evidence = lane.of(way);
            evidence.under_way -= lost;
            gives_up |= lost > 0 && evidence.lost(now);
        }
        gives_up
    }

    /// Drops the evidence about multicast, because the group has a new address.
    pub(super) fn readdress(&mut self) {
        for lane in self.lanes.values_mut() {
            let under_way = lane.multicast.under_way;
            lane.multicast = Evidence { under_way, ..Evidence::default() };
        }
    }

    /// Drops the lanes (the ways of soft messages) to processes that are not members of the new view. Message
    /// numbers start again in a new view.
    pub(super) fn begin(&mut self, members: impl Fn(ProcessId) -> bool) {
        self.lanes.retain(|id, _| members(*id));
        for lane in self.lanes.values_mut() {
            lane.casts.clear();
            (lane.bytes, lane.multicast.under_way, lane.alone.under_way) = (0, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Incarnation;

    const PEER: ProcessId = ProcessId { node: 2, incarnation: Incarnation(0) };
    const WINDOW: usize = 100;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    /// Makes lanes on which a cast was confirmed.
    fn proven() -> Lanes {
        let mut lanes = Lanes::default();
        lanes.cast(PEER, CastRoute::Alone, 1, 60);
        lanes.confirmed(PEER, 1);
        lanes
    }

    #[test]
    fn before_the_first_confirmation_only_one_cast_is_in_flight() {
        let mut lanes = Lanes::default();
        assert!(
            lanes.is_open(PEER, CastRoute::Alone, at(0), 60, WINDOW)
                && !lanes.is_open(PEER, CastRoute::Alone, at(0), 60, 0)
        );
        lanes.cast(PEER, CastRoute::Alone, 4, 60);
        assert!(!lanes.is_open(PEER, CastRoute::Alone, at(0), 1, WINDOW));
        lanes.confirmed(PEER, 3);
        assert!(!lanes.is_open(PEER, CastRoute::Alone, at(0), 1, WINDOW), "not all of it is there");
        lanes.confirmed(PEER, 9);
        lanes.cast(PEER, CastRoute::Alone, 10, 60);
        assert!(
            lanes.is_open(PEER, CastRoute::Alone, at(0), 40, WINDOW)
                && !lanes.is_open(PEER, CastRoute::Alone, at(0), 41, WINDOW)
        );
    }

    #[test]
    fn a_lane_without_arrivals_closes_at_the_first_loss_for_growing_pauses() {
        let mut lanes = Lanes::default();
        let (mut now, mut pauses) = (at(0), Vec::new());
        for number in 1..9 {
            lanes.cast(PEER, CastRoute::Alone, number, 60);
            assert!(lanes.repaired(PEER, (number, number), now));
            let closed = (1..).map(Duration::from_secs);
            let pause = closed
                .into_iter()
                .find(|pause| lanes.is_open(PEER, CastRoute::Alone, now + *pause, 1, WINDOW));
            let pause = pause.expect("it is tried anew");
            pauses.push(pause.as_secs());
            now = now + pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        lanes.cast(PEER, CastRoute::Alone, 9, 60);
        lanes.confirmed(PEER, 9);
        assert!(lanes.is_open(PEER, CastRoute::Alone, now, 60, WINDOW), "one was confirmed");
    }

    #[test]
    fn scattered_losses_close_no_lane() {
        let mut lanes = proven();
        for number in (2..40).step_by(2) {
            lanes.cast(PEER, CastRoute::Alone, number, 10);
            lanes.cast(PEER, CastRoute::Alone, number + 1, 10);
            assert!(!lanes.repaired(PEER, (number, number), at(0)));
            lanes.confirmed(PEER, number + 1);
        }
        assert!(lanes.is_open(PEER, CastRoute::Alone, at(0), WINDOW, WINDOW));
    }

    #[test]
    fn several_losses_in_a_row_close_the_lane() {
        let mut lanes = proven();
        for number in 2..5 {
            lanes.cast(PEER, CastRoute::Alone, number, 10);
        }
        let given_up = [2, 3, 4].map(|number| lanes.repaired(PEER, (number, number), at(0)));
        assert_eq!(given_up, [false, false, true]);
        // A cast that is repaired twice counts as one loss, and its later confirmation is no evidence that
        // casts arrive.
        assert!(!lanes.repaired(PEER, (2, 4), at(0)));
        lanes.confirmed(PEER, 4);
        assert!(!lanes.is_open(PEER, CastRoute::Alone, at(999), 1, WINDOW));
        assert!(lanes.is_open(PEER, CastRoute::Alone, at(1_000), 1, WINDOW));
    }

    #[test]
    fn a_repair_ends_the_casts_that_overlap_it() {
        let mut lanes = proven();
        for last in [5, 9, 12] {
            lanes.cast(PEER, CastRoute::Alone, last, 30);
        }
        lanes.repaired(PEER, (6, 7), at(0));
        assert!(
            lanes.is_open(PEER, CastRoute::Alone, at(0), 40, WINDOW)
                && !lanes.is_open(PEER, CastRoute::Alone, at(0), 41, WINDOW)
        );
    }

    #[test]
    fn casts_in_flight_do_not_count_in_the_next_view() {
        let mut lanes = proven();
        lanes.cast(PEER, CastRoute::Alone, 5, 60);
        lanes.begin(|_| true);
        lanes.confirmed(PEER, 9);
        assert!(lanes.is_open(PEER, CastRoute::Alone, at(0), WINDOW, WINDOW));
        lanes.begin(|_| false);
        lanes.cast(PEER, CastRoute::Alone, 1, 10);
        assert!(
            !lanes.is_open(PEER, CastRoute::Alone, at(0), 10, WINDOW),
            "nothing is known of one that comes anew"
        );
    }

    #[test]
    fn a_lane_for_single_casts_stays_open_when_multicast_is_closed() {
        let mut lanes = proven();
        let open = |lanes: &Lanes, way, millis| lanes.is_open(PEER, way, at(millis), 10, WINDOW);
        assert!(open(&lanes, CastRoute::Multicast, 0), "it is tried");
        lanes.cast(PEER, CastRoute::Multicast, 2, 10);
        assert!(!open(&lanes, CastRoute::Multicast, 0), "one at a time");
        assert!(open(&lanes, CastRoute::Alone, 0));
        lanes.cast(PEER, CastRoute::Alone, 3, 10);
        assert!(lanes.repaired(PEER, (2, 2), at(0)), "multicast is given up");
        assert!(!open(&lanes, CastRoute::Multicast, 999) && open(&lanes, CastRoute::Multicast, 1_000));
        lanes.confirmed(PEER, 3);
        assert!(open(&lanes, CastRoute::Alone, 0) && !open(&lanes, CastRoute::Multicast, 0));
        // Multicast to the new address may arrive although multicast to the former address did not.
        lanes.readdress();
        assert!(open(&lanes, CastRoute::Multicast, 0));
        lanes.cast(PEER, CastRoute::Multicast, 4, 10);
        lanes.readdress();
        lanes.confirmed(PEER, 4);
        assert!(open(&lanes, CastRoute::Multicast, 0), "it was confirmed");
    }
}
