//! Arriving: a cell that has taken another cell's place copies that place's entries before it answers a read.
//!
//! **Promise.** Once an arrival has ended, its cell holds every write that was acknowledged at a quorum
//! before the cell took the place. No cell still works with an earlier layout, so no such write can be
//! acknowledged later.
//!
//! **How.** The cell asks *every* other cell for the entries of its keys, map by map, and merges them. A cell
//! answers only under the layout that has the new cell in its place, or under a later one. From then on it
//! refuses requests of the earlier layout. A write that was acknowledged under the earlier layout lies at a
//! majority of the former owners. The arriving cell asks all of these owners except the owner that is gone. A
//! majority has more than one member, so the arriving cell finds the write. Writes under the new layout reach
//! the arriving cell directly.
//!
//! Until the arrival ends the cell counts for no level, not even of writes: a majority of the former owners
//! might not know the new layout yet, and still acknowledge writes. Cells that have answered a copy do know
//! it.
//!
//! **Limit.** A cell that is itself arriving has nothing to give. So two arriving cells that replace owners
//! of one key wait for each other for ever, because an acknowledged write may be lost. An operator accepts
//! that loss by [`Change::Complete`](super::Change::Complete). Then both cells serve with the entries that
//! are left.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{
    id::{CellNumber, MapId},
    layout::Layout,
    message::{Demand, Request, Round},
};
use crate::time::{Duration, Time};

/// The state of one cell's arrival.
#[derive(Debug)]
pub(super) struct Arrival {
    sources: BTreeMap<CellNumber, CopySource>,
    /// The next time at which requests are sent.
    look_at: Time,
    /// The time at which the cell last announced that its arrival is over.
    announced_at: Option<Time>,
}

/// Another cell, from which this cell copies entries.
#[derive(Debug)]
struct CopySource {
    /// The maps that are not copied yet, the current map first.
    maps: VecDeque<MapId>,
    /// The key up to which the current map has been copied. `None` before the first key is copied.
    behind: Option<Bytes>,
    /// The round of the request that the cell has not answered yet.
    asked: Option<Round>,
}

/// The pause before the arriving cell asks a cell that refused again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The pause before the end of the arrival is announced again, because the announcement may have been lost.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl Arrival {
    /// Begins the arrival of the cell `me`, in a layout that this cell sees for the first time.
    pub(super) fn new(layout: &Layout, me: CellNumber, now: Time) -> Arrival {
        let mut arrival = Arrival { sources: BTreeMap::new(), look_at: now, announced_at: None };
        arrival.adopt(layout, me);
        arrival
    }

    /// Adopts a changed layout: copies from all other cells of the layout, also from a cell that took a
    /// source's place.
    pub(super) fn adopt(&mut self, layout: &Layout, me: CellNumber) {
        self.sources.retain(|cell, _| layout.cell(*cell).is_some());
        for (cell, _) in layout.cells().filter(|(cell, _)| *cell != me) {
            self.sources.entry(cell).or_insert_with(|| CopySource {
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

    /// Returns how many cells have not sent all their entries yet.
    pub(super) fn left(&self) -> usize {
        self.sources.values().filter(|source| !source.maps.is_empty()).count()
    }

    /// Adds to `out` the requests whose time has come. Returns whether the cell has to announce the end of
    /// its arrival now.
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
        let ends = self.left() == 0 && self.announced_at.is_none_or(|at| now.since(at) >= TELL_EVERY);
        if ends {
            self.announced_at = Some(now);
        }
        ends
    }

    /// If `round` is the open request to `from`, closes the request and returns its map.
    pub(super) fn take(&mut self, from: CellNumber, round: Round) -> Option<MapId> {
        let source = self.sources.get_mut(&from).filter(|source| source.asked == Some(round))?;
        source.asked = None;
        source.maps.front().copied()
    }

    /// Continues after all entries of an answer were merged. `next` is the key behind which the source has
    /// more entries. Adds the next request to `out`.
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
            // If this was the last source, the end of the arrival is announced at the next tick.
            self.look_at = Time::ZERO;
        }
    }

    /// Notes that the request to a cell may be lost, because the cell's link broke or did not exist yet. The
    /// request is sent again.
    pub(super) fn lost(&mut self, cell: CellNumber) {
        if let Some(source) = self.sources.get_mut(&cell) {
            source.asked = None;
        }
    }
}

impl CopySource {
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
