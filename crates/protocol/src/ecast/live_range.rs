//! The live range of the history: a value per unfinished position.
//!
//! Positions finish roughly in order, so most are kept in a queue, by their distance from its base. But a
//! silent destination can leave its messages open for any time. These open messages must not keep all later
//! messages in memory. When the queue is long, an open position at its front becomes a *straggler*, which is
//! kept separately, and the base advances. So the memory is bounded by the number of open positions plus
//! `recent_max` (an argument of [`LiveRange::new`]).
//!
//! So if an unreachable or lagging process has not confirmed a message, a router keeps few of the later
//! messages. It keeps the unconfirmed message, and the newest 65,536 positions (`kept_max`), finished or not.
//! Of the positions between them, it keeps only the open positions.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::Position;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LiveRange<T> {
    /// Position before the first position in the queue. At and below this base, only stragglers are kept.
    base: u64,
    recent: VecDeque<T>,
    stragglers: BTreeMap<u64, T>,
    #[serde(skip)]
    recent_max: usize,
}

impl<T> LiveRange<T> {
    /// Creates a live range that begins after `base`, and keeps at most `recent_max` positions after an
    /// open one.
    pub(super) fn new(base: Position, recent_max: usize) -> Self {
        LiveRange { base: base.0, recent: VecDeque::new(), stragglers: BTreeMap::new(), recent_max }
    }

    /// Checks a live range from another router; `None` if its form is wrong.
    pub(super) fn checked(self, recent_max: usize) -> Option<Self> {
        let ends = self.base.checked_add(self.recent.len() as u64 + 1).is_some();
        let apart = self.stragglers.keys().all(|&at| 0 < at && at <= self.base);
        (ends && apart).then_some(LiveRange { recent_max, ..self })
    }

    pub(super) fn recent_max(&self) -> usize {
        self.recent_max
    }

    /// Returns the base of the queue: the position before the first position in the queue.
    pub(super) fn base(&self) -> Position {
        Position(self.base)
    }

    /// Returns the highest position up to which all positions are finished.
    pub(super) fn done_through(&self) -> Position {
        Position(self.stragglers.first_key_value().map_or(self.base, |(&at, _)| at - 1))
    }

    pub(super) fn last(&self) -> Position {
        Position(self.base + self.recent.len() as u64)
    }

    /// Returns the number of kept positions.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.recent.len() + self.stragglers.len()
    }

    pub(super) fn get(&self, at: Position) -> Option<&T> {
        match at.0.checked_sub(self.base + 1) {
            Some(index) => self.recent.get(usize::try_from(index).ok()?),
            None => self.stragglers.get(&at.0),
        }
    }

    pub(super) fn get_mut(&mut self, at: Position) -> Option<&mut T> {
        match at.0.checked_sub(self.base + 1) {
            Some(index) => self.recent.get_mut(usize::try_from(index).ok()?),
            None => self.stragglers.get_mut(&at.0),
        }
    }

    /// Returns the kept values after `position`, in order.
    pub(super) fn behind(&self, position: Position) -> impl Iterator<Item = (Position, &T)> {
        let skip = usize::try_from(position.0.saturating_sub(self.base)).unwrap_or(usize::MAX);
        let recent = (self.base + 1..).zip(&self.recent).skip(skip);
        let stragglers =
            self.stragglers.range(position.0.saturating_add(1)..).map(|(&at, value)| (at, value));
        stragglers.chain(recent).map(|(at, value)| (Position(at), value))
    }

    /// Returns the stragglers between two positions, both included.
    pub(super) fn stragglers(&self, first: Position, last: Position) -> Vec<Position> {
        if first > last {
            return Vec::new();
        }
        self.stragglers.range(first.0..=last.0).map(|(&at, _)| Position(at)).collect()
    }

    /// Adds the value of the next position. If the position is at or below the base, it becomes a straggler:
    /// an unfinished position among finished positions.
    pub(super) fn put(&mut self, at: Position, value: T) {
        if at.0 <= self.base {
            self.stragglers.insert(at.0, value);
        } else {
            assert_eq!(at.0, self.last().0 + 1, "positions follow each other");
            self.recent.push_back(value);
        }
    }

    /// Forgets a straggler if it is finished.
    pub(super) fn forget_finished(&mut self, at: Position, is_done: impl Fn(&T) -> bool) {
        if self.stragglers.get(&at.0).is_some_and(is_done) {
            self.stragglers.remove(&at.0);
        }
    }

    /// Forgets finished positions from the front. If the queue is too long, turns open positions into
    /// stragglers.
    pub(super) fn collect(&mut self, is_done: impl Fn(&T) -> bool) {
        while let Some(front) = self.recent.front() {
            let done = is_done(front);
            if !done && self.recent.len() <= self.recent_max {
                break;
            }
            let front = self.recent.pop_front().expect("just seen");
            self.base += 1;
            if !done {
                self.stragglers.insert(self.base, front);
            }
        }
    }
}

