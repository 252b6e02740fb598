//! Arriving: a cell that has taken another's place copies what it should have, before it answers a read.
//!
//! **Promise.** Once an arrival has ended, its cell holds every write that was acknowledged at a quorum before it took the place, and
//! no cell works with an earlier layout any more that could acknowledge further ones.
//!
//! **How.** The cell asks *every* other cell for the entries of its keys, map by map, and merges them. A cell answers only under
//! the layout that has the new cell in its place, or a later one; from then on it refuses requests of the earlier one. So a
//! write that was acknowledged under the earlier layout lies at a majority of the former owners; of these all but the one that is gone
//! are asked, and a majority has more than one. What is written under the new layout comes to the arriving cell by itself.
//!
//! Until the end the cell counts for no level, of writes neither: a majority of the former owners might not know the new layout yet,
//! and work on. Cells that have answered a copy do know it.
//!
//! **What it does not do.** A cell that is itself arriving has nothing to give, so two that replace owners of one key wait for each
//! other for ever: what was acknowledged may be lost. An operator says so, and then they serve with
//! what is left ([`Change::Complete`](super::Change::Complete)).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{
    layout::{CellNumber, Layout, MapId},
    message::{Demand, Request, Round},
};
use crate::time::{Duration, Time};

/// The way to go for one cell.
#[derive(Debug)]
pub(super) struct Arrival {
    sources: BTreeMap<CellNumber, Source>,
    /// The next look at what is to be asked.
    look_at: Time,
    /// When it was told last that it is over.
    told_at: Option<Time>,
}

/// A cell that is asked for what it has.
#[derive(Debug)]
struct Source {
    /// The maps that are left, the present one first.
    maps: VecDeque<MapId>,
    /// The key behind which the next entries are.
    behind: Option<Bytes>,
    /// The request that has no answer yet.
    asked: Option<Round>,
}

/// The pause before one that refused is asked again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The pause before it is told again that it is over: the word may have been lost.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl Arrival {
    /// The arrival of the cell `me` in a layout that it sees for the first time.
    pub(super) fn new(layout: &Layout, me: CellNumber, now: Time) -> Arrival {
        let mut arrival = Arrival { sources: BTreeMap::new(), look_at: now, told_at: None };
        arrival.adopt(layout, me);
        arrival
    }

    /// The layout has changed: who took a place of another one is asked instead.
    pub(super) fn adopt(&mut self, layout: &Layout, me: CellNumber) {
        self.sources.retain(|cell, _| layout.cell(*cell).is_some());
        for (cell, _) in layout.cells().filter(|(cell, _)| *cell != me) {
            self.sources.entry(cell).or_insert_with(|| Source {
                maps: layout.maps().map(|(map, _)| map).collect(),
                behind: None,
                asked: None,
            });
        }
        for source in self.sources.values_mut() {
            if source.maps.front().is_some_and(|map| layout.map(*map).is_none()) {
                (source.behind, source.asked) = (None, None);
            }
            source.maps.retain(|map| layout.map(*map).is_some());
        }
    }

    pub(super) fn deadline(&self) -> Time {
        self.look_at
    }

    /// How many cells have not given everything yet.
    pub(super) fn left(&self) -> usize {
        self.sources.values().filter(|source| !source.maps.is_empty()).count()
    }

    /// The requests that are due. Says whether the end is to be told.
    pub(super) fn tick(
        &mut self,
        now: Time,
        layout: &Layout,
        mut round: impl FnMut() -> Round,
        out: &mut Vec<(CellNumber, Request)>,
    ) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        for (cell, source) in &mut self.sources {
            source.ask(*cell, layout, &mut round, out);
        }
        let ends = self.left() == 0 && self.told_at.is_none_or(|at| now.since(at) >= TELL_EVERY);
        if ends {
            self.told_at = Some(now);
        }
        ends
    }

    /// Whether this is the answer that is waited for. Then there is none any more.
    pub(super) fn take(&mut self, from: CellNumber, round: Round) -> Option<MapId> {
        let source = self.sources.get_mut(&from).filter(|source| source.asked == Some(round))?;
        source.asked = None;
        source.maps.front().copied()
    }

    /// Everything of an answer was taken. Returns what is asked next.
    pub(super) fn proceed(
        &mut self,
        from: CellNumber,
        next: Option<Bytes>,
        layout: &Layout,
        mut round: impl FnMut() -> Round,
        out: &mut Vec<(CellNumber, Request)>,
    ) {
        let Some(source) = self.sources.get_mut(&from) else { return };
        if next.is_none() {
            source.maps.pop_front();
        }
        source.behind = next;
        source.ask(from, layout, &mut round, out);
        if source.maps.is_empty() {
            // Perhaps that was the last.
            self.look_at = Time::ZERO;
        }
    }

    /// A question to a cell may be lost: its link broke, or there was none yet.
    pub(super) fn lost(&mut self, cell: CellNumber) {
        if let Some(source) = self.sources.get_mut(&cell) {
            source.asked = None;
        }
    }
}

impl Source {
    fn ask(
        &mut self,
        cell: CellNumber,
        layout: &Layout,
        round: &mut impl FnMut() -> Round,
        out: &mut Vec<(CellNumber, Request)>,
    ) {
        let Some(map) = self.maps.front().copied().filter(|_| self.asked.is_none()) else { return };
        let round = round();
        self.asked = Some(round);
        let demand = Demand::Copy { first: self.behind.is_none() };
        let key = self.behind.clone().unwrap_or_default();
        out.push((cell, Request { round, layout: layout.version(), map, key, demand }));
    }
}
