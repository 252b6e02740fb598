//! The feed: the transfer of a group's state from a member that has the state to a member that joined.
//!
//! The joiner requests one piece at a time, so it sets the pace and the giver need not remember its progress.
//! The joiner requests at most [`Settings::state_bytes_per_second`](super::Settings::state_bytes_per_second)
//! in a second, because a large state at full speed takes processor time from the other members. The joiner
//! holds messages like any member, and keeps deliveries until the host has applied the state.
//!
//! **Stages** of a joiner.
//! 1. *Awaits*: the state is on its way. Events wait in [`EventBacklog`].
//! 2. *Hands over*: the host has the state, and gets the events step by step. Each step waits until the host
//!    has applied the previous step. So the host holds one step at most, and a state that takes long to
//!    restore delays only the events. Later deliveries wait behind them.
//! 3. *Live*: nothing waits, and events pass. The command to join is done.
//!
//! **Memory.** In the first two stages the events take at most
//! [`Settings::behind_bytes_max`](super::Settings::behind_bytes_max), plus the events of one turn. A joiner
//! that exceeds this does not keep up with the group, and gives up. The state itself is the group's data.

mod backlog;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use self::backlog::EventBacklog;
use super::{Backlog, Direct, Event};
use crate::{
    ecast::Position,
    id::ProcessId,
    time::{Duration, Time},
};

/// Upper bound of the memory that a joiner reserves for the state in advance, in bytes. Untouched memory
/// costs nothing, whereas a buffer that grows step by step is copied each time.
const SET_ASIDE_MAX: u64 = 1 << 30;

/// Longest delay of a piece that the transfer makes up for by sending the next request earlier. After a
/// longer delay the transfer is slower.
const LATE_MAX: Duration = Duration::from_millis(10);

/// The transfer of a state at one member: the side that gives the state, and the side that receives it.
#[derive(Debug, Default)]
pub(super) struct Feed {
    stage: FeedStage,
    /// Events that follow the state.
    behind: EventBacklog,
    /// Time of the first request for the state.
    since: Time,
    /// The states that this member gives to other members, by view; `None` until the host has provided the
    /// state.
    given: BTreeMap<Position, Option<Bytes>>,
}

#[derive(Debug, Default)]
enum FeedStage {
    /// Nothing waits: events pass straight to the host.
    #[default]
    Live,
    /// The state is on its way.
    Awaits(AwaitedState),
    /// The host has the state, but has not yet confirmed the events that it got last.
    HandsOver,
}

#[derive(Debug)]
struct AwaitedState {
    giver: ProcessId,
    since: Position,
    here: BytesMut,
    /// Whether a piece has arrived since the request was last repeated.
    moving: bool,
    /// Time from which the bound on the transfer's speed allows the next request.
    due: Time,
    /// Whether the next piece is not yet requested, because the bound on the transfer's speed does not allow
    /// it yet.
    paused: bool,
}

/// The reason for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestReason {
    /// The next piece is needed.
    Next,
    /// The last request or its answer may be lost. The request is repeated only if no piece came since the
    /// last repetition.
    Again,
}

/// The next request for an awaited state, or the time at which it is due.
#[derive(Debug)]
pub(super) enum Wanted {
    /// A request, to this process, for the state as of this view.
    Now(ProcessId, Position, Direct),
    /// The next request must wait until this instant.
    At(Time),
}

