//! The general question: is there any order of the operations that explains every answer?
//!
//! A depth-first search after Wing and Gong with Lowe's memory. The operations that may come next are those that began before the first
//! of the remaining ones ended. One is taken, applied to a sequential [`Model`], and struck off; if none can be, the last choice is
//! undone. What was reached is remembered as (which operations are struck off, state), so that no such place is searched twice.
//!
//! Three things keep it small:
//! * *Reads first.* An operation that never changes the state, if it can come now, can come now in every solution: it is
//!   taken without an alternative, and not remembered.
//! * *Compressed memory.* The struck-off set is a position, below which everything is struck off, and a short bit window above it.
//! * *Unknown outcomes are optional.* The search is over when every answered operation is struck off.
//!
//! The problem is NP-complete, so the search counts its steps, can be left and gone on with, and its host may stop it.

use std::hash::Hash;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashSet};
use smallvec::SmallVec;

use crate::operation::Nanos;

/// What operations do when they happen one after another.
pub trait Model {
    /// What the object holds.
    type State: Clone + Eq + Hash;
    /// What is asked and what was answered.
    type Operation;

    /// What it holds at first.
    fn initial(&self) -> Self::State;

    /// What it holds after the operation, or `None` if the operation could not have been answered as it was. An operation of unknown
    /// outcome need never happen, so it should be possible only where it has an effect.
    fn apply(&self, state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;

    /// Whether the operation never changes any state.
    fn is_read(&self, operation: &Self::Operation) -> bool;
}

/// An operation and its interval.
#[derive(Clone, Copy, Debug)]
pub struct Timed<T> {
    /// When it began.
    pub start: Nanos,
    /// When it ended; `None` if its outcome is unknown.
    pub finish: Option<Nanos>,
    /// The operation.
    pub operation: T,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is an order.
    Linearizable,
    /// There is none.
    NotLinearizable(DeadEnd),
    /// Not yet decided.
    OutOfSteps,
}

/// The furthest a search came. Operations are indices into what the search was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadEnd {
    /// How many operations were in order.
    pub ordered: usize,
    /// The last of them.
    pub prefix: Vec<usize>,
    /// Those of which one had to come next.
    pub candidates: Vec<usize>,
}

/// How many operations of the prefix a dead end keeps.
const PREFIX_MAX: usize = 6;
const CANDIDATES_MAX: usize = 12;

/// A place in the search: what is struck off, and the state.
#[derive(PartialEq, Eq, Hash)]
struct Place {
    state: u32,
    base: u32,
    bits: SmallVec<[u64; 2]>,
}

struct Frame {
    operation: u32,
    state_before: u32,
    high_before: u32,
    /// A read that was taken because it could be.
    forced: bool,
}

/// A search that can be run in pieces.
pub struct Search<M: Model> {
    model: M,
    operations: Vec<Timed<M::Operation>>,
    /// Positions are by beginning; answered operations have the first `answered` of them, the others follow.
    by_position: Vec<u32>,
    answered: usize,
    answered_left: usize,
    // A list of events: 2·position is a beginning, 2·position + 1 an end. The head and tail come after all of them.
    next: Vec<u32>,
    previous: Vec<u32>,
    struck: Vec<u64>,
    base: usize,
    high: usize,
    states: IndexSet<M::State, FxBuildHasher>,
    state: u32,
    seen: FxHashSet<Place>,
    stack: Vec<Frame>,
    /// The event to try next, or `None` on arrival at a new place.
    cursor: Option<u32>,
    furthest: DeadEnd,
    done: Option<bool>,
}

impl<M: Model> Search<M> {
    /// A search over operations in any order.
    pub fn new(model: M, operations: Vec<Timed<M::Operation>>) -> Self {
        let count = u32::try_from(operations.len()).expect("fewer than 2^32 operations");
        let mut by_position: Vec<u32> = (0..count).collect();
        by_position.sort_by_key(|&index| {
            let timed = &operations[index as usize];
            (timed.finish.is_none(), timed.start, timed.finish)
        });
        let answered = operations.iter().filter(|timed| timed.finish.is_some()).count();

        // At one instant beginnings come before ends: intervals are closed.
        let mut events: Vec<(Nanos, bool, u32)> = Vec::with_capacity(2 * operations.len());
        for (position, &index) in (0u32..).zip(&by_position) {
            let timed = &operations[index as usize];
            events.push((timed.start, false, 2 * position));
            events.extend(timed.finish.map(|finish| (finish, true, 2 * position + 1)));
        }
        events.sort_unstable();
        let (head, tail) = (2 * count, 2 * count + 1);
        let mut next = vec![tail; 2 * operations.len() + 2];
        let mut previous = vec![head; 2 * operations.len() + 2];
        let mut last = head;
        for (_, _, event) in events {
            (next[last as usize], previous[event as usize]) = (event, last);
            last = event;
        }
        (next[last as usize], previous[tail as usize]) = (tail, last);

        let mut states = IndexSet::default();
        states.insert(model.initial());
        Self {
            model,
            struck: vec![0; operations.len().div_ceil(64)],
            operations,
            by_position,
            answered,
            answered_left: answered,
            next,
            previous,
            base: 0,
            high: 0,
            states,
            state: 0,
            seen: FxHashSet::default(),
            stack: Vec::new(),
            cursor: None,
            furthest: DeadEnd::default(),
            done: None,
        }
    }

    /// Goes on for at most so many steps. A step is one application of the model.
    pub fn advance(&mut self, steps: u64) -> Answer {
        let mut left = steps;
        while self.done.is_none() {
            if left == 0 {
                return Answer::OutOfSteps;
            }
            self.turn(&mut left);
        }
        match self.done {
            Some(true) => Answer::Linearizable,
            _ => Answer::NotLinearizable(self.furthest.clone()),
        }
    }

