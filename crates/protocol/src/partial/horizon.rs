//! The horizon: the time up to which a cell has every write, so that it can forget deletions.
//!
//! **Promise.** Take a cell at [`Horizon`] h, and any write to one of its keys that h covers and that any
//! cell ever takes. The cell has taken this write, or a newer one in its place. So it may ignore all copies
//! of such writes that arrive later. A deletion is forgotten once the horizons of *all* cells cover it: then
//! no cell holds an older write of the key, and none takes one. Forgetting waits for no fixed time. As long
//! as one cell is away, no later deletion is forgotten.
//!
//! **How.** Each cell sends all other cells its [`HorizonReport`], on the links on which it sends its writes:
//!
//! - *through*: the cell will send no write of its own at or below this time, except to cells that already
//!   have that write. So the cell has neither an operation nor a hint at or below this time, and its clock is
//!   above this time.
//! - *barrier*: the lowest *through* of all cells that this cell has received, in reports of its present
//!   layout. Links keep the order of messages. So whatever the other cells wrote at or below the barrier has
//!   arrived here, or never will.
//! - *horizon*: the cell's own horizon.
//!
//! Let h be the lowest barrier of all cells. No write at or below h is on its way any longer: copies of such
//! writes move from replica to replica only. If a cell from then on compares its keys with each other owner,
//! and takes what it lacks, it has everything up to h ([`repair`](super::repair)). All reports and all
//! comparisons must have the same version of the layout. A cell refuses the requests of an earlier version,
//! so it also refuses the writes that a dead cell had on their way.
//!
//! **A new life of a cell** has received no report, and its clock may be behind the horizon of other cells.
//! So a horizon covers no write of a cell that joined the layout after the horizon was reached. Such a cell
//! has a higher number than the horizon's. In return, a replica reports its horizon as if it were a stamp of
//! the key, so a write at a quorum gets a stamp above the horizon. Stamps of older cells are above the
//! horizon anyway.
//!
//! **Attacks considered.**
//!
//! - *A hint of an old write, after a delete that was forgotten.* The coordinator's *through* is below the
//!   write as long as the coordinator keeps the hint, so no cell's horizon covers the delete.
//! - *A hint that was given up.* The write stays where it is. A comparison brings it to the other owners, or
//!   finds that they have a newer write.
//! - *A copy in a read's repair, sent before the delete and taken after it was forgotten.* The horizon covers
//!   the copy, so the replica ignores it.
//! - *A delete that one replica has and another replica lacks.* The horizon of the second replica covers the
//!   delete only once this replica has it.
//! - *A coordinator that died half way.* Its report is missing until another life has taken its place. From
//!   then on the cells have a later layout.
//! - *A copy of a write by a dead cell.* A coordinator that read the copy may send it to other owners when
//!   the layout changes. The coordinator's report of the new layout comes behind that copy, and a barrier
//!   counts no report of an earlier layout.
//! - *A cell that stands still for hours, and goes on.* Its horizon did not move, so the other cells still
//!   have every later deletion. Until comparing has brought the cell the missing writes, it answers like any
//!   replica that missed writes.
//! - *A new write that comes after its key's deletion was forgotten.* Its stamp is above the horizon, because
//!   the clock of a cell is above its *through*. Only a later life of a cell may give a write a stamp below
//!   the horizon. But no horizon covers that life, so the write is not ignored.
//! - *The cell with the highest number leaves.* The other cells refuse the writes that it had under way, so
//!   horizons may still cover its number.
//! - *A place that is given away during a round.* The round ends, and its comparisons count for nothing.
//!   Until the cell that took the place has copied everything and completed a round of its own, its horizon
//!   is zero, and nothing is forgotten.
//! - *A value that expires by a clock that is ahead.* Cells forget it once the common horizon reaches the
//!   time at which it expires: then every cell's clock has reached that time.
//! - *A clock that is behind.* The cell's *through* is behind by the same time, and so are all horizons.
//!   There is no other effect.
//! - *A clock that jumps ahead.* The cell's *through* is ahead, but barriers are the lowest of all. When its
//!   clock is set right, the cell issues nothing below its *through*. If the clock had jumped further than is
//!   allowed, the cell's writes are refused until the clocks are near each other again, as after a write with
//!   such a stamp.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    id::{CellNumber, LayoutVersion},
    layout::Layout,
    stamp::Stamp,
};

/// A set of writes. A horizon covers the writes with stamps up to `time`, by lives of cells with numbers up
/// to `cell`. A cell that has reached a horizon has all writes that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Horizon {
    /// The greatest time of the stamps of covered writes, in nanoseconds.
    pub time: u64,
    /// The last life of a cell whose writes are covered.
    pub cell: CellNumber,
}

impl Horizon {
    /// Whether the horizon covers a write with this stamp.
    pub fn covers(self, stamp: Stamp) -> bool {
        stamp.time <= self.time && stamp.cell <= self.cell
    }

