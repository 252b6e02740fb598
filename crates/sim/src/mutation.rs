//! Mutations: rules broken on purpose, to see that the checkers see it.

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {}
