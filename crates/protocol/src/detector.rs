//! Who seems to have failed.
//!
//! A peer is suspected when it has been silent for longer than its own habit explains, or when its link has been broken
//! for a while and could not be made anew. Suspicion is a guess, never a fact: what follows from it is decided by an
//! ordered message (rule S14), and no safety rests on it (S11).
//!
//! The silence allowed adapts: `mean + 8·deviation` of the gaps between signs of life, kept within
//! [`Settings::silence_min`] and [`Settings::silence_max`]. The factor is large because a wrong suspicion costs a
//! migration and a late one only patience. A part of a large message is a sign of life as well
//! ([`Input::Progress`](crate::Input)): what its sender says meanwhile waits behind it. A detector whose own tick comes late was itself asleep (starved of the
//! processor, or paused): it discards that interval and gives every peer a fresh start.

use std::collections::BTreeMap;

use crate::{
    id::ProcessId,
    time::{Duration, Time},
};

/// How patient a detector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often signs of life are sent, and the detector ticks.
    pub interval: Duration,
    /// No peer is suspected of silence sooner.
    pub silence_min: Duration,
    /// A silent peer is suspected no later.
    pub silence_max: Duration,
    /// How long a link may stay broken.
    pub unlinked_max: Duration,
}

impl Default for Settings {
    /// Suits a machine whose processors are shared with other work: a starved process is late by some hundred
    /// milliseconds, a dead one breaks its links at once.
    fn default() -> Self {
        Settings {
            interval: Duration::from_millis(50),
            silence_min: Duration::from_millis(600),
            silence_max: Duration::from_secs(4),
            unlinked_max: Duration::from_millis(150),
        }
    }
}

/// What one process can say of another at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// There is no link to it.
    Unlinked,
    /// There is one, and it has not been heard on it lately.
    Linked,
    /// It gave a sign of life just now.
    Heard,
}

/// Watches a set of peers.
#[derive(Debug)]
pub struct Detector {
    settings: Settings,
    peers: BTreeMap<ProcessId, Watch>,
    ticked: Option<Time>,
}

#[derive(Debug)]
struct Watch {
    /// Since when it is silent; watched, linked and excused count for signs of life.
    heard: Time,
    /// The last real sign of life.
    sign: Option<Time>,
    gap_mean: f64,
    gap_deviation: f64,
    unlinked: Option<Time>,
}

impl Detector {
    /// A detector that watches nobody yet.
    pub fn new(settings: Settings) -> Self {
        Detector { settings, peers: BTreeMap::new(), ticked: None }
    }

    /// The settings it was made with.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Starts to watch `peer`; it has the benefit of the doubt from now on. No effect if watched already.
    pub fn watch(&mut self, peer: ProcessId, now: Time) {
        let gap_mean = self.settings.interval.as_nanos() as f64;
        self.peers.entry(peer).or_insert(Watch {
            heard: now,
            sign: None,
            gap_mean,
            gap_deviation: gap_mean / 2.0,
            unlinked: None,
        });
    }

    /// Stops to watch `peer`.
    pub fn unwatch(&mut self, peer: ProcessId) {
        self.peers.remove(&peer);
    }

    /// The watched peers, in id order.
    pub fn watched(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.peers.keys().copied()
    }

    /// A sign of life.
    pub fn heard(&mut self, peer: ProcessId, now: Time) {
        let Some(watch) = self.peers.get_mut(&peer) else { return };
        watch.sign = Some(now);
        let gap = now.since(watch.heard).as_nanos() as f64;
        // Signs that come in bursts tell nothing about the habit; only gaps of half an interval and more count.
        if gap * 2.0 >= self.settings.interval.as_nanos() as f64 {
            let error = (gap - watch.gap_mean).abs();
            watch.gap_mean += (gap - watch.gap_mean) / 8.0;
            watch.gap_deviation += (error - watch.gap_deviation) / 4.0;
            watch.heard = now;
        }
    }

    /// Whether `peer` is watched, linked, and gave a sign of life within the last two intervals.
    pub fn in_touch(&self, peer: ProcessId, now: Time) -> bool {
        let fresh =
            |watch: &Watch| watch.unlinked.is_none() && now.since(watch.heard) <= self.settings.interval * 2;
        self.peers.get(&peer).is_some_and(fresh)
    }

    /// Whether `peer` is linked and really gave a sign of life within the last two intervals: not the benefit of the doubt that one has
    /// who is watched, linked or excused since a moment ago.
    pub fn lives(&self, peer: ProcessId, now: Time) -> bool {
        let signed =
            |watch: &Watch| watch.sign.is_some_and(|sign| now.since(sign) <= self.settings.interval * 2);
        self.peers.get(&peer).is_some_and(|watch| watch.unlinked.is_none() && signed(watch))
    }

    /// What can be said of `peer` now; nothing if it is not watched.
    pub fn opinion(&self, peer: ProcessId, now: Time) -> Option<Opinion> {
        let watch = self.peers.get(&peer)?;
        Some(match watch.unlinked {
            Some(_) => Opinion::Unlinked,
            None if self.in_touch(peer, now) => Opinion::Heard,
            None => Opinion::Linked,
        })
    }

    /// How long `peer` has given no sign of life; nothing if it is not watched.
    pub fn silence(&self, peer: ProcessId, now: Time) -> Option<Duration> {
        self.peers.get(&peer).map(|watch| now.since(watch.heard))
    }

    /// The link to `peer` stands again.
    pub fn linked(&mut self, peer: ProcessId, now: Time) {
        if let Some(watch) = self.peers.get_mut(&peer) {
            watch.unlinked = None;
            watch.heard = now;
        }
    }

    /// The link to `peer` broke. Told again while it stays broken, the first instant counts.
    pub fn unlinked(&mut self, peer: ProcessId, now: Time) {
        if let Some(watch) = self.peers.get_mut(&peer) {
            watch.unlinked.get_or_insert(now);
        }
    }

    /// To be called every [`Settings::interval`]; a call that comes much later than that means that we were asleep, and
    /// excuses everyone.
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

    /// Whether `peer` seems to have failed. One that is not watched does not.
    pub fn suspects(&self, peer: ProcessId, now: Time) -> bool {
        self.suspected_from(peer).is_some_and(|from| now >= from)
    }

    /// From when on `peer` will be suspected if nothing more is heard of it.
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