    /// Returns a stamp that is not below any stamp that the horizon covers.
    pub(super) fn stamp(self) -> Stamp {
        Stamp { time: self.time, cell: self.cell }
    }

    fn includes(self, other: Horizon) -> bool {
        self.covers(other.stamp())
    }
}

/// A cell's progress, as the cell reports it to the other cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HorizonReport {
    /// The version of the cell's layout.
    pub layout: LayoutVersion,
    /// The time at or below which the cell sends no write of its own, except to cells that already have the
    /// write, in nanoseconds.
    pub through: u64,
    /// The lowest *through* of all cells of the layout, as far as this cell knows, its own included. Zero
    /// until all cells have sent a *through* in this layout.
    pub barrier: u64,
    /// The cell's horizon.
    pub horizon: Horizon,
}

/// The progress of all cells, as one cell knows it.
#[derive(Debug, Default)]
pub(super) struct Horizons {
    through: u64,
    own: Horizon,
    /// The last report of each other cell.
    words: BTreeMap<CellNumber, HorizonReport>,
    past: u64,
}

impl Horizons {
    /// Returns the horizons that a cell knows when it comes back with its own horizon.
    pub(super) fn resumed(own: Horizon) -> Horizons {
        Horizons { own, ..Horizons::default() }
    }

    /// Returns the cell's own horizon.
    pub(super) fn own(&self) -> Horizon {
        self.own
    }

    /// Returns the time up to which this cell has announced that its writes have ended.
    pub(super) fn through(&self) -> u64 {
        self.through
    }

    /// Returns the time up to which every owner has all writes. That means: each write, by a cell of the
    /// layout, that any owner will ever have, is at every owner, or a newer write in its place. The last call
    /// of [`look`](Horizons::look) computed the time.
    pub(super) fn past(&self) -> u64 {
        self.past
    }

    /// Updates [`past`](Horizons::past), and returns the horizon that all cells have reached.
    pub(super) fn look(&mut self, layout: &Layout, me: CellNumber) -> Horizon {
        let common = self.common(layout, me);
        let covers_all = layout.cells().all(|(cell, _)| cell <= common.cell);
        self.past = if covers_all { common.time } else { 0 };
        common
    }

    /// Adopts a changed layout: the reports of cells that are gone no longer count.
    pub(super) fn adopt(&mut self, layout: &Layout) {
        // The changed layout may have a new life of a cell, and the clock of this cell may be behind.
        self.past = 0;
        self.words.retain(|cell, _| layout.cell(*cell).is_some());
    }

    /// Records another cell's report.
    pub(super) fn hear(&mut self, from: CellNumber, word: HorizonReport) {
        self.words.insert(from, word);
    }

    /// Raises *through* as far as possible. `wall` is this cell's clock, and `oldest` is the time of its
    /// oldest write that some owner may lack. Returns the time that the cell's next stamps must exceed.
    pub(super) fn settle(&mut self, wall: u64, oldest: Option<u64>) -> u64 {
        assert!(
            oldest.is_none_or(|oldest| oldest > self.through),
            "no write is on its way below the horizon, but there is a write of {oldest:?}, and the horizon \
             is {}",
            self.through
        );
        let through = oldest.map_or(wall, |oldest| wall.min(oldest - 1));
        self.through = self.through.max(through);
        self.through
    }

    /// Returns the report for the other cells.
    pub(super) fn word(&self, layout: &Layout, me: CellNumber) -> HorizonReport {
        let others = layout.cells().map(|(cell, _)| cell).filter(|cell| *cell != me);
        let through = |cell| {
            let word = self.words.get(&cell).filter(|word| word.layout == layout.version());
            word.map_or(0, |word| word.through)
        };
        let barrier = others.map(through).fold(self.through, u64::min);
        HorizonReport { layout: layout.version(), through: self.through, barrier, horizon: self.own }
    }

    /// Returns the horizon that this cell reaches if it compares its keys with all other cells from now on.
    /// Returns `None` if this cell has that horizon already, or if some cell's report is missing.
    pub(super) fn target(&self, layout: &Layout, me: CellNumber) -> Option<Horizon> {
        // Lives of cells with higher numbers than those in the layout are gone for good, and cells refuse the
        // writes that these lives had under way. So these lives stay covered.
        let mut target = Horizon { time: self.word(layout, me).barrier, cell: me.max(self.own.cell) };
        for (cell, _) in layout.cells().filter(|(cell, _)| *cell != me) {
            let word = self.words.get(&cell).filter(|word| word.layout == layout.version())?;
            target.time = target.time.min(word.barrier);
            target.cell = target.cell.max(cell);
        }
        (target != self.own && target.includes(self.own)).then_some(target)
    }

