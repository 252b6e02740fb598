//! Counting majorities.

use crate::id::ProcessId;

/// How many of `members` are a majority.
pub const fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// Whether the processes in `votes` include a majority of `members`. A vote by a process that is no member, or by
/// another incarnation of one, counts for nothing.
pub fn has_majority<'a>(members: &[ProcessId], votes: impl IntoIterator<Item = &'a ProcessId>) -> bool {
    let mut counted: Vec<&ProcessId> = votes.into_iter().filter(|vote| members.contains(vote)).collect();
    counted.sort_unstable();
    counted.dedup();
    counted.len() >= majority(members.len())
}
