//! The shared-scan table engine: typed rows, predicates, and one pass for many operations.
