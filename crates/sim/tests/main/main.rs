//! The simulator itself: does a seed replay, do the scenarios hold, and do their checkers catch what is broken on purpose?

mod graphs;
mod mutations;
mod registers;
mod scenarios;
