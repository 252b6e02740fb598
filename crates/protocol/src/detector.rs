//! The failure detector: processes that seem to have failed.
//!
//! A peer is suspected when it has been silent for longer than its own earlier pauses explain, or when its
//! link has been broken for a while and could not be restored. A suspicion is a guess, never a fact: an
//! ordered message decides its consequences (rule S14), and no safety depends on it (S11).
//!
//! The allowed silence adapts: `mean + 8·deviation` of the gaps between signs of life, kept within
//! [`Settings::silence_min`] and [`Settings::silence_max`]. The factor is large, because a wrong suspicion
//! costs a migration of rows, and a late suspicion costs only waiting. A part of a large message is a sign of
//! life as well ([`Input::Progress`](crate::Input)), because its sender's other messages wait behind it. A
//! detector whose own tick comes late was itself asleep (starved of the processor, or paused): it discards
//! that interval and gives every peer a fresh start.

use std::collections::BTreeMap;

use crate::{
    id::ProcessId,
    time::{Duration, Time},
};

/// The patience of a detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Interval of signs of life, and of the detector's ticks.
    pub interval: Duration,
    /// Shortest silence for which a peer is suspected.
    pub silence_min: Duration,
    /// Longest silence for which a peer can remain unsuspected, whatever its earlier gaps.
    pub silence_max: Duration,
    /// Time for which a link may stay broken before its peer is suspected.
    pub unlinked_max: Duration,
}

impl Default for Settings {
    /// Returns settings for a machine whose processors are shared with other work. There a starved process is
    /// late by some hundred milliseconds, but a dead process breaks its links at once.
    fn default() -> Self {
        Settings {
            interval: Duration::from_millis(50),
            silence_min: Duration::from_millis(600),
            silence_max: Duration::from_secs(4),
            unlinked_max: Duration::from_millis(150),
        }
    }
}

/// The knowledge of one process about another at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// There is no link to the process.
    Unlinked,
    /// There is a link to the process, but nothing has been heard on the link lately.
    Linked,
    /// The process gave a sign of life just now.
    Heard,
}

/// Watches a set of peers.
#[derive(Debug)]
pub struct Detector {
    settings: Settings,
    peers: BTreeMap<ProcessId, PeerWatch>,
    ticked: Option<Time>,
}

#[derive(Debug)]
struct PeerWatch {
    /// Time of the last sign of life. The moments at which this process began to watch the peer, got a link
    /// to it, or gave it a fresh start count as signs, too.
    heard: Time,
    /// Time of the last sign of life that the peer gave itself; `None` if it has given no sign.
    sign: Option<Time>,
    gap_mean: f64,
    gap_deviation: f64,
    unlinked: Option<Time>,
}

impl Detector {
    /// Makes a detector that watches no peer yet.
    pub fn new(settings: Settings) -> Self {
        Detector { settings, peers: BTreeMap::new(), ticked: None }
    }

    /// Returns the detector's settings.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Starts to watch `peer`, which counts as alive now. Has no effect if `peer` is watched already.
    pub fn watch(&mut self, peer: ProcessId, now: Time) {
        let gap_mean = self.settings.interval.as_nanos() as f64;
        self.peers.entry(peer).or_insert(PeerWatch {
            heard: now,
            sign: None,
            gap_mean,
            gap_deviation: gap_mean / 2.0,
            unlinked: None,
        });
    }

    /// Stops watching `peer`.
    pub fn unwatch(&mut self, peer: ProcessId) {
        self.peers.remove(&peer);
    }

    /// Returns the watched peers, in id order.
    pub fn watched(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.peers.keys().copied()
    }