    /// Arrives at a place, or tries the next candidates there until one can be taken or none is left.
    fn turn(&mut self, left: &mut u64) {
        let mut event = match self.cursor {
            Some(event) => event,
            None => {
                self.take_reads(left);
                if self.answered_left == 0 {
                    self.done = Some(true);
                    return;
                }
                if !self.remember() {
                    self.back();
                    return;
                }
                self.next[self.head() as usize]
            }
        };
        while !self.is_end(event) {
            if *left == 0 {
                self.cursor = Some(event);
                return;
            }
            let position = event / 2;
            let operation = &self.timed(position).operation;
            if !self.model.is_read(operation) {
                *left -= 1;
                if let Some(after) = self.model.apply(&self.states[self.state as usize], operation) {
                    let (after, _) = self.states.insert_full(after);
                    self.strike(position, u32::try_from(after).expect("fewer than 2^32 states"), false);
                    self.cursor = None;
                    return;
                }
            }
            event = self.next[event as usize];
        }
        self.note_dead_end();
        self.back();
    }

    /// Takes every read that can come now.
    fn take_reads(&mut self, left: &mut u64) {
        let mut event = self.next[self.head() as usize];
        while !self.is_end(event) {
            let position = event / 2;
            event = self.next[event as usize];
            let operation = &self.timed(position).operation;
            if self.model.is_read(operation) {
                *left = left.saturating_sub(1);
                if self.model.apply(&self.states[self.state as usize], operation).is_some() {
                    // Its own end may be what comes next, and is struck off with it.
                    if event == 2 * position + 1 {
                        event = self.next[event as usize];
                    }
                    self.strike(position, self.state, true);
                }
            }
        }
    }

    fn strike(&mut self, position: u32, state: u32, forced: bool) {
        let high_before = u32::try_from(self.high).expect("a position");
        self.stack.push(Frame { operation: position, state_before: self.state, high_before, forced });
        self.state = state;
        self.struck[position as usize / 64] |= 1 << (position % 64);
        self.unlink(2 * position);
        if (position as usize) < self.answered {
            self.unlink(2 * position + 1);
            self.answered_left -= 1;
            self.high = self.high.max(position as usize + 1);
            while self.base < self.answered && self.is_struck(self.base) {
                self.base += 1;
            }
        }
    }

    /// Undoes the last choice and goes on behind it; without one, the search is over.
    fn back(&mut self) {
        while let Some(Frame { operation: position, state_before, high_before, forced }) = self.stack.pop() {
            self.state = state_before;
            self.high = high_before as usize;
            self.struck[position as usize / 64] &= !(1 << (position % 64));
            if (position as usize) < self.answered {
                self.relink(2 * position + 1);
                self.answered_left += 1;
                self.base = self.base.min(position as usize);
            }
            self.relink(2 * position);
            if !forced {
                self.cursor = Some(self.next[2 * position as usize]);
                return;
            }
        }
        self.done = Some(false);
    }

    /// Whether this place is new.
    fn remember(&mut self) -> bool {
        let mut bits: SmallVec<[u64; 2]> = SmallVec::new();
        // First the operations of unknown outcome, always as many words, then the window above the base.
        bits.extend(self.window(self.answered, self.operations.len()));
        bits.extend(self.window(self.base, self.high));
        let base = u32::try_from(self.base).expect("a position");
        self.seen.insert(Place { state: self.state, base, bits })
    }

    /// The struck-off bits of the positions from `from` to `to`, in whole words. What follows `to` in the last word tells no two
    /// places apart: it is zero, or belongs to operations of unknown outcome, which have a window of their own.
    fn window(&self, from: usize, to: usize) -> impl Iterator<Item = u64> {
        (from..to).step_by(64).map(move |at| {
            let (word, shift) = (at / 64, at % 64);
            let mut bits = self.struck[word] >> shift;
            if shift > 0 && word + 1 < self.struck.len() {
                bits |= self.struck[word + 1] << (64 - shift);
            }
            bits
        })
    }

    fn note_dead_end(&mut self) {
        if self.stack.len() <= self.furthest.ordered && !self.furthest.candidates.is_empty() {
            return;
        }
        let index = |position: u32| self.by_position[position as usize] as usize;
        let mut candidates = Vec::new();
        let mut event = self.next[self.head() as usize];
        while !self.is_end(event) && candidates.len() < CANDIDATES_MAX {
            candidates.push(index(event / 2));
            event = self.next[event as usize];
        }
        let prefix = &self.stack[self.stack.len().saturating_sub(PREFIX_MAX)..];
        let prefix = prefix.iter().map(|frame| index(frame.operation)).collect();
        self.furthest = DeadEnd { ordered: self.stack.len(), prefix, candidates };
    }

    fn timed(&self, position: u32) -> &Timed<M::Operation> {
        &self.operations[self.by_position[position as usize] as usize]
    }

    fn head(&self) -> u32 {
        self.next.len() as u32 - 2
    }

    /// Whether no further operation may come now: an end, or the end of the list.
    fn is_end(&self, event: u32) -> bool {
        event % 2 == 1
    }

    fn is_struck(&self, position: usize) -> bool {
        self.struck[position / 64] & (1 << (position % 64)) != 0
    }

    fn unlink(&mut self, event: u32) {
        let (before, after) = (self.previous[event as usize], self.next[event as usize]);
        self.next[before as usize] = after;
        self.previous[after as usize] = before;
    }

    fn relink(&mut self, event: u32) {
        let (before, after) = (self.previous[event as usize], self.next[event as usize]);
        self.next[before as usize] = event;
        self.previous[after as usize] = event;
    }
}
