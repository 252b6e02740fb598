//! The horizon: up to where a cell has every write that there is, so that it can forget what was deleted.
//!
//! **Promise.** A cell at [`Horizon`] h has taken, of the keys that it owns, every write that h covers and that any cell ever
//! takes; or a newer one in its place. So it may pass over all copies of such writes that arrive later. What was deleted is
//! forgotten once the horizons of *all* cells cover the deletion: then no cell holds an older write of the key, and none takes one.
//! No time is waited for. As long as one cell is away, nothing that was deleted meanwhile is forgotten.
//!
//! **How.** Each cell tells all others its [`Word`], on the links on which it sends its writes:
//!
//! - *through*: the cell will send no write of its own at or below this time, except to those that have it. So it keeps neither an
//!   operation nor a hint below it, and its clock is above it.
//! - *barrier*: the lowest *through* that this cell has heard, of all cells, in words of the layout that it has. Links keep their
//!   order, so whatever the others wrote at or below it has arrived here, or never will.
//! - *horizon*: the cell's own.
//!
//! Let h be the lowest barrier of all cells. No write at or below h is on its way any more; copies of them move from replica to replica
//! only. A cell that from then on compares its keys with each other owner, and takes what it lacks, has everything up to h
//! ([`repair`](super::repair)). All words, and all comparisons, must be of one version of the layout, because a cell refuses
//! the requests of an earlier one: what a dead cell had on its way is refused, too.
//!
//! **A new life of a cell** has heard no word, and its clock may be behind the horizon of others. So a horizon covers no write of a
//! cell that the layout did not have when the horizon was reached: numbers ascend. In return a replica tells its horizon as if it were
//! a stamp of the key, and a write at a quorum goes above it. Older cells are above it anyway.
//!
//! **Attacks considered.**
//!
//! - *A hint of an old write, after a delete that was forgotten.* Its coordinator's *through* is below the write as long as it keeps the
//!   hint, so nobody's horizon covers the delete.
//! - *A hint that was given up.* The write is where it is. A comparison brings it to the others, or finds that it lost.
//! - *A copy in a read's repair, sent before the delete and taken after it was forgotten.* The horizon covers it: passed over.
//! - *A delete that one replica has and another one lacks.* The horizon of the second does not cover it before it has it.
//! - *A coordinator that died half way.* Its word is missing until another life has its place; the layout is another one then.
//! - *A copy of what a dead cell wrote.* A coordinator that read it sends it to other owners when the layout changes. Its word of the new
//!   layout comes behind that, and a barrier counts no word of an earlier one.
//! - *A cell that stands still for hours, and goes on.* Its horizon is where it was, so the others still have every deletion since. It
//!   answers with what it has, as any replica that missed writes does, until comparing has brought it the rest.
//! - *A new write that comes after its key's deletion was forgotten.* Its stamp is above the horizon, because the clock of a cell is above
//!   its *through*. Only a later life of a cell may stamp a write below; no horizon covers that life, and the write began later.
//! - *A cell that was the latest life, and leaves.* What it had on its way is refused from then on, so its number stays covered.
//! - *A place that is given away while a round goes on.* The round ends: its comparisons count for nothing. Until the cell that took the
//!   place has copied everything and been through a round of its own, its horizon is zero, and nothing is forgotten.
//! - *A value that expires by a clock that is ahead.* It is forgotten once the common horizon has come to its end: then every
//!   cell's clock has.
//! - *A clock that is behind.* Its *through* is behind as far, and so are all horizons. Nothing else follows.
//! - *A clock that jumps ahead.* The cell's *through* is ahead, but barriers are the lowest of all. The cell issues nothing below its
//!   *through* when its clock is set right: if it had jumped further than is allowed, its writes are refused until the clocks have come
//!   near again, as they are after a write with such a stamp.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    clock::Stamp,
    layout::{CellNumber, Layout, LayoutVersion},
};

/// The writes that a cell has all of: up to a time, by lives of cells up to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Horizon {
    /// The time of their stamps.
    pub time: u64,
    /// The last life of a cell whose writes are covered.
    pub cell: CellNumber,
}

impl Horizon {
    /// Whether it covers a write.
    pub fn covers(self, stamp: Stamp) -> bool {
        stamp.time <= self.time && stamp.cell <= self.cell
    }

    /// A stamp that is above those of all writes that it covers, or equal.
    pub(super) fn stamp(self) -> Stamp {
        Stamp { time: self.time, cell: self.cell }
    }

    fn includes(self, other: Horizon) -> bool {
        self.covers(other.stamp())
    }
}

/// How far a cell is, as it tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Word {
    /// The layout that it has.
    pub layout: LayoutVersion,
    /// The cell sends no write of its own at or below this time any more, except to those that have it.
    pub through: u64,
    /// The lowest *through* that it has heard of all cells of the layout, its own included; zero before all have told one in this layout.
    pub barrier: u64,
    /// Its horizon.
    pub horizon: Horizon,
}