/// A set of numbers, kept as runs: the last number of each run, by the run's first number.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Runs(BTreeMap<u64, u64>);

impl Runs {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, &last)| last >= number)
    }

    pub(super) fn insert(&mut self, number: u64) {
        let before = self.0.range(..=number).next_back().map(|(&first, &last)| (first, last));
        if before.is_some_and(|(_, last)| last >= number) {
            return;
        }
        let first = before.filter(|(_, last)| last + 1 == number).map_or(number, |(first, _)| first);
        let behind = number.checked_add(1).and_then(|next| self.0.remove(&next));
        self.0.insert(first, behind.unwrap_or(number));
    }

    /// Forgets all numbers up to `through`, which count as members of the set, and the numbers that directly
    /// follow. Returns the last forgotten number.
    pub(super) fn absorb(&mut self, mut through: u64) -> u64 {
        while let Some(run) = self.0.first_entry().filter(|run| *run.key() <= through.saturating_add(1)) {
            through = through.max(run.remove());
        }
        through
    }

    /// Returns the number of runs.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns pseudo-random numbers below `most`.
    fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
        move |most| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % most
        }
    }

    /// A live range behaves like a map from positions to values, from which finished positions at the front
    /// are removed.
    #[test]
    fn a_live_range_is_a_map() {
        for seed in 0..200 {
            let mut draw = numbers(seed);
            let most = draw(6) as usize;
            let mut live_range = LiveRange::new(Position(0), most);
            let mut open = BTreeSet::new();
            let mut last = 0;
            for _ in 0..100 {
                if draw(3) == 0 || last == 0 {
                    last += 1;
                    live_range.put(Position(last), false);
                    open.insert(last);
                } else {
                    let at = Position(1 + draw(last));
                    open.remove(&at.0);
                    if let Some(done) = live_range.get_mut(at) {
                        *done = true;
                    }
                    live_range.forget_finished(at, |done| *done);
                }
                live_range.collect(|done| *done);
                assert_eq!(live_range.last().0, last);
                assert_eq!(live_range.done_through().0, open.first().map_or(last, |first| first - 1));
                assert!(live_range.kept() <= open.len() + most);
                let kept = live_range.behind(Position(0)).filter(|(_, done)| !**done);
                assert!(kept.map(|(at, _)| at.0).eq(open.iter().copied()));
                assert!(open.iter().all(|&at| live_range.get(Position(at)) == Some(&false)));
            }
        }
    }

    /// A live range is refused if an open position lies where none can be. Live ranges in snapshots come from
    /// outside.
    #[test]
    fn a_live_range_has_its_open_positions_where_they_belong() {
        let is_sound = |base: u64, recent: usize, stragglers: &[u64]| {
            let recent = VecDeque::from(vec![(); recent]);
            let stragglers = stragglers.iter().map(|at| (*at, ())).collect();
            LiveRange { base, recent, stragglers, recent_max: 0 }.checked(7).is_some()
        };
        assert!(is_sound(5, 2, &[1, 5]) && is_sound(0, 0, &[]));
        assert!(!is_sound(5, 2, &[0]) && !is_sound(5, 2, &[6]) && !is_sound(5, 2, &[1, 6]));
        assert!(is_sound(u64::MAX - 3, 2, &[]) && !is_sound(u64::MAX - 2, 2, &[]));
    }

    #[test]
    fn runs_are_a_set() {
        for seed in 0..200 {
            let mut draw = numbers(seed);
            let (mut runs, mut set) = (Runs::default(), BTreeSet::new());
            for _ in 0..draw(80) {
                let number = 1 + draw(60);
                runs.insert(number);
                set.insert(number);
                assert!((0..70).all(|number| runs.contains(number) == set.contains(&number)));
            }
            let firsts = set.iter().filter(|number| !set.contains(&(**number - 1)));
            assert_eq!(runs.count(), firsts.count(), "what follows on each other is one run");
            let through = draw(20);
            let mut end = through;
            while set.contains(&(end + 1)) {
                end += 1;
            }
            assert_eq!(runs.absorb(through), end);
            let left = set.split_off(&(end + 1));
            assert!((0..70).all(|number| runs.contains(number) == left.contains(&number)));
        }
    }
}
