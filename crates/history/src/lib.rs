//! Recorded operations and how consistent they were.