    /// Notes a sign of life.
    pub fn heard(&mut self, peer: ProcessId, now: Time) {
        let Some(watch) = self.peers.get_mut(&peer) else { return };
        watch.sign = Some(now);
        let gap = now.since(watch.heard).as_nanos() as f64;
        // Signs of life that come in bursts say nothing about the peer's usual pauses, so only gaps of at
        // least half an interval count.
        if gap * 2.0 >= self.settings.interval.as_nanos() as f64 {
            let error = (gap - watch.gap_mean).abs();
            watch.gap_mean += (gap - watch.gap_mean) / 8.0;
            watch.gap_deviation += (error - watch.gap_deviation) / 4.0;
            watch.heard = now;
        }
    }

    /// Whether `peer` is watched, linked, and gave a sign of life within the last two intervals.
    pub fn in_touch(&self, peer: ProcessId, now: Time) -> bool {
        let fresh = |watch: &PeerWatch| {
            watch.unlinked.is_none() && now.since(watch.heard) <= self.settings.interval * 2
        };
        self.peers.get(&peer).is_some_and(fresh)
    }

    /// Whether `peer` is linked and gave a sign of life itself within the last two intervals. The moments at
    /// which this process began to watch the peer, got a link to it, or gave it a fresh start are no such
    /// signs.
    pub fn lives(&self, peer: ProcessId, now: Time) -> bool {
        let signed =
            |watch: &PeerWatch| watch.sign.is_some_and(|sign| now.since(sign) <= self.settings.interval * 2);
        self.peers.get(&peer).is_some_and(|watch| watch.unlinked.is_none() && signed(watch))
    }

    /// Returns the present opinion about `peer`, or `None` if it is not watched.
    pub fn opinion(&self, peer: ProcessId, now: Time) -> Option<Opinion> {
        let watch = self.peers.get(&peer)?;
        Some(match watch.unlinked {
            Some(_) => Opinion::Unlinked,
            None if self.in_touch(peer, now) => Opinion::Heard,
            None => Opinion::Linked,
        })
    }

    /// Returns the time since the last sign of life of `peer`, or `None` if it is not watched.
    pub fn silence(&self, peer: ProcessId, now: Time) -> Option<Duration> {
        self.peers.get(&peer).map(|watch| now.since(watch.heard))
    }

    /// Notes that the link to `peer` stands again.
    pub fn linked(&mut self, peer: ProcessId, now: Time) {
        if let Some(watch) = self.peers.get_mut(&peer) {
            watch.unlinked = None;
            watch.heard = now;
        }
    }

    /// Notes that the link to `peer` broke. Repeated calls do not change the first instant.
    pub fn unlinked(&mut self, peer: ProcessId, now: Time) {
        if let Some(watch) = self.peers.get_mut(&peer) {
            watch.unlinked.get_or_insert(now);
        }
    }

    /// Notes that an interval has passed. Must be called every [`Settings::interval`]: a much later call
    /// means that this process was asleep, and gives every peer a fresh start.
    pub fn tick(&mut self, now: Time) {
        if let Some(ticked) = self.ticked
            && now.since(ticked) > self.settings.interval * 3
        {
            for watch in self.peers.values_mut() {
                watch.heard = now;
                watch.unlinked = watch.unlinked.map(|_| now);
            }
        }
        self.ticked = Some(now);
    }

    /// Whether `peer` seems to have failed; `false` for a peer that is not watched.
    pub fn suspects(&self, peer: ProcessId, now: Time) -> bool {
        self.suspected_from(peer).is_some_and(|from| now >= from)
    }

    /// Returns the instant from which `peer` will be suspected if no sign of life comes.
    pub fn suspected_from(&self, peer: ProcessId) -> Option<Time> {
        let watch = self.peers.get(&peer)?;
        let habit = Duration::from_nanos((watch.gap_mean + 8.0 * watch.gap_deviation) as u64);
        let silent = watch.heard + habit.clamp(self.settings.silence_min, self.settings.silence_max);
        let broken = watch.unlinked.map(|unlinked| unlinked + self.settings.unlinked_max);
        Some(broken.map_or(silent, |broken| broken.min(silent)))
    }
}

#[cfg(test)]
mod tests;
