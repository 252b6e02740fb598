//! Checkers: what a run must show, judged from outside and without a line of the code that is judged.

pub mod ghost;

pub use ghost::GhostLog;
