//! The general question: does any order of the operations explain every answer?
//!
//! The search is depth-first, after Wing and Gong, with Lowe's memory. An operation may come next if it began
//! before the first end of any remaining operation. The search takes such an operation, applies it to a
//! sequential [`Model`] and strikes it off. If no operation fits, the search undoes its last choice. A
//! *place* is the set of struck-off operations together with the state. The search remembers every place, so
//! that it explores none twice.
//!
//! Three things keep the search small:
//! * *Reads first.* An operation that never changes the state, and whose answer fits the present state, may
//!   come next in every solution. The search takes such an operation without trying alternatives, and
//!   remembers no choice for it.
//! * *Compressed memory.* The struck-off set is a position below which every operation is struck off, and a
//!   short window of bits above it.
//! * *Unknown outcomes are optional.* The search ends when every answered operation is struck off.
//!
//! The problem is NP-complete. The search therefore counts its steps and works in pieces, so that its host
//! may stop it.

use std::hash::Hash;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashSet};
use smallvec::SmallVec;

use crate::operation::Nanos;

/// The sequential behaviour of an object.
pub trait Model {
    /// Contents of the object.
    type State: Clone + Eq + Hash;
    /// A request with its answer.
    type Operation;

    /// Returns the initial contents.
    fn initial(&self) -> Self::State;

