//! The feed: a state on its way from a member that has it to one that joined.
//!
//! The joiner asks for one piece at a time, so that it sets the pace and nobody has to remember how far it is. It asks for no more
//! in a second than [`Settings::state_bytes_per_second`](super::Settings::state_bytes_per_second): a large state at full speed takes the
//! machines' time from those who go on meanwhile. It holds messages like any member and keeps what it would deliver until the
//! state is here.

mod behind;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use self::behind::Behind;
use super::{Direct, Event};
use crate::{
    ecast::Position,
    id::ProcessId,
    time::{Duration, Time},
};

/// A joiner sets memory aside at once for the whole state, but for no more than this. Memory that nothing is written to costs nothing; growing
/// step by step would copy all of it each time.
const SET_ASIDE_MAX: u64 = 1 << 30;

/// A piece that comes so much later than it was due is made up for, and none that is later still.
const LATE_MAX: Duration = Duration::from_millis(10);

/// Both ends of it, at one member.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// The state that is awaited.
    awaited: Option<Awaited>,
    /// Events that come behind the state.
    behind: Behind,
    /// States that others get from here, by view; none: the host has not handed it over.
    given: BTreeMap<Position, Option<Bytes>>,
}

#[derive(Debug)]
struct Awaited {
    giver: ProcessId,
    since: Position,
    here: BytesMut,
    /// Something came since it was asked for again.
    moving: bool,
    /// By its pace the next piece may be asked for then.
    due: Time,
    /// The next piece has not been asked for.
    paused: bool,
}

/// The reason for asking for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// It is the next.
    Next,
    /// The last one that was asked for may be lost: only if nothing came since this was last the reason.
    Again,
}

/// The next word for a state that is awaited, or its time.
#[derive(Debug)]
pub(super) enum Wanted {
    /// This, to this process, as of this view.
    Now(ProcessId, Position, Direct),
    /// Nothing before this instant.
    At(Time),
}

impl Feed {
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// A state is awaited from `giver`; what came before it is in it.
    pub(super) fn begin(&mut self, giver: ProcessId, since: Position) {
        self.behind.clear();
        let (here, due) = (BytesMut::new(), Time::ZERO);
        self.awaited = Some(Awaited { giver, since, here, moving: true, due, paused: false });
    }

    /// No state is awaited any more: there is none.
    pub(super) fn give_up(&mut self) {
        self.behind.clear();
        self.awaited = None;
    }

    /// An event passes, or is kept back.
    pub(super) fn pass(&mut self, event: Event) -> Option<Event> {
        if self.awaited.is_none() {
            return Some(event);
        }
        self.behind.push(event);
        None
    }

    /// Whether a piece is left to be asked for.
    pub(super) fn is_due(&self) -> bool {
        self.awaited.as_ref().is_some_and(|awaited| awaited.paused)
    }

    /// The next piece to ask for, or the time to do so.
    pub(super) fn wanted(&mut self, ask: Ask, now: Time) -> Option<Wanted> {
        let awaited = self.awaited.as_mut()?;
        if ask == Ask::Again && (std::mem::take(&mut awaited.moving) || awaited.paused) {
            return None;
        }
        awaited.paused = now < awaited.due;
        if awaited.paused {
            return Some(Wanted::At(awaited.due));
        }
        let direct = Direct::StateWanted { offset: awaited.here.len() as u64 };
        Some(Wanted::Now(awaited.giver, awaited.since, direct))
    }

    /// A piece came. The whole state and the events behind it, if it was the last.
    pub(super) fn piece(
        &mut self,
        from: ProcessId,
        view: Position,
        (offset, total): (u64, u64),
        piece: &Bytes,
        (now, bytes_per_second): (Time, u64),
    ) -> Option<(Bytes, Position, Vec<Event>)> {
        let awaited = self.awaited.as_mut()?;
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
        let done = self.awaited.take()?;
        Some((done.here.freeze(), done.since, self.behind.take()))
    }

    /// Others get the state as of `view` from here.
    pub(super) fn promise(&mut self, view: Position) {
        self.given.insert(view, None);
    }

    /// The host hands a state over.
    pub(super) fn give(&mut self, view: Position, state: Bytes) {
        if let Some(given) = self.given.get_mut(&view) {
            *given = Some(state);
        }
    }

    /// States as of other views are wanted by nobody any more.
    pub(super) fn keep(&mut self, wanted: impl Fn(Position) -> bool) {
        self.given.retain(|view, _| wanted(*view));
    }

    /// The answer to who asks for a state.
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

    /// Takes the next hundred bytes, of so many, at this instant; a thousand come in a second.
    fn take(feed: &mut Feed, giver: ProcessId, (offset, total): (u64, u64), now: u64) -> bool {
        let piece = Bytes::from_static(&[7; 100]);
        feed.piece(giver, Position(3), (offset, total), &piece, (Time(now * MS), 1_000)).is_some()
    }

    /// The offset of the piece that is asked for at this instant, or the instant before which nothing is.
    fn asks(feed: &mut Feed, ask: Ask, now: u64) -> Result<u64, Option<u64>> {
        match feed.wanted(ask, Time(now * MS)) {
            Some(Wanted::Now(_, _, Direct::StateWanted { offset })) => Ok(offset),
            Some(Wanted::At(due)) => Err(Some(due.0 / MS)),
            Some(other) => panic!("{other:?}"),
            None => Err(None),
        }
    }

    #[test]
    fn a_state_is_asked_for_at_its_pace() {
        let giver = ProcessId { node: 1, incarnation: Incarnation(1) };
        let mut feed = Feed::default();
        feed.begin(giver, Position(3));
        assert_eq!(asks(&mut feed, Ask::Next, 1_000), Ok(0), "the first piece is due at once");
        assert!(!take(&mut feed, giver, (0, 400), 1_000));
        assert_eq!(asks(&mut feed, Ask::Next, 1_000), Err(Some(1_100)));
        assert!(feed.is_due());
        assert_eq!(asks(&mut feed, Ask::Again, 1_050), Err(None), "nothing that was asked for is missing");
        // A little late, which the next piece makes up for.
        assert_eq!(asks(&mut feed, Ask::Next, 1_101), Ok(100));
        assert!(!feed.is_due());
        assert!(!take(&mut feed, giver, (100, 400), 1_105));
        assert_eq!(asks(&mut feed, Ask::Next, 1_105), Err(Some(1_200)));
        assert_eq!(asks(&mut feed, Ask::Next, 1_200), Ok(200));
        // Much later: what it did not have meanwhile is not asked for at once.
        assert!(!take(&mut feed, giver, (200, 400), 1_900));
        assert_eq!(asks(&mut feed, Ask::Next, 1_900), Err(Some(2_000)));
        assert_eq!(asks(&mut feed, Ask::Next, 2_000), Ok(300));
        assert_eq!(asks(&mut feed, Ask::Again, 2_050), Err(None), "something came since");
        assert_eq!(asks(&mut feed, Ask::Again, 2_100), Ok(300), "it may be lost");
        assert!(take(&mut feed, giver, (300, 400), 2_101), "this is all of it");
    }
}
