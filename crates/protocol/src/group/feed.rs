//! The feed: a state on its way from a member that has it to one that joined.
//!
//! The joiner asks for one piece at a time, so that it sets the pace and nobody has to remember how far it is. Meanwhile
//! it holds messages like any member and keeps what it would deliver until the state is here.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use super::{Direct, Event};
use crate::{ecast::Position, id::ProcessId};

/// Both ends of it, at one member.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// The state that is awaited.
    awaited: Option<Awaited>,
    /// Events that come behind the state.
    behind: Vec<Event>,
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
}

impl Feed {
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// A state is awaited from `giver`; what came before it is in it.
    pub(super) fn begin(&mut self, giver: ProcessId, since: Position) {
        self.behind.clear();
        self.awaited = Some(Awaited { giver, since, here: BytesMut::new(), moving: true });
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

    /// What to ask for, of whom and as of which view. `again`: only if nothing came since it was last called.
    pub(super) fn wanted(&mut self, again: bool) -> Option<(ProcessId, Position, Direct)> {
        let awaited = self.awaited.as_mut()?;
        if again && std::mem::take(&mut awaited.moving) {
            return None;
        }
        Some((awaited.giver, awaited.since, Direct::StateWanted { offset: awaited.here.len() as u64 }))
    }

    /// A piece came. The whole state and the events behind it, if it was the last.
    pub(super) fn piece(
        &mut self,
        from: ProcessId,
        view: Position,
        (offset, total): (u64, u64),
        piece: &Bytes,
    ) -> Option<(Bytes, Position, Vec<Event>)> {
        let awaited = self.awaited.as_mut()?;
        if (awaited.giver, awaited.since, awaited.here.len() as u64) != (from, view, offset) {
            return None;
        }
        awaited.here.extend_from_slice(piece);
        awaited.moving = true;
        if (awaited.here.len() as u64) < total {
            return None;
        }
        let done = self.awaited.take()?;
        Some((done.here.freeze(), done.since, std::mem::take(&mut self.behind)))
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