impl Feed {
    /// Whether this process awaits a state that is on its way.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.stage, FeedStage::Awaits(_))
    }

    /// Whether the host has the state and everything after it, so that events pass straight to it.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.stage, FeedStage::Live)
    }

    /// Returns the memory of the waiting events, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.behind.bytes()
    }

    /// Begins to await a state from `giver`. The state includes all events before view `since`.
    pub(super) fn begin(&mut self, giver: ProcessId, since: Position, now: Time) {
        self.behind.clear();
        let (here, due) = (BytesMut::new(), Time::ZERO);
        self.stage = FeedStage::Awaits(AwaitedState { giver, since, here, moving: true, due, paused: false });
        self.since = now;
    }

    /// Ends the wait for a state, because no member has one.
    pub(super) fn give_up(&mut self) {
        self.behind.clear();
        self.stage = FeedStage::Live;
    }

    /// Returns an event that may pass to the host, or keeps it behind the state.
    pub(super) fn pass(&mut self, event: Event) -> Option<Event> {
        if self.is_live() {
            return Some(event);
        }
        self.behind.push(event);
        None
    }

    /// Notes that the host has applied all its events. Returns the next events, up to `bytes_max` bytes of
    /// memory. If no events wait, later events pass straight to the host from now on. Returns `None` if no
    /// confirmation was due.
    pub(super) fn hand_over(&mut self, bytes_max: usize) -> Option<Vec<Event>> {
        if !matches!(self.stage, FeedStage::HandsOver) {
            return None;
        }
        let events = self.behind.take(bytes_max);
        if events.is_empty() {
            self.stage = FeedStage::Live;
        }
        Some(events)
    }

    /// Returns the backlog of waiting events, if their memory exceeds this limit.
    pub(super) fn overrun(&self, bytes_max: usize, now: Time) -> Option<Backlog> {
        let backlog =
            || Backlog { came: self.behind.came(), during: now.since(self.since), limit: bytes_max };
        (self.behind.bytes() > bytes_max).then(backlog)
    }

    /// Whether the next piece is not yet requested, so that [`Feed::wanted`] has to be called again.
    pub(super) fn is_due(&self) -> bool {
        matches!(&self.stage, FeedStage::Awaits(awaited) if awaited.paused)
    }

    /// Returns the next request, or the time at which it is due.
    pub(super) fn wanted(&mut self, ask: RequestReason, now: Time) -> Option<Wanted> {
        let FeedStage::Awaits(awaited) = &mut self.stage else { return None };
        if ask == RequestReason::Again && (std::mem::take(&mut awaited.moving) || awaited.paused) {
            return None;
        }
        awaited.paused = now < awaited.due;
        if awaited.paused {
            return Some(Wanted::At(awaited.due));
        }
        let direct = Direct::StateWanted { offset: awaited.here.len() as u64 };
        Some(Wanted::Now(awaited.giver, awaited.since, direct))
    }

    /// Stores a piece of the state. Returns the whole state if this was the last piece.
    pub(super) fn piece(
        &mut self,
        from: ProcessId,
        view: Position,
        (offset, total): (u64, u64),
        piece: &Bytes,
        (now, bytes_per_second): (Time, u64),
    ) -> Option<(Bytes, Position)> {
        let FeedStage::Awaits(awaited) = &mut self.stage else { return None };
        if (awaited.giver, awaited.since, awaited.here.len() as u64) != (from, view, offset) {
            return None;
        }
        if offset == 0 {
            awaited.here.reserve(total.min(SET_ASIDE_MAX) as usize);
        }
        awaited.here.extend_from_slice(piece);
        awaited.moving = true;
        let nanos = u128::from(piece.len() as u64) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
        let due = if awaited.due + LATE_MAX < now { now } else { awaited.due };
        awaited.due = due + Duration::from_nanos(nanos as u64);
        if (awaited.here.len() as u64) < total {
            return None;
        }
        let (state, since) = (std::mem::take(&mut awaited.here).freeze(), awaited.since);
        self.stage = FeedStage::HandsOver;
        Some((state, since))
    }

    /// Notes that this member has to give other members the state of `view`.
    pub(super) fn promise(&mut self, view: Position) {
        self.given.insert(view, None);
    }

    /// Stores a state that the host provides.
    pub(super) fn give(&mut self, view: Position, state: Bytes) {
        if let Some(given) = self.given.get_mut(&view) {
            *given = Some(state);
        }
    }

    /// Drops the states of the views for which `wanted` returns `false`, because no member still needs them.
    pub(super) fn keep(&mut self, wanted: impl Fn(Position) -> bool) {
        self.given.retain(|view, _| wanted(*view));
    }

    /// Returns the answer to a request for a state.
    pub(super) fn answer(&self, view: Position, offset: u64, piece_bytes: usize) -> Option<Direct> {
        let state = self.given.get(&view)?.as_ref()?;
        let start = usize::try_from(offset).ok().filter(|start| *start <= state.len())?;
        let end = state.len().min(start.saturating_add(piece_bytes));
        Some(Direct::State { offset, total: state.len() as u64, piece: state.slice(start..end) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Incarnation;

    const MS: u64 = 1_000_000;

    /// Feeds the next hundred bytes of a state of this length, at this instant. The pace is a thousand bytes
    /// a second.
    fn take(feed: &mut Feed, giver: ProcessId, (offset, total): (u64, u64), now: u64) -> bool {
        let piece = Bytes::from_static(&[7; 100]);
        feed.piece(giver, Position(3), (offset, total), &piece, (Time(now * MS), 1_000)).is_some()
    }

    /// Returns the offset of the piece to request now, or else the earliest time of the next request.
    fn asks(feed: &mut Feed, ask: RequestReason, now: u64) -> Result<u64, Option<u64>> {
        match feed.wanted(ask, Time(now * MS)) {
            Some(Wanted::Now(_, _, Direct::StateWanted { offset })) => Ok(offset),
            Some(Wanted::At(due)) => Err(Some(due.0 / MS)),
            Some(other) => panic!("{other:?}"),
            None => Err(None),
        }
    }

    #[test]
    fn a_state_is_requested_at_its_rate() {
        let giver = ProcessId { node: 1, incarnation: Incarnation(1) };
        let mut feed = Feed::default();
        feed.begin(giver, Position(3), Time::ZERO);
        assert_eq!(asks(&mut feed, RequestReason::Next, 1_000), Ok(0), "the first piece is due at once");
        assert!(!take(&mut feed, giver, (0, 400), 1_000));
        assert_eq!(asks(&mut feed, RequestReason::Next, 1_000), Err(Some(1_100)));
        assert!(feed.is_due());
        assert_eq!(
            asks(&mut feed, RequestReason::Again, 1_050),
            Err(None),
            "nothing that was asked for is missing"
        );
        // If a piece is a little late, the next request makes up for the delay.
        assert_eq!(asks(&mut feed, RequestReason::Next, 1_101), Ok(100));
        assert!(!feed.is_due());
        assert!(!take(&mut feed, giver, (100, 400), 1_105));
        assert_eq!(asks(&mut feed, RequestReason::Next, 1_105), Err(Some(1_200)));
        assert_eq!(asks(&mut feed, RequestReason::Next, 1_200), Ok(200));
        // If a piece is much later, no request makes up for the delay.
        assert!(!take(&mut feed, giver, (200, 400), 1_900));
        assert_eq!(asks(&mut feed, RequestReason::Next, 1_900), Err(Some(2_000)));
        assert_eq!(asks(&mut feed, RequestReason::Next, 2_000), Ok(300));
        assert_eq!(asks(&mut feed, RequestReason::Again, 2_050), Err(None), "something came since");
        assert_eq!(asks(&mut feed, RequestReason::Again, 2_100), Ok(300), "it may be lost");
        assert!(take(&mut feed, giver, (300, 400), 2_101), "this is all of it");
    }
}
