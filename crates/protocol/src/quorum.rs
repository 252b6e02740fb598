//! Counting majorities.

use crate::id::ProcessId;

/// Returns the size of a majority of `members`.
pub const fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// Whether the processes in `votes` include a majority of `members`. A vote of a process that is not a
/// member, or of another incarnation of a member, does not count.
pub fn has_majority<'a>(members: &[ProcessId], votes: impl IntoIterator<Item = &'a ProcessId>) -> bool {
    let mut counted: Vec<&ProcessId> = votes.into_iter().filter(|vote| members.contains(vote)).collect();
    counted.sort_unstable();
    counted.dedup();
    counted.len() >= majority(members.len())
}
