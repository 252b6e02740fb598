//! Links between processes: what is wanted, what stands, what is on its way.
//!
//! A link exists implicitly for any pair of processes of which one wants to reach the other. While it stands it is
//! lossless and FIFO; when it breaks, each end is told at its own time, everything that has not arrived by then is lost,
//! and whoever still wants the link dials again. What crosses a link is bytes, in frames: the messages that one batch of
//! the sender had for this peer. Casts travel beside links, each for itself, and fare as [`CastSettings`] say.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::{Time, journal::Told, wire::FRAME_BYTES_MAX};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::random::Delay;

/// One life of a process: an index into everything that was ever started.
pub(crate) type Life = u32;

/// How the network behaves while nobody breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSettings {
    /// How long a frame travels.
    pub delay: Delay,
    /// The delays of a run are up to so many times as long, by a factor that the seed draws: slow networks have more under
    /// way when something breaks.
    pub slowness_max: f64,
    /// Each direction between two machines is up to so many times slower again, by a factor that the seed draws: some
    /// followers always know less than others.
    pub unevenness_max: f64,
    /// How likely the sending of a frame is to break its link.
    pub break_probability: f64,
    /// A message may have so many bytes: its sender is to see to that.
    pub message_bytes_max: usize,
    /// How likely a frame is to arrive in two parts, cut in the middle of a message.
    pub split_probability: f64,
    /// How casts fare.
    pub casts: CastSettings,
}

/// How casts fare while nobody breaks the network. They take as long as frames, and cuts hold for them, too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CastSettings {
    /// How likely one is to be lost.
    pub loss_probability: f64,
    /// How likely one is to arrive twice.
    pub doubling_probability: f64,
    /// How likely one is to be late, so that others overtake it.
    pub lateness_probability: f64,
    /// How late it is then.
    pub lateness: Delay,
    /// Of so many directions between two machines the seed lets no cast pass.
    pub closed: f64,
    /// Of so many it lets pass none that is cast to an address, and those to the other machine alone as they fare.
    pub deaf: f64,
    /// Of so many it lets none pass that is longer than [`CastSettings::short_bytes`].
    pub narrow: f64,
    /// Casts of at most so many bytes pass everywhere but in closed directions.
    pub short_bytes: usize,
}

impl Default for CastSettings {
    fn default() -> Self {
        CastSettings {
            loss_probability: 0.02,
            doubling_probability: 0.02,
            lateness_probability: 0.05,
            lateness: Delay::Exponential { least_micros: 0.0, mean_micros: 10_000.0 },
            closed: 0.1,
            deaf: 0.15,
            narrow: 0.1,
            short_bytes: 256,
        }
    }
}

impl Default for NetworkSettings {
    fn default() -> Self {
        NetworkSettings {
            delay: Delay::Exponential { least_micros: 20.0, mean_micros: 60.0 },
            slowness_max: 1.0,
            unevenness_max: 1.0,
            break_probability: 0.0,
            message_bytes_max: FRAME_BYTES_MAX,
            split_probability: 0.05,
            casts: CastSettings::default(),
        }
    }
}

/// All links and cuts.
#[derive(Default)]
pub(crate) struct Network {
    links: FxHashMap<(Life, Life), Link>,
    /// Directions between machines that pass nothing before an instant, and whose doing that is.
    cuts: BTreeMap<(usize, usize), (Time, &'static str)>,
    sessions: u64,
}

/// A link between two lives; `ends[0]` belongs to the one with the smaller number.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) state: LinkState,
    pub(crate) session: u64,
    pub(crate) ends: [End; 2],
    /// A dial is under way.
    pub(crate) dialing: bool,
    /// Dials that failed since the link last stood.
    pub(crate) failures: u32,
}

/// Where a link is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum LinkState {
    /// No session.
    #[default]
    Idle,
    /// A session stands.
    Up,
    /// The session is lost, and at least one end does not know yet.
    Broken,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End {
    /// This end asked for the link and did not take it back.
    pub(crate) wanted: bool,
    /// This end knows of the session: between `Linked` and `Unlinked`.
    pub(crate) open: bool,
    /// This end was told that the link is down, and is not told again until it stood.
    pub(crate) told: bool,
    /// The policy of this end does not admit the other any more: it is told nothing of the session.
    pub(crate) shut: bool,
    /// Nothing that this end receives in this session arrives before this instant.
    pub(crate) clear: Time,
}

/// What arrives at a process together.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) messages: Vec<Bytes>,
    /// Of the message behind these, which comes later, some bytes arrive with them.
    pub(crate) cut: bool,
    /// How far the sender's journal goes.
    pub(crate) told: Told,
}

impl Network {
    /// The link between two lives, made if need be.
    pub(crate) fn link(&mut self, one: Life, other: Life) -> &mut Link {
        self.links.entry(key(one, other)).or_default()
    }

    /// The link between two lives, if there ever was one.
    pub(crate) fn existing(&mut self, one: Life, other: Life) -> Option<&mut Link> {
        self.links.get_mut(&key(one, other))
    }

    /// Whether a session between two lives stands.
    pub(crate) fn is_up(&self, one: Life, other: Life) -> bool {
        self.links.get(&key(one, other)).is_some_and(|link| link.state == LinkState::Up)
    }

    /// Forgets a link of the dead.
    pub(crate) fn remove(&mut self, one: Life, other: Life) {
        self.links.remove(&key(one, other));
    }

    /// A session number that never repeats.
    pub(crate) fn session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    /// Lets nothing pass from one machine to another before `until`, on account of `cause`.
    pub(crate) fn cut(&mut self, from: usize, to: usize, until: Time, cause: &'static str) {
        let entry = self.cuts.entry((from, to)).or_insert((until, cause));
        if entry.0 < until {
            *entry = (until, cause);
        }
    }

    /// When the direction passes again, if it is cut at `now`, and whose doing that is.
    pub(crate) fn cut_until(&self, from: usize, to: usize, now: Time) -> Option<(Time, &'static str)> {
        if self.cuts.is_empty() {
            return None;
        }
        self.cuts.get(&(from, to)).copied().filter(|(until, _)| *until > now)
    }

    /// Ends all cuts and tells which directions they held.
    pub(crate) fn heal(&mut self) -> Vec<(usize, usize)> {
        std::mem::take(&mut self.cuts).into_keys().collect()
    }
}

impl Link {
    /// Whether either end wants the link.
    pub(crate) fn wanted(&self) -> bool {
        self.ends[0].wanted || self.ends[1].wanted
    }
}

/// Which end of their link `one` has.
pub(crate) fn end(one: Life, other: Life) -> usize {
    usize::from(one > other)
}

fn key(one: Life, other: Life) -> (Life, Life) {
    (one.min(other), one.max(other))
}