    /// Records that this cell has compared its keys with all other cells and so reached `target`.
    pub(super) fn reach(&mut self, target: Horizon) {
        assert!(
            target.includes(self.own),
            "a cell's horizon only grows, but {target:?} does not include {:?}",
            self.own
        );
        self.own = target;
    }

    /// Returns the horizon that all cells have reached.
    pub(super) fn common(&self, layout: &Layout, me: CellNumber) -> Horizon {
        let others = layout.cells().map(|(cell, _)| cell).filter(|cell| *cell != me);
        let horizon =
            |cell| self.words.get(&cell).map_or(Horizon::default(), |word: &HorizonReport| word.horizon);
        others.map(horizon).fold(self.own, |common, other| Horizon {
            time: common.time.min(other.time),
            cell: common.cell.min(other.cell),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::layout::tests::layout, *};

    const ME: CellNumber = CellNumber(1);

    fn word(layout: &Layout, through: u64, barrier: u64, horizon: u64) -> HorizonReport {
        let horizon = Horizon { time: horizon, cell: CellNumber(3) };
        HorizonReport { layout: layout.version(), through, barrier, horizon }
    }

    #[test]
    fn the_slowest_cell_decides() {
        let layout = layout(&[(0, 1), (0, 1), (0, 1)]);
        let mut horizons = Horizons::default();
        assert_eq!(horizons.settle(100, Some(90)), 89);
        assert_eq!(horizons.settle(50, None), 89, "a clock that goes back takes nothing back");
        horizons.hear(CellNumber(2), word(&layout, 70, 60, 30));
        assert_eq!(horizons.target(&layout, ME), None, "cell 3 has said nothing");
        assert_eq!(horizons.word(&layout, ME).barrier, 0);
        horizons.hear(CellNumber(3), word(&layout, 80, 65, 40));
        assert_eq!(horizons.word(&layout, ME).barrier, 70);
        let target = horizons.target(&layout, ME).unwrap();
        assert_eq!(target, Horizon { time: 60, cell: CellNumber(3) });
        assert_eq!(horizons.common(&layout, ME), Horizon::default());
        horizons.reach(target);
        assert_eq!(horizons.target(&layout, ME), None, "reached already");
        assert_eq!((horizons.look(&layout, ME).time, horizons.past()), (30, 30));
        horizons.adopt(&layout);
        assert_eq!(horizons.past(), 0);
    }

    #[test]
    fn reports_of_another_layout_give_no_target() {
        let layout = layout(&[(0, 1), (0, 1)]);
        let mut horizons = Horizons::default();
        horizons.settle(100, None);
        horizons.hear(CellNumber(2), HorizonReport { layout: LayoutVersion(1), ..word(&layout, 70, 60, 0) });
        assert_eq!(horizons.target(&layout, ME), None);
        // The report is of an earlier layout. Its sender may have sent a write after the report, when the
        // layout changed.
        assert_eq!(horizons.word(&layout, ME).barrier, 0);
        horizons.hear(CellNumber(2), word(&layout, 70, 60, 0));
        assert_eq!(horizons.word(&layout, ME).barrier, 70);
        assert!(horizons.target(&layout, ME).is_some());
    }

    #[test]
    fn the_latest_life_may_leave() {
        let layout = layout(&[(0, 1), (0, 1)]);
        let mut horizons = Horizons::default();
        horizons.reach(Horizon { time: 10, cell: CellNumber(3) });
        horizons.settle(100, None);
        horizons.hear(CellNumber(2), word(&layout, 70, 60, 0));
        let target = Horizon { time: 60, cell: CellNumber(3) };
        assert_eq!(horizons.target(&layout, ME), Some(target));
    }

    /// `past` is zero while some horizon does not cover the latest life of a cell, because writes of that
    /// life may be under way, whatever their stamps are.
    #[test]
    fn the_past_covers_the_latest_lives_of_all_cells() {
        let layout = layout(&[(0, 1), (0, 1), (0, 1)]);
        let mut horizons = Horizons::default();
        horizons.reach(Horizon { time: 10, cell: CellNumber(2) });
        horizons.hear(CellNumber(2), word(&layout, 70, 60, 10));
        horizons.hear(CellNumber(3), word(&layout, 70, 60, 10));
        assert_eq!((horizons.look(&layout, ME).time, horizons.past()), (10, 0));
        horizons.reach(Horizon { time: 10, cell: CellNumber(3) });
        horizons.look(&layout, ME);
        assert_eq!(horizons.past(), 10);
    }

    #[test]
    fn a_later_life_is_not_covered() {
        let horizon = Horizon { time: 10, cell: CellNumber(3) };
        let stamp = |time, cell| Stamp { time, cell: CellNumber(cell) };
        assert!(horizon.covers(stamp(10, 3)) && horizon.covers(stamp(10, 1)));
        assert!(!horizon.covers(stamp(11, 1)) && !horizon.covers(stamp(5, 4)));
    }
}
