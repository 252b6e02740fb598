//! Links between processes: the links that processes want, the links that stand, and the frames under way.
//!
//! Two processes have a link if one of them wants to reach the other. While the link stands, it is lossless
//! and FIFO. When the link breaks, each end learns of this at a time of its own, and loses everything that
//! has not arrived by then. An end that still wants the link dials again. Links carry bytes in frames: a
//! frame holds the messages of one batch for one peer. Each cast travels alone, by the rules of
//! [`CastSettings`].

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::{Time, journal::DurabilityReport, wire::FRAME_BYTES_MAX};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::random::Delay;

/// The number of a life: an index into all lives of processes in the world so far.
pub(crate) type LifeNumber = u32;

/// The behaviour of the network without faults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSettings {
    /// Time for which a frame travels.
    pub delay: Delay,
    /// Upper bound of a factor that the seed draws for the run. The factor scales all delays. A slow network
    /// has more messages under way when a fault strikes.
    pub slowness_max: f64,
    /// Upper bound of a second factor of delays, drawn for each direction between two machines. Because of
    /// it, some followers always know less than others.
    pub unevenness_max: f64,
    /// Probability that sending a frame breaks its link.
    pub break_probability: f64,
    /// Length of the longest permitted message, in bytes. A longer message is a violation by its sender.
    pub message_bytes_max: usize,
    /// Probability that a frame arrives in two parts.
    pub split_probability: f64,
    /// The behaviour of casts.
    pub casts: CastSettings,
}

/// The behaviour of casts without faults. Casts take as long as frames, and cuts also stop them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CastSettings {
    /// Probability that a cast is lost.
    pub loss_probability: f64,
    /// Probability that a cast arrives twice.
    pub doubling_probability: f64,
    /// Probability that a cast is delayed, so that other casts overtake it.
    pub lateness_probability: f64,
    /// Additional delay of a late cast.
    pub lateness: Delay,
    /// Share of the directions between two machines in which no cast arrives. The seed draws these
    /// directions.
    pub closed: f64,
    /// Share of the directions in which no multicast arrives. Casts to one process do arrive there.
    pub deaf: f64,
    /// Share of the directions in which no cast longer than [`CastSettings::short_bytes`] arrives.
    pub narrow: f64,
    /// Length, in bytes, up to which casts arrive in every direction that is not closed.
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
    links: FxHashMap<(LifeNumber, LifeNumber), Link>,
    /// Directions between machines that are cut, each with the end of the cut and its cause.
    cuts: BTreeMap<(usize, usize), (Time, &'static str)>,
    sessions: u64,
}

/// A link between two lives; `ends[0]` belongs to the life with the smaller number.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) state: LinkState,
    pub(crate) session: u64,
    pub(crate) ends: [End; 2],
    /// Whether a dial is under way.
    pub(crate) dialing: bool,
    /// Number of failed dials since the link last stood.
    pub(crate) failures: u32,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum LinkState {
    /// There is no session.
    #[default]
    Idle,
    /// A session stands.
    Up,
    /// The session is lost, and at least one end does not know this yet.
    Broken,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End {
    /// Whether this end wants the link.
    pub(crate) wanted: bool,
    /// Whether this end has received `Linked` for the session, and not yet `Unlinked`.
    pub(crate) open: bool,
    /// Whether this end has been notified that the link is down. It gets no further notice until the link has
    /// stood again.
    pub(crate) is_notified: bool,
    /// Whether this end's policy no longer admits the other end. This end then gets nothing more from the
    /// session.
    pub(crate) shut: bool,
    /// The earliest arrival of the next frame at this end, so that frames stay in order.
    pub(crate) clear: Time,
}

/// Messages that arrive at a process together.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) messages: Vec<Bytes>,
    /// Whether a part of a further message arrives with these messages.
    pub(crate) cut: bool,
    /// The sender's report about its own journal.
    pub(crate) durability: DurabilityReport,
}

impl Network {
    /// Returns the link between two lives, and creates it if needed.
    pub(crate) fn link(&mut self, one: LifeNumber, other: LifeNumber) -> &mut Link {
        self.links.entry(key(one, other)).or_default()
    }

    /// Returns the link between two lives, if there ever was one.
    pub(crate) fn existing(&mut self, one: LifeNumber, other: LifeNumber) -> Option<&mut Link> {
        self.links.get_mut(&key(one, other))
    }

    /// Whether a session stands between two lives.
    pub(crate) fn is_up(&self, one: LifeNumber, other: LifeNumber) -> bool {
        self.links.get(&key(one, other)).is_some_and(|link| link.state == LinkState::Up)
    }

    /// Removes a link of a dead process.
    pub(crate) fn remove(&mut self, one: LifeNumber, other: LifeNumber) {
        self.links.remove(&key(one, other));
    }

    /// Returns a session number that never repeats.
    pub(crate) fn session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    /// Stops all messages from one machine to another until `until`. The effects are counted under `cause`.
    pub(crate) fn cut(&mut self, from: usize, to: usize, until: Time, cause: &'static str) {
        let entry = self.cuts.entry((from, to)).or_insert((until, cause));
        if entry.0 < until {
            *entry = (until, cause);
        }
    }

    /// Returns the end and the cause of the cut, if this direction is cut at `now`.
    pub(crate) fn cut_until(&self, from: usize, to: usize, now: Time) -> Option<(Time, &'static str)> {
        if self.cuts.is_empty() {
            return None;
        }
        self.cuts.get(&(from, to)).copied().filter(|(until, _)| *until > now)
    }

    /// Ends all cuts. Returns the directions that were cut.
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

/// Returns the index of `one`'s end of the link.
pub(crate) fn end(one: LifeNumber, other: LifeNumber) -> usize {
    usize::from(one > other)
}

fn key(one: LifeNumber, other: LifeNumber) -> (LifeNumber, LifeNumber) {
    (one.min(other), one.max(other))
}