    /// Returns the contents after the operation, or `None` if the object cannot give the operation's answer
    /// in this state. An operation of unknown outcome need never happen, so `apply` should accept it only in
    /// states that it changes.
    fn apply(&self, state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;

    /// Whether the operation never changes any state.
    fn is_read(&self, operation: &Self::Operation) -> bool;
}

/// An operation with its interval.
#[derive(Clone, Copy, Debug)]
pub struct Timed<T> {
    /// Start of the operation.
    pub start: Nanos,
    /// End of the operation, or `None` if its outcome is unknown.
    pub finish: Option<Nanos>,
    /// The operation.
    pub operation: T,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchAnswer {
    /// An order exists.
    Linearizable,
    /// No order exists.
    NotLinearizable(DeadEnd),
    /// The search ran out of steps.
    OutOfSteps,
}

/// The longest order that a search found. Operations are indices into the input of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadEnd {
    /// Number of operations in the order.
    pub ordered: usize,
    /// The last operations of the order.
    pub prefix: Vec<usize>,
    /// Operations of which at least one had to come next; none of them fits.
    pub candidates: Vec<usize>,
}

/// Longest prefix that a dead end keeps, in operations.
const PREFIX_MAX: usize = 6;
const CANDIDATES_MAX: usize = 12;

/// A place in the search: the struck-off set and the state.
#[derive(PartialEq, Eq, Hash)]
struct Visited {
    state: u32,
    base: u32,
    bits: SmallVec<[u64; 2]>,
}

struct SearchFrame {
    operation: u32,
    state_before: u32,
    high_before: u32,
    /// Whether the operation was a read that the search took without trying alternatives.
    is_forced_read: bool,
}

/// A search that runs in pieces.
pub struct Search<M: Model> {
    model: M,
    operations: Vec<Timed<M::Operation>>,
    /// Index of the operation at each position. Answered operations come first, then the others, each sorted
    /// by start.
    by_position: Vec<u32>,
    answered: usize,
    answered_left: usize,
    // `next` and `previous` link the events in the order of time: 2·position is a start, 2·position + 1 an
    // end. The head and the tail have the two numbers after all events.
    next: Vec<u32>,
    previous: Vec<u32>,
    struck: Vec<u64>,
    base: usize,
    high: usize,
    states: IndexSet<M::State, FxBuildHasher>,
    state: u32,
    seen: FxHashSet<Visited>,
    stack: Vec<SearchFrame>,
    /// The event to try next, or `None` if the search has just reached a new place.
    cursor: Option<u32>,
    furthest: DeadEnd,
    done: Option<bool>,
}

impl<M: Model> Search<M> {
    /// Creates a search. The operations may come in any order.
    pub fn new(model: M, operations: Vec<Timed<M::Operation>>) -> Self {
        let count = u32::try_from(operations.len()).expect("a key has fewer than 2^32 operations");
        let mut by_position: Vec<u32> = (0..count).collect();
        by_position.sort_by_key(|&index| {
            let timed = &operations[index as usize];
            (timed.finish.is_none(), timed.start, timed.finish)
        });
        let answered = operations.iter().filter(|timed| timed.finish.is_some()).count();

        // At equal times starts come before ends, because intervals are closed.
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

    /// Continues for at most `steps` steps. A step is one application of the model.
    pub fn advance(&mut self, steps: u64) -> SearchAnswer {
        let mut left = steps;
        while self.done.is_none() {
            if left == 0 {
                return SearchAnswer::OutOfSteps;
            }
            self.turn(&mut left);
        }
        match self.done {
            Some(true) => SearchAnswer::Linearizable,
            _ => SearchAnswer::NotLinearizable(self.furthest.clone()),
        }
    }

    /// Enters a new place, or continues at the current place: takes the first candidate that fits, or goes
    /// back if no candidate fits.
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
                    self.strike(
                        position,
                        u32::try_from(after).expect("a search meets fewer than 2^32 states"),
                        false,
                    );
                    self.cursor = None;
                    return;
                }
            }
            event = self.next[event as usize];
        }
        self.note_dead_end();
        self.back();
    }

    /// Takes every read that fits now.
    fn take_reads(&mut self, left: &mut u64) {
        let mut event = self.next[self.head() as usize];
        while !self.is_end(event) {
            let position = event / 2;
            event = self.next[event as usize];
            let operation = &self.timed(position).operation;
            if self.model.is_read(operation) {
                *left = left.saturating_sub(1);
                if self.model.apply(&self.states[self.state as usize], operation).is_some() {
                    // If the next event is the end of this read, the loop passes over the end, too.
                    if event == 2 * position + 1 {
                        event = self.next[event as usize];
                    }
                    self.strike(position, self.state, true);
                }
            }
        }
    }

    fn strike(&mut self, position: u32, state: u32, is_forced_read: bool) {
        let high_before = u32::try_from(self.high).expect("a position");
        self.stack.push(SearchFrame {
            operation: position,
            state_before: self.state,
            high_before,
            is_forced_read,
        });
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

    /// Undoes the last choice and continues with the event after it. Without a choice to undo, no order
    /// exists.
    fn back(&mut self) {
        while let Some(SearchFrame { operation: position, state_before, high_before, is_forced_read }) =
            self.stack.pop()
        {
            self.state = state_before;
            self.high = high_before as usize;
            self.struck[position as usize / 64] &= !(1 << (position % 64));
            if (position as usize) < self.answered {
                self.relink(2 * position + 1);
                self.answered_left += 1;
                self.base = self.base.min(position as usize);
            }
            self.relink(2 * position);
            if !is_forced_read {
                self.cursor = Some(self.next[2 * position as usize]);
                return;
            }
        }
        self.done = Some(false);
    }

    /// Remembers the current place. Returns whether the place is new.
    fn remember(&mut self) -> bool {
        let mut bits: SmallVec<[u64; 2]> = SmallVec::new();
        // The operations of unknown outcome come first and always take the same number of words. The window
        // above the base follows.
        bits.extend(self.window(self.answered, self.operations.len()));
        bits.extend(self.window(self.base, self.high));
        let base = u32::try_from(self.base).expect("a position");
        self.seen.insert(Visited { state: self.state, base, bits })
    }

    /// Returns the struck-off bits of the positions from `from` to `to`, in whole words. The bits after `to`
    /// in the last word do not affect equality of places. These bits are zero, or belong to operations of
    /// unknown outcome, which have their own window.
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

    /// Whether the event ends the candidates: it is an operation's end, or the tail of the list.
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
