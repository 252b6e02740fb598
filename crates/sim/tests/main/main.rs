//! Tests the simulator itself: a seed replays, the scenarios hold, and their checkers catch rules that are
//! broken on purpose.

mod graphs;
mod mutations;
mod registers;
mod scenarios;