/// How far all cells are, as one of them knows it.
#[derive(Debug, Default)]
pub(super) struct Horizons {
    through: u64,
    own: Horizon,
    /// The last words of the others.
    words: BTreeMap<CellNumber, Word>,
    past: u64,
}

impl Horizons {
    /// What a cell knows that comes back with this horizon of its own.
    pub(super) fn resumed(own: Horizon) -> Horizons {
        Horizons { own, ..Horizons::default() }
    }

    /// The cell's own horizon.
    pub(super) fn own(&self) -> Horizon {
        self.own
    }

    /// The time up to which this cell has said that its writes have ended.
    pub(super) fn through(&self) -> u64 {
        self.through
    }

    /// Every owner has each write of a cell of the layout up to this time that any owner will ever have, or a newer one in its place. It
    /// is what was known when the cell last [looked](Horizons::look).
    pub(super) fn past(&self) -> u64 {
        self.past
    }

    /// Looks at what the horizons of all cells cover, and returns it.
    pub(super) fn look(&mut self, layout: &Layout, me: CellNumber) -> Horizon {
        let common = self.common(layout, me);
        let covers_all = layout.cells().all(|(cell, _)| cell <= common.cell);
        self.past = if covers_all { common.time } else { 0 };
        common
    }

    /// The layout changed: the words of cells that are gone count no more.
    pub(super) fn adopt(&mut self, layout: &Layout) {
        // Another life may have a clock that is behind.
        self.past = 0;
        self.words.retain(|cell, _| layout.cell(*cell).is_some());
    }

    /// Another cell told how far it is.
    pub(super) fn hear(&mut self, from: CellNumber, word: Word) {
        self.words.insert(from, word);
    }

    /// This cell's clock is at `wall`, and `oldest` is the time of its oldest write that some owner may lack. Returns the time that its
    /// next stamps must be above.
    pub(super) fn settle(&mut self, wall: u64, oldest: Option<u64>) -> u64 {
        assert!(
            oldest.is_none_or(|oldest| oldest > self.through),
            "a write of {oldest:?} is on its way, and all through {} was said to have ended",
            self.through
        );
        let through = oldest.map_or(wall, |oldest| wall.min(oldest - 1));
        self.through = self.through.max(through);
        self.through
    }

    /// The word for the others.
    pub(super) fn word(&self, layout: &Layout, me: CellNumber) -> Word {
        let others = layout.cells().map(|(cell, _)| cell).filter(|cell| *cell != me);
        let through = |cell| {
            let word = self.words.get(&cell).filter(|word| word.layout == layout.version());
            word.map_or(0, |word| word.through)
        };
        let barrier = others.map(through).fold(self.through, u64::min);
        Word { layout: layout.version(), through: self.through, barrier, horizon: self.own }
    }

    /// The horizon that this cell reaches by comparing its keys with all others from now on; none if it has that already, or if
    /// somebody's word is missing.
    pub(super) fn target(&self, layout: &Layout, me: CellNumber) -> Option<Horizon> {
        // Lives above those of the layout are gone for good, and what they had on their way is refused: they stay covered.
        let mut target = Horizon { time: self.word(layout, me).barrier, cell: me.max(self.own.cell) };
        for (cell, _) in layout.cells().filter(|(cell, _)| *cell != me) {
            let word = self.words.get(&cell).filter(|word| word.layout == layout.version())?;
            target.time = target.time.min(word.barrier);
            target.cell = target.cell.max(cell);
        }
        (target != self.own && target.includes(self.own)).then_some(target)
    }

    /// This cell has compared its keys with all others.
    pub(super) fn reach(&mut self, target: Horizon) {
        assert!(target.includes(self.own), "{target:?} is reached after {:?}", self.own);
        self.own = target;
    }

    /// What the horizons of all cells cover.
    pub(super) fn common(&self, layout: &Layout, me: CellNumber) -> Horizon {
        let others = layout.cells().map(|(cell, _)| cell).filter(|cell| *cell != me);
        let horizon = |cell| self.words.get(&cell).map_or(Horizon::default(), |word: &Word| word.horizon);
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

    fn word(layout: &Layout, through: u64, barrier: u64, horizon: u64) -> Word {
        let horizon = Horizon { time: horizon, cell: CellNumber(3) };
        Word { layout: layout.version(), through, barrier, horizon }
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
    fn words_of_another_layout_give_no_target() {
        let layout = layout(&[(0, 1), (0, 1)]);
        let mut horizons = Horizons::default();
        horizons.settle(100, None);
        horizons.hear(CellNumber(2), Word { layout: LayoutVersion(1), ..word(&layout, 70, 60, 0) });
        assert_eq!(horizons.target(&layout, ME), None);
        // The sender may have sent something when its layout changed, and this word went before.
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

    /// Writes of a life that the horizons do not cover may be on their way, whatever their stamps.
    #[test]
    fn what_is_past_is_so_for_all_lives() {
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
